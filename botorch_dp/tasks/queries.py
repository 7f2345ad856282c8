"""The sparse vector technique as a problem for DPareto, with its exact front."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.interpolate import PchipInterpolator
from scipy.special import gammaln
from scipy.stats import hypergeom
from torch import Tensor

from botorch_dp._checks import check_integer, check_positive
from botorch_dp.pareto import PrivacyUtilityProblem, TrainingPromise
from botorch_dp.privacy import Guarantee, sparse_vector_guarantee
from botorch_dp.space import Config, Integer, Real, SearchSpace

_THRESHOLD = 0.5
#: Noises at which the exact front computes errors.
_KNOTS = 96


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
        check_integer("seed", seed, at_least=0)
        _check_config(config)
        threshold_scale, query_scale = _noise_scales(config["noise"], config["max_positives"])
        generator = np.random.default_rng(seed)
        shape = (self.simulations, self.num_queries)
        truth = np.zeros(shape, dtype=bool)
        truth[:, : self.num_positives] = True
        truth = generator.permuted(truth, axis=1)
        threshold = _THRESHOLD + generator.laplace(scale=threshold_scale, size=(shape[0], 1))
        answered = truth + generator.laplace(scale=query_scale, size=shape) >= threshold
        # Answers after the last permitted positive are not given.
        answered &= answered.cumsum(axis=1) <= config["max_positives"]
        true_positives = (answered & truth).sum(axis=1)
        return float(_f1(true_positives, answered.sum(axis=1), self.num_positives).mean())


class SparseVectorProblem(PrivacyUtilityProblem):
    """The problem of :func:`sparse_vector`, with the error it has in expectation."""

    def __init__(
        self,
        *,
        num_queries: int,
        num_positives: int,
        simulations: int,
        replicates: int,
        ref_point: tuple[float, float],
    ) -> None:
        check_integer("num_queries", num_queries, at_least=2)
        check_integer("num_positives", num_positives, at_most=num_queries - 1)
        check_integer("simulations", simulations)
        super().__init__(
            SearchSpace(
                noise=Real(1e-2, 1e2, log=True),
                max_positives=Integer(1, min(30, num_queries)),
            ),
            privacy=sparse_vector_epsilon,
            utility=SparseVectorUtility(num_queries, num_positives, simulations),
            promise=TrainingPromise(guarantee=_sparse_vector_run),
            replicates=replicates,
            ref_point=ref_point,
            name=f"sparse vector technique ({num_positives} of {num_queries})",
        )
        self.num_queries = num_queries
        self.num_positives = num_positives

    def expected_error(
        self, max_positives: int, noises: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        r"""The error ``1 - E[F1]`` for each total noise scale, ``k``, up to quadrature (1e-5).

        Given the threshold's noise, every true and every false query is answered with yes
        independently, with one probability for each kind. If A true and B false ones are, they
        come in random order, and the first ``max_positives`` are given. The expectation over that
        order is hypergeometric, that over (A, B) is binomial, and that over the threshold is an
        integral.
        """
        check_integer("max_positives", max_positives, at_most=10**6)
        if noises.dtype.kind not in "iuf" or not (noises > 0).all():
            raise ValueError("`noises` must be positive.")
        C, P, N = max_positives, self.num_positives, self.num_queries - self.num_positives
        score = _expected_f1(C, P, N)  # (P + 1) x (N + 1)
        threshold_scales, query_scales = _noise_scales(np.asarray(noises, dtype=float), C)
        rho, weights = _laplace_quadrature(threshold_scales)  # k x nodes, nodes
        tail = rho + _THRESHOLD
        yes_true = _laplace_survival(tail - 1, query_scales[:, None])
        yes_false = _laplace_survival(tail, query_scales[:, None])
        true_counts = _binomial(P, yes_true)
        false_counts = _binomial(N, yes_false)
        f1 = np.einsum("kna,ab,knb->kn", true_counts, score, false_counts, optimize=True)
        return 1 - (f1 * weights).sum(axis=-1)

    def exact_front(self, num_noises: int = 2000) -> Tensor:
        """The front over all ``max_positives`` and a grid of noises, ``k x 2`` (epsilon, error).

        Errors are computed at some noises and interpolated monotonically between them; epsilons
        are exact.
        """
        check_integer("num_noises", num_noises, at_least=2, at_most=10**6)
        noise_range, positives = self.space.parameters.values()
        assert isinstance(noise_range, Real) and isinstance(positives, Integer)
        noises = np.geomspace(noise_range.low, noise_range.high, num_noises)
        knots = np.geomspace(noise_range.low, noise_range.high, _KNOTS)
        columns = []
        for count in range(int(positives.low), int(positives.high) + 1):
            errors = PchipInterpolator(np.log(knots), self.expected_error(count, knots))
            epsilons = [sparse_vector_epsilon({"noise": b, "max_positives": count}) for b in noises]
            columns.append(np.stack([epsilons, errors(np.log(noises))], axis=-1))
        points = np.concatenate(columns)
        points = points[np.lexsort((points[:, 1], points[:, 0]))]
        # By increasing epsilon, only what is better than everything before it.
        best_before = np.minimum.accumulate(np.append(np.inf, points[:-1, 1]))
        return torch.from_numpy(points[points[:, 1] < best_before])


def sparse_vector(
    *,
    num_queries: int = 100,
    num_positives: int = 10,
    simulations: int = 50,
    replicates: int = 1,
    ref_point: tuple[float, float] = (100.0, 1.0),
) -> SparseVectorProblem:
    """The sparse vector technique's noise and stopping point, against its F1 score [Avent2020].

    A synthetic problem whose front is known: cheap, and a fair test of an optimizer.

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
    return SparseVectorProblem(
        num_queries=num_queries,
        num_positives=num_positives,
        simulations=simulations,
        replicates=replicates,
        ref_point=ref_point,
    )


def sparse_vector_epsilon(config: Config) -> float:
    """``(1 + (2C)^{1/3}) (1 + (2C)^{2/3}) / b``, for sensitivity 1 and the split used here."""
    _check_config(config)
    root = math.cbrt(2 * config["max_positives"])
    return float((1 + root) * (1 + root**2) / config["noise"])


def _sparse_vector_run(config: Config) -> Guarantee:
    return sparse_vector_guarantee(noise=config["noise"], max_positives=config["max_positives"])


def _noise_scales(noise: Any, max_positives: int) -> tuple[Any, Any]:
    """Scales of the threshold's and of each query's noise, of numbers or arrays."""
    threshold_scale = noise / (1 + math.cbrt(2 * max_positives))
    return threshold_scale, noise - threshold_scale


def _f1(true_positives: NDArray[np.int64], positives: NDArray[np.int64], relevant: int) -> NDArray:
    """``2 TP / (2 TP + FP + FN)``, which is 0 without true positives."""
    return 2 * true_positives / (positives + relevant)


def _expected_f1(max_positives: int, num_true: int, num_false: int) -> NDArray[np.float64]:
    """``E[F1]`` if A true and B false queries would be answered with yes, for all A and B."""
    A = np.arange(num_true + 1)[:, None, None]
    B = np.arange(num_false + 1)[None, :, None]
    hits = np.arange(num_true + 1)[None, None, :]
    given = np.minimum(A + B, max_positives)
    # Nobody answers with yes: no draw, and a score of 0 (scipy has no such distribution).
    chances = hypergeom.pmf(hits, np.maximum(A + B, 1), A, np.maximum(given, 1))
    return (chances * _f1(hits, given, num_true)).sum(axis=-1)


def _binomial(trials: int, chances: NDArray[np.float64]) -> NDArray[np.float64]:
    """Probabilities of 0 to ``trials`` successes, ``... x (trials + 1)``.

    SciPy's own takes several times as long: it does not share logarithms among the counts.
    """
    # Where a chance is 0 or 1 but for rounding, so are the probabilities.
    p = chances.clip(np.finfo(float).tiny, 1 - np.finfo(float).epsneg)[..., None]
    k = np.arange(trials + 1)
    ways = gammaln(trials + 1) - gammaln(k + 1) - gammaln(trials - k + 1)
    return np.exp(ways + k * np.log(p) + (trials - k) * np.log1p(-p))


def _laplace_survival(x: NDArray[np.float64], scale: NDArray[np.float64]) -> NDArray[np.float64]:
    """``P(Lap(scale) >= x)``."""
    half = 0.5 * np.exp(-np.abs(x) / scale)
    return np.where(x > 0, half, 1 - half)


def _laplace_quadrature(
    scales: NDArray[np.float64], nodes: int = 24
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Nodes and weights for expectations over ``Lap(scale)``, split where survival has kinks.

    Returns:
        ``k x n`` nodes and ``k x n`` weights for ``k`` scales.
    """
    kinks = np.array([-_THRESHOLD, 0.0, 1 - _THRESHOLD])
    inner = 1 - _laplace_survival(kinks, scales[:, None])
    edges = np.concatenate([np.zeros((len(scales), 1)), inner, np.ones((len(scales), 1))], axis=1)
    unit, unit_weights = np.polynomial.legendre.leggauss(nodes)
    middle, half = (edges[:, 1:] + edges[:, :-1]) / 2, (edges[:, 1:] - edges[:, :-1]) / 2
    levels = (middle[..., None] + half[..., None] * unit).reshape(len(scales), -1)
    weights = (half[..., None] * unit_weights).reshape(len(scales), -1)
    # Intervals beyond the smallest double have no weight; any node will do there.
    tail = np.minimum(levels, 1 - levels).clip(min=np.finfo(float).tiny)
    return -np.sign(levels - 0.5) * np.log(2 * tail) * scales[:, None], weights


def _check_config(config: Config) -> None:
    if not config.keys() >= {"noise", "max_positives"}:
        raise ValueError(f"`config` must have noise and max_positives, got {list(config)}.")
    check_positive("config['noise']", config["noise"])
    check_integer("config['max_positives']", config["max_positives"])
