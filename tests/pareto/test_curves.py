"""One training is a curve: its points are stored as they come and kept after a kill."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sqlite3
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from botorch_dp.pareto import DPareto, Integer, Real, SearchSpace, StudyError
from botorch_dp.pareto.problem import (
    CurvePlan,
    InvalidUtilityError,
    PrivacyUtilityProblem,
    Resource,
)
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
        with pytest.raises(TypeError, match="`resource` must be a name"):
            toy.problem(None, utility_curve=toy.curve, resource=3)

    def test_cost(self) -> None:
        assert toy.curve_problem().cost({"noise": 1.0, "epochs": 5}) == 5.0
        assert toy.problem().cost({"noise": 1.0, "epochs": 5}) == 1.0
        steps = Resource("epochs", cost=lambda config: 100.0 * config["epochs"])
        problem = toy.problem(None, utility_curve=toy.curve, resource=steps)
        assert problem.cost({"noise": 1.0, "epochs": 5}) == 500.0

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

        problem = toy.problem(None, utility_replicates=curves, resource="epochs", replicates=2)
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
        tried._storage.add_trial(0, {"noise": 1.0, "epochs": 20}, (7,), epsilons[-1], plan=plan)
        front = tried.run(1)
        assert [p.config["epochs"] for p in front.measured] == [1, 2, 3]
        assert closed == [7], "the generator was not closed"


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
        assert first.interrupted_trainings == 1 and first.num_trainings == 3
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


class TestChecksums:
    """What was altered in the file is refused, whatever it is."""

    CHANGES = (
        "UPDATE trial SET config = replace(config, 'noise', 'n0ise') WHERE number = 0",
        "UPDATE trial SET epsilon = epsilon * 1.0001 WHERE number = 1",
        "UPDATE trial SET seeds = '[1]' WHERE number = 1",
        "UPDATE trial SET state = 'pending' WHERE number = 0",
        "UPDATE trial SET plan = replace(plan, '20', '19') WHERE number = 0",
        "UPDATE measurement SET utility = 0.99 WHERE trial = 1",
        "UPDATE point SET utility = utility + 1e-9 WHERE trial = 1 AND checkpoint = 4",
        "UPDATE point SET attempt = 3 WHERE trial = 1 AND checkpoint = 4",
        "DELETE FROM point WHERE trial = 0 AND checkpoint = 3",
        "DELETE FROM measurement WHERE trial = 1",
        "DELETE FROM trial WHERE number = 1",
        "INSERT INTO failure (trial, error_type, trainings, blamed, failed_at) "
        "VALUES (0, 'OSError', 0, 1, '')",
        "UPDATE study SET seed = '1'",
        "UPDATE study SET description = replace(description, 'toy', 'tOy')",
        "UPDATE study SET notice = ''",
    )

    @pytest.mark.parametrize("change", CHANGES)
    def test_altered(self, tmp_path: Path, change: str) -> None:
        path = tmp_path / "study.sqlite"
        with study(storage=path) as tried:
            tried.run(2)
        with sqlite3.connect(path) as connection:
            assert connection.execute(change).rowcount > 0
        with pytest.raises(StudyError, match=r"damaged|another problem"):
            study(storage=path, seed=None)

    def test_untouched(self, tmp_path: Path) -> None:
        path = tmp_path / "study.sqlite"
        with study(storage=path) as tried:
            tried.run(2)
            points = tried.front().all_points
        with study(storage=path, seed=None) as again:
            assert again.front().all_points.equal(points)
