"""Networks, losses and accuracy as in the DPareto experiments [Avent2020].

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

Loss = Callable[[Tensor, Tensor], Tensor]


def logistic_regression(
    num_features: int, *, bias: bool = True, zero: bool = False, dtype: torch.dtype = torch.float32
) -> nn.Module:
    """One linear score; train it with :func:`~botorch_dp.training.logistic_loss`.

    Or, as a support vector machine, with :func:`~botorch_dp.training.hinge_loss`.

    Args:
        num_features: The number of inputs.
        bias: Whether the score has an intercept.
        zero: Whether to start at zero weights, as Algorithms 3 and 4 of [Avent2020] do, rather than
            at random ones.
        dtype: Of the weights.
    """
    model = nn.Linear(num_features, 1, bias=bias, dtype=dtype)
    if zero:
        for parameter in model.parameters():
            nn.init.zeros_(parameter)
    return model


def multilayer_perceptron(
    num_features: int,
    num_classes: int,
    hidden: Sequence[int],
    *,
    dtype: torch.dtype = torch.float32,
) -> nn.Module:
    """Linear layers with rectifiers between them.

    Train it with :func:`~botorch_dp.training.cross_entropy_loss`. MLP1 of [Avent2020] has the
    hidden widths ``(1000,)``, MLP2 ``(128, 64)``.
    """
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise((num_features, *hidden, num_classes)):
        layers += [nn.Linear(inputs, outputs, dtype=dtype), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def accuracy(outputs: Tensor, targets: Tensor) -> float:
    """The share of records classified correctly; an output that is not finite is wrong.

    Args:
        outputs: Scores, ``n`` or ``n x 1`` (positive or not) or ``n x k`` (one per class).
        targets: Labels, ``n``, or ``n x 1``.
    """
    return float(is_correct(outputs, targets).double().mean())


def is_correct(outputs: Tensor, targets: Tensor) -> Tensor:
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
    return F.cross_entropy(outputs, targets, reduction="none")


def causal_lm_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    """Cross-entropy of the next token, averaged over each record's own tokens, per record.

    Labels are shifted as the models of Hugging Face shift them. Those that are no tokens, such as
    -100 for padding, are left out.

    Args:
        outputs: Logits, ``n x length x tokens``.
        targets: Token ids, ``n x length``.
    """
    labels = targets[:, 1:]
    counts = (labels >= 0) & (labels < outputs.shape[-1])
    logits = outputs[:, :-1].transpose(1, 2)
    losses = F.cross_entropy(logits, labels.where(counts, 0), reduction="none")
    return losses.where(counts, 0.0).sum(1) / counts.sum(1).clamp(min=1)


def next_token_accuracy(outputs: Tensor, targets: Tensor) -> float:
    """The share of the next tokens that are the most probable ones; see :func:`causal_lm_loss`."""
    labels = targets[:, 1:]
    counts = (labels >= 0) & (labels < outputs.shape[-1])
    right = counts & (outputs[:, :-1].argmax(-1) == labels)
    return float(right.sum() / counts.sum().clamp(min=1))


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


def takes_labels(loss: Loss) -> bool:
    """Whether a loss is known to take labels, whatever the type of its targets."""
    return loss is F.binary_cross_entropy_with_logits or known_gradient(loss) is not None


def steps_back(values: Tensor) -> set[str]:
    """The names of all nodes of autograd's graph behind these values."""
    ahead, seen = [values.grad_fn], set()
    while ahead:
        step = ahead.pop()
        if step is not None and step not in seen:
            seen.add(step)
            ahead += [before for before, _ in step.next_functions]
    names = (step.name().rpartition("::")[2] for step in seen)
    return {name.rstrip("0123456789").removesuffix("Backward") for name in names}
