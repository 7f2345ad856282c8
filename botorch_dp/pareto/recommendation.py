"""From a study's beliefs to the config to deploy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist

import numpy as np
import torch
from torch import Tensor

from botorch_dp.checks import check_finite
from botorch_dp.pareto.front import OperatingPoint
from botorch_dp.pareto.models import Beliefs, require_complete
from botorch_dp.pareto.proposals import Proposer
from botorch_dp.pareto.trials import Trial

#: Objectives as models see them: ``-log(epsilon)`` first, ``-logit(error)`` second.
_ERROR = 1


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
    beliefs = proposer.beliefs(trials, privacy_model="exact")

    def within(X: Tensor) -> Tensor:
        errors = _expected_error(*_error_beliefs(beliefs, X))
        return (-errors).where(proposer.epsilons(X) <= epsilon, -math.inf)

    code = proposer.search(within, beliefs, len(trials))
    if code is None:
        # The feasible region may be smaller than the candidates are apart: descend into it.
        code = proposer.search(lambda X: -proposer.epsilons(X), beliefs, len(trials))
        smallest = math.inf if code is None else float(proposer.epsilons(code.unsqueeze(0)))
        if not smallest <= epsilon:
            raise ValueError(
                f"`epsilon` = {epsilon:g} is out of reach: the smallest epsilon found in the space "
                f"is {smallest:.4g}. Widen the space (more noise, fewer steps) or ask for more."
            )
    assert code is not None
    mean, std = _error_beliefs(beliefs, code.unsqueeze(0))
    config = proposer.problem.space.decode(code.unsqueeze(0))[0]
    z = NormalDist().inv_cdf(0.5 + level / 2)
    return OperatingPoint(
        config=config,
        epsilon=proposer.problem.epsilon(config),
        error=float(_expected_error(mean, std)),
        interval=(float(torch.sigmoid(-mean - z * std)), float(torch.sigmoid(-mean + z * std))),
        level=level,
        tried=any(trial.config == config for trial in trials if trial.state == "complete"),
    )


def _error_beliefs(beliefs: Beliefs, X: Tensor) -> tuple[Tensor, Tensor]:
    means, stds = beliefs.predict(X)
    return means[:, _ERROR], stds[:, _ERROR]


def _expected_error(mean: Tensor, std: Tensor) -> Tensor:
    """Mean of ``sigmoid(-y)`` for Gaussian ``y``, by Gauss-Hermite quadrature."""
    nodes, weights = (torch.from_numpy(a) for a in np.polynomial.hermite_e.hermegauss(20))
    values = torch.sigmoid(-(mean.unsqueeze(-1) + std.unsqueeze(-1) * nodes))
    return values @ (weights / weights.sum())
