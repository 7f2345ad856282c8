"""The networks and losses of the DPareto experiments [Avent2020], and their utility.

All networks are stacks of linear layers, so that the fused engine trains them. Use
:func:`functools.partial` to make a ``model_factory``. A loss takes outputs (``b x k``) and targets
(``b``) and returns one number per record. Binary targets are positive or not: 0/1 and -1/+1 mean
the same.

Example:
    >>> import torch
    >>> from functools import partial
    >>> from botorch_dp.training import DPTrainer, TrainTest, logistic_loss, logistic_regression
    >>> X, y = torch.randn(200, 5), torch.randint(2, (200,))
    >>> trainer = DPTrainer(partial(logistic_regression, 5), logistic_loss, TrainTest(X, y, X, y))
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import grad, vmap

from botorch_dp._checks import check_integer, check_size

Loss = Callable[[Tensor, Tensor], Tensor]


def logistic_regression(
    num_features: int, *, bias: bool = True, zero: bool = False, dtype: torch.dtype = torch.float32
) -> nn.Module:
    """One linear score; train it with :func:`~botorch_dp.training.logistic_loss`.

    Args:
        num_features: The number of inputs.
        bias: Whether the score has an intercept.
        zero: Whether to start at zero weights, as Algorithms 3 and 4 of [Avent2020] do, rather than
            at random ones.
        dtype: Of the weights.
    """
    check_size("num_features", check_integer("num_features", num_features), 8 * num_features)
    model = nn.Linear(num_features, 1, bias=bias, dtype=dtype)
    if zero:
        for parameter in model.parameters():
            nn.init.zeros_(parameter)
    return model


def linear_svm(
    num_features: int, *, bias: bool = True, zero: bool = False, dtype: torch.dtype = torch.float32
) -> nn.Module:
    """One linear score; train it with :func:`~botorch_dp.training.hinge_loss`.

    Arguments as in :func:`logistic_regression`.
    """
    return logistic_regression(num_features, bias=bias, zero=zero, dtype=dtype)


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
    widths = [
        check_integer("num_features", num_features),
        *(check_integer("hidden", width) for width in hidden),
        check_integer("num_classes", num_classes),
    ]
    for width, after in pairwise(widths):
        check_size("num_features, hidden or num_classes", max(width, after), 8 * width * after)
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
        outputs: Scores, ``n`` or ``n x 1`` (positive or not) or ``n x k`` (one per class).
        targets: Labels, ``n``, or ``n x 1``.
    """
    return float(is_right(outputs, targets).double().mean())


def is_right(outputs: Tensor, targets: Tensor) -> Tensor:
    """Whether each record is classified correctly, ``n``; see :func:`accuracy`."""
    if outputs.dim() == 1:
        outputs = outputs.unsqueeze(-1)
    if targets.dim() == 2 and targets.shape[-1] == 1:
        targets = targets.squeeze(-1)
    if outputs.dim() < 1 or outputs.shape[:-1] != targets.shape:
        raise ValueError(
            f"`targets` must be one for each row of `outputs`, got {tuple(targets.shape)} for "
            f"{tuple(outputs.shape)}."
        )
    usable = outputs.isfinite().all(dim=-1)
    if outputs.shape[-1] == 1:
        right = (outputs.squeeze(-1) > 0) == (targets > 0)
    else:
        right = outputs.argmax(dim=-1) == targets
    return right & usable


def logistic_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    """``log(1 + exp(-s f))`` with ``s = +1`` for positive targets and -1 for others, per record."""
    scores = _one_for_each(outputs, targets)
    return F.binary_cross_entropy_with_logits(
        scores, (targets > 0).to(scores.dtype), reduction="none"
    )


def _one_for_each(outputs: Tensor, targets: Tensor) -> Tensor:
    """One score for each record, ``n``."""
    scores = outputs.squeeze(-1)
    if scores.shape != targets.shape or not scores.is_floating_point():
        raise ValueError(
            f"`outputs` must be one score for each of the `targets`, got {tuple(outputs.shape)} "
            f"{outputs.dtype} for {tuple(targets.shape)}."
        )
    return scores


def hinge_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    """``max(0, 1 - s f)`` with ``s = +1`` for positive targets and -1 for others, per record."""
    scores = _one_for_each(outputs, targets)
    return F.relu(1 - torch.where(targets > 0, scores, -scores))


def cross_entropy_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    """Softmax cross-entropy of integer classes, per record."""
    if outputs.dim() not in (1, 2) or outputs.shape[:-1] != targets.shape:
        raise ValueError(
            f"`targets` must be one class for each row of `outputs`, got {tuple(targets.shape)} "
            f"for {tuple(outputs.shape)}."
        )
    if not outputs.is_floating_point() or targets.dtype != torch.long:
        raise TypeError(
            f"`outputs` must be floating-point and `targets` of dtype torch.long, got "
            f"{outputs.dtype} and {targets.dtype}."
        )
    return F.cross_entropy(outputs, targets, reduction="none")


def _logistic_gradient(outputs: Tensor, targets: Tensor) -> Tensor:
    return outputs.sigmoid().add_((targets > 0).view_as(outputs), alpha=-1)


def _hinge_gradient(outputs: Tensor, targets: Tensor) -> Tensor:
    signs = torch.where(targets > 0, 1.0, -1.0).to(outputs.dtype).view_as(outputs)
    return torch.where(signs * outputs < 1, -signs, 0.0)


def _cross_entropy_gradient(outputs: Tensor, targets: Tensor) -> Tensor:
    probabilities = outputs.softmax(dim=1)
    return probabilities.scatter_add_(
        1, targets.unsqueeze(1), outputs.new_full((len(outputs), 1), -1.0)
    )


#: Gradients with respect to the outputs, ``b x k`` or ``b``. For a linear model, building and
#: walking autograd's graph would take longer than everything else in a step.
OUTPUT_GRADIENTS: dict[Loss, Callable[[Tensor, Tensor], Tensor]] = {
    logistic_loss: _logistic_gradient,
    hinge_loss: _hinge_gradient,
    cross_entropy_loss: _cross_entropy_gradient,
}


def known_gradient(loss: Loss) -> Callable[[Tensor, Tensor], Tensor] | None:
    """The gradient of a loss of this module; None for other losses."""
    return OUTPUT_GRADIENTS.get(loss) if isinstance(loss, Hashable) else None


def output_gradient(loss: Loss, outputs: Tensor, targets: Tensor) -> Tensor:
    """The gradients of the records' own losses with respect to their outputs, ``b x ...``.

    A loss without a known gradient is called on one record at a time, so that it cannot mix them.
    """
    known = known_gradient(loss)
    if known is not None:
        return known(outputs.detach(), targets)

    def loss_of_one(output: Tensor, target: Tensor) -> Tensor:
        return loss(output.unsqueeze(0), target.unsqueeze(0)).sum()

    return vmap(grad(loss_of_one), randomness="different")(outputs.detach(), targets)
