"""What does a private selection cost anybody's trainer, in noise?

    python -m benchmarks.paid_selection

The noise multiplier of DP-SGD (batches of 512 of 32,561 records, 1,280 steps, delta = 1e-5,
add-or-remove-one) for one training; for the best of 20 expected trainings, by us and by
dp-accounting's ``RepeatAndSelectDpEvent`` (Rényi divergences) with the same law of their number;
and for 20 trainings that are all published.
"""

from __future__ import annotations

import math
from typing import Any

from dp_accounting import NeighboringRelation as TheirRelation
from dp_accounting import dp_event, rdp

from benchmarks.common import BenchmarkParser, save_results
from benchmarks.tables import markdown, stored
from botorch_dp import PrivateSelection, Real, SearchSpace
from botorch_dp.privacy import DPSGD, NeighboringRelation, PrivacyBudget
from botorch_dp.privacy.selection import TrialNumber

DELTA, TRIALS = 1e-5, 20
TRAINING = DPSGD(
    batch_size=512, num_records=32_561, steps=1280, relation=NeighboringRelation.ADD_OR_REMOVE_ONE
)


def _event(noise: float) -> Any:
    step = dp_event.PoissonSampledDpEvent(512 / 32_561, dp_event.GaussianDpEvent(noise))
    return dp_event.SelfComposedDpEvent(step, TRAINING.steps)


def _theirs(epsilon: float, shape: float) -> float:
    """The least noise for the best of 20, by dp-accounting."""

    def spent(noise: float) -> float:
        accountant = rdp.RdpAccountant(neighboring_relation=TheirRelation.ADD_OR_REMOVE_ONE)
        event = dp_event.RepeatAndSelectDpEvent(_event(noise), TRIALS, shape)
        return accountant.compose(event).get_epsilon(DELTA)

    low, high = 0.3, 1000.0
    while high > low * 1.002:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if spent(middle) <= epsilon else (middle, high)
    return high


def prices() -> None:
    rows = []
    for epsilon in (1.0, 0.1):
        row: dict[str, Any] = {"epsilon": epsilon}
        for shape in (1.0, 3.0):
            selection = PrivateSelection(
                print,
                SearchSpace(x=Real(0.0, 1.0)),
                mechanism=lambda config: TRAINING,
                budget=PrivacyBudget(epsilon, DELTA),
                trials=TrialNumber(TRIALS, shape),
                scored_on="public",
            )
            noise = selection.plan().noise_multipliers
            row["one training"], row["composition"] = (
                noise["tuning ignored"],
                noise["all published"],
            )
            row[f"selection, shape {shape:g}"] = noise["this"]
            row[f"RepeatAndSelectDpEvent, shape {shape:g}"] = _theirs(epsilon, shape)
        rows.append(row)
        print(row)
    save_results("paid_selection_prices", {"delta": DELTA, "trials": TRIALS, "rows": rows})


def table_paid_prices() -> str:
    names = {
        "one training": "one training, tuning ignored",
        "selection, shape 1": "20 expected, geometric: `PrivateSelection`",
        "RepeatAndSelectDpEvent, shape 1": "20 expected, geometric: `RepeatAndSelectDpEvent`",
        "selection, shape 3": "20 expected, shape 3 (the default): `PrivateSelection`",
        "RepeatAndSelectDpEvent, shape 3": "20 expected, shape 3: `RepeatAndSelectDpEvent`",
        "composition": "20 trainings, all published",
    }
    found = stored("paid_selection_prices")["rows"]
    rows = [[label, *(f"{row[way]:#.3g}" for row in found)] for way, label in names.items()]
    return markdown(["", *(f"ε = {row['epsilon']:g}" for row in found)], rows)


def main() -> None:
    BenchmarkParser("paid_selection", __doc__, minutes=1).parse_args()
    prices()


if __name__ == "__main__":
    main()
