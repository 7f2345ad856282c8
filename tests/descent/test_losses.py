"""Asking for losses, keeping them, and turning them into gradients."""

from __future__ import annotations

import math

import pytest
import torch
from gpytorch.kernels import RBFKernel
from torch import Tensor

from botorch_dp.descent import losses as module
from botorch_dp.descent.losses import Observations, read_losses
from botorch_dp.models.gradient import KernelFactor
from botorch_dp.models.kernels import kernel_derivatives

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
    monkeypatch.setattr(module, "_CHUNK", 7)
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


def test_a_batch_without_points_changes_nothing() -> None:
    observations, _ = observed([2], n=5)
    assert observations.with_batch(observations.factor, torch.zeros(0, 5), 1) is observations


def test_no_private_value_is_shown() -> None:
    observations, table = observed([1], n=1)
    assert f"{float(table):.3f}" not in repr(observations)
    assert "private" in repr(observations)


def test_what_a_record_says_never_raises() -> None:
    answers = torch.tensor([[math.nan, math.inf, -math.inf, 1e308, 1e-310, 5e-324]] * 4).double()
    losses = read_losses(lambda _: answers, X, 6)
    assert losses[0, :3].isnan()[0] and losses[0, 1:3].isinf().all()
    assert (losses[:, 4:] == 0).all()  # subnormal numbers would take longer


def test_losses_get_the_dtype_of_the_points_and_no_graph() -> None:
    parameter = torch.ones(4, 3, requires_grad=True)
    losses = read_losses(lambda _: parameter * 2, X, None)
    assert losses.dtype == torch.double
    assert not losses.requires_grad


@pytest.mark.parametrize("shape", [(4,), (3, 5), (4, 0), (4, 5, 1), (4, 6)])
def test_wrong_shapes_are_named(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="`record_losses`"):
        read_losses(lambda _: torch.zeros(shape, dtype=torch.double), X, 5)


@pytest.mark.parametrize("answer", [[[0.0]], None])
def test_wrong_types_are_named(answer: object) -> None:
    with pytest.raises(TypeError, match="`record_losses`"):
        read_losses(lambda _: answer, X, 5)  # type: ignore[arg-type, return-value]


def test_losses_may_come_from_training_with_gradients() -> None:
    def train_and_score(X: Tensor) -> Tensor:
        weight = torch.zeros(2, dtype=torch.double, requires_grad=True)
        (X @ weight - 1).square().sum().backward()
        assert weight.grad is not None
        return X @ (weight - weight.grad).unsqueeze(-1)

    assert not read_losses(train_and_score, X, 1).requires_grad
