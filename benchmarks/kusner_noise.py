"""The exact noise of every release of Kusner et al. [Kusner2015] at common sizes: drowned or not.

    python -m benchmarks.kusner_noise

The paper has theorems and no experiments. Each row is one release at one size, in units of the
prior's standard deviation (or of the score, for the Lipschitz maximum): its sensitivity, the scale
of its noise, what the noise stays within in 95% of all releases, by how much values differ before
anything is known, and whether the noise drowns that. Utility bounds stand beside the published
ones. Below them are the releases of ours for the same job that rest on no prior.

A score is a mean of m scores in a range of 5 prior standard deviations, so neighbours are
correlated by ``1 - (5 / m)^2 / 2``.
"""

from __future__ import annotations

import math
import warnings
from typing import Any

import torch
from gpytorch.kernels import MaternKernel

from benchmarks.common import BenchmarkParser, results_folder, save_results
from botorch_dp.models import max_information_gain
from botorch_dp.privacy import gaussian_mu
from botorch_dp.release import (
    LinearChoice,
    LipschitzMaximum,
    MaxVarianceDesign,
    NoiseFreeMaximum,
    PrivateChoice,
    PrivateMaximum,
    UtilityWarning,
)

STEPS, CHOICES, NOISE_STD, WIDTH = 50, 400, 0.1, 5.0
RECORDS, EPSILONS = (1_000, 10_000, 100_000), (1.0, 3.0, 10.0)


def correlation(num_records: int) -> float:
    return 1 - (WIDTH / num_records) ** 2 / 2


def releases(gain: float, design: MaxVarianceDesign, m: int, epsilon: float) -> dict[str, Any]:
    """Every release at one size, by its name."""
    shared = {"epsilon": epsilon, "delta": 1e-5, "num_choices": CHOICES, "steps": STEPS}
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
        "NoiseFreeMaximum, workshop2014, A = tau = 1": NoiseFreeMaximum(
            **prior, dim=2, amplitude=1.0, rate=1.0, edition="workshop2014"
        ),
        "LipschitzMaximum, corrected (Theorem 7), lambda 1 to 1.01": LipschitzMaximum(
            epsilon=epsilon, num_records=m, lipschitz=0.25, lambda_min=1.0, lambda_max=1.01,
            max_loss=1.0, equal_at_zero=True,
        ),
        "LipschitzMaximum, icml2015 (no guarantee), lambda 1 to 1.01": LipschitzMaximum(
            epsilon=epsilon, num_records=m, lipschitz=0.25, lambda_min=1.0, lambda_max=1.01,
            max_loss=1.0, edition="icml2015",
        ),
        "LinearChoice (ours, no prior)": LinearChoice(
            design.choices, design=design, kernel=KERNEL, noise_variance=NOISE_STD,
            bounds=(-WIDTH / 2, WIDTH / 2), epsilon=epsilon, num_records=m,
        ),
    }  # fmt: skip


KERNEL = MaternKernel(nu=2.5).double()
KERNEL.lengthscale = 0.3


def main() -> None:
    BenchmarkParser("kusner_noise", __doc__, minutes=0.2).parse_args()
    warnings.simplefilter("ignore", UtilityWarning)
    side = torch.linspace(0, 1, math.isqrt(CHOICES), dtype=torch.double)
    grid = torch.cartesian_prod(side, side)
    gain = max_information_gain(KERNEL, grid, num_observations=STEPS, noise_variance=NOISE_STD**2)
    design = MaxVarianceDesign(grid, num_points=STEPS, kernel=KERNEL, noise_variance=NOISE_STD)
    rows = []
    for m in RECORDS:
        for epsilon in EPSILONS:
            for name, release in releases(gain, design, m, epsilon).items():
                bound = release.utility()
                published = getattr(release, "published_utility", release.utility)()
                rows.append(
                    {
                        "release": name,
                        "records": m,
                        "epsilon": epsilon,
                        "sensitivity": release.sensitivity,
                        "scale": release.scale,
                        "noise, 95%": bound.noise,
                        "noise, 95%, published": published.noise,
                        "search": bound.model,
                        "search, published": published.model,
                        "values differ by": bound.spread,
                        "drowned": bound.drowned,
                        "status": release.guarantee.status,
                    }
                )
            # One evaluation by PrivateObjective, of as many as the search above makes.
            mu = gaussian_mu(epsilon, 1e-5) / math.sqrt(STEPS)
            std = WIDTH / (m * mu)
            rows.append(
                {
                    "release": f"PrivateObjective (ours, no prior), one of {STEPS} evaluations",
                    "records": m, "epsilon": epsilon, "sensitivity": WIDTH / m, "scale": std,
                    "noise, 95%": 1.96 * std, "noise, 95%, published": None, "search": 0.0,
                    "search, published": None, "values differ by": 1.0,
                    "drowned": 1.96 * std >= 1.0, "status": "proven",
                }
            )  # fmt: skip
    for m in RECORDS:
        print(f"\n{m} records: noise in 95% of all releases, by epsilon ({EPSILONS}); * is drowned")
        names = dict.fromkeys(row["release"] for row in rows)
        for name in names:
            cells = [r for r in rows if r["release"] == name and r["records"] == m]
            shown = "".join(f"{r['noise, 95%']:11.3g}{'*' if r['drowned'] else ' '}" for r in cells)
            print(f"  {name:62s}{shown}  {cells[0]['status']}")
    save_results("kusner_noise", {"information gain": gain, "rows": rows})
    draw(rows)


def draw(rows: list[dict[str, Any]]) -> None:
    """Noise over what values differ by, for each release and epsilon, at 10,000 records."""
    from matplotlib.figure import Figure

    from botorch_dp.plots import save_figure

    figure = Figure(figsize=(9, 4.6), layout="constrained")
    axis = figure.subplots()
    names = list(dict.fromkeys(row["release"] for row in rows if row["status"] != "none"))
    for epsilon, marker in zip(EPSILONS, "osD", strict=True):
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
    save_figure(figure, results_folder() / "kusner_noise.png")


if __name__ == "__main__":
    main()
