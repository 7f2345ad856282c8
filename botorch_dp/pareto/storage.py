"""A study in one SQLite file.

What must hold, and what makes it hold:

* *A finished training is never lost.* Each is committed, synced to disk, before the study goes on.
* *A trial is fixed before it trains.* Its number, config and seeds are committed first, so that
  after a crash the same trial is trained again, not another one.
* *One study, one process.* The file is exclusive; see :class:`~botorch_dp._files.StateFile`.
* *Measured utilities are sensitive*, and the file says so in its own table.
"""

from __future__ import annotations

import json
import math
import os
import sqlite3
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from botorch_dp._files import MEMORY, FileKind, StateFile, differences, now
from botorch_dp.pareto.problem import Measurement, State, StudyError, Trial
from botorch_dp.space import Config

_NOTICE = (
    "This file holds utilities measured on sensitive records, without noise: "
    "keep the file to yourself and publish only what its guarantee covers."
)

STUDY = FileKind(
    name="study",
    application_id=0x44506172,  # "DPar"
    error=StudyError,
    migrations=(
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
            "CREATE TABLE failure (id INTEGER PRIMARY KEY, "
            "trial INTEGER NOT NULL REFERENCES trial, error_type TEXT NOT NULL, "
            "trainings INTEGER NOT NULL, "
            "blamed INTEGER NOT NULL CHECK (blamed IN (0, 1)), failed_at TEXT NOT NULL)",
        ),
    ),
)


class StudyStorage(StateFile):
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
        words = json.dumps(description)

        def create(connection: sqlite3.Connection) -> None:
            # More bits than this make no difference to a search.
            chosen = int.from_bytes(os.urandom(8)) if seed is None else seed
            connection.execute(
                "INSERT INTO study VALUES (1, ?, ?, ?, ?)", (_NOTICE, words, str(chosen), now())
            )

        self._trials: list[Trial] = []
        self._pending: set[int] = set()
        self._states: Counter[State] = Counter()
        super().__init__(MEMORY if path is None else path, STUDY, create, exclusive=path != MEMORY)
        try:
            self.seed = self._matched(description, seed)
            for (number,) in self.query("SELECT number FROM trial ORDER BY number"):
                self._reload(number)
        except BaseException:
            self.close()
            raise

    def __len__(self) -> int:
        return len(self._trials)

    def __getitem__(self, number: int) -> Trial:
        """One trial as it is now, or an error if there is none with this number."""
        with self.lock:
            if not 0 <= number < len(self._trials):
                raise ValueError(
                    f"`trial` {number} is unknown; the study has {len(self._trials)} trials."
                )
            return self._trials[number]

    def trials(self) -> list[Trial]:
        """All trials in the order of their numbers."""
        with self.lock:
            return list(self._trials)

    def pending(self) -> list[int]:
        """The numbers of the pending trials, in order."""
        with self.lock:
            return sorted(self._pending)

    def count(self, state: State) -> int:
        """How many trials are in a state."""
        with self.lock:
            return self._states[state]

    def next_replicate(self, number: int) -> int:
        """The first replicate of a trial that was never measured, after all that were."""
        with self.lock:
            (last,) = self.execute(
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
        with self._changing(number):
            self.execute(
                "INSERT INTO trial VALUES (?, ?, ?, ?, ?, ?)",
                (
                    number,
                    json.dumps(config),
                    json.dumps(list(seeds)),
                    None if math.isnan(epsilon) else epsilon,
                    now(),
                    state,
                ),
            )
            if error_type is not None:
                self._insert_failure(number, error_type, 0, blamed=True)
        return self[number]

    def add_measurements(self, number: int, measurements: Mapping[int, Measurement]) -> Trial:
        """Store finished trainings by replicate; a trial is complete when none is missing."""
        with self._changing(number):
            trial = self[number]
            self.executemany(
                "INSERT INTO measurement VALUES (?, ?, ?, ?, ?, ?)",
                [
                    (number, replicate, m.utility, json.dumps(m.objectives), m.seconds, now())
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
        with self._changing(number):
            self._insert_failure(number, error_type, trainings, blamed=blamed)
            if is_last:
                self._set_state(number, "failed")
        return self[number]

    def _insert_failure(
        self, number: int, error_type: str, trainings: int, *, blamed: bool
    ) -> None:
        self.execute(
            "INSERT INTO failure (trial, error_type, trainings, blamed, failed_at) "
            "VALUES (?, ?, ?, ?, ?)",
            (number, error_type, trainings, int(blamed), now()),
        )

    def _set_state(self, number: int, state: State) -> None:
        self.execute("UPDATE trial SET state = ? WHERE number = ?", (state, number))

    @contextmanager
    def _changing(self, number: int) -> Iterator[None]:
        """All or nothing, whatever interrupts it (Ctrl-C included); concerns one trial."""
        with self.lock:
            try:
                with self.transaction():
                    yield
            finally:
                if not self.closed:
                    self._reload(number)

    def _reload(self, number: int) -> None:
        """Bring the copy of a trial in memory up to date; nobody else writes to the file."""
        execute = self.execute
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

    def _matched(self, description: Mapping[str, Any], seed: int | None) -> int:
        """The study's seed, once its description is known to be ours."""
        rows = self.query("SELECT description, seed FROM study")
        if len(rows) != 1:
            raise self.damaged("it describes no study")
        ((stored, stored_seed),) = rows
        changed = differences(json.loads(stored), dict(description))
        if changed:
            raise StudyError(
                f"{self.path} holds a study of another problem: {'; '.join(changed)}. "
                "Give this problem a file of its own, or make the problem as it was."
            )
        if seed is not None and int(stored_seed) != seed:
            raise StudyError(
                f"{self.path} holds a study with seed {stored_seed}, got seed={seed}. Pass "
                "seed=None to continue it."
            )
        return int(stored_seed)


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
