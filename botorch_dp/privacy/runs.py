"""Runs that resume: what they have decided, seen and released, in one file that one process holds.

A run has an identity, and every value it releases has a key that begins with it. With a ledger the
values go through the ledger's door, without one through a door in the run's own file; in both cases
a value is drawn once. The identity continues through the file only: a copied, unpickled or forked
run is a new run, with an identity of its own and nothing drawn yet.
"""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from botorch_dp._files import MEMORY, FileKind, StateFile, differences, now, pack, unpack
from botorch_dp.errors import PrivacyError
from botorch_dp.privacy._door import DOOR_TABLES, Door
from botorch_dp.privacy.guarantee import Guarantee
from botorch_dp.privacy.ledger import PrivacyLedger

if TYPE_CHECKING:
    from torch import Tensor

T = TypeVar("T")

_NOTICE = (
    "SENSITIVE: this file holds values computed from the records, without noise. Keep it to its "
    "owner (mode 0600) and delete it when the run is over."
)

RUN = FileKind(
    name="checkpoint",
    application_id=0x44507275,  # "DPru"
    migrations=(
        (
            "CREATE TABLE run (id INTEGER PRIMARY KEY CHECK (id = 1), notice TEXT NOT NULL, "
            "what TEXT NOT NULL, identity TEXT NOT NULL, settings TEXT NOT NULL, "
            "created_at TEXT NOT NULL)",
            "CREATE TABLE state (name TEXT PRIMARY KEY, value BLOB NOT NULL)",
            "CREATE TABLE item (series TEXT NOT NULL, number INTEGER NOT NULL, "
            "value BLOB NOT NULL, PRIMARY KEY (series, number))",
            *DOOR_TABLES,
        ),
    ),
    if_lost="The run cannot be continued; what was charged for it stays spent. Begin a new run at "
    "another path.",
)


#: The name under which a file keeps the checksum of its run.
_SEAL = "the run"


class Run:
    """One run, in a file or in memory. Threads may share it.

    Args:
        path: The checkpoint: a new file begins a run, an existing one continues it. None keeps the
            run in memory, where nothing outlives it and only its released values are kept.
        what: What runs, in words, such as "DP-GIBO".
        settings: All that the run depends on, JSON-ready. A file with other settings is refused.
        ledger: What released values are charged to.

    Raises:
        PrivacyError: The file is in use, damaged, or of another run.

    Example:
        >>> with Run("descent.run", what="a descent", settings={"steps": 10}) as run:
        ...     noisy = run.release(price, draw, key="step 1")
        ...     run.put(step=1)
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | None,
        *,
        what: str,
        settings: Mapping[str, Any],
        ledger: PrivacyLedger | None = None,
    ) -> None:
        self._what, self._settings, self._ledger = what, dict(settings), ledger
        self._pid = os.getpid()
        if path is not None and not isinstance(path, str | os.PathLike):
            raise TypeError(f"`checkpoint` must be a path or None, got {type(path).__name__}.")
        self._begin(path)

    def _begin(self, path: str | os.PathLike[str] | None) -> None:
        identity, words = uuid.uuid4().hex, json.dumps(self._settings)

        def create(connection: sqlite3.Connection) -> None:
            connection.execute(
                "INSERT INTO run VALUES (1, ?, ?, ?, ?, ?)",
                (_NOTICE, self._what, identity, words, now()),
            )
            # A checksum of what the row says: with another identity, values would be drawn anew.
            sealed = pack([_SEAL, [self._what, identity, words]])
            connection.execute("INSERT INTO state VALUES (?, ?)", (_SEAL, sealed))

        self.path = None if path is None else os.path.realpath(path)
        self._file = StateFile(self.path or MEMORY, RUN, create, exclusive=self.path is not None)
        try:
            rows = self._file.query("SELECT what, identity, settings FROM run")
            if len(rows) != 1:
                raise self._file.damaged("it names no run")
            ((stored_what, self._identity, stored),) = rows
            if self.get(_SEAL) != [*rows[0]]:
                raise self._file.damaged("what it says about the run was altered")
            if self.path is not None and self.resumed:
                self._check_places()
            if stored_what != self._what:
                raise PrivacyError(
                    f"`checkpoint` {self.path} is of {stored_what}, not of {self._what}: choose "
                    "another path."
                )
            changed = differences(json.loads(stored), self._settings)
            if changed:
                raise PrivacyError(
                    f"`checkpoint` {self.path} belongs to a run with other settings "
                    f"({'; '.join(changed)}): its values were drawn under a promise that was not "
                    "made for these. Continue it with its own settings, or choose another path."
                )
        except BaseException:
            self._file.close()
            raise
        self._door = Door(self._file)

    @property
    def identity(self) -> str:
        """What the keys of all values of this run begin with."""
        self._settle_in()
        return self._identity

    @property
    def resumed(self) -> bool:
        """Whether the file was there before."""
        return not self._file.created

    def release(
        self,
        price: Guarantee,
        draw: Callable[..., T],
        *,
        key: str,
        label: str = "",
        delta: float | None = None,
        about: Mapping[str, Any] | None = None,
        read: Callable[[], Any] | None = None,
    ) -> T:
        """The value of this run under ``key``: drawn once, stored, and replayed ever after.

        Arguments as for :meth:`PrivacyLedger.release`. Without a ledger nothing is charged, and
        all else is the same.
        """
        name = f"{self.identity}/{key}"
        if self._ledger is not None:
            return self._ledger.release(
                price, draw, key=name, label=label, delta=delta, about=about, read=read
            )
        what = {"guarantee": price.to_dict(), "about": dict(about or {})}
        ours = (lambda _: draw()) if read is None else draw
        return self._door.release(name, ours, pay=lambda: None, read=read, about=what)

    def put(self, **values: Any) -> None:
        """Store values by name, replacing those of the same names, as one. Kept in files only."""
        if self.path is None:
            return
        rows = [(name, pack([name, value])) for name, value in values.items()]
        with self.transaction():
            for row in rows:
                self._file.execute("INSERT OR REPLACE INTO state VALUES (?, ?)", row)

    def get(self, name: str, default: Any = None) -> Any:
        """The value stored under a name."""
        rows = self._file.query("SELECT value FROM state WHERE name = ?", (name,))
        return self._unpacked(rows[0][0], name) if rows else default

    def _check_places(self) -> None:
        """Each value says under which name or number it was stored: none has moved."""
        with self._file.snapshot():
            for name, value in self._file.execute("SELECT name, value FROM state"):
                self._unpacked(value, name)
            items = self._file.execute("SELECT series, number, value FROM item")
            for series, number, value in items:
                self._unpacked(value, f"{series} {number}")

    def add(self, series: str, number: int, value: Any) -> None:
        """Store one value of a numbered series. Kept in files only."""
        if self.path is None:
            return
        content = pack([f"{series} {number}", value])
        with self.transaction():
            self._file.execute("INSERT INTO item VALUES (?, ?, ?)", (series, number, content))

    def items(self, series: str) -> dict[int, Any]:
        """A series by number, in order."""
        rows = self._file.query(
            "SELECT number, value FROM item WHERE series = ? ORDER BY number", (series,)
        )
        return {number: self._unpacked(value, f"{series} {number}") for number, value in rows}

    def keep_only(self, series: str, numbers: Iterable[int]) -> None:
        """Delete all other values of a series."""
        if self.path is None:
            return
        kept = json.dumps(sorted(numbers))
        with self.transaction():
            self._file.execute(
                "DELETE FROM item WHERE series = ? AND number NOT IN (SELECT value FROM "
                "json_each(?))",
                (series, kept),
            )

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Store all that is put inside together, or nothing of it."""
        self._settle_in()
        with self._file.transaction():
            yield

    def close(self) -> None:
        """Let the file go. What was stored stays."""
        self._file.close()

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __deepcopy__(self, memo: object) -> Run:
        return Run(None, what=self._what, settings=self._settings, ledger=self._ledger)

    def __reduce__(self) -> tuple[object, ...]:
        return _new_run, (self._what, self._settings, self._ledger)

    def _settle_in(self) -> None:
        """In a fork, a run in memory is a new one; one in a file refuses by itself."""
        if self.path is None and self._pid != os.getpid():
            self._pid = os.getpid()
            self._begin(None)

    def _unpacked(self, content: bytes, name: str) -> Any:
        try:
            place, value = unpack(content)
        except (TypeError, ValueError) as error:
            raise self._file.damaged(f"{name} was altered") from error
        if place != name:
            raise self._file.damaged(f"{name} was stored as {place}")
        return value


def _new_run(what: str, settings: dict[str, Any], ledger: PrivacyLedger | None) -> Run:
    return Run(None, what=what, settings=settings, ledger=ledger)


def fingerprint(*tensors: Tensor) -> str:
    """A hash of tensors' types, shapes and bits: for the settings of a file that is sensitive."""
    digest = hashlib.sha256()
    for tensor in tensors:
        array = tensor.detach().cpu().contiguous().numpy()
        digest.update(f"{array.dtype.str} {array.shape} ".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()
