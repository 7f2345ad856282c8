"""The privacy ledger: a durable budget for releases that may be chosen adaptively.

What may be charged is decided by the two filters of :mod:`.budget`. The file is an append-only list
of charges and released values. Beyond what holds for every :class:`~botorch_dp._files.StateFile`:

* *Nothing is changed or refunded.* Triggers refuse UPDATE, DELETE and the REPLACE that would get
  around them; every row carries the hash of all rows before it, so that a file altered by other
  means is refused as damaged.
* *No two processes decide on the same state.* Decisions are taken inside ``BEGIN IMMEDIATE``.
* *Sums are exact.* Rows are immutable binary floats; each handle adds those it has not seen yet to
  running sums, so that a charge costs the same after one row and after 10,000.
* *Times tell nothing secret.* A charge has the time at which it was made, which is before records
  are read; a released value has none.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import sqlite3
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from fractions import Fraction
from functools import lru_cache, partial
from typing import Any, TypeVar

from botorch_dp._checks import check_callable, check_integer, check_path
from botorch_dp._files import MEMORY, FileKind, StateFile, now
from botorch_dp.errors import PrivacyError
from botorch_dp.privacy.budget import Compartments, PrivacyBudget, Totals, stated_cost
from botorch_dp.privacy.guarantee import Guarantee, PrivacyUnit, Release, compose
from botorch_dp.privacy.losses import ApproximateLoss, Cost, NeighboringRelation, PureLoss
from botorch_dp.privacy.rounding import rounded_up, sqrt_below
from botorch_dp.privacy.runs import RELEASE_TABLES, ReleaseStore

T = TypeVar("T")

#: The identity of a run, which the keys of its values begin with.
_OF_A_RUN = re.compile("^[0-9a-f]{32}/")


@dataclass(frozen=True)
class LedgerEntry:
    """One charge in a ledger; ``epsilon``, ``delta`` and ``mu`` are what the charge cost.

    With ``PrivacyBudget(renyi=True)``, ``mu`` is that of the Gaussian mechanism which has the same
    Rényi divergence.
    """

    number: int
    charged_at: str
    label: str
    guarantee: Guarantee
    epsilon: float
    delta: float
    mu: float
    key: str | None

    @property
    def cost(self) -> Cost:
        """Epsilon, delta and mu."""
        return self.epsilon, self.delta, self.mu

    @property
    def date(self) -> str:
        """The day of the charge."""
        return self.charged_at[:10]


@dataclass(frozen=True, repr=False)
class LedgerSnapshot:
    """What a receipt says of a ledger, also after that is closed: its budget and one run's charges.

    The charges of other runs are not copied with a result.
    """

    budget: PrivacyBudget
    relation: NeighboringRelation | None
    charges: tuple[LedgerEntry, ...]

    def entries(self) -> list[LedgerEntry]:
        """The charges of the run, oldest first."""
        return list(self.charges)


def charged_nowhere(ledger: LedgerSnapshot | None, guarantee: Guarantee) -> list[str]:
    """The line that a printed result ends with where nothing was charged."""
    if ledger is not None or guarantee.void is not None:
        return []
    return ["Charged to no ledger: other releases from these records add up."]


class PrivacyLedger:
    """A budget that every release is charged to before its values are touched.

    A charge is on the disk when :meth:`charge` returns, is never refunded, and survives a kill or a
    power cut at any moment. Threads, forked processes and independent processes may share one file.
    The file is created with mode 0600 and may be copied whenever no charge is running. All sums
    are exact; see :class:`PrivacyBudget` for its two shares.

    In a ledger that is purely Gaussian (``summed=0``, or the first charge was Gaussian) a pure
    epsilon-DP release counts as :math:`2\\Phi^{-1}(e^\\epsilon/(1+e^\\epsilon))`-GDP. In a purely
    summed one a Gaussian release is refused, unless ``delta=`` states the (epsilon, delta) as
    which it is charged.

    Args:
        path: The file; it is created if it does not exist. ``":memory:"`` lives as long as the
            object.
        budget: What may be spent. Must agree with the file; may be left out for an existing one.
        relation: The neighbouring relation of all charges. Without it, the first charge decides.

    Example:
        >>> ledger = PrivacyLedger("study.ledger", PrivacyBudget(1.0, 1e-6))
        >>> price = laplace_guarantee(sensitivity=1.0, epsilon=0.3)
        >>> entry = ledger.charge(price, label="best score")
        >>> ledger.remaining()
        (0.7, 1e-06)
    """

    def __init__(
        self,
        path: str | os.PathLike[str] = MEMORY,
        budget: PrivacyBudget | None = None,
        *,
        relation: NeighboringRelation | None = None,
    ) -> None:
        path = os.fspath(check_path("path", path))
        self._file = LedgerFile(path, budget)
        try:
            self._budget = self._file.budget
            self._store = ReleaseStore(self._file)
            if budget is not None and budget != self._budget:
                raise PrivacyError(
                    f"The ledger {self.path} holds {self._budget}, but was opened with {budget}. "
                    "Pass the one it holds, or none, or choose another path."
                )
            if relation is not None:
                with self._file.transaction():
                    settled = self._file.settled().get("relation")
                    if settled is None:
                        self._file.settle("relation", relation.name)
                    else:
                        self._check_relation(settled, relation)
        except BaseException:
            self._file.close()
            raise

    @property
    def path(self) -> str:
        """The file, or ``":memory:"``."""
        return self._file.path

    @property
    def budget(self) -> PrivacyBudget:
        """What may be spent in all."""
        return self._budget

    @property
    def relation(self) -> NeighboringRelation | None:
        """The neighbouring relation of all charges; None until the first one has decided."""
        name = self._file.settled().get("relation")
        return None if name is None else NeighboringRelation[name]

    @property
    def guarantee(self) -> Guarantee:
        """The guarantee of all releases, those charged so far and those to come, together.

        It states the budget and not what was spent: how much an adaptive run spends is itself
        a result of the sensitive values, and no guarantee.
        """
        parts, relation = [entry.guarantee for entry in self.entries()], self.relation
        if relation is None:
            raise PrivacyError("Nothing was charged yet: pass `relation=` to the ledger.")
        epsilon, delta = self._budget.epsilon, self._budget.delta
        whole = Guarantee(
            "all releases charged to one privacy ledger",
            PrivacyUnit(relation=relation),
            (ApproximateLoss(epsilon, delta) if delta else PureLoss(epsilon),),
            quoted_delta=delta or None,
        )
        if not parts:
            return whole
        together = compose(*parts)
        return replace(whole, unit=together.unit, assumptions=together.assumptions)

    def charge(
        self,
        guarantee: Guarantee,
        *,
        label: str = "",
        delta: float | None = None,
    ) -> LedgerEntry:
        """Charge for a draw that is made elsewhere, durably. Call it *before* records are touched.

        Every call is a new charge. Prefer :meth:`release`, which also sees to it that there is one
        draw for one charge.

        Args:
            guarantee: The release's guarantee; its parameters may depend on earlier releases.
            label: A note for :meth:`entries`. Never put a sensitive value in it.
            delta: Charge ``(guarantee.epsilon(delta), delta)`` to the summed share. Needed
                for guarantees that are neither Gaussian nor sums of (epsilon, delta), as DP-SGD's,
                unless the budget was made with ``renyi=True``.

        Returns:
            The line that was written.

        Raises:
            BudgetExhausted: The budget is too small. Nothing was charged.
            PrivacyError: The guarantee guarantees nothing, belongs to another relation, or needs
                ``delta``. Nothing was charged.
        """
        stated = _stated_cost(guarantee, delta)
        with self._file.transaction():
            return self._append(guarantee, stated, label, delta, None)

    def release(
        self,
        price: Guarantee,
        draw: Callable[..., T],
        *,
        key: str | None = None,
        label: str = "",
        delta: float | None = None,
        about: Mapping[str, Any] | None = None,
        read: Callable[[], Any] | None = None,
    ) -> T:
        """Draw noise once for one charge: charge, read, draw, store, show.

        With a ``key``, what is drawn is stored under it before it is returned, and whoever asks
        for the key later, after a crash, from a copy or from another process, gets the stored
        value free of charge. A failure before noise is drawn (in ``read``) costs no second charge;
        a failure later does, for what was drawn may have been seen. Without a key every call is a
        new charge and nothing is stored.

        Args:
            price: The guarantee of one draw.
            draw: Draws the noise and returns what may be shown: numbers, words, lists,
                dictionaries, arrays or tensors. Takes what ``read`` returned, if that is given.
            key: Names the released value. Put the identity of the run into it: two runs that
                share a key share a value.
            label: A note for :meth:`entries`. Never put a sensitive value in it.
            delta: As for :meth:`charge`.
            about: What the value is, in public plain data. A key that names a value released as
                something else is refused.
            read: Touches the records; nothing in it may draw.

        Raises:
            BudgetExhausted: The budget is too small. Nothing was charged or read.
            PrivacyError: As for :meth:`charge`, or the key names something else.

        Example:
            >>> ledger = PrivacyLedger(budget=PrivacyBudget(1.0))
            >>> price = laplace_guarantee(sensitivity=0.01, epsilon=0.5)
            >>> noisy = lambda: laplace_mechanism(0.25, sensitivity=0.01, epsilon=0.5).value
            >>> first = ledger.release(price, noisy, key="best score")
            >>> ledger.release(price, noisy, key="best score") == first
            True
        """
        stated = _stated_cost(price, delta)
        check_callable("draw", draw)
        check_callable("read", read or draw)
        charge = partial(self._append, price, stated, label, delta, key)
        if key is None:
            with self._file.transaction():
                charge()
            return draw() if read is None else draw(read())
        what = {**_document(price, delta), "about": dict(about or {})}
        return self._store.release(key, draw, charge=charge, read=read, about=what)

    def _append(
        self,
        guarantee: Guarantee,
        stated: Cost | None,
        label: str,
        delta: float | None,
        key: str | None,
    ) -> LedgerEntry:
        """Decide on a charge and write it down. Inside a transaction."""
        cost, refusal, undecided = self._decision(guarantee, stated, label)
        if refusal is not None:
            raise refusal
        for name, value in undecided.items():
            self._file.settle(name, value)
        document = json.dumps(_document(guarantee, delta), sort_keys=True)
        number, charged_at, label, _, *cost_and_key = self._file.append(label, document, key, cost)
        return LedgerEntry(number, charged_at, label, guarantee, *cost_and_key)

    def affords(self, price: Guarantee, *, delta: float | None = None) -> bool:
        """Whether the budget allows this charge now. Charges nothing, and reserves nothing:
        another charge may come first.

        Args:
            price: As for :meth:`charge`, with its errors.
            delta: As for :meth:`charge`.
        """
        with self._file.snapshot():
            return self._decision(price, _stated_cost(price, delta), "")[1] is None

    def check_affords(self, price: Guarantee) -> None:
        """Raise as :meth:`charge` would, and charge nothing. For runs that are charged in parts."""
        with self._file.snapshot():
            refusal = self._decision(price, _stated_cost(price, None), "")[1]
        if refusal is not None:
            raise refusal

    def _decision(
        self, guarantee: Guarantee, stated: Cost | None, label: str
    ) -> tuple[Cost, PrivacyError | None, dict[str, str]]:
        """What a charge costs, why it is refused if it is, and what it would decide for good."""
        settled, undecided = self._file.settled(), {}
        if "relation" in settled:
            self._check_relation(settled["relation"], guarantee.relation)
        else:
            undecided["relation"] = guarantee.relation.name
        compartments = self.compartments(settled)
        if compartments is None:
            # Neither stated nor a sum of (epsilon, delta): Gaussian noise, DP-SGD.
            is_gaussian = stated is None and any(loss.summed is None for loss in guarantee.losses)
            compartments = Compartments.by_first_charge(self._budget, is_gaussian=is_gaussian)
            undecided["summed"] = "nothing" if is_gaussian else "all"
        cost = stated or compartments.cost_of(guarantee)
        totals = self._file.totals()
        if compartments.affords(totals, cost):
            return cost, None, undecided
        ((alike,),) = self._file.query("SELECT COUNT(*) FROM charge WHERE label = ?", (label,))
        made = f"{totals.count} {'charge was' if totals.count == 1 else 'charges were'} made"
        if label and alike:
            made += f", {'all' if alike == totals.count else alike} of them for {label!r}"
        refusal = compartments.refusal(self._budget, totals, cost, guarantee, label, made)
        return cost, refusal, undecided

    def spent(self) -> tuple[float, float]:
        """The part of the budget that charges have used, as (epsilon, delta), rounded up.

        A Gaussian share that was touched counts with all of its delta and with the epsilon
        that the mu spent amounts to at that delta.
        """
        compartments = self.compartments()
        return (0.0, 0.0) if compartments is None else compartments.spent(self._file.totals())

    def remaining(self) -> tuple[float, float]:
        """What the ledger could still grant, as (epsilon, delta), rounded down.

        Gaussian releases add up as squares, so that an epsilon spent and an epsilon remaining there
        exceed the budget when they are added; see :meth:`mu_left`.
        """
        compartments = self.compartments()
        if compartments is None:
            return self._budget.epsilon, self._budget.delta
        return compartments.remaining(self._file.totals())

    def mu_left(self) -> float:
        """The largest mu that Gaussian releases together could still be charged, rounded down.

        So k of them may have mu / sqrt(k) each. If nothing was charged yet and the budget leaves
        the choice to the first charge, it is what there would be if that were a Gaussian one.
        """
        compartments = self.compartments() or Compartments.by_first_charge(
            self._budget, is_gaussian=True
        )
        return sqrt_below(compartments.mu_squared_left(self._file.totals()))

    def entries(self) -> list[LedgerEntry]:
        """All charges, oldest first."""
        entries = []
        for number, charged_at, label, document, *cost_and_key in self._file.rows():
            guarantee = Guarantee.from_dict(json.loads(document)["guarantee"])
            entries.append(LedgerEntry(number, charged_at, label, guarantee, *cost_and_key))
        return entries

    def snapshot(self, identity: str) -> LedgerSnapshot:
        """A copy of what it says of the run with this identity."""
        own = (e for e in self.entries() if (e.key or "").startswith(f"{identity}/"))
        return LedgerSnapshot(self.budget, self.relation, tuple(own))

    def close(self) -> None:
        """Release the file. What was charged stays charged."""
        self._file.close()

    def __enter__(self) -> PrivacyLedger:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __str__(self) -> str:
        """What is spent and left in a sentence, and a table of the charges and their costs."""
        with self._file.snapshot():
            entries, summary = self.entries(), self.summary()
        if not entries:
            return summary
        table = [("date", "what", "label", "key", "cost")]
        for entry in entries:
            costs = zip(("ε", "δ", "μ"), entry.cost, strict=True)
            cost = ", ".join(f"{name} = {rounded_up(part)}" for name, part in costs if part > 0)
            key = _OF_A_RUN.sub("", entry.key or "")
            table.append((entry.date, entry.guarantee.mechanism, entry.label, key, cost))
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        lines = (
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
            for row in table
        )
        return "\n".join([summary, "", *lines])

    def summary(self) -> str:
        """What is spent, rounded up, and what may still be released, rounded down; one sentence."""
        whole = f"the budget {self._budget}"
        with self._file.snapshot():
            totals, compartments = self._file.totals(), self.compartments()
        if compartments is None or totals.count == 0:
            return f"Nothing of {whole} is spent."
        by = f"by {totals.count} {'charge' if totals.count == 1 else 'charges'}"
        still = compartments.largest_left(totals)
        if not still:
            return f"All of {whole} is spent, {by}."
        epsilon, delta = map(rounded_up, compartments.spent(totals))
        said = f"(ε = {epsilon}, δ = {delta}) of {whole} is spent, {by}"
        return f"{said}; you can still make {', or '.join(still)}."

    def __deepcopy__(self, memo: object) -> PrivacyLedger:
        """A budget is shared, never copied."""
        return self

    def __reduce__(self) -> tuple[object, ...]:
        if self.path == MEMORY:
            raise PrivacyError(
                "A ledger in memory cannot be pickled, for its copy would spend the budget again: "
                "give it a path."
            )
        return partial(PrivacyLedger, self.path, self._budget), ()

    def _check_relation(self, settled: str, relation: NeighboringRelation) -> None:
        if settled != relation.name:
            raise PrivacyError(
                f"The ledger {self.path} counts under {settled}, not under {relation.name}: use "
                "another ledger, or a guarantee under this relation."
            )

    def compartments(self, settled: Mapping[str, str] | None = None) -> Compartments | None:
        """The limits of the two shares; None until the first charge has decided."""
        budget = self._budget
        if budget.share is not None:
            return Compartments.of(budget, budget.share, "its `summed` share leaves none")
        choice = (self._file.settled() if settled is None else settled).get("summed")
        if choice is None:
            return None
        return Compartments.by_first_charge(budget, is_gaussian=choice == "nothing")


def make_release(
    price: Guarantee,
    draw: Callable[..., T],
    scale: float | None = None,
    ledger: PrivacyLedger | None = None,
    key: str | None = None,
    label: str = "",
    unsafe_seed: int | None = None,
    *,
    read: Callable[[], Any] | None = None,
    delta: float | None = None,
    about: Mapping[str, Any] | None = None,
) -> Release[T]:
    """:meth:`PrivacyLedger.release` for callers whose ledger may be None and noise simulated.

    Without a ledger the value is read and drawn, and nothing is charged or stored.

    Args:
        scale: The public scale of the noise; without ``about`` the value is told apart by it.
        unsafe_seed: What ``draw`` simulates with, if anything: then nothing is guaranteed.
    """
    check_payment(ledger, unsafe_seed=unsafe_seed, key=key)
    if about is None and scale is not None:
        about = {"scale": scale}
    if ledger is None:
        value = draw() if read is None else draw(read())
    else:
        value = ledger.release(
            price, draw, key=key, label=label, delta=delta, about=about, read=read
        )
    return Release(value, price if unsafe_seed is None else price.simulated(), scale=scale)


def check_payment(
    ledger: PrivacyLedger | None, *, unsafe_seed: int | None = None, key: str | None = None
) -> None:
    """Raise unless what is drawn with this seed can be charged for, and stored under this key.

    Args:
        ledger: What would be charged, if anything.
        unsafe_seed: The seed of simulated noise, or None for real noise.
        key: Names the value in the ledger.
    """
    if ledger is not None and not isinstance(ledger, PrivacyLedger):
        raise TypeError(f"`ledger` must be a PrivacyLedger, got {type(ledger).__name__}.")
    if unsafe_seed is not None:
        check_integer("unsafe_seed", unsafe_seed, at_least=0)
        if ledger is not None:
            raise PrivacyError(
                "`ledger` was given together with `unsafe_seed`, but simulated noise guarantees "
                "nothing: leave one of them out."
            )
    if key is not None and ledger is None:
        raise ValueError("`key` names a value in a ledger: pass `ledger=` too, or leave it out.")


def _stated_cost(guarantee: Guarantee, delta: float | None) -> Cost | None:
    """The cost that the caller states by ``delta``, if any; refused where nothing is guaranteed."""
    if guarantee.void is not None:
        raise PrivacyError(
            f"The {guarantee.mechanism} guarantees nothing ({guarantee.void}): charge a mechanism "
            "with real noise."
        )
    return None if delta is None else stated_cost(guarantee, delta)


def _document(guarantee: Guarantee, delta: float | None) -> dict[str, Any]:
    return {"guarantee": guarantee.to_dict(), "delta": delta}


# --- The file: charges and released values. ---

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
    schema=(
        "CREATE TABLE budget (id INTEGER PRIMARY KEY CHECK (id = 1), epsilon REAL NOT NULL, "
        "delta REAL NOT NULL, summed_epsilon REAL, summed_delta REAL, renyi INTEGER NOT NULL)",
        "CREATE TABLE settled (name TEXT PRIMARY KEY, value TEXT NOT NULL)",
        "CREATE TABLE charge (number INTEGER PRIMARY KEY, charged_at TEXT NOT NULL, "
        f"label TEXT NOT NULL, guarantee TEXT NOT NULL, {_amount('epsilon')}, "
        f"{_amount('delta')}, {_amount('mu')}, key TEXT, digest TEXT NOT NULL)",
        *_append_only("budget", "EXISTS (SELECT 1 FROM budget)"),
        *_append_only("settled", "EXISTS (SELECT 1 FROM settled WHERE name = NEW.name)"),
        *_append_only("charge", "NEW.number <> (SELECT COALESCE(MAX(number), 0) + 1 FROM charge)"),
        *RELEASE_TABLES,
    ),
    if_lost="What was spent is unknown. Put back a copy made after the last charge; without one, "
    "count the whole budget as spent.",
)


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
                "INSERT INTO budget VALUES (1, ?, ?, ?, ?, ?)",
                (budget.epsilon, budget.delta, *(budget.share or (None, None)), budget.renyi),
            )

        if budget is None and (path == MEMORY or not os.path.lexists(path)):
            raise PrivacyError(
                f"There is no ledger at {path}. Pass `budget=PrivacyBudget(epsilon, delta)` to "
                "create one."
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
                words = json.dumps([*astuple(self.budget), sorted(self.settled().items())])
                self._totals = Totals(digest=hashlib.sha256(words.encode()).hexdigest())
            rows = self.query(
                f"SELECT {_COLUMNS}, digest FROM charge WHERE number > ? ORDER BY number",
                (self._totals.count,),
            )
            last, count = self._totals.digest, self._totals.count
            for *columns, digest in rows:
                count += 1
                if columns[0] != count or row_digest(last, columns) != digest:
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

    def rows(self) -> list[tuple]:
        """All charges in the order of their columns, oldest first."""
        self.totals()
        return self.query(f"SELECT {_COLUMNS} FROM charge ORDER BY number")

    def append(self, label: str, guarantee: str, key: str | None, cost: Cost) -> tuple:
        """Add a charge of ``cost = (epsilon, delta, mu)``. Inside a transaction."""
        totals = self.totals()
        # As SQLite stores them, so that their hash can be made again.
        label, key = str(label), None if key is None else str(key)
        row = (totals.count + 1, now(), label, guarantee, *cost, key)
        self.execute(
            f"INSERT INTO charge ({_COLUMNS}, digest) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (*row, row_digest(totals.digest, row)),
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


def row_digest(previous: str, row: Sequence[Any]) -> str:
    """Hash of a charge and, through ``previous``, of all before it.

    It is that of a JSON list, put together by hand for speed.
    """
    number, charged_at, label, guarantee, *cost, key = row
    numbers = ", ".join(f'"{float(x).hex()}"' for x in cost)
    words = f"{_quoted(charged_at)}, {_quoted(label)}, {_quoted(guarantee)}, {numbers}"
    words = f'["{previous}", {number}, {words}, {json.dumps(key)}]'
    return hashlib.sha256(words.encode()).hexdigest()


# A ledger has few different labels and guarantees.
_quoted = lru_cache(maxsize=64)(json.dumps)
