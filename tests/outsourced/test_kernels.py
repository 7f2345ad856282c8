"""The kernel of noisy rows is the average of the RBF over the noise."""

from __future__ import annotations

import pytest
import torch
from gpytorch.kernels import RBFKernel

from botorch_dp.models import FiniteSetGP
from botorch_dp.outsourced import InputNoiseRBF


def test_is_the_average_over_input_noise() -> None:
    generator = torch.Generator().manual_seed(0)
    z1, z2 = torch.randn(2, 4, 3, generator=generator, dtype=torch.double)
    lengthscale, noise_std = 1.3, 0.4
    kernel = InputNoiseRBF(lengthscale=lengthscale, noise_std=noise_std)
    draws = torch.randn(200_000, 2, 3, generator=generator, dtype=torch.double) * noise_std
    shift = draws[:, 0] - draws[:, 1]
    expected = torch.stack(
        [
            torch.stack(
                [(-((a - b - shift) ** 2).sum(-1) / (2 * lengthscale**2)).exp().mean() for b in z2]
            )
            for a in z1
        ]
    )
    torch.testing.assert_close(kernel(z1, z2).to_dense(), expected, atol=4e-3, rtol=0)


def test_a_row_is_itself() -> None:
    Z = torch.randn(5, 2, dtype=torch.double)
    covariance = InputNoiseRBF(lengthscale=1.0, noise_std=2.0)(Z, Z).to_dense()
    torch.testing.assert_close(covariance.diagonal(), torch.ones(5, dtype=torch.double))
    assert covariance.fill_diagonal_(0).max() < (1 / 9) + 1e-9
    assert torch.linalg.eigvalsh(covariance.fill_diagonal_(1)).min() > 0
    kernel = InputNoiseRBF(lengthscale=1.0, noise_std=2.0)
    torch.testing.assert_close(kernel(Z, diag=True), torch.ones(5, dtype=torch.double))


def test_without_noise_it_is_the_rbf() -> None:
    Z = torch.randn(6, 2, dtype=torch.double)
    plain = RBFKernel().double()
    plain.lengthscale = 0.7
    torch.testing.assert_close(
        InputNoiseRBF(lengthscale=0.7, noise_std=0.0)(Z, Z).to_dense(), plain(Z, Z).to_dense()
    )


def test_works_in_the_finite_set_gp() -> None:
    Z = torch.randn(50, 2, dtype=torch.double)
    gp = FiniteSetGP(Z, kernel=InputNoiseRBF(lengthscale=1.0, noise_std=0.3), noise_variance=0.01)
    gp.observe(7, 1.0)
    assert gp.mean[7] == pytest.approx(1 / 1.01)
    assert gp.mean.argmax() == 7


@pytest.mark.parametrize(("argument", "value"), [("lengthscale", 0.0), ("noise_std", -1.0)])
def test_wrong_arguments(argument: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"`{argument}`"):
        InputNoiseRBF(**{"lengthscale": 1.0, "noise_std": 1.0, argument: value})
