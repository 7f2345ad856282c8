"""Rényi divergences of one order, which may be added up under full adaptivity [Feldman2021].

The order is fixed in advance, and divergences are charged until their sum implies the (epsilon,
delta) of a budget: ``PrivacyBudget(renyi=True)``. dp-accounting has no Rényi divergences for
Poisson batches under REPLACE_ONE, nor for the dominating pair of fixed batches, so those of sampled
Gaussians are integrated here.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from scipy.special import log_ndtr, logsumexp

from botorch_dp._checks import check_delta, check_positive
from botorch_dp.privacy.pld.distributions import SampledKind, one_sided_loss, sampled_gaussian

_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(20)
_LOG_SQRT_2PI = 0.5 * math.log(2 * math.pi)


@lru_cache(maxsize=4096)
def sampled_gaussian_rdp(kind: SampledKind, z: float, fraction: float, order: float) -> float:
    """Rényi divergence of the dominating pair of one step of DP-SGD; see :mod:`.distributions`.

    For Poisson batches under add-or-remove-one the larger of the two directions [Mironov2019].

    Args:
        kind: The sampling and the relation.
        z: Noise std over the l2 sensitivity of the summed gradient.
        fraction: The chance of a record to be in a batch, in (0, 1].
        order: Above 1.
    """
    if fraction == 1:
        return gaussian_rdp(1 / z, order)
    shift = float(sampled_gaussian(kind, np.array([z]), np.array([fraction])).shift[0])
    return _log_moment(kind, shift, fraction, order) / (order - 1)


def _log_moment(kind: SampledKind, c: float, q: float, order: float) -> float:
    """log E[exp((order - 1) L)] of the pair, from above.

    What exceeds 1 is an integral of a positive function, over panels as fine as the bend in the
    loss. Beyond the last panel the ratio of P to Q is at most that of two Gaussians times a
    constant, whose integral is known.
    """
    bend, depth = c / 2 - math.log(q) / c, math.sqrt(2 * (40 + order))
    start = {"add_or_remove": -10.0, "replace": 0.0, "fixed": c / 2}[kind]
    stop = max(min(bend + 40 / c, order * c + depth), start + 1)
    fine = bend + np.arange(-40, 41) / c
    edges = np.unique(
        np.clip(np.concatenate([np.arange(start, stop, 0.5), fine, [stop]]), start, stop)
    )
    half = 0.5 * np.diff(edges)[:, None]
    y = (edges[:-1, None] + half * (1 + _NODES)).ravel()
    log_weight = np.log((half * _WEIGHTS).ravel()) - 0.5 * y**2 - _LOG_SQRT_2PI
    loss = one_sided_loss(c, q, y)
    if kind == "replace":
        below = one_sided_loss(c, q, -y)
        log_weight, loss = log_weight + below, loss - below
    if kind == "add_or_remove":
        # The mean of the ratio is 1: r^a - 1 - a (r - 1) has the same integral as r^a - 1.
        scaled = order * loss
        small = 0.5 * order * (order - 1) * loss**2 * (1 + (order + 1) * loss / 3)
        with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
            exact = np.log(np.expm1(np.minimum(scaled, 600)) - order * np.expm1(loss))
            log_excess = np.where(np.abs(scaled) < 1e-5, np.log(small), exact)
            log_excess = np.where(scaled > 600, scaled, log_excess)
    else:
        # r^a + r^(1 - a) - r - 1, for a loss and its mirror image.
        with np.errstate(divide="ignore"):
            log_excess = loss + _log_expm1((order - 1) * loss) + np.log(-np.expm1(-order * loss))
    exponent = c * stop - c * c / 2
    rest = order * np.logaddexp(math.log(q), math.log1p(-q) - exponent)
    rest += order * (order - 1) * c * c / 2 + log_ndtr(order * c - stop)
    if kind == "replace":
        rest -= (order - 1) * math.log1p(-q)
    total = logsumexp(np.concatenate([log_weight + log_excess, [rest]]))
    return float(np.logaddexp(0.0, total + 1e-9))


def gaussian_rdp(mu: float, order: float) -> float:
    """Rényi divergence of a mu-GDP mechanism."""
    return order * (0.5 * mu * mu)


def pure_rdp(epsilon: float, order: float) -> float:
    """Rényi divergence of randomized response, which bounds that of any epsilon-DP mechanism."""
    if epsilon == 0:
        return 0.0
    # The moment less 1 is (e^(a eps) - 1)(1 - e^((1-a) eps)) / (1 + e^eps): nothing cancels.
    log_excess = float(_log_expm1(order * epsilon)) - float(np.logaddexp(0.0, epsilon))
    log_excess += math.log(-math.expm1((1 - order) * epsilon))
    return float(np.logaddexp(0.0, log_excess)) / (order - 1)


def laplace_rdp(epsilon: float, order: float) -> float:
    """Rényi divergence of the scalar Laplace mechanism [Mironov2017]."""
    if order * epsilon < 50:
        excess = order * math.expm1((order - 1) * epsilon)
        excess += (order - 1) * math.expm1(-order * epsilon) + 1e-15 * order * (order - 1) * epsilon
        return math.log1p(excess / (2 * order - 1)) / (order - 1)
    return epsilon + (math.log(order / (2 * order - 1)) + 1e-12) / (order - 1)


def _log_expm1(value: np.ndarray | float) -> np.ndarray:
    return value + np.log(-np.expm1(-np.asarray(value, dtype=float)))


def renyi_epsilon(divergence: float, order: float, delta: float) -> float:
    """The epsilon at ``delta`` that one Rényi divergence implies [Canonne2020].

    Args:
        divergence: An upper bound on the Rényi divergence of that order, at least 0.
        order: Above 1.
        delta: In (0, 1).

    Example:
        >>> round(renyi_epsilon(0.1, 16.0, 1e-5), 3)
        0.618
    """
    check_delta("delta", delta)
    penalty = (math.log(delta) + math.log(order)) / (order - 1) - math.log1p(-1 / order)
    return max(0.0, (divergence - penalty) * (1 + 1e-15))


def renyi_budget(epsilon: float, delta: float, order: float) -> float:
    """The largest Rényi divergence of this order that implies (epsilon, delta)-DP.

    The inverse of :func:`renyi_epsilon`; 0 if the order is too small for this budget.

    Example:
        >>> round(renyi_budget(1.0, 1e-5, 24.0), 3)
        0.68
    """
    check_positive("epsilon", epsilon)
    penalty = epsilon - renyi_epsilon(0.0, order, delta)
    return max(0.0, penalty * (1 - 1e-14))
