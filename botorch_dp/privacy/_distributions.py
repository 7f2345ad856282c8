"""Privacy-loss distributions on a grid, built with dp-accounting and always rounded upwards.

The composition of mechanisms is the convolution of their privacy-loss distributions
[Koskela2020]. Splitting a loss between two grid points so that its probability under either data
set is kept [Doroshenko2022] gives a mechanism that is less private: what is read off is an upper
bound.
.. [Koskela2020] A. Koskela, J. Jälkö, A. Honkela. Computing Tight Differential Privacy Guarantees
   Using FFT. AISTATS 2020.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from scipy.stats import binom

#: Probability that may be counted at a larger loss, or at an infinite one, to keep lists short.
_TAIL = 1e-16
#: Fewer responses than this are listed in full.
_FEW = 60
#: dp-accounting's default; a finer grid only where losses are small, a coarser one where large.
USUAL_INTERVAL = 1e-4
_FINEST_INTERVAL = 1e-7
_MOST_POINTS = 2**19


@dataclass(frozen=True)
class RandomizedResponses:
    """``count`` randomized responses, which dominate as many epsilon-DP mechanisms [Kairouz2015].

    Each has loss +epsilon with probability 1/(1 + e^-epsilon), else -epsilon: their number is
    binomial and the (epsilon, delta) curve of the sum exact.
    """

    epsilon: float
    count: int

    def atoms(self) -> tuple[np.ndarray, np.ndarray, float]:
        """Losses from large to small, their probabilities, and that of larger losses left out.

        The latter is at most ``1e-16``; smaller losses left out count as the smallest one listed.
        """
        lie = math.exp(-self.epsilon) / (1 + math.exp(-self.epsilon))
        first, last = 0, self.count
        if self.count > _FEW:
            first = int(binom.ppf(_TAIL, self.count, lie))
            last = int(binom.isf(_TAIL, self.count, lie))
        lies = np.arange(first, last + 1)
        probability = binom.pmf(lies, self.count, lie)
        probability[-1] += binom.sf(last, self.count, lie)
        omitted = float(binom.cdf(first - 1, self.count, lie)) if first > 0 else 0.0
        return (self.count - 2.0 * lies) * self.epsilon, probability, omitted

    def delta_at(self, epsilon: float) -> float:
        """The exact delta at ``epsilon``, but for rounding errors on the safe side."""
        losses, probability, omitted = self.atoms()
        above = losses > epsilon
        delta = omitted + float(probability[above] @ -np.expm1(epsilon - losses[above]))
        return min(1.0, delta * (1 + 1e-10))

    def epsilon_at(self, delta: float) -> float:
        """The exact epsilon at ``delta``, but for rounding errors on the safe side."""
        losses, probability, omitted = self.atoms()
        target = delta * (1 - 1e-10) - omitted
        if target <= 0:
            return self.count * self.epsilon
        with np.errstate(divide="ignore"):
            log_alternative = np.logaddexp.accumulate(np.log(probability) - losses)
        # Between two losses, delta is (probability above) - e^epsilon (alternative above).
        above = np.cumsum(probability)
        delta_at_loss = above - np.exp(losses + log_alternative)
        delta_at_loss[0] = 0.0
        index = int(np.flatnonzero(delta_at_loss <= target)[-1])
        if above[index] <= target:
            return 0.0
        epsilon = math.log(above[index] - target) - log_alternative[index]
        return float(min(max(0.0, epsilon * (1 + 1e-12) + 1e-15), self.count * self.epsilon))

    def distribution(self, interval: float) -> Any:
        """The privacy-loss distribution on a grid; every atom is split between two neighbours."""
        losses, probability, omitted = self.atoms()
        position = losses / interval
        below = np.floor(position)
        # Both data sets keep their probabilities: p = p_lo + p_hi, p e^-l = p_lo e^-lo + p_hi e^-hi
        up = np.expm1((below - position) * interval) / math.expm1(-interval)
        masses: dict[int, float] = {}
        for index, low, high in zip(
            below.astype(int).tolist(),
            (probability * (1 - up)).tolist(),
            (probability * up).tolist(),
            strict=True,
        ):
            masses[index] = masses.get(index, 0.0) + low
            masses[index + 1] = masses.get(index + 1, 0.0) + high
        return _pld().PrivacyLossDistribution.create_from_rounded_probability(
            masses, omitted, interval
        )


@dataclass(frozen=True)
class SingleLaplace:
    """One scalar Laplace mechanism, whose curve is delta = 1 - e^((eps - epsilon)/2)."""

    epsilon: float

    def delta_at(self, epsilon: float) -> float:
        """The exact delta at ``epsilon``."""
        return max(0.0, -math.expm1((epsilon - self.epsilon) / 2))

    def epsilon_at(self, delta: float) -> float:
        """The exact epsilon at ``delta``."""
        exact = self.epsilon * (1 + 1e-15) + 2 * math.log1p(-delta)
        return min(max(0.0, exact), self.epsilon)


def gaussian_distribution(mu: float, interval: float) -> Any:
    """The privacy-loss distribution of a mu-GDP mechanism."""
    return _pld().from_gaussian_mechanism(1 / mu, value_discretization_interval=interval)


def laplace_distribution(epsilon: float, count: int, interval: float) -> Any:
    """The privacy-loss distribution of ``count`` scalar Laplace mechanisms."""
    one = _pld().from_laplace_mechanism(1 / epsilon, value_discretization_interval=interval)
    return one.self_compose(count)


def poisson_sgd_distribution(
    noise_multiplier: float, sampling_probability: float, steps: int, interval: float
) -> Any:
    """The privacy-loss distribution of DP-SGD on Poisson-sampled lots."""
    return _poisson_step(noise_multiplier, sampling_probability, interval).self_compose(steps)


@lru_cache(maxsize=8)
def _poisson_step(noise_multiplier: float, sampling_probability: float, interval: float) -> Any:
    return _pld().from_gaussian_mechanism(
        noise_multiplier,
        sampling_prob=sampling_probability,
        value_discretization_interval=interval,
    )


def grid_interval(*, reach: float, finest_detail: float, usual: float) -> float:
    """A grid interval that resolves the details and keeps the grid short.

    Args:
        reach: Losses beyond plus or minus this are very unlikely.
        finest_detail: The spread of the smallest loss that is composed with itself many times.
        usual: What to use when neither matters.
    """
    return max(min(usual, finest_detail / 10), 2 * reach / _MOST_POINTS, _FINEST_INTERVAL)


def _pld() -> Any:
    from dp_accounting.pld import privacy_loss_distribution

    return privacy_loss_distribution
