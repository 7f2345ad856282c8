r"""The private choice without assumptions: a design known in advance and a linear posterior mean.

If the points :math:`D` were chosen without looking at sensitive values, the posterior mean at a
choice is :math:`w(\lambda)^\top v`, linear in the observed values :math:`v` with weights that are
public. Where each value is a mean of :math:`n` per-record scores in :math:`[a, b]`, replacing a
record moves every :math:`v_j` by at most :math:`(b-a)/n`, and the posterior mean by at most
:math:`(b-a)/n \cdot \|w(\lambda)\|_1`. Nothing is assumed of the objective: a bad kernel costs
utility, never privacy.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import torch
from gpytorch.kernels import Kernel
from torch import Tensor

from botorch_dp._checks import (
    check_integer,
    check_interval,
    check_positive,
    check_tensor,
)
from botorch_dp.models.public import frozen_kernel
from botorch_dp.objectives import (
    PerRecordLosses,
    checked_scores,
    clipped_sum,
    grid_levels,
    known_num_records,
)
from botorch_dp.privacy import (
    Guarantee,
    NeighboringRelation,
    PrivacyLedger,
    PrivacyUnit,
    Release,
    check_unit,
    exponential_guarantee,
    exponential_mechanism,
)
from botorch_dp.privacy._noise import SelectionMethod
from botorch_dp.release.assumptions import VALIDATION_RECORD
from botorch_dp.release.designs import PublicDesign, check_public_design
from botorch_dp.release.utility import (
    UtilityBound,
    best_choice_probability,
    selection_tail,
    warn_if_drowned,
)


@dataclass(frozen=True, kw_only=True, eq=False)
class LinearChoiceMechanism:
    r"""The public parameters of a linear choice, and all that follows from them.

    With ``W = k(choices, D) (k(D, D) + s I)^{-1}`` (``N x m``) and ``v`` the means of clipped
    scores at the ``m`` points of the design, the utility of a choice is its posterior mean
    ``m0 + W (v - m0)``, with prior mean ``m0``; for losses its negative.

    *Sensitivity.* ``(b - a) / n * max ||W_i||_1``, for any scores whatsoever, plus a bound on the
    rounding errors of the matrix product (relative 1e-14 or so). The sums over records are exact
    integers. The exponential mechanism then is epsilon-DP under replace-one: status proven.

    Args:
        choices: What is chosen from, ``N x d``.
        design: Where the scores are evaluated.
        kernel: Prior covariance, fixed without looking at sensitive values. Copied.
        noise_variance: The variance that evaluations are modelled with, in units of the kernel. It
            shrinks the weights and with them the noise: more is better for small ``n epsilon``.
        bounds: Public bounds ``(a, b)`` of a record's score.
        num_records: The number ``n`` of records, public under replace-one.
        epsilon: The privacy parameter.
        method: ``"exponential"``, or ``"permute_and_flip"``: never worse, same guarantee.
        negate: Whether scores are losses, so that small ones are wanted.
        prior_mean: What the posterior mean falls back to far from the design; by default the
            middle of ``bounds``.
        unit: Whom or what one record is, and the relation the sensitivity refers to.
    """

    choices: Tensor
    design: PublicDesign
    kernel: Kernel
    noise_variance: float
    bounds: tuple[float, float]
    num_records: int
    epsilon: float
    method: SelectionMethod = "exponential"
    negate: bool = False
    prior_mean: float | None = None
    unit: PrivacyUnit = VALIDATION_RECORD

    def __post_init__(self) -> None:
        choices = check_tensor("choices", self.choices, shape=(None, None)).detach().double()
        object.__setattr__(self, "choices", choices)
        check_public_design(self.design)
        if self._points.shape[1] != choices.shape[1]:
            raise ValueError(
                f"`design` has points of dimension {self._points.shape[1]}, `choices` of dimension "
                f"{choices.shape[1]}: they must live in the same space."
            )
        check_positive("noise_variance", self.noise_variance)
        low, high = check_interval("bounds", self.bounds)
        check_positive("bounds", high - low)
        check_integer("num_records", self.num_records)
        if self.prior_mean is not None and not low <= self.prior_mean <= high:
            raise ValueError(
                f"`prior_mean` must lie within `bounds` = {self.bounds}, got {self.prior_mean}."
            )
        object.__setattr__(self, "kernel", frozen_kernel(self.kernel, choices))
        exponential_guarantee(
            sensitivity=self._unit_sensitivity, epsilon=self.epsilon, method=self.method
        )

    @cached_property
    def _points(self) -> Tensor:
        return self.design.points.to(self.choices)

    @property
    def _width(self) -> float:
        return self.bounds[1] - self.bounds[0]

    @cached_property
    def weights(self) -> Tensor:
        """``W``, the public weights of the posterior means: ``N x m``."""
        with torch.no_grad():
            prior = self.kernel(self._points).to_dense()
            noise = self.noise_variance * torch.eye(len(prior)).to(prior)
            root, failed = torch.linalg.cholesky_ex(prior + noise)
            if failed:
                raise ValueError(
                    f"`noise_variance` = {self.noise_variance:g} is too small for this kernel and "
                    "design: the covariance of the observations is singular. Enlarge it."
                )
            cross = self.kernel(self._points, self.choices).to_dense()
            return torch.cholesky_solve(cross, root).mT.contiguous()

    @cached_property
    def _unit_sensitivity(self) -> float:
        """The sensitivity where scores are measured from ``a`` in units of ``b - a``."""
        norm = self.weights.abs().sum(dim=-1).max().item()
        # A product of m weights with values in [0, 1], the prior's share added, is off by less than
        # (m + 3) (1 + norm) units of 2^-53, and the norm itself by a factor within 1 + m 2^-53.
        unit = 2.0**-52 * (len(self._points) + 4)
        return (norm / self.num_records) * (1 + unit) + 2 * unit * (1 + norm)

    @property
    def sensitivity(self) -> float:
        """How far one record can move the posterior mean of a choice."""
        return self._width * self._unit_sensitivity

    @property
    def scale(self) -> float:
        """``s`` in probabilities proportional to ``exp(mean / s)``: ``2 sensitivity / epsilon``."""
        return 2 * self.sensitivity / self.epsilon

    @property
    def guarantee(self) -> Guarantee:
        """What the release promises."""
        return linear_choice_guarantee(
            design=self.design, epsilon=self.epsilon, method=self.method, unit=self.unit
        )

    def utility(self, confidence: float = 0.95) -> UtilityBound:
        """How much worse than the largest one the drawn posterior mean may be.

        The mechanism's part only: how far posterior means are from the objective is a matter of
        the kernel, about which nothing is assumed.
        """
        count = len(self.choices)
        best = best_choice_probability(self.scale, count, self._width, self.method)
        return UtilityBound(
            subject="the drawn choice has a posterior mean worse than the best one",
            noise=selection_tail(self.scale, count, confidence),
            model=0.0,
            probability=confidence,
            spread=self._width,
            remark=(
                f"Even the best of the {count} choices is drawn with probability at most "
                f"{best:.3g}; a blind draw has {1 / count:.3g}."
            ),
        )

    def posterior_mean(self, scores: Tensor) -> Tensor:
        """**Private**: the utilities of all choices, in units of ``b - a`` above ``a``.

        Computed from ``m x n`` scores at the design. Scores beyond a bound count as that bound, NaN
        as the worse one.
        """
        low, high = self.bounds
        worse = high if self.negate else low
        total = grid_levels(self.num_records) * self.num_records
        values = [clipped_sum(row, self.bounds, nan_as=worse) / total for row in scores]
        prior = 0.5 if self.prior_mean is None else (self.prior_mean - low) / self._width
        observed = torch.tensor(values, dtype=torch.double, device=self.weights.device)
        mean = self.weights @ observed + prior * (1 - self.weights.sum(dim=-1))
        return -mean if self.negate else mean

    def draw(self, scores: Tensor, *, unsafe_seed: int | None = None) -> Release[Tensor]:
        """Draw a choice, given ``m x n`` scores at the design; spends the budget."""
        scores = checked_scores(scores, num_points=len(self._points), num_records=self.num_records)
        index = exponential_mechanism(
            self.posterior_mean(scores),
            sensitivity=self._unit_sensitivity,
            epsilon=self.epsilon,
            method=self.method,
            unsafe_seed=unsafe_seed,
        )
        return Release(
            value=self.choices[index.value].clone(),
            guarantee=self.guarantee if unsafe_seed is None else self.guarantee.simulated(),
            scale=self.scale,
        )


def linear_choice_guarantee(
    *,
    design: PublicDesign,
    epsilon: float,
    method: SelectionMethod = "exponential",
    unit: PrivacyUnit = VALIDATION_RECORD,
) -> Guarantee:
    """What :func:`release_linear_choice` promises; see there."""
    guarantee = exponential_guarantee(
        sensitivity=1.0,  # of which the promise is independent
        epsilon=epsilon,
        method=method,
        unit=check_unit(unit, NeighboringRelation.REPLACE_ONE).given(
            *check_public_design(design).conditions
        ),
    )
    name = {"exponential": "the exponential mechanism", "permute_and_flip": "permute-and-flip"}
    return replace(guarantee, mechanism=f"Choice by {name[method]} on a linear posterior mean")


def release_linear_choice(
    record_losses: PerRecordLosses | Tensor,
    choices: Tensor,
    *,
    design: PublicDesign,
    kernel: Kernel,
    noise_variance: float,
    bounds: tuple[float, float],
    epsilon: float,
    method: SelectionMethod = "exponential",
    negate: bool = False,
    prior_mean: float | None = None,
    num_records: int | None = None,
    confidence: float = 0.95,
    unit: PrivacyUnit = VALIDATION_RECORD,
    ledger: PrivacyLedger | None = None,
    unsafe_seed: int | None = None,
) -> Release[Tensor]:
    r"""Release a choice with a large posterior mean, without any assumption on the objective.

    Guarantee: pure epsilon-DP under replace-one, status **proven** (conditional on your word with a
    :class:`.StatedDesign`); see :class:`LinearChoiceMechanism` for the argument. Only a design that
    was chosen without looking at sensitive values is accepted. Warns, before anything is spent,
    when the noise would drown the answer.

    Args:
        record_losses: Per-record scores: a function ``m x d -> m x n``, or the ``m x n`` scores at
            ``design.points``, in their order.
        choices: What is chosen from, ``N x d``. Public.
        design: A :class:`.SobolDesign` or :class:`.MaxVarianceDesign`.
        kernel: Prior covariance, fixed without looking at sensitive values.
        noise_variance: The variance that evaluations are modelled with, in units of the kernel.
        bounds: Public bounds ``(a, b)`` of a record's score.
        epsilon: The privacy parameter.
        method: ``"exponential"``, or ``"permute_and_flip"``: never worse, same guarantee.
        negate: Whether scores are losses, so that small ones are wanted.
        prior_mean: The prior mean of a score; by default the middle of ``bounds``.
        num_records: The number ``n`` of records; needed beforehand with a function, unless that
            has an attribute of this name.
        confidence: Of the utility bound that decides about the warning.
        unit: Whom or what one record is, and the relation the sensitivity refers to.
        ledger: Charged before a score is looked at.
        unsafe_seed: Simulate with reproducible noise. The release then promises nothing.

    Returns:
        The chosen row of ``choices``. ``scale`` is the ``s`` in ``exp(mean / s)``.

    Example:
        >>> records = torch.rand(5000, dtype=torch.double)
        >>> choices = torch.linspace(0, 1, 101, dtype=torch.double).unsqueeze(-1)
        >>> design = SobolDesign(torch.tensor([[0.0], [1.0]]).double(), num_points=16)
        >>> release = release_linear_choice(
        ...     lambda X: (X - records).abs(), choices, design=design, kernel=RBFKernel(),
        ...     noise_variance=0.1, bounds=(0.0, 1.0), epsilon=1.0, negate=True, num_records=5000,
        ... )
    """
    check_tensor("choices", choices, shape=(None, None))
    if isinstance(record_losses, Tensor):
        known = record_losses.shape[1] if record_losses.dim() == 2 else None
        num_records = known if num_records is None else num_records
        num_points = len(check_public_design(design).points)
        checked_scores(record_losses, num_points=num_points, num_records=num_records)
    elif not callable(record_losses):
        raise TypeError(
            "`record_losses` must be a function or an m x n tensor of scores, got "
            f"{type(record_losses).__name__}."
        )
    num_records = known_num_records(record_losses, num_records)
    if num_records is None:
        raise ValueError("`num_records` must be known before anything is spent: pass it.")
    mechanism = LinearChoiceMechanism(
        choices=choices,
        design=design,
        kernel=kernel,
        noise_variance=noise_variance,
        bounds=bounds,
        num_records=num_records,
        epsilon=epsilon,
        method=method,
        negate=negate,
        prior_mean=prior_mean,
        unit=unit,
    )
    warn_if_drowned(mechanism.utility(confidence))
    if ledger is not None:
        ledger.charge(mechanism.guarantee, label="linear choice")
    if isinstance(record_losses, Tensor):
        scores = record_losses
    else:
        scores = record_losses(design.points)
    release = mechanism.draw(scores, unsafe_seed=unsafe_seed)
    return replace(release, value=release.value.to(choices))
