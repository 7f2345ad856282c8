"""The settings of a descent: all public, all checked before a record is touched."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any, Literal, get_args

import torch
from botorch.models.model import Model
from gpytorch.kernels import Kernel
from torch import Tensor

from botorch_dp._checks import check_integer, check_nonnegative, check_positive, check_tensor
from botorch_dp.descent.designs import Design, DesignName, default_batch_size
from botorch_dp.descent.plan import descent_guarantee, gradient_noise_std
from botorch_dp.errors import NotPublicError
from botorch_dp.privacy import Guarantee, NeighboringRelation, PrivacyUnit, check_unit

PriorMean = Literal["constant", "zero"]


@dataclass(frozen=True)
class DescentSettings:
    """What a run is defined by, functions and the ledger aside; see :class:`DPGIBO`."""

    initial: Tensor
    mu: float
    steps: int
    clip_norm: float
    batch_size: int
    tolerance: float | None
    bounds: Tensor | None
    noise_variance: float
    design: DesignName
    radius: float | tuple[float, float] | None
    mean: PriorMean
    max_points: int
    unsafe_seed: int | None
    unit: PrivacyUnit

    @classmethod
    def checked(cls, *, batch_size: int | None, **settings: Any) -> DescentSettings:
        """The settings, or an error that names the one that cannot be."""
        initial = check_tensor("initial", settings["initial"], shape=(None,)).detach().clone()
        mu = check_positive("mu", settings["mu"], allow_inf=True)
        clip_norm = check_positive("clip_norm", settings["clip_norm"], allow_inf=True)
        if math.isinf(clip_norm) and math.isfinite(mu):
            raise ValueError(
                "`clip_norm` must be finite, got inf: without clipping one record can move the "
                "gradient by any amount. Only `mu=inf` (no privacy) may do without."
            )
        if settings["mean"] not in get_args(PriorMean):
            raise ValueError(
                f"`mean` must be one of {get_args(PriorMean)}, got {settings['mean']!r}."
            )
        if settings["tolerance"] is not None:
            check_positive("tolerance", settings["tolerance"])
        if settings["unsafe_seed"] is not None:
            check_integer("unsafe_seed", settings["unsafe_seed"], at_least=0)
        if batch_size is None:
            batch_size = default_batch_size(settings["design"], len(initial))
        radius = settings["radius"]
        checked = {
            "initial": initial,
            "unit": check_unit(settings["unit"], NeighboringRelation.REPLACE_ONE),
            "radius": tuple(radius) if isinstance(radius, list) else radius,
            "mu": mu,
            "clip_norm": clip_norm,
            "steps": check_integer("steps", settings["steps"]),
            "batch_size": check_integer("batch_size", batch_size),
            "bounds": _checked_bounds(settings["bounds"], initial),
            "noise_variance": check_nonnegative("noise_variance", settings["noise_variance"]),
            "max_points": check_integer("max_points", settings["max_points"], at_least=batch_size),
        }
        return cls(**{**settings, **checked})

    def make_design(self) -> Design:
        """The rule for the next points."""
        return Design(self.design, self.radius, self.bounds, self.noise_variance, self.tolerance)

    def guarantee(self, taken: int) -> Guarantee:
        """What the first ``taken`` steps promise."""
        guarantee = self.nominal_guarantee(taken)
        return guarantee if self.unsafe_seed is None else guarantee.simulated()

    def nominal_guarantee(self, taken: int) -> Guarantee:
        """What the first ``taken`` steps would promise with real noise."""
        return descent_guarantee(self.mu, steps=self.steps, taken=taken, unit=self.unit)

    def noise_std(self, num_records: int) -> float:
        """Standard deviation of the noise on each coordinate of each gradient."""
        if math.isinf(self.mu):
            return 0.0
        return gradient_noise_std(
            clip_norm=self.clip_norm, mu=self.mu, steps=self.steps, num_records=num_records
        )

    def described(self) -> dict[str, Any]:
        """The settings as plain numbers and words, to compare runs."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        words = [self.unit.protects, *self.unit.conditions]
        return {"unit": words} | {
            name: value.tolist() if isinstance(value, Tensor) else value
            for name, value in values.items()
            if name != "unit"
        }


def check_public_kernel(kernel: Kernel) -> None:
    """Refuse what may have learned from the records, as far as it can be seen."""
    if isinstance(kernel, Model):
        raise NotPublicError(
            f"`kernel` must be a gpytorch Kernel, got the model {type(kernel).__name__}, whose "
            "hyper-parameters may have been fitted to the records. Pass a kernel with "
            "hyper-parameters chosen without them."
        )
    if isinstance(kernel, Kernel) and any(p.grad is not None for p in kernel.parameters()):
        raise NotPublicError(
            f"`kernel` {type(kernel).__name__} has been trained (its parameters hold gradients). "
            "Hyper-parameters fitted to the records would void the guarantee; build a kernel with "
            "public ones."
        )


def described_kernel(kernel: Kernel) -> dict[str, Any]:
    """What tells two kernels apart, in plain numbers and words."""
    parameters = {name: value.tolist() for name, value in kernel.state_dict().items()}
    return {"class": str(kernel), **parameters}


def _checked_bounds(bounds: object, initial: Tensor) -> Tensor | None:
    """The box as ``2 x d`` like ``initial``, which must lie inside."""
    if bounds is None:
        return None
    lower, upper = check_tensor("bounds", bounds, shape=(2, len(initial))).to(initial)
    if bool((lower > upper).any()):
        raise ValueError("`bounds` must have lower <= upper in every coordinate.")
    outside = (initial < lower) | (initial > upper)
    if bool(outside.any()):
        raise ValueError(
            "`initial` must lie within `bounds`, but its coordinates "
            f"{outside.nonzero().flatten().tolist()} are outside."
        )
    return torch.stack((lower, upper))
