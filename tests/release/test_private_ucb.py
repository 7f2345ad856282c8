from __future__ import annotations

import math

import pytest
import torch
from gpytorch.kernels import MaternKernel, RBFKernel, ScaleKernel

from botorch_dp.errors import NotPublicError, PrivacyError
from botorch_dp.models import max_information_gain
from botorch_dp.privacy import BudgetExhausted, PrivacyBudget, PrivacyLedger
from botorch_dp.release import (
    BranchAndBoundUCB,
    NoiseFreeMaximum,
    PrivateChoice,
    PrivateGPUCB,
    PrivateMaximum,
    UtilityWarning,
)

CHOICES = torch.cartesian_prod(*[torch.linspace(0, 1, 15, dtype=torch.double)] * 2)
BEST = torch.tensor([0.5, 3 / 14], dtype=torch.double)
quiet = pytest.mark.filterwarnings("ignore::botorch_dp.release.UtilityWarning")


def kernel(lengthscale=0.4):
    smooth = MaternKernel(nu=2.5)
    smooth.lengthscale = lengthscale
    return smooth


def bump(x):
    return 2 * torch.exp(-8 * (x - BEST).square().sum(-1)) - 1


def gp_ucb(**overrides) -> PrivateGPUCB:
    options = {"kernel": kernel(), "noise_std": 0.1, "epsilon": 1.0, "delta": 1e-3, "steps": 9}
    return PrivateGPUCB(CHOICES, **(options | {"dataset_correlation": 0.99} | overrides))


def branch_and_bound(**overrides) -> BranchAndBoundUCB:
    options = {"kernel": kernel(), "epsilon": 1.0, "delta": 1e-3, "amplitude": 2.0, "rate": 0.5}
    options["steps"] = 9
    return BranchAndBoundUCB(CHOICES, **(options | {"dataset_correlation": 0.99} | overrides))


DRIVERS = {"gp_ucb": gp_ucb, "branch_and_bound": branch_and_bound}
both = pytest.mark.parametrize("driver", DRIVERS.values(), ids=DRIVERS)


@both
@quiet
def test_with_hardly_any_noise_both_releases_are_right(driver):
    search = driver(epsilon=1e7, steps=40)
    result = search.release(lambda x: bump(x) + search._noise_std * torch.randn(()))
    assert result.maximum.value == pytest.approx(1.0, abs=4 * search._noise_std + 1e-4)
    assert bump(result.choice.value) > 0.9
    assert bump(CHOICES[result.diagnostics.mean.argmax()]) > 0.9


@both
@quiet
def test_guarantee_is_twice_epsilon_and_delta_before_and_after_the_run(driver):
    search = driver()
    for guarantee in (search.guarantee, search.release(bump).guarantee):
        assert guarantee.status == "conditional"
        assert guarantee.epsilon(2e-3) == pytest.approx(2.0)
        assert guarantee.epsilon(1e-3) == math.inf
    assert search.release(bump).guarantee == search.guarantee
    conditions = {*search.choice.guarantee.conditions, *search.maximum.guarantee.conditions}
    assert set(search.guarantee.conditions) == conditions


@quiet
def test_drivers_hold_the_single_releases():
    common = {"num_choices": 225, "epsilon": 1.0, "delta": 1e-3, "dataset_correlation": 0.99}
    gain = max_information_gain(kernel(), CHOICES, num_observations=9, noise_std=0.1)
    search = gp_ucb()
    assert search.choice == PrivateChoice(steps=9, **common)
    assert search.maximum == PrivateMaximum(steps=9, noise_std=0.1, information_gain=gain, **common)
    search = branch_and_bound()
    assert search.choice == PrivateChoice(steps=9, **common)
    assert search.maximum == NoiseFreeMaximum(steps=9, dim=2, amplitude=2.0, rate=0.5, **common)


@both
@quiet
def test_both_releases_are_charged_before_the_objective_is_called(driver):
    ledger = PrivacyLedger(budget=PrivacyBudget(2.5, 0.1))
    search = driver(steps=5)
    charged = []

    def objective(x):
        charged.append(len(ledger.entries()))
        return bump(x)

    search.release(objective, ledger=ledger)
    assert charged == [1] * 5
    (entry,) = ledger.entries()
    assert (entry.epsilon, entry.delta) == pytest.approx((2.0, 2e-3))
    with pytest.raises(BudgetExhausted):
        search.release(objective, ledger=ledger)
    assert len(charged) == 5


@both
@quiet
def test_number_of_calls_does_not_depend_on_the_values(driver):
    for objective in (bump, lambda x: math.nan, lambda x: 1e300, lambda x: 0.0):
        calls = []

        def counted(x, calls=calls, objective=objective):
            calls.append(x)
            return objective(x)

        result = driver(steps=60).release(counted)
        assert len(calls) == 60
        assert math.isfinite(result.maximum.value)


@both
@quiet
def test_simulated_runs_repeat_promise_nothing_and_cannot_be_charged(driver):
    first, second = (driver().release(bump, unsafe_seed=5) for _ in range(2))
    assert first.guarantee.status == "none"
    assert first.maximum.value == second.maximum.value
    assert torch.equal(first.choice.value, second.choice.value)
    other = driver().release(bump, unsafe_seed=6)
    assert other.maximum.value != first.maximum.value
    ledger = PrivacyLedger(budget=PrivacyBudget(10.0, 0.1))
    with pytest.raises(PrivacyError, match="guarantees nothing"):
        driver().release(bump, ledger=ledger, unsafe_seed=5)
    assert not ledger.entries()


@both
def test_warns_before_anything_is_called(driver):
    def never(x):
        raise AssertionError("called")

    with pytest.warns(UtilityWarning) as caught, pytest.raises(AssertionError, match="called"):
        driver(epsilon=0.1).release(never, num_records=1000)
    texts = " ".join(str(warning.message) for warning in caught)
    assert "1 / 1,000:" in texts
    assert "blind draw" in texts
    assert "released maximum" in texts
    assert {warning.filename for warning in caught} == {__file__}


@both
def test_wrong_arguments_are_named_at_construction(driver):
    with pytest.raises(ValueError, match="`dataset_correlation`"):
        driver(dataset_correlation=1.5)
    with pytest.raises(NotPublicError, match=r"k\(x, x\) must be 1"):
        driver(kernel=ScaleKernel(RBFKernel()))
    with pytest.raises(ValueError, match="`steps` must be at least 2"):
        branch_and_bound(steps=1)
