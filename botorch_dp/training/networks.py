"""The networks of the DPareto experiments, and their utility.

All are stacks of linear layers, so that the fused engine trains them. Use
:func:`functools.partial` to make a ``model_factory``.

References:
    [Avent2020] B. Avent, J. Gonzalez, T. Diethe, A. Paleyes, B. Balle. Automatic discovery of
        privacy-utility Pareto fronts. Proceedings on Privacy Enhancing Technologies 2020(4).

Example:
    >>> import torch
    >>> from functools import partial
    >>> from botorch_dp.training import DPTrainer, TrainTest, logistic_loss, logistic_regression
    >>> X, y = torch.randn(200, 5), torch.randint(2, (200,))
    >>> trainer = DPTrainer(partial(logistic_regression, 5), logistic_loss, TrainTest(X, y, X, y))
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from botorch_dp._checks import check_integer


def logistic_regression(
    num_features: int, *, bias: bool = True, dtype: torch.dtype = torch.float32
) -> nn.Module:
    """One linear score; train it with :func:`~botorch_dp.training.logistic_loss`."""
    check_integer("num_features", num_features)
    return nn.Linear(num_features, 1, bias=bias, dtype=dtype)


def linear_svm(
    num_features: int, *, bias: bool = True, dtype: torch.dtype = torch.float32
) -> nn.Module:
    """One linear score; train it with :func:`~botorch_dp.training.hinge_loss`."""
    return logistic_regression(num_features, bias=bias, dtype=dtype)


def multilayer_perceptron(
    num_features: int,
    num_classes: int,
    hidden: Sequence[int],
    *,
    dtype: torch.dtype = torch.float32,
) -> nn.Module:
    """Linear layers with rectifiers between them.

    Train it with :func:`~botorch_dp.training.cross_entropy_loss`.
    """
    widths = [num_features, *hidden, num_classes]
    for width in widths:
        check_integer("each width", width)
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(widths):
        layers += [nn.Linear(inputs, outputs, dtype=dtype), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def mlp1(
    num_features: int = 784, num_classes: int = 10, *, dtype: torch.dtype = torch.float32
) -> nn.Module:
    """MLP1 of [Avent2020]: one hidden layer of 1000 rectifiers."""
    return multilayer_perceptron(num_features, num_classes, (1000,), dtype=dtype)


def mlp2(
    num_features: int = 784, num_classes: int = 10, *, dtype: torch.dtype = torch.float32
) -> nn.Module:
    """MLP2 of [Avent2020]: hidden layers of 128 and 64 rectifiers."""
    return multilayer_perceptron(num_features, num_classes, (128, 64), dtype=dtype)


def accuracy(outputs: Tensor, targets: Tensor) -> float:
    """The share of records classified correctly; an output that is not finite is wrong.

    Args:
        outputs: Scores, ``n x 1`` (positive or not) or ``n x k`` (one per class).
        targets: Labels, ``n``.
    """
    usable = outputs.isfinite().all(dim=-1)
    if outputs.shape[-1] == 1:
        right = (outputs.squeeze(-1) > 0) == (targets > 0)
    else:
        right = outputs.argmax(dim=-1) == targets
    return float((right & usable).double().mean())
