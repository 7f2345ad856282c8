"""How far is DPareto ahead of random points, by which measure? Table 2 of the DPareto paper, again.

    OMP_NUM_THREADS=1 BOTORCH_DP_DATA=<folder> python -m benchmarks.dpareto_lead [--points 4864]

LogReg+SGD on Adult: a study of 16 + 256 trials against 19 *disjoint* draws of 256 random points
from the distributions of the paper's Table 4. In place of the paper's ten trainings, each point is
trained ``--replicates`` times. The same points are then measured in all ways that the paper and the
code published with it suggest:

- epsilon by dominating pairs, as everywhere here, and by the paper's bound on Rényi divergences;
- hypervolume to (10, 1), to the code's (10, .999), in ln(epsilon / .05), and in the scale of the
  models (ln epsilon, logit error);
- what the code's ``get_untransformed_hypervolume`` returns: both of its loops run over empty
  ranges, so that it is the rectangle of the front's point with the smallest epsilon.

What else differs between the published code and ours is tried on smaller pools of random points,
whose draws are compared with as many points of the first: the range of the study's learning rates
in place of Table 4's, and random initial weights in place of zeros. Run again, it goes on where it
was.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from tqdm import tqdm

from benchmarks.common import BenchmarkParser, mean_interval, results_folder, save_results
from benchmarks.dpareto_paper import FULL, METHODS, SMALLEST, TABLE_2, prepared
from benchmarks.linear_training import _compiled
from botorch_dp.pareto import DPareto, Real, SearchSpace
from botorch_dp.pareto.front import dominated_volume
from botorch_dp.privacy import dp_sgd_epsilon
from botorch_dp.space import Config, ShiftedExponential
from botorch_dp.tasks.learning import DELTA

NAME = "dpareto_lead"
SETTING = next(setting for setting in FULL if setting.label == "LogReg+SGD")
DRAWS, DRAWN = 19, 256
LARGEST = 10.0

TABLE_4 = Real(1e-3, 0.1, log=True, distribution=ShiftedExponential(10.0))
#: Standard deviations of weights and intercept in the published code, for 123 inputs.
XAVIER = (math.sqrt(6 / 124), math.sqrt(6 / 2))
#: Pools of random points: the learning rate (None: the study's), and the initial weights.
POOLS: dict[str, tuple[Real | None, tuple[float, float]]] = {
    "as printed": (TABLE_4, (0.0, 0.0)),
    "learning rates of the study": (None, (0.0, 0.0)),
    "random initial weights": (TABLE_4, XAVIER),
}

Points = list[list[float]]  # epsilon by dominating pairs, by Rényi divergences, and the error


def epsilons(config: Config, num_records: int) -> tuple[float, float]:
    """Both epsilons of a config; the noise of the paper is counted in two clipping norms."""
    run: dict[str, Any] = {
        "noise_multiplier": 2 * config["noise_variance"],
        "batch_size": config["batch_size"],
        "num_records": num_records,
        "steps": config["epochs"] * (num_records // config["batch_size"]),
        "delta": DELTA,
        "sampling": "without_replacement",
    }
    return dp_sgd_epsilon(**run), dp_sgd_epsilon(accountant="rdp", **run)


def random_point(
    config: Config, seeds: list[int], start: tuple[float, float], num_records: int
) -> list[float]:
    """A point of a pool; what cannot enter a hypervolume is not trained."""
    exact, renyi = epsilons(config, num_records)
    if exact >= LARGEST:
        return [exact, renyi, 1.0]
    steps = config["epochs"] * (num_records // config["batch_size"])
    options: Any = {name: config[name] for name in ("batch_size", "learning_rate", "clip_norm")}
    options |= {"noise_multiplier": 2 * config["noise_variance"], "start": start}
    data = _compiled("adult")
    found = [data.accuracies(seed, [steps], **options)[0] for seed in seeds]
    return [round(exact, 6), round(renyi, 6), round(1 - float(np.mean(found)), 6)]


def fill(pool: str, points: Points, count: int, replicates: int, save: Callable[[], Any]) -> None:
    """Train what is missing of a pool."""
    rate, start = POOLS[pool]
    problem = prepared(SETTING, "random")
    oracle: Any = problem.oracle
    parameters = dict(problem.space.parameters)
    space = SearchSpace(**(parameters | ({} if rate is None else {"learning_rate": rate})))
    configs = space.sample(count, seed=1 + list(POOLS).index(pool))
    for place in tqdm(range(len(points), count), desc=pool, mininterval=30):
        seeds = [replicates * place + r for r in range(replicates)]
        points.append(random_point(configs[place], seeds, start, oracle.training.num_records))
        if len(points) % 256 == 0:
            save()
    save()


def study_points(seed: int, trials: int, replicates: int) -> tuple[Points, float]:
    """What a study measured, and its own seconds of a processor."""
    problem = prepared(replace(SETTING, replicates=replicates), "DPareto")
    oracle: Any = problem.oracle
    start = time.process_time()
    with DPareto(problem, seed=seed, **METHODS["DPareto"]) as study:
        study.run(trials, initial=16)
        done = study.trials
    own = time.process_time() - start - oracle.seconds
    records = oracle.training.num_records
    return [[*epsilons(dict(t.config), records), t.error] for t in done], own


def front(points: np.ndarray) -> np.ndarray:
    """The non-dominated points, by increasing epsilon."""
    order = points[np.lexsort((points[:, 1], points[:, 0]))]
    best = np.minimum.accumulate(np.append(np.inf, order[:, 1]))[:-1]
    return order[order[:, 1] < best]


def volume(points: np.ndarray, reference: tuple[float, float]) -> float:
    return dominated_volume(torch.from_numpy(points), reference)


def as_published_code(points: np.ndarray) -> float:
    epsilon, error = front(points)[0]
    return (LARGEST - epsilon) * (0.999 - error)


def logarithmic(points: np.ndarray) -> float:
    logs = np.stack([np.log(np.maximum(points[:, 0], SMALLEST) / SMALLEST), points[:, 1]], -1)
    return volume(logs, (math.log(LARGEST / SMALLEST), 1.0))


def in_the_models_scale(points: np.ndarray) -> float:
    error = points[:, 1].clip(1e-3, 0.999)
    seen = np.stack([np.log(points[:, 0]), np.log(error / (1 - error))], -1)
    return volume(seen, (math.log(LARGEST), math.log(0.999 / 0.001)))


MEASURES: dict[str, Callable[[np.ndarray], float]] = {
    "hypervolume to (10, 1)": lambda points: volume(points, (LARGEST, 1.0)),
    "hypervolume to (10, .999)": lambda points: volume(points, (LARGEST, 0.999)),
    "what the published code returns": as_published_code,
    "hypervolume in ln(epsilon / .05)": logarithmic,
    "hypervolume in the scale of the models": in_the_models_scale,
}
AXES = {"dominating pairs": 0, "Rényi divergences": 1}


def leads(pool: Points, study: Points) -> dict[str, Any]:
    """The study against disjoint draws of as many points as it chose itself."""
    random, own = np.array(pool), np.array(study[:DRAWN])
    draws = [random[place::DRAWS] for place in range(DRAWS)]
    found: dict[str, Any] = {}
    for axis, column in AXES.items():
        for name, measure in MEASURES.items():
            theirs = [measure(draw[:, [column, 2]]) for draw in draws]
            ours = measure(own[:, [column, 2]])
            found[f"{name}; epsilon by {axis}"] = {
                "study": ours,
                "draws": mean_interval(theirs),
                "standard deviation of a draw": float(np.std(theirs, ddof=1)),
                "lead": mean_interval([ours - other for other in theirs]),
                "ahead of": sum(ours > other for other in theirs),
            }
    return found


def pools_compared(pools: dict[str, Points]) -> dict[str, Any]:
    """Draws of each pool, as many points as the smallest has, to (10, 1)."""
    count = min(map(len, pools.values())) // DRAWS
    return {
        "points of a draw": count,
        **{
            pool: mean_interval(
                [
                    volume(np.array(p[i::DRAWS][:count])[:, [0, 2]], (LARGEST, 1.0))
                    for i in range(DRAWS)
                ]
            )
            for pool, p in pools.items()
        },
    }


def draw(pool: Points, study: Points, replicates: int) -> None:
    """The study's front and those of the draws, for both ways to compute epsilon."""
    from matplotlib.figure import Figure

    from botorch_dp.plots import save_figure

    figure = Figure(figsize=(12, 5.4), layout="constrained")
    axes = figure.subplots(1, 2, sharey=True)
    for ax, (axis, column) in zip(axes, AXES.items(), strict=True):
        columns = [column, 2]
        random, own = np.array(pool)[:, columns], np.array(study)[:DRAWN, columns]
        ax.plot(*random.T, ".", ms=2, color="0.8", label=f"{len(pool):,} random points")
        for place in range(DRAWS):
            steps = front(random[place::DRAWS])
            label = f"fronts of {DRAWS} draws of {len(pool) // DRAWS}"
            ax.step(*steps.T, where="post", color="C1", lw=0.8, label="" if place else label)
        label = f"front of {DRAWN} points of DPareto"
        ax.step(*front(own).T, where="post", color="C0", lw=2, label=label)
        ax.set(xscale="log", xlim=(5e-3, LARGEST), ylim=(0.15, 0.35))
        ax.set_xlabel(f"ε at δ = {DELTA:g} by {axis} (one record is replaced by any other)")
    axes[0].set_ylabel("error (1 − accuracy)")
    axes[0].legend(fontsize=11)
    trainings = "one training" if replicates == 1 else f"{replicates} trainings"
    figure.suptitle(
        f"LogReg+SGD on Adult, {trainings} of each point. Do not publish such a figure of records\n"
        "of your own: it is computed from them without noise."
    )
    save_figure(figure, results_folder() / f"{NAME}.png")


def main() -> None:
    parser = BenchmarkParser(NAME, __doc__, minutes=12)
    parser.add_argument("--points", type=int, default=DRAWS * DRAWN, help="of the first pool")
    parser.add_argument("--fewer", type=int, default=DRAWS * 64, help="of the other pools")
    parser.add_argument("--trials", type=int, default=16 + DRAWN)
    parser.add_argument("--replicates", type=int, default=1, help="trainings of a point")
    parser.add_argument("--seeds", type=int, default=2, help="studies")
    options = parser.parse_args()
    path = results_folder() / f"{NAME}.json"
    sizes = {"replicates": options.replicates}
    stored = json.loads(path.read_text()) if path.exists() else {}
    results: dict[str, Any] = stored if stored.get("sizes") == sizes else {"sizes": sizes}
    results.pop("machine", None)
    results["printed in table 2"] = TABLE_2[SETTING.label]
    pools: dict[str, Points] = results.setdefault("pools", {})
    studies: dict[str, Any] = results.setdefault("studies", {})

    def save() -> None:
        save_results(NAME, results)

    for seed in range(options.seeds):
        name = f"seed {seed}"
        if len(studies.get(name, {"points": []})["points"]) < options.trials:
            points, own = study_points(seed, options.trials, options.replicates)
            studies[name] = {"points": points, "own seconds of a processor": own}
            save()
    for pool in POOLS:
        count = options.points if pool == "as printed" else options.fewer
        fill(pool, pools.setdefault(pool, []), count, options.replicates, save)
    results["leads"] = {n: leads(pools["as printed"], s["points"]) for n, s in studies.items()}
    results["pools compared"] = pools_compared(pools)
    save()
    first = next(iter(studies.values()))["points"]
    draw(pools["as printed"], first, options.replicates)
    for seed, found in results["leads"].items():
        for name, entry in found.items():
            print(f"{seed}: {name}: {entry['lead']} ahead of {entry['ahead of']} of {DRAWS}")
    print(results["pools compared"])


if __name__ == "__main__":
    main()
