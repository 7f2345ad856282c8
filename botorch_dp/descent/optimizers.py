"""Optimizers that know how much of a gradient is noise."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from botorch_dp._checks import check_nonnegative, check_positive, checked


@checked
class NoiseAwareAdagrad(torch.optim.Optimizer):
    r"""AdaGrad [Duchi2011] that does not count the privacy noise as gradient.

    AdaGrad divides by the root of the summed squares of the gradients. With noise of known
    variance ``s^2`` on each, that sum grows by ``s^2`` a step even where the gradient is zero. Its
    expectation is subtracted:

    ``v_t = max(sum_{i <= t} g_i^2 - t s^2, sqrt(2 t) s^2)``,   ``x -= lr g_t / sqrt(v_t)``.

    The floor is the standard deviation of a sum of ``t`` squared noises: below it the difference
    says nothing. The released gradients are all it uses, so it is post-processing.

    Args:
        params: Parameters to optimize.
        lr: Step size.
        noise_std: Standard deviation of the noise in each coordinate. With None,
            :class:`~botorch_dp.descent.DPGIBO` fills it in; zero is plain AdaGrad.

    Example:
        >>> DPGIBO(..., optimizer=lambda params: NoiseAwareAdagrad(params, lr=0.1))
    """

    def __init__(
        self, params: Iterable[Tensor], lr: float = 0.1, *, noise_std: float | None = None
    ) -> None:
        check_positive("lr", lr)
        if noise_std is not None:
            check_nonnegative("noise_std", noise_std)
        params = list(params)
        if not params:
            raise ValueError("`params` must hold at least one tensor.")
        super().__init__(params, {"lr": lr, "noise_std": noise_std})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Take one step along the gradients that the parameters hold."""
        if closure is not None:
            raise ValueError("`closure` must be None: a private gradient is computed only once.")
        for group in self.param_groups:
            if group["noise_std"] is None:
                raise ValueError("`noise_std` is not set: pass it, or use the optimizer in DPGIBO.")
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, parameter.grad, self.state[parameter], group)

    @staticmethod
    def _update(
        parameter: Tensor, gradient: Tensor, state: dict[str, Any], group: dict[str, Any]
    ) -> None:
        if not state:
            state["step"] = 0
            state["squares"] = torch.zeros_like(parameter)
        state["step"] += 1
        state["squares"] += gradient.square()
        variance = group["noise_std"] ** 2
        floor = max((2 * state["step"]) ** 0.5 * variance, torch.finfo(parameter.dtype).tiny)
        scale = (state["squares"] - state["step"] * variance).clamp_min(floor).sqrt()
        parameter.sub_(group["lr"] * gradient / scale)
