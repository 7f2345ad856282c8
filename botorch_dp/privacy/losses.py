"""Privacy losses: what one mechanism may reveal, as plain numbers.

The class of a loss holds everything that differs between losses, so that a new one is added here
and nowhere else: its name in JSON, the relation it is proven under, its Rényi divergences, what a
ledger charges for it, and the normal form in which :mod:`.pld.composition` puts losses together.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, fields
from enum import Enum
from typing import Any, ClassVar, Literal

from botorch_dp._checks import (
    check_delta,
    check_integer,
    check_nonnegative,
    check_positive,
)
from botorch_dp.errors import PrivacyError
from botorch_dp.privacy.pld.composition import Component, LossTerm, steps_term
from botorch_dp.privacy.pld.distributions import SampledKind
from botorch_dp.privacy.pld.gaussian import pure_dp_mu
from botorch_dp.privacy.pld.renyi import (
    gaussian_rdp,
    laplace_rdp,
    pure_rdp,
    sampled_gaussian_rdp,
)

#: How batches are drawn.
Sampling = Literal["poisson", "without_replacement"]

#: What a charge costs: epsilon and delta of what is summed, mu of what is Gaussian.
Cost = tuple[float, float, float]


class NeighboringRelation(Enum):
    """Which two data sets must be hard to tell apart. The value says it in words."""

    REPLACE_ONE = "one record is replaced by any other"
    ADD_OR_REMOVE_ONE = "one record is added or removed"
    BOUNDED_ROW = "one row moves by at most the stated distance"

    @property
    def sum_sensitivity(self) -> float:
        """How far a sum of vectors of norm at most 1, one for each record, moves.

        A replaced record takes one such vector away and puts another one in its place: 2. An added
        or removed one does half of that. This is the factor of two between the two relations, and
        all noise of DP-SGD is measured in it.
        """
        if self is NeighboringRelation.BOUNDED_ROW:
            raise PrivacyError(
                "A bounded change of a row moves sums by no fixed amount: account under "
                "REPLACE_ONE or ADD_OR_REMOVE_ONE."
            )
        return 2.0 if self is NeighboringRelation.REPLACE_ONE else 1.0


class PrivacyLoss(ABC):
    """What one mechanism may reveal; a frozen dataclass of checked numbers."""

    #: Its name in JSON.
    kind: ClassVar[str]
    #: The relation it is proven under; None if it is proven under whatever its owner states.
    relation: NeighboringRelation | None = None

    @abstractmethod
    def term(self) -> LossTerm:
        """The normal form that is composed."""

    @abstractmethod
    def rdp(self, order: float) -> float:
        """An upper bound on the Rényi divergence of this order, above 1.

        At one order that was fixed in advance divergences may be added up even if later mechanisms
        depend on the outputs of earlier ones [Feldman2021].
        """

    @property
    def summed(self) -> tuple[float, float] | None:
        """The (epsilon, delta) that basic composition adds up, or None if there is no single one.

        With delta = 0 the mechanism is purely epsilon-DP.
        """
        return None

    def cost(self, purely_gaussian: bool) -> Cost:
        """What a ledger charges: ``(epsilon, delta, mu)``.

        Args:
            purely_gaussian: Whether the ledger has set nothing aside for sums of (epsilon, delta).
        """
        if self.summed is None:
            raise PrivacyError(
                f"A {type(self).__name__} is neither Gaussian nor a sum of (epsilon, delta): name "
                "the delta at which it is charged, charge(guarantee, delta=...)."
            )
        epsilon, delta = self.summed
        if purely_gaussian and delta == 0:
            return 0.0, 0.0, pure_dp_mu(epsilon)
        return epsilon, delta, 0.0

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready numbers with the ``kind``."""
        numbers = {each.name: getattr(self, each.name) for each in fields(self)}  # type: ignore[arg-type]
        return {
            "kind": self.kind,
            **{k: v.name if isinstance(v, NeighboringRelation) else v for k, v in numbers.items()},
        }

    def _store(self, **checked: object) -> None:
        """Store checked numbers as plain ones: NumPy's would compare but not go to JSON."""
        for name, value in checked.items():
            object.__setattr__(self, name, value)


@dataclass(frozen=True)
class PureLoss(PrivacyLoss):
    """Any epsilon-differentially private mechanism."""

    kind = "pure"
    epsilon: float

    def __post_init__(self) -> None:
        self._store(epsilon=check_nonnegative("epsilon", self.epsilon))

    @property
    def summed(self) -> tuple[float, float]:
        """Epsilon."""
        return self.epsilon, 0.0

    def rdp(self, order: float) -> float:
        """That of randomized response, which dominates."""
        return pure_rdp(self.epsilon, order)

    def term(self) -> LossTerm:
        """Randomized response dominates."""
        return LossTerm(component=Component("pure", self.epsilon))


@dataclass(frozen=True)
class LaplaceLoss(PureLoss):
    """A scalar Laplace mechanism whose sensitivity is ``epsilon`` times its scale.

    It is epsilon-DP, and its privacy-loss distribution composes better than the worst pure one.
    """

    kind = "laplace"

    def rdp(self, order: float) -> float:
        """The divergence itself, in closed form."""
        return laplace_rdp(self.epsilon, order)

    def term(self) -> LossTerm:
        """The Laplace mechanism's own distribution."""
        return LossTerm(component=Component("laplace", self.epsilon))


@dataclass(frozen=True)
class GaussianLoss(PrivacyLoss):
    """A Gaussian mechanism whose l2 sensitivity is ``mu`` standard deviations (mu-GDP)."""

    kind = "gaussian"
    mu: float

    def __post_init__(self) -> None:
        self._store(mu=check_nonnegative("mu", self.mu))

    def cost(self, purely_gaussian: bool) -> Cost:
        """What a ledger of either kind charges: mu."""
        return 0.0, 0.0, self.mu

    def rdp(self, order: float) -> float:
        """The divergence itself, in closed form."""
        return gaussian_rdp(self.mu, order)

    def term(self) -> LossTerm:
        """Gaussian."""
        return LossTerm(mu=self.mu)


@dataclass(frozen=True)
class ApproximateLoss(PrivacyLoss):
    """Any (epsilon, delta)-differentially private mechanism."""

    kind = "approximate"
    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        self._store(
            epsilon=check_nonnegative("epsilon", self.epsilon),
            delta=check_delta("delta", self.delta, allow_zero=True),
        )

    @property
    def summed(self) -> tuple[float, float]:
        """Both numbers as they are."""
        return self.epsilon, self.delta

    def rdp(self, order: float) -> float:
        """Infinite: with probability delta everything may be revealed."""
        return math.inf if self.delta > 0 else pure_rdp(self.epsilon, order)

    def term(self) -> LossTerm:
        """Everything with probability delta, a pure mechanism otherwise."""
        return LossTerm(lost=self.delta, component=Component("pure", self.epsilon))


@dataclass(frozen=True)
class SelectionLoss(ApproximateLoss):
    """The best of a secret number of outcomes, accounted for by :mod:`.selection`.

    It is (epsilon, delta)-DP and counts as such everywhere; the other numbers say how it came
    about, so that somebody else can recompute epsilon.

    Args:
        epsilon: Of what is published.
        delta: Of what is published.
        mu: Each outcome keeps to the profile of a mu-GDP mechanism.
        mean: The expected number of trials.
        shape: The shape of their truncated negative binomial law; infinite for Poisson.
    """

    kind = "selection"
    mu: float
    mean: float
    shape: float

    def __post_init__(self) -> None:
        super().__post_init__()
        shape = float(self.shape)
        if not shape > -1:
            raise ValueError(f"`shape` must be above -1, got {self.shape}.")
        self._store(
            mu=check_positive("mu", self.mu), mean=check_positive("mean", self.mean), shape=shape
        )

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready numbers; an infinite shape is null."""
        shape = None if self.shape == math.inf else self.shape
        return {**super().to_dict(), "shape": shape}


def sampled_kind(sampling: Sampling, relation: NeighboringRelation) -> SampledKind:
    """Which dominating pair a step has."""
    if sampling == "without_replacement":
        return "fixed"
    return "replace" if relation is NeighboringRelation.REPLACE_ONE else "add_or_remove"


class SampledSGDLoss(PrivacyLoss):
    """DP-SGD on random batches: what Poisson sampling and batches of fixed size have in common.

    ``noise_multiplier`` is the noise's standard deviation over the clipping norm, whatever the
    relation, as in Opacus.
    """

    sampling: ClassVar[Sampling]
    noise_multiplier: float
    steps: int
    relation: NeighboringRelation

    @property
    @abstractmethod
    def sampling_fraction(self) -> float:
        """The probability that a record is in a batch."""

    @property
    def sampled_kind(self) -> SampledKind:
        """Which dominating pair a step has."""
        return sampled_kind(self.sampling, self.relation)

    @property
    def noise_over_sensitivity(self) -> float:
        """The noise's standard deviation over what one record can move the sum by."""
        return self.noise_multiplier / self.relation.sum_sensitivity

    def term(self) -> LossTerm:
        """The steps; those on all records are one Gaussian mechanism."""
        z = self.noise_over_sensitivity
        return steps_term(self.sampled_kind, z, self.sampling_fraction, self.steps)

    def rdp(self, order: float) -> float:
        """That of the dominating pair."""
        return self.steps * sampled_gaussian_rdp(
            self.sampled_kind, self.noise_over_sensitivity, self.sampling_fraction, order
        )


@dataclass(frozen=True)
class PoissonSGDLoss(SampledSGDLoss):
    """DP-SGD with Poisson sampling: each record is in a batch independently of all others."""

    kind = "poisson_sgd"
    sampling = "poisson"
    noise_multiplier: float
    sampling_probability: float
    steps: int
    relation: NeighboringRelation = NeighboringRelation.ADD_OR_REMOVE_ONE

    def __post_init__(self) -> None:
        probability = check_positive("sampling_probability", self.sampling_probability)
        if probability > 1:
            raise ValueError(f"`sampling_probability` must lie in (0, 1], got {probability}.")
        if self.relation is NeighboringRelation.BOUNDED_ROW:
            raise ValueError("`relation` must be REPLACE_ONE or ADD_OR_REMOVE_ONE.")
        self._store(
            noise_multiplier=check_positive("noise_multiplier", self.noise_multiplier),
            sampling_probability=probability,
            steps=check_integer("steps", self.steps),
        )

    @property
    def sampling_fraction(self) -> float:
        """The probability that a record is in a batch."""
        return self.sampling_probability


@dataclass(frozen=True)
class FixedBatchSGDLoss(SampledSGDLoss):
    """DP-SGD on batches of fixed size drawn without replacement, under replace-one."""

    kind = "fixed_batch_sgd"
    sampling = "without_replacement"
    relation = NeighboringRelation.REPLACE_ONE
    noise_multiplier: float
    batch_size: int
    num_records: int
    steps: int

    def __post_init__(self) -> None:
        num_records = check_integer("num_records", self.num_records)
        self._store(
            noise_multiplier=check_positive("noise_multiplier", self.noise_multiplier),
            batch_size=check_integer("batch_size", self.batch_size, at_most=num_records),
            num_records=num_records,
            steps=check_integer("steps", self.steps),
        )

    @property
    def sampling_fraction(self) -> float:
        """The probability that a record is in a batch."""
        return self.batch_size / self.num_records


_KINDS: dict[str, type[PrivacyLoss]] = {
    loss.kind: loss
    for loss in (
        PureLoss,
        LaplaceLoss,
        GaussianLoss,
        ApproximateLoss,
        SelectionLoss,
        PoissonSGDLoss,
        FixedBatchSGDLoss,
    )
}


def loss_from_dict(state: dict[str, Any]) -> PrivacyLoss:
    """Inverse of :meth:`PrivacyLoss.to_dict`; unknown kinds are refused."""
    kind = state.get("kind")
    if kind not in _KINDS:
        raise ValueError(f"`kind` of the `state` must be one of {sorted(_KINDS)}, got {kind!r}.")
    numbers = {name: number for name, number in state.items() if name != "kind"}
    if kind == SelectionLoss.kind and numbers.get("shape", 0) is None:
        numbers["shape"] = math.inf
    if kind == PoissonSGDLoss.kind:
        numbers["relation"] = NeighboringRelation[numbers["relation"]]
    return _KINDS[kind](**numbers)
