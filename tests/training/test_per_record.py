"""One record, one gradient, of every kind of layer."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from opacus.layers import DPGRU, DPLSTM, DPRNN
from torch import Tensor, nn

from botorch_dp.training import DPTrainer, TrainTest, contributions, cross_entropy_loss
from botorch_dp.training.contributions import Gradients
from botorch_dp.training.per_record import PerRecordEngine
from botorch_dp.training.randomness import SeededRandomness
from tests.training.helpers import (
    FLOAT_DATA,
    INDICES,
    SETTINGS,
    Embedded,
    assert_sums_agree,
    clipped_sum,
    flat,
    made,
    make_data,
    per_example_gradients,
    stack,
    sums,
    training_records,
    weights,
)

DATA = FLOAT_DATA


def linear(outputs: int = 3) -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(7, outputs)


def test_dropout_follows_the_seeds_of_its_replicate() -> None:
    def with_seeds(*seeds: int) -> Tensor:
        torch.manual_seed(0)
        models = [nn.Sequential(nn.Linear(7, 40), nn.Dropout(0.5), nn.Linear(40, 3)) for _ in seeds]
        for model in models:
            model.load_state_dict(models[0].state_dict())
        coins = [SeededRandomness(seed, torch.device("cpu")) for seed in seeds]
        records = training_records(FLOAT_DATA, 3)
        engine = made(PerRecordEngine, models, records, precise=True, forward_seeds=coins)
        before = torch.get_rng_state()
        found = sums(engine, INDICES.expand(len(seeds), -1), 0.3)
        assert torch.equal(torch.get_rng_state(), before)
        return found

    one, other, again = with_seeds(1, 2, 1)
    assert torch.equal(one, again)
    assert not torch.equal(one, other)
    assert torch.equal(other, with_seeds(2)[0])


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
    found = DPTrainer(Unused, cross_entropy_loss, data).setup.clipped_sum(Unused(), INDICES, 0.3)
    assert [float(s.abs().max()) > 0 for s in found] == [True] * 4 + [False] * 2


def test_large_batches_are_processed_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    model = stack(nn.Tanh(), torch.float64)
    trainer = DPTrainer(lambda: model, cross_entropy_loss, make_data(), engine="per_record")
    whole = flat(trainer.setup.clipped_sum(model, INDICES, 0.3))
    size = sum(p.numel() for p in model.parameters())
    monkeypatch.setattr("botorch_dp.training.per_record.MAX_GRADIENT_NUMBERS", 3 * size)
    parts = flat(trainer.setup.clipped_sum(model, INDICES, 0.3))
    torch.testing.assert_close(whole, parts, rtol=1e-12, atol=1e-14)


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

    def found() -> Tensor:
        torch.manual_seed(0)
        engine = made(PerRecordEngine, [nn.Linear(7, 60)], records, precise=True)
        return sums(engine, torch.arange(9), 0.1)

    whole = found()
    assert whole.dtype == torch.float64 and float(whole.norm()) > 0.1
    for numbers in (1, 50, 1000):
        monkeypatch.setattr(contributions, "CONVERTED", numbers)
        torch.testing.assert_close(found(), whole, rtol=1e-12, atol=1e-15)


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
