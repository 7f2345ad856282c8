"""The count of questions survives any restart."""

from __future__ import annotations

import gc
import math
import os
import signal
import sqlite3
import threading
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from botorch_dp.errors import BudgetExhausted, PrivacyError
from botorch_dp.outsourced import PrivateAnswers
from botorch_dp.outsourced.query_log import QueryLimitReached, QueryLog, RequestConflict
from botorch_dp.privacy import PrivacyLedger
from tests.one_draw import PLENTY, Disk, in_fork
from tests.outsourced.serving import make_curator, measure, memory_folder


def test_a_question_is_on_disk_before_its_answer(tmp_path: Path) -> None:
    path = tmp_path / "log.sqlite"
    log = QueryLog(path)
    assert log.open_request("a", 3, limit=None) == (1, None)
    log.close()
    again = QueryLog(path)
    assert len(again) == 1
    assert not again.entries()[0].answered
    # Unanswered: it may be measured again, without counting again.
    assert again.open_request("a", 3, limit=1) == (1, None)
    again.close_request("a", 0.5)
    again.close()
    last = QueryLog(path)
    assert last.open_request("a", 3, limit=1) == (1, 0.5)
    assert len(last) == 1


@pytest.mark.parametrize("answer", [math.nan, math.inf, -math.inf, -0.0, 5e-324])
def test_any_number_is_an_answer(tmp_path: Path, answer: float) -> None:
    path = tmp_path / "log.sqlite"
    log = QueryLog(path)
    log.open_request("a", 3, limit=None)
    log.close_request("a", answer)
    log.close()
    _, known = QueryLog(path).open_request("a", 3, limit=None)
    assert known is not None
    assert math.isnan(known) if math.isnan(answer) else known == answer


class TestOneHolder:
    """One process, and one log in it, holds the file; what a killed one left is found again."""

    def test_a_second_handle_is_refused(self, tmp_path: Path) -> None:
        path = tmp_path / "log.sqlite"
        log = QueryLog(path)
        os.symlink(path, tmp_path / "other_name")
        for name in ("log.sqlite", "other_name"):
            with pytest.raises(PrivacyError, match="in use"):
                QueryLog(tmp_path / name)
            assert isinstance(in_fork(lambda name=name: QueryLog(tmp_path / name)), PrivacyError)
        log.close()
        QueryLog(tmp_path / "other_name").close()

    def test_a_killed_process_leaves_its_question_to_the_next(self, tmp_path: Path) -> None:
        path = tmp_path / "log.sqlite"

        def dies() -> None:
            QueryLog(path).open_request("a", 3, limit=None)
            os.kill(os.getpid(), signal.SIGKILL)

        assert in_fork(dies) is None
        log = QueryLog(path)
        assert log.open_request("a", 3, limit=1) == (1, None)
        assert log.close_request("a", 0.5) == 0.5

    def test_an_answer_never_changes(self, tmp_path: Path) -> None:
        log = QueryLog(tmp_path / "log.sqlite")
        log.open_request("a", 3, limit=None)
        assert log.close_request("a", 0.5) == 0.5
        assert log.close_request("a", 0.75) == 0.5

    def test_threads_that_ask_the_same_at_once(self, tmp_path: Path) -> None:
        """One answer, one charge and one measurement for each id, and the limit holds."""
        measured: list[int] = []
        with PrivacyLedger(tmp_path / "a.ledger", PLENTY) as ledger:
            answers = PrivateAnswers(epsilon=0.01, bounds=(0.0, 1.0), ledger=ledger)
            curator = make_curator(
                lambda index: measured.append(index) or 0.5,
                answers=answers,
                log=tmp_path / "log.sqlite",
                max_queries=5,
            )

            def asks(_: int) -> list[float]:
                with pytest.raises(QueryLimitReached):
                    for index in range(6):
                        curator.query(index, request_id=f"row {index}")
                return [curator.query(index, request_id=f"row {index}") for index in range(5)]

            with ThreadPoolExecutor(4) as pool:
                found = list(pool.map(asks, range(4)))
            assert len(set(map(tuple, found))) == 1
            assert sorted(measured) == list(range(5))
            assert len(ledger.entries()) == 5

    @pytest.mark.parametrize("name", [":memory:", "log.sqlite"])
    def test_a_forked_child_is_refused(self, tmp_path: Path, name: str) -> None:
        log = QueryLog(name if name == ":memory:" else tmp_path / name)
        child = os.fork()
        if child == 0:
            try:
                log.open_request("a", 3, limit=None)
            except PrivacyError:
                os._exit(7)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        assert len(log) == 0

    def test_a_forked_child_is_refused_amid_a_measurement(self, tmp_path: Path) -> None:
        begun, enough = threading.Event(), threading.Event()

        def hangs(index: int) -> float:
            begun.set()
            enough.wait(20)
            return 0.5

        curator = make_curator(hangs, log=tmp_path / "log.sqlite")
        with ThreadPoolExecutor(1) as pool:
            asked = pool.submit(curator.query, 3, request_id="a")
            assert begun.wait(20)

            def asks() -> float:
                signal.alarm(20)  # or it would wait for ever
                return curator.query(3, request_id="a")

            refused = in_fork(asks)
            enough.set()
            assert asked.result(timeout=20) == 0.5
        assert isinstance(refused, PrivacyError)

    @pytest.mark.parametrize("at", [1, 2])
    def test_ctrl_c_behind_a_commit(
        self, at: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        curator, disk = make_curator(log=tmp_path / "log.sqlite"), Disk(monkeypatch)
        disk.at, disk.action = at, disk.interrupt
        with pytest.raises(KeyboardInterrupt):
            curator.query(3, request_id="a")
        disk.at = None
        assert curator.query(3, request_id="a") == measure(3)
        curator.close()
        again = make_curator(log=tmp_path / "log.sqlite")
        assert again.query(3, request_id="a") == measure(3)
        assert again.num_queries == 1

    def test_another_file_is_no_log(self, tmp_path: Path) -> None:
        path = tmp_path / "log.sqlite"
        path.write_bytes(b"no database at all, but long enough to be read as one" * 40)
        with pytest.raises(PrivacyError, match="damaged"):
            QueryLog(path)


@pytest.mark.parametrize(
    "alteration",
    [
        "UPDATE question SET content = NULL WHERE number = 2",
        "UPDATE question SET content = x'' WHERE number = 2",
        "UPDATE question SET content = 'no bytes' WHERE number = 2",
        "UPDATE question SET content = (SELECT content FROM question WHERE number = 1) "
        "WHERE number = 2",
        "UPDATE question SET request = 'd' WHERE number = 2",
        "UPDATE question SET number = 0 WHERE number = 3",
        "UPDATE question SET number = 4 WHERE number = 3",
        "DELETE FROM question WHERE number = 2",
        *(
            f"UPDATE question SET content = swapped(content, '{old}', '{new}')"
            for old, new in (
                ("0x1.0000000000000p-1", "0x1.0000000000000p-2"),  # an answer
                ('"3"', '"5"'),  # a number or an index
                ("null", "nu11"),  # no answer
            )
        ),
    ],
)
def test_an_altered_question_is_refused(tmp_path: Path, alteration: str) -> None:
    """SQLite finds nothing wrong with any of them; without the checksum, rows are asked anew."""
    path = tmp_path / "log.sqlite"
    log = QueryLog(path)
    for request in "abc":
        log.open_request(request, 3, limit=None)
        log.close_request(request, 0.5)
    log.open_request("under way", 3, limit=None)
    log.close()
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(
            "PRAGMA writable_schema = ON; "
            "UPDATE sqlite_master SET sql = replace(sql, 'content BLOB NOT NULL', 'content BLOB');"
        )
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.create_function(
            "swapped", 3, lambda content, old, new: content.replace(old.encode(), new.encode())
        )
        if "number = 4" in alteration:
            connection.execute("DELETE FROM question WHERE number = 4")
        assert connection.execute(alteration).rowcount
    with pytest.raises(PrivacyError, match=r"is damaged \(question \d"):
        QueryLog(path)


def test_refusals_record_nothing(tmp_path: Path) -> None:
    log = QueryLog(tmp_path / "log.sqlite")
    log.open_request("a", 3, limit=1)
    with pytest.raises(QueryLimitReached):
        log.open_request("b", 4, limit=1)
    with pytest.raises(RequestConflict):
        log.open_request("a", 4, limit=1)
    assert [entry.request for entry in log.entries()] == ["a"]
    log.close()


@pytest.mark.parametrize("count", [1500, pytest.param(60_000, marks=pytest.mark.slow)])
def test_memory_does_not_grow_with_the_answers(count: int) -> None:
    """Answered, repeated and refused questions leave nothing behind in memory."""
    with memory_folder() as folder:
        curator = make_curator(log=folder / "log.sqlite", max_queries=count + 200)

        def ask(numbers: range) -> None:
            for number in numbers:
                first = curator.query(number % 30, request_id=f"question {number}")
                assert curator.query(number % 30, request_id=f"question {number}") == first
                with pytest.raises(RequestConflict):
                    curator.query((number + 1) % 30, request_id=f"question {number}")

        def least(numbers: range) -> int:
            """Dead cursors are forgotten two hundred at a time, which makes a sawtooth."""
            gc.collect()
            traced = []
            for number in numbers:
                ask(range(number, number + 1))
                gc.collect(1)
                traced.append(tracemalloc.get_traced_memory()[0])
            return min(traced)

        tracemalloc.start()
        ask(range(150))
        before = least(range(150, 200))
        ask(range(200, count + 150))
        grown = least(range(count + 150, count + 200)) - before
        tracemalloc.stop()
        assert curator.num_queries == count + 200
        # In dictionaries, a question and its answer took some 500 bytes.
        assert grown < 20_000 + 2 * count, f"{grown} bytes after {count} questions"


def test_settings_are_settled_once(tmp_path: Path) -> None:
    log = QueryLog(tmp_path / "log.sqlite")
    # A release that no budget bears settles nothing.
    exhausted = BudgetExhausted("too dear", requested=(9.0, 0.0), remaining=(1.0, 0.0))
    with pytest.raises(BudgetExhausted), log.settled({"epsilon": 9.0}):
        raise exhausted
    for _ in range(2):
        with log.settled({"epsilon": 1.0}):
            pass
    log.close()
    again = QueryLog(tmp_path / "log.sqlite")
    with (
        pytest.raises(PrivacyError, match=r"`epsilon` was 1.0 and is 2.0"),
        again.settled({"epsilon": 2.0}),
    ):
        raise AssertionError
    again.close()
