"""DPareto: which accuracy each epsilon buys, found with few trainings."""

from botorch_dp.pareto.front import ParetoFront
from botorch_dp.pareto.given_epsilon import given_epsilon
from botorch_dp.pareto.problem import (
    Batched,
    InvalidEpsilonError,
    InvalidUtilityError,
    Objective,
    PrivacyUtilityProblem,
    Resource,
    StudyError,
    TrainingPromise,
    Trial,
)
from botorch_dp.pareto.recommending import OperatingPoint
from botorch_dp.pareto.study import DPareto
from botorch_dp.pareto.workers import ExecutorDiedError
from botorch_dp.space import (
    Choice,
    Integer,
    Real,
    SearchSpace,
    ShiftedExponential,
    TruncatedNormal,
    Uniform,
    When,
)
