"""One noise multiplier, one meaning: ours, the command line's, Opacus's and dp-accounting's.

It is the noise's standard deviation over the clipping norm, under every relation. One of the four
accountants counts otherwise: dp-accounting's Rényi accountant divides the noise by the sensitivity
under REPLACE_ONE, twice the clipping norm, so it must be given half of the number.
"""

from __future__ import annotations

import dp_accounting as dpa
import pytest
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant
from opacus.accountants import PRVAccountant, RDPAccountant

from botorch_dp.privacy import NeighboringRelation, dp_sgd_epsilon

REPLACE, ADD = NeighboringRelation.REPLACE_ONE, NeighboringRelation.ADD_OR_REMOVE_ONE
NOISE, BATCH, RECORDS, EPOCHS, DELTA = 1.13, 128, 4096, 10, 1e-5
STEPS, RATE = EPOCHS * (RECORDS // BATCH), BATCH / RECORDS
RUN = {"noise_multiplier": NOISE, "batch_size": BATCH, "num_records": RECORDS, "steps": STEPS}


def ours(relation: NeighboringRelation, **options: str) -> float:
    return dp_sgd_epsilon(**RUN, delta=DELTA, relation=relation, **options)


def opacus(accountant: RDPAccountant | PRVAccountant) -> float:
    for _ in range(STEPS):
        accountant.step(noise_multiplier=NOISE, sample_rate=RATE)
    return float(accountant.get_epsilon(DELTA))


def theirs(accountant: RdpAccountant | PLDAccountant, noise: float) -> float:
    event = dpa.PoissonSampledDpEvent(RATE, dpa.GaussianDpEvent(noise))
    return float(accountant.compose(event, STEPS).get_epsilon(DELTA))


def test_added_records() -> None:
    epsilon, relation = ours(ADD), dpa.NeighboringRelation.ADD_OR_REMOVE_ONE
    assert epsilon == pytest.approx(2.849, abs=1e-3)
    assert opacus(PRVAccountant()) == pytest.approx(epsilon, rel=1e-2)
    assert theirs(PLDAccountant(relation), NOISE) == pytest.approx(epsilon, rel=1e-3)
    renyi = theirs(RdpAccountant(None, relation), NOISE)
    assert epsilon < renyi == pytest.approx(opacus(RDPAccountant()), rel=5e-3)


def test_replaced_records() -> None:
    """Opacus's own accountants do not know this relation."""
    epsilon, relation = ours(REPLACE), dpa.NeighboringRelation.REPLACE_ONE
    assert epsilon > 1.5 * ours(ADD)
    assert theirs(PLDAccountant(relation), NOISE) == pytest.approx(epsilon, rel=1e-3)


def test_batches_of_fixed_size() -> None:
    """The accountant that counts in sensitivities gets half of the number."""
    event = dpa.SampledWithoutReplacementDpEvent(RECORDS, BATCH, dpa.GaussianDpEvent(NOISE / 2))
    accountant = RdpAccountant(None, dpa.NeighboringRelation.REPLACE_ONE)
    renyi = accountant.compose(event, STEPS).get_epsilon(DELTA)
    assert ours(REPLACE) < ours(REPLACE, sampling="without_replacement") < renyi
