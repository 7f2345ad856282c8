from __future__ import annotations

import json
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from botorch_dp.privacy import PrivacyBudget, PrivacyLedger
from botorch_dp.privacy.losses import FixedLotSGDLoss, loss_from_dict
from botorch_dp.training import DPTrainer, cross_entropy_loss
from botorch_dp.training.checkpoint import load_checkpoint, save_checkpoint
from tests.training.helpers import LOTS, NETWORK, Interrupting, make_data, weights

SETTINGS = {
    "learning_rate": 0.1,
    "clip_norm": 0.5,
    "noise_multiplier": 0.8,
    "lot_size": 6,
    "epochs": 5,
}


def interrupted(path: Path, step: int, engine: str = "fused", **run: object) -> DPTrainer:
    """A trainer whose run was stopped after some steps, and that is ready to go on."""
    loss = Interrupting(step)
    options = {key: run.pop(key) for key in ("optimizer", "sampling") if key in run}
    each = DPTrainer(NETWORK, loss, make_data(dtype=torch.float32), engine=engine, **options)
    loss.armed = True
    stopped = each.fit(**SETTINGS, checkpoint=path, **run)
    assert stopped.steps == step
    loss.armed = False
    return each


@pytest.mark.parametrize("step", [1, 33, 49])
@pytest.mark.parametrize("sampling", ["without_replacement", "poisson"])
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("engine", ["fused", "per_record"])
def test_a_resumed_run_is_an_uninterrupted_one(
    tmp_path: Path, engine: str, optimizer: str, sampling: str, step: int
) -> None:
    path = tmp_path / "run.npz"
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
    each.fit(**SETTINGS, seed=4, checkpoint=tmp_path / "run")
    loss.armed = False
    resumed = each.fit(**SETTINGS, seed=4, checkpoint=tmp_path / "run")
    assert torch.equal(weights(resumed.model), weights(each.fit(**SETTINGS, seed=4).model))


def test_the_file_is_private_and_says_so(tmp_path: Path) -> None:
    path = tmp_path / "run.npz"
    interrupted(path, 12, seed=0, sampling="without_replacement")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with np.load(path, allow_pickle=False) as file:
        header = json.loads(str(file["header"]))
    assert next(iter(header)) == "notice"
    assert header["notice"].startswith("SENSITIVE")
    assert loss_from_dict(header["spent"]) == FixedLotSGDLoss(0.8, 6, 60, 12)
    assert [p.name for p in tmp_path.iterdir()] == ["run.npz"]


def test_a_finished_run_is_read_back(tmp_path: Path) -> None:
    path = tmp_path / "run.npz"
    each = DPTrainer(NETWORK, cross_entropy_loss, make_data(dtype=torch.float32))
    first = each.fit(**SETTINGS, publish=True, checkpoint=path)
    again = each.fit(**SETTINGS, publish=True, checkpoint=path)
    assert torch.equal(weights(first.model), weights(again.model))


def test_a_published_run_resumes_and_is_charged_once(tmp_path: Path) -> None:
    path = tmp_path / "run.npz"
    ledger = PrivacyLedger(":memory:", PrivacyBudget(100.0, 1e-3))
    each = interrupted(path, 9, publish=True, ledger=ledger)
    before = weights(each.fit(**SETTINGS, publish=True, checkpoint=path, ledger=ledger).model)
    assert len(ledger.entries()) == 1
    assert before.isfinite().all()
    each.fit(**SETTINGS, publish=True, ledger=ledger)
    assert len(ledger.entries()) == 2


def test_another_run_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "run.npz"
    each = interrupted(path, 5, seed=4)
    before = path.read_bytes()
    for change, name in (
        ({"seed": 5}, "seeds"),
        ({"seed": 4, "noise_multiplier": 0.9}, "noise_multiplier 0.8 .now 0.9"),
        ({"seed": 4, "epochs": 6}, "epochs"),
        ({"seed": 4, "delta": 1e-6}, "delta"),
        ({"publish": True}, "seeds"),
    ):
        with pytest.raises(ValueError, match=name):
            each.fit(**{**SETTINGS, **change}, checkpoint=path)
    for lots, name in (("fixed", "sampling"), ("poisson, one more", "relation")):
        data = make_data(dtype=torch.float32)
        other = DPTrainer(NETWORK, cross_entropy_loss, data, **LOTS[lots])
        with pytest.raises(ValueError, match=name):
            other.fit(**SETTINGS, seed=4, checkpoint=path)
    assert path.read_bytes() == before


def test_what_is_no_checkpoint_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "run"
    for content in (b"", b"hello", b"PK\x03\x04broken"):
        path.write_bytes(content)
        with pytest.raises(ValueError, match="not a training checkpoint"):
            load_checkpoint(path)
    np.savez(path.with_suffix(".npz"), a=np.zeros(2))
    with pytest.raises(ValueError, match="not a training checkpoint"):
        load_checkpoint(path.with_suffix(".npz"))
    save_checkpoint(path, {"format": 99}, {})
    with pytest.raises(ValueError, match="format 99"):
        load_checkpoint(path)
    assert load_checkpoint(tmp_path / "absent") is None


def test_a_missing_folder_is_noticed_before_training(tmp_path: Path) -> None:
    each = DPTrainer(NETWORK, cross_entropy_loss, make_data(dtype=torch.float32))
    with pytest.raises(FileNotFoundError):
        each.fit(**SETTINGS, seed=0, checkpoint=tmp_path / "absent" / "run")


_PROGRAM = """
import sys
from functools import partial
import torch
from botorch_dp.training import DPTrainer, cross_entropy_loss, multilayer_perceptron
from tests.training.helpers import make_data
torch.set_num_threads(1)
trainer = DPTrainer(partial(multilayer_perceptron, 7, 3, (6,)), cross_entropy_loss,
                    make_data(dtype=torch.float32))
trainer.fit(learning_rate=0.1, clip_norm=0.5, noise_multiplier=0.8, lot_size=6, epochs=80,
            seed=4, checkpoint=sys.argv[1], checkpoint_seconds=0.0)
"""


def test_a_killed_run_resumes(tmp_path: Path) -> None:
    """SIGKILL at any moment leaves a whole checkpoint, and the run goes on to the same model."""
    path = tmp_path / "run.npz"
    process = subprocess.Popen([sys.executable, "-c", _PROGRAM, str(path)])
    deadline = time.monotonic() + 60
    while not path.exists() or load_checkpoint(path)[0]["step"] < 20:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait()
    found = load_checkpoint(path)
    assert found is not None
    assert 20 <= found[0]["step"] < 800
    each = DPTrainer(NETWORK, cross_entropy_loss, make_data(dtype=torch.float32))
    settings = {**SETTINGS, "epochs": 80}
    resumed = each.fit(**settings, seed=4, checkpoint=path)
    assert torch.equal(weights(resumed.model), weights(each.fit(**settings, seed=4).model))
