"""Slopes of regions: they are right, and one record moves them no further than is allowed."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch import Tensor

from botorch_dp.descent.step import ClippedMean
from botorch_dp.privacy import Guarantee, PrivacyUnit, PureLoss
from botorch_dp.privacy.audit import AuditReport, audit_epsilon
from botorch_dp.tuning.routes.slope import (
    clip_norm,
    clipped_slopes,
    downhill,
    noisy_slope,
    region_points,
    slope_weights,
)

D, N = 4, 5
CENTER = torch.full((D,), 0.5, dtype=torch.double)
POINTS = region_points(CENTER, 1.0, 40, 0)
WEIGHTS = slope_weights(POINTS)


def column(direction: Tensor) -> Tensor:
    """Losses in [0, 1] of one record that fall along a direction."""
    values = POINTS @ direction
    return ((values - values.min()) / (values.max() - values.min())).unsqueeze(-1)


def mean_of(columns: list[Tensor], *, broken: bool = False) -> Tensor:
    """The mean slope; a broken version clips in the l2 norm, as for Gaussian noise."""
    losses = torch.cat(columns, dim=1)
    if not broken:
        return clipped_slopes(WEIGHTS, list(losses.split(7))).value()
    mean = ClippedMean(D, losses.shape[1], clip_norm(D))
    mean.add(WEIGHTS @ losses)
    return mean.value()


def test_the_slope_of_a_plane_is_exact_and_a_constant_has_none():
    slope = torch.tensor([0.3, -0.2, 0.0, 0.1], dtype=torch.double)
    losses = (POINTS @ slope + 0.4).unsqueeze(-1)
    assert torch.allclose((WEIGHTS @ losses).squeeze(-1), slope, atol=1e-12)
    assert (WEIGHTS @ torch.ones_like(losses)).abs().max() < 1e-12


@pytest.mark.parametrize("nonsense", [0.0, math.nan, math.inf, -1e300, "opposite"])
def test_one_record_moves_the_mean_by_no_more_than_noise_is_made_for(nonsense):
    directions = torch.eye(D, dtype=torch.double)
    columns = [column(directions[i % D]) for i in range(N)]
    for direction in (torch.ones(D, dtype=torch.double), directions[0]):
        before = [*columns[:-1], column(direction)]
        if nonsense == "opposite":
            other = column(-direction)
        else:
            other = torch.full_like(columns[0], nonsense)
        after = [*columns[:-1], other]
        size = (mean_of(before) - mean_of(after)).abs().sum()
        assert size <= 2 * clip_norm(D) / N
        assert nonsense != "opposite" or size > 1.99 * clip_norm(D) / N


def audited(direction: Tensor, *, broken: bool = False, samples: int = 2000) -> AuditReport:
    """One slope of two records at epsilon 1, one of which turns around."""
    both = [[column(s * direction), column(direction)] for s in (1, -1)]
    means = [mean_of(columns, broken=broken) for columns in both]
    seeds = itertools.count()

    def mechanism(which: int) -> Tensor:
        seed = next(seeds) if broken else None  # a version that is broken anyway
        return noisy_slope(means[which], 2, epsilon=1.0, unsafe_seed=seed)

    return audit_epsilon(
        mechanism,
        0,
        1,
        samples=samples,
        confidence=1 - 1e-6,
        claim=Guarantee("slope", PrivacyUnit(), (PureLoss(1.0),)),
        # What the likelihoods of the two differ by.
        projection=lambda value: float(
            ((value - means[0]).abs() - (value - means[1]).abs()).sum() / clip_norm(D)
        ),
    )


@pytest.mark.slow
def test_the_audit_passes_the_slope_and_catches_one_that_is_clipped_in_another_norm():
    diagonal = torch.ones(D, dtype=torch.double)
    honest = audited(torch.eye(D, dtype=torch.double)[0])
    # The bound is 0.54 on average, and 0.05 is its standard deviation.
    assert honest.passes and honest.lower_bound > 0.25, str(honest)
    assert audited(diagonal).passes
    # Clipped in the l2 norm a record moves the l1 norm twice as far.
    assert not audited(diagonal, broken=True, samples=12_000).passes


def test_noise_is_of_the_size_that_is_printed():
    zero = torch.zeros(2000, dtype=torch.double)
    noise = noisy_slope(zero, 10, epsilon=0.5, unsafe_seed=1)
    assert noise.std() == pytest.approx(math.sqrt(2) * 2 * clip_norm(2000) / (10 * 0.5), rel=0.1)


def test_downhill_stays_in_the_cube_and_goes_no_further_than_a_quarter_in_each_parameter():
    slope = torch.tensor([100.0, -1.0, 0.0, 0.0], dtype=torch.double)
    assert downhill(CENTER, slope, 1.0).tolist() == pytest.approx([0.25, 0.5035, 0.5, 0.5], 1e-3)
    assert downhill(CENTER, 0 * slope, 1.0).tolist() == CENTER.tolist()
    corner = torch.zeros(D, dtype=torch.double)
    assert downhill(corner, slope, 1.0).min() == 0
    assert bool((region_points(corner, 0.6, 50, 1) >= 0).all())
