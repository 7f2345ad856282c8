"""What the tests of the command line share: the script, a call in process, a problem."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import pytest

from botorch_dp.cli import main

SCRIPT = Path(sys.executable).parent / "botorch-dp"

OWN_PROBLEM = """
from botorch_dp.pareto import PrivacyUtilityProblem, Real, SearchSpace

def epsilon(config):
    return 1 / config["noise"]

def utility(config, seed):
    import time
    time.sleep({seconds})
    with open("trained", "a") as file:
        file.write(".")
    return 1 / (1 + config["noise"])

def problem():
    return PrivacyUtilityProblem(
        SearchSpace(noise=Real(0.1, 10.0, log=True)), privacy=epsilon, utility=utility
    )

not_a_problem = 3
"""


@dataclass(frozen=True)
class Forked:
    """A command in a process of its own."""

    pid: int
    out: IO[str]
    err: Path

    def interrupted(self) -> int:
        """Its exit code after Ctrl-C."""
        os.kill(self.pid, signal.SIGINT)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


@contextmanager
def forked(folder: Path, *arguments: str) -> Iterator[Forked]:
    """A command in a fork, which need not import anything again; what it says goes to pipes."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.chdir(folder)
            sys.stdout = os.fdopen(writing, "w", buffering=1)
            sys.stderr = (folder / "stderr").open("w", buffering=1)
            # Tests that a shell runs in the background inherit that Ctrl-C is ignored.
            signal.signal(signal.SIGINT, signal.default_int_handler)
            code = main(list(arguments))
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    os.close(writing)
    with os.fdopen(reading) as out:
        try:
            yield Forked(child, out, folder / "stderr")
        finally:
            with suppress(ChildProcessError):  # it has been waited for
                if os.waitpid(child, os.WNOHANG) == (0, 0):
                    os.kill(child, signal.SIGKILL)
                    os.waitpid(child, 0)


def call(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main(list(arguments))
    captured = capsys.readouterr()
    return code, captured.out, captured.err
