"""Mechanisms: guarantees, shapes, refusals before any noise, and nothing private in messages."""

from __future__ import annotations

import copy
import math
import pickle

import numpy as np
import pytest
import torch

from botorch_dp.privacy import PrivacyBudget, PrivacyError, PrivacyLedger, PrivacyUnit
from botorch_dp.privacy.losses import GaussianLoss, LaplaceLoss, NeighboringRelation, PureLoss
from botorch_dp.privacy.mechanisms import (
    exponential_guarantee,
    exponential_mechanism,
    gaussian_guarantee,
    gaussian_mechanism,
    laplace_guarantee,
    laplace_mechanism,
)
from botorch_dp.privacy.sparse_vector_technique import sparse_vector

ADD_OR_REMOVE = NeighboringRelation.ADD_OR_REMOVE_ONE


def laplace(value, **kwargs):
    return laplace_mechanism(value, **{"sensitivity": 0.5, "epsilon": 2.0, **kwargs})


def gaussian(value, **kwargs):
    return gaussian_mechanism(value, **{"sensitivity": 0.5, "mu": 2.0, **kwargs})


def exponential(value, **kwargs):
    return exponential_mechanism(value, **{"sensitivity": 0.5, "epsilon": 2.0, **kwargs})


def sparse(value, **kwargs):
    return sparse_vector(value, **{"noise_scale": 1.0, "max_positives": 1, **kwargs})


ADDITIVE = [laplace, gaussian]
ALL = [laplace, gaussian, exponential, sparse]


@pytest.mark.parametrize("mechanism", ADDITIVE)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(), (1,), (3,), (2, 3)])
def test_a_released_tensor_follows_the_input(mechanism, dtype, shape):
    value = torch.full(shape, 2.0, dtype=dtype, requires_grad=True)
    release = mechanism(value)
    assert release.value.shape == shape and release.value.dtype == dtype
    assert release.value.device == value.device and not release.value.requires_grad
    assert release.scale == pytest.approx(0.25)
    assert not torch.equal(release.value, mechanism(value).value) or dtype == torch.bfloat16
    assert torch.equal(value.detach(), torch.full(shape, 2.0, dtype=dtype))


@pytest.mark.parametrize("mechanism", ADDITIVE)
def test_a_float_gives_a_float(mechanism):
    assert type(mechanism(1.5).value) is float
    assert type(mechanism(np.float64(1.5)).value) is float
    seeded = mechanism(1.5, unsafe_seed=3).value
    assert seeded == mechanism(torch.tensor(1.5).double(), unsafe_seed=3).value.item()


def test_laplace_guarantee():
    assert laplace(1.0).guarantee == laplace_guarantee(sensitivity=0.5, epsilon=2.0)
    guarantee = laplace(1.0).guarantee
    assert guarantee.losses == (LaplaceLoss(2.0),) and guarantee.epsilon() == 2.0
    assert guarantee.status == "proven"
    # A vector's loss is not the scalar Laplace one: only its epsilon is promised.
    assert laplace(torch.zeros(2)).guarantee.losses == (PureLoss(2.0),)
    assert laplace(torch.zeros(1)).guarantee.losses == (LaplaceLoss(2.0),)


def test_gaussian_guarantee():
    guarantee = gaussian(torch.zeros(4)).guarantee
    assert guarantee == gaussian_guarantee(sensitivity=0.5, mu=2.0)
    assert guarantee.losses == (GaussianLoss(2.0),) and guarantee.mu == 2.0
    assert math.isinf(guarantee.epsilon(0.0))


@pytest.mark.one_in(3)
@pytest.mark.parametrize("epsilon", [0.05, 1.0, 8.0])
@pytest.mark.parametrize("delta", [1e-10, 1e-5, 0.1])
def test_gaussian_mechanism_meets_epsilon_and_delta_tightly(epsilon, delta):
    from dp_accounting import dp_event, pld

    release = gaussian_mechanism(0.0, sensitivity=3.0, epsilon=epsilon, delta=delta)
    assert release.guarantee.epsilon(delta) <= epsilon * (1 + 1e-9)
    assert release.guarantee.epsilon(delta) >= epsilon * (1 - 1e-6)
    accountant = pld.PLDAccountant().compose(dp_event.GaussianDpEvent(release.scale / 3.0))
    assert accountant.get_epsilon(delta) == pytest.approx(epsilon, rel=1e-3)


def test_exponential_guarantee():
    guarantee = exponential(torch.zeros(3)).guarantee
    assert guarantee == exponential_guarantee(sensitivity=0.5, epsilon=2.0)
    assert guarantee.losses == (PureLoss(2.0),)
    assert "Permute" in exponential(torch.zeros(3), method="permute_and_flip").guarantee.mechanism
    assert exponential(torch.zeros(3)).scale == pytest.approx(2 * 0.5 / 2.0)


def test_exact_probabilities_respect_epsilon_on_all_small_neighbours():
    """Closed-form probabilities at the calibrated scale, on a grid of neighbouring utilities."""
    epsilon, sensitivity = 1.0, 0.5
    scale = exponential(torch.zeros(3), sensitivity=sensitivity, epsilon=epsilon).scale
    base = torch.tensor([0.0, 0.7, 1.0]).double()
    moves = torch.cartesian_prod(*[torch.linspace(-1, 1, 5).double() * sensitivity] * 3)
    before = torch.softmax(base / scale, -1)
    after = torch.softmax((base + moves) / scale, -1)
    worst = (after / before).log().abs().max().item()
    assert worst <= epsilon
    # As the utilities grow apart the bound is approached: the 2 cannot be dropped.
    far = torch.tensor([0.0, 20.0]).double()
    moved = far + torch.tensor([sensitivity, -sensitivity])
    ratio = (torch.log_softmax(moved / scale, -1) - torch.log_softmax(far / scale, -1))[0]
    assert ratio.item() == pytest.approx(epsilon, rel=1e-6)


def test_selection_handles_every_kind_of_utilities():
    for method in ("exponential", "permute_and_flip"):
        assert exponential(torch.zeros(1), method=method).value == 0
        assert exponential(torch.tensor([0.0, 1e9]), method=method).value == 1
        huge = torch.tensor([1e308, -1e308, 1e308], dtype=torch.float64)
        assert exponential(huge, method=method).value in (0, 2)
        assert exponential(huge, method=method, unsafe_seed=0).value in (0, 2)
        tiny = torch.tensor([5e-324, 0.0], dtype=torch.float64)
        assert exponential(tiny, method=method).value in (0, 1)
        assert type(exponential(torch.zeros(4), method=method).value) is int
        assert exponential(torch.ones(4).float(), method=method).value in range(4)


def test_a_large_number_of_utilities():
    utilities = torch.full((20_000,), -30.0).double()
    utilities[12_345] = 30.0
    for method in ("exponential", "permute_and_flip"):
        assert exponential(utilities, method=method).value == 12_345


@pytest.mark.parametrize("mechanism", ADDITIVE)
def test_extreme_magnitudes_stay_finite(mechanism):
    largest = torch.finfo(torch.float64).max
    for seed in (None, 0):
        for value in (largest, -largest):
            release = mechanism(
                torch.full((20,), value, dtype=torch.float64), sensitivity=1e290, unsafe_seed=seed
            )
            assert torch.isfinite(release.value).all()
        release = mechanism(torch.zeros(20).float(), sensitivity=1e60, unsafe_seed=seed)
        assert torch.isfinite(release.value).all()  # would overflow float32
    assert abs(mechanism(1e-300, sensitivity=1e-90).value) < 1e-80
    assert mechanism(5e-324, sensitivity=1.0).value != 0


@pytest.mark.parametrize("sensitivity", [1e-300, 5e-324, 1e-101, 1e305])
@pytest.mark.parametrize("mechanism", [laplace, gaussian, exponential, sparse])
def test_scales_at_the_end_of_the_double_range_are_refused(mechanism, sensitivity):
    with pytest.raises(ValueError, match=r"[Rr]escale|noise"):
        mechanism(torch.zeros(3), sensitivity=sensitivity)


SECRET = 123454321.25


@pytest.mark.parametrize("mechanism", ALL)
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_values_that_are_not_finite_do_not_show(mechanism, bad):
    """Whether a value is finite may depend on one record; an exception would tell."""
    release = mechanism(torch.tensor([0.0, bad, 0.0]).double())
    assert torch.isfinite(torch.as_tensor(release.value)).all()
    assert release.guarantee == mechanism(torch.zeros(3).double()).guarantee


@pytest.mark.parametrize("mechanism", ALL)
def test_wrong_types_and_shapes_are_refused_without_being_shown(mechanism):
    bad_values = [
        *(torch.tensor([int(SECRET)]), torch.zeros(0), [SECRET], np.array([SECRET])),
        *(int(SECRET), str(SECRET), None),
    ]
    if mechanism in (exponential, sparse):
        bad_values += [SECRET, torch.tensor(SECRET), torch.zeros(2, 3)]
    for bad in bad_values:
        with pytest.raises((TypeError, ValueError)) as caught:
            mechanism(bad)
        assert str(int(SECRET))[:6] not in str(caught.value)
        assert any(name in str(caught.value) for name in ("value", "utilities", "answers"))


@pytest.mark.parametrize("mechanism", ADDITIVE)
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_floats_that_are_not_finite_do_not_show(mechanism, bad):
    value = mechanism(bad).value
    assert abs(value) < 50 if math.isnan(bad) else value > 1e300


def test_a_utility_that_is_no_number_is_the_worst():
    for method in ("exponential", "permute_and_flip"):
        utilities = torch.tensor([math.nan, 0.0, -math.inf])
        assert exponential(utilities, epsilon=1.0, method=method).value == 1


@pytest.mark.parametrize("mechanism", ALL)
def test_charged_once_and_replayed_under_a_key(mechanism, tmp_path):
    value = torch.linspace(0, 1, 20).double()
    budget = PrivacyBudget(100.0, 1e-6)
    with PrivacyLedger(tmp_path / "a.ledger", budget) as ledger:
        first = mechanism(value, ledger=ledger, key="k")
        again = mechanism(value, ledger=ledger, key="k")
        assert torch.equal(torch.as_tensor(first.value), torch.as_tensor(again.value))
        assert type(first.value) is type(again.value) and first.guarantee == again.guarantee
        assert len(ledger.entries()) == 1
        mechanism(value, ledger=ledger)
        mechanism(value, ledger=ledger)
        assert len(ledger.entries()) == 3
        with pytest.raises(PrivacyError, match="unsafe_seed"):
            mechanism(value, ledger=ledger, unsafe_seed=0)
        assert len(ledger.entries()) == 3
    with pytest.raises(ValueError, match="`key`"):
        mechanism(value, key="k")


def test_gaussian_level_is_given_in_exactly_one_way():
    for level in (
        {},
        {"mu": 1.0, "epsilon": 1.0},
        {"mu": 1.0, "delta": 0.1},
        {"epsilon": 1.0},
        {"mu": 1.0, "epsilon": 1.0, "delta": 0.1},
    ):
        with pytest.raises(ValueError, match="mu"):
            gaussian_mechanism(0.0, sensitivity=1.0, **level)
    for delta in (0.0, 1.0, -0.1, math.nan):
        with pytest.raises(ValueError, match="delta"):
            gaussian_mechanism(0.0, sensitivity=1.0, epsilon=1.0, delta=delta)


@pytest.mark.parametrize("mechanism", ALL)
def test_words_reach_the_guarantee(mechanism):
    release = mechanism(
        torch.zeros(2), unit=PrivacyUnit("one patient", ADD_OR_REMOVE, ("scores lie in [0, 1]",))
    )
    guarantee = release.guarantee
    assert guarantee.relation is ADD_OR_REMOVE and guarantee.status == "proven"
    assert "one patient" in str(guarantee) and "scores lie in [0, 1]" in str(guarantee)


@pytest.mark.parametrize("mechanism", ALL)
def test_a_seed_repeats_and_promises_nothing(mechanism):
    value = torch.linspace(0, 1, 50).double()
    first, again = mechanism(value, unsafe_seed=9), mechanism(value, unsafe_seed=9)
    assert torch.equal(torch.as_tensor(first.value), torch.as_tensor(again.value))
    assert first.guarantee.status == "none" and math.isinf(first.guarantee.epsilon(0.1))
    assert "simulated noise: nothing is guaranteed" in str(first.guarantee)
    assert first.guarantee.nominal == mechanism(value).guarantee
    torch.manual_seed(0)
    real = torch.as_tensor(laplace(value).value)
    torch.manual_seed(0)
    assert not torch.equal(real, laplace(value).value)


@pytest.mark.parametrize("mechanism", ALL)
def test_releases_carry_nothing_but_the_release(mechanism):
    """Neither repr, str, pickle nor attributes hold the sensitive value."""
    value = torch.tensor([SECRET, SECRET + 1, SECRET - 1]).double()
    release = mechanism(value)
    texts = [repr(release), str(release), repr(release.guarantee), str(vars(release))]
    assert not any(repr(SECRET) in text or str(int(SECRET)) in text for text in texts)
    packed = pickle.dumps(release)
    for secret in value.tolist():
        assert np.float64(secret).tobytes() not in packed
        assert np.float64(secret).tobytes()[::-1] not in packed
    assert pickle.loads(packed).guarantee == release.guarantee
    assert copy.deepcopy(release).guarantee == release.guarantee
