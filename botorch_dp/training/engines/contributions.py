"""Per-record gradients of one parameter: their norms, and their clipped sums.

A record's gradient may be there as it is (:class:`Gradients`), as products whose sum it is
(:class:`Products`), or as the rows of a table that it uses (:class:`Rows`). All that clipping needs
of them is their norms and their weighted sum.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from botorch_dp.training.engines.base import clip_factors
from botorch_dp.training.records import CONVERTED, lengths

#: Largest size of per-record gradients that are treated together, in numbers.
_FEW = 256
#: Longest sequences, in tokens, that are compared place by place and not sorted.
_FEW_PLACES = 64


class Contribution(ABC):
    """The gradients of one parameter for each of ``m`` records, in whatever form."""

    @abstractmethod
    def norms(self) -> Tensor:
        """Their l2 norms, ``m``; not finite where a gradient is not. Asked for once, and first."""

    @abstractmethod
    def add_to(self, total: Tensor, factors: Tensor) -> None:
        """Add the gradients times ``factors`` (``m``) to ``total``; a factor of 0 means nothing."""


class Gradients(Contribution):
    """Per-record gradients as tensors.

    Args:
        gradients: ``m x ...``; made finite once their norms are known.
        kind: In which type to clip and add up.
    """

    def __init__(self, gradients: Tensor, kind: torch.dtype) -> None:
        self._gradients, self._kind = gradients.flatten(1).contiguous(), kind
        self.width = self._gradients.shape[1]

    @classmethod
    def side_by_side(cls, several: Sequence[Gradients]) -> Gradients:
        """The gradients of several parameters as those of one."""
        return cls(torch.cat([each._gradients for each in several], dim=1), several[0]._kind)

    def norms(self) -> Tensor:
        found = []
        for part in self._gradients.split(max(1, CONVERTED // self.width)):
            found.append(torch.linalg.vector_norm(part, dim=1, dtype=self._kind))
            # While it is in the cache. The factor of what was not finite will be 0, and 0 times
            # infinity is NaN.
            part.nan_to_num_(0.0, 0.0, 0.0)
        return torch.cat(found)

    def add_to(self, total: Tensor, factors: Tensor) -> None:
        converted = self._gradients.dtype != self._kind
        columns = max(1, CONVERTED // len(factors)) if converted else self.width
        for part, sum_ in zip(
            self._gradients.split(columns, dim=1), total.view(-1).split(columns), strict=True
        ):
            sum_.addmv_(part.to(self._kind).mT, factors)


class Products(Contribution):
    """Per-record gradients ``sum_t g_t a_tᵀ`` of a linear map, as their factors (ghost clipping).

    Args:
        inputs: ``a``, ``m x T x d``.
        gradients: ``g``, ``m x T x p``.
        kind: In which type to clip and add up.
    """

    def __init__(self, inputs: Tensor, gradients: Tensor, kind: torch.dtype) -> None:
        self.inputs, self.gradients = inputs.to(kind), gradients.to(kind)

    def norms(self) -> Tensor:
        a, g = self.inputs, self.gradients
        if a.shape[1] == 1:
            return lengths(a[:, 0]).mul_(lengths(g[:, 0]))
        squares = torch.bmm(a, a.mT).mul_(torch.bmm(g, g.mT)).sum(dim=(1, 2))
        return squares.clamp_(min=0.0).sqrt_()

    def add_to(self, total: Tensor, factors: Tensor) -> None:
        clipped = (self.gradients * factors.view(-1, 1, 1)).nan_to_num_(0.0, 0.0, 0.0)
        finite = self.inputs.nan_to_num(0.0, 0.0, 0.0)
        total.view(clipped.shape[-1], -1).addmm_(clipped.flatten(0, 1).mT, finite.flatten(0, 1))


class Rows(Contribution):
    """Per-record gradients of an embedding; each record uses a few of its rows.

    What a record adds to a row is made first, so that places that cancel are clipped and added up
    as what is left of them.

    Args:
        tokens: The rows, ``m x T``.
        gradients: With respect to what was taken from them, ``m x T x d``.
        kind: In which type to clip and add up.
    """

    def __init__(self, tokens: Tensor, gradients: Tensor, kind: torch.dtype) -> None:
        if tokens.shape[1] <= _FEW_PLACES:  # a row is made at the first place of its token
            same = tokens.unsqueeze(2) == tokens.unsqueeze(1)
            first = same & ~same.tril(-1).any(dim=2, keepdim=True)
            rows = torch.bmm(first.to(gradients.dtype), gradients)
        else:
            ordered, order = tokens.sort(dim=1)
            changes = F.pad(ordered[:, 1:] != ordered[:, :-1], (1, 0)).cumsum(dim=1)
            places = torch.empty_like(changes).scatter_(1, order, changes)
            rows = torch.zeros_like(gradients).scatter_add_(
                1, places.unsqueeze(-1).expand_as(gradients), gradients
            )
            tokens = torch.zeros_like(tokens).scatter_(1, places, tokens)
        self._tokens, self._rows = tokens, rows.to(kind)

    def norms(self) -> Tensor:
        return torch.linalg.vector_norm(self._rows, dim=(1, 2))

    def add_to(self, total: Tensor, factors: Tensor) -> None:
        clipped = (self._rows * factors.view(-1, 1, 1)).nan_to_num_(0.0, 0.0, 0.0)
        total.index_add_(0, self._tokens.flatten(), clipped.flatten(0, 1))


def add_clipped(
    found: Sequence[Contribution],
    totals: Sequence[Tensor],
    counts: Tensor,
    clip_norm: float,
    stability: float,
) -> Tensor:
    """Clip each record's gradient over all parameters, and add the gradients up.

    Args:
        found: What the records add to each parameter.
        totals: Where it is added to, one tensor for each parameter.
        counts: How much each record counts, ``m``.
        clip_norm: The largest norm of a record's gradient.
        stability: As for :func:`.base.clip_factors`.

    Returns:
        How many of the records that count have a finite gradient.
    """
    pairs = list(zip(found, totals, strict=True))
    few = [(g, total) for g, total in pairs if isinstance(g, Gradients) and g.width <= _FEW]
    sums = totals[0].new_zeros(sum(g.width for g, _ in few))
    if few:
        pairs = [
            (g, total) for g, total in pairs if not (isinstance(g, Gradients) and g.width <= _FEW)
        ]
        pairs.append((Gradients.side_by_side([g for g, _ in few]), sums))
    norms = torch.stack([each.norms() for each, _ in pairs])
    factors = clip_factors(torch.linalg.vector_norm(norms, dim=0), clip_norm, stability)
    factors.mul_(counts)
    for each, total in pairs:
        each.add_to(total, factors)
    for sum_, (_, total) in zip(sums.split([g.width for g, _ in few]), few, strict=True):
        total.view(-1).add_(sum_)
    return factors.count_nonzero()
