"""What a run tells and takes on its way: callbacks, limits, results from elsewhere, mistakes."""

from __future__ import annotations

import math
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from botorch_dp.pareto import DPareto, InvalidUtilityError, Objective, StudyError
from botorch_dp.pareto.problem import Trial
from botorch_dp.space import Config
from tests.pareto import toy


def study(train: Any = toy.utility, **options: Any) -> DPareto:
    names = {"acquisition", "storage", "retries"} & set(options)
    own = {name: options.pop(name) for name in names}
    return DPareto(toy.problem(train, **options), seed=0, **({"acquisition": "random"} | own))


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

    @pytest.mark.parametrize("callbacks", [3, [3], print, [None]])
    def test_wrong(self, callbacks: Any) -> None:
        with pytest.raises(TypeError, match="`callbacks` must be a sequence"):
            study().run(3, callbacks=callbacks)


class TestTimeout:
    def test_no_training_starts_after_it(self) -> None:
        tried = study(toy.Slow(0.05))
        start = time.monotonic()
        tried.run(1000, timeout=0.4)
        assert time.monotonic() - start < 5
        assert 1 <= len(tried.trials) <= 9
        assert all(trial.state == "complete" for trial in tried.trials)
        assert len(tried.run(len(tried.trials) + 1).trials) == len(tried.trials)

    @pytest.mark.parametrize("timeout", [0, -1.0, float("nan"), "1"])
    def test_wrong(self, timeout: Any) -> None:
        with pytest.raises((ValueError, TypeError), match="`timeout`"):
            study().run(3, timeout=timeout)


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

    @pytest.mark.parametrize(
        ("train", "match"),
        [
            (lambda config, seed, checkpoints: None, "a sequence of utilities.*got NoneType"),
            (lambda config, seed, checkpoints: dict.fromkeys(checkpoints, 0.5), "got dict"),
            (lambda config, seed, checkpoints: [math.nan for _ in checkpoints], "not NaN"),
            (lambda config, seed, checkpoints: [config["nose"]], "KeyError, raised in"),
            (lambda config, seed: 0.5, "TypeError, raised by the call itself"),
        ],
    )
    def test_in_a_curve(self, train: Any, match: str) -> None:
        tried = DPareto(toy.curve_problem(train), seed=0, candidates=64)
        with pytest.raises(StudyError, match=match):
            tried.run(16)
        assert len(tried.trials) <= 5

    def test_in_the_privacy_of_a_curve(self) -> None:
        problem = toy.curve_problem(privacy=lambda config: config["nose"])
        with pytest.raises(StudyError, match="KeyError: 'nose'"):
            DPareto(problem, seed=0).run(16)

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
