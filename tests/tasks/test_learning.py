"""Ready learning problems: the paper's domains, exact epsilons, oracles that travel."""

from __future__ import annotations

import pickle

import pytest
import torch

from botorch_dp import tasks
from botorch_dp.pareto import DPareto, PrivacyUtilityProblem
from botorch_dp.privacy import NeighboringRelation, dp_sgd_epsilon
from botorch_dp.tasks.learning import _MODELS

BUNDLED = [
    (tasks.adult_logistic_sgd, "breast_cancer"),
    (tasks.adult_logistic_adam, "breast_cancer"),
    (tasks.adult_svm_sgd, "breast_cancer"),
    (tasks.mnist_mlp1_sgd, "digits"),
    (tasks.mnist_mlp2_sgd, "digits"),
]

CHEAP = {"epochs": 2, "batch_size": 64, "learning_rate": 0.05, "clip_norm": 1.0}


@pytest.mark.one_in(3)
@pytest.mark.parametrize(("make", "data"), BUNDLED, ids=lambda part: getattr(part, "__name__", ""))
class TestEveryProblem:
    def test_shape(self, make, data: str) -> None:
        problem = make(data=data, replicates=2)
        assert isinstance(problem, PrivacyUtilityProblem)
        assert problem.ref_point == (10.0, 1.0)
        assert problem.training.unit.relation is NeighboringRelation.REPLACE_ONE
        assert problem.replicates == 2
        for config in problem.space.sample(20, seed=1):
            assert problem.epsilon(config) > 0
            promised = problem.training_guarantee(config, 0.0).epsilon(problem.training.delta)
            assert promised == pytest.approx(problem.epsilon(config))

    def test_bounds_of_many_candidates_are_upper_bounds(self, make, data: str) -> None:
        problem = make(data=data)
        configs = problem.space.sample(30, seed=2)
        for config, bound in zip(configs, problem.epsilon_bounds(configs), strict=True):
            assert problem.epsilon(config) <= bound * (1 + 1e-9)
            assert bound <= problem.epsilon(config) * 1.02

    def test_oracles_travel_to_other_processes(self, make, data: str) -> None:
        problem = make(data=data)
        copy = pickle.loads(pickle.dumps(problem.oracle))
        config = problem.space.sample(1, seed=0)[0] | CHEAP
        assert copy(config, [3, 4]) == problem.oracle(config, [3, 4])
        assert all(0 <= utility <= 1 for utility in copy(config, [3, 4]))


def test_epsilon_is_the_accountants() -> None:
    problem = tasks.adult_logistic_sgd(data="breast_cancer")
    n = 398
    config = {**CHEAP, "noise_variance": 1.5}
    expected = dp_sgd_epsilon(
        noise_multiplier=2 * 1.5,  # over the clipping norm, and not over twice of it
        batch_size=64,
        num_records=n,
        steps=2 * (n // 64),
        delta=1e-5,
        sampling="without_replacement",
    )
    assert problem.epsilon(config) == expected


def test_domains_of_the_bundled_sets() -> None:
    space = tasks.adult_logistic_sgd(data="breast_cancer").space.parameters
    limits = {name: (p.low, p.high) for name, p in space.items()}
    assert limits == {
        "epochs": (1, 64),
        "batch_size": (8, 398),
        "learning_rate": (1e-2, 5.0),
        "clip_norm": (0.1, 4.0),
        "noise_variance": (0.1, 16.0),
    }
    space = tasks.mnist_mlp1_sgd(data="digits").space.parameters
    assert (space["epochs"].low, space["epochs"].high) == (1, 400)
    assert (space["clip_norm"].low, space["clip_norm"].high) == (0.1, 12.0)


@pytest.mark.slow
@pytest.mark.data
def test_domains_of_the_paper() -> None:
    space = tasks.adult_svm_sgd().space.parameters
    assert (space["batch_size"].low, space["batch_size"].high) == (8, 512)
    assert (space["learning_rate"].low, space["learning_rate"].high) == (5e-4, 5e-2)
    space = tasks.mnist_mlp2_sgd().space.parameters
    assert (space["batch_size"].low, space["batch_size"].high) == (16, 4000)
    assert (space["learning_rate"].low, space["learning_rate"].high) == (1e-3, 0.5)


def test_a_short_study() -> None:
    problem = tasks.adult_logistic_sgd(data="breast_cancer", replicates=3)
    front = DPareto(problem, seed=0).run(4, initial=3)
    assert len(front.points) >= 1
    assert front.hypervolume() > 0


@pytest.mark.data
def test_adult_at_full_size() -> None:
    problem = tasks.adult_logistic_sgd()
    assert problem.space.parameters["batch_size"].high == 512
    config = {**CHEAP, "batch_size": 256, "noise_variance": 1.0}
    (utility,) = problem.oracle(config, [0])
    # The majority class alone is right for .754 of the test rows.
    assert 0.74 < utility < 0.87


@pytest.mark.parametrize("model", ["logistic", "svm"])
def test_linear_models_start_at_zero_as_in_the_papers_algorithms(model: str) -> None:
    factory, _ = _MODELS[model]
    weights = torch.cat([p.detach().flatten() for p in factory(7).parameters()])
    assert len(weights) == 8 and bool((weights == 0).all())
