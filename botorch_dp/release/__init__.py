"""Private releases of a Bayesian optimization: the maximizer and the maximum.

Each release is one class: ``guarantee`` says what it guarantees and costs, ``utility()`` what it is
worth, and ``release(..., ledger=)`` makes it.
"""

from botorch_dp.release.assumptions import UtilityBound, UtilityWarning
from botorch_dp.release.choice import PrivateChoice
from botorch_dp.release.maximum import (
    LipschitzMaximum,
    NoiseFreeMaximum,
    PrivateMaximum,
)
from botorch_dp.release.private_ucb import (
    GPUCB,
    BranchAndBound,
    BranchAndBoundUCB,
    PrivateGPUCB,
    PrivateOptimum,
    SearchDiagnostics,
)

__all__ = [
    "GPUCB",
    "BranchAndBound",
    "BranchAndBoundUCB",
    "LipschitzMaximum",
    "NoiseFreeMaximum",
    "PrivateChoice",
    "PrivateGPUCB",
    "PrivateMaximum",
    "PrivateOptimum",
    "SearchDiagnostics",
    "UtilityBound",
    "UtilityWarning",
]
