"""An append-only file of charges, in SQLite.

What must hold, and what makes it hold:

* *A charge that returned is never forgotten.* ``synchronous = EXTRA`` with a rollback journal syncs
  the file, the journal and the folder before ``COMMIT`` returns. No write-ahead log is used, so
  the one file holds everything: a copy made while no charge is running is complete.
* *Nothing is changed or refunded.* Triggers refuse UPDATE, DELETE and the REPLACE that would get
  around them; every row carries the hash of all rows before it, so that a file altered by other
  means is refused as damaged.
* *No two processes decide on the same state.* Decisions are taken inside ``BEGIN IMMEDIATE``.
* *Sums are exact.* Rows are immutable binary floats; each handle adds those it has not seen yet to
  running sums of fractions, so that a charge costs the same after one row and after 10,000.
* *Private from the start.* A new ledger is built in a temporary file of mode 0600 and linked into
  place when it is complete: nobody ever meets half a ledger.
"""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import astuple, dataclass
from fractions import Fraction
from pathlib import Path

from botorch_dp.errors import PrivacyError
from botorch_dp.privacy.budget import Cost, PrivacyBudget, Totals
from botorch_dp.privacy.ledger_file import (
    MEMORY,
    build,
    connect,
    create_file,
    damaged,
    execute,
    explained,
    now,
    open_file,
)


@dataclass(frozen=True)
class ChargeRow:
    """One charge as it is stored; ``guarantee`` is JSON."""

    number: int
    charged_at: str
    label: str
    guarantee: str
    epsilon: float
    delta: float
    mu: float
    key: str | None

    def digest(self, previous: str) -> str:
        """Hash of this row and, through ``previous``, of all before it."""
        numbers = [float(x).hex() for x in (self.epsilon, self.delta, self.mu)]
        fields = [previous, self.number, self.charged_at, self.label, self.guarantee, *numbers]
        # Rows older than version 2 have no key and were hashed without one.
        return _sha256(fields if self.key is None else [*fields, self.key])


_COLUMNS = "number, charged_at, label, guarantee, epsilon, delta, mu, key"


class LedgerStorage:
    """Charges in one file, or in memory. Threads may share it; so may a process and its forks.

    Args:
        path: The file, or ``":memory:"``.
        budget: What a new file is created with; None to open an existing one only.
    """

    def __init__(self, path: str, budget: PrivacyBudget | None) -> None:
        self.path = path if path == MEMORY else os.path.abspath(path)
        self._lock = threading.RLock()
        self._connection: sqlite3.Connection | None = None
        self._identity: tuple[int, int] | None = None
        self._usable = True
        self._totals = Totals()
        if path != MEMORY and not os.path.lexists(self.path):
            if budget is None:
                raise PrivacyError(
                    f"There is no ledger at {self.path}. Pass `budget=PrivacyBudget(epsilon, "
                    "delta)` to create one."
                )
            create_file(Path(self.path), budget)
        elif path == MEMORY and budget is None:
            raise PrivacyError("A ledger in memory is always new: pass `budget=`.")
        with self._lock, explained(self.path):
            if path == MEMORY:
                assert budget is not None
                self._connection = connect(MEMORY)
                build(self._connection, budget)
            self.budget = self._read_budget()
        _forget_nothing_in_forks(self)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Hold the file for one decision; what was appended is durable when the block is left."""
        with self._lock, explained(self.path):
            connection = self._connected()
            try:
                execute(connection, "BEGIN IMMEDIATE")
                yield
                execute(connection, "COMMIT")
            except BaseException:
                if connection.in_transaction:
                    with suppress(sqlite3.Error):
                        connection.execute("ROLLBACK")
                raise

    def settled(self) -> dict[str, str]:
        """Choices made after the file was created, by name."""
        return dict(self._query("SELECT name, value FROM settled"))

    def settle(self, name: str, value: str) -> None:
        """Write down a choice, once and for all. Inside a transaction."""
        self._connected().execute("INSERT INTO settled (name, value) VALUES (?, ?)", (name, value))

    def totals(self) -> Totals:
        """Exact sums over all charges; rows that this handle has seen are not read again."""
        with self._snapshot():
            if self._totals.count == 0:
                # The first charge settles everything, so its hash can vouch for the choices too.
                choices = sorted(self.settled().items())
                self._totals = Totals(digest=_sha256([*astuple(self.budget), choices]))
            rows = self._query(
                f"SELECT {_COLUMNS}, digest FROM charge WHERE number > ? ORDER BY number",
                (self._totals.count,),
            )
            for *columns, digest in rows:
                row = ChargeRow(*columns)
                is_next = row.number == self._totals.count + 1
                if not is_next or row.digest(self._totals.digest) != digest:
                    raise damaged(self.path, f"charge {self._totals.count + 1} was altered")
                self._totals = _plus(self._totals, row, digest)
            return self._totals

    def rows(self) -> list[ChargeRow]:
        """All charges, oldest first."""
        self.totals()
        rows = self._query(f"SELECT {_COLUMNS} FROM charge ORDER BY number")
        return [ChargeRow(*columns) for columns in rows]

    def find(self, key: str) -> ChargeRow | None:
        """The charge made under ``key``, if any."""
        rows = self._query(f"SELECT {_COLUMNS} FROM charge WHERE key = ?", (key,))
        return ChargeRow(*rows[0]) if rows else None

    def append(self, *, label: str, guarantee: str, key: str | None, cost: Cost) -> ChargeRow:
        """Add a charge of ``cost = (epsilon, delta, mu)``. Inside a transaction."""
        totals = self.totals()
        row = ChargeRow(totals.count + 1, now(), label, guarantee, *cost, key)
        self._connected().execute(
            f"INSERT INTO charge ({_COLUMNS}, digest) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (*astuple(row), row.digest(totals.digest)),
        )
        return row

    def close(self) -> None:
        """Release the file. The charges stay."""
        with self._lock:
            self._usable = False
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    @property
    def closed(self) -> bool:
        """Whether :meth:`close` was called."""
        return not self._usable

    @contextmanager
    def _snapshot(self) -> Iterator[None]:
        """Let several reads see one state: that of the running transaction, or of their own."""
        with self._lock, explained(self.path):
            connection = self._connected()
            if connection.in_transaction:
                yield
                return
            try:
                connection.execute("BEGIN")
                yield
            finally:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")

    def _query(self, statement: str, values: tuple[object, ...] = ()) -> list[tuple]:
        with self._lock, explained(self.path):
            return execute(self._connected(), statement, values).fetchall()

    def _connected(self) -> sqlite3.Connection:
        """The connection of this process, to the file that was opened first."""
        if not self._usable:
            raise PrivacyError(f"The ledger {self.path} is closed: open it again to go on.")
        if self.path == MEMORY:
            if self._connection is None:
                raise PrivacyError(
                    "A ledger in memory cannot be shared with a forked process, which would spend "
                    "the budget a second time. Give the ledger a path."
                )
            return self._connection
        if self._connection is None:
            self._connection = open_file(self.path)
        identity = _identity(self.path)
        if self._identity is None:
            self._identity = identity
        if identity != self._identity:
            raise PrivacyError(
                f"The ledger {self.path} was removed or replaced while it was open, so charges "
                "may be lost. Put the file back, or count its whole budget as spent."
            )
        return self._connection

    def _read_budget(self) -> PrivacyBudget:
        rows = self._query("SELECT epsilon, delta, summed_epsilon, summed_delta FROM budget")
        if len(rows) != 1:
            raise damaged(self.path, "it states no budget")
        epsilon, delta, *share = rows[0]
        try:
            return PrivacyBudget(epsilon, delta, summed=None if None in share else tuple(share))
        except (TypeError, ValueError) as error:
            raise damaged(self.path, "it states an impossible budget") from error

    def _leave_to_parent(self) -> None:
        """In a fork: SQLite connections do not survive one, so keep it unused and unclosed."""
        if self._connection is not None:
            _INHERITED.append(self._connection)
            self._connection = None


def _plus(totals: Totals, row: ChargeRow, digest: str) -> Totals:
    return Totals(
        count=row.number,
        epsilon=totals.epsilon + Fraction(row.epsilon),
        delta=totals.delta + Fraction(row.delta),
        mu_squared=totals.mu_squared + Fraction(row.mu) ** 2,
        digest=digest,
    )


def _identity(path: str) -> tuple[int, int] | None:
    try:
        status = os.stat(path)
    except FileNotFoundError:
        return None
    return status.st_dev, status.st_ino


def _sha256(fields: list[object]) -> str:
    return hashlib.sha256(json.dumps(fields).encode()).hexdigest()


_REGISTRY = threading.RLock()
_STORAGES: weakref.WeakSet[LedgerStorage] = weakref.WeakSet()
_INHERITED: list[sqlite3.Connection] = []
_HELD_FOR_FORK: list[LedgerStorage] = []
_hooked = False


def _forget_nothing_in_forks(storage: LedgerStorage) -> None:
    """Let ``storage`` survive ``os.fork``: never amid a charge, never on a shared connection."""
    global _hooked
    with _REGISTRY:
        _STORAGES.add(storage)
        if not _hooked and hasattr(os, "register_at_fork"):
            os.register_at_fork(
                before=_before_fork,
                after_in_parent=_after_fork_in_parent,
                after_in_child=_after_fork_in_child,
            )
            _hooked = True


def _before_fork() -> None:
    _REGISTRY.acquire()
    for storage in list(_STORAGES):
        storage._lock.acquire()
        _HELD_FOR_FORK.append(storage)


def _after_fork_in_parent() -> None:
    while _HELD_FOR_FORK:
        _HELD_FOR_FORK.pop()._lock.release()
    _REGISTRY.release()


def _after_fork_in_child() -> None:
    for storage in _HELD_FOR_FORK:
        storage._leave_to_parent()
    _after_fork_in_parent()
