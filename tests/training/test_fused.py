from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from botorch_dp.training import DPTrainer, cross_entropy_loss
from botorch_dp.training.engines import fused
from botorch_dp.training.engines.base import Batches, clip_factors
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


@pytest.mark.parametrize("precise", [False, True])
def test_a_batch_in_parts(precise: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Adds up to what it is in one piece: of all replicates, with weights, again and again."""
    data = make_data(dtype=torch.float64)
    models = [stack(nn.ReLU(), torch.float64) for _ in range(2)]
    places = torch.arange(1_000).remainder(len(data.train_Y)).expand(2, -1).flip(1)
    batches = Batches(places, torch.arange(2_000).view(2, -1) / 2_000)

    def found() -> tuple[torch.Tensor, torch.Tensor]:
        engine = made(FusedEngine, models, training_records(data, 3), precise=precise)
        engine.clipped_sums(Batches(places), 0.5)  # the next sums begin anew
        sums, kept = engine.clipped_sums(batches, 0.5)
        return sums.clone(), kept

    whole = found()
    monkeypatch.setattr(fused, "_CACHED", 1)
    parts = found()
    torch.testing.assert_close(parts[0], whole[0], rtol=1e-12, atol=1e-12)
    assert not torch.equal(parts[0], whole[0]) and torch.equal(parts[1], whole[1])


def test_what_the_fused_engine_leaves_to_the_others() -> None:
    X, layer, hooked = torch.zeros(2, 7), nn.Linear(7, 7), nn.Linear(7, 3)
    hooked.register_forward_hook(lambda module, inputs, outputs: 2 * outputs)
    for model, inputs in (
        (nn.Sequential(nn.Linear(7, 3), nn.Dropout(0.5)), X),
        (nn.Sequential(nn.Linear(7, 3), nn.LayerNorm(3)), X),
        (nn.Linear(7, 3), torch.zeros(2, 4, 7)),
        (nn.Sequential(nn.Flatten(0), nn.Linear(7, 3)), X),
        (nn.Sequential(nn.Linear(7, 3), nn.Softmax(dim=1)), X),
        (nn.Sequential(layer, nn.ReLU(), layer), X),
        (nn.Linear(7, 3).double(), X),
        (nn.Linear(7, 3).half(), X.half()),
        (nn.Sequential(hooked), X),
    ):
        assert FusedEngine.why_not(model, inputs) is not None
    flattened = nn.Sequential(nn.Flatten(), nn.Linear(7, 3))
    assert FusedEngine.why_not(flattened, X.view(2, 7, 1)) is None
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
    norms = torch.tensor([0.0, 1e38, math.inf, math.nan])
    assert clip_factors(norms, math.inf).tolist() == [1.0, 1.0, 0.0, 0.0]  # no clipping


def test_no_norm_exceeds_the_clip() -> None:
    norms = torch.logspace(-37, 37, 4001)
    for clip_norm in (1e-12, 1e-3, 1.0, 1e6):
        clipped = (clip_factors(norms, clip_norm) * norms).double()
        assert float(clipped.max()) <= clip_norm * (1 + 1e-6)
        small = norms <= clip_norm * (1 - 1e-6)
        assert torch.equal(clipped[small], norms[small].double())
