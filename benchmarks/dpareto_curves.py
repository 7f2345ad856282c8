"""Fronts from whole curves: how much less training they take.

    OMP_NUM_THREADS=1 BOTORCH_DP_DATA=... python -m benchmarks.dpareto_curves [--part ...]

One training of 64 epochs is twelve points of the front's candidates instead of one. Compared are

* *curves*: DPareto on curves, which chooses how long to train and stops early, and *curves in
  ln*, which improves the front in ln(epsilon);
* *random curves*: configs drawn at random, each trained to the end and measured along the way;
* *ordinary*: DPareto with utility measured at the end of each training only;
* *ordinary random*: random search with utility measured at the end only.

Fronts are chosen from noisy trials, so what is on them is judged by fresh trainings: hypervolume
to (10, 1) in epsilon, and in ln(epsilon / 0.05), of two fronts, the points that looked best and
those that the study's models expect to be best (``front.shrunken``). Effort is counted in
gradient steps and in epochs. All methods share the seeds of their studies; differences are paired
over them.

* ``studies``: real trainings. It says how long it will take, keeps its studies in a folder and
  goes on where it was interrupted. ``--setting mnist`` takes the two-layer network. Without the
  data sets, the bundled ones stand in.
* ``models``: models of some random curves, judged by the curves that they did not see, and by the
  front that they expect. The curves come from a pool: random configs of logistic regression are
  trained once each, to the end and with more replicates than a trial has. The models see some
  replicates; the others are the truth.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import time
import warnings
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import NormalDist, fmean
from typing import Any
from unittest.mock import patch

import numpy as np
import torch

from benchmarks.common import BenchmarkParser, mean_interval, save_results
from benchmarks.dpareto_paper import volumes
from benchmarks.linear_training import FastTraining, Training
from botorch_dp import tasks
from botorch_dp._files import atomic_write
from botorch_dp.pareto import (
    Batched,
    DPareto,
    Integer,
    ParetoFront,
    PrivacyUtilityProblem,
    SearchSpace,
)
from botorch_dp.pareto import beliefs as beliefs_module
from botorch_dp.pareto.beliefs import front_places, predicted
from botorch_dp.pareto.problem import CurvePlan, Measurement, Trial
from botorch_dp.pareto.proposals import (
    ProposalOptions,
    Search,
)
from botorch_dp.pareto.recommending import believed_values

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
                believer=partial(believed_values, study._search, trials),
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
    config = {"learning_rate": 0.01, "clip_norm": 1.0, "noise_variance": 2.0}
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
                    row[f"{scale}, curves ahead by"] = study_leads(runs, method, stop, seeds, scale)
            rows.append(row)
    return rows


def study_leads(
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


def paired(runs: dict[str, dict[str, Any]]) -> list[str]:
    """By how much curves are ahead of other methods, seed by seed and front by front; in words."""
    lines = []
    for mine in runs.get("curves", {}).get(next(iter(runs.get("curves", {})), ""), {}):
        for method, stop in (("ordinary", "64"), ("random curves", mine)):
            theirs = runs.get(method, {})
            seeds = [s for s in theirs if stop in theirs[s] and mine in runs["curves"].get(s, {})]
            for front, scale in itertools.product(("again", "expected again"), ("linear", "log")):
                gaps = [
                    runs["curves"][s][mine][front][scale] - theirs[s][stop][front][scale]
                    for s in seeds
                ]
                if gaps:
                    lead = mean_interval(gaps)
                    lines.append(f"{mine} curves minus {stop} {method}, {front}, {scale}: {lead}")
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


#: Replicates of each curve of the pool, and how many of them a trial sees.
REPLICATES, SEEN = 8, 3


#: Models whose quality is compared, and how many points they see; and errors that matter.
MODELS = {"as they are": 288, "without products": 288, "of fewer points": 96}


GOOD = 0.2


@dataclass(frozen=True)
class Curve:
    """One config of the pool, trained to the end.

    Args:
        config: With the longest training.
        checkpoints: ``K`` numbers of epochs.
        epsilons: ``K``.
        points: ``K x REPLICATES`` utilities.
    """

    config: dict[str, Any]
    checkpoints: list[int]
    epsilons: list[float]
    points: list[list[float]]


def trained_pool(setting: Setting, path: Path, count: int) -> list[Curve]:
    """Train what is missing of the pool; each curve is stored as it ends."""
    known = json.loads(path.read_text()) if path.exists() else []
    made = problem(setting, "random curves")
    configs = made.space.sample(count, seed=77)
    for number in range(len(known), count):
        config = made.whole(configs[number])
        checkpoints = list(made.checkpoints(config))
        seeds = [9_000_000 + 100 * number + k for k in range(REPLICATES)]
        points = [list(map(float, u)) for u in setting.oracles.curves(config, seeds, checkpoints)]
        epsilons = [made.epsilon(made.at(config, c)) for c in checkpoints]
        known.append(
            {
                "config": config,
                "checkpoints": checkpoints,
                "epsilons": epsilons,
                "points": points,
            }
        )
        with atomic_write(path, owner_only=True) as file:
            json.dump(known, file)
    return [Curve(**one) for one in known[:count]]


class Sample:
    """Random curves of the pool as a study would have them, and the replicates that judge them.

    Args:
        pool: All curves.
        whole: The problem, with curves.
        count: How many to draw.
        seed: Of what is drawn.
    """

    def __init__(
        self, pool: Sequence[Curve], whole: PrivacyUtilityProblem, count: int, seed: int
    ) -> None:
        rng = np.random.default_rng([seed, 5])
        self._pool = pool
        self.chosen = rng.permutation(len(pool)).tolist()[:count]
        self._shown = [rng.permutation(REPLICATES) for _ in pool]
        known = {
            tuple({**curve.config, "epochs": c}.values()): e
            for curve in pool
            for c, e in zip(curve.checkpoints, curve.epsilons, strict=True)
        }
        self._problem = PrivacyUtilityProblem(
            whole.space,
            privacy=lambda config: known[tuple(config.values())],
            batched=Batched(replicates=lambda *_: []),
            resource=whole.resource,
            replicates=SEEN,
        )
        self._trials = [self._trial(number, place) for number, place in enumerate(self.chosen)]
        search = Search(self._problem, seed=seed, options=ProposalOptions())
        self.beliefs = search.beliefs(self._trials)

    def _trial(self, number: int, place: int) -> Trial:
        curve = self._pool[place]
        measured = (
            Measurement.of_curve(
                {
                    c: Measurement(utility=points[replicate], seconds=0.0)
                    for c, points in zip(curve.checkpoints, curve.points, strict=True)
                }
            )
            for replicate in self._shown[place][:SEEN]
        )
        return Trial(
            number=number,
            config={**curve.config, "epochs": curve.checkpoints[-1]},
            seeds=tuple(range(SEEN)),
            epsilon=curve.epsilons[-1],
            state="complete",
            measurements=tuple(measured),
            plan=CurvePlan(
                tuple(curve.checkpoints), tuple(curve.epsilons), (0.0,) * len(curve.epsilons)
            ),
        )

    def judged(self) -> dict[str, float]:
        """Hypervolumes of both fronts' points by the replicates that were not seen."""
        points = [point for trial in self._trials for point in self._problem.points(trial)]
        again = torch.tensor(
            [(p.values[0], self._truth(self.chosen[p.trial], p.config["epochs"])) for p in points],
            dtype=torch.double,
        )
        observed = torch.tensor([p.values for p in points], dtype=torch.double)
        expected = observed.clone()
        expected[:, 1] = (-self.beliefs.incumbent_means[:, 1]).sigmoid()
        return {
            name: volumes(again[front_places(values)], self._problem.ref_point)["linear"]
            for name, values in (("observed", observed), ("expected", expected))
        }

    def _truth(self, place: int, checkpoint: int) -> float:
        curve = self._pool[place]
        row = curve.points[curve.checkpoints.index(checkpoint)]
        return 1 - fmean(row[r] for r in self._shown[place][SEEN:])


def model_quality(
    pool: Sequence[Curve], whole: PrivacyUtilityProblem, seeds: Sequence[int]
) -> list[dict[str, Any]]:
    """What models of some random curves expect of all others, and of the points that they saw.

    Of the others: mean error of the model (*bias*) and its root mean square where the true error is
    below .2, and how often the true one is in the 90% interval. Of their own: hypervolumes of both
    fronts. The models are those of the package; without the products; and of 96 points in all.
    """
    rows = []
    for count, (label, most) in itertools.product((16, 24), MODELS.items()):
        found: dict[str, list[float]] = {}
        problem = copy(whole)
        if label == "without products":
            problem.space = SearchSpace(**whole.space.parameters)
        for seed in seeds:
            with patch.object(beliefs_module, "_MOST_POINTS", most):
                sample = Sample(pool, problem, count, seed)
            fronts = sample.judged()
            others = [curve for place, curve in enumerate(pool) if place not in sample.chosen]
            configs = [{**c.config, "epochs": end} for c in others for end in c.checkpoints]
            means, stds = predicted(sample.beliefs.model.models[1], whole.space.encode(configs))
            true = torch.tensor([1 - fmean(u) for c in others for u in c.points])
            good = true < GOOD
            off = (-means).sigmoid()[good] - true[good]
            within = (means + true.logit()).abs() < NormalDist().inv_cdf(0.95) * stds
            for name, value in (
                ("bias", off.mean()),
                ("root mean square", off.square().mean().sqrt()),
                ("in the 90% interval", within[good].double().mean()),
                *fronts.items(),
                ("ahead", fronts["expected"] - fronts["observed"]),
            ):
                found.setdefault(name, []).append(float(value))
        summary = {name: mean_interval(values) for name, values in found.items()}
        rows.append({"curves": count, "model": label, **summary})
        print(count, label, {name: str(value) for name, value in summary.items()}, flush=True)
    return rows


def studies(options: argparse.Namespace) -> None:
    """Stored as ``dpareto_curves_adult.json`` or ``dpareto_curves_mnist.json``."""
    setting = settings(bool(os.environ.get("BOTORCH_DP_DATA")))[options.setting]
    hours = expected_hours(setting, options.seeds or 4)
    folder = options.folder / "dpareto_curves"
    print(f"About {hours:.1f} core-hours here, less what is in {folder}.", flush=True)
    folder.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    runs: dict[str, dict[str, Any]] = {}
    for seed in range(options.first_seed, options.first_seed + (options.seeds or 4)):
        for method in options.methods or setting.stops:
            if time.monotonic() - started <= 60 * options.minutes:
                runs.setdefault(method, {})[str(seed)] = run(setting, method, seed, folder)
                print(f"seed {seed}, {method}: {time.monotonic() - started:.0f} s", flush=True)
    rows = summarize(runs, setting)
    save_results(
        f"dpareto_curves_{options.setting}",
        {"data": setting.oracles.data, "rows": rows, "runs": runs},
    )
    print("\n".join([table(rows), *paired(runs)]))


def models(options: argparse.Namespace) -> None:
    """Stored as ``dpareto_models.json``; the pool is trained first, or what is missing of it."""
    setting = settings(bool(os.environ.get("BOTORCH_DP_DATA")))["adult"]
    folder = options.folder / "dpareto_pool"
    folder.mkdir(parents=True, exist_ok=True)
    pool = trained_pool(setting, folder / "pool.json", options.curves)
    seeds = range(200, 200 + (options.seeds or 12))
    rows = model_quality(pool, problem(setting, "random curves"), seeds)
    save_results("dpareto_models", {"curves": len(pool), "seeds": len(seeds), "rows": rows})


def main() -> None:
    parser = BenchmarkParser("dpareto_curves", __doc__, minutes={"studies": 60, "models": 40})
    parser.add_argument("--setting", choices=("adult", "mnist"), default="adult")
    parser.add_argument("--seeds", type=int, help="4 studies, or 12 sets of models")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--methods", nargs="*", help="of ``studies``; all by default")
    parser.add_argument("--curves", type=int, default=150, help="in the pool")
    parser.add_argument("--minutes", type=float, default=math.inf, help="stop, to go on later")
    parser.add_argument(
        "--folder",
        type=Path,
        default=Path.home() / ".cache" / "botorch_dp",
        help="of studies and of the pool; they hold measured utilities and are sensitive",
    )
    options = parser.parse_args()
    warnings.filterwarnings("ignore", module="botorch|linear_operator|gpytorch")
    for part in options.part:
        {"studies": studies, "models": models}[part](options)


if __name__ == "__main__":
    main()
