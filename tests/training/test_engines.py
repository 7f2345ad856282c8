"""What every engine must do: against plain autograd, stock Opacus, and one another."""

from __future__ import annotations

import itertools
import math
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from botorch_dp.errors import PrivacyError
from botorch_dp.training import (
    DPTrainer,
    TrainTest,
    cross_entropy_loss,
    hinge_loss,
    logistic_loss,
    logistic_regression,
    multilayer_perceptron,
)
from botorch_dp.training.engines.base import Batches
from botorch_dp.training.engines.fused import ELEMENTWISE
from botorch_dp.training.networks import Loss
from botorch_dp.training.records import TrainingRecords
from tests.training.helpers import (
    ENGINES,
    INDICES,
    KINDS,
    SETTINGS,
    assert_sums_agree,
    clipped_sum,
    clipped_sum_of,
    flat,
    linear_loss,
    made,
    make_data,
    per_example_gradients,
    stack,
    sums,
    training_records,
    weights,
)
from tests.training.models import CLASSES, HOSTILE, MODELS, Case, Hostile, largest_move

ANY_MODEL = [engine for engine in ENGINES if engine != "fused"]


def case_trainer(case: Case, engine: str) -> DPTrainer:
    Y = torch.arange(len(case.X)) % CLASSES
    torch.manual_seed(0)
    return DPTrainer(
        case.factory, cross_entropy_loss, TrainTest(case.X, Y, case.X, Y), engine=engine
    )


@pytest.mark.one_in(7)  # all engines
@pytest.mark.parametrize("engine", ANY_MODEL)
@pytest.mark.parametrize("name", MODELS)
def test_every_model_is_clipped_as_single_records_are_or_refused(name: str, engine: str) -> None:
    """In both precisions, against autograd on one record at a time."""
    case = MODELS[name]
    if engine in case.refused:
        with pytest.raises(ValueError, match=f"cannot train.*{case.refused[engine]}"):
            case_trainer(case, engine)
        return
    if engine != "per_record":  # which the others are held against
        case_trainer(case, engine)
    torch.manual_seed(1)
    model, batch = case.factory().train(), torch.arange(len(case.X))
    rows = per_example_gradients(model, cross_entropy_loss, case.X, batch % CLASSES)
    middle = float(torch.stack([row.norm() for row in rows]).median())
    expected, records = clipped_sum(rows, middle), TrainingRecords(case.X, batch % CLASSES, CLASSES)
    for precise in (False, True):
        found = sums(made(KINDS[engine], [model], records, precise=precise), batch, middle)[0]
        assert float((found - expected).norm()) <= 2e-6 * float(expected.norm())


@pytest.mark.parametrize(
    ("name", "engine"), [("network", "fused"), ("LSTM of Opacus", "ghost"), ("table", "ghost")]
)
def test_auto_never_chooses_opacus(name: str, engine: str) -> None:
    assert case_trainer(MODELS[name], "auto").engine == engine


def move_of(hostile: Hostile, engine: str) -> float:
    def by_engine(model: nn.Module, X: Tensor) -> Tensor:
        records = TrainingRecords(X, torch.ones(len(X)), None)
        return sums(made(KINDS[engine], [model], records, linear_loss), torch.arange(len(X)), 1.0)

    return largest_move(by_engine, hostile)


@pytest.mark.parametrize("engine", ["ghost", "per_record"])
@pytest.mark.parametrize("name", HOSTILE)
def test_records_are_apart_by_construction(name: str, engine: str) -> None:
    """Whatever a model does with its batch: there is one record in it."""
    assert move_of(HOSTILE[name], engine) <= 2 * (1 + 1e-5)


def test_records_are_not_apart_in_opacus() -> None:
    """Which is why its guarantee says that their isolation was tried and not enforced."""
    moves = {name: move_of(hostile, "opacus") for name, hostile in HOSTILE.items()}
    assert moves.pop("scaled by the largest number") <= 2
    assert all(move > 2.1 for move in moves.values())
    assert max(moves.values()) > 100


@pytest.mark.parametrize("engine", ["ghost", "opacus"])
@pytest.mark.parametrize("name", HOSTILE)
def test_trials_find_what_shows_on_made_up_records(name: str, engine: str) -> None:
    """And nothing else: only construction helps against the others."""
    hostile, Y = HOSTILE[name], torch.ones(len(HOSTILE[name].X))
    data = TrainTest(hostile.X, Y, hostile.X, Y)
    options: dict[str, Any] = {"engine": engine, "metric": lambda outputs, targets: 0.0}
    if hostile.found:
        with pytest.raises(PrivacyError, match="mixes the records"):
            DPTrainer(hostile.factory, linear_loss, data, **options)
        return
    plan = DPTrainer(hostile.factory, linear_loss, data, **options).plan(**SETTINGS)
    assert ("not enforced" in str(plan.guarantee)) == (engine == "opacus")


@pytest.mark.parametrize("engine", ENGINES)
def test_sums_by_hand(engine: str) -> None:
    """Gradients ``y (x, 1)`` of a linear model: two of length 3 and one of length 1.5 at clip 1.5.

    The bias counts in the norm: without it the first two would be clipped less.
    """
    X = torch.tensor([[2.0, 2.0], [-2.0, 2.0], [1.0, 0.5]], dtype=torch.float64)
    records = TrainingRecords(X, torch.tensor([1.0, -1.0, 1.0], dtype=torch.float64), None)
    models = [nn.Linear(2, 1, dtype=torch.float64) for _ in range(2)]
    two = made(KINDS[engine], models, records, linear_loss, precise=True)
    batches = torch.tensor([[0, 1, 2], [2, 2, 0]])
    expected = torch.tensor([[3.0, 0.5, 1.0], [3.0, 2.0, 2.5]], dtype=torch.float64)
    torch.testing.assert_close(sums(two, batches, 1.5), expected)
    filled = torch.tensor([[True, False, False], [False, True, True]])
    expected = torch.tensor([[1.0, 1.0, 0.5], [2.0, 1.5, 1.5]], dtype=torch.float64)
    torch.testing.assert_close(sums(two, batches, 1.5, filled), expected)
    kept = [two.clipped_sums(Batches(batches, each), 1.5).kept for each in (None, filled)]
    assert [int(each) for each in kept] == [6, 3]


@pytest.mark.parametrize("precise", [False, True])
@pytest.mark.parametrize("engine", ENGINES)
def test_replicates_are_independent_rows(engine: str, precise: bool) -> None:
    """One call for three is one call for each of them, empty places included."""
    records = training_records(make_data(dtype=torch.float32), 3)
    models = [multilayer_perceptron(7, 3, (5,)) for _ in range(3)]
    batches = torch.randint(60, (3, 8))
    filled = torch.ones(3, 8)
    filled[1, 4:] = 0
    filled[2] = 0
    three = made(KINDS[engine], models, records, precise=precise)
    together, kept = three.clipped_sums(Batches(batches, filled), 0.3)
    assert together.dtype == (torch.float64 if precise else torch.float32)
    assert int(kept) == 8 + 4
    for row, model, batch, size in zip(together, models, batches, (8, 4, 0), strict=True):
        alone = made(KINDS[engine], [model], records, precise=precise)
        expected = sums(alone, batch[:size], 0.3)[0] if size else 0 * row
        torch.testing.assert_close(row, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.one_in(5)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("engine", ENGINES)
def test_clipped_sums_of_every_type(engine: str, bias: bool, dtype: torch.dtype) -> None:
    data, clip_norms = make_data(dtype=dtype), (0.05, 1.0, 100.0)
    assert_sums_agree(
        stack(nn.Tanh(), dtype, bias=bias), cross_entropy_loss, data, engine, *clip_norms
    )
    for loss in (logistic_loss, hinge_loss):
        linear = logistic_regression(7, bias=bias, dtype=dtype)
        assert_sums_agree(linear, loss, make_data(classes=2, dtype=dtype), engine, *clip_norms)


@pytest.mark.parametrize("activation", ELEMENTWISE, ids=lambda a: a.__name__)
def test_clipped_sums_of_every_activation(activation: type[nn.Module]) -> None:
    """Of the engine that knows them by name; the others see any function."""
    model = stack(activation(), torch.float64)
    assert_sums_agree(model, cross_entropy_loss, make_data(), "fused", 0.3)


@pytest.mark.one_in(3)
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
    assert flat(clipped_sum_of(zero, model, INDICES, 0.3)).abs().max() == 0


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_a_poisoned_record_moves_the_sum_by_at_most_the_clip(
    engine: str, dtype: torch.dtype
) -> None:
    """Whatever one record says, the others' sum stays and nothing becomes NaN."""
    data = make_data(dtype=dtype)
    model = stack(nn.ReLU(), dtype)
    clean = DPTrainer(lambda: model, cross_entropy_loss, data, engine=engine)
    others = flat(clipped_sum_of(clean, model, INDICES[1:], 0.3))
    poisons = (math.nan, math.inf, -math.inf, 1e300, 1e30)
    for poison, columns in itertools.product(poisons, (slice(0, 1), slice(None))):
        X = data.train_X.clone()
        X[INDICES[0], columns] = torch.tensor(poison, dtype=torch.float64).to(dtype)
        poisoned = clean.on(data._replace(train_X=X))
        found = flat(clipped_sum_of(poisoned, model, INDICES, 0.3))
        assert bool(found.isfinite().all()), poison
        assert float((found - others).norm()) <= 0.3 * (1 + 1e-5), poison


def of_probabilities(outputs: Tensor, targets: Tensor) -> Tensor:
    """Raises where a probability is no number."""
    probabilities = outputs.softmax(dim=1)[:, 1]
    return F.binary_cross_entropy(probabilities, (targets > 0).to(outputs), reduction="none")


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("loss", [cross_entropy_loss, of_probabilities])
def test_a_diverged_model_still_gives_finite_sums(engine: str, loss: Loss) -> None:
    model = stack(nn.ReLU(), torch.float32)
    data = make_data(dtype=torch.float32)
    factory = partial(stack, nn.ReLU(), torch.float32)
    trainer = DPTrainer(factory, loss, data, engine=engine)
    for value in (math.inf, math.nan, 1e38):
        with torch.no_grad():
            model[0].weight.fill_(value)
        assert bool(flat(clipped_sum_of(trainer, model, INDICES, 0.3)).isfinite().all())


@pytest.mark.one_in(2)
@pytest.mark.parametrize("sampling", ["without_replacement", "poisson"])
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_engines_train_the_same_model(sampling: str, optimizer: str) -> None:
    """Same batches, same noise, same optimizer: the weights agree to rounding after 30 steps."""
    factory = partial(multilayer_perceptron, 7, 3, (6, 5), dtype=torch.float64)
    how: dict[str, Any] = {"sampling": sampling, "optimizer": optimizer}
    trainers = [
        DPTrainer(factory, cross_entropy_loss, make_data(), engine=engine, **how)
        for engine in ENGINES
    ]
    for noise in (0.0, 0.7):
        settings = {**SETTINGS, "learning_rate": 0.05, "noise_multiplier": noise}
        first, *others = (each.fit(**settings, seed=11) for each in trainers)
        for other in others:
            torch.testing.assert_close(
                weights(other.model), weights(first.model), rtol=1e-10, atol=1e-12
            )
            assert other.accuracy == first.accuracy
