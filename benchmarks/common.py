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
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

RESULTS = Path(__file__).parent / "results"
_out = RESULTS


def results_folder() -> Path:
    """Where results and figures go: ``benchmarks/results``, unless ``--out`` said otherwise."""
    _out.mkdir(parents=True, exist_ok=True)
    return _out


#: ``as in the text``: distributions, sizes and methods are those the text gives. ``stand-in data``:
#: the same experiment on other data. ``variant``: a problem of ours that resembles it.
Problem = Literal["as in the text", "stand-in data", "variant"]


@dataclass(frozen=True)
class Reproduction:
    """One table, figure or example.

    Args:
        script: Module of ``benchmarks``.
        paper: Key of the paper in the references.
        item: The table, figure or example, as the paper numbers it.
        problem: How far the problem is the paper's.
        departures: What differs from the text or is not in it.
        minutes: How long it took, on one of two shared cores.
        options: Options of the command.
        reduced: Options that make it run within seconds, to see that it runs.
    """

    script: str
    paper: str
    item: str
    problem: Problem
    departures: str
    minutes: float
    options: str = ""
    reduced: str = ""

    @property
    def command(self) -> str:
        """How to run it."""
        return " ".join(filter(None, (f"python -m benchmarks.{self.script}", self.options)))


REPRODUCTIONS: tuple[Reproduction, ...] = (
    Reproduction(
        "dp_gibo_examples",
        "Sopa2025",
        "Example 4.1",
        "as in the text",
        "The data are drawn anew; the step size is ours.",
        3,
        "--examples 4.1",
        "--seeds 2 --steps 12",
    ),
    Reproduction(
        "dp_gibo_examples",
        "Sopa2025",
        "Example 4.2",
        "as in the text",
        "The data are drawn anew; length-scale and step size are ours.",
        3,
        "--examples 4.2",
        "--seeds 2 --steps 12",
    ),
    Reproduction(
        "dp_gibo_examples",
        "Sopa2025",
        "Line 4 of Algorithm 1: the points of a step",
        "as in the text",
        "d = 5, a kernel with length-scale 1 and normal data around the location are ours.",
        2,
        "--examples placement",
        "--seeds 1 --steps 1",
    ),
    Reproduction(
        "dp_gibo_tuning",
        "Sopa2025",
        "Example 4.3 as we would run it",
        "variant",
        "Inputs (uniform in the unit cube), 500 training records, a Matern kernel, a start in the "
        "middle, a clip norm from public records, a fixed radius and the step size are ours.",
        25,
        "--tasks 4.3",
        "--draws 1 --steps 2 --train 30 --validation 60",
    ),
    Reproduction(
        "dp_gibo_tuning",
        "Sopa2025",
        "Example 4.3 as printed, and two more levels of mu",
        "as in the text",
        "Inputs (uniform in the unit cube), 150 training records and the step size are ours; 1,500 "
        "validation records at 3 mu have the noise of the printed 4,500 at mu.",
        2,
        "--tasks 4.3-printed",
        "--draws 1 --steps 2 --train 30 --validation 60",
    ),
    Reproduction(
        "dp_gibo_tuning",
        "Sopa2025",
        "Appendix C.5",
        "as in the text",
        "As 4.3 as printed; one noise of standard deviation .01 for all records of a point.",
        2,
        "--tasks C.5",
        "--draws 1 --steps 2 --train 30 --validation 60",
    ),
    Reproduction(
        "dp_gibo_tuning",
        "Sopa2025",
        "Example 4.4 with the ranges of the authors' code",
        "stand-in data",
        "BlogFeedback in place of the CT slices, which could not be had; 500 training records in "
        "place of 5,000; ranges, loss, AdaGrad and the levels .2, 1 and infinity of mu are those "
        "of the authors' code.",
        12,
        "--tasks 4.4",
        "--draws 1 --steps 2 --train 30 --validation 60",
    ),
    Reproduction(
        "dp_gibo_tuning",
        "Sopa2025",
        "Example 4.4 with the printed ranges and sizes",
        "stand-in data",
        "BlogFeedback in place of the CT slices, which could not be had; one draw, mu = 1.",
        45,
        "--tasks 4.4-printed",
        "--draws 1 --steps 2 --train 30 --validation 60",
    ),
    Reproduction(
        "dp_gibo_tuning",
        "Sopa2025",
        "Friedman's first function, after example 4.3",
        "variant",
        "Ten length-scales of a Gaussian process regression on another function.",
        2,
        "--tasks friedman",
        "--draws 1 --steps 2 --train 30 --validation 60",
    ),
    Reproduction(
        "dp_gibo_tuning",
        "Sopa2025",
        "Breast cancer, after example 4.4",
        "variant",
        "A classifier with 33 parameters on 369 records: an example where privacy is expensive.",
        1.5,
        "--tasks cancer",
        "--draws 1 --steps 2 --train 100 --validation 60",
    ),
    Reproduction(
        "outsourced",
        "Kharkovskii2020",
        "Tables 1 to 9 and figure 2",
        "stand-in data",
        "Function draws are as in the text, with an effective length-scale of 6.25 in place of the "
        "printed 1.25. Loans and properties are public data of the same kind in place of the "
        "paper's, and the noise of their answers is ours.",
        15,
        "",
        "--runs 2 --steps 4 --rows 400",
    ),
    Reproduction(
        "kusner",
        "Kusner2015",
        "Theorems 1 to 8",
        "as in the text",
        "The paper has no experiments: these are its bounds at common sizes.",
        0.2,
        "--part noise",
    ),
    Reproduction(
        "pareto_quality",
        "Avent2020",
        "Figures 1 to 4",
        "as in the text",
        "Private logistic regression on Adult and the sparse vector technique; grids and the "
        "number of trials shown are ours.",
        1,
        "--part maps",
        "--side 4 --trials 18",
    ),
    Reproduction(
        "dpareto_paper",
        "Avent2020",
        "Table 2 and figure 5 at a reduced size",
        "variant",
        "Trials, epochs and trainings are fewer; fronts are trained again. Figures 6 to 8 are not "
        "made.",
        17,
    ),
    Reproduction(
        "dpareto_lead",
        "Avent2020",
        "Table 2: the lead over 19 disjoint draws of random points",
        "as in the text",
        "Ten trainings of each point, as in the published code (R in the text). Two studies of the "
        "default and one in the paper's way, of each setting.",
        120,
        "",
        "--settings LogReg+SGD --replicates 1 --points 57 --fewer 19 --trials 18 --seeds 1",
    ),
    Reproduction(
        "dpareto_paper",
        "Avent2020",
        "Table 2 and figure 5 at the paper's size",
        "as in the text",
        "Linear models are trained by a compiled loop, and the random points are 1,500 in place of "
        "5,000. Table 4's learning rates for random points and grids are .001 to .1; rows with "
        "others were run before.",
        60,
        "--full",
    ),
    Reproduction(
        "accounting",
        "Avent2020",
        "Result files of the authors' repository",
        "as in the text",
        "Their epsilons are computed again.",
        0.1,
        "--part records",
    ),
)


class BenchmarkParser(argparse.ArgumentParser):
    """Options of a benchmark; before it starts it says what it reproduces and how long it takes.

    Args:
        script: Its name.
        doc: Its docstring.
        minutes: How long it takes with the options' defaults on one of two shared cores, or how
            long each of its parts takes; ``--part`` then chooses some of them.
    """

    def __init__(
        self, script: str, doc: str | None, *, minutes: float | Mapping[str, float]
    ) -> None:
        super().__init__(
            prog=f"python -m benchmarks.{script}",
            description=doc,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        self._script = script
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
        parts = getattr(options, "part", [""])
        for entry in REPRODUCTIONS:
            _, _, part = entry.options.partition("--part ")
            if entry.script == self._script and part in ("", *parts):
                print(f"[{entry.paper}] {entry.item}: {entry.problem}. {entry.departures}")
        minutes = sum(self._minutes[part] for part in parts)
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
            "cpu_count": os.cpu_count(),
            "torch_threads": torch.get_num_threads(),
            "python": platform.python_version(),
            "torch": torch.__version__,
        },
        **results,
    }
    path = folder / f"{name}.json"
    with tempfile.NamedTemporaryFile("w", dir=folder, suffix=".tmp", delete=False) as file:
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
