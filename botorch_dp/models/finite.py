"""Gaussian processes on a finite set: an exact posterior, and how much can be learned of it."""

from __future__ import annotations

import math

import torch
from gpytorch.kernels import (
    AdditiveKernel,
    Kernel,
    MaternKernel,
    ProductKernel,
    RBFKernel,
    ScaleKernel,
)
from torch import Tensor

from botorch_dp._checks import check_integer, check_nonnegative, check_positive, check_tensor
from botorch_dp.models.public import frozen_kernel, prior_variance

_FIRST_CAPACITY = 16
# Least noise the factor is computed with, in units of rounding at the largest prior variance. A
# crowd of exact observations has a numerically singular covariance: with less, errors explode.
_NOISE_FLOOR = 4096
# Kernels known to evaluate k(x, z_i) for one x with ``diag=True``, without a matrix of pairs:
# several times faster than a row of that matrix, and from explicit differences, so that equal
# points are 0 apart.
_ELEMENTWISE_KERNELS = {RBFKernel, MaternKernel, ScaleKernel, AdditiveKernel, ProductKernel}


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
        noise_variance: Variance of the observation noise; zero for exact observations. The
            factor is computed with no less than about 1e-12 of the prior variance (in double
            precision), which keeps repeated and crowded exact observations harmless.

    Example:
        >>> choices = torch.linspace(0, 1, 1000, dtype=torch.double).unsqueeze(-1)
        >>> gp = FiniteSetGP(choices, kernel=RBFKernel(), noise_variance=1e-2)
        >>> gp.observe(500, 0.7)
        >>> best = int((gp.mean + 2 * gp.variance.sqrt()).argmax())
    """

    def __init__(self, choices: Tensor, *, kernel: Kernel, noise_variance: float) -> None:
        check_tensor("choices", choices, shape=(None, None))
        self.choices = choices.detach()
        self.noise_variance = check_nonnegative("noise_variance", noise_variance)
        self._kernel = frozen_kernel(kernel, self.choices)
        parts = [part for part in self._kernel.modules() if isinstance(part, Kernel)]
        self._elementwise = all(type(part) in _ELEMENTWISE_KERNELS for part in parts)
        variance = prior_variance(self._kernel, self.choices)
        precision = torch.finfo(self.choices.dtype)
        floor = _NOISE_FLOOR * precision.eps * variance.max().item()
        self._noise = max(self.noise_variance, floor, precision.tiny)
        self._mean = torch.zeros_like(variance)
        self._variance = variance.clone()  # kernels may answer with an expanded tensor
        self._rows = self._mean.new_empty(0, self.num_choices)  # capacity x n
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
        r"""``1/2 sum_t log(1 + variance_{t-1}(x_t) / s)``: what the observations tell of ``f``.

        Infinite once something was observed without noise.
        """
        return self._information_gain

    def upper_confidence_bound(self, beta: float) -> Tensor:
        """``mean + sqrt(beta * variance)`` at each choice: an ``n``-vector."""
        width = math.sqrt(check_nonnegative("beta", beta))
        return self._variance.sqrt().mul_(width).add_(self._mean)

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
        variance = self._variance[index].item()
        pivot = variance + self._noise
        row = self._next_row()
        self._covariance(index, out=row)
        row /= math.sqrt(pivot)
        self._num_observations += 1
        self._mean.add_(row, alpha=(y - self._mean[index].item()) / math.sqrt(pivot))
        self._variance.addcmul_(row, row, value=-1.0).clamp_min_(0.0)
        self._information_gain += (
            0.5 * math.log1p(variance / self.noise_variance)
            if self.noise_variance > 0
            else math.inf
        )

    def _covariance(self, index: int, *, out: Tensor) -> None:
        """Write the posterior covariance of the choice with all choices (n) to ``out``."""
        rows = self._rows[: self._num_observations]  # t x n
        torch.addmv(self._prior_covariance(index), rows.T, rows[:, index], alpha=-1.0, out=out)

    def _prior_covariance(self, index: int) -> Tensor:
        """Prior covariance of the choice with all choices: an ``n``-vector."""
        choice = self.choices[index : index + 1]
        if self._elementwise:
            return self._kernel(choice, self.choices, diag=True)
        return self._kernel(choice, self.choices).to_dense().squeeze(0)

    def _next_row(self) -> Tensor:
        """The memory of the next row, in a matrix that doubles when it is full."""
        if self._num_observations == len(self._rows):
            # Memory that was not yet written to costs nothing.
            capacity = max(_FIRST_CAPACITY, 2 * self._num_observations)
            grown = self._rows.new_empty(capacity, self.num_choices)
            grown[: self._num_observations] = self._rows
            self._rows = grown
        return self._rows[self._num_observations]

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(num_choices={self.num_choices}, "
            f"num_observations={self.num_observations}, noise_variance={self.noise_variance:g})"
        )


def max_information_gain(
    kernel: Kernel, choices: Tensor, *, num_observations: int, noise_variance: float
) -> float:
    r"""An upper bound on the maximum information gain ``gamma_T`` of [Srinivas2010].

    ``gamma_T = max 1/2 log det(I + K_A / s)`` over all ``A`` of ``T`` choices, repetitions allowed.
    The gain is monotone and submodular in ``A``. Hence, with ``F_j`` the gain of the first ``j``
    greedy choices and ``g_{j+1}`` the next greedy increment,

    ``gamma_T <= F_T / (1 - 1/e)`` [Nemhauser1978]  and  ``gamma_T <= F_j + T g_{j+1}``, ``j < T``,

    since no choice adds more to the first ``j`` than ``g_{j+1}``. The least of these is returned.
    It depends on public values only.

    Args:
        kernel: The prior covariance.
        choices: An ``n x d`` tensor.
        num_observations: The number ``T`` of observations.
        noise_variance: Variance ``s`` of the observation noise; must be positive.

    Example:
        >>> choices = torch.linspace(0, 1, 100, dtype=torch.double).unsqueeze(-1)
        >>> gamma = max_information_gain(
        ...     RBFKernel(), choices, num_observations=20, noise_variance=0.01
        ... )
    """
    steps = check_integer("num_observations", num_observations)
    check_positive("noise_variance", noise_variance)
    gp = FiniteSetGP(choices, kernel=kernel, noise_variance=noise_variance)
    bound = math.inf
    for _ in range(steps):
        best = int(gp.variance.argmax())
        increment = 0.5 * math.log1p(gp.variance[best].item() / noise_variance)
        bound = min(bound, gp.information_gain + steps * increment)
        gp.observe(best, 0.0)
    return min(bound, gp.information_gain / (1 - 1 / math.e))
