"""A record that is added or removed moves the sum by its own clipped gradient, and nobody else's.

A product in floating point rounds by its shape. In whole batches, one record more can change the
last digits of all outputs, and at a kink of the loss all gradients.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from botorch_dp.privacy import NeighboringRelation
from botorch_dp.training import DPTrainer, TrainTest, hinge_loss, trainer_setup
from botorch_dp.training.engines import Batches, Engine
from botorch_dp.training.fused import FusedEngine
from botorch_dp.training.records import TrainingRecords
from tests.training.helpers import (
    ENGINES,
    FLOAT_DATA,
    KINDS,
    SETTINGS,
    Embedded,
    cross_entropy_loss,
    linear_loss,
    made,
    make_data,
    sums,
    training_records,
)

WIDTH = 20
ADD_OR_REMOVE = {"relation": NeighboringRelation.ADD_OR_REMOVE_ONE}


def classifier() -> nn.Module:
    torch.manual_seed(5)
    return nn.Linear(WIDTH, 1)


def trainer(engine: str) -> DPTrainer:
    X, Y = torch.randn(8, WIDTH), torch.ones(8)
    data = TrainTest(X, Y, X, Y)
    return DPTrainer(classifier, hinge_loss, data, engine=engine, **ADD_OR_REMOVE)


def published(setup: Any, data: TrainTest) -> Engine:
    """The engine of a training that is published, on these records."""
    records = training_records(data, None)
    return setup._engine_of_one(setup.new_model(0).train(), records, None, precise=True)


@cache
def kink() -> tuple[Tensor, int, int]:
    """A record at the kink of the hinge, and two sizes of batches in which it changes sides."""
    model = classifier()
    weight, bias = model.weight.detach(), model.bias.detach()
    generator = torch.Generator().manual_seed(0)

    def outputs(x: Tensor, size: int) -> Tensor:
        rows = x.expand(1, size, WIDTH).contiguous()
        return torch.baddbmm(bias.view(1, 1, 1), weight.unsqueeze(0), rows.mT)

    for _ in range(3000):
        x = 3 * torch.randn(WIDTH, generator=generator)
        x = x + (1 - bias - weight @ x) * weight[0] / (weight @ weight[0])
        small, large = outputs(x, 19), outputs(x, 20)
        if bool((small < 1).all()) != bool((large < 1).all()):
            return x, 19, 20
    return x, 19, 20


def copies(x: Tensor, size: int) -> TrainTest:
    X, Y = x.expand(size, WIDTH).contiguous(), torch.ones(size)
    return TrainTest(X, Y, X, Y)


def move(engine_of: Callable[[TrainTest], Engine]) -> float:
    x, small, large = kink()
    few, many = (
        sums(engine_of(copies(x, size)), torch.arange(size), 1.0) for size in (small, large)
    )
    return float((many - few).norm())


@pytest.mark.parametrize("engine", ENGINES)
def test_a_record_at_a_kink_does_not_take_the_others_along(engine: str) -> None:
    setup = trainer(engine).setup
    assert setup.block == KINDS[engine].BLOCK
    assert move(lambda data: published(setup, data)) <= 1 + 1e-12


def test_in_whole_batches_it_does() -> None:
    """What the blocks are for: 19 or 20 clipping norms where 1 is promised."""

    def whole(data: TrainTest) -> Engine:
        records = training_records(data, None)
        return made(FusedEngine, [classifier()], records, hinge_loss, precise=True)

    if move(whole) <= 1 + 1e-12:
        pytest.skip("no record was found that changes sides on this machine")
    assert move(whole) > 18


_X = torch.arange(240).view(60, 4) % 2
TOKENS = TrainTest(_X, FLOAT_DATA.train_Y, _X, FLOAT_DATA.train_Y)
MODELS: dict[str, tuple[Callable[[], nn.Module], TrainTest, tuple[str, ...]]] = {
    "odd widths": (
        lambda: nn.Sequential(nn.Linear(7, 10), nn.Tanh(), nn.Linear(10, 3)),
        FLOAT_DATA,
        ("fused", "ghost"),
    ),
    "even widths": (
        lambda: nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 16)),
        make_data(shape=(16,), dtype=torch.float32),
        tuple(ENGINES),
    ),
    "convolutions": (
        lambda: nn.Sequential(nn.Conv2d(2, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(27, 3)),
        make_data(shape=(2, 5, 5), dtype=torch.float32),
        ("ghost",),
    ),
    "tokens": (
        Embedded,
        TOKENS,
        ("per_record",),
    ),
}


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("name", "engine"), [(name, engine) for name, each in MODELS.items() for engine in each[2]]
)
def test_every_gradient_keeps_its_bits_when_a_record_is_added(
    name: str, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of each record alone, in batches that are not of one size, as Poisson's are not."""
    factory, data, _ = MODELS[name]
    torch.manual_seed(0)
    model = factory()
    monkeypatch.setattr(KINDS[engine], "BLOCK", 8)
    options = {"engine": engine, **ADD_OR_REMOVE}
    block = DPTrainer(lambda: model, cross_entropy_loss, data, **options).setup.block
    assert block == 8 or engine != "fused"
    one = made(
        KINDS[engine],
        [model.train()],
        training_records(data, 3),
        cross_entropy_loss,
        precise=True,
        block=block,
    )

    def alone(batch: list[int], place: int) -> Tensor:
        filled = torch.zeros(1, len(batch), dtype=torch.bool)
        filled[0, place] = True
        return sums(one, batch, 0.05, filled)

    batch = list(range(11))
    for longer, shift in (([59, *batch], 1), ([*batch, *range(40, 46)], 0)):
        for place in (0, 7, 10):
            assert torch.equal(alone(longer, place + shift), alone(batch, place))
        added = [place for place in range(len(longer)) if longer[place] not in batch]
        difference = sums(one, longer, 0.05) - sums(one, batch, 0.05)
        own = sum(alone(longer, place) for place in added)
        torch.testing.assert_close(difference, own, rtol=1e-12, atol=1e-14)
    whole = made(KINDS[engine], [model], training_records(data, 3), precise=True)
    expected = sums(whole, batch, 0.05)
    torch.testing.assert_close(sums(one, batch, 0.05), expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("engine", ENGINES)
def test_blocks_hold_several_replicates_and_empty_places(engine: str) -> None:
    records = training_records(FLOAT_DATA, 3)
    models = [nn.Linear(7, 3) for _ in range(2)]
    places, filled = torch.randint(60, (2, 11)), torch.rand(2, 11) < 0.7
    blocks, whole = (
        made(KINDS[engine], models, records, precise=True, block=block).clipped_sums(
            Batches(places, filled), 0.3
        )
        for block in (4, None)
    )
    torch.testing.assert_close(blocks.sums, whole.sums, rtol=1e-5, atol=1e-6)
    assert int(blocks.kept) == int(whole.kept) == int(filled.sum())


class ByPlace(nn.Module):
    """What it makes of a record depends on the place in a vectorized call, in the last bits."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(7, 3)

    def forward(self, X: Tensor) -> Tensor:
        return self.layer(X * _Nudged.apply(X))


class _Nudged(torch.autograd.Function):
    @staticmethod
    def forward(X: Tensor) -> Tensor:
        return torch.ones_like(X)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return torch.zeros_like(gradient)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], X: Tensor) -> tuple[Tensor, int]:
        place = in_dims[0]
        assert place is not None
        rows = torch.ones_like(X).movedim(place, 0)
        rows[3::4] += 1e-6
        return rows, 0


@pytest.mark.parametrize("engine", ["ghost", "per_record"])
def test_where_a_place_matters_records_are_computed_alone(engine: str) -> None:
    slow = DPTrainer(ByPlace, cross_entropy_loss, FLOAT_DATA, engine=engine, **ADD_OR_REMOVE)
    assert slow.setup.block == 1
    trained = slow.fit(**SETTINGS, publish=True)
    assert trained.steps == trained.plan.steps
    whole = DPTrainer(ByPlace, cross_entropy_loss, FLOAT_DATA, engine=engine)
    assert whole.setup.block is None


def test_another_number_of_threads_is_tried_before_it_is_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Kernels divide their work among threads, and may round by that."""
    each = trainer("fused")
    monkeypatch.setattr(trainer_setup, "rows_are_apart", lambda *_: False)
    assert each.setup.block == FusedEngine.BLOCK
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1000)
    assert each.setup.block == 1


def test_dropout_does_not_make_records_lonely() -> None:
    """Its draws belong to places, and are independent of the records."""
    data = make_data(shape=(16,), dtype=torch.float32)
    blocks = []
    for rate in (0.0, 0.5):
        model = nn.Sequential(nn.Linear(16, 16), nn.Dropout(rate), nn.Linear(16, 16))
        dropping = DPTrainer(lambda m=model: m, cross_entropy_loss, data, **ADD_OR_REMOVE)
        blocks.append(dropping.setup.block)
    assert dropping.setup._draws and blocks[0] == blocks[1]
    dropping.fit(**SETTINGS, publish=True)


def test_seeded_runs_and_exchanged_records_take_whole_batches(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sizes: set[int | None] = set()
    original = Engine.__init__

    def noted(self: Engine, *given: Any, **how: Any) -> None:
        sizes.add(how["block"])
        original(self, *given, **how)

    for options, how, expected in (
        (ADD_OR_REMOVE, {"publish": True}, 128),
        (ADD_OR_REMOVE, {"seed": 0}, None),
        ({}, {"publish": True}, None),
    ):
        each = DPTrainer(classifier, linear_loss, copies(torch.ones(WIDTH), 30), **options)
        sizes.clear()
        with monkeypatch.context() as patch:
            patch.setattr(Engine, "__init__", noted)
            each.fit(**SETTINGS, **how)
        assert sizes == {expected}


def test_unusable_records_in_blocks() -> None:
    X = FLOAT_DATA.train_X.clone()
    X[3] = float("nan")
    records = TrainingRecords(X, FLOAT_DATA.train_Y, 3)
    one = made(FusedEngine, [nn.Linear(7, 3)], records, precise=True, block=4)
    assert int(one.clipped_sums(Batches(torch.arange(10).unsqueeze(0)), 0.3).kept) == 9
