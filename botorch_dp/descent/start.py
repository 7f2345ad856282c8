"""Where to begin a descent, and how long a gradient may be.

References:
    [McKenna2020] R. McKenna, D. Sheldon. Permute-and-flip: a new mechanism for differentially
        private selection. NeurIPS 2020.
"""

from __future__ import annotations

import torch
from botorch.utils.sampling import draw_sobol_samples
from gpytorch.kernels import Kernel
from torch import Tensor

from botorch_dp._checks import check_integer, check_interval, check_positive, check_tensor
from botorch_dp.descent.designs import (
    Design,
    DesignName,
    default_batch_size,
    observation_noise,
)
from botorch_dp.descent.losses import Observations, read_losses
from botorch_dp.models.gradient import GradientBelief, KernelFactor
from botorch_dp.models.kernels import kernel_derivatives
from botorch_dp.objectives import (
    PerRecordLosses,
    checked_scores,
    clipped_sum,
    grid_levels,
    known_num_records,
)
from botorch_dp.privacy import (
    ONE_RECORD,
    PrivacyLedger,
    PrivacyUnit,
    Release,
    exponential_guarantee,
    exponential_mechanism,
    pure_dp_epsilon,
)

_ONE_RECORD = "one record (one column of the losses)"


def private_start(
    record_losses: PerRecordLosses,
    *,
    bounds: Tensor,
    mu: float,
    num_points: int,
    loss_bounds: tuple[float, float],
    ledger: PrivacyLedger | None = None,
    num_records: int | None = None,
    seed: int | None = None,
    unit: PrivacyUnit = ONE_RECORD,
    unsafe_seed: int | None = None,
) -> Release[Tensor]:
    r"""The best of some random points, by permute-and-flip [McKenna2020].

    A descent cannot leave a plateau that it starts on. Some points of a scrambled Sobol sequence
    are compared by their mean loss, each record's loss clipped to ``loss_bounds``.

    Guarantee: pure epsilon-DP under replace-one, with no assumption on the losses, for the largest
    epsilon whose every mechanism is ``mu``-GDP: ``epsilon = log(Phi(mu/2) / Phi(-mu/2))``. The
    points are public. Replacing a record moves its clipped loss by at most the width of
    ``loss_bounds`` at each point, and the mechanism is told so. The losses are rounded
    to a grid on which their sum is exact, so this holds to the last bit.

    Args:
        record_losses: Points ``b x d`` to losses ``b x n``, as for :class:`DPGIBO`.
        bounds: The ``2 x d`` box to search. Its dtype and device are used.
        mu: What to spend, out of a Gaussian budget; about 30% of it is well spent.
        num_points: How many points to compare.
        loss_bounds: Public bounds of a record's loss; NaN counts as the upper one.
        ledger: Charged before the records are asked.
        num_records: ``n``; else taken from the losses.
        seed: Of the Sobol sequence (public); from torch's generator if None.
        unit: Whom or what one column is; replace-one is the only relation.
        unsafe_seed: Simulate with reproducible noise. The result then promises nothing.

    Returns:
        The chosen point, a ``d``-vector.

    Example:
        >>> start = private_start(
        ...     record_losses, bounds=bounds, mu=0.3, num_points=64, loss_bounds=(0.0, 1.0)
        ... )
        >>> descent = DPGIBO(record_losses, start.value, ...)
    """
    low, high = check_interval("loss_bounds", loss_bounds)
    num_points = check_integer("num_points", num_points, at_least=2)
    epsilon = pure_dp_epsilon(check_positive("mu", mu))
    box = check_tensor("bounds", bounds, shape=(2, None))
    if bool((box[0] > box[1]).any()):
        raise ValueError("`bounds` must have lower <= upper in every coordinate.")
    X = draw_sobol_samples(box, n=num_points, q=1, seed=seed).squeeze(-2)
    if ledger is not None:
        # The privacy does not depend on the scale of the utilities: the unit's is charged.
        ledger.charge(
            exponential_guarantee(
                sensitivity=1.0, epsilon=epsilon, method="permute_and_flip", unit=unit
            ),
            label="start of a private descent",
        )
    losses = checked_scores(
        record_losses(X),
        num_points=num_points,
        num_records=known_num_records(record_losses, num_records),
    )
    sums = torch.tensor(
        [clipped_sum(row, (low, high), nan_as=high) for row in losses], dtype=torch.double
    )
    choice = exponential_mechanism(
        -sums,
        sensitivity=grid_levels(losses.shape[-1]),
        epsilon=epsilon,
        method="permute_and_flip",
        unit=unit,
        unsafe_seed=unsafe_seed,
    )
    return Release(X[choice.value], choice.guarantee)


def public_clip_norm(
    record_losses: PerRecordLosses,
    location: Tensor,
    *,
    kernel: Kernel,
    quantile: float = 0.5,
    batch_size: int | None = None,
    design: DesignName = "simplex",
    radius: float | None = None,
    bounds: Tensor | None = None,
    noise_variance: float = 0.0,
) -> float:
    """A quantile of the lengths of the records' gradients at a location. **Sensitive.**

    For public or stand-in data only: the result depends on single records. A clip norm near the
    median suits bounded and convex losses; with heavy-tailed gradients clipping moves the minimum,
    and some times the median is better.

    Args:
        record_losses: The losses of *public* records.
        location: A ``d``-vector, such as the intended start.
        kernel: As for :class:`DPGIBO`; likewise the other arguments.
        quantile: Which one, between 0 and 1.

    Returns:
        The quantile over the records whose gradient is finite.
    """
    if not 0 <= quantile <= 1:
        raise ValueError(f"`quantile` must lie in [0, 1], got {quantile}.")
    check_tensor("location", location, shape=(None,))
    plan = Design(design, radius, bounds, noise_variance)
    count = check_integer("batch_size", batch_size or default_batch_size(design, len(location)))
    derivatives = kernel_derivatives(kernel, like=location)
    empty = KernelFactor.empty(derivatives, len(location))
    X = plan.propose(GradientBelief(empty, location, unknown_mean=True), count).points
    noise = observation_noise(derivatives, location, noise_variance)
    factor, kept = empty.extended(X, noise)
    losses = read_losses(record_losses, X[kept], None)
    observations = Observations(empty).with_batch(factor, losses, step=0)
    weights = GradientBelief(factor, location, unknown_mean=True).weights
    norms = torch.cat(
        [torch.linalg.vector_norm(part, dim=0) for part in observations.gradients(weights)]
    )
    finite = norms[torch.isfinite(norms)]
    if len(finite) == 0:
        raise ValueError("`record_losses` has no record with a finite gradient at `location`.")
    return float(finite.quantile(quantile))
