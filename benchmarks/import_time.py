"""``import botorch_dp`` and its rooms against ``import botorch`` plus OpenDP, and the command line.

Each is a new process, whose own processor seconds count: on a shared machine they are what an idle
one would wait for. They take turns; the first turn, which warms the disk cache, is left out. Of the
command line: ``--help`` and a wrong argument of each command, which ought to take no second.
"""

from __future__ import annotations

import resource
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence

from benchmarks.common import BenchmarkParser, save_results

BASELINE = "botorch + OpenDP"
ROOMS = [
    "release",
    "descent",
    "pareto",
    "training",
    "tuning",
    "outsourced",
    "tasks",
    "plots",
    "report",
    "cli",
    "acquisition",
]
IMPORTS = {
    BASELINE: "import botorch, opendp.prelude",
    "botorch_dp": "import botorch_dp",
    "botorch_dp.privacy": "import botorch_dp.privacy",
    "botorch_dp.pareto": "import botorch_dp.pareto",
    "every room": "import " + ", ".join(f"botorch_dp.{room}" for room in ROOMS),
}
#: Refused by what a file or a task is, not by their form.
REFUSED = {
    "pareto": "pareto no_task",
    "recommend": "recommend adult_logistic_sgd --data breast_cancer --storage none --epsilon 1",
    "fit": "fit no_task --epsilon 1 --delta 1e-5 --model m.pt",
    "report": "report none.sqlite",
    "dashboard": "dashboard none.sqlite",
    "ledger": "ledger show none.sqlite",
    "audit": "audit --samples -1",
    "calibrate": "calibrate dp-sgd --epsilon -1 --delta 1e-5 --records 9 --batch 3 --epochs 1",
    "epsilon": "epsilon dp-sgd --noise -1 --delta 1e-5 --records 9 --batch 3 --epochs 1",
    "curator": "curator",
    "modeler": "modeler nowhere",
    "tasks": "tasks --nothing",
}


def once(arguments: Sequence[str]) -> float:
    """Processor seconds of a new Python process."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-W", "ignore", *arguments], capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def medians(programs: Mapping[str, Sequence[str]], turns: int) -> dict[str, float]:
    """Of all turns but the first, all programs taking turns."""
    times = [{name: once(program) for name, program in programs.items()} for _ in range(turns + 1)]
    return {name: statistics.median(turn[name] for turn in times[1:]) for name in programs}


def main() -> None:
    parser = BenchmarkParser("import_time", __doc__, minutes=1)
    parser.add_argument("--turns", type=int, default=5)
    turns = parser.parse_args().turns
    imports = medians({name: ("-c", program) for name, program in IMPORTS.items()}, turns)
    results: dict[str, object] = {}
    for name, median in imports.items():
        share = median / imports[BASELINE]
        results[name] = {"seconds": median, f"of {BASELINE}": share}
        print(f"{name:22s} {median:6.2f} s  {share:5.2f} of {BASELINE}", flush=True)
    commands = {"--help": ("-m", "botorch_dp", "--help")}
    for command, refused in REFUSED.items():
        commands[f"{command} --help"] = ("-m", "botorch_dp", command, "--help")
        commands[f"{command}, refused"] = ("-m", "botorch_dp", *refused.split())
    line = medians(commands, turns)
    slowest = max(line, key=line.__getitem__)
    print(f"command line: at most {line[slowest]:.2f} s ({slowest})")
    save_results("import_time", {**results, "command line": line})


if __name__ == "__main__":
    main()
