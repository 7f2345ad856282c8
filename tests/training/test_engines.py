"""Both engines against plain autograd, against stock Opacus and against each other."""

from __future__ import annotations

import math
from functools import partial

import pytest
import torch
from torch import Tensor, nn

from botorch_dp.training import (
    DPTrainer,
    TrainTest,
    cross_entropy_loss,
    hinge_loss,
    logistic_loss,
    logistic_regression,
    multilayer_perceptron,
)
from botorch_dp.training.fused import ELEMENTWISE, FusedEngine, why_not_fused
from botorch_dp.training.records import training_records
from tests.training.helpers import (
    Embedded,
    clipped_sum,
    flat,
    make_data,
    opacus_clipped_sum,
    per_example_gradients,
    weights,
)

ENGINES = ["fused", "opacus"]
#: (relative to the sum's norm) rounding of the type; Opacus itself clips at norm + 1e-6.
TOLERANCE = {torch.float32: 2e-6, torch.float64: 1e-13}
INDICES = torch.tensor([5, 0, 17, 30, 8, 59, 22])


def stack(activation: nn.Module, dtype: torch.dtype, *, bias: bool = True) -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Linear(7, 6, bias=bias, dtype=dtype),
        activation,
        nn.Linear(6, 3, bias=bias, dtype=dtype),
    )


def assert_sums_agree(
    model: nn.Module, loss: object, data: TrainTest, engine: str, clip_norm: float
) -> None:
    dtype = next(model.parameters()).dtype
    trainer = DPTrainer(lambda: model, loss, data, engine=engine)
    found = flat(trainer.clipped_gradient_sum(model, INDICES, clip_norm))
    X, Y = data.train_X[INDICES], data.train_Y[INDICES]
    expected = clipped_sum(per_example_gradients(model, loss, X, Y), clip_norm)
    stock = opacus_clipped_sum(model, loss, X, Y, clip_norm)
    scale = float(expected.norm())
    assert scale > 0
    assert float((found - expected).norm()) <= TOLERANCE[dtype] * scale
    assert float((found - stock).norm()) <= 4e-6 * max(scale, 1.0)


@pytest.mark.parametrize("clip_norm", [0.05, 1.0, 100.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("engine", ENGINES)
def test_clipped_sums_of_every_type(
    engine: str, bias: bool, dtype: torch.dtype, clip_norm: float
) -> None:
    data = make_data(dtype=dtype)
    assert_sums_agree(
        stack(nn.Tanh(), dtype, bias=bias), cross_entropy_loss, data, engine, clip_norm
    )
    for loss in (logistic_loss, hinge_loss):
        linear = logistic_regression(7, bias=bias, dtype=dtype)
        assert_sums_agree(linear, loss, make_data(classes=2, dtype=dtype), engine, clip_norm)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("activation", ELEMENTWISE, ids=lambda a: a.__name__)
def test_clipped_sums_of_every_activation(activation: type[nn.Module], engine: str) -> None:
    model = stack(activation(), torch.float64)
    assert_sums_agree(model, cross_entropy_loss, make_data(), engine, 0.3)


@pytest.mark.parametrize("activation", [nn.ReLU, nn.LeakyReLU, nn.ELU])
def test_activations_in_place(activation: type[nn.Module]) -> None:
    model = stack(activation(inplace=True), torch.float64)
    twin = stack(activation(), torch.float64)
    data = make_data()
    sums = [
        flat(
            DPTrainer(lambda m=m: m, cross_entropy_loss, data, engine="fused").clipped_gradient_sum(
                m, INDICES, 0.3
            )
        )
        for m in (model, twin)
    ]
    assert torch.equal(*sums)
    assert model[1].inplace


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
    trainer = DPTrainer(lambda: model, cross_entropy_loss, data)
    assert trainer.engine == "opacus"
    assert_sums_agree(model, cross_entropy_loss, data, "opacus", 0.3)


def test_tokens_embedding_and_skip_connection() -> None:
    data = make_data(shape=(4,))
    data = data._replace(train_X=(data.train_X > 0).long(), test_X=(data.test_X > 0).long())
    assert_sums_agree(Embedded(), cross_entropy_loss, data, "opacus", 0.3)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("frozen", [["0.weight"], ["0.bias"], ["0.weight", "0.bias"], ["2.weight"]])
def test_frozen_parameters_have_no_part_in_the_norm(engine: str, frozen: list[str]) -> None:
    model = stack(nn.Tanh(), torch.float64)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name not in frozen)
    assert_sums_agree(model, cross_entropy_loss, make_data(), engine, 0.3)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_layer_without_gradient(engine: str) -> None:
    """Dead rectifiers: the first layer's gradient is zero, and zero norms do not divide."""
    model = stack(nn.ReLU(), torch.float64)
    with torch.no_grad():
        model[0].bias.fill_(-1e3)
        model[2].bias.zero_()
    assert_sums_agree(model, cross_entropy_loss, make_data(), engine, 0.3)
    data = make_data()
    zero = DPTrainer(lambda: model, lambda o, t: 0 * o.sum(dim=1), data, engine=engine)
    assert flat(zero.clipped_gradient_sum(model, INDICES, 0.3)).abs().max() == 0


def test_a_parameter_outside_the_outputs() -> None:
    model = stack(nn.Tanh(), torch.float64)
    model.register_module("unused", nn.Identity())

    class Unused(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.unused = stack(nn.Tanh(), torch.float64), nn.Linear(2, 2).double()

        def forward(self, X: Tensor) -> Tensor:
            return self.used(X)

    data = make_data()
    sums = DPTrainer(Unused, cross_entropy_loss, data).clipped_gradient_sum(Unused(), INDICES, 0.3)
    assert [float(s.abs().max()) > 0 for s in sums] == [True] * 4 + [False] * 2


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    "poison",
    [math.nan, math.inf, -math.inf, 1e300, 1e30],
    ids=["nan", "inf", "-inf", "1e300", "1e30"],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_a_poisoned_record_moves_the_sum_by_at_most_the_clip(
    engine: str, poison: float, dtype: torch.dtype
) -> None:
    """Whatever one record says, the others' sum stays and nothing becomes NaN."""
    data = make_data(dtype=dtype)
    model = stack(nn.ReLU(), dtype)
    clean = DPTrainer(lambda: model, cross_entropy_loss, data, engine=engine)
    others = flat(clean.clipped_gradient_sum(model, INDICES[1:], 0.3))
    for columns in (slice(0, 1), slice(None)):
        X = data.train_X.clone()
        X[INDICES[0], columns] = torch.tensor(poison, dtype=torch.float64).to(dtype)
        trainer = DPTrainer(
            lambda: model, cross_entropy_loss, data._replace(train_X=X), engine=engine
        )
        found = flat(trainer.clipped_gradient_sum(model, INDICES, 0.3))
        assert bool(found.isfinite().all())
        assert float((found - others).norm()) <= 0.3 * (1 + 1e-5)


@pytest.mark.parametrize("engine", ENGINES)
def test_poisoned_targets(engine: str) -> None:
    data = make_data()
    model = stack(nn.ReLU(), torch.float64)
    clean = DPTrainer(lambda: model, cross_entropy_loss, data, engine=engine)
    others = flat(clean.clipped_gradient_sum(model, INDICES[1:], 0.3))
    for bad in (3, -1, -100, 10**12):
        Y = data.train_Y.clone()
        Y[INDICES[0]] = bad
        trainer = DPTrainer(
            lambda: model, cross_entropy_loss, data._replace(train_Y=Y), engine=engine
        )
        torch.testing.assert_close(
            flat(trainer.clipped_gradient_sum(model, INDICES, 0.3)), others, rtol=1e-12, atol=1e-14
        )
    linear = logistic_regression(7, dtype=torch.float64)
    Y = data.train_Y.double()
    Y[INDICES[0]] = math.nan
    one_less, poisoned = (
        DPTrainer(
            lambda: linear,
            logistic_loss,
            TrainTest(data.train_X, y, data.test_X, Y[:31]),
            engine=engine,
        ).clipped_gradient_sum(linear, i, 0.3)
        for y, i in ((data.train_Y.double(), INDICES[1:]), (Y, INDICES))
    )
    torch.testing.assert_close(flat(one_less), flat(poisoned), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_diverged_model_still_gives_finite_sums(engine: str) -> None:
    model = stack(nn.ReLU(), torch.float32)
    data = make_data(dtype=torch.float32)
    for value in (math.inf, math.nan, 1e38):
        with torch.no_grad():
            model[0].weight.fill_(value)
        trainer = DPTrainer(partial(stack, nn.ReLU(), torch.float32), cross_entropy_loss, data)
        trainer.engine = engine
        assert bool(flat(trainer.clipped_gradient_sum(model, INDICES, 0.3)).isfinite().all())


@pytest.mark.parametrize("engine", ENGINES)
def test_order_repetition_and_emptiness_of_a_lot(engine: str) -> None:
    model = stack(nn.Tanh(), torch.float64)
    trainer = DPTrainer(lambda: model, cross_entropy_loss, make_data(), engine=engine)
    once = flat(trainer.clipped_gradient_sum(model, INDICES, 0.3))
    backwards = flat(trainer.clipped_gradient_sum(model, INDICES.flip(0), 0.3))
    torch.testing.assert_close(once, backwards, rtol=1e-12, atol=1e-14)
    empty = flat(trainer.clipped_gradient_sum(model, INDICES[:0], 0.3))
    assert empty.shape == once.shape
    assert float(empty.abs().max()) == 0
    single = flat(trainer.clipped_gradient_sum(model, INDICES[:1], 1e-3))
    assert float(single.norm()) == pytest.approx(1e-3, rel=1e-9)


@pytest.mark.parametrize("sampling", ["without_replacement", "poisson"])
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("noise_multiplier", [0.0, 0.7])
def test_engines_train_the_same_model(
    sampling: str, optimizer: str, noise_multiplier: float
) -> None:
    """Same lots, same noise, same optimizer: the weights agree to rounding after 60 steps."""
    factory = partial(multilayer_perceptron, 7, 3, (6, 5), dtype=torch.float64)
    trained = [
        DPTrainer(
            factory,
            cross_entropy_loss,
            make_data(),
            sampling=sampling,
            optimizer=optimizer,
            engine=engine,
        ).fit(
            learning_rate=0.05,
            clip_norm=0.5,
            noise_multiplier=noise_multiplier,
            lot_size=6,
            epochs=6,
            seed=11,
        )
        for engine in ENGINES
    ]
    torch.testing.assert_close(*map(weights, (t.model for t in trained)), rtol=1e-10, atol=1e-12)
    assert trained[0].accuracy == trained[1].accuracy


def test_opacus_processes_large_lots_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    model = stack(nn.Tanh(), torch.float64)
    trainer = DPTrainer(lambda: model, cross_entropy_loss, make_data(), engine="opacus")
    whole = flat(trainer.clipped_gradient_sum(model, INDICES, 0.3))
    size = sum(p.numel() for p in model.parameters())
    monkeypatch.setattr("botorch_dp.training.opacus.MAX_GRADIENT_NUMBERS", 3 * size)
    parts = flat(trainer.clipped_gradient_sum(model, INDICES, 0.3))
    torch.testing.assert_close(whole, parts, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("precise", [False, True])
def test_replicates_are_independent_rows(precise: bool) -> None:
    """One batched call equals one call for each replicate, padding included."""
    data = make_data(dtype=torch.float32)
    records = training_records(data, 3)
    models = [multilayer_perceptron(7, 3, (5,)) for _ in range(3)]
    lots = torch.randint(60, (3, 8))
    filled = torch.ones(3, 8)
    filled[1, 4:] = 0
    filled[2] = 0
    engine = FusedEngine(models, records, cross_entropy_loss, precise=precise)
    together = engine.clipped_sums(lots, filled, 0.3)
    assert together.dtype == (torch.float64 if precise else torch.float32)
    assert int(engine.kept) == 24
    for row, model, lot, size in zip(together, models, lots, (8, 4, 0), strict=True):
        alone = FusedEngine([model], records, cross_entropy_loss, precise=precise)
        expected = alone.clipped_sums(lot[:size].unsqueeze(0), None, 0.3)[0] if size else 0 * row
        torch.testing.assert_close(row, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "model, shape, reason",
    [
        (nn.Sequential(nn.Linear(7, 3), nn.Dropout(0.5)), (7,), "Dropout"),
        (nn.Sequential(nn.Linear(7, 3), nn.LayerNorm(3)), (7,), "LayerNorm"),
        (nn.Linear(7, 3), (4, 7), "nn.Flatten"),
        (nn.Sequential(nn.Flatten(0), nn.Linear(7, 3)), (7,), "flattens"),
        (nn.Sequential(nn.Linear(7, 3), nn.Softmax(dim=1)), (7,), "Softmax"),
    ],
)
def test_what_the_fused_engine_leaves_to_opacus(
    model: nn.Module, shape: tuple[int, ...], reason: str
) -> None:
    assert reason in str(why_not_fused(model, torch.zeros(2, *shape)))


def test_shared_parameters_hooks_and_other_types_are_not_fused() -> None:
    X = torch.zeros(2, 7)
    layer = nn.Linear(7, 7)
    assert "share" in str(why_not_fused(nn.Sequential(layer, nn.ReLU(), layer), X))
    assert "type" in str(why_not_fused(nn.Linear(7, 3).double(), X))
    assert "float16" in str(why_not_fused(nn.Linear(7, 3).half(), X.half()))
    layer.register_forward_hook(lambda module, inputs, outputs: 2 * outputs)
    assert "hook" in str(why_not_fused(nn.Sequential(layer), X))
    assert why_not_fused(nn.Sequential(nn.Flatten(), nn.Linear(7, 3)), X.view(2, 7, 1)) is None
    with pytest.raises(ValueError, match="Dropout"):
        DPTrainer(
            lambda: nn.Sequential(nn.Linear(7, 3), nn.Dropout(0.5)),
            cross_entropy_loss,
            make_data(dtype=torch.float32),
            engine="fused",
        )
