"""Epsilons that the DPareto authors [Avent2020] recorded, computed again.

Their repository ships 32 results of one experiment (Adult, logistic regression with DP-Adam, batches
without replacement, delta 1e-5). Each epsilon is computed here three ways:

* ``classical``: our Rényi divergences of *their* number of steps, ``epochs * round(n / batch)``,
  turned into epsilon as they do: ``min over orders a of RDP(a) + log(1/delta) / (a - 1)``;
* ``same steps``: what this package says for their steps. Its conversion [Canonne2020] is tighter:
  it gains ``log(a) / (a - 1) - log(1 - 1/a)`` at order ``a``;
* ``ours``: what this package says for the steps it takes itself, ``epochs * (n // batch)``.

Where the classical epsilon is not the recorded one, its best order lies above 256, beyond which our
divergences fall back on simpler, larger terms. (With the sharper terms up to order 700 these agree
to all digits as well, at the orders 410 and 292.)

Run with ``BOTORCH_DP_DATA=... python -m benchmarks.dpareto_records``.
"""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common import (
    BenchmarkParser,
    save_results,
)
from botorch_dp.privacy import dp_sgd_epsilon
from botorch_dp.privacy._renyi import fixed_batch_rdp

DATASET_SIZE = 30_956
DELTA = 1e-5
ORDERS = tuple(float(order) for order in range(2, 1025))
#: The last order with the sharper terms.
LARGEST_TIGHT_ORDER = 256
#: Relative difference up to which two computations agree.
AGREEMENT = 1e-6


def classical_epsilon(noise_multiplier: float, batch_size: int, steps: int) -> tuple[float, float]:
    """Epsilon by the classical conversion, and the order that gives it."""
    rdp = steps * fixed_batch_rdp(noise_multiplier, batch_size / DATASET_SIZE, ORDERS)
    epsilons = rdp + math.log(1 / DELTA) / (np.asarray(ORDERS) - 1)
    best = int(epsilons.argmin())
    return float(epsilons[best]), ORDERS[best]


def compared(record: dict[str, Any]) -> dict[str, Any]:
    """One record beside what we compute for it, and why they differ."""
    epochs, batch_size, noise = int(record["epochs"]), int(record["batch_size"]), float(record["z"])
    their_steps = epochs * round(DATASET_SIZE / batch_size)
    our_steps = epochs * (DATASET_SIZE // batch_size)
    classical, order = classical_epsilon(noise, batch_size, their_steps)

    def epsilon(steps: int) -> float:
        return dp_sgd_epsilon(
            noise_multiplier=noise,
            batch_size=batch_size,
            num_records=DATASET_SIZE,
            steps=steps,
            delta=DELTA,
            sampling="without_replacement",
            accountant="rdp",
        )

    reasons = ["tighter conversion"]
    if our_steps != their_steps:
        reasons.append(f"{their_steps - our_steps} steps fewer")
    if abs(classical / record["eps"] - 1) > AGREEMENT:
        reasons.append(f"the classical optimum is above order {LARGEST_TIGHT_ORDER}")
    return {
        "epochs": epochs,
        "batch_size": batch_size,
        "noise_multiplier": noise,
        "recorded": record["eps"],
        "classical": classical,
        "classical_order": order,
        "same_steps": epsilon(their_steps),
        "ours": epsilon(our_steps),
        "reasons": reasons,
    }


def main() -> None:
    BenchmarkParser("dpareto_records", __doc__, minutes=0.3).parse_args()
    folder = os.environ.get("BOTORCH_DP_DATA")
    if not folder:
        raise SystemExit("Set BOTORCH_DP_DATA to the folder that holds dpareto_records.json.")
    records = json.loads((Path(folder) / "dpareto_records.json").read_text())
    rows = [compared(record) for record in records]
    agree = [row for row in rows if abs(row["classical"] / row["recorded"] - 1) <= AGREEMENT]
    header = ("epochs", "batch", "z", "recorded", "classical", "(order)", "same steps", "ours")
    print(" ".join(f"{name:>10}" for name in header), " reasons")
    distinct = {(row["epochs"], row["batch_size"], row["noise_multiplier"]): row for row in rows}
    for row in distinct.values():
        cells = [value for key, value in row.items() if key != "reasons"]
        print(" ".join(f"{value:10.6g}" for value in cells), "", "; ".join(row["reasons"]))
    print(
        f"{len(agree)} of {len(rows)} recorded epsilons come out with the classical conversion, to "
        f"{AGREEMENT:g}; ours are {min(r['ours'] / r['recorded'] for r in rows):.2f} to "
        f"{max(r['ours'] / r['recorded'] for r in rows):.2f} times the recorded ones."
    )
    save_results(
        "dpareto_records",
        {
            "num_records": DATASET_SIZE,
            "delta": DELTA,
            "agree_with_classical": len(agree),
            "records": rows,
        },
    )


if __name__ == "__main__":
    main()
