r"""One call that tunes on records which must not leak, and publishes one configuration.

Two routes, and a rule that knows public numbers only. *Selection*: the mean scores of
configurations that fill the space are compared by permute-and-flip. *Descent*: from the middle of
the space, gradients of single records are inferred from the scores around a location, clipped,
averaged and released with Gaussian noise; everything after that is post-processing, and a Gaussian
process that has seen the released gradients says where to go next.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any, Literal, Never

from botorch_dp._checks import check_integer, check_interval, check_positive
from botorch_dp._progress import ProgressBar
from botorch_dp.objectives import (
    ObjectiveDiagnostics,
    check_bearable,
    one_column_warning,
    refuse_unknown,
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
    gaussian_mu,
    warn_large_delta,
)
from botorch_dp.privacy.ledger import check_payment
from botorch_dp.privacy.runs import Run
from botorch_dp.scores import (
    OWN_RECORD_ONLY,
    Statistic,
    known_num_records,
    warn_caller,
    warn_of_narrow_bounds,
)
from botorch_dp.space import Config, SearchSpace
from botorch_dp.tuning.searching import Coordinates, Mapper, Part, ScoreTable, Searching

RecordScores = Callable[[list[Config]], Any]
Route = Literal["selection", "descent"]

_CHOSEN = "the space, the bounds and the settings were chosen without the records"
#: With so few numbers to tune, space-filling points come close enough by themselves.
_FEW = 2
#: More steps than this only divide the budget further; evaluations left over widen each stencil.
_MOST_STEPS = 25
#: The part of the evaluations and, in squares of mu, of the budget that chooses categories.
_CATEGORY_EVALUATIONS, _CATEGORY_SHARE = 0.25, 0.1
#: The squares of mu for the clip norms, and for the score where it is released.
_CLIP_SHARE, _SCORE_SHARE = 0.08, 0.1
#: The part of a pure epsilon for the score.
_PURE_SCORE_SHARE = 0.2


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
        power = 1 if self.route == "selection" else 2
        whole = sum(share**power for share in self.shares.values())
        parts = [
            f"{share**power / whole:.0%} for the {part} ({self.evaluations.get(part, 0)})"
            for part, share in self.shares.items()
        ]
        budget = f"Budget (and evaluations): {', '.join(parts)}."
        return "\n".join((f"Method: {self.reason}", budget, self.noise, str(self.guarantee)))


@dataclass(frozen=True, repr=False)
class SearchResult:
    """What a search publishes.

    Args:
        config: The released configuration.
        score: The released mean score of it, if it was asked for.
        route: What was done and why, in a sentence.
        diagnostics: **Sensitive.** How many scores were outside the bounds. Counts begin with the
            process: a resumed run has those of the evaluations it made itself.
    """

    config: Release[Config]
    score: Release[float] | None
    route: str
    diagnostics: ObjectiveDiagnostics = field(default_factory=ObjectiveDiagnostics)

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
      ``evaluations`` configurations that fill the space. It is taken for up to two numbers,
      where there is nothing but categories, under constraints, without a delta, for scores that
      are no mean over records (AUC, F1), and where gradients would be smaller than their noise;
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
        budget: What may be spent; without a delta a selection is the only route.
        evaluations: How many configurations all records may be scored at.
        num_records: ``n``, which is public under replace-one; by default the attribute of that
            name of ``record_scores``.
        maximize: Whether a large score is good.
        unit: Whom or what one column of the scores is; replace-one is the only relation.
        unsafe_seed: Simulate with reproducible noise. The result then promises nothing.
        unknown: Refused, with the name that an argument of other libraries has here.

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
        **unknown: Never,
    ) -> None:
        refuse_unknown(
            type(self),
            unknown,
            **dict.fromkeys(("epsilon", "delta"), "Pass `budget=PrivacyBudget(epsilon, delta)`."),
            cv="Fits must not read validation records; see docs/tuning.md.",
        )
        if not callable(record_scores):
            raise TypeError(
                f"`record_scores` must be callable, got {type(record_scores).__name__}: pass a "
                "function from configurations to scores (b x n)."
            )
        if not isinstance(space, SearchSpace):
            raise TypeError(f"`space` must be a SearchSpace, got {type(space).__name__}.")
        if not isinstance(budget, PrivacyBudget):
            raise TypeError(
                f"`budget` must be a PrivacyBudget(epsilon, delta), got {type(budget).__name__}."
            )
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
        executor: Mapper | None = None,
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
            executor: Evaluates the configurations of a step in parallel, one in each call of
                ``record_scores``: a ``concurrent.futures`` executor of threads or processes, a Dask
                client's ``get_executor()``, or a ``ray.util.multiprocessing.Pool``. The result is
                the same, and the noise is drawn here.
        """
        check_payment(ledger, unsafe_seed=self.unsafe_seed)
        if executor is not None and not callable(getattr(executor, "map", None)):
            raise TypeError(
                "`executor` must be an executor or a pool, with a method `map`, got "
                f"{type(executor).__name__}."
            )
        plan = self.plan(release_score=release_score)
        diagnostics = ObjectiveDiagnostics()
        # A run that was charged cannot go on where nobody charges: its keys are the ledger's.
        settings = {**self._settings(plan), "charged": ledger is not None}
        with Run(checkpoint, what="a private search", settings=settings, ledger=ledger) as run:
            if ledger is not None and not run.resumed:
                check_bearable(ledger, plan.guarantee)
            total = sum(plan.evaluations.values())
            with ProgressBar(total=total, desc="PrivateSearch", disable=not progress) as bar:
                table = ScoreTable(self, run, diagnostics, bar.update, executor)
                searching = Searching(self, plan, run, table)
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
        smooth = len(self.coordinates.smooth)
        begin = "Permute-and-flip on space-filling configurations, because "
        if self.statistic is not None:
            return begin + (
                f"{self.statistic.name} is no mean over records, so that no record has a gradient "
                "of its own."
            )
        if self.budget.delta == 0:
            return begin + "the budget has no delta, which Gaussian noise on gradients would need."
        if smooth == 0:
            return begin + "there is no number whose slope could be followed."
        if self.space.has_conditions:
            return begin + "a number that is not active everywhere has no slope there."
        if self.space.constraints:
            return begin + "constraints would cut the stencils that gradients are inferred from."
        if smooth <= _FEW:
            return begin + (
                f"they cover {smooth} number{'s' if smooth > 1 else ''} densely enough."
            )
        descent = self._descent_plan("", release_score)
        if not descent.steps:
            return begin + (
                f"{self.evaluations} evaluations are too few for a gradient in {smooth} numbers, "
                f"which takes {smooth + 1} of its own."
            )
        ratio = self.noise_to_clip(descent)
        if ratio > math.sqrt(descent.steps):
            return begin + (
                f"gradients in {smooth} numbers would be smaller than their noise, even averaged "
                "over all steps."
            )
        return None

    def noise_to_clip(self, plan: SearchPlan) -> float:
        """Typical length of one gradient's noise over the longest gradient there can be."""
        step_mu = plan.shares["gradients"] / math.sqrt(plan.steps)
        return 2 * math.sqrt(len(self.coordinates.smooth)) / (self.num_records * step_mu)

    def _selection_plan(self, reason: str, release_score: bool) -> SearchPlan:
        weights: dict[Part, float] = {"selection": 1.0}
        if release_score:
            weights = {"selection": 1 - _PURE_SCORE_SHARE, "score": _PURE_SCORE_SHARE}
        shares = split_sum(self.budget.epsilon, weights)
        wanted = max(self.evaluations - release_score, 1)
        count = len(self.coordinates.filling(wanted))
        evaluations: dict[Part, int] = {"selection": count}
        scale = 2 * self._one_record / shares["selection"]
        tail = scale * math.log(count / 0.05)
        noise = (
            f"The score of the chosen one of {count} configurations is within {tail:.2g} of "
            "the best one's, with a probability of 95%."
        )
        if release_score:
            evaluations["score"] = 1
            std = math.sqrt(2) * self._one_record / shares["score"]
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
        smooth, coarse = len(self.coordinates.smooth), self.coordinates.has_coarse
        mu = gaussian_mu(self.budget.epsilon, self.budget.delta)
        weights: dict[Part, float] = {"clip norm": _CLIP_SHARE}
        evaluations: dict[Part, int] = {}
        left = self.evaluations - release_score
        if coarse:
            weights["selection"] = _CATEGORY_SHARE
            wanted = max(2, int(_CATEGORY_EVALUATIONS * left))
            evaluations["selection"] = len(self.coordinates.categories(wanted))
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
                f"{steps} noisy gradient steps"
                + (" after a choice of the categories" if coarse else "")
                + f", because {self.evaluations} configurations would cover a {smooth}-dimensional "
                "space too thinly."
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
            f"With {self.num_records:,} records the noise is {self.noise_to_clip(plan):.2g} times "
            "the clipping norm in each step (about "
            f"{self.noise_to_clip(plan) / math.sqrt(steps):.2g} averaged over all steps)."
        )
        if release_score:
            std = self._one_record / shares["score"]
            noise += f" The released score's noise has a standard deviation of {std:.2g}."
        return replace(plan, noise=noise)

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

    def __repr__(self) -> str:
        return (
            f"PrivateSearch({self.space!r}, bounds={self.bounds}, budget={self.budget}, "
            f"evaluations={self.evaluations}, num_records={self.num_records})"
        )


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
