"""Errors cross process borders and keep their numbers."""

from __future__ import annotations

import pickle

import pytest

from botorch_dp.errors import BudgetExhausted, NotPublicError, PrivacyError


def test_privacy_errors_are_value_errors() -> None:
    assert issubclass(PrivacyError, ValueError)
    assert issubclass(NotPublicError, PrivacyError)
    assert issubclass(BudgetExhausted, PrivacyError)


def test_budget_exhausted_pickles_with_its_numbers() -> None:
    error = BudgetExhausted("no more", requested=(1.0, 0.0), remaining=(0.25, 1e-6))
    copy = pickle.loads(pickle.dumps(error))
    assert isinstance(copy, BudgetExhausted)
    assert str(copy) == "no more"
    assert copy.requested == (1.0, 0.0)
    assert copy.remaining == (0.25, 1e-6)
    with pytest.raises(ValueError, match="no more"):
        raise copy
