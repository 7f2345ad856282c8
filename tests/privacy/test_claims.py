"""Who holds a claim, and when it is free again: boundary cases of the release store."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NoReturn

import pytest

from botorch_dp import _files
from botorch_dp.privacy import PrivacyBudget, PrivacyLedger, runs
from tests.one_draw import in_fork
from tests.privacy.charging import in_child, pure, succeeded

PRICE = pure(0.125)
BUDGET = PrivacyBudget(1.0)


def failing() -> NoReturn:
    raise ArithmeticError


def test_a_draw_that_failed_in_a_living_process_does_not_block_another(tmp_path: Path) -> None:
    path = str(tmp_path / "ledger.sqlite")
    ledger = PrivacyLedger(path, BUDGET)
    with pytest.raises(ArithmeticError):
        ledger.release(PRICE, failing, key="value")

    def work() -> None:
        assert PrivacyLedger(path, BUDGET).release(PRICE, lambda: 7.0, key="value") == 7.0

    assert succeeded(in_child(work))
    assert ledger.release(PRICE, failing, key="value") == 7.0
    assert ledger.spent()[0] == 0.25, "what failed may have been drawn"


def test_nothing_is_left_at_work(tmp_path: Path) -> None:
    """Not even where the failure itself could not be written down."""
    before = set(runs._AT_WORK)
    ledger = PrivacyLedger(str(tmp_path / "ledger.sqlite"), BUDGET)
    ledger.release(PRICE, lambda: 1.0, key="first")
    assert before == runs._AT_WORK
    with pytest.raises(ArithmeticError):
        ledger.release(PRICE, failing, key="second")
    assert before == runs._AT_WORK


def test_a_process_is_known_by_its_start_and_gone_when_it_has_ended() -> None:
    time.sleep(0.05)  # starts are counted in hundredths of a second
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        ours, others = _files._started(os.getpid()), _files._started(child.pid)
        assert ours is not None
        assert others is not None
        assert ours != others
        assert ours == _files._started(os.getpid())
    finally:
        child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert _files._started(child.pid) is None, "a zombie is nobody"
    child.wait()
    assert _files._started(child.pid) is None


def test_a_process_looks_up_its_own_start_once_and_a_fork_its_own() -> None:
    time.sleep(0.05)
    ours = _files._started(os.getpid())
    looked_up = _files._own_start.cache_info().misses
    assert _files._started(os.getpid()) == ours
    assert _files._own_start.cache_info().misses == looked_up

    start, read = in_fork(lambda: (_files._started(os.getpid()), _files._start_of(os.getpid())))
    assert start == read != ours


def test_a_process_that_ends_while_its_start_is_read_is_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Linux lets its file be opened, and then finds nobody to tell about."""
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)

    def late(path: str) -> Any:
        file = Path(path).open()  # noqa: SIM115 - for the caller
        child.kill()
        child.wait()
        return file

    monkeypatch.setattr(_files, "open", late, raising=False)
    assert _files._started(child.pid) is None
