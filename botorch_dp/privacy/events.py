r"""Mechanisms as events of dp-accounting in JSON, and their epsilon by dp-accounting alone.

A node is ``{"name": ..., **attributes}``: the name of a class of ``dp_accounting.dp_event`` and its
attributes as they are called there. One more name, ``DifferentialPrivacyParameters`` of
``dp_accounting.pld.common``, is any mechanism that is (epsilon, delta)-DP, for which there is no
event. Nodes are derived from losses and written for others. They are never read.

**Units.** dp-accounting's accountants do not agree on what a noise multiplier is under REPLACE_ONE.
Its distributions of privacy losses count in the largest norm C of one record's contribution, which
a replaced record moves by 2C; its Rényi accountant counts in what moves, 2C. So ``GaussianDpEvent``
and ``LaplaceDpEvent`` have noise over C, except inside ``SampledWithoutReplacementDpEvent`` and
``RepeatAndSelectDpEvent``, which only the Rényi accountant knows: there it is over the sensitivity.
Under ADD_OR_REMOVE_ONE both are the same; under BOUNDED_ROW, which dp-accounting does not know,
noise is over the stated distance and read as under ADD_OR_REMOVE_ONE.

**How it is recomputed.** Nothing here calls this package's accounting.

* Where every part is (epsilon, delta)-DP by itself and the deltas fit, both are added up.
* Everything else is composed of ``dp_accounting.pld`` distributions, as its ``PLDAccountant`` does
  for the events that it supports.
* Batches of fixed size without replacement have no distribution there. The profile of one step
  [Balle2018b] is discretized and composed by dp-accounting; the proof that it is the profile of a
  pair is in :mod:`.pld.distributions`. Its ``RdpAccountant`` gives an upper bound.
* Private selection has an upper bound only, by ``RepeatAndSelectDpEvent`` [Papernot2022].
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any, Literal

import dp_accounting
import numpy as np
from dp_accounting import dp_event
from dp_accounting.pld import common
from dp_accounting.pld import privacy_loss_distribution as pld
from dp_accounting.pld.pld_pmf import create_pmf_pessimistic_connect_dots
from scipy.special import ndtr

from botorch_dp.errors import PrivacyError
from botorch_dp.privacy.guarantee import Guarantee
from botorch_dp.privacy.losses import (
    ApproximateLoss,
    FixedBatchSGDLoss,
    GaussianLoss,
    LaplaceLoss,
    NeighboringRelation,
    PoissonSGDLoss,
    PrivacyLoss,
    PureLoss,
    SelectionLoss,
)

Node = dict[str, Any]

#: Equal steps and different parts beyond these are not recomputed: their sum would take minutes.
_MOST_COMPOSED, MOST_PARTS = 10**6, 20
#: An expected loss of all steps together beyond which nothing is hidden, and nothing computed.
_MOST_LOSS = 1e4
#: Points of one step's distribution, of a first rough one, and of the sum of all, at most.
_POINTS, _ROUGH_POINTS, _COMPOSED_POINTS = 300_000, 300, 2_000_000
#: How many standard deviations of noise are looked at on either side.
_TAIL = 9.5


def event_of(guarantee: Guarantee) -> Node:
    """The losses of a guarantee as one node; equal losses are counted."""
    parts = []
    for loss, count in Counter(guarantee.losses).items():
        node = _node(loss, guarantee.relation)
        if count > 1:
            node = {"name": "SelfComposedDpEvent", "event": node, "count": count}
        parts.append(node)
    return parts[0] if len(parts) == 1 else {"name": "ComposedDpEvent", "events": parts}


def _node(loss: PrivacyLoss, relation: NeighboringRelation) -> Node:
    move = _move(relation)
    match loss:
        case GaussianLoss(mu=0) | PureLoss(epsilon=0):
            return {"name": "NoOpDpEvent"}
        case GaussianLoss():
            return {"name": "GaussianDpEvent", "noise_multiplier": move / loss.mu}
        case LaplaceLoss():
            return {"name": "LaplaceDpEvent", "noise_multiplier": move / loss.epsilon}
        case PureLoss():
            return {"name": _PARAMETERS, "epsilon": loss.epsilon, "delta": 0.0}
        case SelectionLoss():
            return {
                "name": "RepeatAndSelectDpEvent",
                "mean": loss.mean,
                "shape": None if loss.shape == math.inf else loss.shape,
                "event": {"name": "GaussianDpEvent", "noise_multiplier": 1 / loss.mu},
            }
        case ApproximateLoss():
            return {"name": _PARAMETERS, "epsilon": loss.epsilon, "delta": loss.delta}
        case PoissonSGDLoss():
            step: Node = {
                "name": "PoissonSampledDpEvent",
                "sampling_probability": loss.sampling_probability,
                "event": {"name": "GaussianDpEvent", "noise_multiplier": loss.noise_multiplier},
            }
        case FixedBatchSGDLoss():
            noise = loss.noise_over_sensitivity
            step = {
                "name": "SampledWithoutReplacementDpEvent",
                "source_dataset_size": loss.num_records,
                "sample_size": loss.batch_size,
                "event": {"name": "GaussianDpEvent", "noise_multiplier": noise},
            }
        case _:
            raise TypeError(f"A {type(loss).__name__} has no event.")
    return {"name": "SelfComposedDpEvent", "event": step, "count": loss.steps}


def accountable(guarantee: Guarantee) -> Any:
    """The losses as an event that an accountant of dp-accounting takes; see there."""
    if guarantee.void is not None:
        return dp_event.NonPrivateDpEvent()
    fixed = [isinstance(loss, FixedBatchSGDLoss) for loss in guarantee.losses]
    if any(fixed) and not all(fixed):
        raise PrivacyError(
            "No accountant of dp-accounting takes batches of fixed size together with other "
            "losses under one meaning of their noise: convert the guarantees one by one."
        )
    events = [_accountable(loss, guarantee.relation) for loss in guarantee.losses]
    return events[0] if len(events) == 1 else dp_event.ComposedDpEvent(events)


def _accountable(loss: PrivacyLoss, relation: NeighboringRelation) -> Any:
    replaced = relation is NeighboringRelation.REPLACE_ONE
    if replaced and isinstance(loss, PureLoss) and loss.epsilon > 0:
        # Two answers, of which the wrong one has probability 1 / (1 + e^epsilon), dominate.
        wrong = 2 / (1 + math.exp(min(loss.epsilon, 700.0)))
        return dp_event.RandomizedResponseDpEvent(wrong, 2)
    node = _node(loss, relation)
    unknown = node["name"] in (_PARAMETERS, "RepeatAndSelectDpEvent")
    if unknown or relation is NeighboringRelation.BOUNDED_ROW:
        raise PrivacyError(
            f"dp-accounting has no event that bounds a {type(loss).__name__} under `relation` "
            f"{relation.name}."
        )
    return _event(node)


def _move(relation: NeighboringRelation) -> float:
    """What a change moves, over the norm in which noise is counted."""
    return 1.0 if relation is NeighboringRelation.BOUNDED_ROW else relation.sum_sensitivity


_PARAMETERS = "DifferentialPrivacyParameters"


def leaves(node: Node, count: int = 1) -> list[tuple[Node, int]]:
    """The parts of an event, each with how often it runs."""
    if node["name"] == "ComposedDpEvent":
        return [leaf for part in node["events"] for leaf in leaves(part, count)]
    if node["name"] == "SelfComposedDpEvent":
        return leaves(node["event"], count * node["count"])
    return [(node, count)] if node["name"] != "NoOpDpEvent" else []


# --- By dp-accounting alone. ---


@dataclass(frozen=True)
class Recomputed:
    """An epsilon, whether it is the true one or a bound of it, and how it was computed."""

    epsilon: float
    bound: Literal["none", "upper", "lower"]
    how: str


def recomputed(
    node: Node, relation: NeighboringRelation, delta: float, about: float
) -> list[Recomputed]:
    """The epsilon of an event at ``delta``, in every way that dp-accounting has.

    Args:
        node: From :func:`event_of`.
        relation: The neighbouring relation.
        delta: In [0, 1).
        about: Roughly what is expected, for the size of the grid only.

    Returns:
        A lower bound alone of too many parts or steps, and then nothing of a selection.
    """
    parts = leaves(node)
    if not parts:
        return [Recomputed(0.0, "none", "nothing was revealed")]
    summed = _added_up(parts, relation, delta)
    if summed is not None:
        return [Recomputed(summed, "none", "the parts, added up")]
    if delta == 0:
        return [Recomputed(math.inf, "none", "Gaussian noise has no epsilon at delta = 0")]
    names = {part["name"] for part, _ in parts}
    fewer = [
        (part, count if part["name"] == "GaussianDpEvent" else min(count, _MOST_COMPOSED))
        for part, count in parts
    ]
    if len(fewer) > MOST_PARTS and "RepeatAndSelectDpEvent" not in names:
        costly = sorted(fewer, key=lambda each: -each[1] * _expected(each[0], relation))
        fewer = costly[:MOST_PARTS]
    found = []
    if "RepeatAndSelectDpEvent" not in names:
        how = f"privacy-loss distributions of dp-accounting {version('dp-accounting')}"
        if fewer != parts:
            how = f"{how}, of {MOST_PARTS} parts and {_MOST_COMPOSED:,} steps of each at most"
        epsilon = _by_distributions(fewer, relation, delta, about)
        found.append(Recomputed(epsilon, "none" if fewer == parts else "lower", how))
    if (
        fewer == parts
        and len(parts) <= MOST_PARTS
        and names & {"RepeatAndSelectDpEvent", "SampledWithoutReplacementDpEvent"}
        and not names & {_PARAMETERS, "PoissonSampledDpEvent"}
        and all((part.get("shape") or 0.0) >= 0 for part, _ in parts)  # it knows no others
    ):
        accountant = dp_accounting.rdp.RdpAccountant(
            neighboring_relation=dp_accounting.NeighboringRelation.REPLACE_ONE
        )
        for part, count in parts:
            event, inner = _event(part), part["name"]
            if inner in ("GaussianDpEvent", "LaplaceDpEvent"):  # in its own units
                event = type(event)(event.noise_multiplier / _move(relation))
            accountant.compose(event, count)
        how = f"the Rényi accountant of dp-accounting {version('dp-accounting')}, an upper bound"
        found.append(Recomputed(float(accountant.get_epsilon(delta)), "upper", how))
    return found


def _event(node: Node) -> Any:
    """An event of dp-accounting."""
    values = {key: value for key, value in node.items() if key not in ("name", "event")}
    if "event" in node:
        values["event"] = _event(node["event"])
    if values.get("shape", 0) is None:
        values["shape"] = math.inf
    return getattr(dp_event, node["name"])(**values)


def _added_up(
    parts: list[tuple[Node, int]], relation: NeighboringRelation, delta: float
) -> float | None:
    """Basic composition; None where a part has no epsilon of its own, or delta is too small."""
    epsilons, deltas = [], []
    for part, count in parts:
        if part["name"] == "LaplaceDpEvent":
            epsilons.append(count * _move(relation) / part["noise_multiplier"])
        elif part["name"] == _PARAMETERS:
            epsilons.append(count * part["epsilon"])
            deltas.append(count * part["delta"])
        else:
            return None
    return math.fsum(epsilons) if math.fsum(deltas) <= delta * (1 + 1e-9) else None


def _by_distributions(
    parts: list[tuple[Node, int]], relation: NeighboringRelation, delta: float, about: float
) -> float:
    if sum(count * _expected(part, relation) for part, count in parts) > _MOST_LOSS:
        return math.inf
    reach = max(_reach(part, relation) for part, _ in parts)
    # Errors of many steps add up, so the grid is finer for them, unless their sum is too long.
    most = max([1, *(count for part, count in parts if part["name"] != "GaussianDpEvent")])
    least = reach / (_POINTS if most > 1000 else _POINTS / 10)
    interval = max(min(max(about, 1e-9), _MOST_LOSS) * 1e-4, least)
    if most > 1:
        rough = _epsilon_on(max(interval, reach / _ROUGH_POINTS), parts, relation, delta)
        interval = max(min(interval, 1e-4), least, min(rough, 1e9) / _COMPOSED_POINTS)
    return _epsilon_on(interval, parts, relation, delta)


def _epsilon_on(
    interval: float, parts: list[tuple[Node, int]], relation: NeighboringRelation, delta: float
) -> float:
    total: Any = None
    for part, count in parts:
        one = _distribution(part, relation, interval, count)
        total = one if total is None else total.compose(one)
    # (1 + 1e-9) exceeds what rounding adds to probabilities that add up to exactly delta.
    return float(total.get_epsilon_for_delta(delta * (1 + 1e-9)))


def _shift(part: Node, relation: NeighboringRelation) -> tuple[float, float]:
    """What a record moves, over the noise, and the fraction that a step draws."""
    noise = part.get("event", part)["noise_multiplier"]
    if "source_dataset_size" in part:
        return 1.0 / noise, part["sample_size"] / part["source_dataset_size"]
    return _move(relation) / noise, part.get("sampling_probability", 1.0)


def _expected(part: Node, relation: NeighboringRelation) -> float:
    """About the expected loss of one step, and rather too small."""
    if part["name"] in (_PARAMETERS, "LaplaceDpEvent"):
        return _reach(part, relation) * math.tanh(_reach(part, relation) / 2) / 2
    shift, fraction = _shift(part, relation)
    return float((fraction * shift) ** 2 / 2)


def _reach(part: Node, relation: NeighboringRelation) -> float:
    """The largest loss of a part that matters."""
    if part["name"] == _PARAMETERS:
        return float(part["epsilon"])
    if part["name"] == "LaplaceDpEvent":
        return _move(relation) / float(part["noise_multiplier"])
    shift, fraction = _shift(part, relation)
    whole = shift * (shift / 2 + _TAIL)
    return (
        float(np.logaddexp(math.log1p(-fraction), math.log(fraction) + whole))
        if (fraction < 1)
        else float(whole)
    )


def _distribution(part: Node, relation: NeighboringRelation, interval: float, count: int) -> Any:
    name = part["name"]
    replaced = relation is NeighboringRelation.REPLACE_ONE
    neighbours = dp_accounting.NeighboringRelation
    grid: dict[str, Any] = {"value_discretization_interval": interval}
    if name == "GaussianDpEvent":  # many of them are one with less noise
        noise = part["noise_multiplier"] / math.sqrt(count)
        return pld.from_gaussian_mechanism(noise, sensitivity=_move(relation), **grid)
    if name == "LaplaceDpEvent":
        one = pld.from_laplace_mechanism(
            part["noise_multiplier"], sensitivity=_move(relation), **grid
        )
    elif name == _PARAMETERS:
        values = common.DifferentialPrivacyParameters(part["epsilon"], part["delta"])
        one = pld.from_privacy_parameters(values, **grid)
    elif name == "PoissonSampledDpEvent":
        one = pld.from_gaussian_mechanism(
            part["event"]["noise_multiplier"],
            sampling_prob=part["sampling_probability"],
            neighboring_relation=neighbours.REPLACE_ONE
            if replaced
            else neighbours.ADD_OR_REMOVE_ONE,
            **grid,
        )
    else:
        one = _fixed_batch(part, interval, _reach(part, relation))
    return one if count == 1 else one.self_compose(count)


def _fixed_batch(part: Node, interval: float, reach: float) -> Any:
    """The distribution of a step on a batch of fixed size, from its profile."""
    z = part["event"]["noise_multiplier"]
    q = part["sample_size"] / part["source_dataset_size"]
    places = np.arange(math.ceil(reach / interval) + 1)
    epsilons = places * interval
    t = 0.5 + z**2 * np.log1p(np.expm1(epsilons) / q)
    tail = ndtr(-t / z)
    upper = (1 - q) * tail + q * ndtr((1 - t) / z) - np.exp(epsilons) * tail
    upper = np.minimum.accumulate(np.clip(upper, 0.0, 1.0))
    below = -np.expm1(-epsilons[:0:-1]) + np.exp(-epsilons[:0:-1]) * upper[:0:-1]
    rounded = np.concatenate([-places[:0:-1], places])
    deltas = np.concatenate([below, upper])
    return pld.PrivacyLossDistribution(
        create_pmf_pessimistic_connect_dots(interval, rounded, deltas)
    )
