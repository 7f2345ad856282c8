"""How close does DPareto come to fronts that are known exactly?

    OMP_NUM_THREADS=1 python -m benchmarks.pareto_quality [--part methods maps] [--seeds N]

Two problems whose expected error can be enumerated: the sparse vector technique, and logistic
regression with noise on its weights (given the weights, the probability that a test record is
classified correctly has a closed form). Methods choose their fronts from noisy trials; fronts are
then *evaluated again*, here by the exact errors of the chosen configs, so that luck earns
nothing. All methods see the same seeds, and differences are paired over them. With
``BOTORCH_DP_DATA`` set, the logistic regression is on Adult, otherwise on the bundled data set.

* ``methods``: DPareto against random and grid search.
* ``maps``: the illustrations of DPareto, figures 1 to 4 of [Avent2020]: maps of both functions, the
  front that is true, the models' means after some trials proposed by HVPoI with both objectives
  modelled (the paper's way), and the map of HVPoI that chooses the next one.

``methods`` keeps what is finished, so that it goes on where it was interrupted.
"""

from __future__ import annotations

import json
import math
import os
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from botorch.utils.multi_objective.box_decompositions.non_dominated import (
    FastNondominatedPartitioning,
)
from botorch.utils.multi_objective.pareto import is_non_dominated
from numpy.typing import NDArray
from scipy.interpolate import PchipInterpolator
from scipy.special import gammaln
from scipy.stats import hypergeom
from torch import Tensor
from tqdm import tqdm

from benchmarks.common import BenchmarkParser, Finished, mean_interval, results_folder, save_results
from benchmarks.tables import fixed, markdown, stored
from botorch_dp import datasets
from botorch_dp.acquisition import HypervolumeProbabilityOfImprovement
from botorch_dp.pareto import Batched, DPareto, PrivacyUtilityProblem, TrainingPrivacy
from botorch_dp.pareto.front import dominated_volume
from botorch_dp.pareto.proposals import Proposer
from botorch_dp.pareto.surrogates import objective_scales
from botorch_dp.privacy import gaussian_epsilon
from botorch_dp.space import Config, Integer, Real, SearchSpace
from botorch_dp.tasks import sparse_vector
from botorch_dp.tasks.queries import THRESHOLD, f1_score, noise_scales, sparse_vector_epsilon
from botorch_dp.training import OutputPerturbedLogisticRegression

#: Noises at which the exact front computes errors.
_KNOTS = 96
#: Of output-perturbed logistic regression, as in the paper.
OUTPUT_DELTA = 1e-6


def expected_error(
    max_positives: int,
    noises: NDArray[np.float64],
    *,
    num_queries: int = 100,
    num_positives: int = 10,
) -> NDArray[np.float64]:
    r"""The error ``1 - E[F1]`` for each total noise scale, ``k``, up to quadrature (1e-5).

    Given the threshold's noise, every true and every false query is answered with yes
    independently, with one probability for each kind. If A true and B false ones are, they come in
    random order, and the first ``max_positives`` are given. The expectation over that order is
    hypergeometric, that over (A, B) is binomial, and that over the threshold is an integral.
    """
    C, P, N = max_positives, num_positives, num_queries - num_positives
    score = _expected_f1(C, P, N)  # (P + 1) x (N + 1)
    threshold_scales, query_scales = noise_scales(np.asarray(noises, dtype=float), C)
    rho, weights = laplace_quadrature(threshold_scales)  # k x nodes, nodes
    tail = rho + THRESHOLD
    yes_true = laplace_survival(tail - 1, query_scales[:, None])
    yes_false = laplace_survival(tail, query_scales[:, None])
    true_counts = binomial(P, yes_true)
    false_counts = binomial(N, yes_false)
    f1 = np.einsum("kna,ab,knb->kn", true_counts, score, false_counts, optimize=True)
    return 1 - (f1 * weights).sum(axis=-1)


def exact_front(
    problem: PrivacyUtilityProblem,
    num_noises: int = 2000,
    *,
    num_queries: int = 100,
    num_positives: int = 10,
) -> Tensor:
    """The front over all ``max_positives`` and a grid of noises, ``k x 2`` (epsilon, error).

    Errors are computed at some noises and interpolated monotonically between them; epsilons are
    exact.
    """
    noise_range, positives = problem.space.parameters.values()
    assert isinstance(noise_range, Real) and isinstance(positives, Integer)
    noises = np.geomspace(noise_range.low, noise_range.high, num_noises)
    knots = np.geomspace(noise_range.low, noise_range.high, _KNOTS)
    columns = []
    for count in range(int(positives.low), int(positives.high) + 1):
        at_knots = expected_error(
            count, knots, num_queries=num_queries, num_positives=num_positives
        )
        errors = PchipInterpolator(np.log(knots), at_knots)
        epsilons = [sparse_vector_epsilon({"noise": b, "max_positives": count}) for b in noises]
        columns.append(np.stack([epsilons, errors(np.log(noises))], axis=-1))
    points = np.concatenate(columns)
    points = points[np.lexsort((points[:, 1], points[:, 0]))]
    # By increasing epsilon, only what is better than everything before it.
    best_before = np.minimum.accumulate(np.append(np.inf, points[:-1, 1]))
    return torch.from_numpy(points[points[:, 1] < best_before])


def _expected_f1(max_positives: int, num_true: int, num_false: int) -> NDArray[np.float64]:
    """``E[F1]`` if A true and B false queries would be answered with yes, for all A and B."""
    A = np.arange(num_true + 1)[:, None, None]
    B = np.arange(num_false + 1)[None, :, None]
    hits = np.arange(num_true + 1)[None, None, :]
    given = np.minimum(A + B, max_positives)
    # Nobody answers with yes: no draw, and a score of 0 (scipy has no such distribution).
    chances = hypergeom.pmf(hits, np.maximum(A + B, 1), A, np.maximum(given, 1))
    return (chances * f1_score(hits, given, num_true)).sum(axis=-1)


def binomial(trials: int, chances: NDArray[np.float64]) -> NDArray[np.float64]:
    """Probabilities of 0 to ``trials`` successes, ``... x (trials + 1)``.

    SciPy's own takes several times as long: it does not share logarithms among the counts.
    """
    # Where a chance is 0 or 1 but for rounding, so are the probabilities.
    p = chances.clip(np.finfo(float).tiny, 1 - np.finfo(float).epsneg)[..., None]
    k = np.arange(trials + 1)
    ways = gammaln(trials + 1) - gammaln(k + 1) - gammaln(trials - k + 1)
    return np.exp(ways + k * np.log(p) + (trials - k) * np.log1p(-p))


def laplace_survival(x: NDArray[np.float64], scale: NDArray[np.float64]) -> NDArray[np.float64]:
    """``P(Lap(scale) >= x)``."""
    half = 0.5 * np.exp(-np.abs(x) / scale)
    return np.where(x > 0, half, 1 - half)


def laplace_quadrature(
    scales: NDArray[np.float64], nodes: int = 24
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Nodes and weights for expectations over ``Lap(scale)``, split where survival has kinks.

    Returns:
        ``k x n`` nodes and ``k x n`` weights for ``k`` scales.
    """
    kinks = np.array([-THRESHOLD, 0.0, 1 - THRESHOLD])
    inner = 1 - laplace_survival(kinks, scales[:, None])
    edges = np.concatenate([np.zeros((len(scales), 1)), inner, np.ones((len(scales), 1))], axis=1)
    unit, unit_weights = np.polynomial.legendre.leggauss(nodes)
    middle, half = (edges[:, 1:] + edges[:, :-1]) / 2, (edges[:, 1:] - edges[:, :-1]) / 2
    levels = (middle[..., None] + half[..., None] * unit).reshape(len(scales), -1)
    weights = (half[..., None] * unit_weights).reshape(len(scales), -1)
    # Intervals beyond the smallest double have no weight; any node will do there.
    tail = np.minimum(levels, 1 - levels).clip(min=np.finfo(float).tiny)
    return -np.sign(levels - 0.5) * np.log(2 * tail) * scales[:, None], weights


INITIAL, TRIALS = 16, 80
#: Label -> options of the study and how many times ``TRIALS`` it may train.
METHODS: dict[str, tuple[dict[str, Any], int]] = {
    "ehvi": ({"acquisition": "ehvi", "epsilon_scale": "linear"}, 1),
    "ehvi in log epsilon": ({"acquisition": "ehvi", "epsilon_scale": "log"}, 1),
    "random": ({"acquisition": "random"}, 1),
    "random, 4x": ({"acquisition": "random"}, 4),
    "grid": ({"acquisition": "grid", "grid_levels": 9}, 1),
    "grid, 4x": ({"acquisition": "grid", "grid_levels": 18}, 4),
    "ehvi, gp epsilon": (
        {"acquisition": "ehvi", "privacy_model": "gp", "epsilon_scale": "linear"},
        1,
    ),
    "hvpoi, gp epsilon (the paper's)": ({"acquisition": "hvpoi", "privacy_model": "gp"}, 1),
}


#: What the others are compared with, by the scale in which hypervolume is measured.
REFERENCES = {"linear": "ehvi", "log": "ehvi in log epsilon"}


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
        seeds, models = range(self.permutations), []
        for strength in 10.0 ** (np.arange(self.levels) / 16 - 4):
            models += self.trainer.replicates(seeds, regularization=strength, noise_std=1e-25)
        weights = torch.cat([model.value.weight for model in models]).double()
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
            regularization_level=Integer(0, table.levels - 1), noise_std=Real(0.1, 10.0, log=True)
        ),
        privacy=table.epsilon,
        utility=table.utility,
        batched=Batched(epsilons=table.epsilon_bounds),
        replicates=3,
        training=TrainingPrivacy(OUTPUT_DELTA),
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
    return {"linear": dominated_volume(points, ref_point), "log": dominated_volume(logs, log_ref)}


def run_method(known: KnownProblem, method: str, seed: int) -> dict[str, Any]:
    options, multiple = METHODS[method]
    study = DPareto(known.problem, seed=seed, **options)
    front = study.run(TRIALS * multiple, initial=INITIAL)
    again = torch.tensor(
        [(trial.epsilon, known.expected_error(dict(trial.config))) for trial in front.front_trials],
        dtype=torch.double,
    )
    exact = volumes(known.front, known.problem.ref_point)
    evaluated = volumes(again, known.problem.ref_point)
    return {
        "evaluated_again": evaluated,
        "gap": {scale: exact[scale] - evaluated[scale] for scale in exact},
    }


def summarize(runs: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    summary: dict[str, Any] = {}
    for method, results in runs.items():
        summary[method] = {"trials": TRIALS * METHODS[method][1]}
        for scale, reference in REFERENCES.items():
            gaps = [one["gap"][scale] for one in results]
            ahead = [
                other["gap"][scale] - one["gap"][scale]
                for one, other in zip(runs[reference], results, strict=True)
            ]
            summary[method][scale] = {
                "gap_to_exact_front": mean_interval(gaps),
                "reference_ahead_by": mean_interval(ahead),
                "reference_wins": sum(value > 0 for value in ahead),
            }
    return summary


def draw_methods(stored: dict[str, Any], path: Path) -> None:
    """What is missing of the exact front, from the stored result."""
    from matplotlib.figure import Figure

    problems = stored["problems"]
    figure = Figure(figsize=(9, 3.3 * len(problems) + 1), layout="constrained")
    axes = figure.subplots(len(problems), 2, sharey="row", squeeze=False)
    for row, (name, result) in zip(axes, problems.items(), strict=True):
        methods = list(result["summary"])
        for ax, (scale, reference) in zip(row, REFERENCES.items(), strict=True):
            share = 100 / result["exact_volume"][scale]
            gaps = [result["summary"][method][scale]["gap_to_exact_front"] for method in methods]
            means = np.array([gap["mean"] for gap in gaps]) * share
            errors = np.array([gap["high"] - gap["mean"] for gap in gaps]) * share
            colors = ["tab:orange" if method == reference else "tab:blue" for method in methods]
            ax.barh(range(len(methods)), means, xerr=errors, color=colors)
            axis = "ε" if scale == "linear" else "ln ε"
            ax.set_xlabel(f"missing hypervolume in ({axis}, error), %")
        row[0].invert_yaxis()
        row[0].set_yticks(range(len(methods)), methods)
        row[0].set_title(name, loc="left")
    figure.supxlabel(
        f"Fronts of {stored['trials']} noisy trials (4x: {4 * stored['trials']}), evaluated again "
        f"exactly; mean and 95% interval over {stored['seeds']} seeds.\nOrange: what we propose "
        "for this axis. Computed from the records without noise; ε is that of one training.",
        fontsize=9,
    )
    figure.savefig(path, dpi=110)


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


def mapped(known: KnownProblem, side: int, trials: int) -> dict[str, Any]:
    """Oracles, models and HVPoI on a grid; the study they were made with."""
    problem = known.problem
    (x_name, x_parameter), (y_name, y_parameter) = problem.space.parameters.items()
    xs, ys = axis_values(x_parameter, side), axis_values(y_parameter, side)
    grid: list[Config] = [{x_name: x, y_name: y} for y in ys for x in xs]
    epsilon = np.array([problem.epsilon(config) for config in grid])
    error = np.array([known.expected_error(config) for config in grid])
    start = time.perf_counter()
    with DPareto(problem, acquisition="hvpoi", privacy_model="gp", seed=0) as study:
        study.run(trials)
        done = study.trials
    proposer = Proposer(problem, seed=0, acquisition="hvpoi", privacy_model="gp")
    surrogates = proposer.surrogates(done)
    candidates = proposer.known.candidates(grid)
    scales = objective_scales(problem, "linear")
    ref_point = torch.tensor([scale.ref_model for scale in scales], dtype=torch.double)
    seen = surrogates.incumbent_means[surrogates.incumbents.possible]
    hvpoi = HypervolumeProbabilityOfImprovement(
        surrogates.model, ref_point, FastNondominatedPartitioning(ref_point, Y=seen)
    )
    with torch.no_grad():
        mean, _ = surrogates.predict(candidates)
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


def draw_maps(found: dict[str, Any], path: Any) -> None:
    """Oracles above, models below; the front and HVPoI at the right."""
    from matplotlib.figure import Figure

    (x_name, xs), (y_name, ys) = found["x"], found["y"]
    figure = Figure(figsize=(13, 8.2), layout="constrained")
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
        (axes[0, 0], "privacy: log10 of ε", log_epsilon, ranges["epsilon"]),
        (axes[0, 1], "utility: expected error", found["error"], ranges["error"]),
        (axes[1, 0], "model's mean: log10 of ε", model_epsilon, ranges["epsilon"]),
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
    front.plot(*found["found"].T, "r.", label=f"{len(at)} trials, exact errors")
    front.set(xlabel="ε", ylabel="error", title="true front", xscale="log")
    front.set_xlim(1e-2 * ref_epsilon, 10 * ref_epsilon)
    front.legend(frameon=False, fontsize=10)
    figure.suptitle(
        f"{found['problem']}: figures 1 to 4 of Avent et al. Simulated trainings: publishing these "
        "pictures has no guarantee.",
        fontsize=10,
    )
    figure.savefig(path, dpi=150)


def methods(seeds: int) -> None:
    """Stored as ``pareto_quality.json`` and ``pareto_quality.png``."""
    finished, results = Finished("pareto_quality"), {}
    for make in (sparse_vector_problem, regression_problem):
        known = make()
        name = known.problem.name
        runs: dict[str, list[dict[str, Any]]] = {method: [] for method in METHODS}
        for seed in tqdm(range(seeds), desc=name):
            for method in METHODS:
                once = partial(run_method, known, method, seed)
                runs[method].append(finished.get(f"{name}, {method}, {seed}", once))
        results[name] = {
            "ref_point": known.problem.ref_point,
            "exact_volume": volumes(known.front, known.problem.ref_point),
            "summary": summarize(runs),
            "runs": runs,
        }
    path = save_results(
        "pareto_quality",
        {"seeds": seeds, "initial": INITIAL, "trials": TRIALS, "problems": results},
    )
    draw_methods(json.loads(path.read_text()), results_folder() / "pareto_quality.png")
    finished.path.unlink()


def maps(side: int, trials: int) -> None:
    """Stored as ``dpareto_illustrations.json`` and ``dpareto_maps_*.png``."""
    results = {}
    for name, make in {
        "logistic": regression_problem,
        "sparse_vector": sparse_vector_problem,
    }.items():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a study whose trainings are simulated
            found = mapped(make(), side, trials)
        draw_maps(found, results_folder() / f"dpareto_maps_{name}.png")
        kept = ("problem", "hypervolume found", "hypervolume of the true front", "reference")
        results[name] = {key: found[key] for key in (*kept, "minutes")} | {"trials": trials}
        print(results[name])
    save_results("dpareto_illustrations", results)


def table_proposals() -> str:
    """Hypervolume that is missing from the exact front, in per cent."""
    names = {
        "`ehvi` in ln ε, ε known exactly (default)": ["ehvi in log epsilon"],
        '`ehvi`, `epsilon_scale="linear"`': ["ehvi"],
        "the same, ε modelled": ["ehvi, gp epsilon"],
        "`hvpoi`, ε modelled (the paper's)": ["hvpoi, gp epsilon (the paper's)"],
        "random, same trials / four times as many": ["random", "random, 4x"],
        "grid, same trials / four times as many": ["grid", "grid, 4x"],
    }
    found = stored("pareto_quality")["problems"].values()
    rows = []
    for label, methods in names.items():
        cells = []
        for digits, problem in zip((1, 2), found, strict=True):
            for scale in ("linear", "log"):
                exact = problem["exact_volume"][scale]
                gaps = [problem["summary"][m][scale]["gap_to_exact_front"] for m in methods]
                cells.append(" / ".join(fixed(100 * gap["mean"] / exact, digits) for gap in gaps))
        rows.append([label, *cells])
    head = ["", "sparse vector, in ε", "in ln ε", "logistic regression (Adult), in ε", "in ln ε"]
    return markdown(head, rows)


def main() -> None:
    minutes = {"methods": 25, "maps": 1}
    parser = BenchmarkParser("pareto_quality", __doc__, minutes=minutes)
    parser.add_argument("--seeds", type=int, default=10, help="of ``methods``")
    parser.add_argument("--side", type=int, default=60, help="points along each side of a map")
    parser.add_argument("--trials", type=int, default=32, help="of the study behind a map")
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", module="botorch|linear_operator|gpytorch")
    for part in options.part:
        if part == "maps":
            maps(options.side, options.trials)
        else:
            methods(options.seeds)


if __name__ == "__main__":
    main()
