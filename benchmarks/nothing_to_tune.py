"""Is one training with default settings as good as the best of 40?

    OMP_NUM_THREADS=1 python -m benchmarks.nothing_to_tune [--tasks adult ...] [--rows rule ...]

Twenty tasks (``benchmarks/untuned_tasks.py``; the rule was fixed before it was tried on the six
held-out ones), epsilon = 0.1, 0.3, 1 and 3 at delta = 1e-5, Poisson batches, replace-one. Each cell
is stored as it comes, so that a run that was stopped goes on where it was. Half of the test records
choose wherever a row chooses; the numbers are of the other half. All noise is seeded.

Rows, the cheapest first:

* *majority*: the largest class of the training records, without any training (regression: 0);
* *rule*: one training, the settings of ``botorch_dp.training.suggest_settings``;
* *selection*: ``PrivateFit`` with 20 expected random trainings, by resampling 24 trainings at the
  noise that it asks for; the choosing records are protected, too;
* *unpaid*: the configuration that did best on the choosing half among 40 (20 or 12 for the
  dearest tasks), each at the whole epsilon, trained again; the tuning is not counted;
* *open*: the better of two trainings without noise.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from benchmarks.common import BenchmarkParser, earlier, mean_interval, save_results
from benchmarks.tables import markdown, stored
from benchmarks.untuned_tasks import TASKS, Parts, Task, explained, parts
from botorch_dp.privacy.selection import BaseProfile, Selection, TrialNumber, training_noise
from botorch_dp.space import Integer, Real, SearchSpace
from botorch_dp.training import DPTrainer, TrainTest

EPSILONS, DELTA = (0.1, 0.3, 1.0, 3.0), 1e-5
SEEDS = 5
NAME = "nothing_to_tune"
FIGURE = Path(__file__).parents[1] / "docs" / "figures" / f"{NAME}.png"
#: What a private selection expects, as ``PrivateFit`` does unless told otherwise.
NUMBER = TrialNumber(20, 3.0)


class Cell:
    """One task at one epsilon."""

    def __init__(self, name: str, epsilon: float) -> None:
        self.name, self.epsilon = name, epsilon
        self.task: Task = TASKS[name]
        self.parts: Parts = parts(name)
        self.records = self.parts.choosing
        self.n = len(self.records.train_Y)

    def judged(self, model: nn.Module) -> float:
        """How good a model is on the records that nobody has looked at."""
        X, Y = self.parts.judging
        with torch.no_grad():
            return float(self.task.metric(model(X), Y))

    def space(self, n: int | None = None) -> SearchSpace:
        """What the baselines search, for so many records."""
        n = n or self.n
        rates = (
            Real(1e-3, 0.3, log=True)
            if self.task.optimizer == "adam"
            else Real(0.03, 10.0, log=True)
        )
        return SearchSpace(
            learning_rate=rates,
            clip_norm=Real(0.05, 4.0, log=True),
            batch_size=Integer(max(4, n // 96), n // 4, log=True),
            epochs=Integer(4, 32, log=True),
        )

    def trainer(self, data: TrainTest | None = None) -> DPTrainer:
        """The trainer of the baselines."""
        return self.task.trainer(data or self.records, optimizer=self.task.optimizer)

    def noise(
        self,
        configs: Sequence[dict[str, Any]],
        n: int | None = None,
        base: BaseProfile | None = None,
    ) -> list[float]:
        """The noise that each training needs, for the whole epsilon unless a level is given."""
        n = n or self.n
        steps = [c["epochs"] * (n // c["batch_size"]) for c in configs]
        base = base or BaseProfile((self.epsilon,), (DELTA,))
        sizes = [c["batch_size"] for c in configs]
        return [float(z) for z in training_noise(base, sizes, steps, num_records=n)]

    def train(
        self, trainer: DPTrainer, config: dict[str, Any], z: float, seeds: Sequence[int]
    ) -> list[tuple[float, float]]:
        """Scores on the choosing and on the judging records, one pair for each seed."""
        trained = trainer.replicates(seeds, **config, noise_multiplier=z)
        return [(float(each.accuracy or 0.0), self.judged(each.model)) for each in trained]


Found = dict[str, Any]


def majority(cell: Cell) -> Found:
    Y = cell.records.train_Y
    if Y.is_floating_point():
        return {"values": [0.0]}
    return {"values": [float((cell.parts.judging[1] == Y.mode().values).double().mean())]}


def rule(cell: Cell) -> Found:
    trainer = cell.task.trainer(cell.records)
    asked: Any = {"target_epsilon": cell.epsilon, "delta": DELTA}
    asked["feature_norm"] = cell.task.feature_norm
    plan = trainer.plan(**asked)
    trained = trainer.replicates(range(SEEDS), **asked)
    return {
        "values": [cell.judged(each.model) for each in trained],
        "settings": [plan.learning_rate, plan.clip_norm, plan.batch_size, plan.epochs],
    }


@lru_cache(maxsize=8)
def _level(epsilon: float) -> tuple[BaseProfile, float]:
    selection = Selection(NUMBER)
    mu = selection.mu(epsilon, DELTA)
    return selection.profile(mu, DELTA), mu


def _selected(pool: np.ndarray, mu: float, choosing: int, seed: int) -> int:
    """Which training of a pool one private selection publishes."""
    rng = np.random.default_rng([3, seed])
    drawn = rng.integers(len(pool), size=max(1, NUMBER.quantile(float(rng.random()))))
    noisy = pool[drawn, 0] + rng.standard_normal(len(drawn)) / (mu * choosing)
    return int(drawn[noisy.argmax()])


def selection(cell: Cell) -> Found:
    base, mu = _level(cell.epsilon)
    configs = cell.space().sample(min(24, cell.task.candidates), seed=1)
    noise, trainer = cell.noise(configs, base=base), cell.trainer()
    pool = np.array(
        [
            cell.train(trainer, c, z, [50 + i])[0]
            for i, (c, z) in enumerate(zip(configs, noise, strict=True))
        ]
    )
    size = len(cell.records.test_Y)
    # Five times twenty runs; the trainings of the pool are resampled for each twenty.
    values = []
    for seed in range(SEEDS):
        some = pool[np.random.default_rng([4, seed]).integers(len(pool), size=len(pool))]
        runs = [some[_selected(some, mu, size, 100 * seed + run), 1] for run in range(20)]
        values.append(float(np.mean(runs)))
    return {"values": values, "pool": len(pool)}


def unpaid(cell: Cell) -> Found:
    configs = cell.space().sample(cell.task.candidates, seed=1)
    noise, trainer = cell.noise(configs), cell.trainer()
    pool = np.array(
        [cell.train(trainer, c, z, [0])[0] for c, z in zip(configs, noise, strict=True)]
    )
    best = int(pool[:, 0].argmax())
    # The configuration that did best on the choosing records is trained again.
    again = cell.train(trainer, configs[best], noise[best], range(100, 100 + SEEDS))
    return {
        "values": [b for _, b in again],
        "best model itself": float(pool[best, 1]),
        "candidates": len(configs),
        "config": configs[best],
    }


@lru_cache(maxsize=1)
def _open(name: str) -> list[float]:
    cell = Cell(name, math.inf)
    size = {"batch_size": max(4, cell.n // 96), "epochs": 24}
    rates = (0.003, 0.03) if cell.task.optimizer == "adam" else (0.1, 1.0)
    trainer = cell.trainer()
    found = [
        cell.train(trainer, {**size, "learning_rate": rate, "clip_norm": math.inf}, 0.0, range(2))
        for rate in rates
    ]
    return [judged for _, judged in max(found, key=lambda pairs: sum(a for a, _ in pairs))]


def open_model(cell: Cell) -> Found:
    return {"values": _open(cell.name)}


ROWS: dict[str, Callable[[Cell], Found]] = {
    "majority": majority,
    "rule": rule,
    "selection": selection,
    "unpaid": unpaid,
    "open": open_model,
}


def measure(tasks: Sequence[str], rows: Sequence[str]) -> dict[str, Any]:
    """All cells, those that are not stored yet measured now."""
    cells: dict[str, Any] = earlier(NAME).get("cells", {})
    for task, epsilon, row in itertools.product(tasks, EPSILONS, rows):
        key = f"{task} {epsilon:g} {row}"
        if key in cells:
            continue
        start = time.process_time()
        cells[key] = found = ROWS[row](Cell(task, epsilon))
        found["seconds"] = round(time.process_time() - start, 1)
        save_results(NAME, {"cells": cells})
        if row != "rule" or TASKS[task].group != "held out":
            print(f"{key}: {mean_interval(found['values'])}, {found['seconds']} s", flush=True)
    return cells


def mean(cells: dict[str, Any], task: str, epsilon: float, row: str) -> float | None:
    """The mean of a cell, or None; of the best of 40, how good the chosen model itself is."""
    found = cells.get(f"{task} {epsilon:g} {row}")
    if found is None:
        return None
    if row == "unpaid" and "best model itself" in found:
        return float(found["best model itself"])
    return float(np.mean(found["values"]))


def gaps(cells: dict[str, Any], row: str = "rule") -> dict[tuple[str, float], float]:
    """A row minus the best of 40, for each task and epsilon where both are known."""
    found = {}
    for task, epsilon in itertools.product(TASKS, EPSILONS):
        ours, best = (mean(cells, task, epsilon, each) for each in (row, "unpaid"))
        if ours is not None and best is not None:
            found[task, epsilon] = ours - best
    return found


def draw(cells: dict[str, Any], path: Path) -> None:
    """Accuracy over epsilon, one panel for each task."""
    from matplotlib.figure import Figure

    lines = {
        "rule": ("default settings", "C0", "o-"),
        "unpaid": ("best of 40, tuning not counted in ε", "C1", "s--"),
        "selection": ("best of 20, tuning counted in ε", "C2", "^:"),
        "open": ("no privacy", "0.5", "-"),
    }
    figure = Figure(figsize=(12, 14), layout="constrained")
    axes = figure.subplots(5, 4, sharex=True).flatten()
    for axis, (name, task) in zip(axes, TASKS.items(), strict=True):
        for row, (label, color, style) in lines.items():
            points = [(e, mean(cells, name, e, row)) for e in EPSILONS]
            known = [(e, value) for e, value in points if value is not None]
            if known:
                axis.plot(*zip(*known, strict=True), style, color=color, label=label)
        axis.set_xscale("log")
        axis.set_xticks(EPSILONS, [f"{e:g}" for e in EPSILONS])
        axis.minorticks_off()
        axis.set_title(task.label(name), fontsize=12)
        axis.set_ylabel("explained variance" if task.metric is explained else "accuracy")
        axis.grid(alpha=0.3)
    for axis in axes[-4:]:
        axis.set_xlabel("ε (δ = 1e-5)")
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=4, fontsize=12)
    figure.savefig(path, dpi=110)


def table_untuned() -> str:
    """The gap to the best of 40 over all epsilons: mean and worst, of all tasks and each group."""
    cells, rows = stored(NAME)["cells"], []
    for name in ("all", "design", "checked later", "held out"):
        chosen = {k: gap for k, gap in gaps(cells).items() if name in ("all", TASKS[k[0]].group)}
        tasks = dict.fromkeys(task for task, _ in chosen)
        means = [float(np.mean([g for (t, _), g in chosen.items() if t == task])) for task in tasks]
        (task, epsilon), worst = min(chosen.items(), key=lambda item: item[1])
        found = mean_interval(means)
        level = sum(
            sum(cells[f"{t} {e:g} rule"]["values"]) >= sum(cells[f"{t} {e:g} unpaid"]["values"])
            for t, e in chosen
        )
        rows.append(
            [name, f"{len(tasks)}",
             f"{found.mean:+.4f} [{found.low:+.4f}, {found.high:+.4f}]",
             f"{worst:+.3f} ({task.replace('_', ' ')}, ε = {epsilon:g})",
             f"{level} of {len(chosen)}"]
        )  # fmt: skip
    head = ["tasks", "how many", "mean gap, with a 95% interval over tasks", "worst"]
    return markdown([*head, "not below the best of 40, trained again"], rows)


def main() -> None:
    parser = BenchmarkParser(NAME, __doc__, minutes=60)
    parser.add_argument("--tasks", nargs="+", default=list(TASKS), choices=list(TASKS))
    parser.add_argument("--rows", nargs="+", default=list(ROWS), choices=list(ROWS))
    options = parser.parse_args()
    draw(measure(options.tasks, options.rows), FIGURE)


if __name__ == "__main__":
    main()
