"""Settings from public numbers: what they depend on, what is said, and that no record decides."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from botorch_dp.pareto import DPareto
from botorch_dp.privacy import NeighboringRelation, gaussian_mu
from botorch_dp.space import Real, SearchSpace
from botorch_dp.training import (
    DPTrainer,
    TrainTest,
    logistic_loss,
    logistic_regression,
    multilayer_perceptron,
    suggest_settings,
)
from tests.training.helpers import FLOAT_DATA, trainer

NUMBERS: dict[str, Any] = {"num_records": 24_000, "num_features": 123, "feature_norm": 3.7}
FREE = trainer()
ASKED: Any = {"target_epsilon": 2.0, "delta": 1e-3, "feature_norm": 2.6}


def distance(**numbers: Any) -> float:
    return suggest_settings(**{**NUMBERS, **numbers}).learning_rate


def test_the_distance_follows_from_norm_weights_and_layers_and_not_from_epsilon() -> None:
    length = math.hypot(3.7, 1)
    assert distance() == pytest.approx(2 * math.sqrt(124) / length)
    assert distance(num_outputs=4) == pytest.approx(2 * distance())
    assert distance(num_features=495) == pytest.approx(2 * distance())
    assert distance(feature_norm=1e3) == pytest.approx(2 * math.sqrt(124) / 1e3)
    assert distance(feature_norm=1e-3) == pytest.approx(2 * math.sqrt(124))  # the intercept is left
    assert distance(num_parameters=900) == pytest.approx(60 / length)
    assert distance(num_parameters=900, layers=9) == pytest.approx(20 / length)
    assert distance(regression=True) == pytest.approx(distance() / 4)
    assert distance(regression=True, num_parameters=900, layers=9) == pytest.approx(5 / length)
    assert distance(epsilon=0.01) == distance(epsilon=10.0) == distance()


def test_batches_are_a_twelfth_and_gradients_are_clipped_at_a_quarter() -> None:
    found = suggest_settings(**NUMBERS)
    assert (found.batch_size, found.epochs) == (2000, 24)
    assert found.clip_norm == pytest.approx(math.hypot(3.7, 1) / 4)
    assert suggest_settings(**{**NUMBERS, "num_records": 1}).batch_size == 1
    assert suggest_settings(**{**NUMBERS, "num_records": 10**7}).batch_size == 80_000


def test_a_regression_is_clipped_less_where_there_is_little_noise() -> None:
    length = math.hypot(3.7, 1)

    def share(**numbers: Any) -> float:
        return suggest_settings(**{**NUMBERS, "regression": True, **numbers}).clip_norm / length

    assert share() == share(epsilon=0.05) == pytest.approx(0.25)
    assert share(epsilon=10.0) == pytest.approx(1.0)
    assert share(epsilon=10.0, regression=False) == pytest.approx(0.25)
    found = suggest_settings(**NUMBERS, epsilon=0.2, regression=True)
    noise = 2 * math.sqrt(124) / 24_000 / gaussian_mu(0.2, 1e-5)
    assert 0.25 < 0.01 / noise < 1
    assert found.clip_norm == pytest.approx(0.01 / noise * length)
    assert "as large as noise allows" in str(found)
    assert "an error above 0.25" in str(suggest_settings(**NUMBERS, epsilon=0.2))


def test_where_little_can_be_learned_it_says_what_it_would_take() -> None:
    found = suggest_settings(num_records=300, num_features=5000, epsilon=0.1, feature_norm=1.0)
    (warning,) = found.warnings
    words = warning.replace(",", "").split()
    second = words.index("records", words.index("records") + 1)
    records, epsilon = float(words[second - 1]), float(words[words.index("epsilon") + 2])
    for numbers in ({"num_records": math.ceil(records)}, {"epsilon": epsilon}):
        asked = {"num_records": 300, "num_features": 5000, "epsilon": 0.1, **numbers}
        assert not suggest_settings(**asked, feature_norm=1.0).warnings
        enough = {
            name: (math.floor(0.9 * v) if name == "num_records" else 0.9 * v)
            for name, v in numbers.items()
        }
        assert suggest_settings(**{**asked, **enough}, feature_norm=1.0).warnings
    ratio = [
        suggest_settings(**NUMBERS, epsilon=1.0, relation=relation).outlook
        for relation in (NeighboringRelation.REPLACE_ONE, NeighboringRelation.ADD_OR_REMOVE_ONE)
    ]
    assert ratio[0] != ratio[1]


@pytest.mark.parametrize("name", ["num_records", "layers", "feature_norm", "epsilon", "delta"])
def test_wrong_numbers_are_named(name: str) -> None:
    with pytest.raises(ValueError, match=f"`{name}`"):
        suggest_settings(**{**NUMBERS, name: 0})


def test_an_epsilon_is_enough_for_a_training() -> None:
    plan = FREE.plan(**ASKED)
    expected = suggest_settings(
        num_records=60, num_features=7, num_outputs=3, num_parameters=69, layers=2,
        feature_norm=2.6, epsilon=2.0, delta=1e-3,
    )  # fmt: skip
    assert plan.optimizer == "scale_free" and plan.clipping == "flat"
    assert (plan.learning_rate, plan.batch_size, plan.epochs) == (expected.learning_rate, 5, 24)
    assert plan.notes == (expected.outlook,) and expected.outlook in str(plan)
    assert plan.epsilon <= 2.0
    trained = FREE.fit(**ASKED, seed=0)
    explicit = trainer(optimizer="scale_free").fit(
        learning_rate=plan.learning_rate, clip_norm=plan.clip_norm, batch_size=5, epochs=24,
        noise_multiplier=plan.noise_multiplier, delta=1e-3, seed=0,
    )  # fmt: skip
    pairs = zip(trained.model.parameters(), explicit.model.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)
    assert FREE.plan(**ASKED, batch_size=20, epochs=3).steps == 9
    assert len(FREE.replicates([0, 1], **ASKED)) == 2


def test_settings_that_say_how_to_step_leave_nothing_to_the_rule() -> None:
    plan = FREE.plan(learning_rate=0.1, clip_norm=1.0, noise_multiplier=1.0, batch_size=6, epochs=1)
    assert (plan.optimizer, plan.notes) == ("sgd", ())
    with pytest.raises(TypeError, match=r"`batch_size`|`clip_norm`"):
        FREE.plan(learning_rate=0.1, target_epsilon=1.0)
    with pytest.raises(TypeError, match="`learning_rate`"):
        trainer(optimizer="adam").plan(**ASKED)


def test_numbers_as_targets_are_a_regression_unless_the_loss_scores_them() -> None:
    X = FLOAT_DATA.train_X
    y = X[:, 0].clamp(-1, 1)
    data = TrainTest(X, y, X, y)

    def error(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return (outputs.squeeze(-1) - targets).square()

    model = partial(multilayer_perceptron, 7, 1, ())
    numbers = DPTrainer(model, error, data, metric=lambda outputs, targets: 0.0)
    plan = numbers.plan(**ASKED)
    assert plan.learning_rate == pytest.approx(0.5 * math.sqrt(8) / math.hypot(2.6, 1))
    labels = data._replace(train_Y=(y > 0).float(), test_Y=(y > 0).float())
    scored = DPTrainer(partial(logistic_regression, 7), logistic_loss, labels)
    assert scored.plan(**ASKED).learning_rate == pytest.approx(
        2 * math.sqrt(8) / math.hypot(2.6, 1)
    )
    column = data._replace(train_Y=y.unsqueeze(1), test_Y=y.unsqueeze(1))
    for loss, units in ((F.mse_loss, 0.5), (F.binary_cross_entropy_with_logits, 2)):
        by_torch = DPTrainer(model, loss, column, metric=lambda outputs, targets: 0.0)
        expected = units * math.sqrt(8) / math.hypot(2.6, 1)
        assert by_torch.plan(**ASKED).learning_rate == pytest.approx(expected)


def test_frozen_layers_do_not_count() -> None:
    def factory() -> nn.Module:
        model = multilayer_perceptron(7, 3, (6,))
        model[0].requires_grad_(False)
        return model

    half = DPTrainer(factory, trainer().setup.loss, FLOAT_DATA)
    assert (half.setup.layers, half.setup.num_parameters) == (1, 21)


def test_a_front_over_epsilon_alone() -> None:
    epsilons = SearchSpace(target_epsilon=Real(0.5, 8.0, log=True))
    problem = FREE.problem(epsilons, delta=1e-3, feature_norm=2.6)
    study = DPareto(problem, seed=0)
    study.run(3, initial=2)
    for trial in study.trials:
        assert trial.epsilon <= trial.config["target_epsilon"]
    noise = FREE.problem(SearchSpace(noise_multiplier=Real(1.0, 4.0)), delta=1e-3, feature_norm=2.6)
    assert noise.batched.epsilons([{"noise_multiplier": 2.0}])[0] > 0
