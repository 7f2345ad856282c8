"""Where does DP-GIBO win? Against PrivateObjective + TuRBO at equal mu and equal evaluations.

    OMP_NUM_THREADS=1 python -m benchmarks.dp_gibo_where [--seeds 3]

Both methods get the same losses, the same total mu, and 15 batches of d + 1 evaluations. DP-GIBO
spends mu / sqrt(T) on each gradient, PrivateObjective mu / sqrt(evaluations) on each mean; TuRBO
[Eriksson2019] then searches with a GP that knows the noise. Only n mu matters. PrivateObjective's
bounds are the losses' own, 0 and 1; DP-GIBO clips at the median gradient length of public records
of the same kind, which is part of its advantage.

Records have their own optima, spread around a common one; losses lie in [0, 1]:

- smooth: ``1 - exp(-s)`` with ``s = |x - c_i|^2 / (2 w^2 d)``, w = .25;
- rippled: the same plus a cosine in every coordinate, period .1, height .1;
- plateau: ``min(s, 1)`` with w = .12: exactly flat except near the optimum.

Reported is the gap of the true mean loss to its minimum, at the average of the last half of the
iterates (DP-GIBO) or the evaluated point with the best posterior mean (TuRBO).
"""

from __future__ import annotations

import math
import statistics
import warnings
from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
from botorch.exceptions import ModelFittingError
from botorch.fit import fit_gpytorch_mll
from botorch.models import SingleTaskGP
from gpytorch.kernels import MaternKernel
from gpytorch.mlls import ExactMarginalLogLikelihood
from torch import Tensor
from torch.quasirandom import SobolEngine
from tqdm import tqdm

from benchmarks.common import BenchmarkParser, results_folder, save_results
from benchmarks.tables import markdown, stored
from botorch_dp.descent import DPGIBO, Design, public_clip_norm
from botorch_dp.objectives import PrivateObjective

Shape = Literal["smooth", "rippled", "plateau"]
SHAPES: tuple[Shape, ...] = ("smooth", "rippled", "plateau")
NUM_RECORDS, BATCHES = 500, 15
LEVELS = (10.0, 100.0, 1000.0, 10_000.0)
Losses = Callable[[Tensor], Tensor]


def problem(shape: Shape, d: int, seed: int) -> tuple[Losses, Losses, Tensor]:
    """Losses of the private records and of public ones of the same kind, and the optimum."""
    generator = torch.Generator().manual_seed(1000 * d + seed)
    centre = 0.1 + 0.8 * torch.rand(d, dtype=torch.double, generator=generator)

    def draw(count: int) -> Losses:
        optima = centre + 0.05 * torch.randn(count, d, dtype=torch.double, generator=generator)
        width = 0.12 if shape == "plateau" else 0.25

        def losses(X: Tensor) -> Tensor:
            distances = torch.cdist(X, optima).square() / (2 * width**2 * d)
            if shape == "plateau":
                return distances.clamp_max(1.0)
            values = 1 - torch.exp(-distances)
            if shape == "rippled":
                ripples = torch.cos(2 * math.pi * (X - centre) / 0.1).mean(-1, keepdim=True)
                values = 0.9 * values + 0.05 * (1 - ripples)
            return values

        return losses

    return draw(NUM_RECORDS), draw(100), centre


def unit_box(d: int) -> Tensor:
    return torch.stack((torch.zeros(d), torch.ones(d))).double()


def descend(losses: Losses, public: Losses, d: int, *, mu: float, steps: int, seed: int) -> Tensor:
    """The average of the last half of the iterates, from the middle of the box."""
    kernel = MaternKernel(nu=2.5).double()
    kernel.lengthscale = 0.4
    start = torch.full((d,), 0.5, dtype=torch.double)
    clip_norm = public_clip_norm(
        public, start, kernel=kernel, design=Design(radius=0.3), box=unit_box(d)
    )
    result = DPGIBO(
        losses,
        start,
        kernel=kernel,
        mu=mu,
        steps=steps,
        clip_norm=max(clip_norm, 1e-3),
        box=unit_box(d),
        design=Design(radius=(1.5, 0.15)),
        step_size=lambda parameters: torch.optim.Adagrad(parameters, lr=0.1),
        unsafe_seed=seed,
    ).run()
    return result.average.value


def turbo(losses: Losses, d: int, *, mu: float, batches: int, batch: int, seed: int) -> Tensor:
    """TuRBO-1 with Thompson sampling on noisy private means; the best posterior mean."""
    torch.manual_seed(seed)
    evaluations = batches * batch
    objective = PrivateObjective(
        losses, bounds=(0.0, 1.0), mu=mu / math.sqrt(evaluations), negate=True, unsafe_seed=seed
    )
    X = SobolEngine(d, scramble=True, seed=seed).draw(batch, dtype=torch.double)
    X[0] = 0.5  # where the descent starts
    Y, Yvar = objective(X)
    length, successes, failures = 0.8, 0, 0
    for _ in range(batches - 1):
        model = fitted_gp(X, Y, Yvar)
        with torch.no_grad():
            means = model.posterior(X).mean.squeeze(-1)
        centre = X[means.argmax()]
        candidates = _trust_region(centre, length, model, d, seed + len(X))
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            samples = model.posterior(candidates).sample(torch.Size([batch])).squeeze(-1)
        chosen = candidates[samples.argmax(-1)]
        new_Y, new_Yvar = objective(chosen)
        best = float(means.max())
        improved = float(new_Y.max()) > best + 1e-3 * abs(best)
        successes, failures = (successes + 1, 0) if improved else (0, failures + 1)
        if successes == 3:
            length, successes = min(2 * length, 1.6), 0
        elif failures == 2:
            length, failures = max(length / 2, 0.01), 0
        X, Y, Yvar = torch.cat((X, chosen)), torch.cat((Y, new_Y)), torch.cat((Yvar, new_Yvar))
    model = fitted_gp(X, Y, Yvar)
    with torch.no_grad():
        return X[model.posterior(X).mean.argmax()]


def fitted_gp(X: Tensor, Y: Tensor, Yvar: Tensor) -> SingleTaskGP:
    """A GP of the newest points that knows the noise, with fitted length-scales."""
    newest = slice(-400, None)
    model = SingleTaskGP(X[newest], Y[newest], Yvar[newest])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            fit_gpytorch_mll(
                ExactMarginalLogLikelihood(model.likelihood, model),
                optimizer_kwargs={"options": {"maxiter": 30}},
            )
        except ModelFittingError:
            model = SingleTaskGP(X[newest], Y[newest], Yvar[newest])  # keep the prior's values
    return model.eval()


def _trust_region(centre: Tensor, length: float, model: SingleTaskGP, d: int, seed: int) -> Tensor:
    lengthscale = model.covar_module.lengthscale.detach().squeeze(0)
    weights = lengthscale / lengthscale.log().mean().exp()
    lower = (centre - weights * length / 2).clamp(0, 1)
    upper = (centre + weights * length / 2).clamp(0, 1)
    draws = SobolEngine(d, scramble=True, seed=seed).draw(500, dtype=torch.double)
    moved = torch.rand(500, d) <= min(20 / d, 1.0)
    moved[torch.arange(500), torch.randint(d, (500,))] = True
    return torch.where(moved, lower + (upper - lower) * draws, centre)


def gap(losses: Losses, point: Tensor, centre: Tensor) -> float:
    """Mean loss above (nearly) its minimum; the ripples' minimum is at the centre too."""
    both = losses(torch.stack((point, centre))).mean(-1)
    return float(both[0] - both[1])


def comparison(
    dims: Sequence[int], levels: Sequence[float], seeds: int, batches: int
) -> list[dict[str, Any]]:
    rows = []
    cases = [(s, d, level) for s in SHAPES for d in dims for level in levels]
    for shape, d, level in tqdm(cases, desc="comparison"):
        gaps: dict[str, list[float]] = {"DP-GIBO": [], "TuRBO": []}
        mu = level / NUM_RECORDS
        for seed in range(seeds):
            losses, public, centre = problem(shape, d, seed)
            point = descend(losses, public, d, mu=mu, steps=batches, seed=seed)
            gaps["DP-GIBO"].append(gap(losses, point, centre))
            found = turbo(losses, d, mu=mu, batches=batches, batch=d + 1, seed=seed)
            gaps["TuRBO"].append(gap(losses, found, centre))
        start = [
            gap(p[0], torch.full((d,), 0.5).double(), p[2])
            for p in (problem(shape, d, seed) for seed in range(seeds))
        ]
        row = {"shape": shape, "d": d, "n mu": level, "start": statistics.median(start)}
        row |= {name: statistics.median(values) for name, values in gaps.items()}
        row |= {f"all {name}": values for name, values in gaps.items()}
        rows.append(row)
        shown = ", ".join(f"{name} {row[name]:.3f}" for name in ("start", *gaps))
        tqdm.write(f"{shape}, d = {d}, n mu = {level:g}: median gap {shown}")
    return rows


def _figure(rows: list[dict[str, Any]], levels: Sequence[float], batches: int) -> None:
    from matplotlib import colormaps
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 4.8), layout="constrained")
    axes = figure.subplots(1, len(SHAPES), sharey=True)
    dims = sorted({row["d"] for row in rows})
    shades = colormaps["viridis"](torch.linspace(0, 0.85, len(dims)))
    for ax, shape in zip(axes, SHAPES, strict=True):
        for d, shade in zip(dims, shades, strict=True):
            mine = [row for row in rows if row["shape"] == shape and row["d"] == d]
            for method, style in (("DP-GIBO", "o-"), ("TuRBO", "s--")):
                values = [max(row[method], 1e-4) for row in mine]
                # Beside each other: on the plateau, four curves have the same height.
                shift = 1.07 ** (2 * dims.index(d) + (method == "TuRBO") - len(dims) + 0.5)
                places = [level * shift for level in levels]
                ax.plot(places, values, style, color=shade, ms=5, label=f"{method}, d = {d}")
        ax.set_xscale("log")
        ax.set_yscale("log")
        ax.set_title(shape)
        ax.set_xlabel("number of records × μ")
    axes[0].set_ylabel("gap of the true mean loss (median, at least 1e-4)")
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, fontsize=9, ncol=4, loc="outside lower center")
    figure.suptitle(
        "DP-GIBO against PrivateObjective + TuRBO at equal μ (a record is replaced)\n"
        f"and equal evaluations ({batches} batches of d + 1); simulated noise",
        fontsize=10,
    )
    figure.savefig(results_folder() / "dp_gibo_where.png", dpi=110)


def table_descent() -> str:
    """In how many of the four numbers of parameters DP-GIBO ends closer to the optimum."""
    found, rows = stored("dp_gibo_where")["comparison"], []
    for shape in SHAPES:
        cells = []
        for level in LEVELS:
            mine = [row for row in found if (row["shape"], row["n mu"]) == (shape, level)]
            closer = sum(round(row["DP-GIBO"], 4) < round(row["TuRBO"], 4) for row in mine)
            cells.append(f"{closer} of {len(mine)}")
        rows.append([shape, *cells])
    return markdown(["losses", *(f"nμ = {level:,.0f}" for level in LEVELS)], rows)


def main() -> None:
    parser = BenchmarkParser("dp_gibo_where", __doc__, minutes=40)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--dims", type=int, nargs="+", default=[2, 5, 20, 50], help="of the space")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rows = comparison(arguments.dims, LEVELS, arguments.seeds, BATCHES)
    _figure(rows, LEVELS, BATCHES)
    sizes = {"seeds": arguments.seeds, "batches": BATCHES}
    save_results("dp_gibo_where", {"sizes": sizes, "comparison": rows})


if __name__ == "__main__":
    main()
