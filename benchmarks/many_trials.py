"""What a study loses when its models see some of its trials only.

    OMP_NUM_THREADS=1 python -m benchmarks.many_trials [--seeds 6]

Studies of thousands of trials show their models 512 of them. Two measurements:

* *Predictions*: models of 1,500 random trials that see all of them, 512 chosen ones, or the first
  512; the root mean square of what is wrong with the expected errors of configs near the front.
* *Studies* with a smaller limit: 160 trials, models that see 64 or all. Fronts are evaluated again
  exactly, so that luck earns nothing; so are recommendations. Differences are paired over seeds.

The sparse vector technique, output-perturbed logistic regression, and a formula with the five
parameters of DP-SGD: their expected errors are known. Keeps what is finished, so it can be
interrupted and run again to go on.
"""

from __future__ import annotations

import functools
import json
import math
import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import torch

from benchmarks.common import BenchmarkParser, mean_interval, results_folder, save_results
from benchmarks.pareto_overhead import expected_error, make_problem
from benchmarks.pareto_quality import regression_problem, sparse_vector_problem, volumes
from botorch_dp._files import atomic_write
from botorch_dp.pareto import DPareto, PrivacyUtilityProblem, Trial, beliefs
from botorch_dp.pareto.beliefs import KnownObjectives, objective_scales
from botorch_dp.pareto.recommending import expected_error as expected
from botorch_dp.space import Config

TRIALS, INITIAL, HISTORY = 160, 16, 1500
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


def predictions(known: Known, seed: int) -> dict[str, float]:
    """How far models of 1,500 random trials are off near the front, and their seconds."""
    problem, error = known
    trials = [
        Trial(
            number=number,
            config=config,
            seeds=tuple(range(number * problem.replicates, (number + 1) * problem.replicates)),
            epsilon=problem.epsilon(config),
            state="complete",
        )
        for number, config in enumerate(problem.space.sample(HISTORY, seed=seed))
    ]
    trials = [
        replace(
            t, measurements=tuple(problem.measurement(problem.oracle(t.config, s)) for s in t.seeds)
        )
        for t in trials
    ]
    judged = [trial.config for trial in trials] + problem.space.sample(500, seed=seed + 1000)
    truth = torch.tensor([error(config) for config in judged], dtype=torch.double)
    epsilons = torch.tensor([problem.epsilon(config) for config in judged], dtype=torch.double)
    # Within .02 of the least error that there is for as much epsilon.
    least = truth.where(epsilons <= epsilons[:, None], math.inf).amin(dim=-1)
    near = (truth < least + 0.02).nonzero().flatten().tolist()
    known_objectives = KnownObjectives(problem, with_epsilon=True)
    found: dict[str, float] = {}
    for label, limit, shown in (
        ("all", HISTORY, trials),
        ("512", 512, trials),
        ("first 512", 512, trials[:512]),
    ):
        start = time.process_time()
        with patch.object(beliefs, "_MOST_SEEN", limit):
            fitted = beliefs.Beliefs(
                problem, shown, [], known=known_objectives, scales=objective_scales(problem)
            )
        means, stds = fitted.predict(known_objectives.candidates([judged[i] for i in near]))
        errors = expected(means[:, 1], stds[:, 1]) - truth[near]
        found[label] = float(errors.square().mean().sqrt())
        found[f"{label}, seconds"] = time.process_time() - start
    return found


def main() -> None:
    parser = BenchmarkParser("many_trials", __doc__, minutes=20)
    parser.add_argument("--seeds", type=int, default=6)
    parser.add_argument("--studies", type=int, default=3, help="only the first problems' studies")
    options = parser.parse_args()
    warnings.filterwarnings("ignore", module="botorch|linear_operator|gpytorch")
    partial = results_folder() / "many_trials.partial.json"
    done: dict[str, Any] = json.loads(partial.read_text()) if partial.exists() else {}

    def once(key: str, made: Callable[[], dict[str, float]]) -> dict[str, float]:
        if key not in done:
            done[key] = made()
            with atomic_write(partial) as file:
                json.dump(done, file)
        return done[key]

    results: dict[str, Any] = {}
    for place, known in enumerate(problems()):
        name = known[0].name
        if place < 2:  # the third one's luck is too small for models to be off
            seen = [
                once(f"{name}, predictions, {seed}", functools.partial(predictions, known, seed))
                for seed in range(options.seeds // 2)
            ]
            results[f"{name}, predictions"] = {
                what: mean_interval([one[what] for one in seen]) for what in seen[0]
            }
        if place < options.studies:
            runs = {
                label: [
                    once(f"{name}, {label}, {seed}", functools.partial(run, known, limit, seed))
                    for seed in range(options.seeds)
                ]
                for label, limit in LIMITS.items()
            }
            for what in runs["all"][0]:
                pairs = [(a[what], b[what]) for a, b in zip(*runs.values(), strict=True)]
                results[f"{name}, {what}"] = {
                    "all": mean_interval([a for a, _ in pairs]),
                    "some": mean_interval([b for _, b in pairs]),
                    "some - all": mean_interval([b - a for a, b in pairs]),
                }
    for what, row in results.items():
        print(what, {label: str(value) for label, value in row.items()})
    sizes = {"trials": TRIALS, "seen": LIMITS, "seeds": options.seeds, "history": HISTORY}
    save_results("many_trials", {**sizes, "results": results})
    partial.unlink()


if __name__ == "__main__":
    main()
