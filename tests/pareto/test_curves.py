"""One training is a curve: its points are stored as they come and kept after a kill."""

from __future__ import annotations

import math
import multiprocessing
import os
import signal
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from botorch_dp.acquisition.hvpoi import believe
from botorch_dp.pareto import Batched, DPareto, Integer, Objective, Real, SearchSpace, StudyError
from botorch_dp.pareto.beliefs import fitted_gp, predicted
from botorch_dp.pareto.curves import Staircase, expected_gains, of_no_training, stops
from botorch_dp.pareto.front import dominated_volume
from botorch_dp.pareto.problem import (
    CurvePlan,
    InvalidUtilityError,
    PrivacyUtilityProblem,
    Resource,
    Trial,
)
from botorch_dp.privacy import GaussianLoss, Guarantee, PrivacyUnit, PureLoss
from tests.pareto import toy

FORK = multiprocessing.get_context("fork")
CHECKPOINTS = (1, 2, 3, 4, 6, 8, 11, 16, 20)


def study(problem: PrivacyUtilityProblem | None = None, **options: Any) -> DPareto:
    options = {"acquisition": "random", "seed": 0} | options
    return DPareto(toy.curve_problem() if problem is None else problem, **options)


class TestProblem:
    def test_checkpoints_double_every_other_time_and_end_at_the_end(self) -> None:
        problem = toy.curve_problem()
        assert problem.checkpoints({"noise": 1.0, "epochs": 20}) == CHECKPOINTS
        assert problem.checkpoints({"noise": 1.0, "epochs": 5}) == (1, 2, 3, 4, 5)
        assert problem.checkpoints({"noise": 1.0, "epochs": 1}) == (1,)
        assert toy.problem().checkpoints({"noise": 1.0, "epochs": 5}) == ()

    def test_own_checkpoints(self) -> None:
        problem = toy.problem(
            None, utility_curve=toy.curve, resource=Resource("epochs", checkpoints=(5, 10))
        )
        assert problem.checkpoints({"noise": 1.0, "epochs": 20}) == (5, 10, 20)
        assert problem.checkpoints({"noise": 1.0, "epochs": 4}) == (4,)

    def test_a_constraint_removes_checkpoints(self) -> None:
        space = SearchSpace(
            epochs=Integer(1, 8),
            noise=Real(0.1, 10.0, log=True),
            constraints=[lambda config: config["epochs"] != 2],
        )
        problem = PrivacyUtilityProblem(
            space, privacy=toy.epsilon, utility_curve=toy.curve, resource="epochs"
        )
        assert problem.checkpoints({"noise": 1.0, "epochs": 8}) == (1, 3, 4, 6, 8)

    @pytest.mark.parametrize(
        ("options", "match"),
        [
            ({"utility_curve": toy.curve}, "needs `resource`"),
            ({"utility": toy.utility, "resource": "epochs"}, "needs `utility_curve`"),
            ({"utility": toy.utility, "utility_curve": toy.curve}, "exactly one"),
            ({"utility_curve": toy.curve, "resource": "noise"}, "an Integer of the space"),
            ({"utility_curve": toy.curve, "resource": "steps"}, "an Integer of the space"),
            (
                {"utility_curve": toy.curve, "resource": Resource("epochs", (4, 2))},
                "`checkpoints` must increase",
            ),
            ({"utility_curve": toy.curve, "resource": Resource("epochs", (0,))}, "`checkpoints`"),
        ],
    )
    def test_refused(self, options: dict[str, Any], match: str) -> None:
        with pytest.raises(ValueError, match=match):
            PrivacyUtilityProblem(toy.SPACE, privacy=toy.epsilon, **options)

    def test_resource_of_another_type(self) -> None:
        with pytest.raises(TypeError, match="`resource` must be a"):
            toy.problem(None, utility_curve=toy.curve, resource=3)

    def test_cost(self) -> None:
        assert toy.curve_problem().cost({"noise": 1.0, "epochs": 5}) == 5.0
        assert toy.problem().cost({"noise": 1.0, "epochs": 5}) == 1.0
        steps = Resource("epochs", cost=lambda config: 100.0 * config["epochs"])
        problem = toy.problem(None, utility_curve=toy.curve, resource=steps)
        assert problem.cost({"noise": 1.0, "epochs": 5}) == 500.0

    def test_longer_trainings_are_a_wider_space(self, tmp_path: Path) -> None:
        def problem(longest: int) -> PrivacyUtilityProblem:
            space = SearchSpace(noise=Real(0.1, 10.0, log=True), epochs=Integer(1, longest))
            return PrivacyUtilityProblem(
                space, privacy=toy.epsilon, utility_curve=toy.curve, resource="epochs", name="toy"
            )

        path = tmp_path / "study.sqlite"
        with study(problem(10), storage=path) as tried:
            tried.run(2)
        with study(problem(40), storage=path) as wider:
            front = wider.run(4)
        assert max(point.config["epochs"] for point in front.measured) == 40

    def test_another_resource_is_another_study(self, tmp_path: Path) -> None:
        study(storage=tmp_path / "study.sqlite").close()
        with pytest.raises(StudyError, match="`resource` is missing"):
            study(toy.problem(), storage=tmp_path / "study.sqlite")


class TestPoints:
    def test_one_training_gives_all_points(self) -> None:
        asked: list[tuple[int, ...]] = []

        def curve(config: dict[str, Any], seed: int, checkpoints: Sequence[int]) -> Iterator[float]:
            asked.append(tuple(checkpoints))
            return toy.curve(config, seed, checkpoints)

        front = study(toy.curve_problem(curve, replicates=2)).run(3)
        assert len(asked) == 6
        for trial in front.trials:
            points = front.problem.points(trial)
            assert [p.config["epochs"] for p in points] == list(trial.plan.checkpoints)
            for point in points:
                utilities = [toy.utility(point.config, seed) for seed in trial.seeds]
                assert point.values[0] == toy.epsilon(point.config)
                assert point.values[1] == pytest.approx(1 - sum(utilities) / 2)
                assert list(point.utilities) == utilities
        assert len(front.all_points) == sum(len(t.plan.checkpoints) for t in front.trials)

    @pytest.mark.parametrize("kind", ["threads", "processes"])
    def test_the_same_wherever_it_trains(self, kind: str) -> None:
        expected = study(toy.curve_problem(replicates=2)).run(4).all_points
        pool = ThreadPoolExecutor(2) if kind == "threads" else ProcessPoolExecutor(2, FORK)
        with pool:
            front = study(toy.curve_problem(replicates=2)).run(4, batch_size=2, executor=pool)
        assert front.all_points.equal(expected)

    def test_replicates_together(self) -> None:
        def curves(config: Any, seeds: Sequence[int], checkpoints: Sequence[int]) -> Iterator[Any]:
            for c in checkpoints:
                yield [toy.utility({**config, "epochs": c}, seed) for seed in seeds]

        problem = toy.problem(
            None, batched=Batched(replicates=curves), resource="epochs", replicates=2
        )
        expected = study(toy.curve_problem(replicates=2)).run(3).all_points
        assert study(problem).run(3).all_points.equal(expected)

    def test_a_list_is_a_curve_too(self) -> None:
        problem = toy.curve_problem(lambda *asked: list(toy.curve(*asked)))
        assert study(problem).run(3).all_points.equal(study().run(3).all_points)

    def test_front_names_the_checkpoints(self) -> None:
        front = study().run(4)
        table = front.table()
        assert len(set(table["trial"])) < len(table["trial"]), "a trial may give several points"
        for config, epsilon in zip(front.configs, table["epsilon"], strict=True):
            assert toy.epsilon(config) == epsilon
        assert table["epochs"] == [config["epochs"] for config in front.configs]
        assert len(front.hypervolume_by_trial()) == 4

    def test_evaluated_again_trains_as_long_as_the_front_asks(self) -> None:
        asked: list[tuple[int, ...]] = []

        def curve(config: dict[str, Any], seed: int, checkpoints: Sequence[int]) -> Iterator[float]:
            asked.append((config["epochs"], *checkpoints))
            return toy.curve(config, seed, checkpoints)

        tried = study(toy.curve_problem(curve))
        front = tried.run(4)
        wanted: dict[int, list[int]] = {}
        for point in front.measured_on_front:
            wanted.setdefault(point.trial, []).append(point.config["epochs"])
        asked.clear()
        again = front.reevaluate(2)
        assert sorted(set(asked)) == sorted((max(w), *sorted(w)) for w in wanted.values())
        assert len(again.all_points) == len(front)
        assert {(p.trial, p.config["epochs"]) for p in again.measured} == {
            (p.trial, p.config["epochs"]) for p in front.measured_on_front
        }
        assert sum(t.num_trainings for t in tried.trials) == 4 + 2 * len(wanted)

    @pytest.mark.parametrize(
        "answer",
        [
            lambda config, seed, checkpoints: [0.5],
            lambda config, seed, checkpoints: iter([0.5]),
            lambda config, seed, checkpoints: [50.0] * len(checkpoints),
            lambda config, seed, checkpoints: [None] * len(checkpoints),
        ],
    )
    def test_nonsense_fails_the_trial_at_once(self, answer: Any) -> None:
        tried = study(toy.curve_problem(answer))
        with pytest.raises(StudyError, match="InvalidUtilityError"):
            tried.run(1)
        assert tried.trials[0].failures == ("InvalidUtilityError",)


class TestPrefixes:
    def test_a_plan(self) -> None:
        plan = CurvePlan((1, 2, 4), (0.1, 0.2, 0.4), (0.0, 0.5, 0.0))
        assert plan.after(None) == (1, 2, 4) and plan.after(2) == (4,)
        assert not plan.is_last(1, [0.0]) and plan.is_last(4, [1.0])
        assert plan.is_last(2, [0.3, 0.6]) and not plan.is_last(2, [0.4, 0.6])

    def test_a_training_ends_below_its_stop(self, monkeypatch: pytest.MonkeyPatch) -> None:
        closed: list[int] = []

        def curve(config: dict[str, Any], seed: int, checkpoints: Sequence[int]) -> Iterator[float]:
            try:
                yield from toy.curve(config, seed, checkpoints)
            finally:
                closed.append(seed)

        tried = study(toy.curve_problem(curve))
        stops = (0.0, 0.0, 1.0, *[0.0] * 6)
        epsilons = tuple(toy.epsilon({"noise": 1.0, "epochs": c}) for c in CHECKPOINTS)
        plan = CurvePlan(CHECKPOINTS, epsilons, stops)
        tried._file.add(Trial(0, {"noise": 1.0, "epochs": 20}, (7,), epsilons[-1], plan=plan))
        front = tried.run(1)
        assert [p.config["epochs"] for p in front.measured] == [1, 2, 3]
        assert closed == [7], "the generator was not closed"


class TestGains:
    """Against the volume that points dominate."""

    @pytest.mark.parametrize("seed", range(5))
    def test_of_known_curves(self, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        front = torch.rand(6, 2, generator=generator, dtype=torch.double)
        front = front * torch.tensor([10.0, 0.5]) + torch.tensor([0.0, 0.1])
        staircase = Staircase.of(front[:, 0], front[:, 1], begin=0.0, end=10.0, worst=1.0)
        epsilons = 12 * torch.rand(3, 5, generator=generator, dtype=torch.double)
        epsilons = epsilons.sort(dim=1).values
        means = 1 + torch.randn(3, 5, generator=generator, dtype=torch.double)
        gains = expected_gains(
            staircase, epsilons, means, torch.zeros_like(means), lambda y: torch.sigmoid(-y)
        )
        before = dominated_volume(front, (10.0, 1.0))
        for n in range(3):
            for k in range(5):
                points = torch.stack([epsilons[n], torch.sigmoid(-means[n])], dim=-1)[: k + 1]
                after = dominated_volume(torch.cat([front, points]), (10.0, 1.0))
                assert gains[n, k].item() == pytest.approx(after - before, abs=1e-9)

    def test_uncertainty_moves_the_whole_curve(self) -> None:
        generator = torch.Generator().manual_seed(0)
        front = torch.tensor([[1.0, 0.4], [4.0, 0.2]], dtype=torch.double)
        staircase = Staircase.of(front[:, 0], front[:, 1], begin=0.0, end=10.0, worst=1.0)
        epsilons = torch.tensor([[0.5, 2.0, 6.0]], dtype=torch.double)
        means = torch.tensor([[0.2, 0.8, 1.6]], dtype=torch.double)
        stds = torch.tensor([[0.3, 0.4, 0.5]], dtype=torch.double)

        def error(y: torch.Tensor) -> torch.Tensor:
            return torch.sigmoid(-y)

        found = expected_gains(staircase, epsilons, means, stds, error)
        luck = torch.randn(50_000, 1, generator=generator, dtype=torch.double)
        many = expected_gains(
            staircase,
            epsilons.expand(len(luck), -1),
            means + luck * stds,
            torch.zeros(len(luck), 3, dtype=torch.double),
            error,
        )
        assert torch.allclose(found[0], many.mean(dim=0), rtol=0.02)

    def test_an_empty_front_gains_from_the_reference(self) -> None:
        nothing = torch.zeros(0, dtype=torch.double)
        staircase = Staircase.of(nothing, nothing, begin=0.0, end=10.0, worst=1.0)
        gains = expected_gains(
            staircase,
            torch.tensor([[2.0]], dtype=torch.double),
            torch.zeros(1, 1, dtype=torch.double),
            torch.zeros(1, 1, dtype=torch.double),
            lambda y: torch.sigmoid(-y),
        )
        assert gains.item() == pytest.approx(4.0)

    def test_stops_rise_with_the_rate_and_with_the_front(self) -> None:
        epsilons = torch.tensor([0.5, 1.0, 2.0, 4.0], dtype=torch.double)
        mean = torch.tensor([0.2, 0.6, 1.0, 1.4], dtype=torch.double)
        covariance = 0.09 * torch.ones(4, 4, dtype=torch.double)

        def found(best: float, rate: float) -> tuple[float, ...]:
            staircase = Staircase.of(
                torch.tensor([3.0], dtype=torch.double),
                torch.tensor([best], dtype=torch.double),
                begin=0.0,
                end=10.0,
                worst=1.0,
            )
            return stops(
                staircase,
                epsilons,
                mean,
                covariance,
                0.001,
                [1.0, 2.0, 4.0, 8.0],
                rate,
                lambda y: torch.sigmoid(-y),
            )

        assert found(0.4, 0.0) == (0.0, 0.0, 0.0, 0.0), "nothing is asked of the rest"
        modest, strict = found(0.4, 0.05), found(0.4, 0.5)
        assert modest[-1] == 0.0 and all(0 <= a <= b for a, b in zip(modest, strict, strict=True))
        assert sum(found(0.05, 0.05)) > sum(modest), "beside a better front less is worth its cost"


class TestGP:
    @pytest.mark.parametrize("seed", range(3))
    def test_does_not_learn_the_luck_of_a_training(self, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)

        def normal(count: int) -> torch.Tensor:
            return torch.randn(count, generator=generator, dtype=torch.double)

        X = torch.rand(24, 2, generator=generator, dtype=torch.double).repeat_interleave(6, dim=0)
        X[:, 1] = torch.linspace(0, 1, 6, dtype=torch.double).repeat(24)
        Y = X.sum(dim=-1) + 0.1 * normal(24).repeat_interleave(6) + 0.02 * normal(144)
        trainings = torch.arange(24).repeat_interleave(6)
        at = torch.rand(200, 2, generator=generator, dtype=torch.double)
        off, surprise = [], []
        for shared in (trainings, None):
            mean, std = predicted(fitted_gp(X, Y.unsqueeze(-1), seed=0, trainings=shared), at)
            off.append((mean - at.sum(dim=-1)).square().mean())
            surprise.append(((mean - at.sum(dim=-1)) / std).square().mean())
        assert off[0] < off[1], "six points of one training are not six looks"
        assert surprise[0] < surprise[1]

    def test_is_fitted_to_what_is_no_fall_and_sees_it_all(self) -> None:
        """A fall at the beginning has no part in the fit, and is believed as it was measured."""

        def curve(config: Any, seed: int, checkpoints: Sequence[int]) -> Iterator[float]:
            for checkpoint in checkpoints:
                yield 0.5 if checkpoint < 4 else toy.utility({**config, "epochs": checkpoint}, seed)

        def plain(config: Any, seed: int, checkpoints: Sequence[int]) -> Iterator[float]:
            for checkpoint in checkpoints:
                yield 0.1 if checkpoint < 4 else toy.utility({**config, "epochs": checkpoint}, seed)

        found = []
        for oracle in (curve, plain):
            tried = study(toy.curve_problem(oracle), acquisition="random", candidates=64)
            tried.run(6)
            beliefs = tried._search.beliefs(tried.trials)
            gp: Any = beliefs.model.models[1]
            found.append(gp.covar_module.kernels[0].lengthscale)
            first = min(beliefs.incumbents.configs, key=lambda config: config["epochs"])
            place = beliefs.incumbents.configs.index(first)
            error = float(torch.sigmoid(-beliefs.incumbent_means[place, 1]))
            assert abs(error - (0.5 if oracle is curve else 0.9)) < 0.2
        torch.testing.assert_close(*found)

    def test_believes_what_is_pending(self) -> None:
        X = torch.rand(8, 2, generator=torch.Generator().manual_seed(1), dtype=torch.double)
        gp = fitted_gp(X, X.sum(dim=-1, keepdim=True), seed=0, trainings=torch.arange(8))
        at = torch.tensor([[0.9, 0.1]], dtype=torch.double)
        believing = believe(gp, of_no_training(at))
        (mean, std), (before, wider) = predicted(believing, at), predicted(gp, at)
        assert torch.allclose(mean, before, atol=1e-6) and std < wider


class TestProposals:
    def test_the_resource_leaves_the_proposal(self) -> None:
        for acquisition in ("random", "grid"):
            tried = study(acquisition=acquisition)
            tried.run(3)
            assert {trial.config["epochs"] for trial in tried.trials} == {20}
            configs = [tuple(trial.config.values()) for trial in tried.trials]
            assert len(set(configs)) == len(configs)

    def test_the_first_trainings_are_shorter(self) -> None:
        tried = study(acquisition="ehvi", candidates=64)
        tried.run(2)
        assert all(1 < trial.config["epochs"] < 20 for trial in tried.trials)

    @pytest.mark.one_in(2)
    @pytest.mark.parametrize("longest", [1, 2, 3, 5])
    def test_short_ranges(self, longest: int) -> None:
        space = SearchSpace(noise=Real(0.1, 10.0, log=True), epochs=Integer(1, longest))
        problem = PrivacyUtilityProblem(
            space, privacy=toy.epsilon, utility_curve=toy.curve, resource="epochs"
        )
        front = study(problem, acquisition="ehvi", candidates=64).run(6)
        assert all(point.config["epochs"] <= longest for point in front.measured)

    def test_a_study_goes_on_as_if_it_had_not_stopped(self, tmp_path: Path) -> None:
        options: dict[str, Any] = {"acquisition": "ehvi", "candidates": 64}
        whole = study(**options).run(9).all_points
        with study(storage=tmp_path / "study.sqlite", **options) as first:
            first.run(6)
        with study(storage=tmp_path / "study.sqlite", **options) as second:
            assert second.run(9).all_points.equal(whole)

    def test_stops_are_used(self) -> None:
        tried = study(acquisition="ehvi", candidates=64)
        tried.run(12)
        plans = [trial.plan for trial in tried.trials[4:]]
        assert any(any(plan.stops) for plan in plans)
        for trial in tried.trials:
            for place, (_, point) in enumerate(trial.finished[0].curve[:-1]):
                assert point.utility >= trial.plan.stops[place]

    @pytest.mark.one_in(3)
    @pytest.mark.parametrize(
        ("acquisition", "privacy_model"),
        [
            ("hvpoi", "exact"),
            ("log_hvpoi", "gp"),
            ("qlogehvi", "exact"),
            *(
                pytest.param(*each, marks=pytest.mark.slow)
                for each in (("hvpoi", "gp"), ("log_hvpoi", "exact"), ("qlogehvi", "gp"))
            ),
        ],
    )
    def test_other_criteria_take_curves(self, acquisition: str, privacy_model: Any) -> None:
        tried = study(acquisition=acquisition, candidates=64, privacy_model=privacy_model)
        assert len(tried.run(6).trials) == 6

    def test_further_objectives(self) -> None:
        size = Objective("size", 40.0, function=lambda config: 1.0 + config["epochs"])

        def curve(config: Any, seed: int, checkpoints: Sequence[int]) -> Iterator[Any]:
            for checkpoint in checkpoints:
                yield toy.utility({**config, "epochs": checkpoint}, seed), {"time": checkpoint}

        problem = toy.curve_problem(curve, objectives=[size, Objective("time", 30.0)])
        front = study(problem, acquisition="ehvi", candidates=64).run(6)
        for point in front.measured:
            assert point.values[2:] == (1.0 + point.config["epochs"], point.config["epochs"])

    def test_pending_curves_are_believed(self) -> None:
        tried = study(acquisition="ehvi", candidates=64)
        tried.run(5)
        asked = tried.ask(3)
        assert len({tuple(trial.config.values()) for trial in asked}) == 3

    @pytest.mark.slow
    def test_better_than_chance_at_equal_epochs(self) -> None:
        def volume(acquisition: str, seed: int) -> tuple[float, int]:
            tried = study(acquisition=acquisition, candidates=256, seed=seed)
            tried.run(16)
            points = [p for t in tried.trials for p in tried.problem.points(t)]
            true = [(p.values[0], toy.expected_error(p.config)) for p in points]
            epochs = sum(max(dict(t.finished[0].curve)) for t in tried.trials)
            return dominated_volume(torch.tensor(true, dtype=torch.double), (10.0, 1.0)), epochs

        ours = [volume("ehvi", seed) for seed in range(3)]
        random = [volume("random", seed) for seed in range(3)]
        assert sum(v for v, _ in ours) > sum(v for v, _ in random)
        assert sum(e for _, e in ours) <= sum(e for _, e in random)


class TestRecommended:
    def test_any_checkpoint_may_be_recommended(self) -> None:
        tried = study(acquisition="ehvi", candidates=256)
        tried.run(16)
        for epsilon in (0.3, 1.0, 5.0):
            point = tried.recommend(epsilon)
            assert point.epsilon == toy.epsilon(point.config) <= epsilon
            assert abs(point.error - toy.expected_error(point.config)) < 0.08


class TestPrice:
    def test_a_curve_is_paid_for_once(self) -> None:
        tried = study(toy.curve_problem(secret_noise=True))
        tried.run(2)
        price = tried.publication_guarantee().epsilon(0.0)
        assert price == pytest.approx(sum(trial.epsilon for trial in tried.trials))

    @pytest.mark.parametrize("kind", ["gaussian", "pure"])
    def test_a_stopped_training_pays_for_its_steps_where_they_add_up(self, kind: str) -> None:
        def guarantee(config: Any) -> Guarantee:
            mu = math.sqrt(config["epochs"]) / config["noise"]
            loss = GaussianLoss(mu) if kind == "gaussian" else PureLoss(toy.epsilon(config))
            return Guarantee("training", PrivacyUnit("one record"), (loss,))

        tried = study(toy.curve_problem(secret_noise=True, guarantee=guarantee))
        epsilons = tuple(toy.epsilon({"noise": 1.0, "epochs": c}) for c in CHECKPOINTS)
        plan = CurvePlan(CHECKPOINTS, epsilons, (0.0, 0.0, 1.0, *[0.0] * 6))
        tried._file.add(Trial(0, {"noise": 1.0, "epochs": 20}, (7,), epsilons[-1], plan=plan))
        tried.run(1)
        assert tried.trials[0].finished[0].curve[-1][0] == 3
        (loss,) = tried.publication_guarantee().losses
        if kind == "gaussian":
            assert loss.mu == pytest.approx(math.sqrt(3))
        else:
            assert loss.epsilon == epsilons[-1]


class TestReport:
    def test_a_loop_of_ones_own(self) -> None:
        by_hand, by_run = study(), study()
        expected = by_run.run(3)
        for _ in range(3):
            (trial,) = by_hand.ask()
            for checkpoint in trial.plan.checkpoints:
                config = {**trial.config, "epochs": checkpoint}
                goes_on = by_hand.tell_point(trial, checkpoint, toy.utility(config, trial.seeds[0]))
                assert goes_on == (checkpoint != trial.plan.checkpoints[-1])
        assert by_hand.front().all_points.equal(expected.all_points)

    def test_told_at_once(self) -> None:
        by_hand = study()
        (trial,) = by_hand.ask()
        told = by_hand.tell(trial, {1: 0.5, 2: 0.6})
        assert told.state == "complete"
        assert [p.config["epochs"] for p in by_hand.front().measured] == [1, 2]

    def test_refused(self) -> None:
        by_hand = study()
        (trial,) = by_hand.ask()
        with pytest.raises(ValueError, match="`checkpoint` must be one of"):
            by_hand.tell_point(trial, 5000, 0.5)
        with pytest.raises(ValueError, match="`replicate` must be one of"):
            by_hand.tell_point(trial, 1, 0.5, replicate=1)
        with pytest.raises(InvalidUtilityError, match="is a curve"):
            by_hand.tell(trial, 0.5)
        with pytest.raises(InvalidUtilityError):
            by_hand.tell_point(trial, 1, 50.0)
        by_hand.tell(trial, {1: 0.5})
        with pytest.raises(ValueError, match="complete already"):
            by_hand.tell_point(trial, 1, 0.5)
        ordinary = DPareto(toy.problem(), seed=0, acquisition="random")
        (trial,) = ordinary.ask()
        with pytest.raises(ValueError, match="`checkpoint`"):
            ordinary.tell_point(trial, 1, 0.5)


class DiesAt:
    """The curve, which ends its process at a checkpoint unless the marker is there."""

    def __init__(self, folder: Path, checkpoint: int) -> None:
        self.marker, self.log, self.checkpoint = folder / "marker", folder / "log", checkpoint

    def __call__(self, config: Any, seed: int, checkpoints: Sequence[int]) -> Iterator[float]:
        with self.log.open("a") as log:
            log.write(f"{seed} {checkpoints[0]}\n")
        for checkpoint in checkpoints:
            if checkpoint == self.checkpoint and not self.marker.exists():
                self.marker.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            yield toy.utility({**config, "epochs": checkpoint}, seed)


class TestKilled:
    def test_goes_on_after_the_last_stored_point(self, tmp_path: Path) -> None:
        oracle = DiesAt(tmp_path, checkpoint=6)
        path = tmp_path / "study.sqlite"

        def opened() -> DPareto:
            problem = toy.curve_problem(oracle, secret_noise=True, replicates=2)
            return study(problem, storage=path)

        child = FORK.Process(target=lambda: opened().run(2))
        child.start()
        child.join(60)
        assert child.exitcode == -signal.SIGKILL
        with opened() as resumed:
            (trial,) = resumed.trials
            assert sorted(trial.begun[0]) == [1, 2, 3, 4] and trial.missing == (0, 1)
            front = resumed.run(2)
            first = resumed.trials[0]
        asked = [line.split() for line in oracle.log.read_text().splitlines()[:3]]
        assert [int(start) for _, start in asked] == [1, 6, 1], "points are not asked for again"
        assert asked[0][0] == asked[1][0], "the same training is begun again"
        # Its noise is secret, so that it is another training; both were measured.
        assert first.begun_again == 1 and first.num_trainings == 3
        plain = study(toy.curve_problem(secret_noise=True, replicates=2)).run(2)
        assert front.all_points.equal(plain.all_points)

    def test_an_error_halfway_counts_one_training(self) -> None:
        calls: list[int] = []

        def curve(config: Any, seed: int, checkpoints: Sequence[int]) -> Iterator[float]:
            calls.append(checkpoints[0])
            for checkpoint in checkpoints:
                if checkpoint == 3 and len(calls) == 1:
                    raise OSError
                yield toy.utility({**config, "epochs": checkpoint}, seed)

        tried = study(toy.curve_problem(curve))
        tried.run(1)
        (trial,) = tried.trials
        assert calls == [1, 3] and trial.failures == ("OSError",)
        assert trial.num_trainings == 2 and len(trial.finished[0].curve) == len(CHECKPOINTS)
