"""scikit-learn's own checks of estimators; those that fail do so for the reason that is given."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.tree import DecisionTreeClassifier
from sklearn.utils.estimator_checks import check_estimator

from botorch_dp.integrations.estimators import DPClassifier, DPRegressor, PrivateScaler
from botorch_dp.integrations.sklearn import PrivateSearchCV
from botorch_dp.privacy import PrivacyBudget

pytestmark = pytest.mark.filterwarnings("ignore:Skipping check")
_NO_TYPE = "records are read by their type, which is public; such an object has none"
#: Of the search.
SEARCH = {
    "check_complex_data": "complex numbers are refused by their type, in other words",
    "check_classifier_data_not_an_array": _NO_TYPE,
    "check_regressor_data_not_an_array": _NO_TYPE,
}


def failures(estimator: Any, expected: dict[str, str]) -> dict[str, str]:
    """Checks that fail without being expected to, and those that are expected to and pass."""
    results = check_estimator(estimator, expected_failed_checks=expected, on_fail=None)
    assert sum(result["status"] == "passed" for result in results) > 35
    found = {each["check_name"]: str(each["exception"]) for each in results}
    odd = {each["check_name"] for each in results if each["status"] == "failed"}
    return {name: found[name] for name in odd} | {
        each["check_name"]: "passes, and is expected to fail"
        for each in results
        if each["status"] == "passed" and each["check_name"] in expected
    }


#: Of estimators.
ESTIMATOR = {
    "check_dtype_object": "texts and objects are refused by their type, before a cell is read",
    "check_classifier_data_not_an_array": _NO_TYPE,
    "check_regressor_data_not_an_array": _NO_TYPE,
    "check_transformer_data_not_an_array": _NO_TYPE,
    "check_classifiers_regression_target": "classes are stated; another label counts as none",
}
_INFINITE = "one infinite target raises nothing, because an error would tell of its record"


class OfTheirClasses(DPClassifier):
    """For checks that have other labels each time: they are stated."""

    def fit(self, X: Any, y: Any, **options: Any) -> DPClassifier:
        stated, labels = self.classes, np.asarray(y)
        if labels.dtype.kind in "biufUO" and labels.ndim and len(set(labels.flat)) > 1:
            self.classes = np.unique(labels)
        try:
            return super().fit(X, y, **options)
        finally:
            self.classes = stated


@pytest.mark.one_in(4)
@pytest.mark.parametrize(
    "estimator",
    [
        OfTheirClasses(
            50.0, classes=(0, 1), bounds=(-5.0, 5.0), shape="linear", delta=1e-3, unsafe_seed=0
        ),
        OfTheirClasses(50.0, classes=(0, 1), delta=1e-3, unsafe_seed=0),
        DPRegressor(50.0, delta=1e-3, unsafe_seed=0),
        PrivateScaler(3.0, delta=1e-4, unsafe_seed=0),
    ],
    ids=["linear classifier", "classifier", "regressor", "scaler"],
)
def test_an_estimator(estimator: Any) -> None:
    own = {"check_supervised_y_no_nan": _INFINITE} if isinstance(estimator, DPRegressor) else {}
    assert failures(estimator, {**ESTIMATOR, **own}) == {}


class OnTheSame(PrivateSearchCV):
    """For checks whose records have another form each time: all of them are public, too."""

    def _records(self, X: Any, y: Any) -> Any:
        return copy.deepcopy((X, y)), (X, y)


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("estimator", "tried", "scoring", "bounds"),
    [
        (DecisionTreeClassifier(random_state=0), {"max_depth": [2, 3]}, "accuracy", None),
        (LogisticRegression(), {"C": [0.5, 2.0]}, "accuracy", None),
        (Ridge(), {"alpha": [0.5, 2.0]}, "squared", (0.0, 9.0)),
    ],
    ids=["tree", "logistic", "ridge"],
)
def test_a_search(estimator: Any, tried: Any, scoring: str, bounds: Any) -> None:
    given = OnTheSame(
        estimator, tried, budget=PrivacyBudget(9.0, 1e-3), n_iter=2, scoring=scoring,
        bounds=bounds, unsafe_seed=0,
    )  # fmt: skip
    assert failures(given, SEARCH) == {}
