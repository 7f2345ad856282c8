"""Dask and Ray: nodes die in the midst of a training, and the study ends whole."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from botorch_dp.pareto import DPareto, RayExecutor, workers
from botorch_dp.pareto.workers import Once
from botorch_dp.privacy import PrivacyBudget
from botorch_dp.space import Config
from tests.pareto import test_paying, toy
from tests.pareto.test_processes import Logged


@dataclass(frozen=True)
class DiesOnce:
    """A training that is noted when it begins; the third one kills its process, like kill -9."""

    folder: str
    train: Any

    def __call__(self, config: Config, seed: int) -> float:
        utility = self.train(config, seed)
        log = Path(self.folder, "log").read_text().split()
        if len(log) >= 3:
            try:
                os.close(os.open(Path(self.folder, "killed"), os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                return utility
            os.kill(os.getpid(), signal.SIGKILL)
        return utility


def check_whole(executor: Any, folder: Path, **options: Any) -> DPareto:
    """Six trials, one of whose trainings is lost with its process."""
    problem = toy.problem(DiesOnce(str(folder), Logged(str(folder / "log"), 0.0)), replicates=2)
    study = DPareto(problem, acquisition="random", seed=0, **options)
    study.run(6, batch_size=2, executor=executor)
    expected = DPareto(problem, acquisition="random", seed=0).ask(6)
    assert (folder / "killed").exists()
    assert [trial.state for trial in study.trials] == ["complete"] * 6
    for trial, as_asked in zip(study.trials, expected, strict=True):
        assert (trial.config, trial.seeds) == (as_asked.config, as_asked.seeds)
        assert trial.utilities == tuple(toy.utility(trial.config, s) for s in trial.seeds)
    begun = (folder / "log").read_text().split()
    assert sorted(begun) != sorted(set(begun)), "the one that was lost was trained again"
    assert set(begun) == {str(seed) for trial in expected for seed in trial.seeds}
    return study


def paid(executor: Any, folder: Path) -> tuple[int, int]:
    """Charges of a paid study, one of whose trainings is lost with its process; and its draws."""
    train = DiesOnce(str(folder), test_paying.Trains(str(folder / "log")))
    with DPareto(
        test_paying.problem(train),
        budget=PrivacyBudget(8.0, 1e-6),
        storage=folder / "study.sqlite",
        acquisition="random",
        seed=0,
    ) as study:
        study.run(5, executor=executor)
        assert [trial.state for trial in study.trials] == ["complete"] * 5
        assert study.ledger is not None and (folder / "killed").exists()
        return len(study.ledger.entries()), test_paying.began(folder / "log")


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A client of four workers without nannies, so that a killed one does not come back."""
    distributed = pytest.importorskip("distributed", reason="needs the extra `dask`")
    with (
        distributed.LocalCluster(n_workers=0, dashboard_address=None) as cluster,
        distributed.Client(cluster) as client,
    ):
        worker = [sys.executable, "-m", "distributed.cli.dask_worker"]
        worker += [cluster.scheduler_address, "--no-nanny", "--no-dashboard", "--nthreads", "1"]
        worker += ["--local-directory", str(tmp_path_factory.mktemp("dask"))]
        nodes = [
            subprocess.Popen(worker, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            for _ in range(4)
        ]
        try:
            client.wait_for_workers(4, timeout=120)
            yield client
        finally:
            for node in nodes:
                node.kill()
                node.wait()


class TestDask:
    def test_a_killed_node(self, client: Any, tmp_path: Path) -> None:
        """Dask trains on another one, with the same seed: no attempt is counted."""
        before = len(client.scheduler_info(n_workers=-1)["workers"])
        study = check_whole(client, tmp_path)
        assert len(client.scheduler_info(n_workers=-1)["workers"]) == before - 1
        assert not any(trial.failures for trial in study.trials)

    def test_what_is_paid_for_is_drawn_once(self, client: Any, tmp_path: Path) -> None:
        """Another draw of noise is another charge."""
        charges, draws = paid(client, tmp_path)
        assert charges == draws == 6

    def test_its_broken_twin(
        self, client: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(workers, "is_dask", lambda executor: False)
        charges, draws = paid(client, tmp_path)
        assert (charges, draws) == (5, 6), "Dask draws again by itself"

    def test_once(self, client: Any) -> None:
        executor = client.get_executor(pure=False)
        call = Once(lambda: "called", "was begun")
        assert executor.submit(call).result() == "called"
        assert executor.submit(call).result() == "was begun"


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


class TestRay:
    def test_a_killed_worker(self, ray: Any, tmp_path: Path) -> None:
        """The study trains again itself, with the same seed, and counts the attempt."""
        executor = RayExecutor(num_cpus=1)
        study = check_whole(executor, tmp_path)
        failures = [failure for trial in study.trials for failure in trial.failures]
        assert failures == ["WorkerCrashedError"]
        # As every executor does:
        future = executor.submit(divmod, 7, 2)
        assert future.result() == (3, 1)
        with pytest.raises(ZeroDivisionError):
            executor.submit(divmod, 7, 0).result()
        futures = [executor.submit(pow, 2, k) for k in range(20)]
        futures[-1].cancel()
        executor.shutdown()
        assert [f.result() for f in futures[:-1]] == [2**k for k in range(19)]
        with pytest.raises(RuntimeError, match="after shutdown"):
            executor.submit(pow, 2, 2)

    @pytest.mark.slow
    def test_what_is_paid_for_is_drawn_once(self, ray: Any, tmp_path: Path) -> None:
        """Another draw of noise is another charge."""
        assert paid(RayExecutor(num_cpus=1), tmp_path) == (6, 6)

    @pytest.mark.slow
    def test_a_killed_node(self, tmp_path: Path) -> None:
        ray = pytest.importorskip("ray", reason="needs the extra `ray`")
        from ray.cluster_utils import Cluster

        ray.shutdown()
        cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
        try:
            nodes = [cluster.add_node(num_cpus=1) for _ in range(2)]
            ray.init(address=cluster.address, log_to_driver=False)
            ended: list[int] = []

            def kill(study: DPareto, trial: Any) -> None:
                ended.append(trial.number)
                if len(ended) == 2:
                    cluster.remove_node(nodes[0], allow_graceful=False)

            problem = toy.problem(toy.Slow(1.0))
            study = DPareto(problem, acquisition="random", seed=0, retries=2)
            study.run(6, batch_size=2, executor=RayExecutor(num_cpus=1), callbacks=[kill])
        finally:
            ray.shutdown()
            cluster.shutdown()
        assert [trial.state for trial in study.trials] == ["complete"] * 6
        assert all(t.utilities == (toy.utility(t.config, t.seeds[0]),) for t in study.trials)

    def test_ray_may_not_try_again_by_itself(self) -> None:
        with pytest.raises(ValueError, match="`max_retries`"):
            RayExecutor(max_retries=3)
        with pytest.raises(TypeError, match="`address`"):
            RayExecutor(3)  # type: ignore[arg-type]
