"""How cost grows with what a user has more and more of: records, points, choices, charges, trials.

    OMP_NUM_THREADS=1 python -m benchmarks.growth [--quick]

CPU seconds (so that a shared machine disturbs little), the median of several repeats, one size
changed at a time; and the exponent between the two largest sizes: 1 is proportional growth. A
private evaluation is also held against its exact sum alone, the two taking turns. Takes
about four minutes and 3 GB; ``--quick`` leaves out the largest sizes. Writes
``results/growth.json`` and ``results/growth.png``. What one step of a descent costs is in
``dp_gibo_speed``.
"""

from __future__ import annotations

import math
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import astuple, replace
from typing import Any

import opendp.prelude as opendp
import torch
from gpytorch.kernels import RBFKernel
from matplotlib.figure import Figure

from benchmarks.common import (
    BenchmarkParser,
    Ratio,
    interleaved_ratio,
    results_folder,
    save_results,
    seconds,
)
from benchmarks.dp_gibo_speed import trace_functions
from botorch_dp.models import FiniteSetGP
from botorch_dp.objectives import PrivateObjective
from botorch_dp.pareto import DPareto, PrivacyUtilityProblem
from botorch_dp.privacy import (
    PrivacyBudget,
    PrivacyLedger,
    dp_sgd_epsilons,
    gaussian_guarantee,
    gaussian_mechanism,
)
from botorch_dp.privacy.ledger import _COLUMNS
from botorch_dp.space import Real, SearchSpace


def objective(n: int) -> Callable[[], Any]:
    """One private evaluation of ``n`` records whose scores are there."""
    scores = torch.rand(1, n, dtype=torch.double)
    private = PrivateObjective(lambda X: scores, bounds=(0.0, 1.0), mu=1.0, num_records=n)
    X = torch.zeros(1, 1, dtype=torch.double)
    return lambda: private(X)


def exact_sum(n: int) -> Callable[[], Any]:
    """What any exact mean of clipped scores must do: clip, scale, round to integers, add."""
    scores = torch.rand(n, dtype=torch.double)
    return lambda: (scores.clamp(0.0, 1.0) * 2.0**33).round().sum().item()


def objective_ratio(n: int) -> Ratio:
    """How many times the time of its exact sum a private evaluation takes."""
    return interleaved_ratio(
        exact_sum(n), objective(n), repeats=51, warmup=5, clock=time.process_time
    )


def vector(d: int) -> Callable[[], Any]:
    """One released vector of ``d`` numbers."""
    value = torch.zeros(d, dtype=torch.double)
    return lambda: gaussian_mechanism(value, sensitivity=1.0, mu=1.0)


def finest_noise(d: int) -> Callable[[], Any]:
    """Noise for ``d`` numbers as OpenDP adds it unless told otherwise: to every bit of a double."""
    opendp.enable_features("contrib")
    doubles = opendp.vector_domain(opendp.atom_domain(T="f64", nan=False))
    add = opendp.m.make_gaussian(doubles, opendp.l2_distance(T="f64"), scale=1.0)
    values = [0.0] * d
    return lambda: add(values)


def trace(points: int) -> Callable[[], Any]:
    """``GradientTrace`` with its derivative, 16 candidate sets, d = 10."""
    return trace_functions(points, 10, 16)["ours"]


def finite_set(choices: int) -> Callable[[], Any]:
    """The mean over 20 steps of GP-UCB on ``choices`` rows, d = 2."""
    rows = torch.rand(choices, 2, dtype=torch.double)

    def search() -> None:
        model = FiniteSetGP(rows, kernel=RBFKernel(), noise_variance=1e-2)
        for _ in range(20):
            model.observe(int(model.upper_confidence_bound(4.0).argmax()), 0.0)

    return search


def ledger(charges: int) -> Callable[[], Any]:
    """Open a ledger file, verify its chain of hashes and add up what was spent."""
    path = os.path.join(tempfile.mkdtemp(), "ledger.sqlite")
    made = PrivacyLedger(path, PrivacyBudget(1e6, 1e-6))
    made.charge(gaussian_guarantee(sensitivity=1.0, mu=1e-3), label="trial")
    file = made._file
    with file.transaction():  # one by one they would take as many writes to the disk
        row, digest = file.rows()[0], file.totals().digest
        for number in range(2, charges + 1):
            row = replace(row, number=number)
            digest = row.digest(digest)
            file.execute(
                f"INSERT INTO charge ({_COLUMNS}, digest) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (*astuple(row), digest),
            )
    made.close()
    return lambda: PrivacyLedger(path).spent()


def study(trials: int) -> DPareto:
    """A study with so many finished trials, of a problem that costs nothing."""
    space = SearchSpace(noise=Real(0.1, 10.0, log=True), rate=Real(1e-3, 1.0, log=True))

    def utility(config: Any, seed: int) -> float:
        return 0.5 + 0.4 * math.tanh(math.log(config["noise"])) * config["rate"]

    problem = PrivacyUtilityProblem(
        space, privacy=lambda config: 1 / config["noise"], utility=utility
    )
    made = DPareto(problem, seed=0)
    for number, config in enumerate(space.sample(trials, seed=0)):
        made.add_trial(config, [utility(config, number)])
    return made


def front(trials: int) -> Callable[[], Any]:
    """The points of the front of a study."""
    made = study(trials)
    return lambda: made.front().points


def proposal(trials: int) -> Callable[[], Any]:
    """One proposal of a study."""
    made = study(trials)
    return lambda: made.ask()


def epsilons(candidates: int) -> Callable[[], Any]:
    """Epsilons of so many DP-SGD settings at once, after warming up."""
    noise = torch.linspace(0.5, 5.0, candidates).tolist()
    batches, steps = [256] * candidates, [1000] * candidates
    return lambda: dp_sgd_epsilons(noise, batches, steps, num_records=32561, delta=1e-5)


CASES: dict[str, tuple[str, Callable[[int], Callable[[], Any]], Sequence[int]]] = {
    "private evaluation": ("records", objective, (1_000, 10_000, 100_000, 1_000_000)),
    "its exact sum alone": ("records", exact_sum, (1_000, 10_000, 100_000, 1_000_000)),
    "released vector": ("numbers", vector, (1, 10, 100, 1_000, 10_000)),
    "GradientTrace": ("points", trace, (20, 100, 300, 1_000)),
    "20 steps of FiniteSetGP": (
        "choices",
        finite_set,
        (1_000, 10_000, 100_000, 1_000_000, 10_000_000),
    ),
    "opening a ledger": ("charges", ledger, (100, 1_000, 10_000, 100_000)),
    "front of a study": ("trials", front, (100, 1_000, 5_000, 10_000)),
    "proposal of a study": ("trials", proposal, (100, 300, 1_000, 3_000, 10_000)),
    "epsilons": ("settings", epsilons, (1, 32, 256, 2_048)),
}


def main() -> None:
    parser = BenchmarkParser("growth", __doc__, minutes=4)
    parser.add_argument("--quick", action="store_true", help="without the largest sizes")
    parser.add_argument("--only", choices=sorted(CASES), action="append", help="this case only")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    results: dict[str, Any] = {}
    for name, (what, make, sizes) in CASES.items():
        if options.only and name not in options.only:
            continue
        medians = {}
        for size in sizes[:-1] if options.quick else sizes:
            call = make(size)
            call()
            spent = [seconds(call, time.process_time)]
            while (len(spent) < 3 and sum(spent) < 5) or (sum(spent) < 0.3 and len(spent) < 50):
                spent.append(seconds(call, time.process_time))
            medians[size] = statistics.median(spent)
        (low, fast), (high, slow) = list(medians.items())[-2:]
        exponent = math.log(slow / fast) / math.log(high / low)
        results[name] = {"size": what, "seconds": medians, "exponent": exponent}
        row = ", ".join(f"{size:,}: {1e3 * value:.3g} ms" for size, value in medians.items())
        print(f"{name} ({what}) {row}; exponent {exponent:.2f}", flush=True)
    if not options.only:
        name = "private evaluation over its exact sum, 1,000,000 records"
        ratio = objective_ratio(1_000_000)
        print(f"{name}: {ratio}", flush=True)
        ratios = {name: ratio}
        name = "10,000 released numbers, OpenDP at its finest lattice over ours"
        ratios[name] = interleaved_ratio(
            vector(10_000), finest_noise(10_000), repeats=9, clock=time.process_time
        )
        print(f"{name}: {ratios[name]}", flush=True)
        save_results("growth", {"curves": results, "ratios": ratios})
        draw(results).savefig(results_folder() / "growth.png", dpi=120)


def draw(results: dict[str, Any]) -> Figure:
    """All curves, in CPU seconds over the size."""
    figure = Figure(figsize=(11, 5), layout="constrained")
    axes = figure.subplots()
    for marker, (name, result) in zip("osvD^P*Xh", results.items(), strict=True):
        sizes, spent = zip(*result["seconds"].items(), strict=True)
        label = f"{name}, {result['size']} (exponent {result['exponent']:.2f})"
        axes.loglog([int(size) for size in sizes], spent, marker=marker, label=label)
    axes.set_xlabel("size: records, points, choices, charges, trials, ...")
    axes.set_ylabel("CPU seconds, one thread")
    axes.grid(alpha=0.3)
    figure.legend(fontsize=8, loc="outside right upper")
    axes.set_title("How cost grows; the exponent is that between the two largest sizes")
    return figure


if __name__ == "__main__":
    main()
