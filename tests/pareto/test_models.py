from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

from botorch_dp.pareto import Objective, StudyError, Trial
from botorch_dp.pareto.known import KnownObjectives
from botorch_dp.pareto.models import (
    Beliefs,
    fitted_gp,
    objective_scales,
    predicted,
    require_complete,
)
from botorch_dp.pareto.problem import Measurement, PrivacyUtilityProblem
from tests.pareto import toy


def complete_trials(problem: PrivacyUtilityProblem, count: int) -> list[Trial]:
    return [
        Trial(
            number=number,
            config=config,
            seeds=(number,),
            epsilon=problem.epsilon(config),
            state="complete",
            measurements=(problem.measurement(toy.utility(config, number)),),
        )
        for number, config in enumerate(problem.space.sample(count, seed=5))
    ]


def beliefs(
    problem: PrivacyUtilityProblem,
    trials: Sequence[Trial],
    believed: Sequence[dict[str, float]] = (),
    *,
    exact: bool = True,
) -> Beliefs:
    return Beliefs(
        problem,
        trials,
        believed,
        known=KnownObjectives(problem, with_epsilon=exact),
        scales=objective_scales(problem),
    )


class TestScales:
    @pytest.mark.parametrize("epsilon_scale", ["linear", "log"])
    def test_volumes_are_the_negated_values(self, epsilon_scale: str) -> None:
        problem = toy.problem(
            objectives=[Objective("time", 60.0), Objective("balance", 1.0, log=False)]
        )
        scales = objective_scales(problem, epsilon_scale)  # type: ignore[arg-type]
        values = [0.5, 0.2, 3.0, -2.0]
        expected = [-0.5 if epsilon_scale == "linear" else math.log(2), -0.2, -3.0, 2.0]
        for scale, value, volume in zip(scales, values, expected, strict=True):
            shown = scale.to_model(torch.tensor([value], dtype=torch.double))
            assert scale.to_volume(shown).item() == pytest.approx(volume)

    def test_references_are_mapped_alike(self) -> None:
        problem = toy.problem(ref_point=(8.0, 0.6), objectives=[Objective("time", 60.0)])
        for scale, value in zip(objective_scales(problem), problem.full_ref_point, strict=True):
            shown = scale.to_model(torch.tensor([value], dtype=torch.double))
            assert shown.item() == pytest.approx(scale.ref_model)
            assert scale.to_volume(shown).item() == pytest.approx(scale.ref_volume)

    def test_extremes_stay_finite_and_lose_the_right_side(self) -> None:
        epsilon, error = objective_scales(toy.problem())
        values = torch.tensor([0.0, 1e-9, 50.0, 1e7], dtype=torch.double)
        shown = epsilon.to_model(values)
        assert shown.isfinite().all()
        assert shown[0] == shown[1] > shown[2] == shown[3]
        errors = error.to_model(torch.tensor([0.0, 0.5, 1.0], dtype=torch.double))
        assert errors.isfinite().all() and errors[0] > errors[1] > errors[2]

    def test_the_clamp_spares_a_large_reference(self) -> None:
        epsilon, _ = objective_scales(toy.problem(ref_point=(200.0, 1.0)))
        shown = epsilon.to_model(torch.tensor([150.0, 300.0], dtype=torch.double))
        assert epsilon.to_volume(shown).tolist() == pytest.approx([-150.0, -200.0])


class TestGP:
    def test_fit_repeats_and_keeps_the_global_seed(self) -> None:
        X = torch.rand(20, 2, dtype=torch.double)
        Y = X.sum(dim=-1, keepdim=True).sin()
        state = torch.get_rng_state()
        first, second = (fitted_gp(X, Y, seed=1) for _ in range(2))
        assert torch.equal(state, torch.get_rng_state())
        for one, other in zip(first.parameters(), second.parameters(), strict=True):
            assert torch.equal(one, other)

    def test_predictions_are_those_of_the_posterior(self) -> None:
        X = torch.rand(20, 2, dtype=torch.double)
        model = fitted_gp(X, X.sum(dim=-1, keepdim=True).sin(), seed=1)
        test_X = torch.rand(600, 2, dtype=torch.double)  # several chunks
        mean, std = predicted(model, test_X)
        posterior = model.posterior(test_X.unsqueeze(-2))
        assert torch.allclose(mean, posterior.mean.flatten(), atol=1e-8)
        assert torch.allclose(std, posterior.variance.flatten().sqrt(), atol=1e-6)

    @pytest.mark.parametrize("count", [1, 2])
    def test_few_or_constant_observations(self, count: int) -> None:
        X = torch.rand(count, 2, dtype=torch.double)
        model = fitted_gp(X, torch.full((count, 1), 0.3, dtype=torch.double), seed=0)
        mean, std = predicted(model, torch.rand(5, 2, dtype=torch.double))
        assert mean.isfinite().all() and std.isfinite().all()


class TestBeliefs:
    def test_exact_epsilon_has_no_uncertainty(self) -> None:
        problem = toy.problem()
        current = beliefs(problem, complete_trials(problem, 12))
        candidates = KnownObjectives(problem, with_epsilon=True).candidates(
            torch.rand(30, 2, dtype=torch.double)
        )
        means, stds = current.predict(candidates)
        assert torch.allclose(means[:, 0], -candidates.known[:, 0].clamp(1e-2, 50).log())
        assert (stds[:, 0] == 0).all() and (stds[:, 1] > 0).all()

    def test_gp_learns_epsilon(self) -> None:
        problem = toy.problem()
        current = beliefs(problem, complete_trials(problem, 30), exact=False)
        known = KnownObjectives(problem, with_epsilon=False)
        candidates = known.candidates(torch.rand(50, 2, dtype=torch.double))
        means, stds = current.predict(candidates)
        truth = [-math.log(toy.epsilon(c)) for c in toy.SPACE.decode(candidates.codes)]
        assert (stds > 0).all()
        assert (means[:, 0] - torch.tensor(truth)).abs().mean() < 0.2

    def test_believing_moves_no_mean_and_takes_uncertainty_away(self) -> None:
        problem = toy.problem()
        trials = complete_trials(problem, 12)
        far = {"noise": 10.0, "epochs": 20}
        plain, believing = beliefs(problem, trials), beliefs(problem, trials, [far])
        known = KnownObjectives(problem, with_epsilon=True)
        elsewhere = known.candidates(torch.rand(30, 2, dtype=torch.double))
        assert torch.allclose(
            plain.predict(elsewhere)[0], believing.predict(elsewhere)[0], atol=1e-6
        )
        there = known.candidates(problem.space.encode([far]))
        before, after = plain.predict(there)[1][0, 1], believing.predict(there)[1][0, 1]
        assert after < 0.5 * before
        assert len(believing.incumbents) == len(plain.incumbents) + 1

    def test_incumbents_are_means_not_observations(self) -> None:
        """A lucky one of many noisy trials must not set the bar."""
        problem = toy.problem()
        trials = complete_trials(problem, 25)
        middling = sorted(trials, key=lambda trial: trial.error)[12]
        measurement = Measurement(middling.utilities[0] + 0.1)
        trials[middling.number] = replace(middling, measurements=(measurement,))
        current = beliefs(problem, trials)
        believed = torch.sigmoid(-current.incumbent_means[middling.number, 1]).item()
        assert believed > 1 - measurement.utility + 0.02

    def test_as_one_botorch_model(self) -> None:
        problem = toy.problem()
        current = beliefs(problem, complete_trials(problem, 12))
        candidates = KnownObjectives(problem, with_epsilon=True).candidates(
            torch.rand(7, 2, dtype=torch.double)
        )
        posterior = current.model.posterior(candidates.codes.unsqueeze(-2))
        means, stds = current.predict(candidates)
        assert torch.allclose(posterior.mean.squeeze(-2), means, atol=1e-8)
        assert torch.allclose(posterior.variance.squeeze(-2).sqrt(), stds, atol=1e-6)


def test_require_complete_names_what_went_wrong() -> None:
    failed = Trial(0, {}, (1,), math.nan, state="failed", failures=("OSError", "ZeroDivisionError"))
    with pytest.raises(StudyError, match=r"1 trials so far failed with \['ZeroDivisionError'\]"):
        require_complete([failed], "front")
    with pytest.raises(StudyError, match="No trial has finished, so there is no front\\."):
        require_complete([], "front")
