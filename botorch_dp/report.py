"""One HTML page about a study: its front, what to deploy, what publishing it costs, all trials.

The page holds all it needs, has no script, and asks for nothing: opening it tells nobody about it.
"""

from __future__ import annotations

import base64
import io
import math
import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from html import escape
from pathlib import Path
from typing import Any

from botorch_dp._files import atomic_write
from botorch_dp.pareto import (
    DPareto,
    Objective,
    OperatingPoint,
    ParetoFront,
    PrivacyUtilityProblem,
    StudyError,
    TrainingPrivacy,
    Trial,
)
from botorch_dp.pareto.front import trial_table
from botorch_dp.pareto.publication import publication
from botorch_dp.pareto.storage import StudyFile
from botorch_dp.plots import plot_front
from botorch_dp.privacy import Guarantee, NeighboringRelation, PrivacyLedger, PrivacyUnit
from botorch_dp.privacy.guarantee import DEFAULT_DELTA
from botorch_dp.privacy.rounding import rounded_up
from botorch_dp.space import Choice, Integer, Real, SearchSpace, When

__all__ = ["study_report"]

_NOTICE = (
    "Every error and recommendation on this page, and the choice of the configurations, follow "
    "from the records without noise. Keep this file as secret as the study; what publishing any "
    "of it costs is stated below."
)
_NOTICE_CHARGED = (
    "What follows from the training records was charged to the budget below. Every error and "
    "recommendation follows from the test records as well: keep this file as secret as the "
    "study, unless these are public."
)
#: The epsilons that are recommended for in each decade, and how many at most.
_STOPS, _MOST_STOPS = (1.0, 2.0, 5.0), 12
_PAGE = """<!doctype html><html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy"
 content="default-src 'none'; style-src 'unsafe-inline'; img-src data:">
<title>{title}</title><style>
body {{ font: 16px/1.45 system-ui, sans-serif; color: #1a1a1a; max-width: 72rem;
 margin: 0 auto; padding: 1rem; }}
.notice {{ border: 2px solid; border-left-width: 10px; padding: 0.6rem 1rem; }}
.price {{ font-size: 1.3rem; font-weight: 600; }}
.scroll {{ overflow-x: auto; }}
img {{ max-width: 100%; }}
table {{ border-collapse: collapse; font-size: 0.85rem; font-variant-numeric: tabular-nums; }}
th, td {{ padding: 0.25rem 0.6rem; text-align: right; border-bottom: 1px solid #ddd;
 white-space: nowrap; }}
</style></head><body><h1>{title}</h1><p>{lead}</p>
<p class="notice"><strong>Sensitive.</strong> {notice}</p>{sections}</body></html>
"""


def study_report(
    study: DPareto | str | os.PathLike[str],
    path: str | os.PathLike[str],
    *,
    ledger: str | os.PathLike[str] | None = None,
) -> Path:
    """Write a study's page, which its owner alone may read.

    Args:
        study: A study, or its file, which is neither changed nor locked. A file does not hold the
            functions, and its page does not say what to deploy.
        path: Where; must end in .html.
        ledger: The file that the trainings of a stored study were charged to; by default the one
            beside it.

    Example:
        >>> study_report("study.sqlite", "front.html")
    """
    target = Path(path)
    if target.suffix.lower() not in (".html", ".htm"):
        raise ValueError(f"`path` must end in .html, got {target.name!r}.")
    with ExitStack() as stack:
        if isinstance(study, DPareto):
            charged = study.ledger is not None
            known = (study.problem, study.trials, study.seed, charged, study.ledger)
            content = _page(*known, study.recommend)
        else:
            file = StudyFile(study, description=None)
            file.close()
            charged = bool(file.description.get("budget"))
            if ledger is not None and not charged:
                raise StudyError(f"{file.path} has no budget, so it has no `ledger`.")
            place = Path(ledger or f"{file.path}.ledger")
            opened = None
            if charged and (ledger or place.is_file()):
                opened = stack.enter_context(PrivacyLedger(place))
            problem = _stored_problem(file.description, file.trials)
            content = _page(problem, file.trials, file.seed, charged, opened, None)
    with atomic_write(target, owner_only=True) as written:
        written.write(content)
    return target


def _page(
    problem: PrivacyUtilityProblem,
    trials: Sequence[Trial],
    seed: int,
    charged: bool,
    ledger: PrivacyLedger | None,
    recommend: Callable[[float], OperatingPoint] | None,
) -> str:
    """The whole page of a study, which may have no complete trial yet."""
    states = [trial.state for trial in trials]
    counts = {state: states.count(state) for state in ("complete", "failed", "pending")}
    said = ", ".join(f"{count} {state}" for state, count in counts.items() if count)
    complete = [trial for trial in trials if trial.state == "complete"]
    front = None
    if complete:
        priced = partial(_guarantee, problem, trials, charged, ledger)
        front = ParetoFront(problem, complete, guarantee=priced, charged=ledger is not None)
    price = _price(problem, trials, front, charged, ledger, stored=recommend is None)
    sections = [("The cost of publishing", price)]
    if front is not None and recommend is not None:
        sections.append(("What to deploy", _to_deploy(front, recommend)))
    if front is not None:
        sections.append(("The front", _drawn(front)))
    on_front = {trial.number for trial in front.front_trials} if front else set()
    columns = trial_table(problem, trials)
    columns["state"] = [
        "front" if number in on_front else state
        for number, state in zip(columns["trial"], columns["state"], strict=True)
    ]
    sections.append(("All trials", _table(columns)))
    return _PAGE.format(
        title=escape(f"Privacy-utility study of {problem.name}"),
        lead=f"{len(trials)} trials ({said or 'none yet'}); seed {seed}.",
        notice=_NOTICE if ledger is None else _NOTICE_CHARGED,
        sections="".join(f"<h2>{title}</h2>{content}" for title, content in sections),
    )


def _guarantee(
    problem: PrivacyUtilityProblem,
    trials: Sequence[Trial],
    charged: bool,
    ledger: PrivacyLedger | None,
) -> Guarantee:
    """The guarantee of publishing all of it; trials do not know of trainings that were cut off."""
    if ledger is not None:
        return ledger.guarantee
    whole = publication(problem, trials)
    missing = "the ledger that its trainings were charged to is not at hand"
    return replace(whole, void=missing) if charged else whole


def _price(
    problem: PrivacyUtilityProblem,
    trials: Sequence[Trial],
    front: ParetoFront | None,
    charged: bool,
    ledger: PrivacyLedger | None,
    stored: bool,
) -> str:
    """What publishing anything of this costs, in plain sight."""
    if not any(trial.num_trainings for trial in trials):
        return "<p>Nothing was trained yet.</p>"
    rest = ["" if front is None else front.caption]
    if problem.training is None:
        headline = "No cost can be stated: relation and δ of its ε are unknown."
    elif ledger is not None:
        budget = ledger.budget
        headline = f"ε = {budget.epsilon:g}" + (f", δ = {budget.delta:g}" if budget.delta else "")
        headline += ": the budget that its trainings were charged to"
        rest += [
            ledger.summary(),
            "How much was spent may follow from the records: quote the budget.",
            str(ledger.guarantee),
        ]
    elif charged:
        headline = "No guarantee without the ledger that its trainings were charged to."
        rest.append("Name it: botorch-dp report STUDY --ledger FILE.")
    else:
        training = publication(problem, trials)
        if stored:
            rest.append(
                "This is the sum of all epsilons, because a study's file does not hold its "
                "mechanism. `study.report(path)` has the mechanism's own cost, which may be lower."
            )
        if training.void is not None:
            headline = "No guarantee: it must not be published."
        else:
            rest += [str(training), str(publication(problem, trials, "test"))]
            delta = training.quoted_delta or DEFAULT_DELTA
            epsilon, delta = training.summed or (training.epsilon(delta), delta)
            headline = f"ε = {rounded_up(epsilon)}"
            headline += f", δ = {rounded_up(delta)}" if delta else ""
    paragraphs = "".join(f"<p>{escape(text)}</p>" for text in rest if text).replace("\n", "<br>")
    return f'<p class="price">{escape(headline)}</p>{paragraphs}'


def _to_deploy(front: ParetoFront, recommend: Callable[[float], OperatingPoint]) -> str:
    """The config that models expect to be most accurate within each of some epsilons."""
    parameters = [*front.problem.space.parameters]
    rows: list[list[Any]] = []
    for limit in _stops(front):
        try:
            point = recommend(limit)
        except ValueError:
            continue  # nothing in the space has so small an epsilon
        error = "{:.4f} ({:.4f} to {:.4f})".format(point.error, *point.interval)
        values = [point.config.get(name) for name in parameters]
        origin = "trained" if point.tried else "not trained yet"
        rows.append([f"{limit:g}", rounded_up(point.epsilon), error, *values, origin])
    heads = ["ε at most", "ε", "expected error (95% interval)", *parameters, "origin"]
    columns = {head: [row[i] for row in rows] for i, head in enumerate(heads)}
    return (
        "<p>The configuration expected to be most accurate within each ε, by the study's models, "
        f"tried or not.</p>{_table(columns)}"
    )


def _stops(front: ParetoFront) -> list[float]:
    """Round epsilons from the smallest tried to the largest of interest."""
    epsilons = [epsilon for epsilon in front.all_points[:, 0].tolist() if epsilon > 0]
    if not epsilons:
        return []
    low = min(epsilons)
    high = max(low, min(max(epsilons), front.problem.ref_point[0]))
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    series = [float(f"{stop}e{decade}") for decade in decades for stop in _STOPS]
    reached = [stop for stop in series if stop >= low]
    inside = [stop for stop in reached if stop <= high]
    return (inside + reached[len(inside) : len(inside) + 1])[-_MOST_STOPS:]


def _drawn(front: ParetoFront) -> str:
    """The front as a picture within the page."""
    picture = io.BytesIO()
    plot_front(front).savefig(picture, format="svg")
    data = base64.b64encode(picture.getvalue()).decode()
    ends = [front.points[0].tolist(), front.points[-1].tolist()]
    said = " to ".join(f"error {error:.3f} at epsilon {epsilon:.3g}" for epsilon, error, *_ in ends)
    return f'<img alt="The front: {escape(said)}" src="data:image/svg+xml;base64,{data}">'


def _table(columns: dict[str, list[Any]]) -> str:
    """Columns as a table."""
    heads = "".join(f'<th scope="col">{escape(name)}</th>' for name in columns)
    rows = "".join(
        f"<tr>{''.join(f'<td>{escape(_shown(value))}</td>' for value in row)}</tr>"
        for row in zip(*columns.values(), strict=True)
    )
    return f'<div class="scroll"><table><thead><tr>{heads}</tr></thead>{rows}</table></div>'


def _shown(value: object) -> str:
    if isinstance(value, float):
        return "" if math.isnan(value) else f"{value:.4g}"
    return "" if value is None else str(value)


def _stored_problem(description: dict[str, Any], trials: Sequence[Trial]) -> PrivacyUtilityProblem:
    """What a study's file says about its problem: all but the functions."""
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
    training = None
    if "relation" in description:
        relation = NeighboringRelation[description["relation"]]
        training = TrainingPrivacy(
            delta=description["delta"],
            unit=PrivacyUnit("one record of the training data", relation),
            secret_noise=description["secret_noise"],
        )
    return PrivacyUtilityProblem(
        SearchSpace(**parameters),
        privacy=lambda config: epsilons[tuple(config.values())],
        utility=lambda config, seed: math.nan,
        ref_point=tuple(description["ref_point"]),
        replicates=description["replicates"],
        # Those with a function are known to it alone; measured ones are in the file.
        objectives=[
            Objective(o["name"], o["ref_point"], log=o["log"])
            for o in description["objectives"]
            if o["measured"]
        ],
        training=training,
        name=description.get("name"),
    )
