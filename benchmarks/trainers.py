"""What does private training cost in time and memory?

    OMP_NUM_THREADS=1 python -m benchmarks.trainers [--part time memory] [--turns N] [--only NAME]

* ``time``: one step of a model as a user writes it, with torch's own layers and a loss of one line,
  on random data. All methods take turns in one process on one core; times are the process's own,
  and a ratio is that of two methods in the same turn. All private methods draw a batch, clip every
  record's gradient and add noise. Our figure includes all that ``DPTrainer.fit`` does, from fresh
  weights to the accuracy on 10 records (of a published run, the checks of the trained weights,
  too); what is checked before anything is trained is timed apart. Opacus gets its own layers where
  it needs them (``ModuleValidator.fix``); what it raises is stored in the place of a time. JAX
  Privacy, jitted, is there for three models where it is installed; the first steps, which compile,
  are not counted. With ``--device``, everything is on that device, and times are those of the wall.
* ``memory``: some steps of each method in a process of its own: the peak of its memory over what it
  held before, and processor time for a step.
"""

from __future__ import annotations

import importlib.util
import json
import os
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from opacus import GradSampleModule
from opacus.grad_sample import GradSampleModuleFastGradientClipping
from opacus.optimizers import DPOptimizer, DPOptimizerFastGradientClipping
from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping
from opacus.validators import ModuleValidator
from torch import Tensor, nn

from benchmarks.common import BenchmarkParser, results_folder, save_results, seconds
from benchmarks.tables import markdown, stored, two_digits
from botorch_dp.training import DPTrainer, TrainTest
from botorch_dp.training.records import Inputs, parts

RATE, CLIP, NOISE = 0.05, 1.0, 2.0
Loss = Callable[[Tensor, Tensor], Tensor]
#: A run of some steps, and how many.
Method = tuple[Callable[[], object], int]


@dataclass(frozen=True)
class Setting:
    """One model on one shape of data; ``slow`` are steps of a method that forms gradients."""

    factory: Callable[[], nn.Module]
    X: Inputs
    Y: Tensor
    batch_size: int
    epochs: int
    slow: int
    in_jax: bool = False

    @property
    def binary(self) -> bool:
        return self.Y.is_floating_point()

    def loss(self, *, weights: bool = False, mean: bool = False) -> Loss:
        """As a user writes it: of each record, or the mean."""
        how = "mean" if mean else "none"
        if not self.binary:
            weight = torch.linspace(0.1, 1.0, 10) if weights else None
            return nn.CrossEntropyLoss(weight=weight, reduction=how)
        entropy = nn.BCEWithLogitsLoss(
            pos_weight=torch.tensor([0.5]) if weights else None, reduction=how
        )
        return entropy if mean else lambda outputs, targets: entropy(outputs, targets).squeeze(1)

    def batch(self, places: Tensor) -> tuple[Inputs, Tensor]:
        return picked(self.X, places), self.Y[places]


def called(model: nn.Module, X: Inputs) -> Tensor:
    """What a model says of a tensor or of named tensors."""
    return model(**X).logits if isinstance(X, dict) else model(X)


def picked(X: Inputs, places: Tensor) -> Inputs:
    return {key: part[places] for key, part in X.items()} if isinstance(X, dict) else X[places]


def unread(outputs: Tensor, targets: Tensor) -> Tensor:
    """A loss that no trainer knows: the focal loss, or the logistic one by hand."""
    if targets.is_floating_point():
        return F.softplus(-(2 * targets - 1) * outputs).squeeze(-1)
    logs = F.log_softmax(outputs, dim=-1).gather(1, targets.unsqueeze(1)).squeeze(1)
    return -((1 - logs.exp()) ** 2) * logs


class Pooled(nn.Module):
    """Tokens, torch's own layers, and a mean over the places, or the last one."""

    def __init__(self, words: int, width: int, *, layers: int = 0) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, width)
        self.inner: nn.Module = nn.LSTM(width, width, batch_first=True)
        if layers:
            layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True)
            self.inner = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, 10)

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.inner(self.embedding(tokens))
        return self.head(hidden[0][:, -1] if isinstance(hidden, tuple) else hidden.mean(dim=1))


def convolutional_network() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(1, 16, 8, 2, padding=3), nn.ReLU(), nn.MaxPool2d(2, 1)),
        *(nn.Conv2d(16, 32, 4, 2), nn.ReLU(), nn.MaxPool2d(2, 1)),
        *(nn.Flatten(), nn.Linear(512, 32), nn.ReLU(), nn.Linear(32, 10)),
    )


def distilbert() -> nn.Module:
    from transformers import DistilBertConfig, DistilBertForSequenceClassification

    sizes = {"dim": 128, "n_layers": 2, "n_heads": 4, "hidden_dim": 512}
    drops = {"dropout": 0.0, "attention_dropout": 0.0, "seq_classif_dropout": 0.0}
    config = DistilBertConfig(
        vocab_size=1000, max_position_embeddings=32, num_labels=10, **sizes, **drops
    )
    return DistilBertForSequenceClassification(config)


def adult() -> Setting:
    X = torch.rand(30_956, 123).lt(0.11).float()
    y = torch.rand(30_956, 1).lt(0.24).float()
    return Setting(lambda: nn.Linear(123, 1), X, y, 256, 3, 60, in_jax=True)


def of_classes(
    factory: Callable[[], nn.Module], X: Inputs, m: int, epochs: int, slow: int
) -> Setting:
    n = len(next(iter(parts(X).values())))
    return Setting(factory, X, torch.randint(10, (n,)), m, epochs, slow)


def mnist() -> Setting:
    net = partial(nn.Sequential, nn.Linear(784, 1000), nn.ReLU(), nn.Linear(1000, 10))
    return replace(of_classes(net, torch.rand(12_000, 784), 600, 1, 2), in_jax=True)


def images() -> Setting:
    return of_classes(convolutional_network, torch.rand(2560, 1, 28, 28), 128, 10, 10)


def sentences(words: int = 2000, *, layers: int = 0) -> Setting:
    model = partial(Pooled, words, 128 if layers else 64, layers=layers)
    length, epochs = (64, 6) if layers else (32, 25)
    setting = of_classes(model, torch.randint(words, (512, length)), 64, epochs, 8)
    return replace(setting, in_jax=not layers)


def masked() -> Setting:
    """Sentences of 16 to 32 tokens with their masks."""
    tokens, lengths = torch.randint(3, 1000, (512, 32)), torch.randint(16, 33, (512, 1))
    mask = (torch.arange(32) < lengths).long()
    return of_classes(distilbert, {"input_ids": tokens * mask, "attention_mask": mask}, 32, 10, 8)


MODELS: dict[str, Callable[[], Setting]] = {
    "logistic regression, 123 numbers, batch 256": adult,
    "network 784-1000-10, batch 600": mnist,
    "convolutional network, 28 x 28, batch 128": images,
    "`nn.TransformerEncoder`, 64 tokens, width 128, batch 64": partial(sentences, layers=2),
    "`nn.Embedding` and `nn.LSTM`, 32 tokens, width 64, batch 64": sentences,
    "DistilBERT of width 128, 32 tokens, batch 32": masked,
}


def random_places(setting: Setting) -> Tensor:
    """A batch by the rule of Opacus's own Poisson sampler."""
    n = len(setting.Y)
    return (torch.rand(n) < setting.batch_size / n).nonzero().flatten()


def plain_sgd(setting: Setting) -> Method:
    """Autograd, ``torch.optim.SGD`` and shuffled epochs: neither clipping nor noise."""
    model, n, m = setting.factory().train(), len(setting.Y), setting.batch_size
    optimizer, loss = torch.optim.SGD(model.parameters(), lr=RATE), setting.loss(mean=True)

    def run() -> None:
        for _ in range(setting.epochs):
            for places in torch.randperm(n).split(m)[: n // m]:
                optimizer.zero_grad()
                X, Y = setting.batch(places)
                loss(called(model, X), Y).backward()
                optimizer.step()

    return run, setting.epochs * (n // m)


def ours(
    setting: Setting, loss: Loss | None = None, *, publish: bool = False, engine: str = "auto"
) -> Method:
    first = torch.arange(10)
    data = TrainTest(setting.X, setting.Y, *setting.batch(first))
    trainer = DPTrainer(setting.factory, loss or setting.loss(), data, engine=engine)
    steps = setting.epochs * (len(setting.Y) // setting.batch_size)
    settings = {"learning_rate": RATE, "clip_norm": CLIP, "noise_multiplier": NOISE}
    settings |= {"batch_size": setting.batch_size, "epochs": setting.epochs}
    return lambda: trainer.fit(**settings, seed=None if publish else 0, publish=publish), steps


def opacus(setting: Setting, *, ghost: bool = False) -> Method:
    """Opacus as it comes: by hooks, or by norms first and a second backward pass."""
    model = ModuleValidator.fix(setting.factory().train())
    how = {"max_grad_norm": CLIP, "expected_batch_size": setting.batch_size}
    plain, mean = torch.optim.SGD(model.parameters(), lr=RATE), setting.loss(mean=True)
    if ghost:
        wrapped: Any = GradSampleModuleFastGradientClipping(
            model, max_grad_norm=CLIP, use_ghost_clipping=True
        )
        optimizer: Any = DPOptimizerFastGradientClipping(plain, noise_multiplier=NOISE, **how)
        criterion: Any = DPLossFastGradientClipping(wrapped, optimizer, mean)
    else:
        wrapped, criterion = GradSampleModule(model), mean
        optimizer = DPOptimizer(plain, noise_multiplier=NOISE, **how)
    steps = setting.slow * (5 if ghost else 1)

    def run() -> None:
        for _ in range(steps):
            X, Y = setting.batch(random_places(setting))
            optimizer.zero_grad()
            scores = called(wrapped, X)
            # Ghost clipping multiplies losses by factors of the records, which are a row.
            criterion(scores.squeeze(-1) if setting.binary else scores, Y.view(len(Y))).backward()
            optimizer.step()

    return run, steps


def jax_privacy(setting: Setting) -> Method:
    """Jitted steps on batches of a fixed size; with microbatches where they take less time."""
    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax_privacy.clipping import clipped_grad

    kept = {name: p.detach().numpy() for name, p in setting.factory().named_parameters()}
    assert isinstance(setting.X, Tensor)
    X, Y, m = setting.X.numpy(), setting.Y.numpy(), setting.batch_size

    def outputs(p: Any, x: Any) -> Any:
        if "inner.weight_hh_l0" not in p:
            for layer in sorted({name.split(".")[0] for name in p if name.endswith("weight")}):
                x = jnp.maximum(x, 0) if layer not in ("0", "weight") else x
                key = "" if layer == "weight" else f"{layer}."
                x = x @ p[f"{key}weight"].T + p[f"{key}bias"]
            return x
        gates = p["embedding.weight"][x] @ p["inner.weight_ih_l0"].T + p["inner.bias_ih_l0"]

        def cell(state: Any, gate: Any) -> Any:
            h, c = state
            i, f, g, o = jnp.split(
                gate + h @ p["inner.weight_hh_l0"].T + p["inner.bias_hh_l0"], 4, axis=-1
            )
            c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
            h = jax.nn.sigmoid(o) * jnp.tanh(c)
            return (h, c), None

        zero = jnp.zeros((len(x), 64))
        (h, _), _ = jax.lax.scan(cell, (zero, zero), gates.transpose(1, 0, 2))
        return h @ p["head.weight"].T + p["head.bias"]

    def loss(p: Any, x: Any, y: Any) -> Any:
        scores = outputs(p, x)
        if setting.binary:
            return (jax.nn.softplus(scores) - y * scores).mean()
        return -jnp.take_along_axis(jax.nn.log_softmax(scores), y[:, None], 1).mean()

    def method(size: int | None) -> Method:
        summed = clipped_grad(loss, l2_clip_norm=CLIP, batch_argnums=(1, 2), microbatch_size=size)

        @jax.jit
        def step(p: Any, key: Any, x: Any, y: Any) -> Any:
            key, *keys = jax.random.split(key, len(p) + 1)
            found = summed(p, x, y)
            noisy = {
                name: found[name] + NOISE * CLIP * jax.random.normal(k, found[name].shape)
                for name, k in zip(found, keys, strict=True)
            }
            return {name: p[name] - RATE / m * noisy[name] for name in p}, key

        state = ({name: jnp.asarray(value) for name, value in kept.items()}, jax.random.key(0))
        draws = np.random.default_rng(0)

        def run() -> None:
            nonlocal state
            for _ in range(setting.slow):
                places = draws.integers(len(Y), size=m)
                state = step(*state, X[places], Y[places])
            jax.block_until_ready(state)

        run()
        return run, setting.slow

    return min((method(size) for size in (None, m // 8)), key=lambda each: seconds(each[0]))


def measured(setting: Setting, turns: int) -> dict[str, Any]:
    methods: dict[str, Method] = {
        "plain SGD": plain_sgd(setting),
        "own loss": ours(setting),
        "own loss, published": ours(setting, publish=True),
        "weights": ours(setting, setting.loss(weights=True)),
        "another loss": ours(setting, unread),
    }
    results: dict[str, Any] = {}
    others: dict[str, Callable[[Setting], Method]] = {
        "Opacus hooks": opacus,
        "Opacus ghost": partial(opacus, ghost=True),
    }
    if setting.in_jax and importlib.util.find_spec("jax_privacy"):
        others["JAX Privacy"] = jax_privacy
    for name, make in others.items():
        try:
            method = make(setting)
            method[0]()
            methods[name] = method
        except Exception as error:  # it cannot train all models
            results[name] = f"{type(error).__name__}: {error}".splitlines()[0]
            print(f"  {name} raises {results[name]}")
    for run, _ in methods.values():
        run()
    taken: dict[str, list[float]] = {name: [] for name in methods}
    for _ in range(turns):
        for name, (run, steps) in methods.items():
            taken[name].append(_seconds(run) / steps)
    results["checks"] = seconds(lambda: ours(setting))
    for name, spent in taken.items():
        results[name] = {"microseconds a record": 1e6 * statistics.median(spent)}
        results[name]["microseconds a record"] /= setting.batch_size
        # How long a method of ours takes in units of the other's time, in the same turn.
        for mine in ("own loss", "own loss, published", "weights", "another loss"):
            ratios = sorted(a / b for a, b in zip(taken[mine], spent, strict=True))
            results[name][mine] = [statistics.median(ratios), ratios[0], ratios[-1]]
        print(f"  {name:20s} {results[name]}", flush=True)
    return results


def _seconds(run: Callable[[], object]) -> float:
    """The process's own seconds; on another device those of the wall, to the end of its work."""
    if torch.get_default_device().type == "cpu":
        return seconds(run, time.process_time)
    torch.accelerator.synchronize()
    return seconds(lambda: (run(), torch.accelerator.synchronize()))


def times(turns: int, only: str) -> None:
    """All ratios, stored as ``trainers.json`` after each model."""
    device = torch.get_default_device().type
    name = "trainers" if device == "cpu" else f"trainers_{device}"
    file = results_folder() / f"{name}.json"
    results = json.loads(file.read_text()) if only and file.exists() else {}
    if device == "cpu" and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})  # JAX takes all that it may have
    for model, make in MODELS.items():
        if only in model:
            print(model)
            results[model] = {"turns": turns, **measured(make(), turns)}
            save_results(name, results)


#: Memory is that of a larger table, where the gradients of single records are large.
LARGE: dict[str, Callable[[], Setting]] = {
    "convolutional network": images,
    "`nn.TransformerEncoder`, 8,000 words": partial(sentences, 8000, layers=2),
    "`nn.LSTM`": sentences,
}
METHODS: dict[str, Callable[[Setting], Method]] = {
    "plain SGD": plain_sgd,
    "ghost": partial(ours, engine="ghost"),
    "per_record": partial(ours, engine="per_record"),
    "Opacus hooks": opacus,
    "Opacus ghost": partial(opacus, ghost=True),
}


def alone(model: str, method: str) -> dict[str, float]:
    """Megabytes and milliseconds of one method, in this process."""

    def peak() -> int:
        return int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0])

    warnings.filterwarnings("ignore")
    torch.manual_seed(0)
    before = peak()
    run, steps = METHODS[method](LARGE[model]())
    run()
    most = peak()
    spent = seconds(run, time.process_time) / steps
    return {"megabytes": (most - before) / 1024, "milliseconds a step": 1e3 * spent}


def memory(turns: int, only: str) -> None:
    """Medians over the turns, stored as ``clipping.json``; what a method raises in their place."""
    results: dict[str, Any] = {"turns": turns}
    for model in (name for name in LARGE if only in name):
        results[model] = {}
        for method in METHODS:
            done = [
                subprocess.run(
                    [sys.executable, "-m", "benchmarks.trainers", "--one", model, method],
                    capture_output=True,
                    text=True,
                )
                for _ in range(turns)
            ]
            if any(each.returncode for each in done):
                results[model][method] = done[0].stderr.strip().splitlines()[-1]
            else:
                found = [json.loads(each.stdout.splitlines()[-1]) for each in done]
                results[model][method] = {
                    key: statistics.median(each[key] for each in found) for key in found[0]
                }
            print(f"{model}: {method}: {results[model][method]}", flush=True)
    save_results("clipping", results)


def table_trainers() -> str:
    """What each way to train takes over plain SGD, and over its peers."""
    rows, peers, raised = [], [], []
    for model, by in _models("trainers").items():
        plain = by["plain SGD"]
        kinds = ("own loss", "weights", "another loss", "own loss, published")
        micros = f"{two_digits(plain['microseconds a record'])} µs"
        rows.append([model, micros, *(_of(plain[kind]) for kind in kinds)])
        cells = []
        for peer in ("Opacus hooks", "Opacus ghost", "JAX Privacy"):
            if isinstance(by.get(peer), str):
                raised.append([model, peer, f"`{by[peer][:90]}`"])
            for kind in ("own loss", "own loss, published"):
                is_there = isinstance(by.get(peer), dict)
                cells.append(_of(by[peer][kind]) if is_there else "–")
        peers.append([model, *cells, f"{by['checks']:.2f} s"])
    head = ["plain SGD, a record", "own loss", "with weights", "another loss", "published"]
    of = [
        f"{peer}, {how}"
        for peer in ("Opacus hooks", "Opacus ghost", "JAX Privacy")
        for how in ("seeded", "published")
    ]
    return (
        markdown(["model", *head], rows)
        + "\nOver its peers, with your own loss:\n\n"
        + markdown(["model", *of, "checks before the first step"], peers)
        + ("\nWhat the peers raise:\n\n" + markdown(["model", "", "error"], raised)) * bool(raised)
    )


def _models(name: str) -> dict[str, Any]:
    return {model: by for model, by in stored(name).items() if model not in ("machine", "turns")}


def _of(found: list[float]) -> str:
    median, low, high = found
    return f"{median:.2f} ({low:.2f} to {high:.2f})"


def table_trainer_memory() -> str:
    def cell(found: Any) -> str:
        if isinstance(found, str):
            return "raises"
        return f"{found['megabytes']:,.0f} MB, {found['milliseconds a step']:,.0f} ms"

    rows = [[m, *(cell(by[method]) for method in METHODS)] for m, by in _models("clipping").items()]
    return markdown(["", *METHODS], rows)


def main() -> None:
    if sys.argv[1:2] == ["--one"]:
        print(json.dumps(alone(*sys.argv[2:])))
        return
    parser = BenchmarkParser("trainers", __doc__, minutes={"time": 8, "memory": 6})
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--device", default="cpu", help="where everything is, such as cuda")
    parser.add_argument("--only", default="", help="models whose names contain this")
    options = parser.parse_args()
    try:
        torch.zeros(1, device=options.device).item()
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        parser.error(f"--device {options.device} cannot be used here: {error}")
    torch.set_default_device(options.device)
    torch.manual_seed(0)
    warnings.filterwarnings("ignore", message="Full backward hook")
    for part in options.part:
        {"time": times, "memory": memory}[part](options.turns, options.only)


if __name__ == "__main__":
    main()
