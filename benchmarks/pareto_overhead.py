"""DPareto's own seconds for a trial against a BoTorch qLogEHVI loop with the same models.

The problem has the space and the epsilon of DP-SGD on 30,956 records, and a formula for the
utility, so that all time is the study's own: fitting, proposing, exact epsilons of candidates,
storage in a file. The baseline fits the same two Gaussian processes to the same data and optimizes
qLogEHVI, with the settings of BoTorch's multi-objective tutorial ("tutorial") and with a fraction
of its effort ("light"). Both sides take turns in one process; processor time.

Run with ``OMP_NUM_THREADS=1 python -m benchmarks.pareto_overhead``.
"""

from __future__ import annotations

import math
import statistics
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import torch
from botorch.acquisition.multi_objective.logei import qLogExpectedHypervolumeImprovement
from botorch.models import ModelListGP
from botorch.optim import optimize_acqf
from botorch.sampling.normal import SobolQMCNormalSampler
from botorch.utils.multi_objective.box_decompositions.non_dominated import (
    FastNondominatedPartitioning,
)
from torch import Tensor

from benchmarks.common import (
    BenchmarkParser,
    save_results,
)
from botorch_dp.pareto import (
    Batched,
    DPareto,
    Integer,
    PrivacyUtilityProblem,
    Real,
    SearchSpace,
    TrainingPromise,
)
from botorch_dp.pareto.beliefs import fitted_gp, objective_scales
from botorch_dp.privacy import dp_sgd_epsilon, dp_sgd_epsilons
from botorch_dp.space import Config

RECORDS, DELTA = 30_956, 1e-5
SIZES = (16, 32, 64, 128, 272)
STUDIES: dict[str, dict[str, Any]] = {
    "ehvi, exact epsilon (default)": {"acquisition": "ehvi"},
    "hvpoi, gp epsilon (the paper's)": {"acquisition": "hvpoi", "privacy_model": "gp"},
}
BASELINES = {
    "tutorial": {"num_restarts": 10, "raw_samples": 512, "mc_samples": 128},
    "light": {"num_restarts": 4, "raw_samples": 128, "mc_samples": 64},
}


def epsilon(config: Config) -> float:
    return dp_sgd_epsilon(
        noise_multiplier=config["noise_multiplier"],
        batch_size=config["batch_size"],
        num_records=RECORDS,
        steps=_steps(config),
        delta=DELTA,
        sampling="without_replacement",
    )


def epsilons(configs: list[Config]) -> list[float]:
    bounds = dp_sgd_epsilons(
        [config["noise_multiplier"] for config in configs],
        [config["batch_size"] for config in configs],
        [_steps(config) for config in configs],
        num_records=RECORDS,
        delta=DELTA,
        sampling="without_replacement",
    )
    return [float(bound) for bound in bounds]


def _steps(config: Config) -> int:
    return int(config["epochs"] * (RECORDS // config["batch_size"]))


def expected_error(config: Config) -> float:
    """Smaller with more and longer steps, larger with more noise."""
    progress = config["learning_rate"] * _steps(config) * config["clip_norm"]
    noise = config["noise_multiplier"] * config["clip_norm"] / config["batch_size"]
    return 0.16 + 0.09 * math.exp(-progress) + 0.3 * math.tanh(8 * noise)


def utility(config: Config, seed: int) -> float:
    """With a little luck."""
    luck = torch.randn((), generator=torch.Generator().manual_seed(seed)).item()
    return min(max(1 - expected_error(config) + 0.004 * luck, 0.0), 1.0)


def make_problem() -> PrivacyUtilityProblem:
    space = SearchSpace(
        epochs=Integer(1, 64, log=True),
        batch_size=Integer(8, 512, log=True),
        learning_rate=Real(5e-4, 5e-2, log=True),
        clip_norm=Real(0.1, 4.0, log=True),
        noise_multiplier=Real(0.1, 16.0, log=True),
    )
    return PrivacyUtilityProblem(
        space,
        privacy=epsilon,
        utility=utility,
        batched=Batched(epsilons=epsilons),
        promise=TrainingPromise(DELTA),
    )


def baseline_step(
    problem: PrivacyUtilityProblem,
    X: Tensor,
    Y: Tensor,
    *,
    num_restarts: int,
    raw_samples: int,
    mc_samples: int,
) -> Tensor:
    """What a BoTorch user writes for one more trial: ``n x d`` codes, ``n x 2`` objectives."""
    model = ModelListGP(*(fitted_gp(X, y, seed=0) for y in Y.split(1, dim=-1)))
    with torch.no_grad():
        means = model.posterior(X).mean
    ref_point = torch.tensor([s.ref_model for s in objective_scales(problem)], dtype=torch.double)
    acquisition = qLogExpectedHypervolumeImprovement(
        model,
        ref_point=ref_point,
        partitioning=FastNondominatedPartitioning(ref_point, Y=means),
        sampler=SobolQMCNormalSampler(torch.Size([mc_samples]), seed=0),
    )
    dim = X.shape[-1]
    bounds = torch.stack([torch.zeros(dim), torch.ones(dim)]).double()
    candidate, _ = optimize_acqf(
        acquisition,
        bounds,
        q=1,
        num_restarts=num_restarts,
        raw_samples=raw_samples,
        options={"batch_limit": 5, "maxiter": 200},
    )
    return candidate


def measure(size: int, repeats: int, folder: Path) -> dict[str, Any]:
    """Processor seconds of each side for the trials ``size, size + 1, ...``."""
    problem = make_problem()
    studies = {
        name: DPareto(problem, seed=0, storage=folder / f"{index}-{size}.sqlite", **options)
        for index, (name, options) in enumerate(STUDIES.items())
    }
    for study in studies.values():
        study.run(size, initial=size)
    times: dict[str, list[float]] = {name: [] for name in (*STUDIES, *BASELINES)}
    scales = objective_scales(problem)
    for _ in range(repeats + 1):
        for name, study in studies.items():
            start = time.process_time()
            (trial,) = study.ask(1, initial=size)
            answer = utility(trial.config, trial.missing_seeds[0])
            study.tell(trial, answer)
            times[name].append(time.process_time() - start)
        first = next(iter(studies.values()))
        X = problem.space.encode([trial.config for trial in first.trials])
        values = torch.tensor([(t.epsilon, t.error) for t in first.trials], dtype=torch.double)
        Y = torch.stack([s.to_model(v) for s, v in zip(scales, values.T, strict=True)], dim=-1)
        for name, settings in BASELINES.items():
            start = time.process_time()
            baseline_step(problem, X, Y, **settings)
            times[name].append(time.process_time() - start)
    for study in studies.values():
        study.close()
    result: dict[str, Any] = {"trials": size, "seconds": {}, "of_baseline": {}}
    for name, each in times.items():
        # The first proposal of a process also meets cold caches and the candidates' epsilons.
        result["seconds"][name] = {"first": each[0], "median": statistics.median(each[1:])}
    for name in STUDIES:
        for baseline in BASELINES:
            ratios = [a / b for a, b in zip(times[name][1:], times[baseline][1:], strict=True)]
            result["of_baseline"][f"{name} / {baseline}"] = {
                "median": statistics.median(ratios),
                "low": min(ratios),
                "high": max(ratios),
            }
    return result


def main() -> None:
    parser = BenchmarkParser("pareto_overhead", __doc__, minutes=10)
    parser.add_argument("--repeats", type=int, default=7)
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore", module="botorch|linear_operator|gpytorch")
    torch.manual_seed(0)
    results = []
    with tempfile.TemporaryDirectory() as folder:
        for size in SIZES:
            results.append(measure(size, arguments.repeats, Path(folder)))
            print(f"{size} trials")
            for name, seconds in results[-1]["seconds"].items():
                print(f"  {name}: {seconds['median']:.3g} s (first {seconds['first']:.3g} s)")
            for name, ratio in results[-1]["of_baseline"].items():
                spread = f"{ratio['low']:.2f} to {ratio['high']:.2f}"
                print(f"  {name}: {ratio['median']:.2f} ({spread})")
    save_results(
        "pareto_overhead",
        {"repeats": arguments.repeats, "target": 0.8, "baselines": BASELINES, "sizes": results},
    )


if __name__ == "__main__":
    main()
