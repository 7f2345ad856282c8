"""A ledger's report: what was spent on what, when, and what is left."""

from __future__ import annotations

import re
from html import unescape
from pathlib import Path

import pytest

from botorch_dp.privacy import (
    PrivacyBudget,
    PrivacyLedger,
    Receipt,
    gaussian_guarantee,
    laplace_guarantee,
    rounded_down,
    rounded_up,
)
from botorch_dp.report import ledger_report
from tests.browser import chromium, opened, wait_until_drawn


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    path = tmp_path / "study.ledger"
    with PrivacyLedger(path, PrivacyBudget(2.0, 1e-6, summed=0.5)) as opened_ledger:
        for _ in range(3):
            price = laplace_guarantee(sensitivity=1.0, epsilon=0.1)
            opened_ledger.charge(price, label="best <i>score</i>")
        opened_ledger.charge(gaussian_guarantee(sensitivity=1.0, mu=0.05))
    return path


class TestFile:
    def test_says_what_the_ledger_says(self, ledger: Path, tmp_path: Path) -> None:
        text = ledger_report(ledger, tmp_path / "ledger.html").read_text()
        with PrivacyLedger(ledger) as again:
            spent, remaining = again.spent(), again.remaining()
            assert f"ε = {rounded_up(spent[0])}, δ = {rounded_up(spent[1])}" in text
            assert f"ε = {rounded_down(remaining[0])}, δ = {rounded_down(remaining[1])}" in text
            for entry in again.entries():
                assert entry.charged_at[:19].replace("T", " ") in text
        assert text.count("&lt;i&gt;score&lt;/i&gt;") >= 3
        assert "<i>score</i>" not in text

    def test_it_has_a_receipt_that_can_be_checked(self, ledger: Path, tmp_path: Path) -> None:
        text = ledger_report(ledger, tmp_path / "ledger.html").read_text()
        assert "This promise protects one record of the data set." in text
        (document,) = re.findall(r"<pre>(.*?)</pre>", text, re.DOTALL)
        (tmp_path / "receipt.json").write_text(unescape(document))
        receipt = Receipt.load(tmp_path / "receipt.json")
        assert (receipt.epsilon, receipt.delta) == (2.0, 1e-6)
        assert receipt.verify().passes

    def test_the_curve_ends_at_what_was_spent(self, ledger: Path, tmp_path: Path) -> None:
        with PrivacyLedger(ledger) as opened_ledger:
            text = ledger_report(opened_ledger, tmp_path / "ledger.html").read_text()
            label = re.search(r'aria-label="([\d.]+) of 2 spent', text)
            assert label is not None
            assert float(label[1]) == pytest.approx(opened_ledger.spent()[0], rel=1e-3)

    @pytest.mark.parametrize("budget", [PrivacyBudget(1.0), PrivacyBudget(1.0, 1e-6, renyi=True)])
    def test_an_empty_one(self, budget: PrivacyBudget, tmp_path: Path) -> None:
        with PrivacyLedger(tmp_path / "l", budget) as empty:
            text = ledger_report(empty, tmp_path / "ledger.html").read_text()
        assert "0 charges" in text

    def test_thousands_of_charges(self, tmp_path: Path) -> None:
        with PrivacyLedger(budget=PrivacyBudget(1.0, 1e-6)) as many:
            price = gaussian_guarantee(sensitivity=1.0, mu=1e-4)
            for _ in range(2000):
                many.charge(price, label="scores")
            path = ledger_report(many, tmp_path / "ledger.html")
        assert path.stat().st_size < 3_000_000


@pytest.mark.one_in(2)
@pytest.mark.parametrize("width", [1200, 390])
def test_in_the_browser(ledger: Path, tmp_path: Path, width: int) -> None:
    path = ledger_report(ledger, tmp_path / "ledger.html")
    with chromium() as browser, opened(browser, f"file://{path}", width=width) as page:
        wait_until_drawn(page)
        assert page.locator("canvas").count() >= 2
        assert page.locator("#charges tbody tr").count() == 4
        assert page.evaluate("document.documentElement.scrollWidth") <= width
