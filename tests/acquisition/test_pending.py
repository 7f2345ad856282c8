"""Believing a model: the mean stays, the variance becomes what observing would leave."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from botorch.exceptions.errors import UnsupportedError
from botorch.models import KroneckerMultiTaskGP, ModelListGP, SingleTaskGP
from botorch.models.map_saas import EnsembleMapSaasSingleTaskGP
from botorch.models.transforms import Normalize, Standardize
from botorch.utils.testing import MockModel, MockPosterior

from botorch_dp.acquisition.hvpoi import believe

DOUBLE = {"dtype": torch.double}


def models() -> dict[str, Any]:
    X = torch.rand(9, 2, **DOUBLE)
    Y = torch.stack([X.sum(-1), X[:, 0].square()], dim=-1)
    Yvar = torch.tensor([[0.04, 0.001]], **DOUBLE) * torch.rand(9, 2, **DOUBLE)
    transforms = {"input_transform": Normalize(2), "outcome_transform": Standardize(2)}
    return {
        "one outcome": SingleTaskGP(X, Y[:, :1]),
        "two outcomes": SingleTaskGP(X, Y, **transforms),
        "known noise": SingleTaskGP(X, Y, Yvar, **transforms),
        "known noise of one outcome": SingleTaskGP(X, Y[:, :1], Yvar[:, :1]),
        "batch": SingleTaskGP(X.expand(3, 9, 2), Y.expand(3, 9, 2), Yvar.expand(3, 9, 2)),
        "list": ModelListGP(*(SingleTaskGP(X, y) for y in Y.split(1, -1))),
        "ensemble": EnsembleMapSaasSingleTaskGP(X, Y[:, :1], num_taus=3),
    }


@pytest.mark.parametrize("name", list(models()))
def test_same_mean_and_less_variance(name: str) -> None:
    model = models()[name]
    pending, X = torch.rand(3, 2, **DOUBLE), torch.rand(40, 2, **DOUBLE)
    before, after = model.posterior(X), believe(model, pending).posterior(X)
    assert after.mean.shape == before.mean.shape
    torch.testing.assert_close(after.mean, before.mean, rtol=1e-5, atol=1e-5)
    assert (after.variance <= before.variance * (1 + 1e-6)).all()
    assert (after.variance < before.variance * 0.99).any()
    # What is left at a pending point is the variance that an observation there would leave: with
    # the average noise of the data, (1 / variance + 1 / noise)^-1 for a single point.
    one = believe(model, pending[:1]).posterior(pending[:1]).variance
    was = model.posterior(pending[:1])
    noisy = model.posterior(pending[:1], observation_noise=True)
    noise = noisy.variance - was.variance
    torch.testing.assert_close(one, 1 / (1 / was.variance + 1 / noise), rtol=1e-3, atol=1e-9)


@pytest.mark.parametrize("kind", ["kronecker", "mock"])
def test_refused(kind: str) -> None:
    X = torch.rand(5, 2, **DOUBLE)
    if kind == "kronecker":
        model: Any = KroneckerMultiTaskGP(X, torch.rand(5, 2, **DOUBLE))
    else:
        model = MockModel(MockPosterior(mean=torch.zeros(5, 1), variance=torch.ones(5, 1)))
    with pytest.raises(UnsupportedError, match=rf"`X_pending`: a {type(model).__name__} cannot"):
        believe(model, X)
