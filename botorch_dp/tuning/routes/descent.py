r"""Descent: gradients of single records, clipped, averaged and released with Gaussian noise.

Each step is one of DP-GIBO (see :mod:`botorch_dp.descent.step`); where to go next is read off a
Gaussian process on the gradients that were released, which is post-processing.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterator
from fractions import Fraction

import numpy as np
import torch
from scipy.optimize import minimize
from torch import Tensor

from botorch_dp.descent.designs import Design, observation_noise
from botorch_dp.descent.step import GradientStep, Observations
from botorch_dp.models.gradient import KernelFactor
from botorch_dp.models.kernels import Matern52Derivatives
from botorch_dp.privacy import pure_dp_epsilon
from botorch_dp.privacy.rounding import sqrt_below
from botorch_dp.space import Config
from botorch_dp.tuning.routes.base import Part, Releases, SearchPlan, SlopedRoute, split

#: More steps than this only divide the budget further; evaluations left over widen each stencil.
_MOST_STEPS = 25
#: The squares of mu for the categories, the clip norms, and the score where it is released.
_CATEGORY_SHARE, _CLIP_SHARE, _SCORE_SHARE = 0.1, 0.08, 0.1
#: Up to this ``n mu / sqrt(d)`` slopes of regions show more than gradients at single locations:
#: ``which_small`` has regrets of 0.171 against 0.365 between 5 and 10. From 11 to 40 slopes were
#: better on a plateau and on noisy losses, and worse on heavy tails and, by up to 0.13, on ripples
#: (seeds 3 to 12 of the generated tasks and of the grid).
_SLOPES_UP_TO = 11.0
#: Of the kernel that infers gradients, and of the stencil in units of it: from, to.
_LENGTH_SCALE, _RADII = 0.4, (1.5, 0.15)
#: Half the side of the box that the next location is looked for in: from, to.
_BOXES = (0.25, 0.05)
#: Released slopes that are modelled together; older ones are forgotten.
_LARGEST_MODEL = 600
#: How often a clip norm is chosen.
_CLIP_CHOICES = 3
#: Clip norms to choose from, for losses scaled to [0, 1] over the unit cube.
CLIP_NORMS = [2.0 ** (k / 2) for k in range(-10, 9)]
#: The one to take where noise hides the counts, and what an octave away from it costs in units of
#: that noise.
_PREFERRED, _PREFERENCE = 0.25, 2.0
#: Which part of the gradients may be longer than the clip norm: at least, at most.
_LONGER = (0.05, 0.5)
#: The same, in units of the noise's length over the clip norm.
_PER_NOISE = 4


class DescentRoute(SlopedRoute):
    """Down noisy gradients at one location after another: Gaussian differential privacy."""

    name = "descent"
    is_pure = False

    def objections(self) -> Iterator[tuple[str, bool]]:
        """The same, a budget without a delta, and noise that is known to hide single gradients."""
        yield from super().objections()
        n = self.settings.num_records
        if self.settings.budget.delta == 0:
            yield "the budget has no delta, which Gaussian noise would need.", True
        elif n * self.settings.mu / math.sqrt(self.dim) <= _SLOPES_UP_TO:
            words = "gradients at single locations would be small beside their noise."
            yield f"with {n:,} {self.settings.unit.counted} the {words}", False

    def plan(self, why: str = "") -> SearchPlan:
        """Its cost and its noise."""
        n, dim, left = self.settings.num_records, self.dim, self.left
        weights: dict[Part, float] = {"clip norm": _CLIP_SHARE}
        if self.settings.coordinates.has_coarse:
            weights["selection"] = _CATEGORY_SHARE
        if self.release_score:
            weights["score"] = _SCORE_SHARE
        weights["gradients"] = 1 - sum(weights.values())
        shares = split(self.settings.mu, weights, power=2)
        steps = min(_MOST_STEPS, left // (dim + 1))
        size = min(left // steps, 4 * (dim + 1))
        ratio = self._noise_to_clip(shares["gradients"], steps)
        averaged = ratio / math.sqrt(steps)
        why = why or (
            f"{self.settings.evaluations} configurations would cover a {dim}-dimensional space too "
            "thinly."
        )
        return self.planned(
            reason=f"{steps} noisy gradient steps{self.after_categories}, because {why}",
            shares=shares,
            evaluations={"selection": self.num_categories, "score": 1, "gradients": steps * size},
            noise=f"With {n:,} {self.settings.unit.counted} the noise is {ratio:.2g} times the "
            f"clipping norm in each step (about {averaged:.2g} averaged over all steps).",
            seen=f"descent, one that helps {100 * min(averaged, 1):.2g}% more",
            steps=steps,
            batch_size=size,
        )

    def _noise_to_clip(self, share: float, steps: int) -> float:
        """Typical length of one gradient's noise over the longest gradient there can be."""
        step_mu = share / math.sqrt(steps)
        return 2 * math.sqrt(self.dim) / (self.settings.num_records * step_mu)

    def run(self, plan: SearchPlan, releases: Releases) -> Config:
        """The configuration at the last location."""
        base, location, first = self.start(releases)
        derivatives = Matern52Derivatives(location.new_full((1,), _LENGTH_SCALE))
        noise = observation_noise(derivatives, location, 0.0)
        size = plan.batch_size
        design = Design(radius=_RADII, batch_size=size, max_points=max(2000, size))
        box = torch.tensor([[0.0] * self.dim, [1.0] * self.dim], dtype=torch.double, device="cpu")
        observations = Observations(KernelFactor.empty(derivatives, self.dim))
        step_mu = sqrt_below(Fraction(plan.shares["gradients"]) ** 2 / plan.steps)
        price = releases.price("gradients", step_mu)
        # Gradients change as the stencil shrinks, and their clip norm with them.
        clip_steps = {plan.steps * part // _CLIP_CHOICES for part in range(_CLIP_CHOICES)}
        clip_share = sqrt_below(Fraction(plan.shares["clip norm"]) ** 2 / len(clip_steps))
        locations: list[Tensor] = []
        gradients: list[Tensor] = []
        stds: list[float] = []
        clip_norm = math.nan
        for step in range(plan.steps):
            number = first + step
            prepared = GradientStep.of(
                observations,
                location,
                design,
                noise,
                number=step,
                steps=plan.steps,
                box=box,
                placed=functools.partial(releases.placed, base, number),
            )
            losses = functools.partial(releases.losses, base, number, prepared.points)
            observe = functools.cache(functools.partial(_observed, prepared, losses))
            if step in clip_steps:
                clip_norm = self._clip_norm(plan, releases, clip_share, observe, prepared)
            gradient, observations, _ = prepared.release(
                releases.run,
                observe,
                clip_norm=clip_norm,
                mu=step_mu,
                price=price,
                key=f"gradient {step + 1}",
                label=f"private search, gradient {step + 1}",
                unsafe_seed=releases.seed(2 + step),
            )
            locations.append(location)
            gradients.append(gradient)
            stds.append(2 * clip_norm / (self.settings.num_records * step_mu))
            location = _next_location(locations, gradients, stds, step / max(plan.steps - 1, 1))
        return self.settings.coordinates.at(base, location.unsqueeze(0))[0]

    def _clip_norm(
        self,
        plan: SearchPlan,
        releases: Releases,
        share: float,
        observe: Callable[[], Observations],
        prepared: GradientStep,
    ) -> float:
        """A clip norm that few enough gradients exceed, by permute-and-flip.

        If a part ``p`` of the gradients is longer than ``c``, lowering ``c`` adds bias in
        proportion to ``p`` and removes noise in proportion to the ratio of noise to clip norm. The
        two balance where ``p`` is that ratio. Biases of different records cancel in part, so four
        times the ratio is allowed, but no less than a twentieth and no more than half of the
        records. Where the counts are too noisy, a public preference for a small clip norm decides:
        each record then contributes only the direction of its gradient.
        """
        n, step = self.settings.num_records, prepared.number
        ratio = self._noise_to_clip(plan.shares["gradients"], plan.steps)
        allowed = round(n * min(_LONGER[1], max(_LONGER[0], _PER_NOISE * ratio)))
        limits = torch.tensor(CLIP_NORMS, dtype=torch.double, device="cpu")
        # Counts, and with them all utilities, are integers: no rounding moves them further.
        octaves = (limits / _PREFERRED).log2().abs()
        preference = (_PREFERENCE * octaves / pure_dp_epsilon(share)).round()

        def read() -> Tensor:
            longer = torch.zeros(len(limits), dtype=torch.double, device="cpu")
            for part in observe().gradients(prepared.belief.weights):
                norms = part.norm(dim=0).nan_to_num(nan=math.inf)
                longer += (norms.unsqueeze(0) > limits.unsqueeze(-1)).sum(-1)
            return -(longer - allowed).abs() - preference

        key, seed = f"clip norm {step + 1}", 1_000_000 + step
        return CLIP_NORMS[releases.select("clip norm", share, read, 1.0, key=key, seed=seed)]


def _observed(prepared: GradientStep, losses: Callable[[], Tensor]) -> Observations:
    found = losses()
    # After a restart there may be losses of points that were left out now.
    complete = len(found) == len(prepared.points)
    return prepared.answered(found if complete else found[prepared.kept])


# --- Where to go next. ---


def _next_location(
    locations: list[Tensor], gradients: list[Tensor], stds: list[float], progress: float
) -> Tensor:
    """Where the Gaussian process on released gradients is smallest, near the best so far.

    Args:
        locations: One ``d``-vector for each step.
        gradients: What was released there.
        stds: Of their noise.
        progress: Which part of the run is over, which narrows the box to look in.
    """
    newest = slice(-max(1, _LARGEST_MODEL // len(locations[0])), None)
    X, G = torch.stack(locations)[newest], torch.stack(gradients)[newest]
    noise = torch.tensor(stds, dtype=torch.double, device="cpu")[newest]
    model = GradientModel(X, G, noise)
    best = X[int(model.mean(X).argmin())]
    wide, narrow = _BOXES
    return model.minimizer(best, wide * (narrow / wide) ** progress)


#: Length-scales to choose from, in units of the cube.
_LENGTH_SCALES = torch.logspace(
    math.log10(0.1), math.log10(3.0), 9, dtype=torch.double, device="cpu"
).tolist()
#: Variances of the slopes to choose from, in units of what is seen beyond the noise.
_VARIANCES = torch.logspace(-1.0, 1.0, 7, dtype=torch.double, device="cpu").tolist()
#: What no smooth function explains, as a part of what is seen beyond the noise.
_UNEXPLAINED = (0.0, 0.1)
#: What is expected of the length-scale before anything is seen, and how firmly (in logarithms).
_EXPECTED_LENGTH_SCALE, _EXPECTED_SPREAD = 0.5, 0.8
_STARTS = 6
_SQRT5 = math.sqrt(5.0)


def gradient_gram(X: Tensor, Z: Tensor, length_scale: float) -> Tensor:
    """Gram matrix of the gradients at ``X`` (``m x d``) and ``Z``, ``m d x k d``.

    Of the Matern-5/2 kernel of unit variance, the same length-scale in all coordinates.
    """
    offsets = (X.unsqueeze(1) - Z.unsqueeze(0)) / length_scale  # m x k x d
    s = _SQRT5 * torch.linalg.vector_norm(offsets, dim=-1)[..., None, None]
    outer = offsets.unsqueeze(-1) * offsets.unsqueeze(-2)  # m x k x d x d
    d, decay = X.shape[-1], torch.exp(-s)
    identity = torch.eye(d, dtype=X.dtype, device=X.device)
    blocks = (5.0 / 3.0) * (1 + s) * decay * identity - (25.0 / 3.0) * decay * outer
    blocks = blocks / (length_scale * length_scale)
    return blocks.transpose(1, 2).reshape(len(X) * d, len(Z) * d)


class GradientModel:
    r"""A Gaussian process that has seen noisy gradients only, and where its mean is smallest.

    The posterior given gradients ``G`` at ``X`` (both ``m x d``) with known noise (``m``). With the
    Matern-5/2 kernel of variance ``a^2 l^2 3/5`` and length-scale ``l``, ``D = x - x'`` and
    ``s = sqrt(5) |D| / l``,

        Cov(grad f(x), grad f(x')) = a^2 e^{-s} [(1 + s) I - 5 D D^T / l^2],
        Cov(f(x), grad f(x'))      = a^2 e^{-s} (1 + s) D,

    so that ``a^2`` is the prior variance of each slope. All it reads is released: locations,
    gradients and the known variance of their noise.

    Length-scale, variance, and the part of the gradients that no smooth function explains (they
    come from stencils of a finite width) are those of the largest likelihood on a grid.

    Example:
        >>> model = GradientModel(locations, gradients, torch.full((len(locations),), 0.01))
        >>> model.minimizer(locations[-1], radius=0.1)
    """

    def __init__(self, X: Tensor, G: Tensor, noise_std: Tensor) -> None:
        self._X = X
        seen = float(G.square().mean())
        noise = noise_std.double().square().clamp_min(max(1e-8 * seen, 1e-200))  # m
        beyond = max(seen - float(noise.mean()), 0.1 * float(noise.mean()))
        best = -math.inf
        for length_scale, share in itertools.product(_LENGTH_SCALES, _UNEXPLAINED):
            # In units of the noise, one decomposition serves all variances of the slopes.
            std = (noise + share * beyond).sqrt().repeat_interleave(X.shape[-1])
            # The kernel of this scale has slopes of unit variance.
            scale = length_scale**2 / (5.0 / 3.0)
            gram = scale * gradient_gram(X, X, length_scale) / (std.unsqueeze(-1) * std)
            values, vectors = torch.linalg.eigh(gram)
            rotated, values = vectors.mT @ (G.flatten() / std), values.clamp_min(0.0)
            prior = -0.5 * (math.log(length_scale / _EXPECTED_LENGTH_SCALE) / _EXPECTED_SPREAD) ** 2
            for variance in (ratio * beyond for ratio in _VARIANCES):
                total = variance * values + 1
                misfit = rotated.square() / total + total.log()
                likelihood = prior - float(0.5 * misfit.sum() + std.log().sum())
                if likelihood > best:
                    best, self.length_scale = likelihood, length_scale
                    weights = scale * variance * (vectors @ (rotated / total)) / std
        self._weights = weights.view_as(X)  # in units of the kernel of variance 1

    def mean(self, X: Tensor) -> Tensor:
        """The posterior mean at ``b x d`` points, up to a constant: a ``b``-vector."""
        offsets = (X.unsqueeze(1) - self._X.unsqueeze(0)) / self.length_scale**2  # b x m x d
        s = _SQRT5 * (torch.cdist(X, self._X) / self.length_scale)
        fall = (5.0 / 3.0) * (1 + s) * torch.exp(-s)
        return (fall * (offsets * self._weights).sum(-1)).sum(-1)

    def slope(self, X: Tensor) -> Tensor:
        """The gradient of :meth:`mean`, ``b x d``."""
        gram = gradient_gram(X, self._X, self.length_scale)
        return (gram @ self._weights.flatten()).view_as(X)

    def minimizer(self, center: Tensor, radius: float) -> Tensor:
        """Where the mean is smallest in a box around ``center``, inside the unit cube."""
        low = (center - radius).clamp(0.0, 1.0)
        high = (center + radius).clamp(0.0, 1.0)
        near = ((self._X >= low) & (self._X <= high)).all(-1)
        slope = self.slope(center.unsqueeze(0)).squeeze(0)
        length = slope.abs().max().clamp_min(torch.finfo(torch.double).tiny)
        downhill = (center - radius * slope / length).clamp(low, high)
        starts = torch.cat((center.unsqueeze(0), downhill.unsqueeze(0), self._X[near]))
        starts = starts[self.mean(starts).argsort(stable=True)[:_STARTS]]

        def value_and_slope(x: np.ndarray) -> tuple[float, np.ndarray]:
            point = torch.from_numpy(x).unsqueeze(0)
            return float(self.mean(point)), self.slope(point).squeeze(0).numpy()

        box = list(zip(low.tolist(), high.tolist(), strict=True))
        scale = float(self.mean(starts).abs().max()) or 1.0
        found = [
            minimize(
                lambda x: tuple(part / scale for part in value_and_slope(x)),
                start.numpy(),
                jac=True,
                bounds=box,
                method="L-BFGS-B",
                options={"maxiter": 100},
            )
            for start in starts
        ]
        best = min(found, key=lambda result: float(result.fun))
        return torch.from_numpy(np.asarray(best.x, dtype=np.float64)).clamp(low, high)
