"""Scores whose unit is a person with many records: means within the bounds, one for each person."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.datasets import load_breast_cancer
from sklearn.linear_model import LogisticRegression
from sklearn.tree import DecisionTreeClassifier
from torch import Tensor

from botorch_dp.descent import DPGIBO
from botorch_dp.errors import PrivacyError
from botorch_dp.integrations.sklearn import PrivateSearchCV
from botorch_dp.models import kernels
from botorch_dp.objectives import PrivateObjective, per_record_scores
from botorch_dp.privacy import PrivacyBudget, PrivacyLedger, PrivacyUnit
from botorch_dp.space import Integer, Real, SearchSpace
from botorch_dp.tuning import PrivateSearch

N = 60
IDS = np.random.default_rng(0).permutation(
    np.repeat(np.arange(12), [1, 1, 1, 2, 2, 3, 3, 4, 5, 8, 10, 20])
)
RECORDS = torch.linspace(-1, 1, N, dtype=torch.double)
POINTS = torch.tensor([[0.1], [0.7]], dtype=torch.double)
BUDGET = PrivacyBudget(3.0, 1e-6)
SPACE = SearchSpace(x=Real(-1.0, 1.0), y=Real(-1.0, 1.0), z=Real(-1.0, 1.0))


def distances(X: Tensor) -> Tensor:
    """From -0.4 to 3.2, and some no numbers."""
    found = 2 * (X - RECORDS).abs() - 0.4
    found[:, 7::11] = math.nan
    return found


def losses(configs: Any) -> Tensor:
    return torch.stack(
        [distances(torch.tensor([[c["x"] + c["y"]]]))[0] + c["z"] ** 2 for c in configs]
    )


def of_people(function: Any, worst: float) -> Any:
    """By hand: NaN is the worse bound, all are clipped to (0, 1), then averaged by person."""

    def scores(X: Any) -> Tensor:
        within = function(X).nan_to_num(worst).clamp(0.0, 1.0)
        owners = list(dict.fromkeys(IDS.tolist()))
        places = [np.flatnonzero(IDS == owner)[:4] for owner in owners]
        return torch.stack([within[:, own].mean(dim=1) for own in places], dim=1)

    return scores


@pytest.mark.parametrize("negate", [False, True])
def test_an_objective_is_the_mean_of_means(negate: bool) -> None:
    how: dict[str, Any] = {"bounds": (0.0, 1.0), "mu": 0.5, "negate": negate, "unsafe_seed": 3}
    people = PrivateObjective(distances, groups=IDS, per_group=4, **how)
    by_hand = PrivateObjective(of_people(distances, float(negate)), num_records=12, **how)
    assert people.num_records == 12 and people.noise_std == by_hand.noise_std
    for Y, expected in zip(people(POINTS), by_hand(POINTS), strict=True):
        torch.testing.assert_close(Y, expected, rtol=0, atol=1e-14)


@pytest.mark.parametrize("maximize", [False, True])
@pytest.mark.parametrize("method", ["selection", "slope", "descent"])
def test_a_search_is_that_of_the_means(method: str, maximize: bool) -> None:
    how: dict[str, Any] = {"bounds": (0.0, 1.0), "budget": BUDGET, "evaluations": 24}
    how |= {"method": method, "maximize": maximize, "unsafe_seed": 1}
    people = PrivateSearch(losses, SPACE, groups=IDS, per_group=4, **how)
    by_hand = PrivateSearch(of_people(losses, float(not maximize)), SPACE, num_records=12, **how)
    assert "With 12 people" in str(people.plan()) or method == "selection"
    found = people.run(release_score=True).config.value
    assert found == pytest.approx(by_hand.run(release_score=True).config.value, abs=1e-9)


def test_whom_it_protects() -> None:
    ledger = PrivacyLedger(budget=BUDGET)
    objective = PrivateObjective.for_budget(
        distances, bounds=(0.0, 1.0), ledger=ledger, evaluations=4, groups=IDS, per_group=4
    )
    unit = PrivacyUnit.of_person(4).protects
    objective(POINTS)
    assert ledger.entries()[0].guarantee.protects == unit
    assert objective.plan().guarantee.protects == unit and "With 12 people" in str(objective.plan())
    found = PrivateSearch(
        losses,
        SPACE,
        bounds=(0.0, 1.0),
        budget=BUDGET,
        evaluations=8,
        groups=IDS,
        unit=PrivacyUnit(conditions=("the weather is fine",)),
    ).run()
    assert found.guarantee.protects == PrivacyUnit.of_person(16).protects
    conditions = " ".join(found.guarantee.conditions)
    assert "number of people is public" in conditions and "the weather is fine" in conditions
    assert found.receipt().verify().passes


X, Y = load_breast_cancer(return_X_y=True)
PUBLIC, PRIVATE = (X[:200], Y[:200]), (X[200:], Y[200:])
PATIENTS = np.arange(369) // 3


def test_scores_of_an_estimator_carry_their_groups() -> None:
    space = SearchSpace(C=Real(1e-3, 10.0, log=True))
    how: Any = (LogisticRegression(max_iter=5000), space, PUBLIC, PRIVATE, "brier")
    scores = per_record_scores(*how, groups=PATIENTS, per_group=2)
    assert scores([{"C": 1.0}]).shape == (1, 369)
    search = PrivateSearch(scores, space, bounds=(0.0, 1.0), budget=BUDGET, evaluations=8)
    assert search.settings.num_records == 123 and search.settings.incumbent == {"C": 1.0}
    assert search.settings.unit.protects == PrivacyUnit.of_person(2).protects
    assert PrivateObjective(scores, bounds=(0.0, 1.0), mu=0.1).num_records == 123
    trees = per_record_scores(
        DecisionTreeClassifier(),
        SearchSpace(max_depth=Integer(1, 9)),
        PUBLIC,
        PRIVATE,
        groups=PATIENTS,
    )
    options: Any = {"bounds": (0.0, 1.0), "budget": BUDGET, "evaluations": 8}
    assert PrivateSearch(trees, SearchSpace(max_depth=Integer(1, 9)), **options).settings.has_steps
    other = PrivateObjective(scores, bounds=(0.0, 1.0), mu=0.1, groups=PATIENTS // 2)
    assert other.num_records == 62
    ranked = per_record_scores(*how[:-1], "roc_auc", groups=PATIENTS)
    with pytest.raises(ValueError, match="no person has a score"):
        PrivateObjective(ranked, bounds=(0.0, 1.0), mu=0.1)
    with pytest.raises(TypeError, match="PrivateObjective and PrivateSearch take"):
        how = {"kernel": kernels.RBFKernel(), "mu": 1.0, "steps": 2, "clip_norm": 1.0}
        DPGIBO(scores, torch.zeros(1, dtype=torch.double), **how)


def test_a_search_with_scikit_learns_habits() -> None:
    search = PrivateSearchCV(
        LogisticRegression(max_iter=5000),
        {"C": [0.01, 1.0]},
        public=PUBLIC,
        budget=BUDGET,
        n_iter=4,
        unsafe_seed=0,
    )
    plan = search.plan(*PRIVATE, groups=PATIENTS)
    found = search.fit(*PRIVATE, groups=PATIENTS)
    for guarantee in (plan.guarantee, found.guarantee_):
        assert guarantee.protects == PrivacyUnit.of_person(16).protects
        assert any("the records in `public`" in each for each in guarantee.conditions)
    assert search.fit(*PRIVATE).guarantee_.protects == "one record of the data set"
    with pytest.raises(ValueError, match="each of the 369 records"):
        search.fit(*PRIVATE, groups=PATIENTS[1:])


def test_wrong_input() -> None:
    how: dict[str, Any] = {"bounds": (0.0, 1.0), "mu": 0.5}
    with pytest.raises(TypeError, match="leave `num_records` out"):
        PrivateObjective(distances, groups=IDS, num_records=N, **how)
    with pytest.raises(TypeError, match="pass both"):
        PrivateObjective(distances, per_group=3, **how)
    ledger = PrivacyLedger(budget=BUDGET)
    objective = PrivateObjective(distances, groups=IDS[1:], ledger=ledger, **{**how, "mu": 0.1})
    with pytest.raises(PrivacyError, match="where 59 records"):
        objective(POINTS)
