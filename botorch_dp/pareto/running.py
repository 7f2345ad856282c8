"""Trials in training: who takes which, and what becomes of them.

A study keeps its executor busy, stores what comes back before anything else is risked, and survives
what goes wrong.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np

from botorch_dp._progress import ProgressBar
from botorch_dp.pareto.beliefs import require_complete
from botorch_dp.pareto.problem import (
    CurvePlan,
    Measurement,
    PrivacyUtilityProblem,
    StudyError,
    Trial,
)
from botorch_dp.pareto.proposals import NothingAffordableError, Proposer
from botorch_dp.pareto.storage import NumberTakenError, StudyStorage
from botorch_dp.pareto.workers import (
    MISTAKES,
    ExecutorDiedError,
    Result,
    Task,
    TrainingTimeout,
    Workers,
    measured,
)
from botorch_dp.space import Config

#: So many trials that fail before any has finished are no bad luck.
_HOPELESS = 5
#: How often a run that has nothing left to do looks after other processes.
_POLL_SECONDS = 0.1


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

    def take(self, *, asked: bool = False) -> Trial | None:
        """The first pending trial that nobody trains, here or in another process, now taken."""
        self.storage.refresh()
        for number in self.storage.pending():
            if number not in self._taken and self.storage.claim(number, asked=asked):
                self._taken.add(number)
                return self.storage[number]
        return None

    def release(self, number: int) -> None:
        """Give back a trial that will not be reported."""
        self._taken.discard(number)
        self.storage.unclaim(number)

    def propose(self, initial: int, company: Trial | None = None) -> Trial | None:
        """A new trial, stored and taken; failed already if an exact oracle fails on its config.

        None if another process has made one of its number in the meantime.

        Args:
            initial: How many trials are drawn before models are consulted.
            company: A trial that it may be trained together with.
        """
        number = len(self.storage)
        trials = self.storage.trials()
        # As long as nothing has finished, configs are drawn, until it is plain that nothing works.
        if number >= max(initial, _HOPELESS) and self.storage.count("failed") == number:
            require_complete(trials, "front to improve")
        try:
            config = self._proposer.propose(
                trials, number, initial, None if company is None else company.config
            )
            trial = self.enqueue(config, number=number, claimed=True)
        except NumberTakenError:
            self.storage.refresh()
            return None
        if trial.state == "pending":
            self._taken.add(number)
        return trial

    def enqueue(self, config: Config, *, number: int, claimed: bool = False) -> Trial:
        """A new trial of this config, stored and waiting; failed if an exact oracle fails on it."""
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
            number,
            config,
            tuple(seeds.values()),
            epsilon,
            error_type=error_type,
            plan=plan,
            claimed=claimed,
        )

    def add(
        self,
        config: Config,
        epsilon: float,
        measured: Sequence[Measurement],
        plan: CurvePlan | None,
    ) -> Trial:
        """A complete trial that was trained elsewhere; its seeds are for re-evaluations only."""
        while True:
            self.storage.refresh()
            number = len(self.storage)
            seeds = tuple(self.fresh_seeds(number, len(measured), start=0).values())
            with suppress(NumberTakenError):
                return self.storage.add_trial(
                    number, config, seeds, epsilon, measurements=measured, plan=plan
                )

    def nothing_works(self, error: Exception | bool, *, and_failed: int = 0) -> bool:
        """Whether the study should end because nothing has finished and a mistake is plain.

        Args:
            error: What was raised just now, or whether it was a plain mistake.
            and_failed: How many trials have just failed, beside those that are stored.
        """
        if self.storage.count("complete"):
            return False
        plain = error if isinstance(error, bool) else isinstance(error, MISTAKES)
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


class TrialLoop:
    """Trains trials until the study has enough of them.

    Args:
        queue: The study's trials.
        workers: Where to train.
        target: How many trials the study shall have.
        initial: How many of them are drawn before models are consulted.
        batch_size: How many are trained at a time.
        together: How many of these are trained in one call of the problem's batched oracle.
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
        together: int,
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
        self._together = together
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
        except KeyboardInterrupt:
            self._tell_of_ended()  # of a batch that was cut off, some curves may have ended before
            raise
        finally:
            # However this ended, nobody trains these trials now.
            for number in self._taken:
                self._queue.release(number)

    def _run(self, progress: bool) -> None:
        with ProgressBar(total=self._target, disable=not progress, unit="trial") as bar:
            self._show(bar)
            retries: list[Task] = []
            while True:
                try:
                    for task in retries:
                        self._submit(task)
                    if self._may_start():
                        self._fill()
                    if not self._workers.in_flight:
                        if self._others_work():
                            continue
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
            if failure is not None and failure.in_company and failure.mistake:
                raise StudyError(
                    f"`batched.utilities` failed with {failure.shown}\nThis looks like a mistake "
                    "in it. Call `run` again once it is corrected, or without `together`: what "
                    "waits for another attempt gets it."
                )
            if failure is None or not self._queue.nothing_works(failure.mistake):
                continue
            arguments: list[Any] = [task.config, *task.seeds]
            if self._queue.problem.batched.replicates is not None:
                arguments = [task.config, list(task.seeds)]
            if task.plan is not None:
                arguments.append(task.ahead)
            raise StudyError(
                f"The utility oracle failed with {failure.shown}\nNo trial has finished yet, so "
                "this looks like a mistake in the oracle. A message of it is not shown, for it may "
                f"quote records: call `problem.oracle({', '.join(map(repr, arguments))})` by hand "
                "to see it. Then call `run` again: what waits for another attempt gets it."
            )

    def _show(self, bar: ProgressBar) -> None:
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
            most = min(self._together, self._batch_size - len(active))
            company = self._company(most, may_be_suspect=not active)
            if not company or not self._may_start():  # proposing takes time, too
                return
            for trials in self._alike(company):
                tasks = [task for trial in trials for task in self._tasks(trial)]
                if len(trials) > 1:
                    prepared = [self._prepared(task) for task in tasks]
                    self._workers.submit_together(prepared, self._report)
                    continue
                for task in tasks:
                    self._submit(task)
            active.update(trial.number for trial in company)

    def _company(self, most: int, *, may_be_suspect: bool) -> list[Trial]:
        """Trials to start at once, now taken: as many as may be trained together, if there are."""
        company: list[Trial] = []
        while len(company) < most and not self._alone and self._may_start():
            first = company[0] if company else None
            trial = self._next(may_be_suspect=may_be_suspect and not company, company=first)
            if trial is None:
                break
            self._taken.add(trial.number)
            self._alone = trial.suspect
            company.append(trial)
        return company

    def _alike(self, company: Sequence[Trial]) -> list[list[Trial]]:
        """The trials by what configs of one call must have in common."""
        batched = self._queue.problem.batched
        if batched.utilities is None:
            return [[trial] for trial in company]
        groups: dict[tuple[object, ...], list[Trial]] = {}
        for trial in company:
            key = tuple(batched.shared(trial.config).values())
            groups.setdefault(key, []).append(trial)
        return list(groups.values())

    def _next(self, *, may_be_suspect: bool, company: Trial | None) -> Trial | None:
        waiting = self._queue.take()
        if waiting is not None:
            if waiting.suspect and not may_be_suspect:
                self._queue.release(waiting.number)
                return None
            return waiting
        while len(self._storage) < self._target and not self.exhausted:
            try:
                with self._workers.leaving_cores_to_trainings():
                    trial = self._queue.propose(self._initial, company)
            except NothingAffordableError:
                # What runs is paid for, and awaited.
                self.exhausted = True
                return None
            if trial is None:
                continue
            if trial.state == "pending":
                return trial
            self._on_end(trial)
        return None

    def _others_work(self) -> bool:
        """Whether trainings of other processes are worth waiting for: if one dies, this goes on."""
        if not self._may_start() or not self._storage.others_at_work():
            return False
        time.sleep(_POLL_SECONDS)
        return True

    def _tasks(self, trial: Trial) -> list[Task]:
        """One call for each missing replicate, or one for all if they are trained together."""
        together = self._queue.problem.batched.replicates is not None
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
        self._workers.submit(self._prepared(task), self._report)

    def _prepared(self, task: Task) -> Task:
        """The task from the checkpoint after the last one that was stored."""
        trial = self._storage[task.trial]
        if trial.plan is None:
            return task
        return replace(
            task,
            plan=trial.plan,
            ahead=trial.ahead(task.replicates),
            attempt=self._storage.next_attempt(task.trial, task.replicates),
        )

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
        if failure.in_company:
            # It may be any of them: each gets another attempt, alone.
            kind, trainings = failure.error_type, self._unseen(task)
            self._storage.add_failure(task.trial, kind, trainings=trainings, blamed=False)
            return False
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
        for task in filter(self._is_pending, self._workers.in_flight):
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
    together = queue.problem.batched.replicates is not None
    for trial in trials:
        seeds = queue.fresh_seeds(trial.number, replicates)
        groups = [tuple(seeds)] if together else [(replicate,) for replicate in seeds]
        for group in groups:
            group_seeds = tuple(seeds[replicate] for replicate in group)
            ahead = () if trial.plan is None else trial.plan.checkpoints
            workers.submit(Task(trial.number, trial.config, group, group_seeds, trial.plan, ahead))
    with ProgressBar(total=len(fresh) * replicates, disable=not progress, unit="training") as bar:
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
