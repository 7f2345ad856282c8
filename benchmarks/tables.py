"""What the table of a page needs: the stored result, numbers as they are shown, markdown.

A script that owns a stored result has a function ``table_NAME`` for each table of the pages, which
``python -m benchmarks.pages`` writes between ``<!-- table: NAME -->`` and ``<!-- end -->``.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from benchmarks.common import RESULTS


def stored(name: str) -> dict[str, Any]:
    """A result that the repository has."""
    found: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text())
    return found


def markdown(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    head = list(head)
    lines = [head, ["---"] * len(head), *map(list, rows)]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


def fixed(value: float, digits: int = 3) -> str:
    """So many decimals; no minus in front of a zero."""
    text = f"{value:.{digits}f}"
    return text.lstrip("-") if float(text) == 0 else text


def bracketed(found: Any, digits: int = 3) -> str:
    """A mean with the ends of its interval."""
    mean, low, high = (fixed(found[key], digits) for key in ("mean", "low", "high"))
    return f"{mean} [{low}, {high}]"


def plus_minus(found: Any, digits: int = 2) -> str:
    return f"{fixed(found['mean'], digits)} ± {fixed(found['high'] - found['mean'], digits)}"


def short(value: Any) -> str:
    """Three significant digits of a number, or of a mean with its interval if it has one."""
    if isinstance(value, dict):
        if value["count"] < 2 or abs(value["low"]) == float("inf"):
            return f"{value['mean']:.3g}"
        return f"{value['mean']:.3g} [{value['low']:.3g}, {value['high']:.3g}]"
    return "" if value is None else f"{value:.3g}"


def two_digits(value: float) -> str:
    """Two significant digits, or all in front of the point."""
    return f"{value:,.0f}" if value >= 9.95 else f"{value:#.2g}"


def ratio(found: Any) -> str:
    """The median of a ratio and its range over repetitions."""
    return "{} ({} to {})".format(*(two_digits(found[key]) for key in ("median", "low", "high")))


def span(values: Iterable[float]) -> str:
    values = list(values)
    return f"{two_digits(min(values))} to {two_digits(max(values))}"
