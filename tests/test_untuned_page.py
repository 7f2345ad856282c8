"""The page about untuned trainings says what the stored results say."""

from __future__ import annotations

import json

from benchmarks.common import RESULTS
from benchmarks.nothing_to_tune import EPSILONS, FIGURE, gaps, mean
from benchmarks.pages import UNTUNED, filled
from benchmarks.untuned_tasks import TASKS

CELLS = json.loads((RESULTS / "nothing_to_tune.json").read_text())["cells"]


def test_its_tables_are_those_of_the_results() -> None:
    text = UNTUNED.read_text()
    assert text == filled(text), "run `python -m benchmarks.pages`"
    assert f"figures/{FIGURE.name}" in text and FIGURE.exists()


def test_every_task_was_tried_with_five_seeds_at_every_epsilon() -> None:
    groups = [task.group for task in TASKS.values()]
    assert [groups.count(group) for group in ("design", "checked later", "held out")] == [6, 8, 6]
    for task in TASKS:
        for epsilon in EPSILONS:
            assert len(CELLS[f"{task} {epsilon:g} rule"]["values"]) == 5


def test_a_gap_is_against_the_model_that_was_chosen() -> None:
    cells = {
        "adult 1 rule": {"values": [0.5, 0.7]},
        "adult 1 unpaid": {"values": [0.1], "best model itself": 0.7},
    }
    assert gaps(cells) == {("adult", 1.0): 0.6 - 0.7}
    assert mean(cells, "adult", 3.0, "rule") is None
