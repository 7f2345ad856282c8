"""Linear maps of rows: the published random projection, the attack on it, and a public projection.

Singular values, column spaces and sensitivities; the curators that release what they make of rows
are in ``curator``.
"""

from __future__ import annotations

import math
from bisect import bisect_right

import torch
from torch import Tensor

from botorch_dp._checks import (
    LARGEST_COUNT,
    check_delta,
    check_integer,
    check_positive,
    check_tensor,
)

#: Projected coordinates are limited to this many row distances from 0.
LARGEST_COORDINATE = 2.0**24


def singular_floor(*, projection_dim: int, epsilon: float, delta: float) -> float:
    r"""The least singular value that the published theorem asks for.

    ``omega = 16 sqrt(r log(2/delta)) log(16 r/delta) / epsilon`` for ``r`` output columns.
    """
    r = check_integer("projection_dim", projection_dim)
    check_positive("epsilon", epsilon)
    check_delta("delta", delta)
    return 16 * math.sqrt(r * math.log(2 / delta)) * math.log(16 * r / delta) / epsilon


def centred(X: Tensor) -> Tensor:
    """``X`` with the mean of its rows taken off; ``n x d``."""
    return X - X.mean(dim=0, keepdim=True)


def lifted(X: Tensor, floor: float) -> Tensor:
    """``X`` with every singular value ``s`` raised to ``sqrt(s^2 + floor^2)``; ``n x d``.

    The singular vectors and the column space stay as they are, so lifting hides nothing from
    :func:`column_space_residual`.
    """
    U, S, Vh = torch.linalg.svd(X, full_matrices=False)
    return (U * torch.hypot(S, torch.full_like(S, floor))) @ Vh


def choose_projection_dim(X: Tensor, *, epsilon: float, delta: float) -> int:
    """The published guideline: the most columns for which ``X`` needs no lifting.

    **The answer is sensitive**: it depends on the least singular value of ``X``, and no noise is
    added. Compute it where the rows are; sending it out is a release without any guarantee.

    Args:
        X: ``n x d`` rows; centred here as the transform centres them.
        epsilon: The epsilon claimed by the published theorem.
        delta: Its delta.

    Returns:
        The largest ``projection_dim`` whose :func:`singular_floor` is at most the least
        singular value.

    Raises:
        ValueError: If even one column would need lifting.
    """
    check_rows(X)
    smallest = float(torch.linalg.svdvals(centred(X)).min())

    def floor(columns: int) -> float:
        return singular_floor(projection_dim=columns, epsilon=epsilon, delta=delta)

    # The floor grows with the columns.
    largest = bisect_right(range(1, LARGEST_COUNT), smallest, key=floor)
    if largest == 0:
        raise ValueError(
            "No `projection_dim` satisfies the guideline at this epsilon and delta: every choice "
            "would lift the singular values. Raise epsilon or delta, or choose one yourself."
        )
    return largest


def column_space_residual(Z: Tensor, X: Tensor) -> float:
    """How far a released ``Z`` is from the column space of ``X``, relative to ``Z``'s size.

    This is the whole attack on the published transform. Every column of ``Z`` is a combination
    of the columns of the centred ``X``, lifted or not, whatever the random projection was.
    Somebody who knows all rows but one, and two candidates for it, computes this number for both:
    the true one gives zero up to rounding, the other does not, as long as there are more rows
    than columns.

    Args:
        Z: ``n x r`` released rows.
        X: ``n x d`` candidate rows.
    """
    check_rows(X)
    check_tensor("Z", Z, shape=(X.shape[0], "m"))
    # The result does not depend on their scale, and squares of large entries would overflow.
    X, Z = (part / part.abs().max().clamp_min(1e-300) for part in (X.double(), Z.double()))
    U, values, _ = torch.linalg.svd(centred(X), full_matrices=False)
    rounding = values.max() * max(X.shape) * torch.finfo(X.dtype).eps
    rank = int((values > rounding).sum())
    basis = U[:, :rank]
    length = Z.norm()
    return float((Z - basis @ (basis.mT @ Z)).norm() / length) if length > 0 else 0.0


def check_rows(X: object) -> Tensor:
    """Refuse anything but an ``n x d`` tensor of finite numbers, without quoting any."""
    return check_tensor("X", X, shape=("n", "d"))


def public_projection(dim: int, projection_dim: int, seed: int = 0) -> Tensor:
    """``d x r`` orthogonal columns times ``sqrt(d / r)`` in double precision, from a seed alone."""
    generator = torch.Generator().manual_seed(seed)
    gaussian = torch.randn(
        dim, projection_dim, generator=generator, dtype=torch.double, device="cpu"
    )
    basis, _ = torch.linalg.qr(gaussian)
    return basis * math.sqrt(dim / projection_dim)


def projected(X: Tensor, projection: Tensor, row_distance: float) -> Tensor:
    """``X P`` in double precision, each coordinate of ``X`` limited to 2^24 row distances; n x r.

    Limiting moves no two rows further apart, and gives the product's rounding a public bound.
    """
    limit = LARGEST_COORDINATE * row_distance
    return X.double().clamp(-limit, limit) @ projection


def projected_sensitivity(projection: Tensor, row_distance: float) -> float:
    r"""How far :func:`projected` moves at most when one row moves by ``row_distance``.

    With exact arithmetic, by ``row_distance * ||P||``, where ``||P||^2 <= max_i sum_j |P^T P|_ij``.
    A product of ``d`` terms in double precision, summed in any order, is off by at most
    ``g sum_k |x_k| |P_kj|`` with ``g = d u / (1 - d u)`` and ``u = 2^-53`` [Higham2002]; limited
    coordinates make that ``g * limit * sum_k |P_kj|``, for each of two neighbours.

    Args:
        projection: Public ``d x r`` matrix in double precision.
        row_distance: How far one row may move.
    """
    d, r = projection.shape
    unit = 2.0**-53
    g = d * unit / (1 - d * unit)
    size = projection.abs()
    # The product P^T P is itself computed: enlarged by its own rounding, it bounds the exact one.
    gram = (projection.mT @ projection).abs() + 2 * g * (size.mT @ size)
    stretch = math.sqrt(float(gram.sum(dim=1).max()))
    rounding = 2 * g * LARGEST_COORDINATE * float(size.sum(dim=0).norm())
    # Fewer than 4 (d + r) further operations round, each by one unit.
    return row_distance * (stretch + rounding) * (1 + 8 * (d + r) * unit)
