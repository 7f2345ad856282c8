from __future__ import annotations

import math

import pytest
import torch
from scipy.stats import norm

from botorch_dp.release.assumptions import clamp_to_prior, neighbor_gap, prior_conditions


def test_gap_by_hand() -> None:
    assert neighbor_gap(0.75, 3 * math.e**4, 3.0) == pytest.approx(2.0)  # 2 sqrt(1/4 * 4)
    assert neighbor_gap(1.0, 3000, 1e-4) == 0.0  # neighbours with the same objective


@pytest.mark.parametrize("correlation", [0.0, 0.9, 0.999])
@pytest.mark.parametrize(("count", "delta"), [(3, 0.5), (300, 1e-2), (3e6, 1e-6)])
def test_one_difference_exceeds_the_gap_as_seldom_as_stated(
    correlation: float, count: float, delta: float
) -> None:
    """``f_V(x) - f_V'(x)`` is Gaussian with variance ``2 (1 - k)``: its exact tail."""
    std = math.sqrt(2 * (1 - correlation))
    gap = neighbor_gap(correlation, count, delta)
    assert 2 * norm.sf(gap / std) <= delta / count
    # Broken on purpose: without the factor 2, and with the variance of a single objective.
    assert 2 * norm.sf(gap / 2 / std) > delta / count
    assert 2 * norm.sf(gap / math.sqrt(2) / std) > delta / count


def test_other_values_become_the_limit_and_nan_the_lower_one() -> None:
    values = torch.tensor([math.nan, -math.inf, -51.0, 51.0, math.inf], dtype=torch.double)
    limited = clamp_to_prior(values)
    assert limited.tolist() == [-50.0, -50.0, -50.0, 50.0, 50.0]
    assert limited.dtype == torch.double and not limited.requires_grad
    noisy = clamp_to_prior(values, noise_std=0.75)  # sqrt(1 + 9/16) = 1.25 standard deviations
    assert noisy.tolist() == [-62.5, -62.5, -51.0, 51.0, 62.5]
    assert values[0].isnan() and values[4] == math.inf  # the caller's tensor stays


def test_neighbouring_values_do_not_move_apart() -> None:
    values, neighbor = 100 * torch.randn(2, 1000, dtype=torch.double)
    before, after = (
        (values - neighbor).abs(),
        (clamp_to_prior(values) - clamp_to_prior(neighbor)).abs(),
    )
    assert bool((after <= before).all())
    assert bool((after < before).any())


def test_no_condition_allows_more_than_the_sensitivity_covers() -> None:
    """1 - 6e-7 to six digits is 0.999999, which allows objectives 1.29 times as far apart."""
    correlation = 1 - 6e-7
    _, _, condition, _ = prior_conditions(correlation, 1e-4)
    printed = float(condition.split(">= ")[1])
    assert neighbor_gap(printed, 3000, 1e-4) <= neighbor_gap(correlation, 3000, 1e-4)
    rounded = float(f"{correlation:g}")
    ratio = neighbor_gap(rounded, 3000, 1e-4) / neighbor_gap(correlation, 3000, 1e-4)
    assert ratio == pytest.approx(math.sqrt(10 / 6))
