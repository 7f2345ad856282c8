"""One step of DP-GIBO [Sopa2025]: the noisy mean of clipped gradients at a location.

Where to ask follows from what was released; the losses of all records there are kept in a table and
turned into gradients, a chunk of the records at a time. The mean of the clipped gradients has a
sensitivity that holds in floating point too, and is released with Gaussian noise. Where to go next
is for the caller to say: :class:`~botorch_dp.descent.DPGIBO` follows an optimizer, and the descent
of :class:`~botorch_dp.tuning.PrivateSearch` a Gaussian process on what was released.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from botorch_dp.descent.designs import Design
from botorch_dp.models.gradient import GradientBelief, KernelFactor
from botorch_dp.privacy import Guarantee, gaussian_mechanism
from botorch_dp.privacy.runs import Run
from botorch_dp.scores import PerRecordLosses, checked_scores, without_subnormals

_EPS, _TINY = torch.finfo(torch.double).eps, torch.finfo(torch.double).tiny
# Numbers that the gradients of a chunk of the records have: two megabytes. With smaller chunks the
# products take longer, with larger ones the rest.
_CHUNK_NUMBERS, _LEAST_CHUNK = 2**18, 512
# The reciprocal of a larger number is subnormal, and slow to compute with.
_HUGE = 2.0**1020


@dataclass(frozen=True)
class Observations:
    """All points in use, with their factor and the losses of all records there.

    The losses are sensitive: ``N x n`` numbers, kept because every gradient is conditioned on all
    of them.

    Args:
        factor: The points and the factor of their kernel matrix; public.
        losses: For each step, oldest first, the losses at its points, ``b x n``.
        steps: Which steps these are; public.
    """

    factor: KernelFactor
    losses: tuple[Tensor, ...] = ()
    steps: tuple[int, ...] = ()

    def __repr__(self) -> str:
        return f"Observations({len(self.factor)} points; sensitive losses)"

    @property
    def num_records(self) -> int:
        """``n``."""
        return self.losses[0].shape[-1]

    def with_batch(self, factor: KernelFactor, losses: Tensor, step: int) -> Observations:
        """These observations and those of one more step, whose points ``factor`` has already."""
        if len(losses) == 0:
            return self
        return Observations(factor, (*self.losses, losses), (*self.steps, step))

    def within(self, limit: int) -> Observations:
        """The newest batches that have at most ``limit`` points together."""
        sizes = [len(losses) for losses in self.losses]
        dropped = 0
        while sum(sizes[dropped:]) > limit:
            dropped += 1
        if dropped == 0:
            return self
        factor = self.factor.without_oldest(sum(sizes[:dropped]))
        return Observations(factor, self.losses[dropped:], self.steps[dropped:])

    def gradients(self, weights: Tensor) -> Iterator[Tensor]:
        """``weights^T L`` (``N x d`` and ``N x n``), some columns at a time: ``d x m``."""
        first, *others = weights.mT.split([len(losses) for losses in self.losses], dim=1)
        most = max(_CHUNK_NUMBERS // weights.shape[-1], _LEAST_CHUNK)
        size = math.ceil(self.num_records / math.ceil(self.num_records / most))
        for start in range(0, self.num_records, size):
            first_part, *parts = (losses[:, start : start + size] for losses in self.losses)
            total = first @ first_part
            for part, losses in zip(others, parts, strict=True):
                total.addmm_(part, losses)
            yield total


@dataclass(frozen=True, eq=False)
class GradientStep:
    """One step before any record is asked: where to ask, and what the answers will say. Public.

    Args:
        before: What was observed before, as far as it is still in use.
        number: Which step of the run it is, counted from 0.
        factor: The points in use, the new ones included.
        points: Where the losses are to be asked for, ``b x d``.
        kept: Which of the proposed points these are. Points that depend on others are left out.
        belief: What is known of the gradient given the losses at all these points.
        radius: Of the design, in length-scales.
    """

    before: Observations
    number: int
    factor: KernelFactor
    points: Tensor
    kept: Tensor
    belief: GradientBelief
    radius: float

    @classmethod
    def of(
        cls,
        observations: Observations,
        location: Tensor,
        design: Design,
        noise: float,
        *,
        number: int,
        steps: int,
        box: Tensor | None = None,
        previous: float | None = None,
        placed: Callable[[Tensor], Tensor] = lambda points: points,
    ) -> GradientStep:
        """Propose points around a location, given the observations of the steps before.

        Args:
            noise: The variance that the model assumes in each loss.
            placed: Moves proposed points to where losses can be asked for.
            number: As for :meth:`Design.propose`, where it is ``step``; likewise what follows.
        """
        size = design.size(len(location))
        before = observations.within(max(0, design.max_points - size))
        belief = GradientBelief(before.factor, location, unknown_mean=design.mean == "constant")
        found = design.propose(belief, box=box, step=number, steps=steps, previous=previous)
        points, radius = placed(found[0]), found[1]
        factor, kept = before.factor.extended(points, noise)
        if len(kept):
            belief = belief.extended(factor)
        return cls(before, number, factor, points[kept], kept, belief, radius)

    def answered(self, losses: Tensor) -> Observations:
        """All observations, given the losses at :attr:`points`, ``b x n``."""
        return self.before.with_batch(self.factor, losses, self.number)

    def clipped_mean(self, observations: Observations, clip_norm: float) -> ClippedMean:
        """The mean of the records' clipped gradients, without noise. **Sensitive.**"""
        weights = self.belief.weights
        mean = ClippedMean(weights.shape[-1], observations.num_records, clip_norm, weights.device)
        for gradients in observations.gradients(weights):
            mean.add(gradients)
        return mean

    def release(
        self,
        run: Run,
        observe: Callable[[], Observations],
        *,
        clip_norm: float,
        mu: float,
        price: Guarantee,
        key: str,
        label: str,
        unsafe_seed: int | None,
    ) -> tuple[Tensor, Observations, ClippedMean]:
        """The noisy mean of the clipped gradients, drawn once under its key, and what was read.

        Guarantee: ``mu``-Gaussian differential privacy. A record enters through its own column of
        losses, that is through one vector of norm at most ``B``, so replacing it moves the mean by
        at most ``2 B / n``.

        Args:
            run: Stores what is drawn; its ledger is charged before the records are asked.
            observe: Asks the records, and returns all observations, these included.
            clip_norm: ``B``.
            mu: The privacy parameter of this step; infinite for no noise, which nobody charges.
            price: What a ledger is charged.
            key: Names the gradient in the run.
            label: The ledger's note.
            unsafe_seed: Of simulated noise, or None for real noise.

        Returns:
            The gradient, which is released; all observations and the mean without noise, which are
            **sensitive**.
        """

        @functools.cache
        def read() -> tuple[Observations, ClippedMean]:
            observations = observe()
            return observations, self.clipped_mean(observations, clip_norm)

        def draw(material: tuple[Observations, ClippedMean]) -> Tensor:
            mean = material[1]
            sensitivity = 2 * clip_norm / mean.num_records
            return gaussian_mechanism(
                mean.value(), sensitivity=sensitivity, mu=mu, unsafe_seed=unsafe_seed
            ).value

        if math.isinf(mu):
            value = read()[1].value()
        else:
            value = run.release(price, draw, read=read, key=key, label=label)
        # A gradient may have been replayed; its losses are needed by the steps to come.
        return value, *read()


def read_losses(record_losses: PerRecordLosses, X: Tensor, num_records: int | None) -> Tensor:
    """The losses of all records at the rows of ``X`` (``b x d``), as a ``b x n`` tensor.

    Only the shape and the type are checked: what a single record says must not raise. The first
    time ``num_records`` is None.
    """
    found = checked_scores(record_losses(X), num_points=X.shape[0], num_records=num_records)
    return without_subnormals(found.to(X, copy=True))


class ClippedMean:
    r"""The mean over records of gradients clipped to an l2 norm, or to an l1 norm.

    Sensitivity: a record contributes one vector of norm at most ``B`` (zero if its gradient is not
    finite), so replacing it moves the sum by at most ``2B`` and the mean by at most ``2B / n`` in
    that norm, whatever the record says. To keep this true on a computer,

    - the norm is taken of ``g / max|g|``, which cannot overflow;
    - the sum is taken in 64-bit fixed point, each entry rounded towards zero: it is exact and the
      same in any order, where a floating-point sum of ``n`` terms may differ by ``n`` roundings;
    - the bound is lowered by the few roundings that are left (a part in 1e12 for a thousand
      records).

    Every record takes the same operations, so a record cannot change the time it takes.

    Args:
        dim: The number of parameters ``d``.
        num_records: ``n``, at most 2^31.
        clip_norm: ``B``; infinite for a plain mean, which has no sensitivity.
        device: Of the gradients; torch's default if None.
        norm: Which norm is bounded: ``"l2"`` for Gaussian noise, ``"l1"`` for Laplace noise.
    """

    def __init__(
        self,
        dim: int,
        num_records: int,
        clip_norm: float,
        device: torch.device | None = None,
        norm: Literal["l1", "l2"] = "l2",
    ) -> None:
        self.num_records = num_records
        self.norm = norm
        self.bound = clip_norm * (1 - (4 * num_records + 2 * dim + 16) * _EPS)
        # A sum of n entries, each at most 2^bits, stays below 2^62; below 2^52 doubles are exact.
        bits = min(52, 62 - math.ceil(math.log2(num_records)))
        self.unit = clip_norm * 2.0**-bits
        kind = torch.double if self.is_plain else torch.int64
        self.total = torch.zeros(dim, dtype=kind, device=device)
        self._counts = torch.zeros(2, dtype=torch.int64, device=device)  # shortened, finite
        self._seen = 0

    @property
    def is_plain(self) -> bool:
        """Whether nothing is clipped."""
        return math.isinf(self.bound)

    def add(self, gradients: Tensor) -> None:
        """Count in the gradients of some records, ``d x m``, one column for each."""
        gradients = gradients.double()
        self._seen += gradients.shape[-1]
        space = gradients.abs()
        largest = space.amax(0)
        finite = largest < math.inf  # NaN if one entry is
        if self.is_plain:
            self.total += torch.where(finite, gradients, 0.0).sum(-1)
            self._counts[1] += finite.sum()
            return
        scale = largest.clamp(_TINY, _HUGE)
        directions = gradients * (1 / scale)  # entries within [-16, 16]
        # In place, here and below: a fresh table costs more than the arithmetic.
        if self.norm == "l1":
            norms = torch.abs(directions, out=space).sum(0)
        else:
            norms = torch.mul(directions, directions, out=space).sum(0).sqrt_()
        limit = self.bound / norms.clamp_min_(_EPS)
        directions *= torch.fmin(scale, limit) / self.unit
        entries = directions.long()  # rounded towards zero; any integer where it is not finite
        entries &= -finite.long()
        self.total += entries.sum(-1)
        self._counts += torch.stack((finite & (scale > limit), finite)).sum(-1)

    def value(self) -> Tensor:
        """The mean over all ``n`` records, a ``d``-vector of doubles."""
        mean = self.total.double() / self.num_records
        return mean if self.is_plain else mean * self.unit

    def counts(self) -> tuple[int, int]:
        """How many gradients were shortened, and how many were not finite. **Sensitive.**"""
        clipped, finite = self._counts.tolist()
        return clipped, self._seen - finite


@dataclass
class DescentDiagnostics:
    """**Sensitive**: exact counts over the records, for the owner of the records only.

    Counts begin with the process: a resumed run has those of the steps it took itself.

    Args:
        clipped_fraction: For each step, the part of the records whose gradient was shortened.
        not_finite: For each step, how many records had a gradient that counted as zero because it
            was not finite.
    """

    clipped_fraction: list[float] = field(default_factory=list, repr=False)
    not_finite: list[int] = field(default_factory=list, repr=False)

    def add(self, mean: ClippedMean) -> None:
        """Count a step."""
        clipped, not_finite = mean.counts()
        self.clipped_fraction.append(clipped / mean.num_records)
        self.not_finite.append(not_finite)
