"""A trainer's trainings as a privacy-utility problem: epsilon and utility by configuration."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from botorch_dp.pareto import Batched, PrivacyUtilityProblem, TrainingPrivacy
from botorch_dp.privacy import Guarantee, NeighboringRelation, PrivacyUnit, dp_sgd_epsilons
from botorch_dp.space import Config, SearchSpace
from botorch_dp.training.plan import DELTA, FIXED_BEFOREHAND, TrainingPlan, TrainingSettings

if TYPE_CHECKING:
    from botorch_dp.training.trainer import DPTrainer

#: In place of `FIXED_BEFOREHAND`: a study chooses configurations by earlier results, and counts it.
_SHARED_BEFOREHAND = (
    "the space, the settings that all trainings share and the weights that these begin with were "
    "fixed without looking at the records"
)


@dataclass(frozen=True)
class TrainingOracles:
    """Privacy and utility of the trainings of one trainer, by configuration.

    Plain data, so that it travels to worker processes.

    Args:
        trainer: Returns the trainer; a function that loads it where it is needed is cheaper to send
            to other processes than a trainer with its records.
        settings: From a configuration of the space to the settings of a training.
        publish: Whether noise comes from the operating system, whatever the seeds.
    """

    trainer: Callable[[], DPTrainer]
    settings: Callable[[Config], TrainingSettings]
    publish: bool = False

    def plan(self, config: Config) -> TrainingPlan:
        """The public parameters of one training."""
        return self.trainer().plan(**self.settings(config))

    def epsilon(self, config: Config) -> float:
        """The epsilon of publishing the model, at the delta of the settings."""
        return self.plan(config).epsilon

    def guarantee(self, config: Config) -> Guarantee:
        """The guarantee of publishing the model; a study counts the choice of the config."""
        one = self.plan(config).guarantee
        stated = (_SHARED_BEFOREHAND if c == FIXED_BEFOREHAND else c for c in one.unit.conditions)
        return replace(one, unit=replace(one.unit, conditions=tuple(stated)))

    def epsilons(self, configs: Sequence[Config]) -> list[float]:
        """Upper bounds on :meth:`epsilon` for many configurations at once."""
        chosen = [self.settings(config) for config in configs]
        if any("target_epsilon" in settings for settings in chosen):
            return [settings["target_epsilon"] for settings in chosen]
        trainer = self.trainer()
        num_records = trainer.setup.num_units  # or people
        whole = all({"batch_size", "epochs"} <= settings.keys() for settings in chosen)
        if not whole or trainer.released is not None:
            return [self.epsilon(config) for config in configs]
        bounds = dp_sgd_epsilons(
            [settings["noise_multiplier"] for settings in chosen],
            [settings["batch_size"] for settings in chosen],
            [s["epochs"] * (num_records // s["batch_size"]) for s in chosen],
            num_records=num_records,
            delta=chosen[0].get("delta", DELTA) if chosen else DELTA,
            sampling=trainer.sampling,
            relation=trainer.relation,
        )
        return [float(bound) for bound in bounds]

    def utilities(self, config: Config, seeds: Sequence[int]) -> list[Any]:
        """Utilities of one model for each seed, trained together."""
        trainer, settings = self.trainer(), self.settings(config)
        if self.publish:
            return [trainer.fit(publish=True, **settings).accuracy for _ in seeds]
        return [trained.accuracy for trained in trainer.replicates(list(seeds), **settings)]


def oracles_of(
    trainer: DPTrainer,
    space: SearchSpace,
    settings: TrainingSettings,
    *,
    publish: bool,
) -> TrainingOracles:
    """Privacy and utility of a trainer at hand; the space has some settings, the rest is fixed."""
    names = set(space.parameters)
    wrong = sorted(names - set(TrainingSettings.__annotations__) | names & {"delta"})
    if wrong or names & settings.keys():
        raise ValueError(
            f"`space` must hold settings of a training, got {sorted(names)}: "
            f"{wrong or sorted(names & settings.keys())} cannot be among them"
            f"{'' if wrong else ', because they are given as fixed settings too'}."
        )
    oracles = TrainingOracles(partial(_itself, trainer), partial(_with, settings), publish)
    oracles.plan(space.sample(1, seed=0)[0])  # what is missing or wrong is said here
    return oracles


def problem_of(
    oracles: TrainingOracles,
    space: SearchSpace,
    *,
    delta: float = DELTA,
    relation: NeighboringRelation = NeighboringRelation.REPLACE_ONE,
    replicates: int = 1,
    ref_point: tuple[float, float] = (10.0, 1.0),
    name: str,
    publisher: Callable[[], DPTrainer] | None = None,
    per_group: int | None = None,
) -> PrivacyUtilityProblem:
    """The problem of these trainings, for ``DPareto``.

    Args:
        oracles: See :class:`TrainingOracles`.
        space: What their ``settings`` take.
        delta: Of all trainings.
        relation: The trainer's.
        replicates: See :meth:`DPTrainer.problem`, also for what is not described here.
        ref_point: The (epsilon, error) that counts as worthless.
        name: How a stored study recognizes the problem.
        publisher: Returns the trainer that publishes models, if that is another one.
        per_group: The trainer's, if people are protected.
    """
    unit = PrivacyUnit("one record of the training data", relation)
    if per_group is not None:
        unit = PrivacyUnit.of_person(per_group, relation)
    return PrivacyUtilityProblem(
        space,
        privacy=oracles.epsilon,
        training=TrainingPrivacy(
            delta,
            unit=unit,
            guarantee=oracles.guarantee,
            secret_noise=oracles.publish,
            trainer=publisher or oracles.trainer,
        ),
        replicates=replicates,
        ref_point=ref_point,
        name=name,
        batched=Batched(replicates=oracles.utilities, epsilons=oracles.epsilons),
    )


def _itself(trainer: DPTrainer) -> DPTrainer:
    return trainer


def _with(fixed: TrainingSettings, config: Config) -> Any:
    return {**fixed, **config}
