"""What does tuning cost when it is counted in epsilon?

    python -m benchmarks.paid_tuning [--tasks adult mnist] [--report]

Accuracy of the published model at a total epsilon (delta = 1e-5, Poisson batches, replace-one).
Configurations are drawn from the space and trained at the noise that each way of tuning can afford,
once (a *pool*); 200 runs of each way are then drawn from its pool, with as many trainings as its
law says. That is exact for a space of the pool's configurations, and approximate otherwise. One
part of the test records selects, with the noise that a budget of their own, of the same size, asks
for; the other part, which nobody looks at, says how good the published model is. Pools
are stored as they grow, so a run that was stopped goes on where it was. Ways of tuning:

* *unpaid*: the best of 40 at the winner's own epsilon, a ceiling whose real epsilon is larger;
* *selection*: a secret number of random trainings, 20 expected, shape 3, as ``PrivateFit`` does;
* *default*: one training in the middle of the space;
* *composition*: 40 random trainings, all of which may be published.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tqdm import tqdm

from benchmarks.common import BenchmarkParser, save_results
from benchmarks.tables import fixed, markdown, stored
from botorch_dp import datasets
from botorch_dp._files import atomic_write
from botorch_dp.privacy import PrivacyBudget, dp_sgd_noise_multiplier
from botorch_dp.privacy.selection import TrialNumber
from botorch_dp.space import Integer, Real, SearchSpace
from botorch_dp.training import (
    DPTrainer,
    TrainTest,
    accuracy,
    cross_entropy_loss,
    logistic_loss,
    logistic_regression,
)
from botorch_dp.training.networks import multilayer_perceptron
from botorch_dp.tuning import PrivateFit

EPSILONS, DELTA, TRIALS = (0.1, 0.3, 1.0, 3.0), 1e-5, 40


RUNS, BOOTSTRAPS = 200, 60


WAYS = ("unpaid", "selection", "default", "composition")

#: The law of the number of trainings of a selection.
NUMBER = TrialNumber(20, 3.0)


@dataclass(frozen=True)
class Task:
    """Records, of which the last ``held`` test records say how good a model is in the end."""

    records: Callable[[], TrainTest]
    held: int
    trainer: Callable[[TrainTest], DPTrainer]
    space: SearchSpace
    pool: int


def adult() -> TrainTest:
    """All of Adult, 24,000 records of it to train on."""
    data = datasets.adult()
    X, y = torch.cat([data.train_X, data.test_X]), torch.cat([data.train_Y, data.test_Y])
    order = torch.randperm(len(X), generator=torch.Generator().manual_seed(0))
    X, y = X[order], y[order]
    return TrainTest(X[:24_000], y[:24_000], X[24_000:], y[24_000:])


TASKS = {
    "adult": Task(
        adult,
        held=4_500,
        trainer=lambda data: DPTrainer(
            partial(logistic_regression, 123), logistic_loss, data, optimizer="adam"
        ),
        space=SearchSpace(
            learning_rate=Real(1e-3, 0.3, log=True),
            clip_norm=Real(0.05, 4.0, log=True),
            batch_size=Integer(256, 4096, log=True),
            epochs=Integer(4, 32, log=True),
        ),
        pool=64,
    ),
    "mnist": Task(
        datasets.mnist,
        held=5_000,
        trainer=lambda data: DPTrainer(
            partial(multilayer_perceptron, 784, 10, (64,)), cross_entropy_loss, data
        ),
        space=SearchSpace(
            learning_rate=Real(0.1, 5.0, log=True),
            clip_norm=Real(0.1, 4.0, log=True),
            batch_size=Integer(1000, 6000, log=True),
            epochs=Integer(3, 10, log=True),
        ),
        pool=12,
    ),
}


class Pools:
    """Trainings of one task at the levels of all ways, in a file."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name, self.task = name, TASKS[name]
        data, held = self.task.records(), self.task.held
        self.data = data._replace(test_X=data.test_X[:-held], test_Y=data.test_Y[:-held])
        self.held = data.test_X[-held:], data.test_Y[-held:]
        self.trainer = self.task.trainer(self.data)
        self.path = folder / f"paid_tuning_{name}.pool.json"
        self.stored: dict[str, list[Any]] = {}
        self._known: dict[float, tuple[TrialNumber, float]] = {}
        if self.path.exists():
            self.stored = json.loads(self.path.read_text())

    def fit(self, epsilon: float) -> PrivateFit:
        """The fit whose noise a selection's trainings have."""
        return PrivateFit(
            self.trainer, self.task.space, budget=PrivacyBudget(epsilon, DELTA), trials=NUMBER
        )

    def noise(self, way: str, epsilon: float) -> Callable[[dict[str, Any]], float]:
        """From a configuration to its noise multiplier."""
        if way == "selection":
            return self.fit(epsilon).noise_multiplier
        times = TRIALS if way == "composition" else 1

        def composed(config: dict[str, Any]) -> float:
            n, m = len(self.data.train_X), config["batch_size"]
            return dp_sgd_noise_multiplier(
                epsilon=epsilon,
                delta=DELTA,
                batch_size=m,
                num_records=n,
                steps=times * config["epochs"] * (n // m),
                tolerance=1e-3,
            )

        return composed

    def wanted(self, way: str) -> list[dict[str, Any]]:
        """The configurations that a way's pool shall have; the same ones for all that select."""
        if way == "default":
            return [self.task.space.middle()] * 8
        return self.task.space.sample(self.task.pool, seed=1)

    def grow(self) -> None:
        """Make all trainings that are missing, in turn at all levels."""
        for epsilon, way in itertools.product((1.0, 0.1, 3.0, 0.3), WAYS):
            pool = self.stored.setdefault(f"{way} {epsilon}", [])
            noise = self.noise(way, epsilon)
            left = self.wanted(way)[len(pool) :]
            for config in tqdm(left, desc=f"{self.name}, {way}, epsilon = {epsilon}"):
                settings = {**config, "noise_multiplier": noise(config)}
                trained = self.trainer.fit(**settings, delta=DELTA, seed=10_000 + len(pool))
                with torch.no_grad():
                    held = accuracy(trained.model(self.held[0]), self.held[1])
                pool.append([config, trained.accuracy, held])
                if len(pool) % 8 == 0:
                    self._save()
        self._save()

    def _save(self) -> None:
        with atomic_write(self.path) as file:
            json.dump(self.stored, file)

    def published(
        self, way: str, epsilon: float, kept: np.ndarray, runs: int, rng: np.random.Generator
    ) -> float:
        """Mean accuracy of published models, on records that nobody has looked at.

        Args:
            way: How it was tuned.
            epsilon: The total.
            kept: Which of the pool's trainings there are, with repetitions.
            runs: How many runs to draw.
            rng: Draws them.
        """
        pool = self.stored[f"{way} {epsilon}"]
        scores, held = (np.array([row[i] for row in pool])[kept % len(pool)] for i in (1, 2))
        if way == "default":
            return float(held[: len(pool)].mean())
        number, mu = self._parameters(epsilon)
        std = 1 / (mu * len(self.data.test_X)) if way != "unpaid" else 0.0
        found = []
        for _ in range(runs):
            count = TRIALS if way in ("unpaid", "composition") else number.quantile(rng.random())
            noisy = scores + std * rng.standard_normal(len(scores))
            chosen = rng.integers(len(scores), size=count)
            found.append(held[chosen[int(noisy[chosen].argmax())]])
        return float(np.mean(found))

    def _parameters(self, epsilon: float) -> tuple[TrialNumber, float]:
        if epsilon not in self._known:
            fit = self.fit(epsilon)
            mu = fit._score_noise.mu
            assert mu is not None
            self._known[epsilon] = fit.number, mu
        return self._known[epsilon]

    def report(self) -> dict[str, Any]:
        """Mean accuracies, with 95% bootstrap intervals over the trainings of the pool.

        The same configurations are in the pools of all ways that select, so the differences to
        unpaid tuning are paired.
        """
        table: dict[str, Any] = {}
        for epsilon in EPSILONS:
            ways = [w for w in WAYS if len(self.stored.get(f"{w} {epsilon}", ())) >= 8]
            size = max((len(self.stored[f"{w} {epsilon}"]) for w in ways), default=0)
            found = {way: self._draws(way, epsilon, size) for way in ways}
            for way, (mean, draws) in found.items():
                best, unpaid = found["unpaid"]
                table[f"{way} {epsilon}"] = {
                    "pool": len(self.stored[f"{way} {epsilon}"]),
                    "accuracy": mean,
                    "interval": np.quantile(draws, [0.025, 0.975]).tolist(),
                    "below unpaid": best - mean,
                    "below unpaid, interval": np.quantile(unpaid - draws, [0.025, 0.975]).tolist(),
                }
        return table

    def _draws(self, way: str, epsilon: float, size: int) -> tuple[float, np.ndarray]:
        """The mean over many runs, and those over ten runs from resampled pools."""

        def one(kept: np.ndarray, runs: int, seed: int) -> float:
            rng = np.random.default_rng([2, seed])
            return self.published(way, epsilon, kept, runs, rng)

        resampled = [
            one(np.random.default_rng([1, seed]).integers(size, size=size), 10, seed)
            for seed in range(BOOTSTRAPS)
        ]
        return one(np.arange(size), RUNS, 0), np.array(resampled)


#: Ways to pay for tuning, as the tables call them.
LABELS = {
    "unpaid": "not counted in ε: the best of 40 at the winner's own ε (a ceiling)",
    "selection": "private selection, 20 expected (`PrivateFit`)",
    "default": "one training in the middle of the space",
    "composition": "40 trainings, each of them charged",
}


def table_paid_tuning() -> str:
    columns = [("adult", e) for e in (0.1, 0.3, 1.0, 3.0)] + [("mnist", e) for e in (0.1, 1.0, 3.0)]
    found = stored("paid_tuning")
    rows = [
        [label] + [fixed(found[task][f"{way} {epsilon}"]["accuracy"]) for task, epsilon in columns]
        for way, label in LABELS.items()
    ]
    names = {"adult": "Adult", "mnist": "MNIST"}
    return markdown(["", *(f"{names[task]}, ε = {epsilon:g}" for task, epsilon in columns)], rows)


def main() -> None:
    parser = BenchmarkParser("paid_tuning", __doc__, minutes=20)
    parser.add_argument("--tasks", nargs="+", default=list(TASKS), choices=list(TASKS))
    parser.add_argument("--report", action="store_true", help="only from the pools there are")
    options = parser.parse_args()
    results: dict[str, Any] = {}
    for name in options.tasks:
        pools = Pools(name, options.out)
        if not options.report:
            pools.grow()
        results[name] = pools.report()
        for key, row in results[name].items():
            print(name, key, row)
    save_results("paid_tuning", results)


if __name__ == "__main__":
    main()
