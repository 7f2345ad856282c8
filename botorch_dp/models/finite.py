"""Gaussian processes on a finite set: an exact posterior, and how much can be learned of it."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from gpytorch.kernels import Kernel, MaternKernel, RBFKernel, ScaleKernel
from torch import Tensor

from botorch_dp._checks import check_integer, check_nonnegative, check_positive, check_tensor
from botorch_dp.models.public import frozen_kernel, prior_variance

# Least noise the factor is computed with, in units of rounding at the largest prior variance. A
# crowd of exact observations has a numerically singular covariance: with less, errors explode.
_NOISE_FLOOR = 4096
# Rows of the posterior's factor to make room for at first; later as many again as there are.
_FIRST_ROWS = 16
# Choices treated at a time. With a kernel in closed form, all intermediate results of a chunk stay
# in the processor's cache, and the choices' coordinates take up to this many numbers of it.
_CHUNK, _CHUNK_NUMBERS = 32_768, 2**18
# GPyTorch's kernels take some tenths of a millisecond for each call.
_CHUNK_OF_OTHER_KERNELS = 2**20

#: From squared differences in each of ``d`` coordinates (``d x m``) to new covariances (``m``).
ClosedForm = Callable[[Tensor], Tensor]


class FiniteSetGP:
    r"""Zero-mean Gaussian process on a finite set, with mean and variance kept up to date.

    With ``t`` observations at the choices ``x_1, ..., x_t`` and ``L L^T = K_tt + s I`` their
    Cholesky factor, the posterior at all ``n`` choices follows from the ``t x n`` matrix
    ``V = L^{-1} K_tn``:

    ``mean = V^T L^{-1} y``, ``variance = diag(K_nn) - sum_rows(V^2)``.

    A further observation adds one row to ``V``, in ``O(n t)`` time; no ``n x n`` matrix is formed.
    The kernel is copied and never trained, so the prior stays what it was.

    Args:
        choices: An ``n x d`` tensor; its dtype and device are those of all results.
        kernel: Any GPyTorch kernel of one output.
        noise_std: Standard deviation of the observation noise; zero for exact observations. The
            factor is computed with no less than about 1e-12 of the prior variance (in double
            precision), which keeps repeated and crowded exact observations harmless.

    Example:
        >>> choices = torch.linspace(0, 1, 1000, dtype=torch.double).unsqueeze(-1)
        >>> gp = FiniteSetGP(choices, kernel=RBFKernel(), noise_std=0.1)
        >>> gp.observe(500, 0.7)
        >>> best = int((gp.mean + 2 * gp.variance.sqrt()).argmax())
    """

    def __init__(self, choices: Tensor, *, kernel: Kernel, noise_std: float) -> None:
        check_tensor("choices", choices, shape=("m", "d"))
        # One coordinate after the other, for long passes through the memory.
        self._columns = choices.detach().T.contiguous()  # d x n
        self.choices = self._columns.T
        self.noise_std = check_nonnegative("noise_std", noise_std)
        self._kernel = frozen_kernel(kernel, self.choices)
        dim = self.choices.shape[-1]
        self._closed_form = closed_form(self._kernel, torch.arange(dim, device=choices.device), dim)
        if self._closed_form is None:
            self._chunk = _CHUNK_OF_OTHER_KERNELS
            parts = [prior_variance(self._kernel, part) for part in self.choices.split(self._chunk)]
            variance = torch.cat(parts)
        else:
            chunk = min(_CHUNK, max(_CHUNK_NUMBERS // dim, 1024))
            self._chunk = math.ceil(len(self.choices) / max(round(len(self.choices) / chunk), 1))
            variance = self._closed_form(self._columns.new_zeros(dim, 1)).repeat(len(self.choices))
        precision = torch.finfo(self.choices.dtype)
        floor = _NOISE_FLOOR * precision.eps * variance.max().item()
        self._noise = max(self.noise_std**2, floor, precision.tiny)
        self._mean = torch.zeros_like(variance)
        self._variance = variance
        self._blocks: list[Tensor] = []  # the rows of V in blocks, room for later ones included
        self._num_observations = 0
        self._information_gain = 0.0

    @property
    def num_choices(self) -> int:
        """The number ``n`` of choices."""
        return len(self.choices)

    @property
    def num_observations(self) -> int:
        """The number ``t`` of observations, repeated ones included."""
        return self._num_observations

    @property
    def mean(self) -> Tensor:
        """Posterior mean of the function at each choice: a new ``n``-vector."""
        return self._mean.clone()

    @property
    def variance(self) -> Tensor:
        """Posterior variance of the function (without noise) at each choice: a new ``n``-vector."""
        return self._variance.clone()

    @property
    def information_gain(self) -> float:
        r"""``1/2 sum_t log(1 + variance_{t-1}(x_t) / s^2)``: what the observations tell of ``f``.

        Infinite once something was observed without noise.
        """
        return self._information_gain

    def upper_confidence_bound(self, beta: float) -> Tensor:
        """``mean + sqrt(beta * variance)`` at each choice: an ``n``-vector."""
        width = math.sqrt(check_nonnegative("beta", beta))
        bound = self._variance.sqrt()
        return torch.add(self._mean, bound, alpha=width, out=bound)

    def observe(self, index: int, y: float) -> None:
        """Condition on the observation ``y`` of the choice with this index.

        Args:
            index: Row of ``choices``, counted from 0.
            y: The observed value.
        """
        index = check_integer("index", index, at_least=0, at_most=self.num_choices - 1)
        if not math.isfinite(y):
            raise ValueError("`y` must be a finite number; the model cannot learn from NaN or inf.")
        with torch.no_grad():
            self._condition(index, float(y))

    def _condition(self, index: int, y: float) -> None:
        rows = self._rows()
        past = [row[:, index].clone() for row in rows]
        # One wait for the device.
        mean, variance = torch.stack((self._mean[index], self._variance[index])).tolist()
        scale = 1 / math.sqrt(variance + self._noise)
        new = self._new_row()
        for start in range(0, self.num_choices, self._chunk):
            part = slice(start, start + self._chunk)
            row = torch.mul(self._prior_covariance(index, part), scale, out=new[part])
            for block, weights in zip(rows, past, strict=True):
                row.addmv_(block[:, part].T, weights, alpha=-scale)
            self._mean[part].add_(row, alpha=(y - mean) * scale)
            self._variance[part].addcmul_(row, row, value=-1.0).clamp_min_(0.0)
        self._num_observations += 1
        self._information_gain += (
            0.5 * math.log1p(variance / self.noise_std**2) if self.noise_std > 0 else math.inf
        )

    def _prior_covariance(self, index: int, part: slice) -> Tensor:
        """Prior covariance of the choice with those of a slice: a new ``m``-vector."""
        if self._closed_form is None:
            choice = self.choices[index : index + 1]
            return self._kernel(choice, self.choices[part]).to_dense().squeeze(0)
        differences = self._columns[:, part] - self._columns[:, index : index + 1]  # d x m
        return self._closed_form(differences.square_())

    def _rows(self) -> list[Tensor]:
        """The blocks of ``V`` without the room for later rows: ``t_1 x n``, ``t_2 x n``, ..."""
        left = self._num_observations
        rows = []
        for block in self._blocks:
            rows.append(block[:left])
            left -= len(rows[-1])
        return [block for block in rows if len(block)]

    def _new_row(self) -> Tensor:
        """The memory of the next row; blocks double, and what is there is never copied."""
        filled = self._num_observations
        for block in self._blocks:
            if filled < len(block):
                return block[filled]
            filled -= len(block)
        # Memory that was not yet written to costs nothing.
        rows = max(_FIRST_ROWS, self._num_observations)
        self._blocks.append(self._mean.new_empty(rows, self.num_choices))
        return self._blocks[-1][0]


def closed_form(kernel: Kernel, dims: Tensor, num_dims: int) -> ClosedForm | None:
    """The kernel as a function of squared differences, or None if it is not known to be one.

    Explicit differences are exact where choices are equal, and there is no GPyTorch in between:
    its lazy matrices take several times as long as the arithmetic.

    Args:
        kernel: An RBF or a Matern-5/2 kernel, or a scaling of one; others give None.
        dims: The coordinates that the kernel is given.
        num_dims: The number ``d`` of coordinates that there are.
    """
    kind = type(kernel)  # a subclass may compute something else
    inherited = kind is ScaleKernel and kernel.base_kernel.active_dims is not None
    if kernel.active_dims is not None and not inherited:
        dims = dims[kernel.active_dims]
    if kind is ScaleKernel:
        base = closed_form(kernel.base_kernel, dims, num_dims)
        return base and partial(_scaled, base=base, scale=kernel.outputscale.detach().reshape(()))
    profile: Any
    if kind is RBFKernel:
        profile, factor = torch.Tensor.exp_, -0.5
    elif kind is MaternKernel and kernel.nu == 2.5:
        profile, factor = matern_52, 5.0
    else:
        return None
    lengthscales = kernel.lengthscale.detach().reshape(-1)
    weights = lengthscales.new_zeros(num_dims)  # zero: the kernel does not see the coordinate
    weights[dims] = (factor * lengthscales.reciprocal().square()).expand(len(dims))
    return partial(_stationary, profile=profile, weights=weights)


def _scaled(squares: Tensor, base: ClosedForm, scale: Tensor) -> Tensor:
    return base(squares).mul_(scale)


def _stationary(squares: Tensor, profile: ClosedForm, weights: Tensor) -> Tensor:
    return profile(squares.T @ weights)


def matern_52(s2: Tensor) -> Tensor:
    """``(1 + s + s^2 / 3) exp(-s)`` of ``s^2 = 5 r^2``."""
    s = s2.sqrt()
    decay = s.neg().exp_()
    return s.add_(s2, alpha=1 / 3).add_(1.0).mul_(decay)


def max_information_gain(
    kernel: Kernel, choices: Tensor, *, num_observations: int, noise_std: float
) -> float:
    r"""An upper bound on the maximum information gain ``gamma_T`` of [Srinivas2010].

    ``gamma_T = max 1/2 log det(I + K_A / s^2)`` over all ``A`` of ``T`` choices, repetitions
    allowed. The gain is monotone and submodular in ``A``. Hence, with ``F_j`` the gain of the first
    ``j`` greedy choices and ``g_{j+1}`` the next greedy increment,

    ``gamma_T <= F_T / (1 - 1/e)`` [Nemhauser1978]  and  ``gamma_T <= F_j + T g_{j+1}``, ``j < T``,

    since no choice adds more to the first ``j`` than ``g_{j+1}``. The least of these is returned.
    It depends on public values only.

    Args:
        kernel: The prior covariance.
        choices: An ``n x d`` tensor.
        num_observations: The number ``T`` of observations.
        noise_std: Standard deviation ``s`` of the observation noise; must be positive.

    Example:
        >>> choices = torch.linspace(0, 1, 100, dtype=torch.double).unsqueeze(-1)
        >>> gamma = max_information_gain(RBFKernel(), choices, num_observations=20, noise_std=0.1)
    """
    steps = check_integer("num_observations", num_observations, at_most=10**6)
    check_positive("noise_std", noise_std)
    gp = FiniteSetGP(choices, kernel=kernel, noise_std=noise_std)
    bound = math.inf
    for _ in range(steps):
        best = int(gp._variance.argmax())
        increment = 0.5 * math.log1p(gp._variance[best].item() / noise_std**2)
        bound = min(bound, gp.information_gain + steps * increment)
        gp.observe(best, 0.0)
    return min(bound, gp.information_gain / (1 - 1 / math.e))
