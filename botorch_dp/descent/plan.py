"""What a private descent will cost and how noisy it will be, before a record is touched."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

from botorch_dp.privacy import GaussianLoss, Guarantee, PrivacyUnit

_MECHANISM = "Gaussian mechanism on clipped gradients (DP-GIBO)"


def step_privacy(mu: float, steps: int) -> float:
    """``mu / sqrt(steps)``, rounded down so that ``steps`` squares of it never exceed ``mu^2``."""
    if math.isinf(mu):
        return mu
    share = mu / math.sqrt(steps)
    while steps * Fraction(share) ** 2 > Fraction(mu) ** 2:
        share = math.nextafter(share, 0.0)
    return share


def gradient_noise_std(*, clip_norm: float, mu: float, steps: int, num_records: int) -> float:
    r"""Standard deviation of the noise on each coordinate of each gradient.

    ``2 B sqrt(T) / (n mu)``: the sensitivity of the mean gradient over the privacy of one step.
    """
    return 2 * clip_norm / (num_records * step_privacy(mu, steps))


def descent_guarantee(mu: float, *, steps: int, taken: int, unit: PrivacyUnit) -> Guarantee:
    """The guarantee of the first ``taken`` of ``steps`` noisy gradients that share ``mu``."""
    if math.isinf(mu):
        return Guarantee(
            mechanism="gradient-informed Bayesian optimization without noise",
            unit=unit,
            losses=(),
            void="mu is infinite, so no noise is added",
        )
    if taken == 1:
        spent = step_privacy(mu, steps)
    else:
        # Rounded up, but never above mu: all the squares together do not exceed its square.
        spent = min(mu, math.nextafter(mu * math.sqrt(taken / steps), math.inf))
    return Guarantee(
        mechanism=_MECHANISM,
        unit=unit,
        losses=(GaussianLoss(spent),),
    )


@dataclass(frozen=True)
class DescentPlan:
    """Public facts about a descent that has not begun.

    Args:
        num_records: ``n``.
        num_parameters: ``d``.
        steps: ``T``.
        evaluations: How many points the losses will be asked for, at most.
        clip_norm: ``B``.
        noise_std: Standard deviation of the noise on each coordinate of each gradient.
        table_bytes: Memory of the losses that are kept.
        guarantee: What the whole run will promise.
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
                "Noisy: each step carries more noise than gradient. Use a small step size, or "
                "fewer steps, and expect the average of the iterates to be better than the last."
            )
        return "Workable: the noise of a step is smaller than the largest gradient."

    def __str__(self) -> str:
        return "\n".join(
            (
                f"{self.steps} steps in {self.num_parameters} parameters on {self.num_records} "
                f"records, at most {self.evaluations} evaluations of all records",
                f"noise per coordinate {self.noise_std:.3g}, clip norm {self.clip_norm:.3g}, "
                f"noise-to-clip ratio {self.noise_to_clip:.3g}",
                f"losses kept in memory: {self.table_bytes / 1e6:.1f} MB",
                self.advice,
                str(self.guarantee),
            )
        )
