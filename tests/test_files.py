"""Half-written files never appear; private files are private; forks disturb nobody."""

from __future__ import annotations

import os
import signal
import sqlite3
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from botorch_dp._files import FileKind, StateFile, atomic_write
from botorch_dp.errors import PrivacyError
from botorch_dp.pareto import DPareto, StudyError
from botorch_dp.privacy import PrivacyBudget, PrivacyLedger
from botorch_dp.privacy.runs import Run
from tests.one_draw import in_fork
from tests.pareto import toy
from tests.privacy.charging import in_child, succeeded

COUNT = FileKind(name="count", application_id=7, schema=("CREATE TABLE tick (number INTEGER)",))


def count(path: Path, *, exclusive: bool = False) -> StateFile:
    return StateFile(path, COUNT, lambda connection: None, exclusive=exclusive)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize(("private", "expected"), [(True, 0o600), (False, 0o644)])
def test_atomic_write(tmp_path: Path, private: bool, expected: int) -> None:
    path = tmp_path / "front.json"
    with atomic_write(path, owner_only=private) as file:
        file.write("whole")
        assert not path.exists()
    assert path.read_text() == "whole"
    assert mode(path) & 0o077 == expected & 0o077
    assert list(tmp_path.iterdir()) == [path]


def test_interrupted_write_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "front.json"
    path.write_bytes(b"old")
    with pytest.raises(KeyboardInterrupt), atomic_write(path, binary=True) as file:
        file.write(b"new, but")
        raise KeyboardInterrupt
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


class TestLocks:
    """One object in one process holds an exclusive file, and no longer than it lives."""

    def test_a_file_is_let_go_when_nobody_holds_it(self, tmp_path: Path) -> None:
        held = count(tmp_path / "a", exclusive=True)
        with pytest.raises(PrivacyError, match="in use"):
            count(tmp_path / "a", exclusive=True)
        del held
        count(tmp_path / "a", exclusive=True).close()

    def test_a_child_that_lives_on_does_not_keep_it(self, tmp_path: Path) -> None:
        """Neither after a close nor after the holder was killed."""
        held = count(tmp_path / "a", exclusive=True)
        child = in_child(lambda: time.sleep(60))
        with pytest.raises(PrivacyError, match="in use"):
            count(tmp_path / "a", exclusive=True)
        held.close()
        count(tmp_path / "a", exclusive=True).close()
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)

        reading, writing = os.pipe()

        def hold() -> None:
            kept = count(tmp_path / "a", exclusive=True)
            grandchild = in_child(lambda: time.sleep(60))
            os.write(writing, grandchild.to_bytes(4, "big"))
            time.sleep(60)
            kept.close()

        holder = in_child(hold)
        grandchild = int.from_bytes(os.read(reading, 4), "big")
        with pytest.raises(PrivacyError, match="in use"):
            count(tmp_path / "a", exclusive=True)
        os.kill(holder, signal.SIGKILL)
        os.waitpid(holder, 0)
        try:
            again = count(tmp_path / "a", exclusive=True)
            with pytest.raises(PrivacyError, match="in use"):
                count(tmp_path / "a", exclusive=True)
        finally:
            os.kill(grandchild, signal.SIGKILL)
        # The child's lock is gone by now, and that of the new holder is not.
        time.sleep(0.1)
        with pytest.raises(PrivacyError, match="in use"):
            count(tmp_path / "a", exclusive=True)
        again.close()
        os.close(reading)
        os.close(writing)

    def test_one_of_many_gets_it(self, tmp_path: Path) -> None:
        count(tmp_path / "a").close()
        reading, writing = os.pipe()
        held_until, all_have_tried = os.pipe()

        def take() -> None:
            try:
                kept = count(tmp_path / "a", exclusive=True)
            except PrivacyError:
                os.write(writing, b"0")
                return
            os.write(writing, b"1")
            os.close(all_have_tried)
            os.read(held_until, 1)
            kept.close()

        children = [in_child(take) for _ in range(8)]
        tried = b"".join(os.read(reading, 1) for _ in children)
        os.close(all_have_tried)
        assert all([succeeded(child) for child in children])
        assert sorted(tried) == sorted(b"10000000")
        for end in (reading, writing, held_until):
            os.close(end)

    def test_another_format_is_refused(self, tmp_path: Path) -> None:
        count(tmp_path / "a").close()
        with sqlite3.connect(tmp_path / "a") as connection:
            connection.execute("PRAGMA user_version = 2")
        connection.close()
        with pytest.raises(PrivacyError, match=r"has format 2, and this version .* format 1 only"):
            count(tmp_path / "a")


def _study(path: Path | None) -> Callable[[], Any]:
    study = DPareto(toy.problem(), acquisition="random", storage=path, seed=0)
    study.run(1)
    return lambda: study.run(2)


def _run(path: Path | None) -> Callable[[], Any]:
    run = Run(path, what="a test", settings={})
    run.put(step=1)
    return lambda: run.put(step=2)


def _ledger(path: Path | None) -> Callable[[], Any]:
    ledger = PrivacyLedger(path or ":memory:", PrivacyBudget(1.0))
    return lambda: ledger.charge(toy_price())


def toy_price() -> Any:
    from botorch_dp.privacy import laplace_guarantee

    return laplace_guarantee(sensitivity=1.0, epsilon=0.4)


class TestForks:
    """A forked child does not continue what its parent has open beside it."""

    @pytest.mark.parametrize("in_file", [True, False])
    @pytest.mark.parametrize("opened", [_study, _run, _ledger])
    def test_what_the_parent_has_open(
        self, tmp_path: Path, opened: Callable[[Path | None], Callable[[], Any]], in_file: bool
    ) -> None:
        go_on = opened(tmp_path / "a" if in_file else None)
        answer = in_fork(lambda: str(go_on()))
        if opened is _ledger and in_file:
            # Charges go into one file, and each is made once.
            assert not isinstance(answer, Exception)
            with pytest.raises(PrivacyError, match="costs"):
                go_on(), go_on()
        elif opened is _run and not in_file:
            assert not isinstance(answer, Exception)  # a run of its own, with nothing in it
        else:
            assert isinstance(answer, PrivacyError | StudyError) and "fork" in str(answer)
        if opened is not _ledger:
            go_on()

    @pytest.mark.parametrize("fails", [False, True])
    def test_amid_a_transaction_of_its_own_thread(self, tmp_path: Path, fails: bool) -> None:
        """The child cannot end it, neither by going on nor by an error."""
        file, code = count(tmp_path / "a"), 1
        try:
            with file.transaction():
                file.execute("INSERT INTO tick VALUES (1)")
                pid = os.fork()
                if pid == 0 and fails:
                    raise ZeroDivisionError
                if pid:
                    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        except ZeroDivisionError:
            os._exit(0)
        except PrivacyError as error:
            os._exit(0 if "cannot end the transaction" in str(error) else 1)
        assert code == 0
        assert file.query("SELECT number FROM tick") == [(1,)]

    def test_a_child_whose_interpreter_ends_while_the_parent_writes(self, tmp_path: Path) -> None:
        """All that a child inherits is torn down with its interpreter: no connection may be."""
        script = """
import os, sys
from botorch_dp._files import FileKind, StateFile
kind = FileKind(name="count", application_id=7, schema=("CREATE TABLE tick (number INTEGER)",))
file = StateFile(sys.argv[1], kind, lambda connection: None, exclusive=sys.argv[2] == "alone")
with file.transaction() as connection:
    connection.execute("INSERT INTO tick VALUES (1)")
    child = os.fork()
    if child == 0:
        sys.exit(0)
    os.waitpid(child, 0)
    connection.execute("INSERT INTO tick VALUES (2)")
"""
        for how in ("alone", "shared"):
            path = tmp_path / how
            subprocess.run([sys.executable, "-c", script, str(path), how], check=True)
            assert count(path).query("SELECT number FROM tick") == [(1,), (2,)]
