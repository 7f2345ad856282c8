"""A study's trials trained together: how much faster than one after the other.

Both train the same configs of one batch size with the same seeds, through the oracles of a ready
problem: one call for each, against one call for all. Accuracies are compared as well. Whether the
fronts are as good, ``dpareto_batches`` says.

Run with ``OMP_NUM_THREADS=1 python -m benchmarks.dpareto_together``. With ``BOTORCH_DP_DATA``, on
Adult and MNIST, otherwise on the bundled data sets.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

from benchmarks.common import BenchmarkParser, interleaved_ratio, save_results
from botorch_dp import tasks
from botorch_dp.pareto import PrivacyUtilityProblem

#: Name -> the problem's maker, data sets (real, bundled), batch size, epochs (real, bundled).
CASES: dict[str, tuple[Callable[..., PrivacyUtilityProblem], tuple[str, str], int, tuple[int, int]]]
CASES = {
    "logistic regression, batch 64": (
        tasks.adult_logistic_sgd,
        ("adult", "breast_cancer"),
        64,
        (2, 60),
    ),
    "logistic regression, batch 256": (
        tasks.adult_logistic_sgd,
        ("adult", "breast_cancer"),
        256,
        (4, 400),
    ),
    "784-128-64-10, batch 256": (tasks.mnist_mlp2_sgd, ("mnist", "digits"), 256, (1, 40)),
}


def measured(name: str, count: int, replicates: int, repeats: int, real: bool) -> dict[str, Any]:
    make, data, batch, epochs = CASES[name]
    problem = make(data=data[not real], replicates=replicates)
    configs = [
        {**config, "batch_size": batch, "epochs": epochs[not real]}
        for config in problem.space.sample(count, seed=0)
    ]
    seeds = [list(range(replicates * k, replicates * (k + 1))) for k in range(count)]
    utilities = problem.batched.utilities
    assert utilities is not None
    found: dict[str, list[float]] = {}

    def together() -> None:
        each = [config for config in configs for _ in range(replicates)]
        found["together"] = list(utilities(each, [s for own in seeds for s in own]))

    def alone() -> None:
        pairs = zip(configs, seeds, strict=True)
        found["alone"] = [u for config, own in pairs for u in problem.oracle(config, own)]

    ratio = interleaved_ratio(together, alone, repeats=repeats, clock=time.process_time)
    gaps = [abs(a - b) for a, b in zip(found["together"], found["alone"], strict=True)]
    return {"ratio": ratio, "largest difference of accuracy": max(gaps)}


def main() -> None:
    parser = BenchmarkParser("dpareto_together", __doc__, minutes=4)
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    real = bool(os.environ.get("BOTORCH_DP_DATA"))
    rows = {}
    for name in CASES:
        for count, replicates in ((4, 1), (10, 1), (4, 3)):
            label = f"{name}; {count} configs of {replicates}"
            rows[label] = measured(name, count, replicates, arguments.repeats, real)
            print(f"{label}: {rows[label]['ratio']}", flush=True)
    save_results("dpareto_together", {"real": real, "rows": rows})


if __name__ == "__main__":
    main()
