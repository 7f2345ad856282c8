"""Guarantees: units of privacy, their composition, and released values.

A :class:`Guarantee` is data, not code: the numbers of each privacy loss, the neighbouring relation,
whom it protects, and the conditions it rests on. It compares, pickles and goes to JSON.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

import numpy as np
from scipy.special import ndtr, ndtri

from botorch_dp._checks import (
    check_delta,
    check_integer,
    check_nonnegative,
    warn_caller,
)
from botorch_dp.errors import PrivacyError
from botorch_dp.privacy.losses import (
    ApproximateLoss,
    GaussianLoss,
    NeighboringRelation,
    PrivacyLoss,
    PureLoss,
    SampledSGDLoss,
    loss_from_dict,
)
from botorch_dp.privacy.pld.composition import (
    composed_delta,
    composed_deltas,
    composed_epsilon,
)
from botorch_dp.privacy.rounding import rounded_up

if TYPE_CHECKING:
    from botorch_dp.privacy.receipt import Receipt

Status = Literal["proven", "conditional", "none"]
#: Longer values (models, data sets) are not printed.
_LONGEST_VALUE = 300

T_co = TypeVar("T_co", covariant=True)

#: The delta at which ``str`` quotes a guarantee when its owner has not chosen one.
DEFAULT_DELTA = 1e-6

#: Epsilons whose lines a trade-off function is made of.
_TRADEOFF_POINTS = 64

#: Above it nobody should rely on a promise.
_LARGE_EPSILON = 10

SIMULATED = "simulated noise: nothing is guaranteed"

#: What every training's guarantee rests on; ours say it in more detail.
FLOATING_POINT = "noise that is drawn in floating point protects as well as exact Gaussian noise"


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
        object.__setattr__(self, "conditions", tuple(self.conditions))

    @classmethod
    def of_person(
        cls, per_group: int, relation: NeighboringRelation = NeighboringRelation.REPLACE_ONE
    ) -> PrivacyUnit:
        """One person with all their records; at most ``per_group`` of them are used."""
        records = "1 record that is" if per_group == 1 else f"{per_group} records that are"
        return cls(f"{_OF_PERSON}{records} used", relation, (_ALL_OF_ONE,))

    @property
    def counted(self) -> str:
        """What the units are called: records or people."""
        return "people" if _OF_PERSON in self.protects else "records"

    @property
    def neighbours(self) -> str:
        """How neighbouring data sets differ."""
        words = self.relation.value
        return words if self.counted == "records" else words.replace("record", "person")

    def given(self, *conditions: str) -> PrivacyUnit:
        """The same unit with further conditions on the caller."""
        together = dict.fromkeys((*self.conditions, *conditions))
        return replace(self, conditions=tuple(together))


_OF_PERSON = "one person with all of at most "
_ALL_OF_ONE = (
    "all records of one person have the same identifier in `groups`, whatever the records of other "
    "people are"
)
#: The unit of most statements.
ONE_RECORD = PrivacyUnit()


def check_unit(unit: PrivacyUnit, *allowed: NeighboringRelation) -> PrivacyUnit:
    """Return ``unit``, or raise unless it is under one of the allowed relations."""
    if allowed and unit.relation not in allowed:
        raise PrivacyError(
            f"`unit` is under {unit.relation.name}, but this is proven under "
            f"{' or '.join(relation.name for relation in allowed)} only."
        )
    return unit


@dataclass(frozen=True)
class Guarantee:
    """A differential-privacy statement about one output.

    Args:
        mechanism: What made the output, in words.
        unit: Whom it protects, under which relation, and what rests on the caller.
        losses: The privacy losses the output is composed of.
        assumptions: What must be true of the world or of the mechanism for the statement to hold
            and can be proven by nobody here (a prior, a constant of somebody else's learner). A
            training with DP-SGD always has one: its noise is drawn in floating point.
        void: Why nothing is guaranteed, or None.
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
        object.__setattr__(self, "losses", tuple(self.losses))
        is_trained = any(isinstance(loss, SampledSGDLoss) for loss in self.losses)
        assumed = tuple(self.assumptions) or (FLOATING_POINT,) * is_trained
        object.__setattr__(self, "assumptions", assumed)
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
        assumptions that nobody can check; ``"none"`` where nothing is guaranteed.
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
        """The smallest epsilon known to hold at ``delta``; infinite without a guarantee."""
        check_delta("delta", delta, allow_zero=True)
        if self.status == "none":
            return math.inf
        return composed_epsilon(self.losses, delta)

    def delta(self, epsilon: float) -> float:
        """The smallest delta known to hold at ``epsilon``; 1 without a guarantee."""
        check_nonnegative("epsilon", epsilon)
        if self.status == "none":
            return 1.0
        return composed_delta(self.losses, epsilon)

    def tradeoff(self, alpha: float) -> float:
        """How well an attacker can do at best: a lower bound on their missed detections.

        Somebody who must tell two neighbouring data sets apart and accepts false alarms with
        probability ``alpha`` misses with at least this probability (the trade-off function of
        [Dong2022]): 1 - alpha where nothing is revealed, 0 where everything may be.

        Args:
            alpha: Probability of a false alarm, in [0, 1].

        Returns:
            The probability; exact for Gaussian mechanisms.

        Example:
            >>> g = Guarantee("survey", PrivacyUnit(), (PureLoss(1.0),))
            >>> round(g.tradeoff(0.05), 3)
            0.864
        """
        if not 0 <= alpha <= 1:
            raise ValueError(f"`alpha` must lie in [0, 1], got {alpha}.")
        if self.status == "none" or self.mu == math.inf:
            return 0.0
        if self.mu is not None:
            # By the tail itself, which does not vanish beside 1.
            return float(ndtr(-ndtri(alpha) - self.mu))
        # The largest of the lines that (epsilon, delta)-DP draws for many epsilons.
        tail = max(1e-9, 2 * composed_deltas(self.losses, (1e6,))[0])
        reach = composed_epsilon(self.losses, min(tail, 0.999))
        if not math.isfinite(reach):
            return 0.0
        epsilons = np.linspace(0, reach, _TRADEOFF_POINTS)
        deltas = np.array(composed_deltas(self.losses, epsilons.tolist()))
        with np.errstate(divide="ignore", over="ignore"):
            alarms = np.exp(epsilons + np.log(alpha))
        lines = np.maximum(1 - deltas - alarms, (1 - deltas - alpha) * np.exp(-epsilons))
        return max(0.0, float(lines.max()))

    def for_group(self, size: int) -> Guarantee:
        """The guarantee of the same output for a group of ``size`` units together.

        Exact for Gaussian mechanisms, whose sensitivity is as many times larger. Anything else is
        taken as the (epsilon, delta) that it is quoted at: a group has ``size`` times the epsilon,
        and delta times the sum of ``e^(i epsilon)``, i < ``size``.

        Args:
            size: How many units may change at once, at least 1.

        Example:
            >>> household = Guarantee("survey", PrivacyUnit(), (GaussianLoss(0.5),)).for_group(4)
            >>> household.mu
            2.0
        """
        unit = replace(
            self.unit,
            protects=f"a group of {check_integer('size', size)}, each of them {self.protects}",
        )
        if size == 1 or self.void is not None:
            return self
        if self.mu is not None:
            return replace(self, unit=unit, losses=(GaussianLoss(size * self.mu),))
        epsilon, delta = self.quoted
        # The sum of a geometric series; 1 + 1e-12 exceeds what rounding takes from it.
        growth = min(size * epsilon, 700.0)
        total = math.expm1(growth) / math.expm1(epsilon) if epsilon > 1e-300 else size
        delta *= total * (1 + 1e-12)
        if not (math.isfinite(epsilon) and delta < 1):
            raise PrivacyError(
                f"This guarantee says nothing about a group of {size}: its delta would be "
                f"{rounded_up(delta, 3)}. Quote it at a smaller delta with `quoted_at`."
            )
        loss = ApproximateLoss(size * epsilon, delta) if delta else PureLoss(size * epsilon)
        return replace(self, unit=unit, losses=(loss,), quoted_delta=delta or None)

    def to_event(self) -> Any:
        """The losses as an event of dp-accounting, for its ``PLDAccountant``.

        Give the accountant the same neighbouring relation. It counts Gaussian noise in units of
        what one added record changes, half as much as a replaced one, so noise multipliers are
        doubled under REPLACE_ONE. Batches of fixed size are known to its ``RdpAccountant`` only,
        which counts in our units there; they cannot be mixed with Gaussian noise in one event.

        Raises:
            PrivacyError: If dp-accounting has no event that bounds a loss under this relation.

        Example:
            >>> g = Guarantee("survey", PrivacyUnit(), (GaussianLoss(0.5),))
            >>> g.to_event().noise_multiplier
            4.0
        """
        from botorch_dp.privacy.events import accountable

        return accountable(self)

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
        """The guarantee of the same parameters with real noise (itself unless simulated)."""
        return replace(self, void=None) if self.void == SIMULATED else self

    def simulated(self) -> Guarantee:
        """The same mechanism run with reproducible noise: it guarantees nothing."""
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
        """Inverse of :meth:`to_dict`."""
        try:
            relation, conditions = NeighboringRelation[state["relation"]], state["conditions"]
            return cls(
                mechanism=state["mechanism"],
                unit=PrivacyUnit(state["protects"], relation, tuple(conditions)),
                losses=tuple(loss_from_dict(loss) for loss in state["losses"]),
                assumptions=tuple(state["assumptions"]),
                void=state["void"],
                quoted_delta=state["quoted_delta"],
            )
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ValueError(f"`state` describes no guarantee ({error!r}).") from error

    def __str__(self) -> str:
        """The sentence, the mechanism, and what it rests on, numbered, one a line."""
        if self.void is not None:
            return self.sentence
        lines = [self.sentence, f"Mechanism: {self.mechanism}."]
        if not self.conditions:
            lines[-1] += " Proven without conditions."
        first = len(self.unit.conditions) + 1
        if self.unit.conditions:
            lines += ["It holds if:", *_lines(self.unit.conditions)]
        if self.assumptions:
            lines += ["Assumed, not proven:", *_lines(self.assumptions, first)]
        return "\n".join(lines)

    @property
    def sentence(self) -> str:
        """The level, whom it protects and what is compared, without the conditions."""
        if self.void is not None:
            return f"{self.mechanism}: no privacy guarantee ({self.void})."
        return f"{self._quoted_level()} for {self.protects}, when {self.unit.neighbours}."

    @property
    def in_plan(self) -> str:
        """The sentence, and where the conditions are: the line of a plan."""
        if self.void is not None or not self.conditions:
            return self.sentence
        many = f"{len(self.conditions)} condition{'s' * (len(self.conditions) != 1)}"
        return f"{self.sentence} It rests on {many}: print(plan.guarantee)."

    @property
    def quoted(self) -> tuple[float, float]:
        """The (epsilon, delta) that ``str``, :meth:`paragraph` and a receipt state."""
        if self.summed is not None:
            return self.summed
        delta = DEFAULT_DELTA if self.quoted_delta is None else self.quoted_delta
        return self.epsilon(delta), delta

    def paragraph(self) -> str:
        """The statement in whole plain sentences, for a report or a lawyer.

        Whom it protects, what is compared, epsilon and delta and what they mean in odds, and every
        condition.

        Example:
            >>> print(Guarantee("survey", PrivacyUnit(), (PureLoss(1.0),)).paragraph()[:68])
            This guarantee protects one record of the data set. It is about what
        """
        return _paragraph(self)

    def _quoted_level(self) -> str:
        epsilon, delta = self.quoted
        if delta == 0:
            return f"{rounded_up(epsilon)}-differentially private"
        level = f"({rounded_up(epsilon)}, {rounded_up(delta)})-differentially private"
        if self.mu is not None:
            return f"{rounded_up(self.mu)}-Gaussian differentially private, which is {level}"
        return level


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
            f"Cannot compose guarantees under different neighbouring relations ({names}): account "
            "for all parts under one."
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


def warn_large_delta(delta: float, num_records: int | None) -> None:
    """Warn, at the line outside of this package that asked, if ``delta`` is not below 1 / n.

    Where the number of records is not known, there is nothing to warn of.

    Such a guarantee is true and useless: publishing each record as it is with probability delta
    satisfies it.
    """
    if num_records is None or delta * check_integer("num_records", num_records) < 1:
        return
    warn_caller(
        f"`delta` = {rounded_up(delta)} is not below 1 / {num_records:,}: publishing whole records "
        "with that probability would satisfy the same guarantee. Choose a delta far below it."
    )


@lru_cache(maxsize=1024)
def warn_large_epsilon(epsilon: float) -> None:
    """Warn, once for each value, that a stated ``epsilon`` above 10 guarantees next to nothing."""
    if epsilon > _LARGE_EPSILON:
        times = rounded_up(math.exp(epsilon), 2) if epsilon < 700 else "more than 1e300"
        warn_caller(
            f"`epsilon` = {rounded_up(epsilon)} guarantees next to nothing: a conclusion may be "
            f"{times} times as likely with a record as without it. From 1 to 3 is a meaningful "
            f"guarantee; above {_LARGE_EPSILON} hardly any is left."
        )


@dataclass(frozen=True, eq=False)
class Release(Generic[T_co]):
    """A value that may be published, with its guarantee.

    Args:
        value: The released value.
        guarantee: Its status is ``"none"`` when the noise was simulated.
        scale: The public scale of the noise, or None if the mechanism has no single one.
        digest: Of the value when it was made, if it can be changed since, as models can: a receipt
            of a changed one is refused.
        facts: Public facts for the receipt, by their names in :meth:`Receipt.of`.
    """

    value: T_co
    guarantee: Guarantee
    _: KW_ONLY
    scale: float | None = None
    digest: str | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)

    def receipt(self, **facts: Any) -> Receipt:
        """A document that a stranger can check.

        Args:
            facts: See :meth:`Receipt.of`. They replace those that the release has.

        Example:
            >>> release = laplace_mechanism(0.25, sensitivity=0.01, epsilon=1.0)
            >>> release.receipt().save("receipt.json")
        """
        from botorch_dp.privacy.receipt import Receipt

        return Receipt.of(self, **{**self.facts, **facts})

    def __str__(self) -> str:
        """The value, the noise and the guarantee, to be pasted into a report."""
        value = str(self.value)
        if len(value) > _LONGEST_VALUE:
            value = f"Released: {type(self.value).__name__}, too long to be shown here."
        noise = [] if self.scale is None else [f"Scale of the noise: {rounded_up(self.scale)}."]
        return "\n".join([value, *noise, str(self.guarantee)])


@lru_cache(maxsize=64)
def _paragraph(guarantee: Guarantee) -> str:
    if guarantee.void is not None:
        return (
            f"This output comes with no privacy guarantee ({guarantee.void}). It was made by: "
            f"{guarantee.mechanism}. Do not publish it as private."
        )
    epsilon, delta = guarantee.quoted
    if not math.isfinite(epsilon):
        return (
            f"This output guarantees nothing at delta = {rounded_up(delta)}: no epsilon holds. "
            f"It was made by: {guarantee.mechanism}."
        )
    factor = rounded_up(math.exp(epsilon)) if epsilon < 700 else "more than 1e300"
    more = f", plus a probability of at most {rounded_up(delta)} (delta)" if delta else ""
    # The best guess at even odds is right with (1 + total variation) / 2.
    guess = rounded_up(50 * (1 + guarantee.delta(0.0)), 3)
    caught = rounded_up(100 * (1 - guarantee.tradeoff(0.05)), 3)
    sentences = [
        f"This guarantee protects {guarantee.protects}.",
        f"It is about what anybody can learn from the output of: {guarantee.mechanism}.",
        f"Take two data sets that differ in one thing: {guarantee.unit.neighbours}.",
        f"Any conclusion that anyone draws from the output is at most {factor} times as likely for "
        f"one as for the other (epsilon = {rounded_up(epsilon)}){more}, whatever else they know.",
        "In odds: whoever thinks both data sets equally likely before they see the output "
        f"guesses right which of them it was made from with a probability of at most {guess}%.",
        "An attack with a 5% false-positive rate detects the change at most "
        f"{caught}% of the time.",
    ]
    if guarantee.unit.conditions:
        sentences.append(
            "The guarantee rests on conditions that no computation has checked, and that are "
            f"the responsibility of whoever ran this: {_numbered(guarantee.unit.conditions)}."
        )
    if guarantee.assumptions:
        sentences.append(
            "It also rests on assumptions that nobody has proven: "
            f"{_numbered(guarantee.assumptions)}."
        )
    if not guarantee.conditions:
        sentences.append(
            "It rests on no condition beyond the software doing what its documentation says."
        )
    return " ".join(sentences)


def _lines(sentences: Sequence[str], first: int = 1) -> list[str]:
    return [f"{number}. {text}" for number, text in enumerate(sentences, first)]


def _numbered(sentences: Sequence[str]) -> str:
    if len(sentences) == 1:
        return sentences[0]
    return "; ".join(f"({place}) {each}" for place, each in enumerate(sentences, start=1))


def _joined_mechanisms(names: Iterable[str]) -> str:
    counts = Counter(names)
    if len(counts) == 1 and next(iter(counts.values())) == 1:
        return next(iter(counts))
    parts = [name if count == 1 else f"{count} x {name}" for name, count in counts.items()]
    return "composition of " + ", ".join(parts)
