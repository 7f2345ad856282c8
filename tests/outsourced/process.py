"""A curator's service in a process of its own, and clients that load it."""

from __future__ import annotations

import multiprocessing
import random
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path

from botorch_dp.outsourced import CuratorClient, GaussianNoiseCurator, PrivateAnswers, serve
from botorch_dp.privacy import PrivacyLedger
from tests.one_draw import PLENTY
from tests.outsourced.serving import TOKEN, make_curator

EPSILON = 0.001
#: A forked process need not import torch again.
FORK = multiprocessing.get_context("fork")


def curator(folder: Path) -> GaussianNoiseCurator:
    """A curator whose answers are noisy and charged, with its log and ledger in a folder."""
    answers = PrivateAnswers(
        epsilon=EPSILON, bounds=(0.0, 1.0), ledger=PrivacyLedger(folder / "ledger", PLENTY)
    )
    return make_curator(lambda _: 0.5, answers=answers, log=folder / "log.sqlite")


def run(folder: Path, port: int, started: Connection) -> None:
    serve(curator(folder), token=TOKEN, port=port, ready=started.send)


@contextmanager
def service_process(folder: Path, port: int = 0) -> Iterator[tuple[str, BaseProcess]]:
    """The address of a service and its process, which ends with the block."""
    reading, writing = FORK.Pipe(duplex=False)
    process = FORK.Process(target=run, args=(folder, port, writing))
    process.start()
    writing.close()
    try:
        yield reading.recv(), process
    finally:
        process.terminate()
        process.join(60)
        assert process.exitcode is not None, "the service did not end"


def load(url: str, questions: int, clients: int) -> tuple[list[dict[int, float]], list[float]]:
    """What each client was answered to the same questions, each in an order of its own.

    Returns:
        For each client its answers by question, and how many seconds each request took.
    """
    seconds: list[float] = []

    def ask(client: int) -> dict[int, float]:
        remote = CuratorClient(url, token=TOKEN, patience=120.0)
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
