"""The interface of engines, and what they share: stacked parameters and clipping factors.

A training has any number of *replicates*: models of one shape with different parameters. All
trainable parameters of a replicate lie in one row of a matrix, in the order of
``model.parameters()``, so that noise and the optimizer's step are written once. The matrix belongs
to the :class:`~.run.TrainingRun`; an engine reads it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from botorch_dp.training.inputs import Inputs
from botorch_dp.training.networks import Loss
from botorch_dp.training.output_gradients import OutputGradient
from botorch_dp.training.randomness import Randomness
from botorch_dp.training.records import Records


class Batches(NamedTuple):
    """One batch for each of ``R`` replicates."""

    places: Tensor
    """Indices of records, ``R x m``."""
    weights: Tensor | None = None
    """What each place counts, ``R x m``: 0 if empty, 1 / k for one of a person's k records, else 1;
    None if all count 1."""


class ClippedSums(NamedTuple):
    """What an engine computes for one batch of each replicate."""

    sums: Tensor
    """Sums of clipped gradients, ``R x p``. The caller may change them; the next call does."""
    kept: Tensor
    """How many gradients were finite, without dimensions. Sensitive."""


class Engine(ABC):
    """Computes sums of clipped gradients of single records, for all replicates.

    An engine copies what is not trained from the models it is made from, and keeps none of them.

    Args:
        models: One for each replicate, in training mode.
        parameters: Their trainable parameters, ``R x p``, as :func:`stack_parameters` orders them.
            Whoever owns this matrix changes it in place; the engine only reads it.
        records: The training data.
        loss: Takes the outputs and targets of a batch of one, or has a known gradient.
        precise: Whether to clip and add up in double precision.
        stability: Positive to normalize gradients; see :func:`clip_factors`.
        forward_seeds: One source of seeds for each replicate if the model draws random numbers
            in training; None if it does not.
    """

    #: Whether the model is called at all; an engine that does not computes its layers itself.
    calls_model: ClassVar[bool] = True
    #: Why the sums were other ones than those of ``per_record``, with which they are compared on
    #: synthetic records before the engine is chosen. Empty if there is nothing to compare.
    disagreement: ClassVar[str] = ""
    #: What an engine that calls the model on whole batches adds to the conditions of a guarantee.
    #: Its sums are compared again at the final weights.
    condition: ClassVar[str] = ""

    def __init__(
        self,
        models: Sequence[nn.Module],
        parameters: Tensor,
        records: Records,
        loss: Loss,
        *,
        precise: bool,
        stability: float = 0.0,
        forward_seeds: Sequence[Randomness] | None = None,
    ) -> None:
        self._parameters, self._records, self._loss = parameters, records, loss
        self._output_gradient = OutputGradient(loss)
        self._precise, self._stability, self._forward_seeds = precise, stability, forward_seeds
        self._type = torch.float64 if precise else parameters.dtype
        self._sums = torch.empty_like(parameters, dtype=self._type)
        self._prepare(models)

    @abstractmethod
    def _prepare(self, models: Sequence[nn.Module]) -> None:
        """Copy what is needed of the models."""

    @classmethod
    def why_not(cls, model: nn.Module, X: Inputs, *, one_by_one: bool = False) -> str | None:
        """Why the engine cannot train a model, or None as far as is known.

        Args:
            model: A copy in training mode.
            X: Synthetic inputs in the form of the records.
            one_by_one: Whether records are read one by one from a data set.
        """
        return None

    @abstractmethod
    def clipped_sums(self, batches: Batches, clip_norm: float) -> ClippedSums:
        """The weighted sums over one batch for each replicate.

        Args:
            batches: One for each replicate.
            clip_norm: The largest l2 norm of a record's gradient over all parameters.
        """


def trainable(model: nn.Module) -> list[nn.Parameter]:
    """The parameters that training changes, in the order of ``model.parameters()``."""
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def stack_parameters(models: Sequence[nn.Module]) -> Tensor:
    """A copy of the trainable parameters of all replicates, ``R x p``."""
    rows = [torch.cat([p.detach().flatten() for p in trainable(model)]) for model in models]
    return torch.stack(rows)


def parameter_views(matrix: Tensor, model: nn.Module) -> list[Tensor]:
    """The columns of ``matrix`` (``R x p``) as ``R x shape`` views, one for each parameter."""
    shapes = [parameter.shape for parameter in trainable(model)]
    columns = matrix.split([shape.numel() for shape in shapes], dim=1)
    return [
        column.view(matrix.shape[0], *shape) for column, shape in zip(columns, shapes, strict=True)
    ]


def clip_factors(norms: Tensor, clip_norm: float, stability: float = 0.0) -> Tensor:
    """Clipping factors of gradients of these norms.

    ``min(1, C / norm)``; or, with a positive ``stability`` ``s``, the normalized ``C / (norm + s)``
    of [Bu2023], under which a gradient's norm becomes ``C norm / (norm + s) < C``. 0 where the norm
    is not finite or out of all proportion.

    The same operations whatever the norms are: a record can neither raise an error nor change the
    time. What is multiplied with a factor of 0 must be made finite by the caller.
    """
    if stability:
        factors = (norms + stability).reciprocal_().mul_(clip_norm).nan_to_num_(nan=0.0)
    else:
        factors = norms.reciprocal().mul_(clip_norm).clamp_(max=1.0).nan_to_num_(nan=0.0)
    # A subnormal factor has lost its digits and could exceed the quotient that it stands for.
    return torch.threshold_(factors, torch.finfo(factors.dtype).tiny, 0.0)
