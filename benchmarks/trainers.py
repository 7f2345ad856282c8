"""What privacy costs in time and memory: the trainers against plain SGD and Opacus.

    OMP_NUM_THREADS=1 python -m benchmarks.trainers [--part time memory] [--turns N] [--only NAME]

* ``time``: one step on random data of the shapes of Adult (30,956 x 123) and of a fifth of MNIST
  (12,000 x 784), and of a small convolutional network, an encoder, torch's transformer layer, a
  recurrent network, and classifiers of ``transformers`` made from small configurations. The
  methods take turns in one process, each for its own number of steps; times are the process's own,
  and a ratio is how much longer a method takes than another in the same turn. All private
  methods draw a batch, clip every record's gradient and add noise. Opacus's sums of clipped
  gradients are first held against autograd's record by record; what it raises is stored in the
  place of a time. The trainer's figure includes everything that :meth:`DPTrainer.fit` does, from
  fresh weights to the accuracy on 10 records, on Poisson batches; what it checks before anything is
  trained is timed apart. Rows of "own loss" come first: what a user writes, one line of torch that
  this package does not know. With ``--device``, everything is on that device, times are those of
  the wall, and each run ends when the device has finished.
* ``memory``: some steps of each method in a process of its own: the peak of its memory over what it
  held before (with data, model, and what the trainer checks before the first step), and processor
  time for a step. Models: those of ``time``, and an encoder with a table of 8,000 words and a width
  of 128, where the gradients of single records are large.
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

import torch
import torch.nn.functional as F
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
from botorch_dp.training import (
    DPTrainer,
    TrainTest,
    cross_entropy_loss,
    logistic_loss,
    logistic_regression,
    multilayer_perceptron,
)
from botorch_dp.training.engines.fused import FusedEngine
from botorch_dp.training.plan import Sampling
from botorch_dp.training.records import Inputs, parts

RATE, CLIP, NOISE, REPLICATES = 0.05, 1.0, 2.0, 10


@dataclass(frozen=True)
class Setting:
    """One model on one shape of data; the loss as a module, for those who need a mean."""

    factory: Callable[[], nn.Module]
    loss: Callable[[Tensor, Tensor], Tensor]
    own: dict[str, Callable[[Tensor, Tensor], Tensor]]
    """Losses of single records as a user writes them."""
    module: nn.Module
    data: TrainTest
    batch_size: int
    epochs: int
    slow_steps: int
    """Steps of the hooks in one turn; the others take more."""
    brief: bool = False
    """Whether to leave out what only compares our own ways to train."""

    def outputs(self, model: nn.Module, X: Inputs) -> Tensor:
        """Scores of a batch as ``module`` takes them."""
        scores = called(model, X)
        return scores.squeeze(-1) if self.data.train_Y.dim() == 1 else scores


def called(model: nn.Module, X: Inputs) -> Tensor:
    """What a model says of a tensor or of named tensors."""
    return model(**X).logits if isinstance(X, dict) else model(X)


def picked(X: Inputs, places: Tensor) -> Inputs:
    """Some of the records."""
    return {key: part[places] for key, part in X.items()} if isinstance(X, dict) else X[places]


def softplus_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.softplus(-(2 * targets - 1) * outputs.squeeze(-1))


def entropy_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.binary_cross_entropy_with_logits(outputs.squeeze(-1), targets, reduction="none")


def classes_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(outputs, targets, reduction="none")


def adult() -> Setting:
    X = torch.rand(30_956, 123).lt(0.11).float()
    y = torch.rand(30_956).lt(0.24).float()
    return Setting(
        partial(logistic_regression, 123),
        logistic_loss,
        {"softplus": softplus_loss, "binary cross-entropy": entropy_loss},
        nn.BCEWithLogitsLoss(),
        TrainTest(X, y, X[:10], y[:10]),
        batch_size=256,
        epochs=3,
        slow_steps=60,
    )


def adult_column() -> Setting:
    """Targets in a column, for which torch's own losses can be passed as they are."""
    setting = adult()
    X, y = setting.data.train_X, setting.data.train_Y.unsqueeze(1)
    loss = F.binary_cross_entropy_with_logits
    own = {
        "`F.binary_cross_entropy_with_logits`": loss,
        "`F.mse_loss`": F.mse_loss,
        "a lambda that calls the former": lambda outputs, targets: loss(outputs, targets),
    }
    data = TrainTest(X, y, X[:10], y[:10])
    return replace(setting, loss=loss, own=own, data=data, brief=True)


def mnist() -> Setting:
    X, y = torch.rand(12_000, 784), torch.randint(10, (12_000,))
    return Setting(
        partial(multilayer_perceptron, 784, 10, (1000,)),
        cross_entropy_loss,
        {"cross-entropy": classes_loss},
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


class TorchEncoder(nn.Module):
    """Tokens, torch's own transformer layer and a mean."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, 32)
        self.layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
        self.head = nn.Linear(32, 10)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.layer(self.embedding(tokens)).mean(dim=1))


def torch_encoder() -> Setting:
    return replace(any_model(TorchEncoder, torch.randint(50, (1280, 20))), brief=True)


def distilbert_model() -> nn.Module:
    from transformers import DistilBertConfig, DistilBertForSequenceClassification

    sizes = {"dim": 128, "n_layers": 2, "n_heads": 4, "hidden_dim": 512}
    drops = {"dropout": 0.0, "attention_dropout": 0.0, "seq_classif_dropout": 0.0}
    config = DistilBertConfig(
        vocab_size=1000, max_position_embeddings=32, num_labels=10, **sizes, **drops
    )
    return DistilBertForSequenceClassification(config)


def frozen_distilbert_model() -> nn.Module:
    """Its tables frozen: Opacus has no gradients for positions that all records share."""
    model = distilbert_model()
    model.get_submodule("distilbert.embeddings").requires_grad_(False)
    return model


def gpt2_model() -> nn.Module:
    from transformers import GPT2Config, GPT2ForSequenceClassification

    sizes = {"n_embd": 128, "n_layer": 2, "n_head": 4, "n_positions": 32}
    drops = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    ends = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    config = GPT2Config(vocab_size=1000, num_labels=10, **sizes, **drops, **ends)
    return GPT2ForSequenceClassification(config)


def hugging_face(factory: Callable[[], nn.Module]) -> Setting:
    """Sentences of 16 to 32 tokens with their masks."""
    tokens, lengths = torch.randint(3, 1000, (256, 32)), torch.randint(16, 33, (256, 1))
    mask = (torch.arange(32) < lengths).long()
    setting = any_model(factory, {"input_ids": tokens * mask, "attention_mask": mask})
    return replace(setting, batch_size=32, epochs=8, slow_steps=8, brief=True)


def any_model(factory: Callable[[], nn.Module], X: Inputs) -> Setting:
    n = len(next(iter(parts(X).values())))
    y = torch.randint(10, (n,))
    first = torch.arange(10)
    data = TrainTest(X, y, picked(X, first), y[:10])
    loss = nn.CrossEntropyLoss()
    own = {"cross-entropy": classes_loss}
    return Setting(
        factory, cross_entropy_loss, own, loss, data, batch_size=128, epochs=5, slow_steps=5
    )


def random_batch(setting: Setting) -> tuple[Inputs, Tensor]:
    """A batch for the private baselines, by Opacus's own Poisson sampler's rule."""
    n = len(setting.data.train_Y)
    indices = (torch.rand(n) < setting.batch_size / n).nonzero().flatten()
    return picked(setting.data.train_X, indices), setting.data.train_Y[indices]


def plain_sgd(
    setting: Setting, loss: Callable[[Tensor, Tensor], Tensor] | None = None
) -> tuple[Callable[[], None], int]:
    """Autograd, ``torch.optim.SGD`` and shuffled epochs: neither clipping nor noise."""
    model, n, m = setting.factory().train(), len(setting.data.train_Y), setting.batch_size
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    X, Y = setting.data.train_X, setting.data.train_Y

    def run() -> None:
        for _ in range(setting.epochs):
            for indices in torch.randperm(n).split(m)[: n // m]:
                optimizer.zero_grad()
                batch = picked(X, indices)
                if loss is None:
                    setting.module(setting.outputs(model, batch), Y[indices]).backward()
                else:
                    loss(called(model, batch), Y[indices]).mean().backward()
                optimizer.step()

    return run, setting.epochs * (n // m)


def opacus_step(
    setting: Setting, model: nn.Module, *, ghost: bool, noise: float, expected: int, rate: float
) -> Callable[[Inputs, Tensor], None]:
    """A step of Opacus as it comes: by hooks, or by norms first and a second backward pass."""
    how = {"noise_multiplier": noise, "max_grad_norm": CLIP, "expected_batch_size": expected}
    plain = torch.optim.SGD(model.parameters(), lr=rate)
    if ghost:
        wrapped: nn.Module = GradSampleModuleFastGradientClipping(
            model, max_grad_norm=CLIP, use_ghost_clipping=True
        )
        optimizer = DPOptimizerFastGradientClipping(plain, **how)
        criterion = DPLossFastGradientClipping(wrapped, optimizer, setting.module)
    else:
        wrapped, criterion = GradSampleModule(model), setting.module
        optimizer = DPOptimizer(plain, **how)

    def step(X: Inputs, Y: Tensor) -> None:
        optimizer.zero_grad()
        criterion(setting.outputs(wrapped, X), Y).backward()
        optimizer.step()

    return step


def opacus(setting: Setting, *, ghost: bool = False) -> tuple[Callable[[], None], int]:
    """Steps of Opacus on batches that are drawn as its sampler draws them."""
    model, expected = setting.factory().train(), setting.batch_size
    step = opacus_step(setting, model, ghost=ghost, noise=NOISE, expected=expected, rate=RATE)
    steps = setting.slow_steps * (5 if ghost and not setting.brief else 1)

    def run() -> None:
        for _ in range(steps):
            step(*random_batch(setting))

    return run, steps


def distance_of_opacus(setting: Setting, *, ghost: bool) -> float:
    """How far its sum of clipped gradients is from autograd's, relative to the norm of that.

    Autograd's gradients are those of one record at a time; the sums are over 16 records.
    """
    torch.manual_seed(1)
    model, places = setting.factory().train(), torch.arange(16)
    X, Y = picked(setting.data.train_X, places), setting.data.train_Y[places]
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    expected = [torch.zeros_like(parameter) for parameter in trained]
    for place in places:
        one = place.unsqueeze(0)
        loss = setting.module(setting.outputs(model, picked(X, one)), Y[one])
        slopes = torch.autograd.grad(loss, trained)
        norm = torch.stack([slope.norm() for slope in slopes]).norm()
        for total, slope in zip(expected, slopes, strict=True):
            total += slope * (CLIP / norm).clamp(max=1)
    before = [parameter.detach().clone() for parameter in trained]
    opacus_step(setting, model, ghost=ghost, noise=0.0, expected=1, rate=1.0)(X, Y)
    wrong = [
        old - new.detach() - total
        for old, new, total in zip(before, trained, expected, strict=True)
    ]
    return float(_norm(wrong) / _norm(expected))


def _norm(tensors: list[Tensor]) -> Tensor:
    return torch.stack([tensor.norm() for tensor in tensors]).norm()


def ours(
    setting: Setting,
    *,
    replicates: int = 1,
    publish: bool = False,
    sampling: Sampling = "poisson",
    engine: str = "auto",
) -> tuple[Callable[[], None], int]:
    """``DPTrainer``; steps are counted over all replicates."""
    trainer = DPTrainer(
        setting.factory,
        setting.loss,
        setting.data,
        sampling=sampling,
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

    return run, replicates * epochs * (len(setting.data.train_Y) // setting.batch_size)


def measured(setting: Setting, turns: int) -> dict[str, object]:
    fused = FusedEngine.why_not(setting.factory(), setting.data.train_X) is None
    results: dict[str, object] = {}
    methods: dict[str, tuple[Callable[[], None], int]] = {}
    for name, own in setting.own.items():
        theirs = replace(setting, loss=own)
        methods |= {
            f"own loss: {name}": ours(theirs),
            f"own loss: {name}, published": ours(theirs, publish=True),
            f"own loss: {name}, plain SGD": plain_sgd(setting, own),
        }
    if not setting.brief:
        methods |= {
            "DPTrainer": ours(setting),
            "plain SGD": plain_sgd(setting),
            "DPTrainer, fixed batches": ours(setting, sampling="without_replacement"),
            "DPTrainer, published": ours(setting, publish=True),
        }
        if setting.slow_steps >= 5:  # the hooks take a second for a step of the network
            methods["DPTrainer, by Opacus"] = ours(setting, engine="opacus")
    for name, ghost in (("Opacus hooks", False), ("Opacus ghost clipping", True)):
        try:
            distance = distance_of_opacus(setting, ghost=ghost)
            method = opacus(setting, ghost=ghost)
            method[0]()
        except Exception as error:  # it cannot train all models
            results[name] = {"raises": f"{type(error).__name__}: {error}".splitlines()[0]}
            print(f"  {name:27s} raises {type(error).__name__}")
            continue
        methods[name] = method
        results[f"{name}, distance from single records"] = distance
        print(f"  {name:27s} is {distance:.2g} from the sums over single records")
    if fused and not setting.brief:
        methods |= {
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
            taken[name].append(_seconds(run) / steps)
    started = seconds(lambda: DPTrainer(setting.factory, setting.loss, setting.data))
    results["seconds before the first step"] = started
    print(f"  {1e3 * started:.0f} ms of checks before the first step")
    first = next(iter(methods)) if setting.brief else "DPTrainer"
    for name, times in taken.items():
        results[name] = _compared(name, times, taken[first], first)
    for name in ("DPTrainer", f"{REPLICATES} replicates"):
        fixed = f"{name}, fixed batches"
        if fixed in taken:
            results[f"{name}, Poisson against fixed"] = _compared(
                f"{name}, Poisson", taken[name], taken[fixed], "fixed"
            )
    for name in setting.own:
        for how in ("", ", published"):
            row = f"own loss: {name}{how}"
            for other in (f"own loss: {name}, plain SGD", "Opacus hooks", "Opacus ghost clipping"):
                if other in taken:
                    against = taken[other]
                    results[f"{row}, over {other.rpartition(', ')[2]}"] = _compared(
                        row, taken[row], against, other
                    )
    if not setting.brief:
        results["DPTrainer, over plain SGD"] = _compared(
            "DPTrainer", taken["DPTrainer"], taken["plain SGD"], "plain SGD"
        )
    return results


def _seconds(run: Callable[[], object]) -> float:
    """The process's own seconds; on another device those of the wall, to the end of its work."""
    device = torch.get_default_device().type
    if device == "cpu":
        return seconds(run, time.process_time)
    torch.accelerator.synchronize()
    return seconds(lambda: (run(), torch.accelerator.synchronize()))


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
    "Opacus hooks": opacus,
    "Opacus ghost": partial(opacus, ghost=True),
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
    device = torch.get_default_device().type
    stored = "trainers" if device == "cpu" else f"trainers_{device}"
    file = results_folder() / f"{stored}.json"
    results = json.loads(file.read_text()) if only and file.exists() else {}
    for name, make in (
        ("logistic regression 123-1, batch 256", adult),
        ("logistic regression, targets in a column", adult_column),
        ("convolutional network, 28 x 28, batch 128", convolutional),
        ("encoder, 20 tokens, batch 128", encoder),
        ("torch's transformer layer, 20 tokens, batch 128", torch_encoder),
        ("recurrent network, 20 tokens, batch 128", recurrent),
        ("DistilBERT, 32 tokens, batch 32", partial(hugging_face, distilbert_model)),
        (
            "DistilBERT with frozen embeddings, 32 tokens, batch 32",
            partial(hugging_face, frozen_distilbert_model),
        ),
        ("GPT-2, 32 tokens, batch 32", partial(hugging_face, gpt2_model)),
        ("network 784-1000-10, batch 600", mnist),
    ):
        named = isinstance(make, partial)
        if only in name and named and importlib.util.find_spec("transformers") is None:
            print(f"{name}: left out, because transformers is not installed.")
        elif only in name:
            print(name)
            results[name] = {"turns": turns, **measured(make(), turns)}
            save_results(stored, results)


def main() -> None:
    if sys.argv[1:2] == ["--one"]:
        print(json.dumps(alone(*sys.argv[2:])))
        return
    parser = BenchmarkParser("trainers", __doc__, minutes={"time": 8, "memory": 6})
    parser.add_argument("--turns", type=int, default=4)
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
