"""Checkpoints: private files, exact continuation, no second payment."""

from __future__ import annotations

import stat
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from botorch_dp.descent import NoiseAwareAdagrad
from botorch_dp.privacy import PrivacyBudget, PrivacyLedger
from tests.descent.problems import descent, records, squared_distance

SETTINGS: dict[str, Any] = {"steps": 6, "mu": 0.6, "unsafe_seed": 7}


class PowerCut(BaseException):
    """Not an exception that anybody catches."""


class Losses:
    """Losses that fail at one call, and count their calls."""

    def __init__(self, fail_at: int = 0) -> None:
        self.fail_at = fail_at
        self.calls = 0

    def __call__(self, X: Tensor) -> Tensor:
        self.calls += 1
        if self.calls == self.fail_at:
            raise PowerCut
        return squared_distance(records())(X)


def run_until_power_cut(folder: Path, fail_at: int, **changes: Any) -> None:
    run = descent(Losses(fail_at), **{**SETTINGS, **changes})
    with pytest.raises(PowerCut):
        run.run(checkpoint=folder)


@pytest.mark.parametrize("fail_at", [1, 2, 4, 6])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"max_points": 9},
        {"optimizer": lambda p: torch.optim.Adam(p, lr=0.05)},
        {"optimizer": lambda p: NoiseAwareAdagrad(p, lr=0.1)},
        {"tolerance": 1e-6},
        {"design": "central"},
    ],
    ids=["plain", "max_points", "adam", "noise-aware", "tolerance", "central"],
)
def test_a_resumed_run_continues_bit_for_bit(
    tmp_path: Path, fail_at: int, changes: dict[str, Any]
) -> None:
    whole = descent(**{**SETTINGS, **changes}).run()
    run_until_power_cut(tmp_path / "run", fail_at, **changes)
    losses = Losses()
    result = descent(losses, **{**SETTINGS, **changes}).run(checkpoint=tmp_path / "run")
    assert losses.calls == 6 - (fail_at - 1)
    assert torch.equal(result.trajectory.value, whole.trajectory.value)
    assert result.history == whole.history
    assert result.guarantee == whole.guarantee


@pytest.mark.parametrize("fail_at", [1, 3])
def test_a_resumed_run_pays_for_no_step_twice(tmp_path: Path, fail_at: int) -> None:
    with PrivacyLedger(budget=PrivacyBudget(3.0, 1e-5)) as ledger:
        run_until_power_cut(tmp_path / "run", fail_at, ledger=ledger)
        assert len(ledger.entries()) == fail_at  # the step that failed was paid for
        descent(ledger=ledger, **SETTINGS).run(checkpoint=tmp_path / "run")
        assert len(ledger.entries()) == 6
        # A finished run is only loaded: nothing is read, nothing is spent.
        losses = Losses()
        again = descent(losses, ledger=ledger, **SETTINGS).run(checkpoint=tmp_path / "run")
        assert again.guarantee.nominal.mu == 0.6
        assert losses.calls == 0
        assert len(ledger.entries()) == 6


def test_two_runs_in_two_folders_both_pay(tmp_path: Path) -> None:
    with PrivacyLedger(budget=PrivacyBudget(3.0, 1e-5)) as ledger:
        for name in ("a", "b"):
            descent(ledger=ledger, **{**SETTINGS, "mu": 0.3}).run(checkpoint=tmp_path / name)
        assert len(ledger.entries()) == 12


def test_files_are_private_and_say_so(tmp_path: Path) -> None:
    descent(**SETTINGS).run(checkpoint=tmp_path / "run")
    folder = tmp_path / "run"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    files = sorted(path.name for path in folder.iterdir())
    assert "README" in files and "state.pt" in files
    for path in folder.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
    assert "SENSITIVE" in (folder / "README").read_text()
    # The state is public: nothing in it depends on a single record except through noise.
    state = torch.load(folder / "state.pt", weights_only=True)
    assert set(state) == {
        "format", "settings", "run_id", "num_records", "blocks", "points", "root",
        "trajectory", "history", "optimizer",
    }  # fmt: skip


def test_losses_out_of_use_are_deleted(tmp_path: Path) -> None:
    descent(max_points=9, **SETTINGS).run(checkpoint=tmp_path / "run")
    assert len(list((tmp_path / "run").glob("losses-*.pt"))) <= 2


def test_a_crash_between_the_two_writes_repeats_the_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from botorch_dp.descent.checkpoint import Checkpoint

    whole = descent(**SETTINGS).run()
    write, writes = Checkpoint._write, []

    def cut(path: Path, content: Any) -> None:
        writes.append(path.name)
        if path.name == "state.pt" and writes.count("state.pt") == 4:
            raise PowerCut
        write(path, content)

    monkeypatch.setattr(Checkpoint, "_write", staticmethod(cut))
    with pytest.raises(PowerCut):
        descent(**SETTINGS).run(checkpoint=tmp_path / "run")
    monkeypatch.undo()
    losses = Losses()
    resumed = descent(losses, **SETTINGS).run(checkpoint=tmp_path / "run")
    assert losses.calls == 6 - 2
    assert torch.equal(resumed.trajectory.value, whole.trajectory.value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("mu", 0.5),
        ("steps", 7),
        ("clip_norm", 2.0),
        ("radius", 0.1),
        ("step_size", 0.1),
        ("unsafe_seed", None),
        ("initial", torch.full((3,), 0.3, dtype=torch.double)),
    ],
)
def test_other_settings_are_refused(tmp_path: Path, name: str, value: object) -> None:
    run_until_power_cut(tmp_path / "run", 3)
    setting = "optimizer" if name == "step_size" else name
    with pytest.raises(ValueError, match=rf"other settings \(.*`{setting}`"):
        descent(**{**SETTINGS, name: value}).run(checkpoint=tmp_path / "run")


def test_another_kernel_or_number_of_records_is_refused(tmp_path: Path) -> None:
    from tests.descent.problems import kernel

    run_until_power_cut(tmp_path / "run", 3)
    with pytest.raises(ValueError, match="`kernel`"):
        descent(kernel=kernel(0.7), **SETTINGS).run(checkpoint=tmp_path / "run")
    with pytest.raises(ValueError, match="is of 200 records"):
        descent(num_records=199, **SETTINGS).run(checkpoint=tmp_path / "run")
    resumed = descent(squared_distance(records(n=199)), **SETTINGS)
    with pytest.raises(ValueError, match="199 columns where 200 records"):
        resumed.run(checkpoint=tmp_path / "run")


def test_a_file_of_another_version_is_refused(tmp_path: Path) -> None:
    run_until_power_cut(tmp_path / "run", 2)
    state = torch.load(tmp_path / "run" / "state.pt", weights_only=True)
    torch.save({**state, "format": 99}, tmp_path / "run" / "state.pt")
    with pytest.raises(ValueError, match="format 99"):
        descent(**SETTINGS).run(checkpoint=tmp_path / "run")


def test_real_noise_resumes_too(tmp_path: Path) -> None:
    settings = {**SETTINGS, "unsafe_seed": None}
    run = descent(Losses(fail_at=3), **settings)
    with pytest.raises(PowerCut):
        run.run(checkpoint=tmp_path / "run")
    released = run.result.trajectory.value
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        resumed = descent(**settings).run(checkpoint=tmp_path / "run")
    assert torch.equal(resumed.trajectory.value[:3], released)
    assert resumed.guarantee.status == "proven"


def test_an_interrupted_run_goes_on_in_its_own_folder_only(tmp_path: Path) -> None:
    whole = descent(**SETTINGS).run()
    run = descent(Losses(fail_at=3), **SETTINGS)
    with pytest.raises(PowerCut):
        run.run(checkpoint=tmp_path / "run")
    with pytest.raises(ValueError, match=r"`checkpoint` .* from the first step on"):
        run.run(checkpoint=tmp_path / "other")
    run.step()  # saved too
    assert torch.equal(
        run.run(checkpoint=tmp_path / "run").trajectory.value, whole.trajectory.value
    )
    losses = Losses()
    again = descent(losses, **SETTINGS).run(checkpoint=tmp_path / "run")
    assert losses.calls == 0
    assert torch.equal(again.trajectory.value, whole.trajectory.value)


def test_steps_taken_without_a_checkpoint_cannot_join_one(tmp_path: Path) -> None:
    run_until_power_cut(tmp_path / "run", 3)
    run = descent(**SETTINGS)
    run.step()
    for name in ("run", "new"):
        with pytest.raises(ValueError, match="has taken 1 steps without it"):
            run.run(checkpoint=tmp_path / name)
