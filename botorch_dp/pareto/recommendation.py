"""Which config to deploy: the one that a study's models expect to be best within an epsilon."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from botorch_dp.pareto.problem import Trial
from botorch_dp.pareto.proposals import Proposer
from botorch_dp.pareto.surrogates import Candidates, Surrogates, on_the_cpu, require_complete
from botorch_dp.privacy.rounding import rounded_up
from botorch_dp.space import Config

#: Columns of the exact objectives and of the models'.
_EPSILON, _ERROR = 0, 1
#: So many standard deviations around the mean of a Gaussian hold 95%.
_95_PERCENT = 1.959963984540054


@dataclass(frozen=True)
class OperatingPoint:
    """A config to deploy.

    Args:
        config: The hyper-parameters; perhaps never tried.
        epsilon: Exact, and within what was asked for.
        error: Expected error of one training, as the study's model predicts it. Sensitive.
        interval: For the error of the average training, with a probability of 95% under the model.
            Sensitive.
        tried: Whether a trial of the study has this config.
    """

    config: Config
    epsilon: float
    error: float = field(repr=False)
    interval: tuple[float, float] = field(repr=False)
    tried: bool

    def __str__(self) -> str:
        low, high = self.interval
        shown = (f"{name} = {value}" for name, value in self.config.items())
        return (
            f"Recommended: {', '.join(shown)}. ε = {rounded_up(self.epsilon)} (exact). Predicted "
            f"error {self.error:.4f} (95% interval {low:.4f} to {high:.4f}); "
            f"{'trained in this study' if self.tried else 'not trained yet'}. Computed from the "
            "records: do not publish."
        )


@on_the_cpu
def recommended(proposer: Proposer, trials: Sequence[Trial], epsilon: float) -> OperatingPoint:
    """The config with the smallest expected error among those whose epsilon is small enough.

    Args:
        proposer: Of the study, with exact epsilons.
        trials: All trials.
        epsilon: The largest acceptable epsilon.
    """
    if not 0 <= epsilon < math.inf:
        raise ValueError(f"`epsilon` must be finite and at least 0, got {epsilon}.")
    require_complete(trials, "config to recommend")
    surrogates = proposer.surrogates(trials)

    def within(candidates: Candidates) -> Tensor:
        errors = expected_error(*_predicted_error(surrogates, candidates))
        return (-errors).where(candidates.known[:, _EPSILON] <= epsilon, -math.inf)

    config = proposer.best(within, surrogates, len(trials))
    if config is None:
        # The feasible region may be smaller than the candidates are apart: descend into it.
        config = proposer.best(lambda c: -c.known[:, _EPSILON], surrogates, len(trials))
        smallest = math.inf if config is None else proposer.known.epsilon(config)
        if not smallest <= epsilon:
            raise ValueError(
                f"`epsilon` = {epsilon:g} is out of reach: the smallest epsilon found in the space "
                f"is {smallest:.4g}. Widen the space (more noise, fewer steps) or ask for more."
            )
    assert config is not None
    mean, std = _predicted_error(surrogates, proposer.known.candidates([config]))
    low, high = (float(torch.sigmoid(-mean + z * std)) for z in (-_95_PERCENT, _95_PERCENT))
    return OperatingPoint(
        config=config,
        epsilon=proposer.known.epsilon(config),
        error=float(expected_error(mean, std)),
        interval=(low, high),
        tried=any(trial.config == config and trial.state == "complete" for trial in trials),
    )


@on_the_cpu
def expected_values(proposer: Proposer, trials: Sequence[Trial]) -> Tensor:
    """What models of these trials expect of the points that they measured, ``n x m``."""
    complete = [trial for trial in trials if trial.state == "complete"]
    values = proposer.problem.values(complete)
    surrogates = proposer.surrogates(complete)
    means, stds = (part[: len(values)] for part in surrogates.predict(surrogates.incumbents))
    believed = torch.tensor(values, dtype=torch.double)
    believed[:, _ERROR] = expected_error(means[:, _ERROR], stds[:, _ERROR])
    return believed


def _predicted_error(surrogates: Surrogates, candidates: Candidates) -> tuple[Tensor, Tensor]:
    means, stds = surrogates.predict(candidates)
    return means[:, _ERROR], stds[:, _ERROR]


def expected_error(mean: Tensor, std: Tensor) -> Tensor:
    """Mean of ``sigmoid(-y)`` for Gaussian ``y``, by Gauss-Hermite quadrature."""
    nodes, weights = (torch.from_numpy(a) for a in np.polynomial.hermite_e.hermegauss(20))
    values = torch.sigmoid(-(mean.unsqueeze(-1) + std.unsqueeze(-1) * nodes))
    return values @ (weights / weights.sum())
