"""One record, one gradient: whatever a model or a loss does to its batch.

Models that mix records are refused, and would be computed right if they were not: in a batch of
one there is nobody to mix with.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from opacus.layers import DPGRU, DPLSTM, DPRNN
from torch import Tensor, nn

from botorch_dp.errors import PrivacyError
from botorch_dp.privacy import PrivacyBudget, PrivacyLedger
from botorch_dp.training import DPTrainer, TrainTest, cross_entropy_loss, per_record
from botorch_dp.training.fused import FusedEngine
from botorch_dp.training.per_record import Gradients, PerRecordEngine, examine
from botorch_dp.training.randomness import SeededRandomness
from tests.training.helpers import (
    FLOAT_DATA,
    INDICES,
    SETTINGS,
    Embedded,
    assert_models_follow_the_matrix,
    assert_sums_agree,
    assert_sums_by_hand,
    clipped_sum,
    flat,
    linear_loss,
    make_data,
    per_example_gradients,
    stack,
    training_records,
    weights,
)

DATA = FLOAT_DATA


def linear(outputs: int = 3) -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(7, outputs)


def test_sums_by_hand() -> None:
    assert_sums_by_hand(PerRecordEngine)


def test_finished_models_hold_the_rows() -> None:
    assert_models_follow_the_matrix(PerRecordEngine)


class BatchMean(nn.Module):
    """Scales every output by what a layer, zero at first, makes of the mean of the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.score = nn.Linear(3, 1, bias=False)
        self.gate = nn.Linear(3, 1, bias=False)
        nn.init.zeros_(self.gate.weight)

    def forward(self, X: Tensor) -> Tensor:
        return self.score(X) * (1 + self.gate(X.mean(dim=0).expand_as(X)))


class SequenceFirst(nn.Module):
    """Goes along the first dimension, as recurrent layers do unless told otherwise."""

    def __init__(self) -> None:
        super().__init__()
        self.new = nn.Linear(3, 4, bias=False)
        self.old = nn.Linear(4, 4, bias=False)
        self.head = nn.Linear(4, 1, bias=False)
        nn.init.zeros_(self.old.weight)

    def forward(self, X: Tensor) -> Tensor:
        state, states = X.new_zeros(X.shape[1], 4), []
        for x in X:
            state = self.new(x) + self.old(state)
            states.append(state)
        return self.head(torch.stack(states)).mean(dim=1)


def opened(model: Any) -> None:
    nn.init.ones_(model.gate.weight)


#: The model, the other records, two values of the first one, and how the weights have moved.
#: Clipping by hooks on a whole batch lets one record move the sum by 29.6 and by 46 clipping norms.
ATTACKS = {
    "batch mean": (BatchMean, torch.randn(20, 3).add(1), (1e4, -1e4), opened),
    "sequence first": (SequenceFirst, torch.zeros(24, 24, 3), (30.0, -30.0), lambda model: None),
}


def largest_move(
    sums: Callable[[nn.Module, TrainTest], Tensor],
    attack: tuple[Callable[[], nn.Module], Tensor, tuple[float, ...], Callable[[Any], None]],
) -> float:
    """How far the exchange of the first record moves the sum of gradients clipped at 1."""
    factory, X, values, move = attack
    found = []
    for value in values:
        changed = X.clone()
        changed[0] = value
        Y = torch.ones(len(X))
        torch.manual_seed(0)
        model = factory()
        move(model)
        found.append(sums(model, TrainTest(changed, Y, changed, Y)))
    return float((found[0] - found[1]).norm())


@pytest.mark.parametrize("name", ATTACKS)
def test_no_record_moves_the_sum_by_more_than_two_clipping_norms(name: str) -> None:
    attack = ATTACKS[name]

    def by_the_trainer(model: nn.Module, data: TrainTest) -> Tensor:
        trainer = DPTrainer(attack[0], linear_loss, data)
        return flat(trainer.setup.clipped_sum(model, torch.arange(len(data.train_X)), 1.0))

    def by_the_engine(model: nn.Module, data: TrainTest) -> Tensor:
        records = training_records(data, None)
        engine = PerRecordEngine([model.train()], records, linear_loss, precise=False)
        return engine.clipped_sums(torch.arange(len(records)).unsqueeze(0), None, 1.0)[0].clone()

    with pytest.raises(PrivacyError, match="mixes the records of a batch"):
        largest_move(by_the_trainer, attack)
    assert largest_move(by_the_engine, attack) <= 2 * (1 + 1e-5)


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


@pytest.mark.parametrize("engine", ["fused", "ghost", "per_record"])
def test_an_engine_that_counts_empty_places_is_noticed(
    engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a batch of one already, whose sum without its record is known to be 0."""
    for kind in (FusedEngine, PerRecordEngine):

        def filling(
            self: Any, batches: Tensor, _: Any, clip_norm: Any, sums: Any = kind.clipped_sums
        ) -> Tensor:
            return sums(self, batches, None, clip_norm)

        monkeypatch.setattr(kind, "clipped_sums", filling)
    with pytest.raises(PrivacyError, match=r"batch of 1 random records"):
        DPTrainer(linear, cross_entropy_loss, DATA, engine=engine)


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


def test_models_that_keep_something_between_calls_are_refused() -> None:
    with pytest.raises(PrivacyError, match=r"keeps something|mixes the records"):
        DPTrainer(Stateful, cross_entropy_loss, DATA)


def test_what_only_the_caller_can_see_to_is_a_condition() -> None:
    def condition(model: Callable[[], nn.Module], loss: Any, **options: Any) -> bool:
        plan = DPTrainer(model, loss, DATA, **options).plan(**SETTINGS)
        return "keep nothing of a record" in str(plan.guarantee)

    assert not condition(linear, cross_entropy_loss)
    assert condition(linear, nn.CrossEntropyLoss())
    assert condition(linear, cross_entropy_loss, engine="per_record")


def test_the_former_name_of_the_engine() -> None:
    assert DPTrainer(linear, cross_entropy_loss, DATA, engine="opacus").engine == "per_record"


@pytest.mark.parametrize(
    "layer, reason",
    [
        (nn.BatchNorm1d(3), r"BatchNorm1d\(\d+\) mixes"),
        (nn.InstanceNorm1d(4, affine=True, track_running_stats=True), "track_running_stats"),
        (nn.LSTM(3, 3), "batch_first"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_layers_that_mix_records_are_refused(layer: nn.Module, reason: str) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.head = layer, nn.Linear(3, 3)

        def forward(self, X: Tensor) -> Tensor:
            if isinstance(self.layer, nn.BatchNorm1d):
                return self.head(self.layer(X.mean(dim=1)))
            hidden = self.layer(X)
            return self.head((hidden[0] if isinstance(hidden, tuple) else hidden).mean(dim=1))

    data = make_data(shape=(4, 3), dtype=torch.float32)
    with pytest.raises(PrivacyError, match=reason):
        DPTrainer(Model, cross_entropy_loss, data)


def test_models_are_left_as_they_are() -> None:
    torch.manual_seed(0)
    for model in (nn.Linear(7, 3), nn.Sequential(nn.Linear(7, 3), nn.Dropout(0.5))):
        before, modules = weights(model).clone(), list(map(id, model.modules()))
        DPTrainer(lambda m=model: m, cross_entropy_loss, DATA)
        assert torch.equal(weights(model), before)
        assert list(map(id, model.modules())) == modules
        assert not any(layer._forward_hooks for layer in model.modules())
    assert model[1].p == 0.5


def test_dropout_follows_the_seeds_of_its_replicate() -> None:
    def sums(*seeds: int) -> Tensor:
        torch.manual_seed(0)
        models = [nn.Sequential(nn.Linear(7, 40), nn.Dropout(0.5), nn.Linear(40, 3)) for _ in seeds]
        for model in models:
            model.load_state_dict(models[0].state_dict())
        coins = [SeededRandomness(seed, torch.device("cpu")) for seed in seeds]
        records = training_records(FLOAT_DATA, 3)
        engine = PerRecordEngine(
            models, records, cross_entropy_loss, precise=True, forward_seeds=coins
        )
        before = torch.get_rng_state()
        found = engine.clipped_sums(INDICES.expand(len(seeds), -1), None, 0.3).clone()
        assert torch.equal(torch.get_rng_state(), before)
        return found

    one, other, again = sums(1, 2, 1)
    assert torch.equal(one, again)
    assert not torch.equal(one, other)
    assert torch.equal(other, sums(2)[0])


@pytest.mark.parametrize(
    "layer, shape",
    [
        (nn.Conv1d(2, 3, 3), (2, 8)),
        (nn.Conv2d(1, 2, 3, stride=2), (1, 6, 6)),
        (nn.GroupNorm(2, 4), (4, 5)),
        (nn.LayerNorm(5), (4, 5)),
        (nn.InstanceNorm1d(4, affine=True), (4, 5)),
        (nn.Linear(5, 2), (4, 5)),
        (nn.PReLU(), (4, 5)),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, nn.Module) else "",
)
def test_clipped_sums_of_other_layers(layer: nn.Module, shape: tuple[int, ...]) -> None:
    data = make_data(shape=shape, dtype=torch.float32)
    width = layer(data.train_X[:1]).numel()
    model = nn.Sequential(layer, nn.Tanh(), nn.Flatten(), nn.Linear(width, 3))
    for engine, taken in (("auto", "ghost"), ("per_record", "per_record")):
        assert assert_sums_agree(model, cross_entropy_loss, data, engine, 0.3).engine == taken


class Recurrent(nn.Module):
    def __init__(self, layer: type[nn.Module], width: int = 3) -> None:
        super().__init__()
        self.layer, self.head = layer(width, 5, batch_first=True), nn.Linear(5, 3)

    def forward(self, X: Tensor) -> Tensor:
        return self.head(self.layer(X)[0][:, -1])


class Attending(nn.Module):
    """Tokens that attend to each other, in torch's own layers."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(6, 2, 8, dropout=0.0, batch_first=True)
        self.embedding, self.head = nn.Embedding(2, 6), nn.Linear(6, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.layer(self.embedding(tokens)).mean(dim=1))


@pytest.mark.parametrize("layer", [nn.LSTM, nn.GRU, nn.RNN, DPLSTM, DPGRU, DPRNN])
def test_recurrent_models_with_the_batch_first(layer: type[nn.Module]) -> None:
    data = make_data(shape=(4, 3), dtype=torch.float32)
    torch.manual_seed(0)
    model = Recurrent(layer)
    trainer = DPTrainer(lambda: model, cross_entropy_loss, data)
    assert_right(trainer, model, data)
    fitted = trainer.fit(**SETTINGS, publish=True)
    assert fitted.guarantee.status == "conditional"
    assert weights(fitted.model).isfinite().all()


def test_models_that_cannot_be_vectorized_are_named() -> None:
    class Branching(nn.Linear):
        def forward(self, X: Tensor) -> Tensor:
            return super().forward(X if float(X.sum()) > -1e9 else -X)

    with pytest.raises(ValueError, match=r"cannot be computed together.*item"):
        DPTrainer(lambda: Branching(7, 3), cross_entropy_loss, DATA)


def test_attention() -> None:
    data = make_data(shape=(4,))
    data = data._replace(train_X=(data.train_X > 0).long(), test_X=(data.test_X > 0).long())
    torch.manual_seed(0)
    model = Attending()
    assert_right(DPTrainer(lambda: model, cross_entropy_loss, data), model, data)


def test_parameters_used_twice() -> None:
    """Both uses count in the record's one gradient."""
    layer = nn.Linear(7, 7)
    model = nn.Sequential(layer, nn.Tanh(), layer, nn.Tanh(), nn.Linear(7, 3))
    assert_right(DPTrainer(lambda: model, cross_entropy_loss, DATA), model, DATA)


def assert_right(trainer: DPTrainer, model: nn.Module, data: TrainTest) -> None:
    """Held against single backward passes; Opacus itself accepts few of these models."""
    assert trainer.engine == "ghost"
    rows = per_example_gradients(
        model, cross_entropy_loss, data.train_X[INDICES], data.train_Y[INDICES]
    )
    found = flat(trainer.setup.clipped_sum(model, INDICES, 0.3))
    torch.testing.assert_close(found, clipped_sum(rows, 0.3), rtol=1e-4, atol=1e-6)


def test_tokens_embedding_and_skip_connection() -> None:
    data = make_data(shape=(4,))
    data = data._replace(train_X=(data.train_X > 0).long(), test_X=(data.test_X > 0).long())
    assert_sums_agree(Embedded(), cross_entropy_loss, data, "per_record", 0.3)


def test_a_parameter_outside_the_outputs() -> None:
    class Unused(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.unused = stack(nn.Tanh(), torch.float64), nn.Linear(2, 2).double()

        def forward(self, X: Tensor) -> Tensor:
            return self.used(X)

    data = make_data()
    sums = DPTrainer(Unused, cross_entropy_loss, data).setup.clipped_sum(Unused(), INDICES, 0.3)
    assert [float(s.abs().max()) > 0 for s in sums] == [True] * 4 + [False] * 2


def test_large_batches_are_processed_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    model = stack(nn.Tanh(), torch.float64)
    trainer = DPTrainer(lambda: model, cross_entropy_loss, make_data(), engine="per_record")
    whole = flat(trainer.setup.clipped_sum(model, INDICES, 0.3))
    size = sum(p.numel() for p in model.parameters())
    monkeypatch.setattr("botorch_dp.training.per_record.MAX_GRADIENT_NUMBERS", 3 * size)
    parts = flat(trainer.setup.clipped_sum(model, INDICES, 0.3))
    torch.testing.assert_close(whole, parts, rtol=1e-12, atol=1e-14)


class Centring(nn.Module):
    """Centres its hidden layer over the batch, without any layer that a validator knows."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(7, 3)

    def forward(self, X: Tensor) -> Tensor:
        return self.head(X - X.mean(dim=0))


MIXING_LOSSES = {
    "centred": lambda o, t: (v := cross_entropy_loss(o, t)) - v.mean(),
    "normalized": lambda o, t: (v := cross_entropy_loss(o, t)) / v.sum(),
    "ranked": lambda o, t: cross_entropy_loss(o, t).sort().values,
    "worst": lambda o, t: (v := cross_entropy_loss(o, t)) * (v == v.max()),
    "neighbour": lambda o, t: cross_entropy_loss(o, t) + o[:, 0].roll(1),
    "targets": lambda o, t: cross_entropy_loss(o, t) * (1 + t.float().mean()),
    "divided": lambda o, t: cross_entropy_loss(o, t) / len(o),
}


@pytest.mark.parametrize("name", MIXING_LOSSES)
def test_losses_that_mix_records_are_refused(name: str) -> None:
    with pytest.raises(PrivacyError, match="mixes the records"):
        DPTrainer(linear, MIXING_LOSSES[name], DATA)


def test_models_that_mix_records_are_refused() -> None:
    with pytest.raises(PrivacyError, match="mixes the records"):
        DPTrainer(Centring, cross_entropy_loss, DATA)


@pytest.mark.parametrize("engine", ["auto", "fused", "per_record"])
def test_batch_normalization_is_refused(engine: str) -> None:
    def factory() -> nn.Module:
        return nn.Sequential(nn.Linear(7, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 3))

    with pytest.raises(PrivacyError, match=r"BatchNorm"):
        DPTrainer(factory, cross_entropy_loss, DATA, engine=engine)


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


def test_models_that_store_the_records_are_refused() -> None:
    with pytest.raises(PrivacyError, match=r"buffers \(0\.seen\)"):
        DPTrainer(lambda: nn.Sequential(Remembering(), linear()), cross_entropy_loss, DATA)
    data = make_data(shape=(2, 4), dtype=torch.float32)

    def normalized(tracked: bool) -> nn.Module:
        norm = nn.InstanceNorm1d(2, track_running_stats=tracked)
        return nn.Sequential(norm, nn.Flatten(), nn.Linear(8, 3))

    with pytest.raises(PrivacyError, match=r"0\.running_mean.*track_running_stats=False"):
        DPTrainer(lambda: normalized(True), cross_entropy_loss, data)
    DPTrainer(lambda: normalized(False), cross_entropy_loss, data)


def test_buffers_that_know_no_record_are_allowed() -> None:
    DPTrainer(lambda: nn.Sequential(Counting(), linear()), cross_entropy_loss, DATA)


@pytest.mark.parametrize(
    "loss, message",
    [
        (nn.CrossEntropyLoss(reduction="sum"), "not the mean"),
        (nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 3.0])), "not the mean"),
        (lambda o, t: F.cross_entropy(o, t, reduction="sum"), "not the mean"),
        (lambda o, t: o, "one number for each record"),
        (lambda o, t: (o[:, :1] - t.float()) ** 2, "broadcast"),
        (lambda o, t: cross_entropy_loss(o, t).tolist(), "must return a tensor"),
    ],
)
def test_what_else_is_no_loss(loss: object, message: str) -> None:
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
        flat(DPTrainer(linear, each, DATA, engine=engine).setup.clipped_sum(model, INDICES, 0.3))
        for each in (loss, cross_entropy_loss)
    )
    torch.testing.assert_close(found, expected)


def test_several_outputs_are_averaged_within_a_record() -> None:
    data = TrainTest(DATA.train_X, DATA.train_X[:, :2], DATA.test_X, DATA.test_X[:, :2])
    assert examine(linear(2), nn.MSELoss(), data).num_classes is None
    trainer = DPTrainer(lambda: linear(2), nn.MSELoss(), data, metric=lambda o, t: 0.25)
    model = linear(2)
    rows = per_example_gradients(model, nn.MSELoss(), data.train_X[INDICES], data.train_Y[INDICES])
    found = flat(trainer.setup.clipped_sum(model, INDICES, 0.3))
    torch.testing.assert_close(found, clipped_sum(rows, 0.3))
    assert trainer.fit(**SETTINGS, seed=0).accuracy == 0.25


def test_no_record_is_looked_at() -> None:
    """The examination sees synthetic data only: the real ones would have raised here."""
    secret = DATA._replace(train_X=torch.full((60, 7), 777.0), test_X=torch.full((31, 7), 777.0))

    def watchful(outputs: Tensor, targets: Tensor) -> Tensor:
        assert float(outputs.abs().max()) < 100
        return cross_entropy_loss(outputs, targets)

    examine(linear(), watchful, secret)


def test_dropout_is_noticed() -> None:
    assert not examine(linear(), cross_entropy_loss, DATA).draws
    dropping = nn.Sequential(nn.Linear(7, 5), nn.Dropout(0.5), nn.Linear(5, 3))
    assert examine(dropping, cross_entropy_loss, DATA).draws


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


@dataclass
class Smoothed:
    """A loss that compares by its value, and so has no hash."""

    smoothing: float = 0.1

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(outputs, targets, reduction="none", label_smoothing=self.smoothing)


@pytest.mark.parametrize("engine", ["fused", "ghost"])
def test_a_loss_without_a_hash(engine: str) -> None:
    trainer = DPTrainer(linear, Smoothed(), DATA, engine=engine)
    assert trainer.fit(**SETTINGS, seed=0).plan.conditions


def test_gradients_are_converted_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """To be published, and as often as it takes: of few records at once, and of few columns."""
    records = training_records(DATA, 3)

    def sums() -> Tensor:
        torch.manual_seed(0)
        engine = PerRecordEngine([nn.Linear(7, 60)], records, cross_entropy_loss, precise=True)
        return engine.clipped_sums(torch.arange(9).unsqueeze(0), None, 0.1).clone()

    whole = sums()
    assert whole.dtype == torch.float64 and float(whole.norm()) > 0.1
    for numbers in (1, 50, 1000):
        monkeypatch.setattr(per_record, "CONVERTED", numbers)
        torch.testing.assert_close(sums(), whole, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("kind", [torch.float32, torch.float64])
def test_gradients_may_share_memory(kind: torch.dtype) -> None:
    """What is not finite shows in the norm over all, and is in no sum; autograd may share."""
    rows = torch.ones(3, 300)
    rows[1, 7] = torch.inf
    repeated = torch.tensor([[1.0], [torch.nan], [2.0]]).expand(3, 300)
    several = [Gradients(each, kind) for each in (rows, rows, repeated)]
    found = torch.linalg.vector_norm(torch.stack([each.norms() for each in several]), dim=0)
    assert found.isfinite().tolist() == [True, False, True]
    for each, expected in zip(several, (2.0, 2.0, 3.0), strict=True):
        total = torch.zeros(300, dtype=kind)
        each.add_to(total, found.isfinite().to(kind))
        assert torch.equal(total, torch.full_like(total, expected))
