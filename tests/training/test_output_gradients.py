from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from botorch_dp.training import DPTrainer, TrainTest
from botorch_dp.training.networks import Loss
from botorch_dp.training.output_gradients import OutputGradient, read_loss


def test_unknown_losses_go_through_autograd() -> None:
    def cubic(outputs: Tensor, targets: Tensor) -> Tensor:
        return (outputs.squeeze(-1) - targets) ** 3

    outputs, targets = torch.randn(9, 1), torch.randn(9)
    with torch.no_grad():
        found = OutputGradient(cubic)(outputs, targets)
    torch.testing.assert_close(found, 3 * (outputs - targets.unsqueeze(-1)) ** 2)
    assert not outputs.requires_grad
    assert OutputGradient(nn.MSELoss(reduction="none"))(outputs, outputs).abs().max() == 0


def _margin(outputs: Tensor, targets: Tensor) -> Tensor:
    return (1 - targets * outputs.squeeze(-1)).clamp(min=0) ** 2


def _product(outputs: Tensor, targets: Tensor) -> Tensor:
    """On the way back, torch looks for zeros in the whole batch."""
    return targets * outputs.prod(dim=-1)


def _slope(outputs: Tensor, targets: Tensor) -> Tensor:
    (slope,) = torch.autograd.grad((outputs**3).sum(), outputs, create_graph=True)
    return targets * slope.sum(dim=-1)


def _bounded(outputs: Tensor, targets: Tensor) -> Tensor:
    """Divides by what may be zero."""
    return targets / outputs.norm(dim=-1)


OWN_LOSSES: dict[str, Loss] = {
    "margin": _margin,
    "binary cross-entropy": lambda o, t: F.binary_cross_entropy_with_logits(
        o[:, 0], t, reduction="none"
    ),
    "mean of one": lambda o, t: F.mse_loss(o[:, 0], t),
    "classes": lambda o, t: F.cross_entropy(o, (t > 0).long(), label_smoothing=0.1),
    "logarithm": lambda o, t: t * o[:, 0].log(),
    "length": _bounded,
    "constant": lambda o, t: t * 1.0,
    "a product, which looks for zeros": _product,
    "gradients inside": _slope,
}


@pytest.mark.parametrize("name", OWN_LOSSES)
def test_each_record_has_its_own_gradient(name: str) -> None:
    slopes, loss = OutputGradient(OWN_LOSSES[name]), OWN_LOSSES[name]
    outputs, targets = torch.randn(40, 2), torch.randint(2, (40,)) * 2.0 - 1
    found = slopes(outputs, targets)
    assert not found.requires_grad and not outputs.requires_grad
    for place in range(3):  # each alone, by torch's own way back
        leaf = outputs[place : place + 1].clone().requires_grad_()
        value = loss(leaf, targets[place : place + 1]).sum()
        if value.requires_grad:
            value.backward()
            assert leaf.grad is not None
            torch.testing.assert_close(found[place : place + 1], leaf.grad)
    for said in (0.0, torch.nan, torch.inf, 1e30):
        other = outputs.clone()
        other[7] = said
        keep = torch.arange(40) != 7
        torch.testing.assert_close(slopes(other, targets)[keep], found[keep], equal_nan=True)


@pytest.mark.parametrize("loss", [lambda o, t: o[:, 0] * o.sum().item(), lambda o, t: o[o > 0]])
def test_losses_that_decide_by_values_are_refused(loss: Loss) -> None:
    with pytest.raises(RuntimeError, match="vmap"):
        OutputGradient(loss)(torch.ones(3, 2), torch.ones(3))


WEIGHTS = torch.tensor([0.2, 1.0, 0.5])
#: Losses that pass their arguments on, by the form of their targets.
READ: dict[str, tuple[Loss, Tensor]] = {
    "classes": (nn.CrossEntropyLoss(), torch.arange(9) % 3),
    "weighted, smoothed": (
        nn.CrossEntropyLoss(weight=WEIGHTS, label_smoothing=0.1, reduction="none"),
        torch.arange(9) % 3,
    ),
    "labels left out": (
        lambda o, t: F.cross_entropy(o.view(len(o), -1), t.squeeze(-1).long(), None, None, 1,
                                     reduction="sum"),
        (torch.arange(9) % 3).unsqueeze(1).int(),
    ),
    "many labels": (nn.BCEWithLogitsLoss(pos_weight=WEIGHTS), torch.arange(27).view(9, 3) % 2.0),
    "many labels, added up": (
        lambda o, t: F.binary_cross_entropy_with_logits(
            o, t.to(o.dtype), weight=WEIGHTS.to(o.dtype), reduction="none"
        ).sum(-1),
        torch.arange(27).view(9, 3) % 2,
    ),
    "regression": (F.mse_loss, torch.randn(9, 3)),
    "absolute errors of a row": (
        lambda o, t: F.l1_loss(o[0, :], t.view_as(o)[0], reduction="sum"), torch.randn(9, 3, 1)
    ),
    "its mean over numbers": (
        lambda o, t: F.huber_loss(o, t, delta=0.3, reduction="none").mean(1), torch.randn(9, 3)
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", READ)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_read_loss_has_the_gradients_of_batches_of_one(name: str, dtype: torch.dtype) -> None:
    """Also beside records that say what is not finite, and for a batch of none."""
    loss, targets = READ[name]
    targets = targets.to(dtype) if targets.is_floating_point() else targets
    loss = loss.to(dtype) if isinstance(loss, nn.Module) else loss
    outputs = 3 * torch.randn(9, 3, dtype=dtype)
    read = read_loss(loss, outputs, targets, num_classes=3)
    assert read is not None
    found = OutputGradient(read)(outputs, targets)
    assert found.dtype == dtype
    for i in range(9):
        one = outputs[i : i + 1].clone().requires_grad_()
        loss(one, targets[i : i + 1]).sum().backward()
        torch.testing.assert_close(found[i : i + 1], one.grad)
    outputs[0], outputs[1] = torch.nan, torch.inf
    torch.testing.assert_close(OutputGradient(read)(outputs, targets)[2:], found[2:])
    assert OutputGradient(read)(outputs[:0], targets[:0]).shape == (0, 3)


LABELS = torch.arange(9) % 3
NOT_READ: dict[str, tuple[Loss, Tensor]] = {
    "a weighted mean": (nn.CrossEntropyLoss(weight=WEIGHTS), LABELS),
    "a sign": (lambda o, t: -F.cross_entropy(o, t), LABELS),
    "a power": (lambda o, t: F.cross_entropy(o, t, reduction="none") ** 2, LABELS),
    "two losses": (lambda o, t: F.cross_entropy(o, t) + F.cross_entropy(o, t), LABELS),
    "columns exchanged": (lambda o, t: F.cross_entropy(o[:, [1, 0, 2]], t), LABELS),
    "a column picked by a tensor": (
        lambda o, t: F.cross_entropy(o[:, torch.arange(3)], t),
        LABELS,
    ),
    "labels exchanged": (lambda o, t: F.cross_entropy(o, (t + 1) % 3), LABELS),
    "random weights": (
        lambda o, t: F.cross_entropy(o, t, weight=torch.rand(3), reduction="sum"),
        LABELS,
    ),
    "the targets rounded": (lambda o, t: F.mse_loss(o, t.long().float()), torch.randn(9, 3)),
    "targets that are broadcast": (lambda o, t: F.mse_loss(o, t.unsqueeze(1)), torch.randn(9)),
    "a decision by values": (
        lambda o, t: F.mse_loss(o, t) if t.sum().item() < 9 else o.sum(),
        torch.randn(9, 3),
    ),
}


@pytest.mark.filterwarnings("ignore:Using a target size")
@pytest.mark.parametrize("name", NOT_READ)
def test_a_loss_that_does_anything_else_is_not_read(name: str) -> None:
    loss, targets = NOT_READ[name]
    assert read_loss(loss, torch.randn(9, 3), targets, num_classes=3) is None


@pytest.mark.parametrize("engine", ["fused", "ghost", "per_record"])
def test_a_read_loss_is_not_called_on_records(engine: str) -> None:
    calls = 0

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        return F.cross_entropy(outputs, targets, weight=WEIGHTS, reduction="none")

    X, y = torch.randn(60, 4), torch.arange(60) % 3
    trainer = DPTrainer(lambda: nn.Linear(4, 3), loss, TrainTest(X, y), engine=engine)
    calls = 0
    private = trainer.fit(target_epsilon=1.0, delta=1e-3, feature_norm=2.0, publish=True)
    assert calls == 0
    assert engine != "fused" or "your model and loss" not in str(private.guarantee)


@pytest.mark.parametrize("as_targets", [lambda y: y.unsqueeze(1), lambda y: y.float()])
def test_a_label_that_does_not_exist_is_left_out_or_a_condition(
    as_targets: Callable[[Tensor], Tensor],
) -> None:
    """Which labels exist is known of a vector of integers, and of nothing else."""

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(outputs, targets.flatten().long(), reduction="none")

    def trainer(targets: Tensor) -> DPTrainer:
        return DPTrainer(lambda: nn.Linear(4, 3), loss, TrainTest(torch.randn(60, 4), targets))

    settings = {"target_epsilon": 1.0, "delta": 1e-3, "feature_norm": 2.0}
    wrong = torch.arange(60) % 3
    wrong[5] = 7
    known, unknown = trainer(wrong), trainer(as_targets(wrong))
    assert known.fit(**settings, publish=True).steps
    said = "raise no error for a single record"
    assert said not in str(known.plan(**settings).guarantee)
    assert said in str(unknown.plan(**settings).guarantee)
