"""The fused engine: exact clipping in one backward pass, for stacks of linear layers.

For a linear layer with input ``a`` and gradient ``g`` with respect to its output, the gradient of
one record is the outer product ``g aᵀ``, whose norm is ``‖g‖ ‖a‖`` [Goodfellow2015]. So the norm
over all layers is ``sqrt(Σ ‖g_l‖² (‖a_l‖² + 1))`` (the 1 is the bias), and the sum of the clipped
gradients is ``Σ_i c_i g_i a_iᵀ = (c ∘ G)ᵀ A``: one backward pass to the layers' outputs, and one
product per layer that plain SGD needs as well. No gradient of a single record is ever formed. All
replicates take part in the same batched products.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn

from botorch_dp.training.engines.base import (
    Batches,
    ClippedSums,
    Engine,
    clip_factors,
    parameter_views,
    trainable,
)
from botorch_dp.training.inputs import Inputs
from botorch_dp.training.plain_layers import has_hooks
from botorch_dp.training.records import TrainingRecords, lengths

#: Activations that act on each number alone and have no parameters.
ELEMENTWISE = (
    nn.CELU,
    nn.ELU,
    nn.GELU,
    nn.Hardsigmoid,
    nn.Hardswish,
    nn.Hardtanh,
    nn.Identity,
    nn.LeakyReLU,
    nn.LogSigmoid,
    nn.Mish,
    nn.ReLU,
    nn.ReLU6,
    nn.SELU,
    nn.SiLU,
    nn.Sigmoid,
    nn.Softplus,
    nn.Softsign,
    nn.Tanh,
)

#: Numbers of a part of a batch, which should stay in the cache.
_CACHED = 2**20


@dataclass(frozen=True)
class _Linear:
    """One linear layer of all replicates.

    Args:
        weight: ``R x out x in``.
        bias: ``R x out`` or None.
        weight_sum: Where the sum of clipped gradients goes, or None if the weight is frozen.
        bias_sum: The same for the bias.
    """

    weight: Tensor
    bias: Tensor | None
    weight_sum: Tensor | None
    bias_sum: Tensor | None

    @property
    def trains(self) -> bool:
        return self.weight_sum is not None or self.bias_sum is not None

    def __call__(self, inputs: Tensor) -> Tensor:
        """``R x m x in -> R x m x out``."""
        weight, bias = self.weight, self.bias
        if weight.shape[1] == 1:  # a row times many columns is faster than many rows times one
            if bias is None:
                return torch.bmm(weight, inputs.mT).mT
            return torch.baddbmm(bias.unsqueeze(2), weight, inputs.mT).mT
        if bias is None:
            return torch.bmm(inputs, weight.mT)
        return torch.baddbmm(bias.unsqueeze(1), inputs, weight.mT)

    def gradient_scale(self, norms: Tensor) -> Tensor:
        """``sqrt(‖a‖² + 1)`` over what trains here: the gradient's norm is this times ``‖g‖``.

        Args:
            norms: ``‖a‖``, of any shape.
        """
        if self.weight_sum is None:
            return torch.ones_like(norms)
        return norms if self.bias_sum is None else torch.hypot(norms, norms.new_ones(()))


class FusedEngine(Engine):
    """Sums of clipped gradients of many replicates of a stack of linear layers.

    Arguments as for :class:`.base.Engine`.
    """

    calls_model = False

    @classmethod
    def why_not(cls, model: nn.Module, X: Inputs, *, one_by_one: bool = False) -> str | None:
        if one_by_one:
            return "records of a data set are read one by one; pass tensors"
        if isinstance(X, dict):
            return "its inputs are several tensors"
        layers = _flat_layers(model)
        if layers and type(layers[0]) is nn.Flatten:
            if (layers[0].start_dim, layers[0].end_dim) != (1, -1):
                return "it flattens other dimensions than those of one record"
            layers = layers[1:]
        elif X.dim() != 2:
            return f"inputs of shape {tuple(X.shape)} need nn.Flatten() as the first layer"
        for layer in layers:
            kind = type(layer).__name__
            if type(layer) is not nn.Linear and type(layer) not in ELEMENTWISE:
                return f"{kind} is neither a linear layer nor an elementwise activation"
            if has_hooks(layer) or "forward" in vars(layer):
                return f"a hook is registered on {kind}"
        linear = [layer for layer in layers if type(layer) is nn.Linear]
        tensors = [parameter for layer in linear for parameter in layer.parameters()]
        if len({id(tensor) for tensor in tensors}) < len(tensors):
            return "two layers share a parameter"
        if any(tensor.dtype != X.dtype for tensor in tensors):
            return f"its parameters are not of the inputs' type, {X.dtype}"
        if X.dtype not in (torch.float32, torch.float64):
            return f"inputs of type {X.dtype} are neither float32 nor float64"
        return None

    def _prepare(self, models: Sequence[nn.Module]) -> None:
        assert isinstance(self._records, TrainingRecords)
        self._tensors = self._records
        self._gathered = self._parameters.new_empty(0)
        self._layers = self._stack_layers(models)
        first = next(i for i, x in enumerate(self._layers) if isinstance(x, _Linear) and x.trains)
        self._frozen, self._active = self._layers[:first], self._layers[first:]
        shapes = [layer.weight.shape for layer in self._layers if isinstance(layer, _Linear)]
        numbers = sum(inputs + outputs for _, outputs, inputs in shapes)  # of a record
        cached = _CACHED // (len(models) * (2 if self._precise else 1))
        # Adding a part to the sums takes as long as their size; it must not be what takes the time.
        self._at_once = max(256, cached // numbers, 8 * self._parameters.shape[1] // numbers)

    def clipped_sums(self, batches: Batches, clip_norm: float) -> ClippedSums:
        places, weights = batches
        size, kept = places.shape[1], torch.zeros((), dtype=torch.long, device=places.device)
        # A batch that is larger than the cache is taken in parts.
        at_once = self._at_once if size > 1.5 * self._at_once else max(1, size)
        for start in range(0, max(1, size), at_once):
            part = slice(start, start + at_once)
            counting = None if weights is None else weights[:, part]
            kept += self._add_clipped(places[:, part], counting, clip_norm, begin=start == 0)
        return ClippedSums(self._sums, kept)

    def _add_clipped(
        self, places: Tensor, weights: Tensor | None, clip_norm: float, *, begin: bool
    ) -> Tensor:
        """Add the clipped gradients to the sums, or begin these; returns how many were kept."""
        layers, layer_inputs, gradients = self._backward(*self._gather(places))
        scales = self._scales.index_select(0, places.flatten()).view_as(places)
        norms = []
        for position, (layer, a, g) in enumerate(zip(layers, layer_inputs, gradients, strict=True)):
            norm = lengths(g)
            if position == 0:
                norm.mul_(scales)
            if position > 0 or self._frozen:
                norm.mul_(layer.gradient_scale(lengths(a)))
            norms.append(norm)
        total = norms[0] if len(norms) == 1 else torch.linalg.vector_norm(torch.stack(norms), dim=0)
        factors = clip_factors(total, clip_norm, self._stability)
        if weights is not None:
            factors.mul_(weights)
        kept = factors.count_nonzero()
        factors = factors.unsqueeze(-1)

        for layer, a, g in zip(layers, layer_inputs, gradients, strict=True):
            # A factor of 0 stands for a gradient that is not finite: 0 times infinity is NaN.
            clipped = g.mul_(factors).nan_to_num_(0.0, 0.0, 0.0)
            if layer.weight_sum is not None:  # with beta = 0, what stands there does not count
                layer.weight_sum.baddbmm_(clipped.mT, a, beta=0 if begin else 1)
            if layer.bias_sum is not None and begin:
                torch.sum(clipped, dim=1, out=layer.bias_sum)
            elif layer.bias_sum is not None:
                layer.bias_sum.add_(clipped.sum(1))
        return kept

    def _backward(
        self, inputs: Tensor, targets: Tensor
    ) -> tuple[list[_Linear], list[Tensor], list[Tensor]]:
        """Layers that train, their inputs (finite) and the gradients at their outputs.

        Inputs and gradients are ``R x m x width``, in the type to clip in; the gradients may be
        changed.
        """
        hidden = inputs
        if self._frozen:
            with torch.no_grad():
                for layer in self._frozen:
                    hidden = layer(hidden)
        layers: list[_Linear] = []
        layer_inputs: list[Tensor] = []
        layer_outputs: list[Tensor] = []
        alone = len(self._active) == 1  # then nothing has to go back
        with nullcontext() if alone else torch.enable_grad():
            for layer in self._active:
                if isinstance(layer, _Linear) and layer.trains:
                    layers.append(layer)
                    layer_inputs.append(hidden.detach())
                    hidden = layer(hidden)
                    if not layer_outputs and not alone:
                        hidden.requires_grad_()
                    layer_outputs.append(hidden)
                else:
                    hidden = layer(hidden)
        last = self._output_gradient(hidden.flatten(0, 1), targets)
        last = last.contiguous().view_as(hidden)
        if alone:
            gradients: Sequence[Tensor] = [last]
        else:
            gradients = torch.autograd.grad(hidden, layer_outputs, last)
        finite = [
            a if position == 0 and not self._frozen else a.nan_to_num_(0.0, 0.0, 0.0)
            for position, a in enumerate(layer_inputs)
        ]
        return (
            layers,
            [a.to(self._type) for a in finite],
            [g.to(self._type) for g in gradients],
        )

    @cached_property
    def _X(self) -> Tensor:
        assert isinstance(self._tensors.X, Tensor)
        return self._tensors.X.flatten(1)

    def _gather(self, places: Tensor) -> tuple[Tensor, Tensor]:
        """Inputs and targets of places, ``R x k``, as blocks of ``R x m x width`` and ``R m``.

        The inputs are in memory that the next call uses again, whatever its size.
        """
        indices, width = places.flatten(), self._X.shape[1]
        rows = indices.shape[0]
        if self._gathered.shape[0] < rows:
            self._gathered = self._X.new_empty(rows, width)
        inputs = torch.index_select(self._X, 0, indices, out=self._gathered[:rows])
        targets = self._tensors.Y.index_select(0, indices)
        return inputs.view(*places.shape, width), targets

    @cached_property
    def _scales(self) -> Tensor:
        """The norm of each record's input to the first layer, with the 1 of the bias, ``n``.

        That of an unusable record is NaN, which makes its clipping factor 0, as that of rows that
        fill a block up.
        """
        scales = torch.ones_like(self._tensors.usable, dtype=torch.float64)
        if not self._frozen:
            first = self._active[0]
            assert isinstance(first, _Linear)
            scales = first.gradient_scale(self._tensors.input_lengths)
        return torch.where(self._tensors.usable, scales, torch.nan).to(self._type)

    def _stack_layers(self, models: Sequence[nn.Module]) -> list[_Linear | nn.Module]:
        model = models[0]
        values = dict(
            zip(map(id, trainable(model)), parameter_views(self._parameters, model), strict=True)
        )
        sums = dict(zip(map(id, trainable(model)), parameter_views(self._sums, model), strict=True))
        every_layer = zip(*(_flat_layers(replicate) for replicate in models), strict=True)
        layers: list[_Linear | nn.Module] = []
        for copies in every_layer:
            layer = copies[0]
            if type(layer) is nn.Linear:
                weight = values.get(id(layer.weight))
                if weight is None:
                    weight = torch.stack([each.weight.detach() for each in copies])
                bias = values.get(id(layer.bias))
                if bias is None and layer.bias is not None:
                    bias = torch.stack([each.bias.detach() for each in copies])
                found = sums.get(id(layer.weight)), sums.get(id(layer.bias))
                layers.append(_Linear(weight, bias, *found))
            elif type(layer) is not nn.Flatten:
                activation = copy.deepcopy(layer)
                if hasattr(activation, "inplace"):
                    # The layer's output is needed again on the way back.
                    activation.inplace = False
                layers.append(activation)
        return layers


def _flat_layers(model: nn.Module) -> list[nn.Module]:
    """The layers of nested ``nn.Sequential`` models in order; another model is one layer."""
    if type(model) is not nn.Sequential or has_hooks(model) or "forward" in vars(model):
        return [model]
    return [layer for child in model for layer in _flat_layers(child)]
