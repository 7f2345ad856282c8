"""A trainer as a privacy-utility problem: what its trainings cost, and what they are worth."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from botorch_dp.pareto import DPareto
from botorch_dp.privacy import NeighboringRelation, PrivacyBudget, gaussian_guarantee
from botorch_dp.space import Integer, Real, SearchSpace
from botorch_dp.tuning import PrivateFit
from tests.training.helpers import BATCHES, SETTINGS, trainer

FIXED: dict[str, Any] = {"clip_norm": 0.5, "batch_size": 6}
NOISE = Real(0.8, 4.0, log=True)
SPACE = SearchSpace(learning_rate=Real(0.01, 1.0, log=True), noise_multiplier=NOISE)
CONFIG = {"learning_rate": 0.1, "noise_multiplier": 1.5}


@pytest.mark.parametrize("batches", BATCHES)
def test_prices_are_those_of_the_plans(batches: str) -> None:
    each = trainer(**BATCHES[batches])
    problem = each.problem(SPACE, **FIXED, epochs=3, delta=1e-6, replicates=2)
    plan = each.plan(**CONFIG, **FIXED, epochs=3, delta=1e-6)
    assert problem.epsilon(CONFIG) == plan.epsilon
    assert problem.training.delta == 1e-6 and problem.replicates == 2
    assert problem.training.unit.relation is each.relation
    promised = problem.training.guarantee(CONFIG)  # type: ignore[misc]
    assert promised.losses == plan.guarantee.losses
    # A study chooses configurations by results, and counts it: nobody need have fixed them.
    assert "tuning on them" in str(plan.guarantee) and "tuning on them" not in str(promised)
    assert "the settings that all trainings share" in str(promised)
    configs = SPACE.sample(20, seed=1)
    for config, bound in zip(configs, problem.epsilon_bounds(configs), strict=True):
        assert problem.epsilon(config) <= bound * (1 + 1e-9)


def test_bounds_cover_what_is_released_beside_the_models() -> None:
    each = trainer().beside(gaussian_guarantee(sensitivity=1.0, mu=0.5))
    problem = each.problem(SPACE, **FIXED, epochs=3)
    (bound,) = problem.epsilon_bounds([CONFIG])
    assert problem.epsilon(CONFIG) <= bound
    assert bound > trainer().problem(SPACE, **FIXED, epochs=3).epsilon(CONFIG)


def test_utilities_are_those_of_replicates_and_travel() -> None:
    each = trainer()
    problem = each.problem(SPACE, **FIXED, epochs=3)
    wanted = [one.accuracy for one in each.replicates([4, 9], **CONFIG, **FIXED, epochs=3)]
    assert problem.oracle(CONFIG, [4, 9]) == wanted
    assert pickle.loads(pickle.dumps(problem.oracle))(CONFIG, [4, 9]) == wanted


def test_epsilon_may_be_an_input() -> None:
    space = SearchSpace(learning_rate=Real(0.01, 1.0, log=True), target_epsilon=Real(0.5, 8.0))
    problem = trainer().problem(space, **FIXED, epochs=3)
    configs = space.sample(4, seed=0)
    for config, bound in zip(configs, problem.epsilon_bounds(configs), strict=True):
        assert 0.99 * config["target_epsilon"] < problem.epsilon(config) <= bound
        assert bound == config["target_epsilon"]
    assert len(DPareto(problem, seed=0).run(3).points) >= 1


def test_its_models_can_be_published() -> None:
    space = SearchSpace(**SPACE.parameters, **{n: Integer(2, 6) for n in ("batch_size", "epochs")})
    relation = NeighboringRelation.ADD_OR_REMOVE_ONE
    problem = trainer(relation=relation).problem(space, clip_norm=1.0)
    assert problem.training.trainer().relation is relation  # type: ignore[misc]
    with pytest.raises(ValueError, match="`space` must name the settings"):
        PrivateFit(problem, budget=PrivacyBudget(1.0, 1e-5))  # the clipping norm was fixed


@pytest.mark.parametrize(
    ("space", "settings", "error", "message"),
    [
        (SPACE, {**SETTINGS}, ValueError, "given as fixed settings too"),
        (SearchSpace(lr=Real(0.1, 1.0)), SETTINGS, ValueError, r"\['lr'\] cannot be among them"),
        (SearchSpace(delta=Real(1e-6, 1e-5)), SETTINGS, ValueError, r"\['delta'\] cannot be"),
        (SPACE, {**FIXED, "epochs": 3, "lot_size": 6}, TypeError, "no setting .lot_size."),
    ],
)
def test_what_is_no_problem(
    space: SearchSpace, settings: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        trainer().problem(space, **settings)
