"""Runs that are cut off go on as if nothing had happened; one published run shows one model."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch

from botorch_dp.errors import PrivacyError
from botorch_dp.privacy import PrivacyBudget, PrivacyLedger
from botorch_dp.training import DPTrainer, cross_entropy_loss
from tests.one_draw import OneDraw
from tests.training.helpers import (
    BATCHES,
    NETWORK,
    Interrupting,
    interruptible,
    make_data,
    trainer,
    weights,
)

SETTINGS = {
    "learning_rate": 0.1,
    "clip_norm": 0.5,
    "noise_multiplier": 0.8,
    "batch_size": 6,
    "epochs": 5,
}


def interrupted(path: Path, step: int, engine: str = "fused", **run: object) -> DPTrainer:
    """A trainer whose run was stopped after some steps, and that is ready to go on."""
    options = {key: run.pop(key) for key in ("optimizer", "sampling") if key in run}
    loss, each = interruptible(step, engine=engine, **options)
    with pytest.raises(KeyboardInterrupt, match=f"^{step} of 50 steps"):
        each.fit(**SETTINGS, checkpoint=path, **run)
    loss.armed = False
    return each


@pytest.mark.one_in(3)
@pytest.mark.parametrize("step", [1, 33, 49])
@pytest.mark.parametrize(
    "engine, optimizer, sampling",
    [
        ("fused", "sgd", "poisson"),
        ("fused", "adam", "without_replacement"),
        ("ghost", "adam", "poisson"),
        ("per_record", "sgd", "without_replacement"),
    ],
)
def test_a_resumed_run_is_an_uninterrupted_one(
    tmp_path: Path, engine: str, optimizer: str, sampling: str, step: int
) -> None:
    path = tmp_path / "a.run"
    each = interrupted(path, step, engine, optimizer=optimizer, sampling=sampling, seed=4)
    resumed = each.fit(**SETTINGS, seed=4, checkpoint=path)
    whole = each.fit(**SETTINGS, seed=4)
    assert resumed.steps == whole.steps == 50
    assert torch.equal(weights(resumed.model), weights(whole.model))
    assert resumed.diagnostics == whole.diagnostics
    assert resumed.guarantee == whole.guarantee


def test_dropout_resumes_too(tmp_path: Path) -> None:
    def factory() -> torch.nn.Module:
        return torch.nn.Sequential(
            torch.nn.Linear(7, 6), torch.nn.Dropout(0.5), torch.nn.Linear(6, 3)
        )

    loss = Interrupting(10)
    each = DPTrainer(factory, loss, make_data(dtype=torch.float32))
    loss.armed = True
    with pytest.raises(KeyboardInterrupt):
        each.fit(**SETTINGS, seed=4, checkpoint=tmp_path / "run")
    loss.armed = False
    resumed = each.fit(**SETTINGS, seed=4, checkpoint=tmp_path / "run")
    assert torch.equal(weights(resumed.model), weights(each.fit(**SETTINGS, seed=4).model))


def test_a_model_that_was_shown_is_the_model(tmp_path: Path) -> None:
    """Stopped and handed out: what was shown under a charge is not shown again as another one."""
    path = tmp_path / "a.run"
    ledger = PrivacyLedger(":memory:", PrivacyBudget(100.0, 1e-3))
    loss, each = interruptible(9)
    published = {**SETTINGS, "publish": True, "ledger": ledger}
    with pytest.warns(UserWarning, match="stopped for good"):
        first = each.fit(**published, checkpoint=path, on_interrupt="stop")
    loss.armed = False
    with pytest.warns(UserWarning, match="stopped for good"):
        again = each.fit(**published, checkpoint=path)
    assert first.steps == again.steps == 9 and len(ledger.entries()) == 1
    assert torch.equal(weights(first.model), weights(again.model))


def test_a_copied_file_shows_the_same_model(tmp_path: Path) -> None:
    """Two runs from copies of one file would be two models for one charge."""
    path, copied = tmp_path / "a.run", tmp_path / "b.run"
    ledger = PrivacyLedger(":memory:", PrivacyBudget(100.0, 1e-3))
    loss, each = interruptible(9)
    published = {**SETTINGS, "publish": True, "ledger": ledger}
    with pytest.raises(KeyboardInterrupt):
        each.fit(**published, checkpoint=path)
    loss.armed = False
    copied.write_bytes(path.read_bytes())
    models = [weights(each.fit(**published, checkpoint=p).model) for p in (path, copied)]
    assert torch.equal(*models) and len(ledger.entries()) == 1


def test_other_data_is_another_run(tmp_path: Path) -> None:
    path = tmp_path / "a.run"
    data = make_data(dtype=torch.float32)
    DPTrainer(NETWORK, cross_entropy_loss, data).fit(**SETTINGS, publish=True, checkpoint=path)
    data.train_X[0, 0] += 1
    with pytest.raises(PrivacyError, match="`data` is not the same"):
        DPTrainer(NETWORK, cross_entropy_loss, data).fit(**SETTINGS, publish=True, checkpoint=path)


class TestPublished(OneDraw):
    def make(self, ledger: PrivacyLedger | None) -> tuple[DPTrainer, PrivacyLedger | None]:
        return copy.deepcopy(trainer()), ledger

    def draw(self, thing: Any, checkpoint: Path | None) -> list[float]:
        each, ledger = thing
        settings = {**SETTINGS, "epochs": 1}
        trained = each.fit(
            **settings, publish=True, checkpoint=checkpoint, checkpoint_seconds=0.0, ledger=ledger
        )
        return weights(trained.model).tolist()


def test_another_run_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.run"
    each = interrupted(path, 5, seed=4)
    before = path.read_bytes()
    for change, name in (
        ({"seed": 5}, "`seed` was 4 and is 5"),
        ({"seed": 4, "noise_multiplier": 0.9}, "`noise_multiplier` was 0.8 and is 0.9"),
        ({"seed": 4, "epochs": 6}, "epochs"),
        ({"seed": 4, "delta": 1e-6}, "delta"),
        ({"publish": True}, "seed"),
        ({"seed": 4, "curve": (1, 2)}, "curve"),
    ):
        with pytest.raises(ValueError, match=name):
            each.fit(**{**SETTINGS, **change}, checkpoint=path)
    for batches, name in (("fixed", "sampling"), ("poisson, one more", "relation")):
        data = make_data(dtype=torch.float32)
        other = DPTrainer(NETWORK, cross_entropy_loss, data, **BATCHES[batches])
        with pytest.raises(ValueError, match=name):
            other.fit(**SETTINGS, seed=4, checkpoint=path)
    assert path.read_bytes() == before
