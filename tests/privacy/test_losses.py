"""Privacy losses are plain numbers, checked when they are made."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from botorch_dp.errors import PrivacyError
from botorch_dp.privacy.losses import (
    ApproximateLoss,
    FixedBatchSGDLoss,
    GaussianLoss,
    LaplaceLoss,
    NeighboringRelation,
    PoissonSGDLoss,
    PrivacyLoss,
    PureLoss,
)
from botorch_dp.privacy.pld.composition import composed_epsilon
from botorch_dp.privacy.pld.gaussian import pure_dp_mu
from botorch_dp.privacy.pld.renyi import renyi_epsilon

ONE_OF_EACH: list[PrivacyLoss] = [
    PureLoss(0.5),
    LaplaceLoss(0.5),
    GaussianLoss(0.5),
    ApproximateLoss(0.5, 1e-6),
    PoissonSGDLoss(1.1, 0.01, 100),
    PoissonSGDLoss(1.1, 0.01, 100, NeighboringRelation.REPLACE_ONE),
    FixedBatchSGDLoss(1.1, 10, 1000, 100),
]


@pytest.mark.parametrize("loss", ONE_OF_EACH, ids=lambda loss: type(loss).__name__)
def test_numbers_of_other_libraries_become_plain_ones(loss: PrivacyLoss) -> None:
    numpy_numbers = {name: np.asarray(number)[()] for name, number in vars(loss).items()}
    copy = type(loss)(**numpy_numbers)
    assert copy == loss
    assert {type(number) for number in vars(copy).values()} <= {int, float, NeighboringRelation}
    json.dumps(copy.to_dict())


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: PureLoss(math.nan), "epsilon"),
        (lambda: GaussianLoss(-0.1), "mu"),
        (lambda: ApproximateLoss(1.0, 1.0), "delta"),
        (lambda: PoissonSGDLoss(0.0, 0.1, 1), "noise_multiplier"),
        (lambda: PoissonSGDLoss(1.0, 1.1, 1), "sampling_probability"),
        (lambda: PoissonSGDLoss(1.0, 0.1, 0), "steps"),
        (lambda: PoissonSGDLoss(1.0, 0.1, 1, NeighboringRelation.BOUNDED_ROW), "relation"),
        (lambda: FixedBatchSGDLoss(1.0, 3, 2, 1), "batch_size"),
    ],
)
def test_impossible_numbers_are_refused(make: object, name: str) -> None:
    with pytest.raises(ValueError, match=f"`{name}`"):
        make()  # type: ignore[operator]


@pytest.mark.parametrize("loss", ONE_OF_EACH, ids=lambda loss: type(loss).__name__)
def test_costs_in_both_kinds_of_ledger(loss: PrivacyLoss) -> None:
    expected = {
        "pure": ((0.5, 0.0, 0.0), (0.0, 0.0, pure_dp_mu(0.5))),
        "laplace": ((0.5, 0.0, 0.0), (0.0, 0.0, pure_dp_mu(0.5))),
        "gaussian": ((0.0, 0.0, 0.5), (0.0, 0.0, 0.5)),
        "approximate": ((0.5, 1e-6, 0.0), (0.5, 1e-6, 0.0)),
    }
    if loss.kind in expected:
        assert (loss.cost(False), loss.cost(True)) == expected[loss.kind]
        return
    for purely_gaussian in (False, True):
        with pytest.raises(PrivacyError, match=f"{type(loss).__name__}.*charge.guarantee, delta"):
            loss.cost(purely_gaussian)


def test_an_approximate_loss_without_delta_is_a_pure_one() -> None:
    assert ApproximateLoss(0.5, 0.0).cost(True) == PureLoss(0.5).cost(True)


@pytest.mark.parametrize("loss", ONE_OF_EACH, ids=lambda loss: type(loss).__name__)
def test_renyi_divergences_bound_what_composition_says(loss: PrivacyLoss) -> None:
    orders = [1.5, 2.0, 7.0, 40.0]
    rdp = [loss.rdp(order) for order in orders]
    assert rdp == sorted(rdp)
    if isinstance(loss, ApproximateLoss):
        assert rdp == [math.inf] * 4
    else:
        for order, divergence in zip(orders, rdp, strict=True):
            bound = renyi_epsilon(divergence, order, 1e-6)
            assert composed_epsilon([loss], 1e-6) <= bound * (1 + 1e-9)
