"""A record that stands in several rows is clipped in each of them, and would cost as one."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import ConcatDataset, DataLoader, Subset, TensorDataset

from botorch_dp.errors import PrivacyError
from botorch_dp.integrations.opacus import PrivacyEngine
from botorch_dp.privacy import PrivacyBudget, PrivacyLedger
from botorch_dp.training import DPTrainer, cross_entropy_loss

ROWS = torch.randn(40, 4), torch.randint(2, (40,))
ONCE = TensorDataset(*ROWS)
#: What is left of oversampling and of a sampler, and data of which each record has one row.
REPEATING: dict[str, Any] = {
    "places that repeat": Subset(ONCE, [0] * 20 + list(range(20))),
    "a place from the end": Subset(ONCE, [39, -1]),
    "the same set twice": ConcatDataset([ONCE, ONCE]),
    "a part of it again": ConcatDataset([ONCE, Subset(ONCE, range(30, 40))]),
    "a part of a part": Subset(Subset(ONCE, range(20)), [3, 3]),
    "the same tensors twice": ConcatDataset([ONCE, TensorDataset(*ROWS)]),
    "rows that overlap": ConcatDataset(
        [TensorDataset(ROWS[0][a:b], ROWS[1][a:b]) for a, b in ((0, 30), (20, 40))]
    ),
    "one row, expanded": TensorDataset(ROWS[0][:1].expand(40, 4), ROWS[1]),
}
DIFFERENT: dict[str, Any] = {
    "each once": ONCE,
    "some": Subset(ONCE, torch.randperm(40)[:20].tolist()),
    "halves": ConcatDataset(torch.utils.data.random_split(ONCE, [20, 20])),
    "rows that do not overlap": ConcatDataset(
        [TensorDataset(ROWS[0][a:b], ROWS[1][a:b]) for a, b in ((0, 30), (30, 40))]
    ),
}


def make_private(data: Any, ledger: PrivacyLedger | None = None) -> PrivacyEngine:
    model, engine = nn.Linear(4, 2), PrivacyEngine(ledger=ledger, like=(torch.zeros(4), 0))
    engine.make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        data_loader=DataLoader(data, batch_size=5),
        noise_multiplier=4.0,
        max_grad_norm=1.0,
        epochs=2,
        criterion=nn.CrossEntropyLoss(),
    )
    return engine


@pytest.mark.parametrize("name", REPEATING)
def test_records_that_can_be_seen_to_come_twice_are_refused(name: str) -> None:
    ledger = PrivacyLedger(budget=PrivacyBudget(100.0, 1e-4))
    for refused in (
        lambda: DPTrainer(
            lambda: nn.Linear(4, 2), cross_entropy_loss, REPEATING[name], like=(torch.zeros(4), 0)
        ),
        lambda: make_private(REPEATING[name], ledger),
    ):
        with pytest.raises(PrivacyError, match=r"several rows.*one row.*weight in the loss"):
            refused()
    assert not ledger.entries()


@pytest.mark.parametrize("name", DIFFERENT)
def test_that_rows_are_different_records_is_a_condition(name: str) -> None:
    data = DIFFERENT[name], ONCE  # test records may be of any kind
    trainer = DPTrainer(lambda: nn.Linear(4, 2), cross_entropy_loss, data, like=(torch.zeros(4), 0))
    settings = {"learning_rate": 0.1, "clip_norm": 1.0, "noise_multiplier": 4.0}
    plans = (trainer.plan(**settings, batch_size=10, epochs=1), make_private(DIFFERENT[name]).plan)
    for plan in plans:
        assert "no record comes twice in the training data" in str(plan.guarantee)
