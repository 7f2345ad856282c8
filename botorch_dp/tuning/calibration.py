"""Noise calibration: the least noise with which a training keeps to a privacy profile.

dp-accounting's two accountants count the noise of a Gaussian event in different units where a
record is replaced: the one by privacy-loss distributions over the clipping norm, as we do, the one
by Rényi divergences over the distance of two sums, which is twice that. So under REPLACE_ONE,
events that only the second one knows are refused.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict
from functools import lru_cache
from typing import Any

import dp_accounting
from dp_accounting import dp_event, pld, rdp

from botorch_dp.errors import PrivacyError
from botorch_dp.privacy import DPSGD, NeighboringRelation
from botorch_dp.privacy.selection import BaseProfile, Selection, training_noise

#: What ``mechanism(config)`` may return: a training without its noise, or a function from a noise
#: multiplier to an event of dp-accounting.
Mechanism = DPSGD | Callable[[float], Any]

#: How far above the least noise a solution may be, relatively.
_TOLERANCE = 2e-3
#: Where the search for an event's noise begins, and beyond which it is given up.
_FIRST_NOISE = 8.0
_MOST_NOISE = 1e6
_LEAST_NOISE = 1e-3


@lru_cache(maxsize=256)
def trial_profile(selection: Selection, epsilon: float, delta: float) -> tuple[BaseProfile, float]:
    """What each trial of a selection keeps to for a budget, and the mu that this belongs to."""
    mu = selection.mu(epsilon, delta)
    return selection.profile(mu, delta), mu


def check_mechanism(
    found: Mechanism, relation: NeighboringRelation | None
) -> tuple[Mechanism, NeighboringRelation]:
    """A description and the relation that it is accounted under, or an error.

    Args:
        found: What ``mechanism(config)`` returned.
        relation: What the user stated, if anything.
    """
    if isinstance(found, DPSGD):
        assert found.relation is not None  # which DPSGD has filled in
        if found.noise_multiplier is not None:
            raise ValueError(
                f"`mechanism` returned a DPSGD with `noise_multiplier` = {found.noise_multiplier}: "
                "the noise follows from the budget. Leave it out."
            )
        if relation not in (None, found.relation):
            raise PrivacyError(
                f"`relation` is {relation} but `mechanism` returned a DPSGD under "
                f"{found.relation}: state one of them."
            )
        return found, found.relation
    known = NeighboringRelation.REPLACE_ONE, NeighboringRelation.ADD_OR_REMOVE_ONE
    if relation not in known:
        raise PrivacyError(
            "`relation` must say what the events of `mechanism` are accounted under: "
            "NeighboringRelation.ADD_OR_REMOVE_ONE, as in Opacus, or REPLACE_ONE; got "
            f"{relation!r}."
        )
    _accountant(found(1.0), relation)
    return found, relation


def words_of(described: Mechanism) -> str:
    """What a description says, for a guarantee."""
    if isinstance(described, DPSGD):
        batches = "Poisson-sampled batches"
        if described.sampling == "without_replacement":
            batches = "batches of fixed size without replacement"
        return f"DP-SGD on {batches}"
    return f"the event {type(described(1.0)).__name__} of dp-accounting"


def identity_of(described: Mechanism) -> Any:
    """What a run is recognized by, JSON-ready."""
    if isinstance(described, DPSGD):
        fields = asdict(described)
        return {**fields, "relation": str(fields["relation"])}
    return repr(described(1.0))


def least_noise(
    described: Mechanism,
    base: BaseProfile,
    relation: NeighboringRelation,
    *,
    beside_mu: float = 0.0,
    times: float = 1.0,
) -> float:
    """The least noise multiplier with which a training keeps to all points of a profile.

    Args:
        described: The training.
        base: The points.
        relation: What an event is accounted under.
        beside_mu: A Gaussian mechanism on the same records that is part of the outcome: its score.
        times: How many such trainings there are.
    """
    if isinstance(described, DPSGD):
        return _least_noise_of_training(described, base, beside_mu, times)
    return _least_noise_of_event(described, base, relation, beside_mu, times)


@lru_cache(maxsize=4096)
def _least_noise_of_event(
    described: Callable[[float], Any],
    base: BaseProfile,
    relation: NeighboringRelation,
    beside_mu: float,
    times: float,
) -> float:
    def keeps(noise: float) -> bool:
        event = described(noise)
        if times > 1:
            event = dp_event.SelfComposedDpEvent(event, math.ceil(times))
        if beside_mu:
            beside = dp_event.GaussianDpEvent(relation.sum_sensitivity / beside_mu)
            event = dp_event.ComposedDpEvent([event, beside])
        accountant = _accountant(event, relation).compose(event)
        points = zip(base.epsilons, base.deltas, strict=True)
        return all(accountant.get_delta(epsilon) <= delta for epsilon, delta in points)

    high = _FIRST_NOISE
    while not keeps(high):
        high *= 2
        if high > _MOST_NOISE:
            raise PrivacyError(
                "No noise multiplier keeps a training within the budget: the epsilon of the "
                "event that `mechanism` describes does not fall with its noise multiplier."
            )
    low = high / 2
    while low > _LEAST_NOISE and keeps(low):
        low, high = low / 2, low
    while high > low * (1 + _TOLERANCE):
        middle = math.sqrt(low * high)
        low, high = (low, middle) if keeps(middle) else (middle, high)
    return high


@lru_cache(maxsize=4096)
def _least_noise_of_training(
    training: DPSGD, base: BaseProfile, beside_mu: float, times: float
) -> float:
    found = training_noise(
        base,
        [training.batch_size],
        [math.ceil(training.steps * times)],
        num_records=training.num_records,
        sampling=training.sampling,
        relation=training.relation,
        beside_mu=beside_mu,
        tolerance=_TOLERANCE,
    )
    return float(found[0])


def _accountant(event: Any, relation: NeighboringRelation) -> Any:
    """The accountant of dp-accounting that is tightest for an event."""
    theirs = dp_accounting.NeighboringRelation[relation.name]
    accountants = [pld.PLDAccountant(theirs)]
    if relation is not NeighboringRelation.REPLACE_ONE:
        accountants.append(rdp.RdpAccountant(neighboring_relation=theirs))
    for accountant in accountants:
        if accountant.supports(event):
            return accountant
    raise PrivacyError(
        f"dp-accounting has no accountant of {event} under {relation.name}. Where a replaced "
        "record is meant and batches are drawn without replacement, return "
        "DPSGD(sampling='without_replacement', ...) instead of an event."
    )
