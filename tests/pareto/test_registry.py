from __future__ import annotations

import math
from typing import Any

import pytest

from botorch_dp.pareto import PrivacyUtilityProblem, StudyError
from botorch_dp.pareto.problem import Measurement
from botorch_dp.pareto.proposals import ProposalOptions, Proposer
from botorch_dp.pareto.registry import Registry
from botorch_dp.pareto.storage import StudyStorage
from tests.pareto import toy


def registry(problem: PrivacyUtilityProblem | None = None, *, retries: int = 1) -> Registry:
    problem = toy.problem(replicates=2) if problem is None else problem
    storage = StudyStorage(None, description=problem.description(), seed=0)
    proposer = Proposer(problem, seed=0, options=ProposalOptions(acquisition="random"))
    return Registry(problem, storage, proposer, retries=retries)


def test_a_trial_is_taken_until_released_or_ended() -> None:
    books = registry()
    trial = books.propose(initial=4)
    assert books.take_waiting() is None
    books.release(trial.number)
    assert books.take_waiting() == trial and books.take_waiting() is None
    books.record(trial.number, {0: Measurement(0.5)})
    assert books.trial(0).state == "pending"
    assert books.record(trial.number, {1: Measurement(0.5)}).state == "complete"
    books.release(trial.number)
    assert books.take_waiting() is None


def test_failures_are_retried_as_configured() -> None:
    books = registry(retries=2)
    books.propose(initial=4)
    assert books.record_failure(0, "OSError", trainings=1).state == "pending"
    assert books.record_failure(0, "OSError", trainings=1).state == "pending"
    failed = books.record_failure(0, "ValueError", trainings=1)
    assert failed.state == "failed" and failed.failures == ("OSError", "OSError", "ValueError")


def test_what_cannot_end_differently_is_not_retried() -> None:
    books = registry(retries=5)
    books.propose(initial=4)
    ended = books.record_failure(0, "InvalidUtilityError", trainings=1, retryable=False)
    assert ended.state == "failed"


def test_suspicion_is_no_attempt() -> None:
    books = registry(retries=0)
    books.propose(initial=4)
    books.record_suspicion(0, "BrokenProcessPool", trainings=1)
    trial = books.trial(0)
    assert trial.suspect and trial.state == "pending" and trial.failed_trainings == 1


@pytest.mark.parametrize("answer", [math.nan, math.inf, -1.0])
def test_an_invalid_epsilon_fails_the_trial_before_it_trains(answer: float) -> None:
    trained = []

    def train(config: dict[str, Any], seed: int) -> float:
        trained.append(config)
        return 0.5

    books = registry(toy.problem(train, privacy=lambda config: answer))
    trial = books.propose(initial=4)
    assert trial.state == "failed" and trial.failures == ("InvalidEpsilonError",)
    assert math.isnan(trial.epsilon) and not trained and books.take_waiting() is None


def test_all_initial_trials_failed() -> None:
    books = registry(toy.problem(privacy=lambda config: 1 / 0))
    for _ in range(3):
        books.propose(initial=3)
    with pytest.raises(StudyError, match=r"3 trials so far failed with \['ZeroDivisionError'\]"):
        books.propose(initial=3)


def test_fresh_seeds_are_new() -> None:
    books = registry()
    trial = books.propose(initial=4)
    books.record(0, {0: Measurement(0.5), 1: Measurement(0.5)})
    first = books.fresh_seeds(0, 3)
    assert list(first) == [2, 3, 4] and not set(first.values()) & set(trial.seeds)
    books.record_fresh(0, {2: Measurement(0.5)})
    assert list(books.fresh_seeds(0, 2)) == [3, 4]
    assert books.trial(0).state == "complete" and len(books.trial(0).fresh) == 1


def test_unknown_trial() -> None:
    with pytest.raises(ValueError, match="`trial` 3 is unknown; the study has 0 trials"):
        registry().trial(3)
