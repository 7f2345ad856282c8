"""Clipping without the gradients of single records, for any model.

For a linear map with inputs ``a_t`` and gradients ``g_t`` at its outputs (at the places ``t`` of a
sequence), a record's gradient is ``sum_t g_t a_tᵀ``. Its norm follows from ``a`` and ``g``:
``‖g‖ ‖a‖`` at a single place [Goodfellow2015], and the root of
``sum_{t, s} (a_t · a_s) (g_t · g_s)`` at several [Li2022]. The sum of clipped gradients is one
matrix product that plain SGD needs as well, with ``g`` multiplied by the clipping factors; so one
backward pass, to the outputs of the layers, serves for both. Convolutions are linear maps of
patches, and what a record adds to a table of embeddings is a few rows. Where a record's gradient is
smaller than what would stand for it, it is formed.

Each record is alone in its batch: the model is called on one record at a time, vectorized, and the
gradient at a layer's output is taken where the vectorized call keeps the outputs of all records,
one beside the other. What is clipped and what is added up for a record are made of that record
alone, whatever the model does. The steps of a recurrent layer are ours, and act on each record
alone as well: all records take them together.

The engine finds the layers by the functions of torch that are called with a trained parameter as
the weight: it calls the model with parameters of a subclass of tensors that records such calls. A
parameter that is used otherwise (a table of embeddings that is the last layer's weight as well) is
copied for each record, which gives the gradients of single records.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._C import _functorch
from torch._functorch.pyfunctorch import retrieve_current_functorch_interpreter
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.func import vmap
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.grad import conv1d_weight, conv2d_weight, conv3d_weight

from botorch_dp.training.contributions import Contribution, Gradients, Products, Rows
from botorch_dp.training.networks import output_gradient
from botorch_dp.training.per_record import PerRecordEngine
from botorch_dp.training.plain_layers import recur
from botorch_dp.training.randomness import seeded_torch
from botorch_dp.training.records import Inputs

_Layer = Callable[..., Tensor]
_State = tuple[Tensor, ...]
_LINEAR = ("input", "weight", "bias")
_CONVOLUTION = (*_LINEAR, "stride", "padding", "dilation", "groups")
#: The functions that are noticed, and the names of their arguments.
_LAYERS: dict[_Layer, tuple[str, ...]] = {
    F.linear: _LINEAR,
    F.conv1d: _CONVOLUTION,
    F.conv2d: _CONVOLUTION,
    F.conv3d: _CONVOLUTION,
    F.embedding: ("input", "weight", "padding_idx", "max_norm", "norm_type", "scale_grad_by_freq"),
    F.layer_norm: ("input", "normalized_shape", "weight", "bias", "eps"),
    F.rms_norm: ("input", "normalized_shape", "weight", "eps"),
    F.group_norm: ("input", "num_groups", "weight", "bias", "eps"),
}
#: Those whose weight multiplies what they would return without it.
_NORMALIZATIONS = (F.layer_norm, F.rms_norm, F.group_norm)
_WEIGHT_GRADIENTS: dict[_Layer, Callable[..., Tensor]] = {
    F.conv1d: conv1d_weight,
    F.conv2d: conv2d_weight,
    F.conv3d: conv3d_weight,
}
_CHANGED = (
    "The model calls other layers than the first time. Let its computation be the same at each "
    "step, or use engine='per_record'."
)


@dataclass(frozen=True)
class _Call:
    """One call of a layer by one record."""

    layer: _Layer
    weight: str | None
    """The name of its weight, if that is followed."""
    bias: str | None
    inputs: torch.Size
    outputs: torch.Size
    options: Mapping[str, Any]

    @property
    def places(self) -> int:
        """At how many places the layer is applied."""
        features = self.outputs[1 if self.layer in _WEIGHT_GRADIENTS else -1]
        return self.outputs.numel() // features

    def following(self, names: set[str]) -> _Call:
        """The same call, of which only these parameters are followed."""
        weight, bias = (name if name in names else None for name in (self.weight, self.bias))
        return replace(self, weight=weight, bias=bias)


class _Notes(Protocol):
    """Is told what is done with the parameters that it follows."""

    def note(self, func: Any, args: Sequence[Any], kwargs: dict[str, Any], output: Any) -> Any:
        """Note a function of followed parameters; returns the output to go on with."""

    def recur(
        self, mode: str, x: Tensor, state: _State, weight: Tensor, bias: Tensor | None
    ) -> tuple[Tensor, _State]:
        """Run :func:`.plain_layers.recur`, and note its map of states."""


class _Followed(Tensor):
    """A parameter that notices the functions of torch it is given to."""

    known_as: str
    notes: _Notes

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        with torch._C.DisableTorchFunctionSubclass():
            if func is recur:
                return next(_followed(args, kwargs)).notes.recur(*args)
            output = func(*args, **kwargs)
            for found in _followed(args, kwargs):
                return found.notes.note(func, args, kwargs, output)
        return output


def _follow(values: Mapping[str, Tensor], notes: _Notes) -> dict[str, Tensor]:
    """The parameters, as tensors that tell these notes what is done with them."""
    followed: dict[str, Tensor] = {}
    for name, value in values.items():
        followed[name] = parameter = value.detach().requires_grad_().as_subclass(_Followed)
        parameter.known_as, parameter.notes = name, notes
    return followed


def _followed(args: Iterable[Any], kwargs: Mapping[str, Any]) -> Iterator[_Followed]:
    for value in (*args, *kwargs.values()):
        if isinstance(value, _Followed):
            yield value
        elif isinstance(value, tuple | list):
            yield from _followed(value, {})


class _Learner:
    """Learns which layers a model calls, and which parameters it uses in other ways as well."""

    def __init__(self) -> None:
        self.calls: list[_Call] = []
        #: Parameters that are used in a way for which there is no rule.
        self.otherwise: set[str] = set()

    def note(self, func: Any, args: Sequence[Any], kwargs: dict[str, Any], output: Any) -> Any:
        """See :class:`_Notes`."""
        if func in _LAYERS:
            given = dict(zip(_LAYERS[func], args, strict=False)) | kwargs
            weight, bias = _name(given.get("weight")), _name(given.get("bias"))
            options = None if isinstance(given["input"], _Followed) else _rule(func, given)
            if options is not None:
                shapes = given["input"].shape, output.shape
                self.calls.append(_Call(func, weight, bias, *shapes, options))
                return output
        if _holds_tensors(output):
            self.otherwise.update(each.known_as for each in _followed(args, kwargs))
        return output

    def recur(
        self, mode: str, x: Tensor, state: _State, weight: Tensor, bias: Tensor | None
    ) -> tuple[Tensor, _State]:
        """See :class:`_Notes`."""
        states, last = recur(mode, x, state, weight, bias)
        shapes = states.shape, x.shape
        self.calls.append(_Call(F.linear, _name(weight), _name(bias), *shapes, {}))
        self.otherwise.update(each.known_as for each in _followed(state, {}))
        return states, last


class _Recorder:
    """Keeps the inputs of layers, and where to take the gradients at their outputs.

    Args:
        calls: The calls that were learnt.
    """

    #: A zero of each record's own. With it, an output that is the same for all records becomes
    #: theirs, and a part of something larger becomes a tensor of its own.
    zero: Tensor

    def __init__(self, calls: Sequence[_Call]) -> None:
        self._calls = calls
        self.inputs: list[Tensor] = []
        #: Of the outputs of all records, with their shape and the dimension in which these lie.
        self.outputs: list[tuple[GradientEdge | None, torch.Size, int]] = []

    def note(self, func: Any, args: Sequence[Any], kwargs: dict[str, Any], output: Any) -> Any:
        """See :class:`_Notes`."""
        if not _holds_tensors(output):
            return output
        self._check(func, next(_followed(args, kwargs)), output.shape)
        if not _functorch.is_batchedtensor(output) or not _shows_all(output):
            output = output + self.zero
        together = _functorch.get_unwrapped(output)
        # Once it is changed in place, a view goes back another way; what it shows does not.
        shown = together if together._base is None else together._base
        edge = get_gradient_edge(shown) if shown.requires_grad else None
        self.outputs.append((edge, together.shape, _functorch.maybe_get_bdim(output)))
        self.inputs.append(args[0] if args else kwargs["input"])
        return output

    def recur(
        self, mode: str, x: Tensor, state: _State, weight: Tensor, bias: Tensor | None
    ) -> tuple[Tensor, _State]:
        """See :class:`_Notes`.

        Its steps act on each number alone, or are maps that act on each place alone: they are taken
        by all records together, without the price of a vectorized call for each.
        """
        self._check(F.linear, next(_followed((weight, bias), {})), x.shape)
        x = x if _functorch.is_batchedtensor(x) else x + self.zero
        level = _functorch.maybe_get_level(x)
        with retrieve_current_functorch_interpreter().lower():
            maps = _together(x, 1)  # T x m x ... x gates
            maps = maps if maps.requires_grad else maps.detach().requires_grad_()
            first = tuple(_together(each, 0) for each in state)
            states, last = recur(mode, maps, first, weight, bias)
            before = torch.cat([first[0].expand(1, *states.shape[1:]), states[:-1]])
            self.outputs.append((get_gradient_edge(maps), maps.shape, 1))
        self.inputs.append(_functorch._add_batch_dim(before, 1, level))
        return _functorch._add_batch_dim(states, 1, level), tuple(
            _functorch._add_batch_dim(each, 0, level) for each in last
        )

    def _check(self, func: _Layer, parameter: _Followed, shape: torch.Size) -> None:
        place = len(self.inputs)
        call = self._calls[place] if place < len(self._calls) else None
        if (
            call is None
            or (call.layer, call.outputs) != (func, shape)
            or parameter.known_as not in (call.weight, call.bias)
        ):
            raise ValueError(_CHANGED)

    def finish(self) -> list[Tensor]:
        """The inputs of all calls."""
        if len(self.inputs) < len(self._calls):
            raise ValueError(_CHANGED)
        return self.inputs


def _name(parameter: Any) -> str | None:
    return parameter.known_as if isinstance(parameter, _Followed) else None


def _together(each: Tensor, dim: int) -> Tensor:
    """What all records have beside one another in a vectorized call, along this dimension."""
    if not _functorch.is_batchedtensor(each):
        return each
    return _functorch.get_unwrapped(each).movedim(_functorch.maybe_get_bdim(each), dim)


def _shows_all(output: Tensor) -> bool:
    """Whether the outputs of all records are no view, or one of all that it shows, in order."""
    together = _functorch.get_unwrapped(output)
    shown = together._base
    return shown is None or (
        shown.numel() == together.numel() and shown.is_contiguous() and together.is_contiguous()
    )


def _holds_tensors(output: Any) -> bool:
    return any(
        isinstance(value, Tensor)
        for value in (output if isinstance(output, tuple | list) else [output])
    )


def _rule(layer: _Layer, given: Mapping[str, Any]) -> dict[str, Any] | None:
    """What the gradients of a layer follow from beside inputs and outputs; None: no rule."""
    if layer is F.linear:
        return {}
    if layer in _NORMALIZATIONS:
        return {
            name: given[name] for name in _LAYERS[layer] if name in given and name not in _LINEAR
        }
    if layer is F.embedding:
        if given.get("max_norm") is not None or given.get("scale_grad_by_freq"):
            return None
        padding = given.get("padding_idx")
        return {"padding_idx": padding if padding is None else padding % len(given["weight"])}
    sizes = given["weight"].shape[2:]
    if given["input"].dim() != len(sizes) + 2:
        return None
    stride, dilation = (_each(given.get(name, 1), len(sizes)) for name in ("stride", "dilation"))
    padding = given.get("padding", 0)
    if padding == "same":
        both = [step * (size - 1) for step, size in zip(dilation, sizes, strict=True)]
        if any(width % 2 for width in both):
            return None
        padding = [width // 2 for width in both]
    padding = _each(0 if padding == "valid" else padding, len(sizes))
    groups = given.get("groups", 1)
    return {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}


def _each(value: Any, dimensions: int) -> tuple[int, ...]:
    values = tuple(value) if isinstance(value, tuple | list) else (value,)
    return values * dimensions if len(values) == 1 else values


def _numbers_of_products(calls: Sequence[_Call], weight: Tensor) -> int:
    """How many numbers stand for a record's gradient if it is not formed, and their copies."""
    return 2 * sum(call.places for call in calls) * (len(weight) + weight[0].numel())


class _Use(NamedTuple):
    """A call by all records of a batch, what came in, and the gradients at what went out."""

    call: _Call
    inputs: Tensor
    gradients: Tensor

    def of_bias(self) -> Tensor:
        """Gradients of the bias, ``m x ...``."""
        g = self.gradients
        if self.call.layer in _WEIGHT_GRADIENTS or self.call.layer is F.group_norm:
            return g.reshape(*g.shape[:3], -1).sum(dim=(1, 3))
        features = len(self.call.options.get("normalized_shape", (1,)))
        return g.reshape(len(g), -1, *g.shape[-features:]).sum(dim=1)

    def of_scale(self, weight: Tensor) -> Tensor:
        """Gradients of a normalization's weight, ``m x ...``."""
        inputs = self.inputs.flatten(0, 1) if self.call.layer is F.group_norm else self.inputs
        # A weight of ones is faster than none.
        alone = self.call.layer(inputs, weight=torch.ones_like(weight), **self.call.options)
        return self._replace(gradients=self.gradients * alone.view_as(self.gradients)).of_bias()

    def of_weight(self, weight: Tensor) -> Tensor:
        """Gradients of a convolution's weight, ``m x ...``: those of a convolution of groups."""
        size = len(self.gradients)
        inputs, gradients = (x.transpose(0, 1).flatten(1, 2) for x in (self.inputs, self.gradients))
        options = {**self.call.options, "groups": size * self.call.options["groups"]}
        found = _WEIGHT_GRADIENTS[self.call.layer](
            inputs, (size * weight.shape[0], *weight.shape[1:]), gradients, **options
        )
        return found.view(size, *weight.shape)

    def by_place(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        """Inputs and gradients at each place, ``m x T x d`` and ``m x T x p``."""
        size, options, gradients = len(self.gradients), self.call.options, self.gradients
        if self.call.layer is F.linear:
            return self.inputs.flatten(1, -2), gradients.flatten(1, -2)
        if self.call.layer is F.embedding:
            tokens = self.inputs.flatten(1).long().unsqueeze(-1)
            gradients = gradients.flatten(1, -2)
            if options["padding_idx"] is not None:
                gradients = torch.where(tokens == options["padding_idx"], 0.0, gradients)
            return tokens, gradients
        how = {name: options[name] for name in ("dilation", "padding", "stride")}
        patches = F.unfold(self.inputs.flatten(0, 1), weight.shape[2:], **how)
        return tuple(
            x.unflatten(0, (size, -1)).mT.flatten(1, 2)
            for x in (patches, gradients.flatten(0, 1).flatten(2))
        )


class GhostEngine(PerRecordEngine):
    """Sums of clipped gradients without the gradients of single records, where layers allow it.

    Arguments as for :class:`.engines.Engine`. For published sums, the gradients of
    layers that are applied at several places are formed: what places that cancel leave is lost in
    the rounding of products, in a norm as in a sum.
    """

    #: What the model calls, and the parameters that are followed there, from the first batch on.
    _calls: Sequence[_Call] | None = None
    followed: Set[str] = frozenset()

    def _found(self, replicate: int, places: Tensor) -> tuple[Sequence[Contribution], Tensor]:
        """See :class:`.per_record.PerRecordEngine`."""
        if self._calls is None:
            self._follow(places[:1])
        return super()._found(replicate, places)

    def _follow(self, place: Tensor) -> None:
        """Learn which layers the model calls; what a record says cannot change that."""
        X, _, _ = self._records.take(place)
        values, frozen = self._values(0)
        learner = _Learner()
        followed = _follow(values, learner)

        def call(x: Inputs) -> Tensor:
            return self._outputs_of_one(followed, frozen, x)

        with seeded_torch(0), torch.no_grad(), sdpa_kernel(SDPBackend.MATH):
            vmap(call, randomness="different")(X)
        roles: dict[str, set[Any]] = {}
        for each in learner.calls:
            for name, role in ((each.weight, each.layer), (each.bias, "bias")):
                if name is not None:
                    roles.setdefault(name, set()).add(role)
        self.followed = {
            name
            for name, found in roles.items()
            if len(found) == 1 and name not in learner.otherwise
        }
        calls = [each.following(self.followed) for each in learner.calls]
        self._calls = [each for each in calls if each.weight or each.bias]
        self.record_numbers = self._count(values)

    def _count(self, values: Mapping[str, Tensor]) -> int:
        assert self._calls is not None
        numbers = sum(each.inputs.numel() + each.outputs.numel() for each in self._calls)
        for name, value in values.items():
            calls = [each for each in self._calls if each.weight == name]
            if name not in self.followed:
                numbers += 2 * value.numel()  # the copy and its gradient
            elif calls and calls[0].layer in _NORMALIZATIONS:
                numbers += value.numel() + sum(each.inputs.numel() for each in calls)
            elif calls and calls[0].layer is not F.embedding:
                products = _numbers_of_products(calls, value)
                numbers += value.numel() if self._forms(calls, value) else products
        return numbers

    def _forms(self, calls: Sequence[_Call], weight: Tensor) -> bool:
        """Whether the gradients of single records are formed from the inputs and outputs."""
        first = calls[0]
        if sum(each.places for each in calls) == 1 and first.layer is F.linear:
            return False
        if self._precise:
            return True
        if first.layer in (F.conv1d, F.conv3d):
            return True
        if first.layer is F.conv2d and first.options["groups"] > 1:
            return True
        return _numbers_of_products(calls, weight) >= weight.numel()

    def _contributions(
        self, values: dict[str, Tensor], frozen: dict[str, Tensor], X: Inputs, Y: Tensor
    ) -> list[Contribution]:
        own, seen = self._seen(values, frozen, X, Y)
        return [
            Gradients(own[name], self._type)
            if name in own
            else self._contribution(name, value, seen)
            for name, value in values.items()
        ]

    def _seen(
        self, values: dict[str, Tensor], frozen: dict[str, Tensor], X: Inputs, Y: Tensor
    ) -> tuple[dict[str, Tensor], list[_Use]]:
        """Gradients of the parameters that are copied, and what the followed ones' layers saw."""
        assert self._calls is not None
        copies = {
            name: value.expand(len(Y), *value.shape).requires_grad_()
            for name, value in values.items()
            if name not in self.followed
        }

        recorder = _Recorder(self._calls)
        shared = _follow({name: values[name] for name in self.followed}, recorder)

        def call(copies: dict[str, Tensor], zero: Tensor, x: Inputs) -> tuple[Tensor, list[Tensor]]:
            recorder.zero = zero
            outputs = self._outputs_of_one({**shared, **copies}, frozen, x)
            return outputs, recorder.finish()

        zeros = self._parameters.new_zeros(len(Y))
        outputs, inputs = vmap(call, randomness="different")(copies, zeros, X)
        edges = [edge for edge, _, _ in recorder.outputs if edge is not None]
        leaves: list[Any] = [*copies.values(), *edges]
        found: Sequence[Tensor | None] = [None] * len(leaves)
        if outputs.requires_grad:
            outputs = outputs.flatten(0, 1)
            slopes = output_gradient(self._loss, outputs, Y)
            found = torch.autograd.grad(outputs, leaves, slopes, allow_unused=True)
        left = iter(found)
        own = {
            name: torch.zeros_like(copy) if each is None else each
            for (name, copy), each in zip(copies.items(), left, strict=False)
        }
        seen = []
        for each, a, (edge, shape, dim) in zip(self._calls, inputs, recorder.outputs, strict=True):
            gradient = None if edge is None else next(left)
            g = zeros.new_zeros(()).expand(shape) if gradient is None else gradient.reshape(shape)
            seen.append(_Use(each, a.detach(), g.movedim(dim, 0)))
        return own, seen

    def _contribution(self, name: str, value: Tensor, seen: Sequence[_Use]) -> Contribution:
        """What records add to a parameter, from the inputs and gradients of the calls."""
        kind = self._type
        uses = [use for use in seen if use.call.bias == name]
        if uses:
            return Gradients(_sum([use.of_bias() for use in _merged(uses)]), kind)
        uses = [use for use in seen if use.call.weight == name]
        calls = [use.call for use in uses]
        if calls[0].layer in _NORMALIZATIONS:
            return Gradients(_sum([use.of_scale(value) for use in uses]), kind)
        forms = self._forms(calls, value)
        if forms and calls[0].layer in _WEIGHT_GRADIENTS:
            return Gradients(_sum([use.of_weight(value) for use in uses]), kind)
        by_place = [use.by_place(value) for use in uses]
        a, g = by_place[0]
        if len(by_place) > 1:
            a, g = (torch.cat(tensors, dim=1) for tensors in zip(*by_place, strict=True))
        if calls[0].layer is F.embedding:
            return Rows(a.squeeze(-1), g, kind)
        if forms:
            return Gradients(torch.bmm(g.mT, a), kind)
        return Products(a, g, kind)


def _merged(uses: Sequence[_Use]) -> Iterator[_Use]:
    """Uses whose gradients have the same form as one with their sum."""
    for _, same in groupby(uses, key=lambda use: (use.call.layer, use.gradients.shape)):
        first, *others = same
        yield first._replace(gradients=_sum([use.gradients for use in (first, *others)]))


def _sum(tensors: Sequence[Tensor]) -> Tensor:
    return tensors[0] if len(tensors) == 1 else torch.stack(tuple(tensors)).sum(dim=0)
