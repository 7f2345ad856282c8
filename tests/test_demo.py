"""The demonstration runs, writes what it says, and resumes instead of spending twice."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from examples.demo import main


def test_demo_twice(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--folder", str(tmp_path / "demo"), "--trials", "18", "--draws", "4000"]
    assert main(arguments) == 0
    first = capsys.readouterr().out
    assert first.index("First figure") < first.index("For epsilon = 1")
    assert "Released winner" in first
    assert "(1, 1e-06)-differentially private" in first
    assert "not refuted" in first
    assert "REFUTED, as it should be" in first
    written = {path.name: path for path in (tmp_path / "demo").iterdir()}
    assert set(written) == {"study.sqlite", "ledger.sqlite", "front.png", "tuning.png"}
    for name in ("study.sqlite", "ledger.sqlite"):
        assert stat.S_IMODE(written[name].stat().st_mode) == 0o600
    assert main(arguments) == 0
    second = capsys.readouterr().out
    assert "An earlier run spent this budget" in second
    # The study was resumed, not repeated: the same front, without a training.
    table = first[first.index("  epsilon ") : first.index("For epsilon")]
    assert table in second
