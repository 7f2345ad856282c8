"""Plans of trainings: their settings, noise, steps and guarantee.

The *batch* of a step is the set of records whose clipped gradients are added up. How batches are
drawn, how far one record moves their sum, and which privacy loss that amounts to is decided here
and nowhere else in training.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any, Literal, TypedDict, get_args

from torch import Tensor

from botorch_dp._checks import (
    check_choice,
    check_count,
    check_delta,
    check_integer,
    check_nonnegative,
    check_positive,
    did_you_mean,
)
from botorch_dp.errors import PrivacyError
from botorch_dp.privacy import (
    DPSGD,
    Guarantee,
    NeighboringRelation,
    PrivacyLedger,
    PrivacyUnit,
    compose,
)
from botorch_dp.privacy.accounting import Sampling
from botorch_dp.privacy.losses import PrivacyLoss
from botorch_dp.privacy.rounding import rounded_up
from botorch_dp.training.randomness import Randomness

Clipping = Literal["flat", "normalized"]
REPLACE_ONE = NeighboringRelation.REPLACE_ONE

#: Below this, squares of single-precision gradients vanish and a norm could be underestimated.
SMALLEST_CLIP_NORM = 1e-12
#: Far above this, sums of clipped gradients overflow, which noise does not hide.
LARGEST_CLIP_NORM = 1e150
#: Limits within which :class:`.randomness.SystemRandomness` adds noise without rounding, and
#: within which its slack covers the rounding of the sum.
SMALLEST_PUBLISHED_NOISE = 1e-3
LARGEST_PUBLISHED_BATCH = 80_000

#: Rules for steps that have a name, and what the mechanism is called with them.
OPTIMIZERS = {
    "sgd": "DP-SGD",
    "adam": "DP-Adam",
    "scale_free": "scale-free DP-SGD",
}
#: What normalized gradients are divided by beside their norm, as in [Bu2023].
STABILITY = 0.01
#: Where epsilon is evaluated unless given.
DELTA = 1e-5
_BATCHES = {
    "without_replacement": "batches of fixed size without replacement",
    "poisson": "Poisson-sampled batches",
}
_RELATIONS = {
    "without_replacement": (REPLACE_ONE,),
    "poisson": (REPLACE_ONE, NeighboringRelation.ADD_OR_REMOVE_ONE),
}
_NOISE_IS_APPROXIMATE = (
    "the noise is drawn in floating point (operating-system randomness, rounded to 2^-24 standard "
    "deviations), which is close to exact Gaussian noise but not proven equal"
)
#: Settings without which there is no plan.
_NEEDED = ("learning_rate", "clip_norm", "batch_size", "epochs")
FIXED_BEFOREHAND = (
    "the hyper-parameters, the number of steps and the weights that training begins with were "
    "fixed without looking at the records (tuning on them costs privacy of its own)"
)
_DIFFERENT = "no record comes twice in the training data"
_COUNT_IS_PUBLIC = (
    "the sampling probability and the number of steps count as public, although they were "
    "computed from the number of {counted}"
)


class TrainingSettings(TypedDict, total=False):
    """The settings of a training: keyword arguments of ``plan``, ``fit`` and ``replicates``.

    Args:
        learning_rate: Step size; with ``optimizer="scale_free"`` the distance that the weights may
            go, by the rule of :func:`~.untuned.suggest_settings` unless given.
        clip_norm: Largest l2 norm of one record's gradient, ``L``; with ``clipping="normalized"``
            the norm that all gradients are brought to, 1 unless given.
        noise_multiplier: Standard deviation of the noise on the sum of clipped gradients over
            ``clip_norm``. 0 is plain clipped training without any guarantee.
        target_epsilon: In place of ``noise_multiplier``: the least noise for which the complete
            run costs at most this epsilon at ``delta``.
        batch_size: Number of records in a batch (expected, for Poisson sampling), ``m``.
        epochs: The run takes ``epochs * (n // m)`` steps.
        delta: Where epsilon is evaluated, 1e-5 unless given; charged to a ledger.
        feature_norm: ``"private"`` to find it within ``target_epsilon`` (of tables); or a public
            root mean square norm of a record's features, for the rule that chooses what is left
            out; see :func:`~.untuned.suggest_settings`. For token ids there is nothing to give.
    """

    learning_rate: float
    clip_norm: float
    noise_multiplier: float
    target_epsilon: float
    batch_size: int
    epochs: int
    delta: float
    feature_norm: float | Literal["private"]


@dataclass(frozen=True, kw_only=True)
class TrainingPlan:
    """The public parameters of a training by DP-SGD or DP-Adam, and what follows from them.

    ``print(plan)`` shows the guarantee, the noise and the steps.

    Args:
        num_records: Number of training records, ``n``.
        learning_rate: See :class:`TrainingSettings`, also for what is not described here.
        clip_norm: Largest norm of one record's gradient.
        noise_multiplier: Standard deviation of the noise on the sum of clipped gradients, over the
            clipping norm.
        batch_size: Number of records in a batch.
        epochs: Passes over the records.
        optimizer: The name of the rule that takes the steps.
        clipping: ``"flat"`` or ``"normalized"``.
        sampling: ``"poisson"`` (each record joins with probability ``m / n``, as in
            [Abadi2016]; the sum is divided by the expected size ``m``) or
            ``"without_replacement"`` (fresh uniform subsets of fixed size, as in [Avent2020]; the
            same noise costs more).
        relation: Which two data sets must be hard to tell apart: ``REPLACE_ONE``, or for Poisson
            batches ``ADD_OR_REMOVE_ONE``. Their epsilons cannot be compared.
        delta: Where :attr:`epsilon` is evaluated.
        conditions: What else the guarantee rests on, in sentences.
        notes: Further lines that are printed with the plan.
        origin: How a receipt says that the settings came about.
        unpublishable: Why models that are trained on these records must not be published, if so.
        beside: What else is released with the model, such as private ranges; it is part of the
            guarantee, and of a ``target_epsilon``.
        per_group: How many records of a person are used at most, if people are protected;
            ``num_records`` and ``batch_size`` then count people.

    Example:
        >>> plan = trainer.plan(  # a DPTrainer of 1,000 records
        ...     learning_rate=0.1, clip_norm=1.0, noise_multiplier=2.0, batch_size=10, epochs=1
        ... )
        >>> plan.steps, plan.noise_std
        (100, 2.0)
    """

    num_records: int
    learning_rate: float
    clip_norm: float
    noise_multiplier: float
    batch_size: int
    epochs: int
    optimizer: str = "sgd"
    clipping: Clipping = "flat"
    sampling: Sampling = "poisson"
    relation: NeighboringRelation = REPLACE_ONE
    delta: float = DELTA
    conditions: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    origin: Literal["not stated", "default rule"] = "not stated"
    unpublishable: str = ""
    beside: Guarantee | None = None
    per_group: int | None = None

    @cached_property
    def steps_per_epoch(self) -> int:
        """Number of steps that count as one pass over the records, ``n // m``."""
        return self.num_records // self.batch_size

    @cached_property
    def steps(self) -> int:
        """Number of steps of a complete run."""
        return self.epochs * self.steps_per_epoch

    @cached_property
    def sensitivity(self) -> float:
        """How far one record, or person, moves the sum of clipped gradients."""
        return self.relation.sum_sensitivity * self.clip_norm

    @property
    def most_in_batch(self) -> int:
        """How many records an expected batch has at most."""
        return self.batch_size * (self.per_group or 1)

    @property
    def unit(self) -> PrivacyUnit:
        """Whom the training protects."""
        if self.per_group is None:
            return PrivacyUnit("one training record", self.relation)
        return PrivacyUnit.of_person(self.per_group, self.relation)

    @cached_property
    def noise_std(self) -> float:
        """Standard deviation of the noise on the sum of clipped gradients."""
        return self.noise_multiplier * self.clip_norm if self.noise_multiplier else 0.0

    @cached_property
    def guarantee(self) -> Guarantee:
        """The guarantee of a complete training with ``publish=True``."""
        return self.guarantee_after(self.steps)

    @property
    def epsilon(self) -> float:
        """``guarantee.epsilon(delta)``; infinite without noise."""
        return self.guarantee.epsilon(self.delta)

    def draw_batches(self, randomness: Randomness, count: int) -> list[Tensor]:
        """The indices of the next batches; of a Poisson-sampled one, possibly none."""
        n, m = self.num_records, self.batch_size
        if self.sampling == "poisson":
            return randomness.choose_each(n, m / n, count)
        return [randomness.choose(n, m) for _ in range(count)]

    def dp_sgd(self, steps: int) -> DPSGD:
        """The first steps as a mechanism."""
        return DPSGD(
            noise_multiplier=self.noise_multiplier,
            batch_size=self.batch_size,
            num_records=self.num_records,
            steps=steps,
            sampling=self.sampling,
            relation=self.relation,
        )

    def privacy_loss(self, steps: int) -> PrivacyLoss:
        """The privacy loss of the first steps."""
        return self.dp_sgd(steps).loss()

    @property
    def _mechanism(self) -> str:
        name = OPTIMIZERS.get(self.optimizer, f"DP-SGD with steps of {self.optimizer}")
        normalized = ", gradients normalized," if self.clipping == "normalized" else ""
        return f"{name}{normalized} on {_BATCHES[self.sampling]}"

    def guarantee_after(self, steps: int) -> Guarantee:
        """The guarantee of the first steps."""
        mechanism, unit = self._mechanism, self.unit
        if self.relation is NeighboringRelation.ADD_OR_REMOVE_ONE:
            unit = unit.given(_COUNT_IS_PUBLIC.format(counted=self.unit.counted))
        if self.noise_multiplier == 0:
            return Guarantee(mechanism, unit, (), void="no noise was added")
        different = (_DIFFERENT,) if self.per_group is None else ()
        trained = Guarantee(
            mechanism,
            unit.given(FIXED_BEFOREHAND, *different, *self.conditions),
            (self.privacy_loss(steps),),
            assumptions=(_NOISE_IS_APPROXIMATE,),
            quoted_delta=self.delta,
        )
        if self.beside is None:
            return trained
        unit = trained.unit.given(*self.beside.unit.conditions)
        return replace(compose(self.beside, trained), unit=unit, quoted_delta=self.delta)

    def check_publishable(self) -> None:
        """Raise if a model trained this way must not be called private.

        The noise is added exactly on its grid, and the slack for rounding covers the sum, within
        the limits checked here.
        """
        if self.unpublishable:
            raise PrivacyError(f"No model can be published. {self.unpublishable}")
        if self.noise_multiplier == 0:
            raise PrivacyError(
                "`noise_multiplier` is 0, so nothing is guaranteed, and no model can be published "
                "as private. Choose a positive one, or train under a seed without publishing."
            )
        least = SMALLEST_PUBLISHED_NOISE * self.relation.sum_sensitivity
        if self.noise_multiplier < least:
            raise PrivacyError(
                f"`noise_multiplier` must be at least {least} to publish, got "
                f"{self.noise_multiplier}: less noise would be lost in rounding."
            )
        if self.most_in_batch > LARGEST_PUBLISHED_BATCH:
            what = "`batch_size`" if self.per_group is None else "`batch_size` times `per_group`"
            raise PrivacyError(
                f"{what} must be at most {LARGEST_PUBLISHED_BATCH} to publish, got "
                f"{self.most_in_batch}: the rounding of larger sums is not covered."
            )

    def __str__(self) -> str:
        guarantee, n = self.guarantee, self.num_records
        size = "about " * (self.sampling == "poisson") + f"{self.batch_size:,}"
        rate = "step scale" if self.optimizer == "scale_free" else "learning rate"
        lines = [
            guarantee.in_plan,
            self._in_the_relation_of_opacus,
            f"Noise multiplier: {rounded_up(self.noise_multiplier)} (clipping norm "
            f"{self.clip_norm:.4g}); noise in the mean gradient of a batch: "
            f"{self.noise_std / self.batch_size:.2g}.",
            f"{self._mechanism}: {size} of {n:,} {self.unit.counted}, {self.steps:,} steps "
            f"({self.epochs:,} epochs), {rate} {self.learning_rate:.4g}.",
            f"Choose a smaller delta: {self.delta:g} is not below 1 / {n:,}, so publishing one "
            f"of the {self.unit.counted} at random would satisfy it."
            if self.delta >= 1 / n
            else "",
            *self.notes,
        ]
        return "\n".join(line for line in lines if line)

    @property
    def _in_the_relation_of_opacus(self) -> str:
        """The epsilon to compare with Opacus's, of the training alone."""
        other = NeighboringRelation.ADD_OR_REMOVE_ONE
        if self.noise_multiplier == 0 or self.sampling != "poisson" or self.relation is other:
            return ""
        epsilon = replace(self.dp_sgd(self.steps), relation=other).epsilon(self.delta)
        words = replace(self.unit, relation=other).neighbours
        alone = "" if self.beside is None else "of the training alone "
        return (
            f"In Opacus's relation ({words}) the same noise {alone}has epsilon = "
            f"{rounded_up(epsilon, 3)} at delta = {self.delta:g}."
        )

    def parameters(self, steps: int) -> dict[str, Any]:
        """What a receipt says of a training of this many steps; JSON-ready and public."""
        plain, hidden = self.to_dict(), ("conditions", "delta", "beside")
        return {"steps": steps, **{k: plain[k] for k in plain if k not in hidden}}

    def to_dict(self) -> dict[str, Any]:
        """The settings, JSON-ready."""
        plain = {**asdict(self), "conditions": list(self.conditions)}
        del plain["notes"], plain["origin"], plain["unpublishable"], plain["beside"]
        if self.beside is not None:
            plain["beside"] = self.beside.to_dict()
        if self.per_group is None:
            del plain["per_group"]
        return {**plain, "relation": self.relation.name}


def make_plan(
    settings: TrainingSettings,
    *,
    num_records: int,
    clipping: Clipping = "flat",
    sampling: Sampling = "poisson",
    relation: NeighboringRelation = REPLACE_ONE,
    **fixed: Any,
) -> TrainingPlan:
    """The plan of these settings, with the noise that their ``target_epsilon`` asks for.

    Args:
        settings: As they came; missing and unknown names raise ``TypeError``.
        num_records: See :class:`TrainingPlan`, also for what is not described here.
        clipping: As there.
        sampling: As there.
        relation: As there.
        fixed: Its other arguments that are no settings.
    """
    check_choice("clipping", clipping, get_args(Clipping))
    check_choice("sampling", sampling, get_args(Sampling))
    if relation not in _RELATIONS[sampling]:
        raise PrivacyError(
            f"`relation` is {relation.name}, under which DP-SGD on {_BATCHES[sampling]} is not "
            "accounted for here. Use REPLACE_ONE, or sampling='poisson' with ADD_OR_REMOVE_ONE."
        )
    chosen: dict[str, Any] = dict(settings)
    known = TrainingSettings.__annotations__
    for name in chosen:
        if name not in known:
            raise TypeError(f"A training has no setting {name!r}.{did_you_mean(name, known)}")
    if clipping == "normalized":
        chosen.setdefault("clip_norm", 1.0)
    if "feature_norm" in chosen:
        check_positive("feature_norm", chosen.pop("feature_norm"))
    missing = [name for name in _NEEDED if name not in chosen]
    if missing:
        raise TypeError(f"Give `{missing[0]}`: a training needs it.")
    target, noise = chosen.get("target_epsilon"), chosen.get("noise_multiplier")
    if (target is None) == (noise is None):
        raise TypeError("Give either `noise_multiplier` or `target_epsilon`.")
    # Numbers of any library come out as Python's, which JSON knows.
    plan = TrainingPlan(
        num_records=num_records,
        learning_rate=check_positive("learning_rate", chosen["learning_rate"]),
        clip_norm=_checked_norm(chosen["clip_norm"], unbounded=noise == 0 and clipping == "flat"),
        noise_multiplier=1.0 if noise is None else check_nonnegative("noise_multiplier", noise),
        batch_size=check_integer("batch_size", chosen["batch_size"], at_most=num_records),
        epochs=check_count("epochs", chosen["epochs"]),
        delta=check_delta("delta", chosen.get("delta", DELTA)),
        clipping=clipping,
        sampling=sampling,
        relation=relation,
        **fixed,
    )
    check_count("epochs * (num_records // batch_size)", plan.steps)
    if plan.beside is not None and plan.beside.unit.counted != plan.unit.counted:
        raise PrivacyError(
            f"What is released beside the model protects {plan.beside.protects}, and the training "
            f"{plan.unit.protects}: make both with the same `groups`, or both without."
        )
    if target is None:
        return plan
    training = plan.dp_sgd(plan.steps).for_epsilon(
        check_positive("target_epsilon", target),
        plan.delta,
        beside=() if plan.beside is None else plan.beside.losses,
    )
    assert training.noise_multiplier is not None
    return replace(plan, noise_multiplier=training.noise_multiplier)


def _checked_norm(clip_norm: object, *, unbounded: bool) -> float:
    norm = check_positive("clip_norm", clip_norm, allow_inf=unbounded)
    if norm < SMALLEST_CLIP_NORM:
        raise ValueError(
            f"`clip_norm` must be at least {SMALLEST_CLIP_NORM}, got {norm}: smaller gradients "
            "cannot be measured. Scale the loss up."
        )
    if LARGEST_CLIP_NORM < norm < math.inf:
        raise ValueError(
            f"`clip_norm` must be at most {LARGEST_CLIP_NORM}, got {norm}: larger gradients cannot "
            "be added up. Scale the loss down."
        )
    return norm


def check_seed(
    plan: TrainingPlan, seed: int | None, *, publish: bool, ledger: PrivacyLedger | None
) -> None:
    """Raise unless a run is either seeded and free, or secret and may be published."""
    if publish and seed is not None:
        raise PrivacyError(
            "`seed` was given together with publish=True: whoever guesses the seed can subtract "
            "the noise. Leave it out."
        )
    if ledger is not None and not publish:
        raise PrivacyError(
            "`ledger` was given to a run that is not to be published: its noise is simulated, and "
            "nothing is charged for it. Leave one of the two out."
        )
    if ledger is not None and not isinstance(ledger, PrivacyLedger):
        raise TypeError(f"`ledger` must be a PrivacyLedger, got {type(ledger).__name__}.")
    if publish:
        plan.check_publishable()
    elif seed is None:
        raise ValueError("`seed` is required, unless publish=True: give an integer such as 0.")
    else:
        check_integer("seed", seed, at_least=0)
