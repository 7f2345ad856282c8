"""What a charge costs: ``PrivacyLedger.charge`` against a bare durable SQLite insert.

The target is at most 3 inserts for a charge, in an empty ledger and after 10,000 charges, and 3 for
the door (``PrivacyLedger.release`` under a key: claim and charge, then the value), or 4 where
records are read in between. The baseline writes the same numbers into a table without checks, on
the same disk, with the settings under which a commit survives a power cut (rollback journal,
``synchronous = EXTRA``); a second one uses SQLite's defaults (``FULL``), which may lose the last
commit with its folder entry.

Run: ``python -m benchmarks.ledger [--folder DISK]``
"""

from __future__ import annotations

import itertools
import os
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from benchmarks.common import (
    BenchmarkParser,
    Ratio,
    interleaved_ratio,
    save_results,
    seconds,
)
from botorch_dp.privacy import (
    Guarantee,
    PrivacyBudget,
    PrivacyLedger,
    gaussian_guarantee,
    laplace_guarantee,
)

TARGET = 3.0
SIZES = (0, 1_000, 10_000)
REPEATS = 201


def bare_insert(path: Path, synchronous: str) -> Callable[[], object]:
    """A function that durably inserts one row of numbers and a label."""
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA journal_mode = DELETE")
    connection.execute(f"PRAGMA synchronous = {synchronous}")
    connection.execute(
        "CREATE TABLE charge (number INTEGER PRIMARY KEY, label TEXT, epsilon REAL, delta REAL, "
        "mu REAL)"
    )

    def insert() -> None:
        connection.execute(
            "INSERT INTO charge (label, epsilon, delta, mu) VALUES ('trial', 1e-5, 0.0, 0.0)"
        )

    return insert


def released(ledger: PrivacyLedger, price: Guarantee, numbers: Iterator[int], reads: bool) -> float:
    """One number through the door, under a key of its own."""
    key = f"value {next(numbers)}"
    if reads:
        return ledger.release(price, lambda x: x, read=lambda: 1.0, key=key)
    return ledger.release(price, lambda: 1.0, key=key)


def measure(folder: Path) -> dict[str, dict[str, object]]:
    laplace = laplace_guarantee(sensitivity=1.0, epsilon=1e-5)
    gaussian = gaussian_guarantee(sensitivity=1.0, mu=1e-4)
    results: dict[str, dict[str, object]] = {}
    for name, guarantee in (("summed", laplace), ("gaussian", gaussian)):
        path = folder / f"{name}.ledger"
        with PrivacyLedger(path, PrivacyBudget(10.0, 1e-6)) as ledger:
            inserts = {
                mode: bare_insert(folder / f"{name}-{mode}.sqlite", mode)
                for mode in ("EXTRA", "FULL")
            }
            charge = partial(ledger.charge, guarantee, label="trial")
            charges = 0
            for size in SIZES:
                while charges < size:
                    charge()
                    for insert in inserts.values():
                        insert()
                    charges += 1
                ratios: dict[str, Ratio] = {}
                for mode, insert in inserts.items():
                    # The insert is the "method" here, so the ratio is a charge's cost in inserts.
                    ratios[mode] = interleaved_ratio(insert, charge, repeats=REPEATS)
                    charges += REPEATS + 1
                    print(f"{name}, after {size:>6} charges, synchronous={mode}: {ratios[mode]}")
                results[f"{name} after {size}"] = {**ratios}

            for words, through in (
                ("door", partial(released, ledger, guarantee, itertools.count(), False)),
                (
                    "door with a reading phase",
                    partial(released, ledger, guarantee, itertools.count(10**6), True),
                ),
            ):
                ratio = interleaved_ratio(inserts["EXTRA"], through, repeats=REPEATS)
                print(f"{name}, {words}: {ratio}")
                results[f"{name} {words}"] = {"EXTRA": ratio}

            def reopen(file: Path = path) -> None:
                PrivacyLedger(file).spent()

            opening = sorted(seconds(reopen) for _ in range(5))[2]
            results[f"{name} file"] = {
                "charges": len(ledger.entries()),
                "bytes": os.path.getsize(path),
                "seconds_to_open_and_verify": opening,
            }
            print(f"{name}: opening and verifying {charges} charges takes {opening:.3f} s")
    return results


def main() -> None:
    parser = BenchmarkParser("ledger", __doc__, minutes=2)
    parser.add_argument("--folder", default=".", help="a folder on the disk to measure")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        results = measure(Path(folder))
    worst = max(
        row["EXTRA"].median  # type: ignore[attr-defined]
        for name, row in results.items()
        if "after" in name
    )
    print(f"A charge costs at most {worst:.2f} bare durable inserts (target {TARGET:g}).")
    save_results(
        "ledger",
        {"what": "cost of one charge in bare SQLite inserts", "target": TARGET, **results},
    )


if __name__ == "__main__":
    main()
