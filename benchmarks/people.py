"""What does it cost to protect people who have many records?

One training of a logistic regression with default settings, (1, 1e-5)- or (8, 1e-5)-differentially
private for a person that is replaced: with ``groups=`` and at most k records of each, with a k-th
of epsilon for every record, and without privacy. Accuracy on people that nobody trained on, each
person counting alike. On synthetic people with 1 to 50 records (Zipf), on California housing by
place, and on blog posts by blog. Rows are in random order. Features are scaled by constants that
count as public.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression
from torch import Tensor

from benchmarks.common import BenchmarkParser, mean_interval, paired_interval, save_results
from benchmarks.data import blogfeedback, california_housing
from benchmarks.tables import bracketed, fixed, markdown, stored
from botorch_dp.groups import PER_GROUP, Groups
from botorch_dp.training import DPTrainer, TrainTest, logistic_loss, logistic_regression

EPSILONS, DELTA = (1.0, 8.0), 1e-5
#: At most so many records of a person.
MOST = (1, 4, 16, 64)


@dataclass(frozen=True)
class Table:
    """Records, their labels, and whose they are."""

    X: Tensor
    Y: Tensor
    ids: np.ndarray


def synthetic(seed: int) -> Table:
    """People of 1 to 50 records, with features of their own; a label of each record."""
    rng = np.random.default_rng(seed)
    sizes = np.arange(1, 51)
    counts = rng.choice(sizes, size=2_000, p=1 / sizes / (1 / sizes).sum())
    ids = np.repeat(np.arange(len(counts)), counts)
    own, each = rng.normal(size=(len(counts), 20)), rng.normal(size=(len(ids), 20))
    X = (0.5**0.5 * (own[ids] + each)) / 20**0.5
    scores = 8 * X @ rng.normal(size=20) + rng.logistic(size=len(ids))
    return Table(torch.as_tensor(X).float(), torch.as_tensor(scores > 0).long(), ids)


def housing(seed: int) -> Table:
    """Is a block of houses above the median value? Blocks of a tenth of a degree are one person."""
    X, value = california_housing()
    _, ids = np.unique(X[:, 6:].numpy().round(1), axis=0, return_inverse=True)
    return Table(_scaled(X), (value > value.median()).long(), ids.ravel())


def blogs(seed: int) -> Table:
    """Does a post get a comment within a day? Posts of one blog are one person."""
    data = blogfeedback()
    _, ids = np.unique(data.train_X[:, :50].numpy(), axis=0, return_inverse=True)
    own = data.train_X[:, 50:62]  # comments and links so far, the post's age and length
    return Table(_scaled(own), (data.train_Y > 0).long(), ids.ravel())


def _scaled(X: Tensor) -> Tensor:
    """Columns from -1 to 1 over their middle 98%, and divided by the root of their number."""
    low, high = X.quantile(torch.tensor([0.01, 0.99], dtype=X.dtype), dim=0)
    scaled = ((X - low) / (high - low).clamp(min=1e-9) * 2 - 1).clamp(-1, 1)
    return (scaled / X.shape[1] ** 0.5).float()


TABLES: dict[str, Callable[[int], Table]] = {
    "synthetic people": synthetic,
    "housing": housing,
    "blogs": blogs,
}


def trained(table: Table, ids: Any, seed: int, **how: Any) -> torch.nn.Module:
    trainer = DPTrainer(
        partial(logistic_regression, table.X.shape[1]),
        logistic_loss,
        TrainTest(table.X, table.Y),
        groups=ids,
        **how.pop("options", {}),
    )
    norm = float(table.X.square().sum(1).mean().sqrt())
    return trainer.fit(**how, feature_norm=norm, seed=seed).model


def of_group(epsilon: float, most: int) -> dict[str, float]:
    """What a record's guarantee must be for (epsilon, 1e-5) of so many records together."""
    steps = np.exp(epsilon / most * np.arange(most)).sum()
    return {"target_epsilon": epsilon / most, "delta": float(DELTA / steps)}


def rows(table: Table, places: np.ndarray) -> Table:
    return Table(table.X[places], table.Y[places], table.ids[places])


def accuracies(table: Table, seed: int) -> dict[str, float]:
    """Of each way, on a fifth of the people."""
    rng = np.random.default_rng(seed)
    table = rows(table, rng.permutation(len(table.ids)))
    people = rng.permutation(np.unique(table.ids))
    held = np.isin(table.ids, people[: len(people) // 5])
    train, test = rows(table, np.flatnonzero(~held)), rows(table, np.flatnonzero(held))
    whose = Groups(test.ids, len(test.ids), len(test.ids))

    def accuracy(outputs: Tensor) -> float:
        return float(whose.means(((outputs.flatten() > 0) == test.Y).float()).mean())

    largest = int(np.unique(train.ids, return_counts=True)[1].max())
    found: dict[str, float] = {}
    for epsilon in EPSILONS:
        for most in MOST:
            how: dict[str, Any] = {"target_epsilon": epsilon, "delta": DELTA}
            model = trained(train, train.ids, seed, **how, options={"per_group": most})
            found[f"groups, k = {most}, epsilon = {epsilon:g}"] = accuracy(model(test.X))
        for name, most in (("16", 16), ("largest", largest)):
            kept = Groups(train.ids, len(train.ids), most)
            used = rows(train, kept.places(np.arange(len(kept))))
            model = trained(used, None, seed, **of_group(epsilon, most))
            found[f"epsilon / {name}, epsilon = {epsilon:g}"] = accuracy(model(test.X))
    linear = LogisticRegression(C=1e4, max_iter=2_000).fit(train.X, train.Y)
    found["no privacy"] = accuracy(torch.as_tensor(linear.decision_function(test.X)))
    return found


def against_default(ways: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Each other way at an epsilon, and the default there."""
    for way in ways:
        default = f"groups, k = {PER_GROUP}, {way.rpartition(', ')[2]}"
        if way not in (default, "no privacy"):
            yield way, default


def table_people() -> str:
    found = stored("people")
    head = [
        f"{name}: {found[name]['people']:,} with {found[name]['records']:,} records, at most "
        f"{found[name]['most records']:,}"
        for name in TABLES
    ]
    ways = {
        f"{way}, epsilon = {epsilon:g}": f"{label}, ε = {epsilon:g}"
        for epsilon in EPSILONS
        for way, label in {
            f"groups, k = {PER_GROUP}": "`groups=`",
            "epsilon / 16": "ε / 16",
            "epsilon / largest": "ε / largest",
        }.items()
    }
    rows = [
        [label, *(bracketed(found[name]["accuracy"][way]) for name in TABLES)]
        for way, label in {**ways, "no privacy": "no privacy"}.items()
    ]
    majority = [fixed(found[name]["majority"]) for name in TABLES]
    return markdown(["", *head], [*rows, ["always the more frequent label", *majority]])


def main() -> None:
    parser = BenchmarkParser(
        "people", __doc__, minutes={"synthetic people": 0.4, "housing": 0.4, "blogs": 0.4}
    )
    parser.add_argument("--seeds", type=int, default=5, help="draws of people, and trainings")
    options = parser.parse_args()
    warnings.simplefilter("ignore")  # that little can be learnt, where epsilon is divided
    result: dict[str, Any] = {"epsilons": EPSILONS, "delta": DELTA, "seeds": options.seeds}
    for name in options.part:
        start, table = time.perf_counter(), TABLES[name](0)
        sizes = np.unique(table.ids, return_counts=True)[1]
        whose = Groups(table.ids, len(table.ids), len(table.ids))
        positive = float(whose.means(table.Y.double()).mean())
        found = [accuracies(TABLES[name](seed), seed) for seed in range(options.seeds)]
        result[name] = {
            "people": len(sizes),
            "records": len(table.ids),
            "most records": int(sizes.max()),
            "majority": max(positive, 1 - positive),
            "accuracy": {way: mean_interval([each[way] for each in found]) for way in found[0]},
            "above the default": {
                way: paired_interval(
                    [each[way] for each in found], [each[default] for each in found]
                )
                for way, default in against_default(found[0])
            },
        }
        print(f"{name} ({time.perf_counter() - start:.0f} s)")
        for way, interval in result[name]["accuracy"].items():
            print(f"  {way:34} {interval}")
    save_results("people", result)


if __name__ == "__main__":
    main()
