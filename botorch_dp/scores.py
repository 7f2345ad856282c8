"""Scores of records: what they look like, and how they are added up exactly.

A record's score may depend on that record and on public things only: :func:`check_per_record` looks
for scores that depend on others, and :mod:`~botorch_dp.estimator_scores` has those of scikit-learn
estimators.

Most scores are means over records, and a mean moves by a record's share of it. AUC and F1 compare
records with each other, and yet one record cannot move them by much: how far is proven here for
each, and attained. All are counted in whole units, so that no rounding moves them further.
"""

from __future__ import annotations

import contextlib
import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from botorch_dp._checks import check_count, check_integer, warn_caller
from botorch_dp.errors import PrivacyError
from botorch_dp.groups import Groups, groups_of
from botorch_dp.privacy import PrivacyUnit

#: Records as a tensor with one of them in each row, or as several such tensors side by side.
RecordTensors = TypeVar("RecordTensors", Tensor, tuple[Tensor, ...])
Numbers = NDArray[np.float64]
Labels = Sequence[Any] | NDArray[Any] | Tensor

#: A double holds every integer up to this one, so sums below it are exact in any order: a score
#: rounded to an integer moves the sum by what it moves itself, and not by a rounding error more.
LARGEST_EXACT = 2**53

#: A log loss that is clipped below this one rewards overconfident mistakes.
_WIDE_LOG_LOSS = 7.0

#: What rests on the caller wherever scores of single records are bounded one by one.
OWN_RECORD_ONLY = "each record's score depends only on that record and on public information"


@runtime_checkable
class PerRecordLosses(Protocol):
    """What a user's objective looks like: one column for each record.

    A record's column may depend on that record and on public things only: were it, say,
    standardized by the mean over all records, one record would move every column.
    """

    def __call__(self, X: Any, /) -> Any:
        """Scores of ``n`` records at ``b`` points: ``b x d -> b x n``, tensors or arrays."""


def known_num_records(
    record_losses: object, num_records: int | None, *, takes_statistic: bool = False
) -> int | None:
    """``num_records``, or what ``record_losses`` says of itself in an attribute, or None.

    Where a mean over records is needed, what is scored by a statistic of all is refused.
    """
    statistic = getattr(record_losses, "statistic", None)
    if getattr(record_losses, "groups", None) is not None:
        raise TypeError(
            "`record_losses` has `groups`, whose means PrivateObjective and PrivateSearch take."
        )
    if statistic is not None:
        if not takes_statistic:
            raise TypeError(
                f"`record_losses` is scored by {statistic.name}, which is no mean over records, "
                "so no record has a loss of its own. PrivateObjective and PrivateSearch take it."
            )
        if num_records not in (None, statistic.num_records):
            raise ValueError(
                f"`num_records` = {num_records}, but {statistic.name} is of "
                f"{statistic.num_records} records."
            )
        return int(statistic.num_records)
    if isinstance(record_losses, GroupScores) and num_records is not None:
        raise TypeError("`groups` say how many people there are: leave `num_records` out.")
    if num_records is None:
        num_records = getattr(record_losses, "num_records", None)
    return None if num_records is None else check_count("num_records", num_records)


class GroupScores:
    """``b x groups`` scores: means of records' scores, which are clipped to ``bounds`` before."""

    def __init__(
        self, record_scores: Any, groups: Groups, bounds: tuple[float, float], nan_as: float
    ) -> None:
        self._scores, self._groups, self._bounds = record_scores, groups, bounds
        self._nan_as, self.num_records = nan_as, len(groups)
        for name in ("has_steps", "incumbent", "loss"):
            setattr(self, name, getattr(record_scores, name, None))

    def __call__(self, X: Any) -> Tensor:
        """The means."""
        n = len(self._groups.owners)
        scores = checked_scores(self._scores(X), num_points=len(X), num_records=n).double()
        return self._groups.means(scores.nan_to_num(self._nan_as).clamp(*self._bounds))


def scores_and_unit(
    record_scores: Any, unit: PrivacyUnit, groups: Any, per_group: int | None, **how: Any
) -> tuple[Any, PrivacyUnit]:
    """What is averaged and whom it protects: people, if groups are given or scores have some."""
    count = getattr(record_scores, "num_records", None) or len([] if groups is None else groups)
    found = groups_of(groups, count, per_group) or getattr(record_scores, "groups", None)
    if found is None:
        return record_scores, unit
    if getattr(record_scores, "statistic", None) is not None:
        raise ValueError("AUC and F1 compare records, so that no person has a score of their own.")
    people = PrivacyUnit.of_person(found.per_group, unit.relation).given(*unit.conditions)
    return GroupScores(record_scores, found, **how), people


def checked_scores(
    scores: object, *, num_points: int, num_records: int | None, name: str = "record_losses"
) -> Tensor:
    """The ``b x n`` scores of all records, if their shape, which is public, is as agreed.

    In an array of objects or of text each score is read on its own, and what is no number is NaN:
    one record must not decide in which form the others are read.
    """
    if isinstance(scores, np.ndarray) or (isinstance(scores, Tensor) and scores.is_complex()):
        scores = torch.from_numpy(np.ascontiguousarray(as_numbers(scores)))
    if not isinstance(scores, Tensor):
        raise TypeError(
            f"`{name}` must return a tensor or an array of scores, got {type(scores).__name__}."
        )
    if scores.dim() != 2 or scores.shape[0] != num_points or scores.shape[1] == 0:
        expected = "n" if num_records is None else num_records
        raise ValueError(
            f"`{name}` must return {num_points} x {expected} scores, one row for each point "
            f"and one column for each record; got {tuple(scores.shape)}."
        )
    if num_records is not None and scores.shape[1] != num_records:
        raise PrivacyError(
            f"`{name}` returned {scores.shape[1]} columns where {num_records} records were "
            "agreed: the guarantee is for replacing one of a fixed, public number of records. "
            "Score every record every time; a missing one may be NaN."
        )
    return scores.detach()


def as_numbers(values: object) -> Numbers:
    """Numbers as doubles, each read on its own: what is no number is NaN and changes no other."""
    if isinstance(values, Tensor):
        values = values.numpy(force=True)
    if isinstance(values, np.ndarray) and values.dtype.kind in "fiub":
        return values.astype(np.float64)
    array = values if isinstance(values, np.ndarray) else column(values)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return np.array([_number(value) for value in array.flat], dtype=np.float64).reshape(
            array.shape
        )


#: How booleans are written where one odd cell makes texts of a column.
_BOOLEANS = {"True": 1.0, "False": 0.0, "true": 1.0, "false": 0.0, "TRUE": 1.0, "FALSE": 0.0}


def _number(value: Any) -> float:
    try:
        if isinstance(value, np.ndarray):
            return math.nan
        if isinstance(value, str):
            value = _BOOLEANS.get(value, value)
        # One complex number makes a whole array complex.
        is_real = not isinstance(value, complex | np.complexfloating) or value.imag == 0
        return float(getattr(value, "real", value)) if is_real else math.nan
    except Exception:  # whatever a record is, it is no error
        return math.nan


def column(values: Any) -> NDArray[Any]:
    """A sequence as an array of as many objects, whatever these are."""
    array = np.empty(len(values), dtype=object)
    for index, value in enumerate(values):
        array[index] = value
    return array


def rows_as_numbers(rows: Sequence[Any], shape: tuple[int, ...]) -> Numbers:
    """A list of records as doubles, each read on its own; one of another shape is missing."""
    numbers = np.full((len(rows), *shape), np.nan)
    for place, row in enumerate(rows):
        with contextlib.suppress(Exception):  # whatever a record is, it is no error
            numbers[place] = as_numbers(row).reshape(shape)
    return numbers


#: Scores that are taken together, so that they stay in the cache.
AT_ONCE = 2**15


def grid_levels(num_records: int) -> float:
    """The largest power of two of which ``num_records`` add up exactly in double precision."""
    return float(1 << ((LARGEST_EXACT // num_records).bit_length() - 1))


def clipped_sum(scores: Tensor, bounds: tuple[float, float], *, nan_as: float) -> float:
    """The sum over ``n`` records of clipped scores, exact in double precision.

    Each score counts as an integer from 0 (at or below the lower bound) to ``grid_levels(n)`` (at
    or above the upper one), so replacing a record moves the sum by at most that, to the last bit.
    """
    low, high = bounds
    total = 0.0
    for part in scores.detach().cpu().split(AT_ONCE):
        values = part.double().nan_to_num(nan=nan_as).clamp(low, high)
        levels = (values - low) / (high - low) * grid_levels(len(scores))
        total += float(levels.round().sum())
    return total


@dataclass
class ScoreDiagnostics:
    """**Sensitive.** How many scores were outside the bounds, over all evaluations.

    Look at them while you choose ``bounds`` on data you may look at; never publish them, and never
    let a run depend on them.
    """

    num_below: int = field(default=0, repr=False)
    num_above: int = field(default=0, repr=False)
    num_nan: int = field(default=0, repr=False)

    def count(self, scores: Tensor, bounds: tuple[float, float]) -> None:
        """Add the scores of one evaluation."""
        for part in scores.detach().flatten().split(AT_ONCE):
            part = part.double()
            self.num_below += int((part < bounds[0]).sum())
            self.num_above += int((part > bounds[1]).sum())
            self.num_nan += int(part.isnan().sum())


def without_subnormals(losses: Tensor) -> Tensor:
    """The same tensor, in which what is too small to matter is zero.

    Arithmetic on subnormal numbers is slow, and the time must not depend on a record.
    """
    for row in losses:
        torch.hardshrink(row, torch.finfo(losses.dtype).tiny ** 0.5, out=row)
    return losses


def warn_of_narrow_bounds(record_scores: object, bounds: tuple[float, float]) -> None:
    """Warn where bounds would turn the order of configurations around."""
    if getattr(record_scores, "loss", None) == "log" and bounds[1] < _WIDE_LOG_LOSS:
        warn_caller(
            f"`bounds` = {bounds} cut off the log loss: a confident mistake costs no more than "
            f"{bounds[1]:g}, which rewards overconfident models and may turn the order of "
            'configurations around. Use loss="brier" with bounds (0, 1), or bounds of at least '
            f"(0, {_WIDE_LOG_LOSS:g})."
        )


def warning_of_one_column(name: str) -> str:
    """What to say where scores have a single column."""
    return (
        f"`{name}` is of one record: a single column is protected as one record, so the noise is "
        "as large as the range of a score. Return one column for each record, not their mean."
    )


# --- Scores of all records together, which one record moves by a known amount. ---

_PUBLIC_LABELS = "a record's label is public, and a record is replaced by one of the same label"
#: Parts of F1 that are told apart.
_PARTS = 1 << 40


class Statistic(Protocol):
    """A loss of all records together: ``offset + unit * units(predictions)``."""

    #: What it is called in messages.
    name: str
    #: ``n``, and what rests on the caller beyond that a prediction reads its own record only.
    num_records: int
    conditions: tuple[str, ...]
    #: By how many units one record moves it at most.
    sensitivity: float
    #: The loss of no units, and of each.
    offset: float
    unit: float

    def units(self, predictions: Tensor) -> float:
        """A whole number, for one configuration's predictions of the ``n`` records."""


class AUC:
    r"""``1 - AUC``: how often a negative record is ranked above a positive one.

    With ``n+`` positive and ``n-`` negative records, and every pair that is ranked wrongly counted
    as 2, every tie as 1, the units are a number ``U`` from 0 to ``2 n+ n-``.

    Sensitivity, where labels are public: a positive record is in ``n-`` pairs, a negative one in
    ``n+``, so that replacing one by another with its label moves ``U`` by at most
    ``2 max(n+, n-)``, and ``1 - AUC = U / (2 n+ n-)`` by at most ``1 / min(n+, n-)``.

    Sensitivity, where labels are protected as well: the class sizes may change, so that no
    division by them is bounded. ``V = U - n+ n-`` orders configurations as AUC does. A pair counts
    as -1, 0 or 1 there. Replacing a record within its class moves ``V`` by at most twice the size
    of the other class, at most ``2 (n - 1)``; a record that changes its class leaves ``n-`` pairs,
    say, and enters ``n+ - 1`` others, and moves ``V`` by at most ``n - 1``. The loss is
    ``1/2 + V / (2 n^2 p (1 - p))`` with a public guess ``p`` of the share of positive records; with
    the true one it is ``1 - AUC``.

    A prediction that is NaN counts as ranked wrongly in all its pairs; where labels are protected,
    a record whose label is neither 0 nor 1 is in no pair.

    Args:
        labels: ``n`` numbers, 1 for positive and 0 for negative.
        labels_are_public: Whether all labels may be known to everybody.
        share: The guess ``p``, where labels are protected.

    Example:
        >>> statistic = AUC([1, 0, 1, 0], labels_are_public=True)
        >>> statistic.units(torch.tensor([0.9, 0.2, 0.4, 0.6]))
        2
    """

    name = "AUC"

    def __init__(
        self, labels: Labels, *, labels_are_public: bool = False, share: float = 0.5
    ) -> None:
        positive, negative = _classes(labels)
        self._positive, self._negative = positive, negative
        self.labels_are_public = bool(labels_are_public)
        self.num_records = n = len(positive)
        if not 0 < share < 1:
            raise ValueError(f"`share` must lie between 0 and 1, got {share}.")
        self.conditions: tuple[str, ...] = ()
        if not labels_are_public:
            self.sensitivity = float(max(2 * (n - 1), 1))
            self.offset, self.unit = 0.5, 1 / (2 * n**2 * share * (1 - share))
            return
        sizes = _public_sizes(positive, negative)
        if min(sizes) == 0:
            raise ValueError(f"`labels` must name both classes, got {sizes} of 1 and 0.")
        self.conditions = (_PUBLIC_LABELS,)
        self.sensitivity = float(2 * max(sizes))
        self.offset, self.unit = 0.0, 1 / (2 * sizes[0] * sizes[1])

    def units(self, predictions: Tensor) -> float:
        """``U``, or ``V`` where labels are protected."""
        scores = _scores(predictions, self.num_records)
        above = scores[self._positive].nan_to_num(-torch.inf, torch.inf, -torch.inf).sort().values
        below = scores[self._negative].nan_to_num(torch.inf, torch.inf, -torch.inf)
        smaller = torch.searchsorted(above, below, right=False).sum()
        not_larger = torch.searchsorted(above, below, right=True).sum()
        wrong = int(smaller + not_larger)  # twice the smaller ones, once the equal ones
        return float(wrong if self.labels_are_public else wrong - len(above) * len(below))


class F1:
    r"""``1 - F1`` of the positive class, where labels are public.

    With ``P`` records predicted as positive, ``T`` of them rightly, and ``n+`` positive ones,
    ``F1 = 2 T / (n+ + P)``.

    Sensitivity: a replaced positive record moves ``T`` and ``P`` by one together, and F1 by
    ``2 (n+ + P - T) / ((n+ + P) (n+ + P + 1)) <= 2 / (n+ + 1)``; a replaced negative one moves
    ``P`` by one, and F1 by ``2 T / ((n+ + P) (n+ + P + 1)) <= 1 / (n+ + 1)``. Parts of ``2^-40``
    are counted, rounded down, so that ``ceil(2^41 / (n+ + 1))`` of them is the most.

    With protected labels one record moves F1 from 0 to 1 where it is the only positive one, so
    there is nothing to be had.

    Args:
        labels: ``n`` numbers, 1 for positive and 0 for negative, all public.
        labels_are_public: Must be True.

    Example:
        >>> statistic = F1([1, 0, 1, 0], labels_are_public=True)
        >>> statistic.offset + statistic.unit * statistic.units(torch.tensor([1.0, 0.0, 0.0, 0.0]))
    """

    name = "F1"

    def __init__(self, labels: Labels, *, labels_are_public: bool = False) -> None:
        self._positive, negative = _classes(labels)
        if not labels_are_public:
            raise ValueError(
                "F1 has no bounded sensitivity while labels are protected: where few records are "
                "positive, one of them moves it from 0 to 1. Pass `labels_are_public=True` if they "
                'are, or use "roc_auc", or "log".'
            )
        positives, _ = _public_sizes(self._positive, negative)
        if positives == 0:
            raise ValueError("`labels` must name the positive class, got no label that is 1.")
        self.num_records = len(self._positive)
        self._positives = positives
        self.conditions: tuple[str, ...] = (_PUBLIC_LABELS,)
        self.sensitivity = float(-(-2 * _PARTS // (positives + 1)))
        self.offset, self.unit = 1.0, -1 / _PARTS

    def units(self, predictions: Tensor) -> float:
        """Parts of F1, for predictions that mean the positive class above a half."""
        scores = _scores(predictions, self.num_records)
        # NaN counts as the wrong class.
        predicted = torch.where(scores.isnan(), ~self._positive, scores > 0.5)
        right = int((predicted & self._positive).sum())
        return float(2 * right * _PARTS // (self._positives + int(predicted.sum())))


def _scores(predictions: Tensor, num_records: int) -> Tensor:
    if predictions.shape != (num_records,) or predictions.is_complex():
        raise ValueError(
            f"`predictions` must be {num_records} real numbers, one for each label, got "
            f"{tuple(predictions.shape)} of {predictions.dtype}."
        )
    return predictions.double()


def _classes(labels: Labels) -> tuple[Tensor, Tensor]:
    """Which records are positive, and which negative."""
    if not isinstance(labels, Tensor | np.ndarray | Sequence) or isinstance(labels, str):
        raise TypeError(f"`labels` must be n numbers, got {type(labels).__name__}.")
    values = as_numbers(labels)
    if values.ndim != 1:
        raise ValueError(f"`labels` must be n numbers, got shape {values.shape}.")
    check_integer("the number of `labels`", len(values))
    return torch.from_numpy(values == 1), torch.from_numpy(values == 0)


def _public_sizes(positive: Tensor, negative: Tensor) -> tuple[int, int]:
    if not bool((positive | negative).all()):
        raise ValueError("`labels` must be 0 or 1 where they are public.")
    return int(positive.sum()), int(negative.sum())


# --- A test of the condition. ---


def check_per_record(
    make_scores: Callable[[RecordTensors], PerRecordLosses],
    records: RecordTensors,
    X: Tensor,
    *,
    trials: int = 10,
) -> None:
    """Test whether a record's score depends on that record only, by replacing records.

    That condition rests on the caller of every release that bounds the scores of single records,
    and it is easily broken: by scores relative to a mean, by features that were standardized with
    the records, by a lookup table fitted to them. This function replaces single records by another
    one, by zeros, by values far above the others and by NaN, and compares the columns of all
    *others*. It is a test and no proof. What it finds depends on the records: use records that you
    may look at, public ones of the same kind best of all.

    Args:
        make_scores: Takes records and returns the function under test, ``b x d -> b x n``.
            Everything that is computed from records must be computed inside.
        records: ``n x ...``, or a tuple of such tensors (inputs and targets, say), whose rows
            belong together. Integers are replaced by such as occur.
        X: ``b x d`` points.
        trials: How many records are replaced.

    Raises:
        PrivacyError: If another record's score moved, if scores differ between two calls with the
            same records, or if the function fails for a replaced record (an exception would tell
            about it).

    Example:
        >>> records = torch.rand(50, dtype=torch.double)
        >>> X = torch.rand(3, 1, dtype=torch.double)
        >>> check_per_record(lambda z: lambda X: (X - z).abs(), records, X)
    """
    parts = records if isinstance(records, tuple) else (records,)
    n = len(parts[0])

    def scored(parts: Sequence[Tensor]) -> Tensor:
        copies: Any = tuple(part.clone() for part in parts)
        function = make_scores(copies if isinstance(records, tuple) else copies[0])
        return checked_scores(function(X.clone()), num_points=len(X), num_records=n).double()

    before: Tensor = scored(parts)

    def moved(scores: Tensor) -> Tensor:
        return ~torch.isclose(scores, before, rtol=1e-6, atol=0.0, equal_nan=True).all(dim=0)

    if moved(scored(parts)).any():
        raise PrivacyError(
            "`make_scores` gave two different results for the same records and points, so that no "
            "dependence can be told from chance. Fix the seed of what it draws."
        )
    generator = np.random.default_rng(0)
    far = [1e3 * float(p.nan_to_num(0.0, 0.0, 0.0).abs().max()) + 1 for p in parts]
    for place in generator.permutation(n)[: min(trials, n - 1)].tolist():
        other = (place + int(generator.integers(1, n))) % n
        for words, values in (
            ("another record", None),
            ("zeros", [0.0] * len(parts)),
            ("values far above the others", far),
            ("NaN", [math.nan] * len(parts)),
        ):
            replaced = [part.clone() for part in parts]
            for index, part in enumerate(replaced):
                keep = values is None or not part.is_floating_point()
                part[place] = part[other] if keep else values[index]  # type: ignore[index]
            try:
                columns = moved(scored(replaced))
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
