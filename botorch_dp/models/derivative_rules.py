"""What Gaussian-process gradients need of a kernel, and how it passes to kernels of kernels.

The gradient of a Gaussian process is a Gaussian process too, and all that is needed of the kernel
``k`` to work with its gradient at one location ``x`` is

    k(X1, X2),    d/dx k(x, z),    d^2/(dx dx'^T) k(x, x') at x' = x.

The last one is the prior covariance of the gradient. Here are this interface and the rules for
scaling, adding, multiplying and restricting kernels to some inputs; ``kernel_derivatives.py`` has
the kernels themselves.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import override


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


class SummedDerivatives(KernelDerivatives):
    """``k_1 + k_2 + ...``; the shortest length-scale of the parts counts."""

    def __init__(self, parts: Sequence[KernelDerivatives]) -> None:
        super().__init__(shortest_length_scale(parts))
        self.parts: Any = nn.ModuleList(parts)
        self.has_finite_rank = all(part.has_finite_rank for part in parts)

    @override
    def value(self, X1: Tensor, X2: Tensor) -> Tensor:
        return torch.stack([part.value(X1, X2) for part in self.parts]).sum(0)

    @override
    def diagonal(self, X: Tensor) -> Tensor:
        return torch.stack([part.diagonal(X) for part in self.parts]).sum(0)

    @override
    def gradient(self, location: Tensor, X: Tensor) -> Tensor:
        return torch.stack([part.gradient(location, X) for part in self.parts]).sum(0)

    @override
    def gradient_covariance(self, location: Tensor) -> Tensor:
        return torch.stack([part.gradient_covariance(location) for part in self.parts]).sum(0)


class ProductDerivatives(KernelDerivatives):
    """``k_1 k_2``, by the product rule."""

    def __init__(self, left: KernelDerivatives, right: KernelDerivatives) -> None:
        super().__init__(shortest_length_scale((left, right)))
        self.left = left
        self.right = right
        self.has_finite_rank = left.has_finite_rank and right.has_finite_rank

    @override
    def value(self, X1: Tensor, X2: Tensor) -> Tensor:
        return self.left.value(X1, X2) * self.right.value(X1, X2)

    @override
    def diagonal(self, X: Tensor) -> Tensor:
        return self.left.diagonal(X) * self.right.diagonal(X)

    @override
    def gradient(self, location: Tensor, X: Tensor) -> Tensor:
        at = location.unsqueeze(-2)  # 1 x d; the values below are ... x 1 x N
        return self.left.gradient(location, X) * self.right.value(at, X) + self.left.value(
            at, X
        ) * self.right.gradient(location, X)

    @override
    def gradient_covariance(self, location: Tensor) -> Tensor:
        at = location.unsqueeze(-2)
        left, right = (part.diagonal(at).squeeze(-1) for part in (self.left, self.right))
        # At coincident arguments the derivatives in the first and in the second are equal.
        slope_left, slope_right = (
            part.gradient(location, at).squeeze(-1) for part in (self.left, self.right)
        )
        crossed = slope_left.outer(slope_right)
        return (
            left * self.right.gradient_covariance(location)
            + right * self.left.gradient_covariance(location)
            + crossed
            + crossed.mT
        )


class RestrictedDerivatives(KernelDerivatives):
    """A kernel of some of the inputs (``active_dims``); the gradient in the others is zero."""

    dims: Tensor

    def __init__(self, base: KernelDerivatives, dims: Tensor) -> None:
        # The other inputs have no length-scale; the shortest of these keeps designs local.
        super().__init__(shortest_length_scale((base,)))
        self.base = base
        self.has_finite_rank = base.has_finite_rank
        self.register_buffer("dims", dims)

    @override
    def value(self, X1: Tensor, X2: Tensor) -> Tensor:
        return self.base.value(X1.index_select(-1, self.dims), X2.index_select(-1, self.dims))

    @override
    def diagonal(self, X: Tensor) -> Tensor:
        return self.base.diagonal(X.index_select(-1, self.dims))

    @override
    def gradient(self, location: Tensor, X: Tensor) -> Tensor:
        inner = self.base.gradient(location[self.dims], X.index_select(-1, self.dims))
        return torch.zeros_like(X.mT).index_copy(-2, self.dims, inner)

    @override
    def gradient_covariance(self, location: Tensor) -> Tensor:
        inner = self.base.gradient_covariance(location[self.dims])
        full = location.new_zeros(len(location), len(location))
        full[self.dims.unsqueeze(-1), self.dims] = inner
        return full


def shortest_length_scale(parts: Sequence[KernelDerivatives]) -> Tensor:
    """The shortest length-scale of all parts, as a ``1``-dim tensor."""
    return torch.stack([part.length_scales.min() for part in parts]).min().reshape(1)
