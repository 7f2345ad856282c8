"""One call that tunes, trains and publishes: the model, its configuration and its score.

A :class:`~.private_selection.PrivateSelection` whose trainings are those of a
:class:`~botorch_dp.training.DPTrainer`, so that nothing about them rests on the caller's word.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from botorch_dp._checks import check_choice, did_you_mean
from botorch_dp.errors import PrivacyError
from botorch_dp.groups import Groups
from botorch_dp.pareto import PrivacyUtilityProblem
from botorch_dp.privacy import DPSGD, PrivacyBudget, PrivacyLedger, PrivacyUnit, Release
from botorch_dp.privacy.receipt_document import Origin
from botorch_dp.privacy.runs import fingerprint
from botorch_dp.space import Config, SearchSpace
from botorch_dp.training import DPTrainer, TrainingSettings, accuracy
from botorch_dp.training.plan import FIXED_BEFOREHAND, LARGEST_PUBLISHED_BATCH, TrainingPlan
from botorch_dp.training.records import synthetic_records
from botorch_dp.tuning.private_selection import (
    PrivateSelection,
    ScoredOn,
    SelectionResult,
    checked_budget,
)

#: Settings that follow from the budget, and those that may be tuned.
_FOLLOWING = {"noise_multiplier", "target_epsilon", "delta"}
_TUNED = TrainingSettings.__annotations__.keys() - _FOLLOWING
#: What the rule of a training with default settings chooses.
_CHOSEN = ("optimizer", "learning_rate", "clip_norm", "batch_size", "epochs")


class FitResult(SelectionResult[nn.Module]):
    """What a fit publishes: as :class:`~.private_selection.SelectionResult`, with a model."""

    artifact: Release[nn.Module]

    @property
    def model(self) -> Release[nn.Module]:
        """The released model, in evaluation mode; the untrained one if nothing came out."""
        return self.artifact


@dataclass(frozen=True)
class ScoredTraining:
    """The training of a trainer: from a configuration and a noise multiplier to a scored model.

    Args:
        trainer: Trains.
        scored_on: Which records score.
        fixed: Settings of all trainings.
        delta: Where the trainer would evaluate epsilon.
        groups: Whose the records are that score, if people are protected.
        raises: Whether an error in scoring is raised; otherwise the score is no number.
    """

    trainer: DPTrainer
    scored_on: ScoredOn
    fixed: Mapping[str, Any]
    delta: float
    groups: Groups | None = None
    raises: bool = False

    def __call__(
        self, config: Config, noise_multiplier: float, *, seed: int | None = None
    ) -> tuple[dict[str, Tensor], float]:
        """The weights of a model, and its score without noise."""
        own = {"noise_multiplier": noise_multiplier, "delta": self.delta}
        settings: Any = {**self.fixed, **config, **own}
        # The trainer would measure what nobody asks for here, and a test record might make it fail.
        blind = self.trainer.without_tests()
        model = blind.fit(**settings, seed=seed, publish=seed is None, on_interrupt="raise").model
        try:
            score = self.score(model)
        except Exception:
            if self.raises:
                raise
            score = math.nan
        return {name: value.cpu() for name, value in model.state_dict().items()}, score

    def score(self, model: nn.Module) -> float:
        """The trainer's metric on public records; on others, the mean share that is right."""
        setup, training = self.trainer.setup, self.scored_on == "training"
        if self.scored_on == "public":
            return setup.utility(model)
        right = setup.correct_alone(model, on_training_records=training)
        if self.groups is None:
            return float(right.sum()) / right.numel()
        shares = self.groups.means(right.cpu().double().reshape(len(right), -1).mean(1))
        return math.fsum(shares.tolist()) / len(shares)


class PrivateFit(PrivateSelection[Any]):
    r"""Tune and train on sensitive records, and publish the model, all for one epsilon.

    With a space, ``run()`` trains a secret random number K of its configurations with DP-SGD, each
    with as much noise as it needs to reach one common level of privacy, and publishes the model
    with the best score, its configuration and the score [Liu2019, Papernot2022]. Without a space
    nothing is tuned: one training has the whole budget, with settings that follow from public
    numbers, as ``DPTrainer.fit(target_epsilon=...)`` has them. Then pass the root mean square norm
    of a record, ``fixed={"feature_norm": ...}``, such as that of
    :func:`~botorch_dp.training.private_norm`.

    Guarantee: that of :class:`~.private_selection.PrivateSelection`, whose condition on ``train``
    the trainer keeps by itself. Status conditional, as for
    :class:`~botorch_dp.training.DPTrainer`.

    Args:
        trainer_or_problem: A :class:`~botorch_dp.training.DPTrainer`, or a problem that has one.
        space: What may be tried: settings of the trainer but the noise, which is solved for. If
            None, the problem's space; if there is none, nothing is tuned.
        budget: As for :class:`~.private_selection.PrivateSelection`; likewise ``trials`` and
            ``unsafe_seed``.
        test_records: ``"sensitive"``: the trainer's test records are protected, too;
            ``"public"``: they are public, and the trainer's own metric scores;
            ``"training"``: the training records score, with noise.
        fixed: Settings of the trainer that are the same in all trainings, such as
            ``{"epochs": 10}``.
        test_groups: Whose each of the sensitive test records is; required where the trainer has
            ``groups``.

    Example:
        >>> fit = PrivateFit(trainer, space, budget=PrivacyBudget(1.0, 1e-5), trials=20)
        >>> print(fit.plan())
        >>> result = fit.run(checkpoint="model.fit")
        >>> result.model.value, result.config.value, result.score.value, result.guarantee
    """

    _what = "a private fit"
    _result_type = FitResult
    _apart: tuple[str, ...] = ()

    def __init__(
        self,
        trainer_or_problem: DPTrainer | PrivacyUtilityProblem,
        space: SearchSpace | None = None,
        *,
        budget: PrivacyBudget,
        trials: Any = 20,
        test_records: ScoredOn = "sensitive",
        fixed: Mapping[str, Any] | None = None,
        test_groups: Any = None,
        unsafe_seed: int | None = None,
    ) -> None:
        self.trainer, space = _trainer_and_space(trainer_or_problem, space)
        setup = self.trainer.setup
        self.fixed = _checked_fixed(fixed)
        checked_budget(budget)
        # A delta that is warned of would be so once for each of a secret number of trainings.
        self._delta = min(budget.delta, 0.5 / setup.num_units)
        if setup.unpublishable:
            raise PrivacyError(f"No model can be published. {setup.unpublishable}")
        if self.trainer.released is not None:
            raise PrivacyError(
                "The trainer has something released beside its models, which `budget` does not "
                "cover here. Pass the trainer without it, and a budget that leaves room for it."
            )
        if space is not None:
            self._check_space(space)
        elif not self.trainer.takes_defaults(self.fixed):
            raise ValueError(
                "Without a `space` nothing is tuned, and the settings follow from public numbers: "
                "leave out the trainer's `optimizer`, and `learning_rate` and `clip_norm` in "
                "`fixed`; or give a `space`."
            )
        check_choice("test_records", test_records, ("sensitive", "public", "training"))
        if test_records != "public" and self.trainer.metric is not accuracy:
            raise PrivacyError(
                "`test_records` that are sensitive need a score of known sensitivity, and the "
                "sensitivity of the trainer's own metric is not known. Use the trainer's "
                "default metric, or public test records."
            )
        wanted = test_records == "sensitive" and setup.groups is not None
        if (test_groups is not None) != wanted:
            raise PrivacyError(
                "`test_groups` say whose the sensitive test records are, and the trainer's "
                "`groups` whose the training records are: pass both or none."
            )
        groups = setup.groups
        if wanted:
            groups = Groups(test_groups, setup.num_tests, setup.per_group)
            self._apart = ("no person has both training records and test records",)
            self._test_unit = PrivacyUnit.of_person(groups.per_group)
        tests = setup.num_tests if groups is None else len(groups)
        scored = {"sensitive": tests, "training": setup.num_units}
        self._own = ScoredTraining(self.trainer, test_records, self.fixed, self._delta, groups)
        super().__init__(
            self._own,
            {} if space is None else space,
            mechanism=self._dp_sgd,
            budget=budget,
            trials=trials,
            scored_on=test_records,
            num_scored=scored.get(test_records),
            rehearsal=self._rehearse_training,
            unsafe_seed=unsafe_seed,
        )

    def _check_space(self, space: SearchSpace) -> None:
        names = set(space.parameters)
        if names & _FOLLOWING:
            raise ValueError(
                f"`space` must not hold {sorted(names & _FOLLOWING)}: the noise follows from the "
                "budget."
            )
        if names & self.fixed.keys():
            raise ValueError(
                f"`fixed` and `space` both have {sorted(names & self.fixed.keys())}: choose."
            )
        for config in space.sample(8, seed=0):
            try:
                self._plan_of(config).check_publishable()
            except TypeError as error:
                raise ValueError(
                    "`space` must name the settings of a training, as in SearchSpace("
                    "learning_rate=Real(...), clip_norm=Real(...), batch_size=Integer(...), "
                    f"epochs=Integer(...)): {error}"
                ) from None
        setup = self.trainer.setup
        limit = min(setup.num_units, LARGEST_PUBLISHED_BATCH // (setup.per_group or 1))
        batches: list[Any] = [0]
        if "batch_size" in names:
            batches = list(space.parameters["batch_size"].levels(2))
        if max(batches) > limit:
            raise ValueError(f"`space` has batches of {max(batches)}, more than {limit}.")

    if TYPE_CHECKING:  # as it is inherited, with a result of its own

        def run(
            self,
            *,
            executor: Executor | None = None,
            checkpoint: str | os.PathLike[str] | None = None,
            ledger: PrivacyLedger | None = None,
            label: str = "",
        ) -> FitResult:
            """See :meth:`.PrivateSelection.run`."""

    # What a selection asks for.

    def _plan_of(self, config: Mapping[str, Any]) -> TrainingPlan:
        """A training of a configuration, but for its noise."""
        settings: Any = {**self.fixed, **config, "noise_multiplier": 1.0}
        return self.trainer.plan(**settings, delta=self._delta)

    @cached_property
    def _typical_plan(self) -> TrainingPlan:
        return self._plan_of(self.typical_config)

    def _parameters(self, config: Mapping[str, Any]) -> dict[str, Any]:
        tuned = () if self.space is None else self.space.parameters
        own = {name: config[name] for name in tuned if name in config}
        plan = replace(self._plan_of(own), noise_multiplier=config["noise_multiplier"])
        return plan.parameters(plan.steps)

    def _dp_sgd(self, config: Mapping[str, Any]) -> DPSGD:
        plan = self._plan_of(config)
        return DPSGD(
            batch_size=plan.batch_size,
            num_records=plan.num_records,
            steps=plan.steps,
            sampling=plan.sampling,
            relation=plan.relation,
        )

    def _training_guarantee(self) -> tuple[str, PrivacyUnit, tuple[str, ...]]:
        trained = self._typical_plan.guarantee
        conditions = tuple(c for c in trained.unit.conditions if c != FIXED_BEFOREHAND)
        unit = replace(trained.unit, conditions=(*conditions, *self._apart))
        return trained.mechanism, unit, trained.assumptions

    @property
    def _origin(self) -> Origin:
        return super()._origin if self._selects else self._typical_plan.origin

    def _test_conditions(self) -> tuple[str, ...]:
        return (*self.trainer.setup.conditions, *self._apart)

    def _stored(self, artifact: Any) -> Any:
        return artifact  # tensors, which a checkpoint stores as they are

    def _loaded(self, kept: Any) -> nn.Module:
        return self.trainer.setup.untrained(kept)

    def _published(self, best: dict[str, Any] | None) -> dict[str, Any] | None:
        shown = super()._published(best)
        if shown is None:
            return None
        config = {**self.fixed, **shown["config"]}
        if not self._selects:
            config |= {name: getattr(self._typical_plan, name) for name in _CHOSEN}
        return {**shown, "config": config}

    def _reason(self) -> str:
        if self._selects:
            return super()._reason()
        return "One training with default settings, which follow from public numbers."

    def _settings(self, with_data: bool) -> dict[str, Any]:
        setup, data = self.trainer.setup, None
        if with_data:
            data = setup.fingerprint(tests=True)
            if self._own.groups is not None:
                data = fingerprint(data, torch.from_numpy(self._own.groups.owners))
        trainer = self._typical_plan.to_dict()
        return {**super()._settings(with_data), "trainer": trainer, "data": data}

    def _rehearse_training(
        self, config: Config, noise_multiplier: float, *, seed: int | None = None
    ) -> tuple[dict[str, Tensor], float]:
        """A trial run on a few synthetic records, which raises what a training would raise."""
        plan = self._plan_of(config)
        size = min(plan.num_records, 2 * plan.batch_size)
        generator = torch.Generator().manual_seed(0)
        trainer = self.trainer.on(synthetic_records(self.trainer.setup.form, size, generator))
        settings = {**config, "batch_size": min(plan.batch_size, size), "epochs": 1}
        training = replace(self._own, trainer=trainer, raises=True, groups=None)
        return training(settings, noise_multiplier, seed=seed)


# --- What was asked for. ---


def _trainer_and_space(
    given: DPTrainer | PrivacyUtilityProblem, space: SearchSpace | None
) -> tuple[DPTrainer, SearchSpace | None]:
    if isinstance(given, DPTrainer):
        return given, space
    if given.training is None or given.training.trainer is None:
        raise PrivacyError(
            f"The problem {given.name!r} measures utilities and has no `training.trainer` that "
            "could publish a model: pass a DPTrainer, or a problem with one."
        )
    if space is None:
        tuned = {n: p for n, p in given.space.parameters.items() if n in _TUNED}
        space = SearchSpace(constraints=given.space.constraints, products=(), **tuned)
    return given.training.trainer(), space


def _checked_fixed(fixed: Mapping[str, Any] | None) -> dict[str, Any]:
    settings = dict(fixed or {})
    for name in settings.keys() - _TUNED:
        reason = "the noise follows from the budget"
        if name not in _FOLLOWING:
            reason = f"a training has no such setting.{did_you_mean(name, _TUNED)}"
        raise ValueError(f"`fixed` must not hold {name!r}: {reason}")
    return settings
