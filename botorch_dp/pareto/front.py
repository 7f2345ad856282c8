"""Privacy-utility Pareto fronts: which configs are worth using, and what showing them costs.

A front holds the best trials of a study; a recommendation is the config that its models expect to
be best within an epsilon, tried or not.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain
from statistics import NormalDist, fmean
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch
from botorch.utils.multi_objective.hypervolume import Hypervolume
from torch import Tensor

from botorch_dp._checks import check_finite, needs_extra
from botorch_dp.pareto.beliefs import Beliefs, Candidates, front_places, require_complete
from botorch_dp.pareto.problem import SEEDED, Point, PrivacyUtilityProblem, Trial
from botorch_dp.pareto.proposals import Proposer
from botorch_dp.privacy import DEFAULT_DELTA, Guarantee, rounded_up
from botorch_dp.space import Config, Real

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: Columns of the exact objectives and of the models'.
_EPSILON, _ERROR = 0, 1
#: Measures points again: (points, replicates, ...) -> their trials with fresh utilities, and the
#: guarantee of publishing these too.
Reevaluator: TypeAlias = Callable[..., tuple[list[Trial], Guarantee]]


@dataclass(frozen=True)
class OperatingPoint:
    """A config to deploy.

    Args:
        config: The hyper-parameters; perhaps never tried.
        epsilon: Exact, and within what was asked for.
        error: Expected error of one training, as the study's model predicts it. Sensitive.
        interval: Central interval for the error of the average training. Sensitive.
        level: The interval's probability, under the model.
        tried: Whether a trial of the study has this config.
    """

    config: Config
    epsilon: float
    error: float = field(repr=False)
    interval: tuple[float, float] = field(repr=False)
    level: float
    tried: bool

    def __str__(self) -> str:
        low, high = self.interval
        origin = "tried" if self.tried else "never tried"
        return (
            f"epsilon {self.epsilon:.4g} (exact), error {self.error:.4f} "
            f"({self.level:.0%} interval {low:.4f} to {high:.4f}; sensitive) "
            f"with {self.config} ({origin})"
        )


class ParetoFront:
    """The non-dominated trials of a study, beside all others.

    The front is computed from the records without noise: it is *sensitive*, and
    :attr:`caption` says what publishing it costs.

    Args:
        problem: The problem.
        trials: The complete trials, at least one.
        guarantee: What publishing everything measured so far promises a training record, or a
            function that works it out when it is asked for.
        label: Its name in figures.
        observed: The front that this one measured again or shrank, if any.
        paid: Whether all trainings were charged to a budget before they began.
        reevaluator: How to measure trials again.
        believer: What the study's models expect of :attr:`all_points`, ``n x m``.

    Example:
        >>> front = study.run(40)
        >>> front.points  # k x 2: epsilon, error, by increasing epsilon
        >>> front.hypervolume()
    """

    def __init__(
        self,
        problem: PrivacyUtilityProblem,
        trials: Sequence[Trial],
        *,
        guarantee: Guarantee | Callable[[], Guarantee],
        label: str = "front",
        observed: ParetoFront | None = None,
        reevaluator: Reevaluator | None = None,
        believer: Callable[[], Tensor] | None = None,
        paid: bool = False,
    ) -> None:
        if not trials:
            raise ValueError("`trials` is empty: a front needs at least one complete trial.")
        self.problem = problem
        self.trials = tuple(trials)
        self._guarantee = guarantee
        self.label = label
        self.observed = observed
        self.paid = paid
        self._reevaluator = reevaluator
        self._believer = believer
        #: ``n x m`` objective values of :attr:`measured`.
        values = problem.values(self.trials)
        flat = np.fromiter(chain.from_iterable(values), np.float64, sum(map(len, values)))
        self.all_points = torch.from_numpy(flat.reshape(len(values), -1))
        self._on_front = front_places(self.all_points)

    @cached_property
    def measured(self) -> tuple[Point, ...]:
        """What all complete trials measured, by their numbers; of a curve, all points."""
        return tuple(point for trial in self.trials for point in self.problem.points(trial))

    @cached_property
    def guarantee(self) -> Guarantee:
        """What publishing everything measured up to this front promises a training record."""
        return self._guarantee() if callable(self._guarantee) else self._guarantee

    @property
    def points(self) -> Tensor:
        """``k x m`` values (epsilon, error, further objectives) by increasing epsilon."""
        return self.all_points[self._on_front]

    @property
    def measured_on_front(self) -> list[Point]:
        """What :attr:`points` are made of, in the same order."""
        return [self.measured[i] for i in self._on_front]

    @property
    def front_trials(self) -> list[Trial]:
        """The trials on the front, in the order in which they come with increasing epsilon."""
        by_number = {trial.number: trial for trial in self.trials}
        return [by_number[n] for n in dict.fromkeys(p.trial for p in self.measured_on_front)]

    @property
    def configs(self) -> list[Config]:
        """The configs on the front, by increasing epsilon."""
        return [dict(point.config) for point in self.measured_on_front]

    @property
    def objective_names(self) -> tuple[str, ...]:
        """Names of the columns of :attr:`points`."""
        return self.problem.objective_names

    @property
    def caption(self) -> str:
        """One sentence that belongs under every figure and table of this front."""
        return guarantee_sentence(
            self.guarantee,
            test_records=self.problem.promise.utility_guarantee is not None,
            paid=self.paid,
        )

    def hypervolume(self, ref_point: Sequence[float] | None = None) -> float:
        """The exact volume dominated by the front and bounded by an anti-ideal point.

        Args:
            ref_point: One value for each objective; the problem's by default.
        """
        return dominated_volume(self.points, self._checked(ref_point))

    def hypervolume_by_trial(self, ref_point: Sequence[float] | None = None) -> Tensor:
        """``n`` hypervolumes: after the first complete trial, after two, and so on."""
        ref = self._checked(ref_point)
        volumes: dict[int, float] = {}
        best, volume = self.all_points[:0], 0.0
        for measured, point in zip(self.measured, self.all_points, strict=True):
            if not bool((best <= point).all(dim=-1).any()):
                best = torch.cat([best, point.unsqueeze(0)])
                best = best[front_places(best)]
                volume = dominated_volume(best, ref)
            volumes[measured.trial] = volume
        return torch.tensor(list(volumes.values()), dtype=torch.double)

    @cached_property
    def shrunken(self) -> ParetoFront | None:
        """The front that the study's models expect of the same trials.

        The best of many noisy trials are partly lucky. The models are not: they judge each by its
        neighbours too. So this front errs less on its own errors, and what is on it does better
        when it is trained again: ``front.shrunken.reevaluate(5)``. Its values are expected, the
        replicates beside them are measured. None if the front has no study, or a study of one
        trial.
        """
        if self._believer is None or len(self.trials) < 2:
            return None
        values = self._believer()
        measured = (
            replace(point, values=tuple(expected))
            for point, expected in zip(self.measured, values.tolist(), strict=True)
        )
        return self._changed(
            all_points=values,
            measured=tuple(measured),
            _on_front=front_places(values),
            label=f"{self.label}, as expected",
            observed=self,
            _believer=None,
        )

    def replicate_fronts(self) -> dict[str, Tensor]:
        """Fronts of each point's ``best``, ``mean`` and ``worst`` replicate, each ``k x 2``.

        They show how much of the front is luck. The mean is over replicates, as everywhere else.
        """
        pick: dict[str, Callable[[Sequence[float]], float]] = {
            "best": max,
            "mean": fmean,
            "worst": min,
        }
        fronts = {}
        for name, chosen in pick.items():
            points = torch.tensor(
                [(p.values[0], 1 - chosen(p.utilities)) for p in self.measured],
                dtype=torch.double,
            )
            fronts[name] = points[front_places(points)]
        return fronts

    def reevaluate(self, replicates: int, **options: Any) -> ParetoFront:
        """Train the configs on the front again, with fresh seeds.

        The best of many noisy trials is partly luck, so the front as observed flatters itself; this
        one does not. It costs ``replicates`` trainings for each point, which its
        :attr:`guarantee` counts.

        Args:
            replicates: New trainings for each config.
            options: ``executor``, ``progress`` and ``training_timeout``, as in ``DPareto.run``.

        Returns:
            The front of the new measurements; its ``observed`` is this one.
        """
        if self._reevaluator is None:
            raise ValueError("This front has no study; call `reevaluate` on `study.front()`.")
        trials, guarantee = self._reevaluator(self.measured_on_front, replicates, **options)
        return ParetoFront(
            self.problem,
            trials,
            guarantee=guarantee,
            label=f"{self.label}, evaluated again",
            observed=self,
            reevaluator=self._reevaluator,
            paid=self.paid,
        )

    def table(self) -> dict[str, list[Any]]:
        """Columns of the front: trial, objectives, best and worst error, config, seconds.

        A parameter that is not active in a config is None there.
        """
        return point_table(self.problem, self.measured_on_front)

    def to_frame(self) -> Any:
        """The :meth:`table` as a pandas data frame; ``frame.attrs["guarantee"]`` is the caption."""
        return data_frame(self.table(), self.caption)

    def plot(self, ax: Axes | None = None, **options: Any) -> Figure:
        """Draw the front; see :func:`botorch_dp.plots.plot_front` for the options."""
        from botorch_dp.plots import plot_front

        return plot_front(self, ax=ax, **options)

    def labelled(self, label: str) -> ParetoFront:
        """The same front under another name, for figures that show several."""
        return self._changed(label=label)

    def _changed(self, **attributes: Any) -> ParetoFront:
        front = object.__new__(ParetoFront)
        front.__dict__.update(self.__dict__ | attributes)
        return front

    def __len__(self) -> int:
        return len(self._on_front)

    def __repr__(self) -> str:
        return f"ParetoFront({len(self)} of {len(self.trials)} trials; sensitive)"

    def __str__(self) -> str:
        columns = self.table()
        rows = [
            list(columns),
            *([_shown(v) for v in row] for row in zip(*columns.values(), strict=True)),
        ]
        widths = [max(len(row[i]) for row in rows) for i in range(len(columns))]
        lines = [
            "  ".join(cell.rjust(w) for cell, w in zip(row, widths, strict=True)) for row in rows
        ]
        return "\n".join([*lines, self.caption])

    def __getstate__(self) -> dict[str, Any]:
        # The study stays where its file is; its trials are in the front.
        here = {"_reevaluator": None, "_believer": None, "_guarantee": self.guarantee}
        return self.__dict__ | here | {"shrunken": self.shrunken}

    def _checked(self, ref_point: Sequence[float] | None) -> Sequence[float]:
        if ref_point is None:
            return self.problem.full_ref_point
        names = self.objective_names
        if len(ref_point) != len(names):
            raise ValueError(f"`ref_point` must hold one value for each of {names}.")
        return [check_finite(f"ref_point[{i}]", value) for i, value in enumerate(ref_point)]


def dominated_volume(points: Tensor, ref_point: Sequence[float]) -> float:
    """Volume between ``n x m`` points, all minimized, and the reference point."""
    reference = torch.as_tensor(ref_point, dtype=torch.double)
    inside = points[(points < reference).all(dim=-1)]
    if len(inside) == 0:
        return 0.0
    return float(Hypervolume(-reference).compute(-inside[front_places(inside)]))


def non_dominated(points: Tensor) -> Tensor:
    """The non-dominated ones of ``n x m`` points, by increasing first objective."""
    return points[front_places(points)]


def guarantee_sentence(
    guarantee: Guarantee, *, test_records: bool = False, paid: bool = False
) -> str:
    """What publishing a front costs, in one sentence.

    Args:
        guarantee: What publishing everything measured promises a training record.
        test_records: Whether measured utilities promise the test records something, too.
        paid: Whether all trainings were charged to a budget before they began.
    """
    opening = "Sensitive: computed from the records without noise"
    priced = replace(guarantee, void=None) if guarantee.void == SEEDED else guarantee
    summed = priced.summed
    if priced.void is not None or (summed is not None and summed[1] >= 1):
        return f"{opening}; publishing it comes with no guarantee."
    delta = guarantee.quoted_delta or DEFAULT_DELTA
    delta = summed[1] if summed is not None else delta
    cost = f"ε = {float(rounded_up(priced.epsilon(delta))):,.10g}"
    if delta > 0:
        cost = f"({cost}, δ = {rounded_up(delta)})"
    cost = f"{cost} for {guarantee.protects}"
    if guarantee.conditions:
        cost = f"{cost}, on the conditions that its guarantee names"
    if not test_records:
        cost = f"{cost}; test records are not protected"
    if paid:
        return f"Computed from trainings that were paid for: publishing it costs {cost}."
    if guarantee.void is None:
        return f"{opening}; publishing it costs {cost}."
    return (
        f"{opening}; publishing it comes with no guarantee, since its trainings were seeded; if "
        f"each training were repeated with secret noise, it would cost {cost}."
    )


def point_table(problem: PrivacyUtilityProblem, points: Sequence[Point]) -> dict[str, list[Any]]:
    """Columns of points: trial, objectives, best and worst error, config, seconds.

    NaN where nothing was measured, None where a parameter is not active.
    """
    columns: dict[str, list[Any]] = {"trial": [point.trial for point in points]}
    for index, name in enumerate(problem.objective_names):
        columns[name] = [point.values[index] for point in points]
    columns["lowest_error"] = [1 - max(point.utilities, default=math.nan) for point in points]
    columns["highest_error"] = [1 - min(point.utilities, default=math.nan) for point in points]
    for name in problem.space.parameters:
        columns[name] = [point.config.get(name) for point in points]
    columns["seconds"] = [point.seconds for point in points]
    return columns


def data_frame(columns: dict[str, list[Any]], caption: str) -> Any:
    """Columns as a pandas data frame; ``frame.attrs["guarantee"]`` is the caption."""
    with needs_extra("frames", "`to_frame` (`table()` returns plain columns)"):
        import pandas
    frame = pandas.DataFrame(columns)
    frame.attrs["guarantee"] = caption
    return frame


def _shown(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def recommended(
    proposer: Proposer,
    trials: Sequence[Trial],
    epsilon: float,
    level: float,
    *,
    fitted: Beliefs | None = None,
) -> OperatingPoint:
    """The config with the smallest expected error among those whose epsilon is small enough.

    Args:
        proposer: Knows the problem and how to search it.
        trials: All trials.
        epsilon: The largest acceptable epsilon.
        level: The interval's probability.
        fitted: The proposer's beliefs about these trials, where they are at hand.
    """
    if math.isnan(epsilon) or check_finite("epsilon", epsilon) < 0:
        raise ValueError(f"`epsilon` must be finite and at least 0, got {epsilon}.")
    if not 0 < level < 1:
        raise ValueError(f"`level` must lie in (0, 1), got {level}.")
    require_complete(trials, "config to recommend")
    beliefs = proposer.beliefs(trials) if fitted is None else fitted
    space = proposer.problem.space
    given = space.parameters.get("epsilon") if proposer.problem.resource is None else None
    asked = min(epsilon, given.high) if isinstance(given, Real) else math.nan

    def held(candidates: Candidates) -> Candidates:
        """The candidates at the epsilon that was asked for, if it is a parameter."""
        if not isinstance(given, Real) or asked < given.low:
            return candidates
        return proposer.known.candidates([{**c, "epsilon": asked} for c in candidates.configs])

    def within(candidates: Candidates) -> Tensor:
        candidates = held(candidates)
        allowed = torch.tensor([space.satisfies(config) for config in candidates.configs])
        errors = expected_error(*_error_beliefs(beliefs, candidates))
        return (-errors).where(allowed & (candidates.known[:, _EPSILON] <= epsilon), -math.inf)

    config = proposer.search(within, beliefs, len(trials))
    if config is None:
        # The feasible region may be smaller than the candidates are apart: descend into it.
        config = proposer.search(lambda c: -c.known[:, _EPSILON], beliefs, len(trials))
        smallest = math.inf if config is None else proposer.known.epsilon(config)
        if not smallest <= epsilon:
            raise ValueError(
                f"`epsilon` = {epsilon:g} is out of reach: the smallest epsilon found in the space "
                f"is {smallest:.4g}. Widen the space (more noise, fewer steps) or ask for more."
            )
    assert config is not None
    (config,) = held(proposer.known.candidates([config])).configs
    mean, std = _error_beliefs(beliefs, proposer.known.candidates([config]))
    z = NormalDist().inv_cdf(0.5 + level / 2)
    return OperatingPoint(
        config=config,
        epsilon=proposer.known.epsilon(config),
        error=float(expected_error(mean, std)),
        interval=(float(torch.sigmoid(-mean - z * std)), float(torch.sigmoid(-mean + z * std))),
        level=level,
        tried=any(
            point.config == config
            for trial in trials
            if trial.state == "complete"
            for point in proposer.problem.points(trial)
        ),
    )


def by_expected_error(proposer: Proposer, trials: Sequence[Trial], epsilon: float) -> list[Config]:
    """Configs of the complete trials within an epsilon, by the error that the models expect."""
    within = [trial for trial in trials if trial.epsilon <= epsilon]
    candidates = proposer.known.candidates([trial.config for trial in within])
    errors = expected_error(*_error_beliefs(proposer.beliefs(trials), candidates)) if within else ()
    order = sorted(range(len(within)), key=lambda place: float(errors[place]))
    return [dict(within[place].config) for place in order]


def _error_beliefs(beliefs: Beliefs, candidates: Candidates) -> tuple[Tensor, Tensor]:
    means, stds = beliefs.predict(candidates)
    return means[:, _ERROR], stds[:, _ERROR]


def expected_error(mean: Tensor, std: Tensor) -> Tensor:
    """Mean of ``sigmoid(-y)`` for Gaussian ``y``, by Gauss-Hermite quadrature."""
    nodes, weights = (torch.from_numpy(a) for a in np.polynomial.hermite_e.hermegauss(20))
    values = torch.sigmoid(-(mean.unsqueeze(-1) + std.unsqueeze(-1) * nodes))
    return values @ (weights / weights.sum())
