"""Four tuning tasks on real records, and eight private ways to tune, for ``which_method``.

Models are trained on a public part of the data; the private records are a random sample of the
rest, a new one for each seed. A loss is one record's and lies in [0, 1], parameters in the unit
cube. Each way is a function of a trial, epsilon and a seed that returns what it would publish:
points in the cube, more than one row if the last draw is repeated to be averaged over. Noise is
simulated.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property, partial

import numpy as np
import torch
from botorch.acquisition import qLogExpectedImprovement
from botorch.optim import optimize_acqf
from botorch.sampling import SobolQMCNormalSampler
from gpytorch.kernels import MaternKernel
from torch import Tensor
from torch.quasirandom import SobolEngine

from benchmarks.dp_gibo_where import descend, fitted_gp, turbo, unit_box
from botorch_dp.acquisition.ucb import UCBSchedule
from botorch_dp.models import FiniteSetGP
from botorch_dp.objectives import PrivateObjective
from botorch_dp.privacy import PrivacyBudget, exponential_mechanism, gaussian_mu
from botorch_dp.release import GPUCB, PrivateChoice
from botorch_dp.space import Real, SearchSpace
from botorch_dp.tuning import PrivateSearch

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


DELTA = 1e-6

#: A mechanism that draws the choice itself is averaged over that many draws for each seed.
DRAWS = 20

_SEARCH_DELTA = 0.1  # of the confidence bounds that guide GP-UCB; no privacy parameter

_MODEL_NOISE = 0.1  # variance of evaluations in prior units, where they are in truth exact


Search = Callable[[Trial, float, int], Tensor]


def kernel(task: Task) -> MaternKernel:
    """A public guess: .3 of the box in two dimensions, as distances grow with the square root."""
    made = MaternKernel(nu=2.5).double()
    made.lengthscale = 0.3 * math.sqrt(task.dim / 2)
    return made


# --- Every evaluation is released with noise; the search is post-processing. ---
def private_objective(
    trial: Trial, losses: Callable[[Tensor], Tensor], epsilon: float, seed: int
) -> PrivateObjective:
    """What costs (epsilon, DELTA) after all evaluations."""
    return PrivateObjective(
        losses,
        bounds=BOUNDS,
        mu=gaussian_mu(epsilon, DELTA) / math.sqrt(trial.task.evaluations),
        num_records=trial.task.num_records,
        negate=True,
        unsafe_seed=seed,
    )


def finite_search(task: Task, observe: Callable[[Tensor], float], noise_std: float) -> Tensor:
    """GP-UCB in prior units; the posterior means of all choices."""
    gp = FiniteSetGP(task.choices, kernel=kernel(task), noise_std=noise_std)
    search = GPUCB(gp, schedule=UCBSchedule(gp.num_choices, delta=_SEARCH_DELTA))
    for _ in range(task.evaluations):
        index = search.ask()
        search.tell(index, (observe(task.choices[[index]]) + CENTER) / SPREAD)
    return gp.mean


def by_ucb(trial: Trial, epsilon: float, seed: int) -> Tensor:
    objective = private_objective(trial, trial.choice_losses, epsilon, seed)
    noise_std = objective.noise_std / SPREAD
    mean = finite_search(trial.task, lambda x: objective(x)[0].item(), noise_std)
    return trial.task.choices[[int(mean.argmax())]]


def by_log_ei(trial: Trial, epsilon: float, seed: int) -> Tensor:
    """Batches of d + 1 anywhere in the cube, with fitted length-scales; the best posterior mean."""
    torch.manual_seed(seed)
    task = trial.task
    objective = private_objective(trial, trial.losses, epsilon, seed)
    X = SobolEngine(task.dim, scramble=True, seed=seed).draw(task.dim + 1, dtype=torch.double)
    X[0] = 0.5  # where the others begin, too
    Y, Yvar = objective(X)
    while True:
        model = fitted_gp(X, Y, Yvar)
        with torch.no_grad():
            means = model.posterior(X).mean.squeeze(-1)
        if len(X) == task.evaluations:
            return X[[int(means.argmax())]]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of an optimizer that was stopped early
            improvement = qLogExpectedImprovement(
                model,
                best_f=means.max(),
                sampler=SobolQMCNormalSampler(torch.Size([64]), seed=seed),
            )
            chosen, _ = optimize_acqf(
                improvement,
                unit_box(task.dim),
                q=task.dim + 1,
                num_restarts=2,
                raw_samples=16,
                options={"maxiter": 20},
            )
        new_Y, new_Yvar = objective(chosen)
        X, Y, Yvar = torch.cat((X, chosen)), torch.cat((Y, new_Y)), torch.cat((Yvar, new_Yvar))


def by_turbo(trial: Trial, epsilon: float, seed: int) -> Tensor:
    task = trial.task
    mu = gaussian_mu(epsilon, DELTA)
    batch = task.dim + 1
    point = turbo(trial.losses, task.dim, mu=mu, batches=task.batches, batch=batch, seed=seed)
    return point.unsqueeze(0)


# --- Only the choice is released. ---
def exact_mean(trial: Trial) -> Tensor:
    """Posterior means after GP-UCB on exact means; private."""
    return finite_search(
        trial.task, lambda x: -trial.choice_losses(x).mean().item(), _MODEL_NOISE**2
    )


def by_choice(trial: Trial, epsilon: float, seed: int) -> Tensor:
    mean = exact_mean(trial)
    # A record moves a mean by at most 1/n: the correlation that has this standard deviation.
    move = (BOUNDS[1] - BOUNDS[0]) / (trial.task.num_records * SPREAD)
    choice = PrivateChoice(
        num_choices=len(trial.task.choices),
        epsilon=epsilon,
        delta=DELTA,
        steps=trial.task.evaluations,
        dataset_correlation=1 - move**2 / 2,
        method="permute_and_flip",
    )
    draw = partial(choice.release, mean, trial.task.choices)
    return torch.stack([draw(unsafe_seed=DRAWS * seed + i).value for i in range(DRAWS)])


def by_best_of_points(trial: Trial, epsilon: float, seed: int) -> Tensor:
    """Permute-and-flip on the exact means of the first Sobol points; no model."""
    X = trial.task.choices[: trial.task.evaluations]
    draw = partial(
        exponential_mechanism,
        -trial.choice_losses(X).mean(-1),
        sensitivity=(BOUNDS[1] - BOUNDS[0]) / trial.task.num_records,
        epsilon=epsilon,
        method="permute_and_flip",
    )
    return X[[draw(unsafe_seed=DRAWS * seed + i).value for i in range(DRAWS)]]


# --- Private random search ([Papernot2022], definition 1, theorem 2): the best of a geometric,
# --- secret number of noisy points costs three times the epsilon of one; no delta is needed.
def by_random_search(trial: Trial, epsilon: float, seed: int) -> Tensor:
    """As many evaluations as the others *on average*: their number must stay random and secret."""
    task, rng = trial.task, np.random.default_rng(seed)
    scale = 3 / epsilon / task.num_records
    chosen = []
    for _ in range(DRAWS):
        tried = rng.integers(len(task.choices), size=int(rng.geometric(1 / task.evaluations)))
        noisy = trial.choice_means[tried].numpy() + rng.laplace(scale=scale, size=len(tried))
        chosen.append(tried[noisy.argmin()])
    trial.evaluations += task.evaluations
    return task.choices[chosen]


# --- Descent. ---
def by_descent(trial: Trial, epsilon: float, seed: int) -> Tensor:
    task, mu = trial.task, gaussian_mu(epsilon, DELTA)
    steps = task.batches
    average = descend(trial.losses, task.public_losses, task.dim, mu=mu, steps=steps, seed=seed)
    return average.unsqueeze(0)


# --- All in one. ---
def by_private_search(trial: Trial, epsilon: float, seed: int) -> Tensor:
    """Decides for itself, and learns from no public record."""
    task = trial.task
    names = [f"x{i}" for i in range(task.dim)]

    def scores(configs: list[dict[str, float]]) -> Tensor:
        return trial.losses(torch.tensor([[c[n] for n in names] for c in configs]).double())

    result = PrivateSearch(
        scores,
        SearchSpace(**{name: Real(0.0, 1.0) for name in names}),
        bounds=BOUNDS,
        budget=PrivacyBudget(epsilon, DELTA),
        evaluations=task.evaluations,
        num_records=task.num_records,
        unsafe_seed=seed,
    ).run()
    return torch.tensor([[result.config.value[name] for name in names]]).double()


# --- Marks to measure by. ---
def at_random(trial: Trial, epsilon: float, seed: int) -> Tensor:
    return trial.task.choices


def in_the_middle(trial: Trial, epsilon: float, seed: int) -> Tensor:
    return torch.full((1, trial.task.dim), 0.5, dtype=torch.double)


def ucb_without_privacy(trial: Trial, epsilon: float, seed: int) -> Tensor:
    return trial.task.choices[[int(exact_mean(trial).argmax())]]


#: The private ones.
SEARCHES: dict[str, Search] = {
    "PrivateObjective + GP-UCB": by_ucb,
    "PrivateObjective + qLogEI": by_log_ei,
    "PrivateObjective + TuRBO": by_turbo,
    "PrivateChoice (conditional)": by_choice,
    "DPGIBO": by_descent,
    "private random search, geometric": by_random_search,
    "permute-and-flip, no model": by_best_of_points,
    "PrivateSearch": by_private_search,
}


#: The same at any epsilon; the first two look at no record.
MARKS: dict[str, Search] = {
    "random choice": at_random,
    "middle of the box": in_the_middle,
    "GP-UCB, not private": ucb_without_privacy,
}
