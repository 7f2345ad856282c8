"""Losses are asked for, kept, turned into gradients; the clipped mean has its exact sensitivity."""

from __future__ import annotations

import copy
import math
import pickle
from collections.abc import Callable
from fractions import Fraction

import pytest
import torch
from gpytorch.kernels import RBFKernel
from torch import Tensor

from botorch_dp.descent import step as module
from botorch_dp.descent.step import ClippedMean, Observations, read_losses
from botorch_dp.models.gradient import KernelFactor
from botorch_dp.models.kernels import kernel_derivatives

B = 1.5


def clipped_mean(gradients: Tensor, bound: float = B, pieces: int = 1) -> ClippedMean:
    mean = ClippedMean(gradients.shape[0], gradients.shape[1], bound)
    for part in gradients.chunk(pieces, dim=-1):
        mean.add(part)
    return mean


def test_short_gradients_are_averaged_and_long_ones_shortened() -> None:
    gradients = torch.tensor([[0.3, 3.0, 0.0], [0.4, -4.0, 0.0]], dtype=torch.double)
    mean = clipped_mean(gradients)
    expected = torch.tensor([(0.3 + 0.6 * B) / 3, (0.4 - 0.8 * B) / 3], dtype=torch.double)
    torch.testing.assert_close(mean.value(), expected, rtol=1e-11, atol=1e-11)
    assert mean.counts() == (1, 0)


ADVERSARIES = {
    "huge": [1e300, -1e300, 1e300],
    "largest": [torch.finfo(torch.double).max] * 3,
    "mixed": [1e308, 1e-308, -1.0],
    "infinite": [math.inf, 0.0, 0.0],
    "opposite infinities": [math.inf, -math.inf, 1.0],
    "nan": [math.nan, 1.0, 1.0],
    "subnormal": [5e-324, 0.0, -5e-324],
    "zero": [0.0, 0.0, 0.0],
    "at the bound": [B, 0.0, 0.0],
    "just above the bound": [math.nextafter(B, 2.0), 1e-9, 0.0],
    "diagonal": [B, B, B],
}


@pytest.mark.parametrize("first", ADVERSARIES)
@pytest.mark.parametrize("second", ADVERSARIES)
def test_replacing_a_record_moves_the_mean_by_at_most_2b_over_n(first: str, second: str) -> None:
    """Exactly so, in rational arithmetic on the floats that come out."""
    n = 7
    others = torch.randn(3, n - 1, dtype=torch.double)
    means = []
    for record in (ADVERSARIES[first], ADVERSARIES[second]):
        column = torch.tensor(record, dtype=torch.double).unsqueeze(-1)
        means.append(clipped_mean(torch.cat((others, column), dim=-1)).value())
    assert torch.isfinite(torch.stack(means)).all()
    moved = [Fraction(a) - Fraction(b) for a, b in zip(*(m.tolist() for m in means), strict=True)]
    assert sum(x**2 for x in moved) <= (2 * Fraction(B) / n) ** 2


def test_the_bound_is_reached_so_that_less_noise_would_be_too_little() -> None:
    n = 4
    up = torch.zeros(2, n, dtype=torch.double)
    up[0, 0] = 1e300
    moved = clipped_mean(up).value() - clipped_mean(-up).value()
    assert moved.norm() == pytest.approx(2 * B / n, rel=1e-12)


@pytest.mark.parametrize("n", [3, 100_000])
def test_random_records_of_all_sizes(n: int) -> None:
    gradients = torch.randn(5, n, dtype=torch.double) * 10 ** torch.empty(n).uniform_(-5, 5)
    before = clipped_mean(gradients).value()
    for _ in range(5):
        gradients[:, 0] = torch.randn(5) * 10 ** float(torch.empty(()).uniform_(-300, 300))
        after = clipped_mean(gradients).value()
        moved = (
            Fraction(a) - Fraction(b) for a, b in zip(after.tolist(), before.tolist(), strict=True)
        )
        assert sum(x**2 for x in moved) <= (2 * Fraction(B) / n) ** 2


@pytest.mark.parametrize("bound", [B, math.inf])
@pytest.mark.parametrize("others", ADVERSARIES)
def test_gradients_are_clipped_as_by_the_formula(others: str, bound: float) -> None:
    gradients = torch.randn(3, 400, dtype=torch.double) * 10 ** torch.empty(400).uniform_(-3, 3)
    column = torch.tensor(ADVERSARIES[others], dtype=torch.double)
    table = torch.cat((gradients, column.unsqueeze(-1)), dim=-1)
    mean = ClippedMean(3, 401, bound)
    mean.add(table)
    finite = table.abs().amax(dim=0).isfinite()
    table = torch.where(finite, table, 0.0)
    largest = table.abs().amax(dim=0).clamp_min(1e-300)
    norms = (table / largest).square().sum(0).sqrt().clamp_min(1e-16)
    limit = (mean.bound / norms).minimum(largest)
    expected = (table / largest * limit).sum(-1) if bound < math.inf else table.sum(-1)
    shortened = (finite & (largest > mean.bound / norms)).sum()
    total = mean.total if mean.is_plain else mean.total.double() * mean.unit
    torch.testing.assert_close(total, expected, rtol=1e-12, atol=1e-11)
    assert mean.counts() == (shortened, 401 - finite.sum())


def test_the_sum_does_not_depend_on_order_or_pieces() -> None:
    gradients = torch.randn(4, 501, dtype=torch.double)
    expected = clipped_mean(gradients).value()
    shuffled = clipped_mean(gradients[:, torch.randperm(501)], pieces=7).value()
    assert torch.equal(expected, shuffled)
    torch.testing.assert_close(
        expected, (gradients * (B / gradients.norm(dim=0)).clamp_max(1)).mean(-1)
    )


def test_non_finite_gradients_count_as_zero_and_touch_nobody_else() -> None:
    gradients = torch.randn(2, 5, dtype=torch.double)
    gradients[:, 1] = 0.0
    expected = clipped_mean(gradients).value()
    for bad in (math.nan, math.inf, -math.inf):
        gradients[0, 1] = bad
        mean = clipped_mean(gradients)
        assert torch.equal(mean.value(), expected)
        assert mean.counts()[1] == 1


def test_an_infinite_bound_is_a_plain_mean() -> None:
    gradients = torch.tensor([[1.0, 2.0, math.nan], [1e10, 0.0, 0.0]], dtype=torch.double)
    mean = clipped_mean(gradients, bound=math.inf)
    torch.testing.assert_close(mean.value(), torch.tensor([1.0, 1e10 / 3], dtype=torch.double))
    assert mean.counts() == (0, 1)


# --- Losses on their way there. ---

X = torch.rand(4, 2, dtype=torch.double)


def empty() -> Observations:
    return Observations(KernelFactor.empty(kernel_derivatives(RBFKernel(), like=X), 2))


def observed(sizes: list[int], n: int) -> tuple[Observations, Tensor]:
    observations, blocks = empty(), []
    for step, size in enumerate(sizes):
        factor, _ = observations.factor.extended(torch.randn(size, 2, dtype=torch.double))
        blocks.append(torch.randn(size, n, dtype=torch.double))
        observations = observations.with_batch(factor, blocks[-1], step)
    return observations, torch.cat(blocks)


def test_gradients_are_one_product_whatever_the_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    observations, table = observed([3, 1, 4], n=25)
    weights = torch.randn(8, 2, dtype=torch.double)
    (whole,) = observations.gradients(weights)
    torch.testing.assert_close(whole, weights.mT @ table)
    monkeypatch.setattr(module, "_CHUNK_NUMBERS", 14)
    monkeypatch.setattr(module, "_LEAST_CHUNK", 3)
    parts = list(observations.gradients(weights))
    assert [part.shape[-1] for part in parts] == [7, 7, 7, 4]
    torch.testing.assert_close(torch.cat(parts, dim=-1), whole)


def test_only_the_newest_batches_are_kept() -> None:
    observations, _ = observed([3, 1, 4], n=5)
    assert observations.within(8) is observations
    kept = observations.within(6)
    assert kept.steps == (1, 2)
    assert torch.equal(kept.factor.points, observations.factor.points[3:])
    plain = kept.factor.derivatives.value(kept.factor.points, kept.factor.points)
    torch.testing.assert_close(kept.factor.root @ kept.factor.root.mT, plain)
    assert (kept.factor.root.diagonal() > 0).all()
    assert torch.equal(kept.factor.root, kept.factor.root.tril())
    assert observations.within(0).steps == ()


@pytest.mark.parametrize("copied", [None, copy.deepcopy, lambda it: pickle.loads(pickle.dumps(it))])
def test_observations_are_not_changed_by_whoever_goes_on(
    copied: Callable[[Observations], Observations] | None,
) -> None:
    """Whoever goes on from the same observations, after a step that failed or in a copy."""
    observations, table = observed([2, 2], n=5)
    for value in (1.0, 2.0):
        before = copied(observations) if copied else observations
        factor, _ = before.factor.extended(torch.randn(2, 2, dtype=torch.double))
        after = before.with_batch(factor, torch.full((2, 5), value, dtype=torch.double), 2)
        assert torch.equal(torch.cat(after.losses)[:4], table)
        assert (after.losses[-1] == value).all()
    assert observations.steps == (0, 1) and torch.equal(torch.cat(observations.losses), table)


def test_no_loss_is_shown() -> None:
    observations, table = observed([1], n=1)
    assert f"{float(table):.3f}" not in repr(observations)
    assert "sensitive" in repr(observations)


def test_losses_get_the_dtype_of_the_points_and_no_graph() -> None:
    parameter = torch.ones(4, 3, requires_grad=True)
    losses = read_losses(lambda _: parameter * 2, X, None)
    assert losses.dtype == torch.double
    assert not losses.requires_grad


@pytest.mark.parametrize("shape", [(3, 5), (4, 6)])
def test_wrong_shapes_are_named(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="`record_losses`"):
        read_losses(lambda _: torch.zeros(shape, dtype=torch.double), X, 5)
