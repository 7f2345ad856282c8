"""Trials in training: who takes which, where they run, and what becomes of them.

A study keeps its executor busy, stores what comes back before anything else is risked, and survives
what goes wrong. Executors are this process, threads, processes or a Dask cluster. Whatever a
training raises is reduced to the type of its error before it is stored, and to the lines of code
that it passed through before it is shown: the message may quote records.
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
import warnings
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence, Sized
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
from typing import Any, TypeAlias

import numpy as np
import torch
from tqdm.auto import tqdm

from botorch_dp._checks import check_positive
from botorch_dp.errors import BudgetExhausted, PrivacyError
from botorch_dp.pareto.beliefs import require_complete
from botorch_dp.pareto.paying import Purse
from botorch_dp.pareto.problem import (
    CurvePlan,
    InvalidUtilityError,
    Measurement,
    MistakenUtilityError,
    PrivacyUtilityProblem,
    StudyError,
    Trial,
)
from botorch_dp.pareto.proposals import NothingAffordableError, Proposer
from botorch_dp.pareto.storage import StudyStorage
from botorch_dp.space import Config

#: So many trials that fail before any has finished are no bad luck.
_HOPELESS = 5
#: Errors of code that cannot work with any config; one of them before any success is enough.
_MISTAKES = (TypeError, NameError, AttributeError, ImportError, SyntaxError, NotImplementedError)
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
#: An executor, or something that makes one (again, after one died).
ExecutorLike: TypeAlias = Executor | Callable[[], Executor]


class TrainingTimeout(BaseException):
    """A training took longer than it may. Raised in its midst, past any ``except Exception``."""


class ExecutorDiedError(StudyError):
    """The executor broke down. Unfinished trials stay queued and are taken up by the next run."""


class TrialQueue:
    """Hands out the trials of a study, old and new; all else about them is in the storage.

    Args:
        problem: The problem.
        storage: Where trials live.
        proposer: Makes new ones.
        retries: How many failed attempts of a trial are followed by another one.
    """

    def __init__(
        self,
        problem: PrivacyUtilityProblem,
        storage: StudyStorage,
        proposer: Proposer,
        *,
        retries: int,
    ) -> None:
        self.problem = problem
        self.storage = storage
        self._proposer = proposer
        self._retries = retries
        # Pending trials that somebody trains now. All others wait: a new process starts with none,
        # so it takes up what a crash left behind.
        self._taken: set[int] = set()

    def take(self) -> Trial | None:
        """The first pending trial that nobody trains, now taken."""
        for number in self.storage.pending():
            if number not in self._taken:
                self._taken.add(number)
                return self.storage[number]
        return None

    def release(self, number: int) -> None:
        """Give back a trial that will not be reported."""
        self._taken.discard(number)

    def propose(self, initial: int) -> Trial:
        """A new trial, stored and taken; failed already if an exact oracle fails on its config."""
        number = len(self.storage)
        trials = self.storage.trials()
        if number >= initial and self.storage.count("failed") == number:
            require_complete(trials, "front to improve")
        trial = self.enqueue(self._proposer.propose(trials, number, initial))
        if trial.state == "pending":
            self._taken.add(number)
        return trial

    def enqueue(self, config: Config) -> Trial:
        """A new trial of this config, stored and waiting; failed if an exact oracle fails on it."""
        number = len(self.storage)
        epsilon, error_type = math.nan, None
        try:
            epsilon = self._proposer.known.epsilon(config)
            plan = self._proposer.plan(config, epsilon, self.storage.trials())
        except Exception as error:
            # Nothing that an exact oracle says is sensitive.
            if self.nothing_works(error, and_failed=1):
                raise StudyError(
                    f"An exact oracle (`privacy`, or the `function` of an objective) fails with "
                    f"{type(error).__name__}: {error} on {config}, and no trial has finished yet. "
                    "Correct it and go on; the study is as it was."
                ) from error
            error_type, plan = type(error).__name__, None
        seeds = self.fresh_seeds(number, self.problem.replicates, start=0)
        return self.storage.add_trial(
            number, config, tuple(seeds.values()), epsilon, error_type=error_type, plan=plan
        )

    def add(
        self,
        config: Config,
        epsilon: float,
        measured: Sequence[Measurement],
        plan: CurvePlan | None,
    ) -> Trial:
        """A complete trial that was trained elsewhere; its seeds are for re-evaluations only."""
        number = len(self.storage)
        seeds = self.fresh_seeds(number, len(measured), start=0)
        return self.storage.add_trial(
            number, config, tuple(seeds.values()), epsilon, measurements=measured, plan=plan
        )

    def nothing_works(self, error: Exception | bool, *, and_failed: int = 0) -> bool:
        """Whether the study should end because nothing has finished and a mistake is plain.

        Args:
            error: What was raised just now, or whether it was a plain mistake.
            and_failed: How many trials have just failed, beside those that are stored.
        """
        if self.storage.count("complete"):
            return False
        plain = error if isinstance(error, bool) else isinstance(error, _MISTAKES)
        return plain or self.storage.count("failed") + and_failed >= _HOPELESS

    def fail(
        self,
        number: int,
        error_type: str,
        *,
        trainings: int,
        retryable: bool = True,
        spared: bool = False,
    ) -> Trial:
        """Store a failed attempt; the trial has failed when no attempt is left.

        Args:
            number: The trial.
            error_type: Name of the exception's class.
            trainings: How many trainings the attempt may have begun.
            retryable: Whether another attempt could end differently.
            spared: Whether the trial gets one in any case.
        """
        attempts = len(self.storage[number].failures) + 1
        return self.storage.add_failure(
            number,
            error_type,
            trainings=trainings,
            is_last=not spared and (not retryable or attempts > self._retries),
        )

    def fresh_seeds(self, number: int, count: int, *, start: int | None = None) -> dict[int, int]:
        """Seeds below 2^31 that a trial has not used yet, by replicate."""
        start = self.storage.next_replicate(number) if start is None else start
        root = self.storage.seed
        return {
            replicate: int(
                np.random.SeedSequence(root, spawn_key=(number, replicate)).generate_state(1)[0]
            )
            >> 1
            for replicate in range(start, start + count)
        }


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
        return cls(kind, True, isinstance(error, _MISTAKES), f"{kind}, raised in{''.join(lines)}")


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
    oracle: Callable[..., Any],
    together: bool,
    task: Task,
    report: Report | None = None,
    limit: float | None = None,
    ends_process: bool = False,
) -> list[tuple[int, list[Any], float]] | Failure:
    """What :func:`train` returns, or what may be known of the error that it raises."""
    if limit is not None and not _has_time_limits():
        return Failure("RuntimeError", mistake=True, shown=f"RuntimeError: {_NO_LIMITS}")
    try:
        with time_limit(limit, ends_process=ends_process):
            return train(oracle, together, task, report)
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
        executor: An executor, which is left running; or a callable that makes one, which is shut
            down here and made again if it dies; or None for this thread.
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
        elif callable(executor):
            self._make = executor
            self._executor = self._made()
        else:
            raise TypeError(
                "`executor` must be a concurrent.futures.Executor (a Dask client has "
                f"`get_executor()`), a callable that makes one, or None; "
                f"got {type(executor).__name__}."
            )
        self._has_processes = isinstance(self._executor, ProcessPoolExecutor)
        if self._has_processes:
            _check_picklable(problem.oracle)
        here = executor is None and not _has_time_limits()
        if self._limit is not None and (here or isinstance(self._executor, ThreadPoolExecutor)):
            raise ValueError(_NO_LIMITS)
        self._futures: dict[Future[Any], Task] = {}
        self._submitted: dict[Future[Any], float] = {}

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
        here = isinstance(self._executor, (InlineExecutor, ThreadPoolExecutor))
        call: Callable[..., Any] = partial(
            attempt,
            problem.oracle,
            problem.replicates_together,
            task,
            report if here else None,
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
        executor = self._make()
        if not isinstance(executor, Executor):
            raise TypeError(
                "`executor()` must return a concurrent.futures.Executor, "
                f"got {type(executor).__name__}."
            )
        return executor


def measured(
    problem: PrivacyUtilityProblem, task: Task, curve: Sequence[tuple[int, list[Any], float]]
) -> tuple[Measurement, ...]:
    """What :func:`train` returned, checked: a measurement for each replicate."""
    points: list[dict[int, Measurement]] = [{} for _ in task.seeds]
    for checkpoint, answers, seconds in curve:
        if len(answers) != len(task.seeds):
            raise MistakenUtilityError(
                f"`utility_replicates` must return {len(task.seeds)} utilities, one for each seed, "
                f"got {len(answers)}."
            )
        for place, answer in zip(points, answers, strict=True):
            place[checkpoint] = problem.measurement(answer, seconds / len(answers))
    if task.plan is None:
        return tuple(place[0] for place in points)
    return tuple(Measurement.of_curve(place) for place in points)


def _check_picklable(oracle: Callable[..., Any]) -> None:
    try:
        pickle.dumps(oracle)
    except (pickle.PicklingError, TypeError, AttributeError):
        raise ValueError(
            "`utility` cannot be sent to other processes: define it at the top level of a module "
            "(no lambda, no nested function), or use threads."
        ) from None


class TrialLoop:
    """Trains trials until the study has enough of them.

    Args:
        queue: The study's trials.
        workers: Where to train.
        target: How many trials the study shall have.
        initial: How many of them are drawn before models are consulted.
        batch_size: How many are trained at a time.
        asynchronous: Whether to start a new one whenever one ends.
        may_start: Whether anything more may be started; what runs is awaited in any case.
        on_end: Told of each trial that has ended.
    """

    def __init__(
        self,
        queue: TrialQueue,
        workers: Workers,
        *,
        target: int,
        initial: int,
        batch_size: int,
        asynchronous: bool,
        may_start: Callable[[], bool] = lambda: True,
        on_end: Callable[[Trial], None] = lambda trial: None,
    ) -> None:
        self._queue = queue
        self._storage = queue.storage
        self._workers = workers
        self._target = target
        self._initial = initial
        self._batch_size = batch_size
        self._asynchronous = asynchronous
        self._may_start = may_start
        self._on_end = on_end
        # A trial that brought down an executor, alone or in company, is put to the test alone.
        self._alone = False
        self._taken: set[int] = set()
        #: Whether nothing that could be proposed can be paid for.
        self.exhausted = False

    def run(self, *, progress: bool) -> None:
        """Train; returns when nothing is left to do."""
        try:
            self._run(progress)
        finally:
            # However this ended, nobody trains these trials now.
            for number in self._taken:
                self._queue.release(number)

    def _run(self, progress: bool) -> None:
        with tqdm(total=self._target, disable=not progress, unit="trial") as bar:
            self._show(bar)
            retries: list[Task] = []
            while True:
                try:
                    for task in retries:
                        self._submit(task)
                    if self._may_start():
                        self._fill()
                    if not self._workers.in_flight:
                        return
                    results = self._workers.next_results()
                except ExecutorDiedError as death:
                    self._bury(str(death))
                    results = []
                # Everything is stored before anything else is risked.
                failed = [result for result in results if not self._stored(result)]
                self._show(bar)
                self._tell_of_ended()
                self._end_if_hopeless(failed)
                retries = [
                    result.task
                    for result in failed
                    if self._is_pending(result.task) and self._may_start()
                ]

    def _tell_of_ended(self) -> None:
        for number in sorted(self._taken):
            if self._storage[number].state != "pending":
                self._taken.discard(number)
                self._on_end(self._storage[number])

    def _end_if_hopeless(self, failed: Sequence[Result]) -> None:
        """Raise if the failures of a study in which nothing has finished look like a mistake."""
        for result in failed:
            failure, task = result.failure, result.task
            if failure is None or not self._queue.nothing_works(failure.mistake):
                continue
            arguments: list[Any] = [task.config, *task.seeds]
            if self._queue.problem.replicates_together:
                arguments = [task.config, list(task.seeds)]
            if task.plan is not None:
                arguments.append(task.ahead)
            raise StudyError(
                f"The utility oracle failed with {failure.shown}\nNo trial has finished yet, so "
                "this looks like a mistake in the oracle. A message of it is not shown, for it may "
                f"quote records: call `problem.oracle({', '.join(map(repr, arguments))})` by hand "
                "to see it. Then call `run` again: what waits for another attempt gets it."
            )

    def _show(self, bar: tqdm) -> None:
        bar.n = len(self._storage) - self._storage.count("pending")
        bar.refresh()

    def _active(self) -> set[int]:
        return {task.trial for task in self._workers.in_flight}

    def _fill(self) -> None:
        """Start trials until the batch is full or none is left."""
        active = self._active()
        if active and (self._alone or not self._asynchronous):
            return
        self._alone = False
        while len(active) < self._batch_size and not self._alone:
            trial = self._next(may_be_suspect=not active)
            if trial is None:
                return
            self._taken.add(trial.number)
            if not self._may_start():  # proposing takes time, too
                return
            self._alone = trial.suspect
            for task in self._tasks(trial):
                self._submit(task)
            active.add(trial.number)

    def _next(self, *, may_be_suspect: bool) -> Trial | None:
        waiting = self._queue.take()
        if waiting is not None:
            if waiting.suspect and not may_be_suspect:
                self._queue.release(waiting.number)
                return None
            return waiting
        while len(self._storage) < self._target and not self.exhausted:
            try:
                with self._workers.leaving_cores_to_trainings():
                    trial = self._queue.propose(self._initial)
            except NothingAffordableError:
                # What runs is paid for, and awaited.
                self.exhausted = True
                return None
            if trial.state == "pending":
                return trial
            self._on_end(trial)
        return None

    def _tasks(self, trial: Trial) -> list[Task]:
        """One call for each missing replicate, or one for all if they are trained together."""
        together = self._queue.problem.replicates_together
        groups = [trial.missing] if together else [(replicate,) for replicate in trial.missing]
        return [
            Task(
                trial=trial.number,
                config=trial.config,
                replicates=group,
                seeds=tuple(trial.seeds[replicate] for replicate in group),
            )
            for group in groups
        ]

    def _submit(self, task: Task) -> None:
        """Start a task, at the checkpoint after the last one that was stored."""
        trial = self._storage[task.trial]
        if trial.plan is not None:
            task = replace(
                task,
                plan=trial.plan,
                ahead=trial.ahead(task.replicates),
                attempt=self._storage.next_attempt(task.trial, task.replicates),
            )
        self._workers.submit(task, self._report)

    def _report(
        self, task: Task, checkpoint: int, answers: list[Any], seconds: float, is_last: bool
    ) -> None:
        """Store one point of a curve; its trial is finished with the last one."""
        points = measured(self._queue.problem, task, [(checkpoint, answers, seconds)])
        self._storage.add_points(
            task.trial,
            checkpoint,
            {r: dict(m.curve)[checkpoint] for r, m in zip(task.replicates, points, strict=True)},
            attempt=task.attempt,
            is_last=is_last,
        )

    def _is_pending(self, task: Task) -> bool:
        return self._storage[task.trial].state == "pending"

    def _stored(self, result: Result) -> bool:
        """Store a result; returns whether it is one, and not an error."""
        task = result.task
        if result.measurements is not None:
            missing = self._storage[task.trial].missing
            measured = {
                replicate: measurement
                for replicate, measurement in zip(task.replicates, result.measurements, strict=True)
                if replicate in missing
            }
            if measured:
                self._storage.add_measurements(task.trial, measured, attempt=task.attempt)
            return True
        failure = result.failure
        assert failure is not None
        trial = self._queue.fail(
            task.trial,
            failure.error_type,
            trainings=self._unseen(task) if failure.begun else 0,
            retryable=failure.retryable,
            spared=failure.mistake and self._queue.nothing_works(True),
        )
        if trial.state == "failed":
            self._workers.discard(task.trial)
        return False

    def _unseen(self, task: Task) -> int:
        """How many trainings of a task left no point, by which they would count already."""
        attempts = (self._storage.next_attempt(task.trial, [r]) for r in task.replicates)
        return sum(attempt <= task.attempt for attempt in attempts)

    def _bury(self, error_type: str) -> None:
        """An executor died. Blame the trial in flight if it was alone; go on if possible."""
        lost: dict[int, int] = {}
        for task in self._workers.in_flight:
            lost[task.trial] = lost.get(task.trial, 0) + self._unseen(task)
        overdue = self._workers.overdue
        for number, trainings in lost.items():
            if overdue == {number}:
                kind = TrainingTimeout.__name__
                self._queue.fail(number, kind, trainings=trainings, retryable=False)
            elif len(lost) == 1:
                self._queue.fail(number, error_type, trainings=trainings)
            else:
                self._storage.add_failure(number, error_type, trainings=trainings, blamed=False)
        self._tell_of_ended()
        # Also those that waited for another attempt: all are taken up again from the books.
        for number in self._taken:
            self._queue.release(number)
        self._taken.clear()
        self._alone = False
        if self._workers.replaceable:
            self._workers.replace()
            return
        raise ExecutorDiedError(
            f"The executor died ({error_type}) with trials {sorted(lost)} in flight. Everything "
            "that finished is stored and they stay queued: call `run` again with a new executor, "
            "or pass a callable that makes one, such as `lambda: ProcessPoolExecutor(4)`."
        ) from None


def evaluate_again(
    queue: TrialQueue,
    workers: Workers,
    *,
    trials: Sequence[Trial],
    replicates: int,
    progress: bool,
) -> list[Trial]:
    """Complete trials with measurements from fresh seeds in place of their own.

    Args:
        queue: The study's trials; every result is stored as it comes.
        workers: Where to train.
        trials: What to train again, each with the plan of the points that are wanted.
        replicates: How often.
        progress: Whether to show a progress bar.
    """
    fresh: dict[int, dict[int, Measurement]] = {trial.number: {} for trial in trials}
    errors: set[str] = set()
    try:
        _train_fresh(queue, workers, trials, fresh, errors, replicates, progress)
    except ExecutorDiedError as death:
        raise ExecutorDiedError(
            f"The executor died ({death}) while the front was measured again. The study's trials "
            "are as before; call `reevaluate` again with a new executor."
        ) from None
    failed = [number for number, measurements in fresh.items() if not measurements]
    if len(failed) == len(trials):
        raise StudyError(f"All re-evaluations failed, with {sorted(errors)}.")
    if failed:
        warnings.warn(
            f"All re-evaluations of trials {failed} failed, with {sorted(errors)}; the new front "
            "is without them.",
            stacklevel=2,
        )
    return [
        replace(
            trial,
            # By replicate, whatever ended first.
            measurements=tuple(m for _, m in sorted(fresh[trial.number].items())),
            fresh=(),
        )
        for trial in trials
        if fresh[trial.number]
    ]


def _train_fresh(
    queue: TrialQueue,
    workers: Workers,
    trials: Sequence[Trial],
    fresh: dict[int, dict[int, Measurement]],
    errors: set[str],
    replicates: int,
    progress: bool,
) -> None:
    """Train trials again; add measurements to ``fresh``, and types to ``errors``."""
    together = queue.problem.replicates_together
    for trial in trials:
        seeds = queue.fresh_seeds(trial.number, replicates)
        groups = [tuple(seeds)] if together else [(replicate,) for replicate in seeds]
        for group in groups:
            group_seeds = tuple(seeds[replicate] for replicate in group)
            ahead = () if trial.plan is None else trial.plan.checkpoints
            workers.submit(Task(trial.number, trial.config, group, group_seeds, trial.plan, ahead))
    with tqdm(total=len(fresh) * replicates, disable=not progress, unit="training") as bar:
        while workers.in_flight:
            for result in workers.next_results():
                number, group = result.task.trial, result.task.replicates
                bar.update(len(group))
                if result.measurements is not None:
                    measured = dict(zip(group, result.measurements, strict=True))
                    queue.storage.add_measurements(number, measured)
                    fresh[number] |= measured
                    continue
                assert result.failure is not None
                error_type = result.failure.error_type
                errors.add(error_type)
                queue.storage.add_failure(number, error_type, trainings=len(group), blamed=False)
