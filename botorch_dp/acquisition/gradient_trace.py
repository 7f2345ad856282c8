r"""How uncertain the gradient at a location will still be after more observations (for DP-GIBO).

A joint search for such points from random starts fails from about thirty inputs on: there are a
thousand numbers to choose, and almost every start is flat. A regular simplex around the location
is within a percent of the best ``d + 1`` points, mirrored pairs along the axes are better still,
and the only number left to choose is the radius.
"""

from __future__ import annotations

from typing import Any

import torch
from botorch.acquisition import AcquisitionFunction
from botorch.models.model import Model
from botorch.optim.initializers import gen_batch_initial_conditions
from botorch.utils.transforms import (
    average_over_ensemble_models,
    concatenate_pending_points,
    is_ensemble,
    t_batch_mode_transform,
)
from gpytorch.models import ExactGP
from torch import Tensor

from botorch_dp._checks import check_finite, check_integer, check_size, check_tensor
from botorch_dp.models.gradient import (
    Stencil,
    candidate_noise,
    exact_gp,
    gradient_beliefs,
    leading_basis,
    place_stencil,
    radius_grid,
    stencil_directions,
)

_STENCILS: tuple[Stencil, ...] = ("simplex", "central")


class GradientTrace(AcquisitionFunction):
    r"""Negative trace of the gradient's covariance after a batch [Mueller2021], [Sopa2025].

    With data ``D``, location ``x`` and a batch ``X`` of ``q`` points,

    ``GradientTrace(X) = -tr Cov(grad f(x) | D, X)
    = -tr Cov(grad f(x) | D) + tr(A S^{-1} A^T)``,

    where ``A = Cov(grad f(x), f(X) | D)`` and ``S = Cov(f(X) | D) + noise``. It is joint in the
    batch and does not depend on the observed values, only on where they were taken. The data are
    factored once.

    Random restarts find nothing in many dimensions: give ``optimize_acqf`` the initial
    conditions of :func:`gen_gradient_trace_initial_conditions`.

    Example:
        >>> model = SingleTaskGP(train_X, train_Y)
        >>> acqf = GradientTrace(model, location=torch.full((d,), 0.5, dtype=torch.double))
        >>> candidates, value = optimize_acqf(
        ...     acqf,
        ...     bounds=torch.stack((torch.zeros(d), torch.ones(d))).double(),
        ...     q=d + 1,
        ...     num_restarts=2,
        ...     raw_samples=32,
        ...     ic_generator=gen_gradient_trace_initial_conditions,
        ... )
    """

    location: Tensor
    noise: Tensor

    def __init__(
        self, model: Model | ExactGP, location: Tensor, *, X_pending: Tensor | None = None
    ) -> None:
        """Factor the model's data around a location.

        Args:
            model: A GPyTorch ``ExactGP``, a single-output model on it, an ensemble of them such as
                ``SaasFullyBayesianSingleTaskGP`` (the value is the members' average), or a list
                of one such model.
            location: Where the gradient is wanted, a ``d``-vector in the model's coordinates.
            X_pending: An ``m x d`` tensor of points under evaluation, counted as observed.
        """
        model = exact_gp(model)
        super().__init__(model=model)
        beliefs = gradient_beliefs(model, location)
        self.beliefs: Any = torch.nn.ModuleList(beliefs)
        self.register_buffer("location", location.detach())
        self.register_buffer("noise", candidate_noise(model).reshape(-1))
        self.set_X_pending(X_pending)

    @concatenate_pending_points
    @t_batch_mode_transform()
    @average_over_ensemble_models  # type: ignore[arg-type]
    def forward(self, X: Tensor) -> Tensor:
        """The negative trace for ``(b) x q x d`` candidate sets: ``(b)``, at most 0."""
        check_tensor("X", X, finite=False)
        if X.dtype is not self.location.dtype:
            raise ValueError(f"`X` is {X.dtype} but the model works in {self.location.dtype}.")
        if not is_ensemble(self.model):
            return -self.beliefs[0].trace_after(self.model.transform_inputs(X), self.noise[0])
        # The members' transforms may differ: b x m x q x d.
        inputs = self.model.transform_inputs(X.unsqueeze(-3))
        inputs = inputs.expand(*X.shape[:-2], len(self.beliefs), *inputs.shape[-2:])
        members = zip(self.beliefs, inputs.unbind(-3), self.noise, strict=True)
        return -torch.stack([belief.trace_after(Z, noise) for belief, Z, noise in members], dim=-1)

    @property
    def units(self) -> Tensor:
        """The kernel's length-scales at the location, in the model's coordinates: ``d``."""
        return torch.stack([belief.units for belief in self.beliefs]).mean(dim=0)

    @property
    def covariance(self) -> Tensor:
        """The gradient's present covariance, pending points aside: ``d x d``."""
        return torch.stack([belief.covariance for belief in self.beliefs]).mean(dim=0)


def gen_gradient_trace_initial_conditions(
    acq_function: GradientTrace,
    bounds: Tensor,
    q: int,
    num_restarts: int,
    raw_samples: int,
    fixed_features: dict[int, float] | None = None,
    options: dict[str, Any] | None = None,
    inequality_constraints: list[tuple[Tensor, Tensor, float]] | None = None,
    equality_constraints: list[tuple[Tensor, Tensor, float]] | None = None,
) -> Tensor:
    """Initial conditions for ``optimize_acqf``: simplices and mirrored pairs of many radii.

    To be passed as ``ic_generator``. Half of ``raw_samples`` go to each family, the best
    ``num_restarts`` are returned. With linear constraints, which a stencil knows nothing of,
    BoTorch's own generator takes over. All arguments are those of ``optimize_acqf``.

    Returns:
        A ``num_restarts x q x d`` tensor.
    """
    if inequality_constraints or equality_constraints:
        return gen_batch_initial_conditions(
            acq_function,
            bounds,
            q,
            num_restarts,
            raw_samples,
            fixed_features=fixed_features,
            options=options,
            inequality_constraints=inequality_constraints,
            equality_constraints=equality_constraints,
        )
    if not isinstance(acq_function, GradientTrace):
        raise TypeError(
            f"`acq_function` must be a GradientTrace, got {type(acq_function).__name__}."
        )
    location, units = acq_function.location, acq_function.units
    basis = leading_basis(acq_function.covariance, units)
    check_integer("num_restarts", num_restarts)
    check_integer("raw_samples", raw_samples)
    check_integer("q", q)
    check_tensor("bounds", bounds, shape=(2, len(units)))
    count = max(raw_samples, num_restarts) // len(_STENCILS) + 1
    check_size("q, raw_samples or num_restarts", max(count, q), 16 * count * q * (q + 8))
    radii = radius_grid(count, like=location)
    stencils = torch.cat(
        [
            place_stencil(location, stencil_directions(kind, q, basis), radii, units, bounds)
            for kind in _STENCILS
        ]
    )  # 2 count x q x d
    for index, value in (fixed_features or {}).items():
        last = stencils.shape[-1] - 1
        check_integer("fixed_features", index, at_least=-last - 1, at_most=last)
        stencils[..., index] = check_finite("fixed_features", value)
    with torch.no_grad():
        values = acq_function(stencils)
    return stencils[values.topk(num_restarts).indices]
