"""Utilities along a training: each is that of the shorter training, and cut-off runs go on."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from botorch_dp.privacy import PrivacyBudget, PrivacyLedger
from botorch_dp.training.run import TrainingRun
from tests.one_draw import in_fork
from tests.training.helpers import OWN_ENGINES, SETTINGS, trainer, weights

CURVE = (1, 2, 4, 7)
LONG = {**SETTINGS, "epochs": 7}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("engine", OWN_ENGINES)
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_each_point_is_the_shorter_training(engine: str, optimizer: str) -> None:
    each = trainer(engine=engine, optimizer=optimizer)
    whole = each.fit(**LONG, seed=3, curve=CURVE)
    shorter = [each.fit(**{**LONG, "epochs": epochs}, seed=3) for epochs in CURVE]
    assert whole.curve == tuple(one.accuracy for one in shorter)
    assert len(set(whole.curve)) > 1
    plan = whole.plan
    assert [plan.guarantee_after(e * plan.steps_per_epoch).epsilon(plan.delta) for e in CURVE] == [
        one.epsilon for one in shorter
    ]
    assert torch.equal(weights(whole.model), weights(each.fit(**LONG, seed=3).model))
    assert whole.accuracy == whole.curve[-1]


@pytest.mark.parametrize("step", [20, 55])
@pytest.mark.parametrize("publish", [False, True])
def test_a_killed_curve_goes_on(tmp_path: Path, step: int, publish: bool) -> None:
    how: dict[str, Any] = {"publish": True} if publish else {"seed": 4}
    stored = {**LONG, **how, "curve": CURVE, "checkpoint": tmp_path / "curve"}
    save = TrainingRun.save

    def save_or_die(run: TrainingRun) -> None:
        save(run)
        if run.step == step:
            os.kill(os.getpid(), signal.SIGKILL)

    def killed() -> str:
        TrainingRun.save = save_or_die  # type: ignore[method-assign]
        trainer().fit(**stored, checkpoint_seconds=0.0)
        return "alive"

    assert in_fork(killed) is None
    each = trainer()
    resumed = each.fit(**stored)
    assert len(resumed.curve) == len(CURVE)
    if not publish:
        assert resumed.curve == each.fit(**LONG, seed=4, curve=CURVE).curve
    again = each.fit(**stored)
    assert again.curve == resumed.curve
    assert torch.equal(weights(again.model), weights(resumed.model))


def test_a_published_curve_is_charged_once(tmp_path: Path) -> None:
    each, ledger = trainer(), PrivacyLedger(":memory:", PrivacyBudget(100.0, 1e-3))
    published = {**LONG, "publish": True, "ledger": ledger, "checkpoint": tmp_path / "run"}
    first, again = (each.fit(**published, curve=CURVE) for _ in range(2))
    assert first.guarantee == each.plan(**LONG).guarantee and first.curve == again.curve
    assert len(ledger.entries()) == 1


@pytest.mark.parametrize("curve", [(0, 1), (1, 8), (2, 1), (1, 1)])
def test_wrong_curves_are_refused(curve: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="curve"):
        trainer().fit(**LONG, seed=0, curve=curve)
