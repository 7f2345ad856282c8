"""Designs: reproducible recipes that sensitive values cannot reach."""

from __future__ import annotations

import math

import pytest
import torch
from gpytorch.kernels import MaternKernel, RBFKernel

from botorch_dp.errors import NotPublicError
from botorch_dp.models.finite import FiniteSetGP
from botorch_dp.release import MaxVarianceDesign, PublicDesign, SobolDesign, StatedDesign
from botorch_dp.release.choice import check_public_design

BOX = torch.tensor([[-1.0, 0.0], [1.0, 5.0]], dtype=torch.double)
LINE = torch.linspace(0, 1, 101, dtype=torch.double).unsqueeze(-1)


def line_kernel() -> RBFKernel:
    kernel = RBFKernel().double()
    kernel.lengthscale = 0.2
    return kernel


def test_sobol_points_repeat_and_fill_the_box() -> None:
    state = torch.get_rng_state()
    design = SobolDesign(BOX, num_points=64, seed=3)
    assert torch.equal(design.points, SobolDesign(BOX, num_points=64, seed=3).points)
    assert not torch.equal(design.points, SobolDesign(BOX, num_points=64, seed=4).points)
    assert torch.equal(torch.get_rng_state(), state)
    assert ((design.points >= BOX[0]) & (design.points <= BOX[1])).all()
    cells = ((design.points - BOX[0]) / (BOX[1] - BOX[0]) * 8).long()
    assert len({tuple(cell.tolist()) for cell in cells}) == 64  # one in each of 8 x 8
    assert design.conditions == ()


def test_max_variance_points_are_the_greedy_ones() -> None:
    design = MaxVarianceDesign(LINE, num_points=6, kernel=line_kernel(), noise_variance=1e-2)
    points = design.points
    assert len(set(design.indices)) == 6 and {0, 100} <= set(design.indices)
    model = FiniteSetGP(LINE, kernel=line_kernel(), noise_variance=1e-2)
    for index, point in zip(design.indices, points, strict=True):
        assert model.variance[index] == model.variance.max() and point == LINE[index]
        model.observe(index, math.pi)  # what is observed does not matter
    assert design.conditions == ()


@pytest.mark.parametrize(
    "design",
    [
        SobolDesign(BOX, num_points=4),
        MaxVarianceDesign(LINE, num_points=4, kernel=MaternKernel(), noise_variance=0.1),
        StatedDesign(torch.zeros(2, 2), origin="the manual's defaults"),
    ],
)
def test_points_cannot_be_written_to(design: PublicDesign) -> None:
    before = design.points
    design.points.fill_(9.0)
    assert torch.equal(design.points, before)
    with pytest.raises(AttributeError):
        design.points = torch.ones(1, 2)  # type: ignore[misc]


def test_inputs_are_copied() -> None:
    box, choices = BOX.clone(), LINE.clone()
    sobol = SobolDesign(box, num_points=4)
    greedy = MaxVarianceDesign(choices, num_points=4, kernel=line_kernel(), noise_variance=0.1)
    before = sobol.points, greedy.points
    box.fill_(0.0)
    choices.fill_(0.0)
    assert torch.equal(sobol.points, before[0]) and torch.equal(greedy.points, before[1])


def test_stated_design_says_so() -> None:
    design = StatedDesign(torch.zeros(2, 2), origin="the manual's defaults")
    assert len(design.conditions) == 1 and "the manual's defaults" in design.conditions[0]
    with pytest.raises(ValueError, match="`origin`"):
        StatedDesign(torch.zeros(2, 2), origin=" ")


def test_wrong_arguments() -> None:
    with pytest.raises(ValueError, match="`box`"):
        SobolDesign(BOX.flip(0), num_points=4)
    with pytest.raises(ValueError, match="`box`"):
        SobolDesign(BOX[0], num_points=4)
    with pytest.raises(ValueError, match="`num_points`"):
        SobolDesign(BOX, num_points=0)
    with pytest.raises(ValueError, match="`seed`"):
        SobolDesign(BOX, num_points=4, seed=-1)
    with pytest.raises(ValueError, match="`noise_variance`"):
        MaxVarianceDesign(LINE, num_points=4, kernel=line_kernel(), noise_variance=0.0)
    with pytest.raises(ValueError, match="`chosen`"):
        StatedDesign(torch.tensor([[math.nan]]), origin="somewhere")


def test_visited_points_are_refused() -> None:
    class Smuggler(SobolDesign):
        pass

    for visited in (LINE[:5], LINE[:5].tolist(), Smuggler(BOX, num_points=4), None):
        with pytest.raises(NotPublicError, match=r"`design` must be .* PrivateObjective"):
            check_public_design(visited)
