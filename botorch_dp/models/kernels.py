"""Kernels with what Gaussian-process gradients need of their derivatives.

The gradient of a Gaussian process is a Gaussian process too, and all that is needed of the kernel
``k`` to work with its gradient at one location ``x`` is

    k(X1, X2),    d/dx k(x, z),    d^2/(dx dx'^T) k(x, x') at x' = x.

The last one is the prior covariance of the gradient. It cannot be left to automatic
differentiation: GPyTorch's Matern kernel goes through a distance whose derivative at zero does not
exist, so it raises or silently comes out as zero. ``RBFKernel``, ``MaternKernel(nu=2.5)``,
``PolynomialKernel`` and scalings of them are therefore written out. Further kernels are registered
with :func:`derivatives_of`.

Points are compared through explicit differences, not through ``|a|^2 + |b|^2 - 2ab``: a design
for a gradient puts points within a thousandth of a length-scale of each other.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from functools import singledispatch
from typing import Any

import torch
from gpytorch.kernels import Kernel, MaternKernel, PolynomialKernel, RBFKernel, ScaleKernel
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from typing_extensions import override

from botorch_dp.models.finite import matern_52
from botorch_dp.models.public import frozen_kernel

_SQRT5 = math.sqrt(5.0)
#: From as many on, distances take less time as products than as differences.
_MANY_INPUTS = 32


class KernelDerivatives(nn.Module, ABC):
    """A kernel with what Gaussian-process gradients need of its derivatives.

    ``length_scales`` is the ``d``- or ``1``-dim unit in which designs measure a radius.
    """

    length_scales: Tensor
    #: Whether finitely many functions span the kernel's, as polynomials do.
    has_finite_rank: bool = False

    def __init__(self, length_scales: Tensor) -> None:
        super().__init__()
        self.register_buffer("length_scales", length_scales)

    @abstractmethod
    def value(self, X1: Tensor, X2: Tensor) -> Tensor:
        """``k(X1, X2)``: ``... x N x d`` and ``... x M x d`` to ``... x N x M``."""

    @abstractmethod
    def diagonal(self, X: Tensor) -> Tensor:
        """``k(x, x)`` for every row: ``... x N x d`` to ``... x N``."""

    @abstractmethod
    def gradient(self, location: Tensor, X: Tensor) -> Tensor:
        """``d k(location, X) / d location``: ``d`` and ``... x N x d`` to ``... x d x N``."""

    @abstractmethod
    def gradient_covariance(self, location: Tensor) -> Tensor:
        """Prior covariance of the gradient at ``location``, ``d x d``."""


class RadialDerivatives(KernelDerivatives):
    """A stationary kernel ``profile(r)`` of the scaled distance ``r = |(x - z) / length_scales|``.

    With ``fall(r) = -profile'(r) / r``, which stays finite at zero for a twice-differentiable
    kernel, the gradient is ``fall(r) (z - x) / length_scales^2`` and the prior covariance of the
    gradient is ``fall(0) / length_scales^2`` on the diagonal.
    """

    fall_at_zero: float

    @staticmethod
    @abstractmethod
    def profile(r: Tensor) -> Tensor:
        """The kernel as a function of the scaled distance, 1 at zero."""

    @staticmethod
    @abstractmethod
    def fall(r: Tensor) -> Tensor:
        """``-profile'(r) / r``."""

    @override
    def value(self, X1: Tensor, X2: Tensor) -> Tensor:
        return _RadialValue.apply(X1 / self.length_scales, X2 / self.length_scales, self)

    @override
    def diagonal(self, X: Tensor) -> Tensor:
        return X.new_ones(X.shape[:-1])

    @override
    def gradient(self, location: Tensor, X: Tensor) -> Tensor:
        offsets = (X - location) / self.length_scales  # ... x N x d
        r = torch.linalg.vector_norm(offsets, dim=-1, keepdim=True)
        return (self.fall(r) * (offsets / self.length_scales)).mT

    @override
    def gradient_covariance(self, location: Tensor) -> Tensor:
        if self.length_scales.numel() not in (1, len(location)):
            raise ValueError(
                f"`kernel` has {self.length_scales.numel()} length-scales (ard_num_dims) for "
                f"{len(location)} inputs."
            )
        steepest = self.fall_at_zero / self.length_scales.square()
        return torch.diag_embed(steepest.expand_as(location))


class _RadialValue(torch.autograd.Function):
    """``profile`` of all distances, whose derivative needs its fall but no square root.

    Through a distance, automatic differentiation has zero over zero where points coincide.
    """

    @staticmethod
    def forward(ctx: Any, X1: Tensor, X2: Tensor, kernel: RadialDerivatives) -> Tensor:
        # ... x N x d and ... x M x d to ... x N x M.
        if X1.shape[-1] < _MANY_INPUTS:
            r = torch.cdist(X1, X2, compute_mode="donot_use_mm_for_euclid_dist")
        else:  # by products; around the middle of the points, they lose no digit that counts
            middle = X2.mean(-2, keepdim=True)
            r = torch.cdist(X1 - middle, X2 - middle, compute_mode="use_mm_for_euclid_dist")
        ctx.kernel = kernel
        ctx.save_for_backward(X1, X2, r)
        return kernel.profile(r)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        X1, X2, r = ctx.saved_tensors
        weights = gradients[0] * ctx.kernel.fall(r)  # times (z - x) is the derivative in x
        needs_first, needs_second, _ = ctx.needs_input_grad
        first = weights @ X2 - weights.sum(-1, keepdim=True) * X1 if needs_first else None
        second = weights.mT @ X1 - weights.sum(-2).unsqueeze(-1) * X2 if needs_second else None
        return first, second, None


class _RBFDerivatives(RadialDerivatives):
    """``exp(-r^2 / 2)``."""

    fall_at_zero = 1.0

    @staticmethod
    @override
    def profile(r: Tensor) -> Tensor:
        return torch.exp(-0.5 * r * r)

    fall = profile


class Matern52Derivatives(RadialDerivatives):
    """``(1 + s + s^2 / 3) exp(-s)`` with ``s = sqrt(5) r``."""

    fall_at_zero = 5.0 / 3.0

    @staticmethod
    @override
    def profile(r: Tensor) -> Tensor:
        return matern_52(5.0 * r * r)

    @staticmethod
    @override
    def fall(r: Tensor) -> Tensor:
        s = _SQRT5 * r
        return (5.0 / 3.0) * (1 + s) * torch.exp(-s)


class _PolynomialDerivatives(KernelDerivatives):
    """``(x^T z + offset)^power``; it has no length-scale, so designs use the inputs' own unit."""

    offset: Tensor
    has_finite_rank = True

    def __init__(self, offset: Tensor, power: int) -> None:
        super().__init__(torch.ones_like(offset).reshape(1))
        self.register_buffer("offset", offset)
        self.power = power

    def value(self, X1: Tensor, X2: Tensor) -> Tensor:
        return (X1 @ X2.mT + self.offset).pow(self.power)

    def diagonal(self, X: Tensor) -> Tensor:
        return (X.square().sum(-1) + self.offset).pow(self.power)

    def gradient(self, location: Tensor, X: Tensor) -> Tensor:
        inner = (X @ location + self.offset).unsqueeze(-1)  # ... x N x 1
        return (self.power * inner.pow(self.power - 1) * X).mT

    def gradient_covariance(self, location: Tensor) -> Tensor:
        p, inner = self.power, location.square().sum() + self.offset
        covariance = (
            p
            * inner.pow(p - 1)
            * torch.eye(len(location), dtype=location.dtype, device=location.device)
        )
        if p > 1:
            covariance = covariance + p * (p - 1) * inner.pow(p - 2) * location.outer(location)
        return covariance


class ScaledDerivatives(KernelDerivatives):
    """``scale * k``."""

    scale: Tensor

    def __init__(self, base: KernelDerivatives, scale: Tensor) -> None:
        super().__init__(base.length_scales)
        self.base = base
        self.has_finite_rank = base.has_finite_rank
        self.register_buffer("scale", scale)

    @override
    def value(self, X1: Tensor, X2: Tensor) -> Tensor:
        return self.scale * self.base.value(X1, X2)

    @override
    def diagonal(self, X: Tensor) -> Tensor:
        return self.scale * self.base.diagonal(X)

    @override
    def gradient(self, location: Tensor, X: Tensor) -> Tensor:
        return self.scale * self.base.gradient(location, X)

    @override
    def gradient_covariance(self, location: Tensor) -> Tensor:
        return self.scale * self.base.gradient_covariance(location)


def kernel_derivatives(kernel: Kernel, like: Tensor) -> KernelDerivatives:
    """The derivatives of ``kernel`` with its present hyper-parameters, as constants.

    Args:
        kernel: A GPyTorch kernel without a batch shape. It is copied: later changes of its
            hyper-parameters have no effect on the result.
        like: A tensor whose dtype and device the result has.

    Raises:
        ValueError: If the kernel is batched, has too few derivatives, or no closed form.

    Example:
        >>> location = torch.zeros(3, dtype=torch.double)
        >>> derivatives = kernel_derivatives(MaternKernel(nu=2.5), like=location)
        >>> derivatives.gradient_covariance(location)
    """
    return _derivatives(frozen_kernel(kernel, like)).to(like)


def _derivatives(kernel: Kernel) -> KernelDerivatives:
    # By exact class: a subclass may compute something else (RBFKernelGrad does).
    known = type(kernel) if kernel.active_dims is None else object
    return derivatives_of.registry.get(known, derivatives_of.registry[object])(kernel)


@singledispatch
def derivatives_of(kernel: Kernel) -> KernelDerivatives:
    """Derivatives of one kernel class; register further ones here."""
    raise ValueError(
        f"`kernel` {type(kernel).__name__} has no closed form here. Use RBFKernel, "
        "MaternKernel(nu=2.5), PolynomialKernel or a scaling of them, of all inputs, or register "
        "closed forms with `derivatives_of.register`."
    )


@derivatives_of.register
def _rbf(kernel: RBFKernel) -> KernelDerivatives:
    return _RBFDerivatives(kernel.lengthscale.detach().reshape(-1))


@derivatives_of.register
def _matern(kernel: MaternKernel) -> KernelDerivatives:
    if kernel.nu != 2.5:
        raise ValueError(
            f"`kernel` MaternKernel(nu={kernel.nu}) is not smooth enough for gradients: a design "
            "around a location needs a kernel that is twice differentiable there, with a "
            "differentiable remainder. Use MaternKernel(nu=2.5) or RBFKernel."
        )
    return Matern52Derivatives(kernel.lengthscale.detach().reshape(-1))


@derivatives_of.register
def _polynomial(kernel: PolynomialKernel) -> KernelDerivatives:
    if kernel.power != int(kernel.power) or kernel.power < 1:
        raise ValueError(
            f"`kernel` PolynomialKernel needs a positive integer power, got {kernel.power}."
        )
    return _PolynomialDerivatives(kernel.offset.detach().reshape(()), int(kernel.power))


@derivatives_of.register
def _scaled(kernel: ScaleKernel) -> KernelDerivatives:
    return ScaledDerivatives(
        _derivatives(kernel.base_kernel), kernel.outputscale.detach().reshape(())
    )
