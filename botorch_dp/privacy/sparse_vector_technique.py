"""The sparse vector technique: which of many queries exceed a threshold."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from botorch_dp._checks import check_finite, check_integer, check_positive, check_tensor
from botorch_dp.privacy.guarantee import ONE_RECORD, Guarantee, PrivacyUnit, Release
from botorch_dp.privacy.ledger import PrivacyLedger, make_release
from botorch_dp.privacy.losses import PureLoss
from botorch_dp.privacy.mechanisms import (
    NoiseSource,
    integer_laplace_epsilon,
    mechanism_guarantee,
    noise_source,
)

#: The lattice is this many binary digits finer than the sensitivity.
_RESOLUTION_BITS = 30

#: Answers and noise saturate here, in lattice steps, so that no sum overflows 64 bits.
_LARGEST_ANSWER, _LARGEST_NOISE = 2**60, 2**61


@dataclass(frozen=True)
class SparseVectorPlan:
    """Public quantities in steps of the lattice on which answers and noise are compared."""

    step: float
    sensitivity: int
    threshold_scale: float
    query_scale: float
    max_positives: int

    @classmethod
    def make(cls, noise_scale: float, max_positives: int, sensitivity: float) -> SparseVectorPlan:
        """Check the parameters and split the noise."""
        sensitivity = check_positive("sensitivity", sensitivity)
        noise = check_positive("noise_scale", noise_scale)
        max_positives = check_integer("max_positives", max_positives, at_most=10**6)
        if not 1e-6 <= noise / sensitivity <= 1e6:
            raise ValueError(
                f"`noise_scale` must lie between 1e-6 and 1e6 sensitivities, got {noise:g} for a "
                f"sensitivity of {sensitivity:g}."
            )
        step = math.ldexp(1.0, math.frexp(sensitivity)[1] - 1 - _RESOLUTION_BITS)
        if not 1e-100 <= step <= 1e100:
            raise ValueError(
                f"`sensitivity` is {sensitivity:g}; rescale the answers, the threshold and the "
                "noise by a public factor to bring it nearer to 1."
            )
        threshold_noise = noise / (1 + math.cbrt(2 * max_positives))
        return cls(
            step=step,
            sensitivity=math.ceil(sensitivity / step),
            threshold_scale=threshold_noise / step,
            query_scale=(noise - threshold_noise) / step,
            max_positives=max_positives,
        )

    def epsilon(self) -> float:
        """The sum of what OpenDP's map says for the two shifts in the proof."""
        moved_threshold = integer_laplace_epsilon(self.sensitivity, self.threshold_scale)
        moved_answers = integer_laplace_epsilon(
            2 * self.max_positives * self.sensitivity, self.query_scale
        )
        return math.nextafter(moved_threshold + moved_answers, math.inf)


def sparse_vector_guarantee(
    *,
    noise_scale: float,
    max_positives: int,
    sensitivity: float = 1.0,
    unit: PrivacyUnit = ONE_RECORD,
) -> Guarantee:
    """The guarantee of :func:`sparse_vector`; see there."""
    loss = PureLoss(SparseVectorPlan.make(noise_scale, max_positives, sensitivity).epsilon())
    return mechanism_guarantee(
        "Sparse vector technique", loss, unit, "each answer", repr(sensitivity)
    )


def sparse_vector(
    answers: Tensor,
    *,
    noise_scale: float,
    max_positives: int,
    threshold: float = 0.5,
    sensitivity: float = 1.0,
    unit: PrivacyUnit = ONE_RECORD,
    ledger: PrivacyLedger | None = None,
    key: str | None = None,
    label: str = "",
    unsafe_seed: int | None = None,
) -> Release[list[bool]]:
    r"""Release, one after the other, whether answers exceed a noisy threshold.

    With ``b = noise_scale`` and ``C = max_positives``: ``b1 = b / (1 + (2C)^{1/3})``,
    ``b2 = b - b1``; one draw ``rho ~ Lap(b1)`` moves the threshold, a fresh ``nu_i ~ Lap(b2)`` each
    answer, and the i-th output is ``answers[i] + nu_i >= threshold + rho``, until C of them are
    true [Avent2020].

    Guarantee: pure epsilon-DP with
    ``epsilon = sensitivity / b1 + 2 C sensitivity / b2``, which for sensitivity 1 is
    ``(1 + (2C)^{1/3}) (1 + (2C)^{2/3}) / b``; this split compares with the least variance for its
    epsilon. Proof [Lyu2017]: fix an output and integrate over rho. Going to the neighbour, move rho
    up by the sensitivity, at a cost of ``exp(sensitivity / b1)``: every negative answer is then at
    least as likely as before. Each of the at most C positives is so too once its own noise moves up
    by twice the sensitivity (for the answer and for the threshold), ``exp(2 sensitivity / b2)``.

    The proof needs comparisons without rounding, so answers and threshold are first rounded down to
    multiples of a power of two, at most ``2^-30`` sensitivities apart; neighbours then stay within
    ``ceil(sensitivity / step)`` steps. Noise, sums and comparisons are exact integers; epsilon is
    the sum of what OpenDP's map says for the two noises. Noise that would not fit 64 bits, of
    probability below ``exp(-1000)``, saturates. All noise is drawn up front: the time taken does
    not depend on the answers.

    The arguments that are not described here are those of
    :func:`~botorch_dp.privacy.laplace_mechanism`.

    Args:
        answers: ``m`` query answers. Beyond ``2^30`` sensitivities they count as that, NaN as the
            lowest.
        noise_scale: The total scale b.
        max_positives: The number C of positive outputs after which the procedure stops.
        threshold: The public threshold.
        sensitivity: How far any single answer can move between neighbouring data sets.

    Returns:
        At most ``m`` booleans; the last one is true if the procedure stopped at C positives.
        ``scale`` is b2, the scale of the answers' noise.

    Example:
        >>> import torch
        >>> answers = torch.tensor([0.0, 40.0, 0.0])
        >>> release = sparse_vector(answers, noise_scale=1.0, max_positives=1)
        >>> len(release.value) <= 3
        True
    """
    answers = check_tensor("answers", answers, shape=("T",), finite=False)
    threshold = check_finite("threshold", threshold)
    plan = SparseVectorPlan.make(noise_scale, max_positives, sensitivity)
    guarantee = sparse_vector_guarantee(
        noise_scale=noise_scale, max_positives=max_positives, sensitivity=sensitivity, unit=unit
    )
    # Whether an answer is finite may depend on one record: NaN counts as the lowest answer.
    finite = answers.detach().cpu().double().nan_to_num(nan=-math.inf).numpy()
    source = noise_source(unsafe_seed)

    def draw() -> list[bool]:
        positives = noisy_comparisons(finite, threshold, plan, source)[0]
        return positives[: _stop(positives, plan.max_positives)].tolist()

    scale = plan.query_scale * plan.step
    return make_release(guarantee, draw, scale, ledger, key, label, unsafe_seed)


def noisy_comparisons(
    answers: NDArray[np.float64],
    threshold: float,
    plan: SparseVectorPlan,
    source: NoiseSource,
    draws: int = 1,
) -> NDArray[np.bool_]:
    """``draws x m`` comparisons, each row a run of the procedure without its stop."""
    noisy_threshold = _on_lattice(np.array(threshold), plan.step) + np.clip(
        source.integer_laplace((draws, 1), plan.threshold_scale), -_LARGEST_NOISE, _LARGEST_NOISE
    )
    noisy_answers = _on_lattice(answers, plan.step) + np.clip(
        source.integer_laplace((draws, len(answers)), plan.query_scale),
        -_LARGEST_NOISE,
        _LARGEST_NOISE,
    )
    return noisy_answers >= noisy_threshold


def _on_lattice(values: NDArray[np.float64], step: float) -> NDArray[np.int64]:
    """Multiples of ``step``, a power of two, rounded down.

    Rounding down commutes with adding whole steps. Rounding half to even does not: it would move
    neighbours from ``.5`` and ``1.5`` to ``0`` and ``2``.
    """
    with np.errstate(over="ignore"):
        steps = np.floor(values / step)
    return np.clip(steps, -_LARGEST_ANSWER, _LARGEST_ANSWER).astype(np.int64)


def _stop(positives: NDArray[np.bool_], max_positives: int) -> int:
    """How many outputs are made before, and including, the last positive allowed."""
    where = np.flatnonzero(positives)
    return int(where[max_positives - 1]) + 1 if len(where) >= max_positives else len(positives)
