"""The benchmarks' compiled loop trains as ``DPTrainer`` does."""

from __future__ import annotations

import shutil
from functools import partial
from statistics import fmean, stdev
from typing import Any

import numpy as np
import pytest
import torch

from botorch_dp.training import (
    DPTrainer,
    TrainTest,
    hinge_loss,
    logistic_loss,
    logistic_regression,
)

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")

KINDS = [("logistic", "sgd"), ("logistic", "adam"), ("svm", "sgd")]


def data() -> TrainTest:
    rng = np.random.default_rng(0)
    X = torch.from_numpy((rng.random((500, 12)) < 0.3).astype(np.float32))
    score = X @ torch.from_numpy(rng.normal(size=12).astype(np.float32)) - 0.2
    Y = (score + 0.5 * torch.from_numpy(rng.normal(size=500).astype(np.float32)) > 0).long()
    return TrainTest(X[:300], Y[:300], X[300:], Y[300:])


def both(kind: tuple[str, str], seeds: range, **settings: Any) -> tuple[list[float], list[float]]:
    """Accuracies of the compiled loop, and of the trainer, after ten epochs."""
    from benchmarks.linear_training import Compiled

    model, optimizer = kind
    compiled = Compiled(data())
    steps = [10 * (300 // settings["batch_size"])]
    options = {"hinge": model == "svm", "adam": optimizer == "adam"}
    fast = [compiled.accuracies(seed, steps, **settings, **options)[0] for seed in seeds]
    trainer = DPTrainer(
        partial(logistic_regression, 12, zero=True),
        hinge_loss if model == "svm" else logistic_loss,
        data(),
        optimizer=optimizer,
        sampling="without_replacement",
    )
    trained = trainer.replicates(seeds, **settings, epochs=10, delta=1e-5)
    return fast, [each.accuracy for each in trained]


@pytest.mark.parametrize("kind", KINDS)
def test_without_noise_on_all_records_they_agree(kind: tuple[str, str]) -> None:
    settings = {"batch_size": 300, "learning_rate": 0.3, "clip_norm": 0.7, "noise_multiplier": 1e-9}
    fast, trained = both(kind, range(1), **settings)
    assert fast == pytest.approx(trained)
    assert fast[0] > 0.7


@pytest.mark.parametrize("kind", KINDS)
def test_with_batches_and_noise_they_agree_on_average(kind: tuple[str, str]) -> None:
    settings = {"batch_size": 20, "learning_rate": 0.1, "clip_norm": 0.7, "noise_multiplier": 4.0}
    fast, trained = both(kind, range(100), **settings)
    spread = stdev(fast)
    assert abs(fmean(fast) - fmean(trained)) < 4.5 * spread * (2 / 100) ** 0.5
    assert 0.7 < spread / stdev(trained) < 1.4


def test_other_features_are_refused() -> None:
    from benchmarks.linear_training import Compiled

    X, Y = torch.full((4, 2), 0.5), torch.tensor([0, 1, 0, 1])
    with pytest.raises(ValueError, match="0 or 1"):
        Compiled(TrainTest(X, Y, X, Y))
