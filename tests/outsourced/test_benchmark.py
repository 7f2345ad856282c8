"""The formulas of `benchmarks/outsourced.py`: distances after a projection, certified regret."""

from __future__ import annotations

import math

import pytest
import torch
from gpytorch.kernels import RBFKernel

from benchmarks.outsourced import (
    TABLES,
    certified_regret,
    definition_3,
    exact_columns,
    kept_distances,
    lemma_columns,
    lifting_factor,
    variant,
)
from botorch_dp.outsourced import Modeler, choose_projection_dim, singular_floor

GENERATOR = torch.Generator().manual_seed(0)
X = torch.rand(60, 2, dtype=torch.double, generator=GENERATOR) * 3


@pytest.mark.parametrize("columns", [3, 40])
def test_distances_keep_within_as_often_as_stated(columns: int) -> None:
    before, found = torch.pdist(X).square(), []
    for _ in range(200):
        M = torch.randn(2, columns, dtype=torch.double, generator=GENERATOR)
        found.append(torch.pdist(X @ M / math.sqrt(columns)).square() / before)
    ratios = torch.stack(found)
    low, high = kept_distances(60, 2, columns, 0.1)
    outside = ((ratios < low) | (ratios > high)).any(-1).double().mean()
    # Hoeffding at a false-alarm rate of 1e-6.
    assert outside <= 0.1 + math.sqrt(math.log(1e6) / 400)
    # A quarter of the width, which is wrong, is exceeded too often.
    closer = (ratios < 1 - (1 - low) / 4) | (ratios > 1 + (high - 1) / 4)
    assert closer.any(-1).double().mean() > 0.1 + math.sqrt(math.log(1e6) / 400)


def test_columns_by_hand() -> None:
    printed, exact = lemma_columns(10_000, 0.4, 0.05), exact_columns(10_000, 2, 0.4, 0.05)
    assert (printed, exact) == (1071, 509)  # as on the paper's page
    low, high = kept_distances(10_000, 2, exact, 0.05)
    assert low >= 0.6 and high <= 1.4
    low, high = kept_distances(10_000, 2, exact - 1, 0.05)
    assert low < 0.6 or high > 1.4


def kernel() -> RBFKernel:
    smooth = RBFKernel().double()
    smooth.lengthscale = 1.0
    return smooth


def test_certificate_holds_for_the_true_rows_whatever_was_sent() -> None:
    gram = kernel()(X).to_dense().detach() + 1e-9 * torch.eye(60).double()
    root, broken, tight = torch.linalg.cholesky(gram), 0, 0
    for seed in range(20):
        noise = torch.Generator().manual_seed(seed)
        values = root @ torch.randn(60, dtype=torch.double, generator=noise)
        answers = values + 0.1 * torch.randn(60, dtype=torch.double, generator=noise)
        M = torch.randn(2, 3, dtype=torch.double, generator=noise) / math.sqrt(3)
        search = Modeler(X @ M, kernel=kernel(), noise_std=0.1, delta=0.1)
        history = search.run(lambda i, y=answers: float(y[i]), steps=25)
        regret = float(values.max() - values[[answer.index for answer in history]].max())
        certified = certified_regret(X, history, kernel=kernel(), noise_std=0.1, delta=0.1)
        broken += regret > certified
        tight += certified < 3.0
    assert broken == 0
    assert tight >= 15  # it says something


@pytest.mark.parametrize("number", [4, 5, 6])
def test_variants_need_no_lifting_up_to_their_threshold(number: int) -> None:
    X = torch.randn(200, 3, dtype=torch.double, generator=torch.Generator().manual_seed(0))
    table = variant(TABLES[number - 1], X)
    epsilon = math.exp(table.log_epsilon)
    assert choose_projection_dim(X, epsilon=epsilon, delta=table.delta) == table.threshold


def test_all_cells_are_printed() -> None:
    assert [table.number for table in TABLES] == list(range(1, 10))
    assert sum(len(table.printed) for table in TABLES) == 54


def test_a_narrow_kernel_is_diagonally_dominant_and_a_wide_one_is_not() -> None:
    X = torch.arange(6.0, dtype=torch.double).unsqueeze(-1)
    kernel = RBFKernel().double()
    kernel.lengthscale = 0.3
    assert definition_3(X, kernel) < 1
    kernel.lengthscale = 3.0
    assert definition_3(X, kernel) > 3 * (math.sqrt(5) + 1)


def test_lifting_stretches_distances_by_the_printed_factor() -> None:
    """sigma_min = 2: at the floor nothing is lifted; at twice the floor, C' = 1 + 2^2."""
    X = torch.tensor([[1.0, 1], [1, -1], [-1, 1], [-1, -1]], dtype=torch.double)
    floor = singular_floor(projection_dim=3, epsilon=1.0, delta=1e-5)
    at_floor = {"r": 3, "epsilon": floor / 2, "delta": 1e-5}
    assert lifting_factor(X, **at_floor | {"epsilon": floor / 1.99}) == 1.0
    assert lifting_factor(X, **at_floor | {"epsilon": floor / 4}) == pytest.approx(5.0)
