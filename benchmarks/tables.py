"""What every table of a page needs: the stored result, numbers as they are shown, markdown."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from benchmarks.common import RESULTS


def stored(name: str) -> dict[str, Any]:
    """A result that the repository has."""
    return json.loads((RESULTS / f"{name}.json").read_text())


def load(name: str) -> dict[str, Any] | None:
    """A result that may not have been made yet."""
    return stored(name) if (RESULTS / f"{name}.json").exists() else None


def shown(value: Any) -> str:
    """A number, or a mean with its interval."""
    if isinstance(value, dict):
        if value["count"] < 2 or abs(value["low"]) == float("inf"):
            return f"{value['mean']:.3g}"
        return f"{value['mean']:.3g} [{value['low']:.3g}, {value['high']:.3g}]"
    return "" if value is None else f"{value:.3g}"


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    head = list(head)
    lines = [head, ["---"] * len(head), *map(list, rows)]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)
