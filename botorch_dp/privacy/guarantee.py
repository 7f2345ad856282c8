"""What is promised: guarantees, their composition, and released values.

A :class:`Guarantee` is data, not code: the numbers of each privacy loss, the neighbouring relation,
whom it protects, and the conditions it rests on. It compares, pickles and goes to JSON.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, Generic, Literal, TypeVar

from botorch_dp.checks import check_delta, check_nonnegative
from botorch_dp.errors import PrivacyError
from botorch_dp.privacy.composition import composed_delta, composed_epsilon
from botorch_dp.privacy.losses import (
    ApproximateLoss,
    GaussianLoss,
    LaplaceLoss,
    PrivacyLoss,
    PureLoss,
    loss_from_dict,
    loss_to_dict,
)

Status = Literal["proven", "conditional", "none"]
T_co = TypeVar("T_co", covariant=True)

#: From the strongest to the weakest: a composition is as strong as its weakest part.
_STATUSES: tuple[Status, ...] = ("proven", "conditional", "none")

#: The delta at which ``str`` quotes a guarantee that has no (epsilon, delta) of its own.
QUOTED_DELTA = 1e-6

SIMULATED = "not private: simulated noise"


class NeighboringRelation(Enum):
    """Which two data sets must be hard to tell apart. The value says it in words."""

    REPLACE_ONE = "one record is replaced by any other"
    ADD_OR_REMOVE_ONE = "one record is added or removed"
    BOUNDED_ROW = "one row moves by at most the stated distance"


@dataclass(frozen=True)
class Guarantee:
    """A differential-privacy statement about one output.

    Args:
        mechanism: What made the output, in words.
        relation: The neighbouring relation.
        losses: The privacy losses the output is composed of; see :mod:`.losses`.
        protects: Whom or what one unit of the relation is.
        conditions: What must be true for the statement to hold, one sentence each.
        status: ``"proven"`` (by construction), ``"conditional"`` (true when the conditions are,
            which the code cannot check) or ``"none"`` (nothing is promised).

    Example:
        >>> g = Guarantee("Laplace mechanism", NeighboringRelation.REPLACE_ONE, (LaplaceLoss(0.5),))
        >>> g.epsilon()
        0.5
    """

    mechanism: str
    relation: NeighboringRelation
    losses: tuple[PrivacyLoss, ...]
    protects: str = "one record of the data set"
    conditions: tuple[str, ...] = ()
    status: Status = "proven"

    def __post_init__(self) -> None:
        if self.status not in _STATUSES:
            raise ValueError(f"`status` must be one of {_STATUSES}, got {self.status!r}.")
        if not isinstance(self.relation, NeighboringRelation):
            raise TypeError(f"`relation` must be a NeighboringRelation, got {self.relation!r}.")
        if isinstance(self.conditions, str) or isinstance(self.losses, PrivacyLoss):
            raise TypeError("`losses` and `conditions` must be tuples.")
        object.__setattr__(self, "losses", tuple(self.losses))
        object.__setattr__(self, "conditions", tuple(self.conditions))
        if self.status == "conditional" and not self.conditions:
            raise ValueError("A conditional guarantee must name its `conditions`.")
        if self.status != "none" and not self.losses:
            raise ValueError("`losses` is empty: a guarantee needs at least one privacy loss.")

    def epsilon(self, delta: float = 0.0) -> float:
        """The smallest epsilon known to hold at ``delta``; infinite if nothing is promised."""
        check_delta("delta", delta, allow_zero=True)
        if self.status == "none":
            return math.inf
        return composed_epsilon(self.losses, delta)

    def delta(self, epsilon: float) -> float:
        """The smallest delta known to hold at ``epsilon``; 1 if nothing is promised."""
        check_nonnegative("epsilon", epsilon)
        if self.status == "none":
            return 1.0
        return composed_delta(self.losses, epsilon)

    @property
    def mu(self) -> float | None:
        """The parameter of Gaussian differential privacy, or None if not purely Gaussian."""
        if self.status == "none" or not all(isinstance(loss, GaussianLoss) for loss in self.losses):
            return None
        return math.hypot(*(loss.mu for loss in self.losses if isinstance(loss, GaussianLoss)))

    @property
    def summed(self) -> tuple[float, float] | None:
        """The (epsilon, delta) that basic composition adds up, or None if a part has none."""
        return None if self.status == "none" else _summed(self.losses)

    @property
    def nominal(self) -> Guarantee:
        """What the same parameters would promise with real noise (itself unless simulated)."""
        if SIMULATED not in self.conditions:
            return self
        conditions = tuple(c for c in self.conditions if c != SIMULATED)
        return replace(
            self, conditions=conditions, status="conditional" if conditions else "proven"
        )

    def simulated(self) -> Guarantee:
        """The same mechanism run with reproducible noise: it promises nothing."""
        if SIMULATED in self.conditions:
            return self
        return replace(self, conditions=(*self.conditions, SIMULATED), status="none")

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready form."""
        return {
            "mechanism": self.mechanism,
            "relation": self.relation.name,
            "losses": [loss_to_dict(loss) for loss in self.losses],
            "protects": self.protects,
            "conditions": list(self.conditions),
            "status": self.status,
        }

    @classmethod
    def from_dict(cls, state: dict[str, Any]) -> Guarantee:
        """Inverse of :meth:`to_dict`."""
        return cls(
            mechanism=state["mechanism"],
            relation=NeighboringRelation[state["relation"]],
            losses=tuple(loss_from_dict(loss) for loss in state["losses"]),
            protects=state["protects"],
            conditions=tuple(state["conditions"]),
            status=state["status"],
        )

    def __str__(self) -> str:
        if self.status == "none":
            reasons = "; ".join(self.conditions) or "no reason was given"
            if SIMULATED in self.conditions:
                reasons = SIMULATED
            return f"{self.mechanism}: no privacy guarantee ({reasons})."
        subject = f"{self.mechanism}: {self._quoted_level()} for {self.protects}"
        sentence = f"{subject}, when {self.relation.value}"
        if self.status == "proven":
            given = f", given that {'; '.join(self.conditions)}" if self.conditions else ""
            return f"{sentence} (proven{given})."
        return f"{sentence}. This holds on condition that {'; '.join(self.conditions)}."

    def _quoted_level(self) -> str:
        summed = self.summed
        if summed is not None:
            epsilon, delta = summed
            if delta == 0:
                return f"{rounded_up(epsilon)}-differentially private"
            return f"({rounded_up(epsilon)}, {rounded_up(delta)})-differentially private"
        quoted = rounded_up(self.epsilon(QUOTED_DELTA))
        level = f"({quoted}, {QUOTED_DELTA:g})-differentially private"
        if self.mu is not None:
            return f"{rounded_up(self.mu)}-Gaussian differentially private, which is {level}"
        return level


def compose(*guarantees: Guarantee) -> Guarantee:
    """The guarantee of publishing all outputs together.

    The losses are put together as they are, so that :meth:`Guarantee.epsilon` can account for them
    jointly (privacy-loss distributions, Rényi divergences, exact Gaussian composition) rather than
    add up their epsilons. Sound when which mechanism runs next, and its parameters, were fixed
    before anything was released; when they depend on earlier outputs, charge a
    :class:`~botorch_dp.privacy.PrivacyLedger`, which is a filter.

    Args:
        guarantees: At least one; all under one neighbouring relation.

    Returns:
        A guarantee with all losses, all conditions and the weakest status.
    """
    if not guarantees:
        raise ValueError("`compose` needs at least one guarantee.")
    relations = {g.relation for g in guarantees}
    if len(relations) > 1:
        names = sorted(relation.name for relation in relations)
        raise PrivacyError(
            f"Cannot compose guarantees under different neighbouring relations ({names}): an "
            "epsilon under one is no epsilon under another. Account for all parts under one."
        )
    return Guarantee(
        mechanism=_joined_mechanisms(g.mechanism for g in guarantees),
        relation=guarantees[0].relation,
        losses=tuple(loss for g in guarantees for loss in g.losses),
        protects=" and ".join(dict.fromkeys(g.protects for g in guarantees)),
        conditions=tuple(dict.fromkeys(c for g in guarantees for c in g.conditions)),
        status=max((g.status for g in guarantees), key=_STATUSES.index),
    )


@dataclass(frozen=True, eq=False)
class Release(Generic[T_co]):
    """A value that may be published, with what is promised for it.

    Args:
        value: The released value.
        guarantee: The promise; its status is ``"none"`` when the noise was simulated.
        scale: The public scale of the noise, or None if the mechanism has no single one.
    """

    value: T_co
    guarantee: Guarantee
    scale: float | None = None


def _summed(losses: Iterable[PrivacyLoss]) -> tuple[float, float] | None:
    epsilons, deltas = [], []
    for loss in losses:
        if isinstance(loss, PureLoss | LaplaceLoss):
            epsilons.append(loss.epsilon)
        elif isinstance(loss, ApproximateLoss):
            epsilons.append(loss.epsilon)
            deltas.append(loss.delta)
        else:
            return None
    return math.fsum(epsilons), min(1.0, math.fsum(deltas))


def _joined_mechanisms(names: Iterable[str]) -> str:
    counts = Counter(names)
    if len(counts) == 1 and next(iter(counts.values())) == 1:
        return next(iter(counts))
    parts = [name if count == 1 else f"{count} x {name}" for name, count in counts.items()]
    return "composition of " + ", ".join(parts)


def rounded_up(value: float, digits: int = 4) -> str:
    """``value`` to some significant digits, never smaller: a quoted guarantee must be true."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    step = 10.0 ** (math.floor(math.log10(abs(value))) - digits + 1)
    text = f"{value:.{digits}g}"
    return text if float(text) >= value else f"{value + step / 2:.{digits}g}"
