"""Run every benchmark, one after the other: ``python -m benchmarks [NAME ...]``."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

FOLDER = Path(__file__).parent
#: Audits, mutants and faults have targets of their own (`make audit`); pages are filled.
EXCEPT = {"__init__", "__main__", "common", "audit", "faults", "mutants", "pages"}


def names() -> list[str]:
    """Every script with a ``main``."""
    return [
        path.stem
        for path in sorted(FOLDER.glob("*.py"))
        if path.stem not in EXCEPT and '__name__ == "__main__"' in path.read_text()
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help=f"of {', '.join(names())}; all by default")
    options = parser.parse_args()
    unknown = set(options.names) - set(names())
    if unknown:
        parser.error(f"no benchmark is called {', '.join(sorted(unknown))}")
    failures = 0
    for name in options.names or names():
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
