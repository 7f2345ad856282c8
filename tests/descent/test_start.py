"""The private start and the clip norm of public data."""

from __future__ import annotations

import math
from collections import Counter

import pytest
import torch
from torch import Tensor

from botorch_dp.descent import private_start, public_clip_norm
from botorch_dp.errors import BudgetExhausted
from botorch_dp.privacy import PrivacyBudget, PrivacyLedger, PrivacyUnit, audit_epsilon
from botorch_dp.privacy.pld.gaussian import pure_dp_mu
from tests.descent.problems import (
    DIM,
    kernel,
    must_not_be_read,
    records,
    squared_distance,
    unit_box,
)


def start(losses=None, **changes):  # type: ignore[no-untyped-def]
    settings = {"box": unit_box(), "mu": 1.0, "num_points": 16, "bounds": (0.0, 1.0), "seed": 0}
    settings.update(changes)
    return private_start(squared_distance(records()) if losses is None else losses, **settings)


def test_it_chooses_a_good_point_and_says_what_it_promises() -> None:
    release = start(mu=2.0)
    assert release.value.shape == (DIM,)
    assert (release.value - 0.6).norm() < 0.35
    assert release.guarantee.status == "proven"
    # Pure epsilon-DP that counts as mu in a Gaussian budget.
    assert pure_dp_mu(release.guarantee.epsilon()) == pytest.approx(2.0, rel=1e-9)


def test_points_are_public_and_follow_their_seed() -> None:
    seen = []

    def losses(X: Tensor) -> Tensor:
        seen.append(X)
        return squared_distance(records())(X)

    for seed in (1, 1, 2):
        start(losses, seed=seed)
    assert torch.equal(seen[0], seen[1])
    assert not torch.equal(seen[0], seen[2])
    assert seen[0].dtype == torch.double
    assert start(losses, box=unit_box().float()).value.dtype == torch.float32


def test_the_ledger_is_charged_the_same_mu_before_the_records_are_read() -> None:
    with PrivacyLedger(budget=PrivacyBudget(5.0, 1e-5, summed=0.0)) as ledger:
        entries = []

        def losses(X: Tensor) -> Tensor:
            entries.extend(ledger.entries())
            return squared_distance(records())(X)

        release = start(losses, mu=0.4, ledger=ledger)
        assert len(entries) == 1
        assert entries[0].guarantee.losses == release.guarantee.losses
        assert entries[0].mu == pytest.approx(0.4, rel=1e-9)
        with pytest.raises(BudgetExhausted):
            start(lambda X: 1 / 0, mu=50.0, ledger=ledger)


def flipping(high_first: bool) -> int:
    """One record that likes the first or the second of two points as much as it can."""
    scores = torch.tensor([[1e300], [-1e300]] if high_first else [[-1e300], [1e300]]).double()
    seen = []

    def losses(X: Tensor) -> Tensor:
        seen.append(X)
        return scores

    value = start(losses, num_points=2, mu=1.0).value
    return int(torch.equal(value, seen[0][1]))


@pytest.mark.slow
def test_audit() -> None:
    claim = start().guarantee.epsilon()
    report = audit_epsilon(flipping, True, False, samples=3000, confidence=1 - 1e-6)
    assert 0 < report.lower_bound <= claim


@pytest.mark.slow
def test_audit_catches_half_the_sensitivity(monkeypatch: pytest.MonkeyPatch) -> None:
    from botorch_dp.descent import start as module
    from botorch_dp.privacy import exponential_mechanism

    def broken(utilities: Tensor, *, sensitivity: float, **options):  # type: ignore[no-untyped-def]
        return exponential_mechanism(utilities, sensitivity=sensitivity / 3, **options)

    monkeypatch.setattr(module, "exponential_mechanism", broken)
    claim = start().guarantee.epsilon()
    report = audit_epsilon(flipping, True, False, samples=3000, confidence=1 - 1e-6)
    assert report.lower_bound > claim


def test_simulated_noise_repeats() -> None:
    chosen = Counter(tuple(start(unsafe_seed=3).value.tolist()) for _ in range(3))
    assert len(chosen) == 1
    assert start(unsafe_seed=3).guarantee.status == "none"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"bounds": (-1e308, 1e308)}, "`bounds`"),
        ({"box": unit_box().flip(0)}, "`box`"),
        ({"num_records": 3}, "200 columns where 3 records"),
    ],
)
def test_wrong_settings_are_named(changes, message: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ValueError, match=message):
        start(**changes)
    with pytest.raises(ValueError):
        start(must_not_be_read, mu=1e-295)


def test_what_rests_on_the_caller_is_printed() -> None:
    guarantee = start(unit=PrivacyUnit("one patient")).guarantee
    for part in (
        "one patient",
        "a record's losses depend on that record only",
        "the number of records is public",
        "the box and the bounds of a loss were chosen without the records",
    ):
        assert part in str(guarantee)


def test_clip_norm_is_the_median_of_true_gradient_lengths() -> None:
    location = torch.full((DIM,), 0.2, dtype=torch.double)
    lengths = (2 * (location - records())).norm(dim=-1)
    found = public_clip_norm(
        squared_distance(records()), location, kernel=kernel(), design="central"
    )
    assert found == pytest.approx(float(lengths.quantile(0.5)), rel=1e-3)


def test_clip_norm_skips_records_without_a_gradient() -> None:
    def losses(X: Tensor) -> Tensor:
        values = squared_distance(records())(X)
        values[:, 0] = math.nan
        return values

    location = torch.full((DIM,), 0.2, dtype=torch.double)
    assert math.isfinite(public_clip_norm(losses, location, kernel=kernel()))
    with pytest.raises(ValueError, match="record_losses"):
        public_clip_norm(lambda X: X.new_full((len(X), 2), math.nan), location, kernel=kernel())
