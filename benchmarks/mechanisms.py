"""What the mechanisms cost: a million utilities in one call, and one noisy value among many.

The baseline draws the same distributions with numpy's floating-point noise, which is not private
(``unsafe_seed``). Memory is the growth of a fresh process's peak during one call (Linux). Run with
``OMP_NUM_THREADS=1 python -m benchmarks.mechanisms``; ``--quick`` takes a hundred thousand.
"""

from __future__ import annotations

import json
import multiprocessing
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from benchmarks.common import (
    BenchmarkParser,
    interleaved_ratio,
    results_folder,
    save_results,
)
from botorch_dp.privacy import (
    exponential_mechanism,
    gaussian_mechanism,
    laplace_mechanism,
    sparse_vector,
)

#: Noise of scale 2 for each of them: utilities within reach of it, and one far above all others,
#: which makes a sampler try about all of them before it accepts one.
UTILITIES: dict[str, Callable[[int], torch.Tensor]] = {
    "uniform in [0, 1]": lambda n: torch.rand(n, dtype=torch.float64),
    "normal, std 10": lambda n: 10 * torch.randn(n, dtype=torch.float64),
    "one of them above the others by 100": lambda n: torch.eye(1, n, dtype=torch.float64)[0] * 100,
}


def _select(utilities: torch.Tensor, method: str, seed: int | None) -> Any:
    return exponential_mechanism(
        utilities, sensitivity=1.0, epsilon=1.0, method=method, unsafe_seed=seed
    )


def _peak_growth(case: str, size: int, method: str, seed: int | None) -> float:
    """Megabytes by which one call raises the peak of a fresh process."""
    torch.manual_seed(0)
    utilities = UTILITIES[case](size)
    _select(utilities[:10], method, seed)  # imports and caches are not the call's
    before = _peak_megabytes()
    _select(utilities, method, seed)
    return _peak_megabytes() - before


def _peak_megabytes() -> float:
    """Of this program alone: ``getrusage`` would remember the parent's peak across exec."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) / 1024


def main() -> None:
    parser = BenchmarkParser("mechanisms", __doc__, minutes=3)
    parser.add_argument("--quick", action="store_true", help="a tenth of the size")
    parser.add_argument("--values", action="store_true", help="noise only; selections are kept")
    options = parser.parse_args()
    size = 100_000 if options.quick else 1_000_000
    torch.manual_seed(0)
    torch.set_num_threads(1)
    results: dict[str, Any] = {"size": size, "selection": [], "values": []}
    if options.values:
        stored = json.loads((results_folder() / "mechanisms.json").read_text())
        results["selection"] = stored["selection"]
    else:
        results["selection"] = selections(size)
    results["values"] = values(size // 20)
    if not options.quick:
        save_results("mechanisms", results)


def selections(size: int) -> list[dict[str, Any]]:
    """Selections among many utilities: seconds and memory."""
    found = []
    print(f"Selection among {size:,} utilities, exact against simulated noise:")
    fresh = multiprocessing.get_context("spawn")
    for method in ("exponential", "permute_and_flip"):
        for case, make in UTILITIES.items():
            utilities = make(size)
            ratio = interleaved_ratio(
                lambda u=utilities, m=method: _select(u, m, 0),
                lambda u=utilities, m=method: _select(u, m, None),
                repeats=5,
            )
            with fresh.Pool(1) as pool:
                megabytes = pool.apply(_peak_growth, (case, size, method, None))
            print(
                f"  {method:<17}{case:<37}{ratio.baseline_seconds:>7.2f} s {megabytes:>6.0f} MB, "
                f"{ratio.median:.3g} times the simulation's time "
                f"({ratio.low:.3g} to {ratio.high:.3g})"
            )
            found.append(
                {"method": method, "utilities": case, "time": ratio, "megabytes": megabytes}
            )
    return found


def values(count: int) -> list[dict[str, Any]]:
    """Noisy values, many at once and one alone: seconds of the process."""
    found = []
    print("\nNoise, exact against simulated, per value:")
    calls: dict[str, Callable[[torch.Tensor, int | None], Any]] = {
        "Laplace": lambda v, seed: laplace_mechanism(
            v, sensitivity=1.0, epsilon=1.0, unsafe_seed=seed
        ),
        "Gaussian": lambda v, seed: gaussian_mechanism(
            v, sensitivity=1.0, mu=1.0, unsafe_seed=seed
        ),
        "sparse vector": lambda v, seed: sparse_vector(
            v, noise=1.0, max_positives=1, unsafe_seed=seed
        ),
    }
    for name, call in calls.items():
        for many in (count, 1):
            vector = torch.zeros(many, dtype=torch.float64)
            ratio = interleaved_ratio(
                lambda c=call, v=vector: c(v, 0),
                lambda c=call, v=vector: c(v, None),
                repeats=5,
                clock=time.process_time,
            )
            microseconds = ratio.baseline_seconds / many * 1e6
            print(f"  {name:<14}{many:>8,} at once: {microseconds:>8.1f} microseconds a value")
            found.append({"mechanism": name, "values": many, "time": ratio})
    return found


if __name__ == "__main__":
    main()
