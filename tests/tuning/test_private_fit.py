"""PrivateFit: what it publishes, what it keeps to itself, and what it refuses."""

from __future__ import annotations

import math
import os
import stat
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from functools import cache, partial, partialmethod
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from botorch_dp.errors import BudgetExhausted, PrivacyError
from botorch_dp.pareto import PrivacyUtilityProblem
from botorch_dp.privacy import (
    GaussianLoss,
    NeighboringRelation,
    PrivacyBudget,
    PrivacyLedger,
    gaussian_guarantee,
    gaussian_mu,
)
from botorch_dp.privacy.pld.composition import composed_delta
from botorch_dp.privacy.selection import TrialNumber, selection_epsilon
from botorch_dp.space import Integer, Real, SearchSpace
from botorch_dp.training import DPTrainer, TrainTest, logistic_loss, logistic_regression
from botorch_dp.tuning import PrivateFit
from botorch_dp.tuning import trials as mechanics
from botorch_dp.tuning.trials import FAILED, Outcome, ScoreNoise

_N = 240
BUDGET = PrivacyBudget(5.0, 1e-4)
SPACE = SearchSpace(
    learning_rate=Real(0.1, 2.0, log=True),
    clip_norm=Real(0.5, 1.0),
    batch_size=Integer(20, 40),
    epochs=Integer(1, 2),
)


def records(seed: int = 0) -> TrainTest:
    generator = torch.Generator().manual_seed(seed)
    X = torch.randn(_N + 60, 3, generator=generator)
    y = (X @ torch.tensor([1.0, -2.0, 0.5]) > 0).long()
    return TrainTest(X[:_N], y[:_N], X[_N:], y[_N:])


@cache
def trainer(**options: Any) -> DPTrainer:
    """Trainers keep nothing of what they train, and checking a model is most of making one."""
    return DPTrainer(partial(logistic_regression, 3), logistic_loss, records(), **options)


def fit(**options: Any) -> PrivateFit:
    settings = {"budget": BUDGET, "trials": 4, **options}
    return PrivateFit(settings.pop("trainer", None) or trainer(), SPACE, **settings)


def test_what_a_trainer_releases_beside_its_models_is_not_in_the_budget() -> None:
    released = gaussian_guarantee(sensitivity=1.0, mu=0.1)
    with pytest.raises(PrivacyError, match="beside its models"):
        fit(trainer=trainer().beside(released))


@pytest.fixture
def three_trials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TrialNumber, "draw", lambda self: 3)


def scored(scores: list[float]) -> Any:
    """Trainings that take no time and have these scores, in the order of the calls."""
    left = iter(scores)

    def train_once(*_: Any) -> Outcome:
        score = next(left)
        if not math.isfinite(score):
            return FAILED
        return Outcome(score, {"weight": torch.full((1, 3), score), "bias": torch.zeros(1)})

    return train_once


def _number(law: TrialNumber, count: int) -> int:
    return count


class TestPublished:
    @pytest.mark.one_in(3)
    @pytest.mark.parametrize("test_records", ["sensitive", "public", "training"])
    def test_a_model_its_configuration_and_its_score(self, test_records: Any) -> None:
        result = fit(test_records=test_records).run()
        assert SPACE.check({k: v for k, v in result.config.value.items() if k in SPACE.parameters})
        assert result.config.value["noise_multiplier"] > 0
        data, model = records(), result.model.value
        training = test_records == "training"
        X, y = (data.train_X, data.train_Y) if training else (data.test_X, data.test_Y)
        exact = float(((model(X) > 0).flatten() == (y > 0)).double().mean())
        assert result.score is not None
        # Noise of twelve deviations is seen once in 10^32 runs.
        assert abs(result.score.value - exact) <= 12 * (result.score.scale or 0) + 1e-6
        assert result.guarantee.epsilon(BUDGET.delta) == BUDGET.epsilon
        assert result.guarantee.quoted_delta == BUDGET.delta
        assert result.guarantee.status == "conditional"
        assert (result.test_guarantee is not None) == (test_records == "sensitive")
        assert (result.score.scale is None) == (test_records == "public")

    def test_the_best_score_wins(self, monkeypatch: pytest.MonkeyPatch, three_trials: None) -> None:
        for scores in ([0.2, 0.9, 0.5], [0.9, 0.2, 0.5], [-math.inf, 0.1, 0.3]):
            monkeypatch.setattr("botorch_dp.tuning.trials.train_once", scored(scores))
            result = fit().run()
            assert result.score is not None and result.score.value == max(scores)
            assert torch.equal(result.model.value.weight, torch.full((1, 3), max(scores)))

    def test_equal_scores_are_drawn_for(
        self, monkeypatch: pytest.MonkeyPatch, three_trials: None
    ) -> None:
        chosen = set()
        private = fit()
        monkeypatch.setattr(PrivateFit, "noise_multiplier", lambda self, config: 1.0)
        for _ in range(40):
            order = iter((0.0, 1.0, 2.0))

            def tied(*_: Any, order: Any = order) -> Outcome:
                weight = torch.full((1, 3), next(order))
                return Outcome(0.5, {"weight": weight, "bias": torch.zeros(1)})

            monkeypatch.setattr("botorch_dp.tuning.trials.train_once", tied)
            chosen.add(float(private.run().model.value.weight[0, 0]))
        assert len(chosen) == 3  # but in one of four million runs

    def test_failures_and_empty_draws_publish_what_was_fixed_before(
        self, monkeypatch: pytest.MonkeyPatch, three_trials: None
    ) -> None:
        private = fit(trials=TrialNumber(2, math.inf))
        published = []
        for scores in ([-math.inf] * 3, []):
            monkeypatch.setattr("botorch_dp.tuning.trials.train_once", scored(scores))
            monkeypatch.setattr(TrialNumber, "draw", partialmethod(_number, count=len(scores)))
            result = private.run()
            assert result.score is None
            published.append((result.config.value, result.model.value.weight.tolist()))
        assert published[0] == published[1]

    def test_what_fails_on_any_records_fails_before_the_charge(self, tmp_path: Path) -> None:
        def failing(outputs: torch.Tensor, targets: torch.Tensor) -> float:
            return 0.5 if torch.equal(outputs[:6], outputs[6:12]) else 1 / 0  # once it is in use

        broken = fit(trainer=trainer(metric=failing), test_records="public")
        with (
            PrivacyLedger(tmp_path / "a.ledger", PrivacyBudget(9.0, 1e-3)) as ledger,
            pytest.raises(ZeroDivisionError),
        ):
            broken.run(ledger=ledger)
        with PrivacyLedger(tmp_path / "a.ledger") as ledger:
            assert not ledger.entries()

    def test_other_threads_and_processes_train_too(self, three_trials: None) -> None:
        with ThreadPoolExecutor(2) as threads:
            assert fit().run(executor=threads).score is not None
        with ProcessPoolExecutor(2) as processes:
            assert fit().run(executor=processes).score is not None

    def test_an_executor_that_may_begin_a_training_twice_is_refused(self) -> None:
        class Dask(ThreadPoolExecutor):
            __module__ = "distributed.cfexecutor"

        with PrivacyLedger(budget=BUDGET) as ledger, Dask(1) as pool:
            with pytest.raises(PrivacyError, match="draw its noise twice"):
                fit().run(executor=pool, ledger=ledger)
            assert not ledger.entries()
            assert fit(unsafe_seed=0).run(executor=pool).score is not None


class TestSecret:
    def test_a_resumed_run_keeps_number_and_configurations(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path = tmp_path / "run"
        numbers = iter([5, 2])
        monkeypatch.setattr(TrialNumber, "draw", lambda self: next(numbers))
        private, seen = fit(), []
        trained = mechanics.train_once

        def interrupted(*training: Any) -> Outcome:
            seen.append(training[2]["learning_rate"])
            if len(seen) == 3:
                raise KeyboardInterrupt
            return trained(*training)

        monkeypatch.setattr("botorch_dp.tuning.trials.train_once", interrupted)
        with pytest.raises(KeyboardInterrupt):
            private.run(checkpoint=path)
        assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
        first = private.run(checkpoint=path)
        assert len(seen) == 6 and seen[2] == seen[3] and len(set(seen)) == 5
        again = fit().run(checkpoint=path)
        assert len(seen) == 6
        assert first.config.value == again.config.value
        assert torch.equal(first.model.value.weight, again.model.value.weight)

    def test_one_price_for_all_before_anything_is_trained(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, three_trials: None
    ) -> None:
        events: list[str] = []
        private = fit()
        with PrivacyLedger(tmp_path / "a.ledger", PrivacyBudget(6.5, 1e-3)) as ledger:
            trained = mechanics.train_once

            def noted(*arguments: Any) -> Outcome:
                events.append(f"{len(ledger.entries())} charged")
                return trained(*arguments)

            monkeypatch.setattr("botorch_dp.tuning.trials.train_once", noted)
            private.run(ledger=ledger)
            (entry,) = ledger.entries()
            assert (entry.epsilon, entry.delta) == (5.0, 1e-4)
            assert entry.guarantee.protects == "one training record or one test record"
            assert events == ["1 charged"] * 3
            # When a value was ready would tell how many trainings there were: no file says it.
            schema = ledger._file.query("SELECT sql FROM sqlite_master WHERE type = 'table'")
            timed = [sql for (sql,) in schema if "_at " in sql]
            assert len(timed) == 1 and timed[0].startswith("CREATE TABLE charge")
            with pytest.raises(BudgetExhausted):
                private.run(ledger=ledger)
            assert len(events) == 3


class TestLevel:
    @pytest.mark.parametrize("test_records", ["public", "training"])
    def test_every_configuration_keeps_to_one_level(self, test_records: Any) -> None:
        private = fit(test_records=test_records)
        base, _ = private._level()
        for config in SPACE.sample(3, seed=1):
            noise = private.noise_multiplier(config)
            plan = private.trainer.plan(**config, noise_multiplier=noise)
            losses = [plan.privacy_loss(plan.steps)]
            if test_records == "training":
                losses.append(GaussianLoss(private._score_noise.mu))
            for epsilon, delta in zip(base.epsilons, base.deltas, strict=True):
                assert composed_delta(losses, epsilon) <= delta * (1 + 1e-6)

    def test_the_score_of_sensitive_test_records_keeps_to_their_budget(self) -> None:
        private = fit(budget=PrivacyBudget(0.7, 1e-5))
        mu = private._score_noise.mu
        assert mu is not None
        found = selection_epsilon((GaussianLoss(mu),), private.number, 1e-5)
        assert 0.66 < found <= 0.7
        assert mu < gaussian_mu(0.7, 1e-5)

    def test_adding_or_removing_records(self) -> None:
        added = trainer(relation=NeighboringRelation.ADD_OR_REMOVE_ONE)
        private = fit(trainer=added)
        assert private.guarantee.relation is NeighboringRelation.ADD_OR_REMOVE_ONE
        # The score is divided by the number of test records, whatever the trainer's relation.
        assert private.test_guarantee is not None
        assert private.test_guarantee.relation is NeighboringRelation.REPLACE_ONE
        ledger = PrivacyLedger(":memory:", PrivacyBudget(9.0, 1e-3))
        assert private.run(ledger=ledger).guarantee.epsilon(BUDGET.delta) == BUDGET.epsilon
        (entry,) = ledger.entries()
        assert "neither added nor removed" in str(entry.guarantee)

    def test_what_rests_on_the_model_is_said_to_the_test_records_too(self) -> None:
        """A model of the caller's own is called on them, which only he can vouch for."""
        own = trainer(engine="per_record")
        said = str(fit(trainer=own).test_guarantee)
        assert "your model and loss treat every record on its own" in said
        assert "your model" not in str(fit().test_guarantee)  # linear layers of torch


class TestRefused:
    @pytest.mark.parametrize(
        ("options", "error", "message"),
        [
            ({"test_records": "shared"}, ValueError, "`test_records` must be"),
            (
                {"trials": TrialNumber(5000, math.inf), "budget": PrivacyBudget(0.01, 1e-6)},
                PrivacyError,
                "No noise meets",
            ),
        ],
    )
    def test_bad_arguments(self, options: Any, error: type[Exception], message: str) -> None:
        with pytest.raises(error, match=message):
            fit(**options)

    def test_spaces(self) -> None:
        base = dict(SPACE.parameters)
        for changed, message in (
            ({**base, "noise_multiplier": Real(1, 2)}, "follows from the budget"),
            ({k: v for k, v in base.items() if k != "epochs"}, "must name the settings"),
            ({**base, "batch_size": Integer(1, 241)}, "240"),
        ):
            with pytest.raises(ValueError, match=message):
                PrivateFit(trainer(), SearchSpace(**changed), budget=BUDGET)

    def test_what_cannot_publish(self) -> None:
        problem = PrivacyUtilityProblem(
            SPACE, privacy=lambda config: 1.0, utility=lambda config, seed: 0.5
        )
        with pytest.raises(PrivacyError, match="publish"):
            PrivateFit(problem, SPACE, budget=BUDGET)

    def test_a_metric_of_unknown_sensitivity(self) -> None:
        own = trainer(metric=lambda outputs, targets: 0.5)
        with pytest.raises(PrivacyError, match="metric"):
            PrivateFit(own, SPACE, budget=BUDGET)
        PrivateFit(own, SPACE, budget=BUDGET, test_records="public")


def test_records_of_data_sets(tmp_path: Path) -> None:
    data = records()
    pairs = [torch.utils.data.TensorDataset(*data[i : i + 2]) for i in (0, 2)]
    own = DPTrainer(partial(logistic_regression, 3), logistic_loss, (pairs[0], pairs[1]))
    private = PrivateFit(own, SPACE, budget=BUDGET, trials=2, test_records="public")
    first, again = (private.run(checkpoint=tmp_path / "run") for _ in range(2))
    right = (first.model.value(data.test_X) > 0).flatten() == data.test_Y
    assert first.score.value == again.score.value == pytest.approx(float(right.double().mean()))


def test_settings_that_are_given_are_not_tuned() -> None:
    space = SearchSpace(learning_rate=Real(0.1, 2.0, log=True))
    fixed = {"clip_norm": 0.7, "batch_size": 30, "epochs": 2}
    private = PrivateFit(trainer(), space, budget=BUDGET, trials=2, fixed=fixed)
    result = private.run()
    assert {k: result.config.value[k] for k in fixed} == fixed
    assert set(result.config.value) == {*fixed, "learning_rate", "noise_multiplier"}
    for wrong, message in (
        ({"noise_multiplier": 1.0}, "noise follows from the budget"),
        ({"epoch": 3}, "Did you mean 'epochs'"),
        ({"learning_rate": 1.0}, "both have"),
    ):
        with pytest.raises(ValueError, match=message):
            PrivateFit(trainer(), space, budget=BUDGET, fixed=wrong)


def test_scores_without_noise_are_the_trainers_metric() -> None:
    plain = trainer()
    model = plain.setup.untrained()
    assert fit(test_records="public")._own.score(model) == plain.setup.utility(model)


@pytest.mark.parametrize("test_records", ["sensitive", "training"])
def test_the_noise_of_a_score_is_that_of_its_mu(test_records: Any) -> None:
    private = fit(test_records=test_records)
    score = private._own.score(trainer().setup.untrained())
    count = _N if test_records == "training" else 60
    scoring = ScoreNoise(0.05, count)
    scores = [count * scoring.noisy(score, seed) for seed in range(600)]
    # A count moves by 1 with a record: a deviation of 1 / mu; 600 draws give it to 3%.
    assert np.std(scores) == pytest.approx(20.0, rel=0.15)
    assert private._score_noise.num_scored == count


class TestNothingTuned:
    """Without a space: one training, whose settings follow from public numbers."""

    def untuned(self, **options: Any) -> PrivateFit:
        given = {"budget": BUDGET, "fixed": {"feature_norm": 1.7}, **options}
        return PrivateFit(trainer(), **given)

    def test_it_is_the_training_that_the_trainer_itself_would_make(self) -> None:
        result = self.untuned(unsafe_seed=0).run()
        plan = trainer().plan(target_epsilon=BUDGET.epsilon, delta=BUDGET.delta, feature_norm=1.7)
        config = result.config.value
        for name in ("optimizer", "learning_rate", "clip_norm", "batch_size", "epochs"):
            assert config[name] == getattr(plan, name)
        assert config["noise_multiplier"] == pytest.approx(plan.noise_multiplier, rel=1e-2)
        assert result.guarantee.nominal.epsilon(BUDGET.delta) <= BUDGET.epsilon

    def test_one_training_has_the_whole_budget(self) -> None:
        private, tuned = self.untuned(), fit()
        assert private.plan().number is None and tuned.plan().number is not None

    def test_a_model_that_was_changed_since_gets_no_receipt(self) -> None:
        result = self.untuned().run()
        assert result.receipt().verify(artifact=result.model.value).passes
        next(result.model.value.parameters()).data.add_(1.0)
        for receipt in (result.receipt, result.model.receipt):
            with pytest.raises(PrivacyError, match="model was changed since"):
                receipt()

    def test_it_needs_the_choice(self) -> None:
        with pytest.raises(ValueError, match="Without a `space` nothing is tuned"):
            self.untuned(fixed={"learning_rate": 0.1})


class TestPeople:
    """The unit is a person with many records, in trainings and in scores."""

    IDS = torch.arange(_N) % 70
    TESTS = torch.arange(60) % 17

    def people(self, **options: Any) -> PrivateFit:
        return fit(trainer=trainer_of_people(), **options)

    @pytest.mark.parametrize("test_records", ["sensitive", "training"])
    def test_a_score_is_the_mean_of_means(self, test_records: Any) -> None:
        training = test_records == "training"
        own = {} if training else {"test_groups": self.TESTS}
        chosen = self.people(test_records=test_records, **own)
        model, data = chosen.trainer.setup.untrained(), records()
        X, y = (data.train_X, data.train_Y) if training else (data.test_X, data.test_Y)
        right = ((model(X) > 0).flatten() == (y > 0)).double()
        ids = self.IDS if training else self.TESTS
        means = [right[ids == person][:3].mean() for person in ids.unique()]
        assert chosen._own.score(model) == pytest.approx(float(torch.stack(means).mean()))
        assert chosen.num_scored == (70 if training else 17)
        # One person whose records are all scored otherwise moves it by a share of 1 / people.
        assert chosen._score_noise.sensitivity == pytest.approx(1 / len(means), rel=1e-5)

    def test_both_guarantees_are_for_people(self) -> None:
        chosen = self.people(test_groups=self.TESTS)
        unit = "one person with all of at most 3 records that are used"
        plan = chosen.plan()
        assert plan.guarantee.protects == plan.test_guarantee.protects == unit
        assert plan.guarantee.relation is NeighboringRelation.REPLACE_ONE
        apart = "no person has both training records and test records"
        assert apart in plan.guarantee.conditions and apart in plan.test_guarantee.conditions
        assert chosen._price.protects == unit
        ledger = PrivacyLedger(budget=PrivacyBudget(5.0, 1e-4))
        result = chosen.run(ledger=ledger)
        assert result.receipt().verify().passes and result.for_tests.receipt().verify().passes
        assert all(each.guarantee.protects == unit for each in ledger.entries())

    def test_other_people_are_another_run(self, tmp_path: Path) -> None:
        path = tmp_path / "fit"
        self.people(test_groups=self.TESTS).run(checkpoint=path)
        with pytest.raises(ValueError, match="other settings"):
            self.people(test_groups=self.TESTS // 2).run(checkpoint=path)

    def test_who_is_protected_is_asked_for_both_kinds(self) -> None:
        with pytest.raises(PrivacyError, match="pass both or none"):
            self.people()
        with pytest.raises(PrivacyError, match="pass both or none"):
            fit(test_groups=self.TESTS)
        with pytest.raises(PrivacyError, match="both or none"):
            self.people(test_records="public", test_groups=self.TESTS)
        with pytest.raises(ValueError, match="each of the 60 records"):
            self.people(test_groups=self.IDS)


@cache
def trainer_of_people() -> DPTrainer:
    how: Any = {"groups": TestPeople.IDS, "per_group": 3}
    return DPTrainer(partial(logistic_regression, 3), logistic_loss, records(), **how)
