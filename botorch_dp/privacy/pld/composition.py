"""From privacy losses to (epsilon, delta): the best of several valid upper bounds.

Losses are first brought into a normal form. Gaussian parts are one Gaussian part, exactly. An
(epsilon, delta)-DP part is, at worst, one that reveals everything with probability delta and is a
randomized response otherwise [Kairouz2015]; so the deltas are set apart and pure parts remain.
Equal parts are counted, so composing them one by one or all at once is the same thing.

Then each bound that applies is evaluated and the smallest is taken: exact curves (pure parts only,
if they are few or equal, Gaussian ones only, a single Laplace), the sum of pure epsilons, Gaussian
domination, and the sum of privacy-loss distributions (:mod:`.fourier`). Each holds on its own, for
mechanisms that were fixed in advance; where later ones depend on earlier outputs, use a ledger.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np

from botorch_dp._checks import check_delta, check_nonnegative
from botorch_dp.errors import PrivacyError
from botorch_dp.privacy.pld.distributions import (
    Losses,
    RandomizedResponse,
    SampledKind,
    ScalarLaplace,
    sampled_gaussian,
)
from botorch_dp.privacy.pld.fourier import Sums
from botorch_dp.privacy.pld.gaussian import (
    gaussian_delta,
    gaussian_epsilon,
    pure_dp_mu,
)
from botorch_dp.privacy.rounding import float_above

#: More different epsilons than this are rounded up to so many levels before they are composed.
_MOST_LEVELS = 128
#: With a mu above this there is no noise to speak of: epsilon would be 5e15.
LARGEST_MU = 1e8
#: Probability that may be counted at a larger loss, or at an infinite one, to keep lists short.
_TAIL = 1e-16
#: No exact curve for sums of different pure losses with more values than this.
_MOST_ATOMS = 20_000
#: Fewer responses than this are listed in full.
_FEW = 60


class Component(NamedTuple):
    """What is composed with itself: a pure or Laplace mechanism, or one step of DP-SGD.

    Args:
        kind: Which.
        size: Epsilon, or the noise multiplier.
        fraction: The chance of a record to be in a batch, below 1.
    """

    kind: Literal["pure", "laplace"] | SampledKind
    size: float
    fraction: float = 1.0

    @property
    def is_pure(self) -> bool:
        """Whether ``size`` is an epsilon."""
        return self.kind in ("pure", "laplace")

    @property
    def dominating_mu(self) -> float:
        """A mu for which it is mu-GDP; for a step, once its batch is known."""
        if self.is_pure:
            return pure_dp_mu(self.size)
        return math.inf if self.size < 1 / LARGEST_MU else 1 / self.size


@dataclass(frozen=True)
class LossTerm:
    """A loss in normal form: the chance of revealing all, a Gaussian part, and a counted one."""

    lost: float = 0.0
    mu: float = 0.0
    component: Component | None = None
    count: int = 1


def steps_term(kind: SampledKind, z: float, fraction: float, steps: int) -> LossTerm:
    """Steps of DP-SGD; those on all records are one Gaussian mechanism.

    Args:
        kind: The sampling and the relation.
        z: The noise's standard deviation over what one record can move the sum by.
        fraction: The chance of a record to be in a batch.
        steps: How many.
    """
    if fraction == 1:
        return LossTerm(mu=math.sqrt(steps) / z if z > 1e-150 else math.inf)
    return LossTerm(component=Component(kind, z, fraction), count=steps)


class Composable(Protocol):
    """A privacy loss, as far as composition is concerned."""

    @property
    def relation(self) -> Any:
        """The relation it is proven under, or None if it is proven under any."""

    def term(self) -> LossTerm:
        """The normal form that is composed."""


def composed_epsilon(losses: Iterable[Composable], delta: float = 0.0) -> float:
    """The smallest epsilon known to hold at ``delta`` for all losses together.

    Args:
        losses: Privacy losses under one neighbouring relation.
        delta: In [0, 1).

    Returns:
        An upper bound, exact for few or equal pure losses, for Gaussian losses and for a single
        Laplace loss; infinite if no epsilon is known to hold.
    """
    return terms_epsilon(_terms(losses), check_delta("delta", delta, allow_zero=True))


def terms_epsilon(terms: tuple[LossTerm, ...], delta: float) -> float:
    """:func:`composed_epsilon` of losses in normal form."""
    parts = _normal_form(terms)
    if delta < parts.lost or parts.lost >= 1:
        return math.inf
    return parts.epsilon_at((delta - parts.lost) / (1 - parts.lost))


def composed_delta(losses: Iterable[Composable], epsilon: float) -> float:
    """The smallest delta known to hold at ``epsilon`` for all losses together.

    Args:
        losses: Privacy losses under one neighbouring relation.
        epsilon: At least 0.

    Returns:
        An upper bound in [0, 1], exact where :func:`composed_epsilon` is.
    """
    return composed_deltas(losses, (epsilon,))[0]


def composed_deltas(losses: Iterable[Composable], epsilons: Sequence[float]) -> list[float]:
    """:func:`composed_delta` at several epsilons."""
    parts = _normal_form(_terms(losses))
    rest = (parts.delta_at(check_nonnegative("epsilon", epsilon)) for epsilon in epsilons)
    return [min(1.0, parts.lost + (1 - parts.lost) * delta) for delta in rest]


def _terms(losses: Iterable[Composable]) -> tuple[LossTerm, ...]:
    together = tuple(losses)
    for loss in together:
        if not hasattr(loss, "term"):
            raise TypeError(f"`losses` must hold privacy losses, got {type(loss).__name__}.")
    relations = {loss.relation for loss in together} - {None}
    if len(relations) > 1:
        names = " and ".join(sorted(relation.name for relation in relations))
        raise PrivacyError(
            f"Losses proven under {names} have no common epsilon. Account for all parts under one "
            "neighbouring relation."
        )
    return tuple(loss.term() for loss in together)


Counts = tuple[tuple[Component, int], ...]


@dataclass(frozen=True)
class _Parts:
    """The normal form: what is left when ``lost``, the chance of revealing all, is set apart."""

    lost: float = 0.0
    mu: float = 0.0
    counts: Counts = ()

    @property
    def sum(self) -> float:
        """What pure epsilons add up to; infinite if other parts are present."""
        if self.mu > 0 or not all(component.is_pure for component, _ in self.counts):
            return math.inf
        exact = (Fraction(component.size) * count for component, count in self.counts)
        return float_above(sum(exact, Fraction(0)))

    @property
    def dominating_mu(self) -> float:
        """A mu for which the whole is mu-GDP."""
        mus = (component.dominating_mu * math.sqrt(count) for component, count in self.counts)
        return math.hypot(self.mu, *mus)

    def epsilon_at(self, delta: float) -> float:
        """The best bound on epsilon for what is left, at ``delta`` >= 0."""
        if delta <= 0 or (self.mu == 0 and not self.counts):
            return self.sum
        exact = self._exact_curve()
        if exact is not None:
            return exact.epsilon_at(delta)
        if self.dominating_mu > LARGEST_MU:
            return self.sum
        bounds = [self.sum, gaussian_epsilon(self.dominating_mu, delta)]
        if self.counts:
            bounds.append(_summed_epsilon(self, delta))
            pure, rest = self._apart()
            if pure.counts and rest != _Parts():
                bounds.append(pure.sum + rest.epsilon_at(delta))
        return min(bounds)

    def delta_at(self, epsilon: float) -> float:
        """The best bound on delta for what is left, at ``epsilon`` >= 0."""
        if epsilon >= self.sum:
            return 0.0
        exact = self._exact_curve()
        if exact is not None:
            return exact.delta_at(epsilon)
        if self.dominating_mu > LARGEST_MU:
            return 1.0
        bounds = [gaussian_delta(self.dominating_mu, epsilon)]
        if self.counts:
            bounds.append(_summed_delta(self, epsilon))
            pure, rest = self._apart()
            if pure.counts and pure.sum <= epsilon and rest != _Parts():
                bounds.append(rest.delta_at(epsilon - pure.sum))
        return min(bounds)

    def _apart(self) -> tuple[_Parts, _Parts]:
        """The pure parts, whose epsilons may simply be added, and all others."""
        pure = tuple((component, n) for component, n in self.counts if component.is_pure)
        others = tuple((component, n) for component, n in self.counts if not component.is_pure)
        return _Parts(counts=pure), _Parts(mu=self.mu, counts=others)

    def _exact_curve(self) -> RandomizedResponses | SingleLaplace | None:
        if self.mu > 0 or not self.counts:
            return None
        component, _ = self.counts[0]
        if self.counts == ((component, 1),) and component.kind == "laplace":
            return SingleLaplace(component.size)
        if any(component.kind != "pure" for component, _ in self.counts):
            return None
        if len(self.counts) > 1 and math.prod(n + 1 for _, n in self.counts) > _MOST_ATOMS:
            return None
        return RandomizedResponses(tuple((c.size, n) for c, n in self.counts))


@lru_cache(maxsize=256)
def _normal_form(terms: tuple[LossTerm, ...]) -> _Parts:
    counts: Counter[Component] = Counter()
    for part in terms:
        if part.component is not None and part.count:
            counts[part.component] += part.count
    lost = [part.lost for part in terms if part.lost > 0]
    rounded = {
        kind: _levels({c: n for c, n in counts.items() if c.kind == kind and c.size > 0})
        for kind in ("pure", "laplace")
    }
    steps = {component: n for component, n in counts.items() if not component.is_pure}
    return _Parts(
        lost=lost[0] if len(lost) == 1 else -math.expm1(math.fsum(math.log1p(-x) for x in lost)),
        mu=math.hypot(*sorted(part.mu for part in terms)),
        counts=tuple(sorted({**rounded["pure"], **rounded["laplace"], **steps}.items())),
    )


def _levels(counts: Mapping[Component, int]) -> Mapping[Component, int]:
    """The same parts; very many different epsilons are rounded up to levels."""
    if len(counts) <= _MOST_LEVELS:
        return counts
    largest = max(component.size for component in counts)
    levels = np.geomspace(min(component.size for component in counts), largest, _MOST_LEVELS)
    levels[-1] = largest
    rounded: Counter[Component] = Counter()
    for component, count in counts.items():
        level = float(levels[np.searchsorted(levels, component.size)])
        rounded[component._replace(size=level)] += count
    return rounded


@lru_cache(maxsize=512)
def _summed_epsilon(parts: _Parts, delta: float) -> float:
    return float(_sums(parts).epsilons(np.log([delta]))[0])


@lru_cache(maxsize=512)
def _summed_delta(parts: _Parts, epsilon: float) -> float:
    return float(np.exp(_sums(parts).log_deltas(np.array([epsilon]))[0]))


def _sums(parts: _Parts) -> Sums:
    losses, counts = [], []
    for kind in dict.fromkeys(component.kind for component, _ in parts.counts):
        chosen = [(c, count) for c, count in parts.counts if c.kind == kind]
        losses.append(
            losses_of(
                kind,
                np.array([component.size for component, _ in chosen]),
                np.array([component.fraction for component, _ in chosen]),
            )
        )
        counts.append(np.array([float(count) for _, count in chosen]))
    return Sums(losses, counts, np.array([parts.mu]))


def losses_of(
    kind: Literal["pure", "laplace"] | SampledKind, sizes: np.ndarray, fractions: np.ndarray
) -> Losses:
    """Privacy-loss distributions of many components of one kind."""
    if kind == "pure":
        return RandomizedResponse(sizes)
    if kind == "laplace":
        return ScalarLaplace(sizes)
    return sampled_gaussian(kind, sizes, fractions)


@dataclass(frozen=True)
class RandomizedResponses:
    """Randomized responses, which dominate as many epsilon-DP mechanisms [Kairouz2015].

    Each has loss +epsilon with probability 1/(1 + e^-epsilon), else -epsilon: how many of each kind
    lie is binomial, and the (epsilon, delta) curve of the sum exact.

    Args:
        counts: The epsilons and how many there are of each.
    """

    counts: tuple[tuple[float, int], ...]

    @property
    def largest(self) -> float:
        """The loss when none of them lies."""
        return math.fsum(epsilon * count for epsilon, count in self.counts)

    def atoms(self) -> tuple[np.ndarray, np.ndarray, float]:
        """Losses from large to small, their probabilities, and that of larger losses left out.

        The latter is at most ``1e-16`` for each kind; smaller losses left out count as the smallest
        one listed.
        """
        losses, probability, omitted = np.zeros(1), np.ones(1), 0.0
        for epsilon, count in self.counts:
            more, theirs, left_out = _binomial_atoms(epsilon, count)
            losses = np.add.outer(losses, more).ravel()
            probability = np.multiply.outer(probability, theirs).ravel()
            omitted += left_out
        order = np.argsort(-losses, kind="stable")
        return losses[order], probability[order], omitted

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
            return self.largest
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
        return float(min(max(0.0, epsilon * (1 + 1e-12) + 1e-15), self.largest))


def _binomial_atoms(epsilon: float, count: int) -> tuple[np.ndarray, np.ndarray, float]:
    from scipy.stats import binom  # late, because it takes long to load

    lie = math.exp(-epsilon) / (1 + math.exp(-epsilon))
    first, last = 0, count
    if count > _FEW:
        first = int(binom.ppf(_TAIL, count, lie))
        last = int(binom.isf(_TAIL, count, lie))
    lies = np.arange(first, last + 1)
    probability = binom.pmf(lies, count, lie)
    probability[-1] += binom.sf(last, count, lie)
    omitted = float(binom.cdf(first - 1, count, lie)) if first > 0 else 0.0
    return (count - 2.0 * lies) * epsilon, probability, omitted


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
