r"""Discrete privacy-loss distributions, none of which is more private than what it stands for.

A pair of distributions (P, Q) dominates a mechanism if its hockey-stick divergences
:math:`H_\alpha(P \| Q) = \sup_S P(S) - \alpha Q(S)` are at least those of the mechanism's outputs
on any two neighbouring data sets, for every :math:`\alpha > 0`. Products of dominating pairs
dominate compositions, adaptive ones too [Zhu2022]; so all that has to be known of a mechanism is
the distribution of :math:`L = \log P/Q` under P.

**Discretization.** The real line of outputs is cut at nodes. The probabilities (A, B) of an
interval under P and Q are moved to its two ends, whose losses are known, such that both are kept:
:math:`A = p + p', B = p e^{-l} + p' e^{-l'}`. On :math:`\alpha`'s axis this draws chords of the
convex function :math:`\alpha \mapsto H_\alpha` between the nodes, so it dominates
[Doroshenko2022]. Nothing asks for nodes at equal distances: they are placed where they matter most
for the tail that is wanted, and some hundred are as good as the usual 10^5.

**One step of DP-SGD.** In units of its standard deviation the noise is N(0, I), a vector of norm
at most 1 stays one, and :math:`c` is what a record adds at most to the sum.

*Poisson batches, both relations.* Given the other records of the batch, the sum is
:math:`(1-q) N(0) + q N(g)` against N(0) (one record removed) or against
:math:`(1-q) N(0) + q N(g')` (replaced), with :math:`|g|, |g'| \le c`. Let S be any event and
:math:`a = N(0)(S)`. Then :math:`N(g)(S) \le \Phi(\Phi^{-1}(a) + c)` and
:math:`N(g')(S) \ge \Phi(\Phi^{-1}(a) - c)` (Neyman and Pearson), and the half-line whose
probability under N(0, 1) is a reaches both bounds at once if g = c and g' = -c. So these pairs on
the line dominate: ``((1-q) N(0) + q N(c), N(0))`` for an added or removed record, in both
directions, and ``((1-q) N(0) + q N(c), (1-q) N(0) + q N(-c))`` for a replaced one. Averaging over
the other records is joint convexity.

*Batches of fixed size, a record replaced,* :math:`c` now being what the replacement moves, 2C.

1. Let :math:`\epsilon \ge 0`. With probability q = m/n the batch holds the record. A batch that
   holds it turns into one of those that do not by exchanging one record, and into a batch with the
   replacement likewise; so by advanced joint convexity [Balle2018b]
   :math:`\delta(\epsilon) \le q \, \delta_G(\log(1 + (e^\epsilon - 1)/q))`, :math:`\delta_G` being
   the profile of the Gaussian mechanism for a shift c. That is the one-sided pair
   ``((1-q) N(0) + q N(c), N(0))`` at :math:`\epsilon \ge 0`. For :math:`\epsilon < 0`, since the
   relation is symmetric,
   :math:`\delta(\epsilon) = 1 - e^\epsilon + e^\epsilon \delta'(-\epsilon)` with the
   :math:`\delta'` of the same two data sets in the other order, to which the bound applies.
2. In :math:`\alpha = e^\epsilon` both pieces are convex, decreasing and at least
   :math:`(1 - \alpha)_+`; where they meet, at 1, the slopes are
   :math:`-1 + q(1 - 2 \Phi(-c/2)) + \Phi(-c/2)` and :math:`-\Phi(-c/2)`, which is no step down
   since :math:`\Phi(-c/2) \le 1/2`. A function with these properties is the profile of a pair
   [Zhu2022], which then dominates each step and whose powers dominate all of them.

Its privacy loss: beyond the point c/2, where the one-sided pair's loss is 0, it is that pair's;
below 0 it is the mirror image; the rest, :math:`(1-q)(1 - 2 \Phi(-c/2))`, is an atom at 0. The
smaller pair of mixtures ``(1-q) N(0) + q N(+-c/2)`` would *not* do: it is for Poisson batches.
A data set attains the one-sided pair (all other gradients at one end of the clipping ball, the
replaced one moving from there to the other), which bounds the exact value from below.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Literal, Self

import numpy as np
from scipy.special import ndtr, ndtri_exp

#: What rounding may get wrong in the probability of an interval, relatively: it counts upwards.
_ROUNDING = 1e-14
#: How far the nodes reach at least, in standard deviations of the noise.
_LEAST_REACH = 4.0
#: Nodes are placed for the order that is wanted and for these shares of it: where losses are of two
#: very different sizes, the probability that counts lies between them.
_TILT_SHARES = (1.0, 0.3)
#: Shares of the nodes that are spread evenly over the first ones, whatever the weights say.
_EVEN_SHARE = 0.15


@dataclass(frozen=True)
class Atoms:
    """Rows of discrete privacy-loss distributions.

    Args:
        losses: ``r x m``, in any order.
        probability: Their probabilities under P, ``r x m``.
        above: The probability under P of what never happens under Q, ``r``.
        below: The probability under Q of what never happens under P, ``r``.
    """

    losses: np.ndarray
    probability: np.ndarray
    above: np.ndarray
    below: np.ndarray

    def reversed(self) -> Atoms:
        """The same pairs with P and Q exchanged."""
        with np.errstate(over="ignore", invalid="ignore"):
            other = np.where(self.probability > 0, self.probability * np.exp(-self.losses), 0.0)
        return Atoms(-self.losses, other, self.below, self.above)


class Losses(ABC):
    """Rows of privacy losses of one kind; each may be composed with itself many times."""

    #: Whether the loss of Q against P is distributed as that of P against Q.
    symmetric: bool = True

    def rows(self, rows: slice | np.ndarray) -> Self:
        """Some of the rows."""
        some = {k: v[rows] for k, v in vars(self).items() if isinstance(v, np.ndarray)}
        return replace(self, **some)  # type: ignore[type-var]

    @abstractmethod
    def atoms(self, log_tail: np.ndarray, number: int, tilt: np.ndarray | None = None) -> Atoms:
        """A dominating discrete distribution for each row.

        Args:
            log_tail: About how much probability may be given up as ``above``, its logarithm, ``r``.
            number: How many nodes; without ``tilt`` only roughly.
            tilt: The order of the moment that the distribution is wanted for, ``r``: the nodes are
                placed so that little is added to the variance under ``exp(tilt L)``.
        """


@dataclass(frozen=True)
class RandomizedResponse(Losses):
    """Loss +epsilon with probability 1 / (1 + exp(-epsilon)), else -epsilon [Kairouz2015]."""

    epsilon: np.ndarray

    def atoms(self, log_tail: np.ndarray, number: int, tilt: np.ndarray | None = None) -> Atoms:
        """Exact: two atoms."""
        log_truth, log_lie = -np.logaddexp(0, -self.epsilon), -np.logaddexp(0, self.epsilon)
        nothing = np.zeros(len(self.epsilon))
        return Atoms(
            np.stack([self.epsilon, -self.epsilon], axis=1),
            np.exp(np.stack([log_truth, log_lie], axis=1)),
            nothing,
            nothing,
        )


@dataclass(frozen=True)
class ScalarLaplace(Losses):
    """A scalar Laplace mechanism: atoms at both ends, and a density between them."""

    epsilon: np.ndarray

    def atoms(self, log_tail: np.ndarray, number: int, tilt: np.ndarray | None = None) -> Atoms:
        """Nodes at equal distances."""
        epsilon = self.epsilon[:, None]
        losses = epsilon * np.linspace(-1, 1, number)
        # The loss has density e^((l - epsilon)/2)/4 under P and e^((-l - epsilon)/2)/4 under Q.
        width = np.diff(losses, axis=1)
        within = -0.5 * np.exp((losses[:, 1:] - epsilon) / 2) * np.expm1(-width / 2)
        # Keeping both: upper = (P - Q e^lower) / (1 - e^-width), and P - Q e^lower is
        # P (1 - e^(-width/2)).
        upper = within / (1 + np.exp(-width / 2)) * (1 + _ROUNDING)
        probability = np.zeros_like(losses)
        probability[:, 1:] += upper
        probability[:, :-1] += within - upper
        probability[:, -1] += 0.5
        probability[:, 0] += 0.5 * np.exp(-self.epsilon)
        nothing = np.zeros(len(epsilon))
        return Atoms(losses, probability, nothing, nothing)


SampledKind = Literal["add_or_remove", "replace", "fixed"]


@dataclass(frozen=True)
class SampledGaussian(Losses):
    """One step of DP-SGD; see the module's text for the three pairs.

    Args:
        kind: Poisson batches under add-or-remove-one or replace-one, or batches of fixed size.
        shift: The c of the module's text, ``r``; for ``"replace"`` half the sum's sensitivity.
        fraction: The probability that a record is in the batch, strictly between 0 and 1, ``r``.
    """

    kind: SampledKind
    shift: np.ndarray
    fraction: np.ndarray

    @property
    def symmetric(self) -> bool:  # type: ignore[override]
        """Whether both directions have one distribution."""
        return self.kind != "add_or_remove"

    def atoms(self, log_tail: np.ndarray, number: int, tilt: np.ndarray | None = None) -> Atoms:
        """Nodes where the noise, the record's shift and the bend between them are; or by tilt."""
        nodes = self._first_nodes(log_tail, max(2, number // 3))
        losses, probability, ends = self._at(nodes)
        if tilt is not None:
            with np.errstate(divide="ignore"):
                log_probability = np.log(probability)
            weights = []
            for share in _TILT_SHARES:
                # As much of the order, for either direction: e^(-L) is what Q has.
                order = np.where(tilt > -0.5, share * tilt, -1 - share * (-1 - tilt))[:, None]
                tilted = log_probability + order * losses
                if self.symmetric:
                    tilted = np.logaddexp(tilted, log_probability - (1 + order) * losses)
                weights.append(tilted)
            nodes = _placed(nodes, losses, weights, number)
            losses, probability, ends = self._at(nodes)
        above, below, at_zero = ends
        if not self.symmetric:
            return Atoms(losses, probability, above, below)
        mirrored = probability * np.exp(-losses)
        zero = np.zeros((len(losses), 1))
        return Atoms(
            np.concatenate([-losses, losses, zero], axis=1),
            np.concatenate([mirrored, probability, at_zero[:, None]], axis=1),
            above,
            above,
        )

    def _first_nodes(self, log_tail: np.ndarray, number: int) -> np.ndarray:
        c, q = self.shift, self.fraction
        # A batch that holds the record is needed for the largest losses, and one without it for the
        # others: they have a chance of q and of 1.
        record, reach = (
            np.maximum(-ndtri_exp(np.minimum(log_tail - log_chance, -1.0)), _LEAST_REACH)
            for log_chance in (np.log(q), 0.0)
        )
        bend, top = c / 2 - np.log(q) / c, c + record
        start = {"add_or_remove": -reach, "replace": 0 * c, "fixed": c / 2}[self.kind]
        steps = np.linspace(0, 1, number)
        nodes = np.concatenate(
            [
                low[:, None] + (high - low)[:, None] * steps
                for low, high in ((-reach, reach), (bend - 8 / c, bend + 8 / c), (c - reach, top))
            ],
            axis=1,
        )
        nodes = np.sort(np.clip(nodes, start[:, None], top[:, None]), axis=1)
        nodes[:, 0], nodes[:, -1] = start, top
        return nodes

    def _at(
        self, y: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """Losses and probabilities at the nodes; what is above, below, and an atom at zero.

        For symmetric kinds the nodes begin where the loss is 0, and half of what is there is given.
        """
        c, q = self.shift[:, None], self.fraction[:, None]
        losses = one_sided_loss(c, q, y)
        if self.kind == "replace":
            losses = losses - one_sided_loss(c, q, -y)
        elif self.kind == "fixed":
            losses[:, 0] = 0.0
        # One more interval on the right reaches to infinity: nothing of it can be moved upwards.
        low, high = y, np.concatenate([y[:, 1:], np.full((len(y), 1), np.inf)], axis=1)
        without, with_record = _between(low, high), _between(low - c, high - c)
        mass = (1 - q) * without + q * with_record
        # What P has in an interval beyond what Q has there times e^(the loss at its lower end).
        if self.kind == "replace":
            other = _scaled(_between(low + c, high + c), losses)
            rest = np.where(
                losses < 30, without * np.expm1(np.minimum(losses, 30)), _scaled(without, losses)
            )
            excess = q * (with_record - other) - (1 - q) * rest
            rounding = q * (with_record + other) + rest
        else:
            other = _scaled(without, c * y - c * c / 2)
            excess, rounding = q * (with_record - other), q * (with_record + other)
        excess = np.clip(excess + _ROUNDING * rounding, 0.0, mass)
        above = excess[:, -1]
        with np.errstate(divide="ignore", invalid="ignore"):
            upper = excess[:, :-1] / -np.expm1(-np.diff(losses, axis=1))
        upper = np.where(np.isfinite(upper), np.minimum(upper, mass[:, :-1]), mass[:, :-1])
        probability = mass.copy()
        probability[:, :-1] -= upper
        probability[:, 1:] += upper
        probability[:, -1] -= above
        nothing = np.zeros(len(y))
        if self.kind == "replace":
            return losses, probability, (above, above, nothing)
        if self.kind == "fixed":
            at_zero = (1 - self.fraction) * (1 - 2 * ndtr(-self.shift / 2))
            return losses, probability, (above, above, at_zero)
        left, first = ndtr(y[:, 0]), losses[:, 0]
        mass_left = (1 - self.fraction) * left + self.fraction * ndtr(y[:, 0] - self.shift)
        probability[:, 0] += mass_left
        below = np.clip(left * (1 + _ROUNDING) - mass_left * np.exp(-first), 0.0, left)
        return losses, probability, (above, below, nothing)


def one_sided_loss(c: np.ndarray | float, q: np.ndarray | float, y: np.ndarray) -> np.ndarray:
    """log((1-q) + q dN(c)/dN(0)) at y."""
    exponent = c * y - c * c / 2
    small = np.log1p(q * np.expm1(np.minimum(exponent, 700.0)))
    return np.where(exponent < 700, small, exponent + np.log(q))


def _between(low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """The probability of an interval under N(0, 1), accurate in either tail."""
    right = low > 0
    return ndtr(np.where(right, -low, high)) - ndtr(np.where(right, -high, low))


def _scaled(probability: np.ndarray, exponent: np.ndarray) -> np.ndarray:
    """``probability * exp(exponent)`` where one may underflow and the other overflow."""
    with np.errstate(divide="ignore", over="ignore"):
        return np.exp(np.log(probability) + exponent)


def _placed(
    y: np.ndarray, losses: np.ndarray, weights: list[np.ndarray], number: int
) -> np.ndarray:
    """Nodes that add the least to the variance of the loss.

    A chord over a width h adds h^2/6 times the squared slope of the loss; with a given number of
    nodes the sum is least if their density is proportional to (probability times squared slope)
    to the power 1/3.

    Args:
        y: The first nodes, ``r x m``.
        losses: Their losses.
        weights: Logarithms of their probabilities, tilted in several ways.
        number: How many nodes to place.
    """
    width = np.maximum(np.diff(y, axis=1), 1e-300)
    with np.errstate(divide="ignore"):
        log_width, log_slope = np.log(width), np.log(np.diff(losses, axis=1) / width)
    share = np.zeros_like(width)
    for weight in weights:
        with np.errstate(invalid="ignore"):
            middle = np.logaddexp(weight[:, 1:], weight[:, :-1]) - log_width
            log_density = (middle + 2 * log_slope) / 3
        log_density = np.where(np.isnan(log_density), -np.inf, log_density)
        largest = log_density.max(axis=1, keepdims=True)
        density = np.exp(log_density - np.where(np.isfinite(largest), largest, 0.0)) * width
        share += density / np.maximum(density.sum(axis=1, keepdims=True), 1e-300)
    share /= len(weights)
    share = (1 - _EVEN_SHARE) * share + _EVEN_SHARE / share.shape[1]
    reached = np.cumsum(np.concatenate([np.zeros((len(y), 1)), share], axis=1), axis=1)
    reached /= reached[:, -1:]
    # All rows in one interpolation: each has an interval of its own, two units from the next.
    offset = 2.0 * np.arange(len(y))[:, None]
    wanted = offset + np.linspace(0, 1, number)
    placed = np.interp(wanted.ravel(), (offset + reached).ravel(), y.ravel())
    placed = np.maximum.accumulate(placed.reshape(len(y), number), axis=1)
    placed[:, 0], placed[:, -1] = y[:, 0], y[:, -1]
    return placed


def sampled_gaussian(
    kind: SampledKind, noise_multiplier: np.ndarray, fraction: np.ndarray
) -> SampledGaussian:
    """Steps with noise in units of the sensitivity of the summed gradient under the relation."""
    # A replaced record's old and new gradient each reach half as far as the sum may move.
    shift = (0.5 if kind == "replace" else 1.0) / np.asarray(noise_multiplier, dtype=float)
    return SampledGaussian(kind, shift, np.asarray(fraction, dtype=float))
