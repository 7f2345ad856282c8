"""The arithmetic of the cells, against closed forms and against libraries."""

from __future__ import annotations

import math

import pytest
import torch
from botorch.utils.probability.utils import log_prob_normal_in
from scipy.special import log_ndtr
from torch import Tensor

from botorch_dp.acquisition.hvpoi import (
    _LogNormalInterval,
    finite_edges,
    least_variance,
    log_probability,
    log_volume_gain,
    probability,
    volume_gain,
)

# The region not dominated by (1, 1), cut into two cells, above the reference (0, 0).
BOUNDS = torch.tensor(
    [[[0.0, 1.0], [1.0, 0.0]], [[1.0, math.inf], [math.inf, math.inf]]], dtype=torch.double
)


def intervals() -> tuple[Tensor, Tensor]:
    """Intervals in the middle, in both tails, across zero, wide and narrow."""
    centers = torch.tensor([-60.0, -8, -1, -1e-3, 0, 0.3, 5, 30, 200], dtype=torch.double)
    widths = torch.tensor([1e-6, 0.1, 2.0, 50.0], dtype=torch.double)
    return centers[:, None] - widths / 2, centers[:, None] + widths / 2


def test_interval_agrees_with_botorch() -> None:
    ours = [edge.clone().requires_grad_() for edge in intervals()]
    theirs = [edge.clone().requires_grad_() for edge in intervals()]
    value = _LogNormalInterval.apply(*ours)
    expected = log_prob_normal_in(*theirs)
    torch.testing.assert_close(value, expected, rtol=1e-9, atol=1e-9)
    for mine, reference in zip(
        torch.autograd.grad(value.sum(), ours),
        torch.autograd.grad(expected.sum(), theirs),
        strict=True,
    ):
        torch.testing.assert_close(mine, reference, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("place", [-1e70, -1e8, -30.0, 0.0, 7.0, 1e8, 1e70])
def test_empty_interval_is_finite(place: float) -> None:
    lower, upper = (torch.tensor([place], dtype=torch.double, requires_grad=True) for _ in "ab")
    value = _LogNormalInterval.apply(lower, upper)
    gradient = torch.autograd.grad(value.sum(), (lower, upper))
    assert value.isfinite().all() and value.item() <= math.log(1e-15)
    assert all(part.isfinite().all() for part in gradient)


def test_infinite_edges_have_no_gradient_and_lose_nothing() -> None:
    edges = finite_edges(BOUNDS.masked_fill(BOUNDS == 0, -torch.inf))
    mean = torch.tensor([[-1.0, 0.5]], dtype=torch.double, requires_grad=True)
    for size in (1.0, 1e-30, 1e30):
        std = torch.full((1, 2), size, dtype=torch.double, requires_grad=True)
        for function in (probability, log_probability):
            value = function(mean, std, edges)
            gradient = torch.autograd.grad(value, (mean, std))
            assert all(part.isfinite().all() for part in (value, *gradient))
    std = torch.ones(1, 2, dtype=torch.double)
    dominated = math.exp(log_ndtr(2.0) + log_ndtr(0.5))
    assert probability(mean, std, edges).item() == pytest.approx(1 - dominated, rel=1e-14)


def test_log_probability_where_probability_underflows() -> None:
    edges = finite_edges(BOUNDS.masked_fill(BOUNDS == 0, -torch.inf))
    mean = torch.full((1, 2), -49.0, dtype=torch.double)
    std = torch.ones(1, 2, dtype=torch.double)
    assert probability(mean, std, edges).item() == 0
    # P(some objective beats 1) = 2 q - q^2 with q = Phi(-50).
    expected = math.log(2) + log_ndtr(-50.0)
    assert log_probability(mean, std, edges).item() == pytest.approx(expected, rel=1e-14)


def test_smoothed_volume_approaches_the_volume() -> None:
    edges = finite_edges(BOUNDS)
    mean = torch.tensor([[[0.5, 1.7]], [[2.0, 3.0]], [[1.5, 0.2]]], dtype=torch.double)
    exact = volume_gain(mean, edges)
    torch.testing.assert_close(exact, torch.tensor([0.35, 5.0, 0.1]).double())
    errors = [
        (log_volume_gain(mean, edges, torch.full_like(mean, tau)).exp() - exact).abs().max()
        for tau in (1e-2, 1e-4, 1e-6)
    ]
    assert errors[0] < 1e-2 and errors[1] < 1e-4 and errors[2] < 1e-6


def test_smoothed_volume_does_not_depend_on_the_cut() -> None:
    halves = torch.tensor(
        [
            [[0.0, 1.0], [1.0, 0.0], [1.0, 0.4], [3.0, 0.4]],
            [[1.0, math.inf], [math.inf, 0.4], [3.0, math.inf], [math.inf, math.inf]],
        ],
        dtype=torch.double,
    )
    mean = torch.tensor([[[-1.0, -2.0]], [[2.0, 3.0]], [[0.9, 0.2]]], dtype=torch.double)
    temperature = torch.full_like(mean, 0.1)
    torch.testing.assert_close(
        log_volume_gain(mean, finite_edges(BOUNDS), temperature),
        log_volume_gain(mean, finite_edges(halves), temperature),
        rtol=1e-10,
        atol=1e-10,
    )


def test_cells_thinner_than_rounding() -> None:
    """Such cells hold nothing; they must not turn the others' sum into NaN."""
    sliver = torch.tensor([[[1.0, 0.0]], [[1.0 + 2e-16, math.inf]]], dtype=torch.double)
    edges = finite_edges(torch.cat([BOUNDS, sliver], dim=1))
    mean = torch.full((1, 2), -1e9, dtype=torch.double, requires_grad=True)
    std = torch.ones(1, 2, dtype=torch.double)
    for function in (log_volume_gain, lambda mean, edges, std: log_probability(mean, std, edges)):
        value = function(mean, edges, std)
        expected = function(mean, finite_edges(BOUNDS), std)
        torch.testing.assert_close(value, expected)
        assert torch.autograd.grad(value, mean)[0].isfinite().all()


def test_smoothed_volume_increases_in_every_objective() -> None:
    edges = finite_edges(BOUNDS)
    grid = torch.linspace(-30, 3, 60, dtype=torch.double)
    mean = torch.cartesian_prod(grid, grid).unsqueeze(-2).requires_grad_()
    value = log_volume_gain(mean, edges, torch.full((1, 2), 1e-6, dtype=torch.double))
    assert value.isfinite().all()
    assert (torch.autograd.grad(value.sum(), mean)[0] > 0).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.double])
def test_least_variance_follows_each_objective(dtype: torch.dtype) -> None:
    scales = torch.tensor([1e-9, 1e9], dtype=dtype)
    std = least_variance(BOUNDS.to(dtype) * scales).sqrt()
    eps = torch.finfo(dtype).eps
    assert std[1].item() == pytest.approx(1e9 * eps)
    assert std[0].item() < 1e-9
    assert least_variance(torch.zeros(2, 1, 2, dtype=dtype)).min() > 0
