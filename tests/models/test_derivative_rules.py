"""Rules for kernels of kernels: by hand on dot products, and against formulas of whole kernels."""

from __future__ import annotations

import pytest
import torch
from gpytorch.kernels import RBFKernel
from torch import Tensor

from botorch_dp.models.derivative_rules import (
    KernelDerivatives,
    ProductDerivatives,
    RestrictedDerivatives,
    ScaledDerivatives,
    SummedDerivatives,
    shortest_length_scale,
)
from botorch_dp.models.kernel_derivatives import kernel_derivatives
from tests.models.formulas import (
    LOCATION,
    Case,
    active_formula,
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
    scaled,
    with_hypers,
)

CASES: dict[str, Case] = {
    "scaled rbf": (lambda: scaled(ard_rbf()), lambda x, z: 2.5 * rbf_formula(x, z)),
    "scaled matern": (lambda: scaled(ard_matern()), lambda x, z: 2.5 * matern_formula(x, z)),
    "sum": (
        lambda: ard_rbf() + scaled(polynomial()),
        lambda x, z: rbf_formula(x, z) + 2.5 * polynomial_formula(x, z),
    ),
    "product": (
        lambda: ard_rbf() * polynomial() * ard_matern(),
        lambda x, z: rbf_formula(x, z) * polynomial_formula(x, z) * matern_formula(x, z),
    ),
    "active dims": (
        lambda: with_hypers(RBFKernel(active_dims=(2, 0)), lengthscale=0.7),
        active_formula,
    ),
    "scaled active dims": (
        lambda: scaled(with_hypers(RBFKernel(active_dims=(2, 0)), lengthscale=0.7)),
        lambda x, z: 2.5 * active_formula(x, z),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_derivatives_match_the_formula(name: str) -> None:
    make, formula = CASES[name]
    check_values_and_gradients(kernel_derivatives(make(), like=LOCATION), formula)


@pytest.mark.parametrize("name", sorted(CASES.keys() - {"scaled matern", "product"}))
def test_gradient_covariance_matches_the_formula(name: str) -> None:
    make, formula = CASES[name]
    check_gradient_covariance(kernel_derivatives(make(), like=LOCATION), formula)


@pytest.mark.parametrize("name", ["scaled matern", "product"])
def test_gradient_covariance_is_the_limit_from_different_points(name: str) -> None:
    make, formula = CASES[name]
    check_gradient_covariance_is_a_limit(kernel_derivatives(make(), like=LOCATION), formula)


@pytest.mark.parametrize("name", CASES)
def test_coincident_points_are_finite_and_differentiable(name: str) -> None:
    check_coincident_points(kernel_derivatives(CASES[name][0](), like=LOCATION))


@pytest.mark.parametrize("name", CASES)
def test_closed_forms_are_differentiable_in_the_points(name: str) -> None:
    check_differentiable_in_the_points(kernel_derivatives(CASES[name][0](), like=LOCATION))


class Dot(KernelDerivatives):
    """``x^T z``, the simplest kernel with a slope at coincident points."""

    has_finite_rank = True

    def __init__(self, *length_scales: float) -> None:
        super().__init__(torch.tensor(length_scales or (1.0,), dtype=torch.double))

    def value(self, X1: Tensor, X2: Tensor) -> Tensor:
        return X1 @ X2.mT

    def diagonal(self, X: Tensor) -> Tensor:
        return X.square().sum(-1)

    def gradient(self, location: Tensor, X: Tensor) -> Tensor:
        return X.mT

    def gradient_covariance(self, location: Tensor) -> Tensor:
        return torch.eye(len(location), dtype=location.dtype)


class Endless(Dot):
    """The same, but called infinite-dimensional."""

    has_finite_rank = False


def numbers(*values: object) -> Tensor:
    return torch.tensor(values, dtype=torch.double)


HERE, THERE = numbers(1, 2), numbers([3, -1])  # their dot product is 1
THRICE = numbers(3).squeeze()
SQUARE = [[12, 4], [4, 18]]  # 2 |x|^2 I + 2 x x^T


@pytest.mark.parametrize(
    ("rule", "value", "diagonal", "gradient", "covariance"),
    [
        (ScaledDerivatives(Dot(), THRICE), 3, 15, [9, -3], [[3, 0], [0, 3]]),
        (SummedDerivatives([Dot(), Dot(), Dot()]), 3, 15, [9, -3], [[3, 0], [0, 3]]),
        (ProductDerivatives(Dot(), Dot()), 1, 25, [6, -2], SQUARE),
        (
            SummedDerivatives([Dot(), ProductDerivatives(Dot(), Dot())]),
            *(2, 30, [9, -3], [[13, 4], [4, 19]]),
        ),
        (RestrictedDerivatives(Dot(), torch.tensor([1])), -2, 4, [0, -1], [[0, 0], [0, 1]]),
    ],
    ids=["scaled", "summed", "product", "sum with a product", "restricted"],
)
def test_rules_by_hand(
    rule: KernelDerivatives, value: float, diagonal: float, gradient: list, covariance: list
) -> None:
    assert rule.value(HERE.unsqueeze(0), THERE).item() == value
    assert rule.diagonal(HERE.unsqueeze(0)).item() == diagonal
    assert rule.gradient(HERE, THERE).squeeze(-1).tolist() == gradient
    assert rule.gradient_covariance(HERE).tolist() == covariance


def test_a_restriction_may_reorder_the_inputs() -> None:
    rule = RestrictedDerivatives(ScaledDerivatives(Dot(), THRICE), torch.tensor([2, 0]))
    location = numbers(1, 2, 4)
    assert rule.gradient(location, numbers([5, 6, 7])).squeeze(-1).tolist() == [15, 0, 21]
    assert rule.gradient_covariance(location).diagonal().tolist() == [3, 0, 3]


def test_the_shortest_length_scale_is_the_unit_of_a_design() -> None:
    parts = [Dot(0.5, 2.0), Dot(0.25)]
    assert shortest_length_scale(parts).tolist() == [0.25]
    assert SummedDerivatives(parts).length_scales.tolist() == [0.25]
    assert ProductDerivatives(*parts).length_scales.tolist() == [0.25]
    assert RestrictedDerivatives(parts[0], torch.tensor([1, 0])).length_scales.tolist() == [0.5]
    assert ScaledDerivatives(parts[0], THRICE).length_scales.tolist() == [0.5, 2.0]


@pytest.mark.parametrize("other", [Dot, Endless])
def test_finite_rank_takes_finite_parts(other: type[Dot]) -> None:
    parts = [Dot(), other()]
    finite = other is Dot
    assert SummedDerivatives(parts).has_finite_rank == finite
    assert ProductDerivatives(*parts).has_finite_rank == finite
    assert ProductDerivatives(*parts[::-1]).has_finite_rank == finite
    assert ScaledDerivatives(other(), THRICE).has_finite_rank == finite
    assert RestrictedDerivatives(other(), torch.tensor([0])).has_finite_rank == finite
