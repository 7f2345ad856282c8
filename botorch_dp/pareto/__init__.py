"""DPareto: which accuracy each epsilon buys, found with few trainings.

What owns what, in the order in which a trial passes through:

* ``study``: :class:`DPareto`, what a user calls, with the loop: which trial is trained next, and
  the trainings in flight on an executor.
* ``proposals``: ``propose(proposer, trials, initial)``, a pure function, with the models of
  ``surrogates``.
* ``storage``: the file. The only place where trials change, one transaction each.
* ``problem``: the functions of a study, and the immutable records that the others hand on.

Beside it: ``front`` and ``recommendation`` read trials, ``publication`` says what showing them
costs, and ``charges`` wraps a problem so that its trainings are charged.
"""

from botorch_dp.pareto.front import ParetoFront
from botorch_dp.pareto.problem import (
    Batched,
    Objective,
    PrivacyUtilityProblem,
    StudyError,
    TrainingPrivacy,
    Trial,
)
from botorch_dp.pareto.recommendation import OperatingPoint
from botorch_dp.pareto.study import DPareto

__all__ = [
    "Batched",
    "DPareto",
    "Objective",
    "OperatingPoint",
    "ParetoFront",
    "PrivacyUtilityProblem",
    "StudyError",
    "TrainingPrivacy",
    "Trial",
]
