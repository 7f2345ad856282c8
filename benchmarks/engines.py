"""Which engine is right on which model: clipped sums against gradients of single records.

    OMP_NUM_THREADS=1 python -m benchmarks.engines

* Thirty models of many kinds: how far an engine's clipped sum is from the one that autograd finds
  record by record, relative to its norm, or why the engine refuses the model. Everything below 2e-6
  is rounding in single precision.
* Models that mix the records of a batch: how far the sum moves, in clipping norms, when one record
  is exchanged (at most 2 where records are apart), and what the checks before training say.

The models are those of the tests (``tests/training/models.py``).
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.common import BenchmarkParser, save_results
from botorch_dp.training import DPTrainer, TrainTest, cross_entropy_loss
from botorch_dp.training.records import TrainingRecords
from tests.training.helpers import (
    KINDS,
    clipped_sum,
    linear_loss,
    made,
    per_example_gradients,
    sums,
)
from tests.training.models import CLASSES, HOSTILE, MODELS, Case, Hostile, largest_move

FILE = "engines"


def refusal(factory: Any, loss: Any, X: Tensor, Y: Tensor, engine: str) -> str | None:
    """Why a trainer with this engine refuses a model, or None."""
    torch.manual_seed(0)
    try:
        data = TrainTest(X, Y, X, Y)
        DPTrainer(factory, loss, data, engine=engine, metric=lambda outputs, targets: 0.0)
    except ValueError as error:
        return str(error).split("Use engine=")[0].strip()
    return None


def of_model(case: Case, engine: str) -> float | str:
    """The relative distance of an engine's sum from the single records', or the refusal."""
    batch = torch.arange(len(case.X))
    refused = refusal(case.factory, cross_entropy_loss, case.X, batch % CLASSES, engine)
    if refused is not None:
        return refused
    torch.manual_seed(1)
    model = case.factory().train()
    rows = per_example_gradients(model, cross_entropy_loss, case.X, batch % CLASSES)
    middle = float(torch.stack([row.norm() for row in rows]).median())
    expected = clipped_sum(rows, middle)
    records = TrainingRecords(case.X, batch % CLASSES, CLASSES)
    found = sums(made(KINDS[engine], [model], records), batch, middle)[0]
    return float((found - expected).norm() / expected.norm())


def of_hostile(hostile: Hostile, engine: str) -> dict[str, Any]:
    """How far one record moves the sum, and what the checks say."""

    def by_engine(model: nn.Module, X: Tensor) -> Tensor:
        records = TrainingRecords(X, torch.ones(len(X)), None)
        return sums(made(KINDS[engine], [model], records, linear_loss), torch.arange(len(X)), 1.0)

    try:
        move: float | str = largest_move(by_engine, hostile)
    except (TypeError, AttributeError, ValueError) as error:
        move = type(error).__name__
    Y = torch.ones(len(hostile.X))
    return {"move": move, "refused": refusal(hostile.factory, linear_loss, hostile.X, Y, engine)}


def shown(found: float | str) -> str:
    return "refused" if isinstance(found, str) else "right" if found < 2e-6 else f"off {found:.1g}"


def main() -> None:
    BenchmarkParser(FILE, __doc__, minutes=2).parse_args()
    torch.set_num_threads(1)
    models = {
        name: {engine: of_model(case, engine) for engine in KINDS} for name, case in MODELS.items()
    }
    hostile = {
        name: {engine: of_hostile(case, engine) for engine in KINDS if engine != "fused"}
        for name, case in HOSTILE.items()
    }
    save_results(FILE, {"models": models, "hostile": hostile})
    row = partial("{:34}{}".format)
    print(row("model", "".join(f"{engine:>12}" for engine in KINDS)))
    for name, found in models.items():
        print(row(name, "".join(f"{shown(each):>12}" for each in found.values())))
    print()
    for name, each in hostile.items():
        cells = [
            f"{engine}: {said['move']:.1f}, {'refused' if said['refused'] else 'accepted'}"
            for engine, said in each.items()
        ]
        print(row(name, "; ".join(cells)))


if __name__ == "__main__":
    main()
