from __future__ import annotations

import math
from dataclasses import FrozenInstanceError, replace

import pytest
from torch import nn

from botorch_dp.training import (
    DPTrainer,
    Trained,
    TrainingDiagnostics,
    TrainingPlan,
    cross_entropy_loss,
)
from tests.training.helpers import FLOAT_DATA, NETWORK, SETTINGS, trainer, weights

PLAN = TrainingPlan(
    num_records=100,
    learning_rate=0.1,
    clip_norm=1.0,
    noise_multiplier=2.0,
    lot_size=10,
    epochs=2,
    delta=1e-4,
)


def test_unusable_records_are_counted_for_the_owner_only() -> None:
    X = FLOAT_DATA.train_X.clone()
    X[:2, 0] = math.nan
    each = DPTrainer(NETWORK, cross_entropy_loss, FLOAT_DATA._replace(train_X=X))
    fitted = each.fit(**{**SETTINGS, "lot_size": 60}, seed=0)
    assert fitted.diagnostics.unusable_records == 2
    assert fitted.diagnostics.dropped_gradients == 6
    assert repr(fitted.diagnostics) == "TrainingDiagnostics(sensitive)"
    assert weights(fitted.model).isfinite().all()


def test_nothing_private_is_shown() -> None:
    fitted = trainer().fit(**SETTINGS, seed=0)
    assert "accuracy" not in repr(fitted)
    assert str(fitted.accuracy) not in repr(fitted)


def trained(steps: int, plan: TrainingPlan = PLAN) -> Trained:
    return Trained(
        model=nn.Linear(2, 1),
        guarantee=plan.guarantee_after(steps),
        plan=plan,
        steps=steps,
        diagnostics=TrainingDiagnostics(
            accuracy=0.8125, unusable_records=313, dropped_gradients=717
        ),
    )


def test_a_run_is_interrupted_until_its_last_step() -> None:
    assert [trained(steps).interrupted for steps in (1, 19, 20)] == [True, True, False]


def test_epsilon_is_the_cost_of_the_steps_taken_at_the_plans_delta() -> None:
    assert trained(20).epsilon == PLAN.epsilon
    assert trained(5).epsilon == PLAN.guarantee_after(5).epsilon(1e-4)
    assert 0 < trained(5).epsilon < trained(20).epsilon
    assert trained(5).epsilon < PLAN.guarantee_after(5).epsilon(1e-5)


def test_epsilon_names_the_price_where_the_guarantee_promises_nothing() -> None:
    simulated = replace(trained(20), guarantee=PLAN.guarantee.simulated())
    assert simulated.guarantee.epsilon(1e-4) == math.inf
    assert simulated.epsilon == PLAN.epsilon
    noiseless = trained(20, replace(PLAN, noise_multiplier=0.0))
    assert noiseless.epsilon == math.inf


def test_representations_hold_no_diagnostics() -> None:
    stopped = trained(5)
    assert repr(stopped) == f"Trained(steps=5 of 20, guarantee: {stopped.guarantee})"
    assert stopped.accuracy == 0.8125
    for shown in (repr(stopped), repr(stopped.diagnostics)):
        assert not any(secret in shown for secret in ("0.8125", "313", "717"))


def test_what_was_trained_is_frozen() -> None:
    with pytest.raises(FrozenInstanceError):
        trained(5).steps = 20  # type: ignore[misc]
