"""What a private descent gives back: what may be published, and what may not."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from botorch_dp.descent.clipping import ClippedMean
from botorch_dp.privacy import Guarantee, Release


@dataclass(frozen=True)
class StepRecord:
    """Public facts about one step: functions of the released iterates and the settings.

    Args:
        evaluations: How many points the losses were asked for.
        points: How many points the gradient was conditioned on.
        radius: Of the design, in length-scales.
        trace: Trace of the gradient's covariance for each record, at the step's location.
    """

    evaluations: int
    points: int
    radius: float
    trace: float


@dataclass
class DescentDiagnostics:
    """**Sensitive**: exact counts over the records, for the owner of the records only.

    Counts begin with the process: a resumed run has those of the steps it took itself.

    Args:
        clipped_fraction: For each step, the part of the records whose gradient was shortened.
        not_finite: For each step, how many records had a gradient that counted as zero because it
            was not finite.
    """

    clipped_fraction: list[float] = field(default_factory=list)
    not_finite: list[int] = field(default_factory=list)

    def add(self, mean: ClippedMean) -> None:
        """Count a step."""
        self.clipped_fraction.append(float(mean.clipped) / mean.num_records)
        self.not_finite.append(int(mean.not_finite))

    def __repr__(self) -> str:
        return f"DescentDiagnostics({len(self.not_finite)} steps; sensitive, not shown)"


@dataclass(frozen=True, repr=False)
class DescentResult:
    """The outcome of a private descent.

    ``location``, ``average`` and ``trajectory`` come from the same releases: publishing all three
    costs the one guarantee that each of them carries, not three times as much.

    Args:
        location: The last iterate, ``d``.
        average: The mean of the last half of the iterates, ``d``: closer than the last one when
            the run has reached the minimum and noise drives it around, worse when it has not.
        trajectory: All iterates, the initial point first, ``T + 1 x d``.
        history: Public facts about each step.
        diagnostics: Sensitive.
    """

    location: Release[Tensor]
    average: Release[Tensor]
    trajectory: Release[Tensor]
    history: tuple[StepRecord, ...]
    diagnostics: DescentDiagnostics

    @property
    def guarantee(self) -> Guarantee:
        """The one guarantee under which all of this may be published, diagnostics aside."""
        return self.location.guarantee

    def __repr__(self) -> str:
        return (
            f"DescentResult({len(self.history)} steps in {len(self.location.value)} parameters; "
            f"{self.guarantee})"
        )
