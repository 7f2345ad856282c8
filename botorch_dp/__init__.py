"""Differentially private tuning and training on BoTorch, GPyTorch and Opacus.

The names below open everything; each is loaded when it is first used, so that ``import
botorch_dp`` alone takes no time.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

__version__ = "0.4.0"

if TYPE_CHECKING:  # the same names as below, which a test compares
    from botorch_dp.descent import DPGIBO
    from botorch_dp.integrations.estimators import PrivateScaler
    from botorch_dp.objectives import PrivateObjective
    from botorch_dp.outsourced import GaussianNoiseCurator, Modeler
    from botorch_dp.pareto import DPareto, PrivacyUtilityProblem
    from botorch_dp.privacy import Guarantee, PrivacyBudget, PrivacyLedger, Receipt, Release
    from botorch_dp.release import PrivateChoice, PrivateGPUCB, PrivateMaximum
    from botorch_dp.space import Choice, Integer, Real, SearchSpace
    from botorch_dp.training import DPTrainer
    from botorch_dp.tuning import PrivateFit, PrivateSearch, PrivateSelection

_SUBPACKAGES = {
    "descent": ("DPGIBO",),
    "integrations.estimators": ("PrivateScaler",),
    "objectives": ("PrivateObjective",),
    "outsourced": ("GaussianNoiseCurator", "Modeler"),
    "pareto": ("DPareto", "PrivacyUtilityProblem"),
    "privacy": ("Guarantee", "PrivacyBudget", "PrivacyLedger", "Receipt", "Release"),
    "release": ("PrivateChoice", "PrivateGPUCB", "PrivateMaximum"),
    "space": ("Choice", "Integer", "Real", "SearchSpace"),
    "training": ("DPTrainer",),
    "tuning": ("PrivateFit", "PrivateSearch", "PrivateSelection"),
}
_HOME = {name: module for module, names in _SUBPACKAGES.items() for name in names}
__all__ = [
    "DPGIBO",
    "Choice",
    "DPTrainer",
    "DPareto",
    "GaussianNoiseCurator",
    "Guarantee",
    "Integer",
    "Modeler",
    "PrivacyBudget",
    "PrivacyLedger",
    "PrivacyUtilityProblem",
    "PrivateChoice",
    "PrivateFit",
    "PrivateGPUCB",
    "PrivateMaximum",
    "PrivateObjective",
    "PrivateScaler",
    "PrivateSearch",
    "PrivateSelection",
    "Real",
    "Receipt",
    "Release",
    "SearchSpace",
]


def __getattr__(name: str) -> object:
    if name not in _HOME:
        from botorch_dp._checks import did_you_mean

        guess = did_you_mean(name, __all__)
        raise AttributeError(f"module 'botorch_dp' has no attribute {name!r}.{guess}")
    value = getattr(import_module(f"botorch_dp.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
