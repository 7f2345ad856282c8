"""Our accountant inside Opacus's own loop."""

from __future__ import annotations

import math

import pytest
import torch
from opacus import PrivacyEngine
from opacus.accountants import PRVAccountant
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from botorch_dp.errors import PrivacyError
from botorch_dp.integrations.opacus import DistributionAccountant
from botorch_dp.privacy import NeighboringRelation, dp_sgd_epsilon

REPLACE, ADD = NeighboringRelation.REPLACE_ONE, NeighboringRelation.ADD_OR_REMOVE_ONE


def run(accountant: DistributionAccountant, steps: int = 500) -> DistributionAccountant:
    for _ in range(steps):
        accountant.step(noise_multiplier=1.0, sample_rate=0.01)
    return accountant


def test_equals_dp_sgd_epsilon_in_either_relation() -> None:
    settings = {"batch_size": 10, "num_records": 1000, "steps": 500, "delta": 1e-5}
    added = run(DistributionAccountant(ADD)).get_epsilon(1e-5)
    assert added == dp_sgd_epsilon(noise_multiplier=1.0, relation=ADD, **settings)
    replaced = run(DistributionAccountant()).get_epsilon(delta=1e-5)
    assert replaced == dp_sgd_epsilon(noise_multiplier=1.0, **settings)
    assert replaced > added


def test_is_as_good_as_theirs() -> None:
    theirs = PRVAccountant()
    run(theirs)
    assert run(DistributionAccountant(ADD)).get_epsilon(1e-5) <= theirs.get_epsilon(1e-5)


def test_in_a_privacy_engine() -> None:
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(64, 3), torch.randn(64, 1))
    model = nn.Linear(3, 1)
    engine = PrivacyEngine()
    engine.accountant = DistributionAccountant()
    model, optimizer, loader = engine.make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        data_loader=DataLoader(data, batch_size=8),
        noise_multiplier=3.0,
        max_grad_norm=1.0,
    )
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
    assert len(engine.accountant) == 8
    assert engine.get_epsilon(1e-5) == pytest.approx(
        dp_sgd_epsilon(noise_multiplier=3.0, batch_size=8, num_records=64, steps=8, delta=1e-5)
    )


def test_state_travels_and_changes_of_noise_are_kept_apart() -> None:
    accountant = run(DistributionAccountant(ADD), 3)
    accountant.step(noise_multiplier=2.0, sample_rate=0.01)
    assert accountant.history == [(1.0, 0.01, 3), (2.0, 0.01, 1)]
    copy = DistributionAccountant(ADD)
    copy.load_state_dict(accountant.state_dict())
    assert len(copy) == 4
    assert copy.get_epsilon(1e-5) == accountant.get_epsilon(1e-5)


def test_no_noise_is_infinite_and_no_steps_are_free() -> None:
    accountant = DistributionAccountant()
    assert accountant.get_epsilon(1e-5) == 0.0
    accountant.step(noise_multiplier=0.0, sample_rate=0.5)
    assert accountant.get_epsilon(1e-5) == math.inf


def test_refuses_a_relation_it_cannot_count_in() -> None:
    with pytest.raises(PrivacyError, match="REPLACE_ONE or ADD_OR_REMOVE_ONE"):
        DistributionAccountant(NeighboringRelation.BOUNDED_ROW)
