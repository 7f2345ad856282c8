"""Private objectives: per-record scores in, noisy means with known variance out.

Everything that reads only what a :class:`PrivateObjective` returns is post-processing: any
surrogate, acquisition function or loop may follow, and the promise stays the same.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, TypeVar, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from botorch_dp._checks import check_integer, check_interval, check_positive, check_tensor
from botorch_dp.errors import PrivacyError
from botorch_dp.privacy import (
    ONE_RECORD,
    GaussianLoss,
    Guarantee,
    NeighboringRelation,
    PrivacyLedger,
    PrivacyUnit,
    check_unit,
    compose,
    gaussian_mechanism,
)

__all__ = [
    "Evaluations",
    "ObjectiveDiagnostics",
    "PerRecordLosses",
    "PerRecordReport",
    "PrivateObjective",
    "check_per_record",
]

#: Records as a tensor with one of them in each row, or as several such tensors side by side.
Records = TypeVar("Records", Tensor, tuple[Tensor, ...])

#: A double holds every integer up to this one, so sums below it are exact in any order: a score
#: rounded to an integer moves the sum by what it moves itself, and not by a rounding error more.
_LARGEST_EXACT = 2**53

#: What rests on the caller wherever scores of single records are bounded one by one.
OWN_RECORD_ONLY = "a record's score depends on that record and on public things only"


@runtime_checkable
class PerRecordLosses(Protocol):
    """What a user's objective looks like: one column for each record.

    A record's column may depend on that record and on public things only: were it, say,
    standardized by the mean over all records, one record would move every column.
    """

    def __call__(self, X: Tensor, /) -> Tensor:
        """Scores of ``n`` records at ``b`` points: ``b x d -> b x n``."""


def known_num_records(record_losses: object, num_records: int | None) -> int | None:
    """``num_records``, or what ``record_losses`` says of itself in an attribute, or None."""
    if num_records is None:
        num_records = getattr(record_losses, "num_records", None)
    return None if num_records is None else check_integer("num_records", num_records)


def checked_scores(scores: object, *, num_points: int, num_records: int | None) -> Tensor:
    """The ``b x n`` scores of all records, if their shape, which is public, is as agreed."""
    if not isinstance(scores, Tensor) or scores.is_complex():
        kind = str(scores.dtype) if isinstance(scores, Tensor) else type(scores).__name__
        raise TypeError(f"`record_losses` must return a tensor of real numbers, got {kind}.")
    if scores.dim() != 2 or len(scores) != num_points or scores.shape[1] == 0:
        expected = "n" if num_records is None else num_records
        raise ValueError(
            f"`record_losses` must return {num_points} x {expected} scores, one row for each point "
            f"and one column for each record; got {tuple(scores.shape)}."
        )
    if num_records is not None and scores.shape[1] != num_records:
        raise PrivacyError(
            f"`record_losses` returned {scores.shape[1]} columns where {num_records} records were "
            "agreed: the guarantee is for replacing one of a fixed, public number of records. "
            "Score every record every time; a missing one may be NaN."
        )
    return scores.detach()


def grid_levels(num_records: int) -> float:
    """The largest power of two of which ``num_records`` add up exactly in double precision."""
    return float(1 << ((_LARGEST_EXACT // num_records).bit_length() - 1))


def clipped_sum(scores: Tensor, bounds: tuple[float, float], *, nan_as: float) -> float:
    """The sum over ``n`` records of clipped scores, exact in double precision.

    Each score counts as an integer from 0 (at or below the lower bound) to ``grid_levels(n)`` (at
    or above the upper one), so replacing a record moves the sum by at most that, to the last bit.
    """
    low, high = bounds
    levels = grid_levels(len(scores))
    clipped = torch.nan_to_num(scores.double(), nan=nan_as, posinf=high, neginf=low)
    fraction = (clipped.clamp(low, high) - low) / (high - low)
    return (fraction * levels).round().clamp(0, levels).sum().item()


class Evaluations(NamedTuple):
    """Released evaluations; all of it may be published."""

    X: Tensor
    Y: Tensor
    Yvar: Tensor


@dataclass
class ObjectiveDiagnostics:
    """**Sensitive.** How many scores were outside the bounds, over all evaluations.

    Look at them while you choose ``bounds`` on data you may look at; never publish them, and never
    let a run depend on them.
    """

    num_below: int = field(default=0, repr=False)
    num_above: int = field(default=0, repr=False)
    num_nan: int = field(default=0, repr=False)

    def count(self, scores: Tensor, bounds: tuple[float, float]) -> None:
        """Add the scores of one evaluation."""
        self.num_below += int((scores < bounds[0]).sum())
        self.num_above += int((scores > bounds[1]).sum())
        self.num_nan += int(scores.isnan().sum())

    def __repr__(self) -> str:
        return "ObjectiveDiagnostics(sensitive: read .num_below, .num_above, .num_nan)"


class PrivateObjective:
    r"""A mean of per-record scores, released with Gaussian noise at each evaluation.

    .. math:: Y(x) = \frac1n \sum_{i=1}^n \mathrm{clip}(\ell_i(x), lo, hi)
              + N\!\left(0, \Bigl(\frac{hi - lo}{n \mu}\Bigr)^2\right)

    Guarantee (status proven): each row of ``X`` is mu-GDP under replace-one, whatever the scores
    are. Replacing a record moves one clipped score by at most ``hi - lo`` and so the mean by
    ``(hi - lo) / n``, which is mu standard deviations [Dong2022]. ``k`` evaluations are
    ``mu sqrt(k)``-GDP, also when each point depends on the answers before it. In floating
    point: scores are rounded to an integer grid on which sums are exact, and noise is added to
    that sum, so the sensitivity holds to the last bit.

    With a ledger, all rows of ``X`` are charged *before* the records are read; if the budget cannot
    bear them, :class:`~botorch_dp.errors.BudgetExhausted` is raised, nothing is read, and
    :attr:`history` still has all that was released. A charge is not refunded if ``record_losses``
    raises. Without a ledger, decide on the number of evaluations beforehand.

    Nothing that one record says raises, warns or shows: scores beyond a bound, infinite ones
    included, count as that bound; NaN counts as the worse bound (the lower one, or the upper one
    with ``negate=True``). Objects may be shared by threads if ``record_losses`` may.

    Args:
        record_losses: ``b x d -> b x n``, see :class:`PerRecordLosses`.
        bounds: Public bounds ``(lo, hi)`` of a score. The noise is proportional to their distance.
        mu: Privacy parameter of *one* evaluation: the smaller, the more noise.
        num_records: ``n``, which is public under replace-one. By default the attribute of that name
            of ``record_losses``, or else what the first evaluation returns. Every evaluation must
            return that many columns.
        ledger: What evaluations are charged to.
        negate: Return ``-Y``: for losses, since BoTorch maximizes.
        unit: Whom or what one record is; replace-one is the only relation.
        label: The ledger's note for each charge.
        unsafe_seed: Simulate with reproducible noise. The results then promise nothing.

    Example:
        >>> records = torch.rand(1000, dtype=torch.double)
        >>> objective = PrivateObjective(
        ...     lambda X: (X - records).abs(), bounds=(0.0, 1.0), mu=0.1, negate=True
        ... )
        >>> X = torch.rand(5, 1, dtype=torch.double)
        >>> Y, Yvar = objective(X)
        >>> model = SingleTaskGP(X, Y, train_Yvar=Yvar)
    """

    def __init__(
        self,
        record_losses: PerRecordLosses,
        *,
        bounds: tuple[float, float],
        mu: float,
        num_records: int | None = None,
        ledger: PrivacyLedger | None = None,
        negate: bool = False,
        unit: PrivacyUnit = ONE_RECORD,
        label: str = "objective",
        unsafe_seed: int | None = None,
    ) -> None:
        if not callable(record_losses):
            raise TypeError(
                f"`record_losses` must be callable, got {type(record_losses).__name__}: pass a "
                "function from points (b x d) to scores (b x n)."
            )
        if ledger is not None and not isinstance(ledger, PrivacyLedger):
            raise TypeError(f"`ledger` must be a PrivacyLedger, got {type(ledger).__name__}.")
        if unsafe_seed is not None:
            unsafe_seed = check_integer("unsafe_seed", unsafe_seed, at_least=0)
            if ledger is not None:
                raise PrivacyError(
                    "`ledger` was given together with `unsafe_seed`: simulated noise promises "
                    "nothing, so there is nothing to charge. Leave one of them out."
                )
        self.record_losses = record_losses
        self.bounds = check_interval("bounds", bounds)
        self.mu = check_positive("mu", mu)
        self.num_records = known_num_records(record_losses, num_records)
        self.ledger = ledger
        self.negate = bool(negate)
        self.label = label
        #: **Sensitive**; see :class:`ObjectiveDiagnostics`.
        self.diagnostics = ObjectiveDiagnostics()
        self._width = self.bounds[1] - self.bounds[0]
        # The variance of the noise must be a number, before anything is charged for it.
        if not 1e-100 <= self._width / self.mu <= 1e100:
            raise ValueError(
                f"`bounds` = {self.bounds} and `mu` = {self.mu:g} ask for noise of the order of "
                f"{self._width / self.mu:g}; rescale the scores by a public factor."
            )
        unit = check_unit(unit, NeighboringRelation.REPLACE_ONE).given(OWN_RECORD_ONLY)
        self._one_evaluation = Guarantee("Gaussian mechanism", unit, (GaussianLoss(self.mu),))
        self._seeds = None if unsafe_seed is None else np.random.SeedSequence(unsafe_seed)
        self._history: list[Evaluations] = []
        self._lock = threading.Lock()

    def price(self, evaluations: int = 1) -> Guarantee:
        """What this many evaluations, a number fixed beforehand, promise and cost."""
        count = check_integer("evaluations", evaluations)
        together = compose(*[self._one_evaluation] * count)
        return together if self._seeds is None else together.simulated()

    @property
    def noise_std(self) -> float:
        """Standard deviation of each ``Y``; public."""
        if self.num_records is None:
            raise ValueError("The noise depends on the number of records: pass `num_records`.")
        return self._width / (self.num_records * self.mu)

    @property
    def history(self) -> Evaluations:
        """All released evaluations so far, stacked: ``k x d``, ``k x 1`` and ``k x 1``."""
        with self._lock:
            parts = list(self._history)
        if not parts:
            nothing = torch.empty(0, 1, dtype=torch.double)
            return Evaluations(torch.empty(0, 0, dtype=torch.double), nothing, nothing.clone())
        return Evaluations(*(torch.cat(tensors) for tensors in zip(*parts, strict=True)))

    def __call__(self, X: Tensor) -> tuple[Tensor, Tensor]:
        """Spend mu at each row of ``X``.

        Args:
            X: ``b x d`` points, chosen without the records or from what was released before.

        Returns:
            ``Y`` and ``Yvar``, the known variance of its noise, each ``b x 1``, with the dtype and
            device of ``X``.
        """
        X = self._checked_points(X)
        if self.ledger is not None:
            self.ledger.charge(compose(*[self._one_evaluation] * len(X)), label=self.label)
        scores = checked_scores(
            self.record_losses(X), num_points=len(X), num_records=self.num_records
        )
        num_records = self._agreed_num_records(scores)
        levels = grid_levels(num_records)
        noisy_sums = [
            gaussian_mechanism(
                self._sum(row), sensitivity=levels, mu=self.mu, unsafe_seed=seed
            ).value
            for row, seed in zip(scores, self._next_seeds(len(X)), strict=True)
        ]
        # From here on everything is post-processing of released sums.
        mean = torch.tensor(noisy_sums, dtype=torch.double).unsqueeze(-1) / (levels * num_records)
        Y = self.bounds[0] + self._width * mean
        Yvar = torch.full_like(Y, self.noise_std**2)
        evaluations = Evaluations(X.clone(), (-Y if self.negate else Y).to(X), Yvar.to(X))
        with self._lock:
            self._history.append(evaluations)
        return evaluations.Y.clone(), evaluations.Yvar.clone()

    def _checked_points(self, X: object) -> Tensor:
        X = check_tensor("X", X, shape=(None, None)).detach()
        with self._lock:
            known = self._history[0].X if self._history else X
        if X.shape[1] != known.shape[1]:
            raise ValueError(
                f"`X` must have {known.shape[1]} columns, as in the first call, got {X.shape[1]}."
            )
        return X

    def _agreed_num_records(self, scores: Tensor) -> int:
        """The number of records, which the first evaluation settles if nobody did."""
        with self._lock:
            if self.num_records is None:
                self.num_records = scores.shape[1]
            num_records = self.num_records
        # Another thread may have settled it while this one was reading.
        return checked_scores(scores, num_points=len(scores), num_records=num_records).shape[1]

    def _sum(self, scores: Tensor) -> float:
        """One evaluation's clipped sum; what was clipped is counted."""
        with self._lock:
            self.diagnostics.count(scores, self.bounds)
        return clipped_sum(scores, self.bounds, nan_as=self.bounds[1 if self.negate else 0])

    def _next_seeds(self, count: int) -> list[int | None]:
        """A fresh seed for each simulated noise; None where the noise is real."""
        if self._seeds is None:
            return [None] * count
        with self._lock:
            children = self._seeds.spawn(count)
        return [int(child.generate_state(1, np.uint64)[0]) for child in children]

    def __repr__(self) -> str:
        count = "n" if self.num_records is None else self.num_records
        return (
            f"PrivateObjective(bounds={self.bounds}, mu={self.mu}, num_records={count}, "
            f"evaluations={len(self.history.Y)})"
        )


@dataclass(frozen=True)
class PerRecordReport:
    """What :func:`check_per_record` compared, without finding a dependence.

    Args:
        num_records: Number of records.
        num_points: Number of points at which they were scored.
        replaced: How many different records were replaced.
        replacements: How many replacements were tried in all; none where there is one record only,
            since then no other column can depend on it.
    """

    num_records: int
    num_points: int
    replaced: int
    replacements: int

    def __str__(self) -> str:
        if not self.replacements:
            return "Nothing was compared: with one record there is no other column."
        return (
            f"{self.replacements} replacements of {self.replaced} of {self.num_records} records "
            f"moved no other record's score at {self.num_points} points. This is a test, no proof."
        )


def check_per_record(
    make_scores: Callable[[Records], PerRecordLosses],
    records: Records,
    X: Tensor,
    *,
    trials: int = 10,
    seed: int = 0,
    rtol: float = 1e-6,
    extremes: bool = True,
) -> PerRecordReport:
    """Test whether a record's score depends on that record only, by replacing records.

    That condition rests on the caller of every release that bounds the scores of single records,
    and it is easily broken: by scores relative to a mean, by features that were standardized with
    the records, by a lookup table fitted to them. This function replaces single records, by other
    ones and by extreme ones, and compares the columns of all *others*. It is a test and no proof:
    it sees what moves at these points, for these records.

    A message names places of records and kinds of replacements, never a value. Still, what is
    found depends on the records: use records that you may look at, public ones of the same kind
    best of all.

    Args:
        make_scores: Takes records and returns the function under test, ``b x d -> b x n``.
            Everything that is computed from records must be computed inside.
        records: ``n x ...``, or a tuple of such tensors (inputs and targets, say), whose rows
            belong together.
        X: ``b x d`` points.
        trials: How many records are replaced, at random places without repetition (all if there
            are fewer).
        seed: Chooses places and replacements.
        rtol: By how much, relative to itself, a score may move by rounding.
        extremes: Whether to try zeros, numbers far outside the data's range, infinities and NaN
            where records are floating-point numbers. Integers are only replaced by such as occur.

    Raises:
        PrivacyError: If another record's score moved, if scores differ between two calls with the
            same records, or if the function fails for a replaced record (an exception would tell
            about it).

    Example:
        >>> records = torch.rand(50, dtype=torch.double)
        >>> X = torch.rand(3, 1, dtype=torch.double)
        >>> check_per_record(lambda z: lambda X: (X - z).abs(), records, X).replaced
        10
    """
    if not callable(make_scores):
        raise TypeError(f"`make_scores` must be callable, got {type(make_scores).__name__}.")
    parts = _record_parts(records)
    X = check_tensor("X", X, shape=(None, None)).detach()
    trials = check_integer("trials", trials)
    check_positive("rtol", rtol)
    generator = np.random.default_rng(check_integer("seed", seed, at_least=0))
    num_records = len(parts[0])

    def scored(parts: tuple[Tensor, ...]) -> Tensor:
        copies = tuple(part.clone() for part in parts)
        function = make_scores(copies if isinstance(records, tuple) else copies[0])
        if not callable(function):
            raise TypeError(
                "`make_scores` must return a function from points (b x d) to scores (b x n), got "
                f"{type(function).__name__}."
            )
        scores = function(X.clone())
        return checked_scores(scores, num_points=len(X), num_records=num_records).double()

    before = scored(parts)

    def moved(scores: Tensor) -> Tensor:
        return ~torch.isclose(scores, before, rtol=rtol, atol=0.0, equal_nan=True).all(dim=0)

    if moved(scored(parts)).any():
        raise PrivacyError(
            "`make_scores` gave two different results for the same records and points, so that no "
            "dependence can be told from chance. Fix the seed of what it draws."
        )
    count = min(trials, num_records) if num_records > 1 else 0
    places = generator.permutation(num_records)[:count].tolist()
    replacements = 0
    for place in places:
        for words, replaced in _replacements(parts, place, generator, extremes):
            replacements += 1
            try:
                columns = moved(scored(replaced))
            except PrivacyError:
                raise
            except Exception as error:
                raise PrivacyError(
                    f"The score function raised {type(error).__name__} when record {place} was "
                    f"replaced by {words}: an exception tells about a record. Give such a record "
                    "a score too; NaN will do."
                ) from None
            columns[place] = False
            if columns.any():
                raise PrivacyError(
                    f"Replacing record {place} by {words} moved the score of record "
                    f"{int(columns.nonzero()[0])}, too: a column must depend on its own record "
                    "only, or one record moves the sum by more than a score. Compute means, "
                    "ranks and scales from public data."
                )
    return PerRecordReport(num_records, len(X), len(places), replacements)


def _record_parts(records: object) -> tuple[Tensor, ...]:
    parts = records if isinstance(records, tuple) else (records,)
    if not parts or not all(isinstance(part, Tensor) and part.dim() > 0 for part in parts):
        raise TypeError("`records` must be a tensor n x ..., or a tuple of such tensors.")
    if len({len(part) for part in parts}) > 1 or len(parts[0]) == 0:
        raise ValueError(
            f"`records` must have the same number of rows, at least one, in each part; got "
            f"{[len(part) for part in parts]}."
        )
    return tuple(part.detach() for part in parts)


def _replacements(
    parts: tuple[Tensor, ...], place: int, generator: np.random.Generator, extremes: bool
) -> Iterator[tuple[str, tuple[Tensor, ...]]]:
    """All records with one replaced, and by what, in words."""

    def with_row(rows: list[Tensor]) -> tuple[Tensor, ...]:
        replaced = tuple(part.clone() for part in parts)
        for part, row in zip(replaced, rows, strict=True):
            part[place] = row
        return replaced

    other = int(generator.integers(len(parts[0]) - 1))
    other += other >= place
    yield "another record", with_row([part[other] for part in parts])
    yield "the smallest values that occur", with_row([part.amin(dim=0) for part in parts])
    yield "the largest values that occur", with_row([part.amax(dim=0) for part in parts])
    if not extremes or not any(part.is_floating_point() for part in parts):
        return
    largest = max(
        float(part.nan_to_num(0.0, 0.0, 0.0).abs().max())
        for part in parts
        if part.is_floating_point()
    )
    for words, value in (
        ("zeros", 0.0),
        ("values far above the others", 1e3 * largest + 1),
        ("values far below the others", -1e3 * largest - 1),
        ("positive infinity", math.inf),
        ("negative infinity", -math.inf),
        ("NaN", math.nan),
    ):
        yield (
            words,
            with_row(
                [
                    torch.full_like(part[place], value) if part.is_floating_point() else part[other]
                    for part in parts
                ]
            ),
        )
