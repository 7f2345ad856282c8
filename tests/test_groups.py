"""Which records are one person's, and which of them are used."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from botorch_dp.groups import PER_GROUP, Groups, groups_of

IDS = ["b", "a", "b", "c", "b", "a"]


def used(groups: Groups, one: int) -> list[int]:
    return groups.places(np.array([one])).tolist()


@pytest.mark.parametrize(
    "ids",
    [
        IDS,
        pd.Series(IDS, dtype="category"),
        [7.5, -1, 7.5, 0, 7.5, -1],
        np.array([2**60 + 1, 2**60, 2**60 + 1, 5, 2**60 + 1, 2**60]),
        torch.tensor([2, 0, 2, 5, 2, 0]),
    ],
)
def test_groups_by_hand(ids: Any) -> None:
    groups = Groups(ids, 6, per_group=2)
    assert len(groups) == 3 and groups.unused == 1
    assert [used(groups, one) for one in range(3)] == [[0, 2], [1, 5], [3]]
    assert groups.places(np.array([2, 0])).tolist() == [3, 0, 2]
    assert groups.places(np.array([], dtype=int)).tolist() == []
    assert groups.weights.tolist() == [0.5, 0.5, 0.5, 1.0, 0.0, 0.5]
    values = torch.tensor([[1.0, 2.0, 3.0, 4.0, math.nan, 6.0], [0.0] * 6])
    assert groups.means(values).tolist() == [[2.0, 4.0, 4.0], [0.0] * 3]


def test_what_is_used_of_a_group_depends_on_no_other() -> None:
    """Another group may come, go or grow anywhere: all others keep the records they had."""
    rng = np.random.default_rng(0)
    ids = rng.integers(12, size=200)
    names = np.arange(200)

    def kept(ids: np.ndarray, names: np.ndarray) -> dict[Any, list[int]]:
        groups = Groups(ids, len(ids), per_group=5)
        return {ids[p[0]]: names[p].tolist() for p in (used(groups, i) for i in range(len(groups)))}

    whole, rest = kept(ids, names), ids != 3
    without = kept(ids[rest], names[rest])
    assert without == {owner: rows for owner, rows in whole.items() if owner != 3}
    more = rng.integers(100, size=50)
    grown = kept(np.insert(ids, more, 3), np.insert(names, more, -1))
    assert {owner: rows for owner, rows in grown.items() if owner != 3} == without


@pytest.mark.parametrize(
    "ids, match",
    [
        (IDS[:5], "for each of the 6 records, got 5"),
        ([*range(5), math.nan], "missing"),
        (pd.Series([1, 2, 3, 4, 5, None], dtype="Int64"), "missing"),
        (np.zeros((6, 1)), "something else"),
    ],
)
def test_wrong_identifiers(ids: Any, match: str) -> None:
    with pytest.raises((ValueError, TypeError), match=match):
        Groups(ids, 6)


def test_wrong_numbers_of_records() -> None:
    with pytest.raises(ValueError, match="`per_group` must be at least 1"):
        Groups(IDS, 6, per_group=0)
    with pytest.raises(TypeError, match="pass both"):
        groups_of(None, 6, per_group=2)
    assert groups_of(None, 6) is None
    assert Groups([1] * 40, 40).unused == 40 - PER_GROUP == 24


def test_people_and_records_are_those_that_jax_privacy_selects() -> None:
    """Where both apply: in the first batch of all users, with as many places as are used here."""
    selection = pytest.importorskip("jax_privacy.batch_selection")
    ids = np.random.default_rng(2).integers(40, size=300)
    everybody = selection.CyclicPoissonSampling(sampling_prob=1.0, iterations=1)
    strategy = selection.UserSelectionStrategy(everybody, examples_per_user_per_batch=5)
    (batch,) = strategy.batch_iterator(ids, np.random.default_rng(0))
    groups = Groups(ids, 300, per_group=5)
    ours = {tuple(used(groups, one)) for one in range(len(groups))}
    assert {tuple(dict.fromkeys(row.tolist())) for row in batch} == ours
