"""Where trainings run, and what comes back of them.

The first half is what happens in a worker, which may be a thread of this process, another process
or another machine: :func:`attempt` calls the utility oracle once. Whatever a training raises is
reduced to the type of its error, and to the lines of code that it passed through, since the message
may quote records. The second half, :class:`Trainings`, is what is in flight on one executor.
"""

from __future__ import annotations

import faulthandler
import os
import pickle
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterator
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
from functools import partial
from types import TracebackType
from typing import Any, TypeAlias

import torch

from botorch_dp._checks import check_positive
from botorch_dp.errors import BudgetExhausted, PrivacyError
from botorch_dp.pareto.problem import (
    InvalidUtilityError,
    Measurement,
    MistakenUtilityError,
    PrivacyUtilityProblem,
    StudyError,
)
from botorch_dp.space import Config

#: Errors of code that cannot work with any config; one of them before any success is enough.
MISTAKES = (TypeError, NameError, AttributeError, ImportError, SyntaxError, NotImplementedError)
#: Seconds that an overdue training gets to unwind before its process is ended.
_GRACE = 5.0
#: Lines of code that an error is shown with.
_SHOWN_FRAMES = 4
_NO_LIMITS = (
    "`training_timeout` needs trainings that can be ended: on a POSIX system, in worker processes "
    "(`executor=ProcessPoolExecutor(...)`) or in the main thread (executor=None). A thread cannot "
    "be ended."
)


#: An executor, or something that makes one (and another one, if it dies).
ExecutorLike: TypeAlias = Executor | Callable[[], Executor]


class ExecutorDiedError(StudyError):
    """The executor broke down. Unfinished trials wait, and are trained by the next run."""


class TrainingTimeout(BaseException):
    """A training took longer than it may. Raised in its midst, past any ``except Exception``."""


@dataclass(frozen=True)
class Task:
    """One call of the utility oracle: some replicates of one trial.

    Args:
        trial: The trial's number.
        config: What to train with.
        replicates: Which ones.
        seeds: One for each.
    """

    trial: int
    config: Config
    replicates: tuple[int, ...]
    seeds: tuple[int, ...]


#: One answer for each seed, and the seconds that they took.
Answers: TypeAlias = tuple[list[Any], float]


@dataclass(frozen=True)
class Failure:
    """What leaves the place where a training raised.

    Args:
        error_type: Name of the exception's class.
        retryable: Whether another attempt could end differently.
        mistake: Whether the error is one of code, which no config and no seed can help.
        shown: What may be shown of the error.
        begun: Whether a training may have begun.
    """

    error_type: str
    retryable: bool = True
    mistake: bool = False
    shown: str = field(default="", repr=False)
    begun: bool = True

    @classmethod
    def of(cls, error: BaseException) -> Failure:
        """Lines of code are shown; the message is not, for it may quote records."""
        if isinstance(error, TrainingTimeout):
            # Another attempt would take as long to fail.
            return cls(TrainingTimeout.__name__, False, False, "TrainingTimeout.")
        if isinstance(error, InvalidUtilityError):
            # Another training would end in the same nonsense. The message is ours.
            kind = InvalidUtilityError.__name__
            mistake = isinstance(error, MistakenUtilityError)
            return cls(kind, False, mistake, f"{kind}: {error}")
        frames = traceback.extract_tb(error.__traceback__)[2:][-_SHOWN_FRAMES:]
        lines = [f"\n  {f.filename}, line {f.lineno}, in {f.name}: {f.line}" for f in frames]
        kind = type(error).__name__
        where = f"raised in{''.join(lines)}"
        if not lines:
            where = "raised by the call itself: see which arguments it takes."
        return cls(kind, True, isinstance(error, MISTAKES), f"{kind}, {where}")


@contextmanager
def time_limit(seconds: float | None, *, ends_process: bool) -> Iterator[None]:
    """Raise :class:`TrainingTimeout` in this thread, which must be its process's main one, in time.

    Args:
        seconds: How long the work inside may take; None for any time.
        ends_process: Whether to end the process if it does not come out of C code some seconds
            later, where Python cannot raise. By a watchdog that does not need the interpreter.
    """
    if seconds is None:
        yield
        return
    armed = True

    def expire(*_: object) -> None:
        if armed:
            raise TrainingTimeout

    start = time.monotonic()
    handler = signal.signal(signal.SIGALRM, expire)
    # Again and again: code that catches everything may catch the first one.
    earlier, _ = signal.setitimer(signal.ITIMER_REAL, seconds, _GRACE)
    try:
        with open(os.devnull, "w") as nowhere:
            if ends_process:
                faulthandler.dump_traceback_later(seconds + _GRACE, exit=True, file=nowhere)
            try:
                yield
            finally:
                armed = False
                if ends_process:
                    faulthandler.cancel_dump_traceback_later()
    finally:
        left = max(earlier - (time.monotonic() - start), 1e-3) if earlier else 0.0
        signal.setitimer(signal.ITIMER_REAL, left)
        signal.signal(signal.SIGALRM, handler)


def can_be_ended() -> bool:
    """Whether trainings in this thread can be ended."""
    is_main = threading.current_thread() is threading.main_thread()
    return is_main and hasattr(signal, "setitimer")


def attempt(
    oracle: Callable[..., Any],
    together: bool,
    task: Task,
    limit: float | None = None,
    ends_process: bool = False,
) -> Answers | Failure:
    """What a training answers, or what may be known of the error that it raises.

    Args:
        oracle: Trains; it is called where the data are.
        together: Whether it trains all replicates in one call.
        task: What to train.
        limit: How many seconds the call may take.
        ends_process: Whether a call that cannot be interrupted may end its process.
    """
    if limit is not None and not can_be_ended():
        return Failure("RuntimeError", mistake=True, shown=f"RuntimeError: {_NO_LIMITS}")
    try:
        with time_limit(limit, ends_process=ends_process):
            return train(oracle, together, task)
    except (Exception, TrainingTimeout) as error:
        return Failure.of(error)


def train(oracle: Callable[..., Any], together: bool, task: Task) -> Answers:
    """What the oracle answers."""
    config, seeds = dict(task.config), list(task.seeds)
    start = time.perf_counter()
    answers = oracle(config, seeds) if together else [oracle(config, s) for s in seeds]
    return list(answers), time.perf_counter() - start


def measured(
    problem: PrivacyUtilityProblem, task: Task, answered: Answers
) -> dict[int, Measurement]:
    """What :func:`train` returned, checked: one measurement for each replicate."""
    answers, seconds = answered
    if len(answers) != len(task.seeds):
        raise MistakenUtilityError(
            f"`batched.replicates` must return {len(task.seeds)} utilities, one for each seed, "
            f"got {len(answers)}."
        )
    points = [problem.measurement(answer, seconds / len(answers)) for answer in answers]
    return dict(zip(task.replicates, points, strict=True))


#: A measurement for each replicate of a task, or what may be known of an error.
Outcome: TypeAlias = dict[int, Measurement] | Failure


class Trainings:
    """The tasks in flight on one executor; as a context, it leaves nothing queued behind.

    Args:
        problem: Whose utility oracle is called. It is told of each training before that is handed
            to the executor.
        executor: An executor, which is left running; or a callable that makes one, which is shut
            down here and made again if it dies; or None for this thread, one task at a time.
        training_timeout: Seconds that one call of the oracle may take.
    """

    def __init__(
        self,
        problem: PrivacyUtilityProblem,
        executor: ExecutorLike | None,
        *,
        training_timeout: float | None = None,
    ) -> None:
        self._problem = problem
        if training_timeout is not None:
            training_timeout = check_positive("training_timeout", training_timeout)
        self._limit = training_timeout
        self._make: Callable[[], Executor] | None = None
        self._executor: Executor | None = None
        if isinstance(executor, Executor):
            self._executor = executor
        elif executor is not None and callable(executor):
            self._make = executor
            self._executor = self._made()
        elif executor is not None:
            raise TypeError(
                "`executor` must be a concurrent.futures.Executor (that of a Dask client is "
                "`client.get_executor(pure=False, retries=0)`), a callable that makes one, or "
                f"None; got {type(executor).__name__}."
            )
        if self._executor is not None:
            problem.check_executor(self._executor)
        self._has_processes = isinstance(self._executor, ProcessPoolExecutor)
        if self._has_processes:
            _check_picklable("utility", problem.oracle)
        in_threads = isinstance(self._executor, ThreadPoolExecutor)
        cannot_end = in_threads or (self._executor is None and not can_be_ended())
        if self._limit is not None and cannot_end:
            raise ValueError(_NO_LIMITS)
        #: What was submitted, in this order; without an executor, what waits for its turn.
        self._futures: dict[Future[Any], Task] = {}
        self._since: dict[Future[Any], float] = {}

    def __enter__(self) -> Trainings:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for future in self._futures:
            future.cancel()
        if self._make is not None and self._executor is not None:
            # After an interruption nobody waits for trainings whose results nobody will read.
            self._executor.shutdown(wait=error is None, cancel_futures=True)

    @property
    def in_flight(self) -> list[Task]:
        """The tasks that were submitted and not reported yet."""
        return list(self._futures.values())

    @property
    def overdue(self) -> set[int]:
        """Trials whose trainings should have been ended: one of them if a process was ended."""
        if self._limit is None:
            return set()
        latest = time.monotonic() - self._limit - _GRACE
        return {task.trial for f, task in self._futures.items() if self._since.get(f, 0) <= latest}

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
        if self._executor is None:
            self._futures[Future()] = task
            return
        future: Future[Any] = Future()
        refused = self._charge(task)
        if refused is not None:
            future.set_result(refused)
        else:
            try:
                future = self._executor.submit(self._call(task))
            except (BrokenExecutor, RuntimeError) as error:
                # Broken, or shut down by somebody else. The task counts as in flight: a trial that
                # brings down every executor must not be tried for ever.
                self._futures[future] = task
                raise ExecutorDiedError(type(error).__name__) from None
        self._futures[future] = task
        self._since[future] = time.monotonic()

    def discard(self, trial: int) -> None:
        """Forget the tasks of a trial; those that run are left to end unseen."""
        for future in [f for f, task in self._futures.items() if task.trial == trial]:
            future.cancel()
            self._forget(future)

    def replace(self) -> bool:
        """Forget what is in flight on a dead executor; returns whether another one was made."""
        self._futures.clear()
        self._since.clear()
        if self._make is None or self._executor is None:
            return False
        self._executor.shutdown(wait=False, cancel_futures=True)
        self._executor = self._made()
        return True

    def next_outcomes(self) -> list[tuple[Task, Outcome]]:
        """Wait until at least one task ends, and report all that did.

        Raises:
            ExecutorDiedError: The executor broke, with everything in flight.
            KeyboardInterrupt: Here or in a worker.
        """
        if self._executor is None:
            future, task = next(iter(self._futures.items()))
            answer = self._charge(task) or self._call(task)()
            self._forget(future)
            return [(task, self._checked(task, answer))]
        done, _ = wait(self._futures, return_when=FIRST_COMPLETED)
        outcomes: list[tuple[Task, Outcome]] = []
        # In the order of submission, so that the outcome does not depend on a set's order.
        for future in [future for future in self._futures if future in done]:
            try:
                answer = _answer(future)
            except ExecutorDiedError:
                if outcomes:
                    # What did finish comes first; the next call meets the dead executor again.
                    break
                raise
            task = self._futures[future]
            self._forget(future)
            outcomes.append((task, self._checked(task, answer)))
        return outcomes

    def _forget(self, future: Future[Any]) -> None:
        del self._futures[future]
        self._since.pop(future, None)

    def _charge(self, task: Task) -> Failure | None:
        """Tell the problem of a training that is about to begin; why it must not, if so."""
        try:
            self._problem.charge(task.config, len(task.seeds), f"trial {task.trial}")
        except BudgetExhausted as exhausted:
            kind = type(exhausted).__name__
            return Failure(kind, retryable=False, shown=f"{kind}: {exhausted}", begun=False)
        return None

    def _call(self, task: Task) -> Callable[[], Any]:
        together = self._problem.batched.replicates is not None
        oracle, ends = self._problem.oracle, self._has_processes
        return partial(attempt, oracle, together, task, self._limit, ends)

    def _checked(self, task: Task, answer: Answers | Failure) -> Outcome:
        if isinstance(answer, Failure):
            return answer
        try:
            return measured(self._problem, task, answer)
        except InvalidUtilityError as invalid:
            return Failure.of(invalid)

    def _made(self) -> Executor:
        assert self._make is not None
        try:
            executor = self._make()
        except TypeError as error:
            raise TypeError(f"`executor()` failed: {error}") from error
        if not isinstance(executor, Executor):
            raise TypeError(
                "`executor()` must return a concurrent.futures.Executor, "
                f"got {type(executor).__name__}."
            )
        return executor


def _answer(future: Future[Any]) -> Any:
    """What a call gave, or what may be known of an error of its executor."""
    if future.cancelled():
        raise ExecutorDiedError(CancelledError.__name__)
    error = future.exception()
    if error is None:
        return future.result()
    if isinstance(error, BrokenExecutor):
        raise ExecutorDiedError(type(error).__name__) from None
    if isinstance(error, KeyboardInterrupt):
        raise KeyboardInterrupt
    if isinstance(error, (StudyError, PrivacyError)):
        # Not the training's: something could not be stored or charged.
        raise error
    return Failure.of(error)


def _check_picklable(name: str, oracle: Callable[..., Any]) -> None:
    try:
        pickle.dumps(oracle)
    except (pickle.PicklingError, TypeError, AttributeError):
        raise ValueError(
            f"`{name}` cannot be sent to other processes: define it at the top level of a module "
            "(no lambda, no nested function), or use threads."
        ) from None
