"""Attention, recurrent layers and embeddings of torch, written in plain tensor operations.

The engines call a model on one record at a time, vectorized, and look at the linear maps in it.
Torch computes some layers by one compiled kernel, which cannot be vectorized fast, or at all, and
hides the linear maps. The layers here compute the same with the same parameters, in operations that
:func:`torch.func.vmap` knows. The recurrent layers of Opacus are plain already, but map the inputs
of a sequence one by one; one map of all of them is faster.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import handle_torch_function, has_torch_function

State = tuple[Tensor, ...]


def has_hooks(module: nn.Module) -> bool:
    """Whether something else happens when a module is called."""
    return bool(
        module._forward_hooks
        or module._forward_pre_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
    )


class Embedding(nn.Embedding):
    """An embedding whose rows for tokens that do not exist are NaN, not an error."""

    def forward(self, tokens: Tensor) -> Tensor:
        """As of ``nn.Embedding``."""
        exists = (tokens >= 0) & (tokens < self.num_embeddings)
        rows = super().forward(torch.where(exists, tokens, 0))
        absent = torch.where(exists, 0.0, torch.nan).to(rows.dtype)
        return rows + absent.unsqueeze(-1)


class _Attention(nn.MultiheadAttention):
    """Attention in plain products."""

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """As of ``nn.MultiheadAttention``."""
        plain = self._qkv_same_embed_dim and self.bias_k is None and not self.add_zero_attn
        if not plain or query.dim() != 3 or (is_causal and attn_mask is None):
            return super().forward(
                query,
                key,
                value,
                key_padding_mask,
                need_weights,
                attn_mask,
                average_attn_weights,
                is_causal,
            )
        heads = self.num_heads
        projected: dict[int, tuple[Tensor, ...]] = {}
        for inputs in (query, key, value):  # most often the same one
            if id(inputs) not in projected:
                maps = F.linear(inputs, self.in_proj_weight, self.in_proj_bias)
                maps = maps if self.batch_first else maps.transpose(0, 1)
                split = maps.unflatten(-1, (3, heads, self.head_dim)).unbind(-3)
                projected[id(inputs)] = tuple(part.transpose(1, 2) for part in split)
        q, k, v = (projected[id(each)][i] for i, each in enumerate((query, key, value)))
        scores = q @ k.mT * self.head_dim**-0.5  # b x heads x l x s
        if attn_mask is not None:
            per_head = attn_mask.dim() == 3
            scores = _masked(scores, attn_mask.unflatten(0, (-1, heads)) if per_head else attn_mask)
        if key_padding_mask is not None:
            scores = _masked(scores, key_padding_mask[:, None, None, :])
        weights = F.dropout(scores.softmax(dim=-1), self.dropout, self.training)
        attended = (weights @ v).transpose(1, 2).flatten(2)
        outputs = F.linear(attended, self.out_proj.weight, self.out_proj.bias)
        shown = weights.mean(dim=1) if average_attn_weights else weights
        return outputs if self.batch_first else outputs.transpose(0, 1), (
            shown if need_weights else None
        )


def _masked(scores: Tensor, mask: Tensor) -> Tensor:
    """Scores with a mask of what does not count, or of what is added."""
    return scores.masked_fill(mask, -torch.inf) if mask.dtype == torch.bool else scores + mask


class _Recurrent(nn.RNNBase):
    """Recurrent layers, a step at a time."""

    def forward(self, input: Any, hx: Any = None) -> Any:
        """As of ``nn.LSTM``, ``nn.GRU`` and ``nn.RNN``."""
        if not isinstance(input, Tensor) or input.dim() != 3:
            return super().forward(input, hx)
        sequence = input.transpose(0, 1) if self.batch_first else input
        directions, long = 1 + self.bidirectional, self.mode == "LSTM"
        size, rows = sequence.shape[1], self.num_layers * directions
        if hx is None:
            widths = (self.proj_size or self.hidden_size, self.hidden_size)
            zeros = [sequence.new_zeros(rows, size, width) for width in widths]
            hx = tuple(zeros) if long else zeros[0]
        states = list(zip(*hx, strict=True)) if long else [(h,) for h in hx]
        last: list[tuple[Tensor, ...]] = []
        for layer in range(self.num_layers):
            outputs = []
            for direction in range(directions):
                found, state = self._run(
                    sequence, states[len(last)], layer, backwards=direction == 1
                )
                outputs.append(found)
                last.append(state)
            sequence = torch.cat(outputs, dim=-1)
            if layer < self.num_layers - 1:
                sequence = F.dropout(sequence, self.dropout, self.training)
        ends = tuple(torch.stack(parts) for parts in zip(*last, strict=True))
        sequence = sequence.transpose(0, 1) if self.batch_first else sequence
        return sequence, ends if long else ends[0]

    def _run(
        self, sequence: Tensor, state: State, layer: int, *, backwards: bool
    ) -> tuple[Tensor, State]:
        """One layer in one direction: its states at each place, and the last one."""
        name = f"_l{layer}" + "_reverse" * backwards
        from_state, bias = getattr(self, f"weight_hh{name}"), getattr(self, f"bias_hh{name}", None)
        x = F.linear(
            sequence, getattr(self, f"weight_ih{name}"), getattr(self, f"bias_ih{name}", None)
        )
        project = (
            partial(F.linear, weight=getattr(self, f"weight_hr{name}")) if self.proj_size else None
        )
        found, state = recur(
            self.mode, x.flip(0) if backwards else x, state, from_state, bias, project
        )
        return found.flip(0) if backwards else found, state


def recur(
    mode: str,
    x: Tensor,
    state: State,
    weight: Tensor,
    bias: Tensor | None,
    after: Callable[[Tensor], Tensor] | None = None,
) -> tuple[Tensor, State]:
    """The states of a recurrent layer, and the last one.

    Where maps of inputs and of states are only added up, their gradients are the same. Then this is
    one function of its parameters: a kind of tensor that notices functions notices it as a whole.

    Args:
        mode: Of the cell.
        x: Maps of the inputs, ``T x ... x gates``.
        state: The first one.
        weight: Of the map of a state.
        bias: The same.
        after: What is done to a state before it goes on.
    """
    parameters = (weight,) if bias is None else (weight, bias)
    noticed = all(has_torch_function((parameter,)) for parameter in parameters)
    if noticed and after is None and mode != "GRU":
        return handle_torch_function(recur, (weight, bias), mode, x, state, weight, bias)
    found = []
    for gates in x.unbind(0):
        state = _next_state(mode, gates, F.linear(state[0], weight, bias), state)
        if after is not None:
            state = after(state[0]), *state[1:]
        found.append(state[0])
    return torch.stack(found), state


def _next_state(mode: str, x: Tensor, h: Tensor, state: State) -> State:
    """A cell's next state, from maps ``x`` of its input and ``h`` of its state."""
    if mode == "LSTM":
        enter, keep, new, leave = (x + h).chunk(4, dim=-1)
        cell = keep.sigmoid() * state[1] + enter.sigmoid() * new.tanh()
        return leave.sigmoid() * cell.tanh(), cell
    if mode == "GRU":
        (reset, keep, new), (r, z, n) = x.chunk(3, dim=-1), h.chunk(3, dim=-1)
        keep = (keep + z).sigmoid()
        new = (new + (reset + r).sigmoid() * n).tanh()
        return (new + keep * (state[0] - new),)
    return ((x + h).tanh() if mode == "RNN_TANH" else (x + h).relu(),)


class _LSTM(_Recurrent, nn.LSTM):
    pass


class _GRU(_Recurrent, nn.GRU):
    pass


class _RNN(_Recurrent, nn.RNN):
    pass


class _Cells:
    """A mixin for the recurrent layers of Opacus, which map a sequence's inputs one by one."""

    dropout: float
    dropout_layer: nn.Module

    def forward_layer(
        self, x: Tensor, h_0: Tensor, c_0: Tensor | None, batch_sizes: Any, **how: Any
    ) -> tuple[Any, ...]:
        """As of ``DPRNNBase``: all states, and the last one."""
        cell = how["cell"]
        mode = _MODES.get(type(cell).__name__)
        if mode == "RNN":
            mode += f"_{cell.nonlinearity.upper()}"
        plain = type(cell.hh).forward is nn.Linear.forward and not has_hooks(cell.hh)
        if how["is_packed"] or mode is None or not plain:
            return super().forward_layer(x, h_0, c_0, batch_sizes, **how)  # type: ignore[misc]
        gates = cell.ih(x.flip(0) if how["reverse_layer"] else x)
        first = (h_0,) if c_0 is None else (h_0, c_0)
        after = self.dropout_layer if self.dropout else None
        states, last = recur(mode, gates, first, cell.hh.weight, cell.hh.bias, after)
        states = states.flip(0) if how["reverse_layer"] else states
        return states, last[0], None if c_0 is None else last[1]


_MODES = {"DPLSTMCell": "LSTM", "DPGRUCell": "GRU", "DPRNNCell": "RNN"}


def _with_cells(kind: type[Any]) -> type[Any]:
    return type(kind.__name__, (_Cells, kind), {})


class _Constant(nn.modules.batchnorm._BatchNorm):
    """Batch normalization by the running statistics, which it can read and not write."""

    def _check_input_dim(self, input: Tensor) -> None:
        pass

    def forward(self, input: Tensor) -> Tensor:
        """As of ``nn.BatchNorm2d`` in evaluation mode, in whatever mode this is."""
        assert self.running_mean is not None and self.running_var is not None
        scale, shift = (self.running_var + self.eps).rsqrt(), self.running_mean
        if self.affine:
            scale = scale * self.weight
        shape = (1, -1, *[1] * (input.dim() - 2))
        outputs = (input - shift.view(shape)) * scale.view(shape)
        return outputs + self.bias.view(shape) if self.affine else outputs


_NORMALIZATIONS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


def is_constant(module: nn.Module) -> bool:
    """Whether a layer is batch normalization that takes no statistics of a batch."""
    return type(module) in _NORMALIZATIONS and not module.training and _has_statistics(module)


def _has_statistics(module: nn.Module) -> bool:
    return isinstance(getattr(module, "running_mean", None), Tensor) and isinstance(
        getattr(module, "running_var", None), Tensor
    )


def in_training(model: nn.Module) -> nn.Module:
    """The model in training mode, but for batch normalization that was in evaluation mode."""
    constant = [module for module in model.modules() if is_constant(module)]
    model.train()
    for module in constant:
        module.training = False
    return model


_PLAIN: dict[type[nn.Module], type[nn.Module]] = {
    nn.MultiheadAttention: _Attention,
    nn.LSTM: _LSTM,
    nn.GRU: _GRU,
    nn.RNN: _RNN,
}


def without_token_errors(model: nn.Module) -> nn.Module:
    """The model, changed in place so that a token that does not exist raises no error.

    Its row of the table is NaN instead, and so is the record's gradient, which counts as zero.
    """
    for module in model.modules():
        if type(module) is nn.Embedding:
            module.__class__, module.sparse = Embedding, False
    return model


def with_constant_normalization(model: nn.Module) -> nn.Module:
    """The model, changed in place so that batch normalization cannot update its statistics."""
    for module in model.modules():
        if type(module) in _NORMALIZATIONS and _has_statistics(module):
            module.__class__ = _Constant
    return model


def with_plain_layers(model: nn.Module) -> nn.Module:
    """The model, changed in place: its layers are those of this module wherever there is one."""
    opacus = sys.modules.get("opacus.layers")  # who does not import it has none of its layers
    for module in with_constant_normalization(model).modules():
        if type(module) in _PLAIN:
            module.__class__ = _PLAIN[type(module)]
        elif opacus and type(module) in (opacus.DPLSTM, opacus.DPGRU, opacus.DPRNN):
            module.__class__ = _with_cells(type(module))
    return without_token_errors(model)
