r"""A Gaussian process that has seen noisy gradients only, and where its mean is smallest.

With the Matern-5/2 kernel of variance ``a^2 l^2 3/5`` and length-scale ``l``, ``D = x - x'`` and
``s = sqrt(5) |D| / l``,

    Cov(grad f(x), grad f(x')) = a^2 e^{-s} [(1 + s) I - 5 D D^T / l^2],
    Cov(f(x), grad f(x'))      = a^2 e^{-s} (1 + s) D,

so that ``a^2`` is the prior variance of each slope. All it reads is released: locations, gradients
and the known variance of their noise.
"""

from __future__ import annotations

import itertools
import math

import numpy as np
import torch
from scipy.optimize import minimize
from torch import Tensor

_SQRT5 = math.sqrt(5.0)
#: Length-scales to choose from, in units of the cube.
_LENGTH_SCALES = torch.logspace(math.log10(0.1), math.log10(3.0), 9, dtype=torch.double).tolist()
#: Variances of the slopes to choose from, in units of what is seen beyond the noise.
_VARIANCES = torch.logspace(-1.0, 1.0, 7, dtype=torch.double).tolist()
#: What no smooth function explains, as a part of what is seen beyond the noise.
_UNEXPLAINED = (0.0, 0.1)
#: What is expected of the length-scale before anything is seen, and how firmly (in logarithms).
_EXPECTED_LENGTH_SCALE, _EXPECTED_SPREAD = 0.5, 0.8
_STARTS = 6


def gradient_gram(X: Tensor, Z: Tensor, length_scale: float) -> Tensor:
    """Covariance of the gradients at ``X`` (``m x d``) and ``Z`` (``k x d``): ``m d x k d``."""
    d = X.shape[-1]
    offsets = X.unsqueeze(1) - Z.unsqueeze(0)  # m x k x d
    s = _SQRT5 * offsets.norm(dim=-1) / length_scale
    outer = offsets.unsqueeze(-1) * offsets.unsqueeze(-2)  # m x k x d x d
    blocks = (1 + s)[..., None, None] * torch.eye(d).to(X) - 5 * outer / length_scale**2
    blocks = torch.exp(-s)[..., None, None] * blocks
    return blocks.permute(0, 2, 1, 3).reshape(len(X) * d, len(Z) * d)


class GradientModel:
    """The posterior given gradients ``G`` at ``X`` (both ``m x d``) with known noise (``m``).

    Length-scale, variance, and the part of the gradients that no smooth function explains (they
    come from stencils of a finite width) are those of the largest likelihood on a grid.

    Example:
        >>> model = GradientModel(locations, gradients, torch.full((len(locations),), 0.01))
        >>> model.minimizer(locations[-1], radius=0.1)
    """

    def __init__(self, X: Tensor, G: Tensor, noise_std: Tensor) -> None:
        self._X = X
        seen = float(G.square().mean())
        noise = noise_std.double().square().clamp_min(max(1e-8 * seen, 1e-200))  # m
        beyond = max(seen - float(noise.mean()), 0.1 * float(noise.mean()))
        best = -math.inf
        for length_scale, share in itertools.product(_LENGTH_SCALES, _UNEXPLAINED):
            # In units of the noise, one decomposition serves all variances of the slopes.
            std = (noise + share * beyond).sqrt().repeat_interleave(X.shape[-1])
            gram = gradient_gram(X, X, length_scale) / (std.unsqueeze(-1) * std)
            values, vectors = torch.linalg.eigh(gram)
            rotated, values = vectors.mT @ (G.flatten() / std), values.clamp_min(0.0)
            prior = -0.5 * (math.log(length_scale / _EXPECTED_LENGTH_SCALE) / _EXPECTED_SPREAD) ** 2
            for variance in (ratio * beyond for ratio in _VARIANCES):
                total = variance * values + 1
                misfit = rotated.square() / total + total.log()
                likelihood = prior - float(0.5 * misfit.sum() + std.log().sum())
                if likelihood > best:
                    best, self.length_scale = likelihood, length_scale
                    weights = variance * (vectors @ (rotated / total)) / std
        self._weights = weights.view_as(X)

    def mean(self, X: Tensor) -> Tensor:
        """The posterior mean at ``b x d`` points, up to a constant: a ``b``-vector."""
        offsets = X.unsqueeze(1) - self._X.unsqueeze(0)  # b x m x d
        s = _SQRT5 * offsets.norm(dim=-1) / self.length_scale
        along = (offsets * self._weights).sum(-1)
        return (torch.exp(-s) * (1 + s) * along).sum(-1)

    def slope(self, X: Tensor) -> Tensor:
        """The gradient of :meth:`mean`, ``b x d``."""
        flat = gradient_gram(X, self._X, self.length_scale) @ self._weights.flatten()
        return flat.view_as(X)

    def minimizer(self, center: Tensor, radius: float) -> Tensor:
        """Where the mean is smallest in a box around ``center``, inside the unit cube."""
        low = (center - radius).clamp(0.0, 1.0)
        high = (center + radius).clamp(0.0, 1.0)
        near = ((self._X >= low) & (self._X <= high)).all(-1)
        slope = self.slope(center.unsqueeze(0)).squeeze(0)
        length = slope.abs().max().clamp_min(torch.finfo(torch.double).tiny)
        downhill = (center - radius * slope / length).clamp(low, high)
        starts = torch.cat((center.unsqueeze(0), downhill.unsqueeze(0), self._X[near]))
        starts = starts[self.mean(starts).argsort(stable=True)[:_STARTS]]

        def value_and_slope(x: np.ndarray) -> tuple[float, np.ndarray]:
            point = torch.from_numpy(x).unsqueeze(0)
            return float(self.mean(point)), self.slope(point).squeeze(0).numpy()

        box = list(zip(low.tolist(), high.tolist(), strict=True))
        scale = float(self.mean(starts).abs().max()) or 1.0
        found = [
            minimize(
                lambda x: tuple(part / scale for part in value_and_slope(x)),
                start.numpy(),
                jac=True,
                bounds=box,
                method="L-BFGS-B",
                options={"maxiter": 100},
            )
            for start in starts
        ]
        best = min(found, key=lambda result: float(result.fun))
        return torch.from_numpy(np.asarray(best.x, dtype=np.float64)).clamp(low, high)
