"""Private releases of a Bayesian optimization: the maximizer and the maximum."""

from botorch_dp.release.bounds import NoiseFreeMaximum, NoisyMaximum
from botorch_dp.release.choice import (
    ChoiceMechanism,
    choice_guarantee,
    choice_utility,
    release_choice,
)
from botorch_dp.release.designs import (
    MaxVarianceDesign,
    PublicDesign,
    SobolDesign,
    StatedDesign,
)
from botorch_dp.release.linear import (
    LinearChoiceMechanism,
    linear_choice_guarantee,
    release_linear_choice,
)
from botorch_dp.release.lipschitz import LipschitzMaximum
from botorch_dp.release.maximum import (
    release_lipschitz_maximum,
    release_maximum,
    release_noise_free_maximum,
)
from botorch_dp.release.plan import PrivateOptimum, ReleasePlan
from botorch_dp.release.private_ucb import BranchAndBoundUCB, PrivateGPUCB
from botorch_dp.release.search import GPUCB, BranchAndBound, SearchDiagnostics
from botorch_dp.release.utility import UtilityBound, UtilityWarning

__all__ = [
    "GPUCB",
    "BranchAndBound",
    "BranchAndBoundUCB",
    "ChoiceMechanism",
    "LinearChoiceMechanism",
    "LipschitzMaximum",
    "MaxVarianceDesign",
    "NoiseFreeMaximum",
    "NoisyMaximum",
    "PrivateGPUCB",
    "PrivateOptimum",
    "PublicDesign",
    "ReleasePlan",
    "SearchDiagnostics",
    "SobolDesign",
    "StatedDesign",
    "UtilityBound",
    "UtilityWarning",
    "choice_guarantee",
    "choice_utility",
    "linear_choice_guarantee",
    "release_choice",
    "release_linear_choice",
    "release_lipschitz_maximum",
    "release_maximum",
    "release_noise_free_maximum",
]
