"""When a value was ready tells how many models were trained: neither files nor results say it."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path

import pytest
import torch

from botorch_dp.privacy import PrivacyBudget, PrivacyLedger, TrialNumber
from botorch_dp.space import Integer, Real, SearchSpace
from botorch_dp.training import DPTrainer, TrainTest, logistic_loss, logistic_regression
from botorch_dp.tuning import PrivateFit


def test_a_result_is_held_back_before_it_is_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    X = torch.randn(60, 2)
    y = (X[:, 0] > 0).long()
    trainer = DPTrainer(
        partial(logistic_regression, 2), logistic_loss, TrainTest(X, y, X[:20], y[:20])
    )
    space = SearchSpace(
        learning_rate=Real(0.5, 1.0),
        clip_norm=Real(0.9, 1.0),
        batch_size=Integer(10, 12),
        epochs=Integer(1, 2),
    )
    fit = PrivateFit(trainer, space, budget=PrivacyBudget(3.0, 1e-3), trials=TrialNumber(2, 1.0))
    with PrivacyLedger(tmp_path / "a.ledger", PrivacyBudget(4.0, 0.01)) as ledger:
        waits = []

        def held(seconds: float) -> None:
            waits.append((seconds, ledger._file.query("SELECT COUNT(*) FROM released")[0][0]))

        monkeypatch.setattr(time, "sleep", held)
        fit.run(ledger=ledger, at_least=100.0)
        long = [stored for seconds, stored in waits if seconds > 50]
        assert long[0] == 0, "the first wait is before the value is stored"
        schema = ledger._file.query("SELECT sql FROM sqlite_master WHERE type = 'table'")
        timed = [sql for (sql,) in schema if "_at " in sql]
        assert len(timed) == 1 and timed[0].startswith("CREATE TABLE charge")
        (entry,) = ledger.entries()
        assert entry.charged_at
