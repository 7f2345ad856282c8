"""What PrivateSearch does with few evaluations, and what it does not do, measured.

    OMP_NUM_THREADS=1 python -m benchmarks.which_variants [--seeds 20]

Generated records (``which_unseen``), delta = 1e-6 or 0, regret in units of a random choice's, 95%
intervals over the seeds.

- *Few evaluations*: d + 1 or three times as many, d = 12, n = 2,000, epsilon = 1.
- *Differences*: permute-and-flip on mean scores, whose range is 1, against mean differences to the
  middle of the space clipped to ``+-c``, whose range is ``2 c``; 2 parameters, 40 Sobol points.
- *Random directions*: d = 100, n = 2,000, epsilon = 1, about 5 (d + 1) evaluations. A descent by
  AdaGrad on noisy clipped gradients in all directions, or, with more and therefore noisier steps,
  in k random ones at a time.
- *Minibatches*: d = 10, n = 500 and 5,000, the same number of scores in all: 15 steps that ask all
  records, or four and ten times as many that ask a random quarter or tenth, whose privacy is
  amplified (Poisson batches, replace-one).
"""

from __future__ import annotations

import argparse
import math
from typing import Any

import torch
from torch import Tensor
from torch.quasirandom import SobolEngine
from tqdm import tqdm

from benchmarks.common import mean_interval, save_results
from benchmarks.which_unseen import DELTA, NUM_PUBLIC, Losses, common_optimum, losses_of, measure
from botorch_dp.acquisition.gradient_trace import regular_simplex
from botorch_dp.privacy import dp_sgd_noise_multiplier, exponential_mechanism, gaussian_mu

_DRAWS = 20


def regret(losses: Losses, d: int, seed: int, points: Tensor) -> float:
    """Of the mean over some points."""
    blind = SobolEngine(d, scramble=True, seed=seed).draw(256, dtype=torch.double)
    best = float(losses(common_optimum(d, seed).unsqueeze(0)).mean())
    return (float(losses(points).mean()) - best) / (float(losses(blind).mean()) - best)


# --- Differences. ---


def chosen(name: str, n: int, epsilon: float, clip: float | None, seed: int) -> float:
    losses = losses_of(name, 2, seed, n, 1)
    X = SobolEngine(2, scramble=True, seed=0).draw(40, dtype=torch.double)
    table = losses(X)
    if clip is not None:
        table = (table - losses(torch.full((1, 2), 0.5).double())).clamp(-clip, clip)
    draws = [
        exponential_mechanism(
            -table.mean(-1),
            sensitivity=(1.0 if clip is None else 2 * clip) / n,
            epsilon=epsilon,
            method="permute_and_flip",
            unsafe_seed=_DRAWS * seed + draw,
        ).value
        for draw in range(_DRAWS)
    ]
    return regret(losses, 2, seed, X[draws])


# --- Descents. ---


def stencil_gradients(losses: Losses, x: Tensor, basis: Tensor, radius: float) -> Tensor:
    """Gradients of single records along ``k`` directions (``d x k``): ``k x n``."""
    k = basis.shape[-1]
    corners = regular_simplex(k + 1, like=x)  # k + 1 x k
    return corners.mT @ losses(x + radius * corners @ basis.mT) * (k / ((k + 1) * radius))


def descended(
    name: str, d: int, n: int, seed: int, *, k: int, steps: int, epsilon: float, batch: int
) -> float:
    """AdaGrad from the middle, the average of the last half; clipped at a public median."""
    losses, public = (
        losses_of(name, d, seed, n, 1),
        losses_of(name, d, seed, NUM_PUBLIC, 2),
    )
    generator = torch.Generator().manual_seed(seed)
    x, squares = torch.full((d,), 0.5).double(), torch.zeros(d).double()
    if batch == n:
        scale = 2 * math.sqrt(steps) / (n * gaussian_mu(epsilon, DELTA))
    else:
        multiplier = dp_sgd_noise_multiplier(
            epsilon=epsilon, batch_size=batch, num_records=n, steps=steps, delta=DELTA
        )
        scale = 2 * multiplier / batch
    visited = []
    clip = math.nan
    for step in range(steps):
        radius = 0.6 * 0.1 ** (step / steps)
        basis = torch.eye(d).double()
        if k < d:
            random = torch.randn(d, k, dtype=torch.double, generator=generator)
            basis = torch.linalg.qr(random).Q
        if not step:
            clip = float(stencil_gradients(public, x, basis, radius).norm(dim=0).median())
        gradients = stencil_gradients(losses, x, basis, radius)
        gradients = gradients * (clip / gradients.norm(dim=0)).clamp_max(1.0)
        if batch < n:
            gradients = gradients[:, torch.rand(n, generator=generator) < batch / n]
        noise = clip * scale * torch.randn(k, dtype=torch.double, generator=generator)
        gradient = basis @ (gradients.sum(-1) / batch + noise)
        squares += gradient.square()
        x = (x - 0.1 * gradient / (squares.sqrt() + 1e-10)).clamp(0, 1)
        visited.append(x)
    return regret(losses, d, seed, torch.stack(visited[steps // 2 :]).mean(0, keepdim=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=20)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    results: dict[str, Any] = {}

    def measured(label: str, function: Any, *args: Any, **options: Any) -> None:
        values = [function(*args, seed=seed, **options) for seed in range(arguments.seeds)]
        results[label] = interval = mean_interval(values)
        tqdm.write(f"{label}: {interval.mean:.3f} ± {interval.high - interval.mean:.3f}")

    for name in ("ripples", "heavy tails", "plateau"):
        for batches in (1, 3):
            rows = [measure(name, 12, 1.0, seed, 2000, batches) for seed in range(arguments.seeds)]
            for method in ("PrivateSearch", "permute-and-flip"):
                label = (
                    f"{name}, d = 12, n = 2000, epsilon = 1, {13 * batches} evaluations: {method}"
                )
                measured(label, lambda seed, rows=rows, method=method: rows[seed][method])
    for name in ("ripples", "heavy tails"):
        for n in (100, 300, 1000):
            for clip in (None, 0.1, 0.3):
                what = "scores" if clip is None else f"differences up to {clip:g}"
                label = f"{name}, d = 2, n = {n}, epsilon = 0.3, {what}"
                measured(label, chosen, name, n, 0.3, clip)
    for name in ("ripples", "heavy tails"):
        for k, steps in ((100, 5), (25, 19), (10, 46)):
            label = f"{name}, d = 100, n = 2000, epsilon = 1, {steps} steps in {k} directions"
            options = {"k": k, "steps": steps, "epsilon": 1.0, "batch": 2000}
            measured(label, descended, name, 100, 2000, **options)
    for name in ("ripples", "heavy tails"):
        for n in (500, 5000):
            for part in (1, 4, 10):
                label = f"{name}, d = 10, n = {n}, epsilon = 1, {15 * part} steps of n / {part}"
                options = {"k": 10, "steps": 15 * part, "epsilon": 1.0, "batch": n // part}
                measured(label, descended, name, 10, n, **options)
    save_results("which_variants", {"seeds": arguments.seeds, "delta": DELTA, "regret": results})


if __name__ == "__main__":
    main()
