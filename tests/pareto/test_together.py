"""Several configs trained in one call: the same trials, fewer calls."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
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
from botorch_dp.pareto.problem import Trial
from botorch_dp.privacy import PrivacyBudget
from botorch_dp.space import Config
from tests.pareto import toy

SPACE = SearchSpace(noise=Real(0.1, 10.0, log=True), epochs=Integer(1, 20), lot=Integer(1, 1000))


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
    options.setdefault("batched", Batched(together, ("lot",)))
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
    assert all(len({c["lot"] for c in call}) == 1 for call in together.calls)
    assert len({call[0]["lot"] for call in together.calls}) > (1 if acquisition == "grid" else 3)
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
    """A config that cannot share the lot of its company is trained alone."""
    together = Together()
    space = SearchSpace(
        **SPACE.parameters, constraints=[lambda c: (c["lot"] > 500) == (c["epochs"] > 10)]
    )
    study = DPareto(problem(together, space=space), acquisition="random", seed=0)
    study.run(12, together=3)
    assert all(space.satisfies(trial.config) for trial in study.trials)
    assert [t.state for t in study.trials] == ["complete"] * 12
    assert all(len({c["lot"] for c in call}) == 1 for call in together.calls)


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
        (lambda configs, seeds: configs.lot, "AttributeError, raised in"),
        (lambda configs, seeds: [0.5], "must return 4 answers"),
    ],
)
def test_a_mistake_in_it_is_shown(together: Any, shown: str) -> None:
    study = DPareto(problem(together), acquisition="random", seed=0)
    with pytest.raises(StudyError, match=f"`batched.utilities` failed with(.|\n)*{shown}"):
        study.run(12, together=4)
    study.run(12)
    assert [t.state for t in study.trials] == ["complete"] * 12


KILLED = """
import os, signal, sys
from tests.pareto import test_together
calls = test_together.Together()
def train(configs, seeds):
    if len(calls.calls) == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return calls(configs, seeds)
tried = test_together.problem(train)
test_together.DPareto(tried, seed=0, storage=sys.argv[1], candidates=64).run(
    12, initial=5, together=4
)
"""


def test_a_batch_that_was_killed_is_trained_again_with_its_numbers_and_seeds(
    tmp_path: Path,
) -> None:
    path = tmp_path / "study.sqlite"
    killed = subprocess.run([sys.executable, "-c", KILLED, path], check=False)
    assert killed.returncode == -signal.SIGKILL
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
    return [
        list(toy.curve(config, seed, own))
        for config, seed, own in zip(configs, seeds, checkpoints, strict=True)
    ]


def test_curves() -> None:
    tried = problem(curves, utility_curve=toy.curve, resource="epochs", replicates=2)
    study = DPareto(tried, seed=0, candidates=64)
    study.run(9, together=3)
    for trial in study.trials:
        assert trial.plan is not None
        wanted = [list(toy.curve(trial.config, s, trial.plan.checkpoints)) for s in trial.seeds]
        assert [[m.utility for _, m in each.curve] for each in trial.finished] == wanted


def test_a_curve_of_the_wrong_length_is_a_mistake() -> None:
    short: Any = lambda configs, seeds, checkpoints: [[0.5]] * len(seeds)  # noqa: E731
    tried = problem(short, utility_curve=toy.curve, resource="epochs")
    with pytest.raises(StudyError, match="one utility for each of a training's `checkpoints`"):
        DPareto(tried, seed=0).run(4, together=2)


@pytest.mark.parametrize("along", [False, True])
@pytest.mark.parametrize("solved", [False, True])
def test_our_trainers(along: bool, solved: bool) -> None:
    """Trained together, each model is that of its own training, up to rounding."""
    tried = tasks.adult_logistic_sgd(data="breast_cancer", replicates=2, curves=along)
    if solved:
        tried = given_epsilon(tried, "noise_multiplier", epsilon=Real(0.5, 8.0, log=True))
    study = DPareto(tried, acquisition="random", seed=0)
    study.run(6, together=3)
    assert len({t.config["lot_size"] for t in study.trials}) == 2
    for trial in study.trials:
        if trial.plan is None:
            alone = [list(tried.oracle(trial.config, list(trial.seeds)))]
            got = [list(trial.utilities)]
        else:
            ends = trial.plan.checkpoints
            alone = [list(u) for u in tried.oracle(trial.config, list(trial.seeds), ends)]
            got = [[dict(m.curve)[c].utility for m in trial.finished] for c in ends]
        for ours, theirs in zip(got, alone, strict=True):
            assert ours == pytest.approx(theirs, abs=2.1 / 114)


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
