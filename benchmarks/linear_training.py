"""Seeded DP-SGD and DP-Adam of linear models on 0/1 features, in C.

The mechanism is that of ``DPTrainer(sampling="without_replacement")``, and so are the models of the
ready problems on Adult, whose records have 14 ones among 123 features; ``dpareto_lead`` holds both
against each other before it measures. Random numbers are NumPy's, and nothing is ever released.
Trainings take a tenth of the processor time and less, so that studies can have the paper's sizes.
Needs a C compiler, ``cc``.
"""

from __future__ import annotations

import ctypes
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from botorch_dp.space import Config
from botorch_dp.tasks.learning import _data, training_oracles
from botorch_dp.training import TrainTest
from botorch_dp.training.oracles import TrainingOracles

_SOURCE = Path(__file__).with_suffix(".c")
#: Random numbers that are drawn at once; they stay in the cache.
_AT_ONCE = 2**16


class _Rows(ctypes.Structure):
    _fields_ = (
        ("starts", ctypes.c_void_p),
        ("columns", ctypes.c_void_p),
        ("signs", ctypes.c_void_p),
        ("n", ctypes.c_int32),
    )


class _State(ctypes.Structure):
    _fields_ = (
        ("weights", ctypes.c_void_p),
        ("first", ctypes.c_void_p),
        ("second", ctypes.c_void_p),
        ("decays", ctypes.c_double * 2),
    )


class Compiled:
    """A data set in the form that the compiled loop takes.

    Args:
        data: Features 0 or 1, at most 255 of them.
    """

    def __init__(self, data: TrainTest) -> None:
        X, Y = data.train_X.numpy(), data.train_Y.numpy()
        if X.shape[1] > 255 or not ((X == 0) | (X == 1)).all():
            raise ValueError("The compiled loop takes at most 255 features, each of them 0 or 1.")
        self._arrays = (
            np.concatenate([[0], X.sum(axis=1).cumsum()]).astype(np.int32),
            X.nonzero()[1].astype(np.uint8),
            np.where(Y > 0, 1, -1).astype(np.int8),
        )
        self._rows = _Rows(*map(_address, self._arrays), len(X))
        self._test_X, self._test_Y = data.test_X.numpy(), data.test_Y.numpy() > 0

    def accuracies(
        self,
        seed: int,
        steps: Sequence[int],
        *,
        batch_size: int,
        learning_rate: float,
        clip_norm: float,
        noise_multiplier: float,
        hinge: bool = False,
        adam: bool = False,
        start: tuple[float, float] = (0.0, 0.0),
    ) -> list[float]:
        """Test accuracies after these numbers of steps, which rise.

        ``start`` has the standard deviations of the initial weights and of the initial intercept.
        """
        rng = np.random.Generator(np.random.SFC64(seed))
        dim = self._test_X.shape[1] + 1
        weights, moments = np.zeros(dim, dtype=np.float32), np.zeros((2, dim))
        if any(start):
            weights[:-1] = rng.normal(0, start[0], dim - 1)
            weights[-1] = rng.normal(0, start[1])
        state = _State(*map(_address, (weights, *moments)), (1.0, 1.0))
        order = np.arange(self._rows.n, dtype=np.int32)
        settings = (
            *(dim, batch_size),
            *map(ctypes.c_double, (learning_rate, clip_norm, clip_norm * noise_multiplier)),
            *(hinge, adam),
        )
        found, done = [], 0
        for checkpoint in steps:
            while done < checkpoint:
                count = min(checkpoint - done, max(1, _AT_ONCE // max(dim, batch_size)))
                picks = rng.integers(2**32, size=(count, batch_size), dtype=np.uint32)
                noise = rng.standard_normal((count, dim), dtype=np.float32)
                _library().train(
                    ctypes.byref(self._rows),
                    ctypes.byref(state),
                    _address(order),
                    *settings,
                    ctypes.c_int64(count),
                    _address(picks),
                    _address(noise),
                )
                done += count
            scores = self._test_X @ weights[:-1] + weights[-1]
            right = np.isfinite(scores) & ((scores > 0) == self._test_Y)
            found.append(float(right.mean()))
        return found


def _address(array: np.ndarray) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)


@dataclass(frozen=True)
class Training(TrainingOracles):
    """The oracles of a ready task, and what they are of."""

    model: str = ""
    data: str = ""
    optimizer: str = ""

    @classmethod
    def of(cls, model: str, data: str, optimizer: str) -> Training:
        oracles = training_oracles(model, data, optimizer)
        return cls(oracles.trainer, oracles.settings, False, model, data, optimizer)


class FastTraining(Training):
    """The oracles of a linear model on Adult, from the compiled loop."""

    def utilities(self, config: Config, seeds: Sequence[int]) -> list[float]:
        """Test accuracies of one model for each seed."""
        data, steps = _compiled(self.data), [self.plan(config).steps]
        settings: Any = self.settings(config)
        options: Any = {name: settings[name] for name in _OPTIONS}
        options |= {"hinge": self.model == "svm", "adam": self.optimizer == "adam"}
        return [data.accuracies(seed, steps, **options)[0] for seed in seeds]


_OPTIONS = ("batch_size", "learning_rate", "clip_norm", "noise_multiplier")


@lru_cache(maxsize=2)
def _compiled(name: str) -> Compiled:
    return Compiled(_data(name))


@lru_cache(maxsize=1)
def _library() -> ctypes.CDLL:
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/{_SOURCE.stem}.so"
        command = ["cc", "-O3", "-march=native", "-shared", "-fPIC", "-o", path, str(_SOURCE)]
        subprocess.run([*command, "-lm"], check=True)
        return ctypes.CDLL(path)
