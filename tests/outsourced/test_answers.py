"""Private answers: charged before they are measured, bounded, with the stated noise."""

from __future__ import annotations

import math
import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from botorch_dp.errors import BudgetExhausted, PrivacyError
from botorch_dp.outsourced import GaussianNoiseCurator, PrivateAnswers
from botorch_dp.privacy import PrivacyBudget, PrivacyLedger
from tests.one_draw import OneDraw

X = torch.randn(40, 5, dtype=torch.double, generator=torch.Generator().manual_seed(3))


def curator_of(answers, measure=lambda _: 0.5, **settings) -> GaussianNoiseCurator:
    return GaussianNoiseCurator(X, measure, epsilon=1.0, delta=1e-6, answers=answers, **settings)


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

    def test_a_copied_log_replays(self, tmp_path: Path) -> None:
        """Put back from a copy, the log has forgotten the answer; the ledger has not."""
        ledger = PrivacyLedger(budget=PrivacyBudget(1.0, 0.0, summed=1.0))
        answers = PrivateAnswers(epsilon=0.3, bounds=(0.0, 1.0), ledger=ledger)
        curator_of(answers, log=tmp_path / "log").close()
        shutil.copy(tmp_path / "log", tmp_path / "copy")
        found = set()
        for name in ("log", "copy"):
            curator = curator_of(answers, log=tmp_path / name)
            found.add(curator.query(0, request_id="same"))
            curator.close()
        assert len(found) == 1
        assert ledger.spent()[0] == pytest.approx(0.3)

    def test_seeded_noise_is_never_charged(self) -> None:
        ledger = PrivacyLedger(budget=PrivacyBudget(1.0, 0.0, summed=1.0))
        answers = PrivateAnswers(epsilon=0.3, bounds=(0.0, 1.0), ledger=ledger)
        with pytest.raises(PrivacyError, match="`unsafe_seed`"):
            curator_of(answers, unsafe_seed=1)
        assert ledger.entries() == []

    def test_what_the_other_party_is_told(self) -> None:
        curator = curator_of(PrivateAnswers(epsilon=0.4, bounds=(0.0, 0.1)))
        assert str(curator.guarantee) in curator.statement
        assert "0.4-differentially private" in curator.statement
        assert "whether and when a measurement fails" in str(curator.answers.price())
        seeded = curator_of(PrivateAnswers(epsilon=0.4, bounds=(0.0, 0.1)), unsafe_seed=3)
        assert curator.statement.count("nothing is guaranteed") == 0
        assert seeded.statement.count("nothing is guaranteed") == 2

    @pytest.mark.parametrize("answer", [math.nan, math.inf, -math.inf, 1e300])
    def test_no_answer_raises(self, answer: float) -> None:
        curator = curator_of(PrivateAnswers(epsilon=1.0, bounds=(0.0, 1.0)), lambda _: answer)
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
            {"epsilon": 0.0, "bounds": (0.0, 1.0)},
            {"epsilon": 1.0, "bounds": (1.0, 0.0)},
            {"epsilon": 1.0, "bounds": (-1e308, 1e308)},
        ],
    )
    def test_wrong_settings(self, settings) -> None:
        with pytest.raises(ValueError, match="`"):
            PrivateAnswers(**settings)


@dataclass
class Opens:
    """How to open a curator on a log, or on none."""

    ledger: PrivacyLedger | None

    def query(self, checkpoint: Path | None) -> list[float]:
        curator = curator_of(
            PrivateAnswers(epsilon=0.01, bounds=(0.0, 1.0), ledger=self.ledger),
            log=checkpoint or ":memory:",
        )
        try:
            return [curator.query(index, request_id=f"row {index}") for index in range(2)]
        finally:
            curator.close()


class TestOneDraw(OneDraw):
    """Each request id is one draw and one charge."""

    draws = 2

    def make(self, ledger: PrivacyLedger | None) -> Opens:
        return Opens(ledger)

    def draw(self, thing: Opens, checkpoint: Path | None) -> list[float]:
        return thing.query(checkpoint)


class TestOneRelease(OneDraw):
    """The rows of one log are drawn once too."""

    def make(self, ledger: PrivacyLedger | None) -> PrivacyLedger | None:
        return ledger

    def draw(self, thing: PrivacyLedger | None, checkpoint: Path | None) -> list[float]:
        curator = GaussianNoiseCurator(
            X[:3], abs, epsilon=1.0, delta=1e-6, ledger=thing, log=checkpoint or ":memory:"
        )
        curator.close()
        return curator.dataset.value.flatten().tolist()
