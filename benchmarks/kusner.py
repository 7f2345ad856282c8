"""Are the releases of Kusner et al. [Kusner2015] worth it?

    python -m benchmarks.kusner [--part noise regret] [--seeds 20]

* ``noise``: the exact noise of every release at common sizes. The paper has theorems and no
  experiments. Each row is one release at one size, in units of the prior's standard deviation (or
  of the score, for the Lipschitz maximum): its sensitivity, the scale of its noise, what the
  noise stays within in 95% of all releases, by how much values differ before anything is known,
  and whether the noise drowns that. Utility bounds stand beside the published ones. Below them
  are the releases of ours for the same job that rest on no prior. A score is a mean of m scores
  in a range of 5 prior standard deviations, so neighbours are correlated by ``1 - (5 / m)^2 /
  2``.
* ``regret``: four ways to publish a choice at equal (epsilon, delta). A model is tuned on the
  sensitive records of a validation set: 400 configurations, 25 evaluations, then one
  configuration is published. All ways share a public kernel and prior. ``PrivateChoice``: GP-UCB
  on the exact means, then permute-and-flip under the paper's Gaussian-process assumption,
  (epsilon, delta), *conditional*. ``PrivateObjective`` + GP-UCB, and
  + qLogEI: every evaluation is noisy, the choice is post-processing, (epsilon, delta), *proven*.
  A random choice, which is private at any epsilon; and GP-UCB without privacy, as a floor.

Regret is divided by that of a random choice: 1 means that the records taught nothing, 0 is the
best configuration. A mechanism that draws the choice itself is averaged over 20 draws of each
seed. Each seed draws a new function (GP tasks) or a new bootstrap sample of the validation
records, and new noise; intervals are Student's t at 95% over seeds. Noise is simulated with seeds
so that the table repeats.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from botorch.acquisition import qLogExpectedImprovement
from botorch.sampling import SobolQMCNormalSampler
from gpytorch.kernels import MaternKernel
from torch import Tensor
from tqdm import tqdm

from benchmarks.common import (
    BenchmarkParser,
    Interval,
    mean_interval,
    results_folder,
    save_results,
)
from benchmarks.tables import markdown, stored
from botorch_dp.acquisition.ucb import UCBSchedule
from botorch_dp.models import FiniteSetGP, max_information_gain, public_gp
from botorch_dp.objectives import PrivateObjective
from botorch_dp.privacy import gaussian_mu
from botorch_dp.release import (
    LipschitzMaximum,
    NoiseFreeMaximum,
    PrivateChoice,
    PrivateMaximum,
    UtilityWarning,
)
from botorch_dp.release.assumptions import neighbor_gap

SEARCH_STEPS, CHOICES, NOISE_STD, WIDTH = 50, 400, 0.1, 5.0


RECORDS, LEVELS = (1_000, 10_000, 100_000), (1.0, 3.0, 10.0)


def correlation(num_records: int) -> float:
    return 1 - (WIDTH / num_records) ** 2 / 2


def published_choice(
    choice: PrivateChoice, *, edition: str, noise_std: float, coins: float = 0.05
) -> tuple[float, float]:
    """Theorem 2 as printed: what the noise may cost but for that probability, and the search.

    Both bound the posterior mean of the published choice from below: the conference's by the
    largest posterior mean, the workshop's by the largest value of the objective, for which it
    subtracts ``2 sqrt(beta_T) + q`` with ``q = noise_std sqrt(4 log(3 / delta))``.
    """
    tail = choice.scale * (math.log(choice.num_choices) + math.log(1 / coins))
    if edition == "icml2015":
        return tail, 0.0
    q = noise_std * math.sqrt(4 * math.log(3 / choice.delta))
    return tail, 2 * math.sqrt(choice.schedule(choice.steps)) + q


def published_maximum(
    maximum: PrivateMaximum, *, edition: str, coins: float = 0.05
) -> tuple[float, float]:
    """Theorem 4 as printed, in the same two parts; its ``q`` differs between the editions.

    For the noise of the search the conference has ``noise_std sqrt(8 log(1 / delta))``, and the
    workshop ``sqrt(2 log(2 T / delta))``, without ``noise_std``.
    """
    s, delta = maximum.noise_std, maximum.delta
    gap = neighbor_gap(maximum.dataset_correlation, 3 * maximum.num_choices, delta)
    if edition == "icml2015":
        q, search = s * math.sqrt(8 * math.log(3 / delta)), s * math.sqrt(8 * math.log(1 / delta))
    else:
        q = s * math.sqrt(4 * math.log(3 / delta))
        search = math.sqrt(2 * math.log(2 * maximum.steps / delta))
    scale = (maximum.regret + gap + q) / maximum.epsilon
    return scale * math.log(1 / coins), maximum.regret + search


def releases(gain: float, m: int, epsilon: float) -> dict[str, Any]:
    """Every release at one size, by its name."""
    shared = {"epsilon": epsilon, "delta": 1e-5, "num_choices": CHOICES, "steps": SEARCH_STEPS}
    prior = shared | {"dataset_correlation": correlation(m)}
    return {
        "PrivateChoice (Theorem 1)": PrivateChoice(**prior),
        "PrivateMaximum, icml2015 (Theorem 3)": PrivateMaximum(
            **prior, noise_std=NOISE_STD, information_gain=gain
        ),
        "PrivateMaximum, union_bound (ours)": PrivateMaximum(
            **prior, noise_std=NOISE_STD, information_gain=gain, edition="union_bound"
        ),
        "NoiseFreeMaximum, icml2015 (Theorem 5), A = tau = 1": NoiseFreeMaximum(
            **prior, dim=2, amplitude=1.0, rate=1.0
        ),
        "LipschitzMaximum, corrected (Theorem 7), lambda 1 to 1.01": LipschitzMaximum(
            epsilon=epsilon, num_records=m, lipschitz=0.25, lambda_min=1.0, lambda_max=1.01,
            max_loss=1.0, equal_at_zero=True,
        ),
        "LipschitzMaximum, icml2015 (no guarantee), lambda 1 to 1.01": LipschitzMaximum(
            epsilon=epsilon, num_records=m, lipschitz=0.25, lambda_min=1.0, lambda_max=1.01,
            max_loss=1.0, edition="icml2015",
        ),
    }  # fmt: skip


RELEASE_KERNEL = MaternKernel(nu=2.5).double()


RELEASE_KERNEL.lengthscale = 0.3


def draw_noise(rows: list[dict[str, Any]]) -> None:
    """Noise over what values differ by, for each release and epsilon, at 10,000 records."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 4.6), layout="constrained")
    axis = figure.subplots()
    names = list(dict.fromkeys(row["release"] for row in rows if row["status"] != "none"))
    for epsilon, marker in zip(LEVELS, "osD", strict=True):
        shown = [r for r in rows if r["records"] == 10_000 and r["epsilon"] == epsilon]
        ratio = {r["release"]: r["noise, 95%"] / r["values differ by"] for r in shown}
        axis.plot(
            [ratio[n] for n in names], range(len(names)), marker, label=f"epsilon = {epsilon:g}"
        )
    axis.axvline(1, color="0.5", lw=0.8)
    axis.text(1.1, -0.45, "drowned from here on", fontsize=8, color="0.4")
    axis.set_xscale("log")
    axis.set_yticks(range(len(names)), names, fontsize=8)
    axis.invert_yaxis()
    axis.set_xlabel("noise in 95% of all releases, over how much values differ (10,000 records)")
    axis.legend(frameon=False, fontsize=8)
    figure.savefig(results_folder() / "kusner_noise.png", dpi=150)


EPSILONS = (0.1, 0.3, 1.0, 3.0, 10.0)


DELTA = 1e-5


STEPS = 25


SIDE = 20


DRAWS = 20


SEARCH_DELTA = 0.1  # of the confidence bounds that guide GP-UCB; no privacy parameter


GRID = torch.cartesian_prod(*[torch.linspace(0, 1, SIDE, dtype=torch.double)] * 2)


KERNEL = MaternKernel(nu=2.5).double()


KERNEL.lengthscale = 0.3


@dataclass(frozen=True)
class Problem:
    """Per-record scores of all configurations, and what is public about them.

    Args:
        scores: ``N x n``; larger is better.
        bounds: Public bounds of a score.
        center: Public prior mean of a mean score.
        spread: Public prior standard deviation of a mean score.
    """

    scores: Tensor
    bounds: tuple[float, float]
    center: float
    spread: float

    @property
    def num_records(self) -> int:
        return self.scores.shape[1]

    @property
    def means(self) -> Tensor:
        low, high = self.bounds
        return self.scores.clamp(low, high).mean(-1)

    def record_losses(self, X: Tensor) -> Tensor:
        return self.scores[(X.unsqueeze(1) - GRID).abs().sum(-1).argmin(-1)]

    def standardized(self, values: Tensor) -> Tensor:
        """In units of the prior, which are public."""
        return (values - self.center) / self.spread


def index_of(X: Tensor) -> int:
    return int((GRID - X).abs().sum(-1).argmin())


# Ways to choose: (problem, epsilon, seed) -> configurations, to be averaged over
def upper_confidence_search(
    observe: Callable[[int], float], noise_std: float, steps: int = STEPS
) -> FiniteSetGP:
    model = FiniteSetGP(GRID, kernel=KERNEL, noise_std=noise_std)
    schedule = UCBSchedule(len(GRID), delta=SEARCH_DELTA)
    for step in range(1, steps + 1):
        index = int(model.upper_confidence_bound(schedule(step)).argmax())
        model.observe(index, observe(index))
    return model


def without_privacy(problem: Problem, epsilon: float, seed: int) -> list[int]:
    values = problem.standardized(problem.means)
    return [int(upper_confidence_search(lambda i: values[i].item(), NOISE_STD**2).mean.argmax())]


def at_random(problem: Problem, epsilon: float, seed: int) -> list[int]:
    return list(range(len(GRID)))


def by_choice(problem: Problem, epsilon: float, seed: int) -> list[int]:
    values = problem.standardized(problem.means)
    model = upper_confidence_search(lambda i: values[i].item(), NOISE_STD**2)
    # A record moves a mean by at most width/n: the correlation that has this standard deviation.
    move = (problem.bounds[1] - problem.bounds[0]) / (problem.num_records * problem.spread)
    choice = PrivateChoice(
        num_choices=len(GRID),
        epsilon=epsilon,
        delta=DELTA,
        steps=STEPS,
        dataset_correlation=1 - move**2 / 2,
        method="permute_and_flip",
    )
    draw = partial(choice.release, model.mean, GRID)
    return [index_of(draw(unsafe_seed=DRAWS * seed + i).value) for i in range(DRAWS)]


def most_uncertain(num_points: int, noise_std: float) -> Tensor:
    """Points of the grid, each where the prior is widest given those before it; ``m x 2``."""
    gp = FiniteSetGP(GRID, kernel=KERNEL, noise_std=noise_std)
    indices = []
    for _ in range(num_points):
        indices.append(int(gp.variance.argmax()))
        gp.observe(indices[-1], 0.0)
    return GRID[indices]


def private_objective(problem: Problem, epsilon: float, seed: int) -> PrivateObjective:
    return PrivateObjective(
        problem.record_losses,
        bounds=problem.bounds,
        mu=gaussian_mu(epsilon, DELTA) / math.sqrt(STEPS),
        num_records=problem.num_records,
        unsafe_seed=seed,
    )


def by_noisy_ucb(problem: Problem, epsilon: float, seed: int) -> list[int]:
    objective = private_objective(problem, epsilon, seed)

    def observe(index: int) -> float:
        return problem.standardized(objective(GRID[[index]])[0]).item()

    noise_std = objective.noise_std / problem.spread
    return [int(upper_confidence_search(observe, noise_std).mean.argmax())]


def by_noisy_log_ei(problem: Problem, epsilon: float, seed: int) -> list[int]:
    objective = private_objective(problem, epsilon, seed)
    noise_std = objective.noise_std / problem.spread
    sampler = SobolQMCNormalSampler(torch.Size([64]), seed=seed)
    # Nothing is known at first: begin with a fifth of the evaluations spread out.
    X = most_uncertain(STEPS // 5, noise_std)
    Y = problem.standardized(objective(X)[0])
    while True:
        model = public_gp(X, Y, kernel=KERNEL, noise_std=noise_std)
        with torch.no_grad():
            if len(X) == STEPS:
                return [int(model.posterior(GRID).mean.argmax())]
            best = model.posterior(X).mean.max()
            improvement = qLogExpectedImprovement(model, best_f=best, sampler=sampler)
            candidate = GRID[[int(improvement(GRID.unsqueeze(1)).argmax())]]
        X = torch.cat([X, candidate])
        Y = torch.cat([Y, problem.standardized(objective(candidate)[0])])


METHODS: dict[str, Callable[[Problem, float, int], list[int]]] = {
    "PrivateChoice (conditional)": by_choice,
    "PrivateObjective + GP-UCB": by_noisy_ucb,
    "PrivateObjective + qLogEI": by_noisy_log_ei,
    "random choice": at_random,
    "GP-UCB without privacy": without_privacy,
}


# Problems: seed -> Problem
def gp_draw(num_records: int, seed: int) -> Problem:
    """A draw of the public prior; each record adds noise of its own."""
    generator = torch.Generator().manual_seed(seed)
    root = torch.linalg.cholesky(
        KERNEL(GRID).to_dense().detach() + 1e-8 * torch.eye(len(GRID), dtype=torch.double)
    )
    f = root @ torch.randn(len(GRID), 1, generator=generator, dtype=torch.double)
    noise = torch.randn(len(GRID), num_records, generator=generator, dtype=torch.double)
    return Problem(f + 0.5 * noise, bounds=(-3.0, 3.0), center=0.0, spread=1.0)


def correctness(data: str, model: str) -> Tensor:
    """``N x n`` table: whether each configuration classifies each validation record rightly."""
    from sklearn import datasets
    from sklearn.decomposition import PCA
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import train_test_split
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler
    from sklearn.svm import SVC

    load = {"breast cancer": datasets.load_breast_cancer, "digits": datasets.load_digits}[data]
    train_X, test_X, train_Y, test_Y = train_test_split(
        *load(return_X_y=True), test_size=0.5, random_state=0
    )
    dim = train_X.shape[1]
    rows = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of convergence: a bad configuration is one, too
        for first, second in tqdm(GRID.tolist(), desc=f"{model}, {data}"):
            if model == "SVM":  # C from 1e-3 to 1e3, gamma from 1e-5 to 10
                steps = [SVC(C=10 ** (6 * first - 3), gamma=10 ** (6 * second - 5))]
            else:  # C from 1e-5 to 1e3, kept components from 1 to all but one
                kept = min(max(1, round(dim**second)), dim - 1)
                steps = [
                    PCA(kept, random_state=0),
                    LogisticRegression(C=10 ** (8 * first - 5), max_iter=60),
                ]
            fitted = make_pipeline(StandardScaler(), *steps).fit(train_X, train_Y)
            rows.append(torch.from_numpy(fitted.predict(test_X) == test_Y))
    return torch.stack(rows).double()


def resampled(table: Tensor, center: float, seed: int) -> Problem:
    """A bootstrap sample of the validation records."""
    records = np.random.default_rng(seed).integers(table.shape[1], size=table.shape[1])
    return Problem(table[:, records], bounds=(0.0, 1.0), center=center, spread=0.2)


def problems() -> dict[str, Callable[[int], Problem]]:
    """The priors' centers and spreads are guesses about accuracy in general, not fits."""
    made: dict[str, Callable[[int], Problem]] = {
        "GP draw, n = 1000": partial(gp_draw, 1000),
        "GP draw, n = 10000": partial(gp_draw, 10_000),
    }
    for data in ("breast cancer", "digits"):
        for model in ("logistic regression", "SVM"):
            table = correctness(data, model)
            name = f"{model}, {data}, n = {table.shape[1]}"
            made[name] = partial(resampled, table, 0.75)
    return made


def regrets(seeds: int) -> dict[str, dict[str, dict[str, Interval]]]:
    """Relative regret by problem, method and epsilon."""
    results: dict[str, dict[str, dict[str, Interval]]] = {}
    for name, make in problems().items():
        regrets: dict[tuple[str, float], list[float]] = {}
        for seed in tqdm(range(seeds), desc=name):
            problem = make(seed)
            means = problem.means
            blind = (means.max() - means.mean()).item()
            for method, choose in METHODS.items():
                for number, epsilon in enumerate(EPSILONS):
                    indices = choose(problem, epsilon, 1000 * number + seed)
                    regret = (means.max() - means[indices].mean()).item() / blind
                    regrets.setdefault((method, epsilon), []).append(regret)
        results[name] = {
            method: {f"{e:g}": mean_interval(regrets[method, e]) for e in EPSILONS}
            for method in METHODS
        }
    return results


def show_regrets(results: dict[str, dict[str, dict[str, Interval]]]) -> None:
    for name, rows in results.items():
        print(f"\n{name}: regret in units of a random choice's, by epsilon")
        print(f"{'':32}" + "".join(f"{e:>22g}" for e in EPSILONS))
        for method, row in rows.items():
            cells = (f"{i.mean:.2f} [{i.low:.2f}, {i.high:.2f}]" for i in row.values())
            print(f"{method:32}" + "".join(f"{cell:>22}" for cell in cells))


def draw_regret(results: dict[str, dict[str, dict[str, Interval]]], seeds: int) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(2, 3, figsize=(13, 8), sharex=True, sharey=True)
    for axis, (name, rows) in zip(axes.flat, results.items(), strict=True):
        for method, row in rows.items():
            dashed = method in ("random choice", "GP-UCB without privacy")
            (line,) = axis.plot(
                EPSILONS,
                [i.mean for i in row.values()],
                "--" if dashed else "o-",
                label=method,
                linewidth=1 if dashed else 1.8,
            )
            axis.fill_between(
                EPSILONS,
                [i.low for i in row.values()],
                [i.high for i in row.values()],
                color=line.get_color(),
                alpha=0.12,
            )
        axis.set_xscale("log")
        axis.set_title(name, fontsize=10)
        axis.set_yscale("symlog", linthresh=0.01)
        axis.set_yticks([0, 0.01, 0.03, 0.1, 0.3, 1], ["0", ".01", ".03", ".1", ".3", "1"])
        axis.set_ylim(0, 1.5)
        axis.grid(alpha=0.3)
    for axis in axes[1]:
        axis.set_xlabel("epsilon of the published choice")
    for axis in axes[:, 0]:
        axis.set_ylabel("regret / regret of a random choice")
    handles, labels = axes.flat[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="upper center", ncol=3, fontsize=9)
    figure.text(
        0.5,
        0.005,
        f"Replace-one, one validation record. delta = {DELTA:g}. "
        "PrivateChoice is conditional on a Gaussian-process\nassumption, the others are proven. "
        f"Mean over {seeds} seeds with 95% intervals; {STEPS} evaluations, {len(GRID)} "
        "configurations; the axis is linear below .01. Simulated noise: the figure is not private.",
        ha="center",
        fontsize=8.5,
    )
    figure.tight_layout(rect=(0, 0.05, 1, 0.92))
    figure.savefig(results_folder() / "which_release.png", dpi=90)


def noise() -> None:
    """Stored as ``kusner_noise.json`` and ``kusner_noise.png``."""
    side = torch.linspace(0, 1, math.isqrt(CHOICES), dtype=torch.double)
    grid = torch.cartesian_prod(side, side)
    gain = max_information_gain(
        RELEASE_KERNEL, grid, num_observations=SEARCH_STEPS, noise_std=NOISE_STD
    )
    rows = []
    for m in RECORDS:
        for epsilon in LEVELS:
            for name, release in releases(gain, m, epsilon).items():
                bound = release.utility()
                printed = (bound.noise, bound.model)
                if isinstance(release, PrivateChoice):
                    printed = published_choice(release, edition="icml2015", noise_std=NOISE_STD)
                elif isinstance(release, PrivateMaximum):
                    printed = published_maximum(release, edition="icml2015")
                rows.append(
                    {
                        "release": name,
                        "records": m,
                        "epsilon": epsilon,
                        "sensitivity": release.sensitivity,
                        "scale": release.scale,
                        "noise, 95%": bound.noise,
                        "noise, 95%, published": printed[0],
                        "search": bound.model,
                        "search, published": printed[1],
                        "values differ by": bound.spread,
                        "drowned": bound.drowned,
                        "status": release.guarantee.status,
                    }
                )
            # One evaluation by PrivateObjective, of as many as the search above makes.
            mu = gaussian_mu(epsilon, 1e-5) / math.sqrt(SEARCH_STEPS)
            std = WIDTH / (m * mu)
            rows.append(
                {
                    "release": "PrivateObjective (ours, no prior), "
                    f"one of {SEARCH_STEPS} evaluations",
                    "records": m, "epsilon": epsilon, "sensitivity": WIDTH / m, "scale": std,
                    "noise, 95%": 1.96 * std, "noise, 95%, published": None, "search": 0.0,
                    "search, published": None, "values differ by": 1.0,
                    "drowned": 1.96 * std >= 1.0, "status": "proven",
                }
            )  # fmt: skip
    for m in RECORDS:
        print(f"\n{m} records: noise in 95% of all releases, by epsilon ({LEVELS}); * is drowned")
        names = dict.fromkeys(row["release"] for row in rows)
        for name in names:
            cells = [r for r in rows if r["release"] == name and r["records"] == m]
            shown = "".join(f"{r['noise, 95%']:11.3g}{'*' if r['drowned'] else ' '}" for r in cells)
            print(f"  {name:62s}{shown}  {cells[0]['status']}")
    save_results("kusner_noise", {"information gain": gain, "rows": rows})
    draw_noise(rows)


def regret(seeds: int) -> None:
    """Stored as ``which_release.json`` and ``which_release.png``."""
    start = time.perf_counter()
    results = regrets(seeds)
    show_regrets(results)
    save_results(
        "which_release",
        {
            "what": "regret of a published choice, in units of a random choice's regret",
            "seeds": seeds,
            "steps": STEPS,
            "delta": DELTA,
            "seconds": time.perf_counter() - start,
            "regret": results,
        },
    )
    draw_regret(results, seeds)


def table_kusner() -> str:
    found = stored("kusner_noise")
    chosen = [row for row in found["rows"] if row["records"] == 10_000]
    rows = []
    for name in dict.fromkeys(row["release"] for row in chosen):
        mine = [row for row in chosen if row["release"] == name]
        cells = [f"{r['noise, 95%']:.3g}{' **drowned**' if r['drowned'] else ''}" for r in mine]
        rows.append([name, *cells, mine[0]["status"]])
    return markdown(["release", "ε = 1", "ε = 3", "ε = 10", "status"], rows)


def table_kusner_regret() -> str:
    """The lowest and the highest mean over tasks of each release."""
    found = stored("which_release")
    rows = []
    for name in next(iter(found["regret"].values())):
        cells = []
        for epsilon in ("1", "10"):
            means = [by[name][epsilon]["mean"] for by in found["regret"].values()]
            cells.append(f"{min(means):.3f} to {max(means):.3f}")
        rows.append([name, *cells])
    return markdown(["release", "ε = 1", "ε = 10"], rows)


def main() -> None:
    parser = BenchmarkParser("kusner", __doc__, minutes={"noise": 0.2, "regret": 60})
    parser.add_argument("--seeds", type=int, default=20, help="of ``regret``")
    options = parser.parse_args()
    warnings.simplefilter("ignore", UtilityWarning)
    torch.set_num_threads(1)
    if "noise" in options.part:
        noise()
    if "regret" in options.part:
        regret(options.seeds)


if __name__ == "__main__":
    main()
