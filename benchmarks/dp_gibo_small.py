"""The small examples of the DP-GIBO paper: 4.1, 4.2 and C.5, with figures like the paper's.

    OMP_NUM_THREADS=1 python -m benchmarks.dp_gibo_small [--seeds 40]

The sizes (n, B, b, T, mu) are the paper's. The data are not published: they are drawn here as the
text describes them, so curves compare in shape, not in digits.

- 4.1: the mean of n = 50 points in the plane, squared loss, B = 1, b = 3, T = 150, mu = .5 and 2.
  Nearly all gradients are longer than B: the limit of clipped descent is not the mean (the
  maximum-likelihood estimate) but a spatial median.
- 4.2: logistic regression with n = 100, b = 2, T = 100, mu = 1, against noisy gradient descent with
  true gradients. With features (1, x) and abs(x) <= 1 the true bound on a gradient is sqrt(2).
- C.5: example 4.1 with noisy evaluations: Gaussian, Student-t with 3 degrees of freedom, and
  heteroscedastic, all of standard deviation .1, modelled as Gaussian.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from gpytorch.kernels import RBFKernel
from torch import Tensor

from benchmarks.common import RESULTS, mean_interval, save_results
from botorch_dp.descent import DPGIBO, Design, gradient_noise_std

Losses = Callable[[Tensor], Tensor]


def rbf(lengthscale: float = 1.0) -> RBFKernel:
    kernel = RBFKernel().double()
    kernel.lengthscale = lengthscale
    return kernel


def quantiles(paths: Tensor) -> dict[str, list[float]]:
    """Median and quartiles over seeds of ``seeds x steps`` numbers."""
    levels = torch.tensor([0.25, 0.5, 0.75], dtype=torch.double)
    low, middle, high = paths.quantile(levels, dim=0).tolist()
    return {"low": low, "median": middle, "high": high}


def draw(ax: Any, curves: dict[str, dict[str, list[float]]], ylabel: str) -> None:
    for name, curve in curves.items():
        steps = range(len(curve["median"]))
        (line,) = ax.plot(steps, curve["median"], label=name)
        ax.fill_between(steps, curve["low"], curve["high"], alpha=0.2, color=line.get_color())
    ax.set_xlabel("step")
    ax.set_ylabel(ylabel)
    ax.set_yscale("log")
    ax.legend(frameon=False)


# --- 4.1 ---


def plane_data() -> Tensor:
    generator = torch.Generator().manual_seed(41)
    skewed = torch.distributions.Gamma(2.0, 1.0)
    torch.manual_seed(41)
    shape = skewed.sample((50, 1)).double() - 2.0  # skewed: mean and median differ
    normal = torch.randn(50, 2, dtype=torch.double, generator=generator)
    return torch.tensor([1.0, -1.0]).double() + 1.5 * normal + shape * torch.tensor([0.5, 0.25])


def spatial_median(data: Tensor, bound: float) -> Tensor:
    """Where the clipped gradients sum to zero: Huber's estimate, by iterated weights."""
    x = data.mean(0)
    for _ in range(10_000):
        weights = (bound / (data - x).norm(dim=-1)).clamp_max(1.0)
        x = (weights.unsqueeze(-1) * data).sum(0) / weights.sum()
    return x


def example_41(seeds: int) -> dict[str, Any]:
    data, bound, steps = plane_data(), 1.0, 150
    mle, limit = data.mean(0), spatial_median(data, bound)
    start = torch.tensor([-2.0, 2.0], dtype=torch.double)

    def losses(X: Tensor) -> Tensor:
        return 0.5 * (X.unsqueeze(1) - data).square().sum(-1)

    trajectories: dict[str, Tensor] = {}
    for mu in (0.5, 2.0, math.inf):
        runs = [
            DPGIBO(
                losses,
                start,
                kernel=rbf(2.0),
                mu=mu,
                steps=steps,
                clip_norm=bound,
                design=Design(batch_size=3, max_points=150),
                step_size=0.1,
                unsafe_seed=seed,
            )
            .run()
            .trajectory.value
            for seed in range(seeds if math.isfinite(mu) else 1)
        ]
        trajectories["no noise" if math.isinf(mu) else f"mu = {mu:g}"] = torch.stack(runs)
    clipped = ((data - mle).norm(dim=-1) > bound).double().mean()
    summary: dict[str, Any] = {
        "records clipped at the mean": float(clipped),
        "distance of the limit from the mean": float((limit - mle).norm()),
        "final distance from the limit (last iterate)": {},
        "final distance from the limit (average of the last half)": {},
        "noise per coordinate": {},
    }
    for name, paths in trajectories.items():
        last, average = paths[:, -1], paths[:, 1 + steps // 2 :].mean(1)
        for key, points in (("last iterate", last), ("average of the last half", average)):
            distance = (points - limit).norm(dim=-1).tolist()
            summary[f"final distance from the limit ({key})"][name] = (
                mean_interval(distance) if len(distance) > 1 else distance[0]
            )
    for mu in (0.5, 2.0):
        summary["noise per coordinate"][f"mu = {mu:g}"] = gradient_noise_std(
            clip_norm=bound, mu=mu, steps=steps, num_records=50
        )
    _figure_41(data, mle, limit, trajectories)
    return summary


def _figure_41(data: Tensor, mle: Tensor, limit: Tensor, trajectories: dict[str, Tensor]) -> None:
    import matplotlib.pyplot as plt

    figure, (plane, curve) = plt.subplots(1, 2, figsize=(11, 4.6))
    plane.scatter(*data.T, s=12, color="0.6", label="records (simulated data)")
    for name, paths in trajectories.items():
        plane.plot(*paths[0].T, lw=0.9, label=name)
    plane.plot(*mle, "k*", ms=11, label="mean (MLE)")
    plane.plot(*limit, "rX", ms=8, label="limit of clipped descent")
    plane.set_xlabel("parameter 1")
    plane.set_ylabel("parameter 2")
    plane.legend(framealpha=0.9, fontsize=8)
    distances = {
        name: quantiles((paths - limit).norm(dim=-1)) for name, paths in trajectories.items()
    }
    draw(curve, distances, "distance from the limit of clipped descent")
    figure.suptitle(
        "Example 4.1: n = 50, B = 1, b = 3, T = 150. mu-GDP over all steps, replace-one "
        "(simulated noise; median and quartiles)"
    )
    _save(figure, "dp_gibo_41")


# --- 4.2 ---


def logistic_data() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(42)
    x = 2 * torch.rand(100, 1, dtype=torch.double, generator=generator) - 1
    features = torch.cat((torch.ones_like(x), x), dim=-1)
    chance = torch.sigmoid(features @ torch.tensor([0.5, 2.0], dtype=torch.double))
    labels = (torch.rand(100, dtype=torch.double, generator=generator) < chance).double()
    return features, labels


def example_42(seeds: int) -> dict[str, Any]:
    features, labels = logistic_data()
    bound, steps, mu, step_size = math.sqrt(2.0), 100, 1.0, 1.0
    n = len(labels)

    def losses(X: Tensor) -> Tensor:
        logits = X @ features.T
        return torch.nn.functional.softplus(logits) - labels * logits

    def true_gradient(x: Tensor) -> Tensor:
        return ((torch.sigmoid(features @ x) - labels).unsqueeze(-1) * features).mean(0)

    start = torch.zeros(2, dtype=torch.double)
    optimum = start.clone()
    for _ in range(20_000):
        optimum = optimum - true_gradient(optimum)

    def gibo(seed: int, mu: float = mu) -> Tensor:
        return (
            DPGIBO(
                losses,
                start,
                kernel=rbf(2.0),
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

    def noisy_descent(seed: int) -> Tensor:
        std = gradient_noise_std(clip_norm=bound, mu=mu, steps=steps, num_records=n)
        generator = torch.Generator().manual_seed(seed)
        path = [start]
        for _ in range(steps):
            noise = std * torch.randn(2, dtype=torch.double, generator=generator)
            path.append(path[-1] - step_size * (true_gradient(path[-1]) + noise))
        return torch.stack(path)

    paths = {
        "DP-GIBO, mu = 1": torch.stack([gibo(seed) for seed in range(seeds)]),
        "true gradients, mu = 1": torch.stack([noisy_descent(seed) for seed in range(seeds)]),
        "GIBO without noise": gibo(0, math.inf).unsqueeze(0),
    }
    best = losses(optimum.unsqueeze(0)).mean()
    gaps = {
        name: torch.stack([losses(path).mean(-1) - best for path in p]).clamp_min(1e-12)
        for name, p in paths.items()
    }
    import matplotlib.pyplot as plt

    figure, ax = plt.subplots(figsize=(6.2, 4.4))
    draw(ax, {name: quantiles(gap) for name, gap in gaps.items()}, "mean loss above its minimum")
    ax.set_title(
        "Example 4.2: n = 100, B = $\\sqrt{2}$, b = 2, T = 100\n1-GDP over all steps, replace-one "
        "(simulated noise; median and quartiles)",
        fontsize=10,
    )
    _save(figure, "dp_gibo_42")
    return {
        "final gap": {
            name: mean_interval(gap[:, -1].tolist()) if len(gap) > 1 else float(gap[0, -1])
            for name, gap in gaps.items()
        },
    }


# --- C.5 ---


def example_c5(seeds: int) -> dict[str, Any]:
    data, bound, steps, mu, std = plane_data(), 1.0, 150, 2.0, 0.1
    limit = spatial_median(data, bound)
    start = torch.tensor([-2.0, 2.0], dtype=torch.double)

    def clean(X: Tensor) -> Tensor:
        return 0.5 * (X.unsqueeze(1) - data).square().sum(-1)

    def noise(kind: str, losses: Tensor, generator: torch.Generator) -> Tensor:
        normal = torch.randn(losses.shape, dtype=torch.double, generator=generator)
        if kind == "Student-t":
            chi = torch.randn(3, *losses.shape, dtype=torch.double, generator=generator)
            return std * normal / chi.square().mean(0).sqrt() / math.sqrt(3.0)
        if kind == "heteroscedastic":
            return std * normal * losses / losses.square().mean().sqrt()
        return std * normal

    paths: dict[str, Tensor] = {}
    for kind in ("none", "Gaussian", "Student-t", "heteroscedastic"):
        runs = []
        for seed in range(seeds):
            generator = torch.Generator().manual_seed(seed)

            def losses(X: Tensor, kind: str = kind, g: torch.Generator = generator) -> Tensor:
                values = clean(X)
                return values if kind == "none" else values + noise(kind, values, g)

            run = DPGIBO(
                losses,
                start,
                kernel=rbf(2.0),
                mu=mu,
                steps=steps,
                clip_norm=bound,
                design=Design(
                    batch_size=3,
                    noise_variance=0.0 if kind == "none" else std**2,
                    max_points=150,
                ),
                step_size=0.1,
                unsafe_seed=seed,
            )
            runs.append((run.run().trajectory.value - limit).norm(dim=-1))
        paths[kind] = torch.stack(runs)
    import matplotlib.pyplot as plt

    figure, ax = plt.subplots(figsize=(6.2, 4.4))
    ylabel = "distance from the limit of clipped descent"
    draw(ax, {f"noise: {kind}": quantiles(path) for kind, path in paths.items()}, ylabel)
    ax.set_title(
        "Example C.5: evaluations with noise of s.d. .1, n = 50, T = 150\n2-GDP over all steps, "
        "replace-one (simulated noise; median and quartiles)",
        fontsize=10,
    )
    _save(figure, "dp_gibo_c5")
    return {
        "final distance": {kind: mean_interval(p[:, -1].tolist()) for kind, p in paths.items()},
    }


def _save(figure: Any, name: str) -> Path:
    import matplotlib.pyplot as plt

    path = RESULTS / f"{name}.png"
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)
    return path


def main() -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=40)
    seeds = parser.parse_args().seeds
    torch.set_num_threads(1)
    RESULTS.mkdir(exist_ok=True)
    results = {"seeds": seeds}
    for name, example in (("4.1", example_41), ("4.2", example_42), ("C.5", example_c5)):
        results[name] = example(seeds)
        print(f"Example {name} ({seeds} seeds)")
        for key, value in results[name].items():
            entries = value.items() if isinstance(value, dict) else [("", value)]
            for what, number in entries:
                shown = f"{number:.4g}" if isinstance(number, float) else str(number)
                print(f"  {key}{': ' if what else ''}{what}: {shown}")
    save_results("dp_gibo_small", results)


if __name__ == "__main__":
    main()
