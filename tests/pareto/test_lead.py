"""What the benchmark of Table 2 measures, by hand."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from benchmarks import dpareto_lead as lead
from benchmarks.dpareto_lead import DRAWN, DRAWS, MEASURES, front, leads
from botorch_dp.space import Integer, Real, SearchSpace

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


def test_pools_are_trained_in_turn_and_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each point once, then all of them again; but for those that no hypervolume counts."""
    space = SearchSpace(
        epochs=Integer(1, 4),
        batch_size=Integer(100, 200),
        noise_variance=Real(0.05, 2.0, log=True),
        learning_rate=Real(1e-3, 0.1, log=True),
    )
    trained: list[int] = []
    interrupted: list[int] = []

    def error(training: Any, config: Any, seed: int, start: Any) -> float:
        trained.append(seed)
        if seed > 2**20 and not interrupted:
            interrupted.append(seed)
            raise KeyboardInterrupt
        return 0.1 if seed < 2**20 else 0.3

    monkeypatch.setattr(lead, "prepared", lambda *_: SimpleNamespace(space=space))
    monkeypatch.setattr(lead, "training_of", lambda _: SimpleNamespace(num_records=2000))
    monkeypatch.setattr(lead, "error", error)
    stored: dict[str, Any] = {"trainings": 0, "points": [], "begun": []}
    pool = lead.Pool("LogReg+SGD", "learning rates of the study", stored)
    with pytest.raises(KeyboardInterrupt):
        pool.fill(8, 2, lambda: None)
    assert pool.trainings == 1
    pool.fill(8, 2, lambda: None)
    small = [place for place, point in enumerate(pool.points) if point[0] < lead.LARGEST]
    assert 1 <= len(small) < 8 and pool.trainings == 2 and stored["begun"] == []
    assert sorted({*trained}) == [*small, *(place + 2**20 for place in small)]
    assert len(trained) == 2 * len(small) + 1, "only the interrupted training is begun again"
    for exact, renyi, mean in pool.points:
        assert renyi > exact and mean == pytest.approx(0.2 if exact < lead.LARGEST else 1.0)
