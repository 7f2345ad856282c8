"""A search with scikit-learn's habits on records that must not leak.

Needs the extra ``sklearn``.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from scipy.sparse import issparse

from botorch_dp._checks import check_choice, needs_extra, warn_caller
from botorch_dp.estimator_scores import per_record_scores
from botorch_dp.privacy import PrivacyBudget, PrivacyLedger, PrivacyUnit, Receipt
from botorch_dp.space import Choice, Integer, Parameter, Real, SearchSpace
from botorch_dp.tuning import PrivateSearch

with needs_extra("sklearn", "`botorch_dp.integrations.sklearn`"):
    from sklearn.base import BaseEstimator, MetaEstimatorMixin, clone
    from sklearn.exceptions import DataConversionWarning
    from sklearn.utils import get_tags
    from sklearn.utils.metaestimators import available_if
    from sklearn.utils.validation import check_is_fitted

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
        unsafe_seed: Simulate with reproducible noise; nothing is guaranteed then.

    Attributes:
        best_params_: The released configuration.
        best_score_: Its released score, larger is better: one minus the loss where that lies within
            0 and 1 (an accuracy for ``"zero_one"``), otherwise minus the loss. One that noise
            carried beyond its range is the end of the range.
        best_estimator_: Fitted to the public records with these parameters.
        guarantee_: The guarantee of the last ``fit``, for all of it.
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
        groups: Any = None,
        ledger: PrivacyLedger | None = None,
        checkpoint: str | os.PathLike[str] | None = None,
        label: str = "",
    ) -> PrivateSearchCV:
        """Search, and fit the released configuration to the public records.

        Args:
            X: Features of the protected records.
            y: Their targets.
            groups: Whose each record is, where people have several: one identifier for each. A
                person with all of their records is then protected.
            ledger: Charged before the records are read.
            checkpoint: A file to continue an interrupted search from; it is sensitive.
            label: What it is for, in public words; shown in the ledger.
        """
        if y is None:
            raise ValueError("It requires y to be passed, but the target y is None.")
        if getattr(y, "shape", ())[1:] == (1,):
            message = "A column-vector y was passed when a 1d array was expected."
            warn_caller(message, DataConversionWarning)
        train, validation = self._records(X, y)
        search = self._search(train, validation, groups)
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

    def plan(self, X: Any, y: Any, *, groups: Any = None) -> Any:
        """Method, cost and noise of :meth:`fit`; of the records only the number counts."""
        return self._search(*self._records(X, y), groups).plan(release_score=self.release_score)

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
    inverse_transform = _delegated("inverse_transform")
    score_samples = _delegated("score_samples")

    def score(self, X: Any, y: Any) -> float:
        """``best_estimator_.score(X, y)``. Sensitive, unless these records are public."""
        check_is_fitted(self)
        return float(self.best_estimator_.score(X, y))

    @property
    def classes_(self) -> Any:
        """The labels in the public records."""
        return self.best_estimator_.classes_

    @property
    def feature_names_in_(self) -> Any:
        """The names of the public records' columns, where they are a data frame."""
        return self.best_estimator_.feature_names_in_

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
        if tags.classifier_tags is not None:
            tags.classifier_tags = replace(tags.classifier_tags, multi_label=False)
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

    def _search(self, train: Any, validation: Any, groups: Any) -> PrivateSearch:
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
            groups=groups,
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
