"""How much noise do the releases of Kusner et al. [Kusner2015] need, at common sizes?

    python -m benchmarks.kusner

The paper has theorems and no experiments. Each row is one release at one size, in units of the
prior's standard deviation (or of the score, for the Lipschitz maximum): its sensitivity, the scale
of its noise, what the noise stays within in 95% of all releases, by how much values differ before
anything is known, and whether the noise drowns that. Below them is the release of ours for the same
job that rests on no prior. A score is a mean of m scores in a range of 5 prior standard deviations,
so neighbours are correlated by ``1 - (5 / m)^2 / 2``.
"""

from __future__ import annotations

import math
import warnings
from typing import Any

import torch
from gpytorch.kernels import MaternKernel

from benchmarks.common import BenchmarkParser, save_results
from benchmarks.tables import markdown, stored
from botorch_dp.models import max_information_gain
from botorch_dp.privacy import gaussian_mu
from botorch_dp.release import (
    LipschitzMaximum,
    NoiseFreeMaximum,
    PrivateChoice,
    PrivateMaximum,
    UtilityWarning,
)

SEARCH_STEPS, CHOICES, NOISE_STD, WIDTH = 50, 400, 0.1, 5.0


#: Neighbours differ in one of so many records.
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


def noise() -> None:
    """Stored as ``kusner_noise.json``."""
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
                rows.append(
                    {
                        "release": name,
                        "records": m,
                        "epsilon": epsilon,
                        "sensitivity": release.sensitivity,
                        "scale": release.scale,
                        "noise, 95%": bound.noise,
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
                    "noise, 95%": 1.96 * std, "values differ by": 1.0,
                    "drowned": 1.96 * std >= 1.0, "status": "proven",
                }
            )  # fmt: skip
    save_results("kusner_noise", {"information gain": gain, "rows": rows})
    for row in rows:
        print(*(row[key] for key in ("records", "epsilon", "release", "noise, 95%", "drowned")))


def table_kusner() -> str:
    found = stored("kusner_noise")
    chosen = [row for row in found["rows"] if row["records"] == 10_000]
    rows = []
    for name in dict.fromkeys(row["release"] for row in chosen):
        mine = [row for row in chosen if row["release"] == name]
        cells = [f"{r['noise, 95%']:.3g}{' **drowned**' if r['drowned'] else ''}" for r in mine]
        rows.append([name, *cells, mine[0]["status"]])
    return markdown(["release", "ε = 1", "ε = 3", "ε = 10", "status"], rows)


def main() -> None:
    BenchmarkParser("kusner", __doc__, minutes=0.2).parse_args()
    warnings.simplefilter("ignore", UtilityWarning)
    torch.set_num_threads(1)
    noise()


if __name__ == "__main__":
    main()
