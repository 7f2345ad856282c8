"""A study in one SQLite file: trials in, trials out.

What must hold, and what makes it hold:

* *What was stored is never lost.* Each change is one transaction, synced to the disk before the
  study goes on: a trial before it trains, each training that has ended.
* *What is read is what was written.* Each trial has a checksum, and the study one of its own that
  covers how many trials there are. What does not fit is refused as damaged.
* *One process at a time holds the file.* The lock is dropped when the process ends, however it
  ends. Others may read a copy of what is stored meanwhile.
* *Measured utilities are sensitive*, and the study says so in its own table.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from botorch_dp._files import MEMORY, FileKind, StateFile, differences, now
from botorch_dp.pareto.problem import (
    Measurement,
    State,
    StudyError,
    Trial,
)

_NOTICE = (
    "This study holds utilities measured on sensitive records, without noise: "
    "keep it to yourself and publish only what its guarantee covers."
)

STUDY = FileKind(
    name="study",
    application_id=0x44506172,  # "DPar"
    error=StudyError,
    schema=(
        "CREATE TABLE study (id INTEGER PRIMARY KEY CHECK (id = 1), notice TEXT NOT NULL, "
        "description TEXT NOT NULL, seed TEXT NOT NULL, "
        "created_at TEXT NOT NULL, trials INTEGER NOT NULL, digest TEXT NOT NULL)",
        "CREATE TABLE trial (number INTEGER PRIMARY KEY, record TEXT NOT NULL, "
        "stored_at TEXT NOT NULL, digest TEXT NOT NULL)",
    ),
)
_ABOUT = "SELECT notice, description, seed, created_at, trials FROM study"


class StudyFile:
    """The trials of one study, in a file or in memory. Threads may share it.

    Args:
        path: The file; an existing study is continued. None keeps the study in memory.
        description: What the study optimizes; must agree with what is stored. None reads a copy of
            what is stored now, whoever holds the file.
        seed: The study's seed. None takes the stored one, or draws one.

    Raises:
        StudyError: The file is in use, damaged, another study's, or something else.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | None,
        *,
        description: Mapping[str, Any] | None,
        seed: int | None = None,
    ) -> None:
        def create(connection: Any) -> None:
            # More bits than these make no difference to a search, and are harder to read.
            chosen = int.from_bytes(os.urandom(4)) if seed is None else seed
            connection.execute(
                "INSERT INTO study VALUES (1, ?, ?, ?, ?, 0, '')",
                (_NOTICE, json.dumps(description), str(chosen), now()),
            )
            _seal(connection)

        is_copy = description is None
        place = MEMORY if path is None else path
        self._file = StateFile(
            place, STUDY, None if is_copy else create, exclusive=not is_copy, copied=is_copy
        )
        try:
            with self._file.explained():
                self._read(description, seed)
        except BaseException:
            self.close()
            raise

    def _read(self, description: Mapping[str, Any] | None, seed: int | None) -> None:
        """Everything that is stored, once it is known to be whole and ours."""
        file = self._file
        rows = file.query(_ABOUT)
        if len(rows) != 1:
            raise file.damaged("it describes no study")
        ((_, described, stored_seed, _, count),) = rows
        if file.query("SELECT digest FROM study") != [(_checksum(rows[0]),)]:
            raise file.damaged("what it says of the study was altered")
        stored = file.query("SELECT number, record, digest FROM trial ORDER BY number")
        if [number for number, *_ in stored] != list(range(count)):
            raise file.damaged("trials are missing")
        for number, record, digest in stored:
            if _checksum((number, record)) != digest:
                raise file.damaged(f"what it says of trial {number} was altered")
        #: What the study optimizes.
        self.description: dict[str, Any] = json.loads(described)
        self.seed = int(stored_seed)
        self._trials = [_trial(record) for _, record, _ in stored]
        if description is not None and (
            changed := differences(self.description, dict(description))
        ):
            raise StudyError(
                f"{self.path} holds a study of another problem: {'; '.join(changed)}. Give this "
                "problem a file of its own, or make the problem as it was."
            )
        if seed is not None and self.seed != seed:
            raise StudyError(
                f"{self.path} holds a study with seed {self.seed}, got seed={seed}. Pass "
                "seed=None to continue it."
            )

    @property
    def path(self) -> str:
        """Where the study is."""
        return self._file.path

    def close(self) -> None:
        """Release the file. What was stored stays, also in memory."""
        self._file.close()

    def check_held(self) -> None:
        """Raise unless this process holds the file: it may be a fork of the one that does."""
        self._file.query("SELECT 1")

    def __len__(self) -> int:
        return len(self._trials)

    def __getitem__(self, number: int) -> Trial:
        """One trial as it is now, or an error if there is none with this number."""
        if not 0 <= number < len(self._trials):
            raise ValueError(
                f"`trial` {number} is unknown; the study has {len(self._trials)} trials."
            )
        return self._trials[number]

    @property
    def trials(self) -> list[Trial]:
        """All trials by number."""
        return list(self._trials)

    def count(self, state: State) -> int:
        """How many trials are in a state."""
        return sum(trial.state == state for trial in self._trials)

    def add(self, trial: Trial) -> Trial:
        """Store a new trial, whose number must be the next one."""
        with self._file.lock:
            assert trial.number == len(self._trials)
            with self._file.transaction() as connection:
                connection.execute(
                    "INSERT INTO trial VALUES (?, ?, ?, ?)", (trial.number, *_stored(trial))
                )
                connection.execute("UPDATE study SET trials = trials + 1")
                _seal(connection)
            self._trials.append(trial)
        return trial

    def change(self, number: int, changed: Callable[[Trial], Trial]) -> Trial:
        """Store what a function makes of a trial as it is now. Threads change it in turn."""
        with self._file.lock:
            trial = changed(self[number])
            with self._file.transaction() as connection:
                connection.execute(
                    "UPDATE trial SET record = ?, stored_at = ?, digest = ? WHERE number = ?",
                    (*_stored(trial), number),
                )
            # After the commit: what a transaction did not keep is not known here either.
            self._trials[number] = trial
        return trial


def _checksum(row: tuple[Any, ...]) -> str:
    return hashlib.sha256(json.dumps(row, default=repr).encode()).hexdigest()


def _seal(connection: Any) -> None:
    """Write the checksum of the study. Ends each transaction that changes its row."""
    (row,) = connection.execute(_ABOUT).fetchall()
    connection.execute("UPDATE study SET digest = ?", (_checksum(row),))


def _stored(trial: Trial) -> tuple[str, str, str]:
    """A trial as JSON, when that was written, and its checksum."""
    record = json.dumps(asdict(trial))
    return record, now(), _checksum((trial.number, record))


def _trial(words: str) -> Trial:
    """Inverse of :func:`_stored`."""
    # One object stands for every NaN, so that what was read equals what was stored.
    record = json.loads(words, parse_constant=lambda _: math.nan)
    own = {
        "seeds": tuple(record["seeds"]),
        "measurements": tuple(m and _measurement(m) for m in record["measurements"]),
        "fresh": {int(r): _measurement(m) for r, m in record["fresh"].items()},
    }
    return Trial(**{**record, **own})


def _measurement(record: Mapping[str, Any]) -> Measurement:
    return Measurement(record["utility"], tuple(record["objectives"]), record["seconds"])
