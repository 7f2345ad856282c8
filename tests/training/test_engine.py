from __future__ import annotations

import math

import torch
from torch import nn

from botorch_dp.training.engine import (
    clip_factors,
    parameter_views,
    stack_parameters,
    trainable,
)


def test_clip_factors_by_hand() -> None:
    norms = torch.tensor([0.0, 0.5, 2.0, 8.0, math.inf, math.nan, 1e-40, 3e38])
    expected = torch.tensor([1.0, 1.0, 1.0, 0.25, 0.0, 0.0, 1.0, 0.0])
    torch.testing.assert_close(clip_factors(norms, 2.0), expected)


def test_no_norm_exceeds_the_clip() -> None:
    norms = torch.logspace(-37, 37, 4001)
    for clip_norm in (1e-12, 1e-3, 1.0, 1e6):
        clipped = (clip_factors(norms, clip_norm) * norms).double()
        assert float(clipped.max()) <= clip_norm * (1 + 1e-6)
        small = norms <= clip_norm * (1 - 1e-6)
        assert torch.equal(clipped[small], norms[small].double())


def test_without_clipping_only_what_is_not_finite_goes() -> None:
    norms = torch.tensor([0.0, 1e38, math.inf, math.nan])
    assert clip_factors(norms, math.inf).tolist() == [1.0, 1.0, 0.0, 0.0]


def test_parameters_are_rows_and_views_share_memory() -> None:
    models = [nn.Sequential(nn.Linear(3, 2), nn.ReLU(), nn.Linear(2, 1)) for _ in range(4)]
    for model in models:
        model[0].bias.requires_grad_(False)
    matrix = stack_parameters(models)
    assert matrix.shape == (4, 6 + 2 + 1)
    views = parameter_views(matrix, models[0])
    assert [v.shape for v in views] == [(4, 2, 3), (4, 1, 2), (4, 1)]
    for model, *rows in zip(models, *views, strict=True):
        for parameter, row in zip(trainable(model), rows, strict=True):
            assert torch.equal(parameter, row)
    views[1].zero_()
    assert torch.equal(matrix[:, 6:8], torch.zeros(4, 2))
