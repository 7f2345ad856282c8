"""GradientTrace: values, batches, pending points, derivatives, and a search that succeeds."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from botorch.acquisition.input_constructors import get_acqf_input_constructor
from botorch.fit import fit_gpytorch_mll
from botorch.models import ModelListGP, SingleTaskGP
from botorch.models.fully_bayesian import SaasFullyBayesianSingleTaskGP
from botorch.models.map_saas import EnsembleMapSaasSingleTaskGP
from botorch.models.model import Model
from botorch.models.transforms import Normalize, Standardize
from botorch.optim import optimize_acqf
from botorch.optim.initializers import gen_batch_initial_conditions
from gpytorch.kernels import Kernel, MaternKernel, PolynomialKernel, RBFKernel, ScaleKernel
from gpytorch.mlls import ExactMarginalLogLikelihood
from torch import Tensor

from botorch_dp.acquisition.gradient_trace import (
    GradientTrace,
    gen_gradient_trace_initial_conditions,
)
from botorch_dp.acquisition.hvpoi import believe
from botorch_dp.models import GradientPosterior, public_gp
from botorch_dp.models.gradient import regular_simplex

D = 3


def kernel(name: str = "rbf", d: int = D, lengthscale: float = 0.5) -> Kernel:
    if name == "polynomial":
        return PolynomialKernel(power=2).double()
    base = RBFKernel() if name == "rbf" else ScaleKernel(MaternKernel(nu=2.5))
    base = base.double()
    (base if name == "rbf" else base.base_kernel).lengthscale = lengthscale
    return base


def fixed_gp(name: str = "rbf", n: int = 6, d: int = D, noise: float = 1e-4) -> SingleTaskGP:
    X = torch.rand(n, d, dtype=torch.double)
    return public_gp(X, X.sum(-1, keepdim=True), kernel=kernel(name, d), noise_std=noise**0.5)


def unit_box(d: int) -> Tensor:
    return torch.stack((torch.zeros(d), torch.ones(d))).double()


def centre(d: int = D) -> Tensor:
    return torch.full((d,), 0.5, dtype=torch.double)


def trace_of_new_model(model: SingleTaskGP, X: Tensor, location: Tensor) -> Tensor:
    """The definition: a model of all points, solved afresh."""
    inputs = torch.cat((model.train_inputs[0], X))
    outcomes = torch.zeros(len(inputs), 1, dtype=torch.double)
    noise = float(model.likelihood.noise)
    both = public_gp(inputs, outcomes, kernel=model.covar_module, noise_std=noise**0.5)
    return GradientPosterior(both, location).trace


@pytest.mark.parametrize("name", ["rbf", "scaled matern", "polynomial"])
def test_value_is_the_trace_of_a_model_of_all_points(name: str) -> None:
    model = fixed_gp(name)
    acqf = GradientTrace(model, centre())
    X = torch.rand(2, 5, 4, D, dtype=torch.double)
    values = acqf(X)
    assert values.shape == (2, 5)
    for i in range(2):
        for j in range(5):
            expected = -trace_of_new_model(model, X[i, j], centre())
            torch.testing.assert_close(values[i, j], expected, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(acqf(X[0, 0]), values[0, :1])


@pytest.mark.parametrize("name", ["rbf", "scaled matern", "polynomial"])
def test_gradient_by_finite_differences(name: str) -> None:
    acqf = GradientTrace(fixed_gp(name, noise=1e-2), centre())
    X = torch.rand(2, 3, D, dtype=torch.double, requires_grad=True)
    assert torch.autograd.gradcheck(acqf, (X,))


def test_pending_points_count_as_observed() -> None:
    model = fixed_gp()
    pending = torch.rand(2, D, dtype=torch.double)
    X = torch.rand(3, 1, D, dtype=torch.double)
    joint = torch.cat((X, pending.expand(3, 2, D)), dim=-2)
    expected = GradientTrace(model, centre())(joint)
    torch.testing.assert_close(GradientTrace(model, centre(), X_pending=pending)(X), expected)


def test_input_transforms_only_change_the_units() -> None:
    bounds = torch.tensor([[0.0] * D, [10.0] * D], dtype=torch.double)
    model = fixed_gp()
    unit = model.train_inputs[0]
    stretched = SingleTaskGP(
        10 * unit,
        unit.sum(-1, keepdim=True),
        torch.full((len(unit), 1), 1e-4, dtype=torch.double),
        covar_module=kernel(),
        input_transform=Normalize(D, bounds=bounds),
        outcome_transform=None,
    )
    X = torch.rand(4, 2, D, dtype=torch.double)
    plain, other = GradientTrace(model, centre()), GradientTrace(stretched, 10 * centre())
    torch.testing.assert_close(other(10 * X), plain(X) / 100, rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(other.units, 10 * plain.units)


def test_simplex_trace_in_closed_form() -> None:
    """No data, no noise, RBF in length-scale units: trace / d -> h^2 (d - 1) / (2 d) (small h)."""
    d, h = 5, 1e-2
    far = torch.full((1, d), 100.0, dtype=torch.double)  # a point too far away to matter
    model = public_gp(far, far[:, :1], kernel=kernel(d=d, lengthscale=1.0), noise_std=0.0)
    acqf = GradientTrace(model, torch.zeros(d, dtype=torch.double))
    trace = -acqf(h * regular_simplex(d + 1, like=far))
    assert float(trace) / d == pytest.approx(h**2 * (d - 1) / (2 * d), rel=0.05)


def fully_bayesian(X: Tensor, Y: Tensor, Yvar: Tensor | None = None, **options: Any) -> Model:
    """BoTorch's model with given instead of sampled hyper-parameters, which take half a minute."""
    pytest.importorskip("numpyro", reason="needs botorch[fully_bayesian]")
    model = SaasFullyBayesianSingleTaskGP(X, Y, Yvar, **options)
    samples = {
        "mean": torch.randn(3, dtype=X.dtype),
        "outputscale": 0.5 + torch.rand(3, dtype=X.dtype),
        "lengthscale": 0.4 + torch.rand(3, 1, D, dtype=X.dtype),
        "noise": torch.full((3, 1), 1e-3, dtype=X.dtype),
        "c0": 0.7 + torch.rand(3, D, dtype=X.dtype),
        "c1": 0.7 + torch.rand(3, D, dtype=X.dtype),
    }
    model.load_mcmc_samples(samples)
    return model


def map_saas(X: Tensor, Y: Tensor, Yvar: Tensor | None = None, **options: Any) -> Model:
    model = EnsembleMapSaasSingleTaskGP(X, Y, Yvar, num_taus=3, **options)
    mll = ExactMarginalLogLikelihood(model.likelihood, model)
    fit_gpytorch_mll(mll, optimizer_kwargs={"options": {"maxiter": 5}}, max_attempts=1)
    return model


def average_trace_by_differences(model: Model, location: Tensor, h: float = 2e-3) -> Tensor:
    """Of the members' gradient covariances, from the joint posterior of points nearby."""
    moves = h * torch.eye(len(location), dtype=location.dtype)
    with torch.no_grad():
        S = model.posterior(torch.cat((location + moves, location - moves))).covariance_matrix
    d = len(location)
    differences = S[..., :d, :d] + S[..., d:, d:] - 2 * S[..., :d, d:]
    return differences.diagonal(dim1=-2, dim2=-1).sum(-1).mean() / (4 * h * h)


@pytest.mark.filterwarnings("ignore::botorch.exceptions.warnings.OptimizationWarning")
@pytest.mark.one_in(3)
@pytest.mark.parametrize("known_noise", [False, True])
@pytest.mark.parametrize("kind", ["fully bayesian", "fully bayesian, warped", "map saas"])
def test_real_ensembles_are_averaged(kind: str, known_noise: bool) -> None:
    bounds = torch.tensor([[0.0] * D, [2.0] * D], dtype=torch.double)
    X = 2 * torch.rand(8, D, dtype=torch.double)
    Y = 5 + 3 * X.sin().sum(-1, keepdim=True)
    Yvar = torch.full_like(Y, 0.05) if known_noise else None
    options: dict[str, Any] = {"input_transform": Normalize(D, bounds=bounds)}
    if kind == "map saas":
        model = map_saas(X, Y, Yvar, **options)
    else:
        if kind.endswith("warped"):
            X, options = X / 2, {"use_input_warping": True}
        model = fully_bayesian(X, Y, Yvar, outcome_transform=Standardize(1), **options)
    location = X.mean(0)
    acqf = GradientTrace(model, location)
    Z = X.min() + (X.max() - X.min()) * torch.rand(2, 3, D, dtype=torch.double)
    values = acqf(Z)
    assert values.shape == (2,) and (values > -acqf.covariance.trace()).all()
    now = average_trace_by_differences(model, location)
    torch.testing.assert_close(acqf.covariance.trace(), now, rtol=2e-2, atol=0)
    after = torch.stack([average_trace_by_differences(believe(model, z), location) for z in Z])
    torch.testing.assert_close(-values, after, rtol=2e-2, atol=0)
    leaf = Z.clone().requires_grad_()
    assert torch.autograd.gradcheck(acqf, (leaf,), eps=1e-6, atol=1e-4)
    candidates, _ = optimize_acqf(
        acqf,
        bounds=torch.stack((X.amin(0), X.amax(0))),
        q=2,
        num_restarts=2,
        raw_samples=8,
        options={"maxiter": 5},
        ic_generator=gen_gradient_trace_initial_conditions,
    )
    assert candidates.shape == (2, D)


def test_a_list_of_one_model_works_and_others_are_refused_in_a_sentence() -> None:
    model = fixed_gp()
    X = torch.rand(4, 2, D, dtype=torch.double)
    listed = GradientTrace(ModelListGP(model), centre())
    assert torch.equal(listed(X), GradientTrace(model, centre())(X))
    construct = get_acqf_input_constructor(GradientTrace)
    assert "location" in construct(model=ModelListGP(model), location=[0.5] * D)
    with pytest.raises(ValueError, match="one output"):
        GradientTrace(ModelListGP(model, model), centre())


@pytest.mark.parametrize("d", [1, 2, 33])
def test_search_succeeds_where_random_restarts_fail(d: int) -> None:
    model = fixed_gp(n=3, d=d, noise=1e-6)
    acqf = GradientTrace(model, centre(d))
    prior = float(acqf.beliefs[0].prior.trace())
    settings = {
        "bounds": unit_box(d),
        "q": d + 1,
        "num_restarts": 2,
        "raw_samples": 16,
        "options": {"maxiter": 20},
    }
    candidates, value = optimize_acqf(
        acqf, ic_generator=gen_gradient_trace_initial_conditions, **settings
    )
    assert candidates.shape == (d + 1, d)
    assert ((candidates >= 0) & (candidates <= 1)).all()
    assert -float(value) < 0.01 * prior
    if d == 33:
        _, stuck = optimize_acqf(acqf, **settings)
        assert -float(stuck) > 0.1 * prior


def test_initial_conditions_keep_fixed_features_and_leave_constraints_to_botorch() -> None:
    acqf = GradientTrace(fixed_gp(), centre())
    starts = gen_gradient_trace_initial_conditions(
        acqf, unit_box(D), 4, 3, 8, fixed_features={1: 0.25}
    )
    assert starts.shape == (3, 4, D)
    assert (starts[..., 1] == 0.25).all()
    constraint = (torch.arange(D), -torch.ones(D).double(), -1.0)
    how: Any = {"options": {"n_burnin": 10, "n_thinning": 2}}
    starts = gen_gradient_trace_initial_conditions(
        acqf, unit_box(D), 2, 2, 8, inequality_constraints=[constraint], **how
    )
    assert (starts.sum(-1) <= 1 + 1e-9).all()
    for bounds in (unit_box(D).mT, unit_box(D + 1), math.nan * unit_box(D)):
        with pytest.raises(ValueError, match="`bounds` must"):
            gen_gradient_trace_initial_conditions(acqf, bounds, 2, 2, 8)
    assert gen_batch_initial_conditions(acqf, unit_box(D), 2, 2, 8).shape == (2, 2, D)
