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

import copy
import math
from functools import lru_cache
from typing import Any, Literal, cast

import torch
from botorch.models.gpytorch import GPyTorchModel
from botorch.models.kernels import CategoricalKernel
from botorch.models.model import Model, ModelList
from botorch.models.multitask import KroneckerMultiTaskGP, MultiTaskGP
from botorch.models.transforms.outcome import Standardize
from botorch.utils.transforms import is_ensemble
from gpytorch.models import ExactGP
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from botorch_dp._checks import check_tensor
from botorch_dp.models.kernels import KernelDerivatives, kernel_derivatives
from botorch_dp.models.public import from_gpytorch

# A new point whose variance, given the points kept so far, is below this fraction of the largest
# prior variance is a linear combination of them as far as the arithmetic can tell. As a power of
# the rounding error: 7e-11 in double, 3e-5 in single precision. Rounding leaves up to 3e-11 where
# a polynomial kernel is spanned; a design of radius 1e-3 length-scales needs 1e-6.
_DEPENDENCE_EXPONENT = 0.65


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
        return len(self.points)

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
            limit = limit * self.derivatives.diagonal(points).max()
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
    whitened: Tensor
    #: Covariance of the gradient, ``p x p``.
    covariance: Tensor
    share: Tensor | None

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
        self.register_buffer("location", location)
        self.register_buffer("jacobian", jacobian)
        self.register_buffer("scale", scale)
        with torch.no_grad():
            prior = self.derivatives.gradient_covariance(location)
            if jacobian is not None:
                prior = jacobian.mT @ prior @ jacobian
            if scale is not None:
                prior = scale.square() * prior
            self.register_buffer("prior", prior)  # p x p
            self._condition(factor, location.new_zeros(0, len(prior) + 1))

    def extended(self, factor: KernelFactor) -> GradientBelief:
        """This belief with all points of ``factor``, which must begin with its own."""
        belief = copy.copy(self)
        belief._buffers = dict(self._buffers)
        with torch.no_grad():
            belief._condition(factor, self.whitened)
        return belief

    def _condition(self, factor: KernelFactor, known: Tensor) -> None:
        """Set what depends on the points, given ``W = root^{-1} [C^T, 1]`` for the first of them.

        ``W^T W`` says how much of the gradient's covariance the points explain, what the constant
        does to the gradient given the values, and how well they pin it down.
        """
        old = len(known)
        new_rows = factor.root[old:]
        columns = with_ones(self._in_result(factor.points[old:])) - new_rows[:, :old] @ known
        new = torch.linalg.solve_triangular(new_rows[:, old:], columns, upper=False)
        whitened = torch.cat((known, new))  # N x p + 1
        gram = whitened.mT @ whitened
        covariance, share = self.prior - gram[:-1, :-1], None
        if self.unknown_mean and len(whitened) > 0:  # there are values to tell it by
            share = gram[:-1, -1] / gram[-1, -1]  # of the constant in each weight, p
            covariance = covariance + share.outer(gram[:-1, -1])
        self.register_buffer("points", factor.points)
        self.register_buffer("root", factor.root)
        self.register_buffer("whitened", whitened)
        self.register_buffer("covariance", covariance)
        self.register_buffer("share", share)

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
        return self.covariance.trace().clamp_min(0)

    @property
    def weights(self) -> Tensor:
        """``N x p`` matrix ``W``: the posterior mean of the gradient is ``W^T y``."""
        crossed = self.crossed
        if self.share is not None:
            crossed = crossed - self.whitened[:, -1].outer(self.share)
        return torch.linalg.solve_triangular(self.root.mT, crossed, upper=True)

    def trace_after(self, X: Tensor, noise: Tensor | float = 0.0) -> Tensor:
        r"""The trace once values at ``X`` (``... x q x d``) are observed too: shape ``...``.

        With ``V = root^{-1} k(D, X)``, ``W = root^{-1} [C^T, 1]`` and the column of ones only where
        the mean is unknown, ``A = [Cov(gradient, f(X)), 1]^T - V^T W`` and
        ``S = k(X, X) + noise - V^T V``, the trace is a function of ``M = A^T S^{-1} A``.

        Differentiable in ``X``, once. ``S^{-1}`` is not differentiated: given ``Z = S^{-1} A``,
        ``A^T Z + Z^T A - Z^T S Z`` has the value of ``M`` and its derivative, also where ``S`` is
        singular and automatic differentiation of a factorization would not be finite.
        """
        *batch_shape, q, d = X.shape
        sets = _DifferentiableOnce.apply(X).reshape(-1, q, d)  # b x q x d
        flat = sets.reshape(-1, d)
        known = self.whitened if self.unknown_mean else self.crossed
        crossed = self._in_result(flat)
        crossed = with_ones(crossed) if self.unknown_mean else crossed
        values = torch.linalg.solve_triangular(
            self.root, self.derivatives.value(self.points, flat), upper=False
        ).mT  # V^T, one row for each new point
        A = (crossed - values @ known).reshape(len(sets), q, -1)
        V = values.reshape(len(sets), q, -1)
        S = self.derivatives.value(sets, sets) - V @ V.mT
        S.diagonal(dim1=-2, dim2=-1).add_(noise)
        with torch.no_grad():
            Z = _solved(S, A)
        rest = A - S @ Z  # zero, but not its derivative
        diagonal = (Z * (A + rest)).sum(-2)  # of M, b x p or p + 1
        p = len(self.prior)
        trace = self.prior.trace() - self.crossed.square().sum() - diagonal[:, :p].sum(-1)
        if self.unknown_mean:
            effect = self.whitened[:, -1] @ self.crossed  # of the constant, p
            effect = effect + (A[..., :p] * Z[..., p:] + Z[..., :p] * rest[..., p:]).sum(-2)
            precision = self.whitened[:, -1].square().sum() + diagonal[:, p]
            trace = trace + effect.square().sum(-1) / precision
        return trace.reshape(batch_shape)

    def _in_result(self, X: Tensor) -> Tensor:
        """``d k(location, X) / d location`` in the coordinates of the result, ``M x p``."""
        gradient = self.derivatives.gradient(self.location, X).mT
        if self.jacobian is not None:
            gradient = gradient @ self.jacobian
        return gradient if self.scale is None else self.scale * gradient


class _DifferentiableOnce(torch.autograd.Function):
    """Does nothing, but refuses second derivatives, which would be wrong without a warning."""

    @staticmethod
    def forward(ctx: Any, X: Tensor) -> Tensor:
        return X.view_as(X)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return gradients[0]


def with_ones(table: Tensor) -> Tensor:
    """A table with a last column of ones."""
    return torch.cat((table, table.new_ones(*table.shape[:-1], 1)), dim=-1)


def _solved(S: Tensor, A: Tensor) -> Tensor:
    """``S^{-1} A`` for symmetric ``S``, with a pseudo-inverse where it is singular."""
    root, failed = torch.linalg.cholesky_ex(S)
    solution = torch.cholesky_solve(A, root)
    if failed.any():
        limit = 10 * S.shape[-1] * torch.finfo(S.dtype).eps
        try:
            inverse = torch.linalg.pinv(S, rtol=limit, hermitian=True)
        except torch.linalg.LinAlgError as error:  # of entries that are not finite
            raise ValueError("These points are too far away to compute with.") from error
        solution = torch.where((failed > 0)[..., None, None], inverse @ A, solution)
    return solution


# --- Where to observe: points around the location. ---

Stencil = Literal["simplex", "central"]
# From far below the length-scale, where rounding bites, to where the kernel has forgotten.
_SMALLEST_RADIUS, _LARGEST_RADIUS = 1e-3, 2.0


def radius_grid(count: int, like: Tensor) -> Tensor:
    """``count`` radii worth trying, evenly spaced in the logarithm, in length-scales."""
    ends = math.log10(_SMALLEST_RADIUS), math.log10(_LARGEST_RADIUS)
    return torch.logspace(*ends, count, dtype=like.dtype, device=like.device)


def stencil_directions(stencil: Stencil, count: int, basis: Tensor) -> Tensor:
    """``count`` directions in units of a radius, as a ``count x d`` tensor.

    Args:
        stencil: ``"simplex"``: the corners of a regular simplex (one more than the dimensions it
            spans), then their mirror images. ``"central"``: mirrored pairs along the basis.
            Further points repeat the stencil at half the radius, a quarter, and so on.
        count: How many points, at least 1.
        basis: A ``d x d`` orthonormal matrix. Fewer points than a full stencil spend themselves on
            its first columns.
    """
    d = basis.shape[-1]
    if stencil == "simplex":
        corners = min(count, d + 1)
        ring = regular_simplex(corners, like=basis) @ basis[:, : max(corners - 1, 1)].mT
        if count <= corners:
            return ring
        ring = torch.cat((ring, -ring))
    else:
        ring = torch.stack((basis.mT, -basis.mT), dim=1).reshape(2 * d, d)
    rings = -(-count // len(ring))
    shrunken = [ring * 0.5**level for level in range(rings)]
    return torch.cat(shrunken)[:count]


def regular_simplex(corners: int, *, like: Tensor) -> Tensor:
    """Unit vectors with equal angles that sum to zero, ``corners x max(corners - 1, 1)``.

    The columns of Helmert's matrix, whose rows are orthonormal and orthogonal to the ones vector.
    A single corner is the number 1. The result has the dtype and device of ``like``, is kept for
    the next call, and is not to be changed.
    """
    return _regular_simplex(corners, like.dtype, like.device)


@lru_cache(maxsize=8)
def _regular_simplex(corners: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    if corners == 1:
        return torch.ones(1, 1, dtype=dtype, device=device)
    column = torch.arange(corners, dtype=dtype, device=device)
    row = column[1:].unsqueeze(-1)  # k = 1, ..., corners - 1
    helmert = torch.where(column < row, 1.0, torch.where(column == row, -row, 0.0))
    helmert = helmert / (row * (row + 1)).sqrt()
    return helmert.mT * (corners / (corners - 1)) ** 0.5


def place_stencil(
    location: Tensor, directions: Tensor, radii: Tensor, units: Tensor, box: Tensor | None
) -> Tensor:
    """Points ``location + radius * units * direction``, moved as one into the box.

    A stencil that crosses the box is shifted, not clamped: clamping flattens it, and a flat
    stencil is blind in one direction. One that is wider than the box is shrunk in that coordinate.

    Args:
        location: A ``d``-vector inside ``box``.
        directions: A ``q x d`` tensor.
        radii: An ``r``-vector.
        units: The length of one radius in each coordinate, ``d``.
        box: A ``2 x d`` tensor, or None.

    Returns:
        An ``r x q x d`` tensor.
    """
    offsets = radii[:, None, None] * (units * directions)  # r x q x d
    if box is None:
        return location + offsets
    lower, upper = box
    # The location itself counts as part of the stencil: the shift is never larger than needed.
    low = offsets.amin(dim=-2, keepdim=True).clamp_max(0)
    high = offsets.amax(dim=-2, keepdim=True).clamp_min(0)
    shrink = ((upper - lower) / (high - low).clamp_min(1e-300)).clamp_max(1)
    low, high, offsets = low * shrink, high * shrink, offsets * shrink
    centre = torch.maximum(torch.minimum(location, upper - high), lower - low)
    return (centre + offsets).clamp(lower, upper)


def leading_basis(covariance: Tensor, units: Tensor) -> Tensor:
    """Orthonormal ``d x d`` directions, in ``units``, of the least known gradient components first.

    Args:
        covariance: The gradient's covariance, ``d x d``.
        units: What one unit of a direction is in each coordinate, ``d``.
    """
    _, vectors = torch.linalg.eigh(covariance)  # ascending
    basis, _ = torch.linalg.qr(vectors.flip(-1) / units.unsqueeze(-1))
    return basis


# --- The gradient of a model. ---


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

    def __init__(self, model: Model | ExactGP, location: Tensor) -> None:
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


def gradient_beliefs(model: Model | ExactGP, location: Tensor) -> list[GradientBelief]:
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


def exact_gp(model: Model | ExactGP) -> Any:
    """The single-output model whose gradient is meant, or an error that says why there is none.

    Accepted are GPyTorch's ``ExactGP``, BoTorch's models on it, ensembles of them such as
    ``SaasFullyBayesianSingleTaskGP``, and lists of one such model.
    """
    if isinstance(model, ExactGP) and not isinstance(model, Model):
        model = from_gpytorch(model)
    if isinstance(model, ModelList) and len(model.models) == 1:
        return exact_gp(cast(Model, model.models[0]))
    gp: Any = model
    if not (
        isinstance(gp, GPyTorchModel)
        and isinstance(gp, ExactGP)
        and not isinstance(gp, MultiTaskGP | KroneckerMultiTaskGP)
        and gp.num_outputs == 1
        and (not gp.batch_shape or (len(gp.batch_shape) == 1 and is_ensemble(gp)))
        and not any(isinstance(part, CategoricalKernel) for part in gp.covar_module.modules())
    ):
        raise ValueError(
            "`model` must be a BoTorch model on GPyTorch's ExactGP, such as SingleTaskGP, of one "
            "output (`model.subset_output([i])` takes one), one task and numerical inputs, without "
            f"a batch shape unless it is an ensemble; got a {type(model).__name__}."
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
