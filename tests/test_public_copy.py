"""Generated copies of sensitive data have their public shape, and nothing else."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression

from botorch_dp.datasets import public_copy
from botorch_dp.space import Choice, Integer, Real, ShiftedExponential, Uniform, When

COLUMNS = [
    Real(-1.0, 3.0),
    Integer(17, 90),
    Choice("a", "b", "c", weights=(6, 3, 1)),
    Real(0.01, 100.0, log=True),
    Real(0.0, 1.0, distribution=ShiftedExponential(8.0)),
    *(Real(0.0, 1.0, distribution=Uniform()) for _ in range(6)),
]


def made(**options: Any) -> Any:
    defaults: dict[str, Any] = {"num_records": 3000, "num_test": 1000, "accuracy": 0.8}
    return public_copy(**({"columns": COLUMNS} | defaults | options))


def test_has_the_shape_that_was_asked_for() -> None:
    data = made(class_shares=(7, 3))
    assert data.train_X.shape == (3000, 13) and data.test_X.shape == (1000, 13)
    assert data.train_X.dtype == torch.float32 and data.train_Y.dtype == torch.int64
    assert made(dtype=torch.float64).test_X.dtype == torch.float64
    X, y = torch.cat([data.train_X, data.test_X]), torch.cat([data.train_Y, data.test_Y])
    assert y.float().mean().item() == pytest.approx(0.3, abs=0.04)  # five standard deviations
    # Each column has the distribution of its parameter exactly, up to its 4,000 steps.
    assert X[:, 0].min() >= -1 and X[:, 0].max() <= 3
    assert X[:, 0].mean().item() == pytest.approx(1.0, abs=1e-3)
    ages = X[:, 1]
    assert ages.equal(ages.round()) and ages.min() == 17 and ages.max() == 90
    assert X[:, 2:5].sum(1).eq(1).all()
    assert X[:, 2:5].mean(0).tolist() == pytest.approx([0.6, 0.3, 0.1], abs=1e-3)
    assert X[:, 5].log10().mean().item() == pytest.approx(0.0, abs=1e-3)
    assert X[:, 6].mean().item() == pytest.approx(0.1247, abs=1e-3)


@pytest.mark.parametrize("accuracy", [0.65, 0.8, 0.95])
@pytest.mark.parametrize("shares", [(0.5, 0.5), (0.6, 0.3, 0.1)])
def test_is_about_as_hard_as_was_said(accuracy: float, shares: tuple[float, ...]) -> None:
    data = made(accuracy=accuracy, class_shares=shares)
    scale = data.train_X.std(0)
    model = LogisticRegression(max_iter=300).fit(data.train_X / scale, data.train_Y)
    assert model.score(data.test_X / scale, data.test_Y) == pytest.approx(accuracy, abs=0.04)


def test_a_seed_gives_one_made() -> None:
    first, again, other = made(seed=3), made(seed=3), made(seed=4)
    assert first.train_X.equal(again.train_X) and first.test_Y.equal(again.test_Y)
    assert not first.train_X.equal(other.train_X)
    state = np.random.get_state()[1].copy(), torch.get_rng_state()  # type: ignore[union-attr]
    made()
    assert (np.random.get_state()[1] == state[0]).all()  # type: ignore[index]
    assert torch.get_rng_state().equal(state[1])


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({"columns": []}, TypeError, "`columns`"),
        ({"columns": [3]}, TypeError, "`columns`"),
        ({"columns": 3}, TypeError, "`columns`"),
        ({"columns": [Real(0, 1, active=When("a", 1))]}, ValueError, "`columns` must not have"),
        ({"num_records": 0}, ValueError, "`num_records`"),
        ({"num_test": 1.5}, TypeError, "`num_test`"),
        ({"seed": -1}, ValueError, "`seed`"),
        ({"class_shares": (1.0,)}, ValueError, "`class_shares`"),
        ({"class_shares": 0.5}, ValueError, "`class_shares`"),
        ({"class_shares": (0.5, 0.0)}, ValueError, "`class_shares`"),
        ({"class_shares": (0.9, 0.1)}, ValueError, "`accuracy` must lie between"),
        ({"accuracy": 1.0}, ValueError, "`accuracy`"),
    ],
)
def test_wrong(options: dict[str, Any], error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        made(**options)


@pytest.mark.parametrize("records", [1, 2, 7])
def test_a_handful_of_records(records: int) -> None:
    data = public_copy(COLUMNS[:1], num_records=records, num_test=1, accuracy=0.7)
    assert data.train_X.shape == (records, 1) and data.train_X.isfinite().all()
