r"""Optimizers and schedules: how parameters move along noisy gradients.

A rule sees the parameters and the noisy sums of clipped gradients, both of which the guarantee
allows to release, and nothing else of the records: whatever it does is post-processing. It moves
the parameters of all replicates at once, one row of a matrix for each.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from botorch_dp.training.engines.base import parameter_views, stack_parameters
from botorch_dp.training.plan import TrainingPlan

#: Called with a list of parameters and ``lr=``: a class of ``torch.optim``, or a partial of one.
OptimizerFactory = Callable[..., torch.optim.Optimizer]
#: Called with an optimizer and the number of steps; stepped after every step.
ScheduleFactory = Callable[[torch.optim.Optimizer, int], torch.optim.lr_scheduler.LRScheduler]


class StepRule:
    """Plain stochastic gradient descent; subclasses step otherwise.

    A subclass names in :attr:`kept` what its next steps depend on beside the parameters. That is
    what a checkpoint stores; a subclass that keeps something else overrides :meth:`state` and
    :meth:`load`.

    Args:
        parameters: ``R x p``; changed in place, and by nobody else.
        plan: Of every replicate.
    """

    kept: ClassVar[tuple[str, ...]] = ()

    def __init__(self, parameters: Tensor, plan: TrainingPlan) -> None:
        self.parameters = parameters
        self.rate, self.batch_size = plan.learning_rate, plan.batch_size

    def step(self, sums: Tensor) -> None:
        """One step along the noisy sums, ``R x p``, which may change."""
        self.parameters.add_(sums, alpha=-self.rate / self.batch_size)

    def result(self) -> Tensor:
        """The parameters to evaluate and to hand out, ``R x p``; not to be changed."""
        return self.parameters

    def state(self) -> dict[str, Any]:
        """The state of the optimizer, for a checkpoint."""
        return {name: getattr(self, name) for name in self.kept}

    def load(self, state: dict[str, Any]) -> None:
        """Restore the state of the optimizer."""
        for name, value in state.items():
            if isinstance(value, Tensor):
                getattr(self, name).copy_(value)
            else:
                setattr(self, name, value)

    def settings(self) -> str:
        """What the rule was made with beside the plan, in words."""
        return ""


def make_rule(
    parameters: Tensor,
    plan: TrainingPlan,
    model: nn.Module,
    optimizer: str | OptimizerFactory,
    schedule: ScheduleFactory | None,
) -> StepRule:
    """The rule that an optimizer's name or factory stands for.

    Args:
        parameters: ``R x p``; changed in place by the rule.
        plan: Of every replicate.
        model: Its trainable parameters give the shapes.
        optimizer: A name, or a factory.
        schedule: For ``torch.optim`` optimizers.
    """
    if schedule is not None and not callable(optimizer):
        factories: dict[str, OptimizerFactory] = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}
        if optimizer not in factories:
            raise ValueError(
                f"`schedule` goes with optimizers of torch.optim; {optimizer!r} has none to follow."
            )
        optimizer = factories[optimizer]
    if callable(optimizer):
        return TorchRule(parameters, plan, model, optimizer, schedule)
    return _RULES[optimizer](parameters, plan)


def check_rule(
    plan: TrainingPlan,
    model: nn.Module,
    optimizer: str | OptimizerFactory,
    schedule: ScheduleFactory | None,
) -> None:
    """Raise unless a rule can take a step along given gradients. Arguments as for make_rule."""
    rows = stack_parameters([model])
    try:
        make_rule(rows, plan, model, optimizer, schedule).step(torch.ones_like(rows))
    except Exception as error:
        raise ValueError(
            f"`optimizer` {plan.optimizer} with this `schedule` cannot take a step along given "
            f"gradients ({type(error).__name__}: {error}). Pass a name, or what makes an optimizer "
            "of torch.optim from a list of parameters and lr=, such as torch.optim.AdamW, and a "
            "schedule from an optimizer and the number of steps."
        ) from error


class Adam(StepRule):
    """Adam with torch's default moments, all replicates in one fused update.

    Adam acts on each number alone: to it, the parameters of all replicates are one tensor.
    """

    def __init__(self, parameters: Tensor, plan: TrainingPlan) -> None:
        super().__init__(parameters, plan)
        self._adam = torch.optim.Adam([parameters], lr=self.rate, fused=True)

    def step(self, sums: Tensor) -> None:
        self.parameters.grad = sums.div_(self.batch_size)
        self._adam.step()

    def state(self) -> dict[str, Any]:
        return dict(self._adam.state[self.parameters])

    def load(self, state: dict[str, Any]) -> None:
        # Where Adam keeps each of them, its count of steps included, is its own affair.
        device = self.parameters.device
        self._adam.state[self.parameters] = {n: value.to(device) for n, value in state.items()}


class ScaleFree(StepRule):
    r"""Steps of one mean square length for the whole training [Ward2019], and their late average.

    .. math:: x_{t+1} = x_t - \frac{D}{\sqrt{\frac{T}{t} \sum_{s \le t} |g_s|^2}} g_t

    for noisy mean gradients ``g_t`` of ``T`` steps. The scale of the loss, the clipping norm, the
    noise, the batch size and the number of steps cancel: what is left is the distance ``D`` that
    noise alone would carry the weights, and it takes the place of the learning rate;
    :func:`.untuned.suggest_settings` chooses it. A distance that is learnt on the way [Ivgi2023]
    did worse: where noise is most of the gradient, it does not grow.

    The mean square of the gradients so far takes the place of their sum, as of AdaGrad: with the
    sum the first step is as long as ``D`` whatever it says, and of a steady gradient under noise
    less is kept: 0.82 against 0.97 of what equal weights of all gradients would keep, after 144
    steps and the average.

    The mean of the iterates is handed out, later ones weighing more: the k-th from the end about
    ``(1 - k / t)^8``.
    """

    kept = ("steps", "squares", "average")
    _late = 8

    def __init__(self, parameters: Tensor, plan: TrainingPlan) -> None:
        super().__init__(parameters, plan)
        self.steps, self.planned, self.average = 0, plan.steps, parameters.clone()
        self.squares = parameters.new_zeros(len(parameters), 1)

    def step(self, sums: Tensor) -> None:
        gradient = sums.div_(self.batch_size)
        self.steps += 1
        self.squares += gradient.square().sum(dim=1, keepdim=True)
        # A gradient of zero, without noise, moves nothing, whatever it is divided by.
        squares = self.squares * (self.planned / self.steps)
        length = squares.clamp_min(torch.finfo(gradient.dtype).tiny).sqrt()
        self.parameters.addcmul_(gradient, self.rate / length, value=-1)
        self.average.lerp_(self.parameters, (1 + self._late) / (self.steps + self._late))

    def result(self) -> Tensor:
        return self.average


class TorchRule(StepRule):
    """Any optimizer of ``torch.optim`` with any schedule: one for each replicate.

    Each gets its replicate's parameters in their own shapes, so that also optimizers that look at
    whole layers see what they would see in a loop of one's own. Optimizers with ``train()`` and
    ``eval()`` (schedule-free ones) are asked for the parameters to evaluate.
    """

    def __init__(
        self,
        parameters: Tensor,
        plan: TrainingPlan,
        model: nn.Module,
        factory: OptimizerFactory,
        schedule: ScheduleFactory | None,
    ) -> None:
        super().__init__(parameters, plan)
        self._model = model
        self._rows: list[tuple[list[Tensor], torch.optim.Optimizer, Any]] = []
        for row in parameters:
            leaves = [view[0] for view in parameter_views(row.unsqueeze(0), model)]
            optimizer = factory(leaves, lr=plan.learning_rate)
            made = None if schedule is None else schedule(optimizer, plan.steps)
            if isinstance(made, torch.optim.lr_scheduler.ReduceLROnPlateau):
                raise ValueError(
                    "ReduceLROnPlateau asks for a measured value after each epoch, which would be "
                    "computed from the records without noise. Use a schedule of the steps alone."
                )
            _set_mode(optimizer, "train")
            self._rows.append((leaves, optimizer, made))

    def step(self, sums: Tensor) -> None:
        for own, gradient in zip(self._rows, sums.div_(self.batch_size), strict=True):
            leaves, optimizer, schedule = own
            parts = parameter_views(gradient.unsqueeze(0), self._model)
            for leaf, part in zip(leaves, parts, strict=True):
                leaf.grad = part[0]
            optimizer.step()
            if schedule is not None:
                schedule.step()

    def result(self) -> Tensor:
        before = self.parameters.clone()
        for _, optimizer, _ in self._rows:
            _set_mode(optimizer, "eval")
        evaluated = self.parameters.clone()
        for _, optimizer, _ in self._rows:
            _set_mode(optimizer, "train")
        self.parameters.copy_(before)  # there and back again is not exact
        return evaluated

    def state(self) -> dict[str, Any]:
        return {
            "optimizers": [optimizer.state_dict() for _, optimizer, _ in self._rows],
            "schedules": [None if s is None else s.state_dict() for _, _, s in self._rows],
        }

    def load(self, state: dict[str, Any]) -> None:
        each = zip(self._rows, state["optimizers"], state["schedules"], strict=True)
        for (_, optimizer, schedule), own, times in each:
            optimizer.load_state_dict(own)
            if schedule is not None:
                schedule.load_state_dict(times)

    def settings(self) -> str:
        _, optimizer, schedule = self._rows[0]  # all replicates have the same
        times = None if schedule is None else [type(schedule).__name__, schedule.state_dict()]
        return json.dumps([repr(optimizer), times], default=lambda value: type(value).__name__)


def _set_mode(optimizer: torch.optim.Optimizer, mode: str) -> None:
    getattr(optimizer, mode, lambda: None)()


_RULES: dict[str, type[StepRule]] = {
    "sgd": StepRule,
    "adam": Adam,
    "scale_free": ScaleFree,
}
