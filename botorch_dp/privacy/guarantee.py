"""What is promised: guarantees, their composition, and released values.

A :class:`Guarantee` is data, not code: the numbers of each privacy loss, the neighbouring relation,
whom it protects, and the conditions it rests on. It compares, pickles and goes to JSON.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, Literal, TypeVar

import numpy as np
from scipy.special import ndtr, ndtri

from botorch_dp._checks import (
    check_delta,
    check_integer,
    check_nonnegative,
    checked,
    checked_but,
    needs_extra,
)
from botorch_dp.errors import PrivacyError
from botorch_dp.privacy._composition import composed_delta, composed_deltas, composed_epsilon
from botorch_dp.privacy.losses import (
    FixedLotSGDLoss,
    GaussianLoss,
    NeighboringRelation,
    PrivacyLoss,
    loss_from_dict,
)

Status = Literal["proven", "conditional", "none"]
T_co = TypeVar("T_co", covariant=True)

#: The delta at which ``str`` quotes a guarantee when its owner has not chosen one.
DEFAULT_DELTA = 1e-6

#: Epsilons whose lines a trade-off function is made of.
_TRADEOFF_POINTS = 64

SIMULATED = "simulated noise: nothing is promised"


def _sentences(name: str, value: object) -> tuple[str, ...]:
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise TypeError(f"`{name}` must be a tuple of sentences, got {type(value).__name__}.")
    sentences = tuple(value)
    if not all(isinstance(sentence, str) for sentence in sentences):
        raise TypeError(f"`{name}` must be a tuple of sentences.")
    return sentences


@checked
@dataclass(frozen=True)
class PrivacyUnit:
    """Whom a guarantee protects, against which change of the data, and what rests on the caller.

    Args:
        protects: Whom or what one unit of the relation is, in words.
        relation: The neighbouring relation.
        conditions: What the caller must see to, one sentence each, such as "a record's score
            depends on that record only". Nothing in the code can check them, so they are printed.

    Example:
        >>> PrivacyUnit("one patient", conditions=("a patient has one record",))
    """

    protects: str = "one record of the data set"
    relation: NeighboringRelation = NeighboringRelation.REPLACE_ONE
    conditions: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.protects, str) or not self.protects:
            raise TypeError(f"`protects` must say whom or what in words, got {self.protects!r}.")
        if not isinstance(self.relation, NeighboringRelation):
            raise TypeError(f"`relation` must be a NeighboringRelation, got {self.relation!r}.")
        object.__setattr__(self, "conditions", _sentences("conditions", self.conditions))

    def given(self, *conditions: str) -> PrivacyUnit:
        """The same unit with further conditions on the caller."""
        together = dict.fromkeys((*self.conditions, *conditions))
        return replace(self, conditions=tuple(together))


#: The unit of most statements.
ONE_RECORD = PrivacyUnit()


@checked
def check_unit(unit: object, *allowed: NeighboringRelation) -> PrivacyUnit:
    """Return ``unit``, or raise unless it is a PrivacyUnit under one of the allowed relations."""
    if not isinstance(unit, PrivacyUnit):
        raise TypeError(f"`unit` must be a PrivacyUnit, got {type(unit).__name__}.")
    if allowed and unit.relation not in allowed:
        raise PrivacyError(
            f"`unit` is under {unit.relation.name}, but this is proven under "
            f"{' or '.join(relation.name for relation in allowed)} only: pass a PrivacyUnit with "
            "that relation."
        )
    return unit


@checked_but("alpha")
@dataclass(frozen=True)
class Guarantee:
    """A differential-privacy statement about one output.

    Args:
        mechanism: What made the output, in words.
        unit: Whom it protects, under which relation, and what rests on the caller.
        losses: The privacy losses the output is composed of; see :mod:`.losses`.
        assumptions: What must be true of the world or of the mechanism for the statement to hold
            and can be proven by nobody here (a prior, a constant of somebody else's learner).
        void: Why nothing is promised, or None.
        quoted_delta: The delta its owner asked for, at which ``str`` quotes it.

    Example:
        >>> g = Guarantee("Laplace mechanism", PrivacyUnit(), (LaplaceLoss(0.5),))
        >>> g.epsilon(), g.status
        (0.5, 'proven')
    """

    mechanism: str
    unit: PrivacyUnit
    losses: tuple[PrivacyLoss, ...]
    assumptions: tuple[str, ...] = ()
    void: str | None = None
    quoted_delta: float | None = None

    def __post_init__(self) -> None:
        check_unit(self.unit)
        if isinstance(self.losses, PrivacyLoss):
            raise TypeError("`losses` must be a tuple of privacy losses, got a single one.")
        object.__setattr__(self, "losses", tuple(self.losses))
        object.__setattr__(self, "assumptions", _sentences("assumptions", self.assumptions))
        if self.void is None and not self.losses:
            raise ValueError("`losses` is empty: a guarantee needs at least one privacy loss.")
        for loss in self.losses:
            if loss.relation not in (None, self.unit.relation):
                raise PrivacyError(
                    f"A {type(loss).__name__} under {loss.relation.name} says nothing about "
                    f"{self.unit.relation.name}, the relation of `unit`: account for it under that."
                )
        if self.quoted_delta is not None:
            check_delta("quoted_delta", self.quoted_delta)

    @property
    def status(self) -> Status:
        """How firm the statement is.

        ``"proven"`` by construction, the caller keeping the unit's conditions; ``"conditional"`` on
        assumptions that nobody can check; ``"none"`` where nothing is promised.
        """
        if self.void is not None:
            return "none"
        return "conditional" if self.assumptions else "proven"

    @property
    def relation(self) -> NeighboringRelation:
        """The neighbouring relation."""
        return self.unit.relation

    @property
    def protects(self) -> str:
        """Whom or what one unit is."""
        return self.unit.protects

    @property
    def conditions(self) -> tuple[str, ...]:
        """All that must be true: what rests on the caller, then the assumptions."""
        return (*self.unit.conditions, *self.assumptions)

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

    def tradeoff(self, alpha: float | Sequence[float]) -> float | list[float]:
        """How well an attacker can do at best: a lower bound on their missed detections.

        Somebody who must tell two neighbouring data sets apart and accepts false alarms with
        probability ``alpha`` misses with at least this probability (the trade-off function of
        [Dong2022]): 1 - alpha where nothing is revealed, 0 where everything may be.

        Args:
            alpha: Probabilities of a false alarm, in [0, 1].

        Returns:
            One probability for each, exact for Gaussian mechanisms.

        Example:
            >>> g = Guarantee("survey", PrivacyUnit(), (PureLoss(1.0),))
            >>> round(g.tradeoff(0.05), 3)
            0.864
        """
        try:
            alphas = np.atleast_1d(np.asarray(alpha, dtype=float))
        except (TypeError, ValueError, MemoryError) as error:
            raise TypeError(f"`alpha` must be numbers, got {type(alpha).__name__}.") from error
        if alphas.ndim != 1 or not ((alphas >= 0) & (alphas <= 1)).all():
            raise ValueError("`alpha` must be probabilities of a false alarm, from 0 to 1.")
        if self.status == "none":
            missed = np.zeros(len(alphas))
        elif self.mu is not None:
            missed = ndtr(ndtri(1 - alphas) - self.mu)
        else:
            missed = self._tradeoff(alphas[:, None])
        return float(missed[0]) if np.ndim(alpha) == 0 else missed.tolist()

    def _tradeoff(self, alphas: np.ndarray) -> np.ndarray:
        """The largest of the lines that (epsilon, delta)-DP draws for many epsilons."""
        tail = max(1e-9, 2 * composed_deltas(self.losses, (1e6,))[0])
        reach = composed_epsilon(self.losses, min(tail, 0.999))
        if not math.isfinite(reach):
            return np.zeros(len(alphas))
        epsilons = np.linspace(0, reach, _TRADEOFF_POINTS)
        deltas = np.array(composed_deltas(self.losses, epsilons.tolist()))
        factor = np.exp(np.minimum(epsilons, 700))
        lines = np.maximum(1 - deltas - factor * alphas, (1 - deltas - alphas) / factor)
        return np.maximum(lines.max(axis=1), 0.0)

    def for_group(self, size: int) -> Guarantee:
        """What the same output promises to a group of ``size`` units together.

        Exact for Gaussian and Laplace mechanisms and for any pure one, whose sensitivity is as many
        times larger. For DP-SGD a lot that holds one of them counts as holding all, which is much
        too cautious where noise is small.

        Args:
            size: How many units may change at once, at least 1.

        Example:
            >>> household = Guarantee("survey", PrivacyUnit(), (GaussianLoss(0.5),)).for_group(4)
            >>> household.mu
            2.0
        """
        size = check_integer("size", size)
        if size == 1:
            return self
        protects = f"a group of {size}, each of them {self.protects}"
        return replace(
            self,
            unit=replace(self.unit, protects=protects),
            losses=tuple(loss.for_group(size) for loss in self.losses),
        )

    def to_event(self) -> Any:
        """The losses as an event of dp-accounting, for its ``PLDAccountant``.

        Give the accountant the same neighbouring relation. It counts Gaussian noise in units of
        what one added record changes, half as much as a replaced one, so noise multipliers are
        doubled under REPLACE_ONE. Lots of fixed size are known to its ``RdpAccountant`` only,
        which counts in our units there; they cannot be mixed with Gaussian noise in one event.

        Raises:
            PrivacyError: If dp-accounting has no event that bounds a loss under this relation.

        Example:
            >>> g = Guarantee("survey", PrivacyUnit(), (GaussianLoss(0.5),))
            >>> g.to_event().noise_multiplier
            4.0
        """
        with needs_extra("accounting", "`to_event`"):
            from dp_accounting import dp_event  # takes a second, and only this needs it

        if self.void is not None:
            return dp_event.NonPrivateDpEvent()
        events = [loss.to_event(self.relation) for loss in self.losses]
        fixed = [isinstance(loss, FixedLotSGDLoss) for loss in self.losses]
        if any(fixed) and not all(fixed):
            raise PrivacyError(
                "No accountant of dp-accounting takes lots of fixed size together with other "
                "losses under one meaning of their noise: convert the guarantees one by one."
            )
        return events[0] if len(events) == 1 else dp_event.ComposedDpEvent(events)

    @property
    def mu(self) -> float | None:
        """The parameter of Gaussian differential privacy, or None if not purely Gaussian."""
        if self.status == "none" or not all(isinstance(loss, GaussianLoss) for loss in self.losses):
            return None
        return math.hypot(*(loss.mu for loss in self.losses if isinstance(loss, GaussianLoss)))

    @property
    def summed(self) -> tuple[float, float] | None:
        """The (epsilon, delta) that basic composition adds up, or None if a part has none."""
        parts = [loss.summed for loss in self.losses]
        known = [part for part in parts if part is not None]
        if self.status == "none" or len(known) < len(parts):
            return None
        return (
            math.fsum(epsilon for epsilon, _ in known),
            min(1.0, math.fsum(delta for _, delta in known)),
        )

    @property
    def nominal(self) -> Guarantee:
        """What the same parameters would promise with real noise (itself unless simulated)."""
        return replace(self, void=None) if self.void == SIMULATED else self

    def simulated(self) -> Guarantee:
        """The same mechanism run with reproducible noise: it promises nothing."""
        return replace(self, void=SIMULATED) if self.void is None else self

    def quoted_at(self, delta: float) -> Guarantee:
        """The same statement, quoted at the delta that somebody asked for."""
        return replace(self, quoted_delta=check_delta("delta", delta))

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready form."""
        return {
            "mechanism": self.mechanism,
            "relation": self.relation.name,
            "protects": self.protects,
            "conditions": list(self.unit.conditions),
            "losses": [loss.to_dict() for loss in self.losses],
            "assumptions": list(self.assumptions),
            "void": self.void,
            "quoted_delta": self.quoted_delta,
        }

    @classmethod
    def from_dict(cls, state: dict[str, Any]) -> Guarantee:
        """Inverse of :meth:`to_dict`; also reads the form that stored a status."""
        try:
            return cls._of_state(state)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ValueError(f"`state` describes no guarantee ({error!r}).") from error

    @classmethod
    def _of_state(cls, state: dict[str, Any]) -> Guarantee:
        conditions, assumptions, void = state["conditions"], state.get("assumptions", ()), None
        if "status" not in state:
            void = state["void"]
        elif state["status"] == "conditional":
            conditions, assumptions = (), conditions
        elif state["status"] == "none":
            conditions, void = (), "; ".join(conditions) or "no reason was given"
        return cls(
            mechanism=state["mechanism"],
            unit=PrivacyUnit(
                state["protects"], NeighboringRelation[state["relation"]], tuple(conditions)
            ),
            losses=tuple(loss_from_dict(loss) for loss in state["losses"]),
            assumptions=tuple(assumptions),
            void=void,
            quoted_delta=state.get("quoted_delta"),
        )

    def __str__(self) -> str:
        if self.void is not None:
            return f"{self.mechanism}: no privacy guarantee ({self.void})."
        subject = f"{self.mechanism}: {self._quoted_level()} for {self.protects}"
        sentence = f"{subject}, when {self.relation.value}"
        given = "; ".join(self.unit.conditions)
        if self.status == "proven":
            return f"{sentence} (proven{f', given that {given}' if given else ''})."
        return f"{sentence}. This holds on condition that {'; '.join(self.conditions)}."

    def _quoted_level(self) -> str:
        summed = self.summed
        if summed is not None:
            epsilon, delta = summed
            if delta == 0:
                return f"{rounded_up(epsilon)}-differentially private"
            return f"({rounded_up(epsilon)}, {rounded_up(delta)})-differentially private"
        delta = DEFAULT_DELTA if self.quoted_delta is None else self.quoted_delta
        level = f"({rounded_up(self.epsilon(delta))}, {delta:g})-differentially private"
        if self.mu is not None:
            return f"{rounded_up(self.mu)}-Gaussian differentially private, which is {level}"
        return level


@checked
def compose(*guarantees: Guarantee) -> Guarantee:
    """The guarantee of publishing all outputs together.

    The losses are put together as they are, so that :meth:`Guarantee.epsilon` can account for them
    jointly (privacy-loss distributions, exact Gaussian composition) rather than
    add up their epsilons. Sound when which mechanism runs next, and its parameters, were fixed
    before anything was released; when they depend on earlier outputs, charge a
    :class:`~botorch_dp.privacy.PrivacyLedger`, which is a filter.

    Args:
        guarantees: At least one; all under one neighbouring relation.

    Returns:
        A guarantee with all losses, conditions and assumptions; void if one of them is.
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
    voids = [g.void for g in guarantees if g.void is not None]
    deltas = {g.quoted_delta for g in guarantees}
    return Guarantee(
        mechanism=_joined_mechanisms(g.mechanism for g in guarantees),
        unit=PrivacyUnit(
            protects=" and ".join(dict.fromkeys(g.protects for g in guarantees)),
            relation=guarantees[0].relation,
            conditions=tuple(dict.fromkeys(c for g in guarantees for c in g.unit.conditions)),
        ),
        losses=tuple(loss for g in guarantees for loss in g.losses),
        assumptions=tuple(dict.fromkeys(a for g in guarantees for a in g.assumptions)),
        void="; ".join(dict.fromkeys(voids)) if voids else None,
        quoted_delta=deltas.pop() if len(deltas) == 1 else None,
    )


@checked_but("guarantee")
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


def _joined_mechanisms(names: Iterable[str]) -> str:
    counts = Counter(names)
    if len(counts) == 1 and next(iter(counts.values())) == 1:
        return next(iter(counts))
    parts = [name if count == 1 else f"{count} x {name}" for name, count in counts.items()]
    return "composition of " + ", ".join(parts)


@checked
def rounded_up(value: float, digits: int = 4) -> str:
    """``value`` to some significant digits, never smaller: a quoted guarantee must be true."""
    check_integer("digits", digits, at_most=17)
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    step = 10.0 ** (math.floor(math.log10(abs(value))) - digits + 1)
    text = f"{value:.{digits}g}"
    return text if float(text) >= value else f"{value + step / 2:.{digits}g}"
