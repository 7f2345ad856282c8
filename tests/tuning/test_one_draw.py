"""A private search publishes one configuration, whatever happens to it on the way."""

from __future__ import annotations

import copy
import os
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
import torch

from botorch_dp.privacy import DPSGD, PrivacyBudget, PrivacyLedger
from botorch_dp.privacy.selection import TrialNumber
from botorch_dp.space import Integer, Real, SearchSpace
from botorch_dp.training import DPTrainer, TrainTest, logistic_loss, logistic_regression
from botorch_dp.tuning import PrivateFit, PrivateSearch, PrivateSelection
from tests.one_draw import OneDraw

_N = 40
_OPTIMA = torch.linspace(0.2, 0.6, _N, dtype=torch.double)


def scores(configs: list[dict[str, float]]) -> torch.Tensor:
    X = torch.tensor([list(config.values()) for config in configs], dtype=torch.double)
    return 0.25 + 0.5 * (X.unsqueeze(-1) - _OPTIMA).square().mean(1)  # far from its bounds


class _Searches(OneDraw):
    budget: PrivacyBudget
    dim: int
    evaluations: int
    method: Any = "auto"

    def make(self, ledger: PrivacyLedger | None) -> Any:
        names = [f"x{i}" for i in range(self.dim)]
        return _Asked(
            PrivateSearch(
                scores,
                SearchSpace(**{name: Real(0.0, 1.0) for name in names}),
                bounds=(0.0, 1.0),
                budget=self.budget,
                evaluations=self.evaluations,
                num_records=_N,
                method=self.method,
            ),
            ledger,
        )

    def draw(self, thing: Any, checkpoint: Path | None) -> Any:
        result = thing.search.run(checkpoint=checkpoint, ledger=thing.ledger, release_score=True)
        assert result.score is not None
        return list(result.config.value.items()), result.score.value


class _Asked:
    """A search with the ledger it is asked to charge."""

    def __init__(self, search: PrivateSearch, ledger: PrivacyLedger | None) -> None:
        self.search, self.ledger = search, ledger


class TestSelection(_Searches):
    budget, dim, evaluations = PrivacyBudget(5.0), 2, 20
    draws = 2


class TestSlope(_Searches):
    budget, dim, evaluations = PrivacyBudget(5.0), 3, 26
    draws = 3  # two slopes, the score
    every = 3


class TestDescent(_Searches):
    budget, dim, evaluations = PrivacyBudget(50.0, 1e-3), 4, 26
    draws = 9  # three clip norms, five gradients, the score
    every = 9  # of thirty-odd, which are three or four to a draw


@pytest.mark.parametrize("suite", [TestSelection, TestSlope, TestDescent])
def test_the_suite_tests_the_route_of_its_name(suite: type[_Searches]) -> None:
    plan = suite().make(None).search.plan(release_score=True)
    assert plan.method == suite.__name__.removeprefix("Test").lower()


# --- PrivateFit ---


@cache
def trainer() -> DPTrainer:
    """Trainers keep nothing of what they train, and checking a model is most of making one."""
    generator = torch.Generator().manual_seed(0)
    X = torch.randn(90, 2, generator=generator)
    data = TrainTest(X[:60], (X[:60, 0] > 0).long(), X[60:], (X[60:, 0] > 0).long())
    return DPTrainer(partial(logistic_regression, 2), logistic_loss, data)


class TestFit(OneDraw):
    every = 2  # of a score and a best model for each training

    @pytest.fixture(autouse=True)
    def two_cheap_trials(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Each run writes as often as any other. Which noise is needed is tested elsewhere."""
        monkeypatch.setattr(TrialNumber, "draw", lambda self: 2)
        monkeypatch.setattr(PrivateFit, "noise_multiplier", lambda self, config: 2.0)

    def make(self, ledger: PrivacyLedger | None) -> Any:
        space = SearchSpace(
            learning_rate=Real(0.1, 1.0),
            clip_norm=Real(0.5, 1.0),
            batch_size=Integer(20, 20),
            epochs=Integer(1, 1),
        )
        made = PrivateFit(
            copy.deepcopy(trainer()), space, budget=PrivacyBudget(8.0, 1e-3), trials=2
        )
        return _Asked(made, ledger)

    def draw(self, thing: Any, checkpoint: Path | None) -> Any:
        result = thing.search.run(checkpoint=checkpoint, ledger=thing.ledger)
        assert result.score is not None
        weights = [w.tolist() for w in result.model.value.state_dict().values()]
        return list(result.config.value.items()), result.score.value, weights


# --- PrivateSelection ---


class TestPrivateSelection(OneDraw):
    every = 2

    @pytest.fixture(autouse=True)
    def two_trials(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Each run writes as often as any other."""
        monkeypatch.setattr(TrialNumber, "draw", lambda self: 2)
        monkeypatch.setattr(PrivateSelection, "noise_multiplier", lambda self, config: 2.0)

    def make(self, ledger: PrivacyLedger | None) -> Any:
        training = DPSGD(batch_size=20, num_records=60, steps=3)
        made = PrivateSelection(
            _trained,
            SearchSpace(rate=Real(0.0, 1.0)),
            mechanism=lambda config: training,
            budget=PrivacyBudget(8.0, 1e-3),
            num_scored=30,
        )
        return _Asked(made, ledger)

    def draw(self, thing: Any, checkpoint: Path | None) -> Any:
        result = thing.search.run(checkpoint=checkpoint, ledger=thing.ledger)
        return result.config.value, result.score.value, result.artifact.value


def _trained(config: dict[str, Any], noise_multiplier: float) -> tuple[str, float]:
    """A model with secret noise of its own."""
    return os.urandom(8).hex(), config["rate"]
