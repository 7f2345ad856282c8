"""`report` and `dashboard`: which file it is is known before anything is loaded."""

from __future__ import annotations

from pathlib import Path

import pytest

from botorch_dp.privacy import PrivacyBudget, PrivacyLedger
from tests.cli.calling import call


def test_a_study(capsys, own: str, tmp_path: Path) -> None:
    code, _, err = call(capsys, "pareto", own, "--trials", "3", "--storage", "s.sqlite", "--quiet")
    assert code == 0, err
    assert call(capsys, "report", "s.sqlite")[:2] == (0, "s.html\n")
    code, _, err = call(capsys, "report", "s.sqlite", "--out", "page.txt")
    assert code == 1 and "--out must end in .html, got page.txt." in err
    assert "among those that were tried" in (tmp_path / "s.html").read_text()
    code, out, err = call(capsys, "report", "s.sqlite", "--task", own, "--out", "own.html")
    assert (code, out) == (0, "own.html\n"), err
    assert "tried or not" in (tmp_path / "own.html").read_text()


def test_a_ledger(capsys, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    PrivacyLedger("budget.sqlite", PrivacyBudget(1.0)).close()
    assert call(capsys, "report", "budget.sqlite")[:2] == (0, "budget.html\n")
    assert "Privacy ledger" in (tmp_path / "budget.html").read_text()
    code, _, err = call(capsys, "dashboard", "budget.sqlite")
    assert code == 1
    assert "`botorch-dp report` shows one" in err


@pytest.mark.parametrize("command", ["report", "dashboard"])
def test_neither(capsys, tmp_path: Path, command: str) -> None:
    (tmp_path / "text").write_text("nothing of ours")
    for name, message in (("none", "There is no file"), ("text", "neither a study nor a ledger")):
        code, _, err = call(capsys, command, str(tmp_path / name))
        assert code == 1
        assert message in err
