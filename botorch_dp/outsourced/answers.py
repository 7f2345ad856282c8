"""Answers that are sensitive themselves: measured, bounded, and released with noise."""

from __future__ import annotations

import math
from dataclasses import dataclass

from botorch_dp._checks import check_interval, check_positive
from botorch_dp.privacy import (
    Guarantee,
    PrivacyLedger,
    PrivacyUnit,
    laplace_guarantee,
    laplace_mechanism,
)


@dataclass(frozen=True)
class PrivateAnswers:
    """How answers are released when they are sensitive too.

    Guarantee: an answer that moves by at most ``sensitivity`` when one record behind it is
    replaced, plus Laplace noise of scale ``sensitivity / epsilon``, is epsilon-differentially
    private; every question is charged to the ledger before the objective is evaluated.
    Conditional, because the code cannot check the sensitivity of a black box; use
    ``bounds`` to clip answers and make it true by construction.

    Args:
        epsilon: The cost of one answer.
        sensitivity: The most an answer can move. Give this or ``bounds``.
        bounds: Public bounds to which answers are clipped; the sensitivity is their distance.
        ledger: Where each answer is charged.
    """

    epsilon: float
    sensitivity: float | None = None
    bounds: tuple[float, float] | None = None
    ledger: PrivacyLedger | None = None

    def __post_init__(self) -> None:
        check_positive("epsilon", self.epsilon)
        if (self.sensitivity is None) == (self.bounds is None):
            raise ValueError("Give exactly one of `sensitivity` and `bounds`.")
        if self.sensitivity is not None:
            check_positive("sensitivity", self.sensitivity)
        else:
            check_interval("bounds", self.bounds)

    @property
    def width(self) -> float:
        """The sensitivity of one answer."""
        if self.bounds is not None:
            return self.bounds[1] - self.bounds[0]
        assert self.sensitivity is not None
        return self.sensitivity

    @property
    def guarantee(self) -> Guarantee:
        """What one answer costs."""
        conditions: tuple[str, ...] = ()
        if self.bounds is None:
            conditions = (f"an answer moves by at most {self.width!r} when one record is replaced",)
        return laplace_guarantee(
            sensitivity=self.width,
            epsilon=self.epsilon,
            unit=PrivacyUnit("one record behind an answer", conditions=conditions),
        )

    def bounded(self, answer: float) -> float:
        """Clip to the bounds, NaN to the lower one: no answer may raise."""
        if self.bounds is None:
            return answer if math.isfinite(answer) else 0.0
        low, high = self.bounds
        return low if math.isnan(answer) else min(max(answer, low), high)

    def released(self, answer: float, *, unsafe_seed: int | None = None) -> float:
        """The answer with fresh noise; the caller has charged it."""
        release = laplace_mechanism(
            self.bounded(answer),
            sensitivity=self.width,
            epsilon=self.epsilon,
            unsafe_seed=unsafe_seed,
        )
        return float(release.value)
