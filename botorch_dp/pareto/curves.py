"""Whole curves: what one is expected to gain, and where its training should end.

A training gives a point at each checkpoint. Epsilon is known at all of them and rises along the
curve; the error is believed to be Gaussian in the scale of the models, and what is not known of it
is the same all along the curve.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from botorch.models import SingleTaskGP
from botorch.models.transforms import Standardize
from botorch.models.transforms.input import InputTransform
from botorch.models.utils.gpytorch_modules import get_covar_module_with_dim_scaled_prior
from gpytorch.constraints import GreaterThan
from gpytorch.kernels import Kernel, ScaleKernel
from gpytorch.priors import LogNormalPrior
from torch import Tensor

_NODES = 12


@dataclass(frozen=True)
class Staircase:
    """A front as a function of epsilon: the least error within it.

    Args:
        starts: ``f`` values of epsilon in the units of hypervolume, rising; the first is where
            hypervolume begins.
        errors: ``f`` errors from there on, falling; the first is the reference.
        end: The reference epsilon in these units.
    """

    starts: Tensor
    errors: Tensor
    end: float

    @classmethod
    def of(cls, epsilons: Tensor, errors: Tensor, begin: float, end: float, worst: float) -> Any:
        """The staircase of ``n`` points."""
        inside = (epsilons < end) & (errors < worst)
        order = epsilons[inside].clamp_min(begin).argsort()
        starts = torch.cat([epsilons.new_tensor([begin]), epsilons[inside].clamp_min(begin)[order]])
        best = torch.cat([errors.new_tensor([worst]), errors[inside][order]]).cummin(dim=0).values
        return cls(starts, best, end)

    def above(self, until: Tensor, errors: Tensor) -> Tensor:
        """The area above ``errors`` and below the staircase, left of ``until``; any one shape."""
        widths = self.starts.diff()
        areas = torch.cat([widths.new_zeros(1), (widths * self.errors[:-1]).cumsum(dim=0)])
        # The staircase is above an error until the first step that is not.
        falls = torch.searchsorted(-self.errors, -errors)
        ends = torch.cat([self.starts, self.starts.new_tensor([self.end])])[falls]
        stop = torch.minimum(until.expand_as(errors), ends)
        place = (torch.searchsorted(self.starts, stop, right=True) - 1).clamp_min(0)
        below = areas[place] + self.errors[place] * (stop - self.starts[place])
        return below - errors * (stop - self.starts[0])


def expected_gains(
    staircase: Staircase,
    epsilons: Tensor,
    means: Tensor,
    stds: Tensor,
    to_error: Callable[[Tensor], Tensor],
) -> Tensor:
    r"""Expected hypervolume that curves gain, by the checkpoint at which they end.

    With ``c_k`` the least error of a curve up to its ``k``-th point, at epsilon ``e_k``, and ``f``
    the front, ending at the ``K``-th gains

    .. math:: \sum_{k \le K} \int_{e_k}^{e_{k+1}} (f(e) - c_k)^+ de, \quad e_{K+1} = ref,

    averaged over the one Gaussian that moves the whole curve, by Gauss-Hermite quadrature.

    Args:
        staircase: The front.
        epsilons: ``n x K`` in the units of the staircase, rising.
        means: ``n x K``, in the scale of the models.
        stds: ``n x K``.
        to_error: From the scale of the models to errors.

    Returns:
        ``n x K``.
    """
    nodes, weights = (torch.from_numpy(a) for a in np.polynomial.hermite_e.hermegauss(_NODES))
    weights = weights / weights.sum()
    errors = to_error(means.unsqueeze(-1) + stds.unsqueeze(-1) * nodes)  # n x K x nodes
    best = errors.cummin(dim=-2).values
    start = epsilons.clamp(float(staircase.starts[0]), staircase.end).unsqueeze(-1)
    end = torch.full_like(start, staircase.end)
    before = staircase.above(start, best)
    ending = (staircase.above(end, best) - before) @ weights
    until_next = staircase.above(torch.cat([start[:, 1:], end[:, :1]], dim=1), best) - before
    passed = (until_next @ weights).cumsum(dim=-1)
    return ending + torch.cat([torch.zeros_like(passed[:, :1]), passed[:, :-1]], dim=-1)


class _SameTraining(Kernel):
    """1 for two points of one training, by the number in their last coordinate; -1 is none."""

    def forward(self, x1: Tensor, x2: Tensor, diag: bool = False, **params: Any) -> Tensor:
        first, second = x1[..., -1], x2[..., -1]
        if diag:
            return ((first == second) & (first >= 0)).to(x1)
        same = first.unsqueeze(-1) == second.unsqueeze(-2)
        return (same & (first >= 0).unsqueeze(-1)).to(x1)


def of_trainings(X: Tensor, trainings: Tensor) -> Tensor:
    """``n x d`` codes with the number of their training as a last coordinate."""
    return torch.cat([X, trainings.unsqueeze(-1).to(X)], dim=-1)


def of_no_training(X: Tensor) -> Tensor:
    """``... x d`` codes with -1, the number of no training, as a last coordinate."""
    return torch.cat([X, -torch.ones_like(X[..., :1])], dim=-1)


class _OfNoTraining(InputTransform, torch.nn.Module):
    """Appends -1, the number of no training, to points of ``d`` coordinates."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dim = dim
        self.transform_on_train = False
        self.transform_on_eval = True
        self.transform_on_fantasize = True

    def transform(self, X: Tensor) -> Tensor:
        return X if X.shape[-1] > self.dim else of_no_training(X)


class _WithProducts(Kernel):
    """A kernel that sees products of parameters beside the codes, ``d x f`` weights of these."""

    def __init__(self, base: Kernel, weights: Tensor, **options: Any) -> None:
        super().__init__(**options)
        self.base_kernel = base
        self.register_buffer("weights", weights)

    def _seen(self, X: Tensor) -> Tensor:
        return torch.cat([X, X @ self.weights], dim=-1)

    def forward(self, x1: Tensor, x2: Tensor, diag: bool = False, **params: Any) -> Tensor:
        return self.base_kernel.forward(self._seen(x1), self._seen(x2), diag=diag, **params)


def smooth_kernel(dim: int, products: Tensor | None = None) -> Kernel:
    """A Matérn-5/2 kernel with a length-scale for each code, and for each product of them.

    Args:
        dim: How many codes there are; further coordinates are not seen.
        products: ``d x f`` weights of the products that are seen as well, if any.
    """
    codes = tuple(range(dim))
    if products is None:
        return get_covar_module_with_dim_scaled_prior(
            ard_num_dims=dim, use_rbf_kernel=False, active_dims=codes
        )
    matern = get_covar_module_with_dim_scaled_prior(
        ard_num_dims=dim + products.shape[-1], use_rbf_kernel=False
    )
    return _WithProducts(matern, products, active_dims=codes)


def curve_gp(
    train_X: Tensor, trainings: Tensor, train_Y: Tensor, products: Tensor | None = None
) -> SingleTaskGP:
    """A Matérn-5/2 GP whose observations share some of their noise if they share a training.

    Args:
        train_X: ``n x d`` codes.
        trainings: Which training each is from, ``n``.
        train_Y: ``n x 1``.
        products: As of :func:`smooth_kernel`.

    Returns:
        The model, not fitted; it predicts at ``... x d`` codes.
    """
    dim = train_X.shape[-1]
    luck = ScaleKernel(
        _SameTraining(active_dims=(dim,)),
        outputscale_prior=LogNormalPrior(loc=-6.0, scale=1.0),
        outputscale_constraint=GreaterThan(1e-5),
    )
    luck.outputscale = 0.005
    return SingleTaskGP(
        of_trainings(train_X, trainings),
        train_Y,
        covar_module=smooth_kernel(dim, products) + luck,
        outcome_transform=Standardize(m=1),
        input_transform=_OfNoTraining(dim),
    )


def stops(
    staircase: Staircase,
    epsilons: Tensor,
    mean: Tensor,
    covariance: Tensor,
    noise: float,
    costs: Sequence[float],
    rate: float,
    to_error: Callable[[Tensor], Tensor],
) -> tuple[float, ...]:
    """The utility at each checkpoint below which the rest of a curve gains less than its cost.

    The rest is worth ``expected gain / cost``, given the utility measured so far; it has to be
    ``rate`` at least, at one of the ends that are left.

    Args:
        staircase: The front.
        epsilons: ``K``, in its units.
        mean: ``K`` means in the scale of the models.
        covariance: ``K x K``.
        noise: Variance of an observation in that scale.
        costs: ``K`` costs of ending at each checkpoint.
        rate: Gain for a unit of cost.
        to_error: From the scale of the models to errors.
    """
    found = []
    scores = torch.linspace(-4.0, 4.0, 33, dtype=torch.double)
    for j in range(len(mean) - 1):
        spread = covariance[j, j] + noise
        seen = mean[j] + scores * spread.sqrt()  # what may be measured
        weights = covariance[j, j:] / spread
        means = mean[j:] + (seen - mean[j]).unsqueeze(-1) * weights
        variances = (covariance.diagonal()[j:] - weights * covariance[j, j:]).clamp_min(0)
        count = len(scores)
        gains = expected_gains(
            staircase,
            epsilons[j:].expand(count, -1),
            means,
            variances.sqrt().expand(count, -1),
            to_error,
        )
        price = torch.tensor([cost - costs[j] for cost in costs[j + 1 :]], dtype=torch.double)
        worth = ((gains[:, 1:] - gains[:, :1]) / price).amax(dim=-1)
        poor = (worth < rate).nonzero().flatten()
        # From the least utility upwards: what is better is worth more.
        last = int((worth >= rate).nonzero().flatten()[0]) - 1 if len(poor) < count else count - 1
        found.append(0.0 if last < 0 else float(1 - to_error(seen[last])))
    return (*found, 0.0)
