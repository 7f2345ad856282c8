"""Private objectives: per-record scores in, noisy means with known variance out.

Everything that reads only what a :class:`PrivateObjective` returns is post-processing: any
surrogate, acquisition function or loop may follow, and the guarantee stays the same.
"""

from __future__ import annotations

import math
import threading
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, NamedTuple, overload

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from botorch_dp._checks import (
    check_callable,
    check_integer,
    check_interval,
    check_positive,
    check_tensor,
    warn_caller,
)
from botorch_dp.estimator_scores import per_record_scores
from botorch_dp.privacy import (
    BudgetExhausted,
    GaussianLoss,
    Guarantee,
    NeighboringRelation,
    PrivacyLedger,
    PrivacyUnit,
    compose,
    gaussian_epsilon,
    gaussian_mechanism,
)
from botorch_dp.privacy.guarantee import DEFAULT_DELTA, ONE_RECORD, check_unit, warn_large_delta
from botorch_dp.privacy.ledger import check_payment, make_release
from botorch_dp.privacy.rounding import rounded_up, sqrt_below
from botorch_dp.scores import (
    AUC,
    F1,
    OWN_RECORD_ONLY,
    PerRecordLosses,
    ScoreDiagnostics,
    Statistic,
    check_per_record,
    checked_scores,
    clipped_sum,
    grid_levels,
    known_num_records,
    scores_and_unit,
    warn_of_narrow_bounds,
    warning_of_one_column,
)

__all__ = ["AUC", "F1", "PrivateObjective", "check_per_record", "per_record_scores"]

_CHOSEN = (
    "the bounds, mu and the number of records were chosen without the records, and the points "
    "without them or from released values"
)


class Evaluations(NamedTuple):
    """Released evaluations; all of it may be published."""

    X: Tensor
    Y: Tensor
    Yvar: Tensor


@dataclass(frozen=True)
class ObjectivePlan:
    """Public facts about evaluations that have not been made: their cost and their noise.

    Args:
        num_records: ``n``.
        evaluations: How many.
        noise_std: Standard deviation of each.
        difference: Between two mean scores that should be seen.
        mu: Of one evaluation.
        guarantee: Of all evaluations together.
    """

    num_records: int
    evaluations: int
    noise_std: float
    difference: float
    mu: float
    guarantee: Guarantee

    @property
    def visible(self) -> float:
        """Twice the standard deviation of the difference of two evaluations."""
        return 2 * math.sqrt(2) * self.noise_std

    @property
    def needed_records(self) -> int:
        """With how many records the difference would be seen, at the same cost."""
        return math.ceil(self.num_records * max(1.0, self.visible / self.difference))

    @property
    def needed_epsilon(self) -> float:
        """At which epsilon the difference would be seen, with the same records and delta."""
        factor = max(1.0, self.visible / self.difference)
        delta = self.guarantee.quoted_delta or DEFAULT_DELTA
        return gaussian_epsilon(self.mu * math.sqrt(self.evaluations) * factor, delta)

    @property
    def advice(self) -> str:
        """What the noise hides, in a sentence."""
        counted = self.guarantee.unit.counted
        noise = (
            f"With {self.num_records:,} {counted} the noise of one evaluation is "
            f"{self.noise_std:.2g}, so differences below {self.visible:.2g} between two "
            "configurations cannot be seen."
        )
        if self.visible <= self.difference:
            return f"{noise} Differences of {self.difference:.2g} can be seen."
        return (
            f"{noise} To see differences of {self.difference:.2g} you need "
            f"{self.needed_records:,} {counted} or epsilon = {rounded_up(self.needed_epsilon, 2)}. "
            "A model that averages over evaluations needs less."
        )

    def __str__(self) -> str:
        return f"{self.evaluations} evaluations. {self.advice}\n{self.guarantee.in_plan}"


class PrivateObjective:
    r"""A mean of per-record scores, released with Gaussian noise at each evaluation.

    .. math:: Y(x) = \frac1n \sum_{i=1}^n \mathrm{clip}(\ell_i(x), lo, hi)
              + N\!\left(0, \Bigl(\frac{hi - lo}{n \mu}\Bigr)^2\right)

    Guarantee (status proven): each row of ``X`` is mu-GDP under replace-one, whatever the scores
    are, on two printed conditions: a record's score depends on that record only, and bounds, mu and
    points were chosen without the records. Replacing a record moves one clipped score by at most
    ``hi - lo`` and so the mean by ``(hi - lo) / n``, which is mu standard deviations [Dong2022].
    ``k`` evaluations are ``mu sqrt(k)``-GDP, also when each point depends on the answers before it.
    In floating point: scores are rounded to an integer grid on which sums are exact, and noise is
    added to that sum, so the sensitivity holds to the last bit.

    With a ledger, all rows of ``X`` are charged *before* the records are read; if the budget cannot
    bear them, :class:`~botorch_dp.errors.BudgetExhausted` is raised, nothing is read, and
    :attr:`history` still has all that was released. A charge is not refunded if ``record_losses``
    raises. Without a ledger, decide on the number of evaluations beforehand.

    Nothing that one record says raises, warns or shows: scores beyond a bound, infinite ones
    included, count as that bound; NaN counts as the worse bound (the lower one, or the upper one
    with ``negate=True``). Objects may be shared by threads if ``record_losses`` may.

    Args:
        record_losses: ``b x d -> b x n``, see :class:`PerRecordLosses`.
        bounds: Public bounds ``(lo, hi)`` of a score. The noise is proportional to their distance.
        mu: Privacy parameter of *one* evaluation: the smaller, the more noise.
        num_records: ``n``, which is public under replace-one. By default the attribute of that name
            of ``record_losses``, or else what the first evaluation returns. Every evaluation must
            return that many columns.
        ledger: What evaluations are charged to.
        negate: Return ``-Y``: for losses, since BoTorch maximizes.
        unit: Whom or what one record is; replace-one is the only relation.
        label: The ledger's note for each charge.
        groups: Whose each record is, where people have several: one identifier for each. A person
            with all records is then protected, by the mean of their clipped scores.
        per_group: How many records of a person are used at most; 16 unless given.
        unsafe_seed: Simulate with reproducible noise. The results then guarantee nothing.

    Example:
        >>> records = torch.rand(1000, dtype=torch.double)
        >>> objective = PrivateObjective(
        ...     lambda X: (X - records).abs(), bounds=(0.0, 1.0), mu=0.1, negate=True
        ... )
        >>> X = torch.rand(5, 1, dtype=torch.double)
        >>> Y, Yvar = objective(X)
        >>> model = SingleTaskGP(X, Y, train_Yvar=Yvar)
    """

    def __init__(
        self,
        record_losses: PerRecordLosses,
        *,
        bounds: tuple[float, float],
        mu: float,
        num_records: int | None = None,
        ledger: PrivacyLedger | None = None,
        negate: bool = False,
        unit: PrivacyUnit = ONE_RECORD,
        label: str = "objective",
        groups: Any = None,
        per_group: int | None = None,
        unsafe_seed: int | None = None,
    ) -> None:
        check_callable("record_losses", record_losses)
        check_payment(ledger, unsafe_seed=unsafe_seed)
        self.bounds = check_interval("bounds", bounds)
        how: Any = {"bounds": self.bounds, "nan_as": self.bounds[bool(negate)]}
        record_losses, unit = scores_and_unit(record_losses, unit, groups, per_group, **how)
        self.record_losses = record_losses
        self.mu = check_positive("mu", mu)
        self.num_records = known_num_records(record_losses, num_records, takes_statistic=True)
        self._statistic: Statistic | None = getattr(record_losses, "statistic", None)
        if self._statistic is not None and self.bounds != (0.0, 1.0):
            raise ValueError(
                f"`bounds` must be (0.0, 1.0), which 1 - {self._statistic.name} lies in, got "
                f"{self.bounds}."
            )
        warn_of_narrow_bounds(record_losses, self.bounds)
        self.ledger = ledger
        self.negate = bool(negate)
        self.label = label
        #: **Sensitive**; see :class:`ScoreDiagnostics`.
        self.diagnostics = ScoreDiagnostics()
        self._width = self.bounds[1] - self.bounds[0]
        # The variance of the noise must be a number, before anything is charged for it.
        if not 1e-100 <= self._width / self.mu <= 1e100:
            raise ValueError(
                f"`bounds` = {self.bounds} and `mu` = {self.mu:g} ask for noise of the order of "
                f"{self._width / self.mu:g}; rescale the scores by a public factor."
            )
        checked = check_unit(unit, NeighboringRelation.REPLACE_ONE)
        unit = checked.given(OWN_RECORD_ONLY, _CHOSEN)
        if self._statistic is not None:
            unit = unit.given(*self._statistic.conditions)
        self._one_evaluation = Guarantee("Gaussian mechanism", unit, (GaussianLoss(self.mu),))
        self._planned: int | None = None
        self._seeds = None if unsafe_seed is None else np.random.SeedSequence(unsafe_seed)
        self._history: list[Evaluations] = []
        self._lock = threading.Lock()

    @classmethod
    def for_budget(
        cls,
        record_losses: PerRecordLosses,
        *,
        bounds: tuple[float, float],
        ledger: PrivacyLedger,
        evaluations: int,
        num_records: int | None = None,
        negate: bool = False,
        unit: PrivacyUnit = ONE_RECORD,
        label: str = "objective",
        groups: Any = None,
        per_group: int | None = None,
    ) -> PrivateObjective:
        """An objective with the largest mu that a ledger allows for this many evaluations.

        Args:
            record_losses: As for the class; likewise the other arguments.
            bounds: Public bounds of a score.
            ledger: What evaluations are charged to. They may use all that it has left for Gaussian
                releases at this moment.
            evaluations: How many rows of ``X`` there will be at most, over all calls.

        Example:
            >>> ledger = PrivacyLedger(budget=PrivacyBudget(1.0, 1e-6))
            >>> objective = PrivateObjective.for_budget(
            ...     record_losses, bounds=(0.0, 1.0), ledger=ledger, evaluations=50,
            ...     num_records=2000,
            ... )
            >>> print(objective.plan())
        """
        count = check_integer("evaluations", evaluations)
        mu = sqrt_below(Fraction(ledger.mu_left()) ** 2 / count)
        if mu == 0:
            raise BudgetExhausted(
                f"None of the budget {ledger.budget} is available for Gaussian noise, which every "
                "evaluation needs: give it a delta, and `summed` below 1. Nothing was charged.",
                requested=(0.0, 0.0),
                remaining=ledger.remaining(),
            )
        objective = cls(
            record_losses,
            bounds=bounds,
            mu=mu,
            num_records=num_records,
            ledger=ledger,
            negate=negate,
            unit=unit,
            label=label,
            groups=groups,
            per_group=per_group,
        )
        warn_large_delta(ledger.budget.delta, objective.num_records)
        objective._planned = count
        return objective

    def plan(
        self,
        evaluations: int | None = None,
        *,
        difference: float | None = None,
        delta: float | None = None,
    ) -> ObjectivePlan:
        """Cost and noise of this many evaluations, and what the noise hides; reads no record.

        Args:
            evaluations: How many; those of :meth:`for_budget` if None.
            difference: Between two mean scores that should be seen; a hundredth of the distance of
                the bounds if None.
            delta: At which to quote epsilon; the ledger's, or 1e-6.
        """
        count = self._planned if evaluations is None else check_integer("evaluations", evaluations)
        if count is None:
            raise ValueError("`evaluations` is needed: say how many rows of `X` there will be.")
        if difference is None:
            difference = self._width / 100
        if delta is None:
            delta = (self.ledger.budget.delta if self.ledger else 0.0) or DEFAULT_DELTA
        noise_std = self.noise_std
        assert self.num_records is not None
        return ObjectivePlan(
            num_records=self.num_records,
            evaluations=count,
            noise_std=noise_std,
            difference=check_positive("difference", difference),
            mu=self.mu,
            guarantee=self.price(count).quoted_at(delta),
        )

    def price(self, evaluations: int = 1) -> Guarantee:
        """The guarantee of this many evaluations, a number fixed beforehand."""
        count = check_integer("evaluations", evaluations, at_most=10**6)
        together = compose(*[self._one_evaluation] * count)
        return together if self._seeds is None else together.simulated()

    @property
    def noise_std(self) -> float:
        """Standard deviation of each ``Y``; public."""
        if self.num_records is None:
            raise ValueError("The noise depends on the number of records: pass `num_records`.")
        if self._statistic is not None:
            return self._statistic.sensitivity * abs(self._statistic.unit) / self.mu
        return self._width / (self.num_records * self.mu)

    @property
    def history(self) -> Evaluations:
        """All released evaluations so far, stacked: ``k x d``, ``k x 1`` and ``k x 1``."""
        with self._lock:
            parts = list(self._history)
        if not parts:
            nothing = torch.empty(0, 1, dtype=torch.double, device="cpu")
            return Evaluations(nothing[:, :0].clone(), nothing, nothing.clone())
        return Evaluations(*(torch.cat(tensors) for tensors in zip(*parts, strict=True)))

    @overload
    def __call__(self, X: Tensor) -> tuple[Tensor, Tensor]: ...

    @overload
    def __call__(self, X: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]: ...

    def __call__(self, X: Any) -> tuple[Any, Any]:
        """Spend mu at each row of ``X``.

        Args:
            X: ``b x d`` points, chosen without the records or from what was released before: a
                tensor or an array, and ``record_losses`` is given the same.

        Returns:
            ``Y`` and ``Yvar``, the known variance of its noise, each ``b x 1``, with the dtype and
            device of ``X``; arrays for an array.
        """
        if isinstance(X, np.ndarray):
            Y, Yvar = self._evaluated(torch.from_numpy(np.ascontiguousarray(X)), as_array=True)
            return Y.numpy(), Yvar.numpy()
        return self._evaluated(X)

    def _evaluated(self, X: Tensor, *, as_array: bool = False) -> tuple[Tensor, Tensor]:
        X = self._checked_points(X)

        def read() -> tuple[list[float], int]:
            scores = self.record_losses(X.numpy() if as_array else X)
            scores = checked_scores(scores, num_points=len(X), num_records=self.num_records)
            num_records = self._agreed_num_records(scores)
            return [self._sum(row) for row in scores], num_records

        def draw(material: tuple[list[float], int]) -> Tensor:
            sums, num_records = material
            levels = grid_levels(num_records)
            offset, unit = self.bounds[0], self._width / (levels * num_records)
            if self._statistic is not None:
                levels = self._statistic.sensitivity
                offset, unit = self._statistic.offset, self._statistic.unit
            noisy = [
                gaussian_mechanism(total, sensitivity=levels, mu=self.mu, unsafe_seed=seed).value
                for total, seed in zip(sums, self._next_seeds(len(X)), strict=True)
            ]
            return offset + unit * torch.tensor(noisy, dtype=torch.double, device="cpu")

        price = compose(*[self._one_evaluation] * len(X))
        try:
            Y = make_release(price, draw, ledger=self.ledger, label=self.label, read=read).value
        except BudgetExhausted as error:
            made = len(self.history.Y)
            if self.ledger is None or self._planned is None or made + len(X) <= self._planned:
                raise
            raise BudgetExhausted(
                f"The budget {self.ledger.budget} is for {self._planned} evaluations, and "
                f"{made} were made; {len(X)} more cannot be. No record was read this time, and "
                "what was released may still be used.",
                requested=error.requested,
                remaining=error.remaining,
            ) from None
        # From here on everything is post-processing of what was released.
        Y = Y.unsqueeze(-1)
        Yvar = torch.full_like(Y, self.noise_std**2)
        evaluations = Evaluations(X.clone(), (-Y if self.negate else Y).to(X), Yvar.to(X))
        with self._lock:
            self._history.append(evaluations)
        return evaluations.Y.clone(), evaluations.Yvar.clone()

    def _checked_points(self, X: object) -> Tensor:
        X = check_tensor("X", X, shape=("b", "d")).detach()
        with self._lock:
            known = self._history[0].X if self._history else X
        if X.shape[1] != known.shape[1]:
            raise ValueError(
                f"`X` must have {known.shape[1]} columns, as in the first call, got {X.shape[1]}."
            )
        return X

    def _agreed_num_records(self, scores: Tensor) -> int:
        """The number of records, which the first evaluation settles if nobody did."""
        with self._lock:
            is_first = self.num_records is None
            if self.num_records is None:
                self.num_records = scores.shape[1]
            num_records = self.num_records
        if is_first and num_records == 1:  # the number of columns is public
            warn_caller(warning_of_one_column("record_losses"))
        # Another thread may have settled it while this one was reading.
        return checked_scores(scores, num_points=len(scores), num_records=num_records).shape[1]

    def _sum(self, scores: Tensor) -> float:
        """One evaluation's clipped sum; what was clipped is counted."""
        if self._statistic is not None:
            return self._statistic.units(scores.cpu())
        with self._lock:
            self.diagnostics.count(scores, self.bounds)
        return clipped_sum(scores, self.bounds, nan_as=self.bounds[1 if self.negate else 0])

    def _next_seeds(self, count: int) -> list[int | None]:
        """A fresh seed for each simulated noise; None where the noise is real."""
        if self._seeds is None:
            return [None] * count
        with self._lock:
            children = self._seeds.spawn(count)
        return [int(child.generate_state(1, np.uint64)[0]) for child in children]
