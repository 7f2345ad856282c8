"""A durable record of what was asked and answered: the count survives any restart."""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from dataclasses import dataclass
from uuid import uuid4

from botorch_dp._files import create_private

_SCHEMA = """
CREATE TABLE IF NOT EXISTS queries (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    request TEXT UNIQUE NOT NULL,
    row_index INTEGER NOT NULL,
    asked_at REAL NOT NULL,
    answer REAL
);
CREATE TABLE IF NOT EXISTS identity (only_row INTEGER PRIMARY KEY CHECK (only_row = 1), name TEXT);
"""


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
    request is therefore recognized after a restart too, and gets the answer it was given. One
    process may write at a time; within it, threads may share a log.

    Args:
        path: The file, or ``":memory:"``. It holds answers: keep it in the house.
    """

    def __init__(self, path: str | os.PathLike[str] = ":memory:") -> None:
        if str(path) != ":memory:":
            create_private(path)
        self._lock = threading.RLock()
        self._connection = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
        self._connection.execute("PRAGMA synchronous = FULL")
        self._connection.executescript(_SCHEMA)
        self._connection.execute("INSERT OR IGNORE INTO identity VALUES (1, ?)", (uuid4().hex,))

    @property
    def name(self) -> str:
        """Unlike that of any other log: what one log knows, another does not."""
        with self._lock:
            return str(self._connection.execute("SELECT name FROM identity").fetchone()[0])

    def open_request(self, request: str, index: int, *, limit: int | None) -> float | None:
        """Record a question, or find it again.

        Returns:
            The answer given before to the same request, or None if it has none yet.

        Raises:
            QueryLimitReached: Nothing is recorded then.
            RequestConflict: If the same request asked for another row before.
        """
        with self._lock:
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                found = self._connection.execute(
                    "SELECT row_index, answer FROM queries WHERE request = ?", (request,)
                ).fetchone()
                if found is None:
                    if limit is not None and len(self) >= limit:
                        raise QueryLimitReached(f"The limit of {limit} queries is reached.")
                    self._connection.execute(
                        "INSERT INTO queries (request, row_index, asked_at) VALUES (?, ?, ?)",
                        (request, index, time.time()),
                    )
                elif found[0] != index:
                    raise RequestConflict(
                        f"`request_id` {request!r} asked for row {found[0]} before and for row "
                        f"{index} now: give each question its own id."
                    )
            except BaseException:
                self._connection.execute("ROLLBACK")
                raise
            self._connection.execute("COMMIT")
        return None if found is None else found[1]

    def close_request(self, request: str, answer: float) -> None:
        """Record the answer before it is sent."""
        with self._lock:
            self._connection.execute(
                "UPDATE queries SET answer = ? WHERE request = ?", (answer, request)
            )

    def entries(self) -> list[Query]:
        """All questions in order, without their answers."""
        with self._lock:
            rows = self._connection.execute(
                "SELECT number, request, row_index, asked_at, answer IS NOT NULL FROM queries "
                "ORDER BY number"
            ).fetchall()
        return [
            Query(number, request, index, at, bool(known))
            for number, request, index, at, known in rows
        ]

    def __len__(self) -> int:
        with self._lock:
            return int(self._connection.execute("SELECT COUNT(*) FROM queries").fetchone()[0])

    def close(self) -> None:
        """Close the file; the log cannot be used afterwards."""
        with self._lock:
            self._connection.close()
