"""Running trainings on any executor: in this process, on threads, processes or a Dask cluster.

Whatever a training raises is reduced to the type of its error before anybody sees it: the message
may quote records.
"""

from __future__ import annotations

import pickle
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import (
    FIRST_COMPLETED,
    BrokenExecutor,
    CancelledError,
    Executor,
    Future,
    ProcessPoolExecutor,
    ThreadPoolExecutor,
    wait,
)
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, TypeAlias

import torch

from botorch_dp.pareto.problem import InvalidUtilityError, Measurement, PrivacyUtilityProblem
from botorch_dp.pareto.trials import ExecutorDiedError
from botorch_dp.space import Config

#: An executor, or something that makes one (again, after one died).
ExecutorLike: TypeAlias = Executor | Callable[[], Executor]


@dataclass(frozen=True)
class Task:
    """One call of the utility oracle: some replicates of one trial."""

    trial: int
    config: Config
    replicates: tuple[int, ...]
    seeds: tuple[int, ...]


@dataclass(frozen=True)
class Result:
    """What came of a task: measurements, or the type of an error.

    Args:
        task: The task.
        measurements: One for each of its replicates; None if it failed.
        error_type: Name of the exception's class; None if it succeeded.
        retryable: Whether another attempt could end differently.
    """

    task: Task
    measurements: tuple[Measurement, ...] | None = field(default=None, repr=False)
    error_type: str | None = None
    retryable: bool = True


def train(oracle: Callable[..., Any], together: bool, config: Config, seeds: Sequence[int]) -> Any:
    """Call the oracle where the data are; returns its answers and the seconds it took."""
    start = time.perf_counter()
    answers = oracle(config, list(seeds)) if together else [oracle(config, s) for s in seeds]
    return list(answers), time.perf_counter() - start


class InlineExecutor(Executor):
    """Runs tasks in this thread, one at a time, when somebody waits for them."""

    def __init__(self) -> None:
        self._queue: deque[tuple[Future[Any], Callable[..., Any], tuple[Any, ...]]] = deque()

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Queue a call."""
        future: Future[Any] = Future()
        self._queue.append((future, fn, args))
        return future

    def run_next(self) -> None:
        """Run the oldest call. Ctrl-C and the like go through."""
        future, fn, args = self._queue.popleft()
        if not future.set_running_or_notify_cancel():
            return
        try:
            future.set_result(fn(*args))
        except Exception as error:
            future.set_exception(error)


class Workers:
    """Tasks in flight on an executor; as a context, it leaves nothing queued behind.

    Args:
        problem: Whose utility oracle to call.
        executor: An executor, which is left running; or a callable that makes one, which is shut
            down here and made again if it dies; or None for this thread.
    """

    def __init__(self, problem: PrivacyUtilityProblem, executor: ExecutorLike | None) -> None:
        self._problem = problem
        self._make: Callable[[], Executor] | None = None
        if executor is None:
            self._executor: Executor = InlineExecutor()
        elif isinstance(executor, Executor):
            self._executor = executor
        elif callable(executor):
            self._make = executor
            self._executor = self._made()
        else:
            raise TypeError(
                "`executor` must be a concurrent.futures.Executor (a Dask client has "
                f"`get_executor()`), a callable that makes one, or None; "
                f"got {type(executor).__name__}."
            )
        if isinstance(self._executor, ProcessPoolExecutor):
            _check_picklable(problem.oracle)
        self._futures: dict[Future[Any], Task] = {}

    def __enter__(self) -> Workers:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for future in self._futures:
            future.cancel()
        if self._make is not None:
            # After an interruption nobody waits for trainings whose results nobody will read.
            self._executor.shutdown(wait=error is None, cancel_futures=True)

    @property
    def in_flight(self) -> list[Task]:
        """The tasks that were submitted and not reported yet."""
        return list(self._futures.values())

    @property
    def replaceable(self) -> bool:
        """Whether an executor that dies can be made again."""
        return self._make is not None

    @contextmanager
    def leaving_cores_to_trainings(self) -> Iterator[None]:
        """Compute with one thread here, while trainings elsewhere keep all cores busy.

        Models of some hundred trials gain nothing from more threads, and lose twentyfold when
        threads wait for each other on busy cores. Not if trainings are threads of this process:
        the setting would be theirs too.
        """
        if isinstance(self._executor, ThreadPoolExecutor):
            yield
            return
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            yield
        finally:
            torch.set_num_threads(threads)

    def submit(self, task: Task) -> None:
        """Start a task as soon as there is a worker for it."""
        problem = self._problem
        try:
            future = self._executor.submit(
                train, problem.oracle, problem.replicates_together, dict(task.config), task.seeds
            )
        except (BrokenExecutor, RuntimeError) as error:
            # Broken, or shut down by somebody else. The task counts as in flight: a trial that
            # brings down every executor must not be tried for ever.
            self._futures[Future()] = task
            raise ExecutorDiedError(type(error).__name__) from None
        self._futures[future] = task

    def discard(self, trial: int) -> None:
        """Forget the tasks of a trial; those that run are left to end unseen."""
        for future in [f for f, task in self._futures.items() if task.trial == trial]:
            future.cancel()
            del self._futures[future]

    def replace(self) -> None:
        """Make a new executor in place of one that died; nothing is in flight afterwards."""
        self._futures.clear()
        self._executor.shutdown(wait=False, cancel_futures=True)
        self._executor = self._made()

    def next_results(self) -> list[Result]:
        """Wait until at least one task ends, and report all that did.

        Raises:
            ExecutorDiedError: The executor broke, with everything in flight.
            KeyboardInterrupt: Here or in a worker.
        """
        if isinstance(self._executor, InlineExecutor):
            # The oldest calls may have been discarded since.
            while not any(future.done() for future in self._futures):
                self._executor.run_next()
        done, _ = wait(self._futures, return_when=FIRST_COMPLETED)
        results: list[Result] = []
        # In the order of submission, so that the outcome does not depend on a set's order.
        for future in [future for future in self._futures if future in done]:
            task = self._futures[future]
            try:
                result = self._result(task, future)
            except ExecutorDiedError:
                if results:
                    # What did finish comes first; the next call meets the dead executor again.
                    break
                raise
            del self._futures[future]
            results.append(result)
        return results

    def _result(self, task: Task, future: Future[Any]) -> Result:
        if future.cancelled():
            raise ExecutorDiedError(CancelledError.__name__)
        error = future.exception()
        if isinstance(error, BrokenExecutor):
            raise ExecutorDiedError(type(error).__name__) from None
        if isinstance(error, KeyboardInterrupt):
            raise KeyboardInterrupt
        if error is not None:
            return Result(task, error_type=type(error).__name__)
        answers, seconds = future.result()
        try:
            if len(answers) != len(task.seeds):
                raise InvalidUtilityError(
                    f"expected {len(task.seeds)} utilities, got {len(answers)}"
                )
            share = seconds / len(answers)
            measurements = tuple(self._problem.measurement(a, share) for a in answers)
        except InvalidUtilityError as invalid:
            # The training ended well; another one would be as meaningless.
            return Result(task, error_type=type(invalid).__name__, retryable=False)
        return Result(task, measurements=measurements)

    def _made(self) -> Executor:
        assert self._make is not None
        executor = self._make()
        if not isinstance(executor, Executor):
            raise TypeError(
                "`executor()` must return a concurrent.futures.Executor, "
                f"got {type(executor).__name__}."
            )
        return executor


def _check_picklable(oracle: Callable[..., Any]) -> None:
    try:
        pickle.dumps(oracle)
    except (pickle.PicklingError, TypeError, AttributeError):
        raise ValueError(
            "`utility` cannot be sent to other processes: define it at the top level of a module "
            "(no lambda, no nested function), or use threads."
        ) from None
