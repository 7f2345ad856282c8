from __future__ import annotations

import math
import warnings
from dataclasses import replace

import pytest
import torch
from gpytorch.kernels import RBFKernel
from scipy.stats import kstest, laplace

from botorch_dp.acquisition import UCBSchedule
from botorch_dp.models import FiniteSetGP, max_information_gain
from botorch_dp.privacy import (
    BudgetExhausted,
    NeighboringRelation,
    PrivacyBudget,
    PrivacyLedger,
    PrivacyUnit,
)
from botorch_dp.release import LipschitzMaximum, NoiseFreeMaximum, PrivateMaximum, UtilityWarning
from tests.release.maxima import (
    EXACT,
    FALSE_ALARM,
    MECHANISMS,
    NOISY,
    VALUES,
    ReadLog,
    noisy,
)

quiet = pytest.mark.filterwarnings("ignore::botorch_dp.release.UtilityWarning")


# (sqrt(C1 beta_T gamma_T / T) + c + q) / epsilon
@pytest.mark.parametrize(
    ("setting", "printed", "corrected"),
    [
        ((1000, 1.0, 1e-4, 50, 0.99, 0.1, 30.0), 8.968463243575544, 9.218807493222926),
        ((36000, 0.1, 1e-6, 20, 0.9, 0.5, 8.0), 198.3941266355059, 207.43945952885292),
        ((2, 10.0, 0.5, 1, 0.0, 2.0, 0.2), 1.6804068896408269, 2.077476588307319),
    ],
)
def test_scale_of_the_noisy_maximum_is_the_papers(setting, printed, corrected):
    for edition, scale in {"icml2015": printed, "union_bound": corrected}.items():
        found = PrivateMaximum(edition=edition, **noisy(*setting)).scale
        assert found == pytest.approx(scale, rel=1e-12)


# (A exp(-tau T / (log T)^(d/4)) + c) / epsilon
@pytest.mark.parametrize(
    ("setting", "scale"),
    [
        ((1000, 1.0, 1e-4, 50, 2, 0.99, 1.0, 0.1), 0.8998524181103064),
        ((36000, 0.1, 1e-6, 20, 5, 0.9, 3.0, 0.01), 60.138337615804275),
        ((2, 10.0, 0.5, 2, 1, 0.0, 2.0, 2.0), 0.29090087494155037),
    ],
)
def test_scale_of_the_noise_free_maximum_is_the_papers(setting, scale):
    names = ("num_choices", "epsilon", "delta", "steps", "dim", "dataset_correlation")
    arguments = dict(zip((*names, "amplitude", "rate"), setting, strict=True))
    assert NoiseFreeMaximum(**arguments).scale == pytest.approx(scale, rel=1e-12)


@pytest.mark.parametrize(
    ("epsilon", "m", "lipschitz", "low", "high", "max_loss", "printed", "corrected"),
    [
        (1.0, 100, 1.0, 0.5, 0.6, None, 2 / 100 + 1 / 3, 4 / 100 + 1 / 3),
        (0.1, 5000, 2.0, 0.01, 0.02, 1.0, 10 * (1 / 5000 + 100), 10 * (1 / 5000 + 100)),
        (3.0, 1, 0.5, 1.0, 1.0, 10.0, 0.5 / 3, 1 / 3),
    ],
)
def test_scale_of_the_lipschitz_maximum_is_the_papers_and_the_corrected_one(
    epsilon, m, lipschitz, low, high, max_loss, printed, corrected
):
    given = {"epsilon": epsilon, "num_records": m, "lipschitz": lipschitz, "max_loss": max_loss}
    given |= {"lambda_min": low, "lambda_max": high, "equal_at_zero": True}
    for edition, scale in {"icml2015": printed, "corrected": corrected}.items():
        assert LipschitzMaximum(**given, edition=edition).scale == pytest.approx(scale, rel=1e-12)


@pytest.mark.parametrize("name", MECHANISMS)
@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf, 1e300])
@quiet
def test_a_poisoned_value_raises_nothing(name, poison):
    values = VALUES.clone()
    values[3] = poison
    assert math.isfinite(MECHANISMS[name].release(values).value)
    plain = MECHANISMS[name].statistic(values)
    if not poison > 0:
        assert plain == 1.0


@pytest.mark.parametrize("name", MECHANISMS)
@quiet
def test_guarantees_name_their_conditions(name):
    guarantee = MECHANISMS[name].release(VALUES).guarantee
    assert guarantee == MECHANISMS[name].guarantee
    assert guarantee.status == "conditional"
    assert MECHANISMS[name].release(VALUES, unsafe_seed=1).guarantee.status == "none"
    said = {"noisy": "one step", "noise-free": "A = 1", "Lipschitz": "2 L / lambda_min = 4"}[name]
    assert said in str(guarantee)
    if name == "Lipschitz":
        assert guarantee.epsilon() == 1.0
    else:
        assert guarantee.epsilon(1e-4) == pytest.approx(1.0)
        assert guarantee.epsilon(1e-5) == math.inf


@pytest.mark.parametrize("name", MECHANISMS)
@quiet
def test_ledger_is_charged_before_the_values_are_looked_at(name):
    ledger = PrivacyLedger(budget=PrivacyBudget(1.5, 0.1))
    with ReadLog(VALUES, ledger) as log:
        MECHANISMS[name].release(VALUES, ledger=ledger)
        assert set(log.charges) == {1}
        log.charges.clear()
        with pytest.raises(BudgetExhausted):
            MECHANISMS[name].release(VALUES, ledger=ledger)
    assert not log.charges


@pytest.mark.parametrize("name", MECHANISMS)
def test_warns_when_the_noise_drowns_the_answer(name):
    with pytest.warns(UtilityWarning, match="noise may hide") as caught:
        replace(MECHANISMS[name], epsilon=0.01).release(VALUES)
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        replace(MECHANISMS[name], epsilon=100.0).release(VALUES)


def test_noise_free_sensitivity_survives_extreme_dimensions_and_lengths():
    for dim, steps in ((10_000, 2), (10_000, 50), (1, 10**9)):
        assert math.isfinite(NoiseFreeMaximum(steps=steps, **(EXACT | {"dim": dim})).sensitivity)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", MECHANISMS)
@quiet
def test_drawn_noise_is_laplace_of_the_stated_scale(name):
    mechanism = MECHANISMS[name]
    noise = [mechanism.release(VALUES).value - 1.0 for _ in range(3000)]
    assert kstest(noise, laplace(scale=mechanism.scale).cdf).pvalue > FALSE_ALARM
    for wrong in (mechanism.scale / 2, 2 * mechanism.scale):
        assert kstest(noise, laplace(scale=wrong).cdf).pvalue < FALSE_ALARM


def test_what_is_released_before_noise():
    values = torch.tensor([9.0, 1.0, 5.0, 2.0])
    options = EXACT | {"steps": 4}
    assert NoiseFreeMaximum(**options).statistic(values) == 2.0
    assert PrivateMaximum(**(NOISY | {"steps": 4})).statistic(values) == 9.0


def test_utility_bounds_by_hand():
    tail = math.log(20)  # 95%
    bound = MECHANISMS["noisy"].utility()
    assert bound.noise == pytest.approx(8.968463243575544 * tail)
    beta = 2 * math.log(1000 * 2500 * math.pi**2 / 3e-4)
    regret = math.sqrt(8 / math.log(101) * beta * 30 / 50)
    left = 1e-4 * (0.75 - 0.25 / 1000)
    assert bound.model == pytest.approx(regret + 0.1 * math.sqrt(2 * math.log(50 / left)))
    assert bound.probability == pytest.approx(0.95 - 1e-4)
    bound = MECHANISMS["noise-free"].utility()
    assert bound.noise == pytest.approx(0.8998524181103064 * tail)
    assert bound.model == pytest.approx(math.exp(-5 / math.log(50) ** 0.5))


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", MECHANISMS)
@quiet
def test_noise_exceeds_its_bound_as_often_as_stated(name):
    mechanism = MECHANISMS[name]
    noise = torch.tensor([mechanism.release(VALUES).value - 1.0 for _ in range(2000)]).abs()
    exceeded = (noise > mechanism.utility(delta=0.3).noise).double().mean().item()
    assert abs(exceeded - 0.3) < 5 * math.sqrt(0.3 * 0.7 / 2000)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("edition", ["icml2015", "union_bound"])
def test_sensitivity_of_the_noisy_maximum_holds_for_pairs_from_the_multi_task_prior(edition):
    torch.manual_seed(0)
    n, steps, delta, correlation, noise = 40, 15, 0.2, 0.5, 0.5
    choices = torch.linspace(0, 1, n, dtype=torch.double).unsqueeze(-1)
    kernel = RBFKernel().double()
    kernel.lengthscale = 0.1
    gram = kernel(choices).to_dense().detach() + 1e-9 * torch.eye(n, dtype=torch.double)
    root = torch.linalg.cholesky(gram)
    gain = max_information_gain(kernel, choices, num_observations=steps, noise_std=noise)
    mechanism = PrivateMaximum(
        **noisy(n, 1.0, delta, steps, correlation, noise, gain), edition=edition
    )
    schedule = UCBSchedule(n, delta=delta)
    exceeded, moved_far = 0, 0
    for _ in range(60):
        shared, *parts = root @ torch.randn(3, n, 1, dtype=torch.double)
        best = []
        for part in parts:
            f = (math.sqrt(correlation) * shared + math.sqrt(1 - correlation) * part).squeeze(-1)
            gp = FiniteSetGP(choices, kernel=kernel, noise_std=noise)
            seen = []
            for t in range(1, steps + 1):
                index = int(gp.upper_confidence_bound(schedule(t)).argmax())
                seen.append(f[index].item() + noise * torch.randn(()).item())
                gp.observe(index, seen[-1])
            best.append(max(seen))
        exceeded += abs(best[0] - best[1]) > mechanism.sensitivity
        moved_far += abs(best[0] - best[1]) > mechanism.sensitivity / 50
    assert exceeded <= delta * 60
    assert moved_far > delta * 60  # the experiment can fail


@pytest.mark.parametrize("name", ["noisy", "noise-free"])
@quiet
def test_the_relation_is_the_callers_as_the_correlation_is(name):
    weekly = replace(
        MECHANISMS[name], unit=PrivacyUnit("one week", NeighboringRelation.ADD_OR_REMOVE_ONE)
    )
    assert weekly.guarantee.relation is NeighboringRelation.ADD_OR_REMOVE_ONE
    assert weekly.release(VALUES).guarantee == weekly.guarantee
    assert "one week" in str(weekly.guarantee)
    assert "one record of the validation set" in str(MECHANISMS[name].guarantee)


@pytest.mark.parametrize("name", MECHANISMS)
def test_a_noise_scale_that_no_float_holds_is_refused_at_construction(name):
    with pytest.raises(ValueError, match="noise scale of about 1e"):
        replace(MECHANISMS[name], epsilon=1e-320)
