from __future__ import annotations

import math
from typing import Any

import pytest

from botorch_dp.pareto import Batched, PrivacyUtilityProblem, StudyError
from botorch_dp.pareto.proposals import Proposer
from botorch_dp.pareto.recommendation import recommended
from botorch_dp.space import Real, SearchSpace
from tests.pareto import toy
from tests.pareto.test_surrogates import complete_trials


def proposer(problem: PrivacyUtilityProblem) -> Proposer:
    return Proposer(problem, seed=0, candidates=256)


class TestRecommended:
    problem = toy.problem()
    trials = complete_trials(problem, 30)

    @pytest.mark.parametrize("epsilon", [0.3, 1.0, 4.0])
    def test_close_to_the_best_within_epsilon(self, epsilon: float) -> None:
        point = recommended(proposer(self.problem), self.trials, epsilon)
        assert point.epsilon == self.problem.epsilon(point.config) <= epsilon
        # Noise just large enough, for each number of epochs: the best there is.
        best = min(
            toy.expected_error({"noise": max(0.1, math.sqrt(n) / epsilon), "epochs": n})
            for n in range(1, 21)
            if math.sqrt(n) / epsilon <= 10
        )
        assert toy.expected_error(point.config) < best + 0.05
        assert point.interval[0] < point.error < point.interval[1]
        assert abs(point.error - toy.expected_error(point.config)) < 0.08

    def test_it_may_be_a_config_never_tried(self) -> None:
        point = recommended(proposer(self.problem), self.trials, 1.0)
        assert not point.tried
        assert all(trial.config != point.config for trial in self.trials)

    def test_out_of_reach_names_the_smallest(self) -> None:
        with pytest.raises(ValueError, match=r"smallest epsilon found in the space is 0\.1"):
            recommended(proposer(self.problem), self.trials, 0.05)

    def test_a_corner_of_the_space_is_reached(self) -> None:
        """Only noise above 9.6 is private enough: a twentieth of a percent of the draws."""
        point = recommended(proposer(self.problem), self.trials, 0.104)
        assert point.epsilon <= 0.104 and point.config["epochs"] == 1

    def test_nothing_finished(self) -> None:
        with pytest.raises(ValueError, match="`epsilon` must be"):
            recommended(proposer(self.problem), self.trials, math.nan)
        with pytest.raises(StudyError, match="no config to recommend"):
            recommended(proposer(self.problem), [], 1.0)

    def test_bounds_larger_than_epsilon_never_admit_too_much(self) -> None:
        problem = toy.problem(
            batched=Batched(epsilons=lambda cs: [1.01 * toy.epsilon(c) for c in cs])
        )
        point = recommended(proposer(problem), self.trials, 1.0)
        assert point.epsilon == toy.epsilon(point.config) <= 1 / 1.01

    def test_epsilon_with_steps(self) -> None:
        """No interpolation could follow this oracle; the recommendation still keeps to it."""

        def privacy(config: dict[str, Any]) -> float:
            return math.ceil(10 / config["x"]) / 10

        problem = PrivacyUtilityProblem(
            SearchSpace(x=Real(1.0, 10.0)), privacy=privacy, utility=lambda c, s: 1 / c["x"]
        )
        trials = [
            t.__class__(
                number=i,
                config={"x": 1 + 0.9 * i},
                seeds=(i,),
                epsilon=privacy({"x": 1 + 0.9 * i}),
                state="complete",
                measurements=(problem.measurement(1 / (1 + 0.9 * i)),),
            )
            for i, t in enumerate(self.trials[:10])
        ]
        point = recommended(proposer(problem), trials, 0.5)
        assert point.epsilon <= 0.5
        assert point.config["x"] == pytest.approx(2.0, abs=0.1)
