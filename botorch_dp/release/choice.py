"""The private choice, one of a set, under a prior (Algorithm 1 [Kusner2015])."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from botorch.models import SingleTaskGP
from botorch.models.model import Model
from gpytorch.models import ExactGP
from torch import Tensor

from botorch_dp._checks import (
    check_delta,
    check_integer,
    check_positive,
    check_tensor,
)
from botorch_dp.acquisition.ucb import UCBSchedule
from botorch_dp.models.public import check_public, from_gpytorch
from botorch_dp.privacy import (
    ApproximateLoss,
    Guarantee,
    PrivacyLedger,
    PrivacyUnit,
    Release,
    exponential_guarantee,
    exponential_mechanism,
)
from botorch_dp.privacy.guarantee import check_unit, warn_large_delta
from botorch_dp.privacy.ledger import make_release
from botorch_dp.privacy.mechanisms import SelectionMethod, selection_scale
from botorch_dp.release.assumptions import (
    VALIDATION_RECORD,
    UtilityBound,
    blind_draw_remark,
    check_correlation,
    clamp_to_prior,
    exact_selection_tail,
    neighbor_gap,
    prior_conditions,
    prior_spread,
    warn_if_drowned,
)


@dataclass(frozen=True, kw_only=True)
class PrivateChoice:
    r"""A choice with a large posterior mean (Algorithm 1, Theorems 1 and 2 of [Kusner2015]).

    A choice ``x`` is drawn with probability proportional to ``exp(epsilon mean(x) / (2 D))``, where
    ``D = 2 sqrt(beta_{T+1}) + c`` and ``c = 2 sqrt((1 - k(V, V')) log(3 n / delta))``.

    *Why D.* ``|mean - mean'| <= |mean - f| + |f - f'| + |f' - mean'|``. Each outer term is at most
    ``sqrt(beta_{T+1})`` since the posterior standard deviation is at most ``k(x, x)^(1/2) = 1``,
    the middle one at most ``c``; all three hold on ``n`` choices with probability ``1 - delta``
    over the prior. There the exponential mechanism is epsilon-DP: the (epsilon, delta) of Theorem 1
    is **conditional** on the prior. The argument does not depend on how the points were chosen.

    At ``epsilon = 1`` and common sizes the draw is close to uniform, and :meth:`release` says so
    before anything is spent.

    Args:
        num_choices: The number ``n`` of choices.
        epsilon: The privacy parameter.
        delta: Probability, over the prior, that the sensitivity bound fails.
        steps: The number ``T`` of observations behind the posterior mean.
        dataset_correlation: The prior correlation ``k(V, V')`` of neighbouring data sets, whatever
            the relation; see :mod:`.assumptions` for how to choose it.
        method: ``"exponential"``, or ``"permute_and_flip"``: never worse, same guarantee.
        unit: Whom or what one record is, and which data sets are neighbours.

    Example:
        >>> gp = FiniteSetGP(choices, kernel=RBFKernel(), noise_std=0.1)
        >>> for index, y in observations:
        ...     gp.observe(index, y)
        >>> choice = PrivateChoice(
        ...     num_choices=len(choices), epsilon=10.0, delta=1e-4, steps=gp.num_observations,
        ...     dataset_correlation=0.99,
        ... )
        >>> print(choice.guarantee, choice.utility())
        >>> choice.release(gp.mean, choices).value
    """

    num_choices: int
    epsilon: float
    delta: float
    steps: int
    dataset_correlation: float
    method: SelectionMethod = "exponential"
    unit: PrivacyUnit = VALIDATION_RECORD

    def __post_init__(self) -> None:
        check_integer("num_choices", self.num_choices)
        check_positive("epsilon", self.epsilon)
        check_delta("delta", self.delta)
        check_integer("steps", self.steps)
        check_correlation(self.dataset_correlation)
        check_unit(self.unit)
        # Checks the method, and that the noise scale is representable.
        exponential_guarantee(
            sensitivity=self.sensitivity, epsilon=self.epsilon, method=self.method
        )

    @cached_property
    def schedule(self) -> UCBSchedule:
        """The widths of the confidence bounds that the proof uses."""
        return UCBSchedule(self.num_choices, delta=self.delta)

    @property
    def confidence_width(self) -> float:
        """``sqrt(beta_{T+1})``: how far the objective is from its posterior mean, at most."""
        return math.sqrt(self.schedule(self.steps + 1))

    @cached_property
    def sensitivity(self) -> float:
        """``D``: how far the posterior mean of one choice moves between neighbours, at most."""
        gap = neighbor_gap(self.dataset_correlation, 3 * self.num_choices, self.delta)
        return 2 * self.confidence_width + gap

    @property
    def scale(self) -> float:
        """``s`` in probabilities proportional to ``exp(mean / s)``: ``2 D / epsilon``."""
        return 2 * self.sensitivity / self.epsilon

    @cached_property
    def guarantee(self) -> Guarantee:
        """The guarantee and the cost of the release: (epsilon, delta), conditional on the prior."""
        return Guarantee(
            mechanism="Private choice of Kusner et al. (exponential mechanism)",
            losses=(ApproximateLoss(self.epsilon, self.delta),),
            unit=self.unit,
            assumptions=(
                *prior_conditions(self.dataset_correlation, self.delta),
                f"the mean is the posterior mean after {self.steps} observations under that prior",
            ),
        )

    def utility(self, delta: float = 0.05) -> UtilityBound:
        r"""How much worse than the best the drawn choice may be: sharper than Theorem 2.

        ``f(x) >= max f - 2 sqrt(2 log(n / self.delta)) - tail``, but for probability ``delta`` over
        the mechanism's coins and ``self.delta`` over the prior. The tail of the draw is exact. The
        posterior is used once, after all observations, so its bounds need to hold at that time
        only: ``P(|Z| > b) <= exp(-b^2 / 2)`` for each of ``n`` choices.
        """
        tail = exact_selection_tail(self.scale, self.num_choices, delta, self.method)
        width = math.sqrt(2 * math.log(self.num_choices / self.delta))
        spread = 2 * prior_spread(self.num_choices)
        return UtilityBound(
            subject="the drawn choice is worse than the best one",
            noise=tail,
            model=2 * width,
            probability=max(0.0, 1 - delta - self.delta),
            spread=spread,
            remark=blind_draw_remark(self.scale, self.num_choices, spread, self.method),
        )

    def release(
        self,
        model_or_mean: Model | ExactGP | Tensor,
        choices: Tensor,
        *,
        num_records: int | None = None,
        ledger: PrivacyLedger | None = None,
        label: str = "",
        unsafe_seed: int | None = None,
    ) -> Release[Tensor]:
        """Draw one of the choices. Warns beforehand when the noise may hide the answer.

        Args:
            model_or_mean: A BoTorch model or a GPyTorch ``ExactGP`` of ``steps`` observations whose
                prior is public; see :func:`~botorch_dp.models.check_public`. Or the posterior mean
                at the choices, an ``n``-vector: where it comes from is one more condition of the
                guarantee. Sensitive.
            choices: An ``n x d`` tensor. Public.
            num_records: Size of the validation set, to warn when ``delta`` is too large for it.
            ledger: Charged before the mean is looked at.
            label: What it is for, in public words; shown in the ledger.
            unsafe_seed: Simulate with reproducible noise. The release then guarantees nothing.

        Returns:
            The chosen row of ``choices``, with the scale ``s`` in ``exp(mean / s)``.
        """
        check_tensor("choices", choices, shape=("m", "d"))
        if len(choices) != self.num_choices:
            raise ValueError(
                f"`choices` must hold {self.num_choices} rows, the agreed `num_choices`, got "
                f"{len(choices)}."
            )
        guarantee = self.guarantee
        if isinstance(model_or_mean, Model | ExactGP):
            model_or_mean = from_gpytorch(model_or_mean)
            self._check_model(model_or_mean)
        else:
            check_tensor("model_or_mean", model_or_mean, shape=(self.num_choices,), finite=False)
            own = "the mean was computed from these observations and that prior alone"
            guarantee = replace(guarantee, assumptions=(*guarantee.assumptions, own))
        warn_large_delta(self.delta, num_records)
        warn_if_drowned(self.utility())
        return make_release(
            guarantee,
            lambda: self._draw(model_or_mean, choices, unsafe_seed)[0],
            ledger=ledger,
            label=label,
            scale=selection_scale(self.sensitivity, self.epsilon, self.method),
            unsafe_seed=unsafe_seed,
        )

    def _check_model(self, model: Model) -> None:
        check_public(model, unit_variance=True)
        assert isinstance(model, SingleTaskGP)
        observed = len(model.train_targets)
        if observed != self.steps:
            raise ValueError(
                f"`model_or_mean` has {observed} observations, but `steps` = {self.steps} of them "
                "were agreed: the sensitivity depends on their number."
            )

    def _draw(
        self, model_or_mean: Model | Tensor, choices: Tensor, unsafe_seed: int | None
    ) -> tuple[Tensor, float | None]:
        mean = model_or_mean
        if isinstance(mean, Model):
            with torch.no_grad():
                posterior: Any = mean.posterior(choices)
            mean = posterior.mean.squeeze(-1)
        index = exponential_mechanism(
            clamp_to_prior(mean),
            sensitivity=self.sensitivity,
            epsilon=self.epsilon,
            method=self.method,
            unsafe_seed=unsafe_seed,
        )
        return choices[index.value].clone(), index.scale
