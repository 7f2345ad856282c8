"""Guarantees, mechanisms, accounting, the ledger, receipts and audits.

What draws noise, and what reads results, needs torch, and is loaded when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from botorch_dp.errors import BudgetExhausted, NotPublicError, PrivacyError
from botorch_dp.privacy.accounting import (
    DPSGD,
    dp_sgd_epsilon,
    dp_sgd_epsilons,
    dp_sgd_noise_multiplier,
)
from botorch_dp.privacy.budget import PrivacyBudget
from botorch_dp.privacy.guarantee import Guarantee, PrivacyUnit, Release, compose
from botorch_dp.privacy.ledger import PrivacyLedger
from botorch_dp.privacy.losses import (
    ApproximateLoss,
    GaussianLoss,
    LaplaceLoss,
    NeighboringRelation,
    PureLoss,
)
from botorch_dp.privacy.pld.gaussian import (
    compose_gdp,
    gaussian_delta,
    gaussian_epsilon,
    gaussian_mu,
    pure_dp_epsilon,
)
from botorch_dp.privacy.selection import TrialNumber

if TYPE_CHECKING:  # the same names as below, which a test compares
    from botorch_dp.privacy.audit import AuditReport, audit_epsilon
    from botorch_dp.privacy.mechanisms import (
        exponential_guarantee,
        exponential_mechanism,
        gaussian_guarantee,
        gaussian_mechanism,
        laplace_guarantee,
        laplace_mechanism,
    )
    from botorch_dp.privacy.receipt import Receipt
    from botorch_dp.privacy.sparse_vector_technique import sparse_vector, sparse_vector_guarantee

_LATE = {
    "audit": (
        "AuditReport",
        "audit_epsilon",
    ),
    "mechanisms": (
        "exponential_guarantee",
        "exponential_mechanism",
        "gaussian_guarantee",
        "gaussian_mechanism",
        "laplace_guarantee",
        "laplace_mechanism",
    ),
    "receipt": ("Receipt",),
    "sparse_vector_technique": (
        "sparse_vector",
        "sparse_vector_guarantee",
    ),
}
_HOME = {name: module for module, names in _LATE.items() for name in names}
__all__ = [
    "DPSGD",
    "ApproximateLoss",
    "AuditReport",
    "BudgetExhausted",
    "GaussianLoss",
    "Guarantee",
    "LaplaceLoss",
    "NeighboringRelation",
    "NotPublicError",
    "PrivacyBudget",
    "PrivacyError",
    "PrivacyLedger",
    "PrivacyUnit",
    "PureLoss",
    "Receipt",
    "Release",
    "TrialNumber",
    "audit_epsilon",
    "compose",
    "compose_gdp",
    "dp_sgd_epsilon",
    "dp_sgd_epsilons",
    "dp_sgd_noise_multiplier",
    "exponential_guarantee",
    "exponential_mechanism",
    "gaussian_delta",
    "gaussian_epsilon",
    "gaussian_guarantee",
    "gaussian_mechanism",
    "gaussian_mu",
    "laplace_guarantee",
    "laplace_mechanism",
    "pure_dp_epsilon",
    "sparse_vector",
    "sparse_vector_guarantee",
]


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
