"""What DP-SGD costs, and the exact Gaussian conversions of :mod:`.gaussian`.

Two ways to draw a lot, under two neighbouring relations that must not be compared:

* ``"without_replacement"``: lots of fixed size; one record is *replaced*. Rényi divergences of
  [Wang2019] (see :mod:`.renyi`), or the plain Gaussian mechanism where that is better.
* ``"poisson"``: every record joins a lot by its own coin; one record is *added or removed*.
  Privacy-loss distributions [Doroshenko2022] with pessimistic rounding.

``noise_multiplier`` always means noise std over the l2 sensitivity of the summed gradient under the
relation: with clipping norm C that sensitivity is 2C for a replaced record and C for an added one.
(dp-accounting reads ``GaussianDpEvent`` under REPLACE_ONE as std/2C in its Rényi accountant, but as
std/C in its privacy-loss accountant; Opacus measures noise in units of C.)
.. [Doroshenko2022] V. Doroshenko, B. Ghazi, P. Kamath, R. Kumar, P. Manurangsi. Connect the Dots:
   Tighter Discrete Approximations of Privacy Loss Distributions. PoPETs 2022.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np
from scipy.optimize import brentq
from scipy.special import ndtri

from botorch_dp._checks import check_delta, check_integer, check_positive
from botorch_dp.privacy._composition import composed_epsilon
from botorch_dp.privacy._gaussian import (
    compose_gdp,
    gaussian_delta,
    gaussian_epsilon,
    gaussian_mu,
    pure_dp_epsilon,
    pure_dp_mu,
)
from botorch_dp.privacy._renyi import bulk_epsilons, fixed_lot_rdp, rdp_epsilon
from botorch_dp.privacy.losses import FixedLotSGDLoss, NeighboringRelation, PoissonSGDLoss

__all__ = [
    "compose_gdp",
    "dp_sgd_epsilon",
    "dp_sgd_epsilons",
    "dp_sgd_loss",
    "dp_sgd_noise_multiplier",
    "dp_sgd_relation",
    "gaussian_delta",
    "gaussian_epsilon",
    "gaussian_mu",
    "pure_dp_epsilon",
    "pure_dp_mu",
]

Sampling = Literal["without_replacement", "poisson"]


_LOSSES: dict[str, type[FixedLotSGDLoss] | type[PoissonSGDLoss]] = {
    "without_replacement": FixedLotSGDLoss,
    "poisson": PoissonSGDLoss,
}


def dp_sgd_relation(sampling: Sampling) -> NeighboringRelation:
    """The neighbouring relation under which lots drawn this way are accounted for."""
    _check_sampling(sampling)
    return _LOSSES[sampling].relation


def dp_sgd_loss(
    *,
    noise_multiplier: float,
    lot_size: int,
    num_records: int,
    steps: int,
    sampling: Sampling = "without_replacement",
) -> FixedLotSGDLoss | PoissonSGDLoss:
    """The privacy loss of a DP-SGD run, as a record for a ``Guarantee``; arguments as below."""
    _check_sampling(sampling)
    check_integer("num_records", num_records)
    check_integer("lot_size", lot_size, at_most=num_records)
    if sampling == "poisson":
        return PoissonSGDLoss(noise_multiplier, lot_size / num_records, steps)
    return FixedLotSGDLoss(noise_multiplier, lot_size, num_records, steps)


def dp_sgd_epsilon(
    *,
    noise_multiplier: float,
    lot_size: int,
    num_records: int,
    steps: int,
    delta: float,
    sampling: Sampling = "without_replacement",
    orders: Sequence[float] | None = None,
) -> float:
    """The epsilon of DP-SGD (or DP-Adam) at ``delta``, an upper bound.

    Args:
        noise_multiplier: Noise std over the l2 sensitivity of the summed gradient: 2C when a record
            is replaced, C when one is added.
        lot_size: Records in a lot; for Poisson sampling the expected number.
        num_records: Number of records.
        steps: Number of noisy gradients.
        delta: In (0, 1).
        sampling: How lots are drawn. A shuffled pass over the data is neither.
        orders: Rényi orders, without replacement only. Given, the result is the Rényi bound of
            these orders and nothing else; by default a dense list is used, and the Gaussian
            mechanism without any amplification where that is smaller (always for full lots).

    Returns:
        Epsilon under :func:`dp_sgd_relation`. It never falls as ``steps`` grow; without replacement
        it never grows with the noise.

    Example:
        >>> run = dict(lot_size=256, num_records=32561, steps=1000, delta=1e-5)
        >>> round(dp_sgd_epsilon(noise_multiplier=1.0, **run), 3)
        2.75
        >>> round(dp_sgd_epsilon(noise_multiplier=1.0, sampling="poisson", **run), 3)
        1.409
    """
    loss = dp_sgd_loss(
        noise_multiplier=noise_multiplier,
        lot_size=lot_size,
        num_records=num_records,
        steps=steps,
        sampling=sampling,
    )
    check_delta("delta", delta)
    if orders is None:
        return composed_epsilon((loss,), delta)
    if isinstance(loss, PoissonSGDLoss):
        raise ValueError(
            "`orders` belongs to sampling='without_replacement'; Poisson sampling is accounted for "
            "by privacy-loss distributions. Leave it out."
        )
    _check_orders(orders)
    rdp = fixed_lot_rdp(loss.noise_multiplier, lot_size / num_records, orders)
    return rdp_epsilon(orders, steps * rdp, delta)


def dp_sgd_epsilons(
    noise_multipliers: Sequence[float] | np.ndarray,
    lot_sizes: Sequence[int] | np.ndarray,
    steps: Sequence[int] | np.ndarray,
    *,
    num_records: int,
    delta: float,
) -> np.ndarray:
    """:func:`dp_sgd_epsilon` without replacement for thousands of settings at once.

    For scoring candidates: an upper bound on the function above, typically 1e-5 larger, at most 1%.
    (The logarithm of each divergence is convex in the logarithm of the noise, being that of a power
    series in 1/z^2 with no negative coefficient; so its chords lie above it.) It is discontinuous
    in its slope where the best order changes: do not interpolate it.

    Args:
        noise_multipliers: Candidates' noise multipliers, ``b``.
        lot_sizes: Their lot sizes, ``b``.
        steps: Their numbers of steps, ``b``.
        num_records: Number of records.
        delta: In (0, 1).

    Returns:
        ``b`` epsilons.
    """
    check_integer("num_records", num_records)
    check_delta("delta", delta)
    noise, lots, lengths = np.broadcast_arrays(noise_multipliers, lot_sizes, steps)
    if noise.ndim != 1:
        raise ValueError(f"Settings must be one-dimensional, got shape {noise.shape}.")
    if not (np.isfinite(noise) & (noise > 0)).all():
        raise ValueError("`noise_multipliers` must be positive and finite.")
    if not ((lots >= 1) & (lots <= num_records) & (lots % 1 == 0)).all():
        raise ValueError(f"`lot_sizes` must be integers from 1 to {num_records}.")
    if not ((lengths >= 1) & (lengths % 1 == 0)).all():
        raise ValueError("`steps` must be integers of at least 1.")
    noise, fractions, lengths = noise.astype(float), lots / float(num_records), lengths * 1.0
    epsilons = bulk_epsilons(noise, fractions, lengths, delta)
    # Without amplification: delta < Phi(mu/2 - epsilon/mu), a cheap sign of where it may be better.
    mus = np.sqrt(lengths) / noise
    unamplified = mus * np.maximum(mus / 2 - ndtri(delta), 0.0)
    for index in np.flatnonzero(unamplified < 2 * epsilons):
        epsilons[index] = min(epsilons[index], gaussian_epsilon(float(mus[index]), delta))
    return epsilons


def dp_sgd_noise_multiplier(
    *,
    epsilon: float,
    lot_size: int,
    num_records: int,
    steps: int,
    delta: float,
    sampling: Sampling = "without_replacement",
    tolerance: float = 1e-5,
) -> float:
    """The least noise multiplier for which :func:`dp_sgd_epsilon` stays within ``epsilon``.

    Args:
        epsilon: The target, positive; it is never exceeded.
        lot_size: Records in a lot; for Poisson sampling the expected number.
        num_records: Number of records.
        steps: Number of noisy gradients.
        delta: In (0, 1).
        sampling: How lots are drawn.
        tolerance: How far above the least value the result may be, relatively.

    Example:
        >>> z = dp_sgd_noise_multiplier(
        ...     epsilon=1.0, lot_size=256, num_records=32561, steps=1000, delta=1e-5
        ... )
        >>> round(z, 3)
        2.178
    """
    epsilon = check_positive("epsilon", epsilon)
    check_delta("delta", delta)
    check_positive("tolerance", tolerance)

    def log_excess(noise_multiplier: float) -> float:
        spent = dp_sgd_epsilon(
            noise_multiplier=noise_multiplier,
            lot_size=lot_size,
            num_records=num_records,
            steps=steps,
            delta=delta,
            sampling=sampling,
        )
        return math.log(max(spent, 1e-9 * epsilon) / epsilon)

    # Without any amplification this is what the Gaussian mechanism needs.
    high = math.sqrt(check_integer("steps", steps)) / gaussian_mu(epsilon, delta)
    return _least_noise(log_excess, high, tolerance)


def _least_noise(log_excess: Callable[[float], float], high: float, tolerance: float) -> float:
    """The least noise without excess, from above; ``high`` has none but for rounding.

    What is returned was itself evaluated: the root finder only chooses where to look.
    """
    while log_excess(high) > 0:
        high *= 1 + tolerance
    low = high / 2
    while log_excess(low) <= 0:
        low, high = low / 2, low
    noise = math.exp(
        brentq(
            lambda log_noise: log_excess(math.exp(log_noise)),
            math.log(low),
            math.log(high),
            xtol=tolerance / 4,
            rtol=1e-14,
        )
    )
    while log_excess(noise) > 0:
        noise *= 1 + tolerance / 4
    return noise


def _check_orders(orders: Sequence[float]) -> None:
    if len(orders) == 0 or not all(math.isfinite(order) and order > 1 for order in orders):
        raise ValueError("`orders` must be a non-empty sequence of finite numbers above 1.")


def _check_sampling(sampling: str) -> None:
    if sampling not in tuple(_LOSSES):
        raise ValueError(
            f"`sampling` must be one of {tuple(_LOSSES)}, got {sampling!r}. A shuffled pass over "
            "the data is neither: draw each lot afresh."
        )
