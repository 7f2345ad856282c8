"""Examples 4.1 and 4.2 of the DP-GIBO paper [Sopa2025], and its theorems as printed.

    OMP_NUM_THREADS=1 python -m benchmarks.dp_gibo_examples [--examples 4.1 4.2] [--seeds 30]

Points minimize the trace (line 4 of Algorithm 1) under a prior mean of zero, as printed; a row of
each example has our default, a simplex under an unknown mean.

- 4.1: the mean of n = 50 draws of N(1, I) in d = 5, squared loss, polynomial kernel of degree 2,
  start 0, B = 1, b = 3, T = 150, mu = .5 and 2. The panels of figure 1 (a coordinate, the negative
  log-likelihood, the bias of the inferred gradient beside the noise), and the bias of clipping.
- 4.2: linear regression with Huber's loss (c = 1) and weights min(1, 2 / |x|^2), d = 4, n = 100,
  b = 2, T = 100, mu = 1, against noisy and plain gradient descent. B = 1 as printed, and
  max |x| min(1, 2 / |x|^2) = sqrt(2), which is how long a gradient can be.
- Theorems 3.2 and 3.3 and Corollaries 3.4 and 3.6 beside the runs of 4.1 (in 4.2 the losses are
  not in the kernel's space), and V of all four examples.
- ``placement``: the trace of the gradient's covariance after the points of one step, over the least
  one that was found, with no, 8 and 50 points nearby and noise variances from 1e-2 to 1e-6.

The data of the paper are not published; they are drawn here as the text describes them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from gpytorch.kernels import Kernel, PolynomialKernel, RBFKernel
from torch import Tensor

from benchmarks.common import (
    BenchmarkParser,
    Interval,
    mean_interval,
    paired_interval,
    results_folder,
    save_results,
)
from botorch_dp.descent import DPGIBO, DescentResult, Design
from botorch_dp.descent.settings import DescentSettings
from botorch_dp.models import public_gp
from botorch_dp.models.gradient import gradient_beliefs

Losses = Callable[[Tensor], Tensor]


def quantiles(paths: Tensor) -> Tensor:
    """Quartiles over seeds of ``seeds x steps`` numbers: ``3 x steps``."""
    return paths.quantile(torch.tensor([0.25, 0.5, 0.75], dtype=torch.double), dim=0)


def over_seeds(values: Tensor) -> Interval:
    return mean_interval(values.tolist())


def draw_quartiles(ax: Any, curves: dict[str, Tensor], ylabel: str) -> None:
    styles = ("-", "--", ":", "-.")
    for (name, paths), style in zip(curves.items(), styles, strict=False):
        low, middle, high = quantiles(paths)
        steps = range(len(middle))
        (line,) = ax.plot(steps, middle, style, label=name)
        ax.fill_between(steps, low, high, alpha=0.15, color=line.get_color())
    ax.set(xlabel="step", ylabel=ylabel, yscale="log")
    ax.legend(frameon=False, fontsize=10)


# --- 4.1 ---
def normal_data() -> Tensor:
    """50 draws of N(1, I) in five dimensions."""
    generator = torch.Generator().manual_seed(41)
    return 1 + torch.randn(50, 5, dtype=torch.double, generator=generator)


def quadratic_kernel() -> Kernel:
    """``(x . y + 1)^2``, which holds the squared loss exactly."""
    kernel = PolynomialKernel(power=2).double()
    kernel.offset = 1.0
    return kernel


def clipped_limit(data: Tensor, bound: float) -> Tensor:
    """Where the clipped gradients sum to zero: Huber's estimate, by iterated weights."""
    x = data.mean(0)
    for _ in range(10_000):
        weights = (bound / (data - x).norm(dim=-1)).clamp_max(1.0)
        x = (weights.unsqueeze(-1) * data).sum(0) / weights.sum()
    return x


AS_PRINTED = Design("optimize", batch_size=3, mean="zero")


def mean_by_descent(
    data: Tensor,
    *,
    mu: float,
    bound: float,
    steps: int,
    seed: int,
    design: Design = AS_PRINTED,
    asked: list[Tensor] | None = None,
) -> DescentResult:
    """A run of example 4.1; the points of each step are added to ``asked``."""

    def losses(X: Tensor) -> Tensor:
        if asked is not None:
            asked.append(X.clone())
        return 0.5 * (X.unsqueeze(1) - data).square().sum(-1)

    return DPGIBO(
        losses,
        torch.zeros(5, dtype=torch.double),
        kernel=quadratic_kernel(),
        mu=mu,
        steps=steps,
        clip_norm=bound,
        design=design,
        step_size=0.1,
        unsafe_seed=seed,
    ).run()


def inference_bias(data: Tensor, result: DescentResult, asked: list[Tensor]) -> list[float]:
    """How far the inferred mean gradient was from the true one in each step of a run of 4.1.

    ``grad k(x, D) k(D, D)^+ f(D)`` with ``k(x, y) = (x . y + 1)^2``, where ``^+`` is a
    pseudo-inverse: the kernel has rank 21.
    """
    biases, blocks = [], iter(asked)
    D = torch.empty(0, 5, dtype=torch.double)
    for location, record in zip(result.trajectory.value, result.history, strict=False):
        if record.evaluations:
            D = torch.cat([D, next(blocks)])
        mean_losses = 0.5 * (D.unsqueeze(1) - data).square().sum(-1).mean(-1)
        slopes = 2 * (D @ location + 1).unsqueeze(-1) * D
        gram = (D @ D.mT + 1).square()
        inferred = slopes.mT @ torch.linalg.pinv(gram, rtol=1e-10, hermitian=True) @ mean_losses
        biases.append(float((inferred - (location - data.mean(0))).norm()))
    return biases


@dataclass(frozen=True)
class PrintedBounds:
    """Theorems 3.2 and 3.3 and Corollary 3.4 of [Sopa2025] as printed, with what they bound.

    Args:
        V: ``M (2 + M / (2 B^2))``, ``M = 2 B^2 sqrt(T) (4 sqrt(d) + 2 sqrt(2 log(T / delta))) /
            (n mu)``.
        mean_square: Theorem 3.2, on the mean squared gradient ``Psi_T``.
        gap: Theorem 3.3, on ``F_T``.
        distance: Corollary 3.4.
    """

    V: float
    mean_square: float
    gap: float
    distance: float


def printed_V(
    *, bound: float, steps: int, dim: int, num_records: int, mu: float, delta: float = 0.05
) -> float:
    """``V`` of Theorem 3.2."""
    spread = 4 * math.sqrt(dim) + 2 * math.sqrt(2 * math.log(steps / delta))
    M = 2 * bound**2 * math.sqrt(steps) * spread / (num_records * mu)
    return M * (2 + M / (2 * bound**2))


#: ``B, T, d, n, mu`` of the four examples; 4.1 has two levels of mu.
PRINTED_SETTINGS: dict[str, dict[str, Any]] = {
    "4.1, mu = 0.5": {"bound": 1, "steps": 150, "dim": 5, "num_records": 50, "mu": 0.5},
    "4.1, mu = 2": {"bound": 1, "steps": 150, "dim": 5, "num_records": 50, "mu": 2},
    "4.2": {"bound": 1, "steps": 100, "dim": 4, "num_records": 100, "mu": 1},
    "4.3": {"bound": 1, "steps": 25, "dim": 10, "num_records": 4500, "mu": 1},
    "4.4": {"bound": 1, "steps": 25, "dim": 33, "num_records": 5000, "mu": 1},
}


def printed_bounds(
    traces: list[float],
    V: float,
    *,
    step_size: float,
    smoothness: float,
    convexity: float,
    record_norm: float,
    start_gap: float,
) -> PrintedBounds:
    """The theorems for the traces of one run; Corollary 3.6 is a trace of ``epsilon`` in each step.

    Args:
        traces: Of the gradient's posterior covariance, one for each step.
        V: See :func:`printed_V`.
        step_size: ``eta``.
        smoothness: ``L``.
        convexity: ``tau``.
        record_norm: ``C_X``, the largest norm of a record's loss in the kernel's space.
        start_gap: ``F_0``.
    """
    T, rate = len(traces), 1 - step_size * convexity
    mean_square = 2 * start_gap * smoothness / T + record_norm**2 * math.fsum(traces) / T + 2 * V
    weighted = math.fsum(rate ** (T - 1 - t) * trace for t, trace in enumerate(traces))
    r_geom = record_norm**2 * step_size / 2 * weighted + V / convexity
    gap = rate**T * start_gap + r_geom
    return PrintedBounds(V, mean_square, gap, math.sqrt(gap / convexity))


def example_41(seeds: int, steps: int) -> dict[str, Any]:
    data = normal_data()
    target, limit = data.mean(0), clipped_limit(data, 1.0)
    squares = data.square().sum(-1)
    #: Norm of x -> |x - a|^2 / 2 in the kernel's space.
    norm = float((squares.square() / 4 + squares / 2 + 5 / 4).max().sqrt())
    ways: dict[str, tuple[float, float, Design]] = {
        "mu = 0.5": (0.5, 1.0, AS_PRINTED),
        "mu = 2": (2.0, 1.0, AS_PRINTED),
        "mu = 2, a simplex and an unknown mean": (2.0, 1.0, Design(batch_size=3)),
        "mu = 2, Algorithm 2 with tolerance 0.01": (
            2.0, 1.0, Design("optimize", mean="zero", tolerance=0.01),
        ),
        "without noise": (math.inf, 1.0, AS_PRINTED),
        "without noise or clipping": (math.inf, math.inf, AS_PRINTED),
    }  # fmt: skip
    runs: dict[str, list[DescentResult]] = {}
    for name, (mu, bound, design) in ways.items():
        count = seeds if math.isfinite(mu) else 1
        runs[name] = [
            mean_by_descent(data, mu=mu, bound=bound, steps=steps, seed=seed, design=design)
            for seed in range(count)
        ]
    distances = {
        name: torch.stack([(r.trajectory.value - target).norm(dim=-1) for r in found])
        for name, found in runs.items()
    }
    theorems = {}
    for name in list(ways)[:4]:
        setting = {**PRINTED_SETTINGS[f"4.1, {name.split(',')[0]}"], "steps": steps}
        printed = printed_bounds(
            [record.trace for record in runs[name][0].history],
            printed_V(**setting),
            step_size=0.1,
            smoothness=1.0,
            convexity=1.0,
            record_norm=norm,
            start_gap=float(target.square().sum()) / 2,
        )
        squared = distances[name].square()
        theorems[name] = {
            "printed": printed,
            "mean squared gradient": float(squared[:, :-1].mean(1).max()),
            "gap": float(squared[:, -1].max()) / 2,
            "distance": float(distances[name][:, -1].max()),
        }
    asked: list[Tensor] = []
    private = mean_by_descent(data, mu=0.5, bound=1.0, steps=steps, seed=0, asked=asked)
    noise_std = private.location.scale or 0.0
    bias = inference_bias(data, private, asked)
    sweep = clipping_against_noise(data, target, max(seeds // 3, 1), steps)
    _figure_41(runs, data, bias, noise_std, sweep)
    return {
        "records": "50 draws of N(1, I), d = 5",
        "steps": steps,
        "distance of the limit of clipped descent from the mean": float((limit - target).norm()),
        "final distance from the mean": {k: over_seeds(p[:, -1]) for k, p in distances.items()},
        "evaluations": {k: sum(r.evaluations for r in f[0].history) for k, f in runs.items()},
        "theorems as printed, delta = 0.05, and the largest of all seeds": theorems,
        "V of the examples": {k: printed_V(**s) for k, s in PRINTED_SETTINGS.items()},
        "bias of the inferred gradient, mu = 0.5": bias,
        "noise of a step, root mean square length": noise_std * math.sqrt(5),
        "bias and noise by clip norm, mu = 2": sweep,
    }


def clipping_against_noise(
    data: Tensor, target: Tensor, seeds: int, steps: int
) -> list[dict[str, Any]]:
    """Final distance from the mean by clip norm: of the limit (bias), of runs (bias and noise)."""
    rows = []
    for bound in (0.25, 0.5, 1.0, 2.0, 4.0, 8.0):
        runs = torch.stack(
            [
                mean_by_descent(data, mu=2.0, bound=bound, steps=steps, seed=seed).location.value
                for seed in range(seeds)
            ]
        )
        rows.append(
            {
                "clip norm": bound,
                "bias": float((clipped_limit(data, bound) - target).norm()),
                "distance": over_seeds((runs - target).norm(dim=-1)),
            }
        )
    return rows


def _figure_41(
    runs: dict[str, list[DescentResult]],
    data: Tensor,
    bias: list[float],
    noise_std: float,
    sweep: list[Any],
) -> None:
    from matplotlib.figure import Figure

    shown = ("mu = 0.5", "mu = 2", "without noise")
    paths = {name: torch.stack([r.trajectory.value for r in runs[name]]) for name in shown}
    figure = Figure(figsize=(11, 8), layout="constrained")
    coordinate, likelihood, biases, clipping = figure.subplots(2, 2).flat
    draw_quartiles(coordinate, {k: p[..., 0] for k, p in paths.items()}, "first coordinate")
    coordinate.axhline(float(data[:, 0].mean()), color="0.6", lw=1)
    coordinate.set_yscale("linear")
    values = {
        name: 0.5 * (path.unsqueeze(-2) - data).square().sum(-1).mean(-1)
        for name, path in paths.items()
    }
    draw_quartiles(likelihood, values, "negative log-likelihood, up to a constant")
    steps = range(len(bias))
    biases.plot(steps, [max(each, 1e-12) for each in bias], label="bias of the inferred gradient")
    biases.axhline(noise_std * math.sqrt(5), color="C1", label="noise (root mean square)")
    biases.set(xlabel="step", ylabel="length, mu = 0.5 (floor 1e-12)", yscale="log")
    biases.legend(frameon=False, fontsize=10)
    norms = [row["clip norm"] for row in sweep]
    clipping.plot(norms, [max(row["bias"], 1e-3) for row in sweep], "o--", label="bias of clipping")
    means = [row["distance"] for row in sweep]
    clipping.plot(norms, [m.mean for m in means], "s-", label="bias and noise, mu = 2")
    clipping.set(xscale="log", yscale="log", xlabel="clip norm B")
    clipping.set_xticks(norms, [f"{norm:g}" for norm in norms])
    clipping.minorticks_off()
    clipping.set_ylabel("final distance from the mean (floor 1e-3)")
    clipping.legend(frameon=False, fontsize=10)
    figure.suptitle(
        f"Example 4.1 of Sopa et al.: d = 5, n = 50, b = 3, T = {len(bias)}, B = 1, line 4.\n"
        "The first three panels are those of figure 1. mu-GDP over all steps, replace-one;\n"
        "simulated noise, median and quartiles over seeds",
        fontsize=10,
    )
    figure.savefig(results_folder() / "dp_gibo_41.png", dpi=110)


# --- 4.2 ---
def regression_data() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(42)
    X = torch.randn(100, 4, dtype=torch.double, generator=generator)
    noise = torch.randn(100, dtype=torch.double, generator=generator)
    return X, X.sum(-1) + noise


def huber(residuals: Tensor) -> Tensor:
    size = residuals.abs()
    return torch.where(size <= 1, 0.5 * residuals.square(), size - 0.5)


def example_42(seeds: int, steps: int) -> dict[str, Any]:
    X, y = regression_data()
    n, mu, step_size = len(y), 1.0, 0.3
    weights = (2 / X.square().sum(-1)).clamp_max(1.0)
    start = torch.zeros(4, dtype=torch.double)

    def losses(theta: Tensor) -> Tensor:
        return weights * huber(theta @ X.T - y)

    def gradients(theta: Tensor) -> Tensor:
        return (weights * (X @ theta - y).clamp(-1, 1)).unsqueeze(-1) * X

    def gradient(theta: Tensor) -> Tensor:
        return gradients(theta).mean(0)

    def descent(seed: int, bound: float, noise: float) -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        path = [start]
        for _ in range(steps):
            each = gradients(path[-1])
            clipped = (each * (bound / each.norm(dim=1, keepdim=True)).clamp_max(1.0)).mean(0)
            error = noise * torch.randn(4, dtype=torch.double, generator=generator)
            path.append(path[-1] - step_size * (clipped + error))
        return torch.stack(path)

    kernel = RBFKernel().double()
    kernel.lengthscale = 2.0
    printed, ours = Design("optimize", batch_size=2, mean="zero"), Design(batch_size=2)

    def gibo(seed: int, mu: float, bound: float, design: Design) -> Tensor:
        return (
            DPGIBO(
                losses,
                start,
                kernel=kernel,
                mu=mu,
                steps=steps,
                clip_norm=bound,
                design=design,
                step_size=step_size,
                unsafe_seed=seed,
            )
            .run()
            .trajectory.value
        )

    optimum = start
    for _ in range(20_000):
        optimum = optimum - gradient(optimum)
    paths: dict[str, Tensor] = {}
    for name, bound in (("1", 1.0), ("sqrt(2)", math.sqrt(2))):
        noise = DescentSettings(torch.zeros(1), mu, steps, bound).noise_std(n)
        paths[f"DP-GIBO, B = {name}"] = torch.stack(
            [gibo(seed, mu, bound, printed) for seed in range(seeds)]
        )
        paths[f"noisy gradient descent, B = {name}"] = torch.stack(
            [descent(seed, bound, noise) for seed in range(seeds)]
        )
    simplex = [gibo(seed, mu, 1.0, ours) for seed in range(seeds)]
    paths["DP-GIBO, B = 1, a simplex and an unknown mean"] = torch.stack(simplex)
    paths["GIBO without noise, B = 1"] = gibo(0, math.inf, 1.0, printed).unsqueeze(0)
    paths["gradient descent"] = descent(0, math.inf, 0.0).unsqueeze(0)
    lengths = {
        name: torch.stack([torch.stack([gradient(x) for x in path]) for path in p]).norm(dim=-1)
        for name, p in paths.items()
    }
    errors = {name: (p - optimum).norm(dim=-1) for name, p in paths.items()}
    from matplotlib.figure import Figure

    drawn = [name for name in paths if "sqrt" not in name and "simplex" not in name]
    figure = Figure(figsize=(10.5, 4.4), layout="constrained")
    left, right = figure.subplots(1, 2)
    draw_quartiles(left, {k: lengths[k].clamp_min(1e-5) for k in drawn}, "length of the gradient")
    draw_quartiles(
        right, {k: errors[k].clamp_min(1e-5) for k in drawn}, "distance from the minimum"
    )
    figure.suptitle(
        f"Example 4.2 of Sopa et al.: Huber regression, d = 4, n = 100, b = 2, T = {steps}, B = 1\n"
        "1-GDP over all steps, replace-one; simulated noise, median and quartiles; floor 1e-5",
        fontsize=10,
    )
    figure.savefig(results_folder() / "dp_gibo_42.png", dpi=110)
    last = {name: e[:, -1] for name, e in errors.items()}
    return {
        "steps": steps,
        "final distance from the minimum": {name: over_seeds(e) for name, e in last.items()},
        "final length of the gradient": {k: over_seeds(v[:, -1]) for k, v in lengths.items()},
        "DP-GIBO minus noisy gradient descent, distance": {
            f"B = {name}": paired_interval(
                last[f"DP-GIBO, B = {name}"].tolist(),
                last[f"noisy gradient descent, B = {name}"].tolist(),
            )
            for name in ("1", "sqrt(2)")
        },
    }


# --- How far the points of a step are from the best ones ---

NEARBY, NOISES = (0, 8, 50), (1e-2, 1e-4, 1e-6)


def joint_optimum(belief: Any, starts: list[Tensor], noise: float) -> float:
    """The least trace after as many points, by L-BFGS from several starts."""
    best = math.inf
    for points in starts:
        X = points.clone().requires_grad_()
        optimizer = torch.optim.LBFGS([X], max_iter=150, line_search_fn="strong_wolfe")
        scale = float(belief.trace_after(points, noise))

        def closure() -> Tensor:
            optimizer.zero_grad()  # noqa: B023
            loss = belief.trace_after(X, noise) / scale  # noqa: B023
            loss.backward()
            return loss

        optimizer.step(closure)
        with torch.no_grad():
            found = float(belief.trace_after(X, noise))
        best = min(best, scale, found if math.isfinite(found) else math.inf)
    return best


def placement(seeds: int, steps: int, dim: int = 5) -> dict[str, Any]:
    """Traces of a step's ``d + 1`` points over the least one found, by data nearby and noise.

    The data are normal draws around the location with a standard deviation of .3 length-scales;
    without data there is one point far away. ``steps`` is the number of random starts.
    """
    kernel = RBFKernel().double()
    designs = {"simplex": Design(mean="zero"), "optimize": Design("optimize", mean="zero")}
    found: dict[str, Any] = {}
    for count in NEARBY:
        for noise in NOISES:
            ratios: dict[str, list[float]] = {name: [] for name in designs}
            for seed in range(seeds):
                generator = torch.Generator().manual_seed(seed)
                shape = (max(count, 1), dim)
                near = torch.randn(shape, generator=generator, dtype=torch.double)
                X = 0.3 * kernel.lengthscale.detach() * near if count else 0 * near + 100.0
                model = public_gp(X, X[:, :1] * 0, kernel=kernel, noise_std=noise**0.5)
                (belief,) = gradient_beliefs(model, torch.zeros(dim, dtype=torch.double))
                points = [
                    replace(design, noise_std=noise**0.5).propose(belief)[0]
                    for design in designs.values()
                ]
                spread = [10 ** (-1.5 * k / max(steps - 1, 1)) for k in range(steps)]
                random = [
                    s * torch.randn(dim + 1, dim, generator=generator, dtype=torch.double)
                    for s in spread
                ]
                with torch.no_grad():
                    traces = [float(belief.trace_after(each, noise)) for each in points]
                best = joint_optimum(belief, [*points, *random], noise)
                for name, trace in zip(designs, traces, strict=True):
                    ratios[name].append(trace / best)
            found[f"{count} points nearby, noise variance {noise:g}"] = {
                name: {"mean": sum(values) / len(values), "largest": max(values)}
                for name, values in ratios.items()
            }
    return {"trace over the least one found": found, "d": dim, "starts": steps + 2}


#: With the number of steps, and the name of the result.
EXAMPLES: dict[str, tuple[Callable[[int, int], dict[str, Any]], int, str]] = {
    "4.1": (example_41, 150, "dp_gibo_41"),
    "4.2": (example_42, 100, "dp_gibo_42"),
    "placement": (placement, 8, "dp_gibo_placement"),
}


def main() -> None:
    parser = BenchmarkParser("dp_gibo_examples", __doc__, minutes=4)
    parser.add_argument("--examples", nargs="+", default=list(EXAMPLES), choices=EXAMPLES)
    parser.add_argument("--seeds", type=int, default=30)
    parser.add_argument("--steps", type=int, help="the paper's 150 and 100 by default")
    options = parser.parse_args()
    torch.set_num_threads(1)
    for name in options.examples:
        example, steps, file = EXAMPLES[name]
        seeds = min(options.seeds, 5) if name == "placement" else options.seeds
        results = {"seeds": seeds, **example(seeds, options.steps or steps)}
        print(f"Example {name} ({seeds} seeds)")
        for key, value in results.items():
            for what, number in value.items() if isinstance(value, dict) else [("", value)]:
                print(f"  {key}{': ' if what else ''}{what}: {number}")
        save_results(file, results)


if __name__ == "__main__":
    main()
