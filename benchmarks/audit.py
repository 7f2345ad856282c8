"""``make audit``: a million draws of every mechanism and of its broken versions, results kept.

Exits with status 1 if an honest mechanism is refuted or a broken version is not. Takes ten minutes
or so; ``botorch-dp audit`` is the same table with fewer draws.
"""

from __future__ import annotations

import argparse
import sys

from benchmarks.common import save_results
from botorch_dp.privacy.audit_cases import run_audits


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=1_000_000, help="draws from each data set")
    parser.add_argument("--only", default="", help="audit the cases whose name contains this")
    options = parser.parse_args()
    rows = run_audits(samples=options.samples, only=options.only)
    if options.samples >= 1_000_000 and not options.only:
        save_results("audit", {"rows": rows})
    return 0 if all(row.good for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
