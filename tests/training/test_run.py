from __future__ import annotations

import math
import pickle
import signal
from pathlib import Path

import pytest
import torch
from torch import Tensor

from botorch_dp.training import DPTrainer, cross_entropy_loss, multilayer_perceptron
from tests.training.helpers import (
    FLOAT_DATA,
    NETWORK,
    SETTINGS,
    Interrupting,
    clipped_sum,
    make_data,
    per_example_gradients,
    trainer,
    weights,
)


class TestOneStep:
    """A step is written out by hand: lot, clip, sum, divide by m, optimizer."""

    @pytest.mark.parametrize("engine", ["fused", "opacus"])
    @pytest.mark.parametrize("optimizer", ["sgd", "adam"])
    def test_full_lot_without_noise(self, engine: str, optimizer: str) -> None:
        data = make_data(n=20)
        torch.manual_seed(0)
        model = multilayer_perceptron(7, 3, (6,), dtype=torch.float64)
        rows = per_example_gradients(model, cross_entropy_loss, data.train_X, data.train_Y)
        gradient = clipped_sum(rows, 0.5) / 20
        if optimizer == "adam":
            # After one step, Adam's corrected moments are the gradient and its square.
            gradient = gradient / (gradient.abs() + 1e-8)
        fitted = DPTrainer(
            lambda: pickle.loads(pickle.dumps(model)),
            cross_entropy_loss,
            data,
            engine=engine,
            optimizer=optimizer,
        ).fit(learning_rate=0.3, clip_norm=0.5, noise_multiplier=0.0, lot_size=20, epochs=1, seed=0)
        assert fitted.steps == 1
        torch.testing.assert_close(
            weights(fitted.model), weights(model) - 0.3 * gradient, rtol=1e-9, atol=1e-12
        )

    def test_no_noise_and_no_clipping_is_plain_gradient_descent(self) -> None:
        data = make_data(n=20)
        torch.manual_seed(0)
        start = multilayer_perceptron(7, 3, (6,), dtype=torch.float64)
        plain = pickle.loads(pickle.dumps(start))
        optimizer = torch.optim.SGD(plain.parameters(), lr=0.2)
        for _ in range(5):
            optimizer.zero_grad()
            cross_entropy_loss(plain(data.train_X), data.train_Y).mean().backward()
            optimizer.step()
        fitted = DPTrainer(lambda: pickle.loads(pickle.dumps(start)), cross_entropy_loss, data).fit(
            learning_rate=0.2, clip_norm=math.inf, noise_multiplier=0, lot_size=20, epochs=5, seed=0
        )
        torch.testing.assert_close(weights(fitted.model), weights(plain), rtol=1e-10, atol=1e-12)
        assert fitted.epsilon == math.inf


class TestInterruption:
    def test_ctrl_c_returns_what_was_paid_for(self) -> None:
        loss = Interrupting(8)
        each = DPTrainer(NETWORK, loss, FLOAT_DATA)
        loss.armed = True
        fitted = each.fit(**SETTINGS, publish=True)
        assert (fitted.steps, fitted.interrupted) == (8, True)
        assert fitted.epsilon < fitted.plan.epsilon
        assert fitted.guarantee.epsilon(1e-5) == fitted.epsilon
        assert "stopped" in fitted.guarantee.conditions[-1]
        assert weights(fitted.model).isfinite().all()

    def test_the_stopped_model_is_that_of_a_shorter_run(self) -> None:
        loss = Interrupting(20)
        each = DPTrainer(NETWORK, loss, FLOAT_DATA)
        loss.armed = True
        stopped = each.fit(**SETTINGS, seed=2)
        loss.armed = False
        shorter = each.fit(**{**SETTINGS, "epochs": 2}, seed=2)
        assert torch.equal(weights(stopped.model), weights(shorter.model))
        assert stopped.epsilon == shorter.epsilon

    def test_tuning_passes_ctrl_c_on(self) -> None:
        loss = Interrupting(3)
        each = DPTrainer(NETWORK, loss, FLOAT_DATA)
        loss.armed = True
        with pytest.raises(KeyboardInterrupt):
            each.fit_replicates(**SETTINGS, seeds=[0, 1])
        loss.calls = 0
        with pytest.raises(KeyboardInterrupt):
            each.fit(**SETTINGS, seed=0, on_interrupt="raise")

    def test_a_second_ctrl_c_does_not_wait(self) -> None:
        class Impatient(Interrupting):
            def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
                if self.armed:
                    signal.raise_signal(signal.SIGINT)
                    signal.raise_signal(signal.SIGINT)
                return cross_entropy_loss(outputs, targets)

        loss = Impatient()
        each = DPTrainer(NETWORK, loss, FLOAT_DATA)
        loss.armed = True
        with pytest.raises(KeyboardInterrupt):
            each.fit(**SETTINGS, seed=0)

    def test_the_callers_handler_returns(self, tmp_path: Path) -> None:
        before = signal.getsignal(signal.SIGINT)
        trainer().fit(**SETTINGS, seed=0)
        assert signal.getsignal(signal.SIGINT) is before


def test_progress_shows_steps_only(capsys: pytest.CaptureFixture[str]) -> None:
    trainer().fit(**SETTINGS, seed=0)
    assert capsys.readouterr().err == ""
    trainer().fit(**SETTINGS, seed=0, progress=True)
    shown = capsys.readouterr().err
    assert "30/30" in shown
    assert "acc" not in shown
