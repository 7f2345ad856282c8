r"""Rényi divergences of DP-SGD and of simpler mechanisms, and what they say about (epsilon, delta).

The papers account for batches of fixed size, drawn without replacement, by a bound of [Wang2019]:
for one step whose noise is z sensitivities and whose batch is a fraction q of the data, the moment
of integer order :math:`\alpha` obeys, under replace-one,

.. math::
    e^{(\alpha - 1) \epsilon(\alpha)} \le
        1 + \sum_{i=2}^{\alpha} \binom{\alpha}{i} q^i \, T_i(z), \qquad
    T_i = \min\{4 \sqrt{\chi_{2 \lfloor i/2 \rfloor} \chi_{2 \lceil i/2 \rceil}},
                2 e^{i(i-1)/(2 z^2)}\},

with :math:`\chi_\ell = E_Q[(P/Q - 1)^\ell]`, Q = N(0, 1), P = N(1/z, 1). These divergences depend
on z alone and are integrals of positive functions for even :math:`\ell`: we integrate, where the
alternating sums that define them would cancel.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from scipy.special import gammaln, log_ndtr, logsumexp

from botorch_dp._checks import check_finite
from botorch_dp.privacy._distributions import SampledKind, one_sided_loss, sampled_gaussian

#: Up to here the divergences are used; above, only the simple exponentials are (as dp-accounting).
_MAX_TIGHT_ORDER = 256

#: dp-accounting's orders and, where its list jumps (63, 128, 256, 512, 1024), those in between.
DENSE_ORDERS: tuple[float, ...] = (
    *(1 + tenth / 10 for tenth in range(1, 100)),
    *range(11, 257),
    *(320, 384, 448, 512, 640, 768, 896, 1024, 1536, 2048, 3072, 4096),
)

# The trapezoidal rule converges like exp(-2 pi^2 / step^2) for such integrands: beyond any need.
_STEP = 0.25
_EVEN = np.arange(2, _MAX_TIGHT_ORDER + 1, 2)
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(20)
_LOG_SQRT_2PI = 0.5 * math.log(2 * math.pi)


def fixed_batch_rdp(
    noise_multiplier: float, sampling_fraction: float, orders: Sequence[float]
) -> np.ndarray:
    """Rényi divergences of one step of DP-SGD on fixed-size batches, under replace-one.

    Args:
        noise_multiplier: Noise std over the l2 sensitivity of the summed gradient.
        sampling_fraction: Batch size over the number of records, in (0, 1].
        orders: Each above 1. Between integers the convex log-moment is interpolated.

    Returns:
        One divergence for each order; read-only, since it is cached.
    """
    return _fixed_batch_rdp(noise_multiplier, sampling_fraction, tuple(orders))


@lru_cache(maxsize=4096)
def _fixed_batch_rdp(z: float, fraction: float, orders: tuple[float, ...]) -> np.ndarray:
    if fraction == 1:
        rdp = gaussian_rdp(1 / z, orders)
    else:
        # Between integers: the log-moment is convex in the order.
        alphas = np.asarray(orders, dtype=float)
        floors, ceilings = np.floor(alphas).astype(int), np.ceil(alphas).astype(int)
        wanted = sorted({*floors.tolist(), *ceilings.tolist()})
        known = dict(zip(wanted, _fixed_batch_log_moments(z, fraction, wanted), strict=True))
        low = np.array([known[order] for order in floors.tolist()])
        high = np.array([known[order] for order in ceilings.tolist()])
        rdp = (low + (alphas - floors) * (high - low)) / (alphas - 1)
    rdp.setflags(write=False)
    return rdp


def sampled_gaussian_rdp(
    kind: SampledKind, noise_multiplier: float, fraction: float, orders: Sequence[float]
) -> np.ndarray:
    """Rényi divergences of the dominating pair of one step of DP-SGD; see :mod:`._distributions`.

    For Poisson batches under add-or-remove-one the larger of the two directions [Mironov2019].

    Args:
        kind: The sampling and the relation.
        noise_multiplier: Noise std over the l2 sensitivity of the summed gradient.
        fraction: The chance of a record to be in a batch, in (0, 1].
        orders: Each above 1.

    Returns:
        One divergence for each order; read-only, since it is cached.
    """
    return _sampled_gaussian_rdp(kind, noise_multiplier, fraction, tuple(orders))


@lru_cache(maxsize=256)
def _sampled_gaussian_rdp(
    kind: SampledKind, z: float, fraction: float, orders: tuple[float, ...]
) -> np.ndarray:
    if fraction == 1:
        rdp = gaussian_rdp(1 / z, orders)
    else:
        shift = float(sampled_gaussian(kind, np.array([z]), np.array([fraction])).shift[0])
        moments = [_log_moment(kind, shift, fraction, order) for order in orders]
        rdp = np.array(moments) / (np.asarray(orders, dtype=float) - 1)
    rdp.setflags(write=False)
    return rdp


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


def gaussian_rdp(mu: float, orders: Sequence[float]) -> np.ndarray:
    """Rényi divergences of a mu-GDP mechanism."""
    return np.asarray(orders, dtype=float) * (0.5 * mu * mu)


def check_orders(orders: Sequence[float]) -> tuple[float, ...]:
    """Orders as floats, or an error if a divergence of one does not exist."""
    found = tuple(check_finite("orders", float(order)) for order in orders)
    if any(order <= 1 for order in found):
        raise ValueError(f"`orders` must be above 1, got {min(found)}.")
    return found


def pure_rdp(epsilon: float, orders: Sequence[float]) -> np.ndarray:
    """Rényi divergences of randomized response, which bound those of any epsilon-DP mechanism."""
    alphas = np.asarray(orders, dtype=float)
    # The moment less 1 is (e^(a eps) - 1)(1 - e^((1-a) eps)) / (1 + e^eps): nothing cancels.
    log_excess = _log_expm1(alphas * epsilon) - np.logaddexp(0.0, epsilon)
    log_excess += np.log(-np.expm1((1 - alphas) * epsilon))
    return np.logaddexp(0.0, log_excess) / (alphas - 1)


def laplace_rdp(epsilon: float, orders: Sequence[float]) -> np.ndarray:
    """Rényi divergences of the scalar Laplace mechanism [Mironov2017]."""
    alphas = np.asarray(orders, dtype=float)
    with np.errstate(over="ignore"):
        excess = alphas * np.expm1((alphas - 1) * epsilon) + (alphas - 1) * np.expm1(
            -alphas * epsilon
        )
    small = np.log1p((excess + 1e-15 * alphas * (alphas - 1) * epsilon) / (2 * alphas - 1))
    large = (alphas - 1) * epsilon + np.log(alphas / (2 * alphas - 1)) + 1e-12
    return np.where(alphas * epsilon < 50, small, large) / (alphas - 1)


def _fixed_batch_log_moments(z: float, fraction: float, orders: Sequence[int]) -> list[float]:
    """Bounds on the log-moments of one step at integer orders."""
    tight = [order for order in orders if order <= _MAX_TIGHT_ORDER]
    powers = np.arange(2, _MAX_TIGHT_ORDER + 1)
    summands = _log_binomials()[tight, 2:] + powers * math.log(fraction) + _log_terms(z)
    with np.errstate(divide="ignore"):
        sums = logsumexp(summands, axis=1)
    return [
        *np.logaddexp(0.0, sums).tolist(),
        *(_simple_log_moment(z, fraction, order) for order in orders[len(tight) :]),
    ]


def _simple_log_moment(z: float, fraction: float, order: int) -> float:
    """A bound on the log-moment of an order above 256."""
    summands = _log_simple_terms(z, order) + _log_binomial_row(order)
    summands += np.arange(2, order + 1) * math.log(fraction)
    return float(np.logaddexp(0.0, logsumexp(summands)))


def _log_simple_terms(z: float, order: int) -> np.ndarray:
    """log T_i without divergences but that of order 2, for i = 2..order."""
    precision = np.square(1 / z)
    powers = np.arange(2, order + 1)
    terms: np.ndarray = math.log(2) + 0.5 * powers * (powers - 1) * precision
    terms[0] = np.minimum(math.log(4) + _log_expm1(precision), terms[0])
    return terms


@lru_cache(maxsize=4096)
def _log_terms(z: float) -> np.ndarray:
    """log T_i(z) for i = 2..256."""
    log_chi, powers = _log_divergences(z), np.arange(2, _MAX_TIGHT_ORDER + 1)
    averaged = 0.5 * (log_chi[powers // 2 - 1] + log_chi[(powers + 1) // 2 - 1])
    return np.minimum(_log_simple_terms(z, _MAX_TIGHT_ORDER), math.log(4) + averaged)


def _log_divergences(z: float) -> np.ndarray:
    r"""log of :math:`\chi_\ell = E_Q[(P/Q - 1)^\ell]` for even orders up to 256.

    With s = x/z - 1/(2z^2) the log-ratio at x, the integrand is exp(-x^2/2) (e^s - 1)^order. Its
    right peak lies less than sqrt(order) + 2 above order/z; the left one, at -sqrt(order), only
    counts while order/z is small.
    """
    reach = math.sqrt(_MAX_TIGHT_ORDER) + 20
    offsets = np.arange(-reach, reach + _STEP, _STEP)
    x = _EVEN[:, None] / z + offsets
    s = x / z - 0.5 / z**2
    with np.errstate(divide="ignore"):
        log_gap = np.maximum(s, 0) + np.log(-np.expm1(-np.abs(s)))
    integrand = _EVEN[:, None] * log_gap - 0.5 * x**2
    return logsumexp(integrand, axis=1) + math.log(_STEP / math.sqrt(2 * math.pi))


@lru_cache(maxsize=1)
def _log_binomials() -> np.ndarray:
    """log C(n, k) for 0 <= n, k <= 256, minus infinity above the diagonal."""
    n = np.arange(_MAX_TIGHT_ORDER + 1)
    return _log_binomial(n[:, None], n[None, :])


@lru_cache(maxsize=512)
def _log_binomial_row(order: int) -> np.ndarray:
    """log C(order, k) for k = 2..order."""
    return _log_binomial(order, np.arange(2, order + 1))


def _log_binomial(n: np.ndarray | int, k: np.ndarray) -> np.ndarray:
    rest = np.maximum(np.subtract(n, k), 0)
    value = gammaln(np.add(n, 1)) - gammaln(k + 1) - gammaln(rest + 1)
    return np.where(np.less(n, k), -np.inf, value)


def _log_expm1(value: np.ndarray | float) -> np.ndarray:
    return value + np.log(-np.expm1(-np.asarray(value, dtype=float)))


def rdp_epsilon(orders: Sequence[float], rdp: np.ndarray, delta: float) -> float:
    """The smallest epsilon that Rényi divergences imply at ``delta`` [Canonne2020]."""
    alphas = np.asarray(orders, dtype=float)
    penalty = (math.log(delta) + np.log(alphas)) / (alphas - 1)
    epsilons = np.maximum(rdp + np.log1p(-1 / alphas) - penalty, 0.0)
    epsilons[alphas <= 1.01] = np.inf  # not stable there, and never the best order
    # delta >= sqrt(1 - exp(-KL)) bounds the total variation: then epsilon = 0 will do.
    return float(np.where(delta**2 + np.expm1(-rdp) > 0, 0.0, epsilons).min())


def rdp_delta(orders: Sequence[float], rdp: np.ndarray, epsilon: float) -> float:
    """The smallest delta that Rényi divergences imply at ``epsilon``; inverse of the above."""
    alphas = np.asarray(orders, dtype=float)
    with np.errstate(divide="ignore"):
        by_variation = 0.5 * np.log(-np.expm1(-rdp))
    by_moment = (alphas - 1) * (rdp - epsilon + np.log1p(-1 / alphas)) - np.log(alphas)
    by_moment[alphas <= 1.01] = np.inf
    log_delta = float(np.minimum(by_variation, by_moment).min())
    return math.exp(min(log_delta, 0.0))
