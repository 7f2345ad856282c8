"""A durable record of what was asked and answered: the count survives any restart."""

from __future__ import annotations

import math
import os
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from botorch_dp._files import create_private
from botorch_dp.errors import PrivacyError

_SCHEMA = """CREATE TABLE IF NOT EXISTS queries (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    request TEXT UNIQUE NOT NULL,
    row_index INTEGER NOT NULL,
    asked_at REAL NOT NULL,
    answer REAL
)"""


class QueryLimitReached(RuntimeError):
    """The curator has answered as many questions as it was told to."""


class RequestConflict(ValueError):
    """One request id was used for two different rows."""


@dataclass(frozen=True)
class Query:
    """One question of the modeler; the answer stays in the file."""

    number: int
    request: str
    index: int
    asked_at: float
    answered: bool


class QueryLog:
    """Questions and answers in one SQLite file that only its owner can read (mode 0600).

    A question is on disk before it is answered and an answer before it is sent. A repeated
    request is therefore recognized after a restart too, and gets the answer it was given.

    One log at a time holds the file, until it is closed or its process ends: two of them would
    answer one request twice, with noise drawn twice. Threads may share a log; a forked child may
    not use its parent's.

    Args:
        path: The file, or ``":memory:"``. It holds answers: keep it in the house.
    """

    def __init__(self, path: str | os.PathLike[str] = ":memory:") -> None:
        if str(path) != ":memory:":
            create_private(path)
        self._owner = os.getpid()
        self._lock = threading.RLock()
        self._connection = sqlite3.connect(
            path, timeout=0.0, check_same_thread=False, isolation_level=None
        )
        try:
            # SQLite then keeps the lock that the first write takes.
            self._connection.execute("PRAGMA locking_mode = EXCLUSIVE")
            self._connection.execute("PRAGMA synchronous = FULL")
            self._connection.execute("BEGIN EXCLUSIVE")
            self._connection.execute(_SCHEMA)
            self._connection.execute("COMMIT")
        except sqlite3.DatabaseError as error:
            self._connection.close()
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY:
                raise ValueError(f"`log` {os.fspath(path)!r} is no query log ({error}).") from None
            raise PrivacyError(
                f"`log` {os.fspath(path)!r} is held by another curator: two of them could draw "
                "noise twice for one question. Close the other one first."
            ) from None

    def open_request(
        self, request: str, index: int, *, limit: int | None
    ) -> tuple[int, float | None]:
        """Record a question, or find it again.

        Returns:
            Its number, and the answer given before to the same request (None if it has none yet).

        Raises:
            QueryLimitReached: Nothing is recorded then.
            RequestConflict: If the same request asked for another row before.
        """
        with self._held() as connection:
            found = connection.execute(
                "SELECT row_index, number, answer FROM queries WHERE request = ?", (request,)
            ).fetchone()
            if found is None:
                if limit is not None and len(self) >= limit:
                    raise QueryLimitReached(f"The limit of {limit} queries is reached.")
                added = connection.execute(
                    "INSERT INTO queries (request, row_index, asked_at) VALUES (?, ?, ?)",
                    (request, index, time.time()),
                )
                return int(added.lastrowid or 0), None
            asked_before, number, answer = found
            if asked_before != index:
                raise RequestConflict(
                    f"`request_id` {request!r} asked for row {asked_before} before and for row "
                    f"{index} now: give each question its own id."
                )
            return int(number), None if answer is None else float(answer)

    def close_request(self, request: str, answer: float) -> None:
        """Record the answer before it is sent."""
        # SQLite has no NaN: it would be stored as "no answer yet".
        stored = "nan" if math.isnan(answer) else answer
        with self._held() as connection:
            connection.execute("UPDATE queries SET answer = ? WHERE request = ?", (stored, request))

    def entries(self) -> list[Query]:
        """All questions in order, without their answers."""
        with self._held() as connection:
            rows = connection.execute(
                "SELECT number, request, row_index, asked_at, answer IS NOT NULL FROM queries "
                "ORDER BY number"
            ).fetchall()
        return [
            Query(number, request, index, at, bool(known))
            for number, request, index, at, known in rows
        ]

    def __len__(self) -> int:
        with self._held() as connection:
            return int(connection.execute("SELECT COUNT(*) FROM queries").fetchone()[0])

    def close(self) -> None:
        """Let go of the file; the log cannot be used afterwards."""
        with self._lock:
            self._connection.close()

    @contextmanager
    def _held(self) -> Iterator[sqlite3.Connection]:
        """The connection, for one thread at a time."""
        if os.getpid() != self._owner:
            raise PrivacyError(
                "A forked process cannot use its parent's curator: both could draw noise for one "
                "question. Ask the parent, or serve the curator."
            )
        with self._lock:
            yield self._connection
