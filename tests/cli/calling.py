"""What the tests of the command line share: the script, a call in process, a problem."""

from __future__ import annotations

import sys
from pathlib import Path

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


def call(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main(list(arguments))
    captured = capsys.readouterr()
    return code, captured.out, captured.err
