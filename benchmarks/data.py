"""Data sets that only benchmarks use, found and checked as those of ``botorch_dp.datasets`` are."""

from __future__ import annotations

import csv
import gzip
import io
import zipfile
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from botorch_dp.datasets import Arrays, cache_folder, download, load_arrays
from botorch_dp.training import TrainTest

_BLOG = "https://archive.ics.uci.edu/static/public/304/blogfeedback.zip"
_FINGERPRINTS = {
    "blogfeedback": "7c73a57c37bd6e008ab1b5e1c2bb647af973867a7e3605962ccf148d9d972685",
    "california_housing": "cd9caf3572456924b5b41583d8a166cdc6e0e5c355e57ace6d45f3b16de17e7f",
}


def blogfeedback() -> TrainTest:
    """UCI BlogFeedback: comments a blog post gets in a day, from 280 features.

    It stands in for the CT-slice data where an experiment calls for a large regression.

    Returns:
        ``52397 x 280`` and ``7624 x 280`` features with real targets, in double precision.
    """
    arrays = load_arrays(
        "blogfeedback", "blogfeedback.npz", _fetch_blogfeedback, _FINGERPRINTS["blogfeedback"]
    )
    names = ("X_train", "y_train", "X_test", "y_test")
    return TrainTest(*(torch.as_tensor(arrays[name]).double() for name in names))


def california_housing() -> tuple[Tensor, Tensor]:
    """California housing: 8 features as in scikit-learn, median house value in 100,000 dollars.

    Returns:
        ``20640 x 8`` features and 20640 targets, in double precision.
    """
    arrays = load_arrays(
        "california_housing",
        "california_housing.csv.gz",
        _fetch_california,
        _FINGERPRINTS["california_housing"],
        read=_read_california,
    )
    return torch.as_tensor(arrays["X"]).double(), torch.as_tensor(arrays["y"]).double()


def _read_california(path: Path) -> Arrays:
    """Scikit-learn's eight features from the nine columns of the StatLib table."""
    with gzip.open(path, "rt") as file:
        table = np.array(list(csv.reader(file))[1:], dtype=np.float64)
    longitude, latitude, age, rooms, bedrooms, population, households, income, value = table.T
    columns = (
        income, age, rooms / households, bedrooms / households, population,
        population / households, latitude, longitude,
    )  # fmt: skip
    return {"X": np.stack(columns, axis=1), "y": value / 1e5}


def _fetch_california() -> Arrays:
    from sklearn.datasets import fetch_california_housing

    X, y = fetch_california_housing(return_X_y=True, data_home=str(cache_folder()))
    return {"X": X, "y": y}


def _fetch_blogfeedback() -> Arrays:
    with zipfile.ZipFile(io.BytesIO(download(_BLOG))) as archive:

        def table(name: str) -> NDArray[np.float32]:
            with archive.open(name) as file:
                return np.loadtxt(file, delimiter=",", dtype=np.float32, ndmin=2)

        names = sorted(n for n in archive.namelist() if n.endswith(".csv"))
        train = table(next(n for n in names if "train" in n))
        test = np.concatenate([table(n) for n in names if "test" in n])
    return {
        "X_train": train[:, :-1],
        "y_train": train[:, -1],
        "X_test": test[:, :-1],
        "y_test": test[:, -1],
    }
