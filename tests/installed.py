"""What ``make dist`` tries in a clean environment, with the built package and no test tools."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

import torch

import botorch_dp as bdp
from botorch_dp.space import Real


def main() -> None:
    home = Path(bdp.__file__).parent
    assert home.is_relative_to(sys.prefix), f"{home} is not the installed package."
    assert (home / "py.typed").exists()
    assert version("botorch_dp") == bdp.__version__

    price = "epsilon dp-sgd --noise 1 --batch 256 --records 32561 --epochs 8 --delta 1e-5"
    for arguments in ("--help", price):
        command = [str(Path(sys.executable).parent / "botorch-dp"), *arguments.split()]
        print(subprocess.run(command, check=True, capture_output=True, text=True).stdout[-300:])

    records = torch.rand(500, dtype=torch.double)
    space = bdp.SearchSpace(x=Real(0.0, 1.0))
    with tempfile.TemporaryDirectory() as folder:
        ledger = bdp.PrivacyLedger(f"{folder}/study.ledger", bdp.PrivacyBudget(1.0, 1e-6))
        search = bdp.PrivateSearch(
            lambda configs: torch.stack([(records - config["x"]).abs() for config in configs]),
            space,
            bounds=(0.0, 1.0),
            budget=bdp.PrivacyBudget(0.5, 1e-7),
            evaluations=20,
            num_records=500,
        )
        print(search.run(ledger=ledger).config)
        ledger.close()
    print(f"botorch_dp {bdp.__version__} works in {sys.prefix}.")


if __name__ == "__main__":
    main()
