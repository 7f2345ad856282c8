"""Guarantees to charge, and processes that charge them."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

from botorch_dp.privacy import (
    BudgetExhausted,
    Guarantee,
    NeighboringRelation,
    PrivacyLedger,
    PrivacyUnit,
)
from botorch_dp.privacy.losses import GaussianLoss, PrivacyLoss, PureLoss
from botorch_dp.privacy.rounding import float_above, sqrt_above

REPLACE = NeighboringRelation.REPLACE_ONE


def guarantee(*losses: PrivacyLoss, relation: NeighboringRelation = REPLACE) -> Guarantee:
    return Guarantee("test mechanism", PrivacyUnit(relation=relation), losses)


def pure(epsilon: float) -> Guarantee:
    return guarantee(PureLoss(epsilon))


def gaussian(mu: float) -> Guarantee:
    return guarantee(GaussianLoss(mu))


def accepts(ledger: PrivacyLedger, charge: Guarantee) -> bool:
    try:
        ledger.charge(charge)
    except BudgetExhausted:
        return False
    return True


@dataclass
class Balance:
    """What both compartments of a ledger hold, and what was spent."""

    summed_limit: tuple[float, float]
    summed_spent: tuple[float, float]
    mu_limit: float
    mu_spent: float


def balance_of(ledger: PrivacyLedger) -> Balance:
    limits, totals = ledger.compartments(), ledger._file.totals()
    assert limits is not None, "nothing was charged"
    return Balance(
        (limits.epsilon, limits.delta),
        (float_above(totals.epsilon), float_above(totals.delta)),
        limits.mu,
        sqrt_above(totals.mu_squared),
    )


def in_child(work: Callable[[], None]) -> int:
    """Run ``work`` in a fork; the process id. The child's exit code tells whether it succeeded."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    return child


def succeeded(child: int) -> bool:
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
