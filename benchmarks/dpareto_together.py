"""A study's trials trained together: how much faster, and whether its fronts are as good.

*Speed*: both ways train the same configs of one lot size with the same seeds, through the oracles
of a ready problem: one call for each, against one call for all. Accuracies are compared as well.

*Fronts* (``--fronts``): studies of curves on Adult that train four trials in each call, against
studies that train one after the other. Four trials share their lot size and are proposed before
any of them has ended, so a study of as many steps may know less. Fronts are trained again as in
``dpareto_curves``, which keeps its studies in a folder and goes on where it was interrupted. Those
of the single trainings are interpolated to as many steps, and compared seed by seed.

Run with ``OMP_NUM_THREADS=1 python -m benchmarks.dpareto_together``. With ``BOTORCH_DP_DATA``, on
Adult and MNIST, otherwise on the bundled data sets.
"""

from __future__ import annotations

import math
import os
import time
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from benchmarks import dpareto_curves
from benchmarks.common import BenchmarkParser, interleaved_ratio, mean_interval, save_results
from botorch_dp import tasks
from botorch_dp.pareto import PrivacyUtilityProblem

#: Name -> the problem's maker, data sets (real, bundled), lot size, epochs (real, bundled).
CASES: dict[str, tuple[Callable[..., PrivacyUtilityProblem], tuple[str, str], int, tuple[int, int]]]
CASES = {
    "logistic regression, lot 64": (
        tasks.adult_logistic_sgd,
        ("adult", "breast_cancer"),
        64,
        (2, 60),
    ),
    "logistic regression, lot 256": (
        tasks.adult_logistic_sgd,
        ("adult", "breast_cancer"),
        256,
        (4, 400),
    ),
    "784-128-64-10, lot 256": (tasks.mnist_mlp2_sgd, ("mnist", "digits"), 256, (1, 40)),
}


def measured(name: str, count: int, replicates: int, repeats: int, real: bool) -> dict[str, Any]:
    make, data, lot, epochs = CASES[name]
    problem = make(data=data[not real], replicates=replicates)
    configs = [
        {**config, "lot_size": lot, "epochs": epochs[not real]}
        for config in problem.space.sample(count, seed=0)
    ]
    seeds = [list(range(replicates * k, replicates * (k + 1))) for k in range(count)]
    batched = problem.batched
    assert batched is not None
    found: dict[str, list[float]] = {}

    def together() -> None:
        each = [config for config in configs for _ in range(replicates)]
        found["together"] = list(batched.utilities(each, [s for own in seeds for s in own]))

    def alone() -> None:
        pairs = zip(configs, seeds, strict=True)
        found["alone"] = [u for config, own in pairs for u in problem.oracle(config, own)]

    ratio = interleaved_ratio(together, alone, repeats=repeats, clock=time.process_time)
    gaps = [abs(a - b) for a, b in zip(found["together"], found["alone"], strict=True)]
    return {"ratio": ratio, "largest difference of accuracy": max(gaps)}


#: What is compared of two studies: one after the other, and four at once.
ALONE, TOGETHER = "curves", "curves, four at once"


def at_steps(run: Mapping[str, Any], steps: float, kind: str, scale: str) -> float:
    """The hypervolume of a study's front after so many steps, NaN beyond those it was judged at."""
    known = [one["steps"] for one in run.values()]
    values = [one[kind][scale] for one in run.values()]
    return float(np.interp(steps, known, values, left=math.nan, right=math.nan))


def compared(runs: Mapping[str, Mapping[int, Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """The fronts of trials trained together, and by how much they are ahead at equal steps."""
    seeds = sorted(set(runs[ALONE]) & set(runs[TOGETHER]))
    rows = []
    for stop in runs[TOGETHER][seeds[0]]:
        at = {seed: runs[TOGETHER][seed][stop] for seed in seeds}
        row: dict[str, Any] = {"trials": stop, "steps": fmean(one["steps"] for one in at.values())}
        for kind in ("again", "expected again"):
            for scale in ("linear", "log"):
                name = f"{kind}, {scale}"
                row[name] = mean_interval([one[kind][scale] for one in at.values()])
                leads = [
                    one[kind][scale] - at_steps(runs[ALONE][seed], one["steps"], kind, scale)
                    for seed, one in at.items()
                ]
                known = [lead for lead in leads if not math.isnan(lead)]
                row[f"{name}, ahead by"] = mean_interval(known) if known else None
        rows.append(row)
    return rows


def fronts(seeds: int, studies: Path, real: bool) -> None:
    warnings.filterwarnings("ignore", module="botorch|linear_operator|gpytorch")
    setting = dpareto_curves.settings(real)["adult"]
    studies.mkdir(parents=True, exist_ok=True)
    runs: dict[str, dict[int, Any]] = {}
    for seed in range(seeds):
        for method in (ALONE, TOGETHER):
            runs.setdefault(method, {})[seed] = dpareto_curves.run(setting, method, seed, studies)
            print(f"seed {seed}, {method}", flush=True)
    rows = compared(runs)
    for row in rows:
        print("; ".join(f"{name}: {value}" for name, value in row.items()))
    save_results(
        "dpareto_together_fronts", {"data": setting.oracles.data, "rows": rows, "runs": runs}
    )


def main() -> None:
    parser = BenchmarkParser("dpareto_together", __doc__, minutes=4)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--fronts", type=int, metavar="SEEDS", help="compare so many fronts")
    parser.add_argument(
        "--studies",
        type=Path,
        default=dpareto_curves.STUDIES,
        help="folder of their studies; they hold measured utilities and are sensitive",
    )
    arguments = parser.parse_args()
    real = bool(os.environ.get("BOTORCH_DP_DATA"))
    if arguments.fronts:
        fronts(arguments.fronts, arguments.studies, real)
        return
    rows = {}
    for name in CASES:
        for count, replicates in ((4, 1), (10, 1), (4, 3)):
            label = f"{name}; {count} configs of {replicates}"
            rows[label] = measured(name, count, replicates, arguments.repeats, real)
            print(f"{label}: {rows[label]['ratio']}", flush=True)
    save_results("dpareto_together", {"real": real, "rows": rows})


if __name__ == "__main__":
    main()
