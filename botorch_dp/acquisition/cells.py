"""Volume and probability of a union of disjoint boxes: the arithmetic behind HVPoI.

Every function sums over the cells of a box decomposition of the non-dominated region. A cell is a
product of intervals, so its volume and, for independent Gaussians, its probability are products
over the ``m`` objectives. The cells come as one tensor ``edges`` of shape
``(batch_shape) x 2 num_cells x m``: first all lower bounds, then all upper bounds.

References:
    [Ament2023] S. Ament, S. Daulton, D. Eriksson, M. Balandat, E. Bakshy. Unexpected Improvements
        to Expected Improvement for Bayesian Optimization. NeurIPS 2023.
"""

from __future__ import annotations

import math
from functools import reduce
from typing import Any

import torch
from botorch.utils.safe_math import fatplus
from torch import Tensor
from torch.autograd.function import once_differentiable


def finite_edges(bounds: Tensor) -> Tensor:
    """Join lower and upper bounds into ``edges``, in double precision and without infinities.

    An infinite edge would give NaN gradients (infinity times zero). The substitute lies so far
    out that no probability is beyond it, and yet survives a division by the square of the
    smallest standard deviation, see ``least_variance``.

    Args:
        bounds: A ``2 x (batch_shape) x num_cells x m``-dim tensor, as from
            ``BoxDecomposition.get_hypercell_bounds``.
    """
    far = torch.finfo(torch.double).max ** 0.375
    return torch.cat([*bounds.double().clamp(-far, far)], dim=-2)


def least_variance(bounds: Tensor) -> Tensor:
    """The ``m`` variances, in double precision, below which rounding of the bounds hides them."""
    magnitude = bounds.masked_fill(bounds.isinf(), 0.0).flatten(end_dim=-2).abs().amax(dim=0)
    rounding = torch.finfo(bounds.dtype).eps * magnitude.double()
    return rounding.square().clamp_min(torch.finfo(torch.double).tiny ** 0.5)


def volume_gain(mean: Tensor, edges: Tensor) -> Tensor:
    """Volume of the cells' parts that lie below ``mean`` in every objective.

    Args:
        mean: A ``batch_shape x 1 x m``-dim tensor.
        edges: A ``2 num_cells x m``-dim tensor.

    Returns:
        A ``batch_shape``-dim tensor; exactly zero where ``mean`` is dominated.
    """
    lower, upper = edges.chunk(2, dim=-2)
    return _product((torch.minimum(mean, upper) - lower).clamp_min(0.0)).sum(-1)


def probability(mean: Tensor, std: Tensor, edges: Tensor) -> Tensor:
    """Probability that independent Gaussians fall into one of the cells.

    The absolute error is a few roundings; relative precision in the tails takes
    ``log_probability``.

    Args:
        mean: A ``batch_shape x 1 x m``-dim tensor.
        std: A ``batch_shape x 1 x m``-dim tensor of positive standard deviations.
        edges: A ``2 num_cells x m``-dim tensor.

    Returns:
        A ``batch_shape``-dim tensor.
    """
    lower, upper = torch.special.ndtr((edges - mean) / std).chunk(2, dim=-2)
    return _product(upper - lower).sum(-1)


def log_volume_gain(mean: Tensor, edges: Tensor, temperature: Tensor) -> Tensor:
    """Logarithm of a smoothed ``volume_gain``, finite and increasing in ``mean`` everywhere.

    The part of ``[l, u]`` below the mean has length ``relu(mean - l) - relu(mean - u)``. With the
    fat-tailed smooth ``relu`` of [Ament2023]_ this is positive however far below ``l`` the mean
    is, and decays polynomially there. It still telescopes over adjacent intervals, so that the
    smoothed volume does not depend on how the region is cut into cells.

    Args:
        mean: A ``batch_shape x 1 x m``-dim tensor.
        edges: A ``2 num_cells x m``-dim tensor.
        temperature: A ``batch_shape x 1 x m``-dim tensor, the width of the smoothed kink.

    Returns:
        A ``batch_shape``-dim tensor.
    """
    above_lower, above_upper = fatplus(mean - edges, tau=temperature).chunk(2, dim=-2)
    # Intervals thinner than the rounding of their distance to the mean may get length zero.
    length = (above_lower - above_upper).clamp_min(torch.finfo(edges.dtype).tiny)
    return length.log().sum(-1).logsumexp(-1)


def log_probability(mean: Tensor, std: Tensor, edges: Tensor) -> Tensor:
    """Logarithm of ``probability``, precise also where the probability itself underflows.

    Args:
        mean: A ``batch_shape x 1 x m``-dim tensor.
        std: A ``batch_shape x 1 x m``-dim tensor of positive standard deviations.
        edges: A ``2 num_cells x m``-dim tensor.

    Returns:
        A ``batch_shape``-dim tensor.
    """
    lower, upper = ((edges - mean) / std).chunk(2, dim=-2)
    return _LogNormalInterval.apply(lower, upper).sum(-1).logsumexp(-1)


class _LogNormalInterval(torch.autograd.Function):
    """``log(Phi(upper) - Phi(lower))`` elementwise, for ``lower <= upper``.

    The same quantity as BoTorch's ``log_prob_normal_in``, which refuses intervals that rounding
    has emptied, at a fraction of the cost: values and derivatives come from one evaluation of
    ``erfcx(-x / sqrt(2)) = 2 Phi(x) exp(x^2 / 2)`` at either end.
    """

    @staticmethod
    def forward(ctx: Any, lower: Tensor, upper: Tensor) -> Tensor:
        # Reflected to where most of it is negative, an interval loses no digits. Its part beyond
        # 8 would overflow and has no probability in double precision, nor any derivative.
        reflected = lower + upper > 0
        a = torch.where(reflected, -upper, lower)
        b = torch.where(reflected, -lower, upper).clamp_max(8.0)
        scaled_a, scaled_b = (torch.special.erfcx(end * -math.sqrt(0.5)) for end in (a, b))
        # Phi(a) / Phi(b); an empty interval counts as one whose ends differ by a rounding.
        ratio = scaled_a / scaled_b * (0.5 * (b - a) * (b + a)).exp()
        rest = 1 - ratio.clamp_max(1 - torch.finfo(a.dtype).eps)
        ctx.save_for_backward(reflected, scaled_a, scaled_b.masked_fill(b == 8.0, torch.inf), rest)
        return (0.5 * scaled_b * rest).log() - 0.5 * b.square()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        reflected, scaled_a, scaled_b, rest = ctx.saved_tensors
        # phi(b) / (Phi(b) - Phi(a)) and -phi(a) / (Phi(b) - Phi(a)): no vanishing numbers divided.
        density = grad * math.sqrt(2 / math.pi) / rest
        grad_a = density * (rest - 1) / scaled_a
        grad_b = density / scaled_b
        return (
            torch.where(reflected, -grad_b, grad_a),
            torch.where(reflected, -grad_a, grad_b),
        )


def _product(factors: Tensor) -> Tensor:
    """Product over the last dimension, cheaper than ``prod`` to differentiate at zeros."""
    return reduce(torch.mul, factors.unbind(-1))
