from __future__ import annotations

import math
import warnings
from typing import Any

import pytest
import torch

from botorch_dp.pareto import Objective
from botorch_dp.pareto.known import KnownObjectives
from tests.pareto import toy


def test_columns_and_values() -> None:
    objectives = [
        Objective("time", 60.0),
        Objective("size", 100.0, function=lambda config: 3.0 * config["epochs"]),
    ]
    problem = toy.problem(objectives=objectives)
    known = KnownObjectives(problem, with_epsilon=True)
    assert known.columns == {0: 0, 3: 1}
    row = known([{"noise": 2.0, "epochs": 4}])
    assert row.tolist() == [[1.0, 12.0]]
    without = KnownObjectives(problem, with_epsilon=False)
    assert without.columns == {3: 0}
    assert without([{"noise": 2.0, "epochs": 4}]).tolist() == [[12.0]]


def test_nothing_known() -> None:
    known = KnownObjectives(toy.problem(), with_epsilon=False)
    candidates = known.candidates(torch.rand(5, 2, dtype=torch.double))
    assert candidates.known.shape == (5, 0)
    assert candidates.possible.all()


def test_each_config_is_asked_about_once() -> None:
    asked = []

    def privacy(config: dict[str, Any]) -> float:
        asked.append(config)
        return toy.epsilon(config)

    known = KnownObjectives(toy.problem(privacy=privacy), with_epsilon=True)
    codes = torch.rand(20, 2, dtype=torch.double)
    first = known.candidates(codes)
    assert torch.equal(known.candidates(first.codes).known, first.known)
    assert len(asked) == 20


def test_codes_are_of_configs_that_can_be_tried() -> None:
    known = KnownObjectives(toy.problem(), with_epsilon=True)
    candidates = known.candidates(torch.rand(50, 2, dtype=torch.double))
    configs = toy.SPACE.decode(candidates.codes)
    expected = [toy.epsilon(config) for config in configs]
    assert candidates.known[:, 0].tolist() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("answer", [math.nan, -1.0, math.inf])
@pytest.mark.parametrize("batch", [False, True])
def test_configs_with_impossible_epsilons_are_marked(answer: float, batch: bool) -> None:
    def privacy(config: dict[str, Any]) -> float:
        if config["epochs"] == 7:
            raise ZeroDivisionError
        return answer if config["epochs"] > 10 else toy.epsilon(config)

    problem = toy.problem(
        privacy=privacy, privacy_batch=(lambda cs: [privacy(c) for c in cs]) if batch else None
    )
    known = KnownObjectives(problem, with_epsilon=True)
    with pytest.warns(UserWarning, match="ZeroDivisionError"):
        candidates = known.candidates(torch.rand(200, 2, dtype=torch.double))
    epochs = torch.tensor([config["epochs"] for config in toy.SPACE.decode(candidates.codes)])
    assert torch.equal(candidates.possible, (epochs <= 10) & (epochs != 7))


def test_failures_are_counted_and_told_once_by_type() -> None:
    def privacy(config: dict[str, Any]) -> float:
        if config["epochs"] == 7:
            raise KeyError("the record of Ada Lovelace")
        return math.inf if config["epochs"] == 8 else toy.epsilon(config)

    def size(config: dict[str, Any]) -> float:
        if config["epochs"] == 9:
            raise OSError("the record of Ada Lovelace")
        return 3.0

    objectives = [Objective("size", 100.0, function=size)]
    problem = toy.problem(privacy=privacy, objectives=objectives)
    known = KnownObjectives(problem, with_epsilon=True)
    with pytest.warns(UserWarning) as warned:
        values = known([{"noise": 1.0, "epochs": epochs} for epochs in (6, 7, 8, 9)])
    assert values.isfinite().all(dim=-1).tolist() == [True, False, False, False]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        known([{"noise": 2.0, "epochs": 7}])
        known([{"noise": 1.0, "epochs": 7}])  # remembered, not asked again
    assert known.failures == {
        "privacy: KeyError": 2,
        "privacy: InvalidEpsilonError": 1,
        "size: OSError": 1,
    }
    (message,) = (str(warning.message) for warning in warned)
    assert "privacy: InvalidEpsilonError (1 times), privacy: KeyError (1 times)" in message
    assert "Ada" not in message


def test_a_broken_batch_oracle_does_not_go_unnoticed() -> None:
    """The oracle for single configs makes up for it, but slowly."""
    problem = toy.problem(privacy_batch=lambda configs: [1.0])
    known = KnownObjectives(problem, with_epsilon=True)
    configs = [{"noise": 2.0, "epochs": 4}, {"noise": 1.0, "epochs": 4}]
    with pytest.warns(UserWarning, match=r"privacy_batch: InvalidEpsilonError \(1 times\)"):
        assert known(configs).tolist() == [[1.0], [2.0]]


def test_each_config_is_asked_about_once_though_another_fails() -> None:
    asked = []

    def privacy(config: dict[str, Any]) -> float:
        asked.append(config["epochs"])
        return 1 / (config["epochs"] - 2)

    known = KnownObjectives(toy.problem(privacy=privacy), with_epsilon=True)
    with pytest.warns(UserWarning, match="privacy: ZeroDivisionError"):
        known([{"noise": 1.0, "epochs": epochs} for epochs in (4, 3, 2)])
    assert asked == [4, 3, 2]


def test_an_interruption_is_no_failure() -> None:
    def privacy(config: dict[str, Any]) -> float:
        raise KeyboardInterrupt

    known = KnownObjectives(toy.problem(privacy=privacy), with_epsilon=True)
    with pytest.raises(KeyboardInterrupt):
        known([{"noise": 1.0, "epochs": 4}])
    assert not known.failures


def test_a_slow_oracle_is_pointed_out_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from botorch_dp.pareto import known as module

    known = KnownObjectives(toy.problem(), with_epsilon=True)
    monkeypatch.setattr(module, "_SLOW", -1.0)
    with pytest.warns(UserWarning, match="privacy_batch"):
        known.candidates(torch.rand(3, 2, dtype=torch.double))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        known.candidates(torch.rand(3, 2, dtype=torch.double))


def test_select_and_join() -> None:
    known = KnownObjectives(toy.problem(), with_epsilon=True)
    candidates = known.candidates(torch.rand(6, 2, dtype=torch.double))
    joined = candidates[torch.tensor([0, 1])] + candidates[torch.tensor([5])]
    assert len(joined) == 3
    assert torch.equal(joined.known, candidates.known[[0, 1, 5]])
