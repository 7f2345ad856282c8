from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from botorch_dp.pareto import (
    DPareto,
    Integer,
    InvalidUtilityError,
    Objective,
    PrivacyUtilityProblem,
    Real,
    SearchSpace,
    StudyError,
)
from botorch_dp.privacy import Guarantee, PrivacyUnit, gaussian_guarantee
from botorch_dp.privacy.accounting import gaussian_epsilon
from botorch_dp.privacy.losses import ApproximateLoss, GaussianLoss
from tests.pareto import toy


def study(problem: PrivacyUtilityProblem | None = None, **options: Any) -> DPareto:
    options = {"acquisition": "random", "seed": 0, "candidates": 128} | options
    return DPareto(toy.problem() if problem is None else problem, **options)


class TestArguments:
    @pytest.mark.parametrize(
        ("options", "error", "match"),
        [
            ({"acquisition": "ei"}, ValueError, "`acquisition` must be one of"),
            ({"privacy_model": "guess"}, ValueError, "`privacy_model` must be one of"),
            ({"epsilon_scale": "square"}, ValueError, "`epsilon_scale` must be one of"),
            ({"seed": -1}, ValueError, "`seed`"),
            ({"seed": 1.5}, TypeError, "`seed`"),
            ({"retries": -1}, ValueError, "`retries`"),
            ({"candidates": 1}, ValueError, "`candidates`"),
            ({"acquisition": "grid", "grid_levels": 0}, ValueError, "`levels`"),
            ({"storage": "nowhere/study.sqlite"}, StudyError, "does not exist"),
        ],
    )
    def test_wrong(self, options: dict[str, Any], error: type[Exception], match: str) -> None:
        with pytest.raises(error, match=match):
            study(**options)

    def test_not_a_problem(self) -> None:
        with pytest.raises(TypeError, match="`problem`"):
            DPareto(toy.SPACE)  # type: ignore[arg-type]

    @pytest.mark.parametrize("name", ["trials", "initial", "batch_size"])
    @pytest.mark.parametrize("value", [0, -3, 2.5, None])
    def test_wrong_run(self, name: str, value: Any) -> None:
        with pytest.raises((ValueError, TypeError), match=f"`{name}`"):
            study().run(**({"trials": 4} | {name: value}))

    def test_a_refused_study_leaves_its_file_free(self, tmp_path: Path) -> None:
        path = tmp_path / "study.sqlite"
        with pytest.raises(ValueError, match="`levels`"):
            study(storage=path, acquisition="grid", grid_levels=0)
        study(storage=path).close()


class TestRun:
    def test_trials_counts_all_trials(self) -> None:
        tried = study()
        assert len(tried.run(3).trials) == 3
        assert len(tried.run(5).trials) == 5
        assert len(tried.run(2).trials) == 5, "nothing is taken away"

    def test_beats_random_search_on_a_noisy_problem(self) -> None:
        """Paired over seeds, on fronts measured again: what was found, not what was lucky."""

        def volume(acquisition: str, seed: int) -> float:
            front = study(acquisition=acquisition, seed=seed).run(20, initial=8)
            again = front.reevaluate(30)
            return again.hypervolume()

        gains = [volume("ehvi", seed) - volume("random", seed) for seed in range(3)]
        assert min(gains) > 0

    def test_a_grid_ends(self) -> None:
        tried = study(acquisition="grid", grid_levels=2)
        assert len(tried.run(4).trials) == 4
        with pytest.raises(ValueError, match="more than the grid's 4 points"):
            tried.run(5)

    def test_a_reference_that_nothing_dominates(self) -> None:
        problem = toy.problem(ref_point=(1e-4, 1e-3))
        front = study(problem, acquisition="ehvi").run(10, initial=6)
        assert front.hypervolume() == 0.0 and len(front) >= 1

    def test_one_config(self) -> None:
        problem = PrivacyUtilityProblem(
            SearchSpace(n=Integer(3, 3)), privacy=lambda c: 1.0, utility=toy_half, name="one"
        )
        front = study(problem, acquisition="ehvi").run(6, initial=2)
        assert len(front) == 1 and len(front.trials) == 6

    def test_perfect_and_useless_utilities(self) -> None:
        problem = toy.problem(lambda config, seed: float(config["epochs"] > 10))
        front = study(problem, acquisition="ehvi").run(12, initial=6)
        assert front.all_points.isfinite().all()

    def test_further_objectives(self) -> None:
        problem = PrivacyUtilityProblem(
            SearchSpace(noise=Real(0.1, 10, log=True), epochs=Integer(1, 20)),
            privacy=toy.epsilon,
            utility=timed_utility,
            objectives=[
                Objective("size", 30.0, function=lambda config: float(config["epochs"]), log=False),
                Objective("time", 60.0),
            ],
            name="four",
        )
        for acquisition in ("ehvi", "hvpoi", "qlogehvi"):
            front = study(problem, acquisition=acquisition).run(7, initial=6)
            assert front.points.shape[-1] == 4
            assert front.hypervolume() > 0
            assert front.table()["time"] == [2.0 * n for n in front.table()["size"]]

    def test_global_random_state_is_left_alone(self) -> None:
        state = torch.get_rng_state()
        study(acquisition="ehvi").run(7, initial=5)
        assert torch.equal(state, torch.get_rng_state())


class TestAskTell:
    def test_by_hand_as_by_run(self) -> None:
        by_run = study(acquisition="ehvi").run(9, initial=5)
        by_hand = study(acquisition="ehvi")
        for _ in range(9):
            (trial,) = by_hand.ask(initial=5)
            told = by_hand.tell(trial, toy.utility(trial.config, trial.seeds[0]))
            assert told.state == "complete"
        assert by_hand.front().all_points.equal(by_run.all_points)

    def test_replicates_are_a_list(self) -> None:
        asked = study(toy.problem(replicates=3))
        (trial,) = asked.ask()
        assert len(set(trial.seeds)) == 3
        with pytest.raises(InvalidUtilityError, match="list of 3 utilities"):
            asked.tell(trial, 0.5)
        assert asked.tell(trial, [0.5, 0.25, 0.75]).error == pytest.approx(0.5)

    def test_nonsense_leaves_the_trial_pending(self) -> None:
        asked = study()
        (trial,) = asked.ask()
        with pytest.raises(InvalidUtilityError):
            asked.tell(trial, 50.0)
        with pytest.raises(ValueError, match="exactly one"):
            asked.tell(trial)
        with pytest.raises(ValueError, match="exactly one"):
            asked.tell(trial, 0.5, error=OSError())
        assert asked.tell(trial, 0.5).state == "complete"
        with pytest.raises(ValueError, match="complete already"):
            asked.tell(trial, 0.5)
        with pytest.raises(ValueError, match="unknown"):
            asked.tell(17, 0.5)

    def test_a_failed_attempt_is_asked_for_again(self) -> None:
        asked = study(retries=1)
        (trial,) = asked.ask()
        assert asked.tell(trial, error=OSError("record 17")).state == "pending"
        (again,) = asked.ask()
        assert (again.number, again.config, again.seeds) == (0, trial.config, trial.seeds)
        assert asked.tell(again.number, error=OSError()).state == "failed"
        assert asked.ask()[0].number == 1

    def test_measured_objectives(self) -> None:
        asked = study(toy.problem(objectives=[Objective("time", 60.0)]))
        (trial,) = asked.ask()
        assert asked.tell(trial, (0.5, {"time": 3.0})).state == "complete"
        assert asked.front().points.tolist() == [[trial.epsilon, 0.5, 3.0]]

    def test_a_hopeless_privacy_oracle_ends(self) -> None:
        asked = study(toy.problem(privacy=lambda config: -1.0))
        with pytest.raises(StudyError, match="InvalidEpsilonError"):
            asked.ask(initial=8)
        assert len(asked.trials) == 8


class TestResume:
    def test_orphans_come_first_as_they_were(self, tmp_path: Path) -> None:
        path = tmp_path / "study.sqlite"
        with study(storage=path) as first:
            orphans = first.ask(2)
        with study(storage=path) as second:
            again = second.ask(3)
        assert again[:2] == orphans and again[2].number == 2

    def test_in_pieces_as_in_one_go(self, tmp_path: Path) -> None:
        problem = toy.problem(replicates=2)
        whole = study(problem, acquisition="ehvi").run(10, initial=5)
        path = tmp_path / "study.sqlite"
        for trials in (2, 5, 7, 10):
            with study(
                problem, acquisition="ehvi", storage=path, seed=None if trials > 2 else 0
            ) as part:
                front = part.run(trials, initial=5)
        assert front.all_points.equal(whole.all_points)

    def test_another_problem_says_what_differs(self, tmp_path: Path) -> None:
        path = tmp_path / "study.sqlite"
        study(storage=path).close()
        for options, what in (
            ({"replicates": 2}, "`replicates` was 1 and is 2"),
            ({"ref_point": (5.0, 1.0)}, "`ref_point` was"),
            ({"name": "other"}, "`name` was 'toy' and is 'other'"),
            ({"delta": 1e-5}, "`delta` was 0.0 and is 1e-05"),
        ):
            with pytest.raises(StudyError, match=what):
                study(toy.problem(**options), storage=path)
        wider = PrivacyUtilityProblem(
            SearchSpace(noise=Real(0.1, 20.0, log=True), epochs=Integer(1, 20)),
            privacy=toy.epsilon,
            utility=toy.utility,
            name="toy",
        )
        with pytest.raises(StudyError, match=r"`space.noise.high` was 10.0 and is 20.0"):
            study(wider, storage=path)


class TestPublicationGuarantee:
    def test_counts_every_training(self) -> None:
        def train(config: dict[str, Any], seed: int) -> float:
            if config["epochs"] > 10:
                raise OSError
            return toy.utility(config, seed)

        tried = study(toy.problem(train, replicates=2), retries=0)
        front = tried.run(12)
        assert any(trial.state == "failed" for trial in tried.trials)
        again = front.reevaluate(3)
        total = sum(trial.epsilon * trial.num_trainings for trial in tried.trials)
        assert tried.publication_guarantee().epsilon() == pytest.approx(total)
        assert again.guarantee.epsilon() == pytest.approx(total)
        assert front.guarantee.epsilon() < total
        complete = [trial for trial in tried.trials if trial.state == "complete"]
        assert front.guarantee.epsilon() > sum(2 * trial.epsilon for trial in complete)

    def test_says_on_what_it_rests(self) -> None:
        tried = study()
        tried.run(2)
        guarantee = tried.publication_guarantee()
        assert guarantee.status == "conditional"
        text = str(guarantee)
        for condition in ("secret", "budget", "`privacy(config)` bounds"):
            assert condition in text

    def test_deltas_add_up(self) -> None:
        tried = study(toy.problem(delta=1e-5))
        tried.run(2)
        losses = tried.publication_guarantee().losses
        assert losses == tuple(ApproximateLoss(t.epsilon, 1e-5) for t in tried.trials)
        assert "δ = 2e-05" in tried.front().caption

    def test_joint_accounting_where_more_is_known(self) -> None:
        problem = toy.problem(guarantee=one_gaussian)
        tried = study(problem)
        tried.run(4)
        mu = math.hypot(*(1 / trial.config["noise"] for trial in tried.trials))
        guarantee = tried.publication_guarantee()
        assert guarantee.mu == pytest.approx(mu)
        assert guarantee.epsilon(1e-6) == pytest.approx(gaussian_epsilon(mu, 1e-6), rel=1e-6)
        assert guarantee.status == "conditional"

    def test_no_guarantee_stays_none(self) -> None:
        nothing = Guarantee("none", PrivacyUnit(), (), void="a guess")
        tried = study(toy.problem(guarantee=lambda config: nothing))
        assert tried.run(2).guarantee.status == "none"
        assert "no guarantee" in tried.front().caption

    def test_test_data(self) -> None:
        tried = study()
        tried.run(3)
        assert tried.publication_guarantee("test").epsilon() == math.inf
        one = Guarantee(
            "noisy accuracy",
            PrivacyUnit("one record of the test data"),
            (GaussianLoss(0.5),),
        )
        released = study(toy.problem(utility_guarantee=one, replicates=2))
        released.run(2)
        assert released.publication_guarantee("test").mu == pytest.approx(1.0)
        with pytest.raises(ValueError, match="`data`"):
            released.publication_guarantee("validation")  # type: ignore[arg-type]

    def test_nothing_to_publish(self) -> None:
        with pytest.raises(StudyError, match="Nothing was trained"):
            study().publication_guarantee()
        with pytest.raises(StudyError, match="No trial has finished"):
            study().front()


class TestRecommend:
    @pytest.mark.parametrize("privacy_model", ["exact", "gp"])
    def test_epsilon_is_exact_and_within(self, privacy_model: Any) -> None:
        tried = study(privacy_model=privacy_model)
        tried.run(20)
        point = tried.recommend(1.0)
        assert point.epsilon == toy.epsilon(point.config) <= 1.0
        assert toy.SPACE.check(point.config) == point.config

    def test_repeats(self) -> None:
        tried = study()
        tried.run(10)
        assert tried.recommend(2.0) == tried.recommend(2.0)


def test_repr_holds_nothing_private() -> None:
    tried = study()
    tried.run(3)
    for trial in tried.trials:
        for value in (trial.utilities[0], trial.error):
            assert f"{value:.4f}" not in repr(tried) + repr(tried.trials) + repr(tried.front())


def one_gaussian(config: dict[str, Any]) -> Guarantee:
    return gaussian_guarantee(sensitivity=1.0, mu=1 / config["noise"])


def timed_utility(config: dict[str, Any], seed: int) -> tuple[float, dict[str, float]]:
    return toy.utility(config, seed), {"time": 2.0 * config["epochs"]}


def toy_half(config: dict[str, Any], seed: int) -> float:
    return 0.5
