"""A study in one SQLite file, or in a PostgreSQL database.

What must hold, and what makes it hold:

* *A finished training is never lost.* Each is committed, synced to disk, before the study goes on.
* *A trial is fixed before it trains.* Its number, config and seeds are committed first, so that
  after a crash the same trial is trained again, not another one.
* *A point of a curve is a result too.* Each is committed when it is measured, and not asked for
  again.
* *What is read is what was written.* Each trial has a checksum of all its rows, and the study one
  of its own that covers how many trials there are; what does not fit is refused as damaged.
* *One trial, one process.* Several processes may work on one study. A trial is claimed in the
  transaction that makes it; what a process that ended has left is claimed anew. A process that is
  alive (in a database: connected) keeps its claims until it closes the study.
* *Measured utilities are sensitive*, and the study says so in its own table.

"""

from __future__ import annotations

import hashlib
import json
import math
import os
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from typing import Any, ParamSpec, TypeVar

from botorch_dp._files import (
    MEMORY,
    FileKind,
    StateFile,
    differences,
    may_be_at_work,
    now,
    owner_words,
)
from botorch_dp.pareto.problem import CurvePlan, Measurement, State, StudyError, Trial
from botorch_dp.space import Config, narrowings

R = TypeVar("R")
P = ParamSpec("P")

_NOTICE = (
    "This study holds utilities measured on sensitive records, without noise: "
    "keep it to yourself and publish only what its guarantee covers."
)
#: How often a change is tried whose connection breaks in its midst.
_ATTEMPTS = 5

#: All that is stored of a trial, by table; the columns that :func:`_trial` reads come first.
_PARTS = {
    "trial": "SELECT number, config, seeds, epsilon, state, plan, created_at FROM trial "
    "WHERE number = ?",
    "measurement": "SELECT replicate, utility, objectives, seconds, finished_at FROM measurement "
    "WHERE trial = ? ORDER BY replicate",
    "point": "SELECT replicate, utility, objectives, seconds, checkpoint, attempt, measured_at "
    "FROM point WHERE trial = ? ORDER BY replicate, checkpoint",
    "failure": "SELECT error_type, trainings, blamed, failed_at FROM failure WHERE trial = ? "
    "ORDER BY id",
}


def _rows(connection: Any, number: int) -> dict[str, list[tuple]]:
    return {name: connection.execute(q, (number,)).fetchall() for name, q in _PARTS.items()}


def _checksum(rows: object) -> str:
    return hashlib.sha256(json.dumps(rows, default=repr).encode()).hexdigest()


def _study_rows(connection: Any) -> list[tuple]:
    query = "SELECT notice, description, seed, created_at, trials FROM study"
    return connection.execute(query).fetchall()


def seal_trial(connection: Any, number: int) -> None:
    """Write the checksum of a trial. Ends each transaction that changes one."""
    digest = _checksum(_rows(connection, number))
    connection.execute("UPDATE trial SET digest = ? WHERE number = ?", (digest, number))


def seal_study(connection: Any) -> None:
    """Write the number of trials, and the study's checksum."""
    connection.execute("UPDATE study SET trials = (SELECT COUNT(*) FROM trial)")
    connection.execute("UPDATE study SET digest = ?", (_checksum(_study_rows(connection)),))


STUDY = FileKind(
    name="study",
    application_id=0x44506172,  # "DPar"
    error=StudyError,
    schema=(
        "CREATE TABLE study (id INTEGER PRIMARY KEY CHECK (id = 1), notice TEXT NOT NULL, "
        "description TEXT NOT NULL, seed TEXT NOT NULL, created_at TEXT NOT NULL, "
        "trials INTEGER NOT NULL DEFAULT 0, digest TEXT NOT NULL DEFAULT '')",
        "CREATE TABLE trial (number INTEGER PRIMARY KEY, config TEXT NOT NULL, "
        "seeds TEXT NOT NULL, epsilon REAL, created_at TEXT NOT NULL, state TEXT NOT NULL "
        "CHECK (state IN ('pending', 'complete', 'failed')), plan TEXT, "
        "digest TEXT NOT NULL DEFAULT '')",
        "CREATE TABLE measurement (trial INTEGER NOT NULL REFERENCES trial, "
        "replicate INTEGER NOT NULL, utility REAL NOT NULL CHECK (utility BETWEEN 0 AND 1), "
        "objectives TEXT NOT NULL, seconds REAL, finished_at TEXT NOT NULL, "
        "PRIMARY KEY (trial, replicate))",
        "CREATE TABLE failure (id INTEGER PRIMARY KEY, "
        "trial INTEGER NOT NULL REFERENCES trial, error_type TEXT NOT NULL, "
        "trainings INTEGER NOT NULL, "
        "blamed INTEGER NOT NULL CHECK (blamed IN (0, 1)), failed_at TEXT NOT NULL)",
        "CREATE TABLE point (trial INTEGER NOT NULL REFERENCES trial, "
        "replicate INTEGER NOT NULL, attempt INTEGER NOT NULL, checkpoint INTEGER NOT NULL, "
        "utility REAL NOT NULL CHECK (utility BETWEEN 0 AND 1), objectives TEXT NOT NULL, "
        "seconds REAL, measured_at TEXT NOT NULL, "
        "PRIMARY KEY (trial, replicate, checkpoint))",
        "CREATE TABLE run (id INTEGER PRIMARY KEY CHECK (id = 1), identity TEXT NOT NULL)",
        "CREATE TABLE claim (trial INTEGER PRIMARY KEY REFERENCES trial, owner TEXT NOT NULL)",
    ),
)


#: The storages that are open in this process, by its number: a fork inherits the set only.
_OPEN: set[tuple[int, str]] = set()


class NumberTakenError(StudyError):
    """Another process has made a trial of this number in the meantime."""


class StudyStorage:
    """The trials of one study, in a file, in a database that hosts share, or in memory.

    Args:
        path: Where the study lives: a file, or the address of a PostgreSQL database; an existing
            study is continued. None or ":memory:" keeps it in memory.
        description: What the study optimizes; must agree with an existing one. None reads whatever
            study is there, without waiting for its lock or disturbing who has it.
        seed: The study's seed. None takes an existing study's own, or a random one.

    Raises:
        StudyError: What is there is in use or out of reach, or another study, or something else.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | None,
        *,
        description: Mapping[str, Any] | None,
        seed: int | None = None,
    ) -> None:
        words = json.dumps(description)

        def create(connection: Any) -> None:
            # More bits than this make no difference to a search.
            chosen = int.from_bytes(os.urandom(8)) if seed is None else seed
            connection.execute(
                "INSERT INTO study (id, notice, description, seed, created_at) "
                "VALUES (1, ?, ?, ?, ?)",
                (_NOTICE, words, str(chosen), now()),
            )
            connection.execute("INSERT INTO run VALUES (1, ?)", (uuid.uuid4().hex,))
            seal_study(connection)

        self._token = uuid.uuid4().hex
        self._pid = os.getpid()
        self._claimed: set[int] = set()
        self._seen: object = None
        self._digests: list[str] = []
        self._trials: list[Trial] = []
        self._pending: set[int] = set()
        self._states: Counter[State] = Counter()
        fill = None if description is None else create
        place = MEMORY if path is None else path
        self._opened = StateFile(place, STUDY, fill, exclusive=False, copied=fill is None)
        state = self._opened
        try:
            with state.explained():
                with state.snapshot():
                    self.seed, is_wider = self._matched(description, seed)
                if is_wider:
                    with state.transaction() as connection:
                        state.execute("UPDATE study SET description = ?", (words,))
                        seal_study(connection)
                ((self._words,),) = state.query("SELECT description FROM study")
                self.refresh()
        except BaseException:
            self.close()
            raise
        if description is not None:
            _OPEN.add((os.getpid(), self._token))

    @property
    def path(self) -> str:
        """Where the study lives; without a password, if that is a database."""
        return self._opened.path

    @property
    def closed(self) -> bool:
        """Whether :meth:`close` was called."""
        return self._opened.closed

    @property
    def _state(self) -> StateFile:
        if self._pid != os.getpid() and self.path != MEMORY:
            raise StudyError(
                f"The study {self.path} belongs to the process that opened it, of which this one "
                "is a fork. Open it here anew: several processes may work on one study."
            )
        return self._opened

    def refresh(self) -> None:
        """Bring the copies in memory up to date with what other processes have written."""
        state = self._state
        with state.lock, state.explained(), state.snapshot():
            seen = state.query("PRAGMA data_version")
            if seen == self._seen:
                return
            if state.query("SELECT description FROM study") != [(self._words,)]:
                raise StudyError(
                    f"Another process goes on with {self.path} in a wider space: open it again "
                    "with the problem as it is now."
                )
            stored = state.query("SELECT number, digest FROM trial ORDER BY number")
            if len(stored) < len(self._trials):
                raise StudyError(
                    f"{self.path} has {len(stored)} trials, and had {len(self._trials)}: an older "
                    "state of it was put back. Open it again to go on from there."
                )
            for number, digest in stored:
                if number >= len(self._trials) or self._digests[number] != digest:
                    self._reload(number, check=True)
            self._seen = seen

    def claim(self, number: int, *, asked: bool = False) -> bool:
        """Whether a pending trial is this storage's to train: nobody else trains it.

        Args:
            number: The trial.
            asked: Whether somebody trains it by hand, for whom no run waits.
        """
        if not self._is_free(number):
            return False
        with self._state.transaction():
            pending = self._state.query(
                "SELECT 1 FROM trial WHERE number = ? AND state = 'pending'", (number,)
            )
            if not pending or not self._is_free(number):
                return False
            self._insert_claim(number, asked)
        return True

    def unclaim(self, number: int) -> None:
        """Give back a claim, if there is one."""
        if number in self._claimed and not self.closed:
            with self._state.transaction():
                # Whoever lost touch with a server for too long may have lost the claim, too.
                if all(map(self._is_mine, self._owners(number))):
                    self._state.execute("DELETE FROM claim WHERE trial = ?", (number,))
            self._claimed.discard(number)

    def others_at_work(self) -> bool:
        """Whether other processes train trials of this study in a run of theirs."""
        return any(
            not self._is_mine(owner)
            and not json.loads(owner)["asked"]
            and self._may_be_at_work(owner)
            for (owner,) in self._state.query("SELECT owner FROM claim")
        )

    def _may_be_at_work(self, owner: str) -> bool:
        """Whether an owner may still train."""
        return may_be_at_work(owner, _OPEN)

    def _insert_claim(self, number: int, asked: bool) -> None:
        words = owner_words((os.getpid(), self._token), asked=asked)
        self._state.execute(
            "INSERT INTO claim VALUES (?, ?) "
            "ON CONFLICT (trial) DO UPDATE SET owner = excluded.owner",
            (number, words),
        )
        self._claimed.add(number)

    def _is_free(self, number: int) -> bool:
        owners = self._owners(number)
        return all(self._is_mine(o) or not self._may_be_at_work(o) for o in owners)

    def _owners(self, number: int) -> list[str]:
        return [
            o for (o,) in self._state.query("SELECT owner FROM claim WHERE trial = ?", (number,))
        ]

    def _is_mine(self, owner: str) -> bool:
        return bool(json.loads(owner)["token"] == self._token)

    def close(self) -> None:
        """Release the file and all claims. What was committed stays."""
        mine = (os.getpid(), self._token)
        if mine in _OPEN:
            with suppress(Exception):  # claims of a closed storage count for nothing
                for number in list(self._claimed):
                    self.unclaim(number)
            _OPEN.discard(mine)
        self._opened.close()

    def __del__(self) -> None:
        with suppress(Exception):
            self.close()

    @property
    def identity(self) -> str:
        """The study's name: the same for its file and copies of it, and for no other study."""
        ((identity,),) = self._state.query("SELECT identity FROM run")
        return str(identity)

    def __len__(self) -> int:
        return len(self._trials)

    def __getitem__(self, number: int) -> Trial:
        """One trial as it is now, or an error if there is none with this number."""
        with self._opened.lock:
            if not 0 <= number < len(self._trials):
                raise ValueError(
                    f"`trial` {number} is unknown; the study has {len(self._trials)} trials."
                )
            return self._trials[number]

    def trials(self) -> list[Trial]:
        """All trials in the order of their numbers."""
        with self._opened.lock:
            return list(self._trials)

    def pending(self) -> list[int]:
        """The numbers of the pending trials, in order."""
        with self._opened.lock:
            return sorted(self._pending)

    def count(self, state: State) -> int:
        """How many trials are in a state."""
        with self._opened.lock:
            return self._states[state]

    def fingerprint(self) -> str:
        """A word that is another one when anything about the trials has changed."""
        with self._opened.lock:
            return _checksum(self._digests)

    def next_replicate(self, number: int) -> int:
        """The first replicate of a trial that was never measured, after all that were."""
        return 1 + self._largest("replicate", "measurement WHERE trial = ?", (number,))

    def next_attempt(self, number: int, replicates: Sequence[int]) -> int:
        """A number for an attempt to train some replicates whose curves may have begun."""
        attempts = (
            self._largest("attempt", "point WHERE trial = ? AND replicate = ?", (number, r))
            for r in replicates
        )
        return 1 + max(attempts)

    def _largest(self, column: str, rows: str, values: Sequence[object]) -> int:
        ((last,),) = self._state.query(f"SELECT MAX({column}) FROM {rows}", values)
        return -1 if last is None else int(last)

    def add_trial(
        self,
        number: int,
        config: Config,
        seeds: Sequence[int],
        epsilon: float,
        *,
        error_type: str | None = None,
        plan: CurvePlan | None = None,
        measurements: Sequence[Measurement] = (),
        claimed: bool = False,
    ) -> Trial:
        """Fix a proposed trial before it trains; with an error, one that never will.

        With one measurement for each of its seeds, it is complete. ``claimed``: whether it is this
        storage's to train.

        Raises:
            NumberTakenError: There is such a trial already.
        """
        state = "failed" if error_type is not None else "complete" if measurements else "pending"
        with self._changing(number) as connection:
            if self._state.query("SELECT 1 FROM trial WHERE number = ?", (number,)):
                raise NumberTakenError(f"Trial {number} was made by another process.")
            self._state.execute(
                "INSERT INTO trial (number, config, seeds, epsilon, created_at, state, plan) "
                "VALUES (?, ?, ?, ?, ?, ?, ?)",
                (
                    number,
                    json.dumps(config),
                    json.dumps(list(seeds)),
                    None if math.isnan(epsilon) else epsilon,
                    now(),
                    state,
                    None if plan is None else json.dumps(asdict(plan)),
                ),
            )
            seal_study(connection)
            if claimed and state == "pending":
                self._insert_claim(number, asked=False)
            if error_type is not None:
                self._insert_failure(number, error_type, 0, blamed=True)
            self._insert_measurements(number, dict(enumerate(measurements)), attempt=0)
        return self[number]

    def add_measurements(
        self, number: int, measurements: Mapping[int, Measurement], *, attempt: int = 0
    ) -> Trial:
        """Store finished trainings by replicate; a trial is complete when none is missing.

        What another process has stored of the same replicate in the meantime stays.
        """
        with self._changing(number):
            trial = self[number]
            self._insert_measurements(number, measurements, attempt)
            if trial.state == "pending" and set(trial.missing) <= set(measurements):
                self._set_state(number, "complete")
        return self[number]

    def add_points(
        self,
        number: int,
        checkpoint: int,
        points: Mapping[int, Measurement],
        *,
        attempt: int = 0,
        is_last: bool = False,
    ) -> Trial:
        """Store what replicates of a pending trial gave at one checkpoint.

        Args:
            number: The trial.
            checkpoint: Where.
            points: By replicate.
            attempt: From :meth:`next_attempt` when the training began.
            is_last: Whether their trainings end there.
        """
        with self._changing(number):
            for replicate, point in points.items():
                self._insert_points(number, replicate, {checkpoint: point}, attempt)
            if is_last:
                self._reload(number)
                begun = self[number].begun
                ended = {r: Measurement.of_curve(begun[r]) for r in points if r in begun}
                self.add_measurements(number, ended)
        return self[number]

    def _insert_points(
        self, number: int, replicate: int, curve: Mapping[int, Measurement], attempt: int
    ) -> None:
        """Those that are there already stay: a training that was begun again passes them again."""
        self._state._connected().executemany(
            "INSERT INTO point (trial, replicate, attempt, checkpoint, utility, objectives, "
            "seconds, measured_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING",
            [
                (
                    number,
                    replicate,
                    attempt,
                    at,
                    m.utility,
                    json.dumps(m.objectives),
                    m.seconds,
                    now(),
                )
                for at, m in curve.items()
            ],
        )

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
            if is_last and self[number].state == "pending":
                self._set_state(number, "failed")
        return self[number]

    def _insert_measurements(
        self, number: int, measurements: Mapping[int, Measurement], attempt: int
    ) -> None:
        for replicate, measurement in measurements.items():
            self._insert_points(number, replicate, dict(measurement.curve), attempt)
        self._state._connected().executemany(
            "INSERT INTO measurement VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING",
            [
                (number, replicate, m.utility, json.dumps(m.objectives), m.seconds, now())
                for replicate, m in measurements.items()
            ],
        )

    def _insert_failure(
        self, number: int, error_type: str, trainings: int, *, blamed: bool
    ) -> None:
        self._state.execute(
            "INSERT INTO failure (id, trial, error_type, trainings, blamed, failed_at) "
            "VALUES ((SELECT COALESCE(MAX(id), 0) + 1 FROM failure), ?, ?, ?, ?, ?)",
            (number, error_type, trainings, int(blamed), now()),
        )

    def _set_state(self, number: int, state: State) -> None:
        self._state.execute("UPDATE trial SET state = ? WHERE number = ?", (state, number))
        self._state.execute("DELETE FROM claim WHERE trial = ?", (number,))

    @contextmanager
    def _changing(self, number: int) -> Iterator[Any]:
        """All or nothing, whatever interrupts it (Ctrl-C included); concerns one trial."""
        with self._opened.lock:
            try:
                with self._state.transaction() as connection:
                    self._reload(number, check=False)
                    yield connection
                    seal_trial(connection, number)
            finally:
                if not self.closed:
                    self._reload(number)

    def _reload(self, number: int, *, check: bool | None = None) -> None:
        """Bring the copy of a trial in memory up to date.

        Args:
            number: The trial.
            check: Whether its checksum must fit; unless it is being changed, if None.
        """
        state = self._state
        check = not state._connected().in_transaction if check is None else check
        with state.snapshot():
            stored = state.query("SELECT digest FROM trial WHERE number = ?", (number,))
            if not stored:
                return
            rows = _rows(state, number)
        ((digest,),) = stored
        if check and _checksum(rows) != digest:
            raise state.damaged(f"what it says of trial {number} was altered")
        trial = _trial(rows)
        if number > len(self._trials):
            return  # those before it are not known yet
        if number < len(self._trials):
            self._states[self._trials[number].state] -= 1
        self._states[trial.state] += 1
        (self._pending.add if trial.state == "pending" else self._pending.discard)(number)
        if trial.state != "pending":
            self._claimed.discard(number)
        self._trials[number : number + 1] = [trial]
        self._digests[number : number + 1] = [digest]

    def _matched(self, description: Mapping[str, Any] | None, seed: int | None) -> tuple[int, bool]:
        """The study's seed, once its description is known to be ours; whether ours is wider."""
        rows = self._state.query("SELECT description, seed, trials, digest FROM study")
        if len(rows) != 1:
            raise self._state.damaged("it describes no study")
        ((stored, stored_seed, trials, digest),) = rows
        with self._state.explained():
            if _checksum(_study_rows(self._state)) != digest:
                raise self._state.damaged("what it says of the study was altered")
        if [n for (n,) in self._state.query("SELECT number FROM trial ORDER BY number")] != list(
            range(trials)
        ):
            raise self._state.damaged("trials are missing")
        #: What the study optimizes, as the file has it.
        self.description: dict[str, Any] = json.loads(stored)
        if description is None:
            return int(stored_seed), False
        before, given = self.description, dict(description)
        changed, refused = differences(before, given), []
        if changed and "space" in before and "space" in given:
            refused = narrowings(before["space"], given["space"])
            if not refused:
                changed = differences(before | {"space": given["space"]}, given)
        if changed:
            reasons = "; ".join(changed + refused)
            raise StudyError(
                f"{self.path} holds a study of another problem: {reasons}. Give this problem a "
                "place of its own, or make the problem as it was: a space may get wider, not "
                "narrower."
            )
        if seed is not None and int(stored_seed) != seed:
            raise StudyError(
                f"{self.path} holds a study with seed {stored_seed}, got seed={seed}. Pass "
                "seed=None to continue it."
            )
        return int(stored_seed), bool(differences(before, given))


def _trial(rows: Mapping[str, Sequence[tuple[Any, ...]]]) -> Trial:
    """A trial from its rows; see :data:`_PARTS`."""
    ((number, config, seeds, epsilon, state, plan, *_),) = rows["trial"]
    seeds = tuple(json.loads(seeds))
    curves: dict[int, dict[int, Measurement]] = {}
    for row in rows["point"]:
        curves.setdefault(row[0], {})[row[4]] = _measurement(row)
    measured = {
        row[0]: replace(_measurement(row), curve=tuple(sorted(curves.get(row[0], {}).items())))
        for row in rows["measurement"]
    }
    begun = {r: curve for r, curve in curves.items() if r not in measured}
    attempts = {(row[0], row[5]) for row in rows["point"]}
    blamed = [kind for kind, _, is_blamed, _ in rows["failure"] if is_blamed]
    return Trial(
        number=number,
        config=json.loads(config),
        seeds=seeds,
        epsilon=math.nan if epsilon is None else epsilon,
        state=state,
        measurements=tuple(measured.get(replicate) for replicate in range(len(seeds))),
        fresh=tuple(m for replicate, m in measured.items() if replicate >= len(seeds)),
        failures=tuple(blamed),
        failed_trainings=sum(trainings for _, trainings, *_ in rows["failure"]),
        suspect=len(blamed) < len(rows["failure"]),
        plan=None if plan is None else _plan(json.loads(plan)),
        begun=begun,
        interrupted_trainings=len(attempts) - (len(curves) - len(begun)),
    )


def _measurement(row: tuple[Any, ...]) -> Measurement:
    _, utility, objectives, seconds, *_ = row
    return Measurement(
        utility, tuple(json.loads(objectives)), math.nan if seconds is None else seconds
    )


def _plan(stored: Mapping[str, Sequence[Any]]) -> CurvePlan:
    return CurvePlan(**{name: tuple(values) for name, values in stored.items()})
