"""Scores of records: what they look like, how they are added up, where they come from.

A record's score may depend on that record and on public things only. :func:`per_record_scores`
makes such scores of a scikit-learn estimator; :func:`check_per_record` looks for scores that depend
on other records.

Most scores are means over records, and a mean moves by a record's share of it. AUC and F1 compare
records with each other, and yet one record cannot move them by much: how far is proven here for
each, and attained. All are counted in whole units, so that no rounding moves them further.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeVar, get_args, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from botorch_dp._checks import (
    check_count,
    check_integer,
    did_you_mean,
    needs_extra,
    warn_caller,
)
from botorch_dp._files import pack
from botorch_dp.errors import PrivacyError
from botorch_dp.space import Config, SearchSpace

#: Records as a tensor with one of them in each row, or as several such tensors side by side.
RecordTensors = TypeVar("RecordTensors", Tensor, tuple[Tensor, ...])
Numbers = NDArray[np.float64]
Labels = Sequence[Any] | NDArray[Any] | Tensor

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

    def __call__(self, X: Any, /) -> Any:
        """Scores of ``n`` records at ``b`` points: ``b x d -> b x n``, tensors or arrays."""


def known_num_records(
    record_losses: object, num_records: int | None, *, takes_statistic: bool = False
) -> int | None:
    """``num_records``, or what ``record_losses`` says of itself in an attribute, or None.

    Where a mean over records is needed, what is scored by a statistic of all is refused.
    """
    statistic = getattr(record_losses, "statistic", None)
    if statistic is not None:
        if not takes_statistic:
            raise TypeError(
                f"`record_losses` is scored by {statistic.name}, which is no mean over records, so "
                "that no record has a loss of its own. PrivateObjective and PrivateSearch take it."
            )
        if num_records not in (None, statistic.num_records):
            raise ValueError(
                f"`num_records` = {num_records}, but {statistic.name} is of "
                f"{statistic.num_records} records."
            )
        return int(statistic.num_records)
    if num_records is None:
        num_records = getattr(record_losses, "num_records", None)
    return None if num_records is None else check_count("num_records", num_records)


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


def grid_levels(num_records: int) -> float:
    """The largest power of two of which ``num_records`` add up exactly in double precision."""
    return float(1 << ((_LARGEST_EXACT // num_records).bit_length() - 1))


def clipped_sum(scores: Tensor, bounds: tuple[float, float], *, nan_as: float) -> float:
    """The sum over ``n`` records of clipped scores, exact in double precision.

    Each score counts as an integer from 0 (at or below the lower bound) to ``grid_levels(n)`` (at
    or above the upper one), so replacing a record moves the sum by at most that, to the last bit.
    """
    low, high = bounds
    values = scores.detach().cpu().double().nan_to_num(nan=nan_as).clamp(low, high)
    levels = (values - low) / (high - low) * grid_levels(len(scores))
    return float(levels.round().sum())


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
        scores = scores.detach().double()
        self.num_below += int((scores < bounds[0]).sum())
        self.num_above += int((scores > bounds[1]).sum())
        self.num_nan += int(scores.isnan().sum())


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
        self,
        labels: Labels,
        *,
        labels_are_public: bool = False,
        share: float = 0.5,
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


# --- From a scikit-learn estimator. ---

#: Where the estimators are whose losses jump, and words in the names of others. A network's
#: training is random, and its loss as rough in its settings: ``which_trees --defaults``.
_WITH_STEPS = ("sklearn.tree", "sklearn.ensemble", "sklearn.neighbors", "sklearn.neural_network")
_BOOSTED = ("LGBM", "XGB", "CatBoost")

RecordLoss = Literal["zero_one", "brier", "log", "squared", "absolute", "roc_auc", "f1"]
#: How many public rows are predicted together, to see whether predictions of some move others.
_TOGETHER = 32
#: A number far from all others, and what rounding may do to a prediction, relatively.
_HUGE, _ROUNDING = 1e12, 1e-5
_MIXES = (
    "{name} mixes the records that it predicts: on public rows, some predictions changed when "
    "another row was replaced or left out, so that one record moves the scores of others. Do the "
    "step that reads all rows together (a scale of the batch, an imputation that draws random "
    "numbers) beforehand, and fit it to public records; a fixed seed does not help."
)
#: A log loss that is clipped below this one rewards overconfident mistakes.
_WIDE_LOG_LOSS = 7.0


def per_record_scores(
    estimator: Any,
    space: SearchSpace,
    train: tuple[Any, Any],
    validation: tuple[Any, Any],
    loss: RecordLoss | Callable[[Any, Any], Any] = "zero_one",
    *,
    labels_are_public: bool = False,
) -> EstimatorScores:
    """Losses of single validation records for configurations of a scikit-learn estimator.

    For each configuration a clone of the estimator gets its parameters, is fitted on the training
    records, and predicts the validation records. **Only the validation records are protected**: a
    fit reads the training records without noise, so they must be public.

    Args:
        estimator: With ``fit``, ``predict`` and ``set_params``, such as a pipeline.
        space: A :class:`~botorch_dp.space.SearchSpace` of the estimator's parameters; those of a
            pipeline's step are named ``step__parameter``.
        train: ``(X, y)``, public.
        validation: ``(X, y)``, protected.
        loss: ``"zero_one"``, ``"brier"`` (half the squared distance of the predicted
            probabilities from the true ones; from 0 to 1), ``"log"`` (of the true label's
            probability; unbounded), ``"squared"``, ``"absolute"``, or a function of the true labels
            and of what ``predict`` returned with one number for each record. It must not compare
            records with each other. For two classes also ``"roc_auc"`` and ``"f1"``, which stand
            for ``1 - AUC`` and ``1 - F1``; PrivateObjective and the selection of PrivateSearch take
            them, with the noise that :class:`~botorch_dp.scores.AUC` and
            :class:`~botorch_dp.scores.F1` need.
        labels_are_public: Whether the validation labels, and with them the sizes of the classes,
            may be known to everybody. Only these two losses ask; F1 needs it, AUC gains by it.

    Returns:
        A function from ``b`` configurations to ``b x n`` losses, with ``num_records``.

    An estimator whose prediction of one record depends on the records beside it is refused: public
    records are predicted together, one by one, and with one of them exchanged, once, with the
    estimator's own settings. These are the attribute ``incumbent``, which a selection of
    :class:`~botorch_dp.tuning.PrivateSearch` always compares, also where they lie outside of the
    space. Also refused are the same objects as ``train`` and as
    ``validation``, and overlapping views of one array.

    A record that cannot be scored, for a missing feature or a category nobody has seen, scores NaN,
    which counts as the worse bound; a public record takes its place in the prediction. Nothing that
    one record says raises, warns, or changes how the others are read: each column of a data frame
    is converted to the type that it has in the training records, which is public. So a column of
    texts (``object`` or ``str``, as ``read_csv`` makes of numbers with one odd cell) is read cell
    by cell as the numbers or dates that ``train`` has there, and an odd cell counts as missing
    (among booleans, as False).
    All other differences of types are refused by the type, which counts as public, and so are
    labels of another kind; a list of labels has no type, and its odd labels count as wrong.

    All records are predicted in one call, of one shape. Where it raises, halves of the records are
    tried, and halves of these, to find those that fail; such a call takes longer.

    Example:
        >>> space = SearchSpace(C=Real(1e-2, 1e3, log=True), gamma=Real(1e-4, 1.0, log=True))
        >>> scores = per_record_scores(SVC(), space, (train_X, train_y), (X, y), "zero_one")
        >>> PrivateSearch(scores, space, bounds=(0.0, 1.0), budget=budget, evaluations=60).run()
    """
    return EstimatorScores(
        estimator, space, train, validation, loss, labels_are_public=labels_are_public
    )


class EstimatorScores:
    """Losses of single records for configurations of an estimator: :func:`per_record_scores`."""

    def __init__(
        self,
        estimator: Any,
        space: SearchSpace,
        train: tuple[Any, Any],
        validation: tuple[Any, Any],
        loss: RecordLoss | Callable[[Any, Any], Any],
        *,
        labels_are_public: bool = False,
    ) -> None:
        unknown = sorted(set(space.parameters) - set(estimator.get_params()))
        if unknown:
            raise ValueError(
                f"`space` names {unknown}, which {type(estimator).__name__} has no parameters of: "
                "see estimator.get_params()."
            )
        #: The loss's name, or the function.
        self.loss = _checked_loss(loss, estimator)
        self._estimator = estimator
        #: Whether losses jump as parameters change, as those of trees and neighbours do.
        self.has_steps = _has_steps(estimator)
        self._train_X, self._train_y, _ = _columns_of("train", train)
        X, y, self.num_records = _columns_of("validation", validation)
        self._classes = _public_labels(self._train_y)
        if loss in ("squared", "absolute") and not _is_numeric(self._classes):
            raise TypeError(f"`loss` = {loss!r} needs numbers as labels, but `train` has none.")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a warning may tell about a single record
            #: The records, and a public one in the last row.
            self._X = _like_training(self._train_X, X)
        self._y = _labels_like(self._classes, y)
        #: What makes a loss of the predictions of all records, where it is no mean over them.
        self.statistic: Statistic | None = None
        if loss in ("roc_auc", "f1"):
            self.statistic = self._ranking(str(loss), labels_are_public)
        _check_different((self._train_X, self._train_y), (X, y))
        #: The estimator's own settings, if it can be fitted with them: not to tune is a candidate.
        self.incumbent: Config | None = None
        self._check_apart(self._usual(space))

    def __call__(self, configs: Sequence[Mapping[str, Any]]) -> Tensor:
        """``b`` configurations to ``b x n`` losses."""
        if len(configs) == 0:
            raise ValueError("`configs` must hold at least one configuration.")
        return torch.stack([self._losses(config) for config in configs])

    def _ranking(self, loss: str, labels_are_public: bool) -> Statistic:
        classes = np.unique(self._classes)
        if len(classes) != 2:
            raise ValueError(
                f"`loss` = {loss!r} is for two classes, got {len(classes)} in the training labels."
            )
        negative, self._positive = classes
        labels = np.where(
            equal_labels(self._y, self._positive),
            1,
            np.where(equal_labels(self._y, negative), 0, -1),
        )[:-1]
        if loss == "f1":
            return F1(labels, labels_are_public=labels_are_public)
        share = float((self._classes == self._positive).mean())
        return AUC(labels, labels_are_public=labels_are_public, share=share)

    def _usual(self, space: SearchSpace) -> Any:
        """The estimator with its own settings, fitted; where it cannot be, from mid-space."""
        known = self._estimator.get_params()
        own = {name: known[name] for name in space.parameters}
        last = [self.num_records]
        try:
            pack(own)
            fitted = self._fitted(own)
            self._of(fitted, self._rows(last), self._y[last])
        except Exception:  # on public records
            return self._fitted(space.middle())
        self.incumbent = own
        return fitted

    def _check_apart(self, fitted: Any) -> None:
        """Refuse an estimator whose predictions of public rows move with another row beside them.

        Some rows are predicted together, with one of them exchanged, and one by one.
        """
        places = np.linspace(0, len(self._classes) - 1, _TOGETHER).astype(int)
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            rows = _like_training(self._train_X, _taken(self._train_X, places))
            pool, size = _with_odd_ones(rows), _TOGETHER + 1

            def answers(places: NDArray[np.intp]) -> list[NDArray[Any]] | None:
                try:
                    found = _predictions(fitted, _taken(pool, places))
                except Exception:  # it may refuse such rows, or leave them out
                    return None
                return found if {len(part) for part in found} == {len(places)} else None

            usual, middle = np.arange(size), size // 2
            gaps = np.where(usual % 2, usual + size, usual)
            for together in (usual, gaps):
                before = answers(together)
                if before is None:
                    continue
                for other in (0, middle + 1, middle, size + middle, 2 * size + middle):
                    exchanged = np.where(usual == middle, other, together)
                    if _moved(before, answers(exchanged))[usual != middle].any():
                        raise PrivacyError(_MIXES.format(name=type(self._estimator).__name__))
            alone = []
            if (before := answers(usual)) is not None:
                for place in range(0, size, 4):
                    one = [part[[place]] for part in before]
                    alone.append(_moved(one, answers(usual[[place]])).any())
        # Rounding depends on the shape, and may turn a tie around.
        if 2 * sum(alone) > len(alone):
            raise PrivacyError(_MIXES.format(name=type(self._estimator).__name__))

    def _fitted(self, config: Mapping[str, Any]) -> Any:
        with needs_extra("sklearn", "`per_record_scores`"):
            from sklearn.base import clone

        fitted = clone(self._estimator).set_params(**config)
        fitted.fit(self._train_X, self._train_y)
        return fitted

    def _losses(self, config: Mapping[str, Any]) -> Tensor:
        n = self.num_records
        fitted = self._fitted(config)
        # What is wrong with the estimator or the loss shows on a public record, with its cause.
        self._of(fitted, self._rows([n]), self._y[[n]])
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")  # a warning may tell about a single record
            failing = np.zeros(n, dtype=bool)
            losses = self._attempt(fitted, failing)
            if losses is None:
                # Which records fail is a matter of each alone, and all others are predicted in the
                # same shape as ever: in another one their rounding would be another.
                failing[self._failing(fitted, np.arange(n))] = True
                losses = self._attempt(fitted, failing)
        if losses is None:
            losses = np.full(n, np.nan)
        return torch.from_numpy(np.where(failing, np.nan, losses))

    def _rows(self, places: Any) -> Any:
        return _taken(self._X, places)

    def _attempt(self, fitted: Any, failing: NDArray[np.bool_]) -> Numbers | None:
        """All records' losses with the public record in some places; None if that raises."""
        places = np.where(failing, self.num_records, np.arange(self.num_records))
        return self._tried(fitted, self._rows(places), self._y[places])

    def _failing(self, fitted: Any, places: NDArray[np.intp]) -> list[int]:
        """The records that raise by themselves, by bisection."""
        if self._tried(fitted, self._rows(places), self._y[places]) is not None:
            return []
        if len(places) == 1:
            return places.tolist()
        half = len(places) // 2
        return self._failing(fitted, places[:half]) + self._failing(fitted, places[half:])

    def _tried(self, fitted: Any, X: Any, y: NDArray[Any]) -> Numbers | None:
        try:
            return self._of(fitted, X, y)
        except Exception:  # a record's doing, which must not show
            return None

    def _of(self, fitted: Any, X: Any, y: NDArray[Any]) -> Numbers:
        """Losses of records, one for each."""
        if self.loss in ("log", "brier"):
            probabilities = np.asarray(fitted.predict_proba(X), dtype=np.float64)
            is_true = np.stack([equal_labels(y, label) for label in fitted.classes_], axis=-1)
            if probabilities.shape != is_true.shape:
                raise ValueError(f"`predict_proba` returned {probabilities.shape}.")
            if self.loss == "log":
                with np.errstate(divide="ignore"):
                    return -np.log((probabilities * is_true).sum(-1))
            known = is_true.any(-1)
            return np.where(known, 0.5 * np.square(probabilities - is_true).sum(-1), np.nan)
        if self.loss == "roc_auc":
            if hasattr(fitted, "decision_function"):
                return _of_each(fitted.decision_function(X), len(y), "decision_function")
            return _of_each(fitted.predict_proba(X)[:, 1], len(y), "predict_proba")
        predicted, is_number = fitted.predict(X), _is_numeric(self._classes)
        if not isinstance(predicted, np.ndarray):
            predicted = as_numbers(predicted) if is_number else column(predicted)
        if callable(self.loss):
            return _of_each(self.loss(y, predicted), len(y), "`loss`")
        if self.loss in ("squared", "absolute"):
            with np.errstate(all="ignore"):
                error = _of_each(predicted, len(y), "`predict`") - as_numbers(y)
                return np.square(error) if self.loss == "squared" else np.abs(error)
        if is_number:
            predicted = _of_each(predicted, len(y), "`predict`")
        if predicted.shape != y.shape:
            raise ValueError(f"`predict` returned {predicted.shape} for {len(y)} records.")
        if self.loss == "f1":
            return equal_labels(predicted, self._positive).astype(np.float64)
        return (~equal_labels(y, predicted)).astype(np.float64)


def _taken(X: Any, places: Any) -> Any:
    """Rows of a data frame, an array, a sparse table or a list."""
    if hasattr(X, "iloc"):
        return X.iloc[places]
    return [X[place] for place in places] if isinstance(X, list | tuple) else X[places]


def _with_odd_ones(rows: Any) -> Any:
    """Rows, as many missing ones and as many huge ones, where their type has such values."""
    if hasattr(rows, "iloc"):
        import pandas as pd

        missing = rows.reindex(range(len(rows), 2 * len(rows)))
        huge = rows.copy()
        huge[[label for label in rows.columns if rows[label].dtype.kind == "f"]] = _HUGE
        return pd.concat((rows, missing, huge), ignore_index=True)
    if hasattr(rows, "tocsr"):
        from scipy import sparse

        return sparse.vstack((rows, rows * np.nan, rows * _HUGE), format="csr")
    kind, parts = rows.dtype.kind, [rows, rows, rows]
    if kind in "fO":
        parts[1] = np.full_like(rows, np.nan)
    if kind in "fiu":
        most = _HUGE if kind == "f" else np.iinfo(rows.dtype).max // 2
        parts[2] = np.full_like(rows, most)
    return np.concatenate(parts)


def _predictions(fitted: Any, X: Any) -> list[NDArray[Any]]:
    """All that an estimator says of some rows."""
    names = ("predict_proba", "decision_function", "predict")
    return [np.asarray(getattr(fitted, name)(X)) for name in names if hasattr(fitted, name)]


def _moved(before: list[NDArray[Any]], after: list[NDArray[Any]] | None) -> NDArray[np.bool_]:
    """Which rows are predicted otherwise, by more than rounding; none if nothing was predicted."""
    moved = np.zeros(len(before[0]), dtype=bool)
    for old, new in zip(before, after or (), strict=after is not None):
        if _is_numeric(old):
            scale = np.abs(old[np.isfinite(old)]).max(initial=0.0)
            same = np.isclose(new, old, rtol=_ROUNDING, atol=_ROUNDING * scale, equal_nan=True)
        else:
            same = new == old
        moved |= ~same.reshape(len(moved), -1).all(axis=1)
    return moved


def _check_different(train: tuple[Any, Any], validation: tuple[Any, Any]) -> None:
    """Refuse the same objects, or overlapping parts of one, as public and as protected."""
    if any(_overlap(*parts) for parts in zip(train, validation, strict=True)):
        raise PrivacyError(
            "The public records and the protected ones share memory, so that some are the same: "
            "what is public is read without noise. Split them: fit to records that may be known to "
            "everybody, and protect others, such as X[:600] and X[600:]."
        )


def _overlap(public: Any, protected: Any) -> bool:
    """Whether two parts are one object, or share memory."""
    if public is protected or any(isinstance(each, list | tuple) for each in (public, protected)):
        return public is protected
    if hasattr(public, "columns"):
        places = range(min(public.shape[1], protected.shape[1]))
        return any(_overlap(public.iloc[:, k], protected.iloc[:, k]) for k in places)
    one, other = (each.data if hasattr(each, "tocsr") else each for each in (public, protected))
    try:
        return np.shares_memory(
            np.asarray(one),
            np.asarray(other),
            max_work=10_000,  # type: ignore[arg-type]
        )
    except np.exceptions.TooHardError:
        return False


def _has_steps(estimator: Any) -> bool:
    """Whether losses jump as parameters change: trees, ensembles, neighbours, networks."""
    last = estimator.steps[-1][1] if hasattr(estimator, "steps") else estimator
    parts = [last, *(last.get_params().values() if hasattr(last, "get_params") else ())]
    return any(
        type(part).__module__.startswith(_WITH_STEPS)
        or any(word in type(part).__name__ for word in _BOOSTED)
        for part in parts
    )


def warn_of_narrow_bounds(record_scores: object, bounds: tuple[float, float]) -> None:
    """Warn where bounds would turn the order of configurations around."""
    if getattr(record_scores, "loss", None) == "log" and bounds[1] < _WIDE_LOG_LOSS:
        warn_caller(
            f"`bounds` = {bounds} cut off the log loss: a confident mistake costs no more than "
            f"{bounds[1]:g}, which rewards overconfident models and may turn the order of "
            'configurations around. Use loss="brier" with bounds (0, 1), or bounds of at least '
            f"(0, {_WIDE_LOG_LOSS:g})."
        )


def _checked_loss(loss: object, estimator: Any) -> RecordLoss | Callable[[Any, Any], Any]:
    if callable(loss):
        return loss
    known = get_args(RecordLoss)
    if loss not in known:
        raise ValueError(
            f"`loss` must be one of {known}, or a function of the true labels and the predictions "
            "with one number for each record, which compares no records with each other; got "
            f"{loss!r}.{did_you_mean(str(loss), known)}"
        )
    if loss in ("log", "brier") and not hasattr(estimator, "predict_proba"):
        raise ValueError(
            f"`loss` = {loss!r} needs probabilities, which {type(estimator).__name__} does not "
            'predict. Use "zero_one", or an estimator with predict_proba.'
        )
    ranks = hasattr(estimator, "decision_function") or hasattr(estimator, "predict_proba")
    if loss == "roc_auc" and not ranks:
        raise ValueError(
            f'`loss` = "roc_auc" needs numbers to rank by, which {type(estimator).__name__} does '
            "not predict. Use an estimator with decision_function or predict_proba."
        )
    return loss  # type: ignore[return-value]


def _columns_of(name: str, data: tuple[Any, Any]) -> tuple[Any, Any, int]:
    """Features, labels and their number, which is public."""
    X: Any
    X, y = (part.numpy(force=True) if isinstance(part, Tensor) else part for part in data)
    if hasattr(X, "iloc") and not hasattr(X, "columns"):
        X = X.to_numpy()  # a column of texts
    sizes = [part.shape[0] if hasattr(part, "shape") else len(part) for part in (X, y)]
    if sizes[0] != sizes[1] or sizes[0] == 0:
        raise ValueError(f"`{name}` must have as many rows as labels, got {sizes}.")
    return X, y, sizes[0]


def _of_each(values: Any, count: int, name: str) -> Numbers:
    """One number for each record."""
    numbers = as_numbers(np.asarray(values) if hasattr(values, "dtype") else values)
    if numbers.shape == (count, 1):
        numbers = numbers[:, 0]
    if numbers.shape != (count,):
        raise ValueError(
            f"{name} must return one number for each record, {(count,)}, got {numbers.shape}."
        )
    return numbers


def equal_labels(labels: NDArray[Any], others: Any) -> NDArray[np.bool_]:
    """Whether labels are equal to others, or all to one: as numbers or as texts, as the others."""
    others = np.asarray(others)
    if _is_numeric(others):
        return (labels if _is_numeric(labels) else as_numbers(labels)) == others
    return np.asarray(labels.astype(str) == others.astype(str))


def _is_numeric(values: NDArray[Any]) -> bool:
    return values.dtype.kind in "fiub"


def _public_labels(y: Any) -> NDArray[Any]:
    """The training labels, as an array of numbers or of texts."""
    labels = np.asarray(y)
    if labels.dtype.kind == "O":
        labels = np.asarray(labels.tolist())
    if labels.dtype.kind not in "fiubU":
        raise TypeError(f"The labels of `train` must be numbers or texts, got {labels.dtype}.")
    return _checked_names("The labels of `train`", labels)


def _checked_names(what: str, values: NDArray[Any]) -> NDArray[Any]:
    """Refuse integers that are different, and equal as doubles: one missing value makes doubles."""
    if values.dtype.kind in "iu" and np.abs(values.astype(np.float64)).max() >= _LARGEST_EXACT:
        raise ValueError(f"{what} must be below 2^53: write larger ones as texts.")
    return values


def _labels_like(classes: NDArray[Any], y: Any) -> NDArray[Any]:
    """The records' labels as numbers or as texts, and a public one in the end."""
    dtype = getattr(y, "dtype", None)
    dtype = getattr(getattr(dtype, "categories", None), "dtype", dtype)
    if _is_numeric(classes) and str(dtype).lstrip("<>|=").startswith(("U", "S", "str")):
        raise TypeError("The labels of `validation` are texts, but those of `train` are numbers.")
    labels: NDArray[Any] = np.asarray(y) if hasattr(y, "dtype") else column(y)
    if labels.shape == (len(labels), 1):
        labels = labels[:, 0]
    if labels.ndim != 1:
        raise ValueError(f"`validation` must have one label for each record, got {labels.shape}.")
    first = classes.reshape(-1)[0]
    if not _is_numeric(classes):
        if _is_numeric(labels):
            raise TypeError("The labels of `validation` are numbers, but those of `train` are not.")
        return np.append(labels.astype(str), first)
    if not _is_numeric(labels):
        labels = as_numbers(labels)
    return np.append(labels, labels.dtype.type(first))


_WIDTHS = "The records of `validation` have {} columns, but those of `train` have {}."


def _like_training(train: Any, X: Any) -> Any:
    """Records in the form of the training records, which is public, and one of these below."""
    if hasattr(train, "columns") and hasattr(X, "columns"):
        return _frame_like(train, X)
    first = train[:1]
    if hasattr(X, "tocsr"):
        from scipy import sparse

        if X.shape[1] != first.shape[1]:
            raise ValueError(_WIDTHS.format(X.shape[1], first.shape[1]))
        return sparse.vstack((X, sparse.csr_matrix(first)), format="csr", dtype=X.dtype)
    if isinstance(X, list | tuple) and isinstance(train, list | tuple):
        first, X = column(first), column(X)
    first = first.toarray() if hasattr(first, "toarray") else np.asarray(first)
    shown = [f"{type(part).__name__} of {getattr(part, 'dtype', '?')}" for part in (X, train)]
    if (
        not isinstance(X, np.ndarray)
        or _is_numeric(X) != _is_numeric(first)
        or X.ndim != first.ndim
    ):
        raise TypeError(
            "The records of `validation` must be of the kind that those of `train` are (data "
            f"frames, arrays of numbers, lists of texts), got {shown[0]} and {shown[1]}."
        )
    if X.shape[1:] != first.shape[1:]:
        raise ValueError(_WIDTHS.format(X.shape[1], first.shape[1]))
    if _is_numeric(X):
        return np.concatenate((X, first.astype(X.dtype)))
    return np.concatenate((X.astype(object), first.astype(object)))


#: What a column of records may hold, and what its public one does: texts are read as either.
_READABLE = {(kind, kind) for kind in ("numbers", "dates", "categories", "texts")}
_READABLE |= {("texts", "numbers"), ("texts", "dates")}


def _frame_like(train: Any, X: Any) -> Any:
    """A data frame whose columns have the training records' types."""
    with needs_extra("frames", "A data frame"):
        import pandas as pd

    missing = [label for label in train.columns if label not in X.columns]
    if missing:
        raise ValueError(f"`validation` lacks the columns {missing} of `train`.")
    wrong = [
        f"{label!r} ({X[label].dtype}, and {public.dtype} in `train`)"
        for label, public in train.items()
        if (_kind_of(X[label].dtype), _kind_of(public.dtype)) not in _READABLE
    ]
    if wrong:
        raise TypeError(
            f"Columns of `validation` cannot be read as those of `train`: {', '.join(wrong)}. "
            "Convert them with `astype` to the dtype that they have in `train`, and durations, "
            "periods and intervals to numbers in both."
        )
    columns: dict[Any, Any] = {}
    for label, public in train.items():
        cells, dtype, kind = X[label], public.dtype, _kind_of(public.dtype)
        if kind == "categories":
            _checked_names(f"The categories of {label!r}", dtype.categories.to_numpy())
        elif kind == "numbers":
            cells = pd.Series(as_numbers(cells.to_numpy()))
            if dtype.kind == "b" and isinstance(dtype, np.dtype):
                cells = cells == 1  # which has no missing value
            dtype = cells.dtype
        elif kind == "dates":
            # In one format: otherwise the first text would decide how all others are read.
            cells = pd.to_datetime(cells, format="ISO8601", errors="coerce", utc=True)
            cells = cells if isinstance(dtype, pd.DatetimeTZDtype) else cells.dt.tz_localize(None)
        first = public.iloc[:1].astype(dtype)
        columns[label] = pd.concat((cells.astype(dtype), first), ignore_index=True)
    return pd.DataFrame(columns)


def _kind_of(dtype: Any) -> str:
    """What a column of a data frame holds, by its type; nothing for what cannot be read."""
    import pandas as pd

    if isinstance(dtype, pd.CategoricalDtype):
        return "categories"
    if isinstance(dtype, pd.StringDtype) or str(dtype) == "object":
        return "texts"
    if pd.api.types.is_datetime64_any_dtype(dtype):
        return "dates"
    return "numbers" if pd.api.types.is_numeric_dtype(dtype) else ""


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
