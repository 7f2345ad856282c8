"""Optuna: proposals from stored trials, on several processes, of which one is killed."""

from __future__ import annotations

import math
import multiprocessing
import os
import pickle
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

optuna = pytest.importorskip("optuna", reason="needs the extra `optuna`")

from botorch_dp.integrations.optuna import (  # noqa: E402
    DParetoSampler,
    distributions,
    noise_variance,
    report,
    suggest,
)
from botorch_dp.objectives import PrivateObjective  # noqa: E402
from botorch_dp.pareto import Objective, PrivacyUtilityProblem  # noqa: E402
from botorch_dp.pareto.proposals import propose  # noqa: E402
from botorch_dp.privacy import PrivacyBudget, PrivacyLedger  # noqa: E402
from botorch_dp.space import Choice, Config, Integer, Real, SearchSpace, When  # noqa: E402

optuna.logging.set_verbosity(optuna.logging.ERROR)
SPACE = SearchSpace(noise=Real(0.3, 10.0, log=True), rate=Real(0.01, 1.0, log=True))
DIRECTIONS = ["minimize", "maximize"]


def privacy(config: Config) -> float:
    return 3.0 / config["noise"]


def utility(config: Config) -> float:
    return 1 / (1 + 0.2 * config["noise"]) - 0.05 * math.log10(config["rate"] / 0.1) ** 2


def objective(trial: Any) -> tuple[float, float]:
    config = suggest(trial, SPACE)
    return privacy(config), utility(config)


def sampler(**options: Any) -> DParetoSampler:
    return DParetoSampler(SPACE, privacy, **{"initial": 4, "seed": 3, **options})


def storage(kind: str, folder: Path) -> Any:
    if kind == "sqlite":
        return optuna.storages.RDBStorage(f"sqlite:///{folder}/study.db")
    if kind == "journal":
        backend = optuna.storages.journal.JournalFileBackend(f"{folder}/journal.log")
        return optuna.storages.JournalStorage(backend)
    return optuna.storages.RDBStorage(str(folder))


def study(kind: str, folder: Path, **options: Any) -> Any:
    return optuna.create_study(
        storage=storage(kind, folder), study_name="front", directions=DIRECTIONS,
        sampler=sampler(**options), load_if_exists=True,
    )  # fmt: skip


@pytest.mark.one_in(2)
@pytest.mark.parametrize("kind", ["sqlite", "journal"])
def test_proposals_follow_from_what_is_stored(kind: str, tmp_path: Path) -> None:
    """One process, several, or one that was begun again: the same trials."""
    study(kind, tmp_path).optimize(objective, n_trials=5)
    again = study(kind, tmp_path)  # another process would begin so
    again.sampler = pickle.loads(pickle.dumps(again.sampler))
    again.optimize(objective, n_trials=2)
    whole = optuna.create_study(directions=DIRECTIONS, sampler=sampler())
    whole.optimize(objective, n_trials=7)
    assert [t.params for t in again.trials] == [t.params for t in whole.trials]
    assert len({tuple(t.params.values()) for t in whole.trials}) == 7


def test_pending_trials_are_taken_into_account(tmp_path: Path) -> None:
    """Two that ask before either has told, or has even suggested, get different proposals."""
    for done in (0, 5):
        many = optuna.create_study(directions=DIRECTIONS, sampler=sampler())
        many.optimize(objective, n_trials=done)
        asked = [many.ask() for _ in range(3)]
        configs = [suggest(trial, SPACE) for trial in asked]
        assert len({tuple(config.values()) for config in configs}) == 3


def test_failed_pruned_and_foreign_trials_do_no_harm() -> None:
    def failing(trial: Any) -> tuple[float, float]:
        config = suggest(trial, SPACE)
        if trial.number % 3 == 0:
            raise ValueError
        if trial.number % 3 == 1:
            return privacy(config), math.nan
        return privacy(config), utility(config)

    mixed = optuna.create_study(directions=["minimize", "minimize"], sampler=sampler())
    mixed.add_trial(
        optuna.trial.create_trial(
            params={"other": 0.5}, values=[1.0, 0.5],
            distributions={"other": optuna.distributions.FloatDistribution(0, 1)},
        )
    )  # fmt: skip
    mixed.enqueue_trial({"noise": 1.0, "rate": 0.1})
    with pytest.warns(UserWarning, match="other parameters"):
        mixed.optimize(failing, n_trials=9, catch=(ValueError,))
    assert mixed.trials[1].params == {"noise": 1.0, "rate": 0.1}
    assert len(mixed.trials) == 10


def complete(params: dict[str, float], values: list[float]) -> Any:
    wide = optuna.distributions.FloatDistribution(1e-3, 100.0)
    return optuna.trial.create_trial(
        params=params, distributions=dict.fromkeys(params, wide), values=values
    )


def test_nothing_is_learnt_of_another_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    """An older study had a wider range, another parameter, or less: skipped, with one warning."""
    seen: list[list[Config]] = []

    def watched(search: Any, trials: Any, initial: int) -> Config:
        seen.append([dict(trial.config) for trial in trials])
        return propose(search, trials, initial)

    monkeypatch.setattr("botorch_dp.integrations.optuna.propose", watched)
    old = optuna.create_study(directions=DIRECTIONS, sampler=sampler())
    for noise, rate in ((0.1, 0.1), (0.1, 0.2), (1.0, 0.3)):
        old.add_trial(complete({"noise": noise, "rate": rate}, [3.0 / noise, 0.9]))
    old.add_trial(complete({"noise": 1.0, "rate": 0.1, "width": 64.0}, [3.0, 0.9]))
    old.add_trial(complete({"noise": 1.0}, [3.0, 0.9]))
    with pytest.warns(UserWarning, match="4 finished trials .* first of them is number 0") as told:
        old.optimize(objective, n_trials=2)
    assert len(told) == 1
    assert seen[0] == [{"noise": 1.0, "rate": 0.3}] and len(seen) == 2


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ((privacy, lambda c: 93.0), "a utility outside"),
        ((privacy, lambda c: -0.2), "a utility outside"),
        ((lambda c: 0.8 * privacy(c), utility), "`privacy` says"),
    ],
)
def test_values_that_cannot_be_are_refused(values: Any, message: str) -> None:
    """At once, and by whoever goes on with such a study."""
    wrong = optuna.create_study(directions=DIRECTIONS, sampler=sampler())

    def answered(trial: Any) -> tuple[float, ...]:
        config = suggest(trial, SPACE)
        return tuple(value(config) for value in values)

    with pytest.raises(ValueError, match=f"Trial 0 returned .*{message}"):
        wrong.optimize(answered, n_trials=3)
    with pytest.raises(ValueError, match=f"Trial 0 returned .*{message}"):
        suggest(wrong.ask(), SPACE)


def test_only_what_is_asked_for_is_sampled() -> None:
    fixed = optuna.samplers.PartialFixedSampler({"noise": 2.0}, sampler())
    one = optuna.create_study(directions=DIRECTIONS, sampler=fixed)
    one.optimize(objective, n_trials=6)
    assert {trial.params["noise"] for trial in one.trials} == {2.0}
    assert len({trial.params["rate"] for trial in one.trials}) == 6


def test_every_kind_of_parameter() -> None:
    space = SearchSpace(
        noise=Real(0.3, 10.0), layers=Choice((8,), (8, 8)), steps=Integer(1, 9, log=True),
        rule=Choice("sgd", "adam"), beta=Real(0.5, 0.9, active=When("rule", "adam")),
    )  # fmt: skip
    seen: list[Config] = []

    def noted(trial: Any) -> tuple[float, float]:
        seen.append(suggest(trial, space))
        return privacy(seen[-1]), 0.1 * len(seen[-1]["layers"])

    own = DParetoSampler(space, privacy, initial=4)
    one = optuna.create_study(directions=["minimize", "maximize"], sampler=own)
    one.optimize(noted, n_trials=6)
    assert {len(config["layers"]) for config in seen} == {1, 2}
    assert all(("beta" in config) == (config["rule"] == "adam") for config in seen)
    assert set(distributions(space)) == set(space.parameters)
    assert all(isinstance(config["layers"], tuple) for config in seen)


def test_a_problem_has_its_own_epsilons() -> None:
    problem = PrivacyUtilityProblem(SPACE, privacy=privacy, utility=lambda config, seed: 0.5)
    ways = DParetoSampler(problem, initial=4, seed=3), sampler()
    tried = []
    for own in ways:
        one = optuna.create_study(directions=DIRECTIONS, sampler=own)
        one.optimize(objective, n_trials=5)
        tried.append([t.params for t in one.trials])
    assert tried[0] == tried[1]
    with pytest.raises(TypeError, match="`privacy` is for a space"):
        DParetoSampler(problem, privacy)
    with pytest.raises(TypeError, match="`privacy` is missing"):
        DParetoSampler(SPACE)
    more = PrivacyUtilityProblem(
        SPACE, privacy=privacy, utility=lambda config, seed: (0.5, {"time": 1.0}),
        objectives=[Objective("time", 1.0)],
    )  # fmt: skip
    with pytest.raises(ValueError, match="`space_or_problem` must have two objectives"):
        DParetoSampler(more)


@pytest.mark.parametrize("directions", [["minimize"], ["maximize", "maximize"]])
def test_other_objectives_are_refused(directions: list[str]) -> None:
    one = optuna.create_study(directions=directions, sampler=sampler())
    with pytest.raises(ValueError, match="two objectives, epsilon first"):
        one.optimize(objective, n_trials=1)


def _work(kind: str, folder: Any, until: int, pace: float) -> None:
    own = study(kind, folder)
    while sum(t.state.is_finished() for t in own.get_trials(deepcopy=False)) < until:
        own.optimize(lambda t: (time.sleep(pace), objective(t))[1], n_trials=1)


def several(kind: str, folder: Any) -> None:
    """Two processes, of which one is killed in a training; a third one takes its place."""
    study(kind, folder)
    context = multiprocessing.get_context("fork")
    slow = context.Process(target=_work, args=(kind, folder, 99, 60.0))
    slow.start()
    while not study(kind, folder).get_trials(deepcopy=False):
        time.sleep(0.02)
    quick = context.Process(target=_work, args=(kind, folder, 5, 0.0))
    quick.start()
    time.sleep(0.1)
    assert slow.pid is not None
    os.kill(slow.pid, signal.SIGKILL)
    slow.join()
    quick.join(120)
    assert quick.exitcode == 0
    trials = study(kind, folder).trials
    states = [t.state.name for t in trials]
    assert states.count("COMPLETE") == 5 and states.count("RUNNING") == 1
    done = [tuple(t.params.values()) for t in trials if t.params]
    assert len(set(done)) == len(done)
    assert sorted(t.number for t in trials) == list(range(len(trials)))


@pytest.mark.one_in(2)
@pytest.mark.parametrize("kind", ["sqlite", "journal"])
def test_several_processes_one_of_them_killed(kind: str, tmp_path: Path) -> None:
    several(kind, tmp_path)


def _postgres_program(name: str) -> str:
    """Debian keeps a server's programs in a folder of their version, which is in no path."""
    folders = sorted(map(str, Path("/usr/lib/postgresql").glob("*/bin")), reverse=True)
    found = shutil.which(name, path=os.pathsep.join([os.environ.get("PATH", ""), *folders]))
    return found or pytest.skip("needs PostgreSQL's programs")


@pytest.fixture(scope="module")
def postgres() -> Iterator[str]:
    pytest.importorskip("psycopg", reason="needs psycopg")
    initdb, pg_ctl, createdb = map(_postgres_program, ("initdb", "pg_ctl", "createdb"))
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        folder, user = Path(name), dict[str, Any]()
        if os.getuid() == 0:  # for whom PostgreSQL does not start
            nobody = pwd.getpwnam("nobody")
            user = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
            os.chown(folder, nobody.pw_uid, nobody.pw_gid)

        def run(*command: Any, check: bool = True) -> None:
            done = subprocess.run(
                command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=folder, **user
            )
            assert not check or done.returncode == 0, (folder / "log").read_text()

        (folder / "log").touch()
        (folder / "log").chmod(0o666)
        run(initdb, "-D", folder / "data", "-A", "trust", "-U", "tester", "--no-sync")
        options = f"-c listen_addresses='' -k {folder}"
        try:
            run(pg_ctl, "-D", folder / "data", "-o", options, "-l", folder / "log", "-w", "start")
            run(createdb, "-h", folder, "-U", "tester", "study")
            yield f"postgresql+psycopg://tester@/study?host={folder}"
        finally:
            run(pg_ctl, "-D", folder / "data", "-m", "immediate", "stop", check=False)


@pytest.mark.slow
def test_several_processes_on_postgresql(postgres: str) -> None:
    several("postgresql", postgres)


class TestReport:
    def private(self, evaluations: int) -> PrivateObjective:
        targets = torch.linspace(0.2, 0.6, 200, dtype=torch.double)
        return PrivateObjective.for_budget(
            lambda X: (X[:, :1] - targets).abs(),
            bounds=(0.0, 1.0),
            ledger=PrivacyLedger(budget=PrivacyBudget(2.0, 1e-6)),
            evaluations=evaluations,
            num_records=200,
        )

    def test_the_value_comes_with_its_variance(self) -> None:
        private = self.private(3)
        one = optuna.create_study()
        one.optimize(lambda t: report(t, private, suggest(t, SPACE), SPACE), n_trials=5)
        complete = [t for t in one.trials if t.state.name == "COMPLETE"]
        assert len(complete) == 3 and len(one.trials) == 4  # the budget bears no fourth one
        assert one.trials[-1].state.name == "PRUNED"
        assert {noise_variance(t) for t in complete} == {private.noise_std**2}
        assert noise_variance(one.trials[-1]) == 0.0
