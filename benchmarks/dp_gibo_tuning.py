"""Hyper-parameter tuning: examples 4.3, C.5 and 4.4 of the DP-GIBO paper [Sopa2025].

    OMP_NUM_THREADS=1 BOTORCH_DP_DATA=<folder> python -m benchmarks.dp_gibo_tuning [--tasks C.5]

- 4.3-printed: the 10 length-scales of a GP regression on data drawn from a 10-dimensional RBF GP,
  whose length-scales are drawn from U[0, 5]^10, which is also the box; b = 11, T = 25, AdaGrad, an
  RBF kernel, B = 1, a random start, points by the trace and a zero mean, beside our way from the
  same start (a Matern kernel, a clip norm from public records, points at a fixed radius, an unknown
  mean), at mu = .2 and 1 and without noise as in figure 4. n = 1,500 in place of 4,500, and each mu
  three times as large, so that the noise is the same.
- C.5: 4.3 as printed, where the validation loss of a point is seen with noise of standard deviation
  .01, one draw for all records; it is modelled with a standard deviation of .01, 1 and .0001.
- 4.4: 33 parameters of a support vector regression (30 length-scales, the tube's width, gamma, C),
  half squared error, n = 5000, b = 34, T = 25; mu = .2, 1 and infinite as in figure 4; 500 training
  records and the ranges of the authors' code. **The data are a stand-in**: BlogFeedback in place of
  the CT slices, which could not be had.

Every method sees the same number of evaluations; 4.4 starts at the centre. DP-GIBO and GIBO show
the loss at their present iterate, the search without privacy the best it has seen. Finished runs
are kept in ``dp_gibo_tuning.partial.json``, so that a benchmark that was interrupted goes on.
"""

from __future__ import annotations

import itertools
import json
import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from gpytorch.kernels import MaternKernel, RBFKernel
from torch import Tensor
from tqdm import tqdm

from benchmarks.common import (
    BenchmarkParser,
    Finished,
    Interval,
    mean_interval,
    paired_interval,
    results_folder,
    save_results,
)
from benchmarks.data import blogfeedback
from benchmarks.dp_gibo_where import unit_box
from botorch_dp.descent import DPGIBO, Design, public_clip_norm
from botorch_dp.descent.designs import DesignName

Losses = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Task:
    """Losses of private and of public records in the unit cube.

    Args:
        dim: ``d``.
        losses: Of the private records, as a search sees them.
        public_losses: Of public records of the same kind.
        exact: Of the private records without the noise of evaluations, to judge by; ``losses`` if
            None.
    """

    dim: int
    losses: Losses
    public_losses: Losses
    exact: Losses | None = None

    def mean_loss(self, point: Tensor) -> float:
        return float((self.exact or self.losses)(point.unsqueeze(0)).mean())


def regression_errors(
    X: Tensor, y: Tensor, scales: Callable[[Tensor], Tensor], train: int, rows: slice, theta: Tensor
) -> Tensor:
    """Squared errors of GP regressions, one for each row of ``theta``, at some rows; ``b x n``."""
    losses = []
    for point in theta:
        scaled = X / scales(point)
        a, b = scaled[:train], scaled[rows]
        K = torch.exp(-0.5 * torch.cdist(a, a).square()) + 0.01 * torch.eye(train).double()
        weights = torch.cholesky_solve(y[:train].unsqueeze(-1), torch.linalg.cholesky(K))
        predicted = torch.exp(-0.5 * torch.cdist(b, a).square()) @ weights
        losses.append((predicted.squeeze(-1) - y[rows]).square())
    return torch.stack(losses)


def box_scales(point: Tensor) -> Tensor:
    """From the unit cube to [0, 5], but for a hundredth: a length-scale of 0 means nothing."""
    return (5 * point).clamp_min(0.01)


def gp_draw(seed: int, *, train: int, validation: int, noise: float = 0.0) -> Task:
    """A draw of example 4.3: a function and its length-scales; inputs uniform in the unit cube."""
    generator = torch.Generator().manual_seed(4300 + seed)
    count = train + validation + 300
    X = torch.rand(count, 10, dtype=torch.double, generator=generator)
    truth = box_scales(torch.rand(10, dtype=torch.double, generator=generator))
    scaled = X / truth
    gram = torch.exp(-0.5 * torch.cdist(scaled, scaled).square()) + 1e-6 * torch.eye(count).double()
    white = torch.randn(count, 1, dtype=torch.double, generator=generator)
    y = (torch.linalg.cholesky(gram) @ white).squeeze(-1)
    errors = partial(regression_errors, X, y, box_scales, train)
    private = slice(train, train + validation)

    def noisy(theta: Tensor) -> Tensor:
        exact = errors(private, theta)
        if noise == 0:
            return exact
        # One draw for all records of a point: the validation loss is what is seen with noise.
        return exact + noise * torch.randn(len(exact), 1, dtype=torch.double, generator=generator)

    public = partial(errors, slice(train + validation, None))
    return Task(10, noisy, public, exact=partial(errors, private))


#: Ends of the logarithms of the 30 length-scales, the tube's width, gamma and C.
RANGES = np.array([[-3.0] * 30, [3.0] * 30])
RANGES = np.hstack([RANGES, np.log([[0.01, 0.1, 0.01], [1.0, 3.0, 5.0]])])


def regression_machine(
    X: np.ndarray, y: np.ndarray, train: slice, rows: slice, theta: Tensor
) -> Tensor:
    """Half squared errors of one support vector regression for each row of ``theta``."""
    from sklearn.svm import SVR

    losses = []
    for point in theta.numpy():
        values = np.exp(RANGES[0] + (RANGES[1] - RANGES[0]) * point)
        scaled = X / values[:30]
        tube, gamma, C = values[30:]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of iterations, for absurd parameters
            machine = SVR(C=C, gamma=gamma, epsilon=tube, max_iter=20_000)
            machine.fit(scaled[train], y[train])
        losses.append(0.5 * (machine.predict(scaled[rows]) - y[rows]) ** 2)
    return torch.tensor(np.stack(losses))


def blog(seed: int, *, train: int, validation: int) -> Task:
    """BlogFeedback, in place of the CT slices: 30 features, standardized log(1 + comments)."""
    data = blogfeedback()
    order = np.random.default_rng(seed).permutation(len(data.train_X))
    order = order[: train + validation + 300]
    X, y = data.train_X.numpy()[order], np.log1p(data.train_Y.numpy()[order])
    # Features and all scales are chosen on the public rows at the end.
    public = slice(train + validation, None)
    X = X[:, X[public].std(axis=0) > 0]
    X = np.clip((X - X[public].mean(axis=0)) / X[public].std(axis=0), -5, 5)
    y = (y - y[public].mean()) / y[public].std()
    relevance = np.abs(np.corrcoef(X[public].T, y[public])[-1, :-1])
    X = X[:, relevance.argsort()[-30:]]
    machine = partial(regression_machine, X, y, slice(0, train))
    private = slice(train, train + validation)
    return Task(33, partial(machine, private), partial(machine, public))


# --- Methods: each returns the mean loss after each batch of b evaluations. ---


def descend(task: Task, seed: int, *, steps: int, mu: float, centre: bool = True) -> list[float]:
    """As we would run it."""
    kernel = MaternKernel(nu=2.5).double()
    kernel.lengthscale = 0.5
    start = torch.full((task.dim,), 0.5, dtype=torch.double) if centre else random_start(task, seed)
    box = unit_box(task.dim)
    design = Design(radius=(0.4, 0.1))
    clip_norm = public_clip_norm(task.public_losses, start, kernel=kernel, design=design, box=box)
    result = DPGIBO(
        task.losses,
        start,
        kernel=kernel,
        mu=mu,
        steps=steps,
        clip_norm=max(clip_norm, 1e-3),
        box=box,
        design=design,
        step_size=partial(torch.optim.Adagrad, lr=0.1),
        unsafe_seed=seed,
    ).run()
    return [task.mean_loss(x) for x in result.trajectory.value]


def descend_as_printed(
    task: Task,
    seed: int,
    *,
    steps: int,
    mu: float,
    noise_std: float = 0.0,
    points: DesignName = "optimize",
) -> list[float]:
    """RBF kernel, B = 1, random start, points by the trace, zero mean, AdaGrad."""
    kernel = RBFKernel().double()
    kernel.lengthscale = 0.5
    result = DPGIBO(
        task.losses,
        random_start(task, seed),
        kernel=kernel,
        mu=mu,
        steps=steps,
        clip_norm=1.0,
        box=unit_box(task.dim),
        design=Design(points, noise_std=noise_std, mean="zero"),
        step_size=lambda parameters: torch.optim.Adagrad(parameters, lr=0.1),
        unsafe_seed=seed,
    ).run()
    return [task.mean_loss(x) for x in result.trajectory.value]


def random_start(task: Task, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(900 + seed)
    return torch.rand(task.dim, dtype=torch.double, generator=generator)


def best_so_far(values: Tensor, batch: int) -> list[float]:
    return values.cummin(0).values[batch - 1 :: batch].tolist()


def random_search(task: Task, seed: int, *, steps: int) -> list[float]:
    generator = torch.Generator().manual_seed(seed)
    batch = task.dim + 1
    X = torch.rand(steps * batch, task.dim, dtype=torch.double, generator=generator)
    start = torch.full((1, task.dim), 0.5, dtype=torch.double)
    losses = task.exact or task.losses
    values = torch.cat([losses(x).mean(-1) for x in (start, *X.split(batch))])
    return [float(values[0]), *best_so_far(values[1:].clamp_max(values[0]), batch)]


# --- What is run. ---

Method = Callable[..., list[float]]
PRIVATE, RANDOM = "DP-GIBO, mu = 1", "random search (not private)"


@dataclass(frozen=True)
class Experiment:
    """One example: a problem for each draw, and methods for the same draws.

    Args:
        title: Of the figure.
        make: Number of a draw to its task.
        methods: By their names.
        train: Training records.
        validation: Private validation records, ``n``.
        draws: How often everything is drawn again.
        note: What else the figure says.
    """

    title: str
    make: Callable[..., Task]
    methods: dict[str, Method]
    train: int
    validation: int
    draws: int
    note: str = ""


#: A third of the records, and three times the mu: the noise is the same.
_SMALL = "\nrun with 1,500 records at 3 mu, which has the noise of 4,500 records at mu"

EXPERIMENTS: dict[str, Experiment] = {
    "4.3-printed": Experiment(
        "Example 4.3 of Sopa et al. as printed, and as we would run it",
        gp_draw,
        {
            "as printed, mu = 1": partial(descend_as_printed, mu=3.0),
            "as printed, mu = 0.2": partial(descend_as_printed, mu=0.6),
            "as printed, without noise": partial(descend_as_printed, mu=math.inf),
            "as printed but for a simplex, mu = 1": partial(
                descend_as_printed, mu=3.0, points="simplex"
            ),
            "our way, mu = 1": partial(descend, mu=3.0, centre=False),
            "our way, mu = 0.2": partial(descend, mu=0.6, centre=False),
            "our way, without noise": partial(descend, mu=math.inf, centre=False),
            RANDOM: random_search,
        },
        150, 1500, 10, _SMALL,
    ),
    "C.5": Experiment(
        "Example C.5 of Sopa et al.: as 4.3, losses seen with noise of standard deviation .01",
        partial(gp_draw, noise=0.01),
        {
            "modelled as .01": partial(descend_as_printed, mu=3.0, noise_std=0.01),
            "modelled as 1": partial(descend_as_printed, mu=3.0, noise_std=1.0),
            "modelled as .0001": partial(descend_as_printed, mu=3.0, noise_std=0.0001),
            RANDOM: random_search,
        },
        150, 1500, 14, _SMALL,
    ),
    "4.4": Experiment(
        "Example 4.4 of Sopa et al. on BlogFeedback, a stand-in for CT slices",
        blog,
        {
            "DP-GIBO, mu = 0.2": partial(descend, mu=0.2),
            PRIVATE: partial(descend, mu=1.0),
            "GIBO (not private)": partial(descend, mu=math.inf),
            RANDOM: random_search,
        },
        500, 5000, 3,
    ),
}  # fmt: skip


FILES = dict(zip(EXPERIMENTS, ("dp_gibo_43_printed", "dp_gibo_C5", "dp_gibo_44"), strict=True))


def run(name: str, experiment: Experiment, steps: int) -> dict[str, Any]:
    finished = Finished("dp_gibo_tuning")
    sizes = {"train": experiment.train, "validation": experiment.validation}
    curves: dict[str, list[list[float]]] = {method: [] for method in experiment.methods}
    for draw in tqdm(range(experiment.draws), desc=name):
        task: Task | None = None
        for method, search in experiment.methods.items():
            key = json.dumps([name, method, draw, steps, sizes])

            def curve(search: Method = search, draw: int = draw) -> list[float]:
                nonlocal task
                task = task or experiment.make(draw, **sizes)
                return search(task, draw, steps=steps)

            curves[method].append(finished.get(key, curve))
    dim = 33 if name.startswith("4.4") else 10
    _figure(FILES[name], experiment, curves, dim, steps)
    final = {method: [curve[-1] for curve in paths] for method, paths in curves.items()}
    first = next(iter(final))
    return {
        "problem": experiment.title,
        **({"note": experiment.note.strip()} if experiment.note else {}),
        "sizes": {"draws": experiment.draws, "steps": steps, "batch": dim + 1, **sizes},
        "start": mean_interval([curve[0] for curve in curves[first]]),
        "final mean loss": {method: mean_interval(values) for method, values in final.items()},
        f"{first} minus another, paired": {
            method: paired_interval(final[first], values)
            for method, values in final.items()
            if method != first
        },
        f"{first} over another, geometric mean of pairs": {
            method: geometric_ratio(final[first], values)
            for method, values in final.items()
            if method != first
        },
    }


def geometric_ratio(values: list[float], others: list[float]) -> Interval:
    """The geometric mean of the ratios of pairs; losses of different draws differ by decades."""
    logs = paired_interval(np.log(values).tolist(), np.log(others).tolist())
    return Interval(math.exp(logs.mean), math.exp(logs.low), math.exp(logs.high), logs.count)


def _figure(
    name: str, experiment: Experiment, curves: dict[str, list[list[float]]], dim: int, steps: int
) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(13, 5.6), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(3, 2))
    styles = itertools.cycle(("-", "--", "-.", ":"))
    for (label, paths), style in zip(curves.items(), styles, strict=False):
        values = np.array(paths)
        evaluations = (dim + 1) * np.arange(values.shape[1])
        low, middle, high = np.quantile(values, [0.25, 0.5, 0.75], axis=0)
        (line,) = left.plot(evaluations, middle, style, lw=2, label=label)
        if len(curves) <= 4:
            left.fill_between(evaluations, low, high, alpha=0.12, color=line.get_color())
    left.set_xlabel("evaluations of all validation records")
    left.set_ylabel(
        "mean validation loss, median of draws" + (", quartiles" if len(curves) <= 4 else "")
    )
    left.legend(frameon=False, fontsize=10)
    # Curves of the same draws lie on each other: their ratios do not.
    first, *others = curves
    for place, other in enumerate(others):
        ratios = np.array(curves[other])[:, -1] / np.array(curves[first])[:, -1]
        spread = np.linspace(-0.15, 0.15, len(ratios))
        right.plot(place + spread, ratios, "o", alpha=0.6)
        right.plot([place - 0.25, place + 0.25], [np.exp(np.log(ratios).mean())] * 2, "k-")
    right.axhline(1, color="0.6", lw=0.8)
    for axis in (left, right):
        low, high = axis.get_ylim()
        if low <= 0 or high / low > 10:
            axis.set_yscale("log")
    right.set_xticks(
        range(len(others)),
        [o.replace(" (", "\n(").replace(", mu = 1,", "\n") for o in others],
        fontsize=9,
        **({"rotation": 20, "ha": "right"} if len(others) > 4 else {}),
    )
    right.set_ylabel(f"final loss over that of {first}\n(a point for each draw; geometric means)")
    right.margins(x=0.25)
    figure.suptitle(
        f"{experiment.title}\nd = {dim}, n = {experiment.validation}, b = {dim + 1}, T = {steps}, "
        f"{experiment.draws} draw{'s' * (experiment.draws > 1)}; mu-GDP over all steps "
        f"(mu = 1 unless said), replace-one, simulated noise{experiment.note}",
        fontsize=11,
    )
    figure.savefig(results_folder() / f"{name}.png", dpi=110)


def main() -> None:
    parser = BenchmarkParser("dp_gibo_tuning", __doc__, minutes=16)
    parser.add_argument("--tasks", nargs="+", default=list(EXPERIMENTS), choices=EXPERIMENTS)
    parser.add_argument("--steps", type=int, default=25)
    for size in ("train", "validation", "draws"):
        parser.add_argument(f"--{size}", type=int, help="in place of the example's")
    options = parser.parse_args()
    torch.set_num_threads(1)
    given = {k: getattr(options, k) for k in ("train", "validation", "draws")}
    for name in options.tasks:
        experiment = EXPERIMENTS[name]
        changed = {k: v for k, v in given.items() if v is not None}
        results = run(name, replace(experiment, **changed), options.steps)
        for key, value in results.items():
            for what, number in value.items() if isinstance(value, dict) else [("", value)]:
                print(f"  {key}{': ' if what else ''}{what}: {number}")
        save_results(FILES[name], results)


if __name__ == "__main__":
    main()
