"""The ghost engine: clipping without most per-record gradients, for any model.

For a linear map with inputs ``a_t`` and gradients ``g_t`` at its outputs (at the places ``t`` of a
sequence), a record's gradient is ``sum_t g_t a_tᵀ``. Its norm follows from ``a`` and ``g``:
``‖g‖ ‖a‖`` at a single place [Goodfellow2015], and the root of
``sum_{t, s} (a_t · a_s) (g_t · g_s)`` at several [Li2022]. The sum of clipped gradients is one
matrix product that plain SGD needs as well, with ``g`` multiplied by the clipping factors; so one
backward pass, to the outputs of the layers, serves for both. What a record adds to a table of
embeddings is a few rows. Where a record's gradient is smaller than what would stand for it, it is
formed.

The engine calls the model on one record at a time, vectorized, so that each record is alone in its
batch. It finds linear maps and tables by the functions of torch that are called with a trained
parameter, and adds a zero of each record's own to what they return, a *probe*. The gradient at the
probe is the gradient at the output, for that record alone, whatever the model does. Parameters of
other layers, and those that are used in another way as well (a table of embeddings that is the last
layer's weight), are copied for each record, which gives the gradients of single records.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import vmap

from botorch_dp.training.calls import vectorized_calls
from botorch_dp.training.engines.contributions import Contribution, Gradients, Products, Rows
from botorch_dp.training.engines.per_record import PerRecordEngine, numbers_of_gradient
from botorch_dp.training.inputs import Inputs
from botorch_dp.training.networks import steps_back
from botorch_dp.training.plain_layers import State, recur
from botorch_dp.training.randomness import seeded_torch

#: The functions for which there is a rule, and the names of their arguments.
_ARGUMENTS: dict[Any, tuple[str, ...]] = {
    F.linear: ("input", "weight", "bias"),
    F.embedding: ("input", "weight", "padding_idx", "max_norm", "norm_type", "scale_grad_by_freq"),
}
#: Steps back in autograd that look for zeros in the values of all records, and then take another
#: way: a record with one would move the last digits of all others.
_LOOKING = {"Prod", "Cumprod"}
_LOOKS = (
    "The model multiplies numbers of a record by prod or cumprod, whose gradients torch computes "
    "in a way that depends on all records. Use engine='per_record'."
)
_CHANGED = (
    "The model calls other layers than the first time. Let its computation be the same at each "
    "step, or use engine='per_record'."
)


class _FollowedParameter(Tensor):
    """A parameter that records which functions of torch it is passed to."""

    known_as: str
    notes: _Trace

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        found = next(_followed((*args, *kwargs.values())), None)
        with torch._C.DisableTorchFunctionSubclass():
            if func is recur and found is not None:
                return found.notes.recur(*args)
            output = func(*args, **kwargs)
            return output if found is None else found.notes.note(func, args, kwargs, output)


def _followed(values: Iterable[Any]) -> Iterator[_FollowedParameter]:
    for value in values:
        if isinstance(value, _FollowedParameter):
            yield value
        elif isinstance(value, tuple | list):
            yield from _followed(value)


def _name(parameter: Any) -> str | None:
    return parameter.known_as if isinstance(parameter, _FollowedParameter) else None


@dataclass(frozen=True)
class _Call:
    """One call of a linear map or of a table by one record."""

    layer: Any
    weight: str | None
    """The name of its weight, if that is followed."""
    bias: str | None
    outputs: torch.Size
    padding: int | None = None
    """The row of a table that is not trained."""

    @property
    def places(self) -> int:
        """At how many places the map is applied."""
        return self.outputs.numel() // self.outputs[-1]


class _Trace:
    """A trace of the calls of a model that use followed parameters."""

    def __init__(self, probes: Sequence[Tensor] | None = None) -> None:
        self._probes = probes
        self.calls: list[_Call] = []
        #: What came into the layers that were called.
        self.inputs: list[Tensor] = []
        #: Parameters that are used in a way for which there is no rule.
        self.otherwise: set[str] = set()

    def follow(self, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The parameters, as tensors that tell what is done with them."""
        followed: dict[str, Tensor] = {}
        for name, value in values.items():
            followed[name] = parameter = value.detach().as_subclass(_FollowedParameter)
            parameter.known_as, parameter.notes = name, self
        return followed

    def note(self, func: Any, args: Sequence[Any], kwargs: dict[str, Any], output: Any) -> Any:
        """Note a function of followed parameters; returns the output to go on with."""
        if not any(isinstance(each, Tensor) for each in _leaves(output)):
            return output
        given = dict(zip(_ARGUMENTS.get(func, ()), args, strict=False)) | kwargs
        call = _call(func, given, output)
        if call is None:
            self.otherwise.update(p.known_as for p in _followed((*args, *kwargs.values())))
            return output
        self.inputs.append(given["input"])
        return self._probed(call, output)

    def recur(
        self, mode: str, x: Tensor, state: State, weight: Tensor, bias: Tensor | None
    ) -> tuple[Tensor, State]:
        """Note the map of states of :func:`.plain_layers.recur`, and compute it.

        The maps of the inputs are added to those of the states, and have the same gradients. The
        steps of all records are taken together, without the price of a vectorized call of each:
        they act on each number alone, or are maps that act on each place alone.
        """
        self.otherwise.update(each.known_as for each in _followed(state))
        x = self._probed(_Call(F.linear, _name(weight), _name(bias), x.shape), x)
        states, *last = _Recurrence.apply(mode, x, weight, bias, *state)
        self.inputs.append(torch.cat([state[0].expand(1, *states.shape[1:]), states[:-1]]))
        return states, tuple(last)

    def _probed(self, call: _Call, output: Tensor) -> Tensor:
        self.calls.append(call)
        if self._probes is None:
            return output
        place = len(self.calls) - 1
        if place >= len(self._probes) or self._probes[place].shape != output.shape:
            raise ValueError(_CHANGED)
        return output + self._probes[place]


def _leaves(output: Any) -> Sequence[Any]:
    return output if isinstance(output, tuple | list) else [output]


def _call(func: Any, given: Mapping[str, Any], output: Tensor) -> _Call | None:
    """The call of a function, if there is a rule for it."""
    if func not in _ARGUMENTS or isinstance(given["input"], _FollowedParameter):
        return None
    weight, padding = given["weight"], given.get("padding_idx")
    if weight.dim() != 2 or given.get("max_norm") is not None or given.get("scale_grad_by_freq"):
        return None
    padding = None if padding is None else padding % len(weight)
    return _Call(func, _name(weight), _name(given.get("bias")), output.shape, padding)


class _Recurrence(torch.autograd.Function):
    """The steps of a recurrent layer; vectorized, of all records together."""

    @staticmethod
    def forward(mode: str, x: Tensor, weight: Tensor, bias: Tensor | None, *state: Tensor) -> Any:
        """Never called: see :meth:`vmap`."""
        raise NotImplementedError

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        """Nothing is kept: what the vectorized steps need to go back is autograd's."""

    @staticmethod
    def vmap(info: Any, in_dims: Any, mode: str, *given: Tensor | None) -> Any:
        """Records lie in the second dimension of maps, and in the first one of states."""

        def first(value: Tensor, dim: int | None) -> Tensor:
            if dim is None:
                return value.expand(info.batch_size, *value.shape)
            return value.movedim(dim, 0)

        (x, weight, bias, *state), (dim, _, _, *dims) = given, in_dims[1:]
        assert x is not None and weight is not None
        starts = tuple(first(s, d) for s, d in zip(state, dims, strict=True) if s is not None)
        states, last = recur(mode, first(x, dim).transpose(0, 1), starts, weight, bias)
        return (states, *last), (1, *[0] * len(last))


class _Use(NamedTuple):
    """A call by all records of a batch, what came in, and the gradients at what went out."""

    call: _Call
    inputs: Tensor
    gradients: Tensor
    """``m x T x p``, at each place."""


class GhostEngine(PerRecordEngine):
    """Sums of clipped gradients without the gradients of single records, where layers allow it.

    Arguments as for :class:`.base.Engine`. For published sums, the gradients of
    layers that are applied at several places are formed: what places that cancel leave is lost in
    the rounding of products, in a norm as in a sum.
    """

    disagreement = (
        "its layers change what comes in after they have used it, use their weights in a way that "
        "it does not see, or multiply by prod or cumprod"
    )

    #: What the model calls, and the parameters that are followed there, from the first batch on.
    _calls: Sequence[_Call] | None = None
    followed: Set[str] = frozenset()
    #: Whether the way back is known to look at no values.
    _examined = False

    def _found(self, replicate: int, places: Tensor) -> tuple[Sequence[Contribution], Tensor]:
        if self._calls is None:
            self._follow(places[:1])
        return super()._found(replicate, places)

    def _follow(self, place: Tensor) -> None:
        """Trace the model's calls once; no value of a record can change them."""
        X, _, _ = self._records.take(place)
        values, frozen = self._values(0)
        notes = _Trace()
        followed = notes.follow(values)

        def call(x: Inputs) -> Tensor:
            return self._call(x, followed, frozen)

        with seeded_torch(0), torch.no_grad(), vectorized_calls():
            vmap(call, randomness="different")(X)
        roles: dict[str | None, set[Any]] = {}
        for each in notes.calls:
            roles.setdefault(each.weight, set()).add(each.layer)
            roles.setdefault(each.bias, set()).add("bias")
        kept = {name for name, found in roles.items() if name is not None and len(found) == 1}
        self.followed = kept - notes.otherwise
        calls = [
            replace(
                each,
                weight=each.weight if each.weight in self.followed else None,
                bias=each.bias if each.bias in self.followed else None,
            )
            for each in notes.calls
        ]
        self._calls = [each for each in calls if each.weight or each.bias]
        self.record_numbers = self._count(values)

    def _count(self, values: Mapping[str, Tensor]) -> int:
        assert self._calls is not None
        # The gradients at the outputs, and the rows of tables.
        numbers = sum(each.outputs.numel() for each in self._calls)
        numbers += 2 * sum(c.outputs.numel() for c in self._calls if c.layer is F.embedding)
        products = [0]
        for name, value in values.items():
            calls = [each for each in self._calls if each.weight == name]
            if name not in self.followed:
                numbers += numbers_of_gradient(value)
            elif calls and calls[0].layer is F.linear:
                if self._forms(calls, value):
                    numbers += value.numel()
                else:
                    products.append(_numbers_of_products(calls, value))
        # Copies in double precision are all there at once, others one after the other.
        return numbers + (sum(products) if self._precise else max(products))

    def _forms(self, calls: Sequence[_Call], weight: Tensor) -> bool:
        """Whether the gradients of single records are formed from the inputs and outputs."""
        if sum(each.places for each in calls) == 1:
            return False
        return self._precise or _numbers_of_products(calls, weight) >= weight.numel()

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
        size, zero = len(Y), self._parameters.new_zeros(())
        copies = {
            name: value.expand(size, *value.shape).requires_grad_()
            for name, value in values.items()
            if name not in self.followed
        }
        probes = [zero.expand(size, *each.outputs).requires_grad_() for each in self._calls]
        kept = {name: values[name] for name in self.followed}

        def call(
            copies: dict[str, Tensor], probes: list[Tensor], x: Inputs
        ) -> tuple[Tensor, list[Tensor]]:
            notes = _Trace(probes)
            outputs = self._call(x, {**notes.follow(kept), **copies}, frozen)
            if len(notes.inputs) < len(probes):
                raise ValueError(_CHANGED)
            return outputs, notes.inputs

        outputs, inputs = vmap(call, randomness="different")(copies, probes, X)
        leaves = [*copies.values(), *probes]
        found: Sequence[Tensor | None] = [None] * len(leaves)
        if outputs.requires_grad:
            if not self._examined and _LOOKING & steps_back(outputs):
                raise ValueError(_LOOKS)
            self._examined = True
            outputs = outputs.flatten(0, 1)
            slopes = self._output_gradient(outputs, Y)
            found = torch.autograd.grad(outputs, leaves, slopes, allow_unused=True)
        gradients = [
            torch.zeros_like(leaf) if each is None else each
            for leaf, each in zip(leaves, found, strict=True)
        ]
        own = dict(zip(copies, gradients, strict=False))
        seen = [
            _Use(each, a.detach(), g.reshape(size, -1, g.shape[-1]))
            for each, a, g in zip(self._calls, inputs, gradients[len(copies) :], strict=True)
        ]
        return own, seen

    def _contribution(self, name: str, value: Tensor, seen: Sequence[_Use]) -> Contribution:
        """What records add to a parameter, from the inputs and gradients of the calls."""
        kind = self._type
        sums = [use.gradients.sum(dim=1) for use in seen if use.call.bias == name]
        if sums:
            return Gradients(torch.stack(sums).sum(dim=0), kind)
        uses = [use for use in seen if use.call.weight == name]
        calls = [use.call for use in uses]
        if calls[0].layer is F.embedding:
            tokens = [use.inputs.flatten(1).long() for use in uses]
            slopes = [
                use.gradients
                if use.call.padding is None
                else torch.where((rows == use.call.padding).unsqueeze(-1), 0.0, use.gradients)
                for use, rows in zip(uses, tokens, strict=True)
            ]
            return Rows(_joined(tokens), _joined(slopes), kind)
        a = _joined([use.inputs.reshape(len(use.inputs), -1, value.shape[1]) for use in uses])
        g = _joined([use.gradients for use in uses])
        if self._forms(calls, value):
            return Gradients(torch.bmm(g.mT, a), kind)
        return Products(a, g, kind)


def _numbers_of_products(calls: Sequence[_Call], weight: Tensor) -> int:
    """How many numbers stand for a record's gradient if it is not formed, and their copies."""
    return 2 * sum(call.places for call in calls) * (len(weight) + weight[0].numel())


def _joined(tensors: Sequence[Tensor]) -> Tensor:
    """The places of several calls, one after the other."""
    return tensors[0] if len(tensors) == 1 else torch.cat(tuple(tensors), dim=1)
