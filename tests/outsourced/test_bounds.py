"""Distances after a projection, and the regret of a search on projected rows."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from gpytorch.kernels import RBFKernel

from botorch_dp.outsourced import (
    Distortion,
    Modeler,
    projection_dim_for,
    projection_distortion,
    regret_bound,
    regret_certificate,
)

GENERATOR = torch.Generator().manual_seed(0)
X = torch.rand(60, 2, dtype=torch.double, generator=GENERATOR) * 3


def squared_ratios(r: int, *, lift: float = 0.0) -> torch.Tensor:
    """Of all pairs of centred rows, over 200 projections."""
    rows = X - X.mean(0)
    U, S, Vh = torch.linalg.svd(rows, full_matrices=False)
    lifted = (U * torch.hypot(S, lift * S.min())) @ Vh
    before = torch.pdist(rows).square()
    found = []
    for _ in range(200):
        M = torch.randn(2, r, dtype=torch.double, generator=GENERATOR)
        found.append(torch.pdist(lifted @ M / math.sqrt(r)).square() / before)
    return torch.stack(found)


@pytest.mark.parametrize("r", [3, 40])
@pytest.mark.parametrize("lift", [0.0, 1.5])
def test_distances_keep_within_as_often_as_stated(r: int, lift: float) -> None:
    ratios = squared_ratios(r, lift=lift)
    near = projection_distortion(num_rows=60, dim=2, projection_dim=r, delta=0.1, lift=lift)
    outside = ((ratios < near.low) | (ratios > near.high)).any(-1).double().mean()
    assert outside <= 0.1 + 5 * math.sqrt(0.1 * 0.9 / 200)
    # Broken twin: half as far is exceeded too often.
    high = 1 + (near.high - 1) / 4
    assert ((ratios < 1 - (1 - near.low) / 4) | (ratios > high)).any(-1).double().mean() > 0.2


def test_columns_by_hand() -> None:
    sizes: dict[str, Any] = {"num_rows": 100, "dim": 5, "delta": 0.05}
    printed = projection_dim_for(**sizes, distortion=0.4, edition="icml2020")
    assert printed == math.ceil(8 * math.log(100**2 / 0.05) / 0.4**2)
    exact = projection_dim_for(**sizes, distortion=0.4)
    assert exact < printed
    at, below = (projection_distortion(**sizes, projection_dim=r) for r in (exact, exact - 1))
    assert at.low >= 0.6 and at.high <= 1.4
    assert below.low < 0.6 or below.high > 1.4


@pytest.mark.parametrize("c", [0.25, 1.0, 3.0])
def test_covariance_error_is_the_largest_there_is(c: float) -> None:
    u = torch.linspace(0, 30, 200_001, dtype=torch.double)
    largest = float((torch.exp(-u) - torch.exp(-c * u)).abs().max())
    found = Distortion(min(c, 1.0), max(c, 1.0), 0.1).covariance_error
    assert found == pytest.approx(largest, abs=1e-8)


def gp_values(seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    gram = RBFKernel().double()
    gram.lengthscale = 1.0
    K = gram(X).to_dense().detach() + 1e-9 * torch.eye(60).double()
    return torch.linalg.cholesky(K) @ torch.randn(60, dtype=torch.double, generator=generator)


def kernel() -> RBFKernel:
    k = RBFKernel().double()
    k.lengthscale = 1.0
    return k


def test_certificate_holds_for_the_true_rows_whatever_was_sent() -> None:
    broken, tight = 0, 0
    for seed in range(20):
        values = gp_values(seed)
        noise = torch.Generator().manual_seed(seed)
        answers = values + 0.1 * torch.randn(60, dtype=torch.double, generator=noise)
        M = torch.randn(2, 3, dtype=torch.double, generator=noise) / math.sqrt(3)
        search = Modeler(X @ M, kernel=kernel(), noise_std=0.1, delta=0.1)
        history = search.run(lambda i, y=answers: float(y[i]), steps=25)
        regret = float(values.max() - values[[a.index for a in history]].max())
        certified = regret_certificate(X, history, kernel=kernel(), noise_std=0.1, delta=0.1)
        broken += regret > certified
        tight += certified < 3.0
    assert broken == 0
    assert tight >= 15  # it says something


def test_regret_bound_by_hand_and_for_a_search() -> None:
    exact = Distortion(1.0, 1.0, 0.01)
    bound = regret_bound(
        [0.5] * 4, num_rows=60, distortion=exact, noise_std=0.1, information_gain=8.0, delta=0.1
    )
    beta = 2 * math.log(60 * 16 * math.pi**2 / 0.6)
    assert bound.search == pytest.approx(math.sqrt(8 * beta * 8.0 / (4 * math.log(101))))
    assert bound.distortion == 0.0 and bound.delta == pytest.approx(0.11)
    near = Distortion(0.999, 1.001, 0.01)
    wrong = regret_bound(
        [0.5] * 4, num_rows=60, distortion=near, noise_std=0.1, information_gain=8.0, delta=0.1
    )
    assert wrong.distortion > 0 and wrong.simple_regret == wrong.search + wrong.distortion
    assert wrong.is_vacuous and "says nothing" in str(wrong)


def test_a_wrong_model_is_off_by_at_most_what_is_stated() -> None:
    """Posterior means and deviations on rows that were stretched a little, after ten answers."""
    from botorch_dp.models import FiniteSetGP

    values = gp_values(1)
    stretch = 1.002
    true, wrong = (
        FiniteSetGP(rows, kernel=kernel(), noise_variance=0.3**2) for rows in (X, stretch * X)
    )
    for index in range(10):
        true.observe(index, float(values[index]))
        wrong.observe(index, float(values[index]))
    h = Distortion(1.0, stretch**2, 0.0).covariance_error
    length = float(values[:10].norm())
    t, s = 10, 0.3
    assert float((true.mean - wrong.mean).abs().max()) <= h * (t**0.5 / s**2 + t / s**3) * length
    assert float((true.variance - wrong.variance).abs().max()) <= h * (2 * t**0.5 / s + t / s**2)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"num_rows": 1}, "`num_rows`"),
        ({"projection_dim": 0}, "`projection_dim`"),
        ({"delta": 0.0}, "`delta`"),
        ({"lift": -1.0}, "`lift`"),
    ],
)
def test_arguments_are_named(changed: dict[str, Any], message: str) -> None:
    sizes = {"num_rows": 10, "dim": 2, "projection_dim": 3, "delta": 0.1} | changed
    with pytest.raises(ValueError, match=message):
        projection_distortion(**sizes)


def test_the_lemma_has_its_limits() -> None:
    sizes: dict[str, Any] = {"num_rows": 10, "dim": 2, "delta": 0.1}
    with pytest.raises(ValueError, match="below 1/2"):
        projection_dim_for(**sizes, distortion=0.5, edition="icml2020")
    with pytest.raises(ValueError, match="`edition`"):
        projection_dim_for(**sizes, distortion=0.4, edition="workshop")  # type: ignore[arg-type]
