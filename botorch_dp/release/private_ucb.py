r"""End-to-end drivers: search a finite set, then release its best choice and its best value.

References:
.. [Kusner2015]
    M. J. Kusner, J. R. Gardner, R. Garnett and K. Q. Weinberger. Differentially Private Bayesian
    Optimization. ICML 2015. (Algorithms 1 and 2.)
.. [deFreitas2012]
    N. de Freitas, A. Smola and M. Zoghi. Exponential Regret Bounds for Gaussian Process Bandits
    with Deterministic Observations. ICML 2012.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from typing import Any

from gpytorch.kernels import Kernel
from torch import Tensor

from botorch_dp._checks import check_integer, check_positive, check_tensor
from botorch_dp.acquisition.ucb import UCBSchedule
from botorch_dp.models.finite import FiniteSetGP, max_information_gain
from botorch_dp.models.public import check_unit_variance, frozen_kernel
from botorch_dp.privacy import (
    Guarantee,
    PrivacyLedger,
    PrivacyUnit,
    Release,
    check_unit,
)
from botorch_dp.privacy._noise import SelectionMethod
from botorch_dp.release.assumptions import VALIDATION_RECORD
from botorch_dp.release.bounds import (
    Edition,
    LaplaceMaximum,
    NoiseFreeEdition,
    NoiseFreeMaximum,
    NoisyMaximum,
)
from botorch_dp.release.choice import ChoiceMechanism
from botorch_dp.release.journal import RunJournal, fingerprint
from botorch_dp.release.plan import PrivateOptimum, ReleasePlan
from botorch_dp.release.search import (
    GPUCB,
    BranchAndBound,
    Objective,
    Search,
    SearchDiagnostics,
    run_search,
)
from botorch_dp.release.utility import warn_if_delta_is_large, warn_if_drowned


class _PrivateSearch(ABC):
    """What both drivers share: parameters checked once, and the order of a run."""

    def __init__(
        self,
        choices: Tensor,
        *,
        kernel: Kernel,
        epsilon: float,
        delta: float,
        dataset_correlation: float,
        method: SelectionMethod,
        num_records: int | None,
        confidence: float,
        unit: PrivacyUnit,
        ledger: PrivacyLedger | None,
        unsafe_seed: int | None,
    ) -> None:
        check_tensor("choices", choices, shape=(None, None))
        self.choices = choices.detach()
        self.kernel = frozen_kernel(kernel, self.choices)
        check_unit_variance(self.kernel, self.choices)
        self.epsilon = epsilon
        self.delta = delta
        self.dataset_correlation = dataset_correlation
        self.method = method
        self.num_records = num_records
        self.confidence = confidence
        self.unit = check_unit(unit)
        self.ledger = ledger
        self.unsafe_seed = unsafe_seed
        if unsafe_seed is not None:
            check_integer("unsafe_seed", unsafe_seed, at_least=0)

    @abstractmethod
    def _search(self) -> Search:
        """A fresh search."""

    @abstractmethod
    def _maximum(self, steps: int) -> LaplaceMaximum:
        """The mechanism behind the maximum."""

    _noise_std: float = 0.0

    @property
    def schedule(self) -> UCBSchedule:
        """The widths of the confidence bounds."""
        return UCBSchedule(len(self.choices), delta=self.delta)

    @property
    def guarantee(self) -> Guarantee:
        """Of both releases together, at the fewest steps: (2 epsilon, 2 delta) for any number."""
        return self.plan(2).guarantee

    def plan(self, steps: int) -> ReleasePlan:
        """Price and worth of a run of this many steps; nothing is spent."""
        check_integer("steps", steps)
        return ReleasePlan(
            choice=ChoiceMechanism(
                num_choices=len(self.choices),
                epsilon=self.epsilon,
                delta=self.delta,
                steps=steps,
                dataset_correlation=self.dataset_correlation,
                method=self.method,
                unit=self.unit,
            ),
            maximum=self._maximum(steps),
            confidence=self.confidence,
        )

    def run(
        self,
        objective: Objective,
        steps: int,
        *,
        progress: bool = False,
        checkpoint: str | os.PathLike[str] | None = None,
    ) -> PrivateOptimum:
        """Search, then release the best choice and the best value.

        Both releases are charged before the objective is first called. Without a ``checkpoint``, a
        run that is interrupted or whose objective fails has spent its budget for nothing, and each
        call is charged anew.

        Args:
            objective: A choice (a ``d``-vector) in, its value out, to be maximized; in the units
                of the prior: zero mean and unit variance over what was expected beforehand. NaN
                and values beyond 50 prior standard deviations count as the bound they cross.
            steps: The number of evaluations; always as many, whatever the values are.
            progress: Whether to show a progress bar.
            checkpoint: A file to continue an interrupted run from; a finished one returns what it
                released. It holds sensitive values, with mode 0600; see :mod:`.journal`.
        """
        plan = self.plan(steps)
        warn_if_delta_is_large(self.delta, self.num_records)
        warn_if_drowned(plan.choice_utility)
        warn_if_drowned(plan.maximum_utility)
        with RunJournal.open(checkpoint, self._settings(plan)) as journal:
            if self.ledger is not None:
                label = f"{type(self).__name__} of {steps} steps"
                self.ledger.charge(plan.guarantee, label=label, key=journal.key)
            seen = run_search(
                self._search(),
                objective,
                steps=steps,
                noise_std=self._noise_std,
                journal=journal,
                progress=progress,
                description=type(self).__name__,
            )
            choice, maximum = self._release(plan, seen, journal)
        return PrivateOptimum(choice=choice, maximum=maximum, plan=plan, diagnostics=seen)

    def _release(
        self, plan: ReleasePlan, seen: SearchDiagnostics, journal: RunJournal
    ) -> tuple[Release[Tensor], Release[float]]:
        """Draw both releases, or return those that the journal holds."""
        if journal.released is not None:
            stored = journal.released
            value = self.choices.new_tensor(stored["choice"])
            return (
                Release(value, self._promised(plan.choice.guarantee), stored["choice_scale"]),
                Release(
                    stored["maximum"],
                    self._promised(plan.maximum.guarantee),
                    stored["maximum_scale"],
                ),
            )
        first, second = self._seeds()
        choice = plan.choice.draw(seen.mean, self.choices, unsafe_seed=first)
        maximum = plan.maximum.draw(seen.values, unsafe_seed=second)
        journal.finish(
            {
                "choice": choice.value.tolist(),
                "choice_scale": choice.scale,
                "maximum": maximum.value,
                "maximum_scale": maximum.scale,
            }
        )
        return choice, maximum

    def _promised(self, guarantee: Guarantee) -> Guarantee:
        return guarantee if self.unsafe_seed is None else guarantee.simulated()

    def _settings(self, plan: ReleasePlan) -> dict[str, Any]:
        """All that a run depends on; a run is continued with the same settings only."""
        return {
            "driver": type(self).__name__,
            "choice": repr(plan.choice),
            "maximum": repr(plan.maximum),
            "prior": fingerprint(self.choices, self.kernel),
            "unsafe_seed": self.unsafe_seed,
        }

    def _seeds(self) -> tuple[int | None, int | None]:
        """Different simulated noise for the two releases."""
        if self.unsafe_seed is None:
            return None, None
        return 2 * self.unsafe_seed, 2 * self.unsafe_seed + 1


class PrivateGPUCB(_PrivateSearch):
    r"""GP-UCB on a finite set with both releases of Algorithm 1 [Kusner2015]_.

    Guarantee: (2 epsilon, 2 delta) for the choice and the maximum together, **conditional** on the
    Gaussian-process assumption; see :class:`.ChoiceMechanism` and :class:`.NoisyMaximum`. What the
    search visits and sees is sensitive and stays in ``diagnostics``.

    Args:
        choices: An ``n x d`` tensor. Public.
        kernel: The prior covariance, with ``k(x, x) = 1``, fixed without looking at the records.
        noise_std: Standard deviation of the observation noise, in units of the prior.
        epsilon: The privacy parameter of each of the two releases.
        delta: Of each: probability, over the prior, that the sensitivity bound fails.
        dataset_correlation: The prior correlation ``k(V, V')`` of neighbouring data sets.
        method: How the choice is drawn; see :func:`.release_choice`.
        edition: Of the maximum; see :func:`.release_maximum`.
        num_records: Size of the validation set, to warn when ``delta`` is too large for it.
        confidence: Of the utility bounds.
        unit: Whom or what one record is, and the relation the sensitivity refers to.
        ledger: Charged for both releases before the objective is first called.
        unsafe_seed: Simulate with reproducible noise. The releases then promise nothing.

    Example:
        >>> search = PrivateGPUCB(
        ...     choices, kernel=RBFKernel(), noise_std=0.1, epsilon=20.0, delta=1e-4,
        ...     dataset_correlation=0.999,
        ... )
        >>> print(search.plan(50))
        >>> result = search.run(objective, 50, progress=True)
        >>> result.choice.value, result.maximum.value
    """

    def __init__(
        self,
        choices: Tensor,
        *,
        kernel: Kernel,
        noise_std: float,
        epsilon: float,
        delta: float,
        dataset_correlation: float,
        method: SelectionMethod = "exponential",
        edition: Edition = "icml2015",
        num_records: int | None = None,
        confidence: float = 0.95,
        unit: PrivacyUnit = VALIDATION_RECORD,
        ledger: PrivacyLedger | None = None,
        unsafe_seed: int | None = None,
    ) -> None:
        super().__init__(
            choices,
            kernel=kernel,
            epsilon=epsilon,
            delta=delta,
            dataset_correlation=dataset_correlation,
            method=method,
            num_records=num_records,
            confidence=confidence,
            unit=unit,
            ledger=ledger,
            unsafe_seed=unsafe_seed,
        )
        self.noise_std = self._noise_std = check_positive("noise_std", noise_std)
        self.edition: Edition = edition
        self.plan(1)  # checks all parameters now rather than at the end of a run

    def _search(self) -> Search:
        gp = FiniteSetGP(self.choices, kernel=self.kernel, noise_variance=self.noise_std**2)
        return GPUCB(gp, schedule=self.schedule)

    def _maximum(self, steps: int) -> LaplaceMaximum:
        gain = max_information_gain(
            self.kernel, self.choices, num_observations=steps, noise_variance=self.noise_std**2
        )
        return NoisyMaximum(
            epsilon=self.epsilon,
            delta=self.delta,
            steps=steps,
            num_choices=len(self.choices),
            dataset_correlation=self.dataset_correlation,
            noise_std=self.noise_std,
            information_gain=gain,
            edition=self.edition,
            unit=self.unit,
        )


class BranchAndBoundUCB(_PrivateSearch):
    r"""Branch and bound on exact values [deFreitas2012]_ with the releases of Algorithm 2.

    Guarantee: (2 epsilon, 2 delta) for the choice and the maximum together, **conditional** on the
    Gaussian-process assumption and on the constants of the regret bound; see
    :class:`.ChoiceMechanism` and :class:`.NoiseFreeMaximum`. A search that has certified the
    maximizer keeps evaluating it, so that the number of evaluations says nothing of the records.

    Args:
        choices: An ``n x d`` tensor. Public.
        kernel: The prior covariance, with ``k(x, x) = 1``, fixed without looking at the records.
        epsilon: The privacy parameter of each of the two releases.
        delta: Of each: probability, over the prior, that the sensitivity bound fails.
        dataset_correlation: The prior correlation ``k(V, V')`` of neighbouring data sets.
        amplitude: ``A`` in the regret ``A exp(-tau t / (log t)^{d/4})``.
        rate: ``tau`` in the regret.
        method: How the choice is drawn; see :func:`.release_choice`.
        edition: Of the maximum; see :func:`.release_noise_free_maximum`.
        num_records: Size of the validation set, to warn when ``delta`` is too large for it.
        confidence: Of the utility bounds.
        unit: Whom or what one record is, and the relation the sensitivity refers to.
        ledger: Charged for both releases before the objective is first called.
        unsafe_seed: Simulate with reproducible noise. The releases then promise nothing.

    Example:
        >>> search = BranchAndBoundUCB(
        ...     choices, kernel=RBFKernel(), epsilon=20.0, delta=1e-4, dataset_correlation=0.9999,
        ...     amplitude=2.0, rate=0.5,
        ... )
        >>> result = search.run(objective, 60)
    """

    def __init__(
        self,
        choices: Tensor,
        *,
        kernel: Kernel,
        epsilon: float,
        delta: float,
        dataset_correlation: float,
        amplitude: float,
        rate: float,
        method: SelectionMethod = "exponential",
        edition: NoiseFreeEdition = "icml2015",
        num_records: int | None = None,
        confidence: float = 0.95,
        unit: PrivacyUnit = VALIDATION_RECORD,
        ledger: PrivacyLedger | None = None,
        unsafe_seed: int | None = None,
    ) -> None:
        super().__init__(
            choices,
            kernel=kernel,
            epsilon=epsilon,
            delta=delta,
            dataset_correlation=dataset_correlation,
            method=method,
            num_records=num_records,
            confidence=confidence,
            unit=unit,
            ledger=ledger,
            unsafe_seed=unsafe_seed,
        )
        self.amplitude = amplitude
        self.rate = rate
        self.edition: NoiseFreeEdition = edition
        self.plan(2)  # checks all parameters now rather than at the end of a run

    def _search(self) -> Search:
        gp = FiniteSetGP(self.choices, kernel=self.kernel, noise_variance=0.0)
        return BranchAndBound(gp, schedule=self.schedule)

    def _maximum(self, steps: int) -> LaplaceMaximum:
        return NoiseFreeMaximum(
            epsilon=self.epsilon,
            delta=self.delta,
            steps=steps,
            num_choices=len(self.choices),
            dim=self.choices.shape[-1],
            dataset_correlation=self.dataset_correlation,
            amplitude=self.amplitude,
            rate=self.rate,
            edition=self.edition,
            unit=self.unit,
        )
