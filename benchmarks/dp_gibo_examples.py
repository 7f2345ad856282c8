"""Examples 4.1 and 4.2 of the DP-GIBO paper [Sopa2025], with figures after the paper's.

    OMP_NUM_THREADS=1 python -m benchmarks.dp_gibo_examples [--examples 4.1 4.2] [--seeds 30]

- 4.1: the mean of n = 50 draws of N(1, I) in d = 5, squared loss, polynomial kernel of degree 2,
  start 0, B = 1, b = 3, T = 150, mu = .5 and 2. Panels: distance from the mean of the records;
  trace of the gradient's covariance; bias of clipping and noise against B.
- 4.2: linear regression with Huber's loss (c = 1) and weights min(1, 2 / |x|^2), d = 4, n = 100,
  b = 2, T = 100, mu = 1, against noisy and plain gradient descent. A gradient is at most
  max |x| min(1, 2 / |x|^2) = sqrt(2) long, and that is B here.

The data of the paper are not published; they are drawn here as the text describes them. Beside the
distances stand the bounds that follow from the runs' traces (``benchmarks/descent_bounds.py``).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from gpytorch.kernels import Kernel, PolynomialKernel, RBFKernel
from torch import Tensor

from benchmarks.common import (
    BenchmarkParser,
    mean_interval,
    paired_interval,
    results_folder,
    save_results,
)
from benchmarks.descent_bounds import descent_bound
from botorch_dp.descent import DPGIBO, DescentResult, Design, gradient_noise_std

Losses = Callable[[Tensor], Tensor]


def quantiles(paths: Tensor) -> Tensor:
    """Quartiles over seeds of ``seeds x steps`` numbers: ``3 x steps``."""
    return paths.quantile(torch.tensor([0.25, 0.5, 0.75], dtype=torch.double), dim=0)


def draw_quartiles(ax: Any, curves: dict[str, Tensor], ylabel: str) -> None:
    styles = ("-", "--", ":", "-.")
    for (name, paths), style in zip(curves.items(), styles, strict=False):
        low, middle, high = quantiles(paths)
        steps = range(len(middle))
        (line,) = ax.plot(steps, middle, style, label=name)
        ax.fill_between(steps, low, high, alpha=0.15, color=line.get_color())
    ax.set(xlabel="step", ylabel=ylabel, yscale="log")
    ax.legend(frameon=False, fontsize=8)


def interval(values: Tensor) -> Any:
    """A mean with its interval over seeds; the number alone if there is one."""
    return mean_interval(values.tolist()) if len(values) > 1 else float(values[0])


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


def mean_by_descent(
    data: Tensor, *, mu: float, bound: float, steps: int, seed: int
) -> DescentResult:
    return DPGIBO(
        lambda X: 0.5 * (X.unsqueeze(1) - data).square().sum(-1),
        torch.zeros(5, dtype=torch.double),
        kernel=quadratic_kernel(),
        mu=mu,
        steps=steps,
        clip_norm=bound,
        design=Design(batch_size=3),
        step_size=0.1,
        unsafe_seed=seed,
    ).run()


def example_41(seeds: int, steps: int) -> dict[str, Any]:
    data = normal_data()
    target, limit = data.mean(0), clipped_limit(data, 1.0)
    #: The norm of x -> |x - a|^2 / 2 up to a constant in the kernel's space.
    norm = math.sqrt(5 / 4 + float(data.square().sum(-1).max()) / 2)
    distances: dict[str, Tensor] = {}
    traces: dict[str, Tensor] = {}
    bounds: dict[str, float] = {}
    for mu in (0.5, 2.0, math.inf):
        name = "without noise" if math.isinf(mu) else f"mu = {mu:g}"
        count = seeds if math.isfinite(mu) else 1
        runs = [
            mean_by_descent(data, mu=mu, bound=1.0, steps=steps, seed=seed) for seed in range(count)
        ]
        distances[name] = torch.stack([(r.trajectory.value - target).norm(dim=-1) for r in runs])
        traces[name] = torch.tensor([[s.trace for s in r.history] for r in runs]).double()
        longest = float((data - target).norm(dim=-1).max()) + float(target.norm())
        bound = descent_bound(
            runs[0],
            step_size=0.1,
            clip_norm=1.0,
            smoothness=1.0,
            convexity=1.0,
            record_norm=norm,
            gradient_bound=longest,
            start_distance=float(target.norm()),
        )
        bounds[f"{name}, B = 1"] = bound.distance
    unclipped = mean_by_descent(data, mu=math.inf, bound=math.inf, steps=steps, seed=0)
    exact = (unclipped.trajectory.value - target).norm(dim=-1)
    distances["without noise or clipping"] = exact.unsqueeze(0)
    bounds["without noise or clipping"] = descent_bound(
        unclipped,
        step_size=0.1,
        clip_norm=math.inf,
        smoothness=1.0,
        convexity=1.0,
        record_norm=norm,
        start_distance=float(target.norm()),
    ).distance
    sweep = clipping_against_noise(data, target, max(seeds // 3, 1), steps)
    _figure_41(distances, traces, sweep, steps)
    return {
        "records": "50 draws of N(1, I), d = 5",
        "steps": steps,
        "distance of the limit of clipped descent from the mean": float((limit - target).norm()),
        "final distance from the mean": {k: interval(p[:, -1]) for k, p in distances.items()},
        "bound on the distance (root mean square)": bounds,
        "step at which the gradient is known": {
            name: int((trace[0] < 1e-8).double().argmax()) + 1 for name, trace in traces.items()
        },
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
                "distance": interval((runs - target).norm(dim=-1)),
            }
        )
    return rows


def _figure_41(
    distances: dict[str, Tensor], traces: dict[str, Tensor], sweep: list[Any], steps: int
) -> None:
    import matplotlib.pyplot as plt

    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(14, 4.4), layout="constrained")
    draw_quartiles(
        left,
        {k: p.clamp_min(1e-6) for k, p in distances.items()},
        "distance from the records' mean (floor 1e-6)",
    )
    draw_quartiles(
        middle,
        {"any mu": traces["mu = 0.5"].clamp_min(1e-9)},
        "trace of the gradient's covariance (floor 1e-9)",
    )
    middle.set_xlim(0, 20)
    norms = [row["clip norm"] for row in sweep]
    right.plot(norms, [max(row["bias"], 1e-3) for row in sweep], "o--", label="bias of clipping")
    means = [row["distance"] for row in sweep]
    right.plot(norms, [getattr(m, "mean", m) for m in means], "s-", label="bias and noise, mu = 2")
    right.set(xscale="log", yscale="log", xlabel="clip norm B")
    right.set_xticks(norms, [f"{norm:g}" for norm in norms])
    right.minorticks_off()
    right.set_ylabel("final distance from the mean (floor 1e-3)")
    right.legend(frameon=False, fontsize=8)
    figure.suptitle(
        f"Example 4.1 of Sopa et al.: d = 5, n = 50, b = 3, T = {steps}, B = 1 left and middle.\n"
        "mu-GDP over all steps, replace-one; simulated noise, median and quartiles over seeds",
        fontsize=10,
    )
    figure.savefig(results_folder() / "dp_gibo_41.png", dpi=110)
    plt.close(figure)


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
    n, mu, bound, step_size = len(y), 1.0, math.sqrt(2.0), 0.3
    weights = (2 / X.square().sum(-1)).clamp_max(1.0)
    start = torch.zeros(4, dtype=torch.double)

    def losses(theta: Tensor) -> Tensor:
        return weights * huber(theta @ X.T - y)

    def gradient(theta: Tensor) -> Tensor:
        return ((weights * (X @ theta - y).clamp(-1, 1)).unsqueeze(-1) * X).mean(0)

    def descent(seed: int, noise: float) -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        path = [start]
        for _ in range(steps):
            error = noise * torch.randn(4, dtype=torch.double, generator=generator)
            path.append(path[-1] - step_size * (gradient(path[-1]) + error))
        return torch.stack(path)

    kernel = RBFKernel().double()
    kernel.lengthscale = 2.0

    def gibo(seed: int, mu: float) -> Tensor:
        return (
            DPGIBO(
                losses,
                start,
                kernel=kernel,
                mu=mu,
                steps=steps,
                clip_norm=bound,
                design=Design(batch_size=2),
                step_size=step_size,
                unsafe_seed=seed,
            )
            .run()
            .trajectory.value
        )

    optimum = start
    for _ in range(20_000):
        optimum = optimum - gradient(optimum)
    noise = gradient_noise_std(clip_norm=bound, mu=mu, steps=steps, num_records=n)
    paths = {
        "DP-GIBO, mu = 1": torch.stack([gibo(seed, mu) for seed in range(seeds)]),
        "noisy gradient descent, mu = 1": torch.stack(
            [descent(seed, noise) for seed in range(seeds)]
        ),
        "GIBO without noise": gibo(0, math.inf).unsqueeze(0),
        "gradient descent": descent(0, 0.0).unsqueeze(0),
    }
    lengths = {
        name: torch.stack([torch.stack([gradient(x) for x in path]) for path in p]).norm(dim=-1)
        for name, p in paths.items()
    }
    errors = {name: (p - optimum).norm(dim=-1) for name, p in paths.items()}
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(10.5, 4.4), layout="constrained")
    draw_quartiles(
        left, {k: v.clamp_min(1e-5) for k, v in lengths.items()}, "length of the gradient"
    )
    draw_quartiles(
        right, {k: v.clamp_min(1e-5) for k, v in errors.items()}, "distance from the minimum"
    )
    figure.suptitle(
        f"Example 4.2 of Sopa et al.: Huber regression, d = 4, n = 100, b = 2, T = {steps}\n"
        "B = 1.41; "
        "1-GDP over all steps, replace-one; simulated noise, median and quartiles; floor 1e-5",
        fontsize=10,
    )
    figure.savefig(results_folder() / "dp_gibo_42.png", dpi=110)
    plt.close(figure)
    last = {name: e[:, -1] for name, e in errors.items()}
    return {
        "steps": steps,
        "final distance from the minimum": {name: interval(e) for name, e in last.items()},
        "final length of the gradient": {k: interval(v[:, -1]) for k, v in lengths.items()},
        "DP-GIBO minus noisy gradient descent, distance": paired_interval(
            last["DP-GIBO, mu = 1"].tolist(), last["noisy gradient descent, mu = 1"].tolist()
        ),
    }


def main() -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    parser = BenchmarkParser("dp_gibo_examples", __doc__, minutes=4)
    parser.add_argument("--examples", nargs="+", default=["4.1", "4.2"], choices=["4.1", "4.2"])
    parser.add_argument("--seeds", type=int, default=30)
    parser.add_argument("--steps", type=int, help="of both; the paper's 150 and 100 by default")
    options = parser.parse_args()
    torch.set_num_threads(1)
    examples = {"4.1": (example_41, 150), "4.2": (example_42, 100)}
    for name in options.examples:
        example, steps = examples[name]
        results = {"seeds": options.seeds, **example(options.seeds, options.steps or steps)}
        print(f"Example {name} ({options.seeds} seeds)")
        for key, value in results.items():
            for what, number in value.items() if isinstance(value, dict) else [("", value)]:
                print(f"  {key}{': ' if what else ''}{what}: {number}")
        save_results(f"dp_gibo_{name.replace('.', '')}", results)


if __name__ == "__main__":
    main()
