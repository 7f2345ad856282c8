"""The ledger's file: schema, migrations, how it is created and opened, what can go wrong."""

from __future__ import annotations

import errno
import os
import sqlite3
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from botorch_dp.errors import PrivacyError
from botorch_dp.privacy.budget import PrivacyBudget

MEMORY = ":memory:"
#: Marks an SQLite file as a ledger ("DPBL"): another database is not a damaged ledger.
APPLICATION_ID = 0x4450424C
#: How long a charge waits for other processes, and how often it asks. SQLite's own waiting asks
#: ten times a second in the end, and starves beside a process that charges without a pause.
BUSY_SECONDS = 60.0
POLL_SECONDS = 5e-4

_GROWS = "a privacy ledger only grows: charges are never changed or refunded"
_LARGEST = "1.7976931348623157e308"


def _append_only(table: str, first: str) -> tuple[str, ...]:
    """Triggers that refuse to change or remove rows of ``table``; ``first`` is its identity."""
    refuse = f"BEGIN SELECT RAISE(ABORT, '{_GROWS}'); END"
    return (
        f"CREATE TRIGGER {table}_no_update BEFORE UPDATE ON {table} {refuse}",
        f"CREATE TRIGGER {table}_no_delete BEFORE DELETE ON {table} {refuse}",
        f"CREATE TRIGGER {table}_no_replace BEFORE INSERT ON {table} WHEN {first} {refuse}",
    )


def _amount(column: str) -> str:
    return (
        f"{column} REAL NOT NULL CHECK "
        f"(typeof({column}) = 'real' AND {column} BETWEEN 0 AND {_LARGEST})"
    )


#: Statements that lead from each schema version to the next; their count is the newest version.
MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        "CREATE TABLE budget (id INTEGER PRIMARY KEY CHECK (id = 1), epsilon REAL NOT NULL, "
        "delta REAL NOT NULL, summed_epsilon REAL, summed_delta REAL, created_at TEXT NOT NULL)",
        "CREATE TABLE settled (name TEXT PRIMARY KEY, value TEXT NOT NULL)",
        "CREATE TABLE charge (number INTEGER PRIMARY KEY, charged_at TEXT NOT NULL, "
        f"label TEXT NOT NULL, guarantee TEXT NOT NULL, {_amount('epsilon')}, "
        f"{_amount('delta')}, {_amount('mu')}, digest TEXT NOT NULL)",
        *_append_only("budget", "EXISTS (SELECT 1 FROM budget)"),
        *_append_only("settled", "EXISTS (SELECT 1 FROM settled WHERE name = NEW.name)"),
        *_append_only("charge", "NEW.number <> (SELECT COALESCE(MAX(number), 0) + 1 FROM charge)"),
    ),
    # Version 2: keys, which make a retried charge idempotent.
    (
        "ALTER TABLE charge ADD COLUMN key TEXT",
        "CREATE UNIQUE INDEX charge_key ON charge (key) WHERE key IS NOT NULL",
        "CREATE TRIGGER charge_one_per_key BEFORE INSERT ON charge "
        "WHEN EXISTS (SELECT 1 FROM charge WHERE key = NEW.key) "
        f"BEGIN SELECT RAISE(ABORT, '{_GROWS}'); END",
    ),
)
SCHEMA_VERSION = len(MIGRATIONS)


def connect(database: str) -> sqlite3.Connection:
    """A connection whose commits are on the disk when they return."""
    connection = sqlite3.connect(
        database,
        uri=database != MEMORY,
        timeout=0.0,
        isolation_level=None,
        check_same_thread=False,
    )
    try:
        if database != MEMORY:
            execute(connection, "PRAGMA journal_mode = DELETE")
        connection.execute("PRAGMA synchronous = EXTRA")
        connection.execute("PRAGMA fullfsync = ON")
    except BaseException:
        connection.close()
        raise
    return connection


def execute(
    connection: sqlite3.Connection, statement: str, values: tuple[object, ...] = ()
) -> sqlite3.Cursor:
    """Run a statement as soon as other processes let it run."""
    deadline = time.monotonic() + BUSY_SECONDS
    while True:
        try:
            return connection.execute(statement, values)
        except sqlite3.OperationalError as error:
            if _code(error) != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
        time.sleep(POLL_SECONDS)


def _code(error: sqlite3.Error) -> int:
    """SQLite's primary result code; 0 if Python raised the error."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


def build(connection: sqlite3.Connection, budget: PrivacyBudget) -> None:
    """Make an empty database a ledger of the newest version."""
    connection.execute("BEGIN IMMEDIATE")
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    _migrate(connection, 0)
    connection.execute(
        "INSERT INTO budget VALUES (1, ?, ?, ?, ?, ?)",
        (budget.epsilon, budget.delta, *(budget.share or (None, None)), now()),
    )
    connection.execute("COMMIT")


def _migrate(connection: sqlite3.Connection, version: int) -> None:
    """Bring the schema from ``version`` to the newest. Inside a transaction."""
    for statements in MIGRATIONS[version:]:
        for statement in statements:
            connection.execute(statement)
    connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")


def create_file(path: Path, budget: PrivacyBudget) -> None:
    """Build a ledger aside, readable by its owner only, and link it into place when complete."""
    if not path.parent.is_dir():
        raise PrivacyError(f"The folder {path.parent} does not exist: create it first.")
    with explained(str(path)):
        # mkstemp creates the file exclusively and with mode 0600 before SQLite sees it.
        descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        os.close(descriptor)
        try:
            with closing(connect(Path(temporary).as_uri() + "?mode=rw")) as connection:
                build(connection, budget)
            # Unlike a rename, a link fails if another process was first: that ledger is the one.
            with suppress(FileExistsError):
                os.link(temporary, path)
        finally:
            os.unlink(temporary)
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def open_file(path: str) -> sqlite3.Connection:
    """Connect to an existing ledger, after checking that it is one and bringing it up to date."""
    if not os.path.isfile(path):
        raise PrivacyError(f"{path} is not a file: give the ledger the path of a file.")
    if os.path.getsize(path) == 0:
        raise damaged(path, "it is empty")
    if not os.access(path, os.R_OK | os.W_OK) or not os.access(os.path.dirname(path), os.W_OK):
        raise _read_only(path)
    connection = connect(Path(path).as_uri() + "?mode=rw")
    try:
        if _pragma(connection, "application_id") != APPLICATION_ID:
            raise PrivacyError(f"{path} is an SQLite file but no privacy ledger: check the path.")
        if _pragma(connection, "user_version") > SCHEMA_VERSION:
            raise PrivacyError(
                f"The ledger {path} was written by a newer version of botorch_dp: upgrade "
                "botorch_dp to charge it."
            )
        if _pragma(connection, "quick_check") != "ok":
            raise damaged(path, "SQLite's integrity check fails")
        if _pragma(connection, "user_version") < SCHEMA_VERSION:
            execute(connection, "BEGIN IMMEDIATE")
            # Another process may have been first while this one waited for the lock.
            _migrate(connection, _pragma(connection, "user_version"))
            execute(connection, "COMMIT")
    except BaseException:
        connection.close()
        raise
    return connection


def _pragma(connection: sqlite3.Connection, name: str) -> Any:
    return execute(connection, f"PRAGMA {name}").fetchone()[0]


def now() -> str:
    """The time in UTC, for the record only."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


@contextmanager
def explained(path: str) -> Iterator[None]:
    """Turn errors of SQLite and the file system into sentences that say what to do."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EROFS):
            raise _read_only(path) from error
        raise PrivacyError(
            f"The ledger {path} cannot be created here ({error.strerror}); nothing was charged. "
            "Put it on a local disk with free space."
        ) from error
    except UnicodeDecodeError as error:
        raise damaged(path, "it holds unreadable text") from error
    except sqlite3.Error as error:
        code = _code(error)
        if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
            raise damaged(path, str(error)) from error
        if code == 0:  # raised by Python, which could not decode a text
            raise damaged(path, "it holds unreadable text") from error
        if code in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM):
            raise _read_only(path) from error
        if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            raise PrivacyError(
                f"Another process has held the ledger {path} for {BUSY_SECONDS:g} seconds; nothing "
                "was charged. Try again, or end the process that holds it."
            ) from error
        raise PrivacyError(
            f"The ledger {path} could not be read or written ({error}), so nothing may be "
            "released. Check the disk for space and errors, then try again with the same `key`."
        ) from error


def damaged(path: str, how: str) -> PrivacyError:
    """The error for a file whose sums cannot be trusted."""
    return PrivacyError(
        f"The ledger {path} is damaged ({how}), so what was spent is unknown. Put back a copy "
        "made after the last charge; without one, count the whole budget as spent."
    )


def _read_only(path: str) -> PrivacyError:
    return PrivacyError(
        f"The ledger {path} cannot be written; nothing was charged. Give this process write "
        "permission on the file and on its folder (SQLite keeps its journal there)."
    )
