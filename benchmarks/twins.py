"""Where tuning on a generated twin tells what tuning on the records would have told; where not.

24 configurations of DP-SGD at epsilon = 1 (noise solved for) are trained on the records and on
twins of their public shape (``botorch_dp.datasets.public_copy``). Printed and stored for each task:
the rank correlation of the two, the ceiling that the trainings' own noise leaves (two halves of the
records' seeds against each other), and what it costs to deploy the configuration that did best on
the twin: its error on the records beyond that of the best of all, beside a configuration at random.

    python -m benchmarks.twins [--quick]

Adult: fourteen categories, of which the twin knows the sizes, and the share of the classes.
Skewed: Adult with one record in 33 in the smaller class, judged by the area under the ROC curve.
Images: 10,000 records of MNIST and a two-layer net; twins know that most of the 784 pixels are
dark. An interval is over twins of several seeds.
"""

from __future__ import annotations

import json
from collections.abc import Callable
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
from botorch_dp.datasets import public_copy
from botorch_dp.space import Choice, Integer, Real, SearchSpace, ShiftedExponential
from botorch_dp.training import (
    DPTrainer,
    TrainTest,
    cross_entropy_loss,
    logistic_loss,
    logistic_regression,
    mlp2,
)

EPSILON, DELTA = 1.0, 1e-5
#: Values of the attributes behind LIBSVM's binary features, from the documentation of the data.
ADULT_COLUMNS = [Choice(*range(n)) for n in (5, 8, 5, 16, 5, 7, 14, 6, 5, 2, 2, 2, 5, 41)]
#: Mean brightness of a pixel: an eighth.
IMAGE_COLUMNS = [Real(0.0, 1.0, distribution=ShiftedExponential(8.0)) for _ in range(784)]


def ranking(outputs: Tensor, targets: Tensor) -> float:
    """Area under the ROC curve."""
    scores = outputs.flatten().nan_to_num()
    return float(roc_auc_score(targets.numpy(), scores.numpy()))


@dataclass(frozen=True)
class Task:
    """Records, twins of them, and how to train on either."""

    records: Callable[[], TrainTest]
    twin: Callable[..., TrainTest]
    trainer: Callable[[TrainTest], DPTrainer]
    space: SearchSpace
    seeds: int = 4
    twins: int = 5


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
TASKS = {
    "adult": Task(
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
    "skewed": Task(
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
    "images": Task(
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
        twins=4,
    ),
}


def errors(task: Task, data: TrainTest, seeds: list[int], configs: list[dict[str, Any]]) -> Any:
    """Errors of all configurations and seeds, ``configs x seeds``."""
    trainer = task.trainer(data)
    return [
        [
            1 - trained.accuracy
            for trained in trainer.replicates(seeds, **config, target_epsilon=EPSILON, delta=DELTA)
        ]
        for config in configs
    ]


def measure(name: str, *, quick: bool) -> dict[str, Any]:
    """All trainings of one task, kept in a file as they come."""
    task, part = TASKS[name], results_folder() / f".twins_{name}{'_quick' if quick else ''}.json"
    done: dict[str, Any] = json.loads(part.read_text()) if part.exists() else {}
    configs = task.space.sample(6 if quick else 24, seed=0)
    seeds = list(range(2 if quick else task.seeds))
    for source in ("records", *(f"twin {seed}" for seed in range(1 if quick else task.twins))):
        if source not in done:
            data = task.records() if source == "records" else task.twin(seed=int(source[5:]))
            done[source] = errors(task, data, seeds, configs)
            part.parent.mkdir(exist_ok=True)
            part.write_text(json.dumps(done))
            print(f"{name}: trained on {source}", flush=True)
    part.unlink()
    return summary(done, configs)


def summary(done: dict[str, Any], configs: list[dict[str, Any]]) -> dict[str, Any]:
    """What the twins told."""
    records = np.array(done["records"])
    truth = records.mean(axis=1)
    half = records.shape[1] // 2
    ceiling = spearmanr(records[:, :half].mean(1), records[:, half:].mean(1)).statistic
    twins = [np.array(rows).mean(axis=1) for key, rows in done.items() if key != "records"]
    together = np.mean([twin.argsort().argsort() for twin in twins], axis=0)
    costs = [float(truth[twin.argmin()] - truth.min()) for twin in twins]
    return {
        "correlation": mean_interval([float(spearmanr(twin, truth).statistic) for twin in twins]),
        "correlation_of_mean_rank": float(spearmanr(together, truth).statistic),
        "ceiling": float(ceiling),
        "best_error": float(truth.min()),
        "cost_of_the_twins_best": mean_interval(costs),
        "cost_by_mean_rank": float(truth[together.argmin()] - truth.min()),
        "cost_at_random": float(truth.mean() - truth.min()),
        "configs": configs,
        "errors": {key: np.array(rows).mean(axis=1).tolist() for key, rows in done.items()},
    }


def main() -> None:
    parser = BenchmarkParser("twins", __doc__, minutes=20)
    parser.add_argument("--quick", action="store_true", help="few configurations and seeds")
    parser.add_argument("--tasks", nargs="*", default=list(TASKS), choices=list(TASKS))
    options = parser.parse_args()
    path = results_folder() / "twins.json"
    results = json.loads(Path(path).read_text())["tasks"] if path.exists() else {}
    for name in options.tasks:
        found = measure(name, quick=options.quick)
        print(
            f"{name}: rank correlation with the records {found['correlation']} (ceiling "
            f"{found['ceiling']:.3f}); best error {found['best_error']:.4f}; the twin's best costs "
            f"{found['cost_of_the_twins_best']} more, one at random {found['cost_at_random']:.4f}",
            flush=True,
        )
        results[name] = found
        if not options.quick:
            save_results("twins", {"epsilon": EPSILON, "tasks": results})


if __name__ == "__main__":
    main()
