"""Scores of scikit-learn estimators: losses of single records for each configuration.

Nothing that one record says raises, warns, or changes how the others are read.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from botorch_dp._checks import did_you_mean, needs_extra
from botorch_dp._files import pack
from botorch_dp.errors import PrivacyError
from botorch_dp.groups import Groups, groups_of
from botorch_dp.scores import (
    AUC,
    F1,
    LARGEST_EXACT,
    Numbers,
    Statistic,
    as_numbers,
    column,
    rows_as_numbers,
)
from botorch_dp.space import Config, SearchSpace

#: Modules of estimators with piecewise constant losses, and words in names of others. A network's
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


def per_record_scores(
    estimator: Any,
    space: SearchSpace,
    train: tuple[Any, Any],
    validation: tuple[Any, Any],
    loss: RecordLoss | Callable[[Any, Any], Any] = "zero_one",
    *,
    labels_are_public: bool = False,
    groups: Any = None,
    per_group: int | None = None,
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
        groups: Whose each validation record is, where people are to be protected; see
            :class:`~botorch_dp.objectives.PrivateObjective`.
        per_group: How many records of a person are used at most; 16 unless given.

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
    scores = EstimatorScores(
        estimator, space, train, validation, loss, labels_are_public=labels_are_public
    )
    scores.groups = groups_of(groups, scores.num_records, per_group)
    return scores


class EstimatorScores:
    """Losses of single records for configurations of an estimator: :func:`per_record_scores`."""

    groups: Groups | None = None

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
                f"`space` names {unknown}, which are no parameters of "
                f"{type(estimator).__name__}: see estimator.get_params()."
            )
        #: The loss's name, or the function.
        self.loss = _checked_loss(loss, estimator)
        self._estimator = estimator
        #: Whether losses are piecewise constant in the parameters, as those of trees are.
        self.has_steps = _has_steps(estimator)
        self._train_X, self._train_y, _ = _checked_records("train", train)
        X, y, self.num_records = _checked_records("validation", validation)
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
        self._check_isolation(self._default_fit(space))

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

    def _default_fit(self, space: SearchSpace) -> Any:
        """The estimator with its own settings, fitted; where it cannot be, from mid-space."""
        known = self._estimator.get_params()
        own = {name: known[name] for name in space.parameters}
        last = [self.num_records]
        try:
            pack(own)
            fitted = self._fit(own)
            self._record_losses(fitted, self._rows(last), self._y[last])
        except Exception:  # on public records
            return self._fit(space.middle())
        self.incumbent = own
        return fitted

    def _check_isolation(self, fitted: Any) -> None:
        """Refuse an estimator whose predictions of public rows move with another row beside them.

        Some rows are predicted together, with one of them exchanged, and one by one.
        """
        places = np.linspace(0, len(self._classes) - 1, _TOGETHER).astype(int)
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            rows = _like_training(self._train_X, _select_rows(self._train_X, places))
            pool, size = _with_extreme_rows(rows), _TOGETHER + 1

            def answers(places: NDArray[np.intp]) -> list[NDArray[Any]] | None:
                try:
                    found = _predictions(fitted, _select_rows(pool, places))
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
                    if _changed(before, answers(exchanged))[usual != middle].any():
                        raise PrivacyError(_MIXES.format(name=type(self._estimator).__name__))
            alone = []
            if (before := answers(usual)) is not None:
                for place in range(0, size, 4):
                    one = [part[[place]] for part in before]
                    alone.append(_changed(one, answers(usual[[place]])).any())
        # Rounding depends on the shape, and may turn a tie around.
        if 2 * sum(alone) > len(alone):
            raise PrivacyError(_MIXES.format(name=type(self._estimator).__name__))

    def _fit(self, config: Mapping[str, Any]) -> Any:
        with needs_extra("sklearn", "`per_record_scores`"):
            from sklearn.base import clone

        fitted = clone(self._estimator).set_params(**config)
        fitted.fit(self._train_X, self._train_y)
        return fitted

    def _losses(self, config: Mapping[str, Any]) -> Tensor:
        n = self.num_records
        fitted = self._fit(config)
        # What is wrong with the estimator or the loss shows on a public record, with its cause.
        self._record_losses(fitted, self._rows([n]), self._y[[n]])
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")  # a warning may tell about a single record
            failing = np.zeros(n, dtype=bool)
            losses = self._losses_with_substitutes(fitted, failing)
            if losses is None:
                # Which records fail is a matter of each alone, and all others are predicted in the
                # same shape as ever: in another one their rounding would be another.
                failing[self._failing(fitted, np.arange(n))] = True
                losses = self._losses_with_substitutes(fitted, failing)
        if losses is None:
            losses = np.full(n, np.nan)
        return torch.from_numpy(np.where(failing, np.nan, losses))

    def _rows(self, places: Any) -> Any:
        return _select_rows(self._X, places)

    def _losses_with_substitutes(self, fitted: Any, failing: NDArray[np.bool_]) -> Numbers | None:
        """All records' losses with the public record in some places; None if that raises."""
        places = np.where(failing, self.num_records, np.arange(self.num_records))
        return self._losses_or_none(fitted, self._rows(places), self._y[places])

    def _failing(self, fitted: Any, places: NDArray[np.intp]) -> list[int]:
        """The records that raise by themselves, by bisection."""
        if self._losses_or_none(fitted, self._rows(places), self._y[places]) is not None:
            return []
        if len(places) == 1:
            return places.tolist()
        half = len(places) // 2
        return self._failing(fitted, places[:half]) + self._failing(fitted, places[half:])

    def _losses_or_none(self, fitted: Any, X: Any, y: NDArray[Any]) -> Numbers | None:
        try:
            return self._record_losses(fitted, X, y)
        except Exception:  # a record's doing, which must not show
            return None

    def _record_losses(self, fitted: Any, X: Any, y: NDArray[Any]) -> Numbers:
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
                return _one_per_record(fitted.decision_function(X), len(y), "decision_function")
            return _one_per_record(fitted.predict_proba(X)[:, 1], len(y), "predict_proba")
        predicted, is_number = fitted.predict(X), _is_numeric(self._classes)
        if not isinstance(predicted, np.ndarray):
            predicted = as_numbers(predicted) if is_number else column(predicted)
        if callable(self.loss):
            return _one_per_record(self.loss(y, predicted), len(y), "`loss`")
        if self.loss in ("squared", "absolute"):
            with np.errstate(all="ignore"):
                error = _one_per_record(predicted, len(y), "`predict`") - as_numbers(y)
                return np.square(error) if self.loss == "squared" else np.abs(error)
        if is_number:
            predicted = _one_per_record(predicted, len(y), "`predict`")
        if predicted.shape != y.shape:
            raise ValueError(f"`predict` returned {predicted.shape} for {len(y)} records.")
        if self.loss == "f1":
            return equal_labels(predicted, self._positive).astype(np.float64)
        return (~equal_labels(y, predicted)).astype(np.float64)


def _select_rows(X: Any, places: Any) -> Any:
    """Rows of a data frame, an array, a sparse table or a list."""
    if hasattr(X, "iloc"):
        return X.iloc[places]
    return [X[place] for place in places] if isinstance(X, list | tuple) else X[places]


def _with_extreme_rows(rows: Any) -> Any:
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


def _changed(before: list[NDArray[Any]], after: list[NDArray[Any]] | None) -> NDArray[np.bool_]:
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
            "The public records and the protected ones share memory, so some records are in "
            "both, and public records are read without noise. Split them: fit to records that "
            "may be known to everybody, and protect others, such as X[:600] and X[600:]."
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
    """Whether losses are piecewise constant in the parameters: trees, neighbours, networks."""
    last = estimator.steps[-1][1] if hasattr(estimator, "steps") else estimator
    parts = [last, *(last.get_params().values() if hasattr(last, "get_params") else ())]
    return any(
        type(part).__module__.startswith(_WITH_STEPS)
        or any(word in type(part).__name__ for word in _BOOSTED)
        for part in parts
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


def _checked_records(name: str, data: tuple[Any, Any]) -> tuple[Any, Any, int]:
    """Features, labels and their number, which is public."""
    X: Any
    X, y = (part.numpy(force=True) if isinstance(part, Tensor) else part for part in data)
    if name == "train" and isinstance(X, list | tuple) and not isinstance(X[0], str):
        X = np.asarray(X)
    if hasattr(X, "iloc") and not hasattr(X, "columns"):
        X = X.to_numpy()  # a column of texts
    sizes = [part.shape[0] if hasattr(part, "shape") else len(part) for part in (X, y)]
    if sizes[0] != sizes[1] or sizes[0] == 0:
        raise ValueError(f"`{name}` must have as many rows as labels, got {sizes}.")
    return X, y, sizes[0]


def _one_per_record(values: Any, count: int, name: str) -> Numbers:
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
    if values.dtype.kind in "iu" and np.abs(values.astype(np.float64)).max() >= LARGEST_EXACT:
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


_WIDTHS = "The records of `validation` have {} features, but those of `train` have {}."


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
    if isinstance(X, list | tuple) and isinstance(train, np.ndarray) and _is_numeric(first):
        X = rows_as_numbers(X, train.shape[1:])
    elif isinstance(X, list | tuple) and isinstance(train, list | tuple):
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
            cells = cells.cat.set_categories(dtype.categories)
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
