"""The ledger's file: an append-only list of charges and released values.

Beyond what holds for every :class:`~botorch_dp._files.StateFile`:

* *Nothing is changed or refunded.* Triggers refuse UPDATE, DELETE and the REPLACE that would get
  around them; every row carries the hash of all rows before it, so that a file altered by other
  means is refused as damaged.
* *No two processes decide on the same state.* Decisions are taken inside ``BEGIN IMMEDIATE``.
* *Sums are exact.* Rows are immutable binary floats; each handle adds those it has not seen yet to
  running sums of fractions, so that a charge costs the same after one row and after 10,000.
"""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
from collections import Counter
from dataclasses import astuple, dataclass
from fractions import Fraction
from functools import lru_cache

from botorch_dp._files import MEMORY, FileKind, StateFile, now
from botorch_dp.errors import PrivacyError
from botorch_dp.privacy._door import DOOR_TABLES
from botorch_dp.privacy.budget import Cost, PrivacyBudget, Totals

_GROWS = "a privacy ledger only grows: charges are never changed or refunded"
_LARGEST = "1.7976931348623157e308"


def _append_only(table: str, first: str) -> tuple[str, ...]:
    """Triggers that refuse to change or remove rows of ``table``; ``first`` is its identity."""
    refuse = f"BEGIN SELECT RAISE(ABORT, '{_GROWS}'); END"
    return (
        f"CREATE TRIGGER {table}_no_update BEFORE UPDATE ON {table} {refuse}",
        f"CREATE TRIGGER {table}_no_delete BEFORE DELETE ON {table} {refuse}",
        f"CREATE TRIGGER {table}_no_replace BEFORE INSERT ON {table} WHEN {first} {refuse}",
    )


def _amount(column: str) -> str:
    return (
        f"{column} REAL NOT NULL CHECK "
        f"(typeof({column}) = 'real' AND {column} BETWEEN 0 AND {_LARGEST})"
    )


LEDGER = FileKind(
    name="privacy ledger",
    application_id=0x4450424C,  # "DPBL"
    migrations=(
        (
            "CREATE TABLE budget (id INTEGER PRIMARY KEY CHECK (id = 1), epsilon REAL NOT NULL, "
            "delta REAL NOT NULL, summed_epsilon REAL, summed_delta REAL, "
            "created_at TEXT NOT NULL)",
            "CREATE TABLE settled (name TEXT PRIMARY KEY, value TEXT NOT NULL)",
            "CREATE TABLE charge (number INTEGER PRIMARY KEY, charged_at TEXT NOT NULL, "
            f"label TEXT NOT NULL, guarantee TEXT NOT NULL, {_amount('epsilon')}, "
            f"{_amount('delta')}, {_amount('mu')}, digest TEXT NOT NULL)",
            *_append_only("budget", "EXISTS (SELECT 1 FROM budget)"),
            *_append_only("settled", "EXISTS (SELECT 1 FROM settled WHERE name = NEW.name)"),
            *_append_only(
                "charge", "NEW.number <> (SELECT COALESCE(MAX(number), 0) + 1 FROM charge)"
            ),
        ),
        # Version 2: keys, which made a retried charge idempotent.
        (
            "ALTER TABLE charge ADD COLUMN key TEXT",
            "CREATE UNIQUE INDEX charge_key ON charge (key) WHERE key IS NOT NULL",
            "CREATE TRIGGER charge_one_per_key BEFORE INSERT ON charge "
            "WHEN EXISTS (SELECT 1 FROM charge WHERE key = NEW.key) "
            f"BEGIN SELECT RAISE(ABORT, '{_GROWS}'); END",
        ),
        # Version 3: a key names a released value; a second draw for it is a second charge.
        (
            "DROP TRIGGER charge_one_per_key",
            "DROP INDEX charge_key",
            "CREATE INDEX charge_key ON charge (key) WHERE key IS NOT NULL",
            *DOOR_TABLES,
        ),
        # Version 4: what is not summed may be accounted for by Rényi divergence.
        ("ALTER TABLE budget ADD COLUMN renyi INTEGER NOT NULL DEFAULT 0",),
    ),
    if_lost="What was spent is unknown. Put back a copy made after the last charge; without one, "
    "count the whole budget as spent.",
)


@dataclass(frozen=True)
class ChargeRow:
    """One charge as it is stored; ``guarantee`` is JSON."""

    number: int
    charged_at: str
    label: str
    guarantee: str
    epsilon: float
    delta: float
    mu: float
    key: str | None

    def digest(self, previous: str) -> str:
        """Hash of this row and, through ``previous``, of all before it."""
        return _digest(previous, *astuple(self))


_COLUMNS = "number, charged_at, label, guarantee, epsilon, delta, mu, key"


class LedgerFile(StateFile):
    """Charges in one file, or in memory. Threads may share it; so may processes and forks.

    Args:
        path: The file, or ``":memory:"``.
        budget: What a new file is created with; None to open an existing one only.
    """

    def __init__(self, path: str, budget: PrivacyBudget | None) -> None:
        def create(connection: sqlite3.Connection) -> None:
            assert budget is not None
            connection.execute(
                "INSERT INTO budget VALUES (1, ?, ?, ?, ?, ?, ?)",
                (
                    budget.epsilon,
                    budget.delta,
                    *(budget.share or (None, None)),
                    now(),
                    int(budget.renyi),
                ),
            )

        if path == MEMORY and budget is None:
            raise PrivacyError("A ledger in memory is always new: pass `budget=`.")
        if budget is None and not os.path.lexists(path):
            raise PrivacyError(
                f"There is no ledger at {os.path.abspath(path)}. Pass `budget=PrivacyBudget("
                "epsilon, delta)` to create one."
            )
        self._totals = Totals()
        super().__init__(path, LEDGER, None if budget is None else create, exclusive=False)
        self.budget = self._read_budget()

    def settled(self) -> dict[str, str]:
        """Choices made after the file was created, by name."""
        return dict(self.query("SELECT name, value FROM settled"))

    def settle(self, name: str, value: str) -> None:
        """Write down a choice, once and for all. Inside a transaction."""
        self.execute("INSERT INTO settled (name, value) VALUES (?, ?)", (name, value))

    def totals(self) -> Totals:
        """Exact sums over all charges; rows that this handle has seen are not read again."""
        with self.snapshot():
            if self._totals.count == 0:
                # The first charge settles everything, so its hash can vouch for the choices too.
                choices = sorted(self.settled().items())
                budget = list(astuple(self.budget))
                if not self.budget.renyi:
                    budget.pop()  # files older than version 4 were hashed without it
                self._totals = Totals(digest=_sha256([*budget, choices]))
            rows = self.query(
                f"SELECT {_COLUMNS}, digest FROM charge WHERE number > ? ORDER BY number",
                (self._totals.count,),
            )
            last, count = self._totals.digest, self._totals.count
            for *columns, digest in rows:
                count += 1
                if columns[0] != count or _digest(last, *columns) != digest:
                    raise self.damaged(f"charge {count} was altered")
                last = digest
            # Most charges are alike, and a product of fractions is as exact as their sum.
            costs = Counter((epsilon, delta, mu) for *_, epsilon, delta, mu, _, _ in rows)
            exact = [
                (Fraction(epsilon), Fraction(delta), Fraction(mu), times)
                for (epsilon, delta, mu), times in costs.items()
            ]
            self._totals = Totals(
                count=count,
                epsilon=self._totals.epsilon + sum(part[0] * part[3] for part in exact),
                delta=self._totals.delta + sum(part[1] * part[3] for part in exact),
                mu_squared=self._totals.mu_squared + sum(part[2] ** 2 * part[3] for part in exact),
                digest=last,
            )
            return self._totals

    def rows(self) -> list[ChargeRow]:
        """All charges, oldest first."""
        self.totals()
        return [
            ChargeRow(*columns)
            for columns in self.query(f"SELECT {_COLUMNS} FROM charge ORDER BY number")
        ]

    def append(self, *, label: str, guarantee: str, key: str | None, cost: Cost) -> ChargeRow:
        """Add a charge of ``cost = (epsilon, delta, mu)``. Inside a transaction."""
        totals = self.totals()
        row = ChargeRow(totals.count + 1, now(), label, guarantee, *cost, key)
        self.execute(
            f"INSERT INTO charge ({_COLUMNS}, digest) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (*astuple(row), row.digest(totals.digest)),
        )
        return row

    def _read_budget(self) -> PrivacyBudget:
        rows = self.query("SELECT epsilon, delta, summed_epsilon, summed_delta, renyi FROM budget")
        if len(rows) != 1:
            raise self.damaged("it states no budget")
        epsilon, delta, *share, renyi = rows[0]
        summed = None if None in share else tuple(share)
        try:
            return PrivacyBudget(epsilon, delta, summed=summed, renyi=bool(renyi))
        except (TypeError, ValueError) as error:
            raise self.damaged("it states an impossible budget") from error


def _digest(
    previous: str,
    number: int,
    charged_at: str,
    label: str,
    guarantee: str,
    epsilon: float,
    delta: float,
    mu: float,
    key: str | None,
) -> str:
    """:meth:`ChargeRow.digest`: the hash of a JSON list, put together by hand for speed."""
    numbers = ", ".join(f'"{float(x).hex()}"' for x in (epsilon, delta, mu))
    words = f"{_quoted(charged_at)}, {_quoted(label)}, {_quoted(guarantee)}, {numbers}"
    # Rows older than version 2 have no key and were hashed without one.
    last = "" if key is None else f", {json.dumps(key)}"
    return hashlib.sha256(f'["{previous}", {number}, {words}{last}]'.encode()).hexdigest()


# A ledger has few different labels and guarantees.
_quoted = lru_cache(maxsize=64)(json.dumps)


def _sha256(fields: list[object]) -> str:
    return hashlib.sha256(json.dumps(fields).encode()).hexdigest()
