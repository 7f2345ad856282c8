"""The count of questions survives any restart."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

from botorch_dp.errors import BudgetExhausted, PrivacyError
from botorch_dp.outsourced.query_log import QueryLimitReached, QueryLog, RequestConflict


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
    def test_a_second_handle_is_refused_until_the_first_lets_go(self, tmp_path: Path) -> None:
        path = tmp_path / "log.sqlite"
        log = QueryLog(path)
        os.symlink(path, tmp_path / "other_name")
        for name in (path, tmp_path / "other_name"):
            with pytest.raises(PrivacyError, match="in use"):
                QueryLog(name)
        log.open_request("a", 3, limit=None)
        with pytest.raises(PrivacyError, match="in use"):
            QueryLog(path)
        log.close()
        QueryLog(path).close()

    def test_a_second_process_is_refused(self, tmp_path: Path) -> None:
        path = tmp_path / "log.sqlite"
        log = QueryLog(path)
        program = f"from botorch_dp.outsourced.query_log import QueryLog; QueryLog({str(path)!r})"
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
        assert "in use" in done.stderr
        log.close()

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

    def test_another_file_is_no_log(self, tmp_path: Path) -> None:
        path = tmp_path / "log.sqlite"
        path.write_bytes(b"no database at all, but long enough to be read as one" * 40)
        with pytest.raises(PrivacyError, match="damaged"):
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
