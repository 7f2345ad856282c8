"""Private answers: charged before they are measured, bounded, with the stated noise."""

from __future__ import annotations

import math
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from fractions import Fraction
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

    def test_another_log_is_charged_again(self, tmp_path: Path) -> None:
        """A known request id must not buy a second draw of noise from a curator that forgot."""
        ledger = PrivacyLedger(tmp_path / "ledger", PrivacyBudget(1.0, 0.0, summed=1.0))
        answers = PrivateAnswers(epsilon=0.4, bounds=(0.0, 1.0), ledger=ledger)

        def curator(log: str | Path) -> GaussianNoiseCurator:
            return GaussianNoiseCurator(
                X, lambda _: 0.5, epsilon=1.0, delta=1e-6, answers=answers, log=log
            )

        first = curator(tmp_path / "log").query(0, request_id="same")
        assert ledger.spent()[0] == pytest.approx(0.4)
        # Started again without a file, it asks the ledger again ...
        second = curator(":memory:").query(0, request_id="same")
        assert ledger.spent()[0] == pytest.approx(0.8)
        assert first != second
        with pytest.raises(BudgetExhausted):
            curator(":memory:").query(0, request_id="same")

    def test_an_interrupted_answer_is_charged_once(self, tmp_path: Path) -> None:
        calls = []

        def dies_twice(index: int) -> float:
            calls.append(index)
            if len(calls) <= 2:
                raise KeyboardInterrupt
            return 0.5

        ledger = PrivacyLedger(budget=PrivacyBudget(1.0, 0.0, summed=1.0))
        answers = PrivateAnswers(epsilon=0.4, bounds=(0.0, 1.0), ledger=ledger)
        for attempt in range(3):
            curator = curator_of(answers, measure=dies_twice, log=tmp_path / "log")
            if attempt < 2:
                with pytest.raises(KeyboardInterrupt):
                    curator.query(0, request_id="same")
            else:
                curator.query(0, request_id="same")
            curator.close()
        assert ledger.spent()[0] == pytest.approx(0.4)
        assert curator.num_queries == 1

    def test_an_answer_that_the_log_cannot_keep_is_still_one_draw(self) -> None:
        ledger = PrivacyLedger(budget=PrivacyBudget(1.0, 0.0, summed=1.0))
        curator = curator_of(PrivateAnswers(epsilon=0.3, bounds=(0.0, 1.0), ledger=ledger))
        keep, drawn = curator._run.add, []

        def no_space(series: str, number: int, value: object) -> None:
            if series == "answer":
                drawn.append(value)
                raise OSError("no space left")

        curator._run.add = no_space  # type: ignore[method-assign]
        for _ in range(3):
            with pytest.raises(OSError, match="no space"):
                curator.query(0, request_id="same")
        curator._run.add = keep  # type: ignore[method-assign]
        assert {curator.query(0, request_id="same")} == set(drawn)
        assert ledger.spent()[0] == pytest.approx(0.3)

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

    def test_one_question_at_once_is_one_draw(self) -> None:
        ledger = PrivacyLedger(budget=PrivacyBudget(1.0, 0.0, summed=1.0))
        answers = PrivateAnswers(epsilon=0.3, bounds=(0.0, 1.0), ledger=ledger)
        curator = curator_of(answers, measure=lambda _: time.sleep(0.05) or 0.5)
        with ThreadPoolExecutor(6) as pool:
            found = list(pool.map(lambda _: curator.query(0, request_id="same"), range(6)))
        assert len(set(found)) == 1
        assert ledger.spent()[0] == pytest.approx(0.3)
        assert curator.num_queries == 1

    def test_seeded_noise_is_never_charged(self) -> None:
        ledger = PrivacyLedger(budget=PrivacyBudget(1.0, 0.0, summed=1.0))
        answers = PrivateAnswers(epsilon=0.3, bounds=(0.0, 1.0), ledger=ledger)
        with pytest.raises(PrivacyError, match="`unsafe_seed`"):
            curator_of(answers, unsafe_seed=1)
        assert ledger.entries() == []

    def test_price_and_conditions(self) -> None:
        bounded = PrivateAnswers(epsilon=0.4, bounds=(0.0, 2.0)).price()
        assert (bounded.status, bounded.epsilon()) == ("proven", 0.4)
        assert "whether and when a measurement fails" in str(bounded)

    def test_what_the_other_party_is_told(self) -> None:
        curator = curator_of(PrivateAnswers(epsilon=0.4, bounds=(0.0, 0.1)))
        assert str(curator.guarantee) in curator.promise
        assert "0.4-differentially private" in curator.promise
        assert "no guarantee covers them" in curator_of(None).promise
        seeded = curator_of(PrivateAnswers(epsilon=0.4, bounds=(0.0, 0.1)), unsafe_seed=3)
        assert curator.promise.count("nothing is promised") == 0
        assert seeded.promise.count("nothing is promised") == 2

    def test_width_is_never_rounded_down(self) -> None:
        low, high = -1e-17, 1.0
        width = PrivateAnswers(epsilon=1.0, bounds=(low, high)).width
        assert Fraction(high) - Fraction(low) <= Fraction(width) <= Fraction(1 + 2**-52)

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
