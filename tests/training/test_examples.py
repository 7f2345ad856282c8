"""The guide's snippets run as printed, and the examples of real models train."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from examples.real_models import main

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "guides" / "train.md"


def test_the_guides_snippets_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # they save a model
    names: dict[str, Any] = {}
    snippets = re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.S)
    assert len(snippets) == 10
    for snippet in snippets:
        exec(snippet, names)
    assert names["result"].accuracy > 0.8
    assert names["result"].guarantee.epsilon(1e-5) <= 1.0
    printed = [f"{found:.2f}" for found in names["recall"].values()]
    text = GUIDE.read_text()
    assert "prints {} without weights, {} with `(1, 14)`, and {} with".format(*printed) in text
    shares = names["right_ones"] / (names["wrong"] + names["right_ones"])
    assert (shares - 0.87).abs().max() < 0.1


def test_real_models_train() -> None:
    """In a reduced size."""
    results = main(size=400, epochs=1)
    assert len(results) == 3
    for trained in results.values():
        assert trained.guarantee.epsilon(1e-5) <= 4.0
        assert all(p.isfinite().all() for p in trained.model.parameters())
    encoder = results["pretrained encoder, sentences"].model
    assert isinstance(encoder.embedding, torch.nn.Embedding)
