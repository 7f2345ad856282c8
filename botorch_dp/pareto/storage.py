"""A study in one SQLite file.

What must hold, and what makes it hold:

* *A finished training is never lost.* Each is committed, synced to disk, before the study goes on;
  a rollback journal undoes a commit that was cut off.
* *A trial is fixed before it trains.* Its number, config and seeds are committed first, so that
  after a crash the same trial is trained again, not another one.
* *One study, one process.* The file stays locked while it is open. The operating system releases
  the lock when the process ends, however it ends.
* *Measured utilities are sensitive*: the file has mode 0600 from before the first byte and says
  what it holds in its own table.
"""

from __future__ import annotations

import json
import math
import os
import sqlite3
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from botorch_dp._files import OWNER_ONLY, create_private
from botorch_dp.pareto.problem import Measurement, State, StudyError, Trial
from botorch_dp.space import Config

#: Marks an SQLite file as a study ("DPar").
APPLICATION_ID = 0x44506172

MEMORY = ":memory:"

_NOTICE = (
    "This file holds utilities measured on sensitive records, without noise: "
    "keep the file to yourself and publish only what its guarantee covers."
)

#: Statements that lead from each schema version to the next; their count is the newest version.
MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        "CREATE TABLE study (id INTEGER PRIMARY KEY CHECK (id = 1), notice TEXT NOT NULL, "
        "description TEXT NOT NULL, seed TEXT NOT NULL, created_at TEXT NOT NULL)",
        "CREATE TABLE trial (number INTEGER PRIMARY KEY, config TEXT NOT NULL, "
        "seeds TEXT NOT NULL, epsilon REAL, created_at TEXT NOT NULL, state TEXT NOT NULL "
        "CHECK (state IN ('pending', 'complete', 'failed')))",
        "CREATE TABLE measurement (trial INTEGER NOT NULL REFERENCES trial, "
        "replicate INTEGER NOT NULL, utility REAL NOT NULL CHECK (utility BETWEEN 0 AND 1), "
        "objectives TEXT NOT NULL, seconds REAL, finished_at TEXT NOT NULL, "
        "PRIMARY KEY (trial, replicate))",
        "CREATE TABLE failure (id INTEGER PRIMARY KEY, trial INTEGER NOT NULL REFERENCES trial, "
        "error_type TEXT NOT NULL, trainings INTEGER NOT NULL, "
        "blamed INTEGER NOT NULL CHECK (blamed IN (0, 1)), failed_at TEXT NOT NULL)",
    ),
)


class StudyStorage:
    """The trials of one study, in a file or in memory.

    Args:
        path: Where the study lives; an existing study is continued. None or ":memory:" keeps it in
            memory.
        description: What the study optimizes; must agree with an existing file.
        seed: The study's seed. None takes an existing study's own, or a random one.

    Raises:
        StudyError: The file is in use, holds something else, or another study.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | None,
        *,
        description: Mapping[str, Any],
        seed: int | None = None,
    ) -> None:
        self._path = None if path in (None, MEMORY) else Path(path)
        self._lock = threading.RLock()
        self._closed = False
        self._trials: list[Trial] = []
        self._pending: set[int] = set()
        self._states: Counter[State] = Counter()
        if self._path is not None:
            if not self._path.parent.is_dir():
                raise StudyError(f"`storage`: the folder {self._path.parent} does not exist.")
            create_private(self._path)
        self._connection = sqlite3.connect(
            MEMORY if self._path is None else self._path,
            timeout=0.0,
            isolation_level=None,
            check_same_thread=False,
        )
        try:
            self._open(description, seed)
            if self._path is not None:
                os.chmod(self._path, OWNER_ONLY)
        except sqlite3.DatabaseError as error:
            self._connection.close()
            # Only the class that names this cause: "locked" is an OperationalError.
            if isinstance(error, sqlite3.OperationalError) and "locked" in str(error):
                raise StudyError(
                    f"{self._path} is in use by another study. Wait for that process, or call "
                    "`close()` on the study that holds it."
                ) from None
            raise StudyError(f"{self._path} is no study file ({error}).") from None
        except BaseException:
            self._connection.close()
            raise

    def close(self) -> None:
        """Release the file. Everything is on disk already."""
        with self._lock:
            self._closed = True
            self._connection.close()

    def __len__(self) -> int:
        return len(self._trials)

    def __getitem__(self, number: int) -> Trial:
        """One trial as it is now, or an error if there is none with this number."""
        with self._lock:
            if not 0 <= number < len(self._trials):
                raise ValueError(
                    f"`trial` {number} is unknown; the study has {len(self._trials)} trials."
                )
            return self._trials[number]

    def trials(self) -> list[Trial]:
        """All trials in the order of their numbers."""
        with self._lock:
            return list(self._trials)

    def pending(self) -> list[int]:
        """The numbers of the pending trials, in order."""
        with self._lock:
            return sorted(self._pending)

    def count(self, state: State) -> int:
        """How many trials are in a state."""
        with self._lock:
            return self._states[state]

    def next_replicate(self, number: int) -> int:
        """The first replicate of a trial that was never measured, after all that were."""
        with self._lock:
            (last,) = self._connection.execute(
                "SELECT MAX(replicate) FROM measurement WHERE trial = ?", (number,)
            ).fetchone()
        return 0 if last is None else int(last) + 1

    def add_trial(
        self,
        number: int,
        config: Config,
        seeds: Sequence[int],
        epsilon: float,
        *,
        error_type: str | None = None,
    ) -> Trial:
        """Fix a proposed trial before it trains; with an error, one that never will."""
        state = "pending" if error_type is None else "failed"
        with self._transaction(number):
            self._connection.execute(
                "INSERT INTO trial VALUES (?, ?, ?, ?, ?, ?)",
                (
                    number,
                    json.dumps(config),
                    json.dumps(list(seeds)),
                    None if math.isnan(epsilon) else epsilon,
                    _now(),
                    state,
                ),
            )
            if error_type is not None:
                self._insert_failure(number, error_type, 0, blamed=True)
        return self[number]

    def add_measurements(self, number: int, measurements: Mapping[int, Measurement]) -> Trial:
        """Store finished trainings by replicate; a trial is complete when none is missing."""
        with self._transaction(number):
            trial = self[number]
            self._connection.executemany(
                "INSERT INTO measurement VALUES (?, ?, ?, ?, ?, ?)",
                [
                    (number, replicate, m.utility, json.dumps(m.objectives), m.seconds, _now())
                    for replicate, m in measurements.items()
                ],
            )
            if trial.state == "pending" and set(trial.missing) <= set(measurements):
                self._set_state(number, "complete")
        return self[number]

    def add_failure(
        self,
        number: int,
        error_type: str,
        *,
        trainings: int,
        blamed: bool = True,
        is_last: bool = False,
    ) -> Trial:
        """Store the type of what went wrong.

        Args:
            number: The trial.
            error_type: Name of the exception's class.
            trainings: How many trainings the attempt may have begun.
            blamed: False if the trial was only near when something else broke.
            is_last: Whether the trial has failed by it.
        """
        with self._transaction(number):
            self._insert_failure(number, error_type, trainings, blamed=blamed)
            if is_last:
                self._set_state(number, "failed")
        return self[number]

    def _insert_failure(
        self, number: int, error_type: str, trainings: int, *, blamed: bool
    ) -> None:
        self._connection.execute(
            "INSERT INTO failure (trial, error_type, trainings, blamed, failed_at) "
            "VALUES (?, ?, ?, ?, ?)",
            (number, error_type, trainings, int(blamed), _now()),
        )

    def _set_state(self, number: int, state: State) -> None:
        self._connection.execute("UPDATE trial SET state = ? WHERE number = ?", (state, number))

    @contextmanager
    def _transaction(self, number: int) -> Iterator[None]:
        """All or nothing, whatever interrupts it (Ctrl-C included); concerns one trial."""
        with self._lock:
            if self._closed:
                raise StudyError("The study is closed; make a new DPareto on its storage.")
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._connection.execute("COMMIT")
            except BaseException:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise
            finally:
                self._reload(number)

    def _reload(self, number: int) -> None:
        """Bring the copy of a trial in memory up to date; nobody else writes to the file."""
        execute = self._connection.execute
        row = execute(
            "SELECT number, config, seeds, epsilon, state FROM trial WHERE number = ?", (number,)
        ).fetchone()
        if row is None:
            return
        measurements = execute(
            "SELECT replicate, utility, objectives, seconds FROM measurement WHERE trial = ? "
            "ORDER BY replicate",
            (number,),
        )
        measured = {
            replicate: Measurement(
                utility, tuple(json.loads(objectives)), math.nan if seconds is None else seconds
            )
            for replicate, utility, objectives, seconds in measurements
        }
        failures = execute(
            "SELECT error_type, trainings, blamed FROM failure WHERE trial = ? ORDER BY id",
            (number,),
        ).fetchall()
        trial = _trial(row, measured, failures)
        if number < len(self._trials):
            self._states[self._trials[number].state] -= 1
        self._states[trial.state] += 1
        (self._pending.add if trial.state == "pending" else self._pending.discard)(number)
        self._trials[number : number + 1] = [trial]

    def _open(self, description: Mapping[str, Any], seed: int | None) -> None:
        execute = self._connection.execute
        execute("PRAGMA locking_mode = EXCLUSIVE")
        # The first lock is kept until the connection closes.
        execute("BEGIN EXCLUSIVE")
        try:
            version = execute("PRAGMA user_version").fetchone()[0]
            is_empty = not execute("SELECT COUNT(*) FROM sqlite_master").fetchone()[0]
            if not is_empty and execute("PRAGMA application_id").fetchone()[0] != APPLICATION_ID:
                raise StudyError(f"{self._path} is another program's database, not a study.")
            if version > len(MIGRATIONS):
                raise StudyError(
                    f"{self._path} was written by a newer version (schema {version}; this one "
                    f"knows {len(MIGRATIONS)}). Upgrade botorch_dp."
                )
            for statements in MIGRATIONS[version:]:
                for statement in statements:
                    execute(statement)
            execute(f"PRAGMA user_version = {len(MIGRATIONS)}")
            execute(f"PRAGMA application_id = {APPLICATION_ID}")
            self.seed = self._matched(description, seed)
            execute("COMMIT")
        except BaseException:
            if self._connection.in_transaction:
                execute("ROLLBACK")
            raise
        execute("PRAGMA synchronous = EXTRA")
        for (number,) in execute("SELECT number FROM trial ORDER BY number").fetchall():
            self._reload(number)

    def _matched(self, description: Mapping[str, Any], seed: int | None) -> int:
        """The study's seed, once its description is known to be ours."""
        row = self._connection.execute("SELECT description, seed FROM study").fetchone()
        if row is None:
            # More bits than this make no difference to a search.
            seed = int.from_bytes(os.urandom(8)) if seed is None else seed
            self._connection.execute(
                "INSERT INTO study VALUES (1, ?, ?, ?, ?)",
                (_NOTICE, json.dumps(description), str(seed), _now()),
            )
            return seed
        stored = json.loads(row[0])
        # Through JSON and back, so that tuples and lists compare equal.
        differences = _differences(stored, json.loads(json.dumps(description)))
        if differences:
            raise StudyError(
                f"{self._path} holds a study of another problem: {'; '.join(differences)}. "
                "Give this problem a file of its own, or make the problem as it was."
            )
        if seed is not None and int(row[1]) != seed:
            raise StudyError(
                f"{self._path} holds a study with seed {row[1]}, got seed={seed}. Pass seed=None "
                "to continue it."
            )
        return int(row[1])


def _trial(
    row: tuple[Any, ...],
    measured: Mapping[int, Measurement],
    failures: Sequence[tuple[str, int, int]],
) -> Trial:
    number, config, seeds, epsilon, state = row
    seeds = tuple(json.loads(seeds))
    blamed = [kind for kind, _, is_blamed in failures if is_blamed]
    return Trial(
        number=number,
        config=json.loads(config),
        seeds=seeds,
        epsilon=math.nan if epsilon is None else epsilon,
        state=state,
        measurements=tuple(measured.get(replicate) for replicate in range(len(seeds))),
        fresh=tuple(m for replicate, m in measured.items() if replicate >= len(seeds)),
        failures=tuple(blamed),
        failed_trainings=sum(trainings for _, trainings, _ in failures),
        suspect=len(blamed) < len(failures),
    )


def _differences(stored: Any, given: Any, path: str = "") -> list[str]:
    """What differs between two JSON values, in words."""
    if isinstance(stored, dict) and isinstance(given, dict):
        found = []
        for key in dict.fromkeys((*stored, *given)):
            where = f"{path}.{key}" if path else str(key)
            if key not in stored:
                found.append(f"`{where}` is new")
            elif key not in given:
                found.append(f"`{where}` is missing")
            else:
                found += _differences(stored[key], given[key], where)
        if not found and list(stored) != list(given):
            found.append(f"`{path}` has another order")
        return found
    return [] if stored == given else [f"`{path}` was {stored!r} and is {given!r}"]


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
