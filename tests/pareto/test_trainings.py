"""Trainings on executors: what is in flight, what fails, and what an interruption leaves."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import BrokenExecutor, Executor, ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from botorch_dp.pareto import DPareto, StudyError
from botorch_dp.pareto.study import training_seeds
from botorch_dp.space import Config
from tests.pareto import toy


def study(train: Any = toy.utility, *, storage: Path | None = None, **options: Any) -> DPareto:
    problem = toy.problem(train, **options)
    return DPareto(problem, acquisition="random", seed=0, candidates=64, storage=storage)


def fails_beyond_ten(config: Config, seed: int) -> float:
    if config["epochs"] > 10:
        raise OSError("record 17 is odd")
    return toy.utility(config, seed)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("make", [lambda: ThreadPoolExecutor(3), lambda: ProcessPoolExecutor(2)])
def test_the_same_trials_wherever_they_are_trained(make: Callable[[], Executor]) -> None:
    here = study(replicates=2).run(6)
    with make() as pool:
        elsewhere = study(replicates=2).run(6, q=3, executor=pool)
    assert elsewhere.all_points.equal(here.all_points)


def test_replicates_in_one_call() -> None:
    from botorch_dp.pareto import Batched

    calls: list[int] = []

    def together(config: Config, seeds: list[int]) -> list[float]:
        calls.append(len(seeds))
        return [toy.utility(config, seed) for seed in seeds]

    batched = study(None, replicates=3, batched=Batched(replicates=together))
    assert batched.run(4).all_points.equal(study(replicates=3).run(4).all_points)
    assert calls == [3] * 4
    short = study(None, replicates=3, batched=Batched(replicates=lambda c, s: [0.5]))
    with pytest.raises(StudyError, match="InvalidUtilityError"):
        short.run(2)
    assert "must return 3 utilities" in short.trials[0].failure


class TestBatches:
    def test_no_more_than_the_batch_is_in_flight(self) -> None:
        lock, now, most = threading.Lock(), [0], [0]

        def counted(config: Config, seed: int) -> float:
            with lock:
                now[0] += 1
                most[0] = max(most[0], now[0])
            time.sleep(0.01)
            with lock:
                now[0] -= 1
            return toy.utility(config, seed)

        with ThreadPoolExecutor(8) as pool:
            study(counted).run(12, q=3, executor=pool)
        assert most[0] == 3


class TestFailures:
    def test_are_recorded_and_the_others_go_on(self) -> None:
        tried = study(fails_beyond_ten, replicates=2)
        with pytest.warns(UserWarning, match=r"trials failed with \['OSError'\]") as found:
            front = tried.run(12)
        assert "record 17" not in str(found[0].message) + repr(tried.trials)
        for trial in tried.trials:
            failed = trial.config["epochs"] > 10
            assert trial.state == ("failed" if failed else "complete")
            assert trial.failure == ("OSError: record 17 is odd" if failed else "")
            assert trial.num_trainings == (1 if failed else 2)
        assert len(front.trials) == sum(t.config["epochs"] <= 10 for t in tried.trials)

    @pytest.mark.parametrize("answer", [float("nan"), None])
    def test_nonsense_fails_its_trial(self, answer: Any) -> None:
        def train(config: Config, seed: int) -> Any:
            return answer if config["epochs"] > 10 else toy.utility(config, seed)

        tried = study(train)
        tried.run(12)
        kinds = {t.failure_type for t in tried.trials if t.state == "failed"}
        assert kinds == {"InvalidUtilityError"}

    def test_a_study_in_which_nothing_works_ends_early(self) -> None:
        def misspelt(config: Config, seed: int) -> float:
            return toy.utility(config, sead=seed)  # type: ignore[call-arg]

        tried = study(misspelt)
        with pytest.raises(StudyError, match=r"5 trials so far failed with \['TypeError'\]"):
            tried.run(40)
        assert "sead" in tried.trials[0].failure

    def test_a_dead_executor_ends_the_run_and_loses_nothing(self, tmp_path: Path) -> None:
        killer = toy.KillsOnce(str(tmp_path / "marker"))
        with study(killer, storage=tmp_path / "s") as tried:
            with ProcessPoolExecutor(1) as pool, pytest.raises(BrokenExecutor):
                tried.run(4, executor=pool)
            assert tried.trials[-1].state == "pending" and not tried.trials[-1].failure
            with ProcessPoolExecutor(1) as pool:
                front = tried.run(4, executor=pool)
            assert len(front.trials) == 4


@pytest.fixture
def _ctrl_c() -> Iterator[None]:
    """Python's own handler, also where a shell has started the suite in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("_ctrl_c")
class TestInterruption:
    @pytest.mark.parametrize("threads", [0, 2])
    def test_ctrl_c_keeps_what_finished(self, threads: int) -> None:
        def interrupts(config: Config, seed: int) -> float:
            if seed == fifth and not threads:
                raise KeyboardInterrupt
            if seed == fifth:
                begun.set()
                time.sleep(0.3)  # until the main thread waits, with both places taken
                os.kill(os.getpid(), signal.SIGINT)
                time.sleep(0.1)
            elif begun.is_set():
                time.sleep(1.0)
            return toy.utility(config, seed)

        begun = threading.Event()

        tried = study(interrupts)
        fifth = training_seeds(0, 5, [0])[0]
        pool = ThreadPoolExecutor(threads) if threads else None
        with pytest.raises(KeyboardInterrupt):
            tried.run(9, q=max(threads, 1), executor=pool)
        assert 3 <= len(tried.front().trials) < 9
        assert all(trial.state in ("complete", "pending") for trial in tried.trials)
        tried.problem.oracle = toy.utility
        assert tried.run(9).all_points.equal(study().run(9).all_points)

    def test_a_stored_study_says_that_the_same_call_goes_on(self, tmp_path: Path) -> None:
        def interrupts(config: Config, seed: int) -> float:
            if seed == third:
                raise KeyboardInterrupt
            return toy.utility(config, seed)

        third = training_seeds(0, 3, [0])[0]
        path = tmp_path / "study.sqlite"
        with study(interrupts, storage=path) as tried, pytest.raises(KeyboardInterrupt) as caught:
            tried.run(5)
        note = "A study was interrupted after 3 of 5 trials; the same call goes on from "
        assert caught.value.__notes__ == [f"{note}{path}."]
        with study(storage=path) as again:
            assert [trial.state for trial in again.trials] == ["complete"] * 3 + ["pending"]
            assert again.run(5).all_points.equal(study().run(5).all_points)
