"""The programs of Opacus's examples, with their own loops, under Opacus's engine and under ours.

The import changes, and our engine asks for the epochs and the loss, because it prices and tries
them before the first step. Digits, names and pictures are small or made up: nothing is loaded.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import opacus
import pytest
import torch
from opacus.layers import DPLSTM
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from botorch_dp.integrations.opacus import PrivacyEngine
from botorch_dp.privacy import NeighboringRelation

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:Optimal order is the (smallest|largest):UserWarning"),
]
DELTA = 1e-4


class Digits(nn.Module):
    """The convolutional network of `mnist.py`."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, 8, 2, padding=3)
        self.conv2 = nn.Conv2d(16, 32, 4, 2)
        self.fc1, self.fc2 = nn.Linear(32 * 4 * 4, 32), nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = nn.functional.max_pool2d(nn.functional.relu(self.conv1(x)), 2, 1)
        x = nn.functional.max_pool2d(nn.functional.relu(self.conv2(x)), 2, 1)
        return self.fc2(nn.functional.relu(self.fc1(x.flatten(1))))


def digits(engine: Any, ours: bool) -> tuple[Any, float]:
    """One model after another, each by an engine of its own, and the loader written over."""
    given = load_digits()
    X = torch.tensor(given.images, dtype=torch.float32).unsqueeze(1) / 8 - 1
    X, y = nn.functional.interpolate(X, size=28), torch.tensor(given.target)
    loader = DataLoader(TensorDataset(X[:1500], y[:1500]), batch_size=100, num_workers=0)
    criterion, found = nn.CrossEntropyLoss(), []
    asked = {"epochs": 6, "criterion": criterion} if ours else {}
    for _ in range(2):
        privacy_engine, model = engine(secure_mode=False), Digits()
        model, optimizer, loader = privacy_engine.make_private(
            module=model,
            optimizer=torch.optim.SGD(model.parameters(), lr=0.5, momentum=0),
            data_loader=loader,
            noise_multiplier=1.0,
            max_grad_norm=1.0,
            **asked,
        )
        model.train()
        for _ in range(6):
            losses = []
            for data, target in loader:
                optimizer.zero_grad()
                loss = criterion(model(data), target)
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
            assert np.isfinite(losses).all() and privacy_engine.accountant.get_epsilon(delta=DELTA)
        model.eval()
        found.append((model(X[1500:]).argmax(1) == y[1500:]).float().mean().item())
    _publish(privacy_engine, model)
    return privacy_engine, float(np.mean(found))


class Names(Dataset[Any]):
    """Made-up names of three languages, each read and padded on its own."""

    ends = ("ova", "ini", "sson")

    def __init__(self, size: int) -> None:
        letters = random.Random(0)
        stems = ("".join(letters.choices("abcdefgh", k=letters.randint(2, 8))) for _ in range(size))
        self.names = [(stem + self.ends[i % 3], i % 3) for i, stem in enumerate(stems)]

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, place: int) -> tuple[Tensor, int]:
        name, language = self.names[place]
        return torch.tensor(list(name.rjust(15).encode())), language


class CharLSTM(nn.Module):
    """Of `char-lstm-classification.py`: a table, an LSTM, and a layer on its last state."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(128, 16)
        self.lstm = DPLSTM(16, 32, num_layers=1, batch_first=True)
        self.out_layer = nn.Linear(32, 3)

    def forward(self, x: Tensor, hidden: Any = None) -> Tensor:
        states, _ = self.lstm(self.embedding(x), hidden)
        return self.out_layer(states[:, -1])


def names(engine: Any, ours: bool) -> tuple[Any, float]:
    criterion, model, data = nn.CrossEntropyLoss(), CharLSTM(), Names(900)
    privacy_engine = engine(**({"like": (torch.zeros(15).long(), 0)} if ours else {}))
    model, optimizer, loader = privacy_engine.make_private_with_epsilon(
        module=model,
        optimizer=torch.optim.Adam(model.parameters(), lr=0.02),
        data_loader=DataLoader(data, batch_size=90),
        target_epsilon=8.0,
        target_delta=DELTA,
        epochs=8,
        max_grad_norm=1.0,
        **({"criterion": criterion} if ours else {}),
    )
    for _ in range(8):
        for tokens, language in loader:
            logits = model(tokens)
            loss = criterion(logits, language)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    tests = DataLoader(Names(300), batch_size=300)
    ((tokens, language),) = list(tests)
    _publish(privacy_engine, model)
    assert 7.5 < privacy_engine.get_epsilon(delta=DELTA) <= 8.0 * (1 + 1e-6)
    return privacy_engine, (model.eval()(tokens).argmax(1) == language).float().mean().item()


def _publish(engine: Any, model: nn.Module) -> None:
    if isinstance(engine, PrivacyEngine):
        assert engine.guarantee(model).status == "conditional"


def _ours(**options: Any) -> PrivacyEngine:
    return PrivacyEngine(relation=NeighboringRelation.ADD_OR_REMOVE_ONE, delta=DELTA, **options)


@pytest.mark.parametrize(("program", "least"), [(digits, 0.5), (names, 0.7)])
def test_a_program_of_opacus(program: Callable[..., Any], least: float) -> None:
    """As accurate as under Opacus's engine, at its epsilon, which adds an error bound of 0.01."""
    theirs, before = program(opacus.PrivacyEngine, ours=False)
    ours, after = program(_ours, ours=True)
    assert min(before, after) > least, (before, after)
    gap = theirs.get_epsilon(delta=DELTA) - ours.get_epsilon(delta=DELTA)
    assert -1e-3 < gap < 0.03, gap
