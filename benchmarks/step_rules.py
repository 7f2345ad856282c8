"""What is lost without tuning the learning rate and the clipping norm?

    OMP_NUM_THREADS=1 python -m benchmarks.step_rules [--seeds N]

Trainings at a given epsilon (Poisson batches, replace-one, delta = 1e-5) of logistic regressions
(breast cancer 398 x 30; Adult 30,956 x 123 if ``BOTORCH_DP_DATA`` has it) and of a network 64-64-10
(digits 1,258 x 64). Normalized gradients with SGD at five learning rates, Adam at five,
schedule-free SGD at four, and the scale-free rule at its default and at a third and three times
the distance. Means of the test accuracy over seeds; the best learning rate is chosen by these very
accuracies, which flatters it.
"""

from __future__ import annotations

import statistics
from functools import partial
from typing import Any

from benchmarks.common import (
    BenchmarkParser,
    save_results,
)
from botorch_dp import datasets
from botorch_dp.training import (
    DPTrainer,
    cross_entropy_loss,
    logistic_loss,
    logistic_regression,
    multilayer_perceptron,
)
from botorch_dp.training.plan import DISTANCE

RATES = {
    "sgd": (0.1, 0.3, 1.0, 3.0, 10.0),
    "adam": (0.003, 0.01, 0.03, 0.1, 0.3),
    "schedule_free": (0.3, 1.0, 3.0, 10.0),
    "scale_free": (DISTANCE / 3, DISTANCE, 3 * DISTANCE),
}


TASKS: dict[str, dict[str, Any]] = {
    "breast_cancer": {"batch_size": 32, "epochs": 20, "epsilons": (0.3, 1.0, 3.0)},
    "digits": {"batch_size": 64, "epochs": 20, "epsilons": (1.0, 4.0)},
    "adult": {"batch_size": 256, "epochs": 4, "epsilons": (0.1, 1.0)},
}


def accuracies(task: str, seeds: int) -> dict[str, dict[str, list[float]]]:
    """By epsilon and rule, the mean accuracy at each learning rate."""
    data = getattr(datasets, task)()
    width = data.train_X.shape[1]
    digits = task == "digits"
    factory = (
        partial(multilayer_perceptron, width, 10, (64,))
        if digits
        else partial(logistic_regression, width)
    )
    loss = cross_entropy_loss if digits else logistic_loss
    common = {key: TASKS[task][key] for key in ("batch_size", "epochs")}
    found: dict[str, dict[str, list[float]]] = {}
    for epsilon in TASKS[task]["epsilons"]:
        found[str(epsilon)] = {}
        for rule, rates in RATES.items():
            trainer = DPTrainer(factory, loss, data, optimizer=rule, clipping="normalized")
            plan = trainer.plan(**common, learning_rate=1.0, target_epsilon=epsilon)
            noise = plan.noise_multiplier
            means = [
                statistics.fmean(
                    each.accuracy
                    for each in trainer.replicates(
                        range(seeds), **common, learning_rate=rate, noise_multiplier=noise
                    )
                )
                for rate in rates
            ]
            found[str(epsilon)][rule] = means
            shown = ", ".join(f"{r:.3g}: {m:.3f}" for r, m in zip(rates, means, strict=True))
            print(f"{task}, epsilon = {epsilon}, {rule}: {shown}", flush=True)
    return found


def main() -> None:
    parser = BenchmarkParser("step_rules", __doc__, minutes=5)
    parser.add_argument("--seeds", type=int, default=8)
    seeds = parser.parse_args().seeds
    results: dict[str, Any] = {"seeds": seeds, "rates": {k: list(v) for k, v in RATES.items()}}
    for task in TASKS:
        results[task] = accuracies(task, seeds)
    print(save_results("step_rules", results))


if __name__ == "__main__":
    main()
