"""Kernels and the rules for kernels of kernels, by hand and against differentiated formulas."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from gpytorch.kernels import (
    Kernel,
    MaternKernel,
    PeriodicKernel,
    PolynomialKernel,
    RBFKernel,
    RBFKernelGrad,
    ScaleKernel,
)
from torch import Tensor

from botorch_dp.models.kernels import kernel_derivatives

Formula = Callable[[Tensor, Tensor], Tensor]
#: How to make a kernel, and its formula.
Case = tuple[Callable[[], Kernel], Formula]

D = 3
LOCATION = torch.tensor([0.3, -0.2, 0.7], dtype=torch.double)


def with_hypers(kernel: Kernel, **hypers: object) -> Kernel:
    kernel = kernel.double()
    for name, value in hypers.items():
        setattr(kernel, name, torch.as_tensor(value, dtype=torch.double))
    return kernel


def ard_rbf() -> Kernel:
    return with_hypers(RBFKernel(ard_num_dims=D), lengthscale=[0.5, 1.0, 2.0])


def ard_matern() -> Kernel:
    return with_hypers(MaternKernel(nu=2.5, ard_num_dims=D), lengthscale=[0.5, 1.0, 2.0])


def polynomial(power: int = 2) -> Kernel:
    return with_hypers(PolynomialKernel(power=power), offset=0.7)


def scaled(kernel: Kernel) -> Kernel:
    return with_hypers(ScaleKernel(kernel), outputscale=2.5)


# Each kernel beside its plain formula of two vectors, smooth enough for automatic differentiation
# (the Matern one only between different points).
def rbf_formula(x: Tensor, z: Tensor) -> Tensor:
    return torch.exp(-0.5 * ((x - z) / torch.tensor([0.5, 1.0, 2.0]).double()).square().sum())


def matern_formula(x: Tensor, z: Tensor) -> Tensor:
    r = ((x - z) / torch.tensor([0.5, 1.0, 2.0]).double()).square().sum().sqrt()
    return (1 + math.sqrt(5) * r + 5 / 3 * r**2) * torch.exp(-math.sqrt(5) * r)


def polynomial_formula(x: Tensor, z: Tensor) -> Tensor:
    return (x @ z + 0.7) ** 2


def mixed_hessian(formula: Formula, x: Tensor, z: Tensor) -> Tensor:
    slope = torch.func.grad(formula, argnums=0)
    return torch.func.jacrev(slope, argnums=1)(x, z)


CASES: dict[str, Case] = {
    "rbf": (ard_rbf, rbf_formula),
    "matern": (ard_matern, matern_formula),
    "polynomial": (polynomial, polynomial_formula),
    "cubic": (lambda: polynomial(3), lambda x, z: (x @ z + 0.7) ** 3),
    "linear": (lambda: polynomial(1), lambda x, z: x @ z + 0.7),
    "scaled rbf": (lambda: scaled(ard_rbf()), lambda x, z: 2.5 * rbf_formula(x, z)),
    "scaled matern": (lambda: scaled(ard_matern()), lambda x, z: 2.5 * matern_formula(x, z)),
}
#: Their second derivative at coincident points cannot be had automatically.
ONLY_AS_A_LIMIT = ["matern", "scaled matern"]


@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients_match_the_formula(name: str) -> None:
    make, formula = CASES[name]
    derivatives = kernel_derivatives(make(), like=LOCATION)
    X = torch.rand(5, D, dtype=torch.double)

    value = torch.stack([torch.stack([formula(x, z) for z in X[:3]]) for x in X])
    torch.testing.assert_close(derivatives.value(X, X[:3]), value, rtol=1e-11, atol=1e-13)
    diagonal = torch.stack([formula(x, x) for x in X])
    torch.testing.assert_close(derivatives.diagonal(X), diagonal, rtol=1e-11, atol=1e-13)
    gradient = torch.stack([torch.func.grad(formula)(LOCATION, x) for x in X], dim=-1)
    torch.testing.assert_close(derivatives.gradient(LOCATION, X), gradient, rtol=1e-10, atol=1e-12)

    batched = X.reshape(5, 1, D).expand(5, 2, D)
    assert derivatives.gradient(LOCATION, batched).shape == (5, D, 2)
    assert derivatives.value(batched, batched).shape == (5, 2, 2)


@pytest.mark.parametrize("name", sorted(CASES.keys() - ONLY_AS_A_LIMIT))
def test_gradient_covariance_matches_the_formula(name: str) -> None:
    make, formula = CASES[name]
    derivatives = kernel_derivatives(make(), like=LOCATION)
    covariance = derivatives.gradient_covariance(LOCATION)
    expected = mixed_hessian(formula, LOCATION, LOCATION)
    torch.testing.assert_close(covariance, expected, rtol=1e-10, atol=1e-11)


@pytest.mark.parametrize("name", ONLY_AS_A_LIMIT)
def test_gradient_covariance_is_the_limit_from_different_points(name: str) -> None:
    """At coincident points automatic differentiation is wrong; near them it is right."""
    make, formula = CASES[name]
    derivatives = kernel_derivatives(make(), like=LOCATION)
    covariance = derivatives.gradient_covariance(LOCATION)
    nearby = mixed_hessian(formula, LOCATION, LOCATION + 1e-6)
    torch.testing.assert_close(covariance, nearby, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", CASES)
def test_coincident_points_are_finite_and_differentiable(name: str) -> None:
    derivatives = kernel_derivatives(CASES[name][0](), like=LOCATION)
    X = LOCATION.expand(2, D).clone().requires_grad_()
    total = derivatives.value(X, X).sum() + derivatives.gradient(LOCATION, X).sum()
    total.backward()
    assert X.grad is not None and torch.isfinite(X.grad).all()


@pytest.mark.parametrize("name", CASES)
def test_closed_forms_are_differentiable_in_the_points(name: str) -> None:
    derivatives = kernel_derivatives(CASES[name][0](), like=LOCATION)
    X = torch.rand(2, D, dtype=torch.double, requires_grad=True)
    assert torch.autograd.gradcheck(lambda Z: derivatives.value(Z, Z[:1]), (X,))
    assert torch.autograd.gradcheck(lambda Z: derivatives.gradient(LOCATION, Z), (X,))


@pytest.mark.parametrize("nu", [0.5, 1.5])
@pytest.mark.parametrize("wrap", [lambda k: k, ScaleKernel])
def test_rough_matern_kernels_are_refused(nu: float, wrap) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ValueError, match=r"MaternKernel\(nu="):
        kernel_derivatives(wrap(MaternKernel(nu=nu)), like=LOCATION)


class HiddenMatern(MaternKernel):
    """A subclass, which the closed forms must not take for its parent."""


@pytest.mark.parametrize(
    "kernel",
    [
        HiddenMatern(nu=2.5),
        RBFKernelGrad(),
        PeriodicKernel(),
        RBFKernel() + MaternKernel(nu=2.5),
        MaternKernel(nu=2.5, active_dims=(2, 0)),
        ScaleKernel(RBFKernel(active_dims=(2, 0))),
    ],
)
def test_kernels_without_a_closed_form_are_refused(kernel: Kernel) -> None:
    with pytest.raises(ValueError, match="no closed form"):
        kernel_derivatives(kernel, like=LOCATION)


def test_refusals_name_the_argument() -> None:
    with pytest.raises(TypeError, match="`kernel`"):
        kernel_derivatives("rbf", like=LOCATION)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="batch"):
        kernel_derivatives(RBFKernel(batch_shape=torch.Size([2])), like=LOCATION)
    with pytest.raises(ValueError, match="integer power"):
        kernel_derivatives(PolynomialKernel(power=1.5), like=LOCATION)


def test_hyper_parameters_are_copied_and_cast() -> None:
    kernel = RBFKernel()  # float32 by default
    derivatives = kernel_derivatives(kernel, like=LOCATION)
    before = derivatives.gradient_covariance(LOCATION)
    kernel.lengthscale = 100.0
    assert before.dtype == torch.double
    torch.testing.assert_close(derivatives.gradient_covariance(LOCATION), before)
    assert not any(p.requires_grad for p in derivatives.parameters())


@pytest.mark.parametrize("kernel", [RBFKernel, MaternKernel])
def test_near_points_in_many_dimensions(kernel: type[Kernel]) -> None:
    """Where distances are found by products: points that coincide, that nearly do, and far ones."""
    d = 200
    X = 50 + torch.rand(6, d, dtype=torch.double)
    X[1], X[2], X[3], X[4] = X[0], X[0] + 1e-9, X[0] + 1e-5, X[0] + 1e-2
    found = kernel_derivatives(with_hypers(kernel(), lengthscale=0.5), X).value(X, X)
    differences = ((X.unsqueeze(1) - X) / 0.5).norm(dim=-1)
    s = math.sqrt(5) * differences
    exact = (
        torch.exp(-0.5 * differences.square())
        if kernel is RBFKernel
        else (1 + s + s.square() / 3) * torch.exp(-s)
    )
    torch.testing.assert_close(found, exact, rtol=0.0, atol=1e-12)
