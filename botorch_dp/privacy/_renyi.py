r"""Rényi divergences: of DP-SGD on lots of fixed size, drawn without replacement, and simpler ones.

For one step of DP-SGD whose noise is z sensitivities and whose lot is a fraction q of the data, the
moment of integer order :math:`\alpha` obeys, under replace-one [Wang2019],

.. math::
    e^{(\alpha - 1) \epsilon(\alpha)} \le
        1 + \sum_{i=2}^{\alpha} \binom{\alpha}{i} q^i \, T_i(z), \qquad
    T_i = \min\{4 \sqrt{\chi_{2 \lfloor i/2 \rfloor} \chi_{2 \lceil i/2 \rceil}},
                2 e^{i(i-1)/(2 z^2)}\},

with :math:`\chi_\ell = E_Q[(P/Q - 1)^\ell]`, Q = N(0, 1), P = N(1/z, 1). These divergences depend
on z alone and are integrals of positive functions for even :math:`\ell`: we integrate, where the
alternating sums that define them would cancel.
.. [Mironov2019] I. Mironov, K. Talwar, L. Zhang. Rényi Differential Privacy of the Sampled Gaussian
   Mechanism. arXiv:1908.10530, 2019.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np
from scipy.special import gammaln, logsumexp

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
#: Bulk paths skip moments above e^500: no such order is the best one for a delta above 1e-100.
_LARGEST_EXPONENT = 500.0


def fixed_lot_rdp(
    noise_multiplier: float, sampling_fraction: float, orders: Sequence[float]
) -> np.ndarray:
    """Rényi divergences of one step of DP-SGD on fixed-size lots, under replace-one.

    Args:
        noise_multiplier: Noise std over the l2 sensitivity of the summed gradient.
        sampling_fraction: Lot size over the number of records, in (0, 1].
        orders: Each above 1. Between integers the convex log-moment is interpolated.

    Returns:
        One divergence for each order; read-only, since it is cached.
    """
    return _fixed_lot_rdp(noise_multiplier, sampling_fraction, tuple(orders))


@lru_cache(maxsize=4096)
def _fixed_lot_rdp(z: float, fraction: float, orders: tuple[float, ...]) -> np.ndarray:
    if fraction == 1:
        rdp = gaussian_rdp(1 / z, orders)
    else:
        rdp = _interpolated(orders, lambda wanted: _fixed_lot_log_moments(z, fraction, wanted))
    rdp.setflags(write=False)
    return rdp


def poisson_sgd_rdp(
    noise_multiplier: float, sampling_probability: float, orders: Sequence[float]
) -> np.ndarray:
    """Rényi divergences of one step of DP-SGD on Poisson-sampled lots [Mironov2019].

    Exact under add-or-remove-one at integer orders, where the moment is a binomial sum.
    """
    return _poisson_sgd_rdp(noise_multiplier, sampling_probability, tuple(orders))


@lru_cache(maxsize=256)
def _poisson_sgd_rdp(z: float, probability: float, orders: tuple[float, ...]) -> np.ndarray:
    if probability == 1:
        rdp = gaussian_rdp(1 / z, orders)
    else:
        rdp = _interpolated(
            orders, lambda wanted: [_poisson_log_moment(z, probability, n) for n in wanted]
        )
    rdp.setflags(write=False)
    return rdp


def _poisson_log_moment(z: float, probability: float, order: int) -> float:
    powers = np.arange(2, order + 1)
    # The powers 0 and 1 are part of (1 - q + q)^n = 1: what exceeds 1 is a sum of positive terms.
    gains = powers * (powers - 1) / (2 * z**2)
    summands = _log_binomial_row(order) + powers * math.log(probability)
    summands += (order - powers) * math.log1p(-probability) + _log_expm1(gains)
    return float(np.logaddexp(0.0, logsumexp(summands))) if order > 1 else 0.0


def gaussian_rdp(mu: float, orders: Sequence[float]) -> np.ndarray:
    """Rényi divergences of a mu-GDP mechanism."""
    return np.asarray(orders, dtype=float) * (0.5 * mu * mu)


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


def _interpolated(
    orders: Sequence[float], log_moments: Callable[[Sequence[int]], Sequence[float]]
) -> np.ndarray:
    """Divergences from log-moments at integers, which are convex in the order."""
    alphas = np.asarray(orders, dtype=float)
    floors, ceilings = np.floor(alphas).astype(int), np.ceil(alphas).astype(int)
    wanted = sorted({*floors.tolist(), *ceilings.tolist()})
    known = dict(zip(wanted, log_moments(wanted), strict=True))
    low = np.array([known[order] for order in floors.tolist()])
    high = np.array([known[order] for order in ceilings.tolist()])
    return (low + (alphas - floors) * (high - low)) / (alphas - 1)


def _fixed_lot_log_moments(z: float, fraction: float, orders: Sequence[int]) -> list[float]:
    """Bounds on the log-moments of one step at integer orders."""
    tight = [order for order in orders if order <= _MAX_TIGHT_ORDER]
    powers = np.arange(2, _MAX_TIGHT_ORDER + 1)
    summands = _log_binomials()[tight, 2:] + powers * math.log(fraction) + _log_terms(z)
    with np.errstate(divide="ignore"):
        sums = logsumexp(summands, axis=1)
    return [
        *np.logaddexp(0.0, sums).tolist(),
        *(float(_simple_log_moments(z, fraction, order)) for order in orders[len(tight) :]),
    ]


def _simple_log_moments(
    noise: np.ndarray | float, fraction: np.ndarray | float, order: int
) -> np.ndarray:
    """Bounds on log-moments of an order above 256; ``b`` settings at once or a single one."""
    powers = np.arange(2, order + 1)
    summands = _log_simple_terms(noise, order) + _log_binomial_row(order)
    summands += powers * np.log(fraction)[..., None]
    return np.logaddexp(0.0, logsumexp(summands, axis=-1))


def _log_simple_terms(noise: np.ndarray | float, order: int) -> np.ndarray:
    """log T_i without divergences but that of order 2, for i = 2..order; ``... x order-1``."""
    precision = np.square(1 / np.asarray(noise, dtype=float))[..., None]
    powers = np.arange(2, order + 1)
    terms = math.log(2) + 0.5 * powers * (powers - 1) * precision
    chi_squared = math.log(4) + _log_expm1(precision[..., 0])
    terms[..., 0] = np.minimum(chi_squared, terms[..., 0])
    return terms


@lru_cache(maxsize=4096)
def _log_terms(z: float) -> np.ndarray:
    """log T_i(z) for i = 2..256."""
    return _terms_from_divergences(z, _log_divergences(z))


def _terms_from_divergences(noise: np.ndarray | float, log_chi: np.ndarray) -> np.ndarray:
    """log T_i for i = 2..256 from the divergences of even orders; ``... x 255``."""
    powers = np.arange(2, _MAX_TIGHT_ORDER + 1)
    averaged = 0.5 * (log_chi[..., powers // 2 - 1] + log_chi[..., (powers + 1) // 2 - 1])
    return np.minimum(_log_simple_terms(noise, _MAX_TIGHT_ORDER), math.log(4) + averaged)


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
    return float(_epsilons(np.asarray(orders, dtype=float), rdp, delta).min())


def _epsilons(orders: np.ndarray, rdp: np.ndarray, delta: float) -> np.ndarray:
    """What each order by itself implies; ``... x orders``."""
    penalty = (math.log(delta) + np.log(orders)) / (orders - 1)
    epsilons = np.maximum(rdp + np.log1p(-1 / orders) - penalty, 0.0)
    epsilons[..., orders <= 1.01] = np.inf  # not stable there, and never the best order
    # delta >= sqrt(1 - exp(-KL)) bounds the total variation: then epsilon = 0 will do.
    return np.where(delta**2 + np.expm1(-rdp) > 0, 0.0, epsilons)


def rdp_delta(orders: Sequence[float], rdp: np.ndarray, epsilon: float) -> float:
    """The smallest delta that Rényi divergences imply at ``epsilon``; inverse of the above."""
    alphas = np.asarray(orders, dtype=float)
    with np.errstate(divide="ignore"):
        by_variation = 0.5 * np.log(-np.expm1(-rdp))
    by_moment = (alphas - 1) * (rdp - epsilon + np.log1p(-1 / alphas)) - np.log(alphas)
    by_moment[alphas <= 1.01] = np.inf
    log_delta = float(np.minimum(by_variation, by_moment).min())
    return math.exp(min(log_delta, 0.0))


#: Spacing of log(noise) between tabulated divergences, and the orders of the bulk path;
#: the larger ones only where they may be the best (small epsilon).
_LOG_NOISE_STEP = 0.01
_BULK_ORDERS = np.arange(2, _MAX_TIGHT_ORDER + 1)
_BULK_ORDERS_BEYOND = np.array([order for order in DENSE_ORDERS if order > _MAX_TIGHT_ORDER])
_BULK_ROWS = 512


def bulk_epsilons(
    noise: np.ndarray, fractions: np.ndarray, steps: np.ndarray, delta: float
) -> np.ndarray:
    """Upper bounds on the epsilons of many DP-SGD runs on fixed-size lots; see ``accounting``.

    Args:
        noise: Noise multipliers, ``b``.
        fractions: Lot sizes over the number of records, ``b``.
        steps: Numbers of steps, ``b``.
        delta: In (0, 1).

    Returns:
        ``b`` epsilons.
    """
    blocks = range(0, len(noise), _BULK_ROWS)
    rows = [slice(start, start + _BULK_ROWS) for start in blocks]
    parts = [_bulk_block(noise[r], fractions[r], steps[r], delta) for r in rows]
    return np.concatenate(parts) if parts else np.empty(0)


def _bulk_block(
    noise: np.ndarray, fractions: np.ndarray, steps: np.ndarray, delta: float
) -> np.ndarray:
    exponents = _interpolated_terms(noise)
    exponents += np.arange(2, _MAX_TIGHT_ORDER + 1) * np.log(fractions)[:, None]
    capped = np.minimum(exponents, _LARGEST_EXPONENT)
    sums = np.exp(capped) @ _binomials().T
    # An order that uses a capped summand would come out too small: it is left out.
    too_large = np.logical_or.accumulate(exponents > _LARGEST_EXPONENT, axis=1)
    moments = np.where(too_large, np.inf, np.log1p(sums))
    epsilons = _epsilons_by_order(steps, moments, _BULK_ORDERS, delta)
    best = epsilons.min(axis=1)
    strong = np.flatnonzero(epsilons.argmin(axis=1) > 0.75 * _MAX_TIGHT_ORDER)
    if strong.size:
        beyond = [
            _simple_log_moments(noise[strong], fractions[strong], int(order))
            for order in _BULK_ORDERS_BEYOND
        ]
        others = _epsilons_by_order(
            steps[strong], np.stack(beyond, axis=1), _BULK_ORDERS_BEYOND, delta
        )
        best[strong] = np.minimum(best[strong], others.min(axis=1))
    return best


def _epsilons_by_order(
    steps: np.ndarray, log_moments: np.ndarray, orders: np.ndarray, delta: float
) -> np.ndarray:
    return _epsilons(orders.astype(float), steps[:, None] * log_moments / (orders - 1), delta)


def _interpolated_terms(noise: np.ndarray) -> np.ndarray:
    """log T_i(z), ``b x 255``, from chords of log-divergences that are convex in log z."""
    position = np.log(noise) / _LOG_NOISE_STEP
    node = np.floor(position).astype(int)
    weight = (position - node)[:, None]
    nodes, where = np.unique(np.concatenate([node, node + 1]), return_inverse=True)
    table = np.stack([_tabulated_divergences(int(n)) for n in nodes])[where]
    log_chi = (1 - weight) * table[: len(noise)] + weight * table[len(noise) :]
    return _terms_from_divergences(noise, log_chi)


@lru_cache(maxsize=4096)
def _tabulated_divergences(node: int) -> np.ndarray:
    return _log_divergences(math.exp(node * _LOG_NOISE_STEP))


@lru_cache(maxsize=1)
def _binomials() -> np.ndarray:
    """C(n, k) for n, k = 2..256."""
    return np.exp(_log_binomials()[2:, 2:])
