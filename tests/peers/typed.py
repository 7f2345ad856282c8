"""What a user writes, for type checkers: `test_types.py` runs them on it. Nothing here is run."""

from functools import partial
from typing import Any, assert_type

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import botorch_dp as bdp
from botorch_dp import (
    DPareto,
    DPTrainer,
    Guarantee,
    PrivacyBudget,
    PrivacyLedger,
    PrivateFit,
    PrivateSearch,
    PrivateSelection,
    Real,
    SearchSpace,
)
from botorch_dp.acquisition import LogHypervolumeProbabilityOfImprovement
from botorch_dp.descent import DPGIBO
from botorch_dp.integrations.estimators import DPClassifier
from botorch_dp.integrations.opacus import PrivacyEngine
from botorch_dp.integrations.optuna import DParetoSampler, suggest
from botorch_dp.integrations.sklearn import PrivateSearchCV
from botorch_dp.models import public_gp
from botorch_dp.objectives import PrivateObjective, per_record_scores
from botorch_dp.outsourced import GaussianNoiseCurator
from botorch_dp.pareto import PrivacyUtilityProblem
from botorch_dp.privacy import DPSGD, NeighboringRelation, dp_sgd_epsilon, laplace_mechanism
from botorch_dp.release import PrivateChoice
from botorch_dp.training import TrainTest, logistic_loss, logistic_regression

space = SearchSpace(learning_rate=Real(0.01, 1.0, log=True))
budget = PrivacyBudget(1.0, 1e-6)
Weights = dict[str, Tensor]


def select(train_set: TensorDataset) -> Weights:
    def train(config: dict[str, Any], noise_multiplier: float) -> tuple[Weights, float]:
        return {}, 0.5

    selection = PrivateSelection(
        train,
        space,
        mechanism=lambda config: DPSGD(batch_size=10, num_records=100, steps=20),
        budget=budget,
        num_scored=100,
    )
    best = selection.run(checkpoint="model.run")
    assert_type(best.artifact.value, Weights | None)
    assert_type(best.guarantee, Guarantee)
    assert_type(best.score.value if best.score is not None else 0.0, float)
    return best.artifact.value or {}


def fit(data: TrainTest) -> nn.Module:
    trainer = DPTrainer(partial(logistic_regression, 3), logistic_loss, data)
    trained = trainer.fit(target_epsilon=1.0, feature_norm=1.0, publish=True)
    print(trained.guarantee.epsilon(1e-6), trained.accuracy, trained.plan.noise_multiplier)
    result = PrivateFit(trainer, space, budget=budget, trials=5).run()
    assert_type(result.model.value, nn.Module)
    return result.model.value


def tune(estimator: Any, public: tuple[Any, Any], X: Any, y: Any) -> dict[str, Any]:
    losses = per_record_scores(estimator, space, public, (X, y), "zero_one")
    with PrivacyLedger("study.ledger", budget) as ledger:
        found = PrivateSearch(
            losses, space, bounds=(0.0, 1.0), budget=budget, evaluations=20
        ).run(ledger=ledger)  # fmt: skip
        print(found.config.value, ledger.remaining())
    search = PrivateSearchCV(estimator, {"C": [1.0]}, public=public, budget=budget)
    search.fit(X, y)
    return dict(search.best_params_)


def loop(data: TensorDataset) -> float:
    model: nn.Module = nn.Linear(3, 2)
    engine = PrivacyEngine(relation=NeighboringRelation.ADD_OR_REMOVE_ONE)
    private, optimizer, loader = engine.make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        data_loader=DataLoader(data, batch_size=10),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
        epochs=1,
        criterion=nn.CrossEntropyLoss(),
    )
    for X, Y in loader:
        nn.functional.cross_entropy(private(X), Y).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return engine.guarantee(private).epsilon(1e-6)


def front() -> None:
    problem = PrivacyUtilityProblem(
        space, privacy=lambda config: 1.0, utility=lambda config, seed: 0.5
    )
    with DPareto(problem, seed=0) as study:
        print(study.run(4).points, study.recommend(1.0))
    print(DParetoSampler(problem, initial=4), suggest)


def releases(objective: PrivateObjective, model: Any) -> bdp.Release[float]:
    print(dp_sgd_epsilon(noise_multiplier=1.0, batch_size=1, num_records=9, steps=1, delta=1e-5))
    print(public_gp, DPGIBO, PrivateChoice, GaussianNoiseCurator, objective, model)
    print(LogHypervolumeProbabilityOfImprovement, DPClassifier(1.0, classes=[0, 1]), np.ones(1))
    return laplace_mechanism(0.25, sensitivity=0.01, epsilon=0.5)
