r"""What a random projection does to distances, and what that does to the search.

After Lemma 1 and Theorem 2 of [Kharkovskii2020]. The lemma's number of columns with its
classical constant (``edition="icml2020"``) stands beside the exact one; the regret bound has the
theorem's form with constants of our own, proven here.

*Distances.* With ``M`` standard normal (``d x r``), ``|(x - x') M|^2 / (r |x - x'|^2)`` is
chi-square over ``r`` with ``r`` degrees of freedom: a union over all pairs of ``n`` rows bounds it.
For few columns a bound for all directions at once is smaller: the singular values of ``M`` lie
within ``sqrt(r) +- (sqrt(d) + t)``, each side but for probability ``exp(-t^2 / 2)`` [Davidson2001].
Lifting singular values multiplies squared distances by 1 to ``1 + (floor / least singular
value)^2``.

*Search.* Let all covariances of an RBF be off by at most ``h``, ``y`` be the ``t`` answers so far,
and ``s`` the noise. With ``A = (K + s^2 I)^{-1}``, ``|A| <= 1/s^2``, ``|k.A| <= 1/s`` and ``A' - A
= A (K - K') A'``, the posterior means differ by at most ``h (t^{1/2} / s^2 + t / s^3) |y|`` and the
variances by at most ``h (2 t^{1/2} / s + t / s^2)``; call ``e_t`` what this makes of an upper
confidence bound. If ``f`` lies within its true bounds, the row of the largest wrong bound has a
regret of at most ``2 (beta_t variance)^{1/2} + 2 e_t``, and the mean over ``T`` steps is at most
``(8 beta_T gain_T / (T log(1 + s^-2)))^{1/2} + 2 mean(e_t)`` [Srinivas2010].
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from gpytorch.kernels import Kernel
from torch import Tensor

from botorch_dp._checks import (
    check_delta,
    check_integer,
    check_nonnegative,
    check_positive,
    check_tensor,
)
from botorch_dp.acquisition import UCBSchedule
from botorch_dp.models import FiniteSetGP
from botorch_dp.outsourced.modeler import Answer

#: ``exact``, or what the lemma asks for.
LemmaEdition = Literal["exact", "icml2020"]


@dataclass(frozen=True)
class Distortion:
    """Squared distances of released rows over those of the rows lie between ``low`` and ``high``.

    Args:
        low: At least.
        high: At most.
        delta: Probability, over the projection, that some pair is outside.
    """

    low: float
    high: float
    delta: float

    @property
    def covariance_error(self) -> float:
        """How far an RBF's covariances are off, at most, whatever its length-scale.

        ``|exp(-u) - exp(-c u)|`` is largest at ``u = log(c) / (c - 1)``.
        """

        def error(c: float) -> float:
            if c in (0.0, 1.0):
                return 1.0 - c
            u = math.log(c) / (c - 1)
            return abs(math.exp(-u) - math.exp(-c * u))

        return max(error(self.low), error(self.high))


def projection_distortion(
    *, num_rows: int, dim: int, projection_dim: int, delta: float, lift: float = 0.0
) -> Distortion:
    """How a random projection distorts the distances of all pairs of rows.

    Args:
        num_rows: ``n``.
        dim: ``d``.
        projection_dim: ``r``.
        delta: Probability that some pair lies outside.
        lift: Floor of the singular values over the least one; 0 where nothing was lifted.

    Example:
        >>> projection_distortion(num_rows=10_000, dim=2, projection_dim=10, delta=0.05).low > 0
        True
    """
    from scipy.stats import chi2

    n = check_integer("num_rows", num_rows, at_least=2)
    d, r = check_integer("dim", dim), check_integer("projection_dim", projection_dim)
    check_delta("delta", delta)
    check_nonnegative("lift", lift)
    tail = delta / (n * (n - 1))  # each side of each pair
    t = math.sqrt(2 * math.log(2 / delta))
    around = (math.sqrt(d) + t) / math.sqrt(r)
    low = max(float(chi2.ppf(tail, float(r))) / r, max(0.0, 1 - around) ** 2)
    high = min(float(chi2.isf(tail, float(r))) / r, (1 + around) ** 2)
    return Distortion(low, high * (1 + lift**2), delta)


def projection_dim_for(
    *, num_rows: int, dim: int, distortion: float, delta: float, edition: LemmaEdition = "exact"
) -> int:
    """The fewest columns for which all squared distances keep within ``1 +- distortion``.

    Args:
        num_rows: ``n``.
        dim: ``d``.
        distortion: At most; the lemma allows less than 1/2.
        delta: Probability that some pair lies outside.
        edition: ``"exact"``, or ``"icml2020"``: ``8 log(n^2 / delta) / distortion^2``.

    Example:
        >>> projection_dim_for(
        ...     num_rows=10_000, dim=2, distortion=0.4, delta=0.05, edition="icml2020"
        ... )
        1071
    """
    n = check_integer("num_rows", num_rows, at_least=2)
    check_positive("distortion", distortion)
    check_delta("delta", delta)
    if edition not in get_args(LemmaEdition):
        raise ValueError(f"`edition` must be one of {get_args(LemmaEdition)}, got {edition!r}.")
    # exp(-r (v^2 / 4 - v^3 / 6)) bounds either tail of a chi-square over r; below v = 1/2 it is at
    # most exp(-r v^2 / 8) for each of n^2 / 2 pairs, and both sides of them.
    printed = math.ceil(8 * math.log(n**2 / delta) / distortion**2)
    if edition == "icml2020":
        if distortion >= 0.5:
            raise ValueError(f"`distortion` = {distortion:g} must be below 1/2 in the lemma.")
        return printed

    def holds(r: int) -> bool:
        found = projection_distortion(num_rows=n, dim=dim, projection_dim=r, delta=delta)
        return found.low >= 1 - distortion and found.high <= 1 + distortion

    low, high = 0, 1
    while not holds(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


@dataclass(frozen=True)
class RegretBound:
    """A bound on the least regret among the rows that were asked for.

    Args:
        search: What GP-UCB on the true rows would leave.
        distortion: What the wrong distances add.
        delta: Probability that the bound fails, over the function, the noise and the projection.
    """

    search: float
    distortion: float
    delta: float

    @property
    def simple_regret(self) -> float:
        """The whole bound, in units of the prior's standard deviation."""
        return self.search + self.distortion

    @property
    def is_vacuous(self) -> bool:
        """Whether it says less than that two values lie within 6 prior standard deviations."""
        return self.simple_regret > 6

    def __str__(self) -> str:
        remark = " That says nothing." if self.is_vacuous else ""
        return (
            f"But for probability {self.delta:.3g}, the best row asked for is within "
            f"{self.simple_regret:.3g} prior standard deviations of the best one "
            f"({self.search:.3g} from the search, {self.distortion:.3g} from the projection)."
            f"{remark}"
        )


def regret_bound(
    answers: Sequence[float],
    *,
    num_rows: int,
    distortion: Distortion,
    noise_std: float,
    information_gain: float,
    delta: float,
) -> RegretBound:
    """The regret of a search on projected rows, from its answers: no row is needed.

    Args:
        answers: In the search's order, in units of the prior's standard deviation.
        num_rows: ``n``.
        distortion: Of the released rows; see :func:`projection_distortion`.
        noise_std: Of an answer, in the same units.
        information_gain: A bound on what ``T`` answers can tell; see :func:`.max_information_gain`.
        delta: Failure probability of the modeler's confidence bounds.

    Example:
        >>> exact = Distortion(1.0, 1.0, 0.0)
        >>> bound = regret_bound(
        ...     [0.1] * 50, num_rows=100, distortion=exact, noise_std=0.1, information_gain=10.0,
        ...     delta=0.1,
        ... )
        >>> bound.distortion
        0.0
    """
    steps = check_integer("len(answers)", len(answers))
    schedule = UCBSchedule(check_integer("num_rows", num_rows), delta=delta, split=6)
    s = check_positive("noise_std", noise_std)
    check_positive("information_gain", information_gain)
    h = distortion.covariance_error
    search = math.sqrt(8 * schedule(steps) * information_gain / (steps * math.log1p(s**-2)))
    wrong = []
    for t in range(steps):
        length = math.sqrt(math.fsum(y**2 for y in answers[:t]))
        mean = h * (math.sqrt(t) / s**2 + t / s**3) * length
        variance = min(1.0, h * (2 * math.sqrt(t) / s + t / s**2))
        wrong.append(mean + math.sqrt(schedule(t + 1) * variance))
    return RegretBound(search, 2 * math.fsum(wrong) / steps, delta + distortion.delta)


def regret_certificate(
    X: Tensor, history: Sequence[Answer], *, kernel: Kernel, noise_std: float, delta: float
) -> float:
    """How far the best row asked for may be from the best one, with the true rows at hand.

    **The answer is sensitive**: the curator can compute it, to see what a search was worth.
    At each step, the best row lies below the largest upper confidence bound on the true rows, and
    the row asked for above its own lower one; all hold but for probability ``delta``. Where the
    rows came from does not matter, so this holds for any transform and any modeler.

    Args:
        X: ``n x d`` true rows.
        history: What was asked and answered, in order.
        kernel: The prior's covariance over the true rows.
        noise_std: Of an answer.
        delta: Failure probability.

    Returns:
        The smallest of the bounds over the steps, infinite without one.
    """
    check_tensor("X", X, shape=("n", "d"))
    schedule = UCBSchedule(len(X), delta=delta, split=6)
    gp = FiniteSetGP(X, kernel=kernel, noise_variance=check_positive("noise_std", noise_std) ** 2)
    best = math.inf
    with torch.no_grad():
        for step, answer in enumerate(history, start=1):
            beta = schedule(step)
            upper = float(gp.upper_confidence_bound(beta).max())
            below = float(gp.mean[answer.index] - (beta * gp.variance[answer.index]).sqrt())
            best = min(best, upper - below)
            gp.observe(answer.index, answer.y)
    return best
