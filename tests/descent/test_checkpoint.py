"""Checkpoints: a file for its owner only, exact continuation, no second payment."""

from __future__ import annotations

import os
import signal
import sqlite3
import stat
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from botorch_dp.errors import PrivacyError
from botorch_dp.privacy import PrivacyBudget, PrivacyLedger, PrivacyUnit
from botorch_dp.privacy.runs import Run
from tests.descent.problems import (
    Counted,
    descent,
    kernel,
    must_not_be_read,
    records,
    squared_distance,
)
from tests.one_draw import Disk, in_fork

REAL: dict[str, Any] = {"steps": 6, "mu": 0.6}
SETTINGS: dict[str, Any] = {**REAL, "unsafe_seed": 7}


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


def run_until_power_cut(path: Path, fail_at: int, **changes: Any) -> None:
    run = descent(Losses(fail_at), **{**SETTINGS, **changes})
    with pytest.raises(PowerCut):
        run.run(checkpoint=path)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("fail_at", [1, 2, 4, 6])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"max_points": 9},
        {"step_size": lambda p: torch.optim.Adam(p, lr=0.05)},
        {"tolerance": 1e-6},
        {"design": "central"},
    ],
    ids=["plain", "max_points", "adam", "tolerance", "central"],
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
        run_until_power_cut(tmp_path / "run", fail_at, ledger=ledger, unsafe_seed=None)
        assert len(ledger.entries()) == fail_at  # the step that failed was charged
        whole = descent(ledger=ledger, **REAL).run(checkpoint=tmp_path / "run")
        assert len(ledger.entries()) == 6
        # A finished run is only loaded: nothing is read, nothing is spent.
        losses = Losses()
        again = descent(losses, ledger=ledger, **REAL).run(checkpoint=tmp_path / "run")
        assert again.guarantee.nominal.mu == 0.6
        assert torch.equal(again.trajectory.value, whole.trajectory.value)
        assert losses.calls == 0
        assert len(ledger.entries()) == 6


def test_the_file_is_for_its_owner_and_says_so(tmp_path: Path) -> None:
    descent(**SETTINGS).run(checkpoint=tmp_path / "run")
    # Nothing lies beside it.
    assert list(tmp_path.iterdir()) == [tmp_path / "run"]
    assert stat.S_IMODE((tmp_path / "run").stat().st_mode) == 0o600
    with sqlite3.connect(tmp_path / "run") as file:
        ((notice,),) = file.execute("SELECT words FROM notice").fetchall()
        names = {name for (name,) in file.execute("SELECT name FROM state")}
    assert "SENSITIVE" in notice
    # But for the losses all is public: nothing depends on a single record except through noise.
    assert names == {
        "the run", "blocks", "points", "root", "trajectory", "history", "num_records", "optimizer",
    }  # fmt: skip


def test_losses_out_of_use_are_deleted(tmp_path: Path) -> None:
    descent(max_points=9, **SETTINGS).run(checkpoint=tmp_path / "run")
    with sqlite3.connect(tmp_path / "run") as file:
        (count,) = file.execute("SELECT COUNT(*) FROM item WHERE series = 'losses'").fetchone()
    assert count == 2


def test_a_killed_process_is_continued(tmp_path: Path) -> None:
    """Killed while it asks the records, without a chance to tidy up."""
    whole = descent(**SETTINGS).run()

    class Kills(Losses):
        def __call__(self, X: Tensor) -> Tensor:
            if self.calls == 3:
                os.kill(os.getpid(), signal.SIGKILL)
            return super().__call__(X)

    assert in_fork(lambda: descent(Kills(), **SETTINGS).run(checkpoint=tmp_path / "run")) is None
    losses = Losses()
    resumed = descent(losses, **SETTINGS).run(checkpoint=tmp_path / "run")
    assert losses.calls == 6 - 3
    assert torch.equal(resumed.trajectory.value, whole.trajectory.value)


def test_a_kill_before_a_step_is_stored_repeats_the_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = descent(**SETTINGS).run()
    disk = Disk(monkeypatch)
    disk.at, disk.action = 3 * 4, disk.kill  # four writes for each step; the last one is its state
    assert in_fork(lambda: descent(**SETTINGS).run(checkpoint=tmp_path / "run")) is None
    disk.at = None
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
        ("initial", torch.full((3,), 0.2)),
        ("step_size", lambda p: torch.optim.Adam(p, lr=0.2)),
        ("unit", PrivacyUnit("one patient")),
    ],
)
def test_other_settings_are_refused(tmp_path: Path, name: str, value: object) -> None:
    run_until_power_cut(tmp_path / "run", 3)
    setting = {"step_size": "optimizer.lr"}.get(name, name)
    setting = "optimizer.class" if callable(value) else setting
    setting = "dtype" if getattr(value, "dtype", None) is torch.float else setting
    with pytest.raises(PrivacyError, match=rf"other settings \(.*`{setting}`"):
        descent(**{**SETTINGS, name: value}).run(checkpoint=tmp_path / "run")


def test_another_kernel_or_number_of_records_is_refused(tmp_path: Path) -> None:
    run_until_power_cut(tmp_path / "run", 3)
    with pytest.raises(ValueError, match=r"`kernel\.raw_lengthscale`"):
        descent(kernel=kernel(0.7), **SETTINGS).run(checkpoint=tmp_path / "run")
    with pytest.raises(ValueError, match="is of 200 records"):
        descent(Counted(must_not_be_read, 199), **SETTINGS).run(checkpoint=tmp_path / "run")
    resumed = descent(squared_distance(records(n=199)), **SETTINGS)
    with pytest.raises(ValueError, match="199 columns where 200 records"):
        resumed.run(checkpoint=tmp_path / "run")


def test_a_ledger_that_comes_or_goes_is_refused(tmp_path: Path) -> None:
    """The ledger holds the drawn values: without it a step could be drawn again."""
    with PrivacyLedger(budget=PrivacyBudget(3.0, 1e-5)) as ledger:
        for begun_with, goes_on_with in ((ledger, None), (None, ledger)):
            path = tmp_path / ("with" if begun_with else "without")
            run_until_power_cut(path, 3, unsafe_seed=None, ledger=begun_with)
            with pytest.raises(PrivacyError, match="`charged`"):
                descent(ledger=goes_on_with, **REAL).run(checkpoint=path)


def test_other_files_are_refused(tmp_path: Path) -> None:
    Run(tmp_path / "run", what="a training", settings={}).close()
    with pytest.raises(PrivacyError, match="is of a training, not of DP-GIBO"):
        descent(**SETTINGS).run(checkpoint=tmp_path / "run")
    (tmp_path / "folder").mkdir()  # what checkpoints were at first
    with pytest.raises(PrivacyError, match="is not a file"):
        descent(**SETTINGS).run(checkpoint=tmp_path / "folder")
    run_until_power_cut(tmp_path / "cut", 3)
    (tmp_path / "cut").write_bytes((tmp_path / "cut").read_bytes()[:5000])
    with pytest.raises(PrivacyError, match="damaged"):
        descent(**SETTINGS).run(checkpoint=tmp_path / "cut")


def test_real_noise_resumes_too(tmp_path: Path) -> None:
    run = descent(Losses(fail_at=3), **REAL)
    with pytest.raises(PowerCut):
        run.run(checkpoint=tmp_path / "run")
    released = run.result.trajectory.value
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        resumed = descent(**REAL).run(checkpoint=tmp_path / "run")
    assert torch.equal(resumed.trajectory.value[:3], released)
    assert resumed.guarantee.status == "proven"


def test_an_interrupted_run_goes_on_in_its_own_file_only(tmp_path: Path) -> None:
    whole = descent(**SETTINGS).run()
    run = descent(Losses(fail_at=3), **SETTINGS)
    with pytest.raises(PowerCut):
        run.run(checkpoint=tmp_path / "run")
    with pytest.raises(ValueError, match=r"`checkpoint` .* from the first step on"):
        run.run(checkpoint=tmp_path / "other")
    run.step()  # stored too
    assert torch.equal(
        run.run(checkpoint=tmp_path / "run").trajectory.value, whole.trajectory.value
    )
    losses = Losses()
    again = descent(losses, **SETTINGS).run(checkpoint=tmp_path / "run")
    assert losses.calls == 0
    assert torch.equal(again.trajectory.value, whole.trajectory.value)


def test_the_file_goes_ahead_of_an_object_that_has_let_it_go(tmp_path: Path) -> None:
    """What the file holds counts, whoever has taken the steps."""
    whole = descent(**SETTINGS).run()
    run = descent(Losses(fail_at=3), **SETTINGS)
    with pytest.raises(PowerCut):
        run.run(checkpoint=tmp_path / "run")
    run_until_power_cut(tmp_path / "run", 3)  # two more steps
    assert run.steps_taken == 2
    run.step()
    assert torch.equal(run.result.trajectory.value, whole.trajectory.value[:6])
