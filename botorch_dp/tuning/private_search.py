r"""One call that tunes on records which must not leak, and publishes one configuration.

How it searches is a method of :mod:`~botorch_dp.tuning.routes`, by public numbers unless given.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from typing import Any

from botorch_dp._checks import (
    check_callable,
    check_choice,
    check_integer,
    check_interval,
    check_positive,
    warn_caller,
)
from botorch_dp._progress import ProgressBar
from botorch_dp.privacy import (
    NeighboringRelation,
    PrivacyBudget,
    PrivacyLedger,
    PrivacyUnit,
    Release,
)
from botorch_dp.privacy.guarantee import ONE_RECORD, check_unit, warn_large_delta
from botorch_dp.privacy.ledger import charged_nowhere, check_payment
from botorch_dp.privacy.runs import Run
from botorch_dp.scores import (
    OWN_RECORD_ONLY,
    ScoreDiagnostics,
    Statistic,
    known_num_records,
    scores_and_unit,
    warn_of_narrow_bounds,
    warning_of_one_column,
)
from botorch_dp.space import Config, SearchSpace
from botorch_dp.tuning.routes import ROUTES
from botorch_dp.tuning.routes.base import (
    RecordScores,
    Releases,
    Route,
    ScoreTable,
    SearchPlan,
    SearchSettings,
)

_CHOSEN = "you chose the search space, the bounds and the settings without looking at the records"


@dataclass(frozen=True)
class SearchResult(Release[dict[str, Any]]):
    """What a search publishes: the configuration, or ``{"config": ..., "score": ...}``.

    Args:
        config: The released configuration.
        score: The released mean score of it, if it was asked for; one that noise carried beyond
            the bounds is the bound.
        reason: What was done and why, in a sentence.
        diagnostics: **Sensitive.** How many scores were outside the bounds. Counts begin with the
            process: a resumed run has those of the evaluations it made itself.
    """

    config: Release[Config]
    score: Release[float] | None
    reason: str
    diagnostics: ScoreDiagnostics = field(default_factory=ScoreDiagnostics)

    def __str__(self) -> str:
        """What one would paste into a report."""
        config = ", ".join(f"{name} = {value}" for name, value in self.config.value.items())
        lines = [f"Configuration: {config}", f"Method: {self.reason}"]
        if self.score is not None:
            scale = self.score.scale
            noise = "" if scale is None else f" (scale of its noise: {scale:.2g})"
            lines.append(f"Mean score: {self.score.value:.4g}{noise}")
        lines += [str(self.guarantee), *charged_nowhere(self.facts.get("ledger"), self.guarantee)]
        return "\n".join(lines)


class PrivateSearch:
    r"""Tune on records that must not leak: one call, one released configuration, one guarantee.

    ``mean_i clip(score_i(config), lo, hi)`` is minimized (or maximized) over a
    :class:`~botorch_dp.space.SearchSpace`. :meth:`plan` says the method, the cost and the noise
    before anything is read:

    - *selection* costs a pure epsilon: permute-and-flip [McKenna2020] on the mean scores of
      ``evaluations`` configurations that fill the space, the middle of it and the ``incumbent`` of
      ``record_scores``, a configuration, among them. It is taken for up to two numbers (four with
      an incumbent, as estimators have one), where there is nothing but categories, under
      constraints, for scores that are no mean over records (AUC, F1), and for models with
      piecewise constant losses (trees and their ensembles, neighbours, networks);
    - *slope* costs a pure epsilon: categories are chosen by permute-and-flip, then mean gradients
      of regions are released (see :mod:`~botorch_dp.tuning.routes.slope`). It is taken without a
      delta, and with one where ``n mu / sqrt(d)`` is at most 11;
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
        budget: What may be spent; without a delta only *selection* and *slope* can be had.
        evaluations: How many configurations all records may be scored at.
        num_records: ``n``, which is public under replace-one; by default the attribute of that
            name of ``record_scores``.
        maximize: Whether a large score is good.
        method: One of ``"selection"``, ``"slope"`` and ``"descent"``. With ``"auto"`` it follows
            from public numbers, and from whether ``record_scores`` has an attribute ``has_steps``:
            piecewise constant losses have no useful gradient.
        unit: Whom or what one column of the scores is; replace-one is the only relation.
        groups: Whose each record is, where people have several: one identifier for each. A person
            with all records is then protected, by the mean of their clipped scores.
        per_group: How many records of a person are used at most; 16 unless given.
        unsafe_seed: Simulate with reproducible noise. The result then guarantees nothing.

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
        method: str = "auto",
        unit: PrivacyUnit = ONE_RECORD,
        groups: Any = None,
        per_group: int | None = None,
        unsafe_seed: int | None = None,
    ) -> None:
        check_callable("record_scores", record_scores)
        low, high = check_interval("bounds", bounds)
        check_positive("bounds", high - low)
        how: Any = {"bounds": (low, high), "nan_as": low if maximize else high}
        record_scores, unit = scores_and_unit(record_scores, unit, groups, per_group, **how)
        n = known_num_records(record_scores, num_records, takes_statistic=True)
        statistic: Statistic | None = getattr(record_scores, "statistic", None)
        if statistic is not None and ((low, high) != (0.0, 1.0) or maximize):
            raise ValueError(
                f"`record_scores` is scored by 1 - {statistic.name}, a loss: `bounds` must be "
                f"(0.0, 1.0) and `maximize` False, got {(low, high)} and {maximize}."
            )
        if n is None:
            raise ValueError(
                "`num_records` is needed: the noise and the method depend on how many records the "
                "scores are averaged over, which is public under replace-one."
            )
        if n == 1:
            warn_caller(warning_of_one_column("record_scores"))
        warn_large_delta(budget.delta, n)
        warn_of_narrow_bounds(record_scores, (low, high))
        if unsafe_seed is not None:
            unsafe_seed = check_integer("unsafe_seed", unsafe_seed, at_least=0)
        self.record_scores = record_scores
        #: All that is public.
        self.settings = SearchSettings(
            space=space,
            bounds=(low, high),
            budget=budget,
            evaluations=check_integer("evaluations", evaluations, at_least=2),
            num_records=n,
            maximize=bool(maximize),
            statistic=statistic,
            has_steps=bool(getattr(record_scores, "has_steps", False)),
            incumbent=getattr(record_scores, "incumbent", None),
            unit=check_unit(unit, NeighboringRelation.REPLACE_ONE).given(
                OWN_RECORD_ONLY,
                f"the number of {unit.counted} is public",
                _CHOSEN,
                *(statistic.conditions if statistic else ()),
            ),
            unsafe_seed=unsafe_seed,
        )
        check_choice("method", method, ("auto", *ROUTES))
        self.method = method
        if method != "auto":
            # A score takes an evaluation, and may be asked for later.
            obstacle = ROUTES[method](self.settings, True).obstacle()
            if obstacle is not None:
                raise ValueError(f"`method` = {method!r} cannot be taken: {obstacle}")

    def plan(self, *, release_score: bool = False) -> SearchPlan:
        """Method, guarantee, noise and evaluations of :meth:`run`; reads no record."""
        taken, why = self._taken(release_score)
        routes = [kind(self.settings, release_score) for kind in ROUTES.values()]
        possible = [route for route in routes if route.name == taken.name or not route.obstacle()]
        seen = "; ".join(route.plan().seen for route in possible)
        words = f"Smallest effect each method can detect at this budget: {seen}."
        return replace(taken.plan(why), seen=words)

    def _taken(self, release_score: bool) -> tuple[Route, str]:
        """The method that is taken, and why, from public numbers only."""
        if self.method != "auto":
            return ROUTES[self.method](self.settings, release_score), "you chose this method."
        why = ""
        for kind in reversed(ROUTES.values()):
            route = kind(self.settings, release_score)
            objection = route.objection()
            if objection is None:
                break
            why = objection
        return route, why

    def run(
        self,
        progress: bool = False,
        checkpoint: str | os.PathLike[str] | None = None,
        ledger: PrivacyLedger | None = None,
        release_score: bool = False,
        executor: Any = None,
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
        settings = self.settings
        check_payment(ledger, unsafe_seed=settings.unsafe_seed)
        route, why = self._taken(release_score)
        plan = route.plan(why)
        with Run(
            checkpoint,
            what="a private search",
            # A run that was charged cannot go on where nobody charges: its keys are the ledger's.
            settings={**self._stored_settings(plan), "charged": ledger is not None},
            ledger=ledger,
            label=label,
        ) as run:
            if ledger is not None and not run.resumed:
                ledger.check_affords(plan.guarantee)
            total = sum(plan.evaluations.values())
            with ProgressBar(total=total, desc="PrivateSearch", disable=not progress) as bar:
                table = ScoreTable(settings, self.record_scores, run, bar.update, executor)
                releases = Releases(settings, plan, run, table)
                config = run.get("config")
                if config is None:
                    config = route.run(plan, releases)
                    run.put(config=config)
                score = releases.score(config) if release_score else None
            charged = None if ledger is None else ledger.snapshot(run.identity)
        guarantee, released, value = plan.guarantee, None, dict(config)
        if score is not None:
            within = min(max(score[0], settings.bounds[0]), settings.bounds[1])
            released = Release(within, guarantee, scale=score[1])
            value = {"config": value, "score": within}
        return SearchResult(
            value,
            guarantee,
            Release(dict(config), guarantee),
            released,
            plan.reason,
            table.diagnostics,
            facts={"note": plan.reason, "ledger": charged},
        )

    def _stored_settings(self, plan: SearchPlan) -> dict[str, Any]:
        """All that a run depends on; it is continued with the same settings only."""
        settings = self.settings
        return {
            "space": settings.space.to_dict(),
            "incumbent": settings.incumbent,
            "bounds": list(settings.bounds),
            "epsilon": settings.budget.epsilon,
            "delta": settings.budget.delta,
            "evaluations": dict(plan.evaluations),
            "num_records": settings.num_records,
            "maximize": settings.maximize,
            "statistic": settings.statistic.name if settings.statistic else "",
            "unit": [settings.unit.protects, *settings.unit.conditions],
            "route": plan.method,
            "shares": dict(plan.shares),
            "steps": plan.steps,
            "unsafe_seed": settings.unsafe_seed,
        }
