"""The ledger's file: private, append-only, and refused with a reason when it cannot be used."""

from __future__ import annotations

import os
import shutil
import sqlite3
import stat
import tempfile
from pathlib import Path

import pytest

from botorch_dp import _files
from botorch_dp.privacy import PrivacyBudget, PrivacyError, PrivacyLedger
from tests.privacy.charging import accepts, in_child, pure, succeeded


def test_opened_with_another_budget(tmp_path: Path) -> None:
    path = tmp_path / "a.ledger"
    PrivacyLedger(path, PrivacyBudget(1.0, 1e-6, summed=0.5)).close()
    PrivacyLedger(path, PrivacyBudget(1.0, 1e-6, summed=(0.5, 5e-7))).close()
    for other in (
        PrivacyBudget(2.0, 1e-6, summed=0.5),
        PrivacyBudget(1.0, 1e-5, summed=0.5),
        PrivacyBudget(1.0, 1e-6),
        PrivacyBudget(1.0, 1e-6, summed=1),
    ):
        with pytest.raises(PrivacyError, match="but was opened with"):
            PrivacyLedger(path, other)
    with PrivacyLedger(path) as ledger:
        assert ledger.budget == PrivacyBudget(1.0, 1e-6, summed=0.5)


def test_wrong_arguments(tmp_path: Path) -> None:
    with pytest.raises(PrivacyError, match=r"no ledger at .* `budget="):
        PrivacyLedger(tmp_path / "a.ledger")
    with pytest.raises(PrivacyError, match="no ledger at :memory:"):
        PrivacyLedger()
    with pytest.raises(TypeError, match="`path`"):
        PrivacyLedger(PrivacyBudget(1.0))  # type: ignore[arg-type]
    with pytest.raises(PrivacyError, match="does not exist: create"):
        PrivacyLedger(tmp_path / "missing" / "a.ledger", PrivacyBudget(1.0))
    with pytest.raises(PrivacyError, match="not a file"):
        PrivacyLedger(tmp_path, PrivacyBudget(1.0))
    assert list(tmp_path.iterdir()) == []


def test_only_the_owner_can_read_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    modes: list[int] = []
    connect = sqlite3.connect

    def watched(database: str, **options: object) -> sqlite3.Connection:
        modes.extend(stat.S_IMODE(file.stat().st_mode) for file in tmp_path.iterdir())
        return connect(database, **options)  # type: ignore[call-overload]

    monkeypatch.setattr(sqlite3, "connect", watched)
    old = os.umask(0)
    try:
        with PrivacyLedger(tmp_path / "a.ledger", PrivacyBudget(1.0)) as ledger:
            ledger.charge(pure(0.1))
            modes.extend(stat.S_IMODE(file.stat().st_mode) for file in tmp_path.iterdir())
    finally:
        os.umask(old)
    assert len(modes) >= 3 and set(modes) == {0o600}
    assert [file.name for file in tmp_path.iterdir()] == ["a.ledger"]


def test_rows_cannot_be_changed_or_removed(tmp_path: Path) -> None:
    path = tmp_path / "a.ledger"
    with PrivacyLedger(path, PrivacyBudget(1.0, 1e-6)) as ledger:
        ledger.release(pure(0.5), lambda: 1.0, key="k")
        ledger.charge(pure(0.25))
    with sqlite3.connect(path) as connection:
        columns = "number, charged_at, label, guarantee, epsilon, delta, mu, digest, key"
        copied = f"SELECT {columns.replace('epsilon', '0.0')} FROM charge WHERE number = 1"
        for statement in (
            "UPDATE charge SET epsilon = 0.0",
            "DELETE FROM charge",
            "DELETE FROM charge WHERE number = 2",
            f"INSERT OR REPLACE INTO charge ({columns}) {copied}",
            "UPDATE budget SET epsilon = 9.0",
            "DELETE FROM budget",
            "INSERT OR REPLACE INTO budget SELECT 1, 9.0, delta, NULL, NULL, 0 FROM budget",
            "UPDATE settled SET value = 'nothing'",
            "DELETE FROM settled",
            "INSERT OR REPLACE INTO settled VALUES ('summed', 'nothing')",
        ):
            with pytest.raises(sqlite3.IntegrityError, match="only grows"):
                connection.execute(statement)
        for amount in ("-0.5", "9e999", "NULL", "'much'"):
            with pytest.raises(sqlite3.IntegrityError, match=r"CHECK|NOT NULL"):
                connection.execute(
                    "INSERT INTO charge (number, charged_at, label, guarantee, epsilon, delta, "
                    f"mu, digest) VALUES (3, '', '', '', {amount}, 0.0, 0.0, '')"
                )
    connection.close()
    with PrivacyLedger(path) as ledger:
        assert ledger.spent() == (0.75, 0.0)


def test_what_is_no_ledger_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.ledger"
    with PrivacyLedger(path, PrivacyBudget(1.0)) as ledger:
        for _ in range(50):
            ledger.charge(pure(0.01))
    whole = path.read_bytes()
    for content in (b"", b"not a database" * 500, whole[: len(whole) // 2], whole[:100]):
        path.write_bytes(content)
        with pytest.raises(PrivacyError, match=r"damaged .* count the whole budget as spent"):
            PrivacyLedger(path, PrivacyBudget(1.0)).spent()
    path.unlink()
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE t (x)")
    connection.commit()
    connection.close()
    with pytest.raises(PrivacyError, match="no privacy ledger"):
        PrivacyLedger(path, PrivacyBudget(1.0))


def test_read_only_folder() -> None:
    folder = Path(tempfile.mkdtemp())
    try:
        with PrivacyLedger(folder / "a.ledger", PrivacyBudget(1.0)) as ledger:
            ledger.charge(pure(0.1))
        (folder / "a.ledger").chmod(0o666)
        folder.chmod(0o555)

        def open_both() -> None:
            if os.geteuid() == 0:  # whom no permission stops
                os.setuid(65534)
            for name in ("a.ledger", "new.ledger"):
                with pytest.raises(PrivacyError, match="your write permission"):
                    PrivacyLedger(folder / name, PrivacyBudget(1.0)).charge(pure(0.1))

        assert succeeded(in_child(open_both))
    finally:
        folder.chmod(0o755)
        shutil.rmtree(folder)


def test_file_held_by_another_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_files, "BUSY_SECONDS", 0.05)
    path = tmp_path / "a.ledger"
    with PrivacyLedger(path, PrivacyBudget(1.0)) as ledger:
        holder = sqlite3.connect(path, isolation_level=None)
        holder.execute("BEGIN EXCLUSIVE")
        with pytest.raises(PrivacyError, match="Another process has held the privacy ledger"):
            ledger.charge(pure(0.1))
        holder.execute("ROLLBACK")
        holder.close()
        assert accepts(ledger, pure(1.0))
