"""Scripts of the kind people have, before and after their tuning is paid for."""

from __future__ import annotations

import difflib
from pathlib import Path

FOLDER = Path(__file__).parent
NAMES = ("opacus", "jax", "huggingface", "sklearn")


def changed_lines(name: str) -> int:
    """Lines of a script that are new or changed, empty ones and the title aside."""
    before, after = (
        [line for line in (FOLDER / f"{name}_{when}.py").read_text().splitlines()[1:] if line]
        for when in ("before", "after")
    )
    blocks = difflib.SequenceMatcher(None, before, after, autojunk=False).get_opcodes()
    return sum(j2 - j1 for tag, _, _, j1, j2 in blocks if tag != "equal")
