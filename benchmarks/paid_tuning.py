"""What does tuning cost when its own price is paid, and what does a public copy tell for free?

    python -m benchmarks.paid_tuning [--part tuning copies] [--tasks adult mnist] [--report]

* ``tuning``: accuracy of the published model at a total epsilon (delta = 1e-5, Poisson batches,
  replace-one). Configurations are drawn from the space and trained at the noise that each way of
  tuning can afford, once (a *pool*); 200 runs of each way are then drawn from its pool, with as
  many trainings as its law says. That is exact for a space of the pool's configurations, and
  approximate otherwise. One part of the test records selects, with and without the noise that a
  budget of their own, of the same size, asks for; the other part, which nobody looks at, says how
  good the published model is. Pools are stored as they grow, so a run that was stopped goes on
  where it was. ``--real`` adds runs of ``PrivateFit`` from end to end at epsilon = 1, and
  ``--budgeted`` studies with ``DPareto(budget=)`` and epsilon in their space, the best model on
  the front of which is published (the records that select are public then).
* ``copies``: 24 configurations of DP-SGD at epsilon = 1 (noise solved for) are trained on the
  records and on generated public copies of their shape (``botorch_dp.datasets.public_copy``): the
  rank correlation of the two, the ceiling that the trainings' own noise leaves (two halves of the
  records' seeds against each other), and what it costs to deploy the configuration that did best
  on the copy. Adult: fourteen categories, of which the copy knows the sizes, and the share of the
  classes. Skewed: Adult with one record in 33 in the smaller class, judged by the area under the
  ROC curve. Images: 10,000 records of MNIST and a two-layer net; copies know that most of the 784
  pixels are dark.

Ways of ``tuning``:

* *unpaid*: the best of 40 at the winner's own epsilon, a ceiling whose real epsilon is larger;
* *selection*: a secret number of random trainings, 20 expected, shape 3, as ``PrivateFit`` does;
* *forty* and *few*: 40 expected, geometric; 10 expected, shape 5;
* *copy*: one training of the configuration that did best on a public copy;
* *led*: 5 expected trainings among the six best on each of two public copies;
* *default*: one training in the middle of the space;
* *composition*: 40 random trainings, all of which may be published.
"""

from __future__ import annotations

import argparse
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
from scipy.stats import spearmanr
from sklearn.metrics import roc_auc_score
from torch import Tensor

from benchmarks.common import (
    BenchmarkParser,
    mean_interval,
    results_folder,
    save_results,
)
from botorch_dp import datasets
from botorch_dp._files import atomic_write
from botorch_dp.datasets import public_copy
from botorch_dp.pareto import (
    Batched,
    DPareto,
    PrivacyUtilityProblem,
    TrainingPromise,
    given_epsilon,
)
from botorch_dp.privacy import (
    Guarantee,
    PrivacyBudget,
    TrialNumber,
    dp_sgd_epsilons,
    dp_sgd_noise_multiplier,
)
from botorch_dp.space import Choice, Integer, Real, SearchSpace, ShiftedExponential
from botorch_dp.training import (
    DPTrainer,
    TrainTest,
    accuracy,
    cross_entropy_loss,
    logistic_loss,
    logistic_regression,
    mlp2,
)
from botorch_dp.training.networks import multilayer_perceptron
from botorch_dp.tuning import PrivateFit

COPY_EPSILON, DELTA = 1.0, 1e-5


#: Values of the attributes behind LIBSVM's binary features, from the documentation of the data.
ADULT_COLUMNS = [Choice(*range(n)) for n in (5, 8, 5, 16, 5, 7, 14, 6, 5, 2, 2, 2, 5, 41)]


#: Mean brightness of a pixel: an eighth.
IMAGE_COLUMNS = [Real(0.0, 1.0, distribution=ShiftedExponential(8.0)) for _ in range(784)]


def ranking(outputs: Tensor, targets: Tensor) -> float:
    """Area under the ROC curve."""
    scores = outputs.flatten().nan_to_num()
    return float(roc_auc_score(targets.numpy(), scores.numpy()))


@dataclass(frozen=True)
class CopyTask:
    """Records, copies of them, and how to train on either."""

    records: Callable[[], TrainTest]
    copy: Callable[..., TrainTest]
    trainer: Callable[[TrainTest], DPTrainer]
    space: SearchSpace
    seeds: int = 4
    copies: int = 5


def adult_skewed() -> TrainTest:
    """Adult with most of the larger incomes left out, so that 3% remain."""
    data = datasets.adult()

    def thinned(X: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        rare = (y == 1).nonzero().flatten()
        kept = torch.cat([(y == 0).nonzero().flatten(), rare[: int(0.03 / 0.97 * (y == 0).sum())]])
        return X[kept], y[kept]

    return TrainTest(*thinned(data.train_X, data.train_Y), *thinned(data.test_X, data.test_Y))


def mnist_part() -> TrainTest:
    """The first 10,000 and 2,000 digits."""
    data = datasets.mnist()
    return TrainTest(
        data.train_X[:10_000], data.train_Y[:10_000], data.test_X[:2000], data.test_Y[:2000]
    )


LINEAR_SPACE = SearchSpace(
    epochs=Integer(1, 32, log=True),
    batch_size=Integer(64, 1024, log=True),
    learning_rate=Real(1e-3, 10.0, log=True),
    clip_norm=Real(0.05, 4.0, log=True),
)


IMAGE_SPACE = SearchSpace(
    epochs=Integer(1, 10, log=True),
    batch_size=Integer(100, 1000, log=True),
    learning_rate=Real(1e-2, 5.0, log=True),
    clip_norm=Real(0.1, 8.0, log=True),
)


COPIES = {
    "adult": CopyTask(
        datasets.adult,
        partial(
            public_copy,
            ADULT_COLUMNS,
            num_records=30_956,
            num_test=1605,
            class_shares=(0.76, 0.24),
            accuracy=0.85,
        ),
        lambda data: DPTrainer(partial(logistic_regression, 123), logistic_loss, data),
        LINEAR_SPACE,
    ),
    "skewed": CopyTask(
        adult_skewed,
        partial(
            public_copy,
            ADULT_COLUMNS,
            num_records=24_222,
            num_test=1258,
            class_shares=(0.97, 0.03),
            accuracy=0.975,
        ),
        lambda data: DPTrainer(
            partial(logistic_regression, 123), logistic_loss, data, metric=ranking
        ),
        LINEAR_SPACE,
    ),
    "images": CopyTask(
        mnist_part,
        partial(
            public_copy,
            IMAGE_COLUMNS,
            num_records=10_000,
            num_test=2000,
            class_shares=(1,) * 10,
            accuracy=0.85,
        ),
        lambda data: DPTrainer(partial(mlp2, 784), cross_entropy_loss, data),
        IMAGE_SPACE,
        seeds=2,
        copies=4,
    ),
}


def errors(task: CopyTask, data: TrainTest, seeds: list[int], configs: list[dict[str, Any]]) -> Any:
    """Errors of all configurations and seeds, ``configs x seeds``."""
    trainer = task.trainer(data)
    return [
        [
            1 - trained.accuracy
            for trained in trainer.replicates(
                seeds, **config, target_epsilon=COPY_EPSILON, delta=DELTA
            )
        ]
        for config in configs
    ]


def trained_on_copies(name: str, *, quick: bool) -> dict[str, Any]:
    """All trainings of one task, kept in a file as they come."""
    task, part = (
        COPIES[name],
        results_folder() / f".public_copy_{name}{'_quick' if quick else ''}.json",
    )
    done: dict[str, Any] = json.loads(part.read_text()) if part.exists() else {}
    configs = task.space.sample(6 if quick else 24, seed=0)
    seeds = list(range(2 if quick else task.seeds))
    for source in ("records", *(f"copy {seed}" for seed in range(1 if quick else task.copies))):
        if source not in done:
            data = task.records() if source == "records" else task.copy(seed=int(source[5:]))
            done[source] = errors(task, data, seeds, configs)
            part.parent.mkdir(exist_ok=True)
            part.write_text(json.dumps(done))
            print(f"{name}: trained on {source}", flush=True)
    part.unlink()
    return summary(done, configs)


def summary(done: dict[str, Any], configs: list[dict[str, Any]]) -> dict[str, Any]:
    """What the copies told."""
    records = np.array(done["records"])
    truth = records.mean(axis=1)
    half = records.shape[1] // 2
    ceiling = spearmanr(records[:, :half].mean(1), records[:, half:].mean(1)).statistic
    copies = [np.array(rows).mean(axis=1) for key, rows in done.items() if key != "records"]
    together = np.mean([copy.argsort().argsort() for copy in copies], axis=0)
    costs = [float(truth[copy.argmin()] - truth.min()) for copy in copies]
    return {
        "correlation": mean_interval([float(spearmanr(copy, truth).statistic) for copy in copies]),
        "correlation_of_mean_rank": float(spearmanr(together, truth).statistic),
        "ceiling": float(ceiling),
        "best_error": float(truth.min()),
        "cost_of_the_copys_best": mean_interval(costs),
        "cost_by_mean_rank": float(truth[together.argmin()] - truth.min()),
        "cost_at_random": float(truth.mean() - truth.min()),
        "configs": configs,
        "errors": {key: np.array(rows).mean(axis=1).tolist() for key, rows in done.items()},
    }


EPSILONS, DELTA, TRIALS = (0.1, 0.3, 1.0, 3.0), 1e-5, 40


RUNS, BOOTSTRAPS = 200, 60


SOME_WAYS = ("unpaid", "selection", "forty", "few", "default", "composition")


WAYS = (*SOME_WAYS, "copy", "led")


#: The laws of the number of trainings, and how many of each copy's best are tried.
NUMBERS = {
    "selection": TrialNumber(20, 3.0),
    "forty": TrialNumber(40),
    "few": TrialNumber(10, 5.0),
    "led": TrialNumber(5, 5.0),
}


BEST = 6


@dataclass(frozen=True)
class Task:
    """Records, of which the last ``held`` test records say how good a model is in the end."""

    records: Callable[[], TrainTest]
    held: int
    trainer: Callable[[TrainTest], DPTrainer]
    copy: Callable[..., TrainTest]
    space: SearchSpace
    pool: int
    ways: tuple[str, ...] = WAYS


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
        copy=partial(datasets.public_copy, ADULT_COLUMNS, class_shares=(0.76, 0.24), accuracy=0.85),
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
        copy=partial(datasets.public_copy, IMAGE_COLUMNS, class_shares=(1,) * 10, accuracy=0.85),
        space=SearchSpace(
            learning_rate=Real(0.1, 5.0, log=True),
            clip_norm=Real(0.1, 4.0, log=True),
            batch_size=Integer(1000, 6000, log=True),
            epochs=Integer(3, 10, log=True),
        ),
        pool=12,
        ways=SOME_WAYS,
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
        """The fit whose level a way's trainings have."""
        selects = way in ("selection", "forty", "few", "led")
        return PrivateFit(
            self.trainer,
            self.task.space,
            budget=PrivacyBudget(epsilon, DELTA),
            trials=NUMBERS.get(way, TrialNumber(TRIALS)),
            method="random" if selects else "single",
        )

    def noise(self, way: str, epsilon: float) -> Callable[[dict[str, Any]], float]:
        """From a configuration to its noise multiplier."""
        if way != "composition":
            return self.fit(way, epsilon).noise_multiplier

        def composed(config: dict[str, Any]) -> float:
            n, m = len(self.data.train_X), config["batch_size"]
            return dp_sgd_noise_multiplier(
                epsilon=epsilon,
                delta=DELTA,
                batch_size=m,
                num_records=n,
                steps=TRIALS * config["epochs"] * (n // m),
                tolerance=1e-3,
            )

        return composed

    def wanted(self, way: str, epsilon: float) -> list[dict[str, Any]]:
        """The configurations that a way's pool shall have; the same ones for all that select."""
        if way == "default":
            return [self.fit(way, epsilon).typical_config] * 8
        if way == "copy":
            return [ranked[0] for ranked in self._ranked(epsilon)] * 4
        if way == "led":
            return [config for ranked in self._ranked(epsilon) for config in ranked[:BEST]] * 2
        return self.task.space.sample(self.task.pool, seed=1)

    def _ranked(self, epsilon: float) -> list[list[dict[str, Any]]]:
        """16 configurations on each of two copies, the best one first."""
        key = f"copies {epsilon}"
        if key not in self.stored:
            fit = self.fit("selection", epsilon)
            ranked = []
            for seed in range(2):
                copy = self.task.copy(num_records=len(self.data.train_X), num_test=4000, seed=seed)
                ranked.append(fit.rank_on(copy, count=16, seed=seed))
            self.stored[key] = ranked
            self._save()
        return self.stored[key]

    def grow(self) -> None:
        """Make all trainings that are missing, in turn at all levels."""
        order = (1.0, 0.1, 3.0, 0.3)
        levels = [(way, epsilon) for epsilon in order for way in self.task.ways]
        noises = {level: self.noise(*level) for level in levels}
        sizes = {"copy": 8, "default": 8, "led": 4 * BEST}
        total = sum(sizes.get(way, self.task.pool) for way, _ in levels)
        made, start, done = (
            0,
            time.monotonic(),
            sum(len(self.stored.get(f"{way} {e}", ())) for way, e in levels),
        )
        print(f"{self.name}: {total - done} of {total} trainings to make", flush=True)
        for way, epsilon in levels:
            pool = self.stored.setdefault(f"{way} {epsilon}", [])
            for config in self.wanted(way, epsilon)[len(pool) :]:
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
        if way in ("copy", "default"):
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
            fit = self.fit("selection" if way == "composition" else way, epsilon)
            mu = fit._scoring.mu
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
            ways = [w for w in self.task.ways if len(self.stored.get(f"{w} {epsilon}", ())) >= 8]
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

    def epsilons(configs: Sequence[dict[str, Any]]) -> list[float]:
        return dp_sgd_epsilons(
            [config["noise_multiplier"] for config in configs],
            [config["batch_size"] for config in configs],
            [trainer.plan(**config).steps for config in configs],
            num_records=len(pools.data.train_X),
            delta=DELTA,
        ).tolist()

    problem = PrivacyUtilityProblem(
        SearchSpace(**pools.task.space.parameters, noise_multiplier=Real(1.0, 1000.0, log=True)),
        privacy=lambda config: promise(config).epsilon(DELTA),
        utility=utility,
        batched=Batched(epsilons=epsilons),
        promise=TrainingPromise(DELTA, guarantee=promise, secret_noise=True),
    )
    for seed, epsilon in itertools.product(range(seeds), (1.0, 0.3, 3.0, 0.1)):
        rows = stored.setdefault(str(epsilon), [])
        if len(rows) > seed:
            continue
        start = time.process_time()
        held.clear()
        asked = given_epsilon(
            problem, "noise_multiplier", Real(epsilon / 12, epsilon / 3, log=True)
        )
        with DPareto(asked, budget=PrivacyBudget(epsilon, DELTA), seed=seed) as study:
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


def tuning(options: argparse.Namespace) -> None:
    """Stored as ``paid_tuning.json``."""
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


def copies(options: argparse.Namespace) -> None:
    """Stored as ``public_copy.json``."""
    results = {}
    for name in COPIES:
        results[name] = found = trained_on_copies(name, quick=options.quick)
        print(
            f"{name}: rank correlation with the records {found['correlation']} (ceiling "
            f"{found['ceiling']:.3f}); best error {found['best_error']:.4f}; the copy's best costs "
            f"{found['cost_of_the_copys_best']} more, one at random {found['cost_at_random']:.4f}",
            flush=True,
        )
    save_results("public_copy", {"epsilon": COPY_EPSILON, "tasks": results})


def main() -> None:
    parser = BenchmarkParser("paid_tuning", __doc__, minutes={"tuning": 20, "copies": 20})
    parser.add_argument("--tasks", nargs="+", default=list(TASKS), choices=list(TASKS))
    parser.add_argument("--report", action="store_true", help="only from the pools there are")
    parser.add_argument("--real", type=int, default=0, metavar="RUNS", help="runs end to end")
    parser.add_argument("--budgeted", type=int, default=0, metavar="RUNS", help="studies")
    parser.add_argument("--quick", action="store_true", help="few configurations, of ``copies``")
    options = parser.parse_args()
    for part in options.part:
        {"tuning": tuning, "copies": copies}[part](options)


if __name__ == "__main__":
    main()
