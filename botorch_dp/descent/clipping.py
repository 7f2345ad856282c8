"""From losses of single records to the mean of their clipped gradients.

The losses are asked for, kept in a table and turned into gradients, a chunk of the records at a
time; the mean of the clipped gradients has a sensitivity that holds in floating point too.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from botorch_dp.models.gradient import KernelFactor
from botorch_dp.objectives import PerRecordLosses, checked_scores

_EPS, _TINY = torch.finfo(torch.double).eps, torch.finfo(torch.double).tiny
# Numbers that the gradients of a chunk of the records have: half of what a processor's cache holds.
_CHUNK_NUMBERS, _LEAST_CHUNK = 2**15, 512


@dataclass(frozen=True)
class Observations:
    """All points in use, with their factor and the losses of all records there.

    The losses are sensitive: ``N x n`` numbers, kept because every gradient is conditioned on all
    of them, in blocks as the caller's function returned them.

    Args:
        factor: The points and the factor of their kernel matrix; public.
        blocks: Losses at the points, oldest first, one ``b x n`` tensor for each step.
        steps: The step that each block was observed in; public.
    """

    factor: KernelFactor
    blocks: tuple[Tensor, ...] = ()
    steps: tuple[int, ...] = ()

    def __repr__(self) -> str:
        return f"Observations({len(self.factor)} points; sensitive losses)"

    @property
    def num_records(self) -> int:
        """``n``."""
        return self.blocks[0].shape[-1]

    def with_batch(self, factor: KernelFactor, losses: Tensor, step: int) -> Observations:
        """These observations and those of one more step, whose points ``factor`` has already."""
        if losses.shape[0] == 0:
            return self
        return Observations(factor, (*self.blocks, losses), (*self.steps, step))

    def within(self, limit: int) -> Observations:
        """The newest batches that have at most ``limit`` points together."""
        sizes = [block.shape[0] for block in self.blocks]
        dropped = 0
        while sum(sizes[dropped:]) > limit:
            dropped += 1
        if dropped == 0:
            return self
        factor = self.factor.without_oldest(sum(sizes[:dropped]))
        return Observations(factor, self.blocks[dropped:], self.steps[dropped:])

    def gradients(self, weights: Tensor) -> Iterator[Tensor]:
        """``weights^T L`` (``N x d`` and ``N x n``), some columns at a time: ``d x m``."""
        sizes = [block.shape[0] for block in self.blocks]
        first, *others = weights.mT.split_with_sizes(sizes, dim=1)
        most = max(_CHUNK_NUMBERS // weights.shape[-1], _LEAST_CHUNK)
        size = math.ceil(self.num_records / math.ceil(self.num_records / most))
        # All columns of a block are cut at once: at small sizes it is calls that take time.
        for cut in zip(*(block.split(size, dim=1) for block in self.blocks), strict=True):
            total = first @ cut[0]
            for part, losses in zip(others, cut[1:], strict=True):
                total.addmm_(part, losses)
            yield total


def read_losses(record_losses: PerRecordLosses, X: Tensor, num_records: int | None) -> Tensor:
    """The losses of all records at the rows of ``X`` (``b x d``), as a ``b x n`` tensor.

    Only the shape and the type are checked: what a single record says must not raise. Numbers too
    small to matter become zero, for arithmetic on subnormal numbers is slow, and the time must
    not depend on a record either.

    Args:
        record_losses: The caller's function.
        X: Where to evaluate it.
        num_records: The number of records, or None if this is the first time.
    """
    losses = checked_scores(record_losses(X), num_points=X.shape[0], num_records=num_records).to(X)
    return torch.nn.functional.hardshrink(losses, torch.finfo(losses.dtype).tiny ** 0.5)


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
        largest = gradients.abs().amax(dim=0)
        finite = largest < math.inf  # NaN if one entry is
        if self.is_plain:
            self.total += torch.where(finite, gradients, 0.0).sum(dim=-1)
            shorter = torch.zeros_like(finite)
        else:
            # Over an infinity or NaN, a gradient becomes zeros and NaN. What follows works in
            # place: a fresh table costs more than the arithmetic.
            scale = largest.clamp_min(_TINY)
            directions = (gradients / scale).nan_to_num_(nan=0.0)  # entries within [-1, 1]
            # Along the first dimension a sum of squares is ten times as fast as a norm.
            norms = directions.square().sum(dim=0).sqrt_()
            limit = self.bound / norms.clamp_min_(_EPS)
            shorter = finite & (largest > limit)
            # Where the scale is NaN, all directions are zero.
            shortened = directions.mul_(torch.fmin(scale, limit).div_(self.unit))
            self.total += shortened.to(torch.int64).sum(dim=-1)  # rounds towards zero
        self._counts += torch.stack((shorter, finite)).sum(dim=-1)

    def value(self) -> Tensor:
        """The mean over all ``n`` records, a ``d``-vector of doubles."""
        mean = self.total.double() / self.num_records
        return mean if self.is_plain else mean * self.unit

    def counts(self) -> tuple[int, int]:
        """How many gradients were shortened, and how many were not finite. **Sensitive.**"""
        clipped, finite = self._counts.tolist()
        return clipped, self._seen - finite
