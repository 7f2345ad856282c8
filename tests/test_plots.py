from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import matplotlib
import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from botorch_dp.pareto import DPareto, ParetoFront, Trial
from botorch_dp.pareto.problem import Measurement
from botorch_dp.plots import plot_front, plot_hypervolume
from botorch_dp.privacy import Guarantee, PrivacyUnit
from botorch_dp.privacy.losses import PureLoss
from tests.pareto import toy

POINTS = [(2.0, [0.5, 0.6]), (1.0, [0.8, 0.9]), (4.0, [0.2, 0.4]), (3.0, [0.6, 0.9])]


def front(points: Sequence[tuple[float, Sequence[float]]] = POINTS, **options: Any) -> ParetoFront:
    cost = options.pop("cost", 12.0)
    trials = [
        Trial(
            number=number,
            config={"noise": 1.0, "epochs": 1},
            seeds=tuple(range(len(errors))),
            epsilon=epsilon,
            state="complete",
            measurements=tuple(Measurement(1 - error) for error in errors),
        )
        for number, (epsilon, errors) in enumerate(points)
    ]
    guarantee = Guarantee("toy", PrivacyUnit(), (PureLoss(cost),))
    problem = toy.problem(delta=options.pop("delta", 0.0))
    return ParetoFront(problem, trials, guarantee=guarantee, **options)


def axes(figure: Figure) -> Axes:
    (only,) = figure.axes
    figure.draw_without_rendering()
    return only


def texts(ax: Axes) -> str:
    return " ".join(" ".join(text.get_text() for text in ax.texts).split())


def legend(ax: Axes) -> list[str]:
    found = ax.get_legend()
    assert found is not None
    return [text.get_text() for text in found.get_texts()]


class TestFront:
    def test_draws_the_steps_of_the_front(self) -> None:
        ax = axes(plot_front(front(label="mine")))
        line = next(line for line in ax.lines if line.get_label() == "mine")
        assert line.get_drawstyle() == "steps-post"
        x, y = (np.asarray(data, dtype=float) for data in line.get_data())
        assert x.tolist() == [1.0, 2.0, 4.0, 10.0]
        assert y.tolist() == pytest.approx([0.85, 0.55, 0.3, 0.3])

    def test_axes_say_what_they_are(self) -> None:
        ax = axes(plot_front(front(delta=1e-5)))
        assert ax.get_xscale() == "log" and "δ = 1e-05" in ax.get_xlabel()
        assert "one record is replaced" in ax.get_xlabel() and "error" in ax.get_ylabel()
        assert "trials" in legend(ax) and "best to worst replicate" in legend(ax)

    def test_the_price_is_below(self) -> None:
        one, other = front(label="one"), front(label="other", cost=99.0)
        assert texts(axes(plot_front(one))) == one.caption
        both = texts(axes(plot_front(one, other)))
        assert f"one: {one.caption} other: {other.caption}" == both
        assert texts(axes(plot_hypervolume(one))) == one.caption

    def test_observed_beside_evaluated_again(self) -> None:
        observed = front(label="mine")
        again = front([(1.0, [0.9]), (2.0, [0.7])], label="mine, again", observed=observed)
        ax = axes(plot_front(again))
        assert {"mine, as observed", "mine, again"} <= set(legend(ax))
        dashed = next(line for line in ax.lines if line.get_label() == "mine, as observed")
        assert dashed.get_linestyle() == "--"

    def test_band_spans_the_replicates(self) -> None:
        ax = axes(plot_front(front(), dominated=False))
        (band,) = ax.collections
        y = band.get_paths()[0].vertices[:, 1]
        assert y.min() == pytest.approx(0.2) and y.max() == pytest.approx(0.9)

    @pytest.mark.parametrize("point", [(0.0, [0.5]), (50.0, [1.0])])
    def test_one_point_at_zero_or_beyond_the_reference(self, point: Any) -> None:
        ax = axes(plot_front(front([point])))
        assert ax.lines and np.isfinite(ax.get_xlim()).all() and ax.get_xlim()[0] > 0


class TestHypervolume:
    def test_volumes_by_trial(self) -> None:
        mine = front(label="mine")
        ax = axes(plot_hypervolume(mine))
        (line,) = ax.lines
        assert list(line.get_xdata()) == [1, 2, 3, 4]  # type: ignore[arg-type]
        assert list(line.get_ydata()) == pytest.approx(mine.hypervolume_by_trial().tolist())  # type: ignore[arg-type]
        assert ax.get_xlabel() == "complete trials"
        assert "(epsilon, error) = (10, 1)" in ax.get_ylabel()


def test_drawing_changes_no_global_state() -> None:
    from matplotlib import _pylab_helpers

    before = dict(matplotlib.rcParams), matplotlib.get_backend()
    plot_front(front())
    assert (dict(matplotlib.rcParams), matplotlib.get_backend()) == before
    assert not _pylab_helpers.Gcf.figs


def test_a_recommendation_is_a_star_beside_the_front_as_expected() -> None:
    study = DPareto(toy.problem(), seed=0, acquisition="random")
    front, point = study.run(5), study.recommend(2.0)
    (axes,) = front.plot(recommended=point).axes
    labels = axes.get_legend_handles_labels()[1]
    assert "front, as expected" in labels and f"recommended, ε = {point.epsilon:.3g}" in labels
    assert "too optimistic" in " ".join(axes.texts[-1].get_text().split())
    dotted = next(line for line in axes.lines if line.get_label() == "front, as expected")
    assert front.shrunken is not None
    assert np.allclose(dotted.get_ydata()[:-1], front.shrunken.points[:, 1])
