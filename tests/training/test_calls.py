"""A record's score comes from a call on that record alone, in the mode in which models are used."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from botorch_dp.errors import PrivacyError
from botorch_dp.privacy import PrivacyBudget, PrivacyLedger
from botorch_dp.space import Integer, Real, SearchSpace
from botorch_dp.training import (
    DPTrainer,
    OutputPerturbedLogisticRegression,
    TrainTest,
    cross_entropy_loss,
    logistic_loss,
    logistic_regression,
    multilayer_perceptron,
)
from botorch_dp.training.calls import correct_alone
from botorch_dp.training.isolation import check_evaluation
from botorch_dp.training.networks import accuracy, is_correct
from botorch_dp.training.records import TrainingRecords
from botorch_dp.tuning import PrivateFit

G = torch.Generator().manual_seed(0)
X = torch.randn(600, 3, generator=G)
Y = (X[:, 0] > 0).long()
DATA = TrainTest(X, Y, X[:97], Y[:97])


class Mixing(nn.Module):
    """Compares the records of a batch, but only in evaluation mode, and only if ``when`` says so.

    As a model does that adapts to the records it is tested on.
    """

    def __init__(self, when: Any = lambda layer: True) -> None:
        super().__init__()
        self.layer, self._when = nn.Linear(3, 2), when

    def forward(self, x: Tensor) -> Tensor:
        if not self.training and self._when(self.layer):
            x = x - x.mean(0, keepdim=True)
        return self.layer(x)


class Quantized(nn.Module):
    """Rounds to a scale that is taken from the batch, as dynamic quantization does."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            scale = x.abs().amax() / 127
            x = (x / scale).round() * scale
        return self.layer(x)


@pytest.mark.parametrize("model", [Mixing, Quantized])
def test_models_that_mix_in_evaluation_mode_only_are_refused(model: Any) -> None:
    with pytest.raises(PrivacyError, match="mixes the records of a batch in evaluation mode"):
        DPTrainer(model, cross_entropy_loss, DATA)


def test_they_are_tried_at_the_final_weights_too() -> None:
    def trained_far(layer: nn.Module) -> bool:
        return bool(layer.weight.norm() > 50)

    trainer = DPTrainer(lambda: Mixing(trained_far), cross_entropy_loss, DATA)
    settings: dict[str, Any] = {"clip_norm": 1.0, "noise_multiplier": 1.0}
    settings |= {"batch_size": 100, "epochs": 1}
    ledger = PrivacyLedger(":memory:", PrivacyBudget(1e3, 1e-3))
    trainer.fit(publish=True, learning_rate=0.1, ledger=ledger, **settings)
    with pytest.raises(PrivacyError, match=r"not handed out.*mixes the records"):
        trainer.fit(publish=True, learning_rate=1e5, **settings)


def test_they_are_tried_at_random_weights_too() -> None:
    """A layer that begins at zero hides what comes before it."""

    def zero() -> nn.Module:
        model = Mixing()
        for parameter in model.parameters():
            nn.init.zeros_(parameter)
        return model

    check_evaluation(zero(), DATA)
    with pytest.raises(PrivacyError, match="mixes the records of a batch in evaluation mode"):
        DPTrainer(zero, cross_entropy_loss, DATA)


def test_a_model_that_enlarges_rounding_is_not_refused() -> None:
    class Enlarging(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(257, 2)

        def forward(self, x: Tensor) -> Tensor:
            return torch.sin(1e6 * self.layer(x))

    model, wide = Enlarging(), torch.randn(5, 257, generator=G)
    with torch.no_grad():
        alone = torch.cat([model(x) for x in wide.split(1)])
        if torch.allclose(model(wide), alone, rtol=0, atol=1e-3):
            pytest.skip("on this machine, rounding does not depend on the shape")
    check_evaluation(model, TrainTest(wide, Y[:5], wide, Y[:5]))


@pytest.mark.parametrize("scale", [1.0, 1e6])
def test_models_that_do_not_mix_pass_whatever_their_weights(scale: float) -> None:
    """A trained model is not lost to rounding."""
    model = multilayer_perceptron(3, 4, (64, 64, 64))
    for parameter in model.parameters():
        parameter.data.mul_(scale)
    check_evaluation(model, DATA)
    check_evaluation(nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.5), nn.Linear(8, 2)), DATA)


# --- Single records. ---


class Tokens(nn.Module):
    """Raises an error for a token that it does not know, which no layer of ours prevents."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.bag = nn.Linear(20, 1), nn.EmbeddingBag(10, 1)
        self.linear.weight.data = torch.randn(1, 20, generator=G) / 20**0.5
        self.linear.bias.data.zero_()
        self.bag.weight.data.zero_()

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x[:, :20]) + self.bag(77 * (x[:, 20:] > 50).long())


class Branching(nn.Module):
    """Cannot be vectorized."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        if not bool(x.abs().sum() < 1e30):
            raise RuntimeError("a record's doing")
        return self.layer(x)


def correct(model: nn.Module, X: Tensor, Y: Tensor) -> Tensor:
    return correct_alone(model, TrainingRecords(X, Y, None))


def alone(model: nn.Module, X: Tensor, Y: Tensor) -> list[bool]:
    """By calls on single records, and nothing else."""
    model, found = copy.deepcopy(model).eval(), []
    with torch.no_grad():
        for x, y in zip(X.split(1), Y.split(1), strict=True):
            try:
                found.append(bool(is_correct(model(x), y)))
            except Exception:
                found.append(False)
    return found


@pytest.mark.parametrize(
    ("model", "X"),
    [
        (multilayer_perceptron(3, 2, (16,)), X),
        (logistic_regression(3), X),
        (Branching(), X[:40]),
    ],
    ids=["network", "logistic", "branching"],
)
def test_scores_are_those_of_single_records(model: nn.Module, X: Tensor) -> None:
    Y = torch.randint(2, (len(X),), generator=G)
    found = correct(model, X, Y)
    # A record within rounding of the boundary may fall on either side; there is none here.
    assert found.tolist() == alone(model, X, Y)
    model.eval()
    assert accuracy(model(X), Y) == pytest.approx(float(found.double().mean()), abs=0.01)


def test_a_record_that_fails_is_wrong_alone_among_those_beside_it() -> None:
    places = [0, 3, 199, *range(64, 128)]
    model, table = Tokens(), torch.cat([torch.randn(300, 20, generator=G), torch.zeros(300, 1)], 1)
    Y = torch.randint(2, (300,), generator=G)
    before = correct(model, table, Y)
    assert 50 < int(before.sum()) < 250
    table[places, 20] = 77.0  # a token that does not exist
    after = correct(model, table, Y)
    before[places] = False
    assert torch.equal(before, after)


def test_a_vectorization_rule_that_mixes_records_is_not_used() -> None:
    class Rule(torch.autograd.Function):
        @staticmethod
        def forward(x: Tensor) -> Tensor:
            return x.clone()

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
            pass

        @staticmethod
        def vmap(info: Any, in_dims: Any, x: Tensor) -> Any:
            x = x.movedim(in_dims[0], 0)
            return x - x.mean(0), 0

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 1)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(Rule.apply(x))

    model, X = Model(), torch.randn(300, 3, generator=G) + 3
    expected = (model.layer(X) > 0).flatten()
    assert torch.equal(correct(model, X, torch.ones(300).long()), expected)


def test_what_a_model_writes_to_its_buffers_is_forgotten() -> None:
    class Remembers(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 1)
            self.register_buffer("seen", torch.zeros(1))

        def forward(self, x: Tensor) -> Tensor:
            out = self.layer(x) + self.seen
            self.seen += x.sum()
            return out

    model = Remembers()
    assert (
        correct(model, X[:30], Y[:30]).tolist()
        == [bool(correct(model, x, y)) for x, y in zip(X.split(1), Y.split(1), strict=True)][:30]
    )
    assert model.seen == 0


# --- A delta that promises nothing. ---

TRAINING: dict[str, Any] = {"learning_rate": 0.1, "clip_norm": 1.0, "noise_multiplier": 2.0}
TRAINING |= {"batch_size": 100, "epochs": 1}


def test_a_delta_not_below_one_in_n_warns_before_anything_is_charged() -> None:
    trainer = DPTrainer(lambda: logistic_regression(3), logistic_loss, DATA)
    ledger = PrivacyLedger(":memory:", PrivacyBudget(100.0, 0.9))
    message = r"`delta` = 0\.01 is not below 1 / 600"
    with pytest.warns(UserWarning, match=message):
        trainer.plan(**TRAINING, delta=0.01)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UserWarning, match=message):
            trainer.fit(**TRAINING, publish=True, delta=0.01, ledger=ledger)
        assert not ledger.entries()
        trainer.fit(**TRAINING, publish=True, delta=1e-5, ledger=ledger)
    with pytest.warns(UserWarning, match=message):
        OutputPerturbedLogisticRegression(DATA, delta=0.01).fit(
            regularization=0.1, noise_std=0.1, publish=True
        )


def test_a_private_fit_warns_but_not_as_often_as_it_trains() -> None:
    """The number of trainings is secret."""
    trainer = DPTrainer(lambda: logistic_regression(3), logistic_loss, DATA)
    space = SearchSpace(
        learning_rate=Real(0.1, 1.0), clip_norm=Real(0.5, 1.0), batch_size=Integer(50, 100),
        epochs=Integer(1, 2),
    )  # fmt: skip
    with pytest.warns(UserWarning, match="is not below 1 / 600"):
        fit = PrivateFit(
            trainer, space, budget=PrivacyBudget(5.0, 0.01), trials=3, test_records="public"
        )
    with pytest.warns(UserWarning, match="is not below 1 / 97"):
        PrivateFit(trainer, space, budget=PrivacyBudget(5.0, 0.02))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fit.run()
    assert not [each for each in caught if "is not below" in str(each.message)]
