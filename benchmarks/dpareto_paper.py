"""Section 4 of the DPareto paper on this machine: fronts of five private learning problems.

DPareto against random sampling (from the paper's distributions) and grids of 3 and 4 values for
each parameter. A study chooses its front from noisy trials, so the best of them are partly luck:
fronts are *evaluated again* with fresh seeds, and what was observed first stands beside that. All
methods share the seeds of their studies; differences are paired over them.

By default this is a variant with reduced sizes, which takes some twenty minutes of one core (see
``REDUCED``): fewer epochs, trials and replicates; all training records are used.
``--full`` takes the paper's sizes: 16 + 256 trials of 10 replicates, 1,500 random points as in
figure 5, and grids linear in the parameters; random points and grids on Adult have the learning
rates of Table 4. It says first how many core-hours that is; ``--settings`` names the problems to
run, and ``--minutes`` ends it, to be gone on with later. The test of Table 2 is ``dpareto_lead``.

Run with ``OMP_NUM_THREADS=1 python -m benchmarks.dpareto_paper``. The studies are kept in a folder
of their own, so that an interrupted run goes on where it was.
"""

from __future__ import annotations

import itertools
import json
import math
import textwrap
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from torch import Tensor
from tqdm import tqdm

from benchmarks.common import (
    BenchmarkParser,
    Interval,
    mean_interval,
    results_folder,
    save_results,
)
from benchmarks.linear_training import FastTraining, Training
from benchmarks.tables import markdown, stored
from botorch_dp import tasks
from botorch_dp.pareto import Batched, DPareto, ParetoFront, PrivacyUtilityProblem
from botorch_dp.pareto.front import dominated_volume
from botorch_dp.plots import plot_front
from botorch_dp.space import Config, Integer, Real, SearchSpace, ShiftedExponential


@dataclass(frozen=True)
class Setting:
    """One of the paper's five learning problems, at the size it is run in.

    Args:
        label: The paper's name for it.
        task: Builds the problem.
        max_epochs: Upper end of the epochs' range.
        min_batch: Lower end of the batch size's range.
        initial: Trials drawn before models are consulted.
        trials: All trials of a study, the initial ones included.
        replicates: Trainings of a trial.
        again: Fresh trainings of each config on a front.
        seeds: Studies of each method that are repeated.
        methods: Which ones, and how many trials each takes; None: ``trials``.
        full: Whether it has the paper's size. Then grids are equidistant in the parameters
            themselves, their configs are trained as often as others, and linear models are trained
            by a compiled loop.
    """

    label: str
    task: Callable[..., PrivacyUtilityProblem]
    max_epochs: int
    min_batch: int
    initial: int
    trials: int
    replicates: int
    again: int
    seeds: int
    methods: dict[str, int | None] = field(default_factory=dict)
    full: bool = False


#: Label -> options of the study.
METHODS: dict[str, dict[str, Any]] = {
    "DPareto": {"acquisition": "ehvi", "privacy_model": "exact", "epsilon_scale": "linear"},
    "DPareto, HVPoI": {"acquisition": "hvpoi", "privacy_model": "gp"},
    "random": {"acquisition": "random"},
    "grid of 3": {"acquisition": "grid", "grid_levels": 3},
    "grid of 4": {"acquisition": "grid", "grid_levels": 4},
}


_REPEATED: dict[str, int | None] = {"DPareto": None, "random": None}


_ALL = {"DPareto": None, "random": None, "DPareto, HVPoI": None}


_ADULT = {"max_epochs": 10, "min_batch": 8, "initial": 16, "trials": 40}


_REDUCED_ADULT: dict[str, Any] = _ADULT | {"replicates": 3, "again": 5, "seeds": 3}


_REDUCED_MNIST: dict[str, Any] = {"min_batch": 200, "initial": 8, "replicates": 1}


#: What is run by default: some twenty minutes of one core.
REDUCED = (
    Setting(
        "LogReg+SGD",
        tasks.adult_logistic_sgd,
        **_REDUCED_ADULT,
        methods={**_ALL, "grid of 3": 243, "grid of 4": 128},
    ),
    Setting(
        "LogReg+ADAM",
        tasks.adult_logistic_adam,
        **_REDUCED_ADULT,
        methods={**_REPEATED, "grid of 3": 81},
    ),
    Setting(
        "SVM+SGD",
        tasks.adult_svm_sgd,
        **_REDUCED_ADULT,
        methods={**_REPEATED, "grid of 3": 81},
    ),
    Setting(
        "MLP2+SGD",
        tasks.mnist_mlp2_sgd,
        max_epochs=4,
        trials=16,
        again=3,
        seeds=2,
        methods=_REPEATED,
        **_REDUCED_MNIST,
    ),
    Setting(
        "MLP1+SGD",
        tasks.mnist_mlp1_sgd,
        max_epochs=2,
        trials=12,
        again=2,
        seeds=1,
        methods=_REPEATED,
        **_REDUCED_MNIST,
    ),
)


_FULL: dict[str, Any] = {
    "initial": 16,
    "trials": 272,
    "replicates": 10,
    "again": 10,
    "seeds": 1,
    "full": True,
}


#: Figure 5 shows 1,500 random points.
_FULL_METHODS = {**_ALL, "random": 1500, "grid of 3": 243, "grid of 4": 1024}


#: Learning rates of random points and grids on Adult; studies look from 5e-4 to 5e-2.
TABLE_4 = Real(1e-3, 0.1, log=True, distribution=ShiftedExponential(10.0))


#: Where the axis of ln(epsilon) begins: below it nothing is learnt.
SMALLEST = 0.05


#: The paper's sizes: some hours of one core for Adult, weeks for MNIST.
FULL = tuple(
    Setting(
        each.label,
        each.task,
        max_epochs=400 if "MLP" in each.label else 64,
        min_batch=16 if "MLP" in each.label else 8,
        methods=_FULL_METHODS,
        **_FULL,
    )
    for each in REDUCED
)


class TimedOracle:
    """A utility oracle that counts its processor time.

    Args:
        problem: Whose oracle it is.
        compiled: Whether a linear model is trained by :mod:`benchmarks.linear_training`.
        needed_epsilon: Configs beyond it are not trained but given utility 0: they cannot enter a
            hypervolume that ends there. Epsilon is exact, so nothing is guessed. (The study does
            not know, and counts them in what publishing its front costs.)
    """

    def __init__(
        self, problem: PrivacyUtilityProblem, compiled: bool, needed_epsilon: float
    ) -> None:
        self.problem = problem
        oracles: Any = problem.oracle.__self__  # type: ignore[attr-defined]
        model, name, optimizer, *_ = oracles.trainer.args
        fast = compiled and model in ("logistic", "svm")
        self.training = (FastTraining if fast else Training).of(model, name, optimizer)
        self.oracle = self.training.utilities
        self.needed_epsilon = needed_epsilon
        self.seconds = 0.0
        self.trainings = 0

    def __call__(self, config: Config, seeds: Sequence[int]) -> Sequence[Any]:
        if self.problem.epsilon(config) >= self.needed_epsilon:
            return [0.0] * len(seeds)
        start = time.process_time()
        utilities: Sequence[Any] = self.oracle(config, seeds)
        self.seconds += time.process_time() - start
        self.trainings += len(seeds)
        return utilities


def prepared(setting: Setting, method: str) -> PrivacyUtilityProblem:
    """The setting's problem in its range, with a timed oracle.

    Random sampling draws epochs uniformly, as the paper does; the models of the others see their
    logarithm. Grids are equidistant in the scale of the models, and their many configs are trained
    a third as often.
    """
    grid = method.startswith("grid")
    rarely = grid and not setting.full
    replicates = max(1, setting.replicates // 3) if rarely else setting.replicates
    problem = setting.task(replicates=replicates)
    parameters = dict(problem.space.parameters)
    parameters["epochs"] = Integer(1, setting.max_epochs, log=method != "random")
    if setting.full and "DPareto" not in method and "MLP" not in setting.label:
        parameters["learning_rate"] = TABLE_4
    batch_size = parameters["batch_size"]
    assert isinstance(batch_size, Integer)
    parameters["batch_size"] = replace(batch_size, low=setting.min_batch)
    if grid and setting.full:
        parameters = {name: replace(p, log=False) for name, p in parameters.items()}  # type: ignore
    return PrivacyUtilityProblem(
        SearchSpace(
            **parameters,
            # Products are for models, which neither random sampling nor grids have.
            products=problem.space.products if "DPareto" in method else (),
        ),
        privacy=problem.privacy,
        batched=Batched(
            epsilons=problem.batched.epsilons,
            replicates=TimedOracle(
                problem, setting.full, problem.ref_point[0] if grid else math.inf
            ),
        ),
        training=problem.training,
        replicates=replicates,
        name=f"{setting.label}, {method}",
    )


def open_study(setting: Setting, method: str, seed: int, folder: Path) -> DPareto:
    """The study with its file, where it is continued if it was interrupted."""
    name = f"{setting.label}-{method}-{seed}".replace(", ", "-").replace(" ", "-")
    return DPareto(
        prepared(setting, method), storage=folder / f"{name}.sqlite", seed=seed, **METHODS[method]
    )


def evaluated_again(study: DPareto, front: ParetoFront, replicates: int) -> ParetoFront:
    """The front from fresh trainings; those that the study has already are not repeated."""
    if any(len(trial.fresh) < replicates for trial in front.front_trials):
        front.reevaluate(replicates)
    numbers = {trial.number for trial in front.front_trials}
    fresh = [
        replace(trial, measurements=tuple(trial.fresh.values()), fresh={})
        for trial in study.trials
        if trial.number in numbers
    ]
    return ParetoFront(
        study.problem,
        fresh,
        guarantee=study.publication_guarantee(),
        label=f"{front.label}, evaluated again",
        observed=front,
    )


def volumes(points: Tensor, ref_point: tuple[float, float]) -> dict[str, float]:
    """Hypervolume in epsilon, as in the paper, and in ln(epsilon / 0.05)."""
    logs = torch.stack([(points[:, 0].clamp_min(SMALLEST) / SMALLEST).log(), points[:, 1]], dim=-1)
    return {
        "linear": dominated_volume(points, ref_point),
        "log": dominated_volume(logs, (math.log(ref_point[0] / SMALLEST), ref_point[1])),
    }


def run_study(
    setting: Setting, method: str, seed: int, folder: Path, deadline: float = math.inf
) -> dict[str, Any] | None:
    """Run one study, or what is missing of it, and evaluate its fronts again.

    The front is evaluated again after the initial trials and after all; no proposal sees that.
    None if the study has not come so far by the deadline, in seconds of ``time.monotonic``.
    """
    count = setting.methods[method]
    total = setting.trials if count is None else count
    stops = [total] if method.startswith("grid") else [setting.initial, total]
    result: dict[str, Any] = {"trials": total, "at": {}}
    with open_study(setting, method, seed, folder) as study:
        rate: Any = study.problem.space.parameters["learning_rate"]
        result["learning_rate"] = [rate.low, rate.high]
        oracle = study.problem.oracle
        assert isinstance(oracle, TimedOracle)
        ref_point = study.problem.ref_point
        resumed = len(study.trials) > 0
        loop_seconds, training_seconds = 0.0, 0.0
        for stop in stops:
            trained, start = oracle.seconds, time.process_time()
            while len(study.trials) < stop:
                if time.monotonic() > deadline:
                    return None
                study.run(len(study.trials) + 1, initial=setting.initial)
            spent, oracle_spent = time.process_time() - start, oracle.seconds - trained
            training_seconds += oracle_spent
            loop_seconds += spent - oracle_spent
            front = _front_of(study, stop)
            again = evaluated_again(study, front, setting.again)
            result["at"][str(stop)] = {
                "observed": volumes(front.points, ref_point),
                "evaluated_again": volumes(again.points, ref_point),
                "configs_on_front": len(front),
            }
        result["observed_by_trial"] = [
            round(v, 5) for v in study.front().hypervolume_by_trial().tolist()
        ]
        result["trainings"] = oracle.trainings
        result["processor_seconds"] = {
            "training": training_seconds,
            "loop": loop_seconds,
            "evaluating_again": oracle.seconds - training_seconds,
            "complete": not resumed,
        }
    return result


def expected_hours(settings: Sequence[Setting]) -> dict[str, float]:
    """Core-hours of each setting, from the time that some steps take here.

    A step costs a part of its own and one for each record in its batch. Epochs and batches are
    averaged over what each method draws; what a study finds out for itself counts as a random draw.
    """
    hours = {}
    for setting in settings:
        problem = prepared(setting, "random")
        oracle: Any = problem.oracle
        num_records = oracle.training.num_records
        seconds = []
        for batch in (64, 512):
            config = problem.space.sample(1, seed=0)[0] | {"epochs": 1, "batch_size": batch}
            start = time.process_time()
            oracle(config, list(range(setting.replicates)))
            seconds.append((time.process_time() - start) / (num_records // batch))
        per_record = max(0.0, (seconds[1] - seconds[0]) / (512 - 64))
        own = max(seconds[0] - 64 * per_record, 0.0)
        total = 0.0
        for method, count in setting.methods.items():
            repeats = 1 if method.startswith("grid") else setting.seeds
            space = prepared(setting, method).space
            if method.startswith("grid"):
                configs = space.grid(int(method[-1]))[:count]
            else:
                configs = space.sample(200, seed=1)
            steps = [c["epochs"] * (num_records // c["batch_size"]) for c in configs]
            each = [
                n * (own + per_record * c["batch_size"])
                for n, c in zip(steps, configs, strict=True)
            ]
            total += repeats * (count or setting.trials) * sum(each) / len(each)
        hours[setting.label] = total / 3600
    return hours


def _front_of(study: DPareto, stop: int) -> ParetoFront:
    """The front of the first ``stop`` trials, also if the study has gone on since."""
    whole = study.front()
    if len(whole.trials) <= stop:
        return whole
    return ParetoFront(
        study.problem,
        [trial for trial in whole.trials if trial.number < stop],
        guarantee=whole.guarantee,
    )


_COLORS = {
    "DPareto": "C0",
    "random": "C1",
    "DPareto, HVPoI": "C2",
    "grid of 3": "C3",
    "grid of 4": "C4",
}


_DPI = 90


def draw(
    settings: Sequence[Setting], runs: dict[str, Any], studies: Path, results: Path, size: str = ""
) -> None:
    """Draw all figures of the runs there are.

    Args:
        settings: What was run.
        runs: The runs in the results file.
        studies: Folder of the studies.
        results: Folder of the figures.
        size: What the names of the files end in.
    """
    ran = [setting for setting in settings if "DPareto" in runs.get(setting.label, {})]
    if not ran:
        return
    again = {
        setting.label: {
            method: _again(setting, method, studies)
            for method in _COLORS
            if "0" in runs[setting.label].get(method, {})
        }
        for setting in ran
    }
    _hypervolumes(ran, runs, results / f"dpareto_hypervolume{size}.png")
    _side_by_side(
        {label: list(fronts.values()) for label, fronts in again.items() if len(fronts) > 1},
        results / f"dpareto_fronts{size}.png",
        title="{}: fronts evaluated again, one study each",
    )
    _side_by_side(
        {label: [fronts["DPareto"]] for label, fronts in again.items()},
        results / f"dpareto_variability{size}.png",
        title="{}: a front, before and again",
        keep_observed=True,
        band=True,
        trials=False,
        dominated=False,
    )
    groups = {"Adult": "LogReg SVM", "MNIST": "MLP1 MLP2"}
    _side_by_side(
        {
            name: [
                fronts["DPareto"].labelled(label)
                for label, fronts in again.items()
                if label.split("+")[0] in members.split()
            ]
            for name, members in groups.items()
        },
        results / f"dpareto_comparison{size}.png",
        title="{}: models and optimizers",
    )


def _again(setting: Setting, method: str, studies: Path) -> ParetoFront:
    with open_study(setting, method, 0, studies) as study:
        front = evaluated_again(study, study.front().labelled(method), setting.again)
    return front.labelled(method)


def _alone(front: ParetoFront) -> ParetoFront:
    """The same front without the one that was observed first."""
    return ParetoFront(front.problem, front.trials, guarantee=front.guarantee, label=front.label)


def _side_by_side(
    panels: dict[str, list[ParetoFront]],
    path: Path,
    *,
    title: str,
    keep_observed: bool = False,
    **options: Any,
) -> None:
    from matplotlib.figure import Figure

    panels = {name: fronts for name, fronts in panels.items() if fronts}
    if not panels:
        return
    columns = min(2, len(panels))
    rows = -(-len(panels) // columns)
    figure = Figure(figsize=(6.6 * columns, 5.2 * rows), layout="constrained")
    for index, (name, fronts) in enumerate(panels.items()):
        ax = figure.add_subplot(rows, columns, index + 1)
        shown = fronts if keep_observed else [_alone(front) for front in fronts]
        plot_front(*shown, ax=ax, **options)
        ax.set_title(title.format(name), fontsize=10)
        ax.set_xlim(right=2 * fronts[0].problem.ref_point[0])
    figure.savefig(path, dpi=_DPI)


def _hypervolumes(settings: Sequence[Setting], runs: dict[str, Any], path: Path) -> None:
    """Hypervolume by trial as observed (lines), and evaluated again at each stop (marks)."""
    from matplotlib.figure import Figure

    # Two columns can be read at the width of a page; the panel after the last one has the legend
    # and the caption.
    columns = 2
    rows = -(-(len(settings) + 1) // columns)
    figure = Figure(figsize=(4.6 * columns, 3.9 * rows), layout="constrained")
    handles: dict[str, Any] = {}
    for index, setting in enumerate(settings):
        ax = figure.add_subplot(rows, columns, index + 1)
        heights: list[float] = []
        for method, by_seed in runs[setting.label].items():
            heights += _draw_method(ax, setting, method, list(by_seed.values()))
        margin = 0.06 * (max(heights) - min(heights))
        ax.set_ylim(min(heights) - margin, max(heights) + margin)
        ax.set_title(setting.label)
        ax.set_xlabel("trials")
        ax.set_ylabel("hypervolume to (ε, error) = (10, 1)")
        ax.grid(True, alpha=0.3)
        found, names = ax.get_legend_handles_labels()
        handles = dict(zip(names, found, strict=True)) | handles
    ax = figure.add_subplot(rows, columns, len(settings) + 1)
    ax.axis("off")
    ax.legend(handles.values(), handles, loc="upper center", fontsize=11, frameon=False)
    caption = (
        "Lines: hypervolume as observed, mean over seeds, range shaded. Marks: the front of each "
        "seed evaluated again with fresh seeds. Dashes: grids, evaluated again. Do not publish "
        "such a figure of records of your own: it is computed from them without noise."
    )
    ax.text(0.5, 0.0, textwrap.fill(caption, 42), ha="center", va="bottom", fontsize=11)
    figure.savefig(path, dpi=_DPI)


def _draw_method(
    ax: Axes, setting: Setting, method: str, by_seed: list[dict[str, Any]]
) -> list[float]:
    """Draw one method's studies; returns the heights that must be seen."""
    color, label = _COLORS[method], method
    again = [[at["evaluated_again"]["linear"] for at in run["at"].values()] for run in by_seed]
    if method.startswith("grid"):
        ax.axhline(again[0][-1], color=color, linestyle="--", linewidth=1, label=label)
        return again[0]
    curves = np.array([run["observed_by_trial"] for run in by_seed])
    counts = np.arange(1, curves.shape[1] + 1)
    ax.plot(counts, curves.mean(axis=0), color=color, label=label)
    low, high = curves.min(axis=0), curves.max(axis=0)
    ax.fill_between(counts, low, high, color=color, alpha=0.15, linewidth=0)
    for run, values in zip(by_seed, again, strict=True):
        stops = [int(stop) for stop in run["at"]]
        ax.plot(stops, values, color=color, marker="o", markersize=4, linestyle="none")
    # The climb before models are consulted says nothing about the method.
    return [*itertools.chain(*again), float(low[setting.initial - 1]), float(high[-1])]


NAME = "dpareto_paper"


#: Table 2 as printed: DPareto's mean lead over 19 disjoint draws of 256 of 5,000 random points, and
#: the ends of its 95% interval.
TABLE_2 = {
    "LogReg+SGD": (0.158, 0.053, 0.264),
    "LogReg+ADAM": (0.439, 0.272, 0.607),
    "SVM+SGD": (0.282, 0.161, 0.402),
}


Runs = dict[str, dict[str, dict[str, dict[str, Any]]]]


def jobs(settings: Sequence[Setting]) -> list[tuple[Setting, str, int]]:
    """All studies, one seed after the other, so that an interrupted run is balanced."""
    every = [
        (setting, method, seed)
        for setting in settings
        for method in setting.methods
        for seed in range(1 if method.startswith("grid") else setting.seeds)
    ]
    return sorted(every, key=lambda job: (job[2], job[1].startswith("grid")))


def earlier_runs(settings: Sequence[Setting], name: str) -> Runs:
    """What the results file has already of these settings, where nothing of them has changed."""
    path = results_folder() / f"{name}.json"
    record = json.loads(path.read_text()) if path.exists() else {"settings": {}}
    now = json.loads(json.dumps(described(settings)))
    known = [label for label, setting in now.items() if record["settings"].get(label) == setting]
    return {label: record["runs"][label] for label in known if label in record["runs"]}


def described(settings: Sequence[Setting]) -> dict[str, Any]:
    return {
        setting.label: {k: v for k, v in asdict(setting).items() if k != "task"}
        for setting in settings
    }


def of_seeds(runs: dict[str, dict[str, Any]], when: str, kind: str, scale: str) -> list[float]:
    """One hypervolume for each seed: at the ``"first"`` or the ``"last"`` stop of the study."""
    stops = [list(run["at"].values()) for run in runs.values()]
    return [at[0 if when == "first" else -1][kind][scale] for at in stops]


def over_seeds(values: Sequence[float]) -> Interval | float:
    """Mean and interval; a single seed has no interval."""
    return mean_interval(values) if len(values) > 1 else values[0]


def summarized(setting: Setting, runs: dict[str, dict[str, dict[str, Any]]]) -> dict[str, Any]:
    summary: dict[str, Any] = {}
    for method, by_seed in runs.items():
        first = next(iter(by_seed.values()))
        one: dict[str, Any] = {"trials": first["trials"], "seeds": len(by_seed)}
        for scale in ("linear", "log"):
            again = of_seeds(by_seed, "last", "evaluated_again", scale)
            observed = of_seeds(by_seed, "last", "observed", scale)
            one[scale] = {
                "evaluated_again": over_seeds(again),
                "observed": over_seeds(observed),
                "luck": over_seeds([o - a for o, a in zip(observed, again, strict=True)]),
            }
            if len(first["at"]) > 1:
                start = of_seeds(by_seed, "first", "evaluated_again", scale)
                one[scale]["gain_over_initial"] = over_seeds(
                    [a - s for s, a in zip(start, again, strict=True)]
                )
            if method != "DPareto" and not method.startswith("grid"):
                common = [seed for seed in by_seed if seed in runs["DPareto"]]
                pair = [
                    of_seeds({s: runs[name][s] for s in common}, "last", "evaluated_again", scale)
                    for name in ("DPareto", method)
                ]
                one[scale]["dpareto_ahead_by"] = over_seeds(
                    [ours - theirs for ours, theirs in zip(*pair, strict=True)]
                )
        if first["trials"] > setting.trials:
            one["observed_after_as_many_trials_as_dpareto"] = first["observed_by_trial"][
                setting.trials - 1
            ]
        timed = [r for r in by_seed.values() if r["processor_seconds"]["complete"]]
        for part in ("training", "loop"):
            spent = [r["processor_seconds"][part] / r["trials"] for r in timed]
            one[f"{part}_seconds_per_trial"] = sum(spent) / len(spent) if spent else None
        summary[method] = one
    return summary


def report(settings: Sequence[Setting], runs: Runs, wall: float, name: str) -> dict[str, Any]:
    """Everything that is known so far, on disk."""
    summary = {
        setting.label: summarized(setting, runs[setting.label])
        for setting in settings
        if "DPareto" in runs.get(setting.label, {})
    }
    everything = [
        run["processor_seconds"]
        for methods in runs.values()
        for by_seed in methods.values()
        for run in by_seed.values()
    ]
    totals = {
        part: sum(seconds[part] for seconds in everything)
        for part in ("training", "loop", "evaluating_again")
    }
    save_results(
        name,
        {
            "settings": described(settings),
            "paper": {"table_2": TABLE_2},
            "summary": summary,
            "processor_seconds": totals,
            "wall_seconds_of_last_call": wall,
            "runs": runs,
        },
    )
    return summary


def table(summary: dict[str, Any]) -> str:
    """Hypervolumes as in the paper's Table 2, with intervals, evaluated again and as observed."""
    lines = [
        f"{'setting':12} {'method':15} {'trials':>6} {'seeds':>5} "
        f"{'evaluated again':>26} {'observed':>26} {'DPareto ahead by':>26}"
    ]
    for label, methods in summary.items():
        for method, one in methods.items():
            values = one["linear"]
            shown = []
            for key in ("evaluated_again", "observed", "dpareto_ahead_by"):
                value = values.get(key, "")
                shown.append(f"{value:.4g}" if isinstance(value, float) else str(value))
            lines.append(
                f"{label:12} {method:15} {one['trials']:6} {one['seeds']:5} "
                + " ".join(f"{text:>26}" for text in shown)
            )
    return "\n".join(lines)


#: Learning rates of studies, and of runs that were stored before they said so.
_STUDIED = (5e-4, 5e-2)


def table_dpareto_full() -> str:
    full = stored("dpareto_paper_full")
    rows = []
    for setting, methods in full["summary"].items():
        for method, entry in methods.items():
            cells = [entry["linear"]["observed"], entry["linear"]["evaluated_again"]]
            cells.append(entry["log"]["evaluated_again"])
            run = full["runs"][setting][method]["0"]
            low, high = run.get("learning_rate", _STUDIED)
            rate = f"{low:g} to {high:g}"
            numbers = (f"{v:.3f}" for v in cells)
            rows.append([setting, method, rate, str(entry["trials"]), *numbers])
    head = [
        "setting",
        "method",
        "learning rates",
        "trials",
        "observed",
        "trained again",
        "in ln(ε/0.05), trained again",
    ]
    return markdown(head, rows)


def main() -> None:
    parser = BenchmarkParser(NAME, __doc__, minutes=20)
    parser.add_argument("--full", action="store_true", help="the paper's sizes")
    parser.add_argument("--settings", nargs="*", choices=[s.label for s in FULL], help="only these")
    parser.add_argument(
        "--draw", action="store_true", help="only draw hypervolumes, from the stored results"
    )
    parser.add_argument("--minutes", type=float, default=math.inf, help="stop, to go on later")
    parser.add_argument(
        "--studies",
        type=Path,
        default=Path.home() / ".cache" / "botorch_dp" / NAME,
        help="folder of the studies; they hold measured utilities and are sensitive",
    )
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore", module="botorch|linear_operator|gpytorch")
    every = FULL if arguments.full else REDUCED
    settings = [s for s in every if not arguments.settings or s.label in arguments.settings]
    size = "_full" if arguments.full else ""
    name = NAME + size
    if arguments.draw:
        runs = earlier_runs(every, name)
        shown = [setting for setting in settings if setting.label in runs]
        _hypervolumes(shown, runs, results_folder() / f"dpareto_hypervolume{size}.png")
        return
    if arguments.full:
        hours = expected_hours(settings)
        each = ", ".join(f"{label} {value:.1f}" for label, value in hours.items())
        print(f"About {sum(hours.values()):.1f} core-hours here ({each}).", flush=True)
    folder = arguments.studies / "full" if arguments.full else arguments.studies
    folder.mkdir(parents=True, exist_ok=True)
    runs = earlier_runs(every, name)
    start = time.perf_counter()
    deadline = time.monotonic() + 60 * arguments.minutes
    for setting, method, seed in tqdm(jobs(settings), unit="study"):
        known = runs.get(setting.label, {}).get(method, {})
        if str(seed) not in known and time.monotonic() < deadline:
            done = run_study(setting, method, seed, folder, deadline)
            if done is not None:
                runs.setdefault(setting.label, {}).setdefault(method, {})[str(seed)] = done
                report(every, runs, time.perf_counter() - start, name)
    if not runs:
        print(f"No study has ended yet; what was trained is in {folder}. Run again to go on.")
        return
    print(table(report(every, runs, time.perf_counter() - start, name)))
    draw(settings, runs, folder, results_folder(), size)


if __name__ == "__main__":
    main()
