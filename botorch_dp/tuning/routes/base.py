"""What all methods of a private search share: settings, plan, scores and releases.

Everything that is drawn goes through :meth:`.Run.release`: charged before the records are read,
stored before it is used, and replayed ever after. What was asked for is stored with its answers, so
that an interrupted run goes on where it was.
"""

from __future__ import annotations

import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor
from torch.quasirandom import SobolEngine

from botorch_dp.privacy import (
    GaussianLoss,
    Guarantee,
    PrivacyBudget,
    PrivacyUnit,
    PureLoss,
    Release,
    exponential_mechanism,
    gaussian_mechanism,
    gaussian_mu,
    laplace_mechanism,
    pure_dp_epsilon,
)
from botorch_dp.privacy.runs import Run
from botorch_dp.scores import (
    AT_ONCE,
    ScoreDiagnostics,
    Statistic,
    checked_scores,
    clipped_sum,
    grid_levels,
    without_subnormals,
)
from botorch_dp.space import Choice, Config, Integer, SearchSpace

RecordScores = Callable[[list[Config]], Any]
Part = Literal["selection", "slope", "clip norm", "gradients", "score"]


#: Configurations asked for at a time: what an interrupted run loses at most.
CHUNK = 16
#: Integers with fewer values than this are chosen like categories: they have no slope.
_SMOOTH_LEVELS = 8
#: The part of the evaluations that chooses categories.
_CATEGORY_EVALUATIONS = 0.25
#: The part of a pure epsilon for the score.
PURE_SCORE_SHARE = 0.2
#: With so few numbers to tune, space-filling points come close enough by themselves.
_FEW = 2
#: The same where an incumbent is compared, too: on estimators with three or four numbers a
#: selection was better than slopes for four of five, and level for one (``which_trees``).
_FEW_BESIDE_AN_INCUMBENT = 4


# --- The space. ---


class Coordinates:
    """A space as a descent sees it: numbers that have slopes, and all else, which is chosen."""

    def __init__(self, space: SearchSpace) -> None:
        self.space = space
        parameters = space.parameters
        self.coarse = tuple(
            name
            for name, parameter in parameters.items()
            if isinstance(parameter, Choice)
            or (isinstance(parameter, Integer) and parameter.high - parameter.low < _SMOOTH_LEVELS)
        )
        self.smooth = [
            columns.start for name, columns in space.columns.items() if name not in self.coarse
        ]
        #: Whether there is anything to choose before a descent.
        self.has_coarse = any(
            len(set(parameters[name].levels(_SMOOTH_LEVELS))) > 1 for name in self.coarse
        )

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
        codes = torch.zeros(len(X), self.space.dim, dtype=torch.double, device="cpu")
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
        constrained = bool(self.space.constraints)
        for tried, config in enumerate(self._stream()):
            config = changed(config)
            if not constrained or self.space.satisfies(config):
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


# --- What was asked for, and what follows from it. ---


@dataclass(frozen=True, eq=False)
class SearchSettings:
    """The public settings of a search; see :class:`~botorch_dp.tuning.PrivateSearch`."""

    space: SearchSpace
    bounds: tuple[float, float]
    budget: PrivacyBudget
    evaluations: int
    num_records: int
    maximize: bool
    statistic: Statistic | None
    has_steps: bool
    incumbent: Config | None
    unit: PrivacyUnit
    unsafe_seed: int | None

    @cached_property
    def coordinates(self) -> Coordinates:
        """The space, split into numbers with slopes and all else."""
        return Coordinates(self.space)

    @cached_property
    def mu(self) -> float:
        """The budget of Gaussian releases, if it has a delta."""
        return gaussian_mu(self.budget.epsilon, self.budget.delta)

    @property
    def one_record(self) -> float:
        """By how much one record may move the score of a configuration."""
        if self.statistic is not None:
            return self.statistic.sensitivity * abs(self.statistic.unit)
        return (self.bounds[1] - self.bounds[0]) / self.num_records

    def guarantee(self, mechanism: str, loss: PureLoss | GaussianLoss) -> Guarantee:
        """Of what is released, or of a part of it."""
        guarantee = Guarantee(mechanism, self.unit, (loss,))
        return guarantee if self.unsafe_seed is None else guarantee.simulated()


@dataclass(frozen=True)
class SearchPlan:
    """Public facts about a search that has not begun: its cost, its noise and its evaluations.

    Args:
        method: ``"selection"``, ``"slope"`` or ``"descent"``.
        reason: Why, in a sentence.
        num_records: ``n``.
        evaluations: How many configurations all records are scored at, for each part.
        shares: What each part costs: an epsilon (selection) or a mu (descent).
        noise: What to expect of the noise, in a sentence.
        guarantee: Of everything that is published.
        is_pure: Whether all that is released is pure epsilon-DP.
        seen: The smallest effect that each method can detect at this budget, in a sentence.
        steps: Released gradients.
        batch_size: Configurations for each of them.
        slopes: Released slopes of whole regions, the first of which is the whole space.
        slope_size: Configurations for each of them.
    """

    method: str
    reason: str
    num_records: int
    evaluations: dict[Part, int]
    shares: dict[Part, float]
    noise: str
    guarantee: Guarantee
    is_pure: bool
    seen: str = ""
    steps: int = 0
    batch_size: int = 0
    slopes: int = 0
    slope_size: int = 0

    def __str__(self) -> str:
        power = 1 if self.is_pure else 2
        whole = sum(share**power for share in self.shares.values())
        parts = [
            f"{share**power / whole:.0%} for the {part} ({self.evaluations.get(part, 0)} "
            "evaluations)"
            for part, share in self.shares.items()
        ]
        budget = f"Budget: {', '.join(parts)}."
        method = f"Method: {self.reason[0].upper()}{self.reason[1:]}"
        return "\n".join((method, budget, self.noise, self.seen, self.guarantee.in_plan))


class Route(ABC):
    """A way to search: its cost in advance, and what it does.

    Args:
        settings: Of the search.
        release_score: Whether the score of the configuration is released, too.
    """

    name: ClassVar[str]
    #: Whether all that is released is pure epsilon-DP.
    is_pure: ClassVar[bool] = True

    def __init__(self, settings: SearchSettings, release_score: bool) -> None:
        self.settings, self.release_score = settings, release_score

    def objections(self) -> Iterator[tuple[str, bool]]:
        """What speaks against it, in sentences, and whether it cannot be taken at all."""
        yield from ()

    def objection(self) -> str | None:
        """The first of them; None if nothing speaks against it."""
        return next((words for words, _ in self.objections()), None)

    def obstacle(self) -> str | None:
        """Why it cannot be taken at all; None if it can."""
        return next((words for words, final in self.objections() if final), None)

    @abstractmethod
    def plan(self, why: str = "") -> SearchPlan:
        """Its public cost and settings; reads no record.

        Args:
            why: Why it is taken, in a sentence.
        """

    @abstractmethod
    def run(self, plan: SearchPlan, releases: Releases) -> Config:
        """The configuration to publish."""

    def planned(
        self,
        *,
        reason: str,
        shares: dict[Part, float],
        evaluations: dict[Part, int],
        noise: str,
        seen: str,
        **sizes: int,
    ) -> SearchPlan:
        """A plan of the parts that have a share."""
        settings = self.settings
        if "score" in shares:
            std = (math.sqrt(2) if self.is_pure else 1) * settings.one_record / shares["score"]
            noise += f" The released score's noise has a standard deviation of {std:.2g}."
        if self.is_pure:
            guarantee = settings.guarantee("Private search", PureLoss(settings.budget.epsilon))
        else:
            guarantee = settings.guarantee("Private search", GaussianLoss(settings.mu))
            guarantee = guarantee.quoted_at(settings.budget.delta)
        return SearchPlan(
            method=self.name,
            reason=reason,
            num_records=settings.num_records,
            evaluations={part: count for part, count in evaluations.items() if part in shares},
            shares=shares,
            noise=noise,
            guarantee=guarantee,
            is_pure=self.is_pure,
            seen=seen,
            **sizes,
        )


class SlopedRoute(Route):
    """A method along gradients: categories are chosen first, with all numbers in mid-range."""

    @cached_property
    def dim(self) -> int:
        """How many numbers have slopes."""
        return len(self.settings.coordinates.smooth)

    @cached_property
    def num_categories(self) -> int:
        """How many choices of everything without a slope are compared."""
        coordinates = self.settings.coordinates
        if not coordinates.has_coarse:
            return 0
        wanted = int(_CATEGORY_EVALUATIONS * (self.settings.evaluations - self.release_score))
        return len(coordinates.categories(max(2, wanted)))

    @property
    def left(self) -> int:
        """Evaluations that are left for slopes."""
        return self.settings.evaluations - self.release_score - self.num_categories

    @property
    def after_categories(self) -> str:
        """Words about the choice of the categories, if there are any."""
        has_coarse = self.settings.coordinates.has_coarse
        return " after a choice of the categories" if has_coarse else ""

    def objections(self) -> Iterator[tuple[str, bool]]:
        """What has no slope, where a selection is known to be as good, or too few evaluations."""
        settings, dim = self.settings, self.dim
        if settings.statistic is not None:
            name = settings.statistic.name
            yield f"{name} is no mean over records, so no record has a gradient of its own.", True
        if not dim:
            yield "the space has no numeric parameter, so there is no gradient.", True
        if settings.space.has_conditions:
            yield "a conditional parameter has no gradient where it is inactive.", True
        if settings.space.constraints:
            yield "constraints would exclude points that gradients are estimated from.", True
        if settings.has_steps:
            yield (
                "the loss of this model is piecewise constant, so it has no useful gradient.",
                False,
            )
        if dim <= (_FEW if settings.incumbent is None else _FEW_BESIDE_AN_INCUMBENT):
            yield f"they cover a {dim}-dimensional space densely enough.", False
        if self.left <= dim:
            few = (
                f"{settings.evaluations} evaluations are too few for a gradient in {dim} dimensions"
            )
            yield f"{few}, which takes {dim + 1}.", True

    def start(self, releases: Releases) -> tuple[Config, Tensor, int]:
        """The chosen categories, where slopes begin, and the number of the first scores there."""
        coordinates, base = self.settings.coordinates, self.settings.coordinates.middle()
        count = self.num_categories
        if count:
            base = releases.choose(coordinates.categories(count))
        return base, coordinates.positions([base]).squeeze(0), -(-count // CHUNK)


# --- Splitting a budget. ---


def split(total: float, weights: dict[Part, float], power: int = 1) -> dict[Part, float]:
    """Parts whose powers (1 or 2) have these weights, and an exact sum of at most the total's."""
    whole = sum(weights.values())
    shares = {
        part: total * weight / whole if power == 1 else total * math.sqrt(weight / whole)
        for part, weight in weights.items()
    }
    largest = max(shares, key=lambda part: shares[part])
    while sum(Fraction(share) ** power for share in shares.values()) > Fraction(total) ** power:
        shares[largest] = math.nextafter(shares[largest], 0.0)
    return shares


# --- What a run asks the records, and what it releases of them. ---


class ScoreTable:
    """Losses of all records at what was asked for: in [0, 1], small is good. **Sensitive.**

    Where a statistic scores all records together, their predictions.

    Args:
        settings: Of the search.
        record_scores: The caller's function.
        run: Keeps the losses.
        tick: Is told how many configurations were scored.
        executor: Where to score; here if None.
    """

    def __init__(
        self,
        settings: SearchSettings,
        record_scores: RecordScores,
        run: Run,
        tick: Callable[[int], object],
        executor: Any = None,
    ) -> None:
        self._settings, self._record_scores, self._run = settings, record_scores, run
        self._tick, self._executor = tick, executor
        self._stored: dict[int, dict[str, Any]] = run.items("scores")
        #: **Sensitive.**
        self.diagnostics = ScoreDiagnostics()

    def configs(self, number: int) -> list[Config] | None:
        """What was asked for under a number; None if nothing was."""
        return list(self._stored[number]["configs"]) if number in self._stored else None

    def losses(self, number: int, configs: list[Config]) -> Tensor:
        """``b x n`` losses, asked for at most once under each number."""
        if number not in self._stored:
            self._stored[number] = row = {"configs": configs, "losses": self._asked(configs)}
            self._run.add("scores", number, row)
        losses: Tensor = self._stored[number]["losses"]
        self._tick(len(losses))
        return losses

    def _asked(self, configs: list[Config]) -> Tensor:
        settings, copies = self._settings, [dict(config) for config in configs]
        if self._executor is None:
            scores = self._checked(self._record_scores(copies), len(copies))
        else:
            rows = self._executor.map(self._record_scores, [[config] for config in copies])
            scores = torch.cat([self._checked(row, 1) for row in rows])
        if settings.statistic is not None:
            return scores
        low, high = settings.bounds
        worst = low if settings.maximize else high
        losses = torch.empty_like(scores, memory_format=torch.contiguous_format)
        # In parts that stay in the cache, and in place: a million records have 1.6 GB of scores.
        for row, loss in zip(scores, losses, strict=True):
            for part, own in zip(row.split(AT_ONCE), loss.split(AT_ONCE), strict=True):
                self.diagnostics.count(part, settings.bounds)
                torch.nan_to_num(part, nan=worst, posinf=high, neginf=low, out=own)
                own.clamp_(low, high).sub_(low).div_(high - low).clamp_(0.0, 1.0)
                if settings.maximize:
                    own.neg_().add_(1.0)
        return without_subnormals(losses)

    def _checked(self, scores: object, num_points: int) -> Tensor:
        checked = checked_scores(
            scores,
            num_points=num_points,
            num_records=self._settings.num_records,
            name="record_scores",
        )
        return checked.cpu().double()


class Releases:
    """What one run of a search releases: each part is charged, read, drawn and stored once.

    Args:
        settings: Of the search.
        plan: What each part may cost.
        run: Stores what is released.
        table: What is read.
    """

    def __init__(
        self, settings: SearchSettings, plan: SearchPlan, run: Run, table: ScoreTable
    ) -> None:
        self._settings, self._plan, self._table = settings, plan, table
        self.run = run

    def score(self, config: Config) -> tuple[float, float]:
        """The noisy mean score of a configuration, and the scale of its noise."""
        settings, share = self._settings, self._plan.shares["score"]
        number = 1_000_000_000  # after all others
        one_record, offset, unit = self._units()
        mechanism: Callable[..., Release[float]] = gaussian_mechanism
        level: dict[str, float] = {"mu": share}
        if self._plan.is_pure:
            mechanism, level = laplace_mechanism, {"epsilon": share}

        def read() -> float:
            return self._counted(self._table.losses(number, [config])[0])

        def draw(total: float) -> list[float]:
            seed = self.seed(number)
            noisy = mechanism(total, sensitivity=one_record, unsafe_seed=seed, **level)
            assert noisy.scale is not None
            return [offset + unit * noisy.value, abs(unit) * noisy.scale]

        loss, scale = self.release("score", share, draw, read, key="score")
        fraction = 1 - loss if settings.maximize else loss
        low, high = settings.bounds
        return low + (high - low) * fraction, (high - low) * scale

    def choose(self, candidates: list[Config]) -> Config:
        """One of some configurations, by permute-and-flip on their mean scores."""
        one_record, _, unit = self._units()
        sign = -1 if unit > 0 else 1

        def read() -> Tensor:
            chunks = [candidates[i : i + CHUNK] for i in range(0, len(candidates), CHUNK)]
            losses = (self._table.losses(number, chunk) for number, chunk in enumerate(chunks))
            rows = itertools.chain.from_iterable(losses)
            return (
                torch.tensor([self._counted(row) for row in rows], dtype=torch.double, device="cpu")
                * sign
            )

        share = self._plan.shares["selection"]
        return candidates[
            self.select("selection", share, read, one_record, key="selection", seed=0)
        ]

    def select(
        self,
        part: Part,
        share: float,
        read: Callable[[], Tensor],
        sensitivity: float,
        *,
        key: str,
        seed: int,
    ) -> int:
        """The index of a large utility, by permute-and-flip."""
        epsilon = share if self._plan.is_pure else pure_dp_epsilon(share)

        def draw(utilities: Tensor) -> int:
            return exponential_mechanism(
                utilities,
                sensitivity=sensitivity,
                epsilon=epsilon,
                method="permute_and_flip",
                unsafe_seed=self.seed(seed),
            ).value

        return self.release(part, share, draw, read, key=key)

    def release(
        self,
        part: Part,
        share: float,
        draw: Callable[[Any], Any],
        read: Callable[[], Any],
        *,
        key: str,
    ) -> Any:
        """What ``draw`` makes of what ``read`` saw, charged before and drawn once."""
        price = self.price(part, share)
        return self.run.release(price, draw, read=read, key=key, label=f"private search, {key}")

    def price(self, part: Part, share: float) -> Guarantee:
        """What one release of a part costs."""
        loss = PureLoss(share) if self._plan.is_pure else GaussianLoss(share)
        return self._settings.guarantee(f"Private search, {part}", loss)

    def placed(self, base: Config, number: int, points: Tensor) -> Tensor:
        """Proposed points where configurations can be, or what was asked for before a restart."""
        coordinates = self._settings.coordinates
        return coordinates.positions(self._table.configs(number) or coordinates.at(base, points))

    def losses(self, base: Config, number: int, points: Tensor) -> Tensor:
        """Losses of all records at points of the numbers' cube. **Sensitive.**"""
        return self._table.losses(number, self._settings.coordinates.at(base, points))

    def seed(self, number: int) -> int | None:
        """One stream for each draw, so that a resumed simulation continues bit for bit."""
        seed = self._settings.unsafe_seed
        return None if seed is None else (seed << 32) + number

    def _counted(self, row: Tensor) -> float:
        """One configuration's score in whole units."""
        statistic = self._settings.statistic
        return statistic.units(row) if statistic else clipped_sum(row, (0.0, 1.0), nan_as=1.0)

    def _units(self) -> tuple[float, float, float]:
        """How many units one record moves, the loss of no units, and of each."""
        statistic, n = self._settings.statistic, self._settings.num_records
        if statistic is not None:
            return statistic.sensitivity, statistic.offset, statistic.unit
        return grid_levels(n), 0.0, 1 / (grid_levels(n) * n)
