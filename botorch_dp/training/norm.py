"""Trainings whose records' norm is found privately, within their own epsilon."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from botorch_dp.privacy import PrivacyLedger, PrivacyUnit, compose
from botorch_dp.privacy.ledger import make_release
from botorch_dp.training.plan import DELTA, TrainingPlan, TrainingSettings, check_seed
from botorch_dp.training.ranges import RangesPlan, private_norm

if TYPE_CHECKING:
    from botorch_dp.training.trainer import DPTrainer, Trained


def plan_with_norm(trainer: DPTrainer, settings: TrainingSettings) -> TrainingPlan:
    """The plan of :func:`fit_with_norm`, for a norm that is not known yet."""
    other, ranges = _beside_norm(trainer, settings)
    assumed: TrainingSettings = {**settings}
    assumed["feature_norm"] = math.sqrt(other.setup.num_features)
    plan = other.plan(**assumed)
    found = "It is the norm of a record, which the step scale and the clipping norm will follow."
    return replace(plan, notes=(f"{ranges} {found}", *plan.notes))


def _beside_norm(trainer: DPTrainer, settings: TrainingSettings) -> tuple[DPTrainer, RangesPlan]:
    """The trainer beside the release of the records' norm, and what that costs."""
    setup = trainer.setup
    if setup.table is None:
        raise ValueError(
            '`feature_norm="private"` is for tables in one tensor of floats. Images and token '
            "ids need none: their values are bounded in public. Leave it out for token ids; "
            "for pixels between 0 and 1 pass a third of the root of their number."
        )
    if "target_epsilon" not in settings or not trainer.takes_defaults(settings):
        raise ValueError(
            '`feature_norm="private"` is found within `target_epsilon`, for a training with '
            "default settings: give it, without `learning_rate` and `clip_norm`; or find the "
            "norm by itself with `private_norm`."
        )
    epsilon, delta = settings["target_epsilon"], settings.get("delta", DELTA)
    unit = PrivacyUnit(relation=trainer.relation)
    if setup.per_group is not None:
        unit = PrivacyUnit.of_person(setup.per_group, trainer.relation)
    ranges = RangesPlan.within(setup.num_units, 1, epsilon, delta, unit=unit)
    both = [each for each in (trainer.released, ranges.guarantee) if each is not None]
    return trainer.beside(compose(*both)), ranges


def fit_with_norm(
    trainer: DPTrainer,
    settings: TrainingSettings,
    seed: int | None,
    publish: bool,
    how: Any,
    ledger: PrivacyLedger | None,
    label: str,
) -> Trained:
    """Find the norm of the records and train, for one charge."""
    plan = trainer.plan(**settings)
    check_seed(plan, seed, publish=publish, ledger=ledger)
    other, ranges = _beside_norm(trainer, settings)

    def train() -> Trained:
        assert trainer.setup.table is not None  # as it was checked
        rows, groups = trainer.setup.table, trainer.setup.groups
        if groups is not None:
            rows = groups.means(rows.double().norm(dim=1))
        unit = ranges.guarantee.unit
        norm = private_norm(rows, mu=ranges.mu, unit=unit, unsafe_seed=seed)
        known: TrainingSettings = {**settings, "feature_norm": norm.value}
        trained = other.fit(seed=seed, publish=publish, **how, **known)
        assert trained.plan.guarantee.losses == plan.guarantee.losses  # as it was charged
        return trained

    delta = None if ledger is None or ledger.budget.renyi else plan.delta
    return make_release(plan.guarantee, train, ledger=ledger, label=label, delta=delta).value
