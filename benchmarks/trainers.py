"""What privacy costs in time and memory: the trainers against plain SGD and Opacus.

    OMP_NUM_THREADS=1 python -m benchmarks.trainers [--part time memory] [--turns N] [--only NAME]

* ``time``: one step on random data of the shapes of Adult (30,956 x 123) and of a fifth of MNIST
  (12,000 x 784), and of a small convolutional network, an encoder and a recurrent network. The
  methods take turns in one process, each for its own number of steps; times are the process's own,
  and a ratio is how much longer a method takes than the trainer in the same turn. All private
  methods draw a batch, clip every record's gradient and add noise. The trainer's figure includes
  everything that :meth:`DPTrainer.fit` does, from fresh weights to the accuracy on 10 records, on
  Poisson batches; what it checks before anything is trained is timed apart. "One more" is the
  relation under which a record may be added or removed: published steps are then computed in
  blocks of one shape.
* ``memory``: some steps of each method in a process of its own: the peak of its memory over what it
  held before (with data, model, and what the trainer checks before the first step), and processor
  time for a step. Models: those of ``time``, and an encoder with a table of 8,000 words and a width
  of 128, where the gradients of single records are large.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

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
from botorch_dp.training.fused import why_not_fused
from botorch_dp.training.plan import Sampling
from botorch_dp.training.trainer_setup import EngineName

RATE, CLIP, NOISE, REPLICATES = 0.05, 1.0, 2.0, 10


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
        noise_multiplier=NOISE,
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
        noise_multiplier=NOISE,
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
    engine: EngineName = "auto",
) -> tuple[Callable[[], None], int]:
    """``DPTrainer``; steps are counted over all replicates."""
    trainer = DPTrainer(
        setting.factory,
        setting.loss,
        setting.data,
        sampling=sampling,
        relation=relation,
        engine=engine,
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


def measured(setting: Setting, turns: int) -> dict[str, object]:
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
    if setting.slow_steps >= 5:  # the hooks take a second for a step of the network
        methods["DPTrainer, by Opacus"] = ours(setting, engine="opacus")
    if fused:
        methods |= {
            "Opacus ghost clipping": opacus_ghost(setting),
            f"{REPLICATES} replicates": ours(setting, replicates=REPLICATES),
            f"{REPLICATES} replicates, fixed batches": ours(
                setting, replicates=REPLICATES, sampling="without_replacement"
            ),
        }
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
    results["DPTrainer, over plain SGD"] = _compared(
        "DPTrainer", taken["DPTrainer"], taken["plain SGD"], "plain SGD"
    )
    results["one more, over published"] = _compared(
        "DPTrainer, published, one more",
        taken["DPTrainer, published, one more"],
        taken["DPTrainer, published"],
        "published",
    )
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


class WideEncoder(Encoder):
    """The encoder of ``trainers`` with more words and wider layers."""

    def __init__(self) -> None:
        nn.Module.__init__(self)
        self.embedding = nn.Embedding(8000, 128)
        self.attention = DPMultiheadAttention(128, 4, batch_first=True)
        self.first, self.second = nn.LayerNorm(128), nn.LayerNorm(128)
        self.wide = nn.Sequential(nn.Linear(128, 512), nn.ReLU(), nn.Linear(512, 128))
        self.head = nn.Linear(128, 10)


def wide() -> Setting:
    return any_model(WideEncoder, torch.randint(8000, (384, 20)))


MODELS = {
    "convolutional network": convolutional,
    "encoder": encoder,
    "recurrent network": recurrent,
    "wide encoder": wide,
}


def peak_kilobytes() -> int:
    """The most memory that this process has held."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0])


def alone(setting: str, method: str) -> dict[str, float]:
    """Megabytes and milliseconds of alone method, in this process."""
    warnings.filterwarnings("ignore")
    torch.manual_seed(0)
    before = peak_kilobytes()
    run, steps = METHODS[method](MODELS[setting]())
    run()
    peak = peak_kilobytes()
    start = time.process_time()
    run()
    milliseconds = 1e3 * (time.process_time() - start) / steps
    return {"megabytes": (peak - before) / 1024, "milliseconds a step": milliseconds}


def in_a_process(setting: str, method: str) -> dict[str, float] | str:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.trainers", "--one", setting, method],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    if done.returncode:
        return done.stderr.strip().splitlines()[-1]
    return dict(json.loads(done.stdout.splitlines()[-1]))


def with_engine(setting: Setting, engine: str) -> tuple[Callable[[], None], int]:
    """One epoch of ``DPTrainer`` with an engine of its own choice or another one."""
    trainer = DPTrainer(setting.factory, setting.loss, setting.data, engine=engine)
    steps = len(setting.data.train_Y) // setting.batch_size
    settings = {
        "learning_rate": RATE,
        "clip_norm": CLIP,
        "noise_multiplier": NOISE,
        "batch_size": setting.batch_size,
        "epochs": 1,
    }
    return lambda: trainer.fit(**settings, seed=0) and None, steps


METHODS = {
    "plain SGD": plain_sgd,
    "ghost": partial(with_engine, engine="ghost"),
    "per_record": partial(with_engine, engine="per_record"),
    "Opacus hooks": opacus_hooks,
    "Opacus ghost": opacus_ghost,
}


def memory(turns: int, only: str) -> None:
    """Medians over the turns, stored as ``clipping.json``."""
    results: dict[str, object] = {"turns": turns}
    for setting in (name for name in MODELS if only in name):
        print(setting)
        results[setting] = shown = {}
        for method in METHODS:
            answers = [in_a_process(setting, method) for _ in range(turns)]
            numbers = [answer for answer in answers if not isinstance(answer, str)]
            if len(numbers) < turns:  # a method that cannot train this model says why
                shown[method] = next(answer for answer in answers if isinstance(answer, str))
                print(f"  {method:14s} {shown[method]}")
                continue
            medians = {key: statistics.median(n[key] for n in numbers) for key in numbers[0]}
            shown[method] = medians
            print(
                f"  {method:14s} {medians['megabytes']:8.0f} MB, "
                f"{medians['milliseconds a step']:8.1f} ms a step",
                flush=True,
            )
    save_results("clipping", results)


def times(turns: int, only: str) -> None:
    """All ratios, stored as ``trainers.json`` after each model."""
    stored = results_folder() / "trainers.json"
    results = json.loads(stored.read_text()) if only and stored.exists() else {}
    for name, make in (
        ("logistic regression 123-1, batch 256", adult),
        ("convolutional network, 28 x 28, batch 128", convolutional),
        ("encoder, 20 tokens, batch 128", encoder),
        ("recurrent network, 20 tokens, batch 128", recurrent),
        ("network 784-1000-10, batch 600", mnist),
    ):
        if only in name:
            print(name)
            results[name] = {"turns": turns, **measured(make(), turns)}
            save_results("trainers", results)


def main() -> None:
    if sys.argv[1:2] == ["--one"]:
        print(json.dumps(alone(*sys.argv[2:])))
        return
    parser = BenchmarkParser("trainers", __doc__, minutes={"time": 12, "memory": 6})
    parser.add_argument("--turns", type=int, default=9)
    parser.add_argument("--only", default="", help="models whose names contain this")
    options = parser.parse_args()
    torch.manual_seed(0)
    warnings.filterwarnings("ignore", message="Full backward hook")
    for part in options.part:
        {"time": times, "memory": memory}[part](options.turns, options.only)


if __name__ == "__main__":
    main()
