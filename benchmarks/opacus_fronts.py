"""Fronts and accuracies of trainings by Opacus's gradients beside ours, and the time they take.

    OMP_NUM_THREADS=1 python -m benchmarks.opacus_fronts [--records 8000] [--configs 12] [--seeds 5]

The same configurations, drawn once, are trained by ``engine="opacus"`` and by ``engine="auto"``
(here: fused) on a part of Adult, under the same seeds: both see the same batches and the same
noise, so that what differs between them is the gradients. The spread between seeds says how much
noise there is to be level within. ``--page`` writes
``docs/results/opacus.md`` from these results and from those of ``benchmarks.engines``.
"""

from __future__ import annotations

import json
import statistics
import time
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.common import BenchmarkParser, results_folder, save_results
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
PAGE = Path(__file__).parents[1] / "docs" / "results" / "opacus.md"
ENGINES = ("auto", "opacus")
REF_POINT = (10.0, 0.3)
#: How far rounding in single precision may move a sum, relatively.
RIGHT = 2e-6
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


def page(results: dict[str, Any], engines: dict[str, Any]) -> str:
    """The page in the documentation.

    Args:
        results: Of this script.
        engines: Of ``benchmarks.engines``.
    """
    size = results["options"]
    lines = [
        "# Opacus's gradients beside ours",
        "",
        "## The same trainings",
        "",
        f'We trained {size["configs"]} configurations with `engine="opacus"`, which takes the '
        "gradients of single records from Opacus, and with our own engine (`auto`, here `fused`): "
        f"{size['records']:,} records of Adult, {size['seeds']} seeds each. Both engines saw the "
        "same batches and the same noise. The accuracies are equal to four digits, where another "
        "seed changes them by 0.003 to 0.006; Opacus's gradients take four to five times as long.",
        "",
        "| model | accuracy, ours | by Opacus | hypervolume, ours | by Opacus | seconds, ours | "
        "by Opacus | largest difference | deviation between seeds |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
        f"| always the more frequent class | {results['majority']:.4f} | | | | 0 | | | |",
    ]
    for name, found in results["cases"].items():
        ours, theirs = (found["engines"][engine] for engine in ENGINES)
        cells = [
            *(f"{each['mean_accuracy']:.4f}" for each in (ours, theirs)),
            *(f"{each['hypervolume']:.4f}" for each in (ours, theirs)),
            *(f"{each['seconds']:.1f}" for each in (ours, theirs)),
            f"{found['largest_paired_gap']:.4f}",
            f"{found['spread_between_seeds']:.4f}",
        ]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    lines += [
        "",
        "Accuracies are means over all configurations, measured on the test records. The "
        f"hypervolume is measured from epsilon {REF_POINT[0]:g} and error {REF_POINT[1]:g}. "
        "Seconds are of one processor, for all trainings of a row. The largest difference is that "
        "between the engines' accuracies, over all configurations and seeds.",
        "",
        "## Thirty models",
        "",
        "An engine is right on a model if its sum of clipped gradients is the one that autograd "
        "finds record by record. All others are refused before anything is trained.",
        "",
        "| engine | right | refused | wrong |",
        "| --- | --- | --- | --- |",
    ]
    for engine in ("per_record", "ghost", "opacus", "fused"):
        of_engine = [found[engine] for found in engines["models"].values()]
        refused = sum(isinstance(each, str) for each in of_engine)
        right = sum(not isinstance(each, str) and each < RIGHT for each in of_engine)
        lines.append(f"| `{engine}` | {right} | {refused} | {len(of_engine) - right - refused} |")
    lines += [
        "",
        "`fused` is for stacks of linear layers and refuses all other models. The reasons for "
        "which `opacus` refuses a model are in `benchmarks/results/engines.json`.",
        "",
        "## Models that mix records",
        "",
        "These models are made to break the promise. The numbers say how far the sum moves, in "
        "clipping norms, if one record is exchanged: noise is made for at most 2. `per_record` and "
        "`ghost` call a model on one record at a time, so they stay within 2 also where the checks "
        "find nothing. Opacus calls it on whole batches; where the checks find nothing, "
        "its guarantee rests on the condition that the model keeps records apart.",
        "",
        "| model | `per_record` | `ghost` | `opacus` | refused by the checks |",
        "| --- | --- | --- | --- | --- |",
    ]
    for name, found in engines["hostile"].items():
        moves = [f"{found[engine]['move']:.1f}" for engine in ("per_record", "ghost", "opacus")]
        told = "yes" if found["opacus"]["refused"] else "no"
        lines.append(f"| {name} | {' | '.join(moves)} | {told} |")
    lines += [
        "",
        "`python -m benchmarks.opacus_fronts` and `python -m benchmarks.engines` print and store "
        "these numbers.",
        "",
    ]
    return "\n".join(lines)


def main() -> None:
    parser = BenchmarkParser(FILE, __doc__, minutes=4)
    parser.add_argument("--records", type=int, default=8000)
    parser.add_argument("--configs", type=int, default=12)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--page", action="store_true", help="write the page of stored results")
    options = parser.parse_args()
    stored = results_folder() / f"{FILE}.json"
    if options.page:
        engines = results_folder() / "engines.json"
        PAGE.write_text(page(*(json.loads(path.read_text()) for path in (stored, engines))))
        return
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
