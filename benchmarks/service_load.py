"""The curator's service under load: exact counts, throughput, latency and memory.

    OMP_NUM_THREADS=1 python -m benchmarks.service_load [--questions 2000] [--clients 4]

Clients ask the same questions at once, each in an order of its own, over the loopback interface;
answers are noisy and charged to a ledger. Counted are answers that differ between clients or from
what the log replays afterwards, and charges beside one for each question: both are zero. The files
lie in memory where the machine has such a folder, so that the service is measured and not the disk;
one case puts them on the disk, which is synced five times for each question.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, closing
from pathlib import Path
from typing import Any

from benchmarks.common import BenchmarkParser, save_results
from tests.outsourced.process import charges, curator, load, service_process
from tests.outsourced.serving import memory_folder

PAGE = 4096


def resident(process: int) -> float:
    """Megabytes that a process holds."""
    return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * PAGE / 1e6


def case(
    place: Callable[[], AbstractContextManager[Any]], questions: int, clients: int
) -> dict[str, Any]:
    with place() as name:
        folder = Path(name)
        with service_process(folder) as (url, process):
            load(url, questions // 10, clients)
            before = resident(process.pid)
            start = time.perf_counter()
            found, seconds = load(url, questions, clients)
            elapsed = time.perf_counter() - start
            after = resident(process.pid)
        with closing(curator(folder)) as again:
            replayed = {
                number: again.query(number % 30, request_id=f"question {number}")
                for number in found[0]
            }
        wrong = sum(answers[n] != replayed[n] for answers in found for n in replayed)
        spare = charges(folder) - questions
    cuts = statistics.quantiles(seconds, n=100)
    return {
        "questions": questions,
        "requests": len(seconds),
        "different answers": wrong,
        "charges too many": spare,
        "requests per second": len(seconds) / elapsed,
        "milliseconds": {p: 1e3 * cuts[p - 1] for p in (50, 95, 99)},
        "megabytes at a tenth": before,
        "megabytes at the end": after,
    }


def main() -> int:
    parser = BenchmarkParser("service_load", __doc__, minutes=10)
    parser.add_argument("--questions", type=int, default=2000)
    parser.add_argument("--clients", type=int, default=4)
    options = parser.parse_args()
    few = max(20, options.questions // 20)
    rows = {}
    for name, place, questions in [
        ("in memory", memory_folder, options.questions),
        ("on the disk", tempfile.TemporaryDirectory, few),
    ]:
        rows[name] = row = case(place, questions, options.clients)
        times = ", ".join(f"{value:.0f}" for value in row["milliseconds"].values())
        print(
            f"{name:25} {row['requests']:6} requests, {row['requests per second']:6.0f} a second, "
            f"{times} ms (50%, 95%, 99%), {row['different answers']} different, "
            f"{row['charges too many']} charges too many",
            flush=True,
        )
    save_results("service_load", rows)
    return int(any(row["different answers"] or row["charges too many"] for row in rows.values()))


if __name__ == "__main__":
    raise SystemExit(main())
