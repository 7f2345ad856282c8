"""The Opacus engine: per-record gradients by Opacus's hooks, with our batches, clipping, noise.

Opacus calls a model on a whole batch, and finds each record's gradient from what enters and leaves
the layers, by a rule for each kind of layer. What one record does to the others in the batch
escapes these rules, so records are apart only as far as the model keeps them apart: that is tried
on synthetic records at the start and before a model is published (:mod:`..isolation`), and not
enforced, as it is by the engines that call a model on one record at a time. Clipping and the sum
are ours: in double precision where the result is published, and a gradient that is not finite
counts as zero.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import torch
from opacus.grad_sample import GradSampleModule, compute_embedding_grad_sample
from torch import Tensor, nn

from botorch_dp.training.calls import call
from botorch_dp.training.engines.contributions import Contribution, Gradients
from botorch_dp.training.engines.per_record import PerRecordEngine
from botorch_dp.training.inputs import Inputs
from botorch_dp.training.plain_layers import (
    Embedding,
    with_constant_normalization,
    without_token_errors,
)


class OpacusEngine(PerRecordEngine):
    """Sums of clipped gradients, which ``opacus.GradSampleModule`` computes.

    Arguments as for :class:`.base.Engine`.
    """

    disagreement = "on synthetic records its per-sample gradients fail or are wrong"
    condition = (
        "Opacus computed the gradients of single records on whole batches, and your model keeps "
        "the records of a batch apart: this was tried on synthetic records before and after "
        "training, but not enforced"
    )

    @classmethod
    def why_not(cls, model: nn.Module, X: Inputs, *, one_by_one: bool = False) -> str | None:
        for name, layer in model.named_modules():
            if isinstance(layer, nn.RNNBase) and any(p.requires_grad for p in layer.parameters()):
                kind = type(layer).__name__
                return (
                    f"{name or 'it'} is an nn.{kind}, for which its per-sample gradients are "
                    f"wrong (use opacus.layers.DP{kind})"
                )
            if getattr(layer, "padding_mode", "zeros") != "zeros":
                return (
                    f"{name} pads in mode {layer.padding_mode!r}, and Opacus's rule for "
                    "convolutions pads with zeros"
                )
            padded = (
                isinstance(layer, nn.Embedding | nn.EmbeddingBag) and layer.padding_idx is not None
            )
            if padded and layer.weight.requires_grad:
                return f"{name} has a padding_idx, whose row Opacus trains like any other"
            if isinstance(layer, nn.Embedding) and (layer.max_norm or layer.scale_grad_by_freq):
                return (
                    f"{name} changes its weights or gradients depending on the batch "
                    "(max_norm, scale_grad_by_freq)"
                )
        return None

    def _plain(self, model: nn.Module) -> nn.Module:
        return with_hooks(model, loss_reduction="sum")

    def _contributions(
        self, values: dict[str, Tensor], frozen: dict[str, Tensor], X: Inputs, Y: Tensor
    ) -> Sequence[Contribution]:
        model = self._model._module
        assert isinstance(model, nn.Module)
        tensors: dict[str, Any] = {**dict(model.named_parameters()), **dict(model.named_buffers())}
        for name, value in (*values.items(), *frozen.items()):
            tensors[name].data = value
        trained = [tensors[name] for name in self._names]
        for parameter in trained:
            parameter.grad = parameter.grad_sample = None
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Full backward hook is firing")
            outputs = call(self._model, X)
            if outputs.requires_grad:
                outputs.backward(self._output_gradient(outputs, Y))
        return [Gradients(rows_of(parameter, len(Y)), self._type) for parameter in trained]


def with_hooks(model: nn.Module, *, loss_reduction: str) -> GradSampleModule:
    """The model, in training mode and with the hooks of Opacus, changed in place.

    Args:
        model: A model without them.
        loss_reduction: Whether gradients are of the ``"sum"`` of a batch's losses or their
            ``"mean"``.
    """
    # Opacus finds rules by the exact type of a layer.
    GradSampleModule.GRAD_SAMPLERS.setdefault(Embedding, _of_table)
    model = with_constant_normalization(without_token_errors(model)).train()
    return GradSampleModule(model, loss_reduction=loss_reduction, strict=False)


def rows_of(parameter: Any, size: int) -> Tensor:
    """One gradient for each record of a batch; zeros where the parameter was not used."""
    rows = parameter.grad_sample
    if rows is None:
        return torch.zeros((size, *parameter.shape), dtype=parameter.dtype, device=parameter.device)
    if not isinstance(rows, Tensor) or rows.shape != (size, *parameter.shape):
        raise ValueError("Opacus found no gradient for each record of a batch.")
    return rows.detach()


def _of_table(layer: nn.Embedding, inputs: list[Tensor], slopes: Tensor) -> dict[Any, Tensor]:
    """Opacus's rule; the slopes of tokens that do not exist are not finite."""
    tokens = inputs[0]
    exists = (tokens >= 0) & (tokens < layer.num_embeddings)
    found = compute_embedding_grad_sample(layer, [torch.where(exists, tokens, 0)], slopes)
    lost = ~exists.flatten(1).all(dim=1)
    return {key: _poisoned(rows, lost) for key, rows in found.items()}


def _poisoned(rows: Tensor, lost: Tensor) -> Tensor:
    return rows + torch.where(lost, torch.nan, 0.0).to(rows.dtype).view(-1, *[1] * (rows.dim() - 1))
