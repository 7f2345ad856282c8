"""BoTorch acquisition functions: they know models, not privacy."""

from botorch_dp.acquisition.gradient_trace import (
    GradientTrace,
    gen_gradient_trace_initial_conditions,
)
from botorch_dp.acquisition.hvpoi import (
    HypervolumeProbabilityOfImprovement,
    LogHypervolumeProbabilityOfImprovement,
)
from botorch_dp.acquisition.input_constructors import register_with_ax
from botorch_dp.acquisition.ucb import PrivateUpperConfidenceBound, UCBSchedule

__all__ = [
    "GradientTrace",
    "HypervolumeProbabilityOfImprovement",
    "LogHypervolumeProbabilityOfImprovement",
    "PrivateUpperConfidenceBound",
    "UCBSchedule",
    "gen_gradient_trace_initial_conditions",
    "register_with_ax",
]
