"""The curator's HTTP service, over a real socket on the loopback interface."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from gpytorch.kernels import RBFKernel

from botorch_dp.outsourced import (
    CuratorClient,
    CuratorRefusal,
    Modeler,
    PrivateAnswers,
    curator_app,
)
from botorch_dp.privacy import PrivacyBudget, PrivacyLedger
from tests.outsourced.serving import (
    TOKEN,
    free_port,
    make_curator,
    measure,
    question,
    raw,
    serving,
)


def test_a_search_over_http() -> None:
    curator = make_curator(max_queries=6)
    with serving(curator) as url:
        remote = CuratorClient(url, token=TOKEN)
        release = remote.dataset()
        assert torch.equal(release.value, curator.dataset.value)
        assert release.guarantee == curator.guarantee
        modeler = Modeler(release.value, kernel=RBFKernel(), noise_std=0.1, delta=0.1)
        history = modeler.run(remote.query, steps=6)
        assert all(answer.y == measure(answer.index) for answer in history)
        status = remote.status()
        assert (status["queries"], status["remaining"], status["rows"]) == (6, 0, 30)
        with pytest.raises(CuratorRefusal, match="limit of 6") as refused:
            modeler.run(remote.query, steps=7)
        assert refused.value.status == 403
        assert len(modeler.history) == 6


@pytest.mark.parametrize("token", ["", "wrong-token-of-some-length", TOKEN + "x", TOKEN[:-1]])
@pytest.mark.parametrize(
    ("method", "path"), [("GET", "/status"), ("GET", "/dataset"), ("POST", "/query")]
)
def test_bad_tokens_get_nothing(shared_url: str, token: str, method: str, path: str) -> None:
    status, body, headers = raw(shared_url, method, path, question(1), token=token)
    assert status == 401
    assert headers["WWW-Authenticate"] == "Bearer"
    assert b"y" not in json.loads(body)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"\xff\xfe",
        b"[" * 3000,
        b'{"index": 1}',
        b'{"index": true, "request_id": "a"}',
        b'{"index": 1.0, "request_id": "a"}',
        b'{"index": "1", "request_id": "a"}',
        b'{"index": 1, "request_id": 5}',
        b'{"index": 1, "request_id": ""}',
        question(1, "x" * 129),
        b" " * 5000 + question(1),
    ],
)
def test_bad_questions(shared_url: str, body: bytes) -> None:
    status, answer, _ = raw(shared_url, "POST", "/query", body)
    assert status == 400
    assert "request_id" in json.loads(answer)["error"]


def test_no_such_row_and_no_such_path(shared_url: str) -> None:
    for index in (30, -1, 10**30):
        status, answer, _ = raw(shared_url, "POST", "/query", question(index, f"row {index}"))
        assert status == 404
        assert "from 0 to 29" in json.loads(answer)["error"] or "at least" in str(answer)
    assert raw(shared_url, "GET", "/nothing")[0] == 404
    assert raw(shared_url, "GET", "/query")[0] == 405


def test_the_same_question_twice() -> None:
    curator = make_curator()
    with serving(curator) as url:
        first = raw(url, "POST", "/query", question(3))
        second = raw(url, "POST", "/query", question(3))
        assert (first[0], first[1]) == (second[0], second[1])
        assert raw(url, "POST", "/query", question(4))[0] == 409
        # Another question about the same row is a new measurement.
        assert raw(url, "POST", "/query", question(3, "other"))[0] == 200
    assert curator.num_queries == 2


def test_floods_are_slowed_and_guesses_too() -> None:
    curator = make_curator()
    with serving(curator, rate=0.5, burst=5) as url:
        codes = [raw(url, "GET", "/status")[0] for _ in range(20)]
        assert codes[:5] == [200] * 5
        assert codes.count(429) >= 14
        status, _, headers = raw(url, "GET", "/status", token="guess")
        assert status == 429
        assert float(headers["Retry-After"]) > 0


def test_a_restart_loses_neither_count_nor_search(tmp_path: Path) -> None:
    port = free_port()
    checkpoint, log = tmp_path / "search.jsonl", tmp_path / "log.sqlite"
    house = make_curator(log=log, max_queries=8)
    rows = house.dataset.value

    def search() -> Modeler:
        modeler = Modeler(rows, kernel=RBFKernel(), noise_std=0.1, delta=0.1)
        modeler.resume(checkpoint)
        return modeler

    with serving(house, port=port) as url:
        search().run(CuratorClient(url, token=TOKEN).query, steps=3)
    gone = search()
    assert len(gone.history) == 3
    with pytest.raises(ConnectionError, match="No answer"):
        gone.run(CuratorClient(url, token=TOKEN, patience=0.3).query, steps=8)
    with serving(make_curator(log=log, max_queries=8), port=port) as url:
        history = search().run(CuratorClient(url, token=TOKEN).query, steps=8)
        assert CuratorClient(url, token=TOKEN).status()["queries"] == 8
    assert len(history) == 8


def test_private_values_stay_out_of_answers_and_logs(caplog: pytest.LogCaptureFixture) -> None:
    def fails(index: int) -> float:
        if index == 1:
            raise RuntimeError("patient Smith, income 123456")
        return 98765.4321

    with caplog.at_level(logging.DEBUG), serving(make_curator(fails)) as url:
        status, body, _ = raw(url, "POST", "/query", question(1))
        assert status == 500
        assert b"Smith" not in body
        assert b"123456" not in body
        assert raw(url, "POST", "/query", question(2, "fine"))[0] == 200
    assert "Smith" not in caplog.text
    assert "98765" not in caplog.text
    assert "row 1: measurement failed (RuntimeError)" in caplog.text


def test_an_exhausted_budget_is_a_refusal() -> None:
    ledger = PrivacyLedger(budget=PrivacyBudget(1.0, 1e-6, summed=1.0))
    answers = PrivateAnswers(epsilon=0.6, bounds=(-3.0, 3.0), ledger=ledger)
    with serving(make_curator(answers=answers)) as url:
        remote = CuratorClient(url, token=TOKEN)
        remote.query(1)
        with pytest.raises(CuratorRefusal, match="budget is exhausted"):
            remote.query(2)


@pytest.mark.parametrize("token", ["short", "", None])
def test_short_tokens_are_refused(token) -> None:
    with pytest.raises(ValueError, match="`token`"):
        curator_app(make_curator(), token=token)


@pytest.fixture(scope="module")
def shared_url() -> Iterator[str]:
    with serving(make_curator()) as url:
        yield url
