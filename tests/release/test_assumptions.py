from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.stats import norm

from botorch_dp.release.assumptions import (
    check_correlation,
    clamp_to_prior,
    decimal,
    neighbor_gap,
    prior_conditions,
)


def test_correlations_from_zero_to_one_are_returned_as_floats() -> None:
    assert [check_correlation(value) for value in (0, 0.25, 1)] == [0.0, 0.25, 1.0]
    assert isinstance(check_correlation(1), float)


@pytest.mark.parametrize("value", [-1e-9, 1 + 1e-9, math.inf, math.nan, "0.5", None, True])
def test_what_is_no_correlation_is_named(value: object) -> None:
    with pytest.raises((TypeError, ValueError), match="`dataset_correlation`"):
        check_correlation(value)  # type: ignore[arg-type]


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


def test_conditions_state_the_prior_the_correlation_and_whose_probability_delta_is() -> None:
    assumption, chosen, correlation, failure = prior_conditions(0.975, 1e-4)
    assert "Assumption 1" in assumption and "k(x, x) = 1" in assumption
    assert chosen.endswith("chosen without the records")
    assert correlation.endswith("k(V, V') >= 0.975")
    assert "probability 0.0001 over that prior" in failure


def test_values_that_the_prior_can_draw_are_unchanged() -> None:
    values = torch.tensor([-50.0, -1.0, 0.0, 49.9, 50.0], dtype=torch.double)
    assert torch.equal(clamp_to_prior(values), values)


def test_other_values_become_the_limit_and_nan_the_lower_one() -> None:
    values = torch.tensor([math.nan, -math.inf, -51.0, 51.0, math.inf], dtype=torch.double)
    limited = clamp_to_prior(values)
    assert limited.tolist() == [-50.0, -50.0, -50.0, 50.0, 50.0]
    noisy = clamp_to_prior(values, noise_std=0.75)  # sqrt(1 + 9/16) = 1.25 standard deviations
    assert noisy.tolist() == [-62.5, -62.5, -51.0, 51.0, 62.5]
    assert values[0].isnan() and values[4] == math.inf  # the caller's tensor stays


def test_plausible_values_are_double_and_without_history() -> None:
    values = torch.tensor([1.0, 2.0], requires_grad=True)
    limited = clamp_to_prior(values)
    assert limited.dtype == torch.double
    assert not limited.requires_grad


def test_neighbouring_values_do_not_move_apart() -> None:
    values, neighbor = 100 * torch.randn(2, 1000, dtype=torch.double)
    before, after = (
        (values - neighbor).abs(),
        (clamp_to_prior(values) - clamp_to_prior(neighbor)).abs(),
    )
    assert bool((after <= before).all())
    assert bool((after < before).any())


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (1 - 6e-7, "0.9999994"),
        (0.1 + 0.2, "0.30000000000000004"),
        (1e-5, "1e-05"),
        (2.0, "2"),
        (3, "3"),
        (1e22, "1e+22"),
        (np.float64(0.25), "0.25"),
    ],
)
def test_numbers_in_conditions_are_read_as_the_same_double(number: float, words: str) -> None:
    assert decimal(number) == words
    assert float(decimal(number)) == number


def test_no_condition_allows_more_than_the_sensitivity_covers() -> None:
    """1 - 6e-7 to six digits is 0.999999, which allows objectives 1.29 times as far apart."""
    correlation = 1 - 6e-7
    _, _, condition, _ = prior_conditions(correlation, 1e-4)
    printed = float(condition.split(">= ")[1])
    assert neighbor_gap(printed, 3000, 1e-4) <= neighbor_gap(correlation, 3000, 1e-4)
    rounded = float(f"{correlation:g}")
    ratio = neighbor_gap(rounded, 3000, 1e-4) / neighbor_gap(correlation, 3000, 1e-4)
    assert ratio == pytest.approx(math.sqrt(10 / 6))
