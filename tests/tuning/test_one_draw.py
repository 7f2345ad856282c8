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
from tests.one_draw import PLENTY, OneDraw

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


# --- Ctrl-C ---


class _Interrupted:
    """Calls a function, and presses Ctrl-C in one of the calls."""

    def __init__(self, function: Any, at: int) -> None:
        self._function, self._at, self.calls = function, at, 0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.calls += 1
        if self.calls == self._at:
            raise KeyboardInterrupt
        return self._function(*args, **kwargs)


class TestCtrlC:
    """What was done before Ctrl-C is kept, and the same call goes on, for the same charge."""

    def goes_on(self, make: Any, tmp_path: Path, *, calls: int) -> None:
        checkpoint, counted = tmp_path / "run", []
        with PrivacyLedger(budget=PLENTY) as ledger:
            for at in (calls // 2 + 1, 0):
                run, function = make(at)
                counted.append(function)
                if at:
                    with pytest.raises(KeyboardInterrupt) as caught:
                        run(checkpoint=checkpoint, ledger=ledger)
                    (note,) = caught.value.__notes__
                    assert f"the same call goes on from {checkpoint}" in note
                    spent = len(ledger.entries())
            result = run(checkpoint=checkpoint, ledger=ledger)
            assert result.config.value == run(checkpoint=checkpoint, ledger=ledger).config.value
            assert len(ledger.entries()) == max(spent, 1)
        assert sum(function.calls for function in counted) == calls + 1, "one call is made twice"

    def test_of_a_search(self, tmp_path: Path) -> None:
        def make(at: int) -> Any:
            function = _Interrupted(scores, at)
            space = SearchSpace(x0=Real(0.0, 1.0), x1=Real(0.0, 1.0))
            search = PrivateSearch(
                function,
                space,
                bounds=(0.0, 1.0),
                budget=PrivacyBudget(5.0),
                evaluations=64,
                num_records=_N,
            )
            return search.run, function

        self.goes_on(make, tmp_path, calls=4)  # of sixteen configurations

    def test_of_a_fit(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(TrialNumber, "draw", lambda self: 4)
        fit_of = DPTrainer.fit

        def make(at: int) -> Any:
            function = _Interrupted(fit_of, at and at + 1)  # the first one is the rehearsal
            monkeypatch.setattr(DPTrainer, "fit", lambda *args, **kwargs: function(*args, **kwargs))
            fit = PrivateFit(
                copy.deepcopy(trainer()),
                SearchSpace(learning_rate=Real(0.1, 1.0)),
                fixed={"clip_norm": 1.0, "batch_size": 20, "epochs": 1},
                budget=PrivacyBudget(8.0, 1e-3),
            )
            return fit.run, function

        self.goes_on(make, tmp_path, calls=5)
