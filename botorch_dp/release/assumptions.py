r"""The Gaussian-process assumption behind the releases of [Kusner2015]_, in words and numbers.

Assumption 1 puts one prior over the objectives ``f_V`` of all data sets ``V``:
``cov(f_V(x), f_V'(x')) = k(V, V') k(x, x')`` with zero mean and ``k(x, x) = k(V, V) = 1``. For
neighbours, ``f_V(x) - f_V'(x)`` then is Gaussian with variance ``2 (1 - k(V, V'))``.

Which correlation? If ``f`` is the mean of ``m`` scores within a range ``r``, in units of a prior
standard deviation ``s``, neighbours differ by at most ``r / (m s)``; with ``k(V, V') =
1 - (r / (m s))^2 / 2`` that is one standard deviation of the difference.

References:
.. [Kusner2015]
    M. J. Kusner, J. R. Gardner, R. Garnett and K. Q. Weinberger. Differentially Private Bayesian
    Optimization. ICML 2015.
.. [Kusner2014]
    The earlier edition of the same work, at the NIPS 2014 workshop on Bayesian optimization.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from botorch_dp._checks import check_finite
from botorch_dp.privacy import PrivacyUnit

VALIDATION_RECORD = PrivacyUnit("one record of the validation set")

#: Beyond this many prior standard deviations no draw of the prior lies (probability < 1e-500).
_PLAUSIBLE = 50.0


def check_correlation(dataset_correlation: float) -> float:
    """Return ``k(V, V')`` of neighbouring data sets, or raise unless it lies in [0, 1]."""
    value = check_finite("dataset_correlation", dataset_correlation)
    if not 0 <= value <= 1:
        raise ValueError(
            "`dataset_correlation` must lie in [0, 1]: it is the prior correlation k(V, V') of the "
            f"objectives of neighbouring data sets, got {value}."
        )
    return value


def neighbor_gap(dataset_correlation: float, count: float, delta: float) -> float:
    r"""``2 sqrt((1 - k(V, V')) log(count / delta))``, the ``c`` of the papers.

    ``|f_V - f_V'| <= c`` on ``n`` choices but for probability ``n delta / count`` over the prior:
    for a Gaussian of variance ``s^2``, ``P(|Z| > c) <= exp(-c^2 / (2 s^2))``.
    """
    return 2 * math.sqrt((1 - dataset_correlation) * math.log(count / delta))


def prior_conditions(dataset_correlation: float, delta: float) -> tuple[str, ...]:
    """What every release under Assumption 1 rests on."""
    return (
        "Assumption 1 of Kusner et al. (2015) is true: the objectives of all data sets are one "
        "draw of a zero-mean Gaussian process with covariance k(V, V') k(x, x'), k(x, x) = 1, its "
        "parameters fixed without looking at the records",
        f"neighbouring data sets have correlation k(V, V') >= {dataset_correlation:g}",
        f"the sensitivity bound may fail with probability {delta:g} over that prior (not over the "
        "mechanism's coins)",
    )


def plausible(values: Tensor, noise_std: float = 0.0) -> Tensor:
    """``values`` within 50 prior standard deviations; NaN counts as the lower end.

    No draw of the prior is changed, neighbouring values do not move apart, and a record that
    breaks the objective cannot be noticed by an exception.
    """
    limit = _PLAUSIBLE * math.hypot(1.0, noise_std)
    return torch.nan_to_num(values.detach().double(), nan=-limit).clamp(-limit, limit)
