"""Models and losses that mix records, or keep something of them, are refused.

And they would be computed right if they were not: in a batch of one there is nobody to mix with.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from botorch_dp.errors import PrivacyError
from botorch_dp.privacy import PrivacyBudget, PrivacyLedger
from botorch_dp.training import DPTrainer, TrainTest, cross_entropy_loss
from botorch_dp.training.engines.base import Batches
from botorch_dp.training.engines.fused import FusedEngine
from botorch_dp.training.engines.per_record import PerRecordEngine
from botorch_dp.training.isolation import examine
from tests.training.helpers import (
    ENGINES,
    FLOAT_DATA,
    INDICES,
    SETTINGS,
    clipped_sum_of,
    flat,
    make_data,
)

DATA = FLOAT_DATA


def linear(outputs: int = 3) -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(7, outputs)


class Doubled(torch.autograd.Function):
    """Twice its input; vectorized and switched on, it brings in the neighbours as well."""

    mixes = False

    @staticmethod
    def forward(X: Tensor) -> Tensor:
        return 2 * X

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return 2 * gradient

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], X: Tensor) -> tuple[Tensor, int]:
        place = in_dims[0]
        assert place is not None
        return (2 * X + (X.roll(1, place) if Doubled.mixes else 0)), place


class WithDoubled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(7, 4), nn.Linear(4, 3)

    def forward(self, X: Tensor) -> Tensor:
        return self.second(Doubled.apply(torch.tanh(self.first(X))))


def test_vectorization_rules_that_mix_records_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    DPTrainer(WithDoubled, cross_entropy_loss, DATA)
    monkeypatch.setattr(Doubled, "mixes", True)
    with pytest.raises(PrivacyError, match=r"batch of 2 random records.*autograd function"):
        DPTrainer(WithDoubled, cross_entropy_loss, DATA)


def test_a_model_that_turns_out_to_mix_is_not_handed_out(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = DPTrainer(WithDoubled, cross_entropy_loss, DATA)
    trainer.fit(**SETTINGS, publish=True)
    monkeypatch.setattr(Doubled, "mixes", True)
    trainer.fit(**SETTINGS, seed=0)
    ledger = PrivacyLedger(":memory:", PrivacyBudget(100.0, 1e-4))
    with pytest.raises(PrivacyError, match=r"not handed out.*stays spent.*autograd function"):
        trainer.fit(**SETTINGS, publish=True, ledger=ledger)
    assert len(ledger.entries()) == 1


@pytest.mark.parametrize("engine", ENGINES)
def test_an_engine_that_counts_empty_places_is_noticed(
    engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a batch of one already, whose sum without its record is known to be 0."""
    for kind in (FusedEngine, PerRecordEngine):

        def filling(
            self: Any, batches: Batches, clip_norm: float, honest: Any = kind.clipped_sums
        ) -> Any:
            return honest(self, Batches(batches.places), clip_norm)

        monkeypatch.setattr(kind, "clipped_sums", filling)
    with pytest.raises(PrivacyError, match=r"batch of 1 random records"):
        DPTrainer(linear, cross_entropy_loss, DATA, engine=engine)


def test_what_only_the_caller_can_see_to_is_a_condition() -> None:
    def condition(model: Callable[[], nn.Module], loss: Any, **options: Any) -> bool:
        plan = DPTrainer(model, loss, DATA, **options).plan(**SETTINGS)
        return "they store nothing between calls" in str(plan.guarantee)

    assert not condition(linear, cross_entropy_loss)
    assert not condition(linear, nn.CrossEntropyLoss())  # read once, and never called on records
    assert condition(linear, nn.MultiMarginLoss())
    assert condition(linear, cross_entropy_loss, engine="per_record")


class Centring(nn.Module):
    """Centres its hidden layer over the batch, without any layer that a validator knows."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(7, 3)

    def forward(self, X: Tensor) -> Tensor:
        return self.head(X - X.mean(dim=0))


class Stateful(nn.Module):
    """Starts where the last call ended, as recurrent models sometimes do."""

    def __init__(self) -> None:
        super().__init__()
        self.head, self.last = nn.Linear(7, 3), None

    def forward(self, X: Tensor) -> Tensor:
        outputs = self.head(X)
        if self.last is not None and self.last.shape == outputs.shape:
            outputs = outputs + 100 * self.last
        self.last = outputs.detach()
        return outputs


class Remembering(nn.Module):
    """Keeps what it saw last in a buffer; clipping and noise never touch that."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(7), persistent=False)

    def forward(self, X: Tensor) -> Tensor:
        self.seen = X.detach()[0].clone()
        return X


class Counting(nn.Module):
    """Counts its calls, which is public."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))

    def forward(self, X: Tensor) -> Tensor:
        self.calls += 1
        return X


class InLayer(nn.Module):
    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer, self.head = layer, nn.Linear(3, 3)

    def forward(self, X: Tensor) -> Tensor:
        hidden = self.layer(X)
        return self.head((hidden[0] if isinstance(hidden, tuple) else hidden).mean(dim=1))


class Branching(nn.Linear):
    """Computes another thing where its records say so."""

    def forward(self, X: Tensor) -> Tensor:
        return super().forward(X if float(X.sum()) > -1e9 else -X)


SEQUENCES = make_data(shape=(4, 3), dtype=torch.float32)
REFUSED_MODELS: dict[str, tuple[Any, TrainTest, type[Exception], str]] = {
    "centred": (Centring, DATA, PrivacyError, "mixes the records"),
    "stateful": (Stateful, DATA, PrivacyError, r"keeps something|mixes the records"),
    "running statistics": (
        lambda: InLayer(nn.InstanceNorm1d(4, affine=True, track_running_stats=True)),
        SEQUENCES,
        PrivacyError,
        r"layer\.running_mean.*track_running_stats=False",
    ),
    "sequence first": (lambda: InLayer(nn.LSTM(3, 3)), SEQUENCES, PrivacyError, "batch_first"),
    "remembering": (
        lambda: nn.Sequential(Remembering(), linear()),
        DATA,
        PrivacyError,
        r"buffers \(0\.seen\)",
    ),
    "branching": (lambda: Branching(7, 3), DATA, ValueError, r"cannot be computed together.*item"),
}


@pytest.mark.parametrize("engine", ["auto", "per_record"])
@pytest.mark.parametrize("name", REFUSED_MODELS)
def test_models_are_refused(name: str, engine: str) -> None:
    factory, data, error, message = REFUSED_MODELS[name]
    with pytest.raises(error, match=message):
        DPTrainer(factory, cross_entropy_loss, data, engine=engine)


def test_models_that_look_like_them_are_not() -> None:
    """Buffers that know no record, and normalizations of a record by itself."""
    DPTrainer(lambda: nn.Sequential(Counting(), linear()), cross_entropy_loss, DATA)
    DPTrainer(lambda: InLayer(nn.InstanceNorm1d(4)), cross_entropy_loss, SEQUENCES)


MIXES = "mixes the records"
#: Losses, and what is said of them.
REFUSED_LOSSES: dict[str, tuple[Any, str]] = {
    "centred": (lambda o, t: (v := cross_entropy_loss(o, t)) - v.mean(), MIXES),
    "normalized": (lambda o, t: (v := cross_entropy_loss(o, t)) / v.sum(), MIXES),
    "ranked": (lambda o, t: cross_entropy_loss(o, t).sort().values, MIXES),
    "neighbour": (lambda o, t: cross_entropy_loss(o, t) + o[:, 0].roll(1), MIXES),
    "targets": (lambda o, t: cross_entropy_loss(o, t) * (1 + t.float().mean()), MIXES),
    "divided": (lambda o, t: cross_entropy_loss(o, t) / len(o), MIXES),
    "sum": (nn.CrossEntropyLoss(reduction="sum"), "not the mean"),
    "outputs": (lambda o, t: o, "one number for each record"),
    "broadcast": (lambda o, t: (o[:, :1] - t.float()) ** 2, r"outputs.squeeze\(-1\)"),
    "list": (lambda o, t: cross_entropy_loss(o, t).tolist(), "must return a tensor"),
}


TEN = make_data(shape=(5,), classes=10, dtype=torch.float32)
ONE_HOT = TEN._replace(
    train_Y=F.one_hot(TEN.train_Y, 10).float(), test_Y=F.one_hot(TEN.test_Y, 10).float()
)
SHARES = TEN._replace(train_Y=TEN.train_Y / 9, test_Y=TEN.test_Y / 9)
WORDS = TEN._replace(
    train_Y=TEN.train_Y[:, None] // torch.arange(1, 5),
    test_Y=TEN.test_Y[:, None] // torch.arange(1, 5),
)


def odd_one(place: int, weight: float = 50.0) -> Tensor:
    """Class weights of 1 but for one class."""
    weights = torch.ones(10)
    weights[place] = weight
    return weights


def weighted_by_hand(outputs: Tensor, targets: Tensor) -> Tensor:
    weights = odd_one(7)[targets]
    return (weights * cross_entropy_loss(outputs, targets)).sum() / weights.sum()


def contrastive(outputs: Tensor, targets: Tensor) -> Tensor:
    alike = (targets[:, None] == targets).float()
    return (alike * (outputs @ outputs.T)).mean()


def ranking(outputs: Tensor, targets: Tensor) -> Tensor:
    scores = outputs[:, 0]
    return F.relu(1 - (scores[:, None] - scores)).where(targets[:, None] > targets, 0.0).mean()


class Tagger(nn.Linear):
    """A class for each of four words."""

    def __init__(self) -> None:
        super().__init__(5, 40)

    def forward(self, X: Tensor) -> Tensor:
        return super().forward(X).view(len(X), 10, 4)


#: Losses that mix the records of a batch, as users of ten classes write them.
MIXING: dict[str, tuple[Any, TrainTest, Any]] = {
    **{
        f"class {odd} weighs {weight}": (
            nn.CrossEntropyLoss(weight=odd_one(odd, weight)),
            TEN,
            partial(nn.Linear, 5, 10),
        )
        for odd in (0, 9)
        for weight in (50.0, 1.5)
    },
    "log-probabilities": (
        nn.NLLLoss(weight=odd_one(4)),
        TEN,
        lambda: nn.Sequential(nn.Linear(5, 10), nn.LogSoftmax(dim=1)),
    ),
    "by hand": (weighted_by_hand, TEN, partial(nn.Linear, 5, 10)),
    "by frequency": (
        lambda o, t: F.cross_entropy(o, t, weight=1 / torch.bincount(t, minlength=10).clamp(1)),
        TEN,
        partial(nn.Linear, 5, 10),
    ),
    **{
        f"one-hot, class {odd} has weight 50": (
            lambda o, t, odd=odd: F.cross_entropy(o, t.argmax(dim=1), weight=odd_one(odd)),
            ONE_HOT,
            partial(nn.Linear, 5, 10),
        )
        for odd in (0, 4, 9)
    },
    "shares": (
        lambda o, t: ((o[:, 0] - t).square() * t).sum() / t.sum(),
        SHARES,
        partial(nn.Linear, 5, 1),
    ),
    "padded words": (nn.CrossEntropyLoss(), WORDS, Tagger),
    "contrastive": (contrastive, TEN, partial(nn.Linear, 5, 10)),
    "ranking": (ranking, TEN, partial(nn.Linear, 5, 1)),
}


@pytest.mark.parametrize("name", MIXING)
def test_a_loss_that_mixes_records_is_refused_whichever_class_shows_it(name: str) -> None:
    loss, data, factory = MIXING[name]
    for engine in ("auto", "opacus"):
        with pytest.raises(PrivacyError, match=r'reduction="none".* at most 1'):
            DPTrainer(factory, loss, data, engine=engine)


#: Losses that do not, and the loss of one record by hand, of its outputs and its target.
WEIGHING: dict[str, tuple[Any, TrainTest, Any, Any]] = {
    "class weights": (
        nn.CrossEntropyLoss(weight=odd_one(7, 0.1), reduction="none"),
        TEN,
        partial(nn.Linear, 5, 10),
        lambda o, t: -o.log_softmax(0)[t] * (0.1 if t == 7 else 1.0),
    ),
    "label smoothing": (
        nn.CrossEntropyLoss(label_smoothing=0.2),
        TEN,
        partial(nn.Linear, 5, 10),
        lambda o, t: -0.8 * o.log_softmax(0)[t] - 0.02 * o.log_softmax(0).sum(),
    ),
    "class weights of one-hot targets": (
        nn.CrossEntropyLoss(weight=odd_one(7, 0.1)),
        ONE_HOT,
        partial(nn.Linear, 5, 10),
        lambda o, t: -(o.log_softmax(0) * t * odd_one(7, 0.1)).sum(),
    ),
    "pos_weight": (
        nn.BCEWithLogitsLoss(pos_weight=torch.tensor(0.2)),
        SHARES._replace(train_Y=(TEN.train_Y > 6).float(), test_Y=(TEN.test_Y > 6).float()),
        lambda: nn.Sequential(nn.Linear(5, 1), nn.Flatten(0)),
        lambda o, t: -0.2 * t * F.logsigmoid(o) - (1 - t) * F.logsigmoid(-o),
    ),
    "a weight beside each label": (
        lambda o, t: cross_entropy_loss(o, t[:, 0].long()) * t[:, 1],
        TEN._replace(
            train_Y=torch.stack([TEN.train_Y, TEN.train_X[:, 0].abs().clamp(max=1)], 1),
            test_Y=torch.stack([TEN.test_Y, TEN.test_Y / 9], 1),
        ),
        partial(nn.Linear, 5, 10),
        lambda o, t: -o.log_softmax(0)[t[0].long()] * t[1],
    ),
    "padded words": (
        lambda o, t: F.cross_entropy(o, t, reduction="none").mean(1),
        WORDS,
        Tagger,
        lambda o, t: -o.log_softmax(0).gather(0, t[None]).mean(),
    ),
}


@pytest.mark.parametrize("engine", ["auto", "per_record", "opacus"])
@pytest.mark.parametrize("name", WEIGHING)
def test_weights_have_the_effect_that_they_should(name: str, engine: str) -> None:
    """The sums of an engine are those of gradients of single records, with a loss by hand."""
    loss, data, factory, by_hand = WEIGHING[name]
    trainer = DPTrainer(factory, loss, data, engine=engine, metric=lambda o, t: 0.0)
    model = trainer.setup.new_model(0)
    expected = torch.zeros(sum(p.numel() for p in model.parameters()))
    for place in INDICES:
        (output,) = model(data.train_X[place : place + 1])
        own = by_hand(output, data.train_Y[place])
        row = flat(torch.autograd.grad(own, list(model.parameters())))
        expected += row * min(1.0, 0.5 / float(row.norm()))
    found = flat(clipped_sum_of(trainer, model, INDICES, 0.5))
    torch.testing.assert_close(found.float(), expected, rtol=1e-4, atol=1e-5)


def test_a_plan_says_that_clipping_undoes_weights_above_1() -> None:
    for largest in (14.0, 1.0):
        loss = nn.CrossEntropyLoss(weight=odd_one(7, largest), reduction="none")
        plan = DPTrainer(partial(nn.Linear, 5, 10), loss, TEN).plan(**SETTINGS)
        assert ("up to 14. Clipping undoes" in str(plan)) == (largest > 1)


@pytest.mark.parametrize("name", REFUSED_LOSSES)
def test_losses_are_refused(name: str) -> None:
    loss, message = REFUSED_LOSSES[name]
    with pytest.raises((TypeError, ValueError), match=message):
        DPTrainer(linear, loss, DATA)


MEANS = [
    nn.CrossEntropyLoss(),
    nn.CrossEntropyLoss(reduction="none"),
    F.cross_entropy,
    lambda o, t: cross_entropy_loss(o, t).mean(),
]


@pytest.mark.parametrize("engine", ["fused", "per_record"])
@pytest.mark.parametrize("loss", MEANS)
def test_the_mean_of_a_batch_of_one_is_the_records_loss(loss: Any, engine: str) -> None:
    model = linear()
    assert examine(model, loss, DATA).num_classes == 3
    found, expected = (
        flat(clipped_sum_of(DPTrainer(linear, each, DATA, engine=engine), model, INDICES, 0.3))
        for each in (loss, cross_entropy_loss)
    )
    torch.testing.assert_close(found, expected)


def spread(outputs: Tensor, targets: Tensor) -> Tensor:
    """Of numbers whose mean and logarithm of the variance are estimated."""
    mean, logarithm = outputs.unbind(1)
    return (targets - mean).square() * (-logarithm).exp() + logarithm


def test_targets_are_classes_if_the_loss_refuses_all_others() -> None:
    data = make_data(n=20, classes=12, dtype=torch.float32)
    linear_of = partial(nn.Linear, 7)
    numbers = DPTrainer(partial(linear_of, 2), spread, data, metric=lambda o, t: 0.0)
    assert numbers.setup.records.unusable == 0
    classes = DPTrainer(partial(linear_of, 2), cross_entropy_loss, data)
    assert classes.setup.records.unusable == int((data.train_Y > 1).sum()) > 0
