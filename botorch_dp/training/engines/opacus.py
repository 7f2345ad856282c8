"""The Opacus engine: per-record gradients by Opacus's hooks, with our batches, clipping, noise.

Opacus calls a model on a whole batch, and finds each record's gradient from what enters and leaves
the layers, by a rule for each kind of layer. What one record does to the others in the batch
escapes these rules, so records are apart only as far as the model keeps them apart: that is tried
on made-up records at the start and before a model is published (:mod:`..isolation`), and not
enforced, as it is by the engines that call a model on one record at a time. Clipping and the sum
are ours: in double precision where the result is published, and a gradient that is not finite
counts as zero.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import torch
from opacus.grad_sample import GradSampleModule, compute_embedding_grad_sample
from opacus.layers import DPGRU, DPLSTM, DPRNN
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

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

    disagreement = (
        "on made-up records, its hooks fail or find other gradients than those of single records"
    )
    condition = (
        "Opacus computed the gradients of single records on whole batches, and your model keeps "
        "the records of a batch apart: this was tried on made-up records before and after "
        "training, but not enforced"
    )

    @classmethod
    def why_not(cls, model: nn.Module, X: Inputs, *, one_by_one: bool = False) -> str | None:
        for name, layer in model.named_modules():
            if isinstance(layer, nn.RNNBase) and any(p.requires_grad for p in layer.parameters()):
                kind = type(layer).__name__
                return (
                    f"{name or 'it'} is an nn.{kind}, whose steps its hooks do not see (replace it "
                    f"by opacus.layers.DP{kind})"
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
                return f"{name} changes its table or its gradients by what is in a batch"
        return _UsesOutsideHooks(model).found(X)

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


class _UsesOutsideHooks(TorchFunctionMode):
    """Finds parameters that a model uses outside of the layers whose hooks see them."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self._model = model
        self._reason: str | None = None
        self._active: list[nn.Module] = []
        self._layers = dict(_layers("", model))
        self._owned = {
            id(layer): {id(p) for p in layer.parameters()} for layer in self._layers.values()
        }
        self._trained = {id(p): name for name, p in model.named_parameters() if p.requires_grad}

    def found(self, X: Inputs) -> str | None:
        """What Opacus does not see when the model is called on some records."""
        with ExitStack() as stack:
            for name, layer in self._layers.items():
                enter, leave = self._enter(name), self._leave
                stack.callback(
                    layer.register_forward_pre_hook(enter, with_kwargs=True, prepend=True).remove
                )
                stack.callback(layer.register_forward_hook(leave, always_call=True).remove)
            stack.enter_context(torch.no_grad())
            stack.enter_context(self)
            call(self._model, X)
        return self._reason

    def _enter(self, name: str) -> Any:
        def hook(layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            self._active.append(layer)
            if type(layer) is not nn.EmbeddingBag and (kwargs or len(args) > 1):
                what = f"{name} ({type(layer).__name__})" if name else type(layer).__name__
                self._reason = (
                    f"{what} takes a second input or one by name, and Opacus keeps a layer's first "
                    "input only"
                )

        return hook

    def _leave(self, layer: nn.Module, *_: Any) -> None:
        self._active.pop()

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        output = func(*args, **kwargs)
        outputs = output if isinstance(output, tuple | list) else (output,)
        if any(isinstance(each, Tensor) for each in outputs):
            owned = {each for layer in self._active for each in self._owned[id(layer)]}
            for value in (*args, *kwargs.values()):
                name = self._trained.get(id(value)) if isinstance(value, nn.Parameter) else None
                if name is not None and id(value) not in owned:
                    self._reason = f"{name} is used outside of its layer, where Opacus has no hook"
        return output


def _layers(name: str, module: nn.Module) -> list[tuple[str, nn.Module]]:
    """The layers that Opacus hooks into: those with trained parameters of their own."""
    if type(module) not in (DPLSTM, DPGRU, DPRNN) and any(
        parameter.requires_grad for parameter in module.parameters(recurse=False)
    ):
        return [(name, module)]
    found = []
    for child_name, child in module.named_children():
        found += _layers(f"{name}.{child_name}".lstrip("."), child)
    return found
