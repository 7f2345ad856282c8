"""Seeded DP-SGD and DP-Adam of linear models on 0/1 features, in C.

The mechanism is that of ``DPTrainer(sampling="without_replacement")``, and so are the models of the
ready problems on Adult, whose records have 14 ones among 123 features; tests hold both against
each other. Random numbers differ, and nothing is ever released. Trainings take a tenth of the
processor time and less, so that studies can have the paper's sizes. Needs a C compiler, ``cc``.
"""

from __future__ import annotations

import ctypes
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from botorch_dp.space import Config
from botorch_dp.tasks.learning import PrivateTraining, _data
from botorch_dp.training import TrainTest

_SOURCE = Path(__file__).with_suffix(".c")


class _Rows(ctypes.Structure):
    _fields_ = (
        ("starts", ctypes.c_void_p),
        ("columns", ctypes.c_void_p),
        ("signs", ctypes.c_void_p),
        ("n", ctypes.c_int32),
    )


class Compiled:
    """A data set in the form that the compiled loop takes.

    Args:
        data: Features 0 or 1, at most 255 of them.
    """

    def __init__(self, data: TrainTest) -> None:
        self._train = self._rows(data.train_X, data.train_Y)
        self._test = self._rows(data.test_X, data.test_Y)
        self._dim = data.train_X.shape[1] + 1

    def _rows(self, X: Tensor, Y: Tensor) -> tuple[_Rows, list[Any]]:
        ones = X.numpy() == 1
        if X.shape[1] > 255 or not bool(((X == 0) | (X == 1)).all()):
            raise ValueError("The compiled loop takes at most 255 features, each of them 0 or 1.")
        arrays = [
            np.concatenate([[0], ones.sum(axis=1).cumsum()]).astype(np.int32),
            ones.nonzero()[1].astype(np.uint8),
            np.where(Y.numpy() > 0, 1, -1).astype(np.int8),
        ]
        return _Rows(*(array.ctypes.data for array in arrays), len(X)), arrays

    def accuracies(
        self,
        seed: int,
        steps: Sequence[int],
        *,
        lot_size: int,
        learning_rate: float,
        clip_norm: float,
        noise_multiplier: float,
        hinge: bool = False,
        adam: bool = False,
    ) -> list[float]:
        """Test accuracies after these numbers of steps, which rise."""
        found = np.zeros(len(steps))
        checkpoints = np.array(steps, dtype=np.int64)
        state = np.random.SeedSequence(seed).generate_state(4, np.uint64)
        pointer = ctypes.c_void_p
        _library().train(
            ctypes.byref(self._train[0]),
            ctypes.byref(self._test[0]),
            self._dim,
            lot_size,
            ctypes.c_double(learning_rate),
            ctypes.c_double(clip_norm),
            ctypes.c_double(2 * clip_norm * noise_multiplier),
            hinge,
            adam,
            pointer(checkpoints.ctypes.data),
            len(steps),
            pointer(state.ctypes.data),
            pointer(found.ctypes.data),
        )
        return found.tolist()


class FastTraining(PrivateTraining):
    """The oracles of a linear model on Adult, from the compiled loop."""

    def curves(
        self, config: Config, seeds: Sequence[int], checkpoints: Sequence[int]
    ) -> Iterator[list[float]]:
        """Test accuracies along one training for each seed."""
        data = _compiled(self.data)
        steps = [int(self.cost({**config, "epochs": c})) for c in checkpoints]
        options: Any = {name: config[name] for name in _OPTIONS}
        options |= {"hinge": self.model == "svm", "adam": self.optimizer == "adam"}
        found = [data.accuracies(seed, steps, **options) for seed in seeds]
        yield from map(list, zip(*found, strict=True))

    def utilities(self, config: Config, seeds: Sequence[int]) -> list[float]:
        """Test accuracies of one model for each seed."""
        (found,) = self.curves(config, seeds, [config["epochs"]])
        return found


_OPTIONS = ("lot_size", "learning_rate", "clip_norm", "noise_multiplier")


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
