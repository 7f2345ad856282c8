"""Figures: fronts, the hypervolume they gain, and the curves of a private table.

Every figure of a front says below its axes what publishing it costs. Figures are made without
pyplot, so that drawing one changes no global state and needs no display.
"""

from __future__ import annotations

import io
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from botorch_dp._checks import needs_extra
from botorch_dp.pareto.front import ParetoFront, non_dominated
from botorch_dp.pareto.recommendation import OperatingPoint

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from botorch_dp.integrations.estimators import DPClassifier, DPRegressor

    with needs_extra("plots", "A figure"):
        from matplotlib.figure import Figure

_CAPTION_WIDTH = 92
#: So many curves are drawn unless more are asked for.
_MOST_CURVES = 16
_EXPECTED = "The star is what the study's models expect of the recommended configuration."
_LUCKY = (
    " It may lie above the observed front, which is too optimistic, because its points were "
    "selected for low errors; the dotted line is the front of the same trials with errors "
    "smoothed by the models."
)
_TRIALS: dict[str, Any] = {"color": "0.55", "marker": ".", "linestyle": "none", "markersize": 5}
_SHADE: dict[str, Any] = {"step": "post", "linewidth": 0}


def plot_front(
    *fronts: ParetoFront,
    ax: Axes | None = None,
    trials: bool | None = None,
    dominated: bool | None = None,
    band: bool | None = None,
    ref_point: Sequence[float] | None = None,
    recommended: OperatingPoint | None = None,
) -> Figure:
    """Error against epsilon (on a logarithmic axis): one front, or several to compare.

    A front that was evaluated again is drawn beside the one observed first (dashed).

    Args:
        fronts: At least one; their labels go to the legend.
        ax: Where to draw; a new figure if None.
        trials: Whether to show all trials. By default if there is one front.
        dominated: Whether to shade what the front dominates. By default if there is one front.
        band: Whether to shade the span from each trial's best to its worst replicate. By default
            if there is one front with several replicates that is not drawn beside another.
        ref_point: The anti-ideal (epsilon, error) that bounds the shading; the problem's if None.
        recommended: What ``study.recommend`` returned: a star. Beside it the first front is drawn
            as the study's models expect it (dotted), and a sentence says why it lies higher.

    Returns:
        The figure.

    Example:
        >>> plot_front(study.front()).savefig("front.png")
    """
    alone = len(fronts) == 1
    trials = alone if trials is None else trials
    dominated = alone if dominated is None else dominated
    figure, ax = _axes(ax)
    ref_epsilon, ref_error = fronts[0].problem.ref_point if ref_point is None else ref_point[:2]
    smallest = _smallest_epsilon(fronts)
    for index, front in enumerate(fronts):
        color = f"C{index}"
        if trials:
            every = front.all_points.numpy()
            label = "trials" if index == 0 else None
            ax.plot(_log_safe(every[:, 0], smallest), every[:, 1], label=label, zorder=1, **_TRIALS)
        points = _projected(front)
        if front.observed is not None:
            observed = _projected(front.observed)
            observed_itself = front.observed.observed is None
            label = front.observed.label + (", as observed" if observed_itself else "")
            _draw_steps(
                ax, observed, smallest, ref_epsilon, color=color, linestyle="--", label=label
            )
        _draw_steps(ax, points, smallest, ref_epsilon, color=color, marker="o", label=front.label)
        if dominated:
            _shade_dominated(ax, points, smallest, ref_epsilon, ref_error, color)
        replicates = max(len(trial.utilities) for trial in front.trials)
        if band if band is not None else alone and front.observed is None and replicates > 1:
            _shade_band(ax, front, smallest, ref_epsilon, color)
    notes = []
    if recommended is not None:
        notes = [_draw_recommended(ax, fronts[0], recommended, smallest, ref_epsilon)]
    _log_epsilon(ax)
    problem = fronts[0].problem
    training = problem.training
    meaning = " (relation and δ not stated)"
    if training is not None:
        level = f" at δ = {training.delta:g}" if training.delta > 0 else ""
        meaning = f"{level} ({training.unit.neighbours})"
    ax.set_xlabel(f"privacy loss ε{meaning}")
    ax.set_ylabel("error (1 − utility)")
    _finish(ax, fronts, notes)
    return figure


def plot_hypervolume(*fronts: ParetoFront, ax: Axes | None = None) -> Figure:
    """The hypervolume of the trials so far, against their number: how fast each front was found.

    Args:
        fronts: At least one; their labels go to the legend.
        ax: Where to draw; a new figure if None.

    Returns:
        The figure.
    """
    figure, ax = _axes(ax)
    reference = fronts[0].problem.full_ref_point
    for index, front in enumerate(fronts):
        volumes = front.hypervolume_by_trial(reference).numpy()
        counts = np.arange(1, len(volumes) + 1)
        ax.plot(counts, volumes, drawstyle="steps-post", color=f"C{index}", label=front.label)
    names = ", ".join(fronts[0].objective_names)
    values = ", ".join(f"{value:g}" for value in reference)
    ax.set_xlabel("complete trials")
    ax.set_ylabel(f"hypervolume up to ({names}) = ({values})")
    _finish(ax, fronts)
    return figure


def plot_shapes(model: DPClassifier | DPRegressor, columns: Sequence[Any] = ()) -> Figure:
    """What a private model of a table learnt of each column: one curve for each.

    The curves are part of the released model, and its guarantee stands below them.

    Args:
        model: Fitted; additive or linear.
        columns: Names of the columns to draw; those with the largest curves if empty.

    Returns:
        The figure.

    Example:
        >>> plot_shapes(classifier.fit(X, y)).savefig("shapes.png")
    """
    curves = model.curves()
    by_size = sorted(curves, key=lambda name: -float(np.ptp(curves[name][1], axis=0).max()))
    shown = list(columns) or [name for name in curves if name in by_size[:_MOST_CURVES]]
    wide = min(4, len(shown))
    rows = -(-len(shown) // wide)
    figure, whole = _axes(None)
    figure.set_figheight(1.2 + 1.7 * rows)
    whole.remove()
    classes = getattr(model, "classes_", ())
    for place, name in enumerate(shown):
        values, parts = curves[name]
        ax = figure.add_subplot(rows, wide, place + 1, sharey=figure.axes[0] if place else None)
        if values.dtype.kind == "f":
            ax.plot(values, parts, label=classes if parts.ndim == 2 else None)
        else:
            ax.plot(values.astype(str), parts, "o", label=classes if parts.ndim == 2 else None)
        ax.axhline(0, color="0.8", linewidth=0.8, zorder=0)
        ax.set_title(str(name), fontsize=9)
        ax.tick_params(labelsize=7)
    if len(classes) > 2:
        figure.axes[0].legend(fontsize=7)
    left_out = f" {len(curves) - len(shown)} columns are not shown." if columns == () else ""
    caption = f"Each column's part of a prediction; 0 is that of a missing value.{left_out} "
    guarantee = model.guarantee_
    caption += f"{guarantee.sentence} It rests on {len(guarantee.conditions)} conditions."
    figure.supxlabel(textwrap.fill(caption, _CAPTION_WIDTH), fontsize=8)
    return figure


def _log_epsilon(ax: Axes) -> None:
    """A logarithmic axis whose ticks are plain numbers, a few in a decade."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    ax.set_xscale("log")
    low, high = ax.get_xlim()
    subs = (1.0, 3.0) if high > 10 * low else (1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 7.0)
    ax.xaxis.set_major_locator(LogLocator(subs=subs))
    ax.xaxis.set_major_formatter(FuncFormatter(lambda epsilon, _: f"{epsilon:g}"))
    ax.xaxis.set_minor_formatter(NullFormatter())


def _axes(ax: Axes | None) -> tuple[Figure, Axes]:
    with needs_extra("plots", "A figure"):
        from matplotlib.figure import Figure

    class ShownFigure(Figure):
        """A figure that notebooks show by itself, whether pyplot is in use or not."""

        def _repr_png_(self) -> bytes:
            picture = io.BytesIO()
            self.savefig(picture, format="png")
            return picture.getvalue()

    if ax is None:
        figure = ShownFigure(figsize=(7.0, 5.4), layout="constrained")
        return figure, figure.add_subplot()
    parent = ax.get_figure(root=True)
    assert isinstance(parent, Figure)
    return parent, ax


def _finish(ax: Axes, fronts: Sequence[ParetoFront], notes: Sequence[str] = ()) -> None:
    """Legend, grid, and the sentences that belong below."""
    ax.grid(True, which="major", alpha=0.3)
    ax.legend(fontsize=9)
    sentences = list(dict.fromkeys(front.caption for front in fronts))
    if len(sentences) > 1:
        sentences = [f"{front.label}: {front.caption}" for front in fronts]
    lines = [textwrap.fill(sentence, _CAPTION_WIDTH) for sentence in (*sentences, *notes)]
    ax.annotate(
        "\n".join(lines),
        xy=(0, 0),
        xycoords="axes fraction",
        xytext=(0, -42),
        textcoords="offset points",
        va="top",
        fontsize=9,
        annotation_clip=False,
    )


def _projected(front: ParetoFront) -> NDArray[np.float64]:
    """The front in (epsilon, error) alone, by increasing epsilon, ``k x 2``."""
    points: NDArray[np.float64] = non_dominated(front.points[:, :2]).numpy()
    return points


def _smallest_epsilon(fronts: Sequence[ParetoFront]) -> float:
    """Where epsilon = 0 is drawn: a logarithmic axis has no zero."""
    epsilons = np.concatenate([front.all_points[:, 0].numpy() for front in fronts])
    positive = epsilons[epsilons > 0]
    return float(positive.min()) / 2 if len(positive) else 1e-3


def _log_safe(epsilons: NDArray[np.float64], smallest: float) -> NDArray[np.float64]:
    return np.maximum(epsilons, smallest)


def _steps(
    points: NDArray[np.float64], smallest: float, until: float
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """A front as a step function: who may spend epsilon gets the best error up to there."""
    epsilons = _log_safe(points[:, 0], smallest)
    return np.append(epsilons, max(until, epsilons[-1])), np.append(points[:, 1], points[-1, 1])


def _draw_steps(
    ax: Axes, points: NDArray[np.float64], smallest: float, until: float, **style: Any
) -> None:
    epsilons, errors = _steps(points, smallest, until)
    style |= {"markevery": slice(0, len(points)), "markersize": 5, "zorder": 3}
    ax.plot(epsilons, errors, drawstyle="steps-post", **style)


def _draw_recommended(
    ax: Axes, front: ParetoFront, star: OperatingPoint, smallest: float, until: float
) -> str:
    """A star, and the front as the models see it; returns what to say about them."""
    ax.errorbar(
        star.epsilon,
        star.error,
        yerr=[[abs(end - star.error)] for end in star.interval],
        fmt="*",
        color="C1",
        markersize=14,
        markeredgecolor="black",
        capsize=3,
        zorder=9,
        label=f"recommended, ε = {star.epsilon:.3g}",
    )
    if front.shrunken is None:
        return _EXPECTED
    style = {"color": "C1", "linestyle": ":", "label": front.shrunken.label}
    _draw_steps(ax, _projected(front.shrunken), smallest, until, **style)
    return _EXPECTED + _LUCKY


def _shade_dominated(
    ax: Axes,
    points: NDArray[np.float64],
    smallest: float,
    ref_epsilon: float,
    ref_error: float,
    color: str,
) -> None:
    inside = points[(points[:, 0] < ref_epsilon) & (points[:, 1] < ref_error)]
    if len(inside) == 0:
        return
    epsilons, errors = _steps(inside, smallest, ref_epsilon)
    label = f"dominated, up to ({ref_epsilon:g}, {ref_error:g})"
    style = {"alpha": 0.12, "label": label, "zorder": 0, **_SHADE}
    ax.fill_between(epsilons, errors, ref_error, color=color, **style)


def _shade_band(
    ax: Axes, front: ParetoFront, smallest: float, ref_epsilon: float, color: str
) -> None:
    found = ([(t.epsilon, 1 - of(t.utilities)) for t in front.trials] for of in (max, min))
    best, worst = (
        non_dominated(torch.tensor(points, dtype=torch.double, device="cpu")).numpy()
        for points in found
    )
    until = max(ref_epsilon, best[-1, 0], worst[-1, 0])
    start = max(best[0, 0], worst[0, 0])
    inner = np.concatenate([best[:, 0], worst[:, 0]])
    grid = np.unique(np.append(inner[inner >= start], until))
    low, high = (_error_within(points, grid) for points in (best, worst))
    style = {"alpha": 0.3, "label": "best to worst replicate", "zorder": 2, **_SHADE}
    ax.fill_between(_log_safe(grid, smallest), low, high, color=color, **style)


def _error_within(
    points: NDArray[np.float64], epsilons: NDArray[np.float64]
) -> NDArray[np.float64]:
    """The front's error for those who may spend each epsilon."""
    places = np.searchsorted(points[:, 0], epsilons, side="right") - 1
    errors: NDArray[np.float64] = points[places, 1]
    return errors
