"""Settings, plans and results: refused by name, priced by hand, shown without what is sensitive."""

from __future__ import annotations

import json
import math
from fractions import Fraction
from typing import Any

import pytest
import torch
from botorch.models import SingleTaskGP
from gpytorch.kernels import MaternKernel, RBFKernel
from torch import Tensor

from botorch_dp.descent import Design
from botorch_dp.descent.settings import DescentSettings
from botorch_dp.errors import NotPublicError
from botorch_dp.privacy import PrivacyBudget, PrivacyLedger, PrivacyUnit, gaussian_mu
from tests.descent.problems import (
    DIM,
    descent,
    kernel,
    must_not_be_read,
    records,
    squared_distance,
    unit_box,
)


def settings(**changes: Any) -> DescentSettings:
    values: dict[str, Any] = {
        "initial": torch.full((DIM,), 0.25, dtype=torch.double),
        "mu": 0.5,
        "steps": 25,
        "clip_norm": 3.0,
        "box": unit_box(),
        "unit": PrivacyUnit("one patient"),
    }
    return DescentSettings(**{**values, **changes})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kernel": MaternKernel(nu=1.5)}, "nu=1.5"),
        ({"kernel": RBFKernel(ard_num_dims=5)}, "5 length-scales"),
        ({"batch_size": 0}, "`batch_size`"),
        ({"tolerance": 0.0}, "`tolerance`"),
        ({"noise_std": -1.0}, "`noise_std`"),
        ({"radius": -0.1}, "`radius`"),
        ({"mean": "linear"}, "`mean`"),
        ({"max_points": 2}, "`max_points`"),
        ({"initial": torch.full((DIM,), 1.5).double()}, "within `box`"),
        ({"radius": [0.1, -0.2]}, "`radius`"),
    ],
)
def test_wrong_settings_are_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        descent(must_not_be_read, **changes)


def test_kernels_that_may_have_seen_the_records_are_refused() -> None:
    X = torch.rand(5, DIM, dtype=torch.double)
    with pytest.raises(TypeError, match="`kernel`"):
        descent(kernel=SingleTaskGP(X, X[:, :1]))
    trained = kernel()
    trained(X).to_dense().sum().backward()
    with pytest.raises(NotPublicError, match="trained"):
        descent(kernel=trained)


@pytest.mark.parametrize(("name", "points"), [("simplex", DIM + 1), ("central", 2 * DIM)])
def test_a_full_stencil_is_the_default(name: Any, points: int) -> None:
    assert settings(design=Design(name)).batch_size == points
    assert settings(design=Design(name, max_points=points)).design.max_points == points
    with pytest.raises(ValueError, match="`max_points`"):
        settings(design=Design(name, max_points=points - 1))
    assert settings(design=Design(name, batch_size=2)).batch_size == 2


def test_noise_and_guarantee_by_hand() -> None:
    checked = settings()
    # 2 B sqrt(T) / (n mu) = 2 * 3 * 5 / (100 * 0.5)
    assert checked.noise_std(100) == pytest.approx(0.6, rel=1e-15)
    std = DescentSettings(torch.zeros(1), 0.5, 25, 3.0).noise_std(100)
    assert std == checked.noise_std(100)
    for taken in (None, 1, 4, 25):
        assert checked.guarantee(taken).mu == 0.5
        assert checked.guarantee(taken).status == "proven"
    assert checked.guarantee(25) == checked.guarantee() != checked.guarantee(4)
    assert checked.step_price.mu == pytest.approx(0.1, rel=1e-15)
    assert checked.guarantee().protects == "one patient"


def test_no_noise_no_promise() -> None:
    plain = settings(mu=math.inf)
    assert plain.noise_std(100) == 0.0
    assert plain.guarantee(1).status == "none"
    assert plain.guarantee(1).epsilon(1e-5) == math.inf
    assert "no noise" in str(plain.guarantee(1))


@pytest.mark.parametrize("steps", [1, 2, 3, 7, 25, 150, 997])
@pytest.mark.parametrize("mu", [0.1, 0.5, 1.0, 2.0, 1 / 3])
def test_steps_never_add_up_to_more_than_mu(mu: float, steps: int) -> None:
    share = settings(mu=mu, steps=steps).step_mu
    assert steps * Fraction(share) ** 2 <= Fraction(mu) ** 2
    assert share == pytest.approx(mu / math.sqrt(steps), rel=1e-15)


@pytest.mark.parametrize("steps", [3, 25, 150])
def test_a_whole_run_fits_its_budget_exactly(steps: int) -> None:
    price = settings(mu=gaussian_mu(1.0, 1e-6), steps=steps).step_price
    with PrivacyLedger(budget=PrivacyBudget(1.0, 1e-6)) as ledger:
        for _ in range(steps):
            ledger.charge(price)
        assert len(ledger.entries()) == steps


def test_described_in_what_json_can_hold() -> None:
    described = settings(design=Design(radius=[0.3, 0.1])).to_dict()  # type: ignore[arg-type]
    of_settings, of_design = DescentSettings.__dataclass_fields__, Design.__dataclass_fields__
    assert set(described) == of_settings.keys() | (of_design.keys() - {"name"})
    assert json.loads(json.dumps(described))["initial"] == [0.25] * DIM
    assert described != settings(design=Design(radius=(0.3, 0.2))).to_dict()


# --- Plans. ---


# --- Results. ---


def test_diagnostics_know_what_was_dropped_and_do_not_show_it() -> None:
    def losses(X: Tensor) -> Tensor:
        values = squared_distance(records())(X)
        values[:, :7] = math.nan
        return values

    result = descent(losses, steps=2).run()
    assert result.diagnostics.not_finite == [7, 7]
    assert all(0 <= part <= 1 for part in result.diagnostics.clipped_fraction)
    assert "7" not in repr(result.diagnostics)
