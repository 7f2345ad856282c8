"""A disk that fills up during any write leaves the last good state, and whoever wrote is told so.

A limit on the size of files (``RLIMIT_FSIZE``) stands in for the disk: the system refuses to write
beyond it, whoever writes, and a forked child cannot lift it.
"""

from __future__ import annotations

import os
import pickle
import resource
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from botorch_dp._files import atomic_write
from botorch_dp.errors import PrivacyError
from botorch_dp.pareto import DPareto, StudyError
from botorch_dp.privacy import Guarantee, PrivacyBudget, PrivacyLedger, PrivacyUnit, PureLoss
from botorch_dp.privacy.runs import Run
from tests.one_draw import in_fork
from tests.pareto import toy

PRICE = Guarantee("a release", PrivacyUnit(), (PureLoss(0.01),))


def with_room(size: int, work: Callable[[], Any]) -> Any:
    """What ``work`` returns or raises in a process whose files cannot grow beyond a size."""

    def limited() -> Any:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
        return work()

    return in_fork(limited)


def study(path: Path) -> DPareto:
    return DPareto(toy.problem(replicates=2), acquisition="random", storage=path, seed=0)


def plain(trials: Any) -> list[tuple[Any, ...]]:
    """Trials without the seconds that they took."""
    return [(t.number, t.config, t.seeds, t.state, t.utilities) for t in trials]


def told(folder: Path) -> list[int]:
    log = folder / "log"
    return [int(line) for line in log.read_text().split()] if log.exists() else []


def test_a_study_keeps_what_it_acknowledged(tmp_path: Path) -> None:
    whole = tmp_path / "whole"
    with study(whole) as running:
        expected = plain(running.run(40).trials)
    empty = tmp_path / "empty"
    study(empty).close()
    sizes = range(empty.stat().st_size, whole.stat().st_size, 4096)
    assert len(sizes) >= 2
    for size in sizes:
        folder = tmp_path / str(size)
        folder.mkdir()
        path = folder / "study.sqlite"
        study(path).close()

        def work(path: Path = path, folder: Path = folder) -> None:
            with study(path) as running:
                for number in range(40):
                    running.run(number + 1)
                    (folder / "log").open("a").write(f"{number}\n")

        error = with_room(size, work)
        assert isinstance(error, StudyError), error
        assert "Check the disk for space" in str(error) and str(path) in str(error)
        with study(path) as reopened:
            complete = plain(t for t in reopened.trials if t.state == "complete")
            assert set(told(folder)) <= {number for number, *_ in complete}
            assert complete == expected[: len(complete)]
            assert plain(reopened.run(40).trials) == expected
        assert set(os.listdir(folder)) <= {"study.sqlite", "log"}


def test_a_ledger_forgets_no_charge_and_takes_none_back(tmp_path: Path) -> None:
    path = tmp_path / "a.ledger"
    budget = PrivacyBudget(1e3)
    PrivacyLedger(path, budget).close()
    start = path.stat().st_size

    def charge() -> tuple[int, str]:
        charged = 0
        with PrivacyLedger(path) as ledger:
            try:
                for _ in range(1000):
                    ledger.charge(PRICE)
                    charged += 1
            except PrivacyError as error:
                return charged, str(error)
        return charged, ""

    total = 0
    for size in (start + 4096, start + 12288, start + 40000):
        charged, message = with_room(size, charge)
        total += charged
        assert "nothing may be released" in message and "Check the disk for space" in message
        with PrivacyLedger(path) as ledger:
            assert len(ledger.entries()) == total
            ledger.charge(PRICE)
        total += 1
    assert total > 3


def test_a_run_replays_what_it_released(tmp_path: Path) -> None:
    path = tmp_path / "run"
    settings: dict[str, Any] = {"what": "a run", "settings": {}}
    Run(path, **settings).close()

    def release() -> tuple[list[bytes], str]:
        shown: list[bytes] = []
        with Run(path, **settings) as run:
            try:
                for number in range(150):
                    shown.append(run.release(PRICE, lambda: os.urandom(30).hex(), key=f"{number}"))
            except PrivacyError as error:
                return shown, str(error)
        return shown, ""

    first, message = with_room(path.stat().st_size + 40000, release)
    assert "Check the disk for space" in message and 0 < len(first) < 150
    again, _ = in_fork(release)
    assert again[: len(first)] == first and len(again) == 150


def test_no_half_file_is_created(tmp_path: Path) -> None:
    for make in (
        lambda: study(tmp_path / "new").close(),
        lambda: PrivacyLedger(tmp_path / "new", PrivacyBudget(1.0)).close(),
        lambda: Run(tmp_path / "new", what="a run", settings={}).close(),
    ):
        for size in (0, 4096, 8192):
            error = with_room(size, make)
            assert isinstance(error, (StudyError, PrivacyError)), error
            assert "disk" in str(error)
            assert os.listdir(tmp_path) == []


def test_a_written_file_is_the_old_one_or_the_new_one(tmp_path: Path) -> None:
    path = tmp_path / "figure.png"
    path.write_bytes(b"old")

    def write() -> None:
        with atomic_write(path, binary=True) as file:
            pickle.dump(bytes(100_000), file)

    assert isinstance(with_room(5000, write), OSError)
    assert path.read_bytes() == b"old" and os.listdir(tmp_path) == ["figure.png"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only the superuser mounts file systems")
def test_on_a_file_system_that_is_really_full(tmp_path: Path) -> None:
    mount = ["mount", "-t", "tmpfs", "-o", "size=160k", "none", str(tmp_path)]
    if subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("this system does not let us mount")
    try:
        path = tmp_path / "study.sqlite"
        with study(path) as running, pytest.raises(StudyError, match="disk is full"):
            running.run(2000)
        with study(path) as reopened:
            complete = plain(t for t in reopened.trials if t.state == "complete")
        assert len(complete) > 5
        whole = DPareto(toy.problem(replicates=2), acquisition="random", seed=0)
        assert complete == plain(whole.run(len(complete)).trials)
    finally:
        subprocess.run(["umount", "-l", str(tmp_path)], check=False)
