"""Our epsilon inside Opacus's own training loop. Importing this module imports Opacus."""

from __future__ import annotations

import math

from opacus.accountants.accountant import IAccountant

from botorch_dp._checks import check_delta
from botorch_dp.privacy._composition import composed_epsilon
from botorch_dp.privacy.accounting import checked_relation
from botorch_dp.privacy.guarantee import NeighboringRelation, PoissonSGDLoss


class DistributionAccountant(IAccountant):
    """An accountant for ``opacus.PrivacyEngine``: Poisson batches, privacy-loss distributions.

    It says epsilon under the relation that is asked for; Opacus's own accountants say it for an
    added or removed record only. Valid for Poisson-sampled loaders (``poisson_sampling=True``)
    alone, like theirs.

    Args:
        relation: ``REPLACE_ONE`` or ``ADD_OR_REMOVE_ONE``.

    Example:
        >>> from opacus import PrivacyEngine
        >>> engine = PrivacyEngine()
        >>> engine.accountant = DistributionAccountant()
        >>> for _ in range(1000):
        ...     engine.accountant.step(noise_multiplier=2.0, sample_rate=256 / 32561)
        >>> round(engine.get_epsilon(delta=1e-5), 2)
        0.93
    """

    def __init__(self, relation: NeighboringRelation = NeighboringRelation.REPLACE_ONE) -> None:
        super().__init__()
        self.relation = checked_relation("poisson", relation)

    def step(self, *, noise_multiplier: float, sample_rate: float) -> None:
        """Count one step; equal steps that follow each other are one entry of ``history``."""
        if self.history and self.history[-1][:2] == (noise_multiplier, sample_rate):
            self.history[-1] = (noise_multiplier, sample_rate, self.history[-1][2] + 1)
        else:
            self.history.append((noise_multiplier, sample_rate, 1))

    def get_epsilon(self, delta: float, *args: object, **kwargs: object) -> float:
        """Epsilon of all steps so far at ``delta``; further arguments are ignored, as by Opacus."""
        check_delta("delta", delta)
        if any(noise == 0 for noise, _, _ in self.history):
            return math.inf
        losses = [
            PoissonSGDLoss(noise, rate, steps, self.relation) for noise, rate, steps in self.history
        ]
        return composed_epsilon(losses, delta)

    def __len__(self) -> int:
        return sum(steps for _, _, steps in self.history)

    @classmethod
    def mechanism(cls) -> str:
        """The name under which Opacus stores the state."""
        return "botorch_dp"
