"""HVPoI, the hypervolume-based probability of improvement, in closed form for any objectives.

The arithmetic sums over the cells of a box decomposition of the non-dominated region. A cell is a
product of intervals, so its volume and, for independent Gaussians, its probability are products
over the ``m`` objectives. The cells come as one tensor ``edges`` of shape
``(batch_shape) x 2 num_cells x m``: first all lower bounds, then all upper bounds. Pending points
are believed (:func:`believe`), so that they too are taken into account in closed form.

The functions of cells take ``batch_shape x 1 x m``-dim tensors of means and of positive standard
deviations, and ``2 num_cells x m``-dim edges. They return a ``batch_shape``-dim tensor.
"""

from __future__ import annotations

import math
from abc import ABC
from collections.abc import Sequence
from functools import reduce
from typing import Any, Literal, cast, get_args

import torch
from botorch.acquisition.acquisition import AcquisitionFunction
from botorch.acquisition.logei import TAU_RELU
from botorch.acquisition.multi_objective.base import MultiObjectiveAnalyticAcquisitionFunction
from botorch.acquisition.objective import PosteriorTransform
from botorch.exceptions.errors import UnsupportedError
from botorch.models.deterministic import DeterministicModel
from botorch.models.model import Model, ModelList
from botorch.utils.multi_objective.box_decompositions.box_decomposition import BoxDecomposition
from botorch.utils.multi_objective.box_decompositions.non_dominated import (
    FastNondominatedPartitioning,
)
from botorch.utils.safe_math import fatplus
from botorch.utils.transforms import (
    average_over_ensemble_models,
    is_ensemble,
    t_batch_mode_transform,
)
from gpytorch.likelihoods import FixedNoiseGaussianLikelihood
from gpytorch.models import ExactGP
from torch import Tensor
from torch.autograd.function import once_differentiable

from botorch_dp._checks import check_choice, check_positive, check_tensor
from botorch_dp.models.public import from_gpytorch

Region = Literal["unbounded", "box"]


class _HypervolumeAcquisition(MultiObjectiveAnalyticAcquisitionFunction, ABC):
    """What HVPoI and its logarithm share: the objectives, the cells and the pending points."""

    least_variance: Tensor
    probability_edges: Tensor
    ref_point: Tensor
    volume_edges: Tensor
    weights: Tensor

    def __init__(
        self,
        model: Model | ExactGP,
        ref_point: Sequence[float] | Tensor,
        partitioning: BoxDecomposition,
        *,
        region: Region = "unbounded",
        weights: Sequence[float] | Tensor | None = None,
        outcomes: Sequence[int] | None = None,
        posterior_transform: PosteriorTransform | None = None,
        X_pending: Tensor | None = None,
    ) -> None:
        model = from_gpytorch(model)
        check_choice("region", region, get_args(Region))
        own_ref_point: Tensor = partitioning.ref_point
        num_objectives = len(own_ref_point)
        like_front: dict[str, Any] = {"dtype": own_ref_point.dtype, "device": own_ref_point.device}
        ref_point = torch.as_tensor(ref_point, **like_front)
        if ref_point.shape != own_ref_point.shape or not (
            ref_point.isfinite().all()
            and torch.allclose(ref_point, own_ref_point, rtol=1e-6, atol=0.0)
        ):
            raise ValueError(
                "`ref_point` must be finite, and the reference point that `partitioning` was built "
                f"with, {own_ref_point.tolist()}; got {ref_point.tolist()}."
            )
        if not hasattr(partitioning, "batch_shape"):  # which outcomes give it
            raise ValueError(
                "`partitioning` holds no outcomes yet; if there are none, build it with "
                f"`Y=torch.empty(0, {num_objectives})`."
            )
        weights = torch.as_tensor(
            [1.0] * num_objectives if weights is None else weights, **like_front
        )
        if weights.shape != own_ref_point.shape or not (weights.isfinite() & (weights != 0)).all():
            raise ValueError(
                f"`weights` must be one number for each of the {num_objectives} objectives, finite "
                f"and not zero, got {weights.tolist()}; to leave out an output of the model, name "
                "the others in `outcomes`."
            )
        used = model.num_outputs if outcomes is None else len(outcomes)
        if used != num_objectives and (outcomes is not None or posterior_transform is None):
            raise ValueError(
                f"`outcomes` must name one of the model's {model.num_outputs} outputs for each of "
                f"the {num_objectives} objectives of `partitioning`, got {outcomes}."
            )
        super().__init__(model=model, posterior_transform=posterior_transform)
        self.region = region
        self.outcomes = None if outcomes is None else list(outcomes)
        self.partitioning = partitioning
        self.register_buffer("ref_point", own_ref_point)
        self.register_buffer("weights", weights)
        self._given_model = model
        self.set_X_pending(X_pending)

    def set_X_pending(self, X_pending: Tensor | None = None) -> None:
        """Account for points under evaluation by believing the model's prediction of them.

        The posterior means at the pending points join the front, and the posterior is conditioned
        on having observed them there, so that neither the gain nor the uncertainty which these
        points will settle is sought a second time. The model passed in is left as it is.

        Args:
            X_pending: An ``n x d``-dim tensor, or None when nothing is pending.
        """
        if X_pending is not None:
            check_tensor("X_pending", X_pending, finite=False)
            if X_pending.dim() < 2 or X_pending.dtype != self.ref_point.dtype:
                raise ValueError(
                    f"`X_pending` must be n x d and {self.ref_point.dtype}, got "
                    f"{tuple(X_pending.shape)} {X_pending.dtype}."
                )
        # The base class in between refuses pending points altogether.
        AcquisitionFunction.set_X_pending(self, X_pending)
        self.model = self._given_model
        self._set_cells(self.partitioning.get_hypercell_bounds())
        if self.X_pending is None or self.X_pending.shape[-2] == 0:
            return
        shape = tuple(self.X_pending.shape)
        with torch.no_grad():
            try:
                means, _ = self._objectives(self.X_pending)
                self.model = believe(self.model, self.X_pending)
            except (UnsupportedError, RuntimeError) as error:
                AcquisitionFunction.set_X_pending(self, None)
                if isinstance(error, UnsupportedError):
                    raise
                raise ValueError(
                    f"`X_pending` of shape {shape} cannot be predicted by the model: {error}"
                ) from error
        front = self.partitioning.Y
        means = means.to(front)
        if is_ensemble(self.model) and means.dim() > front.dim():
            means = means.mean(dim=-3)
        front = torch.cat([front.expand(*means.shape[:-2], *front.shape[-2:]), means], dim=-2)
        self._set_cells(
            FastNondominatedPartitioning(self.ref_point, Y=front).get_hypercell_bounds()
        )

    def _set_cells(self, bounds: Tensor) -> None:
        """Store the cells of the gained volume and those of the improvement's probability.

        Args:
            bounds: ``2 x (batch_shape) x num_cells x m``-dim: a partition of the part of the
                non-dominated region that is better than the reference.
        """
        self.register_buffer("least_variance", least_variance(bounds))
        self.register_buffer("volume_edges", finite_edges(bounds))
        if self.region == "unbounded":
            # The points that count in the front beat the reference everywhere, so lifting an
            # outcome to the reference where it is worse does not change whether it is dominated:
            # cells at the edge of the box extend to minus infinity. Fronts in a batch may be
            # padded with cells that have no volume, which must remain empty.
            lower, upper = bounds
            at_edge = (lower == self.ref_point) & (lower < upper).all(dim=-1, keepdim=True)
            bounds = torch.stack([lower.masked_fill(at_edge, -torch.inf), upper])
        self.register_buffer("probability_edges", finite_edges(bounds))

    def _objectives(self, X: Tensor) -> tuple[Tensor, Tensor]:
        """Posterior mean and standard deviation of the objectives, to be maximized.

        Args:
            X: A ``batch_shape x q x d``-dim tensor.

        Returns:
            Two ``batch_shape x q x m``-dim tensors, in double precision.
        """
        dtype = self.ref_point.dtype
        check_tensor("X", X, finite=False)
        if X.dtype != dtype:
            raise ValueError(f"`X` has dtype {X.dtype}, but the front has {dtype}.")
        posterior: Any = self.model.posterior(X, posterior_transform=self.posterior_transform)
        mean, variance = posterior.mean, posterior.variance
        if mean.dtype != dtype:
            raise ValueError(
                f"The model predicts in {mean.dtype}, but `partitioning` has {dtype}; build it "
                f"from {mean.dtype} tensors."
            )
        if self.outcomes is not None:
            mean, variance = mean[..., self.outcomes], variance[..., self.outcomes]
        # What follows squares distances and reciprocals of temperatures: too much for floats.
        mean, variance = mean.double() * self.weights, variance.double() * self.weights.square()
        return mean, variance.clamp_min(self.least_variance).sqrt()


class HypervolumeProbabilityOfImprovement(_HypervolumeAcquisition):
    r"""Hypervolume gained by the posterior mean, times the probability of an improvement.

    With mean ``m(x)``, standard deviation ``s(x)`` and independent objectives, all maximized,

        HVPoI(x) = sum_c prod_k max(0, min(m_k, u_ck) - l_ck)
                   * sum_c prod_k [Phi((u_ck - m_k) / s_k) - Phi((l_ck - m_k) / s_k)],

    where the cells ``[l_c, u_c]`` partition the region that no point of the front dominates. Both
    sums are exact for any number of objectives. The criterion is that of [Couckuyt2014], which
    [Avent2020] used for the trade-off between privacy and utility.

    It is exactly zero, with zero gradient, wherever the posterior mean is dominated: most of the
    space. Prefer ``LogHypervolumeProbabilityOfImprovement`` for gradient-based optimization. It is
    for one candidate at a time; batches come from ``optimize_acqf(..., sequential=True)``.

    Args:
        model: A fitted model. Its outputs are taken as independent, as in [Avent2020].
        ref_point: The ``m`` reference values, in the space of the weighted objectives.
        partitioning: The decomposition of the region not dominated by the front, in the same
            space and with the same reference point, e.g. a ``FastNondominatedPartitioning``. The
            front may be empty.
        region: Where a draw from the posterior counts as an improvement: anywhere that is not
            dominated by the front ("unbounded", the papers' choice), or only where it also beats
            the reference in every objective ("box").
        weights: One factor for each objective, negative to minimize it: objective ``k`` is
            ``weights[k] * outcome``. By default all outcomes are maximized.
        outcomes: Which outputs of the model are objectives, in the order of ``ref_point``. By
            default all of them.
        posterior_transform: Applied to the model's posterior before anything else.
        X_pending: An ``n x d``-dim tensor of points under evaluation; see ``set_X_pending``.

    Example:
        >>> import torch
        >>> from botorch.models import SingleTaskGP
        >>> from botorch.utils.multi_objective.box_decompositions import (
        ...     FastNondominatedPartitioning,
        ... )
        >>> from botorch_dp.acquisition import HypervolumeProbabilityOfImprovement
        >>> X = torch.rand(8, 3, dtype=torch.double)
        >>> Y = torch.stack([X.sum(-1), X.square().sum(-1)], dim=-1)  # both to be minimized
        >>> model = SingleTaskGP(X, Y)
        >>> ref_point = torch.tensor([-3.0, -3.0], dtype=torch.double)
        >>> partitioning = FastNondominatedPartitioning(ref_point, Y=-Y)
        >>> hvpoi = HypervolumeProbabilityOfImprovement(
        ...     model, ref_point, partitioning, weights=[-1.0, -1.0]
        ... )
        >>> hvpoi(X[:2].unsqueeze(-2)).shape
        torch.Size([2])
    """

    @t_batch_mode_transform(expected_q=1)
    @average_over_ensemble_models  # type: ignore[arg-type]
    def forward(self, X: Tensor) -> Tensor:
        """HVPoI at ``batch_shape x 1 x d`` points: ``batch_shape`` values."""
        mean, std = self._objectives(X)
        # Where the gain is positive, the mean and with it the orthant above it lie in the region:
        # the probability is then at least 2^-m, and no logarithms are needed for precision.
        value = volume_gain(mean, self.volume_edges)
        return (value * probability(mean, std, self.probability_edges)).to(X)


class LogHypervolumeProbabilityOfImprovement(_HypervolumeAcquisition):
    r"""Logarithm of HVPoI, smoothed so that it can be optimized from anywhere.

    Computes ``log G(m(x)) + log PoI(x)``. The probability is that of
    ``HypervolumeProbabilityOfImprovement``, in logarithmic space throughout, hence exact also
    where it underflows. The gain ``G`` replaces ``max(0, .)`` by a smooth function with a fat
    tail, after [Ament2023], at a temperature of ``tau_relu`` posterior standard deviations: above
    the front it agrees with the exact gain to about ``tau_relu``, below it remains positive and
    increasing. As the temperature follows the posterior, rescaling an objective by ``a`` shifts
    the value by ``log a`` and changes nothing else.

    Args:
        model: As for ``HypervolumeProbabilityOfImprovement``; likewise all others but the last.
        tau_relu: Temperature of the smoothed gain in posterior standard deviations.

    Example:
        >>> import torch
        >>> from botorch.models import SingleTaskGP
        >>> from botorch.optim import optimize_acqf
        >>> from botorch.utils.multi_objective.box_decompositions import (
        ...     FastNondominatedPartitioning,
        ... )
        >>> from botorch_dp.acquisition import LogHypervolumeProbabilityOfImprovement
        >>> X = torch.rand(8, 1, dtype=torch.double)
        >>> Y = torch.cat([X, (1 - X).square()], dim=-1)
        >>> partitioning = FastNondominatedPartitioning(torch.zeros(2, dtype=torch.double), Y=Y)
        >>> acquisition = LogHypervolumeProbabilityOfImprovement(
        ...     SingleTaskGP(X, Y), [0.0, 0.0], partitioning
        ... )
        >>> candidate, _ = optimize_acqf(
        ...     acquisition,
        ...     bounds=torch.tensor([[0.0], [1.0]], dtype=torch.double),
        ...     q=1,
        ...     num_restarts=2,
        ...     raw_samples=16,
        ... )
        >>> candidate.shape
        torch.Size([1, 1])
    """

    _log = True  # tells BoTorch to average members of an ensemble on the original scale

    def __init__(
        self,
        model: Model | ExactGP,
        ref_point: Sequence[float] | Tensor,
        partitioning: BoxDecomposition,
        *,
        region: Region = "unbounded",
        weights: Sequence[float] | Tensor | None = None,
        outcomes: Sequence[int] | None = None,
        posterior_transform: PosteriorTransform | None = None,
        X_pending: Tensor | None = None,
        tau_relu: float = TAU_RELU,
    ) -> None:
        check_positive("tau_relu", tau_relu)
        super().__init__(
            model,
            ref_point,
            partitioning,
            region=region,
            weights=weights,
            outcomes=outcomes,
            posterior_transform=posterior_transform,
            X_pending=X_pending,
        )
        self.tau_relu = tau_relu

    @t_batch_mode_transform(expected_q=1)
    @average_over_ensemble_models  # type: ignore[arg-type]
    def forward(self, X: Tensor) -> Tensor:
        """Its smoothed logarithm at ``batch_shape x 1 x d`` points: ``batch_shape`` values."""
        mean, std = self._objectives(X)
        gain = log_volume_gain(mean, self.volume_edges, temperature=self.tau_relu * std)
        return (gain + log_probability(mean, std, self.probability_edges)).to(X)


def believe(model: Model, X: Tensor) -> Model:
    """A model like the given one, but conditioned on its own posterior mean at ``X``.

    Its mean is the same everywhere; its variance is what will remain once ``X`` is observed. With
    known noise variances, the new observations get their average, as in BoTorch's ``fantasize``.

    Args:
        model: Left as it is. Deterministic members of a list have nothing to be conditioned on.
        X: An ``n x d``-dim tensor of points.
    """
    if isinstance(model, ModelList):
        return type(model)(*(believe(cast(Model, member), X) for member in model.models))
    if isinstance(model, DeterministicModel):
        return model
    posterior: Any = model.posterior(X)
    mean: Tensor = posterior.mean  # (batch_shape) x n x m
    likelihood: Any = getattr(model, "likelihood", None)
    known_noise = {}
    if isinstance(likelihood, FixedNoiseGaussianLikelihood):
        noise = likelihood.noise.mean(dim=-1, keepdim=True)  # (batch_shape) x (m) x 1
        noise = noise if model.num_outputs > 1 else noise.unsqueeze(-1)
        known_noise["noise"] = noise.transpose(-1, -2).expand_as(mean)
    try:
        return model.condition_on_observations(
            X.expand(*mean.shape[:-1], X.shape[-1]), mean, **known_noise
        )
    except (AttributeError, RuntimeError) as error:
        # A model without the method, with one that is not implemented, or (Kronecker multi-task
        # models) with one that raises a plain RuntimeError. The cause is chained, not hidden.
        raise UnsupportedError(
            f"`X_pending`: a {type(model).__name__} cannot be conditioned on pending points; wait "
            "for them to finish and pass None."
        ) from error


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
    """Volume of the cells' parts that lie below ``mean``; exactly zero where it is dominated."""
    lower, upper = edges.chunk(2, dim=-2)
    return _product((torch.minimum(mean, upper) - lower).clamp_min(0.0)).sum(-1)


def probability(mean: Tensor, std: Tensor, edges: Tensor) -> Tensor:
    """Probability that independent Gaussians fall into one of the cells.

    The absolute error is a few roundings; relative precision in the tails takes
    ``log_probability``.
    """
    lower, upper = torch.special.ndtr((edges - mean) / std).chunk(2, dim=-2)
    return _product(upper - lower).sum(-1)


def log_volume_gain(mean: Tensor, edges: Tensor, temperature: Tensor) -> Tensor:
    """Logarithm of a smoothed ``volume_gain``, finite and increasing in ``mean`` everywhere.

    The part of ``[l, u]`` below the mean has length ``relu(mean - l) - relu(mean - u)``. With the
    fat-tailed smooth ``relu`` of [Ament2023] this is positive however far below ``l`` the mean
    is, and decays polynomially there. It still telescopes over adjacent intervals, so that the
    smoothed volume does not depend on how the region is cut into cells. The ``temperature`` of each
    objective is the width of its smoothed kink.
    """
    above_lower, above_upper = fatplus(mean - edges, tau=temperature).chunk(2, dim=-2)
    # Intervals thinner than the rounding of their distance to the mean may get length zero.
    length = (above_lower - above_upper).clamp_min(torch.finfo(edges.dtype).tiny)
    return length.log().sum(-1).logsumexp(-1)


def log_probability(mean: Tensor, std: Tensor, edges: Tensor) -> Tensor:
    """Logarithm of ``probability``, precise also where the probability itself underflows."""
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
