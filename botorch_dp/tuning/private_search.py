r"""One call that tunes on records which must not leak, and publishes one configuration.

Three routes, and a rule that knows public numbers only. *Selection*: the mean scores of
configurations that fill the space are compared by permute-and-flip. *Slope*: the slope of the
scores over the whole space, and over narrower and narrower regions, is released with Laplace noise.
*Descent*: from the middle of the space, gradients of single records are inferred from the scores
around a location, clipped, averaged and released with Gaussian noise; everything after that is
post-processing, and a Gaussian process that has seen the released gradients says where to go next.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any, Literal, get_args

from botorch_dp._checks import (
    check_callable,
    check_choice,
    check_integer,
    check_interval,
    check_positive,
    warn_caller,
)
from botorch_dp._progress import ProgressBar
from botorch_dp.objectives import (
    ObjectiveDiagnostics,
    one_column_warning,
)
from botorch_dp.privacy import (
    GaussianLoss,
    Guarantee,
    NeighboringRelation,
    PrivacyBudget,
    PrivacyLedger,
    PrivacyUnit,
    PureLoss,
    Receipt,
    Release,
    gaussian_mu,
)
from botorch_dp.privacy.guarantee import ONE_RECORD, check_unit, warn_large_delta
from botorch_dp.privacy.ledger import LedgerSnapshot, charged_nowhere, check_payment
from botorch_dp.privacy.losses import PrivacyLoss
from botorch_dp.privacy.runs import Run
from botorch_dp.scores import (
    OWN_RECORD_ONLY,
    Statistic,
    known_num_records,
    warn_of_narrow_bounds,
)
from botorch_dp.space import Config, SearchSpace
from botorch_dp.tuning.searching import Coordinates, Mapper, Part, ScoreTable, Searching

RecordScores = Callable[[list[Config]], Any]
Route = Literal["selection", "slope", "descent"]

_CHOSEN = "the space, the bounds and the settings were chosen without the records"
#: With so few numbers to tune, space-filling points come close enough by themselves.
_FEW = 2
#: The same where an incumbent is compared, too: on estimators with three or four numbers a
#: selection was better than slopes for four of five, and level for one (``docs/tuning.md``).
_FEW_BESIDE_AN_INCUMBENT = 4
#: More steps than this only divide the budget further; evaluations left over widen each stencil.
_MOST_STEPS = 25
#: The part of the evaluations and, in squares of mu, of the budget that chooses categories.
_CATEGORY_EVALUATIONS, _CATEGORY_SHARE = 0.25, 0.1
#: The squares of mu for the clip norms, and for the score where it is released.
_CLIP_SHARE, _SCORE_SHARE = 0.08, 0.1
#: The part of a pure epsilon for the score.
_PURE_SCORE_SHARE = 0.2
#: The same for categories before a slope.
_PURE_CATEGORY_SHARE = 0.3
#: One more slope for each so much of ``n epsilon / d``, at most so many, and each of at least so
#: many configurations in units of ``d + 1``. On the generated tasks of ``which_method`` (seeds 200
#: to 214) one slope was best at 15, two or three at 30 to 50, and five at 75 and more.
_PER_SLOPE, _MOST_SLOPES, _SLOPE_STENCILS = 15, 5, 3
#: Up to this ``n mu / sqrt(d)`` slopes of regions show more than gradients at single locations:
#: ``which_small`` has regrets of 0.171 against 0.365 between 5 and 10. From 11 to 40 slopes were
#: better on a plateau and on noisy losses, and worse on heavy tails and, by up to 0.13, on ripples
#: (seeds 3 to 12 of the generated tasks and of the grid).
_SLOPES_UP_TO = 11.0


# --- What follows from the settings. ---


@dataclass(frozen=True)
class SearchPlan:
    """Public facts about a search that has not begun: its price, its noise and its evaluations.

    Args:
        route: ``"selection"``, ``"slope"`` or ``"descent"``.
        reason: Why, in a sentence.
        num_records: ``n``.
        evaluations: How many configurations all records are scored at, for each part.
        shares: What each part costs: an epsilon (selection) or a mu (descent).
        noise: What to expect of the noise, in a sentence.
        guarantee: What all that is published promises together, and costs.
        steps: Released gradients.
        batch_size: Configurations for each of them.
        slopes: Released slopes of whole regions, the first of which is the whole space.
        slope_size: Configurations for each of them.
        seen: What each route could see through its noise, in a sentence.
    """

    route: Route
    reason: str
    num_records: int
    evaluations: dict[Part, int]
    shares: dict[Part, float]
    noise: str
    guarantee: Guarantee
    steps: int = 0
    batch_size: int = 0
    slopes: int = 0
    slope_size: int = 0
    seen: str = ""

    @property
    def is_pure(self) -> bool:
        """Whether all that is released is pure epsilon-DP."""
        return self.route in ("selection", "slope")

    def __str__(self) -> str:
        power = 1 if self.is_pure else 2
        whole = sum(share**power for share in self.shares.values())
        parts = [
            f"{share**power / whole:.0%} for the {part} ({self.evaluations.get(part, 0)})"
            for part, share in self.shares.items()
        ]
        budget = f"Budget (and evaluations): {', '.join(parts)}."
        method = f"Method: {self.reason[0].upper()}{self.reason[1:]}"
        return "\n".join((method, budget, self.noise, self.seen, str(self.guarantee)))


@dataclass(frozen=True)
class SearchResult:
    """What a search publishes.

    Args:
        config: The released configuration.
        score: The released mean score of it, if it was asked for; one that noise carried beyond
            the bounds is the bound.
        route: What was done and why, in a sentence.
        diagnostics: **Sensitive.** How many scores were outside the bounds. Counts begin with the
            process: a resumed run has those of the evaluations it made itself.
        ledger: What was charged, as it was after the run; None without a ledger.
    """

    config: Release[Config]
    score: Release[float] | None
    route: str
    diagnostics: ObjectiveDiagnostics = field(default_factory=ObjectiveDiagnostics)
    ledger: LedgerSnapshot | None = None

    @property
    def guarantee(self) -> Guarantee:
        """The one guarantee of all that is released, the score included."""
        return self.config.guarantee

    def receipt(self, **facts: Any) -> Receipt:
        """A document that a stranger can check; see :meth:`Receipt.of` for the ``facts``.

        It is of the configuration, or of ``{"config": ..., "score": ...}`` where a score was
        released with it.
        """
        value: dict[str, Any] = dict(self.config.value)
        if self.score is not None:
            value = {"config": value, "score": self.score.value}
        known: dict[str, Any] = {"note": self.route, "ledger": self.ledger}
        return Receipt.of(Release(value, self.guarantee), **{**known, **facts})

    def __str__(self) -> str:
        """What one would paste into a report."""
        config = ", ".join(f"{name} = {value}" for name, value in self.config.value.items())
        lines = [f"Configuration: {config}", f"Method: {self.route}"]
        if self.score is not None:
            scale = self.score.scale
            noise = "" if scale is None else f" (scale of its noise: {scale:.2g})"
            lines.append(f"Mean score: {self.score.value:.4g}{noise}")
        lines += [str(self.guarantee), *charged_nowhere(self.ledger, self.guarantee)]
        return "\n".join(lines)


# --- The search. ---


class PrivateSearch:
    r"""Tune on records that must not leak: one call, one released configuration, one guarantee.

    ``mean_i clip(score_i(config), lo, hi)`` is minimized (or maximized) over a
    :class:`~botorch_dp.space.SearchSpace`. :meth:`plan` says the route, the price and the noise
    before anything is read:

    - *selection* costs a pure epsilon: permute-and-flip [McKenna2020] on the mean scores of
      ``evaluations`` configurations that fill the space, the middle of it and the ``incumbent`` of
      ``record_scores``, a configuration, among them. It is taken for up to two numbers (four with
      an incumbent, as estimators have one), where there is nothing but categories, under
      constraints, for scores that are no mean over records (AUC, F1), and for models whose losses
      jump (trees and their ensembles, neighbours, networks);
    - *slope* costs a pure epsilon: categories are chosen by permute-and-flip, then slopes of
      regions are released (see :mod:`~botorch_dp.tuning.slopes`). It is taken without a delta, and
      with one where ``n mu / sqrt(d)`` is at most 11;
    - *descent* costs ``gaussian_mu(epsilon, delta)``: categories are chosen by permute-and-flip,
      with all numbers in the middle of their ranges; then a clip norm is selected and gradients
      are released (see :class:`~botorch_dp.descent.DPGIBO`), and a Gaussian process on the
      released gradients [Sopa2025] leads to the next location. The configuration itself is
      post-processing.

    Guarantee (status proven): (epsilon, delta)-DP under replace-one, for everything that is
    published together, whatever the scores are. Squares of the parts' mu, or their epsilons, add
    up to no more than the budget. Each part is drawn once: an interrupted run that is continued
    from its ``checkpoint`` publishes one configuration, and a copy is a new run.

    Nothing that one record says raises, warns or shows: scores beyond a bound, infinite ones
    included, count as that bound, NaN as the worse one.

    Args:
        record_scores: A list of ``b`` configurations (dictionaries) to ``b x n`` scores, a tensor
            or an array with one column for each record. A record's scores may depend on that
            record and on public things only: no cross-validation over the records. What has an
            attribute ``statistic``, such as AUC, returns predictions of single records instead. See
            :func:`~botorch_dp.objectives.per_record_scores`.
        space: What may be tried. Models see its scale, so give ``log=True`` where it belongs.
        bounds: Public bounds ``(lo, hi)`` of a score.
        budget: What may be spent; without a delta only selections and slopes can be had.
        evaluations: How many configurations all records may be scored at.
        num_records: ``n``, which is public under replace-one; by default the attribute of that
            name of ``record_scores``.
        maximize: Whether a large score is good.
        route: One of ``"selection"``, ``"slope"`` and ``"descent"``. With ``"auto"``
            it follows from public numbers, and from whether ``record_scores`` has an attribute
            ``has_steps``: losses that jump as parameters change have no slope.
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
        route: Route | Literal["auto"] = "auto",
        unit: PrivacyUnit = ONE_RECORD,
        unsafe_seed: int | None = None,
    ) -> None:
        check_callable("record_scores", record_scores)
        self.bounds = check_interval("bounds", bounds)
        self._width = check_positive("bounds", self.bounds[1] - self.bounds[0])
        self.evaluations = check_integer("evaluations", evaluations, at_least=2)
        n = known_num_records(record_scores, num_records, takes_statistic=True)
        self.statistic: Statistic | None = getattr(record_scores, "statistic", None)
        if self.statistic is not None and (self.bounds != (0.0, 1.0) or maximize):
            raise ValueError(
                f"`record_scores` is scored by 1 - {self.statistic.name}, a loss: `bounds` must be "
                f"(0.0, 1.0) and `maximize` False, got {self.bounds} and {maximize}."
            )
        if n is None:
            raise ValueError(
                "`num_records` is needed: the noise and the route depend on how many records the "
                "scores are averaged over, which is public under replace-one."
            )
        if n == 1:
            warn_caller(one_column_warning("record_scores"))
        warn_large_delta(budget.delta, n)
        warn_of_narrow_bounds(record_scores, self.bounds)
        self.num_records = n
        self.record_scores = record_scores
        self._has_steps = bool(getattr(record_scores, "has_steps", False))
        #: What is in use without a search, if ``record_scores`` says so.
        self.incumbent: Config | None = getattr(record_scores, "incumbent", None)
        self.space = space
        self.budget = budget
        self.maximize = bool(maximize)
        checked = check_unit(unit, NeighboringRelation.REPLACE_ONE)
        self._unit = checked.given(
            OWN_RECORD_ONLY,
            "the number of records is public",
            _CHOSEN,
            *(self.statistic.conditions if self.statistic else ()),
        )
        if unsafe_seed is not None:
            unsafe_seed = check_integer("unsafe_seed", unsafe_seed, at_least=0)
        self.unsafe_seed = unsafe_seed
        self.coordinates = Coordinates(space)
        check_choice("route", route, ("auto", *get_args(Route)))
        self.route: Route | Literal["auto"] = route
        self._check_route()

    def plan(self, *, release_score: bool = False) -> SearchPlan:
        """Route, price, noise and evaluations of :meth:`run`; reads no record."""
        route, why = self._route(release_score)
        plans = {
            "selection": self._selection_plan,
            "slope": self._slope_plan,
            "descent": self._descent_plan,
        }
        return replace(plans[route](why, release_score), seen=self._seen(release_score))

    def run(
        self,
        progress: bool = False,
        checkpoint: str | os.PathLike[str] | None = None,
        ledger: PrivacyLedger | None = None,
        release_score: bool = False,
        executor: Mapper | None = None,
        label: str = "",
    ) -> SearchResult:
        """Search, and release one configuration.

        Args:
            progress: Whether to show a progress bar, of evaluations only.
            checkpoint: A file to keep the run in and to continue it from. It holds sensitive
                scores, with mode 0600, and one process at a time may hold it. Without one each
                call is a new run, charged anew.
            ledger: Charged for each part before the records are asked for it.
            label: What it is for, in public words; shown in the ledger.
            release_score: Whether to release the mean score of the configuration too, for a share
                of the budget and one evaluation; :meth:`plan` says what it costs.
            executor: Evaluates the configurations of a step in parallel, one in each call of
                ``record_scores``: a ``concurrent.futures`` executor of threads or processes, a Dask
                client's ``get_executor()``, or a ``ray.util.multiprocessing.Pool``. The result is
                the same, and the noise is drawn here.
        """
        check_payment(ledger, unsafe_seed=self.unsafe_seed)
        plan = self.plan(release_score=release_score)
        diagnostics = ObjectiveDiagnostics()
        # A run that was charged cannot go on where nobody charges: its keys are the ledger's.
        settings = {**self._settings(plan), "charged": ledger is not None}
        with Run(
            checkpoint, what="a private search", settings=settings, ledger=ledger, label=label
        ) as run:
            if ledger is not None and not run.resumed:
                ledger.check_bears(plan.guarantee)
            total = sum(plan.evaluations.values())
            with ProgressBar(total=total, desc="PrivateSearch", disable=not progress) as bar:
                table = ScoreTable(self, run, diagnostics, bar.update, executor)
                searching = Searching(self, plan, run, table)
                config = run.get("config")
                if config is None:
                    config = searching.configuration()
                    run.put(config=config)
                score = searching.score(config) if release_score else None
            charged = None if ledger is None else ledger.snapshot(run.identity)
        guarantee = plan.guarantee
        return SearchResult(
            config=Release(dict(config), guarantee),
            score=None
            if score is None
            else Release(
                min(max(score[0], self.bounds[0]), self.bounds[1]), guarantee, scale=score[1]
            ),
            route=plan.reason,
            diagnostics=diagnostics,
            ledger=charged,
        )

    def candidates(self, count: int) -> list[Config]:
        """What a selection compares, at most ``count`` configurations that differ.

        They are the middle of the space, the incumbent, which may lie outside of it, and others
        that fill the space.
        """
        filling = self.coordinates.filling(count)
        if self.incumbent is None or self.incumbent in filling:
            return filling
        return [filling[0], dict(self.incumbent), *filling[1 : max(count - 1, 1)]][:count]

    # Plans.

    def _check_route(self) -> None:
        """Refuse a route that cannot be taken, before anything is read."""
        if self.route == "descent" and self.budget.delta == 0:
            raise ValueError(
                f"`route` = {self.route!r} adds Gaussian noise, which needs a delta, but the "
                'budget has none: use route="slope" or "selection", or '
                f"PrivacyBudget({self.budget.epsilon:g}, 1e-6)."
            )
        if self.route not in ("slope", "descent"):
            return
        why_not = self._without_slopes()
        if why_not is not None:
            raise ValueError(
                f'`route` = {self.route!r} cannot be taken: {why_not} Use "selection".'
            )
        needed = len(self.coordinates.smooth) + 1
        if self._left(True) < needed:
            raise ValueError(
                f"`route` = {self.route!r} takes at least {needed} evaluations for slopes, but of "
                f"`evaluations` = {self.evaluations} only {max(self._left(True), 0)} are left."
            )

    def _route(self, release_score: bool) -> tuple[Route, str]:
        """The route that is taken, and why, from public numbers only."""
        if self.route != "auto":
            return self.route, "you chose this route."
        smooth = len(self.coordinates.smooth)
        why_not = self._without_slopes()
        if why_not is None and self._has_steps:
            why_not = "the losses of such a model jump, and do not slope."
        few = _FEW if self.incumbent is None else _FEW_BESIDE_AN_INCUMBENT
        if why_not is None and smooth <= few:
            return "selection", (
                f"they cover {smooth} number{'s' if smooth > 1 else ''} densely enough."
            )
        if why_not is None and self._left(release_score) < smooth + 1:
            why_not = (
                f"{self.evaluations} evaluations are too few for a slope in {smooth} numbers, "
                f"which takes {smooth + 1} of its own."
            )
        if why_not is not None:
            return "selection", why_not
        if self.budget.delta == 0:
            return "slope", "the budget has no delta, which Gaussian noise would need."
        mu = gaussian_mu(self.budget.epsilon, self.budget.delta)
        if self.num_records * mu / math.sqrt(smooth) <= _SLOPES_UP_TO:
            return "slope", (
                f"with {self.num_records:,} records the gradients at single locations would be "
                "small beside their noise."
            )
        return "descent", (
            f"{self.evaluations} configurations would cover a {smooth}-dimensional space too "
            "thinly."
        )

    def _seen(self, release_score: bool) -> str:
        """What each route that could be taken would see, in units of the score or of records."""
        selection = self._selection_plan("", release_score)
        count = selection.evaluations["selection"]
        found = 2 * self._one_record / selection.shares["selection"] * math.log(count / 0.05)
        parts = [f"selection, differences of {found:.2g} in the score"]
        if self._without_slopes() is None and self._left(release_score) > len(
            self.coordinates.smooth
        ):
            slope = self._slope_plan("", release_score)
            noise = self._slope_noise(slope.slopes, slope.shares["slope"])
            parts.append(
                f"slope, a direction that {min(noise, 1):.0%} more records gain by than lose"
            )
            if self.budget.delta > 0:
                plan = self._descent_plan("", release_score)
                gradient = self.noise_to_clip(plan) / math.sqrt(plan.steps)
                parts.append(f"descent, one that {min(gradient, 1):.0%} more do")
        return f"What each route could see through its noise: {'; '.join(parts)}."

    def _slope_noise(self, slopes: int, share: float) -> float:
        """Typical length of one slope's noise over the slope's, did all records agree."""
        # Of vectors in all directions, an l1 norm is 0.8 sqrt(d) times the l2 norm.
        smooth = len(self.coordinates.smooth)
        return 2.3 * smooth * slopes / (self.num_records * share)

    def _without_slopes(self) -> str | None:
        """Why no slope can be followed here, or None."""
        if self.statistic is not None:
            return (
                f"{self.statistic.name} is no mean over records, so that no record has a slope of "
                "its own."
            )
        if not self.coordinates.smooth:
            return "there is no number whose slope could be followed."
        if self.space.has_conditions:
            return "a number that is not active everywhere has no slope there."
        if self.space.constraints:
            return "constraints would cut the stencils that slopes are inferred from."
        return None

    def _left(self, release_score: bool) -> int:
        """Evaluations that are left for slopes or gradients."""
        left = self.evaluations - release_score
        if self.coordinates.has_coarse:
            left -= self._num_categories(left)
        return left

    def _num_categories(self, left: int) -> int:
        """How many choices of everything without a slope are compared."""
        wanted = max(2, int(_CATEGORY_EVALUATIONS * left))
        return len(self.coordinates.categories(wanted))

    def noise_to_clip(self, plan: SearchPlan) -> float:
        """Typical length of one gradient's noise over the longest gradient there can be."""
        step_mu = plan.shares["gradients"] / math.sqrt(plan.steps)
        return 2 * math.sqrt(len(self.coordinates.smooth)) / (self.num_records * step_mu)

    def _selection_plan(self, why: str, release_score: bool) -> SearchPlan:
        weights: dict[Part, float] = {"selection": 1.0}
        if release_score:
            weights = {"selection": 1 - _PURE_SCORE_SHARE, "score": _PURE_SCORE_SHARE}
        shares = split_sum(self.budget.epsilon, weights)
        count = len(self.candidates(max(self.evaluations - release_score, 1)))
        evaluations: dict[Part, int] = {"selection": count, "score": 1}
        tail = 2 * self._one_record / shares["selection"] * math.log(count / 0.05)
        noise = (
            f"The score of the chosen one of {count} configurations is within {tail:.2g} of "
            "the best one's, with a probability of 95%."
        )
        reason = f"permute-and-flip on space-filling configurations, because {why}"
        return self._planned("selection", reason, shares, evaluations, noise)

    def _slope_plan(self, why: str, release_score: bool) -> SearchPlan:
        smooth, n = len(self.coordinates.smooth), self.num_records
        left = self._left(release_score)
        weights: dict[Part, float] = {}
        if self.coordinates.has_coarse:
            weights["selection"] = _PURE_CATEGORY_SHARE
        if release_score:
            weights["score"] = _PURE_SCORE_SHARE
        weights["slope"] = 1 - sum(weights.values())
        shares = split_sum(self.budget.epsilon, weights)
        wanted_slopes = round(n * shares["slope"] / (_PER_SLOPE * smooth))
        slopes = max(1, min(_MOST_SLOPES, wanted_slopes, left // (_SLOPE_STENCILS * (smooth + 1))))
        size = left // slopes
        evaluations: dict[Part, int] = {
            "selection": self.evaluations - release_score - left,
            "score": 1,
            "slope": slopes * size,
        }
        reason = (
            f"{'one noisy slope' if slopes == 1 else f'{slopes} noisy slopes'} of "
            f"{'the whole space' if slopes == 1 else 'narrower and narrower regions'}"
            + (" after a choice of the categories" if self.coordinates.has_coarse else "")
            + f", because {why}"
        )
        noise = (
            f"With {n:,} records the noise of each slope is about "
            f"{self._slope_noise(slopes, shares['slope']):.2g} times as long as the slope would "
            "be if all records agreed."
        )
        plan = self._planned("slope", reason, shares, evaluations, noise)
        return replace(plan, slopes=slopes, slope_size=size)

    def _descent_plan(self, why: str, release_score: bool) -> SearchPlan:
        smooth, left = len(self.coordinates.smooth), self._left(release_score)
        weights: dict[Part, float] = {"clip norm": _CLIP_SHARE}
        if self.coordinates.has_coarse:
            weights["selection"] = _CATEGORY_SHARE
        if release_score:
            weights["score"] = _SCORE_SHARE
        weights["gradients"] = 1 - sum(weights.values())
        shares = split_squares(gaussian_mu(self.budget.epsilon, self.budget.delta), weights)
        steps = max(0, min(_MOST_STEPS, left // (smooth + 1)))
        size = min(left // steps, 4 * (smooth + 1)) if steps else 0
        evaluations: dict[Part, int] = {
            "selection": self.evaluations - release_score - left,
            "score": 1,
            "gradients": steps * size,
        }
        reason = (
            f"{steps} noisy gradient steps"
            + (" after a choice of the categories" if self.coordinates.has_coarse else "")
            + f", because {why}"
        )
        plan = self._planned("descent", reason, shares, evaluations, "")
        plan = replace(plan, steps=steps, batch_size=size)
        if not steps:
            return plan
        noise = (
            f"With {self.num_records:,} records the noise is {self.noise_to_clip(plan):.2g} times "
            "the clipping norm in each step (about "
            f"{self.noise_to_clip(plan) / math.sqrt(steps):.2g} averaged over all steps)."
        )
        return replace(plan, noise=noise + plan.noise)

    def _planned(
        self,
        route: Route,
        reason: str,
        shares: dict[Part, float],
        evaluations: dict[Part, int],
        noise: str,
    ) -> SearchPlan:
        """A plan of the parts that have a share."""
        pure = route in ("selection", "slope")
        if "score" in shares:
            std = (math.sqrt(2) if pure else 1) * self._one_record / shares["score"]
            noise += f" The released score's noise has a standard deviation of {std:.2g}."
        guarantee = self._guarantee(PureLoss(self.budget.epsilon))
        if not pure:
            mu = gaussian_mu(self.budget.epsilon, self.budget.delta)
            guarantee = self._guarantee(GaussianLoss(mu)).quoted_at(self.budget.delta)
        return SearchPlan(
            route=route,
            reason=reason,
            num_records=self.num_records,
            evaluations={part: count for part, count in evaluations.items() if part in shares},
            shares=shares,
            noise=noise,
            guarantee=guarantee,
        )

    @property
    def _one_record(self) -> float:
        """By how much one record may move the score of a configuration."""
        if self.statistic is not None:
            return self.statistic.sensitivity * abs(self.statistic.unit)
        return self._width / self.num_records

    def _guarantee(self, loss: PrivacyLoss) -> Guarantee:
        guarantee = Guarantee("Private search", self._unit, (loss,))
        return guarantee if self.unsafe_seed is None else guarantee.simulated()

    def _settings(self, plan: SearchPlan) -> dict[str, Any]:
        """All that a run depends on; it is continued with the same settings only."""
        return {
            "space": self.space.to_dict(),
            "incumbent": self.incumbent,
            "bounds": list(self.bounds),
            "epsilon": self.budget.epsilon,
            "delta": self.budget.delta,
            "evaluations": dict(plan.evaluations),
            "num_records": self.num_records,
            "maximize": self.maximize,
            "statistic": self.statistic.name if self.statistic else "",
            "unit": [self._unit.protects, *self._unit.conditions],
            "route": plan.route,
            "shares": dict(plan.shares),
            "steps": plan.steps,
            "unsafe_seed": self.unsafe_seed,
        }


# --- Splitting a budget. ---


def split_sum(total: float, weights: dict[Part, float]) -> dict[Part, float]:
    """Parts in proportion to the weights whose exact sum is at most ``total``."""
    whole = sum(weights.values())
    return _within(total, {part: total * weight / whole for part, weight in weights.items()}, 1)


def split_squares(total: float, weights: dict[Part, float]) -> dict[Part, float]:
    """Parts whose squares are in proportion to the weights and add up to at most ``total^2``."""
    whole = sum(weights.values())
    roots = {part: total * math.sqrt(weight / whole) for part, weight in weights.items()}
    return _within(total, roots, 2)


def _within(total: float, shares: dict[Part, float], power: int) -> dict[Part, float]:
    """The largest share so much smaller that the powers' exact sum is at most the total's."""
    largest = max(shares, key=lambda part: shares[part])
    while sum(Fraction(share) ** power for share in shares.values()) > Fraction(total) ** power:
        shares[largest] = math.nextafter(shares[largest], 0.0)
    return shares
