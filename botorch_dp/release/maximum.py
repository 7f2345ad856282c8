r"""The private maximum: a search's best value with Laplace noise (Algorithms 1 to 3 [Kusner2015]).

Three searches and three bounds on how far the best value moves between neighbouring data sets:
GP-UCB on noisy values (Algorithm 1), branch and bound on exact ones (Algorithm 2), and any search
over the regularization of a Lipschitz learner (Algorithm 3). The first two rest on Assumption 1;
the third needs no prior.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, get_args

from torch import Tensor

from botorch_dp._checks import (
    check_choice,
    check_delta,
    check_integer,
    check_positive,
    check_tensor,
)
from botorch_dp.acquisition.ucb import UCBSchedule
from botorch_dp.privacy import (
    ApproximateLoss,
    Guarantee,
    LaplaceLoss,
    NeighboringRelation,
    PrivacyLedger,
    PrivacyUnit,
    Release,
    laplace_guarantee,
    laplace_mechanism,
)
from botorch_dp.privacy.guarantee import check_unit, warn_large_delta
from botorch_dp.privacy.ledger import make_release
from botorch_dp.privacy.losses import PrivacyLoss
from botorch_dp.privacy.mechanisms import laplace_scale
from botorch_dp.release.assumptions import (
    VALIDATION_RECORD,
    UtilityBound,
    check_correlation,
    clamp_to_prior,
    decimal,
    laplace_tail,
    neighbor_gap,
    observation_gap,
    prior_conditions,
    prior_spread,
    warn_if_drowned,
)

#: Editions of the noisy maximum: the published one, and one whose proof covers all steps.
Edition = Literal["icml2015", "union_bound"]
#: Editions of the Lipschitz maximum: ours, and the one whose printed constant is too small.
LipschitzEdition = Literal["corrected", "icml2015"]

_FEWEST_STEPS_WITHOUT_NOISE = 2  # the regret bound starts at the second sample


@dataclass(frozen=True, kw_only=True)
class LaplaceMaximum(ABC):
    """A value released with Laplace noise of scale ``sensitivity / epsilon``."""

    epsilon: float
    unit: PrivacyUnit = VALIDATION_RECORD

    def __post_init__(self) -> None:
        check_positive("epsilon", self.epsilon)
        check_unit(self.unit)
        self._check()
        if not 0 < self.sensitivity < math.inf:
            raise ValueError(
                "The sensitivity, which follows from these arguments, must be positive and finite, "
                f"got {self.sensitivity}: at least one of them is too large or too small."
            )
        laplace_guarantee(sensitivity=self.sensitivity, epsilon=self.epsilon)

    @abstractmethod
    def _check(self) -> None:
        """Raise unless all other parameters lie in their domains."""

    @property
    @abstractmethod
    def sensitivity(self) -> float:
        """``D``: how far the value moves between neighbouring data sets, at most."""

    @property
    @abstractmethod
    def guarantee(self) -> Guarantee:
        """The guarantee and the cost of the release."""

    @abstractmethod
    def utility(self, delta: float = 0.05) -> UtilityBound:
        """How far the released value may be from the true maximum, but for that probability."""

    @abstractmethod
    def statistic(self, values: Tensor) -> float:
        """**Sensitive**: the number that noise is added to, from the values of the search."""

    @property
    def scale(self) -> float:
        """The scale of the Laplace noise."""
        return self.sensitivity / self.epsilon

    def release(
        self,
        values: Tensor,
        *,
        ledger: PrivacyLedger | None = None,
        label: str = "",
        unsafe_seed: int | None = None,
    ) -> Release[float]:
        """Release the maximum. Warns beforehand when the noise may hide the answer.

        Args:
            values: The values that the search saw, in its order. Sensitive.
            ledger: Charged before ``values`` are looked at.
            label: What it is for, in public words; shown in the ledger.
            unsafe_seed: Simulate with reproducible noise. The release then guarantees nothing.
        """
        check_tensor("values", values, shape=("T",), finite=False)
        warn_if_drowned(self.utility())
        return make_release(
            self.guarantee,
            lambda: self._draw(values, unsafe_seed)[0],
            ledger=ledger,
            label=label,
            scale=laplace_scale(self.sensitivity, self.epsilon),
            unsafe_seed=unsafe_seed,
        )

    def _draw(self, values: Tensor, unsafe_seed: int | None) -> tuple[float, float | None]:
        noisy = laplace_mechanism(
            self.statistic(values),
            sensitivity=self.sensitivity,
            epsilon=self.epsilon,
            unsafe_seed=unsafe_seed,
        )
        return noisy.value, noisy.scale

    def _promise(
        self,
        name: str,
        loss: PrivacyLoss,
        assumptions: tuple[str, ...],
        void: str | None = None,
    ) -> Guarantee:
        return Guarantee(
            mechanism=f"{name} of Kusner et al. (Laplace mechanism)",
            losses=(loss,),
            unit=self.unit,
            assumptions=assumptions,
            void=void,
        )


@dataclass(frozen=True, kw_only=True)
class PriorMaximum(LaplaceMaximum):
    """A maximum whose sensitivity bound rests on Assumption 1."""

    delta: float
    steps: int
    num_choices: int
    dataset_correlation: float

    def _check(self) -> None:
        check_delta("delta", self.delta)
        check_integer("steps", self.steps)
        check_integer("num_choices", self.num_choices)
        check_correlation(self.dataset_correlation)

    def release(
        self,
        values: Tensor,
        *,
        num_records: int | None = None,
        ledger: PrivacyLedger | None = None,
        label: str = "",
        unsafe_seed: int | None = None,
    ) -> Release[float]:
        """As for any maximum, of the ``T`` values of the search.

        Args:
            num_records: Size of the validation set, to warn when ``delta`` is too large for it.
        """
        check_tensor("values", values, shape=(self.steps,), finite=False)
        warn_large_delta(self.delta, num_records)
        return super().release(values, ledger=ledger, label=label, unsafe_seed=unsafe_seed)


@dataclass(frozen=True, kw_only=True)
class PrivateMaximum(PriorMaximum):
    r"""The best of ``T`` noisy values seen by GP-UCB (Algorithm 1, Theorems 3 and 4).

    ``D = W + c + q`` with ``W = sqrt(C1 beta_T gamma_T / T)``, ``C1 = 8 / log(1 + s^-2)``,
    ``c = 2 sqrt((1 - k(V, V')) log(3 n / delta))`` and, for noise of standard deviation ``s``,
    ``q = s sqrt(8 log(3 / delta))``.

    *Why.* The best of the visited points has at most the average regret, ``W`` [Srinivas2010]; the
    two maxima differ by at most ``c``; and the best *observed* value differs from the best visited
    one by noise. The published ``q`` bounds that noise as if the best step were known beforehand.
    The edition ``"union_bound"`` bounds it at all ``T`` steps: ``q = s sqrt(8 log(24 T / delta))``
    and ``c`` with ``6 n`` for ``3 n``. Then the regret bounds of both data sets fail with
    probability at most ``delta (1 + 1/n) / 2``, ``c`` with ``delta / 6`` and ``q`` with
    ``delta / 12``: in sum at most ``delta`` for ``n >= 2``, and one choice has no regret.

    The guarantee is (epsilon, delta), **conditional** on Assumption 1, in whose units (unit prior
    variance, zero mean) all values are.

    Args:
        noise_std: Standard deviation ``s`` of the observation noise, for unit prior variance.
        information_gain: An upper bound on ``gamma_T``; see :func:`.max_information_gain`.
        edition: ``"icml2015"``, or ``"union_bound"``, whose proof covers the noise of all steps.
        epsilon: As for :class:`~botorch_dp.release.PrivateChoice`; likewise all others.

    Example:
        >>> gain = max_information_gain(kernel, choices, num_observations=50, noise_std=0.1)
        >>> maximum = PrivateMaximum(
        ...     epsilon=10.0, delta=1e-4, steps=50, num_choices=len(choices),
        ...     dataset_correlation=0.99, noise_std=0.1, information_gain=gain,
        ... )
        >>> print(maximum.guarantee, maximum.utility())
        >>> maximum.release(values).value
    """

    noise_std: float
    information_gain: float
    edition: Edition = "icml2015"

    def _check(self) -> None:
        super()._check()
        check_positive("noise_std", self.noise_std)
        check_positive("information_gain", self.information_gain)
        check_choice("edition", self.edition, get_args(Edition))
        least = 0.5 * math.log1p(self.noise_std**-2)
        if self.information_gain < least * (1 - 1e-9):
            raise ValueError(
                f"`information_gain` = {self.information_gain:g} is too small: one observation at "
                f"`noise_std` = {self.noise_std:g} gains {least:g}. Use `max_information_gain`."
            )

    @cached_property
    def regret(self) -> float:
        """``W``: the regret of the best visited point, at most."""
        beta = UCBSchedule(self.num_choices, delta=self.delta)(self.steps)
        constant = 8 / math.log1p(self.noise_std**-2)
        return math.sqrt(constant * beta * self.information_gain / self.steps)

    @property
    def noise_gap(self) -> float:
        """``q``: how much the observation noise adds."""
        count = 24 * self.steps if self.edition == "union_bound" else 3
        return observation_gap(self.noise_std, 8, count, self.delta)

    @property
    def sensitivity(self) -> float:
        """``D = W + c + q``."""
        count = (6 if self.edition == "union_bound" else 3) * self.num_choices
        gap = neighbor_gap(self.dataset_correlation, count, self.delta)
        return self.regret + gap + self.noise_gap

    @cached_property
    def guarantee(self) -> Guarantee:
        """The guarantee and the cost of the release: (epsilon, delta), conditional on the prior."""
        published = (
            "the noise of the best observed value is bounded like that of one step, as in the "
            "published proof (edition 'union_bound' does without)",
        )
        return self._promise(
            "Private maximum",
            ApproximateLoss(self.epsilon, self.delta),
            (
                *prior_conditions(self.dataset_correlation, self.delta),
                f"the values are {self.steps} steps of GP-UCB on {self.num_choices} choices with "
                f"the schedule for delta = {decimal(self.delta)}, under independent Gaussian noise "
                f"of standard deviation {decimal(self.noise_std)}, and "
                f"{decimal(self.information_gain)} bounds their information gain",
                *(() if self.edition == "union_bound" else published),
            ),
        )

    def utility(self, delta: float = 0.05) -> UtilityBound:
        r"""How far the released value may be from ``max f``: sharper than Theorem 4.

        At most ``W + s sqrt(2 log(T / p))`` from the search and its noise, but for probability
        ``self.delta``; plus the Laplace tail, but for probability ``delta``. The search's bounds
        are needed from above at all choices and from below at the visited one, which fails with
        probability ``(1 + 1/n) self.delta / 4``; what is left of ``self.delta`` is ``p``.
        """
        left = self.delta * (1 - (1 + 1 / self.num_choices) / 4)
        return UtilityBound(
            subject="the released maximum differs from the true one",
            noise=laplace_tail(self.scale, delta),
            model=self.regret + observation_gap(self.noise_std, 2, self.steps, left),
            probability=max(0.0, 1 - delta - self.delta),
            spread=prior_spread(self.num_choices),
        )

    def statistic(self, values: Tensor) -> float:
        """**Sensitive**: the largest of the ``T`` observed values."""
        check_tensor("values", values, shape=("n",), finite=False)
        return clamp_to_prior(values, self.noise_std).max().item()


@dataclass(frozen=True, kw_only=True)
class NoiseFreeMaximum(PriorMaximum):
    r"""The outcome of an exact search by branch and bound (Algorithm 2, Theorems 5 and 6).

    With regret at most ``r(t) = A exp(-tau t / (log t)^{d/4})`` after ``t >= 2`` samples
    [deFreitas2012] and ``c = 2 sqrt((1 - k(V, V')) log(2 n / delta))``, the last sample ``f(x_T)``
    is released with ``D = r(T) + c``.

    *Why.* It lies within the regret below ``max f``, and ``|max f - max f'| <= c``. The guarantee
    is (epsilon, delta), **conditional** on Assumption 1 and on the regret constants being true.

    Args:
        steps: The number ``T`` of samples, at least 2; it must not depend on the records.
        dim: The dimension ``d`` of the choices.
        amplitude: The constant ``A``.
        rate: The constant ``tau``.
        epsilon: As for :class:`PrivateMaximum`; likewise all others.

    Example:
        >>> maximum = NoiseFreeMaximum(
        ...     epsilon=5.0, delta=1e-4, steps=len(values), num_choices=1000, dim=2,
        ...     dataset_correlation=0.999, amplitude=2.0, rate=0.5,
        ... )
        >>> maximum.release(values).value
    """

    dim: int
    amplitude: float
    rate: float

    def _check(self) -> None:
        super()._check()
        check_integer("steps", self.steps, at_least=_FEWEST_STEPS_WITHOUT_NOISE)
        check_integer("dim", self.dim)
        check_positive("amplitude", self.amplitude)
        check_positive("rate", self.rate)

    @property
    def regret(self) -> float:
        """``r(T)``."""
        log_decay = math.log(self.rate * self.steps) - self.dim / 4 * math.log(math.log(self.steps))
        return self.amplitude * math.exp(-math.exp(min(log_decay, 700.0)))

    @property
    def sensitivity(self) -> float:
        """``D = r + c``."""
        gap = neighbor_gap(self.dataset_correlation, 2 * self.num_choices, self.delta)
        return self.regret + gap

    @cached_property
    def guarantee(self) -> Guarantee:
        """The guarantee and the cost: (epsilon, delta), conditional on its constants."""
        return self._promise(
            "Private noise-free maximum",
            ApproximateLoss(self.epsilon, self.delta),
            (
                *prior_conditions(self.dataset_correlation, self.delta),
                "the values are exact, and for both data sets the samples of the branch-and-bound "
                f"search have a regret of at most A exp(-tau t / (log t)^(d/4)) with A = "
                f"{decimal(self.amplitude)}, tau = {decimal(self.rate)}, d = {self.dim}",
            ),
        )

    def utility(self, delta: float = 0.05) -> UtilityBound:
        """How far the released value may be from ``max f`` (Theorem 6): the regret, and noise."""
        return UtilityBound(
            subject="the released maximum differs from the true one",
            noise=laplace_tail(self.scale, delta),
            model=self.regret,
            probability=max(0.0, 1 - delta - self.delta),
            spread=prior_spread(self.num_choices),
        )

    def statistic(self, values: Tensor) -> float:
        """**Sensitive**: the last value."""
        check_tensor("values", values, shape=("n",), finite=False)
        return clamp_to_prior(values)[-1].item()


@dataclass(frozen=True, kw_only=True)
class LipschitzMaximum(LaplaceMaximum):
    r"""The best validation score of a regularized Lipschitz learner (Algorithm 3, Theorems 7, 8).

    ``D = G / m + L (1 / lambda_min - 1 / lambda_max)``, where one record's score ``g(w, z)`` at
    trained parameters ``w`` changes by at most ``G`` when ``z`` is replaced:

    * ``G = g*``, a bound that you know;
    * ``G = 2 L / lambda_min`` where ``g(0, z)`` is the same for all records ``z``
      (``equal_at_zero``): trained parameters have norm at most ``1 / lambda_min``, so the scores of
      both records lie within ``L / lambda_min`` of that common value;
    * the smaller one where both hold.

    *Why.* Trained models at two regularizations are at most ``|1 / lambda - 1 / lambda'|`` apart
    [Chaudhuri2013], so their scores differ by at most ``L`` times that: whatever points a search
    visits on either data set, any two scores differ by at most ``D``, and so do the two maxima. No
    prior is needed, and any search will do. The guarantee is pure epsilon-DP for a *replaced*
    record, **conditional** only on the constants being true.

    The printed theorem has ``G = min(g*, L / lambda_min)``: the distance of one score from the one
    at ``w = 0``, not of two records' scores from each other. With ``1 / (1 + exp(-z))`` as the
    normalized sigmoid (``L = 1/4``; the paper prints neither) and a flipped label at ``lambda = 1``
    the true epsilon is 1.85 times the stated one. ``edition="icml2015"`` computes with it and
    guarantees nothing.

    Args:
        epsilon: The privacy parameter.
        num_records: The number ``m`` of validation records.
        lipschitz: ``L``, of the score in the trained parameters.
        lambda_min: The smallest regularization searched.
        lambda_max: The largest one.
        max_loss: ``g*``: by how much one record's score can change at most; None if unknown.
        equal_at_zero: Whether all records have the same score at ``w = 0``, as with a sigmoid of
            the margin. Needed if ``max_loss`` is unknown.
        edition: ``"corrected"``, or ``"icml2015"``, whose guarantee is void.
        unit: Whom or what one record is; replace-one is the only relation.

    Example:
        >>> maximum = LipschitzMaximum(
        ...     epsilon=1.0, num_records=5000, lipschitz=1.0, lambda_min=0.5, lambda_max=0.6,
        ...     max_loss=1.0,
        ... )
        >>> maximum.release(values).value
    """

    num_records: int
    lipschitz: float
    lambda_min: float
    lambda_max: float
    max_loss: float | None = None
    equal_at_zero: bool = False
    edition: LipschitzEdition = "corrected"

    def _check(self) -> None:
        check_unit(self.unit, NeighboringRelation.REPLACE_ONE)
        check_integer("num_records", self.num_records)
        check_positive("lipschitz", self.lipschitz)
        check_positive("lambda_min", self.lambda_min)
        check_positive("lambda_max", self.lambda_max)
        if self.lambda_max < self.lambda_min:
            raise ValueError(
                f"`lambda_max` = {self.lambda_max:g} must not be below `lambda_min` = "
                f"{self.lambda_min:g}."
            )
        check_choice("edition", self.edition, get_args(LipschitzEdition))
        if self.max_loss is not None:
            check_positive("max_loss", self.max_loss)
        elif self.edition == "corrected" and not self.equal_at_zero:
            raise ValueError(
                "`max_loss` must bound by how much one record's score can change, unless all "
                "records have the same score at the parameters 0: then pass `equal_at_zero=True`, "
                "and 2 lipschitz / lambda_min bounds it."
            )

    @property
    def record_gap(self) -> float:
        """``G``: by how much one record's score can change, at most."""
        bounds = [] if self.max_loss is None else [self.max_loss]
        if self.edition == "icml2015":
            bounds.append(self.lipschitz / self.lambda_min)
        elif self.equal_at_zero:
            bounds.append(2 * self.lipschitz / self.lambda_min)
        return min(bounds)

    @property
    def model_gap(self) -> float:
        """``L (1 / lambda_min - 1 / lambda_max)``: by how much two trained models can differ."""
        return self.lipschitz * (1 / self.lambda_min - 1 / self.lambda_max)

    @property
    def sensitivity(self) -> float:
        """``D``."""
        return self.record_gap / self.num_records + self.model_gap

    @cached_property
    def guarantee(self) -> Guarantee:
        """The guarantee and the cost: pure epsilon-DP, conditional on the constants."""
        void = None
        if self.edition == "icml2015":
            void = (
                "the printed constant of Theorem 7 is too small by up to a factor of 2: it bounds "
                "how far one record's score lies from that of the parameters 0, not how far the "
                "scores of two records lie apart"
            )
        return self._promise(
            "Private maximum of a Lipschitz learner",
            LaplaceLoss(self.epsilon),
            (
                f"each value is the mean score of {self.num_records} validation records",
                self._record_condition(),
                f"the score is {decimal(self.lipschitz)}-Lipschitz in the trained parameters",
                "the parameters minimize lambda/2 |w|^2 plus a convex training loss that is "
                f"1-Lipschitz in w, with lambda from {decimal(self.lambda_min)} to "
                f"{decimal(self.lambda_max)}, exactly and on training data that holds no "
                "validation record",
                "the range of lambda and all constants were chosen without the validation records",
            ),
            void,
        )

    def _record_condition(self) -> str:
        gap = "replacing one record changes its score at a trained model by at most "
        if self.record_gap == self.max_loss:
            return gap + decimal(self.record_gap)
        return (
            "all records have the same score at the parameters 0, so that "
            f"{gap}2 L / lambda_min = {decimal(self.record_gap)}"
        )

    def utility(self, delta: float = 0.05) -> UtilityBound:
        """How far the released value may be from the best over all regularizations (Theorem 8)."""
        return UtilityBound(
            subject="the released maximum differs from the best over all regularizations",
            noise=laplace_tail(self.scale, delta),
            model=self.model_gap,
            probability=1 - delta,
            spread=self.record_gap,
        )

    def statistic(self, values: Tensor) -> float:
        """**Sensitive**: the largest value."""
        return values.detach().double().nan_to_num(nan=-math.inf).max().clamp(-1e100, 1e100).item()
