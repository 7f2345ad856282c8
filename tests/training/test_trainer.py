from __future__ import annotations

import copy
import math
import pickle
from concurrent.futures import ThreadPoolExecutor
from functools import partial

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
    logistic_regression,
    multilayer_perceptron,
)
from tests.training.helpers import (
    FLOAT_DATA,
    NETWORK,
    SETTINGS,
    Watched,
    make_data,
    trainer,
    watched,
    weights,
)


class TestDeterminism:
    @pytest.mark.parametrize("engine", ["fused", "per_record"])
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

    @pytest.mark.parametrize("engine", ["fused", "per_record"])
    def test_on_one_and_on_two_threads(self, engine: str) -> None:
        """Bit for bit with either number of threads; between them, up to the order of sums."""
        data = make_data(n=400, shape=(40,), dtype=torch.float32)
        factory = partial(multilayer_perceptron, 40, 3, (300,))
        settings = {**SETTINGS, "batch_size": 200, "epochs": 1}
        tried = DPTrainer(factory, cross_entropy_loss, data, engine=engine)
        models: dict[int, list[Tensor]] = {1: [], 2: []}
        try:
            for threads in (1, 2, 1, 2):
                torch.set_num_threads(threads)
                models[threads].append(weights(tried.fit(**settings, seed=1).model))
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

    def test_a_trainer_can_be_pickled(self) -> None:
        copied = pickle.loads(pickle.dumps(trainer()))
        one, two = (weights(t.fit(**SETTINGS, seed=3).model) for t in (copied, trainer()))
        assert torch.equal(one, two)

    def test_global_generators_are_left_alone(self) -> None:
        before = torch.get_rng_state()
        trainer().fit(**SETTINGS, seed=0)
        trainer(engine="per_record").fit(**SETTINGS, publish=True)
        assert torch.equal(before, torch.get_rng_state())


class TestReplicates:
    @pytest.mark.parametrize("engine", ["fused", "per_record"])
    @pytest.mark.parametrize("sampling", ["without_replacement", "poisson"])
    def test_each_replicate_is_the_run_of_its_seed(self, engine: str, sampling: str) -> None:
        each = trainer(engine=engine, sampling=sampling)
        seeds = [4, 9, 2**70]
        replicates = each.replicates(seeds, **SETTINGS)
        for seed, replicate in zip(seeds, replicates, strict=True):
            alone = each.fit(**SETTINGS, seed=seed)
            torch.testing.assert_close(
                weights(replicate.model), weights(alone.model), rtol=1e-4, atol=1e-5
            )
            assert replicate.guarantee == alone.guarantee
            assert replicate.steps == 30

    def test_wrong_seeds(self) -> None:
        for seeds in ([], [1, 1], [-1], [0.5]):
            with pytest.raises((TypeError, ValueError), match="seed"):
                trainer().replicates(seeds, **SETTINGS)


class TestEdges:
    @pytest.mark.one_in(4)
    @pytest.mark.parametrize("engine", ["fused", "per_record"])
    @pytest.mark.parametrize("sampling", ["without_replacement", "poisson"])
    @pytest.mark.parametrize(
        "n, batch_size, epochs", [(1, 1, 1), (1, 1, 3), (9, 9, 2), (9, 1, 1), (9, 5, 1)]
    )
    def test_smallest_sizes(
        self, engine: str, sampling: str, n: int, batch_size: int, epochs: int
    ) -> None:
        data = make_data(n=n, dtype=torch.float32)
        fitted = DPTrainer(NETWORK, cross_entropy_loss, data, engine=engine, sampling=sampling).fit(
            **{**SETTINGS, "batch_size": batch_size, "epochs": epochs}, seed=0
        )
        assert fitted.steps == epochs * (n // batch_size)
        assert weights(fitted.model).isfinite().all()
        assert 0 < fitted.epsilon < math.inf


class TestPromises:
    def test_a_seeded_run_promises_nothing_but_names_its_price(self) -> None:
        each = trainer()
        fitted = each.fit(**SETTINGS, seed=0)
        assert fitted.guarantee.status == "none"
        assert fitted.guarantee.void == SIMULATED
        assert fitted.guarantee.epsilon(1e-5) == math.inf
        assert fitted.epsilon == each.plan(**SETTINGS).epsilon < math.inf
        assert fitted.guarantee.nominal == each.plan(**SETTINGS).guarantee

    @pytest.mark.parametrize("engine", ["fused", "per_record"])
    def test_a_published_run(self, engine: str) -> None:
        each = trainer(engine=engine)
        torch.manual_seed(0)
        one = each.fit(**SETTINGS, publish=True)
        torch.manual_seed(0)
        two = each.fit(**SETTINGS, publish=True)
        assert not torch.equal(weights(one.model), weights(two.model))
        assert one.guarantee == each.plan(**SETTINGS).guarantee
        assert one.guarantee.status == "conditional"
        assert one.guarantee.epsilon(1e-5) == one.epsilon
        assert "floating point" in str(one.guarantee)
        assert weights(one.model).dtype == torch.float32

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

    def test_nothing_is_charged_for_a_simulation(self) -> None:
        ledger = PrivacyLedger(":memory:", PrivacyBudget(100.0, 1e-4))
        with pytest.raises(PrivacyError, match=r"`ledger`.*simulated"):
            trainer().fit(**SETTINGS, seed=0, ledger=ledger)
        assert ledger.entries() == []

    @pytest.mark.parametrize("engine", ["fused", "per_record"])
    def test_no_record_is_read_before_the_charge(self, engine: str) -> None:
        each = DPTrainer(NETWORK, cross_entropy_loss, watched(FLOAT_DATA), engine=engine)
        epsilon = each.plan(**SETTINGS).epsilon
        poor = PrivacyLedger(":memory:", PrivacyBudget(0.9 * epsilon, 1e-4))
        with pytest.raises(BudgetExhausted):
            each.fit(**SETTINGS, publish=True, ledger=poor)
        assert Watched.reads == []
        rich = PrivacyLedger(":memory:", PrivacyBudget(1.1 * epsilon, 1e-4))
        each.fit(**SETTINGS, publish=True, ledger=rich)
        assert Watched.reads


class TestRefusals:
    def test_models(self) -> None:
        def frozen() -> nn.Module:
            return nn.Linear(7, 3).requires_grad_(False)

        cases: list[tuple[object, type[Exception], str]] = [
            (lambda: 3, TypeError, "`model_factory` must return a Module, got int"),
            (frozen, ValueError, "no trainable parameter"),
            (lambda: nn.Linear(7, 3).double(), TypeError, "convert one of them"),
            (lambda: nn.Linear(7, 3, device="meta"), ValueError, "move one"),
        ]
        for factory, error, message in cases:
            with pytest.raises(error, match=message):
                DPTrainer(factory, cross_entropy_loss, FLOAT_DATA)


def test_unusable_records_are_counted_for_the_owner_only() -> None:
    X = FLOAT_DATA.train_X.clone()
    X[:2, 0] = math.nan
    each = DPTrainer(NETWORK, cross_entropy_loss, FLOAT_DATA._replace(train_X=X))
    fitted = each.fit(**{**SETTINGS, "batch_size": 60}, seed=0)
    assert fitted.diagnostics.unusable_records == 2
    assert fitted.diagnostics.dropped_gradients == 6
    assert repr(fitted.diagnostics) == "TrainingDiagnostics(sensitive)"
    assert weights(fitted.model).isfinite().all()


def test_a_model_that_was_changed_since_gets_no_receipt() -> None:
    published = DPTrainer(NETWORK, cross_entropy_loss, FLOAT_DATA).fit(**SETTINGS, publish=True)
    receipt = published.receipt()
    assert receipt.verify(artifact=published.model).passes
    copied = copy.deepcopy(published.model)
    copied[0].weight.data[:1] = FLOAT_DATA.train_X[:1]
    with pytest.raises(ValueError, match="for another artifact"):
        receipt.verify(artifact=copied)
    published.model[0].weight.data[:1] = FLOAT_DATA.train_X[:1]
    with pytest.raises(PrivacyError, match=r"model was changed since.*Make the receipt before"):
        published.receipt()


def test_a_factory_of_one_model_starts_each_training_at_its_weights() -> None:
    """Otherwise what is published would begin where a training without any noise has ended."""
    model = NETWORK()
    start = weights(model)
    shared = DPTrainer(lambda: model, cross_entropy_loss, FLOAT_DATA)
    shared.fit(**{**SETTINGS, "noise_multiplier": 0.0}, seed=0)
    shared.setup.untrained({name: torch.zeros_like(p) for name, p in model.state_dict().items()})
    one, other = shared.replicates([0, 1], **SETTINGS)
    assert not torch.equal(weights(one.model), weights(other.model))
    published = shared.fit(**{**SETTINGS, "learning_rate": 1e-9}, publish=True)
    assert torch.equal(weights(model), start) and model.training
    torch.testing.assert_close(weights(published.model), start, rtol=0, atol=1e-6)


class TestMetrics:
    """A metric that does not fit is refused at once, and one that fails later costs no model."""

    @staticmethod
    def columns(outputs: int) -> TrainTest:
        targets = (FLOAT_DATA.train_X[:, :outputs] > 0).float()
        tested = (FLOAT_DATA.test_X[:, :outputs] > 0).float()
        return TrainTest(FLOAT_DATA.train_X, targets, FLOAT_DATA.test_X, tested)

    def test_targets_in_a_column(self) -> None:
        """The default metric takes them, also for a model whose ledger was charged."""
        loss, factory = nn.BCEWithLogitsLoss(), partial(logistic_regression, 7)
        each = DPTrainer(factory, loss, self.columns(1))
        ledger = PrivacyLedger(":memory:", PrivacyBudget(100.0, 1e-4))
        fitted = each.fit(**SETTINGS, publish=True, ledger=ledger)
        assert fitted.accuracy is not None and 0 <= fitted.accuracy <= 1

    def test_several_labels_need_a_metric_of_their_own(self) -> None:
        def right(outputs: Tensor, targets: Tensor) -> float:
            return float(((outputs > 0) == (targets > 0)).double().mean())

        loss, factory, data = nn.BCEWithLogitsLoss(), partial(nn.Linear, 7, 4), self.columns(4)
        with pytest.raises(ValueError, match=r"`metric` cannot take outputs of shape \(31, 4\)"):
            DPTrainer(factory, loss, data)
        assert DPTrainer(factory, loss, data, metric=right).fit(**SETTINGS, seed=0).accuracy > 0.3

    def test_an_error_after_training_leaves_the_published_model(self) -> None:
        """Also on the way; what was trained under a seed can be trained again, and raises."""

        def failing(outputs: Tensor, targets: Tensor) -> float:
            if not torch.equal(outputs[:6], outputs[6:12]):  # unlike what it is tried on
                raise ZeroDivisionError
            return 0.0

        each = DPTrainer(NETWORK, cross_entropy_loss, FLOAT_DATA, metric=failing)
        ledger = PrivacyLedger(":memory:", PrivacyBudget(100.0, 1e-4))
        with pytest.warns(UserWarning, match="test records raised ZeroDivisionError"):
            fitted = each.fit(**SETTINGS, publish=True, ledger=ledger, curve=(1,))
        assert (fitted.accuracy, fitted.curve) == (None, (None,))
        assert fitted.guarantee.status == "conditional" and len(ledger.entries()) == 1
        assert weights(fitted.model).isfinite().all()
        with pytest.raises(ZeroDivisionError):
            each.fit(**SETTINGS, seed=0)

    def test_no_record_is_needed_to_try_one(self) -> None:
        DPTrainer(NETWORK, cross_entropy_loss, watched(FLOAT_DATA))
        assert Watched.reads == []


def test_other_data_train_as_a_trainer_of_their_own_would() -> None:
    other = make_data(dtype=torch.float32, seed=1)
    first, own = trainer(), DPTrainer(NETWORK, cross_entropy_loss, other)
    before = weights(first.fit(**SETTINGS, seed=3).model)
    assert torch.equal(
        weights(first.on(other).fit(**SETTINGS, seed=3).model),
        weights(own.fit(**SETTINGS, seed=3).model),
    )
    assert torch.equal(weights(first.fit(**SETTINGS, seed=3).model), before)
    for data in (make_data(shape=(8,), dtype=torch.float32), make_data()):
        with pytest.raises(ValueError, match="`data` must hold"):
            first.on(data)
