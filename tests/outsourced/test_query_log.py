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


class TestSharing:
    """Several handles and processes on one file: each question is measured and answered once."""

    def test_a_second_handle_waits_for_the_first_ones_answer(self, tmp_path: Path) -> None:
        path = tmp_path / "log.sqlite"
        log = QueryLog(path)
        os.symlink(path, tmp_path / "other_name")
        other = QueryLog(tmp_path / "other_name")
        assert log.open_request("a", 3, limit=None) == (1, None)
        with ThreadPoolExecutor(1) as pool:
            asked = pool.submit(other.open_request, "a", 3, limit=None)
            with pytest.raises(TimeoutError):
                asked.result(timeout=0.2)
            log.close_request("a", 0.25)
            assert asked.result(timeout=5) == (1, 0.25)
        assert other.open_request("b", 3, limit=None) == (2, None)
        assert len(log) == 2
        with pytest.raises(RequestConflict):
            log.open_request("b", 4, limit=None)
        with pytest.raises(QueryLimitReached):
            log.open_request("c", 4, limit=2)

    def test_what_one_leaves_another_measures(self, tmp_path: Path) -> None:
        log, other = QueryLog(tmp_path / "log.sqlite"), QueryLog(tmp_path / "log.sqlite")
        log.open_request("a", 3, limit=None)
        log.leave_request("a")
        assert other.open_request("a", 3, limit=None) == (1, None)
        other.close()  # amid the measurement
        assert log.open_request("a", 3, limit=None) == (1, None)
        assert log.close_request("a", 0.5) == 0.5

    def test_an_answer_never_changes(self, tmp_path: Path) -> None:
        log = QueryLog(tmp_path / "log.sqlite")
        log.open_request("a", 3, limit=None)
        other = QueryLog(tmp_path / "log.sqlite")
        other._works["a"] = (0, "as if it had taken over by mistake")
        assert other.close_request("a", 0.5) == 0.5
        assert log.close_request("a", 0.75) == 0.5

    def test_a_killed_process_leaves_its_question_to_others(self, tmp_path: Path) -> None:
        path = tmp_path / "log.sqlite"

        def dies() -> None:
            QueryLog(path).open_request("a", 3, limit=None)
            os.kill(os.getpid(), signal.SIGKILL)

        assert in_fork(dies) is None
        log = QueryLog(path)
        assert log.open_request("a", 3, limit=1) == (1, None)
        log.close_request("a", 0.5)

    def test_processes_that_ask_the_same_at_once(self, tmp_path: Path) -> None:
        """One answer and one charge for each id, one measurement too, and the limit holds."""
        ledger, measured = tmp_path / "a.ledger", tmp_path / "measured"
        PrivacyLedger(ledger, PLENTY).close()
        measured.touch()

        def asks() -> list[float]:
            def measured_once(index: int) -> float:
                with measured.open("a") as file:
                    file.write(f"{index}\n")
                return 0.5

            with PrivacyLedger(ledger) as paid:
                answers = PrivateAnswers(epsilon=0.01, bounds=(0.0, 1.0), ledger=paid)
                house = make_curator(
                    measured_once, answers=answers, log=tmp_path / "log.sqlite", max_queries=5
                )
                with pytest.raises(QueryLimitReached):
                    for index in range(6):
                        house.query(index, request_id=f"row {index}")
                return [house.query(index, request_id=f"row {index}") for index in range(5)]

        with ThreadPoolExecutor(4) as pool:  # each forks
            found = list(pool.map(lambda _: in_fork(asks), range(4)))
        assert all(isinstance(answers, list) for answers in found), found
        assert len(set(map(tuple, found))) == 1
        assert sorted(map(int, measured.read_text().split())) == list(range(5))
        with PrivacyLedger(ledger) as paid:
            assert len(paid.entries()) == 5

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

        house = make_curator(hangs, log=tmp_path / "log.sqlite")
        with ThreadPoolExecutor(1) as pool:
            asked = pool.submit(house.query, 3, request_id="a")
            assert begun.wait(20)

            def asks() -> float:
                signal.alarm(20)  # or it would wait for ever
                return house.query(3, request_id="a")

            refused = in_fork(asks)
            enough.set()
            assert asked.result(timeout=20) == 0.5
        assert isinstance(refused, PrivacyError)

    @pytest.mark.parametrize("at", [1, 2])
    def test_ctrl_c_behind_a_commit(
        self, at: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        house, disk = make_curator(log=tmp_path / "log.sqlite"), Disk(monkeypatch)
        disk.at, disk.action = at, disk.interrupt
        with pytest.raises(KeyboardInterrupt):
            house.query(3, request_id="a")
        disk.at = None
        other, found = make_curator(log=tmp_path / "log.sqlite"), []
        for asked in (other, house):
            thread = threading.Thread(
                target=lambda asked=asked: found.append(asked.query(3, request_id="a")), daemon=True
            )
            thread.start()
            thread.join(20)
        assert found == [measure(3), measure(3)]
        assert house.num_queries == 1

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
                ("null", "nu11"),  # no owner
                ("token", "taken"),  # an owner
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
        house = make_curator(log=folder / "log.sqlite", max_queries=count + 200)

        def ask(numbers: range) -> None:
            for number in numbers:
                first = house.query(number % 30, request_id=f"question {number}")
                assert house.query(number % 30, request_id=f"question {number}") == first
                with pytest.raises(RequestConflict):
                    house.query((number + 1) % 30, request_id=f"question {number}")

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
        assert house.num_queries == count + 200
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
