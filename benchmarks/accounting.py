"""Are epsilons tight? Ours against those of dp-accounting and of the papers' accountant.

    OMP_NUM_THREADS=1 python -m benchmarks.accounting [--part epsilons records]

* ``epsilons``: the papers' Rényi divergences over ours, over the ranges of DPareto's experiments;
  random settings against dp-accounting, from above and from below; and the time of one epsilon, of
  one calibration, and of 2,048 candidates at once (processor time, nothing cached).
* ``records``: the 32 epsilons that the authors of DPareto [Avent2020] recorded (Adult, logistic
  regression with DP-Adam), computed again with their number of steps and their conversion, ``min
  over orders a of RDP(a) + log(1/delta) / (a - 1)``. Where it is not the recorded one, its best
  order lies above 256, where dp-accounting's sharper terms end.

Noise multipliers count in clipping norms. The authors of DPareto count in units of twice that,
which is called ``noise_variance`` here as in their paper.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import time
from collections.abc import Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import dp_accounting as dpa
import numpy as np
from dp_accounting.pld import PLDAccountant, privacy_loss_distribution
from dp_accounting.rdp import RdpAccountant, rdp_privacy_accountant

from benchmarks.common import BenchmarkParser, Ratio, interleaved_ratio, save_results
from benchmarks.tables import markdown, stored
from botorch_dp.privacy import (
    NeighboringRelation,
    dp_sgd_epsilon,
    dp_sgd_epsilons,
    dp_sgd_noise_multiplier,
    gaussian_epsilon,
)

REPLACE, ADD = NeighboringRelation.REPLACE_ONE, NeighboringRelation.ADD_OR_REMOVE_ONE


RECORDS, DELTA = 32561, 1e-5


ADULT = {"batch_size": 256, "num_records": RECORDS, "steps": 1000, "delta": DELTA}

FIXED: dict[str, Any] = {"sampling": "without_replacement"}

#: dp-accounting's orders up to 63, and from there on some between those of its list.
PAPERS_ORDERS = (
    *(order for order in rdp_privacy_accountant.DEFAULT_RDP_ORDERS if order < 64),
    *range(64, 257, 8),
    512,
)


CANDIDATES = 2048

RANDOM_SETTINGS = 200


def poisson_event(z: float, q: float) -> dpa.DpEvent:
    return dpa.PoissonSampledDpEvent(q, dpa.GaussianDpEvent(z))


def their_poisson(
    z: float, batch: int, records: int, steps: int, delta: float, relation: NeighboringRelation
) -> float:
    accountant = PLDAccountant(dpa.NeighboringRelation[relation.name])
    event = poisson_event(z, batch / records)
    return float(accountant.compose(event, steps).get_epsilon(delta))


def their_lower_bound(
    z: float, batch: int, records: int, steps: int, delta: float, relation: NeighboringRelation
) -> float:
    step = privacy_loss_distribution.from_gaussian_mechanism(
        z,
        sampling_prob=batch / records,
        neighboring_relation=dpa.NeighboringRelation[relation.name],
        pessimistic_estimate=False,
        use_connect_dots=False,
    )
    return float(step.self_compose(steps).get_epsilon_for_delta(delta))


def fixed_batch_rdp(z: float, batch: int, records: int, orders: Sequence[float]) -> np.ndarray:
    """The bound of [Wang2019] on one step, by dp-accounting's Rényi accountant."""
    # This accountant, and no other one of theirs, counts noise in units of twice the clipping norm.
    event = dpa.SampledWithoutReplacementDpEvent(records, batch, dpa.GaussianDpEvent(z / 2))
    return RdpAccountant(orders, dpa.NeighboringRelation.REPLACE_ONE).compose(event).rdp


#: Of one step, which is the slow part.
known_rdp = lru_cache(maxsize=None)(fixed_batch_rdp)


def papers_epsilon(
    *, noise_multiplier: float, batch_size: int, num_records: int, steps: int, delta: float
) -> float:
    """What papers report for batches of a fixed size: Rényi divergences, by dp-accounting."""
    rdp = steps * known_rdp(noise_multiplier, batch_size, num_records, PAPERS_ORDERS)
    found = rdp_privacy_accountant.compute_epsilon(PAPERS_ORDERS, rdp, delta)[0]
    without_sampling = gaussian_epsilon(2 * math.sqrt(steps) / noise_multiplier, delta)
    return min(float(found), without_sampling)


def ranges() -> dict[str, Any]:
    """Old over new, over the settings of DPareto's experiments on Adult."""
    ratios, poisson = [], []
    for z, batch, epochs in itertools.product(
        (1.0, 2.0, 4.0, 8.0, 16.0), (8, 32, 128, 512), (1, 4, 16, 64)
    ):
        run: dict[str, Any] = {
            "noise_multiplier": z,
            "batch_size": batch,
            "num_records": RECORDS,
            "steps": epochs * (RECORDS // batch),
            "delta": DELTA,
        }
        new = dp_sgd_epsilon(**run, **FIXED)
        ratios.append(papers_epsilon(**run) / new)
        poisson.append(new / dp_sgd_epsilon(**run))
    return {
        "settings": len(ratios),
        "Rényi over distribution, fixed batches": _quantiles(ratios),
        "fixed over Poisson batches, replace": _quantiles(poisson),
    }


def agreement() -> dict[str, Any]:
    """Random settings of Poisson batches; never below what dp-accounting proves from below."""
    rng = np.random.default_rng(0)
    excess, below, bulk = [], 0, []
    for index in range(RANDOM_SETTINGS):
        records = int(10 ** rng.uniform(2, 5))
        batch = int(rng.integers(1, max(2, records * 10 ** rng.uniform(-3, -0.3))))
        steps, delta = int(10 ** rng.uniform(0, 3)), float(10 ** rng.uniform(-9, -2))
        relation = (ADD, REPLACE)[index % 2]
        z = float(np.exp(rng.uniform(-1, 2))) * relation.sum_sensitivity
        setting = (z, batch, records, steps, delta, relation)
        run: dict[str, Any] = {"num_records": records, "delta": delta, "relation": relation}
        ours = dp_sgd_epsilon(noise_multiplier=z, batch_size=batch, steps=steps, **run)
        if not 0.01 < ours < 60:
            continue
        excess.append(ours / their_poisson(*setting))
        below += ours < their_lower_bound(*setting)
        bulk.append(float(dp_sgd_epsilons([z], [batch], [steps], **run)[0]) / ours)
    return {
        "settings": len(excess),
        "below a lower bound": below,
        "ours over dp-accounting's": _quantiles(excess),
        "bulk over one at a time": _quantiles(bulk),
    }


def _quantiles(values: list[float]) -> dict[str, float]:
    names = ("least", "10%", "median", "90%", "largest")
    return dict(zip(names, np.quantile(values, [0, 0.1, 0.5, 0.9, 1]).tolist(), strict=True))


def speed() -> dict[str, Any]:
    fresh = (2.2 + 1e-6 * i for i in itertools.count())
    timed = partial(interleaved_ratio, clock=time.process_time)

    def ours(**way: Any) -> float:
        return dp_sgd_epsilon(noise_multiplier=next(fresh), **ADULT, **way)

    def theirs(relation: NeighboringRelation) -> float:
        return their_poisson(next(fresh), 256, RECORDS, 1000, DELTA, relation)

    def their_calibration() -> float:
        return float(
            dpa.calibrate_dp_mechanism(
                lambda: PLDAccountant(dpa.NeighboringRelation.REPLACE_ONE),
                lambda z: dpa.SelfComposedDpEvent(poisson_event(z, 256 / RECORDS), 1000),
                1.0,
                DELTA,
                dpa.LowerEndpointAndGuess(0.1, 1.0),
                tol=1e-3,
            )
        )

    ratios: dict[str, Ratio] = {
        "Poisson batches, replace": timed(ours, partial(theirs, REPLACE)),
        "Poisson batches, add": timed(partial(ours, relation=ADD), partial(theirs, ADD)),
        "calibration, Poisson batches, replace": timed(
            lambda: dp_sgd_noise_multiplier(
                epsilon=1.0 + 1e-7 * next(fresh), **ADULT, tolerance=1e-3
            ),
            their_calibration,
            repeats=3,
        ),
    }
    rng = np.random.default_rng(0)
    noise = np.exp(rng.uniform(np.log(0.2), np.log(32), CANDIDATES))
    batches, steps = rng.integers(8, 512, CANDIDATES), rng.integers(1, 20_000, CANDIDATES)
    bulk = {}
    for name, way in (
        ("Poisson batches, replace", {}),
        ("Poisson batches, add", {"relation": ADD}),
        ("fixed batches", FIXED),
    ):
        times = []
        for _ in range(5):
            start = time.process_time()
            dp_sgd_epsilons(noise, batches, steps, num_records=RECORDS, delta=DELTA, **way)
            times.append(time.process_time() - start)
        bulk[name] = {"seconds": float(np.median(times)), "least": min(times), "most": max(times)}
    return {"ratios": ratios, f"{CANDIDATES} candidates": bulk}


THEIR_RECORDS = 30_956

ORDERS = tuple(float(order) for order in range(2, 1025))

#: Relative difference up to which two computations agree.
AGREEMENT = 1e-6


def compared(record: dict[str, Any]) -> dict[str, Any]:
    """One record beside its epsilon by the classical conversion, and the order that gives it."""
    batch_size, noise = int(record["lot_size"]), float(record["z"])
    steps = int(record["epochs"]) * round(THEIR_RECORDS / batch_size)
    rdp = steps * known_rdp(2 * noise, batch_size, THEIR_RECORDS, ORDERS)
    epsilons = rdp + math.log(1 / DELTA) / (np.asarray(ORDERS) - 1)
    best = int(epsilons.argmin())
    return {
        "epochs": int(record["epochs"]),
        "batch_size": batch_size,
        "noise_variance": noise,
        "recorded": record["eps"],
        "classical": float(epsilons[best]),
        "classical_order": ORDERS[best],
    }


def epsilons() -> None:
    """Ranges, agreement and speed, stored as ``accounting.json``."""
    found: dict[str, Any] = {"ranges": ranges(), "agreement": agreement()}
    for report in (found["ranges"], found["agreement"]):
        for name, value in report.items():
            print(f"{name}: {value}")
    found["speed"] = speed()
    for part in found["speed"].values():
        for name, value in part.items():
            print(f"{name}: {value}")
    save_results("accounting", found)


def records() -> None:
    """The authors' epsilons beside ours, stored as ``dpareto_records.json``."""
    folder = os.environ.get("BOTORCH_DP_DATA")
    if not folder:
        raise SystemExit("Set BOTORCH_DP_DATA to the folder that holds dpareto_records.json.")
    theirs = json.loads((Path(folder) / "dpareto_records.json").read_text())
    rows = [compared(record) for record in theirs]
    agree = [row for row in rows if abs(row["classical"] / row["recorded"] - 1) <= AGREEMENT]
    for row in rows:
        print(row)
    print(f"{len(agree)} of {len(rows)} recorded epsilons come out, to {AGREEMENT:g}")
    save_results("dpareto_records", {"agree_with_classical": len(agree), "records": rows})


def table_accounting() -> str:
    found = stored("accounting")
    ratios = {
        "ours over dp-accounting's, Poisson batches": found["agreement"][
            "ours over dp-accounting's"
        ],
        "many at once over one at a time": found["agreement"]["bulk over one at a time"],
        "the papers' Rényi bound over ours, batches of a fixed size": found["ranges"][
            "Rényi over distribution, fixed batches"
        ],
    }
    names = ("least", "median", "largest")
    rows = [[label, *(f"{row[name]:.4g}" for name in names)] for label, row in ratios.items()]
    return markdown(["ratio of epsilons", *names], rows)


def main() -> None:
    minutes = {"epsilons": 6, "records": 1}
    options = BenchmarkParser("accounting", __doc__, minutes=minutes).parse_args()
    for part in options.part:
        {"epsilons": epsilons, "records": records}[part]()


if __name__ == "__main__":
    main()
