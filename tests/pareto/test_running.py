from __future__ import annotations

import math
from collections import Counter
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from typing import Any

import pytest
import torch

from botorch_dp.pareto import Batched, DPareto, ExecutorDiedError, PrivacyUtilityProblem, StudyError
from botorch_dp.pareto.problem import Measurement
from botorch_dp.pareto.proposals import ProposalOptions, Proposer
from botorch_dp.pareto.running import TrialQueue
from botorch_dp.pareto.storage import StudyStorage
from botorch_dp.pareto.workers import InlineExecutor, Task, Workers, train
from tests.pareto import toy


def queue(problem: PrivacyUtilityProblem | None = None, *, retries: int = 1) -> TrialQueue:
    problem = toy.problem(replicates=2) if problem is None else problem
    storage = StudyStorage(None, description=problem.description(), seed=0)
    proposer = Proposer(problem, seed=0, options=ProposalOptions(acquisition="random"))
    return TrialQueue(problem, storage, proposer, retries=retries)


CONFIG = {"noise": 1.0, "epochs": 4}


def task(number: int = 0, seeds: tuple[int, ...] = (1,)) -> Task:
    return Task(number, CONFIG, tuple(range(len(seeds))), seeds)


def test_train_times_the_oracle() -> None:
    ((_, answers, seconds),) = train(toy.Slow(0.02), False, Task(0, CONFIG, (0, 1), (1, 2)))
    assert answers == [toy.utility(CONFIG, 1), toy.utility(CONFIG, 2)] and seconds >= 0.04
    task = Task(0, CONFIG, (0, 1, 2), (1, 2, 3))
    ((_, answers, _),) = train(lambda config, seeds: [0.5] * len(seeds), True, task)
    assert answers == [0.5] * 3


class TestInline:
    def test_runs_when_waited_for(self) -> None:
        done: list[int] = []
        executor = InlineExecutor()
        first, second = executor.submit(done.append, 1), executor.submit(done.append, 2)
        assert not done
        executor.run_next()
        assert done == [1] and first.done() and not second.done()

    def test_cancelled_calls_are_skipped(self) -> None:
        done: list[int] = []
        executor = InlineExecutor()
        executor.submit(done.append, 1).cancel()
        executor.run_next()
        assert not done


class TestResults:
    @pytest.mark.parametrize("kind", ["inline", "threads"])
    def test_measurements(self, kind: str) -> None:
        executor = ThreadPoolExecutor(2) if kind == "threads" else None
        with Workers(toy.problem(), executor) as workers:
            for number in range(3):
                workers.submit(task(number))
            results = []
            while workers.in_flight:
                results += workers.next_results()
        assert {result.task.trial for result in results} == {0, 1, 2}
        for result in results:
            assert result.measurements is not None
            assert result.measurements[0].utility == toy.utility(CONFIG, 1)

    def test_only_the_type_of_an_error_survives(self) -> None:
        record = 4.2

        def fails(config: dict[str, Any], seed: int) -> float:
            raise KeyError(f"record 17 says {record}")

        with Workers(toy.problem(fails), None) as workers:
            workers.submit(task())
            (result,) = workers.next_results()
        assert result.failure is not None and result.failure.error_type == "KeyError"
        assert result.failure.retryable and not result.failure.mistake
        assert "4.2" not in repr(result) + result.failure.shown
        assert "test_running.py" in (shown := result.failure.shown) and "raise KeyError(f" in shown

    @pytest.mark.parametrize("answer", [math.nan, 87.0, -0.1, None, "good"])
    def test_invalid_utility(self, answer: Any) -> None:
        with Workers(toy.problem(lambda config, seed: answer), None) as workers:
            workers.submit(task())
            (result,) = workers.next_results()
        assert result.failure is not None and not result.failure.retryable
        assert result.failure.error_type == "InvalidUtilityError"

    def test_replicates_together(self) -> None:
        def problem(answers: list[float]) -> PrivacyUtilityProblem:
            return PrivacyUtilityProblem(
                toy.SPACE,
                privacy=toy.epsilon,
                batched=Batched(replicates=lambda config, seeds: answers),
                replicates=2,
            )

        for answers, error in ([0.5, 0.25], None), ([0.5], "InvalidUtilityError"):
            with Workers(problem(answers), None) as workers:
                workers.submit(task(seeds=(1, 2)))
                (result,) = workers.next_results()
            assert (None if result.failure is None else result.failure.error_type) == error

    def test_discarded_tasks_are_not_reported(self) -> None:
        with Workers(toy.problem(), None) as workers:
            workers.submit(task(0))
            workers.submit(task(1))
            workers.discard(0)
            assert [t.trial for t in workers.in_flight] == [1]
            # The cancelled call is skipped.
            while workers.in_flight:
                results = workers.next_results()
        assert [result.task.trial for result in results] == [1]


class TestDeath:
    def test_a_killed_worker_breaks_a_process_pool(self) -> None:
        with (
            ProcessPoolExecutor(1) as pool,
            Workers(toy.problem(toy.KillsItsProcess(0.5)), pool) as workers,
        ):
            workers.submit(task())
            with pytest.raises(ExecutorDiedError, match="BrokenProcessPool"):
                workers.next_results()
            assert [t.trial for t in workers.in_flight] == [0]
            with pytest.raises(ExecutorDiedError, match="BrokenProcessPool"):
                workers.submit(task(1))
            assert [t.trial for t in workers.in_flight] == [0, 1]

    def test_shut_down_by_somebody_else(self) -> None:
        pool = ThreadPoolExecutor(1)
        with Workers(toy.problem(), pool) as workers:
            pool.shutdown()
            with pytest.raises(ExecutorDiedError, match="RuntimeError"):
                workers.submit(task())

    def test_cancelled_by_somebody_else(self) -> None:
        class Cancels(Executor):
            def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
                future: Future[Any] = Future()
                future.cancel()
                future.set_running_or_notify_cancel()
                return future

        with Workers(toy.problem(), Cancels()) as workers:
            workers.submit(task())
            with pytest.raises(ExecutorDiedError, match="CancelledError"):
                workers.next_results()

    def test_results_come_before_the_death(self) -> None:
        class Executes(Executor):
            """Finishes the first call, and dies with the second."""

            calls = 0

            def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
                future: Future[Any] = Future()
                self.calls += 1
                if self.calls == 1:
                    future.set_result(fn(*args))
                else:
                    future.cancel()
                    future.set_running_or_notify_cancel()
                return future

        with Workers(toy.problem(), Executes()) as workers:
            workers.submit(task(0))
            workers.submit(task(1))
            assert [result.task.trial for result in workers.next_results()] == [0]
            with pytest.raises(ExecutorDiedError):
                workers.next_results()

    def test_a_new_executor_in_its_place(self) -> None:
        made: list[ThreadPoolExecutor] = []

        def make() -> Executor:
            made.append(ThreadPoolExecutor(1))
            return made[-1]

        with Workers(toy.problem(), make) as workers:
            made[0].shutdown()
            with pytest.raises(ExecutorDiedError):
                workers.submit(task())
            workers.replace()
            assert not workers.in_flight
            workers.submit(task())
            (result,) = workers.next_results()
            assert result.failure is None
        with pytest.raises(RuntimeError, match="shutdown"):
            made[1].submit(print)


@pytest.mark.parametrize(("kind", "expected"), [("inline", 1), ("processes", 1), ("threads", 3)])
def test_threads_while_proposing(kind: str, expected: int) -> None:
    before = torch.get_num_threads()
    make = {"processes": ProcessPoolExecutor, "threads": ThreadPoolExecutor}.get(kind)
    torch.set_num_threads(3)
    try:
        with Workers(toy.problem(), make) as workers:
            with workers.leaving_cores_to_trainings():
                assert torch.get_num_threads() == expected
            assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


class TestArguments:
    def test_not_an_executor(self) -> None:
        with pytest.raises(TypeError, match="`executor` must be a concurrent"):
            Workers(toy.problem(), 4)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match=r"`executor\(\)` must return"):
            Workers(toy.problem(), lambda: 4)  # type: ignore[arg-type,return-value]

    def test_oracle_that_cannot_travel(self) -> None:
        with ProcessPoolExecutor(1) as pool, pytest.raises(ValueError, match="top level"):
            Workers(toy.problem(lambda config, seed: 0.5), pool)


def test_interruption_in_a_worker_is_one_here() -> None:
    def interrupted(config: dict[str, Any], seed: int) -> float:
        raise KeyboardInterrupt

    with ThreadPoolExecutor(1) as pool, Workers(toy.problem(interrupted), pool) as workers:
        workers.submit(task())
        with pytest.raises(KeyboardInterrupt):
            workers.next_results()


class TestQueue:
    def test_a_trial_is_taken_until_released_or_ended(self) -> None:
        trials = queue()
        trial = trials.propose(initial=4)
        assert trials.take() is None
        trials.release(trial.number)
        assert trials.take() == trial and trials.take() is None
        trials.storage.add_measurements(trial.number, {0: Measurement(0.5)})
        assert trials.storage[0].state == "pending"
        assert (
            trials.storage.add_measurements(trial.number, {1: Measurement(0.5)}).state == "complete"
        )
        trials.release(trial.number)
        assert trials.take() is None

    def test_failures_are_retried_as_configured(self) -> None:
        trials = queue(retries=2)
        trials.propose(initial=4)
        assert trials.fail(0, "OSError", trainings=1).state == "pending"
        assert trials.fail(0, "OSError", trainings=1).state == "pending"
        failed = trials.fail(0, "ValueError", trainings=1)
        assert failed.state == "failed" and failed.failures == ("OSError", "OSError", "ValueError")

    def test_what_cannot_end_differently_is_not_retried(self) -> None:
        trials = queue(retries=5)
        trials.propose(initial=4)
        ended = trials.fail(0, "InvalidUtilityError", trainings=1, retryable=False)
        assert ended.state == "failed"

    def test_suspicion_is_no_attempt(self) -> None:
        trials = queue(retries=0)
        trials.propose(initial=4)
        trials.storage.add_failure(0, "BrokenProcessPool", trainings=1, blamed=False)
        trial = trials.storage[0]
        assert trial.suspect and trial.state == "pending" and trial.failed_trainings == 1

    @pytest.mark.parametrize("answer", [math.nan, math.inf, -1.0])
    def test_an_invalid_epsilon_fails_the_trial_before_it_trains(self, answer: float) -> None:
        trained = []

        def train(config: dict[str, Any], seed: int) -> float:
            trained.append(config)
            return 0.5

        trials = queue(toy.problem(train, privacy=lambda config: answer))
        trial = trials.propose(initial=4)
        assert trial.state == "failed" and trial.failures == ("InvalidEpsilonError",)
        assert math.isnan(trial.epsilon) and not trained and trials.take() is None

    def test_all_initial_trials_failed(self) -> None:
        trials = queue(toy.problem(privacy=lambda config: 1 / 0))
        for _ in range(4):
            trials.propose(initial=16)
        with pytest.raises(StudyError, match="ZeroDivisionError: division by zero") as caught:
            trials.propose(initial=16)
        assert isinstance(caught.value.__cause__, ZeroDivisionError)
        assert len(trials.storage) == 4

    def test_fresh_seeds_are_new(self) -> None:
        trials = queue()
        trial = trials.propose(initial=4)
        trials.storage.add_measurements(0, {0: Measurement(0.5), 1: Measurement(0.5)})
        first = trials.fresh_seeds(0, 3)
        assert list(first) == [2, 3, 4] and not set(first.values()) & set(trial.seeds)
        trials.storage.add_measurements(0, {2: Measurement(0.5)})
        assert list(trials.fresh_seeds(0, 2)) == [3, 4]
        assert trials.storage[0].state == "complete" and len(trials.storage[0].fresh) == 1

    def test_unknown_trial(self) -> None:
        with pytest.raises(ValueError, match="`trial` 3 is unknown; the study has 0 trials"):
            queue().storage[3]

    def test_seeds_are_distinct_fixed_and_small(self) -> None:
        def seeds(root: int, number: int, count: int, start: int = 0) -> list[int]:
            storage = StudyStorage(None, description={}, seed=root)
            proposer = Proposer(toy.problem(), seed=root, options=ProposalOptions())
            made = TrialQueue(toy.problem(), storage, proposer, retries=0)
            return list(made.fresh_seeds(number, count, start=start).values())

        many = [seed for number in range(50) for seed in seeds(7, number, 4)]
        assert len(set(many)) == 200
        assert all(0 <= seed < 2**31 for seed in many)
        assert seeds(7, 3, 2, start=2) == seeds(7, 3, 4)[2:]
        assert seeds(8, 3, 4) != seeds(7, 3, 4)

    @pytest.mark.parametrize("batch", [False, True])
    def test_epsilon_is_computed_once_for_each_config(self, batch: bool) -> None:
        asked: Counter[str] = Counter()

        def privacy(config: dict[str, Any]) -> float:
            asked[str(config)] += 1
            return toy.epsilon(config)

        options: dict[str, Any] = {}
        if batch:
            options["batched"] = Batched(epsilons=lambda cs: [1.01 * toy.epsilon(c) for c in cs])
        study = DPareto(toy.problem(privacy=privacy, **options), seed=0, candidates=64)
        front = study.run(10, initial=6)
        assert set(asked.values()) == {1}
        assert all(trial.epsilon == toy.epsilon(trial.config) for trial in front.trials)
