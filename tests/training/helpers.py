"""What tests of training share: small problems, and oracles by plain autograd and stock Opacus."""

from __future__ import annotations

import copy
import signal
import warnings
from collections.abc import Callable
from functools import cache, partial
from typing import Any, ClassVar

import torch
from opacus import GradSampleModule
from opacus.optimizers import DPOptimizer
from scipy.stats import chi2
from torch import Tensor, nn

from botorch_dp.privacy import NeighboringRelation
from botorch_dp.training import (
    DPTrainer,
    TrainTest,
    cross_entropy_loss,
    multilayer_perceptron,
)
from botorch_dp.training.engines.base import Batches, Engine, parameter_views, stack_parameters
from botorch_dp.training.engines.fused import FusedEngine
from botorch_dp.training.engines.ghost import GhostEngine
from botorch_dp.training.engines.opacus import OpacusEngine
from botorch_dp.training.engines.per_record import PerRecordEngine
from botorch_dp.training.randomness import SystemRandomness
from botorch_dp.training.records import Records, TrainingRecords

#: Probability that a correct implementation fails a statistical test.
FALSE_ALARM = 1e-6
KINDS: dict[str, type[Engine]] = {
    "fused": FusedEngine,
    "ghost": GhostEngine,
    "per_record": PerRecordEngine,
    "opacus": OpacusEngine,
}
ENGINES = list(KINDS)
#: Those that are ours.
OWN_ENGINES = [engine for engine in ENGINES if engine != "opacus"]
#: (relative to the sum's norm) rounding of the type; Opacus itself clips at norm + 1e-6.
TOLERANCE = {torch.float32: 2e-6, torch.float64: 1e-13}
#: Ways to draw batches, each under the relations it is accounted for.
BATCHES: dict[str, dict[str, Any]] = {
    "fixed": {"sampling": "without_replacement"},
    "poisson": {"sampling": "poisson"},
    "poisson, one more": {
        "sampling": "poisson",
        "relation": NeighboringRelation.ADD_OR_REMOVE_ONE,
    },
}
INDICES = torch.tensor([5, 0, 17, 30, 8, 59, 22])


def make_data(
    n: int = 60,
    shape: tuple[int, ...] = (7,),
    classes: int = 3,
    dtype: torch.dtype = torch.float64,
    seed: int = 0,
) -> TrainTest:
    generator = torch.Generator().manual_seed(seed)
    X = torch.randn((n, *shape), generator=generator, dtype=dtype)
    Y = torch.randint(classes, (n,), generator=generator)
    return TrainTest(X, Y, X[: n // 2 + 1], Y[: n // 2 + 1])


FLOAT_DATA = make_data(dtype=torch.float32)
NETWORK = partial(multilayer_perceptron, 7, 3, (6,))
SETTINGS = {
    "learning_rate": 0.1,
    "clip_norm": 0.5,
    "noise_multiplier": 0.8,
    "batch_size": 6,
    "epochs": 3,
}


@cache
def trainer(**options: object) -> DPTrainer:
    """Trainers keep nothing of what they train, and checking a model is most of making one."""
    return DPTrainer(NETWORK, cross_entropy_loss, FLOAT_DATA, **options)


def made(
    kind: type[Engine],
    models: list[nn.Module],
    records: Records,
    loss: Any = cross_entropy_loss,
    *,
    precise: bool = False,
    **how: Any,
) -> Engine:
    """An engine that reads the models' own parameters."""
    parameters = stack_parameters(models)
    return kind(models, parameters, records, loss, precise=precise, **how)


def sums(
    engine: Engine, places: Tensor | list[int], clip_norm: float, filled: Tensor | None = None
) -> Tensor:
    """Of one batch for all, or of one for each replicate."""
    places = torch.as_tensor(places)
    places = places if places.dim() == 2 else places.unsqueeze(0)
    return engine.clipped_sums(Batches(places, filled), clip_norm).sums.clone()


def clipped_sum_of(
    trainer: DPTrainer, model: nn.Module, places: Tensor, clip_norm: float
) -> list[Tensor]:
    """The sum of the clipped gradients of some training records, one tensor for each parameter."""
    model = copy.deepcopy(model)
    engine = trainer.setup.make_engine([model], stack_parameters([model]), [SystemRandomness()])
    return [view[0] for view in parameter_views(sums(engine, places, clip_norm), model)]


def training_records(data: TrainTest, num_classes: int | None) -> TrainingRecords:
    return TrainingRecords(data.train_X, data.train_Y, num_classes)


def stack(activation: nn.Module, dtype: torch.dtype, *, bias: bool = True) -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Linear(7, 6, bias=bias, dtype=dtype),
        activation,
        nn.Linear(6, 3, bias=bias, dtype=dtype),
    )


def linear_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    """Its gradient with respect to the weights is ``target * x``, whatever the weights are."""
    return outputs.squeeze(-1) * targets


def zero_model(width: int) -> Callable[[], nn.Module]:
    def factory() -> nn.Module:
        model = nn.Linear(width, 1, bias=False, dtype=torch.float64)
        nn.init.zeros_(model.weight)
        return model

    return factory


def per_example_gradients(
    model: nn.Module, loss: Callable[[Tensor, Tensor], Tensor], X: Tensor, Y: Tensor
) -> list[Tensor]:
    """One row per record, all trainable parameters flat, by one backward pass per record."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    rows = []
    for x, y in zip(X, Y, strict=True):
        value = loss(model(x.unsqueeze(0)), y.unsqueeze(0)).sum()
        gradients = torch.autograd.grad(value, parameters, allow_unused=True)
        rows.append(
            torch.cat(
                [
                    (torch.zeros_like(p) if g is None else g).flatten()
                    for p, g in zip(parameters, gradients, strict=True)
                ]
            )
        )
    return rows


def clipped_sum(rows: list[Tensor], clip_norm: float) -> Tensor:
    factors = [min(1.0, clip_norm / max(float(row.norm()), 1e-300)) for row in rows]
    return torch.stack([row * c for row, c in zip(rows, factors, strict=True)]).sum(dim=0)


def opacus_clipped_sum(
    model: nn.Module,
    loss: Callable[[Tensor, Tensor], Tensor],
    X: Tensor,
    Y: Tensor,
    clip_norm: float,
) -> Tensor:
    """What Opacus's own hooks and optimizer add up; it clips at ``norm + 1e-6``."""
    wrapped = GradSampleModule(copy.deepcopy(model).train(), loss_reduction="sum")
    optimizer = DPOptimizer(
        torch.optim.SGD([p for p in wrapped.parameters() if p.requires_grad], lr=0.0),
        noise_multiplier=0.0,
        max_grad_norm=clip_norm,
        expected_batch_size=1,
        loss_reduction="sum",
    )
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Full backward hook")
        loss(wrapped(X), Y).sum().backward()
    optimizer.clip_and_accumulate()
    return flat([p.summed_grad for p in wrapped.parameters() if p.requires_grad])


def flat(tensors: list[Tensor]) -> Tensor:
    return torch.cat([tensor.detach().flatten() for tensor in tensors])


def weights(model: nn.Module) -> Tensor:
    return flat(list(model.parameters()))


def variance_is(draws: Tensor, std: float) -> bool:
    """Chi-square test of independent centred normal draws against a standard deviation."""
    statistic = float((draws.double() / std).square().sum())
    low, high = chi2.ppf([FALSE_ALARM / 2, 1 - FALSE_ALARM / 2], draws.numel())
    return bool(low < statistic < high)


def assert_sums_agree(
    model: nn.Module, loss: object, data: TrainTest, engine: str, *clip_norms: float
) -> DPTrainer:
    dtype = next(model.parameters()).dtype
    trainer = DPTrainer(lambda: model, loss, data, engine=engine)
    X, Y = data.train_X[INDICES], data.train_Y[INDICES]
    rows = per_example_gradients(model, loss, X, Y)
    for clip_norm in clip_norms:
        found = flat(clipped_sum_of(trainer, model, INDICES, clip_norm))
        expected = clipped_sum(rows, clip_norm)
        stock = opacus_clipped_sum(model, loss, X, Y, clip_norm)
        scale = float(expected.norm())
        assert scale > 0
        assert float((found - expected).norm()) <= TOLERANCE[dtype] * scale
        assert float((found - stock).norm()) <= 4e-6 * max(scale, 1.0)
    return trainer


class Watched(Tensor):
    """Data that notes when its values, rather than its form, are first asked for."""

    reads: ClassVar[list[str]] = []

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = getattr(func, "__name__", str(func))
        if name not in {"__get__", "dim", "__len__", "is_floating_point", "size"}:
            cls.reads.append(name)
        return super().__torch_function__(func, types, args, kwargs or {})


def watched(data: TrainTest) -> TrainTest:
    Watched.reads.clear()
    return TrainTest(*(values.as_subclass(Watched) for values in data))


@cache
def _interruptible(**options: object) -> tuple[Interrupting, DPTrainer]:
    loss = Interrupting()
    return loss, DPTrainer(NETWORK, loss, FLOAT_DATA, **options)


def interruptible(*steps: int, **options: object) -> tuple[Interrupting, DPTrainer]:
    """A trainer that is stopped in these steps, counted from now on, and its loss."""
    loss, each = _interruptible(**options)
    loss.steps, loss.calls, loss.armed = steps, 0, True
    return loss, each


class Interrupting:
    """A loss that sends Ctrl-C while some steps are being taken.

    It is no loss that is read once and never called again.
    """

    def __init__(self, *steps: int) -> None:
        self.steps, self.calls, self.armed = steps, 0, False

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        if self.armed:
            self.calls += 1
            if self.calls in self.steps:
                signal.raise_signal(signal.SIGINT)
        return 1.0 * cross_entropy_loss(outputs, targets)
