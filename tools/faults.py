"""What is lost when things break: kills, torn writes, flipped bits, full disks.

``make faults`` takes some minutes and prints one table: what was tried, and what was lost. Lost is
what was acknowledged and is gone or different, noise that was drawn without a charge of its own,
what a file says otherwise without an error, a request that was answered as it must not be, and a
call that ended as no caller should see.
"""

from __future__ import annotations

import argparse
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
from gpytorch.kernels import RBFKernel

from benchmarks.common import save_results
from botorch_dp import _files
from botorch_dp.outsourced import (
    FileCurator,
    Modeler,
    answer_questions,
    load_dataset,
    save_dataset,
)
from botorch_dp.outsourced.exchange import _read_lines
from botorch_dp.pareto import DPareto
from botorch_dp.privacy import PrivacyBudget, PrivacyLedger, laplace_guarantee
from botorch_dp.privacy.runs import Run
from botorch_dp.privacy.selection import TrialNumber
from tests import one_draw
from tests.disk import Disk
from tests.one_draw import OneDraw, in_fork
from tests.outsourced.serving import make_curator
from tests.pareto import test_charges as paying
from tests.pareto import toy

ROWS = torch.rand(40, 2, dtype=torch.double, generator=torch.Generator().manual_seed(0))
MANY = torch.rand(2000, 2, dtype=torch.double, generator=torch.Generator().manual_seed(1))
PRICE = laplace_guarantee(sensitivity=1.0, epsilon=0.125)
PLENTY = PrivacyBudget(1e5, 1e-6)

#: Takes down that noise was "drawn", or that something was "written".
Tell = Callable[[str], Any]


# One file of each kind: how to write to it without end, and all that it says.


def draw(tell: Tell) -> float:
    tell("drawn")
    return int.from_bytes(os.urandom(6)) / 2**48


def charge(path: Path, tell: Tell) -> None:
    with PrivacyLedger(path, PLENTY) as ledger:
        while True:
            key = f"value {len(_released(ledger))} of {os.getpid()}"
            ledger.release(PRICE, lambda: draw(tell), key=key)
            tell("written")


def _released(ledger: PrivacyLedger) -> list[Any]:
    rows = ledger._file.query("SELECT key FROM released ORDER BY rowid")
    return [(key, ledger._store._stored(key)) for (key,) in rows]


def released(path: Path) -> list[Any]:
    with PrivacyLedger(path) as ledger:
        ledger.spent()
        return _released(ledger)


def charges(path: Path) -> int:
    with PrivacyLedger(path) as ledger:
        assert ledger.spent()[0] == 0.125 * len(ledger.entries())
        return len(ledger.entries())


def store(path: Path, tell: Tell) -> None:
    with Run(path, what="a run", settings={"a": 1}) as run:
        number = len(run.items("item"))
        while True:
            value = run.release(PRICE, lambda: draw(tell), key=f"value {number}")
            run.add("item", number, {"rows": ROWS[:4], "number": number, "value": value})
            tell("written")
            number += 1


def stored(path: Path) -> list[Any]:
    with Run(path, what="a run", settings={"a": 1}) as run:
        items = run.items("item").items()
        return [(n, v["number"], v["rows"].tolist(), v["value"]) for n, v in items]


def train(path: Path, tell: Tell) -> None:
    with DPareto(toy.problem(), acquisition="random", storage=path, seed=0) as study:
        while True:
            study.run(len(study.trials) + 1)
            tell("written")


def trained(path: Path) -> list[Any]:
    with DPareto(toy.problem(), acquisition="random", storage=path, seed=0) as study:
        return [(t.number, t.config, t.utilities) for t in study.trials if t.state == "complete"]


def pay(path: Path, tell: Tell) -> None:
    class Trains(paying.Trains):
        def __call__(self, config: Any, seed: int) -> float:
            tell("drawn")
            return super().__call__(config, seed)

    with paying.study(Trains(), PrivacyBudget(1e4, 1e-6), storage=path) as study:
        while True:
            study.run(len(study.trials) + 1)
            tell("written")


def paid(path: Path) -> list[Any]:
    with paying.study(budget=PrivacyBudget(1e4, 1e-6), storage=path) as study:
        return [(t.number, t.config, t.utilities) for t in study.trials if t.state == "complete"]


def paid_charges(path: Path) -> int:
    with paying.study(budget=PrivacyBudget(1e4, 1e-6), storage=path) as study:
        assert study.ledger is not None
        return len(study.ledger.entries())


def ask(path: Path, tell: Tell) -> None:
    with closing(make_curator(log=path)) as curator:
        while True:
            curator.query(curator.num_queries % 30, request_id=f"q{curator.num_queries}")
            tell("written")


def asked(path: Path) -> list[Any]:
    with closing(make_curator(log=path)) as curator:
        return [
            (number, index, curator.query(index, request_id=request))
            for request, (number, index) in curator._queries.items()
            if number in curator._answers
        ]


def _modeler(path: Path) -> Modeler:
    modeler = Modeler(ROWS, kernel=RBFKernel(), noise_std=0.1, delta=0.1)
    modeler.resume(path)
    return modeler


def search(path: Path, tell: Tell) -> None:
    with closing(_modeler(path)) as modeler:
        while True:
            modeler.tell(modeler.ask(), 0.5)
            tell("written")


def searched(path: Path) -> list[Any]:
    with closing(_modeler(path)) as modeler:
        return [(answer.index, answer.y) for answer in modeler.history]


def publish(path: Path, tell: Tell) -> None:
    number = len(published(path))
    while True:
        number += 20
        release = make_curator().dataset
        save_dataset(path, type(release)(MANY[:number].clone(), release.guarantee))
        tell("written")


def published(path: Path) -> list[Any]:
    return load_dataset(path).value.tolist() if path.exists() else []


def exchange(path: Path, tell: Tell) -> None:
    questions, curator = path.with_name("questions"), make_curator()
    number = len(exchanged(path))
    while True:
        remote = FileCurator(questions, path, timeout=1e-3, interval=1e-3)
        with suppress(TimeoutError):
            remote.query(number % 30, request_id=f"q{number}")
        answer_questions(curator, questions, path)
        remote.query(number % 30, request_id=f"q{number}")
        tell("written")
        number += 1


def exchanged(path: Path) -> list[Any]:
    questions = path.with_name("questions")
    if questions.exists():
        answer_questions(make_curator(), questions, path)  # what is left of the questions
    entries = _read_lines(path) if path.exists() else []
    return sorted({int(entry["request_id"][1:]): entry["y"] for entry in entries}.items())


@dataclass(frozen=True)
class Kind:
    """A kind of file.

    Args:
        write: Goes on for ever.
        read: What was written, in order.
        charges: How many charges there are, where each draw has one.
    """

    write: Callable[[Path, Tell], None]
    read: Callable[[Path], list[Any]]
    charges: Callable[[Path], int] | None = None


KINDS = {
    "ledger": Kind(charge, released, charges),
    "checkpoint": Kind(store, stored),
    "study": Kind(train, trained),
    "paid study": Kind(pay, paid, paid_charges),
    "curator's log": Kind(ask, asked),
    "modeler's checkpoint": Kind(search, searched),
    "data set": Kind(publish, published),
    "exchange by files": Kind(exchange, exchanged),
}
#: Those in which any value may be the wrong one without a checksum.
SEALED = [kind for kind in KINDS if kind != "paid study"]


class Enough(BaseException):
    """So much was written."""


def filled(kind: str, path: Path, count: int, tell: Tell = lambda _: None) -> list[Any]:
    left = count

    def told(what: str) -> None:
        nonlocal left
        tell(what)
        left -= what == "written"
        if left <= 0:
            raise Enough

    with suppress(Enough):
        KINDS[kind].write(path, told)
    return KINDS[kind].read(path)


# Faults


def charged(kind: str, path: Path) -> int:
    """How many charges there are; 0 where none are counted."""
    count = KINDS[kind].charges
    return 0 if count is None else count(path)


def kept(kind: str, path: Path, whole: list[Any] | None, written: int, drawn: int) -> bool:
    """Whether all that was written is there, and nothing else, and all that was drawn is paid."""
    read = KINDS[kind].read(path)
    same = whole is None or read == whole[: len(read)]
    paid = KINDS[kind].charges is None or charged(kind, path) >= drawn
    return same and len(read) >= written and paid


def told_to(pipe: int) -> Tell:
    """Tells whoever reads a pipe, by one letter each."""
    return lambda what: os.write(pipe, what[:1].encode())


def kills(
    folder: Path, kind: str, count: int, rng: random.Random, *, writers: int = 1
) -> tuple[int, int]:
    """Writers killed at random moments: what they had acknowledged is there, in order."""
    path, lost = folder / "killed", 0
    filled(kind, path, 1)
    drawn = charged(kind, path)
    before = KINDS[kind].read(path)
    for _ in range(count):
        reading, writing = os.pipe()
        children = []
        for _ in range(writers):
            children.append(os.fork())
            if children[-1] == 0:
                with suppress(BaseException):
                    KINDS[kind].write(
                        path, lambda what, end=writing: os.write(end, what[:1].encode())
                    )
                os._exit(1)
        os.close(writing)
        seen, start = b"", time.perf_counter()
        while seen.count(b"w") < 2 and (more := os.read(reading, 1)):
            seen += more
        time.sleep(rng.random() * (time.perf_counter() - start))
        for child in children:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        while chunk := os.read(reading, 4096):
            seen += chunk
        os.close(reading)
        drawn += seen.count(b"d")
        now = KINDS[kind].read(path)
        # What one process has left, another one may finish later.
        same = now[: len(before)] == before or (writers > 1 and all(b in now for b in before))
        good = same and len(now) >= len(before) + seen.count(b"w")
        lost += not (good and kept(kind, path, None, 0, drawn))
        before = now
    return count * writers, lost


@contextmanager
def cases() -> Iterator[dict[str, OneDraw]]:
    """Runs with a ledger and a checkpoint, from the tests of one draw."""
    from tests.descent.test_one_draw import TestDPGIBO
    from tests.outsourced.test_answers import TestOneRelease
    from tests.training.test_checkpoint import TestPublished
    from tests.tuning.test_one_draw import TestFit, TestSelection

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TrialNumber, "draw", lambda self: 2)  # each run writes as often as any other
        yield {
            "DPGIBO": TestDPGIBO(),
            "PrivateSearch": TestSelection(),
            "PrivateFit": TestFit(),
            "published training": TestPublished(),
            "paid study": paying.TestOneDraw(),
            "curator": TestOneRelease(),
        }


def kills_between_writes(folder: Path, case: OneDraw, share: float) -> tuple[int, int]:
    """Runs killed in front of each commit, or of a share of them: one value, one charge a draw."""
    folder.mkdir()
    lost = 0
    with pytest.MonkeyPatch.context() as patch:
        disk = one_draw.Disk(patch)
        commits = case.commits(folder / "dry", disk)
        chosen = range(1, commits + 1, max(1, round(1 / share)))
        for at in chosen:
            try:
                case.kill_at(at, folder / str(at), disk)
            except Exception:
                lost += 1
            disk.at = None
    return len(chosen), lost


def torn(
    folder: Path, kind: str, *, count: int, cuts: int, powers: int, rng: random.Random
) -> tuple[tuple[int, int], tuple[int, int]]:
    """Each write cut in the middle, and each moment a power cut: what was acknowledged is there.

    Returns:
        How many of each were tried, and how many lost something; an error is a loss, too.
    """
    (folder / "disk").mkdir(parents=True)
    path = folder / "disk" / "file"
    with Disk(folder / "disk") as disk:

        def told(what: str) -> None:  # what was told before a crash has happened
            numbers[what] += 1
            disk.tell(what, numbers[what])

        filled(kind, path, 1)  # a first one that is there already
        numbers = {"drawn": charged(kind, path), "written": len(KINDS[kind].read(path))}
        for what, count_so_far in numbers.items():
            disk.tell(what, count_so_far)
        filled(kind, path, count, told)
    whole = KINDS[kind].read(path)
    tried, lost = {"cut": 0, "power": 0}, {"cut": 0, "power": 0}
    for number, state in enumerate(disk.states(rng, cuts=cuts, powers=powers)):
        place = folder / str(number)
        state.write(place)
        what = "power" if "power" in state.how else "cut"
        tried[what] += 1
        if "written" not in state.told and not (place / "file").exists():
            continue
        try:
            needed = state.told.get("written", 0), state.told.get("drawn", 0)
            lost[what] += not kept(kind, place / "file", whole, *needed)
        except Exception:
            lost[what] += 1
        shutil.rmtree(place)
    return (tried["cut"], lost["cut"]), (tried["power"], lost["power"])


def altered(content: bytes, rng: random.Random) -> bytes:
    """A bit, some bytes or a page of a file changed, or its end cut off."""
    damaged = bytearray(content)
    place, kind = rng.randrange(len(damaged)), rng.randrange(8)
    if kind < 5:
        damaged[place] ^= 1 << rng.randrange(8)
    elif kind == 5:
        damaged[place : place + 16] = rng.randbytes(len(damaged[place : place + 16]))
    elif kind == 6:
        page = place // 512 * 512
        damaged[page : page + 512] = bytes(len(damaged[page : page + 512]))
    else:
        del damaged[place:]
    return bytes(damaged)


def flips(folder: Path, kind: str, count: int, rng: random.Random) -> tuple[int, int, int]:
    """Bits, bytes and pages changed in a file: one named error, or the same as before."""
    path, broken = folder / "whole", folder / "broken"
    whole, noticed, lost = filled(kind, path, 12), 0, 0
    content = path.read_bytes()
    for _ in range(count):
        broken.write_bytes(altered(content, rng))
        try:
            lost += KINDS[kind].read(broken) != whole
        except (ValueError, RuntimeError, LookupError) as error:
            noticed += 1
            lost += type(error).__module__.partition(".")[0] not in ("botorch_dp", "builtins")
    return count, lost, noticed


def _full_disk(path: Path, rng: random.Random) -> None:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    limit = os.path.getsize(path) + rng.randrange(0, 3) * 4096 + 512
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))


def _no_descriptors(path: Path, rng: random.Random) -> None:
    most = max(map(int, os.listdir("/proc/self/fd"))) + rng.randrange(5)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def _no_rights(path: Path, rng: random.Random) -> None:
    path.parent.chmod(0o555)
    if os.geteuid() == 0:  # whom no rights stop
        os.setuid(65534)


#: What a process is kept from, and what its error then speaks of.
SHORTAGES: dict[str, tuple[Callable[[Path, random.Random], None], tuple[str, ...]]] = {
    "full disk": (_full_disk, ("disk", "space", "large", "big")),
    "no descriptors": (_no_descriptors, ("open", "file", "disk")),
    "no rights": (_no_rights, ("permission", "Permission", "written")),
}


def shortage(folder: Path, kind: str, what: str, count: int, rng: random.Random) -> tuple[int, int]:
    """Writing that the system refuses from some moment on: an error, and the last good state."""
    limit, words = SHORTAGES[what]
    lost = 0
    for number in range(count):
        place = folder / f"{what} {number}"
        place.mkdir(parents=True)
        path = place / "file"
        before = filled(kind, path, 2)
        reading, writing = os.pipe()

        def work(path: Path = path, writing: int = writing) -> bool:
            limit(path, rng)
            try:
                filled(kind, path, 200, told_to(writing))
            except Exception as error:
                return any(word in str(error) for word in words)
            return what == "no descriptors"  # there may be just enough of them

        said_so = in_fork(work)
        path.parent.chmod(0o755)
        os.close(writing)
        seen = b""
        while chunk := os.read(reading, 4096):
            seen += chunk
        os.close(reading)
        after = KINDS[kind].read(path)
        good = after[: len(before)] == before and len(after) >= len(before) + seen.count(b"w")
        lost += not (said_so is True and good)
    return count, lost


def clock_set_back(folder: Path, kind: str) -> tuple[int, int]:
    """A clock that goes backwards all the time: nothing depends on it."""
    moment = datetime.now(UTC)

    class Clock(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> Any:
            nonlocal moment
            moment -= timedelta(days=1)
            return moment

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_files, "datetime", Clock)
        patch.setattr(time, "time", lambda: Clock.now().timestamp())
        before = filled(kind, folder / "file", 3)
        after = filled(kind, folder / "file", 3)
    return 1, int(not (after[: len(before)] == before and len(after) > len(before) >= 3))


def table(scale: float, *, number: int = 0) -> list[dict[str, Any]]:
    """All faults; ``scale`` multiplies how many."""
    rng = random.Random(number)
    rows: list[dict[str, Any]] = []

    def add(fault: str, where: str, tried: int, lost: int, noticed: int | None = None) -> None:
        rows.append({"fault": fault, "where": where, "tried": tried, "lost": lost})
        if noticed is not None:
            rows[-1]["noticed"] = noticed
        print(f"{fault:22} {where:22} {tried:7} tried {lost:5} lost", flush=True)

    def times(count: int, least: int = 1) -> int:
        return max(least, int(count * scale))

    # In memory where there is such a file system: thousands of files are made.
    top = Path(tempfile.mkdtemp(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None))
    top.chmod(0o755)

    def place(*names: str) -> Path:
        folder = top.joinpath(" ".join(names))
        folder.mkdir()
        return folder

    databases = [kind for kind in KINDS if kind not in ("data set", "exchange by files")]
    try:
        for kind in KINDS:
            add("kill -9", kind, *kills(place("kill", kind), kind, times(20), rng))
        several = kills(place("kill charging"), "ledger", times(10), rng, writers=2)
        add("kill -9", "ledger of two processes", *several)
        with cases() as found:
            for where, case in found.items():
                share = min(1.0, scale)
                killed = kills_between_writes(top / f"between {where}", case, share)
                add("kill between writes", where, *killed)
        for kind in KINDS:
            options = {"count": 3, "cuts": times(8), "powers": times(8)}
            cut, power = torn(place("torn", kind), kind, rng=rng, **options)
            add("torn write", kind, *cut)
            add("power cut", kind, *power)
        for kind in SEALED:
            add("altered file", kind, *flips(place("flips", kind), kind, times(600, 20), rng))
        for what in SHORTAGES:
            for kind in KINDS:
                add(what, kind, *shortage(place(what, kind), kind, what, times(6), rng))
        for kind in databases:
            add("clock set back", kind, *clock_set_back(place("clock", kind), kind))
    finally:
        shutil.rmtree(top)
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = table(options.scale, number=options.seed)
    save_results("faults", {"rows": rows, "scale": options.scale, "seed": options.seed})
    return int(any(row["lost"] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
