"""Several configs trained in one call: the same trials, fewer calls."""

from __future__ import annotations

import math
import os
import signal
import statistics
import time
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from botorch_dp import tasks
from botorch_dp.errors import PrivacyError
from botorch_dp.pareto import (
    Batched,
    Choice,
    DPareto,
    Integer,
    PrivacyUtilityProblem,
    Real,
    SearchSpace,
    StudyError,
    When,
    given_epsilon,
)
from botorch_dp.pareto.problem import CurvePlan, Trial
from botorch_dp.pareto.workers import Task, train
from botorch_dp.privacy import PrivacyBudget
from botorch_dp.space import Config
from tests.one_draw import in_fork
from tests.pareto import toy

CHECKPOINTS = (1, 2, 3, 4, 6, 8, 11, 16, 20)
SPACE = SearchSpace(noise=Real(0.1, 10.0, log=True), epochs=Integer(1, 20), batch=Integer(1, 1000))


@dataclass
class Together:
    """The batched oracle of the toy problem; it keeps what it was asked."""

    calls: list[list[Config]] = field(default_factory=list)

    def __call__(self, configs: Sequence[Config], seeds: Sequence[int]) -> list[float]:
        self.calls.append(list(configs))
        return [toy.utility(c, seed) for c, seed in zip(configs, seeds, strict=True)]


def problem(together: Callable[..., Any] | None = None, **options: Any) -> PrivacyUtilityProblem:
    options = {"space": SPACE, "privacy": toy.epsilon, "name": "toy"} | options
    together = Together() if together is None else together
    options.setdefault("batched", Batched(together, ("batch",)))
    if "utility_curve" not in options:
        options.setdefault("utility", toy.utility)
    return PrivacyUtilityProblem(options.pop("space"), **options)


def of_oracle(tried: PrivacyUtilityProblem, trial: Trial) -> list[Any]:
    return [tried.oracle(trial.config, seed) for seed in trial.seeds]


@pytest.mark.parametrize("acquisition", ["random", "ehvi", "grid"])
def test_trials_are_as_if_trained_alone(acquisition: Any) -> None:
    together = Together()
    tried = problem(together, replicates=2)
    study = DPareto(tried, acquisition=acquisition, seed=0, candidates=64)
    study.run(14, initial=6, together=4)
    assert [len(call) for call in together.calls] == [8, 8, 8, 4]
    assert all(len({c["batch"] for c in call}) == 1 for call in together.calls)
    assert len({call[0]["batch"] for call in together.calls}) > (1 if acquisition == "grid" else 3)
    assert [t.state for t in study.trials] == ["complete"] * 14
    assert len({tuple(t.config.values()) for t in study.trials}) == 14
    for trial in study.trials:
        assert list(trial.utilities) == of_oracle(tried, trial)


def test_what_is_not_in_common_is_proposed_as_before() -> None:
    """Models look at the other parameters as they would: the front is as good."""
    volumes = []
    for together in (1, 4):
        study = DPareto(problem(), seed=1, candidates=128)
        volumes.append(study.run(24, initial=8, together=together).hypervolume())
    assert volumes[1] > volumes[0] - 0.3


def test_constraints_may_keep_configs_apart() -> None:
    """A config that cannot share the batch of its company is trained alone."""
    together = Together()
    space = SearchSpace(
        **SPACE.parameters, constraints=[lambda c: (c["batch"] > 500) == (c["epochs"] > 10)]
    )
    study = DPareto(problem(together, space=space), acquisition="random", seed=0)
    study.run(12, together=3)
    assert all(space.satisfies(trial.config) for trial in study.trials)
    assert [t.state for t in study.trials] == ["complete"] * 12
    assert all(len({c["batch"] for c in call}) == 1 for call in together.calls)


@pytest.mark.parametrize("make", [lambda: ThreadPoolExecutor(2), lambda: ProcessPoolExecutor(2)])
def test_in_executors(make: Any) -> None:
    tried = problem()
    with make() as executor:
        study = DPareto(tried, acquisition="random", seed=3)
        study.run(12, together=3, batch_size=6, executor=executor)
    assert [t.state for t in study.trials] == ["complete"] * 12
    assert all(list(t.utilities) == of_oracle(tried, t) for t in study.trials)


def test_one_that_fails_takes_no_other_with_it() -> None:
    def train(config: Config, seed: int) -> float:
        if config["epochs"] == 7:
            raise OSError("of one record")
        return toy.utility(config, seed)

    def together(configs: Sequence[Config], seeds: Sequence[int]) -> list[float]:
        return [train(config, seed) for config, seed in zip(configs, seeds, strict=True)]

    study = DPareto(problem(together, utility=train), acquisition="random", seed=0)
    study.run(40, together=5)
    for trial in study.trials:
        assert trial.state == ("failed" if trial.config["epochs"] == 7 else "complete")
    # A call that raised may have begun all its trainings; nobody in company is to blame.
    failed = [trial for trial in study.trials if trial.state == "failed"]
    assert failed and all(t.failures == ("OSError",) * 2 for t in failed)
    assert all(trial.num_trainings == 3 for trial in failed)
    again = [t for t in study.trials if t.state == "complete" and t.num_trainings == 2]
    assert len(again) >= 4 and not any(trial.failures for trial in again)


@pytest.mark.parametrize(
    ("together", "shown"),
    [
        (lambda configs, seeds: configs.batch, "AttributeError, raised in"),
        (lambda configs, seeds: [0.5], "must return 4 answers"),
    ],
)
def test_a_mistake_in_it_is_shown(together: Any, shown: str) -> None:
    study = DPareto(problem(together), acquisition="random", seed=0)
    with pytest.raises(StudyError, match=f"`batched.utilities` failed with(.|\n)*{shown}"):
        study.run(12, together=4)
    study.run(12)
    assert [t.state for t in study.trials] == ["complete"] * 12


def test_a_batch_that_was_killed_is_trained_again_with_its_numbers_and_seeds(
    tmp_path: Path,
) -> None:
    path = tmp_path / "study.sqlite"
    calls = Together()

    def dies(configs: Sequence[Config], seeds: Sequence[int]) -> list[float]:
        if len(calls.calls) == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        return calls(configs, seeds)

    def killed() -> str:
        study = DPareto(problem(dies), seed=0, storage=path, candidates=64)
        study.run(12, initial=5, together=4)
        return "alive"

    assert in_fork(killed) is None
    with DPareto(problem(), seed=0, storage=path, candidates=64) as study:
        assert [t.state for t in study.trials] == ["complete"] * 8 + ["pending"] * 4
        waiting = [(t.number, t.config, t.seeds) for t in study.trials[8:]]
        study.run(12, initial=5, together=4)
        assert [(t.number, t.config, t.seeds) for t in study.trials[8:]] == waiting
        resumed = [(t.config, t.seeds, t.utilities) for t in study.trials]
    whole = DPareto(problem(), seed=0, candidates=64)
    whole.run(12, initial=5, together=4)
    assert resumed == [(t.config, t.seeds, t.utilities) for t in whole.trials]


def curves(
    configs: Sequence[Config], seeds: Sequence[int], checkpoints: Sequence[Sequence[int]]
) -> list[list[float]]:
    """Curves to their ends."""
    return [
        list(toy.curve(config, seed, own))
        for config, seed, own in zip(configs, seeds, checkpoints, strict=True)
    ]


@dataclass
class SideBySide:
    """Trains the toy's curves an epoch at a time; it keeps which of them took each epoch."""

    epochs: list[list[int]] = field(default_factory=list)
    asked: list[list[tuple[int, ...]]] = field(default_factory=list)

    def __call__(
        self, configs: Sequence[Config], seeds: Sequence[int], checkpoints: Sequence[Sequence[int]]
    ) -> Generator[dict[int, float], set[int], None]:
        self.asked.append([tuple(own) for own in checkpoints])
        running, epoch = set(range(len(configs))), 0
        while running:
            epoch += 1
            self.epochs.append(sorted(running))
            reached = {
                place: toy.utility({**configs[place], "epochs": epoch}, seeds[place])
                for place in sorted(running)
                if epoch in checkpoints[place]
            }
            if reached:
                running -= yield reached


def curve_problem(together: Callable[..., Any], **options: Any) -> PrivacyUtilityProblem:
    return problem(together, utility_curve=toy.curve, resource="epochs", **options)


def alone(tried: PrivacyUtilityProblem, trial: Trial) -> list[list[tuple[int, float]]]:
    """The trial's curves from the problem's own oracle, each task trained on its own."""
    assert trial.plan is not None
    groups = [(seed,) for seed in trial.seeds]
    together = tried.batched.replicates is not None
    if together:
        groups = [trial.seeds]
    found = []
    for seeds in groups:
        task = Task(0, trial.config, (0,), seeds, trial.plan, trial.plan.checkpoints)
        points = train(tried.oracle, together, task)
        found += [[(c, answers[k]) for c, answers, _ in points] for k in range(len(seeds))]
    return found


def measured(trial: Trial) -> list[list[tuple[int, float]]]:
    return [[(c, m.utility) for c, m in each.curve] for each in trial.finished]


def config_of(number: int, epochs: int = 20) -> Config:
    return {"noise": 0.3 + number, "epochs": epochs, "batch": 5}


def waiting(study: DPareto, *stops: dict[int, float], replicates: int = 1) -> None:
    """Trials of one batch, which end below these utilities."""
    for number, own in enumerate(stops):
        config = config_of(number)
        epsilons = tuple(toy.epsilon(config_of(number, c)) for c in CHECKPOINTS)
        below = tuple(own.get(c, 0.0) for c in CHECKPOINTS)
        seeds = tuple(100 * number + replicate for replicate in range(replicates))
        plan = CurvePlan(CHECKPOINTS, epsilons, below)
        study._storage.add_trial(number, config, seeds, epsilons[-1], plan=plan)


class TestCurves:
    @pytest.mark.parametrize("oracle", [curves, SideBySide()])
    @pytest.mark.parametrize("replicates", [1, 2])
    def test_end_where_they_would_alone(self, oracle: Any, replicates: int) -> None:
        tried = curve_problem(oracle, replicates=replicates)
        study = DPareto(tried, seed=0, candidates=64)
        study.run(12, together=3)
        assert [t.state for t in study.trials] == ["complete"] * 12
        for trial in study.trials:
            assert measured(trial) == alone(tried, trial)

    def test_no_epoch_is_trained_of_those_that_ended(self) -> None:
        oracle = SideBySide()
        study = DPareto(curve_problem(oracle), acquisition="random", seed=0)
        waiting(study, {3: 1.0}, {}, {1: 1.0}, {8: 1.0})
        study.run(4, together=4)
        assert oracle.asked == [[CHECKPOINTS] * 4]
        assert oracle.epochs == [[0, 1, 2, 3]] + [[0, 1, 3]] * 2 + [[1, 3]] * 5 + [[1]] * 12
        assert [len(measured(t)[0]) for t in study.trials] == [3, 9, 1, 6]

    def test_replicates_of_one_call_end_by_their_mean(self) -> None:
        """Also where a batched oracle trains one of them before the other."""

        def one_by_one(configs: Any, seeds: Any, checkpoints: Any) -> Generator[Any, Any, None]:
            ended: set[int] = set()
            for place, curve in enumerate(curves(configs, seeds, checkpoints)):
                for utility in curve:
                    ended |= yield {place: utility}
                    if place in ended:
                        break

        def both(config: Any, seeds: Any, checkpoints: Any) -> list[Any]:
            return list(zip(*(toy.curve(config, s, checkpoints) for s in seeds), strict=True))

        for oracle in (SideBySide(), one_by_one, curves):
            batched = Batched(oracle, ("batch",), replicates=both)
            tried = problem(utility=None, batched=batched, resource="epochs", replicates=2)
            study = DPareto(tried, acquisition="random", seed=0)
            mean = statistics.fmean(toy.utility(config_of(1, 6), s) for s in (100, 101))
            waiting(study, {3: 1.0}, {6: mean - 1e-9, 11: 1.0}, {6: mean + 1e-9}, replicates=2)
            study.run(3, together=3)
            assert [len(measured(t)[0]) for t in study.trials] == [3, 7, 5]
            for trial in study.trials:
                assert measured(trial) == alone(tried, trial)

    @pytest.mark.parametrize(
        "make", [lambda: ThreadPoolExecutor(2), lambda: ProcessPoolExecutor(2)]
    )
    def test_in_executors(self, make: Any) -> None:
        tried = curve_problem(SideBySide())
        with make() as executor:
            study = DPareto(tried, seed=0, candidates=64)
            study.run(12, together=3, batch_size=6, executor=executor)
        assert [t.state for t in study.trials] == ["complete"] * 12
        assert all(measured(trial) == alone(tried, trial) for trial in study.trials)

    def test_their_time_is_shared_among_those_that_train(self) -> None:
        def slow(*asked: Any) -> Generator[Any, Any, None]:
            points = SideBySide()(*asked)
            ended = None
            while True:
                time.sleep(0.05)
                try:
                    ended = yield points.send(ended)
                except StopIteration:
                    return

        study = DPareto(curve_problem(slow), acquisition="random", seed=0)
        waiting(study, {1: 1.0}, {2: 1.0})
        start = time.perf_counter()
        study.run(2, together=2)
        first, second = ([m.seconds for _, m in t.finished[0].curve] for t in study.trials)
        assert len(first) == 1 and first[0] >= 0.025
        assert len(second) == 2 and second[0] >= 0.025 and second[1] >= 0.05
        assert sum(first + second) <= time.perf_counter() - start

    def test_points_are_kept_when_a_batch_is_killed(self, tmp_path: Path) -> None:
        path = tmp_path / "study.sqlite"

        def dies(*asked: Any) -> Generator[Any, Any, None]:
            points, ended = SideBySide()(*asked), None
            for _ in range(5):
                ended = yield points.send(ended)
            os.kill(os.getpid(), signal.SIGKILL)

        def killed() -> str:
            study = DPareto(curve_problem(dies), acquisition="random", seed=0, storage=path)
            waiting(study, {}, {2: 1.0}, {})
            study.run(3, together=3)
            return "alive"

        assert in_fork(killed) is None
        oracle = SideBySide()
        with DPareto(curve_problem(oracle), acquisition="random", seed=0, storage=path) as study:
            kept = [sorted(t.begun.get(0, ())) for t in study.trials]
            assert kept == [[1, 2, 3, 4, 6], [], [1, 2, 3, 4, 6]]
            assert [t.state for t in study.trials] == ["pending", "complete", "pending"]
            before = study.trials[1].finished
            study.run(3, together=3)
            assert oracle.asked == [[CHECKPOINTS[5:]] * 2], "only what is ahead is asked for"
            assert study.trials[1].finished == before
            for trial in study.trials:
                assert measured(trial) == alone(study.problem, trial)

    def test_after_an_interruption_ended_ones_are_told_of(self) -> None:
        def interrupted(*asked: Any) -> Generator[Any, Any, None]:
            points = SideBySide()(*asked)
            ended = None
            for _ in range(4):
                ended = yield points.send(ended)
            raise KeyboardInterrupt

        study = DPareto(curve_problem(interrupted), acquisition="random", seed=0)
        waiting(study, {}, {3: 1.0}, {})
        told: list[int] = []
        with pytest.warns(UserWarning, match="Interrupted after 1 of 3 trials"):
            study.run(3, together=3, callbacks=[lambda _, trial: told.append(trial.number)])
        assert told == [1]
        assert [sorted(t.begun.get(0, ())) for t in study.trials] == [
            [1, 2, 3, 4],
            [],
            [1, 2, 3, 4],
        ]

    def test_what_fails_takes_no_ended_one_with_it(self) -> None:
        def fails(*asked: Any) -> Generator[Any, Any, None]:
            points = SideBySide()(*asked)
            ended = None
            for _ in range(4):
                ended = yield points.send(ended)
            raise OSError("of one record")

        study = DPareto(curve_problem(fails), acquisition="random", seed=0)
        waiting(study, {3: 1.0}, {}, {})
        study.run(3, together=3)
        assert [t.state for t in study.trials] == ["complete"] * 3
        assert [t.suspect for t in study.trials] == [False, True, True]
        # Those that went on had points, and were trained again from the next one, alone.
        assert [t.num_trainings for t in study.trials] == [1, 2, 2]
        assert all(measured(trial) == alone(study.problem, trial) for trial in study.trials)

    @pytest.mark.parametrize("oracle", [curves, SideBySide()])
    def test_nonsense_of_one_is_its_own(self, oracle: Any) -> None:
        def one_is_lost(configs: Any, seeds: Any, checkpoints: Any) -> Any:
            given = oracle(configs, seeds, checkpoints)
            if isinstance(given, list):
                return [[math.nan, *own[1:]] if k == 1 else own for k, own in enumerate(given)]
            return self.without_one(given)

        study = DPareto(curve_problem(one_is_lost), acquisition="random", seed=0)
        waiting(study, {}, {}, {})
        study.run(3, together=3)
        assert [t.state for t in study.trials] == ["complete", "failed", "complete"]
        assert study.trials[1].failures == ("InvalidUtilityError",)
        assert [t.num_trainings for t in study.trials] == [1, 1, 1]
        for trial in (study.trials[0], study.trials[2]):
            assert measured(trial) == alone(study.problem, trial)

    def without_one(self, points: Any) -> Generator[Any, Any, None]:
        ended = None
        while True:
            try:
                reached = points.send(ended)
            except StopIteration:
                return
            ended = yield {p: math.nan if p == 1 else u for p, u in reached.items()}

    @pytest.mark.parametrize(
        ("given", "shown"),
        [
            (lambda asked: [[0.5]] * len(asked), "one utility for each of a training's `check"),
            (lambda asked: [0.5] * len(asked), "TypeError, raised in"),
            (lambda asked: iter(()), "must return 4 answers"),
            (lambda asked: ({k: 0.5} for k in range(2)), "ended before 4 of the 4 curves"),
            (lambda asked: (0.5 for _ in asked), "must yield dictionaries"),
            (lambda asked: ({4: 0.5} for _ in asked), "by its place below 4"),
            (lambda asked: ({0: 50.0} for _ in asked), "a share, not percent"),
        ],
    )
    def test_mistakes_are_shown(self, given: Any, shown: str) -> None:
        tried = curve_problem(lambda configs, seeds, checkpoints: given(seeds))
        with pytest.raises(StudyError, match=shown):
            DPareto(tried, seed=0).run(4, together=4)


@pytest.mark.parametrize("along", [False, True])
@pytest.mark.parametrize("solved", [False, True])
def test_our_trainers(along: bool, solved: bool) -> None:
    """Trained together, each model is that of its own training, up to rounding."""
    tried = tasks.adult_logistic_sgd(data="breast_cancer", replicates=2, curves=along)
    if solved:
        tried = given_epsilon(tried, "noise_multiplier", epsilon=Real(0.5, 8.0, log=True))
    study = DPareto(tried, acquisition="random", seed=0)
    study.run(6, together=3)
    assert len({t.config["batch_size"] for t in study.trials}) == 2
    for trial in study.trials:
        if trial.plan is None:
            wanted = [tried.oracle(trial.config, list(trial.seeds))]
            got: Any = [trial.utilities]
        else:
            wanted = [[utility for _, utility in own] for own in alone(tried, trial)]
            got = [[utility for _, utility in own] for own in measured(trial)]
        for ours, theirs in zip(got, wanted, strict=True):
            assert list(ours) == pytest.approx(list(theirs), abs=2.1 / 114)


def test_our_trainers_end_early() -> None:
    """As they would alone: to the last digit of a utility, where no record is at the boundary."""
    tried = tasks.adult_logistic_sgd(data="breast_cancer", replicates=2, curves=True)
    study = DPareto(tried, acquisition="random", seed=1)
    for number, config in enumerate(tried.space.sample(6, seed=1)):
        whole = {**tried.whole(config), "batch_size": 16}
        along = tried.along(whole)
        epsilons = tuple(tried.epsilon(each) for each in along)
        stops = [0.9 if k == number + 1 else 0.0 for k in range(len(along))]
        plan = CurvePlan(tried.checkpoints(whole), epsilons, tuple(stops))
        study._storage.add_trial(number, whole, (number, 7), epsilons[-1], plan=plan)
    study.run(6, together=6)
    for trial in study.trials:
        assert measured(trial) == alone(tried, trial)
    lengths = {len(measured(trial)[0]) for trial in study.trials}
    assert len(lengths) >= 3, "they end at different checkpoints"


class TestWrong:
    def test_nothing_to_train_them_with(self) -> None:
        with pytest.raises(ValueError, match="`together` = 2 needs a problem whose trainer"):
            DPareto(problem(batched=None), seed=0).run(4, together=2)

    def test_paid(self) -> None:
        tried = toy.problem(
            secret_noise=True,
            privacy=lambda config: 0.1,
            batched=Batched(Together()),
        )
        with (
            DPareto(tried, seed=0, budget=PrivacyBudget(8.0, 0.0)) as study,
            pytest.raises(PrivacyError, match="each of its trainings is charged"),
        ):
            study.run(4, together=2)

    @pytest.mark.parametrize("together", [0, 1.5, "2"])
    def test_count(self, together: Any) -> None:
        with pytest.raises((TypeError, ValueError), match="together"):
            DPareto(problem(), seed=0).run(4, together=together)

    def test_alike(self) -> None:
        with pytest.raises(ValueError, match=r"must name parameters .* got 'size'"):
            problem(batched=Batched(Together(), ("size",)))
        space = SearchSpace(
            noise=Real(0.1, 1.0),
            epochs=Integer(1, 4),
            rule=Choice("sgd", "adam"),
            beta=Real(0.1, 0.9, active=When("rule", "adam")),
        )
        with pytest.raises(ValueError, match="'rule', on which it depends"):
            problem(space=space, batched=Batched(Together(), ("rule",)))
        with pytest.raises(ValueError, match="always active, got 'beta'"):
            problem(space=space, batched=Batched(Together(), ("beta",)))
        with pytest.raises(TypeError, match="`batched` must be a Batched"):
            problem(batched=Together())

    def test_a_function_that_cannot_travel(self) -> None:
        def local(configs: Any, seeds: Any) -> Any:
            return [0.5] * len(seeds)

        with (
            ProcessPoolExecutor(1) as executor,
            pytest.raises(ValueError, match=r"`batched.utilities` cannot be sent"),
        ):
            DPareto(problem(local), acquisition="random", seed=0).run(
                4, together=2, executor=executor
            )
