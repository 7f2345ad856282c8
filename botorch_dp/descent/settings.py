"""Settings, plan and result of a descent: what was chosen, what follows from it, what comes out.

The settings are all public and are checked before a record is touched.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from fractions import Fraction
from functools import cached_property
from typing import Any

from gpytorch.kernels import Kernel
from torch import Tensor

from botorch_dp._checks import check_integer, check_positive, check_tensor
from botorch_dp.descent.designs import Design
from botorch_dp.descent.step import DescentDiagnostics
from botorch_dp.errors import NotPublicError
from botorch_dp.privacy import GaussianLoss, Guarantee, NeighboringRelation, PrivacyUnit, Release
from botorch_dp.privacy.guarantee import ONE_RECORD, check_unit
from botorch_dp.privacy.rounding import sqrt_below

_MECHANISM = "Gaussian mechanism on clipped gradients"

#: What rests on the caller wherever the losses of single records are read.
PER_RECORD = ("a record's losses depend on that record only", "the number of records is public")
_CHOSEN = (
    "the start, the kernel, the box and the other settings were chosen without the records or from "
    "released values"
)


# --- What was chosen. ---


@dataclass(frozen=True, eq=False)
class DescentSettings:
    """What a run is defined by, the functions and the ledger aside.

    They are those of :class:`~botorch_dp.descent.DPGIBO`. Everything is checked on construction,
    and an error names the one that cannot be; what rests on the caller is added to the ``unit``.
    """

    initial: Tensor
    mu: float
    steps: int
    clip_norm: float
    box: Tensor | None = None
    design: Design = field(default_factory=Design)
    unit: PrivacyUnit = ONE_RECORD
    unsafe_seed: int | None = None

    def __post_init__(self) -> None:
        initial = check_tensor("initial", self.initial, shape=("d",)).detach().clone()
        check_integer("max_points", self.design.max_points, at_least=self.design.size(len(initial)))
        if self.unsafe_seed is not None:
            check_integer("unsafe_seed", self.unsafe_seed, at_least=0)
        unit = check_unit(self.unit, NeighboringRelation.REPLACE_ONE)
        checked = {
            "initial": initial,
            "mu": check_positive("mu", self.mu, allow_inf=True),
            "steps": check_integer("steps", self.steps),
            "clip_norm": check_positive("clip_norm", self.clip_norm, allow_inf=True),
            "box": None if self.box is None else _box_around(self.box, initial),
            "unit": unit.given(*PER_RECORD, _CHOSEN),
        }
        for name, value in checked.items():
            object.__setattr__(self, name, value)
        if math.isinf(self.clip_norm) and math.isfinite(self.mu):
            raise ValueError(
                "`clip_norm` must be finite, got inf: without clipping one record can move the "
                "gradient by any amount. Only `mu=inf` (no privacy) may do without."
            )

    @cached_property
    def batch_size(self) -> int:
        """Points for each step; the most points where the design has a tolerance."""
        return self.design.size(len(self.initial))

    @cached_property
    def step_mu(self) -> float:
        """``mu / sqrt(steps)``, rounded down: ``steps`` squares of it never exceed ``mu^2``."""
        if math.isinf(self.mu):
            return self.mu
        return sqrt_below(Fraction(self.mu) ** 2 / self.steps)

    @cached_property
    def step_price(self) -> Guarantee:
        """What one step costs; under a seed nothing is guaranteed or charged."""
        price = self._guarantee("DP-GIBO", self.step_mu)
        return price if self.unsafe_seed is None else price.simulated()

    def guarantee(self, taken: int | None = None) -> Guarantee:
        """The guarantee of the run, which is the same whenever it stops.

        Where it stops may depend on what was released, so what had been spent by then is no
        guarantee: the one that was fixed in advance holds, that of all steps.

        Args:
            taken: How many steps were taken; fewer than all are named. All of them if None.
        """
        name = "DP-GIBO"
        if taken not in (None, self.steps):
            name += f", {taken} of the {self.steps} steps that this covers"
        guarantee = self._guarantee(name, self.mu)
        return guarantee if self.unsafe_seed is None else guarantee.simulated()

    def _guarantee(self, name: str, mu: float) -> Guarantee:
        if math.isinf(mu):
            return Guarantee(
                mechanism="gradient-informed Bayesian optimization without noise",
                unit=self.unit,
                losses=(),
                void="mu is infinite, so no noise is added",
            )
        return Guarantee(f"{_MECHANISM} ({name})", self.unit, (GaussianLoss(mu),))

    def noise_std(self, num_records: int) -> float:
        """Standard deviation of the noise on each coordinate of each gradient."""
        return 0.0 if math.isinf(self.mu) else 2 * self.clip_norm / (num_records * self.step_mu)

    def to_dict(self) -> dict[str, Any]:
        """The settings as plain numbers and words, to compare runs."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        design, unit = values.pop("design"), values.pop("unit")
        values |= {f.name: getattr(design, f.name) for f in fields(design)}
        values |= {"design": values.pop("name"), "batch_size": self.batch_size}
        return {"unit": [unit.protects, *unit.conditions]} | {
            name: value.tolist() if isinstance(value, Tensor) else value
            for name, value in values.items()
        }


def check_box(box: object, dim: int | None = None) -> Tensor:
    """The ``2 x d`` box, or an error that says what is wrong with it."""
    lower, upper = checked = check_tensor("box", box, shape=(2, dim or "d"))
    if bool((lower > upper).any()):
        raise ValueError("`box` must have lower <= upper in every coordinate.")
    return checked


def _box_around(box: object, initial: Tensor) -> Tensor:
    """The box in the dtype and on the device of ``initial``, which must lie inside."""
    lower, upper = checked = check_box(box, len(initial)).to(initial)
    outside = (initial < lower) | (initial > upper)
    if bool(outside.any()):
        raise ValueError(
            "`initial` must lie within `box`, but its coordinates "
            f"{outside.nonzero().flatten().tolist()} are outside."
        )
    return checked.clone()


def check_public_kernel(kernel: Kernel) -> None:
    """Refuse what may have learned from the records, as far as it can be seen."""
    if isinstance(kernel, Kernel) and any(p.grad is not None for p in kernel.parameters()):
        raise NotPublicError(
            f"`kernel` {type(kernel).__name__} has been trained (its parameters hold gradients). "
            "Hyper-parameters fitted to the records would void the guarantee; build a kernel with "
            "public ones."
        )


def kernel_settings(kernel: Kernel) -> dict[str, Any]:
    """What tells two kernels apart, in plain numbers and words."""
    parameters = {name: value.tolist() for name, value in kernel.state_dict().items()}
    return {"class": str(kernel), **parameters}


# --- What follows from it. ---


@dataclass(frozen=True)
class DescentPlan:
    """Public facts about a descent that has not begun: its cost, its noise and its memory.

    Args:
        num_records: ``n``.
        num_parameters: ``d``.
        steps: ``T``.
        evaluations: How many points the losses will be asked for, at most.
        clip_norm: ``B``.
        noise_std: Standard deviation of the noise on each coordinate of each gradient.
        table_bytes: Memory of the losses that are kept.
        guarantee: Of the whole run.
    """

    num_records: int
    num_parameters: int
    steps: int
    evaluations: int
    clip_norm: float
    noise_std: float
    table_bytes: int
    guarantee: Guarantee

    @property
    def noise_to_clip(self) -> float:
        """Typical length of one step's noise over the longest gradient there can be.

        Above 1 a single step is mostly noise even if all records agree; a descent can still
        succeed by averaging over its steps, as long as this is below about ``sqrt(steps)``.
        """
        return self.noise_std * math.sqrt(self.num_parameters) / self.clip_norm

    @property
    def advice(self) -> str:
        """One sentence on whether the setting can work."""
        ratio = self.noise_to_clip
        if ratio > math.sqrt(self.steps):
            return (
                "Hopeless: the noise outweighs the gradients even when averaged over all steps. "
                "Raise mu, use more records or fewer parameters."
            )
        if ratio > 1:
            return (
                "Noisy: each step carries more noise than gradient. Use a small step size or fewer "
                "steps, and publish the average of the iterates rather than the last."
            )
        return "Workable: the noise of a step is smaller than the largest gradient."

    def __str__(self) -> str:
        return "\n".join(
            (
                f"{self.steps} steps in {self.num_parameters} parameters on {self.num_records:,} "
                f"records, at most {self.evaluations} evaluations of all records.",
                f"Noise of a step: {self.noise_to_clip:.3g} times the clipping norm "
                f"{self.clip_norm:.3g} ({self.noise_std:.3g} per coordinate). {self.advice}",
                f"Memory for the losses: {self.table_bytes / 1e6:.1f} MB.",
                self.guarantee.in_plan,
            )
        )


# --- What comes out. ---


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


@dataclass(frozen=True, repr=False)
class DescentResult:
    """The outcome of a private descent.

    ``location``, ``average`` and ``trajectory`` come from the same releases: publishing all three
    costs the one guarantee that each of them carries, not three times as much. That guarantee is
    the one of the whole run, also where the run was stopped early; its text then says so.

    Args:
        location: The last iterate, ``d``.
        average: The mean of the last half of the iterates, ``d``: closer than the last one when
            the run has reached the minimum and noise drives it around, worse when it has not.
        trajectory: All iterates, the initial point first, one more than the steps taken, ``x d``.
        history: Public facts about each step.
        planned_steps: How many steps the run was to take; the guarantee covers all of them.
        diagnostics: Sensitive.
    """

    location: Release[Tensor]
    average: Release[Tensor]
    trajectory: Release[Tensor]
    history: tuple[StepRecord, ...]
    planned_steps: int
    diagnostics: DescentDiagnostics

    @property
    def guarantee(self) -> Guarantee:
        """The one guarantee under which all of this may be published, diagnostics aside."""
        return self.location.guarantee
