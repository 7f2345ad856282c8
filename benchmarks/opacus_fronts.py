"""Fronts and accuracies of trainings by Opacus's gradients beside ours, and the time they take.

    OMP_NUM_THREADS=1 python -m benchmarks.opacus_fronts [--records 8000] [--configs 12] [--seeds 5]

The same configurations, drawn once, are trained by ``engine="opacus"`` and by ``engine="auto"``
(here: fused) on a part of Adult, under the same seeds: both see the same batches and the same
noise, so that what differs between them is the gradients. The spread between seeds says how much
noise there is to be level within.
"""

from __future__ import annotations

import statistics
import time
from functools import partial
from typing import Any

import torch

from benchmarks.common import BenchmarkParser, save_results
from benchmarks.tables import fixed, markdown, stored
from botorch_dp.datasets import adult
from botorch_dp.pareto.front import dominated_volume, non_dominated
from botorch_dp.space import Integer, Real, SearchSpace
from botorch_dp.training import (
    DPTrainer,
    TrainTest,
    cross_entropy_loss,
    logistic_loss,
    logistic_regression,
    multilayer_perceptron,
)

FILE = "opacus_fronts"
ENGINES = ("auto", "opacus")
REF_POINT = (10.0, 0.3)
SPACE = SearchSpace(
    learning_rate=Real(0.05, 2.0, log=True),
    clip_norm=Real(0.1, 2.0, log=True),
    noise_multiplier=Real(0.8, 6.0, log=True),
    batch_size=Integer(64, 256, log=True),
    epochs=Integer(1, 6),
)
ADAM = {"learning_rate": Real(2e-3, 5e-2, log=True)}
CASES: dict[str, tuple[Any, Any, str]] = {
    "logistic regression, DP-SGD": (partial(logistic_regression, 123), logistic_loss, "sgd"),
    "logistic regression, DP-Adam": (partial(logistic_regression, 123), logistic_loss, "adam"),
    "network 123-32-2, DP-SGD": (
        partial(multilayer_perceptron, 123, 2, (32,)),
        cross_entropy_loss,
        "sgd",
    ),
}


def measure(case: str, data: TrainTest, configs: int, seeds: int) -> dict[str, Any]:
    """Both engines on the same configurations and seeds, one after the other in turns."""
    factory, loss, optimizer = CASES[case]
    parameters = {**SPACE.parameters, **(ADAM if optimizer == "adam" else {})}
    space = SearchSpace(**parameters)
    trainers = {e: DPTrainer(factory, loss, data, optimizer=optimizer, engine=e) for e in ENGINES}
    chosen = space.sample(configs, seed=0)
    accuracies: dict[str, list[list[float]]] = {engine: [] for engine in ENGINES}
    seconds = dict.fromkeys(ENGINES, 0.0)
    for config in chosen:
        for engine, trainer in trainers.items():
            start = time.process_time()
            # One after the other: the fused engine could train them together.
            found = [trainer.fit(seed=seed, **config).accuracy for seed in range(seeds)]
            seconds[engine] += time.process_time() - start
            accuracies[engine].append([float(each or 0.0) for each in found])
    epsilons = [trainers["auto"].plan(**config).epsilon for config in chosen]
    result: dict[str, Any] = {"configs": chosen, "epsilons": epsilons, "engines": {}}
    for engine in ENGINES:
        means = [statistics.fmean(each) for each in accuracies[engine]]
        points = torch.tensor(
            [[epsilon, 1 - mean] for epsilon, mean in zip(epsilons, means, strict=True)]
        ).double()
        result["engines"][engine] = {
            "engine": trainers[engine].engine,
            "accuracies": accuracies[engine],
            "mean_accuracy": statistics.fmean(means),
            "hypervolume": dominated_volume(points, REF_POINT),
            "front": sorted(non_dominated(points).tolist()),
            "seconds": seconds[engine],
        }
    gaps = [
        abs(one - other)
        for ours, theirs in zip(*accuracies.values(), strict=True)
        for one, other in zip(ours, theirs, strict=True)
    ]
    result["largest_paired_gap"] = max(gaps)
    result["spread_between_seeds"] = statistics.fmean(
        statistics.stdev(each) for each in accuracies["auto"]
    )
    return result


def table_opacus_fronts() -> str:
    found = stored("opacus_fronts")
    rows = [["always the more frequent class", fixed(found["majority"], 4), *[""] * 7]]
    for name, case in found["cases"].items():
        engines = [case["engines"][engine] for engine in ("auto", "opacus")]
        rows.append(
            [name]
            + [fixed(e["mean_accuracy"], 4) for e in engines]
            + [fixed(e["hypervolume"], 4) for e in engines]
            + [fixed(e["seconds"], 1) for e in engines]
            + [fixed(case[key], 4) for key in ("largest_paired_gap", "spread_between_seeds")]
        )
    head = ["model", "accuracy, ours", "by Opacus", "hypervolume, ours", "by Opacus"]
    head += ["seconds, ours", "by Opacus", "largest difference", "deviation between seeds"]
    return markdown(head, rows)


def main() -> None:
    parser = BenchmarkParser(FILE, __doc__, minutes=4)
    parser.add_argument("--records", type=int, default=8000)
    parser.add_argument("--configs", type=int, default=12)
    parser.add_argument("--seeds", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(1)
    whole = adult()
    data = TrainTest(whole.train_X[: options.records], whole.train_Y[: options.records], *whole[2:])
    results: dict[str, Any] = {
        "options": {name: getattr(options, name) for name in ("records", "configs", "seeds")},
        "majority": float(max(data.test_Y.double().mean(), 1 - data.test_Y.double().mean())),
        "cases": {},
    }
    for case in CASES:
        loss_of_classes = CASES[case][1] is cross_entropy_loss
        each = data
        if loss_of_classes:
            each = data._replace(train_Y=data.train_Y.long(), test_Y=data.test_Y.long())
        results["cases"][case] = measure(case, each, options.configs, options.seeds)
        save_results(FILE, results)
        print(case, results["cases"][case]["engines"], flush=True)


if __name__ == "__main__":
    main()
