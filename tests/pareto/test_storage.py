"""What a study's storage must do, wherever it is: in a file, in memory, in a database."""

from __future__ import annotations

import multiprocessing
import sqlite3
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

from botorch_dp.pareto import StudyError
from botorch_dp.pareto.problem import CurvePlan, Measurement
from botorch_dp.pareto.storage import STUDY, NumberTakenError, StudyStorage
from tests.postgres import wait_until

#: A forked child need not import torch again.
FORK = multiprocessing.get_context("fork")

SPACE = {"a": {"kind": "Real", "low": 0.0, "high": 2.0}}
DESCRIPTION: dict[str, Any] = {"space": SPACE, "replicates": 2}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "study.sqlite"


#: Where a study is.
Place = Path | str


@pytest.fixture(params=["file", "server"])
def place(request: pytest.FixtureRequest) -> Place:
    """One conformance suite for all that outlives a process."""
    if request.param == "file":
        return request.getfixturevalue("path")
    return request.getfixturevalue("new_study")()


def opened(
    path: Place | None, description: dict[str, Any] = DESCRIPTION, **options: Any
) -> StudyStorage:
    return StudyStorage(path, description=description, **options)


@pytest.fixture(params=["file", "memory", "server"])
def storage(request: pytest.FixtureRequest, path: Path) -> Iterator[StudyStorage]:
    """One conformance suite for all kinds."""
    places: dict[str, Callable[[], Place | None]] = {
        "file": lambda: path,
        "memory": lambda: None,
        "server": lambda: request.getfixturevalue("new_study")(),
    }
    with closing(opened(places[request.param](), seed=5)) as storage:
        yield storage


class TestContents:
    def test_trials_come_back_as_they_were(self, storage: StudyStorage) -> None:
        config = {"rate": 0.1 + 0.2, "epochs": 3}
        storage.add_trial(0, config, (7, 8), 1 / 3)
        (trial,) = storage.trials()
        assert trial.config == config and isinstance(trial.config["epochs"], int)
        assert trial.epsilon == 1 / 3 and trial.seeds == (7, 8)
        assert trial.state == "pending" and trial.missing == (0, 1)

    def test_measurements_and_state(self, storage: StudyStorage) -> None:
        storage.add_trial(0, {}, (7, 8), 1.0)
        storage.add_measurements(0, {1: Measurement(0.25, (3.0,), 1.5)})
        assert storage.trials()[0].missing == (0,)
        storage.add_measurements(0, {0: Measurement(0.5, (2.0,), 1.0)})
        (trial,) = storage.trials()
        assert trial.state == "complete"
        assert trial.measurements == (Measurement(0.5, (2.0,), 1.0), Measurement(0.25, (3.0,), 1.5))

    def test_failures(self, storage: StudyStorage) -> None:
        storage.add_trial(0, {}, (7,), 1.0)
        storage.add_failure(0, "OSError", trainings=1)
        storage.add_failure(0, "BrokenProcessPool", trainings=2, blamed=False)
        (trial,) = storage.trials()
        assert trial.failures == ("OSError",) and trial.suspect
        assert trial.failed_trainings == 3 and trial.state == "pending"
        storage.add_failure(0, "OSError", trainings=1, is_last=True)
        assert storage.trials()[0].state == "failed"

    def test_failed_from_the_start(self, storage: StudyStorage) -> None:
        storage.add_trial(0, {}, (7,), float("nan"), error_type="InvalidEpsilonError")
        (trial,) = storage.trials()
        assert trial.state == "failed" and trial.failures == ("InvalidEpsilonError",)
        assert trial.epsilon != trial.epsilon and trial.num_trainings == 0

    def test_fresh_measurements_are_kept_apart(self, storage: StudyStorage) -> None:
        storage.add_trial(0, {}, (7, 8), 1.0)
        assert storage.next_replicate(0) == 0
        storage.add_measurements(0, {0: Measurement(0.5), 1: Measurement(0.5)})
        assert storage.next_replicate(0) == 2
        storage.add_measurements(0, {4: Measurement(0.75)})
        assert storage.trials()[0].fresh[0].utility == 0.75
        assert storage.trials()[0].utilities == (0.5, 0.5)
        assert storage.next_replicate(0) == 5

    def test_a_write_happens_whole_or_not_at_all(self, storage: StudyStorage) -> None:
        storage.add_trial(0, {}, (7, 8), 1.0)
        storage.add_measurements(0, {0: Measurement(0.5)})
        with pytest.raises(StudyError):
            storage.add_measurements(0, {1: Measurement(0.5), 2: Measurement(1.5)})
        assert storage.trials()[0].missing == (1,)
        assert storage.trials()[0].state == "pending"
        assert storage.next_replicate(0) == 1

    def test_what_was_measured_first_stays(self, storage: StudyStorage) -> None:
        storage.add_trial(0, {}, (7, 8), 1.0)
        storage.add_measurements(0, {0: Measurement(0.5)})
        storage.add_measurements(0, {0: Measurement(0.75), 1: Measurement(0.25)})
        assert storage.trials()[0].utilities == (0.5, 0.25)
        storage.add_failure(0, "OSError", trainings=1, is_last=True)
        assert storage.trials()[0].state == "complete", "it failed after it was complete"

    def test_points_of_curves(self, storage: StudyStorage) -> None:
        plan = CurvePlan((2, 4), (0.5, 1.0), (0.0, 0.0))
        storage.add_trial(0, {}, (7,), 1.0, plan=plan)
        assert storage.next_attempt(0, [0]) == 0
        storage.add_points(0, 2, {0: Measurement(0.25, (), 0.5)})
        storage.add_points(0, 2, {0: Measurement(0.75)}, attempt=1)
        assert storage.trials()[0].begun == {0: {2: Measurement(0.25, (), 0.5)}}
        assert storage.next_attempt(0, [0]) == 1
        storage.add_points(0, 4, {0: Measurement(0.5, (), 0.5)}, attempt=1, is_last=True)
        (trial,) = storage.trials()
        assert trial.state == "complete" and trial.plan == plan
        assert [at for at, _ in trial.finished[0].curve] == [2, 4]

    def test_numbers_come_back_to_the_last_bit(self, storage: StudyStorage) -> None:
        storage.add_trial(0, {}, (2**31 - 1,), 0.1 + 0.2)
        storage.add_measurements(0, {0: Measurement(1 / 3, (2**0.5,))})
        storage.add_failure(0, "OSError", trainings=2**40, blamed=False)
        (trial,) = storage.trials()
        assert trial.epsilon == 0.1 + 0.2 and trial.failed_trainings == 2**40
        # Seconds that nobody measured are the one NaN that is equal to itself.
        assert trial.measurements == (Measurement(1 / 3, (2**0.5,)),)

    def test_counts_and_pending_trials_follow(self, storage: StudyStorage) -> None:
        for number in range(3):
            storage.add_trial(number, {}, (7,), 1.0)
        assert len(storage) == 3 and storage.pending() == [0, 1, 2]
        storage.add_measurements(1, {0: Measurement(0.5)})
        storage.add_failure(2, "OSError", trainings=1, is_last=True)
        assert storage.pending() == [0]
        counts = [storage.count(state) for state in ("pending", "complete", "failed")]
        assert counts == [1, 1, 1]

    @pytest.mark.parametrize("utility", [-0.1, 1.1, float("nan")])
    def test_the_file_itself_refuses_nonsense(self, storage: StudyStorage, utility: float) -> None:
        storage.add_trial(0, {}, (7,), 1.0)
        with pytest.raises(StudyError):
            storage.add_measurements(0, {0: Measurement(utility)})


def test_closed() -> None:
    storage = opened(":memory:")  # type: ignore[arg-type]
    storage.add_trial(0, {}, (7,), 1.0)
    storage.close()
    assert len(storage.trials()) == 1, "what is known stays readable"
    with pytest.raises(StudyError, match="closed"):
        storage.add_trial(1, {}, (7,), 1.0)


class TestPlace:
    """What outlives the process that made it."""

    def test_continues(self, place: Place) -> None:
        first = opened(place, seed=5)
        first.add_trial(0, {"a": 1}, (7,), 1.0)
        first.close()
        second = opened(place)
        assert second.seed == 5 and len(second.trials()) == 1

    def test_random_seed_is_remembered(self, place: Place) -> None:
        first = opened(place)
        first.close()
        assert opened(place).seed == first.seed
        assert opened(None).seed != first.seed

    def test_two_of_one_process_share_it(self, place: Place) -> None:
        first, second = opened(place), opened(place)
        first.add_trial(0, {"a": 1.0}, (1,), 1.0, claimed=True)
        second.refresh()
        assert second.trials() == first.trials() and len(second) == 1
        assert first.claim(0) and not second.claim(0)
        first.close()
        assert second.claim(0)
        second.close()

    def test_a_copy_is_read_while_somebody_writes(self, place: Place) -> None:
        with closing(opened(place)) as writing, writing._state.transaction():
            with closing(StudyStorage(place, description=None)) as reading:
                assert reading.trials() == [] and reading.description == DESCRIPTION
            writing.add_trial(0, {}, (7,), 1.0)
        with closing(StudyStorage(place, description=None)) as reading:
            assert len(reading.trials()) == 1

    def test_nothing_to_read(self, place: Place) -> None:
        with pytest.raises(StudyError, match="There is no study"):
            StudyStorage(place, description=None)

    @pytest.mark.parametrize(
        ("change", "how"),
        [
            ("UPDATE measurement SET utility = 0.75", "trial 0 was altered"),
            ("UPDATE study SET seed = '6'", "of the study was altered"),
            ("DELETE FROM trial WHERE number = 1", "trials are missing"),
        ],
    )
    def test_what_was_altered_is_noticed(self, place: Place, change: str, how: str) -> None:
        with closing(opened(place)) as storage:
            storage.add_trial(0, {"a": 1.0}, (7, 8), 1.0)
            storage.add_measurements(0, {0: Measurement(0.5)})
            storage.add_trial(1, {"a": 1.0}, (7, 8), 1.0)
            with storage._state.transaction():
                storage._state.execute(change)
        with pytest.raises(StudyError, match=f"damaged.*{how}"):
            opened(place)

    def test_an_older_state_was_put_back(self, place: Place) -> None:
        with closing(opened(place)) as first, closing(opened(place)) as second:
            first.add_trial(0, {"a": 1.0}, (7,), 1.0)
            second.refresh()
            with first._state.transaction() as connection:
                connection.execute("DELETE FROM trial")
            with pytest.raises(StudyError, match="older state"):
                second.refresh()

    def test_a_newer_schema(self, place: Place) -> None:
        with closing(opened(place)) as storage, storage._state.transaction() as connection:
            storage._state._set_version(connection, len(STUDY.migrations) + 1)
        with pytest.raises(StudyError, match="newer version"):
            opened(place)

    def test_another_kind(self, place: Place) -> None:
        with closing(opened(place)) as storage:
            if isinstance(place, Path):
                storage._state.execute("PRAGMA application_id = 7")
            else:
                storage._state.execute("UPDATE format SET application = 7")
        with pytest.raises(StudyError, match="no study"):
            opened(place)

    def test_two_that_begin_at_once(self, place: Place) -> None:
        gate = FORK.Barrier(4)

        def begin() -> None:
            gate.wait(30)
            with closing(opened(place)) as storage:
                with suppress(NumberTakenError):
                    storage.add_trial(0, {"a": 1.0}, (1,), 1.0)
                storage.refresh()
                assert len(storage) == 1

        others = [FORK.Process(target=begin) for _ in range(4)]
        for other in others:
            other.start()
        for other in others:
            other.join(60)
            assert other.exitcode == 0

    def test_claimed_by_another_process_until_it_is_killed(self, place: Place) -> None:
        is_open = FORK.Event()

        def hold() -> None:
            storage = opened(place)
            storage.add_trial(0, {"a": 1.0}, (1,), 1.0, claimed=True)
            is_open.set()
            time.sleep(60)
            storage.close()

        other = FORK.Process(target=hold)
        other.start()
        try:
            assert is_open.wait(30)
            with closing(opened(place)) as storage:
                assert not storage.claim(0) and storage.others_at_work()
        finally:
            other.kill()
            other.join()
        with closing(opened(place)) as storage:
            # A server needs a moment to notice.
            wait_until(lambda: not storage.others_at_work())
            assert storage.claim(0)

    def test_other_description_says_what_differs(self, place: Place) -> None:
        opened(place).close()
        other = {"space": {"a": DESCRIPTION["space"]["a"] | {"low": 1.0}}, "replicates": 2}
        with pytest.raises(StudyError, match=r"`space.a.low` was 0.0 and is 1.0"):
            opened(place, other)
        with pytest.raises(StudyError, match="`replicates` is missing"):
            opened(place, {"space": DESCRIPTION["space"]})
        opened(place).close()

    def test_a_wider_space_is_the_new_one(self, place: Place) -> None:
        wider = {"space": {"a": SPACE["a"] | {"low": -1.0}}, "replicates": 2}
        opened(place).close()
        opened(place, wider).close()
        with pytest.raises(StudyError, match="no longer spans"):
            opened(place)
        with pytest.raises(StudyError, match="`replicates` was 2 and is 3"):
            opened(place, wider | {"replicates": 3})

    def test_another_order_differs_too(self, place: Place) -> None:
        opened(place, {"space": {"a": SPACE["a"], "b": SPACE["a"]}}).close()
        with pytest.raises(StudyError, match="`space` has another order"):
            opened(place, {"space": {"b": SPACE["a"], "a": SPACE["a"]}})

    def test_other_seed(self, place: Place) -> None:
        opened(place, seed=5).close()
        with pytest.raises(StudyError, match="seed 5, got seed=6"):
            opened(place, seed=6)


class TestFile:
    def test_private_and_says_so(self, path: Path) -> None:
        opened(path).close()
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        with sqlite3.connect(path) as connection:
            (notice,) = connection.execute("SELECT notice FROM study").fetchone()
        assert "sensitive records, without noise" in notice

    def test_journal_is_private_too(self, path: Path) -> None:
        storage = opened(path)
        with storage._changing(0):
            storage._state.execute("CREATE TABLE scratch (x)")
            modes = {stat.S_IMODE(p.stat().st_mode) for p in path.parent.iterdir()}
            assert len(list(path.parent.iterdir())) == 2, "no journal to look at"
        assert modes == {0o600}

    def test_a_lax_mode_is_tightened(self, path: Path) -> None:
        opened(path).close()
        path.chmod(0o644)
        opened(path).close()
        assert stat.S_IMODE(path.stat().st_mode) == 0o600

    def test_not_a_database(self, path: Path) -> None:
        path.write_text("precious text, long enough for a header" * 10)
        path.chmod(0o644)
        with pytest.raises(StudyError, match="damaged"):
            opened(path)
        assert path.read_text().startswith("precious")
        assert stat.S_IMODE(path.stat().st_mode) == 0o644

    def test_another_programs_database(self, path: Path) -> None:
        with sqlite3.connect(path) as connection:
            connection.execute("CREATE TABLE theirs (x)")
        with pytest.raises(StudyError, match="but no study"):
            opened(path)
        with sqlite3.connect(path) as connection:
            names = connection.execute("SELECT name FROM sqlite_master").fetchall()
        assert names == [("theirs",)]

    def test_a_file_appears_when_it_is_whole(self, path: Path) -> None:
        opened(path).close()
        with sqlite3.connect(path) as connection:
            assert connection.execute("PRAGMA application_id").fetchone() == (STUDY.application_id,)
        path.write_bytes(b"")
        with pytest.raises(StudyError, match="it is empty"):
            opened(path)

    def test_missing_folder(self, tmp_path: Path) -> None:
        with pytest.raises(StudyError, match="does not exist"):
            opened(tmp_path / "nowhere" / "study.sqlite")

    def test_asset_of_the_first_schema_opens(self, tmp_path: Path) -> None:
        """A file written by the first release must stay readable."""
        asset = Path(__file__).parent / "assets" / "study_v1.sql"
        path = tmp_path / "old.sqlite"
        with sqlite3.connect(path) as connection:
            connection.executescript(asset.read_text())
        storage = opened(path, {"space": {"a": {"low": 0.0}}, "replicates": 2})
        first, second = storage.trials()
        assert storage.seed == 5
        assert first.state == "complete" and first.utilities == (0.5, 0.25)
        assert second.state == "pending" and second.failures == ("OSError",)


def test_two_studies_at_once(tmp_path: Path) -> None:
    one, two = opened(tmp_path / "one.sqlite"), opened(tmp_path / "two.sqlite")
    one.add_trial(0, {"a": 1}, (7,), 1.0)
    two.add_trial(0, {"a": 2}, (7,), 1.0)
    assert one.trials()[0].config == {"a": 1} and two.trials()[0].config == {"a": 2}
    one.close()
    two.close()
    assert {p.name for p in tmp_path.iterdir()} == {"one.sqlite", "two.sqlite"}
