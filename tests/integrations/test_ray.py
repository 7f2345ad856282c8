"""Ray: nodes die in the midst of a training, and the study ends whole."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from botorch_dp.integrations.ray import RayExecutor
from botorch_dp.pareto import DPareto
from botorch_dp.privacy import PrivacyBudget
from botorch_dp.space import Config
from tests.pareto import test_charges, toy


@dataclass(frozen=True)
class DiesOnce:
    """A training that is noted when it begins; the third one kills its process, like kill -9."""

    folder: str
    train: Any

    def __call__(self, config: Config, seed: int) -> float:
        log = Path(self.folder, "begun")
        with log.open("a") as file:
            file.write(f"{seed}\n")
        if len(log.read_text().split()) >= 3:
            try:
                os.close(os.open(Path(self.folder, "killed"), os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                return self.train(config, seed)
            os.kill(os.getpid(), signal.SIGKILL)
        return self.train(config, seed)


@pytest.fixture(scope="module")
def ray() -> Iterator[Any]:
    ray = pytest.importorskip("ray", reason="needs the extra `ray`")
    ray.shutdown()
    ray.init(
        num_cpus=2,
        include_dashboard=False,
        log_to_driver=False,
        logging_level="ERROR",
        object_store_memory=80 * 2**20,
    )
    yield ray
    ray.shutdown()


@pytest.mark.slow
def test_a_killed_worker(ray: Any, tmp_path: Path) -> None:
    """Its trial has failed, and no other one."""
    executor = RayExecutor(num_cpus=1)
    problem = toy.problem(DiesOnce(str(tmp_path), toy.utility))
    study = DPareto(problem, acquisition="random", seed=0)
    study.run(6, q=2, executor=executor)
    assert (tmp_path / "killed").exists()
    kinds = sorted(trial.failure_type for trial in study.trials)
    assert kinds == [*[""] * 5, "WorkerCrashedError"]
    assert len((tmp_path / "begun").read_text().split()) == 6, "Ray began none again"
    # As every executor does:
    assert executor.submit(divmod, 7, 2).result() == (3, 1)
    with pytest.raises(ZeroDivisionError):
        executor.submit(divmod, 7, 0).result()
    executor.submit(pow, 2, 2).cancel()


@pytest.mark.slow
def test_what_is_charged_is_drawn_once(ray: Any, tmp_path: Path) -> None:
    train = DiesOnce(str(tmp_path), test_charges.Trains())
    with DPareto(
        test_charges.problem(train), budget=PrivacyBudget(8.0, 1e-6), acquisition="random", seed=0
    ) as study:
        study.run(5, executor=RayExecutor(num_cpus=1))
        assert study.ledger is not None
        assert len(study.ledger.entries()) == len((tmp_path / "begun").read_text().split()) == 5


def test_ray_may_not_try_again_by_itself() -> None:
    with pytest.raises(ValueError, match="`max_retries`"):
        RayExecutor(max_retries=3)
