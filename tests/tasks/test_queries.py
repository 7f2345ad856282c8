from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

from benchmarks.pareto_quality import (
    binomial,
    exact_front,
    expected_error,
    laplace_quadrature,
    laplace_survival,
)
from botorch_dp import tasks
from botorch_dp.pareto.front import dominated_volume
from botorch_dp.privacy import sparse_vector_guarantee
from botorch_dp.tasks.queries import SparseVectorUtility

SIZES = {"num_queries": 40, "num_positives": 6}
PROBLEM = tasks.sparse_vector(num_queries=40, num_positives=6)


@pytest.fixture(scope="module")
def front() -> torch.Tensor:
    return exact_front(PROBLEM, **SIZES)


class TestEpsilon:
    @pytest.mark.parametrize(("noise", "count"), [(0.01, 1), (1.0, 4), (100.0, 30), (7.0, 13)])
    def test_is_that_of_the_mechanism(self, noise: float, count: int) -> None:
        config = {"noise": noise, "max_positives": count}
        root = (2 * count) ** (1 / 3)
        assert PROBLEM.epsilon(config) == pytest.approx((1 + root) * (1 + root**2) / noise)
        proven = sparse_vector_guarantee(noise_scale=noise, max_positives=count)
        assert PROBLEM.epsilon(config) == pytest.approx(proven.epsilon(), rel=1e-6)
        assert PROBLEM.promise.guarantee is not None
        assert PROBLEM.promise.guarantee(config) == proven


class TestExpectedError:
    @pytest.mark.parametrize(
        ("noise", "count"), [(0.05, 6), (0.3, 3), (1.0, 10), (3.0, 1), (50.0, 30)]
    )
    def test_against_simulation(self, noise: float, count: int) -> None:
        simulate = SparseVectorUtility(40, 6, 20_000)
        simulated = 1 - simulate({"noise": noise, "max_positives": count}, seed=3)
        exact = expected_error(count, np.array([noise]), **SIZES)[0]
        # F1 lies in [0, 1]: its standard deviation is at most a half.
        assert abs(simulated - exact) < 5 * 0.5 / math.sqrt(20_000)

    def test_without_noise(self) -> None:
        """Six true positives, all found, or the first few of them: F1 = 2C / (C + 6)."""
        errors = [expected_error(count, np.array([1e-2]), **SIZES)[0] for count in (1, 3, 6, 30)]
        assert errors == pytest.approx([1 - 2 / 7, 1 - 6 / 9, 0.0, 0.0], abs=1e-6)

    @pytest.mark.parametrize("trials", [1, 6, 400])
    def test_binomial_probabilities(self, trials: int) -> None:
        chances = np.array([[0.0, 1e-300, 1e-9, 0.3], [0.5, 0.999, 1 - 1e-16, 1.0]])
        expected = stats.binom.pmf(np.arange(trials + 1), trials, chances[..., None])
        np.testing.assert_allclose(binomial(trials, chances), expected, rtol=1e-10, atol=1e-12)

    def test_quadrature_has_converged(self) -> None:
        scales = np.array([1e-3, 0.2, 1.0, 30.0])
        nodes, weights = laplace_quadrature(scales)
        assert weights.sum(axis=1) == pytest.approx(np.ones(4))
        for scale, row, weight in zip(scales, nodes, weights, strict=True):
            # P(rho + L >= 1/2) for independent Laplace draws of scales s and 1, in closed form.
            values = laplace_survival(0.5 - row, np.array(1.0))
            s = scale
            expected = (
                0.5 * (np.exp(-0.5) - s**2 * np.exp(-0.5 / s)) / (1 - s**2)
                if s != 1.0
                else 0.5 * np.exp(-0.5) * (1 + 0.25)
            )
            assert (values * weight).sum() == pytest.approx(expected, abs=1e-6)


class TestSimulation:
    def test_repeats_with_its_seed(self) -> None:
        config = {"noise": 1.0, "max_positives": 5}
        assert PROBLEM.oracle(config, 3) == PROBLEM.oracle(config, 3) != PROBLEM.oracle(config, 4)

    def test_no_true_positive_counts_as_zero(self) -> None:
        far = SparseVectorUtility(1000, 1, 1)
        utilities = {far({"noise": 100.0, "max_positives": 1}, seed) for seed in range(20)}
        assert 0.0 in utilities

    def test_stops_after_the_permitted_positives(self) -> None:
        utility = SparseVectorUtility(40, 6, 200)({"noise": 0.01, "max_positives": 2}, 0)
        assert utility == pytest.approx(2 * 2 / (2 + 6))


class TestExactFront:
    def test_is_a_front(self, front: torch.Tensor) -> None:
        assert (front[:, 0].diff() > 0).all() and (front[:, 1].diff() < 0).all()

    def test_no_config_beats_it(self, front: torch.Tensor) -> None:
        for config in PROBLEM.space.sample(60, seed=0):
            error = expected_error(config["max_positives"], np.array([config["noise"]]), **SIZES)[0]
            # 1.005: the grid's noises are that far apart.
            within = front[front[:, 0] <= 1.005 * PROBLEM.epsilon(config)]
            assert within[:, 1].min() <= error + 1e-3

    def test_refining_it_gains_little(self, front: torch.Tensor) -> None:
        coarse = dominated_volume(exact_front(PROBLEM, 1000, **SIZES), PROBLEM.ref_point)
        fine = dominated_volume(front, PROBLEM.ref_point)
        assert 0 <= fine - coarse < 2e-3 * fine


@pytest.mark.parametrize(
    "options",
    [
        {"num_queries": 1},
        {"num_positives": 0},
        {"num_positives": 100},
        {"simulations": 0},
        {"replicates": 0},
    ],
)
def test_wrong_arguments(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"`{next(iter(options))}`"):
        tasks.sparse_vector(**options)


@pytest.mark.slow
def test_a_study_comes_close_to_the_exact_front(front: torch.Tensor) -> None:
    from botorch_dp.pareto import DPareto

    found_front = DPareto(PROBLEM, seed=0).run(40, initial=12)
    found = torch.tensor(
        [
            [
                trial.epsilon,
                expected_error(
                    trial.config["max_positives"], np.array([trial.config["noise"]]), **SIZES
                )[0],
            ]
            for trial in found_front.trials
        ]
    )
    exact = dominated_volume(front, PROBLEM.ref_point)
    assert 0.88 * exact < dominated_volume(found, PROBLEM.ref_point) < exact
