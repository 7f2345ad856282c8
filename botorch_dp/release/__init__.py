"""Private releases of a Bayesian optimization: the maximizer and the maximum.

Each release is one class: ``guarantee`` says what it promises and costs, ``utility()`` what it is
worth, and ``release(..., ledger=)`` makes it. The functions do the same in one call.
"""

from botorch_dp.release.assumptions import UtilityBound, UtilityWarning
from botorch_dp.release.choice import (
    LinearChoice,
    MaxVarianceDesign,
    PrivateChoice,
    PublicDesign,
    SobolDesign,
    StatedDesign,
    release_choice,
    release_linear_choice,
)
from botorch_dp.release.maximum import (
    LipschitzMaximum,
    NoiseFreeMaximum,
    PrivateMaximum,
    release_lipschitz_maximum,
    release_maximum,
    release_noise_free_maximum,
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
    "LinearChoice",
    "LipschitzMaximum",
    "MaxVarianceDesign",
    "NoiseFreeMaximum",
    "PrivateChoice",
    "PrivateGPUCB",
    "PrivateMaximum",
    "PrivateOptimum",
    "PublicDesign",
    "SearchDiagnostics",
    "SobolDesign",
    "StatedDesign",
    "UtilityBound",
    "UtilityWarning",
    "release_choice",
    "release_linear_choice",
    "release_lipschitz_maximum",
    "release_maximum",
    "release_noise_free_maximum",
]
