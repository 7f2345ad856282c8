"""The price of DP-SGD without replacement: ``dp_sgd_epsilon`` against dp-accounting's accountant.

Both compute the Rényi bound of Wang, Balle and Kasiviswanathan (2019) under replace-one. The target
is a factor 5 at equal results (1e-6 relative at the same orders, never above with our denser ones).
"Cold" means that no cache can help: every call has its own noise multiplier.

Run: ``python -m benchmarks.accounting``
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import dp_accounting as dpa
import numpy as np
from dp_accounting.rdp import RdpAccountant, rdp_privacy_accountant

from benchmarks.common import Ratio, interleaved_ratio, save_results
from botorch_dp.privacy import dp_sgd_epsilon, dp_sgd_epsilons

TARGET = 5.0
RECORDS, DELTA = 32561, 1e-5
THEIR_ORDERS = rdp_privacy_accountant.DEFAULT_RDP_ORDERS
LENGTHS = (1, 10, 100, 300, 1000, 3000, 10_000, 30_000, 100_000, 1_000_000)


def dp_accounting_epsilon(z: float, lot: int, steps: int) -> float:
    event = dpa.SampledWithoutReplacementDpEvent(RECORDS, lot, dpa.GaussianDpEvent(z))
    accountant = RdpAccountant(THEIR_ORDERS, dpa.NeighboringRelation.REPLACE_ONE)
    return accountant.compose(event, steps).get_epsilon(DELTA)


def our_epsilon(z: float, lot: int, steps: int, *, same_orders: bool) -> float:
    return dp_sgd_epsilon(
        noise_multiplier=z,
        lot_size=lot,
        num_records=RECORDS,
        steps=steps,
        delta=DELTA,
        orders=THEIR_ORDERS if same_orders else None,
    )


def with_fresh_noise(
    epsilon: Callable[[float, int, int], float], noise: Iterator[float]
) -> Callable[[], object]:
    return lambda: epsilon(next(noise), 256, 1000)


def measure_speed() -> dict[str, Ratio]:
    fresh = (1.1 + 1e-6 * i for i in itertools.count())
    cold = {
        f"cold, {name}": interleaved_ratio(
            with_fresh_noise(partial(our_epsilon, same_orders=same), fresh),
            with_fresh_noise(dp_accounting_epsilon, fresh),
            repeats=15,
        )
        for name, same in (("same orders", True), ("our denser orders", False))
    }
    lengths = interleaved_ratio(
        lambda: [our_epsilon(z, 256, n, same_orders=True) for z in [next(fresh)] for n in LENGTHS],
        lambda: [dp_accounting_epsilon(z, 256, n) for z in [next(fresh)] for n in LENGTHS],
        repeats=5,
    )
    rng = np.random.default_rng(0)
    noise = np.exp(rng.uniform(np.log(0.1), np.log(16), 2048))
    lots, steps = rng.integers(8, 512, 2048), rng.integers(1, 20_000, 2048)
    few = list(zip(noise[:8].tolist(), lots[:8].tolist(), steps[:8].tolist(), strict=True))
    candidates = interleaved_ratio(
        lambda: dp_sgd_epsilons(noise, lots, steps, num_records=RECORDS, delta=DELTA),
        lambda: [dp_accounting_epsilon(*setting) for setting in few],
        repeats=5,
    )
    per_candidate = replace(
        candidates,
        median=256 * candidates.median,
        low=256 * candidates.low,
        high=256 * candidates.high,
        method_seconds=candidates.method_seconds / 2048,
        baseline_seconds=candidates.baseline_seconds / 8,
    )
    return {
        **cold,
        f"{len(LENGTHS)} training lengths": lengths,
        "2048 candidates at once, each": per_candidate,
    }


def measure_agreement() -> dict[str, float]:
    """The largest relative differences over DPareto's usual range of settings."""
    settings = itertools.product((0.5, 1.0, 2.0, 5.0, 10.0), (8, 64, 512), (1, 100, 20_000))
    differences, dense = [], []
    for z, lot, steps in settings:
        theirs = dp_accounting_epsilon(z, lot, steps)
        differences.append(our_epsilon(z, lot, steps, same_orders=True) / theirs - 1)
        dense.append(our_epsilon(z, lot, steps, same_orders=False) / theirs - 1)
    return {
        "settings": len(differences),
        "same orders: largest relative difference": float(np.max(np.abs(differences))),
        "denser orders: largest relative excess": float(np.max(dense)),
        "denser orders: largest relative saving": float(-np.min(dense)),
        "denser orders: median relative saving": float(0.0 - np.median(dense)),
    }


def main() -> None:
    agreement = measure_agreement()
    for name, value in agreement.items():
        print(f"{name}: {value:.3g}")
    speed = measure_speed()
    for name, ratio in speed.items():
        print(f"{name}: {ratio}  [target {TARGET:g}x]")
    save_results("accounting", {"target": TARGET, "agreement": agreement, "speed": speed})


if __name__ == "__main__":
    main()
