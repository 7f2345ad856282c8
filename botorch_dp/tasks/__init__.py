"""Ready problems from the papers, each with a version that needs no download.

The names are loaded when they are first used, so that the command line can list them, and refuse a
misspelt one, without loading what they need.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from botorch_dp._checks import did_you_mean

if TYPE_CHECKING:
    from botorch_dp.tasks.learning import (
        adult_logistic_adam,
        adult_logistic_sgd,
        adult_svm_sgd,
        mnist_mlp1_sgd,
        mnist_mlp2_sgd,
        private_logistic_regression,
    )
    from botorch_dp.tasks.queries import (
        SparseVectorUtility,
        sparse_vector,
        sparse_vector_epsilon,
    )

#: The ready problems, and the data sets that each can be made with (none: it needs no data).
READY: dict[str, tuple[str, ...]] = {
    "adult_logistic_adam": ("adult", "breast_cancer"),
    "adult_logistic_sgd": ("adult", "breast_cancer"),
    "adult_svm_sgd": ("adult", "breast_cancer"),
    "mnist_mlp1_sgd": ("mnist", "digits"),
    "mnist_mlp2_sgd": ("mnist", "digits"),
    "private_logistic_regression": ("adult", "breast_cancer"),
    "sparse_vector": (),
}

_NAMES = (*READY, "SparseVectorUtility", "sparse_vector_epsilon")


def __getattr__(name: str) -> object:
    if name not in _NAMES:
        guess = did_you_mean(name, _NAMES)
        raise AttributeError(f"module 'botorch_dp.tasks' has no attribute {name!r}.{guess}")
    module = "queries" if name.lower().startswith("sparse") else "learning"
    value = getattr(import_module(f"botorch_dp.tasks.{module}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_NAMES])
