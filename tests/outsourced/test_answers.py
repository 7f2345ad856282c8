"""Private answers: charged before they are measured, bounded, with the stated noise."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from botorch_dp.errors import BudgetExhausted
from botorch_dp.outsourced import GaussianNoiseCurator, PrivateAnswers
from botorch_dp.privacy import PrivacyBudget, PrivacyLedger

X = torch.randn(40, 5, dtype=torch.double, generator=torch.Generator().manual_seed(3))


class TestPrivateAnswers:
    def test_each_answer_is_charged_before_it_is_measured(self) -> None:
        calls = []

        def measure(index: int) -> float:
            calls.append(index)
            return 0.5

        ledger = PrivacyLedger(budget=PrivacyBudget(1.0, 1e-6, summed=1.0))
        answers = PrivateAnswers(epsilon=0.4, bounds=(0.0, 1.0), ledger=ledger)
        curator = GaussianNoiseCurator(X, measure, epsilon=1.0, delta=1e-6, answers=answers)
        first = curator.query(0, request_id="a")
        assert first != 0.5
        assert curator.query(0, request_id="a") == first
        curator.query(1)
        with pytest.raises(BudgetExhausted):
            curator.query(2)
        assert calls == [0, 1]
        assert ledger.spent()[0] == pytest.approx(0.8)

    def test_another_log_pays_again(self, tmp_path: Path) -> None:
        """A known request id must not buy a second draw of noise from a curator that forgot."""
        ledger = PrivacyLedger(tmp_path / "ledger", PrivacyBudget(1.0, 0.0, summed=1.0))
        answers = PrivateAnswers(epsilon=0.4, bounds=(0.0, 1.0), ledger=ledger)

        def curator(log: str | Path) -> GaussianNoiseCurator:
            return GaussianNoiseCurator(
                X, lambda _: 0.5, epsilon=1.0, delta=1e-6, answers=answers, log=log
            )

        first = curator(":memory:").query(0, request_id="same")
        assert ledger.spent()[0] == pytest.approx(0.4)
        # Started again without a file, it asks the ledger again ...
        second = curator(":memory:").query(0, request_id="same")
        assert ledger.spent()[0] == pytest.approx(0.8)
        assert first != second
        with pytest.raises(BudgetExhausted):
            curator(":memory:").query(0, request_id="same")

    def test_an_interrupted_answer_is_paid_once(self, tmp_path: Path) -> None:
        calls = []

        def dies_once(index: int) -> float:
            calls.append(index)
            if len(calls) == 1:
                raise KeyboardInterrupt
            return 0.5

        ledger = PrivacyLedger(budget=PrivacyBudget(1.0, 0.0, summed=1.0))
        answers = PrivateAnswers(epsilon=0.4, bounds=(0.0, 1.0), ledger=ledger)
        for attempt in range(2):
            curator = GaussianNoiseCurator(
                X, dies_once, epsilon=1.0, delta=1e-6, answers=answers, log=tmp_path / "log"
            )
            if attempt == 0:
                with pytest.raises(KeyboardInterrupt):
                    curator.query(0, request_id="same")
            else:
                curator.query(0, request_id="same")
        assert ledger.spent()[0] == pytest.approx(0.4)
        assert curator.num_queries == 1

    def test_guarantee(self) -> None:
        proven = PrivateAnswers(epsilon=0.4, bounds=(0.0, 2.0)).guarantee
        assert (proven.status, proven.epsilon()) == ("proven", 0.4)
        stated = PrivateAnswers(epsilon=0.4, sensitivity=0.1).guarantee
        assert stated.status == "proven"
        assert "at most 0.1" in stated.conditions[0]

    @pytest.mark.parametrize("answer", [math.nan, math.inf, -math.inf, 1e300])
    def test_no_answer_raises(self, answer: float) -> None:
        for answers in [
            PrivateAnswers(epsilon=1.0, bounds=(0.0, 1.0)),
            PrivateAnswers(epsilon=1.0, sensitivity=1.0),
        ]:
            curator = GaussianNoiseCurator(
                X, lambda _: answer, epsilon=1.0, delta=1e-6, answers=answers
            )
            assert math.isfinite(curator.query(0))

    def test_noise_scale(self) -> None:
        answers = PrivateAnswers(epsilon=0.5, bounds=(0.0, 1.0))
        curator = GaussianNoiseCurator(
            X, lambda _: 7.0, epsilon=1.0, delta=1e-6, answers=answers, unsafe_seed=1
        )
        draws = torch.tensor([curator.query(0) for _ in range(2000)])
        # |Laplace| has mean and standard deviation equal to the scale (here 2).
        spread = (draws - 1.0).abs().mean().item()
        assert spread == pytest.approx(2.0, abs=4.9 * 2.0 / math.sqrt(2000))

    @pytest.mark.parametrize(
        "settings",
        [
            {"epsilon": 0.0, "sensitivity": 1.0},
            {"epsilon": 1.0},
            {"epsilon": 1.0, "sensitivity": 1.0, "bounds": (0.0, 1.0)},
            {"epsilon": 1.0, "bounds": (1.0, 0.0)},
            {"epsilon": 1.0, "sensitivity": math.inf},
        ],
    )
    def test_wrong_settings(self, settings) -> None:
        with pytest.raises(ValueError, match="`"):
            PrivateAnswers(**settings)
