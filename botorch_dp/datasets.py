"""Data sets of the ready tasks: Adult, MNIST, two small ones.

A loader looks, in this order, into the folder named by ``BOTORCH_DP_DATA``, into the cache
(``~/.cache/botorch_dp``), and then on the network. What it finds is
checked against a fingerprint of the numbers. The bundled sets of scikit-learn need none of this.

All of these records are public. They stand in for records that are sensitive.
"""

from __future__ import annotations

import hashlib
import io
import os
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from botorch_dp._checks import check_integer, needs_extra
from botorch_dp._files import atomic_write
from botorch_dp.training import TrainTest

Arrays = dict[str, NDArray[Any]]

#: Of the bundled sets.
_TEST_SHARE = 0.3

_LIBSVM = "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/binary/"

#: SHA-256 over the sorted rows: the order in which a source lists them does not count.
_FINGERPRINTS = {
    "a9a": "d84890089ac62917000e41ad5f03b5d50f4c83897f12891a92160c61751b902b",
    "mnist": "bf0fffd6325724c6c1f7254929b8880ea0b5434dd6a71d0ac5d0b3339d497af8",
}


class DatasetUnavailable(RuntimeError):
    """A data set is not on this machine and cannot be downloaded; the message says what to do."""


def adult(*, dtype: torch.dtype = torch.float32) -> TrainTest:
    """Adult in LIBSVM's 123 binary features, split as in the DPareto experiments.

    The 30,956 rows outside a1a train (LIBSVM's ``a1a.t``), the 1,605 rows of a1a test. Labels are
    1 (income above 50K) and 0; always predicting 0 is wrong for 0.246 of the test rows.

    Returns:
        ``30956 x 123`` and ``1605 x 123`` features with their labels.
    """
    arrays = load_arrays("a9a", "a9a.npz", _fetch_adult, _FINGERPRINTS["a9a"])
    X = arrays["X_train"]
    y = (arrays["y_train"] > 0).astype(np.int64)
    test = arrays["a1a_mask"].astype(bool)
    return _split(X[~test], y[~test], X[test], y[test], dtype)


def mnist(*, dtype: torch.dtype = torch.float32) -> TrainTest:
    """MNIST digits as 784 pixels in [0, 1]; 60,000 train, 10,000 test.

    Returns:
        ``60000 x 784`` and ``10000 x 784`` pixels with their classes 0 to 9.
    """
    arrays = load_arrays("mnist", "mnist.npz", _fetch_mnist, _FINGERPRINTS["mnist"])
    train, test = (arrays[key].reshape(-1, 784) / 255.0 for key in ("x_train", "x_test"))
    return _split(train, arrays["y_train"], test, arrays["y_test"], dtype)


def breast_cancer(*, seed: int = 0, dtype: torch.dtype = torch.float32) -> TrainTest:
    """Scikit-learn's breast cancer data (569 x 30, two classes), bundled; features in [0, 1]."""
    with needs_extra("sklearn", "This data set"):
        from sklearn.datasets import load_breast_cancer

    X, y = load_breast_cancer(return_X_y=True)
    # Physical limits would be public; for a demonstration the observed ones do.
    X = (X - X.min(0)) / (X.max(0) - X.min(0))
    return _shuffled(X, y, seed, dtype)


def digits(*, seed: int = 0, dtype: torch.dtype = torch.float32) -> TrainTest:
    """Scikit-learn's handwritten digits (1797 x 64, ten classes), bundled; pixels in [0, 1]."""
    with needs_extra("sklearn", "This data set"):
        from sklearn.datasets import load_digits

    X, y = load_digits(return_X_y=True)
    return _shuffled(X / 16.0, y, seed, dtype)


def _split(
    train_X: NDArray[Any],
    train_Y: NDArray[Any],
    test_X: NDArray[Any],
    test_Y: NDArray[Any],
    dtype: torch.dtype,
) -> TrainTest:
    arrays = (train_X, train_Y, test_X, test_Y)
    types = (dtype, torch.long, dtype, torch.long)
    tensors = (torch.from_numpy(np.ascontiguousarray(array)) for array in arrays)
    return TrainTest(*(part.to(kind) for part, kind in zip(tensors, types, strict=True)))


def _shuffled(X: NDArray[Any], y: NDArray[Any], seed: int, dtype: torch.dtype) -> TrainTest:
    check_integer("seed", seed, at_least=0)
    order = np.random.default_rng(seed).permutation(len(X))
    cut = len(X) - round(_TEST_SHARE * len(X))
    return _split(X[order[:cut]], y[order[:cut]], X[order[cut:]], y[order[cut:]], dtype)


def load_arrays(
    name: str,
    file: str,
    fetch: Callable[[], Arrays],
    expected: str,
    read: Callable[[Path], Arrays] | None = None,
) -> Arrays:
    """The arrays of a data set: from the user's folder, from the cache, or from the network.

    Args:
        name: What the data set is called in messages and in the cache.
        file: Its file in the folder named by ``BOTORCH_DP_DATA``.
        fetch: Downloads it.
        expected: The :func:`fingerprint` that the numbers must have.
        read: Reads that file; an ``.npz`` archive by default.

    Raises:
        DatasetUnavailable: It is nowhere to be found, or has another fingerprint.
    """
    folder = os.environ.get("BOTORCH_DP_DATA")
    if folder and (own := Path(folder) / file).exists():
        return _checked(name, (read or _read_archive)(own), expected, own)
    cached = cache_folder() / f"{name}.npz"
    if cached.exists():
        return _checked(name, _read_archive(cached), expected, cached)
    try:
        arrays = fetch()
    except (urllib.error.URLError, OSError) as error:
        raise DatasetUnavailable(
            f"{name!r} could not be downloaded ({type(error).__name__}). Without a network, put "
            f"{file!r} into a folder and set BOTORCH_DP_DATA to that folder; "
            "`breast_cancer` and `digits` are always at hand."
        ) from error
    _checked(name, arrays, expected, None)
    cached.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(cached, binary=True) as stream:
        np.savez_compressed(stream, **arrays)  # type: ignore[arg-type]
    return arrays


def cache_folder() -> Path:
    """Where downloads are kept: ``~/.cache/botorch_dp``, or where XDG_CACHE_HOME says."""
    return Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "botorch_dp"


def _read_archive(path: Path) -> Arrays:
    with np.load(path, allow_pickle=False) as archive:
        return dict(archive)


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


def _checked(name: str, arrays: Arrays, expected: str, path: Path | None) -> Arrays:
    kept = {key: value for key, value in arrays.items() if key != "test_file"}
    if fingerprint(kept) != expected:
        source = "The download" if path is None else str(path)
        raise DatasetUnavailable(
            f"{source} is not the {name!r} data set this loader was written for (its fingerprint "
            "differs). Delete it and load again, or check where it came from."
        )
    return kept


def download(url: str) -> bytes:
    """The bytes behind a public address."""
    with urllib.request.urlopen(url, timeout=60) as response:
        return bytes(response.read())


def _fetch_adult() -> Arrays:
    with needs_extra("sklearn", "This data set"):
        from sklearn.datasets import load_svmlight_file

    def part(name: str) -> tuple[NDArray[np.uint8], NDArray[np.int8]]:
        # The number of features is stated: the test file lacks the last one.
        X, y = load_svmlight_file(io.BytesIO(download(_LIBSVM + name)), n_features=123)
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
    with needs_extra("sklearn", "This data set"):
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
