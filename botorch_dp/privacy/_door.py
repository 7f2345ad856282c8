"""The door: one noisy draw for one key, whatever is copied, forked, retried, killed or resumed.

A key names a released *value*. Whoever wants it claims the key, pays, draws, stores, and only then
shows; everybody who comes later gets what was stored. In the file of a :class:`Door`:

1. *claim*: one transaction writes who draws (process, its start, host) and the charge;
2. *begin*: where records are read before the noise is drawn, a second one says that drawing begins
   (otherwise the first one says so);
3. *value*: a third one stores what was drawn. Only what is stored leaves the door.

A claim with a living owner is refused to others. If its owner died before it began to draw,
nothing was drawn, and the next claim takes over the charge. If it died (or failed) later, the noise
may have been drawn: that charge stays spent, and the next draw is paid for anew. Two values under
one key are impossible: the second one to be stored is thrown away, and both return the first.
"""

from __future__ import annotations

import functools
import json
import os
import socket
import sqlite3
import subprocess
import uuid
from collections.abc import Callable, Container
from contextlib import suppress
from typing import Any, TypeVar

from botorch_dp._files import StateFile, differences, now, pack, unpack
from botorch_dp.errors import AlreadyReleased, PrivacyError

T = TypeVar("T")


_ONCE = "a released value is never changed or removed"

#: Statements that give a file a door. Rows are only ever added.
DOOR_TABLES: tuple[str, ...] = (
    "CREATE TABLE claim (number INTEGER PRIMARY KEY, key TEXT NOT NULL, owner TEXT NOT NULL, "
    "charge INTEGER, about TEXT NOT NULL, claimed_at TEXT NOT NULL)",
    "CREATE INDEX claim_key ON claim (key)",
    "CREATE TABLE drawing (claim INTEGER PRIMARY KEY)",
    "CREATE TABLE given_up (claim INTEGER PRIMARY KEY)",
    "CREATE TABLE released (key TEXT PRIMARY KEY, claim INTEGER NOT NULL, value BLOB NOT NULL, "
    "released_at TEXT NOT NULL)",
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


class Door:
    """Claims and released values in one file.

    Args:
        file: A file with the tables of :data:`DOOR_TABLES`.
    """

    def __init__(self, file: StateFile) -> None:
        self._file = file

    def release(
        self,
        key: str,
        draw: Callable[[Any], T],
        *,
        pay: Callable[[], int | None],
        read: Callable[[], Any] | None,
        about: dict[str, Any],
    ) -> T:
        """The value under ``key``: what was stored, or a new draw.

        Args:
            key: Names the value.
            draw: Draws the noise; takes what ``read`` returned, or None.
            pay: Charges, inside the claim's transaction; returns the number of the charge.
            read: Touches the records before any noise is drawn. If it fails, nothing was drawn,
                and the charge serves the next attempt.
            about: What the value is, JSON-ready and public; must be the same at every call.
        """
        work = (os.getpid(), uuid.uuid4().hex)
        claim = self._claim(key, work, pay, about, draws_at_once=read is None)
        if claim is None:
            return self._stored(key)
        try:
            material = None
            if read is not None:
                material = read()
                self._begin(key, claim)
            return self._store(key, claim, draw(material))
        except BaseException:
            # Others need not wait for this process to end. If this fails too, they will wait.
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
        pay: Callable[[], int | None],
        about: dict[str, Any],
        *,
        draws_at_once: bool,
    ) -> int | None:
        """The number of a new claim, paid for; None if the value is there already."""
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
                charge = pay()
            else:
                _, owner, paid, stored, drawing, given_up, released = last
                changed = differences(json.loads(stored), about)
                if changed:
                    raise PrivacyError(
                        f"`key` {key!r} names a value that was released as something else: "
                        f"{'; '.join(changed)}. Use a new key for a new release."
                    )
                if released:
                    return None
                if not given_up and _is_alive(owner):
                    raise AlreadyReleased(
                        f"{_words(owner)} is drawing the value under `key` {key!r}: a second draw "
                        "would be a second release. Wait for it and ask again, or use another key, "
                        "which is another charge."
                    )
                charge = pay() if drawing else paid
            execute(
                "INSERT INTO claim (key, owner, charge, about, claimed_at) VALUES (?, ?, ?, ?, ?)",
                (key, _owner(work), charge, json.dumps(about), now()),
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
            self._file.execute(
                "INSERT INTO released SELECT ?, ?, ?, ? WHERE NOT EXISTS "
                "(SELECT 1 FROM released WHERE key = ?)",
                (key, claim, sqlite3.Binary(content), now(), key),
            )
        return self._stored(key)

    def _stored(self, key: str) -> Any:
        ((content,),) = self._file.query("SELECT value FROM released WHERE key = ?", (key,))
        try:
            return unpack(content)
        except ValueError as error:
            raise self._file.damaged(f"the value under {key!r} was altered") from error


def _owner(work: tuple[int, str]) -> str:
    return owner_words(work)


def owner_words(work: tuple[int, str], **more: Any) -> str:
    """Who claims something, in words that tell its process from a later one of its number."""
    pid, token = work
    known = {"token": token, "pid": pid, "started": _started(pid), "host": socket.gethostname()}
    return json.dumps(known | more)


def _is_alive(owner: str) -> bool:
    """Whether the process of a claim may still be at work; yes where that cannot be told."""
    return may_be_at_work(owner, _AT_WORK)


def may_be_at_work(owner: str, here: Container[tuple[int, str]]) -> bool:
    """Whether an owner may still be at work; of this process, whether it is among those here."""
    known = json.loads(owner)
    if (os.getpid(), known["token"]) in here or known["host"] != socket.gethostname():
        return True
    if known["pid"] == os.getpid() and known["started"] == _started(os.getpid()):
        return False  # this process, and it is not at work on it
    return bool(known["started"] == _started(known["pid"]))


def _words(owner: str) -> str:
    known = json.loads(owner)
    return f"Process {known['pid']} on {known['host']}"


def _started(pid: int) -> str | None:
    """When a process started, in words that tell it from a later one of its number; None if ended.

    A number is used again after some time, and by every container; the start tells them apart.
    """
    try:
        with open(f"/proc/{pid}/stat") as file:
            # The name of the program stands in brackets and may hold anything.
            fields = file.read().rpartition(")")[2].split()
        return None if fields[0] == "Z" else f"{_boot()} {fields[19]}"
    except (FileNotFoundError, ProcessLookupError):  # the latter if it ends while we read
        if os.path.isdir("/proc/self"):
            return None
    listed = subprocess.run(["ps", "-o", "lstart=", "-p", str(pid)], capture_output=True, text=True)
    return listed.stdout.strip() or None


@functools.cache
def _boot() -> str:
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read().strip()
    except FileNotFoundError:
        return ""
