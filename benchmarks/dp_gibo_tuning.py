"""Hyper-parameter tuning as in examples 4.3 and 4.4 of the DP-GIBO paper, with figures.

    OMP_NUM_THREADS=1 BOTORCH_DP_DATA=<folder> python -m benchmarks.dp_gibo_tuning [--full]

- ``gp``, example 4.3: the 10 length-scales of a GP regression, n = 4500 validation records, b = 11,
  T = 25, AdaGrad, mu = 1, against random search, GP-UCB and GIBO without noise. The paper's data
  set is replaced by Friedman's first function (half of its ten inputs are irrelevant).
- ``blog``, example 4.4: 33 parameters of a support vector regression (30 length-scales, C, the
  tube's width, the overall scale), b = 34, T = 25. **Stand-in**: the paper uses the CT-slice
  data, here it is UCI BlogFeedback with 30 features and target log(1 + comments).
- ``cancer``: the same 33 parameters of a classifier on scikit-learn's breast-cancer data, which is
  small (n = 369): an example where privacy is expensive.

Every method sees the same number of evaluations. DP-GIBO and GIBO show the loss at their present
iterate, the non-private searches the best they have seen. The clip norm is the median gradient
length on *public* stand-in records that are in no validation set. By default ``blog`` is smaller
than in the paper (sizes are printed); ``--full`` takes the paper's.
"""

from __future__ import annotations

import argparse
import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from gpytorch.kernels import MaternKernel
from torch import Tensor
from tqdm import tqdm

from benchmarks.common import RESULTS, mean_interval, save_results
from benchmarks.data import blogfeedback
from botorch_dp.descent import DPGIBO, Design, NoiseAwareAdagrad, public_clip_norm

Losses = Callable[[Tensor], Tensor]
TITLES = {
    "gp": "Length-scales of a GP regression on Friedman's first function (as example 4.3)",
    "blog": "Support vector regression on BlogFeedback, a stand-in for CT slices (as example 4.4)",
    "cancer": "Support vector classification of breast-cancer data",
}


@dataclass(frozen=True)
class Task:
    """Losses of private and of public records in the unit cube."""

    name: str
    dim: int
    losses: Losses
    public_losses: Losses
    num_records: int


def friedman(seed: int, *, train: int, validation: int) -> Task:
    """Squared errors of a GP regression with given length-scales, 10 of them."""
    from sklearn.datasets import make_friedman1

    X, y = make_friedman1(train + validation + 500, n_features=10, noise=1.0, random_state=seed)
    inputs, outcomes = torch.tensor(X), torch.tensor((y - 14.4) / 4.9)  # known moments
    train_X, train_Y = inputs[:train], outcomes[:train]

    def errors(rows: slice, theta: Tensor) -> Tensor:
        losses = []
        for point in theta:
            scale = 10 ** (2 * point - 1)  # length-scales from .1 to 10
            a, b = train_X / scale, inputs[rows] / scale
            K = torch.exp(-0.5 * torch.cdist(a, a).square()) + 0.04 * torch.eye(train).double()
            weights = torch.cholesky_solve(train_Y.unsqueeze(-1), torch.linalg.cholesky(K))
            predicted = torch.exp(-0.5 * torch.cdist(b, a).square()) @ weights
            losses.append((predicted.squeeze(-1) - outcomes[rows]).square())
        return torch.stack(losses)

    private = slice(train, train + validation)
    public = slice(train + validation, None)
    return Task("gp", 10, partial(errors, private), partial(errors, public), validation)


def support_vector_losses(
    X: np.ndarray, y: np.ndarray, train: slice, rows: slice, classify: bool, theta: Tensor
) -> Tensor:
    """Absolute errors, or logistic losses of the margin, of one machine for each row of theta."""
    from sklearn.svm import SVC, SVR

    losses = []
    for point in theta.numpy():
        scaled = X * 10 ** (1 - 2 * point[:30])  # length-scales from .1 to 10
        C = 10 ** (3 * point[30] - 1)
        gamma = 10 ** (2 * point[32] - 2.5)
        if classify:
            tube = 10 ** (2 * point[31] - 1)  # the classes' weight in place of a tube
            machine: Any = SVC(C=C, gamma=gamma, class_weight={0: 1.0, 1: tube})
        else:
            machine = SVR(C=C, gamma=gamma, epsilon=10 ** (2 * point[31] - 2), max_iter=20_000)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of iterations, for absurd parameters
            machine.fit(scaled[train], y[train])
        if classify:
            margin = (2 * y[rows] - 1) * machine.decision_function(scaled[rows])
            losses.append(np.logaddexp(0.0, -margin))
        else:
            losses.append(np.abs(machine.predict(scaled[rows]) - y[rows]))
    return torch.tensor(np.stack(losses))


def blog(seed: int, *, train: int, validation: int) -> Task:
    """BlogFeedback, in place of the CT slices."""
    data = blogfeedback()
    order = np.random.default_rng(seed).permutation(len(data.train_X))
    order = order[: train + validation + 300]
    X, y = data.train_X.numpy()[order], np.log1p(data.train_Y.numpy()[order])
    # Features and their scale are chosen on the public rows at the end.
    public = slice(train + validation, None)
    spread = X[public].std(axis=0)
    X = X[:, spread > 0]
    X = np.clip((X - X[public].mean(axis=0)) / X[public].std(axis=0), -5, 5)
    relevance = np.abs(np.corrcoef(X[public].T, y[public])[-1, :-1])
    X = X[:, relevance.argsort()[-30:]] / math.sqrt(30)
    machine = partial(support_vector_losses, X, y, slice(0, train))
    rows = slice(train, train + validation)
    return Task(
        "blog", 33, partial(machine, rows, False), partial(machine, public, False), validation
    )


def cancer(seed: int, *, train: int, validation: int) -> Task:
    """Scikit-learn's breast-cancer data."""
    from sklearn.datasets import load_breast_cancer

    data = load_breast_cancer()
    order = np.random.default_rng(seed).permutation(len(data.target))
    X, y = data.data[order], data.target[order]
    public = slice(train + validation, None)
    X = np.clip((X - X[public].mean(axis=0)) / X[public].std(axis=0), -5, 5) / math.sqrt(30)
    machine = partial(support_vector_losses, X, y, slice(0, train))
    rows = slice(train, train + validation)
    return Task(
        "cancer", 33, partial(machine, rows, True), partial(machine, public, True), validation
    )


# --- Methods: each returns the mean loss after each batch of b evaluations. ---


def unit_box(dim: int) -> Tensor:
    return torch.stack((torch.zeros(dim), torch.ones(dim))).double()


def descend(
    task: Task, seed: int, *, steps: int, mu: float, aware: bool = False
) -> tuple[list[float], float]:
    """The mean loss at each iterate, and at the average of the last half."""
    kernel = MaternKernel(nu=2.5).double()
    kernel.lengthscale = 0.5
    start = torch.full((task.dim,), 0.5, dtype=torch.double)
    clip_norm = public_clip_norm(
        task.public_losses, start, kernel=kernel, design=Design(radius=0.4), box=unit_box(task.dim)
    )
    make = NoiseAwareAdagrad if aware else torch.optim.Adagrad
    result = DPGIBO(
        task.losses,
        start,
        kernel=kernel,
        mu=mu,
        steps=steps,
        clip_norm=clip_norm,
        box=unit_box(task.dim),
        design=Design(radius=(0.4, 0.1)),
        optimizer=lambda parameters: make(parameters, lr=0.1),
        unsafe_seed=seed,
    ).run()
    path = torch.cat((result.trajectory.value, result.average.value.unsqueeze(0)))
    values = task.losses(path).mean(-1).tolist()
    return values[:-1], values[-1]


def best_so_far(values: Tensor, batch: int) -> list[float]:
    return values.cummin(0).values[batch - 1 :: batch].tolist()


def random_search(task: Task, seed: int, *, steps: int) -> list[float]:
    generator = torch.Generator().manual_seed(seed)
    batch = task.dim + 1
    X = torch.rand(steps * batch, task.dim, dtype=torch.double, generator=generator)
    start = torch.full((1, task.dim), 0.5, dtype=torch.double)
    values = torch.cat([task.losses(x).mean(-1) for x in (start, *X.split(batch))])
    return [float(values[0]), *best_so_far(values[1:].clamp_max(values[0]), batch)]


def gp_ucb(task: Task, seed: int, *, steps: int) -> list[float]:
    """Batches by Monte Carlo UCB on exact means; hyper-parameters fitted (not private)."""
    from botorch.acquisition import qUpperConfidenceBound
    from botorch.fit import fit_gpytorch_mll
    from botorch.models import SingleTaskGP
    from botorch.optim import optimize_acqf
    from botorch.sampling import SobolQMCNormalSampler
    from gpytorch.mlls import ExactMarginalLogLikelihood

    torch.manual_seed(seed)
    batch, box = task.dim + 1, unit_box(task.dim)
    X = torch.rand(batch, task.dim, dtype=torch.double)
    X[0] = 0.5
    Y = -task.losses(X).mean(-1, keepdim=True)
    first = -float(Y[0])
    for _ in range(steps - 1):
        model = SingleTaskGP(X, Y)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            fit_gpytorch_mll(
                ExactMarginalLogLikelihood(model.likelihood, model),
                optimizer_kwargs={"options": {"maxiter": 50}},
            )
            sampler = SobolQMCNormalSampler(torch.Size([64]), seed=seed)
            chosen, _ = optimize_acqf(
                qUpperConfidenceBound(model, beta=4.0, sampler=sampler),
                box,
                q=batch,
                num_restarts=2,
                raw_samples=32,
                options={"maxiter": 20},
            )
        X = torch.cat((X, chosen))
        Y = torch.cat((Y, -task.losses(chosen).mean(-1, keepdim=True)))
    return [first, *best_so_far(-Y.squeeze(-1).clamp_min(Y[0]), batch)]


def run(make: Callable[..., Task], seeds: int, steps: int, ucb: bool, **sizes: int) -> Any:
    curves: dict[str, list[list[float]]] = {}
    averages: dict[str, list[float]] = {}
    for seed in tqdm(range(seeds), desc=make.__name__):
        task = make(seed, **sizes)
        for mu, aware in ((1.0, False), (1.0, True), (math.inf, False)):
            name = "GIBO (not private)" if math.isinf(mu) else f"DP-GIBO, mu = {mu:g}"
            name += ", noise-aware" if aware else ""
            curve, average = descend(task, seed, steps=steps, mu=mu, aware=aware)
            curves.setdefault(name, []).append(curve)
            averages.setdefault(name, []).append(average)
        searched = random_search(task, seed, steps=steps)
        curves.setdefault("random search (not private)", []).append(searched)
        if ucb:
            curves.setdefault("GP-UCB (not private)", []).append(gp_ucb(task, seed, steps=steps))
    title = (
        f"{TITLES[task.name]}\nd = {task.dim}, n = {task.num_records}, b = {task.dim + 1}, "
        f"T = {steps}; DP-GIBO: 1-GDP for all {steps} steps, replace-one (simulated noise)"
    )
    _figure(f"dp_gibo_{task.name}", title, curves, task.dim + 1)
    return {
        "sizes": {"seeds": seeds, "steps": steps, **sizes},
        "start": mean_interval([path[0] for path in next(iter(curves.values()))]),
        "final mean loss": {
            name: mean_interval([path[-1] for path in paths]) for name, paths in curves.items()
        },
        "mean loss at the averaged iterate": {
            name: mean_interval(values) for name, values in averages.items()
        },
    }


def _figure(name: str, title: str, curves: dict[str, list[list[float]]], batch: int) -> None:
    import matplotlib.pyplot as plt

    figure, ax = plt.subplots(figsize=(7, 4.6))
    for label, paths in curves.items():
        values = np.array(paths)
        evaluations = batch * np.arange(values.shape[1])
        # Curves may coincide: a thick line below, a dashed one above.
        style = {"ls": "--", "zorder": 5} if "not private" in label else {"lw": 2.5}
        (line,) = ax.plot(evaluations, values.mean(axis=0), label=label, **style)
        ax.fill_between(
            evaluations, values.min(axis=0), values.max(axis=0), alpha=0.12, color=line.get_color()
        )
    ax.set_xlabel("evaluations of all validation records")
    ax.set_ylabel("mean validation loss")
    ax.set_title(f"{title}\n(mean and range over {len(paths)} replications)", fontsize=9)
    ax.legend(frameon=False, fontsize=8)
    figure.tight_layout()
    figure.savefig(RESULTS / f"{name}.png", dpi=110)
    plt.close(figure)


def main() -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", nargs="+", default=["gp", "blog", "cancer"])
    parser.add_argument("--full", action="store_true", help="the paper's size of blog (hours)")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    full = arguments.full
    runs = {
        "gp": partial(
            run, friedman, 10, 25, True, train=150, validation=4500
        ),
        "blog": partial(
            run, blog, 5 if full else 3, 25, full,
            train=500 if full else 300, validation=5000 if full else 3000,
        ),
        "cancer": partial(run, cancer, 5, 25, False, train=100, validation=369),
    }  # fmt: skip
    for name in arguments.tasks:
        results = runs[name]()
        print(name, results["sizes"], "" if full or name != "blog" else "(reduced)")
        print(f"  start: {results['start']}")
        for key in ("final mean loss", "mean loss at the averaged iterate"):
            for method, interval in results[key].items():
                print(f"  {key}, {method}: {interval}")
        save_results(f"dp_gibo_{name}", results)


if __name__ == "__main__":
    main()
