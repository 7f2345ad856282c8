"""A durable record of what was asked, answered and released: it survives any restart."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from botorch_dp._files import MEMORY, FileKind, differences, pack, unpack
from botorch_dp.errors import BudgetExhausted, PrivacyError
from botorch_dp.privacy import Guarantee, PrivacyLedger
from botorch_dp.privacy.runs import RUN, Run

T = TypeVar("T")
R = TypeVar("R")

_QUESTIONS = "SELECT number, request, content FROM question"


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


class QueryLog(Run):
    """Questions and answers in one file that only its owner can read (mode 0600).

    A question is on disk before it is measured, and an answer is on disk before it is sent. After
    a restart a repeated request is therefore recognized and gets the answer that was given before.
    Questions are looked up in the file, so the memory that a log takes does not grow with it.

    One process, and one log in it, holds the file. Its threads may share the log, but must not ask
    under the same request id at the same time.

    Args:
        path: The file, or ``":memory:"``. It holds answers: never hand it out.
    """

    kind = FileKind(
        name="query log",
        application_id=0x4450716C,  # "DPql"
        schema=(
            *RUN.schema,
            # Under a checksum, `content` says all that is known of a question, its number and
            # its request too: no row can lose its answer, or take that of another one.
            "CREATE TABLE question (number INTEGER PRIMARY KEY, request TEXT NOT NULL UNIQUE, "
            "content BLOB NOT NULL)",
        ),
        if_lost="Put back a copy, or begin a new log at another path: the rows and every answer "
        "are then released anew, and charged anew.",
    )

    def __init__(self, path: str | os.PathLike[str] = MEMORY) -> None:
        if not isinstance(path, str | os.PathLike):
            raise TypeError(f"`log` must be a path, got {type(path).__name__}.")
        super().__init__(
            None if str(path) == MEMORY else path, what="a curator's questions", settings={}
        )

    @property
    def in_memory(self) -> bool:
        """Whether nothing outlives this object."""
        return self.path is None

    @contextmanager
    def settled(self, settings: Mapping[str, Any]) -> Iterator[None]:
        """Keep the settings of the rows that are released inside; refuse any other settings.

        If the budget cannot bear the release, the settings are free again.
        """
        settings = self.comparable(settings)
        stored = self.get("settings")
        changed = [] if stored is None else differences(stored, settings)
        if changed:
            raise PrivacyError(
                f"`log` {self.path} belongs to rows that were released with other settings "
                f"({'; '.join(changed)}). Go on with those, or choose another path (a second "
                "release, at a second cost)."
            )
        self.put(settings=settings)
        try:
            yield
        except BudgetExhausted:
            self.put(settings=stored)
            raise

    def release_once(
        self,
        price: Guarantee,
        read: Callable[[], R],
        draw: Callable[[R], T],
        *,
        key: str,
        label: str,
        ledger: PrivacyLedger | None,
    ) -> T:
        """The value of this log under ``key``: charged and drawn once, and replayed ever after.

        Args:
            price: What one draw promises.
            read: Touches the records. If it fails, the next attempt is not charged again.
            draw: Draws the noise; takes what ``read`` returned.
            key: Names the value within this log.
            label: A note for the ledger.
            ledger: What is charged, if anything.
        """
        if ledger is None:
            return self.release(price, draw, key=key, label=label, read=read)
        return ledger.release(price, draw, key=f"{self.identity}/{key}", label=label, read=read)

    def open_request(
        self, request: str, index: int, *, limit: int | None
    ) -> tuple[int, float | None]:
        """Record a question, or find it again.

        Returns:
            Its number, and the answer that was given before; without one, measure the row and call
            :meth:`close_request`.

        Raises:
            QueryLimitReached: Nothing is recorded then.
            RequestConflict: If the same request asked for another row before.
        """
        self.check_owner()
        with self.transaction():
            query, answer = self._found(request)
            if query is None:
                number = len(self) + 1
                if limit is not None and number > limit:
                    raise QueryLimitReached(f"The limit of {limit} queries is reached.")
                query = Query(number, request, index, time.time(), False)
                self._write(query, None)
        if query.index != index:
            raise RequestConflict(
                f"`request_id` {request!r} asked for row {query.index} before and for row "
                f"{index} now: give each question its own id."
            )
        return query.number, answer

    def close_request(self, request: str, answer: float) -> float:
        """Record the answer before it is sent; returns what is recorded, which never changes."""
        self.check_owner()
        with self.transaction():
            query, recorded = self._found(request)
            assert query is not None
            if recorded is None:
                self._write(query, answer)
                recorded = answer
        return recorded

    def entries(self) -> list[Query]:
        """All questions in order, without their answers."""
        rows = self._file.query(f"{_QUESTIONS} ORDER BY number")
        return [self._read(*row)[0] for row in rows]

    def _found(self, request: str) -> tuple[Query | None, float | None]:
        """A question and its answer."""
        rows = self._file.query(f"{_QUESTIONS} WHERE request = ?", (request,))
        return self._read(*rows[0]) if rows else (None, None)

    def _read(self, number: int, request: str, content: bytes) -> tuple[Query, float | None]:
        try:
            *names, index, asked_at, answer = unpack(content)
        except (TypeError, ValueError) as error:
            raise self._file.damaged(f"question {number} was altered") from error
        if names != [number, request]:
            raise self._file.damaged(f"question {number} was stored elsewhere")
        return Query(number, request, index, asked_at, answer is not None), answer

    def _write(self, query: Query, answer: float | None) -> None:
        """Write down a question, new or not. Inside a transaction."""
        known = query.number, query.request
        self._file.execute(
            "INSERT INTO question VALUES (?, ?, ?) "
            "ON CONFLICT (number) DO UPDATE SET content = excluded.content",
            (*known, pack([*known, query.index, query.asked_at, answer])),
        )

    def _check_places(self) -> None:
        """Check that each question is there, under the number that it was given."""
        super()._check_places()
        with self._file.snapshot():
            rows = self._file.execute(f"{_QUESTIONS} ORDER BY number")
            for expected, (number, *row) in enumerate(rows, 1):
                self._read(number, *row)
                if number != expected:
                    raise self._file.damaged(f"question {expected} is missing")

    def __len__(self) -> int:
        if self._file.closed:
            return self._last_number
        return int(self._file.query("SELECT coalesce(max(number), 0) FROM question")[0][0])

    def close(self) -> None:
        """Let go of the file; nothing can be asked afterwards."""
        self._last_number = len(self)
        super().close()

    def check_owner(self) -> None:
        """Raise in a fork of the process that opened the log."""
        if self._file.forked:
            raise PrivacyError(
                "A forked process cannot use its parent's curator: both could answer the same "
                "question. Let the child ask its parent, or make its own curator with its own "
                "`log`."
            )
