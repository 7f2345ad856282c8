"""The Cholesky factor of a kernel matrix that grows by blocks of points."""

from __future__ import annotations

import torch
from torch import Tensor

from botorch_dp.models.derivative_rules import KernelDerivatives

# A new point whose variance, given the points kept so far, is below this fraction of the largest
# prior variance is a linear combination of them as far as the arithmetic can tell. As a power of
# the rounding error: 7e-11 in double, 3e-5 in single precision. Rounding leaves up to 3e-11 where
# a polynomial kernel is spanned; a design of radius 1e-3 length-scales needs 1e-6.
_DEPENDENCE_EXPONENT = 0.65


class KernelFactor:
    """Lower-triangular ``root`` with ``root root^T = k(points, points) + diag(noise)``.

    Points are added by blocks: the old part of the factor is kept, so ``b`` new rows cost
    ``O(N^2 b)`` instead of ``O(N^3)``. A point that depends linearly on those already kept (a
    repeated point without noise; any point once a polynomial kernel is spanned) is left out: it
    carries no information, and a plain Cholesky factorization fails on it.

    Example:
        >>> derivatives = kernel_derivatives(RBFKernel(), like=X)
        >>> factor = KernelFactor(derivatives, X[:0])
        >>> kept = factor.extend(X)
    """

    def __init__(self, derivatives: KernelDerivatives, points: Tensor) -> None:
        """Start with the ``N x d`` ``points`` (noise-free); ``X[:0]`` for none."""
        self.derivatives = derivatives
        self.points = points[:0]
        self.root = points.new_zeros(0, 0)
        if len(points):
            self.extend(points)

    def __len__(self) -> int:
        return len(self.points)

    def extend(self, X: Tensor, noise: Tensor | float = 0.0) -> Tensor:
        """Add those rows of ``X`` (``b x d``) that are independent of all points before them.

        Args:
            X: New points.
            noise: The variance of each one's observation noise, a number or a ``b``-vector.

        Returns:
            The indices of the rows of ``X`` that were kept, in the order of their addition.
        """
        with torch.no_grad():
            crossed = self.whiten(self.derivatives.value(self.points, X))  # N x b
            remaining = self.derivatives.value(X, X) - crossed.mT @ crossed
            remaining.diagonal().add_(noise)
            largest = self.derivatives.diagonal(torch.cat((self.points, X))).max()
            limit = largest * torch.finfo(X.dtype).eps ** _DEPENDENCE_EXPONENT
            corner, kept = _independent_cholesky(remaining, limit)
            if len(kept) < len(X):
                crossed = crossed[:, kept]
            old, new = len(self), len(kept)
            root = X.new_zeros(old + new, old + new)
            root[:old, :old] = self.root
            root[old:, :old] = crossed.mT
            root[old:, old:] = corner
            self.root = root
            self.points = torch.cat((self.points, X[kept]))
        return kept

    def whiten(self, B: Tensor) -> Tensor:
        """``root^{-1} B`` for an ``N x m`` matrix."""
        return torch.linalg.solve_triangular(self.root, B, upper=False)

    def unwhiten(self, B: Tensor) -> Tensor:
        """``root^{-T} B`` for an ``N x m`` matrix."""
        return torch.linalg.solve_triangular(self.root.mT, B, upper=True)


def _independent_cholesky(matrix: Tensor, limit: Tensor) -> tuple[Tensor, Tensor]:
    """Cholesky factor over independent rows, those with a pivot above ``limit``, and their indices.

    The rows are taken in order if all are independent, else by the largest pivot.
    """
    root, failed = torch.linalg.cholesky_ex(matrix)
    if not failed and bool((root.diagonal().square() > limit).all()):
        return root, torch.arange(len(matrix), device=matrix.device)
    pivots = matrix.diagonal().clone()
    columns = torch.zeros_like(matrix)  # column j: the factor's column of the j-th kept row
    kept: list[int] = []
    while len(kept) < len(matrix):
        largest = int(pivots.argmax())
        if not pivots[largest] > limit:
            break
        column = matrix[:, largest] - columns @ columns[largest]
        columns[:, len(kept)] = column / pivots[largest].sqrt()
        pivots = pivots - columns[:, len(kept)].square()
        kept.append(largest)
        pivots[kept] = -1.0
    indices = torch.tensor(kept, dtype=torch.long, device=matrix.device)
    return columns[indices, : len(kept)].tril(), indices
