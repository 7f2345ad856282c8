"""Losses of single records: how they are asked for, kept, and turned into gradients."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from botorch_dp.models.gradient import KernelFactor
from botorch_dp.objectives import PerRecordLosses, checked_scores

# Records turned into gradients at a time: bounds the working memory to d times this many numbers.
_CHUNK = 16_384


@dataclass(frozen=True)
class Observations:
    """All points in use, with their factor and the losses of all records there.

    The losses are private: ``N x n`` numbers, kept because every gradient is conditioned on all of
    them, in blocks as the caller's function returned them.

    Args:
        factor: The points and the factor of their kernel matrix; public.
        blocks: Losses at the points, oldest first, one ``b x n`` tensor for each step.
        steps: The step that each block was observed in; public.
    """

    factor: KernelFactor
    blocks: tuple[Tensor, ...] = ()
    steps: tuple[int, ...] = ()

    def __repr__(self) -> str:
        return f"Observations({len(self.factor)} points; losses are private)"

    @property
    def num_records(self) -> int:
        """``n``."""
        return self.blocks[0].shape[-1]

    def with_batch(self, factor: KernelFactor, losses: Tensor, step: int) -> Observations:
        """These observations and those of one more step, whose points ``factor`` has already."""
        if len(losses) == 0:
            return self
        return Observations(factor, (*self.blocks, losses), (*self.steps, step))

    def within(self, limit: int) -> Observations:
        """The newest batches that have at most ``limit`` points together."""
        sizes = [len(block) for block in self.blocks]
        dropped = 0
        while sum(sizes[dropped:]) > limit:
            dropped += 1
        if dropped == 0:
            return self
        factor = self.factor.without_oldest(sum(sizes[:dropped]))
        return Observations(factor, self.blocks[dropped:], self.steps[dropped:])

    def gradients(self, weights: Tensor) -> Iterator[Tensor]:
        """``weights^T L`` (``N x d`` and ``N x n``), some columns at a time: ``d x m``."""
        parts = weights.split([len(block) for block in self.blocks])
        for start in range(0, self.num_records, _CHUNK):
            chunk = slice(start, start + _CHUNK)
            total = parts[0].mT @ self.blocks[0][:, chunk]
            for part, block in zip(parts[1:], self.blocks[1:], strict=True):
                total.addmm_(part.mT, block[:, chunk])
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
    losses = checked_scores(record_losses(X), num_points=len(X), num_records=num_records).to(X)
    negligible = torch.finfo(losses.dtype).tiny ** 0.5
    return torch.where(losses.abs() < negligible, 0.0, losses)
