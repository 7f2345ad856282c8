"""Oracles for the trainers: per-example gradients by plain autograd, and stock Opacus."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable

import torch
from opacus import GradSampleModule
from opacus.optimizers import DPOptimizer
from scipy.stats import chi2
from torch import Tensor, nn

from botorch_dp.training import TrainTest

#: Probability that a correct implementation fails a statistical test.
FALSE_ALARM = 1e-6


def make_data(
    n: int = 60,
    shape: tuple[int, ...] = (7,),
    classes: int = 3,
    dtype: torch.dtype = torch.float64,
    seed: int = 0,
) -> TrainTest:
    generator = torch.Generator().manual_seed(seed)
    X = torch.randn((n, *shape), generator=generator, dtype=dtype)
    Y = torch.randint(classes, (n,), generator=generator)
    return TrainTest(X, Y, X[: n // 2 + 1], Y[: n // 2 + 1])


def per_example_gradients(
    model: nn.Module, loss: Callable[[Tensor, Tensor], Tensor], X: Tensor, Y: Tensor
) -> list[Tensor]:
    """One row per record, all trainable parameters flat, by one backward pass per record."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    rows = []
    for x, y in zip(X, Y, strict=True):
        value = loss(model(x.unsqueeze(0)), y.unsqueeze(0)).sum()
        gradients = torch.autograd.grad(value, parameters, allow_unused=True)
        rows.append(
            torch.cat(
                [
                    (torch.zeros_like(p) if g is None else g).flatten()
                    for p, g in zip(parameters, gradients, strict=True)
                ]
            )
        )
    return rows


def clipped_sum(rows: list[Tensor], clip_norm: float) -> Tensor:
    return torch.stack([row * min(1.0, clip_norm / float(row.norm())) for row in rows]).sum(dim=0)


def opacus_clipped_sum(
    model: nn.Module,
    loss: Callable[[Tensor, Tensor], Tensor],
    X: Tensor,
    Y: Tensor,
    clip_norm: float,
) -> Tensor:
    """What Opacus's own hooks and optimizer add up; it clips at ``norm + 1e-6``."""
    wrapped = GradSampleModule(copy.deepcopy(model).train(), loss_reduction="sum")
    optimizer = DPOptimizer(
        torch.optim.SGD([p for p in wrapped.parameters() if p.requires_grad], lr=0.0),
        noise_multiplier=0.0,
        max_grad_norm=clip_norm,
        expected_batch_size=1,
        loss_reduction="sum",
    )
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Full backward hook")
        loss(wrapped(X), Y).sum().backward()
    optimizer.clip_and_accumulate()
    return flat([p.summed_grad for p in wrapped.parameters() if p.requires_grad])


def flat(tensors: list[Tensor]) -> Tensor:
    return torch.cat([tensor.detach().flatten() for tensor in tensors])


def weights(model: nn.Module) -> Tensor:
    return flat(list(model.parameters()))


def variance_is(draws: Tensor, std: float) -> bool:
    """Chi-square test of independent centred normal draws against a standard deviation."""
    statistic = float((draws.double() / std).square().sum())
    low, high = chi2.ppf([FALSE_ALARM / 2, 1 - FALSE_ALARM / 2], draws.numel())
    return bool(low < statistic < high)


class Embedded(nn.Module):
    """A model that only Opacus can train: tokens, an embedding, a normalization, a skip."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(2, 6)
        self.norm = nn.LayerNorm(6)
        self.inner = nn.Linear(6, 6)
        self.head = nn.Linear(6, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.norm(self.embedding(tokens).mean(dim=1))
        return self.head(hidden + torch.tanh(self.inner(hidden)))
