"""Settings: refused by name before a record is read, priced by hand, compared in plain words."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
import torch
from botorch.models import SingleTaskGP
from gpytorch.kernels import MaternKernel, RBFKernel

from botorch_dp.descent.settings import DescentSettings, check_public_kernel, described_kernel
from botorch_dp.errors import NotPublicError
from botorch_dp.privacy import PrivacyUnit
from tests.descent.problems import DIM, descent, kernel, must_not_be_read, unit_box


def settings(**changes: Any) -> DescentSettings:
    values: dict[str, Any] = {
        "initial": torch.full((DIM,), 0.25, dtype=torch.double),
        "mu": 0.5,
        "steps": 25,
        "clip_norm": 3.0,
        "batch_size": None,
        "tolerance": None,
        "bounds": unit_box(),
        "noise_variance": 0.0,
        "design": "simplex",
        "radius": None,
        "mean": "constant",
        "max_points": 100,
        "unsafe_seed": None,
        "unit": PrivacyUnit("one patient"),
    }
    return DescentSettings.checked(**{**values, **changes})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"mu": 0.0}, "`mu`"),
        ({"mu": -1.0}, "`mu`"),
        ({"mu": math.nan}, "`mu`"),
        ({"steps": 0}, "`steps`"),
        ({"clip_norm": 0.0}, "`clip_norm`"),
        ({"clip_norm": math.inf}, "`clip_norm`"),
        ({"batch_size": 0}, "`batch_size`"),
        ({"tolerance": 0.0}, "`tolerance`"),
        ({"noise_variance": -1.0}, "`noise_variance`"),
        ({"design": "sobol"}, "`design`"),
        ({"radius": -0.1}, "`radius`"),
        ({"mean": "linear"}, "`mean`"),
        ({"max_points": 2}, "`max_points`"),
        ({"unsafe_seed": -1}, "`unsafe_seed`"),
        ({"initial": torch.full((DIM,), 1.5).double()}, "within `bounds`"),
        ({"initial": torch.full((DIM,), math.nan).double()}, "`initial`"),
        ({"initial": torch.zeros(1, DIM).double()}, "`initial`"),
        ({"bounds": unit_box(2)}, "`bounds`"),
        ({"bounds": unit_box().flip(0)}, "`bounds`"),
        ({"radius": [0.1, -0.2]}, "`radius`"),
    ],
)
def test_wrong_settings_are_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        descent(must_not_be_read, **changes)


def test_wrong_types_are_named() -> None:
    with pytest.raises(TypeError, match="`initial`"):
        descent(must_not_be_read, initial=torch.zeros(DIM, dtype=torch.long))
    with pytest.raises(TypeError, match="`steps`"):
        descent(must_not_be_read, steps=2.5)


def test_kernels_that_may_have_seen_the_records_are_refused() -> None:
    X = torch.rand(5, DIM, dtype=torch.double)
    with pytest.raises(NotPublicError, match="model"):
        descent(kernel=SingleTaskGP(X, X[:, :1]))
    trained = kernel()
    trained(X).to_dense().sum().backward()
    with pytest.raises(NotPublicError, match="trained"):
        descent(kernel=trained)


def test_a_kernel_is_public_until_it_was_trained() -> None:
    check_public_kernel(kernel())
    check_public_kernel(RBFKernel() + MaternKernel(nu=2.5))
    trained = RBFKernel()
    trained.raw_lengthscale.grad = torch.zeros(1, 1)
    with pytest.raises(NotPublicError, match="RBFKernel has been trained"):
        check_public_kernel(trained)


@pytest.mark.parametrize(("design", "points"), [("simplex", DIM + 1), ("central", 2 * DIM)])
def test_a_full_stencil_is_the_default(design: str, points: int) -> None:
    assert settings(design=design).batch_size == points
    assert settings(design=design, max_points=points).max_points == points
    with pytest.raises(ValueError, match="`max_points`"):
        settings(design=design, max_points=points - 1)
    assert settings(design=design, batch_size=2).batch_size == 2


def test_noise_and_guarantee_by_hand() -> None:
    checked = settings()
    # 2 B sqrt(T) / (n mu) = 2 * 3 * 5 / (100 * 0.5)
    assert checked.noise_std(100) == pytest.approx(0.6, rel=1e-15)
    assert checked.guarantee(25).mu == 0.5
    assert checked.guarantee(4).mu == pytest.approx(0.5 * math.sqrt(4 / 25), rel=1e-15)
    assert checked.guarantee(25).protects == "one patient"
    assert settings(mu=math.inf).noise_std(100) == 0.0
    assert settings(mu=math.inf).guarantee(1).status == "none"


def test_a_seed_takes_the_promise_away_but_not_the_price() -> None:
    simulated = settings(unsafe_seed=0)
    assert simulated.guarantee(25).status == "none"
    assert simulated.nominal_guarantee(25) == settings().guarantee(25)


def test_only_plain_gibo_may_do_without_clipping() -> None:
    assert settings(mu=math.inf, clip_norm=math.inf).clip_norm == math.inf
    with pytest.raises(ValueError, match="`clip_norm` must be finite"):
        settings(clip_norm=math.inf)


def test_later_changes_of_the_arguments_have_no_effect() -> None:
    initial = torch.full((DIM,), 0.25, dtype=torch.double, requires_grad=True)
    checked = settings(initial=initial)
    with torch.no_grad():
        initial.fill_(0.75)
    assert checked.initial.tolist() == [0.25] * DIM
    assert not checked.initial.requires_grad


def test_bounds_take_the_kind_of_the_start_and_may_be_tight() -> None:
    single = settings(initial=torch.full((DIM,), 0.25))
    assert single.bounds is not None and single.bounds.dtype == torch.float32
    here = torch.full((2, DIM), 0.25, dtype=torch.double)
    assert settings(bounds=here).bounds is not None
    with pytest.raises(ValueError, match=r"`initial` .* coordinates \[1\] are outside"):
        settings(initial=torch.tensor([0.0, 1.5, 1.0], dtype=torch.double))
    with pytest.raises(ValueError, match="`bounds` must have lower <= upper"):
        settings(bounds=unit_box().flip(0))
    assert settings(bounds=None).bounds is None


def test_described_in_what_json_can_hold() -> None:
    described = settings(radius=[0.3, 0.1]).described()
    assert set(described) == set(DescentSettings.__dataclass_fields__)
    assert described["initial"] == [0.25] * DIM
    assert described["bounds"] == [[0.0] * DIM, [1.0] * DIM]
    assert described["radius"] == (0.3, 0.1)
    assert json.loads(json.dumps(described))["mu"] == 0.5
    assert described == settings(radius=(0.3, 0.1)).described()
    assert described != settings(radius=(0.3, 0.2)).described()


def test_kernels_are_told_apart_by_class_and_hyper_parameters() -> None:
    assert described_kernel(kernel(0.5)) == described_kernel(kernel(0.5))
    descriptions = [described_kernel(k) for k in (kernel(0.5), kernel(0.7), MaternKernel(nu=2.5))]
    for index, description in enumerate(descriptions):
        assert description not in descriptions[:index]
