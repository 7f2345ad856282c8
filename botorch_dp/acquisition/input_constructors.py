"""How BoTorch and Ax build these acquisition functions from what they know of an experiment."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, cast

import torch
from botorch.acquisition.input_constructors import acqf_input_constructor
from botorch.acquisition.multi_objective.objective import (
    IdentityMCMultiOutputObjective,
    MCMultiOutputObjective,
)
from botorch.acquisition.objective import PosteriorTransform
from botorch.exceptions import UnsupportedError
from botorch.models.model import Model
from botorch.utils.datasets import SupervisedDataset
from botorch.utils.multi_objective.box_decompositions.non_dominated import (
    FastNondominatedPartitioning,
)
from botorch.utils.transforms import is_ensemble
from torch import Tensor

from botorch_dp._checks import needs_extra
from botorch_dp.acquisition.gradient_trace import GradientTrace
from botorch_dp.acquisition.hvpoi import (
    HypervolumeProbabilityOfImprovement,
    LogHypervolumeProbabilityOfImprovement,
    Region,
)
from botorch_dp.acquisition.ucb import PrivateUpperConfidenceBound, UCBSchedule
from botorch_dp.models.gradient import exact_gp


@acqf_input_constructor(PrivateUpperConfidenceBound)
def construct_inputs_private_ucb(
    model: Model,
    schedule: UCBSchedule,
    training_data: SupervisedDataset | None = None,
    step: int | None = None,
    posterior_transform: PosteriorTransform | None = None,
    X_pending: Tensor | None = None,
) -> dict[str, Any]:
    """Keyword arguments of :class:`PrivateUpperConfidenceBound`.

    Without ``step`` it is one more than the observations. Pending points are refused.
    """
    if X_pending is not None:
        raise UnsupportedError(
            "PrivateUpperConfidenceBound does not account for pending points: run one trial at a "
            f"time, got `X_pending` of shape {tuple(X_pending.shape)}."
        )
    if step is None:
        if not isinstance(training_data, SupervisedDataset):
            raise ValueError(
                "`step` cannot be counted without a single data set of observations: pass `step`."
            )
        step = training_data.X.shape[-2] + 1
    return {
        "model": model,
        "schedule": schedule,
        "step": step,
        "posterior_transform": posterior_transform,
    }


@acqf_input_constructor(HypervolumeProbabilityOfImprovement, LogHypervolumeProbabilityOfImprovement)
def construct_inputs_hvpoi(
    model: Model,
    training_data: SupervisedDataset | dict[Hashable, SupervisedDataset] | None = None,
    X_baseline: Tensor | None = None,
    ref_point: Tensor | None = None,
    objective: MCMultiOutputObjective | None = None,
    weights: Sequence[float] | Tensor | None = None,
    outcomes: Sequence[int] | None = None,
    constraints: list[Callable[[Tensor], Tensor]] | None = None,
    posterior_transform: PosteriorTransform | None = None,
    X_pending: Tensor | None = None,
    region: Region = "unbounded",
    tau_relu: float | None = None,
) -> dict[str, Any]:
    """Keyword arguments of the hypervolume-based probability of improvement and its logarithm.

    The front consists of posterior means at the observed points rather than of the observations:
    the best of many noisy observations are too optimistic.

    Args:
        training_data: The observations so far; they give ``X_baseline`` when it is omitted.
        X_baseline: An ``n x d``-dim tensor of points that may form the front.
        objective: How the objectives follow from the outcomes. Ax names the directions only
            here. Weights and a choice of outcomes are understood, nonlinear objectives are not.
        constraints: Refused unless None.
        tau_relu: Only the logarithm takes it. All others are those of the acquisition functions.
    """
    if constraints is not None:
        raise UnsupportedError(
            "HVPoI does not take outcome constraints: make the constrained outcome an objective, "
            "or use qLogNoisyExpectedHypervolumeImprovement."
        )
    if ref_point is None:
        raise ValueError(
            "`ref_point` is missing: give a worst acceptable value for each objective (in Ax: "
            "objective thresholds)."
        )
    if objective is not None:
        if not isinstance(objective, IdentityMCMultiOutputObjective):
            raise UnsupportedError(
                "HVPoI is analytic: `objective` may only weight and select outcomes, got "
                f"{type(objective).__name__}; use a `posterior_transform`."
            )
        if weights is not None or outcomes is not None:
            raise ValueError("Pass either `objective` or `weights` and `outcomes`, not both.")
        weights = getattr(objective, "weights", None)
        if hasattr(objective, "outcomes"):
            outcomes = cast(Tensor, objective.outcomes).tolist()
    if X_baseline is None:
        if training_data is None:
            raise ValueError("Pass `X_baseline` or `training_data`: the front needs points.")
        datasets = training_data.values() if isinstance(training_data, dict) else [training_data]
        X_baseline = torch.cat([data.X for data in datasets]).unique(dim=0)
    with torch.no_grad():
        posterior: Any = model.posterior(X_baseline, posterior_transform=posterior_transform)
    mean = posterior.mean
    if is_ensemble(model):
        mean = mean.mean(dim=-3)
    if outcomes is not None:
        mean = mean[..., list(outcomes)]
    if weights is not None:
        mean = mean * torch.as_tensor(weights, dtype=mean.dtype, device=mean.device)
    partitioning = FastNondominatedPartitioning(
        torch.as_tensor(ref_point, dtype=mean.dtype, device=mean.device), Y=mean
    )
    inputs = {
        "model": model,
        "ref_point": partitioning.ref_point,
        "partitioning": partitioning,
        "region": region,
        "weights": weights,
        "outcomes": outcomes,
        "posterior_transform": posterior_transform,
        "X_pending": X_pending,
    }
    return inputs if tau_relu is None else {**inputs, "tau_relu": tau_relu}


@acqf_input_constructor(GradientTrace)
def construct_inputs_gradient_trace(
    model: Model, location: Sequence[float] | Tensor, X_pending: Tensor | None = None
) -> dict[str, Any]:
    """Keyword arguments of :class:`GradientTrace`."""
    inputs = exact_gp(model).train_inputs[0]
    return {
        "model": model,
        "location": torch.as_tensor(location, dtype=inputs.dtype, device=inputs.device),
        "X_pending": X_pending,
    }


def register_with_ax() -> None:
    """Let Ax save and load generation strategies that use these acquisition functions.

    Call it once in each process that saves or loads such an experiment; calling it again does no
    harm.

    Example:
        >>> from ax.api.client import Client
        >>> from botorch_dp.acquisition import register_with_ax
        >>> register_with_ax()
        >>> client = Client.load_from_json_file("experiment.json")
    """
    with needs_extra("ax", "`register_with_ax`"):
        from ax.storage.botorch_modular_registry import register_acquisition_function
        from ax.storage.json_store.registry import CORE_DECODER_REGISTRY

    for acquisition_function in (
        GradientTrace,
        HypervolumeProbabilityOfImprovement,
        LogHypervolumeProbabilityOfImprovement,
        PrivateUpperConfidenceBound,
    ):
        register_acquisition_function(acquisition_function)
    # An option of PrivateUpperConfidenceBound; Ax writes any data class, but reads known ones only.
    CORE_DECODER_REGISTRY[UCBSchedule.__name__] = UCBSchedule
