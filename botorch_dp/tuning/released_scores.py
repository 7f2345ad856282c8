"""Where to ask next, and what to publish, when noisy mean scores were released: post-processing.

A Gaussian process that knows the variance of the noise sees the released scores. The logarithm of
the expected improvement [Ament2023] is compared on a finite set of allowed configurations: some
that fill the space, and some near the best ones so far. So integers, categories and constraints
need no care of their own.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import torch
from botorch.acquisition import qLogExpectedImprovement
from botorch.exceptions import ModelFittingError
from botorch.fit import fit_gpytorch_mll
from botorch.models import SingleTaskGP
from botorch.optim import optimize_acqf_discrete
from botorch.sampling import SobolQMCNormalSampler
from gpytorch.mlls import ExactMarginalLogLikelihood
from torch import Tensor
from torch.quasirandom import SobolEngine

from botorch_dp.space import Config, SearchSpace

#: Configurations to compare: all over the space, and around each of the best so far.
_EVERYWHERE, _AROUND = 512, 128
#: How many of the best so far, and how far around them, in units of the cube.
_BEST, _WIDTHS = 3, (0.2, 0.05)
#: Scores that are modelled; older ones are forgotten.
_LARGEST_MODEL = 400
_SAMPLES = 64


def score_model(X: Tensor, losses: Tensor, variance: float) -> SingleTaskGP:
    """A Gaussian process on the negative of released losses (``N``) at ``N x d`` points."""
    X, Y = X[-_LARGEST_MODEL:], -losses[-_LARGEST_MODEL:].unsqueeze(-1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of scores that do not vary, or have hardly any noise
        model = SingleTaskGP(X, Y, torch.full_like(Y, variance))
        try:
            fit_gpytorch_mll(
                ExactMarginalLogLikelihood(model.likelihood, model),
                optimizer_kwargs={"options": {"maxiter": 50}},
            )
        except ModelFittingError:  # the prior's values are good enough to go on with
            model = SingleTaskGP(X, Y, torch.full_like(Y, variance))
    return model.eval()


def next_configs(
    space: SearchSpace, asked: Sequence[Config], losses: Tensor, variance: float, count: int
) -> list[Config]:
    """Up to ``count`` configurations that promise to improve on those that were asked."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(len(asked))
        X = space.encode(asked)
        model = score_model(X, losses, variance)
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            means = model.posterior(X).mean.squeeze(-1)
        known = {tuple(config.values()) for config in asked}
        new = {
            key: config
            for config in _candidates(space, X[means.argsort(descending=True)[:_BEST]], len(asked))
            if (key := tuple(config.values())) not in known
        }
        if len(new) <= count:
            return list(new.values())
        choices = space.encode(list(new.values()))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            improvement = qLogExpectedImprovement(
                model,
                best_f=means.max(),
                sampler=SobolQMCNormalSampler(torch.Size([_SAMPLES]), seed=len(asked)),
            )
            chosen, _ = optimize_acqf_discrete(improvement, q=count, choices=choices, unique=True)
        places = torch.cdist(chosen, choices).argmin(-1).tolist()
        listed = list(new.values())
        return [listed[place] for place in dict.fromkeys(places)]


def best_config(
    space: SearchSpace, asked: Sequence[Config], losses: Tensor, variance: float
) -> Config:
    """Of those that were asked, the one that the model expects to be best."""
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.manual_seed(len(asked))
        X = space.encode(asked)
        model = score_model(X, losses, variance)
        with torch.no_grad():
            means = model.posterior(X).mean
        return asked[int(means.argmax())]


def _candidates(space: SearchSpace, best: Tensor, number: int) -> list[Config]:
    everywhere = SobolEngine(len(space.parameters), scramble=True, seed=number)
    configs = space.spread(everywhere.draw(_EVERYWHERE, dtype=torch.double).numpy())
    for center in best:
        for width in _WIDTHS:
            around = (_AROUND // len(_WIDTHS), len(center))
            offsets = torch.randn(around, dtype=torch.double, device=center.device)
            configs += space.decode((center + width * offsets).clamp(0.0, 1.0))
    return [config for config in configs if space.satisfies(config)]
