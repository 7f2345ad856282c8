"""The illustrations of DPareto: figures 1 to 4 of [Avent2020], for two problems of two parameters.

    OMP_NUM_THREADS=1 BOTORCH_DP_DATA=<folder> python -m benchmarks.dpareto_illustrations

For logistic regression with noise on its weights (Adult, or the bundled data without a folder) and
for the sparse vector technique: maps of both oracles, the front that is true, the models' means
after some trials proposed by HVPoI with both objectives modelled (the paper's way), and the map of
HVPoI that chooses the next one. True errors are enumerated, not simulated (``pareto_quality`` says
how).
"""

from __future__ import annotations

import time
import warnings
from typing import Any

import numpy as np
import torch
from botorch.utils.multi_objective.box_decompositions.non_dominated import (
    FastNondominatedPartitioning,
)

from benchmarks.common import BenchmarkParser, results_folder, save_results
from benchmarks.pareto_quality import KnownProblem, regression_problem, sparse_vector_problem
from botorch_dp.acquisition import HypervolumeProbabilityOfImprovement
from botorch_dp.pareto import DPareto
from botorch_dp.pareto.beliefs import objective_scales
from botorch_dp.pareto.front import dominated_volume
from botorch_dp.pareto.proposals import ProposalOptions, Search
from botorch_dp.space import Config, Integer, Real

LABELS = {
    "regularization_level": "regularization (level k: 10^(k/16 - 4))",
    "noise_std": "standard deviation of the noise",
    "noise": "total noise b",
    "max_positives": "stops after C positives",
}


def axis_values(parameter: Any, side: int) -> list[Any]:
    """Values along one axis of a map."""
    if isinstance(parameter, Integer):
        values = np.linspace(parameter.low, parameter.high, side).round().astype(int)
        return list(dict.fromkeys(values.tolist()))
    assert isinstance(parameter, Real)
    return np.geomspace(parameter.low, parameter.high, side).tolist()


def maps(known: KnownProblem, side: int, trials: int) -> dict[str, Any]:
    """Oracles, models and HVPoI on a grid; the study they were made with."""
    problem = known.problem
    (x_name, x_parameter), (y_name, y_parameter) = problem.space.parameters.items()
    xs, ys = axis_values(x_parameter, side), axis_values(y_parameter, side)
    grid: list[Config] = [{x_name: x, y_name: y} for y in ys for x in xs]
    epsilon = np.array([problem.epsilon(config) for config in grid])
    error = np.array([known.expected_error(config) for config in grid])
    start = time.perf_counter()
    options = ProposalOptions(acquisition="hvpoi", privacy_model="gp")
    with DPareto(problem, acquisition="hvpoi", privacy_model="gp", seed=0) as study:
        study.run(trials)
        done = study.trials
    search = Search(problem, seed=0, options=options)
    beliefs = search.beliefs(done)
    candidates = search.known.candidates(grid)
    scales = objective_scales(problem, "linear")
    ref_point = torch.tensor([scale.ref_model for scale in scales], dtype=torch.double)
    seen = beliefs.incumbent_means[beliefs.incumbents.possible]
    hvpoi = HypervolumeProbabilityOfImprovement(
        beliefs.model, ref_point, FastNondominatedPartitioning(ref_point, Y=seen)
    )
    with torch.no_grad():
        mean, _ = beliefs.predict(candidates)
        score = torch.cat([hvpoi(part.unsqueeze(-2)) for part in candidates.codes.split(512)])
    complete = [trial for trial in done if trial.state == "complete"]
    found = torch.tensor(
        [[problem.epsilon(trial.config), known.expected_error(trial.config)] for trial in complete],
        dtype=torch.double,
    )
    ref = problem.ref_point
    return {
        "problem": problem.name,
        "x": (x_name, xs),
        "y": (y_name, ys),
        "epsilon": epsilon,
        "error": error,
        # The models are of minus the logarithm of epsilon and minus the logit of the error.
        "model of epsilon": mean[:, 0].neg().exp().numpy(),
        "model of the error": mean[:, 1].neg().sigmoid().numpy(),
        "HVPoI": score.numpy(),
        "trials": [(trial.config[x_name], trial.config[y_name]) for trial in complete],
        "found": found,
        "front": known.front,
        "hypervolume found": float(dominated_volume(found, ref)),
        "hypervolume of the true front": float(dominated_volume(known.front, ref)),
        "reference": ref,
        "minutes": (time.perf_counter() - start) / 60,
    }


def draw(found: dict[str, Any], path: Any) -> None:
    """Oracles above, models below; the front and HVPoI at the right."""
    from matplotlib.figure import Figure

    from botorch_dp.plots import save_figure

    (x_name, xs), (y_name, ys) = found["x"], found["y"]
    figure = Figure(figsize=(14, 8.2), layout="constrained")
    axes = figure.subplots(2, 3)
    ref_epsilon = found["reference"][0]
    log_epsilon = np.log10(np.clip(found["epsilon"], 1e-2 * ref_epsilon, 10 * ref_epsilon))
    model_epsilon = np.log10(
        np.clip(found["model of epsilon"], 1e-2 * ref_epsilon, 10 * ref_epsilon)
    )
    ranges = {
        "epsilon": (log_epsilon.min(), log_epsilon.max()),
        "error": (found["error"].min(), found["error"].max()),
    }
    panels: list[tuple[Any, str, Any, tuple[float, float] | None]] = [
        (axes[0, 0], "privacy oracle: log10 of epsilon", log_epsilon, ranges["epsilon"]),
        (axes[0, 1], "utility oracle: expected error", found["error"], ranges["error"]),
        (axes[1, 0], "model's mean: log10 of epsilon", model_epsilon, ranges["epsilon"]),
        (axes[1, 1], "model's mean: error", found["model of the error"], ranges["error"]),
        (axes[1, 2], "HVPoI of the next trial", found["HVPoI"], None),
    ]
    at = np.array(found["trials"], dtype=float)
    for axis, title, values, limits in panels:
        low, high = limits or (values.min(), values.max())
        shown = axis.pcolormesh(
            xs, ys, values.reshape(len(ys), len(xs)), vmin=low, vmax=high, shading="nearest"
        )
        figure.colorbar(shown, ax=axis)
        if axis not in axes[0]:
            axis.plot(at[:, 0], at[:, 1], "r.", ms=5, label="trials")
        axis.set(title=title, xlabel=LABELS[x_name], ylabel=LABELS[y_name])
        axis.set_xscale("log" if isinstance(xs[0], float) else "linear")
        axis.set_yscale("log" if isinstance(ys[0], float) else "linear")
    front = axes[0, 2]
    front.plot(*found["front"].T, "k-", label="true front")
    front.plot(*found["found"].T, "r.", label=f"{len(at)} trials of DPareto, evaluated exactly")
    front.set(xlabel="epsilon", ylabel="error", title="true front", xscale="log")
    front.set_xlim(1e-2 * ref_epsilon, 10 * ref_epsilon)
    front.legend(frameon=False, fontsize=8)
    figure.suptitle(
        f"{found['problem']}: figures 1 to 4 of Avent et al. Simulated trainings: publishing these "
        "pictures has no guarantee.",
        fontsize=10,
    )
    save_figure(figure, path)


def main() -> None:
    parser = BenchmarkParser("dpareto_illustrations", __doc__, minutes=1)
    parser.add_argument("--side", type=int, default=60, help="points along each side of a map")
    parser.add_argument("--trials", type=int, default=32)
    options = parser.parse_args()
    torch.set_num_threads(1)
    results = {}
    problems = {"logistic": regression_problem, "sparse_vector": sparse_vector_problem}
    for name, make in problems.items():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a study whose trainings are simulated
            found = maps(make(), options.side, options.trials)
        draw(found, results_folder() / f"dpareto_maps_{name}.png")
        kept = (
            "problem",
            "hypervolume found",
            "hypervolume of the true front",
            "reference",
            "minutes",
        )
        results[name] = {key: found[key] for key in kept} | {"trials": options.trials}
        print(results[name])
    save_results("dpareto_illustrations", results)


if __name__ == "__main__":
    main()
