"""The sparse vector technique as a problem for DPareto."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from botorch_dp._checks import check_integer
from botorch_dp.pareto import PrivacyUtilityProblem, TrainingPrivacy
from botorch_dp.privacy import Guarantee, sparse_vector_guarantee
from botorch_dp.space import Config, Integer, Real, SearchSpace

THRESHOLD = 0.5


@dataclass(frozen=True)
class SparseVectorUtility:
    """The F1 score of the sparse vector technique on a random bit vector, by simulation.

    Args:
        num_queries: Length of the bit vector.
        num_positives: How many of its bits are one; they stand at random positions.
        simulations: Runs that one utility is the mean of.
    """

    num_queries: int
    num_positives: int
    simulations: int

    def __call__(self, config: Config, seed: int) -> float:
        """Mean F1 score; a run without true positives counts as 0."""
        threshold_scale, query_scale = noise_scales(config["noise"], config["max_positives"])
        generator = np.random.default_rng(seed)
        shape = (self.simulations, self.num_queries)
        truth = np.zeros(shape, dtype=bool)
        truth[:, : self.num_positives] = True
        truth = generator.permuted(truth, axis=1)
        threshold = THRESHOLD + generator.laplace(scale=threshold_scale, size=(shape[0], 1))
        answered = truth + generator.laplace(scale=query_scale, size=shape) >= threshold
        # Answers after the last permitted positive are not given.
        answered &= answered.cumsum(axis=1) <= config["max_positives"]
        true_positives = (answered & truth).sum(axis=1)
        return float(f1_score(true_positives, answered.sum(axis=1), self.num_positives).mean())


def sparse_vector(
    *,
    num_queries: int = 100,
    num_positives: int = 10,
    simulations: int = 50,
    replicates: int = 1,
    ref_point: tuple[float, float] = (100.0, 1.0),
) -> PrivacyUtilityProblem:
    """The sparse vector technique's noise and stopping point, against its F1 score [Avent2020].

    A synthetic problem whose front is known (``benchmarks/pareto_quality.py``): cheap, and a
    fair test of an optimizer.

    Args:
        num_queries: Length of the bit vector that is queried.
        num_positives: How many of its bits are one.
        simulations: Runs that one utility is the mean of; fewer make it noisier.
        replicates: Utilities that one trial is the mean of.
        ref_point: The anti-ideal (epsilon, error). Below epsilon 10 little is found at all.

    Example:
        >>> problem = sparse_vector()
        >>> round(problem.epsilon({"noise": 10.0, "max_positives": 4}), 3)
        1.5
    """
    check_integer("num_queries", num_queries, at_least=2)
    check_integer("num_positives", num_positives, at_most=num_queries - 1)
    check_integer("simulations", simulations)
    return PrivacyUtilityProblem(
        SearchSpace(
            noise=Real(1e-2, 1e2, log=True),
            max_positives=Integer(1, min(30, num_queries)),
        ),
        privacy=sparse_vector_epsilon,
        utility=SparseVectorUtility(num_queries, num_positives, simulations),
        training=TrainingPrivacy(guarantee=_sparse_vector_guarantee),
        replicates=replicates,
        ref_point=ref_point,
        name=f"sparse vector technique ({num_positives} of {num_queries})",
    )


def sparse_vector_epsilon(config: Config) -> float:
    """``(1 + (2C)^{1/3}) (1 + (2C)^{2/3}) / b``, for sensitivity 1 and the split used here."""
    root = math.cbrt(2 * config["max_positives"])
    return float((1 + root) * (1 + root**2) / config["noise"])


def _sparse_vector_guarantee(config: Config) -> Guarantee:
    scale, max_positives = config["noise"], config["max_positives"]
    return sparse_vector_guarantee(noise_scale=scale, max_positives=max_positives)


def noise_scales(noise: Any, max_positives: int) -> tuple[Any, Any]:
    """Scales of the threshold's and of each query's noise, of numbers or arrays."""
    threshold_scale = noise / (1 + math.cbrt(2 * max_positives))
    return threshold_scale, noise - threshold_scale


def f1_score(
    true_positives: NDArray[np.int64], positives: NDArray[np.int64], relevant: int
) -> NDArray:
    """``2 TP / (2 TP + FP + FN)``, which is 0 without true positives."""
    score: NDArray[np.float64] = 2 * true_positives / (positives + relevant)
    return score
