"""A durable record of what was asked, answered and released: it survives any restart."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from botorch_dp._files import (
    BUSY_SECONDS,
    MEMORY,
    FileKind,
    differences,
    may_be_at_work,
    owner_words,
    pack,
    unpack,
)
from botorch_dp.errors import AlreadyReleased, BudgetExhausted, PrivacyError
from botorch_dp.privacy import Guarantee, PrivacyLedger
from botorch_dp.privacy.runs import RUN, Run

T = TypeVar("T")
R = TypeVar("R")

#: How often a question is looked at that another process is measuring.
_LOOK_SECONDS = 0.05
_QUESTIONS = "SELECT number, request, content FROM question"
#: Questions that this process measures, by its number: a fork inherits the set, but not the work.
_AT_WORK: set[tuple[int, str]] = set()


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

    A question is on disk before it is answered and an answer before it is sent. A repeated
    request is therefore recognized after a restart too, and gets the answer it was given. They are
    looked up in the file: what the log holds in memory does not grow with it.

    Threads and processes may share a file. Who measures a question has claimed it in the file, and
    whoever else asks it meanwhile waits for that answer; if the process that measures ends, another
    one takes over. A forked child may not use its parent's log, but may open the file.

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
    exclusive = False

    def __init__(self, path: str | os.PathLike[str] = MEMORY) -> None:
        if not isinstance(path, str | os.PathLike):
            raise TypeError(f"`log` must be a path, got {type(path).__name__}.")
        self._works: dict[str, tuple[int, str]] = {}
        super().__init__(
            None if str(path) == MEMORY else path, what="a curator's questions", settings={}
        )

    @property
    def in_memory(self) -> bool:
        """Whether nothing outlives this object."""
        return self.path is None

    @contextmanager
    def settled(self, settings: Mapping[str, Any]) -> Iterator[None]:
        """Keep what the rows depend on that are released inside; refuse what is not the same.

        If the budget cannot bear the release, the settings are free again.
        """
        settings = self.comparable(settings)
        with self.transaction():
            stored = self.get("settings")
            changed = [] if stored is None else differences(stored, settings)
            if changed:
                raise PrivacyError(
                    f"`log` {self.path} belongs to rows that were released with other "
                    f"settings ({'; '.join(changed)}). Go on with those, or choose another path "
                    "(a second release, at a second cost)."
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
            ledger: What it is charged to, if anything.
        """
        self.check_owner()
        deadline = time.monotonic() + BUSY_SECONDS
        while True:
            try:
                if ledger is None:
                    return self.release(price, draw, key=key, label=label, read=read)
                name = f"{self.identity}/{key}"
                return ledger.release(price, draw, key=name, label=label, read=read)
            except AlreadyReleased:  # another process draws it now
                if time.monotonic() > deadline:
                    raise
            time.sleep(_LOOK_SECONDS)

    def open_request(
        self, request: str, index: int, *, limit: int | None
    ) -> tuple[int, float | None]:
        """Record a question, or find it again; without an answer, claim it.

        While another process measures it, this one waits.

        Returns:
            Its number, and the answer given before to the same request. None asks the caller to
            measure the row, and then to call :meth:`close_request` or :meth:`leave_request`.

        Raises:
            QueryLimitReached: Nothing is recorded then.
            RequestConflict: If the same request asked for another row before.
        """
        self.check_owner()
        work = (os.getpid(), uuid.uuid4().hex)
        while True:
            query, owner, answer = self._found(request)
            if query is not None and query.index != index:
                raise RequestConflict(
                    f"`request_id` {request!r} asked for row {query.index} before and for row "
                    f"{index} now: give each question its own id."
                )
            if query is not None and query.answered:
                return query.number, answer
            if owner is not None and may_be_at_work(owner, _AT_WORK):
                time.sleep(_LOOK_SECONDS)
            elif number := self._claimed(request, index, limit, work, before=owner):
                return number, None

    def _claimed(
        self, request: str, index: int, limit: int | None, work: tuple[int, str], before: str | None
    ) -> int | None:
        """The number of a question that is now claimed; None if another process was first."""
        with self.transaction():
            query, now_owner, answer = self._found(request)
            if query is None:
                number, asked_at = len(self) + 1, time.time()
                if limit is not None and number > limit:
                    raise QueryLimitReached(f"The limit of {limit} queries is reached.")
            elif now_owner == before and answer is None:
                number, asked_at = query.number, query.asked_at
            else:
                return None
            self._write(Query(number, request, index, asked_at, False), owner_words(work), None)
            # Before the commit, which may be interrupted when it is done already.
            self._works[request] = work
            _AT_WORK.add(work)
        return number

    def close_request(self, request: str, answer: float) -> float:
        """Record the answer before it is sent; returns what is recorded, which never changes."""
        self.check_owner()
        with self.transaction():
            query, _, recorded = self._found(request)
            assert query is not None
            if recorded is None:
                self._write(query, None, answer)
                recorded = answer
        _AT_WORK.discard(self._works.pop(request))
        return recorded

    def leave_request(self, request: str) -> None:
        """Leave a question unanswered, if it was claimed; whoever asks it next measures it."""
        work = self._works.pop(request, None)
        if work is None:
            return
        _AT_WORK.discard(work)
        # If this fails, other processes wait until this one has ended.
        with suppress(Exception), self.transaction():
            query, owner, answer = self._found(request)
            if query is not None and owner == owner_words(work):
                self._write(query, None, answer)

    def entries(self) -> list[Query]:
        """All questions in order, without their answers."""
        rows = self._file.query(f"{_QUESTIONS} ORDER BY number")
        return [self._read(*row)[0] for row in rows]

    def _found(self, request: str) -> tuple[Query | None, str | None, float | None]:
        """A question, who measures it, and its answer."""
        rows = self._file.query(f"{_QUESTIONS} WHERE request = ?", (request,))
        return self._read(*rows[0]) if rows else (None, None, None)

    def _read(
        self, number: int, request: str, content: bytes
    ) -> tuple[Query, str | None, float | None]:
        try:
            *names, index, asked_at, owner, answer = unpack(content)
        except (TypeError, ValueError) as error:
            raise self._file.damaged(f"question {number} was altered") from error
        if names != [number, request]:
            raise self._file.damaged(f"question {number} was stored elsewhere")
        return Query(number, request, index, asked_at, answer is not None), owner, answer

    def _write(self, query: Query, owner: str | None, answer: float | None) -> None:
        """Write down a question, new or not. Inside a transaction."""
        known = query.number, query.request
        content = pack([*known, query.index, query.asked_at, owner, answer])
        self._file.execute(
            "INSERT INTO question VALUES (?, ?, ?) "
            "ON CONFLICT (number) DO UPDATE SET content = excluded.content",
            (*known, content),
        )

    def _check_places(self) -> None:
        """Each question is there, and says under which number it was asked."""
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
        for request in list(self._works):
            _AT_WORK.discard(self._works.pop(request))

    def check_owner(self) -> None:
        """Raise in a fork of the process that opened the log."""
        if os.getpid() != self._pid:
            raise PrivacyError(
                "A forked process cannot use its parent's curator: both could answer the same "
                "question. Make a curator of its own with the same `log`."
            )
