"""Which method for which situation? Eleven private ways to tune, with d = 2, 5, 10, 33.

    OMP_NUM_THREADS=1 BOTORCH_DP_DATA=<folder> python -m benchmarks.which_method [--full]

Equal for all: the private records (replace-one), (epsilon, delta = 1e-6), or the same epsilon with
delta = 0 where a method is pure, and the number of evaluations of all records, (d + 1) times 12 to
20; with private random search on average, as its number must stay random. Methods that need a
finite set (GP-UCB, the two releases, random search, permute-and-flip) choose from 512 public Sobol
points; the others search the whole cube and begin in its middle. Kernels, priors and step sizes are
public guesses, the same for all tasks; clip norms come from 200 public records.

Reported is the *true* mean loss of what is published, as regret in units of a random choice's:
0 is the best point that any method saw, 1 means that the records taught nothing. Each seed draws
other records and other noise; intervals are Student's t at 95% over seeds. Noise is simulated, so
nothing here is private. Who loses to whom is judged by paired differences at 95%, not corrected
for the number of comparisons: of 60, three or so come out by chance. The numbers of records and the
range of gamma were settled after a pilot run of one seed at epsilon = 1, so that the tasks are
neither trivial nor hopeless; n grows with d here, so the two cannot be told apart. Tasks are in
``which_tasks``, methods in ``which_searches``.

Results are saved after each task of each seed, and ``--resume`` goes on from there. By default few
seeds and three epsilons are run; ``--full`` takes 20 seeds and five epsilons (hours). ``--fresh``
leaves out the seeds that a rule of PrivateSearch was chosen on (0 to 5) and all but the two single
methods that were best on those, and has a result of its own, ``which_method_fresh``.
"""

from __future__ import annotations

import argparse
import json
import math
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from tqdm import tqdm

from benchmarks.common import RESULTS, Interval, mean_interval, save_results
from benchmarks.which_searches import DELTA, DRAWS, MARKS, SEARCHES
from benchmarks.which_tasks import NUM_CHOICES, TASKS, Task, Trial
from botorch_dp.release import UtilityWarning

RANDOM = "random choice"
#: Methods of the papers, and what a user would otherwise do.
PAPERS = (
    "release_choice (conditional)",
    "DPGIBO",
    "DPGIBO after private_start",
    "private random search, logarithmic",
    "private random search, geometric",
    "private random search, Poisson",
)
RIVALS = (
    RANDOM,
    "PrivateObjective + GP-UCB",
    "PrivateObjective + TuRBO",
    "release_linear_choice",
    "permute-and-flip, no model",
)


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

    def difference(self, name: str, other: str, epsilon: str) -> int:
        """1 if ``name`` has more regret than ``other`` on the same seeds, -1 if less, else 0."""
        pairs = zip(self.regrets(name, epsilon), self.regrets(other, epsilon), strict=True)
        gap = mean_interval([a - b for a, b in pairs])
        return int(gap.low > 0) - int(gap.high < 0)

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
            "true mean loss": {
                name: {e: mean_interval(self.losses[name][e]) for e in levels} for name in names
            },
            "PrivateSearch minus the best single method": {e: self.against_best(e) for e in levels},
            "best seen by any": mean_interval(self.best),
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


def table(outcomes: dict[str, Outcomes]) -> str:
    """Markdown: mean and half-width of the interval, for each epsilon."""
    some = next(iter(outcomes.values()))
    levels = [f"{epsilon:g}" for epsilon in some.epsilons]
    lines = [
        f"| regret at epsilon = {' / '.join(levels)} | "
        + " | ".join(outcome.title for outcome in outcomes.values())
        + " | mean of all |",
        "| --- " * (len(outcomes) + 2) + "|",
    ]
    for name in some.losses:
        shown = levels if name in SEARCHES else levels[:1]
        cells = [
            " / ".join(_cell(outcome.regret(name, e)) for e in shown)
            for outcome in outcomes.values()
        ]
        cells.append(" / ".join(_cell(mean_regret(outcomes, name, e)) for e in shown))
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _cell(interval: Interval) -> str:
    half = interval.high - interval.mean
    return f"{interval.mean:.2f}" + (f" ± {half:.2f}" if math.isfinite(half) else "")


def conclusions(outcomes: dict[str, Outcomes]) -> list[str]:
    """Who wins where, and how often each of the papers' methods loses; from paired differences."""
    lines = []
    cells = [(o, f"{e:g}") for o in outcomes.values() for e in o.epsilons]
    for outcome, epsilon in cells:
        ranked = sorted(outcome.searches, key=lambda name: outcome.regret(name, epsilon).mean)
        tied = [n for n in ranked[1:] if outcome.difference(n, ranked[0], epsilon) == 0]
        lines.append(
            f"{outcome.title.split(',')[0]}, d = {outcome.title.split('d = ')[1].split(',')[0]}, "
            f"epsilon = {epsilon}: best is {ranked[0]}"
            + (f"; not told apart: {', '.join(tied)}" if tied else "")
        )
    known = cells[0][0].losses
    for name in (name for name in (*PAPERS, "PrivateSearch") if name in known):
        against = []
        rivals = (*RIVALS, "DPGIBO") if name == "PrivateSearch" else RIVALS
        for rival in (rival for rival in rivals if rival in known):
            signs = [outcome.difference(name, rival, epsilon) for outcome, epsilon in cells]
            against.append(f"{signs.count(1)} to {rival} (wins {signs.count(-1)})")
        lines.append(f"{name} loses, of {len(cells)} cases, " + ", ".join(against))
    return lines


def plot(outcomes: dict[str, Outcomes]) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(1, len(outcomes), figsize=(3.7 * len(outcomes), 4.9), sharey=True)
    axes = [axes] if len(outcomes) == 1 else list(axes)
    # Of the three distributions, geometric repetitions are drawn: the others are in the table.
    hidden = {"private random search, logarithmic", "private random search, Poisson"}
    marks = "osv^Dd*PXh>"
    for axis, outcome in zip(axes, outcomes.values(), strict=True):
        shown = [name for name in SEARCHES if name not in hidden]
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
            [0, 0.02, 0.05, 0.1, 0.2, 0.5, 1], ["0", ".02", ".05", ".1", ".2", ".5", "1"]
        )
        axis.set_ylim(0, 2)
        axis.grid(alpha=0.3)
        axis.set_xlabel("epsilon of what is published")
        axis.set_title(outcome.title.replace(": ", "\n"), fontsize=8.5)
    axes[0].set_ylabel("regret / regret of a random choice")
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="upper center", ncol=5, fontsize=8)
    seeds = len(next(iter(outcomes.values())).best)
    figure.text(
        0.5,
        0.005,
        f"Replace-one, one validation record; delta = {DELTA:g}, or 0 for release_linear_choice, "
        "permute-and-flip and geometric random search. release_choice is conditional on a "
        "Gaussian-process prior, all others are proven.\n"
        f"Mean over {seeds} seeds with 95% intervals; linear below .05. Finite sets have "
        f"{NUM_CHOICES} public points. Simulated noise: nothing is promised for the figure.",
        ha="center",
        fontsize=8,
    )
    figure.tight_layout(rect=(0, 0.07, 1, 0.87))
    figure.savefig(RESULTS / "which_method.png", dpi=100)
    plt.close(figure)


def save(outcomes: dict[str, Outcomes], sizes: dict[str, Any], file: str) -> None:
    measured = {key: outcome for key, outcome in outcomes.items() if outcome.best}
    save_results(
        file,
        {
            "what": "true regret of what is published, in units of a random choice's",
            "sizes": sizes,
            "delta": DELTA,
            "draws averaged over": DRAWS,
            "choices in a finite set": NUM_CHOICES,
            "table": table(measured).splitlines(),
            "conclusions": conclusions(measured),
            "tasks": {key: outcome.record() for key, outcome in measured.items()},
        },
    )


def resume(outcomes: dict[str, Outcomes], tasks: dict[str, Task], file: str) -> None:
    """Take over the seeds of an earlier run at the same sizes; methods added since catch up."""
    stored = json.loads((RESULTS / f"{file}.json").read_text())["tasks"]
    for key, outcome in outcomes.items():
        if key not in stored:
            continue
        if stored[key]["title"] != outcome.title:
            raise SystemExit(f"the stored {key} is {stored[key]['title']}, not {outcome.title}")
        losses = stored[key]["losses by seed"]
        levels = {f"{epsilon:g}" for epsilon in outcome.epsilons}
        missing = [name for name in outcome.searches if name not in losses]
        if set(losses) - {*SEARCHES, *MARKS} or any(set(row) != levels for row in losses.values()):
            raise SystemExit(f"the stored {key} has other methods or epsilons")
        outcome.best = stored[key]["best by seed"]
        outcome.blind = stored[key]["random choice by seed"]
        for seed in tqdm(range(len(outcome.best)), desc=f"{key}: {missing}", disable=not missing):
            trial = Trial(tasks[key], seed)
            for name in missing:
                for epsilon in outcome.epsilons:
                    loss = outcome._loss(trial, name, epsilon, seed)
                    losses.setdefault(name, {}).setdefault(f"{epsilon:g}", []).append(loss)
            outcome.best[seed] = min(outcome.best[seed], trial.best)
        outcome.losses = {name: losses[name] for name in (*outcome.searches, *outcome.marks)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tasks", nargs="+", default=list(TASKS), choices=list(TASKS))
    parser.add_argument("--seeds", type=int, default=None, help="6, or 20 with --full")
    parser.add_argument("--minutes", type=float, default=math.inf, help="begin no seed after that")
    parser.add_argument("--resume", action="store_true", help="keep the seeds that are stored")
    parser.add_argument("--fresh", action="store_true", help="other seeds, the best methods only")
    parser.add_argument("--full", action="store_true", help="also epsilon = .1 and 10 (hours)")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", UtilityWarning)
    epsilons = (0.1, 0.3, 1.0, 3.0, 10.0) if arguments.full else (0.3, 1.0, 3.0)
    seeds = arguments.seeds or (20 if arguments.full else 6)
    tasks = {key: TASKS[key]() for key in arguments.tasks}
    outcomes = {key: Outcomes(title(task), epsilons) for key, task in tasks.items()}
    file, first = "which_method", 0
    if arguments.fresh:
        file, first = "which_method_fresh", FIRST_FRESH
        for outcome in outcomes.values():
            outcome.searches, outcome.marks = LEADERS, ()
    start = time.perf_counter()
    sizes: dict[str, Any] = {"reduced": not arguments.full, "first seed": first}
    if arguments.resume and (RESULTS / f"{file}.json").exists():
        resume(outcomes, tasks, file)
        sizes["seeds"] = min(len(outcome.best) for outcome in outcomes.values())
        save(outcomes, sizes, file)
    for number in tqdm(range(seeds), desc="seeds"):
        if time.perf_counter() - start > 60 * arguments.minutes:
            break
        for key, task in tasks.items():
            if len(outcomes[key].best) > number:
                continue
            outcomes[key].add(Trial(task, first + number), first + number)
            sizes["seeds"] = min(len(outcome.best) for outcome in outcomes.values())
            save(outcomes, sizes, file)
    print(f"\n{sizes}{'' if arguments.full else ': a reduced run; --full takes more seeds'}\n")
    print(table(outcomes), "\n")
    print("Paired differences at 95%, not corrected for the number of comparisons:")
    print("\n".join(conclusions(outcomes)))
    if not arguments.fresh:
        plot(outcomes)


if __name__ == "__main__":
    main()
