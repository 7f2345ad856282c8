"""Under another default device, nothing is made there by accident, and loops hardly ever wait."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
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
from torch.utils.data import TensorDataset

import botorch_dp
from botorch_dp import DPareto, PrivacyUtilityProblem, PrivateSearch, Real, SearchSpace
from botorch_dp.acquisition import (
    GradientTrace,
    HypervolumeProbabilityOfImprovement,
    LogHypervolumeProbabilityOfImprovement,
    PrivateUpperConfidenceBound,
    UCBSchedule,
)
from botorch_dp.descent import DPGIBO
from botorch_dp.integrations.estimators import DPClassifier
from botorch_dp.models import FiniteSetGP, public_gp
from botorch_dp.models.gradient import leading_basis, place_stencil, radius_grid, stencil_directions
from botorch_dp.privacy import NeighboringRelation, PrivacyBudget
from botorch_dp.training import DPTrainer, TrainTest, logistic_loss

D = 3
#: Makes a subject, with inputs that are there already, and returns what calls it.
Maker = Callable[[], Callable[[], None]]


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


def confidence_bound() -> Maker:
    X, kernel = torch.rand(8, D, dtype=torch.double), RBFKernel()
    Z = torch.rand(4, 1, D, dtype=torch.double, requires_grad=True)

    def make() -> Callable[[], None]:
        model = public_gp(X, X[:, :1], kernel=kernel, noise_std=0.03)
        acqf = PrivateUpperConfidenceBound(model, schedule=UCBSchedule(50, delta=0.1), step=2)
        return lambda: acqf(Z).sum().backward()

    return make


def trace_and_slope() -> Maker:
    X = torch.rand(8, D, dtype=torch.double)
    kernel = ScaleKernel(RBFKernel())
    Z = torch.rand(4, 2, D, dtype=torch.double, requires_grad=True)

    def make() -> Callable[[], None]:
        model = public_gp(X, X[:, :1], kernel=kernel, noise_std=0.03)
        acqf = GradientTrace(model, X[0])
        return lambda: acqf(Z).sum().backward()

    return make


def stencils() -> Maker:
    location = torch.full((D,), 0.5, dtype=torch.double)
    box = torch.stack((torch.zeros_like(location), torch.ones_like(location)))
    covariance = torch.eye(D, dtype=torch.double)

    def place() -> None:
        basis = leading_basis(covariance, location)
        for stencil in ("simplex", "central"):
            directions = stencil_directions(stencil, 5, basis)  # type: ignore[arg-type]
            place_stencil(location, directions, radius_grid(3, like=location), location, box)

    return lambda: place


def observation() -> Maker:
    choices, kernel = torch.rand(50, D, dtype=torch.double), ScaleKernel(MaternKernel(nu=1.5))

    def make() -> Callable[[], None]:
        gp = FiniteSetGP(choices, kernel=kernel, noise_std=0.3)

        def observe() -> None:
            gp.observe(3, 0.5)
            gp.upper_confidence_bound(2.0)

        return observe

    return make


def hypervolume(kind: type) -> Maker:
    front = torch.rand(4, 2, dtype=torch.double)
    moments = torch.rand(5, 1, 2, dtype=torch.double, requires_grad=True)
    model = MockModel(MockPosterior(mean=moments, variance=torch.full_like(moments, 0.1)))
    partitioning = FastNondominatedPartitioning(torch.zeros(2, dtype=torch.double), Y=front)
    X = torch.zeros(5, 1, 1, dtype=torch.double)

    def make() -> Callable[[], None]:
        acqf = kind(model, partitioning.ref_point, partitioning)
        return lambda: acqf(X).sum().backward()

    return make


def training(optimizer: str, *, publish: bool = False, dtype: torch.dtype = torch.double) -> Maker:
    """Steps of three replicates, the drawing of their batches included."""
    data = table(dtype)

    def make() -> Callable[[], None]:
        trainer = DPTrainer(partial(network, dtype), logistic_loss, data, optimizer=optimizer)
        plan = trainer.plan(
            learning_rate=0.1, clip_norm=1.0, noise_multiplier=1.0, batch_size=4, epochs=9
        )
        run = trainer.setup.start(plan, [None] * 3 if publish else range(3))

        def steps() -> None:
            with torch.no_grad():
                for _ in range(34):  # batches are drawn for 32 of them at once
                    run._take_step()

        return steps

    return make


def table(dtype: torch.dtype = torch.double) -> TrainTest:
    X = torch.rand(40, D, dtype=dtype)
    y = (X[:, 0] > 0.5).to(dtype)
    return TrainTest(X, y, X, y)


def network(dtype: torch.dtype = torch.double) -> nn.Module:
    return nn.Sequential(nn.Linear(D, 4), nn.ReLU(), nn.Linear(4, 1)).to(dtype)


def convolution() -> nn.Module:
    layers = nn.Unflatten(1, (1, D)), nn.Conv1d(1, 4, 2), nn.Flatten(), nn.Linear(8, 1)
    return nn.Sequential(*layers).double()


def descent(dtype: torch.dtype = torch.double) -> Maker:
    """A step of DP-GIBO with real noise."""
    losses, kernel = torch.randn(D + 1, 30, dtype=dtype), ScaleKernel(RBFKernel())
    start = torch.full((D,), 0.5, dtype=dtype)
    box = torch.stack((torch.zeros(D, dtype=dtype), torch.ones(D, dtype=dtype)))

    def make() -> Callable[[], None]:
        run = DPGIBO(
            lambda X: losses, start, kernel=kernel, mu=1.0, steps=9, clip_norm=1.0, box=box
        )

        def step() -> None:
            run.step()

        return step

    return make


CASES: dict[str, tuple[Callable[[], Maker], int]] = {
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


@pytest.fixture(autouse=True)
def _empty_caches() -> None:
    """What an earlier call has left behind would hide where this one makes its tensors."""
    for name, module in list(sys.modules.items()):
        if name.startswith("botorch_dp"):
            for value in vars(module).values():
                if hasattr(value, "cache_clear"):
                    value.cache_clear()


@pytest.mark.parametrize("name", CASES)
def test_no_tensor_is_made_on_another_device_and_waits_are_few(name: str) -> None:
    """A tensor made without a device would land on `meta` and not combine with the others."""
    make = CASES[name][0]()
    with torch.device("meta"):
        call = make()
        call()
        assert waits(call) <= CASES[name][1]


SETTINGS: dict[str, Any] = {
    "learning_rate": 0.1,
    "clip_norm": 1.0,
    "noise_multiplier": 1.0,
    "batch_size": 8,
    "epochs": 2,
}


def trained(
    factory: Callable[[], nn.Module] = network,
    loss: Any = logistic_loss,
    *,
    publish: bool = False,
    datasets: bool = False,
    **how: Any,
) -> Callable[[], None]:
    data = table()
    given = (TensorDataset(data.train_X, data.train_Y),) * 2 if datasets else data

    def run() -> None:
        trainer = DPTrainer(factory, loss, given, **how)
        fitted = trainer.fit(**SETTINGS, publish=publish, seed=None if publish else 0)
        assert next(fitted.model.parameters()).device.type == "cpu"

    return run


def study() -> Callable[[], None]:
    space = SearchSpace(rate=Real(0.01, 1.0, log=True), noise=Real(0.5, 8.0, log=True))
    problem = PrivacyUtilityProblem(
        space,
        privacy=lambda config: 1 / config["noise"],
        utility=lambda config, seed: config["rate"] / (1 + config["noise"]),
        ref_point=(10.0, 1.0),
    )

    def run() -> None:
        search = DPareto(problem, seed=0)
        str(search.run(18, initial=16))
        search.recommend(1.0)

    return run


def classified(kind: type, **how: Any) -> Callable[[], None]:
    X = np.random.default_rng(0).random((60, D))
    y = (X[:, 0] > 0.5).astype(int)
    known = {"delta": 1e-5, "classes": (0, 1), "bounds": (0.0, 1.0), "epochs": 2, **how}
    return lambda: kind(5.0, **known).fit(X, y).predict(X)


def search() -> Callable[[], None]:
    scores = torch.rand(30, 200, dtype=torch.double)
    space = SearchSpace(rate=Real(0.01, 1.0, log=True), decay=Real(0.1, 1.0))

    def run() -> None:
        PrivateSearch(
            lambda configs: scores[: len(configs)],
            space,
            num_records=200,
            bounds=(0.0, 1.0),
            budget=PrivacyBudget(1.0, 1e-5),
            evaluations=12,
        ).run()

    return run


def distances(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs.squeeze(-1) - targets).abs()


ONE_MORE = NeighboringRelation.ADD_OR_REMOVE_ONE
RUNS: dict[str, Callable[[], Callable[[], None]]] = {
    "own loss": lambda: trained(loss=distances),
    "own loss, one more": lambda: trained(loss=distances, publish=True, relation=ONE_MORE),
    "a rule of torch": lambda: trained(optimizer=torch.optim.AdamW),
    "fixed batches": lambda: trained(sampling="without_replacement"),
    "ghost": lambda: trained(convolution, publish=True, relation=ONE_MORE),
    "per_record": lambda: trained(convolution, engine="per_record"),
    "opacus": lambda: trained(engine="opacus"),
    "data sets": lambda: trained(datasets=True),
    "DPareto": study,
    "DPClassifier": lambda: classified(DPClassifier),
    "PrivateSearch": search,
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", RUNS)
def test_runs_where_its_inputs_are_from_the_constructor_on(name: str) -> None:
    run = RUNS[name]()
    with torch.device("meta"):
        run()


#: Tensors from numbers alone, which are made where torch's default is unless told otherwise.
MAKERS = {
    *("arange", "as_tensor", "empty", "eye", "full", "linspace", "logspace", "ones", "rand"),
    *("randint", "randn", "randperm", "tensor", "zeros"),
}
#: Modules whose entrances compute on the CPU.
ON_THE_CPU = {
    "integrations/estimators.py",
    "pareto/proposals.py",
    "pareto/recommendation.py",
    "pareto/surrogates.py",
}


def test_every_tensor_that_is_made_says_where() -> None:
    root = Path(botorch_dp.__file__).parent
    silent = []
    for path in sorted(root.rglob("*.py")):
        name = path.relative_to(root).as_posix()
        for node in ast.walk(ast.parse(path.read_text())):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and isinstance(node.func.value, ast.Name)
                and (node.func.value.id, node.func.attr) in {("torch", each) for each in MAKERS}
                and not any(each.arg in ("device", None) for each in node.keywords)
                and name not in ON_THE_CPU
            ):
                silent.append(f"{name}:{node.lineno}")
    assert not silent, f"give `device=`: {silent}"


def test_the_counter_sees_a_wait_and_the_device_a_stray_tensor() -> None:
    one = torch.ones(1, dtype=torch.double)
    assert waits(lambda: bool(one > 0) and one.item() == 1) == 2
    assert waits(lambda: (one.tolist(), one.cpu(), one.nonzero(), float(one))) == 4

    def strayed() -> Tensor:
        return one + torch.zeros(1)

    with torch.device("meta"), pytest.raises(RuntimeError, match="meta"):
        strayed()
