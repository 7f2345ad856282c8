"""A search with scikit-learn's habits: what it releases, and which of its checks it passes."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer
from sklearn.exceptions import DataConversionWarning
from sklearn.linear_model import Ridge
from sklearn.tree import DecisionTreeClassifier

from botorch_dp.errors import BudgetExhausted
from botorch_dp.integrations.sklearn import PrivateSearchCV, space_of
from botorch_dp.privacy import PrivacyBudget, PrivacyLedger
from botorch_dp.space import Choice, Integer, Real

X, Y = load_breast_cancer(return_X_y=True)
PUBLIC, PRIVATE = (X[:200], Y[:200]), (X[200:], Y[200:])
BUDGET = PrivacyBudget(3.0, 1e-5)


def search(**options: Any) -> PrivateSearchCV:
    settings: dict[str, Any] = {
        "estimator": DecisionTreeClassifier(random_state=0),
        "param_distributions": {"max_depth": stats.randint(1, 8), "criterion": ["gini", "entropy"]},
        "public": PUBLIC, "budget": BUDGET, "n_iter": 8, **options,
    }  # fmt: skip
    return PrivateSearchCV(
        settings.pop("estimator"), settings.pop("param_distributions"), **settings
    )


def test_it_releases_what_a_search_of_scikit_learn_does() -> None:
    found = search().fit(*PRIVATE)
    assert set(found.best_params_) == {"max_depth", "criterion"}
    assert 0.5 < found.best_score_ < 1.3
    assert found.guarantee_.epsilon(1e-5) <= 3.0 * (1 + 1e-9)
    assert "the records in `public`" in str(found.guarantee_)
    assert found.score(*PRIVATE) > 0.8
    assert found.predict_proba(PRIVATE[0]).shape == (369, 2)
    assert not hasattr(found, "cv_results_") and not hasattr(found, "transform")
    assert list(found.classes_) == [0, 1] and found.n_features_in_ == 30
    assert pickle.loads(pickle.dumps(found)).best_params_ == found.best_params_
    assert not hasattr(clone(found), "best_params_")


def test_scores_have_scikit_learns_names_too() -> None:
    accuracy = search(scoring="accuracy", n_iter=4).fit(*PRIVATE).best_score_
    assert 0.5 < accuracy <= 1.0
    assert -0.5 < search(scoring="neg_brier_score", n_iter=4).fit(*PRIVATE).best_score_ <= 0.0
    log = search(scoring="neg_log_loss", bounds=(0.0, 7.0), n_iter=4).fit(*PRIVATE)
    assert -7.0 <= log.best_score_ <= 0.0


def test_lists_frames_and_column_vectors() -> None:
    """A row of another form than the public ones counts as missing, and raises nothing."""
    lists = [row.tolist() for row in PRIVATE[0]]
    for public in (PUBLIC, tuple(each.tolist() for each in PUBLIC)):
        found = search(public=public, unsafe_seed=0).fit(lists, PRIVATE[1].tolist())
        assert found.result_.score.value == search(unsafe_seed=0).fit(*PRIVATE).result_.score.value
    odd: list[Any] = [*lists[:-4], [1.0], "text", None, [object()] * 30]
    assert search(unsafe_seed=0).fit(odd, PRIVATE[1]).best_params_
    with pytest.warns(DataConversionWarning, match="column-vector y"):
        search().fit(PRIVATE[0], PRIVATE[1][:, None])
    with pytest.raises(ValueError, match="have 3 features, but those of `train` have 30"):
        search().fit(PRIVATE[0][:, :3], PRIVATE[1])
    names = [f"x{place}" for place in range(30)]
    frames = [pd.DataFrame(each, columns=names) for each in (PUBLIC[0], PRIVATE[0])]
    found = search(public=(frames[0], PUBLIC[1])).fit(frames[1], PRIVATE[1])
    assert list(found.feature_names_in_) == names
    assert not hasattr(search().fit(*PRIVATE), "feature_names_in_")


def test_a_score_that_was_not_released() -> None:
    found = search(release_score=False, n_iter=4).fit(*PRIVATE)
    assert not hasattr(found, "best_score_")
    with pytest.raises(AttributeError, match="with True it is, for a share of the budget"):
        _ = found.best_score_


def test_regression_needs_bounds() -> None:
    space = {"alpha": stats.loguniform(1e-3, 10.0)}
    given: dict[str, Any] = {"estimator": Ridge(), "param_distributions": space}
    with pytest.raises(ValueError, match="`bounds` is missing"):
        search(**given, scoring="squared").fit(*PRIVATE)
    found = search(**given, scoring="squared", bounds=(0.0, 4.0)).fit(*PRIVATE)
    assert found.best_score_ < 1.0


def test_a_fit_is_charged_once_and_continued(tmp_path: Path) -> None:
    with PrivacyLedger(budget=PrivacyBudget(3.0, 1e-5)) as ledger:
        first = search().fit(*PRIVATE, ledger=ledger, checkpoint=tmp_path / "run")
        again = search().fit(*PRIVATE, ledger=ledger, checkpoint=tmp_path / "run")
        assert first.best_params_ == again.best_params_
        with pytest.raises(BudgetExhausted):
            search().fit(*PRIVATE, ledger=ledger)
    assert "Budget" in str(search().plan(*PRIVATE))


def test_what_may_be_tried() -> None:
    space = space_of(
        {
            "a": ["x", "y"], "b": [(8,), (8, 8)], "c": np.array([1.0, 2.0]), "d": (True, None),
            "e": stats.uniform(1.0, 2.0), "f": stats.loguniform(0.1, 1.0), "g": stats.randint(2, 5),
            "h": Choice([[8], [8, 8]]), "i": Integer(1, 3),
        }
    )  # fmt: skip
    assert space.parameters == {
        "a": Choice("x", "y"), "b": Choice((8,), (8, 8)), "c": Choice(1.0, 2.0),
        "d": Choice(True, None), "e": Real(1.0, 3.0), "f": Real(0.1, 1.0, log=True),
        "g": Integer(2, 4), "h": Choice((8,), (8, 8)), "i": Integer(1, 3),
    }  # fmt: skip
    for wrong in ({"a": stats.norm()}, {"a": 3}, {}, [{"a": [1]}], 3):
        with pytest.raises(TypeError, match="`param_distributions"):
            space_of(wrong)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        (
            {"scoring": "balanced_accuracy"},
            ValueError,
            r"compares records with each other, .*tuning\.md",
        ),
        ({"scoring": "neg_log_loss"}, ValueError, "of the log loss"),
    ],
)
def test_refused(options: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        search(**options).fit(*PRIVATE)
