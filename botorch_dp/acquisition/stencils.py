"""Where to sample around a location for its gradient: stencils of unit vectors, put into a box.

A joint search for such points from random starts fails from about thirty inputs on: there are a
thousand numbers to choose, and almost every start is flat. A regular simplex around the location
is within a percent of the best ``d + 1`` points, mirrored pairs along the axes are better still,
and the only number left to choose is the radius.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

Stencil = Literal["simplex", "central"]

# From far below the length-scale, where rounding bites, to where the kernel has forgotten.
_SMALLEST_RADIUS, _LARGEST_RADIUS = 1e-3, 2.0


def radius_grid(count: int, like: Tensor) -> Tensor:
    """``count`` radii worth trying, evenly spaced in the logarithm, in length-scales."""
    ends = math.log10(_SMALLEST_RADIUS), math.log10(_LARGEST_RADIUS)
    return torch.logspace(*ends, count, dtype=like.dtype, device=like.device)


def stencil_directions(stencil: Stencil, count: int, basis: Tensor) -> Tensor:
    """``count`` directions in units of a radius, as a ``count x d`` tensor.

    Args:
        stencil: ``"simplex"``: the corners of a regular simplex (one more than the dimensions it
            spans), then their mirror images. ``"central"``: mirrored pairs along the basis.
            Further points repeat the stencil at half the radius, a quarter, and so on.
        count: How many points, at least 1.
        basis: A ``d x d`` orthonormal matrix. Fewer points than a full stencil spend themselves on
            its first columns.
    """
    d = basis.shape[-1]
    if stencil == "simplex":
        corners = min(count, d + 1)
        ring = regular_simplex(corners).to(basis) @ basis[:, : max(corners - 1, 1)].mT
        ring = torch.cat((ring, -ring))
    else:
        ring = torch.stack((basis.mT, -basis.mT), dim=1).reshape(2 * d, d)
    rings = -(-count // len(ring))
    shrunken = [ring * 0.5**level for level in range(rings)]
    return torch.cat(shrunken)[:count]


def regular_simplex(corners: int) -> Tensor:
    """Unit vectors with equal angles that sum to zero, ``corners x max(corners - 1, 1)``.

    The columns of Helmert's matrix, whose rows are orthonormal and orthogonal to the ones vector.
    A single corner is the number 1.
    """
    if corners == 1:
        return torch.ones(1, 1, dtype=torch.double)
    row = torch.arange(1, corners, dtype=torch.double).unsqueeze(-1)  # k = 1, ..., corners - 1
    column = torch.arange(corners, dtype=torch.double)
    helmert = torch.where(column < row, 1.0, torch.where(column == row, -row, 0.0))
    helmert = helmert / (row * (row + 1)).sqrt()
    return helmert.mT * (corners / (corners - 1)) ** 0.5


def place_stencil(
    location: Tensor, directions: Tensor, radii: Tensor, units: Tensor, bounds: Tensor | None
) -> Tensor:
    """Points ``location + radius * units * direction``, moved as one into the box.

    A stencil that crosses the box is shifted, not clamped: clamping flattens it, and a flat
    stencil is blind in one direction. One that is wider than the box is shrunk in that coordinate.

    Args:
        location: A ``d``-vector inside ``bounds``.
        directions: A ``q x d`` tensor.
        radii: An ``r``-vector.
        units: The length of one radius in each coordinate, ``d``.
        bounds: A ``2 x d`` tensor, or None for no box.

    Returns:
        An ``r x q x d`` tensor.
    """
    offsets = radii[:, None, None] * (units * directions)  # r x q x d
    if bounds is None:
        return location + offsets
    lower, upper = bounds
    # The location itself counts as part of the stencil: the shift is never larger than needed.
    low = offsets.amin(dim=-2, keepdim=True).clamp_max(0)
    high = offsets.amax(dim=-2, keepdim=True).clamp_min(0)
    shrink = ((upper - lower) / (high - low).clamp_min(1e-300)).clamp_max(1)
    low, high, offsets = low * shrink, high * shrink, offsets * shrink
    centre = torch.maximum(torch.minimum(location, upper - high), lower - low)
    return (centre + offsets).clamp(lower, upper)


def leading_basis(covariance: Tensor, units: Tensor) -> Tensor:
    """Orthonormal ``d x d`` directions, in ``units``, of the least known gradient components first.

    Args:
        covariance: The gradient's covariance, ``d x d``.
        units: What one unit of a direction is in each coordinate, ``d``.
    """
    _, vectors = torch.linalg.eigh(covariance)  # ascending
    basis, _ = torch.linalg.qr(vectors.flip(-1) / units.unsqueeze(-1))
    return basis
