"""Outsourced optimization: tables 1 to 9 and figure 2 of [Kharkovskii2020], and Gaussian noise.

    OMP_NUM_THREADS=1 BOTORCH_DP_DATA=<folder> python -m benchmarks.outsourced [--runs 50]

Each table is one record below with the printed parameters and all printed cells: simple regret by
projection dimension r at one claimed epsilon. The rows are scaled to a largest norm of 25 as in the
paper; for our own curator, neighbours differ by one unit in one row. Beside the published
transform, which has no guarantee, stands ``GaussianNoiseCurator`` at the same (epsilon, delta).

- Synthetic (tables 1 to 3): draws of a GP on a 100 x 100 grid. Table 1 comes out with an effective
  length-scale of 6.25 in these units; the printed 1.25 leaves even the search without privacy at a
  regret of about .8 and is run once for comparison.
- Loans (4 to 6) and property (7 to 9): stand-in data, public sets of the same kind in place of the
  paper's. Single rows are far noisier than what can be predicted (one lucky loan is no good loan),
  so the values are those that a GP explains; prices are log-transformed first, and the lowest one
  is looked for. The noise of an answer is ours there.
- Figure 2: its three panels at their printed r and epsilons, with the excess over the search
  without privacy that the text prints.
- Variants of 4 to 9: the stand-in rows need no lifting at the printed epsilon for any printed r, so
  the jump of the printed tables cannot appear. Each of these tables is run once more at the epsilon
  at which our rows reach the threshold at r = 10, 15 and 20.
"""

from __future__ import annotations

import math
import os
import time
import warnings
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gpytorch.kernels import Kernel, RBFKernel, ScaleKernel
from scipy.stats import chi2
from torch import Tensor
from tqdm.auto import tqdm

from benchmarks.common import (
    BenchmarkParser,
    earlier,
    mean_interval,
    paired_interval,
    results_folder,
    save_results,
)
from benchmarks.tables import markdown, short, stored
from botorch_dp.outsourced import (
    Answer,
    GaussianNoiseCurator,
    InputNoiseRBF,
    Modeler,
    RandomProjectionCurator,
    choose_projection_dim,
    singular_floor,
)


@dataclass(frozen=True)
class Table:
    """One table of the paper.

    Args:
        number: In the paper.
        data: ``"synthetic"``, ``"loans"`` or ``"property"``.
        log_epsilon: Of the claimed guarantee.
        printed: Simple regret by ``r``.
        steps: Queries.
        delta: Of the claimed guarantee.
        confidence: Failure probability of the modeler's bounds: half of the paper's .05.
        noise_std: Of an answer, in standard deviations of the values.
        threshold: The largest r that needs no lifting at ``log_epsilon``, where that epsilon is
            ours; None if it is the printed one.
    """

    number: int
    data: str
    log_epsilon: float
    printed: dict[int, float]
    steps: int = 50
    delta: float = 1e-5
    confidence: float = 0.025
    noise_std: float = 0.1
    threshold: int | None = None


_FIRST, _SECOND, _THIRD = (3, 6, 8, 10, 15, 20), (3, 9, 12, 15, 20, 30), (5, 10, 15, 20, 30, 50)


def _table(
    number: int, data: str, log_epsilon: float, dims: tuple[int, ...], *printed: float
) -> Table:
    settings: dict[str, Any] = {
        "synthetic": {"noise_std": math.sqrt(1e-5)},
        "loans": {},
        "property": {"steps": 100, "delta": 1e-4},
    }[data]
    return Table(number, data, log_epsilon, dict(zip(dims, printed, strict=True)), **settings)


TABLES = (
    _table(1, "synthetic", 1.1, _FIRST, 0.073, 0.038, 0.018, 0.014, 0.118, 0.137),
    _table(2, "synthetic", 1.3, _SECOND, 0.091, 0.009, 0.019, 0.008, 0.127, 0.134),
    _table(3, "synthetic", 1.5, _THIRD, 0.050, 0.021, 0.003, 0.002, 0.094, 0.142),
    _table(4, "loans", 2.7, _FIRST, 0.083, 0.088, 0.078, 0.069, 0.081, 0.076),
    _table(5, "loans", 2.9, _SECOND, 0.091, 0.076, 0.078, 0.077, 0.100, 0.096),
    _table(6, "loans", 3.1, _THIRD, 0.097, 0.091, 0.069, 0.084, 0.104, 0.127),
    _table(7, "property", 2.6, _FIRST, 0.682, 0.516, 0.495, 0.485, 0.485, 0.493),
    _table(8, "property", 2.8, _SECOND, 0.567, 0.553, 0.479, 0.453, 0.493, 0.520),
    _table(9, "property", 3.0, _THIRD, 0.591, 0.523, 0.486, 0.482, 0.489, 0.488),
)  # fmt: skip
#: Figure 2: the panel, r, and the printed excess regret over the search without privacy by ln eps.
FIGURE_2 = {
    "synthetic": ("a", 10, {1.1: 0.011, 0.9: 0.069, 0.0: 0.099}),
    "loans": ("b", 15, {2.9: 0.003, 2.0: 0.019, 1.0: 0.05}),
    "property": ("c", 15, {2.8: 0.051, 1.0: 0.017, 0.5: 0.082}),
}
#: The thresholds of the variants of a data set's three tables.
THRESHOLDS = (10, 15, 20)


def variant(table: Table, X: Tensor) -> Table:
    """The table at the epsilon at which these rows reach their threshold at r = 10, 15 or 20.

    The floor ``16 sqrt(r log(2 / delta)) log(16 r / delta) / epsilon`` is the smallest singular
    value there.
    """
    r = THRESHOLDS[(table.number - 1) % 3]
    smallest = float(torch.linalg.svdvals(X - X.mean(0))[-1])
    floor = 16 * math.sqrt(r * math.log(2 / table.delta)) * math.log(16 * r / table.delta)
    return replace(table, log_epsilon=math.log(1.001 * floor / smallest), threshold=r)


@dataclass(frozen=True)
class Problem:
    """Rows, values of run number ``seed``, and the modeler's effective length-scale."""

    name: str
    X: Tensor
    values: Callable[[int], Tensor]
    lengthscale: float

    def kernel(self) -> RBFKernel:
        kernel = RBFKernel().double()
        kernel.lengthscale = self.lengthscale
        return kernel


def scaled(X: Tensor) -> Tensor:
    """Columns standardized by public-sized spreads, rows centred, largest norm 25."""
    X = (X - X.mean(0)) / X.std(0)
    return 25 * X / X.norm(dim=1).max()


def gp_draws(lengthscale: float, side: int = 100) -> Problem:
    axis = torch.linspace(-1, 1, side, dtype=torch.double) * 25 / math.sqrt(2)
    gram = torch.exp(-((axis[:, None] - axis) ** 2) / (2 * lengthscale**2))
    L, V = torch.linalg.eigh(gram)
    root = V * L.clamp_min(0).sqrt()

    def values(seed: int) -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        white = torch.randn(side, side, generator=generator, dtype=torch.double)
        return (root @ white @ root.mT).flatten()

    X = torch.cartesian_prod(axis, axis)
    return Problem(f"GP draws, length-scale {lengthscale:g}", X, values, lengthscale)


def explained(name: str, X: np.ndarray, y: np.ndarray) -> Problem:
    """The part of real values that the rows explain: a GP's mean, fitted to 1,500 rows.

    The fit is outside any accounting and alike for all methods.
    """
    from botorch.fit import fit_gpytorch_mll
    from botorch.models import SingleTaskGP
    from gpytorch.mlls import ExactMarginalLogLikelihood

    rows = scaled(torch.as_tensor(X, dtype=torch.double))
    value = torch.as_tensor(y, dtype=torch.double)
    value = value.clamp(*value.quantile(torch.tensor([0.01, 0.99]).double()).tolist())
    value = (value - value.mean()) / value.std()
    some = torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))[:1500]
    kernel = RBFKernel()
    kernel.lengthscale = 5.0
    model = SingleTaskGP(
        rows[some], value[some, None], covar_module=ScaleKernel(kernel), outcome_transform=None
    )
    fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
    with torch.no_grad():
        mean = torch.cat([model.posterior(part).mean for part in rows.split(5000)]).squeeze(-1)
    mean = (mean - mean.mean()) / mean.std()
    return Problem(name, rows, lambda seed: mean, kernel.lengthscale.item())


@lru_cache(maxsize=3)
def problem_of(data: str, rows: int | None) -> Problem | None:
    """The problem, or None where its data are not at hand."""
    if data == "synthetic":
        return gp_draws(6.25, 100 if rows is None else math.isqrt(rows))
    folder = os.environ.get("BOTORCH_DP_DATA")
    if folder is None:
        return None
    with np.load(Path(folder) / f"{data}.npz") as arrays:
        if data == "loans":
            X, y = np.log1p(arrays["X"]), arrays["roi"]
        else:
            X, y = arrays["X"], -np.log(arrays["price_per_sqm"])  # the cheapest is the best
    return explained(data, X[:rows], y[:rows])


# --- Methods: each returns the rows that are sent out, and the kernel of the modeler. ---

Sent = tuple[Tensor, Any]


def as_they_are(problem: Problem, seed: int, delta: float) -> Sent:
    return problem.X, problem.kernel()


def projected(problem: Problem, seed: int, delta: float, *, r: int, epsilon: float) -> Sent:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        curator = RandomProjectionCurator(
            problem.X, float, projection_dim=r, epsilon=epsilon, delta=delta, unsafe_seed=seed
        )
    return curator.dataset.value, problem.kernel()


def noised(problem: Problem, seed: int, delta: float, *, epsilon: float) -> Sent:
    curator = GaussianNoiseCurator(problem.X, float, epsilon=epsilon, delta=delta, unsafe_seed=seed)
    return curator.dataset.value, InputNoiseRBF(
        lengthscale=problem.lengthscale, noise_std=curator.noise_std
    )


def search(
    problem: Problem, table: Table, send: Callable[..., Sent], seed: int
) -> tuple[list[float], list[Answer]]:
    """Simple regret after each query, in standard deviations of the values; and the answers."""
    values = problem.values(seed)
    noise = torch.Generator().manual_seed(10_000 + seed)
    Z, kernel = send(problem, seed, table.delta)
    modeler = Modeler(Z, kernel=kernel, noise_std=table.noise_std, delta=table.confidence)

    def query(index: int) -> float:
        error = torch.randn((), generator=noise, dtype=torch.double) * table.noise_std
        return float(values[index] + error)

    history = modeler.run(query, steps=table.steps)
    best = torch.stack([values[a.index] for a in history]).cummax(0).values
    return (values.max() - best).tolist(), history


def measured(
    problem: Problem, table: Table, send: Callable[..., Sent], runs: int
) -> dict[str, Any]:
    curves = [search(problem, table, send, seed)[0] for seed in range(runs)]
    return summary(curves)


def random_choice(problem: Problem, table: Table, runs: int) -> dict[str, Any]:
    curves = []
    for seed in range(runs):
        values = problem.values(seed)
        generator = torch.Generator().manual_seed(seed)
        visited = torch.randint(len(values), (table.steps,), generator=generator)
        curves.append((values.max() - values[visited].cummax(0).values).tolist())
    return summary(curves)


def summary(curves: list[list[float]]) -> dict[str, Any]:
    at_end = mean_interval([curve[-1] for curve in curves])
    return {"final": at_end, "curve": np.mean(curves, axis=0).round(4).tolist()}


def table_results(problem: Problem, table: Table, runs: int) -> dict[str, Any]:
    """All cells of one table, and what the bounds say of them."""
    epsilon = math.exp(table.log_epsilon)
    entry: dict[str, Any] = {
        "record": {**asdict(table), "epsilon": epsilon},
        "rows": len(problem.X),
        "effective length-scale": problem.lengthscale,
        "without privacy": measured(problem, table, as_they_are, runs),
        "random choice": random_choice(problem, table, runs),
        "Gaussian noise": measured(problem, table, partial(noised, epsilon=epsilon), runs),
        "random projection": {},
    }
    try:
        entry["largest r that needs no lifting"] = choose_projection_dim(
            problem.X, epsilon=epsilon, delta=table.delta
        )
    except ValueError:
        entry["largest r that needs no lifting"] = None
    for r, printed in table.printed.items():
        send = partial(projected, r=r, epsilon=epsilon)
        cell = measured(problem, table, send, runs)
        entry["random projection"][str(r)] = {
            **cell,
            "printed": printed,
            "C' of theorem 2": lifting_factor(problem.X, r=r, epsilon=epsilon, delta=table.delta),
        }
    return entry


def figure_2(problem: Problem, table: Table, runs: int) -> dict[str, Any]:
    """A panel of figure 2 at its printed r and epsilons: curves, and the excess regret at the end.

    The excess is that of run ``seed`` over the search without privacy on the same function.
    """
    panel, r, printed = FIGURE_2[table.data]
    plain = [search(problem, table, as_they_are, seed)[0] for seed in range(runs)]
    found: dict[str, Any] = {"panel": panel, "r": r, "without privacy": summary(plain), "by ln": {}}
    for log_epsilon, excess in printed.items():
        epsilon = math.exp(log_epsilon)
        send = partial(projected, r=r, epsilon=epsilon)
        curves = [search(problem, table, send, seed)[0] for seed in range(runs)]
        found["by ln"][str(log_epsilon)] = {
            **summary(curves),
            "excess": paired_interval([c[-1] for c in curves], [c[-1] for c in plain]),
            "printed excess": excess,
            "C' of theorem 2": lifting_factor(problem.X, r=r, epsilon=epsilon, delta=table.delta),
            "Gaussian noise": measured(problem, table, partial(noised, epsilon=epsilon), runs),
        }
    return found


# --- What the paper states about distances, and what the curator can certify. ---


def lemma_columns(num_rows: int, distortion: float, delta: float) -> int:
    """Columns with which Lemma 1 keeps all squared distances within ``1 +- distortion``.

    ``exp(-r (v^2 / 4 - v^3 / 6))`` bounds either tail of a chi-square over ``r``. For a distortion
    ``v`` below 1/2 that is at most ``exp(-r v^2 / 8)``: two sides of each of ``n^2 / 2`` pairs.
    """
    return math.ceil(8 * math.log(num_rows**2 / delta) / distortion**2)


def kept_distances(num_rows: int, dim: int, columns: int, delta: float) -> tuple[float, float]:
    """Least and largest ratio of squared distances, but for probability ``delta``.

    With ``M`` standard normal (``d x r``), ``|(x - x') M|^2 / (r |x - x'|^2)`` is chi-square over
    ``r``; a union over all pairs bounds it. Where ``d`` is small a bound for all directions at once
    is tighter: the singular values of ``M`` lie within ``sqrt(r) +- (sqrt(d) + t)``, each side but
    for probability ``exp(-t^2 / 2)`` [Davidson2001].
    """
    tail = delta / (num_rows * (num_rows - 1))  # each side of each pair
    around = (math.sqrt(dim) + math.sqrt(2 * math.log(2 / delta))) / math.sqrt(columns)
    low = max(float(chi2.ppf(tail, columns)) / columns, max(0.0, 1 - around) ** 2)
    return low, min(float(chi2.isf(tail, columns)) / columns, (1 + around) ** 2)


def lifting_factor(X: Tensor, *, r: int, epsilon: float, delta: float) -> float:
    """``C'`` of Theorem 2: 1, or ``1 + omega^2 / sigma_min^2`` where rows have to be lifted."""
    smallest = float(torch.linalg.svdvals(X - X.mean(0))[-1])
    omega = singular_floor(projection_dim=r, epsilon=epsilon, delta=delta)
    return 1.0 if smallest >= omega else 1 + (omega / smallest) ** 2


def exact_columns(num_rows: int, dim: int, distortion: float, delta: float) -> int:
    """The fewest columns for which :func:`kept_distances` lie within ``1 +- distortion``."""

    def holds(columns: int) -> bool:
        low, high = kept_distances(num_rows, dim, columns, delta)
        return low >= 1 - distortion and high <= 1 + distortion

    enough = range(1, lemma_columns(num_rows, distortion, delta) + 1)
    return enough[bisect_left(enough, True, key=holds)]


def definition_3(X: Tensor, kernel: Kernel) -> float:
    """What Definition 3 asks the diagonal of a kernel matrix, which is 1 here, to be at least.

    ``(sqrt(|X0| - 1) + 1) sum_{x'} k(x, x')`` over the other rows ``x'`` of ``X0``, for the row
    ``x`` with the largest sum. Theorem 3 assumes that this is at most 1.
    """
    with torch.no_grad():
        sums = [(kernel(part, X).to_dense().sum(-1) - 1).max() for part in X.split(1000)]
    return (math.sqrt(len(X) - 1) + 1) * float(torch.stack(sums).max())


def dominance(problem: Problem, table: Table, runs: int) -> dict[str, Any]:
    """How far the matrices of Theorem 3 are from diagonal dominance, for both length-scales."""
    short = RBFKernel().double()
    short.lengthscale = 1.25
    found: dict[str, Any] = {}
    for name, kernel in ((f"{problem.lengthscale:g}", problem.kernel()), ("1.25", short)):
        visited = []
        for seed in range(runs):
            _, history = search(problem, table, as_they_are, seed)
            unique = sorted({answer.index for answer in history})
            visited.append(definition_3(problem.X[unique], kernel))
        found[name] = {
            "all rows": definition_3(problem.X, kernel),
            "different rows that a search asked for": mean_interval(visited),
        }
    return found


def table_outsourced_figure_2() -> str:
    found = stored("outsourced")
    rows = []
    for data, panel in found["figure 2"].items():
        name = f"2{panel['panel']}: {data}{'' if data == 'synthetic' else ' (stand-in data)'}"
        for ln, cell in panel["by ln"].items():
            stretched, printed = cell["C' of theorem 2"], cell["printed excess"]
            ours = [f"{printed:.3f}", short(cell["excess"]), f"{stretched:.3g}"]
            rows.append([name, str(panel["r"]), ln, *ours])
    return markdown(
        ["panel", "r", "ln ε", "excess, printed", "excess, ours", "C' of Theorem 2"], rows
    )


def table_outsourced_dominance() -> str:
    found = stored("outsourced")
    rows = [
        [length, f"{value['all rows']:.3g}", short(value["different rows that a search asked for"])]
        for length, value in found["right side of definition 3"].items()
    ]
    return markdown(["length-scale", "all 10,000 rows", "rows that a search asked for"], rows)


def main() -> None:
    parser = BenchmarkParser("outsourced", __doc__, minutes=12)
    parser.add_argument("--runs", type=int, default=50)
    parser.add_argument("--tables", type=int, nargs="+", default=list(range(1, 10)))
    parser.add_argument("--steps", type=int, help="queries, in place of the table's")
    parser.add_argument("--rows", type=int, help="at most so many rows")
    options = parser.parse_args()
    before = earlier("outsourced")
    # Tables of an earlier call stay, if it made as many runs.
    results: dict[str, Any] = before if before.get("runs") == options.runs else {}
    results = {"runs": options.runs, "tables": {}, "variants": {}, "minutes": 0.0, **results}
    for table in tqdm([t for t in TABLES if t.number in options.tables], desc="tables"):
        start = time.perf_counter()
        problem = problem_of(table.data, options.rows)
        if problem is None:
            tqdm.write(f"table {table.number}: the {table.data} data need BOTORCH_DP_DATA")
            continue
        table = replace(table, steps=options.steps or table.steps)
        entry = table_results(problem, table, options.runs)
        results["tables"][str(table.number)] = entry
        if table.data != "synthetic":
            ours = table_results(problem, variant(table, problem.X), options.runs)
            results["variants"][str(table.number)] = ours
        if table.number in (1, 4, 7):
            results.setdefault("figure 2", {})[table.data] = figure_2(problem, table, options.runs)
        if table.number == 1:
            results |= beside_table_1(problem, table, options.runs)
        tqdm.write(f"Table {table.number}: without privacy {entry['without privacy']['final']}")
        results["minutes"] += (time.perf_counter() - start) / 60
        save_results("outsourced", results)
    draw(earlier("outsourced"))


def beside_table_1(problem: Problem, table: Table, runs: int) -> dict[str, Any]:
    """The printed length-scale, and what Theorem 3 assumes."""
    printed = gp_draws(1.25, math.isqrt(len(problem.X)))
    return {
        "printed length-scale 1.25, without privacy": measured(printed, table, as_they_are, runs),
        "right side of definition 3": dominance(problem, table, min(runs, 20)),
    }


def draw(results: dict[str, Any]) -> None:
    """Figure 2a to c, regret by query; and below it regret by r, printed and ours."""
    from matplotlib.figure import Figure

    by_data: dict[str, list[Any]] = {}
    for number, entry in sorted(results["tables"].items()):
        by_data.setdefault(entry["record"]["data"], []).append((number, entry))
    figure = Figure(figsize=(4.6 * len(by_data), 11.0), layout="constrained")
    axes = figure.subplots(2, len(by_data), squeeze=False)
    for (above, below), (data, entries) in zip(axes.T, by_data.items(), strict=True):
        _draw_curves(above, results["figure 2"][data], entries[0][1])
        _draw_cells(below, entries, results["variants"])
    axes[0, 0].set_ylabel("simple regret (standard deviations; floor .001)")
    axes[1, 0].set_ylabel("simple regret at the end")
    figure.suptitle(
        f"Kharkovskii et al., figure 2 (above) and tables 1 to 9 (below): means of "
        f"{results['runs']} runs, 95% intervals (*: at an epsilon of ours).\n"
        "Loans and property are stand-in data. Gaussian noise is (eps, delta)-DP for one row that "
        "moves by one unit;\nthe projections have no guarantee.",
        fontsize=12,
    )
    figure.savefig(results_folder() / "outsourced.png", dpi=150)


def _draw_curves(axis: Any, found: dict[str, Any], table: dict[str, Any]) -> None:
    curves: list[tuple[str, Any, str, str]] = [
        ("random choice", table["random choice"], "0.6", "-"),
        ("without privacy", found["without privacy"], "k", ":"),
    ]
    for (log_epsilon, cell), colour in zip(found["by ln"].items(), ("C0", "C1", "C2"), strict=True):
        curves.append((f"projection, ln eps = {log_epsilon}", cell, colour, "--"))
        noise = cell["Gaussian noise"]
        curves.append((f"Gaussian noise, ln eps = {log_epsilon}", noise, colour, "-"))
    for label, cell, colour, style in curves:
        steps = range(1, len(cell["curve"]) + 1)
        axis.plot(steps, np.maximum(cell["curve"], 1e-3), color=colour, ls=style, label=label)
    # All intervals at the same place would lie on each other.
    for place, (_, cell, colour, style) in enumerate(curves):
        x = len(cell["curve"]) * (1.03 + 0.02 * place)
        ends = [max(cell["final"][end], 1e-3) for end in ("low", "high")]
        axis.plot([x, x], ends, color=colour, lw=2, ls=style)
    axis.set_title(
        f"2{found['panel']}: {table['record']['data']}, {table['rows']:,} rows, r = {found['r']}"
    )
    axis.set(xlabel="queries", yscale="log")
    _legend_below(axis)


def _draw_cells(axis: Any, entries: list[Any], variants: dict[str, Any]) -> None:
    for (number, entry), colour in zip(entries, ("C0", "C1", "C2"), strict=False):
        printed = {int(r): cell["printed"] for r, cell in entry["random projection"].items()}
        axis.plot(
            *zip(*printed.items(), strict=True),
            "x--",
            color=colour,
            label=f"table {number}, printed",
        )
        ours = variants.get(number, entry)
        cells = {int(r): cell["final"] for r, cell in ours["random projection"].items()}
        means = np.array([cell["mean"] for cell in cells.values()])
        ends = np.array([[cell["low"], cell["high"]] for cell in cells.values()]).T
        name = "ours" if number not in variants else "ours*"
        axis.errorbar(
            list(cells), means, abs(ends - means), fmt="o-", color=colour, capsize=3,
            label=f"{name}, lifted from r = {(ours['largest r that needs no lifting'] or 0) + 1}",
        )  # fmt: skip
    axis.set_xlabel("r")
    _legend_below(axis)


def _legend_below(axis: Any) -> None:
    """Inside, it would cover curves."""
    axis.legend(
        loc="upper center", bbox_to_anchor=(0.5, -0.13), ncols=2, fontsize=9, frameon=False,
        handlelength=1.5, columnspacing=0.6, handletextpad=0.4,
    )  # fmt: skip


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
