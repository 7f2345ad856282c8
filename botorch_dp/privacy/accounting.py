"""Privacy accounting of DP-SGD: epsilon for a noise multiplier, noise for an epsilon.

A batch is the set of records whose clipped gradients are added up in a step. Two ways to draw it:

* ``"poisson"``: every record joins independently, as in Opacus. The default is to protect against
  a *replaced* record, the relation of everything else in this package; against an *added or
  removed* one it can be accounted for as well.
* ``"without_replacement"``: batches of fixed size, as in [Avent2020]. One record is replaced. At
  the same noise epsilon is nearly twice that of Poisson batches, for all that is known.

``noise_multiplier`` always means the noise's standard deviation over the clipping norm C, as in
Opacus, TensorFlow Privacy and JAX Privacy. A replaced record moves the sum of clipped gradients by
up to 2C and an added one by up to C (``relation.sum_sensitivity`` clipping norms), so the same
noise gives a replaced record less protection. dp-accounting also counts in C under REPLACE_ONE,
except in its Rényi accountant without replacement, which counts in 2C.

Not here: *random allocation*, where each record joins one random batch of each pass [Feldman2026].
What is proven for it is about added and removed records, not replaced ones; its batches vary in
size like Poisson's, so it would gain no fixed shapes; and its epsilon is at best a little below
Poisson's.

Epsilons come from privacy-loss distributions: dominating pairs, their discretization and the proofs
are in :mod:`.pld.distributions`, their composition is in :mod:`.pld.fourier`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from botorch_dp._checks import (
    check_count,
    check_delta,
    check_integer,
    check_positive,
)
from botorch_dp.errors import PrivacyError
from botorch_dp.privacy.guarantee import warn_large_delta
from botorch_dp.privacy.losses import (
    FixedBatchSGDLoss,
    NeighboringRelation,
    PoissonSGDLoss,
    PrivacyLoss,
    Sampling,
    sampled_kind,
)
from botorch_dp.privacy.pld.composition import (
    LARGEST_MU,
    composed_epsilon,
    steps_term,
    terms_epsilon,
)
from botorch_dp.privacy.pld.distributions import sampled_gaussian
from botorch_dp.privacy.pld.fourier import FAST, Sums
from botorch_dp.privacy.pld.gaussian import gaussian_epsilon, gaussian_mu, safe_root

_SAMPLINGS = ("poisson", "without_replacement")


@dataclass(frozen=True, kw_only=True)
class DPSGD:
    """The parameters of a training with DP-SGD or DP-Adam that its privacy depends on.

    Args:
        noise_multiplier: Standard deviation of the noise on the summed gradient, over the clipping
            norm; None where it is still to be chosen.
        batch_size: Records in a batch; for Poisson sampling the expected number.
        num_records: Number of records.
        steps: Number of noisy gradients.
        sampling: How batches are drawn. A shuffled pass over the data is neither.
        relation: REPLACE_ONE if None; batches of fixed size know no other.

    Example:
        >>> training = DPSGD(batch_size=256, num_records=32561, steps=1000)
        >>> training = training.for_epsilon(1.0, delta=1e-5)
        >>> round(training.noise_multiplier, 2), round(training.epsilon(delta=1e-5), 3)
        (1.87, 1.0)
    """

    noise_multiplier: float | None = None
    batch_size: int
    num_records: int
    steps: int
    sampling: Sampling = "poisson"
    relation: NeighboringRelation | None = None

    def __post_init__(self) -> None:
        relation = checked_relation(self.sampling, self.relation)
        num_records = check_integer("num_records", self.num_records)
        checked: dict[str, object] = {
            "num_records": num_records,
            "batch_size": check_integer("batch_size", self.batch_size, at_most=num_records),
            "steps": check_count("steps", self.steps),
            "relation": relation,
        }
        if self.noise_multiplier is not None:
            noise = check_positive("noise_multiplier", self.noise_multiplier)
            checked["noise_multiplier"] = noise
        for name, value in checked.items():
            object.__setattr__(self, name, value)

    def with_noise(self, noise_multiplier: float) -> DPSGD:
        """The same training with this noise."""
        return replace(self, noise_multiplier=noise_multiplier)

    def for_epsilon(
        self,
        epsilon: float,
        delta: float,
        *,
        tolerance: float = 1e-5,
        beside: Sequence[PrivacyLoss] = (),
    ) -> DPSGD:
        """The same training with the least noise for which :meth:`epsilon` stays within this one.

        Args:
            epsilon: The target, positive; it is never exceeded.
            delta: In (0, 1).
            tolerance: How far above the least noise the result may be, relatively.
            beside: What else is released; all of it together stays within epsilon.
        """
        epsilon = check_positive("epsilon", epsilon)
        tolerance = check_positive("tolerance", tolerance)
        warn_large_delta(check_delta("delta", delta), self.num_records)
        relation = checked_relation(self.sampling, self.relation)
        kind, sensitivity = sampled_kind(self.sampling, relation), relation.sum_sensitivity
        fraction = self.batch_size / self.num_records
        others = tuple(loss.term() for loss in beside)

        def log_excess(noise_multiplier: float) -> float:
            steps = steps_term(kind, noise_multiplier / sensitivity, fraction, self.steps)
            spent = terms_epsilon((steps, *others), delta)
            return math.log(min(max(spent, 1e-9 * epsilon) / epsilon, 1e300))

        if others and terms_epsilon(others, delta) >= epsilon:
            raise ValueError(f"`epsilon` = {epsilon} is spent before the training begins.")
        # Without any amplification this is what the Gaussian mechanism needs, but for rounding.
        high = sensitivity * math.sqrt(self.steps) / gaussian_mu(epsilon, delta)
        while log_excess(high) > 0:
            high *= 2 if others else 1 + tolerance
        low = high / 2
        while log_excess(low) <= 0:
            low, high = low / 2, low
        return self.with_noise(safe_root(log_excess, low, high, tolerance=tolerance / 4))

    def epsilon(self, delta: float) -> float:
        """An upper bound on epsilon at ``delta``; see :func:`dp_sgd_epsilon`."""
        warn_large_delta(check_delta("delta", delta), self.num_records)
        return composed_epsilon((self.loss(),), delta)

    def loss(self) -> PoissonSGDLoss | FixedBatchSGDLoss:
        """Its privacy loss, for a :class:`~botorch_dp.privacy.Guarantee`."""
        if self.noise_multiplier is None:
            raise ValueError("`noise_multiplier` is None: use `with_noise` or `for_epsilon` first.")
        if self.sampling == "poisson":
            relation = checked_relation(self.sampling, self.relation)
            probability = self.batch_size / self.num_records
            return PoissonSGDLoss(self.noise_multiplier, probability, self.steps, relation)
        return FixedBatchSGDLoss(
            self.noise_multiplier, self.batch_size, self.num_records, self.steps
        )


def dp_sgd_epsilon(
    *,
    noise_multiplier: float,
    batch_size: int,
    num_records: int,
    steps: int,
    delta: float,
    sampling: Sampling = "poisson",
    relation: NeighboringRelation | None = None,
) -> float:
    """The epsilon of DP-SGD (or DP-Adam) at ``delta`` in (0, 1), an upper bound.

    The other arguments are those of :class:`DPSGD`.

    Returns:
        Epsilon under the relation, about 3e-4 above the exact value of the dominating pair.
        Infinite where the noise is too small to mean anything.

    Example:
        >>> run = dict(batch_size=256, num_records=32561, steps=1000, delta=1e-5)
        >>> round(dp_sgd_epsilon(noise_multiplier=1.0, **run), 2)
        2.18
        >>> fixed = dict(noise_multiplier=2.0, sampling="without_replacement", **run)
        >>> round(dp_sgd_epsilon(**fixed), 2)
        1.69
    """
    training = DPSGD(
        noise_multiplier=noise_multiplier,
        batch_size=batch_size,
        num_records=num_records,
        steps=steps,
        sampling=sampling,
        relation=relation,
    )
    return training.epsilon(delta)


def dp_sgd_epsilons(
    noise_multipliers: Sequence[float] | np.ndarray,
    batch_sizes: Sequence[int] | np.ndarray,
    steps: Sequence[int] | np.ndarray,
    *,
    num_records: int,
    delta: float,
    sampling: Sampling = "poisson",
    relation: NeighboringRelation | None = None,
) -> np.ndarray:
    """:func:`dp_sgd_epsilon` for thousands of settings at once.

    For scoring candidates: upper bounds, typically 0.3% and at most 2% above the exact values, 0.1
    to 0.2 ms each.

    Args:
        noise_multipliers: Candidates' noise multipliers, ``b``.
        batch_sizes: Their batch sizes, ``b``.
        steps: Their numbers of steps, ``b``.
        num_records: As for :func:`dp_sgd_epsilon`; likewise the arguments after it.

    Returns:
        ``b`` epsilons.
    """
    relation = checked_relation(sampling, relation)
    check_integer("num_records", num_records)
    warn_large_delta(check_delta("delta", delta), num_records)
    try:
        noise, batches, lengths = np.broadcast_arrays(noise_multipliers, batch_sizes, steps)
    except ValueError as error:
        raise ValueError(
            f"`noise_multipliers`, `batch_sizes` and `steps` must have one length: {error}"
        ) from error
    if not (
        noise.ndim == 1
        and (np.isfinite(noise) & (noise > 0)).all()
        and ((batches >= 1) & (batches <= num_records) & (batches % 1 == 0)).all()
        and ((lengths >= 1) & (lengths % 1 == 0)).all()
    ):
        raise ValueError(
            "`noise_multipliers` must be positive and finite, `batch_sizes` integers from 1 to "
            f"{num_records}, `steps` integers of at least 1, and all of them one-dimensional."
        )
    noise = noise.astype(float) / relation.sum_sensitivity
    fractions, lengths = batches / float(num_records), lengths * 1.0
    with np.errstate(over="ignore"):
        mus = np.sqrt(lengths) / noise  # without amplification
    epsilons = np.full(len(noise), math.inf)
    sampled = (fractions < 1) & (mus <= LARGEST_MU)
    for index in np.flatnonzero((fractions == 1) & (mus <= LARGEST_MU)):
        epsilons[index] = gaussian_epsilon(float(mus[index]), delta)
    if sampled.any():
        kind = sampled_kind(sampling, relation)
        sums = Sums(
            [sampled_gaussian(kind, noise[sampled], fractions[sampled])],
            [lengths[sampled]],
            np.zeros(int(sampled.sum())),
        )
        epsilons[sampled] = sums.epsilons(np.full(int(sampled.sum()), math.log(delta)), FAST)
    return epsilons


def dp_sgd_noise_multiplier(
    *,
    epsilon: float,
    batch_size: int,
    num_records: int,
    steps: int,
    delta: float,
    sampling: Sampling = "poisson",
    relation: NeighboringRelation | None = None,
    tolerance: float = 1e-5,
) -> float:
    """The least noise multiplier for which :func:`dp_sgd_epsilon` stays within ``epsilon``.

    Args:
        epsilon: The target, positive; it is never exceeded.
        tolerance: How far above the least value the result may be, relatively.
        batch_size: As for :func:`dp_sgd_epsilon`; likewise the other arguments.

    Example:
        >>> run = dict(epsilon=1.0, batch_size=256, num_records=32561, steps=1000, delta=1e-5)
        >>> round(dp_sgd_noise_multiplier(sampling="without_replacement", **run), 2)
        2.68
        >>> round(dp_sgd_noise_multiplier(**run), 2)
        1.87
    """
    training = DPSGD(
        batch_size=batch_size,
        num_records=num_records,
        steps=steps,
        sampling=sampling,
        relation=relation,
    ).for_epsilon(epsilon, delta, tolerance=tolerance)
    assert training.noise_multiplier is not None
    return training.noise_multiplier


def checked_relation(sampling: str, relation: NeighboringRelation | None) -> NeighboringRelation:
    """The relation to account under, REPLACE_ONE if None, or an error if there is no bound."""
    if sampling not in _SAMPLINGS:
        raise ValueError(
            f"`sampling` must be one of {_SAMPLINGS}, got {sampling!r}. A shuffled pass over the "
            "data is neither: draw each batch afresh."
        )
    if relation is None:
        return NeighboringRelation.REPLACE_ONE
    if relation is NeighboringRelation.BOUNDED_ROW:
        raise PrivacyError("`relation` must be REPLACE_ONE or ADD_OR_REMOVE_ONE for DP-SGD.")
    if sampling == "without_replacement" and relation is not NeighboringRelation.REPLACE_ONE:
        raise PrivacyError(
            "`relation` must be REPLACE_ONE for batches of fixed size: use sampling='poisson' for "
            "ADD_OR_REMOVE_ONE."
        )
    return relation
