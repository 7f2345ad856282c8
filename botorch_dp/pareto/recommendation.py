"""From a study's beliefs to the config to deploy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist

import numpy as np
import torch
from torch import Tensor

from botorch_dp._checks import check_finite
from botorch_dp.pareto.front import OperatingPoint
from botorch_dp.pareto.known import Candidates
from botorch_dp.pareto.models import Beliefs, require_complete
from botorch_dp.pareto.proposals import Proposer
from botorch_dp.pareto.trials import Trial

#: Columns of the exact objectives and of the models'.
_EPSILON, _ERROR = 0, 1


def recommended(
    proposer: Proposer, trials: Sequence[Trial], epsilon: float, level: float
) -> OperatingPoint:
    """The config with the smallest expected error among those whose epsilon is small enough.

    Args:
        proposer: Knows the problem and how to search it.
        trials: All trials.
        epsilon: The largest acceptable epsilon.
        level: The interval's probability.
    """
    if math.isnan(epsilon) or check_finite("epsilon", epsilon) < 0:
        raise ValueError(f"`epsilon` must be finite and at least 0, got {epsilon}.")
    if not 0 < level < 1:
        raise ValueError(f"`level` must lie in (0, 1), got {level}.")
    require_complete(trials, "config to recommend")
    beliefs = proposer.beliefs(trials)

    def within(candidates: Candidates) -> Tensor:
        errors = _expected_error(*_error_beliefs(beliefs, candidates))
        return (-errors).where(candidates.known[:, _EPSILON] <= epsilon, -math.inf)

    config = proposer.search(within, beliefs, len(trials))
    if config is None:
        # The feasible region may be smaller than the candidates are apart: descend into it.
        config = proposer.search(lambda c: -c.known[:, _EPSILON], beliefs, len(trials))
        smallest = math.inf if config is None else proposer.problem.epsilon(config)
        if not smallest <= epsilon:
            raise ValueError(
                f"`epsilon` = {epsilon:g} is out of reach: the smallest epsilon found in the space "
                f"is {smallest:.4g}. Widen the space (more noise, fewer steps) or ask for more."
            )
    assert config is not None
    code = proposer.problem.space.encode([config])
    mean, std = _error_beliefs(beliefs, Candidates(code, proposer.exact_objectives([config])))
    z = NormalDist().inv_cdf(0.5 + level / 2)
    return OperatingPoint(
        config=config,
        epsilon=proposer.problem.epsilon(config),
        error=float(_expected_error(mean, std)),
        interval=(float(torch.sigmoid(-mean - z * std)), float(torch.sigmoid(-mean + z * std))),
        level=level,
        tried=any(trial.config == config for trial in trials if trial.state == "complete"),
    )


def _error_beliefs(beliefs: Beliefs, candidates: Candidates) -> tuple[Tensor, Tensor]:
    means, stds = beliefs.predict(candidates)
    return means[:, _ERROR], stds[:, _ERROR]


def _expected_error(mean: Tensor, std: Tensor) -> Tensor:
    """Mean of ``sigmoid(-y)`` for Gaussian ``y``, by Gauss-Hermite quadrature."""
    nodes, weights = (torch.from_numpy(a) for a in np.polynomial.hermite_e.hermegauss(20))
    values = torch.sigmoid(-(mean.unsqueeze(-1) + std.unsqueeze(-1) * nodes))
    return values @ (weights / weights.sum())
