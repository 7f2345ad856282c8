r"""The private choice: the best of a finite set by the exponential mechanism [Kusner2015]_.

References:
.. [Kusner2015]
    M. J. Kusner, J. R. Gardner, R. Garnett and K. Q. Weinberger. Differentially Private Bayesian
    Optimization. ICML 2015. (Algorithm 1, Theorems 1 and 2.)
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

from botorch_dp._checks import check_delta, check_integer, check_positive, check_tensor
from botorch_dp.acquisition.ucb import UCBSchedule
from botorch_dp.privacy import (
    ApproximateLoss,
    Guarantee,
    PrivacyLedger,
    PrivacyUnit,
    Release,
    exponential_guarantee,
    exponential_mechanism,
)
from botorch_dp.privacy._noise import SelectionMethod
from botorch_dp.release.assumptions import (
    VALIDATION_RECORD,
    check_correlation,
    neighbor_gap,
    plausible,
    prior_conditions,
)
from botorch_dp.release.utility import (
    UtilityBound,
    best_choice_probability,
    prior_spread,
    selection_tail,
    warn_if_delta_is_large,
    warn_if_drowned,
)


@dataclass(frozen=True, kw_only=True)
class ChoiceMechanism:
    r"""The public parameters of a private choice, and all that follows from them.

    A choice ``x`` is drawn with probability proportional to ``exp(epsilon mean(x) / (2 D))``, where
    ``D = 2 sqrt(beta_{T+1}) + c`` and ``c = 2 sqrt((1 - k(V, V')) log(3 n / delta))``.

    *Why D.* ``|mean - mean'| <= |mean - f| + |f - f'| + |f' - mean'|``. Each outer term is at most
    ``sqrt(beta_{T+1})`` since the posterior standard deviation is at most ``k(x, x)^(1/2) = 1``,
    the middle one at most ``c``; all three hold on ``n`` choices with probability ``1 - delta``
    over the prior. There the exponential mechanism is epsilon-DP: the (epsilon, delta) of Theorem 1
    is **conditional** on the prior. The argument does not depend on how the points were chosen.

    Args:
        num_choices: The number ``n`` of choices.
        epsilon: The privacy parameter.
        delta: Probability, over the prior, that the sensitivity bound fails.
        steps: The number ``T`` of observations behind the posterior mean.
        dataset_correlation: The prior correlation ``k(V, V')`` of neighbouring data sets.
        method: ``"exponential"``, or ``"permute_and_flip"``: never worse, same guarantee.
        unit: Whom or what one record is, and the relation the sensitivity refers to.
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
        # Checks the method, and that the noise scale is representable.
        exponential_guarantee(
            sensitivity=self.sensitivity, epsilon=self.epsilon, method=self.method
        )

    @property
    def confidence_width(self) -> float:
        """``sqrt(beta_{T+1})``: how far the objective is from its posterior mean, at most."""
        return math.sqrt(UCBSchedule(self.num_choices, delta=self.delta)(self.steps + 1))

    @property
    def sensitivity(self) -> float:
        """``D``: how far the posterior mean of one choice moves between neighbours, at most."""
        gap = neighbor_gap(self.dataset_correlation, 3 * self.num_choices, self.delta)
        return 2 * self.confidence_width + gap

    @property
    def scale(self) -> float:
        """``s`` in probabilities proportional to ``exp(mean / s)``: ``2 D / epsilon``."""
        return 2 * self.sensitivity / self.epsilon

    @property
    def guarantee(self) -> Guarantee:
        """What the release promises."""
        return Guarantee(
            mechanism="Private choice of Kusner et al. (exponential mechanism)",
            losses=(ApproximateLoss(self.epsilon, self.delta),),
            unit=self.unit,
            assumptions=(
                *prior_conditions(self.dataset_correlation, self.delta),
                f"the mean is the posterior mean after {self.steps} observations under that prior",
            ),
        )

    def utility(self, confidence: float = 0.95) -> UtilityBound:
        r"""How much worse than the best the drawn choice may be (Theorem 2).

        ``f(x) >= max f - 2 sqrt(beta_{T+1}) - s (log n + a)`` with probability at least
        ``1 - delta - e^{-a}``; ``confidence`` is ``1 - e^{-a}``, over the mechanism's coins.
        """
        spread = 2 * prior_spread(self.num_choices)
        best = best_choice_probability(self.scale, self.num_choices, spread, self.method)
        return UtilityBound(
            subject="the drawn choice is worse than the best one",
            noise=selection_tail(self.scale, self.num_choices, confidence),
            model=2 * self.confidence_width,
            probability=max(0.0, confidence - self.delta),
            spread=spread,
            remark=(
                f"Even the best of the {self.num_choices} choices is drawn with probability at "
                f"most {best:.3g}; a blind draw has {1 / self.num_choices:.3g}."
            ),
        )

    def draw(
        self, mean: Tensor, choices: Tensor, *, unsafe_seed: int | None = None
    ) -> Release[Tensor]:
        """Draw a choice, given the posterior mean (n) at the choices (n x d); spends the budget."""
        check_tensor("mean", mean, shape=(self.num_choices,), finite=False)
        index = exponential_mechanism(
            plausible(mean),
            sensitivity=self.sensitivity,
            epsilon=self.epsilon,
            method=self.method,
            unsafe_seed=unsafe_seed,
        )
        return Release(
            value=choices[index.value].clone(),
            guarantee=self.guarantee if unsafe_seed is None else self.guarantee.simulated(),
            scale=index.scale,
        )


def choice_guarantee(
    *,
    epsilon: float,
    delta: float,
    steps: int,
    num_choices: int,
    dataset_correlation: float,
    method: SelectionMethod = "exponential",
    unit: PrivacyUnit = VALIDATION_RECORD,
) -> Guarantee:
    """What :func:`release_choice` promises; see there."""
    return ChoiceMechanism(
        num_choices=num_choices,
        epsilon=epsilon,
        delta=delta,
        steps=steps,
        dataset_correlation=dataset_correlation,
        method=method,
        unit=unit,
    ).guarantee


def choice_utility(
    *,
    epsilon: float,
    delta: float,
    steps: int,
    num_choices: int,
    dataset_correlation: float,
    method: SelectionMethod = "exponential",
    confidence: float = 0.95,
) -> UtilityBound:
    """How good the choice of :func:`release_choice` will be; nothing is spent."""
    return ChoiceMechanism(
        num_choices=num_choices,
        epsilon=epsilon,
        delta=delta,
        steps=steps,
        dataset_correlation=dataset_correlation,
        method=method,
    ).utility(confidence)


def release_choice(
    mean: Tensor,
    choices: Tensor,
    *,
    epsilon: float,
    delta: float,
    steps: int,
    dataset_correlation: float,
    method: SelectionMethod = "exponential",
    num_records: int | None = None,
    confidence: float = 0.95,
    unit: PrivacyUnit = VALIDATION_RECORD,
    ledger: PrivacyLedger | None = None,
    unsafe_seed: int | None = None,
) -> Release[Tensor]:
    r"""Release a choice with a large posterior mean; see :class:`ChoiceMechanism` for the maths.

    Guarantee: (epsilon, delta), **conditional** on the Gaussian-process assumption of [Kusner2015]_
    with ``k(x, x) = 1``, zero mean and public parameters (see :func:`.check_public`). Warns, before
    anything is spent, when the noise would drown the answer: at ``epsilon = 1`` and common sizes
    the draw is close to uniform. :func:`.release_linear_choice` needs no such assumption.

    Args:
        mean: The posterior mean at the choices, an ``n``-vector. Private.
        choices: An ``n x d`` tensor. Public.
        epsilon: The privacy parameter.
        delta: Probability, over the prior, that the sensitivity bound fails.
        steps: The number of observations behind ``mean``.
        dataset_correlation: The prior correlation ``k(V, V')`` of neighbouring data sets; see
            :mod:`.assumptions` for how to choose it.
        method: ``"exponential"``, or ``"permute_and_flip"``: never worse, same guarantee.
        num_records: Size of the validation set, to warn when ``delta`` is too large for it.
        confidence: Of the utility bound that decides about the warning.
        unit: Whom or what one record is, and the relation the sensitivity refers to.
        ledger: Charged before ``mean`` is looked at.
        unsafe_seed: Simulate with reproducible noise. The release then promises nothing.

    Returns:
        The chosen row of ``choices``. ``scale`` is the ``s`` in ``exp(mean / s)``.

    Example:
        >>> gp = FiniteSetGP(choices, kernel=RBFKernel(), noise_variance=0.01)
        >>> for index, y in observations:
        ...     gp.observe(index, y)
        >>> release = release_choice(
        ...     gp.mean, choices, epsilon=10.0, delta=1e-4, steps=gp.num_observations,
        ...     dataset_correlation=0.99,
        ... )
        >>> print(release.guarantee)
    """
    check_tensor("choices", choices, shape=(None, None))
    check_tensor("mean", mean, shape=(len(choices),), finite=False)
    mechanism = ChoiceMechanism(
        num_choices=len(choices),
        epsilon=epsilon,
        delta=delta,
        steps=steps,
        dataset_correlation=dataset_correlation,
        method=method,
        unit=unit,
    )
    warn_if_delta_is_large(delta, num_records)
    warn_if_drowned(mechanism.utility(confidence))
    if ledger is not None:
        ledger.charge(mechanism.guarantee, label="private choice")
    return mechanism.draw(mean, choices, unsafe_seed=unsafe_seed)
