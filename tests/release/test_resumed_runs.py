"""Interrupted runs continue, finished ones are replayed, and no run is released twice."""

from __future__ import annotations

import math

import pytest
import torch
from gpytorch.kernels import MaternKernel, RBFKernel

from botorch_dp.errors import PrivacyError
from botorch_dp.privacy import PrivacyBudget, PrivacyLedger
from botorch_dp.release import BranchAndBoundUCB, PrivateGPUCB
from tests.one_draw import OneDraw

pytestmark = pytest.mark.filterwarnings("ignore::botorch_dp.release.UtilityWarning")

CHOICES = torch.cartesian_prod(*[torch.linspace(0, 1, 9, dtype=torch.double)] * 2)
STEPS = 8


def kernel(lengthscale=0.4):
    smooth = MaternKernel(nu=2.5)
    smooth.lengthscale = lengthscale
    return smooth


OPTIONS = {
    "noise_std": 0.1,
    "epsilon": 1.0,
    "delta": 1e-3,
    "steps": STEPS,
    "dataset_correlation": 0.99,
}


def gp_ucb(**overrides):
    return PrivateGPUCB(CHOICES, **({"kernel": kernel(), **OPTIONS} | overrides))


def branch_and_bound(**overrides):
    options = {"kernel": kernel(), "epsilon": 1.0, "delta": 1e-3, "amplitude": 2.0, "rate": 0.5}
    options["steps"] = STEPS
    return BranchAndBoundUCB(CHOICES, **(options | {"dataset_correlation": 0.99} | overrides))


both = pytest.mark.parametrize("driver", [gp_ucb, branch_and_bound])


def objective(x):
    return torch.sin(5 * x).sum()


class Failing:
    """The objective, but it fails at one call."""

    def __init__(self, at: int) -> None:
        self.at = at
        self.calls = 0

    def __call__(self, x):
        self.calls += 1
        if self.calls == self.at:
            raise KeyboardInterrupt
        return objective(x)


@both
def test_interrupted_run_continues_where_it_was_and_is_charged_once(driver, tmp_path, at=3):
    ledger = PrivacyLedger(budget=PrivacyBudget(10.0, 0.1))
    path = tmp_path / "a.run"
    with pytest.raises(KeyboardInterrupt):
        driver().release(Failing(at), checkpoint=path, ledger=ledger)
    rest = Failing(0)
    result = driver().release(rest, checkpoint=path, ledger=ledger)
    assert rest.calls == STEPS - (at - 1)
    assert len(ledger.entries()) == 1
    straight = driver().release(objective, unsafe_seed=1).diagnostics
    assert result.diagnostics.indices == straight.indices
    assert torch.equal(result.diagnostics.values, straight.values)
    assert torch.equal(result.diagnostics.mean, straight.mean)


def test_a_finished_simulation_still_promises_nothing(tmp_path):
    path = tmp_path / "a.run"
    runs = [gp_ucb().release(objective, checkpoint=path, unsafe_seed=1) for _ in range(2)]
    assert [run.guarantee.status for run in runs] == ["none", "none"]


@pytest.mark.parametrize(
    ("overrides", "unsafe_seed", "differing"),
    [
        ({"epsilon": 2.0}, None, r"`choice`.*`maximum`"),
        ({}, 3, "unsafe_seed"),
        ({"kernel": kernel(0.3)}, None, "prior"),
    ],
)
def test_a_run_with_other_settings_is_refused_before_it_is_charged(
    overrides, unsafe_seed, differing, tmp_path
):
    path = tmp_path / "a.run"
    with pytest.raises(KeyboardInterrupt):
        gp_ucb().release(Failing(3), checkpoint=path)
    before = path.read_bytes()
    ledger = PrivacyLedger(budget=PrivacyBudget(10.0, 0.1))
    with pytest.raises(PrivacyError, match=differing):
        gp_ucb(**overrides).release(
            objective, checkpoint=path, ledger=ledger, unsafe_seed=unsafe_seed
        )
    assert not ledger.entries()
    assert path.read_bytes() == before


def test_implausible_values_are_counted_across_an_interruption(tmp_path):
    path = tmp_path / "a.run"
    answers = iter([math.nan, 0.0])

    def first(x):
        return next(answers)  # ends with StopIteration

    with pytest.raises(StopIteration):
        gp_ucb().release(first, checkpoint=path)
    result = gp_ucb().release(objective, checkpoint=path)
    assert result.diagnostics.implausible == 1
    assert result.diagnostics.values[0] == -50 * math.hypot(1, 0.1)


def test_settings_tell_priors_apart():
    priors = {
        PrivateGPUCB(choices, kernel=k, **OPTIONS)._settings(None)["prior"]
        for choices, k in (
            (CHOICES, kernel()),
            (CHOICES + 1e-9, kernel()),
            (CHOICES, kernel(0.41)),
            (CHOICES, MaternKernel(nu=1.5)),
            (CHOICES, RBFKernel()),
        )
    }
    assert len(priors) == 5


class Search(OneDraw):
    """Both releases of a run are one charge; its values are real numbers, so that no two agree."""

    every = 2

    def make(self, ledger):
        return self.driver(), ledger

    def draw(self, thing, checkpoint):
        search, ledger = thing
        result = search.release(objective, checkpoint=checkpoint, ledger=ledger)
        return result.choice.value.tolist(), result.maximum.value


class TestGPUCB(Search):
    driver = staticmethod(gp_ucb)


class TestBranchAndBound(Search):
    driver = staticmethod(branch_and_bound)
