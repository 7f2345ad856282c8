"""How close DPareto comes to fronts that are known exactly, against random and grid search.

Two problems whose expected error can be enumerated: the sparse vector technique, and logistic
regression with noise on its weights (given the weights, the probability that a test record is
classified correctly has a closed form). Methods choose their fronts from noisy trials; fronts are
then *evaluated again*, here by the exact errors of the chosen configs, so that luck earns nothing.
All methods see the same seeds, and differences are paired over them.

Run with ``OMP_NUM_THREADS=1 python -m benchmarks.pareto_quality``; ``--full`` adds methods. It
keeps finished studies, so it can be interrupted and run again to go on. With
``BOTORCH_DP_DATA`` set, the logistic regression is on Adult, otherwise on the bundled data set.
"""

from __future__ import annotations

import json
import math
import os
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from botorch.utils.multi_objective.pareto import is_non_dominated
from torch import Tensor
from tqdm import tqdm

from benchmarks.common import (
    BenchmarkParser,
    mean_interval,
    results_folder,
    save_results,
)
from benchmarks.sparse_vector_front import exact_front, expected_error
from botorch_dp import datasets
from botorch_dp._files import atomic_write
from botorch_dp.pareto import (
    Batched,
    DPareto,
    Integer,
    PrivacyUtilityProblem,
    Real,
    SearchSpace,
    TrainingPromise,
)
from botorch_dp.pareto.front import dominated_volume
from botorch_dp.privacy import gaussian_epsilon
from botorch_dp.space import Config
from botorch_dp.tasks import sparse_vector
from botorch_dp.tasks.learning import OUTPUT_DELTA
from botorch_dp.training import OutputPerturbedLogisticRegression

INITIAL, TRIALS = 16, 80
#: Label -> options of the study and how many times ``TRIALS`` it may train.
METHODS: dict[str, tuple[dict[str, Any], int]] = {
    "ehvi": ({"acquisition": "ehvi"}, 1),
    "ehvi in log epsilon": ({"acquisition": "ehvi", "epsilon_scale": "log"}, 1),
    "random": ({"acquisition": "random"}, 1),
    "random, 4x": ({"acquisition": "random"}, 4),
    "grid": ({"acquisition": "grid", "grid_levels": 9}, 1),
    "grid, 4x": ({"acquisition": "grid", "grid_levels": 18}, 4),
    "ehvi, gp epsilon": ({"acquisition": "ehvi", "privacy_model": "gp"}, 1),
    "hvpoi, gp epsilon (the paper's)": ({"acquisition": "hvpoi", "privacy_model": "gp"}, 1),
}
MORE_METHODS: dict[str, tuple[dict[str, Any], int]] = {
    "log_hvpoi": ({"acquisition": "log_hvpoi"}, 1),
    "qlogehvi": ({"acquisition": "qlogehvi"}, 1),
}
#: What the others are compared with, by the scale in which hypervolume is measured.
REFERENCES = {"linear": "ehvi", "log": "ehvi in log epsilon"}
#: Their fronts are drawn.
DRAWN = ("ehvi", "ehvi in log epsilon", "random")


@dataclass(frozen=True)
class KnownProblem:
    """A problem with the expected error of each config and the front these give."""

    problem: PrivacyUtilityProblem
    expected_error: Callable[[Config], float]
    front: Tensor


def sparse_vector_problem() -> KnownProblem:
    problem = sparse_vector()

    def error(config: Config) -> float:
        return float(expected_error(config["max_positives"], np.array([config["noise"]]))[0])

    return KnownProblem(problem, error, exact_front(problem))


class TabulatedRegression:
    """Output-perturbed logistic regression, trained beforehand for each regularization.

    Regularization has 65 levels, so that utilities are cheap and can be enumerated; noise, test
    records and epsilon are those of the real thing.
    """

    levels, permutations = 65, 3

    def __init__(self, data: datasets.TrainTest) -> None:
        self.trainer = OutputPerturbedLogisticRegression(data, delta=OUTPUT_DELTA)
        strengths = np.repeat(10.0 ** (np.arange(self.levels) / 16 - 4), self.permutations)
        seeds = list(range(self.permutations)) * self.levels
        models = self.trainer.fit_many([(s, 1e-25) for s in strengths], seeds=seeds)
        weights = torch.cat([model.model.weight for model in models]).double()
        self.weights = weights.reshape(self.levels, self.permutations, -1)
        X = self.trainer.scaled(data.test_X).double()
        self.margins = X * torch.where(data.test_Y > 0, 1.0, -1.0).double().unsqueeze(-1)

        # Epsilon depends on the ratio of sensitivity to noise alone.
        self.ratios = np.geomspace(1e-6, 1e2, 6000)

    @cached_property
    def epsilons(self) -> list[float]:
        return [gaussian_epsilon(ratio, OUTPUT_DELTA) for ratio in self.ratios]

    def epsilon(self, config: Config) -> float:
        return gaussian_epsilon(self.ratio(config), OUTPUT_DELTA)

    def epsilon_bounds(self, configs: list[Config]) -> list[float]:
        """Epsilons of the next larger ratio in the table, up to .3% off."""
        places = np.searchsorted(self.ratios, [self.ratio(config) for config in configs])
        return [self.epsilons[place] for place in places]

    def ratio(self, config: Config) -> float:
        strength = 10.0 ** (config["regularization_level"] / 16 - 4)
        return self.trainer.sensitivity(regularization=strength) / config["noise_std"]

    def utility(self, config: Config, seed: int) -> float:
        generator = np.random.default_rng(seed)
        weights = self.weights[config["regularization_level"]]
        chosen = weights[generator.integers(self.permutations)]
        noise = torch.from_numpy(generator.standard_normal(len(chosen)))
        return float((self.margins @ (chosen + config["noise_std"] * noise) > 0).double().mean())

    def expected_error(self, config: Config) -> float:
        return float(self.expected_errors(config["regularization_level"], [config["noise_std"]])[0])

    def expected_errors(self, level: int, noise_stds: Any) -> Tensor:
        """``P(margin <= 0)``, averaged over test records and permutations; one for each noise."""
        scores = self.weights[level] @ self.margins.T / self.margins.norm(dim=-1)
        stds = torch.as_tensor(noise_stds, dtype=torch.double)
        return torch.special.ndtr(-scores / stds.reshape(-1, 1, 1)).mean(dim=(1, 2))


def regression_problem() -> KnownProblem:
    adult = bool(os.environ.get("BOTORCH_DP_DATA"))
    table = TabulatedRegression(datasets.adult() if adult else datasets.breast_cancer())
    problem = PrivacyUtilityProblem(
        SearchSpace(
            regularization_level=Integer(0, table.levels - 1),
            noise_std=Real(0.1, 10.0, log=True),
        ),
        privacy=table.epsilon,
        utility=table.utility,
        batched=Batched(epsilons=table.epsilon_bounds),
        replicates=3,
        promise=TrainingPromise(OUTPUT_DELTA),
        name=f"output-perturbed logistic regression on {'adult' if adult else 'breast_cancer'}",
    )
    noise_stds = np.geomspace(0.1, 10.0, 120)
    points = []
    for level in range(table.levels):
        configs = [{"regularization_level": level, "noise_std": std} for std in noise_stds]
        epsilons = torch.tensor([table.epsilon(config) for config in configs], dtype=torch.double)
        points.append(torch.stack([epsilons, table.expected_errors(level, noise_stds)], dim=-1))
    everything = torch.cat(points)
    front = everything[is_non_dominated(-everything, deduplicate=True)]
    return KnownProblem(problem, table.expected_error, front[front[:, 0].argsort()])


def volumes(points: Tensor, ref_point: tuple[float, float]) -> dict[str, float]:
    """Hypervolume in epsilon and in its logarithm, down to a thousandth of the reference."""
    logs = torch.stack([points[:, 0].clamp_min(1e-3 * ref_point[0]).log(), points[:, 1]], dim=-1)
    log_ref = (math.log(ref_point[0]), ref_point[1])
    return {
        "linear": dominated_volume(points, ref_point),
        "log": dominated_volume(logs, log_ref),
    }


def run_method(known: KnownProblem, method: str, seed: int) -> dict[str, Any]:
    options, multiple = {**METHODS, **MORE_METHODS}[method]
    study = DPareto(known.problem, seed=seed, **options)
    start = time.process_time()
    front = study.run(TRIALS * multiple, initial=INITIAL)
    seconds = time.process_time() - start
    again = torch.tensor(
        [(trial.epsilon, known.expected_error(dict(trial.config))) for trial in front.front_trials],
        dtype=torch.double,
    )
    exact = volumes(known.front, known.problem.ref_point)
    evaluated = volumes(again, known.problem.ref_point)
    observed = volumes(front.points, known.problem.ref_point)
    return {
        "seconds": seconds,
        "evaluated_again": evaluated,
        "observed": observed,
        "gap": {scale: exact[scale] - evaluated[scale] for scale in exact},
        "luck": {scale: observed[scale] - evaluated[scale] for scale in exact},
        "points": again.tolist(),
    }


def summarize(runs: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    summary: dict[str, Any] = {}
    for method, results in runs.items():
        summary[method] = {
            "trials": TRIALS * {**METHODS, **MORE_METHODS}[method][1],
            "seconds_per_study": mean_interval([one["seconds"] for one in results]),
        }
        for scale, reference in REFERENCES.items():
            gaps = [one["gap"][scale] for one in results]
            ahead = [
                other["gap"][scale] - one["gap"][scale]
                for one, other in zip(runs[reference], results, strict=True)
            ]
            summary[method][scale] = {
                "gap_to_exact_front": mean_interval(gaps),
                "luck_in_observed_front": mean_interval([one["luck"][scale] for one in results]),
                "reference_ahead_by": mean_interval(ahead),
                "reference_wins": sum(value > 0 for value in ahead),
            }
    return summary


def draw(results: dict[str, Any], path: Path, seeds: int) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(
        len(results),
        3,
        figsize=(14, 4.2 * len(results)),
        squeeze=False,
        width_ratios=[1.3, 1, 1],
        sharey=False,
    )
    for row, (name, result) in zip(axes, results.items(), strict=True):
        ref_epsilon, _ = result["ref_point"]
        exact = result["exact_front"]
        row[0].step(exact[:, 0], exact[:, 1], where="post", color="black", label="exact front")
        for method in DRAWN:
            points = torch.tensor([p for one in result["runs"][method] for p in one["points"]])
            row[0].scatter(points[:, 0], points[:, 1], s=7, alpha=0.5, label=method)
        row[0].set(
            xscale="log",
            xlabel="ε of one training",
            ylabel="expected error",
            title=name,
            xlim=(1e-3 * ref_epsilon, ref_epsilon),
        )
        row[0].legend(fontsize=8)
        methods = list(result["summary"])
        for ax, scale in zip(row[1:], REFERENCES, strict=True):
            share = 100 / result["exact_volume"][scale]
            gaps = [result["summary"][method][scale]["gap_to_exact_front"] for method in methods]
            means = np.array([gap.mean for gap in gaps]) * share
            errors = np.array([[gap.mean - gap.low, gap.high - gap.mean] for gap in gaps]).T * share
            colors = [
                "tab:orange" if method in REFERENCES.values() else "tab:blue" for method in methods
            ]
            ax.barh(range(len(methods)), means, xerr=errors, color=colors)
            ax.invert_yaxis()
            axis = "ε" if scale == "linear" else "ln ε"
            ax.set_xlabel(f"missing hypervolume in ({axis}, error), %")
        row[1].set_yticks(range(len(methods)), methods, fontsize=8)
        row[2].set_yticks(range(len(methods)), [""] * len(methods))
    figure.text(
        0.5,
        0.008,
        f"Fronts of {TRIALS} noisy trials (4x: {4 * TRIALS}), evaluated again exactly; mean and "
        f"95% interval over {seeds} seeds. Sensitive: computed from the records without noise; "
        "ε is that of one training, not of publishing a front.",
        ha="center",
        fontsize=8,
    )
    figure.tight_layout(rect=(0, 0.025, 1, 1))
    figure.savefig(path, dpi=100)


def main() -> None:
    parser = BenchmarkParser("pareto_quality", __doc__, minutes=25)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--minutes", type=float, default=math.inf, help="stop, to go on later")
    parser.add_argument("--full", action="store_true", help="also the slower methods")
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore", module="botorch|linear_operator|gpytorch")
    methods = {**METHODS, **MORE_METHODS} if arguments.full else METHODS
    started = time.monotonic()
    # Finished studies of a benchmark that was interrupted.
    partial = results_folder() / "pareto_quality.partial.json"
    done: dict[str, Any] = json.loads(partial.read_text()) if partial.exists() else {}
    results: dict[str, Any] = {}
    for make in (sparse_vector_problem, regression_problem):
        known = make()
        name = known.problem.name
        runs: dict[str, list[dict[str, Any]]] = {method: [] for method in methods}
        for seed in tqdm(range(arguments.seeds), desc=name):
            for method in methods:
                key = f"{name}, {method}, {seed}"
                if key not in done:
                    done[key] = run_method(known, method, seed)
                    with atomic_write(partial) as file:
                        json.dump(done, file)
                runs[method].append(done[key])
            if time.monotonic() - started > 60 * arguments.minutes:
                print(f"{len(done)} studies are done; run again to go on.")
                raise SystemExit(3)
        results[name] = {
            "ref_point": known.problem.ref_point,
            "exact_front": known.front,
            "exact_volume": volumes(known.front, known.problem.ref_point),
            "summary": summarize(runs),
            "runs": runs,
        }
        print(known.problem.name, results[known.problem.name]["exact_volume"])
        for method, values in results[known.problem.name]["summary"].items():
            print(f"  {method} ({values['trials']} trials, {values['seconds_per_study']} s)")
            for scale in ("linear", "log"):
                one = values[scale]
                print(
                    f"    {scale}: gap {one['gap_to_exact_front']}, "
                    f"luck {one['luck_in_observed_front']}, "
                    f"reference ahead by {one['reference_ahead_by']} "
                    f"({one['reference_wins']} of {arguments.seeds})"
                )
    draw(results, results_folder() / "pareto_quality.png", arguments.seeds)
    for result in results.values():
        for of_method in result["runs"].values():
            for run in of_method:
                del run["points"]  # the figure has them
        del result["exact_front"]
    save_results(
        "pareto_quality",
        {"seeds": arguments.seeds, "initial": INITIAL, "trials": TRIALS, "problems": results},
    )
    partial.unlink()


if __name__ == "__main__":
    main()
