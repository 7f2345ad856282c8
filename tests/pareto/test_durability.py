"""Studies killed at random moments: nothing finished is lost, and nothing changes."""

from __future__ import annotations

import multiprocessing
import os
import random
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from botorch_dp.pareto import DPareto
from tests.one_draw import Disk, in_fork
from tests.pareto import toy

#: A forked child need not import torch again.
FORK = multiprocessing.get_context("fork")
TRIALS, INITIAL, REPLICATES = 12, 5, 2


@dataclass(frozen=True)
class Logged:
    """The utility, after some time; each training adds a line to a log before it returns."""

    log: str

    def __call__(self, config: dict[str, Any], seed: int) -> float:
        time.sleep(0.03)
        descriptor = os.open(self.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(descriptor, f"{seed}\n".encode())
        os.close(descriptor)
        return toy.utility(config, seed)


def study(folder: Path, name: str = "study.sqlite") -> DPareto:
    return DPareto(
        toy.problem(Logged(str(folder / "log")), replicates=REPLICATES),
        acquisition="ehvi",
        candidates=64,
        storage=folder / name,
        seed=0,
    )


def run(folder: Path, threads: int) -> None:
    torch.set_num_threads(1)
    with study(folder) as running:
        if threads == 0:
            running.run(TRIALS, initial=INITIAL)
        else:
            with ThreadPoolExecutor(threads) as pool:
                running.run(TRIALS, initial=INITIAL, q=threads, executor=pool)


def trained(folder: Path) -> list[str]:
    log = folder / "log"
    return log.read_text().splitlines() if log.exists() else []


def kill_and_resume(folder: Path, kills: int, seed: int, threads: int = 0) -> int:
    """Run the study to its end, killing it on the way; returns how often that was possible."""
    generator = random.Random(seed)
    happened = 0
    while True:
        child = FORK.Process(target=run, args=(folder, threads))
        child.start()
        child.join(generator.uniform(0.0, 0.3) if happened < kills else 120)
        if child.exitcode is not None:
            assert child.exitcode == 0
            return happened
        child.kill()
        child.join()
        happened += 1
        if (folder / "study.sqlite").exists():
            with study(folder) as reopened:
                stored = sum(len(trial.finished) for trial in reopened.trials)
                assert all(trial.state != "failed" for trial in reopened.trials)
            # Each kill may lose what was in flight, never what finished before.
            in_flight = max(1, threads * REPLICATES)
            assert stored >= len(trained(folder)) - happened * in_flight


def whole(folder: Path) -> list[tuple[Any, ...]]:
    with study(folder) as finished:
        return [
            (trial.number, trial.config, trial.seeds, trial.state, trial.utilities)
            for trial in finished.trials
        ]


@pytest.mark.slow
def test_killed_twenty_times_and_resumed_as_if_uninterrupted(tmp_path: Path) -> None:
    run(tmp_path, 0)
    uninterrupted, kills = whole(tmp_path), 0
    for seed in range(1, 20):
        folder = tmp_path / str(seed)
        folder.mkdir()
        kills += kill_and_resume(folder, kills=8, seed=seed)
        assert whole(folder) == uninterrupted
        if kills >= 20:
            return
    raise AssertionError(f"only {kills} kills came in time")


def test_killed_with_trainings_on_threads(tmp_path: Path) -> None:
    assert kill_and_resume(tmp_path, kills=3, seed=7, threads=3) >= 1
    with study(tmp_path) as finished:
        trials = finished.trials
    assert [trial.state for trial in trials] == ["complete"] * TRIALS
    assert all(
        trial.utilities == tuple(toy.utility(trial.config, seed) for seed in trial.seeds)
        for trial in trials
    )


def test_killed_in_front_of_each_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever was acknowledged is there, and the study ends as if nothing had happened."""
    problem = toy.problem(replicates=2)
    disk = Disk(monkeypatch)

    def run_in(folder: Path) -> list[tuple[Any, ...]]:
        with DPareto(problem, storage=folder / "s", seed=0, candidates=16) as running:
            running.run(3, initial=2)
            return [(t.config, t.seeds, t.state, t.utilities, t.epsilon) for t in running.trials]

    expected = run_in(tmp_path)
    commits = disk.commits
    assert commits > 8
    for at in range(1, commits + 1, 2):
        folder = tmp_path / str(at)
        folder.mkdir()
        disk.commits, disk.at, disk.action = 0, at, disk.kill
        assert in_fork(lambda folder=folder: run_in(folder)) is None
        disk.at = None
        assert run_in(folder) == expected
