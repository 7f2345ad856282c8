"""Theorems 2 and 4 as both editions of Kusner et al. print them, from the formulas alone."""

from __future__ import annotations

import itertools
import math

import pytest

from botorch_dp.release import PrivateChoice, PrivateMaximum

SIZES = list(itertools.product((2, 400, 36_000), (1, 50), (0.9, 0.999_999), (0.3, 10.0), (1e-5,)))
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
    conference = choice.published_utility(COINS)
    assert conference.loss == pytest.approx(tail)
    assert "posterior mean" in str(conference)
    workshop = choice.published_utility(COINS, edition="workshop2014", noise_std=NOISE)
    q = NOISE * math.sqrt(4 * math.log(3 / delta))
    assert workshop.loss == pytest.approx(tail + 2 * math.sqrt(beta) + q)
    for bound in (conference, workshop):
        assert bound.probability == pytest.approx(1 - COINS - delta)


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
    bound = maximum.published_utility(COINS, edition=edition)  # type: ignore[arg-type]
    tail = (regret + c + q) / epsilon * math.log(1 / COINS)
    assert bound.loss == pytest.approx(regret + noise + tail)


def test_the_workshops_bound_of_a_choice_needs_the_noise() -> None:
    choice = PrivateChoice(num_choices=9, epsilon=1.0, delta=1e-5, steps=3, dataset_correlation=0.9)
    with pytest.raises(ValueError, match="`noise_std` must be given"):
        choice.published_utility(edition="workshop2014")
