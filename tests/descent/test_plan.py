"""The price of a run before it runs."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest

from botorch_dp.descent import DescentPlan, gradient_noise_std
from botorch_dp.descent.plan import descent_guarantee, step_privacy
from botorch_dp.privacy import PrivacyBudget, PrivacyLedger, PrivacyUnit, gaussian_mu


@pytest.mark.parametrize("steps", [1, 2, 3, 7, 25, 150, 997])
@pytest.mark.parametrize("mu", [0.1, 0.5, 1.0, 2.0, 1 / 3])
def test_steps_never_add_up_to_more_than_mu(mu: float, steps: int) -> None:
    share = step_privacy(mu, steps)
    assert steps * Fraction(share) ** 2 <= Fraction(mu) ** 2
    assert share == pytest.approx(mu / math.sqrt(steps), rel=1e-15)


@pytest.mark.parametrize("steps", [3, 25, 150])
def test_a_whole_run_fits_its_budget_exactly(steps: int) -> None:
    mu = gaussian_mu(1.0, 1e-6)
    with PrivacyLedger(budget=PrivacyBudget(1.0, 1e-6)) as ledger:
        for _ in range(steps):
            ledger.charge(descent_guarantee(mu, steps=steps, taken=1, unit=PrivacyUnit("a record")))
        assert len(ledger.entries()) == steps


def test_noise_by_hand() -> None:
    # 2 B sqrt(T) / (n mu) = 2 * 3 * 5 / (100 * 0.5)
    std = gradient_noise_std(clip_norm=3.0, mu=0.5, steps=25, num_records=100)
    assert std == pytest.approx(0.6, rel=1e-15)


def test_guarantees_grow_with_the_steps_taken() -> None:
    mus = [
        descent_guarantee(2.0, steps=16, taken=t, unit=PrivacyUnit("x")).mu for t in (1, 4, 15, 16)
    ]
    assert mus == pytest.approx([0.5, 1.0, 2.0 * math.sqrt(15 / 16), 2.0])
    assert mus[-1] == 2.0
    assert descent_guarantee(2.0, steps=16, taken=16, unit=PrivacyUnit("x")).status == "proven"


def test_no_noise_no_promise() -> None:
    guarantee = descent_guarantee(math.inf, steps=3, taken=1, unit=PrivacyUnit("x"))
    assert guarantee.status == "none"
    assert guarantee.epsilon(1e-5) == math.inf
    assert "no noise" in str(guarantee)


def plan(noise_std: float) -> DescentPlan:
    return DescentPlan(
        num_records=100,
        num_parameters=4,
        steps=25,
        evaluations=125,
        clip_norm=1.0,
        noise_std=noise_std,
        table_bytes=100_000,
        guarantee=descent_guarantee(0.5, steps=25, taken=25, unit=PrivacyUnit("one patient")),
    )


def test_a_hopeless_setting_is_called_so() -> None:
    assert plan(0.1).noise_to_clip == pytest.approx(0.2)
    assert plan(0.1).advice.startswith("Workable")
    assert plan(1.0).advice.startswith("Noisy")
    assert plan(10.0).advice.startswith("Hopeless")


def test_the_plan_can_be_read() -> None:
    text = str(plan(0.1))
    for part in ("25 steps", "125 evaluations", "0.2", "one patient", "0.5-Gaussian"):
        assert part in text
