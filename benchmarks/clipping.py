"""What clipping takes in memory and time: ghost norms, gradients of single records, and Opacus.

Some steps of each method in a process of its own: the peak of its memory over what it held after
the imports (with data, model, and what the trainer checks before the first step), and the own
time of the process for a step. Models: those of ``trainers``, and an encoder
with a table of 8,000 words and a width of 128, where the gradients of single records are large. All
but plain SGD draw a batch, clip each record's gradient and add noise.

Targets: on the wide encoder, ghost norms take at most a third of the memory and of the time that
gradients of single records take; on the others no more time.

Run: ``OMP_NUM_THREADS=1 python -m benchmarks.clipping [--turns N]``
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
from functools import partial
from pathlib import Path

import torch
from opacus.layers import DPMultiheadAttention
from torch import nn

from benchmarks.common import BenchmarkParser, save_results
from benchmarks.trainers import (
    CLIP,
    NOISE,
    RATE,
    Encoder,
    Setting,
    any_model,
    convolutional,
    encoder,
    opacus_ghost,
    opacus_hooks,
    plain_sgd,
    recurrent,
)
from botorch_dp.training import DPTrainer


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


def ours(setting: Setting, engine: str) -> tuple[Callable[[], None], int]:
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


SETTINGS = {
    "convolutional network": convolutional,
    "encoder": encoder,
    "recurrent network": recurrent,
    "wide encoder": wide,
}
METHODS = {
    "plain SGD": plain_sgd,
    "ghost": partial(ours, engine="ghost"),
    "per_record": partial(ours, engine="per_record"),
    "Opacus hooks": opacus_hooks,
    "Opacus ghost": opacus_ghost,
}


def peak_kilobytes() -> int:
    """The most memory that this process has held."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0])


def one(setting: str, method: str) -> dict[str, float]:
    """Megabytes and milliseconds of one method, in this process."""
    warnings.filterwarnings("ignore")
    torch.manual_seed(0)
    before = peak_kilobytes()
    run, steps = METHODS[method](SETTINGS[setting]())
    run()
    peak = peak_kilobytes()
    start = time.process_time()
    run()
    milliseconds = 1e3 * (time.process_time() - start) / steps
    return {"megabytes": (peak - before) / 1024, "milliseconds a step": milliseconds}


def in_a_process(setting: str, method: str) -> dict[str, float] | str:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.clipping", "--one", setting, method],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    if done.returncode:
        return done.stderr.strip().splitlines()[-1]
    return dict(json.loads(done.stdout.splitlines()[-1]))


def main() -> None:
    if sys.argv[1:2] == ["--one"]:
        print(json.dumps(one(*sys.argv[2:])))
        return
    parser = BenchmarkParser("clipping", __doc__, minutes=6)
    parser.add_argument("--turns", type=int, default=3)
    turns = parser.parse_args().turns
    results: dict[str, object] = {"turns": turns}
    for setting in SETTINGS:
        print(setting)
        found: dict[str, list[dict[str, float] | str]] = {name: [] for name in METHODS}
        for _ in range(turns):
            for method, answers in found.items():
                answers.append(in_a_process(setting, method))
        shown: dict[str, object] = {}
        for method, answers in found.items():
            numbers = [answer for answer in answers if not isinstance(answer, str)]
            if len(numbers) < turns:
                shown[method] = answers[0]
                print(f"  {method:14s} {answers[0]}")
                continue
            medians = {key: statistics.median(n[key] for n in numbers) for key in numbers[0]}
            shown[method] = medians
            print(
                f"  {method:14s} {medians['megabytes']:8.0f} MB, "
                f"{medians['milliseconds a step']:8.1f} ms a step",
                flush=True,
            )
        results[setting] = shown
    print(save_results("clipping", results))


if __name__ == "__main__":
    main()
