"""Small problems that several tests descend on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any

import torch
from gpytorch.kernels import Kernel, RBFKernel
from torch import Tensor

from botorch_dp.descent import DPGIBO, Design

DIM = 3
N = 200


def records(seed: int = 5, n: int = N, dim: int = DIM) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return 0.6 + 0.1 * torch.randn(n, dim, dtype=torch.double, generator=generator)


def squared_distance(data: Tensor) -> Callable[[Tensor], Tensor]:
    """Losses ``|x - record|^2``; their mean is smallest at the records' mean."""
    return lambda X: (X.unsqueeze(1) - data).square().sum(-1)


def must_not_be_read(X: Tensor) -> Tensor:
    """Losses of records that nobody may ask yet."""
    raise AssertionError("a record was read")


class Counted:
    """Losses that say how many records they are of."""

    def __init__(self, losses: Callable[[Tensor], Tensor], num_records: int) -> None:
        self.losses, self.num_records = losses, num_records

    def __call__(self, X: Tensor) -> Tensor:
        return self.losses(X)


def unit_box(dim: int = DIM) -> Tensor:
    return torch.stack((torch.zeros(dim), torch.ones(dim))).double()


def kernel(lengthscale: float = 0.5) -> Kernel:
    rbf = RBFKernel().double()
    rbf.lengthscale = lengthscale
    return rbf


def descent(losses: Callable[[Tensor], Tensor] | None = None, **changes: Any) -> DPGIBO:
    """A descent on the squared distances, unless told otherwise; fields of its design by name."""
    settings: dict[str, Any] = {
        "kernel": kernel(),
        "mu": 1.0,
        "steps": 6,
        "clip_norm": 1.0,
        "box": unit_box(),
        "step_size": 0.2,
    }
    settings.update(changes)
    of_design = {f.name for f in fields(Design)} & settings.keys()
    if of_design:
        design = {name: settings.pop(name) for name in of_design}
        settings["design"] = Design(settings.get("design", "simplex"), **design)
    initial = settings.pop("initial", torch.full((DIM,), 0.2, dtype=torch.double))
    return DPGIBO(squared_distance(records()) if losses is None else losses, initial, **settings)
