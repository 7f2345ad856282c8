"""The guide's snippets run as printed, and the examples of real models train."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from botorch_dp.training import DPTrainer, TrainTest
from examples.real_models import main

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "guides" / "train.md"


def test_the_guides_snippets_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # they save a model
    names: dict[str, Any] = {}
    snippets = re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.S)
    assert len(snippets) == 6
    for snippet in snippets:
        exec(snippet, names)
    assert names["result"].accuracy > 0.8
    assert names["result"].guarantee.epsilon(1e-5) <= 1.0
    shares = names["right_ones"] / (names["wrong"] + names["right_ones"])
    assert shares.shape == (2,) and (shares > 0.5).all()


def test_what_class_weights_do_is_what_the_guide_says() -> None:
    torch.manual_seed(0)
    rare = torch.rand(8000) < 1 / 15
    X = torch.randn(8000, 10)
    X[rare, 0] += 1.5
    data = TrainTest(X[:6000], rare[:6000].long(), X[6000:], rare[6000:].long())
    recalls, accuracies = [], []
    for weights in ((1.0, 1.0), (1.0, 14.0), (1 / 14, 1.0)):
        loss = torch.nn.CrossEntropyLoss(weight=torch.tensor(weights), reduction="none")
        trainer = DPTrainer(partial(torch.nn.Linear, 10, 2), loss, data)
        trained = trainer.fit(target_epsilon=1.0, feature_norm=3.2, seed=0)
        found = trained.model(data.test_X).argmax(1) == 1
        recalls.append(f"{float(found[rare[6000:]].float().mean()):.2f}")
        accuracies.append(f"{trained.accuracy:.2f}")
    text = " ".join(GUIDE.read_text().split())
    said = "was {} without weights, {} with `(1, 14)`, and {} with `(1/14, 1)`".format(*recalls)
    assert f"{said}, where accuracy fell from {accuracies[0]} to {accuracies[2]}" in text


def test_real_models_train() -> None:
    """In a reduced size."""
    results = main(size=400, epochs=1)
    assert len(results) == 3
    for trained in results.values():
        assert trained.guarantee.epsilon(1e-5) <= 4.0
        assert all(p.isfinite().all() for p in trained.model.parameters())
    encoder = results["pretrained encoder, sentences"].model
    assert isinstance(encoder.embedding, torch.nn.Embedding)
