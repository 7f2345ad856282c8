"""Bounds on a descent (benchmarks/dp_gibo_examples.py) are right by hand and hold for runs."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from gpytorch.kernels import PolynomialKernel, RBFKernel

from benchmarks.dp_gibo_examples import (
    PRINTED_SETTINGS,
    descent_bound,
    inference_bias,
    mean_by_descent,
    normal_data,
    printed_bounds,
    printed_V,
)
from botorch_dp.descent import DPGIBO, DescentResult, Design
from botorch_dp.descent.settings import DescentDiagnostics, DescentSettings, StepRecord
from botorch_dp.models.gradient import GradientBelief, KernelFactor
from botorch_dp.models.kernels import kernel_derivatives
from botorch_dp.privacy import Release, gaussian_guarantee

KNOWN: dict[str, Any] = {
    "step_size": 0.5,
    "clip_norm": math.inf,
    "record_norm": 2.0,
    "smoothness": 1.0,
    "convexity": 1.0,
    "start_distance": 1.0,
}


def result_of(traces: list[float], noise_std: float = 0.0) -> DescentResult:
    guarantee = gaussian_guarantee(sensitivity=1.0, mu=1.0)
    location = Release(torch.zeros(2), guarantee, scale=noise_std)
    history = tuple(StepRecord(3, 3, 0.1, trace) for trace in traces)
    steps = len(traces)
    return DescentResult(location, location, location, history, steps, DescentDiagnostics())


def test_printed_theorems_by_hand() -> None:
    """V of example 4.1 at mu = .5; then two steps with eta = .5, L = tau = 1, C = 2, F_0 = 8."""
    M = 2 * math.sqrt(150) * (4 * math.sqrt(5) + 2 * math.sqrt(2 * math.log(150 / 0.05))) / 25
    V = printed_V(**PRINTED_SETTINGS["4.1, mu = 0.5"])
    assert V == pytest.approx(M * (2 + M / 2)) and V == pytest.approx(171.07, abs=0.01)
    known = {"step_size": 0.5, "smoothness": 1.0, "convexity": 1.0, "record_norm": 2.0}
    bounds = printed_bounds([0.04, 0.01], 0.1, start_gap=8.0, **known)
    assert bounds.mean_square == pytest.approx(8 + 4 * 0.05 / 2 + 0.2)
    assert bounds.gap == pytest.approx(2 + (0.5 * 0.04 + 0.01) + 0.1)
    assert bounds.distance == pytest.approx(math.sqrt(bounds.gap))


def test_the_inferred_gradient_of_example_41_becomes_exact() -> None:
    asked: list[Any] = []
    data = normal_data()
    run = mean_by_descent(data, mu=0.05, bound=1.0, steps=10, seed=0, asked=asked)
    bias = inference_bias(data, run, asked)
    assert bias[0] > 1 and max(bias[7:]) < 1e-5


def test_by_hand_without_noise() -> None:
    """Two steps: D <- D/2 + .5 (2 sqrt(trace))."""
    bound = descent_bound(result_of([0.04, 0.01]), **KNOWN)
    assert bound.distance == pytest.approx((0.5 + 0.2) / 2 + 0.1)
    assert (bound.start, bound.bias, bound.privacy) == pytest.approx((0.25, 0.2, 0.0))
    assert bound.distance_within(1e-9) == pytest.approx(bound.distance)


def test_by_hand_with_clipping_and_privacy() -> None:
    clipped = KNOWN | {"clip_norm": 1.0, "gradient_bound": 1.5}
    bound = descent_bound(result_of([0.0], 0.1), **clipped)
    noise = 0.5 * math.sqrt(2) * 0.1
    assert bound.distance == pytest.approx(math.hypot(0.5 + 0.25, noise))
    within = 0.5 + 0.25 + noise + 0.05 * math.sqrt(2 * math.log(1 / 0.01))
    assert bound.distance_within(0.01) == pytest.approx(min(within, 10 * bound.distance))
    assert "in root mean square" in str(bound)


def test_gradient_bound_by_hand() -> None:
    known = KNOWN | {"convexity": None, "start_distance": None, "start_gap": 3.0}
    bound = descent_bound(result_of([0.04], 0.1), **known)
    assert bound.distance is None
    square = 2 * 3.0 / 0.5 + 0.4**2 + 0.5 * 2 * 0.1**2
    assert bound.gradient == pytest.approx(math.sqrt(square))


def data() -> torch.Tensor:
    return 1 + torch.randn(40, 3, generator=torch.Generator().manual_seed(0)).double()


def run(seed: int, mu: float = 2.0, clip_norm: float = 6.0, noise: float = 0.0) -> DescentResult:
    records = data()
    generator = torch.Generator().manual_seed(seed)
    kernel = PolynomialKernel(power=2).double()
    kernel.offset = 1.0

    def losses(X: torch.Tensor) -> torch.Tensor:
        exact = 0.5 * (X.unsqueeze(1) - records).square().sum(-1)
        return exact + noise * torch.randn(exact.shape, generator=generator).double()

    return DPGIBO(
        losses,
        torch.zeros(3).double(),
        kernel=kernel,
        mu=mu,
        steps=30,
        clip_norm=clip_norm,
        design=Design(batch_size=4, noise_variance=noise**2),
        step_size=0.3,
        unsafe_seed=seed,
    ).run()


def known(gradient_bound: float, clip_norm: float) -> dict[str, Any]:
    """What is true of these losses: the norm is that of x -> |x - a|^2 / 2 without its constant."""
    records = data()
    return {
        "step_size": 0.3,
        "clip_norm": clip_norm,
        "smoothness": 1.0,
        "convexity": 1.0,
        "record_norm": math.sqrt(3 / 4 + float(records.square().sum(-1).max()) / 2),
        "gradient_bound": gradient_bound,
        "start_distance": float(records.mean(0).norm()),
    }


def test_holds_for_runs_and_names_the_privacy_noise() -> None:
    """Once the kernel is spanned, the mean square is that of the noise: nearly attained."""
    target = data().mean(0)
    results = [run(seed) for seed in range(60)]
    squares = [float((r.location.value - target).square().sum()) for r in results]
    bound = descent_bound(results[0], **known(6.0, 6.0))
    assert bound.distance is not None
    found = math.sqrt(sum(squares) / 60)
    # 180 squares of normals: five standard errors of the root of their mean are 27%.
    assert bound.distance == pytest.approx(found, rel=0.27)
    assert bound.start + bound.bias < 1e-3 and bound.privacy == pytest.approx(bound.distance)
    assert max(squares) <= bound.distance_within(0.01) ** 2
    # Broken on purpose: without the noise's dimension the bound is below what is seen.
    assert bound.privacy / math.sqrt(3) < found / 1.27
    expected = DescentSettings(torch.zeros(1), 2.0, 30, 6.0).noise_std(40)
    assert results[0].location.scale == pytest.approx(expected)


def test_holds_where_gradients_are_clipped_and_evaluations_noisy() -> None:
    target = data().mean(0)
    result = run(0, mu=math.inf, clip_norm=0.5)
    reached = float((result.location.value - target).norm())
    longest = float((data() - target).norm(dim=-1).max()) + float(target.norm())
    bound = descent_bound(result, **known(longest, 0.5))
    assert bound.distance is not None and 0.01 < reached <= bound.distance
    results = [run(seed, mu=math.inf, clip_norm=math.inf, noise=0.1) for seed in range(10)]
    noisy = {"evaluation_noise": 0.1, "noise_variance": 0.01}
    bound = descent_bound(results[0], **known(0.0, math.inf), **noisy)
    assert bound.distance is not None
    for result in results:
        assert float((result.location.value - target).norm()) <= bound.distance


def test_an_inferred_gradient_is_off_by_at_most_its_norm_times_the_trace() -> None:
    """For functions of the RBF's space with a constant on top, which the model does not know."""
    generator = torch.Generator().manual_seed(3)
    kernel = RBFKernel().double()
    centres = torch.randn(6, 2, dtype=torch.double, generator=generator)
    for _ in range(20):
        weights = torch.randn(6, dtype=torch.double, generator=generator)
        gram = kernel(centres).to_dense().detach()
        norm = float((weights @ gram @ weights).sqrt())
        x = torch.zeros(2, dtype=torch.double, requires_grad=True)
        (kernel(x.unsqueeze(0), centres).to_dense() @ weights).sum().backward()
        points = torch.randn(4, 2, dtype=torch.double, generator=generator)
        factor, _ = KernelFactor.empty(kernel_derivatives(kernel, like=x), 2).extended(points, 1e-3)
        belief = GradientBelief(factor, torch.zeros(2).double(), unknown_mean=True)
        values = kernel(points, centres).to_dense().detach() @ weights + 7.0
        error = float((belief.weights.mT @ values - x.grad).norm())
        assert error <= norm * math.sqrt(float(belief.trace))
