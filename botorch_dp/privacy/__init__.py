"""What is promised, spent and proven: guarantees, mechanisms, accounting, the ledger, audits."""

from botorch_dp.errors import BudgetExhausted, NotPublicError, PrivacyError
from botorch_dp.privacy._gaussian import (
    compose_gdp,
    gaussian_delta,
    gaussian_epsilon,
    gaussian_mu,
    pure_dp_epsilon,
    pure_dp_mu,
)
from botorch_dp.privacy.accounting import (
    DPSGD,
    dp_sgd_epsilon,
    dp_sgd_epsilons,
    dp_sgd_noise_multiplier,
    renyi_budget,
    renyi_epsilon,
)
from botorch_dp.privacy.audit import AuditReport, audit_epsilon
from botorch_dp.privacy.budget import PrivacyBudget
from botorch_dp.privacy.guarantee import (
    DEFAULT_DELTA,
    ONE_RECORD,
    ApproximateLoss,
    FixedBatchSGDLoss,
    GaussianLoss,
    Guarantee,
    LaplaceLoss,
    NeighboringRelation,
    PoissonSGDLoss,
    PrivacyLoss,
    PrivacyUnit,
    PureLoss,
    Release,
    SelectionLoss,
    check_unit,
    compose,
    warn_large_delta,
)
from botorch_dp.privacy.ledger import (
    LedgerBalance,
    LedgerEntry,
    PrivacyLedger,
    release_through,
)
from botorch_dp.privacy.mechanisms import (
    exponential_guarantee,
    exponential_mechanism,
    gaussian_guarantee,
    gaussian_mechanism,
    laplace_guarantee,
    laplace_mechanism,
    sparse_vector,
    sparse_vector_guarantee,
)
from botorch_dp.privacy.receipt import Finding, Receipt, Verification
from botorch_dp.privacy.rounding import rounded_down, rounded_up
from botorch_dp.privacy.selection import (
    BaseProfile,
    Selection,
    TrialNumber,
    selection_epsilon,
    selection_rdp,
    training_noise,
)
