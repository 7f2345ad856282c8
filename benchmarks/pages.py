"""Write the tables of the pages from the stored results: ``python -m benchmarks.pages [--check]``.

A table stands between ``<!-- table: NAME -->`` and ``<!-- end -->``; the script that owns the
stored result has a function ``table_NAME``. Decimals get a leading zero.
"""

from __future__ import annotations

import argparse
import importlib
import re
import sys
from pathlib import Path

from benchmarks.tables import markdown, stored

FOLDER = Path(__file__).parent
PAGES = [FOLDER.parent / "README.md", *sorted((FOLDER.parent / "docs").rglob("*.md"))]
MARK = re.compile(r"(<!-- table: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def table_faults() -> str:
    """What ``make faults`` stored: rows of one kind of fault, added up."""
    found = stored("faults")["rows"]
    rows = []
    for fault in dict.fromkeys(row["fault"] for row in found):
        mine = [row for row in found if row["fault"] == fault]
        sums = [sum(row[key] for row in mine) for key in ("tried", "lost")]
        rows.append([fault, str(len(mine)), *(f"{value:,}" for value in sums)])
    return markdown(["fault", "kinds", "tried", "lost"], rows)


def owners() -> dict[str, str]:
    """Name of a table to the script that has it."""
    found = {}
    for script in FOLDER.glob("*.py"):
        for name in re.findall(r"^def table_(\w+)\(", script.read_text(), re.MULTILINE):
            found[name] = script.stem
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="say which pages would change")
    options = parser.parse_args()
    of, changed = owners(), []

    def filled(match: re.Match[str]) -> str:
        script = importlib.import_module(f"benchmarks.{of[match[2]]}")
        table = getattr(script, f"table_{match[2]}")()
        table = re.sub(r"(?<![\w.])\.(?=\d)", "0.", table)
        return f"{match[1]}\n{table}\n{match[3]}"

    for page in PAGES:
        before = page.read_text()
        after = MARK.sub(filled, before)
        if after != before:
            changed.append(page.name)
            if not options.check:
                page.write_text(after)
    if options.check and changed:
        sys.exit(f"Run `python -m benchmarks.pages`: the tables of {', '.join(changed)} are old.")


if __name__ == "__main__":
    main()
