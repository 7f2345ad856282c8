"""What the engine of single gradients does by itself; its sums are in the suites of all engines."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from botorch_dp.training.engines import contributions
from botorch_dp.training.engines.contributions import Gradients
from botorch_dp.training.engines.per_record import PerRecordEngine
from botorch_dp.training.randomness import SeededRandomness
from tests.training.helpers import FLOAT_DATA, INDICES, made, sums, training_records

DATA = FLOAT_DATA


def linear(outputs: int = 3) -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(7, outputs)


def test_dropout_follows_the_seeds_of_its_replicate() -> None:
    def with_seeds(*seeds: int) -> Tensor:
        torch.manual_seed(0)
        models = [nn.Sequential(nn.Linear(7, 40), nn.Dropout(0.5), nn.Linear(40, 3)) for _ in seeds]
        for model in models:
            model.load_state_dict(models[0].state_dict())
        coins = [SeededRandomness(seed, torch.device("cpu")) for seed in seeds]
        records = training_records(FLOAT_DATA, 3)
        engine = made(PerRecordEngine, models, records, precise=True, forward_seeds=coins)
        before = torch.get_rng_state()
        found = sums(engine, INDICES.expand(len(seeds), -1), 0.3)
        assert torch.equal(torch.get_rng_state(), before)
        return found

    one, other, again = with_seeds(1, 2, 1)
    assert torch.equal(one, again)
    assert not torch.equal(one, other)
    assert torch.equal(other, with_seeds(2)[0])


def test_gradients_are_converted_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """To be published, and as often as it takes: of few records at once, and of few columns."""
    records = training_records(DATA, 3)

    def found() -> Tensor:
        torch.manual_seed(0)
        engine = made(PerRecordEngine, [nn.Linear(7, 60)], records, precise=True)
        return sums(engine, torch.arange(9), 0.1)

    whole = found()
    assert whole.dtype == torch.float64 and float(whole.norm()) > 0.1
    for numbers in (1, 50, 1000):
        monkeypatch.setattr(contributions, "CONVERTED", numbers)
        torch.testing.assert_close(found(), whole, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("kind", [torch.float32, torch.float64])
def test_gradients_may_share_memory(kind: torch.dtype) -> None:
    """What is not finite shows in the norm over all, and is in no sum; autograd may share."""
    rows = torch.ones(3, 300)
    rows[1, 7] = torch.inf
    repeated = torch.tensor([[1.0], [torch.nan], [2.0]]).expand(3, 300)
    several = [Gradients(each, kind) for each in (rows, rows, repeated)]
    found = torch.linalg.vector_norm(torch.stack([each.norms() for each in several]), dim=0)
    assert found.isfinite().tolist() == [True, False, True]
    for each, expected in zip(several, (2.0, 2.0, 3.0), strict=True):
        total = torch.zeros(300, dtype=kind)
        each.add_to(total, found.isfinite().to(kind))
        assert torch.equal(total, torch.full_like(total, expected))
