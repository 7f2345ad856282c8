"""A study's page is one quiet file, and says what it costs."""

from __future__ import annotations

import re
import shutil
import stat
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from botorch_dp.pareto import DPareto, PrivacyUtilityProblem, TrainingPrivacy
from botorch_dp.privacy import PrivacyBudget, PrivacyLedger
from botorch_dp.report import study_report
from botorch_dp.space import Choice, Config, Integer, Real, SearchSpace, When
from tests.browser import chromium, opened
from tests.pareto import toy

SPACE = SearchSpace(
    noise=Real(0.1, 10.0, log=True),
    epochs=Integer(1, 20),
    optimizer=Choice("sgd", "<b>adam</b>"),
    momentum=Real(0.0, 0.9, active=When("optimizer", "sgd")),
)
BUDGET = PrivacyBudget(400.0, 1e-5)


def utility(config: Config, seed: int) -> float:
    error = toy.expected_error(config) + (0.05 if config["optimizer"] == "sgd" else 0.0)
    return float(np.clip(1 - error + 0.01 * np.random.default_rng(seed).standard_normal(), 0, 1))


def problem(**options: Any) -> PrivacyUtilityProblem:
    training = TrainingPrivacy(delta=1e-6, secret_noise=True)
    settings = {"privacy": toy.epsilon, "utility": utility, "replicates": 2, "training": training}
    return PrivacyUtilityProblem(SPACE, name="toy", **(settings | options))


def section(page: str, title: str) -> str:
    return page.split(f"<h2>{title}</h2>")[1].split("<h2>")[0]


def cells(table: str) -> list[list[str]]:
    rows = re.findall(r"<tr>(.*?)</tr>", table)
    return [re.findall(r"<t[dh][^>]*>(.*?)</t[dh]>", row) for row in rows]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a study of 40 trials and its page."""
    folder = tmp_path_factory.mktemp("study")
    with DPareto(problem(), storage=folder / "study.sqlite", seed=0, acquisition="random") as study:
        study.run(40)
        study.report(folder / "front.html")
    return folder


def test_is_small_private_and_asks_for_nothing(made: Path) -> None:
    path = made / "front.html"
    text = path.read_text()
    assert path.stat().st_size < 1_000_000
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert "default-src 'none'" in text and "<script" not in text
    assert not re.search(r'(?:src|href)="(?!data:)', text)
    assert sorted(file.name for file in made.iterdir()) == ["front.html", "study.sqlite"]


def test_says_what_publishing_costs(made: Path, tmp_path: Path) -> None:
    price = section((made / "front.html").read_text(), "The cost of publishing")
    with DPareto(problem(), storage=made / "study.sqlite") as study:
        assert study.front().caption in price
        epsilon, _ = study.publication_guarantee().summed
    quoted = re.search(r'class="price">ε = ([\d.]+), δ', price)
    assert epsilon <= float(quoted[1]) < epsilon * 1.001
    assert "sum of all epsilons" not in price
    alone = study_report(made / "study.sqlite", tmp_path / "alone.html").read_text()
    assert "sum of all epsilons" in section(alone, "The cost of publishing")


def test_what_a_user_names_is_no_markup(made: Path) -> None:
    text = (made / "front.html").read_text()
    assert "<b>adam</b>" not in text and "&lt;b&gt;adam&lt;/b&gt;" in text


def test_recommendations_are_those_of_the_study(made: Path, tmp_path: Path) -> None:
    deploy = section((made / "front.html").read_text(), "What to deploy")
    _, *rows = cells(deploy)
    assert "tried or not" in deploy and 4 < len(rows) <= 12
    with DPareto(problem(), storage=made / "study.sqlite") as study:
        for row in rows[:: len(rows) // 3]:
            point = study.recommend(float(row[0]))
            assert row[2].startswith(f"{point.error:.4f} (")
            assert float(row[1]) <= float(row[0])
    alone = study_report(made / "study.sqlite", tmp_path / "stored.html").read_text()
    assert "What to deploy" not in alone


def test_all_trials_are_there(made: Path) -> None:
    head, *rows = cells(section((made / "front.html").read_text(), "All trials"))
    with DPareto(problem(), storage=made / "study.sqlite") as study:
        assert len(rows) == len(study.trials)
        on_front = {str(trial.number) for trial in study.front().front_trials}
        for row, trial in zip(rows, study.trials, strict=True):
            told = dict(zip(head, row, strict=True))
            assert (told["state"] == "front") is (told["trial"] in on_front)
            assert told["error"] == f"{trial.error:.4g}"
            assert (told["momentum"] == "") is ("momentum" not in trial.config)


def test_of_a_running_study_with_a_failed_trial(tmp_path: Path) -> None:
    path = tmp_path / "study.sqlite"
    seeded = problem(training=TrainingPrivacy(delta=1e-6))
    with DPareto(seeded, storage=path, seed=0) as study:
        study.ask()
        assert "Nothing was trained yet" in study_report(path, tmp_path / "0.html").read_text()
        study.tell(0, [0.5, 0.6])
        study.tell(study.ask()[0], error=ValueError("Smith"))
        before = path.read_bytes()
        text = study_report(path, tmp_path / "1.html").read_text()
        assert path.read_bytes() == before, "who holds the file goes on"
        study.ask()
    assert "No guarantee: it must not be published." in text
    assert "1 complete, 1 failed" in text


def test_the_price_of_a_study_with_a_budget_is_its_ledgers(tmp_path: Path) -> None:
    path, beside = tmp_path / "study.sqlite", tmp_path / "study.sqlite.ledger"
    with DPareto(problem(), storage=path, seed=0, acquisition="random", budget=BUDGET) as study:
        study.run(4)
        own = study.report(tmp_path / "own.html").read_text()
    stored = study_report(path, tmp_path / "stored.html").read_text()
    for page in (own, stored):
        price = section(page, "The cost of publishing")
        assert "ε = 400, δ = 1e-05: the budget that its trainings were charged to" in price
        assert "without noise. Keep this file" not in page
    with PrivacyLedger(beside) as ledger:  # a training that was killed and drawn again
        ledger.charge(ledger.entries()[0].guarantee)
        left = ledger.summary()
    again = study_report(path, tmp_path / "again.html").read_text()
    assert left in again and left not in stored
    elsewhere = Path(shutil.move(beside, tmp_path / "elsewhere"))
    price = section(study_report(path, tmp_path / "r.html").read_text(), "The cost of publishing")
    assert "No guarantee without the ledger" in price and "ε =" not in price
    assert "Do not publish:" in price, "nor does the caption below the figure state a price"
    found = study_report(path, tmp_path / "r.html", ledger=elsewhere).read_text()
    assert "ε = 400, δ = 1e-05: the budget" in found


def test_in_the_browser_nothing_sticks_out(made: Path) -> None:
    url = f"file://{made}/front.html"
    with chromium() as browser, opened(browser, url, width=390) as page:
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        assert page.evaluate("document.images[0].naturalWidth") > 100
