r"""Privacy budgets and filters: what may be spent in all, what one guarantee costs, what is left.

Choosing the next release (and its epsilon) after looking at earlier ones is *fully adaptive*
composition; a budget that stops it in time is a *filter*. There are two of them, fixed before
anything is released:

* the summed share, where epsilons and deltas are added up: basic composition is a filter
  [Rogers2016];
* the Gaussian share, where squares of mu are added up: :math:`\sum \mu_i^2 \le \mu^2` is a
  filter for :math:`\mu`-Gaussian differential privacy [Smith2022], and the share's
  (epsilon, delta) is converted to mu exactly. For DP-SGD (``PrivacyBudget(renyi=True)``) it adds up
  Rényi divergences of one order instead, which the budget fixes [Feldman2021]. They are written as
  the mu of the Gaussian mechanism that has the same divergence,
  :math:`D_\alpha = \alpha \mu^2 / 2`, so that squares of mu are what adds up there too.

Interleaving two such mechanisms costs the sum of their two budgets [Vadhan2023]. What is *not*
sound is trading one share against the other during the run. Sums are taken over fractions
and so are exact; what leaves them as a float is rounded to the safe side.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

from botorch_dp._checks import check_delta, check_finite, check_positive
from botorch_dp.errors import BudgetExhausted, PrivacyError
from botorch_dp.privacy.guarantee import Guarantee, warn_large_epsilon
from botorch_dp.privacy.losses import Cost, GaussianLoss
from botorch_dp.privacy.pld.gaussian import gaussian_epsilon, gaussian_mu, pure_dp_epsilon
from botorch_dp.privacy.pld.renyi import renyi_budget, renyi_epsilon
from botorch_dp.privacy.rounding import (
    all_digits,
    float_above,
    float_below,
    rounded_down,
    rounded_up,
    sqrt_above,
    sqrt_below,
)

#: Sums are exact, but decimals are not: ten charges of 0.1 add up to 1 + 5.6e-17, and the shares of
#: a budget are the floats nearest to its decimals. A limit counts as kept within this fraction of
#: itself; the allowance is granted once, however many charges.
ALLOWANCE = Fraction(1, 10**12)


@dataclass(frozen=True)
class PrivacyBudget:
    """The (epsilon, delta) of all releases together, and how they are added up.

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
            of epsilons. Gaussian releases may be charged too; fewer of them fit than by mu.

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

    def __str__(self) -> str:
        """In the numbers that were given."""
        return f"(ε = {all_digits(self.epsilon)}, δ = {all_digits(self.delta)})"

    def __post_init__(self) -> None:
        object.__setattr__(self, "epsilon", check_positive("epsilon", self.epsilon))
        object.__setattr__(self, "delta", check_delta("delta", self.delta, allow_zero=True))
        object.__setattr__(self, "renyi", bool(self.renyi))
        warn_large_epsilon(self.epsilon)
        if self.summed is None:
            return
        summed = self._pair(self.summed)
        object.__setattr__(self, "summed", summed)
        epsilon, delta = self.without(summed)
        if (epsilon > 0) != (delta > 0):
            raise ValueError(
                f"`summed` = {summed} leaves ({epsilon}, {delta}) for Gaussian releases: leave "
                "some of both, or neither."
            )

    @property
    def share(self) -> tuple[float, float] | None:
        """The (epsilon, delta) for summed releases; None while it is left to the first charge."""
        return self.summed if isinstance(self.summed, tuple) else None

    def without(self, summed: tuple[float, float]) -> tuple[float, float]:
        """What a summed share leaves to Gaussian releases."""
        return (
            float(_decimal(self.epsilon) - _decimal(summed[0])),
            float(_decimal(self.delta) - _decimal(summed[1])),
        )

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
        share = _decimal(fraction)
        return float(_decimal(self.epsilon) * share), float(_decimal(self.delta) * share)


def _decimal(value: float) -> Fraction:
    """The decimal that a float is written as: three tenths of 1e-6 are then 3e-7."""
    return Fraction(repr(value))


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
    """A budget as two privacy filters: the limits of its summed and of its Gaussian part."""

    epsilon: float
    delta: float
    gaussian_epsilon: float
    gaussian_delta: float
    origin: str
    renyi: bool = False

    @classmethod
    def of(cls, budget: PrivacyBudget, summed: tuple[float, float], origin: str) -> Compartments:
        """The two parts of ``budget``; ``summed`` is one of them."""
        return cls(*summed, *budget.without(summed), origin, budget.renyi)

    @classmethod
    def by_first_charge(cls, budget: PrivacyBudget, *, is_gaussian: bool) -> Compartments:
        """All of the budget for charges of the first one's kind."""
        if is_gaussian:
            return cls.of(
                budget, (0.0, 0.0), "the first charge, a Gaussian one, reserved all of it"
            )
        whole, kind = (budget.epsilon, budget.delta), "one without Gaussian noise"
        return cls.of(budget, whole, f"the first charge, {kind}, reserved all of it")

    @property
    def purely_gaussian(self) -> bool:
        """Whether nothing is set aside for summed releases."""
        return self.epsilon == 0 and self.delta == 0

    @property
    def mu(self) -> float:
        """The limit of the Gaussian share."""
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

    def cost_of(self, guarantee: Guarantee) -> Cost:
        """What a guarantee costs, each part in its own share, rounded up.

        Beside a share of Rényi divergence, what has an (epsilon, delta) of its own is summed
        if anything was set aside for it. Divergences of one order add up under full adaptivity
        [Feldman2021].
        """
        order, alone = self.order, self.purely_gaussian
        parts: list[Cost] = []
        for loss in guarantee.losses:
            is_summed = loss.summed is not None and (not alone or loss.summed[1] > 0)
            if order is None or is_summed or isinstance(loss, GaussianLoss):
                parts.append(loss.cost(alone))
                continue
            divergence = loss.rdp(order)
            if not math.isfinite(divergence):
                raise PrivacyError(
                    f"The {guarantee.mechanism} has no finite Rényi divergence of order "
                    f"{order:.4g}: its noise is too small for this budget."
                )
            parts.append((0.0, 0.0, sqrt_above(2 * Fraction(divergence) / Fraction(order))))
        if len(parts) == 1:
            return parts[0]
        return (
            float_above(sum((Fraction(epsilon) for epsilon, _, _ in parts), Fraction(0))),
            float_above(sum((Fraction(delta) for _, delta, _ in parts), Fraction(0))),
            sqrt_above(sum((Fraction(mu) ** 2 for _, _, mu in parts), Fraction(0))),
        )

    def affords(self, totals: Totals, cost: Cost) -> bool:
        """Whether both shares stay within their limits; the filter itself."""
        epsilon, delta, mu = (Fraction(part) for part in cost)
        generous = 1 + ALLOWANCE
        return (
            totals.epsilon + epsilon <= Fraction(self.epsilon) * generous
            and totals.delta + delta <= Fraction(self.delta) * generous
            and totals.mu_squared + mu**2 <= Fraction(self.mu) ** 2 * generous
        )

    def refusal(
        self,
        budget: PrivacyBudget,
        totals: Totals,
        cost: Cost,
        guarantee: Guarantee,
        label: str,
        made: str,
    ) -> PrivacyError:
        """Why the budget does not allow a charge, in its own (epsilon, delta).

        The charge would cost this and be for the guarantee; ``made`` says how many were made.
        """
        if cost[2] > 0 and budget.delta == 0:
            return PrivacyError(
                f"The {guarantee.mechanism} needs a budget with delta > 0, and the ledger's is "
                f"PrivacyBudget({budget.epsilon:g}): start one with PrivacyBudget(epsilon, 1e-6) "
                "or so, or use Laplace noise. Nothing was charged or read."
            )
        kind, asked = "releases without Gaussian noise", self.in_epsilon_delta(cost)
        limit, left = self.epsilon, self.summed_left(totals)
        if cost[2] > 0 and self.affords(totals, (*cost[:2], 0.0)):
            kind, asked = "Gaussian noise", self.in_epsilon_delta((0.0, 0.0, cost[2]))
            limit, left = self.gaussian_epsilon, self.gaussian_left(totals)
        for_kind = f" for {kind}" if limit < budget.epsilon else ""
        whole = f"The budget {budget}"
        if limit == 0:
            why = (
                f"None of the budget {budget} is available{for_kind}: {self.origin}. A ledger "
                f"with PrivacyBudget({all_digits(budget.epsilon)}, {all_digits(budget.delta)}, "
                "summed=0.3) allows both."
            )
        elif left[0] == 0 or (asked[1] > 0 and left[1] == 0):
            why = f"{whole} is used up{for_kind}: {made}."
        else:
            own = asked if guarantee.quoted_delta is None else guarantee.quoted
            asks, counts = (f"(ε = {rounded_up(x)}, δ = {rounded_up(y)})" for x, y in (own, asked))
            why = (
                f"{whole} is too small for {label or guarantee.mechanism!r}, which costs "
                f"{asks}{'' if asks == counts else f', here {counts}'}: at most (ε = "
                f"{rounded_down(left[0])}, δ = {rounded_down(left[1])}) is left{for_kind}, and "
                f"{made}."
            )
        return BudgetExhausted(
            f"{why} No record was read this time and nothing was charged; what was released may "
            "still be used.",
            requested=self.in_epsilon_delta(cost),
            remaining=self.remaining(totals),
        )

    def summed_left(self, totals: Totals) -> tuple[float, float]:
        """The (epsilon, delta) that summed releases could still cost."""
        return (
            float_below(_left(Fraction(self.epsilon), totals.epsilon)),
            float_below(_left(Fraction(self.delta), totals.delta)),
        )

    def gaussian_left(self, totals: Totals) -> tuple[float, float]:
        """The (epsilon, delta) that Gaussian releases could still cost."""
        return self.of_mu(sqrt_below(self.mu_squared_left(totals)))

    def mu_squared_left(self, totals: Totals) -> Fraction:
        """The square of the mu that could still be charged."""
        return _left(Fraction(self.mu) ** 2, totals.mu_squared)

    def largest_left(self, totals: Totals) -> list[str]:
        """The largest single releases that are still allowed, in words."""
        mu, epsilon = sqrt_below(self.mu_squared_left(totals)), self.summed_left(totals)[0]
        if self.purely_gaussian and not self.renyi:
            epsilon = pure_dp_epsilon(mu)
        largest = [f"one Laplace release of at most ε = {rounded_down(epsilon)}"] * (epsilon > 0)
        if mu > 0:
            left = [rounded_down(each) for each in self.of_mu(mu)]
            largest.append(f"one Gaussian release of at most ε = {left[0]} at δ = {left[1]}")
        return largest

    def spent(self, totals: Totals) -> tuple[float, float]:
        """What was spent of both shares in (epsilon, delta), rounded up."""
        epsilon, delta = self.of_mu(min(self.mu, sqrt_above(totals.mu_squared)))
        return (
            float_above(min(Fraction(self.epsilon), totals.epsilon) + Fraction(epsilon)),
            float_above(min(Fraction(self.delta), totals.delta) + Fraction(delta)),
        )

    def remaining(self, totals: Totals) -> tuple[float, float]:
        """What both shares could still grant, in (epsilon, delta), rounded down."""
        (epsilon, delta), more = self.summed_left(totals), self.gaussian_left(totals)
        return (
            float_below(Fraction(epsilon) + Fraction(more[0])),
            float_below(Fraction(delta) + Fraction(more[1])),
        )

    def in_epsilon_delta(self, cost: Cost) -> tuple[float, float]:
        """A charge's cost, its mu converted at the Gaussian share's delta."""
        epsilon, delta, mu = cost
        if mu == 0:
            return epsilon, delta
        if self.gaussian_delta == 0:
            return math.inf, delta
        return epsilon + self._epsilon(mu), delta + self.gaussian_delta

    def of_mu(self, mu: float) -> tuple[float, float]:
        """A part of the Gaussian share as (epsilon, delta)."""
        if mu == 0:
            return 0.0, 0.0
        # Converting the limit back and forth may round past it.
        return min(self.gaussian_epsilon, self._epsilon(mu)), self.gaussian_delta

    def _epsilon(self, mu: float) -> float:
        if self.order is None:
            return gaussian_epsilon(mu, self.gaussian_delta)
        divergence = 0.5 * self.order * mu * mu * (1 + 1e-15)
        return renyi_epsilon(divergence, self.order, self.gaussian_delta)


def _left(limit: Fraction, spent: Fraction) -> Fraction:
    """What is left, and nothing where it is less than what decimals may be off by."""
    return limit - spent if limit - spent > ALLOWANCE * limit else Fraction(0)


@lru_cache(maxsize=64)
def _mu_limit(epsilon: float, delta: float, order: float | None) -> float:
    if order is None:
        return gaussian_mu(epsilon, delta)
    return sqrt_below(2 * Fraction(renyi_budget(epsilon, delta, order)) / Fraction(order))


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
