"""The growing factor equals the plain one, and survives dependent points."""

from __future__ import annotations

import pytest
import torch
from gpytorch.kernels import MaternKernel, PolynomialKernel, RBFKernel

from botorch_dp.models.derivative_rules import KernelDerivatives
from botorch_dp.models.factor import KernelFactor
from botorch_dp.models.kernel_derivatives import kernel_derivatives


@pytest.fixture
def X() -> torch.Tensor:
    return torch.rand(12, 3, dtype=torch.double)


def factor_of(
    derivatives: KernelDerivatives, X: torch.Tensor, noise: torch.Tensor | float = 0.0
) -> KernelFactor:
    return KernelFactor.empty(derivatives, X.shape[-1]).extended(X, noise)[0]


def test_blocks_give_the_factor_of_all_points(X: torch.Tensor) -> None:
    derivatives = kernel_derivatives(MaternKernel(nu=2.5), like=X)
    factor = factor_of(derivatives, X[:4])
    factor, kept = factor.extended(X[4:5])
    assert kept.tolist() == [0]
    factor, kept = factor.extended(X[5:])
    assert kept.tolist() == list(range(7))
    plain = torch.linalg.cholesky(derivatives.value(X, X))
    torch.testing.assert_close(factor.root, plain, rtol=1e-9, atol=1e-10)
    torch.testing.assert_close(factor.points, X)
    B = torch.rand(12, 2, dtype=torch.double)
    torch.testing.assert_close(factor.root @ factor.whiten(B), B)
    torch.testing.assert_close(factor.root.mT @ factor.unwhiten(B), B)


def test_noise_goes_on_the_diagonal(X: torch.Tensor) -> None:
    derivatives = kernel_derivatives(RBFKernel(), like=X)
    noise = torch.rand(12, dtype=torch.double)
    factor, _ = factor_of(derivatives, X[:5], noise[:5]).extended(X[5:], noise[5:])
    expected = derivatives.value(X, X) + torch.diag(noise)
    torch.testing.assert_close(factor.root @ factor.root.mT, expected)


def test_repeated_points_are_left_out_unless_noisy(X: torch.Tensor) -> None:
    derivatives = kernel_derivatives(RBFKernel(), like=X)
    twice = torch.stack((X[0], X[1], X[0], X[2], X[2]))
    factor, kept = factor_of(derivatives, X[:0]).extended(twice)
    assert sorted(kept.tolist()) in ([0, 1, 3], [1, 2, 3], [0, 1, 4], [1, 2, 4])
    assert factor.extended(X[:4])[1].tolist() == [3]
    assert len(factor_of(derivatives, twice, 1e-3)) == 5


@pytest.mark.parametrize("power", [1, 2])
def test_a_polynomial_kernel_is_spanned_at_its_rank(power: int) -> None:
    X = torch.randn(40, 3, dtype=torch.double)
    rank = {1: 4, 2: 10}[power]
    factor = factor_of(kernel_derivatives(PolynomialKernel(power=power), like=X), X)
    assert len(factor) == rank
    torch.testing.assert_close(
        factor.root @ factor.root.mT, factor.derivatives.value(factor.points, factor.points)
    )
    assert factor.extended(torch.randn(5, 3, dtype=torch.double))[1].tolist() == []


def test_nearby_points_are_kept(X: torch.Tensor) -> None:
    """A design of radius 1e-3 length-scales is nearly, not numerically, dependent."""
    offsets = torch.cat((torch.eye(3), torch.zeros(1, 3))).double() * 1e-3
    factor = factor_of(kernel_derivatives(RBFKernel(), like=X), X[:1] + offsets)
    assert len(factor) == 4
