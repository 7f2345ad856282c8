"""Epsilon as an input: the noise is solved for."""

from __future__ import annotations

import pickle
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import pytest

from botorch_dp.pareto import DPareto, Integer, Real, SearchSpace
from botorch_dp.pareto.given_epsilon import given_epsilon
from botorch_dp.pareto.problem import PrivacyUtilityProblem
from botorch_dp.privacy import Guarantee, PrivacyUnit, PureLoss
from tests.pareto import toy


def asked(problem: PrivacyUtilityProblem | None = None, **options: Any) -> PrivacyUtilityProblem:
    return given_epsilon(toy.problem() if problem is None else problem, "noise", **options)


def test_the_space_holds_epsilon_in_place_of_the_noise() -> None:
    space = asked().space
    assert list(space.parameters) == ["epsilon", "epochs"]
    assert space.parameters["epsilon"] == Real(0.01, 10.0, log=True)


def test_the_least_noise_that_meets_it() -> None:
    problem = asked()
    config = {"epsilon": 2.0, "epochs": 9}
    assert problem.epsilon(config) == pytest.approx(2.0, rel=1e-9)
    assert problem.epsilon(config) <= 2.0
    expected = toy.utility({"noise": 1.5, "epochs": 9}, 3)
    assert problem.oracle(config, 3) == pytest.approx(expected)


def test_least_noise_of_the_range_if_that_is_enough() -> None:
    problem = asked(epsilon=Real(1.0, 100.0))
    config = {"epsilon": 50.0, "epochs": 1}
    assert problem.epsilon(config) == 10.0 == toy.epsilon({"noise": 0.1, "epochs": 1})


def test_most_noise_where_none_is_enough() -> None:
    problem = asked()
    config = {"epsilon": 0.01, "epochs": 20}
    assert problem.epsilon(config) == toy.epsilon({"noise": 10.0, "epochs": 20}) > 0.01
    assert problem.epsilon_bounds([config]) == [problem.epsilon(config)]
    study = DPareto(asked(), seed=0, candidates=64)
    study.run(8, initial=6)
    with pytest.raises(ValueError, match="out of reach"):
        study.recommend(0.011)


@pytest.mark.parametrize("curves", [False, True])
def test_bounds_are_bounds_and_close(curves: bool) -> None:
    problem = asked(toy.curve_problem() if curves else toy.problem())
    configs = [
        {"epsilon": epsilon, "epochs": epochs}
        for epsilon in (0.5, 2.0, 8.0)
        for epochs in (1, 5, 20)
    ]
    for config, bound in zip(configs, problem.epsilon_bounds(configs), strict=True):
        exact = problem.epsilon(config)
        assert exact <= bound <= max(1.05 * exact, config["epsilon"])


def test_along_a_curve_the_noise_stays() -> None:
    problem = asked(toy.curve_problem())
    config = {"epsilon": 2.0, "epochs": 20}
    along = [problem.epsilon(c) for c in problem.along(config)]
    assert along == sorted(along) and along[-1] == pytest.approx(2.0)
    assert along[0] == pytest.approx(2.0 / 20**0.5)


def test_a_study_and_its_recommendation() -> None:
    problem = asked(epsilon=Real(0.3, 10.0, log=True))
    study = DPareto(problem, seed=0, candidates=256)
    study.run(20, initial=8)
    for epsilon in (0.7, 3.0):
        point = study.recommend(epsilon)
        assert point.config["epsilon"] == epsilon
        assert point.epsilon == pytest.approx(epsilon)
        # The best that there is: at equal epsilon, more epochs need more noise.
        best = min(
            toy.expected_error({"noise": epochs**0.5 / epsilon, "epochs": epochs})
            for epochs in range(1, 21)
            if epochs**0.5 / epsilon <= 10
        )
        noise = point.config["epochs"] ** 0.5 / epsilon
        found = toy.expected_error({"noise": noise, "epochs": point.config["epochs"]})
        assert found <= best + 0.02


def test_curves_too() -> None:
    study = DPareto(asked(toy.curve_problem()), seed=0, candidates=64)
    front = study.run(7)
    assert len(front.all_points) > 7
    assert study.recommend(1.0).epsilon <= 1.0


def test_other_processes() -> None:
    problem = asked()
    again = pickle.loads(pickle.dumps(problem.oracle))
    config = {"epsilon": 2.0, "epochs": 9}
    assert again(config, 1) == problem.oracle(config, 1)
    with ProcessPoolExecutor(1) as pool:
        there = DPareto(problem, seed=0, acquisition="random").run(2, executor=pool)
    here = DPareto(problem, seed=0, acquisition="random").run(2)
    assert there.all_points.equal(here.all_points)


def test_the_guarantee_is_that_of_the_solved_config() -> None:
    def guarantee(config: Any) -> Guarantee:
        return Guarantee("training", PrivacyUnit("one record"), (PureLoss(toy.epsilon(config)),))

    problem = asked(toy.problem(guarantee=guarantee))
    promised = problem.promise.of_training("toy", {"epsilon": 2.0, "epochs": 9}, 2.0)
    assert promised.epsilon(0.0) == pytest.approx(2.0)


def test_refused() -> None:
    with pytest.raises(ValueError, match="`noise` must name a positive Real"):
        given_epsilon(toy.problem(), "epochs")
    with pytest.raises(ValueError, match="has a parameter `epsilon` already"):
        space = SearchSpace(epsilon=Real(0.1, 1.0), noise=Real(0.1, 1.0))
        given_epsilon(
            PrivacyUtilityProblem(space, privacy=toy.epsilon, utility=toy.utility), "noise"
        )
    with pytest.raises(ValueError, match="`epsilon` must be a Real above 0"):
        asked(epsilon=Real(0.0, 1.0))
    with pytest.raises(ValueError, match="constraint of the space reads 'noise'"):
        space = SearchSpace(
            noise=Real(0.1, 1.0), epochs=Integer(1, 4), constraints=[lambda c: c["noise"] > 0.2]
        )
        given_epsilon(
            PrivacyUtilityProblem(space, privacy=toy.epsilon, utility=toy.utility), "noise"
        )


def test_products_without_the_noise_stay() -> None:
    space = SearchSpace(
        noise=Real(0.1, 10.0, log=True),
        epochs=Integer(1, 20, log=True),
        products=[{"noise": 1, "epochs": -0.5}, {"epochs": 1}],
    )
    problem = PrivacyUtilityProblem(space, privacy=toy.epsilon, utility=toy.utility)
    assert given_epsilon(problem, "noise").space.products == ({"epochs": 1},)
