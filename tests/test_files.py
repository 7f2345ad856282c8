"""Half-written files never appear; private files are private at once; locks are tried first."""

from __future__ import annotations

import os
import sqlite3
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from botorch_dp import _files
from botorch_dp._files import FileKind, StateFile, atomic_write
from botorch_dp.errors import PrivacyError
from botorch_dp.pareto import DPareto, StudyError
from botorch_dp.privacy import PrivacyBudget, PrivacyLedger
from botorch_dp.privacy.runs import Run
from tests.one_draw import in_fork
from tests.pareto import toy

COUNT = FileKind(
    name="count", application_id=7, migrations=(("CREATE TABLE tick (number INTEGER)",),)
)


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
    """Whoever opens a file knows that others are kept out, or is refused."""

    @pytest.fixture(autouse=True)
    def _untried(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(_files, "_LOCKS_WORK", set())

    @pytest.fixture
    def sqlite_without_locks(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """SQLite on a file system that grants every lock: its own VFS of this behaviour."""
        connect = sqlite3.connect

        def no_locks(database: str, **settings: Any) -> sqlite3.Connection:
            return connect(f"{database}&vfs=unix-none", **settings)

        monkeypatch.setattr(sqlite3, "connect", no_locks)

    @pytest.mark.parametrize("exclusive", [True, False])
    @pytest.mark.parametrize("exists", [True, False])
    def test_locks_of_sqlite_that_do_nothing(
        self, tmp_path: Path, exclusive: bool, exists: bool, request: pytest.FixtureRequest
    ) -> None:
        if exists:
            count(tmp_path / "a").close()
            _files._LOCKS_WORK.clear()
        request.getfixturevalue("sqlite_without_locks")
        before = sorted(tmp_path.iterdir())
        with pytest.raises(PrivacyError, match=r"granted to everybody.*lock service"):
            count(tmp_path / "a", exclusive=exclusive)
        assert sorted(tmp_path.iterdir()) == before

    def test_without_the_check_writes_are_lost(
        self, tmp_path: Path, sqlite_without_locks: None, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """What the refusal is for: two that write at once, each in a transaction."""
        monkeypatch.setattr(_files, "_check_locks", lambda *_: None)
        one, other = count(tmp_path / "a"), count(tmp_path / "a")
        with one.transaction():
            one.execute("SELECT * FROM tick").fetchall()
            with other.transaction():
                other.execute("INSERT INTO tick VALUES (2)")
            one.execute("INSERT INTO tick VALUES (1)")
        assert count(tmp_path / "a").query("SELECT number FROM tick") == [(1,)]

    def test_locks_of_the_system_that_do_nothing(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(_files, "_locked", lambda *_: True)
        with pytest.raises(PrivacyError, match="granted to everybody"):
            count(tmp_path / "a")

    def test_locks_that_are_never_granted(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(_files, "_locked", lambda *_: False)
        with pytest.raises(PrivacyError, match="or to nobody"):
            count(tmp_path / "a")

    def test_without_locks_of_descriptors(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """As outside of Linux."""
        monkeypatch.setattr(_files, "_OF_DESCRIPTORS", None)
        held = count(tmp_path / "a", exclusive=True)
        with pytest.raises(PrivacyError, match="in use"):
            count(tmp_path / "a", exclusive=True)
        held.close()

    @pytest.mark.parametrize(
        ("mounted", "refused"),
        [
            ("nfs4 house:/share rw,vers=4.2", False),
            ("nfs house:/share rw,vers=3,nolock", True),
            ("nfs4 house:/share rw,local_lock=posix", True),
            ("cifs //house/share rw,nobrl", True),
            ("ext4 /dev/sda1 rw,nolock", False),
        ],
    )
    def test_locks_that_other_machines_do_not_see(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mounted: str, refused: bool
    ) -> None:
        device = os.stat(tmp_path).st_dev
        mounts = tmp_path / "mountinfo"
        number = f"{os.major(device)}:{os.minor(device)}"
        mounts.write_text(f"22 1 9:9 / / rw - nfs x nolock\n36 22 {number} / /x rw - {mounted}\n")
        real = open
        monkeypatch.setattr(
            _files,
            "open",
            lambda path, *rest: real(mounts if "mountinfo" in str(path) else path, *rest),
            raising=False,
        )
        if refused:
            with pytest.raises(PrivacyError, match="mounted with"):
                count(tmp_path / "a")
        else:
            count(tmp_path / "a").close()

    def test_are_tried_once_a_device(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        count(tmp_path / "a").close()
        monkeypatch.setattr(_files, "_locked", lambda *_: True)
        count(tmp_path / "b").close()

    def test_a_file_is_let_go_when_nobody_holds_it(self, tmp_path: Path) -> None:
        held = count(tmp_path / "a", exclusive=True)
        with pytest.raises(PrivacyError, match="in use"):
            count(tmp_path / "a", exclusive=True)
        del held
        count(tmp_path / "a", exclusive=True).close()


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
            with pytest.raises(PrivacyError, match="asks for"):
                go_on(), go_on()
        elif opened is _run and not in_file:
            assert not isinstance(answer, Exception)  # a run of its own, with nothing in it
        else:
            assert isinstance(answer, PrivacyError | StudyError) and "fork" in str(answer)
        if opened is not _ledger:
            go_on()
