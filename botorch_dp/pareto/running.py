"""The loop of a study: propose, store, submit, record, fail, stop.

* :class:`TrialQueue` says which trial is trained next, an old one or a new one, and stores what
  becomes of it.
* :class:`TrialLoop` keeps an executor busy, and stores what comes back before anything else is
  risked. A trial is in training while one of its tasks is in flight, and waits otherwise. Nothing
  else takes note of it, so that a study which was killed goes on where its file ends.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from botorch_dp._progress import ProgressBar
from botorch_dp.pareto.beliefs import require_complete
from botorch_dp.pareto.problem import Measurement, PrivacyUtilityProblem, StudyError, Trial
from botorch_dp.pareto.proposals import (
    Budget,
    NothingAffordableError,
    Search,
    propose,
)
from botorch_dp.pareto.storage import StudyFile
from botorch_dp.pareto.workers import (
    MISTAKES,
    ExecutorDiedError,
    ExecutorLike,
    Failure,
    Outcome,
    Task,
    Trainings,
    TrainingTimeout,
)
from botorch_dp.space import Config

#: So many trials that fail before any has finished are no bad luck.
_HOPELESS = 5


class TrialQueue:
    """The trials of a study in the order in which they are trained, old ones and new ones.

    Args:
        problem: The problem.
        file: Where trials are stored.
        search: Proposes new ones.
        budget: What is affordable; everything if None.
        retries: How many failed attempts of a trial are followed by another one.
    """

    def __init__(
        self,
        problem: PrivacyUtilityProblem,
        file: StudyFile,
        search: Search,
        *,
        budget: Budget | None,
        retries: int,
    ) -> None:
        self.problem, self.file = problem, file
        self._search, self._budget, self._retries = search, budget, retries

    def waiting(self, busy: Container[int]) -> Trial | None:
        """The first pending trial that is not among the busy ones."""
        pending = (t for t in self.file.trials if t.state == "pending" and t.number not in busy)
        return next(pending, None)

    def propose(self, initial: int, target: float = math.inf) -> Trial:
        """A new trial, stored before it trains; failed already if an exact oracle fails on it.

        Args:
            initial: How many trials are drawn before models are consulted.
            target: How many trials the study shall have.
        """
        trials = self.file.trials
        # As long as nothing has finished, configs are drawn, until it is plain that nothing works.
        if len(trials) >= max(initial, _HOPELESS) and self.file.count("failed") == len(trials):
            require_complete(trials, "front to improve")
        return self.enqueue(propose(self._search, trials, initial, self._budget), target)

    def enqueue(self, config: Config, target: float = math.inf) -> Trial:
        """A new trial of this config, stored and waiting; failed if an exact oracle fails on it."""
        number, epsilon = len(self.file), math.nan
        failures: tuple[str, ...] = ()
        try:
            epsilon = self._search.known.epsilon(config)
        except Exception as error:
            # Nothing that an exact oracle says is sensitive.
            if self.nothing_works(isinstance(error, MISTAKES), target, and_failed=1):
                raise StudyError(
                    f"An exact oracle (`privacy`, or the `function` of an objective) fails with "
                    f"{type(error).__name__}: {error} on {config}, and no trial has finished yet. "
                    "Correct it and go on; the study is as it was."
                ) from error
            failures = (type(error).__name__,)
        return self.file.add(
            Trial(
                number,
                config,
                tuple(self.seeds(number, 0, self.problem.replicates).values()),
                epsilon,
                state="failed" if failures else "pending",
                failures=failures,
            )
        )

    def add_complete(self, config: Config, measurements: Sequence[Measurement]) -> Trial:
        """A trial that was trained elsewhere; its seeds are for re-evaluations only."""
        number = len(self.file)
        epsilon = self._search.known.epsilon(config)
        return self.file.add(
            Trial(
                number,
                config,
                tuple(self.seeds(number, 0, len(measurements)).values()),
                epsilon,
                state="complete",
                measurements=tuple(measurements),
            )
        )

    def nothing_works(self, mistake: bool, target: float, *, and_failed: int = 0) -> bool:
        """Whether the study should end because nothing has finished and a mistake is plain.

        Args:
            mistake: Whether what was raised just now is an error of code.
            target: How many trials the study shall have.
            and_failed: How many trials have just failed, beside those that are stored.
        """
        if self.file.count("complete"):
            return False
        return mistake or self.file.count("failed") + and_failed >= min(_HOPELESS, target)

    def fail(
        self, tasks: Sequence[Task], failure: Failure, *, spared: bool = False, blamed: bool = True
    ) -> Trial:
        """Store a failed attempt of a trial, which has failed when no attempt is left.

        Args:
            tasks: What was attempted, all of one trial.
            failure: What may be known of it.
            spared: Whether the trial gets another attempt in any case.
            blamed: False if the trial was only in flight when something else broke.
        """

        def failed(trial: Trial) -> Trial:
            used_up = len(trial.failures) >= self._retries or not failure.retryable
            begun = sum(len(task.replicates) for task in tasks)
            return trial.failed(
                failure.error_type,
                trainings=begun if failure.begun else 0,
                blamed=blamed,
                is_last=blamed and used_up and not spared,
            )

        return self.file.change(tasks[0].trial, failed)

    def seeds(self, number: int, start: int, count: int) -> dict[int, int]:
        """Seeds of a trial below 2^31, by replicate."""
        return {
            replicate: int(
                np.random.SeedSequence(
                    self.file.seed, spawn_key=(number, replicate)
                ).generate_state(1)[0]
            )
            >> 1
            for replicate in range(start, start + count)
        }

    def tasks(self, trial: Trial, seeds: Mapping[int, int]) -> list[Task]:
        """One call for each replicate, or one for all if they are trained in one computation."""
        groups: list[tuple[int, ...]] = [(replicate,) for replicate in seeds]
        if self.problem.batched.replicates is not None:
            groups = [tuple(seeds)]
        return [
            Task(
                trial=trial.number,
                config=trial.config,
                replicates=group,
                seeds=tuple(seeds[replicate] for replicate in group),
            )
            for group in groups
        ]


class TrialLoop:
    """Trains trials until the study has enough of them.

    Args:
        queue: The study's trials.
        asked: Trials that somebody trains by hand.
        executor: Where to train.
        training_timeout: Seconds that one call of the oracle may take.
        target: How many trials the study shall have.
        initial: How many of them are drawn before models are consulted.
        batch_size: How many are trained at a time.
        asynchronous: Whether a new trial starts whenever one ends; or else when all have ended.
        may_start: Whether another training may begin now; those in flight are awaited anyway.
        on_end: Told of each trial that has ended.
    """

    def __init__(
        self,
        queue: TrialQueue,
        asked: set[int],
        executor: ExecutorLike | None,
        *,
        training_timeout: float | None,
        target: int,
        initial: int,
        batch_size: int,
        asynchronous: bool,
        may_start: Callable[[], bool],
        on_end: Callable[[Trial], object],
    ) -> None:
        self._queue, self._asked, self._file = queue, asked, queue.file
        self._target, self._initial = target, initial
        self._batch_size, self._asynchronous = batch_size, asynchronous
        self._may_start, self._on_end = may_start, on_end
        self._trainings = Trainings(
            queue.problem,
            executor,
            training_timeout=training_timeout,
        )
        #: Whether the budget cannot bear another trial.
        self.exhausted = False

    def run(self, *, progress: bool) -> None:
        """Train until there are enough trials, or none may start any more."""
        with (
            self._trainings,
            ProgressBar(total=self._target, disable=not progress, unit="trial") as bar,
        ):
            again: list[Task] = []
            while True:
                bar.n = len(self._file) - self._file.count("pending")
                bar.refresh()
                try:
                    self._start(again)
                    if not self._trainings.in_flight:
                        return
                    outcomes = self._trainings.next_outcomes()
                except ExecutorDiedError as death:
                    self._outlive(str(death))
                    again = []
                    continue
                # Everything is stored before anything else is risked.
                for task, outcome in outcomes:
                    self._store(task, outcome)
                self._tell_of({task.trial for task, _ in outcomes})
                failed = [(t, o) for t, o in outcomes if isinstance(o, Failure)]
                self._end_if_hopeless(failed)
                again = [task for task, _ in failed]

    def _busy(self) -> set[int]:
        """The trials in training here."""
        return {task.trial for task in self._trainings.in_flight}

    def _start(self, again: Sequence[Task]) -> None:
        """Begin what failed once more, and trials until the batch is full or none is left."""
        for task in again:
            trial = self._file[task.trial]
            if trial.state == "pending" and self._may_start():
                self._submit(trial, task.replicates)
        busy = self._busy()
        if busy and not self._asynchronous:
            return
        while len(busy) < self._batch_size and self._may_start():
            # Who may have killed an executor trains alone, so that it is found out.
            if any(self._file[number].suspect for number in busy):
                return
            following = self._next(busy)
            if following is None or (following.suspect and busy) or not self._may_start():
                return
            self._submit(following, following.missing)
            busy.add(following.number)

    def _next(self, busy: set[int]) -> Trial | None:
        waiting = self._queue.waiting({*busy, *self._asked})
        while waiting is None and len(self._file) < self._target and not self.exhausted:
            try:
                with self._trainings.leaving_cores_to_trainings():
                    trial = self._queue.propose(self._initial, self._target)
            except NothingAffordableError:
                # What is in flight was charged, and is awaited.
                self.exhausted = True
                return None
            if trial.state == "pending":
                return trial
            self._on_end(trial)
        return waiting

    def _submit(self, trial: Trial, replicates: Sequence[int]) -> None:
        for task in self._queue.tasks(trial, {r: trial.seeds[r] for r in replicates}):
            self._trainings.submit(task)

    def _store(self, task: Task, outcome: Outcome) -> None:
        if not isinstance(outcome, Failure):
            self._file.change(task.trial, partial(Trial.measured, measurements=outcome))
            return
        spared = outcome.mistake and self._queue.nothing_works(True, self._target)
        if self._queue.fail([task], outcome, spared=spared).state == "failed":
            self._trainings.discard(task.trial)

    def _tell_of(self, numbers: set[int]) -> None:
        """Tell of those of these trials that have ended."""
        for number in sorted(numbers - self._busy()):
            if self._file[number].state != "pending":
                self._on_end(self._file[number])

    def _end_if_hopeless(self, failed: Sequence[tuple[Task, Failure]]) -> None:
        """Raise if the failures of a study in which nothing has finished look like a mistake."""
        for task, failure in failed:
            if not self._queue.nothing_works(failure.mistake, self._target):
                continue
            arguments: list[Any] = [task.config, *task.seeds]
            if self._queue.problem.batched.replicates is not None:
                arguments = [task.config, list(task.seeds)]
            raise StudyError(
                f"The utility oracle failed with {failure.shown}\nNo trial has finished yet, so "
                "this looks like a mistake in the oracle. A message of it is not shown, for it may "
                f"quote records: call `problem.oracle({', '.join(map(repr, arguments))})` by hand "
                "to see it. Then call `run` again: what waits for another attempt gets it."
            )

    def _outlive(self, error_type: str) -> None:
        """An executor died. Blame the trial in flight if it was alone; go on if possible."""
        lost: dict[int, list[Task]] = {}
        for task in self._trainings.in_flight:
            if self._file[task.trial].state == "pending":
                lost.setdefault(task.trial, []).append(task)
        timed_out = self._trainings.overdue
        for number, tasks in lost.items():
            if timed_out == {number}:
                timeout = Failure(TrainingTimeout.__name__, retryable=False)
                self._queue.fail(tasks, timeout)
            else:
                self._queue.fail(tasks, Failure(error_type), blamed=len(lost) == 1)
        is_replaced = self._trainings.replace()
        self._tell_of(set(lost))
        if is_replaced:
            return
        raise ExecutorDiedError(
            f"The executor died ({error_type}) with trials {sorted(lost)} in flight. Everything "
            "that finished is stored and they stay queued: call `run` again with a new executor, "
            "or pass a callable that makes one, such as `lambda: ProcessPoolExecutor(4)`."
        ) from None


def train_again(
    queue: TrialQueue,
    trials: Sequence[Trial],
    replicates: int,
    *,
    executor: ExecutorLike | None,
    training_timeout: float | None,
    progress: bool,
) -> list[Trial]:
    """Trials with measurements from fresh seeds in place of their own.

    Args:
        queue: The study's trials; every result is stored as it comes.
        trials: What to train again.
        replicates: How often.
        executor: Where to train.
        training_timeout: Seconds that one call of the oracle may take.
        progress: Whether to show a progress bar.
    """
    fresh: dict[int, dict[int, Measurement]] = {trial.number: {} for trial in trials}
    errors: set[str] = set()
    try:
        with (
            Trainings(queue.problem, executor, training_timeout=training_timeout) as trainings,
            ProgressBar(
                total=len(trials) * replicates, disable=not progress, unit="training"
            ) as bar,
        ):
            for trial in trials:
                seeds = queue.seeds(trial.number, trial.next_replicate, replicates)
                for task in queue.tasks(trial, seeds):
                    trainings.submit(task)
            while trainings.in_flight:
                for task, outcome in trainings.next_outcomes():
                    bar.update(len(task.replicates))
                    if isinstance(outcome, Failure):
                        errors.add(outcome.error_type)
                        queue.fail([task], outcome, blamed=False)
                    else:
                        fresh[task.trial] |= outcome
                        queue.file.change(task.trial, partial(Trial.measured, measurements=outcome))
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
            fresh={},
        )
        for trial in trials
        if fresh[trial.number]
    ]
