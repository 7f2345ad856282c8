"""What is promised, spent and proven: guarantees, mechanisms, accounting, the ledger, audits."""

from botorch_dp.errors import BudgetExhausted, NotPublicError, PrivacyError
from botorch_dp.privacy.above_threshold import sparse_vector, sparse_vector_guarantee
from botorch_dp.privacy.budget import PrivacyBudget
from botorch_dp.privacy.guarantee import Guarantee, NeighboringRelation, Release, compose
from botorch_dp.privacy.ledger import LedgerBalance, LedgerEntry, PrivacyLedger
from botorch_dp.privacy.mechanisms import (
    exponential_guarantee,
    exponential_mechanism,
    gaussian_guarantee,
    gaussian_mechanism,
    laplace_guarantee,
    laplace_mechanism,
)

__all__ = [
    "BudgetExhausted",
    "Guarantee",
    "LedgerBalance",
    "LedgerEntry",
    "NeighboringRelation",
    "NotPublicError",
    "PrivacyBudget",
    "PrivacyError",
    "PrivacyLedger",
    "Release",
    "compose",
    "exponential_guarantee",
    "exponential_mechanism",
    "gaussian_guarantee",
    "gaussian_mechanism",
    "laplace_guarantee",
    "laplace_mechanism",
    "sparse_vector",
    "sparse_vector_guarantee",
]
