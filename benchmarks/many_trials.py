"""What a study loses when its models see some of its trials only.

    OMP_NUM_THREADS=1 python -m benchmarks.many_trials [--seeds 6]

Studies of thousands of trials show their models 512 of them. Here the limit is smaller, and the
same studies are made without any: 160 trials, models that see 64 or all. Three problems whose
expected error is known: the sparse vector technique, output-perturbed logistic regression, and a
formula with the five parameters of DP-SGD. Fronts are evaluated again exactly, so that luck earns
nothing; so are recommendations. Differences are paired over seeds. Keeps finished studies, so it
can be interrupted and run again to go on.
"""

from __future__ import annotations

import json
import time
import warnings
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import torch

from benchmarks.common import BenchmarkParser, mean_interval, results_folder, save_results
from benchmarks.pareto_overhead import expected_error, make_problem
from benchmarks.pareto_quality import regression_problem, sparse_vector_problem, volumes
from botorch_dp._files import atomic_write
from botorch_dp.pareto import DPareto, PrivacyUtilityProblem, beliefs
from botorch_dp.space import Config

TRIALS, INITIAL = 160, 16
#: How many trials models see.
LIMITS = {"all": TRIALS, "some": 64}
#: Shares of the largest epsilon at which configs are recommended.
ASKED = (0.01, 0.1, 0.5)

Known = tuple[PrivacyUtilityProblem, Callable[[Config], float]]


def problems() -> list[Known]:
    known = [sparse_vector_problem(), regression_problem()]
    return [*((one.problem, one.expected_error) for one in known), (make_problem(), expected_error)]


def run(known: Known, limit: int, seed: int) -> dict[str, float]:
    """Hypervolume of the front's expected errors, and expected errors of recommendations."""
    problem, error = known
    start = time.process_time()
    with patch.object(beliefs, "_MOST_SEEN", limit):
        study = DPareto(problem, seed=seed)
        front = study.run(TRIALS, initial=INITIAL)
        recommended = [study.recommend(share * problem.ref_point[0]).config for share in ASKED]
    again = torch.tensor(
        [(t.epsilon, error(dict(t.config))) for t in front.front_trials], dtype=torch.double
    )
    errors = [error(config) for config in recommended]
    return {
        **{f"hypervolume, {scale}": v for scale, v in volumes(again, problem.ref_point).items()},
        "error of the recommended": sum(errors) / len(errors),
        "seconds": time.process_time() - start,
    }


def main() -> None:
    parser = BenchmarkParser("many_trials", __doc__, minutes=10)
    parser.add_argument("--seeds", type=int, default=6)
    options = parser.parse_args()
    warnings.filterwarnings("ignore", module="botorch|linear_operator|gpytorch")
    partial = results_folder() / "many_trials.partial.json"
    done: dict[str, Any] = json.loads(partial.read_text()) if partial.exists() else {}
    results: dict[str, Any] = {}
    for known in problems():
        name = known[0].name
        for seed in range(options.seeds):
            for label, limit in LIMITS.items():
                if (key := f"{name}, {label}, {seed}") not in done:
                    done[key] = run(known, limit, seed)
                    with atomic_write(partial) as file:
                        json.dump(done, file)
        runs = {
            label: [done[f"{name}, {label}, {s}"] for s in range(options.seeds)] for label in LIMITS
        }
        results[name] = {}
        for what in runs["all"][0]:
            pairs = [(a[what], b[what]) for a, b in zip(*runs.values(), strict=True)]
            results[name][what] = {
                "all": mean_interval([a for a, _ in pairs]),
                "some": mean_interval([b for _, b in pairs]),
                "some - all": mean_interval([b - a for a, b in pairs]),
            }
            print(name, what, {k: str(v) for k, v in results[name][what].items()}, flush=True)
    save_results(
        "many_trials",
        {"trials": TRIALS, "seen": LIMITS, "seeds": options.seeds, "problems": results},
    )
    partial.unlink()


if __name__ == "__main__":
    main()
