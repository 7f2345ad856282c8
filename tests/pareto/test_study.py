"""A study as its user sees it: arguments, runs, results by hand, going on, mistakes."""

from __future__ import annotations

import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
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
from botorch_dp.pareto.problem import Trial
from botorch_dp.space import Config
from tests.pareto import toy

#: What is told of a study, and not of its problem.
OWN = ("acquisition", "storage", "retries", "privacy_model", "epsilon_scale", "seed", "candidates")


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

    def test_a_refused_study_leaves_its_file_free(self, tmp_path: Path) -> None:
        path = tmp_path / "study.sqlite"
        with pytest.raises(ValueError, match="`levels`"):
            study(storage=path, acquisition="grid", grid_levels=0)
        study(storage=path).close()


REFUSED_BY_RUN: list[tuple[dict[str, Any], str]] = [
    *(
        ({name: value}, f"`{name}`")
        for name in ("trials", "initial", "batch_size")
        for value in (0, -3, 2.5, "4")
    ),
    *(
        ({name: value}, f"`{name}`")
        for name in ("timeout", "training_timeout")
        for value in (0, -1.0, float("nan"), "1")
    ),
    *(
        ({"callbacks": value}, "`callbacks` must be a sequence")
        for value in (3, [3], print, [None])
    ),
    ({"executor": 4}, "`executor` must be a concurrent"),
    ({"executor": lambda: 4}, r"`executor\(\)` must return"),
]


@pytest.mark.parametrize(("options", "match"), REFUSED_BY_RUN)
def test_a_run_refuses_before_anything_begins(options: dict[str, Any], match: str) -> None:
    refusing = study()
    with pytest.raises((ValueError, TypeError), match=match):
        refusing.run(**({"trials": 4} | options))
    assert not refusing.trials


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

    @pytest.mark.parametrize("acquisition", ["ehvi", "hvpoi", "qlogehvi"])
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

    def test_says_how_it_ended(self) -> None:
        tried = study()
        assert tried.last_run is None
        tried.run(3)
        assert tried.last_run == "complete"
        tried.run(9, callbacks=[lambda study, trial: study.stop()])
        assert tried.last_run == "stopped" and len(tried.trials) == 4

    def test_one_at_a_time(self) -> None:
        tried, said = study(), []

        def again(study: DPareto, trial: Trial) -> None:
            for call in (study.ask, lambda: study.run(9)):
                with pytest.raises(StudyError, match="while the study runs") as caught:
                    call()
                said.append(caught.value)

        tried.run(2, callbacks=[again])
        assert len(said) == 4 and len(tried.ask()) == 1

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
        with pytest.raises(StudyError, match=r"`space.noise.high` was 10.0 and is 5.0"):
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


class TestCallbacks:
    def test_told_of_every_trial_that_ended_once(self) -> None:
        def train(config: Config, seed: int) -> float:
            if config["epochs"] > 15:
                raise OSError
            return toy.utility(config, seed)

        def privacy(config: Config) -> float:
            return 1 / 0 if config["epochs"] < 4 else toy.epsilon(config)

        told: list[Trial] = []
        tried = study(train, privacy=privacy)
        tried.run(12, callbacks=[lambda study, trial: told.append(trial)])
        assert sorted(told, key=lambda trial: trial.number) == tried.trials
        assert {trial.state for trial in told} == {"complete", "failed"}

    def test_failed_trials_are_named_at_the_end(self) -> None:
        def train(config: Config, seed: int) -> float:
            if config["epochs"] > 10:
                raise OSError("a record")
            return toy.utility(config, seed)

        tried = study(train)
        with pytest.warns(UserWarning, match=r"of 12 trials failed with \['OSError'\]") as found:
            tried.run(12)
        assert "a record" not in str(found[0].message)
        assert len(found) == 1

    @pytest.mark.parametrize("threads", [0, 3])
    def test_stop_lets_finish_what_runs(self, threads: int) -> None:
        def enough(study: DPareto, trial: Trial) -> None:
            if sum(trial.state == "complete" for trial in study.trials) >= 4:
                study.stop()

        tried = study(toy.Slow(0.01))
        pool = ThreadPoolExecutor(threads) if threads else None
        tried.run(40, batch_size=max(threads, 1), executor=pool, callbacks=[enough])
        # Several may have ended before the first of them was told of.
        assert 4 <= len(tried.trials) <= 4 + 2 * threads
        assert all(trial.state == "complete" for trial in tried.trials)
        tried.run(9)
        assert len(tried.trials) == 9

    def test_what_it_raises_ends_the_run_and_loses_nothing(self) -> None:
        def disagrees(study: DPareto, trial: Trial) -> None:
            if trial.number == 2:
                raise RuntimeError("enough")

        tried = study()
        with pytest.raises(RuntimeError, match="enough"):
            tried.run(9, callbacks=[disagrees])
        assert [trial.state for trial in tried.trials] == ["complete"] * 3
        assert len(tried.run(5).trials) == 5


class TestTimeout:
    def test_no_training_starts_after_it(self) -> None:
        tried = study(toy.Slow(0.05))
        start = time.monotonic()
        tried.run(1000, timeout=0.4)
        assert time.monotonic() - start < 25  # all of them would take fifty seconds
        assert 1 <= len(tried.trials) <= 9
        assert all(trial.state == "complete" for trial in tried.trials)
        assert len(tried.run(len(tried.trials) + 1).trials) == len(tried.trials)


class TestAddTrial:
    def test_is_complete_and_counts(self, tmp_path: Path) -> None:
        path = tmp_path / "study.sqlite"
        config = {"noise": 2.0, "epochs": 4}
        with study(storage=path, secret_noise=True) as tried:
            added = tried.add_trial(config, [0.75, 0.25])
            assert (added.number, added.state, added.config) == (0, "complete", config)
            assert added.epsilon == toy.epsilon(config) and added.error == 0.5
            front = tried.run(4)
        with study(storage=path, secret_noise=True) as again:
            assert again.trials == list(front.trials) and again.trials[0] == added
            assert len(again.trials) == 4
            total = sum(t.epsilon * t.num_trainings for t in again.trials)
            assert again.publication_guarantee().epsilon() == pytest.approx(total)

    def test_models_learn_from_it(self) -> None:
        taught, plain = study(acquisition="ehvi"), study(acquisition="ehvi")
        for config in toy.SPACE.sample(8, seed=3):
            taught.add_trial(config, toy.utility(config, 1))
        assert taught.run(9, initial=8).trials[-1].config != plain.run(1).trials[0].config
        assert taught.recommend(1.0).epsilon <= 1.0

    def test_one_that_is_re_evaluated(self) -> None:
        tried = study()
        tried.add_trial({"noise": 2.0, "epochs": 4}, 0.5)
        again = tried.front().reevaluate(3)
        assert len(again.trials[0].utilities) == 3

    def test_further_objectives(self) -> None:
        tried = study(objectives=[Objective("time", 60.0)])
        tried.add_trial({"noise": 2.0, "epochs": 4}, (0.5, {"time": 3.0}))
        assert tried.front().points.tolist() == [[1.0, 0.5, 3.0]]

    def test_wrong(self) -> None:
        tried = study()
        for config, utilities in (
            ({"noise": 2.0}, 0.5),
            ({"noise": 20.0, "epochs": 4}, 0.5),
            ({"noise": 2.0, "epochs": 4}, 50.0),
            ({"noise": 2.0, "epochs": 4}, []),
            ({"noise": 2.0, "epochs": 4}, [0.5, None]),
        ):
            with pytest.raises((TypeError, ValueError), match=r"`config`|`noise`|`utili"):
                tried.add_trial(config, utilities)
        assert not tried.trials


class TestTable:
    def test_all_trials(self) -> None:
        def train(config: Config, seed: int) -> float:
            if config["epochs"] > 10:
                raise OSError
            return toy.utility(config, seed)

        tried = study(train, replicates=2, retries=0, secret_noise=True)
        tried.run(8)
        (waiting,) = tried.ask()
        frame = tried.to_frame()
        assert len(frame) == 9 and list(frame["trial"]) == list(range(9))
        assert set(frame["state"]) == {"complete", "failed", "pending"}
        assert frame["epsilon"][8] == waiting.epsilon and np.isnan(frame["error"][8])
        failed = frame[frame["state"] == "failed"]
        assert set(failed["failures"]) == {"OSError"} and (failed["trainings"] > 0).all()
        assert frame["trainings"][8] == 0
        complete = [trial for trial in tried.trials if trial.state == "complete"]
        assert list(frame[frame["state"] == "complete"]["error"]) == [t.error for t in complete]
        assert "costs" in frame.attrs["guarantee"]
        assert list(frame["noise"]) == [trial.config["noise"] for trial in tried.trials]

    def test_nothing_yet(self) -> None:
        tried = study(objectives=[Objective("time", 60.0)])
        assert len(tried.to_frame()) == 0
        tried.ask()
        frame = tried.to_frame()
        assert "Nothing was trained" in frame.attrs["guarantee"] and np.isnan(frame["time"][0])


def percent(config: Config, seed: int) -> float:
    return 100 * toy.utility(config, seed)


def diverging(config: Config, seed: int) -> float:
    raise FloatingPointError


def misspelt(config: Config, seed: int) -> float:
    return toy.utility(config, sead=seed)  # type: ignore[call-arg]


class TestMistakes:
    """A study that cannot work says so at its first trials, and burns none of them."""

    @pytest.mark.parametrize(
        ("train", "match"),
        [
            (percent, "a share, not percent"),
            (lambda config, seed: torch.tensor(0.5), r"such as float\(accuracy\), got Tensor"),
            (lambda config, seed: None, "got NoneType"),
            (lambda config, seed: (0.5, {}), "got tuple"),
            (misspelt, "TypeError, raised in"),
            (lambda config, seed: config["nose"], "KeyError, raised in"),
            (lambda config, seed: nowhere(config), "NameError, raised in"),  # type: ignore[name-defined] # noqa: F821
        ],
    )
    def test_in_the_utility(self, train: Any, match: str) -> None:
        calls: list[int] = []

        def counted(config: Config, seed: int) -> float:
            calls.append(seed)
            return train(config, seed)

        tried = study(counted)
        with pytest.raises(StudyError, match=match) as caught:
            tried.run(16)
        assert "by hand" in str(caught.value) and caught.value.__cause__ is None
        assert len(calls) <= 10  # two attempts of five trials
        tried.problem.oracle = toy.utility
        front = tried.run(16)
        assert len(front.trials) >= 11

    def test_a_plain_mistake_burns_no_trial(self, tmp_path: Path) -> None:
        path = tmp_path / "study.sqlite"
        with study(percent, storage=path) as tried, pytest.raises(StudyError, match="percent"):
            tried.run(16)
        with study(storage=path) as tried:
            assert [trial.state for trial in tried.trials] == ["pending"]
            assert tried.trials[0].failures == ("InvalidUtilityError",)
            assert len(tried.run(5).trials) == 5

    @pytest.mark.parametrize("kind", ["threads", "processes"])
    def test_elsewhere(self, kind: str) -> None:
        pool = ThreadPoolExecutor(2) if kind == "threads" else ProcessPoolExecutor(2)
        with pool, pytest.raises(StudyError, match=r"misspelt: return toy.utility\(config, sead"):
            study(misspelt).run(16, batch_size=2, executor=pool)

    def test_the_message_stays_where_the_records_are(self) -> None:
        record = "Jane Doe, 1.75"

        def quotes(config: Config, seed: int) -> float:
            raise TypeError(f"cannot use {record!r}")

        with pytest.raises(StudyError) as caught:
            study(quotes).run(16)
        assert "Jane" not in str(caught.value) and "in quotes" in str(caught.value)
        assert caught.value.__cause__ is None

    @pytest.mark.parametrize(
        ("answer", "match"),
        [
            (lambda config: torch.tensor(1.0), r"MistakenEpsilonError: .*such as float\(epsilon\)"),
            (lambda config: config["nose"] * 2, "KeyError: 'nose'"),
            (lambda config: config["noise"] + "1", "TypeError: unsupported operand"),
            (lambda config: float("inf"), "InvalidEpsilonError: .*got inf"),
        ],
    )
    def test_in_the_privacy(self, answer: Any, match: str) -> None:
        tried = study(privacy=answer)
        with pytest.raises(StudyError, match=match) as caught:
            tried.run(16)
        assert caught.value.__cause__ is not None
        assert len(tried.trials) <= 4

    def test_in_the_privacy_of_a_short_run(self) -> None:
        """What an exact oracle says is shown in full, however few trials there are."""
        with pytest.raises(StudyError, match=r"ZeroDivisionError: .* on \{'noise'"):
            study(privacy=lambda config: 1 / 0).run(3)
        with pytest.raises(StudyError, match="FloatingPointError, raised in"):
            study(diverging, retries=0).run(2)

    def test_bad_luck_is_none(self) -> None:
        """Any number of trials may fail beside one that did not."""

        def train(config: Config, seed: int) -> float:
            if config["epochs"] > 8:
                raise TypeError
            return toy.utility(config, seed)

        tried = study(train, retries=0)
        config = next(c for c in toy.SPACE.sample(20, seed=0) if c["epochs"] <= 8)
        tried.add_trial(config, 0.5)
        assert len(tried.run(20).trials) < 20
        assert len(tried.trials) == 20

    def test_a_training_that_diverges_is_none(self) -> None:
        def train(config: Config, seed: int) -> float:
            return float("nan") if config["epochs"] < 8 else toy.utility(config, seed)

        tried = study(train)
        tried.run(12)
        assert {trial.state for trial in tried.trials} == {"complete", "failed"}

    def test_told_by_hand_it_is_refused_at_once(self) -> None:
        tried = study()
        (trial,) = tried.ask()
        with pytest.raises(InvalidUtilityError, match="not percent"):
            tried.tell(trial, 87.0)


def test_a_closed_study_still_shows_its_trials(tmp_path: Path) -> None:
    with study(storage=tmp_path / "s.sqlite") as tried:
        tried.run(3)
    assert len(tried.trials) == 3


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


def timed_utility(config: dict[str, Any], seed: int) -> tuple[float, dict[str, float]]:
    return toy.utility(config, seed), {"time": 2.0 * config["epochs"]}


def toy_half(config: dict[str, Any], seed: int) -> float:
    return 0.5
