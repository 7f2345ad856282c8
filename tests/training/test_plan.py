from __future__ import annotations

import json
import math
from dataclasses import FrozenInstanceError

import dp_accounting
import numpy as np
import pytest
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant

from botorch_dp.errors import PrivacyError
from botorch_dp.privacy import NeighboringRelation
from botorch_dp.training import TrainingPlan

GOOD = {
    "num_records": 1000,
    "learning_rate": 0.1,
    "clip_norm": 0.5,
    "noise_multiplier": 1.5,
    "lot_size": 30,
    "epochs": 4,
}


def test_numbers_by_hand() -> None:
    """Steps are epochs * (n // m); the noise on the sum is z 2L, or z L for Poisson sampling."""
    fixed = TrainingPlan(**GOOD)
    assert (fixed.steps, fixed.sensitivity, fixed.noise_std) == (132, 1.0, 1.5)
    poisson = TrainingPlan(**GOOD, sampling="poisson")
    assert (poisson.steps, poisson.sensitivity, poisson.noise_std) == (132, 0.5, 0.75)


def test_epsilon_without_replacement_is_that_of_dp_accounting() -> None:
    """dp-accounting's RDP accountant takes a multiplier in units of the sensitivity, here 2C."""
    plan = TrainingPlan(**GOOD)
    accountant = RdpAccountant(
        neighboring_relation=dp_accounting.NeighboringRelation.REPLACE_ONE
    ).compose(
        dp_accounting.SampledWithoutReplacementDpEvent(
            1000, 30, dp_accounting.GaussianDpEvent(1.5)
        ),
        132,
    )
    reference = accountant.get_epsilon(plan.delta)
    # More Renyi orders than theirs: never looser, and not far away.
    assert 0.9 * reference < plan.epsilon <= reference * (1 + 1e-9)
    assert plan.guarantee.relation is NeighboringRelation.REPLACE_ONE


def test_epsilon_of_poisson_sampling_is_that_of_dp_accounting() -> None:
    plan = TrainingPlan(**GOOD, sampling="poisson")
    accountant = PLDAccountant(
        neighboring_relation=dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE
    ).compose(dp_accounting.PoissonSampledDpEvent(0.03, dp_accounting.GaussianDpEvent(1.5)), 132)
    assert plan.epsilon == pytest.approx(accountant.get_epsilon(plan.delta), rel=2e-2)
    assert plan.guarantee.relation is NeighboringRelation.ADD_OR_REMOVE_ONE
    assert any("number of records" in condition for condition in plan.guarantee.conditions)


def test_fewer_steps_cost_less() -> None:
    plan = TrainingPlan(**GOOD)
    costs = [plan.guarantee_after(steps).epsilon(1e-5) for steps in (1, 10, 132)]
    assert costs == sorted(costs)
    assert costs[-1] == plan.epsilon
    assert plan.guarantee.status == "conditional"
    assert "DP-SGD" in str(plan.guarantee)
    assert "DP-Adam" in str(TrainingPlan(**GOOD, optimizer="adam").guarantee)


def test_no_noise_promises_nothing() -> None:
    for clip_norm in (1.0, math.inf):
        plan = TrainingPlan(**{**GOOD, "noise_multiplier": 0.0, "clip_norm": clip_norm})
        assert plan.noise_std == 0
        assert plan.epsilon == math.inf
        assert plan.guarantee.status == "none"


@pytest.mark.parametrize(
    "change, message",
    [
        ({"lot_size": 1001}, "`lot_size` must be from 1 to 1000, got 1001"),
        ({"lot_size": 0}, "lot_size"),
        ({"lot_size": 2.5}, "lot_size"),
        ({"epochs": 0}, "epochs"),
        ({"epochs": True}, "epochs"),
        ({"learning_rate": 0.0}, "learning_rate"),
        ({"learning_rate": math.inf}, "learning_rate"),
        ({"learning_rate": math.nan}, "learning_rate"),
        ({"clip_norm": -1.0}, "clip_norm"),
        ({"clip_norm": math.inf}, "clip_norm"),
        ({"clip_norm": 1e-20}, "Scale the loss up"),
        ({"noise_multiplier": -0.1}, "noise_multiplier"),
        ({"noise_multiplier": math.nan}, "noise_multiplier"),
        ({"noise_multiplier": "1"}, "noise_multiplier"),
        ({"delta": 0.0}, "delta"),
        ({"delta": 1.0}, "delta"),
        ({"optimizer": "adagrad"}, "`optimizer` must be one of"),
        ({"sampling": "shuffled"}, "`sampling` must be one of"),
    ],
)
def test_wrong_arguments_are_named(change: dict[str, object], message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        TrainingPlan(**{**GOOD, **change})


def test_a_plan_is_frozen() -> None:
    with pytest.raises(FrozenInstanceError):
        TrainingPlan(**GOOD).epochs = 5


def test_limits_of_what_may_be_published() -> None:
    TrainingPlan(**GOOD).check_publishable()
    large = {"num_records": 100_000, "lot_size": 80_001}
    for change, message in (
        ({"noise_multiplier": 0.0}, "promises nothing"),
        ({"noise_multiplier": 1e-4}, "at least 0.001"),
        (large, "at most 80000"),
    ):
        with pytest.raises(PrivacyError, match=message):
            TrainingPlan(**{**GOOD, **change}).check_publishable()


def test_numbers_of_other_libraries_become_plain() -> None:
    plan = TrainingPlan(**{**GOOD, "lot_size": np.int64(30), "clip_norm": np.float32(0.5)})
    assert plan == TrainingPlan(**GOOD)
    assert json.loads(json.dumps(plan.to_dict())) == plan.to_dict()
