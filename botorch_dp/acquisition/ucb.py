r"""Upper confidence bounds with the schedule that the private releases are calibrated to."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from botorch.acquisition.analytic import AnalyticAcquisitionFunction
from botorch.acquisition.objective import PosteriorTransform
from botorch.exceptions import UnsupportedError
from botorch.models.model import Model
from botorch.utils.transforms import average_over_ensemble_models, t_batch_mode_transform
from gpytorch.models import ExactGP
from torch import Tensor

from botorch_dp._checks import check_delta, check_integer, check_positive, check_tensor
from botorch_dp.models.public import from_gpytorch


@dataclass(frozen=True)
class UCBSchedule:
    r"""Widths of the confidence bounds: ``beta_t = 2 log(n t^2 pi^2 / (split delta))``.

    With ``n`` choices, ``|f(x) - mean_{t-1}(x)| <= sqrt(beta_t) std_{t-1}(x)`` for all choices and
    all steps ``t >= 1`` with probability at least ``1 - split delta / 6`` over the prior
    [Srinivas2010]: ``P(|Z| > sqrt(beta)) <= exp(-beta / 2)`` and ``sum 1 / t^2 = pi^2 / 6``.

    Args:
        num_choices: The number ``n`` of choices.
        delta: Probability left to a failure of the bounds.
        split: 3 in [Kusner2015], which needs the bounds for two data sets; 6 in
            [Kharkovskii2020].

    Example:
        >>> schedule = UCBSchedule(1000, delta=1e-5)
        >>> beta = schedule(1)
    """

    num_choices: int
    delta: float = field(kw_only=True)
    split: float = field(default=3.0, kw_only=True)

    def __post_init__(self) -> None:
        check_integer("num_choices", self.num_choices)
        check_delta("delta", self.delta)
        check_positive("split", self.split)
        if self(1) <= 0:
            raise ValueError(
                f"`split * delta` = {self.split * self.delta:g} is too large for "
                f"{self.num_choices} choices: the bounds would have no width. Choose a smaller "
                "`delta`."
            )

    def __call__(self, step: int) -> float:
        """``beta_t`` for the step ``t = 1, 2, ...``: the one after ``t - 1`` observations."""
        step = check_integer("step", step)
        return 2 * (
            math.log(self.num_choices)
            + 2 * math.log(step * math.pi)
            - math.log(self.split * self.delta)
        )


class PrivateUpperConfidenceBound(AnalyticAcquisitionFunction):
    r"""Single-outcome upper confidence bound with the schedule of [Kusner2015].

    ``UCB_t(x) = mean(x) + sqrt(beta_t) std(x)``, where ``beta_t`` is ``schedule(step)``.

    On its own the function guarantees nothing: it is the search that the releases of
    :mod:`botorch_dp.release` are calibrated to, and they need a model whose prior is public (see
    :func:`botorch_dp.models.check_public`). The choice made by it may not be published; only a
    release of it may.

    Args:
        model: A single-outcome model, batched or not, a GPyTorch ``ExactGP``, or a multi-outcome
            model with a ``posterior_transform``. It is never changed: an ``X`` of another dtype is
            refused.
        schedule: The widths of the confidence bounds.
        step: The step ``t``, one more than the number of observations so far.
        posterior_transform: Turns a multi-outcome posterior into a single-outcome one.

    Example:
        >>> choices = torch.rand(1000, 2, dtype=torch.double)
        >>> schedule = UCBSchedule(len(choices), delta=1e-5)
        >>> model = public_gp(train_X, train_Y, kernel=MaternKernel(), noise_std=0.1)
        >>> acqf = PrivateUpperConfidenceBound(model, schedule=schedule, step=len(train_X) + 1)
        >>> candidate, value = optimize_acqf_discrete(acqf, q=1, choices=choices)
    """

    beta: Tensor

    def __init__(
        self,
        model: Model | ExactGP,
        *,
        schedule: UCBSchedule,
        step: int,
        posterior_transform: PosteriorTransform | None = None,
    ) -> None:
        super().__init__(model=from_gpytorch(model), posterior_transform=posterior_transform)
        self.register_buffer("beta", torch.tensor(schedule(step), dtype=torch.double, device="cpu"))

    def set_X_pending(self, X_pending: Tensor | None = None) -> None:
        """Accept only that nothing is pending: the schedule is for one point at a time."""
        if X_pending is not None:
            raise UnsupportedError(
                f"{type(self).__name__} is sequential: its confidence bounds do not account for "
                "pending points. Wait for their outcomes before asking for the next point."
            )

    @t_batch_mode_transform(expected_q=1)
    @average_over_ensemble_models  # type: ignore[arg-type]
    def forward(self, X: Tensor) -> Tensor:
        """The bounds at ``(b1 x ... bk) x 1 x d`` candidates: ``b1 x ... bk``."""
        check_same_dtype(self.model, X)
        mean, sigma = self._mean_and_sigma(X)  # each (b1 x ... bk) x 1
        assert sigma is not None  # it is computed unless told otherwise
        return (mean + self.beta.to(mean).sqrt() * sigma).squeeze(-1)


def check_same_dtype(model: Model, X: Tensor) -> None:
    """Raise unless ``X`` has the dtype of the model.

    BoTorch's analytic functions move themselves, and with them the model that others share, to the
    dtype of ``X``: one evaluation in single precision would spoil a double model for good.
    """
    check_tensor("X", X, finite=False)
    dtype = _floating_dtype(model)
    if dtype is not None and X.dtype != dtype:
        raise ValueError(
            f"`X` has dtype {X.dtype}, but the model has {dtype}; evaluating it would convert the "
            f"model. Pass `X.to({dtype})`."
        )


def _floating_dtype(model: Model) -> torch.dtype | None:
    """The dtype of the model's data or parameters, or None if it has neither."""
    inputs = getattr(model, "train_inputs", None) or ()
    candidates = [part for part in inputs if isinstance(part, Tensor)]
    for tensor in (*candidates, *model.parameters(), *model.buffers()):
        if tensor.is_floating_point():
            return tensor.dtype
    return None
