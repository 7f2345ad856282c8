"""List the benchmarks, or run some: ``python -m benchmarks [NAME ... | --all]``."""

from __future__ import annotations

import argparse
import ast
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

FOLDER = Path(__file__).parent
#: ``make audit`` has a target of its own, and ``pages`` measures nothing.
EXCEPT = {"__main__", "audit", "pages"}


def scripts() -> dict[str, str]:
    """The source of every script that measures something."""
    sources = {path.stem: path.read_text() for path in sorted(FOLDER.glob("*.py"))}
    return {
        name: source
        for name, source in sources.items()
        if name not in EXCEPT and 'if __name__ == "__main__":' in source
    }


def minutes(source: str) -> float:
    """How long a script takes: what it tells :class:`BenchmarkParser`, all parts together."""
    tree = ast.parse(source)
    values = {
        node.targets[0].id: node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    }
    (value,) = [
        word.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        for word in node.keywords
        if word.arg == "minutes"
    ]
    found = ast.literal_eval(values[value.id] if isinstance(value, ast.Name) else value)
    return float(sum(found.values()) if isinstance(found, dict) else found)


def last_run(source: str) -> str:
    """From when to when the results are that a script names: by their own dates, or commits'."""
    names = "|".join(path.stem for path in (FOLDER / "results").glob("*.json"))
    dates = []
    for name in set(re.findall(rf'(?<!": )"({names})"(?!:)', source)):
        path = FOLDER / "results" / f"{name}.json"
        machine = json.loads(path.read_text()).get("machine", {})
        command = ["git", "log", "-1", "--format=%cs", "--", str(path)]
        dates.append(
            machine.get("date")
            or subprocess.run(command, cwd=FOLDER, capture_output=True, text=True).stdout.strip()
        )
    ends = sorted({min(dates), max(dates)}) if dates else ["never"]
    return " to ".join(ends)


def main() -> int:
    known = scripts()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help="which to run, one after the other"
    )
    parser.add_argument("--all", action="store_true", help="run all of them (many hours)")
    options = parser.parse_args()
    unknown = set(options.names) - set(known)
    if unknown:
        parser.error(f"no benchmark is called {', '.join(sorted(unknown))}")
    names = list(known) if options.all else options.names
    if not names:
        print(f"{'':18} {'last run':24} minutes")
        for name, source in known.items():
            claim = (ast.get_docstring(ast.parse(source)) or "").split("\n")[0]
            print(f"{name:18} {last_run(source):24} {minutes(source):7.3g}  {claim}")
        print("\n`python -m benchmarks.NAME --help` lists the parts of one and how long they take.")
    failures = 0
    for name in names:
        print(f"\n=== {name}", flush=True)
        start = time.perf_counter()
        environment = {"OMP_NUM_THREADS": "1", **os.environ}
        code = subprocess.run(
            [sys.executable, "-m", f"benchmarks.{name}"], cwd=FOLDER.parent, env=environment
        ).returncode
        failures += code != 0
        print(f"=== {name}: {time.perf_counter() - start:.0f} s, exit code {code}", flush=True)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
