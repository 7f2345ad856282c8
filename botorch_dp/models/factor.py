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
        >>> factor = KernelFactor.empty(kernel_derivatives(RBFKernel(), like=X), dim=X.shape[-1])
        >>> factor, kept = factor.extended(X)
    """

    def __init__(self, derivatives: KernelDerivatives, points: Tensor, root: Tensor) -> None:
        """Hold ``N x d`` independent points and their ``N x N`` factor."""
        self.derivatives = derivatives
        self.points = points
        self.root = root

    @classmethod
    def empty(cls, derivatives: KernelDerivatives, dim: int) -> KernelFactor:
        """The factor of no points in ``dim`` dimensions."""
        unit = derivatives.length_scales
        return cls(derivatives, unit.new_zeros(0, dim), unit.new_zeros(0, 0))

    def __len__(self) -> int:
        return len(self.points)

    def extended(self, X: Tensor, noise: Tensor | float = 0.0) -> tuple[KernelFactor, Tensor]:
        """A factor that also has those rows of ``X`` that are independent of all before them.

        Args:
            X: New points, ``b x d``.
            noise: The variance of each one's observation noise, a number or a ``b``-vector.

        Returns:
            The new factor and the indices of the rows of ``X`` that were kept, in the order of
            their addition.
        """
        if len(X) == 0:
            return self, torch.zeros(0, dtype=torch.long, device=X.device)
        with torch.no_grad():
            crossed = self.whiten(self.derivatives.value(self.points, X))  # N x b
            remaining = self.derivatives.value(X, X) - crossed.mT @ crossed
            remaining.diagonal().add_(noise)
            largest = self.derivatives.diagonal(torch.cat((self.points, X))).max()
            limit = largest * torch.finfo(X.dtype).eps ** _DEPENDENCE_EXPONENT
            corner, kept = _independent_cholesky(remaining, limit)
            old, new = len(self), len(kept)
            root = X.new_zeros(old + new, old + new)
            root[:old, :old] = self.root
            root[old:, :old] = crossed[:, kept].mT
            root[old:, old:] = corner
        return KernelFactor(self.derivatives, torch.cat((self.points, X[kept])), root), kept

    def without_oldest(self, count: int) -> KernelFactor:
        """The factor without its first ``count`` points.

        With the remaining rows ``R`` of the factor, the new one is the triangle of a QR
        factorization of ``R^T``: nothing is recomputed from the kernel, and nothing can fail.
        """
        triangle = torch.linalg.qr(self.root[count:].mT, mode="r").R
        signs = torch.where(triangle.diagonal() < 0, -1.0, 1.0).to(triangle)
        root = (signs.unsqueeze(-1) * triangle).mT
        return KernelFactor(self.derivatives, self.points[count:], root)

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
