"""The curator's HTTP service, over a real socket on the loopback interface."""

from __future__ import annotations

import json
import logging
import math
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures.thread import _threads_queues
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from gpytorch.kernels import RBFKernel

from botorch_dp.outsourced import (
    CuratorClient,
    CuratorRefusal,
    Modeler,
    PrivateAnswers,
    serve,
    service,
)
from botorch_dp.privacy import PrivacyBudget, PrivacyLedger
from tests.outsourced.certificates import certificate
from tests.outsourced.process import charges, load, service_process
from tests.outsourced.process import curator as charged_curator
from tests.outsourced.serving import (
    TOKEN,
    connected,
    drained,
    free_port,
    make_curator,
    measure,
    memory_folder,
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
        modeler = Modeler(release, kernel=RBFKernel(), noise_std=0.1, delta=0.1)
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
        rb'{"index": 1, "request_id": "\ud800"}',
        b'{"index": ' + b"9" * 4000 + b"}",
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


class TestStrangers:
    """Without the token: nobody else waits, nothing grows."""

    @pytest.mark.parametrize("half", [b"GET /status HTTP/1.1\r\nHo", b""])
    def test_the_owner_does_not_wait_for_200_that_stall(self, half: bytes) -> None:
        """Who did would wait for the sixty seconds that a request may take."""
        with serving(make_curator(), request_seconds=60) as url, ExitStack() as crowd:
            remote = CuratorClient(url, token=TOKEN)
            remote.query(0)  # what is imported late is imported now
            for _ in range(200):
                crowd.enter_context(connected(url, half))
            for index in range(3):
                raw(url, "GET", "/status", token="a guess of the token")
                start = time.monotonic()
                assert remote.query(index) == measure(index)
                assert time.monotonic() - start < 30

    @pytest.mark.slow
    def test_the_owner_among_200_that_do_not_shake_hands(self, tmp_path: Path) -> None:
        own = certificate(tmp_path, "own")
        with (
            serving(make_curator(), request_seconds=60, certificate=own) as url,
            ExitStack() as crowd,
        ):
            remote = CuratorClient(url, token=TOKEN, cafile=own.certfile)
            remote.query(0)
            for _ in range(200):
                crowd.enter_context(connected(url, b"\x16\x03\x01"))
            start = time.monotonic()
            assert remote.query(1) == measure(1)
            assert time.monotonic() - start < 30

    def test_the_oldest_that_waits_makes_room(self) -> None:
        with serving(make_curator(), waiting=10, request_seconds=60) as url:
            crowd = [connected(url, b"GET /sta") for _ in range(60)]
            assert all(raw(url, "GET", "/status")[0] == 200 for _ in range(5))
            crowd[0].settimeout(30)
            assert drained(crowd[0]) == b""
            crowd[-1].sendall(b"tus HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            assert b"401" in drained(crowd[-1])
            for stranger in crowd:
                stranger.close()

    @pytest.mark.parametrize(
        "half",
        [
            b"",
            b"GET /sta",
            b"GET /status HTTP/1.1\r\nHost: x\r\n",
            b"POST /query HTTP/1.1\r\nHost: x\r\nContent-Length: 50\r\n\r\n{",
        ],
        ids=["nothing", "half a line", "half a head", "half a body"],
    )
    def test_half_sent_requests_time_out(self, half: bytes) -> None:
        with serving(make_curator(), request_seconds=0.4) as url:
            start = time.monotonic()
            with connected(url, half) as stranger:
                assert b"200" not in drained(stranger)
            assert 0.2 < time.monotonic() - start < 15

    @pytest.mark.parametrize(
        "head",
        [
            b"GET /status HTTP/1.1\r\n",
            b"POST /query HTTP/1.1\r\nHost: x\r\nContent-Length: 9999\r\n\r\n",
            b"GET /health HTTP/1.1\r\nHost: x\r\n\r\nGET /health HTTP/1.1\r\n",
        ],
        ids=["head", "body", "second head"],
    )
    def test_a_request_that_trickles_in_times_out(self, head: bytes) -> None:
        with serving(make_curator(), request_seconds=0.4) as url:
            start = time.monotonic()
            with connected(url, head) as stranger, suppress(OSError):
                while time.monotonic() - start < 20:
                    stranger.sendall(b"X: y\r\n")
                    time.sleep(0.05)
            assert time.monotonic() - start < 15

    @pytest.mark.slow
    def test_a_long_answer_may_be_read_slowly(self) -> None:
        """The limit is for requests: who is answered is not cut off."""
        slow = make_curator(lambda _: time.sleep(1.5) or 0.5)
        with serving(slow, request_seconds=1.0) as url:
            assert raw(url, "POST", "/query", question(1))[0] == 200

    def test_junk_leaves_no_trace_in_the_log(
        self, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
    ) -> None:
        chunked = b"POST /query HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
        with caplog.at_level(logging.INFO), serving(make_curator()) as url:
            http_9 = b"GET / HTTP/9\r\n\r\n"
            for junk in (b"\0\xff" * 50, http_9, b"A" * 20_000, chunked + b"zz\r\n"):
                with connected(url, junk) as stranger:
                    drained(stranger)
            with connected(url, chunked) as stranger:
                assert b"401" in stranger.recv(1000)
                stranger.sendall(b"no chunk\r\n")
                drained(stranger)
            assert raw(url, "GET", "/status")[0] == 200
        assert caplog.text == ""
        assert capsys.readouterr().err == ""  # where uvicorn writes

    def test_a_client_that_leaves_in_the_middle_is_one_line(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        head = f"POST /query HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\n"
        with caplog.at_level(logging.INFO), serving(make_curator()) as url:
            connected(url, f"{head}Content-Length: 50\r\n\r\n{{".encode()).close()
            deadline = time.monotonic() + 30
            while not caplog.records and time.monotonic() < deadline:
                time.sleep(0.01)
            assert raw(url, "GET", "/status")[0] == 200
        assert [record.getMessage() for record in caplog.records] == [
            "A client left in the middle of its question."
        ]
        assert caplog.records[0].exc_info is None


class TestHangingMeasurements:
    def test_others_are_answered_and_the_place_is_counted_once(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        done, calls = threading.Event(), []
        measuring: list[threading.Thread] = []

        def hangs(index: int) -> float:
            calls.append(index)
            if index < 2:
                measuring.append(threading.current_thread())
                done.wait(60)
            return measure(index)

        curator = make_curator(hangs)
        with serving(curator, measurements=2) as url:
            monkeypatch.setattr(service, "_ANSWER_WITHIN", 0.05)
            for _ in range(3):
                status, _, headers = raw(url, "POST", "/query", question(0, "hanging"))
                assert status == 202
                assert float(headers["Retry-After"]) > 0
            monkeypatch.setattr(service, "_ANSWER_WITHIN", 15.0)
            assert raw(url, "POST", "/query", question(5, "other"))[0] == 200
            monkeypatch.setattr(service, "_ANSWER_WITHIN", 0.05)
            assert raw(url, "POST", "/query", question(1, "too"))[0] == 202
            # Every place is taken: a refusal that the client waits out.
            assert raw(url, "POST", "/query", question(6, "third"))[0] == 503
            assert raw(url, "GET", "/status")[0] == 200
            # No thread keeps the process alive, by itself or as one of a pool.
            assert len(measuring) == 2
            assert all(t.daemon and t not in _threads_queues for t in measuring)
            done.set()
            assert CuratorClient(url, token=TOKEN).query(0, request_id="hanging") == measure(0)
            assert CuratorClient(url, token=TOKEN).query(6, request_id="third") == measure(6)
        assert calls.count(0) == 1

    @pytest.mark.slow
    def test_the_client_waits_for_a_row_that_is_being_measured(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(service, "_ANSWER_WITHIN", 0.05)
        done = threading.Event()

        def slow(index: int) -> float:
            if index == 1:
                time.sleep(0.3)
            else:
                done.wait(60)
            return measure(index)

        with serving(make_curator(slow)) as url:
            assert CuratorClient(url, token=TOKEN, patience=0.01).query(1) == measure(1)
            # The first exchange has a second, and a pause of half a second ends after that.
            with pytest.raises(ConnectionError, match="still being measured"):
                CuratorClient(url, token=TOKEN, patience=0.3, timeout=1.0).query(2)
            done.set()

    @pytest.mark.slow
    def test_a_hanging_measurement_does_not_keep_the_service_alive(self) -> None:
        program = (
            "import threading, torch\n"
            "from tests.outsourced.serving import make_curator, question, raw, serving\n"
            "from botorch_dp.outsourced import service\n"
            "service._ANSWER_WITHIN = 0.1\n"
            "with serving(make_curator(lambda _: threading.Event().wait())) as url:\n"
            "    print(raw(url, 'POST', '/query', question(1))[0])\n"
        )
        done = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, timeout=60
        )
        assert done.stdout.strip() == "202", done.stderr


def test_measured_infinity_is_a_refusal() -> None:
    calls = []

    def broken(index: int) -> float:
        calls.append(index)
        return math.inf

    with serving(make_curator(broken)) as url:
        for _ in range(2):
            with pytest.raises(CuratorRefusal, match="not finite") as refused:
                CuratorClient(url, token=TOKEN).query(3, request_id="same")
            assert refused.value.status == 422
    assert calls == [3]


def test_status_says_what_answers_promise() -> None:
    with serving(make_curator()) as url:
        assert "no guarantee covers them" in CuratorClient(url, token=TOKEN).status()["guarantee"]
    answers = PrivateAnswers(epsilon=0.1, sensitivity=2.0)
    with serving(make_curator(answers=answers)) as url:
        promised = CuratorClient(url, token=TOKEN).status()["guarantee"]
    assert "an answer moves by at most 2.0 when one record is replaced" in promised


def test_a_restart_loses_neither_count_nor_search(tmp_path: Path) -> None:
    port = free_port()
    checkpoint, log = tmp_path / "search.run", tmp_path / "log.sqlite"
    curator = make_curator(log=log, max_queries=8)

    rows = curator.dataset

    def search() -> Modeler:
        modeler = Modeler(rows, kernel=RBFKernel(), noise_std=0.1, delta=0.1)
        modeler.resume(checkpoint)
        return modeler

    with serving(curator, port=port) as url:
        first = search()
        first.run(CuratorClient(url, token=TOKEN).query, steps=3)
        first.close()
    gone = search()
    assert len(gone.history) == 3
    with pytest.raises(ConnectionError, match="No answer"):
        gone.run(CuratorClient(url, token=TOKEN, patience=0.3).query, steps=8)
    gone.close()
    curator.close()
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


def test_a_killed_service_loses_nothing() -> None:
    """Clients ask while it is killed and started again: one answer for each question."""
    questions, clients, port = 80, 3, free_port()
    with memory_folder() as folder:
        with ThreadPoolExecutor(1) as pool:
            with service_process(folder, port) as (url, process):
                asked = pool.submit(load, url, questions, clients)
                while CuratorClient(url, token=TOKEN).status()["queries"] < 20:
                    time.sleep(0.01)
                process.kill()
                process.join(60)
            assert not asked.done()
            with service_process(folder, port):
                found, _ = asked.result(timeout=120)
        assert len(set(found[0].values())) == questions
        assert all(answers == found[0] for answers in found)
        # Of draws that the kill cut off, the charges stay spent.
        assert questions <= charges(folder) <= questions + clients
        with closing(charged_curator(folder)) as again:
            assert again.num_queries == questions
            for number, answer in found[0].items():
                assert again.query(number % 30, request_id=f"question {number}") == answer


def test_a_log_that_is_gone_is_one_line_and_not_a_traceback(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with serving(make_curator(log=tmp_path / "log.sqlite")) as url:
        (tmp_path / "log.sqlite").unlink()
        with caplog.at_level(logging.INFO):
            assert raw(url, "GET", "/status")[0] == 503
            status, body, _ = raw(url, "GET", "/health", token="none")
            assert (status, body) == (200, b'{"status":"alive"}')
        assert [record.getMessage() for record in caplog.records] == [
            "The log cannot be read (PrivacyError)."
        ]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        *(({"token": token}, "`token`") for token in ("short", "", None, "with a space in it")),
        ({"token": "with\nline-break-x"}, "`token`"),
        ({"port": 70000}, "`port`"),
        ({"host": "192.0.2.1"}, "`host` 192.0.2.1 .* cannot be listened on"),
        ({"measurements": 0}, "`measurements`"),
        ({"certfile": "none.pem"}, r"`certfile` none.pem cannot be read \(No such file"),
        ({"keyfile": "key.pem"}, "`keyfile` needs the `certfile`"),
        ({"curator": "a curator"}, "`curator` must be a Curator"),
    ],
)
def test_nothing_is_started_with_a_wrong_argument(settings: dict[str, Any], words: str) -> None:
    started: list[str] = []
    settings = {"curator": make_curator(), "token": TOKEN, "port": 0, **settings}
    with pytest.raises((TypeError, ValueError), match=words):
        serve(**settings, ready=started.append)
    assert started == []


def test_a_port_in_use() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(ValueError, match="Address already in use"):
            serve(make_curator(), token=TOKEN, port=port)


@pytest.fixture(scope="module")
def shared_url() -> Iterator[str]:
    with serving(make_curator()) as url:
        yield url
