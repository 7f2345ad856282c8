from __future__ import annotations

from typing import get_args

import pytest
import torch
from scipy import stats

from botorch_dp.privacy import NeighboringRelation
from botorch_dp.privacy.losses import FixedLotSGDLoss, PoissonSGDLoss
from botorch_dp.training.randomness import SeededRandomness, SystemRandomness
from botorch_dp.training.sampling import SAMPLINGS, FixedLots, PoissonLots, Sampling
from tests.training.helpers import FALSE_ALARM

COINS = [SeededRandomness(0, torch.device("cpu")), SystemRandomness()]
both_kinds = pytest.mark.parametrize("coins", COINS, ids=["seeded", "system"])


def test_every_name_has_its_lots() -> None:
    assert set(SAMPLINGS) == set(get_args(Sampling))
    assert SAMPLINGS["without_replacement"] is FixedLots
    assert SAMPLINGS["poisson"] is PoissonLots


def test_each_kind_goes_with_its_relation_and_sensitivity() -> None:
    """One clipped gradient becomes another (at most 2 apart), or appears (at most 1)."""
    assert FixedLots.relation is NeighboringRelation.REPLACE_ONE
    assert FixedLots.sensitivity == 2.0
    assert PoissonLots.relation is NeighboringRelation.ADD_OR_REMOVE_ONE
    assert PoissonLots.sensitivity == 1.0


def test_only_poisson_sampling_depends_on_a_secret_number_of_records() -> None:
    assert FixedLots.conditions == ()
    (condition,) = PoissonLots.conditions
    assert "sampling probability" in condition and "number of records" in condition


def test_losses_by_hand() -> None:
    assert FixedLots(120, 30).privacy_loss(1.5, 7) == FixedLotSGDLoss(
        noise_multiplier=1.5, lot_size=30, num_records=120, steps=7
    )
    assert PoissonLots(120, 30).privacy_loss(1.5, 7) == PoissonSGDLoss(
        noise_multiplier=1.5, sampling_probability=0.25, steps=7
    )


@both_kinds
@pytest.mark.parametrize(("population", "size"), [(1, 1), (9, 9), (60, 6)])
def test_fixed_lots_have_their_size_and_no_record_twice(
    coins: SystemRandomness, population: int, size: int
) -> None:
    lots = [FixedLots(population, size).draw(coins) for _ in range(50)]
    for lot in lots:
        assert lot.dtype == torch.long
        assert len(lot) == len(lot.unique()) == size
        assert 0 <= int(lot.min()) <= int(lot.max()) < population
    if size < population:
        assert len({tuple(sorted(lot.tolist())) for lot in lots}) > 1


@both_kinds
def test_poisson_lots_hold_each_record_with_probability_m_over_n(coins: SystemRandomness) -> None:
    lots = [PoissonLots(50, 5).draw(coins) for _ in range(2000)]
    sizes = torch.tensor([len(lot) for lot in lots])
    assert stats.binomtest(int(sizes.sum()), 50 * 2000, 0.1).pvalue > FALSE_ALARM
    # As in n independent coins, the size varies by sqrt(n p (1 - p)) = 2.1; n - 1 lots would not.
    spread = float(sizes.double().var()) / (50 * 0.1 * 0.9)
    low, high = stats.chi2.ppf([1e-3 * FALSE_ALARM, 1 - 1e-3 * FALSE_ALARM], 1999) / 1999
    assert low < spread < high
    assert all(len(lot) == len(lot.unique()) for lot in lots)


@both_kinds
def test_poisson_lots_may_be_empty_or_everyone(coins: SystemRandomness) -> None:
    sizes = {len(PoissonLots(2, 1).draw(coins)) for _ in range(200)}
    assert sizes == {0, 1, 2}  # one of them missing: 3 * 0.75^200 < 1e-24
    assert sorted(PoissonLots(4, 4).draw(coins).tolist()) == [0, 1, 2, 3]
