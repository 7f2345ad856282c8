"""A study's report is one quiet file, says what it costs, and works in a real browser."""

from __future__ import annotations

import csv
import json
import math
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from botorch_dp.pareto import (
    Choice,
    DPareto,
    Integer,
    PrivacyUtilityProblem,
    Real,
    SearchSpace,
    StudyError,
    TrainingPromise,
)
from botorch_dp.report import StudyView, study_report, trials_csv
from botorch_dp.report.page import Page, figure, log_ticks
from botorch_dp.report.study import study_page
from botorch_dp.space import Config, When
from tests.browser import chromium, opened, wait_until_drawn
from tests.pareto import toy

SPACE = SearchSpace(
    noise=Real(0.1, 10.0, log=True), epochs=Integer(1, 20), optimizer=Choice("sgd", "<b>adam</b>")
)


def utility(config: Config, seed: int) -> float:
    """Noise matters most, the optimizer a little."""
    error = toy.expected_error(config) + (0.05 if config["optimizer"] == "sgd" else 0.0)
    return float(np.clip(1 - error + 0.01 * np.random.default_rng(seed).standard_normal(), 0, 1))


def problem(**options: Any) -> PrivacyUtilityProblem:
    promise = TrainingPromise(delta=1e-6, secret_noise=True)
    settings = {"privacy": toy.epsilon, "utility": utility, "replicates": 2, "promise": promise}
    return PrivacyUtilityProblem(SPACE, name="toy", **(settings | options))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a study of 300 trials and its report."""
    folder = tmp_path_factory.mktemp("study")
    with DPareto(problem(), storage=folder / "study.sqlite", seed=0, acquisition="random") as study:
        study.run(300)
        study.report(folder / "front.html")
    return folder


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as started:
        yield started


def data_of(path: Path) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', path.read_text())
    assert found is not None
    return json.loads(found[1])


class TestFile:
    def test_is_small_private_and_whole(self, made: Path) -> None:
        path = made / "front.html"
        assert path.stat().st_size < 3_000_000
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert [file.name for file in sorted(made.iterdir())] == ["front.html", "study.sqlite"]

    def test_asks_for_nothing(self, made: Path) -> None:
        text = (made / "front.html").read_text()
        assert "default-src 'none'" in text
        assert not re.search(r"<(?:script|link|img)[^>]+(?:src|href)=", text)

    def test_says_that_it_is_sensitive_and_what_it_costs(self, made: Path) -> None:
        text = (made / "front.html").read_text()
        with DPareto(problem(), storage=made / "study.sqlite") as study:
            front = study.front()
            assert study.publication_guarantee().summed is not None
            epsilon, _ = study.publication_guarantee().summed
        before_the_figures = text[: text.index('id="the-front"')]
        assert "Sensitive." in before_the_figures
        assert front.caption in before_the_figures
        quoted = re.search(r'class="price">ε = ([\d.]+), δ', before_the_figures)
        assert quoted is not None
        assert epsilon <= float(quoted[1]) < epsilon * 1.001

    def test_what_a_user_names_is_no_markup(self, made: Path) -> None:
        text = (made / "front.html").read_text()
        assert "<b>adam</b>" not in text
        assert "&lt;b&gt;adam&lt;/b&gt;" in text

    def test_recommendations_are_those_of_the_study(self, made: Path) -> None:
        stops = data_of(made / "front.html")["recommendations"]
        assert 10 < len(stops) <= 32
        with DPareto(problem(), storage=made / "study.sqlite") as study:
            for stop in stops[:: len(stops) // 3]:
                limit = float(stop["limit"])
                point = study.recommend(limit)
                assert stop["point"]["y"] == [point.error]
                assert stop["point"]["x"][0] <= limit
                assert dict(stop["words"])["optimizer"] == point.config["optimizer"]
        errors = [stop["point"]["y"][0] for stop in stops]
        assert errors[-1] < errors[0] - 0.3

    def test_importance_follows_the_utility(self, made: Path) -> None:
        from botorch_dp.report.study import _Modelled

        view = StudyView.of_file(made / "study.sqlite")
        effects = _Modelled(view, view.complete).total_effects()
        # Both are known: log epsilon is log(epochs) / 2 - log(noise), each uniform in its scale.
        epochs = np.log(np.clip(np.rint(np.linspace(1, 20, 10_000)), 1, 20)).var() / 4
        noise = math.log(100) ** 2 / 12
        assert effects["noise"][0] == pytest.approx(noise / (noise + epochs), abs=0.03)
        assert effects["optimizer"][0] < 0.01
        assert effects["noise"][1] > effects["epochs"][1] > effects["optimizer"][1] > 0.001


class TestFromTheFileAlone:
    def test_recommends_what_was_tried(self, made: Path, tmp_path: Path) -> None:
        path = study_report(made / "study.sqlite", tmp_path / "tried.html")
        text = path.read_text()
        assert "among those that were tried" in text
        assert "may say less" in text
        for stop in data_of(path)["recommendations"]:
            assert ["origin", "tried"] in stop["words"]
            assert stop["point"]["x"][0] <= float(stop["limit"])

    def test_of_a_running_study(self, tmp_path: Path) -> None:
        path = tmp_path / "study.sqlite"
        with DPareto(problem(), storage=path, seed=0) as study:
            trial = study.ask()[0]
            assert "1 pending" in study_page(StudyView.of_file(path)).html()
            study.tell(trial, [0.5, 0.6])
            before = path.read_bytes()
            view = StudyView.of_file(path)
            assert [t.state for t in view.trials] == ["complete"]
            # Who holds the file goes on, and nothing of ours was left in it.
            assert path.read_bytes() == before
            study.ask()
        study_report(view, tmp_path / "one.html")

    def test_another_problem_is_refused(self, made: Path) -> None:
        other = problem(replicates=3)
        with pytest.raises(StudyError, match=r"another problem.*replicates"):
            StudyView.of_file(made / "study.sqlite", other)

    def test_failed_trials_and_seeded_trainings(self, tmp_path: Path) -> None:
        seeded = problem(promise=TrainingPromise(delta=1e-6))
        with DPareto(seeded, storage=tmp_path / "s.sqlite", seed=0, retries=0) as study:
            first, second = study.ask(2)
            study.tell(first, error=ValueError("Smith"))
            study.tell(second, [0.5, 0.6])
            text = study.report(tmp_path / "r.html").read_text()
        assert "No guarantee: it must not be published." in text
        assert "failed (ValueError)" in text
        assert "Smith" not in text

    @pytest.mark.parametrize(
        ("name", "message"), [("none/r.html", "does not exist"), ("r.pdf", "must end in .html")]
    )
    def test_a_wrong_path(self, tmp_path: Path, name: str, message: str) -> None:
        with DPareto(problem(), storage=tmp_path / "study.sqlite", seed=0) as study:
            study.run(1)
        with pytest.raises(ValueError, match=message):
            study_report(tmp_path / "study.sqlite", tmp_path / name)


@pytest.mark.parametrize(
    ("low", "high", "labels"),
    [
        (1.0, 64.0, ["1", "2", "5", "10", "20", "50"]),
        (0.1, 10.0, ["0.1", "0.2", "0.5", "1", "2", "5", "10"]),
        (1e-5, 1.0, []),
        (1.1, 1.2, []),
    ],
)
def test_labels_of_a_short_logarithmic_axis_have_room(
    low: float, high: float, labels: list[str]
) -> None:
    made = figure("x", "y", x_axis_type="log")
    log_ticks(made, low, high)
    overrides = made.xaxis[0].major_label_overrides
    assert [overrides[tick] for tick in sorted(overrides)] == labels


def test_parameters_that_are_not_always_active(tmp_path: Path) -> None:
    space = SearchSpace(
        noise=Real(0.1, 10.0, log=True),
        epochs=Integer(1, 20),
        optimizer=Choice("sgd", "adam"),
        momentum=Real(0.0, 0.9, active=When("optimizer", "sgd")),
        variant=Choice("plain", "amsgrad", active=When("optimizer", "adam")),
    )
    conditional = PrivacyUtilityProblem(
        space, privacy=toy.epsilon, utility=utility, name="conditional"
    )
    with DPareto(conditional, storage=tmp_path / "s", seed=0, acquisition="random") as study:
        study.run(12)
        path = study.report(tmp_path / "r.html")
        trials = study.trials
    stops = data_of(path)["recommendations"]
    names = list(space.parameters)
    for stop in stops:
        words = dict(stop["words"])
        for name in ("momentum", "variant"):
            errors = stop["slices"][names.index(name)]["error"]
            assert (name in words) is (None not in errors)
    alone = StudyView.of_file(tmp_path / "s")
    assert alone.problem.space.to_dict() == space.to_dict()
    study_report(alone, tmp_path / "file.html")
    rows = list(csv.DictReader(trials_csv(alone, tmp_path / "t.csv").read_text().splitlines()))
    for row, trial in zip(rows, trials, strict=True):
        assert (row["momentum"] == "") is ("momentum" not in trial.config)


class TestInTheBrowser:
    def test_is_drawn(self, made: Path, browser: Any) -> None:
        with opened(browser, f"file://{made}/front.html") as page:
            wait_until_drawn(page)
            assert float(page.evaluate("document.documentElement.dataset.drawn")) > 0
            assert page.locator("canvas").count() >= 7

    def test_the_slider_moves_the_recommendation(self, made: Path, browser: Any) -> None:
        stops = data_of(made / "front.html")["recommendations"]
        with opened(browser, f"file://{made}/front.html") as page:
            wait_until_drawn(page)
            slider = page.get_by_label("largest ε allowed")
            marked = "Bokeh.documents[0].get_model_by_name('recommended').data"
            sliced = "Bokeh.documents[0].get_model_by_name('slice 0').data.error"
            for key, stop in (("Home", stops[0]), ("End", stops[-1])):
                slider.press(key)
                assert page.locator("#epsilon-shown").inner_text() == f"ε ≤ {stop['limit']}"
                words = dict(stop["words"])
                assert words["error"] in page.locator("#recommendation").inner_text()
                assert list(page.evaluate(f"Array.from({marked}.y)")) == stop["point"]["y"]
                shown = page.evaluate(f"Array.from({sliced})")
                assert shown == stop["slices"][0]["error"]

    @pytest.mark.slow
    def test_marks_tell_their_trial(self, made: Path, browser: Any) -> None:
        with opened(browser, f"file://{made}/front.html") as page:
            wait_until_drawn(page)
            place = page.locator("#the-front .figure")
            place.scroll_into_view_if_needed()
            box = place.bounding_box()
            tip = page.locator(".bk-tooltip-content").first
            for share in range(8, 120):
                page.mouse.move(box["x"] + box["width"] * share / 128, box["y"] + 200)
                if tip.count() and tip.is_visible():
                    break
            told = tip.inner_text()
            number = int(re.search(r"trial:\s*(\d+)", told)[1])
            trial = StudyView.of_file(made / "study.sqlite").trials[number]
            assert f"{trial.error:.4f} ({1 - max(trial.utilities):.4f} to " in told
            assert f"epochs = {trial.config['epochs']}, optimizer = " in told
            assert "95% interval" in told

    def test_the_table_sorts_and_saves(self, made: Path, browser: Any) -> None:
        with opened(browser, f"file://{made}/front.html") as page:
            rows = page.locator("#trials tbody tr")
            assert rows.count() == 300
            column = page.locator("#trials th").all_inner_texts().index("epsilon")
            page.get_by_role("button", name="epsilon", exact=True).click()
            values = page.evaluate(
                "c => [...document.querySelectorAll('#trials tbody tr')]"
                ".map(r => Number(r.cells[c].dataset.value))",
                column,
            )
            assert values == sorted(values)
            with page.expect_download() as download:
                page.get_by_role("button", name="Save as CSV").click()
            lines = Path(download.value.path()).read_text().splitlines()
            assert len(lines) == 301
            assert lines[0].startswith("trial,state,noise,epochs,optimizer,epsilon,error")

    @pytest.mark.slow
    def test_curves_of_trainings(self, tmp_path: Path, browser: Any) -> None:
        def along(config: Config, seed: int, checkpoints: list[int]) -> list[float]:
            return [utility({**config, "epochs": epochs}, seed) for epochs in checkpoints]

        curve = problem(utility=None, utility_curve=along, resource="epochs")
        with DPareto(curve, storage=tmp_path / "s", seed=0) as study:
            study.run(8, initial=6)
            trials = study.trials
            study.report(tmp_path / "r.html")
        study_report(tmp_path / "s", tmp_path / "file.html")
        for name in ("r.html", "file.html"):
            with opened(browser, f"file://{tmp_path}/{name}") as page:
                wait_until_drawn(page)
                assert "Curves of trainings" in page.inner_text("body")
                drawn = page.evaluate(
                    """Bokeh.documents[0].roots()
                    .filter(f => f.below[0].axis_label === "epochs" && f.left[0].axis_label)
                    .flatMap(f => f.renderers.map(r => r.data_source.data))
                    .filter(d => d.xs)
                    .flatMap(d => [...d.trial].map((t, i) => [t, [...d.xs[i]], [...d.ys[i]]]))"""
                )
            shown = {int(t): (x, y) for t, x, y in drawn}
            for trial in trials:
                points = curve.points(trial)
                assert shown[trial.number][0] == [p.config["epochs"] for p in points]
                assert shown[trial.number][1] == pytest.approx([p.values[1] for p in points])

    @pytest.mark.one_in(2)
    @pytest.mark.parametrize("width", [1200, 390])
    def test_nothing_sticks_out(self, made: Path, browser: Any, width: int) -> None:
        with opened(browser, f"file://{made}/front.html", width=width) as page:
            wait_until_drawn(page)
            assert page.evaluate("document.documentElement.scrollWidth") <= width

    def test_before_anything_is_complete(self, tmp_path: Path, browser: Any) -> None:
        with DPareto(problem(), seed=0) as study:
            study.ask()
            study.report(tmp_path / "r.html")
        with opened(browser, f"file://{tmp_path}/r.html") as page:
            wait_until_drawn(page)
            assert "Nothing was trained yet" in page.inner_text("body")


def test_a_page_may_be_drawn_again() -> None:
    page = Page("Twice", "Shown and written.", "nothing")
    first = figure("x", "y")
    first.line([1, 2], [3, 4])
    page.section("Figures", page.place("first", first, "a line"))
    assert len(page.html()) == len(page.html())
