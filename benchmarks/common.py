"""What every benchmark needs: fair timing, intervals, options, a folder for results.

Timings are ratios against a baseline in the same process, the two interleaved so that a noisy
neighbour slows both. Set ``OMP_NUM_THREADS=1``: with shared cores, threads mostly wait.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path
from typing import Any

from botorch_dp._files import atomic_write

RESULTS = Path(__file__).parent / "results"
_out = RESULTS


def results_folder() -> Path:
    """Where results and figures go: ``benchmarks/results``, unless ``--out`` said otherwise."""
    _out.mkdir(parents=True, exist_ok=True)
    return _out


class BenchmarkParser(argparse.ArgumentParser):
    """Options of a benchmark; before it starts it says how long it takes.

    Args:
        script: Its name.
        doc: Its docstring.
        minutes: How long it takes with the options' defaults on one of two shared cores, or how
            long each of its parts takes; ``--part`` then chooses some of them. To be listed by
            ``python -m benchmarks``, the numbers stand in the call or in a variable before it.
    """

    def __init__(
        self, script: str, doc: str | None, *, minutes: float | Mapping[str, float]
    ) -> None:
        super().__init__(
            prog=f"python -m benchmarks.{script}",
            description=doc,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        self._minutes = minutes if isinstance(minutes, Mapping) else {"": minutes}
        self.add_argument("--out", type=Path, default=RESULTS, help="folder of what comes out")
        if isinstance(minutes, Mapping):
            self.add_argument(
                "--part", nargs="+", choices=list(minutes), default=list(minutes), help="only these"
            )

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        global _out
        options = super().parse_args(args, namespace)
        _out = options.out
        minutes = sum(self._minutes[part] for part in getattr(options, "part", [""]))
        several = "a minute" if minutes == 1 else f"{minutes:g} minutes"
        duration = several if minutes >= 1 else "less than a minute"
        print(f"By default this takes about {duration}; results go to {_out}.", flush=True)
        return options


@dataclass(frozen=True)
class Ratio:
    """How long a baseline takes in units of the method: above 1, the method is faster."""

    median: float
    low: float
    high: float
    method_seconds: float
    baseline_seconds: float
    repeats: int

    def __str__(self) -> str:
        return (
            f"{self.median:.3g}x (range {self.low:.3g} to {self.high:.3g}, {self.repeats} repeats; "
            f"{self.method_seconds:.3g} s against {self.baseline_seconds:.3g} s)"
        )


def seconds(function: Callable[[], Any], clock: Callable[[], float] = time.perf_counter) -> float:
    """Seconds of one call, by the wall unless told otherwise."""
    start = clock()
    function()
    return clock() - start


def interleaved_ratio(
    method: Callable[[], Any],
    baseline: Callable[[], Any],
    *,
    repeats: int = 7,
    warmup: int = 1,
    clock: Callable[[], float] = time.perf_counter,
) -> Ratio:
    """Time ``baseline`` over ``method``, taking turns; the median over pairs and its range.

    For calls of a few milliseconds on a shared machine, pass ``time.process_time``: the scheduler
    takes longer turns than that.
    """
    for _ in range(warmup):
        method()
        baseline()
    pairs = [(seconds(method, clock), seconds(baseline, clock)) for _ in range(repeats)]
    ratios = sorted(slow / fast for fast, slow in pairs)
    return Ratio(
        median=statistics.median(ratios),
        low=ratios[0],
        high=ratios[-1],
        method_seconds=statistics.median(fast for fast, _ in pairs),
        baseline_seconds=statistics.median(slow for _, slow in pairs),
        repeats=repeats,
    )


@dataclass(frozen=True)
class Interval:
    """A mean with its 95% confidence interval (Student's t) over independent seeds."""

    mean: float
    low: float
    high: float
    count: int

    def __str__(self) -> str:
        return f"{self.mean:.4g} [{self.low:.4g}, {self.high:.4g}]"


def mean_interval(values: Sequence[float], confidence: float = 0.95) -> Interval:
    """The mean of independent repetitions with a Student-t interval."""
    from scipy.stats import t

    count = len(values)
    mean = math.fsum(values) / count
    if count < 2:
        return Interval(mean, -math.inf, math.inf, count)
    half = t.ppf((1 + confidence) / 2, count - 1) * statistics.stdev(values) / math.sqrt(count)
    return Interval(mean, mean - half, mean + half, count)


def paired_interval(values: Sequence[float], others: Sequence[float]) -> Interval:
    """The mean difference of two methods that saw the same seeds."""
    return mean_interval([a - b for a, b in zip(values, others, strict=True)])


def save_results(name: str, results: dict[str, Any]) -> Path:
    """Write ``<name>.json`` in one step, with what is needed to read it later."""
    import torch

    folder = results_folder()
    record = {
        "machine": {
            "date": date.today().isoformat(),
            "cpu_count": os.cpu_count(),
            "torch_threads": torch.get_num_threads(),
            "python": platform.python_version(),
            "torch": torch.__version__,
        },
        **results,
    }
    path = folder / f"{name}.json"
    with atomic_write(path) as file:
        json.dump(record, file, indent=1, default=_plain)
        file.write("\n")
    return path


def earlier(name: str) -> dict[str, Any]:
    """What a run before stored in the results' folder, or nothing."""
    path = results_folder() / f"{name}.json"
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    found.pop("machine", None)
    return found


class Finished:
    """What is done of a benchmark that takes long, on disk after each part, to go on later.

    Args:
        name: Of the file ``<name>.partial.json``.
    """

    def __init__(self, name: str) -> None:
        self.path = results_folder() / f"{name}.partial.json"
        self._done: dict[str, Any] = json.loads(self.path.read_text()) if self.path.exists() else {}

    def get(self, key: str, make: Callable[[], Any]) -> Any:
        """What is stored, or what ``make`` computes now."""
        if key not in self._done:
            self._done[key] = make()
            with atomic_write(self.path) as file:
                json.dump(self._done, file)
        return self._done[key]


def _plain(value: Any) -> Any:
    """Dataclasses and tensors as JSON."""
    if hasattr(value, "__dataclass_fields__"):
        return asdict(value)
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} has no JSON form")
