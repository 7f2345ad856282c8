"""Two parties that only share files."""

from __future__ import annotations

import json
import re
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from gpytorch.kernels import RBFKernel

from botorch_dp.outsourced import (
    FileCurator,
    GaussianNoiseCurator,
    Modeler,
    answer_questions,
    load_dataset,
    save_dataset,
)

X = torch.randn(30, 3, dtype=torch.double, generator=torch.Generator().manual_seed(2))


def curator(**kwargs) -> GaussianNoiseCurator:
    return GaussianNoiseCurator(X, lambda i: float(X[i, 0]), epsilon=2.0, delta=1e-6, **kwargs)


def test_dataset_survives_the_trip(tmp_path: Path) -> None:
    release = curator().dataset
    save_dataset(tmp_path / "rows.npz", release)
    copy = load_dataset(tmp_path / "rows.npz")
    assert torch.equal(copy.value, release.value)
    assert copy.guarantee == release.guarantee
    assert copy.scale == release.scale
    with np.load(tmp_path / "rows.npz", allow_pickle=False) as archive:
        assert set(archive) == {"format", "Z", "guarantee", "noise_std"}


@pytest.mark.parametrize("content", [b"", b"no archive", b"PK\x03\x04 torn"])
def test_refuses_other_files(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "rows.npz"
    path.write_bytes(content)
    with pytest.raises(ValueError, match="no released data set"):
        load_dataset(path)


@pytest.mark.parametrize("rows", [np.zeros(3), np.array([[1.0, np.nan]]), np.array([["a"]]), None])
def test_only_finite_matrices_are_rows(tmp_path: Path, rows: np.ndarray | None) -> None:
    save_dataset(tmp_path / "rows.npz", curator().dataset)
    archive = dict(np.load(tmp_path / "rows.npz"))
    np.savez(
        tmp_path / "rows.npz", **({"Z": np.zeros(3)} if rows is None else archive | {"Z": rows})
    )
    with pytest.raises(ValueError, match="no released data set"):
        load_dataset(tmp_path / "rows.npz")


def test_damaged_archives_are_one_error(tmp_path: Path) -> None:
    path = tmp_path / "rows.npz"
    save_dataset(path, curator().dataset)
    whole = path.read_bytes()
    generator = np.random.default_rng(0)
    for _ in range(150):
        damaged = bytearray(whole)
        for _ in range(generator.integers(1, 4)):
            damaged[generator.integers(len(whole))] ^= 1 << generator.integers(8)
        try:
            path.write_bytes(damaged[: generator.integers(len(whole) // 2, len(whole) + 1)])
            load_dataset(path)
        except ValueError as error:
            assert "no released data set" in str(error)


@pytest.mark.parametrize("y", ["NaN", "Infinity", "1e999", "true", '"1"', "null"])
def test_answers_in_files_are_finite_numbers(tmp_path: Path, y: str) -> None:
    (tmp_path / "answers").write_text(f'{{"request_id": "a", "y": {y}}}\n')
    with pytest.raises(ValueError, match="no finite number"):
        FileCurator(tmp_path / "questions", tmp_path / "answers").query(1, request_id="a")


def test_reasons_are_short_and_printable(tmp_path: Path) -> None:
    (tmp_path / "answers").write_text(json.dumps({"request_id": "a", "error": "\x1b[2J" * 999}))
    with (tmp_path / "answers").open("a") as file:
        file.write("\n")
    with pytest.raises(LookupError) as caught:
        FileCurator(tmp_path / "questions", tmp_path / "answers").query(1, request_id="a")
    assert str(caught.value).isprintable() and len(str(caught.value)) < 300


def test_a_search_through_two_files(tmp_path: Path) -> None:
    questions, answers = tmp_path / "questions.jsonl", tmp_path / "answers.jsonl"
    owner = curator(log=tmp_path / "log.sqlite")
    done = threading.Event()

    def keep_answering() -> None:
        while not done.wait(0.01):
            if questions.exists():
                answer_questions(owner, questions, answers)

    thread = threading.Thread(target=keep_answering)
    thread.start()
    try:
        remote = FileCurator(questions, answers, timeout=30, interval=0.01)
        modeler = Modeler(owner.dataset, kernel=RBFKernel(), noise_std=0.1, delta=0.1)
        history = modeler.run(remote.query, steps=5)
    finally:
        done.set()
        thread.join()
    assert owner.num_queries == len(history)
    assert all(answer.y == float(X[answer.index, 0]) for answer in history)
    assert answer_questions(owner, questions, answers) == 0


def test_bad_lines_are_answered_or_skipped(tmp_path: Path) -> None:
    questions, answers = tmp_path / "questions.jsonl", tmp_path / "answers.jsonl"
    lines = [
        *(b"not json", b"[1, 2]", b"\xff\xfe", b"[" * 100_000, b'{"index": 3}'),
        *(b'{"request_id": "\\ud800", "index": 3}', b'{"request_id": ["a"], "index": 3}'),
        b'{"request_id": "a", "index": 99}',
        b'{"request_id": "b", "index": "3"}',
        b'{"request_id": "c", "index": ' + b"9" * 5000 + b"}",
        b'{"request_id": "d", "index": 3}',
        b'{"request_id": "d", "index": 4}',
        b'{"request_id": "e", "index": 4}',
        b'{"request_id": "f", "ind',
    ]
    questions.write_bytes(b"\n".join(lines))
    answers.write_text('{"request_id": ["b"], "y": 1}\n{"request_id": {"b": 1}}\n')
    answer_questions(curator(), questions, answers)
    written = answers.read_text().splitlines()[2:]
    found = {entry["request_id"]: entry for entry in map(json.loads, written)}
    assert re.fullmatch("[0-9a-f]{16}", found["d"].pop("digest"))
    assert found["d"] == {"request_id": "d", "y": float(X[3, 0])}
    assert "from 0 to 29" in found["a"]["error"]
    assert "integer" in found["b"]["error"] and "f" not in found
    assert found["e"]["y"] == float(X[4, 0])


def test_a_failed_measurement_says_nothing_about_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(index: int) -> float:
        raise ValueError("patient Smith has no outcome")

    questions, answers = tmp_path / "questions.jsonl", tmp_path / "answers.jsonl"
    questions.write_text(json.dumps({"request_id": "a", "index": 3}) + "\n")
    owner = GaussianNoiseCurator(X, fails, epsilon=2.0, delta=1e-6)
    answer_questions(owner, questions, answers)
    assert "could not be measured" in answers.read_text()
    assert "Smith" not in answers.read_text() + caplog.text


def test_waiting_ends(tmp_path: Path) -> None:
    remote = FileCurator(tmp_path / "q.jsonl", tmp_path / "a.jsonl", timeout=0.05, interval=0.01)
    for _ in range(2):
        with pytest.raises(TimeoutError, match=r"a\.jsonl .*stays in the file .*q\.jsonl: let the"):
            remote.query(1, request_id="same")
    assert len((tmp_path / "q.jsonl").read_text().splitlines()) == 1
