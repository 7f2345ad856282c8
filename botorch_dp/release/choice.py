r"""The private choice, one of a set: under a prior [Kusner2015], or without any assumption.

Both classes draw by the exponential mechanism on a posterior mean, and differ in why one record
cannot move it far. :class:`PrivateChoice` (Algorithm 1) rests on Assumption 1, wherever a search
looked. :class:`LinearChoice` assumes nothing: if the points :math:`D` were chosen without looking
at sensitive values, the posterior mean at a choice is :math:`w(\lambda)^\top v`, linear in the
observed values :math:`v` with weights that are public. Where each value is a mean of :math:`n`
per-record scores in :math:`[a, b]`, replacing a record moves every :math:`v_j` by at most
:math:`(b-a)/n`, and the posterior mean by at most :math:`(b-a)/n \cdot \|w(\lambda)\|_1`. A bad
kernel costs utility, never privacy.

A design is a recipe rather than a tensor. Its points follow from public parameters alone, so points
that a search visited cannot pass for one by accident.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import cached_property, partial
from typing import Any, get_args

import torch
from botorch.models import SingleTaskGP
from botorch.models.model import Model
from gpytorch.kernels import Kernel
from torch import Tensor
from torch.quasirandom import SobolEngine

from botorch_dp._checks import (
    check_choice,
    check_delta,
    check_integer,
    check_interval,
    check_nonnegative,
    check_positive,
    check_size,
    check_tensor,
)
from botorch_dp.acquisition.ucb import UCBSchedule
from botorch_dp.errors import NotPublicError
from botorch_dp.models import FiniteSetGP
from botorch_dp.models.public import check_public, frozen_kernel
from botorch_dp.privacy import (
    ApproximateLoss,
    Guarantee,
    NeighboringRelation,
    PrivacyLedger,
    PrivacyUnit,
    PureLoss,
    Release,
    check_unit,
    exponential_guarantee,
    exponential_mechanism,
    warn_large_delta,
)
from botorch_dp.privacy.mechanisms import SelectionMethod
from botorch_dp.release.assumptions import (
    VALIDATION_RECORD,
    PublishedEdition,
    UtilityBound,
    blind_draw_remark,
    charge_then_draw,
    check_correlation,
    exact_selection_tail,
    neighbor_gap,
    observation_gap,
    plausible,
    prior_conditions,
    prior_spread,
    selection_tail,
)
from botorch_dp.scores import (
    OWN_RECORD_ONLY,
    PerRecordLosses,
    checked_scores,
    clipped_sum,
    grid_levels,
)

_CHOSEN = (
    "the choices, the design, the kernel, the prior mean, the bounds and the other settings were "
    "chosen without the records"
)

# --- The choice under Assumption 1. ---


@dataclass(frozen=True, kw_only=True)
class PrivateChoice:
    r"""A choice with a large posterior mean (Algorithm 1, Theorems 1 and 2 of [Kusner2015]).

    A choice ``x`` is drawn with probability proportional to ``exp(epsilon mean(x) / (2 D))``, where
    ``D = 2 sqrt(beta_{T+1}) + c`` and ``c = 2 sqrt((1 - k(V, V')) log(3 n / delta))``.

    *Why D.* ``|mean - mean'| <= |mean - f| + |f - f'| + |f' - mean'|``. Each outer term is at most
    ``sqrt(beta_{T+1})`` since the posterior standard deviation is at most ``k(x, x)^(1/2) = 1``,
    the middle one at most ``c``; all three hold on ``n`` choices with probability ``1 - delta``
    over the prior. There the exponential mechanism is epsilon-DP: the (epsilon, delta) of Theorem 1
    is **conditional** on the prior. The argument does not depend on how the points were chosen.

    At ``epsilon = 1`` and common sizes the draw is close to uniform, and :meth:`release` says so
    before anything is spent. :class:`.LinearChoice` needs no such assumption.

    Args:
        num_choices: The number ``n`` of choices.
        epsilon: The privacy parameter.
        delta: Probability, over the prior, that the sensitivity bound fails.
        steps: The number ``T`` of observations behind the posterior mean.
        dataset_correlation: The prior correlation ``k(V, V')`` of neighbouring data sets, whatever
            the relation; see :mod:`.assumptions` for how to choose it.
        method: ``"exponential"``, or ``"permute_and_flip"``: never worse, same guarantee.
        unit: Whom or what one record is, and which data sets are neighbours.

    Example:
        >>> gp = FiniteSetGP(choices, kernel=RBFKernel(), noise_variance=0.01)
        >>> for index, y in observations:
        ...     gp.observe(index, y)
        >>> choice = PrivateChoice(
        ...     num_choices=len(choices), epsilon=10.0, delta=1e-4, steps=gp.num_observations,
        ...     dataset_correlation=0.99,
        ... )
        >>> print(choice.guarantee, choice.utility())
        >>> choice.release(gp.mean, choices).value
    """

    num_choices: int
    epsilon: float
    delta: float
    steps: int
    dataset_correlation: float
    method: SelectionMethod = "exponential"
    unit: PrivacyUnit = VALIDATION_RECORD

    def __post_init__(self) -> None:
        check_integer("num_choices", self.num_choices)
        check_positive("epsilon", self.epsilon)
        check_delta("delta", self.delta)
        check_integer("steps", self.steps)
        check_correlation(self.dataset_correlation)
        check_unit(self.unit)
        # Checks the method, and that the noise scale is representable.
        exponential_guarantee(
            sensitivity=self.sensitivity, epsilon=self.epsilon, method=self.method
        )

    @cached_property
    def schedule(self) -> UCBSchedule:
        """The widths of the confidence bounds that the proof uses."""
        return UCBSchedule(self.num_choices, delta=self.delta)

    @property
    def confidence_width(self) -> float:
        """``sqrt(beta_{T+1})``: how far the objective is from its posterior mean, at most."""
        return math.sqrt(self.schedule(self.steps + 1))

    @cached_property
    def sensitivity(self) -> float:
        """``D``: how far the posterior mean of one choice moves between neighbours, at most."""
        gap = neighbor_gap(self.dataset_correlation, 3 * self.num_choices, self.delta)
        return 2 * self.confidence_width + gap

    @property
    def scale(self) -> float:
        """``s`` in probabilities proportional to ``exp(mean / s)``: ``2 D / epsilon``."""
        return 2 * self.sensitivity / self.epsilon

    @cached_property
    def guarantee(self) -> Guarantee:
        """What the release promises, and costs: (epsilon, delta), conditional on the prior."""
        return Guarantee(
            mechanism="Private choice of Kusner et al. (exponential mechanism)",
            losses=(ApproximateLoss(self.epsilon, self.delta),),
            unit=self.unit,
            assumptions=(
                *prior_conditions(self.dataset_correlation, self.delta),
                f"the mean is the posterior mean after {self.steps} observations under that prior",
            ),
        )

    def utility(self, delta: float = 0.05) -> UtilityBound:
        r"""How much worse than the best the drawn choice may be: sharper than Theorem 2.

        ``f(x) >= max f - 2 sqrt(2 log(n / self.delta)) - tail``, but for probability ``delta`` over
        the mechanism's coins and ``self.delta`` over the prior. The tail of the draw is exact. The
        posterior is used once, after all observations, so its bounds need to hold at that time
        only: ``P(|Z| > b) <= exp(-b^2 / 2)`` for each of ``n`` choices.
        """
        tail = exact_selection_tail(self.scale, self.num_choices, delta, self.method)
        width = math.sqrt(2 * math.log(self.num_choices / self.delta))
        return self._utility(tail, 2 * width, delta)

    def published_utility(
        self,
        delta: float = 0.05,
        *,
        edition: PublishedEdition = "icml2015",
        noise_std: float | None = None,
    ) -> UtilityBound:
        r"""Theorem 2 as printed, but for probability ``delta`` over the coins.

        * ``"icml2015"`` is about the posterior mean:
          ``mean(x) >= max mean - s (log n + log(1 / delta))``.
        * ``"workshop2014"`` is about the objective:
          ``f(x) >= max f - 2 sqrt(beta_T) - q - s (log n + log(1 / delta))`` with
          ``q = noise_std sqrt(4 log(3 / self.delta))``.

        Args:
            delta: The probability.
            edition: Which of the two.
            noise_std: Standard deviation of the observation noise in units of the prior, which the
                workshop's bound needs.
        """
        check_choice("edition", edition, get_args(PublishedEdition))
        tail = selection_tail(self.scale, self.num_choices, delta)
        if edition == "icml2015":
            subject = "the drawn choice has a posterior mean worse than the largest one"
            return replace(self._utility(tail, 0.0, delta), subject=subject)
        if noise_std is None:
            raise ValueError("`noise_std` must be given: Theorem 2 of the workshop needs it.")
        gap = observation_gap(check_nonnegative("noise_std", noise_std), 4, 3, self.delta)
        return self._utility(tail, 2 * math.sqrt(self.schedule(self.steps)) + gap, delta)

    def _utility(self, noise: float, model: float, delta: float) -> UtilityBound:
        spread = 2 * prior_spread(self.num_choices)
        return UtilityBound(
            subject="the drawn choice is worse than the best one",
            noise=noise,
            model=model,
            probability=max(0.0, 1 - delta - self.delta),
            spread=spread,
            remark=blind_draw_remark(self.scale, self.num_choices, spread, self.method),
        )

    def release(
        self,
        model_or_mean: Model | Tensor,
        choices: Tensor,
        *,
        num_records: int | None = None,
        ledger: PrivacyLedger | None = None,
        unsafe_seed: int | None = None,
    ) -> Release[Tensor]:
        """Draw one of the choices. Warns beforehand when the noise would drown the answer.

        Args:
            model_or_mean: The posterior mean at the choices, an ``n``-vector, or a BoTorch model of
                ``steps`` observations whose prior is public; see
                :func:`~botorch_dp.models.check_public`. Sensitive.
            choices: An ``n x d`` tensor. Public.
            num_records: Size of the validation set, to warn when ``delta`` is too large for it.
            ledger: Charged before the mean is looked at.
            unsafe_seed: Simulate with reproducible noise. The release then promises nothing.

        Returns:
            The chosen row of ``choices``, with the scale ``s`` in ``exp(mean / s)``.
        """
        check_tensor("choices", choices, shape=("m", "d"))
        if len(choices) != self.num_choices:
            raise ValueError(
                f"`choices` must hold {self.num_choices} rows, the agreed `num_choices`, got "
                f"{len(choices)}."
            )
        if isinstance(model_or_mean, Model):
            self._check_model(model_or_mean)
        else:
            check_tensor("model_or_mean", model_or_mean, shape=(self.num_choices,), finite=False)
        warn_large_delta(self.delta, num_records)
        return charge_then_draw(
            self,
            partial(self._draw, model_or_mean, choices, unsafe_seed),
            label="private choice",
            ledger=ledger,
            unsafe_seed=unsafe_seed,
        )

    def _check_model(self, model: Model) -> None:
        check_public(model, unit_variance=True)
        assert isinstance(model, SingleTaskGP)
        observed = len(model.train_targets)
        if observed != self.steps:
            raise ValueError(
                f"`model_or_mean` has {observed} observations, but `steps` = {self.steps} of them "
                "were agreed: the sensitivity depends on their number."
            )

    def _draw(
        self, model_or_mean: Model | Tensor, choices: Tensor, unsafe_seed: int | None
    ) -> tuple[Tensor, float | None]:
        mean = model_or_mean
        if isinstance(mean, Model):
            with torch.no_grad():
                posterior: Any = mean.posterior(choices)
            mean = posterior.mean.squeeze(-1)
        index = exponential_mechanism(
            plausible(mean),
            sensitivity=self.sensitivity,
            epsilon=self.epsilon,
            method=self.method,
            unsafe_seed=unsafe_seed,
        )
        return choices[index.value].clone(), index.scale


# --- Designs. ---


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
        box: Lower and upper corner, ``2 x d``.
        num_points: The number ``m`` of points.
        seed: Of the scrambling; fixed beforehand like everything else.

    Example:
        >>> design = SobolDesign(torch.tensor([[0.0, 0.0], [1.0, 1.0]]).double(), num_points=16)
        >>> design.points.shape
        torch.Size([16, 2])
    """

    box: Tensor
    num_points: int
    seed: int = 0

    def __post_init__(self) -> None:
        box = check_tensor("box", self.box, shape=(2, "d")).detach().clone()
        if not bool((box[0] <= box[1]).all()):
            raise ValueError("`box` must hold the lower corner in row 0, the upper in row 1.")
        check_size("num_points", check_integer("num_points", self.num_points), 16 * self.num_points)
        check_integer("seed", self.seed, at_least=0)
        object.__setattr__(self, "box", box)

    @property
    def points(self) -> Tensor:
        """The points, ``m x d``."""
        low, high = self.box
        engine = SobolEngine(len(low), scramble=True, seed=self.seed)
        unit = engine.draw(self.num_points, dtype=torch.double).to(self.box)
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
        choices = check_tensor("choices", self.choices, shape=("m", "d")).detach().clone()
        check_integer("num_points", self.num_points, at_most=10**5)
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
        chosen = check_tensor("chosen", self.chosen, shape=("T", "d")).detach().clone()
        if not self.origin.strip():
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


# --- The choice that assumes nothing. ---


@dataclass(frozen=True, eq=False)
class LinearChoice:
    r"""A choice with a large posterior mean, whatever the objective is.

    With ``W = k(choices, D) (k(D, D) + s I)^{-1}`` (``N x m``) and ``v`` the means of clipped
    scores at the ``m`` points of the design, the utility of a choice is its posterior mean
    ``m0 + W (v - m0)``, with prior mean ``m0``; for losses its negative. A choice is drawn by the
    exponential mechanism.

    *Sensitivity.* ``(b - a) / n * max ||W_i||_1``, for any scores whatsoever, plus a bound on
    what the matrix product may round (relative 1e-14 or so). The sums over records are exact
    integers. The exponential mechanism then is epsilon-DP under replace-one: status **proven**.
    Only a design that was chosen without looking at sensitive values is accepted; that the choices
    and the settings were chosen so too is a printed condition.

    Args:
        choices: What is chosen from, ``N x d``.
        design: Where the scores are evaluated: a :class:`SobolDesign` or a
            :class:`MaxVarianceDesign`.
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
        unit: Whom or what one record is; replace-one is the only relation.

    Example:
        >>> records = torch.rand(5000, dtype=torch.double)
        >>> choices = torch.linspace(0, 1, 101, dtype=torch.double).unsqueeze(-1)
        >>> choice = LinearChoice(
        ...     choices, design=SobolDesign(torch.tensor([[0.0], [1.0]]).double(), num_points=16),
        ...     kernel=RBFKernel(), noise_variance=0.1, bounds=(0.0, 1.0), num_records=5000,
        ...     epsilon=1.0, negate=True,
        ... )
        >>> print(choice.guarantee, choice.utility())
        >>> choice.release(lambda X: (X - records).abs()).value
    """

    choices: Tensor
    _: KW_ONLY
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
        choices = check_tensor("choices", self.choices, shape=("m", "d")).detach().clone()
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
        check_unit(self.unit, NeighboringRelation.REPLACE_ONE)
        object.__setattr__(self, "kernel", frozen_kernel(self.kernel, choices.double()))
        exponential_guarantee(
            sensitivity=self._unit_sensitivity, epsilon=self.epsilon, method=self.method
        )

    @cached_property
    def _points(self) -> Tensor:
        return self.design.points.to(self.choices.device, torch.double)

    @property
    def _width(self) -> float:
        return self.bounds[1] - self.bounds[0]

    @cached_property
    def weights(self) -> Tensor:
        """``W``, the public weights of the posterior means: ``N x m``."""
        with torch.no_grad():
            prior = self.kernel(self._points).to_dense()
            noise = self.noise_variance * torch.eye(
                len(prior), dtype=prior.dtype, device=prior.device
            )
            root, failed = torch.linalg.cholesky_ex(prior + noise)
            if failed:
                raise ValueError(
                    f"`noise_variance` = {self.noise_variance:g} is too small for this kernel and "
                    "design: the covariance of the observations is singular. Enlarge it."
                )
            cross = self.kernel(self._points, self.choices.double()).to_dense()
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
        """What the release promises, and costs: pure epsilon-DP, for any scores whatsoever."""
        name = {"exponential": "the exponential mechanism", "permute_and_flip": "permute-and-flip"}
        return Guarantee(
            mechanism=f"Choice by {name[self.method]} on a linear posterior mean",
            losses=(PureLoss(self.epsilon),),
            unit=self.unit.given(OWN_RECORD_ONLY, _CHOSEN, *self.design.conditions),
        )

    def utility(self, delta: float = 0.05) -> UtilityBound:
        """How much worse than the largest one the drawn posterior mean may be.

        The mechanism's part only: how far posterior means are from the objective is a matter of
        the kernel, about which nothing is assumed.
        """
        count = len(self.choices)
        return UtilityBound(
            subject="the drawn choice has a posterior mean worse than the best one",
            noise=exact_selection_tail(self.scale, count, delta, self.method),
            model=0.0,
            probability=1 - delta,
            spread=self._width,
            remark=blind_draw_remark(self.scale, count, self._width, self.method),
        )

    def posterior_mean(self, scores: Tensor) -> Tensor:
        """**Sensitive**: the utilities of all choices, in units of ``b - a`` above ``a``.

        Computed from ``m x n`` scores at the design. Scores beyond a bound count as that bound, NaN
        as the worse one.
        """
        num_points = self.weights.shape[1]
        checked_scores(scores, num_points=num_points, num_records=self.num_records, name="scores")
        low, high = self.bounds
        worse = high if self.negate else low
        total = grid_levels(self.num_records) * self.num_records
        values = [clipped_sum(row, self.bounds, nan_as=worse) / total for row in scores]
        prior = 0.5 if self.prior_mean is None else (self.prior_mean - low) / self._width
        observed = torch.tensor(values, dtype=torch.double, device=self.weights.device)
        mean = self.weights @ observed + prior * (1 - self.weights.sum(dim=-1))
        return -mean if self.negate else mean

    def release(
        self,
        record_losses: PerRecordLosses | Tensor,
        *,
        ledger: PrivacyLedger | None = None,
        unsafe_seed: int | None = None,
    ) -> Release[Tensor]:
        """Draw one of the choices. Warns beforehand when the noise would drown the answer.

        Args:
            record_losses: Per-record scores: a function ``m x d -> m x n``, or the ``m x n`` scores
                at ``design.points``, in their order. Sensitive.
            ledger: Charged before a score is looked at.
            unsafe_seed: Simulate with reproducible noise. The release then promises nothing.

        Returns:
            The chosen row of ``choices``, with the scale ``s`` in ``exp(mean / s)``.
        """
        _check_source(record_losses)
        if isinstance(record_losses, Tensor):
            self._checked(record_losses)
        return charge_then_draw(
            self,
            partial(self._draw, record_losses, unsafe_seed),
            label="linear choice",
            ledger=ledger,
            unsafe_seed=unsafe_seed,
        )

    def _checked(self, scores: Tensor) -> Tensor:
        return checked_scores(scores, num_points=len(self._points), num_records=self.num_records)

    def _draw(
        self, record_losses: PerRecordLosses | Tensor, unsafe_seed: int | None
    ) -> tuple[Tensor, float | None]:
        if isinstance(record_losses, Tensor):
            scores = record_losses
        else:
            scores = record_losses(self.design.points)
        index = exponential_mechanism(
            self.posterior_mean(self._checked(scores)),
            sensitivity=self._unit_sensitivity,
            epsilon=self.epsilon,
            method=self.method,
            unsafe_seed=unsafe_seed,
        )
        return self.choices[index.value].clone(), self.scale


def _check_source(record_losses: object) -> None:
    if not isinstance(record_losses, Tensor) and not callable(record_losses):
        raise TypeError(
            "`record_losses` must be a function or an m x n tensor of scores, got "
            f"{type(record_losses).__name__}."
        )
