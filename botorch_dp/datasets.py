"""Data sets of the papers through their ordinary routes, and small ones that are always at hand.

A loader looks, in this order, into the folder named by ``BOTORCH_DP_DATA``, into the cache
(``~/.cache/botorch_dp``, or ``BOTORCH_DP_CACHE``), and then on the network. What it finds is
checked against a fingerprint of the numbers. The bundled sets of scikit-learn need neither.

None of these records is yours to protect; they stand in for those that are.
"""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import os
import urllib.error
import urllib.request
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from botorch_dp._checks import check_integer
from botorch_dp._files import atomic_write
from botorch_dp.training import TrainTest

Arrays = dict[str, NDArray[Any]]

_LIBSVM = "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/binary/"
_BLOG = "https://archive.ics.uci.edu/static/public/304/blogfeedback.zip"

#: SHA-256 over the sorted rows, so that the order in which a source lists them is no matter.
_FINGERPRINTS = {
    "a9a": "d84890089ac62917000e41ad5f03b5d50f4c83897f12891a92160c61751b902b",
    "blogfeedback": "7c73a57c37bd6e008ab1b5e1c2bb647af973867a7e3605962ccf148d9d972685",
    "california_housing": "cd9caf3572456924b5b41583d8a166cdc6e0e5c355e57ace6d45f3b16de17e7f",
    "mnist": "bf0fffd6325724c6c1f7254929b8880ea0b5434dd6a71d0ac5d0b3339d497af8",
}


class DatasetUnavailable(RuntimeError):
    """A data set is neither at hand nor to be had; the message says where to put it."""


def adult(*, dtype: torch.dtype = torch.float32) -> TrainTest:
    """Adult in LIBSVM's 123 binary features, split as in the DPareto experiments.

    The 30,956 rows outside a1a train (LIBSVM's ``a1a.t``), the 1,605 rows of a1a test. Labels are
    1 (income above 50K) and 0; always predicting 0 is wrong for .246 of the test rows.

    Returns:
        ``30956 x 123`` and ``1605 x 123`` features with their labels.
    """
    arrays = _load("a9a", "a9a.npz", _fetch_adult)
    X = arrays["X_train"]
    y = (arrays["y_train"] > 0).astype(np.int64)
    test = arrays["a1a_mask"].astype(bool)
    return _split(X[~test], y[~test], X[test], y[test], dtype)


def mnist(*, dtype: torch.dtype = torch.float32) -> TrainTest:
    """MNIST digits as 784 pixels in [0, 1]; 60,000 train, 10,000 test.

    Returns:
        ``60000 x 784`` and ``10000 x 784`` pixels with their classes 0 to 9.
    """
    arrays = _load("mnist", "mnist.npz", _fetch_mnist)
    train, test = (arrays[key].reshape(-1, 784) / 255.0 for key in ("x_train", "x_test"))
    return _split(train, arrays["y_train"], test, arrays["y_test"], dtype)


def blogfeedback(*, dtype: torch.dtype = torch.float64) -> TrainTest:
    """UCI BlogFeedback: comments a blog post gets in a day, from 280 features.

    Stands in for the CT-slice data where an experiment calls for a large regression.

    Returns:
        ``52397 x 280`` and ``7624 x 280`` features with real targets.
    """
    arrays = _load("blogfeedback", "blogfeedback.npz", _fetch_blogfeedback)
    names = ("X_train", "y_train", "X_test", "y_test")
    return TrainTest(*(torch.as_tensor(arrays[name]).to(dtype) for name in names))


def california_housing(*, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    """California housing: 8 features as in scikit-learn, median house value in 100,000 dollars.

    Returns:
        ``20640 x 8`` features and 20640 targets.
    """
    arrays = _load("california_housing", "california_housing.csv.gz", _fetch_california)
    return torch.as_tensor(arrays["X"]).to(dtype), torch.as_tensor(arrays["y"]).to(dtype)


def loans(*, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    """LendingClub loans 2007 to 2011: amount committed, interest rate, income; return.

    Has no open download: put ``loans.npz`` into the folder named by ``BOTORCH_DP_DATA``.

    Returns:
        ``39657 x 3`` features and 39657 returns on investment.
    """
    arrays = _load("loans", "loans.npz", None)
    return torch.as_tensor(arrays["X"]).to(dtype), torch.as_tensor(arrays["roi"]).to(dtype)


def property_prices(*, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    """Singapore condominium resales of 2015: longitude, latitude; price of a square metre.

    Has no open download: put ``property.npz`` into the folder named by ``BOTORCH_DP_DATA``.

    Returns:
        ``1436 x 2`` coordinates and 1436 prices.
    """
    arrays = _load("property", "property.npz", None)
    prices = torch.as_tensor(arrays["price_per_sqm"]).to(dtype)
    return torch.as_tensor(arrays["X"]).to(dtype), prices


def breast_cancer(
    *, test_share: float = 0.3, seed: int = 0, dtype: torch.dtype = torch.float32
) -> TrainTest:
    """Scikit-learn's breast cancer data (569 x 30, two classes), bundled; features in [0, 1]."""
    from sklearn.datasets import load_breast_cancer

    X, y = load_breast_cancer(return_X_y=True)
    # Physical limits would be public; for a demonstration the observed ones do.
    X = (X - X.min(0)) / (X.max(0) - X.min(0))
    return _shuffled(X, y, test_share, seed, dtype)


def digits(
    *, test_share: float = 0.3, seed: int = 0, dtype: torch.dtype = torch.float32
) -> TrainTest:
    """Scikit-learn's handwritten digits (1797 x 64, ten classes), bundled; pixels in [0, 1]."""
    from sklearn.datasets import load_digits

    X, y = load_digits(return_X_y=True)
    return _shuffled(X / 16.0, y, test_share, seed, dtype)


def _split(
    train_X: NDArray[Any],
    train_Y: NDArray[Any],
    test_X: NDArray[Any],
    test_Y: NDArray[Any],
    dtype: torch.dtype,
) -> TrainTest:
    def features(X: NDArray[Any]) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(X)).to(dtype)

    def labels(y: NDArray[Any]) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(y)).long()

    return TrainTest(features(train_X), labels(train_Y), features(test_X), labels(test_Y))


def _shuffled(
    X: NDArray[Any], y: NDArray[Any], share: float, seed: int, dtype: torch.dtype
) -> TrainTest:
    if not 0 < share < 1:
        raise ValueError(f"`test_share` must lie in (0, 1), got {share}.")
    check_integer("seed", seed, at_least=0)
    order = np.random.default_rng(seed).permutation(len(X))
    cut = len(X) - round(share * len(X))
    return _split(X[order[:cut]], y[order[:cut]], X[order[cut:]], y[order[cut:]], dtype)


def _load(name: str, file: str, fetch: Callable[[], Arrays] | None) -> Arrays:
    """From the user's folder, from the cache, or from the network; fingerprint checked."""
    folder = os.environ.get("BOTORCH_DP_DATA")
    if folder and (Path(folder) / file).exists():
        return _checked(name, _read(Path(folder) / file), Path(folder) / file)
    cached = cache_folder() / f"{name}.npz"
    if cached.exists():
        return _checked(name, _read(cached), cached)
    if fetch is None:
        raise DatasetUnavailable(
            f"{name!r} has no open download. Put {file!r} into a folder and set BOTORCH_DP_DATA "
            "to that folder."
        )
    try:
        arrays = fetch()
    except (urllib.error.URLError, OSError) as error:
        raise DatasetUnavailable(
            f"{name!r} could not be downloaded ({type(error).__name__}). Without a network, put "
            f"{file!r} into a folder and set BOTORCH_DP_DATA to that folder; "
            "`breast_cancer` and `digits` are always at hand."
        ) from error
    _checked(name, arrays, None)
    cached.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(cached, binary=True) as stream:
        np.savez_compressed(stream, **arrays)  # type: ignore[arg-type]
    return arrays


def cache_folder() -> Path:
    """Where downloads are kept: ``BOTORCH_DP_CACHE`` or ``~/.cache/botorch_dp``."""
    chosen = os.environ.get("BOTORCH_DP_CACHE")
    if chosen:
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "botorch_dp"


def _read(path: Path) -> Arrays:
    if path.suffix == ".npz":
        with np.load(path, allow_pickle=False) as archive:
            return dict(archive)
    with gzip.open(path, "rt") as file:
        rows = list(csv.reader(file))[1:]
    return _california_arrays(np.array(rows, dtype=np.float64))


def _california_arrays(table: NDArray[np.float64]) -> Arrays:
    """Scikit-learn's eight features from the nine columns of the StatLib table."""
    longitude, latitude, age, rooms, bedrooms, population, households, income, value = table.T
    columns = (
        income, age, rooms / households, bedrooms / households, population,
        population / households, latitude, longitude,
    )  # fmt: skip
    return {"X": np.stack(columns, axis=1), "y": value / 1e5}


def fingerprint(arrays: Arrays) -> str:
    """SHA-256 of all arrays by name, each with its rows sorted."""
    digest = hashlib.sha256()
    for name in sorted(arrays):
        values = np.ascontiguousarray(arrays[name].astype(np.float32))
        rows = values.reshape(len(values), -1)
        digest.update(f"{name} {rows.shape}".encode())
        for row in sorted(row.tobytes() for row in rows):
            digest.update(row)
    return digest.hexdigest()


def _checked(name: str, arrays: Arrays, path: Path | None) -> Arrays:
    expected = _FINGERPRINTS.get(name)
    kept = {key: value for key, value in arrays.items() if key != "test_file"}
    if expected is not None and fingerprint(kept) != expected:
        source = "The download" if path is None else str(path)
        raise DatasetUnavailable(
            f"{source} is not the {name!r} data set this loader was written for (its fingerprint "
            "differs). Delete it and load again, or check where it came from."
        )
    return kept


def _download(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=60) as response:
        return bytes(response.read())


def _fetch_adult() -> Arrays:
    from sklearn.datasets import load_svmlight_file

    def part(name: str) -> tuple[NDArray[np.uint8], NDArray[np.int8]]:
        # The number of features is stated: the test file lacks the last one.
        X, y = load_svmlight_file(io.BytesIO(_download(_LIBSVM + name)), n_features=123)
        return X.toarray().astype(np.uint8), y.astype(np.int8)

    (test_X, test_y), (train_X, train_y) = part("a1a"), part("a1a.t")
    other_X, other_y = part("a9a.t")
    mask = np.arange(len(test_X) + len(train_X)) < len(test_X)
    return {
        "X_train": np.concatenate([test_X, train_X]),
        "y_train": np.concatenate([test_y, train_y]),
        "X_test": other_X,
        "y_test": other_y,
        "a1a_mask": mask,
    }


def _fetch_mnist() -> Arrays:
    from sklearn.datasets import fetch_openml

    X, y = fetch_openml(
        "mnist_784", version=1, return_X_y=True, as_frame=False, data_home=str(cache_folder())
    )
    images = X.reshape(-1, 28, 28).astype(np.uint8)
    classes = y.astype(np.uint8)
    return {
        "x_train": images[:60000],
        "y_train": classes[:60000],
        "x_test": images[60000:],
        "y_test": classes[60000:],
    }


def _fetch_blogfeedback() -> Arrays:
    with zipfile.ZipFile(io.BytesIO(_download(_BLOG))) as archive:

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


def _fetch_california() -> Arrays:
    from sklearn.datasets import fetch_california_housing

    X, y = fetch_california_housing(return_X_y=True, data_home=str(cache_folder()))
    return {"X": X, "y": y}
