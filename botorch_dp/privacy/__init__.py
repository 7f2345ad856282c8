"""What is promised, spent and proven: guarantees, mechanisms, accounting, the ledger, audits."""

from botorch_dp.errors import BudgetExhausted, NotPublicError, PrivacyError
from botorch_dp.privacy.guarantee import Guarantee, NeighboringRelation, Release, compose

__all__ = [
    "BudgetExhausted",
    "Guarantee",
    "NeighboringRelation",
    "NotPublicError",
    "PrivacyError",
    "Release",
    "compose",
]
