"""The release store itself: one value for one key, and a charge for every draw."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import re
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from botorch_dp.errors import BudgetExhausted, PrivacyError
from botorch_dp.privacy import PrivacyBudget, PrivacyLedger, laplace_mechanism
from botorch_dp.privacy.runs import Run, fingerprint
from tests.one_draw import PLENTY, OneDraw, in_fork
from tests.privacy.charging import in_child, pure, succeeded


def noise() -> float:
    return laplace_mechanism(0.0, sensitivity=1.0, epsilon=1.0).value


class Twice:
    """A run of two noisy values, the second with a phase that reads."""

    def __init__(self, ledger: PrivacyLedger | None) -> None:
        self.ledger = ledger

    def run(self, checkpoint: Path | None) -> list[float]:
        with Run(checkpoint, what="a test", settings={"n": 2}, ledger=self.ledger) as run:
            first = run.release(pure(0.5), noise, key="1")
            run.put(first=first)
            second = run.release(pure(0.5), lambda x: x + noise(), key="2", read=lambda: 10.0)
            run.put(second=second)
            return [first, second]


class TestRun(OneDraw):
    draws = 2

    def make(self, ledger: PrivacyLedger | None) -> Twice:
        return Twice(ledger)

    def draw(self, thing: Twice, checkpoint: Path | None) -> list[float]:
        return thing.run(checkpoint)


@pytest.mark.parametrize("way", ["deepcopy", "pickle"])
def test_other_copies_are_new_runs(way: str, tmp_path: Path) -> None:
    """Of each suite only forks are quick."""
    TestRun().test_a_copy_is_a_new_run(way, tmp_path)


class Broken(Twice):
    """What the first edition did: one key, charged once, drawn whenever asked."""

    def run(self, checkpoint: Path | None) -> list[float]:
        if self.ledger is not None and not self.ledger.entries():
            self.ledger.charge(pure(0.5))
            self.ledger.charge(pure(0.5))
        return [noise(), noise()]


def test_the_suite_catches_a_broken_version(tmp_path: Path) -> None:
    class Suite(OneDraw):
        draws = 2

        def make(self, ledger: PrivacyLedger | None) -> Twice:
            return Broken(ledger)

        def draw(self, thing: Twice, checkpoint: Path | None) -> list[float]:
            return thing.run(checkpoint)

    with pytest.raises(AssertionError):
        Suite().test_a_copy_is_a_new_run("deepcopy", tmp_path)
    (tmp_path / "b").mkdir()
    with pytest.raises(AssertionError):
        Suite().test_a_finished_run_is_replayed(tmp_path / "b")


# Keys


def test_one_key_one_value_for_everybody(tmp_path: Path) -> None:
    path = tmp_path / "a.ledger"
    with PrivacyLedger(path, PrivacyBudget(1.0)) as ledger:
        first = ledger.release(pure(0.75), noise, key="k")
        assert [ledger.release(pure(0.75), noise, key="k") for _ in range(3)] == [first] * 3
        assert in_fork(lambda: ledger.release(pure(0.75), noise, key="k")) == first
    with PrivacyLedger(path) as ledger:
        assert ledger.release(pure(0.75), noise, key="k") == first
        assert ledger.spent() == (0.75, 0.0)


def test_no_key_no_replay() -> None:
    with PrivacyLedger(budget=PrivacyBudget(1.0)) as ledger:
        values = {ledger.release(pure(0.25), noise) for _ in range(4)}
        assert len(values) == 4 and len(ledger.entries()) == 4
        with pytest.raises(BudgetExhausted):
            ledger.release(pure(0.25), lambda: pytest.fail("drawn beyond the budget"))


def test_another_price_or_thing_under_a_key_is_refused() -> None:
    with PrivacyLedger(budget=PrivacyBudget(1.0)) as ledger:
        ledger.release(pure(0.25), noise, key="k", about={"rows": 3})
        with pytest.raises(PrivacyError, match=r"released as something else.*`about.rows` was 3"):
            ledger.release(pure(0.25), noise, key="k", about={"rows": 4})
        with pytest.raises(PrivacyError, match="guarantee"):
            ledger.release(pure(0.5), noise, key="k", about={"rows": 3})
        assert ledger.spent() == (0.25, 0.0)


def test_charged_before_it_is_read_and_stored_before_it_is_shown() -> None:
    events = []
    with PrivacyLedger(budget=PrivacyBudget(1.0)) as ledger:

        def read() -> float:
            events.append(("read", ledger.spent()[0]))
            return 1.0

        def draw(x: float) -> float:
            drawing = ledger._file.query("SELECT COUNT(*) FROM drawing")[0][0]
            events.append(("draw", drawing))
            return x + noise()

        ledger.release(pure(0.5), draw, read=read, key="k")
        assert events == [("read", 0.5), ("draw", 1)]


def test_a_failure_before_the_draw_costs_nothing_more() -> None:
    with PrivacyLedger(budget=PrivacyBudget(1.0)) as ledger:
        for _ in range(3):
            with pytest.raises(ZeroDivisionError):
                ledger.release(pure(0.75), lambda x: x, read=lambda: 1 / 0, key="k")
        ledger.release(pure(0.75), lambda x: x + noise(), read=lambda: 1.0, key="k")
        assert len(ledger.entries()) == 1


def test_a_failure_after_the_draw_is_a_second_charge() -> None:
    shown: list[float] = []

    def draw() -> float:
        shown.append(noise())
        raise ZeroDivisionError

    with PrivacyLedger(budget=PrivacyBudget(1.0)) as ledger:
        for _ in range(2):
            with pytest.raises(ZeroDivisionError):
                ledger.release(pure(0.5), draw, key="k")
        with pytest.raises(BudgetExhausted):
            ledger.release(pure(0.5), draw, key="k")
        assert len(shown) == len(ledger.entries()) == 2


def test_what_cannot_be_stored_is_not_shown() -> None:
    with PrivacyLedger(budget=PrivacyBudget(1.0)) as ledger:
        with pytest.raises(TypeError, match="cannot be stored"):
            ledger.release(pure(0.5), lambda: object(), key="k")
        assert len(ledger.entries()) == 1


# Several callers at once


def test_threads_get_one_value_and_pay_for_every_draw(tmp_path: Path) -> None:
    drawn: list[float] = []
    answers: list[float] = []
    with PrivacyLedger(tmp_path / "a.ledger", PLENTY) as ledger:

        def draw() -> float:
            time.sleep(0.05)
            drawn.append(noise())
            return drawn[-1]

        def ask() -> None:
            answers.append(ledger.release(pure(0.5), draw, key="k"))

        threads = [threading.Thread(target=ask) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(answers) == 6 and len(set(answers)) == 1 and answers[0] in drawn
        assert len(drawn) == len(ledger.entries())


def _ask(path: str) -> Any:
    def draw(_: object) -> float:
        with open(f"{path}.drawn", "ab", buffering=0) as file:
            file.write(b".")
        time.sleep(0.1)
        return noise()

    with PrivacyLedger(path) as ledger:
        return ledger.release(pure(0.5), draw, key="k", read=lambda: time.sleep(0.05))


def test_processes_get_one_value_and_pay_for_every_draw(tmp_path: Path) -> None:
    path = str(tmp_path / "a.ledger")
    PrivacyLedger(path, PLENTY).close()
    with multiprocessing.get_context("fork").Pool(4) as pool:
        values = set(pool.map(_ask, [path] * 8, chunksize=1))
    assert len(values) == 1
    with PrivacyLedger(path) as ledger:
        assert (tmp_path / "a.ledger.drawn").stat().st_size == len(ledger.entries()) <= 4


def test_a_charge_is_used_by_one_draw(tmp_path: Path) -> None:
    """Another process draws for the charge while records are read: this one pays again."""
    with PrivacyLedger(tmp_path / "a.ledger", PLENTY) as ledger:
        inner: list[float] = []

        def overtaken() -> float:
            for _ in range(2):
                with pytest.raises(ZeroDivisionError):
                    ledger.release(pure(0.5), lambda: 1 / 0, key="k")
            return 10.0

        assert ledger.release(pure(0.5), lambda x: x, read=overtaken, key="k") == 10.0
        assert len(ledger.entries()) == 3

        def stored() -> float:
            inner.append(ledger.release(pure(0.5), noise, key="j"))
            return 10.0

        late = ledger.release(pure(0.5), lambda x: pytest.fail("drawn"), read=stored, key="j")
        assert late == inner[0] and len(ledger.entries()) == 4


def test_the_charge_of_the_dead_is_used(tmp_path: Path) -> None:
    """Killed while reading: nothing was drawn. Killed while drawing: a new charge."""
    path = tmp_path / "a.ledger"
    PrivacyLedger(path, PLENTY).close()

    def die(*_: object) -> float:
        os.kill(os.getpid(), 9)
        return 0.0

    for read, draw, charges in (
        (die, lambda x: x, 1),
        (lambda: 1.0, die, 1),
        (lambda: 1.0, lambda x: x + noise(), 2),
        (lambda: 1.0, lambda x: x + noise(), 2),
    ):

        def work(read: Any = read, draw: Any = draw) -> None:
            with PrivacyLedger(path) as ledger:
                ledger.release(pure(0.5), draw, read=read, key="k")

        succeeded(in_child(work))
        with PrivacyLedger(path) as ledger:
            assert len(ledger.entries()) == charges


def test_a_value_that_came_second_is_thrown_away() -> None:
    with PrivacyLedger(budget=PLENTY) as ledger:
        inner: list[float] = []

        def late() -> float:
            inner.append(ledger.release(pure(0.5), noise, key="k"))
            return noise()

        assert ledger.release(pure(0.5), late, key="k") == inner[0]
        assert len(ledger.entries()) == 2


# Stored values


@pytest.mark.parametrize(
    "value",
    [
        *(True, 10**30, float("inf")),
        [1, (2.5, "µ"), {"a": None, 3: [True]}],
        np.arange(6, dtype=np.float32).reshape(2, 3),
        np.zeros((0, 2)),
        torch.arange(6, dtype=torch.double).reshape(3, 2).T,
        torch.tensor([True, False]),
    ],
    ids=str,
)
def test_values_come_back_as_they_were(value: Any, tmp_path: Path) -> None:
    path = tmp_path / "a.ledger"
    with PrivacyLedger(path, PLENTY) as ledger:
        first = ledger.release(pure(0.5), lambda: value, key="k")
    with PrivacyLedger(path) as ledger:
        again = ledger.release(pure(0.5), lambda: pytest.fail("drawn twice"), key="k")
    for back in (first, again):
        if isinstance(value, np.ndarray | torch.Tensor):
            assert type(back) is type(value) and back.dtype == value.dtype
            assert back.shape == value.shape and (back == value).all()
        else:
            assert back == value and type(back) is type(value)


def test_stored_values_cannot_be_changed(tmp_path: Path) -> None:
    import sqlite3

    path = tmp_path / "a.ledger"
    with PrivacyLedger(path, PLENTY) as ledger:
        ledger.release(pure(0.5), noise, key="k")
        file = ledger._file
        for statement in (
            "UPDATE released SET value = x'00'",
            "DELETE FROM released",
            "INSERT OR REPLACE INTO released VALUES ('k', x'00')",
            "DELETE FROM paid",
            "UPDATE paid SET about = ''",
            "DELETE FROM drawing",
        ):
            with pytest.raises(sqlite3.IntegrityError, match="never changed"):
                file.execute(statement)
        file.execute("DROP TRIGGER released_no_update")
        file.execute("UPDATE released SET value = x'00112233'")
        with pytest.raises(PrivacyError, match=r"damaged .*was altered"):
            ledger.release(pure(0.5), noise, key="k")


@pytest.mark.parametrize("altered", ["{", "{}"])
def test_an_altered_charge_is_refused(altered: str, tmp_path: Path) -> None:
    """Nothing is drawn for a charge that nobody can read."""
    with PrivacyLedger(tmp_path / "a.ledger", PLENTY) as ledger:
        with pytest.raises(ZeroDivisionError):
            ledger.release(pure(0.5), lambda: 1 / 0, key="k")
        for statement in ("DROP TRIGGER paid_no_update", f"UPDATE paid SET about = '{altered}'"):
            ledger._file.execute(statement)
        with pytest.raises(PrivacyError, match=r"`key` 'k' names|the charge for 'k' was altered"):
            ledger.release(pure(0.5), lambda: pytest.fail("drawn"), key="k")


# Runs


def test_a_run_keeps_what_it_is_given(tmp_path: Path) -> None:
    path, settings = tmp_path / "run", {"steps": 3, "box": [0.0, 1.0]}
    with Run(path, what="a test", settings=settings) as run:
        assert not run.resumed and run.get("x", 7) == 7
        identity = run.identity
        run.put(x=1, y=torch.ones(2))
        run.put(x=2)
        for number in range(4):
            run.add("losses", number, torch.full((2,), float(number)))
        run.keep_only("losses", [1, 3])
        with pytest.raises(ZeroDivisionError), run.transaction():
            run.put(x=3)
            raise ZeroDivisionError
    assert path.stat().st_mode & 0o777 == 0o600
    with Run(path, what="a test", settings={"steps": 3, "box": (0.0, 1.0)}) as run:
        assert run.resumed and run.identity == identity
        assert run.get("x") == 2 and torch.equal(run.get("y"), torch.ones(2))
        assert {k: v.tolist() for k, v in run.items("losses").items()} == {1: [1, 1], 3: [3, 3]}


def test_another_run_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "run"
    Run(path, what="a test", settings={"steps": 3}).close()
    with pytest.raises(PrivacyError, match=r"other settings \(`steps` was 3 and is 4\)"):
        Run(path, what="a test", settings={"steps": 4})
    with pytest.raises(PrivacyError, match="is of a test, not of another"):
        Run(path, what="another", settings={"steps": 3})
    with (
        PrivacyLedger(tmp_path / "a.ledger", PLENTY),
        pytest.raises(PrivacyError, match="no checkpoint"),
    ):
        Run(tmp_path / "a.ledger", what="a test", settings={})


def test_one_holder_by_any_name(tmp_path: Path) -> None:
    path = tmp_path / "run"
    with Run(path, what="a test", settings={}) as run:
        for name in (path, tmp_path / "link"):
            if not name.exists():
                name.symlink_to(path)
            with pytest.raises(PrivacyError, match="in use"):
                Run(name, what="a test", settings={})
        assert "in use" in str(in_fork(lambda: Run(path, what="a test", settings={})))
        # A reader that closes the file must not let anybody in.
        path.read_bytes()
        with pytest.raises(PrivacyError, match="in use"):
            Run(path, what="a test", settings={})
        fork = in_fork(lambda: run.put(x=1))
        assert "was opened by the parent of this forked process" in str(fork)
        run.put(x=2)
    with Run(path, what="a test", settings={}) as run:
        assert run.get("x") == 2


def test_an_old_mode_is_tightened(tmp_path: Path) -> None:
    for path, use in (
        (tmp_path / "run", lambda p: Run(p, what="a test", settings={})),
        (tmp_path / "ledger", lambda p: PrivacyLedger(p, PLENTY)),
    ):
        use(path).close()
        path.chmod(0o644)
        use(path).close()
        assert path.stat().st_mode & 0o777 == 0o600


def test_damage_is_one_error(tmp_path: Path) -> None:
    path = tmp_path / "run"
    with Run(path, what="a test", settings={}) as run:
        run.put(x=1)
        run._file.execute("UPDATE state SET value = x'0011'")
        with pytest.raises(PrivacyError, match=r"damaged .x was altered"):
            run.get("x")
    path.write_bytes(b"junk" * 1000)
    with pytest.raises(PrivacyError, match="damaged"):
        Run(path, what="a test", settings={})


def test_copies_of_a_run_in_memory_have_their_own_identity() -> None:
    run = Run(None, what="a test", settings={})
    names = {run.identity, in_fork(lambda: run.identity), pickle.loads(pickle.dumps(run)).identity}
    assert len(names) == 3


def test_fingerprint() -> None:
    x = torch.arange(4.0)
    names = [fingerprint(x), fingerprint(x.double()), fingerprint(x.reshape(2, 2)), fingerprint(-x)]
    names.append(fingerprint(fingerprint(x), fingerprint(x)))
    assert len(set(names)) == 5 and fingerprint(x.clone()) == names[0]
    assert fingerprint(torch.empty(0, 3)) != fingerprint(torch.empty(0, 4))
    assert "digest" not in repr(names[0])


def test_records_are_recognized_and_never_quoted(tmp_path: Path) -> None:
    """No hash that guesses could be tried on: neither in messages, nor the same in two files."""
    x = torch.arange(4.0)
    kept = []
    for name in ("a", "b"):
        Run(tmp_path / name, what="a test", settings={"data": {"X": fingerprint(x)}}).close()
        with Run(tmp_path / name, what="a test", settings={"data": {"X": fingerprint(x)}}) as run:
            assert run.resumed
            kept.append(str(run.get("the run")[-1]))
        with pytest.raises(PrivacyError, match=r"`data\.X` is not the same") as refused:
            Run(tmp_path / name, what="a test", settings={"data": {"X": fingerprint(x + 1)}})
        assert not re.search("[0-9a-f]{32}", str(refused.value))
        with pytest.raises(PrivacyError, match=r"`data\.X` is not the same"):
            Run(tmp_path / name, what="a test", settings={"data": {"X": None}})
    plain = fingerprint(x).digest.hex()
    assert kept[0] != kept[1] and plain not in kept[0] + kept[1]
    with pytest.raises(TypeError, match="JSON-ready"):
        Run(tmp_path / "c", what="a test", settings={"data": x})
