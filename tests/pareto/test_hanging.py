"""Trainings that hang are ended, their trials are marked, and the study goes on."""

from __future__ import annotations

import ctypes
import multiprocessing
import signal
import threading
import time
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pytest

from botorch_dp.pareto import DPareto, StudyError, workers
from botorch_dp.pareto.workers import TrainingTimeout, time_limit
from botorch_dp.space import Config
from tests.pareto import toy

#: A forked child need not import torch again.
FORK = multiprocessing.get_context("fork")
#: What ends a training that hangs; no other may need it, however busy the machine is.
LIMIT = 0.5


@dataclass(frozen=True)
class Hangs:
    """The utility, except that trainings of many epochs never end.

    Args:
        way: In Python code ("sleep"), catching every error ("stubborn"), or in C ("c").
    """

    way: str

    def __call__(self, config: Config, seed: int) -> float:
        if config["epochs"] > 14:
            if self.way == "c":
                # No signal comes through, and the interpreter's lock is held all the time.
                signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM})
                ctypes.PyDLL(None).sleep(600)
            while True:
                try:
                    time.sleep(600)
                except Exception:  # what careless training loops do
                    if self.way != "stubborn":
                        raise
        return toy.utility(config, seed)


def study(way: str, **options: Any) -> DPareto:
    return DPareto(toy.problem(Hangs(way), **options), acquisition="random", seed=0)


def check(tried: DPareto, trials: int) -> None:
    assert len(tried.trials) == trials
    for trial in tried.trials:
        hung = trial.config["epochs"] > 14
        assert trial.state == ("failed" if hung else "complete")
        assert trial.failures[-1:] == (("TrainingTimeout",) if hung else ())
        assert trial.num_trainings >= 1
    assert {trial.state for trial in tried.trials} == {"complete", "failed"}


@pytest.mark.parametrize("way", ["sleep", "stubborn"])
def test_in_this_thread(way: str) -> None:
    before, timer = signal.getsignal(signal.SIGALRM), signal.getitimer(signal.ITIMER_REAL)
    tried = study(way)
    tried.run(8, training_timeout=LIMIT)
    check(tried, 8)
    assert all(trial.failed_trainings == 1 for trial in tried.trials if trial.state == "failed")
    assert signal.getsignal(signal.SIGALRM) is before
    assert timer[0] - 30 <= signal.getitimer(signal.ITIMER_REAL)[0] <= timer[0]


@pytest.mark.parametrize("way", ["sleep", "stubborn"])
def test_in_worker_processes(way: str) -> None:
    tried = study(way, replicates=2)
    with ProcessPoolExecutor(2, mp_context=FORK) as pool:
        tried.run(8, batch_size=2, executor=pool, training_timeout=LIMIT)
    check(tried, 8)


def test_a_process_that_hangs_in_c_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "_GRACE", 0.3)
    tried = study("c")
    start = time.monotonic()
    tried.run(
        8,
        batch_size=2,
        executor=lambda: ProcessPoolExecutor(2, mp_context=FORK),
        training_timeout=LIMIT,
    )
    assert time.monotonic() - start < 60
    check(tried, 8)


def test_re_evaluations_too() -> None:
    hung = {"epochs": 20, "noise": 1.0}
    tried = study("sleep")
    tried.add_trial(hung, 0.99)
    tried.add_trial({"epochs": 2, "noise": 9.0}, 0.2)
    with pytest.warns(UserWarning, match=r"trials \[0\] failed, with \['TrainingTimeout'\]"):
        again = tried.front().reevaluate(2, training_timeout=LIMIT)
    assert [trial.number for trial in again.trials] == [1]
    assert tried.trials[0].failed_trainings == 2


def test_threads_cannot_be_ended() -> None:
    with ThreadPoolExecutor(1) as pool, pytest.raises(ValueError, match="A thread cannot be ended"):
        study("sleep").run(4, executor=pool, training_timeout=1.0)
    errors: list[Exception] = []

    def elsewhere() -> None:
        try:
            study("sleep").run(4, training_timeout=1.0)
        except ValueError as error:
            errors.append(error)

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert "main thread" in str(errors[0])


def test_an_executor_whose_workers_turn_out_to_be_threads() -> None:
    class Hidden(Executor):
        def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
            with ThreadPoolExecutor(1) as pool:
                future = pool.submit(fn, *args)
                future.exception()
            return future

    tried = study("sleep")
    with pytest.raises(StudyError, match="A thread cannot be ended"):
        tried.run(4, executor=Hidden(), training_timeout=1.0)
    assert [trial.state for trial in tried.trials] == ["pending"]


def test_an_earlier_timer_goes_on() -> None:
    rang: list[float] = []
    handler = signal.signal(signal.SIGALRM, lambda *_: rang.append(time.monotonic()))
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        start = time.monotonic()
        with pytest.raises(TrainingTimeout), time_limit(0.05, ends_process=False):
            time.sleep(5)
        while not rang and time.monotonic() < start + 5:
            time.sleep(0.01)
        assert rang and 0.25 < rang[0] - start < 3
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)


@pytest.mark.parametrize("limit", [0, -1.0, float("inf"), "1"])
def test_wrong(limit: Any) -> None:
    with pytest.raises((ValueError, TypeError), match="`training_timeout`"):
        study("sleep").run(4, training_timeout=limit)
