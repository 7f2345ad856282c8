"""Figures of ``dpareto_paper``, after the paper's figures 5 to 8."""

from __future__ import annotations

import itertools
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.dpareto_runs import Setting, evaluated_again, open_study
from botorch_dp.pareto import ParetoFront
from botorch_dp.plots import plot_front, save_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_COLORS = {
    "DPareto": "C0",
    "random": "C1",
    "DPareto, HVPoI": "C2",
    "grid of 3": "C3",
    "grid of 4": "C4",
}
_DPI = 90


def draw(
    settings: Sequence[Setting], runs: dict[str, Any], studies: Path, results: Path, size: str = ""
) -> None:
    """Draw all figures of the runs there are.

    Args:
        settings: What was run.
        runs: The runs in the results file.
        studies: Folder of the studies.
        results: Folder of the figures.
        size: What the names of the files end in.
    """
    ran = [setting for setting in settings if "DPareto" in runs.get(setting.label, {})]
    if not ran:
        return
    again = {
        setting.label: {
            method: _again(setting, method, studies)
            for method in _COLORS
            if "0" in runs[setting.label].get(method, {})
        }
        for setting in ran
    }
    _hypervolumes(ran, runs, results / f"dpareto_hypervolume{size}.png")
    _side_by_side(
        {label: list(fronts.values()) for label, fronts in again.items() if len(fronts) > 1},
        results / f"dpareto_fronts{size}.png",
        title="{}: fronts evaluated again, one study each",
    )
    _side_by_side(
        {label: [fronts["DPareto"]] for label, fronts in again.items()},
        results / f"dpareto_variability{size}.png",
        title="{}: a front, before and again",
        keep_observed=True,
        band=True,
        trials=False,
        dominated=False,
    )
    groups = {"Adult": "LogReg SVM", "MNIST": "MLP1 MLP2"}
    _side_by_side(
        {
            name: [
                fronts["DPareto"].labelled(label)
                for label, fronts in again.items()
                if label.split("+")[0] in members.split()
            ]
            for name, members in groups.items()
        },
        results / f"dpareto_comparison{size}.png",
        title="{}: models and optimizers",
    )


def _again(setting: Setting, method: str, studies: Path) -> ParetoFront:
    with open_study(setting, method, 0, studies) as study:
        front = evaluated_again(study, study.front().labelled(method), setting.again)
    return front.labelled(method)


def _alone(front: ParetoFront) -> ParetoFront:
    """The same front without the one that was observed first."""
    return ParetoFront(front.problem, front.trials, guarantee=front.guarantee, label=front.label)


def _side_by_side(
    panels: dict[str, list[ParetoFront]],
    path: Path,
    *,
    title: str,
    keep_observed: bool = False,
    **options: Any,
) -> None:
    from matplotlib.figure import Figure

    panels = {name: fronts for name, fronts in panels.items() if fronts}
    if not panels:
        return
    columns = min(2, len(panels))
    rows = -(-len(panels) // columns)
    figure = Figure(figsize=(6.6 * columns, 5.2 * rows), layout="constrained")
    for index, (name, fronts) in enumerate(panels.items()):
        ax = figure.add_subplot(rows, columns, index + 1)
        shown = fronts if keep_observed else [_alone(front) for front in fronts]
        plot_front(*shown, ax=ax, **options)
        ax.set_title(title.format(name), fontsize=10)
        ax.set_xlim(right=2 * fronts[0].problem.ref_point[0])
    save_figure(figure, path, dpi=_DPI)


def _hypervolumes(settings: Sequence[Setting], runs: dict[str, Any], path: Path) -> None:
    """Hypervolume by trial as observed (lines), and evaluated again at each stop (marks)."""
    from matplotlib.figure import Figure

    columns = min(3, len(settings))
    rows = -(-len(settings) // columns)
    figure = Figure(figsize=(4.6 * columns, 4.2 * rows), layout="constrained")
    for index, setting in enumerate(settings):
        ax = figure.add_subplot(rows, columns, index + 1)
        heights: list[float] = []
        for method, by_seed in runs[setting.label].items():
            heights += _draw_method(ax, setting, method, list(by_seed.values()))
        margin = 0.06 * (max(heights) - min(heights))
        ax.set_ylim(min(heights) - margin, max(heights) + margin)
        ax.set_title(setting.label, fontsize=10)
        ax.set_xlabel("trials")
        ax.set_ylabel("hypervolume up to (ε, error) = (10, 1)")
        ax.grid(True, alpha=0.3)
        ax.legend(fontsize=7, ncol=2, loc="upper center", bbox_to_anchor=(0.5, -0.16))
    caption = (
        "Lines: hypervolume as observed, mean over seeds, range shaded. Marks: the front of each "
        "seed evaluated again with fresh seeds. Dashes: grids, evaluated again. Sensitive: "
        "computed from the records without noise."
    )
    figure.supxlabel(textwrap.fill(caption, 52 * columns), fontsize=8)
    save_figure(figure, path, dpi=_DPI)


def _draw_method(
    ax: Axes, setting: Setting, method: str, by_seed: list[dict[str, Any]]
) -> list[float]:
    """Draw one method's studies; returns the heights that must be seen."""
    color, first = _COLORS[method], by_seed[0]
    label = f"{method} ({first['trials']} trials)"
    again = [[at["evaluated_again"]["linear"] for at in run["at"].values()] for run in by_seed]
    if method.startswith("grid"):
        ax.axhline(again[0][-1], color=color, linestyle="--", linewidth=1, label=label)
        return again[0]
    curves = np.array([run["observed_by_trial"] for run in by_seed])
    counts = np.arange(1, curves.shape[1] + 1)
    ax.plot(counts, curves.mean(axis=0), color=color, label=label)
    low, high = curves.min(axis=0), curves.max(axis=0)
    ax.fill_between(counts, low, high, color=color, alpha=0.15, linewidth=0)
    for run, values in zip(by_seed, again, strict=True):
        stops = [int(stop) for stop in run["at"]]
        ax.plot(stops, values, color=color, marker="o", markersize=4, linestyle="none")
    # The climb before models are consulted says nothing about the method.
    return [*itertools.chain(*again), float(low[setting.initial - 1]), float(high[-1])]
