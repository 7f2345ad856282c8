"""The report of a study with a budget quotes its ledger, and never adds up its trials."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from botorch_dp.cli import main
from botorch_dp.pareto import DPareto, StudyError
from botorch_dp.privacy import PrivacyBudget, PrivacyLedger
from botorch_dp.report import StudyView, study_report
from botorch_dp.report.page import Page
from botorch_dp.report.study import _price, study_page
from tests.report.test_study_report import problem

BUDGET = PrivacyBudget(400.0, 1e-5)


def price(page: str) -> str:
    """The section with the price, as a reader sees it."""
    section = page.split('<section id="the-price-of-publishing">')[1].split("</section>")[0]
    return section.split("<details>")[0]


def price_of(view: StudyView) -> str:
    """That section of its report alone: the figures of the others take their time."""
    page = Page("", "", "")
    _price(page, view)
    return price(page.html())


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("paid")
    path = folder / "study.sqlite"
    with DPareto(problem(), storage=path, seed=0, acquisition="random", budget=BUDGET) as study:
        study.run(4)
        study.report(folder / "own.html")
    return folder


@pytest.fixture
def paid(made: Path, tmp_path: Path) -> Path:
    """A copy of the study, for each test to change."""
    return shutil.copytree(made, tmp_path, dirs_exist_ok=True) / "study.sqlite"


def test_the_price_is_the_budget_and_the_ledger_says_what_was_spent(paid: Path) -> None:
    with PrivacyLedger(f"{paid}.ledger") as ledger:
        charges, (spent, _), (left, _) = len(ledger.entries()), ledger.spent(), ledger.remaining()
    own = (paid.parent / "own.html").read_text()
    for page in (own, study_page(StudyView.of_file(paid)).html()):
        said = price(page)
        assert "ε = 400, δ = 1e-05: the budget that its trainings were charged to" in said
        assert f"{charges} charges have spent ε = {spent:.6g}" in said
        assert f"leave ε = {left:.6g}" in said
        assert "quote the budget" in said
        assert "without noise. Keep this file" not in page


def test_charges_that_no_trial_knows_count(paid: Path, tmp_path: Path) -> None:
    """A training that was killed and drawn again was charged twice: the trials cannot tell."""
    before = price_of(StudyView.of_file(paid))
    with PrivacyLedger(f"{paid}.ledger") as ledger:
        extra = ledger.entries()[0].guarantee
        ledger.charge(extra, label="trial 3 again")
    after = price_of(StudyView.of_file(paid))
    assert before != after
    assert "ε = 400, δ = 1e-05: the budget" in after


def test_a_ledger_elsewhere_is_named(paid: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere.ledger"
    Path(f"{paid}.ledger").rename(elsewhere)
    missing = price_of(StudyView.of_file(paid))
    assert "No guarantee" in missing
    assert "--ledger FILE" in missing
    assert "ε =" not in missing
    found = StudyView.of_file(paid, ledger=elsewhere)
    assert "the budget that its trainings were charged to" in price_of(found)
    out = str(tmp_path / "front.html")
    assert main(["report", str(paid), "--out", out, "--ledger", str(elsewhere)]) == 0
    assert "the budget that its trainings were charged to" in price(Path(out).read_text())


def test_a_study_without_a_budget_has_no_ledger(tmp_path: Path) -> None:
    path, ledger = tmp_path / "study.sqlite", tmp_path / "a.ledger"
    with DPareto(problem(), storage=path, seed=0, acquisition="random") as study:
        study.run(3)
    PrivacyLedger(ledger, BUDGET).close()
    with pytest.raises(StudyError, match="has no budget"):
        StudyView.of_file(path, ledger=ledger)
    assert "budget" not in price(study_report(path, tmp_path / "s.html").read_text())
