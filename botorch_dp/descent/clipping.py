"""The mean of clipped gradients, with a sensitivity that holds in floating-point arithmetic too."""

from __future__ import annotations

import math

import torch
from torch import Tensor

_EPS = torch.finfo(torch.double).eps


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
    """

    def __init__(self, dim: int, num_records: int, clip_norm: float) -> None:
        self.num_records = num_records
        self.bound = clip_norm * (1 - (4 * num_records + 2 * dim + 16) * _EPS)
        # A sum of n entries, each at most 2^bits, stays below 2^62; below 2^52 doubles are exact.
        bits = min(52, 62 - math.ceil(math.log2(num_records)))
        self.unit = clip_norm * 2.0**-bits
        self.total = torch.zeros(dim, dtype=torch.double if self.is_plain else torch.int64)
        #: How many gradients were shortened, and how many were not finite. Sensitive.
        self.clipped = torch.zeros((), dtype=torch.int64)
        self.not_finite = torch.zeros((), dtype=torch.int64)

    @property
    def is_plain(self) -> bool:
        """Whether nothing is clipped."""
        return math.isinf(self.bound)

    def add(self, gradients: Tensor) -> None:
        """Count in the gradients of some records, ``d x m``, one column for each."""
        gradients = gradients.double()
        largest = gradients.abs().amax(dim=0)  # NaN if one entry is
        finite = torch.isfinite(largest)
        gradients = torch.where(finite, gradients, 0.0)
        largest = torch.where(finite & (largest > 0), largest, 1.0)
        self.total = self.total.to(gradients.device)
        if self.is_plain:
            self.total += gradients.sum(dim=-1)
        else:
            directions = gradients / largest  # entries within [-1, 1]
            norms = torch.linalg.vector_norm(directions, dim=0)
            limit = self.bound / norms.clamp_min(_EPS)
            shortened = directions * torch.minimum(largest, limit)
            self.total += (shortened / self.unit).trunc().to(torch.int64).sum(dim=-1)
            self.clipped = self.clipped.to(norms.device) + (largest > limit).sum()
        self.not_finite = self.not_finite.to(finite.device) + (~finite).sum()

    def value(self) -> Tensor:
        """The mean over all ``n`` records, a ``d``-vector of doubles."""
        mean = self.total.double() / self.num_records
        return mean if self.is_plain else mean * self.unit
