"""From privacy losses to (epsilon, delta): the best of several valid upper bounds.

Losses are first brought into a normal form. Gaussian parts are one Gaussian part, exactly. An
(epsilon, delta)-DP part is, at worst, one that reveals everything with probability delta and is a
randomized response otherwise [Kairouz2015]; so the deltas are set apart and pure parts remain.
Equal parts are counted, so composing them one by one or all at once is the same thing.

Then each bound that applies is evaluated and the smallest is taken: exact curves (only pure parts,
only Gaussian ones, a single Laplace), the sum of pure epsilons, privacy-loss distributions, Rényi
divergences, Gaussian domination, and a split of delta. Each holds on its own, for mechanisms that
were fixed in advance; where later ones depend on earlier outputs, use a ledger.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

from botorch_dp._checks import check_delta, check_nonnegative
from botorch_dp.errors import PrivacyError
from botorch_dp.privacy._distributions import (
    USUAL_INTERVAL,
    RandomizedResponses,
    SingleLaplace,
    gaussian_distribution,
    grid_interval,
    laplace_distribution,
    poisson_sgd_distribution,
)
from botorch_dp.privacy._gaussian import (
    compose_gdp,
    gaussian_delta,
    gaussian_epsilon,
    pure_dp_mu,
)
from botorch_dp.privacy._renyi import (
    DENSE_ORDERS,
    fixed_lot_rdp,
    gaussian_rdp,
    laplace_rdp,
    poisson_sgd_rdp,
    pure_rdp,
    rdp_delta,
    rdp_epsilon,
)
from botorch_dp.privacy.losses import (
    ApproximateLoss,
    FixedLotSGDLoss,
    GaussianLoss,
    LaplaceLoss,
    PoissonSGDLoss,
    PrivacyLoss,
    PureLoss,
)

#: More different epsilons than this are rounded up to so many levels before they are composed.
_MOST_LEVELS = 128
#: Shares of delta (or epsilon) tried for the fixed-size lots when they are accounted for apart.
_SHARES = (0.01, 0.1, 0.5, 0.9, 0.99)
#: Where the reach of a grid is read off.
_TAIL_DELTA = 1e-15
_COARSEST_INTERVAL = 10.0


def composed_epsilon(losses: Iterable[PrivacyLoss], delta: float = 0.0) -> float:
    """The smallest epsilon known to hold at ``delta`` for all losses together.

    Args:
        losses: Privacy losses under one neighbouring relation.
        delta: In [0, 1).

    Returns:
        An upper bound, exact for pure losses, for Gaussian losses and for a single loss that is not
        DP-SGD; infinite if no epsilon is known to hold.

    Example:
        >>> composed_epsilon([PureLoss(0.5), LaplaceLoss(0.25)])
        0.75
    """
    delta = check_delta("delta", delta, allow_zero=True)
    parts = _normal_form(tuple(losses))
    if delta < parts.lost or parts.lost >= 1:
        return math.inf
    return parts.epsilon_at((delta - parts.lost) / (1 - parts.lost))


def composed_delta(losses: Iterable[PrivacyLoss], epsilon: float) -> float:
    """The smallest delta known to hold at ``epsilon`` for all losses together.

    Args:
        losses: Privacy losses under one neighbouring relation.
        epsilon: At least 0.

    Returns:
        An upper bound in [0, 1], exact where :func:`composed_epsilon` is.

    Example:
        >>> composed_delta([ApproximateLoss(0.5, 1e-6)], 0.5)
        1e-06
    """
    epsilon = check_nonnegative("epsilon", epsilon)
    parts = _normal_form(tuple(losses))
    rest = parts.delta_at(epsilon)
    return min(1.0, parts.lost + (1 - parts.lost) * rest)


Counts = tuple[tuple[float, int], ...]


@dataclass(frozen=True)
class _Parts:
    """The normal form: what is left when ``lost``, the chance of revealing all, is set apart."""

    lost: float = 0.0
    mu: float = 0.0
    pure: Counts = ()
    laplace: Counts = ()
    poisson: tuple[PoissonSGDLoss, ...] = ()
    fixed: tuple[FixedLotSGDLoss, ...] = ()

    @property
    def is_pure(self) -> bool:
        return self.mu == 0 and not self.poisson and not self.fixed

    @property
    def is_gaussian(self) -> bool:
        return not (self.pure or self.laplace or self.poisson or self.fixed)

    @property
    def sum(self) -> float:
        """What pure epsilons add up to; infinite if other parts are present."""
        if not self.is_pure:
            return math.inf
        return math.fsum(epsilon * count for epsilon, count in (*self.pure, *self.laplace))

    def epsilon_at(self, delta: float) -> float:
        """The best bound on epsilon for what is left, at ``delta`` >= 0."""
        if delta <= 0 or self == _Parts(self.lost):
            return self.sum
        exact = self._exact_curve()
        if exact is not None:
            return exact.epsilon_at(delta)
        bounds = [self.sum, gaussian_epsilon(_dominating_mu(self), delta)]
        if not self.is_gaussian:
            bounds += [rdp_epsilon(DENSE_ORDERS, _rdp(self), delta), _grid_epsilon(self, delta)]
            bounds += [
                lots.epsilon_at(share * delta) + others.epsilon_at((1 - share) * delta)
                for lots, others, share in self._splits()
            ]
        return min(bounds)

    def delta_at(self, epsilon: float) -> float:
        """The best bound on delta for what is left, at ``epsilon`` >= 0."""
        if epsilon >= self.sum:
            return 0.0
        exact = self._exact_curve()
        if exact is not None:
            return exact.delta_at(epsilon)
        bounds = [gaussian_delta(_dominating_mu(self), epsilon)]
        if not self.is_gaussian:
            bounds += [rdp_delta(DENSE_ORDERS, _rdp(self), epsilon), _grid_delta(self, epsilon)]
            for lots, others, share in self._splits():
                first = max(epsilon - others.sum, 0.0) if share == 1 else share * epsilon
                bounds.append(lots.delta_at(first) + others.delta_at(epsilon - first))
        return min(bounds)

    def _exact_curve(self) -> RandomizedResponses | SingleLaplace | None:
        if self.is_pure and len(self.pure) == 1 and not self.laplace:
            return RandomizedResponses(*self.pure[0])
        if self.is_pure and not self.pure and len(self.laplace) == 1 and self.laplace[0][1] == 1:
            return SingleLaplace(self.laplace[0][0])
        return None

    def _splits(self) -> list[tuple[_Parts, _Parts, float]]:
        """Fixed-size lots apart from all others, with shares of the budget; valid one by one."""
        others = replace(self, lost=0.0, fixed=())
        if not self.fixed or others == _Parts():
            return []
        shares = (*_SHARES, 1.0) if others.is_pure else _SHARES
        return [(_Parts(fixed=self.fixed), others, share) for share in shares]


@lru_cache(maxsize=256)
def _normal_form(losses: tuple[PrivacyLoss, ...]) -> _Parts:
    mus: list[float] = []
    pure: Counter[float] = Counter()
    laplace: Counter[float] = Counter()
    deltas: list[float] = []
    poisson: Counter[tuple[float, float]] = Counter()
    fixed: Counter[tuple[float, int, int]] = Counter()
    for loss in losses:
        match loss:
            case PureLoss(epsilon):
                pure[epsilon] += 1
            case LaplaceLoss(epsilon):
                laplace[epsilon] += 1
            case GaussianLoss(mu):
                mus.append(mu)
            case ApproximateLoss(epsilon, delta):
                pure[epsilon] += 1
                deltas.append(delta)
            case PoissonSGDLoss(noise, probability, steps):
                poisson[noise, probability] += steps
            case FixedLotSGDLoss(noise, lot_size, num_records, steps):
                fixed[noise, lot_size, num_records] += steps
            case _:
                raise TypeError(f"`losses` must hold privacy losses, got {type(loss).__name__}.")
    if poisson and fixed:
        raise PrivacyError(
            "Poisson-sampled lots are accounted for when a record is added or removed, lots of "
            "fixed size when one is replaced: they have no common epsilon. Use one sampling."
        )
    full = [(z, steps) for (z, q), steps in poisson.items() if q == 1]
    full += [(z, steps) for (z, size, total), steps in fixed.items() if size == total]
    mus += [math.sqrt(steps) / z for z, steps in full]
    return _Parts(
        lost=deltas[0] if len(deltas) == 1 else -math.expm1(math.fsum(map(_log_kept, deltas))),
        mu=compose_gdp(sorted(mus)),
        pure=_counts(pure),
        laplace=_counts(laplace),
        poisson=tuple(PoissonSGDLoss(*key, n) for key, n in sorted(poisson.items()) if key[1] < 1),
        fixed=tuple(FixedLotSGDLoss(*k, n) for k, n in sorted(fixed.items()) if k[1] < k[2]),
    )


def _log_kept(delta: float) -> float:
    return math.log1p(-delta)


def _counts(epsilons: Mapping[float, int]) -> Counts:
    """Positive epsilons with their numbers; very many different ones are rounded up to levels."""
    positive = {epsilon: count for epsilon, count in epsilons.items() if epsilon > 0}
    if len(positive) <= _MOST_LEVELS:
        return tuple(sorted(positive.items()))
    levels = np.geomspace(min(positive), max(positive), _MOST_LEVELS)
    levels[-1] = max(positive)
    rounded: Counter[float] = Counter()
    for epsilon, count in positive.items():
        rounded[float(levels[np.searchsorted(levels, epsilon)])] += count
    return tuple(sorted(rounded.items()))


def _dominating_mu(parts: _Parts) -> float:
    """A mu for which the whole is mu-GDP: pure parts converted, lots without amplification."""
    pure = (pure_dp_mu(e) * math.sqrt(count) for e, count in (*parts.pure, *parts.laplace))
    runs: tuple[PoissonSGDLoss | FixedLotSGDLoss, ...] = (*parts.poisson, *parts.fixed)
    return compose_gdp((parts.mu, *pure, *map(_unamplified_mu, runs)))


def _unamplified_mu(run: PoissonSGDLoss | FixedLotSGDLoss) -> float:
    """Sound for any sampling: once the lots are known, every step is a Gaussian mechanism."""
    return math.sqrt(run.steps) / run.noise_multiplier


def _rdp(parts: _Parts) -> np.ndarray:
    """Rényi divergences of all parts together, which add up."""
    total = gaussian_rdp(parts.mu, DENSE_ORDERS)
    for epsilon, count in parts.pure:
        total = total + count * pure_rdp(epsilon, DENSE_ORDERS)
    for epsilon, count in parts.laplace:
        total = total + count * laplace_rdp(epsilon, DENSE_ORDERS)
    for run in parts.poisson:
        rdp = poisson_sgd_rdp(run.noise_multiplier, run.sampling_probability, DENSE_ORDERS)
        total = total + run.steps * rdp
    for lots in parts.fixed:
        fraction = lots.lot_size / lots.num_records
        total = total + lots.steps * fixed_lot_rdp(lots.noise_multiplier, fraction, DENSE_ORDERS)
    return total


def _grid_epsilon(parts: _Parts, delta: float) -> float:
    if not _has_grid(parts) or delta <= _grid_slack(parts):
        return math.inf
    return float(_distribution(parts).get_epsilon_for_delta(delta - _grid_slack(parts)))


def _grid_delta(parts: _Parts, epsilon: float) -> float:
    if not _has_grid(parts):
        return 1.0
    return float(_distribution(parts).get_delta_for_epsilon(epsilon)) + _grid_slack(parts)


def _has_grid(parts: _Parts) -> bool:
    """Whether a grid may help: fixed-size lots alone have no known dominating pair but Gaussians.

    Nor does it for losses so large that e^interval, or anything else about them, is meaningless.
    """
    only_fixed_lots = not (parts.mu or parts.pure or parts.laplace or parts.poisson)
    return not only_fixed_lots and _interval(parts) <= _COARSEST_INTERVAL


def _grid_slack(parts: _Parts) -> float:
    """More than what Fourier transforms in double precision may get wrong in delta."""
    count = sum(k for _, k in (*parts.pure, *parts.laplace)) + sum(r.steps for r in parts.poisson)
    return 1e-14 + 2e-16 * count


@lru_cache(maxsize=16)
def _distribution(parts: _Parts) -> Any:
    """The privacy-loss distribution of all parts; lots of fixed size enter unamplified."""
    interval = _interval(parts)
    mu = compose_gdp((parts.mu, *map(_unamplified_mu, parts.fixed)))
    composed = [gaussian_distribution(mu, interval)] if mu > 0 else []
    composed += [RandomizedResponses(e, count).distribution(interval) for e, count in parts.pure]
    composed += [laplace_distribution(e, count, interval) for e, count in parts.laplace]
    composed += [
        poisson_sgd_distribution(
            run.noise_multiplier, run.sampling_probability, run.steps, interval
        )
        for run in parts.poisson
    ]
    whole = composed[0]
    for part in composed[1:]:
        whole = whole.compose(part)
    return whole


@lru_cache(maxsize=16)
def _interval(parts: _Parts) -> float:
    """A grid fine enough for the smallest part and short enough for the largest loss."""
    reach = gaussian_epsilon(_dominating_mu(parts), _TAIL_DELTA)
    if not parts.fixed:  # which enter the grid without what their divergences gain from sampling
        reach = min(reach, rdp_epsilon(DENSE_ORDERS, _rdp(parts), _TAIL_DELTA))
    spreads = [epsilon for epsilon, _ in parts.laplace]
    for run in parts.poisson:
        # Standard deviation of the likelihood ratio of one step; large ones do not matter.
        exponent = min(run.noise_multiplier**-2, 50.0)
        spreads.append(run.sampling_probability * math.sqrt(math.expm1(exponent)))
    usual = reach / 20_000
    if parts.poisson:
        usual = min(USUAL_INTERVAL, 2 * usual)
    return grid_interval(reach=reach, finest_detail=min(spreads, default=math.inf), usual=usual)
