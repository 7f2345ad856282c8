"""A kernel for rows that were released with known Gaussian noise."""

from __future__ import annotations

import math
from typing import Any

import torch
from gpytorch.kernels import Kernel, RBFKernel
from torch import Tensor

from botorch_dp._checks import check_nonnegative, check_positive


class InputNoiseRBF(Kernel):
    r"""RBF kernel averaged over the noise of the rows it compares.

    Released rows differ by their true difference plus Gaussian noise of variance ``2 s^2`` in
    each of ``d`` coordinates. Averaging an RBF of length-scale ``l`` over that noise gives

    ``k(z, z') = (l^2 / (l^2 + 2 s^2))^{d/2} exp(-|z - z'|^2 / (2 (l^2 + 2 s^2)))``,

    a longer length-scale, for two different rows; a row compared with itself is the same row, so
    ``k(z, z) = 1``. What the noise hides thus becomes variance of the row's own: far above the
    length-scale the model says that rows teach nothing about each other, which is true.

    Args:
        lengthscale: Length-scale ``l`` in the units of the released rows.
        noise_std: Public standard deviation ``s`` of the noise on each coordinate.

    Example:
        >>> kernel = InputNoiseRBF(lengthscale=2.0, noise_std=0.5)
        >>> kernel(torch.zeros(1, 3), torch.ones(1, 3)).to_dense().item() < 1
        True
    """

    has_lengthscale = False

    def __init__(self, *, lengthscale: float, noise_std: float) -> None:
        super().__init__()
        check_positive("lengthscale", lengthscale)
        check_nonnegative("noise_std", noise_std)
        widened = lengthscale**2 + 2 * noise_std**2
        self.register_buffer("_shrinkage", torch.tensor(lengthscale**2 / widened))
        self._smooth = RBFKernel()
        self._smooth.lengthscale = math.sqrt(widened)
        self._smooth.requires_grad_(False)

    def forward(self, x1: Tensor, x2: Tensor, diag: bool = False, **params: Any) -> Tensor:
        """Covariance of ``... x n x d`` with ``... x m x d`` rows: ``... x n x m`` (or ``n``)."""
        if diag:
            same = (x1 == x2).all(dim=-1)
            smooth = self._smooth(x1, x2, diag=True)
        else:
            same = (x1.unsqueeze(-2) == x2.unsqueeze(-3)).all(dim=-1)
            smooth = self._smooth(x1, x2).to_dense()
        weight = self._shrinkage.to(x1) ** (x1.shape[-1] / 2)
        return torch.where(same, torch.ones_like(smooth), weight * smooth)
