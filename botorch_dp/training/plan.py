"""What a training run will do, and what that costs, before it does it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

from botorch_dp._checks import check_delta, check_integer, check_nonnegative, check_positive
from botorch_dp.errors import PrivacyError
from botorch_dp.privacy import Guarantee, PrivacyUnit
from botorch_dp.training.sampling import SAMPLINGS, FixedLots, PoissonLots, Sampling

Optimizer = Literal["sgd", "adam"]

#: Below this, squares of single-precision gradients vanish and a norm could be underestimated.
SMALLEST_CLIP_NORM = 1e-12
#: Limits within which :class:`.randomness.SystemRandomness` adds noise without rounding, and
#: within which its slack covers the rounding of the sum.
SMALLEST_PUBLISHED_NOISE = 1e-3
LARGEST_PUBLISHED_LOT = 80_000

_PUBLISHED_ASSUMPTIONS = (
    "the noise, made of operating-system entropy, is a double-precision approximation of Gaussian "
    "draws rounded to a grid of 2^-24 of their standard deviation",
)
_HYPERPARAMETERS = (
    "the hyper-parameters and the number of steps were fixed without looking at the records "
    "(tuning on them costs privacy of its own)",
)


@dataclass(frozen=True, kw_only=True)
class TrainingPlan:
    """The public parameters of a run of DP-SGD or DP-Adam.

    Args:
        num_records: Number of training records, ``n``.
        learning_rate: Step size.
        clip_norm: Largest l2 norm of one record's gradient, ``L``.
        noise_multiplier: Standard deviation of the noise on the sum of clipped gradients divided
            by the sensitivity of that sum: ``2 L`` for lots without replacement, ``L`` for
            Poisson sampling. 0 is plain clipped training without any promise.
        lot_size: Number of records in a lot (expected, for Poisson sampling), ``m``.
        epochs: The run takes ``epochs * (n // m)`` steps.
        optimizer: ``"sgd"`` or ``"adam"``.
        sampling: ``"without_replacement"`` or ``"poisson"``.
        delta: Where :attr:`epsilon` is evaluated.

    Example:
        >>> plan = TrainingPlan(num_records=1000, learning_rate=0.1, clip_norm=1.0,
        ...                     noise_multiplier=2.0, lot_size=10, epochs=1)
        >>> plan.steps, plan.noise_std
        (100, 4.0)
    """

    num_records: int
    learning_rate: float
    clip_norm: float
    noise_multiplier: float
    lot_size: int
    epochs: int
    optimizer: Optimizer = "sgd"
    sampling: Sampling = "without_replacement"
    delta: float = 1e-5

    def __post_init__(self) -> None:
        noise_multiplier = check_nonnegative("noise_multiplier", self.noise_multiplier)
        num_records = check_integer("num_records", self.num_records)
        checked = {
            "num_records": num_records,
            "learning_rate": check_positive("learning_rate", self.learning_rate),
            "noise_multiplier": noise_multiplier,
            "clip_norm": check_positive(
                "clip_norm", self.clip_norm, allow_inf=noise_multiplier == 0
            ),
            "lot_size": check_integer("lot_size", self.lot_size, at_most=num_records),
            "epochs": check_integer("epochs", self.epochs),
            "delta": check_delta("delta", self.delta),
        }
        if checked["clip_norm"] < SMALLEST_CLIP_NORM:
            raise ValueError(
                f"`clip_norm` must be at least {SMALLEST_CLIP_NORM}, got {self.clip_norm}: smaller "
                "gradients cannot be measured. Scale the loss up."
            )
        _check_choice("optimizer", self.optimizer, ("sgd", "adam"))
        _check_choice("sampling", self.sampling, tuple(SAMPLINGS))
        # Numbers of any library come out as Python's, which JSON knows.
        for name, value in checked.items():
            object.__setattr__(self, name, value)

    @property
    def lots(self) -> FixedLots | PoissonLots:
        """How lots are drawn."""
        return SAMPLINGS[self.sampling](self.num_records, self.lot_size)

    @property
    def steps(self) -> int:
        """Number of steps of a complete run."""
        return self.epochs * (self.num_records // self.lot_size)

    @property
    def sensitivity(self) -> float:
        """How far one record moves the sum of clipped gradients under the relation."""
        return self.lots.sensitivity * self.clip_norm

    @property
    def noise_std(self) -> float:
        """Standard deviation of the noise on the sum of clipped gradients."""
        return self.noise_multiplier * self.sensitivity if self.noise_multiplier else 0.0

    @property
    def guarantee(self) -> Guarantee:
        """What a complete run promises for its model if it is run with ``publish=True``."""
        return self.guarantee_after(self.steps)

    @property
    def epsilon(self) -> float:
        """``guarantee.epsilon(delta)``; infinite without noise."""
        return self.guarantee.epsilon(self.delta)

    def guarantee_after(self, steps: int) -> Guarantee:
        """What the first steps of a run promise."""
        lots = self.lots
        name = {"sgd": "DP-SGD", "adam": "DP-Adam"}[self.optimizer]
        mechanism = f"{name} on {lots.words}"
        unit = PrivacyUnit("one training record", lots.relation, lots.conditions)
        if self.noise_multiplier == 0:
            return Guarantee(mechanism, unit, (), void="no noise was added")
        return Guarantee(
            mechanism,
            unit.given(*_HYPERPARAMETERS),
            (lots.privacy_loss(self.noise_multiplier, steps),),
            assumptions=_PUBLISHED_ASSUMPTIONS,
        )

    def check_publishable(self) -> None:
        """Raise if a model trained this way must not be called private.

        The noise is added exactly on its grid, and the slack for rounding covers the sum, within
        the limits checked here.
        """
        if self.noise_multiplier == 0:
            raise PrivacyError(
                "`noise_multiplier` is 0, which promises nothing, so the model cannot be published "
                "as private. Choose a positive one, or publish=False."
            )
        if self.noise_multiplier < SMALLEST_PUBLISHED_NOISE:
            raise PrivacyError(
                f"`noise_multiplier` must be at least {SMALLEST_PUBLISHED_NOISE} to publish, got "
                f"{self.noise_multiplier}: less noise drowns in rounding, and promises nothing "
                "worth having."
            )
        if self.lot_size > LARGEST_PUBLISHED_LOT:
            raise PrivacyError(
                f"`lot_size` must be at most {LARGEST_PUBLISHED_LOT} to publish, got "
                f"{self.lot_size}: the rounding of larger sums is not covered."
            )

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready form."""
        return asdict(self)


def _check_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ValueError(f"`{name}` must be one of {choices}, got {value!r}.")
