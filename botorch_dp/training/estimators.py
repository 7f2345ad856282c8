r"""Private classifiers and regressors with scikit-learn's habits.

What scikit-learn reads from the data must be said here, because it would be released without noise:
the bounds of the features and of the targets, and the labels of the classes. Values beyond the
bounds count as the bounds; a record with a value that is not finite, or with another label, counts
as none. Nothing that one record says raises an error.

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
from collections.abc import Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import issparse
from torch import Tensor, nn

from botorch_dp._checks import check_count, check_delta, check_integer, check_positive, needs_extra
from botorch_dp.privacy import Guarantee, NeighboringRelation, PrivacyLedger, gaussian_mu
from botorch_dp.privacy.ledger import check_payment
from botorch_dp.training.networks import cross_entropy_loss, multilayer_perceptron
from botorch_dp.training.output_perturbation import OutputPerturbedLogisticRegression
from botorch_dp.training.plan import Clipping, TrainingPlan, make_plan
from botorch_dp.training.records import TrainTest
from botorch_dp.training.trainer import DPTrainer

with needs_extra("sklearn", "`botorch_dp.training.estimators`"):
    from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
    from sklearn.utils.validation import check_is_fitted, column_or_1d, validate_data


class _Private(BaseEstimator):
    """What the estimators share: public bounds, one release for each fit."""

    epsilon: float
    delta: float
    bounds: Any
    unsafe_seed: int | None

    def _checked(self, X: ArrayLike, y: ArrayLike) -> tuple[NDArray[np.float64], NDArray[Any]]:
        """Features and targets, of which the form alone was looked at."""
        check_positive("epsilon", self.epsilon)
        check_delta("delta", self.delta)
        if self.unsafe_seed is not None:
            check_integer("unsafe_seed", self.unsafe_seed, at_least=0)
        features = self._features(X, reset=True)
        if y is None:
            raise ValueError("It requires y to be passed, but the target y is None.")
        targets = _array("y", y)
        if targets.ndim > 1:
            targets = column_or_1d(targets, warn=True)
        if targets.shape != (len(features),):
            raise ValueError(
                f"`y` must have one target for each of {len(features)} records, got shape "
                f"{targets.shape}."
            )
        self._limits()
        return features, targets

    def _features(self, X: ArrayLike, *, reset: bool = False) -> NDArray[np.float64]:
        # The form alone, before scikit-learn looks: its messages quote values.
        if not issparse(X):
            array = _array("X", X)
            if array.dtype.kind == "c":
                raise ValueError("`X` must be real numbers. Complex data not supported.")
            if array.dtype.kind not in "biuf":
                raise TypeError(
                    f"`X` holds values of type {array.dtype}: whether they are numbers would show "
                    "in an error. Convert it."
                )
            if array.ndim != 2:
                raise ValueError(
                    f"`X` must be n x d, got shape {array.shape}. Reshape your data: one row for "
                    "each record."
                )
        try:
            checked: NDArray[np.float64] = validate_data(
                self, X, reset=reset, dtype=np.float64, ensure_all_finite=False
            )
        except (TypeError, ValueError) as error:
            raise type(error)(f"`X`: {error}") from error
        return checked

    def _limits(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        return _bounds("bounds", self.bounds, (self.n_features_in_,))

    def _scaled(self, features: NDArray[np.float64]) -> NDArray[np.float32]:
        """Within -1 and 1; NaN stays NaN, and what is infinite becomes NaN."""
        low, high = self._limits()
        inside = np.clip(features, low, high)
        finite = np.where(np.isfinite(features), inside, np.nan)
        return ((2 * finite - low - high) / (high - low)).astype(np.float32)

    def _release(self, guarantee: Guarantee, train: Any, ledger: PrivacyLedger | None) -> Any:
        """What ``train`` returns: charged first, and read and noised in there."""
        if ledger is None:
            return train()
        check_payment(ledger, unsafe_seed=self.unsafe_seed)
        return ledger.release(
            guarantee,
            lambda noisy: noisy,
            read=train,
            label=f"{type(self).__name__}, {guarantee.mechanism}",
            delta=None if ledger.budget.renyi else self.delta,
        )


class _Network(_Private):
    """A network, or a linear model, trained by DP-SGD without a learning rate to choose."""

    _clipping: Clipping = "normalized"
    #: What the scale-free rule is given beside its defaults.
    _rule: Mapping[str, float] = MappingProxyType({})

    hidden: Sequence[int]
    epochs: int
    batch_size: int

    def plan(self, num_records: int) -> TrainingPlan:
        """What a fit to so many records would do, and its guarantee, at no cost."""
        check_count("num_records", num_records)
        return make_plan(
            self._settings(num_records),
            num_records=num_records,
            optimizer="scale_free",
            clipping=self._clipping,
            sampling="poisson",
            relation=NeighboringRelation.REPLACE_ONE,
        )

    def _settings(self, num_records: int) -> Any:
        batch_size = min(check_integer("batch_size", self.batch_size), num_records)
        settings: dict[str, Any] = {"target_epsilon": self.epsilon, "batch_size": batch_size}
        return {**settings, **self._rule, "epochs": self.epochs, "delta": self.delta}

    def _train(
        self,
        features: NDArray[np.float64],
        targets: Any,
        outputs: int,
        loss: Any,
        ledger: PrivacyLedger | None,
    ) -> None:
        """Fit; ``targets`` returns them as a tensor, when it is time to read them."""
        n = len(features)
        plan = self.plan(n)
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
                clipping=self._clipping,
                metric=lambda outputs, targets: 0.0,
            )
            settings = self._settings(n)
            if self.unsafe_seed is None:
                trained = trainer.fit(publish=True, on_interrupt="raise", **settings)
            else:
                trained = trainer.fit(seed=self.unsafe_seed, on_interrupt="raise", **settings)
            return dict(trained.model.state_dict())

        weights = self._release(plan.guarantee, train, ledger)
        self.model_: nn.Module = factory().eval()
        self.model_.load_state_dict(weights)
        self.guarantee_ = plan.guarantee if self.unsafe_seed is None else plan.guarantee.simulated()
        self.n_iter_ = plan.steps

    def _outputs(self, X: ArrayLike) -> Tensor:
        check_is_fitted(self)
        scaled = torch.from_numpy(self._scaled(self._features(X)))
        # In double precision a row's output does not show which other rows were asked about.
        model = copy.deepcopy(self.model_).double()
        with torch.no_grad():
            return model(scaled.double().nan_to_num(0.0))


class DPClassifier(ClassifierMixin, _Network):
    """A logistic regression or a network, trained by DP-SGD.

    Guarantee: that of :class:`~botorch_dp.training.DPTrainer` on Poisson batches under replace-one,
    at most ``(epsilon, delta)`` for each fit; clipping features to public bounds and looking up
    public labels are computed from each record alone, before it.

    Args:
        epsilon: What one fit costs at ``delta``.
        delta: See ``epsilon``.
        bounds: ``(low, high)`` of the features: two numbers, or one of each for each feature.
            Public: not read from the data.
        classes: The labels. Public: not read from the data.
        hidden: Widths of hidden layers; none is a logistic regression.
        epochs: Passes over the records.
        batch_size: Expected records in a step.
        unsafe_seed: Simulate with reproducible noise; nothing is promised then.

    Attributes:
        model_: The network, for features scaled to -1 and 1. Released.
        guarantee_: What the last fit promises; it covers ``model_`` and all predictions.
        classes_: The labels, sorted.

    Example:
        >>> classifier = DPClassifier(1.0, bounds=(0.0, 10.0), classes=("no", "yes"))
        >>> classifier.plan(num_records=2000).epsilon <= 1.0
        True
    """

    def __init__(
        self,
        epsilon: float = 1.0,
        *,
        delta: float = 1e-5,
        bounds: Any = (-1.0, 1.0),
        classes: Sequence[Any] = (0, 1),
        hidden: Sequence[int] = (),
        epochs: int = 20,
        batch_size: int = 128,
        unsafe_seed: int | None = None,
    ) -> None:
        self.epsilon, self.delta = epsilon, delta
        self.bounds, self.classes = bounds, classes
        self.hidden, self.epochs, self.batch_size = hidden, epochs, batch_size
        self.unsafe_seed = unsafe_seed

    def fit(
        self, X: ArrayLike, y: ArrayLike, *, ledger: PrivacyLedger | None = None
    ) -> DPClassifier:
        """Train, and release the model; a second fit is a second release.

        Args:
            X: Features, ``n x d``.
            y: Labels, ``n``; a record with a label that is not among ``classes`` counts as none.
            ledger: Charged before a record is read.
        """
        features, labels = self._checked(X, y)
        self.classes_ = _labels(self.classes)
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


class DPRegressor(RegressorMixin, _Network):
    """A linear regression or a network for squared errors, trained by DP-SGD.

    Guarantee: as :class:`DPClassifier`.

    Args:
        epsilon: What one fit costs at ``delta``.
        delta: See ``epsilon``.
        bounds: ``(low, high)`` of the features. Public: not read from the data.
        target_bounds: ``(low, high)`` of the targets, and of predictions. Public as well.
        hidden: Widths of hidden layers; none is a linear regression.
        epochs: Passes over the records.
        batch_size: Expected records in a step.
        unsafe_seed: Simulate with reproducible noise; nothing is promised then.

    Example:
        >>> regressor = DPRegressor(1.0, bounds=(0.0, 10.0), target_bounds=(0.0, 100.0))
        >>> regressor.plan(num_records=2000).epsilon <= 1.0
        True
    """

    # Scaled targets ask for weights of about 1, and for steps that shrink with the error.
    _clipping = "flat"
    _rule: Mapping[str, float] = MappingProxyType({"clip_norm": 1.0, "learning_rate": 2.0})

    def __init__(
        self,
        epsilon: float = 1.0,
        *,
        delta: float = 1e-5,
        bounds: Any = (-1.0, 1.0),
        target_bounds: tuple[float, float] = (-1.0, 1.0),
        hidden: Sequence[int] = (),
        epochs: int = 20,
        batch_size: int = 128,
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
            y: Targets, ``n``.
            ledger: Charged before a record is read.
        """
        features, values = self._checked(X, y)
        if values.dtype.kind not in "biuf":
            raise ValueError(f"`y` must be numbers, got {values.dtype}: unknown label type.")
        low, high = _bounds("target_bounds", self.target_bounds, ())

        def targets() -> Tensor:
            real = values.astype(np.float64)
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


class OutputPerturbedClassifier(ClassifierMixin, _Private):
    """:class:`~botorch_dp.training.OutputPerturbedLogisticRegression` as an estimator.

    Guarantee: noise on the weights, exactly as much as ``(epsilon, delta)`` asks for; features are
    clipped to public bounds and scaled to a norm of at most 1, each record by itself.

    Args:
        epsilon: What one fit costs at ``delta``.
        delta: See ``epsilon``.
        bounds: ``(low, high)`` of the features. Public: not read from the data.
        classes: The two labels. Public as well.
        regularization: Strength of the quadratic penalty; more of it needs less noise.
        epochs: Passes over the records.
        unsafe_seed: Simulate with reproducible noise; nothing is promised then.

    Example:
        >>> OutputPerturbedClassifier(1.0, bounds=(0.0, 10.0), classes=("no", "yes"))
        OutputPerturbedClassifier(bounds=(0.0, 10.0), classes=('no', 'yes'))
    """

    def __init__(
        self,
        epsilon: float = 1.0,
        *,
        delta: float = 1e-5,
        bounds: Any = (-1.0, 1.0),
        classes: Sequence[Any] = (0, 1),
        regularization: float = 0.01,
        epochs: int = 10,
        unsafe_seed: int | None = None,
    ) -> None:
        self.epsilon, self.delta = epsilon, delta
        self.bounds, self.classes = bounds, classes
        self.regularization, self.epochs = regularization, epochs
        self.unsafe_seed = unsafe_seed

    def fit(
        self, X: ArrayLike, y: ArrayLike, *, ledger: PrivacyLedger | None = None
    ) -> OutputPerturbedClassifier:
        """Train, and release the weights; a second fit is a second release.

        Args:
            X: Features, ``n x d``.
            y: Labels, ``n``; a record with another label than the two counts as a zero row.
            ledger: Charged before a record is read.
        """
        features, labels = self._checked(X, y)
        self.classes_ = _labels(self.classes)
        if len(self.classes_) != 2:
            raise ValueError(f"`classes` must be two labels, got {len(self.classes_)}.")
        n, width = features.shape
        empty = torch.zeros(n, width + 1), torch.zeros(n)
        form = OutputPerturbedLogisticRegression(
            TrainTest(*empty, *empty), epochs=self.epochs, delta=self.delta
        )
        sensitivity = form.sensitivity(regularization=self.regularization)
        noise_std = sensitivity / gaussian_mu(self.epsilon, self.delta)
        settings: dict[str, Any] = {"regularization": self.regularization, "noise_std": noise_std}

        def train() -> Tensor:
            places = _places(labels, self.classes_)
            X = self._rows(features)
            X[places < 0] = 0.0
            data = TrainTest(X, places.clamp_min(0), X[:1], places[:1])
            exact = OutputPerturbedLogisticRegression(data, epochs=self.epochs, delta=self.delta)
            if self.unsafe_seed is None:
                trained = exact.fit(publish=True, **settings)
            else:
                trained = exact.fit(seed=self.unsafe_seed, **settings)
            weights: Tensor = trained.model.weight.detach().squeeze(0)  # type: ignore[operator]
            return weights

        guarantee = form.guarantee(**settings)
        self.weights_ = self._release(guarantee, train, ledger)
        self.guarantee_ = guarantee if self.unsafe_seed is None else guarantee.simulated()
        return self

    def decision_function(self, X: ArrayLike) -> NDArray[np.float64]:
        """The scores of the second label, ``n``."""
        check_is_fitted(self)
        rows = self._rows(self._features(X)).double()
        scores: NDArray[np.float64] = (rows @ self.weights_.double()).numpy()
        return scores

    def predict_proba(self, X: ArrayLike) -> NDArray[np.float64]:
        """Probabilities of the two labels, ``n x 2``."""
        second = 1 / (1 + np.exp(-self.decision_function(X)))
        return np.stack([1 - second, second], axis=1)

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """The more probable labels, ``n``."""
        places = (self.decision_function(X) > 0).astype(int)
        labels: NDArray[Any] = self.classes_[places]
        return labels

    def _rows(self, features: NDArray[np.float64]) -> Tensor:
        """Scaled features and a constant, of norm at most 1, ``n x (d + 1)``."""
        scaled = torch.from_numpy(self._scaled(features))
        usable = scaled.isfinite().all(dim=1, keepdim=True)
        rows = torch.cat([scaled, torch.ones(len(scaled), 1)], dim=1) / scaled.shape[1] ** 0.5
        return torch.where(usable, OutputPerturbedLogisticRegression.scaled(rows), 0.0)


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


def _labels(classes: Sequence[Any]) -> NDArray[Any]:
    labels = np.unique(np.asarray(list(classes)))
    if len(labels) < 2 or len(labels) < len(list(classes)):
        raise ValueError(f"`classes` must be at least two different labels, got {classes!r}.")
    return labels


def _places(labels: NDArray[Any], classes: NDArray[Any]) -> Tensor:
    """Where each label is among the classes, -1 if it is not there, ``n``."""
    equal = labels[:, None] == classes[None, :]
    found = np.where(equal.any(axis=1), equal.argmax(axis=1), -1)
    return torch.from_numpy(found)


def _bounds(
    name: str, bounds: Any, shape: tuple[int, ...]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
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
