"""FiniteSetGP against the memory traffic of its steps and against a fresh SingleTaskGP at each.

A step makes an observation and looks for the largest upper confidence bound. It cannot avoid to
read the choices and its ``t`` rows, to write a row into fresh memory, to update two vectors and to
read them for the bound; the first baseline does this and nothing else. The floor also has the two
roots and the exponential for each choice that the bound and the kernel consist of.

The second comparison runs GP-UCB on the same choices, with the same kernel, noise and schedule, and
must visit the same points. Its baseline conditions a new BoTorch model on all data so far and
maximizes its upper confidence bound with ``optimize_acqf_discrete`` in its default batches (the
fastest of the sizes tried); no hyper-parameter is fitted on either side.

Run with ``OMP_NUM_THREADS=1 python -m benchmarks.finite_set_gp``.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial

import torch
from botorch.optim import optimize_acqf_discrete
from gpytorch.kernels import MaternKernel
from torch import Tensor

from benchmarks.common import (
    BenchmarkParser,
    interleaved_ratio,
    results_folder,
    save_results,
    seconds,
)
from botorch_dp.acquisition import PrivateUpperConfidenceBound, UCBSchedule
from botorch_dp.models import FiniteSetGP, public_gp

NOISE_VARIANCE = 1e-2
DELTA = 0.1


def kernel() -> MaternKernel:
    matern = MaternKernel(nu=2.5)
    matern.lengthscale = 0.2
    return matern


def choice_set(count: int, dim: int = 2) -> Tensor:
    return torch.quasirandom.SobolEngine(dim).draw(count, dtype=torch.double)


def objective(x: Tensor) -> float:
    return torch.sin(7 * x).sum().item()


def finite_set_ucb(choices: Tensor, steps: int) -> list[int]:
    gp = FiniteSetGP(choices, kernel=kernel(), noise_variance=NOISE_VARIANCE)
    schedule = UCBSchedule(len(choices), delta=DELTA)
    visited = [0]
    gp.observe(0, objective(choices[0]))
    for step in range(2, steps + 1):
        index = int(gp.upper_confidence_bound(schedule(step)).argmax())
        gp.observe(index, objective(choices[index]))
        visited.append(index)
    return visited


def fresh_model_ucb(choices: Tensor, steps: int) -> list[int]:
    schedule = UCBSchedule(len(choices), delta=DELTA)
    X = choices[:1]
    Y = torch.tensor([[objective(choices[0])]], dtype=torch.double)
    visited = [0]
    for step in range(2, steps + 1):
        model = public_gp(X, Y, kernel=kernel(), noise_variance=NOISE_VARIANCE)
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
    gp = FiniteSetGP(choices, kernel=kernel(), noise_variance=NOISE_VARIANCE)
    schedule = UCBSchedule(len(choices), delta=DELTA)
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
        "from benchmarks.finite_set_gp import choice_set, finite_set_ucb\n"
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


def main() -> None:
    parser = BenchmarkParser("finite_set_gp", __doc__, minutes=4)
    parser.add_argument("--full", action="store_true", help="15 repeats instead of 5")
    options = parser.parse_args()
    torch.set_num_threads(1)
    repeats = 15 if options.full else 5
    choices, steps = choice_set(36_000), 50

    print(f"same visits at 36,000 x 12: {same_visits(choices, 12)}", flush=True)
    ratio = interleaved_ratio(
        lambda: finite_set_ucb(choices, steps),
        lambda: fresh_model_ucb(choices, steps),
        repeats=repeats,
        warmup=1,
    )
    print(f"36,000 choices x 50 steps: {ratio}", flush=True)
    traffic = []
    for count in (36_000, 1_000_000):
        for length in (5, 50):
            traffic.append(against_traffic(count, length, 3 * repeats))
            print(f"against the memory traffic: {traffic[-1]}", flush=True)
    million = memory_run(1_000_000, 50)
    print(f"1,000,000 choices x 50 steps: {million}", flush=True)
    ten_million = memory_run(10_000_000, 12)
    print(f"10,000,000 choices x 12 steps: {ten_million}", flush=True)
    rows = scaling([1_000, 10_000, 100_000, 1_000_000], [10, 20, 50, 100], repeats=2)
    rows += scaling([10_000], [200, 500], repeats=2)
    save_results(
        "finite_set_gp",
        {
            "ratio_36000x50": ratio,
            "targets": {"times_the_traffic": {"36000": 3, "1000000": 2}, "million_gib": 2},
            "against_memory_traffic": traffic,
            "million_x_50": million,
            "ten_million_x_12": ten_million,
            "scaling": rows,
            "repeats": repeats,
            "full": options.full,
        },
    )
    draw_figure(rows)


if __name__ == "__main__":
    main()
