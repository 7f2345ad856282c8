"""The curator: calibrated noise, honest labels, counted questions."""

from __future__ import annotations

import math
import threading
import warnings
from fractions import Fraction
from pathlib import Path

import pytest
import torch

from botorch_dp.errors import BudgetExhausted, PrivacyError
from botorch_dp.outsourced import GaussianNoiseCurator, QuestionRefused, RandomProjectionCurator
from botorch_dp.outsourced.transforms import projected, projected_sensitivity, public_projection
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

    def test_fresh_projection_each_time(self) -> None:
        assert not torch.equal(self.make(X).dataset.value, self.make(X).dataset.value)

    @pytest.mark.parametrize(
        "rows",
        [torch.ones(6, 3, dtype=torch.double), torch.randn(2, 5, dtype=torch.double), X[:, :1]],
        ids=["constant", "n<d", "d=1"],
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
        # ... and the claim is tight: the worst direction attains it, up to what rounding may add.
        worst = torch.linalg.svd(P)[0][:, 0] * 1.5
        slack = 1e-9 if projection_dim is None else 1e-6
        assert (worst @ P).norm() == pytest.approx(claimed, rel=slack)

    def test_noise_has_the_claimed_spread(self) -> None:
        rows = torch.zeros(5000, 2, dtype=torch.double)
        curator = GaussianNoiseCurator(rows, evaluate, epsilon=1.0, delta=1e-6, unsafe_seed=1)
        variance = curator.dataset.value.var().item()
        # A chi-square with 9999 degrees of freedom: 4.9 standard deviations is a rate of 1e-6.
        assert variance == pytest.approx(curator.noise_std**2, rel=4.9 * math.sqrt(2 / 9999))

    @pytest.mark.slow
    def test_audit_with_a_broken_version(self) -> None:
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
                samples=80_000,
                delta=delta,
                confidence=1 - 1e-6,
                batched=True,
            ).lower_bound

        assert bound(1.0) <= epsilon
        assert bound(0.5) > epsilon

    def test_projection_is_public_and_keeps_distances(self) -> None:
        P = public_projection(5, 3)
        torch.testing.assert_close(P.mT @ P, torch.eye(3, dtype=torch.double) * 5 / 3)
        curator = noisy(projection_dim=3)
        assert curator.dataset.value.shape == (40, 3)
        assert torch.equal(curator.projection, P)
        assert "seed of the projection was chosen without" in str(curator.guarantee)

    @pytest.mark.parametrize(
        ("changed", "named"),
        [
            ({"epsilon": 2.0}, "epsilon"),
            ({"rows": X + 1e-9}, "rows"),
            ({"unsafe_seed": 2}, "unsafe_seed"),
            ({"ledger": PrivacyLedger(budget=PrivacyBudget(9.0, 1e-6))}, "charged"),
        ],
    )
    def test_another_release_needs_another_log(self, tmp_path: Path, changed, named: str) -> None:
        noisy(log=tmp_path / "log").close()
        with pytest.raises(PrivacyError, match=rf"other settings \(.*{named}"):
            noisy(log=tmp_path / "log", **changed)

    def test_a_log_brings_the_release_back_in_any_dtype(self, tmp_path: Path) -> None:
        rows = X.bfloat16()
        first = noisy(rows, log=tmp_path / "log")
        first.close()
        again = noisy(rows, log=tmp_path / "log")
        assert torch.equal(first.dataset.value, again.dataset.value)
        assert again.dataset.value.dtype == torch.bfloat16
        assert again.dataset.guarantee == first.dataset.guarantee
        assert again.dataset.scale == first.dataset.scale


def exact_difference(one: torch.Tensor, other: torch.Tensor) -> list[Fraction]:
    pairs = zip(one.flatten().tolist(), other.flatten().tolist(), strict=True)
    return [Fraction(b) - Fraction(a) for a, b in pairs]


class TestRounding:
    """The projected rows move by no more than claimed, whatever the rows and their dtype."""

    @pytest.mark.parametrize("scale", [1.0, 1e4, 1e7])
    def test_float32_pair(self, scale: float) -> None:
        """Projected in float32, rows this large move by more than the claim."""
        generator = torch.Generator().manual_seed(1)
        far = (torch.randn(400, 30, generator=generator) * scale).float()
        near = far.clone()
        near[:, 0] += 1.0
        distance = float((near.double() - far.double()).norm(dim=1).max())
        P = public_projection(30, 3, seed=0)
        claimed = projected_sensitivity(P, distance)
        moved = (projected(near, P, distance) - projected(far, P, distance)).norm(dim=1)
        assert moved.max() <= claimed
        if scale == 1e4:
            naive = (near @ P.float() - far @ P.float()).double().norm(dim=1)
            worst = (near - far)[0].double() @ P
            assert (naive / worst.norm()).max() > 1 + 1e-4

    @pytest.mark.parametrize("row_distance", [1e-6, 1.0, 37.5])
    @pytest.mark.parametrize("reach", [1.0, 2.0**22, 2.0**24, 2.0**60, 1e300])
    def test_exact_arithmetic_confirms_the_claim(self, reach: float, row_distance: float) -> None:
        """The worst direction, at any distance from the origin, in rationals."""
        P = public_projection(6, 2, seed=3)
        claimed = Fraction(projected_sensitivity(P, row_distance))
        worst = torch.linalg.svd(P)[0][:, 0] * row_distance * (1 - 1e-12)
        for trial in range(40):
            generator = torch.Generator().manual_seed(trial)
            row = torch.randn(1, 6, generator=generator, dtype=torch.double) * row_distance * reach
            other = row + worst
            step = exact_difference(row, other)
            # Where the sum's rounding takes the two too far apart, they are no neighbours.
            if sum(s * s for s in step) > Fraction(row_distance) ** 2:
                continue
            moved = exact_difference(
                projected(row, P, row_distance), projected(other, P, row_distance)
            )
            assert sum(m * m for m in moved) <= claimed**2

    def test_the_widening_is_small_and_there(self) -> None:
        """Noise is widened by the bound of the rounding; ``test_boundaries`` has it by hand."""
        curator = noisy(row_distance=2.0, projection_dim=3)
        claimed = projected_sensitivity(curator.projection, 2.0)
        assert curator.noise_std * curator.guarantee.mu == pytest.approx(claimed, rel=1e-12)
        assert claimed * (1 - 1e-15) <= curator.noise_std * curator.guarantee.mu
        assert 2 * math.sqrt(5 / 3) < claimed < 2 * math.sqrt(5 / 3) * (1 + 1e-6)

    def test_float32_release_is_the_double_one_rounded(self) -> None:
        rows = X.float()
        settings = {"projection_dim": 2, "unsafe_seed": 5}
        single, double = noisy(rows, **settings), noisy(rows.double(), **settings)
        assert torch.equal(single.dataset.value, double.dataset.value.float())
        assert noisy(rows.half(), **settings).dataset.value.dtype == torch.half


class TestWrongArguments:
    def test_a_refused_charge_lets_go_of_the_log(self, tmp_path: Path) -> None:
        ledger = PrivacyLedger(
            budget=PrivacyBudget(0.1, 1e-6), relation=NeighboringRelation.BOUNDED_ROW
        )
        with pytest.raises(BudgetExhausted):
            noisy(log=tmp_path / "log", ledger=ledger)
        noisy(log=tmp_path / "log").close()

    @pytest.mark.parametrize("request_id", ["", "x" * 129, "\ud800", "a\udfffb"])
    def test_request_ids(self, request_id: str) -> None:
        curator = noisy()
        with pytest.raises(ValueError, match="`request_id`"):
            curator.query(1, request_id=request_id)
        assert curator.num_queries == 0


class TestQueries:
    @pytest.mark.parametrize("index", [-1, 40, 1.5, "3", None, True])
    def test_only_row_indices(self, index) -> None:
        curator = noisy()
        with pytest.raises(QuestionRefused, match="`index`"):
            curator.query(index)
        assert curator.num_queries == 0

    def test_counts_without_showing_answers(self) -> None:
        curator = noisy()
        assert curator.query(3) == curator.query(3) == evaluate(3)
        assert curator.num_queries == 2
        assert str(evaluate(3))[:6] not in repr(curator)

    @pytest.mark.parametrize("measured", [math.nan, math.inf, -math.inf])
    def test_what_is_not_finite_is_measured_once(self, tmp_path: Path, measured: float) -> None:
        calls = []

        def broken(index: int) -> float:
            calls.append(index)
            return measured

        settings = {"epsilon": 1.0, "delta": 1e-6, "log": tmp_path / "log"}
        for _ in range(2):
            curator = GaussianNoiseCurator(X, broken, **settings)
            with pytest.raises(QuestionRefused, match="not finite"):
                curator.query(3, request_id="a")
            curator.close()
        assert calls == [3]

    def test_a_measurement_that_hangs_holds_up_nobody_else(self) -> None:
        done = threading.Event()

        def hangs(index: int) -> float:
            if index == 0:
                done.wait(20)
            return float(index)

        curator = GaussianNoiseCurator(X, hangs, epsilon=1.0, delta=1e-6)
        answers: list[float] = []
        thread = threading.Thread(target=lambda: answers.append(curator.query(0)))
        thread.start()
        assert [curator.query(i) for i in (1, 2, 3)] == [1.0, 2.0, 3.0]
        assert answers == []
        done.set()
        thread.join()
        assert answers == [0.0]
