from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from botorch_dp.training import DPTrainer, cross_entropy_loss
from botorch_dp.training.engines.base import (
    clip_factors,
    parameter_views,
    stack_parameters,
    trainable,
)
from botorch_dp.training.engines.fused import FusedEngine
from botorch_dp.training.engines.per_record import PerRecordEngine
from tests.training.helpers import (
    INDICES,
    made,
    make_data,
    stack,
    sums,
    training_records,
)


@pytest.mark.parametrize("activation", [nn.ReLU, nn.LeakyReLU, nn.ELU])
def test_activations_in_place(activation: type[nn.Module]) -> None:
    model = stack(activation(inplace=True), torch.float64)
    plain = stack(activation(), torch.float64)
    records = training_records(make_data(), 3)
    found = [sums(made(FusedEngine, [each], records), INDICES, 0.3) for each in (model, plain)]
    assert torch.equal(*found)
    assert model[1].inplace


@pytest.mark.parametrize("bias", [False, True])
def test_layers_of_one_output(bias: bool) -> None:
    """They are computed as a row, of each replicate, and give what each gives alone."""
    data = make_data(dtype=torch.float64)
    records, batches = training_records(data, 3), INDICES.expand(2, -1)
    models = [
        nn.Sequential(nn.Linear(7, 1, bias=bias), nn.Tanh(), nn.Linear(1, 3)).double()
        for _ in range(2)
    ]
    together = sums(made(FusedEngine, models, records), batches, 0.3)
    for row, model in zip(together, models, strict=True):
        (expected,) = sums(made(PerRecordEngine, [model], records), INDICES, 0.3)
        torch.testing.assert_close(row, expected, rtol=1e-12, atol=1e-14)


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
def test_what_the_fused_engine_leaves_to_the_other(
    model: nn.Module, shape: tuple[int, ...], reason: str
) -> None:
    assert reason in str(FusedEngine.why_not(model, torch.zeros(2, *shape)))


def test_shared_parameters_hooks_and_other_types_are_not_fused() -> None:
    X = torch.zeros(2, 7)
    layer = nn.Linear(7, 7)
    assert "share" in str(FusedEngine.why_not(nn.Sequential(layer, nn.ReLU(), layer), X))
    assert "type" in str(FusedEngine.why_not(nn.Linear(7, 3).double(), X))
    assert "float16" in str(FusedEngine.why_not(nn.Linear(7, 3).half(), X.half()))
    layer.register_forward_hook(lambda module, inputs, outputs: 2 * outputs)
    assert "hook" in str(FusedEngine.why_not(nn.Sequential(layer), X))
    assert (
        FusedEngine.why_not(nn.Sequential(nn.Flatten(), nn.Linear(7, 3)), X.view(2, 7, 1)) is None
    )
    with pytest.raises(ValueError, match="Dropout"):
        DPTrainer(
            lambda: nn.Sequential(nn.Linear(7, 3), nn.Dropout(0.5)),
            cross_entropy_loss,
            make_data(dtype=torch.float32),
            engine="fused",
        )


def test_clip_factors_by_hand() -> None:
    norms = torch.tensor([0.0, 0.5, 2.0, 8.0, math.inf, math.nan, 1e-40, 3e38])
    expected = torch.tensor([1.0, 1.0, 1.0, 0.25, 0.0, 0.0, 1.0, 0.0])
    torch.testing.assert_close(clip_factors(norms, 2.0), expected)


def test_no_norm_exceeds_the_clip() -> None:
    norms = torch.logspace(-37, 37, 4001)
    for clip_norm in (1e-12, 1e-3, 1.0, 1e6):
        clipped = (clip_factors(norms, clip_norm) * norms).double()
        assert float(clipped.max()) <= clip_norm * (1 + 1e-6)
        small = norms <= clip_norm * (1 - 1e-6)
        assert torch.equal(clipped[small], norms[small].double())


def test_without_clipping_only_what_is_not_finite_goes() -> None:
    norms = torch.tensor([0.0, 1e38, math.inf, math.nan])
    assert clip_factors(norms, math.inf).tolist() == [1.0, 1.0, 0.0, 0.0]


def test_parameters_are_rows_and_views_share_memory() -> None:
    models = [nn.Sequential(nn.Linear(3, 2), nn.ReLU(), nn.Linear(2, 1)) for _ in range(4)]
    for model in models:
        model[0].bias.requires_grad_(False)
    matrix = stack_parameters(models)
    assert matrix.shape == (4, 6 + 2 + 1)
    views = parameter_views(matrix, models[0])
    assert [v.shape for v in views] == [(4, 2, 3), (4, 1, 2), (4, 1)]
    for model, *rows in zip(models, *views, strict=True):
        for parameter, row in zip(trainable(model), rows, strict=True):
            assert torch.equal(parameter, row)
    views[1].zero_()
    assert torch.equal(matrix[:, 6:8], torch.zeros(4, 2))
