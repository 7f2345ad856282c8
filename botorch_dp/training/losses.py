"""Losses of single records, some with a gradient in closed form.

A loss takes outputs (``b x k``) and targets (``b``) and returns one number per record. Binary
targets are positive or not: 0/1 and -1/+1 mean the same.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

Loss = Callable[[Tensor, Tensor], Tensor]


def logistic_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    """``log(1 + exp(-s f))`` with ``s = +1`` for positive targets and -1 for others, per record."""
    scores = outputs.squeeze(-1)
    return F.binary_cross_entropy_with_logits(
        scores, (targets > 0).to(scores.dtype), reduction="none"
    )


def hinge_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    """``max(0, 1 - s f)`` with ``s = +1`` for positive targets and -1 for others, per record."""
    scores = outputs.squeeze(-1)
    return F.relu(1 - torch.where(targets > 0, scores, -scores))


def cross_entropy_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    """Softmax cross-entropy of integer classes, per record."""
    return F.cross_entropy(outputs, targets, reduction="none")


def _logistic_gradient(outputs: Tensor, targets: Tensor) -> Tensor:
    return outputs.sigmoid().sub_((targets > 0).to(outputs.dtype).unsqueeze(-1))


def _hinge_gradient(outputs: Tensor, targets: Tensor) -> Tensor:
    signs = torch.where(targets > 0, 1.0, -1.0).to(outputs.dtype).unsqueeze(-1)
    return torch.where(signs * outputs < 1, -signs, 0.0)


def _cross_entropy_gradient(outputs: Tensor, targets: Tensor) -> Tensor:
    probabilities = outputs.softmax(dim=1)
    return probabilities.scatter_add_(
        1, targets.unsqueeze(1), outputs.new_full((len(outputs), 1), -1.0)
    )


#: Gradients with respect to the outputs, ``b x k``. For a linear model, building and walking
#: autograd's graph would take longer than everything else in a step.
OUTPUT_GRADIENTS: dict[Loss, Callable[[Tensor, Tensor], Tensor]] = {
    logistic_loss: _logistic_gradient,
    hinge_loss: _hinge_gradient,
    cross_entropy_loss: _cross_entropy_gradient,
}


def output_gradient(loss: Loss, outputs: Tensor, targets: Tensor) -> Tensor:
    """The gradient of the sum of the records' losses with respect to the outputs, ``b x k``."""
    known = OUTPUT_GRADIENTS.get(loss)
    if known is not None:
        return known(outputs.detach(), targets)
    with torch.enable_grad():
        leaf = outputs.detach().requires_grad_()
        losses = loss(leaf, targets)
        (gradient,) = torch.autograd.grad(losses, leaf, torch.ones_like(losses))
    return gradient
