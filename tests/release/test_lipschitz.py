from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from botorch_dp.errors import PrivacyError
from botorch_dp.privacy import (
    NeighboringRelation,
    PrivacyBudget,
    PrivacyLedger,
    PrivacyUnit,
    audit_epsilon,
)
from botorch_dp.release import LipschitzMaximum
from tests.release.maxima import MECHANISMS


def test_lipschitz_sensitivity_holds_for_ridge_regression_under_any_replacement():
    """One-dimensional, by hand: w = argmin lambda/2 w^2 + |slope| w with slope -1, so w = 1/lambda.

    The score min(|w - z|, g*) of a record z is 1-Lipschitz in w.
    """
    torch.manual_seed(0)
    m, low, high, top = 7, 0.5, 0.8, 1.5
    bound = LipschitzMaximum(
        epsilon=1.0, num_records=m, lipschitz=1.0, lambda_min=low, lambda_max=high, max_loss=top
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


def test_utility_bound_by_hand():
    bound = MECHANISMS["Lipschitz"].utility()
    assert bound.noise == pytest.approx((4 / 100 + 1 / 3) * math.log(20))  # 95%
    assert bound.model == pytest.approx(1 / 3)
    assert bound.spread == pytest.approx(4.0)
    assert bound.probability == 0.95


def test_the_largest_score_is_released_whatever_the_others_are():
    mechanism = MECHANISMS["Lipschitz"]
    scores = torch.tensor([9.0, math.nan, 5.0, -math.inf], dtype=torch.float)
    assert mechanism.statistic(scores) == 9.0
    assert mechanism.statistic(torch.tensor([1e300, 0.0], dtype=torch.double)) == 1e100
    assert mechanism.statistic(torch.tensor([math.nan, -math.inf])) == -1e100


# The printed constant of Theorem 7, and the pair of data sets that it does not cover

FLIP = {"lipschitz": 0.25, "lambda_min": 1.0, "lambda_max": 1.0, "num_records": 1, "max_loss": 1.0}


def hinge_minimizer(regularization: float) -> float:
    """argmin over w of ``lambda/2 w^2 + max(0, 1 - w x y)`` for one training record x = y = 1."""
    grid = torch.linspace(-3, 3, 600_001, dtype=torch.double)
    risk = regularization / 2 * grid**2 + (1 - grid).clamp(min=0)
    return grid[risk.argmin()].item()


def flipped_pair() -> tuple[torch.Tensor, torch.Tensor]:
    """The score of one validation record, and of the same record with the other label."""
    margin = hinge_minimizer(1.0) * torch.tensor([1.0, -1.0], dtype=torch.double)
    scores = torch.sigmoid(margin)  # 1/4-Lipschitz, within [0, 1], and 1/2 at w = 0
    return scores[:1], scores[1:]


def test_one_flipped_label_moves_the_score_further_than_the_printed_constant() -> None:
    right, wrong = flipped_pair()
    moved = (right - wrong).item()
    assert moved == pytest.approx(math.tanh(0.5), abs=1e-4)
    printed = LipschitzMaximum(epsilon=1.0, edition="icml2015", **FLIP)
    assert printed.sensitivity == 0.25
    assert moved / printed.sensitivity == pytest.approx(1.85, abs=0.005)
    assert moved <= LipschitzMaximum(epsilon=1.0, equal_at_zero=True, **FLIP).sensitivity == 0.5
    assert LipschitzMaximum(epsilon=1.0, **FLIP).sensitivity == 1.0  # what is known without it


@pytest.mark.one_in(3)
@pytest.mark.filterwarnings("ignore::botorch_dp.release.UtilityWarning")
@pytest.mark.parametrize(
    ("settings", "sound"),
    [({"equal_at_zero": True}, True), ({}, True), ({"edition": "icml2015"}, False)],
)
def test_audit_of_the_flipped_label(settings: dict[str, object], sound: bool) -> None:
    mechanism = LipschitzMaximum(epsilon=1.5, **FLIP, **settings)  # type: ignore[arg-type]
    report = audit_epsilon(
        lambda values: mechanism.release(values).value,
        *flipped_pair(),
        samples=3000,
        confidence=1 - 1e-6,
        claim=1.5,
    )
    assert report.passes is sound


def test_the_printed_edition_promises_nothing_and_cannot_be_charged() -> None:
    printed = LipschitzMaximum(epsilon=1.0, edition="icml2015", **FLIP)
    assert printed.guarantee.status == "none"
    assert "factor of 2" in str(printed.guarantee)
    with PrivacyLedger(budget=PrivacyBudget(10.0)) as ledger:
        with pytest.raises(PrivacyError):
            printed.release(torch.tensor([0.5]), ledger=ledger)
        assert not ledger.entries()


def test_the_smaller_bound_names_its_assumption() -> None:
    known = LipschitzMaximum(epsilon=1.0, **FLIP)
    said = "all records have the same score at the parameters 0"
    assert said not in str(known.guarantee)
    assert said in str(replace(known, equal_at_zero=True).guarantee)


@pytest.mark.parametrize(
    "relation", [NeighboringRelation.ADD_OR_REMOVE_ONE, NeighboringRelation.BOUNDED_ROW]
)
def test_the_bound_is_for_a_replaced_record(relation: NeighboringRelation) -> None:
    with pytest.raises(PrivacyError, match="REPLACE_ONE only"):
        replace(MECHANISMS["Lipschitz"], unit=PrivacyUnit("one week", relation))
    weekly = replace(MECHANISMS["Lipschitz"], unit=PrivacyUnit("one week"))
    assert "one week" in str(weekly.guarantee)
