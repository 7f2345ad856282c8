"""Charges in storage: exact sums, one decision at a time, nothing altered, lost or spent twice."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sqlite3
import threading
from pathlib import Path

import pytest

from botorch_dp.privacy import PrivacyBudget, PrivacyError, PrivacyLedger
from botorch_dp.privacy.ledger import LedgerFile, row_digest
from tests.privacy.charging import accepts, gaussian, in_child, pure, succeeded

BUDGET = PrivacyBudget(1.0, 1e-6)


def append(storage: LedgerFile, *cost: float, key: str | None = None) -> tuple:
    with storage.transaction():
        return storage.append("a label", "{}", key, cost)  # type: ignore[arg-type]


# Rows and sums


def test_digest_by_hand() -> None:
    row = (1, "then", "a label", "{}", 0.5, 0.0, 0.25)
    fields = ["before", 1, "then", "a label", "{}", "0x1.0000000000000p-1", "0x0.0p+0"]
    fields += ["0x1.0000000000000p-2"]

    def sha256(values: list[object]) -> str:
        return hashlib.sha256(json.dumps(values).encode()).hexdigest()

    assert row_digest("before", (*row, None)) == sha256([*fields, None])
    assert row_digest("before", (*row, "k")) == sha256([*fields, "k"])
    assert row_digest("other", (*row, None)) != row_digest("before", (*row, None))


def test_a_failed_decision_leaves_nothing() -> None:
    storage = LedgerFile(":memory:", BUDGET)
    before = storage.totals()
    with pytest.raises(ZeroDivisionError), storage.transaction():
        storage.settle("summed", "all")
        storage.append(label="", guarantee="{}", key=None, cost=(0.5, 0.0, 0.0))
        raise ZeroDivisionError
    assert storage.settled() == {} and storage.rows() == []
    assert storage.totals() == before
    assert append(storage, 0.25, 0.0, 0.0)[0] == 1


# Altered, damaged and replaced files


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE charge SET epsilon = 0.001 WHERE number = 2",
        "UPDATE charge SET mu = 0.0 WHERE number = 1",
        "DELETE FROM charge WHERE number = 2",
        "UPDATE budget SET epsilon = 100.0",
        "UPDATE settled SET value = 'all' WHERE name = 'summed'",
    ],
)
def test_altered_numbers_are_noticed(tmp_path: Path, statement: str) -> None:
    """Even if somebody removes the triggers first."""
    path = tmp_path / "a.ledger"
    with PrivacyLedger(path, PrivacyBudget(2.0, 1e-6)) as ledger:
        for _ in range(3):
            ledger.charge(gaussian(0.1))
    connection = sqlite3.connect(path)
    for table in ("charge", "budget", "settled"):
        for event in ("update", "delete"):
            connection.execute(f"DROP TRIGGER {table}_no_{event}")
    connection.execute(statement)
    connection.commit()
    connection.close()
    with PrivacyLedger(path) as ledger, pytest.raises(PrivacyError, match="was altered"):
        ledger.charge(gaussian(0.1))


def test_removed_or_replaced_file_is_noticed(tmp_path: Path) -> None:
    path, backup = tmp_path / "a.ledger", tmp_path / "copy"
    with PrivacyLedger(path, PrivacyBudget(1.0)) as ledger:
        ledger.charge(pure(0.5))
        shutil.copy(path, backup)
        with PrivacyLedger(backup) as copied:
            assert copied.spent() == (0.5, 0.0)
        ledger.charge(pure(0.25))
        os.replace(backup, path)
        with pytest.raises(PrivacyError, match="removed or replaced"):
            ledger.charge(pure(0.5))
        path.unlink()
        with pytest.raises(PrivacyError, match="removed or replaced"):
            ledger.charge(pure(0.5))


# Many at once, and sudden ends


def test_four_processes_never_overspend(tmp_path: Path) -> None:
    path = tmp_path / "a.ledger"
    budget = PrivacyBudget(1.0, 1e-6)
    counts = []

    def charge_to_the_end(end: int) -> None:
        with PrivacyLedger(path, budget) as ledger:
            count = 0
            while accepts(ledger, pure(1 / 64)):
                count += 1
            os.write(end, bytes([count]))

    reading, writing = os.pipe()
    children = [in_child(lambda: charge_to_the_end(writing)) for _ in range(4)]
    assert all([succeeded(child) for child in children])
    os.close(writing)
    counts = list(os.read(reading, 100))
    os.close(reading)
    assert len(counts) == 4 and sum(counts) == 64
    with PrivacyLedger(path) as ledger:
        assert ledger.spent() == (1.0, 0.0) and len(ledger.entries()) == 64


def test_threads_share_a_ledger() -> None:
    counts: list[int] = []
    with PrivacyLedger(budget=PrivacyBudget(1.0, 1e-6)) as ledger:

        def charge_to_the_end() -> None:
            count = 0
            while accepts(ledger, pure(1 / 128)):
                count += 1
                ledger.remaining()
            counts.append(count)

        threads = [threading.Thread(target=charge_to_the_end) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sum(counts) == 128 and ledger.spent() == (1.0, 0.0)


def test_fork_cannot_spend_a_ledger_in_memory_twice() -> None:
    with PrivacyLedger(budget=PrivacyBudget(1.0)) as ledger:

        def charge() -> None:
            with pytest.raises(PrivacyError, match="forked process"):
                ledger.charge(pure(0.5))

        assert succeeded(in_child(charge))
        assert accepts(ledger, pure(1.0))
