"""What is lost when things break: kills, flipped bits, full disks, hostile requests, fuzzed calls.

``make faults`` takes some minutes and prints one table: what was tried, and what was lost. Lost is
what was acknowledged and is gone or different, what a file says otherwise without an error, a
request that was answered as it must not be, and a call that ended as no caller should see.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import torch
from gpytorch.kernels import RBFKernel

from benchmarks.common import save_results
from botorch_dp.outsourced import CuratorClient, Modeler, load_dataset, save_dataset
from botorch_dp.pareto import DPareto
from botorch_dp.privacy import PrivacyBudget, PrivacyLedger, laplace_guarantee
from botorch_dp.privacy.runs import Run
from tests.one_draw import in_fork
from tests.outsourced.serving import connected, make_curator, question, raw, serving
from tests.pareto import toy

ROWS = torch.rand(40, 2, dtype=torch.double, generator=torch.Generator().manual_seed(0))
PRICE = laplace_guarantee(sensitivity=1.0, epsilon=0.125)
PLENTY = PrivacyBudget(1e5, 1e-6)


# One file of each kind: how to write to it without end, and all that it says.


def charge(path: Path, written: Callable[[], None]) -> None:
    with PrivacyLedger(path, PLENTY) as ledger:
        while True:
            ledger.release(PRICE, lambda: 1.5, key=f"value {len(ledger.entries())}")
            written()


def charges(path: Path) -> list[Any]:
    with PrivacyLedger(path) as ledger:
        ledger.spent()
        values = ledger._file.query("SELECT key FROM released ORDER BY key")
        known = [ledger._door.find(key) for (key,) in values]
        return [(e.number, e.key, e.epsilon, e.label) for e in ledger.entries()][: len(known)]


def store(path: Path, written: Callable[[], None]) -> None:
    with Run(path, what="a run", settings={"a": 1}) as run:
        number = len(run.items("item"))
        while True:
            run.add("item", number, {"rows": ROWS[:4], "number": number})
            written()
            number += 1


def stored(path: Path) -> list[Any]:
    with Run(path, what="a run", settings={"a": 1}) as run:
        items = [(n, v["number"], v["rows"].tolist()) for n, v in run.items("item").items()]
        return [run.identity, *items]


def train(path: Path, written: Callable[[], None]) -> None:
    with DPareto(toy.problem(), acquisition="random", storage=path, seed=0) as study:
        while True:
            study.run(len(study.trials) + 1)
            written()


def trained(path: Path) -> list[Any]:
    with DPareto(toy.problem(), acquisition="random", storage=path, seed=0) as study:
        return [(t.number, t.config, t.utilities) for t in study.trials if t.state == "complete"]


def ask(path: Path, written: Callable[[], None]) -> None:
    with closing(make_curator(log=path)) as curator:
        while True:
            curator.query(curator.num_queries % 30, request_id=f"q{curator.num_queries}")
            written()


def asked(path: Path) -> list[Any]:
    with closing(make_curator(log=path)) as curator:
        entries = [query for query in curator.query_log() if query.answered]
        return [(q.number, q.index, curator.query(q.index, request_id=q.request)) for q in entries]


def _modeler(path: Path) -> Modeler:
    modeler = Modeler(ROWS, kernel=RBFKernel(), noise_std=0.1, delta=0.1)
    modeler.resume(path)
    return modeler


def search(path: Path, written: Callable[[], None]) -> None:
    with closing(_modeler(path)) as modeler:
        while True:
            modeler.tell(modeler.ask(), 0.5)
            written()


def searched(path: Path) -> list[Any]:
    with closing(_modeler(path)) as modeler:
        return [(answer.index, answer.y) for answer in modeler.history]


KINDS: dict[str, tuple[Callable[..., None], Callable[[Path], list[Any]]]] = {
    "ledger": (charge, charges),
    "checkpoint": (store, stored),
    "study": (train, trained),
    "curator's log": (ask, asked),
    "modeler's checkpoint": (search, searched),
}


class Enough(BaseException):
    """So much was written."""


def filled(kind: str, path: Path, count: int) -> list[Any]:
    left = count

    def written() -> None:
        nonlocal left
        left -= 1
        if left <= 0:
            raise Enough

    with suppress(Enough):
        KINDS[kind][0](path, written)
    return KINDS[kind][1](path)


# Faults


def kills(folder: Path, kind: str, count: int, rng: random.Random) -> tuple[int, int]:
    """Writers killed at random moments: what they had acknowledged is there, in order."""
    path, lost, before = folder / "killed", 0, 0
    filled(kind, path, 1)
    before = len(KINDS[kind][1](path))
    for _ in range(count):
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            with suppress(BaseException):
                KINDS[kind][0](path, lambda end=writing: os.write(end, b"."))
            os._exit(1)
        os.close(writing)
        seen = len(os.read(reading, 1))
        start = time.perf_counter()
        seen += len(os.read(reading, 1))
        time.sleep(rng.random() * 2 * (time.perf_counter() - start))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        while chunk := os.read(reading, 4096):
            seen += len(chunk)
        os.close(reading)
        now = len(KINDS[kind][1](path))
        lost += max(0, before + seen - now)
        before = now
    return count, lost


def flips(folder: Path, kind: str, count: int, rng: random.Random) -> tuple[int, int, int]:
    """Bits flipped in a file: an error, or the same as before."""
    path, broken = folder / "whole", folder / "broken"
    if kind == "data set":
        save_dataset(path, make_curator().dataset)
        read: Callable[[Path], Any] = lambda p: load_dataset(p).value.tolist()  # noqa: E731
        whole = read(path)
    else:
        whole, read = filled(kind, path, 12), KINDS[kind][1]
    content, lost, noticed = path.read_bytes(), 0, 0
    for _ in range(count):
        damaged = bytearray(content)
        damaged[rng.randrange(len(damaged))] ^= 1 << rng.randrange(8)
        broken.write_bytes(bytes(damaged))
        try:
            lost += read(broken) != whole
        except (ValueError, RuntimeError):
            noticed += 1
    return count, lost, noticed


def full_disk(folder: Path, kind: str, count: int, rng: random.Random) -> tuple[int, int]:
    """Files that may not grow any more, from some write on: an error, and the last good state."""
    lost = 0
    for number in range(count):
        path = folder / f"full {number}"
        before = filled(kind, path, 2)
        reading, writing = os.pipe()

        def work(path: Path = path, writing: int = writing) -> bool:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            limit = os.path.getsize(path) + rng.randrange(0, 3) * 4096 + 512
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
            try:
                KINDS[kind][0](path, lambda: os.write(writing, b"."))
            except Exception as error:
                return "disk" in str(error) or "write" in str(error) or "space" in str(error)
            return False

        said_so = in_fork(work)
        os.close(writing)
        seen = 0
        while chunk := os.read(reading, 4096):
            seen += len(chunk)
        os.close(reading)
        after = KINDS[kind][1](path)
        kept = after[: len(before)] == before and len(after) >= len(before) + seen
        lost += not (said_so is True and kept)
    return count, lost


def hostile_requests(count: int, rng: random.Random) -> tuple[int, int]:
    """Junk, half requests and guesses: no row leaves, and the owner of the token gets in."""
    lost = 0
    with serving(make_curator(), request_seconds=0.3, connections=20, rate=1e5) as url:
        for number in range(count):
            body = bytes(rng.randrange(256) for _ in range(rng.randrange(200)))
            kind = number % 4
            if kind == 0:
                status = raw(url, "POST", "/query", body, token="guess" * 5)[0]
                lost += status not in (401, 429)
            elif kind == 1:
                lost += raw(url, "POST", "/query", body)[0] != 400
            elif kind == 2:
                with suppress(OSError), connected(url, body) as stranger:
                    stranger.settimeout(0.05)
                    lost += b"200 OK" in stranger.recv(1000)
            else:
                connected(url, b"POST /query HTTP/1.1\r\nContent-Le").close()
            if number % 20 == 0:
                lost += raw(url, "POST", "/query", question(1, "mine"))[0] != 200
    return count, lost


def hostile_answers(count: int, rng: random.Random) -> tuple[int, int]:
    """A curator that sends junk: the client raises one of its named errors, in time."""
    import socket
    import threading

    from botorch_dp.outsourced import CuratorRefusal, UnreadableResponse

    lost = 0
    server = socket.create_server(("127.0.0.1", 0))
    junk = b""

    def answer() -> None:
        with suppress(OSError):
            while True:
                peer, _ = server.accept()
                with peer, suppress(OSError):
                    peer.recv(65536)
                    peer.sendall(junk)

    threading.Thread(target=answer, daemon=True).start()
    remote = CuratorClient(
        f"http://127.0.0.1:{server.getsockname()[1]}", token="x" * 20, timeout=1, patience=0.3
    )
    heads = (b"", b"HTTP/1.1 200 OK\r\n\r\n", b"HTTP/1.1 302 X\r\nLocation: /\r\n\r\n")
    for _ in range(count):
        junk = rng.choice(heads) + bytes(rng.randrange(256) for _ in range(rng.randrange(100)))
        ask = rng.choice((lambda: remote.query(1), remote.status, remote.dataset))
        try:
            ask()
            lost += 1
        except (CuratorRefusal, UnreadableResponse, ConnectionError):
            pass
        except Exception:
            lost += 1
    server.close()
    return count, lost


def fuzzed(examples: int, number: int) -> tuple[int, int]:
    """Calls of everything public with anything; see ``tests/fuzzing.py``."""
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        command = [sys.executable, "-m", "tests.fuzzing", "--json", file.name]
        command += ["--examples", str(examples), "--seed", str(number)]
        subprocess.run(command, capture_output=True, check=False)
        counts = json.loads(Path(file.name).read_text())
    bad = sum(counts[kind] for kind in ("crash", "nameless", "NaN", "hang"))
    return bad + counts["result"] + counts["refusal"], bad


def table(scale: float, *, number: int = 0, calls: int = 20) -> list[dict[str, Any]]:
    """All faults; ``scale`` multiplies how many."""
    rng = random.Random(number)
    rows: list[dict[str, Any]] = []

    def add(fault: str, where: str, tried: int, lost: int, noticed: int | None = None) -> None:
        rows.append({"fault": fault, "where": where, "tried": tried, "lost": lost})
        if noticed is not None:
            rows[-1]["noticed"] = noticed
        print(f"{fault:18} {where:22} {tried:7} tried {lost:5} lost", flush=True)

    folder = Path(tempfile.mkdtemp())
    try:
        for kind in KINDS:
            place = folder / kind
            place.mkdir()
            add("kill -9", kind, *kills(place, kind, max(2, int(20 * scale)), rng))
            add("full disk", kind, *full_disk(place, kind, max(2, int(6 * scale)), rng))
        for kind in (*KINDS, "data set"):
            place = folder / f"flips {kind}"
            place.mkdir()
            add("flipped bit", kind, *flips(place, kind, max(20, int(300 * scale)), rng))
    finally:
        shutil.rmtree(folder)
    add("hostile request", "service", *hostile_requests(max(40, int(400 * scale)), rng))
    add("hostile answer", "client", *hostile_answers(max(10, int(60 * scale)), rng))
    if calls:
        add("fuzzed call", "everything public", *fuzzed(calls, number))
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--calls", type=int, default=20, help="fuzzed calls of each callable")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = table(options.scale, number=options.seed, calls=options.calls)
    save_results("faults", {"rows": rows, "scale": options.scale, "seed": options.seed})
    return int(any(row["lost"] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
