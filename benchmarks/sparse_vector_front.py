"""The exact front of the sparse vector technique, by which methods that look for it are judged."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.interpolate import PchipInterpolator
from scipy.special import gammaln
from scipy.stats import hypergeom
from torch import Tensor

from botorch_dp.pareto import PrivacyUtilityProblem
from botorch_dp.space import Integer, Real
from botorch_dp.tasks.queries import THRESHOLD, f1_score, noise_scales, sparse_vector_epsilon

#: Noises at which the exact front computes errors.
_KNOTS = 96


def expected_error(
    max_positives: int,
    noises: NDArray[np.float64],
    *,
    num_queries: int = 100,
    num_positives: int = 10,
) -> NDArray[np.float64]:
    r"""The error ``1 - E[F1]`` for each total noise scale, ``k``, up to quadrature (1e-5).

    Given the threshold's noise, every true and every false query is answered with yes
    independently, with one probability for each kind. If A true and B false ones are, they come in
    random order, and the first ``max_positives`` are given. The expectation over that order is
    hypergeometric, that over (A, B) is binomial, and that over the threshold is an integral.
    """
    C, P, N = max_positives, num_positives, num_queries - num_positives
    score = _expected_f1(C, P, N)  # (P + 1) x (N + 1)
    threshold_scales, query_scales = noise_scales(np.asarray(noises, dtype=float), C)
    rho, weights = laplace_quadrature(threshold_scales)  # k x nodes, nodes
    tail = rho + THRESHOLD
    yes_true = laplace_survival(tail - 1, query_scales[:, None])
    yes_false = laplace_survival(tail, query_scales[:, None])
    true_counts = binomial(P, yes_true)
    false_counts = binomial(N, yes_false)
    f1 = np.einsum("kna,ab,knb->kn", true_counts, score, false_counts, optimize=True)
    return 1 - (f1 * weights).sum(axis=-1)


def exact_front(
    problem: PrivacyUtilityProblem,
    num_noises: int = 2000,
    *,
    num_queries: int = 100,
    num_positives: int = 10,
) -> Tensor:
    """The front over all ``max_positives`` and a grid of noises, ``k x 2`` (epsilon, error).

    Errors are computed at some noises and interpolated monotonically between them; epsilons are
    exact.
    """
    noise_range, positives = problem.space.parameters.values()
    assert isinstance(noise_range, Real) and isinstance(positives, Integer)
    noises = np.geomspace(noise_range.low, noise_range.high, num_noises)
    knots = np.geomspace(noise_range.low, noise_range.high, _KNOTS)
    columns = []
    for count in range(int(positives.low), int(positives.high) + 1):
        at_knots = expected_error(
            count, knots, num_queries=num_queries, num_positives=num_positives
        )
        errors = PchipInterpolator(np.log(knots), at_knots)
        epsilons = [sparse_vector_epsilon({"noise": b, "max_positives": count}) for b in noises]
        columns.append(np.stack([epsilons, errors(np.log(noises))], axis=-1))
    points = np.concatenate(columns)
    points = points[np.lexsort((points[:, 1], points[:, 0]))]
    # By increasing epsilon, only what is better than everything before it.
    best_before = np.minimum.accumulate(np.append(np.inf, points[:-1, 1]))
    return torch.from_numpy(points[points[:, 1] < best_before])


def _expected_f1(max_positives: int, num_true: int, num_false: int) -> NDArray[np.float64]:
    """``E[F1]`` if A true and B false queries would be answered with yes, for all A and B."""
    A = np.arange(num_true + 1)[:, None, None]
    B = np.arange(num_false + 1)[None, :, None]
    hits = np.arange(num_true + 1)[None, None, :]
    given = np.minimum(A + B, max_positives)
    # Nobody answers with yes: no draw, and a score of 0 (scipy has no such distribution).
    chances = hypergeom.pmf(hits, np.maximum(A + B, 1), A, np.maximum(given, 1))
    return (chances * f1_score(hits, given, num_true)).sum(axis=-1)


def binomial(trials: int, chances: NDArray[np.float64]) -> NDArray[np.float64]:
    """Probabilities of 0 to ``trials`` successes, ``... x (trials + 1)``.

    SciPy's own takes several times as long: it does not share logarithms among the counts.
    """
    # Where a chance is 0 or 1 but for rounding, so are the probabilities.
    p = chances.clip(np.finfo(float).tiny, 1 - np.finfo(float).epsneg)[..., None]
    k = np.arange(trials + 1)
    ways = gammaln(trials + 1) - gammaln(k + 1) - gammaln(trials - k + 1)
    return np.exp(ways + k * np.log(p) + (trials - k) * np.log1p(-p))


def laplace_survival(x: NDArray[np.float64], scale: NDArray[np.float64]) -> NDArray[np.float64]:
    """``P(Lap(scale) >= x)``."""
    half = 0.5 * np.exp(-np.abs(x) / scale)
    return np.where(x > 0, half, 1 - half)


def laplace_quadrature(
    scales: NDArray[np.float64], nodes: int = 24
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Nodes and weights for expectations over ``Lap(scale)``, split where survival has kinks.

    Returns:
        ``k x n`` nodes and ``k x n`` weights for ``k`` scales.
    """
    kinks = np.array([-THRESHOLD, 0.0, 1 - THRESHOLD])
    inner = 1 - laplace_survival(kinks, scales[:, None])
    edges = np.concatenate([np.zeros((len(scales), 1)), inner, np.ones((len(scales), 1))], axis=1)
    unit, unit_weights = np.polynomial.legendre.leggauss(nodes)
    middle, half = (edges[:, 1:] + edges[:, :-1]) / 2, (edges[:, 1:] - edges[:, :-1]) / 2
    levels = (middle[..., None] + half[..., None] * unit).reshape(len(scales), -1)
    weights = (half[..., None] * unit_weights).reshape(len(scales), -1)
    # Intervals beyond the smallest double have no weight; any node will do there.
    tail = np.minimum(levels, 1 - levels).clip(min=np.finfo(float).tiny)
    return -np.sign(levels - 0.5) * np.log(2 * tail) * scales[:, None], weights
