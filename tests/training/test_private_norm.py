"""``feature_norm="private"``: within the training's epsilon, charged once, of tables and people."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch

from botorch_dp.privacy import NeighboringRelation, PrivacyBudget, PrivacyLedger
from botorch_dp.training import (
    DPTrainer,
    TrainTest,
    logistic_loss,
    logistic_regression,
    private_norm,
)

torch.manual_seed(0)
X = 50 * torch.randn(2000, 4)
Y = (X[:, 0] > 0).long()
NORM = float(X.norm(dim=1).median())
PRIVATE: Any = {"target_epsilon": 2.0, "feature_norm": "private"}


def trainer(**how: Any) -> DPTrainer:
    return DPTrainer(partial(logistic_regression, 4), logistic_loss, TrainTest(X, Y, X, Y), **how)


def test_the_norm_is_found_and_covered_by_one_epsilon() -> None:
    ledger = PrivacyLedger(budget=PrivacyBudget(2.0, 1e-5))
    plan = trainer().plan(**PRIVATE)
    assert "norm of a record" in str(plan) and 1.99 < plan.epsilon <= 2.0
    trained = trainer().fit(publish=True, ledger=ledger, **PRIVATE)
    assert len(ledger.entries()) == 1 and len(trained.guarantee.losses) == 2
    assert trained.guarantee == plan.guarantee and trained.receipt().verify().passes
    stated = trainer().plan(target_epsilon=2.0, feature_norm=NORM)
    assert trained.plan.learning_rate == pytest.approx(stated.learning_rate, rel=0.1)
    assert trained.plan.clip_norm == pytest.approx(stated.clip_norm, rel=0.1)


def test_under_a_seed_it_is_simulated_and_repeats() -> None:
    first, second = (trainer().fit(seed=1, **PRIVATE) for _ in range(2))
    assert first.plan == second.plan and first.guarantee.status == "none"


def test_people_and_other_relations_count() -> None:
    people = [row // 2 for row in range(2000)]
    trained = trainer(groups=people).fit(seed=0, **PRIVATE)
    assert trained.plan.num_records == 1000
    added = trainer(relation=NeighboringRelation.ADD_OR_REMOVE_ONE)
    assert added.plan(**PRIVATE).guarantee.relation is NeighboringRelation.ADD_OR_REMOVE_ONE


def test_a_release_of_its_own() -> None:
    release = private_norm(X, epsilon=0.3, delta=1e-6)
    assert release.value == pytest.approx(NORM, rel=0.15) and release.guarantee.status == "proven"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"learning_rate": 1.0, "clip_norm": 1.0}, "default settings"),
        ({"checkpoint": "file"}, "`private_norm`"),
    ],
)
def test_where_it_cannot_be_found_the_cure_is_said(change: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        trainer().fit(seed=0, **PRIVATE, **change)
    with pytest.raises(ValueError, match="`private_norm`"):
        trainer().replicates([0, 1], **PRIVATE)
