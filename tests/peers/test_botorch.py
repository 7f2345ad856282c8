"""What BoTorch's own tests ask of EHVI and of UCB, of the acquisition functions here."""

from __future__ import annotations

import copy
import itertools
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from botorch.acquisition import UpperConfidenceBound
from botorch.acquisition.fixed_feature import FixedFeatureAcquisitionFunction
from botorch.acquisition.multi_objective.analytic import ExpectedHypervolumeImprovement
from botorch.acquisition.objective import ScalarizedPosteriorTransform
from botorch.exceptions import BotorchError, UnsupportedError
from botorch.models import (
    KroneckerMultiTaskGP,
    MixedSingleTaskGP,
    ModelListGP,
    MultiTaskGP,
    SingleTaskGP,
)
from botorch.models.transforms import Normalize, Standardize
from botorch.optim import optimize_acqf_discrete
from botorch.optim.optimize import optimize_acqf_list
from botorch.utils.multi_objective.box_decompositions import (
    FastNondominatedPartitioning,
    NondominatedPartitioning,
)
from botorch.utils.multi_objective.hypervolume import Hypervolume
from botorch.utils.testing import MockModel, MockPosterior
from torch import Tensor

from botorch_dp.acquisition import (
    HypervolumeProbabilityOfImprovement,
    LogHypervolumeProbabilityOfImprovement,
    PrivateUpperConfidenceBound,
    UCBSchedule,
)

DTYPES = (torch.float, torch.double)
CRITERIA = (HypervolumeProbabilityOfImprovement, LogHypervolumeProbabilityOfImprovement)
SCHEDULE = UCBSchedule(100, delta=1e-3)
FRONTS = {
    2: [[4.0, 5.0], [5.0, 5.0], [8.5, 3.5], [8.5, 3.0], [9.0, 1.0]],
    3: [[4.0, 2.0, 3.0], [2.0, 4.0, 1.0], [1.0, 1.0, 5.0]],
}
PARTITIONINGS = (NondominatedPartitioning, FastNondominatedPartitioning)


def mock(mean: Any, variance: float, dtype: torch.dtype) -> MockModel:
    mean = torch.as_tensor(mean, dtype=dtype)
    return MockModel(MockPosterior(mean=mean, variance=torch.full_like(mean, variance)))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("m", FRONTS)
@pytest.mark.parametrize("kind", PARTITIONINGS)
def test_without_variance_it_is_the_hypervolume_improvement(
    m: int, kind: Any, dtype: torch.dtype
) -> None:
    ref_point, front = torch.zeros(m, dtype=dtype), torch.tensor(FRONTS[m], dtype=dtype)
    partitioning, X = kind(ref_point, Y=front), torch.zeros(1, 1, dtype=dtype)
    before = Hypervolume(ref_point).compute(partitioning.pareto_Y)
    for mean in ([[10.0] * m], [[5.0] * m], [[0.5] * m], [[6.0, 4.5, 2.5][:m]]):
        model = mock(mean, 1e-12, dtype)
        ours = HypervolumeProbabilityOfImprovement(model, ref_point, partitioning)
        theirs = ExpectedHypervolumeImprovement(model, ref_point, partitioning)
        every = torch.cat((front, torch.tensor(mean, dtype=dtype)))
        after = Hypervolume(ref_point).compute(kind(ref_point, Y=every).pareto_Y)
        torch.testing.assert_close(ours(X), theirs(X), rtol=1e-4, atol=1e-4)
        assert float(ours(X)) == pytest.approx(after - before, rel=1e-4, abs=1e-4)


@pytest.mark.parametrize("kind", PARTITIONINGS)
def test_a_partitioning_without_outcomes_and_one_without_a_front(kind: Any) -> None:
    model, ref_point = mock([[1.0, 1.0]], 1.0, torch.double), torch.zeros(2, dtype=torch.double)
    for criterion in CRITERIA:
        with pytest.raises(ValueError, match="`partitioning` holds no outcomes yet"):
            criterion(model, ref_point, kind(ref_point))
        empty = kind(ref_point, Y=torch.empty(0, 2, dtype=torch.double))
        assert criterion(model, ref_point, empty)(torch.zeros(1, 1).double()).isfinite()
        with pytest.raises(ValueError, match="`ref_point` must be"):
            criterion(model, ref_point[:1], empty)


def data(columns: int = 2) -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    X = torch.rand(10, columns, dtype=torch.double)
    return X, torch.stack([X.sum(-1), 1 - X.square().sum(-1)], dim=-1)


def _models() -> dict[str, Callable[[], Any]]:
    X, Y = data()
    noise = torch.full_like(Y, 1e-3)
    tasks = torch.cat([torch.cat((X, torch.full((10, 1), t).double()), -1) for t in (0, 1)])
    mixed = torch.cat((X, (X[:, :1] > 0.5).double()), -1)
    how: dict[str, Any] = {"input_transform": Normalize(2), "outcome_transform": Standardize(2)}
    return {
        "single task": lambda: SingleTaskGP(X, Y),
        "known noise": lambda: SingleTaskGP(X, Y, noise),
        "transforms": lambda: SingleTaskGP(X, Y, **how),
        "list": lambda: ModelListGP(*(SingleTaskGP(X, Y[:, [k]]) for k in (0, 1))),
        "mixed": lambda: MixedSingleTaskGP(mixed, Y, cat_dims=[2]),
        "Kronecker": lambda: KroneckerMultiTaskGP(X, Y),
        "multi-task": lambda: MultiTaskGP(tasks, torch.cat((Y[:, :1], Y[:, 1:])), task_feature=-1),
    }


MODELS = _models()
#: Models that BoTorch itself cannot condition on points without refitting them.
NOT_CONDITIONED = ("Kronecker", "multi-task")


def criterion_of(name: str, kind: Any = LogHypervolumeProbabilityOfImprovement) -> Any:
    _, Y = data()
    ref_point = torch.tensor([0.0, -1.0], dtype=torch.double)
    return kind(MODELS[name](), ref_point, FastNondominatedPartitioning(ref_point, Y=Y))


@pytest.mark.parametrize("name", MODELS)
def test_kinds_of_models(name: str) -> None:
    """Values, gradients, a copy, state, and points under evaluation, where a model takes them."""
    columns = 3 if name == "mixed" else 2
    points = torch.full((3, 1, columns), 0.9, dtype=torch.double)
    points[:, 0, 0] = torch.tensor([0.2, 0.5, 0.9], dtype=torch.double)
    if name == "mixed":
        points[..., 2] = 1.0
    for kind in CRITERIA:
        criterion = criterion_of(name, kind)
        value = criterion(points)
        assert value.shape == (3,) and value.isfinite().all()
        # GPyTorch's multi-task parts cannot be pickled.
        copied = copy.deepcopy(criterion)
        if name not in NOT_CONDITIONED:
            copied = pickle.loads(pickle.dumps(criterion))
        torch.testing.assert_close(copied(points), value)
        criterion.load_state_dict(criterion.state_dict())
        torch.testing.assert_close(criterion(points), value)
        X = points[:1, :, :].clone().requires_grad_(True)
        assert torch.autograd.grad(criterion(X).sum(), X)[0].isfinite().all()
    if name in NOT_CONDITIONED:
        with pytest.raises((UnsupportedError, BotorchError, ValueError)):
            criterion.set_X_pending(points[0])
    else:
        criterion.set_X_pending(points[2])
        assert float(criterion(points)[2]) < float(value[2])


def test_functions_of_part_of_a_point_and_lists_of_criteria() -> None:
    criterion, bounds = criterion_of("single task"), torch.tensor([[0.0] * 2, [1.0] * 2]).double()
    part = FixedFeatureAcquisitionFunction(criterion, d=2, columns=[1], values=[0.5])
    whole = criterion(torch.tensor([[[0.3, 0.5]]], dtype=torch.double))
    torch.testing.assert_close(part(torch.tensor([[[0.3]]], dtype=torch.double)), whole)
    choices = torch.rand(20, 2, dtype=torch.double)
    chosen, _ = optimize_acqf_discrete(criterion, q=2, choices=choices)
    assert all((row == choices).all(-1).any() for row in chosen)
    criterion.set_X_pending(None)
    how: dict[str, Any] = {"num_restarts": 2, "raw_samples": 8, "options": {"maxiter": 20}}
    listed, _ = optimize_acqf_list([criterion, criterion], bounds, **how)
    assert listed.shape == (2, 2) and not torch.allclose(listed[0], listed[1])


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_private_bound_is_botorchs_at_its_width(dtype: torch.dtype) -> None:
    for shape, step in itertools.product([(1, 1), (3, 1, 1)], (1, 7)):
        mean = torch.rand(shape, dtype=dtype)
        model, X = mock(mean, 0.25, dtype), torch.zeros(*shape, dtype=dtype)
        ours = PrivateUpperConfidenceBound(model, schedule=SCHEDULE, step=step)
        theirs = UpperConfidenceBound(model, beta=SCHEDULE(step))
        torch.testing.assert_close(ours(X), theirs(X))
        with pytest.raises(UnsupportedError):
            ours.set_X_pending(X)
    two = mock(torch.rand(1, 2, dtype=dtype), 0.25, dtype)
    with pytest.raises(UnsupportedError, match=r"[Mm]ulti-output|posterior.transform"):
        PrivateUpperConfidenceBound(two, schedule=SCHEDULE, step=1)
    X, Y = data()
    weights = ScalarizedPosteriorTransform(torch.tensor([0.4, 0.6]).double())
    how = {"posterior_transform": weights}
    model = SingleTaskGP(X, Y)
    bound = PrivateUpperConfidenceBound(model, schedule=SCHEDULE, step=2, **how)
    theirs = UpperConfidenceBound(model, beta=SCHEDULE(2), **how)
    torch.testing.assert_close(bound(X.unsqueeze(1)), theirs(X.unsqueeze(1)))
