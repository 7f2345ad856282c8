"""One training is a whole curve: each point is the shorter training, and cut-off runs go on."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from botorch_dp.errors import PrivacyError
from botorch_dp.privacy import PrivacyBudget, PrivacyLedger
from botorch_dp.training import DPTrainer, EpochReport, cross_entropy_loss
from botorch_dp.training.run import TrainingRun
from tests.one_draw import in_fork
from tests.training.helpers import (
    ENGINES,
    FLOAT_DATA,
    SETTINGS,
    interruptible,
    trainer,
    weights,
)

CURVE = (1, 2, 4, 7)
LONG = {**SETTINGS, "epochs": 7}


@pytest.mark.parametrize("engine", ENGINES)
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
    each = trainer()
    together = each.replicates([5, 3], curve=CURVE[:3], **LONG)
    handed = list(each.curve(CURVE[:3], **LONG, seeds=[5, 3]))
    assert [epochs for epochs, _ in handed] == list(CURVE[:3])
    for place, one in enumerate(together):
        assert one.steps == 70
        assert one.curve == tuple((epochs, utilities[place]) for epochs, utilities in handed)
    assert together[1].curve == each.fit(**LONG, seed=3, curve=CURVE[:3]).curve


def test_who_has_seen_enough_takes_no_further_step() -> None:
    loss, each = interruptible()
    points = each.curve(CURVE, **LONG, seeds=[0])
    assert loss.calls == 0
    next(points)
    assert loss.calls == 10
    points.close()
    list(each.curve(CURVE[:2], **LONG, seeds=[0]))
    assert loss.calls == 30


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
    path, log = tmp_path / "curve", tmp_path / "log"
    save = TrainingRun.save

    def save_or_die(run: TrainingRun, file: Any) -> None:
        save(run, file)
        if run.step == step:
            os.kill(os.getpid(), signal.SIGKILL)

    def killed() -> str:
        TrainingRun.save = save_or_die  # type: ignore[method-assign]
        stored = {"checkpoint": path, "checkpoint_seconds": 0.0}
        for epochs, _ in trainer().curve(CURVE, **LONG, seeds=[4, 6], **stored):
            with log.open("a") as file:
                print(epochs, file=file)
        return "alive"

    assert in_fork(killed) is None
    assert [int(line) for line in log.read_text().split()] == seen
    each = trainer()
    whole = list(each.curve(CURVE, **LONG, seeds=[4, 6]))
    measured: list[int] = []
    measure = DPTrainer._measure

    def noted(self: DPTrainer, run: Any) -> list[float]:
        measured.append(run.step)
        return measure(self, run)

    monkeypatch.setattr(DPTrainer, "_measure", noted)
    resumed = list(each.curve(CURVE, **LONG, seeds=[4, 6], checkpoint=path))
    assert resumed == whole
    stored = [epochs for epochs in CURVE if epochs * 10 < step]
    assert measured == [10 * epochs for epochs in CURVE if epochs not in stored]


def test_another_curve_is_another_run(tmp_path: Path) -> None:
    each = trainer()
    each.fit(**LONG, seed=4, curve=CURVE, checkpoint=tmp_path / "run")
    for other in ((), (1, 2, 3)):
        with pytest.raises(PrivacyError, match="curve"):
            each.fit(**LONG, seed=4, curve=other, checkpoint=tmp_path / "run")


def test_a_callback_is_told_after_each_epoch() -> None:
    told: list[EpochReport] = []
    each = trainer()
    fitted = each.fit(**LONG, seed=2, curve=CURVE, callback=told.append)
    assert [report.epochs for report in told] == list(range(1, 8))
    assert [(r.epochs, r.utility) for r in told if r.epochs in CURVE] == list(fitted.curve)
    outputs = fitted.model(FLOAT_DATA.test_X)
    expected = float(cross_entropy_loss(outputs, FLOAT_DATA.test_Y).mean().detach())
    assert told[-1].loss == pytest.approx(expected, rel=1e-6)
    assert torch.equal(weights(fitted.model), weights(each.fit(**LONG, seed=2).model))


def test_what_a_callback_was_told_of_a_published_run_stays(tmp_path: Path) -> None:
    """An epoch that was shown is stored before: going on draws no other noise for it."""
    each = trainer()
    ledger = PrivacyLedger(":memory:", PrivacyBudget(100.0, 1e-3))
    published = {**LONG, "publish": True, "ledger": ledger, "checkpoint": tmp_path / "run"}
    told: list[EpochReport] = []

    def stop_at_four(report: EpochReport) -> None:
        told.append(report)
        if report.epochs == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        each.fit(**published, curve=CURVE, callback=stop_at_four)
    whole = each.fit(**published, curve=CURVE, callback=told.append)
    assert [report.epochs for report in told] == [1, 2, 3, 4, 4, 5, 6, 7]
    assert told[3] == told[4]
    assert whole.curve == tuple(
        (r.epochs, r.utility) for r in [*told[:4], *told[5:]] if r.epochs in CURVE
    )
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
        ("12", TypeError, "must be a sequence, got str"),
        (3, TypeError, "must be a sequence, got int"),
    ],
)
def test_wrong_curves_are_refused_before_training(
    curve: Any, error: type[Exception], message: str
) -> None:
    each = trainer()
    for call in (
        lambda: each.fit(**LONG, seed=0, curve=curve),
        lambda: each.replicates([0], curve=curve, **LONG),
        lambda: each.curve(curve, **LONG, seeds=[0]),
    ):
        with pytest.raises(error, match=message):
            call()
    with pytest.raises(ValueError, match="`checkpoints` is empty"):
        each.curve((), **LONG, seeds=[0])
    with pytest.raises(ValueError, match="`seeds` is empty"):
        each.curve((1,), **LONG, seeds=[])
    with pytest.raises(TypeError, match="`callback` must be callable"):
        each.fit(**LONG, seed=0, callback=3)
