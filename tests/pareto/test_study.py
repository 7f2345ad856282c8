from __future__ import annotations

import itertools
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
from botorch_dp.pareto.paying import _filtered
from botorch_dp.privacy import (
    ApproximateLoss,
    FixedBatchSGDLoss,
    GaussianLoss,
    Guarantee,
    LaplaceLoss,
    PoissonSGDLoss,
    PrivacyUnit,
    PureLoss,
    compose,
    gaussian_epsilon,
    gaussian_guarantee,
)
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
    @pytest.mark.parametrize("value", [0, -3, 2.5, "4"])
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

    @pytest.mark.slow
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
        with pytest.raises(StudyError, match=r"InvalidEpsilonError: .* got -1"):
            asked.ask(initial=8)
        assert [trial.state for trial in asked.trials] == ["failed"] * 4


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
        with pytest.raises(StudyError, match=r"`space.noise.high` was 10.0 and is 5.0.*wider"):
            study(toy_with(noise=Real(0.1, 5.0, log=True)), storage=path)

    def test_another_privacy_function_is_noticed(self, tmp_path: Path) -> None:
        """Front and price use stored epsilons, `recommend` the function: they must agree."""
        path = tmp_path / "study.sqlite"
        with study(storage=path) as first:
            first.run(3)
            (waiting,) = first.ask()

        def optimistic(config: dict[str, Any]) -> float:
            other = config == waiting.config
            return toy.epsilon(config) * (1 - 1e-5 if other else 1)

        with pytest.raises(StudyError, match=r"epsilon of trial 3 was .* and is now"):
            study(toy.problem(privacy=optimistic), storage=path)
        with pytest.raises(StudyError, match="ZeroDivisionError on the config of trial 0"):
            study(toy.problem(privacy=lambda config: 1 / 0), storage=path)
        rounded = toy.problem(privacy=lambda config: toy.epsilon(config) * (1 + 1e-9))
        with study(rounded, storage=path) as again:
            assert len(again.run(5).trials) == 5

    def test_a_trial_without_epsilon_does_not_block(self, tmp_path: Path) -> None:
        path = tmp_path / "study.sqlite"

        def fails(config: dict[str, Any]) -> float:
            return 1 / 0 if config["epochs"] > 10 else toy.epsilon(config)

        for trials in (6, 8):
            with study(toy.problem(privacy=fails), storage=path) as part:
                part.run(trials)
                assert {trial.state for trial in part.trials} == {"complete", "failed"}


class TestFilter:
    """Trials are chosen by the results of earlier ones: no bound may be picked after the fact."""

    def test_a_tree_that_is_worse_than_each_of_its_paths(self) -> None:
        """Randomized response; then another one after a yes, and a rare disclosure after a no."""
        first, second = math.log(18 / 7), math.log(73 / 23)
        disclosure = 0.375

        def guarantee(*losses: PureLoss | ApproximateLoss) -> Guarantee:
            return Guarantee("tree", PrivacyUnit(), losses)

        paths = [
            guarantee(PureLoss(first), PureLoss(second)),
            guarantee(PureLoss(first), ApproximateLoss(0.0, disclosure)),
        ]

        def tree_delta(epsilon: float) -> float:
            """Largest P(S) - e^epsilon Q(S) over all outcomes of the whole tree."""
            yes, other = 18 / 25, 73 / 96
            outcomes = [
                (yes * other, (1 - yes) * (1 - other)),
                (yes * (1 - other), (1 - yes) * other),
                ((1 - yes) * disclosure, 0.0),
                ((1 - yes) * (1 - disclosure), yes * (1 - disclosure)),
            ]
            return sum(max(0.0, p - math.exp(epsilon) * q) for p, q in outcomes)

        assert tree_delta(first) == pytest.approx(0.48)
        for path in paths:
            # What composition makes of the losses that occurred understates the tree.
            assert path.delta(first) == pytest.approx(0.375)
        budget = guarantee(ApproximateLoss(first + second, disclosure))
        for path in paths:
            (loss,) = _filtered([path], 1e-6).losses
            assert loss.epsilon <= first + second + 1e-12
            assert getattr(loss, "delta", 0.0) <= disclosure
        for epsilon in (0.0, 0.5, first, 2.0, first + second):
            assert tree_delta(epsilon) <= budget.delta(epsilon) + 1e-12

    @pytest.mark.parametrize(
        ("losses", "expected"),
        [
            ([PureLoss(1.0), LaplaceLoss(0.5), PureLoss(1.0)], PureLoss(2.5)),
            ([PureLoss(1.0), ApproximateLoss(0.5, 1e-5)], ApproximateLoss(1.5, 1e-5)),
            ([ApproximateLoss(1.0, 0.0)], PureLoss(1.0)),
            ([GaussianLoss(3.0), GaussianLoss(4.0)], GaussianLoss(5.0)),
        ],
    )
    def test_the_form_follows_from_the_kinds(self, losses: Any, expected: Any) -> None:
        parts = [Guarantee("a part", PrivacyUnit(), (loss,)) for loss in losses]
        assert _filtered(parts, 1e-6).losses == (expected,)

    @pytest.mark.parametrize(
        "loss",
        [
            FixedBatchSGDLoss(1.5, 64, 1000, 50),
            FixedBatchSGDLoss(2.0, 1000, 1000, 5),
            PoissonSGDLoss(1.5, 0.05, 50),
        ],
    )
    def test_one_order_for_dp_sgd(self, loss: Any) -> None:
        """Never below the best bound for fixed losses, and growing by equal steps."""
        part = Guarantee("training", PrivacyUnit(relation=loss.relation), (loss,))
        costs = [_filtered([part] * count, 1e-5).losses[0] for count in (10, 20, 30)]
        assert all(cost.delta == 1e-5 for cost in costs)
        assert costs[0].epsilon >= compose(*[part] * 10).epsilon(1e-5)
        first, second = (b.epsilon - a.epsilon for a, b in itertools.pairwise(costs))
        assert first == pytest.approx(second)

    def test_several_kinds(self) -> None:
        losses = (GaussianLoss(0.5), PureLoss(0.2), LaplaceLoss(0.3), PureLoss(0.0))
        parts = [Guarantee("a part", PrivacyUnit(), (loss,)) for loss in losses]
        (smooth,) = _filtered(parts, 1e-5).losses
        rough = Guarantee("a part", PrivacyUnit(), (ApproximateLoss(0.4, 1e-3),))
        (both,) = _filtered([*parts, rough], 1e-5).losses
        assert smooth.delta == 1e-5 and both.delta == pytest.approx(1e-5 + 1e-3)
        assert both.epsilon == pytest.approx(smooth.epsilon + 0.4)

    def test_all_conditions_and_assumptions_are_kept(self) -> None:
        parts = [
            Guarantee(
                f"part {i}",
                PrivacyUnit(conditions=(f"condition {i}",)),
                (GaussianLoss(1.0),),
                assumptions=(f"assumption {i}",),
            )
            for i in range(2)
        ]
        whole = _filtered(parts, 0.0)
        for i in range(2):
            assert f"condition {i}" in whole.conditions and f"assumption {i}" in whole.conditions


class TestPublicationGuarantee:
    def test_counts_every_training(self) -> None:
        def train(config: dict[str, Any], seed: int) -> float:
            if config["epochs"] > 10:
                raise OSError
            return toy.utility(config, seed)

        tried = study(toy.problem(train, replicates=2, secret_noise=True), retries=0)
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
        unit = PrivacyUnit("one patient", conditions=("a patient has one record",))
        tried = study(toy.problem(secret_noise=True, unit=unit))
        tried.run(2)
        guarantee = tried.publication_guarantee()
        assert guarantee.status == "conditional"
        text = str(guarantee)
        for condition in (
            "a patient has one record",
            "secret",
            "budget",
            "`privacy(config)` bounds",
            "for one patient",
        ):
            assert condition in text

    def test_seeded_trainings_promise_nothing(self) -> None:
        tried = study()
        front = tried.run(2)
        guarantee = tried.publication_guarantee()
        assert guarantee.status == "none" and guarantee.epsilon(0.5) == math.inf
        assert "seeds" in str(guarantee)
        assert "if each training were repeated with secret noise" in front.caption
        assert "if each training were repeated with secret noise" in str(front)

    def test_a_study_cannot_become_secret_later(self, tmp_path: Path) -> None:
        path = tmp_path / "study.sqlite"
        study(storage=path).close()
        with pytest.raises(StudyError, match="`secret_noise` is new"):
            study(toy.problem(secret_noise=True), storage=path)

    def test_deltas_add_up(self) -> None:
        tried = study(toy.problem(delta=1e-5, secret_noise=True))
        tried.run(2)
        (loss,) = tried.publication_guarantee().losses
        total = sum(trial.epsilon for trial in tried.trials)
        assert (loss.epsilon, loss.delta) == pytest.approx((total, 2e-5))
        assert "δ = 2e-05" in tried.front().caption

    def test_deltas_that_add_up_to_one(self) -> None:
        tried = study(toy.problem(delta=0.5, secret_noise=True))
        assert "deltas" in str(tried.run(2).guarantee.void)

    def test_joint_accounting_where_more_is_known(self) -> None:
        problem = toy.problem(guarantee=one_gaussian, secret_noise=True)
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
        released = study(toy.problem(utility_guarantee=one, replicates=2, secret_noise=True))
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


def toy_with(**parameters: Any) -> PrivacyUtilityProblem:
    space = SearchSpace(**(toy.SPACE.parameters | parameters))
    return PrivacyUtilityProblem(space, privacy=toy.epsilon, utility=toy.utility, name="toy")


def one_gaussian(config: dict[str, Any]) -> Guarantee:
    return gaussian_guarantee(sensitivity=1.0, mu=1 / config["noise"])


def timed_utility(config: dict[str, Any], seed: int) -> tuple[float, dict[str, float]]:
    return toy.utility(config, seed), {"time": 2.0 * config["epochs"]}


def toy_half(config: dict[str, Any], seed: int) -> float:
    return 0.5
