"""The same trainings on two axes: fronts before and after privacy-loss distributions.

Random trials of the paper's problems (Avent et al. 2020; fixed batches, a record replaced) are trained
once, at reduced sizes, and priced twice: by the Rényi bound of the papers and by privacy-loss
distributions. Nothing but the axis differs. Hypervolumes to (10, 1), in epsilon and in
ln(epsilon / .05) from .05 on, with the mean and a 95% interval over seeds.

Takes about five minutes. Run: ``BOTORCH_DP_DATA=folder python -m benchmarks.accounting_fronts``
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from tqdm import trange

from benchmarks.common import (
    BenchmarkParser,
    mean_interval,
    save_results,
)
from botorch_dp import tasks
from botorch_dp.pareto import PrivacyUtilityProblem
from botorch_dp.pareto.front import dominated_volume
from botorch_dp.privacy import dp_sgd_epsilon
from botorch_dp.space import Config

#: Problem, trials, replicates, seeds, the longest training in epochs.
PROBLEMS = {
    "Adult, logistic regression": ("adult_logistic_sgd", 24, 2, 4, 6),
    "MNIST, 784-1000-10": ("mnist_mlp1_sgd", 5, 1, 3, 1),
}
LEAST = 0.05

Point = tuple[float, float]


def epsilons(problem: PrivacyUtilityProblem, config: Config) -> tuple[float, float]:
    """Epsilon by the Rényi bound and by privacy-loss distributions."""
    num_records = problem.privacy.__self__.num_records  # type: ignore[attr-defined]
    batch = int(config["batch_size"])
    before = dp_sgd_epsilon(
        noise_multiplier=float(config["noise_multiplier"]),
        batch_size=batch,
        num_records=num_records,
        steps=int(config["epochs"]) * (num_records // batch),
        delta=problem.promise.delta,
        sampling="without_replacement",
        accountant="rdp",
    )
    return before, problem.epsilon(config)


def volumes(points: Sequence[Point]) -> tuple[float, float]:
    """Hypervolume in epsilon, and in ln(epsilon / .05)."""
    plain = torch.tensor(points, dtype=torch.double)
    logarithmic = plain.clone()
    logarithmic[:, 0] = (plain[:, 0].clamp_min(LEAST) / LEAST).log()
    return (
        dominated_volume(plain, (10.0, 1.0)),
        dominated_volume(logarithmic, (math.log(10.0 / LEAST), 1.0)),
    )


def measure(name: str) -> dict[str, object]:
    """Train random configurations once and draw their front on both axes, for each seed."""
    task, trials, replicates, seeds, longest = PROBLEMS[name]
    problem = getattr(tasks, task)(replicates=replicates)
    rows: dict[str, list[float]] = {}
    for seed in trange(seeds, desc=name, unit="seed"):
        generator = np.random.default_rng(seed)
        configs = problem.space.draw(generator.random((trials, problem.space.dim)))
        fronts: tuple[list[Point], list[Point]] = ([], [])
        for number, config in enumerate(configs):
            config["epochs"] = min(int(config["epochs"]), longest)
            seeds_of_trial = [10_000 * seed + 100 * number + r for r in range(replicates)]
            error = 1 - float(np.mean(problem.oracle(config, seeds_of_trial)))
            for front, epsilon in zip(fronts, epsilons(problem, config), strict=True):
                front.append((epsilon, error))
        for unit, index in (("epsilon", 0), ("ln epsilon", 1)):
            before, after = (volumes(front)[index] for front in fronts)
            rows.setdefault(f"before, in {unit}", []).append(before)
            rows.setdefault(f"after, in {unit}", []).append(after)
            rows.setdefault(f"gain, in {unit}", []).append(after - before)
    result: dict[str, object] = {"trials": trials, "longest": longest, "seeds": seeds}
    for label, values in rows.items():
        interval = mean_interval(values)
        result[label] = interval
        print(f"{name}: {label}: {interval}")
    return result


def main() -> None:
    """Measure all problems and store the result."""
    parser = BenchmarkParser("accounting_fronts", __doc__, minutes=5)
    parser.add_argument("problem", nargs="*", help="only those that contain these words")
    options = parser.parse_args()
    chosen = [n for n in PROBLEMS if not options.problem or any(w in n for w in options.problem)]
    torch.set_num_threads(1)
    save_results("accounting_fronts", {name: measure(name) for name in chosen})


if __name__ == "__main__":
    main()
