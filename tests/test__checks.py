"""Every check returns the value or names the argument, the value and the fix."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from botorch_dp import _checks as checks

NAN, INF = math.nan, math.inf


@pytest.mark.parametrize(
    ("check", "good", "bad"),
    [
        (checks.check_finite, [0, -1.5, np.float64(2)], [NAN, INF, -INF]),
        (checks.check_positive, [1, 1e-300], [0, -1, NAN, INF]),
        (checks.check_nonnegative, [0, 3.0], [-1e-9, NAN, INF]),
        (checks.check_delta, [1e-12, 0.5], [0, 1, -0.1, NAN]),
        (checks.check_integer, [1, 7, np.int64(3)], [0, -2]),
    ],
)
def test_numbers(check, good, bad) -> None:
    for value in good:
        assert check("argument", value) == value
    for value in bad:
        with pytest.raises(ValueError, match="`argument`"):
            check("argument", value)
    for value in ["1", None, True, [1.0]]:
        with pytest.raises(TypeError, match="`argument`"):
            check("argument", value)


def test_limits_and_exceptions() -> None:
    assert checks.check_positive("mu", INF, allow_inf=True) == INF
    assert checks.check_delta("delta", 0, allow_zero=True) == 0
    with pytest.raises(ValueError, match="from 1 to 3, got 4"):
        checks.check_integer("steps", 4, at_most=3)
    with pytest.raises(TypeError, match="integer"):
        checks.check_integer("steps", 2.0)


def test_interval() -> None:
    assert checks.check_interval("bounds", [0, 1]) == (0.0, 1.0)
    for bad in [(1, 1), (2, 1), (0, INF), (NAN, 1), (0,), 3]:
        with pytest.raises(ValueError, match="`bounds`"):
            checks.check_interval("bounds", bad)


def test_tensor() -> None:
    X = torch.zeros(3, 2)
    assert checks.check_tensor("X", X, shape=("n", 2)) is X
    with pytest.raises(ValueError, match=r"shape n x 3, got \(3, 2\)"):
        checks.check_tensor("X", X, shape=("n", 3))
    with pytest.raises(ValueError, match="shape"):
        checks.check_tensor("X", torch.zeros(0, 2), shape=("n", 2))
    with pytest.raises(TypeError, match=r"\.double"):
        checks.check_tensor("X", torch.zeros(3, dtype=torch.long))
    with pytest.raises(TypeError, match="ndarray"):
        checks.check_tensor("X", np.zeros(3))
    secret = torch.tensor([123.456, NAN])
    with pytest.raises(ValueError, match="finite") as caught:
        checks.check_tensor("X", secret)
    assert "123" not in str(caught.value)
    assert checks.check_tensor("X", secret, finite=False) is secret
