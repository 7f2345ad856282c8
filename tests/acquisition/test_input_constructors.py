"""The acquisition functions as BoTorch's registry builds them."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from botorch.acquisition.input_constructors import get_acqf_input_constructor
from botorch.acquisition.multi_objective.objective import (
    GenericMCMultiOutputObjective,
    IdentityMCMultiOutputObjective,
    WeightedMCMultiOutputObjective,
)
from botorch.exceptions.errors import UnsupportedError
from botorch.models import ModelListGP, SingleTaskGP
from botorch.utils.datasets import SupervisedDataset
from botorch.utils.multi_objective.box_decompositions.non_dominated import (
    FastNondominatedPartitioning,
)
from torch import Tensor

from botorch_dp.acquisition import (
    HypervolumeProbabilityOfImprovement,
    LogHypervolumeProbabilityOfImprovement,
)

DOUBLE = {"dtype": torch.double}
BOTH = [HypervolumeProbabilityOfImprovement, LogHypervolumeProbabilityOfImprovement]


@pytest.fixture
def X() -> Tensor:
    return torch.rand(8, 2, **DOUBLE)


@pytest.fixture
def Y(X: Tensor) -> Tensor:
    """An outcome to minimize, one that is no objective, and one to maximize."""
    return torch.stack([X.square().sum(-1), 100 + X[:, 1], X[:, 0]], dim=-1)


def dataset(X: Tensor, Y: Tensor, name: str = "all") -> SupervisedDataset:
    names = [f"{name}{index}" for index in range(Y.shape[-1])]
    return SupervisedDataset(
        X, Y, feature_names=[f"x{index}" for index in range(X.shape[-1])], outcome_names=names
    )


def build(kind: type, model: Any, **options: Any) -> Any:
    return kind(**get_acqf_input_constructor(kind)(model=model, **options))


@pytest.mark.parametrize("kind", BOTH)
def test_weights_and_order_come_from_the_objective(kind: type, X: Tensor, Y: Tensor) -> None:
    model = SingleTaskGP(X, Y)
    objective = WeightedMCMultiOutputObjective(
        weights=torch.tensor([1.0, -2.0], **DOUBLE), outcomes=[2, 0]
    )
    ref_point = torch.tensor([-0.5, -5.0], **DOUBLE)
    built = build(kind, model, X_baseline=X, ref_point=ref_point, objective=objective)
    # By hand, on a model of the two objectives alone.
    means = model.posterior(X).mean[:, [2, 0]].detach() * torch.tensor([1.0, -2.0])
    by_hand = kind(
        model,
        ref_point,
        FastNondominatedPartitioning(ref_point, Y=means),
        weights=[1.0, -2.0],
        outcomes=[2, 0],
    )
    test_X = torch.rand(20, 1, 2, **DOUBLE)
    torch.testing.assert_close(built(test_X), by_hand(test_X))
    # The wrong direction would be another function altogether.
    ignored = IdentityMCMultiOutputObjective(outcomes=[2, 0])
    wrong = build(kind, model, X_baseline=X, ref_point=ref_point, objective=ignored)
    assert (built(test_X) - wrong(test_X)).abs().max() > 0.1


@pytest.mark.parametrize("kind", BOTH)
def test_options_and_explicit_weights(kind: type, X: Tensor, Y: Tensor) -> None:
    model = SingleTaskGP(X, Y)
    built = build(
        kind,
        model,
        training_data=dataset(X, Y),
        ref_point=[-5.0, -0.5],
        weights=[-1.0, 1.0],
        outcomes=[0, 2],
        region="box",
        X_pending=X[:2] + 0.1,
    )
    assert built.region == "box" and built.outcomes == [0, 2]
    assert built.weights.tolist() == [-1.0, 1.0]
    assert torch.equal(built.X_pending, X[:2] + 0.1)
    assert torch.equal(
        built.partitioning.Y[:, 0].sort()[0], (-model.posterior(X).mean[:, 0]).sort()[0]
    )


def test_temperature_reaches_the_logarithm_only(X: Tensor, Y: Tensor) -> None:
    inputs = {"X_baseline": X, "ref_point": [0.0, 0.0, 0.0], "tau_relu": 1e-3}
    model = SingleTaskGP(X, Y)
    assert build(LogHypervolumeProbabilityOfImprovement, model, **inputs).tau_relu == 1e-3
    with pytest.raises(TypeError, match="tau_relu"):
        build(HypervolumeProbabilityOfImprovement, model, **inputs)


def test_points_of_several_data_sets_form_one_baseline(X: Tensor, Y: Tensor) -> None:
    """Outcomes observed at different points: the model predicts each where it was not."""
    data = {"a": dataset(X[:6], Y[:6, :1], "a"), "b": dataset(X[2:], Y[2:, 2:], "b")}
    model = ModelListGP(*(SingleTaskGP(part.X, part.Y) for part in data.values()))
    built = build(
        HypervolumeProbabilityOfImprovement, model, training_data=data, ref_point=[-1.0, -1.0]
    )
    assert built.partitioning.Y.shape == (8, 2)
    assert built(torch.rand(3, 1, 2, **DOUBLE)).shape == (3,)


def test_a_missing_reference_is_asked_for(X: Tensor, Y: Tensor) -> None:
    with pytest.raises(ValueError, match="`ref_point` is missing"):
        build(HypervolumeProbabilityOfImprovement, SingleTaskGP(X, Y), X_baseline=X)
    with pytest.raises(ValueError, match="`ref_point` must be finite"):
        build(
            HypervolumeProbabilityOfImprovement,
            SingleTaskGP(X, Y),
            X_baseline=X,
            ref_point=[0.0, math.nan, 0.0],
        )


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"constraints": [lambda samples: samples[..., 0]]}, UnsupportedError, "constraints"),
        (
            {"objective": GenericMCMultiOutputObjective(lambda samples, X=None: samples.exp())},
            UnsupportedError,
            "may only weight and select outcomes, got GenericMC",
        ),
        (
            {"objective": IdentityMCMultiOutputObjective(), "weights": [1.0, 1.0, 1.0]},
            ValueError,
            "either `objective` or `weights`",
        ),
        ({"temperature": 3}, TypeError, "temperature"),
    ],
)
def test_what_cannot_be_honoured_is_refused(
    options: dict[str, Any], error: type[Exception], message: str, X: Tensor, Y: Tensor
) -> None:
    with pytest.raises(error, match=message):
        build(
            HypervolumeProbabilityOfImprovement,
            SingleTaskGP(X, Y),
            X_baseline=X,
            ref_point=[0.0, 0.0, 0.0],
            **options,
        )
