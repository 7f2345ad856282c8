"""Checkpoints: a file for its owner only, exact continuation, no second payment."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from botorch_dp.errors import PrivacyError
from botorch_dp.privacy import PrivacyBudget, PrivacyLedger, PrivacyUnit
from tests.descent.problems import (
    Counted,
    descent,
    kernel,
    must_not_be_read,
    records,
    squared_distance,
)

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
@pytest.mark.parametrize("fail_at", [1, 4, 6])
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


def test_losses_out_of_use_are_deleted(tmp_path: Path) -> None:
    descent(max_points=9, **SETTINGS).run(checkpoint=tmp_path / "run")
    with sqlite3.connect(tmp_path / "run") as file:
        (count,) = file.execute("SELECT COUNT(*) FROM item WHERE series = 'losses'").fetchone()
    assert count == 2


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("mu", 0.5),
        ("radius", 0.1),
        ("unsafe_seed", None),
        ("initial", torch.full((3,), 0.2)),
        ("step_size", lambda p: torch.optim.Adam(p, lr=0.2)),
        ("unit", PrivacyUnit("one patient")),
    ],
)
def test_other_settings_are_refused(tmp_path: Path, name: str, value: object) -> None:
    run_until_power_cut(tmp_path / "run", 3)
    setting = "optimizer.class" if callable(value) else name
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
