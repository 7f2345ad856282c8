"""The same trainer on other data, and models that were not trained."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from botorch_dp.training import DPTrainer, TrainTest, logistic_loss, logistic_regression

SETTINGS = {"learning_rate": 0.5, "clip_norm": 1.0, "batch_size": 10, "epochs": 2}


def data(seed: int, *, features: int = 3, count: int = 60) -> TrainTest:
    generator = torch.Generator().manual_seed(seed)
    X = torch.randn(count, features, generator=generator)
    return TrainTest(X, (X[:, 0] > 0).long(), X[:20], (X[:20, 0] > 0).long())


def trainer(seed: int = 0) -> DPTrainer:
    return DPTrainer(partial(logistic_regression, 3), logistic_loss, data(seed))


def test_other_data_train_as_a_trainer_of_their_own_would() -> None:
    there = trainer(0).on(data(1)).fit(**SETTINGS, noise_multiplier=1.0, seed=3)
    own = trainer(1).fit(**SETTINGS, noise_multiplier=1.0, seed=3)
    assert torch.equal(there.model.weight, own.model.weight)
    assert there.accuracy == own.accuracy


def test_the_first_trainer_keeps_its_data() -> None:
    first = trainer(0)
    before = first.fit(**SETTINGS, noise_multiplier=1.0, seed=3).model.weight
    first.on(data(1))
    assert torch.equal(first.fit(**SETTINGS, noise_multiplier=1.0, seed=3).model.weight, before)


@pytest.mark.parametrize(
    "other", [data(1, features=4), TrainTest(*(part.double() for part in data(1)))]
)
def test_data_of_another_form_are_refused(other: TrainTest) -> None:
    with pytest.raises(ValueError, match="`data` must hold"):
        trainer().on(other)


def test_an_untrained_model_is_always_the_same_or_has_the_weights_given() -> None:
    one = trainer()
    assert torch.equal(one.setup.untrained().weight, trainer().setup.untrained().weight)
    trained = one.fit(**SETTINGS, noise_multiplier=1.0, seed=3).model
    restored = one.setup.untrained(dict(trained.state_dict()))
    assert torch.equal(restored.weight, trained.weight) and not restored.training
    assert one.setup.utility(restored) == one.setup.utility(trained)
