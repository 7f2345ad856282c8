"""Where trainings run, and what comes back of them: measurements, or what may be known of an error.

Executors are this process, threads, processes, or a Dask or Ray cluster. Whatever a training raises
is reduced to the type of its error before it is stored, and to the lines of code that it passed
through before it is shown: the message may quote records.
"""

from __future__ import annotations

import faulthandler
import math
import os
import pickle
import signal
import threading
import time
import traceback
import uuid
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence, Sized
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
from dataclasses import dataclass, field, replace
from functools import partial
from numbers import Real as RealNumber
from types import TracebackType
from typing import Any, Generic, Protocol, TypeAlias, TypeVar, runtime_checkable

import torch

from botorch_dp._checks import check_positive, needs_extra
from botorch_dp.errors import BudgetExhausted, PrivacyError
from botorch_dp.pareto.paying import Purse
from botorch_dp.pareto.problem import (
    CurvePlan,
    InvalidUtilityError,
    Measurement,
    MistakenUtilityError,
    PrivacyUtilityProblem,
    StudyError,
)
from botorch_dp.space import Config

#: Errors of code that cannot work with any config; one of them before any success is enough.
MISTAKES = (TypeError, NameError, AttributeError, ImportError, SyntaxError, NotImplementedError)
#: Trainings elsewhere that can be paid for at a time.
_PAYERS = 64
#: Seconds that an overdue training gets to unwind before its process is ended.
_GRACE = 5.0
#: Lines of code that an error is shown with.
_SHOWN_FRAMES = 4
_NO_LIMITS = (
    "`training_timeout` needs trainings that can be ended: on a POSIX system, in worker processes "
    "(`executor=ProcessPoolExecutor(...)`) or in the main thread (executor=None). A thread cannot "
    "be ended."
)
_T = TypeVar("_T")


@runtime_checkable
class HasExecutor(Protocol):
    """A Dask client."""

    def get_executor(self, **options: Any) -> Executor:
        """Its executor."""
        raise NotImplementedError


#: An executor, a Dask client, or something that makes an executor (again, after one died).
ExecutorLike: TypeAlias = Executor | HasExecutor | Callable[[], Executor]


class TrainingTimeout(BaseException):
    """A training took longer than it may. Raised in its midst, past any ``except Exception``."""


class ExecutorDiedError(StudyError):
    """The executor broke down. Unfinished trials stay queued and are taken up by the next run."""


@dataclass(frozen=True)
class Task:
    """One call of the utility oracle: some replicates of one trial.

    Args:
        trial: The trial's number.
        config: What to train with.
        replicates: Which ones.
        seeds: One for each.
        plan: Where utility is measured along the way; None if at the end only.
        ahead: The checkpoints that are left.
        attempt: Tells the points of this call from those of an earlier one that was cut off.
    """

    trial: int
    config: Config
    replicates: tuple[int, ...]
    seeds: tuple[int, ...]
    plan: CurvePlan | None = None
    ahead: tuple[int, ...] = ()
    attempt: int = 0


#: Gets each point of a curve as it is measured: (task, checkpoint, answers, seconds, is_last).
Report: TypeAlias = Callable[[Task, int, list[Any], float, bool], None]


@dataclass(frozen=True)
class Result:
    """What came of a task: measurements, or the type of an error.

    Args:
        task: The task.
        measurements: One for each of its replicates; None if it failed.
        failure: What may be known of the error; None if it succeeded.
    """

    task: Task
    measurements: tuple[Measurement, ...] | None = field(default=None, repr=False)
    failure: Failure | None = None


@dataclass(frozen=True)
class Failure:
    """What leaves the place where a training raised.

    Args:
        error_type: Name of the exception's class.
        retryable: Whether another attempt could end differently.
        mistake: Whether the error is one of code, which no config and no seed can help.
        shown: What may be shown of the error.
        begun: Whether a training may have begun.
        in_company: Whether other trials were trained in the same call, any of which may be the
            cause.
    """

    error_type: str
    retryable: bool = True
    mistake: bool = False
    shown: str = field(default="", repr=False)
    begun: bool = True
    in_company: bool = False

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


def _has_time_limits() -> bool:
    """Whether this thread can be interrupted."""
    is_main = threading.current_thread() is threading.main_thread()
    return is_main and hasattr(signal, "setitimer")


def attempt(
    training: Callable[[], _T], limit: float | None = None, ends_process: bool = False
) -> _T | Failure:
    """What a training returns, or what may be known of the error that it raises."""
    if limit is not None and not _has_time_limits():
        return Failure("RuntimeError", mistake=True, shown=f"RuntimeError: {_NO_LIMITS}")
    try:
        with time_limit(limit, ends_process=ends_process):
            return training()
    except StudyError:
        # Not the training's: a point of its curve could not be stored.
        raise
    except (Exception, TrainingTimeout) as error:
        return Failure.of(error)


def train(
    oracle: Callable[..., Any], together: bool, task: Task, report: Report | None = None
) -> list[tuple[int, list[Any], float]]:
    """Call the oracle where the data are.

    Returns:
        At each checkpoint (0 if utility is measured at the end only) the answers, one for each
        seed, and the seconds since the one before.
    """
    config, seeds = dict(task.config), list(task.seeds)
    start = time.perf_counter()
    if task.plan is None:
        answers = oracle(config, seeds) if together else [oracle(config, s) for s in seeds]
        return [(0, list(answers), time.perf_counter() - start)]
    given = oracle(config, seeds if together else seeds[0], task.ahead)
    if not isinstance(given, Iterable) or isinstance(given, Mapping):
        raise MistakenUtilityError(
            "`utility_curve` must return a sequence of utilities, in the order of its "
            f"`checkpoints`, or be a generator of them; got {type(given).__name__}."
        )
    if isinstance(given, Sized) and len(given) != len(task.ahead):
        raise MistakenUtilityError(
            f"`utility_curve` must return {len(task.ahead)} utilities, one for each of its "
            f"`checkpoints`, got {len(given)}."
        )
    curve: list[tuple[int, list[Any], float]] = []
    try:
        answers_of = iter(given)
        for checkpoint in task.ahead:
            answer = next(answers_of)
            answers = list(answer) if together else [answer]
            is_last = task.plan.is_last(checkpoint, [_utility(a) for a in answers])
            curve.append((checkpoint, answers, time.perf_counter() - start))
            if report is not None:
                report(task, *curve[-1], is_last)
            if is_last:
                break
            start = time.perf_counter()
    except StopIteration:
        raise MistakenUtilityError(
            f"`utility_curve` ended after {len(curve)} of {len(task.ahead)} `checkpoints`."
        ) from None
    finally:
        if isinstance(given, Generator):
            given.close()
    return curve


class Company:
    """Several tasks that are trained in one call, and what came of each of them so far.

    Args:
        tasks: What to train.
        report: Gets each point of a curve as it is measured, if anybody does.
    """

    def __init__(self, tasks: Sequence[Task], report: Report | None) -> None:
        self._tasks, self._report = tasks, report
        #: The tasks of the trainings, by the places of these in the call.
        self._owners = [number for number, task in enumerate(tasks) for _ in task.seeds]
        self._answers: list[list[Any]] = [[] for _ in self._owners]
        self._curves: list[list[tuple[int, list[Any], float]]] = [[] for _ in tasks]
        self._seconds = [0.0] * len(tasks)
        self._running = set(range(len(tasks)))
        self._failures: dict[int, Failure] = {}

    def train(self, utilities: Callable[..., Iterable[Any]]) -> None:
        """Call the batched oracle; curves end where they would have ended alone."""
        configs = [dict(self._tasks[number].config) for number in self._owners]
        seeds = [seed for task in self._tasks for seed in task.seeds]
        self._since = time.perf_counter()
        if self._tasks[0].plan is None:
            self._take(dict(enumerate(self._counted(utilities(configs, seeds)))))
            return
        checkpoints = [self._tasks[number].ahead for number in self._owners]
        given = utilities(configs, seeds, checkpoints)
        points = given if isinstance(given, Generator) else self._side_by_side(given)
        try:
            ended: set[int] | None = None
            while self._running:
                try:
                    reached = points.send(ended)
                except StopIteration:
                    raise MistakenUtilityError(
                        f"`batched.utilities` ended before {len(self._running)} of the "
                        f"{len(self._tasks)} curves did."
                    ) from None
                if not isinstance(reached, Mapping) or not set(reached) <= set(range(len(seeds))):
                    raise MistakenUtilityError(
                        "`batched.utilities` must yield dictionaries: the utility of each training "
                        f"that has reached its next checkpoint, by its place below {len(seeds)}."
                    )
                ended = self._take(reached)
        finally:
            points.close()

    def outcome(self, failure: Failure | None) -> list[Any]:
        """What :func:`train` returns for each task, or its failure; all other ones failed so."""
        if failure is not None:
            failure = replace(failure, in_company=True)
        return [
            failure if number in self._running else self._failures.get(number, curve)
            for number, curve in enumerate(self._curves)
        ]

    def _counted(self, given: Iterable[Any]) -> list[Any]:
        answers = list(given)
        if len(answers) != len(self._owners):
            raise MistakenUtilityError(
                f"`batched.utilities` must return {len(self._owners)} answers, one for each "
                f"training, got {len(answers)}."
            )
        return answers

    def _side_by_side(
        self, given: Iterable[Any]
    ) -> Generator[dict[int, Any], set[int] | None, None]:
        """Curves that were trained to their ends, as a generator would have yielded them."""
        curves = self._counted(given)
        lengths = [len(self._tasks[number].ahead) for number in self._owners]
        if list(map(len, curves)) != lengths:
            raise MistakenUtilityError(
                "`batched.utilities` must return one utility for each of a training's "
                "`checkpoints`."
            )
        for k in range(max(lengths)):
            yield {place: own[k] for place, own in enumerate(curves) if k < len(own)}

    def _take(self, reached: Mapping[int, Any]) -> set[int]:
        """Take the next answers of some trainings; returns which of all end here."""
        spent = time.perf_counter() - self._since
        share = spent / sum(number in self._running for number in self._owners)
        for number in self._running:
            self._seconds[number] += share * len(self._tasks[number].seeds)
        for place, answer in reached.items():
            self._answers[place].append(answer)
        ended = {number for number in self._running if self._ends(number)}
        self._running -= ended
        self._since = time.perf_counter()
        return {place for place, number in enumerate(self._owners) if number in ended}

    def _ends(self, number: int) -> bool:
        """Whether a task ends with what is known by now."""
        task, curve = self._tasks[number], self._curves[number]
        own = [a for a, owner in zip(self._answers, self._owners, strict=True) if owner == number]
        while all(len(answers) > len(curve) for answers in own):
            point = [answers[len(curve)] for answers in own]
            seconds, self._seconds[number] = self._seconds[number], 0.0
            if task.plan is None:
                curve.append((0, point, seconds))
                return True
            checkpoint = task.ahead[len(curve)]
            is_last = task.plan.is_last(checkpoint, [_utility(answer) for answer in point])
            curve.append((checkpoint, point, seconds))
            try:
                if self._report is not None:
                    self._report(task, *curve[-1], is_last)
            except InvalidUtilityError as invalid:
                # Its own affair: the others go on.
                self._failures[number] = Failure.of(invalid)
                return True
            if is_last:
                return True
        return False


def attempt_together(
    utilities: Callable[..., Iterable[Any]],
    tasks: Sequence[Task],
    report: Report | None,
    limit: float | None,
    ends_process: bool,
) -> list[Any]:
    """What :func:`train` returns for each task, from one call for all of them, or its failure."""
    company = Company(tasks, report)
    return company.outcome(attempt(partial(company.train, utilities), limit, ends_process))


def _utility(answer: Any) -> float:
    """The utility in an answer, as far as it is one; it is checked where its problem is known."""
    utility = answer[0] if isinstance(answer, tuple) and answer else answer
    return float(utility) if isinstance(utility, RealNumber) else math.nan


class _FailedError(Exception):
    """Carries a failure out of what was paid for."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.error_type)
        self.failure = failure


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
        executor: An executor or a Dask client, which is left running; or a callable that makes an
            executor, which is shut down here and made again if it dies; or None for this thread.
        training_timeout: Seconds that one call of the oracle may take.
        purse: What pays for the trainings, if anything does.
    """

    def __init__(
        self,
        problem: PrivacyUtilityProblem,
        executor: ExecutorLike | None,
        *,
        training_timeout: float | None = None,
        purse: Purse | None = None,
    ) -> None:
        self._problem = problem
        self._purse = purse
        # Where trainings run elsewhere, somebody here waits for what was paid for, and stores it.
        self._payers = None if purse is None else ThreadPoolExecutor(_PAYERS)
        if training_timeout is not None:
            training_timeout = check_positive("training_timeout", training_timeout)
        self._limit = training_timeout
        self._make: Callable[[], Executor] | None = None
        if executor is None:
            self._executor: Executor = InlineExecutor()
        elif isinstance(executor, Executor):
            self._executor = executor
        elif isinstance(executor, HasExecutor):
            # Not "pure": a second attempt is not answered by what came of the first one.
            self._executor = executor.get_executor(pure=False)
        elif callable(executor):
            self._make = executor
            self._executor = self._made()
        else:
            raise TypeError(
                "`executor` must be a concurrent.futures.Executor (for Ray: a RayExecutor), a Dask "
                f"client, a callable that makes an executor, or None; got "
                f"{type(executor).__name__}."
            )
        self._has_processes = isinstance(self._executor, ProcessPoolExecutor)
        if self._has_processes:
            _check_picklable("utility", problem.oracle)
        here = executor is None and not _has_time_limits()
        if self._limit is not None and (here or isinstance(self._executor, ThreadPoolExecutor)):
            raise ValueError(_NO_LIMITS)
        self._futures: dict[Future[Any], Task] = {}
        #: Calls that train several tasks, each of which has a future of its own.
        self._shared: list[Future[Any]] = []
        self._submitted: dict[Future[Any], float] = {}

    def __enter__(self) -> Workers:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for future in [*self._futures, *self._shared]:
            future.cancel()
        if self._payers is not None:
            self._payers.shutdown(wait=error is None, cancel_futures=True)
        if self._make is not None:
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
        submitted = self._submitted
        return {t.trial for f, t in self._futures.items() if submitted.get(f, math.inf) <= latest}

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

    def submit(self, task: Task, report: Report | None = None) -> None:
        """Start a task as soon as there is a worker for it.

        Points of curves are reported as they come where the worker is a thread of this process;
        from other processes they come with the result.
        """
        problem = self._problem
        here = self._reports_at_once
        call: Callable[..., Any] = partial(
            attempt,
            partial(
                train,
                problem.oracle,
                problem.batched.replicates is not None,
                task,
                report if here else None,
            ),
            self._limit,
            self._has_processes,
        )
        try:
            if self._payers is None:
                future = self._executor.submit(call)
            elif here:
                future = self._executor.submit(self._paid, task, call)
            else:
                executor = self._executor
                if is_dask(executor):
                    # Not retried by Dask: another attempt is another charge.
                    call = Once(call, Failure("KilledWorker", shown="KilledWorker."))
                future = self._payers.submit(
                    self._paid, task, lambda: executor.submit(call).result()
                )
        except (BrokenExecutor, RuntimeError) as error:
            # Broken, or shut down by somebody else. The task counts as in flight: a trial that
            # brings down every executor must not be tried for ever.
            self._futures[Future()] = task
            raise ExecutorDiedError(type(error).__name__) from None
        self._futures[future] = task
        self._submitted[future] = time.monotonic()

    def submit_together(self, tasks: Sequence[Task], report: Report) -> None:
        """Start tasks of several trials in one call of the problem's batched oracle."""
        utilities = self._problem.batched.utilities
        assert utilities is not None and self._purse is None
        if self._has_processes:
            _check_picklable("batched.utilities", utilities)
        told = report if self._reports_at_once else None
        call = partial(attempt_together, utilities, tasks, told, self._limit, self._has_processes)
        futures: list[Future[Any]] = [Future() for _ in tasks]
        self._futures |= zip(futures, tasks, strict=True)
        self._submitted |= dict.fromkeys(futures, time.monotonic())
        try:
            shared = self._executor.submit(call)
        except (BrokenExecutor, RuntimeError) as error:
            raise ExecutorDiedError(type(error).__name__) from None
        self._shared = [*(other for other in self._shared if not other.done()), shared]
        shared.add_done_callback(partial(_hand_out, futures))

    @property
    def _reports_at_once(self) -> bool:
        """Whether workers are threads of this process, so that points need not travel."""
        return isinstance(self._executor, (InlineExecutor, ThreadPoolExecutor))

    def _paid(self, task: Task, call: Callable[[], Any]) -> tuple[Measurement, ...] | Failure:
        """Charge for a training, then call it, once; see :class:`Purse`."""
        assert self._purse is not None

        def draw() -> tuple[Measurement, ...]:
            try:
                answer = call()
            except RuntimeError as error:
                if isinstance(error, StudyError):
                    raise
                raise BrokenExecutor(type(error).__name__) from None
            if isinstance(answer, Failure):
                raise _FailedError(answer)
            return measured(self._problem, task, answer)

        try:
            return self._purse.train(task.trial, task.replicates, task.config, draw)
        except _FailedError as failed:
            return failed.failure
        except InvalidUtilityError as invalid:
            return Failure.of(invalid)
        except BudgetExhausted as exhausted:
            kind = type(exhausted).__name__
            return Failure(kind, retryable=False, shown=f"{kind}: {exhausted}", begun=False)

    def discard(self, trial: int) -> None:
        """Forget the tasks of a trial; those that run are left to end unseen."""
        for future in [f for f, task in self._futures.items() if task.trial == trial]:
            future.cancel()
            del self._futures[future]

    def replace(self) -> None:
        """Make a new executor in place of one that died; nothing is in flight afterwards."""
        self._futures.clear()
        self._submitted.clear()
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
            self._submitted.pop(future, None)
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
        if isinstance(error, (StudyError, PrivacyError)):
            # Not the training's: something could not be stored or charged.
            raise error
        answer = future.result() if error is None else Failure.of(error)
        if isinstance(answer, tuple):
            return Result(task, measurements=answer)
        if not isinstance(answer, Failure):
            try:
                return Result(task, measurements=measured(self._problem, task, answer))
            except InvalidUtilityError as invalid:
                answer = Failure.of(invalid)
        return Result(task, failure=answer)

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


def _hand_out(futures: Sequence[Future[Any]], call: Future[Any]) -> None:
    """Give each task its part of what a call for all of them gave."""
    for place, future in enumerate(futures):
        if call.cancelled():
            future.cancel()
        elif not future.set_running_or_notify_cancel():
            continue  # its trial was discarded in the meantime
        elif (error := call.exception()) is not None:
            future.set_exception(error)
        else:
            future.set_result(call.result()[place])


def measured(
    problem: PrivacyUtilityProblem, task: Task, curve: Sequence[tuple[int, list[Any], float]]
) -> tuple[Measurement, ...]:
    """What :func:`train` returned, checked: a measurement for each replicate."""
    points: list[dict[int, Measurement]] = [{} for _ in task.seeds]
    for checkpoint, answers, seconds in curve:
        if len(answers) != len(task.seeds):
            raise MistakenUtilityError(
                f"`batched.replicates` must return {len(task.seeds)} utilities, one for each seed, "
                f"got {len(answers)}."
            )
        for place, answer in zip(points, answers, strict=True):
            place[checkpoint] = problem.measurement(answer, seconds / len(answers))
    if task.plan is None:
        return tuple(place[0] for place in points)
    return tuple(Measurement.of_curve(place) for place in points)


def _check_picklable(name: str, oracle: Callable[..., Any]) -> None:
    try:
        pickle.dumps(oracle)
    except (pickle.PicklingError, TypeError, AttributeError):
        raise ValueError(
            f"`{name}` cannot be sent to other processes: define it at the top level of a module "
            "(no lambda, no nested function), or use threads."
        ) from None


# --- Clusters: Dask, and Ray. ---


class RayExecutor(Executor):
    """Runs calls as tasks of a Ray cluster. Needs the extra ``ray``.

    Ray never begins a task of it a second time by itself: what becomes of a training whose node
    died is for the study to say, which trains the trial again with its own seeds, counts the
    attempt, and pays for it anew if it is paid for.

    Args:
        address: Of a cluster that runs: ``"auto"`` for one of this machine, or
            ``"ray://host:10001"``. None takes the one that ``ray.init`` has connected to, or
            starts one here.
        options: What each task needs, as ``ray.remote`` takes it: ``num_cpus``, ``num_gpus``,
            ``resources``, ``runtime_env``.

    Example:
        >>> study.run(100, batch_size=16, executor=RayExecutor("auto", num_cpus=2))
    """

    def __init__(self, address: str | None = None, **options: Any) -> None:
        if "max_retries" in options:
            raise ValueError(
                "`max_retries` cannot be set: a training that Ray began again by itself would draw "
                "its noise twice. Use the study's `retries`."
            )
        with needs_extra("ray", "`RayExecutor`"):
            import ray
        if not ray.is_initialized():
            ray.init(address=address, log_to_driver=False)
        self._ray = ray
        self._task = ray.remote(max_retries=0, **options)(_call)
        self._running: dict[Future[Any], Any] = {}
        self._is_shut = False

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Start a call as soon as a node has room for it."""
        if self._is_shut:
            raise RuntimeError("cannot schedule new futures after shutdown")
        future: Future[Any] = Future()
        reference = self._task.remote(fn, args, kwargs)
        self._running[future] = reference
        future.add_done_callback(self._forget)
        reference.future().add_done_callback(partial(_pass_on, future))
        return future

    def _forget(self, future: Future[Any]) -> None:
        reference = self._running.pop(future, None)
        if reference is not None and future.cancelled():
            self._ray.cancel(reference)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take no more calls. The cluster goes on."""
        self._is_shut = True
        for future in list(self._running):
            if cancel_futures:
                future.cancel()
            elif wait:
                future.exception()


def _call(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return fn(*args, **kwargs)


def _pass_on(future: Future[Any], done: Future[Any]) -> None:
    """What came of Ray's future, to one that may have been cancelled meanwhile."""
    if not future.set_running_or_notify_cancel():
        return
    error = done.exception()
    if error is None:
        future.set_result(done.result())
    else:
        future.set_exception(error)


class Once(Generic[_T]):
    """A call on a Dask cluster that is made at most once, though Dask would make it again.

    Dask calls again what a worker had begun that is gone. Of a training that is paid for, this
    would be a second draw of noise for one charge. Who begins leaves a mark with the scheduler
    first; who finds one there returns something else.

    Args:
        call: What to call.
        otherwise: What to return if somebody has begun with it.
    """

    def __init__(self, call: Callable[[], _T], otherwise: _T) -> None:
        self._call, self._otherwise = call, otherwise
        self._name = f"botorch_dp-{uuid.uuid4().hex}"

    def __call__(self) -> _T:
        """Make the call, on a worker."""
        from distributed import get_client

        client = get_client()
        if client.get_metadata([self._name], False):
            return self._otherwise
        client.set_metadata([self._name], True)
        return self._call()


def is_dask(executor: Executor) -> bool:
    """Whether an executor is that of a Dask client."""
    return type(executor).__module__.partition(".")[0] == "distributed"
