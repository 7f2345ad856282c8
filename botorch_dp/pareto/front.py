"""Privacy-utility Pareto fronts: the best trials of a study, and tables of trials."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from botorch.utils.multi_objective.hypervolume import Hypervolume
from torch import Tensor

from botorch_dp._checks import needs_extra
from botorch_dp.pareto.problem import PrivacyUtilityProblem, Trial
from botorch_dp.pareto.publication import caption_of
from botorch_dp.pareto.surrogates import front_indices
from botorch_dp.privacy import Guarantee
from botorch_dp.space import Config

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: Measures trials again: (trials, replicates, ...) -> them with fresh utilities, and the
#: guarantee of publishing these too.
Reevaluator: TypeAlias = Callable[..., tuple[list[Trial], Guarantee | Callable[[], Guarantee]]]


class ParetoFront:
    """The non-dominated trials of a study, and all others for comparison.

    The front is computed from the records without noise: it is *sensitive*, and
    :attr:`caption` says what publishing it costs.

    Args:
        problem: The problem.
        trials: The complete trials, at least one.
        guarantee: What publishing everything measured so far guarantees to a training record, or
            a function that works it out when it is asked for (and raises if it cannot).
        label: Its name in figures.
        observed: The front that this one measured again or shrank, if any.
        charged: Whether all trainings were charged to a budget before they began.
        reevaluator: How to measure trials again.
        expected: What the study's models expect of :attr:`all_points`, ``n x m``.

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
        expected: Callable[[], Tensor] | None = None,
        charged: bool = False,
    ) -> None:
        if not trials:
            raise ValueError("`trials` is empty: a front needs at least one complete trial.")
        self.problem = problem
        self.trials = tuple(trials)
        self._guarantee = guarantee
        self.label = label
        self.observed = observed
        self.charged = charged
        self._reevaluator = reevaluator
        self._expected = expected
        #: ``n x m`` objective values of :attr:`trials`.
        self.all_points = torch.tensor(
            problem.values(self.trials), dtype=torch.double, device="cpu"
        )
        self._on_front = front_indices(self.all_points)

    @cached_property
    def guarantee(self) -> Guarantee:
        """The guarantee of publishing everything measured up to this front."""
        return self._guarantee() if callable(self._guarantee) else self._guarantee

    @property
    def points(self) -> Tensor:
        """``k x m`` values (epsilon, error, further objectives) by increasing epsilon."""
        return self.all_points[self._on_front]

    @property
    def front_trials(self) -> list[Trial]:
        """The trials on the front, by increasing epsilon, in the order of :attr:`points`."""
        return [self.trials[place] for place in self._on_front]

    @property
    def configs(self) -> list[Config]:
        """The configs on the front, by increasing epsilon."""
        return [dict(trial.config) for trial in self.front_trials]

    @property
    def objective_names(self) -> tuple[str, ...]:
        """Names of the columns of :attr:`points`."""
        return self.problem.objective_names

    @property
    def caption(self) -> str:
        """What belongs under every figure and table of this front: what publishing it costs."""
        return caption_of(self.problem, lambda: self.guarantee, charged=self.charged)

    def hypervolume(self, ref_point: Sequence[float] | None = None) -> float:
        """The exact volume dominated by the front and bounded by an anti-ideal point.

        Args:
            ref_point: One value for each objective; the problem's by default.
        """
        return dominated_volume(self.points, self._checked(ref_point))

    def hypervolume_by_trial(self, ref_point: Sequence[float] | None = None) -> Tensor:
        """``n`` hypervolumes: after the first complete trial, after two, and so on."""
        ref = self._checked(ref_point)
        volumes: list[float] = []
        best, volume = self.all_points[:0], 0.0
        for point in self.all_points:
            if not bool((best <= point).all(dim=-1).any()):
                best = torch.cat([best, point.unsqueeze(0)])
                best = best[front_indices(best)]
                volume = dominated_volume(best, ref)
            volumes.append(volume)
        return torch.tensor(volumes, dtype=torch.double, device="cpu")

    @cached_property
    def shrunken(self) -> ParetoFront | None:
        """The front that the study's models expect of the same trials.

        The best of many noisy trials look better than they are. The models judge each trial by its
        neighbours too, so the errors of this front are closer to the truth, and its configs do
        better when they are trained again: ``front.shrunken.reevaluate(5)``. Its values are
        expected ones, and the replicates beside them are measured. None if the front has no study,
        or one trial.
        """
        if self._expected is None or len(self.trials) < 2:
            return None
        values = self._expected()
        return self._changed(
            all_points=values,
            _on_front=front_indices(values),
            label=f"{self.label}, as expected",
            observed=self,
            _expected=None,
        )

    def reevaluate(self, replicates: int, **options: Any) -> ParetoFront:
        """Train the configs on the front again, with fresh seeds.

        The observed front looks better than its configs are (selection bias); the new front does
        not. It costs ``replicates`` trainings for each point, which
        its :attr:`guarantee` counts.

        Args:
            replicates: New trainings for each config.
            options: ``executor`` and ``progress``, as in ``DPareto.run``.

        Returns:
            The front of the new measurements; its ``observed`` is this one.
        """
        if self._reevaluator is None:
            raise ValueError("This front has no study; call `reevaluate` on `study.front()`.")
        trials, guarantee = self._reevaluator(self.front_trials, replicates, **options)
        return ParetoFront(
            self.problem,
            trials,
            guarantee=guarantee,
            label=f"{self.label}, evaluated again",
            observed=self,
            reevaluator=self._reevaluator,
            charged=self.charged,
        )

    def table(self) -> dict[str, list[Any]]:
        """Columns of the front: trial, objectives, best and worst error, config, seconds.

        A parameter that is not active in a config is None there.
        """
        return _columns(self.problem, self.front_trials, self.points.tolist())

    def published_values(self) -> dict[str, Any]:
        """What a receipt names a published front by: its table."""
        return {"front": self.table()}

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
        guarantee = self._guarantee if self.problem.training is None else self.guarantee
        here = {"_reevaluator": None, "_expected": None, "_guarantee": guarantee}
        return self.__dict__ | here | {"shrunken": self.shrunken}

    def _checked(self, ref_point: Sequence[float] | None) -> Sequence[float]:
        if ref_point is None:
            return self.problem.full_ref_point
        if len(ref_point) != len(self.objective_names):
            raise ValueError(f"`ref_point` must hold one value for each of {self.objective_names}.")
        return ref_point


def dominated_volume(points: Tensor, ref_point: Sequence[float]) -> float:
    """Volume between ``n x m`` points, all minimized, and the reference point."""
    reference = torch.as_tensor(ref_point, dtype=torch.double, device=points.device)
    inside = points[(points < reference).all(dim=-1)]
    if len(inside) == 0:
        return 0.0
    return float(Hypervolume(-reference).compute(-inside[front_indices(inside)]))


def non_dominated(points: Tensor) -> Tensor:
    """The non-dominated ones of ``n x m`` points, by increasing first objective."""
    return points[front_indices(points)]


def _columns(
    problem: PrivacyUtilityProblem, trials: Sequence[Trial], values: Sequence[Sequence[float]]
) -> dict[str, list[Any]]:
    """Columns of trials: number, objective values, best and worst error, config, seconds.

    NaN where nothing was measured, None where a parameter is not active.
    """
    columns: dict[str, list[Any]] = {"trial": [trial.number for trial in trials]}
    for index, name in enumerate(problem.objective_names):
        columns[name] = [row[index] for row in values]
    columns["lowest_error"] = [1 - max(trial.utilities, default=math.nan) for trial in trials]
    columns["highest_error"] = [1 - min(trial.utilities, default=math.nan) for trial in trials]
    for name in problem.space.parameters:
        columns[name] = [trial.config.get(name) for trial in trials]
    columns["seconds"] = [trial.seconds if trial.finished else math.nan for trial in trials]
    return columns


def trial_table(problem: PrivacyUtilityProblem, trials: Sequence[Trial]) -> dict[str, list[Any]]:
    """Columns of *all* trials: those of a front's table, and how each of them ended."""
    unmeasured = (math.nan,) * (len(problem.objective_names) - 1)
    values = [
        problem.values([trial])[0] if trial.finished else (trial.epsilon, *unmeasured)
        for trial in trials
    ]
    columns: dict[str, list[Any]] = {"trial": [], "state": [trial.state for trial in trials]}
    columns |= _columns(problem, trials, values)
    columns["trainings"] = [trial.num_trainings for trial in trials]
    columns["failure"] = [trial.failure_type for trial in trials]
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
