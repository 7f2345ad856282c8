"""A loss for each record, and the proof on synthetic data that it is each record's own.

Clipping bounds what one record does to the sum of gradients only if a record's loss depends on
that record alone. Batch normalization and losses that rank, contrast or normalize within the batch
break this silently; and what a model remembers of its inputs in buffers, such as running means, is
released without any noise. So models and losses are tried on random public data before use.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from botorch_dp.errors import PrivacyError
from botorch_dp.training.networks import Loss
from botorch_dp.training.randomness import seeded_torch
from botorch_dp.training.records import TrainTest, synthetic_records

_BATCH = 6
_TRIES = 3


@dataclass(frozen=True)
class _Averaged:
    """A loss module with ``reduction="none"``, averaged over a record's own outputs."""

    loss: nn.Module

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        losses: Tensor = self.loss(outputs, targets)
        return losses.flatten(1).mean(dim=1) if losses.dim() > 1 else losses


@dataclass(frozen=True)
class _OneByOne:
    """A loss that returns the mean over its batch, applied to each record as a batch of one."""

    loss: Loss

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        def alone(output: Tensor, target: Tensor) -> Tensor:
            return self.loss(output.unsqueeze(0), target.unsqueeze(0))

        return torch.vmap(alone)(outputs, targets)


@dataclass(frozen=True)
class Traits:
    """What synthetic data told about a model and its loss."""

    loss: Loss
    """Returns one loss per record."""
    num_classes: int | None
    """The number of classes if the targets are classes."""
    draws: bool
    """Whether the model draws random numbers in training (dropout)."""


def examine(model: nn.Module, loss: Loss, data: TrainTest) -> Traits:
    """Learn the form of the loss, or raise if a record's loss depends on other records.

    Only the shapes, types and device of ``data`` are used.

    Raises:
        PrivacyError: If a change of one synthetic record changes the loss of another one, or what
            the model stores in a buffer.
        ValueError: If the loss returns neither one number per record nor their mean.
    """
    model.train()
    generator = torch.Generator().manual_seed(0)
    _check_no_memory(model, data, generator)
    per_example, draws = None, False
    for seed in range(_TRIES):
        batch = synthetic_records(data, _BATCH, generator)
        other = synthetic_records(data, _BATCH, generator)
        with seeded_torch(seed), torch.no_grad():
            before = torch.get_rng_state()
            outputs = model(batch.train_X)
            draws = draws or not torch.equal(before, torch.get_rng_state())
        if outputs.dim() == 0 or len(outputs) != _BATCH:
            raise ValueError(
                f"The model must return one row for each record, got shape {tuple(outputs.shape)} "
                f"for {_BATCH} records."
            )
        if per_example is None:
            per_example = _per_example(loss, outputs, batch.train_Y)
        _check_own_loss(per_example, outputs, batch.train_Y)
        _check_no_mixing(model, per_example, batch, other, seed)
    assert per_example is not None
    classes = outputs.dim() == 2 and outputs.shape[1] > 1 and data.train_Y.dim() == 1
    integers = not data.train_Y.is_floating_point()
    return Traits(per_example, outputs.shape[1] if classes and integers else None, draws)


def _per_example(loss: Loss, outputs: Tensor, targets: Tensor) -> Loss:
    """The loss itself, or what turns the mean it returns back into one number per record."""
    with torch.no_grad():
        values = loss(outputs, targets)
    if not isinstance(values, Tensor):
        raise TypeError(f"`loss` must return a tensor, got {type(values).__name__}.")
    if values.shape == (_BATCH,):
        return loss
    if values.dim() == 0:
        unreduced: Loss
        if isinstance(loss, nn.Module) and getattr(loss, "reduction", None) == "mean":
            twin: Any = copy.deepcopy(loss)
            twin.reduction = "none"
            unreduced = _Averaged(twin)
        else:
            unreduced = _OneByOne(loss)
        with torch.no_grad():
            means = unreduced(outputs, targets).mean()
        if not _same(means, values):
            raise PrivacyError(
                "`loss` returns one number that is not the mean of the records' own losses (it is "
                "a sum, or it weighs or mixes the records of a batch). Return one loss per record, "
                'for instance with reduction="none".'
            )
        return unreduced
    raise ValueError(
        f"`loss` must return one number for each record (shape {(_BATCH,)}) or their mean, got "
        f"shape {tuple(values.shape)} for outputs {tuple(outputs.shape)} and targets "
        f"{tuple(targets.shape)}; check that outputs and targets do not broadcast."
    )


def _check_own_loss(per_example: Loss, outputs: Tensor, targets: Tensor) -> None:
    """The loss of a record must not depend on how many others there are."""
    half = _BATCH // 2
    with torch.no_grad():
        whole, part = (
            per_example(outputs, targets)[:half],
            per_example(outputs[:half], targets[:half]),
        )
    if not _same(whole, part):
        raise PrivacyError(_MIXES.format(what="`loss`"))


def _check_no_mixing(
    model: nn.Module, per_example: Loss, batch: TrainTest, other: TrainTest, seed: int
) -> None:
    """Changing one record must leave the losses of all others as they were."""
    changed = seed % _BATCH
    rest = [i for i in range(_BATCH) if i != changed]
    X, Y = batch.train_X.clone(), batch.train_Y.clone()
    X[changed], Y[changed] = other.train_X[changed], other.train_Y[changed]
    with torch.no_grad():
        with seeded_torch(seed):
            before = per_example(model(batch.train_X), batch.train_Y)
        with seeded_torch(seed):
            after = per_example(model(X), Y)
    if not _same(before[rest], after[rest]):
        raise PrivacyError(_MIXES.format(what="The model, or its loss,"))


def _check_no_memory(model: nn.Module, data: TrainTest, generator: torch.Generator) -> None:
    """A forward pass must leave the same buffers behind whatever the records are."""
    if next(model.buffers(), None) is None:
        return
    left: list[dict[str, Tensor]] = []
    for _ in range(2):
        twin = copy.deepcopy(model)
        with seeded_torch(0), torch.no_grad():
            twin(synthetic_records(data, _BATCH, generator).train_X)
        left.append(dict(twin.named_buffers()))
    first, second = left
    depend = [name for name, value in first.items() if not torch.equal(value, second[name])]
    if depend:
        raise PrivacyError(
            f"The model stores something of the records in its buffers ({', '.join(depend)}), "
            "which are released with it and get no noise. Turn that off, for instance with "
            "track_running_stats=False."
        )


_MIXES = (
    "{what} mixes the records of a batch: on random data, changing one record changed the loss of "
    "another one, so clipping cannot bound what one record does. Replace batch normalization by "
    "group normalization, and use a loss of each record alone."
)


def _same(one: Tensor, other: Tensor) -> bool:
    tolerance = 1e-5 if one.dtype == torch.float64 else 1e-4
    return torch.allclose(one, other, rtol=tolerance, atol=tolerance, equal_nan=True)
