"""List the benchmarks, or run some: ``python -m benchmarks [NAME ... | --all]``."""

from __future__ import annotations

import argparse
import ast
import os
import subprocess
import sys
import time
from pathlib import Path

FOLDER = Path(__file__).parent
#: ``make audit`` has a target of its own, and ``pages`` measures nothing.
EXCEPT = {"__main__", "audit", "pages"}


def questions() -> dict[str, str]:
    """Every script that measures something, with the first line of its docstring."""
    sources = {path.stem: path.read_text() for path in sorted(FOLDER.glob("*.py"))}
    return {
        name: (ast.get_docstring(ast.parse(source)) or "").split("\n")[0]
        for name, source in sources.items()
        if name not in EXCEPT and 'if __name__ == "__main__":' in source
    }


def main() -> int:
    known = questions()
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
        for name, question in known.items():
            print(f"{name:18} {question}")
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
