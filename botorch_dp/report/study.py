"""The report of a study: its front, what to deploy, what matters, and what publishing it costs."""

from __future__ import annotations

import csv
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from html import escape
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from botorch_dp._files import atomic_write, differences
from botorch_dp.pareto.beliefs import Beliefs, KnownObjectives, objective_scales
from botorch_dp.pareto.front import ParetoFront
from botorch_dp.pareto.problem import (
    Objective,
    PrivacyUtilityProblem,
    Resource,
    StudyError,
    TrainingPromise,
    Trial,
)
from botorch_dp.pareto.proposals import ProposalOptions, Search
from botorch_dp.pareto.publishing import TestOrTraining, publication
from botorch_dp.pareto.recommending import OperatingPoint, expected_error, recommended
from botorch_dp.pareto.storage import StudyFile
from botorch_dp.privacy import (
    DEFAULT_DELTA,
    Guarantee,
    NeighboringRelation,
    PrivacyBudget,
    PrivacyLedger,
    PrivacyUnit,
    Receipt,
    rounded_up,
)
from botorch_dp.report.page import (
    BLACK,
    BLUE,
    GREY,
    ORANGE,
    Page,
    figure,
    hover,
    log_ticks,
    receipt_details,
    shown,
    source,
    table,
)
from botorch_dp.space import Choice, Config, Integer, Real, SearchSpace, When

_NOTICE = (
    "Every error, interval, curve and recommendation on this page, and the choice of the "
    "configurations, follow from the records without noise. Keep this file as you keep the study; "
    "publishing any of it costs what is said below."
)
_NOTICE_CHARGED = (
    "What follows from the training records was charged to the budget below. Every error, "
    "interval and recommendation follows from the test records as well: keep this file as you keep "
    "the study, unless these are public."
)
#: The slider's stops in each decade of epsilon.
_STOPS = (1.0, 1.25, 1.6, 2.0, 2.5, 3.2, 4.0, 5.0, 6.3, 8.0)
_MOST_STOPS = 32
_SLICE_POINTS = 21
#: Points at which the importance of parameters is estimated; a power of 2.
_SAMPLES = 1024
_ERROR = 1
#: The probability of intervals, and the normal quantile of one.
_LEVEL = 0.95
_Z95 = 1.96
#: Stands for the value of a choice where it plays no part.
_IDLE = "not active"
#: Trials shown as curves; those on the front come first.
_MOST_CURVES = 60


@dataclass(frozen=True)
class Spending:
    """What the ledger of a study says.

    Args:
        budget: What may be spent.
        guarantee: Of everything that was charged, however much of the budget that is.
        spent: Epsilon and delta, rounded up.
        remaining: Epsilon and delta, rounded down.
        charges: How many there were.
    """

    budget: PrivacyBudget
    guarantee: Guarantee
    spent: tuple[float, float]
    remaining: tuple[float, float]
    charges: int

    @classmethod
    def of(cls, ledger: PrivacyLedger) -> Spending | None:
        """What a ledger says now; None if nothing was charged to it yet."""
        charges = len(ledger.entries())
        if not charges:
            return None
        return cls(ledger.budget, ledger.guarantee, ledger.spent(), ledger.remaining(), charges)


@dataclass(frozen=True)
class StudyView:
    """What a report is made of.

    Args:
        problem: The problem, or what its study's file says about it.
        trials: All trials by number.
        seed: The study's seed.
        recommend: The config to deploy within an epsilon, tried or not. None where the privacy
            oracle is not at hand: then the best one of those that were tried is shown.
        charged: Whether all trainings were charged to a ledger before they began.
        spending: What that ledger says, if it is at hand.
    """

    problem: PrivacyUtilityProblem
    trials: Sequence[Trial]
    seed: int
    recommend: Callable[[float], OperatingPoint] | None = None
    charged: bool = False
    spending: Spending | None = None

    @classmethod
    def of_file(
        cls,
        path: str | os.PathLike[str],
        problem: PrivacyUtilityProblem | None = None,
        *,
        ledger: str | os.PathLike[str] | None = None,
    ) -> StudyView:
        """What the file of a study holds now, while its study goes on or after it ended.

        Args:
            path: The file, which is neither changed nor locked.
            problem: Its problem, if the oracles are at hand.
            ledger: The file that its trainings were charged to; by default the one beside it.
        """
        study = StudyFile(path, description=None)
        study.close()
        description = dict(study.description)
        charged = bool(description.pop("budget", False))
        if ledger is not None and not charged:
            raise StudyError(f"{study.path} has no budget, so it has no `ledger`.")
        beside = Path(f"{study.path}.ledger")
        spending = None
        if ledger is not None or (charged and beside.is_file()):
            with PrivacyLedger(ledger or beside) as opened:
                spending = Spending.of(opened)
        if problem is None:
            stored = _stored_problem(description, study.trials)
            return cls(stored, study.trials, study.seed, charged=charged, spending=spending)
        changed = differences(description, problem.description())
        if changed:
            raise StudyError(
                f"{study.path} holds a study of another problem: {'; '.join(changed)}."
            )
        search = Search(problem, seed=study.seed, options=ProposalOptions())
        search.known.check_stored(study.trials)
        view = cls.of_search(search, study.trials)
        return replace(view, charged=charged, spending=spending)

    @classmethod
    def of_search(
        cls, search: Search, trials: Sequence[Trial], ledger: PrivacyLedger | None = None
    ) -> StudyView:
        """A study whose oracles are at hand, so that it can recommend what was never tried."""
        beliefs = cache(partial(search.beliefs, trials))

        def recommend(epsilon: float) -> OperatingPoint:
            return recommended(search, trials, epsilon, _LEVEL, fitted=beliefs())

        spending = None if ledger is None else Spending.of(ledger)
        return cls(search.problem, trials, search.seed, recommend, ledger is not None, spending)

    def guarantee(self, data: TestOrTraining = "training") -> Guarantee:
        """What publishing any of it promises; with a budget, what the ledger says."""
        if data == "training" and self.spending is not None:
            return self.spending.guarantee
        whole = publication(self.problem, self.trials, data)
        if data == "training" and self.charged:
            return replace(whole, void="the ledger that trainings were charged to is not at hand")
        return whole

    @property
    def complete(self) -> list[Trial]:
        """The complete trials."""
        return [trial for trial in self.trials if trial.state == "complete"]


def study_report(study: StudyView | str | os.PathLike[str], path: str | os.PathLike[str]) -> Path:
    """Write a study's report: one HTML file that needs no network. See ``DPareto.report``.

    Args:
        study: A view, or the file of a study, which is read without its lock.
        path: Where; its owner alone may read it.

    Example:
        >>> study_report("study.sqlite", "front.html")
    """
    view = study if isinstance(study, StudyView) else StudyView.of_file(study)
    return study_page(view).write(path)


def study_page(view: StudyView) -> Page:
    """The page of a study, which may have no complete trial yet."""
    counts = {
        state: sum(trial.state == state for trial in view.trials)
        for state in ("complete", "failed", "pending")
    }
    lead = ", ".join(f"{count} {state}" for state, count in counts.items() if count)
    page = Page(
        f"Privacy-utility study of {view.problem.name}",
        f"{len(view.trials)} trials ({lead or 'none yet'}); seed {view.seed}.",
        _NOTICE if view.spending is None else _NOTICE_CHARGED,
    )
    _price(page, view)
    complete = view.complete
    if complete:
        front = ParetoFront(
            view.problem, complete, guarantee=view.guarantee, charged=view.spending is not None
        )
        beliefs = _Modelled(view, complete) if len(complete) >= 2 else None
        marks = _marks(view, front, beliefs)
        if beliefs is not None:
            _recommendation(page, view, front, beliefs)
        _front(page, view, front, marks)
        _curves(page, view, front)
        _hypervolume(page, front)
        if beliefs is not None:
            _importance(page, view, beliefs)
            _slices(page, view, marks)
        _parallel(page, view, front)
    _all_trials(page, view)
    return page


class _Modelled:
    """The study's models of error and epsilon, asked about configs."""

    def __init__(self, view: StudyView, complete: Sequence[Trial]) -> None:
        problem = view.problem
        self._space = problem.space
        self._known = KnownObjectives(problem, with_epsilon=False)
        self._beliefs = Beliefs(
            problem, complete, [], known=self._known, scales=objective_scales(problem)
        )

    def _predict(self, configs: Sequence[Config]) -> tuple[Tensor, Tensor]:
        return self._beliefs.predict(self._known.candidates(configs))

    def errors(self, configs: Sequence[Config]) -> tuple[list[float], list[float], list[float]]:
        """Expected error of each config, with a central interval of 95 % for its mean."""
        means, stds = (part[:, _ERROR] for part in self._predict(configs))
        low, high = (torch.sigmoid(-means - sign * _Z95 * stds) for sign in (1, -1))
        return expected_error(means, stds).tolist(), low.tolist(), high.tolist()

    def total_effects(self) -> dict[str, tuple[float, float]]:
        r"""Shares of the variance of (log epsilon, logit error) that a parameter has a part in.

        Total Sobol indices of the models' means over the whole space, by Jansen's estimator
        :math:`E[(f(a) - f(a_b^i))^2] / (2 Var f)` [Saltelli2010]: ``a`` and ``b`` are independent
        uniform configs, and in :math:`a_b^i` parameter ``i`` comes from ``b``.
        """
        names = list(self._space.parameters)
        engine = torch.quasirandom.SobolEngine(2 * len(names), scramble=True, seed=0)
        points = engine.draw(_SAMPLES, dtype=torch.double).numpy()
        first, second = points[:, : len(names)], points[:, len(names) :]
        base = self._predict(self._space.spread(first))[0][:, :2]
        variance = base.var(dim=0)
        effects = {}
        for index, name in enumerate(names):
            mixed = first.copy()
            mixed[:, index] = second[:, index]
            other = self._predict(self._space.spread(mixed))[0][:, :2]
            moved = ((base - other) ** 2).mean(dim=0) / (2 * variance)
            # What is constant has no parts.
            epsilon, error = moved.where(variance > 0, 0.0).tolist()
            effects[name] = (epsilon, error)
        return effects


def _price(page: Page, view: StudyView) -> None:
    """What publishing anything of this costs, in plain sight."""
    title = "The price of publishing"
    if not any(trial.num_trainings for trial in view.trials):
        page.section(title, "<p>Nothing was trained yet.</p>")
        return
    spending = view.spending
    front = None
    if view.complete:
        front = ParetoFront(
            view.problem,
            view.complete,
            guarantee=view.guarantee,
            charged=spending is not None,
        )
    caption = "" if front is None else f"<p>{escape(front.caption)}</p>"
    if view.problem.promise is None:
        headline = "No price: relation and δ of its ε are not stated."
        page.section(title, f'<p class="price">{escape(headline)}</p>', caption)
        return
    training, test = view.guarantee(), view.guarantee("test")
    priced = training.void is None
    if spending is not None and priced:
        budget = spending.budget
        headline = f"ε = {budget.epsilon:g}" + (f", δ = {budget.delta:g}" if budget.delta else "")
        headline += ": the budget that its trainings were charged to"
    elif priced:
        delta = training.quoted_delta or DEFAULT_DELTA
        epsilon, delta = training.summed or (training.epsilon(delta), delta)
        headline = f"ε = {rounded_up(epsilon)}" + (f", δ = {rounded_up(delta)}" if delta else "")
    else:
        headline = "No guarantee: it must not be published."
    parts = [
        f'<p class="price">{escape(headline)}</p>',
        "" if spending is None else f"<p>{escape(_spent_in_words(spending))}</p>",
        caption,
        "<details><summary>The two guarantees in full</summary><dl>",
        *(
            f"<dt>{escape(whose)}</dt><dd>{escape(guarantee.paragraph())}</dd>"
            for whose, guarantee in (("training records", training), ("test records", test))
        ),
        "</dl></details>",
        receipt_details(Receipt.of(training)) if spending is not None and priced else "",
    ]
    if view.charged and spending is None:
        parts.insert(
            1,
            "<p>Its price is the budget that its trainings were charged to. Name the ledger: "
            "<code>botorch-dp report STUDY --ledger FILE</code>.</p>",
        )
    elif view.recommend is None and priced and spending is None:
        parts.append(
            '<p class="note">Summed from the epsilons in the study\'s file. '
            "<code>study.report(...)</code> in Python knows the mechanism and may say less.</p>"
        )
    page.section(title, *parts)


def _spent_in_words(paid: Spending) -> str:
    (epsilon, delta), (left, delta_left) = paid.spent, paid.remaining
    return (
        f"{paid.charges} charges have spent ε = {epsilon:.6g}, δ = {delta:.3g} of it, and leave "
        f"ε = {left:.6g}, δ = {delta_left:.3g}, by the ledger. How much was spent may follow from "
        "the records: quote the budget, and keep these figures."
    )


def _recommendation(page: Page, view: StudyView, front: ParetoFront, beliefs: _Modelled) -> None:
    """The slider; the page's script fills in what belongs to its stop."""
    points = _recommended(view, front, beliefs, _stops(front, view.problem.ref_point[0]))
    if not points:
        return
    page.data["recommendations"] = [
        _stop(view, front, beliefs, limit, point) for limit, point in points
    ]
    start = min(range(len(points)), key=lambda i: abs(math.log(points[i][0])))
    which = (
        "among those that were tried (the file does not hold the privacy oracle)."
        if view.recommend is None
        else "tried or not. Its ε is exact."
    )
    page.section(
        "What to deploy",
        "<p>The configuration expected to be most accurate within this ε, by the study's models, "
        f"{which}</p>",
        '<div class="slider"><label for="epsilon">largest ε allowed</label>'
        f'<input id="epsilon" type="range" min="0" max="{len(points) - 1}" value="{start}">'
        '<output id="epsilon-shown" for="epsilon"></output></div>',
        '<dl id="recommendation" aria-live="polite"></dl>',
    )


def _front(page: Page, view: StudyView, front: ParetoFront, marks: Any) -> None:
    page.section(
        "The front",
        page.place("front", _front_figure(view, front, marks), _front_in_words(front)),
        f'<p class="note">{escape(_epsilon_in_words(view))} Grey circles are trials, filled '
        "diamonds the front, and the large open square is the recommendation. Bars span the "
        "replicates of a trial from best to worst. Point at a mark to see its trial.</p>",
    )


def _stops(front: ParetoFront, reference: float) -> list[float]:
    """Round epsilons from the smallest tried to the largest of interest."""
    epsilons = [e for e in front.all_points[:, 0].tolist() if e > 0]
    if not epsilons:
        return []
    low = min(epsilons)
    high = max(low, min(max(epsilons), reference))
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    series = [float(f"{stop * 10.0**decade:.3g}") for decade in decades for stop in _STOPS]
    reached = [stop for stop in series if stop >= low]
    inside = [stop for stop in reached if stop <= high] + [s for s in reached if s > high][:1]
    return inside[:: math.ceil(len(inside) / _MOST_STOPS)]


def _recommended(
    view: StudyView, front: ParetoFront, beliefs: _Modelled, stops: Sequence[float]
) -> list[tuple[float, OperatingPoint]]:
    points = []
    if view.recommend is not None:
        for limit in stops:
            try:
                points.append((limit, view.recommend(limit)))
            except ValueError:
                continue  # nothing in the space has so small an epsilon
        return points
    predicted = list(zip(*beliefs.errors([point.config for point in front.measured]), strict=True))
    for limit in stops:
        within = [i for i, point in enumerate(front.measured) if point.values[0] <= limit]
        if within:
            best = min(within, key=lambda i: predicted[i][0])
            error, low, high = predicted[best]
            chosen = OperatingPoint(
                config=front.measured[best].config,
                epsilon=front.measured[best].values[0],
                error=error,
                interval=(low, high),
                level=_LEVEL,
                tried=True,
            )
            points.append((limit, chosen))
    return points


def _stop(
    view: StudyView, front: ParetoFront, beliefs: _Modelled, limit: float, point: OperatingPoint
) -> dict[str, Any]:
    """What the page shows at one stop of the slider."""
    low, high = point.interval
    words = [(name, shown(value)) for name, value in point.config.items()]
    words += [
        ("ε", f"{rounded_up(point.epsilon)}, exact"),
        (
            "error",
            f"{point.error:.4f}, predicted ({point.level:.0%} interval {low:.4f} to {high:.4f})",
        ),
        ("origin", "tried" if point.tried else "never tried"),
    ]
    slices: list[dict[str, list[Any]]] = []
    for name in view.problem.space.parameters:
        levels = _levels(view, name)
        if name not in point.config:  # nothing to show where it plays no part
            slices.append({key: [None] * len(levels) for key in ("error", "low", "high")})
            continue
        configs = [_moved(view.problem.space, point.config, name, value) for value in levels]
        columns = zip(("error", "low", "high"), beliefs.errors(configs), strict=True)
        slices.append({k: [float(f"{value:.4g}") for value in values] for k, values in columns})
    marked = {
        "x": [max(point.epsilon, _smallest(front))],
        "y": [point.error],
        "low": [low],
        "high": [high],
        "limit": [limit],
    }
    return {"limit": f"{limit:g}", "words": words, "point": marked, "slices": slices}


def _moved(space: SearchSpace, config: Config, name: str, value: Any) -> Config:
    """The config with another value; what becomes active by it is set to its middle."""
    moved: Config = {}
    for each, parameter in space.parameters.items():
        if parameter.active is None or parameter.active(moved):
            moved[each] = value if each == name else config.get(each, parameter.levels(1)[0])
    return moved


def _smallest(front: ParetoFront) -> float:
    """Where epsilon = 0 is drawn on a logarithmic axis."""
    positive = [epsilon for epsilon in front.all_points[:, 0].tolist() if epsilon > 0]
    return min(positive) / 2 if positive else 1e-3


def _marks(view: StudyView, front: ParetoFront, beliefs: _Modelled | None) -> Any:
    """One mark for each point that was measured, with what it says; all figures share them."""
    points, smallest = front.measured, _smallest(front)
    best = {id(point) for point in front.measured_on_front}
    on_front = [id(point) in best for point in points]
    columns: dict[str, list[Any]] = {
        "x": [max(point.values[0], smallest) for point in points],
        "y": [point.values[1] for point in points],
        "low": [1 - max(point.utilities) for point in points],
        "high": [1 - min(point.utilities) for point in points],
        "mark": ["diamond" if is_best else "circle" for is_best in on_front],
        "size": [9 if is_best else 6 for is_best in on_front],
        "fill": [BLUE if is_best else "#ffffff" for is_best in on_front],
        "line": [BLACK if is_best else GREY for is_best in on_front],
        "group": ["front" if is_best else "trials" for is_best in on_front],
        "trial": [str(point.trial) for point in points],
        "ε": [rounded_up(point.values[0]) for point in points],
        "configuration": [_in_words(point.config) for point in points],
    }
    counts = [len(point.utilities) for point in points]
    columns["error"] = [
        f"{error:.4f}" + (f" ({low:.4f} to {high:.4f}, {count} trainings)" if count > 1 else "")
        for error, low, high, count in zip(
            columns["y"], columns["low"], columns["high"], counts, strict=True
        )
    ]
    if beliefs is not None:
        columns["model"] = [
            f"{error:.4f} (95% interval {low:.4f} to {high:.4f})"
            for error, low, high in zip(
                *beliefs.errors([point.config for point in points]), strict=True
            )
        ]
    for index, (name, parameter) in enumerate(view.problem.space.parameters.items()):
        is_choice = isinstance(parameter, Choice)
        columns[f"parameter {index}"] = [
            (shown(point.config[name]) if is_choice else point.config[name])
            if name in point.config
            else (_IDLE if is_choice else math.nan)
            for point in points
        ]
    return source(columns)


def _told(marks: Any) -> list[str]:
    return [n for n in ("trial", "ε", "error", "model", "configuration") if n in marks.data]


def _in_words(config: Config) -> str:
    return ", ".join(f"{name} = {shown(value)}" for name, value in config.items())


def _epsilon_in_words(view: StudyView) -> str:
    promise = view.problem.promise
    if promise is None:
        return (
            "ε is of one training, as the problem's privacy oracle states it; relation and δ "
            "are not stated."
        )
    level = f" at δ = {promise.delta:g}" if promise.delta > 0 else ""
    return f"ε is of one training{level}, when {promise.unit.relation.value}."


def _front_figure(view: StudyView, front: ParetoFront, marks: Any) -> Any:
    x_label, y_label = "privacy loss ε of one training", "error (1 − utility)"
    made = figure(x_label, y_label, height=440, x_axis_type="log")
    points = [[max(e, _smallest(front)), error] for e, error, *_ in front.points.tolist()]
    until = max(view.problem.ref_point[0], points[-1][0])
    x, y = zip(*points, (until, min(error for _, error in points)), strict=True)
    if len(front.objective_names) == 2:
        made.step(x, y, mode="after", line_color=BLUE, line_width=2)
    epsilons, best = [epsilon for epsilon, _ in points], front.measured_on_front
    low, high = ([1 - end(p.utilities) for p in best] for end in (max, min))
    made.segment(epsilons, low, epsilons, high, line_color=BLUE)
    dots = _scatter(made, "x", marks, legend_group="group")
    now = source({key: [] for key in ("x", "y", "low", "high", "limit")}, "recommended")
    made.segment("x", "low", "x", "high", source=now, line_color=ORANGE, line_width=3)
    made.scatter(
        "x",
        "y",
        source=now,
        size=16,
        marker="square",
        fill_color=None,
        line_color=ORANGE,
        line_width=3,
        legend_label="recommended",
    )
    hover(made, [dots], *_told(marks))
    return made


def _scatter(made: Any, x: str, marks: Any, **options: Any) -> Any:
    return made.scatter(
        x,
        "y",
        source=marks,
        marker="mark",
        size="size",
        fill_color="fill",
        line_color="line",
        fill_alpha=0.8,
        **options,
    )


def _lines(made: Any, columns: dict[str, list[Any]], **options: Any) -> None:
    """A line for each trial; pointed at, it says what the columns beside its points hold."""
    xs, ys, *told = columns
    drawn = made.multi_line(xs, ys, source=source(columns), hover_line_color=ORANGE, **options)
    hover(made, [drawn], *told)


def _front_in_words(front: ParetoFront) -> str:
    ends = [front.points[0].tolist(), front.points[-1].tolist()]
    said = " to ".join(f"error {error:.3f} at epsilon {epsilon:.3g}" for epsilon, error, *_ in ends)
    return f"Error against epsilon, {len(front)} points on the front: {said}."


def _curves(page: Page, view: StudyView, front: ParetoFront) -> None:
    """Error along the trainings, where a problem measures it there."""
    resource = view.problem.resource
    if resource is None:
        return
    best = {trial.number for trial in front.front_trials}
    ordered = sorted(front.trials, key=lambda trial: (trial.number not in best, -trial.number))
    drawn = ordered[:_MOST_CURVES][::-1]
    logarithmic = getattr(view.problem.space.parameters[resource.name], "log", False)
    made = figure(resource.name, "error", x_axis_type="log" if logarithmic else "linear")
    for is_best, colour, dash in ((False, GREY, "dotted"), (True, BLUE, "solid")):
        chosen = [trial for trial in drawn if (trial.number in best) is is_best]
        points = [view.problem.points(trial) for trial in chosen]
        if not chosen:
            continue
        _lines(
            made,
            {
                "xs": [[point.config[resource.name] for point in curve] for curve in points],
                "ys": [[point.values[1] for point in curve] for curve in points],
                "trial": [str(trial.number) for trial in chosen],
                "configuration": [_in_words(trial.config) for trial in chosen],
            },
            line_color=colour,
            line_dash=dash,
            line_width=2,
            legend_label="reaches the front" if is_best else "others",
        )
    page.section(
        "Curves of trainings",
        page.place("curves", made, f"Error against {resource.name} of {len(drawn)} trials."),
        f'<p class="note">Mean error of a trial\'s trainings along {escape(resource.name)}: every '
        "point of a curve is a training that could have ended there, at a smaller ε. "
        f"{len(drawn)} of {len(front.trials)} trials, those that reach the front first.</p>",
    )


def _hypervolume(page: Page, front: ParetoFront) -> None:
    volumes = front.hypervolume_by_trial().tolist()
    reference = ", ".join(f"{value:g}" for value in front.problem.full_ref_point)
    names = ", ".join(front.objective_names)
    made = figure("complete trials", "hypervolume", height=300)
    counts = list(range(1, len(volumes) + 1))
    data = source(
        {
            "x": counts,
            "y": volumes,
            "after trial": [str(trial.number) for trial in front.trials],
            "hypervolume": [f"{volume:.5g}" for volume in volumes],
        }
    )
    made.step("x", "y", source=data, mode="after", line_color=BLUE, line_width=2)
    dots = made.scatter("x", "y", source=data, size=4, fill_color=BLUE, line_color=BLUE)
    hover(made, [dots], "after trial", "hypervolume")
    page.section(
        "Hypervolume by trial",
        page.place("hypervolume", made, f"Hypervolume by trial, {volumes[-1]:.5g} in the end."),
        f'<p class="note">Between the front and ({escape(names)}) = ({reference}). A long flat end '
        "says that more trials of this kind gain little.</p>",
    )


def _importance(page: Page, view: StudyView, beliefs: _Modelled) -> None:
    from bokeh.models import FactorRange

    effects = beliefs.total_effects()
    names = sorted(effects, key=lambda name: effects[name][1])
    rows = [(name, what) for name in names for what in ("ε", "error")]
    values = [effects[name][0 if what == "ε" else 1] for name, what in rows]
    made = figure(
        "share of the variance in which the parameter has a part",
        "",
        height=90 + 46 * len(names),
        y_range=FactorRange(factors=rows, group_padding=0.4),
    )
    for what, colour, pattern in (("error", BLUE, " "), ("ε", ORANGE, "/")):
        chosen = [i for i, row in enumerate(rows) if row[1] == what]
        data = source(
            {
                "y": [rows[i] for i in chosen],
                "right": [values[i] for i in chosen],
                "text": [f" {values[i]:.2f}" for i in chosen],
            }
        )
        made.hbar(
            "y",
            right="right",
            height=0.8,
            source=data,
            fill_color=colour,
            fill_alpha=0.6,
            line_color=BLACK,
            hatch_pattern=pattern,
        )
        made.text("right", "y", "text", source=data, text_baseline="middle", text_font_size="12px")
    made.x_range.start = 0
    made.x_range.end = 1.12 * max([1.0, *values])
    said = "; ".join(f"{name} {effects[name][1]:.2f}" for name in reversed(names))
    page.section(
        "Which parameters matter",
        page.place("importance", made, f"Importance for the error: {said}."),
        '<p class="note">Total Sobol indices of the study\'s models over the whole space, of '
        "the logit of the error and of the logarithm of ε (hatched). They say what the models "
        "believe, and add up to more than 1 where parameters act together.</p>",
    )


def _levels(view: StudyView, name: str) -> list[Any]:
    parameter = view.problem.space.parameters[name]
    if isinstance(parameter, Choice):
        return list(parameter.values)
    return parameter.levels(_SLICE_POINTS)


def _slices(page: Page, view: StudyView, marks: Any) -> None:
    if "recommendations" not in page.data:
        return
    parts = []
    for index, (name, parameter) in enumerate(view.problem.space.parameters.items()):
        levels = _levels(view, name)
        categories = isinstance(parameter, Choice)
        options: dict[str, Any] = {"y_range": _error_range(marks.data["y"])}
        if categories:
            idle = [] if parameter.active is None else [_IDLE]
            options["x_range"] = [shown(value) for value in levels] + idle
        elif getattr(parameter, "log", False):
            options["x_axis_type"] = "log"
        made = figure(name, "error", height=260, **options)
        if "x_axis_type" in options:
            log_ticks(made, levels[0], levels[-1])
        at = [shown(level) if categories else level for level in levels]
        empty = [math.nan] * len(levels)
        model = source({"x": at, "error": empty, "low": empty, "high": empty}, f"slice {index}")
        if categories:
            made.segment("x", "low", "x", "high", source=model, line_color=ORANGE, line_width=3)
            made.scatter(
                "x",
                "error",
                source=model,
                marker="square",
                size=12,
                fill_color=None,
                line_color=ORANGE,
                line_width=2,
            )
        else:
            made.varea("x", "low", "high", source=model, fill_color=ORANGE, fill_alpha=0.2)
            made.line("x", "error", source=model, line_color=ORANGE, line_width=2)
        dots = _scatter(made, f"parameter {index}", marks)
        hover(made, [dots], *_told(marks))
        parts.append(page.place(f"slice{index}", made, f"Error of the trials against {name}."))
    page.section(
        "Slices",
        f'<div class="grid">{"".join(parts)}</div>',
        '<p class="note">The line and its band (95 %) are what the model expects if one parameter '
        "of the recommended configuration is changed; they move with the slider above. Marks are "
        "trials, whose other parameters differ; diamonds are on the front.</p>",
    )


def _error_range(errors: Sequence[float]) -> tuple[float, float]:
    margin = 0.05 * (max(errors) - min(errors)) or 0.01
    return min(errors) - margin, max(errors) + margin


def _parallel(page: Page, view: StudyView, front: ParetoFront) -> None:
    """One line for each trial across all parameters, epsilon and error."""
    best = front.measured_on_front
    on_front = {id(point) for point in best}
    # Of a curve the points on the front, and its end.
    ends = {point.trial: point for point in front.measured}
    rest = [point for point in ends.values() if id(point) not in on_front]
    points = [*rest, *best]
    axes: list[tuple[str, Sequence[float | None], list[tuple[float, str]]]] = []
    for name, parameter in view.problem.space.parameters.items():
        values = [point.config.get(name) for point in points]
        if isinstance(parameter, Choice):
            last = max(1, len(parameter.values) - 1)
            order = {value: index / last for index, value in enumerate(parameter.values)}
            ticks = [(place, shown(value)) for value, place in order.items()]
            configs = [point.config for point in points]
            axes.append((name, [order[c[name]] if name in c else None for c in configs], ticks))
        else:
            ticks = [(0.0, shown(parameter.low)), (1.0, shown(parameter.high))]
            active = [value for value in values if value is not None]
            codes = iter(parameter.encode(active).tolist())
            axes.append((name, [None if v is None else next(codes) for v in values], ticks))
    logs = [math.log(max(point.values[0], _smallest(front))) for point in points]
    axes.append(("ε (log)", *_unit(logs, lambda value: shown(math.exp(value)))))
    axes.append(("error", *_unit([point.values[1] for point in points], shown)))

    made = figure("", "", x_range=(-0.4, len(axes) - 0.6), y_range=(-0.12, 1.12))
    for is_front, colour, width, alpha, legend in (
        (False, GREY, 1, 0.35, "trials"),
        (True, BLUE, 2.5, 0.9, "front"),
    ):
        chosen = range(len(rest), len(points)) if is_front else range(len(rest))
        _lines(
            made,
            {
                "xs": [list(range(len(axes))) for _ in chosen],
                # A line has a gap where a parameter plays no part.
                "ys": [
                    [math.nan if (at := places[i]) is None else at for _, places, _ in axes]
                    for i in chosen
                ],
                "trial": [str(points[i].trial) for i in chosen],
                "ε": [rounded_up(points[i].values[0]) for i in chosen],
                "error": [f"{points[i].values[1]:.4f}" for i in chosen],
                "configuration": [_in_words(points[i].config) for i in chosen],
            },
            line_color=colour,
            line_width=width,
            line_alpha=alpha,
            hover_line_alpha=1.0,
            legend_label=legend,
        )
    made.legend.orientation = "horizontal"
    made.legend.location = "top_right"
    made.legend.click_policy = "hide"
    made.add_layout(made.legend[0], "above")
    for index, (_, _, ticks) in enumerate(axes):
        made.segment([index], [0], [index], [1], line_color=BLACK, line_width=1)
        for place, text in ticks:
            made.text(
                [index],
                [place],
                [text],
                text_font_size="11px",
                x_offset=5,
                text_baseline="bottom" if place > 0.5 else "top",
            )
    made.xaxis.ticker = list(range(len(axes)))
    made.xaxis.major_label_overrides = {i: name for i, (name, *_) in enumerate(axes)}
    made.xaxis.major_label_text_font_size = "12px"
    made.yaxis.visible = False
    made.grid.visible = False
    page.section(
        "Parallel coordinates",
        page.place("parallel", made, "One line for each trial across all parameters."),
        '<p class="note">Thick lines are on the front. Point at a line to see its trial.</p>',
    )


def _unit(
    values: Sequence[float], text: Callable[[float], str]
) -> tuple[list[float], list[tuple[float, str]]]:
    """Values brought to [0, 1], and what its ends stand for."""
    low, high = min(values), max(values)
    span = high - low or 1.0
    places = [(value - low) / span for value in values]
    return places, [(0.0, text(low)), (1.0, text(high))][: 2 if high > low else 1]


def _all_trials(page: Page, view: StudyView) -> None:
    page.section(
        "All trials",
        '<p class="note">Click a head to sort. Errors are means over the trainings of a trial.</p>',
        table(*_table(view), name="trials"),
    )


def trials_csv(view: StudyView, path: str | os.PathLike[str]) -> Path:
    """Write all trials as comma-separated values, for their owner only: they are sensitive."""
    head, rows = _table(view)
    with atomic_write(path, owner_only=True) as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(head)
        writer.writerows(["" if value != value else value for value in row] for row in rows)
    return Path(path)


def _table(view: StudyView) -> tuple[list[str], list[list[Any]]]:
    """Names of the columns, and a row for each trial."""
    complete = view.complete
    front = ParetoFront(view.problem, complete, guarantee=_unasked).front_trials if complete else []
    on_front = {trial.number for trial in front}
    names = list(view.problem.space.parameters)
    further = [objective.name for objective in view.problem.measured_objectives]
    rows = []
    for trial in view.trials:
        errors = [1 - utility for utility in trial.utilities]
        measured = [
            math.fsum(m.objectives[i] for m in trial.finished) / len(trial.finished)
            if trial.finished
            else math.nan
            for i in range(len(further))
        ]
        state = "front" if trial.number in on_front else trial.state
        rows.append(
            [
                trial.number,
                f"{state} ({trial.failures[-1]})" if trial.failures else state,
                *(trial.config.get(name) for name in names),
                trial.epsilon,
                trial.error,
                min(errors, default=math.nan),
                max(errors, default=math.nan),
                *measured,
                trial.num_trainings,
                trial.seconds,
            ]
        )
    errors_of = ["epsilon", "error", "lowest error", "highest error"]
    return ["trial", "state", *names, *errors_of, *further, "trainings", "seconds"], rows


def _unasked() -> Guarantee:
    raise AssertionError("a table states no guarantee")


def _stored_problem(description: dict[str, Any], trials: Sequence[Trial]) -> PrivacyUtilityProblem:
    """What a study's file says about its problem: all but the oracles."""
    epsilons = {tuple(trial.config.values()): trial.epsilon for trial in trials}
    kinds = {"Real": Real, "Integer": Integer}
    parameters: dict[str, Any] = {}
    for name, state in description["space"].items():
        if name == "constraints" and isinstance(state, list):
            continue
        where = state.get("active")
        active = where and When(where["parameter"], *where["values"])
        if state["kind"] == "Choice":
            parameters[name] = Choice(*state["values"], active=active)
        else:
            low, high, log = state["low"], state["high"], state["log"]
            parameters[name] = kinds[state["kind"]](low, high, log=log, active=active)
    promise = None
    if "relation" in description:
        relation = NeighboringRelation[description["relation"]]
        promise = TrainingPromise(
            delta=description["delta"],
            unit=PrivacyUnit("one record of the training data", relation),
            secret_noise=description["secret_noise"],
        )
    return PrivacyUtilityProblem(
        SearchSpace(**parameters),
        privacy=lambda config: epsilons[tuple(config.values())],
        **_stored_oracle(description.get("resource")),
        ref_point=tuple(description["ref_point"]),
        replicates=description["replicates"],
        # Those with a function are known to it alone; measured ones are in the file.
        objectives=[
            Objective(o["name"], o["ref_point"], log=o["log"])
            for o in description["objectives"]
            if o["measured"]
        ],
        promise=promise,
        name=description.get("name"),
    )


def _stored_oracle(resource: dict[str, Any] | None) -> dict[str, Any]:
    """Stands for what the file does not hold; nothing is trained for a report."""
    if resource is None:
        return {"utility": lambda config, seed: math.nan}
    checkpoints = resource["checkpoints"]  # None: the usual ones
    return {
        "utility_curve": lambda config, seed, checkpoints: [math.nan for _ in checkpoints],
        "resource": Resource(resource["name"], checkpoints and tuple(checkpoints)),
    }
