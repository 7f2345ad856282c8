"""How far do untuned settings carry: other batches, labels, scales, sizes and dimensions?

    OMP_NUM_THREADS=1 python -m benchmarks.untuned_robustness

Logistic regressions at epsilon = 1 and delta = 1e-5 (Poisson batches, replace-one, seeded noise) on
Adult and on made records, three trainings each. Beside the rule stand the majority class and the
best of five distances, from a quarter to four times the rule's, chosen by the very accuracies that
are shown, which flatters it, and a training without noise.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import torch
from torch import Tensor

from benchmarks.common import BenchmarkParser, mean_interval, save_results
from benchmarks.untuned_tasks import adult
from botorch_dp.training import DPTrainer, TrainTest, logistic_loss, logistic_regression

EPSILON, SEEDS = 1.0, range(3)
FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0)


def made(n: int, d: int) -> TrainTest:
    """Unit vectors, half of which have each label; a linear model without noise is right at 93%."""
    generator = torch.Generator().manual_seed(n + d)
    X = torch.randn(n + 4000, d, generator=generator)
    X /= X.norm(dim=1, keepdim=True)
    direction = torch.randn(d, generator=generator)
    scores = X @ direction / direction.norm() * math.sqrt(d)
    y = (scores + 0.2 * torch.randn(len(X), generator=generator) > 0).long()
    return TrainTest(X[:n], y[:n], X[n:], y[n:])


def noisy_labels(share: float) -> TrainTest:
    """Adult with some training labels drawn anew."""
    data = adult()
    generator = torch.Generator().manual_seed(0)
    wrong = torch.rand(len(data.train_Y), generator=generator) < share
    drawn = torch.randint(2, data.train_Y.shape, generator=generator)
    return data._replace(train_Y=torch.where(wrong, drawn, data.train_Y))


def rare(share: float) -> TrainTest:
    """Adult with most of the larger incomes left out of the training records."""
    data = adult()
    few = (data.train_Y == 1).nonzero().flatten()
    many = (data.train_Y == 0).nonzero().flatten()
    kept = torch.cat([many, few[: int(share / (1 - share) * len(many))]])
    return data._replace(train_X=data.train_X[kept], train_Y=data.train_Y[kept])


def scaled(kind: str) -> TrainTest:
    """Adult with columns on scales that differ, or records of lengths that differ."""
    data = adult()
    generator = torch.Generator().manual_seed(0)

    def change(X: Tensor) -> Tensor:
        if kind == "columns":
            factors = torch.exp(1.5 * torch.randn(123, generator=generator.manual_seed(0)))
            return X * factors
        return X * torch.randn(len(X), 1, generator=generator).abs().clamp_min(0.05).reciprocal()

    return data._replace(train_X=change(data.train_X), test_X=change(data.test_X))


def norm_of(data: TrainTest) -> float:
    """The root mean square norm, to two digits: the data are public."""
    return float(f"{float(data.train_X.square().sum(1).mean().sqrt()):.2g}")


def cases() -> dict[str, tuple[Any, dict[str, Any], float]]:
    """Records, settings of one's own, and how many times too large the stated norm is."""
    found: dict[str, tuple[Any, dict[str, Any], float]] = {"Adult": (adult, {}, 1.0)}
    for part in (3, 50, 200):
        found[f"Adult, batches of n/{part}"] = (adult, {"batch_size": 24_000 // part}, 1.0)
    for epochs in (6, 96):
        found[f"Adult, {epochs} epochs"] = (adult, {"epochs": epochs}, 1.0)
    for wrong in (1 / 3, 3.0):
        found[f"Adult, stated norm {wrong:.2g} of the true one"] = (adult, {}, wrong)
    for share in (0.1, 0.3):
        name = f"Adult, {share:.0%} of the labels drawn anew"
        found[name] = (partial(noisy_labels, share), {}, 1.0)
    for share in (0.1, 0.03):
        found[f"Adult, {share:.0%} larger incomes"] = (partial(rare, share), {}, 1.0)
    found["Adult, columns on other scales"] = (partial(scaled, "columns"), {}, 1.0)
    found["Adult, lengths with a heavy tail"] = (partial(scaled, "records"), {}, 1.0)
    for n in (300, 3000, 30_000, 300_000):
        found[f"made, n = {n:,}, d = 20"] = (partial(made, n, 20), {}, 1.0)
    for d in (5, 50, 500, 5000):
        found[f"made, n = 5,000, d = {d:,}"] = (partial(made, 5000, d), {}, 1.0)
    return found


def measured(records: Any, own: dict[str, Any], wrong: float) -> dict[str, Any]:
    """Accuracies of the rule, of other distances, and on the rarer class."""
    data: TrainTest = records()
    trainer = DPTrainer(partial(logistic_regression, data.train_X.shape[1]), logistic_loss, data)
    asked: Any = {"target_epsilon": EPSILON, "feature_norm": wrong * norm_of(data), **own}
    plan = trainer.plan(**asked)
    fixed: Any = {"clip_norm": plan.clip_norm, "batch_size": plan.batch_size, "epochs": plan.epochs}
    stepped = DPTrainer(
        partial(logistic_regression, data.train_X.shape[1]), logistic_loss, data,
        optimizer="scale_free",
    )  # fmt: skip

    def trained(factor: float, noise: float) -> Any:
        rate = factor * plan.learning_rate
        return stepped.replicates(SEEDS, **fixed, learning_rate=rate, noise_multiplier=noise)

    found = {factor: trained(factor, plan.noise_multiplier) for factor in FACTORS}
    means = {f: sum(each.accuracy for each in all_) / len(all_) for f, all_ in found.items()}
    open_ = trained(1.0, 0.0)
    share = float((data.test_Y == data.train_Y.mode().values).double().mean())
    return {
        "majority": share,
        "rule": mean_interval([each.accuracy for each in found[1.0]]),
        "best distance": max(means.values()),
        "no noise": sum(each.accuracy for each in open_) / len(open_),
    }


def main() -> None:
    BenchmarkParser("untuned_robustness", __doc__, minutes=4).parse_args()
    rows = {}
    for name, case in cases().items():
        rows[name] = measured(*case)
        print(name, {k: str(v) for k, v in rows[name].items()}, flush=True)
    save_results("untuned_robustness", {"epsilon": EPSILON, "rows": rows})


if __name__ == "__main__":
    main()
