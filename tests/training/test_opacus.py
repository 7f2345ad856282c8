from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from botorch_dp.errors import PrivacyError
from botorch_dp.training import DPTrainer, cross_entropy_loss
from botorch_dp.training.opacus import OpacusEngine, check_opacus_accepts
from botorch_dp.training.randomness import SeededRandomness
from botorch_dp.training.records import training_records
from tests.training.helpers import (
    FLOAT_DATA,
    INDICES,
    Embedded,
    assert_models_follow_the_matrix,
    assert_sums_agree,
    assert_sums_by_hand,
    flat,
    make_data,
    stack,
)


def test_sums_by_hand() -> None:
    assert_sums_by_hand(OpacusEngine)


def test_finished_models_hold_the_rows() -> None:
    assert_models_follow_the_matrix(OpacusEngine)


@pytest.mark.parametrize(
    "layer, reason",
    [
        (nn.BatchNorm1d(3), "BatchNorm"),
        (nn.InstanceNorm1d(3, affine=True, track_running_stats=True), "track_running_stats"),
        (nn.LSTM(3, 3), "LSTM"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_layers_without_gradients_of_single_records_are_refused(
    layer: nn.Module, reason: str
) -> None:
    with pytest.raises(PrivacyError, match=rf"{reason}(.|\n)*ModuleValidator\.fix"):
        check_opacus_accepts(nn.Sequential(nn.Linear(7, 3), layer))


def test_other_models_are_accepted_as_they_are() -> None:
    for model in (nn.Linear(7, 3), Embedded(), nn.Sequential(nn.Linear(7, 4), nn.GroupNorm(2, 4))):
        names = [name for name, _ in model.named_parameters()]
        check_opacus_accepts(model)
        assert [name for name, _ in model.named_parameters()] == names
        assert not any(layer._forward_hooks for layer in model.modules())


def test_dropout_follows_the_seeds_of_its_replicate() -> None:
    def sums(*seeds: int) -> Tensor:
        torch.manual_seed(0)
        models = [nn.Sequential(nn.Linear(7, 40), nn.Dropout(0.5), nn.Linear(40, 3)) for _ in seeds]
        for model in models:
            model.load_state_dict(models[0].state_dict())
        coins = [SeededRandomness(seed, torch.device("cpu")) for seed in seeds]
        records = training_records(FLOAT_DATA, 3)
        engine = OpacusEngine(
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
