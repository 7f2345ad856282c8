"""Bolt-on logistic regression: sensitivity, exact epsilon, batched equals one by one."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from botorch_dp.errors import BudgetExhausted, PrivacyError
from botorch_dp.privacy import NeighboringRelation, PrivacyBudget, PrivacyLedger, gaussian_epsilon
from botorch_dp.training import OutputPerturbedLogisticRegression, TrainTest
from tests.privacy.charging import balance_of
from tests.training.helpers import Watched, watched


def data(n: int = 200, d: int = 4, seed: int = 0) -> TrainTest:
    generator = torch.Generator().manual_seed(seed)
    X = torch.randn(n, d, generator=generator, dtype=torch.double)
    y = (X @ torch.linspace(-1, 1, d, dtype=torch.double) > 0).long()
    return TrainTest(X, y, X, y)


def weights(
    trainer: OutputPerturbedLogisticRegression, gamma: float, seed: int = 0
) -> torch.Tensor:
    """Before noise."""
    return trainer._descend(gamma, [seed], dtype=torch.double)[0]


def plain_descent(trainer, gamma: float, seed: int, epochs: int) -> np.ndarray:
    """Projected SGD written out, projection included."""
    z = -trainer._signed.numpy()
    w = np.zeros(z.shape[1])
    order = np.random.default_rng([seed, 0]).permutation(len(z))
    t = 0
    for _ in range(epochs):
        for i in order:
            t += 1
            step = min(1 / (1 + gamma), 1 / (gamma * t))
            w = w - step * (gamma * w - z[i] / (1 + np.exp(z[i] @ w)))
            w = w / max(1.0, np.linalg.norm(w) * gamma)
    return w


@pytest.mark.parametrize("gamma", [0.01, 1.0, 20.0])
def test_equals_projected_sgd_written_out(gamma: float) -> None:
    trainer = OutputPerturbedLogisticRegression(data(n=60), epochs=3)
    np.testing.assert_allclose(
        weights(trainer, gamma, 5).numpy(), plain_descent(trainer, gamma, 5, 3), atol=1e-12
    )


def test_weights_that_were_changed_since_get_no_receipt() -> None:
    trained = OutputPerturbedLogisticRegression(data(n=60)).fit(
        regularization=0.1, noise_std=0.5, publish=True
    )
    assert trained.receipt().verify(artifact=trained.value).passes
    trained.value.weight.data[0, 0] += 1.0
    with pytest.raises(PrivacyError, match="model was changed since"):
        trained.receipt()


@pytest.mark.parametrize("gamma", [0.05, 0.5, 5.0])
@pytest.mark.parametrize("epochs", [1, 5])
def test_sensitivity_under_any_replacement(gamma: float, epochs: int) -> None:
    """Also for records that are huge, not finite, or chosen to push against the rest."""
    records = data(n=40)
    trainer = OutputPerturbedLogisticRegression(records, epochs=epochs)
    base = weights(trainer, gamma)
    bound = trainer.sensitivity(regularization=gamma)
    first = int(np.random.default_rng([0, 0]).permutation(40)[0])
    last = int(np.random.default_rng([0, 0]).permutation(40)[-1])
    largest = 0.0
    for index in {0, first, last}:
        for row in ([1e300] * 4, [math.nan] * 4, [-1.0, -1, 1, 1], (-base * 100).tolist()):
            for label in (0, 1):
                X, y = records.train_X.clone(), records.train_Y.clone()
                X[index], y[index] = torch.tensor(row, dtype=torch.double), label
                changed = OutputPerturbedLogisticRegression(TrainTest(X, y, X, y), epochs=epochs)
                moved = float((weights(changed, gamma) - base).norm())
                largest = max(largest, moved)
                assert moved <= bound
    # The bound is not idle: an eighth of it is reached.
    assert largest > bound / 8


def test_epsilon_is_the_exact_gaussian_one() -> None:
    trainer = OutputPerturbedLogisticRegression(data(), delta=1e-6)
    mu = 4 / (0.1 * 200) / 0.5
    assert trainer.sensitivity(regularization=0.1) == pytest.approx(4 / (0.1 * 200))
    found = trainer.guarantee(regularization=0.1, noise_std=0.5).epsilon(trainer.delta)
    assert found == pytest.approx(gaussian_epsilon(mu, 1e-6), rel=1e-9)
    guarantee = trainer.guarantee(regularization=0.1, noise_std=0.5)
    assert guarantee.relation is NeighboringRelation.REPLACE_ONE
    assert guarantee.status == "proven"


def test_many_models_at_once_equal_one_by_one() -> None:
    trainer = OutputPerturbedLogisticRegression(data(), epochs=2)
    seeds, settings = [4, 5, 6], {"regularization": 0.1, "noise_std": 0.3}
    together = trainer.replicates(seeds, **settings)
    for seed, model in zip(seeds, together, strict=True):
        alone = trainer.fit(**settings, seed=seed)
        torch.testing.assert_close(model.value.weight, alone.value.weight, rtol=1e-12, atol=0)
        assert model.guarantee.status == "none"
        assert model.guarantee.nominal.epsilon(1e-6) == trainer.guarantee(**settings).epsilon(1e-6)
    assert not torch.equal(together[0].value.weight, together[2].value.weight)


def test_noise_has_the_stated_spread() -> None:
    trainer = OutputPerturbedLogisticRegression(data(n=5, d=3), epochs=1)
    draws = trainer.replicates(range(2000), regularization=1.0, noise_std=7.0)
    W = torch.cat([model.value.weight for model in draws])
    # Chi-square with about 6000 degrees of freedom, at a false-alarm rate of 1e-6.
    assert W.var().item() == pytest.approx(49.0, rel=5 * math.sqrt(2 / 6000))


def test_published_models_have_the_operating_systems_noise() -> None:
    trainer = OutputPerturbedLogisticRegression(data(n=30), epochs=1)
    first = trainer.fit(regularization=1.0, noise_std=0.5, seed=1, publish=True)
    second = trainer.fit(regularization=1.0, noise_std=0.5, seed=1, publish=True)
    assert first.guarantee.status == "proven"
    assert not torch.equal(first.value.weight, second.value.weight)
    assert first.value.weight.dtype == torch.double
    assert "0." not in repr(first).replace(str(first.guarantee), "")


def test_the_ledger_is_charged_before_a_record_is_read() -> None:
    trainer = OutputPerturbedLogisticRegression(watched(data(n=30)), epochs=1)
    settings = {"regularization": 1.0, "noise_std": 0.5}
    mu = trainer.guarantee(**settings).mu
    limit = gaussian_epsilon(mu, 1e-6)
    poor = PrivacyLedger(":memory:", PrivacyBudget(limit * (1 - 1e-6), 1e-6))
    with pytest.raises(BudgetExhausted):
        trainer.fit(**settings, publish=True, ledger=poor)
    assert Watched.reads == []
    ledger = PrivacyLedger(":memory:", PrivacyBudget(limit * (1 + 1e-6), 1e-6))
    first = trainer.fit(**settings, publish=True, ledger=ledger, key="the model")
    assert Watched.reads
    assert balance_of(ledger).mu_spent == pytest.approx(mu)
    again = trainer.fit(**settings, publish=True, ledger=ledger, key="the model")
    assert torch.equal(first.value.weight, again.value.weight)
    assert len(ledger.entries()) == 1


def test_wrong_data() -> None:
    with pytest.raises(ValueError, match="n x d"):
        OutputPerturbedLogisticRegression(TrainTest(*[torch.zeros(3)] * 4))
    with pytest.raises(ValueError, match="`epochs`"):
        OutputPerturbedLogisticRegression(data(), epochs=0)
    with pytest.raises(ValueError, match="one seed"):
        OutputPerturbedLogisticRegression(data()).replicates([], regularization=1.0, noise_std=1.0)
