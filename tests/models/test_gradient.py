"""The gradient's posterior and the growing factor behind it, by dense formulas and by hand."""

from __future__ import annotations

import math

import pytest
import torch
from botorch.models import (
    KroneckerMultiTaskGP,
    MixedSingleTaskGP,
    ModelListGP,
    MultiTaskGP,
    SingleTaskGP,
)
from botorch.models.transforms import Log, Normalize, Standardize
from botorch.models.transforms.input import AppendFeatures, Log10
from gpytorch.kernels import Kernel, MaternKernel, PolynomialKernel, RBFKernel, ScaleKernel
from torch import Tensor
from torch.autograd.gradcheck import GradcheckError

from botorch_dp.models.gradient import GradientBelief, GradientPosterior, KernelFactor
from botorch_dp.models.kernels import kernel_derivatives

D = 3


def factor_of(kernel: Kernel, X: Tensor, noise: Tensor | float = 0.0) -> KernelFactor:
    return KernelFactor.empty(kernel_derivatives(kernel, like=X), X.shape[-1]).extended(X, noise)[0]


def kernels() -> dict[str, Kernel]:
    rbf = RBFKernel(ard_num_dims=D).double()
    rbf.lengthscale = torch.tensor([0.4, 0.8, 1.5], dtype=torch.double)
    matern = MaternKernel(nu=2.5, ard_num_dims=D).double()
    matern.lengthscale = torch.tensor([0.4, 0.8, 1.5], dtype=torch.double)
    scaled = ScaleKernel(matern).double()
    scaled.outputscale = torch.tensor(3.0, dtype=torch.double)
    return {
        "rbf": rbf,
        "matern": matern,
        "scaled matern": scaled,
        "polynomial": PolynomialKernel(power=2).double(),
    }


def dense_posterior(
    kernel: Kernel, X: Tensor, noise: Tensor, location: Tensor, unknown_mean: bool = False
) -> tuple[Tensor, Tensor]:
    """Covariance and weights by explicit inverses; an unknown mean by a huge prior variance."""
    k = kernel_derivatives(kernel, like=X)
    K = k.value(X, X) + torch.diag(noise)
    C = k.gradient(location, X)
    H = k.gradient_covariance(location)
    inverse = torch.linalg.inv(K)
    W = inverse @ C.mT
    covariance = H - C @ W
    if unknown_mean:
        a = inverse.sum(-1, keepdim=True)
        covariance = covariance + (W.sum(0, keepdim=True).mT @ W.sum(0, keepdim=True)) / a.sum()
        W = W - a * W.sum(0, keepdim=True) / a.sum()
    return covariance, W


def model_of(kernel: Kernel, X: Tensor, noise: float = 1e-3, **options: object) -> SingleTaskGP:
    Y = (3 * X).sin().sum(-1, keepdim=True)
    options.setdefault("outcome_transform", None)
    return SingleTaskGP(X, Y, torch.full_like(Y, noise), covar_module=kernel, **options)


@pytest.fixture
def X() -> Tensor:
    return torch.rand(12, 3, dtype=torch.double)


def test_blocks_give_the_factor_of_all_points(X: Tensor) -> None:
    kernel = MaternKernel(nu=2.5)
    factor = factor_of(kernel, X[:4])
    factor, kept = factor.extended(X[4:5])
    assert kept.tolist() == [0]
    factor, kept = factor.extended(X[5:])
    assert kept.tolist() == list(range(7))
    plain = torch.linalg.cholesky(factor.derivatives.value(X, X))
    torch.testing.assert_close(factor.root, plain, rtol=1e-9, atol=1e-10)
    torch.testing.assert_close(factor.points, X)
    B = torch.rand(12, 2, dtype=torch.double)
    torch.testing.assert_close(factor.root @ factor.whiten(B), B)


def test_repeated_points_are_left_out_unless_noisy(X: Tensor) -> None:
    kernel = RBFKernel()
    twice = torch.stack((X[0], X[1], X[0], X[2], X[2]))
    factor, kept = factor_of(kernel, X[:0]).extended(twice)
    assert sorted(kept.tolist()) in ([0, 1, 3], [1, 2, 3], [0, 1, 4], [1, 2, 4])
    assert factor.extended(X[:4])[1].tolist() == [3]
    assert len(factor_of(kernel, twice, 1e-3)) == 5


@pytest.mark.parametrize("name", kernels())
def test_posterior_matches_dense_formulas(name: str) -> None:
    kernel = kernels()[name]
    X = torch.rand(15, D, dtype=torch.double)
    location = torch.tensor([0.2, 0.5, 0.9], dtype=torch.double)
    model = model_of(kernel, X)
    posterior = GradientPosterior(model, location)
    covariance, W = dense_posterior(
        kernel, X, torch.full((15,), 1e-3, dtype=torch.double), location
    )
    torch.testing.assert_close(posterior.covariance, covariance, rtol=1e-9, atol=1e-10)
    torch.testing.assert_close(posterior.trace, covariance.trace(), rtol=1e-9, atol=0)
    residuals = model.train_targets - model.mean_module.constant
    torch.testing.assert_close(posterior.mean, W.mT @ residuals, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("name", kernels())
def test_mean_is_the_derivative_of_the_posterior_mean(name: str) -> None:
    X = torch.rand(15, D, dtype=torch.double)
    location = torch.tensor([0.2, 0.5, 0.9], dtype=torch.double)
    model = model_of(kernels()[name], X)
    at = location.clone().requires_grad_()
    (slope,) = torch.autograd.grad(model.posterior(at.unsqueeze(0)).mean.sum(), at)
    torch.testing.assert_close(GradientPosterior(model, location).mean, slope, rtol=1e-6, atol=1e-7)


def test_covariance_is_the_limit_of_differences_of_joint_samples() -> None:
    """Var of (f(x + h e) - f(x - h e)) / 2h under the posterior tends to the gradient's."""
    X = torch.rand(6, D, dtype=torch.double)
    location = torch.tensor([0.2, 0.5, 0.9], dtype=torch.double)
    model = model_of(kernels()["rbf"], X)
    h = 1e-3
    moves = h * torch.eye(D, dtype=torch.double)
    joint = model.posterior(torch.cat((location + moves, location - moves)))
    S = joint.distribution.covariance_matrix
    differences = (S[:D, :D] - S[:D, D:] - S[D:, :D] + S[D:, D:]) / (4 * h * h)
    covariance = GradientPosterior(model, location).covariance
    torch.testing.assert_close(covariance, differences, rtol=1e-3, atol=1e-4)


def test_input_and_outcome_transforms_are_accounted_for() -> None:
    """The same function in stretched coordinates has the gradient of the chain rule."""
    bounds = torch.tensor([[-1.0, 0.0, 10.0], [3.0, 5.0, 20.0]], dtype=torch.double)
    unit = torch.rand(10, D, dtype=torch.double)
    X = bounds[0] + (bounds[1] - bounds[0]) * unit
    Y = (3 * unit).sin().sum(-1, keepdim=True)
    plain = SingleTaskGP(
        unit, Y, torch.full_like(Y, 1e-3), covar_module=kernels()["matern"], outcome_transform=None
    )
    scale = 7.0
    stretched = SingleTaskGP(
        X,
        100 + scale * Y,
        torch.full_like(Y, 1e-3 * scale**2),
        covar_module=kernels()["matern"],
        input_transform=Normalize(D, bounds=bounds),
        outcome_transform=Standardize(1),
    )
    location = torch.tensor([0.2, 0.5, 0.9], dtype=torch.double)
    in_stretched = bounds[0] + (bounds[1] - bounds[0]) * location
    a = GradientPosterior(plain, location)
    b = GradientPosterior(stretched, in_stretched)
    at = in_stretched.clone().requires_grad_()
    (slope,) = torch.autograd.grad(stretched.posterior(at.unsqueeze(0)).mean.sum(), at)
    torch.testing.assert_close(b.mean, slope, rtol=1e-6, atol=1e-7)
    # The covariance scales with the outcomes' standard deviation and the sides of the box. The
    # standardized model has noise in other units, so it is compared through its own dense form.
    stdv = stretched.outcome_transform.stdvs.squeeze()
    noise = torch.full((10,), 1e-3 * scale**2, dtype=torch.double) / stdv**2
    dense, _ = dense_posterior(kernels()["matern"], unit, noise, location)
    sides = bounds[1] - bounds[0]
    torch.testing.assert_close(
        b.covariance, stdv**2 * dense / sides.outer(sides), rtol=1e-8, atol=1e-12
    )
    assert a.trace > 0


def test_nonlinear_input_transform() -> None:
    X = 1 + torch.rand(8, D, dtype=torch.double)
    model = model_of(kernels()["rbf"], X, input_transform=Log10(indices=[1]))
    location = torch.tensor([1.2, 1.5, 1.9], dtype=torch.double)
    at = location.clone().requires_grad_()
    (slope,) = torch.autograd.grad(model.posterior(at.unsqueeze(0)).mean.sum(), at)
    torch.testing.assert_close(GradientPosterior(model, location).mean, slope, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("name", kernels())
@pytest.mark.parametrize("unknown_mean", [False, True])
def test_trace_after_is_the_trace_of_the_extended_belief(name: str, unknown_mean: bool) -> None:
    X = torch.rand(7, D, dtype=torch.double)
    Z = torch.rand(2, 4, 5, D, dtype=torch.double)
    location = torch.tensor([0.2, 0.5, 0.9], dtype=torch.double)
    kernel = kernels()[name]
    factor = factor_of(kernel, X, 1e-4)
    belief = GradientBelief(factor, location, unknown_mean=unknown_mean)
    after = belief.trace_after(Z, 1e-4)
    assert after.shape == (2, 4)
    for i in range(2):
        for j in range(4):
            both = torch.cat((X, Z[i, j]))
            noise = torch.full((12,), 1e-4, dtype=torch.double)
            covariance, W = dense_posterior(kernel, both, noise, location, unknown_mean)
            torch.testing.assert_close(after[i, j], covariance.trace(), rtol=1e-9, atol=1e-9)
            factor_both = factor_of(kernel, both, 1e-4)
            extended = GradientBelief(factor_both, location, unknown_mean=unknown_mean)
            torch.testing.assert_close(extended.trace, covariance.trace(), rtol=1e-9, atol=1e-9)
            torch.testing.assert_close(extended.weights, W, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("unknown_mean", [False, True])
def test_an_extended_belief_is_that_of_all_points(unknown_mean: bool) -> None:
    X = torch.rand(9, D, dtype=torch.double)
    location = torch.full((D,), 0.5, dtype=torch.double)
    factor = factor_of(kernels()["matern"], X[:4], 1e-3)
    belief = GradientBelief(factor, location, unknown_mean=unknown_mean)
    before = belief.trace
    both, _ = factor.extended(X[4:], 1e-3)
    extended = belief.extended(both)
    afresh = GradientBelief(both, location, unknown_mean=unknown_mean)
    torch.testing.assert_close(extended.covariance, afresh.covariance)
    torch.testing.assert_close(extended.weights, afresh.weights)
    assert belief.trace == before and len(belief.points) == 4


def trace_by_autograd(belief: GradientBelief, X: Tensor, noise: float) -> Tensor:
    """The same formula with every derivative left to automatic differentiation."""
    k, flat = belief.derivatives, X.reshape(-1, X.shape[-1])
    values = torch.linalg.solve_triangular(belief.root, k.value(belief.points, flat), upper=False)
    crossed = k.gradient(belief.location, flat) - belief.crossed.mT @ values
    values, crossed = (v.reshape(-1, *X.shape[:-1]).movedim(0, -2) for v in (values, crossed))
    S = k.value(X, X) - values.mT @ values + noise * torch.eye(X.shape[-2], dtype=X.dtype)
    reduction = (crossed * torch.linalg.solve(S, crossed.mT).mT).sum((-2, -1))
    return belief.prior.trace() - belief.crossed.square().sum() - reduction


@pytest.mark.parametrize("dtype", [torch.double, torch.float])
@pytest.mark.parametrize("batch_shape", [(), (1,), (7,), (2, 3)])
@pytest.mark.parametrize("name", kernels())
def test_closed_form_is_what_automatic_differentiation_gives(
    name: str, batch_shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    X = torch.rand(12, D, dtype=dtype)
    factor = factor_of(kernels()[name].to(dtype), X, 0.1)
    belief = GradientBelief(factor, torch.tensor([0.2, 0.5, 0.9], dtype=dtype))
    Z = torch.rand(*batch_shape, 4, D, dtype=dtype, requires_grad=True)
    ours, theirs = belief.trace_after(Z, 0.1), trace_by_autograd(belief, Z, 0.1)
    weights = torch.rand(batch_shape, dtype=dtype)
    slopes = [torch.autograd.grad((weights * value).sum(), Z)[0] for value in (ours, theirs)]
    tolerance = 1e-12 if dtype == torch.double else 1e-4
    torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(*slopes, rtol=tolerance, atol=tolerance)
    assert ours.shape == batch_shape and ours.dtype == dtype


@pytest.mark.parametrize("unknown_mean", [False, True])
@pytest.mark.parametrize(("num_points", "q", "d"), [(0, 1, 1), (1, 1, 1), (1, 3, 2), (5, 1, 3)])
def test_the_smallest_sizes(num_points: int, q: int, d: int, unknown_mean: bool) -> None:
    X = torch.rand(num_points, d, dtype=torch.double)
    belief = GradientBelief(
        factor_of(MaternKernel(nu=2.5), X, 0.1), X.new_full((d,), 0.4), unknown_mean=unknown_mean
    )
    for batch_shape in ((), (1,), (3,), (2, 2)):
        Z = torch.rand(*batch_shape, q, d, dtype=torch.double, requires_grad=True)
        assert torch.autograd.gradcheck(lambda Z: belief.trace_after(Z, 0.1), (Z,))


def test_a_wrong_derivative_would_be_noticed() -> None:
    X = torch.rand(5, D, dtype=torch.double)
    belief = GradientBelief(factor_of(kernels()["matern"], X, 0.1), X[0] + 0.2)
    right = belief.derivatives.fall
    belief.derivatives.fall = lambda r: 1.001 * right(r)
    Z = torch.rand(2, D, dtype=torch.double, requires_grad=True)
    with pytest.raises(GradcheckError):
        torch.autograd.gradcheck(lambda Z: belief.trace_after(Z, 0.1), (Z,))


def test_derivative_is_finite_where_points_coincide() -> None:
    X = torch.rand(4, D, dtype=torch.double)
    factor = factor_of(kernels()["rbf"], X)
    belief = GradientBelief(factor, X[0])
    Z = torch.stack((X[0], X[1], X[1], X[0] + 0.1)).requires_grad_()
    after = belief.trace_after(Z)
    (slope,) = torch.autograd.grad(after, Z)
    assert torch.isfinite(slope).all()
    # Repeated points say nothing: the value is that of the one new point.
    torch.testing.assert_close(after, belief.trace_after(Z[3:]), rtol=1e-6, atol=1e-8)


@pytest.mark.filterwarnings("error")
def test_far_away_points_say_nothing_and_warn_of_nothing() -> None:
    X = torch.rand(4, D, dtype=torch.double)
    for name in ("rbf", "matern"):
        belief = GradientBelief(factor_of(kernels()[name], X, 0.1), X[0])
        Z = torch.full((2, D), 1e100, dtype=torch.double, requires_grad=True)
        value = belief.trace_after(Z, 0.1)
        torch.testing.assert_close(value, belief.trace)
        assert (torch.autograd.grad(value, Z)[0] == 0).all()
    # A square is infinite here.
    belief.trace_after(torch.full((2, D), 2.5e153, dtype=torch.double), 0.1)


@pytest.mark.parametrize("constant", [1.0, -1e6])
def test_a_constant_function_has_no_gradient_under_an_unknown_mean(constant: float) -> None:
    X = torch.rand(9, D, dtype=torch.double)
    location = torch.full((D,), 0.5, dtype=torch.double)
    factor = factor_of(kernels()["matern"], X)
    weights = GradientBelief(factor, location, unknown_mean=True).weights
    slope = weights.mT @ torch.full((9,), constant, dtype=torch.double)
    assert slope.abs().max() <= 1e-9 * abs(constant) * weights.abs().max()
    assert (GradientBelief(factor, location).weights.sum(0).abs() > 1e-3).any()


def test_a_spanned_polynomial_kernel_leaves_no_uncertainty() -> None:
    """Rank (d + 1)(d + 2) / 2: then every quadratic is known, and its gradient exactly."""
    X = torch.randn(30, D, dtype=torch.double)
    factor = factor_of(PolynomialKernel(power=2), X)
    location = torch.randn(D, dtype=torch.double)
    belief = GradientBelief(factor, location)
    assert len(factor) == 10
    assert belief.trace <= 1e-9 * belief.prior.trace()
    A = torch.randn(D, D, dtype=torch.double)
    values = (factor.points @ A * factor.points).sum(-1)
    torch.testing.assert_close(
        belief.weights.mT @ values, (A + A.mT) @ location, rtol=1e-6, atol=1e-6
    )


def test_refusals_name_the_argument() -> None:
    X = torch.rand(5, D, dtype=torch.double)
    location = torch.full((D,), 0.5, dtype=torch.double)
    model = model_of(kernels()["rbf"], X)
    with pytest.raises(ValueError, match=r"`model` must be .*Linear"):
        GradientPosterior(torch.nn.Linear(3, 1), location)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"output .*ModelListGP"):
        GradientPosterior(ModelListGP(model, model), location)
    with pytest.raises(ValueError, match="float32"):
        GradientPosterior(model, location.float())
    for wrong in (location[:2], location.unsqueeze(0), location * math.nan):
        with pytest.raises(ValueError, match="`location`"):
            GradientPosterior(model, wrong)
    with pytest.raises(ValueError, match=r"output .*SingleTaskGP"):
        GradientPosterior(SingleTaskGP(X, X[:, :2]), location)
    tasks = torch.cat((X, torch.arange(5).double().unsqueeze(-1) % 2), dim=-1)
    with pytest.raises(ValueError, match=r"one task.*MultiTaskGP"):
        GradientPosterior(MultiTaskGP(tasks, X[:, :1], task_feature=-1), location)
    with pytest.raises(ValueError, match=r"one task.*KroneckerMultiTaskGP"):
        GradientPosterior(KroneckerMultiTaskGP(X, X[:, :2]), location)
    with pytest.raises(ValueError, match=r"numerical inputs.*MixedSingleTaskGP"):
        GradientPosterior(MixedSingleTaskGP(tasks, X[:, :1], cat_dims=[-1]), location)
    with pytest.raises(ValueError, match="batch shape"):
        GradientPosterior(SingleTaskGP(X.expand(2, 5, D), X[:, :1].expand(2, 5, 1)), location)
    with pytest.raises(ValueError, match="Log"):
        GradientPosterior(model_of(kernels()["rbf"], X, outcome_transform=Log()), location)
    appended = model_of(
        RBFKernel().double(),
        X,
        input_transform=AppendFeatures(feature_set=torch.zeros(2, 1).double()),
    )
    with pytest.raises(ValueError, match="one point"):
        GradientPosterior(appended, location)
