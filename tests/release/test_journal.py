from __future__ import annotations

import json
import math
import os
import stat

import pytest
import torch
from gpytorch.kernels import MaternKernel, RBFKernel

from botorch_dp.errors import PrivacyError
from botorch_dp.privacy import PrivacyBudget, PrivacyLedger
from botorch_dp.release import BranchAndBoundUCB, PrivateGPUCB
from botorch_dp.release.journal import RunJournal, fingerprint

pytestmark = pytest.mark.filterwarnings("ignore::botorch_dp.release.UtilityWarning")

CHOICES = torch.cartesian_prod(*[torch.linspace(0, 1, 9, dtype=torch.double)] * 2)
STEPS = 8


def kernel(lengthscale=0.4):
    smooth = MaternKernel(nu=2.5)
    smooth.lengthscale = lengthscale
    return smooth


def gp_ucb(**overrides):
    options = {"kernel": kernel(), "noise_std": 0.1, "epsilon": 1.0, "delta": 1e-3}
    options["steps"] = STEPS
    return PrivateGPUCB(CHOICES, **(options | {"dataset_correlation": 0.99} | overrides))


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
@pytest.mark.parametrize("at", [1, 2, STEPS])
def test_interrupted_run_continues_where_it_was_and_is_charged_once(driver, at, tmp_path):
    ledger = PrivacyLedger(budget=PrivacyBudget(10.0, 0.1))
    path = tmp_path / "run.json"
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


@both
def test_finished_run_returns_what_it_released_without_a_new_draw(driver, tmp_path):
    ledger = PrivacyLedger(budget=PrivacyBudget(10.0, 0.1))
    path = tmp_path / "run.json"
    first = driver().release(objective, checkpoint=path, ledger=ledger)
    again = driver().release(Failing(1), checkpoint=path, ledger=ledger)
    assert torch.equal(again.choice.value, first.choice.value)
    assert again.choice.value.dtype == torch.double
    assert again.maximum.value == first.maximum.value
    assert (again.choice.scale, again.maximum.scale) == (first.choice.scale, first.maximum.scale)
    assert again.guarantee == first.guarantee
    assert len(ledger.entries()) == 1


def test_finished_simulation_still_promises_nothing(tmp_path):
    runs = [
        gp_ucb().release(objective, checkpoint=tmp_path / "run.json", unsafe_seed=1)
        for _ in range(2)
    ]
    assert [run.guarantee.status for run in runs] == ["none", "none"]


def test_without_a_checkpoint_each_run_is_charged():
    ledger = PrivacyLedger(budget=PrivacyBudget(10.0, 0.1))
    search = gp_ucb()
    search.release(objective, ledger=ledger)
    search.release(objective, ledger=ledger)
    assert len(ledger.entries()) == 2


def test_releases_are_on_disk_before_they_are_returned(tmp_path, monkeypatch):
    """A crash after the draw returns nothing; one after the write cannot lead to a second draw."""
    path = tmp_path / "run.json"

    def crash(self, released):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(RunJournal, "finish", crash)
        gp_ucb().release(objective, checkpoint=path)
    assert json.loads(path.read_text())["released"] is None
    result = gp_ucb().release(objective, checkpoint=path)
    assert json.loads(path.read_text())["released"]["maximum"] == result.maximum.value


def test_file_is_for_its_owner_and_says_why(tmp_path):
    path = tmp_path / "run.json"
    gp_ucb().release(objective, checkpoint=path)
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    assert "SENSITIVE" in path.read_text()
    assert sorted(os.listdir(tmp_path)) == ["run.json", "run.json.lock"]


@pytest.mark.parametrize(
    ("overrides", "unsafe_seed", "differing"),
    [
        ({"epsilon": 2.0}, None, "choice, maximum"),
        ({"noise_std": 0.2}, None, "maximum"),
        ({"steps": STEPS + 1}, None, "choice, maximum"),
        ({}, 3, "unsafe_seed"),
        ({"kernel": kernel(0.3)}, None, "prior"),
        ({"kernel": RBFKernel()}, None, "prior"),
    ],
)
def test_a_run_with_other_settings_is_refused_before_it_is_charged(
    overrides, unsafe_seed, differing, tmp_path
):
    path = tmp_path / "run.json"
    with pytest.raises(KeyboardInterrupt):
        gp_ucb().release(Failing(3), checkpoint=path)
    before = path.read_text()
    ledger = PrivacyLedger(budget=PrivacyBudget(10.0, 0.1))
    with pytest.raises(PrivacyError, match=differing):
        gp_ucb(**overrides).release(
            objective, checkpoint=path, ledger=ledger, unsafe_seed=unsafe_seed
        )
    assert not ledger.entries()
    assert path.read_text() == before


def test_two_runs_cannot_share_a_checkpoint(tmp_path):
    path = tmp_path / "run.json"

    def nested(x):
        gp_ucb().release(objective, checkpoint=path)

    with pytest.raises(PrivacyError, match="in use by another run"):
        gp_ucb().release(nested, checkpoint=path)


@pytest.mark.parametrize("content", ["{}", "[1, 2]", '{"format": 99}'])
def test_other_files_are_refused_and_left_alone(content, tmp_path):
    path = tmp_path / "other.json"
    path.write_text(content)
    with pytest.raises(ValueError, match="no run journal"):
        gp_ucb().release(objective, checkpoint=path)
    assert path.read_text() == content


def test_implausible_values_are_counted_across_an_interruption(tmp_path):
    path = tmp_path / "run.json"
    answers = iter([math.nan, 0.0])

    def first(x):
        return next(answers)  # ends with StopIteration

    with pytest.raises(StopIteration):
        gp_ucb().release(first, checkpoint=path)
    result = gp_ucb().release(objective, checkpoint=path)
    assert result.diagnostics.implausible == 1
    assert result.diagnostics.values[0] == -50 * math.hypot(1, 0.1)


def test_fingerprint_tells_priors_apart():
    prints = {
        fingerprint(CHOICES, kernel().double()),
        fingerprint(CHOICES + 1e-9, kernel().double()),
        fingerprint(CHOICES, kernel(0.41).double()),
        fingerprint(CHOICES, MaternKernel(nu=1.5).double()),
        fingerprint(CHOICES, RBFKernel().double()),
    }
    assert len(prints) == 5
    assert fingerprint(CHOICES, kernel().double()) in prints
