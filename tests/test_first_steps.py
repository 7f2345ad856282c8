"""What a newcomer gets wrong is answered in words that lead on."""

from __future__ import annotations

import pytest
import torch

import botorch_dp
from botorch_dp import PrivacyBudget, PrivacyLedger, PrivateObjective
from botorch_dp.errors import BudgetExhausted, PrivacyError
from botorch_dp.pareto import DPareto
from botorch_dp.privacy import exponential_mechanism, gaussian_guarantee, laplace_guarantee
from tests.pareto.toy import problem


class TestBudgetWithoutDelta:
    def test_gaussian_noise_needs_one(self) -> None:
        """Nothing was spent, so nothing is exhausted."""
        ledger = PrivacyLedger(budget=PrivacyBudget(1.0))
        with pytest.raises(PrivacyError, match=r"needs a budget with delta > 0.*1e-6") as caught:
            ledger.charge(gaussian_guarantee(sensitivity=1.0, mu=0.05))
        assert not isinstance(caught.value, BudgetExhausted)
        ledger.charge(laplace_guarantee(sensitivity=1.0, epsilon=1.0))

    def test_before_a_record_is_read(self) -> None:
        def records(X: torch.Tensor) -> torch.Tensor:
            raise AssertionError("read")

        ledger = PrivacyLedger(budget=PrivacyBudget(1.0))
        objective = PrivateObjective(
            records, bounds=(0.0, 1.0), mu=0.05, ledger=ledger, num_records=100
        )
        with pytest.raises(PrivacyError, match="delta > 0"):
            objective(torch.rand(3, 2, dtype=torch.double))

    def test_one_that_was_spent_is_exhausted(self) -> None:
        ledger = PrivacyLedger(budget=PrivacyBudget(1.0, 1e-6))
        with pytest.raises(BudgetExhausted):
            ledger.charge(gaussian_guarantee(sensitivity=1.0, mu=9.0))


def test_shapes_have_the_names_of_their_dimensions() -> None:
    objective = PrivateObjective(
        lambda X: torch.rand(len(X), 100, dtype=torch.double), bounds=(0.0, 1.0), mu=0.05
    )
    with pytest.raises(ValueError, match=r"`X` must have shape b x d, got \(2,\)"):
        objective(torch.rand(2, dtype=torch.double))


class TestTypos:
    def test_in_a_choice(self) -> None:
        with pytest.raises(ValueError, match="Did you mean 'ehvi'"):
            DPareto(problem(), acquisition="ehiv")  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="Did you mean 'permute_and_flip'"):
            exponential_mechanism(
                torch.tensor([1.0, 2.0]),
                sensitivity=1.0,
                epsilon=1.0,
                method="permute_and_filp",  # type: ignore[arg-type]
            )

    def test_in_a_name_of_the_package(self) -> None:
        with pytest.raises(AttributeError, match="Did you mean 'PrivateSearch'"):
            _ = botorch_dp.PrivateSerach
