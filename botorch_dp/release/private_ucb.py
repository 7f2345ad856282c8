r"""Search a finite set, then release its best choice and value (Algorithms 1 and 2 [Kusner2015]).

The searches, :class:`GPUCB` and :class:`BranchAndBound`, know nothing of privacy: what they visit
and see stays in ``diagnostics``. The drivers, :class:`PrivateGPUCB` and
:class:`BranchAndBoundUCB`, charge both releases, search, and draw.
"""

from __future__ import annotations

import copy
import math
import os
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import torch
from gpytorch.kernels import Kernel
from torch import Tensor

from botorch_dp._checks import (
    check_callable,
    check_finite,
    check_integer,
    check_positive,
    check_tensor,
)
from botorch_dp._progress import ProgressBar
from botorch_dp.acquisition.ucb import UCBSchedule
from botorch_dp.models import FiniteSetGP, max_information_gain
from botorch_dp.models.public import check_unit_variance, frozen_kernel
from botorch_dp.privacy import Guarantee, PrivacyLedger, PrivacyUnit, Release, compose
from botorch_dp.privacy.guarantee import warn_large_delta
from botorch_dp.privacy.ledger import check_payment
from botorch_dp.privacy.mechanisms import SelectionMethod
from botorch_dp.privacy.runs import Run, fingerprint
from botorch_dp.release.assumptions import (
    VALIDATION_RECORD,
    UtilityBound,
    clamp_to_prior,
    warn_if_drowned,
)
from botorch_dp.release.choice import PrivateChoice
from botorch_dp.release.maximum import (
    Edition,
    LaplaceMaximum,
    NoiseFreeMaximum,
    PrivateMaximum,
)

#: A choice (``d``) in, its value out: a float or a tensor of one element.
ValueOfChoice = Callable[[Tensor], float | Tensor]

# What rounding leaves of a posterior variance; added before two confidence bounds are compared.
_ROUNDING_VARIANCE = 1e-12
# Choices closer than this, in units of the box, are told apart one by one.
_FINEST_SPACING = 2.0**-40
_COMPARED_CHOICES = 50


@dataclass(frozen=True, eq=False)
class SearchDiagnostics:
    """Visited choices, observed values and the posterior of a search. **Sensitive.**

    Args:
        indices: The visited choices, in order.
        values: Their observed values.
        mean: The posterior mean at all choices.
        variance: The posterior variance at all choices.
        implausible: How many values were NaN or beyond 50 prior standard deviations, and were
            replaced by that bound.
    """

    indices: tuple[int, ...]
    values: Tensor
    mean: Tensor
    variance: Tensor
    implausible: int

    def __repr__(self) -> str:
        return f"SearchDiagnostics(sensitive: {len(self.indices)} steps)"


class GPUCB:
    """GP-UCB [Srinivas2010]: visit the choice with the largest upper confidence bound.

    Args:
        gp: The model; it is kept up to date.
        schedule: The widths of the confidence bounds.

    Example:
        >>> search = GPUCB(gp, schedule=UCBSchedule(gp.num_choices, delta=0.1))
        >>> for _ in range(20):
        ...     index = search.ask()
        ...     search.tell(index, objective(index))
    """

    def __init__(self, gp: FiniteSetGP, *, schedule: UCBSchedule) -> None:
        self.gp = gp
        self.schedule = schedule

    def ask(self) -> int:
        """The choice with the largest upper confidence bound; the first of several."""
        beta = self.schedule(self.gp.num_observations + 1)
        return int(self.gp.upper_confidence_bound(beta).argmax())

    def tell(self, index: int, value: float) -> None:
        """Condition the model on the observation."""
        self.gp.observe(index, value)


class BranchAndBound:
    r"""Maximize exact values on a finite set, on a lattice that is refined [deFreitas2012].

    Kept is the set of *relevant* choices: those whose upper confidence bound is not below the best
    lower one. In turns, the relevant set is sampled so densely that each of its choices has a
    sampled one within the lattice spacing, the set shrinks, and the spacing is halved. While the
    confidence bounds hold, the maximizer is never dropped. The search is ``certified`` when all
    relevant choices were sampled: then the best of them is the maximizer, and is all that
    :meth:`ask` still returns.

    Choices need not form a grid: they are gathered by the nearest vertex of a lattice over their
    bounding box.

    Args:
        gp: A model without observation noise; it is kept up to date.
        schedule: The widths of the confidence bounds.

    Example:
        >>> gp = FiniteSetGP(choices, kernel=RBFKernel(), noise_std=0.0)
        >>> search = BranchAndBound(gp, schedule=UCBSchedule(len(choices), delta=0.1))
        >>> while not search.certified:
        ...     index = search.ask()
        ...     search.tell(index, objective(choices[index]))
        >>> search.best
    """

    def __init__(self, gp: FiniteSetGP, *, schedule: UCBSchedule) -> None:
        if gp.noise_std != 0:
            raise ValueError(
                "`gp` must be noise-free for branch and bound, got noise_std = "
                f"{gp.noise_std:g}; use GPUCB for noisy values."
            )
        self.gp = gp
        self.schedule = schedule
        low, high = gp.choices.amin(0), gp.choices.amax(0)
        width = torch.where(high > low, high - low, torch.ones_like(low))
        self._unit = (gp.choices - low) / width  # n x d, in the unit cube
        self._seen = torch.full_like(gp.mean, torch.nan)
        self.relevant = torch.ones(gp.num_choices, dtype=torch.bool, device=gp.mean.device)
        self._spacing = 2.0
        self._queue = torch.zeros_like(self.relevant)

    @property
    def certified(self) -> bool:
        """Whether all choices that could be the maximizer were sampled."""
        return not bool((self.relevant & self._seen.isnan()).any())

    @property
    def best(self) -> int:
        """The sampled choice with the largest value."""
        if bool(self._seen.isnan().all()):
            raise ValueError("`best` needs at least one sample: call `ask` and `tell` first.")
        return int(self._seen.nan_to_num(nan=-math.inf).argmax())

    def ask(self) -> int:
        """The most promising choice that the present lattice still needs; the best if certified."""
        if self.certified:
            return self.best
        open_choices = self._queue & self.relevant & self._seen.isnan()
        while not bool(open_choices.any()):
            self._spacing /= 2
            self._queue = open_choices = self._cover()
        upper, _ = self._bounds()
        return int(torch.where(open_choices, upper, -math.inf).argmax())

    def tell(self, index: int, value: float) -> None:
        """Take in an exact value and drop the choices that it rules out."""
        check_integer("index", index, at_least=0, at_most=len(self._seen) - 1)
        value = check_finite("value", value)
        if bool(self._seen[index].isnan()):
            self.gp.observe(index, value)
        self._seen[index] = value
        upper, lower = self._bounds()
        best_lower = torch.where(self.relevant, lower, -math.inf).max()
        self.relevant = self.relevant & (upper >= best_lower)

    def _bounds(self) -> tuple[Tensor, Tensor]:
        """Upper and lower confidence bounds (n each); sampled values are known exactly."""
        width = math.sqrt(self.schedule(self.gp.num_observations + 1))
        deviation = (self.gp.variance + _ROUNDING_VARIANCE).sqrt()
        mean = self.gp.mean
        known = ~self._seen.isnan()
        upper = torch.where(known, self._seen, mean + width * deviation)
        lower = torch.where(known, self._seen, mean - width * deviation)
        return upper, lower

    def _cover(self) -> Tensor:
        """One relevant choice for each lattice vertex without a sampled one: ``n`` flags."""
        chosen = torch.zeros_like(self.relevant)
        relevant = self.relevant.nonzero().squeeze(-1)
        sampled = ~self._seen[relevant].isnan()
        if self._spacing < _FINEST_SPACING:
            chosen[relevant[~sampled]] = True
            return chosen
        steps = self._unit[relevant] / self._spacing
        vertices = steps.round()
        cells, cell = vertices.unique(dim=0, return_inverse=True)
        order = (steps - vertices).abs().amax(-1).argsort(stable=True)
        ranks = torch.arange(len(order), device=order.device)
        nearest = torch.full((len(cells),), len(order), device=order.device)
        nearest.scatter_reduce_(0, cell[order], ranks, reduce="amin")
        covered = torch.zeros(len(cells), dtype=torch.bool, device=order.device)
        covered[cell[sampled]] = True
        chosen[relevant[order[nearest[~covered]]]] = True
        return chosen


Search = GPUCB | BranchAndBound


def run_search(
    search: Search,
    objective: ValueOfChoice,
    *,
    steps: int,
    noise_std: float = 0.0,
    run: Run | None = None,
    progress: bool = False,
    description: str = "",
) -> SearchDiagnostics:
    """The ask-and-tell loop: ``steps`` evaluations, whatever the values are.

    Args:
        search: A fresh search.
        objective: A choice (``d``) in, its value out.
        steps: The number of evaluations.
        noise_std: Of the observations, to tell which values are implausible.
        run: Holds what was seen before an interruption, and is kept up to date.
        progress: Whether to show a progress bar.
        description: Its label.
    """
    seen = [] if run is None else list(run.items("seen").values())
    for index, value, _ in seen:
        search.ask()  # asking is a part of the search's state
        search.tell(index, value)
    done = len(seen)
    for step in ProgressBar(
        range(done, steps), desc=description, total=steps, initial=done, disable=not progress
    ):
        index = search.ask()
        found = objective(search.gp.choices[index].clone())
        raw = torch.as_tensor(found, dtype=torch.double, device="cpu").reshape(())
        value = clamp_to_prior(raw, noise_std).item()
        search.tell(index, value)
        seen.append((index, value, value != raw.item()))
        if run is not None:
            run.add("seen", step, seen[-1])
    indices, values, implausible = zip(*seen, strict=True)
    return SearchDiagnostics(
        indices=indices,
        values=torch.tensor(values, dtype=torch.double, device="cpu"),
        mean=search.gp.mean,
        variance=search.gp.variance,
        implausible=sum(implausible),
    )


# Search and release


class OptimumUtility(NamedTuple):
    """What both releases of a run are worth."""

    choice: UtilityBound
    maximum: UtilityBound

    def __str__(self) -> str:
        return f"Choice: {self.choice}\nMaximum: {self.maximum}"


@dataclass(frozen=True, kw_only=True, eq=False)
class PrivateOptimum(Release[dict[str, Any]]):
    """The two releases of a run, and both as one.

    Its ``value`` is ``{"choice": ..., "maximum": ...}``, and its ``guarantee`` is for both: the
    epsilons and deltas add up.

    Args:
        choice: The private choice.
        maximum: The private maximum.
        diagnostics: What the search saw. **Sensitive.**
    """

    choice: Release[Tensor]
    maximum: Release[float]
    diagnostics: SearchDiagnostics = field(repr=False)


class _PrivateOptimizer(ABC):
    """A search with two releases that are fixed beforehand: charge, search, draw.

    Attributes:
        choices: The finite set, ``n x d``.
        kernel: The prior covariance.
        choice: How the choice is released.
        maximum: How the maximum is released.
    """

    choice: PrivateChoice
    maximum: LaplaceMaximum
    _noise_std: float = 0.0

    def __init__(
        self,
        choices: Tensor,
        kernel: Kernel,
        method: SelectionMethod,
        unit: PrivacyUnit,
        steps: int,
        epsilon: float,
        delta: float,
        dataset_correlation: float,
        noise_std: float = 0.0,
    ) -> None:
        check_tensor("choices", choices, shape=("m", "d"))
        self.choices = choices.detach()
        self.kernel = frozen_kernel(kernel, self.choices)
        check_unit_variance(self.kernel, self.choices)
        self._prior = FiniteSetGP(self.choices, kernel=self.kernel, noise_std=noise_std)
        self._shared: dict[str, Any] = {  # by both releases
            "num_choices": len(choices),
            "steps": steps,
            "epsilon": epsilon,
            "delta": delta,
            "dataset_correlation": dataset_correlation,
            "unit": unit,
        }
        self.choice = PrivateChoice(method=method, **self._shared)

    @abstractmethod
    def _search(self) -> Search:
        """A fresh search."""

    @property
    def guarantee(self) -> Guarantee:
        """The guarantee of both releases together: (2 epsilon, 2 delta), conditional."""
        return compose(self.choice.guarantee, self.maximum.guarantee)

    def utility(self, delta: float = 0.05) -> OptimumUtility:
        """What each release is worth, but for that probability."""
        return OptimumUtility(self.choice.utility(delta), self.maximum.utility(delta))

    def release(
        self,
        objective: ValueOfChoice,
        *,
        num_records: int | None = None,
        progress: bool = False,
        checkpoint: str | os.PathLike[str] | None = None,
        ledger: PrivacyLedger | None = None,
        label: str = "",
        unsafe_seed: int | None = None,
    ) -> PrivateOptimum:
        """Search, then release the best choice and the best value.

        Both releases are charged together before the objective is first called, and drawn once
        the search is over. With a ``checkpoint`` an interrupted run goes on where it was, at no
        further charge, and a finished one returns what it released. Without one, each call is a
        new run, charged anew.

        Args:
            objective: A choice (a ``d``-vector) in, its value out, to be maximized; in the units
                of the prior: zero mean and unit variance over what was expected beforehand. NaN
                and values beyond 50 prior standard deviations count as the bound they cross. It is
                called ``steps`` times, whatever the values are.
            num_records: Size of the validation set, to warn when ``delta`` is too large for it.
            progress: Whether to show a progress bar.
            checkpoint: A file to keep the run in and to continue it from. It holds sensitive
                values, with mode 0600, and one process at a time may hold it.
            ledger: Charged for both releases before the objective is first called.
            label: What it is for, in public words; shown in the ledger.
            unsafe_seed: Simulate with reproducible noise. The releases then guarantee nothing.
        """
        check_callable("objective", objective)
        check_payment(ledger, unsafe_seed=unsafe_seed)
        warn_large_delta(self.choice.delta, num_records)
        for bound in self.utility():
            warn_if_drowned(bound)
        name, steps = type(self).__name__, self.choice.steps
        promised = (self.choice.guarantee, self.maximum.guarantee)
        if unsafe_seed is not None:
            promised = (promised[0].simulated(), promised[1].simulated())
        price, settings = compose(*promised), self._settings(unsafe_seed)
        with Run(
            checkpoint, what=f"a run of {name}", settings=settings, ledger=ledger, label=label
        ) as run:
            search = partial(
                run_search,
                self._search(),
                objective,
                steps=steps,
                noise_std=self._noise_std,
                run=run,
                progress=progress,
                description=name,
            )
            seen: list[SearchDiagnostics] = []
            drawn = run.release(
                price,
                lambda _: self._draw(seen[0], unsafe_seed),
                read=lambda: seen.append(search()),
                key="optimum",
                label=f"{name} of {steps} steps",
            )
            # A finished run is not searched again, only told what it saw.
            diagnostics = seen[0] if seen else search()
        choice, maximum = drawn["choice"].to(self.choices), drawn["maximum"]
        return PrivateOptimum(
            value={"choice": choice, "maximum": maximum},
            guarantee=price,
            choice=Release(choice, promised[0], scale=drawn["choice_scale"]),
            maximum=Release(maximum, promised[1], scale=drawn["maximum_scale"]),
            diagnostics=diagnostics,
        )

    def _draw(self, seen: SearchDiagnostics, unsafe_seed: int | None) -> dict[str, Any]:
        """Both released values; simulated noise differs between the two."""
        first, second = None, None
        if unsafe_seed is not None:
            first, second = 2 * unsafe_seed, 2 * unsafe_seed + 1
        choice, scale = self.choice._draw(seen.mean, self.choices, first)
        drawn = {"choice": choice, "choice_scale": scale}
        maximum, scale = self.maximum._draw(seen.values, second)
        return drawn | {"maximum": maximum, "maximum_scale": scale}

    def _gram(self) -> Tensor:
        """The kernel's Gram matrix on some choices, which identifies the kernel."""
        with torch.no_grad():
            gram = self.kernel(self.choices[:_COMPARED_CHOICES]).to_dense().double()
        return gram.round(decimals=6) + 0.0  # the sum makes one zero of -0. and 0.

    def _settings(self, unsafe_seed: int | None) -> dict[str, Any]:
        """What a checkpoint must agree with for a run to be continued."""
        return {
            "driver": type(self).__name__,
            "choice": repr(self.choice),
            "maximum": repr(self.maximum),
            "prior": fingerprint(self.choices, self._gram()),
            "unsafe_seed": unsafe_seed,
        }


class PrivateGPUCB(_PrivateOptimizer):
    r"""GP-UCB on a finite set with both releases of Algorithm 1 [Kusner2015].

    Guarantee: (2 epsilon, 2 delta) for the choice and the maximum together, **conditional** on the
    Gaussian-process assumption; see :class:`.PrivateChoice` and :class:`.PrivateMaximum`.

    Args:
        choices: An ``n x d`` tensor. Public.
        kernel: The prior covariance, with ``k(x, x) = 1``, fixed without looking at the records.
        noise_std: Standard deviation of the observation noise, in units of the prior.
        steps: The number of evaluations.
        epsilon: The privacy parameter of each of the two releases.
        delta: Of each: probability, over the prior, that the sensitivity bound fails.
        dataset_correlation: The prior correlation ``k(V, V')`` of neighbouring data sets.
        method: How the choice is drawn; see :class:`.PrivateChoice`.
        edition: Of the maximum; see :class:`.PrivateMaximum`.
        unit: Whom or what one record is, and which data sets are neighbours.

    Example:
        >>> search = PrivateGPUCB(
        ...     choices, kernel=RBFKernel(), noise_std=0.1, steps=50, epsilon=20.0, delta=1e-4,
        ...     dataset_correlation=0.999,
        ... )
        >>> print(search.guarantee, search.utility(), sep="\n")
        >>> result = search.release(objective, progress=True)
        >>> result.choice.value, result.maximum.value
    """

    def __init__(
        self,
        choices: Tensor,
        *,
        kernel: Kernel,
        noise_std: float,
        steps: int,
        epsilon: float,
        delta: float,
        dataset_correlation: float,
        method: SelectionMethod = "exponential",
        edition: Edition = "icml2015",
        unit: PrivacyUnit = VALIDATION_RECORD,
    ) -> None:
        self._noise_std = check_positive("noise_std", noise_std)
        super().__init__(
            choices, kernel, method, unit, steps, epsilon, delta, dataset_correlation, noise_std
        )
        check_integer("steps", steps, at_most=10**6)
        gain = max_information_gain(
            self.kernel, self.choices, num_observations=steps, noise_std=self._noise_std
        )
        self.maximum = PrivateMaximum(
            **self._shared, noise_std=self._noise_std, information_gain=gain, edition=edition
        )

    def _search(self) -> Search:
        return GPUCB(copy.deepcopy(self._prior), schedule=self.choice.schedule)


class BranchAndBoundUCB(_PrivateOptimizer):
    r"""Branch and bound on exact values [deFreitas2012] with the releases of Algorithm 2.

    Guarantee: (2 epsilon, 2 delta) for the choice and the maximum together, **conditional** on the
    Gaussian-process assumption and on the constants of the regret bound; see
    :class:`.PrivateChoice` and :class:`.NoiseFreeMaximum`. A search that has certified the
    maximizer keeps evaluating it, so that the number of evaluations says nothing of the records.

    Args:
        amplitude: ``A`` in the regret ``A exp(-tau t / (log t)^{d/4})``.
        rate: ``tau`` in the regret.
        steps: The number of evaluations, at least 2.
        choices: As for :class:`PrivateGPUCB`; likewise all others.

    Example:
        >>> search = BranchAndBoundUCB(
        ...     choices, kernel=RBFKernel(), steps=60, epsilon=20.0, delta=1e-4,
        ...     dataset_correlation=0.9999, amplitude=2.0, rate=0.5,
        ... )
        >>> result = search.release(objective)
    """

    def __init__(
        self,
        choices: Tensor,
        *,
        kernel: Kernel,
        steps: int,
        epsilon: float,
        delta: float,
        dataset_correlation: float,
        amplitude: float,
        rate: float,
        method: SelectionMethod = "exponential",
        unit: PrivacyUnit = VALIDATION_RECORD,
    ) -> None:
        super().__init__(choices, kernel, method, unit, steps, epsilon, delta, dataset_correlation)
        self.maximum = NoiseFreeMaximum(
            **self._shared, dim=choices.shape[-1], amplitude=amplitude, rate=rate
        )

    def _search(self) -> Search:
        return BranchAndBound(copy.deepcopy(self._prior), schedule=self.choice.schedule)
