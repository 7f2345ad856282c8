r"""Budgets, the two compartments they are split into, and what a guarantee costs in each.

Sums are taken over fractions and so are exact; what leaves them as a float is rounded to the safe
side. See :mod:`.ledger` for why two compartments are a sound filter.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

from botorch_dp._checks import check_delta, check_finite, check_positive, checked
from botorch_dp.errors import PrivacyError
from botorch_dp.privacy._gaussian import gaussian_epsilon, gaussian_mu
from botorch_dp.privacy.accounting import renyi_budget, renyi_epsilon
from botorch_dp.privacy.guarantee import Cost, Guarantee

#: Sums are exact, but decimals are not: ten charges of 0.1 add up to 1 + 5.6e-17. A limit counts as
#: kept within this fraction of itself; the allowance is granted once, however many charges.
ALLOWANCE = Fraction(1, 10**12)


@checked
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
