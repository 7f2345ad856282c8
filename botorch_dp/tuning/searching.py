r"""What happens in a private search: what is asked for, drawn and decided, in order.

Everything that is drawn goes through :meth:`.Run.release`: charged before the records are read,
stored before it is used, and replayed ever after. What was asked for is stored with its answers, so
that an interrupted run goes on where it was.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np
import torch
from scipy.optimize import minimize
from torch import Tensor
from torch.quasirandom import SobolEngine

from botorch_dp.descent.clipping import Observations, PreparedStep
from botorch_dp.descent.designs import Design, observation_noise
from botorch_dp.models.gradient import KernelFactor
from botorch_dp.models.kernels import Matern52Derivatives
from botorch_dp.objectives import ObjectiveDiagnostics
from botorch_dp.privacy import (
    GaussianLoss,
    Guarantee,
    PureLoss,
    Release,
    exponential_mechanism,
    gaussian_mechanism,
    laplace_mechanism,
    pure_dp_epsilon,
)
from botorch_dp.privacy.rounding import float_below, sqrt_below
from botorch_dp.privacy.runs import Run
from botorch_dp.scores import checked_scores, clipped_sum, grid_levels
from botorch_dp.space import Choice, Config, Integer, SearchSpace
from botorch_dp.tuning.slopes import (
    clipped_slopes,
    downhill,
    noisy_slope,
    region_points,
    slope_weights,
)

if TYPE_CHECKING:
    from botorch_dp.tuning.private_search import PrivateSearch, SearchPlan

Part = Literal["selection", "slope", "clip norm", "gradients", "score"]


class Mapper(Protocol):
    """What evaluates in parallel: an executor of ``concurrent.futures``, or a pool of processes."""

    def map(self, function: Callable[[Any], Any], items: Sequence[Any], /) -> Iterable[Any]:
        """The function's answers, in the order of the items."""


#: Configurations asked for at a time: what an interrupted run loses at most.
_CHUNK = 16
#: Integers with fewer values than this are chosen like categories: they have no slope.
_SMOOTH_LEVELS = 8
#: Of the kernel that infers gradients, and of the stencil in units of it: from, to.
_LENGTH_SCALE, _RADII = 0.4, (1.5, 0.15)
#: The side of the region of a slope over that of the one before; 0.5 was level, 0.7 worse by 0.02
#: (the generated tasks of ``which_method``, seeds 200 to 214).
_NARROWER = 0.6
#: Half the side of the box that the next location is looked for in: from, to.
_BOXES = (0.25, 0.05)
#: Released slopes that are modelled together; older ones are forgotten.
_LARGEST_MODEL = 600
#: How often a clip norm is chosen.
_CLIP_CHOICES = 3
#: Clip norms to choose from, for losses scaled to [0, 1] over the unit cube.
_CLIP_NORMS = [2.0 ** (k / 2) for k in range(-10, 9)]
#: The one to take where noise hides the counts, and what an octave away from it costs in units of
#: that noise.
_PREFERRED, _PREFERENCE = 0.25, 2.0
#: Which part of the gradients may be longer than the clip norm: at least, at most.
_LONGER = (0.05, 0.5)
#: The same, in units of the noise's length over the clip norm.
_PER_NOISE = 4


class Coordinates:
    """A space as a descent sees it: numbers that have slopes, and all else, which is chosen."""

    def __init__(self, space: SearchSpace) -> None:
        self.space = space
        coarse = [
            name
            for name, parameter in space.parameters.items()
            if isinstance(parameter, Choice)
            or (isinstance(parameter, Integer) and parameter.high - parameter.low < _SMOOTH_LEVELS)
        ]
        self.coarse = tuple(coarse)
        self.smooth = [
            columns.start for name, columns in space.columns.items() if name not in coarse
        ]

    @property
    def has_coarse(self) -> bool:
        """Whether there is anything to choose before a descent."""
        parameters = self.space.parameters
        return any(len(set(parameters[name].levels(_SMOOTH_LEVELS))) > 1 for name in self.coarse)

    def filling(self, count: int) -> list[Config]:
        """At most ``count`` different configurations: the middle, then a fixed Sobol sequence."""
        return self._distinct(count, lambda config: config)

    def categories(self, count: int) -> list[Config]:
        """The same, with everything that has a slope in the middle of its range."""
        middle = self.middle()
        smooth = {name: v for name, v in middle.items() if name not in self.coarse}
        return self._distinct(count, lambda config: {**config, **smooth})

    def at(self, base: Config, X: Tensor) -> list[Config]:
        """Configurations at ``b x p`` points of the numbers' cube, all else as in ``base``."""
        codes = self.space.encode([base]).repeat(len(X), 1)
        codes[:, self.smooth] = X.double()
        configs = self.space.decode(codes)
        return [{**c, **{name: base[name] for name in self.coarse}} for c in configs]

    def positions(self, configs: Sequence[Config]) -> Tensor:
        """Where configurations lie in the numbers' cube, ``b x p``."""
        return self.space.encode(configs)[:, self.smooth]

    def middle(self) -> Config:
        """The middle of every range, in the scale of the models."""
        return self.space.spread(np.full((1, len(self.space.parameters)), 0.5))[0]

    def _distinct(self, count: int, changed: Callable[[Config], Config]) -> list[Config]:
        found: dict[tuple[Any, ...], Config] = {}
        for tried, config in enumerate(self._stream()):
            config = changed(config)
            if self.space.satisfies(config):
                found.setdefault(tuple(config.values()), config)
            # A finite space may have fewer configurations than wanted.
            if len(found) == count or (tried >= 64 * count and (found or tried >= 10_000)):
                break
        if not found:
            raise self.space.nothing_allowed(tried + 1)
        return list(found.values())

    def _stream(self) -> Iterator[Config]:
        yield self.middle()
        engine = SobolEngine(len(self.space.parameters), scramble=True, seed=0)
        while True:
            yield from self.space.spread(engine.draw(256, dtype=torch.double).numpy())


class ScoreTable:
    """Losses of all records at what was asked for: in [0, 1], small is good. **Sensitive.**

    Where a statistic scores all records together, their predictions.
    """

    def __init__(
        self,
        search: PrivateSearch,
        run: Run,
        diagnostics: ObjectiveDiagnostics,
        tick: Callable[[int], object],
        executor: Mapper | None = None,
    ) -> None:
        self._search, self._run, self._diagnostics = search, run, diagnostics
        self._tick, self._executor = tick, executor
        self._stored: dict[int, dict[str, Any]] = run.items("scores")

    def __contains__(self, number: int) -> bool:
        return number in self._stored

    def configs(self, number: int) -> list[Config]:
        """What was asked for under a number."""
        return list(self._stored[number]["configs"])

    def losses(self, number: int, configs: list[Config] | None = None) -> Tensor:
        """``b x n`` losses, asked for at most once under each number."""
        if number not in self._stored:
            assert configs is not None
            self._stored[number] = row = {"configs": configs, "losses": self._asked(configs)}
            self._run.add("scores", number, row)
        losses: Tensor = self._stored[number]["losses"]
        self._tick(len(losses))
        return losses

    def _asked(self, configs: list[Config]) -> Tensor:
        search = self._search
        copies = [dict(config) for config in configs]
        if self._executor is None:
            scores = self._checked(search.record_scores(copies), len(copies))
        else:
            rows = self._executor.map(search.record_scores, [[config] for config in copies])
            scores = torch.cat([self._checked(row, 1) for row in rows])
        if search.statistic is not None:
            return scores
        self._diagnostics.count(scores, search.bounds)
        low, high = search.bounds
        worst = low if search.maximize else high
        within = scores.nan_to_num(nan=worst, posinf=high, neginf=low).clamp(low, high)
        fractions = ((within - low) / (high - low)).clamp(0.0, 1.0)
        return 1 - fractions if search.maximize else fractions

    def _checked(self, scores: object, num_points: int) -> Tensor:
        checked = checked_scores(
            scores,
            num_points=num_points,
            num_records=self._search.num_records,
            name="record_scores",
        )
        return checked.cpu().double()


class Searching:
    """One run of a search: what is released, in order."""

    def __init__(
        self, search: PrivateSearch, plan: SearchPlan, run: Run, table: ScoreTable
    ) -> None:
        self._search, self._plan, self._run, self._table = search, plan, run, table
        self._coordinates = search.coordinates

    def configuration(self) -> Config:
        """The configuration to publish."""
        plan, coordinates = self._plan, self._coordinates
        count = plan.evaluations.get("selection", 0)
        if plan.route == "selection":
            return self._chosen(self._search.candidates(count))
        base = coordinates.middle()
        if count:
            base = self._chosen(coordinates.categories(count))
        location = coordinates.positions([base]).squeeze(0)
        first = -(-count // _CHUNK)
        for number in range(plan.slopes):
            location = self._below(base, location, number, first)
            first += -(-plan.slope_size // _CHUNK)
        if plan.route == "descent":
            location = self._descended(base, location, first)
        return coordinates.at(base, location.unsqueeze(0))[0]

    def score(self, config: Config) -> tuple[float, float]:
        """The noisy mean score of a configuration, and the scale of its noise."""
        search, share = self._search, self._plan.shares["score"]
        number = 1_000_000_000  # after all others
        one_record, offset, unit = self._units()
        mechanism: Callable[..., Release[float]] = gaussian_mechanism
        level: dict[str, float] = {"mu": share}
        if self._plan.is_pure:
            mechanism, level = laplace_mechanism, {"epsilon": share}

        def read() -> float:
            return self._counted(self._table.losses(number, [config])[0])

        def draw(total: float) -> list[float]:
            seed = self._seed(number)
            noisy = mechanism(total, sensitivity=one_record, unsafe_seed=seed, **level)
            assert noisy.scale is not None
            return [offset + unit * noisy.value, abs(unit) * noisy.scale]

        loss, scale = self._released("score", share, draw, read, key="score")
        fraction = 1 - loss if search.maximize else loss
        low, high = search.bounds
        return low + (high - low) * fraction, (high - low) * scale

    def _chosen(self, candidates: list[Config]) -> Config:
        """One of some configurations, by permute-and-flip."""
        share = self._plan.shares["selection"]

        def read() -> Tensor:
            chunks = [candidates[i : i + _CHUNK] for i in range(0, len(candidates), _CHUNK)]
            losses = (self._table.losses(number, chunk) for number, chunk in enumerate(chunks))
            rows = itertools.chain.from_iterable(losses)
            return (
                torch.tensor([self._counted(row) for row in rows], dtype=torch.double, device="cpu")
                * sign
            )

        one_record, _, unit = self._units()
        sign = -1 if unit > 0 else 1
        chosen = self._selected("selection", share, read, one_record, key="selection", seed=0)
        return candidates[chosen]

    def _counted(self, row: Tensor) -> float:
        """One configuration's score in whole units."""
        statistic = self._search.statistic
        return statistic.units(row) if statistic else clipped_sum(row, (0.0, 1.0), nan_as=1.0)

    def _units(self) -> tuple[float, float, float]:
        """How many units one record moves, the loss of no units, and of each."""
        statistic, n = self._search.statistic, self._search.num_records
        if statistic is not None:
            return statistic.sensitivity, statistic.offset, statistic.unit
        return grid_levels(n), 0.0, 1 / (grid_levels(n) * n)

    def _below(self, base: Config, location: Tensor, number: int, first: int) -> Tensor:
        """Down the released slope of a region around a location; the first one is the cube."""
        plan, n = self._plan, self._search.num_records
        side = _NARROWER**number
        points = region_points(location, side, plan.slope_size, number)
        chunks = list(enumerate(points.split(_CHUNK), first))
        points = torch.cat([self._placed(base, place, chunk) for place, chunk in chunks])
        epsilon = float_below(Fraction(plan.shares["slope"]) / plan.slopes)

        def read() -> Tensor:
            rows = [
                self._table.losses(place, self._coordinates.at(base, chunk))
                for place, chunk in chunks
            ]
            return clipped_slopes(slope_weights(points), rows).value()

        def draw(mean: Tensor) -> Tensor:
            seed = self._seed(2_000_000 + number)
            return noisy_slope(mean, n, epsilon=epsilon, unsafe_seed=seed)

        slope = self._released("slope", epsilon, draw, read, key=f"slope {number + 1}")
        return downhill(location, slope, side)

    def _descended(self, base: Config, location: Tensor, first: int) -> Tensor:
        """Follow noisy gradients from a location, with everything coarse as in ``base``."""
        plan, coordinates, n = self._plan, self._coordinates, self._search.num_records
        dim = len(coordinates.smooth)
        derivatives = Matern52Derivatives(location.new_full((1,), _LENGTH_SCALE))
        noise = observation_noise(derivatives, location, 0.0)
        design = Design(
            radius=_RADII,
            batch_size=plan.batch_size,
            max_points=max(2000, plan.batch_size),
        )
        box = torch.tensor([[0.0] * dim, [1.0] * dim], dtype=torch.double, device="cpu")
        observations = Observations(KernelFactor.empty(derivatives, dim))
        step_mu = sqrt_below(Fraction(plan.shares["gradients"]) ** 2 / plan.steps)
        locations: list[Tensor] = []
        gradients: list[Tensor] = []
        stds: list[float] = []
        clip_norm = math.nan
        for step in range(plan.steps):
            number = first + step
            prepared = PreparedStep.of(
                observations,
                location,
                design,
                noise,
                number=step,
                steps=plan.steps,
                box=box,
                placed=functools.partial(self._placed, base, number),
            )
            seen = functools.cache(functools.partial(self._answered, prepared, base, number))
            if step in self._clip_steps():
                clip_norm = self._clip_norm(seen, prepared.belief.weights, step)
            gradient = self._gradient(seen, prepared, clip_norm, step_mu)
            observations = seen()
            locations.append(location)
            gradients.append(gradient)
            stds.append(2 * clip_norm / (n * step_mu))
            location = self._next(torch.stack(locations), torch.stack(gradients), stds, step)
        return location

    def _placed(self, base: Config, number: int, points: Tensor) -> Tensor:
        """Proposed points where configurations can be, or what was asked for before a restart."""
        if number in self._table:
            return self._coordinates.positions(self._table.configs(number))
        return self._coordinates.positions(self._coordinates.at(base, points))

    def _answered(self, prepared: PreparedStep, base: Config, number: int) -> Observations:
        losses = self._table.losses(number, self._coordinates.at(base, prepared.points))
        # After a restart there may be losses of points that were left out now.
        complete = len(losses) == len(prepared.points)
        return prepared.answered(losses if complete else losses[prepared.kept])

    def _next(self, X: Tensor, G: Tensor, stds: list[float], step: int) -> Tensor:
        """Where the Gaussian process on released gradients is smallest, near the best so far."""
        newest = slice(-max(1, _LARGEST_MODEL // X.shape[-1]), None)
        X, G, noise = (
            X[newest],
            G[newest],
            torch.tensor(stds, dtype=torch.double, device="cpu")[newest],
        )
        model = GradientModel(X, G, noise)
        best = X[int(model.mean(X).argmin())]
        wide, narrow = _BOXES
        share = step / max(self._plan.steps - 1, 1)
        return model.minimizer(best, wide * (narrow / wide) ** share)

    def _clip_steps(self) -> list[int]:
        """Before which steps a clip norm is chosen: gradients change as the stencil shrinks."""
        return sorted({self._plan.steps * part // _CLIP_CHOICES for part in range(_CLIP_CHOICES)})

    def _clip_norm(self, seen: Callable[[], Observations], weights: Tensor, step: int) -> float:
        """A clip norm that few enough gradients exceed, by permute-and-flip.

        If a part ``p`` of the gradients is longer than ``c``, lowering ``c`` adds bias in
        proportion to ``p`` and removes noise in proportion to the ratio of noise to clip norm. The
        two balance where ``p`` is that ratio. Biases of different records cancel in part, so four
        times the ratio is allowed, but no less than a twentieth and no more than half of the
        records. Where the counts are too noisy, a public preference for a small clip norm decides:
        each record then contributes only the direction of its gradient.
        """
        n = self._search.num_records
        ratio = self._search.noise_to_clip(self._plan)
        allowed = round(n * min(_LONGER[1], max(_LONGER[0], _PER_NOISE * ratio)))
        limits = torch.tensor(_CLIP_NORMS, dtype=torch.double, device="cpu")

        share = sqrt_below(Fraction(self._plan.shares["clip norm"]) ** 2 / len(self._clip_steps()))
        # Counts, and with them all utilities, are integers: no rounding moves them further.
        octaves = (limits / _PREFERRED).log2().abs()
        preference = (_PREFERENCE * octaves / pure_dp_epsilon(share)).round()

        def read() -> Tensor:
            longer = torch.zeros(len(limits), dtype=torch.double, device="cpu")
            for part in seen().gradients(weights):
                norms = part.norm(dim=0).nan_to_num(nan=math.inf)
                longer += (norms.unsqueeze(0) > limits.unsqueeze(-1)).sum(-1)
            return -(longer - allowed).abs() - preference

        key, seed = f"clip norm {step + 1}", 1_000_000 + step
        return _CLIP_NORMS[self._selected("clip norm", share, read, 1.0, key=key, seed=seed)]

    def _gradient(
        self,
        seen: Callable[[], Observations],
        prepared: PreparedStep,
        clip_norm: float,
        step_mu: float,
    ) -> Tensor:
        """The noisy mean of the clipped gradients, ``p``."""
        n, step = self._search.num_records, prepared.number

        def read() -> Tensor:
            return prepared.clipped_mean(seen(), clip_norm).value()

        def draw(value: Tensor) -> Tensor:
            return gaussian_mechanism(
                value,
                sensitivity=2 * clip_norm / n,
                mu=step_mu,
                unsafe_seed=self._seed(2 + step),
            ).value

        key = f"gradient {step + 1}"
        return self._released("gradients", step_mu, draw, read, key=key)

    def _selected(
        self,
        part: Part,
        share: float,
        read: Callable[[], Tensor],
        sensitivity: float,
        *,
        key: str,
        seed: int,
    ) -> int:
        """The index of a large utility."""
        epsilon = share if self._plan.is_pure else pure_dp_epsilon(share)

        def draw(utilities: Tensor) -> int:
            return exponential_mechanism(
                utilities,
                sensitivity=sensitivity,
                epsilon=epsilon,
                method="permute_and_flip",
                unsafe_seed=self._seed(seed),
            ).value

        return self._released(part, share, draw, read, key=key)

    def _released(
        self,
        part: Part,
        share: float,
        draw: Callable[[Any], Any],
        read: Callable[[], Any],
        *,
        key: str,
    ) -> Any:
        """What ``draw`` makes of what ``read`` saw, charged before and drawn once."""
        loss = PureLoss(share) if self._plan.is_pure else GaussianLoss(share)
        price = Guarantee(f"Private search, {part}", self._plan.guarantee.unit, (loss,))
        if self._search.unsafe_seed is not None:
            price = price.simulated()
        return self._run.release(price, draw, read=read, key=key, label=f"private search, {key}")

    def _seed(self, number: int) -> int | None:
        """One stream for each draw, so that a resumed simulation continues bit for bit."""
        seed = self._search.unsafe_seed
        return None if seed is None else (seed << 32) + number


# --- The model of released gradients. ---

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
            kernel = Matern52Derivatives(X.new_tensor([length_scale]))
            scale = length_scale**2 / kernel.fall_at_zero
            gram = scale * kernel.gradient_gram(X, X) / (std.unsqueeze(-1) * std)
            values, vectors = torch.linalg.eigh(gram)
            rotated, values = vectors.mT @ (G.flatten() / std), values.clamp_min(0.0)
            prior = -0.5 * (math.log(length_scale / _EXPECTED_LENGTH_SCALE) / _EXPECTED_SPREAD) ** 2
            for variance in (ratio * beyond for ratio in _VARIANCES):
                total = variance * values + 1
                misfit = rotated.square() / total + total.log()
                likelihood = prior - float(0.5 * misfit.sum() + std.log().sum())
                if likelihood > best:
                    best, self.length_scale, self._kernel = likelihood, length_scale, kernel
                    weights = scale * variance * (vectors @ (rotated / total)) / std
        self._weights = weights.view_as(X)  # in units of the kernel of variance 1

    def mean(self, X: Tensor) -> Tensor:
        """The posterior mean at ``b x d`` points, up to a constant: a ``b``-vector."""
        offsets = (X.unsqueeze(1) - self._X.unsqueeze(0)) / self.length_scale**2  # b x m x d
        r = torch.cdist(X, self._X) / self.length_scale
        return (self._kernel.fall(r) * (offsets * self._weights).sum(-1)).sum(-1)

    def slope(self, X: Tensor) -> Tensor:
        """The gradient of :meth:`mean`, ``b x d``."""
        return (self._kernel.gradient_gram(X, self._X) @ self._weights.flatten()).view_as(X)

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
