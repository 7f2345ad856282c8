"""A study as its user sees it: arguments, runs, results by hand, going on, mistakes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from botorch_dp.pareto import DPareto, Objective, PrivacyUtilityProblem, StudyError
from botorch_dp.pareto.problem import InvalidUtilityError
from botorch_dp.space import Config, Integer, SearchSpace
from tests.pareto import toy

#: What is told of a study, and not of its problem.
OWN = ("acquisition", "storage", "privacy_model", "epsilon_scale", "seed", "candidates")


def study(train: Any = toy.utility, **options: Any) -> DPareto:
    """A study of the toy problem, or of another one."""
    own = {"acquisition": "random", "seed": 0, "candidates": 128}
    own |= {name: options.pop(name) for name in (*OWN, "grid_levels") if name in options}
    problem = train if isinstance(train, PrivacyUtilityProblem) else toy.problem(train, **options)
    return DPareto(problem, **own)


class TestArguments:
    @pytest.mark.parametrize(
        ("options", "error", "match"),
        [
            ({"acquisition": "ei"}, ValueError, "`acquisition` must be one of"),
            ({"candidates": 1}, ValueError, "`candidates`"),
            ({"storage": "nowhere/study.sqlite"}, StudyError, "does not exist"),
        ],
    )
    def test_wrong(self, options: dict[str, Any], error: type[Exception], match: str) -> None:
        with pytest.raises(error, match=match):
            study(**options)

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

    def test_one_config(self) -> None:
        problem = PrivacyUtilityProblem(
            SearchSpace(n=Integer(3, 3)), privacy=lambda c: 1.0, utility=toy_half, name="one"
        )
        front = study(problem, acquisition="ehvi").run(6, initial=2)
        assert len(front) == 1 and len(front.trials) == 6

    @pytest.mark.one_in(2)
    @pytest.mark.parametrize("acquisition", ["ehvi", "hvpoi"])
    def test_further_objectives(self, acquisition: Any) -> None:
        problem = toy.problem(
            timed_utility,
            objectives=[
                Objective("size", 30.0, function=lambda config: float(config["epochs"]), log=False),
                Objective("time", 60.0),
            ],
        )
        front = study(problem, acquisition=acquisition, candidates=16).run(5, initial=4)
        assert front.points.shape[-1] == 4
        assert front.hypervolume() > 0
        assert front.table()["time"] == [2.0 * n for n in front.table()["size"]]


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

    def test_a_failed_trial_is_not_asked_for_again(self) -> None:
        asked = study()
        (trial,) = asked.ask()
        told = asked.tell(trial, error=OSError("record 17"))
        assert told.state == "failed" and told.failure == "OSError: record 17"
        assert asked.ask()[0].number == 1

    def test_a_hopeless_privacy_oracle_ends(self) -> None:
        asked = study(toy.problem(privacy=lambda config: -1.0))
        with pytest.raises(StudyError, match=r"failed with \['InvalidEpsilonError'\]"):
            asked.ask(initial=8)
        assert [trial.state for trial in asked.trials] == ["failed"] * 5
        assert "got -1" in asked.trials[0].failure


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
            ({"ref_point": (5.0, 1.0)}, "`ref_point` was"),
            ({"delta": 1e-5}, "`delta` was 0.0 and is 1e-05"),
        ):
            with pytest.raises(StudyError, match=what):
                study(toy.problem(**options), storage=path)

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
        with pytest.raises(ZeroDivisionError):
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


class TestTable:
    def test_all_trials(self) -> None:
        def train(config: Config, seed: int) -> float:
            if config["epochs"] > 10:
                raise OSError
            return toy.utility(config, seed)

        tried = study(train, replicates=2, secret_noise=True)
        tried.run(8)
        (waiting,) = tried.ask()
        frame = tried.to_frame()
        assert len(frame) == 9 and list(frame["trial"]) == list(range(9))
        assert set(frame["state"]) == {"complete", "failed", "pending"}
        assert frame["epsilon"][8] == waiting.epsilon and np.isnan(frame["error"][8])
        failed = frame[frame["state"] == "failed"]
        assert set(failed["failure"]) == {"OSError"} and (failed["trainings"] > 0).all()
        assert "costs" in frame.attrs["guarantee"]


def test_repr_holds_nothing_private() -> None:
    tried = study()
    tried.run(3)
    for trial in tried.trials:
        for value in (trial.utilities[0], trial.error):
            assert f"{value:.4f}" not in repr(tried) + repr(tried.trials) + repr(tried.front())


def timed_utility(config: dict[str, Any], seed: int) -> tuple[float, dict[str, float]]:
    return toy.utility(config, seed), {"time": 2.0 * config["epochs"]}


def toy_half(config: dict[str, Any], seed: int) -> float:
    return 0.5
