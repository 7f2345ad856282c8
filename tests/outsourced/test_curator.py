"""The curator: calibrated noise, honest labels, counted questions."""

from __future__ import annotations

import math
import stat
import threading
import warnings
from pathlib import Path

import pytest
import torch

from botorch_dp.errors import BudgetExhausted
from botorch_dp.outsourced import (
    GaussianNoiseCurator,
    InvalidIndex,
    QueryLimitReached,
    RandomProjectionCurator,
    RequestConflict,
    singular_floor,
)
from botorch_dp.outsourced.transforms import public_projection
from botorch_dp.privacy import (
    NeighboringRelation,
    PrivacyBudget,
    PrivacyLedger,
    audit_epsilon,
    gaussian_epsilon,
)

X = torch.randn(40, 5, dtype=torch.double, generator=torch.Generator().manual_seed(3))


def evaluate(index: int) -> float:
    return float(X[index].sum())


def noisy(rows: torch.Tensor = X, **kwargs) -> GaussianNoiseCurator:
    return GaussianNoiseCurator(rows, evaluate, **{"epsilon": 1.0, "delta": 1e-6, **kwargs})


class TestRandomProjection:
    def make(self, rows: torch.Tensor, **kwargs) -> RandomProjectionCurator:
        settings = {"projection_dim": 4, "epsilon": 3.0, "delta": 1e-5, **kwargs}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return RandomProjectionCurator(rows, evaluate, **settings)

    def test_promises_nothing_and_says_why_once(self) -> None:
        with pytest.warns(UserWarning) as caught:
            curator = RandomProjectionCurator(
                X, evaluate, projection_dim=4, epsilon=3.0, delta=1e-5
            )
        assert len(caught) == 1
        assert "certainty" in str(caught[0].message)
        assert curator.guarantee.status == "none"
        assert curator.guarantee.epsilon(0.5) == math.inf
        assert "no privacy guarantee" in str(curator.guarantee)

    @pytest.mark.parametrize("scale", [1.0, 1e5], ids=["lifted", "not lifted"])
    def test_second_moment_of_the_release(self, scale: float) -> None:
        """E[Z Z^T] is the (lifted) Gram matrix."""
        rows = X * scale
        curator = self.make(rows)
        U, S, _ = torch.linalg.svd(rows - rows.mean(0), full_matrices=False)
        small = bool(S.min() < curator.singular_floor)
        assert small is (scale == 1.0)
        if small:
            S = (S**2 + curator.singular_floor**2).sqrt()
        draws = [self.make(rows, projection_dim=400, unsafe_seed=s).dataset.value for s in (1, 2)]
        floor = self.make(rows, projection_dim=400).singular_floor
        if small:
            S = (S**2 - curator.singular_floor**2 + floor**2).sqrt()
        gram = sum(Z @ Z.mT for Z in draws) / 2
        expected = (U * S**2) @ U.mT
        assert (gram - expected).norm() / expected.norm() < 0.2

    def test_floor_is_the_theorems(self) -> None:
        expected = singular_floor(projection_dim=4, epsilon=3.0, delta=1e-5)
        assert self.make(X).singular_floor == expected
        assert noisy().singular_floor == 0.0

    def test_fresh_projection_each_time(self) -> None:
        assert not torch.equal(self.make(X).dataset.value, self.make(X).dataset.value)

    @pytest.mark.parametrize(
        "rows",
        [
            torch.ones(6, 3, dtype=torch.double),
            torch.randn(2, 5, dtype=torch.double),
            torch.zeros(1, 4, dtype=torch.double),
            X[:5].repeat(3, 1),
            X[:, :1],
        ],
        ids=["constant", "n<d", "one row", "duplicates", "d=1"],
    )
    def test_unusual_rows_work(self, rows: torch.Tensor) -> None:
        Z = self.make(rows, projection_dim=7).dataset.value
        assert Z.shape == (len(rows), 7)
        assert torch.isfinite(Z).all()
        Z = noisy(rows).dataset.value
        assert Z.shape == rows.shape


class TestGaussianNoise:
    def test_noise_is_calibrated_exactly(self) -> None:
        curator = noisy(epsilon=0.7, delta=1e-5, row_distance=2.0)
        assert curator.noise_std == curator.dataset.scale
        mu = 2.0 / curator.noise_std
        assert gaussian_epsilon(mu, 1e-5) == pytest.approx(0.7, rel=1e-6)
        assert gaussian_epsilon(mu, 1e-5) <= 0.7
        guarantee = curator.guarantee
        assert guarantee.status == "proven"
        assert guarantee.relation is NeighboringRelation.BOUNDED_ROW
        assert guarantee.epsilon(1e-5) <= 0.7
        assert "distance of 2" in str(guarantee)
        assert "answers are not covered" in str(guarantee)

    @pytest.mark.parametrize("projection_dim", [None, 1, 3, 5])
    def test_sensitivity_before_noise(self, projection_dim: int | None) -> None:
        """Moving any one row by the distance moves the projected data by no more than claimed."""
        curator = noisy(row_distance=1.5, projection_dim=projection_dim)
        P = torch.eye(5, dtype=torch.double) if projection_dim is None else curator.projection
        claimed = curator.noise_std * curator.guarantee.mu
        generator = torch.Generator().manual_seed(0)
        for _ in range(200):
            step = torch.randn(5, generator=generator, dtype=torch.double)
            step *= 1.5 / step.norm()
            assert (step @ P).norm() <= claimed * (1 + 1e-12)
        # ... and the claim is tight: the worst direction attains it.
        worst = torch.linalg.svd(P)[0][:, 0] * 1.5
        assert (worst @ P).norm() == pytest.approx(claimed, rel=1e-9)

    def test_noise_has_the_claimed_spread(self) -> None:
        rows = torch.zeros(5000, 2, dtype=torch.double)
        curator = GaussianNoiseCurator(rows, evaluate, epsilon=1.0, delta=1e-6, unsafe_seed=1)
        variance = curator.dataset.value.var().item()
        # A chi-square with 9999 degrees of freedom: 4.9 standard deviations is a rate of 1e-6.
        assert variance == pytest.approx(curator.noise_std**2, rel=4.9 * math.sqrt(2 / 9999))

    def test_audit_with_a_broken_twin(self) -> None:
        """A row that moves by the distance along the one column: the worst case."""
        epsilon, delta = 1.0, 1e-3
        near, far = torch.zeros(1, 1).double(), torch.ones(1, 1).double()

        def transform(rows: torch.Tensor, size: int, *, row_distance: float) -> torch.Tensor:
            # Many independent data sets of one row at once.
            curator = GaussianNoiseCurator(
                rows.repeat(size, 1),
                evaluate,
                epsilon=epsilon,
                delta=delta,
                row_distance=row_distance,
            )
            return curator.dataset.value.squeeze(-1)

        def bound(row_distance: float) -> float:
            return audit_epsilon(
                lambda rows, size: transform(rows, size, row_distance=row_distance),
                near,
                far,
                samples=20_000,
                delta=delta,
                batched=True,
            ).lower_bound

        assert bound(1.0) <= epsilon
        assert bound(0.5) > epsilon

    def test_projection_is_public_and_keeps_distances(self) -> None:
        P = public_projection(X, 3, seed=5)
        torch.testing.assert_close(P.mT @ P, torch.eye(3, dtype=torch.double) * 5 / 3)
        assert torch.equal(P, public_projection(torch.zeros_like(X), 3, seed=5))
        curator = noisy(projection_dim=3, projection_seed=5)
        assert curator.dataset.value.shape == (40, 3)
        assert torch.equal(curator.projection, P)

    def test_charges_the_ledger_before_noise(self) -> None:
        ledger = PrivacyLedger(
            budget=PrivacyBudget(1.1, 1e-6), relation=NeighboringRelation.BOUNDED_ROW
        )
        noisy(ledger=ledger)
        assert ledger.spent()[0] > 0
        with pytest.raises(BudgetExhausted):
            noisy(ledger=ledger)
        assert len(ledger.entries()) == 1

    def test_simulation_promises_nothing(self) -> None:
        first, second = noisy(unsafe_seed=4), noisy(unsafe_seed=4)
        assert torch.equal(first.dataset.value, second.dataset.value)
        assert first.guarantee.status == "none"
        assert not torch.equal(noisy().dataset.value, noisy().dataset.value)

    def test_float32_stays_float32(self) -> None:
        assert noisy(X.float(), projection_dim=2).dataset.value.dtype == torch.float32


class TestWrongArguments:
    @pytest.mark.parametrize("kind", [noisy, TestRandomProjection().make])
    @pytest.mark.parametrize(
        "rows",
        [
            torch.tensor([[1.0, math.nan]]),
            torch.tensor([[1.0, math.inf]]),
            torch.zeros(0, 3),
            torch.zeros(3),
            torch.zeros(3, 2, dtype=torch.long),
            [["text", "rows"]],
        ],
        ids=["nan", "inf", "empty", "1-d", "integers", "text"],
    )
    def test_rows(self, kind, rows) -> None:
        with pytest.raises((ValueError, TypeError), match="`X`"):
            kind(rows)

    @pytest.mark.parametrize(
        ("argument", "value"),
        [
            ("epsilon", 0.0),
            ("epsilon", math.nan),
            ("delta", 0.0),
            ("delta", 1.0),
            ("row_distance", -1.0),
            ("projection_dim", 0),
            ("projection_dim", 6),
            ("max_queries", 0),
        ],
    )
    def test_numbers(self, argument: str, value: float) -> None:
        with pytest.raises(ValueError, match=f"`{argument}`"):
            noisy(**{argument: value})

    def test_evaluate(self) -> None:
        with pytest.raises(TypeError, match="`evaluate`"):
            GaussianNoiseCurator(X, None, epsilon=1.0, delta=1e-6)  # type: ignore[arg-type]


class TestQueries:
    @pytest.mark.parametrize("index", [-1, 40, 1.5, "3", None, True])
    def test_only_row_indices(self, index) -> None:
        curator = noisy()
        with pytest.raises(InvalidIndex, match="`index`"):
            curator.query(index)
        assert curator.num_queries == 0

    def test_counts_and_logs_without_answers(self) -> None:
        curator = noisy()
        assert curator.query(3) == evaluate(3)
        curator.query(3)
        entries = curator.query_log()
        assert [entry.index for entry in entries] == [3, 3]
        assert all(entry.answered for entry in entries)
        assert str(evaluate(3))[:6] not in repr(entries) + repr(curator)

    def test_limit_and_restart(self, tmp_path: Path) -> None:
        path = tmp_path / "queries.sqlite"
        curator = noisy(max_queries=2, log=path)
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        first = curator.query(1, request_id="a")
        again = noisy(max_queries=2, log=path)
        assert again.num_queries == 1
        # The same question costs nothing, another one fills the limit, a third is refused.
        assert again.query(1, request_id="a") == first
        again.query(2, request_id="b")
        with pytest.raises(QueryLimitReached, match="2 queries"):
            again.query(3, request_id="c")
        assert again.query(1, request_id="a") == first

    def test_one_id_one_row(self) -> None:
        curator = noisy()
        curator.query(1, request_id="a")
        with pytest.raises(RequestConflict, match="row 1 before"):
            curator.query(2, request_id="a")

    def test_threads(self) -> None:
        curator = noisy(max_queries=10)
        answers: list[float] = []
        refused: list[str] = []

        def work() -> None:
            for index in range(4):
                try:
                    answers.append(curator.query(index))
                except QueryLimitReached as error:
                    refused.append(str(error))

        threads = [threading.Thread(target=work) for _ in range(5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert (len(answers), len(refused)) == (10, 10)
