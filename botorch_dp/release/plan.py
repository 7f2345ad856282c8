"""What a private search promises before it runs, and what it returns."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from botorch_dp.privacy import Guarantee, Release, compose
from botorch_dp.release.bounds import LaplaceMaximum
from botorch_dp.release.choice import ChoiceMechanism
from botorch_dp.release.search import SearchDiagnostics
from botorch_dp.release.utility import UtilityBound


@dataclass(frozen=True, kw_only=True)
class ReleasePlan:
    """What a run of the given length will promise and be worth; known before it starts.

    Args:
        choice: The mechanism behind the choice.
        maximum: The mechanism behind the maximum.
        confidence: Of the utility bounds.
    """

    choice: ChoiceMechanism
    maximum: LaplaceMaximum
    confidence: float

    @property
    def guarantee(self) -> Guarantee:
        """Of both releases together."""
        return compose(self.choice.guarantee, self.maximum.guarantee)

    @property
    def choice_utility(self) -> UtilityBound:
        """How much worse than the best the released choice may be."""
        return self.choice.utility(self.confidence)

    @property
    def maximum_utility(self) -> UtilityBound:
        """How far the released maximum may be from the true one."""
        return self.maximum.utility(self.confidence)

    def __str__(self) -> str:
        return f"{self.guarantee}\nChoice: {self.choice_utility}\nMaximum: {self.maximum_utility}"


@dataclass(frozen=True, kw_only=True, eq=False)
class PrivateOptimum:
    """The two releases of a run.

    Args:
        choice: The private choice.
        maximum: The private maximum.
        plan: What was known before the run.
        diagnostics: What the search saw. **Sensitive.**
    """

    choice: Release[Tensor]
    maximum: Release[float]
    plan: ReleasePlan
    diagnostics: SearchDiagnostics = field(repr=False)

    @property
    def guarantee(self) -> Guarantee:
        """Of publishing both: the epsilons and deltas add up."""
        return compose(self.choice.guarantee, self.maximum.guarantee)
