"""Where to ask for losses around a location. Everything here is public."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, get_args

import torch
from torch import Tensor

from botorch_dp._checks import (
    check_choice,
    check_integer,
    check_nonnegative,
    check_positive,
)
from botorch_dp.models.gradient import (
    GradientBelief,
    Stencil,
    leading_basis,
    place_stencil,
    radius_grid,
    stencil_directions,
)
from botorch_dp.models.kernels import KernelDerivatives

DesignName = Literal["simplex", "central", "optimize"]
PriorMean = Literal["constant", "zero"]

_RADII = 24
# Once a radius is known, only its neighbours are tried.
_NEIGHBOURS = (1 / 2.25, 1 / 1.5, 1.0, 1.5, 2.25)
_POLISHING_STEPS = 15
# The numerical noise as a power of the rounding error, relative to the kernel's variance: 4e-10 in
# double, 7e-5 in single precision.
_RESOLUTION_EXPONENT = 0.6
# A trace below this power of the rounding error, relative to the prior's, is rounding itself.
_KNOWN_EXPONENT = 0.65


def numerical_noise(derivatives: KernelDerivatives, location: Tensor) -> float:
    """The variance below which differences of losses have no digits left.

    Without noise the trace falls with the radius until rounding takes over. A model that trusts
    every digit turns rounding, and the part of a loss that is no function of the kernel's kind,
    into slopes: with a smooth kernel and some dozens of points they bury the gradient.
    """
    variance = float(derivatives.diagonal(location.unsqueeze(0)))
    return variance * torch.finfo(location.dtype).eps ** _RESOLUTION_EXPONENT


def observation_noise(derivatives: KernelDerivatives, location: Tensor, noise_std: float) -> float:
    """The noise variance to model observations with.

    A kernel of finite rank is spared the numerical noise: its own rank keeps it well conditioned,
    and once it is spanned the gradient is known.
    """
    if derivatives.has_finite_rank:
        return noise_std**2
    return max(noise_std**2, numerical_noise(derivatives, location))


@dataclass(frozen=True)
class Design:
    """Where to ask for losses, how many answers to keep, and what to assume of them.

    The next points are a function of these settings and of what was released.

    Args:
        name: ``"simplex"``, ``"central"`` (mirrored pairs), or ``"optimize"`` (a simplex, then some
            L-BFGS steps on the trace of all points jointly).
        batch_size: Points for each step; the most points when ``tolerance`` is given. Defaults to
            one full stencil: ``d + 1``, or ``2 d`` for ``"central"``.
        radius: In length-scales of the kernel: a number, a pair ``(first, last)`` to shrink
            geometrically over the run, or None for the one with the smallest trace. Small radii
            sit in every ripple of a rough loss.
        tolerance: Take the fewest points for which the trace of the gradient's covariance is at
            most this (Algorithm 2 of [Sopa2025]); possibly none.
        noise_std: Standard deviation of the noise in a single record's loss, for the model. A
            numerical variance of a few parts in 1e10 is the least, except with polynomial kernels.
        mean: Prior mean of the losses, ``"constant"`` (unknown) or ``"zero"``.
        max_points: How many points are kept; the oldest batches are dropped.

    Example:
        >>> Design(radius=(1.5, 0.15), max_points=500)
    """

    name: DesignName = "simplex"
    batch_size: int | None = None
    radius: float | tuple[float, float] | None = None
    tolerance: float | None = None
    noise_std: float = 0.0
    mean: PriorMean = "constant"
    max_points: int = 2000

    def __post_init__(self) -> None:
        check_choice("design (its name)", self.name, get_args(DesignName))
        check_choice("mean", self.mean, get_args(PriorMean))
        if self.batch_size is not None:
            check_integer("batch_size", self.batch_size)
        if self.tolerance is not None:
            check_positive("tolerance", self.tolerance)
        check_nonnegative("noise_std", self.noise_std)
        check_integer("max_points", self.max_points)
        if isinstance(self.radius, list | tuple):
            object.__setattr__(self, "radius", tuple(self.radius))
            if len(self.radius) != 2:
                raise ValueError(
                    f"`radius` must be a number or a pair, got {len(self.radius)} numbers."
                )
        for radius in self.radius if isinstance(self.radius, tuple) else (self.radius,):
            if radius is not None:
                check_positive("radius", radius)

    def size(self, dim: int) -> int:
        """How many points a step asks for, at most, in ``dim`` dimensions."""
        if self.batch_size is not None:
            return self.batch_size
        return 2 * dim if self.name == "central" else dim + 1

    def propose(
        self,
        belief: GradientBelief,
        *,
        box: Tensor | None = None,
        step: int = 0,
        steps: int = 1,
        previous: float | None = None,
    ) -> tuple[Tensor, float]:
        """Points (``b x d``) in a ``2 x d`` box around a location, and their radius.

        As many as the batch has; with a tolerance fewer; none where nothing is left to learn. A
        search for the radius starts from that of the ``previous`` step, counted from 0.
        """
        d = belief.location.shape[0]
        if belief.points.shape[0]:
            # As a polynomial kernel has once it is spanned, or any kernel in a converged run.
            known = torch.finfo(belief.location.dtype).eps ** _KNOWN_EXPONENT
            limit = known * belief.prior.trace()
            if bool(belief.trace <= limit.clamp_min(self.tolerance or 0.0)):
                return belief.location.new_zeros(0, d), 0.0
        radii = self._radii(belief.location.dtype, step, steps, previous)
        count = self.size(d)
        if self.tolerance is None:
            return self._stencil(belief, count, radii, box)[:2]
        for fewer in range(1, count + 1):
            points, radius, trace = self._stencil(belief, fewer, radii, box)
            if trace <= self.tolerance:
                break
        return points, radius

    def _stencil(
        self, belief: GradientBelief, count: int, radii: list[float], box: Tensor | None
    ) -> tuple[Tensor, float, float]:
        """``count`` points at the best of some radii, it, and the trace they leave if needed."""
        stencil: Stencil = "central" if self.name == "central" else "simplex"
        units = belief.units
        directions = stencil_directions(stencil, count, leading_basis(belief.covariance, units))
        candidates = place_stencil(
            belief.location, directions, belief.location.new_tensor(radii), units, box
        )
        is_wanted = self.tolerance is not None or self.name == "optimize"
        if len(radii) == 1 and not is_wanted:
            return candidates[0], radii[0], math.nan
        # Losses are trusted to a limited number of digits only.
        noise = max(self.noise_std**2, numerical_noise(belief.derivatives, belief.location))
        with torch.no_grad():
            traces = belief.trace_after(candidates, noise)
        best = int(traces.argmin())
        points, trace = candidates[best], float(traces[best]) if is_wanted else math.nan
        if self.name == "optimize":
            points, trace = _polished(belief, points, trace, noise, box)
        return points, radii[best], trace

    def _radii(
        self, dtype: torch.dtype, step: int, steps: int, previous: float | None
    ) -> list[float]:
        """The radii to choose from, one or several."""
        if isinstance(self.radius, tuple):
            first, last = self.radius
            return [first * (last / first) ** (step / max(steps - 1, 1))]
        if self.radius is not None:
            return [self.radius]
        grid = _grid(dtype)
        if previous is None:
            return list(grid)
        # The best radius settles soon: look again after 1, 2, 4, 8, ... steps only.
        factors = _NEIGHBOURS if step & (step - 1) == 0 else (1.0,)
        previous = float(previous)
        return [min(max(previous * factor, grid[0]), grid[-1]) for factor in factors]


@lru_cache
def _grid(dtype: torch.dtype) -> tuple[float, ...]:
    return tuple(radius_grid(_RADII, like=torch.zeros((), dtype=dtype, device="cpu")).tolist())


def _polished(
    belief: GradientBelief, points: Tensor, start: float, noise: float, box: Tensor | None
) -> tuple[Tensor, float]:
    """Improve all points jointly, in units of the kernel's length-scales."""
    units = belief.units

    def placed(offsets: Tensor) -> Tensor:
        moved = belief.location + units * offsets
        return moved if box is None else moved.clamp(box[0], box[1])

    offsets = ((points - belief.location) / units).detach().requires_grad_()
    optimizer = torch.optim.LBFGS(
        [offsets], max_iter=_POLISHING_STEPS, line_search_fn="strong_wolfe"
    )

    def closure() -> Tensor:
        optimizer.zero_grad()
        # Relative to the start: the trace's own scale would stop L-BFGS at once.
        loss = belief.trace_after(placed(offsets), noise) / start
        loss.backward()
        return loss

    with torch.enable_grad():
        optimizer.step(closure)
    with torch.no_grad():
        polished = placed(offsets)
        trace = float(belief.trace_after(polished, noise))
    return (polished, trace) if trace < start else (points, start)  # NaN is not better


def as_design(design: Design | DesignName) -> Design:
    """The design itself, or the one of that name with everything else as usual."""
    return design if isinstance(design, Design) else Design(design)
