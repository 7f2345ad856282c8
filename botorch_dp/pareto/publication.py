"""What publishing a study costs: one guarantee for all of its trainings, and a caption."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Literal

from botorch_dp.pareto.problem import SEEDED, PrivacyUtilityProblem, StudyError, Trial
from botorch_dp.privacy import (
    ApproximateLoss,
    GaussianLoss,
    Guarantee,
    PrivacyUnit,
    PureLoss,
    compose,
)
from botorch_dp.privacy.guarantee import DEFAULT_DELTA
from botorch_dp.privacy.losses import PrivacyLoss
from botorch_dp.privacy.rounding import rounded_up

TestOrTraining = Literal["training", "test"]

_FIXED_TOTAL = (
    "the total was fixed as a budget before the first training: configs depend on earlier results, "
    "and a total that does so too is no guarantee [Rogers2016]"
)
#: The order at which Rényi divergences are added up. A filter needs one that no result can move;
#: totals of whole studies are large, and large totals want a small order.
_RENYI_ORDER = 2.0


def check_trained(trials: Sequence[Trial]) -> list[Trial]:
    """The trials with a training, or an error if there is none."""
    trained = [trial for trial in trials if trial.num_trainings > 0]
    if not trained:
        raise StudyError("Nothing was trained yet, so there is nothing to publish.")
    return trained


def publication(
    problem: PrivacyUtilityProblem, trials: Sequence[Trial], data: TestOrTraining = "training"
) -> Guarantee:
    """The guarantee of publishing everything that is known of the trials.

    See :meth:`DPareto.publication_guarantee`.
    """
    training, trained = problem.stated_training, check_trained(trials)
    if data == "test":
        return Guarantee(
            mechanism="front of measured utilities",
            unit=PrivacyUnit("one record of the test data", training.unit.relation),
            losses=(),
            void="utilities are computed from the test records without noise",
        )
    parts: list[Guarantee] = []
    for trial in trained:
        one = problem.training_guarantee(trial.config, trial.epsilon)
        parts += [one] * trial.num_trainings
    whole = _filter_composition(parts, training.delta)
    if training.secret_noise:
        return whole
    return replace(whole, void=SEEDED if whole.void is None else f"{whole.void}; {SEEDED}")


def _filter_composition(parts: Sequence[Guarantee], delta: float) -> Guarantee:
    r"""Adaptive composition by a privacy filter, for mechanisms chosen by earlier results.

    :func:`~botorch_dp.privacy.compose` takes the best of several bounds for the losses that
    occurred. That is no bound here: which losses occur depends on earlier results, and two paths
    that compose to delta = 0.375 each may be branches of one tree whose delta is 0.480. What
    follows holds for the whole tree if the total stays within a budget on every path. The form is
    chosen by the kinds of losses, which a problem has once and for all, and never by their values.

    * *Sums*, for (epsilon, delta) losses. By induction from the leaves: if the rest of the tree
      after any result ``y`` is (e - e1, d - d1)-DP, then ``P(S) <= d - d1 +
      E_P[min(1, exp(e - e1) Q(S|y))]``; the first mechanism, (e1, d1)-DP, makes
      ``P(S) <= d + exp(e) Q(S)``.
    * *One mu*, for Gaussian losses alone. Mechanism i shows a Brownian motion with drift 0 or 1 for
      another mu_i^2 units of its time. When to stop showing it may depend on what was seen; if
      it is by time mu^2, all of it is a function of the path until then, mu-GDP [Smith2022].
    * *Renyi divergence at one fixed order* ``a``, for all others [Feldman2021]: ``E_Q[(P/Q)^a]`` is
      multiplied by at most ``exp((a - 1) r_i)`` at each step, whatever was seen before, so that it
      ends below ``exp((a - 1) r)``. A minimum over orders would be taken after the results.
      Losses with a delta are summed beside it: outside an event of probability d they multiply
      the ratio by at most exp(e).

    Args:
        parts: At least one; all under one neighbouring relation.
        delta: Where Rényi divergence becomes (epsilon, delta); the parts' own or the usual one if
            it is 0.

    Returns:
        A guarantee with a single loss, and all conditions and assumptions of the parts.
    """
    whole = compose(*parts)
    delta = delta or whole.quoted_delta or DEFAULT_DELTA
    mus = [loss.mu for loss in whole.losses if isinstance(loss, GaussianLoss)]
    total: PrivacyLoss | None = None
    if len(mus) < len(whole.losses):
        total = _summed(Counter(whole.losses), delta)
    elif mus:
        total = GaussianLoss(math.hypot(*mus))
    if whole.void is None and total is None:
        whole = replace(whole, void="its deltas add up to 1")
    return replace(
        whole,
        losses=whole.losses if total is None else (total,),
        assumptions=(*whole.assumptions, _FIXED_TOTAL),
        quoted_delta=delta,
    )


def _summed(losses: Mapping[PrivacyLoss, int], delta: float) -> PrivacyLoss | None:
    """Sums of epsilons and deltas, beside Rényi divergences if there are; None if delta >= 1."""
    simple = all(loss.summed is not None for loss in losses)
    epsilons, deltas, divergences = [], [], []
    for loss, count in losses.items():
        if loss.summed is not None and (simple or loss.summed[1] > 0 or loss.summed[0] == 0):
            epsilons.append(count * loss.summed[0])
            deltas.append(count * loss.summed[1])
        else:
            divergences.append(count * loss.rdp(_RENYI_ORDER))
    if divergences:
        # From Rényi divergence to epsilon [Canonne2020].
        order = _RENYI_ORDER
        gained = math.log1p(-1 / order) - (math.log(delta) + math.log(order)) / (order - 1)
        epsilons.append(max(0.0, math.fsum(divergences) + gained))
        deltas.append(delta)
    epsilon, delta = math.fsum(epsilons), math.fsum(deltas)
    if delta >= 1:
        return None
    return ApproximateLoss(epsilon, delta) if delta > 0 else PureLoss(epsilon)


_TESTS = "Test records, if there are any, stay unprotected."


def caption_of(
    problem: PrivacyUtilityProblem,
    guarantee: Callable[[], Guarantee],
    *,
    charged: bool,
) -> str:
    """Whether a front or a table of trials may be published, and what that costs, in one sentence.

    Args:
        problem: Whose trials they are.
        guarantee: The guarantee for a training record if everything is published; not asked for
            if the problem does not say what its epsilon means.
        charged: Whether all trainings were charged to a budget before they began.
    """
    if problem.training is None:
        return "Do not publish: the neighbouring relation and delta of its epsilon are not stated."
    return priced_caption(guarantee(), charged=charged)


def priced_caption(guarantee: Guarantee, *, charged: bool = False) -> str:
    """The caption under a guarantee for the training records."""
    is_seeded = guarantee.void == SEEDED
    priced = replace(guarantee, void=None) if is_seeded else guarantee
    summed = priced.summed
    if priced.void is not None or (summed is not None and summed[1] >= 1):
        return "Do not publish: no noise was added to this front, and nothing is guaranteed."
    delta = summed[1] if summed is not None else guarantee.quoted_delta or DEFAULT_DELTA
    cost = f"ε = {float(rounded_up(priced.epsilon(delta))):,.10g}"
    if delta > 0:
        cost = f"({cost}, δ = {rounded_up(delta)})"
    cost = f"{cost} for {guarantee.protects}"
    if guarantee.conditions:
        cost += ", under the conditions of its guarantee"
    if is_seeded:
        return (
            "Do not publish: the trainings used known seeds, so nothing is guaranteed. To publish "
            f"this front, rerun all trainings with secret noise; that costs {cost}. {_TESTS}"
        )
    if charged:
        return (
            f"May be published if the test records are public: its cost, {cost}, was charged "
            "before the trainings."
        )
    return f"Sensitive: publishing this front costs {cost}. {_TESTS}"
