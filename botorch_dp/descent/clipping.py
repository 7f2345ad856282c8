"""From losses of single records to the mean of their clipped gradients.

The losses are asked for, kept in a table and turned into gradients, a chunk of the records at a
time; the mean of the clipped gradients has a sensitivity that holds in floating point too.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from botorch_dp.models.gradient import KernelFactor
from botorch_dp.objectives import PerRecordLosses, checked_scores

_EPS, _TINY = torch.finfo(torch.double).eps, torch.finfo(torch.double).tiny
# Numbers that the gradients of a chunk of the records have: two megabytes. With smaller chunks the
# products take longer, with larger ones the rest.
_CHUNK_NUMBERS, _LEAST_CHUNK = 2**18, 512
# How many steps share a table of losses, if it has fewer numbers than that (128 megabytes).
_TABLE_STEPS, _TABLE_NUMBERS = 16, 2**24
# The reciprocal of a larger number is subnormal, and slow to compute with.
_HUGE = 2.0**1020


class _Table:
    """Memory for the losses at some points, a row for each. No row is given to two writers."""

    def __init__(self, rows: Tensor) -> None:
        self.rows = rows
        self._used = 0
        self._lock = threading.Lock()

    def give(self, start: int, stop: int) -> bool:
        """Whether the caller may write these rows: the next ones, and all there."""
        with self._lock:
            is_free = self._used == start and stop <= self.rows.shape[0]
            if is_free:
                self._used = stop
            return is_free


@dataclass(frozen=True, eq=False)
class _Losses:
    """The losses of all records in some consecutive steps, in one table. **Sensitive.**

    One product with all of it is faster than one for each step. A copy has a table of its own, so
    that neither writes where the other reads.

    Args:
        table: Where they are.
        start: Their first row there.
        sizes: How many points each step had.
        steps: Which ones these are; public.
    """

    table: _Table = field(repr=False)
    start: int
    sizes: tuple[int, ...]
    steps: tuple[int, ...]

    @property
    def rows(self) -> Tensor:
        """``b x n``, oldest first; not to be changed."""
        return self.table.rows[self.start : self.start + sum(self.sizes)]

    @classmethod
    def of(cls, losses: Tensor, sizes: tuple[int, ...], steps: tuple[int, ...]) -> _Losses:
        """Those in a table without further rows."""
        table = _Table(losses)
        table.give(0, losses.shape[0])
        return cls(table, 0, sizes, steps)

    def with_step(self, losses: Tensor, step: int, num_rows: int) -> _Losses:
        """These and the losses of one more step, with ``num_rows`` in all if a table is to be made.

        Where the next rows are taken already, as after a step that failed, or there are none, all
        of them move to another table.
        """
        size, table, start = sum(self.sizes), self.table, self.start
        stop = size + losses.shape[0]
        if not table.give(start + size, start + stop):
            num_rows = max(stop, num_rows)
            table, start = _Table(losses.new_empty(num_rows, losses.shape[1])), 0
            table.give(0, stop)
            table.rows[:size] = self.rows
        # Numbers too small to matter become zero: arithmetic on subnormal ones is slow, and the
        # time must not depend on a record.
        limit = torch.finfo(losses.dtype).tiny ** 0.5
        torch.hardshrink(losses, limit, out=table.rows[start + size : start + stop])
        return _Losses(table, start, (*self.sizes, stop - size), (*self.steps, step))

    def without_oldest(self, count: int) -> _Losses:
        """Those of all steps but the first ``count``."""
        start = self.start + sum(self.sizes[:count])
        return _Losses(self.table, start, self.sizes[count:], self.steps[count:])

    def __reduce__(self) -> tuple[Any, ...]:
        return _Losses.of, (self.rows.clone(), self.sizes, self.steps)


@dataclass(frozen=True)
class Observations:
    """All points in use, with their factor and the losses of all records there.

    The losses are sensitive: ``N x n`` numbers, kept because every gradient is conditioned on all
    of them.

    Args:
        factor: The points and the factor of their kernel matrix; public.
        tables: Losses at the points, oldest first.
    """

    factor: KernelFactor
    tables: tuple[_Losses, ...] = ()

    def __repr__(self) -> str:
        return f"Observations({len(self.factor)} points; sensitive losses)"

    @property
    def num_records(self) -> int:
        """``n``."""
        return self.tables[0].rows.shape[-1]

    @property
    def steps(self) -> tuple[int, ...]:
        """The steps that the losses were observed in; public."""
        return tuple(step for table in self.tables for step in table.steps)

    @property
    def newest(self) -> Tensor:
        """The losses of the last of these steps, ``b x n``."""
        last = self.tables[-1]
        return last.rows[-last.sizes[-1] :]

    def with_batch(self, factor: KernelFactor, losses: Tensor, step: int) -> Observations:
        """These observations and those of one more step, whose points ``factor`` has already."""
        b, n = losses.shape
        if b == 0:
            return self
        # Which steps share a table follows from public numbers that a run keeps: a product adds up
        # in an order that depends on it, and a resumed run must continue bit for bit.
        shared = max(1, min(_TABLE_STEPS, _TABLE_NUMBERS // (n * (factor.points.shape[1] + 1))))
        tables, left = self.tables, (shared - step % shared) * b
        if tables and tables[-1].steps[-1] // shared == step // shared:
            last = tables[-1]
            joined = last.with_step(losses, step, sum(last.sizes) + left)
            return Observations(factor, (*tables[:-1], joined))
        empty = _Losses.of(losses.new_empty(0, n), (), ())
        return Observations(factor, (*tables, empty.with_step(losses, step, left)))

    def within(self, limit: int) -> Observations:
        """The newest batches that have at most ``limit`` points together."""
        sizes = [size for table in self.tables for size in table.sizes]
        dropped = 0
        while sum(sizes[dropped:]) > limit:
            dropped += 1
        if dropped == 0:
            return self
        factor, tables = self.factor.without_oldest(sum(sizes[:dropped])), list(self.tables)
        while tables and dropped >= len(tables[0].steps):
            dropped -= len(tables.pop(0).steps)
        if dropped:
            tables[0] = tables[0].without_oldest(dropped)
        return Observations(factor, tuple(tables))

    def gradients(self, weights: Tensor) -> Iterator[Tensor]:
        """``weights^T L`` (``N x d`` and ``N x n``), some columns at a time: ``d x m``."""
        tables = [table.rows for table in self.tables]
        sizes = [table.shape[0] for table in tables]
        first, *others = weights.mT.split_with_sizes(sizes, dim=1)
        most = max(_CHUNK_NUMBERS // weights.shape[-1], _LEAST_CHUNK)
        size = math.ceil(self.num_records / math.ceil(self.num_records / most))
        # All columns of a table are cut at once: at small sizes it is calls that take time.
        for cut in zip(*(table.split(size, dim=1) for table in tables), strict=True):
            total = first @ cut[0]
            for part, losses in zip(others, cut[1:], strict=True):
                total.addmm_(part, losses)
            yield total


def read_losses(record_losses: PerRecordLosses, X: Tensor, num_records: int | None) -> Tensor:
    """The losses of all records at the rows of ``X`` (``b x d``), as a ``b x n`` tensor.

    Only the shape and the type are checked: what a single record says must not raise.

    Args:
        record_losses: The caller's function.
        X: Where to evaluate it.
        num_records: The number of records, or None if this is the first time.
    """
    return checked_scores(record_losses(X), num_points=X.shape[0], num_records=num_records).to(X)


class ClippedMean:
    r"""The mean over records of gradients clipped to an l2 norm.

    Sensitivity: a record contributes one vector of norm at most ``B`` (zero if its gradient is not
    finite), so replacing it moves the sum by at most ``2B`` and the mean by at most ``2B / n``,
    whatever the record says. To keep this true on a computer,

    - the norm is taken of ``g / max|g|``, which cannot overflow;
    - the sum is taken in 64-bit fixed point, each entry rounded towards zero: it is exact and the
      same in any order, where a floating-point sum of ``n`` terms may differ by ``n`` roundings;
    - the bound is lowered by the few roundings that are left (a part in 1e12 for a thousand
      records).

    Every record takes the same operations, so a record cannot change the time it takes.

    Args:
        dim: The number of parameters ``d``.
        num_records: ``n``, at most 2^31.
        clip_norm: ``B``; infinite for a plain mean, which has no sensitivity.
        device: Of the gradients; torch's default if None.
    """

    def __init__(
        self,
        dim: int,
        num_records: int,
        clip_norm: float,
        device: torch.device | None = None,
    ) -> None:
        self.num_records = num_records
        self.bound = clip_norm * (1 - (4 * num_records + 2 * dim + 16) * _EPS)
        # A sum of n entries, each at most 2^bits, stays below 2^62; below 2^52 doubles are exact.
        bits = min(52, 62 - math.ceil(math.log2(num_records)))
        self.unit = clip_norm * 2.0**-bits
        kind = torch.double if self.is_plain else torch.int64
        self.total = torch.zeros(dim, dtype=kind, device=device)
        self._counts = torch.zeros(2, dtype=torch.int64, device=device)  # shortened, finite
        self._seen = 0

    @property
    def is_plain(self) -> bool:
        """Whether nothing is clipped."""
        return math.isinf(self.bound)

    def add(self, gradients: Tensor) -> None:
        """Count in the gradients of some records, ``d x m``, one column for each."""
        gradients = gradients.double()
        self._seen += gradients.shape[-1]
        space = gradients.abs()
        largest = space.amax(0)
        finite = largest < math.inf  # NaN if one entry is
        if self.is_plain:
            self.total += torch.where(finite, gradients, 0.0).sum(-1)
            self._counts[1] += finite.sum()
            return
        scale = largest.clamp(_TINY, _HUGE)
        directions = gradients * (1 / scale)  # entries within [-16, 16]
        # In place, here and below: a fresh table costs more than the arithmetic.
        norms = torch.mul(directions, directions, out=space).sum(0).sqrt_()
        limit = self.bound / norms.clamp_min_(_EPS)
        directions *= torch.fmin(scale, limit) / self.unit
        entries = directions.long()  # rounded towards zero; any integer where it is not finite
        entries &= -finite.long()
        self.total += entries.sum(-1)
        self._counts += torch.stack((finite & (scale > limit), finite)).sum(-1)

    def value(self) -> Tensor:
        """The mean over all ``n`` records, a ``d``-vector of doubles."""
        mean = self.total.double() / self.num_records
        return mean if self.is_plain else mean * self.unit

    def counts(self) -> tuple[int, int]:
        """How many gradients were shortened, and how many were not finite. **Sensitive.**"""
        clipped, finite = self._counts.tolist()
        return clipped, self._seen - finite
