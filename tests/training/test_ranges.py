"""Private ranges: sensitivity, noise, one record, replay, and how close the quantiles are."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from botorch_dp.errors import BudgetExhausted, PrivacyError
from botorch_dp.privacy import NeighboringRelation, PrivacyBudget, PrivacyLedger, PrivacyUnit
from botorch_dp.training import private_ranges
from botorch_dp.training import ranges as module
from botorch_dp.training.ranges import (
    Ranges,
    bin_counts,
    count_sensitivity,
    rank_error,
    sorted_columns,
)
from tests.privacy.audit_cases import CASES

N = 4000
RNG = np.random.default_rng(0)
REPLACE = NeighboringRelation.REPLACE_ONE
COLUMNS = {
    "normal": RNG.normal(size=N),
    "tiny": RNG.normal(size=N) * 1e-6,
    "heavy": np.exp(3 * RNG.normal(size=N) + 5),
    "far from zero": 1e6 + RNG.normal(size=N),
    "years": RNG.integers(1950, 2020, N).astype(float),
    "negative": -np.exp(RNG.normal(size=N) + 4),
    "whole": RNG.poisson(3.0, N).astype(float),
}
X = np.stack(list(COLUMNS.values()), axis=1)


def found(table: Any, **how: Any) -> Ranges:
    return private_ranges(table, **({"mu": 3.0, "pieces": 8, "unsafe_seed": 1} | how)).value


def ranks(column: np.ndarray, values: np.ndarray) -> np.ndarray:
    ordered = np.sort(column)
    return np.searchsorted(ordered, values) / len(ordered)


def test_quantiles_of_all_kinds_of_columns_are_found() -> None:
    for seed in range(3):
        released = found(X, unsafe_seed=seed)
        for column, name in enumerate(COLUMNS):
            off = ranks(X[:, column], released.quartiles[:, :][column]) - [0.25, 0.5, 0.75]
            assert np.abs(off).max() < (0.2 if name == "whole" else 0.03), name
            levels = np.linspace(0.025, 0.975, 9)
            off = ranks(X[:, column], released.knots[column]) - levels
            assert np.abs(off).mean() < (0.1 if name == "whole" else 0.02), name


def test_the_stated_rank_error_is_the_one_that_is_measured() -> None:
    """Within a factor of two, on continuous columns; that is what plans say."""
    columns = [0, 2, 5]
    for mu in (0.05, 0.3, 2.0):
        stated = rank_error(N, X.shape[1], mu, REPLACE)
        seen = []
        for seed in range(4):
            knots = found(X, mu=mu, unsafe_seed=seed).knots
            off = [ranks(X[:, c], knots[c]) - np.linspace(0.025, 0.975, 9) for c in columns]
            seen.append(np.abs(off).mean())
        assert stated / 2 < np.mean(seen) < 2 * stated + 0.006


def test_half_of_one_value_makes_a_narrow_range() -> None:
    sparse = np.where(RNG.random(N) < 0.2, np.exp(RNG.normal(size=N) + 5), 0.0)
    constant = np.full(N, 3.0)
    released = found(np.stack([sparse, constant], axis=1))
    assert 0 < released.upper[0] < 1 and -1 < released.lower[0] < 0
    assert released.lower[1] < released.upper[1]
    np.testing.assert_allclose(released.quartiles[1], 3.0, rtol=1e-2)


def test_missing_values_are_left_out() -> None:
    holes = X.copy()
    holes[RNG.random(X.shape) < 0.4] = np.nan
    whole, partly = found(X), found(holes)
    for column in (0, 2, 3, 4, 5):
        assert (
            np.abs(ranks(X[:, column], partly.quartiles[column]) - [0.25, 0.5, 0.75]).max() < 0.04
        )
    assert np.isfinite(partly.knots).all() and np.isfinite(whole.knots).all()
    nothing = found(np.full((N, 1), np.nan))
    assert np.isfinite([nothing.lower, nothing.upper]).all()


def test_one_replaced_record_moves_the_counts_by_the_stated_sensitivity() -> None:
    edges = np.tile([module._MISSING, -1.0, 0.0, 1.0], (X.shape[1], 1))
    counts = bin_counts(sorted_columns(X), edges)
    assert (counts.sum(axis=1) == N).all()
    bound = count_sensitivity(X.shape[1], REPLACE)
    assert bound == math.sqrt(2 * X.shape[1])
    for value in (np.nan, np.inf, -np.inf, 1e300, -1e300, 0.5, 0.0, -1.0):
        other = X.copy()
        other[7] = value
        moved = bin_counts(sorted_columns(other), edges) - counts
        assert np.linalg.norm(moved) <= bound
        fewer = bin_counts(sorted_columns(np.delete(other, 7, axis=0)), edges)
        gone = bin_counts(sorted_columns(other), edges) - fewer
        one = count_sensitivity(X.shape[1], NeighboringRelation.ADD_OR_REMOVE_ONE)
        assert np.linalg.norm(gone) <= one


def test_all_rounds_compose_to_what_is_charged(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def watched(value: Any, *, sensitivity: float, mu: float, **rest: Any) -> Any:
        seen.append((sensitivity, mu))
        return gaussian(value, sensitivity=sensitivity, mu=mu, **rest)

    gaussian = module.gaussian_mechanism
    monkeypatch.setattr(module, "gaussian_mechanism", watched)
    release = private_ranges(X[:50], epsilon=1.0, delta=1e-6)
    assert {sensitivity for sensitivity, _ in seen} == {math.sqrt(2 * X.shape[1])}
    assert math.hypot(*(mu for _, mu in seen)) <= release.guarantee.mu * (1 + 1e-12)
    assert release.guarantee.epsilon(1e-6) <= 1.0 and release.guarantee.status == "proven"


def test_charged_before_it_reads_and_replayed_under_a_key(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = PrivacyLedger(tmp_path / "ledger.db", budget=PrivacyBudget(1.0, 1e-6))
    first = private_ranges(X, epsilon=0.8, delta=1e-6, ledger=ledger, key="ranges", pieces=4)
    again = private_ranges(X + 1, epsilon=0.8, delta=1e-6, ledger=ledger, key="ranges", pieces=4)
    np.testing.assert_array_equal(first.value.knots, again.value.knots)
    assert len(ledger.entries()) == 1
    with pytest.raises(PrivacyError, match="ranges"):
        private_ranges(X, epsilon=0.8, delta=1e-6, ledger=ledger, key="ranges", pieces=5)

    def read(*_: Any) -> Any:
        raise AssertionError("read")

    monkeypatch.setattr(module, "sorted_columns", read)
    with pytest.raises(BudgetExhausted):
        private_ranges(X, epsilon=0.8, delta=1e-6, ledger=ledger)
    private_ranges(X, epsilon=0.8, delta=1e-6, ledger=ledger, key="ranges", pieces=4)


def test_tensors_and_other_relations() -> None:
    tensor = torch.from_numpy(X).float()
    np.testing.assert_array_equal(found(tensor).lower, found(X.astype(np.float32)).lower)
    added = PrivacyUnit(relation=NeighboringRelation.ADD_OR_REMOVE_ONE)
    assert private_ranges(X[:50], mu=1.0, unit=added).guarantee.relation is added.relation
    row = PrivacyUnit(relation=NeighboringRelation.BOUNDED_ROW)
    with pytest.raises(PrivacyError, match="BOUNDED_ROW"):
        private_ranges(X, mu=1.0, unit=row)


def test_a_round_is_audited_and_its_mistakes_are_caught() -> None:
    (case,) = [case for case in CASES if case.name == "Private ranges"]
    assert case.audit(case.honest, 2000).passes
    for mistake, broken in case.broken.items():
        assert not case.audit(broken.mechanism, broken.draws).passes, mistake
