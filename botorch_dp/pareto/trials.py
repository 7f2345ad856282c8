"""Trials: frozen records of what was tried and what came of it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from statistics import fmean
from typing import Literal

import numpy as np

from botorch_dp.pareto.problem import Measurement, PrivacyUtilityProblem
from botorch_dp.space import Config

State = Literal["pending", "complete", "failed"]


class StudyError(RuntimeError):
    """A study that cannot go on as it is; the message says what to do. Nothing stored is lost."""


class ExecutorDiedError(StudyError):
    """The executor broke down. Unfinished trials stay queued and are taken up by the next run."""


@dataclass(frozen=True)
class Trial:
    """One config, its seeds, and whatever is known about it so far.

    Args:
        number: Position in the study, from 0.
        config: The hyper-parameters.
        seeds: One for each replicate.
        epsilon: Exact; NaN if the privacy oracle failed.
        state: ``"pending"`` (proposed, perhaps training), ``"complete"`` or ``"failed"``.
        measurements: One for each replicate, None where it is missing. Sensitive.
        fresh: Measurements of later re-evaluations, which no proposal has seen. Sensitive.
        failures: Type names of the errors of failed attempts; never their messages, which may
            quote records.
        failed_trainings: How many trainings those attempts may have begun.
        suspect: Whether an executor died while this trial was in flight among others.
    """

    number: int
    config: Config
    seeds: tuple[int, ...]
    epsilon: float
    state: State = "pending"
    measurements: tuple[Measurement | None, ...] = field(default=(), repr=False)
    fresh: tuple[Measurement, ...] = field(default=(), repr=False)
    failures: tuple[str, ...] = ()
    failed_trainings: int = 0
    suspect: bool = False

    @property
    def finished(self) -> tuple[Measurement, ...]:
        """The measurements there are."""
        return tuple(m for m in self.measurements if m is not None)

    @property
    def missing(self) -> tuple[int, ...]:
        """The replicates that were not measured yet."""
        measured = dict(enumerate(self.measurements))
        return tuple(r for r in range(len(self.seeds)) if measured.get(r) is None)

    @property
    def missing_seeds(self) -> tuple[int, ...]:
        """Their seeds."""
        return tuple(self.seeds[replicate] for replicate in self.missing)

    @property
    def utilities(self) -> tuple[float, ...]:
        """The measured utilities. Sensitive."""
        return tuple(m.utility for m in self.finished)

    @property
    def error(self) -> float:
        """One minus the mean utility; NaN before any was measured. Sensitive."""
        return 1.0 - fmean(self.utilities) if self.utilities else math.nan

    @property
    def seconds(self) -> float:
        """Training time of all replicates together."""
        return sum(m.seconds for m in self.finished)

    @property
    def num_trainings(self) -> int:
        """How often the utility oracle was asked, re-evaluations and failed attempts included."""
        return len(self.finished) + len(self.fresh) + self.failed_trainings


def outcome(problem: PrivacyUtilityProblem, trial: Trial) -> tuple[float, ...]:
    """The mean objective values of a complete trial: (epsilon, error, further objectives...)."""
    measured = iter(zip(*(m.objectives for m in trial.finished), strict=True))
    further = (
        fmean(next(measured)) if o.function is None else o.known(trial.config)
        for o in problem.objectives
    )
    return (trial.epsilon, trial.error, *further)


def derived_seeds(study_seed: int, number: int, start: int, count: int) -> tuple[int, ...]:
    """Seeds of the replicates ``start, ..., start + count - 1`` of a trial, below 2^31."""
    return tuple(
        int(np.random.SeedSequence(study_seed, spawn_key=(number, replicate)).generate_state(1)[0])
        >> 1
        for replicate in range(start, start + count)
    )
