from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from botorch_dp.training import cross_entropy_loss, hinge_loss, logistic_loss
from botorch_dp.training.losses import OUTPUT_GRADIENTS, output_gradient


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


@pytest.mark.parametrize("loss", list(OUTPUT_GRADIENTS), ids=lambda f: f.__name__)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_closed_gradients_are_those_of_autograd(loss: object, dtype: torch.dtype) -> None:
    width = 4 if loss is cross_entropy_loss else 1
    outputs = 3 * torch.randn(50, width, dtype=dtype)
    targets = torch.randint(max(width, 2), (50,))
    leaf = outputs.clone().requires_grad_()
    loss(leaf, targets).sum().backward()
    found = output_gradient(loss, outputs, targets)
    assert found.dtype == dtype
    torch.testing.assert_close(found, leaf.grad)


def test_unknown_losses_go_through_autograd() -> None:
    def cubic(outputs: Tensor, targets: Tensor) -> Tensor:
        return (outputs.squeeze(-1) - targets) ** 3

    outputs, targets = torch.randn(9, 1), torch.randn(9)
    with torch.no_grad():
        found = output_gradient(cubic, outputs, targets)
    torch.testing.assert_close(found, 3 * (outputs - targets.unsqueeze(-1)) ** 2)
    assert not outputs.requires_grad
    assert output_gradient(nn.MSELoss(reduction="none"), outputs, outputs).abs().max() == 0
