from __future__ import annotations

import json
import math
import re
from typing import Any

import numpy as np
import pytest

from botorch_dp.errors import PrivacyError
from botorch_dp.privacy import NeighboringRelation, dp_sgd_epsilon, gaussian_mu
from botorch_dp.training import TrainingPlan, TrainingSettings
from botorch_dp.training.plan import make_plan
from botorch_dp.training.ranges import ranges_guarantee
from tests.training.helpers import BATCHES

GOOD = {
    "num_records": 1000,
    "learning_rate": 0.1,
    "clip_norm": 0.5,
    "noise_multiplier": 1.5,
    "batch_size": 30,
    "epochs": 4,
}


def planned(**change: Any) -> TrainingPlan:
    """The plan of good settings, some of them changed."""
    given = {**GOOD, **change}
    settings: Any = {n: given.pop(n) for n in TrainingSettings.__annotations__ if n in given}
    return make_plan(settings, **given)


def test_numbers_by_hand() -> None:
    """Steps are epochs * (n // m); the noise on the sum is z C under every relation."""
    for batches in ("fixed", "poisson"):
        plan = TrainingPlan(**GOOD, **BATCHES[batches])
        assert (plan.steps, plan.sensitivity, plan.noise_std) == (132, 1.0, 0.75)
    one_more = TrainingPlan(**GOOD, **BATCHES["poisson, one more"])
    assert (one_more.steps, one_more.sensitivity, one_more.noise_std) == (132, 0.5, 0.75)
    assert TrainingPlan(**GOOD) == TrainingPlan(**GOOD, **BATCHES["poisson"])


@pytest.mark.parametrize("batches", BATCHES)
def test_epsilon_is_the_accountants(batches: str) -> None:
    """Which is held against dp-accounting in the tests of privacy."""
    plan = TrainingPlan(**GOOD, **BATCHES[batches])
    run = {name: GOOD[name] for name in ("noise_multiplier", "batch_size", "num_records")}
    how = {"sampling": plan.sampling, "relation": plan.relation}
    assert plan.epsilon == dp_sgd_epsilon(**run, **how, steps=132, delta=plan.delta)
    assert plan.guarantee.relation is plan.relation


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
        ({"clip_norm": 1e-20}, "Scale the loss up"),
        ({"clip_norm": 1e151}, "Scale the loss down"),
        ({"clipping": "soft"}, "`clipping` must be one of"),
        ({"clipping": "normalized", "noise_multiplier": 0.0, "clip_norm": math.inf}, "clip_norm"),
        ({"sampling": "shuffled"}, "`sampling` must be one of"),
    ],
)
def test_wrong_arguments_are_named(change: dict[str, object], message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        planned(**change)


def test_limits_of_what_may_be_published() -> None:
    TrainingPlan(**GOOD).check_publishable()
    large = {"num_records": 100_000, "batch_size": 80_001}
    for change, message in (
        ({"noise_multiplier": 0.0}, "nothing is guaranteed"),
        ({"noise_multiplier": 1.9e-3}, "at least 0.002"),
        (large, "at most 80000"),
    ):
        with pytest.raises(PrivacyError, match=message):
            TrainingPlan(**{**GOOD, **change}).check_publishable()


def test_numbers_of_other_libraries_become_plain() -> None:
    plan = planned(batch_size=np.int64(30), clip_norm=np.float32(0.5))
    assert plan == TrainingPlan(**GOOD)
    assert json.loads(json.dumps(plan.to_dict())) == plan.to_dict()


def test_batches_of_fixed_size_know_one_relation() -> None:
    for sampling, relation in (
        ("without_replacement", NeighboringRelation.ADD_OR_REMOVE_ONE),
        ("poisson", NeighboringRelation.BOUNDED_ROW),
    ):
        with pytest.raises(PrivacyError, match=f"`relation` is {relation.name}"):
            planned(sampling=sampling, relation=relation)


def test_only_a_count_that_is_secret_is_a_condition() -> None:
    for batches, expected in (("fixed", False), ("poisson", False), ("poisson, one more", True)):
        conditions = TrainingPlan(**GOOD, **BATCHES[batches]).guarantee.conditions
        assert any("number of records" in each for each in conditions) is expected


@pytest.mark.parametrize("target", [0.1, 7.0])
@pytest.mark.parametrize("batches", BATCHES)
def test_a_target_is_met_and_never_exceeded(batches: str, target: float) -> None:
    settings = {name: GOOD[name] for name in ("learning_rate", "clip_norm", "batch_size", "epochs")}
    fixed = {"num_records": 1000, **BATCHES[batches]}
    plan = make_plan({**settings, "target_epsilon": target, "delta": 1e-6}, **fixed)
    assert 0.999 * target < plan.epsilon <= target
    assert make_plan({**settings, "noise_multiplier": 1.5}, **fixed).noise_multiplier == 1.5
    for chosen, message in (
        ({}, "either"),
        ({"noise_multiplier": 1.0, "target_epsilon": 1.0}, "either"),
        ({"noise_multiplier": 1.0, "momentum": 0.9}, "momentum"),
    ):
        with pytest.raises(TypeError, match=message):
            make_plan({**settings, **chosen}, **fixed)
    with pytest.raises(ValueError, match="target_epsilon"):
        make_plan({**settings, "target_epsilon": 0.0}, **fixed)


@pytest.mark.parametrize("target", [0.1, 1.0, 8.0])
def test_a_target_covers_what_is_released_beside_the_model(target: float) -> None:
    settings: TrainingSettings = {"learning_rate": 0.1, "clip_norm": 1.0, "batch_size": 100}
    settings |= {"epochs": 3, "target_epsilon": target}
    alone = make_plan(settings, num_records=1000)
    ranges = ranges_guarantee(mu=0.3 * gaussian_mu(target, alone.delta))
    plan = make_plan(settings, num_records=1000, beside=ranges)
    assert 0.9999 * target <= plan.epsilon <= target
    # Gaussian shares add up in squares: a tenth of them leaves the noise about 5% larger.
    assert alone.noise_multiplier < plan.noise_multiplier < 1.12 * alone.noise_multiplier
    assert plan.guarantee.losses == (*ranges.losses, plan.privacy_loss(plan.steps))
    assert set(ranges.unit.conditions) < set(plan.guarantee.unit.conditions)
    assert "beside" in plan.to_dict() and "beside" not in alone.to_dict()
    too_much = ranges_guarantee(mu=1.01 * gaussian_mu(target, alone.delta))
    with pytest.raises(ValueError, match="spent before the training begins"):
        make_plan(settings, num_records=1000, beside=too_much)


def test_a_plan_prints_its_price_in_words() -> None:
    """Epsilon is rounded up, and what is no price at all is said to be none."""
    plan = TrainingPlan(**GOOD)
    (epsilon,) = re.findall(r"^\(([\d.]+), 1e-05\)-differentially", str(plan))
    assert plan.epsilon <= float(epsilon) < 1.01 * plan.epsilon
    assert "no privacy guarantee" in str(TrainingPlan(**{**GOOD, "noise_multiplier": 0.0}))
    assert "Choose a smaller delta: 0.01" in str(TrainingPlan(**GOOD, delta=0.01))
