"""Audits of the releases on pairs that move as far as the sensitivity bounds allow.

The guarantees are conditional: on the prior the bounds hold with probability 1 - delta. What is
audited is the rest, the mechanism where they do hold. Broken versions have half the noise. The
short audit of the choice draws simulated noise, to repeat; simulated values would fail theirs,
as the low bits of floating-point noise give them away.
"""

from __future__ import annotations

from itertools import count

import pytest
import torch

from botorch_dp.privacy import audit_epsilon
from botorch_dp.release import LipschitzMaximum, NoiseFreeMaximum, PrivateChoice, PrivateMaximum

pytestmark = pytest.mark.filterwarnings("ignore::botorch_dp.release.UtilityWarning")

EPSILON = 1.5
CONFIDENCE = 1 - 1e-6
PRIOR = {"epsilon": EPSILON, "delta": 0.1, "num_choices": 20, "dataset_correlation": 0.9}
CHOICE = {**PRIOR, "steps": 5}
MAXIMA = {
    PrivateMaximum: {**PRIOR, "steps": 5, "noise_std": 0.3, "information_gain": 4.0},
    NoiseFreeMaximum: {**PRIOR, "steps": 5, "dim": 2, "amplitude": 1.0, "rate": 0.1},
    LipschitzMaximum: {
        "epsilon": EPSILON,
        "num_records": 100,
        "equal_at_zero": True,
        "lipschitz": 1.0,
        "lambda_min": 0.5,
        "lambda_max": 0.6,
    },
}


def with_half_the_noise(kind: type) -> type:
    class Broken(kind):
        @property
        def sensitivity(self) -> float:
            return super().sensitivity / 2

    return Broken


def seeds(simulated: bool):
    """A fresh seed for each draw, or none."""
    numbers = count()
    return lambda: next(numbers) if simulated else None


def audit_choice(kind: type, method: str, samples: int, *, simulated: bool = True):
    seed = seeds(simulated)
    bound = PrivateChoice(method=method, **CHOICE).sensitivity
    mechanism = kind(method=method, **CHOICE)
    indices = torch.arange(20.0).unsqueeze(-1)
    worst = torch.zeros(20, dtype=torch.double)
    worst[0] = bound  # one choice rises as far as it may, all others fall: 0 against the rest
    neighbor = bound - worst

    def draw(mean):
        return mechanism.release(mean, indices, unsafe_seed=seed()).value.item()

    return audit_epsilon(
        draw, worst, neighbor, samples=samples, confidence=CONFIDENCE, claim=EPSILON
    )


def audit_maximum(kind: type, samples: int, *, simulated: bool = False):
    seed = seeds(simulated)
    options = next(MAXIMA[base] for base in kind.__mro__ if base in MAXIMA)
    bound = next(base for base in kind.__mro__ if base in MAXIMA)(**options).sensitivity
    mechanism = kind(**options)
    low = torch.zeros(5, dtype=torch.double)

    def draw(values):
        return mechanism.release(values, unsafe_seed=seed()).value

    return audit_epsilon(
        draw, low, low + bound, samples=samples, confidence=CONFIDENCE, claim=EPSILON
    )


@pytest.mark.one_in(2)
@pytest.mark.parametrize("method", ["exponential", "permute_and_flip"])
def test_audit_of_the_choice(method):
    assert audit_choice(PrivateChoice, method, 2500).passes
    assert not audit_choice(with_half_the_noise(PrivateChoice), method, 2500).passes


@pytest.mark.slow
def test_audit_of_the_maximum():
    assert audit_maximum(PrivateMaximum, 2000).passes
    assert not audit_maximum(with_half_the_noise(PrivateMaximum), 3500).passes


def test_audit_sees_the_low_bits_of_simulated_noise():
    assert not audit_maximum(PrivateMaximum, 2000, simulated=True).passes


@pytest.mark.slow
@pytest.mark.parametrize("method", ["exponential", "permute_and_flip"])
def test_long_audit_of_the_choice(method):
    report = audit_choice(PrivateChoice, method, 100_000, simulated=False)
    assert report.passes
    assert report.lower_bound > EPSILON / 2


@pytest.mark.slow
@pytest.mark.parametrize("kind", MAXIMA)
def test_long_audit_of_the_maximum(kind):
    report = audit_maximum(kind, 100_000)
    assert report.passes
    assert report.lower_bound > 0.8 * EPSILON
    assert not audit_maximum(with_half_the_noise(kind), 10_000).passes
