"""HVPoI and its logarithm against BoTorch's analytic EHVI: value and gradient on the same front.

Run with ``OMP_NUM_THREADS=1 python -m benchmarks.hvpoi``. Two settings: with the posterior of a
Gaussian process, as in use, and on given means and variances, the acquisition functions alone.
Times are processor time.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
from botorch.acquisition.multi_objective.analytic import ExpectedHypervolumeImprovement
from botorch.models import SingleTaskGP
from botorch.utils.multi_objective.box_decompositions.non_dominated import (
    FastNondominatedPartitioning,
)
from botorch.utils.testing import MockModel, MockPosterior

from benchmarks.common import (
    BenchmarkParser,
    Ratio,
    interleaved_ratio,
    save_results,
)
from botorch_dp.acquisition import (
    HypervolumeProbabilityOfImprovement,
    LogHypervolumeProbabilityOfImprovement,
)

METHODS = {
    "hvpoi": HypervolumeProbabilityOfImprovement,
    "log_hvpoi": LogHypervolumeProbabilityOfImprovement,
}
DIMENSION = 5


def concave_front(num_points: int, num_objectives: int) -> torch.Tensor:
    """Points on the positive part of the unit sphere: all of them are in the front."""
    points = torch.rand(num_points, num_objectives, dtype=torch.double) + 0.01
    return points / points.norm(dim=-1, keepdim=True)


def value_and_gradient(function: Any, *inputs: torch.Tensor) -> Callable[[], None]:
    def evaluate() -> None:
        torch.autograd.grad(function(inputs[0]).sum(), inputs[-1])

    return evaluate


def compare(num_objectives: int, num_points: int, batch: int, alone: bool) -> dict[str, Ratio]:
    front = concave_front(num_points, num_objectives)
    ref_point = torch.zeros(num_objectives, dtype=torch.double)
    partitioning = FastNondominatedPartitioning(ref_point, Y=front)
    X = torch.rand(batch, 1, DIMENSION, dtype=torch.double, requires_grad=True)
    inputs = [X]
    if alone:
        mean = torch.rand(batch, 1, num_objectives, dtype=torch.double, requires_grad=True)
        model: Any = MockModel(MockPosterior(mean=mean, variance=torch.full_like(mean, 0.1)))
        inputs.append(mean)
    else:
        train_X = torch.rand(num_points, DIMENSION, dtype=torch.double)
        model = SingleTaskGP(train_X, front)
    baseline = ExpectedHypervolumeImprovement(model, ref_point.tolist(), partitioning)
    return {
        name: interleaved_ratio(
            value_and_gradient(method(model, ref_point, partitioning), *inputs),
            value_and_gradient(baseline, *inputs),
            repeats=51,
            warmup=5,
            clock=time.process_time,
        )
        for name, method in METHODS.items()
    }


def main() -> None:
    BenchmarkParser("hvpoi", __doc__, minutes=4).parse_args()
    warnings.filterwarnings("ignore", module="botorch")
    torch.manual_seed(0)
    results = []
    for num_objectives in (2, 3, 4):
        for num_points in (10, 40):
            for batch in (10, 256):
                for alone in (False, True):
                    setting = {
                        "objectives": num_objectives,
                        "front": num_points,
                        "batch": batch,
                        "without_model": alone,
                    }
                    ratios = compare(num_objectives, num_points, batch, alone)
                    results.append({**setting, **ratios})
                    print(
                        setting, *(f"{name}: {ratio}" for name, ratio in ratios.items()), sep="\n  "
                    )
    save_results("hvpoi", {"baseline": "ExpectedHypervolumeImprovement", "ratios": results})


if __name__ == "__main__":
    main()
