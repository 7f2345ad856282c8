"""The ledger's file: durable, append-only, private, shared by threads, forks and processes."""

from __future__ import annotations

import math
import os
import pickle
import random
import shutil
import signal
import sqlite3
import stat
import tempfile
import threading
import time
from pathlib import Path

import pytest

from botorch_dp.privacy import (
    PrivacyBudget,
    PrivacyError,
    PrivacyLedger,
    ledger_file,
)
from tests.privacy.charging import accepts, gaussian, in_child, pure, succeeded

ASSETS = Path(__file__).parent / "assets"


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
    with pytest.raises(PrivacyError, match="pass `budget=`"):
        PrivacyLedger()
    with pytest.raises(TypeError, match="`path`"):
        PrivacyLedger(PrivacyBudget(1.0))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="`budget`"):
        PrivacyLedger(tmp_path / "a.ledger", 1.0)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="`relation`"):
        PrivacyLedger(budget=PrivacyBudget(1.0), relation="REPLACE_ONE")  # type: ignore[arg-type]
    with pytest.raises(PrivacyError, match="does not exist: create it"):
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


def test_interrupted_creation_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(ledger_file, "_migrate", interrupt)
    with pytest.raises(KeyboardInterrupt):
        PrivacyLedger(tmp_path / "a.ledger", PrivacyBudget(1.0))
    assert list(tmp_path.iterdir()) == []


def test_rows_cannot_be_changed_or_removed(tmp_path: Path) -> None:
    path = tmp_path / "a.ledger"
    with PrivacyLedger(path, PrivacyBudget(1.0, 1e-6)) as ledger:
        ledger.charge(pure(0.5), key="k")
        ledger.charge(pure(0.25))
    with sqlite3.connect(path) as connection:
        columns = "number, charged_at, label, guarantee, epsilon, delta, mu, digest, key"
        copied = f"SELECT {columns.replace('epsilon', '0.0')} FROM charge WHERE number = 1"
        for statement in (
            "UPDATE charge SET epsilon = 0.0",
            "DELETE FROM charge",
            "DELETE FROM charge WHERE number = 2",
            f"INSERT OR REPLACE INTO charge ({columns}) {copied}",
            f"INSERT OR REPLACE INTO charge ({columns}) {copied.replace('number,', '3,', 1)}",
            "UPDATE budget SET epsilon = 9.0",
            "DELETE FROM budget",
            "INSERT OR REPLACE INTO budget SELECT 1, 9.0, delta, NULL, NULL, '' FROM budget",
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


def test_flipped_bytes_are_noticed_or_harmless(tmp_path: Path) -> None:
    path, damaged = tmp_path / "a.ledger", tmp_path / "b.ledger"
    with PrivacyLedger(path, PrivacyBudget(1.0, 1e-6)) as ledger:
        for _ in range(20):
            ledger.charge(pure(0.01), label="a label")
        spent, entries = ledger.spent(), ledger.entries()
    whole = path.read_bytes()
    rng = random.Random(0)
    noticed = 0
    for _ in range(150):
        broken = bytearray(whole)
        start = rng.randrange(len(broken))
        for place in range(start, min(start + 16, len(broken))):
            broken[place] ^= rng.randrange(1, 256)
        damaged.write_bytes(bytes(broken))
        try:
            with PrivacyLedger(damaged) as ledger:
                assert ledger.spent() == spent and ledger.entries() == entries
        except PrivacyError as error:
            assert "damaged" in str(error) or "version" in str(error) or "no privacy" in str(error)
            noticed += 1
    assert noticed > 20


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


def test_file_from_a_newer_version(tmp_path: Path) -> None:
    path = tmp_path / "a.ledger"
    PrivacyLedger(path, PrivacyBudget(1.0)).close()
    connection = sqlite3.connect(path)
    connection.execute(f"PRAGMA user_version = {ledger_file.SCHEMA_VERSION + 1}")
    connection.close()
    with pytest.raises(PrivacyError, match="newer version of botorch_dp: upgrade"):
        PrivacyLedger(path, PrivacyBudget(1.0))


def test_file_of_the_first_version_is_migrated(tmp_path: Path) -> None:
    path = tmp_path / "old.ledger"
    shutil.copy(ASSETS / "ledger_v1.sqlite", path)
    children = [in_child(lambda: PrivacyLedger(path).close()) for _ in range(4)]
    assert all([succeeded(child) for child in children])
    with PrivacyLedger(path, PrivacyBudget(2.0, 1e-5, summed=(0.5, 0.0))) as ledger:
        balance = ledger.balance()
        assert balance is not None and balance.summed_spent == (0.125, 0.0)
        assert balance.mu_spent == pytest.approx(math.sqrt(0.02))
        assert [entry.label for entry in ledger.entries()] == [
            "best score",
            "first evaluation",
            "second evaluation",
        ]
        first = ledger.charge(pure(0.25), key="k")
        assert ledger.charge(pure(0.25), key="k") == first and first.number == 4
    with PrivacyLedger(path) as ledger:
        assert len(ledger.entries()) == 4
    with sqlite3.connect(path) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (2,)
    connection.close()


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
                with pytest.raises(PrivacyError, match=r"cannot be written.*write permission"):
                    PrivacyLedger(folder / name, PrivacyBudget(1.0))

        assert succeeded(in_child(open_both))
    finally:
        folder.chmod(0o755)
        shutil.rmtree(folder)


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


def test_file_held_by_another_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger_file, "BUSY_SECONDS", 0.05)
    path = tmp_path / "a.ledger"
    with PrivacyLedger(path, PrivacyBudget(1.0)) as ledger:
        holder = sqlite3.connect(path, isolation_level=None)
        holder.execute("BEGIN EXCLUSIVE")
        with pytest.raises(PrivacyError, match="Another process has held the ledger"):
            ledger.charge(pure(0.1))
        holder.execute("ROLLBACK")
        holder.close()
        assert accepts(ledger, pure(1.0))


def test_closed_and_pickled(tmp_path: Path) -> None:
    path = tmp_path / "a.ledger"
    with PrivacyLedger(path, PrivacyBudget(1.0)) as ledger:
        ledger.charge(pure(0.5))
        with pickle.loads(pickle.dumps(ledger)) as twin:
            twin.charge(pure(0.25))
        assert ledger.spent() == (0.75, 0.0)
        assert repr(ledger) == (
            f"PrivacyLedger({str(path)!r}, PrivacyBudget(epsilon=1.0, delta=0.0, summed=None), "
            "spent=(0.75, 0.0))"
        )
    assert repr(ledger).endswith("closed)")
    with pytest.raises(PrivacyError, match="closed: open it again"):
        ledger.charge(pure(0.1))
    with pytest.raises(PrivacyError, match="cannot be pickled"):
        pickle.dumps(PrivacyLedger(budget=PrivacyBudget(1.0)))


# Many at once, and sudden ends


def test_kills_forget_nothing(tmp_path: Path) -> None:
    """50 processes are killed at random moments; every acknowledged charge is still there."""
    path = tmp_path / "a.ledger"
    budget = PrivacyBudget(1e4, 1e-6)
    PrivacyLedger(path, budget).close()
    rng = random.Random(0)
    acknowledged, written = 0, 0
    for _ in range(50):
        reading, writing = os.pipe()

        def charge_until_killed(end: int = writing) -> None:
            with PrivacyLedger(path, budget) as ledger:
                os.write(end, b"r")
                while True:
                    ledger.charge(pure(0.125))
                    os.write(end, b".")

        child = in_child(charge_until_killed)
        os.close(writing)
        assert os.read(reading, 1) == b"r"
        seen, started = 0, time.perf_counter()
        for _ in range(rng.randrange(1, 4)):
            seen += len(os.read(reading, 1))
        # Anywhere within the next charge, however slow the disk is today.
        time.sleep(rng.random() * (time.perf_counter() - started) / seen)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        while chunk := os.read(reading, 4096):
            seen += len(chunk)
        os.close(reading)
        with PrivacyLedger(path) as ledger:
            now = len(ledger.entries())
            # The charge under way may or may not have reached the disk.
            assert seen <= now - written <= seen + 1
            assert ledger.spent() == (0.125 * now, 0.0)
        acknowledged, written = acknowledged + seen, now
    assert acknowledged >= 50


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


def test_one_key_from_many_processes_is_one_charge(tmp_path: Path) -> None:
    path = tmp_path / "a.ledger"

    def charge() -> None:
        with PrivacyLedger(path, PrivacyBudget(1.0)) as ledger:
            ledger.charge(pure(0.75), key="the same")

    assert all([succeeded(child) for child in [in_child(charge) for _ in range(4)]])
    with PrivacyLedger(path) as ledger:
        assert len(ledger.entries()) == 1


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


def test_forks_share_a_file_amid_charges(tmp_path: Path) -> None:
    """Children are forked while a thread of the parent charges the same object."""
    with PrivacyLedger(tmp_path / "a.ledger", PrivacyBudget(100.0)) as ledger:
        stop = threading.Event()
        by_thread = 0

        def charge_on() -> None:
            nonlocal by_thread
            while not stop.is_set():
                ledger.charge(pure(1 / 64))
                by_thread += 1

        def charge_once() -> None:
            ledger.charge(pure(1 / 64))

        thread = threading.Thread(target=charge_on)
        thread.start()
        try:
            for _ in range(10):
                children = [in_child(charge_once) for _ in range(2)]
                assert all([succeeded(child) for child in children])
        finally:
            stop.set()
            thread.join()
        assert len(ledger.entries()) == by_thread + 20
        assert ledger.spent() == ((by_thread + 20) / 64, 0.0)


def test_fork_cannot_spend_a_ledger_in_memory_twice() -> None:
    with PrivacyLedger(budget=PrivacyBudget(1.0)) as ledger:

        def charge() -> None:
            with pytest.raises(PrivacyError, match="forked process"):
                ledger.charge(pure(0.5))

        assert succeeded(in_child(charge))
        assert accepts(ledger, pure(1.0))
