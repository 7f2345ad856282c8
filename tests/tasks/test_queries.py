from __future__ import annotations

import pytest

from botorch_dp import tasks
from botorch_dp.privacy import sparse_vector_guarantee
from botorch_dp.tasks.queries import SparseVectorUtility

PROBLEM = tasks.sparse_vector(num_queries=40, num_positives=6)


class TestEpsilon:
    @pytest.mark.parametrize(("noise", "count"), [(0.01, 1), (1.0, 4), (100.0, 30), (7.0, 13)])
    def test_is_that_of_the_mechanism(self, noise: float, count: int) -> None:
        config = {"noise": noise, "max_positives": count}
        root = (2 * count) ** (1 / 3)
        assert PROBLEM.epsilon(config) == pytest.approx((1 + root) * (1 + root**2) / noise)
        proven = sparse_vector_guarantee(noise_scale=noise, max_positives=count)
        assert PROBLEM.epsilon(config) == pytest.approx(proven.epsilon(), rel=1e-6)
        assert PROBLEM.training.guarantee is not None
        assert PROBLEM.training.guarantee(config) == proven


class TestSimulation:
    def test_repeats_with_its_seed(self) -> None:
        config = {"noise": 1.0, "max_positives": 5}
        assert PROBLEM.oracle(config, 3) == PROBLEM.oracle(config, 3) != PROBLEM.oracle(config, 4)

    def test_no_true_positive_counts_as_zero(self) -> None:
        far = SparseVectorUtility(1000, 1, 1)
        utilities = {far({"noise": 100.0, "max_positives": 1}, seed) for seed in range(20)}
        assert 0.0 in utilities

    def test_stops_after_the_permitted_positives(self) -> None:
        utility = SparseVectorUtility(40, 6, 200)({"noise": 0.01, "max_positives": 2}, 0)
        assert utility == pytest.approx(2 * 2 / (2 + 6))


@pytest.mark.parametrize("name", ["num_queries", "num_positives", "simulations", "replicates"])
def test_wrong_arguments(name: str) -> None:
    with pytest.raises(ValueError, match=f"`{name}`"):
        tasks.sparse_vector(**{name: 0})
