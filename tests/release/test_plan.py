from __future__ import annotations

import math
from dataclasses import FrozenInstanceError

import pytest
import torch

from botorch_dp.release import (
    ChoiceMechanism,
    LipschitzMaximum,
    PrivateOptimum,
    ReleasePlan,
    SearchDiagnostics,
)
from tests.release.maxima import LIPSCHITZ, MECHANISMS, VALUES

CHOICE = ChoiceMechanism(
    num_choices=50, epsilon=2.0, delta=1e-3, steps=50, dataset_correlation=0.99
)
SCORES = torch.zeros(50, dtype=torch.double)
CHOICES = torch.linspace(0, 1, 50, dtype=torch.double).unsqueeze(-1)


def plan(maximum: str = "noisy", confidence: float = 0.95) -> ReleasePlan:
    return ReleasePlan(choice=CHOICE, maximum=MECHANISMS[maximum], confidence=confidence)


def optimum(*, choice_seed: int | None = None, maximum_seed: int | None = None) -> PrivateOptimum:
    return PrivateOptimum(
        choice=CHOICE.draw(SCORES, CHOICES, unsafe_seed=choice_seed),
        maximum=MECHANISMS["noisy"].draw(VALUES, unsafe_seed=maximum_seed),
        plan=plan(),
        diagnostics=SearchDiagnostics((4, 7), torch.tensor([33.25, 0.5]), SCORES, SCORES, 0),
    )


def test_guarantee_adds_up_both_releases() -> None:
    """(2, 1e-3) for the choice and (1, 1e-4) for the maximum."""
    guarantee = plan().guarantee
    assert guarantee.status == "conditional"
    assert guarantee.epsilon(1.1e-3) == pytest.approx(3.0)
    assert guarantee.epsilon(1e-3) == math.inf
    conditions = {*CHOICE.guarantee.conditions, *MECHANISMS["noisy"].guarantee.conditions}
    assert set(guarantee.conditions) == conditions


def test_a_maximum_without_delta_leaves_that_of_the_choice() -> None:
    assert plan("Lipschitz").guarantee.epsilon(1e-3) == pytest.approx(3.0)


def test_utilities_are_those_of_the_mechanisms_at_the_plans_confidence() -> None:
    cautious = plan(confidence=0.999)
    assert cautious.choice_utility == CHOICE.utility(0.999)
    assert cautious.maximum_utility == MECHANISMS["noisy"].utility(0.999)
    assert cautious.maximum_utility != plan().maximum_utility


def test_a_plan_in_words() -> None:
    guarantee, choice, maximum = str(plan()).split("\n")
    assert guarantee == str(plan().guarantee)
    assert choice == f"Choice: {CHOICE.utility(0.95)}"
    assert maximum == f"Maximum: {MECHANISMS['noisy'].utility(0.95)}"


def test_a_plan_is_frozen_and_compares_by_value() -> None:
    with pytest.raises(FrozenInstanceError):
        plan().confidence = 0.5  # type: ignore[misc]
    twin = ReleasePlan(choice=CHOICE, maximum=LipschitzMaximum(**LIPSCHITZ), confidence=0.95)
    assert twin == plan("Lipschitz") != plan("Lipschitz", confidence=0.9)


def test_an_optimum_promises_what_its_plan_said() -> None:
    assert optimum().guarantee == plan().guarantee


@pytest.mark.parametrize("seeds", [(3, 4), (3, None), (None, 4)])
def test_one_simulated_release_voids_the_guarantee_of_both(seeds: tuple[int | None, ...]) -> None:
    promised = optimum(choice_seed=seeds[0], maximum_seed=seeds[1]).guarantee
    assert promised.status == "none"
    assert promised.epsilon(0.5) == math.inf


def test_an_optimum_shows_what_is_released_and_not_what_was_seen() -> None:
    shown = repr(optimum())
    assert "choice=" in shown and "maximum=" in shown
    assert "diagnostics" not in shown
    assert "33.25" not in shown
