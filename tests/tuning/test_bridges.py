"""A search evaluates in parallel, and other libraries' loops run on released numbers."""

from __future__ import annotations

import multiprocessing
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor

import pytest
import torch

from botorch_dp.privacy import PrivacyBudget
from botorch_dp.space import Real, SearchSpace
from botorch_dp.tuning import PrivateSearch

N = 50
OPTIMA = torch.linspace(0.2, 0.6, N, dtype=torch.double)


def scores(configs):
    X = torch.tensor([list(config.values()) for config in configs], dtype=torch.double)
    return (X.unsqueeze(-1) - OPTIMA).square().mean(1)


def scores_of_a_child(configs):
    assert multiprocessing.parent_process() is not None
    return scores(configs)


def a_search(record_scores=scores, d=4):
    return PrivateSearch(
        record_scores,
        SearchSpace(**{f"x{i}": Real(0.0, 1.0) for i in range(d)}),
        bounds=(0.0, 1.0),
        budget=PrivacyBudget(50.0, 1e-3),
        evaluations=30,
        num_records=N,
        unsafe_seed=0,
    )


@pytest.mark.parametrize("d", [2, 4])
def test_threads_find_the_same(d):
    alone = a_search(d=d).run(release_score=True)
    asked = []

    def counted(configs):
        asked.append(len(configs))
        return scores(configs).numpy()

    with ThreadPoolExecutor(4) as threads:
        together = a_search(counted, d).run(executor=threads, release_score=True)
    assert together.config.value == alone.config.value
    assert together.score.value == alone.score.value
    assert set(asked) == {1} and len(asked) == sum(
        a_search(d=d).plan(release_score=True).evaluations.values()
    )


def test_processes_find_the_same(tmp_path):
    with ProcessPoolExecutor(2) as processes:
        together = a_search(scores_of_a_child).run(
            executor=processes, checkpoint=tmp_path / "a.search"
        )
    assert together.config.value == a_search().run().config.value
    with pytest.raises(AssertionError):
        a_search(scores_of_a_child).run()


@pytest.mark.filterwarnings("ignore")
def test_dask_finds_the_same():
    distributed = pytest.importorskip("distributed", reason="needs the extra `dask`")
    with (
        distributed.LocalCluster(
            n_workers=1, processes=False, threads_per_worker=2, dashboard_address=None
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        together = a_search().run(executor=client.get_executor())
    assert together.config.value == a_search().run().config.value
