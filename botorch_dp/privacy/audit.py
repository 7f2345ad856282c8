r"""Statistical lower bounds on epsilon: what a mechanism leaks, whatever it claims.

If a mechanism is (epsilon, delta)-DP then ``P[S | data] <= exp(epsilon) P[S | neighbor] + delta``
for every event S. Draw from both, choose S on one half of the draws and count it in the other
[Ding2018]: Clopper-Pearson limits on the two probabilities bound epsilon from below. A bound above
the claim refutes the claim; a bound under it proves nothing, but a deliberately broken version
shows what the audit would have seen.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import beta
from torch import Tensor

from botorch_dp._checks import check_count, check_delta, check_integer, check_nonnegative
from botorch_dp.privacy.guarantee import Guarantee, Release
from botorch_dp.privacy.rounding import rounded_down, rounded_up

#: Events are unions of at most about this many cells of the outputs' range.
_CELLS = 128


#: Fewer draws show nothing.
FEWEST_SAMPLES = 100


@dataclass(frozen=True)
class AuditReport:
    """What an audit found.

    Args:
        lower_bound: Epsilon is at least this, with the stated confidence.
        event: What the event is about: the output, or the exponent of its lowest set bit.
        likelier_on: ``"data"`` or ``"neighbor"``, whichever makes the event likelier.
        hits: How often the event occurred there, and how often on the other one.
        tested: How many draws from each data set the hits were counted in.
        samples: All draws from each data set; the others chose the event.
        delta: The delta that epsilon goes with.
        confidence: The probability that such a bound is right.
        claim: The epsilon that the mechanism claims, if any.
    """

    lower_bound: float
    event: str
    likelier_on: str
    hits: tuple[int, int]
    tested: int
    samples: int
    delta: float
    confidence: float
    claim: float | None = None

    @property
    def passes(self) -> bool:
        """Whether the claim survived (True as well when nothing was claimed)."""
        return self.claim is None or self.lower_bound <= self.claim

    @property
    def largest_detectable(self) -> float:
        """The bound for an event that always happens on one side and never on the other."""
        check_integer("tested", self.tested, at_most=2**53)
        return _epsilon_bound(self.tested, 0, self.tested, self.delta, (1 - self.confidence) / 2)

    def __str__(self) -> str:
        other = "neighbor" if self.likelier_on == "data" else "data"
        text = (
            f"Audit: epsilon >= {rounded_down(self.lower_bound)} at delta = {self.delta!r} with "
            f"confidence {100 * self.confidence:.10g}%. Tested: {self.event}, chosen on "
            f"{self.samples - self.tested} draws from each side; it occurred in {self.hits[0]} of "
            f"{self.tested} further draws on {self.likelier_on} and in {self.hits[1]} on {other}."
        )
        if self.claim is None:
            return text
        verdict = "not refuted" if self.passes else "REFUTED"
        text += f" Claimed: epsilon = {rounded_up(self.claim)}, {verdict}."
        if self.claim >= self.largest_detectable:
            text += (
                " This number of draws cannot refute an epsilon above "
                f"{rounded_down(self.largest_detectable, 3)}: take more."
            )
        return text


def audit_epsilon(
    mechanism: Callable[..., Any],
    data: Any,
    neighbor: Any,
    *,
    samples: int,
    delta: float = 0.0,
    confidence: float = 0.99,
    claim: float | Guarantee | None = None,
    projection: Callable[[Any], Any] | None = None,
    batched: bool = False,
) -> AuditReport:
    r"""A lower bound on epsilon that holds with the stated confidence.

    The bound is ``log((p - delta) / q)``: p is a lower limit on the probability of an event on one
    side and q an upper limit on the other. Event and direction are chosen on the first half of the
    draws; the second half counts them. Each limit may fail with probability
    ``(1 - confidence) / 2``, so both hold with the stated confidence.

    The events: one-sided and two-sided thresholds; unions of intervals and of single values by
    estimated likelihood ratio, which is the best event for discrete outputs; and, for floating
    point, the position of the lowest bit that is set, where textbook noise leaks [Haney2022].

    Args:
        mechanism: ``mechanism(data)`` makes one output: a number, a :class:`Release` of one, or
            anything hashable, or a list, array or tensor of integers or booleans. If ``batched``,
            ``mechanism(data, size)`` makes ``size`` independent ones, as array, tensor or list.
        data: Passed to the mechanism as it is.
        neighbor: A neighbouring data set. The worse the pair, the better the bound.
        samples: Draws from each of the two.
        delta: Audit (epsilon, delta)-DP at this delta.
        confidence: The probability that the bound is right.
        claim: The epsilon claimed, or a guarantee, which is asked for its epsilon at ``delta``.
        projection: Applied to what ``mechanism`` returns (a whole batch if ``batched``), to make
            numbers of vectors. The log-likelihood ratio is the best one.
        batched: Whether ``mechanism`` takes a size.

    Example:
        >>> import torch
        >>> from botorch_dp.privacy import laplace_mechanism
        >>> def noisy(value, size):
        ...     values = torch.full((size,), value).double()
        ...     return laplace_mechanism(values, sensitivity=1.0, epsilon=1.0).value
        >>> report = audit_epsilon(noisy, 0.0, 1.0, samples=2000, claim=1.0, batched=True)
        >>> report.passes
        True
    """
    samples = check_count("samples", samples, at_least=FEWEST_SAMPLES)
    delta = check_delta("delta", delta, allow_zero=True)
    check_delta("confidence", confidence)
    if isinstance(claim, Guarantee):
        claim = claim.epsilon(delta)
    elif claim is not None and claim != math.inf:
        claim = check_nonnegative("claim", claim)

    def draw(argument: Any) -> NDArray[Any]:
        if batched:
            return _as_array(_projected(mechanism(argument, samples), projection), samples)
        outputs = [_projected(mechanism(argument), projection) for _ in range(samples)]
        return _as_array(outputs, samples)

    draws = draw(data), draw(neighbor)
    half = samples // 2
    failure = (1 - confidence) / 2
    chosen = max(
        (
            event
            for feature in _features(*draws)
            for event in feature.candidates(half, delta, failure)
        ),
        key=lambda event: event.score,
    )
    hits = chosen.count(slice(half, None))
    return AuditReport(
        lower_bound=_epsilon_bound(*hits, samples - half, delta, failure),
        event=chosen.feature.name,
        likelier_on=("data", "neighbor")[chosen.direction],
        hits=hits,
        tested=samples - half,
        samples=samples,
        delta=delta,
        confidence=confidence,
        claim=claim,
    )


@dataclass(frozen=True)
class _Event:
    """A set of cells of a feature, expected to be likelier in one direction."""

    feature: _Feature
    cells: NDArray[np.bool_]
    direction: int  # 0: likelier on data; 1: likelier on the neighbour
    score: float
    edges: NDArray[np.int64]

    def count(self, part: slice) -> tuple[int, int]:
        """Hits among those draws, on the likelier side and on the other."""
        first, second = (
            int(self.cells[np.searchsorted(self.edges, codes[part])].sum())
            for codes in self.feature.codes
        )
        return (first, second) if self.direction == 0 else (second, first)


@dataclass(frozen=True)
class _Feature:
    """Something seen of each output, as ranks among all outputs seen.

    Args:
        name: What it is, for the report.
        codes: The ranks of the draws on the data and on the neighbour.
    """

    name: str
    codes: tuple[NDArray[np.int64], NDArray[np.int64]]

    def candidates(self, half: int, delta: float, failure: float) -> Iterator[_Event]:
        """The best event of each direction, judged on the first half of the draws alone.

        The first quarter orders cells by likelihood ratio, the second compares events: judged on
        the same draws, ragged unions that follow the sampling noise would look best.
        """
        quarter = half // 2
        edges = self._edges(np.concatenate([codes[:half] for codes in self.codes]))
        ordering = [self._counts(codes[:quarter], edges) for codes in self.codes]
        judging = [self._counts(codes[quarter:half], edges) for codes in self.codes]
        for direction in (0, 1):
            events = _cell_unions(ordering[direction], ordering[1 - direction])
            hits, other = (events @ judging[side] for side in (direction, 1 - direction))
            bounds = _log_ratio(hits, other, half - quarter, delta, failure)
            best = int(np.argmax(bounds))
            yield _Event(self, events[best], direction, float(bounds[best]), edges)

    @staticmethod
    def _counts(codes: NDArray[np.int64], edges: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.bincount(np.searchsorted(edges, codes), minlength=len(edges))

    @staticmethod
    def _edges(codes: NDArray[np.int64]) -> NDArray[np.int64]:
        """Upper ends of cells: quantiles, and a cell of its own for each frequent value.

        The last cell ends at the largest rank possible, so that every draw falls into one.
        """
        quantiles = np.quantile(codes, np.linspace(0, 1, _CELLS), method="lower")
        ranks, counts = np.unique(codes, return_counts=True)
        frequent = ranks[np.argsort(-counts, kind="stable")[:_CELLS]]
        frequent = frequent[np.isin(frequent, ranks[counts >= max(10, len(codes) // 100_000)])]
        return np.unique(
            np.concatenate([quantiles, frequent, frequent - 1, [np.iinfo(np.int64).max]])
        ).astype(np.int64)


def _cell_unions(upper: NDArray[np.int64], lower: NDArray[np.int64]) -> NDArray[np.bool_]:
    """``events x cells``: likelihood-ratio sets, then one-sided and two-sided thresholds."""
    cells = len(upper)
    index = np.arange(cells)
    below = index[None, :] <= index[:-1, None]
    outside = (index[None, :] <= index[:, None]) | (index[None, :] >= cells - 1 - index[:, None])
    outside = outside[: cells // 2]
    # Cells seen once or never have wild ratios: half a count of each tames them.
    order = np.argsort(-(upper + 0.5) / (lower + 0.5), kind="stable")
    rank = np.empty(cells, dtype=np.int64)
    rank[order] = index
    likeliest = rank[None, :] <= index[:, None]
    return np.concatenate([likeliest, below, ~below, outside, ~outside])


def _features(data: NDArray[Any], neighbor: NDArray[Any]) -> Iterator[_Feature]:
    pooled = np.concatenate([data, neighbor])
    seen = {"output": pooled}
    if np.issubdtype(pooled.dtype, np.floating):
        seen["exponent of the lowest set bit"] = _lowest_bit(pooled)
    for name, values in seen.items():
        ranks = np.unique(values, return_inverse=True)[1]
        yield _Feature(name, (ranks[: len(data)], ranks[len(data) :]))


def _lowest_bit(values: NDArray[np.float64]) -> NDArray[np.int64]:
    """The e of ``odd integer * 2^e``; 2000 for 0, 2001 for -0, 3000 for what is not finite."""
    finite = np.isfinite(values)
    mantissa, exponent = np.frexp(np.where(finite, values, 0.0))
    integer = np.ldexp(mantissa, 53).astype(np.int64)
    trailing = np.log2(np.maximum(integer & -integer, 1)).astype(np.int64)
    lowest = np.where(integer == 0, 2000 + np.signbit(mantissa), exponent - 53 + trailing)
    return np.where(finite, lowest, 3000)


def _epsilon_bound(hits: int, other: int, draws: int, delta: float, failure: float) -> float:
    bound = _log_ratio(np.array([hits]), np.array([other]), draws, delta, failure)
    return max(0.0, float(bound[0]))


def _log_ratio(
    hits: NDArray[np.int64], other: NDArray[np.int64], draws: int, delta: float, failure: float
) -> NDArray[np.float64]:
    """``log((p - delta) / q)`` at one-sided Clopper-Pearson limits; -inf where p is too small."""
    with np.errstate(all="ignore"):
        low = np.where(hits == 0, 0.0, beta.ppf(failure, hits, draws - hits + 1))
        high = np.where(other == draws, 1.0, beta.isf(failure, other + 1, draws - other))
        return np.where(low > delta, np.log((low - delta) / high), -np.inf)


def _projected(output: Any, projection: Callable[[Any], Any] | None) -> Any:
    if isinstance(output, Release):
        output = output.value
    if projection is not None:
        output = projection(output)
    return output.detach().cpu().numpy() if isinstance(output, Tensor) else output


def _as_array(outputs: Any, samples: int) -> NDArray[Any]:
    """One sortable entry for each draw: a number, or the text of a label."""
    if len(outputs) != samples:
        raise ValueError(
            f"The mechanism made {len(outputs)} outputs where {samples} were asked for."
        )
    try:
        array = np.asarray(outputs)
    except ValueError:  # outputs of different lengths
        array = np.empty(0, dtype=object)
    if array.ndim > 1 and math.prod(array.shape[1:]) == 1:
        array = array.reshape(samples)
    if array.ndim == 1 and array.dtype.kind in "fiub":
        return array.astype(np.float64) if array.dtype.kind == "f" else array
    if array.dtype.kind in "fc":
        raise ValueError(
            f"Outputs have shape {array.shape[1:]}: give `projection`, which makes one number of "
            "each, for example the component along the difference of the two data sets."
        )
    return np.array([str(_label(output)) for output in outputs])


def _label(output: Any) -> Hashable:
    if isinstance(output, np.ndarray):
        output = output.tolist()
    return tuple(_label(entry) for entry in output) if isinstance(output, list | tuple) else output
