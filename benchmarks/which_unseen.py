"""PrivateSearch on five tasks that were not looked at while it was made.

    OMP_NUM_THREADS=1 python -m benchmarks.which_unseen [--full] [--records 300]

Generated records with optima of their own, n = 2,000 unless said otherwise, delta = 1e-6: ripples
and a plateau, a heavy-tailed regression (absolute errors, cut at 1), d = 20 with noise in each
loss, and a space with categories, where the best category is not the first. The rivals have the
same evaluations, 15 (d + 1): permute-and-flip on space-filling configurations, and DP-GIBO from the
middle, whose clip norm comes from 200 public records (no categories). Reported is the regret of
what is published in units of a random choice's, mean and 95% interval over the seeds.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

from benchmarks.common import mean_interval, save_results
from benchmarks.dp_gibo_where import descend
from botorch_dp.privacy import PrivacyBudget, gaussian_mu
from botorch_dp.space import Choice, Config, Real, SearchSpace
from botorch_dp.tuning import PrivateSearch

NUM_PUBLIC, DELTA = 200, 1e-6
#: Points of the cube and rows to losses.
Losses = Callable[[Tensor], Tensor]
DIMS = {"ripples": 6, "plateau": 6, "heavy tails": 8, "noisy losses": 20, "categories": 5}
KINDS = ("a", "b", "c", "d")


def common_optimum(d: int, seed: int) -> Tensor:
    shared = torch.Generator().manual_seed(seed)
    return 0.15 + 0.7 * torch.rand(d, dtype=torch.double, generator=shared)


def losses_of(name: str, seed: int, count: int, stream: int) -> Losses:
    """Losses of ``count`` records; the common optimum depends on the seed only."""
    d = DIMS[name]
    centre = common_optimum(d, seed)
    own = torch.Generator().manual_seed(1000 * stream + seed)
    optima = centre + 0.08 * torch.randn(count, d, dtype=torch.double, generator=own)
    features = torch.randn(count, d, dtype=torch.double, generator=own) / d**0.5
    tails = 0.05 * torch.tan(torch.pi * (torch.rand(count, generator=own).double() - 0.5))
    noise = torch.rand(64, count, dtype=torch.double, generator=own)

    def losses(X: Tensor) -> Tensor:
        far = torch.cdist(X, optima).square() / (2 * 0.25**2 * d)
        if name == "ripples":
            ripples = torch.cos(2 * torch.pi * (X - centre) / 0.15).mean(-1, keepdim=True)
            return 0.85 * (1 - torch.exp(-far)) + 0.075 * (1 - ripples)
        if name == "plateau":
            return (4 * far).clamp_max(1.0)
        if name == "heavy tails":
            return (2 * ((X - centre) @ features.mT) - tails).abs().clamp_max(1.0)
        if name == "noisy losses":
            rows = (X.sum(-1) * 1e6).long() % 64
            return ((1 - torch.exp(-far)) + 0.5 * (noise[rows] - 0.5)).clamp(0, 1)
        return 1 - torch.exp(-far)

    return losses


def measure(name: str, epsilon: float, seed: int, num_records: int) -> dict[str, float]:
    """Regret of each method."""
    d = DIMS[name]
    private = losses_of(name, seed, num_records, 1)
    public = losses_of(name, seed, NUM_PUBLIC, 2)
    parameters: dict[str, Any] = {f"x{i}": Real(0.0, 1.0) for i in range(d)}
    has_kinds = name == "categories"
    if has_kinds:
        parameters["kind"] = Choice(*KINDS)
    space = SearchSpace(**parameters)

    def scores(configs: list[Config]) -> Tensor:
        X = torch.tensor([[c[f"x{i}"] for i in range(d)] for c in configs]).double()
        table = private(X)
        if has_kinds:
            worse = torch.tensor([[0.15 * ((KINDS.index(c["kind"]) + seed) % 4)] for c in configs])
            table = 0.5 * table + worse
        return table

    def published(budget: PrivacyBudget) -> Config:
        search = PrivateSearch(
            scores,
            space,
            bounds=(0.0, 1.0),
            budget=budget,
            evaluations=15 * (d + 1),
            num_records=num_records,
            unsafe_seed=seed,
        )
        return search.run().config.value

    found = {
        "PrivateSearch": published(PrivacyBudget(epsilon, DELTA)),
        "permute-and-flip": published(PrivacyBudget(epsilon)),
    }
    if not has_kinds:
        point, _ = descend(private, public, d, mu=gaussian_mu(epsilon, DELTA), steps=15, seed=seed)
        found["DPGIBO"] = {f"x{i}": float(v) for i, v in enumerate(point)}
    many = space.sample(512, seed=seed)
    blind = float(scores(many).mean())
    best_config: Config = {f"x{i}": float(v) for i, v in enumerate(common_optimum(d, seed))}
    if has_kinds:
        best_config["kind"] = KINDS[-seed % 4]
    means = {method: float(scores([config]).mean()) for method, config in found.items()}
    best = min(float(scores([best_config]).mean()), float(scores(many).mean(-1).min()))
    best = min(best, *means.values())
    return {method: (loss - best) / (blind - best) for method, loss in means.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--full", action="store_true", help="10 seeds instead of 3")
    parser.add_argument("--records", type=int, default=2000)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    seeds = range(10 if arguments.full else 3)
    results: dict[str, Any] = {}
    for name in tqdm(DIMS, desc="tasks"):
        for epsilon in (0.3, 1.0, 3.0):
            rows = [measure(name, epsilon, seed, arguments.records) for seed in seeds]
            for method in rows[0]:
                interval = mean_interval([row[method] for row in rows])
                results.setdefault(name, {}).setdefault(method, {})[f"{epsilon:g}"] = interval
    for name, methods in results.items():
        print(f"\n{name}, d = {DIMS[name]}: regret at epsilon = 0.3 / 1 / 3")
        for method, levels in methods.items():
            cells = " / ".join(f"{i.mean:.2f} ± {i.high - i.mean:.2f}" for i in levels.values())
            print(f"  {method}: {cells}")
    sizes = {"seeds": len(seeds), "records": arguments.records, "reduced": not arguments.full}
    save_results(
        f"which_unseen_{arguments.records}", {"sizes": sizes, "delta": DELTA, "regret": results}
    )


if __name__ == "__main__":
    main()
