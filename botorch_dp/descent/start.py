"""Where to begin a descent, and how long a gradient may be."""

from __future__ import annotations

from dataclasses import replace

import torch
from botorch.utils.sampling import draw_sobol_samples
from gpytorch.kernels import Kernel
from torch import Tensor

from botorch_dp._checks import (
    check_callable,
    check_integer,
    check_interval,
    check_positive,
    check_size,
    check_tensor,
)
from botorch_dp.descent.designs import Design, DesignName, as_design, observation_noise
from botorch_dp.descent.settings import PER_RECORD, check_box
from botorch_dp.descent.step import GradientStep, Observations, read_losses
from botorch_dp.models.gradient import KernelFactor
from botorch_dp.models.kernels import kernel_derivatives
from botorch_dp.privacy import (
    NeighboringRelation,
    PrivacyLedger,
    PrivacyUnit,
    Release,
    exponential_guarantee,
    exponential_mechanism,
    pure_dp_epsilon,
)
from botorch_dp.privacy.guarantee import ONE_RECORD, check_unit
from botorch_dp.privacy.ledger import make_release
from botorch_dp.scores import (
    PerRecordLosses,
    checked_scores,
    clipped_sum,
    grid_levels,
    known_num_records,
)

_CHOSEN = "the box and the bounds of a loss were chosen without the records"


def private_start(
    record_losses: PerRecordLosses,
    box: Tensor,
    *,
    bounds: tuple[float, float],
    mu: float,
    num_points: int,
    ledger: PrivacyLedger | None = None,
    key: str | None = None,
    label: str = "",
    num_records: int | None = None,
    seed: int | None = None,
    unit: PrivacyUnit = ONE_RECORD,
    unsafe_seed: int | None = None,
) -> Release[Tensor]:
    r"""The best of some random points, by permute-and-flip [McKenna2020].

    A descent cannot leave a plateau that it starts on. Some points of a scrambled Sobol sequence
    are compared by their mean loss, each record's loss clipped to ``bounds``.

    Guarantee: pure epsilon-DP under replace-one, with no assumption on the losses, for the largest
    epsilon whose every mechanism is ``mu``-GDP: ``epsilon = log(Phi(mu/2) / Phi(-mu/2))``. The
    points are public. Replacing a record moves its clipped loss by at most the width of ``bounds``
    at each point, and the mechanism is told so. The losses are rounded to a grid on which their
    sum is exact, so this holds to the last bit. What rests on the caller is printed: a record's
    losses must not depend on the other records, the number of records is public, and the box and
    the bounds were chosen without the records.

    Args:
        record_losses: As for :class:`DPGIBO`; likewise ``ledger``, ``label``, ``unit`` and
            ``unsafe_seed``.
        box: The ``2 x d`` box to search. Its dtype and device are used.
        bounds: Public bounds of a record's loss; NaN counts as the upper one.
        mu: What to spend, out of a Gaussian budget; about 30% of it is well spent.
        num_points: How many points to compare.
        key: Names the chosen point in the ledger: asked again, the same point is returned, free.
        num_records: ``n``; else taken from the losses.
        seed: Of the Sobol sequence (public); from torch's generator if None.

    Returns:
        The chosen point, a ``d``-vector.

    Example:
        >>> start = private_start(
        ...     record_losses, box=box, bounds=(0.0, 1.0), mu=0.3, num_points=64
        ... )
        >>> descent = DPGIBO(record_losses, start.value, ...)
    """
    check_callable("record_losses", record_losses)
    low, high = check_interval("bounds", bounds)
    check_positive("bounds", high - low)  # a width that overflows would make every sum NaN
    num_records = known_num_records(record_losses, num_records)
    num_points = check_integer("num_points", num_points, at_least=2)
    epsilon = pure_dp_epsilon(check_positive("mu", mu))
    unit = check_unit(unit, NeighboringRelation.REPLACE_ONE).given(*PER_RECORD, _CHOSEN)
    # The price does not depend on the scale, but a scale that cannot be had must raise now.
    price = exponential_guarantee(
        sensitivity=grid_levels(num_records or 1), epsilon=epsilon, method="permute_and_flip"
    )
    price = replace(price, unit=unit)  # the sensitivity is ours
    check_size("num_points", num_points, 8 * num_points * (num_records or 1))
    X = draw_sobol_samples(check_box(box), n=num_points, q=1, seed=seed).squeeze(-2)

    def read() -> tuple[Tensor, float]:
        losses = checked_scores(record_losses(X), num_points=num_points, num_records=num_records)
        sums = [clipped_sum(row, (low, high), nan_as=high) for row in losses]
        return torch.tensor(sums, dtype=torch.double, device="cpu"), grid_levels(losses.shape[-1])

    def draw(material: tuple[Tensor, float]) -> Tensor:
        sums, levels = material
        choice = exponential_mechanism(
            -sums,
            sensitivity=levels,
            epsilon=epsilon,
            method="permute_and_flip",
            unit=unit,
            unsafe_seed=unsafe_seed,
        )
        return X[choice.value]

    about = {"box": box.tolist(), "bounds": [low, high], "num_points": num_points, "seed": seed}
    label = label or "start of a private descent"
    chosen = make_release(
        price,
        draw,
        read=read,
        ledger=ledger,
        key=key,
        label=label,
        about=about,
        unsafe_seed=unsafe_seed,
    )
    return replace(chosen, value=chosen.value.to(X))


def public_clip_norm(
    record_losses: PerRecordLosses,
    location: Tensor,
    *,
    kernel: Kernel,
    design: Design | DesignName = "simplex",
    box: Tensor | None = None,
) -> float:
    """The median length of the records' gradients at a location. **Sensitive.**

    For public or stand-in data only: the result depends on single records. A clip norm near the
    median suits bounded and convex losses; with heavy-tailed gradients clipping moves the minimum,
    and several times the median is better. Gradients that are not finite do not count.

    Args:
        record_losses: The losses of *public* records.
        location: A ``d``-vector, such as the intended start.
        kernel: As for :class:`DPGIBO`; likewise the other arguments.
    """
    check_tensor("location", location, shape=("d",))
    design = as_design(design)
    box = None if box is None else check_box(box, len(location)).to(location)
    derivatives = kernel_derivatives(kernel, like=location)
    prepared = GradientStep.of(
        Observations(KernelFactor.empty(derivatives, len(location))),
        location,
        replace(design, mean="constant"),
        observation_noise(derivatives, location, design.noise_std),
        number=0,
        steps=1,
        box=box,
    )
    observations = prepared.answered(read_losses(record_losses, prepared.points, None))
    weights = prepared.belief.weights
    norms = torch.cat(
        [torch.linalg.vector_norm(part, dim=0) for part in observations.gradients(weights)]
    )
    finite = norms[torch.isfinite(norms)]
    if len(finite) == 0:
        raise ValueError("`record_losses` has no record with a finite gradient at `location`.")
    return float(finite.quantile(0.5))
