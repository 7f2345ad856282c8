from __future__ import annotations

import math

import pytest
import torch

from botorch_dp.training import (
    accuracy,
    cross_entropy_loss,
    hinge_loss,
    logistic_loss,
)
from botorch_dp.training.networks import (
    OUTPUT_GRADIENTS,
    Loss,
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


@pytest.mark.parametrize("loss", OUTPUT_GRADIENTS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_closed_gradients_are_those_of_autograd(loss: Loss, dtype: torch.dtype) -> None:
    width = 4 if loss is cross_entropy_loss else 1
    outputs = 3 * torch.randn(50, width, dtype=dtype)
    targets = torch.randint(max(width, 2), (50,))
    leaf = outputs.clone().requires_grad_()
    loss(leaf, targets).sum().backward()
    found = OUTPUT_GRADIENTS[loss](outputs, targets)
    assert found.dtype == dtype
    torch.testing.assert_close(found, leaf.grad)
