from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from botorch.acquisition import AcquisitionFunction
from botorch.acquisition.multi_objective.analytic import ExpectedHypervolumeImprovement
from botorch.models.model import Model
from botorch.utils.multi_objective.box_decompositions.box_decomposition import BoxDecomposition
from botorch.utils.multi_objective.box_decompositions.non_dominated import (
    FastNondominatedPartitioning,
)
from botorch.utils.testing import MockModel, MockPosterior
from torch import Tensor

from botorch_dp.acquisition.hvpoi import HypervolumeProbabilityOfImprovement
from botorch_dp.pareto import DPareto, PrivacyUtilityProblem, StudyError, Trial
from botorch_dp.pareto import surrogates as beliefs_module
from botorch_dp.pareto.front import dominated_volume
from botorch_dp.pareto.proposals import (
    NothingAffordableError,
    Proposer,
    expected_hypervolume_improvement,
    propose,
)
from botorch_dp.pareto.surrogates import objective_scales
from botorch_dp.space import Choice, Config, Real, SearchSpace
from tests.pareto import toy
from tests.pareto.test_surrogates import complete_trials

SMALL: dict[str, Any] = {"candidates": 128}


def identity(value: Tensor) -> Tensor:
    return value


class TestExpectedHypervolumeImprovement:
    ref_point = torch.tensor([0.0, 0.0], dtype=torch.double)
    front = torch.tensor([[0.2, 0.9], [0.5, 0.5], [0.9, 0.1]], dtype=torch.double)
    means = torch.tensor([[0.6, 0.7], [0.1, 0.2], [1.2, 0.3], [-0.5, 2.0]], dtype=torch.double)
    cells = FastNondominatedPartitioning(ref_point, Y=front).get_hypercell_bounds()

    def test_against_botorch(self) -> None:
        std = torch.tensor([[0.3, 0.2]], dtype=torch.double).expand_as(self.means)
        ours = expected_hypervolume_improvement(self.means, std, self.cells, [identity] * 2)
        # BoTorch's closed form wants one batch of points at a time.
        model = MockModel(
            MockPosterior(mean=self.means.unsqueeze(1), variance=std.unsqueeze(1) ** 2)
        )
        theirs = ExpectedHypervolumeImprovement(
            model=model,
            ref_point=self.ref_point.tolist(),
            partitioning=FastNondominatedPartitioning(self.ref_point, Y=self.front),  # type: ignore[arg-type]
        )(torch.zeros(4, 1, 1, dtype=torch.double))
        assert torch.allclose(ours, theirs, rtol=0.06, atol=2e-4)
        fine = expected_hypervolume_improvement(
            self.means, std, self.cells, [identity] * 2, num_nodes=150
        )
        assert torch.allclose(fine, theirs, rtol=0.01, atol=2e-4)

    def test_without_uncertainty_it_is_the_improvement(self) -> None:
        gains = expected_hypervolume_improvement(
            self.means, torch.zeros_like(self.means), self.cells, [identity] * 2
        )
        volume = dominated_volume(-self.front, [0.0, 0.0])
        for mean, gain in zip(self.means, gains, strict=True):
            joined = torch.cat([self.front, mean.unsqueeze(0)])
            assert gain == pytest.approx(dominated_volume(-joined, [0.0, 0.0]) - volume)

    @pytest.mark.one_in(2)
    @pytest.mark.parametrize("epsilon_scale", ["linear", "log"])
    def test_known_epsilon_and_logit_error_against_monte_carlo(self, epsilon_scale: str) -> None:
        problem = toy.problem()
        scales = objective_scales(problem, epsilon_scale)  # type: ignore[arg-type]
        points = torch.tensor([[0.5, 0.6], [2.0, 0.35], [6.0, 0.2]], dtype=torch.double)
        front = torch.stack(
            [s.to_volume(s.to_model(points[:, k])) for k, s in enumerate(scales)], dim=-1
        )
        ref_point = torch.tensor([s.ref_volume for s in scales], dtype=torch.double)
        cells = FastNondominatedPartitioning(ref_point, Y=front).get_hypercell_bounds()
        epsilon = torch.tensor([1.0], dtype=torch.double)
        mean = torch.tensor([[scales[0].to_model(epsilon).item(), 0.4]], dtype=torch.double)
        std = torch.tensor([[0.0, 0.5]], dtype=torch.double)
        ours = expected_hypervolume_improvement(mean, std, cells, [s.to_volume for s in scales])
        volume = dominated_volume(-front, (-ref_point).tolist())
        draws = np.random.default_rng(0).standard_normal(2000)
        gains = []
        for draw in draws:
            error = torch.sigmoid(-(mean[0, 1] + 0.5 * draw))
            new = torch.stack([scales[0].to_volume(mean[0, 0]), -error]).unsqueeze(0)
            joined = torch.cat([front, new])
            gains.append(dominated_volume(-joined, (-ref_point).tolist()) - volume)
        standard_error = np.std(gains) / math.sqrt(len(gains))
        assert abs(ours.item() - np.mean(gains)) < 5 * standard_error

    def test_empty_front(self) -> None:
        nothing = FastNondominatedPartitioning(self.ref_point, Y=-torch.ones(3, 2).double())
        gains = expected_hypervolume_improvement(
            self.means, torch.zeros_like(self.means), nothing.get_hypercell_bounds(), [identity] * 2
        )
        assert gains.tolist() == pytest.approx((self.means.clamp_min(0).prod(dim=-1)).tolist())


def proposed(
    problem: PrivacyUtilityProblem,
    trials: Sequence[Trial],
    initial: int = 4,
    *,
    seed: int = 0,
    options: dict[str, Any] = SMALL,
) -> Config:
    return propose(Proposer(problem, seed=seed, **options), trials, initial)


def pending(configs: Sequence[Config]) -> list[Trial]:
    return [Trial(n, config, (n,), 1.0) for n, config in enumerate(configs)]


def in_turn(problem: PrivacyUtilityProblem, count: int, initial: int) -> list[Config]:
    proposer, configs = Proposer(problem, seed=0, **SMALL), []
    for _ in range(count):
        configs.append(propose(proposer, pending(configs), initial))
    return configs


class TestPurity:
    @pytest.mark.one_in(3)
    @pytest.mark.parametrize(
        ("acquisition", "privacy_model"),
        [
            *((name, "exact") for name in ("ehvi", "hvpoi", "random", "grid")),
            *((name, "gp") for name in ("ehvi", "log_hvpoi")),
            pytest.param("log_hvpoi", "exact", marks=pytest.mark.slow),
            pytest.param("hvpoi", "gp", marks=pytest.mark.slow),
        ],
    )
    def test_same_history_same_proposal(self, acquisition: str, privacy_model: Any) -> None:
        """Whatever was asked before, and whatever torch's global seed is."""
        problem = toy.problem()
        options = SMALL | dict(acquisition=acquisition, privacy_model=privacy_model)
        trials = complete_trials(problem, 6)
        busy = Proposer(problem, seed=1, **options)
        propose(busy, trials[:4], initial=2)
        torch.manual_seed(123)
        state = torch.get_rng_state()
        first = propose(busy, trials, initial=2)
        assert torch.equal(state, torch.get_rng_state())
        torch.manual_seed(321)
        assert first == propose(Proposer(problem, seed=1, **options), trials, initial=2)
        assert problem.space.check(first) == first

    @pytest.mark.one_in(2)
    @pytest.mark.parametrize("privacy_model", ["exact", "gp"])
    def test_models_are_fitted_once_for_what_is_proposed_together(
        self, privacy_model: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """And the proposals are those of fresh fits."""
        fits: list[int] = []
        fit = beliefs_module.fitted_gp

        def counted(train_X: Tensor, *rest: Any, **options: Any) -> Any:
            fits.append(len(train_X))
            return fit(train_X, *rest, **options)

        monkeypatch.setattr(beliefs_module, "fitted_gp", counted)
        problem = toy.problem()
        options = SMALL | dict(privacy_model=privacy_model)
        study = DPareto(problem, seed=0, acquisition="random")
        study.run(6)
        trials = study.trials
        busy = Proposer(problem, seed=1, **options)
        for number in range(6, 9):
            found = propose(busy, trials, initial=2)
            assert propose(Proposer(problem, seed=1, **options), trials, initial=2) == found
            waiting = Trial(number, found, (0,), problem.epsilon(found))
            trials = [*trials, waiting]
        models = 1 if privacy_model == "exact" else 2
        assert len(fits) == 4 * models
        # What has ended since is another matter.
        study.run(7)
        propose(busy, study.trials, initial=2)
        assert len(fits) == 5 * models and fits[-1] > fits[0]


class TestInitialDesign:
    def test_does_not_depend_on_how_many_there_are(self) -> None:
        assert in_turn(toy.problem(), 20, initial=100)[:4] == in_turn(toy.problem(), 4, initial=4)

    def test_fills_the_space(self) -> None:
        codes = toy.SPACE.encode(in_turn(toy.problem(), 16, initial=16))
        # A Sobol sequence puts one of 16 points into each sixteenth of the first axis.
        assert sorted((codes[:, 0] * 16).floor().tolist()) == list(range(16))


class TestBest:
    problem = toy.problem()
    trials = complete_trials(problem, 8)

    def test_finds_the_optimum_of_a_score(self) -> None:
        proposer = Proposer(self.problem, seed=0, **SMALL)
        target = toy.SPACE.encode([{"noise": 3.21, "epochs": 13}])
        found = proposer.best(
            lambda c: -(c.codes - target).square().sum(dim=-1), proposer.surrogates(self.trials), 8
        )
        assert found is not None
        assert found["epochs"] == 13
        assert found["noise"] == pytest.approx(3.21, rel=0.05)

    def test_impossible_configs_are_not_proposed(self) -> None:
        def privacy(config: dict[str, Any]) -> float:
            return math.inf if config["noise"] < 5 else toy.epsilon(config)

        trials = [t for t in complete_trials(toy.problem(), 40) if t.config["noise"] >= 5]
        proposer = Proposer(toy.problem(privacy=privacy), seed=0, **SMALL)
        with pytest.warns(UserWarning, match="privacy: InvalidEpsilonError"):
            for number in range(len(trials), len(trials) + 3):
                config = propose(proposer, trials, initial=1)
                assert config["noise"] >= 5
                trials.append(Trial(number, config, (0,), 1.0))

    def test_nothing_is_possible(self) -> None:
        problem = toy.problem(privacy=lambda config: math.nan)
        failures = "privacy: InvalidEpsilonError"
        with (
            pytest.warns(UserWarning, match=failures),
            pytest.raises(StudyError, match=rf"for all candidates \({failures}\)"),
        ):
            proposed(problem, self.trials, 2)

    @pytest.mark.one_in(3)
    @pytest.mark.parametrize("acquisition", ["ehvi", "hvpoi", "log_hvpoi"])
    def test_no_point_dominates_the_reference(self, acquisition: str) -> None:
        """EHVI has no incumbents then, and HVPoI is zero wherever the mean is no better."""
        problem = toy.problem(ref_point=(0.011, 0.01))
        config = proposed(problem, self.trials, options=SMALL | dict(acquisition=acquisition))
        assert problem.space.check(config) == config


class TestBudget:
    """What a budget affords is an argument."""

    @dataclass
    class Cheap:
        """Affords little noise to nobody; quick answers are as good as exact ones, or too good."""

        least: float
        guess: float

        def affordable(
            self, configs: Sequence[Config], trials: int, *, exact: bool = False
        ) -> list[bool]:
            least = self.least if exact else self.guess
            return [config["noise"] >= least for config in configs]

    @pytest.mark.one_in(2)
    @pytest.mark.parametrize("acquisition", ["ehvi", "random", "grid"])
    @pytest.mark.parametrize("guess", [3.0, 2.9])
    def test_only_what_is_affordable_is_proposed(self, acquisition: str, guess: float) -> None:
        problem, trials = toy.problem(), complete_trials(toy.problem(), 8)
        options = SMALL | dict(acquisition=acquisition)
        proposer = Proposer(problem, seed=0, **options)
        config = propose(proposer, trials, 4, self.Cheap(3.0, guess))
        assert config["noise"] >= 3.0
        assert propose(proposer, trials, 4) == proposed(problem, trials, options=options)

    def test_nothing_is_affordable(self) -> None:
        proposer = Proposer(toy.problem(), seed=0, **SMALL)
        for guess in (0.0, math.inf):
            with pytest.raises(NothingAffordableError):
                propose(proposer, [], 4, self.Cheap(math.inf, guess))


class TestPending:
    def test_what_is_in_training_is_not_proposed_again(self) -> None:
        problem = toy.problem()
        trials = complete_trials(problem, 10)
        first = proposed(problem, trials)
        waiting = replace(trials[0], number=10, config=first, state="pending", measurements=(None,))
        second = proposed(problem, [*trials, waiting])
        assert torch.dist(*problem.space.encode([first, second])) > 0.05

    def test_a_failing_region_is_left(self) -> None:
        """The model never sees a failure, and yet does not propose the same config for ever."""
        problem = toy.problem()
        trials = complete_trials(problem, 10)
        proposer = Proposer(problem, seed=0, **SMALL)
        for number in range(10, 16):
            config = propose(proposer, trials, initial=4)
            failed = replace(
                trials[0], number=number, config=config, state="failed", measurements=(None,)
            )
            trials.append(failed)
        codes = problem.space.encode([trial.config for trial in trials[10:]])
        assert torch.pdist(codes).min() > 0.01


def test_a_users_acquisition_function() -> None:
    seen = {}

    def factory(
        model: Model, ref_point: Tensor, partitioning: BoxDecomposition
    ) -> AcquisitionFunction:
        seen["ref_point"] = ref_point
        return HypervolumeProbabilityOfImprovement(model, ref_point, partitioning)

    problem = toy.problem()
    trials = complete_trials(problem, 8)
    own, built_in = (
        proposed(problem, trials, options=SMALL | dict(acquisition=acquisition))
        for acquisition in (factory, "hvpoi")
    )
    assert own == built_in
    assert seen["ref_point"].tolist() == pytest.approx([-math.log(10), -math.log(0.999 / 0.001)])


def test_every_point_of_a_grid_once_in_an_order_of_its_own() -> None:
    space = SearchSpace(a=Real(0, 1), b=Real(0, 1))
    problem = PrivacyUtilityProblem(space, privacy=lambda c: 1.0, utility=lambda c, s: 0.5)
    proposer = Proposer(problem, seed=0, **(SMALL | dict(acquisition="grid", grid_levels=3)))
    trials: list[Trial] = []
    for number in range(9):
        assert proposer.most_trials(trials) == 9
        trials.append(Trial(number, propose(proposer, trials, 16), (1,), 1.0))
    configs = [trial.config for trial in trials]
    assert sorted(map(str, configs)) == sorted(map(str, space.grid(3)))
    assert configs != space.grid(3)
    with pytest.raises(StudyError, match="9 points"):
        propose(proposer, trials, 16)


def mixed_utility(config: dict[str, Any], seed: int) -> float:
    bonus = {"good": 0.3, "fair": 0.15, "poor": 0.0}[config["kind"]]
    return 0.2 + bonus + 0.3 * config["x"]


def mixed_problem(**options: Any) -> PrivacyUtilityProblem:
    space = SearchSpace(x=Real(0.0, 1.0), kind=Choice("poor", "fair", "good"), **options)
    return PrivacyUtilityProblem(
        space, privacy=lambda c: 0.5 + c["x"], utility=mixed_utility, ref_point=(3.0, 1.0)
    )


class TestChoicesAndConstraints:
    @pytest.mark.one_in(3)
    @pytest.mark.parametrize("acquisition", ["ehvi", "hvpoi", "log_hvpoi", "random", "grid"])
    def test_every_acquisition_copes(self, acquisition: Any) -> None:
        problem = mixed_problem(constraints=[lambda c: c["kind"] != "fair" or c["x"] < 0.5])
        study = DPareto(problem, acquisition=acquisition, seed=0, candidates=64)
        front = study.run(7, initial=5)
        assert all(problem.space.satisfies(trial.config) for trial in study.trials)
        assert front.points.isfinite().all() and "kind" in front.table()

    def test_the_best_choice_is_found(self, tmp_path: Path) -> None:
        problem = mixed_problem()
        path = tmp_path / "study.sqlite"
        with DPareto(problem, seed=0, candidates=128, storage=path) as study:
            study.run(10, initial=6)
        with DPareto(problem, candidates=128, storage=path) as study:
            study.run(14, initial=6)
            assert {trial.config["kind"] for trial in study.trials[10:]} == {"good"}
            assert study.recommend(1.0).config["kind"] == "good"

    def test_nothing_satisfies_the_constraints(self) -> None:
        problem = mixed_problem(constraints=[lambda config: False])
        for acquisition in ("ehvi", "grid"):
            with pytest.raises(ValueError, match=r"None of .* configs satisfies"):
                DPareto(problem, acquisition=acquisition, seed=0).ask()
