from __future__ import annotations

import math
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from typing import Any

import pytest
import torch

from botorch_dp.pareto import ExecutorDiedError, PrivacyUtilityProblem
from botorch_dp.pareto.execution import InlineExecutor, Task, Workers, train
from tests.pareto import toy

CONFIG = {"noise": 1.0, "epochs": 4}


def task(number: int = 0, seeds: tuple[int, ...] = (1,)) -> Task:
    return Task(number, CONFIG, tuple(range(len(seeds))), seeds)


def test_train_times_the_oracle() -> None:
    answers, seconds = train(toy.Slow(0.02), False, CONFIG, (1, 2))
    assert answers == [toy.utility(CONFIG, 1), toy.utility(CONFIG, 2)] and seconds >= 0.04
    answers, _ = train(lambda config, seeds: [0.5] * len(seeds), True, CONFIG, (1, 2, 3))
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
        def fails(config: dict[str, Any], seed: int) -> float:
            raise KeyError("record 17 says 4.2")

        with Workers(toy.problem(fails), None) as workers:
            workers.submit(task())
            (result,) = workers.next_results()
        assert result.error_type == "KeyError" and result.retryable
        assert "4.2" not in repr(result)

    @pytest.mark.parametrize("answer", [math.nan, 87.0, -0.1, None, "good"])
    def test_invalid_utility(self, answer: Any) -> None:
        with Workers(toy.problem(lambda config, seed: answer), None) as workers:
            workers.submit(task())
            (result,) = workers.next_results()
        assert result.error_type == "InvalidUtilityError" and not result.retryable

    def test_replicates_together(self) -> None:
        def problem(answers: list[float]) -> PrivacyUtilityProblem:
            return PrivacyUtilityProblem(
                toy.SPACE,
                privacy=toy.epsilon,
                utility_replicates=lambda config, seeds: answers,
                replicates=2,
            )

        for answers, error in ([0.5, 0.25], None), ([0.5], "InvalidUtilityError"):
            with Workers(problem(answers), None) as workers:
                workers.submit(task(seeds=(1, 2)))
                (result,) = workers.next_results()
            assert result.error_type == error

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
            assert result.error_type is None
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
