"""One noisy draw for one key, whatever is copied, forked, retried, killed or resumed.

*The release store.* A key names a released *value*. Whoever wants it claims the key, charges for
it, draws, stores, and only then shows; everybody who comes later gets what was stored. In the file
of a :class:`ReleaseStore`:

1. *claim*: one transaction writes who draws (process, its start, host) and the charge;
2. *begin*: where records are read before the noise is drawn, a second one says that drawing begins
   (otherwise the first one says so);
3. *value*: a third one stores what was drawn. Only what is stored is returned.

A claim with a living owner is refused to others. If its owner died before it began to draw,
nothing was drawn, and the next claim takes over the charge. If it died (or failed) later, the noise
may have been drawn: that charge stays spent, and the next draw is a new charge. Two values under
one key are impossible: the second one to be stored is thrown away, and both return the first.

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
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from botorch_dp._files import (
    MEMORY,
    FileKind,
    StateFile,
    differences,
    keyed_hash,
    may_be_at_work,
    owner_words,
    pack,
    unpack,
)
from botorch_dp.errors import AlreadyReleased, PrivacyError
from botorch_dp.privacy.guarantee import Guarantee

if TYPE_CHECKING:
    from torch import Tensor

    from botorch_dp.privacy.ledger import PrivacyLedger

T = TypeVar("T")


# --- The release store. ---

_ONCE = "a released value is never changed or removed"

#: Statements that give a file a release store. Rows are only ever added.
RELEASE_TABLES: tuple[str, ...] = (
    "CREATE TABLE claim (number INTEGER PRIMARY KEY, key TEXT NOT NULL, owner TEXT NOT NULL, "
    "charge INTEGER, about TEXT NOT NULL)",
    "CREATE INDEX claim_key ON claim (key)",
    "CREATE TABLE drawing (claim INTEGER PRIMARY KEY)",
    "CREATE TABLE given_up (claim INTEGER PRIMARY KEY)",
    "CREATE TABLE released (key TEXT PRIMARY KEY, claim INTEGER NOT NULL, value BLOB NOT NULL)",
    *(
        f"CREATE TRIGGER {table}_no_{event.lower()} BEFORE {event} ON {table} "
        f"BEGIN SELECT RAISE(ABORT, '{_ONCE}'); END"
        for table in ("claim", "drawing", "released")
        for event in ("UPDATE", "DELETE")
    ),
    # REPLACE would get around the two above.
    "CREATE TRIGGER released_once BEFORE INSERT ON released "
    "WHEN EXISTS (SELECT 1 FROM released WHERE key = NEW.key) "
    f"BEGIN SELECT RAISE(ABORT, '{_ONCE}'); END",
)

#: Claims at work in this process, by its number: a fork inherits the set, but not the work.
_AT_WORK: set[tuple[int, str]] = set()


class ReleaseStore:
    """Claims and released values in one file.

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
        charge: Callable[[], int | None],
        read: Callable[[], Any] | None,
        about: dict[str, Any],
    ) -> T:
        """The value under ``key``: what was stored, or a new draw.

        Args:
            key: Names the value.
            draw: Draws the noise; takes what ``read`` returned, if that is given.
            charge: Charges, inside the claim's transaction; returns the number of the charge.
            read: Touches the records before any noise is drawn. If it fails, nothing was drawn,
                and the charge serves the next attempt.
            about: What the value is, JSON-ready and public; must be the same at every call.
        """
        work, claim = (os.getpid(), uuid.uuid4().hex), None
        try:
            claim = self._claim(key, work, charge, about, draws_at_once=read is None)
            if claim is None:
                return self._stored(key)
            if read is None:
                return self._store(key, claim, draw())
            material = read()
            self._begin(key, claim)
            return self._store(key, claim, draw(material))
        except BaseException:
            # Others need not wait for this process to end. If this fails too, or if the claim was
            # interrupted in its commit, they will wait; this process will not.
            if claim is not None:
                with suppress(Exception), self._file.transaction():
                    self._file.execute("INSERT INTO given_up VALUES (?)", (claim,))
            raise
        finally:
            _AT_WORK.discard(work)

    def find(self, key: str) -> tuple[bool, Any]:
        """Whether a value is stored under ``key``, and the value."""
        rows = self._file.query("SELECT 1 FROM released WHERE key = ?", (key,))
        return (True, self._stored(key)) if rows else (False, None)

    def _claim(
        self,
        key: str,
        work: tuple[int, str],
        charge: Callable[[], int | None],
        about: dict[str, Any],
        *,
        draws_at_once: bool,
    ) -> int | None:
        """The number of a new claim, charged for; None if the value is there already."""
        if not isinstance(key, str) or not key:
            raise TypeError(f"`key` must be a non-empty string, got {key!r}.")
        with self._file.transaction():
            execute = self._file.execute
            last = execute(
                "SELECT number, owner, charge, about, "
                "EXISTS (SELECT 1 FROM drawing WHERE claim = number), "
                "EXISTS (SELECT 1 FROM given_up WHERE claim = number), "
                "EXISTS (SELECT 1 FROM released WHERE released.key = claim.key) "
                "FROM claim WHERE key = ? ORDER BY number DESC LIMIT 1",
                (key,),
            ).fetchone()
            if last is None:
                charged = charge()
            else:
                _, owner, before, stored, drawing, given_up, released = last
                try:
                    promised = json.loads(stored)
                    at_work = not (given_up or released) and _is_alive(owner)
                except (LookupError, TypeError, ValueError) as error:
                    raise self._file.damaged(f"the claim to {key!r} was altered") from error
                changed = differences(promised, about)
                if changed:
                    raise PrivacyError(
                        f"`key` {key!r} names a value that was released as something else: "
                        f"{'; '.join(changed)}. Use a new key for a new release."
                    )
                if released:
                    return None
                if at_work:
                    raise AlreadyReleased(
                        f"{_words(owner)} is drawing the value under `key` {key!r}: a second draw "
                        "would be a second release. Wait for it and ask again, or use another key, "
                        "which is another charge."
                    )
                charged = charge() if drawing else before
            execute(
                "INSERT INTO claim (key, owner, charge, about) VALUES (?, ?, ?, ?)",
                (key, owner_words(work), charged, json.dumps(about)),
            )
            number = int(execute("SELECT last_insert_rowid()").fetchone()[0])
            if draws_at_once:
                execute("INSERT INTO drawing VALUES (?)", (number,))
            _AT_WORK.add(work)
        return number

    def _begin(self, key: str, claim: int) -> None:
        """Write down that noise will be drawn, unless somebody has taken the claim over."""
        with self._file.transaction():
            written = self._file.execute(
                "INSERT INTO drawing SELECT ? WHERE NOT EXISTS "
                "(SELECT 1 FROM claim WHERE key = ? AND number > ?)",
                (claim, key, claim),
            )
            if written.rowcount != 1:
                raise AlreadyReleased(
                    f"The claim to `key` {key!r} was taken over while the records were read. Ask "
                    "again for the value."
                )

    def _store(self, key: str, claim: int, value: Any) -> Any:
        """Store ``value`` unless another one is there, and return what is stored."""
        content = pack(value)
        with self._file.transaction():
            written = self._file.execute(
                "INSERT INTO released SELECT ?, ?, ? WHERE NOT EXISTS "
                "(SELECT 1 FROM released WHERE key = ?)",
                (key, claim, sqlite3.Binary(content), key),
            )
        # As it would be read, and as it is stored by now.
        return unpack(content) if written.rowcount == 1 else self._stored(key)

    def _stored(self, key: str) -> Any:
        ((content,),) = self._file.query("SELECT value FROM released WHERE key = ?", (key,))
        try:
            return unpack(content)
        except ValueError as error:
            raise self._file.damaged(f"the value under {key!r} was altered") from error


def _is_alive(owner: str) -> bool:
    """Whether the process of a claim may still be at work; yes where that cannot be told."""
    return may_be_at_work(owner, _AT_WORK)


def _words(owner: str) -> str:
    known = json.loads(owner)
    return f"Process {known['pid']} on {known['host']}"


# --- What a run depends on. ---


@dataclass(frozen=True)
class Fingerprint:
    """Stands for records among the settings of a run.

    A file stores a keyed hash of it, under a random key of its own, and messages say only that it
    differs: a plain hash would let whoever sees it test guesses about the records.
    """

    digest: bytes = field(repr=False)


def fingerprint(*parts: Tensor | Fingerprint) -> Fingerprint:
    """What tensors' types, shapes and bits are recognized by, in the settings of a :class:`Run`."""
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
        "CREATE TABLE run (id INTEGER PRIMARY KEY CHECK (id = 1), notice TEXT NOT NULL, "
        "what TEXT NOT NULL, identity TEXT NOT NULL, key TEXT NOT NULL, settings TEXT NOT NULL)",
        "CREATE TABLE state (name TEXT PRIMARY KEY, value BLOB NOT NULL)",
        "CREATE TABLE item (series TEXT NOT NULL, number INTEGER NOT NULL, "
        "value BLOB NOT NULL, PRIMARY KEY (series, number))",
        *RELEASE_TABLES,
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
        settings: All that the run depends on, JSON-ready but for a :func:`fingerprint` of records.
            A file with other settings is refused.
        ledger: What released values are charged to.

    Raises:
        PrivacyError: The file is in use, damaged, or of another run.

    Example:
        >>> with Run("descent.run", what="a descent", settings={"steps": 10}) as run:
        ...     noisy = run.release(price, draw, key="step 1")
        ...     run.put(step=1)
    """

    #: What the file is; a run that keeps more than values adds its own tables.
    kind: ClassVar[FileKind] = RUN
    #: Whether one handle at a time holds the file. Without it, every decision that a run takes must
    #: be one transaction; released values need nothing more, the release store keeps them apart.
    exclusive: ClassVar[bool] = True

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
        self._key = os.urandom(32)

        def create(connection: sqlite3.Connection) -> None:
            settings = json.dumps(self.comparable(self._settings))
            row = [self._what, uuid.uuid4().hex, self._key.hex(), settings]
            connection.execute("INSERT INTO run VALUES (1, ?, ?, ?, ?, ?)", (_NOTICE, *row))
            # A checksum of what the row says: with another identity, values would be drawn anew.
            connection.execute("INSERT INTO state VALUES (?, ?)", (_SEAL, pack([_SEAL, row])))

        self.path = None if path is None else os.path.realpath(path)
        alone = self.exclusive and self.path is not None
        self._file = StateFile(self.path or MEMORY, self.kind, create, exclusive=alone)
        try:
            rows = self._file.query("SELECT what, identity, key, settings FROM run")
            if len(rows) != 1:
                raise self._file.damaged("it names no run")
            if self.get(_SEAL) != [*rows[0]]:
                raise self._file.damaged("what it says about the run was altered")
            ((stored_what, self._identity, key, stored),) = rows
            self._key = bytes.fromhex(key)
            if self.path is not None and self.resumed:
                self._check_places()
            if stored_what != self._what:
                raise PrivacyError(
                    f"`checkpoint` {self.path} is of {stored_what}, not of {self._what}: choose "
                    "another path."
                )
            changed = differences(json.loads(stored), self.comparable(self._settings))
            if changed:
                raise PrivacyError(
                    f"`checkpoint` {self.path} belongs to a run with other settings "
                    f"({'; '.join(changed)}): its values were drawn under a promise that was not "
                    "made for these. Continue it with its own settings, or choose another path."
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

    def __deepcopy__(self, memo: object) -> Run:
        return Run(None, what=self._what, settings=self._settings, ledger=self._ledger)

    def __reduce__(self) -> tuple[object, ...]:
        return _new_run, (self._what, self._settings, self._ledger)

    def _renew_in_a_fork(self) -> None:
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
