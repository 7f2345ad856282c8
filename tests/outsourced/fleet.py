"""A service of several workers in processes of its own, and clients that load it."""

from __future__ import annotations

import multiprocessing
import random
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path

from botorch_dp.outsourced import CuratorClient, GaussianNoiseCurator, PrivateAnswers, serve
from botorch_dp.privacy import PrivacyLedger
from tests.one_draw import PLENTY
from tests.outsourced.serving import TOKEN, make_curator

EPSILON = 0.001
#: A forked parent need not import torch again; its workers, which are spawned, must.
FORK = multiprocessing.get_context("fork")


def curator(folder: Path) -> GaussianNoiseCurator:
    """A curator whose answers are noisy and charged; the same log and ledger in each process."""
    answers = PrivateAnswers(
        epsilon=EPSILON, bounds=(0.0, 1.0), ledger=PrivacyLedger(folder / "ledger", PLENTY)
    )
    return make_curator(lambda _: 0.5, answers=answers, log=folder / "log.sqlite")


def run(folder: Path, workers: int, started: Connection) -> None:
    serve(
        partial(curator, folder),
        token=TOKEN,
        port=0,
        workers=workers,
        rate=1e6,
        burst=10**6,
        ready=started.send,
    )


@contextmanager
def fleet(folder: Path, workers: int) -> Iterator[tuple[str, BaseProcess]]:
    """The address of a service and its parent process; both end with the block."""
    reading, writing = FORK.Pipe(duplex=False)
    process = FORK.Process(target=run, args=(folder, workers, writing))
    process.start()
    writing.close()
    try:
        url = reading.recv()
        CuratorClient(url, token=TOKEN, timeout=20.0, patience=300.0).status()
        yield url, process
    finally:
        process.terminate()
        process.join(60)
        assert process.exitcode is not None, "the service did not end"


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
