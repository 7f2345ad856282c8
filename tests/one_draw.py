"""One draw: what all that draws under a key must hold; a test class for each release inherits it.

Released values under one key are one value, and charges count draws: whatever is copied, pickled,
forked, opened twice, interrupted, refused by the disk or killed between any two writes.
"""

from __future__ import annotations

import copy
import os
import pickle
import signal
import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from botorch_dp import _files
from botorch_dp.errors import PrivacyError
from botorch_dp.privacy import PrivacyBudget, PrivacyLedger

#: Large enough for every draw a test makes.
PLENTY = PrivacyBudget(1e4, 0.9, summed=0.5)


class Disk:
    """Counts commits of SQLite in this process; fails or kills at one, or interrupts behind it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.commits = 0
        self.at: int | None = None
        self.action: Callable[[], None] = lambda: None
        execute = _files._execute

        def watched(connection: sqlite3.Connection, statement: str, values: Any = ()) -> Any:
            if statement == "COMMIT":
                self.commits += 1
                if self.commits == self.at:
                    if self.action == self.interrupt:
                        execute(connection, statement, values)
                    self.action()
            return execute(connection, statement, values)

        monkeypatch.setattr(_files, "_execute", watched)

    def fail(self) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    def interrupt(self) -> None:
        raise KeyboardInterrupt  # Ctrl-C is noticed when a commit has returned

    def kill(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


def forked(work: Callable[[], Any]) -> Callable[[], Any]:
    """Start ``work`` in a forked child; the answer waits for it, as that of :func:`in_fork`."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.close(reading)
            try:
                answer = work()
            except Exception as error:
                answer = error
            with os.fdopen(writing, "wb") as pipe:
                pipe.write(pickle.dumps(answer))
            code = 0
        finally:
            os._exit(code)
    os.close(writing)

    def wait() -> Any:
        with os.fdopen(reading, "rb") as pipe:
            content = pipe.read()
        os.waitpid(child, 0)
        return pickle.loads(content) if content else None

    return wait


def in_fork(work: Callable[[], Any]) -> Any:
    """What ``work`` returns or raises in a forked child; None if it was killed."""
    return forked(work)()


class OneDraw(ABC):
    """Inherit, and say how to make the thing, draw with it, and read what it released.

    Values are compared as bytes of their pickles, so return plain numbers, lists or tuples.
    """

    #: Draws that one run of :meth:`draw` makes under keys of its own.
    draws = 1
    #: Whether runs are continued through a file.
    has_checkpoint = True
    #: Which of a run's writes are cut off: each, or each so many of a long run.
    every = 1

    @abstractmethod
    def make(self, ledger: PrivacyLedger | None) -> Any:
        """A fresh object; every call describes the same run."""

    @abstractmethod
    def draw(self, thing: Any, checkpoint: Path | None) -> Any:
        """Release everything the run releases, from or to the checkpoint, and return it."""

    def charges(self, path: Path) -> int:
        with PrivacyLedger(path) as ledger:
            return len(ledger.entries())

    # Copies are new runs.

    @pytest.mark.one_in(3)
    @pytest.mark.parametrize("way", ["fork", "deepcopy", "pickle"])
    def test_a_copy_is_a_new_run(self, way: str, tmp_path: Path) -> None:
        path = tmp_path / "a.ledger"
        with PrivacyLedger(path, PLENTY) as ledger:
            thing = self.make(ledger)
            if way == "deepcopy":
                values = [self.draw(copy.deepcopy(thing), None) for _ in range(3)]
            elif way == "pickle":
                try:
                    content = pickle.dumps(thing)
                except (pickle.PicklingError, AttributeError, TypeError) as error:
                    pytest.skip(f"does not pickle: {error}")
                values = [self.draw(pickle.loads(content), None) for _ in range(3)]
            else:
                values = [in_fork(lambda: self.draw(thing, None)) for _ in range(3)]
            values.append(self.draw(thing, None))
        assert not [value for value in values if isinstance(value, Exception)], values
        assert len({pickle.dumps(value) for value in values}) == 4
        assert self.charges(path) == 4 * self.draws

    # One file, one run.

    def test_a_finished_run_is_replayed(self, tmp_path: Path) -> None:
        self._needs_checkpoint()
        path, checkpoint = tmp_path / "a.ledger", tmp_path / "run"
        values = []
        for _ in range(3):
            with PrivacyLedger(path, PLENTY) as ledger:
                values.append(pickle.dumps(self.draw(self.make(ledger), checkpoint)))
        assert len(set(values)) == 1
        assert self.charges(path) == self.draws

    def test_without_a_ledger_too(self, tmp_path: Path) -> None:
        self._needs_checkpoint()
        checkpoint = tmp_path / "run"
        values = [pickle.dumps(self.draw(self.make(None), checkpoint)) for _ in range(3)]
        assert len(set(values)) == 1

    def test_many_processes_on_one_file(self, tmp_path: Path) -> None:
        self._needs_checkpoint()
        path, checkpoint = tmp_path / "a.ledger", tmp_path / "run"

        def work() -> Any:
            with PrivacyLedger(path, PLENTY) as ledger:
                return self.draw(self.make(ledger), checkpoint)

        PrivacyLedger(path, PLENTY).close()
        answers = [wait() for wait in [forked(work) for _ in range(4)]]
        values = [answer for answer in answers if not isinstance(answer, Exception)]
        refused = [answer for answer in answers if isinstance(answer, Exception)]
        assert all(isinstance(error, PrivacyError) for error in refused), refused
        assert values and all("in use" in str(error) for error in refused), refused
        assert len({pickle.dumps(value) for value in values}) == 1
        assert self.charges(path) == self.draws

    # Whatever happens at a write: what is shown under a key is one value.

    @pytest.mark.one_in(2)
    @pytest.mark.parametrize("how", ["fail", "interrupt"])
    def test_a_save_that_fails(
        self, how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A full disk or Ctrl-C at each commit; then it goes on, with the same object or not."""
        self._needs_checkpoint()
        disk = Disk(monkeypatch)
        ended: Any = pytest.raises((PrivacyError, sqlite3.OperationalError))
        if how == "interrupt":
            ended = suppress(KeyboardInterrupt)  # a study ends with what it has
        for fresh in (False, True) if how == "fail" else (False,):
            commits = self.commits(tmp_path / f"dry{fresh}", disk)
            for at in range(1, commits + 1, self.every):
                folder = tmp_path / f"{fresh}{at}"
                folder.mkdir()
                with PrivacyLedger(folder / "a.ledger", PLENTY) as ledger:
                    thing = self.make(ledger)
                    disk.commits, disk.at, disk.action = 0, at, getattr(disk, how)
                    with ended:
                        self.draw(thing, folder / "run")
                    disk.at = None
                    thing = self.make(ledger) if fresh else thing
                    value = pickle.dumps(self.draw(thing, folder / "run"))
                    again = pickle.dumps(self.draw(self.make(ledger), folder / "run"))
                    assert value == again
                    # At most the draw that was cut off is charged twice.
                    assert self.draws <= len(ledger.entries()) <= self.draws + 1

    def test_killed_between_any_two_writes(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self._needs_checkpoint()
        disk = Disk(monkeypatch)
        commits = self.commits(tmp_path / "dry", disk)
        for at in range(1, commits + 1, self.every):
            self.kill_at(at, tmp_path / str(at), disk)

    def kill_at(self, at: int, folder: Path, disk: Disk) -> None:
        """Kill a run in front of one of its commits, and go on with it."""
        folder.mkdir()

        def work() -> Any:
            with PrivacyLedger(folder / "a.ledger", PLENTY) as ledger:
                return self.draw(self.make(ledger), folder / "run")

        PrivacyLedger(folder / "a.ledger", PLENTY).close()
        disk.commits, disk.at, disk.action = 0, at, disk.kill
        assert in_fork(work) is None
        disk.at = None
        with PrivacyLedger(folder / "a.ledger", PLENTY) as ledger:
            shown = self._stored(ledger)
            value = pickle.dumps(self.draw(self.make(ledger), folder / "run"))
            assert value == pickle.dumps(self.draw(self.make(ledger), folder / "run"))
            assert self.draws <= len(ledger.entries()) <= self.draws + 1
            after = self._stored(ledger)
            # What was stored before the kill is what is shown now.
            assert shown.items() <= after.items()

    def _stored(self, ledger: PrivacyLedger) -> dict[str, bytes]:
        return dict(ledger._file.query("SELECT key, value FROM released"))

    def commits(self, folder: Path, disk: Disk) -> int:
        """How many commits a run makes."""
        folder.mkdir()
        with PrivacyLedger(folder / "a.ledger", PLENTY) as ledger:
            thing = self.make(ledger)
            disk.commits, disk.at = 0, None
            self.draw(thing, folder / "run")
        return disk.commits

    def _needs_checkpoint(self) -> None:
        if not self.has_checkpoint:
            pytest.skip("keeps nothing in a file")
