"""PrivateSelection: anybody's trainer, its prices, its artifacts, and what it refuses."""

from __future__ import annotations

import math
import multiprocessing
import os
import signal
from collections import OrderedDict
from concurrent.futures import BrokenExecutor, ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from dp_accounting import NeighboringRelation as TheirRelation
from dp_accounting import dp_event, pld, rdp

from botorch_dp.errors import BudgetExhausted, PrivacyError
from botorch_dp.privacy import DPSGD, NeighboringRelation, PrivacyBudget, PrivacyLedger
from botorch_dp.privacy.selection import BaseProfile, TrialNumber
from botorch_dp.space import Real, SearchSpace
from botorch_dp.tuning import PrivateSelection
from botorch_dp.tuning.calibration import least_noise
from botorch_dp.tuning.trials import ScoreNoise

ADDED = NeighboringRelation.ADD_OR_REMOVE_ONE
REPLACED = NeighboringRelation.REPLACE_ONE
BUDGET = PrivacyBudget(2.0, 1e-5)
SPACE = SearchSpace(rate=Real(0.0, 1.0))
TRAINING = DPSGD(batch_size=50, num_records=1000, steps=40, relation=ADDED)


def train(config: dict[str, Any], noise_multiplier: float, seed: int | None = None) -> Any:
    return {"rate": config["rate"], "noise": noise_multiplier}, config["rate"]


def poisson(noise_multiplier: float) -> Any:
    """The event of TRAINING."""
    step = dp_event.PoissonSampledDpEvent(0.05, dp_event.GaussianDpEvent(noise_multiplier))
    return dp_event.SelfComposedDpEvent(step, 40)


def selection(**options: Any) -> PrivateSelection:
    settings: dict[str, Any] = {
        "train": train, "space": SPACE, "mechanism": lambda config: TRAINING, "budget": BUDGET,
        "trials": 5, "num_scored": 1000, **options,
    }  # fmt: skip
    return PrivateSelection(settings.pop("train"), settings.pop("space"), **settings)


@dataclass(frozen=True)
class Dies:
    """A training of its own randomness; the second one kills its process, like kill -9."""

    log: str

    def __call__(self, config: dict[str, Any], noise_multiplier: float) -> tuple[str, float]:
        with open(self.log, "a") as file:
            file.write("once\n")
        if len(Path(self.log).read_text().split()) == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        return os.urandom(8).hex(), config["rate"]


#: A forked child need not import torch again.
pools = partial(ProcessPoolExecutor, mp_context=multiprocessing.get_context("fork"))


@pytest.fixture
def three_trials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TrialNumber, "draw", lambda self: 3)


class TestPublished:
    @pytest.mark.parametrize("scored_on", ["sensitive", "public", "training"])
    def test_the_best_artifact_with_its_configuration_and_score(
        self, scored_on: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(TrialNumber, "draw", lambda self: 3)
        tried: list[float] = []

        def noted(config: dict[str, Any], noise_multiplier: float) -> Any:
            tried.append(config["rate"])
            return train(config, noise_multiplier)

        count = None if scored_on == "public" else 90_000  # hardly any noise
        result = selection(train=noted, scored_on=scored_on, num_scored=count).run()
        assert result.config.value["rate"] == max(tried) and len(tried) == 3
        noise = result.config.value["noise_multiplier"]
        assert result.artifact.value == {"rate": max(tried), "noise": noise}
        assert result.score.value == pytest.approx(max(tried), abs=12 * (result.score.scale or 0))
        assert result.guarantee.epsilon(1e-5) == 2.0
        assert (result.test_guarantee is not None) == (scored_on == "sensitive")
        assert result.scored_on == scored_on and result.number == TrialNumber(5, 3.0)

    def test_a_score_stays_between_0_and_1(self) -> None:
        results = [selection(space={"rate": 1.0}, num_scored=1).run() for _ in range(20)]
        assert max(result.score.value for result in results) == 1.0
        assert min(result.score.value for result in results) >= 0.0

    def test_what_rests_on_the_caller_is_said(self) -> None:
        private = selection(scored_on="training")
        text = str(private.guarantee)
        for condition in (
            "`train` is the mechanism that was described",
            "divided by 1,000",
            "how many trainings ran and how long they took",
            "dashboards",
        ):
            assert condition in text
        assert "divided by 1,000" in str(selection().test_guarantee)
        assert private.guarantee.status == "proven"

    def test_a_failing_candidate_is_the_worst_one_and_says_nothing(
        self, three_trials: None, capfd: Any
    ) -> None:
        calls: list[int] = []

        def failing(config: dict[str, Any], noise_multiplier: float) -> Any:
            calls.append(1)
            if len(calls) < 3:
                raise OSError("record 17 is Alice")
            return train(config, noise_multiplier)

        result = selection(train=failing).run()
        assert result.score is not None
        nothing = selection(train=lambda config, noise_multiplier: 1 / 0).run()
        assert nothing.score is None and nothing.artifact.value is None
        assert "Nothing was chosen" in str(nothing)
        assert "Alice" not in "".join(capfd.readouterr())

    @pytest.mark.parametrize("returned", [(lambda: 0, 0.5), 3, (1, "two")])
    def test_what_cannot_be_published_has_failed(self, returned: Any, three_trials: None) -> None:
        assert selection(train=lambda *_: returned).run().score is None

    def test_a_training_may_change_what_it_was_given(self, three_trials: None) -> None:
        tried: list[float] = []

        def taking_apart(config: dict[str, Any], noise_multiplier: float) -> Any:
            tried.append(config.pop("rate"))
            return config.setdefault("layers", []), 0.5

        given = {"rate": 0.1, "layers": []}
        result = selection(train=taking_apart, space=given, rehearsal=taking_apart).run()
        assert set(result.config.value) == {"rate", "layers", "noise_multiplier"}
        assert set(tried) == {0.1} and given == {"rate": 0.1, "layers": []}

    def test_a_rehearsal_shows_errors_before_the_charge(self) -> None:
        with PrivacyLedger(budget=BUDGET) as ledger:
            for returned, error in ((3, TypeError), ((lambda: 0, 0.5), TypeError)):
                broken = selection(rehearsal=lambda *_, returned=returned: returned)
                with pytest.raises(error, match="`train`"):
                    broken.run(ledger=ledger)
            assert not ledger.entries()
            selection(rehearsal=train).run(ledger=ledger)
            assert len(ledger.entries()) == 1
            with pytest.raises(BudgetExhausted):
                selection().run(ledger=ledger)

    @pytest.mark.parametrize("score", [math.nan, -5.0, 7.0])
    def test_scores_with_noise_are_bounded_first(self, score: float) -> None:
        noisy = ScoreNoise(mu=1e3, num_scored=1000).noisy(score, None)
        assert noisy == pytest.approx(1.0 if score == 7.0 else 0.0, abs=1e-4)

    def test_it_goes_on_after_a_worker_has_died(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, three_trials: None
    ) -> None:
        """A process that is killed in a training costs no second charge."""
        monkeypatch.setattr(PrivateSelection, "noise_multiplier", lambda self, config: 2.0)
        dying = selection(train=Dies(str(tmp_path / "trained")))
        with PrivacyLedger(tmp_path / "a.ledger", BUDGET) as ledger:
            how: dict[str, Any] = {"ledger": ledger, "checkpoint": tmp_path / "run"}
            with pools(1) as pool, pytest.raises(BrokenExecutor):
                dying.run(executor=pool, **how)
            with pools(1) as pool:
                values = [dying.run(executor=pool, **how).artifact.value for _ in range(2)]
            assert len(ledger.entries()) == 1 and values[0] == values[1]
        # Nothing that had ended was trained again.
        assert len((tmp_path / "trained").read_text().split()) == 4


class TestPrice:
    @pytest.mark.slow
    @pytest.mark.parametrize("relation", [ADDED, REPLACED])
    def test_an_event_and_a_dp_sgd_of_one_training_agree(self, relation: Any) -> None:
        """And an event keeps to all points by the accountant that priced it."""
        training = DPSGD(batch_size=50, num_records=1000, steps=40, relation=relation)
        ours = selection(mechanism=lambda config: training, scored_on="training")
        theirs = selection(mechanism=lambda c: poisson, relation=relation, scored_on="training")
        config, (base, _) = ours.typical_config, ours._level()
        noise = theirs.noise_multiplier(config)
        assert noise == pytest.approx(ours.noise_multiplier(config), rel=0.01)
        accountant = pld.PLDAccountant(TheirRelation[relation.name]).compose(poisson(noise))
        beside = dp_event.GaussianDpEvent(relation.sum_sensitivity / theirs._score_noise.mu)
        accountant.compose(beside)
        for epsilon, delta in zip(base.epsilons, base.deltas, strict=True):
            assert accountant.get_delta(epsilon) <= delta

    @pytest.mark.parametrize("epsilon", [1.0, 0.1])
    def test_no_dearer_than_the_event_for_it_in_dp_accounting(self, epsilon: float) -> None:
        """RepeatAndSelectDpEvent, of the same events and the same law, by Rényi divergences."""
        number = TrialNumber(20, 1.0)
        private = selection(budget=PrivacyBudget(epsilon, 1e-5), trials=number)
        noise = private.noise_multiplier(private.typical_config)
        event = dp_event.RepeatAndSelectDpEvent(poisson(noise), 20, 1)
        accountant = rdp.RdpAccountant(neighboring_relation=TheirRelation.ADD_OR_REMOVE_ONE)
        theirs = accountant.compose(event).get_epsilon(1e-5)
        assert epsilon < theirs < 3 * epsilon

    def test_events_without_privacy_loss_distributions_are_priced_by_renyi(self) -> None:
        def tree(noise_multiplier: float) -> Any:
            inner = dp_event.SelfComposedDpEvent(dp_event.GaussianDpEvent(noise_multiplier), 2)
            return dp_event.PoissonSampledDpEvent(0.1, inner)

        private = selection(mechanism=lambda config: tree, relation=ADDED)
        base, _ = private._level()
        noise = private.noise_multiplier(private.typical_config)
        accountant = rdp.RdpAccountant(neighboring_relation=TheirRelation.ADD_OR_REMOVE_ONE)
        accountant.compose(tree(noise))
        assert all(
            accountant.get_delta(e) <= d for e, d in zip(base.epsilons, base.deltas, strict=True)
        )
        with pytest.raises(PrivacyError, match="REPLACE_ONE"):
            selection(mechanism=lambda config: tree, relation=REPLACED)

    @pytest.mark.slow
    def test_a_price_that_noise_does_not_change_is_refused(self) -> None:
        private = selection(
            mechanism=lambda config: lambda noise: dp_event.GaussianDpEvent(1.0), relation=ADDED
        )
        with pytest.raises(PrivacyError, match="does not fall"):
            private.plan()

    @pytest.mark.slow
    def test_the_plan_names_what_else_it_would_cost(self) -> None:
        noise: dict[Any, float] = dict(selection(trials=20).plan().noise_multipliers)
        assert noise["tuning ignored"] < noise["this"] < noise["all published"]
        assert "all of the models" in str(selection().plan())
        point = BaseProfile((2.0,), (1e-5,))
        for training in (poisson, TRAINING):
            noise[4, callable(training)] = least_noise(training, point, ADDED, times=4)
        assert noise[4, True] == pytest.approx(noise[4, False], rel=0.01)


class TestArtifacts:
    @pytest.mark.parametrize(
        "artifact",
        [None, 3, "words", {"a": [1, (2.5, None)]}, torch.arange(3.0), np.arange(3), b"bytes",
         {"w": torch.zeros(2, dtype=torch.bfloat16)}, OrderedDict(a=1), {1: 2}, {3, 4}],
    )  # fmt: skip
    def test_whatever_pickles(self, artifact: Any, tmp_path: Path, three_trials: None) -> None:
        run = tmp_path / "run"
        for _ in range(2):
            found = selection(train=lambda *_: (artifact, 0.5)).run(checkpoint=run).artifact.value
            assert type(found) is type(artifact)
            same = torch.equal if isinstance(artifact, torch.Tensor) else None
            if same is None:
                assert str(found) == str(artifact)
            else:
                assert same(found, artifact)


class TestRefused:
    @pytest.mark.parametrize(
        ("options", "error", "message"),
        [
            ({"mechanism": lambda c: TRAINING.with_noise(2.0)}, ValueError, "the noise follows"),
            ({"mechanism": lambda c: poisson}, PrivacyError, "`relation` must say"),
            ({"relation": REPLACED}, PrivacyError, "state one of them"),
            ({"num_scored": None}, ValueError, "`num_scored` is needed"),
            ({"scored_on": "public"}, ValueError, "`num_scored` is for"),
        ],
    )
    def test_bad_arguments(self, options: Any, error: type[Exception], message: str) -> None:
        with pytest.raises(error, match=message):
            selection(**options)

    def test_a_rare_training_of_another_kind(self) -> None:
        def rarely(config: dict[str, Any]) -> DPSGD:
            if config["rate"] != 0.123:
                return TRAINING
            return TRAINING.with_noise(2.0)

        def under_another_relation(config: dict[str, Any]) -> DPSGD:
            if config["rate"] != 0.123:
                return DPSGD(batch_size=50, num_records=1000, steps=40)
            return TRAINING

        with pytest.raises(ValueError, match="the noise follows"):
            selection(mechanism=rarely).noise_multiplier({"rate": 0.123})
        with pytest.raises(PrivacyError, match="state one of them"):
            selection(mechanism=under_another_relation).noise_multiplier({"rate": 0.123})

    def test_another_mechanism_cannot_continue_a_file(self, tmp_path: Path) -> None:
        selection().run(checkpoint=tmp_path / "run")
        more = DPSGD(batch_size=50, num_records=1000, steps=50, relation=ADDED)
        with pytest.raises(PrivacyError, match="other settings"):
            selection(mechanism=lambda config: more).run(checkpoint=tmp_path / "run")
