from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from botorch_dp.training import DPTrainer, cross_entropy_loss
from tests.training.helpers import INDICES, Embedded, assert_sums_agree, flat, make_data, stack


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


def test_opacus_processes_large_lots_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    model = stack(nn.Tanh(), torch.float64)
    trainer = DPTrainer(lambda: model, cross_entropy_loss, make_data(), engine="opacus")
    whole = flat(trainer.clipped_gradient_sum(model, INDICES, 0.3))
    size = sum(p.numel() for p in model.parameters())
    monkeypatch.setattr("botorch_dp.training.opacus.MAX_GRADIENT_NUMBERS", 3 * size)
    parts = flat(trainer.clipped_gradient_sum(model, INDICES, 0.3))
    torch.testing.assert_close(whole, parts, rtol=1e-12, atol=1e-14)
