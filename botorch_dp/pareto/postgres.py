"""Where hosts share a study: a PostgreSQL database.

The statements of :mod:`.storage` are SQLite's; :class:`_Connection` says them to PostgreSQL. What
SQLite's file and its locks give, and what gives it here:

* *What was committed stays.* ``synchronous_commit`` is on. A commit whose answer is lost is not
  guessed about: the server is asked what became of the transaction, by its number.
* *One writer at a time.* Whoever writes locks the table ``study`` first.
* *Nobody meets half a study.* Its schema is created and filled in one transaction.
* *Who ended has no claims.* Each process holds a session lock named by its token, which the server
  drops with the connection. Who is not connected gets :data:`RETURN_SECONDS` to come back, by the
  clock of the process that waits for it: clocks of two machines are never compared.
* *A password is told to the server only*: never to an error, a ``repr`` or a log.
"""

from __future__ import annotations

import functools
import hashlib
import math
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from botorch_dp._addresses import Address, driver
from botorch_dp._files import BUSY_SECONDS, Database, FileKind, survive_forks
from botorch_dp.pareto.problem import StudyError

if TYPE_CHECKING:
    import psycopg

#: How long an owner may be without a connection before others take over what it has claimed.
RETURN_SECONDS = 10.0
#: How often a connection is tried while nothing else is asked of it, and made again if it broke.
_KEEP_SECONDS = 2.0
#: How long a server may be out of reach in the midst of a study.
PATIENCE_SECONDS = 60.0
_RETRY_SECONDS = 0.2
_SESSION = (
    "SELECT set_config('synchronous_commit', 'on', false) "
    "WHERE current_setting('synchronous_commit') IN ('off', 'local')",
    "SET tcp_keepalives_idle = 10",
    "SET tcp_keepalives_interval = 5",
    "SET tcp_keepalives_count = 4",
    f"SET lock_timeout = {int(1000 * BUSY_SECONDS)}",
)
_OLDEST = 13
#: A study has a schema of its own, whose name begins with this.
_PREFIX = "dpareto_"
_HELD = (
    "SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND granted AND objsubid = 1 "
    "AND (classid::bigint << 32) | objid::bigint = ? "
    "AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
)


class DisconnectedError(StudyError):
    """The connection broke in the midst of a transaction, of which nothing was kept."""


class UnreachableError(StudyError):
    """The server cannot be reached, or lets nobody in."""


class Server(Database):
    """A database of a kind in a schema of a PostgreSQL database. Threads may share it.

    Args:
        address: ``postgresql://user@host:port/database?study=name``; other settings of libpq may
            follow (``&sslmode=require``).
        kind: What it must be.
        create: Fills a new one, inside its first transaction; None reads an existing one only.
        token: Names this process to all others.
    """

    def __init__(
        self,
        address: str,
        kind: FileKind,
        create: Callable[[Any], None] | None,
        *,
        token: str,
    ) -> None:
        self.kind = kind
        self.lock = threading.RLock()
        self._pid = os.getpid()
        self._connection: _Connection | None = None
        self._fill = create
        self._key = _lock_key(token)
        self._absent: dict[str, float] = {}
        self._user = ""
        self._address = Address.parsed(address)
        self.path = self._address.shown
        self._schema = _PREFIX + self._address.study
        self.created = False
        with self.explained():
            self._connection = self._connect(is_new=True)
        survive_forks(self)
        if create is not None:
            keeper = threading.Thread(target=_keep, args=(weakref.ref(self),), daemon=True)
            keeper.start()

    def close(self) -> None:
        """Let the server go. What was committed stays."""
        with self.lock:
            self._closed = True
            if self._connection is not None and self._pid == os.getpid():
                self._connection.close()
                self._connection = None

    def changes(self) -> object:
        """Another word whenever somebody has written: what a transaction could see now."""
        return self.query("SELECT pg_current_snapshot()::text")

    def absent(self, token: str) -> float | None:
        """Seconds for which a process is known to be without a connection; None if it has one."""
        if self.query(_HELD, (_lock_key(token),)):
            self._absent.pop(token, None)
            return None
        return time.monotonic() - self._absent.setdefault(token, time.monotonic())

    def execute(self, statement: str, values: Sequence[object] = ()) -> Any:
        """Run a statement; outside of transactions also over a new connection, if one broke."""
        connection = self._connected()
        inside = connection.in_transaction
        try:
            return connection.execute(statement, values)
        except driver().OperationalError:
            if inside or not connection.lost:
                raise
        return self._connected().execute(statement, values)

    @contextmanager
    def explained(self) -> Iterator[None]:
        """Turn errors of the server into sentences that say what to do."""
        try:
            yield
        except driver().Error as error:
            # Not as its cause: what a driver says may quote rows, or an address.
            raise self._explanation(error) from None

    def _explanation(self, error: psycopg.Error) -> Exception:
        errors = driver().errors
        said = self._address.said(error)
        if self._connection is not None and self._connection.lost:
            return self._disconnected(said)
        if isinstance(error, errors.InsufficientPrivilege):
            return self.error(
                f"`storage` {self.path} may not be used by role {self._user!r} ({said}). Let the "
                "owner of the database grant it CREATE there, or the owner of the study ALL on the "
                f"schema {self._schema} and on the tables in it."
            )
        if isinstance(error, errors.LockNotAvailable | errors.QueryCanceled):
            return self.error(
                f"Another process has held the {self.kind.name} {self.path} for {BUSY_SECONDS:g} "
                "seconds; nothing was written. Try again, or end the process that holds it."
            )
        if isinstance(error, errors.ReadOnlySqlTransaction):
            return self.error(
                f"`storage` {self.path} is read-only ({said}). Give the address of the primary."
            )
        return self.error(
            f"The {self.kind.name} {self.path} could not be read or written ({said}); nothing was "
            "written. Check the server's log, then try again."
        )

    def _disconnected(self, said: str) -> DisconnectedError:
        return DisconnectedError(
            f"The connection to `storage` {self.path} broke ({said}). What was acknowledged is "
            "stored there: call `run` again to go on."
        )

    def _connected(self) -> _Connection:
        if self._closed:
            raise self.error(f"The {self.kind.name} {self.path} is closed: open it again to go on.")
        if self._connection is not None and not self._connection.lost:
            return self._connection
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            try:
                self._connection = self._connect(is_new=False)
                return self._connection
            except (UnreachableError, driver().OperationalError):
                if time.monotonic() > deadline:
                    raise
            time.sleep(_RETRY_SECONDS)

    def _connect(self, *, is_new: bool) -> _Connection:
        """A connection to what is there, checked and up to date."""
        try:
            raw = self._address.connected()
        except ConnectionError as error:
            kept = "" if is_new else " What was acknowledged is stored there."
            raise UnreachableError(f"{error}{kept}") from None
        connection = _Connection(raw)
        try:
            self._user = raw.info.user
            version = raw.info.server_version // 10000
            if version < _OLDEST:
                raise self.error(
                    f"`storage` {self.path} is PostgreSQL {version}; {_OLDEST} or later is needed."
                )
            for statement in _SESSION:
                connection.execute(statement)
            schema = f'"{self._schema}"'
            connection.execute("SELECT set_config('search_path', ?, false)", (schema,))
            if self._fill is None:
                connection.execute("SET default_transaction_read_only = on")
            stored = self._stored(connection)
            if stored is None and (self._fill is None or not is_new):
                raise self.error(f"There is no {self.kind.name} at {self.path}.")
            if stored is None or stored < len(self.kind.migrations):
                self._bring_up_to_date(connection)
            if self._fill is not None:
                connection.execute("SELECT pg_advisory_lock_shared(?)", (self._key,))
        except BaseException:
            connection.close()
            raise
        return connection

    def _stored(self, connection: _Connection) -> int | None:
        """The schema number of what is there, once it is known to be ours; None if nothing is."""
        # Not by to_regclass(), which may remember that there was none.
        query = "SELECT COUNT(*) FROM pg_tables WHERE schemaname = ? AND tablename = 'format'"
        if not connection.value(query, (self._schema,)):
            return None
        query = f'SELECT application, version FROM "{self._schema}".format'
        ((application, version),) = connection.execute(query).fetchall()
        if application != self.kind.application_id:
            raise self.error(f"{self.path} is no {self.kind.name}: give another `study=` name.")
        if version > len(self.kind.migrations):
            raise self.error(
                f"The {self.kind.name} {self.path} was written by a newer version of botorch_dp: "
                "upgrade botorch_dp to use it."
            )
        return int(version)

    def _bring_up_to_date(self, connection: _Connection) -> None:
        """Create what is not there, or migrate what is older; one process at a time."""
        if self._fill is None:
            raise self.error(
                f"The {self.kind.name} {self.path} was written by an older version of botorch_dp: "
                "go on with it by `DPareto` once, which brings it up to date."
            )
        connection.execute("BEGIN ISOLATION LEVEL READ COMMITTED")
        connection.execute("SELECT pg_advisory_xact_lock(?)", (_lock_key(self._schema),))
        version = self._stored(connection)  # another process may have been first
        if version is not None:
            connection.execute("LOCK TABLE format IN SHARE ROW EXCLUSIVE MODE")
            self._migrate(connection, version)
        else:
            query = "SELECT COUNT(*) FROM pg_namespace WHERE nspname = ?"
            if not connection.value(query, (self._schema,)):
                connection.execute(f'CREATE SCHEMA "{self._schema}"')
            connection.execute("CREATE TABLE format (application BIGINT, version BIGINT)")
            application = self.kind.application_id
            connection.execute("INSERT INTO format VALUES (?, 0)", (application,))
            self._migrate(connection, 0)
            self._fill(connection)
            self.created = True
        connection.execute("COMMIT")

    def _set_version(self, connection: Any, version: int) -> None:
        connection.execute("UPDATE format SET version = ?", (version,))

    def _commit(self, connection: _Connection) -> None:
        """Commit; if the answer is lost, find out what became of it."""
        number = connection.value("SELECT pg_current_xact_id_if_assigned()::text")
        try:
            connection.execute("COMMIT")
        except driver().OperationalError as error:
            if not connection.lost:
                raise
            if number is not None and not self._was_kept(number):
                raise self._disconnected(self._address.said(error)) from None

    def _was_kept(self, number: str) -> bool:
        while True:
            ((status,),) = self.query("SELECT pg_xact_status(?::text::xid8)", (number,))
            if status != "in progress":
                return bool(status == "committed")
            time.sleep(_RETRY_SECONDS)

    def _leave_to_parent(self) -> None:
        if self._connection is not None:
            self._connection.leave_to_parent()
        super()._leave_to_parent()

    def keep(self) -> None:
        """See whether the connection still stands; make another one if it does not."""
        with self.lock, suppress(Exception):
            if self._connection is None or self._closed or self._pid != os.getpid():
                return
            if self._connection.lost:
                self._connection = self._connect(is_new=False)
            elif not self._connection.in_transaction:
                self._connection.execute("SELECT 1")


class _Connection:
    """A connection to PostgreSQL that takes the statements that SQLite takes."""

    def __init__(self, raw: psycopg.Connection[Any]) -> None:
        self._raw = raw

    @property
    def lost(self) -> bool:
        """Whether nothing can be said over it any more."""
        return self._raw.closed

    @property
    def in_transaction(self) -> bool:
        """Whether it is in the midst of one."""
        status = driver().pq.TransactionStatus
        return self._raw.info.transaction_status in (status.INTRANS, status.INERROR)

    def execute(self, statement: str, values: Sequence[object] = ()) -> Any:
        """Run one statement."""
        said: Any = _translated(statement)
        try:
            return self._raw.execute(said, [*map(_plain, values)] if values else None)
        except driver().OperationalError as error:
            if (error.sqlstate or "").startswith("57P"):  # the server ended it
                self._raw.close()
            raise

    def executemany(self, statement: str, rows: Sequence[Sequence[object]]) -> None:
        """Run one statement for each row."""
        said: Any = _translated(statement)
        self._raw.cursor().executemany(said, [[*map(_plain, row)] for row in rows])

    def value(self, statement: str, values: Sequence[object] = ()) -> Any:
        """The only value that a statement gives."""
        ((value,),) = self.execute(statement, values).fetchall()
        return value

    def leave_to_parent(self) -> None:
        """In a fork: close its copy of the socket, or it keeps the session of a dead parent."""
        with suppress(OSError, driver().Error), open(os.devnull, "r+b") as nothing:
            os.dup2(nothing.fileno(), self._raw.fileno(), inheritable=False)

    def close(self) -> None:
        """End it, and all that is under way."""
        self._raw.close()


@functools.cache
def _translated(statement: str) -> str:
    """What SQLite's statement is to PostgreSQL."""
    if statement == "BEGIN":
        return "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
    if statement == "BEGIN IMMEDIATE":
        lock = "LOCK TABLE format IN SHARE ROW EXCLUSIVE MODE"
        return f"BEGIN ISOLATION LEVEL READ COMMITTED; {lock}"
    if statement.startswith(("CREATE TABLE", "ALTER TABLE")):
        # SQLite's numbers have 64 bits under any name.
        return statement.replace("REAL", "DOUBLE PRECISION").replace("INTEGER", "BIGINT")
    return statement.replace("?", "%s")


def _plain(value: object) -> object:
    """As SQLite has it, NaN is no number, and not stored."""
    return None if isinstance(value, float) and math.isnan(value) else value


def _lock_key(words: str) -> int:
    """The number of an advisory lock."""
    return int.from_bytes(hashlib.sha256(words.encode()).digest()[:8], "big", signed=True)


def _keep(reference: weakref.ref[Server]) -> None:
    while True:
        time.sleep(_KEEP_SECONDS)
        server = reference()
        if server is None or server.closed:
            return
        server.keep()
        del server
