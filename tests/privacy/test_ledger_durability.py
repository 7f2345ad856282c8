"""Charges in storage: exact sums, one decision at a time, nothing altered, lost or spent twice."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sqlite3
import threading
from fractions import Fraction
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


def test_rows_are_numbered_and_summed_exactly() -> None:
    storage = LedgerFile(":memory:", BUDGET)
    assert storage.totals().count == 0 and storage.rows() == []
    rows = [append(storage, 0.1, 1e-9, 0.5), append(storage, 1e-20, 0.0, 0.25, key="k")]
    assert [row[0] for row in rows] == [1, 2]
    assert storage.rows() == rows
    totals = storage.totals()
    assert totals.count == 2
    assert totals.epsilon == Fraction(0.1) + Fraction(1e-20)
    assert totals.delta == Fraction(1e-9)
    assert totals.mu_squared == Fraction(5, 16)
    assert [row[-1] for row in storage.rows()] == [None, "k"]


def test_digest_by_hand() -> None:
    row = (1, "then", "a label", "{}", 0.5, 0.0, 0.25)
    fields = ["before", 1, "then", "a label", "{}", "0x1.0000000000000p-1", "0x0.0p+0"]
    fields += ["0x1.0000000000000p-2"]

    def sha256(values: list[object]) -> str:
        return hashlib.sha256(json.dumps(values).encode()).hexdigest()

    assert row_digest("before", (*row, None)) == sha256([*fields, None])
    assert row_digest("before", (*row, "k")) == sha256([*fields, "k"])
    assert row_digest("other", (*row, None)) != row_digest("before", (*row, None))


def test_each_handle_sees_what_others_append(tmp_path: Path) -> None:
    path = str(tmp_path / "a.ledger")
    first, second = LedgerFile(path, BUDGET), LedgerFile(path, None)
    assert second.budget == BUDGET
    append(first, 0.25, 0.0, 0.0)
    assert second.totals().epsilon == Fraction(1, 4)
    append(second, 0.5, 0.0, 0.0)
    append(first, 0.125, 0.0, 0.0)
    assert first.totals() == second.totals()
    assert [row[4] for row in second.rows()] == [0.25, 0.5, 0.125]
    for storage in (first, second):
        storage.close()
        assert storage.closed


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


def test_a_choice_is_made_once() -> None:
    storage = LedgerFile(":memory:", BUDGET)
    with storage.transaction():
        storage.settle("summed", "all")
    with pytest.raises(PrivacyError, match="only grows"), storage.transaction():
        storage.settle("summed", "nothing")
    assert storage.settled() == {"summed": "all"}


def test_a_storage_that_cannot_be_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PrivacyError, match=r"no ledger at .*`budget="):
        LedgerFile(str(tmp_path / "a.ledger"), None)
    with pytest.raises(PrivacyError, match="Pass `budget="):
        LedgerFile(":memory:", None)
    storage = LedgerFile(":memory:", BUDGET)
    storage.close()
    storage.close()
    for use in (storage.totals, storage.rows, lambda: append(storage, 0.1, 0.0, 0.0)):
        with pytest.raises(PrivacyError, match="closed: open it again"):
            use()


def test_interrupted_charge_is_no_charge(monkeypatch: pytest.MonkeyPatch) -> None:
    with PrivacyLedger(budget=PrivacyBudget(1.0, 1e-6)) as ledger:
        with monkeypatch.context() as patch:

            def interrupt(*_: object, **__: object) -> None:
                raise KeyboardInterrupt

            patch.setattr(ledger._file, "append", interrupt)
            with pytest.raises(KeyboardInterrupt):
                ledger.charge(gaussian(0.1))
        assert ledger.entries() == [] and ledger.compartments() is None
        assert accepts(ledger, pure(1.0))


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


@pytest.mark.parametrize("in_memory", [True, False])
def test_threads_share_a_ledger(tmp_path: Path, in_memory: bool) -> None:
    path = ":memory:" if in_memory else str(tmp_path / "a.ledger")
    counts: list[int] = []
    with PrivacyLedger(path, PrivacyBudget(1.0, 1e-6)) as ledger:

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
