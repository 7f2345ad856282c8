"""The loop around the executor: keep it busy, store what comes back, survive what goes wrong."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace

from tqdm.auto import tqdm

from botorch_dp.pareto.execution import Result, Task, Workers
from botorch_dp.pareto.problem import Measurement
from botorch_dp.pareto.registry import Registry
from botorch_dp.pareto.trials import ExecutorDiedError, StudyError, Trial


class TrialLoop:
    """Trains trials until the study has enough of them.

    Args:
        registry: The study's books.
        workers: Where to train.
        target: How many trials the study shall have.
        initial: How many of them are drawn before models are consulted.
        batch_size: How many are trained at a time.
        asynchronous: Whether to start a new one whenever one ends.
    """

    def __init__(
        self,
        registry: Registry,
        workers: Workers,
        *,
        target: int,
        initial: int,
        batch_size: int,
        asynchronous: bool,
    ) -> None:
        self._registry = registry
        self._workers = workers
        self._target = target
        self._initial = initial
        self._batch_size = batch_size
        self._asynchronous = asynchronous
        # A trial that brought down an executor, alone or in company, is put to the test alone.
        self._alone = False
        self._taken: set[int] = set()

    def run(self, *, progress: bool) -> None:
        """Train; returns when nothing is left to do."""
        try:
            self._run(progress)
        finally:
            # However this ended, nobody trains these trials now.
            for number in self._taken:
                self._registry.release(number)

    def _run(self, progress: bool) -> None:
        with tqdm(total=self._target, disable=not progress, unit="trial") as bar:
            self._show(bar)
            retries: list[Task] = []
            while True:
                try:
                    for task in retries:
                        self._workers.submit(task)
                    self._fill()
                    if not self._workers.in_flight:
                        return
                    results = self._workers.next_results()
                except ExecutorDiedError as death:
                    self._bury(str(death))
                    results = []
                # Everything is stored before anything else is risked.
                failed = [result.task for result in results if not self._stored(result)]
                retries = [task for task in failed if self._is_pending(task)]
                self._show(bar)

    def _show(self, bar: tqdm) -> None:
        bar.n = sum(trial.state != "pending" for trial in self._registry.trials)
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
            self._alone = trial.suspect
            for task in self._tasks(trial):
                self._workers.submit(task)
            active.add(trial.number)

    def _next(self, *, may_be_suspect: bool) -> Trial | None:
        waiting = self._registry.take_waiting()
        if waiting is not None:
            if waiting.suspect and not may_be_suspect:
                self._registry.release(waiting.number)
                return None
            return waiting
        while len(self._registry.trials) < self._target:
            with self._workers.leaving_cores_to_trainings():
                trial = self._registry.propose(self._initial)
            if trial.state == "pending":
                return trial
        return None

    def _tasks(self, trial: Trial) -> list[Task]:
        """One call for each missing replicate, or one for all if they are trained together."""
        together = self._registry.problem.replicates_together
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

    def _is_pending(self, task: Task) -> bool:
        return self._registry.trial(task.trial).state == "pending"

    def _stored(self, result: Result) -> bool:
        """Store a result; returns whether it is one, and not an error."""
        task = result.task
        if result.measurements is not None:
            measured = dict(zip(task.replicates, result.measurements, strict=True))
            self._registry.record(task.trial, measured)
            return True
        assert result.error_type is not None
        trial = self._registry.record_failure(
            task.trial,
            result.error_type,
            trainings=len(task.replicates),
            retryable=result.retryable,
        )
        if trial.state == "failed":
            self._workers.discard(task.trial)
        return False

    def _bury(self, error_type: str) -> None:
        """An executor died. Blame the trial in flight if it was alone; go on if possible."""
        lost: dict[int, int] = {}
        for task in self._workers.in_flight:
            lost[task.trial] = lost.get(task.trial, 0) + len(task.replicates)
        for number, trainings in lost.items():
            if len(lost) == 1:
                self._registry.record_failure(number, error_type, trainings=trainings)
            else:
                self._registry.record_suspicion(number, error_type, trainings=trainings)
        # Also those that waited for another attempt: all are taken up again from the books.
        for number in self._taken:
            self._registry.release(number)
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
    registry: Registry,
    workers: Workers,
    *,
    trials: Sequence[Trial],
    replicates: int,
    progress: bool,
) -> list[Trial]:
    """Complete trials with measurements from fresh seeds in place of their own.

    Args:
        registry: The study's books; every result is stored as it comes.
        workers: Where to train.
        trials: What to train again.
        replicates: How often.
        progress: Whether to show a progress bar.
    """
    fresh: dict[int, dict[int, Measurement]] = {trial.number: {} for trial in trials}
    errors: set[str] = set()
    try:
        _train_fresh(registry, workers, fresh, errors, replicates, progress)
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
    registry: Registry,
    workers: Workers,
    fresh: dict[int, dict[int, Measurement]],
    errors: set[str],
    replicates: int,
    progress: bool,
) -> None:
    """Train the trials that ``fresh`` names; add measurements to it, and types to ``errors``."""
    together = registry.problem.replicates_together
    for number in fresh:
        seeds = registry.fresh_seeds(number, replicates)
        groups = [tuple(seeds)] if together else [(replicate,) for replicate in seeds]
        for group in groups:
            group_seeds = tuple(seeds[replicate] for replicate in group)
            workers.submit(Task(number, registry.trial(number).config, group, group_seeds))
    with tqdm(total=len(fresh) * replicates, disable=not progress, unit="training") as bar:
        while workers.in_flight:
            for result in workers.next_results():
                number, group = result.task.trial, result.task.replicates
                bar.update(len(group))
                if result.measurements is not None:
                    measured = dict(zip(group, result.measurements, strict=True))
                    registry.record_fresh(number, measured)
                    fresh[number] |= measured
                    continue
                assert result.error_type is not None
                errors.add(result.error_type)
                registry.record_fresh_failure(number, result.error_type, trainings=len(group))
