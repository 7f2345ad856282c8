from __future__ import annotations

import pytest
import torch
from torch import nn

from botorch_dp.training import accuracy, linear_svm, logistic_regression, mlp1, mlp2
from botorch_dp.training.networks import multilayer_perceptron


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
