"""The table of ``make faults`` in a small size, and versions that are broken in one place each."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import pytest

from botorch_dp import _files
from tools import faults
from tools.faults import KINDS, PRICE, PrivacyLedger, Tell

DATABASES = [kind for kind in KINDS if kind not in ("data set", "exchange by files")]


@pytest.fixture
def rng() -> random.Random:
    return random.Random(5)


#: One that appends to a database, and one that replaces a file; the others are built like them.
OFTEN = ("ledger", "checkpoint")


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    "kind", [k if k in OFTEN else pytest.param(k, marks=pytest.mark.slow) for k in KINDS]
)
def test_nothing_is_lost(kind: str, tmp_path: Path, rng: random.Random) -> None:
    def place(name: str) -> Path:
        (tmp_path / name).mkdir()
        return tmp_path / name

    assert faults.kills(place("kills"), kind, 2, rng)[1] == 0
    cut, power = faults.torn(place("torn"), kind, count=2, cuts=1, powers=1, rng=rng)
    assert cut[0] > 0 and power[0] > 0 and (cut[1], power[1]) == (0, 0)
    for what in faults.SHORTAGES:
        tmp_path.chmod(0o755)
        assert faults.shortage(place(what), kind, what, 1, rng)[1] == 0, what
    if kind in faults.SEALED:
        tried, lost, noticed = faults.flips(place("flips"), kind, 60, rng)
        assert (tried, lost) == (60, 0) and (noticed > 0 or kind == "exchange by files")
    if kind in DATABASES:
        assert faults.clock_set_back(place("clock"), kind)[1] == 0


def test_nothing_is_lost_of_two_processes(tmp_path: Path, rng: random.Random) -> None:
    assert faults.kills(tmp_path, "ledger", 2, rng, writers=2) == (4, 0)


@pytest.mark.slow
def test_killed_runs_draw_once_for_each_charge(tmp_path: Path) -> None:
    with faults.cases() as cases:
        for name, case in cases.items():
            assert faults.kills_between_writes(tmp_path / name, case, 0.1)[1] == 0, name


# Broken versions


def torn(folder: Path, kind: str) -> int:
    options: dict[str, Any] = {"count": 2, "cuts": 3, "powers": 3, "rng": random.Random(0)}
    return sum(lost for _, lost in faults.torn(folder, kind, **options))


@pytest.mark.parametrize(
    ("kind", "setting"), [("ledger", "synchronous = OFF"), ("checkpoint", "journal_mode = MEMORY")]
)
def test_a_careless_database_is_noticed(
    kind: str, setting: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect = _files._connect

    def careless(database: str) -> Any:
        connection = connect(database)
        connection.execute(f"PRAGMA {setting}")
        return connection

    monkeypatch.setattr(_files, "_connect", careless)
    assert torn(tmp_path, kind) > 0


def test_files_that_are_written_in_place_are_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextmanager
    def careless(path: Path, **_: Any) -> Iterator[IO[bytes]]:
        with open(path, "wb") as file:
            yield file
            file.flush()
            _files.os.fsync(file.fileno())

    monkeypatch.setattr("botorch_dp.outsourced.exchange.atomic_write", careless)
    assert torn(tmp_path, "data set") > 0


def test_a_folder_that_is_not_synced_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("botorch_dp.outsourced.exchange.sync_folder", lambda folder: None)
    assert torn(tmp_path, "exchange by files") > 0


def tells_too_early(path: Path, tell: Tell) -> None:
    with PrivacyLedger(path, faults.PLENTY) as ledger:
        while True:
            tell("written")
            ledger.release(PRICE, lambda: 0.5, key=f"value {len(ledger.entries())}")


def draws_before_it_pays(path: Path, tell: Tell) -> None:
    with PrivacyLedger(path, faults.PLENTY) as ledger:
        while True:
            value = faults.draw(tell)
            ledger.release(PRICE, lambda value=value: value, key=f"value {len(ledger.entries())}")
            tell("written")


@pytest.mark.one_in(2)
@pytest.mark.parametrize("write", [tells_too_early, draws_before_it_pays])
def test_the_wrong_order_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: Any
) -> None:
    broken = faults.Kind(write, faults.released, faults.charges)
    monkeypatch.setitem(KINDS, "ledger", broken)
    assert torn(tmp_path, "ledger") > 0


def test_a_checksum_that_is_not_compared_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def careless(content: bytes) -> Any:
        body = memoryview(content)[32:]
        size = int.from_bytes(body[:8], "big")
        return _files._unpacked(json.loads(bytes(body[8 : 8 + size])), body[8 + size :])

    monkeypatch.setattr("botorch_dp.privacy.runs.unpack", careless)
    assert faults.flips(tmp_path, "checkpoint", 300, random.Random(0))[1] > 0


def test_an_error_that_is_swallowed_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rng: random.Random
) -> None:
    def careless(path: Path, tell: Tell) -> None:
        for _ in range(100):
            try:
                faults.charge(path, tell)
            except ValueError:
                tell("written")

    broken = faults.Kind(careless, faults.released, faults.charges)
    monkeypatch.setitem(KINDS, "ledger", broken)
    assert faults.shortage(tmp_path, "ledger", "full disk", 1, rng)[1] > 0
