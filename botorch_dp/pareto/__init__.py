"""DPareto: which accuracy each epsilon buys, found with few trainings.

What owns what, in the order in which a trial passes through:

* ``study``: :class:`DPareto`, what a user calls; it holds the others and decides nothing itself.
* ``running``: the loop. Which trial is trained next, and what is stored of what comes back.
* ``proposals``: ``propose(search, trials, initial)``, a pure function, with the models of
  ``beliefs``.
* ``storage``: the file. The only place where trials change, one transaction each.
* ``workers``: one call of the utility oracle, and the calls in flight on an executor.
* ``problem``: the oracles, and the frozen records that the others hand on.

Beside it: ``front`` and ``recommending`` read trials, ``publishing`` says what showing them costs,
and ``paying`` wraps a problem so that its trainings are charged.
"""

from botorch_dp.pareto.front import ParetoFront
from botorch_dp.pareto.problem import (
    Batched,
    InvalidEpsilonError,
    InvalidUtilityError,
    Objective,
    PrivacyUtilityProblem,
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

__all__ = [
    "Batched",
    "Choice",
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
    "TrainingPromise",
    "Trial",
    "TruncatedNormal",
    "Uniform",
    "When",
]
