"""What a search calls again and again makes no tensor elsewhere and hardly ever waits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from botorch.utils.multi_objective.box_decompositions.non_dominated import (
    FastNondominatedPartitioning,
)
from botorch.utils.testing import MockModel, MockPosterior
from gpytorch.kernels import MaternKernel, RBFKernel, ScaleKernel
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from botorch_dp.acquisition import (
    GradientTrace,
    HypervolumeProbabilityOfImprovement,
    LogHypervolumeProbabilityOfImprovement,
    PrivateUpperConfidenceBound,
    UCBSchedule,
)
from botorch_dp.acquisition.gradient_trace import (
    leading_basis,
    place_stencil,
    radius_grid,
    stencil_directions,
)
from botorch_dp.descent import DPGIBO
from botorch_dp.models import FiniteSetGP, public_gp
from botorch_dp.training import DPTrainer, TrainTest, logistic_loss

D = 3


class Waits(TorchDispatchMode):
    """Counts the numbers that are read, for each of which the host would wait for the device."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self.count += func is torch.ops.aten._local_scalar_dense.default
        return func(*args, **(kwargs or {}))


class Reads(TorchFunctionMode):
    """Counts the tensors that are read as a whole, which waits for the device as well."""

    _ways = (Tensor.tolist, Tensor.cpu, Tensor.nonzero, torch.nonzero)

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self.count += func in self._ways
        return func(*args, **(kwargs or {}))


def waits(call: Callable[[], object]) -> int:
    """How often ``call`` waits for a device that all its tensors would be on."""
    with Reads() as whole, Waits() as numbers:
        call()
    return whole.count + numbers.count


def confidence_bound() -> Callable[[], None]:
    X = torch.rand(8, D, dtype=torch.double)
    model = public_gp(X, X[:, :1], kernel=RBFKernel(), noise_variance=1e-3)
    acqf = PrivateUpperConfidenceBound(model, schedule=UCBSchedule(50, delta=0.1), step=2)
    Z = torch.rand(4, 1, D, dtype=torch.double, requires_grad=True)
    return lambda: acqf(Z).sum().backward()


def trace_and_slope() -> Callable[[], None]:
    X = torch.rand(8, D, dtype=torch.double)
    kernel = ScaleKernel(MaternKernel(nu=2.5) + RBFKernel(active_dims=(0, 2)))
    acqf = GradientTrace(public_gp(X, X[:, :1], kernel=kernel, noise_variance=1e-3), X[0])
    Z = torch.rand(4, 2, D, dtype=torch.double, requires_grad=True)
    return lambda: acqf(Z).sum().backward()


def stencils() -> Callable[[], None]:
    location = torch.full((D,), 0.5, dtype=torch.double)
    box = torch.stack((torch.zeros_like(location), torch.ones_like(location)))
    covariance = torch.eye(D, dtype=torch.double)

    def place() -> None:
        basis = leading_basis(covariance, location)
        for stencil in ("simplex", "central"):
            directions = stencil_directions(stencil, 5, basis)  # type: ignore[arg-type]
            place_stencil(location, directions, radius_grid(3, like=location), location, box)

    return place


def observation() -> Callable[[], None]:
    choices = torch.rand(50, D, dtype=torch.double)
    gp = FiniteSetGP(choices, kernel=ScaleKernel(MaternKernel(nu=1.5)), noise_variance=0.1)

    def observe() -> None:
        gp.observe(3, 0.5)
        gp.upper_confidence_bound(2.0)

    return observe


def hypervolume(kind: type) -> Callable[[], None]:
    front = torch.rand(4, 2, dtype=torch.double)
    moments = torch.rand(5, 1, 2, dtype=torch.double, requires_grad=True)
    model = MockModel(MockPosterior(mean=moments, variance=torch.full_like(moments, 0.1)))
    partitioning = FastNondominatedPartitioning(torch.zeros(2, dtype=torch.double), Y=front)
    acqf = kind(model, partitioning.ref_point, partitioning)
    X = torch.zeros(5, 1, 1, dtype=torch.double)
    return lambda: acqf(X).sum().backward()


def training(
    optimizer: str, *, publish: bool = False, dtype: torch.dtype = torch.double
) -> Callable[[], None]:
    """Steps of three replicates, the drawing of their batches included."""
    X = torch.rand(40, D, dtype=dtype)
    data = TrainTest(X, (X[:, 0] > 0.5).to(dtype), X, (X[:, 0] > 0.5).to(dtype))
    trainer = DPTrainer(
        lambda: nn.Sequential(nn.Linear(D, 4), nn.ReLU(), nn.Linear(4, 1)).to(dtype),
        logistic_loss,
        data,
        optimizer=optimizer,
    )
    plan = trainer.plan(
        learning_rate=0.1, clip_norm=1.0, noise_multiplier=1.0, batch_size=4, epochs=9
    )
    run = trainer.start(plan, [None] * 3 if publish else range(3))

    def steps() -> None:
        with torch.no_grad():
            for _ in range(34):  # batches are drawn for 32 of them at once
                run._take_step()

    return steps


def descent(dtype: torch.dtype = torch.double) -> Callable[[], None]:
    """A step of DP-GIBO with real noise."""
    losses = torch.randn(D + 1, 30, dtype=dtype)
    run = DPGIBO(
        lambda X: losses,
        torch.full((D,), 0.5, dtype=dtype),
        kernel=ScaleKernel(RBFKernel()),
        mu=1.0,
        steps=9,
        clip_norm=1.0,
        box=torch.stack((torch.zeros(D, dtype=dtype), torch.ones(D, dtype=dtype))),
    )
    run.step()

    def step() -> None:
        run.step()

    return step


CASES: dict[str, tuple[Callable[[], Callable[[], None]], int]] = {
    # GPyTorch asks whether its factorization failed.
    "PrivateUpperConfidenceBound": (confidence_bound, 1),
    # Whether a covariance is singular decides how it is solved with.
    "GradientTrace": (trace_and_slope, 1),
    "stencils": (stencils, 0),
    # The mean and the variance of the choice are read together.
    "FiniteSetGP": (observation, 1),
    # Once for 32 steps: how many records the next batches have.
    "training": (lambda: training("sgd"), 1),
    "training with Adam": (lambda: training("adam"), 1),
    "training to publish": (lambda: training("sgd", publish=True), 1),
    "training in single precision": (lambda: training("scale_free", dtype=torch.float32), 1),
    # Three of them for the noise, what is stored, and the counts.
    "DP-GIBO": (descent, 9),
    "DP-GIBO in single precision": (lambda: descent(torch.float32), 9),
    "HVPoI": (lambda: hypervolume(HypervolumeProbabilityOfImprovement), 0),
    "its logarithm": (lambda: hypervolume(LogHypervolumeProbabilityOfImprovement), 0),
}


@pytest.mark.parametrize("name", CASES)
def test_no_tensor_is_made_on_another_device_and_waits_are_few(name: str) -> None:
    """A tensor made without a device would land on `meta` and not combine with the others."""
    call = CASES[name][0]()
    call()
    with torch.device("meta"):
        assert waits(call) <= CASES[name][1]


def test_the_counter_sees_a_wait_and_the_device_a_stray_tensor() -> None:
    one = torch.ones(1, dtype=torch.double)
    assert waits(lambda: bool(one > 0) and one.item() == 1) == 2
    assert waits(lambda: (one.tolist(), one.cpu(), one.nonzero(), float(one))) == 4

    def strayed() -> Tensor:
        return one + torch.zeros(1)

    with torch.device("meta"), pytest.raises(RuntimeError, match="meta"):
        strayed()
