from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from botorch_dp.training import (
    accuracy,
    cross_entropy_loss,
    hinge_loss,
    logistic_loss,
)
from botorch_dp.training.networks import (
    OUTPUT_GRADIENTS,
    Loss,
    OutputGradient,
)


def test_accuracy() -> None:
    scores = torch.tensor([[2.0], [-1.0], [0.5], [-3.0]])
    assert accuracy(scores, torch.tensor([1, 1, 0, 0])) == 0.5
    assert accuracy(scores, torch.tensor([1.0, 1.0, -1.0, -1.0])) == 0.5
    assert accuracy(torch.eye(3), torch.tensor([0, 1, 0])) == pytest.approx(2 / 3)


def test_outputs_that_are_not_finite_are_wrong() -> None:
    nan, inf = float("nan"), float("inf")
    assert accuracy(torch.tensor([[nan], [inf], [-1.0]]), torch.tensor([0, 1, 0])) == pytest.approx(
        1 / 3
    )
    assert accuracy(torch.tensor([[nan, 0.0], [0.0, 1.0]]), torch.tensor([0, 1])) == 0.5


def test_values_by_hand() -> None:
    scores, targets = torch.tensor([[2.0], [2.0], [-0.5]]), torch.tensor([1, 0, 1])
    expected = [math.log1p(math.exp(-2)), math.log1p(math.exp(2)), math.log1p(math.exp(0.5))]
    assert logistic_loss(scores, targets).tolist() == pytest.approx(expected, rel=1e-6)
    assert hinge_loss(scores, targets).tolist() == pytest.approx([0.0, 3.0, 1.5])
    logits = torch.tensor([[0.0, math.log(3.0)]])
    assert cross_entropy_loss(logits, torch.tensor([1])).tolist() == pytest.approx(
        [-math.log(0.75)]
    )


def test_zero_one_and_plus_minus_one_mean_the_same() -> None:
    scores = torch.randn(20, 1)
    labels = torch.randint(2, (20,))
    for loss in (logistic_loss, hinge_loss):
        for other in (labels.float(), 2 * labels - 1, (2 * labels - 1).double()):
            assert torch.equal(loss(scores, labels), loss(scores, other))


OF_TORCH = [F.binary_cross_entropy_with_logits, F.mse_loss]


@pytest.mark.parametrize(
    "loss", [each for each in OUTPUT_GRADIENTS if each not in OF_TORCH], ids=lambda f: f.__name__
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_closed_gradients_are_those_of_autograd(loss: object, dtype: torch.dtype) -> None:
    width = 4 if loss is cross_entropy_loss else 1
    outputs = 3 * torch.randn(50, width, dtype=dtype)
    targets = torch.randint(max(width, 2), (50,))
    leaf = outputs.clone().requires_grad_()
    loss(leaf, targets).sum().backward()
    found = OutputGradient(loss)(outputs, targets)
    assert found.dtype == dtype
    torch.testing.assert_close(found, leaf.grad)


@pytest.mark.parametrize("loss", OF_TORCH, ids=lambda f: f.__name__)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(), (1,), (3,), (2, 3)])
def test_closed_gradients_of_torchs_losses_are_those_of_batches_of_one(
    loss: Loss, dtype: torch.dtype, shape: tuple[int, ...]
) -> None:
    """As torch finds them, also where a record says something that is not finite."""
    outputs = 3 * torch.randn(20, *shape, dtype=dtype)
    targets = torch.rand(20, *shape, dtype=dtype)
    outputs[0], outputs[1], outputs[2] = torch.nan, torch.inf, -torch.inf
    targets[3], targets[4] = torch.nan, torch.inf
    before = outputs.clone(), targets.clone()
    found = OutputGradient(loss)(outputs, targets)
    assert found.dtype == dtype and found.shape == outputs.shape
    for place in range(20):
        one = outputs[place : place + 1].clone().requires_grad_()
        loss(one, targets[place : place + 1]).backward()
        alone = found[place : place + 1]
        torch.testing.assert_close(alone, one.grad, equal_nan=True)
    torch.testing.assert_close((outputs, targets), before, equal_nan=True, rtol=0, atol=0)
    outputs[:5], targets[:5] = 1.0, 0.0
    assert torch.equal(OutputGradient(loss)(outputs, targets)[5:], found[5:])
    assert OutputGradient(loss)(outputs[:0], targets[:0]).shape == (0, *shape)  # an empty batch


def test_torchs_losses_decide_themselves_about_targets_of_another_form() -> None:
    outputs, targets = torch.randn(9, 1), torch.rand(9)
    with pytest.raises(ValueError, match="Target size"):
        OutputGradient(F.binary_cross_entropy_with_logits)(outputs, targets)
    with pytest.warns(UserWarning, match="target size"):
        found = OutputGradient(F.mse_loss)(outputs, targets)
    torch.testing.assert_close(found, 2 * (outputs - targets.unsqueeze(1)))
    wide = OutputGradient(F.mse_loss)(outputs, targets.unsqueeze(1).double())
    torch.testing.assert_close(wide, found)


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
