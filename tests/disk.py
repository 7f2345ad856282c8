"""A disk that remembers every write, and what it may hold after a kill or a power cut.

:class:`Disk` records what SQLite and Python do to the files of one folder: writes, truncations,
syncs, links, renames, deletions. :meth:`Disk.states` replays them, and stops at each:

* *killed*: all earlier writes are there, and the last one is cut at some byte;
* *power cut*: what was synced is there. Of later writes any sectors are there or not; of later
  changes of a folder some first ones.

SQLite's writes are seen through a VFS of our own, which passes everything on to the system's.
"""

from __future__ import annotations

import _sqlite3
import ctypes
import os
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_SECTOR = 512

_POINTER, _INT, _LONG = ctypes.c_void_p, ctypes.c_int, ctypes.c_int64


class _Methods(ctypes.Structure):
    """``sqlite3_io_methods``."""

    _fields_ = (
        ("version", _INT),
        *((name, _POINTER) for name in ("close", "read", "write", "truncate", "sync")),
        *((f"more{number}", _POINTER) for number in range(13)),
    )


class _File(ctypes.Structure):
    """``sqlite3_file``."""

    _fields_ = (("methods", ctypes.POINTER(_Methods)),)


class _Vfs(ctypes.Structure):
    """``sqlite3_vfs``."""

    _fields_ = (
        *((name, _INT) for name in ("version", "size", "longest_path")),
        *((name, _POINTER) for name in ("next", "name", "data", "open", "delete")),
        *((f"more{number}", _POINTER) for number in range(14)),
    )


_OPEN = ctypes.CFUNCTYPE(_INT, _POINTER, _POINTER, ctypes.POINTER(_File), _INT, _POINTER)
_DELETE = ctypes.CFUNCTYPE(_INT, _POINTER, _POINTER, _INT)
_WRITE = ctypes.CFUNCTYPE(_INT, _POINTER, _POINTER, _INT, _LONG)
_TRUNCATE = ctypes.CFUNCTYPE(_INT, _POINTER, _LONG)
_SYNC = ctypes.CFUNCTYPE(_INT, _POINTER, _INT)

#: SQLite keeps pointers to these for as long as the process lives.
_KEPT: list[Any] = []


@dataclass
class State:
    """What a disk may hold after an interruption."""

    #: What had been told beforehand: see :meth:`Disk.tell`.
    told: dict[str, int]
    files: dict[str, bytes]
    how: str

    def write(self, folder: Path) -> None:
        """Put the files into an empty folder."""
        folder.mkdir()
        for name, content in self.files.items():
            (folder / name).write_bytes(content)


class Disk:
    """Records what happens to the files of a folder while it is entered.

    Args:
        folder: Without folders inside.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = Path(os.path.realpath(folder))
        self.events: list[tuple[Any, ...]] = []
        self._names: dict[int, str] = {}
        self._contents: dict[str, bytes] = {}

    def tell(self, what: str, number: int) -> None:
        """Write down that something was told to the outside."""
        self.events.append(("tell", what, number))

    def _name(self, path: str) -> str | None:
        folder, _, name = os.path.realpath(path).rpartition("/")
        return name if folder == str(self.folder) else None

    # What Python does. A file's content is taken down when it is synced, linked or renamed.

    def _look(self, name: str) -> None:
        try:
            content = (self.folder / name).read_bytes()
        except FileNotFoundError:
            return
        before = self._contents.get(name, b"")
        if name in self._contents and content == before:
            return
        pairs = enumerate(zip(before, content, strict=False))
        same = next((n for n, (a, b) in pairs if a != b), min(len(before), len(content)))
        self.events.append(("create", name))
        if len(before) > same:
            self.events.append(("truncate", name, same))
        self.events.append(("write", name, same, content[same:]))
        self._contents[name] = content

    def __enter__(self) -> Disk:
        self._real = {name: getattr(os, name) for name in ("fsync", "link", "replace", "unlink")}

        def fsync(descriptor: int) -> None:
            path = os.readlink(f"/proc/self/fd/{descriptor}")
            if path == str(self.folder):
                self.events.append(("sync folder",))
            elif (name := self._name(path)) is not None:
                self._look(name)
                self.events.append(("sync", name))
            self._real["fsync"](descriptor)

        def moved(kind: str) -> Any:
            def move(source: Any, target: Any, **more: Any) -> None:
                names = self._name(os.fspath(source)), self._name(os.fspath(target))
                if None not in names and names[0] not in self._names.values():
                    self._look(str(names[0]))
                self._real[kind](source, target, **more)
                if None not in names:
                    self.events.append((kind, *names))

            return move

        def unlink(path: Any, **more: Any) -> None:
            self._real["unlink"](path, **more)
            if (name := self._name(os.fspath(path))) is not None:
                self.events.append(("unlink", name))

        os.fsync, os.unlink = fsync, unlink  # type: ignore[assignment]
        os.link, os.replace = moved("link"), moved("replace")
        self._library = ctypes.CDLL(_sqlite3.__file__)
        self._library.sqlite3_vfs_find.restype = ctypes.POINTER(_Vfs)
        self._system = self._library.sqlite3_vfs_find(None)
        self._library.sqlite3_vfs_register(ctypes.byref(self._watching()), 1)
        return self

    def __exit__(self, *_: object) -> None:
        self._library.sqlite3_vfs_register(self._system, 1)
        for name, function in self._real.items():
            setattr(os, name, function)
        for path in self.folder.iterdir():
            if path.name not in self._names.values():
                self._look(path.name)

    # What SQLite does.

    def _watching(self) -> _Vfs:
        system = self._system.contents
        watching = _Vfs.from_buffer_copy(system)
        name = ctypes.create_string_buffer(f"watching {id(self)}".encode())
        real_open, real_delete = _OPEN(system.open), _DELETE(system.delete)
        tables: dict[int, _Methods] = {}

        def opened(_: Any, path: Any, file: Any, flags: int, out: Any) -> int:
            code = int(real_open(ctypes.addressof(system), path, file, flags, out))
            known = None if path is None else self._name(ctypes.string_at(path).decode())
            if code == 0 and known is not None:
                address = ctypes.cast(file, _POINTER).value
                self._names[address] = known
                self.events.append(("create", known))
                methods = ctypes.cast(file.contents.methods, _POINTER).value
                if methods not in tables:
                    tables[methods] = self._methods(file.contents.methods.contents)
                file.contents.methods = ctypes.pointer(tables[methods])
            return code

        def deleted(_: Any, path: Any, sync: int) -> int:
            code = int(real_delete(ctypes.addressof(system), path, sync))
            known = self._name(ctypes.string_at(path).decode())
            if code == 0 and known is not None:
                self.events.append(("unlink", known))
                if sync:
                    self.events.append(("sync folder",))
            return code

        functions = _OPEN(opened), _DELETE(deleted)
        watching.name = ctypes.addressof(name)
        watching.open, watching.delete = (ctypes.cast(f, _POINTER) for f in functions)
        _KEPT.extend([watching, name, functions, tables, opened, deleted])
        return watching

    def _methods(self, system: _Methods) -> _Methods:
        watching = _Methods.from_buffer_copy(system)
        real = _WRITE(system.write), _TRUNCATE(system.truncate), _SYNC(system.sync)

        def write(file: int, data: Any, size: int, offset: int) -> int:
            if name := self._names.get(file):
                self.events.append(("write", name, offset, ctypes.string_at(data, size)))
            return int(real[0](file, data, size, offset))

        def truncate(file: int, size: int) -> int:
            if name := self._names.get(file):
                self.events.append(("truncate", name, size))
            return int(real[1](file, size))

        def sync(file: int, flags: int) -> int:
            if name := self._names.get(file):
                self.events.append(("sync", name))
                if name.endswith("-journal"):  # SQLite syncs its folder with it
                    self.events.append(("sync folder",))
            return int(real[2](file, flags))

        functions = _WRITE(write), _TRUNCATE(truncate), _SYNC(sync)
        watching.write, watching.truncate, watching.sync = (
            ctypes.cast(function, _POINTER) for function in functions
        )
        _KEPT.extend([watching, functions, real])
        return watching

    # What may be left.

    def states(self, rng: random.Random, *, cuts: int, powers: int) -> Iterator[State]:
        """What may be left of everything, at each event.

        Args:
            rng: Chooses.
            cuts: At how many bytes each write is cut; all of them if there are not more.
            powers: How many power cuts there are after each event.
        """
        now = _Moment()
        for number, event in enumerate(self.events):
            if event[0] == "write" and event[3]:
                size = len(event[3])
                places = range(size) if size <= cuts else sorted(rng.sample(range(size), cuts))
                for place in places:
                    torn = (*event[:3], event[3][:place])
                    yield State(dict(now.told), now.cut(torn), f"event {number} cut at {place}")
            now.apply(event)
            for _ in range(powers if event[0] != "tell" else 0):
                yield State(dict(now.told), now.after_power_cut(rng), f"power cut at {number}")


@dataclass
class _Inode:
    content: bytearray = field(default_factory=bytearray)
    synced: bytes = b""
    since: list[tuple[int, bytes | None]] = field(default_factory=list)


class _Moment:
    """What is in memory and on the disk, after some events."""

    def __init__(self) -> None:
        self.told: dict[str, int] = {}
        self._live: dict[str, _Inode] = {}
        self._synced: dict[str, _Inode] = {}
        self._since: list[dict[str, _Inode]] = []

    def apply(self, event: tuple[Any, ...]) -> None:
        kind, rest = event[0], event[1:]
        if kind == "tell":
            self.told[rest[0]] = rest[1]
        elif kind == "write":
            _write(self._live[rest[0]].content, rest[1], rest[2])
            pieces = range(0, len(rest[2]), _SECTOR)
            for start in pieces:
                piece = rest[2][start : start + _SECTOR]
                self._live[rest[0]].since.append((rest[1] + start, piece))
        elif kind == "truncate":
            del self._live[rest[0]].content[rest[1] :]
            self._live[rest[0]].since.append((rest[1], None))
        elif kind == "sync":
            inode = self._live[rest[0]]
            inode.synced, inode.since = bytes(inode.content), []
        elif kind == "sync folder":
            self._synced, self._since = dict(self._live), []
        else:
            self._rename(kind, *rest)

    def _rename(self, kind: str, name: str, to: str = "") -> None:
        if kind == "create":
            if name in self._live:
                return
            self._live[name] = _Inode()
        elif kind == "unlink":
            self._live.pop(name, None)
        else:
            self._live[to] = self._live[name] if kind == "link" else self._live.pop(name)
        self._since.append(dict(self._live))

    def cut(self, write: tuple[Any, ...]) -> dict[str, bytes]:
        """Killed in the middle of a write."""
        files = {name: bytes(inode.content) for name, inode in self._live.items()}
        torn = bytearray(files[write[1]])
        _write(torn, write[2], write[3])
        return {**files, write[1]: bytes(torn)}

    def after_power_cut(self, rng: random.Random) -> dict[str, bytes]:
        names = rng.choice([self._synced, *self._since])
        return {name: _survivor(inode, rng) for name, inode in names.items()}


def _survivor(inode: _Inode, rng: random.Random) -> bytes:
    content, chance = bytearray(inode.synced), rng.choice((0.0, 0.5, 0.9, 1.0))
    for start, piece in inode.since:
        if rng.random() >= chance:
            continue
        if piece is None:
            del content[start:]
        else:
            _write(content, start, piece)
    return bytes(content)


def _write(content: bytearray, start: int, piece: bytes) -> None:
    content.extend(bytes(max(0, start - len(content))))
    content[start : start + len(piece)] = piece
