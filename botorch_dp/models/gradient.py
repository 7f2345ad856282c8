r"""The gradient of a Gaussian process at one location: its posterior, and what would narrow it.

With ``C = d/dx k(x, D)`` and ``K = k(D, D) + noise``, the gradient at ``x`` given values at ``D``
is normal with

    mean        C K^{-1} y,
    covariance  d^2 k(x, x') / (dx dx'^T) - C K^{-1} C^T,

and observing ``Z`` as well lowers the covariance's trace by ``tr(A S^{-1} A^T)`` with
``A = Cov(gradient, f(Z) | D)`` and ``S = Cov(f(Z) | D) + noise`` [Mueller2021]. Neither depends
on the values, so designs can be chosen before anything is observed.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any, cast

import numpy as np
import torch
from botorch.models.gpytorch import GPyTorchModel
from botorch.models.kernels import CategoricalKernel
from botorch.models.model import Model, ModelList
from botorch.models.multitask import KroneckerMultiTaskGP, MultiTaskGP
from botorch.models.transforms.outcome import Standardize
from botorch.utils.transforms import is_ensemble
from gpytorch.models import ExactGP
from numpy.typing import NDArray
from scipy.linalg import lapack
from torch import Tensor, nn

from botorch_dp._checks import check_tensor
from botorch_dp.models.kernels import Array, KernelDerivatives, kernel_derivatives, namespace

# A new point whose variance, given the points kept so far, is below this fraction of the largest
# prior variance is a linear combination of them as far as the arithmetic can tell. As a power of
# the rounding error: 7e-11 in double, 3e-5 in single precision. Rounding leaves up to 3e-11 where
# a polynomial kernel is spanned; a design of radius 1e-3 length-scales needs 1e-6.
_DEPENDENCE_EXPONENT = 0.65
# One set of points is compared as NumPy arrays if it takes at most so many products: 11 points
# with 300 old ones. Beyond, the arithmetic takes the time, and torch's threads are those to use.
_LARGEST_OF_ARRAYS = 2**20


class KernelFactor:
    """Lower-triangular ``root`` with ``root root^T = k(points, points) + diag(noise)``.

    Points are added by blocks: the old part of the factor is kept, so ``b`` new rows cost
    ``O(N^2 b)`` instead of ``O(N^3)``. A point that depends linearly on those already kept (a
    repeated point without noise; any point once a polynomial kernel is spanned) is left out: it
    carries no information, and a plain Cholesky factorization fails on it.

    Example:
        >>> factor = KernelFactor.empty(kernel_derivatives(RBFKernel(), like=X), dim=X.shape[-1])
        >>> factor, kept = factor.extended(X)
    """

    def __init__(self, derivatives: KernelDerivatives, points: Tensor, root: Tensor) -> None:
        """Hold ``N x d`` independent points and their ``N x N`` factor."""
        self.derivatives = derivatives
        self.points = points
        self.root = root

    @classmethod
    def empty(cls, derivatives: KernelDerivatives, dim: int) -> KernelFactor:
        """The factor of no points in ``dim`` dimensions."""
        unit = derivatives.length_scales
        return cls(derivatives, unit.new_zeros(0, dim), unit.new_zeros(0, 0))

    def __len__(self) -> int:
        return self.points.shape[0]  # a tensor's own length takes ten times as long

    def extended(self, X: Tensor, noise: Tensor | float = 0.0) -> tuple[KernelFactor, Tensor]:
        """A factor that also has those rows of ``X`` that are independent of all before them.

        Args:
            X: New points, ``b x d``.
            noise: The variance of each one's observation noise, a number or a ``b``-vector.

        Returns:
            The new factor and the indices of the rows of ``X`` that were kept, in the order of
            their addition.
        """
        if len(X) == 0:
            return self, torch.zeros(0, dtype=torch.long, device=X.device)
        old = len(self)
        with torch.no_grad():
            points = torch.cat((self.points, X))
            between, within = self.derivatives.value(points, X).split_with_sizes((old, X.shape[0]))
            crossed = self.whiten(between)  # N x b
            remaining = torch.addmm(within, crossed.mT, crossed, alpha=-1)
            remaining.diagonal().add_(noise)
            limit = torch.finfo(X.dtype).eps ** _DEPENDENCE_EXPONENT
            limit = limit * self.derivatives.largest_variance(points)
            corner, kept = _independent_cholesky(remaining, limit)
            new = kept.shape[0]
            if new < X.shape[0]:
                points, crossed = torch.cat((self.points, X[kept])), crossed[:, kept]
            root = X.new_empty(old + new, old + new)
            torch.cat((self.root, X.new_zeros(old, new)), dim=1, out=root[:old])
            torch.cat((crossed.mT, corner), dim=1, out=root[old:])
        return KernelFactor(self.derivatives, points, root), kept

    def without_oldest(self, count: int) -> KernelFactor:
        """The factor without its first ``count`` points.

        With the remaining rows ``R`` of the factor, the new one is the triangle of a QR
        factorization of ``R^T``: nothing is recomputed from the kernel, and nothing can fail.
        """
        triangle = torch.linalg.qr(self.root[count:].mT, mode="r").R
        signs = torch.where(triangle.diagonal() < 0, -1.0, 1.0).to(triangle)
        root = (signs.unsqueeze(-1) * triangle).mT
        return KernelFactor(self.derivatives, self.points[count:], root)

    def whiten(self, B: Tensor) -> Tensor:
        """``root^{-1} B`` for an ``N x m`` matrix."""
        return torch.linalg.solve_triangular(self.root, B, upper=False)


def _independent_cholesky(matrix: Tensor, limit: Tensor | float) -> tuple[Tensor, Tensor]:
    """Cholesky factor over independent rows, those with a pivot above ``limit``, and their indices.

    The rows are taken in order if all are independent, else by the largest pivot.
    """
    root, failed = torch.linalg.cholesky_ex(matrix)
    independent = (root.diagonal().square() > limit).all()
    if bool(independent.logical_and_(failed == 0)):  # one wait for the device
        return root, torch.arange(len(matrix), device=matrix.device)
    pivots = matrix.diagonal().clone()
    columns = torch.zeros_like(matrix)  # column j: the factor's column of the j-th kept row
    kept: list[int] = []
    while len(kept) < len(matrix):
        largest = int(pivots.argmax())
        if not pivots[largest] > limit:
            break
        column = matrix[:, largest] - columns @ columns[largest]
        columns[:, len(kept)] = column / pivots[largest].sqrt()
        pivots = pivots - columns[:, len(kept)].square()
        kept.append(largest)
        pivots[kept] = -1.0
    indices = torch.tensor(kept, dtype=torch.long, device=matrix.device)
    return columns[indices, : len(kept)].tril(), indices


class GradientBelief(nn.Module):
    """The gradient's covariance at ``location`` given noisy values at the points of ``factor``.

    The function's mean is zero, or, with ``unknown_mean``, an unknown constant (the limit of a
    constant with a very large prior variance): then the weights of the values sum to zero, and a
    constant function gets a zero gradient whatever its height.

    Args:
        factor: The points observed so far.
        location: A ``d``-vector.
        unknown_mean: Whether to allow for an unknown constant mean.
        jacobian: A ``d x p`` matrix ``J``: the gradient meant is ``J^T`` times the one in the
            kernel's coordinates. Identity if None.
        scale: The function meant is ``scale`` times the kernel's.
    """

    location: Tensor
    jacobian: Tensor | None
    scale: Tensor | None
    #: The points observed so far, ``N x d``.
    points: Tensor
    root: Tensor
    prior: Tensor
    prior_trace: Tensor
    whitened: Tensor
    gram: Tensor
    #: Covariance of the gradient, ``p x p``.
    covariance: Tensor
    share: Tensor | None
    #: What compares sets of points, by whether they are arrays, once it was asked for.
    _made: dict[bool, _SetTraces]

    def __init__(
        self,
        factor: KernelFactor,
        location: Tensor,
        *,
        unknown_mean: bool = False,
        jacobian: Tensor | None = None,
        scale: Tensor | None = None,
    ) -> None:
        super().__init__()
        self.derivatives: KernelDerivatives = factor.derivatives
        self.unknown_mean = unknown_mean
        with torch.no_grad():
            prior = self.derivatives.gradient_covariance(location)
            if jacobian is not None:
                prior = jacobian.mT @ prior @ jacobian
            if scale is not None:
                prior = scale.square() * prior
            # All at once: registering them one by one takes longer than computing them.
            self._buffers.update(
                location=location,
                jacobian=jacobian,
                scale=scale,
                prior=prior,  # p x p
                prior_trace=prior.diagonal().sum(),
            )
            self._condition(factor)

    def extended(self, factor: KernelFactor) -> GradientBelief:
        """This belief with all points of ``factor``, which must begin with its own."""
        belief = object.__new__(type(self))  # a copy of a module takes ten times as long
        belief.__dict__ = {**self.__dict__, "_buffers": dict(self._buffers)}
        belief._condition(factor, self.whitened)
        return belief

    def _condition(self, factor: KernelFactor, whitened: Tensor | None = None) -> None:
        """Set what depends on the points, given ``W = root^{-1} [C^T, 1]`` for the first of them.

        ``gram`` is ``W^T W``: it says how much of the gradient's covariance the points explain,
        what the constant does to the gradient given the values, and how well they pin it down.
        """
        held: Any = self._buffers
        with torch.no_grad():
            if whitened is None or whitened.shape[0] == 0:
                columns = with_ones(self._gradient(factor.points))  # N x p + 1
                whitened = torch.linalg.solve_triangular(factor.root, columns, upper=False)
                gram = whitened.mT @ whitened
            else:
                old = whitened.shape[0]
                points = factor.points[old:]
                below, corner = factor.root[old:].split_with_sizes((old, points.shape[0]), dim=1)
                columns = with_ones(self._gradient(points)).addmm_(below, whitened, alpha=-1)
                new = torch.linalg.solve_triangular(corner, columns, upper=False)
                whitened = torch.cat((whitened, new))
                gram = torch.addmm(held["gram"], new.mT, new)
            known, effect = gram[:-1].split_with_sizes((gram.shape[0] - 1, 1), dim=1)
            covariance, share = held["prior"] - known, None
            if self.unknown_mean and whitened.shape[0] > 0:  # there are values to tell it by
                share = (effect / gram[-1, -1]).squeeze(1)
                covariance.addr_(share, effect.squeeze(1))
            held.update(
                points=factor.points,
                root=factor.root,
                whitened=whitened,  # N x p + 1
                gram=gram,
                covariance=covariance,  # p x p
                share=share,  # of the constant in each weight, p
            )
        # Setting an attribute of a module takes as long as some of the arithmetic.
        self.__dict__["_made"] = {}

    @property
    def dtype(self) -> torch.dtype:
        """In which all of this is computed."""
        root: Any = self._buffers["root"]
        return root.dtype

    @property
    def crossed(self) -> Tensor:
        """``root^{-1} C^T``, ``N x p``."""
        return self.whitened[:, :-1]

    @property
    def units(self) -> Tensor:
        """How far each coordinate must move for the kernel to notice: its length-scales, ``p``."""
        if self.jacobian is None:
            return self.derivatives.length_scales.expand_as(self.location)
        stretch = torch.linalg.vector_norm(
            self.jacobian / self.derivatives.length_scales.unsqueeze(-1), dim=0
        )
        # An input that the kernel does not see has no length-scale: it gets the shortest one.
        return torch.where(stretch > 0, 1 / stretch, 1 / stretch.max())

    @property
    def trace(self) -> Tensor:
        """Trace of :attr:`covariance`, at least 0 whatever the rounding."""
        held: Any = self._buffers
        return held["covariance"].trace().clamp_min(0)

    @property
    def weights(self) -> Tensor:
        """``N x p`` matrix ``W``: the posterior mean of the gradient is ``W^T y``."""
        held: Any = self._buffers
        share, whitened = held["share"], held["whitened"]
        crossed, ones = whitened.split_with_sizes((whitened.shape[1] - 1, 1), dim=1)
        if share is not None:
            crossed = torch.addr(crossed, ones.squeeze(1), share, alpha=-1)
        return torch.linalg.solve_triangular(held["root"].mT, crossed, upper=True)

    def trace_after(self, X: Tensor, noise: Tensor | float = 0.0) -> Tensor:
        """The trace once values at ``X`` (``... x q x d``) are observed too: shape ``...``.

        Differentiable in ``X``, once. A whole batch costs one product with the factor.
        """
        return -self.negative_trace_after(X, noise)

    def negative_trace_after(self, X: Tensor, noise: Tensor | float = 0.0) -> Tensor:
        """Minus :meth:`trace_after`, for those who maximize it."""
        if X.requires_grad and torch.is_grad_enabled():
            return _NegativeTraceAfter.apply(X, self, noise)
        return self._negative_trace_after(X.detach(), noise, with_slope=False)[0]

    def _negative_trace_after(
        self, X: Tensor, noise: Tensor | float, *, with_slope: bool
    ) -> tuple[Tensor, Tensor | None]:
        """Minus the traces after sets of points (``... x q x d``), and their derivatives."""
        *batch_shape, q, d = X.shape
        num_sets = math.prod(batch_shape)  # b
        if num_sets == 1 and self._suits_arrays(X):
            array = X.numpy().reshape(q, d)
            with np.errstate(over="ignore", invalid="ignore"):  # as torch does
                value, slope = self._sets(as_arrays=True)(array, float(noise), with_slope)
            if value == value:  # else the covariance is singular, or not finite
                found = torch.from_numpy(np.full(batch_shape, value))
                return found, None if slope is None else torch.from_numpy(slope.reshape(X.shape))
        sets = X.reshape((q, d) if num_sets == 1 else (num_sets, q, d))
        value, slope = self._sets(as_arrays=False)(sets, noise, with_slope)
        return value.view(batch_shape), None if slope is None else slope.view(X.shape)

    def _suits_arrays(self, X: Tensor) -> bool:
        """Whether a single set is better an array: where it is calls that take the time."""
        num_points, q = self._buffers["root"].shape[0], X.shape[-2]  # type: ignore[union-attr]
        return (
            X.dtype is torch.double
            and X.is_cpu
            and 0 < num_points * (num_points + q) * q <= _LARGEST_OF_ARRAYS
            and self.derivatives.takes_arrays
        )

    def _sets(self, *, as_arrays: bool) -> _SetTraces:
        made = self._made.get(as_arrays)
        if made is None or made.source is not self._buffers["root"]:  # it was moved since
            made = self._made[as_arrays] = _SetTraces(self, as_arrays)
        return made

    def _gradient(self, X: Tensor) -> Tensor:
        """``d k(location, X) / d location`` in the coordinates of the result, ``M x p``."""
        held: Any = self._buffers  # attributes of modules are slow to find
        gradient = self.derivatives.gradient(held["location"], X).mT
        return _in_result(gradient, held["jacobian"], held["scale"])


class _SetTraces:
    r"""Minus the traces after sets of points: of tensors, or of one set that is a NumPy array.

    With ``V = root^{-1} k(D, X)``, ``W = root^{-1} [C^T, 1]`` and the column of ones only where the
    mean is unknown, ``A = [Cov(gradient, f(X)), 1]^T - V^T W`` and
    ``S = k(X, X) + noise - V^T V``, the trace is a function of ``A^T S^{-1} A``. Its derivative
    needs little but the solution ``S^{-1} A``: automatic differentiation would go through all
    factorizations, and through the eigenvectors of a singular ``S``, whose derivative is not
    finite. Below ``V`` and what follows from it are laid out transposed, a row for each point.

    The formulas are written once, in what tensors and NumPy arrays have in common. At small sizes
    it is calls that take the time, and those of NumPy and LAPACK take a third of torch's.
    """

    def __init__(self, belief: GradientBelief, as_arrays: bool) -> None:
        held: Any = belief._buffers
        #: Another one once the belief was moved to another device or dtype.
        self.source: Tensor = held["root"]

        def given(name: str) -> Array:
            tensor = held[name]
            return tensor.numpy() if as_arrays and tensor is not None else tensor

        self._derivatives = belief.derivatives
        self._anchors = belief.derivatives.anchors(given("location"), given("points"))
        self._root, self._known = given("root"), given("whitened")  # N x N; W, N x p + 1
        self._jacobian, self._scale = given("jacobian"), given("scale")
        self._unknown_mean, gram = belief.unknown_mean, given("gram")
        if not self._unknown_mean:
            self._known = self._known[:, :-1]  # N x p
        self._effect, self._precision = gram[-1, :-1], gram[-1, -1]
        self._trace_without_mean = given("prior").trace() - gram.diagonal()[:-1].sum()

    def __call__(
        self, X: Array, noise: Array | float, with_slope: bool
    ) -> tuple[Array, Array | None]:
        """For one set, ``q x d``, or several, ``b x q x d``; also the derivatives if wanted."""
        known, root, unknown_mean = self._known, self._root, self._unknown_mean
        num_points, p = known.shape
        p -= unknown_mean
        (covariances, gradient), pullback = self._derivatives.covariances(self._anchors, X)
        between, within = covariances[..., :num_points], covariances[..., num_points:]
        values = _solved_by(root, between, transposed=True)  # V^T, (b) x q x N
        remaining = _in_result(gradient, self._jacobian, self._scale)  # (b) x q x p
        if unknown_mean:
            remaining = with_ones(remaining)
        remaining = _minus_product(remaining, values, known)  # A
        covariance = _minus_product(within, values, _transposed(values))  # S
        solution = _solved(covariance, noise, remaining)  # (b) x q x p or p + 1
        products = remaining * solution
        if unknown_mean:
            crossed = (remaining[..., :p] * solution[..., p:]).sum(axis=-2)  # (b) x p
            precision = self._precision + products[..., p].sum(axis=-1, keepdims=True)
            effect = -(self._effect + crossed) / precision  # of the constant, (b) x p
            reduction = products[..., :p].sum(axis=(-2, -1))
            reduction = reduction - (effect * effect * precision).sum(axis=-1)
        else:
            reduction = products.sum(axis=(-2, -1))
        value = reduction - self._trace_without_mean
        if not with_slope:
            return value, None
        moved = direct = solution * -2.0  # minus the derivative in A
        concatenate = namespace(X).concatenate
        if unknown_mean:
            direct = moved[..., :p] + moved[..., p:] * effect[..., None, :]
            moved = concatenate((direct, direct @ effect[..., None]), -1)
        solution = _transposed(solution)
        left = _minus_product(_transposed(known), solution, values)  # (W - V S^{-1} A)^T
        left = _solved_by(root, left, transposed=False)
        slope = pullback(
            moved @ concatenate((left, solution), -1),
            _from_result(-direct, self._jacobian, self._scale),
        )
        return value, slope


class _NegativeTraceAfter(torch.autograd.Function):
    """Minus the traces after sets of points, whose derivatives are computed along with them.

    A trace depends on its own set only, so backward has nothing to do but to weight them.
    """

    @staticmethod
    def forward(ctx: Any, X: Tensor, belief: GradientBelief, noise: Tensor | float) -> Tensor:
        value, slope = belief._negative_trace_after(X, noise, with_slope=True)
        ctx.save_for_backward(slope)
        return value

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        if torch.is_grad_enabled():
            raise RuntimeError("The trace of a gradient's covariance can be differentiated once.")
        (slope,) = ctx.saved_tensors
        return gradients[0].reshape(*slope.shape[:-2], 1, 1) * slope, None, None


def _in_result(gradient: Array, jacobian: Array | None, scale: Array | None) -> Array:
    """From the kernel's coordinates to those of the result: ``M x d`` to ``M x p``."""
    if jacobian is not None:
        gradient = gradient @ jacobian
    return gradient if scale is None else scale * gradient


def _from_result(slope: Array, jacobian: Array | None, scale: Array | None) -> Array:
    """The transpose of :func:`_in_result`: ``M x p`` to ``M x d``."""
    if jacobian is not None:
        slope = slope @ _transposed(jacobian)
    return slope if scale is None else scale * slope


def with_ones(table: Array) -> Array:
    """A table, or a batch of them, with a last column of ones."""
    shape = (*table.shape[:-1], 1)
    ones = table.new_ones(shape) if isinstance(table, Tensor) else np.ones(shape)
    return namespace(table).concatenate((table, ones), -1)


def _transposed(matrix: Array) -> Array:
    """The transpose of a matrix or of a batch of tensors; NumPy's ``mT`` is younger than 1.26."""
    return matrix.mT if isinstance(matrix, Tensor) else matrix.T


def _minus_product(C: Array, A: Array, B: Array) -> Array:
    """``C - A B`` for matrices or batches of them, in one call of torch."""
    if not isinstance(C, Tensor):
        return C - A @ B
    if A.dim() == 2:
        return torch.addmm(C, A, B, alpha=-1)
    return torch.baddbmm(C, A, B, alpha=-1) if B.dim() == 3 else C - A @ B


def _solved_by(root: Array, B: Array, *, transposed: bool) -> Array:
    """``B root^{-1}`` or ``B root^{-T}`` with a lower-triangular matrix: ``... x N``."""
    if not isinstance(B, Tensor):
        # LAPACK counts by columns: there the transposes are what it is given.
        return lapack.dtrtrs(root.T, B.T, trans=transposed)[0].T
    columns = B.flatten(end_dim=-2).mT
    matrix = root if transposed else root.mT
    return torch.linalg.solve_triangular(matrix, columns, upper=not transposed).mT.view_as(B)


def _solved(S: Array, noise: Array | float, A: Array) -> Array:
    """``(S + noise)^{-1} A`` for symmetric ``S``, with a pseudo-inverse where it is singular.

    Of a singular matrix that is an array, the result is NaN.
    """
    if not isinstance(S, Tensor):
        S += _diagonal(S.shape[-1], noise)
        _, solution, failed = lapack.dposv(S.T, A, overwrite_a=True)
        return solution if not failed else np.full_like(A, np.nan)
    S.diagonal(dim1=-2, dim2=-1).add_(noise)
    root, failed = torch.linalg.cholesky_ex(S)
    solution = torch.cholesky_solve(A, root)
    if failed.any() if failed.dim() else failed:
        limit = 10 * S.shape[-1] * torch.finfo(S.dtype).eps
        try:
            inverse = torch.linalg.pinv(S, rtol=limit, hermitian=True)
        except torch.linalg.LinAlgError as error:  # of entries that are not finite
            raise ValueError("These points are too far away to compute with.") from error
        solution = torch.where((failed > 0)[..., None, None], inverse @ A, solution)
    return solution


@lru_cache(maxsize=64)
def _diagonal(size: int, value: float) -> NDArray[np.float64]:
    return value * np.eye(size)


class GradientPosterior:
    """The posterior of a model's gradient at a location, in the model's own coordinates.

    Input transforms are accounted for through their Jacobian at the location, a ``Standardize``
    outcome transform through its scale.

    Args:
        model: A single-output BoTorch model on GPyTorch's ``ExactGP``, such as ``SingleTaskGP``,
            or a list of one.
        location: A ``d``-vector.

    Example:
        >>> model = SingleTaskGP(X, Y)
        >>> posterior = GradientPosterior(model, torch.full((3,), 0.5, dtype=X.dtype))
        >>> posterior.mean, posterior.covariance, posterior.trace
    """

    def __init__(self, model: Model, location: Tensor) -> None:
        beliefs = gradient_beliefs(model, location)
        if len(beliefs) > 1:
            raise ValueError(
                f"`model` is an ensemble of {len(beliefs)} models; its gradient is not normal. "
                "Use `gradient_beliefs` for the members one by one."
            )
        (self.belief,) = beliefs
        self._mean = _posterior_mean(exact_gp(model), self.belief)

    @property
    def mean(self) -> Tensor:
        """Posterior mean of the gradient, ``d``."""
        return self._mean

    @property
    def covariance(self) -> Tensor:
        """Posterior covariance of the gradient, ``d x d``."""
        return self.belief.covariance.clone()

    @property
    def trace(self) -> Tensor:
        """Trace of the posterior covariance, a scalar."""
        return self.belief.trace


def gradient_beliefs(model: Model, location: Tensor) -> list[GradientBelief]:
    """One :class:`GradientBelief` for the model, or for each member of an ensemble.

    Args:
        model: A model that :func:`exact_gp` accepts.
        location: A ``d``-vector in the model's own coordinates.
    """
    gp = exact_gp(model)
    gp.eval()  # as `posterior` does: from here on the training inputs are transformed ones
    *_, num_points, dim = gp.train_inputs[0].shape
    location = _check_location(gp, location)
    count = math.prod(gp.batch_shape)
    inputs = gp.train_inputs[0].detach().expand(count, num_points, dim)
    noise = _of_members(gp.likelihood.noise, count).expand(count, num_points)
    places, jacobians = _transformed(gp, location, count)
    scales = _outcome_scales(gp, count)
    beliefs = []
    for member in range(count):
        kernel = gp.covar_module[member] if gp.batch_shape else gp.covar_module
        derivatives = kernel_derivatives(kernel, like=inputs)
        factor, kept = KernelFactor.empty(derivatives, dim).extended(inputs[member], noise[member])
        belief = GradientBelief(
            factor,
            places[member],
            jacobian=None if jacobians is None else jacobians[member],
            scale=None if scales is None else scales[member],
        )
        belief.kept = kept
        beliefs.append(belief)
    return beliefs


def candidate_noise(model: Model) -> Tensor:
    """The observation noise assumed at new points: the mean of the training points'.

    One number for each member of an ensemble, else one; in the units of the model's kernel.
    """
    gp = exact_gp(model)
    count = math.prod(gp.batch_shape)
    return _of_members(gp.likelihood.noise, count).mean(-1).expand(count)


def exact_gp(model: Model) -> Any:
    """The single-output model whose gradient is meant, or an error that says why there is none.

    Accepted are BoTorch's models on GPyTorch's ``ExactGP``, ensembles of them such as
    ``SaasFullyBayesianSingleTaskGP``, and lists of one such model.
    """
    if isinstance(model, ModelList) and len(model.models) == 1:
        return exact_gp(cast(Model, model.models[0]))
    name = type(model).__name__
    if isinstance(model, MultiTaskGP | KroneckerMultiTaskGP):
        raise ValueError(
            f"`model` is a {name}: each task has a gradient of its own, and its inputs include the "
            "task. Fit a SingleTaskGP to the task whose gradient is meant."
        )
    if isinstance(model, ModelList | GPyTorchModel) and model.num_outputs != 1:
        raise ValueError(
            f"`model` must have one output, got {model.num_outputs}; take one with "
            "`model.subset_output([i])`."
        )
    if not (isinstance(model, GPyTorchModel) and isinstance(model, ExactGP)):
        raise TypeError(
            "`model` must be a BoTorch model on GPyTorch's ExactGP, such as SingleTaskGP; got "
            f"{name}."
        )
    gp: Any = model
    if len(gp.batch_shape) > 1 or (gp.batch_shape and not is_ensemble(gp)):
        raise ValueError(
            "`model` must have no batch shape unless it is an ensemble, got "
            f"{tuple(gp.batch_shape)}."
        )
    if any(isinstance(part, CategoricalKernel) for part in gp.covar_module.modules()):
        raise ValueError(
            f"`model` is a {name} with categorical inputs, in which a function has no gradient. "
            "Fit a SingleTaskGP to the numerical inputs."
        )
    return gp


def _of_members(values: Tensor, count: int) -> Tensor:
    """``count x k`` from the ``k`` numbers that all members share, or from those of each."""
    return values.detach().reshape(-1, values.shape[-1]).expand(count, -1)


def _posterior_mean(model: Any, belief: GradientBelief) -> Tensor:
    targets = model.train_targets.detach()
    with torch.no_grad():
        residuals = (targets - model.mean_module(model.train_inputs[0]))[belief.kept]
    at = belief.location.clone().requires_grad_()
    with torch.enable_grad():
        value = model.mean_module(at.unsqueeze(0)).sum()
        slope = (
            torch.autograd.grad(value, at, allow_unused=True)[0] if value.requires_grad else None
        )
    slope = torch.zeros_like(at) if slope is None else slope
    if belief.jacobian is not None:
        slope = belief.jacobian.mT @ slope
    if belief.scale is not None:
        slope = belief.scale * slope
    return (belief.weights.mT @ residuals + slope).detach()


def _check_location(model: Any, location: Tensor) -> Tensor:
    check_tensor("location", location, shape=("d",))
    inputs = model.train_inputs[0]
    if location.dtype != inputs.dtype:
        raise ValueError(
            f"`location` is {location.dtype} but the model works in {inputs.dtype}; convert it "
            "with `location.to(model.train_inputs[0])`."
        )
    return location.detach()


def _transformed(model: Any, location: Tensor, count: int) -> tuple[Tensor, Tensor | None]:
    """The location in the kernels' coordinates and the transform's Jacobian there (or None).

    ``m x d`` and ``m x d x d`` for the ``m`` members of an ensemble, whose transforms may differ.
    """
    dim = model.train_inputs[0].shape[-1]
    transform = getattr(model, "input_transform", None)
    if transform is None:
        if len(location) != dim:
            raise ValueError(f"`location` has {len(location)} entries, the model {dim} inputs.")
        return location.expand(count, dim), None

    def apply(x: Tensor) -> Tensor:
        return model.transform_inputs(x.reshape(1, 1, -1))

    image = apply(location)
    if image.shape not in ((1, 1, dim), (count, 1, dim)):
        raise ValueError(
            f"`model.input_transform` {type(transform).__name__} turns one point into shape "
            f"{tuple(image.shape[1:])}, the model expects (1, {dim}); only transforms of one point "
            "to one point have a gradient."
        )
    jacobian = torch.autograd.functional.jacobian(apply, location).squeeze(1)
    return image.squeeze(1).detach().expand(count, -1), jacobian.detach().expand(count, -1, -1)


def _outcome_scales(model: Any, count: int) -> Tensor | None:
    transform = getattr(model, "outcome_transform", None)
    if transform is None:
        return None
    if type(transform) is not Standardize:
        raise ValueError(
            f"`model.outcome_transform` {type(transform).__name__} is not affine: the gradient of "
            "the outcome is not Gaussian. Use Standardize or None."
        )
    return _of_members(transform.stdvs, count).squeeze(-1)
