"""A service of several workers in processes of its own, and clients that load it.

python -m tests.outsourced.fleet FOLDER WORKERS
"""

from __future__ import annotations

import random
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from botorch_dp.outsourced import CuratorClient, GaussianNoiseCurator, PrivateAnswers, serve
from botorch_dp.privacy import PrivacyLedger
from tests.one_draw import PLENTY
from tests.outsourced.serving import TOKEN, make_curator

EPSILON = 0.001


def curator(folder: Path) -> GaussianNoiseCurator:
    """A curator whose answers are noisy and charged; the same log and ledger in each process."""
    answers = PrivateAnswers(
        epsilon=EPSILON, bounds=(0.0, 1.0), ledger=PrivacyLedger(folder / "ledger", PLENTY)
    )
    return make_curator(lambda _: 0.5, answers=answers, log=folder / "log.sqlite")


def main() -> None:
    folder, workers = Path(sys.argv[1]), int(sys.argv[2])
    serve(
        partial(curator, folder),
        token=TOKEN,
        port=0,
        workers=workers,
        rate=1e6,
        burst=10**6,
        ready=partial(print, flush=True),
    )


@contextmanager
def fleet(folder: Path, workers: int) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """The address of a service and its parent process; both end with the block."""
    command = [sys.executable, "-m", "tests.outsourced.fleet", str(folder), str(workers)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        assert url, "the service did not start"
        CuratorClient(url, token=TOKEN, timeout=20.0, patience=300.0).status()
        yield url, process
    finally:
        process.terminate()
        process.wait(timeout=60)


def worker_processes(parent: int) -> list[int]:
    """Workers of a service, by the numbers of their processes."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = entry.read_text().rpartition(")")[2].split()
            command = (entry.parent / "cmdline").read_text()
        except OSError:
            continue
        if int(fields[1]) == parent and "spawn_main" in command:
            found.append(int(entry.parent.name))
    return found


def load(url: str, questions: int, clients: int) -> tuple[list[dict[int, float]], list[float]]:
    """What each client was answered to the same questions, each in an order of its own.

    Returns:
        For each client its answers by question, and how many seconds each request took.
    """
    seconds: list[float] = []

    def ask(client: int) -> dict[int, float]:
        remote = CuratorClient(url, token=TOKEN)
        order = list(range(questions))
        random.Random(client).shuffle(order)
        answers = {}
        for number in order:
            start = time.perf_counter()
            answers[number] = remote.query(number % 30, request_id=f"question {number}")
            seconds.append(time.perf_counter() - start)
        return answers

    with ThreadPoolExecutor(clients) as pool:
        return list(pool.map(ask, range(clients))), seconds


def charges(folder: Path) -> int:
    """Charges for answers."""
    with PrivacyLedger(folder / "ledger") as ledger:
        return len(ledger.entries())


if __name__ == "__main__":
    main()
