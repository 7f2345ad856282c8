"""Designs: near the best trace, inside the box, as few points as needed."""

from __future__ import annotations

from typing import get_args

import pytest
import torch
from gpytorch.kernels import Kernel, MaternKernel, PolynomialKernel, RBFKernel
from torch import Tensor

from botorch_dp.descent.designs import Design, DesignName, as_design
from botorch_dp.models.gradient import GradientBelief, KernelFactor
from botorch_dp.models.kernels import kernel_derivatives

D = 6
LOCATION = torch.full((D,), 0.5, dtype=torch.double)
BOX = torch.stack((torch.zeros(D), torch.ones(D))).double()


def belief_at(
    kernel: Kernel | None = None, points: Tensor | None = None, noise: float = 0.0
) -> GradientBelief:
    derivatives = kernel_derivatives(RBFKernel() if kernel is None else kernel, like=LOCATION)
    factor = KernelFactor.empty(derivatives, D)
    if points is not None:
        factor, _ = factor.extended(points, noise)
    return GradientBelief(factor, LOCATION, unknown_mean=True)


@pytest.mark.parametrize("name", ["simplex", "central", "optimize"])
@pytest.mark.parametrize("kernel", [RBFKernel(), MaternKernel(nu=2.5), PolynomialKernel(power=2)])
def test_a_full_batch_leaves_little_trace(name: DesignName, kernel: Kernel) -> None:
    belief = belief_at(kernel)
    design = as_design(name)
    points = design.propose(belief, box=BOX)[0]
    assert points.shape == (design.size(D), D)
    assert ((points >= 0) & (points <= 1)).all()
    assert belief.trace_after(points, 1e-12) < 1e-3 * belief.prior.trace()


def test_central_differences_beat_the_simplex() -> None:
    belief = belief_at()
    traces = {
        name: float(belief.trace_after(as_design(name).propose(belief)[0], 1e-10))
        for name in get_args(DesignName)
    }
    assert traces["central"] < traces["simplex"] / 5


def test_polishing_never_hurts_and_the_simplex_is_near_the_best() -> None:
    for noise in (1e-6, 1e-2):
        belief = belief_at()
        simplex = Design(noise_std=noise**0.5).propose(belief)[0]
        polished = Design("optimize", noise_std=noise**0.5).propose(belief)[0]
        ratio = belief.trace_after(polished, noise) / belief.trace_after(simplex, noise)
        assert 0.6 < ratio <= 1 + 1e-9


def test_the_best_radius_grows_with_the_noise() -> None:
    belief = belief_at()
    radii = [Design(noise_std=v**0.5).propose(belief)[1] for v in (1e-8, 1e-6, 1e-4)]
    # In length-scales: about .013, .038 and .11 (with a grid of 24 radii between 1e-3 and 2).
    assert radii == sorted(radii)
    assert 0.005 < radii[0] < 0.03 and 0.05 < radii[-1] < 0.3


def test_a_given_radius_is_kept_and_a_pair_shrinks() -> None:
    belief = belief_at()
    assert Design(radius=0.2).propose(belief)[1] == pytest.approx(0.2)
    shrinking = Design(radius=(0.3, 0.03))
    radii = [shrinking.propose(belief, step=i, steps=3)[1] for i in range(3)]
    assert radii == pytest.approx([0.3, (0.3 * 0.03) ** 0.5, 0.03])
    points = Design(radius=0.2).propose(belief)[0]
    unit = float(RBFKernel().lengthscale)
    torch.testing.assert_close(
        (points - LOCATION).norm(dim=-1), torch.full((D + 1,), 0.2 * unit, dtype=torch.double)
    )


def test_few_points_go_where_least_is_known() -> None:
    """Pairs along the first axis are known already; one simplex edge must avoid it."""
    first = torch.zeros(2, D, dtype=torch.double)
    first[:, 0] = torch.tensor([0.05, -0.05])
    belief = belief_at(points=LOCATION + first)
    points = Design(batch_size=2, radius=0.1).propose(belief)[0]
    direction = (points[0] - points[1]) / (points[0] - points[1]).norm()
    assert direction[0].abs() < 0.1


@pytest.mark.parametrize("tolerance", [1e-1, 1.0, 4.0])
def test_a_tolerance_takes_the_fewest_points(tolerance: float) -> None:
    belief = belief_at()
    assert float(belief.trace) > tolerance
    design = Design(tolerance=tolerance)
    points = design.propose(belief)[0]
    assert belief.trace_after(points, 1e-11) <= tolerance
    if len(points) > 1:
        fewer = Design(batch_size=len(points) - 1).propose(belief)[0]
        assert belief.trace_after(fewer, 1e-11) > tolerance


def test_nothing_is_asked_where_nothing_is_left_to_learn() -> None:
    close = LOCATION + 0.05 * torch.cat((torch.eye(D), -torch.eye(D))).double()
    belief = belief_at(points=close)
    assert len(Design(tolerance=1.0).propose(belief)[0]) == 0
    spanned = belief_at(PolynomialKernel(power=2), points=torch.randn(60, D).double())
    assert len(Design().propose(spanned)[0]) == 0
