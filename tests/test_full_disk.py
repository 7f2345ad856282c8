"""A disk that fills up during any write leaves the last good state, and whoever wrote is told so.

A limit on the size of files (``RLIMIT_FSIZE``) stands in for the disk: the system refuses to write
beyond it, whoever writes, and a forked child cannot lift it. ``tests/test_faults.py`` does the same
to every kind of file.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

from botorch_dp.errors import PrivacyError
from botorch_dp.pareto import DPareto, StudyError
from botorch_dp.privacy import Guarantee, PrivacyBudget, PrivacyLedger, PrivacyUnit, PureLoss
from botorch_dp.privacy.runs import Run
from tests.one_draw import in_fork
from tests.pareto import toy

PRICE = Guarantee("a release", PrivacyUnit(), (PureLoss(0.01),))


def with_room(size: int, work: Callable[[], Any]) -> Any:
    """What ``work`` returns or raises in a process whose files cannot grow beyond a size."""

    def limited() -> Any:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
        return work()

    return in_fork(limited)


def study(path: Path) -> DPareto:
    return DPareto(toy.problem(replicates=2), acquisition="random", storage=path, seed=0)


def test_a_ledger_forgets_no_charge_and_takes_none_back(tmp_path: Path) -> None:
    path = tmp_path / "a.ledger"
    budget = PrivacyBudget(1e3)
    PrivacyLedger(path, budget).close()
    start = path.stat().st_size

    def charge() -> tuple[int, str]:
        charged = 0
        with PrivacyLedger(path) as ledger:
            try:
                for _ in range(1000):
                    ledger.charge(PRICE)
                    charged += 1
            except PrivacyError as error:
                return charged, str(error)
        return charged, ""

    total = 0
    for size in (start + 4096, start + 12288, start + 40000):
        charged, message = with_room(size, charge)
        total += charged
        assert "nothing may be released" in message and "Check the disk for space" in message
        with PrivacyLedger(path) as ledger:
            assert len(ledger.entries()) == total
            ledger.charge(PRICE)
        total += 1
    assert total > 3


def test_no_half_file_is_created(tmp_path: Path) -> None:
    for make in (
        lambda: study(tmp_path / "new").close(),
        lambda: PrivacyLedger(tmp_path / "new", PrivacyBudget(1.0)).close(),
        lambda: Run(tmp_path / "new", what="a run", settings={}).close(),
    ):
        for size in (0, 4096, 8192):
            error = with_room(size, make)
            assert isinstance(error, (StudyError, PrivacyError)), error
            assert "disk" in str(error)
            assert os.listdir(tmp_path) == []
