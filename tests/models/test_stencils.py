"""Stencils: geometry, full boxes, narrow boxes."""

from __future__ import annotations

import pytest
import torch

from botorch_dp.models.gradient import (
    leading_basis,
    place_stencil,
    regular_simplex,
    stencil_directions,
)

EYE = torch.eye(4, dtype=torch.double)


@pytest.mark.parametrize("corners", [2, 3, 8])
def test_regular_simplex(corners: int) -> None:
    simplex = regular_simplex(corners, like=EYE)
    assert simplex.shape == (corners, corners - 1)
    gram = simplex @ simplex.mT
    expected = torch.full((corners, corners), -1 / (corners - 1), dtype=torch.double)
    expected.fill_diagonal_(1.0)
    torch.testing.assert_close(gram, expected)
    torch.testing.assert_close(simplex.sum(0), torch.zeros(corners - 1, dtype=torch.double))


def test_more_points_mirror_and_then_shrink_the_stencil() -> None:
    directions = stencil_directions("simplex", 12, EYE)
    torch.testing.assert_close(directions[5:10], -directions[:5])
    torch.testing.assert_close(directions[10:], 0.5 * directions[:2])
    pairs = stencil_directions("central", 10, EYE)
    torch.testing.assert_close(pairs[1:8:2], -pairs[0:8:2])
    torch.testing.assert_close(pairs[8:], 0.5 * pairs[:2])


@pytest.mark.parametrize("where", [0.0, 0.02, 0.5, 1.0])
def test_a_stencil_at_the_wall_is_shifted_and_keeps_its_shape(where: float) -> None:
    bounds = torch.stack((torch.zeros(4), torch.ones(4))).double()
    location = torch.tensor([where, 0.5, where, 1 - where], dtype=torch.double)
    directions = stencil_directions("simplex", 5, EYE)
    radii = torch.tensor([0.1], dtype=torch.double)
    points = place_stencil(location, directions, radii, torch.ones(4).double(), bounds)[0]
    assert (points >= 0).all() and (points <= 1).all()
    torch.testing.assert_close(points - points.mean(0), 0.1 * directions)
    assert (points.mean(0) - location).abs().max() <= 0.1 + 1e-12


def test_a_stencil_wider_than_the_box_is_shrunk_there_only() -> None:
    bounds = torch.tensor([[0.0, 0, 0, 0], [1, 1, 1, 0.05]], dtype=torch.double)
    location = torch.tensor([0.5, 0.5, 0.5, 0.01], dtype=torch.double)
    directions = stencil_directions("central", 8, EYE)
    radii = torch.tensor([0.2], dtype=torch.double)
    points = place_stencil(location, directions, radii, torch.ones(4).double(), bounds)[0]
    assert (points >= bounds[0]).all() and (points <= bounds[1]).all()
    torch.testing.assert_close(
        points.amax(0)[:3] - points.amin(0)[:3], torch.full((3,), 0.4).double()
    )
    assert points[:, 3].unique().numel() == 3


def test_a_box_without_width_is_respected() -> None:
    bounds = torch.tensor([[0.0, 0, 0, 0.3], [1, 1, 1, 0.3]], dtype=torch.double)
    location = torch.tensor([0.5, 0.5, 0.5, 0.3], dtype=torch.double)
    radii = torch.tensor([0.2], dtype=torch.double)
    points = place_stencil(location, EYE, radii, torch.ones(4).double(), bounds)
    assert (points[..., 3] == 0.3).all()


def test_leading_basis_puts_the_least_known_direction_first() -> None:
    basis = leading_basis(torch.diag(torch.tensor([1.0, 4.0, 2.0, 3.0]).double()), torch.ones(4))
    torch.testing.assert_close(basis.abs(), EYE[:, [1, 3, 2, 0]])
    units = torch.tensor([1.0, 10.0, 1.0, 1.0], dtype=torch.double)
    A = torch.randn(4, 4, dtype=torch.double)
    basis = leading_basis(A @ A.mT, units)
    torch.testing.assert_close(basis.mT @ basis, EYE)
    _, vectors = torch.linalg.eigh(A @ A.mT)
    first = units * basis[:, 0]  # the displacement in the inputs
    cosine = (first @ vectors[:, -1]).abs() / first.norm()
    torch.testing.assert_close(cosine, torch.ones((), dtype=torch.double))
