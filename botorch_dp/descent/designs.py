"""Where to sample for the gradient at a location. Everything here is public."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from botorch_dp._checks import check_positive
from botorch_dp.acquisition.gradient_trace import (
    Stencil,
    leading_basis,
    place_stencil,
    radius_grid,
    stencil_directions,
)
from botorch_dp.models.gradient import GradientBelief
from botorch_dp.models.kernels import KernelDerivatives

DesignName = Literal["simplex", "central", "optimize"]

_RADII = 24
# Once a radius is known, only its neighbours are tried.
_NEIGHBOURS = (1 / 2.25, 1 / 1.5, 1.0, 1.5, 2.25)
_POLISHING_STEPS = 15
# The numerical noise as a power of the rounding error, relative to the kernel's variance: 4e-10 in
# double, 7e-5 in single precision.
_RESOLUTION_EXPONENT = 0.6
# A trace below this power of the rounding error, relative to the prior's, is rounding itself.
_KNOWN_EXPONENT = 0.65


def default_batch_size(design: DesignName, dim: int) -> int:
    """The points of one full stencil: ``d + 1``, or ``2 d`` for mirrored pairs."""
    return 2 * dim if design == "central" else dim + 1


def numerical_noise(derivatives: KernelDerivatives, location: Tensor) -> float:
    """The variance below which differences of losses have no digits left.

    Without noise the trace falls with the radius until rounding takes over. A model that trusts
    every digit turns rounding, and the part of a loss that is no function of the kernel's kind,
    into slopes: with a smooth kernel and some dozens of points they bury the gradient.
    """
    variance = float(derivatives.diagonal(location.unsqueeze(0)))
    return variance * torch.finfo(location.dtype).eps ** _RESOLUTION_EXPONENT


def observation_noise(
    derivatives: KernelDerivatives, location: Tensor, noise_variance: float
) -> float:
    """The noise variance to model observations with.

    A kernel of finite rank is spared the numerical noise: its own rank keeps it well conditioned,
    and once it is spanned the gradient is known.
    """
    if derivatives.has_finite_rank:
        return noise_variance
    return max(noise_variance, numerical_noise(derivatives, location))


@dataclass(frozen=True)
class Proposal:
    """Points to sample (``b x d``) and the radius they came from, in length-scales."""

    points: Tensor
    radius: float


@dataclass(frozen=True)
class Design:
    """A rule for the next points, a function of what is public only.

    Args:
        name: ``"simplex"``, ``"central"`` (mirrored pairs), or ``"optimize"`` (a simplex, then some
            L-BFGS steps on the trace of all points jointly).
        radius: In length-scales of the kernel: a number, a pair ``(first, last)`` to shrink
            geometrically over the run, or None for the one with the smallest trace.
        bounds: A ``2 x d`` box for the points, or None.
        noise_variance: Variance of the noise in a record's loss.
        tolerance: Take the fewest points for which the trace is at most this.
    """

    name: DesignName
    radius: float | tuple[float, float] | None = None
    bounds: Tensor | None = None
    noise_variance: float = 0.0
    tolerance: float | None = None

    def __post_init__(self) -> None:
        if self.name not in get_args(DesignName):
            raise ValueError(f"`design` must be one of {get_args(DesignName)}, got {self.name!r}.")
        for radius in self.radius if isinstance(self.radius, tuple) else (self.radius,):
            if radius is not None:
                check_positive("radius", radius)
        if isinstance(self.radius, tuple) and len(self.radius) != 2:
            raise ValueError(
                f"`radius` must be a number or a pair, got {len(self.radius)} numbers."
            )

    def propose(
        self,
        belief: GradientBelief,
        count: int,
        *,
        step: int = 0,
        steps: int = 1,
        previous: float | None = None,
    ) -> Proposal:
        """Points around the belief's location.

        Args:
            belief: What is known of the gradient at the location.
            count: How many points; with a tolerance, at most so many.
            step: Which step of the run, counted from 0.
            steps: Of how many.
            previous: The radius of the step before, from which a search starts.

        Returns:
            ``count`` points; fewer with a tolerance; none where nothing is left to learn.
        """
        if len(belief.points):
            # As a polynomial kernel has once it is spanned, or any kernel in a converged run.
            known = torch.finfo(belief.location.dtype).eps ** _KNOWN_EXPONENT
            limit = known * belief.prior.trace()
            if bool(belief.trace <= limit.clamp_min(self.tolerance or 0.0)):
                return Proposal(belief.location.new_zeros(0, len(belief.location)), 0.0)
        radii = self._radii(belief, step, steps, previous)
        if self.tolerance is None:
            return self._stencil(belief, count, radii)[0]
        for fewer in range(1, count + 1):
            proposal, trace = self._stencil(belief, fewer, radii)
            if trace <= self.tolerance:
                break
        return proposal

    def _stencil(self, belief: GradientBelief, count: int, radii: Tensor) -> tuple[Proposal, float]:
        """``count`` points at the best of some radii, and the trace they would leave if needed."""
        stencil: Stencil = "central" if self.name == "central" else "simplex"
        basis = leading_basis(belief.covariance, belief.units)
        directions = stencil_directions(stencil, count, basis)
        candidates = place_stencil(belief.location, directions, radii, belief.units, self.bounds)
        if len(radii) == 1 and self.tolerance is None and self.name != "optimize":
            return Proposal(candidates[0], float(radii[0])), math.nan  # nobody asks for the trace
        traces = self._traces(belief, candidates)
        best = int(traces.argmin())
        points, trace = candidates[best], float(traces[best])
        if self.name == "optimize":
            points, trace = self._polished(belief, points, trace)
        return Proposal(points, float(radii[best])), trace

    def _radii(
        self, belief: GradientBelief, step: int, steps: int, previous: float | None
    ) -> Tensor:
        """The radii to choose from, one or several."""
        location = belief.location
        if isinstance(self.radius, tuple):
            first, last = self.radius
            return location.new_tensor([first * (last / first) ** (step / max(steps - 1, 1))])
        if self.radius is not None:
            return location.new_tensor([self.radius])
        grid = radius_grid(_RADII, like=location)
        if previous is None:
            return grid
        # The best radius settles soon: look again after 1, 2, 4, 8, ... steps only.
        factors = _NEIGHBOURS if step & (step - 1) == 0 else (1.0,)
        return (previous * location.new_tensor(factors)).clamp(grid[0], grid[-1])

    def _traces(self, belief: GradientBelief, X: Tensor) -> Tensor:
        """Traces after observing ``X``, with losses trusted to a limited number of digits only."""
        noise = max(self.noise_variance, numerical_noise(belief.derivatives, belief.location))
        with torch.no_grad() if not X.requires_grad else torch.enable_grad():
            return belief.trace_after(X, noise)

    def _polished(
        self, belief: GradientBelief, points: Tensor, start: float
    ) -> tuple[Tensor, float]:
        """Improve all points jointly, in units of the kernel's length-scales."""
        units = belief.units

        def placed(offsets: Tensor) -> Tensor:
            moved = belief.location + units * offsets
            return moved if self.bounds is None else moved.clamp(self.bounds[0], self.bounds[1])

        offsets = ((points - belief.location) / units).detach().requires_grad_()
        optimizer = torch.optim.LBFGS(
            [offsets], max_iter=_POLISHING_STEPS, line_search_fn="strong_wolfe"
        )

        def closure() -> Tensor:
            optimizer.zero_grad()
            # Relative to the start: the trace's own scale would stop L-BFGS at once.
            loss = self._traces(belief, placed(offsets)) / start
            loss.backward()
            return loss

        with torch.enable_grad():
            optimizer.step(closure)
        polished = placed(offsets.detach())
        trace = float(self._traces(belief, polished))
        return (polished, trace) if trace < start else (points, start)  # NaN is not better
