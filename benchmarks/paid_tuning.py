"""What does tuning cost when its own price is paid?

    python -m benchmarks.paid_tuning [--tasks adult mnist] [--report]

Accuracy of the published model at a total epsilon (delta = 1e-5, Poisson batches, replace-one).
Configurations are drawn from the space and trained at the noise that each way of tuning can afford,
once (a *pool*); 200 runs of each way are then drawn from its pool, with as many trainings as its
law says. That is exact for a space of the pool's configurations, and approximate otherwise. One
part of the test records selects, with and without the noise that a budget of their own, of the same
size, asks for; the other part, which nobody looks at, says how good the published model is. Pools
are stored as they grow, so a run that was stopped goes on where it was. ``--real`` adds runs of
``PrivateFit`` from end to end at epsilon = 1, and ``--budgeted`` studies with ``DPareto(budget=)``
and epsilon in their space, the best model on the front of which is published (the records that
select are public then).
Ways of tuning:

* *unpaid*: the best of 40 at the winner's own epsilon, a ceiling whose real epsilon is larger;
* *selection*: a secret number of random trainings, 20 expected, shape 3, as ``PrivateFit`` does;
* *forty* and *few*: 40 expected, geometric; 10 expected, shape 5;
* *default*: one training in the middle of the space;
* *composition*: 40 random trainings, all of which may be published.
"""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.common import (
    BenchmarkParser,
    mean_interval,
    save_results,
)
from benchmarks.tables import bracketed, fixed, markdown, stored
from botorch_dp import datasets
from botorch_dp._files import atomic_write
from botorch_dp.pareto import DPareto, PrivacyUtilityProblem, TrainingPrivacy
from botorch_dp.privacy import Guarantee, PrivacyBudget, dp_sgd_noise_multiplier
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


WAYS = ("unpaid", "selection", "forty", "few", "default", "composition")


#: The laws of the number of trainings.
NUMBERS = {
    "selection": TrialNumber(20, 3.0),
    "forty": TrialNumber(40),
    "few": TrialNumber(10, 5.0),
}


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
        self._known: dict[tuple[str, float], tuple[TrialNumber, float]] = {}
        if self.path.exists():
            self.stored = json.loads(self.path.read_text())

    def fit(self, way: str, epsilon: float) -> PrivateFit:
        """The fit whose level a selection's trainings have."""
        return PrivateFit(
            self.trainer,
            self.task.space,
            budget=PrivacyBudget(epsilon, DELTA),
            trials=NUMBERS[way],
        )

    def noise(self, way: str, epsilon: float) -> Callable[[dict[str, Any]], float]:
        """From a configuration to its noise multiplier."""
        if way in NUMBERS:
            return self.fit(way, epsilon).noise_multiplier
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
        order = (1.0, 0.1, 3.0, 0.3)
        levels = [(way, epsilon) for epsilon in order for way in WAYS]
        noises = {level: self.noise(*level) for level in levels}
        total = sum(len(self.wanted(way)) for way, _ in levels)
        made, start, done = (
            0,
            time.monotonic(),
            sum(len(self.stored.get(f"{way} {e}", ())) for way, e in levels),
        )
        print(f"{self.name}: {total - done} of {total} trainings to make", flush=True)
        for way, epsilon in levels:
            pool = self.stored.setdefault(f"{way} {epsilon}", [])
            for config in self.wanted(way)[len(pool) :]:
                settings = {**config, "noise_multiplier": noises[way, epsilon](config)}
                trained = self.trainer.fit(**settings, delta=DELTA, seed=10_000 + len(pool))
                with torch.no_grad():
                    held = accuracy(trained.model(self.held[0]), self.held[1])
                pool.append([config, trained.accuracy, held])
                made += 1
                if made % 8 == 1:
                    self._save()
                    left = (time.monotonic() - start) / made * (total - done - made)
                    print(f"{self.name}: {made}, about {left / 60:.0f} minutes left", flush=True)
        self._save()

    def _save(self) -> None:
        with atomic_write(self.path) as file:
            json.dump(self.stored, file)

    def published(
        self,
        way: str,
        epsilon: float,
        kept: np.ndarray,
        runs: int,
        rng: np.random.Generator,
        *,
        sensitive: bool,
    ) -> float:
        """Mean accuracy of published models, on records that nobody has looked at.

        Args:
            way: How it was tuned.
            epsilon: The total.
            kept: Which of the pool's trainings there are, with repetitions.
            runs: How many runs to draw.
            rng: Draws them.
            sensitive: Whether the test records that select are sensitive, too (not for unpaid
                tuning).
        """
        pool = self.stored[f"{way} {epsilon}"]
        scores, held = (np.array([row[i] for row in pool])[kept % len(pool)] for i in (1, 2))
        if way == "default":
            return float(held[: len(pool)].mean())
        number, mu = self._parameters(way, epsilon)
        std = 1 / (mu * len(self.data.test_X)) if sensitive and way != "unpaid" else 0.0
        found = []
        for _ in range(runs):
            count = TRIALS if way in ("unpaid", "composition") else number.quantile(rng.random())
            noisy = scores + std * rng.standard_normal(len(scores))
            chosen = rng.integers(len(scores), size=count)
            found.append(held[chosen[int(noisy[chosen].argmax())]])
        return float(np.mean(found))

    def _parameters(self, way: str, epsilon: float) -> tuple[TrialNumber, float]:
        if (way, epsilon) not in self._known:
            fit = self.fit(way if way in NUMBERS else "selection", epsilon)
            mu = fit._score_noise.mu
            assert mu is not None
            self._known[way, epsilon] = fit.number, mu
        return self._known[way, epsilon]

    def report(self) -> dict[str, Any]:
        """Mean accuracies, with 95% bootstrap intervals over the trainings of the pool.

        The same configurations are in the pools of all ways that select, so the differences to
        unpaid tuning are paired.
        """
        table: dict[str, Any] = {}
        for epsilon in EPSILONS:
            ways = [w for w in WAYS if len(self.stored.get(f"{w} {epsilon}", ())) >= 8]
            size = max((len(self.stored[f"{w} {epsilon}"]) for w in ways), default=0)
            for sensitive in (False, True):
                name = "sensitive test records" if sensitive else "public test records"
                found = {way: self._draws(way, epsilon, size, sensitive) for way in ways}
                for way, (mean, draws) in found.items():
                    best, unpaid = found["unpaid"]
                    pool = len(self.stored[f"{way} {epsilon}"])
                    row = table.setdefault(f"{way} {epsilon}", {"pool": pool})
                    row[name] = {
                        "accuracy": mean,
                        "interval": np.quantile(draws, [0.025, 0.975]).tolist(),
                        "below unpaid": best - mean,
                        "below unpaid, interval": np.quantile(
                            unpaid - draws, [0.025, 0.975]
                        ).tolist(),
                    }
        return table

    def _draws(
        self, way: str, epsilon: float, size: int, sensitive: bool
    ) -> tuple[float, np.ndarray]:
        """The mean over many runs, and those over ten runs from resampled pools."""

        def one(kept: np.ndarray, runs: int, seed: int) -> float:
            rng = np.random.default_rng([2, seed])
            return self.published(way, epsilon, kept, runs, rng, sensitive=sensitive)

        resampled = [
            one(np.random.default_rng([1, seed]).integers(size, size=size), 10, seed)
            for seed in range(BOOTSTRAPS)
        ]
        return one(np.arange(size), RUNS, 0), np.array(resampled)


def real_runs(name: str, folder: Path, seeds: int) -> list[dict[str, Any]]:
    """``PrivateFit.run`` from end to end at epsilon = 1, with the system's noise."""
    pools = Pools(name, folder)
    path = folder / f"paid_tuning_{name}.real.json"
    rows: list[dict[str, Any]] = json.loads(path.read_text()) if path.exists() else []
    while len(rows) < seeds:
        start = time.monotonic()
        fit = pools.fit("selection", 1.0)
        result = fit.run(checkpoint=folder / f"paid_tuning_{name}.{len(rows)}.run")
        with torch.no_grad():
            held = accuracy(result.model.value(pools.held[0]), pools.held[1])
        rows.append({"accuracy": held, "minutes": (time.monotonic() - start) / 60})
        path.write_text(json.dumps(rows))
        print(f"{name}, end to end: {rows[-1]}", flush=True)
    return rows


def budgeted_runs(name: str, folder: Path, seeds: int, most: int = 60) -> dict[str, Any]:
    """Studies that pay for every training of at most epsilon / 3, and publish their best model."""
    pools = Pools(name, folder)
    trainer, held = pools.trainer, {}
    path = folder / f"paid_tuning_{name}.budgeted.json"
    stored: dict[str, list[dict[str, Any]]] = json.loads(path.read_text()) if path.exists() else {}

    def promise(config: dict[str, Any]) -> Guarantee:
        return trainer.plan(**config, delta=DELTA).guarantee

    def utility(config: dict[str, Any], seed: int) -> float:
        trained = trainer.fit(**config, delta=DELTA, publish=True)
        with torch.no_grad():
            held[trained.accuracy] = accuracy(trained.model(pools.held[0]), pools.held[1])
        return trained.accuracy

    for seed, epsilon in itertools.product(range(seeds), (1.0, 0.3, 3.0, 0.1)):
        rows = stored.setdefault(str(epsilon), [])
        if len(rows) > seed:
            continue
        start = time.process_time()
        held.clear()
        level = Real(epsilon / 12, epsilon / 3, log=True)
        problem = PrivacyUtilityProblem(
            SearchSpace(**pools.task.space.parameters, target_epsilon=level),
            privacy=lambda config: config["target_epsilon"],
            utility=utility,
            training=TrainingPrivacy(DELTA, guarantee=promise, secret_noise=True),
        )
        with DPareto(problem, budget=PrivacyBudget(epsilon, DELTA), seed=seed) as study:
            study.run(most, initial=4)
            front = study.publish(test_records_are_public=True).value
            best = max(trial.utilities[0] for trial in front.front_trials)
            count = len(study.trials)
        minutes = (time.process_time() - start) / 60
        rows.append({"accuracy": held[best], "trainings": count, "minutes": minutes})
        with atomic_write(path) as file:
            json.dump(stored, file)
        print(f"{name}, budgeted, epsilon = {epsilon:g}: {rows[-1]}", flush=True)
    return {
        f"budgeted {epsilon}": {
            "accuracy": mean_interval([row["accuracy"] for row in rows]),
            "trainings": [row["trainings"] for row in rows],
            "minutes": [row["minutes"] for row in rows],
        }
        for epsilon, rows in stored.items()
    }


#: Ways to pay for tuning, as the tables call them.
WAYS = {
    "unpaid": "not counted in ε: the best of 40 at the winner's own ε (a ceiling)",
    "selection": "private selection, 20 expected (`PrivateFit`)",
    "forty": "40 expected, geometric",
    "few": "10 expected",
    "default": "one training in the middle of the space",
    "composition": "40 trainings, each of them charged",
}


def _paid(task: str, epsilons: Sequence[str]) -> str:
    found = stored("paid_tuning")[task]
    rows = [
        [label] + [fixed(found[f"{way} {e}"]["sensitive test records"]["accuracy"], 4)
                   for e in epsilons]
        for way, label in WAYS.items()
        if f"{way} {epsilons[0]}" in found
    ]  # fmt: skip
    name = {"adult": "Adult", "mnist": "MNIST"}[task]
    return markdown([name, *(f"ε = {float(e):g}" for e in epsilons)], rows)


def table_paid_adult() -> str:
    return _paid("adult", ("0.1", "0.3", "1.0", "3.0"))


def table_paid_mnist() -> str:
    return _paid("mnist", ("0.1", "1.0", "3.0"))


def table_paid_studies() -> str:
    found = stored("paid_tuning")["adult"]
    one, three = found["budgeted 0.3"]["accuracy"], found["budgeted 1.0"]["accuracy"]
    rows = [["a budgeted study, its best model", f"{fixed(one, 4)} (one study)",
             f"{bracketed(three, 4)} ({three['count']} studies)"]]  # fmt: skip
    for way in ("selection", "composition", "default"):
        cells = [found[f"{way} {e}"]["public test records"]["accuracy"] for e in ("0.3", "1.0")]
        rows.append([WAYS[way], *(fixed(cell, 4) for cell in cells)])
    return markdown(["", "ε = 0.3", "ε = 1"], rows)


def main() -> None:
    parser = BenchmarkParser("paid_tuning", __doc__, minutes=20)
    parser.add_argument("--tasks", nargs="+", default=list(TASKS), choices=list(TASKS))
    parser.add_argument("--report", action="store_true", help="only from the pools there are")
    parser.add_argument("--real", type=int, default=0, metavar="RUNS", help="runs end to end")
    parser.add_argument("--budgeted", type=int, default=0, metavar="RUNS", help="studies")
    options = parser.parse_args()
    results: dict[str, Any] = {}
    for name in options.tasks:
        pools = Pools(name, options.out)
        if not options.report:
            pools.grow()
        results[name] = pools.report()
        if options.real:
            results[name]["end to end 1.0"] = real_runs(name, options.out, options.real)
        if options.budgeted:
            results[name] |= budgeted_runs(name, options.out, options.budgeted)
        for key, row in results[name].items():
            print(name, key, row)
    save_results("paid_tuning", results)


if __name__ == "__main__":
    main()
