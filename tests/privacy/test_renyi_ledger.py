"""A ledger that adds up Rényi divergences of one order, so that DP-SGD need not be summed."""

from __future__ import annotations

import math
from fractions import Fraction
from pathlib import Path

import pytest

from botorch_dp.errors import BudgetExhausted, PrivacyError
from botorch_dp.privacy import (
    DPSGD,
    ApproximateLoss,
    GaussianLoss,
    Guarantee,
    PrivacyBudget,
    PrivacyLedger,
    PrivacyUnit,
    PureLoss,
)
from botorch_dp.privacy.losses import PoissonSGDLoss
from botorch_dp.privacy.pld.renyi import renyi_epsilon
from botorch_dp.privacy.rounding import sqrt_below
from tests.privacy.charging import REPLACE, accepts, balance_of, gaussian, guarantee, pure

BUDGET = PrivacyBudget(1.0, 1e-5, renyi=True)
RUN = DPSGD(noise_multiplier=4.0, batch_size=100, num_records=10_000, steps=200).loss()


def order_of(ledger: PrivacyLedger) -> float:
    compartments = ledger.compartments()
    assert compartments is not None and compartments.order is not None
    return compartments.order


def test_trainings_are_charged_as_what_they_are() -> None:
    training = Guarantee("DP-SGD", PrivacyUnit(), (RUN,))
    one = training.epsilon(1e-6)
    with PrivacyLedger(budget=BUDGET) as ledger:
        count = 0
        while accepts(ledger, training):
            count += 1
        order = order_of(ledger)
        assert order == 1 + 2 * math.log(1e5) / 1.0
        # By hand: as many as their divergences of this order allow, and no more.
        divergence = RUN.rdp(order)
        assert renyi_epsilon(count * divergence, order, 1e-5) <= 1.0
        assert renyi_epsilon((count + 1) * divergence, order, 1e-5) > 1.0
        assert ledger.spent()[0] <= 1.0 and ledger.spent()[1] == 1e-5
    # Several times as many as when epsilons are summed, which is what there was before.
    assert count > 3 * math.floor(1.0 / one)
    with (
        PrivacyLedger(budget=PrivacyBudget(1.0, 1e-5)) as ledger,
        pytest.raises(PrivacyError, match="neither Gaussian nor a sum"),
    ):
        ledger.charge(training)


@pytest.mark.parametrize("half", [False, True])
def test_exactly_what_is_left_is_granted(half: bool) -> None:
    with PrivacyLedger(budget=BUDGET) as probe:
        probe.charge(gaussian(1e-6))
        order, whole = order_of(probe), balance_of(probe).mu_limit
    # The divergence of a Gaussian is order mu^2 / 2.
    assert renyi_epsilon(order * whole**2 / 2, order, 1e-5) == pytest.approx(1.0)
    spent = whole / 2 if half else 0.0
    rest = math.sqrt(whole**2 - spent**2)
    for factor, granted in ((1 - 1e-12, True), (1 + 1e-9, False)):
        with PrivacyLedger(budget=BUDGET) as ledger:
            if half:
                ledger.charge(gaussian(spent))
            assert accepts(ledger, gaussian(rest * factor)) is granted


def test_gaussian_noise_costs_a_little_more_than_its_mu() -> None:
    with PrivacyLedger(budget=PrivacyBudget(1.0, 1e-5)) as ledger:
        ledger.charge(gaussian(1e-6))
        exact = balance_of(ledger).mu_limit
    with PrivacyLedger(budget=BUDGET) as ledger:
        assert not accepts(ledger, gaussian(exact))
        entry = ledger.charge(gaussian(0.8 * exact))
        assert entry.mu == 0.8 * exact, "squares of mu add up here too"


@pytest.mark.parametrize("renyi", [False, True])
@pytest.mark.parametrize("used", [0.0, 0.05])
def test_what_is_said_to_be_left_for_gaussian_noise_is_granted(renyi: bool, used: float) -> None:
    """All of it in 50 charges, and then nothing more."""
    with PrivacyLedger(budget=PrivacyBudget(1.0, 1e-5, renyi=renyi)) as ledger:
        if used:
            ledger.charge(gaussian(used))
        each = sqrt_below(Fraction(ledger.mu_left()) ** 2 / 50)
        for _ in range(50):
            ledger.charge(gaussian(each))
        assert ledger.mu_left() < 1e-6 * each or ledger.mu_left() < 1e-7
        assert not accepts(ledger, gaussian(1e-3 * each))


def test_pure_releases_are_summed_where_something_was_set_aside() -> None:
    mixed = PrivacyBudget(1.0, 1e-5, summed=(0.25, 0.0), renyi=True)
    with PrivacyLedger(budget=mixed) as ledger:
        ledger.charge(pure(0.25))
        assert not accepts(ledger, pure(0.01))
        ledger.charge(guarantee(RUN))
    with PrivacyLedger(budget=PrivacyBudget(1.0, 1e-5, summed=0, renyi=True)) as ledger:
        entry = ledger.charge(guarantee(PureLoss(0.1)))
        assert entry.epsilon == 0 and entry.mu > 0
        with pytest.raises(BudgetExhausted):
            ledger.charge(guarantee(ApproximateLoss(0.01, 1e-9)))


def test_noise_too_small_is_refused_by_name() -> None:
    with PrivacyLedger(budget=BUDGET) as ledger:
        with pytest.raises(PrivacyError, match=r"Rényi|costs"):
            ledger.charge(guarantee(PoissonSGDLoss(1e-3, 0.5, 10, REPLACE)))
        assert ledger.entries() == []


def test_the_kind_is_kept_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "a.ledger"
    with PrivacyLedger(path, BUDGET) as ledger:
        ledger.charge(guarantee(RUN, GaussianLoss(0.01)))
        spent = ledger.spent()
    with PrivacyLedger(path) as ledger:
        assert ledger.budget == BUDGET and ledger.spent() == spent
    with pytest.raises(PrivacyError, match="was opened with"):
        PrivacyLedger(path, PrivacyBudget(1.0, 1e-5))
