"""The page on tuning runs as printed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).resolve().parents[2] / "docs" / "tuning.md"


def test_the_snippet_runs_as_printed(capsys: pytest.CaptureFixture) -> None:
    (snippet,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
    exec(compile(snippet, str(PAGE), "exec"), {"__name__": "__main__"})
    shown = capsys.readouterr().out
    assert "Permute-and-flip" in shown and "proven" in shown and "'gamma'" in shown
