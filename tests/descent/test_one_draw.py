"""A descent draws each step once, whatever is copied, pooled, retried, refused or raised."""

from __future__ import annotations

import copy
import os
import pickle
import sqlite3
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from botorch_dp.descent import DPGIBO, private_start
from botorch_dp.errors import PrivacyError
from botorch_dp.privacy import PrivacyLedger, gaussian_mechanism
from tests.descent.problems import descent, must_not_be_read, records, unit_box
from tests.one_draw import PLENTY, Disk, OneDraw, in_fork

SMALL = records(n=8, dim=2)


def small_losses(X: Tensor) -> Tensor:
    """Losses of eight records in two parameters; unlike a closure it can be pickled."""
    return (X.unsqueeze(1) - SMALL).square().sum(-1)


def tiny(ledger: PrivacyLedger | None = None, **changes: Any) -> DPGIBO:
    start = torch.full((2,), 0.2, dtype=torch.double)
    settings = {"steps": 3, "mu": 0.3, "box": unit_box(2), "initial": start, "ledger": ledger}
    return descent(changes.pop("losses", small_losses), **{**settings, **changes})


def released(run: DPGIBO, checkpoint: Path | None = None) -> list[list[float]]:
    return run.run(checkpoint=checkpoint).trajectory.value.tolist()


class TestDPGIBO(OneDraw):
    draws = 3

    def make(self, ledger: PrivacyLedger | None) -> DPGIBO:
        return tiny(ledger)

    def draw(self, thing: DPGIBO, checkpoint: Path | None) -> list[list[float]]:
        return released(thing, checkpoint)


class TestPrivateStart(OneDraw):
    """One point; its key stands for the checkpoint, and a call without a ledger is a new draw."""

    has_checkpoint = False

    def make(self, ledger: PrivacyLedger | None) -> PrivacyLedger | None:
        return ledger

    def draw(self, thing: PrivacyLedger | None, checkpoint: Path | None) -> list[float]:
        # Other points each time: two draws from the same ones may well choose the same one.
        return start(thing, seed=int.from_bytes(os.urandom(4), "big"))


def start(ledger: PrivacyLedger | None, losses: Any = small_losses, **changes: Any) -> list[float]:
    settings = {"bounds": (0.0, 1.0), "mu": 0.3, "num_points": 64}
    return private_start(
        losses, box=unit_box(2), ledger=ledger, **{**settings, **changes}
    ).value.tolist()


# Copies: each is a new run.


@pytest.mark.one_in(2)
@pytest.mark.parametrize("way", ["deepcopy", "pickle", "fork"])
@pytest.mark.parametrize("in_file", [False, True])
def test_a_copy_of_a_run_under_way_pays_for_what_remains(
    way: str, in_file: bool, tmp_path: Path
) -> None:
    checkpoint = tmp_path / "run" if in_file else None
    with PrivacyLedger(tmp_path / "a.ledger", PLENTY) as ledger:
        run = tiny(ledger, losses=FailsAt(2))
        with pytest.raises(PowerCut):
            run.run(checkpoint=checkpoint)
        before = run.result.trajectory.value.tolist()
        if way == "deepcopy":
            copied = [released(copy.deepcopy(run)) for _ in range(2)]
        elif way == "pickle":
            copied = [released(pickle.loads(pickle.dumps(run))) for _ in range(2)]
        elif in_file:
            pytest.skip("a fork goes on in the file, which one process at a time may hold")
        else:
            copied = [in_fork(lambda: released(run)) for _ in range(2)]
        values = [*copied, released(run)]
        assert all(value[:2] == before for value in values)
        assert len({str(value) for value in values}) == 3
        # The first step, the second one begun and taken over by the run itself, and its third;
        # two more for each copy.
        assert len(ledger.entries()) == 3 + 2 * 2


def test_a_copy_within_a_run_is_a_new_run(tmp_path: Path) -> None:
    copies: list[DPGIBO] = []

    def losses(X: Tensor) -> Tensor:
        if not copies:
            copies.append(copy.deepcopy(run))
        return small_losses(X)

    with PrivacyLedger(tmp_path / "a.ledger", PLENTY) as ledger:
        run = tiny(ledger, losses=losses)
        value = released(run, tmp_path / "run")
        assert released(copies[0]) != value
        assert len(ledger.entries()) == 6


# One file, one run.


def test_a_run_in_memory_cannot_join_a_file_nor_change_files(tmp_path: Path) -> None:
    with PrivacyLedger(tmp_path / "a.ledger", PLENTY) as ledger:
        begun = tiny(ledger, losses=FailsAt(1))
        with pytest.raises(PowerCut):
            begun.step()
        with pytest.raises(PrivacyError, match=r"from the first step on.*begun in memory"):
            begun.run(checkpoint=tmp_path / "run")
        stored = tiny(ledger, losses=FailsAt(1))
        with pytest.raises(PowerCut):
            stored.run(checkpoint=tmp_path / "run")
        with pytest.raises(PrivacyError, match=r"from the first step on.*begun in /"):
            stored.run(checkpoint=tmp_path / "other")
        (tmp_path / "run").unlink()
        with pytest.raises(PrivacyError, match="belongs to another run now"):
            stored.step()


# State in memory changes last.


class PowerCut(BaseException):
    """Not an exception that anybody catches."""


class FailsAt:
    """Losses that fail at some calls, counted from 1, and count their calls."""

    def __init__(self, *calls: int) -> None:
        self.fail_at, self.calls = calls, 0

    def __call__(self, X: Tensor) -> Tensor:
        self.calls += 1
        if self.calls in self.fail_at:
            raise PowerCut
        return small_losses(X)


class RaisesAfterMoving(torch.optim.SGD):
    """Moves, remembers the gradient, and raises; the first edition drew anew each time."""

    seen: list[Tensor]
    fails = True

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        (parameter,) = self.param_groups[0]["params"]
        type(self).seen.append(parameter.grad.clone())
        super().step()
        self.param_groups[0]["lr"] *= 2
        if type(self).fails:
            raise ZeroDivisionError


def state_of(run: DPGIBO) -> str:
    return repr(
        (run._progress, run._parameter.tolist(), run._optimizer.state_dict(), run.steps_taken)
    )


@pytest.mark.parametrize("in_file", [False, True])
@pytest.mark.parametrize("has_ledger", [False, True])
def test_an_optimizer_that_raises_after_moving(
    in_file: bool, has_ledger: bool, tmp_path: Path
) -> None:
    class Optimizer(RaisesAfterMoving):
        seen: list[Tensor] = []  # noqa: RUF012
        fails = False

    checkpoint = tmp_path / "run" if in_file else None
    make: Callable[[Iterable[Tensor]], Optimizer] = partial(Optimizer, lr=0.2, momentum=0.5)
    with PrivacyLedger(tmp_path / "a.ledger", PLENTY) as ledger:
        charged_to = ledger if has_ledger else None
        losses = FailsAt(2)
        run = tiny(charged_to, step_size=make, losses=losses)
        with pytest.raises(PowerCut):
            run.run(checkpoint=checkpoint)
        before = state_of(run)
        Optimizer.fails = True
        for _ in range(6):
            with pytest.raises(ZeroDivisionError):
                run.run(checkpoint=checkpoint)
            assert state_of(run) == before
            with pytest.raises(ZeroDivisionError):
                run.step()
            assert state_of(run) == before
        assert len({str(gradient) for gradient in Optimizer.seen}) == 2
        if in_file:  # a new object on the file sees no second gradient either
            run = tiny(charged_to, step_size=make)
            with pytest.raises(ZeroDivisionError):
                run.run(checkpoint=checkpoint)
        assert len({str(gradient) for gradient in Optimizer.seen}) == 2
        Optimizer.fails = False
        run.run(checkpoint=checkpoint)
        assert len({str(gradient) for gradient in Optimizer.seen}) == 3
        assert len(ledger.entries()) == (3 if has_ledger else 0)
        # Every gradient was applied once, with the step size and the momentum of its step.
        parameter = torch.nn.Parameter(torch.full((2,), 0.2, dtype=torch.double))
        optimizer = make([parameter])
        for gradient in dict.fromkeys(map(str, Optimizer.seen)):
            parameter.grad = next(g for g in Optimizer.seen if str(g) == gradient)
            optimizer.step()
            with torch.no_grad():
                parameter.clamp_(0.0, 1.0)
        assert torch.equal(parameter, run.result.location.value)


def test_a_failing_save_shows_nothing_and_is_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk, shown = Disk(monkeypatch), []
    mechanism = gaussian_mechanism

    def recorded(*args: Any, **options: Any) -> Any:
        shown.append(mechanism(*args, **options))
        return shown[-1]

    monkeypatch.setattr("botorch_dp.descent.step.gaussian_mechanism", recorded)
    with PrivacyLedger(tmp_path / "a.ledger", PLENTY) as ledger:
        run = tiny(ledger, losses=FailsAt(2), step_size=partial(torch.optim.Adam, lr=0.1))
        with pytest.raises(PowerCut):
            run.run(checkpoint=tmp_path / "run")
        before = state_of(run)
        # The claim is taken over with its charge; then: begun, stored, and the state of the step.
        disk.commits, disk.at, disk.action = 0, 4, disk.fail
        with pytest.raises((PrivacyError, sqlite3.OperationalError)):
            run.run(checkpoint=tmp_path / "run")
        assert state_of(run) == before
        assert run.result.trajectory.value.shape == (2, 2)
        assert len(shown) == 2
        disk.at = None
        value = released(run, tmp_path / "run")
        assert len(shown) == len(ledger.entries()) == 3
        assert released(tiny(ledger, step_size=partial(torch.optim.Adam, lr=0.1)), tmp_path / "run")
        assert value == released(run, tmp_path / "run")


def test_an_iterate_is_stored_before_it_can_be_read(tmp_path: Path) -> None:
    """Whoever looks while the next step is made sees what the file has, and no more."""
    checkpoint, looks = tmp_path / "run", []

    class Looking(torch.optim.SGD):
        def step(self, closure: Any = None) -> None:  # type: ignore[override]
            super().step()
            looks.append((run.steps_taken, len(run._progress.trajectory)))

    run = tiny(step_size=partial(Looking, lr=0.2))
    run.run(checkpoint=checkpoint)
    assert looks == [(0, 1), (1, 2), (2, 3)]


# What is refused, and what has no noise.


def test_what_cannot_run_is_refused_before_it_is_charged(tmp_path: Path) -> None:
    with PrivacyLedger(tmp_path / "a.ledger", PLENTY) as ledger:
        for call in (
            lambda: tiny(ledger, losses=must_not_be_read, unsafe_seed=1),
            lambda: start(ledger, must_not_be_read, unsafe_seed=1),
        ):
            with pytest.raises(PrivacyError, match="`unsafe_seed`"):
                call()
        with pytest.raises(ValueError, match="`key` names a value in a ledger"):
            start(None, must_not_be_read, key="a")
        assert not ledger.entries()


# A private start


def test_the_run_of_these_tests_can_be_pickled() -> None:
    """Otherwise the tests of copies would be skipped."""
    assert released(pickle.loads(pickle.dumps(tiny())))
