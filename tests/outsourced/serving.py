"""A curator of thirty rows, for the tests of logs and answers."""

from __future__ import annotations

import torch

from botorch_dp.outsourced import GaussianNoiseCurator

X = torch.randn(30, 3, dtype=torch.double, generator=torch.Generator().manual_seed(2))


def measure(index: int) -> float:
    return float(X[index, 0])


def make_curator(evaluate=measure, **kwargs) -> GaussianNoiseCurator:
    return GaussianNoiseCurator(X, evaluate, epsilon=2.0, delta=1e-6, **kwargs)
