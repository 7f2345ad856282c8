"""Configurations trained together are the trainings of each of them."""

from __future__ import annotations

import copy
from typing import Any, ClassVar

import pytest
import torch
from torch import nn

from botorch_dp.training import DPTrainer, cross_entropy_loss
from botorch_dp.training.run import TrainingRun
from tests.training.helpers import ENGINES, FLOAT_DATA, trainer, weights
from tests.training.test_step_rules import CHOICES

#: Everything differs that may differ, in no order.
CONFIGURATIONS: list[dict[str, Any]] = [
    {"learning_rate": 0.1, "clip_norm": 0.5, "noise_multiplier": 0.8, "batch_size": 6, "epochs": 2},
    {"learning_rate": 0.3, "clip_norm": 2.0, "noise_multiplier": 0.0, "batch_size": 6, "epochs": 4},
    {"learning_rate": 0.2, "clip_norm": 0.1, "target_epsilon": 3.0, "batch_size": 9, "epochs": 3},
    {"learning_rate": 1.0, "clip_norm": 1.0, "noise_multiplier": 3.0, "batch_size": 6, "epochs": 1},
    {"learning_rate": 0.1, "clip_norm": 0.5, "noise_multiplier": 0.8, "batch_size": 6, "epochs": 4},
]
SEEDS = [3, 3, 5, 2**70, 7]


def assert_each_is_alone(each: DPTrainer, curve: tuple[int, ...] = (1, 3)) -> None:
    together = each.fit_configurations(CONFIGURATIONS, seeds=SEEDS, curve=curve)
    for settings, seed, found in zip(CONFIGURATIONS, SEEDS, together, strict=True):
        own = [epochs for epochs in curve if epochs <= settings["epochs"]]
        alone = each.fit(**settings, seed=seed, curve=own)
        assert found.plan == alone.plan
        assert (found.steps, found.interrupted) == (alone.steps, False)
        assert found.guarantee == alone.guarantee
        torch.testing.assert_close(weights(found.model), weights(alone.model), rtol=1e-4, atol=1e-5)
        assert found.curve == alone.curve
        assert found.accuracy == alone.accuracy


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("sampling", ["poisson", "without_replacement"])
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_configurations_are_trained_as_if_alone(engine: str, sampling: str, optimizer: str) -> None:
    assert_each_is_alone(trainer(engine=engine, sampling=sampling, optimizer=optimizer))


@pytest.mark.parametrize("name", CHOICES)
def test_with_every_rule(name: str) -> None:
    assert_each_is_alone(trainer(**CHOICES[name]))


def test_normalized() -> None:
    quiet = trainer(clipping="normalized")
    loud = [{**one, "noise_multiplier": 1.0} for one in CONFIGURATIONS if "target" not in one]
    for settings in loud:
        settings.pop("target_epsilon", None)
    together = quiet.fit_configurations(loud, seeds=SEEDS)
    for settings, seed, found in zip(loud, SEEDS, together, strict=True):
        alone = quiet.fit(**settings, seed=seed)
        torch.testing.assert_close(weights(found.model), weights(alone.model), rtol=1e-4, atol=1e-5)


def noted_steps(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many replicates take each step, from now on."""
    rows: list[int] = []
    advance = TrainingRun._advance

    def noted(run: TrainingRun) -> None:
        rows.append(run.moving)
        advance(run)

    monkeypatch.setattr(TrainingRun, "_advance", noted)
    return rows


def test_those_of_one_batch_size_share_their_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = noted_steps(monkeypatch)
    trainer().fit_configurations(CONFIGURATIONS, seeds=SEEDS)
    assert rows == [4] * 10 + [3] * 10 + [2] * 20 + [1] * 18


def confidence(outputs: torch.Tensor, targets: torch.Tensor) -> float:
    """A utility in which each weight shows."""
    return float(outputs.softmax(dim=-1).gather(1, targets.unsqueeze(1)).mean())


class TestCurves:
    CHECKPOINTS: ClassVar = [(1, 2), (2, 3, 4), (1, 3), (1,), (1, 2, 3, 4)]
    #: The places that end at the k-th pause: one that would end there in any case, and one that
    #: would go on; in their order of training, the first batch size is done before the other begins.
    ENDED: ClassVar = [{3, 4}, set(), {1}, None, set()]
    LENGTHS: ClassVar = [2, 2, 2, 1, 1]

    @pytest.mark.parametrize("engine", ENGINES)
    @pytest.mark.parametrize("sampling", ["poisson", "without_replacement"])
    @pytest.mark.parametrize("optimizer", ["sgd", "adam"])
    def test_each_is_that_of_its_own_training(
        self, engine: str, sampling: str, optimizer: str
    ) -> None:
        self.check(trainer(engine=engine, sampling=sampling, optimizer=optimizer))

    @pytest.mark.parametrize("name", CHOICES)
    def test_with_every_rule(self, name: str) -> None:
        self.check(trainer(**CHOICES[name]))

    def test_with_dropout_and_weights_that_stay(self) -> None:
        """What is drawn while training, and what each replicate holds beside its parameters."""

        def model() -> nn.Module:
            made = nn.Sequential(nn.Linear(7, 6), nn.ReLU(), nn.Dropout(0.3), nn.Linear(6, 3))
            made[0].requires_grad_(False)
            return made

        self.check(DPTrainer(model, cross_entropy_loss, FLOAT_DATA))

    def check(self, trainer: DPTrainer) -> None:
        each = copy.copy(trainer)
        each.metric = confidence
        points = each.curves(CONFIGURATIONS, self.CHECKPOINTS, seeds=SEEDS)
        curves: list[list[float]] = [[] for _ in SEEDS]
        reached = next(points)
        with pytest.raises(StopIteration):
            for ended in self.ENDED:
                for place, utility in reached.items():
                    curves[place].append(utility)
                reached = points.send(ended)
        assert [len(curve) for curve in curves] == self.LENGTHS
        for place, curve in enumerate(curves):
            epochs, settings = self.CHECKPOINTS[place], CONFIGURATIONS[place]
            alone = each.curve(epochs, seeds=[SEEDS[place]], **settings)
            wanted = [utility for _, (utility,) in alone]
            assert curve == pytest.approx(wanted[: len(curve)], rel=1e-4)
            assert len({*wanted}) >= min(2, len(wanted)), "the metric shows the steps"

    def test_no_step_is_taken_for_those_that_ended(self, monkeypatch: pytest.MonkeyPatch) -> None:
        rows = noted_steps(monkeypatch)
        points = trainer().curves(CONFIGURATIONS, self.CHECKPOINTS, seeds=SEEDS)
        next(points)
        assert rows == [4] * 10
        points.send({3, 4})
        assert rows[10:] == [2] * 10
        points.send({1})
        assert rows[20:] == [1] * 6, "batches of another size begin"
        points.close()
        assert len(rows) == 26

    def test_wrong_ones_are_refused_before_training(self) -> None:
        for checkpoints, message in (
            ([(1,)], "`configurations`, `checkpoints` and `seeds` .* got 5, 1 and 5"),
            ([(1,)] * 4 + [()], "`checkpoints` is empty"),
            ([(1,)] * 3 + [(2,), (1,)], "from 1 to 1, got 2"),
        ):
            with pytest.raises(ValueError, match=message):
                trainer().curves(CONFIGURATIONS, checkpoints, seeds=SEEDS)


def test_large_models_are_trained_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    each = trainer()
    whole = each.fit_configurations(CONFIGURATIONS, seeds=SEEDS)
    monkeypatch.setattr("botorch_dp.training.trainer._NUMBERS_TOGETHER", 100)
    parts = each.fit_configurations(CONFIGURATIONS, seeds=SEEDS)
    for one, other in zip(whole, parts, strict=True):
        torch.testing.assert_close(weights(one.model), weights(other.model), rtol=1e-4, atol=1e-5)


def test_wrong_configurations_are_refused_before_training() -> None:
    each = trainer()
    for configurations, seeds, message in (
        (CONFIGURATIONS, [1, 2], "got 5 and 2"),
        ([], [], "`seeds` is empty"),
        (CONFIGURATIONS[:1], [-1], "each of `seeds`"),
        ([{**CONFIGURATIONS[0], "batch_size": 0}], [1], "batch_size"),
    ):
        with pytest.raises(ValueError, match=message):
            each.fit_configurations(configurations, seeds=seeds)
    with pytest.raises(ValueError, match="from 1 to 4, got 5"):
        each.fit_configurations(CONFIGURATIONS, seeds=SEEDS, curve=(5,))
