from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from botorch_dp.training import (
    accuracy,
    cross_entropy_loss,
    hinge_loss,
    linear_svm,
    logistic_loss,
    logistic_regression,
    mlp1,
    mlp2,
)
from botorch_dp.training.networks import OUTPUT_GRADIENTS, multilayer_perceptron, output_gradient


def test_shapes_are_those_of_the_paper() -> None:
    widths = {mlp1: [(784, 1000), (1000, 10)], mlp2: [(784, 128), (128, 64), (64, 10)]}
    for factory, expected in widths.items():
        linear = [m for m in factory().modules() if isinstance(m, nn.Linear)]
        assert [(m.in_features, m.out_features) for m in linear] == expected
    for factory in (logistic_regression, linear_svm):
        assert sum(p.numel() for p in factory(123).parameters()) == 124
        assert sum(p.numel() for p in factory(123, bias=False).parameters()) == 123
    assert mlp2(dtype=torch.float64)(torch.zeros(2, 784).double()).shape == (2, 10)


def test_outputs_are_not_rectified() -> None:
    assert isinstance(multilayer_perceptron(3, 2, (4,))[-1], nn.Linear)


@pytest.mark.parametrize("bad", [0, -3, 2.5])
def test_widths_are_checked(bad: object) -> None:
    with pytest.raises((TypeError, ValueError), match=r"num_features|width"):
        logistic_regression(bad)


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
