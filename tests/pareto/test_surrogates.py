from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from botorch_dp.pareto import Batched, DPareto, Objective, Trial
from botorch_dp.pareto.problem import Measurement, PrivacyUtilityProblem
from botorch_dp.pareto.proposals import Proposer
from botorch_dp.pareto.surrogates import (
    Candidates,
    KnownObjectives,
    Surrogates,
    farthest_points,
    fitted_gp,
    objective_scales,
    predicted,
    product_weights,
    refit_every,
)
from botorch_dp.space import Choice, Integer, Real, SearchSpace
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


def surrogates(
    problem: PrivacyUtilityProblem,
    trials: Sequence[Trial],
    believed: Sequence[dict[str, float]] = (),
    *,
    exact: bool = True,
) -> Surrogates:
    return Surrogates(
        problem,
        trials,
        believed,
        known=KnownObjectives(problem, with_epsilon=exact),
        scales=objective_scales(problem, "linear"),
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

    def test_extremes_stay_finite_and_lose_the_right_side(self) -> None:
        epsilon, error = objective_scales(toy.problem(), "linear")
        values = torch.tensor([0.0, 1e-9, 50.0, 1e7], dtype=torch.double)
        shown = epsilon.to_model(values)
        assert shown.isfinite().all()
        assert shown[0] == shown[1] > shown[2] == shown[3]
        errors = error.to_model(torch.tensor([0.0, 0.5, 1.0], dtype=torch.double))
        assert errors.isfinite().all() and errors[0] > errors[1] > errors[2]


class TestGP:
    def test_predictions_are_those_of_the_posterior(self) -> None:
        X = torch.rand(20, 2, dtype=torch.double)
        model = fitted_gp(X, X.sum(dim=-1, keepdim=True).sin(), seed=1)
        test_X = torch.rand(600, 2, dtype=torch.double)  # several chunks
        mean, std = predicted(model, test_X)
        posterior = model.posterior(test_X.unsqueeze(-2))
        assert torch.allclose(mean, posterior.mean.flatten(), atol=1e-8)
        assert torch.allclose(std, posterior.variance.flatten().sqrt(), atol=1e-6)


def near(known: KnownObjectives, codes: Tensor) -> Candidates:
    """The configs nearest to codes."""
    space = known._problem.space
    return known.candidates(space.allowed(space.decode(codes)))


class TestBeliefs:
    def test_exact_epsilon_has_no_uncertainty(self) -> None:
        problem = toy.problem()
        current = surrogates(problem, complete_trials(problem, 12))
        candidates = near(
            KnownObjectives(problem, with_epsilon=True), torch.rand(30, 2, dtype=torch.double)
        )
        means, stds = current.predict(candidates)
        assert torch.allclose(means[:, 0], -candidates.known[:, 0].clamp(1e-2, 50).log())
        assert (stds[:, 0] == 0).all() and (stds[:, 1] > 0).all()

    def test_gp_learns_epsilon(self) -> None:
        problem = toy.problem()
        current = surrogates(problem, complete_trials(problem, 30), exact=False)
        known = KnownObjectives(problem, with_epsilon=False)
        candidates = near(known, torch.rand(50, 2, dtype=torch.double))
        means, stds = current.predict(candidates)
        truth = [-math.log(toy.epsilon(c)) for c in toy.SPACE.decode(candidates.codes)]
        assert (stds > 0).all()
        assert (means[:, 0] - torch.tensor(truth)).abs().mean() < 0.2

    def test_believing_moves_no_mean_and_takes_uncertainty_away(self) -> None:
        problem = toy.problem()
        trials = complete_trials(problem, 12)
        far = {"noise": 10.0, "epochs": 20}
        plain, believing = surrogates(problem, trials), surrogates(problem, trials, [far])
        known = KnownObjectives(problem, with_epsilon=True)
        elsewhere = near(known, torch.rand(30, 2, dtype=torch.double))
        assert torch.allclose(
            plain.predict(elsewhere)[0], believing.predict(elsewhere)[0], atol=1e-6
        )
        there = known.candidates([far])
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
        current = surrogates(problem, trials)
        believed = torch.sigmoid(-current.incumbent_means[middling.number, 1]).item()
        assert believed > 1 - measurement.utility + 0.02

    def test_as_one_botorch_model(self) -> None:
        problem = toy.problem()
        current = surrogates(problem, complete_trials(problem, 12))
        candidates = near(
            KnownObjectives(problem, with_epsilon=True), torch.rand(7, 2, dtype=torch.double)
        )
        posterior = current.model.posterior(candidates.codes.unsqueeze(-2))
        means, stds = current.predict(candidates)
        assert torch.allclose(posterior.mean.squeeze(-2), means, atol=1e-8)
        assert torch.allclose(posterior.variance.squeeze(-2).sqrt(), stds, atol=1e-6)


class TestKnownObjectives:
    def test_columns_and_values(self) -> None:
        objectives = [
            Objective("time", 60.0),
            Objective("size", 100.0, function=lambda config: 3.0 * config["epochs"]),
        ]
        problem = toy.problem(objectives=objectives)
        known = KnownObjectives(problem, with_epsilon=True)
        assert known.columns == {0: 0, 3: 1}
        row = known([{"noise": 2.0, "epochs": 4}])
        assert row.tolist() == [[1.0, 12.0]]
        without = KnownObjectives(problem, with_epsilon=False)
        assert without.columns == {3: 0}
        assert without([{"noise": 2.0, "epochs": 4}]).tolist() == [[12.0]]

    def test_each_config_is_asked_about_once(self) -> None:
        asked = []

        def privacy(config: dict[str, Any]) -> float:
            asked.append(config)
            return toy.epsilon(config)

        known = KnownObjectives(toy.problem(privacy=privacy), with_epsilon=True)
        codes = torch.rand(20, 2, dtype=torch.double)
        first = near(known, codes)
        assert torch.equal(known.candidates(first.configs).known, first.known)
        assert len(asked) == 20
        # What is tried is asked about exactly, since bounds may do for candidates; once, too.
        assert {known.epsilon(first.configs[0]) for _ in range(3)} == {float(first.known[0, 0])}
        assert len(asked) == 21

    @pytest.mark.parametrize("answer", [math.nan])
    @pytest.mark.parametrize("batch", [False, True])
    def test_configs_with_impossible_epsilons_are_marked(self, answer: float, batch: bool) -> None:
        def privacy(config: dict[str, Any]) -> float:
            if config["epochs"] == 7:
                raise ZeroDivisionError
            return answer if config["epochs"] > 10 else toy.epsilon(config)

        problem = toy.problem(
            privacy=privacy,
            batched=Batched(epsilons=(lambda cs: [privacy(c) for c in cs]) if batch else None),
        )
        known = KnownObjectives(problem, with_epsilon=True)
        with pytest.warns(UserWarning, match="ZeroDivisionError"):
            candidates = near(known, torch.rand(200, 2, dtype=torch.double))
        epochs = torch.tensor([config["epochs"] for config in toy.SPACE.decode(candidates.codes)])
        assert torch.equal(candidates.possible, (epochs <= 10) & (epochs != 7))

    def test_failures_are_counted_and_told_once_by_type(self) -> None:
        def privacy(config: dict[str, Any]) -> float:
            if config["epochs"] == 7:
                raise KeyError("the record of Ada Lovelace")
            return math.inf if config["epochs"] == 8 else toy.epsilon(config)

        def size(config: dict[str, Any]) -> float:
            if config["epochs"] == 9:
                raise OSError("the record of Ada Lovelace")
            return 3.0

        objectives = [Objective("size", 100.0, function=size)]
        problem = toy.problem(privacy=privacy, objectives=objectives)
        known = KnownObjectives(problem, with_epsilon=True)
        with pytest.warns(UserWarning) as warned:
            values = known([{"noise": 1.0, "epochs": epochs} for epochs in (6, 7, 8, 9)])
        assert values.isfinite().all(dim=-1).tolist() == [True, False, False, False]
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            known([{"noise": 2.0, "epochs": 7}])
            known([{"noise": 1.0, "epochs": 7}])  # remembered, not asked again
        assert known.failures == {
            "privacy: KeyError",
            "privacy: InvalidEpsilonError",
            "size: OSError",
        }
        (message,) = (str(warning.message) for warning in warned)
        assert "privacy: InvalidEpsilonError, privacy: KeyError" in message
        assert "Ada" not in message


class TestManyTrials:
    """Beyond a limit, models see some trials only."""

    @pytest.fixture(autouse=True)
    def few(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("botorch_dp.pareto.surrogates._MOST_SEEN", 24)

    @staticmethod
    def seen(found: Surrogates) -> set[tuple[float, ...]]:
        (X,) = found._gps[1].train_inputs  # type: ignore[misc]
        return {tuple(row) for row in X.tolist()}

    @pytest.mark.parametrize("exact", [True, False])
    def test_some_are_spread_some_the_latest_some_near_the_expected_front(
        self, exact: bool
    ) -> None:
        problem = toy.problem()
        trials = complete_trials(problem, 200)
        found = surrogates(problem, trials, exact=exact)
        codes = problem.space.encode([trial.config for trial in trials])
        seen = self.seen(found)
        spread = {tuple(codes[place].tolist()) for place in farthest_points(codes, 12)}
        latest = {tuple(row) for row in codes[-6:].tolist()}
        assert len(seen) == 24 and spread | latest < seen
        errors = torch.tensor([toy.expected_error(trial.config) for trial in trials])
        epsilons = torch.tensor([trial.epsilon for trial in trials])
        dominated = (epsilons[:, None] > epsilons) & (errors[:, None] > errors)
        front = codes[~dominated.any(dim=1)]
        near = torch.cdist(torch.tensor(sorted(seen - spread - latest)).double(), front)
        everywhere = torch.cdist(codes, front).amin(dim=-1)
        assert near.amin(dim=-1).mean() < 0.5 * everywhere.mean()
        # What is not seen is predicted all the same.
        assert found.incumbent_means.shape == (200, 2) and found.incumbent_means.isfinite().all()

    def test_luck_does_not_make_a_trial_seen(self) -> None:
        """Of the half near the front, no outcome decides which trials it holds."""
        problem = toy.problem()
        trials = complete_trials(problem, 100)
        codes = problem.space.encode([trial.config for trial in trials])
        spread = {*farthest_points(codes, 12)}
        lucky = [
            trial
            if trial.number in spread
            else replace(trial, measurements=(Measurement(float(trial.number % 2)),))
            for trial in trials
        ]
        assert self.seen(surrogates(problem, lucky)) == self.seen(surrogates(problem, trials))

    def test_a_proposal_is_a_function_of_the_trials(self, tmp_path: Path) -> None:
        whole = DPareto(toy.problem(), seed=0, candidates=64)
        whole.run(40, initial=36)
        DPareto(toy.problem(), seed=0, candidates=64, storage=tmp_path / "s").run(38, initial=36)
        resumed = DPareto(toy.problem(), seed=0, candidates=64, storage=tmp_path / "s")
        resumed.run(40, initial=36)
        assert [t.config for t in resumed.trials] == [t.config for t in whole.trials]


class TestProducts:
    def test_weights_are_of_logarithms_in_units_of_one(self) -> None:
        space = SearchSpace(
            kind=Choice("a", "b", "c"),
            rate=Real(0.01, 1.0, log=True),
            epochs=Integer(1, 10, log=True),
            products=[{"rate": 1, "epochs": 1}, {"rate": 2, "epochs": -1}],
        )
        weights = product_weights(space)
        assert weights is not None
        assert weights[:3].eq(0).all()
        assert weights[3:].flatten().tolist() == pytest.approx([2 / 3, 4 / 5, 1 / 3, -1 / 5])
        assert product_weights(toy.SPACE) is None


def test_hyper_parameters_are_fitted_less_often_as_trials_grow(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They are those of the trials up to the last time that they were due; the data are all."""
    assert [refit_every(n) for n in (1, 16, 31, 32, 63, 64, 255, 256, 10**6)] == [
        *(1, 1, 1, 2, 2, 4, 8, 16, 64)
    ]
    problem = toy.problem()
    trials = complete_trials(problem, 38)
    proposer = Proposer(problem, seed=0)
    fits = []

    def counted(train_X: Tensor, *args: Any, **options: Any) -> Any:
        fits.append(len(train_X))
        return fitted_gp(train_X, *args, **options)

    monkeypatch.setattr("botorch_dp.pareto.surrogates.fitted_gp", counted)
    found = {count: proposer.surrogates(trials[:count])._gps[1] for count in (36, 37, 38)}
    assert fits == [36, 38]
    before, between, _ = found.values()
    assert len(between.train_inputs[0]) == 37  # type: ignore[index]
    for one, other in zip(before.parameters(), between.parameters(), strict=True):
        assert torch.equal(one, other)
    # A search that has seen none of this believes the same.
    alone = Proposer(problem, seed=0).surrogates(trials[:37])._gps[1]
    at = torch.rand(9, 2, generator=torch.Generator().manual_seed(0), dtype=torch.double)
    for mine, theirs in zip(predicted(between, at), predicted(alone, at), strict=True):
        assert torch.equal(mine, theirs)


def test_farthest_codes() -> None:
    codes = torch.tensor([[0.0], [0.1], [1.0], [0.5], [0.5]]).double()
    assert farthest_points(codes, 3) == [0, 2, 3]
    assert sorted(farthest_points(codes, 5)) == [0, 1, 2, 3, 4]
