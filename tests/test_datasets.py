"""Loaders: the right shapes, the user's folder first, a clear word when there is nothing."""

from __future__ import annotations

import urllib.error
import urllib.request
from pathlib import Path

import numpy as np
import pytest
import torch

from botorch_dp import datasets
from botorch_dp.datasets import DatasetUnavailable


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """No network, an empty cache, and no folder of the user's."""

    def refuse(*args: object, **kwargs: object) -> None:
        raise urllib.error.URLError("no route")

    monkeypatch.setattr(urllib.request, "urlopen", refuse)
    monkeypatch.delenv("BOTORCH_DP_DATA", raising=False)
    monkeypatch.setattr(datasets, "cache_folder", lambda: tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("load", "columns", "classes", "records"),
    [(datasets.breast_cancer, 30, 2, 569), (datasets.digits, 64, 10, 1797)],
)
def test_bundled_sets(load, columns: int, classes: int, records: int) -> None:
    data = load()
    assert data.train_X.shape[1] == data.test_X.shape[1] == columns
    assert len(data.train_X) + len(data.test_X) == records
    assert data.train_X.dtype == torch.float32
    assert set(data.train_Y.tolist()) == set(range(classes))
    assert 0 <= data.train_X.min() and data.train_X.max() <= 1
    assert torch.equal(load().train_X, data.train_X)
    assert not torch.equal(load(seed=1).train_X, data.train_X)
    assert load(dtype=torch.double).train_X.dtype == torch.double


@pytest.mark.parametrize("load", [datasets.adult])
def test_without_a_network_the_message_says_what_to_do(load, offline: Path) -> None:
    with pytest.raises(DatasetUnavailable, match="BOTORCH_DP_DATA") as caught:
        load()
    assert "breast_cancer" in str(caught.value)
    assert list(offline.iterdir()) == []


def test_another_file_under_the_name_is_refused(
    offline: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    np.savez(offline / "a9a.npz", X_train=np.zeros((3, 123)), y_train=np.zeros(3))
    monkeypatch.setenv("BOTORCH_DP_DATA", str(offline))
    with pytest.raises(DatasetUnavailable, match="fingerprint"):
        datasets.adult()


def test_a_download_is_checked_and_cached(offline: Path) -> None:
    table = {"X": np.arange(6.0).reshape(3, 2), "y": np.arange(3.0)}
    calls = []

    def fetch() -> dict[str, np.ndarray]:
        calls.append(1)
        return table

    expected = datasets.fingerprint(table)
    for _ in range(2):
        arrays = datasets.load_arrays("small", "small.npz", fetch, expected)
        assert arrays["X"].tolist() == table["X"].tolist()
    assert len(calls) == 1
    with pytest.raises(DatasetUnavailable, match="Delete it"):
        datasets.load_arrays("small", "small.npz", fetch, "0" * 64)


@pytest.mark.data
class TestRealSets:
    def test_adult(self) -> None:
        data = datasets.adult()
        assert data.train_X.shape == (30956, 123)
        assert data.test_X.shape == (1605, 123)
        assert data.test_Y.float().mean().item() == pytest.approx(0.2461, abs=1e-4)
        assert set(data.train_X.unique().tolist()) == {0.0, 1.0}

    @pytest.mark.slow
    def test_mnist(self) -> None:
        data = datasets.mnist()
        assert data.train_X.shape == (60000, 784)
        assert data.train_X.max() == 1.0
        assert data.test_Y.bincount().tolist()[0] == 980
