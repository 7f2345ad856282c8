"""What training returns: a model, what is promised for it, and what must stay private."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from botorch_dp.privacy import Guarantee
from botorch_dp.training.plan import TrainingPlan


@dataclass(frozen=True, repr=False)
class TrainingDiagnostics:
    """What was seen of the records in training. SENSITIVE: never publish it.

    Args:
        accuracy: The model's utility on the test records.
        unusable_records: Training records with values that are not finite or classes that do not
            exist; they never contribute a gradient.
        dropped_gradients: Gradients that were not finite and counted as zero.
    """

    accuracy: float
    unusable_records: int
    dropped_gradients: int

    def __repr__(self) -> str:
        return "TrainingDiagnostics(sensitive)"


@dataclass(frozen=True, eq=False, repr=False)
class Trained:
    """A trained model and what is promised for it.

    The guarantee covers ``model`` (and every state it went through), nothing else: the accuracy is
    computed from the test records and is sensitive.

    Args:
        model: The model, in evaluation mode.
        guarantee: What holds for the model; status ``"none"`` unless it was trained with
            ``publish=True``.
        plan: The public parameters of the run.
        steps: How many steps were taken.
        diagnostics: Sensitive.
    """

    model: nn.Module
    guarantee: Guarantee
    plan: TrainingPlan
    steps: int
    diagnostics: TrainingDiagnostics

    @property
    def accuracy(self) -> float:
        """The utility on the test records. Sensitive."""
        return self.diagnostics.accuracy

    @property
    def interrupted(self) -> bool:
        """Whether training was stopped before its last step."""
        return self.steps < self.plan.steps

    @property
    def epsilon(self) -> float:
        """The cost at ``plan.delta`` of the steps taken, had they been taken to publish the model.

        For tuning: a run under a seed promises nothing itself, and its guarantee says so.
        """
        return self.plan.guarantee_after(self.steps).epsilon(self.plan.delta)

    def __repr__(self) -> str:
        return f"Trained(steps={self.steps} of {self.plan.steps}, guarantee: {self.guarantee})"
