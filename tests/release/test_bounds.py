from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from gpytorch.kernels import RBFKernel
from scipy.stats import kstest, laplace

from botorch_dp.acquisition import UCBSchedule
from botorch_dp.models import FiniteSetGP, max_information_gain
from botorch_dp.privacy import NeighboringRelation, PrivacyUnit
from botorch_dp.release import NoiseFreeMaximum, NoisyMaximum
from tests.release.maxima import EXACT, FALSE_ALARM, MECHANISMS, NOISY, VALUES, noisy


def test_parts_of_the_noisy_sensitivity_by_hand():
    mechanism = NoisyMaximum(**noisy(2, 10.0, 0.5, 1, 0.0, 2.0, 0.2))
    beta = 2 * math.log(2 * math.pi**2 / 1.5)
    assert mechanism.regret == pytest.approx(math.sqrt(8 / math.log(1.25) * beta * 0.2))
    assert mechanism.noise_gap == pytest.approx(2 * math.sqrt(8 * math.log(6)))
    gap = mechanism.sensitivity - mechanism.regret - mechanism.noise_gap
    assert gap == pytest.approx(2 * math.sqrt(math.log(12)))


def test_noise_free_sensitivity_survives_extreme_dimensions_and_lengths():
    for dim, steps in ((10_000, 2), (10_000, 50), (1, 10**9)):
        assert math.isfinite(NoiseFreeMaximum(steps=steps, **(EXACT | {"dim": dim})).sensitivity)


@pytest.mark.parametrize("name", MECHANISMS)
def test_drawn_noise_is_laplace_of_the_stated_scale(name):
    mechanism = MECHANISMS[name]
    noise = [mechanism.draw(VALUES).value - 1.0 for _ in range(3000)]
    assert kstest(noise, laplace(scale=mechanism.scale).cdf).pvalue > FALSE_ALARM
    for wrong in (mechanism.scale / 2, 2 * mechanism.scale):
        assert kstest(noise, laplace(scale=wrong).cdf).pvalue < FALSE_ALARM


def test_what_is_released_before_noise():
    values = torch.tensor([9.0, 1.0, 5.0, 2.0])
    options = EXACT | {"steps": 4}
    assert NoiseFreeMaximum(edition="icml2015", **options).statistic(values) == 2.0
    assert NoiseFreeMaximum(edition="workshop2014", **options).statistic(values) == 5.0
    assert NoisyMaximum(**(NOISY | {"steps": 4})).statistic(values) == 9.0


def test_union_bound_edition_needs_no_word_about_one_step():
    assert "one step" not in str(NoisyMaximum(edition="union_bound", **NOISY).guarantee)


def test_utility_bounds_by_hand():
    tail = math.log(20)  # 95%
    bound = MECHANISMS["noisy"].utility()
    assert bound.noise == pytest.approx(8.968463243575544 * tail)
    beta = 2 * math.log(1000 * 2500 * math.pi**2 / 3e-4)
    regret = math.sqrt(8 / math.log(101) * beta * 30 / 50)
    assert bound.model == pytest.approx(regret + 0.1 * math.sqrt(2 * math.log(150 / 1e-4)))
    assert bound.probability == pytest.approx(0.95 - 1e-4)
    bound = MECHANISMS["noise-free"].utility()
    assert bound.noise == pytest.approx(0.8998524181103064 * tail)
    assert bound.model == pytest.approx(math.exp(-5 / math.log(50) ** 0.5))


@pytest.mark.parametrize("name", MECHANISMS)
def test_noise_exceeds_its_bound_as_often_as_stated(name):
    mechanism = MECHANISMS[name]
    noise = torch.tensor([mechanism.draw(VALUES).value - 1.0 for _ in range(2000)]).abs()
    exceeded = (noise > mechanism.utility(confidence=0.7).noise).double().mean().item()
    assert abs(exceeded - 0.3) < 5 * math.sqrt(0.3 * 0.7 / 2000)


@pytest.mark.parametrize("edition", ["icml2015", "workshop2014", "union_bound"])
def test_sensitivity_of_the_noisy_maximum_holds_for_pairs_from_the_multi_task_prior(edition):
    torch.manual_seed(0)
    n, steps, delta, correlation, noise = 40, 15, 0.2, 0.5, 0.5
    choices = torch.linspace(0, 1, n, dtype=torch.double).unsqueeze(-1)
    kernel = RBFKernel().double()
    kernel.lengthscale = 0.1
    gram = kernel(choices).to_dense().detach() + 1e-9 * torch.eye(n, dtype=torch.double)
    root = torch.linalg.cholesky(gram)
    gain = max_information_gain(kernel, choices, num_observations=steps, noise_variance=noise**2)
    mechanism = NoisyMaximum(
        **noisy(n, 1.0, delta, steps, correlation, noise, gain), edition=edition
    )
    schedule = UCBSchedule(n, delta=delta)
    exceeded, moved_far = 0, 0
    for _ in range(60):
        shared, *parts = root @ torch.randn(3, n, 1, dtype=torch.double)
        best = []
        for part in parts:
            f = (math.sqrt(correlation) * shared + math.sqrt(1 - correlation) * part).squeeze(-1)
            gp = FiniteSetGP(choices, kernel=kernel, noise_variance=noise**2)
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


def test_workshop_edition_counts_two_steps_of_an_exact_search():
    """``A exp(-tau t / (log t)^(d/4))`` with ``t = 2``; the other edition has ``t = T``."""
    options = EXACT | {"amplitude": 3.0, "steps": 50}
    workshop = NoiseFreeMaximum(edition="workshop2014", **options)
    assert workshop.regret == pytest.approx(3 * math.exp(-0.2 / math.log(2) ** 0.5), rel=1e-12)
    published = NoiseFreeMaximum(**options)
    assert published.regret == pytest.approx(3 * math.exp(-5 / math.log(50) ** 0.5), rel=1e-12)


@pytest.mark.parametrize("name", MECHANISMS)
def test_guarantee_speaks_of_the_stated_relation_and_record(name):
    weekly = replace(
        MECHANISMS[name], unit=PrivacyUnit("one week", NeighboringRelation.ADD_OR_REMOVE_ONE)
    )
    assert weekly.guarantee.relation is NeighboringRelation.ADD_OR_REMOVE_ONE
    assert weekly.draw(VALUES).guarantee == weekly.guarantee
    assert "one week" in str(weekly.guarantee)
    assert "one record of the validation set" in str(MECHANISMS[name].guarantee)


@pytest.mark.parametrize("name", MECHANISMS)
def test_a_noise_scale_that_no_float_holds_is_refused_at_construction(name):
    with pytest.raises(ValueError, match="noise scale of about 1e"):
        replace(MECHANISMS[name], epsilon=1e-320)
