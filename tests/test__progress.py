"""A process that is killed amid a progress bar stops nobody else."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from botorch_dp._progress import ProgressBar
from botorch_dp.pareto import DPareto
from tests.one_draw import in_fork
from tests.pareto import toy


def test_a_fork_that_is_killed_amid_a_bar_stops_nobody(tmp_path: Path) -> None:
    """The lock of tqdm's own bars is shared by forks, which then wait for ever."""

    def train() -> int:
        with DPareto(toy.problem(), acquisition="random", storage=tmp_path / "a", seed=0) as study:
            return len(study.run(len(study.trials) + 1).trials)

    def killed() -> None:
        with ProgressBar.get_lock():
            os.kill(os.getpid(), signal.SIGKILL)

    assert train() == 1
    assert in_fork(killed) is None
    assert in_fork(train) == 2
    assert train() == 3
