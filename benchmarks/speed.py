"""How fast is it, and how does cost grow?

    OMP_NUM_THREADS=1 python -m benchmarks.speed [--part growth choices ledger imports]

* ``growth``: processor seconds as records, points, choices, charges, trials and settings become
  more, one size changed at a time; the exponent between the two largest sizes (1 is proportional
  growth). A private evaluation is also held against its exact sum, and noise for 10,000 numbers
  against OpenDP at its finest lattice. Takes 3 GB; ``--quick`` leaves out the largest sizes.
* ``choices``: a choice among a million utilities, against the same distribution drawn with NumPy,
  which is not private. Memory is the growth of a fresh process's peak during one call (Linux).
* ``ledger``: one charge against a bare durable SQLite insert on the same disk, with the settings
  under which a commit survives a power cut (rollback journal, ``synchronous = EXTRA``).
* ``imports``: ``import botorch_dp`` and its subpackages against BoTorch plus OpenDP,
  in processor seconds of new processes that take turns.
"""

from __future__ import annotations

import math
import multiprocessing
import os
import resource
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import opendp.prelude as opendp
import torch
from gpytorch.kernels import RBFKernel
from matplotlib.figure import Figure
from torch import nn

from benchmarks.common import (
    BenchmarkParser,
    Ratio,
    interleaved_ratio,
    results_folder,
    save_results,
    seconds,
)
from benchmarks.dp_gibo_speed import trace_functions
from botorch_dp.descent import DPGIBO
from botorch_dp.models import FiniteSetGP
from botorch_dp.objectives import PrivateObjective
from botorch_dp.pareto import DPareto, PrivacyUtilityProblem
from botorch_dp.pareto.problem import Measurement, Trial
from botorch_dp.privacy import (
    PrivacyBudget,
    PrivacyLedger,
    dp_sgd_epsilons,
    exponential_mechanism,
    gaussian_guarantee,
    gaussian_mechanism,
    laplace_guarantee,
)
from botorch_dp.privacy.ledger import _COLUMNS, row_digest
from botorch_dp.space import Real, SearchSpace
from botorch_dp.training import DPTrainer, TrainTest
from botorch_dp.tuning import PrivateSearch


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
        model = FiniteSetGP(rows, kernel=RBFKernel(), noise_std=0.1)
        for _ in range(20):
            model.observe(int(model.upper_confidence_bound(4.0).argmax()), 0.0)

    return search


def opened_ledger(charges: int) -> Callable[[], Any]:
    """Open a ledger file, verify its chain of hashes and add up what was spent."""
    path = os.path.join(tempfile.mkdtemp(), "ledger.sqlite")
    made = PrivacyLedger(path, PrivacyBudget(1e6, 1e-6))
    made.charge(gaussian_guarantee(sensitivity=1.0, mu=1e-3), label="trial")
    file = made._file
    with file.transaction():  # one by one they would take as many writes to the disk
        row, digest = file.rows()[0], file.totals().digest
        for number in range(2, charges + 1):
            row = (number, *row[1:])
            digest = row_digest(digest, row)
            file.execute(
                f"INSERT INTO charge ({_COLUMNS}, digest) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (*row, digest),
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
        measured = (Measurement(utility(config, number)),)
        epsilon = problem.epsilon(config)
        made._file.add(Trial(number, config, (number,), epsilon, "complete", measured))
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


def training(n: int) -> Callable[[], Any]:
    """Twelve steps of a logistic regression of 100 numbers, a twelfth of the records each."""
    return one_epoch(nn.Linear(100, 10), torch.rand(n, 100), n // 12)


def network(parameters: int, *, publish: bool = False) -> Callable[[], Any]:
    """Ten steps of a network of one hidden layer, 64 records each."""
    hidden = max(1, parameters // 795)
    layers = nn.Linear(784, hidden), nn.ReLU(), nn.Linear(hidden, 10)
    return one_epoch(nn.Sequential(*layers), torch.rand(640, 784), 64, publish=publish)


def one_epoch(
    model: nn.Module, X: torch.Tensor, batch_size: int, *, publish: bool = False
) -> Callable[[], Any]:
    data = TrainTest(X, torch.arange(len(X)) % 10)
    trainer = DPTrainer(lambda: model, nn.CrossEntropyLoss(), data)
    settings = {"noise_multiplier": 1.0, "clip_norm": 1.0, "learning_rate": 0.01, "epochs": 1}
    seed = None if publish else 0
    return lambda: trainer.fit(**settings, batch_size=batch_size, seed=seed, publish=publish)


def search(n: int) -> Callable[[], Any]:
    """A search over five numbers with 200 evaluations of ``n`` records, whose scores are there."""
    space = SearchSpace(**{name: Real(0.0, 1.0) for name in "abcde"})
    records, place = torch.rand(n, dtype=torch.double), torch.full((5,), 0.3).double()

    def scores(configs: list[Any]) -> torch.Tensor:
        points = torch.tensor([list(config.values()) for config in configs], dtype=torch.double)
        return (points - place).square().sum(1, keepdim=True) / 5 + 0.1 * records

    return lambda: PrivateSearch(
        scores, space, bounds=(0.0, 1.0), maximize=False, num_records=n, evaluations=200,
        budget=PrivacyBudget(1.0, 1e-6), method="descent", unsafe_seed=0,
    ).run()  # fmt: skip


def descent(d: int) -> Callable[[], Any]:
    """Two steps of DP-GIBO with 1,000 records, whose losses are there."""
    losses = torch.rand(d + 1, 1_000, dtype=torch.double)
    start = torch.full((d,), 0.5, dtype=torch.double)
    kernel = RBFKernel().double()
    return lambda: DPGIBO(
        lambda X: losses[: len(X)], start, kernel=kernel, mu=1.0, steps=2, clip_norm=1.0,
        step_size=0.01,
    ).run()  # fmt: skip


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
    "opening a ledger": ("charges", opened_ledger, (100, 1_000, 10_000, 100_000)),
    "front of a study": ("trials", front, (100, 1_000, 5_000, 10_000)),
    "proposal of a study": ("trials", proposal, (100, 300, 1_000, 3_000, 10_000)),
    "epsilons": ("settings", epsilons, (1, 32, 256, 2_048)),
    "twelve steps of a training": ("records", training, (1_000, 10_000, 100_000, 1_000_000)),
    "ten steps of a network": ("parameters", network, (10_000, 100_000, 1_000_000, 10_000_000)),
    "the same, published": (
        "parameters",
        partial(network, publish=True),
        (10_000, 100_000, 1_000_000, 10_000_000),
    ),
    "private search": ("records", search, (1_000, 10_000, 100_000, 1_000_000)),
    "two steps of DP-GIBO": ("parameters", descent, (10, 50, 200, 500)),
}


def draw(results: dict[str, Any]) -> Figure:
    """All curves, in CPU seconds over the size."""
    figure = Figure(figsize=(9, 6.5), layout="constrained")
    axes = figure.subplots()
    for marker, (name, result) in zip("osvD^P*Xh<>d8p", results.items(), strict=True):
        sizes, spent = zip(*result["seconds"].items(), strict=True)
        label = f"{name}, {result['size']} (exponent {result['exponent']:.2f})"
        axes.loglog([int(size) for size in sizes], spent, marker=marker, label=label)
    axes.set_xlabel("size: records, points, choices, charges, trials, ...")
    axes.set_ylabel("seconds of a processor, one thread")
    axes.grid(alpha=0.3)
    figure.legend(fontsize=9, ncol=2, loc="outside lower center")
    axes.set_title("How cost grows; the exponent is that between the two largest sizes")
    return figure


#: Noise of scale 2 for each of them: utilities within reach of it, and one far above all others,
#: which makes a sampler try about all of them before it accepts one.
UTILITIES: dict[str, Callable[[int], torch.Tensor]] = {
    "uniform in [0, 1]": lambda n: torch.rand(n, dtype=torch.float64),
    "normal, std 10": lambda n: 10 * torch.randn(n, dtype=torch.float64),
    "one of them above the others by 100": lambda n: torch.eye(1, n, dtype=torch.float64)[0] * 100,
}


def _select(utilities: torch.Tensor, method: str, seed: int | None) -> Any:
    return exponential_mechanism(
        utilities, sensitivity=1.0, epsilon=1.0, method=method, unsafe_seed=seed
    )


def _peak_growth(case: str, size: int, method: str, seed: int | None) -> float:
    """Megabytes by which one call raises the peak of a fresh process."""
    torch.manual_seed(0)
    utilities = UTILITIES[case](size)
    _select(utilities[:10], method, seed)  # imports and caches are not the call's
    before = peak_megabytes()
    _select(utilities, method, seed)
    return peak_megabytes() - before


def peak_megabytes() -> float:
    """Of this program alone: ``getrusage`` would remember the parent's peak across exec."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) / 1024


BASELINE = "botorch + OpenDP"


SUBPACKAGES = (
    "release", "descent", "pareto", "training", "tuning", "outsourced", "tasks", "plots", "report",
    "cli", "acquisition",
)  # fmt: skip
IMPORTS = {
    BASELINE: "import botorch, opendp.prelude",
    "botorch_dp": "import botorch_dp",
    "botorch_dp.privacy": "import botorch_dp.privacy",
    "botorch_dp.pareto": "import botorch_dp.pareto",
    "every subpackage": "import " + ", ".join(f"botorch_dp.{name}" for name in SUBPACKAGES),
}


def processor_seconds(arguments: Sequence[str]) -> float:
    """Processor seconds of a new Python process."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-W", "ignore", *arguments], capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def medians(programs: Mapping[str, Sequence[str]], turns: int) -> dict[str, float]:
    """Of all turns but the first, all programs taking turns."""
    times = [
        {name: processor_seconds(program) for name, program in programs.items()}
        for _ in range(turns + 1)
    ]
    return {name: statistics.median(turn[name] for turn in times[1:]) for name in programs}


def choices(quick: bool) -> None:
    """Seconds and memory of choices, stored as ``mechanisms.json``."""
    size, found = 100_000 if quick else 1_000_000, []
    torch.manual_seed(0)
    print(f"Selection among {size:,} utilities, exact against simulated noise:")
    fresh = multiprocessing.get_context("spawn")
    for method in ("exponential", "permute_and_flip"):
        for case, make in UTILITIES.items():
            utilities = make(size)
            ratio = interleaved_ratio(
                lambda u=utilities, m=method: _select(u, m, 0),
                lambda u=utilities, m=method: _select(u, m, None),
                repeats=5,
            )
            with fresh.Pool(1) as pool:
                megabytes = pool.apply(_peak_growth, (case, size, method, None))
            print(
                f"  {method:<17}{case:<37}{ratio.baseline_seconds:>7.2f} s {megabytes:>6.0f} MB, "
                f"{ratio.median:.3g} times the simulation's time "
                f"({ratio.low:.3g} to {ratio.high:.3g})"
            )
            found.append(
                {"method": method, "utilities": case, "time": ratio, "megabytes": megabytes}
            )
    if not quick:
        save_results("mechanisms", {"size": size, "selection": found})


def bare_insert(path: Path) -> Callable[[], object]:
    """A function that durably inserts one row of numbers and a label."""
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA journal_mode = DELETE")
    connection.execute("PRAGMA synchronous = EXTRA")
    connection.execute(
        "CREATE TABLE charge (number INTEGER PRIMARY KEY, label TEXT, epsilon REAL, delta REAL, "
        "mu REAL)"
    )

    def insert() -> None:
        connection.execute(
            "INSERT INTO charge (label, epsilon, delta, mu) VALUES ('trial', 1e-5, 0.0, 0.0)"
        )

    return insert


def ledger(quick: bool) -> None:
    """Bare inserts that one charge costs, by the charges before it, stored as ``ledger.json``."""
    results: dict[str, object] = {"what": "cost of one charge in bare SQLite inserts"}
    prices = {
        "summed": laplace_guarantee(sensitivity=1.0, epsilon=1e-5),
        "gaussian": gaussian_guarantee(sensitivity=1.0, mu=1e-4),
    }
    repeats = 201
    with tempfile.TemporaryDirectory(dir=".") as folder:  # on this disk; /tmp may be in memory
        for name, guarantee in prices.items():
            path = Path(folder) / f"{name}.ledger"
            insert, charges = bare_insert(Path(folder) / f"{name}.sqlite"), 0
            with PrivacyLedger(path, PrivacyBudget(10.0, 1e-6)) as made:
                charge = partial(made.charge, guarantee, label="trial")
                for size in (0, 1_000) if quick else (0, 1_000, 10_000):
                    while charges < size:
                        charge()
                        insert()
                        charges += 1
                    # The insert is the "method" here, so the ratio is a charge's cost in inserts.
                    ratio = interleaved_ratio(insert, charge, repeats=repeats)
                    charges += repeats + 1
                    print(f"{name}, after {size:>6} charges: {ratio}", flush=True)
                    results[f"{name} after {size}"] = {"EXTRA": ratio}
    if not quick:
        save_results("ledger", results)


def imports(quick: bool) -> None:
    """Seconds of imports, stored as ``import_time.json``."""
    turns = 1 if quick else 5
    results: dict[str, object] = {}
    found = medians({name: ("-c", program) for name, program in IMPORTS.items()}, turns)
    for name, median in found.items():
        share = median / found[BASELINE]
        results[name] = {"seconds": median, f"of {BASELINE}": share}
        print(f"{name:22s} {median:6.2f} s  {share:5.2f} of {BASELINE}", flush=True)
    save_results("import_time", results)


def growth(quick: bool, only: Sequence[str] = ()) -> None:
    """All curves and two ratios, stored as ``growth.json`` and ``growth.png``."""
    torch.manual_seed(0)
    results: dict[str, Any] = {}
    for name, (what, make, sizes) in CASES.items():
        if only and name not in only:
            continue
        medians = {}
        for size in sizes[:-1] if quick else sizes:
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
    if only:
        return
    ratios = {
        "private evaluation over its exact sum, 1,000,000 records": objective_ratio(1_000_000),
        "10,000 released numbers, OpenDP at its finest lattice over ours": interleaved_ratio(
            vector(10_000), finest_noise(10_000), repeats=9, clock=time.process_time
        ),
    }
    for name, ratio in ratios.items():
        print(f"{name}: {ratio}", flush=True)
    save_results("growth", {"curves": results, "ratios": ratios})
    draw(results).savefig(results_folder() / "growth.png", dpi=110)


def main() -> None:
    minutes = {"growth": 4, "choices": 2, "ledger": 2, "imports": 1}
    parser = BenchmarkParser("speed", __doc__, minutes=minutes)
    parser.add_argument("--quick", action="store_true", help="smaller sizes")
    parser.add_argument("--only", choices=sorted(CASES), action="append", help="of ``growth``")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.only:
        growth(options.quick, options.only)
        return
    for part in options.part:
        PARTS[part](options.quick)


PARTS: dict[str, Callable[[bool], None]] = {
    "growth": growth,
    "choices": choices,
    "ledger": ledger,
    "imports": imports,
}

if __name__ == "__main__":
    main()
