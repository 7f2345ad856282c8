"""A study's own time for a trial in a PostgreSQL database against an SQLite file.

The space and the epsilon are those of ``pareto_overhead``. A trial is proposed, stored, claimed,
told and stored; both wait for the disk. The server is a real one on this machine: a network's own
time comes on top, once for each statement (counted here, too). Both sides take turns; time on the
wall, for half of the work is the server's.

Run with ``OMP_NUM_THREADS=1 python -m benchmarks.shared_storage``.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.common import BenchmarkParser, save_results
from benchmarks.pareto_overhead import make_problem, utility
from botorch_dp.pareto import DPareto, postgres
from tests.postgres import server

SIZES = (16, 300)
ACQUISITIONS = {"random": "storage alone", "ehvi": "with the proposal"}


def one_trial(study: DPareto, size: int) -> float:
    start = time.perf_counter()
    (trial,) = study.ask(1, initial=size)
    study.tell(trial, utility(trial.config, trial.missing_seeds[0]))
    return time.perf_counter() - start


def round_trips(trial: Callable[[], object]) -> int:
    """How many statements a trial sends to the server."""
    execute, count = postgres._Connection.execute, [0]

    def counting(*arguments: Any) -> Any:
        count[0] += 1
        return execute(*arguments)

    postgres._Connection.execute = counting  # type: ignore[method-assign, assignment]
    try:
        trial()
    finally:
        postgres._Connection.execute = execute  # type: ignore[method-assign]
    return count[0]


def measure(places: dict[str, Any], acquisition: Any, size: int, repeats: int) -> dict[str, Any]:
    """Seconds of a trial at each place, for the trials ``size, size + 1, ...``."""
    problem = make_problem()
    options: dict[str, Any] = {"acquisition": acquisition, "seed": 0}
    studies = {name: DPareto(problem, storage=at, **options) for name, at in places.items()}
    for study in studies.values():
        study.run(size, initial=size)
    times: dict[str, list[float]] = {name: [] for name in studies}
    for _ in range(repeats + 1):
        for name, study in studies.items():
            times[name].append(one_trial(study, size))
    trips = round_trips(lambda: one_trial(studies["PostgreSQL"], size))
    for study in studies.values():
        study.close()
    ratios = [a / b for a, b in zip(times["PostgreSQL"][1:], times["SQLite"][1:], strict=True)]
    return {
        "trials": size,
        "measured": ACQUISITIONS[acquisition],
        "milliseconds": {n: 1e3 * statistics.median(each[1:]) for n, each in times.items()},
        "PostgreSQL / SQLite": {
            "median": statistics.median(ratios),
            "quartiles": statistics.quantiles(ratios, n=4)[::2],
        },
        "round_trips": trips,
    }


def main() -> None:
    parser = BenchmarkParser("shared_storage", __doc__, minutes=3)
    parser.add_argument("--repeats", type=int, default=20)
    arguments = parser.parse_args()
    results = []
    with tempfile.TemporaryDirectory() as folder, server(durable=True) as running:
        for acquisition in ACQUISITIONS:
            for size in SIZES:
                name = f"{acquisition}-{size}"
                places = {
                    "SQLite": Path(folder) / f"{name}.sqlite",
                    "PostgreSQL": running.address(name),
                    "memory": None,
                }
                result = measure(places, acquisition, size, arguments.repeats)
                results.append(result)
                shown = ", ".join(f"{n} {ms:.1f} ms" for n, ms in result["milliseconds"].items())
                ratio = result["PostgreSQL / SQLite"]["median"]
                print(f"{result['measured']}, {size} trials: {shown}; ratio {ratio:.2f}")
    save_results("shared_storage", {"repeats": arguments.repeats, "results": results})


if __name__ == "__main__":
    main()
