"""What privacy costs in time: the trainers against plain SGD, Opacus's hooks and ghost clipping.

One step on random data of the shapes of Adult (30,956 x 123) and of a fifth of MNIST
(12,000 x 784), and of a small convolutional network, an encoder and a recurrent network, in one
process and one thread. The methods take turns, each for its own number of steps; times are the
process's own, and a ratio is how much longer a method takes than the trainer, in the same turn. All
private methods draw a batch, clip every record's gradient and add noise. The trainer's figure
includes everything that :meth:`DPTrainer.fit` does, from fresh weights to the accuracy on 10
records, on Poisson batches; what it checks before anything is trained is timed apart. The floor of a
fused training is what none can do without: indices of batches, their rows, the products of the layers
there and back, and noise, for each replicate; published ones add up in double precision. Each of
these parts is timed alone as well. "One more" is the relation under which a record may be added or
removed: published steps are then computed in blocks of one shape. The floor of any other model is what plain calls of the model on
whole batches take, without the products of most weights, and then to clip what its layers saw: what is
above it is the price of calling the model on one record at a time, vectorized.

Targets: logistic regression as fast as plain SGD and twice as fast as the hooks; the network at
most 1.4 times plain SGD, 50 times faster than the hooks, 1.4 times faster than ghost clipping;
Poisson batches at most 1.15 times fixed ones; publishing at most 1.3 times a seeded run; ten
replicates 5 times and ten configurations 4 times as fast as one after the other; the engine for
any model at most 1.5 times plain SGD; the checks at most a second.

``--threads`` adds the wall's time of plain SGD and of the trainer with two threads over that with
one; it says something only on a machine where two cores are free.

Run: ``OMP_NUM_THREADS=1 python -m benchmarks.trainers [--turns N] [--only NAME]``
"""

from __future__ import annotations

import json
import statistics
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from opacus import GradSampleModule
from opacus.grad_sample import GradSampleModuleFastGradientClipping
from opacus.layers import DPLSTM, DPMultiheadAttention
from opacus.optimizers import DPOptimizer, DPOptimizerFastGradientClipping
from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping
from torch import Tensor, nn

from benchmarks.common import (
    BenchmarkParser,
    results_folder,
    save_results,
    seconds,
)
from botorch_dp.privacy import NeighboringRelation
from botorch_dp.training import (
    DPTrainer,
    TrainTest,
    cross_entropy_loss,
    logistic_loss,
    logistic_regression,
    mlp1,
)
from botorch_dp.training.engines import Batches, stack_parameters
from botorch_dp.training.fused import why_not_fused
from botorch_dp.training.ghost import GhostEngine
from botorch_dp.training.plan import Sampling
from botorch_dp.training.randomness import SeededRandomness, SystemRandomness
from botorch_dp.training.records import TrainingRecords

RATE, CLIP, NOISE, REPLICATES = 0.05, 1.0, 1.0, 10
#: What no fused training can do without.
PARTS = ("batches", "rows", "products", "noise")


@dataclass(frozen=True)
class Setting:
    """One model on one shape of data; the loss as a module, for those who need a mean."""

    factory: Callable[[], nn.Module]
    loss: Callable[[Tensor, Tensor], Tensor]
    module: nn.Module
    data: TrainTest
    batch_size: int
    epochs: int
    slow_steps: int
    """Steps of the hooks in one turn; the others take more."""

    def outputs(self, model: nn.Module, X: Tensor) -> Tensor:
        return model(X).squeeze(-1)


def adult() -> Setting:
    X = torch.rand(30_956, 123).lt(0.11).float()
    y = torch.rand(30_956).lt(0.24).float()
    return Setting(
        partial(logistic_regression, 123),
        logistic_loss,
        nn.BCEWithLogitsLoss(),
        TrainTest(X, y, X[:10], y[:10]),
        batch_size=256,
        epochs=3,
        slow_steps=60,
    )


def mnist() -> Setting:
    X, y = torch.rand(12_000, 784), torch.randint(10, (12_000,))
    return Setting(
        mlp1,
        cross_entropy_loss,
        nn.CrossEntropyLoss(),
        TrainTest(X, y, X[:10], y[:10]),
        batch_size=600,
        epochs=1,
        slow_steps=2,
    )


class Encoder(nn.Module):
    """Tokens, one layer of attention by Opacus (torch's own has no hooks) and a mean."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, 32)
        self.attention = DPMultiheadAttention(32, 4, batch_first=True)
        self.first, self.second = nn.LayerNorm(32), nn.LayerNorm(32)
        self.wide = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 32))
        self.head = nn.Linear(32, 10)

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.embedding(tokens)
        hidden = self.first(hidden + self.attention(hidden, hidden, hidden)[0])
        return self.head(self.second(hidden + self.wide(hidden)).mean(dim=1))


class Recurrent(nn.Module):
    """Tokens, Opacus's recurrent layer (torch's own is not vectorized) and its last state."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, 32)
        self.cell = DPLSTM(32, 32, batch_first=True)
        self.head = nn.Linear(32, 10)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.cell(self.embedding(tokens))[0][:, -1])


def convolutional_network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 8, 2, padding=3),
        nn.ReLU(),
        nn.MaxPool2d(2, 1),
        nn.Conv2d(16, 32, 4, 2),
        nn.ReLU(),
        nn.MaxPool2d(2, 1),
        nn.Flatten(),
        nn.Linear(512, 32),
        nn.ReLU(),
        nn.Linear(32, 10),
    )


def convolutional() -> Setting:
    return any_model(convolutional_network, torch.rand(1280, 1, 28, 28))


def encoder() -> Setting:
    return any_model(Encoder, torch.randint(50, (1280, 20)))


def recurrent() -> Setting:
    return any_model(Recurrent, torch.randint(50, (1280, 20)))


def any_model(factory: Callable[[], nn.Module], X: Tensor) -> Setting:
    y = torch.randint(10, (len(X),))
    data = TrainTest(X, y, X[:10], y[:10])
    loss = nn.CrossEntropyLoss()
    return Setting(factory, cross_entropy_loss, loss, data, batch_size=128, epochs=5, slow_steps=5)


def random_batch(setting: Setting) -> tuple[Tensor, Tensor]:
    """A batch for the private baselines, by Opacus's own Poisson sampler's rule."""
    n = len(setting.data.train_X)
    indices = (torch.rand(n) < setting.batch_size / n).nonzero().flatten()
    return setting.data.train_X[indices], setting.data.train_Y[indices]


def plain_sgd(setting: Setting) -> tuple[Callable[[], None], int]:
    """Autograd, ``torch.optim.SGD`` and shuffled epochs: neither clipping nor noise."""
    model, n, m = setting.factory(), len(setting.data.train_X), setting.batch_size
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    X, Y = setting.data.train_X, setting.data.train_Y

    def run() -> None:
        for _ in range(setting.epochs):
            for indices in torch.randperm(n).split(m)[: n // m]:
                optimizer.zero_grad()
                setting.module(setting.outputs(model, X[indices]), Y[indices]).backward()
                optimizer.step()

    return run, setting.epochs * (n // m)


def opacus_hooks(setting: Setting) -> tuple[Callable[[], None], int]:
    """``GradSampleModule`` and ``DPOptimizer`` as they come."""
    model = GradSampleModule(setting.factory())
    optimizer = DPOptimizer(
        torch.optim.SGD(model.parameters(), lr=RATE),
        noise_multiplier=2 * NOISE,
        max_grad_norm=CLIP,
        expected_batch_size=setting.batch_size,
    )

    def run() -> None:
        for _ in range(setting.slow_steps):
            X, Y = random_batch(setting)
            optimizer.zero_grad()
            setting.module(setting.outputs(model, X), Y).backward()
            optimizer.step()

    return run, setting.slow_steps


def opacus_ghost(setting: Setting) -> tuple[Callable[[], None], int]:
    """Opacus's fast gradient clipping: norms first, then a second backward pass."""
    model = GradSampleModuleFastGradientClipping(
        setting.factory(), max_grad_norm=CLIP, use_ghost_clipping=True
    )
    optimizer = DPOptimizerFastGradientClipping(
        torch.optim.SGD(model.parameters(), lr=RATE),
        noise_multiplier=2 * NOISE,
        max_grad_norm=CLIP,
        expected_batch_size=setting.batch_size,
    )
    criterion = DPLossFastGradientClipping(model, optimizer, setting.module)
    steps = 5 * setting.slow_steps

    def run() -> None:
        for _ in range(steps):
            X, Y = random_batch(setting)
            optimizer.zero_grad()
            criterion(setting.outputs(model, X), Y).backward()
            optimizer.step()

    return run, steps


def ours(
    setting: Setting,
    *,
    replicates: int = 1,
    publish: bool = False,
    sampling: Sampling = "poisson",
    relation: NeighboringRelation = NeighboringRelation.REPLACE_ONE,
) -> tuple[Callable[[], None], int]:
    """``DPTrainer``; steps are counted over all replicates."""
    trainer = DPTrainer(
        setting.factory, setting.loss, setting.data, sampling=sampling, relation=relation
    )
    epochs = setting.epochs
    settings = {
        "learning_rate": RATE,
        "clip_norm": CLIP,
        "noise_multiplier": NOISE,
        "batch_size": setting.batch_size,
        "epochs": epochs,
    }

    def run() -> None:
        if replicates > 1:
            trainer.replicates(range(replicates), **settings)
        else:
            trainer.fit(**settings, seed=None if publish else 0, publish=publish)

    return run, replicates * epochs * (len(setting.data.train_X) // setting.batch_size)


def floor(
    setting: Setting, *, replicates: int = 1, publish: bool = False, only: str = ""
) -> tuple[Callable[[], None], int]:
    """Batches, rows, products and noise of stacks of linear layers, or ``only`` one of these."""
    n, m, R = len(setting.data.train_X), setting.batch_size, replicates
    coins = [
        SystemRandomness() if publish else SeededRandomness(seed, torch.device("cpu"))
        for seed in range(R)
    ]
    X, precise = setting.data.train_X, torch.float64 if publish else torch.float32
    layers = [x.weight for x in setting.factory().modules() if isinstance(x, nn.Linear)]
    weights = [weight.detach().expand(R, *weight.shape).contiguous() for weight in layers]
    slopes = [torch.randn(R, m, len(weight)) for weight in layers]
    sums = torch.zeros(R, sum(weight.numel() + len(weight) for weight in layers), dtype=precise)
    steps = setting.epochs * (n // m)

    def batches() -> Iterator[Tensor]:
        while True:
            for each in zip(*(c.choose_each(n, m / n, 32) for c in coins), strict=True):
                yield torch.cat([batch.repeat(2)[:m] for batch in each])  # of one size

    drawn = batches()
    kept = [next(drawn) for _ in range(32)]
    first = X.index_select(0, kept[0]).view(R, m, -1)

    def run() -> None:
        for step in range(steps):
            indices = next(drawn) if only in ("", "batches") else kept[step % 32]
            inputs = first
            if only in ("", "rows"):
                inputs = X.index_select(0, indices).view(R, m, -1)
            if only in ("", "products"):
                below = [inputs]
                for weight in weights:
                    below.append(torch.bmm(weight, below[-1].mT).mT)
                for place, (weight, slope) in enumerate(zip(weights, slopes, strict=True)):
                    torch.bmm(slope.to(precise).mT, below[place].to(precise))
                    if place:
                        torch.bmm(slope, weight)
            if only in ("", "noise"):
                for row, each in zip(sums, coins, strict=True):
                    each.perturb_(row, sensitivity=CLIP, std=NOISE * CLIP)

    return run, R * steps


class _PlainCalls(GhostEngine):
    """Clips what the layers saw in the first batch, beside plain calls of the model.

    What is left out is the vectorization: the model is called on the whole batch at once, and
    autograd goes back to its first parameters, without the products that other weights need.
    """

    _first: tuple[dict[str, Tensor], list[Any]] | None = None

    def _seen(self, *given: Any) -> tuple[dict[str, Tensor], list[Any]]:
        if self._first is None:
            self._first = super()._seen(*given)
            self._plain = self._model
            for parameter in self._plain.parameters():
                parameter.requires_grad_(False)
            self._start = min(next(self._plain.children()).parameters(), key=Tensor.numel)
            self._start.requires_grad_()
        _, _, X, Y = given
        losses = self._loss(self._plain(X), Y)
        torch.autograd.grad(losses.sum(), self._start)
        return self._first


def floor_of_any(setting: Setting) -> tuple[Callable[[], None], int]:
    """Batches, rows, plain calls, norms, weighted sums, noise and steps of one model."""
    n, m = len(setting.data.train_X), setting.batch_size
    coins = SeededRandomness(0, torch.device("cpu"))
    records = TrainingRecords(setting.data.train_X, setting.data.train_Y, None)
    models = [setting.factory()]
    parameters = stack_parameters(models)
    engine = _PlainCalls(models, parameters, records, setting.loss, precise=False)
    steps = setting.epochs * (n // m)

    def run() -> None:
        for _ in range(steps):
            batch = coins.choose(n, m).unsqueeze(0)
            (total,) = engine.clipped_sums(Batches(batch), CLIP).sums
            coins.perturb_(total, sensitivity=CLIP, std=NOISE * CLIP)
            parameters.add_(total, alpha=-RATE / m)

    return run, steps


def threads(setting: Setting, turns: int) -> dict[str, object]:
    """The wall's time with two threads, over that with one."""
    methods = {"plain SGD": plain_sgd(setting), "DPTrainer": ours(setting)}
    ratios: dict[str, list[float]] = {name: [] for name in methods}
    for turn in range(turns + 1):
        for name, (run, _) in methods.items():
            taken = []
            for number in (1, 2):
                torch.set_num_threads(number)
                taken.append(seconds(run))
            if turn:
                ratios[name].append(taken[1] / taken[0])
    torch.set_num_threads(1)
    found: dict[str, object] = {}
    for name, each in ratios.items():
        found[name] = {"times one thread": statistics.median(each), "range": [min(each), max(each)]}
        print(f"  {name:27s} with two threads: {found[name]}")
    return found


def measure(setting: Setting, turns: int) -> dict[str, object]:
    fused = why_not_fused(setting.factory(), setting.data.train_X) is None
    methods = {
        "DPTrainer": ours(setting),
        "DPTrainer, fixed batches": ours(setting, sampling="without_replacement"),
        "DPTrainer, published": ours(setting, publish=True),
        "DPTrainer, published, one more": ours(
            setting, publish=True, relation=NeighboringRelation.ADD_OR_REMOVE_ONE
        ),
        "plain SGD": plain_sgd(setting),
        "Opacus hooks": opacus_hooks(setting),
    }
    if fused:
        methods |= {
            "Opacus ghost clipping": opacus_ghost(setting),
            f"{REPLICATES} replicates": ours(setting, replicates=REPLICATES),
            f"{REPLICATES} replicates, fixed batches": ours(
                setting, replicates=REPLICATES, sampling="without_replacement"
            ),
        }
        for name, how in (
            ("floor", {}),
            ("floor, published", {"publish": True}),
            (f"floor of {REPLICATES}", {"replicates": REPLICATES}),
        ):
            methods[name] = floor(setting, **how)
            methods |= {f"{name}: {part}": floor(setting, **how, only=part) for part in PARTS}
    else:
        methods["floor"] = floor_of_any(setting)
    for run, _ in methods.values():
        run()
    taken: dict[str, list[float]] = {name: [] for name in methods}
    for _ in range(turns):
        for name, (run, steps) in methods.items():
            taken[name].append(seconds(run, time.process_time) / steps)
    started = seconds(lambda: DPTrainer(setting.factory, setting.loss, setting.data))
    results: dict[str, object] = {"seconds before the first step": started}
    print(f"  {1e3 * started:.0f} ms of checks before the first step")
    for name, times in taken.items():
        results[name] = _compared(name, times, taken["DPTrainer"], "DPTrainer")
    for name in ("DPTrainer", f"{REPLICATES} replicates"):
        if name in taken:
            fixed = f"{name}, fixed batches"
            results[f"{name}, Poisson against fixed"] = _compared(
                f"{name}, Poisson", taken[name], taken[fixed], "fixed"
            )
    for name, least in (
        ("DPTrainer", "plain SGD"),
        ("floor", "plain SGD"),
        ("DPTrainer", "floor"),
        ("DPTrainer, published", "floor, published"),
        ("DPTrainer, published, one more", "DPTrainer, published"),
        (f"{REPLICATES} replicates", f"floor of {REPLICATES}"),
        (f"{REPLICATES} configurations", f"floor of {REPLICATES}"),
    ):
        if name in taken and least in taken:
            results[f"{name}, over {least}"] = _compared(name, taken[name], taken[least], least)
    return results


def _compared(
    name: str, times: list[float], reference: list[float], other: str
) -> dict[str, object]:
    ratios = sorted(t / f for t, f in zip(times, reference, strict=True))
    print(
        f"  {name:27s} {1e3 * statistics.median(times):9.3f} ms a step, "
        f"{statistics.median(ratios):6.2f}x {other} ({ratios[0]:.2f} to {ratios[-1]:.2f})"
    )
    return {
        "seconds per step": statistics.median(times),
        f"times {other}": statistics.median(ratios),
        "range": [ratios[0], ratios[-1]],
    }


def main() -> None:
    parser = BenchmarkParser("trainers", __doc__, minutes=12)
    parser.add_argument("--turns", type=int, default=9)
    parser.add_argument("--only", default="", help="settings whose names contain this")
    parser.add_argument("--threads", action="store_true", help="also with two threads")
    options = parser.parse_args()
    torch.manual_seed(0)
    warnings.filterwarnings("ignore", message="Full backward hook")
    stored = results_folder() / "trainers.json"
    results = json.loads(stored.read_text()) if options.only and stored.exists() else {}
    for name, make in (
        ("logistic regression 123-1, batch 256", adult),
        ("convolutional network, 28 x 28, batch 128", convolutional),
        ("encoder, 20 tokens, batch 128", encoder),
        ("recurrent network, 20 tokens, batch 128", recurrent),
        ("network 784-1000-10, batch 600", mnist),
    ):
        if options.only in name:
            print(name)
            found = measure(make(), options.turns)
            if options.threads:
                found["two threads"] = threads(make(), options.turns)
            results[name] = {"turns": options.turns, **found}
            save_results("trainers", results)


if __name__ == "__main__":
    main()
