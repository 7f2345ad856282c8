r"""Sums of privacy losses: epsilon for a delta, and delta for an epsilon, from above.

With :math:`K(s) = \log E\, e^{sL}`, L the sum of all losses under P, and any
:math:`\theta > 0` (P and Q as in :mod:`.distributions`),

.. math::
    \delta(\epsilon) = E (1 - e^{\epsilon - L})_+ = \frac{1}{2 \pi} \int_{-\infty}^\infty
        \frac{e^{K(s) - s \epsilon}}{s (1 + s)} \, d\omega, \qquad s = \theta + i \omega,

the Fourier inversion of :math:`e^{\theta \epsilon} \delta(\epsilon)`; :math:`\theta` is chosen at
the saddle point, so that nothing cancels however small delta is. (The usual transform of a grid of
losses [Koskela2020] needs thousands of times as many numbers.) Each step errs on the safe side:

* *The trapezoidal rule* of step :math:`2 \pi / W` gives
  :math:`\sum_k e^{k \theta W} \delta(\epsilon + k W)` (Poisson's summation formula). All summands
  are positive, so it is above :math:`\delta(\epsilon)`; W is chosen by Chernoff's bound such that
  the others do not matter.
* *The last frequency.* L is made a little larger by the loss of one more Gaussian mechanism,
  with a mu that costs next to nothing, as if its outcome had been published, too. Then the
  integrand falls like :math:`e^{-\mu^2 \omega^2 / 2}`, and a bound on what is left out is added.
* *Losses* are discrete distributions that dominate; what they leave out at infinity is added.
* *Rounding* is covered by a multiple of the sum of absolute values.

The smallest bound wins, this one or Chernoff's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from botorch_dp.privacy.pld.distributions import Atoms, Losses

#: Share of delta that may be given up at infinity, and the one that other windows may add.
_TAIL_SHARE = 1e-6
_LOG_WINDOW_SHARE = 14.0
#: What rounding may get wrong in an epsilon, relatively.
_ROUNDING = 1e-13
#: The frequencies reach this many standard deviations of the smoothing Gaussian's transform.
_LAST_FREQUENCY = 5.0
#: How far from a saddle point it is good for, in units of 1 / order; and how many are tried.
_FARTHEST = 5.0
_MOST_CENTERS = 16
#: The logarithms of the orders among which the saddle point is looked for.
_LOG_ORDERS = (-28.0, 30.0)
_GOLDEN = 0.5 * (5**0.5 - 1)
#: Rows that are handled at once, so that they stay in the processor's cache.
_ROWS = 512
_ROWS_PER_TRANSFORM = 16


@dataclass(frozen=True)
class Precision:
    """How closely to bound.

    Args:
        nodes: Of each discretized loss.
        smoothing: What the additional Gaussian mechanism may add to epsilon, relatively.
        frequencies: The largest number of them.
        searches: Steps of the search for the saddle point.
        tolerance: Of the solution for epsilon, relatively.
    """

    nodes: int
    smoothing: float
    frequencies: int
    searches: int
    tolerance: float


#: About 1e-4 above the value, in some milliseconds; 3e-3 above it, in a fraction of one.
EXACT = Precision(nodes=512, smoothing=4e-5, frequencies=20000, searches=36, tolerance=1e-7)
FAST = Precision(nodes=64, smoothing=2.5e-3, frequencies=2000, searches=22, tolerance=3e-4)
_CAREFUL = Precision(nodes=256, smoothing=5e-4, frequencies=8000, searches=26, tolerance=1e-4)


@dataclass(frozen=True)
class Sums:
    """Many sums of privacy losses, or one sum of many.

    Args:
        losses: Losses of several kinds; each has as many rows as there are sums, or there is one
            sum of all rows.
        counts: How often each row is composed with itself, for each kind.
        mu: What is exactly mu-GDP besides, for each sum, ``b``.
    """

    losses: Sequence[Losses]
    counts: Sequence[np.ndarray]
    mu: np.ndarray

    def epsilons(self, log_delta: np.ndarray, precision: Precision = EXACT) -> np.ndarray:
        """Upper bounds on the epsilons at exp(log_delta), ``b``."""
        if len(self.mu) > _ROWS:
            return np.concatenate(
                [
                    self.rows(slice(start, start + _ROWS)).epsilons(
                        log_delta[start : start + _ROWS], precision
                    )
                    for start in range(0, len(self.mu), _ROWS)
                ]
            )
        found = [
            _Direction(self, reverse, precision).epsilons(log_delta) for reverse in self._reversals
        ]
        return np.max(found, axis=0)

    def log_deltas(self, epsilon: np.ndarray, precision: Precision = EXACT) -> np.ndarray:
        """Upper bounds on log(delta) at each epsilon for a single sum, ``k``."""
        found = [
            _Direction(self, reverse, precision).log_deltas(epsilon) for reverse in self._reversals
        ]
        return np.max(found, axis=0)

    @property
    def _reversals(self) -> tuple[bool, ...]:
        return (False,) if all(losses.symmetric for losses in self.losses) else (False, True)

    def rows(self, rows: slice | np.ndarray) -> Sums:
        """Some of the sums; a single one as it is."""
        if len(self.mu) == 1:
            return self
        return Sums(
            [losses.rows(rows) for losses in self.losses],
            [count[rows] for count in self.counts],
            self.mu[rows],
        )


class _Direction:
    """The losses of P against Q, or all of them the other way round."""

    def __init__(self, sums: Sums, reverse: bool, precision: Precision) -> None:
        self._sums, self._reverse, self._precision = sums, reverse, precision
        self._total_steps = np.zeros(len(sums.mu))
        for count in sums.counts:
            self._total_steps = self._total_steps + self._added(count[:, None])[:, 0]

    def _added(self, values: np.ndarray) -> np.ndarray:
        """One row for each sum, from one row for each loss."""
        if len(self._sums.mu) > 1 or len(values) == 1:
            return values
        return values.sum(axis=0, keepdims=True)

    def _atoms(
        self, log_delta: np.ndarray, nodes: int, order: np.ndarray | None = None
    ) -> list[Atoms]:
        """Discrete distributions of all losses, in this direction."""
        log_tail = np.log(_TAIL_SHARE) + log_delta - np.log(np.maximum(self._total_steps, 1))
        tilt = None if order is None else (-1 - order if self._reverse else order)
        atoms = []
        for losses, count in zip(self._sums.losses, self._sums.counts, strict=True):
            one = np.ones(len(count))
            found = losses.atoms(log_tail * one, nodes, None if tilt is None else tilt * one)
            atoms.append(found.reversed() if self._reverse else found)
        return atoms

    def _log_moments(self, atoms: list[Atoms], mu_squared: np.ndarray, s: np.ndarray) -> np.ndarray:
        """K(s) of the finite losses."""
        total = 0.5 * mu_squared * s * (1 + s)
        for losses, count in zip(atoms, self._sums.counts, strict=True):
            values = count * log_moments(losses, s * np.ones(len(count)))
            total = total + self._added(values[:, None])[:, 0]
        return total

    def _log_lost(self, atoms: list[Atoms]) -> np.ndarray:
        """The logarithm of the probability of an infinite loss."""
        kept = np.zeros(len(self._sums.mu))
        for losses, count in zip(atoms, self._sums.counts, strict=True):
            kept = kept + self._added((count * np.log1p(-losses.above))[:, None])[:, 0]
        with np.errstate(divide="ignore"):
            return np.log(-np.expm1(kept))

    def epsilons(self, log_delta: np.ndarray) -> np.ndarray:
        """Upper bounds, each from an inversion at the saddle point of its own epsilon."""
        first = self._atoms(log_delta, self._precision.nodes // 2)
        order = self._least(partial(self._chernoff_epsilon, first, log_delta=log_delta))
        start = self._chernoff_epsilon(first, order, log_delta)
        epsilons, rows = np.full(len(log_delta), np.inf), np.arange(len(log_delta))
        direction, careful = self, max(self._precision, _CAREFUL, key=lambda p: p.nodes)
        for _ in range(_MOST_CENTERS):
            found, last, finished = direction._solve(log_delta[rows], order, start)
            epsilons[rows] = np.fmin(epsilons[rows], found)
            if finished.all():
                break
            # Far from where Chernoff's bound led to: go on from there, at another saddle point.
            rows, start = rows[~finished], last[~finished]
            # Chernoff's bound misleads where losses are of very different sizes: be careful there.
            direction = _Direction(self._sums.rows(rows), self._reverse, careful)
            first = direction._atoms(log_delta[rows], careful.nodes // 2)
            order = direction._least(partial(direction._chernoff_log_delta, first, epsilon=start))
        return np.maximum(epsilons * (1 + _ROUNDING), 0.0)

    def _solve(
        self, log_delta: np.ndarray, order: np.ndarray, start: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Epsilons by one inversion, where it stopped, and whether there is nothing to gain."""
        atoms = self._atoms(log_delta, self._precision.nodes, order)
        log_lost = self._log_lost(atoms)
        with np.errstate(invalid="ignore", divide="ignore"):
            target = log_delta + np.log(-np.expm1(log_lost - log_delta))
        target = np.where(log_lost < log_delta, target, -np.inf)
        simple = self._chernoff_epsilon(atoms, order, target)
        start = np.maximum(np.where(np.isfinite(start), start, 0.0), 0.0)
        lowest = np.maximum(start - _FARTHEST / order, 0.0)
        inverse = _Inversion(self, atoms, order, start, log_delta, lowest)
        found, last, finished = inverse.epsilons(start, lowest, target)
        return np.fmin(found, simple), last, finished

    def log_deltas(self, epsilon: np.ndarray) -> np.ndarray:
        """Upper bounds for a single sum, at an order and with nodes of its own each."""
        return np.concatenate([self._log_delta(np.array([value])) for value in epsilon])

    def _log_delta(self, epsilon: np.ndarray) -> np.ndarray:
        log_delta = np.array([-25.0])
        for _ in range(4):  # how far the nodes must reach depends on delta itself
            first = self._atoms(log_delta, self._precision.nodes // 2)
            order = self._least(partial(self._chernoff_log_delta, first, epsilon=epsilon))
            expected = np.clip(self._chernoff_log_delta(first, order, epsilon), -2000.0, 0.0)
            if expected >= log_delta - 1:
                break
            log_delta = expected
        atoms = self._atoms(log_delta, self._precision.nodes, order)
        simple = self._chernoff_log_delta(atoms, order, epsilon)
        inverse = _Inversion(self, atoms, order, epsilon, simple, epsilon)
        found = np.fmin(inverse.log_delta(epsilon)[0], simple)
        return np.minimum(np.logaddexp(found, self._log_lost(atoms)), 0.0)

    def _chernoff_epsilon(
        self, atoms: list[Atoms], order: np.ndarray, log_delta: np.ndarray
    ) -> np.ndarray:
        moment = self._log_moments(atoms, self._sums.mu**2, order)
        return (moment - log_delta + _log_chernoff(order)) / order

    def _chernoff_log_delta(
        self, atoms: list[Atoms], order: np.ndarray, epsilon: np.ndarray
    ) -> np.ndarray:
        moment = self._log_moments(atoms, self._sums.mu**2, order)
        return moment - order * epsilon + _log_chernoff(order)

    def _least(self, function: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
        """The order with the least value for each sum, by golden sections of its logarithm.

        Both bounds of Chernoff have one minimum: convex functions of the order, and one of them
        divided by the order.
        """
        low, high = (np.full(len(self._sums.mu), end) for end in _LOG_ORDERS)
        first, second = high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)
        at_first, at_second = function(np.exp(first)), function(np.exp(second))
        for _ in range(self._precision.searches):
            left = at_first < at_second
            low, high = np.where(left, low, first), np.where(left, second, high)
            inner = _GOLDEN * (high - low)
            new = np.where(left, high - inner, low + inner)
            value = function(np.exp(new))
            first, second = np.where(left, new, second), np.where(left, first, new)
            at_first, at_second = (
                np.where(left, value, at_second),
                np.where(left, at_first, value),
            )
        return np.exp(0.5 * (low + high))


class _Inversion:
    """The transform of one direction along a vertical line, for each sum.

    Args:
        direction: Whose losses.
        atoms: Their discrete distributions.
        order: Where the line crosses the real axis, for each sum.
        epsilon: About where it is wanted.
        log_delta: About which delta is wanted.
        lowest: The smallest epsilon it is wanted for.
    """

    def __init__(
        self,
        direction: _Direction,
        atoms: list[Atoms],
        order: np.ndarray,
        epsilon: np.ndarray,
        log_delta: np.ndarray,
        lowest: np.ndarray,
    ) -> None:
        precision, sums = direction._precision, direction._sums
        self.order, self._steps = order, direction._total_steps
        self._tolerance = precision.tolerance
        # A Gaussian of this mu adds mu^2 (1 + order)/2 to epsilon and mu^2 order (1 + order)/2 to
        # log(delta), which must stay small, too.
        cost = np.clip(precision.smoothing * np.nan_to_num(epsilon) * order, 1e-4, 0.05)
        mu_squared = np.maximum(sums.mu**2, 2 * cost / (order * (1 + order)))
        self.mu = np.sqrt(mu_squared)
        moments = [
            direction._log_moments(atoms, mu_squared, factor * order)
            for factor in (1.0, 0.2, 0.4, 0.6, 0.8, 1.15, 1.3, 1.5, 2.0, 3.0)
        ]
        self.log_moment = moments[0]

        def window(factor: float, moment: np.ndarray) -> np.ndarray:
            """So wide that the next summand does not matter, by Chernoff's bound of that order."""
            excess = moment - factor * order * lowest - log_delta + _LOG_WINDOW_SHARE
            return np.maximum(excess, _LOG_WINDOW_SHARE) / (abs(factor - 1) * order)

        left = [window(f, k) for f, k in zip((0.2, 0.4, 0.6, 0.8), moments[1:5], strict=True)]
        left.append((_LOG_WINDOW_SHARE - log_delta) / order)
        right = [window(f, k) for f, k in zip((1.15, 1.3, 1.5, 2.0, 3.0), moments[5:], strict=True)]
        width = np.maximum(np.min(left, axis=0), np.min(right, axis=0))
        width = np.where(np.isfinite(width) & (width > 0), width, 1 / order)
        self.step = 2 * np.pi / width
        wanted = _LAST_FREQUENCY / (self.mu * self.step)
        self.number = np.ceil(np.clip(wanted, 8, precision.frequencies)).astype(int)
        self._terms: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
        # Sums that need about as many frequencies are transformed together.
        by_number = np.argsort(self.number, kind="stable")
        for start in range(0, len(order), _ROWS_PER_TRANSFORM):
            rows = by_number[start : start + _ROWS_PER_TRANSFORM]
            self._terms.append((rows, *self._transform(direction, atoms, rows)))

    def _transform(
        self, direction: _Direction, atoms: list[Atoms], rows: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Frequencies and summands of the rule, ``rows x n``, but for the factor of epsilon."""
        number = int(self.number[rows].max())
        order, mu_squared = self.order[rows, None], self.mu[rows, None] ** 2
        frequency = self.step[rows, None] * np.arange(number + 1)
        # The Gaussian part, relative to its value on the real line.
        logarithm = 0.5 * mu_squared * frequency * (1j * (1 + 2 * order) - frequency)
        single = len(direction._sums.mu) == 1
        for losses, count in zip(atoms, direction._sums.counts, strict=True):
            chosen = slice(None) if single else rows
            values = _characteristic(
                losses.losses[chosen], losses.probability[chosen], order, self.step[rows], number
            )
            with np.errstate(divide="ignore"):
                powers = count[chosen, None] * np.log(values)
            logarithm = logarithm + direction._added(powers)
        s = order + 1j * frequency
        terms = np.exp(logarithm) / (s * (1 + s))
        terms[:, 0] *= 0.5
        return frequency, self.step[rows, None] / np.pi * terms

    def log_delta(self, epsilon: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """log(delta) and its derivative at one epsilon for each sum; NaN where rounding rules."""
        value, slope = np.empty(len(epsilon)), np.empty(len(epsilon))
        for rows, frequency, terms in self._terms:
            turned = terms * np.exp(-1j * frequency * epsilon[rows, None])
            last = frequency[:, -1]
            left_out = np.exp(-0.5 * (self.mu[rows] * last) ** 2) / (np.pi * last)
            rounding = 1e-15 * (frequency.shape[1] + self._steps[rows])
            total = turned.real.sum(axis=1) + left_out + rounding * np.abs(terms).sum(axis=1)
            with np.errstate(invalid="ignore", divide="ignore"):
                value[rows] = np.log(total) + 1e-12
                slope[rows] = (frequency * turned.imag).sum(axis=1) / total - self.order[rows]
        return value + self.log_moment - self.order * epsilon, slope

    def epsilons(
        self, start: np.ndarray, lowest: np.ndarray, target: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The epsilons where log(delta) is at most ``target``, by Newton's method from above.

        Down to ``lowest`` only, as far from the start as this saddle point is good for.

        Returns:
            The least epsilons that will do (infinite if none was found), where the search stopped,
            and whether another saddle point could not improve them.
        """
        epsilon, best, too_small = start, np.full(len(start), np.inf), np.full(len(start), -np.inf)
        for _ in range(40):
            value, slope = self.log_delta(epsilon)
            safe = value <= target
            best = np.where(safe, np.fmin(best, epsilon), best)
            too_small = np.where(value > target, np.fmax(too_small, epsilon), too_small)
            with np.errstate(invalid="ignore", divide="ignore"):
                move = (value - target) / -slope
                move = move + 0.3 * self._tolerance * np.abs(epsilon + move)
                close = best - too_small <= self._tolerance * best
            at_end = safe & (epsilon <= lowest)
            settled = close | (safe & (np.abs(move) <= self._tolerance * np.abs(epsilon)))
            unsettled = np.isfinite(move) & ~settled & ~at_end
            if not unsettled.any():
                break
            new = np.maximum(epsilon + move, lowest)
            inside = (new > too_small) & (new < best)
            between = np.isfinite(best) & np.isfinite(too_small)
            new = np.where(between & ~inside, 0.5 * (best + too_small), new)
            epsilon = np.where(unsettled, new, epsilon)
        # What smooths is measured by epsilon: found to be much smaller, it deserves less.
        finished = ~(at_end & (epsilon > 0)) & ~((best > 0) & (best < 0.6 * start))
        return best, np.where(np.isfinite(best), best, epsilon), finished


def log_moments(atoms: Atoms, orders: np.ndarray) -> np.ndarray:
    """log E[exp(order L)] over the finite losses, for one order in each row (or in all)."""
    with np.errstate(divide="ignore"):
        exponents = orders[:, None] * atoms.losses + np.log(atoms.probability)
    largest = exponents.max(axis=1)
    return largest + np.log(np.exp(exponents - largest[:, None]).sum(axis=1))


def _characteristic(
    losses: np.ndarray,
    probability: np.ndarray,
    order: np.ndarray,
    step: np.ndarray,
    number: int,
) -> np.ndarray:
    """E[e^(sL)] relative to that on the real line, at ``number + 1`` frequencies."""
    with np.errstate(divide="ignore"):
        exponents = order * losses + np.log(probability)
    weights = np.exp(exponents - exponents.max(axis=1, keepdims=True))
    current = (weights / weights.sum(axis=1, keepdims=True)).astype(complex)
    turn = np.exp(1j * step[:, None] * losses)
    values = np.empty((len(losses), number + 1), dtype=complex)
    for index in range(number + 1):
        values[:, index] = current.sum(axis=1)
        current *= turn
    return values


def _log_chernoff(order: np.ndarray) -> np.ndarray:
    """log of max_x (1 - e^-x) e^(-order x): the factor of [Canonne2020]."""
    return -order * np.log1p(1 / order) - np.log1p(order)
