"""What the benchmark of Table 2 measures, by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from benchmarks.dpareto_lead import DRAWN, DRAWS, MEASURES, front, leads

STEPS = np.array([[1.0, 0.4], [2.0, 0.2], [3.0, 0.3], [12.0, 0.1]])


def test_front_and_measures_by_hand() -> None:
    assert front(STEPS).tolist() == [[1.0, 0.4], [2.0, 0.2], [12.0, 0.1]]
    found = {name: measure(STEPS) for name, measure in MEASURES.items()}
    assert found["hypervolume to (10, 1)"] == pytest.approx(9 * 0.6 + 8 * 0.2)
    assert found["hypervolume to (10, .999)"] == pytest.approx(9 * 0.599 + 8 * 0.2)
    # The rectangle of the first point alone.
    assert found["what the published code returns"] == pytest.approx(9 * 0.599)
    logs = math.log(10) * 0.6 + math.log(5) * 0.2
    assert found["hypervolume in ln(epsilon / .05)"] == pytest.approx(logs)


def test_draws_are_disjoint_and_cover_the_pool() -> None:
    """A study that repeats one point is ahead of just those draws that do not have a better one."""
    pool = [[1.0, 1.0, 0.5] for _ in range(DRAWS * 3)]
    pool[DRAWS + 4] = [1.0, 1.0, 0.1]  # in one draw only
    found = leads(pool, [[1.0, 1.0, 0.4]] * DRAWN)
    assert all(entry["ahead of"] == DRAWS - 1 for entry in found.values())
