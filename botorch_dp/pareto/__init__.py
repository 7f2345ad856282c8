"""DPareto: which accuracy each epsilon buys, found with few trainings."""

from botorch_dp.pareto.front import OperatingPoint, ParetoFront
from botorch_dp.pareto.problem import (
    InvalidEpsilonError,
    InvalidUtilityError,
    Objective,
    PrivacyUtilityProblem,
)
from botorch_dp.pareto.study import DPareto
from botorch_dp.pareto.trials import ExecutorDiedError, StudyError, Trial
from botorch_dp.space import (
    Integer,
    Real,
    SearchSpace,
    ShiftedExponential,
    TruncatedNormal,
    Uniform,
)

__all__ = [
    "DPareto",
    "ExecutorDiedError",
    "Integer",
    "InvalidEpsilonError",
    "InvalidUtilityError",
    "Objective",
    "OperatingPoint",
    "ParetoFront",
    "PrivacyUtilityProblem",
    "Real",
    "SearchSpace",
    "ShiftedExponential",
    "StudyError",
    "Trial",
    "TruncatedNormal",
    "Uniform",
]
