r"""Slope: down the slopes of the mean loss over whole regions, each from one private release.

A region of the unit cube is filled with ``N`` points, ``X`` with the mean of all points subtracted.
The slope of record ``i``'s losses ``L_i`` by least squares is ``G_i = (X^T X)^+ X^T L_i``. Each
slope is clipped to an l1 norm ``B``, and the mean is released with Laplace noise:

``g = (1/n) sum_i clip_B(G_i) + noise``.

Guarantee of one release: the points are public or follow from earlier releases, and so are the
weights ``W = (X^T X)^+ X^T``. A record enters through its own column of losses, that is through
the one vector ``clip_B(W L_i)`` of norm at most ``B``. Replacing the record moves the mean by at
most ``2B/n`` in that norm, whatever its losses are, NaN and infinite ones included. With Laplace
noise of scale ``2B/(n epsilon)`` in each coordinate this is the K-norm mechanism [Hardt2010] whose
``K`` is the l1 ball: pure epsilon-DP, without a delta. Several releases, each at epsilon over their
number, add up to epsilon, and each may look at those before.

What is done with the slope afterwards is post-processing.
"""

from __future__ import annotations

from fractions import Fraction

import torch
from torch import Tensor
from torch.quasirandom import SobolEngine

from botorch_dp.descent.step import ClippedMean
from botorch_dp.privacy import laplace_mechanism
from botorch_dp.privacy.rounding import float_below
from botorch_dp.space import Config
from botorch_dp.tuning.routes.base import (
    CHUNK,
    PURE_SCORE_SHARE,
    Part,
    Releases,
    SearchPlan,
    SlopedRoute,
    split,
)

#: The part of epsilon that chooses categories.
_CATEGORY_SHARE = 0.3
#: ``n epsilon / d`` for each further slope, the largest number of slopes, and the fewest
#: configurations of each in units of ``d + 1``. On generated tasks of ``which_method`` (seeds 200
#: to 214) one slope was best at 15, two or three at 30 to 50, and five at 75 and more.
_PER_SLOPE, _MOST_SLOPES, _STENCILS = 15, 5, 3
#: The side of the region of a slope over that of the one before; 0.5 was level, 0.7 worse by 0.02
#: (the generated tasks of ``which_method``, seeds 200 to 214).
_NARROWER = 0.6

#: The clip norm over the root of the number of parameters, for losses in [0, 1] over the unit cube.
#: It is far below a typical slope, so that each record contributes hardly more than a direction.
#: In the cells of ``which_small`` (seeds 200 to 229) 0.01 was better than 0.03, 0.1 and more on a
#: plateau, where most records are flat, and level elsewhere.
_CLIP = 0.01
#: How far to go down a slope: the part of the region's side, in each parameter on average. In the
#: same cells 0.145 and 0.22 were worse, by 0.01 to 0.03.
_STEP = 0.175
#: The most in any one parameter, for slopes along few of them; 0.2 to 0.3 were level.
_MOST = 0.25


class SlopeRoute(SlopedRoute):
    """Down the slopes of narrower and narrower regions: pure epsilon-DP."""

    name = "slope"

    def plan(self, why: str = "") -> SearchPlan:
        """Its cost and its noise."""
        n, dim, left = self.settings.num_records, self.dim, self.left
        weights: dict[Part, float] = {}
        if self.settings.coordinates.has_coarse:
            weights["selection"] = _CATEGORY_SHARE
        if self.release_score:
            weights["score"] = PURE_SCORE_SHARE
        weights["slope"] = 1 - sum(weights.values())
        shares = split(self.settings.budget.epsilon, weights)
        wanted = round(n * shares["slope"] / (_PER_SLOPE * dim))
        slopes = max(1, min(_MOST_SLOPES, wanted, left // (_STENCILS * (dim + 1))))
        size = left // slopes
        # Of vectors in all directions, an l1 norm is 0.8 sqrt(d) times the l2 norm.
        noise = 2.3 * dim * slopes / (n * shares["slope"])
        what = "one noisy average gradient over the whole space"
        if slopes > 1:
            what = f"{slopes} noisy average gradients over smaller and smaller regions"
        return self.planned(
            reason=f"{what}{self.after_categories}, because {why}",
            shares=shares,
            evaluations={"selection": self.num_categories, "score": 1, "slope": slopes * size},
            noise=f"With {n:,} {self.settings.unit.counted} the noise of each is about "
            f"{noise:.2g} times the gradient that there would be if all records agreed.",
            seen=f"slope, a change that helps {100 * min(noise, 1):.2g}% more records than it "
            "hurts",
            slopes=slopes,
            slope_size=size,
        )

    def run(self, plan: SearchPlan, releases: Releases) -> Config:
        """The configuration at the end of all slopes."""
        base, location, first = self.start(releases)
        for number in range(plan.slopes):
            location = self._step(plan, releases, base, location, number, first)
            first += -(-plan.slope_size // CHUNK)
        return self.settings.coordinates.at(base, location.unsqueeze(0))[0]

    def _step(
        self,
        plan: SearchPlan,
        releases: Releases,
        base: Config,
        location: Tensor,
        number: int,
        first: int,
    ) -> Tensor:
        """Down the released slope of a region around a location; the first one is the cube."""
        side = _NARROWER**number
        points = region_points(location, side, plan.slope_size, number)
        chunks = list(enumerate(points.split(CHUNK), first))
        points = torch.cat([releases.placed(base, place, chunk) for place, chunk in chunks])
        epsilon = float_below(Fraction(plan.shares["slope"]) / plan.slopes)

        def read() -> Tensor:
            rows = [releases.losses(base, place, chunk) for place, chunk in chunks]
            return clipped_slopes(slope_weights(points), rows).value()

        def draw(mean: Tensor) -> Tensor:
            seed = releases.seed(2_000_000 + number)
            n = self.settings.num_records
            return noisy_slope(mean, n, epsilon=epsilon, unsafe_seed=seed)

        slope = releases.release("slope", epsilon, draw, read, key=f"slope {number + 1}")
        return downhill(location, slope, side)


def region_points(center: Tensor, side: float, count: int, number: int) -> Tensor:
    """``count x d`` points that fill a box of this side around a location, inside the unit cube."""
    engine = SobolEngine(len(center), scramble=True, seed=number)
    offsets = engine.draw(count, dtype=torch.double) - 0.5
    return (center + side * offsets).clamp(0.0, 1.0)


def slope_weights(points: Tensor) -> Tensor:
    """``W`` (``d x N``): what the losses at ``N x d`` points are multiplied with."""
    return torch.linalg.pinv(points - points.mean(0))


def clipped_slopes(weights: Tensor, losses: list[Tensor]) -> ClippedMean:
    """The mean of the records' clipped slopes, without noise. **Sensitive.**

    Args:
        weights: ``d x N``, see :func:`slope_weights`.
        losses: At these points, some rows at a time: each ``b x n``.
    """
    dim, num_records = len(weights), losses[0].shape[-1]
    parts = weights.split([len(rows) for rows in losses], dim=1)
    slopes = sum(
        (part @ rows for part, rows in zip(parts, losses, strict=True)),
        start=weights.new_zeros(dim, num_records),
    )
    mean = ClippedMean(dim, num_records, clip_norm(dim), norm="l1")
    mean.add(slopes)
    return mean


def clip_norm(dim: int) -> float:
    """``B``, which is public."""
    return float(_CLIP * dim**0.5)


def noisy_slope(
    mean: Tensor, num_records: int, *, epsilon: float, unsafe_seed: int | None = None
) -> Tensor:
    """The mean slope with Laplace noise."""
    sensitivity = 2 * clip_norm(len(mean)) / num_records
    return laplace_mechanism(
        mean, sensitivity=sensitivity, epsilon=epsilon, unsafe_seed=unsafe_seed
    ).value


def downhill(location: Tensor, slope: Tensor, side: float) -> Tensor:
    """Down a slope that was seen over a box of this side, as far as it can be trusted."""
    length = slope.norm().clamp_min(torch.finfo(torch.double).tiny)
    step = _STEP * side * len(location) ** 0.5 * slope / length
    most = _MOST * side
    return (location - step.clamp(-most, most)).clamp(0.0, 1.0)
