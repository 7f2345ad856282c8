r"""Private quantiles of all columns of a table, and the ranges and knots that follow from them.

The counts of a few rounds are all that is read. In each round every column is cut into bins, at
places that depend on earlier rounds only; the records in each bin are counted, and Gaussian noise
is added to all counts. A first round of powers of ten finds the order of magnitude; later ones cut
where equally many records are expected, and so zoom in on a column however narrow it is and
however far from zero.

*Proof.* A record is in exactly one bin of each column (missing values have a bin of their own). One
that is replaced leaves a bin and enters another: two of a column's counts move by one, those of
``d`` columns together by ``sqrt(2 d)`` in l2 norm. One that is added or removed moves ``sqrt(d)``.
A round is therefore a Gaussian mechanism, with parameters that were fixed before anything was read,
on bins that follow from what earlier rounds released. Such mechanisms compose adaptively, and with
``mu / sqrt(rounds)`` each they are ``mu``-Gaussian differentially private [Dong2022]. Everything
else is computed from noisy counts and the number of records, which is public under replace-one.

*Estimate.* The shares of all cells between edges of any round, most likely given all noisy counts
under a prior that is flat on a logarithmic scale: the mode of

.. math:: \sum_r \frac{|A_r p - c_r / n|^2}{2 (\sigma_r / n)^2} + \lambda \, \mathrm{KL}(p \| p_0)

among distributions ``p``, by multiplicative steps. That no share is negative and that all sum to
one removes most of the noise of empty bins. On columns of many kinds the rank of a quantile is off
by about ``2 sqrt(d) / (n mu)`` on average, which :func:`rank_error` says before a record is read;
``benchmarks/private_tables.py`` measures it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from botorch_dp._checks import check_count, check_delta, check_positive
from botorch_dp.privacy import (
    Guarantee,
    NeighboringRelation,
    PrivacyLedger,
    PrivacyUnit,
    Release,
    gaussian_mu,
)
from botorch_dp.privacy.guarantee import ONE_RECORD, check_unit
from botorch_dp.privacy.ledger import make_release
from botorch_dp.privacy.mechanisms import gaussian_guarantee, gaussian_mechanism

Array = NDArray[np.float64]

#: Rounds, and bins of each after the first.
_ROUNDS, _BINS = 16, 10
#: Edges of the first round: powers of ten. A column far below the least one is zoomed in on.
_POWERS = np.geomspace(1e-3, 1e12, 16)
_FIRST = np.concatenate([-_POWERS[::-1], [-1e-12, 1e-12], _POWERS])
#: Below this edge are missing values, beyond the other one nothing is told apart.
_MISSING, _LARGEST = -1e300, 1e13
#: Weight of the prior, share of the bins that follow it, steps, and the least share that steps are
#: scaled by.
_PRIOR, _SPREAD, _STEPS, _LEAST = 2.0, 0.1, 30, 0.05
_QUARTILES = (0.25, 0.5, 0.75)
#: What is spent on ranges: as much as makes ranks right within this share of the records, and of
#: the square of mu (Gaussian releases add up in squares) at least and at most these parts.
_WANTED_RANKS, _SPENT = 0.02, (0.02, 0.3)
#: Beyond this rank error quantiles say little.
_USELESS_RANKS = 0.2
#: Knots begin at a quantile between these two. A range reaches this many distances from the median
#: to a quartile, each at least this part of the distance between quartiles.
_TAIL, _WIDTHS, _FLAT = (0.025, 0.2), 3.0, 0.25
_OWN_VALUES = (
    "each row holds one record's own values: nothing in it was computed from other records"
)


@dataclass(frozen=True, eq=False)
class Ranges:
    """Released quantiles of the columns of a table, and what follows from them.

    Args:
        quartiles: ``d x 3``.
        knots: ``d x (pieces + 1)`` rising quantiles, from 2.5% to 97.5% where noise allows, if they
            were asked for.

    The range ``lower`` to ``upper`` reaches three times as far from the median as the quartiles.
    Where half of a column is one value the range is narrow, and other values count as its ends.
    """

    quartiles: Array
    knots: Array | None = None

    @property
    def lower(self) -> Array:
        """The lower ends, ``d``."""
        return np.array([low for low, _ in self.ends()])

    @property
    def upper(self) -> Array:
        """The upper ends, ``d``."""
        return np.array([high for _, high in self.ends()])

    def ends(self, widths: float = _WIDTHS) -> list[tuple[float, float]]:
        """``(lower, upper)`` of columns, ``widths`` times as far from the median as quartiles."""
        low, middle, high = self.quartiles.T
        least = _FLAT * (high - low) + 1e-9 * np.abs(middle) + 1e-12
        lower = middle - widths * np.maximum(middle - low, least)
        upper = middle + widths * np.maximum(high - middle, least)
        return list(zip(lower.tolist(), upper.tolist(), strict=True))

    def __str__(self) -> str:
        return "\n".join(f"{low:.4g} to {high:.4g}" for low, high in self.ends())


def ranges_guarantee(
    *,
    mu: float | None = None,
    epsilon: float | None = None,
    delta: float | None = None,
    unit: PrivacyUnit = ONE_RECORD,
) -> Guarantee:
    """The guarantee of :func:`private_ranges`; see there."""
    unit = check_unit(
        unit, NeighboringRelation.REPLACE_ONE, NeighboringRelation.ADD_OR_REMOVE_ONE
    ).given(_OWN_VALUES)
    stated = gaussian_guarantee(sensitivity=1.0, mu=mu, epsilon=epsilon, delta=delta)
    return Guarantee("Private ranges", unit, stated.losses, quoted_delta=delta)


def rank_error(
    num_records: int, num_columns: int, mu: float, relation: NeighboringRelation
) -> float:
    """How far the rank of a released quantile is off, typically, as a share of all records."""
    return relation.sum_sensitivity * math.sqrt(num_columns) / (num_records * mu)


@dataclass(frozen=True)
class RangesPlan:
    """The budget share of :func:`private_ranges`, and how accurate its quantiles will be.

    Args:
        num_records: How many records there are.
        num_columns: How many columns are read.
        guarantee: That of the ranges alone.
        share: How much of the whole budget they take, in squares of mu.
    """

    num_records: int
    num_columns: int
    guarantee: Guarantee
    share: float = 1.0

    @classmethod
    def within(
        cls,
        num_records: int,
        num_columns: int,
        epsilon: float,
        delta: float,
        part: float | None = None,
        unit: PrivacyUnit = ONE_RECORD,
    ) -> RangesPlan:
        """The share of (epsilon, delta) that public numbers give to the ranges.

        Args:
            num_records: How many records there are.
            num_columns: How many columns are read.
            epsilon: Of everything together.
            delta: Of everything together.
            part: A share in squares of mu; None for as much as the ranks need.
            unit: Whom they protect; of a person, one record is read.
        """
        whole = gaussian_mu(check_positive("epsilon", epsilon), check_delta("delta", delta))
        if part is None:
            wanted = rank_error(num_records, num_columns, whole, ONE_RECORD.relation)
            least, most = _SPENT
            part = min(max((wanted / _WANTED_RANKS) ** 2, least), most)
        price = ranges_guarantee(mu=whole * math.sqrt(part), unit=unit)
        return cls(num_records, num_columns, price.quoted_at(delta), part)

    @property
    def mu(self) -> float:
        """The privacy parameter of the ranges."""
        assert self.guarantee.mu is not None  # of a single Gaussian loss
        return self.guarantee.mu

    @property
    def rank_error(self) -> float:
        """See :func:`rank_error`."""
        n, d = self.num_records, self.num_columns
        return rank_error(n, d, self.mu, self.guarantee.relation)

    @property
    def is_too_noisy(self) -> bool:
        """Whether the quantiles would be off so far that they are of no use."""
        return self.rank_error > _USELESS_RANKS

    def __str__(self) -> str:
        n, d, off = self.num_records, self.num_columns, self.rank_error
        columns = f"{d} column{'s' * (d > 1)}"
        share = "all" if self.share == 1 else f"{100 * self.share:.2g}%"
        said = (
            f"Ranges of {columns}, found with {share} of the budget: quantiles are off by about "
            f"{100 * off:.2g}% of the records in rank ({max(1, round(off * n)):,} of {n:,})."
        )
        if self.is_too_noisy:
            said += f" That is too far to be of use: state bounds for as many of the {columns} as "
            said += "you know, drop some, or take more records."
        return said


def private_ranges(
    X: ArrayLike | Tensor,
    *,
    mu: float | None = None,
    epsilon: float | None = None,
    delta: float | None = None,
    pieces: int | None = None,
    unit: PrivacyUnit = ONE_RECORD,
    ledger: PrivacyLedger | None = None,
    key: str | None = None,
    label: str = "",
    unsafe_seed: int | None = None,
) -> Release[Ranges]:
    """Release the ranges of all columns of a table, from noisy counts.

    Guarantee: ``mu``-Gaussian differential privacy for one replaced record, with exact noise; see
    the head of this file for the proof. Given ``epsilon`` and ``delta``, ``mu`` is the largest
    that implies them.

    Args:
        X: ``n x d`` numbers, tensor or array; NaN is a missing value. Columns between 1e-12 and
            1e12 in size are found.
        mu: The privacy parameter; give this, or ``epsilon`` and ``delta``.
        epsilon: Target epsilon, with ``delta``.
        delta: Target delta, with ``epsilon``.
        pieces: Release ``pieces + 1`` knots of each column, too, at no further cost.
        unit: Whom it protects. If records may be added or removed, their number counts as public.
        ledger: Charged before a record is read.
        key: Names the released ranges in the ledger: asking again replays them, free of charge.
        label: What it is for, in public words; shown in the ledger.
        unsafe_seed: Simulate with reproducible noise. The release then guarantees nothing.

    Example:
        >>> X = torch.randn(5000, 3, dtype=torch.double) * 10 + 1000
        >>> release = private_ranges(X, epsilon=0.5, delta=1e-6)
        >>> release.value.lower.shape, release.guarantee.status
        ((3,), 'proven')
    """
    table = X.detach().cpu().numpy() if isinstance(X, Tensor) else np.asarray(X)
    if table.ndim != 2 or table.dtype.kind not in "biuf" or 0 in table.shape:
        raise ValueError(f"`X` must be n x d numbers, got {table.dtype} of shape {table.shape}.")
    return release_ranges(
        lambda: table,
        table.shape,
        price=ranges_guarantee(mu=mu, epsilon=epsilon, delta=delta, unit=unit),
        pieces=pieces,
        ledger=ledger,
        key=key,
        label=label,
        unsafe_seed=unsafe_seed,
    )


def release_ranges(
    read: Callable[[], NDArray[Any]],
    shape: tuple[int, ...],
    *,
    price: Guarantee,
    pieces: int | None = None,
    ledger: PrivacyLedger | None = None,
    key: str | None = None,
    label: str = "",
    unsafe_seed: int | None = None,
    delta: float | None = None,
) -> Release[Ranges]:
    """:func:`private_ranges` of a table of this shape, which is read after the charge.

    With ``delta`` a ledger is charged as for a training: the (epsilon, delta) of it.
    """
    n, d = shape
    assert price.mu is not None  # of a single Gaussian loss
    levels = quantile_levels(pieces, rank_error(n, d, price.mu, price.relation))
    noisy = partial(_noisy, mu=price.mu, relation=price.relation, unsafe_seed=unsafe_seed)
    found = make_release(
        price,
        lambda columns: torch.from_numpy(_quantiles(columns, n, levels, noisy)),
        read=lambda: sorted_columns(read()),
        ledger=ledger,
        key=key,
        label=label,
        about={"columns": d, "levels": list(levels)},
        unsafe_seed=unsafe_seed,
        delta=None if ledger is None or ledger.budget.renyi else delta,
    )
    quantiles = found.value.numpy()
    ranges = Ranges(quantiles[:, :3], None if pieces is None else quantiles[:, 3:])
    return Release(ranges, found.guarantee, facts={"artifact": quantiles})


def private_norm(X: Tensor, **how: Any) -> Release[float]:
    """Release the median norm of the records, for ``feature_norm`` of a training.

    ``DPTrainer.fit(feature_norm="private")`` does this within the training's own epsilon. By
    itself it is for trainings that are continued from a checkpoint, or selected from.

    Guarantee: that of :func:`private_ranges` for one column: a record has one norm.

    Args:
        X: ``n x ...``.
        how: ``mu``, or ``epsilon`` and ``delta``; ``unit``, ``ledger``, ``key``, ``label`` and
            ``unsafe_seed``, as for :func:`private_ranges`.

    Example:
        >>> norm = private_norm(X, epsilon=0.1, delta=1e-6, ledger=ledger, key="norm")
        >>> trainer.plan(target_epsilon=0.9, feature_norm=norm.value)
    """
    level = {name: how.pop(name) for name in ("mu", "epsilon", "delta", "unit") if name in how}

    def norms() -> Array:
        rows = X.detach().cpu().double().reshape(len(X), -1)
        return rows.norm(dim=1, keepdim=True).numpy()

    found = release_ranges(norms, (len(X), 1), price=ranges_guarantee(**level), **how)
    return Release(max(float(found.value.quartiles[0, 1]), 1e-6), found.guarantee)


def quantile_levels(pieces: int | None, off: float) -> tuple[float, ...]:
    """The quartiles, and the levels of the knots, away from the ends by the error of ranks."""
    if pieces is None:
        return _QUARTILES
    tail = min(max(_TAIL[0], 0.75 * off), _TAIL[1])
    return (*_QUARTILES, *np.linspace(tail, 1 - tail, check_count("pieces", pieces) + 1).tolist())


def sorted_columns(table: NDArray[Any]) -> list[tuple[Array, int]]:
    """The values of each column as rising doubles, and how many are missing.

    Infinities count as the largest numbers.
    """
    found = []
    for column in table.T:
        values = np.sort(np.clip(column.astype(np.float64), -1e299, 1e299))  # NaN last
        there = len(values) - int(np.isnan(values).sum())
        found.append((values[:there], len(values) - there))
    return found


def bin_counts(columns: list[tuple[Array, int]], edges: Array) -> Array:
    """How many records are in each bin, ``d x (k + 1)``; missing values are in the first.

    Args:
        columns: From :func:`sorted_columns`.
        edges: ``d x k``, rising.
    """
    parts = zip(columns, edges, strict=True)
    below = [[*np.searchsorted(values, each), len(values)] for (values, _), each in parts]
    counts = np.diff(below, axis=1, prepend=0).astype(np.float64)
    counts[:, 0] += [missing for _, missing in columns]
    return counts


def count_sensitivity(num_columns: int, relation: NeighboringRelation) -> float:
    """How far one record moves all counts of a round, in l2 norm: two bins of each column."""
    return math.sqrt(relation.sum_sensitivity * num_columns)


def _noisy(
    counts: Array, mu: float, relation: NeighboringRelation, unsafe_seed: int | None, round_: int
) -> tuple[Array, float]:
    """The counts of a round with noise, and its standard deviation."""
    release = gaussian_mechanism(
        torch.from_numpy(counts),
        sensitivity=count_sensitivity(len(counts), relation),
        mu=mu / math.sqrt(_ROUNDS),
        unsafe_seed=None if unsafe_seed is None else unsafe_seed * _ROUNDS + round_,
    )
    assert release.scale is not None  # a Gaussian mechanism states it
    return release.value.numpy(), release.scale


def _quantiles(
    columns: list[tuple[Array, int]], n: int, levels: tuple[float, ...], noisy: Any
) -> Array:
    """Quantiles of all columns at these levels, ``d x len(levels)``."""
    edges = np.tile(np.concatenate([[_MISSING], _FIRST]), (len(columns), 1))
    seen = _Counts(n, len(columns))
    for round_ in range(_ROUNDS):
        seen.add(edges, *noisy(bin_counts(columns, edges), round_=round_))
        cut = (1 - _SPREAD) * seen.shares + _SPREAD * _prior(seen.grid)
        inner = _interpolated(seen.grid, cut, np.arange(1, _BINS) / _BINS)
        edges = np.concatenate([np.full((len(columns), 1), _MISSING), inner], axis=1)
    return _interpolated(seen.grid, seen.shares, np.array(levels))


class _Counts:
    """The noisy counts of all rounds, and the most likely share of records in each cell.

    ``grid`` has all edges so far in rising order, ``d x g``; ``shares`` those of the cells below,
    between and above them, ``d x (g + 1)``.
    """

    def __init__(self, n: int, d: int) -> None:
        self._n = n
        self._rounds: list[tuple[Array, Array, float]] = []  # edges, shares, inverse variance
        self.grid: Array = np.empty((d, 0))
        self.shares: Array = np.ones((d, 1))

    def add(self, edges: Array, counts: Array, noise: float) -> None:
        """Take the counts between these edges into account."""
        self._rounds.append((edges, counts / self._n, (self._n / noise) ** 2))
        flat = np.concatenate([each for each, _, _ in self._rounds], axis=1)
        order = np.argsort(flat, axis=1, kind="stable")
        grid = np.take_along_axis(flat, order, axis=1)
        prior = _prior(grid)
        p = prior
        if len(self._rounds) > 1:
            p = 0.99 * np.maximum(self._on(grid), 1e-12) + 0.01 * prior
        self._place, self._order, self.grid = np.argsort(order, axis=1), order, grid
        self.shares = self._fitted(p, np.log(prior))

    def _on(self, grid: Array) -> Array:
        """The present shares of the cells of a finer grid; they are spread evenly in a cell."""
        below = np.cumsum(self.shares, axis=1)[:, :-1]
        rows = zip(grid, self.grid, below, strict=True)
        finer = np.stack([np.interp(new, old, share) for new, old, share in rows])
        return np.diff(finer, axis=1, prepend=0.0, append=1.0)

    def _fitted(self, p: Array, log_prior: Array) -> Array:
        """The mode, by multiplicative steps from ``p``."""
        cuts = np.cumsum([edges.shape[1] for edges, _, _ in self._rounds])[:-1]
        logs = np.log(p)
        for _ in range(_STEPS):
            below = np.take_along_axis(np.cumsum(p, axis=1)[:, :-1], self._place, axis=1)
            slopes, curvatures = [], []
            parts = zip(np.split(below, cuts, axis=1), self._rounds, strict=True)
            for part, (_, shares, weight) in parts:
                own = np.diff(part, axis=1, prepend=0.0, append=1.0)
                slopes.append(weight * (own - shares))
                curvatures.append(weight * np.maximum(own, _LEAST))
            slope, curvature = self._cells(slopes), self._cells(curvatures)
            logs -= (slope + _PRIOR * (logs - log_prior)) / (curvature + _PRIOR)
            p = np.exp(logs - logs.max(axis=1, keepdims=True))
            p = np.maximum(p / p.sum(axis=1, keepdims=True), 1e-300)
            logs = np.log(p)
        return p

    def _cells(self, bins: list[Array]) -> Array:
        """The sum over rounds of what belongs to the bin that a cell is in."""
        jumps = np.concatenate([np.diff(each, axis=1) for each in bins], axis=1)
        first = np.sum([each[:, :1] for each in bins], axis=0)
        rising = np.cumsum(np.take_along_axis(jumps, self._order, axis=1), axis=1)
        return np.concatenate([first, first + rising], axis=1)


def _prior(grid: Array) -> Array:
    """Shares of cells, flat on a logarithmic scale that is linear below a thousandth."""
    inside = np.clip(grid, -_LARGEST, _LARGEST)
    width = np.diff(np.sign(inside) * np.log1p(np.abs(inside) * 1e3), axis=1) + 1e-9
    ends = np.full((len(grid), 1), 1e-3)
    p = np.concatenate([ends, width / width.sum(axis=1, keepdims=True), ends], axis=1)
    shares: Array = p / p.sum(axis=1, keepdims=True)
    return shares


def _interpolated(grid: Array, shares: Array, levels: Array) -> Array:
    """Quantiles of what is not missing, ``d x len(levels)``."""
    below = np.cumsum(shares, axis=1)[:, :-1] + 1e-13 * np.arange(grid.shape[1])
    inside = np.clip(grid, -_LARGEST, _LARGEST)
    rows = zip(below, inside, shares[:, 0], strict=True)
    return np.stack([np.interp(m + levels * (1 - m), share, edge) for share, edge, m in rows])


class Shapes(nn.Module):
    """Piecewise linear features of columns, ``n x p``: a linear model of them is additive.

    A column becomes its position between the ends of its range, clipped to -1 and 1; and, with
    ``m + 1`` knots, its positions between neighbouring knots, clipped likewise and divided by
    ``sqrt(m)``, each half being divided by ``sqrt(2)``. Whatever a record holds, the features of
    one column have norm at most 1, those of ``d`` columns at most ``sqrt(d)``. A missing value is
    in the middle of all pieces.

    Args:
        ends: ``(lower, upper)`` of each column.
        knots: Rising knots of each column; those between which nothing lies are merged. Without
            them the features are linear.
        flags: Columns of 0 and 1 that stay as they are, such as those of a category.
        targets: The range of what is predicted, which is released with the shapes.
    """

    column: Tensor
    start: Tensor
    width: Tensor
    scale: Tensor
    shift: Tensor
    targets: Tensor

    def __init__(
        self,
        ends: Sequence[tuple[float, float]],
        knots: Sequence[ArrayLike] | None = None,
        flags: Collection[int] = (),
        targets: tuple[float, float] = (0.0, 1.0),
    ) -> None:
        super().__init__()
        self.register_buffer("targets", torch.tensor(targets, dtype=torch.double, device="cpu"))
        rows = []
        for column, (low, high) in enumerate(ends):
            if column in flags:
                rows.append((column, low, high - low, 1.0, 0.0))
                continue
            starts, widths = np.empty(0), np.empty(0)
            if knots is not None:
                rising = np.maximum.accumulate(np.asarray(knots[column], dtype=np.float64))
                apart = np.diff(rising) > 1e-12 + 1e-9 * np.abs(rising[1:])
                starts, widths = rising[:-1][apart], np.diff(rising)[apart]
            half = math.sqrt(0.5) if len(starts) else 1.0
            rows.append((column, low, high - low, 2 * half, -half))
            size = math.sqrt(0.5 / max(1, len(starts)))
            rows += [(column, a, w, 2 * size, -size) for a, w in zip(starts, widths, strict=True)]
        table = np.array(rows, dtype=np.float64)
        self.register_buffer("column", torch.from_numpy(table[:, 0].astype(np.int64)))
        for place, name in enumerate(("start", "width", "scale", "shift"), start=1):
            self.register_buffer(name, torch.from_numpy(table[:, place].copy()))

    def forward(self, columns: Tensor) -> Tensor:
        """Features ``n x p`` of double precision columns ``n x d``."""
        found = columns[:, self.column].sub_(self.start).div_(self.width).clamp_(0, 1)
        return found.mul_(self.scale).add_(self.shift).nan_to_num_(0.0)
