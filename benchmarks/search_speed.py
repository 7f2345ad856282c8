"""How fast is what a search calls again and again?

    OMP_NUM_THREADS=1 python -m benchmarks.search_speed [--part finite_sets hvpoi dpareto]

* ``finite_sets``: GP-UCB by ``FiniteSetGP`` on 36,000 choices against a fresh BoTorch model at
  each step, maximized by ``optimize_acqf_discrete`` in its default batches (the fastest of the
  sizes tried). Kernel, noise and schedule are the same, nothing is fitted, and both must visit
  the same points. Also against the memory traffic that a step cannot avoid: to read the choices
  and its ``t`` rows, to write one row, to update two vectors and to read them for the bound. The
  floor adds the two roots and the exponential that the bound and the kernel consist of.
* ``hvpoi``: HVPoI and its logarithm, value and gradient, against BoTorch's analytic EHVI on the
  same front: with the posterior of a Gaussian process, and on given means and variances.
* ``dpareto``: DPareto's own time for a trial against a loop around BoTorch's qLogEHVI that fits
  the same models to the same data, with the settings of BoTorch's multi-objective tutorial
  ("tutorial") and with a fraction of its effort ("light"). The problem has the space and the
  epsilon of DP-SGD on 30,956 records, and a formula for the utility.

Both sides take turns in one process; processor time, but for the first comparison.
"""

from __future__ import annotations

import itertools
import json
import math
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from botorch.acquisition.multi_objective.analytic import ExpectedHypervolumeImprovement
from botorch.acquisition.multi_objective.logei import qLogExpectedHypervolumeImprovement
from botorch.models import ModelListGP, SingleTaskGP
from botorch.optim import optimize_acqf, optimize_acqf_discrete
from botorch.sampling.normal import SobolQMCNormalSampler
from botorch.utils.multi_objective.box_decompositions.non_dominated import (
    FastNondominatedPartitioning,
)
from botorch.utils.testing import MockModel, MockPosterior
from gpytorch.kernels import MaternKernel
from torch import Tensor

from benchmarks.common import (
    BenchmarkParser,
    Ratio,
    interleaved_ratio,
    results_folder,
    save_results,
    seconds,
)
from botorch_dp.acquisition import (
    HypervolumeProbabilityOfImprovement,
    LogHypervolumeProbabilityOfImprovement,
    PrivateUpperConfidenceBound,
    UCBSchedule,
)
from botorch_dp.models import FiniteSetGP, public_gp
from botorch_dp.pareto import Batched, DPareto, PrivacyUtilityProblem, TrainingPrivacy
from botorch_dp.pareto.surrogates import fitted_gp, objective_scales
from botorch_dp.privacy import dp_sgd_epsilon, dp_sgd_epsilons
from botorch_dp.space import Config, Integer, Real, SearchSpace

NOISE_STD = 0.1


SEARCH_DELTA = 0.1


def kernel() -> MaternKernel:
    matern = MaternKernel(nu=2.5)
    matern.lengthscale = 0.2
    return matern


def choice_set(count: int, dim: int = 2) -> Tensor:
    return torch.quasirandom.SobolEngine(dim).draw(count, dtype=torch.double)


def objective(x: Tensor) -> float:
    return torch.sin(7 * x).sum().item()


def finite_set_ucb(choices: Tensor, steps: int) -> list[int]:
    gp = FiniteSetGP(choices, kernel=kernel(), noise_std=NOISE_STD)
    schedule = UCBSchedule(len(choices), delta=SEARCH_DELTA)
    visited = [0]
    gp.observe(0, objective(choices[0]))
    for step in range(2, steps + 1):
        index = int(gp.upper_confidence_bound(schedule(step)).argmax())
        gp.observe(index, objective(choices[index]))
        visited.append(index)
    return visited


def fresh_model_ucb(choices: Tensor, steps: int) -> list[int]:
    schedule = UCBSchedule(len(choices), delta=SEARCH_DELTA)
    X = choices[:1]
    Y = torch.tensor([[objective(choices[0])]], dtype=torch.double)
    visited = [0]
    for step in range(2, steps + 1):
        model = public_gp(X, Y, kernel=kernel(), noise_std=NOISE_STD)
        acqf = PrivateUpperConfidenceBound(model, schedule=schedule, step=step)
        x, _ = optimize_acqf_discrete(acqf, q=1, choices=choices)
        visited.append(int((choices == x).all(-1).nonzero()[0]))
        X = torch.cat([X, x])
        Y = torch.cat([Y, torch.tensor([[objective(x)]], dtype=torch.double)])
    return visited


def same_visits(choices: Tensor, steps: int) -> bool:
    return finite_set_ucb(choices, steps) == fresh_model_ucb(choices, steps)


def process_seconds(run: Callable[[int], None], steps: int) -> float:
    """Processor seconds of ``run(t)`` for ``t = 0, ..., steps - 1``."""
    start = time.process_time()
    for step in range(steps):
        run(step)
    return time.process_time() - start


def step_seconds(choices: Tensor, steps: int) -> float:
    gp = FiniteSetGP(choices, kernel=kernel(), noise_std=NOISE_STD)
    schedule = UCBSchedule(len(choices), delta=SEARCH_DELTA)
    index = 0

    def run(step: int) -> None:
        nonlocal index
        gp.observe(index, 0.3)
        index = int(gp.upper_confidence_bound(schedule(step + 2)).argmax())

    return process_seconds(run, steps)


def traffic_seconds(choices: Tensor, steps: int, *, roots: bool = False) -> float:
    columns = choices.T.contiguous()
    rows = choices.new_empty(steps, len(choices))
    weights = torch.full((steps,), 1e-3, dtype=choices.dtype)
    mean, variance = torch.zeros_like(rows[0]), torch.ones_like(rows[0])

    def run(step: int) -> None:
        columns.sum(0)
        if step:
            torch.mv(rows[:step].T, weights[:step], out=rows[step])
        else:
            rows[0].fill_(0.5)
        mean.add_(rows[step])
        variance.add_(rows[step])
        int((mean + variance).argmax())
        if roots:
            torch.sqrt(variance)
            torch.exp_(torch.sqrt(variance))

    return process_seconds(run, steps)


def against_traffic(count: int, steps: int, repeats: int) -> dict[str, float | int]:
    """How many times the unavoidable time the steps take: median and range over turns."""
    choices = choice_set(count)
    step_seconds(choices, 3)
    taken = [
        (
            step_seconds(choices, steps),
            traffic_seconds(choices, steps),
            traffic_seconds(choices, steps, roots=True),
        )
        for _ in range(repeats)
    ]
    ratios = sorted(ours / traffic for ours, traffic, _ in taken)
    ours, traffic, floor = (
        1e3 * statistics.median(each) / steps for each in zip(*taken, strict=True)
    )
    return {
        "choices": count,
        "steps": steps,
        "times": statistics.median(ratios),
        "low": ratios[0],
        "high": ratios[-1],
        "times_the_floor": statistics.median(ours / floor for ours, _, floor in taken),
        "milliseconds_per_step": ours,
        "traffic_milliseconds_per_step": traffic,
        "floor_milliseconds_per_step": floor,
        "repeats": repeats,
    }


def memory_run(count: int, steps: int) -> dict[str, float]:
    """Time and peak memory in a process of its own; the interpreter's share is measured too."""
    program = (
        # `getrusage` would begin with the peak of the process that started this one.
        "import json, time, torch; torch.set_num_threads(1)\n"
        "from benchmarks.search_speed import choice_set, finite_set_ucb\n"
        "def peak():\n"
        "    lines = open('/proc/self/status').read().splitlines()\n"
        "    return next(int(x.split()[1]) for x in lines if x.startswith('VmHWM')) / 2**20\n"
        f"before = peak(); choices = choice_set({count}); start = time.process_time()\n"
        f"finite_set_ucb(choices, {steps})\n"
        "print(json.dumps({'seconds': time.process_time() - start,"
        " 'peak_gib': peak(), 'gib_before': before}))"
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program], capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout)


def scaling(counts: list[int], steps: list[int], repeats: int) -> list[dict[str, float]]:
    rows = []
    for count in counts:
        choices = choice_set(count)
        finite_set_ucb(choices, 3)
        for length in steps:
            run = partial(finite_set_ucb, choices, length)
            best = min(seconds(run) for _ in range(repeats))
            rows.append({"choices": count, "steps": length, "seconds": best})
            print(f"{count:>9,} choices x {length:>4} steps: {best:8.3f} s", flush=True)
    return rows


def draw_figure(rows: list[dict[str, float]]) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, (by_count, by_steps) = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
    for axis, key, other in ((by_count, "choices", "steps"), (by_steps, "steps", "choices")):
        for value in sorted({row[other] for row in rows}):
            part = [row for row in rows if row[other] == value]
            if len(part) < 2:
                continue
            axis.loglog(
                [row[key] for row in part],
                [row["seconds"] for row in part],
                marker="o",
                label=f"{value:,} {other}",
            )
        axis.set_xlabel(f"{'choices n' if key == 'choices' else 'steps t'}")
        axis.set_ylabel("seconds of the whole run, one thread")
        axis.grid(True, which="major", alpha=0.3)
        axis.legend(fontsize=8, loc="lower right")
    figure.suptitle("GP-UCB on a FiniteSetGP: no privacy guarantee, search only", fontsize=10)
    figure.savefig(results_folder() / "finite_set_gp.png", dpi=120)
    plt.close(figure)


METHODS = {
    "hvpoi": HypervolumeProbabilityOfImprovement,
    "log_hvpoi": LogHypervolumeProbabilityOfImprovement,
}


DIMENSION = 5


def concave_front(num_points: int, num_objectives: int) -> torch.Tensor:
    """Points on the positive part of the unit sphere: all of them are in the front."""
    points = torch.rand(num_points, num_objectives, dtype=torch.double) + 0.01
    return points / points.norm(dim=-1, keepdim=True)


def value_and_gradient(function: Any, *inputs: torch.Tensor) -> Callable[[], None]:
    def evaluate() -> None:
        torch.autograd.grad(function(inputs[0]).sum(), inputs[-1])

    return evaluate


def compare(
    num_objectives: int, num_points: int, batch: int, alone: bool, repeats: int
) -> dict[str, Ratio]:
    front = concave_front(num_points, num_objectives)
    ref_point = torch.zeros(num_objectives, dtype=torch.double)
    partitioning = FastNondominatedPartitioning(ref_point, Y=front)
    X = torch.rand(batch, 1, DIMENSION, dtype=torch.double, requires_grad=True)
    inputs = [X]
    if alone:
        mean = torch.rand(batch, 1, num_objectives, dtype=torch.double, requires_grad=True)
        model: Any = MockModel(MockPosterior(mean=mean, variance=torch.full_like(mean, 0.1)))
        inputs.append(mean)
    else:
        train_X = torch.rand(num_points, DIMENSION, dtype=torch.double)
        model = SingleTaskGP(train_X, front)
    baseline = ExpectedHypervolumeImprovement(model, ref_point.tolist(), partitioning)
    return {
        name: interleaved_ratio(
            value_and_gradient(method(model, ref_point, partitioning), *inputs),
            value_and_gradient(baseline, *inputs),
            repeats=repeats,
            warmup=5,
            clock=time.process_time,
        )
        for name, method in METHODS.items()
    }


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
        noise_multiplier=2 * config["noise_variance"],
        batch_size=config["batch_size"],
        num_records=RECORDS,
        steps=_steps(config),
        delta=DELTA,
        sampling="without_replacement",
    )


def epsilons(configs: list[Config]) -> list[float]:
    bounds = dp_sgd_epsilons(
        [2 * config["noise_variance"] for config in configs],
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
    noise = config["noise_variance"] * config["clip_norm"] / config["batch_size"]
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
        noise_variance=Real(0.1, 16.0, log=True),
    )
    return PrivacyUtilityProblem(
        space,
        privacy=epsilon,
        utility=utility,
        batched=Batched(epsilons=epsilons),
        training=TrainingPrivacy(DELTA),
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
    ref_point = torch.tensor(
        [s.ref_model for s in objective_scales(problem, "linear")], dtype=torch.double
    )
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


def own_time(size: int, repeats: int, folder: Path) -> dict[str, Any]:
    """Processor seconds of each side for the trials ``size, size + 1, ...``."""
    problem = make_problem()
    studies = {
        name: DPareto(problem, seed=0, storage=folder / f"{index}-{size}.sqlite", **options)
        for index, (name, options) in enumerate(STUDIES.items())
    }
    for study in studies.values():
        study.run(size, initial=size)
    times: dict[str, list[float]] = {name: [] for name in (*STUDIES, *BASELINES)}
    scales = objective_scales(problem, "linear")
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


def finite_sets(repeats: int) -> None:
    """Stored as ``finite_set_gp.json`` and ``finite_set_gp.png``."""
    choices, steps = choice_set(36_000), 50
    print(f"same visits at 36,000 x 12: {same_visits(choices, 12)}", flush=True)
    ratio = interleaved_ratio(
        lambda: finite_set_ucb(choices, steps),
        lambda: fresh_model_ucb(choices, steps),
        repeats=repeats,
    )
    print(f"36,000 choices x 50 steps: {ratio}", flush=True)
    traffic = []
    for count in (36_000, 1_000_000):
        for length in (5, 50):
            traffic.append(against_traffic(count, length, 3 * repeats))
            print(f"against the memory traffic: {traffic[-1]}", flush=True)
    million = memory_run(1_000_000, 50)
    print(f"1,000,000 choices x 50 steps: {million}", flush=True)
    rows = scaling([1_000, 10_000, 100_000, 1_000_000], [10, 20, 50, 100], repeats=2)
    rows += scaling([10_000], [200, 500], repeats=2)
    save_results(
        "finite_set_gp",
        {
            "ratio_36000x50": ratio,
            "against_memory_traffic": traffic,
            "million_x_50": million,
            "scaling": rows,
            "repeats": repeats,
        },
    )
    draw_figure(rows)


def hvpoi(repeats: int) -> None:
    """Stored as ``hvpoi.json``."""
    torch.manual_seed(0)
    results = []
    for objectives, points, batch, alone in itertools.product(
        (2, 3, 4), (10, 40), (10, 256), (False, True)
    ):
        setting = {"objectives": objectives, "front": points, "batch": batch}
        ratios = compare(objectives, points, batch, alone, 10 * repeats)
        results.append({**setting, "without_model": alone, **ratios})
        print(results[-1], flush=True)
    save_results("hvpoi", {"baseline": "ExpectedHypervolumeImprovement", "ratios": results})


def dpareto(repeats: int) -> None:
    """Stored as ``pareto_overhead.json``."""
    torch.manual_seed(0)
    results = []
    with tempfile.TemporaryDirectory() as folder:
        for size in SIZES:
            results.append(own_time(size, repeats, Path(folder)))
            print(f"{size} trials")
            for name, spent in results[-1]["seconds"].items():
                print(f"  {name}: {spent['median']:.3g} s (first {spent['first']:.3g} s)")
            for name, ratio in results[-1]["of_baseline"].items():
                spread = f"{ratio['low']:.2f} to {ratio['high']:.2f}"
                print(f"  {name}: {ratio['median']:.2f} ({spread})", flush=True)
    save_results("pareto_overhead", {"repeats": repeats, "baselines": BASELINES, "sizes": results})


def main() -> None:
    minutes = {"finite_sets": 4, "hvpoi": 4, "dpareto": 8}
    parser = BenchmarkParser("search_speed", __doc__, minutes=minutes)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", module="botorch|linear_operator|gpytorch")
    for part in options.part:
        {"finite_sets": finite_sets, "hvpoi": hvpoi, "dpareto": dpareto}[part](options.repeats)


if __name__ == "__main__":
    main()
