"""A canary audit catches a pipeline that reveals too much, and leaves an honest one alone."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import binom
from torch import Tensor, nn

from botorch_dp.errors import PrivacyError
from botorch_dp.privacy import NeighboringRelation
from botorch_dp.training import DPTrainer, TrainTest, logistic_loss, logistic_regression
from botorch_dp.training.canaries import audit_training, epsilon_from_guesses, guesses_p_value
from botorch_dp.training.networks import cross_entropy_loss
from botorch_dp.training.randomness import SeededRandomness

DIM = 1000
SETTINGS: dict[str, Any] = {
    "learning_rate": 5.0,
    "clip_norm": 1.0,
    "noise_multiplier": 10.0,
    "batch_size": 60,
    "epochs": 10,
}


def make_data(num_records: int = 40) -> TrainTest:
    generator = torch.Generator().manual_seed(0)
    X = torch.randn(num_records, DIM, generator=generator)
    y = torch.randint(2, (num_records,), generator=generator)
    return TrainTest(X, y, X, y)


def make_trainer(data: TrainTest, **options: Any) -> DPTrainer:
    return DPTrainer(partial(logistic_regression, DIM), logistic_loss, data, **options)


@pytest.fixture
def without_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """A trainer that claims noise and adds none."""
    monkeypatch.setattr(SeededRandomness, "perturb_", lambda self, total, **noise: None)


class TestTheorem:
    def test_published_values(self) -> None:
        """Appendix D and section 7 of [Steinke2023]."""
        assert epsilon_from_guesses(1000, 100, 75, 1e-4, 0.05) == pytest.approx(0.673, abs=5e-4)
        assert epsilon_from_guesses(100_000, 1510, 1439, 1e-5, 0.05) == pytest.approx(
            2.675, abs=1e-3
        )

    def test_without_delta_it_is_randomized_response(self) -> None:
        right = 1 / (1 + math.exp(-0.7))
        assert guesses_p_value(50, 20, 15, 0.7, 0.0) == pytest.approx(binom.sf(14, 20, right))
        assert guesses_p_value(50, 20, 0, 0.7, 0.0) == 1.0
        # All of r right is beyond epsilon as long as q^r < beta.
        right = 0.05 ** (1 / 30)
        limit = math.log(right / (1 - right))
        assert epsilon_from_guesses(30, 30, 30, 0.0, 0.05) == pytest.approx(limit, abs=1e-6)

    def test_the_part_of_delta_by_hand(self) -> None:
        """Two guesses, both right, at q = 1/2: max(P[W = 1], P[W < 2] / 2) = 1/2."""
        assert guesses_p_value(5, 2, 2, 0.0, 1e-3) == pytest.approx(0.25 + 2 * 5 * 1e-3 * 0.5)

    def test_it_falls_with_more_right_and_rises_with_epsilon_and_delta(self) -> None:
        values = [guesses_p_value(100, 40, v, 0.5, 1e-5) for v in range(41)]
        assert values == sorted(values, reverse=True)
        values = [guesses_p_value(100, 40, 35, epsilon, 1e-5) for epsilon in np.linspace(0, 3, 30)]
        assert values == sorted(values)
        assert guesses_p_value(100, 40, 35, 0.5, 1e-3) > guesses_p_value(100, 40, 35, 0.5, 1e-5)

    def test_randomized_response_is_refuted_no_more_often_than_stated(self) -> None:
        generator = np.random.default_rng(0)
        right = generator.binomial(60, 1 / (1 + math.exp(-1.0)), size=1000)
        bounds = {int(v): epsilon_from_guesses(60, 60, int(v), 0.0, 0.05) for v in set(right)}
        refuted = sum(bounds[int(v)] > 1.0 for v in right)
        assert refuted <= binom.isf(1e-6, 1000, 0.05)

    @pytest.mark.parametrize(
        "wrong", [(0, 0, 0), (5, 6, 0), (5, 4, 5), (5, 4, -1)], ids=["m", "r", "v", "negative"]
    )
    def test_impossible_counts(self, wrong: tuple[int, int, int]) -> None:
        with pytest.raises(ValueError, match=r"canaries|guesses|correct"):
            guesses_p_value(*wrong, 1.0, 0.0)


KINDS: list[dict[str, Any]] = [
    {"sampling": "without_replacement"},
    {"sampling": "poisson"},
    {"relation": NeighboringRelation.ADD_OR_REMOVE_ONE},
]


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_an_honest_trainer_stays_below_its_claim(kind: dict[str, Any]) -> None:
    report = audit_training(partial(make_trainer, **kind), make_data(), seed=1, **SETTINGS)
    assert report.passes
    assert report.lower_bound < 0.5
    assert 0 < report.claim < 3
    assert "not refuted" in str(report)


@pytest.mark.usefixtures("without_noise")
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_a_trainer_without_noise_is_caught(kind: dict[str, Any]) -> None:
    report = audit_training(
        partial(make_trainer, **kind),
        make_data(),
        seed=1,
        **{**SETTINGS, "noise_multiplier": 40.0},
    )
    assert not report.passes
    assert report.lower_bound > 1
    assert "REFUTED" in str(report)


@pytest.mark.usefixtures("without_noise")
def test_own_canaries_stand_ins_and_score() -> None:
    generator = torch.Generator().manual_seed(2)
    X = torch.randn(100, DIM, generator=generator)
    y = torch.randint(2, (100,), generator=generator)

    def margins(model: nn.Module, X: Tensor, y: Tensor) -> Tensor:
        return (2 * y - 1) * model(X).squeeze(-1)

    report = audit_training(
        make_trainer,
        make_data(),
        canaries=(X, y),
        stand_ins=(X, 1 - y),
        score=margins,
        seed=0,
        **{**SETTINGS, "noise_multiplier": 40.0},
    )
    assert report.canaries == 100
    assert report.correct == report.guesses, "opposite gradients are twice as far apart"
    assert not report.passes


def test_a_model_that_is_published_is_audited_with_real_noise() -> None:
    report = audit_training(make_trainer, make_data(), canaries=20, **{**SETTINGS, "epochs": 1})
    assert report.lower_bound <= 3.5
    assert report.canaries == 20


def test_the_seed_repeats_an_audit() -> None:
    run = partial(audit_training, make_trainer, make_data(), canaries=30, **SETTINGS)
    assert run(seed=3) == run(seed=3)


def test_integer_records_need_stand_ins() -> None:
    X, y = torch.randint(5, (30, 2)), torch.randint(2, (30,))

    class Embedded(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.linear = nn.Embedding(5, 3), nn.Linear(6, 2)

        def forward(self, X: Tensor) -> Tensor:
            return self.linear(self.table(X).flatten(1))

    embedded: Callable[[TrainTest], DPTrainer] = partial(DPTrainer, Embedded, cross_entropy_loss)
    settings = {**SETTINGS, "batch_size": 10, "epochs": 1}
    with pytest.raises(ValueError, match="stand_ins"):
        audit_training(embedded, TrainTest(X, y, X, y), canaries=4, seed=0, **settings)
    report = audit_training(
        embedded,
        TrainTest(X, y, X, y),
        canaries=(X[:4], y[:4]),
        stand_ins=(X[4:8], y[4:8]),
        seed=0,
        **settings,
    )
    assert report.passes


def test_what_is_refused() -> None:
    data = make_data()
    X, y = data.train_X, data.train_Y
    run = partial(audit_training, make_trainer, data, seed=0, **SETTINGS)
    with pytest.raises(TypeError, match="make_trainer"):
        audit_training(make_trainer(data), data, seed=0, **SETTINGS)  # type: ignore[arg-type]
    with pytest.raises(PrivacyError, match="added or removed"):
        audit_training(
            partial(make_trainer, relation=NeighboringRelation.ADD_OR_REMOVE_ONE),
            data,
            canaries=(X, y),
            stand_ins=(X, 1 - y),
            seed=0,
            **SETTINGS,
        )
    with pytest.raises(ValueError, match=r"`canaries` = .* asks for arrays"):
        run(canaries=10**15)
    with pytest.raises(ValueError, match="as many as canaries"):
        run(canaries=(X, y), stand_ins=(X[:3], y[:3]))
    with pytest.raises(ValueError, match="like the training records"):
        run(canaries=(X.double(), y))
    with pytest.raises(ValueError, match="as many inputs as targets"):
        run(canaries=(X, y[:3]))
    with pytest.raises(ValueError, match="one number for each"):
        run(canaries=30, score=lambda model, X, y: model(X))
    with pytest.raises(ValueError, match="confidence"):
        run(confidence=1.0)
    with pytest.raises(ValueError, match="canaries"):
        run(canaries=0)
