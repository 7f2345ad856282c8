"""The demonstration runs, writes what it says, and resumes instead of spending twice."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from botorch_dp.privacy import PrivacyLedger
from examples.demo import main


def test_demo_twice(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "demo"
    arguments = ["--folder", str(folder), "--trials", "4"]
    assert main(arguments) == 0
    first = capsys.readouterr().out
    assert "1-differentially private" in first
    assert "(3, 1e-05)-differentially private" in first
    assert "For epsilon = 1" in first
    secret = {"study.sqlite", "ledger.sqlite", "search.sqlite", "model.run"}
    written = {path.name: path for path in folder.iterdir()}
    assert set(written) == {*secret, "receipt.json", "front.png"}
    assert all(stat.S_IMODE(written[name].stat().st_mode) == 0o600 for name in secret)

    assert main(arguments) == 0
    second = capsys.readouterr().out
    # Nothing was released or trained again: the same configuration, model and front.
    for begins in ("Configuration: ", "(Its accuracy", "  epsilon   error"):
        at = first.index(begins)
        assert first[at : first.index("\n\n" if begins[0] == " " else "\n", at)] in second
    with PrivacyLedger(written["ledger.sqlite"]) as ledger:
        assert ledger.spent() == (1.0, 0.0)
