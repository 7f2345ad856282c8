"""The page on tuning runs as printed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).resolve().parents[2] / "docs" / "tuning.md"


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (0, ("Permute-and-flip", "proven", "'gamma'")),
        (1, ("unpaid tuning", "for one training record", "noise_multiplier")),
    ],
)
def test_the_snippets_run_as_printed(
    number: int, words: tuple[str, ...], capsys: pytest.CaptureFixture
) -> None:
    snippet = re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)[number]
    exec(compile(snippet, str(PAGE), "exec"), {"__name__": "__main__"})
    shown = capsys.readouterr().out
    assert all(word in shown for word in words)
