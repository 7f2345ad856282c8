"""Training data: what is refused, and what is made harmless instead.

What is public (types, shapes, sizes) is checked and refused. What one record says is not: a
record with a value that is not finite, or with a class that does not exist, keeps its place in the
lots but its gradient counts as zero.
"""

from __future__ import annotations

from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from botorch_dp.errors import PrivacyError


class TrainTest(NamedTuple):
    """Tensors to train on and to test on.

    Args:
        train_X: Inputs, ``n x ...``, one record in each row.
        train_Y: Targets, ``n`` or ``n x ...``.
        test_X: Inputs of the test records.
        test_Y: Targets of the test records.
    """

    train_X: Tensor  # noqa: N815
    train_Y: Tensor  # noqa: N815
    test_X: Tensor  # noqa: N815
    test_Y: Tensor  # noqa: N815

    def __repr__(self) -> str:
        shapes = ", ".join(
            f"{name}: {tuple(value.shape)} {str(value.dtype).removeprefix('torch.')}"
            if isinstance(value, Tensor)
            else f"{name}: {type(value).__name__}"
            for name, value in zip(self._fields, self, strict=True)
        )
        return f"TrainTest({shapes})"


class TrainingRecords:
    """Training data in which every value is finite; nothing is read before it is asked for.

    The operations are the same whatever the data holds.

    Args:
        X: Inputs as they came, ``n x ...``.
        Y: Targets as they came, ``n x ...``.
        num_classes: Number of classes if the targets are integer classes: others are unusable.
    """

    def __init__(self, X: Tensor, Y: Tensor, num_classes: int | None) -> None:
        self._raw_X, self._raw_Y, self._num_classes = X, Y, num_classes

    def __len__(self) -> int:
        return len(self._raw_X)

    @cached_property
    def usable(self) -> Tensor:
        """Whether a record's gradient counts, ``n``."""
        X, Y = self._raw_X, self._raw_Y
        usable = X.isfinite().flatten(1).all(dim=1) if X.dim() > 1 else X.isfinite()
        usable = usable & (Y.isfinite().flatten(1).all(dim=1) if Y.dim() > 1 else Y.isfinite())
        if self._num_classes is not None:
            usable = usable & (Y >= 0) & (self._num_classes > Y)
        return usable

    @cached_property
    def X(self) -> Tensor:
        """Inputs, ``n x ...``; the rows of unusable records are zero."""
        return self._zeroed(self._raw_X)

    @cached_property
    def Y(self) -> Tensor:
        """Targets, ``n x ...``; those of unusable records are zero."""
        return self._zeroed(self._raw_Y)

    @cached_property
    def norms(self) -> Tensor:
        """The l2 norm of each record's inputs, ``n``, in double precision."""
        return torch.linalg.vector_norm(self.X.flatten(1), dim=1, dtype=torch.float64)

    def _zeroed(self, values: Tensor) -> Tensor:
        rows = self.usable.view(-1, *[1] * (values.dim() - 1))
        return torch.where(rows, values, torch.zeros_like(values))


def check_data(data: object) -> TrainTest:
    """Return the data as :class:`TrainTest`, or raise if its form is wrong; no value is read."""
    if isinstance(data, torch.utils.data.DataLoader):
        raise PrivacyError(
            "`data` is a DataLoader: going through a shuffled data set epoch by epoch is neither "
            "Poisson sampling nor sampling without replacement, and its privacy cannot be "
            "accounted as either. Pass tensors, TrainTest(train_X, train_Y, test_X, test_Y); the "
            "trainer draws its own lots."
        )
    if not isinstance(data, tuple) or len(data) != 4:
        raise TypeError(
            "`data` must be TrainTest(train_X, train_Y, test_X, test_Y), got "
            f"{type(data).__name__}."
        )
    data = TrainTest(*data)
    for name, value in data._asdict().items():
        if not isinstance(value, Tensor):
            raise TypeError(f"`{name}` must be a torch.Tensor, got {type(value).__name__}.")
        if value.dim() == 0 or len(value) == 0:
            raise ValueError(
                f"`{name}` must hold at least one record, got shape {tuple(value.shape)}."
            )
        if value.device != data.train_X.device:
            raise ValueError(
                f"`{name}` is on {value.device} but `train_X` on {data.train_X.device}; "
                "move all four tensors to one device."
            )
    for part in ("train", "test"):
        X, Y = getattr(data, f"{part}_X"), getattr(data, f"{part}_Y")
        if len(X) != len(Y):
            raise ValueError(f"`{part}_X` has {len(X)} records but `{part}_Y` has {len(Y)}.")
    for kind in ("X", "Y"):
        train, test = getattr(data, f"train_{kind}"), getattr(data, f"test_{kind}")
        if train.shape[1:] != test.shape[1:] or train.dtype != test.dtype:
            raise ValueError(
                f"`train_{kind}` and `test_{kind}` must agree in type and in all sizes but the "
                f"first, got {train.dtype} {tuple(train.shape)} and {test.dtype} "
                f"{tuple(test.shape)}."
            )
    return data


def synthetic_records(data: TrainTest, size: int, generator: torch.Generator) -> TrainTest:
    """Random data of the same form, to try a model and a loss on without touching a record."""
    device = data.train_X.device

    def like(template: Tensor, low: int) -> Tensor:
        shape = (size, *template.shape[1:])
        if template.is_floating_point() and low < 0:
            draw = torch.randn(shape, generator=generator, dtype=template.dtype)
        else:
            # Zeros and ones are valid classes, labels, tokens and probabilities.
            draw = torch.randint(2, shape, generator=generator).to(template.dtype)
        return draw.to(device)

    X, Y = like(data.train_X, -1), like(data.train_Y, 0)
    return TrainTest(X, Y, X, Y)
