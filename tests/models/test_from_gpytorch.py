"""A plain GPyTorch model works in every acquisition function and in the private choice."""

from __future__ import annotations

import gpytorch
import pytest
import torch
from botorch.models import ModelListGP
from botorch.optim import optimize_acqf
from botorch.utils.multi_objective.box_decompositions import FastNondominatedPartitioning
from gpytorch.kernels import RBFKernel
from gpytorch.likelihoods import GaussianLikelihood
from gpytorch.means import ConstantMean, ZeroMean
from torch import Tensor

from botorch_dp.acquisition import (
    GradientTrace,
    LogHypervolumeProbabilityOfImprovement,
    PrivateUpperConfidenceBound,
    UCBSchedule,
)
from botorch_dp.errors import NotPublicError
from botorch_dp.models import check_public, from_gpytorch
from botorch_dp.release import PrivateChoice

X = torch.rand(9, 2, dtype=torch.double, generator=torch.Generator().manual_seed(0))
Y = (3 * X).sin().sum(-1)
BOX = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.double)


class MyGP(gpytorch.models.ExactGP):
    """As GPyTorch's own tutorial has it."""

    def __init__(self, X: Tensor, Y: Tensor, mean: gpytorch.means.Mean) -> None:
        super().__init__(X, Y, GaussianLikelihood().double())
        self.likelihood.noise = 0.01
        self.mean_module = mean.double()
        self.covar_module = RBFKernel().double()

    def forward(self, x: Tensor) -> gpytorch.distributions.MultivariateNormal:
        return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))


class Shifted(MyGP):
    def forward(self, x: Tensor) -> gpytorch.distributions.MultivariateNormal:
        prior = super().forward(x)
        return gpytorch.distributions.MultivariateNormal(prior.mean + 1, prior.covariance_matrix)


def plain(Y: Tensor = Y) -> MyGP:
    return MyGP(X, Y, ZeroMean()).requires_grad_(False).eval()


def test_it_predicts_what_the_original_does() -> None:
    model, new = MyGP(X, Y, ConstantMean()), torch.rand(5, 2, dtype=torch.double)
    model.mean_module.constant.data.fill_(0.3)
    expected, found = model.eval()(new), from_gpytorch(model).posterior(new)
    torch.testing.assert_close(found.mean.squeeze(-1), expected.mean)
    torch.testing.assert_close(found.variance.squeeze(-1), expected.variance)


def test_all_acquisition_functions_take_it() -> None:
    ucb = PrivateUpperConfidenceBound(plain(), schedule=UCBSchedule(100, delta=1e-5), step=10)
    trace = GradientTrace(plain(), torch.full((2,), 0.5, dtype=torch.double))
    ref = [-2.0, -2.0]
    models = ModelListGP(from_gpytorch(plain()), from_gpytorch(plain(-Y)))
    partitioning = FastNondominatedPartitioning(
        torch.tensor(ref, dtype=torch.double), Y=torch.stack([Y, -Y], -1)
    )
    hvpoi = LogHypervolumeProbabilityOfImprovement(models, ref, partitioning)
    for acquisition, q in ((ucb, 1), (trace, 2), (hvpoi, 1)):
        options = {"num_restarts": 2, "raw_samples": 8}
        candidate, value = optimize_acqf(acquisition, bounds=BOX, q=q, **options)
        assert candidate.shape == (q, 2) and bool(value.isfinite())


def test_the_private_choice_takes_it_and_refuses_a_fitted_one() -> None:
    choices = torch.rand(20, 2, dtype=torch.double)
    options = {"num_choices": 20, "epsilon": 1e3, "delta": 1e-4, "dataset_correlation": 0.9999}
    choice = PrivateChoice(**options, steps=len(X))
    released = choice.release(plain(), choices)
    assert bool((choices == released.value).all(-1).any())
    fitted = MyGP(X, Y, ConstantMean())
    with pytest.raises(NotPublicError, match="trainable hyper-parameters"):
        choice.release(fitted, choices)
    check_public(plain(), unit_variance=True)


def test_a_tensor_of_means_adds_a_condition() -> None:
    choices = torch.rand(20, 2, dtype=torch.double)
    options = {"num_choices": 20, "epsilon": 1e3, "delta": 1e-4, "dataset_correlation": 0.9999}
    choice = PrivateChoice(**options, steps=len(X))
    of_model, of_mean = choice.release(plain(), choices), choice.release(choices[:, 0], choices)
    more = set(of_mean.guarantee.assumptions) - set(of_model.guarantee.assumptions)
    assert more == {"the mean was computed from these observations and that prior alone"}


@pytest.mark.parametrize(
    ("model", "match"),
    [
        (Shifted(X, Y, ZeroMean()), "whose `forward` is not"),
        (gpytorch.models.ExactGP(X, Y, GaussianLikelihood()), "without a `mean_module`"),
    ],
    ids=["shifted", "empty"],
)
def test_what_it_cannot_copy_is_refused(model: gpytorch.models.ExactGP, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        from_gpytorch(model)
