"""Resumable runs with their checkpoints, and the release store: one noisy draw for one key.

*The release store.* A key names a released *value*. Whoever wants it pays, reads, draws, stores,
and only then shows; everybody who comes later gets what was stored. One rule makes this sound,
whoever is killed, forked or late: **a draw needs a charge under its key that no other draw has
used**. A failure before the draw leaves its charge to the next attempt. A later failure does not,
because what was drawn may have been seen. The first value that is stored wins: if two processes
draw under one key in the same instant, both were charged, and both get that value.

No time is stored: when a value was ready tells how long the computation before it took, and that
may be secret, as the number of trainings of a private selection is.

*Runs.* A run that resumes keeps what it has decided, seen and released in one file that one process
holds. It has an identity, and every value it releases has a key that begins with it. With a ledger
the values are kept in the ledger's release store, without one in that of the run's own file; in
both cases a value is drawn once. The identity continues through the file only: a copied, unpickled
or forked run is a new run, with an identity of its own and nothing drawn yet.
"""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from botorch_dp._files import (
    MEMORY,
    FileKind,
    StateFile,
    differences,
    keyed_hash,
    pack,
    unpack,
)
from botorch_dp.errors import PrivacyError
from botorch_dp.privacy.guarantee import Guarantee

if TYPE_CHECKING:
    from torch import Tensor

    from botorch_dp.privacy.ledger import PrivacyLedger

T = TypeVar("T")


# --- The release store. ---

_ONCE = "a released value is never changed or removed"

#: Statements that give a file a release store. Rows are only ever added.
RELEASE_TABLES: tuple[str, ...] = (
    "CREATE TABLE paid (number INTEGER PRIMARY KEY, key TEXT NOT NULL, about TEXT NOT NULL)",
    "CREATE INDEX paid_key ON paid (key)",
    # One row for each draw: the charge that it used.
    "CREATE TABLE drawing (paid INTEGER PRIMARY KEY)",
    "CREATE TABLE released (key TEXT PRIMARY KEY, value BLOB NOT NULL)",
    *(
        f"CREATE TRIGGER {table}_no_{event.lower()} BEFORE {event} ON {table} "
        f"BEGIN SELECT RAISE(ABORT, '{_ONCE}'); END"
        for table in ("paid", "drawing", "released")
        for event in ("UPDATE", "DELETE")
    ),
    # REPLACE would get around the two above.
    "CREATE TRIGGER released_once BEFORE INSERT ON released WHEN EXISTS (SELECT 1 FROM released "
    f"WHERE key = NEW.key) BEGIN SELECT RAISE(ABORT, '{_ONCE}'); END",
)


class ReleaseStore:
    """Charges, draws and released values by key.

    Args:
        file: A file with the tables of :data:`RELEASE_TABLES`.
    """

    def __init__(self, file: StateFile) -> None:
        self._file = file

    def release(
        self,
        key: str,
        draw: Callable[..., T],
        *,
        charge: Callable[[], object],
        read: Callable[[], Any] | None,
        about: dict[str, Any],
    ) -> T:
        """The value under ``key``: what was stored, or a new draw.

        Args:
            key: Names the value.
            draw: Draws the noise; takes what ``read`` returned, if that is given.
            charge: Charges, inside a transaction of the file.
            read: Touches the records before any noise is drawn. If it fails, nothing was drawn,
                and the charge serves the next attempt.
            about: What the value is, JSON-ready and public; must be the same at every call.
        """
        material: tuple[Any, ...] = ()
        if read is not None:
            with self._file.transaction():
                if self._unused_charge(key, charge, about) is None:
                    return self._stored(key)
            material = (read(),)
        with self._file.transaction():
            # Somebody else may have used the charge, or stored a value, while records were read.
            paid = self._unused_charge(key, charge, about)
            if paid is None:
                return self._stored(key)
            self._file.execute("INSERT INTO drawing VALUES (?)", (paid,))
        content = pack(draw(*material))
        with self._file.transaction():
            self._file.execute(
                "INSERT INTO released SELECT ?, ? "
                "WHERE NOT EXISTS (SELECT 1 FROM released WHERE key = ?)",
                (key, content, key),
            )
        return self._stored(key)

    def _unused_charge(
        self, key: str, charge: Callable[[], object], about: dict[str, Any]
    ) -> int | None:
        """A charge under the key that no draw has used, made if need be; None if there is a value.

        All charges of a key are for the same price. Inside a transaction.
        """
        rows = self._file.query(
            "SELECT number, about, EXISTS (SELECT 1 FROM drawing WHERE paid = number) "
            "FROM paid WHERE key = ? ORDER BY number",
            (key,),
        )
        for _, stored, _ in rows:
            try:
                changed = differences(json.loads(stored), about)
            except ValueError as error:
                raise self._file.damaged(f"the charge for {key!r} was altered") from error
            if changed:
                raise PrivacyError(
                    f"`key` {key!r} names a value that was released as something else: "
                    f"{'; '.join(changed)}. Use a new key for a new release."
                )
        if rows and self._file.query("SELECT 1 FROM released WHERE key = ?", (key,)):
            return None
        unused = [number for number, _, used in rows if not used]
        if unused:
            return int(unused[0])
        charge()
        words = json.dumps(about)
        row = self._file.execute("INSERT INTO paid (key, about) VALUES (?, ?)", (key, words))
        assert row.lastrowid is not None  # of an INSERT
        return row.lastrowid

    def _stored(self, key: str) -> Any:
        ((content,),) = self._file.query("SELECT value FROM released WHERE key = ?", (key,))
        try:
            return unpack(content)
        except ValueError as error:
            raise self._file.damaged(f"the value under {key!r} was altered") from error


# --- What a run depends on. ---


@dataclass(frozen=True)
class Fingerprint:
    """A digest that stands for records among the settings of a run.

    A file stores a keyed hash of it, under a random key of its own, and messages say only that it
    differs: a plain hash would let whoever sees it test guesses about the records.
    """

    digest: bytes = field(repr=False)


def fingerprint(*parts: Tensor | Fingerprint) -> Fingerprint:
    """A SHA-256 digest of tensors (types, shapes, bits), for the settings of a :class:`Run`."""
    digest = hashlib.sha256()
    for part in parts:
        if isinstance(part, Fingerprint):
            digest.update(part.digest)
            continue
        array = part.detach().cpu().contiguous().numpy()
        digest.update(f"{array.dtype.str} {array.shape} ".encode())
        digest.update(array.tobytes())
    return Fingerprint(digest.digest())


# --- Runs. ---

_NOTICE = (
    "SENSITIVE: this file holds values computed from the records, without noise. Keep it to its "
    "owner (mode 0600) and delete it when the run is over."
)

RUN = FileKind(
    name="checkpoint",
    application_id=0x44507275,  # "DPru"
    schema=(
        "CREATE TABLE notice (words TEXT NOT NULL)",
        "CREATE TABLE state (name TEXT PRIMARY KEY, value BLOB NOT NULL)",
        "CREATE TABLE item (series TEXT NOT NULL, number INTEGER NOT NULL, "
        "value BLOB NOT NULL, PRIMARY KEY (series, number))",
        *RELEASE_TABLES,
    ),
    if_lost="The run cannot be continued; what was charged for it stays spent. Begin a new run at "
    "another path.",
)


#: The name under which a file says what runs, its identity, its key and its settings.
_ABOUT = "the run"


class Run:
    """A run that a checkpoint file can resume, or one in memory. Threads may share it.

    Args:
        path: The checkpoint: a new file begins a run, an existing one continues it. None keeps the
            run in memory, where nothing outlives it and only its released values are kept.
        what: What runs, in words, such as "DP-GIBO".
        settings: All that the run depends on, JSON-ready but for a :func:`fingerprint` of records.
            A file with other settings is refused.
        ledger: What released values are charged to.
        label: What all of them are for; without it, each has a label of its own.

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
        label: str = "",
    ) -> None:
        self._what, self._settings, self._ledger = what, dict(settings), ledger
        self._label = label
        self._begin(path)

    def _begin(self, path: str | os.PathLike[str] | None) -> None:
        self._key = os.urandom(32)

        def create(connection: sqlite3.Connection) -> None:
            settings = self.comparable(self._settings)
            about = [self._what, uuid.uuid4().hex, self._key.hex(), settings]
            connection.execute("INSERT INTO notice VALUES (?)", (_NOTICE,))
            connection.execute("INSERT INTO state VALUES (?, ?)", (_ABOUT, pack([_ABOUT, about])))

        self.path = None if path is None else os.path.realpath(path)
        self._file = StateFile(self.path or MEMORY, RUN, create, exclusive=path is not None)
        try:
            about = self.get(_ABOUT)
            if about is None:
                raise self._file.damaged("it names no run")
            stored_what, self._identity, key, stored = about
            self._key = bytes.fromhex(key)
            if stored_what != self._what:
                raise PrivacyError(
                    f"`checkpoint` {self.path} is of {stored_what}, not of {self._what}: choose "
                    "another path."
                )
            changed = differences(stored, self.comparable(self._settings))
            if changed:
                raise PrivacyError(
                    f"`checkpoint` {self.path} belongs to a run with other settings "
                    f"({'; '.join(changed)}): continue it with its own, or choose another path."
                )
        except BaseException:
            self._file.close()
            raise
        self._store = ReleaseStore(self._file)

    @property
    def identity(self) -> str:
        """What the keys of all values of this run begin with."""
        self._renew_in_a_fork()
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
            label = self._label or label
            return self._ledger.release(
                price, draw, key=name, label=label, delta=delta, about=about, read=read
            )
        what = {"guarantee": price.to_dict(), "about": dict(about or {})}
        return self._store.release(name, draw, charge=lambda: None, read=read, about=what)

    def comparable(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Settings as this run's file keeps them: JSON, with keyed hashes for fingerprints."""

        def hashed(value: object) -> dict[str, str]:
            if not isinstance(value, Fingerprint):
                raise TypeError(f"A setting of a run must be JSON-ready, got {value!r}.")
            return keyed_hash(self._key, value.digest)

        return dict(json.loads(json.dumps(settings, default=hashed)))

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
        self._renew_in_a_fork()
        with self._file.transaction():
            yield

    def close(self) -> None:
        """Let the file go. What was stored stays."""
        self._file.close()

    def __enter__(self) -> Run:
        return self

    def __exit__(self, _: object, error: object, __: object) -> None:
        if isinstance(error, KeyboardInterrupt) and self.path is not None:
            error.add_note(f"{self._what} was interrupted; the same call goes on from {self.path}.")
        self.close()

    def __reduce__(self) -> tuple[object, ...]:
        """A copy is a new run."""
        what, settings = self._what, self._settings
        return partial(Run, None, what=what, settings=settings, ledger=self._ledger), ()

    def _renew_in_a_fork(self) -> None:
        """In a fork, a run in memory is a new one; one in a file refuses by itself."""
        if self.path is None and self._file.forked:
            self._begin(None)

    def _unpacked(self, content: bytes, name: str) -> Any:
        try:
            place, value = unpack(content)
        except (TypeError, ValueError) as error:
            raise self._file.damaged(f"{name} was altered") from error
        if place != name:
            raise self._file.damaged(f"{name} was stored as {place}")
        return value
