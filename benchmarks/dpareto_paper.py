"""Section 4 of the DPareto paper on this machine: fronts of linear models on Adult.

    OMP_NUM_THREADS=1 BOTORCH_DP_DATA=<folder> python -m benchmarks.dpareto_paper [--minutes 60]

DPareto against random sampling (from the paper's distributions) and grids of 3 and 4 values for
each parameter. A study chooses its front from noisy trials, so the best of them are partly luck:
fronts are *evaluated again* with fresh seeds, and what was observed first stands beside that. Sizes
are the paper's: 16 + 256 trials of 10 trainings, 1,500 random points as in figure 5, and grids
linear in the parameters; random points and grids have the learning rates of Table 4. Models are
trained by a compiled loop. The test of Table 2 is ``dpareto_lead``.

Studies are kept in a folder of their own, so that an interrupted run goes on where it was.
"""

from __future__ import annotations

import itertools
import math
import textwrap
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from benchmarks.common import BenchmarkParser, earlier, results_folder, save_results
from benchmarks.linear_training import FastTraining, Training
from botorch_dp import tasks
from botorch_dp.pareto import Batched, DPareto, ParetoFront, PrivacyUtilityProblem
from botorch_dp.pareto.front import dominated_volume
from botorch_dp.space import Config, Integer, Real, SearchSpace, ShiftedExponential

INITIAL, TRIALS, REPLICATES = 16, 272, 10
#: Label -> options of the study, and how many trials it takes.
METHODS: dict[str, tuple[dict[str, Any], int]] = {
    "DPareto": (
        {"acquisition": "ehvi", "privacy_model": "exact", "epsilon_scale": "linear"}, TRIALS,
    ),
    "random": ({"acquisition": "random"}, 1500),
    "DPareto, HVPoI": ({"acquisition": "hvpoi", "privacy_model": "gp"}, TRIALS),
    "grid of 3": ({"acquisition": "grid", "grid_levels": 3}, 243),
    "grid of 4": ({"acquisition": "grid", "grid_levels": 4}, 1024),
}  # fmt: skip
#: Learning rates of random points and grids; studies look from 5e-4 to 5e-2.
TABLE_4 = Real(1e-3, 0.1, log=True, distribution=ShiftedExponential(10.0))
#: Where the axis of ln(epsilon) begins: below it nothing is learnt.
SMALLEST = 0.05
#: Table 2 as printed: DPareto's mean lead over 19 disjoint draws of 256 of 5,000 random points, and
#: the ends of its 95% interval.
TABLE_2 = {
    "LogReg+SGD": (0.158, 0.053, 0.264),
    "LogReg+ADAM": (0.439, 0.272, 0.607),
    "SVM+SGD": (0.282, 0.161, 0.402),
}
SETTINGS: dict[str, Callable[..., PrivacyUtilityProblem]] = {
    "LogReg+SGD": tasks.adult_logistic_sgd,
    "LogReg+ADAM": tasks.adult_logistic_adam,
    "SVM+SGD": tasks.adult_svm_sgd,
}
NAME = "dpareto_paper_full"


class TimedOracle:
    """Utilities of trainings by the compiled loop, with the processor time that they take.

    Args:
        problem: Whose trainings they are.
        needed_epsilon: Configs beyond it are not trained but given utility 0: they cannot enter a
            hypervolume that ends there. Epsilon is exact, so nothing is guessed. (The study does
            not know, and counts them in what publishing its front costs.)
    """

    def __init__(self, problem: PrivacyUtilityProblem, needed_epsilon: float = math.inf) -> None:
        self.problem = problem
        oracles: Any = problem.oracle.__self__  # type: ignore[attr-defined]
        model, name, optimizer, *_ = oracles.trainer.args
        self.training = FastTraining.of(model, name, optimizer)
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


def prepared(label: str, method: str, replicates: int = REPLICATES) -> PrivacyUtilityProblem:
    """A problem in the paper's ranges, trained by the compiled loop.

    Random sampling draws epochs uniformly, as the paper does; the models of the others see their
    logarithm. Grids are equidistant in the parameters themselves.
    """
    problem = SETTINGS[label](replicates=replicates)
    parameters = dict(problem.space.parameters)
    parameters["epochs"] = Integer(1, 64, log=method != "random")
    batch_size, grid = parameters["batch_size"], method.startswith("grid")
    assert isinstance(batch_size, Integer)
    parameters["batch_size"] = replace(batch_size, low=8)
    if "DPareto" not in method:
        parameters["learning_rate"] = TABLE_4
    if grid:
        parameters = {name: replace(p, log=False) for name, p in parameters.items()}  # type: ignore
    # Products are for models, which neither random sampling nor grids have.
    products = problem.space.products if "DPareto" in method else ()
    oracle = TimedOracle(problem, problem.ref_point[0] if grid else math.inf)
    return PrivacyUtilityProblem(
        SearchSpace(**parameters, products=products),
        privacy=problem.privacy,
        batched=Batched(epsilons=problem.batched.epsilons, replicates=oracle),
        training=problem.training,
        replicates=replicates,
        name=f"{label}, {method}",
    )


def check_compiled_loop(label: str, seeds: Sequence[int] = range(16)) -> None:
    """The compiled loop must train as ``DPTrainer`` does: means within five standard errors."""
    problem = prepared(label, "random")
    oracle: Any = problem.oracle
    fast = oracle.training
    slow = Training.of(fast.model, fast.data, fast.optimizer)
    config = problem.space.sample(1, seed=0)[0] | {"epochs": 2, "batch_size": 512}
    found = np.array([list(each.utilities(config, seeds)) for each in (fast, slow)])
    gap, error = np.ptp(found.mean(axis=1)), math.sqrt(found.var(axis=1, ddof=1).sum() / len(seeds))
    if gap > 5 * error:
        raise RuntimeError(f"{label}: the compiled loop is {gap:.4f} off, with an error of {error}")


def evaluated_again(
    study: DPareto, front: ParetoFront, replicates: int = REPLICATES
) -> ParetoFront:
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


def run_study(label: str, method: str, folder: Path, deadline: float) -> dict[str, Any] | None:
    """Run one study, or what is missing of it, and evaluate its fronts again.

    The front is evaluated again after the initial trials and after all; no proposal sees that.
    None if the study has not come so far by the deadline, in seconds of ``time.monotonic``.
    """
    options, total = METHODS[method]
    stops = [total] if method.startswith("grid") else [INITIAL, total]
    file = f"{label}-{method}-0".replace(", ", "-").replace(" ", "-")
    result: dict[str, Any] = {"trials": total, "at": {}}
    problem = prepared(label, method)
    with DPareto(problem, storage=folder / f"{file}.sqlite", seed=0, **options) as study:
        rate: Any = problem.space.parameters["learning_rate"]
        result["learning_rate"] = [rate.low, rate.high]
        for stop in stops:
            while len(study.trials) < stop:
                if time.monotonic() > deadline:
                    return None
                study.run(len(study.trials) + 1, initial=INITIAL)
            front = _front_of(study, stop)
            again = evaluated_again(study, front)
            result["at"][str(stop)] = {
                "observed": volumes(front.points, problem.ref_point),
                "evaluated_again": volumes(again.points, problem.ref_point),
                "configs_on_front": len(front),
            }
        result["observed_by_trial"] = [
            round(v, 5) for v in study.front().hypervolume_by_trial().tolist()
        ]
    return result


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


COLORS = {
    "DPareto": "C0",
    "random": "C1",
    "DPareto, HVPoI": "C2",
    "grid of 3": "C3",
    "grid of 4": "C4",
}


def draw(runs: dict[str, dict[str, dict[str, Any]]]) -> None:
    """Hypervolume by trial as observed (lines), and evaluated again at each stop (marks)."""
    from matplotlib.figure import Figure

    # Two columns can be read at the width of a page; the panel after the last one has the legend
    # and the caption.
    rows = -(-(len(runs) + 1) // 2)
    figure = Figure(figsize=(9.2, 3.9 * rows), layout="constrained")
    handles: dict[str, Any] = {}
    for index, (label, methods) in enumerate(runs.items()):
        ax = figure.add_subplot(rows, 2, index + 1)
        heights: list[float] = []
        for method, run in methods.items():
            again = [at["evaluated_again"]["linear"] for at in run["at"].values()]
            heights += again
            if method.startswith("grid"):
                ax.axhline(again[-1], color=COLORS[method], ls="--", lw=1, label=method)
                continue
            curve = run["observed_by_trial"]
            ax.plot(range(1, len(curve) + 1), curve, color=COLORS[method], label=method)
            ax.plot([int(stop) for stop in run["at"]], again, "o", ms=4, color=COLORS[method])
            # The climb before models are consulted says nothing about the method.
            heights += [curve[INITIAL - 1], curve[-1]]
        margin = 0.06 * (max(heights) - min(heights))
        ax.set_ylim(min(heights) - margin, max(heights) + margin)
        ax.set(title=label, xlabel="trials", ylabel="hypervolume to (ε, error) = (10, 1)")
        ax.grid(True, alpha=0.3)
        found, names = ax.get_legend_handles_labels()
        handles = dict(zip(names, found, strict=True)) | handles
    ax = figure.add_subplot(rows, 2, len(runs) + 1)
    ax.axis("off")
    ax.legend(handles.values(), handles, loc="upper center", fontsize=11, frameon=False)
    caption = (
        "Lines: hypervolume as observed. Marks: the same front evaluated again with fresh seeds. "
        "Dashes: grids, evaluated again. Do not publish such a figure of records of your own: it "
        "is computed from them without noise."
    )
    ax.text(0.5, 0.0, textwrap.fill(caption, 42), ha="center", va="bottom", fontsize=11)
    figure.savefig(results_folder() / "dpareto_hypervolume_full.png", dpi=90)


def main() -> None:
    parser = BenchmarkParser("dpareto_paper", __doc__, minutes=60)
    parser.add_argument("--settings", nargs="*", choices=list(SETTINGS), default=list(SETTINGS))
    parser.add_argument("--methods", nargs="*", choices=list(METHODS), default=list(METHODS))
    parser.add_argument("--minutes", type=float, default=math.inf, help="stop, to go on later")
    parser.add_argument(
        "--studies",
        type=Path,
        default=Path.home() / ".cache" / "botorch_dp" / "dpareto_paper" / "full",
        help="folder of the studies; they hold measured utilities and are sensitive",
    )
    options = parser.parse_args()
    warnings.filterwarnings("ignore", module="botorch|linear_operator|gpytorch")
    options.studies.mkdir(parents=True, exist_ok=True)
    runs: dict[str, dict[str, dict[str, Any]]] = earlier(NAME).get("runs", {})
    deadline = time.monotonic() + 60 * options.minutes
    for label, method in tqdm(list(itertools.product(options.settings, options.methods))):
        if method in runs.get(label, {}) or time.monotonic() > deadline:
            continue
        if not runs.get(label):
            check_compiled_loop(label)
        if (done := run_study(label, method, options.studies, deadline)) is not None:
            runs.setdefault(label, {})[method] = done
            save_results(NAME, {"printed in table 2": TABLE_2, "runs": runs})
            print(label, method, list(done["at"].values())[-1])
    if runs:
        draw(runs)


if __name__ == "__main__":
    main()
