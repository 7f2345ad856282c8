"""Every mechanism and deliberately broken versions of it, for the tests and for ``make audit``.

A broken version is the mechanism with one realistic mistake. Those whose mistake is the amount of
noise round their outputs to multiples of 2^-20, so that nothing but the amount can betray them.
"""

from __future__ import annotations

import itertools
import math
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch

from botorch_dp.privacy import (
    Guarantee,
    NeighboringRelation,
    PrivacyUnit,
    PureLoss,
    Release,
    audit_epsilon,
    exponential_guarantee,
    exponential_mechanism,
    gaussian_guarantee,
    gaussian_mechanism,
    laplace_guarantee,
    laplace_mechanism,
    sparse_vector_guarantee,
)
from botorch_dp.privacy.audit import AuditReport
from botorch_dp.privacy.mechanisms import SelectionMethod, noise_source
from botorch_dp.privacy.selection import TrialNumber
from botorch_dp.privacy.sparse_vector_technique import SparseVectorPlan, noisy_comparisons
from botorch_dp.training.ranges import bin_counts, count_sensitivity, sorted_columns

CONFIDENCE = 1 - 1e-6

#: ``mechanism(data, size)``: that many independent outputs.
Batched = Callable[[Any, int], Any]


@dataclass(frozen=True)
class Broken:
    """A mechanism with a mistake.

    Args:
        mechanism: Its batched form.
        draws: With so many draws from each data set the mistake is shown, all but certainly.
    """

    mechanism: Batched
    draws: int


@dataclass(frozen=True)
class Case:
    """A mechanism, broken versions of it, and a neighbouring pair that is bad for all of them.

    Args:
        name: The mechanism.
        honest: Its batched form.
        broken: Broken versions, each under the mistake it makes.
        data: One data set, or rather the statistic the mechanism sees.
        neighbor: The other.
        claim: What all of them claim.
        delta: Where epsilon is compared.
        projection: See :func:`audit_epsilon`.
    """

    name: str
    honest: Batched
    broken: dict[str, Broken]
    data: Any
    neighbor: Any
    claim: Guarantee
    delta: float = 0.0
    projection: Callable[[Any], Any] | None = None

    def audit(self, mechanism: Batched, samples: int) -> AuditReport:
        """Audit the mechanism, or a broken version of it, against the claim."""
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


def _noisy(
    release: Callable[..., Release[Any]], sensitivity: float = 1.0, *, exact: bool = True
) -> Batched:
    """Independent noise in each coordinate makes one call a batch of independent releases."""

    def mechanism(data: list[float], size: int) -> torch.Tensor:
        seed = None if exact else next(_seeds)
        values: torch.Tensor = release(
            _repeat(data, size), sensitivity=sensitivity, unsafe_seed=seed
        ).value
        return values if exact else torch.round(values * 2.0**20) / 2.0**20

    return mechanism


_laplace = partial(_noisy, partial(laplace_mechanism, epsilon=1.0))
_gaussian = partial(_noisy, partial(gaussian_mechanism, mu=1.0))


def _select(method: SelectionMethod, sensitivity: float = 1.0, *, exact: bool = True) -> Batched:
    def mechanism(data: list[float], size: int) -> np.ndarray:
        # The scale of one public call; its sampler, many times over.
        scale = exponential_mechanism(
            torch.tensor(data), sensitivity=sensitivity, epsilon=1.0, method=method
        ).scale
        assert scale is not None  # selection always states it
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
        earlier: np.ndarray = np.cumsum(runs, axis=1) - runs
        return np.where(earlier >= plan.max_positives, 2, runs) if stops else runs

    return mechanism


def _clipped_sum(factor: float, *, exact: bool = True) -> Batched:
    """A sum of numbers clipped to [-1, 1], with noise for that many clip norms."""

    def mechanism(data: list[float], size: int) -> torch.Tensor:
        total = sum(min(max(number, -1.0), 1.0) for number in data)
        return _gaussian(factor, exact=exact)([total], size)

    return mechanism


def _share(*, against_mean: bool) -> Batched:
    """The share of records above one half, or above their own mean, with noise for one record."""

    def mechanism(data: list[float], size: int) -> torch.Tensor:
        limit = sum(data) / len(data) if against_mean else 0.5
        share = sum(number > limit for number in data) / len(data)
        return _gaussian(1 / len(data), exact=not against_mean)([share], size)

    return mechanism


def _column_counts(
    columns: int = 2, factor: float = 1.0, *, exact: bool = True, own_range: bool = False
) -> Batched:
    """A round of private ranges on two columns, with noise for so many, and the highest edges."""

    def mechanism(data: list[list[float]], size: int) -> torch.Tensor:
        table = np.array(data)
        ends = (table.min(axis=0), table.max(axis=0)) if own_range else (-1.0, 1.0)
        edges = np.linspace(*ends, 3, axis=-1) * np.ones((2, 1))
        counts = bin_counts(sorted_columns(table), edges).ravel().tolist()
        sensitivity = factor * count_sensitivity(columns, NeighboringRelation.REPLACE_ONE)
        noisy = _gaussian(sensitivity, exact=exact)(counts, size)
        return torch.cat([noisy, _repeat(edges[:, -1].tolist(), size)], dim=1)

    return mechanism


#: From a record below the middle to one above the last edge, in both columns.
_REPLACED = torch.tensor(2 * [0.0, -1.0, 0.0, 1.0] + 2 * [1.0], dtype=torch.float64)


def _torch_gaussian(data: list[float], size: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(next(_seeds))
    return _repeat(data, size) + torch.randn(size, 1, dtype=torch.float64, generator=generator)


def _numpy_laplace(data: list[float], size: int) -> np.ndarray:
    generator = np.random.default_rng(next(_seeds))
    return data[0] + generator.laplace(size=size)


#: One trial of the selection is purely epsilon-DP; its number is geometric.
TRIAL_EPSILON, TRIALS = 1.0, TrialNumber(20)


def _tilted(second: float, best: float) -> list[float]:
    """Three outcomes, the best one likelier than on the data and the second one less likely."""
    second, best = second * math.exp(-TRIAL_EPSILON), best * math.exp(TRIAL_EPSILON)
    return [1 - second - best, second, best]


def _numbers(size: int, fixed: bool) -> np.ndarray:
    """Of trials: public and always the same, or secret."""
    return np.full(size, int(TRIALS.mean)) if fixed else TRIALS.draws(size)


def _selection(*, fixed: bool = False) -> Batched:
    """The best of a secret number of outcomes, whose probabilities go from bad to good."""

    def mechanism(outcome: list[float], size: int) -> np.ndarray:
        generator = np.random.default_rng(secrets.randbits(128))
        numbers = _numbers(size, fixed)
        drawn = generator.choice(len(outcome), p=outcome, size=int(numbers.sum()))
        return np.maximum.reduceat(drawn, np.cumsum(numbers) - numbers)

    return mechanism


def _selection_by_records(outcome: list[float], size: int) -> np.ndarray:
    """A biased coin as outcome; which of its sides is the better one is up to the records."""
    if outcome[2] > outcome[1]:
        return 1 - _selection()([0.2, 0.8], size)
    return _selection()([0.8, 0.2], size)


def _pattern(runs: np.ndarray) -> np.ndarray:
    """One integer for each run."""
    return runs @ 3 ** np.arange(runs.shape[1])


#: The delta at which Gaussian mechanisms are compared: large enough for events with many hits.
DELTA = 0.05

CASES = [
    Case(
        "Laplace",
        _laplace(),
        {
            "half the noise": Broken(_laplace(0.5, exact=False), 2000),
            "numpy's noise": Broken(_numpy_laplace, 2000),
        },
        data=[0.0],
        neighbor=[1.0],
        claim=laplace_guarantee(sensitivity=1.0, epsilon=1.0),
    ),
    Case(
        "Laplace, 3 values",
        _laplace(),
        {"sensitivity of one value": Broken(_laplace(0.5, exact=False), 20_000)},
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
        {
            "half the noise": Broken(_gaussian(0.5, exact=False), 5000),
            "torch.randn": Broken(_torch_gaussian, 5000),
        },
        data=[0.0],
        neighbor=[1.0],
        claim=gaussian_guarantee(sensitivity=1.0, mu=1.0),
        delta=DELTA,
    ),
    Case(
        "Gaussian, 2 values",
        _gaussian(),
        {"sensitivity of one value": Broken(_gaussian(math.sqrt(0.5), exact=False), 40_000)},
        data=[0.0, 0.0],
        neighbor=[math.sqrt(0.5), math.sqrt(0.5)],
        claim=gaussian_guarantee(sensitivity=1.0, mu=1.0),
        delta=DELTA,
        projection=lambda values: values.sum(-1),
    ),
    Case(
        "Clipped sum",
        _clipped_sum(2.0),
        {"replaced counted as added": Broken(_clipped_sum(1.0, exact=False), 5000)},
        data=[0.5, 1e300],
        neighbor=[0.5, -7.0],
        claim=gaussian_guarantee(sensitivity=2.0, mu=1.0),
        delta=DELTA,
    ),
    Case(
        "Private ranges",
        _column_counts(),
        {
            "half the noise": Broken(_column_counts(factor=0.5, exact=False), 5000),
            "a column forgotten": Broken(_column_counts(1, exact=False), 40_000),
            "the range of the batch": Broken(_column_counts(exact=False, own_range=True), 5000),
        },
        data=[[0.5, 0.5], [0.5, 0.5], [-0.5, -0.5]],
        neighbor=[[0.5, 0.5], [0.5, 0.5], [7.0, 7.0]],
        claim=gaussian_guarantee(sensitivity=1.0, mu=1.0),
        delta=DELTA,
        projection=lambda counts: counts @ _REPLACED,
    ),
    Case(
        "Mean of scores",
        _share(against_mean=False),
        {"scores against the mean": Broken(_share(against_mean=True), 2000)},
        data=[0.4, 0.4, 0.4, 0.4, 1.0],
        neighbor=[0.4, 0.4, 0.4, 0.4, 0.0],
        claim=gaussian_guarantee(sensitivity=0.2, mu=1.0),
        delta=DELTA,
    ),
    Case(
        "Exponential",
        _select("exponential"),
        {"missing factor 2": Broken(_select("exponential", 0.5, exact=False), 40_000)},
        data=[0.0, 5.0],
        neighbor=[1.0, 4.0],
        claim=exponential_guarantee(sensitivity=1.0, epsilon=1.0),
    ),
    Case(
        "Permute-and-flip",
        _select("permute_and_flip"),
        {"missing factor 2": Broken(_select("permute_and_flip", 0.5, exact=False), 40_000)},
        data=[0.0, 4.0],
        neighbor=[1.0, 3.0],
        claim=exponential_guarantee(sensitivity=1.0, epsilon=1.0, method="permute_and_flip"),
    ),
    Case(
        "Sparse vector",
        _sparse_vector(),
        {
            "no query noise": Broken(_sparse_vector(exact=False, query_noise=False), 2000),
            "no stop at C positives": Broken(_sparse_vector(exact=False, stops=False), 200_000),
        },
        data=[0.0] * 4 + [1.0] * 4,
        neighbor=[1.0] * 4 + [0.0] * 4,
        claim=sparse_vector_guarantee(noise_scale=SVT_NOISE, max_positives=1),
        projection=_pattern,
    ),
    Case(
        "Private selection",
        _selection(),
        {
            "a public number of trials": Broken(_selection(fixed=True), 200_000),
            "a score without noise": Broken(_selection_by_records, 20_000),
        },
        # The best outcome is likelier on the neighbour, the second best on the data.
        data=[0.6, 0.2, 0.2],
        neighbor=_tilted(0.2, 0.2),
        claim=Guarantee("private selection", PrivacyUnit(), (PureLoss(3 * TRIAL_EPSILON),)),
    ),
]
