"""The per-record engine: gradients of single records by ``vmap``, for any model.

Clipping bounds what one record does to the sum of gradients only if a record's gradient depends on
that record alone. Here that is so by construction: a model is called on one record at a time, as a
batch of one, and :func:`torch.func.vmap` makes the many calls one computation. Whatever a model
does with its batch (a mean over it, a recurrence along the wrong dimension), there is no other
record in it. What a model does to its buffers is forgotten. What construction cannot exclude,
:mod:`..isolation` tries.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn
from torch.func import grad, vmap

from botorch_dp.training.calls import SingleCall, vectorized_calls
from botorch_dp.training.engines.base import Batches, ClippedSums, Engine, parameter_views
from botorch_dp.training.engines.contributions import Contribution, Gradients, add_clipped
from botorch_dp.training.inputs import Inputs
from botorch_dp.training.plain_layers import with_plain_layers
from botorch_dp.training.randomness import seeded_torch

#: Batches are processed in parts, for which clipping takes at most this many numbers.
MAX_GRADIENT_NUMBERS = 2**27


def numbers_of_gradient(parameter: Tensor) -> int:
    """How many numbers one record's gradient takes at most while it is formed.

    A matrix and its gradient; kernels of convolutions have copies of both in other orders, filled
    up to whole blocks of channels (measured: 2.3 to 5.5 times the gradient).
    """
    return (6 if parameter.dim() > 2 else 2) * parameter.numel()


class PerRecordEngine(Engine):
    """Sums of clipped gradients of single records, for any model that takes a batch of one.

    Replicates are trained one after the other. Arguments as for :class:`.base.Engine`.
    """

    def _prepare(self, models: Sequence[nn.Module]) -> None:
        #: The columns of each trained tensor, for all replicates: making views takes time.
        self._trained, self._totals = (
            parameter_views(matrix, models[0]) for matrix in (self._parameters, self._sums)
        )
        #: Numbers that clipping takes for each record of a batch, beside those of plain training.
        self.record_numbers = sum(numbers_of_gradient(rows[0]) for rows in self._trained)
        self._model = self._plain(copy.deepcopy(models[0]))
        self._call = SingleCall(self._model)
        self._names = [name for name, p in models[0].named_parameters() if p.requires_grad]
        self._frozen = [
            {
                name: value.detach().clone()
                for named in (model.named_parameters(), model.named_buffers())
                for name, value in named
                if name not in self._names
            }
            for model in models
        ]
        self._gradients = vmap(
            grad(self._loss_of_one), in_dims=(None, None, 0, 0), randomness="different"
        )

    def _plain(self, model: nn.Module) -> nn.Module:
        """The model as it is called, changed in place."""
        return with_plain_layers(model)

    def clipped_sums(self, batches: Batches, clip_norm: float) -> ClippedSums:
        self._sums.zero_()
        kept = torch.zeros((), dtype=torch.long, device=self._sums.device)
        largest = max(1, MAX_GRADIENT_NUMBERS // self.record_numbers)
        for replicate, batch in enumerate(batches.places):
            for start in range(0, len(batch), largest):
                part = slice(start, start + largest)
                weights = None if batches.weights is None else batches.weights[replicate, part]
                kept += self._add_clipped(replicate, batch[part], weights, clip_norm)
        return ClippedSums(self._sums, kept)

    def _add_clipped(
        self, replicate: int, places: Tensor, weights: Tensor | None, clip_norm: float
    ) -> Tensor:
        found, counts = self._found(replicate, places)
        if weights is not None:
            counts = counts * weights
        totals = [total[replicate] for total in self._totals]
        return add_clipped(found, totals, counts, clip_norm, self._stability)

    def _found(self, replicate: int, places: Tensor) -> tuple[Sequence[Contribution], Tensor]:
        """Per-record gradients of each parameter, and which records count."""
        seed = None
        seeded: AbstractContextManager[None] = nullcontext()
        if self._forward_seeds is not None:
            seed = self._forward_seeds[replicate].torch_seed()
            seeded = seeded_torch(seed)
        X, Y, usable = self._records.take(places, seed)
        values, frozen = self._values(replicate)
        with seeded, torch.enable_grad(), vectorized_calls():
            return self._contributions(values, frozen, X, Y), usable

    def _values(self, replicate: int) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """The trained tensors of a replicate, and the frozen ones."""
        named = zip(self._names, self._trained, strict=True)
        values = {name: rows[replicate] for name, rows in named}
        # A model may write to its buffers, as far as that depends on no record: not to ours.
        return values, {name: value.clone() for name, value in self._frozen[replicate].items()}

    def _contributions(
        self, values: dict[str, Tensor], frozen: dict[str, Tensor], X: Inputs, Y: Tensor
    ) -> Sequence[Contribution]:
        """Per-record gradients of each parameter."""
        found = self._gradients(values, frozen, X, Y)
        return [Gradients(found[name].detach(), self._type) for name in self._names]

    def _loss_of_one(
        self, values: dict[str, Tensor], frozen: dict[str, Tensor], x: Inputs, y: Tensor
    ) -> Tensor:
        outputs = self._call(x, values, frozen)
        # Some losses raise at outputs that are not finite; their gradient is none in either case.
        return self._loss(outputs.nan_to_num(0.0, 0.0, 0.0), y.unsqueeze(0)).sum()
