"""Privacy-loss distributions: exact where a formula exists, above the truth on a grid."""

from __future__ import annotations

import math

import numpy as np
import pytest

from botorch_dp.privacy._distributions import (
    RandomizedResponses,
    SingleLaplace,
    gaussian_distribution,
    grid_interval,
    laplace_distribution,
    poisson_sgd_distribution,
)
from botorch_dp.privacy._gaussian import gaussian_delta


class TestCurves:
    @pytest.mark.parametrize(("epsilon", "count"), [(0.1, 1), (0.1, 500), (2.0, 3), (0.001, 10**6)])
    def test_grid_of_randomized_responses_is_just_above_the_exact_curve(
        self, epsilon: float, count: int
    ) -> None:
        responses = RandomizedResponses(epsilon, count)
        grid = responses.distribution(epsilon * math.sqrt(count) / 300)
        for at in (0.0, 0.5 * epsilon, epsilon * math.sqrt(count), 3 * epsilon * math.sqrt(count)):
            exact = responses.delta_at(at)
            rounded = grid.get_delta_for_epsilon(at)
            assert exact * (1 - 1e-9) - 1e-16 <= rounded <= exact * 1.01 + 1e-4 * epsilon

    def test_epsilon_inverts_delta(self) -> None:
        for curve in (RandomizedResponses(0.2, 40), SingleLaplace(0.9)):
            for delta in (1e-12, 1e-6, 0.05):
                epsilon = curve.epsilon_at(delta)
                assert curve.delta_at(epsilon) <= delta * (1 + 1e-9)
                assert curve.delta_at(0.999 * epsilon) > delta
            assert curve.epsilon_at(0.9999) == 0.0

    def test_two_randomized_responses_by_hand(self) -> None:
        # Each lies with probability 1/4.
        step = math.log(3)
        responses = RandomizedResponses(step, 2)
        losses, probability, omitted = responses.atoms()
        np.testing.assert_allclose(losses, [2 * step, 0.0, -2 * step], atol=1e-15)
        np.testing.assert_allclose(probability, [9 / 16, 6 / 16, 1 / 16], rtol=1e-14)
        assert omitted == 0.0
        # 9/16 (1 - 1/9) where the loss 0 does not count, and 9/16 (1 - 3/9) half way up.
        assert responses.delta_at(0.0) == pytest.approx(1 / 2, rel=1e-9)
        assert responses.delta_at(step) == pytest.approx(3 / 8, rel=1e-9)
        assert responses.epsilon_at(3 / 8) == pytest.approx(step, rel=1e-9)
        assert responses.delta_at(2 * step) == 0.0

    def test_a_single_laplace_mechanism_by_hand(self) -> None:
        curve = SingleLaplace(2 * math.log(2))
        assert curve.delta_at(0.0) == pytest.approx(1 / 2, rel=1e-15)
        assert curve.epsilon_at(1 / 4) == pytest.approx(2 * math.log(3 / 2), rel=1e-14)
        assert curve.delta_at(2 * math.log(2)) == curve.delta_at(5.0) == 0.0

    def test_what_is_left_out_of_a_long_list_is_counted(self) -> None:
        losses, probability, omitted = RandomizedResponses(0.1, 100_000).atoms()
        assert len(losses) < 5_000
        assert 0 < omitted <= 1e-16
        assert probability.sum() + omitted == pytest.approx(1.0, rel=1e-10)
        assert losses[0] < 0.1 * 100_000  # the largest losses are those that were left out
        # A delta that the omitted losses may exceed is promised at their sum only.
        assert RandomizedResponses(0.1, 100_000).epsilon_at(omitted / 2) == 0.1 * 100_000


class TestGrids:
    @pytest.mark.parametrize("interval", [1e-2, 1e-4])
    @pytest.mark.parametrize("mu", [0.3, 2.0])
    def test_gaussian_is_just_above_its_curve(self, mu: float, interval: float) -> None:
        grid = gaussian_distribution(mu, interval)
        for epsilon in (0.0, 0.5 * mu, 2 * mu):
            exact, rounded = gaussian_delta(mu, epsilon), grid.get_delta_for_epsilon(epsilon)
            assert exact * (1 - 1e-9) <= rounded <= exact * 1.01

    def test_laplace_is_just_above_its_curve(self) -> None:
        grid, curve = laplace_distribution(0.8, 1, 1e-4), SingleLaplace(0.8)
        for epsilon in (0.0, 0.3, 0.79):
            exact, rounded = curve.delta_at(epsilon), grid.get_delta_for_epsilon(epsilon)
            assert exact * (1 - 1e-9) <= rounded <= exact * 1.01
        three = laplace_distribution(0.8, 3, 1e-4)
        # Each has the loss 0.8 with probability 1/2, and none has more.
        assert three.get_delta_for_epsilon(1.6) > 1 / 8 * -math.expm1(1.6 - 2.4)
        assert three.get_delta_for_epsilon(2.41) < 1e-12

    def test_poisson_steps_on_whole_data_sets_are_gaussian(self) -> None:
        # 16 steps with noise 5 are one Gaussian mechanism with mu = 4/5.
        grid = poisson_sgd_distribution(5.0, 1.0, 16, 1e-4)
        for epsilon in (0.0, 0.5, 2.0):
            exact, rounded = gaussian_delta(0.8, epsilon), grid.get_delta_for_epsilon(epsilon)
            assert exact * (1 - 1e-9) <= rounded <= exact * 1.02

    def test_poisson_steps_are_dearer_the_more_there_are(self) -> None:
        deltas = [
            poisson_sgd_distribution(1.0, 0.01, steps, 1e-3).get_delta_for_epsilon(0.5)
            for steps in (1, 10, 100)
        ]
        assert 0 < deltas[0] < deltas[1] < deltas[2] < 1


def test_rounding_keeps_the_probability_under_either_data_set() -> None:
    """A grid that rounded losses down would have too little delta between its points."""
    responses, interval = RandomizedResponses(0.35, 1), 0.2
    grid = responses.distribution(interval)
    assert grid.get_delta_for_epsilon(0.0) == pytest.approx(responses.delta_at(0.0), rel=1e-9)
    # The loss 0.35 lies between 0.2 and 0.4; all of it counts beyond 0.35, part of it at 0.4.
    assert responses.delta_at(0.36) == 0.0 < grid.get_delta_for_epsilon(0.36)
    assert grid.get_delta_for_epsilon(0.4) == pytest.approx(0.0, abs=1e-15)


@pytest.mark.parametrize(
    ("reach", "detail", "usual", "expected"),
    [
        (1.0, math.inf, 1e-4, 1e-4),  # nothing special
        (1.0, 1e-4, 1e-4, 1e-5),  # ten points for the smallest spread
        (2.0**10, 1e-4, 1e-4, 2.0**-8),  # 2^19 points reach from -2^10 to 2^10
        (1e-9, 1e-12, 1e-4, 1e-7),  # the finest there is
    ],
)
def test_grid_interval_by_hand(reach: float, detail: float, usual: float, expected: float) -> None:
    interval = grid_interval(reach=reach, finest_detail=detail, usual=usual)
    assert interval == pytest.approx(expected, rel=1e-12)
