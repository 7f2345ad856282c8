"""A study in a PostgreSQL database: what is lost, refused, or taken up when machines fail."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

from botorch_dp.pareto import DPareto, StudyError, postgres
from botorch_dp.pareto.problem import Measurement
from botorch_dp.pareto.storage import StudyStorage
from botorch_dp.privacy import PrivacyBudget, PrivacyError, PrivacyLedger
from tests.pareto import test_paying, toy
from tests.postgres import LOCKED, PASSWORD, PostgresServer, server, wait_until

FORK = multiprocessing.get_context("fork")
DESCRIPTION: dict[str, Any] = {"replicates": 1}
TRIAL = ({"a": 1.0}, (7,), 1.0)


@pytest.fixture
def address(new_study: Callable[[], str]) -> str:
    return new_study()


@pytest.fixture
def storage(address: str) -> Iterator[StudyStorage]:
    with closing(opened(address)) as storage:
        yield storage


def opened(address: str) -> StudyStorage:
    return StudyStorage(address, description=DESCRIPTION, seed=0)


def number(storage: StudyStorage) -> int:
    """The server's number for a storage's connection."""
    ((pid,),) = storage._state.query("SELECT pg_backend_pid()")
    return int(pid)


def test_several_studies_in_one_database(new_study: Callable[[], str]) -> None:
    with closing(opened(new_study())) as one, closing(opened(new_study())) as two:
        one.add_trial(0, *TRIAL)
        two.refresh()
        assert len(one) == 1 and len(two) == 0 and one.identity != two.identity


class TestSecrets:
    def test_the_password_is_shown_nowhere(
        self,
        postgres_server: PostgresServer,
        caplog: pytest.LogCaptureFixture,
        capfd: pytest.CaptureFixture[str],
    ) -> None:
        caplog.set_level(0)
        shown: list[object] = []
        for secret in (PASSWORD, "wrong" + PASSWORD):
            with pytest.raises(StudyError) as caught:  # no right to create anything
                opened(postgres_server.address("secret", user=LOCKED, password=secret))
            error: BaseException | None = caught.value
            while error is not None:
                shown += [error, repr(error), error.args]
                error = error.__cause__ or (
                    None if error.__suppress_context__ else error.__context__
                )
        postgres_server.sql(f'CREATE SCHEMA dpareto_secret AUTHORIZATION "{LOCKED}"')
        place = postgres_server.address("secret", user=LOCKED, password=PASSWORD)
        with DPareto(toy.problem(), storage=place, acquisition="random") as study:
            study.run(2)
            shown += [study, study._storage, study._storage.path, study._storage._state]
            postgres_server.disconnect()
            study.run(3)
            with pytest.raises(StudyError) as caught:
                DPareto(toy.problem(replicates=3), storage=place)
            shown += [caught.value]
        shown += [caplog.text, *capfd.readouterr()]
        assert not any("cret@" in str(s) or "cret%40" in str(s) for s in shown)

    def test_missing_rights(self, postgres_server: PostgresServer, address: str) -> None:
        opened(address).close()
        name = address.partition("study=")[2]
        for study in ("nobody-made-it", name):
            place = postgres_server.address(study, user=LOCKED, password=PASSWORD)
            with pytest.raises(StudyError, match=r"`storage` .*may not be used by role 'locked'"):
                opened(place)

    def test_others_may_not_read_it(self, postgres_server: PostgresServer, address: str) -> None:
        import psycopg

        opened(address).close()
        name = address.partition("study=")[2]
        place = f"host=127.0.0.1 port={postgres_server.port} user={LOCKED} dbname=postgres"
        with (
            psycopg.connect(place, password=PASSWORD) as other,
            pytest.raises(psycopg.errors.InsufficientPrivilege),
        ):
            other.execute(f'SELECT * FROM "dpareto_{name}".trial')

    def test_no_error_quotes_a_row(self, storage: StudyStorage) -> None:
        storage.add_trial(0, *TRIAL)
        with pytest.raises(StudyError) as caught:
            storage.add_measurements(0, {0: Measurement(1.23456)})
        assert "1.23456" not in str(caught.value) and caught.value.__suppress_context__


class TestDisconnected:
    """The server, or the network, ends a connection."""

    def test_between_two_statements(
        self, postgres_server: PostgresServer, storage: StudyStorage
    ) -> None:
        postgres_server.disconnect(number(storage))
        storage.add_trial(0, *TRIAL, claimed=True)
        postgres_server.disconnect(number(storage))
        storage.refresh()
        postgres_server.disconnect(number(storage))
        assert storage.claim(0)
        assert len(storage) == 1

    def test_in_the_midst_of_a_transaction(
        self,
        postgres_server: PostgresServer,
        storage: StudyStorage,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """Each change is made once, wherever its connection breaks."""
        execute, done = postgres._Connection.execute, [0]
        breaks_at = 0

        def breaking(connection: Any, statement: str, values: Any = ()) -> Any:
            done[0] += 1
            if done[0] == breaks_at:
                postgres_server.disconnect(connection._raw.info.backend_pid)
            return execute(connection, statement, values)

        monkeypatch.setattr(postgres._Connection, "execute", breaking)
        for trial in range(40):
            breaks_at = done[0] + 1 + trial // 2
            if trial % 2 == 0:
                storage.add_trial(trial // 2, *TRIAL, claimed=True)
            else:
                storage.add_failure(trial // 2, "OSError", trainings=1)
        monkeypatch.undo()
        storage.refresh()
        assert [len(trial.failures) for trial in storage.trials()] == [1] * 20

    @pytest.mark.parametrize("kept", [True, False])
    def test_the_answer_to_a_commit_is_lost(
        self,
        postgres_server: PostgresServer,
        storage: StudyStorage,
        kept: bool,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        execute, broken = postgres._Connection.execute, []

        def breaking(connection: Any, statement: str, values: Any = ()) -> Any:
            if statement == "COMMIT" and not broken:
                broken.append(kept)
                if kept:
                    execute(connection, statement)
                postgres_server.disconnect(connection._raw.info.backend_pid)
                return execute(connection, "SELECT 1" if kept else statement)
            return execute(connection, statement, values)

        storage.add_trial(0, *TRIAL)
        monkeypatch.setattr(postgres._Connection, "execute", breaking)
        storage.add_failure(0, "OSError", trainings=1)
        assert broken == [kept]
        assert storage.trials()[0].failures == ("OSError",), "once, not twice and not never"

    def test_out_of_reach_for_too_long(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The run stops with the reason, and goes on where it was when the server is back."""
        monkeypatch.setattr(postgres, "PATIENCE_SECONDS", 0.5)
        trained: list[int] = []
        with server() as own:

            def train(config: Any, seed: int) -> float:
                trained.append(seed)
                if len(trained) == 3:
                    own.stop()
                return 0.5

            place = own.address("one")
            problem = toy.problem(train)
            with DPareto(problem, storage=place, seed=0, acquisition="random") as study:
                with pytest.raises(StudyError, match=r"`storage` .* cannot be reached"):
                    study.run(5)
                own.start()
                assert len(study.run(5).trials) == 5
                before = study.trials
            with DPareto(problem, storage=place, seed=0, acquisition="random") as study:
                assert study.trials == before
        expected = DPareto(problem, seed=0, acquisition="random").ask(5)
        assert [t.config for t in before] == [t.config for t in expected]
        assert trained[2] == trained[3], "what could not be stored is trained again, as it was"
        assert len(trained) == 6

    def test_a_server_that_restarts_in_time_is_not_noticed(self) -> None:
        with server() as own:

            def train(config: Any, seed: int) -> float:
                if not trained:
                    own.stop()
                    restart.start()
                trained.append(seed)
                return 0.5

            trained: list[int] = []
            restart = threading.Timer(0.5, own.start)
            place = own.address("one")
            with DPareto(toy.problem(train), storage=place, acquisition="random") as study:
                assert len(study.run(4).trials) == 4
            restart.join()
        assert len(trained) == 4


class TestOwners:
    """Who holds a trial, across machines: who is connected, or was until a moment ago."""

    def elsewhere(self, address: str, trial: int, token: str = "another") -> None:
        """Claim a trial for a process of another machine, which is not connected."""
        with closing(opened(address)) as storage, storage._state.transaction() as connection:
            owner = {"host": "elsewhere", "pid": 1, "started": "x", "token": token, "asked": False}
            connection.execute("INSERT INTO claim VALUES (?, ?)", (trial, json.dumps(owner)))

    def test_another_machine_loses_its_claims_some_time_after_its_connection(
        self, address: str, storage: StudyStorage, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("botorch_dp.pareto.storage.RETURN_SECONDS", 0.5)
        storage.add_trial(0, *TRIAL)
        self.elsewhere(address, 0)
        start = time.monotonic()
        assert not storage.claim(0) and storage.others_at_work()
        wait_until(lambda: storage.claim(0))
        assert time.monotonic() - start >= 0.5
        assert not storage.others_at_work()

    def test_another_machine_keeps_what_it_comes_back_for(
        self, address: str, storage: StudyStorage, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("botorch_dp.pareto.storage.RETURN_SECONDS", 0.5)
        storage.add_trial(0, *TRIAL)
        self.elsewhere(address, 0)
        assert not storage.claim(0)
        with closing(
            postgres.Server(address, storage._state.kind, lambda _: None, token="another")
        ):
            time.sleep(0.6)
            assert not storage.claim(0), "it is connected"
        wait_until(lambda: storage._state.absent("another") is not None)  # type: ignore[attr-defined]
        assert not storage.claim(0), "its time begins anew"

    def test_an_idle_owner_comes_back_by_itself(
        self,
        postgres_server: PostgresServer,
        address: str,
        storage: StudyStorage,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """While it trains it says nothing to the server, and still notices what happens there."""
        storage.add_trial(0, *TRIAL, claimed=True)
        before = number(storage)
        with closing(opened(address)) as other:
            other.refresh()
            postgres_server.disconnect(before)
            mine = storage._token
            assert not other.claim(0)
            wait_until(lambda: other._state.absent(mine) is None)  # type: ignore[attr-defined]
            assert not other.claim(0)
        assert number(storage) != before

    def test_who_lost_a_claim_does_not_give_it_back(
        self, address: str, storage: StudyStorage
    ) -> None:
        storage.add_trial(0, *TRIAL, claimed=True)
        with storage._state.transaction() as connection:
            connection.execute("DELETE FROM claim")
        self.elsewhere(address, 0)
        storage.unclaim(0)
        assert storage._owners(0) and not storage.claim(0)

    def test_both_finish_a_trial(self, address: str, storage: StudyStorage) -> None:
        """Who lost touch for too long finishes all the same: the first result stays."""
        storage.add_trial(0, *TRIAL, claimed=True)
        with closing(opened(address)) as other:
            other.add_measurements(0, {0: Measurement(0.5)})
            storage.add_measurements(0, {0: Measurement(0.75)})
            storage.add_failure(0, "OSError", trainings=1, is_last=True)
            other.refresh()
            for each in (storage, other):
                (trial,) = each.trials()
                assert trial.state == "complete" and trial.utilities == (0.5,)


class TestKilled:
    def test_coordinators_are_killed_and_cut_off(
        self, postgres_server: PostgresServer, address: str, tmp_path: Path
    ) -> None:
        """Three of them with two workers each: a kill -9, and the server hangs up on all."""
        from tests.pareto.test_processes import Logged

        problem = toy.problem(Logged(str(tmp_path / "log"), 0.05), replicates=2)

        def coordinate() -> None:
            from concurrent.futures import ThreadPoolExecutor

            with (
                DPareto(problem, storage=address, seed=0, acquisition="random") as study,
                ThreadPoolExecutor(2) as pool,
            ):
                study.run(24, batch_size=2, executor=pool)

        def some(trials: int) -> bool:
            with closing(StudyStorage(address, description=None)) as seen:
                return seen.count("complete") >= trials

        others = [FORK.Process(target=coordinate) for _ in range(3)]
        for other in others:
            other.start()
        wait_until(
            lambda: (
                len(
                    postgres_server.sql(
                        "SELECT 1 FROM pg_tables WHERE tablename = 'trial' AND schemaname = %s",
                        "dpareto_" + address.partition("study=")[2],
                    )
                )
                == 1
            )
        )
        wait_until(lambda: some(4))
        others[0].kill()
        wait_until(lambda: some(8))
        assert postgres_server.disconnect() >= 2
        for other in others:
            other.join(120)
        assert [other.exitcode for other in others] == [-9, 0, 0]
        with closing(StudyStorage(address, description=None)) as seen:
            trials = seen.trials()
        assert [trial.number for trial in trials] == list(range(24))
        assert all(trial.state == "complete" and not trial.failures for trial in trials)
        expected = DPareto(problem, seed=0, acquisition="random").ask(24)
        assert [t.config for t in trials] == [t.config for t in expected]
        assert all(t.utilities == tuple(toy.utility(t.config, s) for s in t.seeds) for t in trials)
        begun = (tmp_path / "log").read_text().split()
        assert set(begun) == {str(seed) for trial in trials for seed in trial.seeds}
        # What the killed one had begun is trained again, and nothing else.
        assert len(begun) <= 24 * 2 + 4

    def test_orphans_of_a_killed_coordinator_hold_no_claims(
        self, address: str, storage: StudyStorage
    ) -> None:
        """Forked workers inherit its connection, and may outlive it by days."""
        storage.add_trial(0, *TRIAL)
        reading, writing = os.pipe()

        coordinator = os.fork()
        if coordinator == 0:
            with suppress(BaseException):
                held = opened(address)
                assert held.claim(0)
                worker = os.fork()
                if worker == 0:
                    signal.pause()
                os.write(writing, f"{worker} {held._token}".encode())
            os.kill(os.getpid(), signal.SIGKILL)
        os.close(writing)
        os.waitpid(coordinator, 0)  # joining a process would wait for its orphan
        worker, token = os.read(reading, 100).decode().split()
        try:
            wait_until(lambda: storage._state.absent(token) is not None)  # type: ignore[attr-defined]
            assert storage.claim(0)
        finally:
            os.kill(int(worker), signal.SIGKILL)


class TestPaid:
    """A ledger is a file: two hosts would each spend the whole budget."""

    @pytest.mark.parametrize("kind", ["budget", "ledger"])
    def test_refused_before_anything_is_connected(self, kind: str, tmp_path: Path) -> None:
        budget: Any = PrivacyBudget(8.0, 1e-6)
        if kind == "ledger":
            budget = PrivacyLedger(tmp_path / "ledger", budget)
        problem = test_paying.problem(test_paying.Trains(str(tmp_path / "log")))
        with pytest.raises(PrivacyError, match=r"`budget`.*whole budget.*file"):
            DPareto(problem, storage="postgresql://nobody@127.0.0.1:9/db", budget=budget)

    def test_an_address_is_no_place_for_a_ledger(self) -> None:
        with pytest.raises(PrivacyError, match="folder"):
            PrivacyLedger("postgresql://user@host/db", PrivacyBudget(1.0))
