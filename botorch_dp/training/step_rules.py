r"""How parameters move along noisy gradients: optimizers, schedules, and rules without either.

A rule sees the parameters, which are released in principle, and the noisy sums of clipped
gradients, which are released too, and nothing else of the records: it is post-processing, whatever
it does. It moves the parameters of all replicates at once, one row of a matrix for each.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import partial
from types import NoneType
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from botorch_dp.training.fused import first_rows, parameter_views
from botorch_dp.training.plan import TrainingPlan

#: Called with a list of parameters and ``lr=``: a class of ``torch.optim``, or a partial of one.
OptimizerFactory = Callable[..., torch.optim.Optimizer]
#: Called with an optimizer and the number of steps; stepped after every step.
ScheduleFactory = Callable[[torch.optim.Optimizer, int], torch.optim.lr_scheduler.LRScheduler]


class StepRule(Protocol):
    """Moves the parameters of all replicates; made for their plans, which agree in the batch size."""

    def step(self, sums: Tensor) -> None:
        """One step of the first replicates along their noisy sums, ``k x p``, which may change."""

    def result(self) -> Tensor:
        """The parameters to evaluate and to hand out, ``R x p``; not to be changed."""

    def state(self) -> dict[str, Any]:
        """What the next steps depend on beside the parameters; see :func:`state_of`."""

    def load(self, state: dict[str, Any]) -> None:
        """Go on from such a state."""

    def settings(self) -> str:
        """What the rule was made with beside the plans, in words."""


def make_rule(
    parameters: Tensor,
    plans: Sequence[TrainingPlan],
    model: nn.Module,
    optimizer: str | OptimizerFactory,
    schedule: ScheduleFactory | None,
) -> StepRule:
    """The rule that an optimizer's name or factory stands for.

    Args:
        parameters: ``R x p``; changed in place by the rule.
        plans: One for each replicate.
        model: Its trainable parameters give the shapes.
        optimizer: A name, or a factory.
        schedule: For ``torch.optim`` optimizers.
    """
    if callable(optimizer):
        return TorchRule(parameters, plans, model, optimizer, schedule)
    if schedule is not None:
        factories: dict[str, OptimizerFactory] = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}
        if optimizer not in factories:
            raise ValueError(
                f"`schedule` goes with optimizers of torch.optim; {optimizer!r} has none to follow."
            )
        return TorchRule(parameters, plans, model, factories[optimizer], schedule)
    return _RULES[optimizer](parameters, plans)


def state_of(rows: Sequence[int], state: dict[str, Any]) -> dict[str, Any]:
    """The part of a rule's state that some of its replicates have.

    What differs between replicates is a tensor with a row, or a list with an entry, for each.
    """
    rows, kept = list(rows), dict(state)
    for name, value in state.items():
        if isinstance(value, Tensor) and value.dim():
            kept[name] = value[rows]
        elif isinstance(value, list):
            kept[name] = [value[row] for row in rows]
    return kept


def _column(values: Sequence[float], like: Tensor) -> Tensor:
    return torch.tensor(values, dtype=torch.float64, device=like.device).unsqueeze(1).to(like.dtype)


class Descent:
    """Plain stochastic gradient descent."""

    def __init__(self, parameters: Tensor, plans: Sequence[TrainingPlan]) -> None:
        self._parameters = parameters
        rates = [-plan.learning_rate / plan.batch_size for plan in plans]
        self._rate = rates[0] if len(set(rates)) == 1 else None
        self._rates = _column(rates, parameters)

    def step(self, sums: Tensor) -> None:
        """See :class:`StepRule`."""
        moving = first_rows(self._parameters, sums.shape[0])
        if self._rate is not None:
            moving.add_(sums, alpha=self._rate)
        else:
            moving.addcmul_(sums, first_rows(self._rates, sums.shape[0]))

    def result(self) -> Tensor:
        """See :class:`StepRule`."""
        return self._parameters

    def state(self) -> dict[str, Any]:
        """See :class:`StepRule`."""
        return {}

    def load(self, state: dict[str, Any]) -> None:
        """See :class:`StepRule`."""

    def settings(self) -> str:
        """See :class:`StepRule`."""
        return ""


class Adam(Descent):
    """Adam with torch's default moments, all replicates in one fused update.

    Adam acts on each number alone: to it, the parameters of all replicates are one tensor.
    """

    def __init__(self, parameters: Tensor, plans: Sequence[TrainingPlan]) -> None:
        super().__init__(parameters, plans)
        self._batch_size = plans[0].batch_size
        self._rates = _column([plan.learning_rate for plan in plans], parameters)
        rates = {plan.learning_rate for plan in plans}
        # Rates of their own are applied to the steps of an Adam of rate 1.
        self._moved = parameters if len(rates) == 1 else torch.zeros_like(parameters)
        self._adam = torch.optim.Adam(
            [self._moved], lr=plans[0].learning_rate if len(rates) == 1 else 1.0, fused=True
        )

    def step(self, sums: Tensor) -> None:
        """See :class:`StepRule`."""
        (group,) = self._adam.param_groups
        (target,) = group["params"]
        if len(target) > len(sums):  # some replicates have taken their last step
            kept = {
                name: value[: len(sums)] if value.dim() else value
                for name, value in self._adam.state.pop(target).items()
            }
            target = self._moved[: len(sums)]
            group["params"], self._adam.state[target] = [target], kept
        target.grad = sums.div_(self._batch_size)
        self._adam.step()
        if self._moved is not self._parameters:
            self._parameters[: len(sums)].addcmul_(target, self._rates[: len(sums)])
            target.zero_()

    def state(self) -> dict[str, Any]:
        """See :class:`StepRule`."""
        (target,) = self._adam.param_groups[0]["params"]
        return dict(self._adam.state[target])

    def load(self, state: dict[str, Any]) -> None:
        """See :class:`StepRule`."""
        # Where Adam keeps each of them, its count of steps included, is its own affair.
        (target,) = self._adam.param_groups[0]["params"]
        self._adam.state[target] = {
            name: value.to(self._parameters.device) for name, value in state.items()
        }


def _made(rule: str, kind: Any, make: Callable[[], Any]) -> Any:
    """What a caller's function makes, or an error that says what it must make."""
    try:
        made = make()
    except TypeError as error:
        raise TypeError(f"{rule}, but raised {error}") from error
    if not isinstance(made, kind):
        raise TypeError(f"{rule}, got {type(made).__name__}.")
    return made


class TorchRule:
    """Any optimizer of ``torch.optim`` with any schedule: one for each replicate.

    Each gets its replicate's parameters in their own shapes, so that also optimizers that look at
    whole layers see what they would see in a loop of one's own. Optimizers with ``train()`` and
    ``eval()`` (schedule-free ones) are asked for the parameters to evaluate.

    Args:
        parameters: ``R x p``.
        plans: One for each replicate.
        model: Its trainable parameters give the shapes.
        factory: Makes the optimizer.
        schedule: Makes the schedule, if any.
    """

    def __init__(
        self,
        parameters: Tensor,
        plans: Sequence[TrainingPlan],
        model: nn.Module,
        factory: OptimizerFactory,
        schedule: ScheduleFactory | None,
    ) -> None:
        self._parameters, self._model = parameters, model
        self._batch_size = plans[0].batch_size
        self._rows = []
        for row, plan in zip(parameters, plans, strict=True):
            leaves = [view[0] for view in parameter_views(row.unsqueeze(0), model)]
            optimizer = _made(
                "`optimizer` must make a torch.optim.Optimizer from a list of parameters and lr=",
                torch.optim.Optimizer,
                partial(factory, leaves, lr=plan.learning_rate),
            )
            made = None
            if schedule is not None:
                made = _made(
                    "`schedule` must make a schedule of torch.optim.lr_scheduler from an optimizer "
                    "and the number of steps",
                    (torch.optim.lr_scheduler.LRScheduler, NoneType),
                    partial(schedule, optimizer, plan.steps),
                )
            if isinstance(made, torch.optim.lr_scheduler.ReduceLROnPlateau):
                raise ValueError(
                    "ReduceLROnPlateau asks for a measured value after each epoch, which would be "
                    "computed from the records without noise. Use a schedule of the steps alone."
                )
            _set_mode(optimizer, "train")
            self._rows.append((leaves, optimizer, made))

    def step(self, sums: Tensor) -> None:
        """See :class:`StepRule`."""
        for (leaves, optimizer, schedule), gradient in zip(
            self._rows, sums.div_(self._batch_size), strict=False
        ):
            for leaf, part in zip(
                leaves, parameter_views(gradient.unsqueeze(0), self._model), strict=True
            ):
                leaf.grad = part[0]
            optimizer.step()
            if schedule is not None:
                schedule.step()

    def result(self) -> Tensor:
        """See :class:`StepRule`."""
        before = self._parameters.clone()
        for mode in ("eval", "train"):
            for _, optimizer, _ in self._rows:
                _set_mode(optimizer, mode)
            if mode == "eval":
                evaluated = self._parameters.clone()
        self._parameters.copy_(before)  # there and back again is not exact
        return evaluated

    def state(self) -> dict[str, Any]:
        """See :class:`StepRule`."""
        return {
            "optimizers": [optimizer.state_dict() for _, optimizer, _ in self._rows],
            "schedules": [None if s is None else s.state_dict() for _, _, s in self._rows],
        }

    def load(self, state: dict[str, Any]) -> None:
        """See :class:`StepRule`."""
        for (_, optimizer, schedule), own, times in zip(
            self._rows, state["optimizers"], state["schedules"], strict=True
        ):
            optimizer.load_state_dict(own)
            if schedule is not None:
                schedule.load_state_dict(times)

    def settings(self) -> str:
        """See :class:`StepRule`; all replicates have the same."""
        _, optimizer, schedule = self._rows[0]
        times = None if schedule is None else [type(schedule).__name__, schedule.state_dict()]
        return json.dumps([repr(optimizer), times], default=lambda value: type(value).__name__)


def _set_mode(optimizer: torch.optim.Optimizer, mode: str) -> None:
    change = getattr(optimizer, mode, None)
    if callable(change):
        change()


class ScheduleFree(Descent):
    r"""Schedule-free descent [Defazio2024]: a constant rate, and an average in place of a schedule.

    ``z`` descends along gradients at ``y = .1 z + .9 x``, and ``x`` is the mean of all ``z``: it is
    what is handed out. No schedule needs to know when the training ends, so that each point of a
    curve is as good as a training that was planned to end there.
    """

    _share = 0.9

    def __init__(self, parameters: Tensor, plans: Sequence[TrainingPlan]) -> None:
        super().__init__(parameters, plans)
        self._steps = 0
        self._descending, self._average = parameters.clone(), parameters.clone()

    def step(self, sums: Tensor) -> None:
        """See :class:`StepRule`."""
        k = len(sums)
        self._steps += 1
        self._descending[:k].addcmul_(sums, self._rates[:k])
        self._average[:k].lerp_(self._descending[:k], 1 / (self._steps + 1))
        torch.lerp(self._descending[:k], self._average[:k], self._share, out=self._parameters[:k])

    def result(self) -> Tensor:
        """See :class:`StepRule`."""
        return self._average

    def state(self) -> dict[str, Any]:
        """See :class:`StepRule`."""
        return {"steps": self._steps, "z": self._descending, "x": self._average}

    def load(self, state: dict[str, Any]) -> None:
        """See :class:`StepRule`."""
        self._steps = state["steps"]
        self._descending.copy_(state["z"])
        self._average.copy_(state["x"])


class ScaleFree(Descent):
    r"""Descent whose steps are a distance over the gradients so far [Ward2019], and their average.

    .. math:: x_{t+1} = x_t - \frac{D}{\sqrt{\sum_{s \le t} |g_s|^2}} g_t

    for noisy mean gradients ``g_t``. The scale of the loss, the clipping norm, the noise, the batch
    size and the number of steps cancel: what is left is the distance ``D`` that the weights may
    go, noise included, and it takes the place of the learning rate. One ``D``,
    :data:`~.plan.DISTANCE`, came within .025 of the best learning rate of SGD for logistic
    regressions and a network, at epsilons from .1 to 4 (``benchmarks/fewer_knobs.py``). A distance
    that is learnt on the way [Ivgi2023] did not: where noise is most of the gradient, it does not
    grow.

    The mean of the iterates is handed out, later ones weighing more: the k-th from the end about
    ``(1 - k / t)^8``.
    """

    _late = 8

    def __init__(self, parameters: Tensor, plans: Sequence[TrainingPlan]) -> None:
        super().__init__(parameters, plans)
        self._batch_size = plans[0].batch_size
        self._distances = _column([plan.learning_rate for plan in plans], parameters)
        self._steps = 0
        self._squares = parameters.new_zeros(len(parameters), 1)
        self._average = parameters.clone()

    def step(self, sums: Tensor) -> None:
        """See :class:`StepRule`."""
        k = len(sums)
        gradient, here = sums.div_(self._batch_size), self._parameters[:k]
        self._steps += 1
        self._squares[:k] += gradient.square().sum(dim=1, keepdim=True)
        # A gradient of zero, without noise, moves nothing, whatever it is divided by.
        smallest = torch.finfo(gradient.dtype).tiny
        here.addcmul_(
            gradient, self._distances[:k] / self._squares[:k].clamp_min(smallest).sqrt(), value=-1
        )
        self._average[:k].lerp_(here, (1 + self._late) / (self._steps + self._late))

    def result(self) -> Tensor:
        """See :class:`StepRule`."""
        return self._average

    def state(self) -> dict[str, Any]:
        """See :class:`StepRule`."""
        return {"steps": self._steps, "squares": self._squares, "average": self._average}

    def load(self, state: dict[str, Any]) -> None:
        """See :class:`StepRule`."""
        self._steps = state["steps"]
        self._squares.copy_(state["squares"])
        self._average.copy_(state["average"])


_RULES: dict[str, Callable[[Tensor, Sequence[TrainingPlan]], StepRule]] = {
    "sgd": Descent,
    "adam": Adam,
    "schedule_free": ScheduleFree,
    "scale_free": ScaleFree,
}
