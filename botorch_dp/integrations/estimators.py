"""Private estimators with scikit-learn's habits: a linear model or a network, trained by DP-SGD.

Needs the extra ``sklearn``.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from botorch_dp._checks import needs_extra, warn_caller
from botorch_dp.privacy import PrivacyLedger, Receipt, Release
from botorch_dp.privacy.digests import digest_if_any
from botorch_dp.privacy.ledger import make_release
from botorch_dp.training import (
    DPTrainer,
    TrainingPlan,
    TrainingSettings,
    TrainTest,
    cross_entropy_loss,
    multilayer_perceptron,
)

with needs_extra("sklearn", "`botorch_dp.integrations.estimators`"):
    from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
    from sklearn.frozen import FrozenEstimator
    from sklearn.pipeline import Pipeline
    from sklearn.utils import get_tags
    from sklearn.utils.validation import check_is_fitted, validate_data

#: How far features are from 0 where bounds scale them to between -1 and 1: between those that fill
#: their bounds evenly (0.58) and those that lie at them (1).
_FILLED = 0.7
_CHOSEN = (
    "the bounds of the features and the {stated} were chosen without looking at the records",
    "whatever changed the features before (a scaler, an encoding, a selection) was chosen, and "
    "fitted, without these records",
    "no single record decides the type of a column",
)
#: Kinds of NumPy's types, and what they are.
_KINDS = {"biuf": "numbers", "biu": "integers, as `classes` are", "f": "floats, as `classes` are"}
_KINDS["UO"] = "text, as `classes` are"
_STATED = {"classes": "labels of the classes", "target_bounds": "bounds of the targets"}


class _PrivateEstimator(BaseEstimator):
    """A linear model or a network, trained by :class:`DPTrainer` with nothing to choose.

    What scikit-learn reads from the data is public here and has no default: the bounds of the
    features and of the targets, and the labels of the classes. Values beyond the bounds count as
    the bounds; a record with a value that is not finite, or with another label, counts as none.
    Arrays of a wrong type are refused by their type, and nothing is refused for a value.

    Each ``fit`` is a release of its own: it draws new noise and is charged to the ledger that is
    passed to ``fit`` (in a pipeline ``fit(X, y, dpclassifier__ledger=ledger)``). A ledger is no
    parameter, because ``clone`` would copy it, and two copies would spend one budget twice.
    """

    epsilon: float
    delta: float
    bounds: Any
    hidden: Sequence[int]
    epochs: int | None
    batch_size: int | None
    unsafe_seed: int | None
    #: What must be said of the targets.
    _stated: str
    _loss: Any

    def _parameters(self) -> tuple[int, torch.dtype]:
        """The outputs of a record and the type of its target; raises for wrong parameters."""
        raise NotImplementedError

    def plan(self, num_records: int, num_features: int) -> TrainingPlan:
        """What a fit to so many records would do, and its guarantee, at no cost."""
        return self._plan(self._trainer(num_records, num_features), num_features)

    def _trainer(self, num_records: int, num_features: int) -> DPTrainer:
        """A trainer on as many records of zeros."""
        outputs, kind = self._parameters()
        factory = partial(multilayer_perceptron, num_features, outputs, tuple(self.hidden))
        X = torch.zeros(1, num_features, device="cpu").expand(num_records, -1)
        Y = torch.zeros(1, 1, dtype=kind, device="cpu").expand(num_records, -1)
        return DPTrainer(factory, type(self)._loss, TrainTest(X, Y[:, 0] if outputs > 1 else Y))

    def _settings(self, num_features: int) -> TrainingSettings:
        norm = _FILLED * num_features**0.5
        settings: TrainingSettings = {"target_epsilon": self.epsilon, "feature_norm": norm}
        settings["delta"] = self.delta
        if self.batch_size is not None:
            settings["batch_size"] = self.batch_size
        if self.epochs is not None:
            settings["epochs"] = self.epochs
        return settings

    def _plan(self, trainer: DPTrainer, num_features: int) -> TrainingPlan:
        plan = trainer.plan(**self._settings(num_features))
        conditions = (each.format(stated=_STATED[self._stated]) for each in _CHOSEN)
        return replace(plan, conditions=tuple(conditions))

    def _fit(
        self,
        X: ArrayLike,
        y: Any,
        targets: Callable[[], Tensor],
        ledger: PrivacyLedger | None,
        label: str,
    ) -> None:
        """Train; ``targets`` is called when it is time to read the records."""
        features = self._features(X, reset=True)
        n, width = features.shape
        if np.shape(y) != (n,):
            raise ValueError(f"`y` must be one target for each of {n} records, got {np.shape(y)}.")
        trainer = self._trainer(n, width)
        plan = self._plan(trainer, width)
        plan.check_publishable()
        _warn_of_fitted_steps(self)

        def train() -> nn.Module:
            told = trainer.on(TrainTest(self._scaled(features), targets()))
            seed = self.unsafe_seed
            how: Any = {"publish": seed is None, "seed": seed, "on_interrupt": "raise"}
            return told.fit(**how, **self._settings(width)).model

        released = make_release(
            plan.guarantee,
            train,
            ledger=ledger,
            label=label,
            delta=None if ledger is None or ledger.budget.renyi else self.delta,
            unsafe_seed=self.unsafe_seed,
        )
        self.model_, self.guarantee_ = released.value, released.guarantee
        self.n_iter_, self.plan_, self._digest = plan.steps, plan, digest_if_any(self.model_)

    def receipt(self, **facts: Any) -> Receipt:
        """A document that a stranger can check, of what was learnt in the last fit.

        Its digest is that of ``model_``; see :meth:`Receipt.of` for the ``facts``.
        """
        check_is_fitted(self)
        training = self.plan_.parameters(self.n_iter_)
        known = {"training": training, "settings": self.plan_.origin}
        release = Release(self.model_, self.guarantee_, digest=self._digest)
        return Receipt.of(release, **{**known, **facts})

    def _features(self, X: Any, *, reset: bool = False) -> NDArray[np.float64]:
        """Features as doubles. scikit-learn's messages quote values, so the form comes first."""
        _check_type("X", X, "biuf")
        if X.ndim != 2:
            raise ValueError(f"`X` must be n x d, got {X.shape}. Reshape your data.")
        checked: NDArray[np.float64] = validate_data(
            self, X, reset=reset, dtype=np.float64, ensure_all_finite=False
        )
        _within(checked[:0], "bounds", self.bounds)
        return checked

    def _scaled(self, features: NDArray[np.float64]) -> Tensor:
        return torch.from_numpy(_within(features, "bounds", self.bounds).astype(np.float32))

    def _outputs(self, X: ArrayLike) -> Tensor:
        check_is_fitted(self)
        scaled = self._scaled(self._features(X)).double().nan_to_num(0.0)
        with torch.no_grad():
            return copy.deepcopy(self.model_).double()(scaled)


class DPClassifier(ClassifierMixin, _PrivateEstimator):
    """A logistic regression or a network, trained by DP-SGD.

    Guarantee: that of :class:`~botorch_dp.training.DPTrainer` on Poisson batches under replace-one,
    at most ``(epsilon, delta)`` for each fit; clipping features to public bounds and looking up
    public labels are computed from each record alone, before it.

    Args:
        epsilon: What one fit costs at ``delta``.
        delta: See ``epsilon``.
        bounds: ``(low, high)`` of the features: two numbers, or one of each for each feature.
            Public: not read from the data, and required.
        classes: The labels, all integers, all floats or all text. Public and required as well.
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

    _stated = "classes"
    _loss = staticmethod(cross_entropy_loss)

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

    def _parameters(self) -> tuple[int, torch.dtype]:
        return len(_labels(self.classes)), torch.long

    def fit(
        self, X: ArrayLike, y: Any, *, ledger: PrivacyLedger | None = None, label: str = ""
    ) -> DPClassifier:
        """Train, and release the model; a second fit is a second release.

        Args:
            X: Features, ``n x d``, of numbers.
            y: Labels, ``n``, of the type of ``classes``; a record with another label counts as
                none.
            ledger: Charged before a record is read.
            label: What it is for, in public words; shown in the ledger.
        """
        self.classes_ = _labels(self.classes)
        kind = self.classes_.dtype.kind
        _check_type("y", y, {"U": "UO", "f": "f"}.get(kind, "biu"))
        self._fit(X, y, lambda: _places(y, self.classes_), ledger, label)
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


class DPRegressor(RegressorMixin, _PrivateEstimator):
    """A linear regression or a network for squared errors, trained by DP-SGD.

    Guarantee: as :class:`DPClassifier`.

    Args:
        epsilon: As for :class:`DPClassifier`, also the other ones.
        delta: As there.
        bounds: As there.
        target_bounds: ``(low, high)`` of the targets, and of predictions. Public and required.
        hidden: As there.
        epochs: As there.
        batch_size: As there.
        unsafe_seed: As there.

    Example:
        >>> regressor = DPRegressor(1.0, bounds=(0.0, 10.0), target_bounds=(0.0, 100.0))
        >>> regressor.plan(num_records=2000, num_features=5).epsilon <= 1.0
        True
    """

    _stated = "target_bounds"
    _loss = staticmethod(torch.nn.functional.mse_loss)

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

    def _parameters(self) -> tuple[int, torch.dtype]:
        _within(np.zeros(0), "target_bounds", self.target_bounds)
        return 1, torch.float32

    def fit(
        self, X: ArrayLike, y: Any, *, ledger: PrivacyLedger | None = None, label: str = ""
    ) -> DPRegressor:
        """Train, and release the model; a second fit is a second release.

        Args:
            X: Features, ``n x d``, of numbers.
            y: Targets, ``n``; a record with a target that is not finite counts as none.
            ledger: Charged before a record is read.
            label: What it is for, in public words; shown in the ledger.
        """
        _check_type("y", y, "biuf")

        def targets() -> Tensor:
            scaled = _within(np.asarray(y, dtype=np.float64), "target_bounds", self.target_bounds)
            return torch.from_numpy(scaled.astype(np.float32)).unsqueeze(1)

        self._fit(X, y, targets, ledger, label)
        return self

    def predict(self, X: ArrayLike) -> NDArray[np.float64]:
        """Predictions within the bounds of the targets, ``n``."""
        scaled = self._outputs(X).squeeze(-1).clamp(-1, 1).numpy()
        low, high = _ends("target_bounds", self.target_bounds, ())
        predicted: NDArray[np.float64] = (scaled * (high - low) + low + high) / 2
        return predicted


def _check_type(name: str, value: Any, kinds: str) -> None:
    """Refuse an array or a data frame whose columns are of other kinds, whatever they hold."""
    if not hasattr(value, "dtype") and not hasattr(value, "dtypes"):
        raise ValueError(
            f"`{name}`: {name} should be a {'2d' if name == 'X' else '1d'} array or a data frame, "
            f"got {type(value).__name__}. The type of a list would be read from its records."
        )
    for each in [value.dtype] if hasattr(value, "dtype") else value.dtypes:
        kind = getattr(each, "kind", "")
        # Nullable numbers of pandas become objects where one of them is missing.
        if kind not in kinds or (kind != "O" and not isinstance(each, np.dtype)):
            raise ValueError(
                f"`{name}` must be {_KINDS[kinds]}, got a column of type {each}: unknown label "
                "type, or Complex data not supported. Convert it."
            )


def _labels(classes: Any) -> NDArray[Any]:
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


def _places(labels: Any, classes: NDArray[Any]) -> Tensor:
    """Where each label is among the classes, -1 if it is not there, ``n``."""
    if classes.dtype.kind == "U":
        known = {label: place for place, label in enumerate(classes.tolist())}
        found = [known.get(each, -1) if isinstance(each, str) else -1 for each in labels]
        return torch.tensor(found, device="cpu")
    equal = np.asarray(labels)[:, None] == classes
    return torch.from_numpy(np.where(equal.any(axis=1), equal.argmax(axis=1), -1))


def _ends(
    name: str, bounds: Any, shape: tuple[int, ...]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The ends of public bounds for arrays of this shape."""
    try:
        low, high = (np.broadcast_to(np.asarray(b, dtype=np.float64), shape) for b in bounds)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"`{name}` must be (low, high), two numbers or two rows of them, got {bounds!r}. It is "
            "not read from the records, because that would release it without noise."
        ) from error
    if not (np.isfinite(low).all() and np.isfinite(high).all() and (low < high).all()):
        raise ValueError(f"`{name}` must be finite, the low ones below the high ones.")
    return low, high


def _within(values: NDArray[np.float64], name: str, bounds: Any) -> NDArray[np.float64]:
    """Within -1 and 1 by public bounds; what is not finite becomes NaN."""
    low, high = _ends(name, bounds, values.shape[1:])
    inside = np.where(np.isfinite(values), np.clip(values, low, high), np.nan)
    return (2 * inside - low - high) / (high - low)


def _warn_of_fitted_steps(estimator: _PrivateEstimator) -> None:
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
                    "sensitive records without noise: what it learns is published with the model, "
                    "and no guarantee covers it. Leave it out, and state `bounds`; or fit it to "
                    "public data and freeze it."
                )
            inner = outer
        frame = frame.f_back
