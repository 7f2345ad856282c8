"""The books of a study: which trials wait, which are in training, what came of them."""

from __future__ import annotations

import math
from collections.abc import Mapping

from botorch_dp.pareto.models import require_complete
from botorch_dp.pareto.problem import Measurement, PrivacyUtilityProblem
from botorch_dp.pareto.proposals import Proposer
from botorch_dp.pareto.storage import StudyStorage
from botorch_dp.pareto.trials import Trial, derived_seeds
from botorch_dp.space import Config


class Registry:
    """Hands out trials and records results; all it knows is in the storage.

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
        self._storage = storage
        self._proposer = proposer
        self._retries = retries
        # Pending trials that somebody trains now. All others wait: a new process starts with none,
        # so it takes up what a crash left behind.
        self._taken: set[int] = set()

    @property
    def trials(self) -> list[Trial]:
        """All trials by number."""
        return self._storage.trials()

    def take_waiting(self) -> Trial | None:
        """The first pending trial that nobody trains, now taken."""
        for trial in self.trials:
            if trial.state == "pending" and trial.number not in self._taken:
                self._taken.add(trial.number)
                return trial
        return None

    def release(self, number: int) -> None:
        """Give back a trial that will not be reported."""
        self._taken.discard(number)

    def propose(self, initial: int) -> Trial:
        """A new trial, stored and taken; failed already if an exact oracle fails on its config."""
        trials = self.trials
        if len(trials) >= initial and all(trial.state == "failed" for trial in trials):
            require_complete(trials, "front to improve")
        number = len(trials)
        config = self._proposer.propose(trials, number, initial)
        epsilon, error_type = self._exact_oracles(config)
        self._storage.add_trial(
            number,
            config,
            derived_seeds(self._storage.seed, number, 0, self.problem.replicates),
            epsilon,
            error_type=error_type,
        )
        if error_type is None:
            self._taken.add(number)
        return self.trial(number)

    def trial(self, number: int) -> Trial:
        """The trial as it is now."""
        return self._storage.trial(number)

    def record(self, number: int, measurements: Mapping[int, Measurement]) -> Trial:
        """Store finished replicates; the trial is complete when none is missing."""
        trial = self.trial(number)
        is_last = trial.state == "pending" and set(trial.missing) <= set(measurements)
        self._storage.add_measurements(number, measurements, state="complete" if is_last else None)
        if is_last:
            self._taken.discard(number)
        return self.trial(number)

    def record_failure(
        self, number: int, error_type: str, *, trainings: int, retryable: bool = True
    ) -> Trial:
        """Store a failed attempt; the trial has failed when no attempt is left."""
        attempts = len(self.trial(number).failures) + 1
        is_last = not retryable or attempts > self._retries
        self._storage.add_failure(
            number, error_type, trainings=trainings, state="failed" if is_last else None
        )
        if is_last:
            self._taken.discard(number)
        return self.trial(number)

    def record_suspicion(self, number: int, error_type: str, *, trainings: int) -> None:
        """Store that an executor died while this trial and others were in flight."""
        self._storage.add_failure(number, error_type, trainings=trainings, blamed=False)

    def fresh_seeds(self, number: int, replicates: int) -> dict[int, int]:
        """Seeds that the trial has not used yet, by replicate."""
        start = self._storage.next_replicate(number)
        seeds = derived_seeds(self._storage.seed, number, start, replicates)
        return dict(enumerate(seeds, start=start))

    def record_fresh(self, number: int, measurements: Mapping[int, Measurement]) -> None:
        """Store re-evaluations of a complete trial."""
        self._storage.add_measurements(number, measurements)

    def record_fresh_failure(self, number: int, error_type: str, *, trainings: int) -> None:
        """Store that a re-evaluation of a complete trial failed."""
        self._storage.add_failure(number, error_type, trainings=trainings, blamed=False)

    def _exact_oracles(self, config: Config) -> tuple[float, str | None]:
        """Epsilon, and the type of the error if an exact oracle fails on the config."""
        try:
            epsilon = self.problem.epsilon(config)
            for objective in self.problem.objectives:
                if objective.function is not None:
                    objective.known(config)
        except Exception as error:
            return math.nan, type(error).__name__
        return epsilon, None
