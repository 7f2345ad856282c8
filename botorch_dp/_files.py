"""Files of ours: whole or absent, readable by their owner only, locked, versioned, checked.

Whatever must survive a kill is one SQLite file (:class:`StateFile`): a ledger, a study, a run that
resumes, a query log. What holds for all of them:

* *What was committed is on the disk.* ``synchronous = EXTRA`` with a rollback journal syncs the
  file, the journal and the folder before a commit returns. Nothing lies beside the file while no
  transaction runs, so a copy made then is complete.
* *Nobody meets half a file.* A new one is built aside with mode 0600 and linked into place.
* *One name for one file.* SQLite finds its journal by name; under a second hard link it would not
  find it, and lose what was acknowledged. More than one link is refused, symbolic links are
  resolved.
* *An exclusive file has one holder*, by a lock on the file itself, which the system drops when the
  process ends, however it ends. A forked child is another process.
* *Locks are tried before they are trusted.* On a network file system without a lock service they
  may be granted to everybody; then no file is opened (:func:`_check_locks`).
* *A claim in a file names its owner* (:func:`owner_words`): a process that is told from a later one
  of its number, so that whoever comes after it knows whether it is still at work.
"""

from __future__ import annotations

import errno
import functools
import hashlib
import json
import os
import socket
import sqlite3
import struct
import subprocess
import tempfile
import threading
import time
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

import numpy as np

from botorch_dp.errors import PrivacyError

try:
    import fcntl
except ImportError:  # Windows, where what is locked cannot be opened
    fcntl = None  # type: ignore[assignment]

#: Only the owner reads and writes.
OWNER_ONLY = 0o600
MEMORY = ":memory:"
#: How long a transaction waits for other processes, and how often it asks. SQLite's own waiting
#: asks ten times a second in the end, and starves beside a process that writes without a pause.
BUSY_SECONDS = 60.0
POLL_SECONDS = 5e-4
#: A file that is just being linked into place has two names for a moment.
_LINKING_SECONDS = 1.0
#: Where SQLite locks a file, and for how many bytes; the byte after is where we hold it alone.
_LOCK_BYTE, _LOCK_BYTES = 0x40000000, 512
#: Locks that belong to descriptors, where the system has them (Linux).
_OF_DESCRIPTORS: int | None = getattr(fcntl, "F_OFD_SETLK", None)
#: Mount options with which locks do not leave the machine, for file systems that others may share.
_LOCAL_LOCKS = {
    "nfs": ("nolock", "local_lock=all", "local_lock=posix"),
    "cifs": ("nobrl",),
    "smb3": ("nobrl",),
    "lustre": ("localflock",),
}
#: Devices whose locks were tried in this process.
_LOCKS_WORK: set[int] = set()


@contextmanager
def atomic_write(
    path: str | os.PathLike[str], *, binary: bool = False, owner_only: bool = False
) -> Iterator[IO[Any]]:
    """Open a file that appears under ``path`` only once it is complete and on disk.

    An interruption leaves the old file, or none; never half of the new one.

    Args:
        path: Where the file shall appear; its folder must exist.
        binary: Whether to write bytes instead of text.
        owner_only: Whether only the owner may read it (mode 0600).
    """
    target = Path(path)
    descriptor, temporary = tempfile.mkstemp(
        dir=target.parent, prefix=f".{target.name}.", suffix=".part"
    )
    try:
        with os.fdopen(descriptor, "wb" if binary else "w") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        if not owner_only:
            # mkstemp is for the owner by default: give a public file the mode `open` would.
            umask = os.umask(0)
            os.umask(umask)
            os.chmod(temporary, 0o666 & ~umask)
        os.replace(temporary, target)
        sync_folder(target.parent)
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(temporary)
        raise


def sync_folder(folder: Path) -> None:
    """Bring the names in a folder to the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def now() -> str:
    """The time in UTC, for the record only."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def differences(stored: Any, given: Any, path: str = "") -> list[str]:
    """What differs between two JSON values, in words; empty if they describe the same thing.

    Both go through JSON first, so that tuples and lists compare equal. The order of names counts:
    that of parameters decides what a seed proposes.
    """
    if not path:
        stored, given = (json.loads(json.dumps(value)) for value in (stored, given))
    if isinstance(stored, dict) and isinstance(given, dict):
        found = []
        for key in dict.fromkeys((*stored, *given)):
            where = f"{path}.{key}" if path else str(key)
            if key not in stored:
                found.append(f"`{where}` is new")
            elif key not in given:
                found.append(f"`{where}` is missing")
            else:
                found += differences(stored[key], given[key], where)
        if not found and list(stored) != list(given):
            found.append(f"`{path}` has another order")
        return found
    return [] if stored == given else [f"`{path}` was {stored!r} and is {given!r}"]


def pack(value: Any) -> bytes:
    """A value as bytes: numbers, words, lists, dictionaries, NumPy arrays and tensors.

    Nothing in it is code: reading it back cannot run anything. Arrays keep every bit.
    """
    arrays: list[bytes] = []
    header = json.dumps(_packed(value, arrays)).encode()
    parts = [len(header).to_bytes(8, "big"), header, *arrays]
    body = b"".join(parts)
    return hashlib.sha256(body).digest() + body


def unpack(content: bytes) -> Any:
    """Inverse of :func:`pack`; damaged content raises ``ValueError``."""
    digest, body = content[:32], memoryview(content)[32:]
    if len(content) < 40 or hashlib.sha256(body).digest() != digest:
        raise ValueError("the stored value is damaged: its checksum does not fit")
    size = int.from_bytes(body[:8], "big")
    return _unpacked(json.loads(bytes(body[8 : 8 + size])), body[8 + size :])


def _packed(value: Any, arrays: list[bytes]) -> Any:
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, int):
        return {"int": str(value)}
    if isinstance(value, float):
        return {"float": value.hex()}
    if isinstance(value, list | tuple):
        kind = "list" if isinstance(value, list) else "tuple"
        return {kind: [_packed(part, arrays) for part in value]}
    if isinstance(value, Mapping):
        return {"dict": [[_packed(k, arrays), _packed(v, arrays)] for k, v in value.items()]}
    tensor = _is_tensor(value)
    array = value.detach().cpu().contiguous().numpy() if tensor else value
    if not isinstance(array, np.ndarray) or array.dtype.kind not in "biuf":
        raise TypeError(
            f"A {type(value).__name__} cannot be stored: release numbers, words, lists, "
            "dictionaries, arrays or tensors."
        )
    content = np.ascontiguousarray(array).tobytes()
    place = sum(map(len, arrays))
    arrays.append(content)
    kind = "tensor" if tensor else "array"
    return {kind: [array.dtype.str, list(array.shape), place, len(content)]}


def _unpacked(value: Any, content: memoryview) -> Any:
    if not isinstance(value, dict):
        return value
    ((kind, stored),) = value.items()
    if kind == "int":
        return int(stored)
    if kind == "float":
        return float.fromhex(stored)
    if kind == "dict":
        return {_unpacked(k, content): _unpacked(v, content) for k, v in stored}
    if kind in ("list", "tuple"):
        parts = [_unpacked(part, content) for part in stored]
        return parts if kind == "list" else tuple(parts)
    dtype, shape, place, size = stored
    array = np.frombuffer(content[place : place + size], dtype=dtype).reshape(shape).copy()
    if kind == "array":
        return array
    import torch  # late: the ledger and the accountant do without it

    return torch.from_numpy(array)


def _is_tensor(value: object) -> bool:
    import sys

    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def owner_words(work: tuple[int, str], **more: Any) -> str:
    """Who claims something, in words that tell its process from a later one of its number."""
    pid, token = work
    known = {"token": token, "pid": pid, "started": _started(pid), "host": socket.gethostname()}
    return json.dumps(known | more)


def may_be_at_work(owner: str, here: Container[tuple[int, str]]) -> bool:
    """Whether an owner may still be at work; of this process, whether it is among those here."""
    known = json.loads(owner)
    if (os.getpid(), known["token"]) in here or known["host"] != socket.gethostname():
        return True
    if known["pid"] == os.getpid() and known["started"] == _started(os.getpid()):
        return False  # this process, and it is not at work on it
    return bool(known["started"] == _started(known["pid"]))


def _started(pid: int) -> str | None:
    """When a process started, in words that tell it from a later one of its number; None if ended.

    A number is used again after some time, and by every container; the start tells them apart.
    """
    return _own_start(pid) if pid == os.getpid() else _start_of(pid)


@functools.cache
def _own_start(pid: int) -> str | None:
    """That of this process, which is asked for at every claim and does not change."""
    return _start_of(pid)


if hasattr(os, "register_at_fork"):  # a fork may have a number that one of its ancestors had
    os.register_at_fork(after_in_child=_own_start.cache_clear)


def _start_of(pid: int) -> str | None:
    """What the system says of a process."""
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


@dataclass(frozen=True)
class FileKind:
    """What tells one kind of file from another.

    Args:
        name: What messages call it.
        application_id: Marks the SQLite file: another database is not a damaged one of ours.
        migrations: Statements that lead from each schema version to the next, or functions of the
            connection; their count is the newest version.
        error: What is raised; takes one message.
        if_lost: What a damaged file means and what to do about it.
    """

    name: str
    application_id: int
    migrations: tuple[tuple[str | Callable[[Any], None], ...], ...]
    error: Callable[[str], Exception] = PrivacyError
    if_lost: str = "Put back a copy, or begin anew at another path."


class Database(ABC):
    """One database of a kind, wherever it lives. Threads may share it."""

    kind: FileKind
    path: str
    #: Whether it was not there before.
    created: bool
    lock: threading.RLock
    _connection: Any
    _closed: bool = False

    def error(self, message: str) -> Exception:
        """An error of this kind of file."""
        return self.kind.error(message)

    def damaged(self, how: str) -> Exception:
        """The error for a file that cannot be trusted."""
        name, lost = self.kind.name, self.kind.if_lost
        return self.error(f"The {name} {self.path} is damaged ({how}). {lost}")

    @property
    def closed(self) -> bool:
        """Whether :meth:`close` was called."""
        return self._closed

    def __del__(self) -> None:
        with suppress(Exception):
            self.close()

    @property
    def in_transaction(self) -> bool:
        """Whether this thread is in the midst of a transaction."""
        with self.lock:
            return self._connection is not None and bool(self._connection.in_transaction)

    @abstractmethod
    def close(self) -> None:
        """Release it. What was committed stays."""

    @abstractmethod
    def changes(self) -> object:
        """Something that is another one after somebody else has written."""

    @contextmanager
    def transaction(self) -> Iterator[Any]:
        """All or nothing, whatever interrupts it; what was written is durable when it is left.

        Inside another transaction of the same thread it is a part of that one.
        """
        with self.lock, self.explained():
            connection = self._connected()
            if connection.in_transaction:
                yield connection
                return
            try:
                self.execute("BEGIN IMMEDIATE")
                connection = self._connected()  # another one, if it had to be made again
                yield connection
                self._commit(connection)
            except BaseException:
                if connection.in_transaction:
                    with suppress(Exception):
                        connection.execute("ROLLBACK")
                raise

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        """Let several reads see one state: that of the running transaction, or of their own."""
        with self.lock, self.explained():
            connection = self._connected()
            if connection.in_transaction:
                yield
                return
            try:
                self.execute("BEGIN")
                connection = self._connected()
                yield
            finally:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")

    def query(self, statement: str, values: Sequence[object] = ()) -> list[tuple]:
        """All rows of a statement."""
        with self.lock, self.explained():
            return self.execute(statement, values).fetchall()

    @abstractmethod
    def execute(self, statement: str, values: Sequence[object] = ()) -> Any:
        """Run a statement as soon as others let it run."""

    def executemany(self, statement: str, rows: Sequence[Sequence[object]]) -> None:
        """Run a statement for each row. Inside a transaction."""
        self._connected().executemany(statement, rows)

    @abstractmethod
    def explained(self) -> AbstractContextManager[None]:
        """Turn errors of the database into sentences that say what to do."""

    @abstractmethod
    def _connected(self) -> Any: ...

    def _commit(self, connection: Any) -> None:
        self.execute("COMMIT")

    @abstractmethod
    def _set_version(self, connection: Any, version: int) -> None: ...

    def _migrate(self, connection: Any, version: int) -> None:
        """Bring the schema from ``version`` to the newest. Inside a transaction."""
        for statements in self.kind.migrations[version:]:
            for statement in statements:
                if isinstance(statement, str):
                    connection.execute(statement)
                else:
                    statement(connection)
        self._set_version(connection, len(self.kind.migrations))

    def _leave_to_parent(self) -> None:
        """In a fork: connections do not survive one, so keep it unused and unclosed."""
        self._pid = -1  # this process may have the number of whoever opened it
        if self._connection is not None:
            _INHERITED.append(self._connection)
            self._connection = None


class StateFile(Database):
    """One SQLite file of a kind, or a database in memory. Threads may share it.

    Args:
        path: The file, or ``":memory:"``.
        kind: What it must be.
        create: Fills a new file, inside its first transaction; None to open an existing one only.
        exclusive: Whether nobody else may have the file open meanwhile. Otherwise other processes
            and forks may share it.
        copied: Whether to read a copy in memory of what is committed now. The file, its lock and
            its holder are left alone.

    Raises:
        Exception: ``kind.error`` with a reason, if the file is damaged, of another kind, in use,
            not writable, or has a second hard link.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        kind: FileKind,
        create: Callable[[sqlite3.Connection], None] | None,
        *,
        exclusive: bool,
        copied: bool = False,
    ) -> None:
        self.kind = kind
        self.path = MEMORY if str(path) == MEMORY else os.path.realpath(path)
        self.lock = threading.RLock()
        self._exclusive = exclusive
        self._connection: sqlite3.Connection | None = None
        self._holder: int | None = None
        self._identity: tuple[int, int] | None = None
        self._pid = os.getpid()
        self._in_memory = copied or self.path == MEMORY
        self.created = self.path == MEMORY or not os.path.lexists(self.path)
        if self.created and create is None:
            raise self.error(f"There is no {kind.name} at {self.path}.")
        try:
            with self.explained():
                if copied:
                    self._connection = self._copy()
                elif self.path == MEMORY:
                    assert create is not None
                    self._connection = _connect(MEMORY)
                    self._build(self._connection, create)
                else:
                    if self.created:
                        assert create is not None
                        self._create_file(create)
                    self._connected()
        except BaseException:
            self.close()
            raise
        survive_forks(self)

    def close(self) -> None:
        """Release the file. What was committed stays."""
        with self.lock:
            self._closed = True
            if self._connection is not None:
                self._connection.close()
                self._connection = None
            # Last: closing any descriptor of a file drops SQLite's own locks on it.
            self._drop_lock()

    def changes(self) -> object:
        """Something that is another one after another connection has written."""
        return self.query("PRAGMA data_version")

    def execute(self, statement: str, values: Sequence[object] = ()) -> sqlite3.Cursor:
        """Run a statement as soon as other processes let it run."""
        return _execute(self._connected(), statement, values)

    @contextmanager
    def explained(self) -> Iterator[None]:
        """Turn errors of SQLite and the file system into sentences that say what to do."""
        what = f"The {self.kind.name} {self.path}"
        try:
            yield
        except OSError as error:
            if error.errno in (errno.EACCES, errno.EROFS, errno.EPERM):
                raise self._read_only() from error
            raise self.error(
                f"{what} cannot be created here ({error.strerror}); nothing was written. Put it on "
                "a local disk with free space."
            ) from error
        except UnicodeDecodeError as error:
            raise self.damaged("it holds unreadable text") from error
        except sqlite3.Error as error:
            code = _code(error)
            if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
                raise self.damaged(str(error)) from error
            if code == 0:  # raised by Python, which could not decode a text
                raise self.damaged("it holds unreadable text") from error
            if code in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM):
                raise self._read_only() from error
            if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
                raise self.error(
                    f"Another process has held {what[0].lower() + what[1:]} for {BUSY_SECONDS:g} "
                    "seconds; nothing was written. Try again, or end the process that holds it."
                ) from error
            raise self.error(
                f"{what} could not be read or written ({error}), so nothing may be released. "
                "Check the disk for space and errors, then try again."
            ) from error

    def _read_only(self) -> Exception:
        return self.error(
            f"The {self.kind.name} {self.path} cannot be written; nothing was changed. Give this "
            "process write permission on the file and on its folder (SQLite keeps its journal "
            "there)."
        )

    def _create_file(self, create: Callable[[sqlite3.Connection], None]) -> None:
        """Build the file aside, for its owner only, and link it into place when complete."""
        path = Path(self.path)
        if not path.parent.is_dir():
            raise self.error(
                f"The path of the {self.kind.name} leads nowhere, the folder {path.parent} does "
                "not exist: create it first."
            )
        # mkstemp creates the file exclusively and with mode 0600 before SQLite sees it.
        _check_locks(path.parent, self.error)
        descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        os.close(descriptor)
        try:
            with closing(_connect(Path(temporary).as_uri() + "?mode=rw")) as connection:
                self._build(connection, create)
            # Unlike a rename, a link fails if another process was first: that file is the one.
            try:
                os.link(temporary, path)
            except FileExistsError:
                self.created = False
        finally:
            os.unlink(temporary)
        sync_folder(path.parent)

    def _build(
        self, connection: sqlite3.Connection, create: Callable[[sqlite3.Connection], None]
    ) -> None:
        connection.execute("BEGIN IMMEDIATE")
        connection.execute(f"PRAGMA application_id = {self.kind.application_id}")
        self._migrate(connection, 0)
        create(connection)
        connection.execute("COMMIT")

    def _set_version(self, connection: Any, version: int) -> None:
        connection.execute(f"PRAGMA user_version = {version}")

    def _connected(self) -> sqlite3.Connection:
        """The connection of this process, to the file that was opened first."""
        name = self.kind.name
        if self._closed:
            raise self.error(f"The {name} {self.path} is closed: open it again to go on.")
        if self._in_memory:
            if self._connection is None:
                raise self.error(
                    f"A {name} in memory cannot be shared with a forked process, which would spend "
                    f"a second time. Give the {name} a path."
                )
            return self._connection
        if self._exclusive and self._pid != os.getpid():
            raise self.error(
                f"The {name} {self.path} belongs to the process that opened it, of which this one "
                "is a fork. Open it here once that process has let it go."
            )
        if self._connection is None:
            self._connection = self._open()
        if self._identity is None:
            self._identity = self._checked_identity()
        elif self._checked_identity() != self._identity:
            raise self.error(
                f"The {name} {self.path} was removed or replaced while it was open, so what was "
                "written may be lost. Put the file back, or begin anew."
            )
        return self._connection

    def _checked_identity(self) -> tuple[int, int] | None:
        """Device and inode, once the file has no second name."""
        deadline = time.monotonic() + _LINKING_SECONDS
        while True:
            try:
                status = os.stat(self.path)
            except FileNotFoundError:
                return None
            if status.st_nlink == 1:
                return status.st_dev, status.st_ino
            if status.st_nlink > 1 and time.monotonic() > deadline:
                raise self.error(
                    f"The {self.kind.name} {self.path} has {status.st_nlink} hard links. Under "
                    "another name its journal is not found, and what was written can be lost: "
                    "keep one name (a symbolic link to it is fine)."
                )
            time.sleep(POLL_SECONDS)

    def _open(self) -> sqlite3.Connection:
        """Connect, after checking that the file is what it should be; bring it up to date."""
        path = self.path
        self._check_is_file()
        if not os.access(path, os.R_OK | os.W_OK) or not os.access(os.path.dirname(path), os.W_OK):
            raise self._read_only()
        self._checked_identity()
        _check_locks(Path(path).parent, self.error)
        if self._exclusive:
            self._take_lock()
        connection = _connect(Path(path).as_uri() + "?mode=rw")
        try:
            self._check_kind(connection)
            if os.stat(path).st_mode & 0o077:
                os.chmod(path, OWNER_ONLY)
            self._bring_up_to_date(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _copy(self) -> sqlite3.Connection:
        """A copy in memory, brought up to date there."""
        self._check_is_file()
        connection = _connect(MEMORY)
        try:
            with closing(sqlite3.connect(Path(self.path).as_uri() + "?mode=ro", uri=True)) as file:
                file.backup(connection)  # waits while somebody commits
            self._check_kind(connection)
            self._bring_up_to_date(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _check_is_file(self) -> None:
        if not os.path.isfile(self.path):
            raise self.error(
                f"{self.path} is not a file: give the {self.kind.name} the path of a file."
            )
        if os.path.getsize(self.path) == 0:
            raise self.damaged("it is empty")

    def _check_kind(self, connection: sqlite3.Connection) -> None:
        path, kind = self.path, self.kind
        if _pragma(connection, "application_id") != kind.application_id:
            raise self.error(f"{path} is an SQLite file but no {kind.name}: check the path.")
        if _pragma(connection, "user_version") > len(kind.migrations):
            raise self.error(
                f"The {kind.name} {path} was written by a newer version of botorch_dp: upgrade "
                "botorch_dp to use it."
            )

    def _bring_up_to_date(self, connection: sqlite3.Connection) -> None:
        if _pragma(connection, "integrity_check") != "ok":
            raise self.damaged("SQLite's integrity check fails")
        if _pragma(connection, "user_version") < len(self.kind.migrations):
            _execute(connection, "BEGIN IMMEDIATE")
            # Another process may have been first while this one waited for the lock.
            self._migrate(connection, _pragma(connection, "user_version"))
            _execute(connection, "COMMIT")

    def _take_lock(self) -> None:
        """Hold the file alone. The lock belongs to the inode, whatever name it was opened by."""
        holder = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
        if not _locked(holder, _LOCK_BYTE + _LOCK_BYTES, 1):
            os.close(holder)
            raise self.error(
                f"The {self.kind.name} {self.path} is in use: only one process, and one object in "
                "it, may hold it. Wait for it to end, close it, or choose another path."
            )
        self._holder = holder

    def _drop_lock(self) -> None:
        if self._holder is not None:
            # In a fork this closes the child's copy only: the parent's lock stays.
            with suppress(OSError):
                os.close(self._holder)
            self._holder = None

    def _leave_to_parent(self) -> None:
        super()._leave_to_parent()
        self._drop_lock()


def _locked(descriptor: int, start: int, size: int) -> bool:
    """Lock some bytes of a file for this descriptor and its copies in forks; False if others do.

    SQLite's own locks belong to processes: they would not keep apart two objects in one, and a
    fork would drop none of them. Those of descriptors exclude them as well as each other.
    """
    try:
        if _OF_DESCRIPTORS is not None:
            request = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, start, size, 0)
            fcntl.fcntl(descriptor, _OF_DESCRIPTORS, request)
        else:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return False
    return True


def _check_locks(folder: Path, error: Callable[[str], Exception]) -> None:
    """Raise if two handles of one file in this folder would not exclude each other.

    One handle is SQLite's, so that what is tried is what will be used; the other one asks the
    system for the same bytes. Where the system has no locks of descriptors (outside of Linux), two
    descriptors try each other instead.
    """
    device = os.stat(folder).st_dev
    if fcntl is None or device in _LOCKS_WORK:
        return
    reason = _locks_locally(device)
    if reason is None:
        # Aside: closing a descriptor drops all locks of this process on the file.
        descriptor, temporary = tempfile.mkstemp(dir=folder, prefix=".locks.")
        other = os.open(temporary, os.O_RDWR | os.O_CLOEXEC)
        try:
            with closing(_connect(Path(temporary).as_uri() + "?mode=rw")) as connection:
                connection.execute("BEGIN EXCLUSIVE")
                if _OF_DESCRIPTORS is not None and _locked(other, _LOCK_BYTE, _LOCK_BYTES):
                    reason = "SQLite's locks are granted to everybody"
            held = _locked(descriptor, _LOCK_BYTE, 1)
            if reason is None and (not held or _locked(other, _LOCK_BYTE, 1)):
                reason = "locks are granted to everybody or to nobody"
        finally:
            os.close(descriptor)
            os.close(other)
            os.unlink(temporary)
    if reason is not None:
        raise error(
            f"The folder {folder} cannot keep a file that several processes may open: {reason}, so "
            "that two of them could write at once and lose what was acknowledged. Nothing was "
            "written. Use a local disk, or mount the file system with a lock service."
        )
    _LOCKS_WORK.add(device)


def _locks_locally(device: int) -> str | None:
    """Why locks on this device are unknown to other machines, as far as Linux says so."""
    try:
        with open("/proc/self/mountinfo") as file:
            mounts = [line.split() for line in file]
    except OSError:
        return None
    for mount in mounts:
        if mount[2] != f"{os.major(device)}:{os.minor(device)}":
            continue
        kind, options = mount[mount.index("-") + 1], mount[-1].split(",")
        for option in _LOCAL_LOCKS.get("nfs" if kind.startswith("nfs") else kind, ()):
            if option in options:
                return f"its {kind} file system is mounted with {option!r}"
    return None


def _connect(database: str) -> sqlite3.Connection:
    """A connection whose commits are on the disk when they return."""
    connection = sqlite3.connect(
        database,
        uri=database != MEMORY,
        timeout=0.0,
        isolation_level=None,
        check_same_thread=False,
    )
    try:
        if database != MEMORY:
            _execute(connection, "PRAGMA journal_mode = DELETE")
        connection.execute("PRAGMA synchronous = EXTRA")
        connection.execute("PRAGMA fullfsync = ON")
    except BaseException:
        connection.close()
        raise
    return connection


def _execute(
    connection: sqlite3.Connection, statement: str, values: Sequence[object] = ()
) -> sqlite3.Cursor:
    deadline = time.monotonic() + BUSY_SECONDS
    while True:
        try:
            return connection.execute(statement, values)
        except sqlite3.OperationalError as error:
            if _code(error) != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
        time.sleep(POLL_SECONDS)


def _code(error: sqlite3.Error) -> int:
    """SQLite's primary result code; 0 if Python raised the error."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


def _pragma(connection: sqlite3.Connection, name: str) -> Any:
    return _execute(connection, f"PRAGMA {name}").fetchone()[0]


_REGISTRY = threading.RLock()
_FILES: weakref.WeakSet[Database] = weakref.WeakSet()
_INHERITED: list[Any] = []
_HELD_FOR_FORK: list[Database] = []
_hooked = False


def survive_forks(file: Database) -> None:
    """Let ``file`` survive ``os.fork``: never amid a transaction, never on a shared connection."""
    global _hooked
    with _REGISTRY:
        _FILES.add(file)
        if not _hooked and hasattr(os, "register_at_fork"):
            os.register_at_fork(
                before=_before_fork,
                after_in_parent=_after_fork_in_parent,
                after_in_child=_after_fork_in_child,
            )
            _hooked = True


def _before_fork() -> None:
    _REGISTRY.acquire()
    for file in list(_FILES):
        file.lock.acquire()
        _HELD_FOR_FORK.append(file)


def _after_fork_in_parent() -> None:
    while _HELD_FOR_FORK:
        _HELD_FOR_FORK.pop().lock.release()
    _REGISTRY.release()


def _after_fork_in_child() -> None:
    for file in _HELD_FOR_FORK:
        file._leave_to_parent()
    _after_fork_in_parent()
