"""The count of questions survives any restart."""

from __future__ import annotations

from pathlib import Path

import pytest

from botorch_dp.outsourced.query_log import QueryLimitReached, QueryLog, RequestConflict


def test_a_question_is_on_disk_before_its_answer(tmp_path: Path) -> None:
    path = tmp_path / "log.sqlite"
    assert QueryLog(path).open_request("a", 3, limit=None) is None
    again = QueryLog(path)
    assert len(again) == 1
    assert not again.entries()[0].answered
    # Unanswered: it may be measured again, without counting again.
    assert again.open_request("a", 3, limit=1) is None
    again.close_request("a", 0.5)
    assert QueryLog(path).open_request("a", 3, limit=1) == 0.5
    assert len(QueryLog(path)) == 1


def test_refusals_record_nothing(tmp_path: Path) -> None:
    log = QueryLog(tmp_path / "log.sqlite")
    log.open_request("a", 3, limit=1)
    with pytest.raises(QueryLimitReached):
        log.open_request("b", 4, limit=1)
    with pytest.raises(RequestConflict):
        log.open_request("a", 4, limit=1)
    assert [entry.request for entry in log.entries()] == ["a"]
    log.close()
