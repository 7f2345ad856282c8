"""Dask: workers die in the midst of trainings whose noise is charged, and of others."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

distributed = pytest.importorskip("distributed", reason="needs the extra `dask`")

from botorch_dp.errors import PrivacyError  # noqa: E402
from botorch_dp.pareto import DPareto  # noqa: E402
from botorch_dp.privacy import DPSGD, PrivacyBudget, PrivacyLedger  # noqa: E402
from botorch_dp.space import Config, Real, SearchSpace  # noqa: E402
from botorch_dp.tuning import PrivateSelection  # noqa: E402
from tests.pareto import test_charges, toy  # noqa: E402


@dataclass(frozen=True)
class KillsAWorker:
    """A training that notes that it begins; the third one kills its process once."""

    folder: Path

    def __call__(self, config: Config, number: Any, seed: int | None = None) -> Any:
        with (self.folder / "begun").open("a") as file:
            file.write(f"{config}\n")
        if len(self.begun()) == 3 and not (self.folder / "killed").exists():
            (self.folder / "killed").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return config["rate"], 0.5

    def begun(self) -> list[str]:
        path = self.folder / "begun"
        return path.read_text().splitlines() if path.exists() else []


class Utility(KillsAWorker):
    def __call__(self, config: Config, number: Any, seed: int | None = None) -> float:
        super().__call__({**config, "rate": number}, number)
        return toy.utility(config, number)


@pytest.fixture(scope="module")
def client() -> Iterator[Any]:
    cluster = distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, dashboard_address=None, silence_logs=50
    )
    with cluster, distributed.Client(cluster) as client:
        yield client


def selection(train: Any, **options: Any) -> PrivateSelection[Any]:
    return PrivateSelection(
        train,
        SearchSpace(rate=Real(0.1, 1.0)),
        mechanism=lambda config: DPSGD(batch_size=10, num_records=100, steps=10),
        budget=PrivacyBudget(1.0, 1e-6),
        scored_on="public",
        trials=8,
        **options,
    )


@pytest.mark.slow
def test_what_is_charged_is_refused_before_anything_starts(client: Any, tmp_path: Path) -> None:
    """A selection and a study with a budget alike: Dask would draw a training's noise twice."""
    executor, train = client.get_executor(pure=False, retries=0), KillsAWorker(tmp_path)
    with PrivacyLedger(budget=PrivacyBudget(9.0, 1e-4)) as ledger:
        with pytest.raises(PrivacyError, match=r"Dask .* twice .*RayExecutor"):
            selection(train).run(executor=executor, ledger=ledger)
        assert not ledger.entries()
    with DPareto(
        test_charges.problem(Utility(tmp_path)), budget=PrivacyBudget(8.0, 1e-6), seed=0
    ) as study:
        with pytest.raises(PrivacyError, match=r"Dask .* twice .*RayExecutor"):
            study.run(2, executor=executor)
        assert study.ledger is not None and not study.ledger.entries()
    assert not train.begun()


@pytest.mark.slow
def test_simulations_go_on_after_a_worker_was_killed(client: Any, tmp_path: Path) -> None:
    """Their seeds make the same of a training that begins again."""
    executor = client.get_executor(pure=False, retries=0)
    folders = [tmp_path / name for name in ("selection", "study", "alone")]
    for folder in folders:
        folder.mkdir()
    train = KillsAWorker(folders[0])
    (folders[2] / "killed").touch()
    alone = selection(KillsAWorker(folders[2]), unsafe_seed=1).run()
    together = selection(train, unsafe_seed=1).run(executor=executor)
    assert together.config.value == alone.config.value and (folders[0] / "killed").exists()
    assert set(train.begun()) == set(KillsAWorker(folders[2]).begun())
    utility = Utility(folders[1])
    with DPareto(toy.problem(utility), acquisition="random", seed=0) as study:
        study.run(6, q=2, executor=executor)
        assert not any(trial.failure_type for trial in study.trials) and len(study.trials) == 6
    assert (folders[1] / "killed").exists()
