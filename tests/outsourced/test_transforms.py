"""The published transform's numbers, and why it has no guarantee."""

from __future__ import annotations

import math

import pytest
import torch

from botorch_dp.outsourced import (
    GaussianNoiseCurator,
    RandomProjectionCurator,
    choose_projection_dim,
    column_space_residual,
    singular_floor,
)
from botorch_dp.outsourced.transforms import centred, lifted


def paper_grid() -> torch.Tensor:
    """100 x 100 points, centred, of largest norm 25."""
    axis = torch.linspace(-1, 1, 100, dtype=torch.double) * 25 / math.sqrt(2)
    return torch.cartesian_prod(axis, axis)


def silent_curator(*args, **kwargs) -> RandomProjectionCurator:
    with pytest.warns(UserWarning, match="guarantees nothing"):
        return RandomProjectionCurator(*args, **kwargs)


def test_floor_by_hand() -> None:
    # 16 sqrt(4 ln 2e5) ln(64e5) / 2
    expected = 16 * math.sqrt(4 * math.log(2e5)) * math.log(64e5) / 2
    assert singular_floor(projection_dim=4, epsilon=2.0, delta=1e-5) == pytest.approx(expected)


def test_paper_grid() -> None:
    X = paper_grid()
    assert float(torch.linalg.svdvals(centred(X)).min()) == pytest.approx(1030.9, abs=0.05)
    for log_epsilon, largest in [(1.1, 11), (1.3, 15), (1.5, 22)]:
        found = choose_projection_dim(X, epsilon=math.exp(log_epsilon), delta=1e-5)
        assert found == largest


def test_guideline_without_an_answer() -> None:
    with pytest.raises(ValueError, match="No `projection_dim`"):
        choose_projection_dim(torch.randn(20, 3, dtype=torch.double), epsilon=1.0, delta=1e-5)


def test_lifting_raises_the_singular_values_only() -> None:
    X = torch.randn(30, 4, dtype=torch.double)
    U, S, Vh = torch.linalg.svd(X, full_matrices=False)
    raised = lifted(X, 3.0)
    expected = (U * (S**2 + 9.0).sqrt()) @ Vh
    torch.testing.assert_close(raised, expected)


def test_projection_keeps_distances_on_average() -> None:
    """Without lifting, squared distances are right in expectation (Lemma 1)."""
    X = torch.randn(6, 3, dtype=torch.double) * 1e6
    draws = torch.stack(
        [
            silent_curator(
                X, float, projection_dim=50, epsilon=50.0, delta=1e-2, unsafe_seed=seed
            ).dataset.value
            for seed in range(60)
        ]
    )
    # Each squared distance is a chi-square with 50 degrees of freedom over 50: over 60 draws its
    # mean has a relative standard deviation of sqrt(2 / 3000) = .026; six of them is 1e-6 safe.
    ratio = torch.stack([torch.pdist(Z) ** 2 for Z in draws]).mean(0) / torch.pdist(X) ** 2
    assert (ratio - 1).abs().max() < 6 * math.sqrt(2 / 3000)


class TestAttack:
    """Whoever knows all rows but one reads off the missing one."""

    @pytest.mark.one_in(2)
    @pytest.mark.parametrize("lift", [True, False])
    @pytest.mark.parametrize("offset", [0.0, 1000.0], ids=["centred", "off centre"])
    @pytest.mark.parametrize("trials", [200, pytest.param(1000, marks=pytest.mark.slow)])
    def test_no_error_in_many_trials(self, lift: bool, offset: float, trials: int) -> None:
        n, d, r = 12, 3, 5
        floor = singular_floor(projection_dim=r, epsilon=1.0, delta=1e-5)
        errors = 0
        for trial in range(trials):
            generator = torch.Generator().manual_seed(trial)
            X = torch.randn(n, d, generator=generator, dtype=torch.double)
            X = X * (1.0 if lift else 1e4) + offset
            other = X.clone()
            # The neighbour's row differs by one unit, as the claimed guarantee has it.
            step = torch.randn(d, generator=generator, dtype=torch.double)
            other[trial % n] += step / step.norm()
            truth, decoy = (X, other) if trial % 2 else (other, X)
            assert (float(torch.linalg.svdvals(centred(truth)).min()) < floor) is lift
            Z = silent_curator(
                truth, float, projection_dim=r, epsilon=1.0, delta=1e-5, unsafe_seed=trial
            ).dataset.value
            errors += column_space_residual(Z, truth) >= column_space_residual(Z, decoy)
        assert errors == 0

    def test_noise_stops_it(self) -> None:
        """Against honest noise it wins no more often than (e^eps + delta) / (1 + e^eps)."""
        n, d, trials, epsilon = 12, 3, 400, 0.5
        wins = 0
        for trial in range(trials):
            generator = torch.Generator().manual_seed(trial)
            X = torch.randn(n, d, generator=generator, dtype=torch.double)
            other = X.clone()
            step = torch.randn(d, generator=generator, dtype=torch.double)
            other[0] += step / step.norm()
            truth, decoy = (X, other) if trial % 2 else (other, X)
            curator = GaussianNoiseCurator(
                truth, float, epsilon=epsilon, delta=1e-5, unsafe_seed=trial
            )
            Z = curator.dataset.value
            wins += column_space_residual(Z, truth) < column_space_residual(Z, decoy)
        most = (math.exp(epsilon) + 1e-5) / (1 + math.exp(epsilon))
        # Hoeffding at a false-alarm rate of 1e-6.
        assert wins / trials <= most + math.sqrt(math.log(1e6) / (2 * trials))

    def test_no_projection_hides_behind_few_rows(self) -> None:
        """With n <= d every vector lies in the column space: this test is then silent."""
        X = torch.randn(3, 8, dtype=torch.double)
        Z = torch.randn(3, 2, dtype=torch.double)
        assert column_space_residual(Z - Z.mean(0), X) < 1e-10
        found = column_space_residual(Z, X)
        for scale in (1e-200, 1e300):  # whose squares vanish or overflow
            assert column_space_residual(scale * Z, X) == pytest.approx(found)
            assert column_space_residual(Z, scale * X) == pytest.approx(found)
