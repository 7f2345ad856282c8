"""What the two training engines share: how gradients are clipped and where parameters live.

An engine trains any number of *replicates*: models of one shape with different parameters. All
trainable parameters of a replicate lie in one row of a matrix, in the order of
``model.parameters()``, so that noise and the optimizer's step are written once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Engine(Protocol):
    """Computes sums of clipped per-example gradients for all replicates at once."""

    parameters: Tensor
    """Trainable parameters, ``R x p``; whoever changes them in place changes the models."""
    kept: Tensor
    """How many gradients were finite so far, of all places in all lots. Sensitive."""

    def clipped_sums(self, lots: Tensor, filled: Tensor | None, clip_norm: float) -> Tensor:
        """The sums of clipped gradients over one lot for each replicate.

        Args:
            lots: Indices of records, ``R x m``.
            filled: Which places of the lots are filled (1) and which are empty (0), ``R x m``;
                None if all are filled.
            clip_norm: The largest l2 norm of a record's gradient over all parameters.

        Returns:
            ``R x p``; the caller may change it, and the next call overwrites it.
        """

    def finished_models(self) -> list[nn.Module]:
        """The replicates as ordinary modules in evaluation mode."""


def trainable(model: nn.Module) -> list[nn.Parameter]:
    """The parameters that training changes, in the order of ``model.parameters()``."""
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def stack_parameters(models: Sequence[nn.Module]) -> Tensor:
    """The trainable parameters of all replicates, ``R x p``."""
    rows = [torch.cat([p.detach().flatten() for p in trainable(model)]) for model in models]
    return torch.stack(rows)


def parameter_views(matrix: Tensor, model: nn.Module) -> list[Tensor]:
    """The columns of ``matrix`` (``R x p``) as ``R x shape`` views, one for each parameter."""
    shapes = [parameter.shape for parameter in trainable(model)]
    columns = matrix.split([shape.numel() for shape in shapes], dim=1)
    return [
        column.view(matrix.shape[0], *shape) for column, shape in zip(columns, shapes, strict=True)
    ]


def clip_factors(norms: Tensor, clip_norm: float) -> Tensor:
    """``min(1, clip_norm / norm)``, and 0 where the norm is not finite or out of all proportion.

    The same operations whatever the norms are: a record can neither raise an error nor change the
    time. What is multiplied with a factor of 0 must be made finite by the caller.
    """
    factors = norms.reciprocal().mul_(clip_norm).clamp_(max=1.0).nan_to_num_(nan=0.0)
    # A subnormal factor has lost its digits and could exceed the quotient that it stands for.
    return F.threshold(factors, torch.finfo(factors.dtype).tiny, 0.0, inplace=True)
