"""The sparse vector technique: formula, lattice, stop, and probabilities by integration."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import torch
from scipy import integrate, stats

from botorch_dp.privacy.mechanisms import SimulatedNoise, integer_laplace_epsilon
from botorch_dp.privacy.sparse_vector_technique import (
    SparseVectorPlan,
    _on_lattice,
    _stop,
    noisy_comparisons,
    sparse_vector,
    sparse_vector_guarantee,
)

FALSE_ALARM = 1e-6


@pytest.mark.parametrize(("noise", "max_positives"), [(0.01, 1), (37.5, 4), (1.0, 30)])
def test_epsilon_is_the_papers_formula(noise, max_positives):
    cube_root = (2 * max_positives) ** (1 / 3)
    expected = (1 + cube_root) * (1 + cube_root**2) / noise
    guarantee = sparse_vector_guarantee(noise_scale=noise, max_positives=max_positives)
    assert guarantee.epsilon() == pytest.approx(expected, rel=1e-12)
    assert guarantee.epsilon() >= expected * (1 - 1e-15)


def test_epsilon_scales_with_the_sensitivity():
    unit = sparse_vector_guarantee(noise_scale=2.0, max_positives=3).epsilon()
    for sensitivity in (0.25, 1 / 3, 5.0, 1e-40):
        scaled = sparse_vector_guarantee(
            noise_scale=2.0 * sensitivity, max_positives=3, sensitivity=sensitivity
        ).epsilon()
        assert unit * (1 - 1e-12) <= scaled <= unit * (1 + 2e-9)


def test_opendp_confirms_both_shifts_of_the_proof():
    generator = np.random.default_rng(3)
    for _ in range(100):
        sensitivity, ratio = 10 ** generator.uniform((-6, -2), (6, 2))
        count = int(generator.integers(1, 50))
        noise = float(sensitivity * ratio)
        plan = SparseVectorPlan.make(noise, count, float(sensitivity))
        assert plan.sensitivity * plan.step >= sensitivity
        total = integer_laplace_epsilon(plan.sensitivity, plan.threshold_scale)
        total += integer_laplace_epsilon(2 * count * plan.sensitivity, plan.query_scale)
        guarantee = sparse_vector_guarantee(
            noise_scale=noise, max_positives=count, sensitivity=float(sensitivity)
        )
        assert guarantee.epsilon() >= total
        assert (plan.threshold_scale + plan.query_scale) * plan.step == pytest.approx(noise)


def test_neighbours_stay_neighbours_on_the_lattice():
    """Also half-way between lattice points, where rounding half to even would fail."""
    generator = np.random.default_rng(0)
    for sensitivity in (1.0, 1 + 2.0**-30, 0.3, 7.0, 1e-20):  # the second: an odd number of steps
        plan = SparseVectorPlan.make(sensitivity, 1, sensitivity)
        start = np.concatenate(
            [
                np.arange(-8, 8) * plan.step / 4,
                generator.normal(size=1000) * sensitivity * 100,
                [-5e-324, 0.0, 1e300, -1e300, plan.step * 2.0**60],
            ]
        )
        for move in (sensitivity, sensitivity / 2, plan.step / 2):
            moved = start + move
            too_far = [  # the sum was rounded up
                Fraction(after) - Fraction(before) > Fraction(sensitivity)
                for after, before in zip(moved.tolist(), start.tolist(), strict=True)
            ]
            assert np.mean(too_far) < 0.9
            moved = np.where(too_far, start, moved)
            gap = _on_lattice(moved, plan.step) - _on_lattice(start, plan.step)
            assert gap.min() >= 0 and gap.max() <= plan.sensitivity


def test_lattice_rounds_down_and_saturates():
    found = _on_lattice(np.array([0.5, 1.5, -0.5, 2.0, 1e300, -1e300]), 1.0).tolist()
    assert found == [0, 1, -1, 2, 2**60, -(2**60)]


@pytest.mark.parametrize(
    ("positives", "allowed", "expected"),
    [
        ([0, 1, 0, 1], 1, 2),
        ([0, 1, 0, 1], 2, 4),
        ([0, 1, 0, 1], 3, 4),
        ([0, 0], 1, 2),
        ([1], 1, 1),
        ([1, 1, 1], 2, 2),
    ],
)
def test_stops_at_the_last_positive_allowed(positives, allowed, expected):
    assert _stop(np.array(positives, dtype=bool), allowed) == expected


def test_clear_answers_are_found_in_order():
    answers = torch.tensor([0.0, 1e6, -1e6, 1e6, 0.0, 1e6]).double() - 1e3
    release = sparse_vector(answers, noise_scale=1.0, max_positives=2)
    assert release.value == [False, True, False, True]
    assert all(type(flag) is bool for flag in release.value)
    release = sparse_vector(answers, noise_scale=1.0, max_positives=5)
    assert release.value == [False, True, False, True, False, True]
    release = sparse_vector(answers, noise_scale=1.0, max_positives=1, threshold=2e6)
    assert release.value == [False] * 6
    assert release.scale == pytest.approx(1.0 - 1.0 / (1 + 2 ** (1 / 3)))


def test_answers_beyond_the_lattice_saturate():
    answers = torch.tensor([-1e308, 1e308, -1e308], dtype=torch.float64)
    assert sparse_vector(answers, noise_scale=1.0, max_positives=3).value == [False, True, False]


def test_every_answer_gets_fresh_noise_and_all_share_the_threshold():
    """The probability of each output, by integrating over the threshold's noise."""
    noise, draws, answers = 2.0, 40_000, np.array([0.0, 1.0])
    plan = SparseVectorPlan.make(noise, 1, 1.0)
    first, second = plan.threshold_scale * plan.step, plan.query_scale * plan.step
    assert first == pytest.approx(noise / (1 + 2 ** (1 / 3)))

    def probability(pattern):
        def integrand(rho):
            tails = stats.laplace.sf(0.5 + rho - answers, scale=second)
            return stats.laplace.pdf(rho, scale=first) * np.prod(
                np.where(pattern, tails, 1 - tails)
            )

        return integrate.quad(integrand, -60, 60, points=[-0.5, 0.0, 0.5], limit=200)[0]

    patterns = [(0, 0), (0, 1), (1, 0), (1, 1)]
    expected = np.array([probability(np.array(pattern)) for pattern in patterns])
    assert expected.sum() == pytest.approx(1.0)
    runs = noisy_comparisons(answers, 0.5, plan, SimulatedNoise(11), draws)
    codes = runs @ np.array([2, 1])
    counts = np.bincount(codes, minlength=4)
    assert stats.chisquare(counts, draws * expected).pvalue > FALSE_ALARM


def test_noise_out_of_proportion_is_refused():
    for noise in (1e-7, 1e7):
        with pytest.raises(ValueError, match="noise"):
            sparse_vector(torch.zeros(2), noise_scale=noise, max_positives=1)
    with pytest.raises(ValueError, match="max_positives"):
        sparse_vector(torch.zeros(2), noise_scale=1.0, max_positives=10**7)
