"""What is promised, spent and proven: guarantees, mechanisms, accounting, the ledger, audits."""

from botorch_dp.errors import BudgetExhausted, NotPublicError, PrivacyError
from botorch_dp.privacy.above_threshold import sparse_vector, sparse_vector_guarantee
from botorch_dp.privacy.accounting import (
    compose_gdp,
    dp_sgd_epsilon,
    dp_sgd_epsilons,
    dp_sgd_loss,
    dp_sgd_noise_multiplier,
    dp_sgd_relation,
    gaussian_delta,
    gaussian_epsilon,
    gaussian_mu,
    pure_dp_epsilon,
    pure_dp_mu,
)
from botorch_dp.privacy.audit import AuditReport, audit_epsilon
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
    "AuditReport",
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
    "audit_epsilon",
    "compose",
    "compose_gdp",
    "dp_sgd_epsilon",
    "dp_sgd_epsilons",
    "dp_sgd_loss",
    "dp_sgd_noise_multiplier",
    "dp_sgd_relation",
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
    "pure_dp_mu",
    "sparse_vector",
    "sparse_vector_guarantee",
]
