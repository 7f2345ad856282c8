"""What the file of a study must do: trials come back as they were, or the file is refused."""

from __future__ import annotations

import math
import random
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from botorch_dp.pareto import StudyError
from botorch_dp.pareto.problem import Measurement, Trial
from botorch_dp.pareto.storage import StudyFile
from tests.one_draw import in_fork

SPACE = {"a": {"kind": "Real", "low": 0.0, "high": 2.0}}
DESCRIPTION: dict[str, Any] = {"space": SPACE, "replicates": 2}

#: Trials of every kind, in words that no other value could stand for.
POINT = Measurement(0.25, (2**0.5,), 0.1 + 0.2)
TRIALS = [
    Trial(0, {"rate": 0.1 + 0.2, "epochs": 3, "kind": "a"}, (2**31 - 1, 8), 1 / 3),
    Trial(1, {}, (7,), math.nan, state="failed", failure="InvalidEpsilonError: -1"),
    Trial(2, {"a": None}, (7, 8), 1.0, measurements=(None, Measurement(1 / 3, (2**0.5,), 1.5))),
    Trial(3, {}, (7,), 1.0, state="complete", measurements=(POINT,), fresh={4: POINT}),
    Trial(4, {}, (7, 8), 1.0).measured({1: POINT}),
    Trial(5, {}, (7,), 1.0).failed(OSError("record 17"), trainings=2**40),
    Trial(6, {}, (7,), 1.0, state="complete", measurements=(Measurement(0.5),)),
]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "study.sqlite"


def opened(
    path: Path | None, description: dict[str, Any] | None = DESCRIPTION, **options: Any
) -> StudyFile:
    return StudyFile(path, description=description, **options)


@pytest.fixture(params=["file", "memory"])
def study(request: pytest.FixtureRequest, path: Path) -> Iterator[StudyFile]:
    with closing(opened(path if request.param == "file" else None, seed=5)) as opened_study:
        yield opened_study


@pytest.fixture
def whole(path: Path) -> Path:
    """A file with trials of every kind."""
    with closing(opened(path, seed=5)) as study:
        for trial in TRIALS:
            study.add(trial)
    return path


def test_trials_come_back_to_the_last_bit(whole: Path) -> None:
    for description in (DESCRIPTION, None):
        with closing(opened(whole, description)) as again:
            assert again.trials == TRIALS and again.seed == 5
            assert repr(again.trials) == repr(TRIALS)
            assert [m.seconds for m in again[2].finished] == [1.5]


class TestChanges:
    def test_are_seen_at_once(self, study: StudyFile) -> None:
        study.add(TRIALS[0])
        assert len(study) == 1 and study.count("pending") == 1
        changed = study.change(0, lambda trial: trial.failed(OSError(), trainings=1))
        assert study.trials == [changed] and study.count("failed") == 1
        with pytest.raises(ValueError, match="`trial` 3 is unknown; the study has 1 trials"):
            study.change(3, lambda trial: trial)

    def test_are_kept_whole_or_not_at_all(self, study: StudyFile) -> None:
        study.add(TRIALS[0])
        with pytest.raises(TypeError):
            study.change(0, lambda trial: replace(trial, config={"a": object()}))
        with pytest.raises(TypeError):
            study.add(Trial(1, {"a": object()}, (1,), 1.0))
        assert study.trials == [TRIALS[0]]
        assert study.add(replace(TRIALS[0], number=1)).number == 1

    def test_of_a_closed_study_are_refused_and_it_stays_readable(self, study: StudyFile) -> None:
        study.add(TRIALS[0])
        study.close()
        assert study.trials == [TRIALS[0]]
        with pytest.raises(StudyError, match="closed"):
            study.change(0, lambda trial: trial)


class TestOneProcessAtATime:
    def test_a_second_one_is_refused_and_may_read(self, path: Path) -> None:
        with closing(opened(path)) as study:
            for refused in (lambda: opened(path), lambda: in_fork(lambda: opened(path))):
                answer: Any = None
                try:
                    answer = refused()
                except StudyError as error:
                    answer = error
                assert "is in use" in str(answer)
            study.add(TRIALS[0])
            before = path.read_bytes()
            with closing(opened(path, None)) as reading:
                assert reading.trials == [TRIALS[0]] and reading.description == DESCRIPTION
            assert path.read_bytes() == before
        opened(path).close()


class TestContinued:
    def test_with_its_seed(self, path: Path) -> None:
        with closing(opened(path)) as first:
            assert 0 <= first.seed < 2**32
        with closing(opened(path)) as second:
            assert second.seed == first.seed
        assert opened(None).seed != first.seed

    @pytest.mark.parametrize(
        ("description", "options", "message"),
        [
            (DESCRIPTION | {"replicates": 3}, {}, "`replicates` was 2 and is 3"),
            ({"space": SPACE}, {}, "`replicates` is missing"),
            (DESCRIPTION | {"more": 1}, {}, "`more` is new"),
            ({"replicates": 2, "space": SPACE}, {}, None),
            (DESCRIPTION, {"seed": 6}, "seed 5, got seed=6"),
        ],
    )
    def test_another_problem_or_seed_is_refused(
        self, path: Path, description: Any, options: Any, message: str | None
    ) -> None:
        opened(path, seed=5).close()
        with pytest.raises(StudyError, match=message):
            opened(path, description, **options).close()
        opened(path, seed=5).close()


class TestDamaged:
    """What was altered in the file is refused, whatever it is."""

    @pytest.mark.parametrize(
        "change",
        [
            "UPDATE trial SET record = replace(record, '0.25', '0.26') WHERE number = 4",
            "UPDATE trial SET record = (SELECT record FROM trial WHERE number = 6) "
            "WHERE number = 5",
            "DELETE FROM trial WHERE number = 6",
            "INSERT INTO trial SELECT 7, record, stored_at, digest FROM trial WHERE number = 6",
            "UPDATE study SET seed = '1'",
            "UPDATE study SET description = replace(description, '2.0', '3.0')",
            "UPDATE study SET trials = 6",
            "DELETE FROM study",
        ],
    )
    def test_altered(self, whole: Path, change: str) -> None:
        with sqlite3.connect(whole) as connection:
            assert connection.execute(change).rowcount > 0
        for description in (DESCRIPTION, None):
            with pytest.raises(StudyError, match="is damaged"):
                opened(whole, description)

    def test_flipped_bytes_are_refused_or_change_nothing(self, whole: Path, tmp_path: Path) -> None:
        content, generator, refused = whole.read_bytes(), random.Random(0), 0
        for number in range(80):
            flipped = bytearray(content)
            start = generator.randrange(len(content))
            for place in range(start, min(start + generator.choice([1, 1, 8]), len(content))):
                flipped[place] = generator.randrange(256)
            damaged = tmp_path / f"{number}.sqlite"
            damaged.write_bytes(flipped)
            try:
                with closing(opened(damaged)) as study:
                    assert study.trials == TRIALS
            except StudyError:
                refused += 1
        assert refused > 10
