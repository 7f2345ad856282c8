"""One record, one gradient, without the gradients: norms and sums from inputs and outputs."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from botorch_dp.training import DPTrainer, TrainTest, cross_entropy_loss
from botorch_dp.training.engines import contributions, per_record
from botorch_dp.training.engines.base import Batches
from botorch_dp.training.engines.ghost import GhostEngine
from botorch_dp.training.engines.per_record import PerRecordEngine
from botorch_dp.training.networks import logistic_loss
from botorch_dp.training.records import TrainingRecords
from tests.training.helpers import (
    SETTINGS,
    clipped_sum,
    linear_loss,
    made,
    make_data,
    per_example_gradients,
    sums,
    training_records,
)

WORDS, LENGTH = 9, 6


def images(channels: int = 2, size: tuple[int, ...] = (9, 9)) -> TrainTest:
    return make_data(n=24, shape=(channels, *size), dtype=torch.float32)


def sequences(width: int = 5) -> TrainTest:
    return make_data(n=24, shape=(LENGTH, width), dtype=torch.float32)


def tokens() -> TrainTest:
    data = make_data(n=24, shape=(LENGTH,))
    X = torch.randint(WORDS, (24, LENGTH), generator=torch.Generator().manual_seed(0))
    return data._replace(train_X=X, test_X=X[:13])


def headed(*layers: nn.Module, data: TrainTest) -> nn.Module:
    body = nn.Sequential(*layers, nn.Tanh(), nn.Flatten())
    return nn.Sequential(body, nn.Linear(body(data.train_X[:1]).shape[1], 3))


class Recurrent(nn.Module):
    def __init__(self, layer: type[nn.Module], width: int = 3) -> None:
        super().__init__()
        self.layer, self.head = layer(width, 5, batch_first=True), nn.Linear(5, 3)

    def forward(self, X: Tensor) -> Tensor:
        return self.head(self.layer(X)[0][:, -1])


class Frames(nn.Module):
    """Each place of a sequence is an image of its own: convolutions see many at once."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution, self.head = nn.Conv1d(1, 3, 3, padding="same"), nn.Linear(3, 3)

    def forward(self, X: Tensor) -> Tensor:
        frames = X.reshape(-1, 1, X.shape[-1])
        hidden = torch.tanh(self.convolution(frames)).mean(dim=-1)
        return self.head(hidden).reshape(len(X), -1, 3).mean(dim=1)


class Positions(nn.Module):
    """A table that is asked for the same rows by every record."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, 4, padding_idx=0), nn.Embedding(LENGTH, 4)
        self.shift = nn.Parameter(torch.randn(LENGTH, 4))
        self.head = nn.Linear(4, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.words(tokens) * self.places(torch.arange(LENGTH)) + self.shift
        return self.head(torch.tanh(hidden).sum(dim=1))


class Stacked(nn.Module):
    """Recurrent layers in both directions with learnt first states, of which one map is frozen."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.LSTM(5, 4, num_layers=2, bidirectional=True, batch_first=True)
        self.layers.weight_ih_l0.requires_grad_(False)
        self.layers.bias_ih_l0.requires_grad_(False)
        self.first, self.head = nn.Parameter(torch.randn(2, 4, 1, 4)), nn.Linear(8, 3)

    def forward(self, X: Tensor) -> Tensor:
        first = self.first.expand(2, 4, len(X), 4).contiguous().unbind(0)
        return self.head(self.layers(X, first)[0].mean(dim=1))


MODELS: dict[str, tuple[Callable[[], nn.Module], TrainTest]] = {
    "convolutions": (
        lambda: headed(
            nn.Conv2d(2, 4, 3, stride=2), nn.GroupNorm(2, 4), nn.Conv2d(4, 6, 2), data=images()
        ),
        images(),
    ),
    "many channels at few places": (
        lambda: headed(nn.Conv2d(2, 60, 3), nn.AvgPool2d(2), nn.Conv2d(60, 60, 2), data=images()),
        images(),
    ),
    "frames": (Frames, sequences()),
    "wide on sequences": (
        lambda: headed(
            nn.Linear(5, 60), nn.LayerNorm(60), nn.Linear(60, 50), nn.Tanh(), data=sequences()
        ),
        sequences(),
    ),
    "torch's LSTM": (lambda: Recurrent(nn.LSTM, 5), sequences()),
    "both directions": (Stacked, sequences()),
    "positions": (Positions, tokens()),
}


def at_weights(factory: Callable[[], nn.Module], trainer: DPTrainer) -> dict[str, nn.Module]:
    torch.manual_seed(0)
    drawn = factory()
    for parameter in drawn.parameters():
        if parameter.requires_grad:
            parameter.data.normal_(std=0.5)
    final = trainer.fit(**{**SETTINGS, "epochs": 1}, seed=0).model.train()
    return {"initial": factory(), "random": drawn, "final": final}


def engine_of(model: nn.Module, data: TrainTest, *, precise: bool, **how: Any) -> GhostEngine:
    records = training_records(data, 3)
    return made(GhostEngine, [copy.deepcopy(model).train()], records, precise=precise, **how)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", MODELS)
def test_sums_are_those_of_single_records(name: str) -> None:
    """Of both engines, at initial, random and final weights, in both precisions, in any size."""
    factory, data = MODELS[name]
    trainer = DPTrainer(factory, cross_entropy_loss, data)
    assert trainer.engine == "ghost"
    records = training_records(data, 3)
    for model in at_weights(factory, trainer).values():
        rows = per_example_gradients(model, cross_entropy_loss, data.train_X, data.train_Y)
        middle = float(torch.stack([row.norm() for row in rows]).median())
        engines = [engine_of(model, data, precise=precise) for precise in (False, True)]
        engines.append(made(PerRecordEngine, [copy.deepcopy(model).train()], records))
        for engine, size in itertools.product(engines, (1, 2, LENGTH, 24)):
            (found,) = sums(engine, torch.arange(size), middle)
            expected = clipped_sum(rows[:size], middle).to(found.dtype)
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=2e-5 * middle)


def test_rows_of_long_sequences(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are sorted; places that have a token in common count as one, either way."""
    factory, data = MODELS["positions"]
    torch.manual_seed(0)
    model, batch = factory(), torch.arange(24)
    short = sums(engine_of(model, data, precise=True), batch, 0.01)
    monkeypatch.setattr(contributions, "_FEW_PLACES", 0)
    long = sums(engine_of(model, data, precise=True), batch, 0.01)
    torch.testing.assert_close(long, short, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("broken", ["places alone", "half", "last call"])
def test_wrong_norms_are_noticed(broken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The trainer then computes the gradients of single records, or refuses if told not to."""
    factory, data = MODELS["wide on sequences"]
    norms = torch.linalg.vector_norm
    mistakes: dict[str, Callable[[Any], Tensor]] = {
        "places alone": lambda self: norms(
            norms(self.inputs, dim=2) * norms(self.gradients, dim=2), dim=1
        ),
        "half": lambda self: 0.5 * norms(torch.bmm(self.gradients.mT, self.inputs), dim=(1, 2)),
        "last call": lambda self: (
            norms(self.inputs[:, -1], dim=1) * norms(self.gradients[:, -1], dim=1)
        ),
    }
    monkeypatch.setattr(contributions.Products, "norms", mistakes[broken])
    assert DPTrainer(factory, cross_entropy_loss, data).engine == "per_record"
    with pytest.raises(ValueError, match=r"ghost engine cannot.*engine='auto'"):
        DPTrainer(factory, cross_entropy_loss, data, engine="ghost")


def test_a_model_whose_calls_change_is_refused_by_name() -> None:
    class Wandering(nn.Module):
        calls = 0

        def __init__(self) -> None:
            super().__init__()
            self.layer, self.head = nn.Linear(5, 5), nn.Linear(5, 3)

        def forward(self, X: Tensor) -> Tensor:
            for _ in range(Wandering.calls):
                X = torch.tanh(self.layer(X))
            return self.head(X).mean(dim=1)

    data = sequences()
    Wandering.calls = 1
    engine = engine_of(Wandering(), data, precise=False)
    sums(engine, torch.arange(5), 1.0)
    for Wandering.calls in (0, 2):
        with pytest.raises(ValueError, match=r"other layers than the first time.*per_record"):
            sums(engine, torch.arange(5), 1.0)


@pytest.mark.one_in(5)
@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e30, 1e38])
@pytest.mark.parametrize("precise", [False, True], ids=["single", "double"])
@pytest.mark.parametrize("name", ["wide on sequences", "convolutions", "torch's LSTM"])
def test_a_poisoned_record_moves_the_sum_by_at_most_the_clip(
    name: str, precise: bool, value: float
) -> None:
    factory, data = MODELS[name]
    torch.manual_seed(0)
    model = factory()
    X = data.train_X.clone()
    X[0] = value
    X[0].view(-1)[::2] *= -1
    engine = engine_of(model, data._replace(train_X=X), precise=precise)
    with_it = sums(engine, torch.arange(8), 0.3)
    without = sums(engine, torch.arange(1, 8), 0.3)
    assert with_it.isfinite().all()
    assert float((with_it - without).norm()) <= 0.3 * (1 + 1e-4)


class Mean(nn.Module):
    """Its places cancel where a record wants them to."""

    def __init__(self) -> None:
        super().__init__()
        self.wide, self.head = nn.Linear(40, 200), nn.Linear(200, 3).requires_grad_(False)

    def forward(self, X: Tensor) -> Tensor:
        return self.head(self.wide(X).mean(dim=1))


def longest_of_cancelling_records() -> float:
    """Of records with many large inputs whose sum is small: the longest clipped gradient."""
    longest = 0.0
    for seed, scale in itertools.product(range(2), [2.0**10, 2.0**20, 2.0**30]):
        data = make_data(n=8, shape=(LENGTH, 40), dtype=torch.float32, seed=seed)
        X = (data.train_X * 2**12).round() * scale  # few digits, whose sums are exact
        X[:, 0], X[:, -1] = 1e2, -X[:, 1:-1].sum(dim=1)
        torch.manual_seed(seed)
        engine = engine_of(Mean(), data._replace(train_X=X), precise=True)
        for place in range(8):
            found = sums(engine, [place], 0.3)
            longest = max(longest, float(found.norm()))
    return longest


def test_places_that_cancel_are_not_underestimated_when_published(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Rounding hides such norms from the products; the broken version does not count it."""
    assert 0 < longest_of_cancelling_records() <= 0.3 * (1 + 1e-6)
    monkeypatch.setattr(GhostEngine, "_forms", lambda *_: False)
    assert longest_of_cancelling_records() > 0.3 * 1.01


class Weighted(nn.Module):
    """A record says itself what its places weigh: the gradients of places may be of any size."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, X: Tensor, weights: Tensor) -> Tensor:
        return (self.layer(X) * weights.unsqueeze(-1)).sum(dim=(1, 2)).unsqueeze(-1)


@pytest.mark.parametrize("places", [4, 80], ids=["few places", "many places"])
@pytest.mark.parametrize("layer", [nn.Embedding(3, 5), nn.Linear(40, 60)], ids=["table", "linear"])
def test_places_that_cancel_do_not_reach_other_records(layer: nn.Module, places: int) -> None:
    """Terms of any size whose sum is small or zero must not round away what others have added."""
    generator = torch.Generator().manual_seed(0)
    shape = (20, places)
    X = torch.ones((*shape, 40)) if isinstance(layer, nn.Linear) else torch.zeros(shape).long()
    Y = torch.ones(20)

    def clipped(large: Tensor) -> Tensor:
        weights = torch.zeros(shape)
        weights[:, 0] = 1.0
        weights[10, : places // 2], weights[10, places // 2 :] = large, -large.flip(0)
        records = TrainingRecords({"X": X, "weights": weights}, Y, None)
        engine = made(GhostEngine, [Weighted(layer)], records, linear_loss, precise=True)
        return sums(engine, torch.arange(20), 1.0)

    without = clipped(torch.zeros(places // 2))
    for low, high in ((-30, 30), (16, 17), (29, 30), (5, 8)):
        exponents = low + (high - low) * torch.rand(places // 2, generator=generator)
        assert float((clipped(10.0**exponents) - without).norm()) <= 1 + 1e-6


def test_memory_bounds_the_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    factory, data = MODELS["wide on sequences"]
    torch.manual_seed(0)
    model = factory()
    batch = torch.arange(24)
    engine = engine_of(model, data, precise=False)
    whole = sums(engine, batch, 0.3)
    monkeypatch.setattr(per_record, "MAX_GRADIENT_NUMBERS", 5 * engine.record_numbers)
    found = sums(engine, batch, 0.3)
    torch.testing.assert_close(found, whole, rtol=1e-5, atol=1e-6)


def peak(function: Callable[[], object]) -> int:
    """The largest number of bytes that torch holds at once for a call."""
    function()
    with torch.profiler.profile(profile_memory=True) as watched:
        function()
    events = [e for e in watched.profiler.kineto_results.events() if e.name() == "[memory]"]
    sizes = [event.nbytes() for event in sorted(events, key=lambda event: event.start_ns())]
    return max(itertools.accumulate(sizes))


@pytest.mark.parametrize("precise", [False, True])
@pytest.mark.parametrize(
    "name", ["many channels at few places", "wide on sequences", "torch's LSTM"]
)
@pytest.mark.parametrize("kind", [GhostEngine, PerRecordEngine])
def test_no_more_memory_is_taken_than_is_stated(
    kind: type[PerRecordEngine], name: str, precise: bool
) -> None:
    factory, data = MODELS[name]
    model = factory()
    more = TrainTest(*(values.repeat(6, *[1] * (values.dim() - 1)) for values in data))
    engine = made(kind, [model], training_records(more, 3), precise=precise)
    batch = Batches(torch.arange(len(more.train_Y)).unsqueeze(0))

    def plain() -> None:
        cross_entropy_loss(model(more.train_X), more.train_Y).mean().backward()
        model.zero_grad()

    taken = peak(lambda: engine.clipped_sums(batch, 0.3)) - peak(plain)
    assert taken <= 4 * len(more.train_Y) * engine.record_numbers


def test_dropout_is_the_same_as_for_single_gradients() -> None:
    data = sequences()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 40), nn.Dropout(0.5), nn.Flatten(), nn.Linear(240, 3))
    one, other = (
        DPTrainer(lambda: copy.deepcopy(model), cross_entropy_loss, data, engine=engine).fit(
            **SETTINGS, seed=1
        )
        for engine in ("ghost", "per_record")
    )
    for a, b in zip(one.model.parameters(), other.model.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


class _Product(nn.Module):
    """Its gradient is computed in another way where any record has a zero."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(5, 40), nn.Linear(8, 1)

    def forward(self, X: Tensor) -> Tensor:
        return self.last(self.first(X).relu().unflatten(-1, (8, 5)).prod(dim=-1))


def test_models_whose_way_back_looks_at_all_records_are_left_to_per_record() -> None:
    X, y = torch.randn(16, 5), torch.randint(2, (16,)).float()
    data = TrainTest(X, y, X, y)
    assert DPTrainer(_Product, logistic_loss, data).engine == "per_record"
    with pytest.raises(ValueError, match="ghost engine cannot train"):
        DPTrainer(_Product, logistic_loss, data, engine="ghost")
