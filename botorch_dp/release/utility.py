r"""How much a release can be worth, said before anything is spent.

Every bound follows from the noise alone. With ``scale`` the noise scale and ``a = log(1/p)``:

* Laplace noise is at most ``scale * a`` in absolute value, but for probability ``p``;
* a choice drawn from ``n`` with probability proportional to ``exp(utility / scale)``, or by
  permute-and-flip at that scale, has a utility of at least ``max - scale * (log n + a)``, but for
  probability ``p``.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass

from botorch_dp._checks import check_delta, check_integer
from botorch_dp.privacy._noise import SelectionMethod


class UtilityWarning(UserWarning):
    """A release that is private, but hardly worth publishing; or a ``delta`` that protects few."""


@dataclass(frozen=True)
class UtilityBound:
    """How far a released value may be from the best one, in the units of the objective.

    Args:
        subject: What is compared with what, in words.
        noise: The part of the loss that the privacy noise is responsible for.
        model: The rest: how far the search and its model may be off.
        probability: With which probability the loss stays below ``noise + model``.
        spread: By how much values differ before anything is known of them: noise of this size
            drowns the answer.
        remark: What the noise means for this release, in numbers.

    Example:
        >>> bound = choice_utility(
        ...     epsilon=1.0, delta=1e-3, steps=50, num_choices=1000, dataset_correlation=0.99
        ... )
        >>> bound.drowned
        True
    """

    subject: str
    noise: float
    model: float
    probability: float
    spread: float
    remark: str = ""

    @property
    def loss(self) -> float:
        """The bound: ``noise + model``."""
        return self.noise + self.model

    @property
    def drowned(self) -> bool:
        """Whether the noise may be as large as what is to be told apart."""
        return self.noise >= self.spread

    def __str__(self) -> str:
        sentence = (
            f"With probability {self.probability:.4g}, {self.subject} by at most {self.loss:.3g} "
            f"({self.noise:.3g} from the privacy noise, {self.model:.3g} from the search); values "
            f"differ by about {self.spread:.3g} before anything is known of them."
        )
        return f"{sentence} {self.remark}" if self.remark else sentence


def laplace_tail(scale: float, confidence: float) -> float:
    """What Laplace noise of this scale stays within, with probability ``confidence``."""
    return scale * math.log(1 / _failure(confidence))


def selection_tail(scale: float, num_choices: int, confidence: float) -> float:
    """How far a drawn utility stays from the best of ``num_choices``, with that probability."""
    return scale * (math.log(num_choices) + math.log(1 / _failure(confidence)))


def best_choice_probability(
    scale: float, num_choices: int, spread: float, method: SelectionMethod
) -> float:
    """The probability of drawing the best choice when all others are worse by ``spread``.

    No utilities within ``spread`` of each other give the best one a larger probability. For
    permute-and-flip each choice before the best in the random order is passed over with probability
    ``1 - q``, ``q = exp(-spread / scale)``.
    """
    q = math.exp(-spread / scale)
    if method == "exponential":
        return 1 / (1 + (num_choices - 1) * q)
    if q == 0:
        return 1.0
    return (
        -math.expm1(num_choices * math.log1p(-q)) / (num_choices * q) if q < 1 else 1 / num_choices
    )


def prior_spread(num_choices: int) -> float:
    """How large ``num_choices`` unit Gaussians become: ``E max <= sqrt(2 log n)``; at least 1."""
    return max(1.0, math.sqrt(2 * math.log(num_choices)))


def warn_if_drowned(bound: UtilityBound, *, stacklevel: int = 3) -> None:
    """Warn when the privacy noise may hide the answer."""
    if bound.drowned:
        warnings.warn(
            f"The privacy noise may drown this release. {bound} Raise `epsilon`, or compare "
            "fewer choices.",
            UtilityWarning,
            stacklevel=stacklevel,
        )


def warn_if_delta_is_large(delta: float, num_records: int | None, *, stacklevel: int = 3) -> None:
    """Warn when ``delta`` is not below ``1 / num_records``."""
    if num_records is None:
        return
    check_integer("num_records", num_records)
    if delta >= 1 / num_records:
        warnings.warn(
            f"`delta` = {delta:g} is not below 1/{num_records}: a mechanism that publishes a "
            "random record in full could claim as much. Choose a `delta` well below "
            "1 / `num_records`.",
            UtilityWarning,
            stacklevel=stacklevel,
        )


def _failure(confidence: float) -> float:
    return 1 - check_delta("confidence", confidence)
