"""A cheap problem with module-level oracles, so that other processes can call them."""

from __future__ import annotations

import math
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from botorch_dp.pareto import PrivacyUtilityProblem, TrainingPrivacy
from botorch_dp.space import Config, Integer, Real, SearchSpace

SPACE = SearchSpace(noise=Real(0.1, 10.0, log=True), epochs=Integer(1, 20))


def epsilon(config: Config) -> float:
    return math.sqrt(config["epochs"]) / config["noise"]


def expected_error(config: Config) -> float:
    """Falls with epochs and rises with noise, from about .1 to 1."""
    return float(1 / (1 + math.exp(0.3 - 0.6 * config["noise"] + 0.5 * math.log(config["epochs"]))))


def utility(config: Config, seed: int) -> float:
    noise = 0.02 * np.random.default_rng(seed).standard_normal()
    return float(np.clip(1 - expected_error(config) + noise, 0, 1))


@dataclass(frozen=True)
class Slow:
    """The utility, after some time."""

    seconds: float

    def __call__(self, config: Config, seed: int) -> float:
        time.sleep(self.seconds)
        return utility(config, seed)


@dataclass(frozen=True)
class KillsOnce:
    """The utility, except that the first call ends its process; the marker file remembers it."""

    marker: str

    def __call__(self, config: Config, seed: int) -> float:
        try:
            os.close(os.open(self.marker, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return utility(config, seed)
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError("unreachable")


def problem(
    train: Callable[[Config, int], Any] | None = utility, *, replicates: int = 1, **options: Any
) -> PrivacyUtilityProblem:
    """The problem; options of its training may be given directly."""
    names = [each.name for each in fields(TrainingPrivacy)]
    training = TrainingPrivacy(**{name: options.pop(name) for name in names if name in options})
    options = {"privacy": epsilon, "name": "toy", "training": training} | options
    return PrivacyUtilityProblem(SPACE, utility=train, replicates=replicates, **options)
