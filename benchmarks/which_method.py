"""Which method for which situation?

    OMP_NUM_THREADS=1 BOTORCH_DP_DATA=<folder> python -m benchmarks.which_method [--part ...]

* ``tasks``: eight private ways to tune four models with d = 2, 5, 10, 33 parameters on real
  records (both in ``which_searches``). Equal for all: the private records (replace-one),
  (epsilon, delta = 1e-6), or the same epsilon with delta = 0 where a method is pure, and the
  number of evaluations of all records, (d + 1) times 12 to 20; with private random search on
  average, as its number must stay random. Methods that need a finite set choose from 512 public
  Sobol points; the others search the whole cube and begin in its middle. Kernels, priors and step
  sizes are public guesses, the same for all tasks; clip norms come from 200 public records. The
  numbers of records and the range of gamma were settled after a pilot run of one seed at epsilon
  = 1, so that the tasks are neither trivial nor hopeless; n grows with d here, so the two cannot
  be told apart.
* ``fresh``: ``PrivateSearch`` and the two best single methods on other seeds than 0 to 5, some of
  which a rule of ``PrivateSearch`` was chosen on.
* ``generated``: five generated tasks with n = 2,000 and 300: ripples and a plateau, a
  heavy-tailed regression (absolute errors, cut at 1), d = 20 with noise in each loss, and a space
  with categories. The rivals have the same evaluations, 15 (d + 1): permute-and-flip on
  space-filling configurations, and, without categories, DP-GIBO from the middle, whose clip norm
  comes from 200 public records. Seeds 0 to 2 were looked at while the search was made, and the
  plateau with n = 300 and other draws of these tasks decided which clip norm it prefers where
  noise hides the counts. Seeds from 3 on are fresh.
* ``small``: eight cells in which there are few records for the noise: the four generated tasks
  with numbers only, at n = 300 with epsilon = .3 and at n = 100 with epsilon = 1. ``descent only``
  is PrivateSearch as it was before it released slopes of regions. Seeds 200 to 229 decided its
  constants; those from 3 on are fresh.
* ``few``: d + 1 evaluations or three times as many, d = 12, n = 2,000, epsilon = 1.
* ``figures``: all figures, from what is stored.

Reported is the *true* mean loss of what is published, as regret in units of a random choice's: 0
is the best point that any method saw, 1 means that the records taught nothing. Each seed draws
other records and other noise; intervals are Student's t at 95% over seeds. Noise is simulated, so
nothing here is private. Who is better is judged by paired differences at 95%, not corrected for
the number of comparisons. The best single method is chosen by the same seeds, which favours it.
Seeds that are stored are kept, so that a run that was interrupted goes on.
"""

from __future__ import annotations

import argparse
import re
import statistics
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

from benchmarks.common import (
    BenchmarkParser,
    Interval,
    earlier,
    mean_interval,
    results_folder,
    save_results,
)
from benchmarks.dp_gibo_where import descend
from benchmarks.tables import fixed, markdown, plus_minus, stored
from benchmarks.which_searches import DELTA, MARKS, NUM_CHOICES, SEARCHES, TASKS, Task, Trial
from botorch_dp.privacy import PrivacyBudget, gaussian_mu
from botorch_dp.release import UtilityWarning
from botorch_dp.space import Choice, Config, Real, SearchSpace
from botorch_dp.tuning import PrivateSearch

RANDOM = "random choice"

EPSILONS = (0.3, 1.0, 3.0)
#: For the seeds that nobody looked at.
LEADERS = ("DPGIBO", "permute-and-flip, no model", "PrivateSearch")

FIRST_FRESH = 6


@dataclass
class Outcomes:
    """What was measured of one task: ``losses[method][epsilon]`` holds one number a seed."""

    title: str
    epsilons: Sequence[float]
    searches: Sequence[str] = tuple(SEARCHES)
    marks: Sequence[str] = tuple(MARKS)
    losses: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    best: list[float] = field(default_factory=list)
    blind: list[float] = field(default_factory=list)

    def add(self, trial: Trial, seed: int) -> None:
        losses = {
            (name, epsilon): self._loss(trial, name, epsilon, seed)
            for name in (*self.searches, *self.marks)
            for epsilon in (self.epsilons if name in SEARCHES else self.epsilons[:1])
        }
        for name in (*self.searches, *self.marks):
            for epsilon in self.epsilons:
                loss = losses.get((name, epsilon), losses[name, self.epsilons[0]])
                self.losses.setdefault(name, {}).setdefault(f"{epsilon:g}", []).append(loss)
        self.best.append(trial.best)
        self.blind.append(float(trial.choice_means.mean()))

    def _loss(self, trial: Trial, name: str, epsilon: float, seed: int) -> float:
        trial.evaluations = 0
        search = SEARCHES.get(name) or MARKS[name]
        published = search(trial, epsilon, 1000 * self.epsilons.index(epsilon) + seed)
        blind = name in (RANDOM, "middle of the box")
        if trial.evaluations != (0 if blind else trial.task.evaluations):
            raise RuntimeError(
                f"{name} made {trial.evaluations} evaluations on {trial.task.name}, "
                f"{trial.task.evaluations} were agreed"
            )
        return trial.mean_loss(published)

    def regrets(self, name: str, epsilon: str) -> list[float]:
        return [
            (loss - best) / (blind - best)
            for loss, best, blind in zip(
                self.losses[name][epsilon], self.best, self.blind, strict=True
            )
        ]

    def regret(self, name: str, epsilon: str) -> Interval:
        return mean_interval(self.regrets(name, epsilon))

    def against_best(self, epsilon: str) -> tuple[str, Interval]:
        """The best single method, and by how much PrivateSearch has more regret."""
        singles = [name for name in self.searches if name != "PrivateSearch"]
        rival = min(singles, key=lambda name: self.regret(name, epsilon).mean)
        pairs = zip(
            self.regrets("PrivateSearch", epsilon), self.regrets(rival, epsilon), strict=True
        )
        return rival, mean_interval([a - b for a, b in pairs])

    def record(self) -> dict[str, Any]:
        names = list(self.losses)
        levels = [f"{epsilon:g}" for epsilon in self.epsilons]
        return {
            "title": self.title,
            "regret": {name: {e: self.regret(name, e) for e in levels} for name in names},
            "PrivateSearch minus the best single method": {e: self.against_best(e) for e in levels},
            "losses by seed": self.losses,
            "best by seed": self.best,
            "random choice by seed": self.blind,
        }


def mean_regret(outcomes: dict[str, Outcomes], name: str, epsilon: str) -> Interval:
    """Over all tasks, by the seeds that all of them have."""
    columns = [outcome.regrets(name, epsilon) for outcome in outcomes.values()]
    return mean_interval([sum(row) / len(row) for row in zip(*columns, strict=False)])


def title(task: Task) -> str:
    return f"{task.name}: d = {task.dim}, n = {task.num_records:,}, {task.evaluations} evaluations"


def plot_methods(outcomes: dict[str, Outcomes]) -> None:
    from matplotlib.figure import Figure

    rows = -(-len(outcomes) // 2)
    figure = Figure(figsize=(9, 2 + 3.4 * rows), layout="constrained")
    grid = figure.subplots(rows, 2, sharey=True, squeeze=False)
    axes = list(grid.flat)
    marks = "osv^D*PX"
    for axis, outcome in zip(axes, outcomes.values(), strict=False):
        shown = list(SEARCHES)
        for number, (name, mark) in enumerate(zip(shown, marks[: len(shown)], strict=True)):
            intervals = [outcome.regret(name, f"{e:g}") for e in outcome.epsilons]
            shift = 1.035 ** (number - len(shown) / 2)  # so that bars do not hide each other
            axis.errorbar(
                [shift * e for e in outcome.epsilons],
                [i.mean for i in intervals],
                yerr=[min(i.high - i.mean, 9.0) for i in intervals],
                marker=mark,
                markersize=5,
                linewidth=3.0 if name == "PrivateSearch" else 1.3,
                elinewidth=0.7,
                label=name,
                color="black" if name == "PrivateSearch" else f"C{number}",
            )
        references = {RANDOM: ":", "middle of the box": "-.", "GP-UCB, not private": "--"}
        for name, style in references.items():
            level = outcome.regret(name, f"{outcome.epsilons[0]:g}").mean
            axis.axhline(level, color="0.4", linestyle=style, linewidth=1, label=name)
        axis.set_xscale("log")
        axis.set_xticks(outcome.epsilons, [f"{e:g}" for e in outcome.epsilons], minor=False)
        axis.set_xticks([], minor=True)
        axis.set_yscale("symlog", linthresh=0.05, linscale=0.7)
        axis.set_yticks(
            [0, 0.02, 0.05, 0.1, 0.2, 0.5, 1], ["0", "0.02", "0.05", "0.1", "0.2", "0.5", "1"]
        )
        axis.set_ylim(0, 2)
        axis.grid(alpha=0.3)
        axis.set_xlabel("ε of what is published")
        axis.set_title(outcome.title.replace(": ", "\n"), fontsize=10)
    for axis in axes[len(outcomes) :]:
        axis.axis("off")
    for axis in axes[::2]:
        axis.set_ylabel("regret / regret of a random choice")
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncol=3, fontsize=9)
    seeds = len(next(iter(outcomes.values())).best)
    figure.supxlabel(
        f"One validation record is replaced; δ = {DELTA:g}, and δ = 0 for permute-and-flip and "
        "random search. PrivateChoice assumes\na Gaussian-process prior; all others are proven. "
        "Means over "
        f"{seeds} seeds with 95% intervals; the axis is linear below 0.05.\nFinite sets have "
        f"{NUM_CHOICES} public points. Noise is simulated: this figure has no guarantee.",
        fontsize=9,
    )
    figure.savefig(results_folder() / "which_method.png", dpi=110)


NUM_PUBLIC = 200

#: Seeds below were looked at.
NUM_SEEN = 3


#: A task, its parameters, epsilon and the number of records.
Case = tuple[str, int, float, int]


#: Points of the cube and rows to losses.
Losses = Callable[[Tensor], Tensor]


DIMS = {"ripples": 6, "plateau": 6, "heavy tails": 8, "noisy losses": 20, "categories": 5}

KINDS = ("a", "b", "c", "d")


def common_optimum(d: int, seed: int) -> Tensor:
    shared = torch.Generator().manual_seed(seed)
    return 0.15 + 0.7 * torch.rand(d, dtype=torch.double, generator=shared)


def losses_of(name: str, d: int, seed: int, count: int, stream: int) -> Losses:
    """Losses of ``count`` records; the common optimum depends on the seed only."""
    centre = common_optimum(d, seed)
    own = torch.Generator().manual_seed(1000 * stream + seed)
    optima = centre + 0.08 * torch.randn(count, d, dtype=torch.double, generator=own)
    features = torch.randn(count, d, dtype=torch.double, generator=own) / d**0.5
    tails = 0.05 * torch.tan(torch.pi * (torch.rand(count, generator=own).double() - 0.5))
    noise = torch.rand(64, count, dtype=torch.double, generator=own)

    def losses(X: Tensor) -> Tensor:
        far = torch.cdist(X, optima).square() / (2 * 0.25**2 * d)
        if name == "ripples":
            ripples = torch.cos(2 * torch.pi * (X - centre) / 0.15).mean(-1, keepdim=True)
            return 0.85 * (1 - torch.exp(-far)) + 0.075 * (1 - ripples)
        if name == "plateau":
            return (4 * far).clamp_max(1.0)
        if name == "heavy tails":
            return (2 * ((X - centre) @ features.mT) - tails).abs().clamp_max(1.0)
        if name == "noisy losses":
            rows = (X.sum(-1) * 1e6).long() % 64
            return ((1 - torch.exp(-far)) + 0.5 * (noise[rows] - 0.5)).clamp(0, 1)
        return 1 - torch.exp(-far)

    return losses


def generated_regrets(
    name: str,
    d: int,
    epsilon: float,
    seed: int,
    num_records: int,
    batches: int = 15,
    *,
    every: bool = False,
) -> dict[str, float]:
    """Regret of each method, with ``batches (d + 1)`` evaluations; with marks if ``every``."""
    private = losses_of(name, d, seed, num_records, 1)
    public = losses_of(name, d, seed, NUM_PUBLIC, 2)
    parameters: dict[str, Any] = {f"x{i}": Real(0.0, 1.0) for i in range(d)}
    has_kinds = name == "categories"
    if has_kinds:
        parameters["kind"] = Choice(*KINDS)
    space = SearchSpace(**parameters)

    def scores(configs: list[Config]) -> Tensor:
        X = torch.tensor([[c[f"x{i}"] for i in range(d)] for c in configs]).double()
        table = private(X)
        if has_kinds:
            worse = torch.tensor([[0.15 * ((KINDS.index(c["kind"]) + seed) % 4)] for c in configs])
            table = 0.5 * table + worse
        return table

    def published(budget: PrivacyBudget, route: str = "auto") -> Config:
        search = PrivateSearch(
            scores,
            space,
            bounds=(0.0, 1.0),
            budget=budget,
            evaluations=batches * (d + 1),
            num_records=num_records,
            method=route,  # type: ignore[arg-type]
            unsafe_seed=seed,
        )
        return search.run().config.value

    found = {
        "PrivateSearch": published(PrivacyBudget(epsilon, DELTA)),
        "permute-and-flip": published(PrivacyBudget(epsilon), "selection"),
    }
    if every:
        found[FORMER] = published(PrivacyBudget(epsilon, DELTA), "descent")
        found[MIDDLE] = {f"x{i}": 0.5 for i in range(d)}
    if not has_kinds:
        mu = gaussian_mu(epsilon, DELTA)
        point = descend(private, public, d, mu=mu, steps=batches, seed=seed)
        found["DPGIBO"] = {f"x{i}": float(v) for i, v in enumerate(point)}
    many = space.sample(512, seed=seed)
    blind = float(scores(many).mean())
    best_config: Config = {f"x{i}": float(v) for i, v in enumerate(common_optimum(d, seed))}
    if has_kinds:
        best_config["kind"] = KINDS[-seed % 4]
    means = {method: float(scores([config]).mean()) for method, config in found.items()}
    best = min(float(scores([best_config]).mean()), float(scores(many).mean(-1).min()))
    best = min(best, *means.values())
    regrets = {method: (loss - best) / (blind - best) for method, loss in means.items()}
    return regrets


#: The rule of PrivateSearch before it knew slopes of regions, in the cells below.
FORMER, MIDDLE = "descent only", "middle of the space"
#: A seed that ends beyond this part of a random choice's regret taught hardly anything.
DISASTER = 0.6


def judged(rows: dict[int, dict[str, float]]) -> dict[str, Any]:
    """Intervals of the fresh seeds, and of the difference to the best single method."""
    fresh = [row for seed, row in rows.items() if seed >= NUM_SEEN]
    means = {method: mean_interval([row[method] for row in fresh]) for method in fresh[0]}
    singles = [method for method in means if method != "PrivateSearch"]
    rival = min(singles, key=lambda method: means[method].mean)
    gap = mean_interval([row["PrivateSearch"] - row[rival] for row in fresh])
    return {"regret": means, "best single method": rival, "difference to it": gap}


COLORS = {"0.3": "C0", "1": "C1", "3": "C2"}


#: Task and n to epsilon to the difference and the single method.
Differences = dict[str, dict[str, tuple[Interval, str]]]


def differences(of: Callable[[str], dict[str, Any]] = earlier) -> Differences:
    """Fresh seeds of all tasks; ``of`` reads a stored result."""
    found: Differences = {}
    for task in of("which_method_fresh").get("tasks", {}).values():
        label = task["title"].rsplit(",", 1)[0]
        for epsilon, (rival, gap) in task["PrivateSearch minus the best single method"].items():
            found.setdefault(label, {})[epsilon] = (Interval(**gap), rival)
    for records in (2000, 300):
        for case, judged in of(f"which_unseen_{records}").get("judged", {}).items():
            label, epsilon = case.rsplit(", epsilon = ", 1)
            gap = Interval(**judged["difference to it"])
            found.setdefault(label, {})[epsilon] = (gap, judged["best single method"])
    return found


def counts(found: Differences) -> dict[str, int]:
    gaps = [gap for row in found.values() for gap, _ in row.values()]
    wins, losses = sum(gap.high < 0 for gap in gaps), sum(gap.low > 0 for gap in gaps)
    return {"better": wins, "not told apart": len(gaps) - wins - losses, "worse": losses}


def cases_of(name: str) -> dict[str, Any]:
    """The regrets by case and seed that are stored."""
    cases = earlier(name).get("cases", {})
    return {label: {int(seed): row for seed, row in rows.items()} for label, rows in cases.items()}


def on_tasks(options: argparse.Namespace, file: str, first: int = 0) -> None:
    """Stored as ``which_method.json`` or ``which_method_fresh.json`` after each seed of a task."""
    warnings.simplefilter("ignore", UtilityWarning)
    seeds = options.seeds or (10 if first else 6)
    known = stored_outcomes(earlier(file))
    for key in options.tasks:
        task = TASKS[key]()
        outcome = known.setdefault(key, Outcomes(title(task), EPSILONS))
        if first:
            outcome.searches, outcome.marks = LEADERS, ()
        for number in tqdm(range(len(outcome.best), seeds), desc=key):
            outcome.add(Trial(task, first + number), first + number)
            records = {key: each.record() for key, each in known.items()}
            save_results(file, {"first seed": first, "delta": DELTA, "tasks": records})
    for outcome in known.values():
        print(outcome.title, {name: str(outcome.regret(name, "1")) for name in outcome.losses})


def on_generated(options: argparse.Namespace, file: str, cases: Sequence[Case], seeds: int) -> None:
    """Regrets by case and seed, and what they say, after each seed."""
    known = cases_of(file)
    every = file == "which_small"
    for seed in tqdm(range(NUM_SEEN, NUM_SEEN + (options.seeds or seeds)), desc=file):
        for name, d, epsilon, n in cases:
            rows = known.setdefault(f"{name}, d = {d}, n = {n}, epsilon = {epsilon:g}", {})
            if seed not in rows:
                rows[seed] = generated_regrets(name, d, epsilon, seed, n, every=every)
        results = {label: judged(rows) for label, rows in known.items()}
        summary = small_summary(known) if every else {}
        save_results(file, {"delta": DELTA, **summary, "judged": results, "cases": known})
    for label, result in results.items():
        print(label, {method: str(interval) for method, interval in result["regret"].items()})
        print(f"  PrivateSearch - {result['best single method']}: {result['difference to it']}")


def on_few(options: argparse.Namespace) -> None:
    """Stored as ``which_few.json``."""
    results, seeds = {}, range(options.seeds or 20)
    for name in ("ripples", "heavy tails", "plateau"):
        for batches in (1, 3):
            rows = [generated_regrets(name, 12, 1.0, seed, 2000, batches) for seed in seeds]
            case = f"{name}, d = 12, n = 2000, epsilon = 1, {13 * batches} evaluations"
            for method in ("PrivateSearch", "permute-and-flip"):
                results[f"{case}: {method}"] = mean_interval([row[method] for row in rows])
                print(f"{case}: {method}: {results[f'{case}: {method}']}", flush=True)
    save_results("which_few", {"seeds": len(seeds), "delta": DELTA, "regret": results})


def small_summary(known: dict[str, dict[int, dict[str, float]]]) -> dict[str, Any]:
    """Over all cells: the mean regret by seed, and how many seeds taught nothing."""
    cells = list(known.values())
    seeds = sorted(set.intersection(*(set(rows) for rows in cells)))
    methods = list(cells[0][seeds[0]])
    return {
        "mean of the cells": {
            method: mean_interval(
                [sum(rows[seed][method] for rows in cells) / len(cells) for seed in seeds]
            )
            for method in methods
        },
        "beyond 0.6": {
            method: sum(rows[seed][method] > DISASTER for rows in cells for seed in seeds)
            for method in methods
        },
        "runs": len(cells) * len(seeds),
    }


def plot_wins(found: Differences) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 0.42 * len(found) + 1.6), layout="constrained")
    axis = figure.subplots()
    for row, levels in enumerate(found.values()):
        for shift, (epsilon, (gap, _)) in zip((-0.22, 0, 0.22), levels.items(), strict=False):
            bars = [[gap.mean - gap.low], [gap.high - gap.mean]]
            style = {"color": COLORS[epsilon], "markersize": 5, "elinewidth": 1.6}
            label = f"ε = {epsilon}" if row == 0 else None
            axis.errorbar(gap.mean, row + shift, xerr=bars, fmt="o", label=label, **style)
    axis.axvline(0, color="0.3", linewidth=1)
    labels = [re.sub(r"(?<=\d)000$", ",000", label) for label in found]
    axis.set_yticks(range(len(found)), labels, fontsize=9)
    axis.invert_yaxis()
    axis.set_xscale("symlog", linthresh=0.05)
    ticks = [-0.5, -0.2, -0.05, 0, 0.05, 0.2, 0.5]
    axis.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axis.set_xlim(-0.9, 0.9)
    axis.set_xlabel("regret of PrivateSearch minus that of the best other method")
    axis.legend(fontsize=9, loc="upper right")
    axis.grid(alpha=0.3)
    figure.supxlabel(
        "One record is replaced; (ε, 1e-6), or (ε, 0) for permute-and-flip. Regret in units of a "
        "random choice's;\n95% intervals of paired differences, new seeds. Linear within 0.05. "
        "Noise is simulated: this figure has no guarantee.",
        fontsize=9,
    )
    figure.savefig(results_folder() / "which_wins.png", dpi=110)


def stored_outcomes(stored: dict[str, Any]) -> dict[str, Outcomes]:
    """The tasks of ``which_method.json`` or ``which_method_fresh.json``."""
    found = {}
    for key, task in stored.get("tasks", {}).items():
        epsilons = [float(level) for level in task["losses by seed"]["PrivateSearch"]]
        found[key] = Outcomes(task["title"], epsilons)
        found[key].losses = task["losses by seed"]
        found[key].searches = [name for name in SEARCHES if name in found[key].losses]
        found[key].marks = [name for name in MARKS if name in found[key].losses]
        found[key].best = task["best by seed"]
        found[key].blind = task["random choice by seed"]
    return found


def figures() -> None:
    """``which_method.png`` and ``which_wins.png``, from what is stored."""
    found = differences()
    print(counts(found))
    if found:
        plot_wins(found)
    if outcomes := stored_outcomes(earlier("which_method")):
        plot_methods(outcomes)


LEVELS = ("0.3", "1", "3")


def table_all_methods() -> str:
    """Mean regret over the four tuning tasks, of every method that publishes something."""
    from benchmarks.which_method import RANDOM, mean_regret, stored_outcomes

    seen, fresh = (stored_outcomes(stored(file)) for file in ("which_method", "which_method_fresh"))
    rows = [
        [label, *(plus_minus(vars(mean_regret(outcomes, name, e))) for e in LEVELS)]
        for label, outcomes, name in (
            ("one random configuration, on average", seen, RANDOM),
            ("the middle of the space", seen, "middle of the box"),
            ("permute-and-flip on public points", fresh, "permute-and-flip, no model"),
            ("`PrivateSearch`", fresh, "PrivateSearch"),
            ("`DPGIBO`", fresh, "DPGIBO"),
            ("private random search (Papernot & Steinke), geometric", seen,
             "private random search, geometric"),
            ("`PrivateObjective` + TuRBO", seen, "PrivateObjective + TuRBO"),
            ("`PrivateObjective` + qLogEI", seen, "PrivateObjective + qLogEI"),
            ("`PrivateObjective` + GP-UCB", seen, "PrivateObjective + GP-UCB"),
            ("`PrivateChoice` (conditional)", seen, "PrivateChoice (conditional)"),
        )
    ]  # fmt: skip
    return markdown(["", *(f"ε = {e}" for e in LEVELS)], rows)


def table_generated_differences() -> str:
    rows = []
    for label, by in differences(stored).items():
        gaps = [vars(gap) for gap, _ in by.values()]
        cells = [f"**{plus_minus(g)}**" if g["high"] < 0 else plus_minus(g) for g in gaps]
        rows.append([label.replace("000", ",000") if "n =" in label else label, *cells])
    return markdown(["task", *(f"ε = {e}" for e in LEVELS)], rows[-10:])


def table_few_evaluations() -> str:
    found = stored("which_few")["regret"]
    columns = [
        (method, count) for count in (13, 39) for method in ("PrivateSearch", "permute-and-flip")
    ]
    rows = [
        [task]
        + [fixed(found[f"{task}, d = 12, n = 2000, epsilon = 1, {n} evaluations: {m}"]["mean"], 2)
           for m, n in columns]
        for task in ("ripples", "heavy tails", "plateau")
    ]  # fmt: skip
    return markdown(["task", *(f"{method}, {count}" for method, count in columns)], rows)


def table_few_records() -> str:
    """Regret where the noise is large; a task's column is the mean of its two cells."""
    found = stored("which_small")
    tasks = list(dict.fromkeys(case.rsplit(", n = ", 1)[0] for case in found["judged"]))
    rows = [["one random configuration, on average", *["1.00"] * (len(tasks) + 1), "–"]]
    for method, label in {
        "middle of the space": "middle of the space",
        "permute-and-flip": "permute-and-flip",
        "DPGIBO": "`DPGIBO`",
        "descent only": '`PrivateSearch` with `method="descent"`',
        "PrivateSearch": "`PrivateSearch`",
    }.items():
        means = [
            statistics.mean(
                judged["regret"][method]["mean"]
                for case, judged in found["judged"].items()
                if case.startswith(f"{task}, ")
            )
            for task in tasks
        ]
        rows.append([
            label,
            *(fixed(mean, 2) for mean in means),
            plus_minus(found["mean of the cells"][method]),
            f"{found['beyond 0.6'][method]} of {found['runs']}",
        ])  # fmt: skip
    return markdown(["", *tasks, "mean", "seeds beyond 0.6"], rows)


def main() -> None:
    minutes = {
        "tasks": 60, "fresh": 40, "generated": 120, "few": 15, "small": 5,
        "figures": 0.2,
    }  # fmt: skip
    parser = BenchmarkParser("which_method", __doc__, minutes=minutes)
    parser.add_argument("--tasks", nargs="+", default=list(TASKS), choices=list(TASKS))
    parser.add_argument("--seeds", type=int, help="of each part; those of the page by default")
    options = parser.parse_args()
    torch.set_num_threads(1)

    def generated(records: int) -> list[Case]:
        return [(name, d, e, records) for name, d in DIMS.items() for e in EPSILONS]

    small = [
        (name, DIMS[name], epsilon, n)
        for name in ("ripples", "plateau", "heavy tails", "noisy losses")
        for n, epsilon in ((300, 0.3), (100, 1.0))
    ]
    for part in options.part:
        if part == "tasks":
            on_tasks(options, "which_method")
        elif part == "fresh":
            on_tasks(options, "which_method_fresh", FIRST_FRESH)
        elif part == "generated":
            on_generated(options, "which_unseen_2000", generated(2000), 10)
            on_generated(options, "which_unseen_300", generated(300), 10)
        elif part == "small":
            on_generated(options, "which_small", small, 20)
        elif part == "few":
            on_few(options)
        else:
            figures()


if __name__ == "__main__":
    main()
