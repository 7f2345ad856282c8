"""Anything may be passed to anything: a result, or an error that names the argument."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from botorch_dp._checks import checked
from tests import fuzzing
from tests.fuzzing import Target, judged, targets

ROOT = Path(__file__).resolve().parents[1]


def test_everything_public_is_found() -> None:
    names = {target.name for target in targets()}
    assert len(names) > 400
    for name in (
        "botorch_dp.PrivateSearch",
        "botorch_dp.PrivateSearch.run",
        "botorch_dp.PrivacyLedger.guarantee",
        "botorch_dp.objectives.EstimatorScores.__call__",
        "botorch_dp.privacy.gaussian_mechanism",
        "botorch_dp.outsourced.serve",
        "botorch_dp.Guarantee.from_dict",
    ):
        assert name in names


@pytest.mark.timeout(900)
def test_a_few_calls_of_everything() -> None:
    """In a process of its own, which may be killed and whose memory is bounded."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.fuzzing", "--examples", "4"],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=800,
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-300:]


# What the fuzzer itself notices


@checked
def fine(number: float = 1.0) -> float:
    if not math.isfinite(number):
        raise ValueError("`number` must be finite.")
    return number


def crashes(number: float = 1.0) -> float:
    return {}[number]  # type: ignore[index]


def nameless(number: float = 1.0) -> float:
    raise ValueError("something is wrong")


def is_nan(number: float = 1.0) -> torch.Tensor:
    return torch.tensor([math.nan])


def hangs(number: float = 1.0) -> None:
    while True:
        pass


@pytest.mark.parametrize(
    ("function", "verdict"),
    [
        (fine, "result"),
        (crashes, "crash"),
        (nameless, "nameless"),
        (is_nan, "NaN"),
        (hangs, "hang"),
    ],
)
def test_broken_twins_are_noticed(
    monkeypatch: pytest.MonkeyPatch, function: object, verdict: str
) -> None:
    target = Target("a.function", fuzzing._parameters(function))
    monkeypatch.setattr(Target, "function", lambda _: function)
    with fuzzing.alarms():
        assert judged(target, {"number": lambda: 2.0}, 0.3)[0] == verdict
        if function is fine:
            assert judged(target, {"number": lambda: "2"}, 0.3)[0] == "refusal"
            assert judged(target, {"number": lambda: 10**400}, 0.3)[0] == "refusal"
