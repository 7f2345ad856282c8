"""One training is a whole curve: each point is the shorter training, and cut-off runs go on."""

from __future__ import annotations

import os
import signal
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from botorch_dp.errors import PrivacyError
from botorch_dp.privacy import PrivacyBudget, PrivacyLedger
from botorch_dp.training import DPTrainer
from botorch_dp.training.run import TrainingRun
from tests.one_draw import in_fork
from tests.training.helpers import (
    OWN_ENGINES,
    SETTINGS,
    interruptible,
    trainer,
    weights,
)

CURVE = (1, 2, 4, 7)
LONG = {**SETTINGS, "epochs": 7}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("engine", OWN_ENGINES)
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_each_point_is_the_shorter_training(engine: str, optimizer: str) -> None:
    each = trainer(engine=engine, optimizer=optimizer)
    whole = each.fit(**LONG, seed=3, curve=CURVE)
    shorter = [each.fit(**{**LONG, "epochs": epochs}, seed=3) for epochs in CURVE]
    assert whole.curve == tuple(
        (epochs, one.accuracy) for epochs, one in zip(CURVE, shorter, strict=True)
    )
    assert len({utility for _, utility in whole.curve}) > 1
    plan = whole.plan
    assert [plan.guarantee_after(e * plan.steps_per_epoch).epsilon(plan.delta) for e in CURVE] == [
        one.epsilon for one in shorter
    ]
    assert torch.equal(weights(whole.model), weights(each.fit(**LONG, seed=3).model))
    assert whole.accuracy == whole.curve[-1].utility


def test_points_of_replicates_are_their_own() -> None:
    each, told = trainer(), []
    together = each.replicates(
        [5, 3], **LONG, curve=CURVE, on_point=lambda *point: told.append(point)
    )
    for place, one in enumerate(together):
        assert one.steps == 70
        assert one.curve == tuple((epochs, utilities[place]) for epochs, utilities in told)
    assert together[1].curve == each.fit(**LONG, seed=3, curve=CURVE).curve


def test_who_has_seen_enough_takes_no_further_step() -> None:
    """By what a function returns, by an exception, or by closing the iterator of a problem."""
    loss, each = interruptible()
    enough = each.replicates([0, 1], **LONG, curve=CURVE, on_point=lambda epochs, _: epochs == 2)
    taken = loss.calls
    assert [one.steps for one in enough] == [20, 20] and all(one.interrupted for one in enough)
    assert [len(one.curve) for one in enough] == [2, 2]
    whole = each.replicates([0, 1], **{**LONG, "epochs": 2})
    assert [one.epsilon for one in enough] == [one.epsilon for one in whole]
    assert torch.equal(weights(enough[1].model), weights(whole[1].model))

    def raising(epochs: int, utility: float) -> None:
        raise StopIteration

    loss.calls = 0
    with pytest.raises(StopIteration):
        each.fit(**LONG, seed=0, on_point=raising)
    assert 2 * loss.calls == taken


def test_a_published_model_that_was_ended_costs_the_complete_run(tmp_path: Path) -> None:
    """Its last step follows from the utilities, so what fewer steps would cost is not promised."""
    each, path = trainer(), tmp_path / "run"
    ledger = PrivacyLedger(":memory:", PrivacyBudget(100.0, 1e-3))
    published = {**LONG, "publish": True, "ledger": ledger, "checkpoint": path, "curve": CURVE}
    ended = each.fit(**published, on_point=lambda epochs, _: epochs == 2)
    assert (ended.steps, len(ended.curve)) == (20, 2)
    assert ended.guarantee == each.plan(**LONG).guarantee and ended.epsilon == ended.plan.epsilon
    again = each.fit(**published)
    assert torch.equal(weights(again.model), weights(ended.model))
    assert (again.guarantee, again.steps, again.curve) == (ended.guarantee, 20, ended.curve)
    assert len(ledger.entries()) == 1


def test_nothing_on_the_way_is_printed() -> None:
    fitted = trainer().fit(**LONG, seed=0, curve=CURVE)
    for thing in (fitted, fitted.diagnostics):
        assert str(fitted.accuracy) not in repr(thing)


@pytest.mark.parametrize("step", [5, 10, 23, 69])
def test_a_resumed_curve_is_an_uninterrupted_one(tmp_path: Path, step: int) -> None:
    loss, each = interruptible(step)
    stopped = each.fit(**LONG, seed=4, curve=CURVE, checkpoint=tmp_path / "run")
    loss.armed = False
    whole = each.fit(**LONG, seed=4, curve=CURVE)
    assert stopped.steps == step
    assert stopped.curve == tuple(p for p in whole.curve if p.epochs * 10 <= step)
    resumed = each.fit(**LONG, seed=4, curve=CURVE, checkpoint=tmp_path / "run")
    assert resumed.curve == whole.curve
    assert torch.equal(weights(resumed.model), weights(whole.model))


@pytest.mark.parametrize("step, seen", [(20, [1]), (21, [1, 2]), (55, [1, 2, 4])])
def test_a_killed_curve_goes_on_from_its_last_point(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int, seen: list[int]
) -> None:
    """Points that were stored are told again, and not measured again."""
    path, log = tmp_path / "curve", tmp_path / "log"
    stored = {**LONG, "seed": 4, "curve": CURVE, "checkpoint": path, "checkpoint_seconds": 0.0}
    save = TrainingRun.save

    def save_or_die(run: TrainingRun) -> None:
        save(run)
        if run.step == step:
            os.kill(os.getpid(), signal.SIGKILL)

    def note(epochs: int, utility: float | None) -> None:
        with log.open("a") as file:
            print(epochs, file=file)

    def killed() -> str:
        TrainingRun.save = save_or_die  # type: ignore[method-assign]
        trainer().fit(**stored, on_point=note)
        return "alive"

    assert in_fork(killed) is None
    assert [int(line) for line in log.read_text().split()] == seen
    each = trainer()
    whole = each.fit(**LONG, seed=4, curve=CURVE)
    measured: list[int] = []
    measure = DPTrainer.measure

    def noted(self: DPTrainer, run: TrainingRun, **how: bool) -> list[Any]:
        measured.append(run.step)
        return measure(self, run, **how)

    monkeypatch.setattr(DPTrainer, "measure", noted)
    told: list[tuple[int, float | None]] = []
    resumed = each.fit(**stored, on_point=lambda *point: told.append(point))
    assert resumed.curve == whole.curve == tuple(told)
    kept = [epochs for epochs in CURVE if epochs * 10 < step]
    assert measured == [10 * epochs for epochs in CURVE if epochs not in kept]


def test_another_curve_is_another_run(tmp_path: Path) -> None:
    each = trainer()
    each.fit(**LONG, seed=4, curve=CURVE, checkpoint=tmp_path / "run")
    for other in ((), (1, 2, 3)):
        with pytest.raises(PrivacyError, match="curve"):
            each.fit(**LONG, seed=4, curve=other, checkpoint=tmp_path / "run")


def test_every_epoch_is_told_unless_points_are_named() -> None:
    told: list[tuple[int, float | None]] = []
    each = trainer()
    fitted = each.fit(**LONG, seed=2, on_point=lambda *point: told.append(point))
    assert [epochs for epochs, _ in told] == list(range(1, 8))
    assert fitted.curve == tuple(told)
    assert torch.equal(weights(fitted.model), weights(each.fit(**LONG, seed=2).model))


def test_what_was_told_of_a_published_run_stays(tmp_path: Path) -> None:
    """A point that was shown is stored before: going on draws no other noise for it."""
    each = trainer()
    ledger = PrivacyLedger(":memory:", PrivacyBudget(100.0, 1e-3))
    published = {**LONG, "publish": True, "ledger": ledger, "checkpoint": tmp_path / "run"}
    told: list[tuple[int, float | None]] = []

    def stop_at_four(*point: Any) -> None:
        told.append(point)
        if point[0] == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        each.fit(**published, curve=CURVE, on_point=stop_at_four)
    before = list(told)
    whole = each.fit(**published, curve=CURVE, on_point=lambda *point: told.append(point))
    assert [epochs for epochs, _ in told] == [1, 2, 4, *CURVE]
    assert told[3:6] == before and whole.curve == tuple(told[3:])
    assert len(ledger.entries()) == 1
    assert each.fit(**published, curve=CURVE).curve == whole.curve


@pytest.mark.parametrize(
    "curve, error, message",
    [
        ((0, 1), ValueError, "from 1 to 7, got 0"),
        ((1, 8), ValueError, "from 1 to 7, got 8"),
        ((2, 1), ValueError, "must rise"),
        ((1, 1), ValueError, "must rise"),
        ((1.5,), TypeError, "must be an integer, got float"),
        ("12", TypeError, "must be numbers of epochs such as"),
        (3, TypeError, "must be numbers of epochs such as"),
    ],
)
def test_wrong_curves_are_refused_before_training(
    curve: Any, error: type[Exception], message: str
) -> None:
    each = trainer()
    for call in (
        lambda: each.fit(**LONG, seed=0, curve=curve),
        lambda: each.replicates([0], **LONG, curve=curve),
    ):
        with pytest.raises(error, match=message):
            call()
    for call in (partial(each.fit, seed=0), partial(each.replicates, [0])):
        with pytest.raises(TypeError, match="`on_point` must be callable"):
            call(**LONG, on_point=3)  # type: ignore[operator]
