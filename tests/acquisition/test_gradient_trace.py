"""GradientTrace: values, batches, pending points, derivatives, and a search that succeeds."""

from __future__ import annotations

import pytest
import torch
from botorch.acquisition.input_constructors import get_acqf_input_constructor
from botorch.models import SingleTaskGP
from botorch.models.transforms import Normalize
from botorch.optim import optimize_acqf
from botorch.optim.initializers import gen_batch_initial_conditions
from gpytorch.kernels import Kernel, MaternKernel, PolynomialKernel, RBFKernel, ScaleKernel
from torch import Tensor

from botorch_dp.acquisition import GradientTrace, gen_gradient_trace_initial_conditions
from botorch_dp.acquisition.gradient_trace import regular_simplex
from botorch_dp.models import GradientPosterior, public_gp

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
    return public_gp(X, X.sum(-1, keepdim=True), kernel=kernel(name, d), noise_variance=noise)


def unit_box(d: int) -> Tensor:
    return torch.stack((torch.zeros(d), torch.ones(d))).double()


def centre(d: int = D) -> Tensor:
    return torch.full((d,), 0.5, dtype=torch.double)


def trace_of_new_model(model: SingleTaskGP, X: Tensor, location: Tensor) -> Tensor:
    """The definition: a model of all points, solved afresh."""
    inputs = torch.cat((model.train_inputs[0], X))
    outcomes = torch.zeros(len(inputs), 1, dtype=torch.double)
    noise = float(model.likelihood.noise)
    both = public_gp(inputs, outcomes, kernel=model.covar_module, noise_variance=noise)
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


def test_works_in_single_precision() -> None:
    X = torch.rand(6, D)
    model = public_gp(
        X, X.sum(-1, keepdim=True), kernel=kernel("scaled matern").float(), noise_variance=1e-3
    )
    values = GradientTrace(model, centre().float())(torch.rand(4, 2, D))
    assert values.dtype == torch.float32
    assert (values <= 0).all()


def test_more_points_never_hurt() -> None:
    acqf = GradientTrace(fixed_gp(), centre())
    X = torch.rand(10, D, dtype=torch.double)
    values = torch.stack([acqf(X[: i + 1]) for i in range(10)])
    assert (values.diff(dim=0) >= -1e-9).all()
    assert values[0] >= -acqf.beliefs[0].trace - 1e-9


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


def test_inputs_that_the_kernel_does_not_see_are_left_in_the_box() -> None:
    X = torch.rand(6, D, dtype=torch.double)
    blind = RBFKernel(active_dims=(0, 2)).double()
    model = public_gp(X, X[:, :1], kernel=blind, noise_variance=1e-4)
    acqf = GradientTrace(model, centre())
    starts = gen_gradient_trace_initial_conditions(acqf, unit_box(D), 4, 2, 8)
    assert ((starts >= 0) & (starts <= 1)).all()
    assert acqf.covariance[1].abs().max() == 0


def test_simplex_trace_in_closed_form() -> None:
    """No data, no noise, RBF in length-scale units: trace / d -> h^2 (d - 1) / (2 d) (small h)."""
    d, h = 5, 1e-2
    far = torch.full((1, d), 100.0, dtype=torch.double)  # a point too far away to matter
    model = public_gp(far, far[:, :1], kernel=kernel(d=d, lengthscale=1.0), noise_variance=0.0)
    acqf = GradientTrace(model, torch.zeros(d, dtype=torch.double))
    trace = -acqf(h * regular_simplex(d + 1))
    assert float(trace) / d == pytest.approx(h**2 * (d - 1) / (2 * d), rel=0.05)


class Ensemble(SingleTaskGP):
    """Like a fully Bayesian model: the batch dimension counts the members."""

    _is_ensemble = True


def test_ensembles_are_averaged() -> None:
    X = torch.rand(6, D, dtype=torch.double)
    many = RBFKernel(batch_shape=torch.Size([2])).double()
    many.lengthscale = torch.tensor([0.5, 1.0], dtype=torch.double).reshape(2, 1, 1)
    Y = X.sum(-1, keepdim=True)
    ensemble = Ensemble(
        X.expand(2, 6, D),
        Y.expand(2, 6, 1),
        torch.full((2, 6, 1), 1e-3, dtype=torch.double),
        covar_module=many,
        outcome_transform=None,
    )
    Z = torch.rand(4, 3, D, dtype=torch.double)
    members = []
    for lengthscale in (0.5, 1.0):
        member = public_gp(X, Y, kernel=kernel(lengthscale=lengthscale), noise_variance=1e-3)
        members.append(GradientTrace(member, centre())(Z))
    values = GradientTrace(ensemble, centre())(Z)
    assert values.shape == (4,)
    torch.testing.assert_close(values, torch.stack(members).mean(0), rtol=1e-6, atol=1e-8)


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


@pytest.mark.parametrize("q", [1, 2, 7])
def test_any_number_of_points_and_sequential_search(q: int) -> None:
    acqf = GradientTrace(fixed_gp(), centre())
    for sequential in (False, True):
        candidates, _ = optimize_acqf(
            acqf,
            bounds=unit_box(D),
            q=q,
            num_restarts=2,
            raw_samples=8,
            sequential=sequential,
            ic_generator=gen_gradient_trace_initial_conditions,
        )
        assert candidates.shape == (q, D)
    assert acqf.X_pending is None


def test_initial_conditions_keep_fixed_features_and_leave_constraints_to_botorch() -> None:
    acqf = GradientTrace(fixed_gp(), centre())
    starts = gen_gradient_trace_initial_conditions(
        acqf, unit_box(D), 4, 3, 8, fixed_features={1: 0.25}
    )
    assert starts.shape == (3, 4, D)
    assert (starts[..., 1] == 0.25).all()
    constraint = (torch.arange(D), -torch.ones(D).double(), -1.0)
    starts = gen_gradient_trace_initial_conditions(
        acqf,
        unit_box(D),
        2,
        2,
        8,
        options={"n_burnin": 10, "n_thinning": 2},
        inequality_constraints=[constraint],
    )
    assert (starts.sum(-1) <= 1 + 1e-9).all()
    with pytest.raises(TypeError, match="GradientTrace"):
        gen_gradient_trace_initial_conditions(
            torch.nn.Identity(),  # type: ignore[arg-type]
            unit_box(D),
            2,
            2,
            8,
        )
    assert gen_batch_initial_conditions(acqf, unit_box(D), 2, 2, 8).shape == (2, 2, D)


def test_input_constructor_is_registered() -> None:
    model = fixed_gp()
    construct = get_acqf_input_constructor(GradientTrace)
    inputs = construct(model=model, training_data=None, objective=None, location=[0.5] * D)
    assert GradientTrace(**inputs)(torch.rand(2, D, dtype=torch.double)).shape == (1,)


def test_the_model_is_left_alone_and_single_precision_refused() -> None:
    model = fixed_gp()
    acqf = GradientTrace(model, centre())
    with pytest.raises(ValueError, match="float32"):
        acqf(torch.rand(2, D))
    assert next(model.parameters()).dtype == torch.double
    assert model.train_inputs[0].dtype == torch.double
