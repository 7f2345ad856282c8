"""Try to break every mechanism, and its deliberately broken twins, with a million draws each.

Run by ``make audit``; options: ``--samples``, ``--only``. Exits with status 1 if an honest
mechanism is refuted or a broken twin is not. An honest mechanism is refuted with probability at
most 1e-6.

A broken twin is the mechanism with one realistic mistake. Twins whose mistake is the amount of
noise round their outputs to multiples of 2^-20, so that nothing but the amount can betray them.
"""

from __future__ import annotations

import argparse
import itertools
import math
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from benchmarks.common import save_results
from botorch_dp.privacy import (
    Guarantee,
    audit_epsilon,
    exponential_guarantee,
    exponential_mechanism,
    gaussian_guarantee,
    gaussian_mechanism,
    laplace_guarantee,
    laplace_mechanism,
    sparse_vector_guarantee,
)
from botorch_dp.privacy.above_threshold import SparseVectorPlan, noisy_comparisons
from botorch_dp.privacy.audit import AuditReport
from botorch_dp.privacy.sampling import noise_source

CONFIDENCE = 1 - 1e-6

#: ``mechanism(data, size)``: that many independent outputs.
Batched = Callable[[Any, int], Any]


@dataclass(frozen=True)
class Case:
    """A mechanism, its broken twins, and a neighbouring pair that is bad for all of them.

    Args:
        name: The mechanism.
        honest: Its batched form.
        twins: Broken forms, each under the mistake it makes.
        data: One data set, or rather the statistic the mechanism sees.
        neighbor: The other.
        claim: What all of them claim.
        delta: Where epsilon is compared.
        projection: See :func:`audit_epsilon`.
    """

    name: str
    honest: Batched
    twins: dict[str, Batched]
    data: Any
    neighbor: Any
    claim: Guarantee
    delta: float = 0.0
    projection: Callable[[Any], Any] | None = None

    def audit(self, mechanism: Batched, samples: int) -> AuditReport:
        return audit_epsilon(
            mechanism,
            self.data,
            self.neighbor,
            samples=samples,
            delta=self.delta,
            confidence=CONFIDENCE,
            claim=self.claim,
            projection=self.projection,
            batched=True,
        )


_seeds = itertools.count(1)


def _repeat(vector: list[float], size: int) -> torch.Tensor:
    return torch.tensor(vector, dtype=torch.float64).expand(size, -1)


def _laplace(sensitivity: float = 1.0, *, exact: bool = True) -> Batched:
    """Independent noise in each coordinate makes one call a batch of independent releases."""

    def mechanism(data: list[float], size: int) -> torch.Tensor:
        seed = None if exact else next(_seeds)
        noisy = laplace_mechanism(
            _repeat(data, size), sensitivity=sensitivity, epsilon=1.0, unsafe_seed=seed
        ).value
        return noisy if exact else _coarse(noisy)

    return mechanism


def _gaussian(sensitivity: float = 1.0, *, exact: bool = True) -> Batched:
    def mechanism(data: list[float], size: int) -> torch.Tensor:
        seed = None if exact else next(_seeds)
        noisy = gaussian_mechanism(
            _repeat(data, size), sensitivity=sensitivity, mu=1.0, unsafe_seed=seed
        ).value
        return noisy if exact else _coarse(noisy)

    return mechanism


def _coarse(values: torch.Tensor) -> torch.Tensor:
    return torch.round(values * 2.0**20) / 2.0**20


def _select(method: str, sensitivity: float = 1.0, *, exact: bool = True) -> Batched:
    def mechanism(data: list[float], size: int) -> np.ndarray:
        # The scale of one public call; its sampler, many times over.
        scale = exponential_mechanism(
            torch.tensor(data), sensitivity=sensitivity, epsilon=1.0, method=method
        ).scale
        source = noise_source(None if exact else next(_seeds))
        return source.select(np.array(data), scale, method, size)

    return mechanism


SVT_NOISE = 6.0


def _sparse_vector(*, exact: bool = True, query_noise: bool = True, stops: bool = True) -> Batched:
    """Runs as rows: 0 and 1 are answers, 2 what comes after the stop."""

    def mechanism(data: list[float], size: int) -> np.ndarray:
        source = noise_source(None if exact else next(_seeds))
        plan = SparseVectorPlan.make(SVT_NOISE, 1, 1.0)
        if query_noise:
            runs = noisy_comparisons(np.array(data), 0.5, plan, source, size)
        else:
            noise = source.integer_laplace((size, 1), plan.threshold_scale) * plan.step
            runs = np.array(data) >= 0.5 + noise
        earlier = np.cumsum(runs, axis=1) - runs
        return np.where(earlier >= plan.max_positives, 2, runs) if stops else runs

    return mechanism


def _torch_gaussian(data: list[float], size: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(next(_seeds))
    return _repeat(data, size) + torch.randn(size, 1, dtype=torch.float64, generator=generator)


def _numpy_laplace(data: list[float], size: int) -> np.ndarray:
    generator = np.random.default_rng(next(_seeds))
    return data[0] + generator.laplace(size=size)


def _pattern(runs: np.ndarray) -> np.ndarray:
    """One integer for each run."""
    return runs @ 3 ** np.arange(runs.shape[1])


#: The delta at which Gaussian mechanisms are compared: large enough for events with many hits.
DELTA = 0.05

CASES = [
    Case(
        "Laplace",
        _laplace(),
        {"half the noise": _laplace(0.5, exact=False), "numpy's noise": _numpy_laplace},
        data=[0.0],
        neighbor=[1.0],
        claim=laplace_guarantee(sensitivity=1.0, epsilon=1.0),
    ),
    Case(
        "Laplace, 3 values",
        _laplace(),
        {"sensitivity of one value": _laplace(0.5, exact=False)},
        data=[0.0, 0.0, 0.0],
        neighbor=[0.5, 0.25, -0.25],
        claim=laplace_guarantee(sensitivity=1.0, epsilon=1.0, num_values=3),
        projection=lambda values: (
            (values - torch.tensor([0.5, 0.25, -0.25])).abs() - values.abs()
        ).sum(-1),
    ),
    Case(
        "Gaussian",
        _gaussian(),
        {"half the noise": _gaussian(0.5, exact=False), "torch.randn": _torch_gaussian},
        data=[0.0],
        neighbor=[1.0],
        claim=gaussian_guarantee(sensitivity=1.0, mu=1.0),
        delta=DELTA,
    ),
    Case(
        "Gaussian, 2 values",
        _gaussian(),
        {"sensitivity of one value": _gaussian(math.sqrt(0.5), exact=False)},
        data=[0.0, 0.0],
        neighbor=[math.sqrt(0.5), math.sqrt(0.5)],
        claim=gaussian_guarantee(sensitivity=1.0, mu=1.0),
        delta=DELTA,
        projection=lambda values: values.sum(-1),
    ),
    Case(
        "Exponential",
        _select("exponential"),
        {"missing factor 2": _select("exponential", 0.5, exact=False)},
        data=[0.0, 5.0],
        neighbor=[1.0, 4.0],
        claim=exponential_guarantee(sensitivity=1.0, epsilon=1.0),
    ),
    Case(
        "Permute-and-flip",
        _select("permute_and_flip"),
        {"missing factor 2": _select("permute_and_flip", 0.5, exact=False)},
        data=[0.0, 4.0],
        neighbor=[1.0, 3.0],
        claim=exponential_guarantee(sensitivity=1.0, epsilon=1.0, method="permute_and_flip"),
    ),
    Case(
        "Sparse vector",
        _sparse_vector(),
        {
            "no query noise": _sparse_vector(exact=False, query_noise=False),
            "no stop at C positives": _sparse_vector(exact=False, stops=False),
        },
        data=[0.0] * 4 + [1.0] * 4,
        neighbor=[1.0] * 4 + [0.0] * 4,
        claim=sparse_vector_guarantee(noise=SVT_NOISE, max_positives=1),
        projection=_pattern,
    ),
]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--samples", type=int, default=1_000_000, help="draws from each data set")
    parser.add_argument("--only", default="", help="audit the cases whose name contains this")
    arguments = parser.parse_args()
    cases = [case for case in CASES if arguments.only.lower() in case.name.lower()]
    if not cases:
        parser.error(f"no case is called like {arguments.only!r}")
    print(
        f"{arguments.samples:,} draws from each of two neighbours, confidence "
        f"{100 * CONFIDENCE:.10g}%.\nThe last column is what the audit proves: epsilon is at least "
        "that.\n"
    )
    header = (
        f"{'mechanism':<19}{'twin with a mistake':<27}{'delta':>6}{'claimed':>9}{'proven':>9}"
        f"  {'verdict':<12}{'time':>6}"
    )
    print(header + "\n" + "-" * len(header))
    rows, failures = [], 0
    for case in cases:
        for mistake, mechanism in {"": case.honest, **case.twins}.items():
            start = time.perf_counter()
            report = case.audit(mechanism, arguments.samples)
            good = report.passes if not mistake else not report.passes
            verdict = ("not refuted" if not mistake else "caught") if good else "FAILED"
            failures += not good
            rows.append({"mechanism": case.name, "mistake": mistake, "report": report})
            print(
                f"{case.name:<19}{mistake:<27}{case.delta:>6g}{report.claim:>9.4g}"
                f"{report.lower_bound:>9.4g}  {verdict:<12}{time.perf_counter() - start:>5.0f}s",
                flush=True,
            )
    if arguments.samples >= 1_000_000 and not arguments.only:
        save_results("audit", {"rows": rows})
    print(
        f"\n{failures} of {len(rows)} audits FAILED."
        if failures
        else "\nNo honest mechanism was refuted; every broken twin was caught."
    )
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
