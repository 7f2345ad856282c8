"""Privacy losses: the numbers a guarantee is made of, and all that is known of each.

A loss states what one mechanism may reveal, as plain numbers: it compares, pickles and goes to
JSON. Its class holds everything that differs between losses, so that a new one is added here and
nowhere else: its name in JSON, the relation it is proven under, its Rényi divergences, what a
ledger charges for it, and the normal form in which :mod:`._composition` puts losses together.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, fields
from enum import Enum
from typing import Any, ClassVar

import numpy as np

from botorch_dp._checks import (
    check_delta,
    check_integer,
    check_nonnegative,
    check_positive,
    checked,
    checked_but,
    needs_extra,
)
from botorch_dp.errors import PrivacyError
from botorch_dp.privacy._composition import Component, Contribution
from botorch_dp.privacy._distributions import SampledKind
from botorch_dp.privacy._gaussian import pure_dp_mu
from botorch_dp.privacy._renyi import (
    check_orders,
    gaussian_rdp,
    laplace_rdp,
    pure_rdp,
    sampled_gaussian_rdp,
)

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
                "How far a bounded change of a row moves a sum depends on what is summed: account "
                "under REPLACE_ONE or ADD_OR_REMOVE_ONE."
            )
        return 2.0 if self is NeighboringRelation.REPLACE_ONE else 1.0


@checked
class PrivacyLoss(ABC):
    """What one mechanism may reveal; a frozen dataclass of checked numbers."""

    #: Its name in JSON.
    kind: ClassVar[str]
    #: The relation it is proven under; None if it is proven under whatever its owner states.
    relation: NeighboringRelation | None = None
    #: Names that fields had in files written before they were renamed.
    _old_names: ClassVar[dict[str, str]] = {}

    @abstractmethod
    def contribution(self) -> Contribution:
        """The normal form that is composed."""

    @abstractmethod
    def rdp(self, orders: Sequence[float]) -> np.ndarray:
        """Upper bounds on the Rényi divergences of these orders, each above 1.

        At one order that was fixed in advance they may be added up even if later mechanisms depend
        on the outputs of earlier ones [Feldman2021].
        """

    @abstractmethod
    def for_group(self, size: int) -> PrivacyLoss:
        """What the mechanism may reveal about ``size`` units together."""

    def to_event(self, relation: NeighboringRelation) -> Any:
        """The event of dp-accounting that bounds it; see ``Guarantee.to_event``."""
        raise PrivacyError(
            f"dp-accounting has no event that bounds a {type(self).__name__} under `relation` "
            f"{relation.name}."
        )

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
                f"A {type(self).__name__} is neither Gaussian nor a sum of (epsilon, delta), "
                "`purely_gaussian` or not. Name the delta at which it is charged to the summed "
                "compartment: charge(guarantee, delta=...)."
            )
        epsilon, delta = self.summed
        if purely_gaussian and delta == 0:
            return 0.0, 0.0, pure_dp_mu(epsilon)
        return epsilon, delta, 0.0

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready numbers with the ``kind``."""
        numbers = {field.name: getattr(self, field.name) for field in fields(self)}  # type: ignore[arg-type]
        return {
            "kind": self.kind,
            **{k: v.name if isinstance(v, NeighboringRelation) else v for k, v in numbers.items()},
        }

    def _store(self, **checked: object) -> None:
        """Store checked numbers as plain ones: NumPy's would compare but not go to JSON."""
        for name, value in checked.items():
            object.__setattr__(self, name, value)


@checked
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

    def rdp(self, orders: Sequence[float]) -> np.ndarray:
        """The divergences of randomized response, which dominates."""
        return pure_rdp(self.epsilon, check_orders(orders))

    def contribution(self) -> Contribution:
        """Randomized response dominates."""
        return Contribution(component=Component("pure", self.epsilon))

    def for_group(self, size: int) -> PureLoss:
        """A loss of ``size`` times this epsilon."""
        return PureLoss(check_integer("size", size) * self.epsilon)

    def to_event(self, relation: NeighboringRelation) -> Any:
        """Randomized response, which dp-accounting knows under replace-one."""
        if relation is not NeighboringRelation.REPLACE_ONE:
            return super().to_event(relation)
        return _randomized_response(self.epsilon)


@checked
@dataclass(frozen=True)
class LaplaceLoss(PureLoss):
    """A scalar Laplace mechanism whose sensitivity is ``epsilon`` times its scale.

    It is epsilon-DP, and its privacy-loss distribution composes better than the worst pure one.
    """

    kind = "laplace"

    def rdp(self, orders: Sequence[float]) -> np.ndarray:
        """The divergences themselves, in closed form."""
        return laplace_rdp(self.epsilon, check_orders(orders))

    def contribution(self) -> Contribution:
        """The Laplace mechanism's own distribution."""
        return Contribution(component=Component("laplace", self.epsilon))

    def for_group(self, size: int) -> LaplaceLoss:
        """A loss of ``size`` times this sensitivity."""
        return LaplaceLoss(check_integer("size", size) * self.epsilon)

    def to_event(self, relation: NeighboringRelation) -> Any:
        """A Laplace mechanism, or the randomized response that dominates it."""
        if relation is NeighboringRelation.REPLACE_ONE:
            return _randomized_response(self.epsilon)
        if relation is NeighboringRelation.BOUNDED_ROW or self.epsilon == 0:
            return super().to_event(relation)
        return _events().LaplaceDpEvent(1 / self.epsilon)


@checked
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

    def rdp(self, orders: Sequence[float]) -> np.ndarray:
        """The divergences themselves, in closed form."""
        return gaussian_rdp(self.mu, check_orders(orders))

    def contribution(self) -> Contribution:
        """Gaussian."""
        return Contribution(mu=self.mu)

    def for_group(self, size: int) -> GaussianLoss:
        """A loss of ``size`` times this sensitivity."""
        return GaussianLoss(check_integer("size", size) * self.mu)

    def to_event(self, relation: NeighboringRelation) -> Any:
        """A Gaussian mechanism."""
        if self.mu == 0:
            return _events().NoOpDpEvent()
        return _events().GaussianDpEvent(relation.sum_sensitivity / self.mu)


@checked
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

    def rdp(self, orders: Sequence[float]) -> np.ndarray:
        """Infinite: with probability delta everything may be revealed."""
        if self.delta > 0:
            return np.full(len(check_orders(orders)), math.inf)
        return pure_rdp(self.epsilon, check_orders(orders))

    def contribution(self) -> Contribution:
        """Everything with probability delta, a pure mechanism otherwise."""
        return Contribution(lost=self.delta, component=Component("pure", self.epsilon))

    def for_group(self, size: int) -> ApproximateLoss:
        """``size`` times the epsilon, and delta times the sum of ``e^(i epsilon)``, i < size."""
        # The sum of a geometric series; 1 + 1e-12 exceeds what rounding takes from it.
        growth = min(check_integer("size", size) * self.epsilon, 700.0)
        total = math.expm1(growth) / math.expm1(self.epsilon) if self.epsilon > 1e-300 else size
        delta = self.delta * total * (1 + 1e-12)
        if delta >= 1:
            raise PrivacyError(
                f"An ({self.epsilon:g}, {self.delta:g})-private mechanism promises nothing to a "
                f"group of {size}: its delta would be {delta:.3g}."
            )
        return ApproximateLoss(size * self.epsilon, delta)


@checked
class SampledSGDLoss(PrivacyLoss):
    """DP-SGD whose lots are drawn at random: what its two ways of drawing them have in common.

    ``noise_multiplier`` is the noise's standard deviation in units of the sensitivity of the sum
    of clipped gradients under the loss's relation, ``relation.sum_sensitivity`` clipping norms.
    """

    noise_multiplier: float
    steps: int

    @property
    @abstractmethod
    def sampling_fraction(self) -> float:
        """The probability that a record is in a lot."""

    @property
    @abstractmethod
    def sampled_kind(self) -> SampledKind:
        """Which dominating pair a step has."""

    def contribution(self) -> Contribution:
        """The steps; those on all records are one Gaussian mechanism."""
        z, fraction = self.noise_multiplier, self.sampling_fraction
        if fraction == 1:
            return Contribution(mu=math.sqrt(self.steps) / z if z > 1e-150 else math.inf)
        return Contribution(component=Component(self.sampled_kind, z, fraction), count=self.steps)

    def rdp(self, orders: Sequence[float]) -> np.ndarray:
        """The divergences of the dominating pair."""
        return self.steps * sampled_gaussian_rdp(
            self.sampled_kind, self.noise_multiplier, self.sampling_fraction, check_orders(orders)
        )


@checked_but("relation")
@dataclass(frozen=True)
class PoissonSGDLoss(SampledSGDLoss):
    """DP-SGD on Poisson-sampled lots: every record joins a lot by a coin of its own.

    ``noise_multiplier`` is the noise's standard deviation in units of the clipping norm under
    add-or-remove-one, and of *twice* the clipping norm under replace-one.
    """

    kind = "poisson_sgd"
    noise_multiplier: float
    sampling_probability: float
    steps: int
    relation: NeighboringRelation = NeighboringRelation.ADD_OR_REMOVE_ONE

    def __post_init__(self) -> None:
        probability = check_positive("sampling_probability", self.sampling_probability)
        if probability > 1:
            raise ValueError(f"`sampling_probability` must lie in (0, 1], got {probability}.")
        relation: Any = self.relation
        if isinstance(relation, str):
            relation = NeighboringRelation.__members__.get(relation)
        if relation is NeighboringRelation.BOUNDED_ROW or not isinstance(
            relation, NeighboringRelation
        ):
            raise ValueError(
                f"`relation` must be REPLACE_ONE or ADD_OR_REMOVE_ONE, got {self.relation!r}."
            )
        self._store(
            noise_multiplier=check_positive("noise_multiplier", self.noise_multiplier),
            sampling_probability=probability,
            steps=check_integer("steps", self.steps),
            relation=relation,
        )

    @property
    def sampling_fraction(self) -> float:
        """The probability that a record is in a lot."""
        return self.sampling_probability

    @property
    def sampled_kind(self) -> SampledKind:
        """Which dominating pair a step has."""
        replaced = self.relation is NeighboringRelation.REPLACE_ONE
        return "replace" if replaced else "add_or_remove"

    def for_group(self, size: int) -> PoissonSGDLoss:
        """A lot holds one of them with probability 1 - (1 - q)^size, and moves at most so far."""
        check_integer("size", size)
        together = self.sampling_probability
        if together < 1:
            together = -math.expm1(size * math.log1p(-together))
        return PoissonSGDLoss(
            self.noise_multiplier / size,
            min(1.0, together * (1 + 1e-12)),
            self.steps,
            self.relation,
        )

    def to_event(self, relation: NeighboringRelation) -> Any:
        """Poisson-sampled Gaussian mechanisms."""
        if not isinstance(relation, NeighboringRelation):
            raise TypeError(f"`relation` must be a NeighboringRelation, got {relation!r}.")
        noise = _events().GaussianDpEvent(relation.sum_sensitivity * self.noise_multiplier)
        step = _events().PoissonSampledDpEvent(self.sampling_probability, noise)
        return _events().SelfComposedDpEvent(step, self.steps)


@checked
@dataclass(frozen=True)
class FixedLotSGDLoss(SampledSGDLoss):
    """DP-SGD on lots of fixed size drawn without replacement, under replace-one.

    ``noise_multiplier`` is the noise's standard deviation in units of the sensitivity of the
    summed gradient, which under this relation is *twice* the clipping norm.
    """

    kind = "fixed_lot_sgd"
    relation = NeighboringRelation.REPLACE_ONE
    _old_names: ClassVar[dict[str, str]] = {
        "sample_size": "lot_size",
        "dataset_size": "num_records",
    }
    noise_multiplier: float
    lot_size: int
    num_records: int
    steps: int

    def __post_init__(self) -> None:
        num_records = check_integer("num_records", self.num_records)
        self._store(
            noise_multiplier=check_positive("noise_multiplier", self.noise_multiplier),
            lot_size=check_integer("lot_size", self.lot_size, at_most=num_records),
            num_records=num_records,
            steps=check_integer("steps", self.steps),
        )

    @property
    def sampling_fraction(self) -> float:
        """The probability that a record is in a lot."""
        return self.lot_size / self.num_records

    @property
    def sampled_kind(self) -> SampledKind:
        """Which dominating pair a step has."""
        return "fixed"

    def for_group(self, size: int) -> FixedLotSGDLoss:
        """A lot holds one of them with at most ``size`` times the chance, and moves so far."""
        return FixedLotSGDLoss(
            self.noise_multiplier / size,
            min(self.num_records, size * self.lot_size),
            self.num_records,
            self.steps,
        )

    def to_event(self, relation: NeighboringRelation) -> Any:
        """Gaussian mechanisms on samples without replacement."""
        step = _events().SampledWithoutReplacementDpEvent(
            self.num_records, self.lot_size, _events().GaussianDpEvent(self.noise_multiplier)
        )
        return _events().SelfComposedDpEvent(step, self.steps)


def _events() -> Any:
    with needs_extra("accounting", "`to_event`"):
        from dp_accounting import dp_event  # takes a second, and only `to_event` needs it

    return dp_event


def _randomized_response(epsilon: float) -> Any:
    """Two answers, of which the wrong one has probability 1 / (1 + e^epsilon)."""
    if epsilon == 0:
        return _events().NoOpDpEvent()
    return _events().RandomizedResponseDpEvent(2 / (1 + math.exp(min(epsilon, 700.0))), 2)


_KINDS: dict[str, type[PrivacyLoss]] = {
    loss.kind: loss
    for loss in (
        PureLoss,
        LaplaceLoss,
        GaussianLoss,
        ApproximateLoss,
        PoissonSGDLoss,
        FixedLotSGDLoss,
    )
}


@checked
def loss_from_dict(state: dict[str, Any]) -> PrivacyLoss:
    """Inverse of :meth:`PrivacyLoss.to_dict`, also for older files; unknown kinds are refused."""
    kind = state.get("kind")
    if kind not in _KINDS:
        raise ValueError(f"`kind` of the `state` must be one of {sorted(_KINDS)}, got {kind!r}.")
    loss = _KINDS[kind]
    numbers = {loss._old_names.get(name, name): number for name, number in state.items()}
    del numbers["kind"]
    return loss(**numbers)
