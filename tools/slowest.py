"""``python -m tools.slowest log``: the slowest tests of a run, with what each of them proves.

The log is what ``pytest -n 2 --durations=200`` printed. What a test
proves is the first line of its docstring, or else its name in words.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parent.parent
_TIMED = re.compile(r"^([\d.]+)s (?:call|setup|teardown) +(\S+?\.py)::(.+)$", re.M)


def proves(file: str, name: str) -> str:
    """What the test of that name says of itself.

    Args:
        file: Its file, from the root.
        name: Its class, if it has one, and its name, with ``::`` between them.
    """
    last = name.split("::")[-1]
    path = ROOT / file
    tree = ast.parse(path.read_text()) if path.is_file() else ast.Module([], [])
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.name == last:
            said = (ast.get_docstring(node) or "").split("\n")[0]
            if said:
                return said
    return last.removeprefix("test_").replace("_", " ")


def slowest(log: str, most: int) -> list[tuple[float, str, str]]:
    """Seconds, with what was set up for it, name and promise of each test; the slowest first."""
    seconds: Counter[tuple[str, str]] = Counter()
    for taken, file, name in _TIMED.findall(log):
        seconds[file, name] += float(taken)
    return [
        (taken, f"{file}::{name}", proves(file, name.partition("[")[0]))
        for (file, name), taken in seconds.most_common(most)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("log", type=Path, help="what pytest printed with --durations")
    parser.add_argument("--most", type=int, default=50, help="how many tests (default: 50)")
    options = parser.parse_args()
    rows = slowest(options.log.read_text(), options.most)
    if not rows:
        sys.exit(f"{options.log} has no durations: run pytest with --durations=50.")
    print("| seconds | test | what it proves |\n| --- | --- | --- |")
    for taken, test, said in rows:
        print(f"| {taken:.1f} | `{test}` | {said} |")


if __name__ == "__main__":
    main()
