"""``import botorch_dp`` and its rooms against ``import botorch`` plus OpenDP, in new processes."""

from __future__ import annotations

import statistics
import subprocess
import sys

from benchmarks.common import (
    BenchmarkParser,
    save_results,
    seconds,
)

BASELINE = "import botorch, opendp.prelude"
CASES = {
    "botorch_dp": "import botorch_dp",
    "botorch_dp.privacy": "import botorch_dp.privacy",
    "botorch_dp.pareto": "import botorch_dp.pareto",
    "everything": "import botorch_dp.release, botorch_dp.descent, botorch_dp.pareto, "
    "botorch_dp.training, botorch_dp.outsourced, botorch_dp.tasks, botorch_dp.plots",
}


def once(program: str) -> float:
    return seconds(lambda: subprocess.run([sys.executable, "-W", "ignore", "-c", program]))


def main() -> None:
    BenchmarkParser("import_time", __doc__, minutes=1).parse_args()
    programs = {"botorch + OpenDP": BASELINE, **CASES}
    times: dict[str, list[float]] = {name: [] for name in programs}
    for _ in range(6):
        for name, program in programs.items():
            times[name].append(once(program))
    # The first turn warms the disk cache.
    baseline = statistics.median(times["botorch + OpenDP"][1:])
    results = {}
    for name, values in times.items():
        median = statistics.median(values[1:])
        results[name] = {"seconds": median, "of botorch + OpenDP": median / baseline}
        print(f"{name:22s} {median:6.2f} s  {median / baseline:5.2f} of botorch + OpenDP")
    save_results("import_time", results)


if __name__ == "__main__":
    main()
