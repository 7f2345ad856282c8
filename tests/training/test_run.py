from __future__ import annotations

import math
import pickle
import signal
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from botorch_dp.privacy import PrivacyBudget, PrivacyLedger
from botorch_dp.privacy.runs import Run
from botorch_dp.training import DPTrainer, TrainingPlan, cross_entropy_loss, multilayer_perceptron
from botorch_dp.training.engines.base import Batches, ClippedSums, Engine
from botorch_dp.training.run import TrainingRun
from botorch_dp.training.step_rules import StepRule
from tests.training.helpers import (
    BATCHES,
    FLOAT_DATA,
    NETWORK,
    SETTINGS,
    Interrupting,
    make_data,
    trainer,
    weights,
    zero_model,
)


class WrittenEngine(Engine):
    """Its sums for two replicates of two parameters are always the same; it notes its batches."""

    def __init__(self) -> None:
        self.seen: list[tuple[list[list[int]], list[list[bool]] | None, float]] = []

    def _prepare(self, models: Any) -> None:
        raise NotImplementedError

    def clipped_sums(self, batches: Batches, clip_norm: float) -> ClippedSums:
        places, filled = batches
        self.seen.append((places.tolist(), None if filled is None else filled.tolist(), clip_norm))
        sums = torch.tensor([[2.0, -4.0], [6.0, 0.0]], dtype=torch.float64)
        return ClippedSums(sums, torch.tensor(1))


class WrittenCoins:
    """Draws the given batches, and noise that is always 10; it notes what it was asked for."""

    def __init__(self, batches: Sequence[Sequence[int]]) -> None:
        self.batches, self.drawn = batches, 0
        self.asked: list[tuple[float, ...]] = []
        self.noise: list[tuple[float, float]] = []

    def torch_seed(self) -> int:
        return 0

    def choose(self, population: int, size: int) -> Tensor:
        return self._draw(population, size)

    def choose_each(self, population: int, probability: float, times: int) -> list[Tensor]:
        return [self._draw(population, probability) for _ in range(times)]

    def _draw(self, *asked: float) -> Tensor:
        self.asked.append(asked)
        batch = self.batches[self.drawn % len(self.batches)]
        self.drawn += 1
        return torch.tensor(batch, dtype=torch.long)

    def perturb_(self, total: Tensor, *, std: float, sensitivity: float) -> None:
        self.noise.append((std, sensitivity))
        total += 10

    def state(self) -> dict[str, Any]:
        return {"drawn": self.drawn}

    def restore(self, state: dict[str, Any]) -> None:
        self.drawn = state["drawn"]


def written(
    *batches: Sequence[Sequence[int]], **plan: Any
) -> tuple[TrainingRun, WrittenEngine, list[WrittenCoins]]:
    """A run of 3 steps (unless told otherwise) over 12 records."""
    settings = {
        "num_records": 12,
        "learning_rate": 0.5,
        "clip_norm": 0.25,
        "noise_multiplier": 3.0,
        "batch_size": 4,
        "epochs": 1,
        **plan,
    }
    engine, coins = WrittenEngine(), [WrittenCoins(each) for each in batches]
    chosen = TrainingPlan(**settings)
    models = [zero_model(2)() for _ in batches]
    run = TrainingRun(chosen, models, coins, lambda _: engine, partial(StepRule, plan=chosen))
    return run, engine, coins


def take_steps(run: TrainingRun) -> None:
    run.advance(run.plan.steps, stop_on_interrupt=True)


def in_file(path: Path) -> Run:
    return Run(path, what="a test", settings={})


SAME_BATCH = [[1, 2, 3, 4]]
#: After one step of ``0.5 / 4`` along the sums plus noise.
ONE_STEP = torch.tensor([[-1.5, -0.75], [-2.0, -1.25]], dtype=torch.float64)


@pytest.mark.parametrize(
    "batches, sensitivity, asked",
    [("fixed", 0.5, 4), ("poisson", 0.5, 4 / 12), ("poisson, one more", 0.25, 4 / 12)],
)
def test_steps_by_hand(batches: str, sensitivity: float, asked: float) -> None:
    """``- 0.5 (sum + 10) / 4`` three times, with noise of 3C, and S = 2C or C."""
    run, engine, coins = written(SAME_BATCH, SAME_BATCH, **BATCHES[batches])
    take_steps(run)
    assert torch.equal(run.result, 3 * ONE_STEP)
    assert engine.seen == [([[1, 2, 3, 4]] * 2, None, 0.25)] * 3
    for each in coins:
        assert each.noise == [(0.75, sensitivity)] * 3
        assert each.asked == [(12, asked)] * 3
    assert (run.step, run.drawn, run.dropped) == (3, 24, 21)


def test_no_noise_is_drawn_at_multiplier_zero() -> None:
    run, _, coins = written(SAME_BATCH, SAME_BATCH, noise_multiplier=0.0)
    take_steps(run)
    assert all(each.noise == [] for each in coins)
    assert run.result.tolist() == [[-0.75, 1.5], [-2.25, 0.0]]


def test_short_batches_are_filled_up_and_marked_and_all_are_divided_by_m() -> None:
    run, engine, _ = written([[5, 7], [3, 1], []], [[9], [2, 8], []], sampling="poisson")
    take_steps(run)
    batches, filled = [[5, 7], [9, 0]], [[True, True], [True, False]]
    assert engine.seen == [
        (batches, filled, 0.25),
        ([[3, 1], [2, 8]], None, 0.25),
        ([[], []], None, 0.25),
    ]
    assert torch.equal(run.result, 3 * ONE_STEP)  # an empty batch gets its noise like others
    assert run.drawn == 7


def test_batches_drawn_ahead_are_those_of_the_steps_and_no_more() -> None:
    first = [[i % 12] for i in range(48)]
    second = [[(5 * i + 1) % 12] for i in range(48)]
    run, engine, coins = written(first, second, batch_size=1, epochs=4)
    take_steps(run)
    assert [batches for batches, _, _ in engine.seen] == [
        [a, b] for a, b in zip(first, second, strict=True)
    ]
    assert [each.drawn for each in coins] == [48, 48]


@pytest.mark.parametrize("seconds, saved", [(0.0, [1, 2, 3, 3]), (60.0, [3])])
def test_checkpoints_are_as_frequent_as_asked_and_the_last_is_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: float, saved: list[int]
) -> None:
    run, _, _ = written(SAME_BATCH, SAME_BATCH)
    steps: list[int] = []
    with in_file(tmp_path / "a.run") as file:
        run.resume(file, seconds)
        monkeypatch.setattr(file, "put", lambda training: steps.append(training["step"]))
        take_steps(run)
    assert steps == saved


def test_no_noise_and_no_clipping_is_plain_gradient_descent() -> None:
    data = make_data(n=20)
    torch.manual_seed(0)
    start = multilayer_perceptron(7, 3, (6,), dtype=torch.float64)
    plain = pickle.loads(pickle.dumps(start))
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.2)
    for _ in range(5):
        optimizer.zero_grad()
        cross_entropy_loss(plain(data.train_X), data.train_Y).mean().backward()
        optimizer.step()
    settings = {**SETTINGS, "learning_rate": 0.2, "clip_norm": math.inf, "noise_multiplier": 0}
    fitted = DPTrainer(lambda: pickle.loads(pickle.dumps(start)), cross_entropy_loss, data).fit(
        **{**settings, "batch_size": 20, "epochs": 5}, seed=0
    )
    torch.testing.assert_close(weights(fitted.model), weights(plain), rtol=1e-10, atol=1e-12)
    assert fitted.epsilon == math.inf


class TestInterruption:
    def test_ctrl_c_without_a_checkpoint_returns_the_model_at_the_price_of_all_steps(self) -> None:
        ledger = PrivacyLedger(budget=PrivacyBudget(100.0, 1e-3))
        loss = Interrupting(8)
        each = DPTrainer(NETWORK, loss, FLOAT_DATA)
        loss.armed = True
        with pytest.warns(UserWarning, match=r"for good after 8 of 30 steps.* all 30 steps\."):
            stopped = each.fit(**SETTINGS, publish=True, ledger=ledger, curve=(1, 3))
        assert stopped.steps == 8
        (entry,) = ledger.entries()
        assert stopped.guarantee == stopped.plan.guarantee == entry.guarantee
        assert stopped.epsilon == stopped.plan.epsilon
        assert "after 8 of 30 steps" in str(stopped) and "cost is that of all 30" in str(stopped)
        assert stopped.receipt().document["training"]["steps"] == 30
        assert weights(stopped.model).isfinite().all()

    def test_the_stopped_model_is_that_of_a_shorter_run(self) -> None:
        loss = Interrupting(20)
        each = DPTrainer(NETWORK, loss, FLOAT_DATA)
        loss.armed = True
        with pytest.warns(UserWarning, match="stopped after 20 of 30 steps"):
            stopped = each.fit(**SETTINGS, seed=2)
        loss.armed = False
        shorter = each.fit(**{**SETTINGS, "epochs": 2}, seed=2)
        assert torch.equal(weights(stopped.model), weights(shorter.model))
        assert stopped.epsilon == stopped.plan.epsilon > shorter.epsilon

    def test_tuning_passes_ctrl_c_on(self) -> None:
        loss = Interrupting(3)
        each = DPTrainer(NETWORK, loss, FLOAT_DATA)
        loss.armed = True
        with pytest.raises(KeyboardInterrupt):
            each.replicates([0, 1], **SETTINGS)
        loss.calls = 0
        with pytest.raises(KeyboardInterrupt, match=r"steps were taken\.$"):
            each.fit(**SETTINGS, seed=0, on_interrupt="raise")

    def test_a_second_ctrl_c_does_not_wait(self) -> None:
        class Impatient(Interrupting):
            def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
                if self.armed:
                    signal.raise_signal(signal.SIGINT)
                    signal.raise_signal(signal.SIGINT)
                return 1.0 * cross_entropy_loss(outputs, targets)

        loss = Impatient()
        each = DPTrainer(NETWORK, loss, FLOAT_DATA)
        loss.armed = True
        with pytest.raises(KeyboardInterrupt):
            each.fit(**SETTINGS, seed=0)

    def test_the_callers_handler_returns(self, tmp_path: Path) -> None:
        before = signal.getsignal(signal.SIGINT)
        trainer().fit(**SETTINGS, seed=0)
        assert signal.getsignal(signal.SIGINT) is before
