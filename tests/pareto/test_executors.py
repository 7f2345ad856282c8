"""Running on executors: what finishes is stored, what fails is contained."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import (
    BrokenExecutor,
    Executor,
    Future,
    ProcessPoolExecutor,
    ThreadPoolExecutor,
)
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from botorch_dp.pareto import DPareto, ExecutorDiedError, StudyError
from tests.pareto import toy


def study(problem: Any = None, **options: Any) -> DPareto:
    options = {"acquisition": "random", "seed": 0} | options
    return DPareto(toy.problem() if problem is None else problem, **options)


@contextmanager
def dask_client() -> Iterator[Any]:
    """A client of two worker processes on this machine, whose tasks get no second chance."""
    distributed = pytest.importorskip("distributed")
    dask = pytest.importorskip("dask")
    with (
        dask.config.set({"distributed.scheduler.allowed-failures": 0}),
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, dashboard_address=None
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        yield client


class TestExecutors:
    """The same seeded study ends alike wherever its initial trials are trained."""

    expected = study(toy.problem(replicates=2)).run(6).all_points

    def test_threads(self) -> None:
        with ThreadPoolExecutor(3) as pool:
            front = study(toy.problem(toy.Slow(0.005), replicates=2)).run(
                6, batch_size=3, executor=pool
            )
        assert front.all_points.equal(self.expected)

    def test_processes(self) -> None:
        with ProcessPoolExecutor(2) as pool:
            front = study(toy.problem(replicates=2)).run(6, batch_size=3, executor=pool)
        assert front.all_points.equal(self.expected)

    def test_two_worker_dask_cluster(self) -> None:
        with dask_client() as client:
            # Lambdas travel here: Dask pickles by value.
            problem = toy.problem(lambda config, seed: toy.utility(config, seed), replicates=2)
            front = study(problem).run(6, batch_size=3, executor=client)
        assert front.all_points.equal(self.expected)


class TestBatches:
    def test_no_more_than_the_batch_is_in_flight(self) -> None:
        lock, running, most = threading.Lock(), Counter[str](), [0]
        others = threading.Barrier(3, timeout=60)  # nine trainings end three by three

        def train(config: dict[str, Any], seed: int) -> float:
            with lock:
                running["now"] += 1
                most[0] = max(most[0], running["now"])
            others.wait()
            time.sleep(0.01)
            with lock:
                running["now"] -= 1
            return 0.5

        with ThreadPoolExecutor(8) as pool:
            study(toy.problem(train)).run(9, batch_size=3, executor=pool)
        assert most[0] == 3

    def test_asynchronous_workers_do_not_wait_for_the_slowest(self) -> None:
        release = threading.Event()
        finished: list[int] = []

        def train(config: dict[str, Any], seed: int) -> float:
            if seed == first_seed:
                assert release.wait(30)
            finished.append(seed)
            if len(finished) == 5:
                release.set()
            return 0.5

        tried = study(toy.problem(train))
        first_seed = study().ask()[0].seeds[0]
        with ThreadPoolExecutor(2) as pool:
            tried.run(6, batch_size=2, executor=pool)
        assert finished[-1] == first_seed

    def test_synchronous_batches_repeat_whatever_ends_first(self) -> None:
        def run(slow_is_odd: bool) -> Any:
            def train(config: dict[str, Any], seed: int) -> float:
                time.sleep(0.02 if (seed % 2 == 1) == slow_is_odd else 0)
                return toy.utility(config, seed)

            with ThreadPoolExecutor(3) as pool:
                return study(toy.problem(train), acquisition="ehvi", candidates=64).run(
                    10, initial=4, batch_size=3, executor=pool, asynchronous=False
                )

        assert run(True).all_points.equal(run(False).all_points)

    def test_pending_trials_spread_a_batch(self) -> None:
        asked = study(acquisition="ehvi", candidates=128)
        asked.run(8, initial=8)
        codes = toy.SPACE.encode([trial.config for trial in asked.ask(4, initial=8)])
        assert (codes.unsqueeze(0) - codes.unsqueeze(1)).norm(dim=-1).fill_diagonal_(1).min() > 0.02


class TestFailures:
    def test_types_are_recorded_and_the_others_go_on(self) -> None:
        def train(config: dict[str, Any], seed: int) -> float:
            if config["epochs"] % 3 == 0:
                raise FloatingPointError(f"loss of record 12 is {seed}")
            return toy.utility(config, seed)

        tried = study(toy.problem(train), acquisition="ehvi", candidates=64, retries=1)
        tried.run(24, initial=12)
        for trial in tried.trials:
            bad = trial.config["epochs"] % 3 == 0
            assert trial.state == ("failed" if bad else "complete")
            assert trial.failures == (("FloatingPointError",) * 2 if bad else ())
        assert any(trial.state == "failed" for trial in tried.trials)

    def test_retry_keeps_number_config_and_seeds(self) -> None:
        calls: list[tuple[str, int]] = []

        def train(config: dict[str, Any], seed: int) -> float:
            calls.append((str(config), seed))
            if len(calls) == 1:
                raise OSError
            return 0.5

        tried = study(toy.problem(train))
        tried.run(1)
        assert calls[0] == calls[1]
        (trial,) = tried.trials
        assert trial.state == "complete" and trial.failures == ("OSError",)
        assert trial.num_trainings == 2

    def test_finished_replicates_of_a_retried_trial_are_not_trained_again(self) -> None:
        calls: Counter[int] = Counter()

        def train(config: dict[str, Any], seed: int) -> float:
            calls[seed] += 1
            if len(calls) == 2 and calls[seed] == 1:
                raise OSError
            return 0.5

        study(toy.problem(train, replicates=3)).run(1)
        assert sorted(calls.values()) == [1, 1, 2]

    def test_replicates_that_fail_together_share_the_attempts(self) -> None:
        def train(config: dict[str, Any], seed: int) -> float:
            time.sleep(0.02)
            raise OSError

        tried = study(toy.problem(train, replicates=3), retries=1)
        with ThreadPoolExecutor(3) as pool, pytest.raises(StudyError, match="OSError"):
            tried.run(1, executor=pool)
        (trial,) = tried.trials
        assert trial.state == "failed" and 2 <= len(trial.failures) <= 3

    def test_without_retries(self) -> None:
        tried = study(toy.problem(lambda config, seed: 1 / 0), retries=0)
        with pytest.raises(StudyError, match="ZeroDivisionError"):
            tried.run(3)
        assert all(trial.failures == ("ZeroDivisionError",) for trial in tried.trials)

    @pytest.mark.parametrize("answer", [float("nan"), 87.5, -0.5, None])
    def test_nonsense_utilities_fail_their_trial_only(self, answer: Any) -> None:
        def train(config: dict[str, Any], seed: int) -> Any:
            return answer if config["epochs"] > 10 else toy.utility(config, seed)

        tried = study(toy.problem(train))
        front = tried.run(12)
        kinds = {trial.failures for trial in tried.trials if trial.state == "failed"}
        assert kinds == {("InvalidUtilityError",)}
        assert all(trial.config["epochs"] <= 10 for trial in front.trials)

    def test_all_initial_trials_fail(self) -> None:
        tried = study(toy.problem(lambda config, seed: 87.5), acquisition="ehvi")
        with pytest.raises(StudyError, match="a share, not percent"):
            tried.run(10, initial=4)
        assert len(tried.trials) == 1, "no budget is spent on what cannot work"

    def test_no_message_of_an_oracle_reaches_the_caller(self) -> None:
        def train(config: dict[str, Any], seed: int) -> float:
            raise ValueError("record 17 says 4.2")

        with pytest.raises(StudyError) as caught:
            study(toy.problem(train)).run(2)
        chain = [caught.value, caught.value.__cause__, caught.value.__context__]
        assert not any("4.2" in str(error) for error in chain)


class TestDeath:
    def test_the_study_survives_and_goes_on_with_a_new_executor(self, tmp_path: Path) -> None:
        killer = toy.problem(toy.KillsOnce(str(tmp_path / "killed")), replicates=1)
        tried = study(killer)
        with (
            ProcessPoolExecutor(2) as pool,
            pytest.raises(ExecutorDiedError, match="call `run` again"),
        ):
            tried.run(6, batch_size=2, executor=pool)
        before = tried.trials
        assert any(trial.state == "pending" for trial in before)
        with ProcessPoolExecutor(2) as pool:
            tried.run(6, batch_size=2, executor=pool)
        assert all(trial.state == "complete" for trial in tried.trials)
        assert [t.config for t in tried.trials[: len(before)]] == [t.config for t in before]
        assert [t.seeds for t in tried.trials[: len(before)]] == [t.seeds for t in before]

    def test_culprits_are_found_and_the_innocent_complete(self) -> None:
        """Trials in flight when a worker died run alone the next time; who dies alone is guilty."""
        tried = study(toy.problem(toy.KillsItsProcess(2.0)), retries=0)
        tried.run(8, batch_size=3, executor=lambda: ProcessPoolExecutor(3))
        states = {trial.config["noise"] > 2.0: trial.state for trial in tried.trials}
        for trial in tried.trials:
            guilty = trial.config["noise"] > 2.0
            assert trial.state == ("failed" if guilty else "complete")
            assert trial.failures == (("BrokenProcessPool",) if guilty else ())
        assert len(states) == 2, "the seed gives both kinds"

    @pytest.mark.parametrize("replaceable", [False, True])
    def test_death_between_a_failure_and_its_retry(self, replaceable: bool) -> None:
        class DiesAfterOneFailure(Executor):
            calls = 0

            def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
                self.calls += 1
                if self.calls > 3:
                    raise BrokenExecutor
                future: Future[Any] = Future()
                if self.calls == 1:
                    future.set_exception(OSError())
                else:
                    future.set_result(fn(*args))
                return future

        made: list[Executor] = []

        def make() -> Executor:
            made.append(ThreadPoolExecutor(1) if made else DiesAfterOneFailure())
            return made[-1]

        tried = study(toy.problem(replicates=3), retries=1)
        if replaceable:
            tried.run(2, executor=make)
        else:
            with pytest.raises(ExecutorDiedError, match="call `run` again"):
                tried.run(2, executor=DiesAfterOneFailure())
            (trial,) = tried.trials
            # One attempt failed, and the executor died while the trial was alone.
            assert trial.failures == ("OSError", "BrokenExecutor") and trial.state == "failed"
            assert len(trial.finished) == 2, "what finished is stored before anything is risked"
            return
        assert [len(trial.finished) for trial in tried.trials] == [2, 3]

    def test_executors_that_never_live(self) -> None:
        def dead() -> Executor:
            pool = ThreadPoolExecutor(1)
            pool.shutdown()
            return pool

        tried = study(retries=1)
        with pytest.raises(StudyError, match="RuntimeError"):
            tried.run(3, executor=dead)
        assert all(trial.state == "failed" for trial in tried.trials)

    @pytest.mark.slow
    def test_dask_workers_that_die(self) -> None:
        with dask_client() as client:
            tried = study(toy.problem(toy.KillsItsProcess(2.0)), retries=0)
            tried.run(6, batch_size=1, executor=client.get_executor())
        for trial in tried.trials:
            guilty = trial.config["noise"] > 2.0
            assert trial.failures == (("KilledWorker",) if guilty else ())
        assert len({trial.state for trial in tried.trials}) == 2, "the seed gives both kinds"


class TestInterruption:
    def test_ctrl_c_keeps_what_finished(self) -> None:
        calls: list[int] = []

        def train(config: dict[str, Any], seed: int) -> float:
            calls.append(seed)
            if len(calls) == 5:
                raise KeyboardInterrupt
            return 0.5

        tried = study(toy.problem(train))
        with pytest.warns(UserWarning, match="Interrupted after 4 of 10 trials"):
            front = tried.run(10)
        assert len(front.trials) == 4
        (pending,) = [trial for trial in tried.trials if trial.state == "pending"]
        assert not pending.failures
        assert len(tried.run(10).trials) == 10
        assert calls[4] == calls[5], "the interrupted trial is trained again, as it was"

    def test_before_anything_finished(self) -> None:
        def train(config: dict[str, Any], seed: int) -> float:
            raise KeyboardInterrupt

        tried = study(toy.problem(train))
        with pytest.raises(KeyboardInterrupt):
            tried.run(10)
        assert [trial.state for trial in tried.trials] == ["pending"]

    def test_queued_trainings_are_cancelled(self) -> None:
        started: list[int] = []

        def train(config: dict[str, Any], seed: int) -> float:
            started.append(seed)
            time.sleep(0.05)
            if len(started) == 2:
                raise KeyboardInterrupt
            return 0.5

        with ThreadPoolExecutor(1) as pool, pytest.warns(UserWarning, match="Interrupted"):
            study(toy.problem(train)).run(10, batch_size=5, executor=pool)
        assert len(started) <= 3

    def test_another_exception_is_no_result(self) -> None:
        """A bug in an executor is raised; the trials stay queued."""

        class Broken(Executor):
            def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
                raise AttributeError("no such thing")

        tried = study()
        with pytest.raises(AttributeError):
            tried.run(2, executor=Broken())
        assert len(tried.run(2).trials) == 2


def test_progress_bar(capsys: pytest.CaptureFixture[str]) -> None:
    study().run(3, progress=True)
    assert "3/3" in capsys.readouterr().err
    study().run(3)
    assert capsys.readouterr().err == ""
