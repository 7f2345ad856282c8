from __future__ import annotations

import math

import pytest
import torch

from botorch_dp.release import LipschitzMaximum
from tests.release.maxima import MECHANISMS


def test_lipschitz_sensitivity_holds_for_ridge_regression_under_any_replacement():
    """One-dimensional, by hand: w = argmin lambda/2 w^2 + |slope| w with slope -1, so w = 1/lambda.

    The score min(|w - z|, g*) of a record z is 1-Lipschitz in w.
    """
    torch.manual_seed(0)
    m, low, high, top = 7, 0.5, 0.8, 1.5
    bound = LipschitzMaximum(
        epsilon=1.0, num_validation=m, lipschitz=1.0, lambda_min=low, lambda_max=high, max_loss=top
    )
    worst = 0.0
    for _ in range(300):
        records = 3 * torch.rand(m, dtype=torch.double)
        neighbor = records.clone()
        neighbor[0] = torch.tensor([1e300, -1e300, 0.0, 2.0])[torch.randint(4, ())]
        maxima = []
        for data in (records, neighbor):
            lambdas = low + (high - low) * torch.rand(3, 1, dtype=torch.double)
            maxima.append((1 / lambdas - data).abs().clamp(max=top).mean(-1).max().item())
        worst = max(worst, abs(maxima[0] - maxima[1]))
    assert worst <= bound.sensitivity
    assert worst > bound.sensitivity / 3


@pytest.mark.parametrize(
    ("low", "high", "max_loss", "record_gap", "model_gap"),
    [
        (0.5, 0.5, None, 6.0, 0.0),  # one regularization: trained models are the same
        (0.5, 0.75, 4.0, 4.0, 2.0),  # the loss is the smaller of the two
        (0.5, 0.75, 7.0, 6.0, 2.0),  # the norm of the parameters is
    ],
)
def test_parts_of_the_sensitivity_by_hand(low, high, max_loss, record_gap, model_gap):
    mechanism = LipschitzMaximum(
        epsilon=2.0,
        num_validation=8,
        lipschitz=3.0,
        lambda_min=low,
        lambda_max=high,
        max_loss=max_loss,
    )
    assert mechanism.record_gap == pytest.approx(record_gap)
    assert mechanism.model_gap == pytest.approx(model_gap)
    assert mechanism.sensitivity == pytest.approx(record_gap / 8 + model_gap)
    assert mechanism.scale == pytest.approx((record_gap / 8 + model_gap) / 2)


def test_utility_bound_by_hand():
    bound = MECHANISMS["Lipschitz"].utility()
    assert bound.noise == pytest.approx((2 / 100 + 1 / 3) * math.log(20))  # 95%
    assert bound.model == pytest.approx(1 / 3)
    assert bound.spread == pytest.approx(2.0)
    assert bound.probability == 0.95


def test_the_largest_score_is_released_whatever_the_others_are():
    mechanism = MECHANISMS["Lipschitz"]
    scores = torch.tensor([9.0, math.nan, 5.0, -math.inf], dtype=torch.float)
    assert mechanism.statistic(scores) == 9.0
    assert mechanism.statistic(torch.tensor([1e300, 0.0], dtype=torch.double)) == 1e100
    assert mechanism.statistic(torch.tensor([math.nan, -math.inf])) == -1e100
