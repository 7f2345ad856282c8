"""Questions and answers survive any restart."""

from __future__ import annotations

import sqlite3
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from botorch_dp.errors import BudgetExhausted, PrivacyError
from botorch_dp.outsourced import GaussianNoiseCurator, PrivateAnswers, QuestionRefused
from botorch_dp.privacy import PrivacyBudget, PrivacyLedger
from tests.one_draw import PLENTY
from tests.outsourced.serving import X, make_curator, measure


def test_a_question_is_on_disk_before_its_answer(tmp_path: Path) -> None:
    def fails(index: int) -> float:
        raise RuntimeError("the machine is cold")

    path = tmp_path / "log.sqlite"
    with closing(make_curator(fails, log=path)) as curator, pytest.raises(RuntimeError):
        curator.query(3, request_id="a")
    with closing(make_curator(log=path)) as again:
        assert again.num_queries == 1
        # Unanswered: it may be measured again, without counting again.
        assert again.query(3, request_id="a") == measure(3)
    with closing(make_curator(fails, log=path)) as last:
        assert last.query(3, request_id="a") == measure(3)
        assert last.num_queries == 1


def test_threads_that_ask_the_same_at_once(tmp_path: Path) -> None:
    """One answer, one charge and one measurement for each id."""
    measured: list[int] = []
    with PrivacyLedger(tmp_path / "a.ledger", PLENTY) as ledger:
        answers = PrivateAnswers(epsilon=0.01, bounds=(0.0, 1.0), ledger=ledger)
        curator = make_curator(
            lambda index: measured.append(index) or 0.5,
            answers=answers,
            log=tmp_path / "log.sqlite",
        )

        def asks(_: int) -> list[float]:
            return [curator.query(index, request_id=f"row {index}") for index in range(5)]

        with ThreadPoolExecutor(4) as pool:
            found = list(pool.map(asks, range(4)))
        assert len(set(map(tuple, found))) == 1
        assert sorted(measured) == list(range(5))
        assert len(ledger.entries()) == 5


@pytest.mark.parametrize(
    "alteration",
    [
        "UPDATE item SET value = x'' WHERE series = 'question' AND number = 2",
        "UPDATE item SET value = (SELECT value FROM item WHERE series = 'answer' AND number = 1) "
        "WHERE series = 'answer' AND number = 2",
        "UPDATE item SET number = 4 WHERE series = 'question' AND number = 3",
        "DELETE FROM item WHERE series = 'question' AND number = 2",
    ],
)
def test_an_altered_question_is_refused(tmp_path: Path, alteration: str) -> None:
    """SQLite finds nothing wrong with any of them; without the checks, rows are asked anew."""
    path = tmp_path / "log.sqlite"
    with closing(make_curator(log=path)) as curator:
        for index, request in enumerate("abc"):
            curator.query(index, request_id=request)
    with closing(sqlite3.connect(path)) as connection, connection:
        assert connection.execute(alteration).rowcount
    with pytest.raises(PrivacyError, match="is damaged"):
        make_curator(log=path)


def test_refusals_record_nothing(tmp_path: Path) -> None:
    curator = make_curator(log=tmp_path / "log.sqlite")
    curator.query(3, request_id="a")
    with pytest.raises(QuestionRefused, match="row 3 before and for row 4"):
        curator.query(4, request_id="a")
    assert curator.num_queries == 1


def test_a_release_that_no_budget_bears_settles_nothing(tmp_path: Path) -> None:
    ledger = PrivacyLedger(budget=PrivacyBudget(1.0, 1e-5))
    settings = {"ledger": ledger, "log": tmp_path / "log", "delta": 1e-6}
    with pytest.raises(BudgetExhausted):
        GaussianNoiseCurator(X, measure, epsilon=9.0, **settings)
    GaussianNoiseCurator(X, measure, epsilon=0.5, **settings).close()
    with pytest.raises(PrivacyError, match=r"`epsilon` was 0.5 and is 0.25"):
        GaussianNoiseCurator(X, measure, epsilon=0.25, **settings)
