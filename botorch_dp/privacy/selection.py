r"""Private selection: the best of many outputs of one private mechanism is published.

The *base* mechanism gives an outcome with a score: a training of a random configuration, and how
good its model is. It runs K times, K being random and kept secret, and the outcome with the best
score is published [Liu2019]. How much that reveals depends on the law of K, and hardly on its mean.

**Setting.** P and P' are the laws of one outcome on two neighbouring data sets, and
:math:`\delta(\epsilon)` bounds :math:`H_{e^\epsilon}` of both (P, P') and (P', P),
:math:`H_\alpha(P \| P') = \sup_S P(S) - \alpha P'(S)`. Outcomes are ordered by score, equal ones by
a uniform number that each trial draws for itself. K has the generating function
:math:`f(x) = E x^K`. Let u(y) be the probability under P of an outcome better than y. The best of K
has the density

.. math:: \sum_k P(K = k) \, k (1 - u)^{k - 1} = f'(1 - u)

relative to P; with K = 0 something fixed is published, as often on either data set.

**Profile bound.** Every known :math:`(\epsilon_i, \delta_i)` limits what P' may do to a set that P
gives u: :math:`u' \le G(u) = \min_i \min(e^{\epsilon_i} u + \delta_i,
1 - e^{-\epsilon_i} (1 - u - \delta_i))`. Since f' increases, with
:math:`w(u) = f'(1 - u)`, :math:`v(u) = f'(1 - G(u))`, :math:`r = dP'/dP`,
:math:`\alpha = e^\epsilon \ge 1`, the selections A and A' obey

.. math::
    H_\alpha(A \| A') \le \int (w(u) - \alpha v(u) r)_+ dP \le \int \psi(r) \, dP, \qquad
    \psi(r) = \max_u (w(u) - \alpha v(u) r)_+ .

:math:`\psi` is convex and falls. Any function above it that is linear between knots
:math:`r_i = e^{-\epsilon_i}` and zero from the last knot on is :math:`\sum_i s_i (r_i - r)_+` with
:math:`s_i \ge 0`, and :math:`\int (r_i - r)_+ dP = r_i H_{1/r_i}(P \| P') \le r_i \delta_i`. So the
epsilon follows from finitely many points of the base's profile; knots below :math:`\epsilon = 0`
come from :math:`\delta(-\epsilon) \le 1 - e^{-\epsilon} (1 - \delta(\epsilon))`.
[Koskela2024] bounds the two factors of each term one by one, by
:math:`E[K] \, \delta(\epsilon - \sup \log(w/v))`; keeping them together is tighter. Exchanging
maximum and integral would give what a base whose best outcomes are likelier under P' attains.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from botorch_dp._checks import (
    check_delta,
    check_finite,
    check_integer,
    check_nonnegative,
    check_positive,
)
from botorch_dp.errors import PrivacyError
from botorch_dp.privacy.accounting import Sampling, checked_relation, sampled_kind
from botorch_dp.privacy.losses import NeighboringRelation, PrivacyLoss
from botorch_dp.privacy.pld.composition import composed_deltas, composed_epsilon
from botorch_dp.privacy.pld.distributions import sampled_gaussian
from botorch_dp.privacy.pld.fourier import FAST, Sums
from botorch_dp.privacy.pld.gaussian import gaussian_delta, gaussian_epsilon, gaussian_mu, safe_root

#: Points of a profile, and how far they reach: the last delta is this share of delta / mean.
_POINTS = 20
_LAST_SHARE = 1e-4
#: The first epsilon, in units of a mu.
_FIRST = 0.25
#: Shares of outcomes at which weights are compared; bins between them are rounded to the safe side.
_BINS = 800
#: What rounding may get wrong, relatively.
_ROUNDING = 1e-9
#: Trials beyond this have no business here, and neither has a law that makes them likely.
_MOST_TRIALS = 100_000
#: Numbers of trials reach some multiples of 1 / gamma, and are drawn as 64-bit integers.
_LEAST_GAMMA = 1e-16
#: Where the table of probabilities ends, at the latest.
_LONGEST_TABLE = 50 * _MOST_TRIALS


# --- How many trials. ---


@dataclass(frozen=True)
class TrialNumber:
    """The law of the secret number of trials.

    A truncated negative binomial [Papernot2022], which is at least 1: ``shape=1`` is geometric,
    ``shape=0`` logarithmic. Smaller shapes are cheaper, and make very few trials likelier.
    ``shape=inf`` is Poisson: nearly fixed, possibly 0, and expensive for many trials.

    Args:
        mean: The expected number, above 1 (Poisson: above 0).
        shape: The shape, above -1.

    Example:
        >>> round(TrialNumber(40).chance_of_at_most(2), 3)
        0.049
    """

    mean: float
    shape: float = 1.0

    def __post_init__(self) -> None:
        mean = check_positive("mean", self.mean)
        if mean > _MOST_TRIALS:
            raise ValueError(f"`mean` must be at most {_MOST_TRIALS:,}, got {mean}.")
        shape = self.shape if self.shape == math.inf else check_finite("shape", self.shape)
        if not shape > -1:
            raise ValueError(f"`shape` must be above -1, got {self.shape}.")
        if shape < math.inf and mean <= 1:
            raise ValueError(
                f"`mean` must be above 1, got {mean}: a single training needs no selection."
            )
        object.__setattr__(self, "mean", mean)
        object.__setattr__(self, "shape", float(shape))
        if not self.is_poisson and self.gamma < _LEAST_GAMMA:
            raise ValueError(
                f"`shape` = {shape} with `mean` = {mean} makes more trials possible than could "
                "ever run: take a larger shape."
            )

    @property
    def is_poisson(self) -> bool:
        """Whether there may be no trial at all."""
        return self.shape == math.inf

    @cached_property
    def gamma(self) -> float:
        """The parameter of the truncated negative binomial: the smaller, the more trials."""

        def log_mean(log_gamma: float) -> float:
            gap, power = -math.expm1(log_gamma), self.shape * log_gamma
            scale = power / math.expm1(power) if abs(power) > 1e-12 else 1.0
            return math.log(scale * gap / -log_gamma) - log_gamma

        from scipy.optimize import brentq  # late, because it takes long to load

        found = brentq(lambda x: log_mean(x) - math.log(self.mean), -300.0, -1e-12, xtol=1e-14)
        return math.exp(found)

    def slope(self, u: np.ndarray | float) -> np.ndarray:
        """f'(1 - u): how many times as likely as a single outcome the best one is at u."""
        u = np.asarray(u, dtype=float)
        if self.is_poisson:
            return self.mean * np.exp(-self.mean * u)
        kappa = (1 - self.gamma) / self.gamma
        return self.mean * (1 + kappa * u) ** (-(1 + self.shape))

    @cached_property
    def _probabilities(self) -> np.ndarray:
        """P(K = k) for k = 0, 1, ... until almost nothing is left, or the table is too long."""
        if self.is_poisson:
            most = int(self.mean + 12 * math.sqrt(self.mean) + 40)
            k = np.arange(1, most + 1)
            return np.exp(-self.mean + np.concatenate([[0.0], np.cumsum(np.log(self.mean / k))]))
        gamma, eta = self.gamma, self.shape
        if eta == 0:
            first = (1 - gamma) / -math.log(gamma)
        else:
            first = (1 - gamma) * eta / math.expm1(-eta * math.log(gamma))
        most = min(int(60 * (1 + max(eta, 0)) / gamma) + 60, _LONGEST_TABLE)
        k = np.arange(1, most)
        ratios = np.cumsum(np.log((1 - gamma) * (k + eta) / (k + 1)))
        return np.concatenate([[0.0, first], first * np.exp(ratios)])

    @cached_property
    def _cumulative(self) -> np.ndarray:
        return np.cumsum(self._probabilities)

    def chance_of_at_most(self, number: int) -> float:
        """P(K <= number)."""
        check_integer("number", number, at_least=0)
        return float(min(1.0, self._cumulative[min(number, len(self._cumulative) - 1)]))

    def quantile(self, probability: float) -> int:
        """The least number that is not exceeded with this probability; at most 5 million."""
        check_delta("probability", probability, allow_zero=True)
        return int(np.searchsorted(self._cumulative, probability))

    def draw(self) -> int:
        """One number, from the operating system's entropy. **Secret**: publishing it is a leak.

        By the law that is accounted for, to the last trial: a number k that is drawn with
        probability k P(K = k) / E[K] is one more than a Poisson number whose mean is drawn from a
        gamma distribution, and keeping it with probability 1 / k leaves P(K = k).
        """
        return int(self.draws(1)[0])

    def draws(self, count: int) -> np.ndarray:
        """As many independent numbers as :meth:`draw` would give; for audits."""
        generator = np.random.default_rng(secrets.randbits(256))
        if self.is_poisson:
            return generator.poisson(self.mean, check_integer("count", count))
        kappa, kept = (1 - self.gamma) / self.gamma, np.empty(0, dtype=np.int64)
        size = min(16 + int(1.5 * count * self.mean), 10**6)
        while len(kept) < check_integer("count", count):
            numbers = 1 + generator.poisson(generator.gamma(1 + self.shape, kappa, size))
            kept = np.concatenate([kept, numbers[generator.random(size) * numbers < 1]])
        return kept[:count]


# --- What is known of the base. ---


@dataclass(frozen=True)
class BaseProfile:
    """Points (epsilon, delta) that one trial keeps to, in both directions.

    Args:
        epsilons: Positive and increasing.
        deltas: One for each, in [0, 1).
    """

    epsilons: tuple[float, ...]
    deltas: tuple[float, ...]

    def __post_init__(self) -> None:
        steps = np.diff((0.0, *self.epsilons))
        if not (np.isfinite(self.epsilons).all() and (steps > 0).all()):
            raise ValueError("`epsilons` must be positive, finite and increasing.")
        for delta in self.deltas:
            check_delta("deltas", delta, allow_zero=True)

    @classmethod
    def of_mu(cls, mu: float, smallest_delta: float) -> BaseProfile:
        """The profile of a mu-GDP mechanism."""
        check_positive("mu", mu)
        check_delta("smallest_delta", smallest_delta)
        last = max(gaussian_epsilon(mu, smallest_delta), 2 * _FIRST * mu)
        epsilons = np.linspace(_FIRST * mu, last, _POINTS).tolist()
        return cls(tuple(epsilons), tuple(gaussian_delta(mu, e) for e in epsilons))

    @classmethod
    def of(cls, losses: Sequence[PrivacyLoss], smallest_delta: float) -> BaseProfile:
        """The profile of a composition of losses."""
        check_delta("smallest_delta", smallest_delta, allow_zero=True)
        losses, last = tuple(losses), composed_epsilon(losses, smallest_delta)
        if not math.isfinite(last):
            raise PrivacyError(
                f"One trial has no finite epsilon at `smallest_delta` {smallest_delta:.3g}, which "
                "a selection asks for: it needs more noise, or no delta of its own."
            )
        epsilons = max(last, 1e-9) * np.linspace(0, 1, 2 * _POINTS + 1)[1:]
        deltas = composed_deltas(losses, epsilons.tolist())
        return cls(tuple(epsilons.tolist()), tuple(deltas))

    @cached_property
    def _signed(self) -> tuple[np.ndarray, np.ndarray]:
        """All points, those at zero and below included, from the smallest epsilon on."""
        epsilons, deltas = np.array(self.epsilons), np.array(self.deltas)
        # The total variation of an (epsilon, delta)-DP pair is attained by randomized response.
        at_zero = np.min(deltas + (1 - deltas) * np.tanh(epsilons / 2))
        below = 1 - np.exp(-epsilons) * (1 - deltas)
        return (
            np.concatenate([-epsilons[::-1], [0.0], epsilons]),
            np.minimum(np.concatenate([below[::-1], [at_zero], deltas]) * (1 + _ROUNDING), 1.0),
        )

    def other(self, u: np.ndarray) -> np.ndarray:
        """G(u): the most that the neighbour may give to a set of probability u."""
        epsilons, deltas = (part[:, None] for part in self._signed)
        factor = np.exp(np.minimum(epsilons, 700.0))
        upper = (factor * u + deltas).min(axis=0)
        lower = (1 - (1 - u - deltas) / factor).min(axis=0)
        return np.clip(np.minimum(upper, lower) * (1 + _ROUNDING), 0.0, 1.0)

    def expected(self, psi: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
        """Bounds on the integrals of convex falling functions of the likelihood ratio.

        Args:
            psi: Likelihood ratios, ``k``, to values, ``b x k``.

        Returns:
            ``b`` bounds; at least 1 where the function is not zero at the last knot.
        """
        epsilons, deltas = self._signed
        ratios = np.exp(-epsilons)[::-1]
        values = psi(np.concatenate([[0.0], ratios]))
        slopes = np.diff(values, axis=-1) / np.diff(ratios, prepend=0.0)
        slopes = np.concatenate([slopes, np.zeros((len(values), 1))], axis=-1)
        steps = np.maximum(np.diff(slopes, axis=-1), 0.0)
        total = (steps * ratios * deltas[::-1]).sum(axis=-1) * (1 + _ROUNDING)
        return np.where(values[:, -1] > 0, np.inf, total)


#: Logarithms of ratios are cut here, so that a root finder meets no infinity.
_LARGEST_RATIO = 50.0


def _log_ratio(delta: float, limit: float) -> float:
    """log(delta / limit), not above 0 where delta is not above the limit."""
    if delta <= 0 or limit <= 0:
        return _LARGEST_RATIO if delta > limit else -_LARGEST_RATIO
    found = min(max(math.log(delta / limit), -_LARGEST_RATIO), _LARGEST_RATIO)
    return min(found, 0.0) if delta <= limit else max(found, 1e-300)


def _hides(mu: float) -> bool:
    """Whether mu-GDP hides anything that double precision can tell."""
    return gaussian_delta(mu, _FIRST * mu) < 1


# --- What a selection costs. ---


@dataclass(frozen=True)
class Selection:
    """How one of many outcomes is chosen.

    Args:
        number: The law of the secret number of trials.

    Example:
        >>> selection = Selection(TrialNumber(40))
        >>> base = BaseProfile.of_mu(0.14, 1e-11)
        >>> round(selection.epsilon(base, 1e-5), 2)
        0.98
    """

    number: TrialNumber

    def delta(self, base: BaseProfile, epsilon: float) -> float:
        """The smallest delta known to hold at ``epsilon`` for what is published."""
        alpha = math.exp(min(check_nonnegative("epsilon", epsilon), 700.0))
        smallest = 1e-8 / max(self.number.mean, 1.0)
        u = np.union1d(np.geomspace(smallest, 1.0, _BINS), np.linspace(0.0, 1.0, _BINS))
        most = self.number.slope(u[:-1])
        least = self.number.slope(base.other(u)[1:])

        def psi(ratios: np.ndarray) -> np.ndarray:
            with np.errstate(over="ignore"):  # then nothing is left
                lost = alpha * least[:, None] * ratios
            lines = np.maximum(most[:, None] * (1 + _ROUNDING) - lost, 0.0)
            return lines.max(0, keepdims=True)

        return float(min(1.0, base.expected(psi)[0]))

    def epsilon(self, base: BaseProfile, delta: float) -> float:
        """The smallest epsilon known to hold at ``delta`` for what is published."""
        check_delta("delta", delta, allow_zero=True)
        low, high = 0.0, 1.0
        while self.delta(base, high) > delta:
            low, high = high, 2 * high
            if high > 600:
                return math.inf
        if low == 0 and self.delta(base, 0.0) <= delta:
            return 0.0
        return safe_root(
            lambda epsilon: _log_ratio(self.delta(base, epsilon), delta), low, high, tolerance=1e-6
        )

    def mu(self, epsilon: float, delta: float) -> float:
        """The largest mu for which trials that keep to :meth:`profile` meet (epsilon, delta).

        Raises:
            PrivacyError: If no noise meets the budget.
        """
        epsilon, delta = check_positive("epsilon", epsilon), check_delta("delta", delta)
        if epsilon > 1e4:
            raise ValueError(f"`epsilon` must be at most 1e4, got {epsilon}.")

        def excess(mu: float) -> float:
            if not _hides(mu):
                return _LARGEST_RATIO
            return _log_ratio(self.delta(self.profile(mu, delta), epsilon), delta)

        high = gaussian_mu(epsilon, delta)
        if high < 1e-6:
            raise ValueError(
                f"`epsilon` = {epsilon:g} at `delta` = {delta:g} leaves nothing to train with: a "
                f"single Gaussian mechanism would have mu = {high:.1g}."
            )
        low = high / 2
        while excess(low) > 0:
            low, high = low / 2, low
            if low < 1e-4 * gaussian_mu(epsilon, delta):
                raise PrivacyError(
                    f"No noise meets epsilon = {epsilon:g} at delta = {delta:g} with this number "
                    "of trials: ask for fewer."
                )
        return safe_root(excess, high, low, tolerance=1e-4) if excess(high) > 0 else high

    def profile(self, mu: float, delta: float) -> BaseProfile:
        """The points that a trial must keep to, those of mu-GDP, for a selection at ``delta``."""
        if not 1e-12 <= check_positive("mu", mu) <= 1e3:
            raise ValueError(f"`mu` must lie in [1e-12, 1000], got {mu}.")
        check_delta("delta", delta)
        if not _hides(mu):
            raise ValueError(f"`mu` = {mu:g} hides nothing that double precision could tell.")
        return BaseProfile.of_mu(mu, _LAST_SHARE * delta / max(self.number.mean, 1.0))


def selection_epsilon(
    losses: Sequence[PrivacyLoss],
    number: TrialNumber,
    delta: float,
) -> float:
    """The epsilon at ``delta`` of publishing the best of a secret number of outcomes.

    Args:
        losses: What one trial may reveal of its outcome, score included.
        number: The law of the number of trials.
        delta: In (0, 1).

    Example:
        >>> from botorch_dp.privacy import GaussianLoss
        >>> round(selection_epsilon((GaussianLoss(0.14),), TrialNumber(40), 1e-5), 2)
        0.97
    """
    delta = check_delta("delta", delta)
    selection = Selection(number)
    base = BaseProfile.of(losses, _LAST_SHARE * delta / max(number.mean, 1.0))
    return selection.epsilon(base, delta)


# --- What one training needs. ---


def training_noise(
    base: BaseProfile,
    batch_sizes: Sequence[int] | np.ndarray,
    steps: Sequence[int] | np.ndarray,
    *,
    num_records: int,
    sampling: Sampling = "poisson",
    relation: NeighboringRelation | None = None,
    beside_mu: float = 0.0,
    tolerance: float = 2e-3,
) -> np.ndarray:
    """The least noise multipliers with which trainings keep to all points of a profile.

    Args:
        base: The points.
        batch_sizes: ``b``.
        steps: ``b``.
        num_records: Number of records.
        sampling: How batches are drawn.
        relation: REPLACE_ONE if None.
        beside_mu: A Gaussian mechanism on the same records that is part of the outcome: its score.
        tolerance: How far above the least value the result may be, relatively.

    Returns:
        ``b`` noise multipliers: the noise's standard deviation over the clipping norm.
    """
    relation = checked_relation(sampling, relation)
    kind = sampled_kind(sampling, relation)
    batches, lengths = np.atleast_1d(batch_sizes), np.atleast_1d(np.asarray(steps, dtype=float))
    fractions, points = batches / float(num_records), len(base.epsilons)
    targets, log_deltas = np.array(base.epsilons), np.log(base.deltas)

    def keep(noise: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """Whether each of the trainings keeps to all points."""
        good = np.empty(len(rows), dtype=bool)
        full = fractions[rows] >= 1
        for place in np.flatnonzero(full):
            mu = math.hypot(math.sqrt(lengths[rows[place]]) / noise[place], beside_mu)
            good[place] = all(
                gaussian_epsilon(mu, math.exp(d)) <= e
                for e, d in zip(targets, log_deltas, strict=True)
            )
        sampled = rows[~full]
        if len(sampled):
            repeated = [
                np.repeat(values, points)
                for values in (noise[~full], fractions[sampled], lengths[sampled])
            ]
            sums = Sums(
                [sampled_gaussian(kind, repeated[0], repeated[1])],
                [repeated[2]],
                np.full(len(repeated[0]), beside_mu),
            )
            found = sums.epsilons(np.tile(log_deltas, len(sampled)), FAST)
            good[~full] = (found.reshape(len(sampled), points) <= targets).all(axis=1)
        return good

    rows = np.arange(len(fractions))
    # About what the central limit theorem says, the first point being a share of mu.
    high = np.maximum(fractions * np.sqrt(lengths), 0.3) * 0.75 * _FIRST / min(base.epsilons)
    low, pending = np.full(len(rows), np.nan), rows
    while len(pending):
        good = keep(high[pending], pending)
        low[pending[~good]] = high[pending[~good]]
        high[pending[~good]] *= 1.5
        if high.max() > 1e9:
            raise PrivacyError(
                "No noise on the gradients keeps a training to the level of `base`: what is "
                f"released beside it (`beside_mu` = {beside_mu:g}) takes all of it."
            )
        pending = pending[~good]
    pending = rows[np.isnan(low)]
    while len(pending):
        low[pending] = high[pending] / 1.5
        good = keep(low[pending], pending)
        high[pending[good]] = low[pending[good]]
        pending = pending[good & (low[pending] > 1e-3)]
    while (pending := rows[high > low * (1 + tolerance)]).size:
        middle = np.sqrt(low[pending] * high[pending])
        good = keep(middle, pending)
        high[pending[good]], low[pending[~good]] = middle[good], middle[~good]
    return relation.sum_sensitivity * high
