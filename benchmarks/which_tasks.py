"""Four tuning tasks on real records, d = 2, 5, 10 and 33, for ``which_method``.

Models are trained on a public part of the data; the private records are a random sample of the
rest, a new one for each seed. A loss is one record's and lies in [0, 1], parameters in the unit
cube.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property

import numpy as np
import torch
from torch import Tensor
from torch.quasirandom import SobolEngine

#: Methods that need a finite set choose from that many public Sobol points.
NUM_CHOICES = 512
BOUNDS = (0.0, 1.0)
#: A public guess of mean losses, the same for all tasks: neither is fitted.
CENTER, SPREAD = 0.4, 0.2
_NUM_PUBLIC = 200

#: Points ``b x d`` and rows of the pool (``n``) to losses ``b x n``.
Evaluate = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Task:
    """A model to be tuned.

    Args:
        name: With the data, for titles.
        dim: The number of parameters ``d``.
        num_records: How many private records a seed draws from the pool.
        batches: Evaluations in units of ``d + 1``.
        pool: Number of records to draw from; the last ones are public, for clip norms.
        evaluate: Losses of some of them.
    """

    name: str
    dim: int
    num_records: int
    batches: int
    pool: int
    evaluate: Evaluate

    @property
    def evaluations(self) -> int:
        return self.batches * (self.dim + 1)

    @cached_property
    def choices(self) -> Tensor:
        """The public finite set, ``NUM_CHOICES x d``."""
        return SobolEngine(self.dim, scramble=True, seed=0).draw(NUM_CHOICES, dtype=torch.double)

    @cached_property
    def table(self) -> Tensor:
        """Losses of all records at all choices, in single precision to save memory."""
        every = torch.arange(self.pool)
        return torch.cat([self.evaluate(x, every).float() for x in self.choices.split(8)])

    def public_losses(self, X: Tensor) -> Tensor:
        return self.evaluate(X, torch.arange(self.pool - _NUM_PUBLIC, self.pool))


class Trial:
    """One seed's private records, with a count of how often they were all evaluated."""

    def __init__(self, task: Task, seed: int) -> None:
        self.task = task
        generator = torch.Generator().manual_seed(seed)
        order = torch.randperm(task.pool - _NUM_PUBLIC, generator=generator)
        self.rows = order[: task.num_records]
        self.scores = task.table[:, self.rows]  # NUM_CHOICES x n
        self.choice_means = self.scores.double().mean(-1)
        self.best = float(self.choice_means.min())
        self.evaluations = 0

    def losses(self, X: Tensor) -> Tensor:
        """``b x d -> b x n`` anywhere in the cube."""
        losses = self.task.evaluate(X, self.rows)
        self.evaluations += len(X)
        self.best = min(self.best, float(losses.mean(-1).min()))
        return losses

    def choice_losses(self, X: Tensor) -> Tensor:
        """The same for members of the finite set, from the table."""
        self.evaluations += len(X)
        return self.scores[torch.cdist(X, self.task.choices).argmin(-1)].double()

    def mean_loss(self, X: Tensor) -> float:
        """The true loss of what was released, over ``b`` draws; no evaluation of a method's."""
        means = self.task.evaluate(X, self.rows).mean(-1)
        self.best = min(self.best, float(means.min()))
        return float(means.mean())


def _log(value: float, low: float, high: float) -> float:
    """From [0, 1] to [low, high], logarithmically."""
    return float(low * (high / low) ** value)


def svm() -> Task:
    """Whether a support vector machine misreads a digit; C and gamma in quarter decades."""
    from sklearn.datasets import load_digits
    from sklearn.svm import SVC

    X, y = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(X))
    X, y = X[order] / 16, y[order]
    train = 300

    @cache
    def wrong(C: int, gamma: int) -> Tensor:
        machine = SVC(C=10 ** (C / 4 - 3), gamma=10 ** (gamma / 4 - 6))  # to 1e3 and to 1
        machine.fit(X[:train], y[:train])
        return torch.from_numpy(machine.predict(X[train:]) != y[train:]).double()

    def evaluate(points: Tensor, rows: Tensor) -> Tensor:
        grid = (24 * points).round().int().tolist()
        return torch.stack([wrong(*place)[rows] for place in grid])

    return Task("SVM, digits", 2, 1000, 20, len(X) - train, evaluate)


def _housing() -> tuple[np.ndarray, np.ndarray]:
    from benchmarks.data import california_housing

    X, y = california_housing()
    order = np.random.default_rng(0).permutation(len(X))
    return X.numpy()[order], y.numpy()[order]


def boosting() -> Task:
    """Absolute error of boosted trees on house prices, in units of 200,000 dollars, at most 1."""
    from sklearn.ensemble import GradientBoostingRegressor

    X, y = _housing()
    train, pool = 250, 4000

    def evaluate(points: Tensor, rows: Tensor) -> Tensor:
        losses = []
        for trees, rate, depth, leaf, share in points.tolist():
            trained = GradientBoostingRegressor(
                n_estimators=round(_log(trees, 4, 64)),
                learning_rate=_log(rate, 0.01, 1.0),
                max_depth=1 + round(5 * depth),
                min_samples_leaf=round(_log(leaf, 1, 64)),
                subsample=0.2 + 0.8 * share,
                random_state=0,
            ).fit(X[:train], y[:train])
            chosen = train + rows.numpy()
            losses.append(np.abs(trained.predict(X[chosen]) - y[chosen]) / 2)
        return torch.from_numpy(np.stack(losses)).clamp(max=1.0)

    return Task("boosted trees, California housing", 5, 1000, 15, pool, evaluate)


def smoother() -> Task:
    """The same error of a kernel smoother; ten length-scales from .1 to 10."""
    features, y = _housing()
    train, pool = 150, 8000
    latitude, longitude = features[:, 6:7], features[:, 7:8]
    X = np.hstack([features, latitude + longitude, latitude - longitude])
    X = (X - X[:train].mean(0)) / X[:train].std(0)
    known, rest = torch.from_numpy(X[:train]).float(), torch.from_numpy(X[train:]).float()
    known_y, rest_y = torch.from_numpy(y[:train]).float(), torch.from_numpy(y[train:]).float()

    def evaluate(points: Tensor, rows: Tensor) -> Tensor:
        losses = []
        for scales in 10 ** (2 * points.float() - 1):
            distances = torch.cdist(rest[rows] / scales, known / scales).square()
            weights = torch.softmax(-0.5 * distances, dim=-1)  # far from all: the nearest one
            losses.append(((weights @ known_y - rest_y[rows]).abs() / 2).clamp(max=1.0))
        return torch.stack(losses).double()

    return Task("kernel smoother, California housing", 10, 2000, 15, pool, evaluate)


def scorecard() -> Task:
    """Smoothed error of a score of 30 yes-no questions: their weights, a bias, slope, softness."""
    from botorch_dp.datasets import adult

    data = adult()
    public_X, public_y = data.test_X, 2 * data.test_Y.float() - 1
    # Which questions are asked is decided on the public part.
    relevance = torch.corrcoef(torch.cat((public_X.mT, public_y.unsqueeze(0))))[-1, :-1]
    asked = relevance.nan_to_num(0.0).abs().argsort(descending=True)[:30]
    X, y = data.train_X[:, asked], 2 * data.train_Y.float() - 1

    def evaluate(points: Tensor, rows: Tensor) -> Tensor:
        theta = points.float()
        score = (2 * theta[:, :30] - 1) @ X[rows].mT + 2 * theta[:, 30:31] - 1
        slope, softness = 10 ** (2 * theta[:, 31:32]), 0.5 + theta[:, 32:]
        return torch.sigmoid(-y[rows] * slope / softness * score).double()

    return Task("scorecard, Adult", 33, 10_000, 12, len(X), evaluate)


TASKS: dict[str, Callable[[], Task]] = {
    "svm": svm,
    "boosting": boosting,
    "smoother": smoother,
    "scorecard": scorecard,
}
