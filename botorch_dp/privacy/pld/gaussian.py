r"""Exact Gaussian differential privacy.

A mechanism is mu-GDP if telling two neighbouring data sets apart is at least as hard as telling
N(0, 1) from N(mu, 1) [Dong2022]. With :math:`a = \epsilon/\mu - \mu/2` and
:math:`b = \epsilon/\mu + \mu/2` it is then :math:`(\epsilon, \delta)`-private for

.. math:: \delta = \Phi(-a) - e^{\epsilon} \Phi(-b) = \varphi(a) \, (M(a) - M(b)),

and for no smaller one [Balle2018]; :math:`M(x) = \Phi(-x)/\varphi(x)` is Mills' ratio, finite
where both terms of the first form underflow or cancel. All functions round to the safe side.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import numpy as np
from scipy.special import erfcx, erfinv, log_ndtr, ndtr, ndtri, ndtri_exp

from botorch_dp._checks import check_delta, check_nonnegative

_LOG_SQRT_2PI = 0.5 * math.log(2 * math.pi)
_SQRT_HALF = math.sqrt(0.5)
_SQRT_HALF_PI = math.sqrt(0.5 * math.pi)
#: Added to every log(delta): covers the rounding errors of the formula (measured below 1e-13).
_LOG_MARGIN = 1e-12
_RELATIVE_MARGIN = 4e-15
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(16)


def gaussian_delta(mu: float, epsilon: float) -> float:
    """The smallest delta for which mu-GDP implies (epsilon, delta)-DP.

    Args:
        mu: The parameter of Gaussian differential privacy: sensitivity over noise std.
        epsilon: At least 0.

    Example:
        >>> round(gaussian_delta(1.0, 1.0), 6)
        0.126937
    """
    mu, epsilon = _check_mu(mu), check_nonnegative("epsilon", epsilon)
    if mu == 0:
        return 0.0
    if math.isinf(mu):
        return 1.0
    # Below the smallest positive number delta is still not 0.
    return min(1.0, max(math.exp(_log_delta(mu, epsilon)), 5e-324))


def gaussian_epsilon(mu: float, delta: float) -> float:
    """The smallest epsilon for which mu-GDP implies (epsilon, delta)-DP.

    Args:
        mu: The parameter of Gaussian differential privacy: sensitivity over noise std.
        delta: In (0, 1).

    Example:
        >>> round(gaussian_epsilon(1.0, 1e-5), 4)
        4.3772
    """
    mu, delta = _check_mu(mu), check_delta("delta", delta)
    if math.isinf(mu):
        return math.inf
    target = math.log(delta)
    if mu == 0 or _log_delta(mu, 0.0) <= target:
        return 0.0

    def excess(epsilon: float) -> float:
        return _log_delta(mu, epsilon) - target

    # delta(epsilon) < Phi(-a), so this end is already private enough, but for rounding.
    high = mu * max(0.5 * mu - float(ndtri(delta)), 1e-3)
    while excess(high) > 0:
        high *= 1.5
    return safe_root(excess, 0.0, high, tolerance=2e-16, smallest=1e-17 * mu)


def gaussian_mu(epsilon: float, delta: float) -> float:
    """The largest mu for which mu-GDP implies (epsilon, delta)-DP.

    The noise of a Gaussian mechanism that is (epsilon, delta)-private has standard deviation
    sensitivity / mu.

    Args:
        epsilon: At least 0.
        delta: In (0, 1).

    Example:
        >>> round(1 / gaussian_mu(1.0, 1e-5), 4)
        3.7306
    """
    epsilon, delta = check_nonnegative("epsilon", epsilon), check_delta("delta", delta)
    if epsilon > 1e150:
        raise ValueError(f"`epsilon` must be at most 1e150, got {epsilon}.")
    target = math.log(delta)

    def excess(mu: float) -> float:
        return _log_delta(mu, epsilon) - target

    # Both are private enough: delta < Phi(-a), and delta falls as epsilon grows from 0.
    quantile = -float(ndtri(delta))
    root_term = math.hypot(quantile, math.sqrt(2 * epsilon))
    simple = 2 * epsilon / (root_term + quantile) if quantile > 0 else root_term - quantile
    low = max(simple, 2 * math.sqrt(2) * float(erfinv(delta))) * (1 - 1e-9)
    low = max(low, 1e-300)
    while excess(low) > 0:  # near delta = 1, where the margin for rounding counts
        low /= 2
    high = 2 * low
    while excess(high) <= 0:
        low, high = high, 2 * high
    return safe_root(excess, high, low, tolerance=2e-16)


def safe_root(
    excess: Callable[[float], float],
    unsafe: float,
    safe: float,
    *,
    tolerance: float,
    smallest: float = 0.0,
) -> float:
    """The root of a monotone function by Brent's method, from the side where it is not above 0.

    What is returned was itself evaluated, or is ``safe``: the root finder chooses where to look.

    Args:
        excess: Monotone between the two ends; finite, positive at ``unsafe`` and not at ``safe``.
        unsafe: The end where it is positive, below or above the other one.
        safe: The end where it is not.
        tolerance: How far from the root the result may be, relatively.
        smallest: The same, absolutely; for roots near 0.
    """
    from scipy.optimize import brentq  # late, because it takes long to load

    low, high = min(unsafe, safe), max(unsafe, safe)
    # SciPy asks for at least four rounding errors, and for some absolute tolerance.
    end = brentq(excess, low, high, xtol=max(smallest, 5e-324), rtol=max(tolerance, 4e-15))
    step = max(tolerance * abs(end), smallest, 2e-16 * abs(end))
    while excess(end) > 0:
        end = min(end + step, high) if safe > unsafe else max(end - step, low)
        if end == safe:
            break
        step *= 2
    return float(end)


def compose_gdp(mus: Iterable[float]) -> float:
    """The exact composition of Gaussian mechanisms: the root of the sum of squares.

    Sound also when each mechanism is chosen by the outputs before it, as long as the mus are
    fixed in advance.

    Example:
        >>> compose_gdp([3.0, 4.0])
        5.0
    """
    return math.hypot(*(_check_mu(mu, "mus") for mu in mus))


def pure_dp_mu(epsilon: float) -> float:
    r"""The smallest mu for which every epsilon-DP mechanism is mu-GDP.

    :math:`\mu = 2 \Phi^{-1}(e^\epsilon / (1 + e^\epsilon))`: randomized response with that epsilon
    dominates all epsilon-DP mechanisms, and its trade-off curve touches that of N(0, 1) against
    N(mu, 1) in its corner.

    Example:
        >>> round(pure_dp_mu(0.3), 4)
        0.3754
    """
    epsilon = check_nonnegative("epsilon", epsilon)
    if epsilon < 1:
        return 2 * math.sqrt(2) * float(erfinv(math.tanh(epsilon / 2))) * (1 + _RELATIVE_MARGIN)
    # log of the smaller probability of randomized response, which stays accurate for any epsilon
    log_lie = -epsilon - math.log1p(math.exp(-epsilon))
    return -2 * float(ndtri_exp(log_lie)) * (1 + 1e-14)


def pure_dp_epsilon(mu: float) -> float:
    """The largest epsilon such that every epsilon-DP mechanism is mu-GDP.

    The price in the other direction: what an exponential mechanism may spend inside a Gaussian
    budget. It is *not* a pure guarantee of a Gaussian mechanism, which has none.

    Example:
        >>> round(pure_dp_epsilon(0.3754), 4)
        0.3
    """
    mu = _check_mu(mu)
    if math.isinf(mu):
        return math.inf
    if mu < 1:
        epsilon = 2 * math.atanh(math.erf(mu * 0.5 * _SQRT_HALF))
    else:
        epsilon = float(log_ndtr(mu / 2) - log_ndtr(-mu / 2))
    return epsilon * (1 - 1e-13)


def _check_mu(mu: float, name: str = "mu") -> float:
    return math.inf if mu == math.inf else check_nonnegative(name, mu)


def _mills_ratio(x: float) -> float:
    return _SQRT_HALF_PI * float(erfcx(x * _SQRT_HALF))


def _log_delta(mu: float, epsilon: float) -> float:
    """log(delta) of mu-GDP at epsilon, never too small; mu > 0."""
    a, b = epsilon / mu - mu / 2, epsilon / mu + mu / 2
    if mu < 1:
        # M(a) - M(b) is the integral of 1 - t M(t) from a to b: no cancellation for tiny mu.
        t = a + (0.5 * mu) * (_NODES + 1)
        slopes = 1 - t * _SQRT_HALF_PI * erfcx(t * _SQRT_HALF)
        difference = 0.5 * mu * float(_WEIGHTS @ slopes)
    elif a >= 0:
        difference = _mills_ratio(a) - _mills_ratio(b)
    else:
        # M(a) may overflow; Phi(-a) is at least 1/2 and nothing cancels.
        tail = math.exp(-0.5 * a * a - _LOG_SQRT_2PI) * _mills_ratio(b)
        return math.log(float(ndtr(-a)) - tail) + _LOG_MARGIN
    if difference <= 0:  # beyond 1e8 standard deviations; any bound will do
        difference = 1 / (1 + a * a)
    return -0.5 * a * a - _LOG_SQRT_2PI + math.log(difference) + _LOG_MARGIN
