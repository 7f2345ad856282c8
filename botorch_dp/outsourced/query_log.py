"""A durable record of what was asked, answered and released: it survives any restart."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from botorch_dp._files import MEMORY, differences
from botorch_dp.errors import BudgetExhausted, PrivacyError
from botorch_dp.privacy import Guarantee, PrivacyLedger
from botorch_dp.privacy.runs import Run

T = TypeVar("T")
R = TypeVar("R")


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
    """Questions and answers in one file that only its owner can read (mode 0600).

    A question is on disk before it is answered and an answer before it is sent. A repeated
    request is therefore recognized after a restart too, and gets the answer it was given.

    One log at a time holds the file, until it is closed or its process ends: two of them would
    answer one request twice. Threads may share a log; a forked child may not use its parent's.

    Args:
        path: The file, or ``":memory:"``. It holds answers: never hand it out.
    """

    def __init__(self, path: str | os.PathLike[str] = MEMORY) -> None:
        if not isinstance(path, str | os.PathLike):
            raise TypeError(f"`log` must be a path, got {type(path).__name__}.")
        self._owner = os.getpid()
        self._lock = threading.RLock()
        self._run = Run(
            None if str(path) == MEMORY else path, what="a curator's questions", settings={}
        )
        self._answers: dict[int, float] = self._run.items("answer")
        self._queries = {
            request: Query(number, request, index, asked_at, number in self._answers)
            for number, (request, index, asked_at) in self._run.items("question").items()
        }

    @property
    def in_memory(self) -> bool:
        """Whether nothing outlives this object."""
        return self._run.path is None

    @contextmanager
    def settled(self, settings: Mapping[str, Any]) -> Iterator[None]:
        """Keep what the rows depend on that are released inside; refuse what is not the same.

        If the budget cannot bear the release, the settings are free again.
        """
        with self._lock:
            stored = self._run.get("settings")
            changed = [] if stored is None else differences(stored, settings)
            if changed:
                raise PrivacyError(
                    f"`log` {self._run.path} belongs to rows that were released with other "
                    f"settings ({'; '.join(changed)}). Go on with those, or choose another path "
                    "(a second release, at a second cost)."
                )
            self._run.put(settings=settings)
            try:
                yield
            except BudgetExhausted:
                self._run.put(settings=stored)
                raise

    def release(
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
        self._check_owner()
        if ledger is None:
            return self._run.release(price, draw, key=key, label=label, read=read)
        name = f"{self._run.identity}/{key}"
        return ledger.release(price, draw, key=name, label=label, read=read)

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
        self._check_owner()
        with self._lock:
            found = self._queries.get(request)
            if found is None:
                number = len(self._queries) + 1
                if limit is not None and number > limit:
                    raise QueryLimitReached(f"The limit of {limit} queries is reached.")
                query = Query(number, request, index, time.time(), answered=False)
                self._run.add("question", number, [request, index, query.asked_at])
                self._queries[request] = query
                return number, None
            if found.index != index:
                raise RequestConflict(
                    f"`request_id` {request!r} asked for row {found.index} before and for row "
                    f"{index} now: give each question its own id."
                )
            return found.number, self._answers.get(found.number)

    def close_request(self, request: str, answer: float) -> None:
        """Record the answer before it is sent."""
        self._check_owner()
        with self._lock:
            query = self._queries[request]
            self._run.add("answer", query.number, answer)
            self._answers[query.number] = answer
            self._queries[request] = replace(query, answered=True)

    def entries(self) -> list[Query]:
        """All questions in order, without their answers."""
        with self._lock:
            return list(self._queries.values())

    def __len__(self) -> int:
        return len(self._queries)

    def close(self) -> None:
        """Let go of the file; nothing can be asked afterwards."""
        self._run.close()

    def _check_owner(self) -> None:
        if os.getpid() != self._owner:
            raise PrivacyError(
                "A forked process cannot use its parent's curator: both could answer the same "
                "question. Ask the parent, or serve the curator."
            )
