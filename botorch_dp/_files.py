"""Files of this package: whole or absent, readable by their owner only, locked and checked.

Whatever must survive a kill is one SQLite file (:class:`StateFile`): a ledger, a study, a run that
resumes, a query log. What holds for all of them:

* *What was committed is on the disk.* ``synchronous = EXTRA`` with a rollback journal syncs the
  file, the journal and the folder before a commit returns. Nothing lies beside the file while no
  transaction runs, so a copy made then is complete.
* *Nobody meets half a file.* A new one is built aside with mode 0600 and linked into place.
* *One name for one file.* SQLite finds its journal by name; under a second hard link it would not
  find it, and lose what was acknowledged. More than one link is refused, symbolic links are
  resolved.
* *An exclusive file has one holder*, by a lock on the file itself that ends with the process,
  however it ends, also if children that it forked live on.
* *A forked child is another process.* It notices by its process number at the next use: a shared
  file gets a connection and a lock of its own, an exclusive one is refused, and the parent's
  connection is neither used nor closed. A child that was forked while a thread used a file is
  refused all files: it has inherited SQLite's locks as they were, and might wait for them forever.
* *A claim in a file names its owner* (:func:`owner_words`): a process that is told from a later one
  of its number, so that whoever comes after it knows whether it is still at work.

All of this needs a file system whose locks work (``docs/privacy.md`` says so).
"""

from __future__ import annotations

import ctypes
import errno
import functools
import hashlib
import hmac
import json
import os
import socket
import sqlite3
import struct
import subprocess
import tempfile
import threading
import time
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
#: The format that this version of the package writes, and the only one that it reads.
VERSION = 1
#: How long a transaction waits for other processes, and how often it asks. SQLite's own waiting
#: asks ten times a second in the end, and starves beside a process that writes without a pause.
BUSY_SECONDS = 60.0
POLL_SECONDS = 5e-4
#: A file that is just being linked into place has two names for a moment.
_LINKING_SECONDS = 1.0
#: SQLite locks some bytes from 2^30 on. Behind them, one is held while somebody takes an exclusive
#: file, and the others are for holders: each process has one of its own (:func:`_own_byte`).
_GATE_BYTE = 2**31
#: Locks that belong to descriptors, where the system has them (Linux).
_OF_DESCRIPTORS: int | None = getattr(fcntl, "F_OFD_SETLK", None)
#: Uses of SQLite that are under way, by process. A child that finds some of another process was
#: forked amid them.
_USES: set[tuple[int, object]] = set()


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
    that of parameters decides what a seed proposes. Of a :func:`keyed_hash` only the name is said.
    """
    if not path:
        stored, given = (json.loads(json.dumps(value)) for value in (stored, given))
    if any(isinstance(value, dict) and list(value) == [_KEYED] for value in (stored, given)):
        return [] if stored == given else [f"`{path}` is not the same"]
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


#: The only name in a JSON object that stands for a keyed hash.
_KEYED = "keyed hash"


def keyed_hash(key: bytes, digest: bytes) -> dict[str, str]:
    """What a file keeps of something sensitive, to recognize it: useless without the file's key."""
    return {_KEYED: hmac.digest(key, digest, "sha256").hex()}


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


def may_be_at_work(owner: str, here: Container[tuple[int, str]] | None = None) -> bool:
    """Whether an owner may still be at work: yes where that cannot be told, as on another host.

    Args:
        owner: As written by :func:`owner_words`.
        here: What this process is at work on; None if that is not known either.
    """
    known = json.loads(owner)
    if here is not None and (os.getpid(), known["token"]) in here:
        return True
    if known["host"] != socket.gethostname():
        return True
    if here is not None and known["pid"] == os.getpid():
        return False  # this process, which is not at work on it, or an earlier one of its number
    return bool(known["started"] == _started(known["pid"]))


def _started(pid: int) -> str | None:
    """When a process started, in words that tell it from a later one of its number; None if ended.

    A number is used again after some time, and by every container; the start tells them apart.
    """
    return _own_start(pid) if pid == os.getpid() else _start_of(pid)


@functools.cache
def _own_start(pid: int) -> str | None:
    """That of this process, which is asked for at every claim and does not change.

    A forked child has another number, and so another entry.
    """
    return _start_of(pid)


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
        application_id: Marks the SQLite file: another database is not a damaged one of this kind.
        schema: The statements that make its tables.
        error: What is raised; takes one message.
        if_lost: What a damaged file means and what to do about it.
    """

    name: str
    application_id: int
    schema: tuple[str, ...]
    error: Callable[[str], Exception] = PrivacyError
    if_lost: str = "Put back a copy, or begin anew at another path."


class _Handle:
    """What one process has of a file; a forked child gets one of its own."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.connection: sqlite3.Connection | None = None
        #: The descriptor that holds an exclusive file.
        self.holder: int | None = None


class StateFile:
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
        self._exclusive = exclusive
        self._closed = False
        self._identity: tuple[int, int] | None = None
        self._pid = os.getpid()
        self._handles: dict[int, _Handle] = {}
        self._in_memory = copied or self.path == MEMORY
        #: Whether it was not there before.
        self.created = self.path == MEMORY or not os.path.lexists(self.path)
        if self.created and create is None:
            raise self.error(f"There is no {kind.name} at {self.path}.")
        try:
            with self.explained(), self._in_use():
                if copied:
                    self._handle.connection = self._copy()
                elif self.path == MEMORY:
                    assert create is not None
                    self._handle.connection = connection = _connect(MEMORY)
                    self._build(connection, create)
                else:
                    if self.created:
                        assert create is not None
                        self._create_file(create)
                    self._connected()
        except BaseException:
            self.close()
            raise

    def __del__(self) -> None:
        with suppress(Exception):
            self.close()

    @property
    def closed(self) -> bool:
        """Whether :meth:`close` was called."""
        return self._closed

    @property
    def lock(self) -> threading.RLock:
        """What keeps the threads of this process apart."""
        return self._handle.lock

    @property
    def _handle(self) -> _Handle:
        # Not behind a lock, which another thread of the parent may have held at a fork.
        pid = os.getpid()
        return self._handles.get(pid) or self._handles.setdefault(pid, _Handle())

    def close(self) -> None:
        """Release the file. What was committed stays."""
        with (handle := self._handle).lock:
            self._closed = True
            if handle.connection is not None:
                with self._in_use():
                    _disconnect(handle.connection)
                handle.connection = None
            # Last: closing any descriptor of a file drops SQLite's own locks on it.
            self._let_go(handle)

    def error(self, message: str) -> Exception:
        """An error of this kind of file."""
        return self.kind.error(message)

    def damaged(self, how: str) -> Exception:
        """The error for a file that cannot be trusted."""
        name, lost = self.kind.name, self.kind.if_lost
        return self.error(f"The {name} {self.path} is damaged ({how}). {lost}")

    # --- Reading and writing. ---

    def transaction(self) -> AbstractContextManager[sqlite3.Connection]:
        """All or nothing, whatever interrupts it; what was written is durable when it is left.

        Inside another transaction of the same thread it is a part of that one.
        """
        return self._within("BEGIN IMMEDIATE", "COMMIT")

    def snapshot(self) -> AbstractContextManager[sqlite3.Connection]:
        """Let several reads see one state: that of the running transaction, or of their own."""
        return self._within("BEGIN", "ROLLBACK")

    @contextmanager
    def _within(self, begin: str, end: str) -> Iterator[sqlite3.Connection]:
        pid = os.getpid()
        with self.lock, self.explained(), self._in_use():
            connection = self._connected()
            if connection.in_transaction:
                yield connection
                return
            try:
                _execute(connection, begin)
                yield connection
                if os.getpid() != pid:
                    raise self.error(
                        f"A forked process cannot end the transaction that its parent has begun on "
                        f"the {self.kind.name} {self.path}: fork outside of it."
                    )
                _execute(connection, end)
            except BaseException:
                if os.getpid() == pid and connection.in_transaction:
                    with suppress(Exception):
                        connection.execute("ROLLBACK")
                raise

    def query(self, statement: str, values: Sequence[object] = ()) -> list[tuple]:
        """All rows of a statement."""
        with self.lock, self.explained(), self._in_use():
            return self.execute(statement, values).fetchall()

    def execute(self, statement: str, values: Sequence[object] = ()) -> sqlite3.Cursor:
        """Run a statement as soon as other processes let it run."""
        return _execute(self._connected(), statement, values)

    @contextmanager
    def _in_use(self) -> Iterator[None]:
        pid = os.getpid()
        if any(user != pid for user, _ in list(_USES)):
            raise self.error(
                f"The {self.kind.name} {self.path} cannot be used in this process, which was "
                "forked while a thread was using it or another file of botorch_dp. Nothing was "
                "read or written. Fork before threads use such files, or start the process by "
                "multiprocessing's 'spawn' or 'forkserver'."
            )
        use = (pid, object())
        _USES.add(use)
        try:
            yield
        finally:
            if os.getpid() == pid:
                _USES.discard(use)

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

    # --- Opening. ---

    def _create_file(self, create: Callable[[sqlite3.Connection], None]) -> None:
        """Build the file aside, for its owner only, and link it into place when complete."""
        path = Path(self.path)
        if not path.parent.is_dir():
            raise self.error(
                f"The path of the {self.kind.name} leads nowhere, the folder {path.parent} does "
                "not exist: create it first."
            )
        # mkstemp creates the file exclusively and with mode 0600 before SQLite sees it.
        descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        os.close(descriptor)
        try:
            connection = _connect(Path(temporary).as_uri() + "?mode=rw")
            try:
                self._build(connection, create)
            finally:
                _disconnect(connection)
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
        connection.execute(f"PRAGMA user_version = {VERSION}")
        for statement in self.kind.schema:
            connection.execute(statement)
        create(connection)
        connection.execute("COMMIT")

    def _connected(self) -> sqlite3.Connection:
        """The connection of this process, to the file that was opened first."""
        name, handle = self.kind.name, self._handle
        if self._closed:
            raise self.error(f"The {name} {self.path} is closed: open it again to go on.")
        if self._in_memory:
            if handle.connection is None:
                raise self.error(
                    f"A {name} in memory cannot be shared with a forked process, which would spend "
                    f"a second time. Give the {name} a path."
                )
            return handle.connection
        if self._exclusive and self._pid != os.getpid():
            raise self.error(
                f"The {name} {self.path} belongs to the process that opened it, of which this one "
                "is a fork. Open it here once that process has let it go."
            )
        with handle.lock:
            if handle.connection is None:
                handle.connection = self._open()
            identity = self._checked_identity()
            if self._identity is None:
                self._identity = identity
            elif identity != self._identity:
                raise self.error(
                    f"The {name} {self.path} was removed or replaced while it was open, so what "
                    "was written may be lost. Put the file back, or begin anew."
                )
            return handle.connection

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
        """Connect, after checking that the file is what it should be."""
        path = self.path
        self._check_is_file()
        if not os.access(path, os.R_OK | os.W_OK) or not os.access(os.path.dirname(path), os.W_OK):
            raise self._read_only()
        self._checked_identity()
        if self._exclusive:
            self._take()
        connection = _connect(Path(path).as_uri() + "?mode=rw")
        try:
            self._check_content(connection)
            if os.stat(path).st_mode & 0o077:
                os.chmod(path, OWNER_ONLY)
        except BaseException:
            _disconnect(connection)
            raise
        return connection

    def _copy(self) -> sqlite3.Connection:
        """A copy in memory."""
        self._check_is_file()
        connection = _connect(MEMORY)
        try:
            with closing(sqlite3.connect(Path(self.path).as_uri() + "?mode=ro", uri=True)) as file:
                file.backup(connection)  # waits while somebody commits
            self._check_content(connection)
        except BaseException:
            _disconnect(connection)
            raise
        return connection

    def _check_is_file(self) -> None:
        if not os.path.isfile(self.path):
            raise self.error(
                f"{self.path} is not a file: give the {self.kind.name} the path of a file."
            )
        if os.path.getsize(self.path) == 0:
            raise self.damaged("it is empty")

    def _check_content(self, connection: sqlite3.Connection) -> None:
        path, kind = self.path, self.kind
        if _pragma(connection, "application_id") != kind.application_id:
            raise self.error(f"{path} is an SQLite file but no {kind.name}: check the path.")
        version = _pragma(connection, "user_version")
        if version != VERSION:
            raise self.error(
                f"The {kind.name} {path} has format {version}, and this version of botorch_dp "
                f"reads and writes format {VERSION} only: use the version that wrote it."
            )
        if _pragma(connection, "integrity_check") != "ok":
            raise self.damaged("SQLite's integrity check fails")

    # --- Holding the file alone. ---

    def _take(self) -> None:
        """Hold the file alone. The lock belongs to the inode, whatever name it was opened by.

        A forked child inherits it, so that it may outlive its holder. Where it lies says whose it
        is, and those of processes that have ended do not count.
        """
        descriptor = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
        if not _taken(descriptor):
            os.close(descriptor)
            raise self.error(
                f"The {self.kind.name} {self.path} is in use: only one process, and one object in "
                "it, may hold it. Wait for it to end, close it, or choose another path."
            )
        self._handle.holder = descriptor

    def _let_go(self, handle: _Handle) -> None:
        if handle.holder is not None:
            with suppress(OSError):
                if _OF_DESCRIPTORS is not None:  # forked children share the lock
                    _locked(handle.holder, _own_byte(), fcntl.F_UNLCK)
                os.close(handle.holder)
            handle.holder = None


#: How many bits of the place of a lock say when its holder started, its number, and its host.
_START_BITS, _NUMBER_BITS, _HOST_BITS = 20, 22, 18


def _own_byte() -> int:
    """The byte of an exclusive file that this process locks."""
    place = _bits(socket.gethostname(), _HOST_BITS) << _NUMBER_BITS | os.getpid()
    place = place << _START_BITS | _bits(_started(os.getpid()), _START_BITS)
    return _GATE_BYTE + 1 + place


def _bits(words: str | None, number: int) -> int:
    return int.from_bytes(hashlib.sha256(str(words).encode()).digest()) % 2**number


def _taken(descriptor: int) -> bool:
    """Lock the byte of this process unless somebody else holds the file."""
    if _OF_DESCRIPTORS is None:
        return _locked(descriptor, 0)
    deadline = time.monotonic() + BUSY_SECONDS
    while not (alone := _locked(descriptor, _GATE_BYTE)) and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)
    taken = alone and not _is_held(descriptor) and _locked(descriptor, _own_byte())
    _locked(descriptor, _GATE_BYTE, fcntl.F_UNLCK)
    return taken


def _is_held(descriptor: int) -> bool:
    """Whether somebody who may be alive holds the file."""
    ranges = [(_GATE_BYTE + 1, 2**63 - 2**32)]
    while ranges:
        first, last = ranges.pop()
        if first > last:
            continue
        request = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, first, last - first + 1, 0)
        answer = fcntl.fcntl(descriptor, fcntl.F_OFD_GETLK, request)
        kind, _, byte, _, _ = struct.unpack("hhqqi4x", answer)
        if kind == fcntl.F_UNLCK:
            continue
        place, start = divmod(byte - _GATE_BYTE - 1, 2**_START_BITS)
        host, number = divmod(place, 2**_NUMBER_BITS)
        started = _started(number)
        if host != _bits(socket.gethostname(), _HOST_BITS):
            return True
        if started is not None and _bits(started, _START_BITS) == start:
            return True
        ranges += [(first, byte - 1), (byte + 1, last)]
    return False


def _locked(descriptor: int, byte: int, kind: int | None = None) -> bool:
    """Lock a byte of a file for this descriptor and its copies in forks; False if others do.

    SQLite's own locks belong to processes: they would not keep apart two objects in one, and
    SQLite drops all of them at the end of a transaction. Those of descriptors are independent.
    """
    try:
        if _OF_DESCRIPTORS is not None:
            kind = fcntl.F_WRLCK if kind is None else kind
            request = struct.pack("hhqqi4x", kind, os.SEEK_SET, byte, 1, 0)
            fcntl.fcntl(descriptor, _OF_DESCRIPTORS, request)
        else:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return False
    return True


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
    # A forked child must never close what it inherits: SQLite would undo what the parent is
    # writing. One more reference keeps the child from it, even when its interpreter ends.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(connection))
    return connection


def _disconnect(connection: sqlite3.Connection) -> None:
    """Close a connection of this process."""
    connection.close()
    ctypes.pythonapi.Py_DecRef(ctypes.py_object(connection))


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
