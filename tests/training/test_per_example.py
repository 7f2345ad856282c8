from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from botorch_dp.errors import PrivacyError
from botorch_dp.training import DPTrainer, TrainTest, cross_entropy_loss
from botorch_dp.training.per_example import examine
from tests.training.helpers import make_data

DATA = make_data(dtype=torch.float32)


def linear(outputs: int = 3) -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(7, outputs)


class Mixing(nn.Module):
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
        DPTrainer(Mixing, cross_entropy_loss, DATA)


@pytest.mark.parametrize("engine", ["auto", "fused", "opacus"])
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
    """Opacus looks at the buffers of layers with parameters only."""
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


@pytest.mark.parametrize(
    "loss",
    [
        nn.CrossEntropyLoss(),
        nn.CrossEntropyLoss(reduction="none"),
        nn.CrossEntropyLoss(label_smoothing=0.1),
        F.cross_entropy,
        lambda o, t: cross_entropy_loss(o, t).mean(),
    ],
)
def test_means_are_taken_apart(loss: object) -> None:
    traits = examine(linear(), loss, DATA)
    outputs, targets = torch.randn(9, 3), torch.randint(3, (9,))
    values = traits.loss(outputs, targets)
    assert values.shape == (9,)
    assert traits.num_classes == 3
    alone = torch.stack(
        [loss(o.unsqueeze(0), t.unsqueeze(0)).squeeze() for o, t in zip(outputs, targets)]  # noqa: B905
    )
    torch.testing.assert_close(values, alone)


def test_several_outputs_are_averaged_within_a_record() -> None:
    data = TrainTest(DATA.train_X, DATA.train_X[:, :2], DATA.test_X, DATA.test_X[:, :2])
    traits = examine(linear(2), nn.MSELoss(), data)
    outputs, targets = torch.randn(4, 2), torch.randn(4, 2)
    expected = ((outputs - targets) ** 2).mean(dim=1)
    torch.testing.assert_close(traits.loss(outputs, targets), expected)
    assert traits.num_classes is None
    trainer = DPTrainer(lambda: linear(2), nn.MSELoss(), data, metric=lambda o, t: 0.25)
    fitted = trainer.fit(
        learning_rate=0.1, clip_norm=1.0, noise_multiplier=1.0, lot_size=5, epochs=1, seed=0
    )
    assert fitted.accuracy == 0.25


def test_a_callers_loss_module_is_left_as_it_is() -> None:
    loss = nn.CrossEntropyLoss()
    examine(linear(), loss, DATA)
    assert loss.reduction == "mean"


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
