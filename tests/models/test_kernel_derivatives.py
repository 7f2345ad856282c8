"""Closed forms against automatic differentiation where that is right, and refusals where not."""

from __future__ import annotations

import pytest
import torch
from gpytorch.kernels import (
    CosineKernel,
    Kernel,
    LinearKernel,
    MaternKernel,
    PeriodicKernel,
    PolynomialKernel,
    RBFKernel,
    RBFKernelGrad,
    RQKernel,
    ScaleKernel,
)

from botorch_dp.models.kernel_derivatives import kernel_derivatives
from tests.models.formulas import (
    LOCATION,
    Case,
    D,
    ard_matern,
    ard_rbf,
    check_coincident_points,
    check_differentiable_in_the_points,
    check_gradient_covariance,
    check_gradient_covariance_is_a_limit,
    check_values_and_gradients,
    matern_formula,
    polynomial,
    polynomial_formula,
    rbf_formula,
    with_hypers,
)

CASES: dict[str, Case] = {
    "rbf": (ard_rbf, rbf_formula),
    "matern": (ard_matern, matern_formula),
    "polynomial": (polynomial, polynomial_formula),
    "cubic": (lambda: polynomial(3), lambda x, z: (x @ z + 0.7) ** 3),
    "linear": (lambda: polynomial(1), lambda x, z: x @ z + 0.7),
    "rational quadratic (automatic)": (
        lambda: with_hypers(RQKernel(), lengthscale=0.8, alpha=1.5),
        lambda x, z: (1 + (x - z).square().sum() / (2 * 1.5 * 0.64)) ** -1.5,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_derivatives_match_the_formula(name: str) -> None:
    make, formula = CASES[name]
    check_values_and_gradients(kernel_derivatives(make(), like=LOCATION), formula)


@pytest.mark.parametrize("name", sorted(CASES.keys() - {"matern"}))
def test_gradient_covariance_matches_the_formula(name: str) -> None:
    make, formula = CASES[name]
    check_gradient_covariance(kernel_derivatives(make(), like=LOCATION), formula)


@pytest.mark.parametrize("name", ["matern"])
def test_gradient_covariance_is_the_limit_from_different_points(name: str) -> None:
    make, formula = CASES[name]
    check_gradient_covariance_is_a_limit(kernel_derivatives(make(), like=LOCATION), formula)


@pytest.mark.parametrize("name", CASES)
def test_coincident_points_are_finite_and_differentiable(name: str) -> None:
    check_coincident_points(kernel_derivatives(CASES[name][0](), like=LOCATION))


@pytest.mark.parametrize("name", CASES)
def test_closed_forms_are_differentiable_in_the_points(name: str) -> None:
    check_differentiable_in_the_points(kernel_derivatives(CASES[name][0](), like=LOCATION))


def test_matern_gradient_covariance_by_hand() -> None:
    kernel = MaternKernel(nu=2.5, ard_num_dims=D).double()
    kernel.lengthscale = torch.tensor([0.5, 1.0, 2.0], dtype=torch.double)
    covariance = kernel_derivatives(kernel, like=LOCATION).gradient_covariance(LOCATION)
    expected = torch.diag(torch.tensor([5 / 3 / 0.25, 5 / 3, 5 / 3 / 4], dtype=torch.double))
    torch.testing.assert_close(covariance, expected, rtol=1e-14, atol=0)


@pytest.mark.parametrize("nu", [0.5, 1.5])
@pytest.mark.parametrize("wrap", [lambda k: k, ScaleKernel, lambda k: k + RBFKernel()])
def test_rough_matern_kernels_are_refused(nu: float, wrap) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ValueError, match=r"MaternKernel\(nu="):
        kernel_derivatives(wrap(MaternKernel(nu=nu)), like=LOCATION)


class HiddenMatern(MaternKernel):
    """A subclass, which the closed forms must not take for its parent."""


@pytest.mark.parametrize(
    "kernel", [HiddenMatern(nu=2.5), HiddenMatern(nu=1.5), CosineKernel(), PeriodicKernel()]
)
def test_wrong_automatic_derivatives_are_refused(kernel: Kernel) -> None:
    derivatives = kernel_derivatives(kernel, like=LOCATION)
    with pytest.raises(ValueError, match="no usable gradient"):
        derivatives.gradient_covariance(LOCATION)


def test_gradient_enhanced_kernels_are_refused() -> None:
    derivatives = kernel_derivatives(RBFKernelGrad(), like=LOCATION)
    with pytest.raises((ValueError, RuntimeError)):
        derivatives.gradient_covariance(LOCATION)


def test_linear_kernel_of_gpytorch_agrees_with_the_polynomial_of_degree_one() -> None:
    automatic = kernel_derivatives(with_hypers(LinearKernel(), variance=[[1.0]]), like=LOCATION)
    torch.testing.assert_close(
        automatic.gradient_covariance(LOCATION), torch.eye(D, dtype=torch.double)
    )


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
