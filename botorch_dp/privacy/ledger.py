r"""A durable privacy budget that stays sound when charges depend on what was released before.

Choosing the next release (and its epsilon) after looking at earlier ones is *fully adaptive*
composition; a budget that stops it in time is a *filter*. The ledger keeps two, fixed before
anything is released:

* the summed compartment, where epsilons and deltas are added up: basic composition is a filter
  [Rogers2016];
* the Gaussian compartment, where squares of mu are added up: :math:`\sum \mu_i^2 \le \mu^2` is a
  filter for :math:`\mu`-Gaussian differential privacy [Smith2022], and the compartment's
  (epsilon, delta) is converted to mu exactly. For DP-SGD (``PrivacyBudget(renyi=True)``) it adds up
  Rényi divergences of one order instead, which the budget fixes [Feldman2021].

Interleaving two such mechanisms costs the sum of their two budgets [Vadhan2023]. What is *not*
sound is trading one compartment against the other during the run. Sums are taken over fractions
and so are exact; what leaves them as a float is rounded to the safe side.

The file is an append-only list of charges and released values. Beyond what holds for every
:class:`~botorch_dp._files.StateFile`:

* *Nothing is changed or refunded.* Triggers refuse UPDATE, DELETE and the REPLACE that would get
  around them; every row carries the hash of all rows before it, so that a file altered by other
  means is refused as damaged.
* *No two processes decide on the same state.* Decisions are taken inside ``BEGIN IMMEDIATE``.
* *Sums are exact.* Rows are immutable binary floats; each handle adds those it has not seen yet to
  running sums, so that a charge costs the same after one row and after 10,000.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import sqlite3
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import astuple, dataclass
from fractions import Fraction
from functools import lru_cache, partial
from typing import Any, TypeVar

from botorch_dp._checks import check_delta, check_finite, check_integer, check_positive
from botorch_dp._files import MEMORY, FileKind, StateFile, now
from botorch_dp.errors import BudgetExhausted, PrivacyError
from botorch_dp.privacy._gaussian import gaussian_epsilon, gaussian_mu
from botorch_dp.privacy.accounting import renyi_budget, renyi_epsilon
from botorch_dp.privacy.guarantee import (
    ApproximateLoss,
    Cost,
    Guarantee,
    NeighboringRelation,
    PrivacyUnit,
    PureLoss,
)
from botorch_dp.privacy.runs import DOOR_TABLES, Door

T = TypeVar("T")

#: Sums are exact, but decimals are not: ten charges of 0.1 add up to 1 + 5.6e-17. A limit counts as
#: kept within this fraction of itself; the allowance is granted once, however many charges.
ALLOWANCE = Fraction(1, 10**12)


# --- What may be spent, and what a guarantee costs. ---


@dataclass(frozen=True)
class PrivacyBudget:
    """How much may be revealed, and in which currency.

    Args:
        epsilon: Total epsilon, positive and finite.
        delta: Total delta, in [0, 1).
        summed: The share of (epsilon, delta) for releases whose epsilons and deltas are added up
            (Laplace, exponential, any stated (epsilon, delta)); the rest is for Gaussian releases,
            accounted as one mu-GDP. Either a fraction of both, from 0 to 1, or a pair
            ``(epsilon, delta)``. With None the first charge decides for all or nothing, which is
            sound because nothing has been released yet. A run whose first release is pure and
            whose later ones are Gaussian needs ``summed=0`` or a share from the start.
        renyi: Account for the rest by Rényi divergence of one order, which the budget fixes,
            instead of mu. For DP-SGD: its runs are then charged as what they are and not as sums
            of epsilons. Gaussian releases may be charged too, at a slightly higher price than
            their mu.

    Example:
        >>> budget = PrivacyBudget(1.0, 1e-6)                     # all for what comes first
        >>> budget = PrivacyBudget(1.0, 1e-6, summed=(0.2, 0.0))  # delta for Gaussian releases
        >>> PrivacyBudget(1.0, 1e-6, summed=0.2)                  # a fifth of both is summed
        PrivacyBudget(epsilon=1.0, delta=1e-06, summed=(0.2, 2e-07), renyi=False)
        >>> budget = PrivacyBudget(1.0, 1e-6, renyi=True)         # for trainings with DP-SGD
    """

    epsilon: float
    delta: float = 0.0
    summed: float | tuple[float, float] | None = None
    renyi: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "epsilon", check_positive("epsilon", self.epsilon))
        object.__setattr__(self, "delta", check_delta("delta", self.delta, allow_zero=True))
        object.__setattr__(self, "renyi", bool(self.renyi))
        if self.summed is None:
            return
        summed = self._pair(self.summed)
        object.__setattr__(self, "summed", summed)
        epsilon, delta = _rest(self, summed)
        if (epsilon > 0) != (delta > 0):
            raise ValueError(
                f"`summed` = {summed} leaves ({epsilon}, {delta}) of ({self.epsilon}, "
                f"{self.delta}) for Gaussian releases, which need an epsilon and a delta: leave "
                "some of both, or neither."
            )

    @property
    def share(self) -> tuple[float, float] | None:
        """The (epsilon, delta) for summed releases; None while it is left to the first charge."""
        return self.summed if isinstance(self.summed, tuple) else None

    def _pair(self, summed: object) -> tuple[float, float]:
        """The summed share as (epsilon, delta)."""
        if isinstance(summed, tuple | list):
            if len(summed) != 2:
                raise ValueError(f"`summed` must be a pair (epsilon, delta), got {summed!r}.")
            epsilon, delta = (check_finite("summed", part) for part in summed)
            if not (0 <= epsilon <= self.epsilon and 0 <= delta <= self.delta):
                raise ValueError(
                    f"`summed` must lie between (0, 0) and ({self.epsilon}, {self.delta}), "
                    f"got {(epsilon, delta)}."
                )
            return epsilon, delta
        fraction = check_finite("summed", summed)
        if not 0 <= fraction <= 1:
            raise ValueError(f"`summed` must be a fraction from 0 to 1, got {fraction}.")
        share = Fraction(fraction)
        return float_below(Fraction(self.epsilon) * share), float_below(
            Fraction(self.delta) * share
        )


@dataclass(frozen=True)
class Totals:
    """Exact sums over the first ``count`` charges; ``digest`` is the hash of the last one."""

    count: int = 0
    epsilon: Fraction = Fraction(0)
    delta: Fraction = Fraction(0)
    mu_squared: Fraction = Fraction(0)
    digest: str = ""


@dataclass(frozen=True)
class Compartments:
    """The limits of both compartments, and who fixed them."""

    epsilon: float
    delta: float
    gaussian_epsilon: float
    gaussian_delta: float
    origin: str
    renyi: bool = False

    @classmethod
    def of(cls, budget: PrivacyBudget, summed: tuple[float, float], origin: str) -> Compartments:
        """The two parts of ``budget``, of which ``summed`` is one."""
        return cls(*summed, *_rest(budget, summed), origin, budget.renyi)

    @property
    def purely_gaussian(self) -> bool:
        """Whether nothing is set aside for summed releases."""
        return self.epsilon == 0 and self.delta == 0

    @property
    def mu(self) -> float:
        """The limit of the other compartment: a mu, or the root of a Rényi divergence."""
        if not (self.gaussian_epsilon > 0 and self.gaussian_delta > 0):
            return 0.0
        return _mu_limit(self.gaussian_epsilon, self.gaussian_delta, self.order)

    @property
    def order(self) -> float | None:
        """The order of the Rényi divergence that is added up, or None where squares of mu are.

        About the best one for the budget, and fixed by it: a filter must not choose the order by
        what was charged.
        """
        if not self.renyi or self.gaussian_epsilon == 0 or self.gaussian_delta == 0:
            return None
        return 1 + 2 * math.log(1 / self.gaussian_delta) / self.gaussian_epsilon

    def _epsilon_of(self, mu: float) -> float:
        """The epsilon of the other compartment's spendings, at its delta."""
        if self.order is None:
            return gaussian_epsilon(mu, self.gaussian_delta)
        return renyi_epsilon(mu * mu * (1 + 1e-15), self.order, self.gaussian_delta)

    def can_bear(self, totals: Totals, cost: Cost) -> bool:
        """Whether both compartments stay within their limits; the filter itself."""
        epsilon, delta, mu = (Fraction(part) for part in cost)
        generous = 1 + ALLOWANCE
        return (
            totals.epsilon + epsilon <= Fraction(self.epsilon) * generous
            and totals.delta + delta <= Fraction(self.delta) * generous
            and totals.mu_squared + mu**2 <= Fraction(self.mu) ** 2 * generous
        )

    def summed_left(self, totals: Totals) -> tuple[float, float]:
        """The (epsilon, delta) that summed releases could still cost."""
        return (
            float_below(max(Fraction(0), Fraction(self.epsilon) - totals.epsilon)),
            float_below(max(Fraction(0), Fraction(self.delta) - totals.delta)),
        )

    def mu_left(self, totals: Totals) -> Fraction:
        """The square of the mu that could still be charged."""
        return max(Fraction(0), Fraction(self.mu) ** 2 - totals.mu_squared)

    def spent(self, totals: Totals) -> tuple[float, float]:
        """Both compartments' spendings in (epsilon, delta), rounded up."""
        mu = min(self.mu, sqrt_above(totals.mu_squared))
        epsilon = min(Fraction(self.epsilon), totals.epsilon)
        delta = min(Fraction(self.delta), totals.delta)
        if mu > 0:
            # Converting the limit back and forth may round past it.
            converted = self._epsilon_of(mu)
            epsilon += Fraction(min(self.gaussian_epsilon, converted))
            delta += Fraction(self.gaussian_delta)
        return float_above(epsilon), float_above(delta)

    def remaining(self, totals: Totals) -> tuple[float, float]:
        """What both compartments could still grant, in (epsilon, delta), rounded down."""
        epsilon, delta = (Fraction(part) for part in self.summed_left(totals))
        mu = sqrt_below(self.mu_left(totals))
        if mu > 0:
            converted = self._epsilon_of(mu)
            epsilon += Fraction(min(self.gaussian_epsilon, converted))
            delta += Fraction(self.gaussian_delta)
        return float_below(epsilon), float_below(delta)

    def in_epsilon_delta(self, cost: Cost) -> tuple[float, float]:
        """A charge's cost, its mu converted at the Gaussian compartment's delta."""
        epsilon, delta, mu = cost
        if mu == 0:
            return epsilon, delta
        if self.gaussian_delta == 0:
            return math.inf, delta
        return epsilon + self._epsilon_of(mu), delta + self.gaussian_delta


def first_choice(budget: PrivacyBudget, is_gaussian: bool) -> Compartments:
    """All or nothing for the summed compartment, as the first charge has it."""
    if is_gaussian:
        return Compartments.of(budget, (0.0, 0.0), "the first charge, a Gaussian one,")
    whole = (budget.epsilon, budget.delta)
    return Compartments.of(budget, whole, "the first charge, one without Gaussian noise,")


@lru_cache(maxsize=64)
def _mu_limit(epsilon: float, delta: float, order: float | None) -> float:
    if order is None:
        return gaussian_mu(epsilon, delta)
    return sqrt_below(Fraction(renyi_budget(epsilon, delta, order)))


def stated_cost(guarantee: Guarantee, delta: float) -> Cost:
    """The (epsilon, delta) that the caller asks to be charged."""
    delta = check_delta("delta", delta, allow_zero=True)
    epsilon = guarantee.epsilon(delta)
    if not math.isfinite(epsilon):
        raise PrivacyError(
            f"The {guarantee.mechanism} has no finite epsilon at `delta` = {delta:g}: "
            "name a larger delta."
        )
    return epsilon, delta, 0.0


def cost_of(guarantee: Guarantee, compartments: Compartments) -> Cost:
    """What a guarantee costs, each part in its own compartment, rounded up.

    Beside a compartment of Rényi divergence, what has an (epsilon, delta) of its own is summed if
    anything was set aside for it; all else costs the root of its divergence, so that squares add
    up to divergences. Divergences of one order add up under full adaptivity [Feldman2021].
    """
    order, alone = compartments.order, compartments.purely_gaussian
    parts: list[Cost] = []
    for loss in guarantee.losses:
        if order is None or (loss.summed is not None and (not alone or loss.summed[1] > 0)):
            parts.append(loss.cost(alone))
            continue
        divergence = float(loss.rdp((order,))[0])
        if not math.isfinite(divergence):
            raise PrivacyError(
                f"The {guarantee.mechanism} has no finite Rényi divergence of order {order:.4g}: "
                "its noise is too small for this budget."
            )
        parts.append((0.0, 0.0, sqrt_above(Fraction(divergence))))
    return (
        float_above(sum((Fraction(epsilon) for epsilon, _, _ in parts), Fraction(0))),
        float_above(sum((Fraction(delta) for _, delta, _ in parts), Fraction(0))),
        sqrt_above(sum((Fraction(mu) ** 2 for _, _, mu in parts), Fraction(0))),
    )


def _rest(budget: PrivacyBudget, summed: tuple[float, float]) -> tuple[float, float]:
    """What the summed share leaves to Gaussian releases, rounded down."""
    return (
        float_below(Fraction(budget.epsilon) - Fraction(summed[0])),
        float_below(Fraction(budget.delta) - Fraction(summed[1])),
    )


def float_above(exact: Fraction) -> float:
    """The smallest float that is at least ``exact``."""
    nearest = float(exact)
    return nearest if Fraction(nearest) >= exact else math.nextafter(nearest, math.inf)


def float_below(exact: Fraction) -> float:
    """The largest float that is at most ``exact``."""
    nearest = float(exact)
    return nearest if Fraction(nearest) <= exact else math.nextafter(nearest, -math.inf)


def sqrt_above(square: Fraction) -> float:
    """A float whose square is at least ``square``; the root itself where that is a float."""
    below, above = _root_bounds(square)
    return float_above(below if below**2 == square else above)


def sqrt_below(square: Fraction) -> float:
    """A float whose square is at most ``square``; the root itself where that is a float."""
    return float_below(_root_bounds(square)[0])


def _root_bounds(square: Fraction) -> tuple[Fraction, Fraction]:
    """Bounds on the root, tight to 64 bits; the lower one is exact for the square of a float."""
    numerator, denominator = square.numerator, square.denominator
    bits = max(0, 128 + denominator.bit_length() - numerator.bit_length())
    half = (bits + 1) // 2
    root = math.isqrt((numerator << (2 * half)) // denominator)
    return Fraction(root, 1 << half), Fraction(root + 1, 1 << half)


# --- The ledger. ---


@dataclass(frozen=True)
class LedgerEntry:
    """One line of a ledger; ``epsilon``, ``delta`` and ``mu`` are what the charge cost.

    With ``PrivacyBudget(renyi=True)``, ``mu`` is the root of a Rényi divergence.
    """

    number: int
    charged_at: str
    label: str
    key: str | None
    epsilon: float
    delta: float
    mu: float
    guarantee: Guarantee


@dataclass(frozen=True)
class LedgerBalance:
    """Both compartments: what they hold and what was spent."""

    summed_limit: tuple[float, float]
    summed_spent: tuple[float, float]
    mu_limit: float
    mu_spent: float


class PrivacyLedger:
    """A budget that every release is charged to before its values are touched.

    A charge is on the disk when :meth:`charge` returns, is never refunded, and survives a kill or a
    power cut at any moment. Threads, forked processes and independent processes may share one file.
    The file is created with mode 0600 and may be copied whenever no charge is running. All sums
    are exact; see :class:`PrivacyBudget` for the two compartments.

    In a ledger that is purely Gaussian (``summed=0``, or the first charge was Gaussian) a pure
    epsilon-DP release counts as :math:`2\\Phi^{-1}(e^\\epsilon/(1+e^\\epsilon))`-GDP. In a purely
    summed one a Gaussian release is refused, unless ``delta=`` states the (epsilon, delta) as
    which it is charged.

    Args:
        path: The file; it is created if it does not exist. ``":memory:"`` lives as long as the
            object.
        budget: What may be spent. Must agree with the file; may be left out for an existing one.
        relation: The neighbouring relation of all charges. Without it, the first charge decides.

    Example:
        >>> ledger = PrivacyLedger("study.ledger", PrivacyBudget(1.0, 1e-6))
        >>> price = laplace_guarantee(sensitivity=1.0, epsilon=0.3)
        >>> entry = ledger.charge(price, label="best score")
        >>> ledger.remaining()
        (0.7, 1e-06)
    """

    def __init__(
        self,
        path: str | os.PathLike[str] = MEMORY,
        budget: PrivacyBudget | None = None,
        *,
        relation: NeighboringRelation | None = None,
    ) -> None:
        self._file = LedgerFile(os.fspath(path), budget)
        try:
            self._budget = self._file.budget
            self._door = Door(self._file)
            if budget is not None and budget != self._budget:
                raise PrivacyError(
                    f"The ledger {self.path} holds {self._budget}, but was opened with {budget}: "
                    "a budget is fixed before anything is released. Pass the one it holds, or "
                    "none, or start another ledger at another path."
                )
            if relation is not None:
                with self._file.transaction():
                    settled = self._file.settled().get("relation")
                    if settled is None:
                        self._file.settle("relation", relation.name)
                    else:
                        self._check_relation(settled, relation)
        except BaseException:
            self._file.close()
            raise

    @property
    def path(self) -> str:
        """The file, or ``":memory:"``."""
        return self._file.path

    @property
    def budget(self) -> PrivacyBudget:
        """What may be spent in all."""
        return self._budget

    @property
    def relation(self) -> NeighboringRelation | None:
        """The neighbouring relation of all charges; None until the first one has decided."""
        name = self._file.settled().get("relation")
        return None if name is None else NeighboringRelation[name]

    @property
    def guarantee(self) -> Guarantee:
        """What all releases charged so far, and all still to come, promise together.

        It states the budget and not what was spent: how much an adaptive run spends is itself
        a result of the sensitive values, and no guarantee.
        """
        entries, relation = self.entries(), self.relation
        if relation is None:
            raise PrivacyError("Nothing was charged yet: pass `relation=` to the ledger.")
        parts = [entry.guarantee for entry in entries]
        budget = self._budget
        return Guarantee(
            mechanism="all releases charged to one privacy ledger",
            unit=PrivacyUnit(
                protects=" and ".join(dict.fromkeys(part.protects for part in parts))
                or "one record of the data set",
                relation=relation,
                conditions=tuple(dict.fromkeys(c for p in parts for c in p.unit.conditions)),
            ),
            losses=(
                ApproximateLoss(budget.epsilon, budget.delta)
                if budget.delta
                else PureLoss(budget.epsilon),
            ),
            assumptions=tuple(dict.fromkeys(a for p in parts for a in p.assumptions)),
            quoted_delta=budget.delta or None,
        )

    def charge(
        self,
        guarantee: Guarantee,
        *,
        label: str = "",
        delta: float | None = None,
    ) -> LedgerEntry:
        """Pay for a draw that is made elsewhere, durably. Call it *before* records are touched.

        Every call is a new charge. Prefer :meth:`release`, which also sees to it that what was
        paid for is drawn once.

        Args:
            guarantee: The release's guarantee; its parameters may depend on earlier releases.
            label: A note for :meth:`entries`. Never put a sensitive value in it.
            delta: Charge ``(guarantee.epsilon(delta), delta)`` to the summed compartment. Needed
                for guarantees that are neither Gaussian nor sums of (epsilon, delta), as DP-SGD's,
                unless the budget was made with ``renyi=True``.

        Returns:
            The line that was written.

        Raises:
            BudgetExhausted: The budget cannot bear it. Nothing was charged.
            PrivacyError: The guarantee promises nothing, belongs to another relation, or needs
                ``delta``. Nothing was charged.
        """
        stated = _checked_price(guarantee, delta)
        with self._file.transaction():
            return _entry(self._append(guarantee, stated, label, delta, None), guarantee)

    def release(
        self,
        price: Guarantee,
        draw: Callable[..., T],
        *,
        key: str | None = None,
        label: str = "",
        delta: float | None = None,
        about: Mapping[str, Any] | None = None,
        read: Callable[[], Any] | None = None,
    ) -> T:
        """The door through which noise goes, once: claim, charge, read, draw, store, show.

        With a ``key``, what is drawn is stored under it before it is returned, and whoever asks
        for the key later, after a crash, from a copy or from another process, gets the stored
        value for nothing. A failure before noise is drawn (in ``read``) costs no second charge; a
        failure later does, for what was drawn may have been seen. Without a key every call is a
        new charge and nothing is stored.

        Args:
            price: What one draw promises.
            draw: Draws the noise and returns what may be shown: numbers, words, lists,
                dictionaries, arrays or tensors. Takes what ``read`` returned, if that is given.
            key: Names the released value. Put the identity of the run into it: two runs that
                share a key share a value.
            label: A note for :meth:`entries`. Never put a sensitive value in it.
            delta: As for :meth:`charge`.
            about: What the value is, in public plain data. A key that names a value released as
                something else is refused.
            read: Touches the records; nothing in it may draw.

        Raises:
            BudgetExhausted: The budget cannot bear it. Nothing was charged or read.
            AlreadyReleased: Somebody alive is drawing the value. Nothing was charged or read.
            PrivacyError: As for :meth:`charge`, or the key names something else.

        Example:
            >>> ledger = PrivacyLedger(budget=PrivacyBudget(1.0))
            >>> price = laplace_guarantee(sensitivity=0.01, epsilon=0.5)
            >>> noisy = lambda: laplace_mechanism(0.25, sensitivity=0.01, epsilon=0.5).value
            >>> first = ledger.release(price, noisy, key="best score")
            >>> ledger.release(price, noisy, key="best score") == first
            True
        """
        stated = _checked_price(price, delta)
        if key is None:
            with self._file.transaction():
                self._append(price, stated, label, delta, None)
            return draw() if read is None else draw(read())

        def pay() -> int:
            return self._append(price, stated, label, delta, key).number

        what = {**_document(price, delta), "about": dict(about or {})}
        return self._door.release(key, draw, pay=pay, read=read, about=what)

    def _append(
        self,
        guarantee: Guarantee,
        stated: Cost | None,
        label: str,
        delta: float | None,
        key: str | None,
    ) -> ChargeRow:
        """Decide on a charge and write it down. Inside a transaction."""
        settled = self._file.settled()
        if settled.get("relation") is None:
            self._file.settle("relation", guarantee.relation.name)
        else:
            self._check_relation(settled["relation"], guarantee.relation)
        chosen = self._compartments(settled)
        compartments, cost = self._priced(guarantee, stated, chosen)
        totals = self._file.totals()
        if not compartments.can_bear(totals, cost):
            if cost[2] > 0 and self._budget.delta == 0:
                raise PrivacyError(
                    f"The {guarantee.mechanism} needs a budget with delta > 0, and the ledger's is "
                    f"PrivacyBudget({self._budget.epsilon:g}): Gaussian noise has no pure epsilon. "
                    "Start a ledger with PrivacyBudget(epsilon, 1e-6) or so, or use Laplace "
                    "noise. Nothing was charged and nothing was read."
                )
            raise self._exhausted(guarantee, compartments, totals, cost)
        if chosen is None:
            is_gaussian = _is_gaussian(guarantee, stated)
            self._file.settle("summed", "nothing" if is_gaussian else "all")
        document = json.dumps(_document(guarantee, delta), sort_keys=True)
        return self._file.append(label=label, guarantee=document, key=key, cost=cost)

    def bears(self, price: Guarantee, *, delta: float | None = None) -> bool:
        """Whether the budget could bear this charge now. Charges nothing, and promises nothing:
        another charge may come first.

        Args:
            price: As for :meth:`charge`, with its errors.
            delta: As for :meth:`charge`.
        """
        stated = _checked_price(price, delta)
        with self._file.snapshot():
            settled = self._file.settled()
            if settled.get("relation") is not None:
                self._check_relation(settled["relation"], price.relation)
            compartments, cost = self._priced(price, stated, self._compartments(settled))
            return compartments.can_bear(self._file.totals(), cost)

    def _priced(
        self, guarantee: Guarantee, stated: Cost | None, chosen: Compartments | None
    ) -> tuple[Compartments, Cost]:
        """The compartments that there are, or would be after this charge, and its cost in them."""
        compartments = chosen or first_choice(self._budget, _is_gaussian(guarantee, stated))
        return compartments, stated or cost_of(guarantee, compartments)

    def spent(self) -> tuple[float, float]:
        """The part of the budget that charges have used, as (epsilon, delta), rounded up.

        A Gaussian compartment that was touched counts with all of its delta and with the epsilon
        that the mu spent amounts to at that delta.
        """
        compartments = self._compartments()
        return (0.0, 0.0) if compartments is None else compartments.spent(self._file.totals())

    def remaining(self) -> tuple[float, float]:
        """What the ledger could still grant, as (epsilon, delta), rounded down.

        Gaussian releases add up as squares, so that an epsilon spent and an epsilon remaining there
        exceed the budget when they are added; see :meth:`balance` for mu.
        """
        compartments = self._compartments()
        if compartments is None:
            return self._budget.epsilon, self._budget.delta
        return compartments.remaining(self._file.totals())

    def balance(self) -> LedgerBalance | None:
        """Limits and spendings of both compartments; None until the first charge has decided."""
        compartments = self._compartments()
        if compartments is None:
            return None
        totals = self._file.totals()
        return LedgerBalance(
            summed_limit=(compartments.epsilon, compartments.delta),
            summed_spent=(float_above(totals.epsilon), float_above(totals.delta)),
            mu_limit=compartments.mu,
            mu_spent=sqrt_above(totals.mu_squared),
        )

    def entries(self) -> list[LedgerEntry]:
        """All charges, oldest first."""
        return [
            _entry(row, Guarantee.from_dict(json.loads(row.guarantee)["guarantee"]))
            for row in self._file.rows()
        ]

    def close(self) -> None:
        """Release the file. What was charged stays charged."""
        self._file.close()

    def __enter__(self) -> PrivacyLedger:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        if self._file.closed:
            return f"PrivacyLedger({self.path!r}, closed)"
        return f"PrivacyLedger({self.path!r}, {self._budget}, spent={self.spent()})"

    def __str__(self) -> str:
        """The entries as a table, with what they add up to."""
        head = ("#", "charged at (UTC)", "epsilon", "delta", "mu", "label", "mechanism")
        rows = [
            (
                str(entry.number),
                entry.charged_at[:19].replace("T", " "),
                *(f"{cost:.6g}" for cost in (entry.epsilon, entry.delta, entry.mu)),
                entry.label,
                entry.guarantee.mechanism,
            )
            for entry in self.entries()
        ]
        widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
        lines = [
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
            for row in (head, *rows)
        ]
        spent, remaining = (
            f"({epsilon:.6g}, {delta:.3g})" for epsilon, delta in (self.spent(), self.remaining())
        )
        return "\n".join([*lines, f"{self._budget}: spent {spent}, remaining {remaining}"])

    def __deepcopy__(self, memo: object) -> PrivacyLedger:
        """A budget is shared, never copied."""
        return self

    def __reduce__(self) -> tuple[object, ...]:
        if self.path == MEMORY:
            raise PrivacyError(
                "A ledger in memory cannot be pickled: the copy would spend the budget a second "
                "time. Give the ledger a path."
            )
        return partial(PrivacyLedger, self.path, self._budget), ()

    def _check_relation(self, settled: str, relation: NeighboringRelation) -> None:
        if settled != relation.name:
            raise PrivacyError(
                f"The ledger {self.path} counts under {settled}, not under {relation.name}: "
                "an epsilon under one relation is no epsilon under another. Use another ledger, "
                "or a guarantee under this relation."
            )

    def _compartments(self, settled: Mapping[str, str] | None = None) -> Compartments | None:
        """The two compartments; None until the first charge has decided."""
        budget = self._budget
        if budget.share is not None:
            return Compartments.of(budget, budget.share, "`summed` of the budget")
        choice = (self._file.settled() if settled is None else settled).get("summed")
        return None if choice is None else first_choice(budget, choice == "nothing")

    def _exhausted(
        self, guarantee: Guarantee, compartments: Compartments, totals: Totals, cost: Cost
    ) -> BudgetExhausted:
        epsilon, delta, mu = cost
        asked = [f"epsilon {epsilon:.6g} and delta {delta:.3g}"] if epsilon or delta else []
        asked += [f"mu {mu:.6g}"] if mu else []
        mu_left = sqrt_below(compartments.mu_left(totals))
        epsilon_left, delta_left = compartments.summed_left(totals)
        return BudgetExhausted(
            f"The {guarantee.mechanism} asks for {' and '.join(asked)}. Left are epsilon "
            f"{epsilon_left:.6g} and delta {delta_left:.3g} for summed releases and mu "
            f"{mu_left:.6g} for Gaussian ones; {compartments.origin} fixed the two shares of "
            f"({self._budget.epsilon}, {self._budget.delta}). Nothing was charged and nothing "
            "was read. Ask for less, or stop here: all that was released may be used.",
            requested=compartments.in_epsilon_delta(cost),
            remaining=compartments.remaining(totals),
        )


def check_payment(
    ledger: PrivacyLedger | None, *, unsafe_seed: int | None = None, key: str | None = None
) -> None:
    """Raise unless what is drawn with this seed can be paid for, and stored under this key.

    Args:
        ledger: What would be charged; None for nothing.
        unsafe_seed: The seed of simulated noise, or None for real noise.
        key: Names the value in the ledger.
    """
    if unsafe_seed is not None:
        check_integer("unsafe_seed", unsafe_seed, at_least=0)
        if ledger is not None:
            raise PrivacyError(
                "`ledger` was given together with `unsafe_seed`: simulated noise promises "
                "nothing, so there is nothing to charge. Leave one of them out."
            )
    if key is not None and ledger is None:
        raise ValueError("`key` names a value in a ledger: pass `ledger=` too, or leave it out.")


def _checked_price(guarantee: Guarantee, delta: float | None) -> Cost | None:
    """The cost that the caller states by ``delta``, if any; refused where nothing is promised."""
    if guarantee.void is not None:
        raise PrivacyError(
            f"`guarantee` promises nothing ({guarantee.void}), so no budget can bear it. Charge "
            "the guarantee of a mechanism with real noise."
        )
    return None if delta is None else stated_cost(guarantee, delta)


def _is_gaussian(guarantee: Guarantee, stated: Cost | None) -> bool:
    """Whether a charge has no (epsilon, delta) of its own: Gaussian noise, DP-SGD."""
    return stated is None and any(loss.summed is None for loss in guarantee.losses)


def _document(guarantee: Guarantee, delta: float | None) -> dict[str, Any]:
    return {"guarantee": guarantee.to_dict(), "delta": delta}


def _entry(row: ChargeRow, guarantee: Guarantee) -> LedgerEntry:
    return LedgerEntry(**{**vars(row), "guarantee": guarantee})


# --- The file: charges and released values. ---

_GROWS = "a privacy ledger only grows: charges are never changed or refunded"
_LARGEST = "1.7976931348623157e308"


def _append_only(table: str, first: str) -> tuple[str, ...]:
    """Triggers that refuse to change or remove rows of ``table``; ``first`` is its identity."""
    refuse = f"BEGIN SELECT RAISE(ABORT, '{_GROWS}'); END"
    return (
        f"CREATE TRIGGER {table}_no_update BEFORE UPDATE ON {table} {refuse}",
        f"CREATE TRIGGER {table}_no_delete BEFORE DELETE ON {table} {refuse}",
        f"CREATE TRIGGER {table}_no_replace BEFORE INSERT ON {table} WHEN {first} {refuse}",
    )


def _amount(column: str) -> str:
    return (
        f"{column} REAL NOT NULL CHECK "
        f"(typeof({column}) = 'real' AND {column} BETWEEN 0 AND {_LARGEST})"
    )


LEDGER = FileKind(
    name="privacy ledger",
    application_id=0x4450424C,  # "DPBL"
    migrations=(
        (
            "CREATE TABLE budget (id INTEGER PRIMARY KEY CHECK (id = 1), epsilon REAL NOT NULL, "
            "delta REAL NOT NULL, summed_epsilon REAL, summed_delta REAL, "
            "created_at TEXT NOT NULL)",
            "CREATE TABLE settled (name TEXT PRIMARY KEY, value TEXT NOT NULL)",
            "CREATE TABLE charge (number INTEGER PRIMARY KEY, charged_at TEXT NOT NULL, "
            f"label TEXT NOT NULL, guarantee TEXT NOT NULL, {_amount('epsilon')}, "
            f"{_amount('delta')}, {_amount('mu')}, digest TEXT NOT NULL)",
            *_append_only("budget", "EXISTS (SELECT 1 FROM budget)"),
            *_append_only("settled", "EXISTS (SELECT 1 FROM settled WHERE name = NEW.name)"),
            *_append_only(
                "charge", "NEW.number <> (SELECT COALESCE(MAX(number), 0) + 1 FROM charge)"
            ),
        ),
        # Version 2: keys, which made a retried charge idempotent.
        (
            "ALTER TABLE charge ADD COLUMN key TEXT",
            "CREATE UNIQUE INDEX charge_key ON charge (key) WHERE key IS NOT NULL",
            "CREATE TRIGGER charge_one_per_key BEFORE INSERT ON charge "
            "WHEN EXISTS (SELECT 1 FROM charge WHERE key = NEW.key) "
            f"BEGIN SELECT RAISE(ABORT, '{_GROWS}'); END",
        ),
        # Version 3: a key names a released value; a second draw for it is a second charge.
        (
            "DROP TRIGGER charge_one_per_key",
            "DROP INDEX charge_key",
            "CREATE INDEX charge_key ON charge (key) WHERE key IS NOT NULL",
            *DOOR_TABLES,
        ),
        # Version 4: what is not summed may be accounted for by Rényi divergence.
        ("ALTER TABLE budget ADD COLUMN renyi INTEGER NOT NULL DEFAULT 0",),
    ),
    if_lost="What was spent is unknown. Put back a copy made after the last charge; without one, "
    "count the whole budget as spent.",
)


@dataclass(frozen=True)
class ChargeRow:
    """One charge as it is stored; ``guarantee`` is JSON."""

    number: int
    charged_at: str
    label: str
    guarantee: str
    epsilon: float
    delta: float
    mu: float
    key: str | None

    def digest(self, previous: str) -> str:
        """Hash of this row and, through ``previous``, of all before it."""
        return _digest(previous, *astuple(self))


_COLUMNS = "number, charged_at, label, guarantee, epsilon, delta, mu, key"


class LedgerFile(StateFile):
    """Charges in one file, or in memory. Threads may share it; so may processes and forks.

    Args:
        path: The file, or ``":memory:"``.
        budget: What a new file is created with; None to open an existing one only.
    """

    def __init__(self, path: str, budget: PrivacyBudget | None) -> None:
        def create(connection: sqlite3.Connection) -> None:
            assert budget is not None
            connection.execute(
                "INSERT INTO budget VALUES (1, ?, ?, ?, ?, ?, ?)",
                (
                    *(budget.epsilon, budget.delta),
                    *(budget.share or (None, None)),
                    *(now(), int(budget.renyi)),
                ),
            )

        if path == MEMORY and budget is None:
            raise PrivacyError("A ledger in memory is always new: pass `budget=`.")
        if budget is None and not os.path.lexists(path):
            raise PrivacyError(
                f"There is no ledger at {os.path.abspath(path)}. Pass `budget=PrivacyBudget("
                "epsilon, delta)` to create one."
            )
        self._totals = Totals()
        super().__init__(path, LEDGER, None if budget is None else create, exclusive=False)
        self.budget = self._read_budget()

    def settled(self) -> dict[str, str]:
        """Choices made after the file was created, by name."""
        return dict(self.query("SELECT name, value FROM settled"))

    def settle(self, name: str, value: str) -> None:
        """Write down a choice, once and for all. Inside a transaction."""
        self.execute("INSERT INTO settled (name, value) VALUES (?, ?)", (name, value))

    def totals(self) -> Totals:
        """Exact sums over all charges; rows that this handle has seen are not read again."""
        with self.snapshot():
            if self._totals.count == 0:
                # The first charge settles everything, so its hash can vouch for the choices too.
                choices = sorted(self.settled().items())
                budget = list(astuple(self.budget))
                if not self.budget.renyi:
                    budget.pop()  # files older than version 4 were hashed without it
                words = json.dumps([*budget, choices])
                self._totals = Totals(digest=hashlib.sha256(words.encode()).hexdigest())
            rows = self.query(
                f"SELECT {_COLUMNS}, digest FROM charge WHERE number > ? ORDER BY number",
                (self._totals.count,),
            )
            last, count = self._totals.digest, self._totals.count
            for *columns, digest in rows:
                count += 1
                if columns[0] != count or _digest(last, *columns) != digest:
                    raise self.damaged(f"charge {count} was altered")
                last = digest
            # Most charges are alike, and a product of fractions is as exact as their sum.
            costs = Counter((epsilon, delta, mu) for *_, epsilon, delta, mu, _, _ in rows)
            exact = [
                (Fraction(epsilon), Fraction(delta), Fraction(mu), times)
                for (epsilon, delta, mu), times in costs.items()
            ]
            self._totals = Totals(
                count=count,
                epsilon=self._totals.epsilon + sum(part[0] * part[3] for part in exact),
                delta=self._totals.delta + sum(part[1] * part[3] for part in exact),
                mu_squared=self._totals.mu_squared + sum(part[2] ** 2 * part[3] for part in exact),
                digest=last,
            )
            return self._totals

    def rows(self) -> list[ChargeRow]:
        """All charges, oldest first."""
        self.totals()
        return [
            ChargeRow(*columns)
            for columns in self.query(f"SELECT {_COLUMNS} FROM charge ORDER BY number")
        ]

    def append(self, *, label: str, guarantee: str, key: str | None, cost: Cost) -> ChargeRow:
        """Add a charge of ``cost = (epsilon, delta, mu)``. Inside a transaction."""
        totals = self.totals()
        row = ChargeRow(totals.count + 1, now(), label, guarantee, *cost, key)
        self.execute(
            f"INSERT INTO charge ({_COLUMNS}, digest) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (*astuple(row), row.digest(totals.digest)),
        )
        return row

    def _read_budget(self) -> PrivacyBudget:
        rows = self.query("SELECT epsilon, delta, summed_epsilon, summed_delta, renyi FROM budget")
        if len(rows) != 1:
            raise self.damaged("it states no budget")
        epsilon, delta, *share, renyi = rows[0]
        summed = None if None in share else tuple(share)
        try:
            return PrivacyBudget(epsilon, delta, summed=summed, renyi=bool(renyi))
        except (TypeError, ValueError) as error:
            raise self.damaged("it states an impossible budget") from error


def _digest(
    previous: str,
    number: int,
    charged_at: str,
    label: str,
    guarantee: str,
    epsilon: float,
    delta: float,
    mu: float,
    key: str | None,
) -> str:
    """:meth:`ChargeRow.digest`: the hash of a JSON list, put together by hand for speed."""
    numbers = ", ".join(f'"{float(x).hex()}"' for x in (epsilon, delta, mu))
    words = f"{_quoted(charged_at)}, {_quoted(label)}, {_quoted(guarantee)}, {numbers}"
    # Rows older than version 2 have no key and were hashed without one.
    last = "" if key is None else f", {json.dumps(key)}"
    return hashlib.sha256(f'["{previous}", {number}, {words}{last}]'.encode()).hexdigest()


# A ledger has few different labels and guarantees.
_quoted = lru_cache(maxsize=64)(json.dumps)
