"""Files of this package: whole or absent, readable by their owner only, locked and checked.

Whatever must survive a kill is one SQLite file (:class:`StateFile`): a ledger, a study, a run that
resumes, a query log. What holds for all of them:

* *What was committed is on the disk.* ``synchronous = EXTRA`` with a rollback journal syncs the
  file, the journal and the folder before a commit returns. Nothing lies beside the file while no
  transaction runs, so a copy made then is complete.
* *Nobody meets half a file.* A new one is built aside with mode 0600 and linked into place.
* *An exclusive file has one holder*, by ``flock``, which ends with the process, however it ends.
* *A forked child is another process.* It opens a connection of its own to a shared file, and is
  refused an exclusive one. Its parent's connection is neither used nor closed there.

This needs a file system whose locks work, one name for each file, and no fork while another thread
uses a file (``docs/sharp_edges.md``).
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import hmac
import json
import os
import sqlite3
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

import numpy as np

from botorch_dp.errors import PrivacyError

try:
    import fcntl
except ImportError:  # Windows: ledgers and runs in memory only
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


@functools.cache
def _open_files() -> weakref.WeakSet[StateFile]:
    """The files that are open in this process. A fork leaves them to its parent."""
    files: weakref.WeakSet[StateFile] = weakref.WeakSet()

    def leave() -> None:
        for file in list(files):
            file.leave_to_parent()

    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=leave)
    return files


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
        Exception: ``kind.error`` with a reason, if the file is damaged, of another kind, in use or
            not writable.
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
        #: Whether :meth:`close` was called.
        self.closed = False
        #: Whether this process is a fork of the one that opened the file.
        self.forked = False
        #: Keeps the threads of this process apart.
        self.lock = threading.RLock()
        self._exclusive = exclusive
        self._in_memory = copied or self.path == MEMORY
        self._connection: sqlite3.Connection | None = None
        #: The descriptor that locks an exclusive file.
        self._holder: int | None = None
        #: Whether it was not there before.
        self.created = self.path == MEMORY or not os.path.lexists(self.path)
        if self.created and create is None:
            raise self.error(f"There is no {kind.name} at {self.path}.")
        _open_files().add(self)
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
                    self._connection = self._open()
                    self._inode = self._named_inode()
        except BaseException:
            self.close()
            raise

    def __del__(self) -> None:
        with suppress(Exception):
            self.close()

    def close(self) -> None:
        """Release the file. What was committed stays."""
        with self.lock:
            self.closed = True
            if self._connection is not None:
                self._connection.close()
                self._connection = None
            # Last: closing any descriptor of a file drops SQLite's own locks on it.
            if self._holder is not None:
                fcntl.flock(self._holder, fcntl.LOCK_UN)  # also of a copy in a fork
                os.close(self._holder)
                self._holder = None

    def leave_to_parent(self) -> None:
        """In a fork, before anything else runs: forget the parent's connection and its locks."""
        self.forked, self.lock = True, threading.RLock()
        if self._connection is not None:
            # Never closed, not even when the interpreter ends: SQLite would undo what the parent
            # is writing.
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._connection))
            self._connection = None
        if self._holder is not None:
            os.close(self._holder)
            self._holder = None

    def error(self, message: str) -> Exception:
        """An error of this kind of file."""
        return self.kind.error(message)

    def damaged(self, how: str) -> Exception:
        """The error for a file that cannot be trusted."""
        name, lost = self.kind.name, self.kind.if_lost
        return self.error(f"The {name} {self.path} is damaged ({how}). {lost}")

    # --- Reading and writing. ---

    def snapshot(self) -> AbstractContextManager[sqlite3.Connection]:
        """Let several reads see one state: that of the running transaction, or of their own."""
        return self.transaction(begin="BEGIN", end="ROLLBACK")

    @contextmanager
    def transaction(
        self, *, begin: str = "BEGIN IMMEDIATE", end: str = "COMMIT"
    ) -> Iterator[sqlite3.Connection]:
        """All or nothing, whatever interrupts it; what was written is durable when it is left.

        Inside another transaction of the same thread it is a part of that one.
        """
        with self.lock, self.explained():
            connection = self._connected()
            if connection.in_transaction:
                yield connection
                return
            try:
                _execute(connection, begin)
                yield connection
                if connection is not self._connection:
                    raise self.error(
                        f"A forked process cannot end the transaction that its parent has begun on "
                        f"the {self.kind.name} {self.path}: fork outside of it."
                    )
                _execute(connection, end)
            except BaseException:
                if connection is self._connection and connection.in_transaction:
                    with suppress(Exception):
                        connection.execute("ROLLBACK")
                raise

    def query(self, statement: str, values: Sequence[object] = ()) -> list[tuple]:
        """All rows of a statement."""
        with self.lock, self.explained():
            return self.execute(statement, values).fetchall()

    def execute(self, statement: str, values: Sequence[object] = ()) -> sqlite3.Cursor:
        """Run a statement as soon as other processes let it run."""
        return _execute(self._connected(), statement, values)

    @contextmanager
    def explained(self) -> Iterator[None]:
        """Turn errors of SQLite and the file system into sentences that say what to do."""
        what = f"The {self.kind.name} {self.path}"
        try:
            yield
        except UnicodeDecodeError as error:
            raise self.damaged("it holds unreadable text") from error
        except (OSError, sqlite3.Error) as error:
            code = _code(error)
            if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
                raise self.damaged(str(error)) from error
            if isinstance(error, sqlite3.Error) and code == 0:  # Python could not decode a text
                raise self.damaged("it holds unreadable text") from error
            if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
                raise self.error(
                    f"Another process has held {what[0].lower() + what[1:]} for {BUSY_SECONDS:g} "
                    "seconds; nothing was written. Try again, or end the process that holds it."
                ) from error
            raise self.error(
                f"{what} could not be read or written ({error}), so nothing may be released. Check "
                "the disk for space and errors, and your write permission on the file and its "
                "folder, then try again."
            ) from error

    # --- Opening. ---

    def _create_file(self, create: Callable[[sqlite3.Connection], None]) -> None:
        """Build the file aside, for its owner only, and link it into place when complete."""
        path = Path(self.path)
        if not path.parent.is_dir():
            raise self.error(
                f"The path of the {self.kind.name} is in a folder that does not exist: create "
                f"{path.parent} first."
            )
        # mkstemp creates the file exclusively and with mode 0600 before SQLite sees it.
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
        connection.execute(f"PRAGMA user_version = {VERSION}")
        for statement in self.kind.schema:
            connection.execute(statement)
        create(connection)
        connection.execute("COMMIT")

    def _connected(self) -> sqlite3.Connection:
        """The connection of this process, to the file that was opened first."""
        name = self.kind.name
        if self.closed:
            raise self.error(f"The {name} {self.path} is closed: open it again to go on.")
        if self._connection is None:
            if self._in_memory or self._exclusive:
                raise self.error(
                    f"The {name} {self.path} was opened by the parent of this forked process. "
                    f"Give the {name} a path, and open it here after the parent has closed it."
                )
            self._connection = self._open()
        if not self._in_memory and self._named_inode() != self._inode:
            raise self.error(
                f"The {name} {self.path} was removed or replaced while it was open, so what was "
                "written may be lost. Put the file back, or begin anew."
            )
        return self._connection

    def _named_inode(self) -> tuple[int, int] | None:
        try:
            status = os.stat(self.path)
        except FileNotFoundError:
            return None
        return status.st_dev, status.st_ino

    def _open(self) -> sqlite3.Connection:
        """Connect, after checking that the file is what it should be."""
        self._check_is_file()
        if self._exclusive:
            self._take()
        connection = _connect(Path(self.path).as_uri() + "?mode=rw")
        try:
            self._check_content(connection)
            if os.stat(self.path).st_mode & 0o077:
                os.chmod(self.path, OWNER_ONLY)
        except BaseException:
            connection.close()
            raise
        return connection

    def _copy(self) -> sqlite3.Connection:
        """A copy in memory."""
        self._check_is_file()
        connection = _connect(MEMORY)
        with closing(sqlite3.connect(Path(self.path).as_uri() + "?mode=ro", uri=True)) as file:
            file.backup(connection)  # waits while somebody commits
        self._check_content(connection)
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

    def _take(self) -> None:
        """Lock the file for this object alone."""
        self._holder = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
        try:
            fcntl.flock(self._holder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(self._holder)
            self._holder = None
            raise self.error(
                f"The {self.kind.name} {self.path} is in use: only one process, and one object in "
                "it, may hold it. Wait for it to end, close it, or choose another path."
            ) from error


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


def _code(error: Exception) -> int:
    """SQLite's primary result code; 0 if Python or the system raised the error."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


def _pragma(connection: sqlite3.Connection, name: str) -> Any:
    return _execute(connection, f"PRAGMA {name}").fetchone()[0]
