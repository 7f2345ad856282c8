"""How lots are drawn, and what that means for privacy: relation, sensitivity, accounting.

The *lot* of a step is the set of records whose clipped gradients are added up. Everything that
differs between the two conventions is here; the factor of two between the relations is
``NeighboringRelation.sum_sensitivity``.

References:
    [Avent2020] B. Avent, J. Gonzalez, T. Diethe, A. Paleyes, B. Balle. Automatic discovery of
        privacy-utility Pareto fronts. Proceedings on Privacy Enhancing Technologies 2020(4).
    [Wang2019] Y.-X. Wang, B. Balle, S. Kasiviswanathan. Subsampled Renyi differential privacy and
        analytical moments accountant. AISTATS 2019.
    [Abadi2016] M. Abadi et al. Deep learning with differential privacy. CCS 2016.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor

from botorch_dp.privacy import FixedLotSGDLoss, NeighboringRelation, PoissonSGDLoss, PrivacyLoss
from botorch_dp.training.randomness import Randomness

Sampling = Literal["without_replacement", "poisson"]


@dataclass(frozen=True)
class FixedLots:
    """Each step takes a fresh uniform subset of fixed size, as in [Avent2020].

    Guarantee: under replace-one, a lot holds the changed record with probability ``m / n``, and
    then one clipped gradient becomes another: the sum moves by at most *twice* the clipping norm.
    With Gaussian noise of ``z`` times that, a step has the Renyi divergence bounded by [Wang2019]
    for sampling without replacement; steps draw their lots independently, and add up.
    """

    num_records: int
    lot_size: int

    relation: ClassVar[NeighboringRelation] = NeighboringRelation.REPLACE_ONE
    #: How far one record moves the sum of clipped gradients, in clipping norms.
    sensitivity: ClassVar[float] = relation.sum_sensitivity
    words: ClassVar[str] = "lots of fixed size without replacement"
    conditions: ClassVar[tuple[str, ...]] = ()

    def draw(self, randomness: Randomness) -> Tensor:
        """The indices of one lot."""
        return randomness.choose(self.num_records, self.lot_size)

    def privacy_loss(self, noise_multiplier: float, steps: int) -> PrivacyLoss:
        """What so many steps may reveal."""
        return FixedLotSGDLoss(noise_multiplier, self.lot_size, self.num_records, steps)


@dataclass(frozen=True)
class PoissonLots:
    """Each step takes each record with probability ``m / n``, as in [Abadi2016] and Opacus.

    Guarantee: under add-or-remove-one, one clipped gradient appears or disappears: the sum moves
    by at most the clipping norm. The sum is divided by the *expected* size ``m`` of a lot, for its
    real size depends on the record.
    """

    num_records: int
    lot_size: int

    relation: ClassVar[NeighboringRelation] = NeighboringRelation.ADD_OR_REMOVE_ONE
    #: How far one record moves the sum of clipped gradients, in clipping norms.
    sensitivity: ClassVar[float] = relation.sum_sensitivity
    words: ClassVar[str] = "Poisson-sampled lots"
    conditions: ClassVar[tuple[str, ...]] = (
        "the sampling probability and the number of steps count as public, although they were "
        "computed from the number of records",
    )

    def draw(self, randomness: Randomness) -> Tensor:
        """The indices of one lot, of random size and possibly none."""
        return randomness.choose_each(self.num_records, self.lot_size / self.num_records)

    def privacy_loss(self, noise_multiplier: float, steps: int) -> PrivacyLoss:
        """What so many steps may reveal."""
        return PoissonSGDLoss(noise_multiplier, self.lot_size / self.num_records, steps)


SAMPLINGS: dict[Sampling, type[FixedLots] | type[PoissonLots]] = {
    "without_replacement": FixedLots,
    "poisson": PoissonLots,
}
