"""Kernels beside their plain formulas, and what their derivatives must satisfy."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from gpytorch.kernels import Kernel, MaternKernel, PolynomialKernel, RBFKernel, ScaleKernel
from torch import Tensor

from botorch_dp.models.derivative_rules import KernelDerivatives

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


def active_formula(x: Tensor, z: Tensor) -> Tensor:
    return torch.exp(-0.5 * (x[[2, 0]] - z[[2, 0]]).square().sum() / 0.49)


def mixed_hessian(formula: Formula, x: Tensor, z: Tensor) -> Tensor:
    slope = torch.func.grad(formula, argnums=0)
    return torch.func.jacrev(slope, argnums=1)(x, z)


def check_values_and_gradients(derivatives: KernelDerivatives, formula: Formula) -> None:
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


def check_gradient_covariance(derivatives: KernelDerivatives, formula: Formula) -> None:
    covariance = derivatives.gradient_covariance(LOCATION)
    expected = mixed_hessian(formula, LOCATION, LOCATION)
    torch.testing.assert_close(covariance, expected, rtol=1e-10, atol=1e-11)


def check_gradient_covariance_is_a_limit(derivatives: KernelDerivatives, formula: Formula) -> None:
    """At coincident points automatic differentiation is wrong; near them it is right."""
    covariance = derivatives.gradient_covariance(LOCATION)
    nearby = mixed_hessian(formula, LOCATION, LOCATION + 1e-6)
    torch.testing.assert_close(covariance, nearby, rtol=1e-4, atol=1e-4)


def check_coincident_points(derivatives: KernelDerivatives) -> None:
    """There, values and gradients are finite and can be differentiated."""
    X = LOCATION.expand(2, D).clone().requires_grad_()
    total = derivatives.value(X, X).sum() + derivatives.gradient(LOCATION, X).sum()
    total.backward()
    assert X.grad is not None and torch.isfinite(X.grad).all()


def check_differentiable_in_the_points(derivatives: KernelDerivatives) -> None:
    X = torch.rand(2, D, dtype=torch.double, requires_grad=True)
    assert torch.autograd.gradcheck(lambda Z: derivatives.value(Z, Z[:1]), (X,))
    assert torch.autograd.gradcheck(lambda Z: derivatives.gradient(LOCATION, Z), (X,))
