r"""What the releases rest on (Assumption 1), and what they are worth.

Assumption 1 of [Kusner2015] puts one prior over the objectives ``f_V`` of all data sets ``V``:
``cov(f_V(x), f_V'(x')) = k(V, V') k(x, x')`` with zero mean and ``k(x, x) = k(V, V) = 1``. For
neighbours, ``f_V(x) - f_V'(x)`` then is Gaussian with variance ``2 (1 - k(V, V'))``.

Which correlation? If ``f`` is the mean of ``m`` scores within a range ``r``, in units of a prior
standard deviation ``s``, neighbours differ by at most ``r / (m s)``; with ``k(V, V') =
1 - (r / (m s))^2 / 2`` that is one standard deviation of the difference.

What a release is worth follows from its noise alone. With ``scale`` the noise scale and
``a = log(1 / delta)``:

* Laplace noise is at most ``scale * a`` in absolute value, but for probability ``delta``;
* a choice drawn from ``n`` with probability proportional to ``exp(utility / scale)``, or by
  permute-and-flip at that scale, has a utility of at least ``max - scale * (log n + a)``, but for
  probability ``delta``. That is the published bound. The worst utilities are those of ``n - 1``
  choices all so far below the best, which gives the exact one: for the exponential mechanism
  ``scale * log((n - 1) (1 - delta) / delta)``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from botorch_dp._checks import check_delta, check_finite, warn_caller
from botorch_dp.privacy import PrivacyUnit
from botorch_dp.privacy.mechanisms import SelectionMethod

VALIDATION_RECORD = PrivacyUnit("one record of the validation set")

#: Beyond this many prior standard deviations no draw of the prior lies (probability < 1e-500).
_PLAUSIBLE = 50.0

# Assumption 1


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


def observation_gap(noise_std: float, factor: float, count: float, delta: float) -> float:
    """``q = noise_std sqrt(factor log(count / delta))``: how much observation noise adds."""
    return noise_std * math.sqrt(factor * math.log(count / delta))


def decimal(number: float) -> str:
    """The shortest decimal that is read as the same double, for a condition in words.

    Fewer digits may state less than the proof needs: 1 - 6e-7 as 0.999999 allows data sets whose
    objectives lie 1.29 times as far apart.
    """
    return repr(float(number)).removesuffix(".0")


def prior_conditions(dataset_correlation: float, delta: float) -> tuple[str, ...]:
    """What every release under Assumption 1 rests on."""
    return (
        "Assumption 1 of Kusner et al. (2015) is true: the objectives of all data sets are one "
        "draw of a zero-mean Gaussian process with covariance k(V, V') k(x, x'), k(x, x) = 1",
        "the choices, the kernel and the other settings were chosen without the records",
        f"neighbouring data sets have correlation k(V, V') >= {decimal(dataset_correlation)}",
        f"the sensitivity bound may fail with probability {decimal(delta)} over that prior (not "
        "over the mechanism's coins)",
    )


def clamp_to_prior(values: Tensor, noise_std: float = 0.0) -> Tensor:
    """``values`` clamped to 50 prior standard deviations; NaN counts as the lower end.

    No draw of the prior is changed, neighbouring values do not move apart, and a record that
    breaks the objective cannot be noticed by an exception.
    """
    limit = _PLAUSIBLE * math.hypot(1.0, noise_std)
    return torch.nan_to_num(values.detach().double(), nan=-limit).clamp(-limit, limit)


# What a release is worth


class UtilityWarning(UserWarning):
    """A release that is private, but hardly worth publishing."""


@dataclass(frozen=True)
class UtilityBound:
    """How far a released value may be from the best one, in the units of the objective.

    Args:
        subject: What is compared with what, in words.
        noise: The part of the loss that the privacy noise is responsible for.
        model: The rest: how far the search and its model may be off.
        probability: With which probability the loss stays below ``noise + model``.
        spread: By how much values differ before anything is known of them: noise of this size
            hides the answer.
        remark: What the noise means for this release, in numbers.

    Example:
        >>> choice = PrivateChoice(
        ...     num_choices=1000, epsilon=1.0, delta=1e-3, steps=50, dataset_correlation=0.99
        ... )
        >>> choice.utility().drowned
        True
    """

    subject: str
    noise: float
    model: float
    probability: float
    spread: float
    remark: str = ""

    @property
    def loss(self) -> float:
        """The bound: ``noise + model``."""
        return self.noise + self.model

    @property
    def drowned(self) -> bool:
        """Whether the noise may be as large as what is to be told apart."""
        return self.noise >= self.spread

    def __str__(self) -> str:
        sentence = (
            f"With probability {self.probability:.4g}, {self.subject} by at most {self.loss:.3g} "
            f"({self.noise:.3g} from the privacy noise, {self.model:.3g} from the search); values "
            f"differ by about {self.spread:.3g} before anything is known of them."
        )
        return f"{sentence} {self.remark}" if self.remark else sentence


def laplace_tail(scale: float, delta: float) -> float:
    """What Laplace noise of this scale stays within, but for probability ``delta``."""
    return scale * math.log(1 / check_delta("delta", delta))


def exact_selection_tail(
    scale: float, num_choices: int, delta: float, method: SelectionMethod
) -> float:
    """How far a drawn utility stays from the best of ``num_choices``, but for that probability.

    The smallest such number for arbitrary utilities: a worse choice is drawn more often the more
    there are and the closer they are, so ``num_choices - 1`` choices at one distance are the worst.
    """
    check_delta("delta", delta)
    if num_choices == 1:
        return 0.0
    odds = (num_choices - 1) * (1 - delta) / delta
    high = max(0.0, scale * math.log(odds))
    if method == "exponential":
        return high
    low = 0.0  # permute-and-flip draws a worse choice more seldom
    for _ in range(60):
        middle = (low + high) / 2
        if best_choice_probability(scale, num_choices, middle, method) >= 1 - delta:
            high = middle
        else:
            low = middle
    return high


def best_choice_probability(
    scale: float, num_choices: int, spread: float, method: SelectionMethod
) -> float:
    """The probability of drawing the best choice when all others are worse by ``spread``.

    No utilities within ``spread`` of each other give the best one a larger probability. For
    permute-and-flip each choice before the best in the random order is passed over with probability
    ``1 - q``, ``q = exp(-spread / scale)``.
    """
    q = math.exp(-spread / scale)
    if method == "exponential":
        return 1 / (1 + (num_choices - 1) * q)
    if q == 0:
        return 1.0
    return (
        -math.expm1(num_choices * math.log1p(-q)) / (num_choices * q) if q < 1 else 1 / num_choices
    )


def blind_draw_remark(
    scale: float, num_choices: int, spread: float, method: SelectionMethod
) -> str:
    """How much likelier the best choice is than in a blind draw, at best."""
    best = best_choice_probability(scale, num_choices, spread, method)
    return (
        f"Even the best of the {num_choices} choices is drawn with probability at most {best:.3g}; "
        f"a blind draw has {1 / num_choices:.3g}."
    )


def prior_spread(num_choices: int) -> float:
    """How large ``num_choices`` unit Gaussians become: ``E max <= sqrt(2 log n)``; at least 1."""
    return max(1.0, math.sqrt(2 * math.log(num_choices)))


def warn_if_drowned(bound: UtilityBound) -> None:
    """Warn when the privacy noise may hide the answer."""
    if bound.drowned:
        warn_caller(
            f"The privacy noise may hide this release. {bound} Raise `epsilon`, or compare "
            "fewer choices.",
            UtilityWarning,
        )
