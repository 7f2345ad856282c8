"""Studies with a budget: every training is charged once, before it begins, and never beyond."""

from __future__ import annotations

import copy
import math
import multiprocessing
import os
import pickle
import sqlite3
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from botorch_dp.errors import PrivacyError
from botorch_dp.pareto import Batched, DPareto, PrivacyUtilityProblem, StudyError
from botorch_dp.pareto.charges import ChargedProblem, budget_for
from botorch_dp.pareto.problem import Trial
from botorch_dp.privacy import (
    ApproximateLoss,
    GaussianLoss,
    Guarantee,
    NeighboringRelation,
    PrivacyBudget,
    PrivacyLedger,
    PrivacyUnit,
    gaussian_epsilon,
    gaussian_guarantee,
)
from botorch_dp.privacy.losses import PoissonSGDLoss
from botorch_dp.space import Config, Real, SearchSpace
from tests.one_draw import OneDraw
from tests.pareto import toy
from tests.privacy.charging import balance_of

#: A forked child need not import torch again.
FORK = multiprocessing.get_context("fork")
BUDGET = PrivacyBudget(8.0, 1e-6)
SPACE = SearchSpace(noise=Real(0.5, 5.0, log=True))


# A study asks for the price of a config many times.


@cache
def epsilon_at(noise: float) -> float:
    return gaussian_epsilon(1 / noise, 1e-6)


@cache
def guarantee_at(noise: float) -> Guarantee:
    """One record moves the mean by at most 1."""
    return Guarantee("a noisy mean", PrivacyUnit(), (GaussianLoss(1 / noise),))


def privacy(config: Config) -> float:
    return epsilon_at(config["noise"])


def guarantee(config: Config) -> Guarantee:
    return guarantee_at(config["noise"])


@dataclass(frozen=True)
class Trains:
    """A "training" with noise of the operating system; it notes in a file that it began."""

    log: str | None = None
    mean: float = 0.0
    fails_beyond: float = math.inf

    def __call__(self, config: Config, seed: int) -> float:
        if self.log is not None:
            descriptor = os.open(self.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
            os.write(descriptor, f"{config['noise']}\n".encode())
            os.close(descriptor)
        if config["noise"] > self.fails_beyond:
            raise OSError
        noisy = self.mean + config["noise"] * np.random.default_rng().standard_normal()
        return float(1 / (1 + math.exp(-noisy)))


def problem(train: Any = Trains(), **options: Any) -> PrivacyUtilityProblem:
    training = {"delta": 1e-6, "guarantee": guarantee, "secret_noise": True}
    training |= {name: options.pop(name) for name in list(training) if name in options}
    return PrivacyUtilityProblem(
        SPACE,
        privacy=privacy,
        utility=train,
        training=toy.TrainingPrivacy(**training),
        name="paid",
        **options,
    )


def study(train: Any = Trains(), budget: Any = BUDGET, **options: Any) -> DPareto:
    own = {"acquisition": "random", "candidates": 32, "seed": 0}
    own |= {n: options.pop(n) for n in ("acquisition", "storage") if n in options}
    return DPareto(problem(train, **options), budget=budget, **own)


def began(log: Path) -> int:
    return len(log.read_text().splitlines()) if log.exists() else 0


def mu_spent(ledger: PrivacyLedger) -> float:
    balance = balance_of(ledger)
    return balance.mu_spent


class TestPaying:
    @pytest.mark.one_in(3)
    @pytest.mark.parametrize("acquisition", ["random", "ehvi", "grid"])
    def test_ends_within_the_budget(self, acquisition: Any, tmp_path: Path) -> None:
        log = tmp_path / "log"
        # Thirteen trials in place of twenty-two, where each is a proposal by models.
        budget = PrivacyBudget(5.0, 1e-6) if acquisition == "ehvi" else BUDGET
        tried = study(Trains(str(log)), budget, acquisition=acquisition, storage=tmp_path / "s")
        wanted = 3 if acquisition == "grid" else 60
        if acquisition == "grid":
            front = tried.run(wanted)
        else:
            with pytest.warns(UserWarning, match="The budget is too small for another trial"):
                front = tried.run(wanted, initial=6)
        ledger = tried.ledger
        assert ledger is not None
        trainings = sum(trial.num_trainings for trial in tried.trials)
        assert began(log) == len(ledger.entries()) == trainings == len(front.trials)
        mus = [1 / trial.config["noise"] for trial in front.trials]
        assert mu_spent(ledger) == pytest.approx(math.hypot(*mus))
        assert gaussian_epsilon(math.hypot(*mus), budget.delta) <= budget.epsilon * (1 + 1e-9)
        if acquisition != "grid":
            # Nothing in the space can be paid for any more, or next to nothing.
            left = math.sqrt(balance_of(ledger).mu_limit ** 2 - math.hypot(*mus) ** 2)
            assert left < 1.2 / 5.0

    def test_no_first_trial_takes_it_all(self) -> None:
        with pytest.warns(UserWarning, match="is too small for another"):
            front = study(budget=PrivacyBudget(3.0, 1e-6)).run(400)
        assert len(front.trials) > 4
        mus = [1 / trial.config["noise"] for trial in front.trials]
        assert max(mus[:2]) < math.hypot(*mus) * 0.51

    def test_replicates_and_re_evaluations_are_charged(self, tmp_path: Path) -> None:
        log = tmp_path / "log"
        tried = study(Trains(str(log), fails_beyond=3.0), replicates=2)
        front = tried.run(8)
        assert any(trial.state == "failed" for trial in tried.trials)
        again = front.reevaluate(2)
        assert tried.ledger is not None
        assert len(tried.ledger.entries()) == began(log)
        assert began(log) == sum(trial.num_trainings for trial in tried.trials)
        assert again.charged and again.guarantee == tried.publication_guarantee()

    def test_re_evaluations_beyond_it_are_refused_before_they_begin(self, tmp_path: Path) -> None:
        log = tmp_path / "log"
        tried = study(Trains(str(log)))
        front = tried.run(4)
        with pytest.raises(StudyError, match="is too small for 1000 more trainings"):
            front.reevaluate(1000)
        assert began(log) == 4

    def test_elsewhere(self, tmp_path: Path) -> None:
        log = tmp_path / "log"
        tried = study(Trains(str(log)), storage=tmp_path / "s", replicates=2)
        with ProcessPoolExecutor(3, mp_context=FORK) as pool:
            tried.run(6, q=3, executor=pool)
        assert tried.ledger is not None
        assert len(tried.ledger.entries()) == began(log) == 12
        assert [trial.state for trial in tried.trials] == ["complete"] * 6

    def test_nothing_that_was_measured_is_in_the_ledger(self, tmp_path: Path) -> None:
        with study(storage=tmp_path / "s") as tried:
            utilities = [trial.utilities[0] for trial in tried.run(4).trials]
        content = (tmp_path / "s.ledger").read_bytes()
        assert not any(f"{utility:.6f}"[2:].encode() in content for utility in utilities)
        with sqlite3.connect(tmp_path / "s.ledger") as connection:
            assert connection.execute("SELECT COUNT(*) FROM released").fetchone() == (0,)

    def test_asked_for_by_hand(self) -> None:
        tried = study(replicates=2)
        (trial,) = tried.ask()
        assert tried.ledger is not None and len(tried.ledger.entries()) == 1
        assert mu_spent(tried.ledger) == pytest.approx(math.sqrt(2) / trial.config["noise"])
        assert tried.tell(trial, [0.5, 0.5]).state == "complete"

    def test_a_trial_left_behind_that_can_no_longer_be_paid_for(self, tmp_path: Path) -> None:
        ledger = PrivacyLedger(tmp_path / "l", BUDGET)
        with study(storage=tmp_path / "s", budget=ledger) as first:
            first.run(2)
            config = {"noise": 1.0}
            first._file.add(Trial(2, config, (1,), privacy(config)))
        left = balance_of(ledger).mu_limit ** 2 - balance_of(ledger).mu_spent ** 2
        ledger.charge(gaussian_guarantee(sensitivity=1.0, mu=math.sqrt(left) * 0.999999))
        with (
            study(storage=tmp_path / "s", budget=ledger) as second,
            pytest.warns(UserWarning, match="is too small for another"),
        ):
            second.run(6)
            assert second.trials[2].failure_type == "BudgetExhausted"
            assert second.trials[2].num_trainings == 0 and len(second.trials) == 3

    def test_too_little_for_anything(self) -> None:
        with pytest.raises(StudyError, match="is too small for a single trial"):
            study(budget=PrivacyBudget(1e-3, 1e-9)).run(4)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("factor", [0.5, 1.0, 1.5])
def test_whatever_bounds_say_nothing_starts_beyond_the_budget(factor: float) -> None:
    """A factor below 1 is no bound: what seems affordable is asked about exactly."""
    counted = PrivacyUtilityProblem(
        SPACE,
        privacy=privacy,
        utility=Trains(),
        batched=Batched(epsilons=lambda configs: [factor * privacy(c) for c in configs]),
        training=toy.TrainingPrivacy(1e-6, secret_noise=True),
    )
    budget = PrivacyBudget(6.0, 1e-4)
    tried = DPareto(counted, budget=budget, seed=0, candidates=32)
    with pytest.warns(UserWarning, match="is too small for another trial"):
        tried.run(60, initial=4)
    assert all(trial.state == "complete" for trial in tried.trials)
    spent, _ = tried.ledger.spent()  # type: ignore[union-attr]
    assert 0.5 * budget.epsilon < spent <= budget.epsilon


def test_a_config_whose_promise_fails_spoils_no_other() -> None:
    def picky(config: Config) -> Guarantee:
        if config["noise"] < 1:
            raise ValueError("no promise")
        return guarantee(config)

    charged = study(guarantee=picky)._charged
    assert charged is not None
    configs = [{"noise": noise} for noise in (0.6, 2.0, 0.7, 3.0)]
    assert charged.affordable(configs, 1) == [False, True, False, True]
    assert charged.affordable(configs, 1, exact=True) == [False, True, False, True]


class TestForms:
    """The filter follows from the kinds of losses."""

    def loss(self, loss: Any, **options: Any) -> PrivacyUtilityProblem:
        unit = PrivacyUnit(relation=loss.relation or NeighboringRelation.REPLACE_ONE)
        return problem(guarantee=lambda config: Guarantee("a training", unit, (loss,)), **options)

    def test_dp_sgd_by_renyi_divergence(self) -> None:
        loss = PoissonSGDLoss(2.0, 0.02, 100)
        loss_epsilon = Guarantee("", PrivacyUnit(relation=loss.relation), (loss,)).epsilon(1e-6)
        assert budget_for(BUDGET, self.loss(loss)).renyi
        tried = DPareto(self.loss(loss), budget=BUDGET, acquisition="random", seed=0)
        with pytest.warns(UserWarning, match="is too small for another"):
            front = tried.run(500)
        # Sums of epsilons would bear far fewer.
        assert len(front.trials) > 2 * BUDGET.epsilon / loss_epsilon

    def test_dp_sgd_in_a_ledger_that_adds_up_epsilons(self) -> None:
        """Whoever shares a ledger may have begun it without `renyi=True`."""
        loss = PoissonSGDLoss(2.0, 0.02, 100)
        alone = Guarantee("", PrivacyUnit(relation=loss.relation), (loss,)).epsilon(1e-6)
        ledger = PrivacyLedger(budget=PrivacyBudget(2.5 * alone, 1e-5))
        trained = self.loss(loss)
        trained.privacy = lambda config: alone
        tried = DPareto(trained, budget=ledger, acquisition="random", seed=0)
        with pytest.warns(UserWarning, match="is too small for another"):
            assert len(tried.run(9).trials) == 2
        assert [(entry.epsilon, entry.delta) for entry in ledger.entries()] == [(alone, 1e-6)] * 2

    def test_others(self) -> None:
        assert not budget_for(BUDGET, self.loss(GaussianLoss(0.1))).renyi
        assert not budget_for(BUDGET, self.loss(ApproximateLoss(0.1, 1e-9))).renyi
        kept = PrivacyBudget(8.0, 1e-6, summed=0.5)
        assert budget_for(kept, self.loss(PoissonSGDLoss(2.0, 0.02, 100))) is kept


class TestPublishing:
    def test_the_price_is_the_ledgers(self, tmp_path: Path) -> None:
        tried = study(storage=tmp_path / "s")
        with pytest.raises(StudyError, match="Nothing was trained"):
            tried.publication_guarantee()
        front = tried.run(5)
        promised = tried.publication_guarantee()
        assert tried.ledger is not None and promised == tried.ledger.guarantee
        assert promised.epsilon(BUDGET.delta) == BUDGET.epsilon
        assert "secret" in str(promised) and "without looking at the records" in str(promised)
        assert "if the test records are public: its cost, (ε = 8, δ = 1e-06)" in front.caption
        assert front.caption == tried.to_frame().attrs["guarantee"]
        assert tried.publication_guarantee("test").void is not None

    def test_publish(self, tmp_path: Path) -> None:
        tried = study(storage=tmp_path / "s")
        tried.run(5)
        with pytest.raises(PrivacyError, match="test_records_are_public=True"):
            tried.publish()
        with pytest.raises(PrivacyError, match="has no budget"):
            study(budget=None).publish()
        released = tried.publish(test_records_are_public=True)
        assert released.value.points.equal(tried.front().points)
        assert "the test records are public" in str(released.guarantee)
        assert released.guarantee.epsilon(1e-6) == 8.0

    def test_what_a_training_raised_is_not_published(self) -> None:
        fails: list[str] = []

        def train(config: Config, seed: int) -> float:
            if fails:
                raise ValueError(fails[0])
            return Trains()(config, seed)

        tried = study(train)
        tried.run(3)
        fails.append("record 17 is odd")
        with pytest.raises(StudyError, match="All re-evaluations failed"):
            tried.front().reevaluate(1)
        assert any("record 17" in trial.failure for trial in tried.trials)
        published = tried.publish(test_records_are_public=True).value
        assert [trial.failure for trial in published.trials] == [""] * 3


class TestRefused:
    def test_seeded_trainings(self, tmp_path: Path) -> None:
        with pytest.raises(PrivacyError, match="trainings are seeded"):
            study(secret_noise=False, storage=tmp_path / "s")
        assert not os.listdir(tmp_path)

    def test_an_executor_that_may_begin_a_training_twice(self) -> None:
        """Dask begins what a lost worker did again, whatever its `retries`."""

        class Dask(ThreadPoolExecutor):
            __module__ = "distributed.cfexecutor"

        tried = study()
        with Dask(1) as pool, pytest.raises(PrivacyError, match="draw its noise twice"):
            tried.run(2, executor=pool)
        assert not tried.trials and tried.ledger is not None and not tried.ledger.entries()

    def test_another_budget_or_none_for_a_stored_study(self, tmp_path: Path) -> None:
        path = tmp_path / "s"
        study(storage=path).close()
        with pytest.raises(StudyError, match="`budget` is missing"):
            study(storage=path, budget=None)
        with pytest.raises(PrivacyError, match="was opened with"):
            study(storage=path, budget=PrivacyBudget(9.0, 1e-6))
        study(storage=path).close()
        study(storage=tmp_path / "free", budget=None).close()
        with pytest.raises(StudyError, match="`budget` is new"):
            study(storage=tmp_path / "free")

    def test_copies(self) -> None:
        for copied in (copy.deepcopy, copy.copy, pickle.dumps):
            with pytest.raises(TypeError, match="not copied or pickled"):
                copied(study())


def test_a_copied_study_is_another_run(tmp_path: Path) -> None:
    """Two copies of one file on one ledger: each draws for itself, and each is charged."""
    budget = PrivacyLedger(tmp_path / "l", BUDGET)
    study(storage=tmp_path / "a", budget=budget).close()
    (tmp_path / "b").write_bytes((tmp_path / "a").read_bytes())
    utilities = []
    for name in ("a", "b"):
        with study(storage=tmp_path / name, budget=budget) as each:
            utilities.append([trial.utilities for trial in each.run(3).trials])
    assert utilities[0] != utilities[1] and len(budget.entries()) == 6


@dataclass(frozen=True)
class Run:
    """A study that is yet to be begun, on a ledger."""

    ledger: PrivacyLedger | None

    def __call__(self, checkpoint: Path | None) -> list[float]:
        try:
            with study(storage=checkpoint, budget=self.ledger) as running:
                return [trial.utilities[0] for trial in running.run(3).trials]
        except StudyError as error:
            raise PrivacyError(str(error)) from error


class TestOneDraw(OneDraw):
    draws = 3
    every = 3

    def make(self, ledger: PrivacyLedger | None) -> Run:
        return Run(ledger)

    def draw(self, thing: Run, checkpoint: Path | None) -> list[float]:
        return thing(checkpoint)

    @pytest.mark.skip("without a ledger nothing is charged; the study's own file replays")
    def test_without_a_ledger_too(self, tmp_path: Path) -> None: ...


class TestAudit:
    """The mean of a training's noise, 0 or 1, is guessed from all that was ever drawn.

    The best guess adds up what each draw tells: it errs as between two normal distributions that
    are as far apart as the root of the sum of 1 / noise^2 over the draws, whatever was charged.
    """

    budget = PrivacyBudget(3.0, 1e-6)

    def epsilon_drawn(self, folder: Path) -> float:
        log = folder / "log"
        with pytest.warns(UserWarning, match="is too small for another"):
            study(Trains(str(log)), self.budget, replicates=3).run(200)
        mu = math.hypot(*(1 / float(noise) for noise in log.read_text().split()))
        return gaussian_epsilon(mu, self.budget.delta)

    def test_all_of_it_is_within_the_budget(self, tmp_path: Path) -> None:
        epsilon = self.epsilon_drawn(tmp_path)
        assert 0.8 * self.budget.epsilon < epsilon <= self.budget.epsilon * (1 + 1e-9)

    @pytest.mark.slow
    def test_a_broken_version_that_charges_trials_instead_of_trainings_is_caught(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        charge, last = ChargedProblem.charge, [""]

        def once(self: ChargedProblem, config: Config, trainings: int, label: str) -> None:
            if label != last[0]:
                charge(self, config, trainings, label)
            last[0] = label

        monkeypatch.setattr(ChargedProblem, "charge", once)
        assert self.epsilon_drawn(tmp_path) > 1.3 * self.budget.epsilon
