"""A user can test whether a score function's columns depend on their own records only."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from botorch_dp.errors import PrivacyError
from botorch_dp.objectives import check_per_record

RECORDS = torch.linspace(-1, 1, 30, dtype=torch.double) ** 3
X = torch.tensor([[-0.3], [0.1], [0.8]], dtype=torch.double)

Scores = Callable[[Tensor], Tensor]


def distances(records: Tensor) -> Scores:
    return lambda X: (X - records).abs()


def linear_losses(records: tuple[Tensor, Tensor]) -> Scores:
    features, classes = records
    return lambda X: (features @ X.repeat(1, 4).T - classes[:, None]).square().T


def failing_for_nan(records: Tensor) -> Scores:
    def scores(X: Tensor) -> Tensor:
        if records.isnan().any():
            raise ArithmeticError(str(records))
        return X - records

    return scores


@pytest.mark.parametrize("dtype", [torch.float, torch.double])
def test_honest_scores_pass(dtype: torch.dtype) -> None:
    check_per_record(distances, RECORDS.to(dtype), X.to(dtype), trials=100)
    check_per_record(distances, RECORDS[:1], X)  # which has no others


def test_inputs_with_their_targets() -> None:
    torch.manual_seed(0)
    records = (torch.randn(20, 4, dtype=torch.double), torch.randint(3, (20,)))
    check_per_record(linear_losses, records, X)
    check_per_record(lambda y: lambda X: X * y, records[1], X)


@pytest.mark.parametrize(
    "make_scores",
    [
        lambda records: lambda X: (X + records > records.mean()).double(),
        lambda records: lambda X: (X + records > records.median()).double(),
        lambda records: lambda X: X * records / records.abs().max(),
        lambda records: lambda X: X * (records - records.mean()) / records.std(),
        lambda records: lambda X: X * records.argsort().argsort(),
        lambda records: lambda X: X * records.roll(1),
        lambda records: lambda X: (X * records).softmax(dim=-1),
        lambda records: lambda X: X * records + 1e-5 * records.sum(),
    ],
    ids=["mean", "median", "largest", "standardized", "rank", "next", "softmax", "little"],
)
def test_scores_that_look_at_others_are_caught(make_scores: Callable[[Tensor], Scores]) -> None:
    with pytest.raises(PrivacyError, match="moved the score of record") as caught:
        check_per_record(make_scores, RECORDS, X)
    assert "." not in str(caught.value).split("moved")[0], "places are named, values are not"


@pytest.mark.parametrize("leak", [lambda z: z.mean() > 0, lambda z: z.isnan().any()])
def test_a_switch_for_all_is_caught(leak: Scores) -> None:
    with pytest.raises(PrivacyError, match="moved"):
        check_per_record(lambda z: lambda X: X * z + leak(z), RECORDS, X)


def test_neither_global_nor_given_state_changes() -> None:
    def careless(records: Tensor) -> Scores:
        records += 1
        return lambda X: X.mul_(2) + records

    before, points, state = RECORDS.clone(), X.clone(), torch.get_rng_state()
    check_per_record(careless, RECORDS, X)
    assert torch.equal(RECORDS, before)
    assert torch.equal(X, points)
    assert torch.equal(torch.get_rng_state(), state)


def test_scores_that_change_from_call_to_call() -> None:
    with pytest.raises(PrivacyError, match="two different results"):
        check_per_record(lambda z: lambda X: X + z * torch.rand(1), RECORDS, X)


def test_an_exception_tells_about_a_record() -> None:
    with pytest.raises(PrivacyError, match=r"raised ArithmeticError .* by NaN") as caught:
        check_per_record(failing_for_nan, RECORDS, X)
    assert caught.value.__suppress_context__
