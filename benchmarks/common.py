"""What every benchmark needs: fair timing, confidence intervals, results on disk.

Timings are ratios against a baseline in the same process, the two interleaved so that a noisy
neighbour slows both. Set ``OMP_NUM_THREADS=1``: with shared cores, threads mostly wait.
"""

from __future__ import annotations

import json
import math
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"


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


def save_results(name: str, results: dict[str, Any]) -> Path:
    """Write ``results/<name>.json`` in one step, with what is needed to read it later."""
    import torch

    RESULTS.mkdir(exist_ok=True)
    record = {
        "machine": {
            "cpu_count": os.cpu_count(),
            "torch_threads": torch.get_num_threads(),
            "python": platform.python_version(),
            "torch": torch.__version__,
        },
        **results,
    }
    path = RESULTS / f"{name}.json"
    with tempfile.NamedTemporaryFile("w", dir=RESULTS, suffix=".tmp", delete=False) as file:
        json.dump(record, file, indent=1, default=_plain)
        file.write("\n")
    os.replace(file.name, path)
    path.chmod(0o644)
    return path


def _plain(value: Any) -> Any:
    """Dataclasses and tensors as JSON."""
    if hasattr(value, "__dataclass_fields__"):
        return asdict(value)
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} has no JSON form")
