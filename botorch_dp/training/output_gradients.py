"""Gradients of the records' losses with respect to the model's outputs.

A loss of the caller's is called on one record at a time, vectorized, so that it cannot mix them. If
all that it does is to pass outputs and targets on to a loss of torch's, this is read off one call
on a synthetic record, and it is never called on others: torch's own loss takes a whole batch in one
call, with the caller's weights.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import grad, vmap
from torch.overrides import TorchFunctionMode

from botorch_dp.training.networks import Loss, known_gradient

#: Losses of single numbers; besides these, the cross-entropy of classes is known.
_ELEMENTWISE = (
    F.binary_cross_entropy_with_logits,
    F.huber_loss,
    F.l1_loss,
    F.mse_loss,
    F.smooth_l1_loss,
)
#: Methods that keep the order of all numbers, change their type, or tell the form of a tensor.
_SAME_ORDER = {"flatten", "ravel", "reshape", "squeeze", "unsqueeze", "view", "view_as"}
_CASTS = {"double", "float", "long", "to", "type", "type_as"}
_FORM = {"__get__", "__len__", "dim", "is_floating_point", "numel", "size"}


@dataclass(frozen=True, eq=False)
class LossOfTorch:
    """The losses of a batch's records, added up, by one of torch's.

    Args:
        function: The loss.
        settings: Its other arguments.
        dtype: The type of targets that it takes.
        factor: What the sum over a record's numbers is multiplied by.
    """

    function: Callable[..., Tensor]
    settings: Mapping[str, Any]
    dtype: torch.dtype
    factor: float = 1.0

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Outputs ``b x ...`` and targets ``b x ...`` to a number."""
        Y = targets.to(self.dtype)
        Y = Y.flatten() if self.function is F.cross_entropy else Y.view_as(outputs)
        return self.function(outputs, Y, reduction="sum", **self.settings) * self.factor

    def gradient(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """With respect to the outputs, ``b x ...``.

        In closed form for the loss of a logistic regression, where building autograd's graph would
        take as long as the rest of a step.
        """
        if self.function is not F.binary_cross_entropy_with_logits:
            return way_back(self, outputs, targets)
        Y, positive = targets.to(self.dtype).view_as(outputs), self.settings.get("pos_weight")
        if positive is None:
            found = outputs.sigmoid().sub_(Y)
        else:
            found = outputs.sigmoid().mul_((positive - 1) * Y + 1).sub_(positive * Y)
        return found.mul_(self.settings.get("weight", 1.0) * self.factor)


class OutputGradient:
    """The gradients of the records' own losses with respect to their outputs, ``b x ...``.

    A loss without a known gradient is called on one record at a time, vectorized, so that it cannot
    mix them, and the way back is one pass of autograd for all records. Where a loss takes gradients
    itself, each record has a way back of its own, vectorized as well.

    A loss without a known gradient sees zeros in place of outputs that are not finite, at which
    some raise; the gradient of such a record is not finite.

    Args:
        loss: Takes the outputs and targets of a batch of one, or has a known gradient, or is one of
            torch's that was read.
    """

    def __init__(self, loss: Loss) -> None:
        self._loss, self._known = loss, known_gradient(loss)
        self._losses = vmap(loss, randomness="different")

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Outputs ``b x ...`` and targets ``b x ...``; neither is changed."""
        outputs = outputs.detach()
        if self._known is not None:
            return self._known(outputs, targets)
        if isinstance(self._loss, LossOfTorch):
            return self._loss.gradient(outputs, targets)
        finite = outputs.nan_to_num(0.0, 0.0, 0.0)
        X, Y = finite.unsqueeze(1), targets.unsqueeze(1)  # batches of one
        try:
            found = way_back(self._losses, X, Y)
        except RuntimeError:  # the loss may take gradients itself, which needs the other way
            found = vmap(grad(self._sum), randomness="different")(X, Y)
        return found.squeeze(1) + (outputs - outputs)  # which is zero or NaN

    def _sum(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return self._loss(outputs, targets).sum()


@torch.enable_grad()
def way_back(losses: Loss, X: Tensor, Y: Tensor) -> Tensor:
    """Gradients of losses with respect to outputs ``X``, of their shape."""
    X = X.detach().requires_grad_()
    values = losses(X, Y)
    if not values.requires_grad:
        return torch.zeros_like(X)
    return torch.autograd.grad(values.sum(), X)[0]


def read_loss(
    loss: Loss, outputs: Tensor, targets: Tensor, num_classes: int | None
) -> LossOfTorch | None:
    """What a loss does, if that is known and it does the same on synthetic records.

    A mean with weights, which divides by those of the batch, was refused before this is asked.

    Args:
        loss: A loss of a batch of one.
        outputs: Of a few synthetic records, ``b x ...``.
        targets: Of these, ``b x ...``.
        num_classes: If records with another label are left out of a batch. Otherwise the
            cross-entropy is not read: it raises for a label that does not exist.
    """
    if known_gradient(loss) is not None:
        return None
    found = _read(loss, torch.ones_like(outputs[:1]), targets[:1].clone())
    if found is None or (found.function is F.cross_entropy and num_classes is None):
        return None
    numbers = torch.linspace(-2, 2, outputs.numel(), device=outputs.device)
    outputs = numbers.to(outputs).view_as(outputs)
    ones = [
        way_back(loss, X.unsqueeze(0), Y.unsqueeze(0))
        for X, Y in zip(outputs, targets, strict=True)
    ]
    exact = torch.cat(ones)
    little = 1e-5 * float(exact.abs().max())
    same = torch.allclose(found.gradient(outputs, targets), exact, rtol=1e-4, atol=little)
    return found if same else None


def _read(loss: Loss, X: Tensor, Y: Tensor) -> LossOfTorch | None:
    X.requires_grad_()  # some losses take gradients themselves
    with torch.enable_grad(), _Calls() as calls:
        value = loss(X, Y)
    has = {id(X): "outputs", id(Y): "targets"}  # the numbers that a tensor has
    found, casts = None, 0
    for function, args, kwargs, result in calls.found:
        used = [has[id(each)] for each in (*args, *kwargs.values()) if id(each) in has]
        name = getattr(function, "__name__", "")
        if not used or (name in _FORM and not isinstance(result, Tensor)):
            continue
        kind = used[0]
        ordered = name in _SAME_ORDER or (name == "__getitem__" and not _picks(args[1]))
        if function in (*_ELEMENTWISE, F.cross_entropy) and used == ["outputs", "targets"]:
            kind = "losses"
            found = _of_torch(function, inspect.signature(function).bind(*args, **kwargs), X)
        elif name in _CASTS and (result is args[0] or kind == "targets"):
            casts += result.dtype != args[0].dtype
        elif name in ("mean", "sum") and kind == "losses" and found is not None:
            if name == "mean":
                found = replace(found, factor=found.factor * result.numel() / args[0].numel())
        elif not ordered or result.numel() != args[0].numel():
            return None
        has[id(result)] = kind
    return found if casts < 2 and has.get(id(value)) == "losses" else None


def _picks(index: Any) -> bool:
    """Whether an index may change the order of numbers: one with a list or a tensor in it."""
    if isinstance(index, tuple):
        return any(map(_picks, index))
    return isinstance(index, list | Tensor)


def _of_torch(function: Loss, call: inspect.BoundArguments, X: Tensor) -> LossOfTorch | None:
    """One of torch's losses with the arguments of a call on one record, with outputs ``X``."""
    given = {name: value for name, value in call.arguments.items() if value is not None}
    outputs, targets = given.pop("input"), given.pop("target")
    mean = given.pop("reduction", "mean") == "mean"
    if "reduce" in given or "size_average" in given or outputs.dtype != X.dtype:
        return None
    if function is F.cross_entropy:
        labels = targets.dtype == torch.long and targets.numel() == 1 and X.dim() == 2
        return LossOfTorch(function, given, torch.long) if labels else None
    if outputs.shape != targets.shape or outputs.numel() != X.numel():
        return None
    for name, value in given.items():
        if isinstance(value, Tensor):
            given[name] = value.expand(outputs.shape).reshape_as(X)
    return LossOfTorch(function, given, targets.dtype, 1 / X.numel() if mean else 1.0)


class _Calls(TorchFunctionMode):
    """Notes which of torch's functions are called, with what they take and return."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[Any, tuple[Any, ...], dict[str, Any], Any]] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.found.append((func, args, kwargs or {}, result))
        return result
