"""The hooks of Opacus in our batches, clipping and noise; what is refused, and what is said."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from botorch_dp.privacy import PrivacyBudget, PrivacyLedger
from botorch_dp.training import DPTrainer, TrainTest, cross_entropy_loss
from botorch_dp.training.engines import opacus as opacus_engine
from tests.training.helpers import FLOAT_DATA, NETWORK, SETTINGS, clipped_sum_of, flat

TOKENS = torch.arange(240).view(60, 4) % 2
WORDS = TrainTest(TOKENS, FLOAT_DATA.train_Y, TOKENS, FLOAT_DATA.train_Y)


def trainer(factory: Callable[[], nn.Module] = NETWORK, **options: Any) -> DPTrainer:
    data = options.pop("data", FLOAT_DATA)
    return DPTrainer(factory, cross_entropy_loss, data, engine="opacus", **options)


def test_it_is_opacus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its rules find the gradients: without them there are none."""
    each = trainer()
    model, batch = each.setup.new_model(0).train(), torch.arange(9)
    rules = opacus_engine.GradSampleModule.GRAD_SAMPLERS
    monkeypatch.setitem(
        rules,
        nn.Linear,
        lambda layer, *_: {p: 0 * p.expand(9, *p.shape) for p in layer.parameters()},
    )
    assert float(flat(clipped_sum_of(each, model, batch, 0.3)).norm()) == 0


def test_published_with_a_guarantee_that_says_what_was_only_tried() -> None:
    ledger = PrivacyLedger(":memory:", PrivacyBudget(100.0, 1e-4))
    trained = trainer().fit(**SETTINGS, publish=True, ledger=ledger)
    assert trained.guarantee.status == "conditional"
    said = str(trained.guarantee)
    assert said.count("Opacus") == 1 and "tried on synthetic records" in said
    assert "not enforced" in said
    assert len(ledger.entries()) == 1
    other = DPTrainer(NETWORK, cross_entropy_loss, FLOAT_DATA, engine="ghost")
    assert "Opacus" not in str(other.plan(**SETTINGS).guarantee)


@pytest.mark.parametrize("word", [2, 10**6, -1])
def test_a_word_that_does_not_exist_counts_as_zero(word: int) -> None:
    layers = nn.Embedding(2, 6), nn.Flatten(), nn.LayerNorm(24), nn.Linear(24, 3)
    each = trainer(lambda: nn.Sequential(*layers), data=WORDS)
    model = each.setup.new_model(0).train()
    others = flat(clipped_sum_of(each, model, torch.arange(1, 9), 0.3))
    X = TOKENS.clone()
    X[0, 1] = word
    poisoned = each.on(WORDS._replace(train_X=X))
    torch.testing.assert_close(flat(clipped_sum_of(poisoned, model, torch.arange(9), 0.3)), others)


@pytest.mark.parametrize("option", [{"max_norm": 1.0}, {"scale_grad_by_freq": True}])
def test_tables_that_look_at_a_batch_are_refused(option: dict[str, Any]) -> None:
    model = nn.Sequential(nn.Embedding(2, 4, **option), nn.Flatten(), nn.Linear(16, 3))
    with pytest.raises(ValueError, match="depending on the batch"):
        trainer(lambda: model, data=WORDS)
