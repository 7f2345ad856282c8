"""Budgets and their two parts: what is refused, and rounding that is safe and tight."""

from __future__ import annotations

import math
import random
from fractions import Fraction

import pytest

from botorch_dp.privacy import PrivacyBudget, PrivacyLedger
from botorch_dp.privacy.pld.gaussian import gaussian_epsilon
from botorch_dp.privacy.rounding import float_above, float_below, sqrt_above, sqrt_below
from tests.privacy.charging import balance_of


@pytest.mark.parametrize(
    ("epsilon", "delta", "name"),
    [
        (math.nan, 1e-6, "epsilon"),
        (0.0, 1e-6, "epsilon"),
        (1.0, -1e-6, "delta"),
        (1.0, 1.0, "delta"),
    ],
)
def test_budget_refuses_impossible_numbers(epsilon: float, delta: float, name: str) -> None:
    with pytest.raises(ValueError, match=name):
        PrivacyBudget(epsilon, delta)


@pytest.mark.parametrize(
    "summed", [math.nan, -0.1, 1.1, (2.0, 0.0), (0.5, 1e-5), (0.1,), (math.nan, 0.0), (1.0, 0.0)]
)
def test_budget_refuses_impossible_shares(summed: float | tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="summed"):
        PrivacyBudget(1.0, 1e-6, summed=summed)  # type: ignore[arg-type]


def test_parts_never_exceed_the_whole() -> None:
    rng = random.Random(0)
    for _ in range(200):
        epsilon, share = rng.uniform(0.01, 10), rng.random()
        with PrivacyLedger(budget=PrivacyBudget(epsilon, 1e-5, summed=share)) as ledger:
            balance = balance_of(ledger)
            summed, rest = (
                balance.summed_limit[0],
                gaussian_epsilon(
                    balance.mu_limit,
                    float_below(Fraction(1e-5) - Fraction(balance.summed_limit[1])),
                ),
            )
            assert Fraction(summed) + Fraction(rest) <= Fraction(epsilon) * (1 + Fraction(1, 10**9))
            assert summed == pytest.approx(share * epsilon)


def test_rounding_is_safe_and_tight() -> None:
    rng = random.Random(1)
    for _ in range(300):
        root = rng.uniform(0, 4) * 10.0 ** rng.randint(-200, 100)
        assert sqrt_above(Fraction(root) ** 2) == root == sqrt_below(Fraction(root) ** 2)
        square = Fraction(root) ** 2 + Fraction(rng.uniform(0, 1e-3)) * Fraction(root)
        assert Fraction(sqrt_below(square)) ** 2 <= square <= Fraction(sqrt_above(square)) ** 2
        assert sqrt_above(square) <= math.nextafter(sqrt_below(square), math.inf)
        third = Fraction(root) / 3
        assert Fraction(float_below(third)) <= third <= Fraction(float_above(third))
