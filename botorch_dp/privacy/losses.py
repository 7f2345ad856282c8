"""Privacy losses: the numbers a guarantee is made of.

Each record states what one mechanism may reveal, as plain numbers: it compares, pickles and goes
to JSON. ``composition.py`` turns a collection of them into (epsilon, delta).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from botorch_dp._checks import check_delta, check_integer, check_nonnegative, check_positive


def _set(loss: object, **numbers: float) -> None:
    """Store checked numbers as plain ones: NumPy's would compare but not go to JSON."""
    for name, number in numbers.items():
        object.__setattr__(loss, name, number)


@dataclass(frozen=True)
class PureLoss:
    """Any epsilon-differentially private mechanism."""

    epsilon: float

    def __post_init__(self) -> None:
        _set(self, epsilon=check_nonnegative("epsilon", self.epsilon))


@dataclass(frozen=True)
class LaplaceLoss:
    """A scalar Laplace mechanism whose sensitivity is ``epsilon`` times its scale.

    Also epsilon-DP, but its privacy-loss distribution composes better than the worst pure one.
    """

    epsilon: float

    def __post_init__(self) -> None:
        _set(self, epsilon=check_nonnegative("epsilon", self.epsilon))


@dataclass(frozen=True)
class GaussianLoss:
    """A Gaussian mechanism whose l2 sensitivity is ``mu`` standard deviations (mu-GDP)."""

    mu: float

    def __post_init__(self) -> None:
        _set(self, mu=check_nonnegative("mu", self.mu))


@dataclass(frozen=True)
class ApproximateLoss:
    """Any (epsilon, delta)-differentially private mechanism."""

    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        _set(
            self,
            epsilon=check_nonnegative("epsilon", self.epsilon),
            delta=check_delta("delta", self.delta, allow_zero=True),
        )


@dataclass(frozen=True)
class PoissonSGDLoss:
    """DP-SGD on Poisson-sampled lots, under add-or-remove-one.

    ``noise_multiplier`` is the noise's standard deviation in units of the clipping norm, which is
    the sensitivity of the summed gradient under this relation.
    """

    noise_multiplier: float
    sampling_probability: float
    steps: int

    def __post_init__(self) -> None:
        probability = check_positive("sampling_probability", self.sampling_probability)
        if probability > 1:
            raise ValueError(f"`sampling_probability` must lie in (0, 1], got {probability}.")
        _set(
            self,
            noise_multiplier=check_positive("noise_multiplier", self.noise_multiplier),
            sampling_probability=probability,
            steps=check_integer("steps", self.steps),
        )


@dataclass(frozen=True)
class FixedLotSGDLoss:
    """DP-SGD on lots of fixed size drawn without replacement, under replace-one.

    ``noise_multiplier`` is the noise's standard deviation in units of the sensitivity of the
    summed gradient, which under this relation is *twice* the clipping norm.
    """

    noise_multiplier: float
    lot_size: int
    num_records: int
    steps: int

    def __post_init__(self) -> None:
        num_records = check_integer("num_records", self.num_records)
        _set(
            self,
            noise_multiplier=check_positive("noise_multiplier", self.noise_multiplier),
            lot_size=check_integer("lot_size", self.lot_size, at_most=num_records),
            num_records=num_records,
            steps=check_integer("steps", self.steps),
        )


PrivacyLoss = (
    PureLoss | LaplaceLoss | GaussianLoss | ApproximateLoss | PoissonSGDLoss | FixedLotSGDLoss
)

_KINDS: dict[str, type[PrivacyLoss]] = {
    "pure": PureLoss,
    "laplace": LaplaceLoss,
    "gaussian": GaussianLoss,
    "approximate": ApproximateLoss,
    "poisson_sgd": PoissonSGDLoss,
    "fixed_lot_sgd": FixedLotSGDLoss,
}
_NAMES = {kind: name for name, kind in _KINDS.items()}


def loss_to_dict(loss: PrivacyLoss) -> dict[str, Any]:
    """The loss as JSON-ready numbers with its ``kind``."""
    return {"kind": _NAMES[type(loss)], **asdict(loss)}


def loss_from_dict(state: dict[str, Any]) -> PrivacyLoss:
    """Inverse of :func:`loss_to_dict`; unknown kinds are refused."""
    numbers = dict(state)
    kind = numbers.pop("kind", None)
    if kind not in _KINDS:
        raise ValueError(f"`kind` must be one of {sorted(_KINDS)}, got {kind!r}.")
    return _KINDS[kind](**numbers)
