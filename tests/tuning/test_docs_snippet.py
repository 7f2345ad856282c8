"""The page on tuning runs as printed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).resolve().parents[2] / "docs" / "tuning.md"
SNIPPETS = re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
#: What each of them prints, among other things.
SHOWN = [
    ("Permute-and-flip", "proven", "'gamma'"),
    ("AUC is no mean over records", "label is public", "1 - AUC:"),
    ("20 evaluations", "'gamma'", "proven"),
    ("if tuning were ignored", "for one training record", "noise_multiplier"),
]


@pytest.mark.parametrize(("snippet", "words"), list(zip(SNIPPETS, SHOWN, strict=True)))
def test_the_snippets_run_as_printed(
    snippet: str, words: tuple[str, ...], capsys: pytest.CaptureFixture
) -> None:
    if "import optuna" in snippet:
        pytest.importorskip("optuna", reason="needs optuna")
    exec(compile(snippet, str(PAGE), "exec"), {"__name__": "__main__"})
    shown = capsys.readouterr().out
    assert all(word in shown for word in words), shown
