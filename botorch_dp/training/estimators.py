r"""Private classifiers and regressors with scikit-learn's habits.

What scikit-learn reads from the data must be said here, because it would be released without noise:
the bounds of the features and of the targets, and the labels of the classes. None of them has a
default. Values beyond the bounds count as the bounds; a record with a value that is no finite
number, or with another label, counts as none. Nothing that one record says raises an error.

The type of an array is public, and a wrong one is refused. Lists of labels, arrays of objects and
data frames are read element by element: what one record holds decides nothing about the others.

A scaler of scikit-learn in front of a private estimator publishes means and deviations of the
records without noise. :class:`BoundedScaler` scales by bounds and reads nothing.

Each ``fit`` is a release of its own: it draws new noise from the operating system, and is charged
to the ledger that is passed to ``fit`` (in a pipeline ``fit(X, y, dpclassifier__ledger=ledger)``).
A ledger is no parameter, because ``clone`` would copy it, and two copies would spend one budget
twice. Cross-validation and grid search fit many times, and promise what all these fits cost.

Of scikit-learn's own checks, these do not apply and are excluded in the tests: those that ask for
an error where a value is NaN or infinite, for classes read from the targets, for arrays of objects,
and for the same model from the same data.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import issparse
from torch import Tensor, nn

from botorch_dp._checks import check_count, check_delta, check_integer, check_positive, needs_extra
from botorch_dp.privacy import (
    Guarantee,
    NeighboringRelation,
    PrivacyLedger,
    Receipt,
    Release,
    release_through,
    warn_large_delta,
)
from botorch_dp.privacy.ledger import check_payment
from botorch_dp.scores import as_numbers, column, equal_labels, warn_caller
from botorch_dp.training.networks import cross_entropy_loss, multilayer_perceptron
from botorch_dp.training.plan import TrainingPlan, make_plan
from botorch_dp.training.records import TrainTest
from botorch_dp.training.trainer import DPTrainer
from botorch_dp.training.untuned import SuggestedSettings, suggest_settings

with needs_extra("sklearn", "`botorch_dp.training.estimators`"):
    from sklearn.base import (
        BaseEstimator,
        ClassifierMixin,
        OneToOneFeatureMixin,
        RegressorMixin,
        TransformerMixin,
    )
    from sklearn.frozen import FrozenEstimator
    from sklearn.pipeline import Pipeline
    from sklearn.utils import get_tags
    from sklearn.utils.validation import check_is_fitted, column_or_1d, validate_data


#: How far features are from 0 where bounds scale them to between -1 and 1: between those that fill
#: their bounds evenly (0.58) and those that lie at them (1).
_FILLED = 0.7
#: Conditions of everything that is trained here.
_CHOSEN = (
    "the {what} were chosen without looking at the records",
    "whatever changed the features before (a scaler, an encoding, a selection) was chosen, and "
    "fitted, without these records",
)
_FOR_EXAMPLE = {
    "bounds": "(low, high) of the features, such as (0.0, 10.0) or two rows of them",
    "target_bounds": "(low, high) of the targets, such as (0.0, 100.0)",
    "classes": 'the labels, such as (0, 1) or ("no", "yes")',
}


class _Bounded(BaseEstimator):
    """What has public bounds of the features."""

    bounds: Any

    def _features(self, X: ArrayLike, *, reset: bool = False) -> NDArray[np.float64]:
        """Features as doubles, NaN where there is no number, of which only the form is checked."""
        if not issparse(X):
            if isinstance(X, list | tuple):
                raise TypeError(
                    f"`X` is a {type(X).__name__}, whose form would be read from its records. Pass "
                    "an array, numpy.array(X, dtype=float), or a data frame."
                )
            # The form alone, before scikit-learn looks: its messages quote values.
            array = _array("X", X)
            if hasattr(X, "iloc") and array.dtype.kind == "c":
                array = array.astype(object)  # which pandas makes of one complex number
            if array.dtype.kind == "c":
                raise ValueError("`X` must be real numbers. Complex data not supported.")
            if array.dtype.kind not in "biufO":
                raise TypeError(f"`X` must be numbers, got values of type {array.dtype}.")
            if array.ndim != 2:
                raise ValueError(
                    f"`X` must be n x d, got shape {array.shape}. Reshape your data: one row for "
                    "each record."
                )
            if array.dtype.kind == "O":
                array = as_numbers(array)
                X = _named_like(X, array)
        try:
            checked: NDArray[np.float64] = validate_data(
                self, X, reset=reset, dtype=np.float64, ensure_all_finite=False
            )
        except (TypeError, ValueError) as error:
            raise type(error)(f"`X`: {error}") from error
        # Sums round by the order in memory, which must not be that of one record's column.
        return np.ascontiguousarray(checked)

    def _limits(self, width: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        return _bounds("bounds", self.bounds, (width,))

    def _within(self, features: NDArray[np.float64]) -> NDArray[np.float64]:
        """Within -1 and 1; NaN stays NaN, and what is infinite becomes NaN."""
        low, high = self._limits(features.shape[1])
        inside = np.clip(features, low, high)
        finite = np.where(np.isfinite(features), inside, np.nan)
        return (2 * finite - low - high) / (high - low)


class BoundedScaler(OneToOneFeatureMixin, TransformerMixin, _Bounded):
    """Features scaled to -1 and 1 by public bounds; nothing is read from the records.

    In a pipeline before a private estimator, in place of ``StandardScaler`` or ``MinMaxScaler``,
    whose means, deviations and extremes would be published without noise. The estimator then has
    the bounds (-1, 1). Each record is scaled by itself: values beyond the bounds count as the
    bounds, and what is no finite number becomes NaN.

    Args:
        bounds: ``(low, high)`` of the features: two numbers, or one of each for each feature.

    Example:
        >>> pipeline = make_pipeline(
        ...     BoundedScaler(([0, 0], [120, 1e6])), DPClassifier(bounds=(-1, 1), classes=(0, 1))
        ... )
    """

    def __init__(self, bounds: Any = None) -> None:
        self.bounds = bounds

    def fit(self, X: ArrayLike, y: Any = None) -> BoundedScaler:
        """Check the bounds, and how many features there are."""
        self._limits(self._features(X, reset=True).shape[1])
        return self

    def transform(self, X: ArrayLike) -> NDArray[np.float64]:
        """Features within -1 and 1, ``n x d``."""
        return self._within(self._features(X, reset=not hasattr(self, "n_features_in_")))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.requires_fit = False
        tags.input_tags.allow_nan = True
        return tags


class _Private(_Bounded):
    """A network, or a linear model, trained by DP-SGD with nothing to choose but epsilon."""

    epsilon: float
    delta: float
    hidden: Sequence[int]
    epochs: int | None
    batch_size: int | None
    unsafe_seed: int | None
    guarantee_: Guarantee
    model_: nn.Module
    #: What must be said of the records, beside the bounds of the features.
    _stated = "classes"

    def _checked(self, X: ArrayLike, y: ArrayLike) -> tuple[NDArray[np.float64], NDArray[Any]]:
        """Features and targets, of which the form alone was looked at."""
        check_positive("epsilon", self.epsilon)
        check_delta("delta", self.delta)
        if self.unsafe_seed is not None:
            check_integer("unsafe_seed", self.unsafe_seed, at_least=0)
        for name in ("bounds", self._stated):
            if getattr(self, name) is None:
                raise ValueError(
                    f"`{name}` is missing: {_FOR_EXAMPLE[name]}. It is not read from the records, "
                    "because that would release it without noise."
                )
        features = self._features(X, reset=True)
        if y is None:
            raise ValueError("It requires y to be passed, but the target y is None.")
        targets = column(y) if isinstance(y, list | tuple) else _array("y", y)
        if hasattr(y, "iloc") and targets.dtype.kind not in "biuf":
            targets = targets.astype(object)  # one label decides which type pandas takes for all
        if targets.ndim > 1:
            targets = column_or_1d(targets, warn=True)
        if targets.shape != (len(features),):
            raise ValueError(
                f"`y` must have one target for each of {len(features)} records, got shape "
                f"{targets.shape}."
            )
        self._limits(features.shape[1])
        warn_large_delta(self.delta, len(features))
        _warn_of_fitted_steps(self)
        return features, targets

    def receipt(self, **facts: Any) -> Receipt:
        """A document that a stranger can check, of what was learnt in the last fit.

        Its digest is that of ``model_``; see :meth:`Receipt.of` for the ``facts``.
        """
        check_is_fitted(self)
        known: dict[str, Any] = {
            "settings": "fixed beforehand",
            "training": self.plan_.parameters(self.n_iter_),
        }
        return Receipt.of(Release(self.model_, self.guarantee_), **{**known, **facts})

    def _conditions(self) -> tuple[str, ...]:
        """What rests on the caller."""
        what = {"classes": "labels of the classes", "target_bounds": "bounds of the targets"}
        stated = f"bounds of the features and the {what[self._stated]}"
        return tuple(condition.format(what=stated) for condition in _CHOSEN)

    def _scaled(self, features: NDArray[np.float64]) -> NDArray[np.float32]:
        return self._within(features).astype(np.float32)

    def plan(self, num_records: int, num_features: int | None = None) -> TrainingPlan:
        """What a fit to so many records would do, and its guarantee, at no cost.

        Args:
            num_records: Training records.
            num_features: Features of a record; after a fit, or if ``bounds`` are rows, they are
                known.
        """
        return self._plan(num_records, self._width(num_features))

    def _plan(self, num_records: int, num_features: int) -> TrainingPlan:
        suggested = self._suggested(num_records, num_features)
        plan = make_plan(
            self._settings(num_records, suggested),
            num_records=num_records,
            optimizer="scale_free",
            clipping="flat",
            sampling="poisson",
            relation=NeighboringRelation.REPLACE_ONE,
            conditions=self._conditions(),
        )
        for warning in suggested.warnings:
            warn_caller(warning)
        return replace(plan, notes=suggested.reasons)

    @property
    def _outputs_of_one(self) -> int:
        """Scores of a record."""
        return 1

    def _width(self, num_features: int | None) -> int:
        """How many features a record has."""
        if num_features is not None:
            return check_count("num_features", num_features)
        if hasattr(self, "n_features_in_"):
            return int(self.n_features_in_)
        try:
            return max(np.size(bound) for bound in self.bounds)
        except TypeError:
            raise ValueError(f"`bounds` is missing: {_FOR_EXAMPLE['bounds']}.") from None

    def _suggested(self, num_records: int, num_features: int) -> SuggestedSettings:
        """The rule's settings, for features that lie between -1 and 1 by their bounds."""
        k, hidden = self._outputs_of_one, tuple(self.hidden)
        widths = (num_features, *hidden, k)
        return suggest_settings(
            num_records=num_records,
            num_features=num_features,
            epsilon=self.epsilon,
            delta=self.delta,
            num_outputs=k,
            num_parameters=sum((a + 1) * b for a, b in pairwise(widths)),
            layers=1 + len(hidden),
            feature_norm=_FILLED * num_features**0.5,
            regression=self._stated == "target_bounds",
        )

    def _settings(self, num_records: int, suggested: SuggestedSettings) -> Any:
        own: dict[str, Any] = {"target_epsilon": self.epsilon, "delta": self.delta}
        if self.batch_size is not None:
            own["batch_size"] = min(check_integer("batch_size", self.batch_size), num_records)
        if self.epochs is not None:
            own["epochs"] = self.epochs
        return {**suggested.settings, **own}

    def _train(
        self,
        features: NDArray[np.float64],
        targets: Any,
        outputs: int,
        loss: Any,
        ledger: PrivacyLedger | None,
    ) -> None:
        """Fit; ``targets`` returns them as a tensor, when it is time to read them."""
        check_payment(ledger, unsafe_seed=self.unsafe_seed)
        n = len(features)
        plan = self._plan(n, self.n_features_in_)
        plan.check_publishable()
        factory = partial(multilayer_perceptron, self.n_features_in_, outputs, tuple(self.hidden))

        def train() -> dict[str, Tensor]:
            X, Y = torch.from_numpy(self._scaled(features)), targets()
            data = TrainTest(X, Y, torch.zeros_like(X[:1]), torch.zeros_like(Y[:1]))
            trainer = DPTrainer(
                factory,
                loss,
                data,
                optimizer="scale_free",
                metric=lambda outputs, targets: 0.0,
            )
            settings = self._settings(n, self._suggested(n, self.n_features_in_))
            if self.unsafe_seed is None:
                trained = trainer.fit(publish=True, on_interrupt="raise", **settings)
            else:
                trained = trainer.fit(seed=self.unsafe_seed, on_interrupt="raise", **settings)
            return dict(trained.model.state_dict())

        weights = release_through(
            ledger,
            plan.guarantee,
            lambda noisy: noisy,
            read=train,
            label=f"{type(self).__name__}, {plan.guarantee.mechanism}",
            delta=None if ledger is None or ledger.budget.renyi else self.delta,
        )
        with torch.device("cpu"):  # where the features are
            self.model_ = factory().eval()
        self.model_.load_state_dict(weights)
        self.guarantee_ = plan.guarantee if self.unsafe_seed is None else plan.guarantee.simulated()
        self.n_iter_, self.plan_ = plan.steps, plan

    def _outputs(self, X: ArrayLike) -> Tensor:
        check_is_fitted(self)
        scaled = torch.from_numpy(self._scaled(self._features(X)))
        # In double precision a row's output does not show which other rows were asked about.
        model = copy.deepcopy(self.model_).double()
        with torch.no_grad():
            return model(scaled.double().nan_to_num(0.0))


class DPClassifier(ClassifierMixin, _Private):
    """A logistic regression or a network, trained by DP-SGD.

    Guarantee: that of :class:`~botorch_dp.training.DPTrainer` on Poisson batches under replace-one,
    at most ``(epsilon, delta)`` for each fit; clipping features to public bounds and looking up
    public labels are computed from each record alone, before it.

    Args:
        epsilon: What one fit costs at ``delta``.
        delta: See ``epsilon``.
        bounds: ``(low, high)`` of the features: two numbers, or one of each for each feature.
            Public: not read from the data, and required.
        classes: The labels. Public and required as well.
        hidden: Widths of hidden layers; none is a logistic regression.
        epochs: Passes over the records; by :func:`~.untuned.suggest_settings` if None.
        batch_size: Expected records in a step; the same.
        unsafe_seed: Simulate with reproducible noise; nothing is promised then.

    Attributes:
        model_: The network, for features scaled to -1 and 1. Released.
        guarantee_: What the last fit promises; it covers ``model_`` and all predictions.
        classes_: The labels, sorted.

    Example:
        >>> classifier = DPClassifier(1.0, bounds=(0.0, 10.0), classes=("no", "yes"))
        >>> classifier.plan(num_records=2000, num_features=5).epsilon <= 1.0
        True
    """

    def __init__(
        self,
        epsilon: float = 1.0,
        *,
        delta: float = 1e-5,
        bounds: Any = None,
        classes: Sequence[Any] | None = None,
        hidden: Sequence[int] = (),
        epochs: int | None = None,
        batch_size: int | None = None,
        unsafe_seed: int | None = None,
    ) -> None:
        self.epsilon, self.delta = epsilon, delta
        self.bounds, self.classes = bounds, classes
        self.hidden, self.epochs, self.batch_size = hidden, epochs, batch_size
        self.unsafe_seed = unsafe_seed

    @property
    def _outputs_of_one(self) -> int:
        if self.classes is None:
            raise ValueError(f"`classes` is missing: {_FOR_EXAMPLE['classes']}.")
        return len(self.classes)

    def fit(
        self, X: ArrayLike, y: ArrayLike, *, ledger: PrivacyLedger | None = None
    ) -> DPClassifier:
        """Train, and release the model; a second fit is a second release.

        Args:
            X: Features, ``n x d``.
            y: Labels, ``n``; a record with a label that is not among ``classes`` counts as none. Of
                a list or an array of objects, each label is compared on its own.
            ledger: Charged before a record is read.
        """
        features, labels = self._checked(X, y)
        self.classes_ = _labels(self.classes)
        _check_kind(labels, self.classes_)
        self._train(
            features,
            lambda: _places(labels, self.classes_),
            len(self.classes_),
            cross_entropy_loss,
            ledger,
        )
        return self

    def predict_proba(self, X: ArrayLike) -> NDArray[np.float64]:
        """Probabilities of the classes, ``n x k``; missing features count as the middle."""
        probabilities: NDArray[np.float64] = self._outputs(X).softmax(dim=1).numpy()
        return probabilities

    def decision_function(self, X: ArrayLike) -> NDArray[np.float64]:
        """Scores of the classes, ``n x k``; of two classes, the second's over the first, ``n``."""
        scores: NDArray[np.float64] = self._outputs(X).numpy()
        return scores[:, 1] - scores[:, 0] if scores.shape[1] == 2 else scores

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """The most probable labels, ``n``."""
        places = self._outputs(X).argmax(dim=1).numpy()
        labels: NDArray[Any] = self.classes_[places]
        return labels


class DPRegressor(RegressorMixin, _Private):
    """A linear regression or a network for squared errors, trained by DP-SGD.

    Guarantee: as :class:`DPClassifier`.

    Args:
        epsilon: What one fit costs at ``delta``.
        delta: See ``epsilon``.
        bounds: ``(low, high)`` of the features. Public: not read from the data, and required.
        target_bounds: ``(low, high)`` of the targets, and of predictions. Public and required as
            well.
        hidden: Widths of hidden layers; none is a linear regression.
        epochs: Passes over the records; by :func:`~.untuned.suggest_settings` if None.
        batch_size: Expected records in a step; the same.
        unsafe_seed: Simulate with reproducible noise; nothing is promised then.

    Example:
        >>> regressor = DPRegressor(1.0, bounds=(0.0, 10.0), target_bounds=(0.0, 100.0))
        >>> regressor.plan(num_records=2000, num_features=5).epsilon <= 1.0
        True
    """

    _stated = "target_bounds"

    def __init__(
        self,
        epsilon: float = 1.0,
        *,
        delta: float = 1e-5,
        bounds: Any = None,
        target_bounds: tuple[float, float] | None = None,
        hidden: Sequence[int] = (),
        epochs: int | None = None,
        batch_size: int | None = None,
        unsafe_seed: int | None = None,
    ) -> None:
        self.epsilon, self.delta = epsilon, delta
        self.bounds, self.target_bounds = bounds, target_bounds
        self.hidden, self.epochs, self.batch_size = hidden, epochs, batch_size
        self.unsafe_seed = unsafe_seed

    def fit(
        self, X: ArrayLike, y: ArrayLike, *, ledger: PrivacyLedger | None = None
    ) -> DPRegressor:
        """Train, and release the model; a second fit is a second release.

        Args:
            X: Features, ``n x d``.
            y: Targets, ``n``; a record with a target that is no finite number counts as none.
            ledger: Charged before a record is read.
        """
        features, values = self._checked(X, y)
        if values.dtype.kind not in "biufO":
            raise ValueError(f"`y` must be numbers, got {values.dtype}: unknown label type.")
        low, high = _bounds("target_bounds", self.target_bounds, ())

        def targets() -> Tensor:
            real = as_numbers(values)
            inside = np.where(np.isfinite(real), np.clip(real, low, high), np.nan)
            return torch.from_numpy(((2 * inside - low - high) / (high - low)).astype(np.float32))

        self._train(features, targets, 1, _squared_error, ledger)
        return self

    def predict(self, X: ArrayLike) -> NDArray[np.float64]:
        """Predictions within the bounds of the targets, ``n``."""
        scaled = self._outputs(X).squeeze(-1).clamp(-1, 1).numpy()
        low, high = _bounds("target_bounds", self.target_bounds, ())
        predicted: NDArray[np.float64] = (scaled * (high - low) + low + high) / 2
        return predicted


def _named_like(X: Any, values: NDArray[np.float64]) -> Any:
    """The values with the names that a data frame gives its columns."""
    return type(X)(values, columns=X.columns) if hasattr(X, "iloc") else values


def _array(name: str, value: Any) -> NDArray[Any]:
    """``value`` as an array; why it cannot be one is not said, for the reason may quote it."""
    try:
        return np.asarray(value)
    except Exception:
        raise TypeError(
            f"`{name}` must be an array of numbers or labels, got {type(value).__name__}."
        ) from None


def _squared_error(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs.squeeze(-1) - targets).square()


def _labels(classes: Any) -> NDArray[Any]:
    given = list(classes)
    labels = np.unique(np.asarray(given))
    if len(labels) < 2 or len(labels) < len(given):
        raise ValueError(f"`classes` must be at least two different labels, got {classes!r}.")
    if labels.dtype.kind not in "biufU" or len({isinstance(each, str) for each in given}) > 1:
        raise ValueError(f"`classes` must be all numbers or all text, got {classes!r}.")
    return labels


def _check_kind(labels: NDArray[Any], classes: NDArray[Any]) -> None:
    """Refuse arrays whose type, which is public, cannot be that of the classes."""
    kinds = "biuf" if classes.dtype.kind in "biuf" else "U"
    if labels.dtype.kind not in kinds + "O":
        raise TypeError(
            f"`y` has the type {labels.dtype}, which none of `classes` has: {list(classes)}. "
            "Convert it, or name its labels."
        )


def _places(labels: NDArray[Any], classes: NDArray[Any]) -> Tensor:
    """Where each label is among the classes, -1 if it is not there, ``n``.

    Objects are compared one by one: what one label is changes nothing for another one.
    """
    equal = np.stack([equal_labels(labels, each) for each in classes.tolist()], axis=1)
    found = np.where(equal.any(axis=1), equal.argmax(axis=1), -1)
    return torch.from_numpy(found)


def _warn_of_fitted_steps(estimator: _Private) -> None:
    """Warn if a pipeline fits something to the records before the estimator.

    An estimator is not told which pipeline it is fitted in: that is looked up among its callers.
    """
    inner, frame = estimator, inspect.currentframe()
    while frame is not None:
        outer = frame.f_locals.get("self")
        if isinstance(outer, Pipeline) and outer.steps[-1][1] is inner:
            fitted = [
                type(step).__name__
                for _, step in outer.steps[:-1]
                if step not in (None, "passthrough")
                and not isinstance(step, FrozenEstimator)
                and get_tags(step).requires_fit
            ]
            if fitted:
                warn_caller(
                    f"{', '.join(fitted)} before {type(estimator).__name__} is fitted to the "
                    "sensitive records without noise: the means, deviations or categories that it "
                    "learns are published with the model, and no guarantee covers them. Use "
                    "BoundedScaler(bounds), or fit it on public data and freeze it."
                )
            inner = outer
        frame = frame.f_back


def _bounds(
    name: str, bounds: Any, shape: tuple[int, ...]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    if bounds is None:
        raise ValueError(f"`{name}` is missing: {_FOR_EXAMPLE[name]}.")
    try:
        low, high = (np.broadcast_to(np.asarray(b, dtype=np.float64), shape) for b in bounds)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"`{name}` must be (low, high), two numbers"
            + (f" or two rows of {shape[0]}" if shape else "")
            + f"; got {bounds!r}."
        ) from error
    if not (np.isfinite(low).all() and np.isfinite(high).all() and (low < high).all()):
        raise ValueError(f"`{name}` must be finite, the low ones below the high ones.")
    return low, high
