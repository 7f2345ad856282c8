"""Theorems 2 and 4 as both editions of Kusner et al. print them, from the formulas alone."""

from __future__ import annotations

import itertools
import math

import pytest

from benchmarks.kusner import published_choice, published_maximum
from botorch_dp.release import PrivateChoice, PrivateMaximum

SIZES = list(itertools.product((2, 36_000), (1, 50), (0.9, 0.999_999), (0.3, 10.0), (1e-5,)))
COINS, NOISE, GAIN = 0.05, 0.1, 30.0


def numbers(n: int, steps: int, k: float, delta: float) -> tuple[float, float, float]:
    """beta_T, beta_{T+1} and c."""
    beta, after = (2 * math.log(n * t**2 * math.pi**2 / (3 * delta)) for t in (steps, steps + 1))
    return beta, after, 2 * math.sqrt((1 - k) * math.log(3 * n / delta))


@pytest.mark.parametrize(("n", "steps", "k", "epsilon", "delta"), SIZES)
def test_theorem_2(n: int, steps: int, k: float, epsilon: float, delta: float) -> None:
    choice = PrivateChoice(
        num_choices=n, epsilon=epsilon, delta=delta, steps=steps, dataset_correlation=k
    )
    beta, after, c = numbers(n, steps, k, delta)
    tail = 2 * (2 * math.sqrt(after) + c) / epsilon * (math.log(n) + math.log(1 / COINS))
    conference = published_choice(choice, edition="icml2015", noise_std=NOISE)
    assert sum(conference) == pytest.approx(tail)
    workshop = published_choice(choice, edition="workshop2014", noise_std=NOISE)
    q = NOISE * math.sqrt(4 * math.log(3 / delta))
    assert sum(workshop) == pytest.approx(tail + 2 * math.sqrt(beta) + q)


@pytest.mark.parametrize(("n", "steps", "k", "epsilon", "delta"), SIZES)
@pytest.mark.parametrize("edition", ["icml2015", "workshop2014"])
def test_theorem_4(
    n: int, steps: int, k: float, epsilon: float, delta: float, edition: str
) -> None:
    maximum = PrivateMaximum(
        num_choices=n, epsilon=epsilon, delta=delta, steps=steps, dataset_correlation=k,
        noise_std=NOISE, information_gain=GAIN, edition="union_bound",
    )  # fmt: skip
    beta, _, c = numbers(n, steps, k, delta)
    regret = math.sqrt(8 / math.log(1 + NOISE**-2) * beta * GAIN / steps)
    q = NOISE * math.sqrt({"icml2015": 8, "workshop2014": 4}[edition] * math.log(3 / delta))
    noise = {
        "icml2015": NOISE * math.sqrt(8 * math.log(1 / delta)),
        "workshop2014": math.sqrt(2 * math.log(2 * steps / delta)),
    }[edition]
    tail = (regret + c + q) / epsilon * math.log(1 / COINS)
    found = published_maximum(maximum, edition=edition)
    assert sum(found) == pytest.approx(regret + noise + tail)
