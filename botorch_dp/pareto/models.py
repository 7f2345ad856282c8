"""What a study believes: one Gaussian process for each objective that is not known exactly.

Models see every objective so that larger is better and the real line is the range:
``-log(epsilon)``, ``-logit(error)``, and ``-log(value)`` or ``-value`` of further objectives.
Hypervolume is measured in other units, in which a reference point is natural: ``-epsilon`` (or
``-log(epsilon)``) and ``-error``.

References:
    [Avent2020] B. Avent, J. Gonzalez, T. Diethe, A. Paleyes, B. Balle. Automatic Discovery of
        Privacy-Utility Pareto Fronts. Proceedings on Privacy Enhancing Technologies 2020(4).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from botorch.fit import fit_gpytorch_mll
from botorch.models import SingleTaskGP
from botorch.models.deterministic import DeterministicModel
from botorch.models.model import Model, ModelList
from botorch.models.transforms import Standardize
from botorch.models.utils.gpytorch_modules import get_covar_module_with_dim_scaled_prior
from botorch.utils.sampling import manual_seed
from gpytorch.mlls import ExactMarginalLogLikelihood
from torch import Tensor

from botorch_dp.acquisition.pending import believe
from botorch_dp.pareto.known import Candidates, KnownObjectives
from botorch_dp.pareto.problem import PrivacyUtilityProblem
from botorch_dp.pareto.trials import StudyError, Trial, outcome
from botorch_dp.space import Config

PrivacyModel = Literal["exact", "gp"]
EpsilonScale = Literal["linear", "log"]

#: Models never see a larger epsilon: random hyper-parameters reach 1e7, and all are useless alike.
LARGEST_EPSILON = 50.0
#: Nor one smaller than this share of the reference: nobody can use the difference.
SMALLEST_EPSILON_SHARE = 1e-3
#: Errors of 0 and 1 have no logit.
SMALLEST_ERROR = 1e-3
#: The fit ends when a step gains less than this share of the likelihood.
_FIT_TOLERANCE = 1e-6
#: Points predicted at once: the joint covariance that comes along costs their square.
_CHUNK = 256


@dataclass(frozen=True)
class Scale:
    """How one objective (to be minimized) is shown to models and to the hypervolume.

    Args:
        to_model: From its value to what models see.
        to_volume: From what models see to the units of hypervolume.
        ref_model: The reference value as models see it.
        ref_volume: The reference value in the units of hypervolume.
    """

    to_model: Callable[[Tensor], Tensor]
    to_volume: Callable[[Tensor], Tensor]
    ref_model: float
    ref_volume: float


def objective_scales(
    problem: PrivacyUtilityProblem, epsilon_scale: EpsilonScale = "linear"
) -> list[Scale]:
    """The scales of epsilon, error and the further objectives, in this order."""
    ref_epsilon, ref_error = problem.ref_point
    smallest = SMALLEST_EPSILON_SHARE * ref_epsilon
    largest = max(LARGEST_EPSILON, ref_epsilon)

    def negative_log_epsilon(value: Tensor) -> Tensor:
        return -value.clamp(smallest, largest).log()

    def negative_logit(value: Tensor) -> Tensor:
        return -value.clamp(SMALLEST_ERROR, 1 - SMALLEST_ERROR).logit()

    clamped_ref = min(ref_error, 1 - SMALLEST_ERROR)
    linear = epsilon_scale == "linear"
    scales = [
        Scale(
            to_model=negative_log_epsilon,
            to_volume=_negative_exp_negative if linear else _identity,
            ref_model=-math.log(ref_epsilon),
            ref_volume=-ref_epsilon if linear else -math.log(ref_epsilon),
        ),
        Scale(
            to_model=negative_logit,
            to_volume=_negative_sigmoid_negative,
            ref_model=-math.log(clamped_ref / (1 - clamped_ref)),
            ref_volume=-ref_error,
        ),
    ]
    for objective in problem.objectives:
        ref = objective.ref_point
        scales.append(
            Scale(_negative_log, _negative_exp_negative, -math.log(ref), -ref)
            if objective.log
            else Scale(torch.neg, _identity, -ref, -ref)
        )
    return scales


def _identity(value: Tensor) -> Tensor:
    return value


def _negative_log(value: Tensor) -> Tensor:
    return -value.log()


def _negative_exp_negative(value: Tensor) -> Tensor:
    return -torch.exp(-value)


def _negative_sigmoid_negative(value: Tensor) -> Tensor:
    return -torch.sigmoid(-value)


class ExactObjective(DeterministicModel):
    """A known objective as a BoTorch model, for acquisition functions that want one."""

    def __init__(self, values: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self._values = values
        self._num_outputs = 1

    def forward(self, X: Tensor) -> Tensor:
        """``batch x q x d`` codes to ``batch x q x 1`` values."""
        return self._values(X.reshape(-1, X.shape[-1])).reshape(*X.shape[:-1], 1)

    def fantasize(self, X: Tensor, sampler: object = None, **_: object) -> ExactObjective:
        """What is known exactly cannot be learned."""
        return self


class Beliefs:
    """The study's models, fitted to its complete trials.

    Pending and failed trials are *believed*: the posterior is conditioned on its own mean there,
    which takes away the uncertainty they will settle (or that cannot be settled), moves no mean,
    and has no part in fitting hyper-parameters.

    Args:
        problem: The problem.
        complete: The complete trials; at least one.
        believed: Configs of pending and failed trials.
        known: The exact objectives; the others are modelled.
        scales: Of all objectives.
        seed: For restarts of the fit.
    """

    def __init__(
        self,
        problem: PrivacyUtilityProblem,
        complete: Sequence[Trial],
        believed: Sequence[Config],
        *,
        known: KnownObjectives,
        scales: Sequence[Scale],
        seed: int = 0,
    ) -> None:
        self._known = known
        self._scales = list(scales)
        train_X = problem.space.encode([trial.config for trial in complete])  # n x d
        values = torch.tensor([outcome(problem, t) for t in complete], dtype=torch.double)
        believed_X = problem.space.encode(believed) if believed else train_X[:0]
        self._gps: dict[int, Model] = {}
        for index, scale in enumerate(self._scales):
            if index not in known.columns:
                gp = fitted_gp(train_X, scale.to_model(values[:, index : index + 1]), seed=seed)
                with torch.no_grad():
                    self._gps[index] = believe(gp, believed_X) if believed else gp
        #: All complete, pending and failed trials.
        self.incumbents = known.candidates(torch.cat([train_X, believed_X]))
        #: ``n x m`` posterior means there, in the scale of the models.
        self.incumbent_means = self.predict(self.incumbents)[0]

    @property
    def model(self) -> Model:
        """All objectives as one BoTorch model (maximized)."""
        return ModelList(*(self._gps.get(i) or self._exact(i) for i in range(len(self._scales))))

    def predict(self, candidates: Candidates) -> tuple[Tensor, Tensor]:
        """Means and standard deviations, ``n x m``; NaN where an exact objective is undefined."""
        means, stds = [], []
        for index, scale in enumerate(self._scales):
            if index in self._gps:
                mean, std = predicted(self._gps[index], candidates.codes)
            else:
                mean = scale.to_model(candidates.known[:, self._known.columns[index]])
                std = torch.zeros_like(mean)
            means.append(mean)
            stds.append(std)
        return torch.stack(means, dim=-1), torch.stack(stds, dim=-1)

    def _exact(self, index: int) -> ExactObjective:
        column, to_model = self._known.columns[index], self._scales[index].to_model
        return ExactObjective(lambda X: to_model(self._known.candidates(X).known[:, column]))


def fitted_gp(train_X: Tensor, train_Y: Tensor, *, seed: int) -> SingleTaskGP:
    """A Matérn-5/2 GP with a length-scale for each parameter and inferred noise, ``n x 1`` data.

    The noise is inferred from all trials at once rather than from the replicates of each: the
    variance of three numbers is often tiny by luck, and such a trial would be trusted blindly.
    """
    model = SingleTaskGP(
        train_X,
        train_Y,
        covar_module=get_covar_module_with_dim_scaled_prior(
            ard_num_dims=train_X.shape[-1], use_rbf_kernel=False
        ),
        outcome_transform=Standardize(m=1),
    )
    # Only a failed first attempt draws random restarts.
    with manual_seed(seed):
        fit_gpytorch_mll(
            ExactMarginalLogLikelihood(model.likelihood, model),
            optimizer_kwargs={"options": {"ftol": _FIT_TOLERANCE}},
        )
    return model


def predicted(model: Model, X: Tensor) -> tuple[Tensor, Tensor]:
    """Posterior mean and standard deviation of the function at ``n x d`` points, each ``n``."""
    means, variances = [], []
    with torch.no_grad():
        for chunk in X.split(_CHUNK):
            posterior: Any = model.posterior(chunk)
            means.append(posterior.mean.squeeze(-1))
            variances.append(posterior.variance.squeeze(-1))
    return torch.cat(means), torch.cat(variances).clamp_min(0).sqrt()


def require_complete(trials: Sequence[Trial], what: str) -> list[Trial]:
    """The complete trials, or an error that says why there is nothing to do ``what`` with."""
    complete = [trial for trial in trials if trial.state == "complete"]
    if complete:
        return complete
    kinds = sorted({trial.failures[-1] for trial in trials if trial.failures})
    detail = f"; the {len(trials)} trials so far failed with {kinds}" if kinds else ""
    raise StudyError(
        f"No trial has finished, so there is no {what}{detail}. "
        "Call the problem's oracles on one config by hand to see what is wrong."
    )
