r"""One call that tunes on records which must not leak, and publishes one configuration.

Two routes, and a rule that knows public numbers only. *Selection*: the mean scores of
configurations that fill the space are compared by permute-and-flip. *Descent*: from the middle of
the space, gradients of single records are inferred from the scores around a location, clipped,
averaged and released with Gaussian noise; everything after that is post-processing, and a Gaussian
process that has seen the released gradients says where to go next.
"""

from __future__ import annotations

import itertools
import math
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, Literal

import numpy as np
import torch
from gpytorch.kernels import MaternKernel
from torch import Tensor
from torch.quasirandom import SobolEngine
from tqdm.auto import tqdm

from botorch_dp._checks import check_integer, check_interval, check_positive
from botorch_dp.descent.clipping import ClippedMean, Observations
from botorch_dp.descent.designs import Design, observation_noise
from botorch_dp.errors import PrivacyError
from botorch_dp.models.gradient import GradientBelief, KernelFactor
from botorch_dp.models.kernels import kernel_derivatives
from botorch_dp.objectives import (
    OWN_RECORD_ONLY,
    ObjectiveDiagnostics,
    check_bearable,
    checked_scores,
    clipped_sum,
    grid_levels,
    known_num_records,
    one_column_warning,
)
from botorch_dp.privacy import (
    ONE_RECORD,
    GaussianLoss,
    Guarantee,
    NeighboringRelation,
    PrivacyBudget,
    PrivacyLedger,
    PrivacyLoss,
    PrivacyUnit,
    PureLoss,
    Release,
    check_unit,
    exponential_mechanism,
    gaussian_mechanism,
    gaussian_mu,
    laplace_mechanism,
    pure_dp_epsilon,
)
from botorch_dp.privacy.runs import Run
from botorch_dp.space import Choice, Config, Integer, SearchSpace
from botorch_dp.tuning.gradient_model import GradientModel

RecordScores = Callable[[list[Config]], Any]
Route = Literal["selection", "descent"]
Part = Literal["selection", "clip norm", "gradients", "score"]

_CHOSEN = "the space, the bounds and the settings were chosen without the records"
#: Configurations asked for at a time: what an interrupted run loses at most.
_CHUNK = 16
#: With so few numbers to tune, space-filling points come close enough by themselves.
_FEW = 3
#: Integers with fewer values than this are chosen like categories: they have no slope.
_SMOOTH_LEVELS = 8
#: More steps than this only divide the budget further; evaluations left over widen each stencil.
_FEWEST_STEPS, _MOST_STEPS = 5, 25
#: The part of the evaluations and, in squares of mu, of the budget that chooses categories.
_CATEGORY_EVALUATIONS, _CATEGORY_SHARE = 0.25, 0.1
#: The squares of mu for the clip norm, and for the score where it is released.
_CLIP_SHARE, _SCORE_SHARE = 0.08, 0.1
#: The part of a pure epsilon for the score.
_PURE_SCORE_SHARE = 0.2
#: Of the kernel that infers gradients, and of the stencil in units of it: from, to.
_LENGTH_SCALE, _RADII = 0.4, (1.5, 0.15)
#: Half the side of the box that the next location is looked for in: from, to.
_BOXES = (0.25, 0.05)
#: Released slopes that are modelled together; older ones are forgotten.
_LARGEST_MODEL = 600
#: How often a clip norm is chosen.
_CLIP_CHOICES = 3
#: Clip norms to choose from, for losses scaled to [0, 1] over the unit cube.
_CLIP_NORMS = [2.0 ** (k / 2) for k in range(-10, 9)]


#: Which part of the gradients may be longer than the clip norm: at least, at most.
_LONGER = (0.05, 0.5)
#: The same, in units of the noise's length over the clip norm.
_PER_NOISE = 4


# --- What follows from the settings. ---


@dataclass(frozen=True)
class SearchPlan:
    """Public facts about a search that has not begun: its price, its noise and its evaluations.

    Args:
        route: ``"selection"`` or ``"descent"``.
        reason: Why, in a sentence.
        num_records: ``n``.
        evaluations: How many configurations all records are scored at, for each part.
        shares: What each part costs: an epsilon (selection) or a mu (descent).
        steps: Released gradients; 0 for a selection.
        batch_size: Configurations for each of them.
        noise: What to expect of the noise, in a sentence.
        guarantee: What all that is published promises together, and costs.
    """

    route: Route
    reason: str
    num_records: int
    evaluations: dict[Part, int]
    shares: dict[Part, float]
    steps: int
    batch_size: int
    noise: str
    guarantee: Guarantee

    def __str__(self) -> str:
        unit = "epsilon" if self.route == "selection" else "mu"
        parts = [
            f"{part}: {self.evaluations.get(part, 0)} evaluations, {unit} {share:.3g}"
            for part, share in self.shares.items()
        ]
        return "\n".join((self.reason, "; ".join(parts), self.noise, str(self.guarantee)))


@dataclass
class SearchDiagnostics(ObjectiveDiagnostics):
    """**Sensitive.** How many scores were outside the bounds, over all evaluations of the run.

    Counts begin with the process: a resumed run has those of the evaluations it made itself.
    """

    def __repr__(self) -> str:
        return "SearchDiagnostics(sensitive: read .num_below, .num_above, .num_nan)"


@dataclass(frozen=True, repr=False)
class SearchResult:
    """What a search publishes.

    Args:
        config: The released configuration.
        score: The released mean score of it, if it was asked for.
        route: What was done and why, in a sentence.
        diagnostics: Sensitive.
    """

    config: Release[Config]
    score: Release[float] | None
    route: str
    diagnostics: SearchDiagnostics = field(default_factory=SearchDiagnostics)

    @property
    def guarantee(self) -> Guarantee:
        """The one guarantee of all that is released, the score included."""
        return self.config.guarantee

    def __repr__(self) -> str:
        score = "" if self.score is None else f", score={self.score.value:.6g}"
        return f"SearchResult(config={self.config.value}{score}; {self.guarantee})"


# --- The search. ---


class PrivateSearch:
    r"""Tune on records that must not leak: one call, one released configuration, one guarantee.

    ``mean_i clip(score_i(config), lo, hi)`` is minimized (or maximized) over a
    :class:`~botorch_dp.space.SearchSpace`. :meth:`plan` says the route, the price and the noise
    before anything is read:

    - *selection* costs a pure epsilon: permute-and-flip [McKenna2020] on the mean scores of
      ``evaluations`` configurations that fill the space. It is taken for up to three numbers,
      where there is nothing but categories, under constraints, without a delta, and where noise
      would drown the gradients;
    - *descent* costs ``gaussian_mu(epsilon, delta)``: categories are chosen by permute-and-flip,
      with all numbers in the middle of their ranges; then a clip norm is selected and gradients
      are released (see :class:`~botorch_dp.descent.DPGIBO`), and a Gaussian process on the
      released gradients [Sopa2025] leads to the next location. The configuration itself is
      post-processing.

    Guarantee (status proven): (epsilon, delta)-DP under replace-one, for everything that is
    published together, whatever the scores are. Squares of the parts' mu, or their epsilons, add
    up to no more than the budget. Everything is drawn through one door: an interrupted run that is
    continued from its ``checkpoint`` publishes one configuration, and a copy is a new run.

    Nothing that one record says raises, warns or shows: scores beyond a bound, infinite ones
    included, count as that bound, NaN as the worse one.

    Args:
        record_scores: A list of ``b`` configurations (dictionaries) to ``b x n`` scores, a tensor
            or an array with one column for each record. A record's scores may depend on that
            record and on public things only: no cross-validation over the records, no score such
            as AUC that is no mean over them. See :func:`~botorch_dp.objectives.per_record_scores`.
        space: What may be tried. Models see its scale, so give ``log=True`` where it belongs.
        bounds: Public bounds ``(lo, hi)`` of a score.
        budget: What may be spent; without a delta a selection is the only route.
        evaluations: How many configurations all records may be scored at.
        num_records: ``n``, which is public under replace-one; by default the attribute of that
            name of ``record_scores``.
        maximize: Whether a large score is good.
        unit: Whom or what one column of the scores is; replace-one is the only relation.
        unsafe_seed: Simulate with reproducible noise. The result then promises nothing.

    Example:
        >>> search = PrivateSearch(
        ...     per_record_scores(SVC(), space, (train_X, train_y), (X, y), "zero_one"),
        ...     space,
        ...     bounds=(0.0, 1.0),
        ...     budget=PrivacyBudget(1.0, 1e-6),
        ...     evaluations=60,
        ... )
        >>> print(search.plan())
        >>> result = search.run(checkpoint="svc.search")
        >>> result.config.value, result.guarantee
    """

    def __init__(
        self,
        record_scores: RecordScores,
        space: SearchSpace,
        *,
        bounds: tuple[float, float],
        budget: PrivacyBudget,
        evaluations: int,
        num_records: int | None = None,
        maximize: bool = False,
        unit: PrivacyUnit = ONE_RECORD,
        unsafe_seed: int | None = None,
    ) -> None:
        if not callable(record_scores):
            raise TypeError(
                f"`record_scores` must be callable, got {type(record_scores).__name__}: pass a "
                "function from a list of b configurations to scores (b x n)."
            )
        if not isinstance(space, SearchSpace):
            raise TypeError(f"`space` must be a SearchSpace, got {type(space).__name__}.")
        if not isinstance(budget, PrivacyBudget):
            raise TypeError(f"`budget` must be a PrivacyBudget, got {type(budget).__name__}.")
        if not isinstance(maximize, bool):
            raise TypeError(f"`maximize` must be a boolean, got {type(maximize).__name__}.")
        self.bounds = check_interval("bounds", bounds)
        self._width = check_positive("bounds", self.bounds[1] - self.bounds[0])
        self.evaluations = check_integer("evaluations", evaluations, at_least=2)
        n = known_num_records(record_scores, num_records)
        if n is None:
            raise ValueError(
                "`num_records` is needed: the noise and the route depend on how many records the "
                "scores are averaged over, which is public under replace-one."
            )
        if n == 1:
            warnings.warn(one_column_warning("record_scores"), UserWarning, stacklevel=2)
        self.num_records = n
        self.record_scores = record_scores
        self.space = space
        self.budget = budget
        self.maximize = maximize
        checked = check_unit(unit, NeighboringRelation.REPLACE_ONE)
        self._unit = checked.given(OWN_RECORD_ONLY, "the number of records is public", _CHOSEN)
        if unsafe_seed is not None:
            unsafe_seed = check_integer("unsafe_seed", unsafe_seed, at_least=0)
        self._unsafe_seed = unsafe_seed
        self._coordinates = _Coordinates(space)

    def plan(self, *, release_score: bool = False) -> SearchPlan:
        """Route, price, noise and evaluations of :meth:`run`; reads no record."""
        reason = self._why_selection(release_score)
        plan = self._selection_plan if reason else self._descent_plan
        return plan(reason or "", release_score)

    def run(
        self,
        progress: bool = False,
        checkpoint: str | os.PathLike[str] | None = None,
        ledger: PrivacyLedger | None = None,
        release_score: bool = False,
    ) -> SearchResult:
        """Search, and release one configuration.

        Args:
            progress: Whether to show a progress bar, of evaluations only.
            checkpoint: A file to keep the run in and to continue it from. It holds sensitive
                scores, with mode 0600, and one process at a time may hold it. Without one each
                call is a new run, charged anew.
            ledger: Charged for each part before the records are asked for it.
            release_score: Whether to release the mean score of the configuration too, for a share
                of the budget and one evaluation; :meth:`plan` says what it costs.
        """
        if ledger is not None:
            if not isinstance(ledger, PrivacyLedger):
                raise TypeError(f"`ledger` must be a PrivacyLedger, got {type(ledger).__name__}.")
            if self._unsafe_seed is not None:
                raise PrivacyError(
                    "`ledger` was given together with `unsafe_seed`: simulated noise promises "
                    "nothing, so there is nothing to charge. Leave one of them out."
                )
        plan = self.plan(release_score=release_score)
        diagnostics = SearchDiagnostics()
        # A run that was charged cannot go on where nobody charges: its keys are the ledger's.
        settings = {**self._settings(plan), "charged": ledger is not None}
        with Run(checkpoint, what="a private search", settings=settings, ledger=ledger) as run:
            if ledger is not None and not run.resumed:
                check_bearable(ledger, plan.guarantee)
            total = sum(plan.evaluations.values())
            with tqdm(total=total, desc="PrivateSearch", disable=not progress) as bar:
                table = _Table(self, run, diagnostics, bar.update)
                searching = _Searching(self, plan, run, table)
                config = run.get("config")
                if config is None:
                    config = searching.configuration()
                    run.put(config=config)
                score = searching.score(config) if release_score else None
        guarantee = plan.guarantee
        return SearchResult(
            config=Release(dict(config), guarantee),
            score=None if score is None else Release(score[0], guarantee, score[1]),
            route=plan.reason,
            diagnostics=diagnostics,
        )

    # Plans.

    def _why_selection(self, release_score: bool) -> str | None:
        """Why the route must be a selection, or None where a descent is better."""
        smooth = len(self._coordinates.smooth)
        begin = "Permute-and-flip on space-filling configurations, because "
        if self.budget.delta == 0:
            return begin + "the budget has no delta, which Gaussian noise on gradients would need."
        if smooth == 0:
            return begin + "there is no number whose slope could be followed."
        if self.space.constraints:
            return begin + "constraints would cut the stencils that gradients are inferred from."
        if smooth <= _FEW:
            return begin + (
                f"{smooth} number{'s' if smooth > 1 else ''} to tune leave few gaps between them."
            )
        descent = self._descent_plan("", release_score)
        if descent.steps < _FEWEST_STEPS:
            needed = (
                _FEWEST_STEPS * (smooth + 1) + self.evaluations - descent.evaluations["gradients"]
            )
            return begin + (
                f"{self.evaluations} evaluations are too few for {_FEWEST_STEPS} gradients in "
                f"{smooth} numbers; about {needed} would do."
            )
        ratio = self._noise_to_clip(descent)
        if ratio > math.sqrt(descent.steps):
            return begin + (
                f"noise would drown gradients in {smooth} numbers even when averaged over all "
                "steps."
            )
        return None

    def _noise_to_clip(self, plan: SearchPlan) -> float:
        """Typical length of one gradient's noise over the longest gradient there can be."""
        step_mu = plan.shares["gradients"] / math.sqrt(plan.steps)
        return 2 * math.sqrt(len(self._coordinates.smooth)) / (self.num_records * step_mu)

    def _selection_plan(self, reason: str, release_score: bool) -> SearchPlan:
        weights: dict[Part, float] = {"selection": 1.0}
        if release_score:
            weights = {"selection": 1 - _PURE_SCORE_SHARE, "score": _PURE_SCORE_SHARE}
        shares = split_sum(self.budget.epsilon, weights)
        wanted = max(self.evaluations - release_score, 1)
        count = len(self._coordinates.filling(wanted))
        evaluations: dict[Part, int] = {"selection": count}
        scale = 2 * self._width / (self.num_records * shares["selection"])
        tail = scale * math.log(count / 0.05)
        noise = (
            f"The mean score of the chosen one of {count} configurations is within {tail:.2g} of "
            "the best one's, with a probability of 95%."
        )
        if release_score:
            evaluations["score"] = 1
            std = math.sqrt(2) * self._width / (self.num_records * shares["score"])
            noise += f" The released score's noise has a standard deviation of {std:.2g}."
        return SearchPlan(
            route="selection",
            reason=reason,
            num_records=self.num_records,
            evaluations=evaluations,
            shares=shares,
            steps=0,
            batch_size=0,
            noise=noise,
            guarantee=self._guarantee(PureLoss(self.budget.epsilon)),
        )

    def _descent_plan(self, reason: str, release_score: bool) -> SearchPlan:
        smooth, coarse = len(self._coordinates.smooth), self._coordinates.has_coarse
        mu = gaussian_mu(self.budget.epsilon, self.budget.delta)
        weights: dict[Part, float] = {"clip norm": _CLIP_SHARE}
        evaluations: dict[Part, int] = {}
        left = self.evaluations - release_score
        if coarse:
            weights["selection"] = _CATEGORY_SHARE
            wanted = max(2, int(_CATEGORY_EVALUATIONS * left))
            evaluations["selection"] = len(self._coordinates.categories(wanted))
            left -= evaluations["selection"]
        if release_score:
            weights["score"] = _SCORE_SHARE
            evaluations["score"] = 1
        weights["gradients"] = 1 - sum(weights.values())
        shares = split_squares(mu, weights)
        steps = max(0, min(_MOST_STEPS, left // (smooth + 1)))
        batch_size = min(left // steps, 4 * (smooth + 1)) if steps else 0
        evaluations["gradients"] = steps * batch_size
        plan = SearchPlan(
            route="descent",
            reason=reason
            or (
                f"{steps} released gradients in {smooth} numbers"
                + (" after a choice of categories" if coarse else "")
                + ", and a Gaussian process on them, because space-filling configurations "
                f"would be too sparse in {smooth} dimensions."
            ),
            num_records=self.num_records,
            evaluations=evaluations,
            shares=shares,
            steps=steps,
            batch_size=batch_size,
            noise="",
            guarantee=self._guarantee(GaussianLoss(mu)).quoted_at(self.budget.delta),
        )
        if not steps:
            return plan
        noise = (
            f"The noise of one gradient is {self._noise_to_clip(plan):.2g} times as long as the "
            "longest gradient of a record may be; all steps together average it down by up to "
            f"{math.sqrt(steps):.2g}."
        )
        if release_score:
            std = self._width / (self.num_records * shares["score"])
            noise += f" The released score's noise has a standard deviation of {std:.2g}."
        return SearchPlan(**{**_fields(plan), "noise": noise})

    def _guarantee(self, loss: PrivacyLoss) -> Guarantee:
        guarantee = Guarantee("Private search", self._unit, (loss,))
        return guarantee if self._unsafe_seed is None else guarantee.simulated()

    def _settings(self, plan: SearchPlan) -> dict[str, Any]:
        """All that a run depends on; it is continued with the same settings only."""
        return {
            "space": self.space.to_dict(),
            "bounds": list(self.bounds),
            "epsilon": self.budget.epsilon,
            "delta": self.budget.delta,
            "evaluations": dict(plan.evaluations),
            "num_records": self.num_records,
            "maximize": self.maximize,
            "unit": [self._unit.protects, *self._unit.conditions],
            "route": plan.route,
            "shares": dict(plan.shares),
            "steps": plan.steps,
            "unsafe_seed": self._unsafe_seed,
        }

    def __repr__(self) -> str:
        return (
            f"PrivateSearch({self.space!r}, bounds={self.bounds}, budget={self.budget}, "
            f"evaluations={self.evaluations}, num_records={self.num_records})"
        )


class _Coordinates:
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
        middle = self._middle()
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

    def _middle(self) -> Config:
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
        yield self._middle()
        engine = SobolEngine(len(self.space.parameters), scramble=True, seed=0)
        while True:
            yield from self.space.spread(engine.draw(256, dtype=torch.double).numpy())


class _Table:
    """Losses of all records at what was asked for: in [0, 1], small is good. **Sensitive.**"""

    def __init__(
        self,
        search: PrivateSearch,
        run: Run,
        diagnostics: SearchDiagnostics,
        tick: Callable[[int], object],
    ) -> None:
        self._search, self._run, self._diagnostics = search, run, diagnostics
        self._tick = tick
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
        scores = search.record_scores([dict(config) for config in configs])
        if isinstance(scores, np.ndarray) and scores.dtype.kind in "fiub":
            scores = torch.from_numpy(np.ascontiguousarray(scores))
        scores = checked_scores(
            scores,
            num_points=len(configs),
            num_records=search.num_records,
            name="record_scores",
        )
        scores = scores.cpu().double()
        self._diagnostics.count(scores, search.bounds)
        low, high = search.bounds
        worst = low if search.maximize else high
        within = scores.nan_to_num(nan=worst, posinf=high, neginf=low).clamp(low, high)
        fractions = ((within - low) / (high - low)).clamp(0.0, 1.0)
        return 1 - fractions if search.maximize else fractions


class _Searching:
    """One run of a search: what is released, in order."""

    def __init__(self, search: PrivateSearch, plan: SearchPlan, run: Run, table: _Table) -> None:
        self._search, self._plan, self._run, self._table = search, plan, run, table
        self._coordinates = search._coordinates
        self._draws = 0

    def configuration(self) -> Config:
        """The configuration to publish."""
        count = self._plan.evaluations.get("selection", 0)
        if self._plan.route == "selection":
            return self._chosen(self._coordinates.filling(count))
        base = self._coordinates._middle()
        if count:
            base = self._chosen(self._coordinates.categories(count))
        return self._descended(base, first=-(-count // _CHUNK))

    def score(self, config: Config) -> tuple[float, float]:
        """The noisy mean score of a configuration, and the scale of its noise."""
        search, share = self._search, self._plan.shares["score"]
        number = 1_000_000_000  # after all others
        levels, n = grid_levels(search.num_records), search.num_records
        mechanism: Callable[..., Release[float]] = gaussian_mechanism
        level: dict[str, float] = {"mu": share}
        if self._plan.route == "selection":
            mechanism, level = laplace_mechanism, {"epsilon": share}

        def read() -> float:
            losses = self._table.losses(number, [config])
            return clipped_sum(losses[0], (0.0, 1.0), nan_as=1.0)

        def draw(total: float) -> list[float]:
            seed = self._seed(number)
            noisy = mechanism(total, sensitivity=levels, unsafe_seed=seed, **level)
            assert noisy.scale is not None
            return [noisy.value / (levels * n), noisy.scale / (levels * n)]

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
            sums = [clipped_sum(row, (0.0, 1.0), nan_as=1.0) for row in rows]
            return -torch.tensor(sums, dtype=torch.double)

        levels = grid_levels(self._search.num_records)
        return candidates[self._selected("selection", share, read, levels, key="selection", seed=0)]

    def _descended(self, base: Config, first: int) -> Config:
        """Follow noisy gradients from the configuration ``base``."""
        plan, coordinates, n = self._plan, self._coordinates, self._search.num_records
        dim = len(coordinates.smooth)
        kernel = MaternKernel(nu=2.5).double()
        kernel.lengthscale = _LENGTH_SCALE
        location = coordinates.positions([base]).squeeze(0)
        derivatives = kernel_derivatives(kernel, like=location)
        noise = observation_noise(derivatives, location, 0.0)
        design = Design(
            radius=_RADII, batch_size=plan.batch_size, max_points=max(2000, plan.batch_size)
        )
        box = torch.stack((torch.zeros(dim), torch.ones(dim))).double()
        observations = Observations(KernelFactor.empty(derivatives, dim))
        step_mu = _split_evenly(plan.shares["gradients"], plan.steps)
        locations: list[Tensor] = []
        gradients: list[Tensor] = []
        stds: list[float] = []
        clip_norm = math.nan
        for step in range(plan.steps):
            number = first + step
            observations = observations.within(max(0, design.max_points - plan.batch_size))
            belief = GradientBelief(observations.factor, location, unknown_mean=True)
            if number in self._table:
                points = coordinates.positions(self._table.configs(number))
                factor, kept = observations.factor.extended(points, noise)
            else:
                proposal = design.propose(belief, box=box, step=step, steps=plan.steps)
                points = coordinates.positions(coordinates.at(base, proposal.points))
                factor, kept = observations.factor.extended(points, noise)
                points = points[kept]
                kept = torch.arange(len(kept))
            configs = coordinates.at(base, points)
            belief = belief.extended(factor)

            def seen(
                number: int = number,
                configs: list[Config] = configs,
                factor: KernelFactor = factor,
                kept: Tensor = kept,
                step: int = step,
                before: Observations = observations,
            ) -> Observations:
                losses = self._table.losses(number, configs)
                if len(kept) < len(losses):
                    losses = losses[kept]
                return before.with_batch(factor, losses, step)

            if step in self._clip_steps():
                clip_norm = self._clip_norm(seen, belief.weights, step)
            gradient = self._gradient(seen, belief.weights, clip_norm, step_mu, step)
            observations = seen()
            locations.append(location)
            gradients.append(gradient)
            stds.append(2 * clip_norm / (n * step_mu))
            location = self._next(torch.stack(locations), torch.stack(gradients), stds, step)
        return coordinates.at(base, location.unsqueeze(0))[0]

    def _next(self, X: Tensor, G: Tensor, stds: list[float], step: int) -> Tensor:
        """Where the Gaussian process on released gradients is smallest, near the best so far."""
        newest = slice(-max(1, _LARGEST_MODEL // X.shape[-1]), None)
        X, G, noise = X[newest], G[newest], torch.tensor(stds, dtype=torch.double)[newest]
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

        With a part ``p`` of the gradients longer than ``c``, the bias that clipping brings grows
        by ``p`` as ``c`` falls, while the noise falls by its ratio to the clip norm: where the two
        balance, ``p`` is that ratio. Biases of different records cancel in part, so four times
        that is allowed, but no less than a twentieth and no more than half of the records. Where
        noise drowns the counts, a public preference for one unit decides.
        """
        n = self._search.num_records
        ratio = self._search._noise_to_clip(self._plan)
        allowed = round(n * min(_LONGER[1], max(_LONGER[0], _PER_NOISE * ratio)))
        limits = torch.tensor(_CLIP_NORMS, dtype=torch.double)

        share = _split_evenly(self._plan.shares["clip norm"], len(self._clip_steps()))
        # Counts, and with them all utilities, are integers: no rounding moves them further.
        preference = (limits.log2().abs() * 2 / pure_dp_epsilon(share)).round()

        def read() -> Tensor:
            longer = torch.zeros(len(limits), dtype=torch.double)
            for part in seen().gradients(weights):
                norms = part.norm(dim=0).nan_to_num(nan=math.inf)
                longer += (norms.unsqueeze(0) > limits.unsqueeze(-1)).sum(-1)
            return -(longer - allowed).abs() - preference

        key, seed = f"clip norm {step + 1}", 1_000_000 + step
        return _CLIP_NORMS[self._selected("clip norm", share, read, 1.0, key=key, seed=seed)]

    def _gradient(
        self,
        seen: Callable[[], Observations],
        weights: Tensor,
        clip_norm: float,
        step_mu: float,
        step: int,
    ) -> Tensor:
        """The noisy mean of the clipped gradients, ``p``."""
        n, dim = self._search.num_records, len(self._coordinates.smooth)

        def read() -> Tensor:
            mean = ClippedMean(dim, n, clip_norm)
            for part in seen().gradients(weights):
                mean.add(part)
            return mean.value()

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
        epsilon = share if self._plan.route == "selection" else pure_dp_epsilon(share)

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
        loss = PureLoss(share) if self._plan.route == "selection" else GaussianLoss(share)
        price = Guarantee(f"Private search, {part}", self._plan.guarantee.unit, (loss,))
        if self._search._unsafe_seed is not None:
            price = price.simulated()
        return self._run.release(price, draw, read=read, key=key, label=f"private search, {key}")

    def _seed(self, number: int) -> int | None:
        """One stream for each draw, so that a resumed simulation continues bit for bit."""
        seed = self._search._unsafe_seed
        return None if seed is None else (seed << 32) + number


# --- Splitting a budget. ---


def split_sum(total: float, weights: dict[Part, float]) -> dict[Part, float]:
    """Parts in proportion to the weights whose exact sum is at most ``total``."""
    whole = sum(weights.values())
    shares = {part: total * weight / whole for part, weight in weights.items()}
    largest = max(shares, key=lambda part: shares[part])
    while sum(map(Fraction, shares.values())) > Fraction(total):
        shares[largest] = math.nextafter(shares[largest], 0.0)
    return shares


def split_squares(total: float, weights: dict[Part, float]) -> dict[Part, float]:
    """Parts whose squares are in proportion to the weights and add up to at most ``total^2``."""
    whole = sum(weights.values())
    shares = {part: total * math.sqrt(weight / whole) for part, weight in weights.items()}
    largest = max(shares, key=lambda part: shares[part])
    while sum(Fraction(share) ** 2 for share in shares.values()) > Fraction(total) ** 2:
        shares[largest] = math.nextafter(shares[largest], 0.0)
    return shares


def _split_evenly(total: float, count: int) -> float:
    """The largest number of which ``count`` squares add up to at most ``total^2``, or nearly."""
    share = total / math.sqrt(count)
    while count * Fraction(share) ** 2 > Fraction(total) ** 2:
        share = math.nextafter(share, 0.0)
    return share


def _fields(plan: SearchPlan) -> dict[str, Any]:
    return {name: getattr(plan, name) for name in plan.__dataclass_fields__}
