"""A search with scikit-learn's habits on records that must not leak, and its private estimators.

Needs the extra ``sklearn``.
"""

from __future__ import annotations

import copy
import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import issparse
from torch import Tensor, nn

from botorch_dp._checks import check_choice, needs_extra
from botorch_dp.privacy import PrivacyBudget, PrivacyLedger, PrivacyUnit, Receipt, Release
from botorch_dp.privacy.digests import digest_if_any
from botorch_dp.privacy.ledger import check_payment, release_through
from botorch_dp.scores import per_record_scores, warn_caller
from botorch_dp.space import Choice, Integer, Parameter, Real, SearchSpace
from botorch_dp.training import (
    DPTrainer,
    TrainingPlan,
    TrainingSettings,
    TrainTest,
    cross_entropy_loss,
    multilayer_perceptron,
)
from botorch_dp.tuning import PrivateSearch

with needs_extra("sklearn", "`botorch_dp.integrations.sklearn`"):
    from sklearn.base import (
        BaseEstimator,
        ClassifierMixin,
        MetaEstimatorMixin,
        RegressorMixin,
        clone,
    )
    from sklearn.frozen import FrozenEstimator
    from sklearn.pipeline import Pipeline
    from sklearn.utils import get_tags
    from sklearn.utils.metaestimators import available_if
    from sklearn.utils.validation import check_is_fitted, validate_data

_PUBLIC = "the records in `public`, which all models are fitted to, are public"
#: Losses within 0 and 1, whose complement is the score.
_SHARES = ("zero_one", "brier", "roc_auc", "f1")
_LOSSES = (*_SHARES, "log", "squared", "absolute")
#: scikit-learn's names, the losses they mean, and its scores that compare records.
_NAMES = {"accuracy": "zero_one", "neg_log_loss": "log", "neg_brier_score": "brier"}
_COMPARING = ("balanced_accuracy", "average_precision", "precision", "recall", "r2")


def _delegated(name: str) -> Any:
    def exists(search: PrivateSearchCV) -> bool:
        getattr(getattr(search, "best_estimator_", search.estimator), name)
        return True

    def method(self: PrivateSearchCV, X: Any) -> Any:
        check_is_fitted(self)
        return getattr(self.best_estimator_, name)(X)

    method.__name__ = name
    method.__doc__ = f"``best_estimator_.{name}(X)``."
    return available_if(exists)(method)


class PrivateSearchCV(MetaEstimatorMixin, BaseEstimator):
    """A randomized search whose validation records are protected.

    It stands where ``RandomizedSearchCV`` does, with one difference: models are fitted to
    ``public`` records, and scored on the records that ``fit`` is given, which are sensitive. One
    configuration is released, by :class:`~botorch_dp.tuning.PrivateSearch`. There is no
    ``cv_results_``: the scores of all configurations are as sensitive as the records.

    Guarantee: that of :class:`~botorch_dp.tuning.PrivateSearch`, (epsilon, delta)-DP at the budget
    under replace-one for each ``fit``, given that ``public`` is public.

    Args:
        estimator: Of scikit-learn, such as a pipeline.
        param_distributions: By the names of ``set_params``: a ``Real``, ``Integer`` or ``Choice``
            of :mod:`botorch_dp.space`, a list of values, or ``scipy.stats.uniform``,
            ``loguniform`` or ``randint``. Or a :class:`~botorch_dp.space.SearchSpace`.
        public: ``(X, y)`` to fit to. Required.
        budget: What one ``fit`` may spend. Required.
        n_iter: How many configurations the records may be scored at. Where they are compared by a
            selection, the estimator's own settings are among them.
        scoring: A loss of :func:`~botorch_dp.objectives.per_record_scores` by its name:
            ``"zero_one"``, ``"brier"``, ``"roc_auc"``, ``"f1"``; or ``"log"``, ``"squared"`` and
            ``"absolute"``, which need bounds. Or ``"accuracy"``, ``"neg_brier_score"`` and
            ``"neg_log_loss"``, as scikit-learn has them.
        bounds: Public bounds ``(lo, hi)`` of the loss of a record; (0, 1) for the first four.
        labels_are_public: See :func:`~botorch_dp.objectives.per_record_scores`.
        release_score: Whether to release the score of the configuration too, for a share of the
            budget.
        unsafe_seed: Simulate with reproducible noise; nothing is promised then.

    Attributes:
        best_params_: The released configuration.
        best_score_: Its released score, larger is better: one minus the loss where that lies within
            0 and 1 (an accuracy for ``"zero_one"``), otherwise minus the loss. One that noise
            carried beyond its range is the end of the range.
        best_estimator_: Fitted to the public records with these parameters.
        guarantee_: What the last ``fit`` promises for all of it.
        result_: All of this, to print.

    Example:
        >>> search = PrivateSearchCV(
        ...     SVC(), {"C": loguniform(0.1, 100), "kernel": ["rbf", "linear"]},
        ...     public=(public_X, public_y), budget=PrivacyBudget(1.0, 1e-6),
        ... ).fit(X, y)
        >>> search.best_params_, search.best_score_, search.guarantee_
    """

    def __init__(
        self,
        estimator: Any,
        param_distributions: Mapping[str, Any] | SearchSpace,
        *,
        public: tuple[Any, Any] | None = None,
        budget: PrivacyBudget | None = None,
        n_iter: int = 60,
        scoring: str = "zero_one",
        bounds: tuple[float, float] | None = None,
        labels_are_public: bool = False,
        release_score: bool = True,
        unsafe_seed: int | None = None,
    ) -> None:
        self.estimator, self.param_distributions = estimator, param_distributions
        self.public, self.budget, self.n_iter = public, budget, n_iter
        self.scoring, self.bounds, self.labels_are_public = scoring, bounds, labels_are_public
        self.release_score, self.unsafe_seed = release_score, unsafe_seed

    def fit(
        self,
        X: Any,
        y: Any = None,
        *,
        ledger: PrivacyLedger | None = None,
        checkpoint: str | os.PathLike[str] | None = None,
        label: str = "",
    ) -> PrivateSearchCV:
        """Search, and fit the released configuration to the public records.

        Args:
            X: Features of the protected records.
            y: Their targets.
            ledger: Charged before the records are read.
            checkpoint: A file to continue an interrupted search from; it is sensitive.
            label: What it is for, in public words; shown in the ledger.
        """
        if y is None:
            raise ValueError("It requires y to be passed, but the target y is None.")
        train, validation = self._records(X, y)
        search = self._search(train, validation)
        result = search.run(
            checkpoint=checkpoint,
            ledger=ledger,
            label=label,
            release_score=bool(self.release_score),
        )
        self.best_params_ = result.config.value
        self.guarantee_ = result.guarantee
        self.result_ = result
        self.best_estimator_ = clone(self.estimator).set_params(**self.best_params_).fit(*train)
        return self

    def plan(self, X: Any, y: Any) -> Any:
        """Route, price and noise of :meth:`fit`; of the records only the number counts."""
        return self._search(*self._records(X, y)).plan(release_score=bool(self.release_score))

    def receipt(self, **facts: Any) -> Receipt:
        """A document that a stranger can check, of ``best_params_``; with ``release_score`` of
        ``{"config": best_params_, "score": the released loss}``. See :meth:`Receipt.of`.
        """
        check_is_fitted(self)
        return self.result_.receipt(**facts)

    @property
    def best_score_(self) -> float:
        """The released score."""
        if not hasattr(self, "result_"):
            raise AttributeError("`best_score_` is known after `fit`.")
        if self.result_.score is None:
            raise AttributeError(
                "No score was released, because of `release_score=False`: with True it is, for a "
                "share of the budget. `score(X, y)` is exact, and as sensitive as its records."
            )
        loss = float(self.result_.score.value)
        return 1 - loss if self.scoring in (*_SHARES, "accuracy") else -loss

    predict = _delegated("predict")
    predict_proba = _delegated("predict_proba")
    predict_log_proba = _delegated("predict_log_proba")
    decision_function = _delegated("decision_function")
    transform = _delegated("transform")

    def score(self, X: Any, y: Any) -> float:
        """``best_estimator_.score(X, y)``. Sensitive, unless these records are public."""
        check_is_fitted(self)
        return float(self.best_estimator_.score(X, y))

    @property
    def classes_(self) -> Any:
        """The labels in the public records."""
        return self.best_estimator_.classes_

    @property
    def n_features_in_(self) -> int:
        """How many features the public records have."""
        if not hasattr(self, "best_estimator_"):
            raise AttributeError("`n_features_in_` is known after `fit`.")
        return int(self.best_estimator_.n_features_in_)

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "best_estimator_")

    def __sklearn_tags__(self) -> Any:
        tags, inner = super().__sklearn_tags__(), get_tags(self.estimator)
        tags.estimator_type = inner.estimator_type
        tags.classifier_tags, tags.regressor_tags = inner.classifier_tags, inner.regressor_tags
        tags.transformer_tags = inner.transformer_tags
        tags.target_tags.required = True
        tags.input_tags = replace(inner.input_tags, sparse=False)
        tags.non_deterministic = True
        return tags

    def _records(self, X: Any, y: Any) -> tuple[tuple[Any, Any], tuple[Any, Any]]:
        """The public records, and the protected ones."""
        if not isinstance(self.public, tuple) or len(self.public) != 2:
            raise ValueError(
                "`public` must be records (X, y) that may be read without noise: all models are "
                "fitted to them. The records that `fit` is given score the models only."
            )
        return self.public, (X, y)

    def _search(self, train: tuple[Any, Any], validation: tuple[Any, Any]) -> PrivateSearch:
        if not isinstance(self.budget, PrivacyBudget):
            raise TypeError(
                "`budget` must be a PrivacyBudget(epsilon, delta), got "
                f"{type(self.budget).__name__}."
            )
        if issparse(validation[0]):
            raise TypeError("Sparse input is not supported: pass `X.toarray()`, or a data frame.")
        if self.scoring in _COMPARING:
            raise ValueError(
                f"`scoring` = {self.scoring!r} compares records with each other, so that none has "
                'a score of its own: docs/tuning.md, "Which scores it takes", says what to use.'
            )
        check_choice("scoring", self.scoring, (*_LOSSES, *_NAMES))
        loss = _NAMES.get(self.scoring, self.scoring)
        bounds = self.bounds
        if bounds is None:
            if loss not in _SHARES:
                raise ValueError(
                    f"`bounds` is missing: (lo, hi) of the {loss} loss of a record. It is "
                    "not read from the records, because that would release it without noise."
                )
            bounds = (0.0, 1.0)
        space = space_of(self.param_distributions)
        scores = per_record_scores(
            self.estimator,
            space,
            train,
            validation,
            loss,  # type: ignore[arg-type]
            labels_are_public=self.labels_are_public,
        )
        return PrivateSearch(
            scores,
            space,
            bounds=bounds,
            budget=self.budget,
            evaluations=self.n_iter,
            unit=PrivacyUnit().given(_PUBLIC),
            unsafe_seed=self.unsafe_seed,
        )


def space_of(given: Mapping[str, Any] | SearchSpace) -> SearchSpace:
    """A search space of what scikit-learn's searches take.

    Example:
        >>> from scipy.stats import loguniform
        >>> space_of({"C": loguniform(0.1, 10.0), "kernel": ["rbf", "linear"]}).parameters["C"]
        Real(low=0.1, high=10.0, log=True, distribution=None, active=None)
    """
    if isinstance(given, SearchSpace):
        return given
    if not isinstance(given, Mapping) or not given:
        raise TypeError(
            "`param_distributions` must be a SearchSpace, or parameters by name with what each of "
            f"them may be; got {type(given).__name__}."
        )
    found = {name: _parameter(name, each) for name, each in given.items()}
    return SearchSpace(constraints=(), products=(), **found)


def _parameter(name: str, given: Any) -> Parameter:
    if isinstance(given, Real | Integer | Choice):
        return given
    if isinstance(given, np.ndarray):
        given = given.tolist()
    if isinstance(given, list | tuple):
        return Choice(list(given))
    kind = getattr(getattr(given, "dist", None), "name", None)
    if kind in ("uniform", "loguniform", "reciprocal"):
        low, high = map(float, given.support())
        return Real(low, high, log=kind != "uniform")
    if kind == "randint":
        least, most = map(int, given.support())
        return Integer(least, most)
    raise TypeError(
        f"`param_distributions[{name!r}]` must be a Real, an Integer or a Choice, a list, or "
        f"scipy.stats.uniform, loguniform or randint; got {kind or type(given).__name__}."
    )


# --- Private estimators. ---

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
        check_payment(ledger, unsafe_seed=self.unsafe_seed)
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

        self.model_ = release_through(
            ledger,
            plan.guarantee,
            train,
            label=label,
            delta=None if ledger is None or ledger.budget.renyi else self.delta,
        )
        self.guarantee_ = plan.guarantee if self.unsafe_seed is None else plan.guarantee.simulated()
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
