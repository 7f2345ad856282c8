r"""How far the best value of a search may move between neighbouring data sets.

Each class holds the public parameters of one release of [Kusner2015]_ and states its sensitivity,
guarantee and utility; nothing private is known here until :meth:`LaplaceMaximum.draw`. The two
bounds below rest on a Gaussian-process prior; the one in :mod:`.lipschitz` does not.

References:
.. [Kusner2015]
    M. J. Kusner, J. R. Gardner, R. Garnett and K. Q. Weinberger. Differentially Private Bayesian
    Optimization. ICML 2015. (Algorithms 1 and 2, Theorems 3 to 6.)
.. [Kusner2014]
    The earlier edition of the same work, at the NIPS 2014 workshop on Bayesian optimization.
.. [Srinivas2010]
    N. Srinivas, A. Krause, S. M. Kakade and M. Seeger. Gaussian Process Optimization in the
    Bandit Setting: No Regret and Experimental Design. ICML 2010.
.. [deFreitas2012]
    N. de Freitas, A. Smola and M. Zoghi. Exponential Regret Bounds for Gaussian Process Bandits
    with Deterministic Observations. ICML 2012.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Literal, get_args

from torch import Tensor

from botorch_dp._checks import check_delta, check_integer, check_positive, check_tensor
from botorch_dp.acquisition.ucb import UCBSchedule
from botorch_dp.privacy import (
    ApproximateLoss,
    Guarantee,
    PrivacyLoss,
    PrivacyUnit,
    Release,
    laplace_guarantee,
    laplace_mechanism,
)
from botorch_dp.release.assumptions import (
    VALIDATION_RECORD,
    check_correlation,
    neighbor_gap,
    plausible,
    prior_conditions,
)
from botorch_dp.release.utility import UtilityBound, laplace_tail, prior_spread

#: Editions of the noisy maximum: the two published ones, and one whose proof covers all steps.
Edition = Literal["icml2015", "workshop2014", "union_bound"]
#: Editions of the noise-free maximum.
NoiseFreeEdition = Literal["icml2015", "workshop2014"]

_FEWEST_STEPS_WITHOUT_NOISE = 2  # the regret bound starts at the second sample


@dataclass(frozen=True, kw_only=True)
class LaplaceMaximum(ABC):
    """A value released with Laplace noise of scale ``sensitivity / epsilon``.

    Args:
        epsilon: The privacy parameter.
        unit: Whom or what one record is, and the relation the sensitivity refers to.
    """

    epsilon: float
    unit: PrivacyUnit = VALIDATION_RECORD

    def __post_init__(self) -> None:
        check_positive("epsilon", self.epsilon)
        self._check()
        laplace_guarantee(sensitivity=self.sensitivity, epsilon=self.epsilon)

    @abstractmethod
    def _check(self) -> None:
        """Raise unless all other parameters lie in their domains."""

    @property
    @abstractmethod
    def sensitivity(self) -> float:
        """How far the value moves between neighbouring data sets, at most."""

    @property
    @abstractmethod
    def guarantee(self) -> Guarantee:
        """What the release promises."""

    @abstractmethod
    def utility(self, confidence: float = 0.95) -> UtilityBound:
        """How far the released value may be from the true maximum."""

    @abstractmethod
    def statistic(self, values: Tensor) -> float:
        """The private number that is released, from the values of the search."""

    @property
    def scale(self) -> float:
        """The scale of the Laplace noise."""
        return self.sensitivity / self.epsilon

    def draw(self, values: Tensor, *, unsafe_seed: int | None = None) -> Release[float]:
        """Release the maximum of the search's values; spends the budget."""
        noisy = laplace_mechanism(
            self.statistic(values),
            sensitivity=self.sensitivity,
            epsilon=self.epsilon,
            unsafe_seed=unsafe_seed,
        )
        return Release(
            value=noisy.value,
            guarantee=self.guarantee if unsafe_seed is None else self.guarantee.simulated(),
            scale=noisy.scale,
        )

    def conditional(self, name: str, loss: PrivacyLoss, assumptions: tuple[str, ...]) -> Guarantee:
        """The guarantee of this release with the given loss, under the given conditions."""
        return Guarantee(
            mechanism=f"{name} of Kusner et al. (Laplace mechanism)",
            losses=(loss,),
            unit=self.unit,
            assumptions=assumptions,
        )


@dataclass(frozen=True, kw_only=True)
class NoisyMaximum(LaplaceMaximum):
    r"""The best of ``T`` noisy values seen by GP-UCB (Algorithm 1, Theorems 3 and 4).

    ``D = W + c + q`` with ``W = sqrt(C1 beta_T gamma_T / T)``, ``C1 = 8 / log(1 + s^-2)``,
    ``c = 2 sqrt((1 - k(V, V')) log(3 n / delta))`` and, for noise of standard deviation ``s``,
    ``q = s sqrt(8 log(3 / delta))`` (``s sqrt(4 log(3 / delta))`` in the workshop edition).

    *Why.* The best of the visited points has at most the average regret, ``W`` [Srinivas2010]_; the
    two maxima differ by at most ``c``; and the best *observed* value differs from the best visited
    one by noise. The published ``q`` bounds that noise as if the best step were known beforehand.
    The edition ``"union_bound"`` bounds it at all ``T`` steps: ``q = s sqrt(8 log(24 T / delta))``
    and ``c`` with ``6 n`` for ``3 n``. Then the regret bounds of both data sets fail with
    probability at most ``delta (1 + 1/n) / 2``, ``c`` with ``delta / 6`` and ``q`` with
    ``delta / 12``: in sum at most ``delta`` for ``n >= 2``, and one choice has no regret.

    Args:
        delta: Probability, over the prior, that the sensitivity bound fails.
        steps: The number ``T`` of observations.
        num_choices: The number ``n`` of choices.
        dataset_correlation: The prior correlation ``k(V, V')`` of neighbouring data sets.
        noise_std: Standard deviation ``s`` of the observation noise, for unit prior variance.
        information_gain: An upper bound on ``gamma_T``; see :func:`.max_information_gain`.
        edition: Which ``q``.
    """

    delta: float
    steps: int
    num_choices: int
    dataset_correlation: float
    noise_std: float
    information_gain: float
    edition: Edition = "icml2015"

    def _check(self) -> None:
        check_delta("delta", self.delta)
        check_integer("steps", self.steps)
        check_integer("num_choices", self.num_choices)
        check_correlation(self.dataset_correlation)
        check_positive("noise_std", self.noise_std)
        check_positive("information_gain", self.information_gain)
        _check_edition(self.edition, get_args(Edition))
        least = 0.5 * math.log1p(self.noise_std**-2)
        if self.information_gain < least * (1 - 1e-9):
            raise ValueError(
                f"`information_gain` = {self.information_gain:g} is too small: one observation at "
                f"`noise_std` = {self.noise_std:g} gains {least:g}. Use `max_information_gain`."
            )

    @property
    def regret(self) -> float:
        """``W``: the regret of the best visited point, at most."""
        beta = UCBSchedule(self.num_choices, delta=self.delta)(self.steps)
        constant = 8 / math.log1p(self.noise_std**-2)
        return math.sqrt(constant * beta * self.information_gain / self.steps)

    @property
    def noise_gap(self) -> float:
        """``q``: how much the observation noise adds."""
        factor, count = {
            "icml2015": (8, 3),
            "workshop2014": (4, 3),
            "union_bound": (8, 24 * self.steps),
        }[self.edition]
        return self.noise_std * math.sqrt(factor * math.log(count / self.delta))

    @property
    def sensitivity(self) -> float:
        """``D = W + c + q``."""
        count = (6 if self.edition == "union_bound" else 3) * self.num_choices
        gap = neighbor_gap(self.dataset_correlation, count, self.delta)
        return self.regret + gap + self.noise_gap

    @property
    def guarantee(self) -> Guarantee:
        """(epsilon, delta), conditional on the prior."""
        published = (
            "the noise of the best observed value is bounded like that of one step, as in the "
            "published proof (edition 'union_bound' does without)",
        )
        return self.conditional(
            "Private maximum",
            ApproximateLoss(self.epsilon, self.delta),
            (
                *prior_conditions(self.dataset_correlation, self.delta),
                f"the values are {self.steps} steps of GP-UCB on {self.num_choices} choices with "
                f"the schedule for delta = {self.delta:g}, under independent Gaussian noise of "
                f"standard deviation {self.noise_std:g}, and {self.information_gain:g} bounds "
                "their information gain",
                *(() if self.edition == "union_bound" else published),
            ),
        )

    def utility(self, confidence: float = 0.95) -> UtilityBound:
        r"""How far the released value may be from ``max f`` (Theorem 4).

        At most ``W + s sqrt(2 log(3 T / delta))`` from the search and its noise, but for
        probability ``delta``; plus the Laplace tail.
        """
        noise_bound = self.noise_std * math.sqrt(2 * math.log(3 * self.steps / self.delta))
        return UtilityBound(
            subject="the released maximum differs from the true one",
            noise=laplace_tail(self.scale, confidence),
            model=self.regret + noise_bound,
            probability=max(0.0, confidence - self.delta),
            spread=prior_spread(self.num_choices),
        )

    def statistic(self, values: Tensor) -> float:
        """The largest of the ``T`` observed values."""
        check_tensor("values", values, shape=(self.steps,), finite=False)
        return plausible(values, self.noise_std).max().item()


@dataclass(frozen=True, kw_only=True)
class NoiseFreeMaximum(LaplaceMaximum):
    r"""The outcome of an exact search by branch and bound (Algorithm 2, Theorems 5 and 6).

    With regret at most ``r(t) = A exp(-tau t / (log t)^{d/4})`` after ``t >= 2`` samples
    [deFreitas2012]_ and ``c = 2 sqrt((1 - k(V, V')) log(2 n / delta))``:

    * ``"icml2015"`` releases the last sample ``f(x_T)``, with ``D = r(T) + c``;
    * ``"workshop2014"`` releases ``max_{2 <= t <= T} f(x_t)``, with ``D = r(2) + c``.

    *Why.* Both lie within the regret below ``max f``, and ``|max f - max f'| <= c``.

    Args:
        delta: Probability, over the prior, that the sensitivity bound fails.
        steps: The number ``T`` of samples, at least 2.
        num_choices: The number ``n`` of choices.
        dim: The dimension ``d`` of the choices.
        dataset_correlation: The prior correlation ``k(V, V')`` of neighbouring data sets.
        amplitude: The constant ``A``.
        rate: The constant ``tau``.
        edition: Which statistic, and which bound.
    """

    delta: float
    steps: int
    num_choices: int
    dim: int
    dataset_correlation: float
    amplitude: float
    rate: float
    edition: NoiseFreeEdition = "icml2015"

    def _check(self) -> None:
        check_delta("delta", self.delta)
        check_integer("steps", self.steps, at_least=_FEWEST_STEPS_WITHOUT_NOISE)
        check_integer("num_choices", self.num_choices)
        check_integer("dim", self.dim)
        check_correlation(self.dataset_correlation)
        check_positive("amplitude", self.amplitude)
        check_positive("rate", self.rate)
        _check_edition(self.edition, get_args(NoiseFreeEdition))

    @property
    def regret(self) -> float:
        """``r(T)``, or ``r(2)`` in the workshop edition."""
        steps = self.steps if self.edition == "icml2015" else _FEWEST_STEPS_WITHOUT_NOISE
        log_decay = math.log(self.rate * steps) - self.dim / 4 * math.log(math.log(steps))
        return self.amplitude * math.exp(-math.exp(min(log_decay, 700.0)))

    @property
    def sensitivity(self) -> float:
        """``D = r + c``."""
        gap = neighbor_gap(self.dataset_correlation, 2 * self.num_choices, self.delta)
        return self.regret + gap

    @property
    def guarantee(self) -> Guarantee:
        """(epsilon, delta), conditional on the prior and on the constants."""
        return self.conditional(
            "Private noise-free maximum",
            ApproximateLoss(self.epsilon, self.delta),
            (
                *prior_conditions(self.dataset_correlation, self.delta),
                "the values are exact, and for both data sets the samples of the branch-and-bound "
                f"search have a regret of at most A exp(-tau t / (log t)^(d/4)) with A = "
                f"{self.amplitude:g}, tau = {self.rate:g}, d = {self.dim}",
            ),
        )

    def utility(self, confidence: float = 0.95) -> UtilityBound:
        """How far the released value may be from ``max f`` (Theorem 6): the regret, and noise."""
        return UtilityBound(
            subject="the released maximum differs from the true one",
            noise=laplace_tail(self.scale, confidence),
            model=self.regret,
            probability=max(0.0, confidence - self.delta),
            spread=prior_spread(self.num_choices),
        )

    def statistic(self, values: Tensor) -> float:
        """The last value, or the largest from the second on."""
        check_tensor("values", values, shape=(self.steps,), finite=False)
        exact = plausible(values)
        return exact[-1].item() if self.edition == "icml2015" else exact[1:].max().item()


def _check_edition(edition: str, editions: tuple[str, ...]) -> None:
    if edition not in editions:
        raise ValueError(f"`edition` must be one of {editions}, got {edition!r}.")
