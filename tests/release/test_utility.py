from __future__ import annotations

import itertools
import math
import warnings
from dataclasses import replace
from typing import Any

import pytest
import torch
from scipy.stats import laplace

from botorch_dp.release import UtilityBound, UtilityWarning
from botorch_dp.release.assumptions import (
    best_choice_probability,
    exact_selection_tail,
    laplace_tail,
    prior_spread,
    warn_if_drowned,
)

BOUND = UtilityBound(
    subject="the drawn choice is worse than the best one",
    noise=1.5,
    model=0.25,
    probability=0.95,
    spread=2.0,
)


def test_an_answer_is_drowned_from_its_spread_on() -> None:
    """By the noise alone, whatever the model adds."""
    assert not replace(BOUND, model=100.0).drowned
    assert not replace(BOUND, noise=math.nextafter(2.0, 0.0)).drowned
    assert replace(BOUND, noise=2.0).drowned


@pytest.mark.parametrize("delta", [0.99, 0.5, 0.05, 1e-9])
def test_laplace_tail_is_the_quantile_of_the_absolute_value(delta: float) -> None:
    within = laplace(scale=2.5).isf(delta / 2)
    assert laplace_tail(2.5, delta) == pytest.approx(within, rel=1e-6)


@pytest.mark.parametrize("method", ["exponential", "permute_and_flip"])
@pytest.mark.parametrize("delta", [0.4, 0.05, 1e-9])
@pytest.mark.parametrize("num_choices", [2, 1000])
def test_exact_selection_tail_is_attained(num_choices: int, delta: float, method: Any) -> None:
    tail = exact_selection_tail(2.0, num_choices, delta, method)
    found = best_choice_probability(2.0, num_choices, tail, method)
    assert found == pytest.approx(1 - delta, abs=1e-6 * delta + 1e-13)
    # Broken on purpose: a little less is exceeded more often than stated.
    assert best_choice_probability(2.0, num_choices, 0.9 * tail, method) < 1 - delta


def permute_and_flip_by_enumeration(num_choices: int, q: float) -> float:
    """Every order of the choices and every result of the coins before the best (choice 0)."""
    total = 0.0
    orders = list(itertools.permutations(range(num_choices)))
    for order in orders:
        passed_over = 1.0
        for choice in order:
            if choice == 0:  # its coin always says yes
                total += passed_over
                break
            passed_over *= 1 - q
    return total / len(orders)


def test_probability_of_the_best_choice_by_hand() -> None:
    """Three choices and ``q = 1/2``: 1 / (1 + 2 q), and (1 + 1/2 + 1/4) / 3."""
    spread = 4 * math.log(2)
    assert best_choice_probability(4.0, 3, spread, "exponential") == pytest.approx(1 / 2)
    assert best_choice_probability(4.0, 3, spread, "permute_and_flip") == pytest.approx(7 / 12)


@pytest.mark.parametrize("spread", [0.01, 1.0, 5.0])
@pytest.mark.parametrize("num_choices", [1, 2, 6])
def test_probability_of_the_best_choice_by_enumeration(num_choices: int, spread: float) -> None:
    utilities = torch.full((num_choices,), -spread / 1.5, dtype=torch.double)
    utilities[0] = 0.0
    softmax = best_choice_probability(1.5, num_choices, spread, "exponential")
    assert softmax == pytest.approx(torch.softmax(utilities, 0)[0].item(), rel=1e-12)
    flipped = best_choice_probability(1.5, num_choices, spread, "permute_and_flip")
    expected = permute_and_flip_by_enumeration(num_choices, math.exp(-spread / 1.5))
    assert flipped == pytest.approx(expected, rel=1e-12)
    assert flipped >= softmax * (1 - 1e-12)


@pytest.mark.parametrize("method", ["exponential", "permute_and_flip"])
def test_probability_of_the_best_choice_in_the_limits(method: str) -> None:
    def best(spread: float) -> float:
        return best_choice_probability(1.0, 1000, spread, method)  # type: ignore[arg-type]

    assert best(0.0) == pytest.approx(1 / 1000)
    assert best(1e-15) == pytest.approx(1 / 1000)
    assert best(100.0) == pytest.approx(1.0)
    assert best(1e6) == 1.0  # exp(-spread) is 0


def test_spread_of_the_prior() -> None:
    assert prior_spread(1) == 1.0
    assert prior_spread(1000) == pytest.approx(math.sqrt(2 * math.log(1000)))
    for num_choices in (2, 10, 1000):
        largest = torch.randn(4000, num_choices).max(dim=1).values
        error = 5 / math.sqrt(4000)  # five standard errors of a maximum, whose variance is < 1
        assert largest.mean().item() <= prior_spread(num_choices) + error


def test_a_drowned_answer_is_warned_of_where_the_caller_is() -> None:
    with pytest.warns(UtilityWarning, match=r"may hide .* by at most 2\.25 .*`epsilon`") as caught:
        warn_if_drowned(replace(BOUND, noise=2.0))
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_if_drowned(BOUND)
