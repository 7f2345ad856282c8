"""Tables and targets by their types, which are public, and the numbers that are read from them.

Needs the extra ``sklearn``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from botorch_dp._checks import check_choice, needs_extra, warn_caller
from botorch_dp.privacy import PrivacyUnit
from botorch_dp.scores import as_numbers, rows_as_numbers
from botorch_dp.scores import column as objects
from botorch_dp.training import Ranges
from botorch_dp.training.ranges import RangesPlan, Shapes

with needs_extra("sklearn", "`botorch_dp.integrations.estimators`"):
    from sklearn.exceptions import DataConversionWarning
    from sklearn.utils.validation import validate_data

Array = NDArray[np.float64]

#: Kinds of NumPy's types, and what they are.
_KINDS = {"biuf": "numbers", "biu": "integers, as `classes` are", "f": "floats, as `classes` are"}
_KINDS["UO"] = "text, as `classes` are"
_PER_DAY = {"D": 1, "h": 24, "m": 1440, "s": 86_400, "ms": 86_400e3, "us": 86_400e6, "ns": 86_400e9}
#: How far columns are from 0 where bounds scale them to between -1 and 1: between those that fill
#: their bounds evenly (0.58) and those that lie at them (1).
_FILLED = 0.7
#: The same of curves, most pieces of which are at one of their ends.
_FILLED_CURVES = 0.8


@dataclass(frozen=True)
class Column:
    """A column as its type describes it; ``categories`` are those of a category's type."""

    name: Any
    kind: Literal["number", "flag", "date", "category"]
    type: Any = None

    @property
    def width(self) -> int:
        """How many columns of numbers it becomes."""
        return len(self.type.categories) if self.kind == "category" else 1

    def numbers(self, values: Any) -> Array:
        """``n x width`` doubles; what is missing is NaN."""
        if self.kind == "category":
            codes = values.astype(self.type).cat.codes.to_numpy()
            return np.where(codes[:, None] < 0, np.nan, codes[:, None] == np.arange(self.width))
        if self.kind == "date":
            # Counted in the unit of the type, so that no value is too far away to be converted.
            unit_type = _date_type(values.dtype)
            unit, step = np.datetime_data(unit_type)
            dates = values if isinstance(values, np.ndarray) else values.to_numpy(dtype=unit_type)
            ticks = dates.astype(unit_type).view(np.int64)
            missing = ticks == np.iinfo(np.int64).min
            return np.where(missing, np.nan, ticks * (step / _PER_DAY[unit]))[:, None]
        if isinstance(values, np.ndarray):
            return values.astype(np.float64)[:, None]
        return values.to_numpy(dtype=np.float64, na_value=np.nan)[:, None]


def _date_type(dtype: Any) -> np.dtype[Any]:
    """NumPy's type of dates; those of pandas with a time zone are counted in UTC."""
    return dtype if isinstance(dtype, np.dtype) else np.dtype(f"M8[{dtype.unit}]")


def _column(name: Any, dtype: Any) -> Column:
    kind = getattr(dtype, "kind", "")
    if hasattr(dtype, "categories"):
        return Column(name, "category", dtype)
    if kind == "b":
        return Column(name, "flag")
    if kind and kind in "iuf":
        return Column(name, "number")
    if kind and kind in "mM" and np.datetime_data(_date_type(dtype))[0] in _PER_DAY:
        return Column(name, "date")
    raise ValueError(
        f"`X` must be numbers, dates, truth values or categories, got a column {name!r} of type "
        f"{dtype}: unknown label type, or Complex data not supported. Its values are not looked "
        "at. Leave it out, convert it to numbers, or list its categories: "
        f"X[{name!r}].astype(pd.CategoricalDtype(['a', 'b']))."
    )


def described(X: Any) -> list[Column]:
    """The columns of an array or a data frame, by their types alone."""
    if not hasattr(X, "dtype") and not hasattr(X, "dtypes"):
        raise ValueError(
            f"`X`: X should be a 2d array, a data frame or a list of rows, got {type(X).__name__}."
        )
    if X.ndim != 2:
        raise ValueError(f"`X` must be n x d, got {X.shape}. Reshape your data.")
    if hasattr(X, "dtype"):
        kind = _column(0, X.dtype)
        return [replace(kind, name=place) for place in range(X.shape[1])]
    return [_column(name, dtype) for name, dtype in zip(X.columns, X.dtypes, strict=True)]


def _usual_length(rows: Sequence[Any]) -> int:
    """How many numbers most rows have: no single one decides."""
    lengths = Counter(len(row) for row in rows if isinstance(row, list | tuple | np.ndarray))
    if not lengths:
        raise ValueError("`X` must hold rows, n x d. Reshape your data.")
    return lengths.most_common(1)[0][0]


class Table:
    """A table whose types have been checked; :meth:`numbers` reads it.

    Args:
        estimator: What it is given to.
        X: An array, a data frame or a list of rows.
        columns: Those of an earlier fit; None in a fit.
    """

    def __init__(self, estimator: Any, X: Any, columns: list[Column] | None = None) -> None:
        self._rows = X if isinstance(X, list | tuple) else None
        if self._rows is not None:  # read when its numbers are asked for
            X = np.zeros((len(self._rows), _usual_length(self._rows)))
        found, is_frame = described(X), hasattr(X, "columns")
        how: Any = {"skip_check_array": True}
        if not is_frame:
            how = {"dtype": None, "ensure_all_finite": False}
        validate_data(estimator, X, reset=columns is None, **how)
        if 0 in X.shape:
            raise ValueError(f"`X` has shape {X.shape}: 0 sample(s) or 0 feature(s).")
        self.columns = found if columns is None else columns
        self.num_records = len(X)
        self._parts = [X.iloc[:, i] if is_frame else X[:, i] for i in range(len(self.columns))]

    def numbers(self) -> Array:
        """Doubles, ``n x c``; what is missing is NaN."""
        if self._rows is not None:
            return rows_as_numbers(self._rows, (len(self.columns),))
        pairs = zip(self.columns, self._parts, strict=True)
        return np.concatenate([column.numbers(part) for column, part in pairs], axis=1)


def stated_bounds(columns: list[Column], bounds: Any) -> list[tuple[float, float] | None]:
    """The bounds of each column of numbers, ``c``; None where they are to be found privately.

    Truth values and categories are between 0 and 1.
    """
    if isinstance(bounds, str):
        check_choice("bounds", bounds, ("private",))
        given: dict[Any, Any] = {}
    elif isinstance(bounds, Mapping):
        given = dict(bounds)
        unknown = [name for name in given if name not in [column.name for column in columns]]
        if unknown:
            raise ValueError(f"`bounds` names columns that `X` does not have: {unknown}.")
    else:
        low, high = ends_of("bounds", bounds, (len(columns),))
        given = {c.name: pair for c, *pair in zip(columns, low, high, strict=True)}
    stated: list[tuple[float, float] | None] = []
    for column in columns:
        if column.kind in ("flag", "category"):
            stated += [(0.0, 1.0)] * column.width
        elif column.name in given:
            low, high = ends_of("bounds", given[column.name], ())
            stated.append((float(low), float(high)))
        else:
            stated.append(None)
    return stated


@dataclass(frozen=True)
class Layout:
    """What public numbers and types make of a table: what is stated, what is found, how finely."""

    num_records: int
    unit: PrivacyUnit
    columns: list[Column]
    stated: list[tuple[float, float] | None]
    ranges: RangesPlan | None
    pieces: int | None

    @property
    def flags(self) -> list[int]:
        """Places of the columns that are 1 for a category and 0 for others."""
        kinds = [column.kind for column in self.columns for _ in range(column.width)]
        return [place for place, kind in enumerate(kinds) if kind == "category"]

    @property
    def most_features(self) -> int:
        """If no two knots coincide."""
        several = sum(column.kind in ("number", "date") for column in self.columns)
        return len(self.stated) + several * (self.pieces or 0)

    @property
    def feature_norm(self) -> float:
        """The root mean square norm of a record's features: of each column 1 at most."""
        return (_FILLED_CURVES if self.pieces else _FILLED) * len(self.columns) ** 0.5

    def shapes(self, found: Ranges | None, targets: tuple[float, float]) -> Shapes:
        """The features, given what was released of the columns that are not stated."""
        own = iter([] if found is None else found.ends())
        ends = [next(own) if each is None else each for each in self.stated]
        if self.pieces is None:
            return Shapes(ends, None, self.flags, targets)
        curves = iter(() if found is None or found.knots is None else found.knots)
        kinds = [column.kind for column in self.columns for _ in range(column.width)]
        knots = [
            next(curves)
            if each is None
            else np.linspace(*each, 1 + (self.pieces if kind in ("number", "date") else 0))
            for each, kind in zip(self.stated, kinds, strict=True)
        ]
        return Shapes(ends, knots, self.flags, targets)


def target_column(y: Any, kinds: str) -> Any:
    """The targets as one column; another kind is refused, and a list is read target by target."""
    if isinstance(y, list | tuple):
        return objects(y) if "U" in kinds else as_numbers(objects(y))
    if not hasattr(y, "dtype") and not hasattr(y, "dtypes"):
        raise ValueError(
            f"`y`: y should be a 1d array, a list or a data frame's column, got {type(y).__name__}."
        )
    if y.shape[1:] == (1,):
        message = "A column-vector y was passed when a 1d array was expected."
        warn_caller(message, DataConversionWarning)
        y = y.iloc[:, 0] if hasattr(y, "iloc") else y[:, 0]
    kind = getattr(y.dtype, "kind", "")
    # Nullable numbers of pandas become objects where one of them is missing.
    if kind not in kinds or (kind != "O" and not isinstance(y.dtype, np.dtype)):
        raise ValueError(
            f"`y` must be {_KINDS[kinds]}, got a column of type {y.dtype}: unknown label "
            "type, or Complex data not supported. Convert it."
        )
    return y


def checked_labels(classes: Any) -> NDArray[Any]:
    """The labels, sorted; of one type, and at least two."""
    given = () if classes is None else list(classes)
    labels = np.unique(np.asarray(given))
    kinds = {np.asarray(each).dtype.kind for each in given}
    if len(labels) < 2 or len(labels) < len(given) or len(kinds) > 1 or not kinds <= set("biufU"):
        raise ValueError(
            "`classes` must be at least two different labels, such as (0, 1) or ('no', 'yes'), all "
            f"integers, all floats or all text, got {classes!r}. They are not read from the "
            "records, because that would release them without noise."
        )
    return labels


def places_of(labels: Any, classes: NDArray[Any]) -> Array:
    """Where each label is among the classes, -1 if it is not there, ``n``."""
    if classes.dtype.kind == "U":
        known = {label: place for place, label in enumerate(classes.tolist())}
        found = [known.get(each, -1) if isinstance(each, str) else -1 for each in labels]
        return np.array(found, dtype=np.float64)
    equal = np.asarray(labels)[:, None] == classes
    return np.where(equal.any(axis=1), equal.argmax(axis=1), -1).astype(np.float64)


def ends_of(
    name: str, bounds: Any, shape: tuple[int, ...]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The ends of public bounds for arrays of this shape."""
    try:
        low, high = (np.broadcast_to(np.asarray(b, dtype=np.float64), shape) for b in bounds)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"`{name}` must be 'private', or (low, high): two numbers or two rows of them, got "
            f"{bounds!r}."
        ) from error
    if not (np.isfinite(low).all() and np.isfinite(high).all() and (low < high).all()):
        raise ValueError(f"`{name}` must be finite, the low ones below the high ones.")
    return low, high
