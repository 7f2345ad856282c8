"""Errors cross process borders, keep their numbers and say what to do."""

from __future__ import annotations

import pickle

import pytest
import torch

from botorch_dp import PrivacyBudget, PrivacyLedger, PrivateObjective
from botorch_dp.errors import BudgetExhausted, NotPublicError, PrivacyError
from botorch_dp.pareto import DPareto
from tests.pareto.toy import problem


def test_privacy_errors_are_value_errors_and_pickle_with_their_numbers() -> None:
    assert issubclass(NotPublicError, PrivacyError) and issubclass(PrivacyError, ValueError)
    error = BudgetExhausted("no more", requested=(1.0, 0.0), remaining=(0.25, 1e-6))
    copy = pickle.loads(pickle.dumps(error))
    assert isinstance(copy, PrivacyError) and str(copy) == "no more"
    assert (copy.requested, copy.remaining) == ((1.0, 0.0), (0.25, 1e-6))


def test_a_budget_without_delta_is_named_before_a_record_is_read() -> None:
    """Nothing was spent, so nothing is exhausted."""

    def records(X: torch.Tensor) -> torch.Tensor:
        raise AssertionError("read")

    ledger = PrivacyLedger(budget=PrivacyBudget(1.0))
    how = {"bounds": (0.0, 1.0), "mu": 0.05, "ledger": ledger, "num_records": 100}
    objective = PrivateObjective(records, **how)  # type: ignore[arg-type]
    with pytest.raises(PrivacyError, match=r"needs a budget with delta > 0.*1e-6") as caught:
        objective(torch.rand(3, 2, dtype=torch.double))
    assert not isinstance(caught.value, BudgetExhausted)


def test_a_typo_is_answered_with_the_nearest_name() -> None:
    with pytest.raises(ValueError, match="Did you mean 'ehvi'"):
        DPareto(problem(), acquisition="ehiv")  # type: ignore[arg-type]
