"""Eleven private ways to tune with equal records, budget and evaluations, for ``which_method``.

Each way is a function of a trial, epsilon and a seed that returns what it would publish: points in
the cube, more than one row if the last draw is repeated to be averaged over. Noise is simulated.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from functools import lru_cache, partial

import numpy as np
import torch
from botorch.acquisition import qLogExpectedImprovement
from botorch.optim import optimize_acqf
from botorch.sampling import SobolQMCNormalSampler
from gpytorch.kernels import MaternKernel
from torch import Tensor
from torch.quasirandom import SobolEngine

from benchmarks.dp_gibo_where import descend, fitted_gp, turbo, unit_box
from benchmarks.which_tasks import BOUNDS, CENTER, SPREAD, Task, Trial
from botorch_dp.acquisition.ucb import UCBSchedule
from botorch_dp.models import FiniteSetGP
from botorch_dp.objectives import PrivateObjective
from botorch_dp.privacy import PrivacyBudget, exponential_mechanism, gaussian_mu
from botorch_dp.release import GPUCB, LinearChoice, MaxVarianceDesign, PrivateChoice
from botorch_dp.space import Real, SearchSpace
from botorch_dp.tuning import PrivateSearch

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


def finite_search(task: Task, observe: Callable[[Tensor], float], noise_variance: float) -> Tensor:
    """GP-UCB in prior units; the posterior means of all choices."""
    gp = FiniteSetGP(task.choices, kernel=kernel(task), noise_variance=noise_variance)
    search = GPUCB(gp, schedule=UCBSchedule(gp.num_choices, delta=_SEARCH_DELTA))
    for _ in range(task.evaluations):
        index = search.ask()
        search.tell(index, (observe(task.choices[[index]]) + CENTER) / SPREAD)
    return gp.mean


def by_ucb(trial: Trial, epsilon: float, seed: int) -> Tensor:
    objective = private_objective(trial, trial.choice_losses, epsilon, seed)
    noise_variance = (objective.noise_std / SPREAD) ** 2
    mean = finite_search(trial.task, lambda x: objective(x)[0].item(), noise_variance)
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


@lru_cache(maxsize=1)
def linear_design(task: Task) -> MaxVarianceDesign:
    return MaxVarianceDesign(
        task.choices,
        num_points=task.evaluations,
        kernel=kernel(task),
        noise_variance=_MODEL_NOISE,
    )


def by_linear_choice(trial: Trial, epsilon: float, seed: int) -> Tensor:
    design = linear_design(trial.task)
    choice = LinearChoice(
        trial.task.choices,
        num_records=trial.task.num_records,
        design=design,
        kernel=kernel(trial.task),
        noise_variance=_MODEL_NOISE,
        bounds=BOUNDS,
        epsilon=epsilon,
        method="permute_and_flip",
        negate=True,
        prior_mean=CENTER,
    )
    draw = partial(choice.release, trial.choice_losses(design.points))
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


# --- Private random search ([Papernot2022], definition 1, theorems 2 and 6, corollary 3): the best
# --- of a secret random number of noisy points.

#: dp-accounting's name of the distribution of the number of repetitions.
SHAPES = {"logarithmic": 0.0, "geometric": 1.0, "Poisson": math.inf}


@lru_cache(maxsize=64)
def repeated_scale(epsilon: float, mean: int, shape: float) -> float:
    """Laplace noise of one repetition over its sensitivity, for (epsilon, DELTA) in all.

    Only a Laplace release is considered: for all three distributions it needs less noise here than
    a Gaussian one. With truncated negative binomial repetitions (shape below infinity) all of it
    costs (2 + shape) times the epsilon of one repetition, for any mean, and delta is not needed.
    """
    from dp_accounting import calibrate_dp_mechanism, mechanism_calibration, rdp
    from dp_accounting.dp_event import DpEvent, LaplaceDpEvent, RepeatAndSelectDpEvent

    def accountant() -> rdp.RdpAccountant:
        return rdp.RdpAccountant(1 + np.geomspace(0.05, 1e6, 150))

    def event(scale: float) -> DpEvent:
        return RepeatAndSelectDpEvent(LaplaceDpEvent(scale), mean, shape)

    if math.isinf(shape):
        bracket = mechanism_calibration.ExplicitBracketInterval(1 / epsilon, 1000 / epsilon)
        return calibrate_dp_mechanism(accountant, event, epsilon, DELTA, bracket, tol=0.01)
    scale = (2 + shape) / epsilon
    spent = accountant().compose(event(scale)).get_epsilon(DELTA)
    if spent > 1.001 * epsilon:
        raise RuntimeError(f"the accountant finds {spent} where {epsilon} was to be spent")
    return scale


def repetitions(rng: np.random.Generator, mean: int, shape: float) -> int:
    """A number with the mean; logarithmic and geometric ones are at least 1."""
    if math.isinf(shape):
        return int(rng.poisson(mean))
    if shape == 1:
        return int(rng.geometric(1 / mean))
    from scipy.optimize import brentq
    from scipy.stats import logser

    p = brentq(lambda p: logser.mean(p) - mean, 1e-6, 1 - 1e-9)
    return int(rng.logseries(p))


def by_random_search(shape: float, trial: Trial, epsilon: float, seed: int) -> Tensor:
    """As many evaluations as the others *on average*: their number must stay random and secret."""
    task, rng = trial.task, np.random.default_rng(seed)
    scale = repeated_scale(epsilon, task.evaluations, shape) / task.num_records
    chosen = []
    for _ in range(DRAWS):
        count = repetitions(rng, task.evaluations, shape)
        tried = rng.integers(len(task.choices), size=max(count, 1))
        noisy = trial.choice_means[tried].numpy() + rng.laplace(scale=scale, size=len(tried))
        # Without a single repetition nothing was seen, and any point will do.
        chosen.append(tried[noisy.argmin() if count else 0])
    trial.evaluations += task.evaluations
    return task.choices[chosen]


# --- Descent. ---


def by_descent(trial: Trial, epsilon: float, seed: int, start_share: float = 0.0) -> Tensor:
    task = trial.task
    average, _ = descend(
        trial.losses,
        task.public_losses,
        task.dim,
        mu=gaussian_mu(epsilon, DELTA) if math.isfinite(epsilon) else math.inf,
        steps=task.batches,
        seed=seed,
        start_share=start_share,
    )
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


def descent_without_privacy(trial: Trial, epsilon: float, seed: int) -> Tensor:
    return by_descent(trial, math.inf, seed)


#: The private ones.
SEARCHES: dict[str, Search] = {
    "PrivateObjective + GP-UCB": by_ucb,
    "PrivateObjective + qLogEI": by_log_ei,
    "PrivateObjective + TuRBO": by_turbo,
    "release_choice (conditional)": by_choice,
    "release_linear_choice": by_linear_choice,
    "DPGIBO": by_descent,
    "DPGIBO after private_start": partial(by_descent, start_share=0.3),
    **{
        f"private random search, {name}": partial(by_random_search, shape)
        for name, shape in SHAPES.items()
    },
    "permute-and-flip, no model": by_best_of_points,
    "PrivateSearch": by_private_search,
}
#: The same at any epsilon; the first two look at no record.
MARKS: dict[str, Search] = {
    "random choice": at_random,
    "middle of the box": in_the_middle,
    "GP-UCB, not private": ucb_without_privacy,
    "GIBO, not private": descent_without_privacy,
}
