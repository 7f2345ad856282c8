"""Fronts from whole curves: how much less training they take.

One training of 64 epochs is twelve points of the front's candidates instead of one. Compared are

* *curves*: DPareto on curves, which chooses how long to train and stops early, and *curves in ln*,
  which improves the front in ln(epsilon);
* *random curves*: configs drawn at random, each trained to the end and measured along the way;
* *ordinary*: DPareto with utility measured at the end of each training only;
* *ordinary random*: random search with utility measured at the end only.

Fronts are chosen from noisy trials, so the trials on them are trained again with fresh seeds, and
hypervolume to (10, 1) is that of the chosen points there: in epsilon, and in ln(epsilon / 0.05).
It is so of two fronts: the points that looked best, and those that the study's models expect to be
best (``front.shrunken``).
All methods share the seeds of their studies; differences are paired over them. Effort is counted in
gradient steps and in epochs.

Run with ``OMP_NUM_THREADS=1 BOTORCH_DP_DATA=... python -m benchmarks.dpareto_curves``; it says how
long it will take, keeps its studies in a folder and goes on where it was interrupted.
``--setting mnist`` takes the two-layer network. Without the data sets, the bundled ones stand in.
"""

from __future__ import annotations

import json
import math
import os
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.common import BenchmarkParser, mean_interval, save_results
from benchmarks.dpareto_paper import volumes
from benchmarks.linear_training import FastTraining, Training
from botorch_dp import tasks
from botorch_dp._files import atomic_write
from botorch_dp.pareto import DPareto, Integer, ParetoFront, PrivacyUtilityProblem, SearchSpace
from botorch_dp.pareto.problem import Trial

#: What the others are compared with, by the scale of epsilon.
REFERENCES = {"linear": "curves", "log": "curves in ln"}


@dataclass(frozen=True)
class Setting:
    """One problem, and how much of it is run.

    Args:
        oracles: Its model and data.
        task: What builds it.
        max_epochs: Upper end of the epochs' range.
        min_batch: Lower end of the batch size's range.
        replicates: Trainings of a trial.
        again: Fresh trainings of each trial on a front.
        stops: Method -> after how many trials the front is judged.
    """

    oracles: Training
    task: Any
    max_epochs: int
    min_batch: int
    replicates: int
    again: int
    stops: dict[str, tuple[int, ...]]


def settings(data_at_hand: bool) -> dict[str, Setting]:
    adult = "adult" if data_at_hand else "breast_cancer"
    mnist = "mnist" if data_at_hand else "digits"
    return {
        "adult": Setting(
            (FastTraining if data_at_hand else Training).of("logistic", adult, "sgd"),
            tasks.adult_logistic_sgd,
            max_epochs=64,
            min_batch=8,
            replicates=3,
            again=4,
            stops={
                "curves": (8, 16, 24, 32),
                "random curves": (8, 16),
                "curves in ln": (8, 16, 24),
                "ordinary": (32, 64),
                "ordinary random": (64,),
            },
        ),
        "mnist": Setting(
            Training.of("mlp2", mnist, "sgd"),
            tasks.mnist_mlp2_sgd,
            max_epochs=8,
            min_batch=200,
            replicates=1,
            again=3,
            stops={"curves": (6, 12), "random curves": (6, 12), "curves in ln": (6, 12, 18)},
        ),
    }


def problem(setting: Setting, method: str) -> PrivacyUtilityProblem:
    """The setting's problem in its range, with or without curves."""
    curves, oracles = "curves" in method, setting.oracles
    made = setting.task(data=setting.oracles.data, replicates=setting.replicates, curves=curves)
    parameters = dict(made.space.parameters)
    parameters["epochs"] = Integer(1, setting.max_epochs, log=method != "ordinary random")
    batches = parameters["batch_size"]
    low, high = min(setting.min_batch, batches.high), batches.high
    parameters["batch_size"] = Integer(low, high, log=True, distribution=batches.distribution)
    return PrivacyUtilityProblem(
        SearchSpace(
            **parameters, products=() if method == "ordinary random" else made.space.products
        ),
        privacy=made.privacy,
        resource=made.resource and replace(made.resource, checkpoints=None),
        promise=made.promise,
        replicates=setting.replicates,
        name=f"{made.name}, {method}",
        batched=replace(made.batched, replicates=oracles.curves if curves else oracles.utilities),
    )


def length(trial: Trial) -> int:
    """Epochs that a trial trained."""
    ends = [m.curve[-1][0] if m.curve else trial.config["epochs"] for m in trial.finished]
    return max(ends)


class Judge:
    """Trains trials again with fresh seeds, once each, and keeps what came of it.

    Args:
        path: Where.
        setting: How often.
    """

    def __init__(self, path: Path, setting: Setting) -> None:
        self._path, self._setting = path, setting
        self._known: dict[str, list[float]] = json.loads(path.read_text()) if path.exists() else {}

    def errors(self, trial: Trial) -> dict[int, float]:
        """Mean errors by epochs: along the trial's curve, or at its end."""
        epochs = [c for c, _ in trial.finished[0].curve] or [trial.config["epochs"]]
        epochs = [c for c in epochs if c <= length(trial)]
        key = str(trial.number)
        if key not in self._known:
            seeds = [10_000_019 + 1_000 * trial.number + k for k in range(self._setting.again)]
            config = {**trial.config, "epochs": epochs[-1]}
            points = self._setting.oracles.curves(config, seeds, epochs)
            self._known[key] = [1 - sum(u) / len(u) for u in points]
            with atomic_write(self._path, owner_only=True) as file:
                json.dump(self._known, file)
        return dict(zip(epochs, self._known[key], strict=True))

    def volumes(self, front: ParetoFront) -> dict[str, float]:
        """Hypervolume of what a front's points come to when they are trained again."""
        by_number = {trial.number: trial for trial in front.trials}
        points = [
            (p.values[0], self.errors(by_number[p.trial])[p.config["epochs"]])
            for p in front.measured_on_front
        ]
        return volumes(torch.tensor(points, dtype=torch.double), front.problem.ref_point)


def run(setting: Setting, method: str, seed: int, folder: Path) -> dict[str, Any]:
    """One study, or what is missing of it; its fronts after each stop."""
    acquisition = "random" if method in ("random curves", "ordinary random") else "ehvi"
    name = f"{setting.oracles.model}-{method}-{seed}".replace(" ", "-")
    judge = Judge(folder / f"{name}.again.json", setting)
    result: dict[str, Any] = {}
    with DPareto(
        problem(setting, method),
        acquisition=acquisition,  # type: ignore[arg-type]
        storage=folder / f"{name}.sqlite",
        seed=seed,
        epsilon_scale="log" if method.endswith("in ln") else "linear",
    ) as study:
        before = len(study.trials)
        for stop in setting.stops[method]:
            start = time.process_time()
            study.run(max(stop, len(study.trials)))
            spent = time.process_time() - start
            trials = [t for t in study.trials if t.number < stop and t.state == "complete"]
            front = ParetoFront(
                study.problem,
                trials,
                guarantee=study.publication_guarantee,
                believer=partial(study._believed, trials),
            )
            epochs = [length(t) for t in trials]
            steps = [setting.oracles.cost({**t.config, "epochs": length(t)}) for t in trials]
            result[str(stop)] = {
                "epochs": sum(epochs),
                "steps": sum(steps),
                "observed": volumes(front.points, study.problem.ref_point),
                "again": judge.volumes(front),
                "expected again": judge.volumes(front.shrunken or front),
                "points_on_front": len(front),
                "processor_seconds": spent if before == 0 else None,
            }
    return result


def expected_hours(setting: Setting, seeds: int) -> float:
    """Core-hours, from the time of some steps here and an average config."""
    batch = min(max(setting.min_batch, 128), setting.oracles.num_records // 2)
    config = {"learning_rate": 0.01, "clip_norm": 1.0, "noise_multiplier": 2.0}
    config |= {"batch_size": batch, "epochs": 1}
    seconds = {}
    for count in (setting.replicates, setting.again):
        list(setting.oracles.curves(config, range(count), [1]))
        start = time.process_time()
        list(setting.oracles.curves(config, range(count), [1]))
        seconds[count] = time.process_time() - start
    epochs = {"random curves": 1.0}
    total = 0.0
    for method, stops in setting.stops.items():
        trainings = (
            stops[-1] * epochs.get(method, 0.5) * setting.max_epochs * seconds[setting.replicates]
        )
        judged = 6 * len(stops) * 0.5 * setting.max_epochs * seconds[setting.again]
        total += trainings + judged
    return seeds * total / 3600


def summarize(runs: dict[str, dict[str, Any]], setting: Setting) -> list[dict[str, Any]]:
    """Means over the seeds that each method has, and the paired lead of curves at each stop."""
    rows = []
    for method, stops in setting.stops.items():
        for stop in stops:
            seeds = [s for s, found in runs.get(method, {}).items() if str(stop) in found]
            if not seeds:
                continue
            at = [runs[method][s][str(stop)] for s in seeds]
            row: dict[str, Any] = {"method": method, "trials": stop, "seeds": len(seeds)}
            for key in ("epochs", "steps"):
                row[key] = sum(one[key] for one in at) / len(at)
            for scale in ("linear", "log"):
                row[scale] = mean_interval([one["again"][scale] for one in at])
                row[f"{scale}, expected front"] = mean_interval(
                    [one["expected again"][scale] for one in at]
                )
                row[f"{scale}, luck"] = sum(
                    one["observed"][scale] - one["again"][scale] for one in at
                ) / len(at)
                if method not in REFERENCES.values():
                    row[f"{scale}, curves ahead by"] = leads(runs, method, stop, seeds, scale)
            rows.append(row)
    return rows


def leads(
    runs: dict[str, dict[str, Any]], method: str, stop: int, seeds: Sequence[str], scale: str
) -> Any:
    """By how much the expected fronts of curves are ahead with at most as many steps."""
    found = []
    for seed in seeds:
        theirs = runs[method][seed][str(stop)]
        ours = [
            one["expected again"][scale]
            for one in runs.get(REFERENCES[scale], {}).get(seed, {}).values()
            if one["steps"] <= theirs["steps"]
        ]
        if ours:
            found.append(ours[-1] - theirs["expected again"][scale])
    return mean_interval(found) if found else None


def against_chance(runs: dict[str, dict[str, Any]]) -> list[str]:
    """The paired lead of chosen curves over random ones, after as many trainings; in words."""
    chosen, drawn = runs.get("curves", {}), runs.get("random curves", {})
    lines = []
    for stop in sorted({stop for found in drawn.values() for stop in found}, key=int):
        seeds = [s for s in drawn if stop in drawn[s] and stop in chosen.get(s, {})]
        if not seeds:
            continue
        ours, theirs = ([found[s][stop] for s in seeds] for found in (chosen, drawn))
        steps, others = (sum(one["steps"] for one in each) / len(seeds) for each in (ours, theirs))
        leads = {
            scale: [
                one["again"][scale] - other["again"][scale]
                for one, other in zip(ours, theirs, strict=True)
            ]
            for scale in ("linear", "log")
        }
        lines.append(
            f"{stop} curves ({steps:.0f} steps) against {stop} at random ({others:.0f}): ahead by "
            f"{mean_interval(leads['linear'])}, in ln by {mean_interval(leads['log'])}; "
            f"least {min(leads['linear']):.3f}, {min(leads['log']):.3f}"
        )
    return lines


def table(rows: Sequence[dict[str, Any]]) -> str:
    lines = [
        f"{'method':16}{'trials':>7}{'seeds':>6}{'epochs':>8}{'ksteps':>8}"
        f"{'hypervolume':>26}{'in ln(eps/.05)':>26}{'of expected front':>26}{'in ln':>26}"
        f"{'curves ahead by':>26}{'in ln':>26}"
    ]
    for row in rows:
        ahead = [row.get(f"{scale}, curves ahead by") or "" for scale in ("linear", "log")]
        lines.append(
            f"{row['method']:16}{row['trials']:7}{row['seeds']:6}{row['epochs']:8.0f}"
            f"{row['steps'] / 1000:8.0f}{row['linear']!s:>26}{row['log']!s:>26}"
            f"{row['linear, expected front']!s:>26}{row['log, expected front']!s:>26}"
            f"{ahead[0]!s:>26}{ahead[1]!s:>26}"
        )
    return "\n".join(lines)


def main() -> None:
    parser = BenchmarkParser("dpareto_curves", __doc__, minutes=60)
    parser.add_argument("--setting", choices=("adult", "mnist"), default="adult")
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--methods", nargs="*", help="all by default")
    parser.add_argument("--minutes", type=float, default=math.inf, help="stop, to go on later")
    parser.add_argument(
        "--studies",
        type=Path,
        default=Path.home() / ".cache" / "botorch_dp" / "dpareto_curves",
        help="folder of the studies; they hold measured utilities and are sensitive",
    )
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore", module="botorch|linear_operator|gpytorch")
    setting = settings(bool(os.environ.get("BOTORCH_DP_DATA")))[arguments.setting]
    hours = expected_hours(setting, arguments.seeds)
    print(f"About {hours:.1f} core-hours here, less what is in {arguments.studies}.", flush=True)
    arguments.studies.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    runs: dict[str, dict[str, Any]] = {}
    for seed in range(arguments.first_seed, arguments.first_seed + arguments.seeds):
        for method in arguments.methods or setting.stops:
            if time.monotonic() - started > 60 * arguments.minutes:
                continue
            runs.setdefault(method, {})[str(seed)] = run(setting, method, seed, arguments.studies)
            print(f"seed {seed}, {method}: {time.monotonic() - started:.0f} s", flush=True)
    rows = summarize(runs, setting)
    save_results(
        f"dpareto_curves_{arguments.setting}",
        {"data": setting.oracles.data, "rows": rows, "runs": runs},
    )
    print("\n".join([table(rows), *against_chance(runs)]))


if __name__ == "__main__":
    main()
