from __future__ import annotations

import math
import pickle
import signal
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from botorch_dp.errors import BudgetExhausted, PrivacyError
from botorch_dp.privacy import PrivacyBudget, PrivacyLedger
from botorch_dp.privacy.guarantee import SIMULATED
from botorch_dp.training import (
    DPTrainer,
    TrainTest,
    cross_entropy_loss,
    logistic_loss,
    logistic_regression,
    multilayer_perceptron,
)
from tests.training.helpers import clipped_sum, make_data, per_example_gradients, weights

FLOAT_DATA = make_data(dtype=torch.float32)
NETWORK = partial(multilayer_perceptron, 7, 3, (6,))
SETTINGS = {
    "learning_rate": 0.1,
    "clip_norm": 0.5,
    "noise_multiplier": 0.8,
    "lot_size": 6,
    "epochs": 3,
}


def trainer(**options: object) -> DPTrainer:
    return DPTrainer(NETWORK, cross_entropy_loss, FLOAT_DATA, **options)


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


class TestDeterminism:
    @pytest.mark.parametrize("engine", ["fused", "opacus"])
    @pytest.mark.parametrize("sampling", ["without_replacement", "poisson"])
    def test_the_same_seed_gives_the_same_model(self, engine: str, sampling: str) -> None:
        fits = []
        for noise in (1, 2, 1):
            torch.manual_seed(noise)
            fits.append(trainer(engine=engine, sampling=sampling).fit(**SETTINGS, seed=5))
        assert all(torch.equal(weights(fits[0].model), weights(f.model)) for f in fits)
        assert fits[0].accuracy == fits[1].accuracy
        other = trainer(engine=engine, sampling=sampling).fit(**SETTINGS, seed=6)
        assert not torch.equal(weights(fits[0].model), weights(other.model))

    @pytest.mark.parametrize("engine", ["fused", "opacus"])
    def test_on_one_and_on_two_threads(self, engine: str) -> None:
        """Bit for bit with either number of threads; between them, up to the order of sums."""
        data = make_data(n=400, shape=(40,), dtype=torch.float32)
        factory = partial(multilayer_perceptron, 40, 3, (300,))
        settings = {**SETTINGS, "lot_size": 200, "epochs": 1}
        models: dict[int, list[Tensor]] = {1: [], 2: []}
        try:
            for threads in (1, 2, 1, 2):
                torch.set_num_threads(threads)
                fitted = DPTrainer(factory, cross_entropy_loss, data, engine=engine).fit(
                    **settings, seed=1
                )
                models[threads].append(weights(fitted.model))
        finally:
            torch.set_num_threads(1)
        assert torch.equal(*models[1])
        assert torch.equal(*models[2])
        torch.testing.assert_close(models[1][0], models[2][0], rtol=1e-4, atol=1e-5)

    def test_concurrent_runs_do_not_disturb_each_other(self) -> None:
        fit = partial(trainer().fit, **SETTINGS)
        alone = [weights(fit(seed=seed).model) for seed in range(6)]
        with ThreadPoolExecutor(3) as pool:
            together = list(pool.map(lambda seed: weights(fit(seed=seed).model), range(6)))
        assert all(torch.equal(a, b) for a, b in zip(alone, together, strict=True))

    def test_dropout_is_reproducible(self) -> None:
        def factory() -> nn.Module:
            return nn.Sequential(nn.Linear(7, 6), nn.Dropout(0.5), nn.Linear(6, 3))

        fits = []
        for seed in (1, 1, 2):
            torch.manual_seed(len(fits))
            fitted = DPTrainer(factory, cross_entropy_loss, FLOAT_DATA).fit(**SETTINGS, seed=seed)
            fits.append(weights(fitted.model))
        assert torch.equal(fits[0], fits[1])
        assert not torch.equal(fits[0], fits[2])

    def test_a_trainer_can_be_pickled(self) -> None:
        twin = pickle.loads(pickle.dumps(trainer()))
        one, two = (weights(t.fit(**SETTINGS, seed=3).model) for t in (twin, trainer()))
        assert torch.equal(one, two)

    def test_global_generators_are_left_alone(self) -> None:
        before = torch.get_rng_state()
        trainer().fit(**SETTINGS, seed=0)
        trainer(engine="opacus").fit(**SETTINGS, publish=True)
        assert torch.equal(before, torch.get_rng_state())


class TestReplicates:
    @pytest.mark.parametrize("engine", ["fused", "opacus"])
    @pytest.mark.parametrize("sampling", ["without_replacement", "poisson"])
    @pytest.mark.parametrize("optimizer", ["sgd", "adam"])
    def test_each_replicate_is_the_run_of_its_seed(
        self, engine: str, sampling: str, optimizer: str
    ) -> None:
        each = trainer(engine=engine, sampling=sampling, optimizer=optimizer)
        seeds = [4, 9, 2**70]
        replicates = each.fit_replicates(**SETTINGS, seeds=seeds)
        for seed, replicate in zip(seeds, replicates, strict=True):
            alone = each.fit(**SETTINGS, seed=seed)
            torch.testing.assert_close(
                weights(replicate.model), weights(alone.model), rtol=1e-4, atol=1e-5
            )
            assert replicate.guarantee == alone.guarantee
            assert replicate.steps == 30

    def test_wrong_seeds(self) -> None:
        for seeds, message in (
            ([], "empty"),
            ([1, 1], "differ"),
            ([-1], "seeds"),
            ([0.5], "seeds"),
        ):
            with pytest.raises((TypeError, ValueError), match=message):
                trainer().fit_replicates(**SETTINGS, seeds=seeds)


class TestEdges:
    @pytest.mark.parametrize("engine", ["fused", "opacus"])
    @pytest.mark.parametrize("sampling", ["without_replacement", "poisson"])
    @pytest.mark.parametrize(
        "n, lot_size, epochs", [(1, 1, 1), (1, 1, 3), (9, 9, 2), (9, 1, 1), (9, 5, 1)]
    )
    def test_smallest_sizes(
        self, engine: str, sampling: str, n: int, lot_size: int, epochs: int
    ) -> None:
        data = make_data(n=n, dtype=torch.float32)
        fitted = DPTrainer(NETWORK, cross_entropy_loss, data, engine=engine, sampling=sampling).fit(
            **{**SETTINGS, "lot_size": lot_size, "epochs": epochs}, seed=0
        )
        assert fitted.steps == epochs * (n // lot_size)
        assert weights(fitted.model).isfinite().all()
        assert 0 < fitted.epsilon < math.inf

    @pytest.mark.parametrize("engine", ["fused", "opacus"])
    def test_poisson_lots_that_are_empty_still_get_noise(self, engine: str) -> None:
        data = make_data(n=200, dtype=torch.float32)
        settings = {**SETTINGS, "lot_size": 1, "epochs": 1}
        each = DPTrainer(NETWORK, cross_entropy_loss, data, sampling="poisson", engine=engine)
        fitted = each.fit(**settings, seed=0)
        assert fitted.steps == 200
        assert weights(fitted.model).isfinite().all()

    def test_it_learns(self) -> None:
        X = torch.randn(2000, 5)
        y = (X[:, 0] > 0.5 * X[:, 1]).long()
        data = TrainTest(X[:1500], y[:1500], X[1500:], y[1500:])
        fitted = DPTrainer(partial(logistic_regression, 5), logistic_loss, data).fit(
            learning_rate=1.0, clip_norm=1.0, noise_multiplier=0.6, lot_size=75, epochs=5, seed=0
        )
        assert fitted.accuracy > 0.93
        assert not fitted.model.training

    def test_unusable_records_are_counted_for_the_owner_only(self) -> None:
        X = FLOAT_DATA.train_X.clone()
        X[:2, 0] = math.nan
        each = DPTrainer(NETWORK, cross_entropy_loss, FLOAT_DATA._replace(train_X=X))
        fitted = each.fit(**{**SETTINGS, "lot_size": 60}, seed=0)
        assert fitted.diagnostics.unusable_records == 2
        assert fitted.diagnostics.dropped_gradients == 6
        assert repr(fitted.diagnostics) == "TrainingDiagnostics(not private)"
        assert weights(fitted.model).isfinite().all()


class TestPromises:
    def test_a_seeded_run_promises_nothing_but_names_its_price(self) -> None:
        each = trainer()
        fitted = each.fit(**SETTINGS, seed=0)
        assert fitted.guarantee.status == "none"
        assert SIMULATED in fitted.guarantee.conditions
        assert fitted.guarantee.epsilon(1e-5) == math.inf
        assert fitted.epsilon == each.plan(**SETTINGS).epsilon < math.inf
        assert fitted.guarantee.nominal == each.plan(**SETTINGS).guarantee

    @pytest.mark.parametrize("engine", ["fused", "opacus"])
    @pytest.mark.parametrize("sampling", ["without_replacement", "poisson"])
    @pytest.mark.parametrize("optimizer", ["sgd", "adam"])
    def test_a_published_run(self, engine: str, sampling: str, optimizer: str) -> None:
        each = trainer(engine=engine, sampling=sampling, optimizer=optimizer)
        torch.manual_seed(0)
        one = each.fit(**SETTINGS, publish=True)
        torch.manual_seed(0)
        two = each.fit(**SETTINGS, publish=True)
        assert not torch.equal(weights(one.model), weights(two.model))
        assert one.guarantee == each.plan(**SETTINGS).guarantee
        assert one.guarantee.status == "conditional"
        assert one.guarantee.epsilon(1e-5) == one.epsilon
        assert "double-precision" in str(one.guarantee)
        assert weights(one.model).dtype == torch.float32

    def test_nothing_private_is_shown(self) -> None:
        each = trainer()
        fitted = each.fit(**SETTINGS, seed=0)
        assert "accuracy" not in repr(fitted)
        assert str(fitted.accuracy) not in repr(fitted)
        assert repr(each).startswith("DPTrainer(TrainTest(train_X: (60, 7) float32")

    def test_contradictions_are_refused(self) -> None:
        each = trainer()
        with pytest.raises(PrivacyError, match="`seed`"):
            each.fit(**SETTINGS, seed=0, publish=True)
        with pytest.raises(PrivacyError, match="`noise_multiplier` is 0"):
            each.fit(**{**SETTINGS, "noise_multiplier": 0.0}, publish=True)
        with pytest.raises(ValueError, match="`seed` is required"):
            each.fit(**SETTINGS)
        for seed in (-1, 1.5, "0"):
            with pytest.raises((TypeError, ValueError), match="seed"):
                each.fit(**SETTINGS, seed=seed)
        with pytest.raises(ValueError, match="on_interrupt"):
            each.fit(**SETTINGS, seed=0, on_interrupt="ignore")
        with pytest.raises(ValueError, match="`lot_size` must be from 1 to 60, got 61"):
            each.fit(**{**SETTINGS, "lot_size": 61}, seed=0)

    def test_the_ledger_is_charged_before_training(self) -> None:
        each = trainer()
        plan = each.plan(**SETTINGS)
        ledger = PrivacyLedger(":memory:", PrivacyBudget(1.5 * plan.epsilon, 1e-4))
        each.fit(**SETTINGS, publish=True, ledger=ledger)
        epsilon, delta = ledger.spent()
        assert epsilon == pytest.approx(plan.epsilon)
        assert delta == pytest.approx(1e-5)
        started: list[int] = []

        class Watched(nn.Linear):
            def forward(self, X: Tensor) -> Tensor:
                started.append(len(X))
                return super().forward(X)

        watched = DPTrainer(partial(Watched, 7, 3), cross_entropy_loss, FLOAT_DATA)
        started.clear()
        with pytest.raises(BudgetExhausted):
            watched.fit(**SETTINGS, publish=True, ledger=ledger)
        assert not started
        assert len(ledger.entries()) == 1

    def test_a_simulation_is_charged_like_the_real_run(self) -> None:
        each = trainer()
        ledger = PrivacyLedger(":memory:", PrivacyBudget(100.0, 1e-4))
        each.fit(**SETTINGS, seed=0, ledger=ledger)
        assert ledger.spent()[0] == pytest.approx(each.plan(**SETTINGS).epsilon)


class TestRefusals:
    def test_models(self) -> None:
        def frozen() -> nn.Module:
            return nn.Linear(7, 3).requires_grad_(False)

        cases: list[tuple[object, type[Exception], str]] = [
            (lambda: 3, TypeError, "`model_factory` must return a Module, got int"),
            (frozen, ValueError, "no trainable parameter"),
            (lambda: nn.Linear(7, 3).double(), TypeError, "convert one of them"),
            (lambda: nn.Linear(7, 3).bfloat16(), TypeError, "bfloat16"),
            (lambda: nn.Linear(7, 3, device="meta"), ValueError, "move one"),
        ]
        for factory, error, message in cases:
            with pytest.raises(error, match=message):
                DPTrainer(factory, cross_entropy_loss, FLOAT_DATA)

    def test_names(self) -> None:
        for name in ("optimizer", "sampling", "engine"):
            with pytest.raises(ValueError, match=name):
                trainer(**{name: "other"})

    def test_indices(self) -> None:
        model = NETWORK()
        for indices, message in (
            (torch.tensor([60]), "between 0 and 59"),
            (torch.tensor([-1]), "between"),
            (torch.tensor([[1]]), "shape"),
            (torch.tensor([0.5]), "integers"),
        ):
            with pytest.raises(ValueError, match=message):
                trainer().clipped_gradient_sum(model, indices, 1.0)
        with pytest.raises(ValueError, match="clip_norm"):
            trainer().clipped_gradient_sum(model, torch.tensor([0]), 0.0)


class Interrupting:
    """A loss that sends Ctrl-C while some steps are being taken."""

    def __init__(self, *steps: int) -> None:
        self.steps, self.calls, self.armed = steps, 0, False

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        if self.armed:
            self.calls += 1
            if self.calls in self.steps:
                signal.raise_signal(signal.SIGINT)
        return cross_entropy_loss(outputs, targets)


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
