"""The price of DP-SGD: our epsilons against those of the papers' accountant and of dp-accounting.

* The reference values of fixed batches and of Poisson batches, by privacy-loss distributions (new) and by
  Rényi divergences (old), with the lower bound that an explicit data set gives.
* Epsilon old and new over the ranges of DPareto's experiments.
* How exact: random settings of Poisson batches against dp-accounting, from above and from below.
* How fast: one epsilon, one calibration, and 2,048 candidates at once, against dp-accounting's
  accountants in the same process (processor time; "cold": no cache can help).

Run: ``python -m benchmarks.accounting``
"""

from __future__ import annotations

import itertools
import time
from functools import partial
from typing import Any

import dp_accounting as dpa
import numpy as np
from dp_accounting.pld import PLDAccountant, privacy_loss_distribution
from dp_accounting.rdp import RdpAccountant, rdp_privacy_accountant

from benchmarks.common import (
    BenchmarkParser,
    Ratio,
    interleaved_ratio,
    save_results,
)
from botorch_dp.privacy import (
    NeighboringRelation,
    dp_sgd_epsilon,
    dp_sgd_epsilons,
    dp_sgd_noise_multiplier,
)

REPLACE, ADD = NeighboringRelation.REPLACE_ONE, NeighboringRelation.ADD_OR_REMOVE_ONE
RECORDS, DELTA = 32561, 1e-5
ADULT = {"batch_size": 256, "num_records": RECORDS, "steps": 1000, "delta": DELTA}
FIXED: dict[str, Any] = {"sampling": "without_replacement"}
THEIR_ORDERS = rdp_privacy_accountant.DEFAULT_RDP_ORDERS
REFERENCES = (
    (32561, 256, 1000, 1.0),
    (32561, 256, 1000, 2.0),
    (32561, 256, 1000, 0.5),
    (60000, 600, 10000, 2.0),
    (569, 32, 100, 2.0),
)
CANDIDATES = 2048
RANDOM_SETTINGS = 200


def poisson_event(z: float, q: float, relation: NeighboringRelation) -> dpa.DpEvent:
    """dp-accounting counts noise in clipping norms under either relation."""
    return dpa.PoissonSampledDpEvent(q, dpa.GaussianDpEvent(z * relation.sum_sensitivity))


def their_poisson(
    z: float, batch: int, records: int, steps: int, delta: float, relation: NeighboringRelation
) -> float:
    accountant = PLDAccountant(dpa.NeighboringRelation[relation.name])
    event = poisson_event(z, batch / records, relation)
    return float(accountant.compose(event, steps).get_epsilon(delta))


def their_lower_bound(
    z: float, batch: int, records: int, steps: int, delta: float, relation: NeighboringRelation
) -> float:
    step = privacy_loss_distribution.from_gaussian_mechanism(
        z * relation.sum_sensitivity,
        sampling_prob=batch / records,
        neighboring_relation=dpa.NeighboringRelation[relation.name],
        pessimistic_estimate=False,
        use_connect_dots=False,
    )
    return float(step.self_compose(steps).get_epsilon_for_delta(delta))


def their_fixed(z: float, batch: int, records: int, steps: int, delta: float) -> float:
    event = dpa.SampledWithoutReplacementDpEvent(records, batch, dpa.GaussianDpEvent(z))
    accountant = RdpAccountant(THEIR_ORDERS, dpa.NeighboringRelation.REPLACE_ONE)
    return float(accountant.compose(event, steps).get_epsilon(delta))


def measure_references() -> list[dict[str, Any]]:
    """All noises are in units of 2C, but for the last column's: the same noise, in units of C."""
    rows = []
    for records, batch, steps, z in REFERENCES:
        run: dict[str, Any] = {
            "batch_size": batch,
            "num_records": records,
            "steps": steps,
            "delta": DELTA,
        }
        rows.append(
            {
                "records": records,
                "batch": batch,
                "steps": steps,
                "noise multiplier": z,
                "fixed batches": dp_sgd_epsilon(noise_multiplier=z, **run, **FIXED),
                "fixed batches, at least": their_poisson(z, batch, records, steps, DELTA, ADD),
                "fixed batches, Rényi": dp_sgd_epsilon(
                    noise_multiplier=z, **run, **FIXED, accountant="rdp"
                ),
                "Poisson batches, replace": dp_sgd_epsilon(noise_multiplier=z, **run),
                "Poisson batches, add": dp_sgd_epsilon(noise_multiplier=2 * z, **run, relation=ADD),
            }
        )
    return rows


def measure_ranges() -> dict[str, Any]:
    """Old over new, over the settings of DPareto's experiments on Adult."""
    ratios, poisson = [], []
    for z, batch, epochs in itertools.product(
        (0.5, 1.0, 2.0, 4.0, 8.0), (8, 32, 128, 512), (1, 4, 16, 64)
    ):
        run: dict[str, Any] = {
            "noise_multiplier": z,
            "batch_size": batch,
            "num_records": RECORDS,
            "steps": epochs * (RECORDS // batch),
            "delta": DELTA,
        }
        new = dp_sgd_epsilon(**run, **FIXED)
        ratios.append(dp_sgd_epsilon(**run, **FIXED, accountant="rdp") / new)
        poisson.append(new / dp_sgd_epsilon(**run))
    return {
        "settings": len(ratios),
        "Rényi over distribution, fixed batches": _quantiles(ratios),
        "fixed over Poisson batches, replace": _quantiles(poisson),
    }


def measure_agreement() -> dict[str, Any]:
    """Random settings of Poisson batches; never below what dp-accounting proves from below."""
    rng = np.random.default_rng(0)
    excess, below, bulk = [], 0, []
    for index in range(RANDOM_SETTINGS):
        records = int(10 ** rng.uniform(2, 5))
        batch = int(rng.integers(1, max(2, records * 10 ** rng.uniform(-3, -0.3))))
        steps, delta = int(10 ** rng.uniform(0, 3)), float(10 ** rng.uniform(-9, -2))
        z, relation = float(np.exp(rng.uniform(-1, 2))), (ADD, REPLACE)[index % 2]
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


def measure_speed() -> dict[str, Any]:
    fresh = (1.1 + 1e-6 * i for i in itertools.count())
    timed = partial(interleaved_ratio, clock=time.process_time)

    def ours(**way: Any) -> float:
        return dp_sgd_epsilon(noise_multiplier=next(fresh), **ADULT, **way)

    def theirs(relation: NeighboringRelation) -> float:
        return their_poisson(next(fresh), 256, RECORDS, 1000, DELTA, relation)

    def their_calibration() -> float:
        return float(
            dpa.calibrate_dp_mechanism(
                lambda: PLDAccountant(dpa.NeighboringRelation.REPLACE_ONE),
                lambda z: dpa.SelfComposedDpEvent(poisson_event(z, 256 / RECORDS, REPLACE), 1000),
                1.0,
                DELTA,
                dpa.LowerEndpointAndGuess(0.1, 1.0),
                tol=1e-3,
            )
        )

    ratios: dict[str, Ratio] = {
        "Poisson batches, replace": timed(ours, partial(theirs, REPLACE)),
        "Poisson batches, add": timed(partial(ours, relation=ADD), partial(theirs, ADD)),
        "fixed batches, against their Rényi": timed(
            partial(ours, **FIXED), lambda: their_fixed(next(fresh), 256, RECORDS, 1000, DELTA)
        ),
        "calibration, Poisson batches, replace": timed(
            lambda: dp_sgd_noise_multiplier(
                epsilon=1.0 + 1e-7 * next(fresh), **ADULT, tolerance=1e-3
            ),
            their_calibration,
            repeats=3,
        ),
    }
    rng = np.random.default_rng(0)
    noise = np.exp(rng.uniform(np.log(0.1), np.log(16), CANDIDATES))
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


def main() -> None:
    BenchmarkParser("accounting", __doc__, minutes=6).parse_args()
    references = measure_references()
    for row in references:
        print("  ".join(f"{name} {value:.4g}" for name, value in row.items()))
    ranges, agreement = measure_ranges(), measure_agreement()
    for report in (ranges, agreement):
        for name, value in report.items():
            print(f"{name}: {value}")
    speed = measure_speed()
    for name, value in (*speed["ratios"].items(), *speed[f"{CANDIDATES} candidates"].items()):
        print(f"{name}: {value}")
    save_results(
        "accounting",
        {"references": references, "ranges": ranges, "agreement": agreement, "speed": speed},
    )


if __name__ == "__main__":
    main()
