"""Designs: points to evaluate that were chosen without looking at a sensitive value.

A design is a recipe rather than a tensor. Its points follow from public parameters alone, so points
that a search visited cannot pass for one by accident.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from functools import cached_property

import torch
from gpytorch.kernels import Kernel
from torch import Tensor
from torch.quasirandom import SobolEngine

from botorch_dp._checks import check_integer, check_positive, check_tensor
from botorch_dp.errors import NotPublicError
from botorch_dp.models.finite import FiniteSetGP
from botorch_dp.models.public import frozen_kernel


class PublicDesign(ABC):
    """Points that do not depend on sensitive values."""

    @property
    @abstractmethod
    def points(self) -> Tensor:
        """The points, ``m x d``, each call a fresh copy."""

    @property
    def conditions(self) -> tuple[str, ...]:
        """What a guarantee that builds on this design has to take on trust."""
        return ()


@dataclass(frozen=True, eq=False)
class SobolDesign(PublicDesign):
    """Scrambled Sobol points in a box.

    Args:
        bounds: Lower and upper corner, ``2 x d``.
        num_points: The number ``m`` of points.
        seed: Of the scrambling; fixed beforehand like everything else.

    Example:
        >>> design = SobolDesign(torch.tensor([[0.0, 0.0], [1.0, 1.0]]).double(), num_points=16)
        >>> design.points.shape
        torch.Size([16, 2])
    """

    bounds: Tensor
    num_points: int
    seed: int = 0

    def __post_init__(self) -> None:
        bounds = check_tensor("bounds", self.bounds, shape=(2, None)).detach().clone()
        if not bool((bounds[0] <= bounds[1]).all()):
            raise ValueError("`bounds` must hold the lower corner in row 0, the upper in row 1.")
        check_integer("num_points", self.num_points)
        check_integer("seed", self.seed, at_least=0)
        object.__setattr__(self, "bounds", bounds)

    @property
    def points(self) -> Tensor:
        """The points, ``m x d``."""
        low, high = self.bounds
        engine = SobolEngine(len(low), scramble=True, seed=self.seed)
        unit = engine.draw(self.num_points, dtype=torch.double).to(self.bounds)
        return low + (high - low) * unit


@dataclass(frozen=True, eq=False)
class MaxVarianceDesign(PublicDesign):
    """Choices picked one after the other where the posterior variance is largest.

    The posterior variance depends on where was observed, not on what was observed.

    Args:
        choices: Where points may be, ``N x d``.
        num_points: The number ``m`` of points.
        kernel: Prior covariance, fixed without looking at sensitive values.
        noise_variance: Of one observation, in units of the kernel.

    Example:
        >>> choices = torch.linspace(0, 1, 100, dtype=torch.double).unsqueeze(-1)
        >>> design = MaxVarianceDesign(
        ...     choices, num_points=8, kernel=RBFKernel(), noise_variance=0.1
        ... )
    """

    choices: Tensor
    num_points: int
    kernel: Kernel
    noise_variance: float

    def __post_init__(self) -> None:
        choices = check_tensor("choices", self.choices, shape=(None, None)).detach().clone()
        check_integer("num_points", self.num_points)
        check_positive("noise_variance", self.noise_variance)
        object.__setattr__(self, "choices", choices)
        object.__setattr__(self, "kernel", frozen_kernel(self.kernel, choices))

    @cached_property
    def indices(self) -> tuple[int, ...]:
        """The rows of ``choices`` that were picked; the first one of equals."""
        model = FiniteSetGP(self.choices, kernel=self.kernel, noise_variance=self.noise_variance)
        picked = []
        for _ in range(self.num_points):
            picked.append(int(model.variance.argmax()))
            model.observe(picked[-1], 0.0)
        return tuple(picked)

    @property
    def points(self) -> Tensor:
        """The points, ``m x d``."""
        return self.choices[list(self.indices)]


@dataclass(frozen=True, eq=False)
class StatedDesign(PublicDesign):
    """Points whose origin nobody can check; guarantees become conditional on your word.

    Args:
        chosen: The points, ``m x d``.
        origin: How they were chosen without looking at sensitive values, in words that can follow
            "the points are ".

    Example:
        >>> design = StatedDesign(points, origin="the defaults printed in the library's manual")
    """

    chosen: Tensor = field(repr=False)
    origin: str

    def __post_init__(self) -> None:
        chosen = check_tensor("chosen", self.chosen, shape=(None, None)).detach().clone()
        if not isinstance(self.origin, str) or not self.origin.strip():
            raise ValueError(
                "`origin` must say how the points were chosen without looking at sensitive values."
            )
        object.__setattr__(self, "chosen", chosen)

    @property
    def points(self) -> Tensor:
        """The points, ``m x d``."""
        return self.chosen.clone()

    @property
    def conditions(self) -> tuple[str, ...]:
        """The statement that was made."""
        return (
            "the evaluated points were chosen without looking at sensitive values: the points are "
            f"{self.origin.strip()}",
        )


def check_public_design(design: object) -> PublicDesign:
    """Return ``design``, or raise :class:`NotPublicError` for anything else than a design."""
    if type(design) in (SobolDesign, MaxVarianceDesign, StatedDesign):
        assert isinstance(design, PublicDesign)
        return design
    raise NotPublicError(
        f"`design` must be a SobolDesign or a MaxVarianceDesign, got {type(design).__name__}. "
        "Where a search looks next depends on sensitive values it has seen, and then the weights "
        "of the posterior mean do, too, so that this release would not be private. Evaluate a "
        "design, or make the search private with PrivateObjective. Points that you know to be "
        "public may be passed as StatedDesign(points, origin=...): a promise on your word."
    )
