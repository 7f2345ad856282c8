"""DP-GIBO: it descends, spends what it says, survives any record, is as private as it claims."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from gpytorch.kernels import MaternKernel, PolynomialKernel, RBFKernel, ScaleKernel
from scipy import stats
from torch import Tensor

from botorch_dp.descent import DPGIBO, Design
from botorch_dp.errors import PrivacyError
from botorch_dp.models.kernels import kernel_derivatives
from botorch_dp.privacy import (
    NeighboringRelation,
    PrivacyBudget,
    PrivacyLedger,
    PrivacyUnit,
    audit_epsilon,
    compose_gdp,
    gaussian_mechanism,
)
from tests.descent.problems import (
    DIM,
    Counted,
    N,
    descent,
    kernel,
    must_not_be_read,
    records,
    squared_distance,
)

FALSE_ALARM = 1e-6


# --- It descends. ---


@pytest.mark.one_in(3)
@pytest.mark.parametrize("design", ["simplex", "central", "optimize"])
@pytest.mark.parametrize(
    "kernel_", [kernel(), MaternKernel(nu=2.5), PolynomialKernel(power=2), ScaleKernel(RBFKernel())]
)
def test_without_noise_it_finds_the_minimum(design: str, kernel_: Any) -> None:
    run = descent(kernel=kernel_, mu=math.inf, clip_norm=math.inf, steps=25, design=design)
    found = run.run().location.value
    assert (found - records().mean(0)).norm() < 5e-3


def test_with_noise_it_comes_close_and_says_what_it_promises() -> None:
    run = descent(mu=2.0, steps=30, unsafe_seed=3)
    result = run.run()
    assert (result.average.value - records().mean(0)).norm() < 0.05
    assert result.trajectory.value.shape == (31, DIM)
    torch.testing.assert_close(result.trajectory.value[-1], result.location.value)
    torch.testing.assert_close(result.trajectory.value[16:].mean(0), result.average.value)
    assert result.guarantee.status == "none"  # simulated noise
    nominal = result.guarantee.nominal
    assert nominal.mu == 2.0
    assert nominal.relation is NeighboringRelation.REPLACE_ONE
    for release in (result.location, result.average, result.trajectory):
        assert release.guarantee is result.guarantee
        assert release.scale == pytest.approx(2 * 1.0 * math.sqrt(30) / (N * 2.0))


def test_real_noise_differs_from_run_to_run_and_is_proven() -> None:
    torch.manual_seed(0)
    first = descent(steps=2).run()
    torch.manual_seed(0)
    second = descent(steps=2).run()
    assert not torch.equal(first.location.value, second.location.value)
    assert first.guarantee.status == "proven"
    assert first.guarantee.mu == 1.0


def test_the_search_takes_steps_one_by_one() -> None:
    run = descent(steps=3, mu=0.6)
    assert run.guarantee.mu == 0.6
    released = [run.step().value for _ in range(3)]
    assert torch.equal(run.result.trajectory.value[1:], torch.stack(released))
    with pytest.raises(ValueError, match="All 3 steps"):
        run.step()
    assert torch.equal(run.run().location.value, run.result.location.value)


@pytest.mark.parametrize("height", [1e3, -1e3])
def test_a_constant_loss_has_no_gradient_even_near_a_corner(height: float) -> None:
    start = torch.tensor([0.1, 0.9, 0.9], dtype=torch.double)

    def losses(X: Tensor) -> Tensor:
        return torch.full((len(X), 5), height, dtype=torch.double)

    plain = partial(descent, losses, initial=start, mu=math.inf, clip_norm=math.inf, radius=0.3)
    assert torch.allclose(plain(steps=3).run().location.value, start, atol=1e-9)
    # A prior mean of zero takes height for slope.
    assert not torch.allclose(plain(steps=1, mean="zero").run().location.value, start, atol=0.05)


def test_iterates_and_points_stay_in_the_box() -> None:
    asked = []

    def losses(X: Tensor) -> Tensor:
        asked.append(X)
        return (X - 5.0).square().sum(-1, keepdim=True).expand(-1, 10)

    trajectory = descent(losses, mu=0.1, steps=8, step_size=2.0).run().trajectory.value
    assert ((trajectory >= 0) & (trajectory <= 1)).all()
    points = torch.cat(asked)
    assert ((points >= 0) & (points <= 1)).all()


def test_noisy_observations_are_modelled() -> None:
    generator = torch.Generator().manual_seed(0)

    def losses(X: Tensor) -> Tensor:
        clean = squared_distance(records())(X)
        return clean + 0.05 * torch.randn(clean.shape, generator=generator, dtype=torch.double)

    run = descent(losses, mu=5.0, steps=20, noise_std=0.05, unsafe_seed=2)
    result = run.run()
    assert (result.average.value - records().mean(0)).norm() < 0.05
    assert result.history[0].radius > 0.05  # small differences would drown


def test_many_points_under_a_smooth_kernel_do_not_bury_the_gradient() -> None:
    """A squared loss is no function of an RBF's kind: trusting every digit gives absurd slopes."""
    start = torch.full((2,), -2.0, dtype=torch.double)
    data = 3 * records(n=50, dim=2)
    run = DPGIBO(
        squared_distance(data),
        start,
        kernel=kernel(0.5),
        mu=math.inf,
        steps=60,
        clip_norm=math.inf,
        step_size=0.05,
    )
    x, path = start, [start]
    for _ in range(60):
        x = x - 0.05 * 2 * (x - data.mean(0))
        path.append(x)
    torch.testing.assert_close(run.run().trajectory.value, torch.stack(path), rtol=0, atol=0.01)


def test_max_points_bounds_the_memory() -> None:
    run = descent(max_points=10, steps=8, mu=5.0, unsafe_seed=1)
    result = run.run()
    assert max(r.points for r in result.history) <= 10
    assert len(run._progress.observations.factor) <= 10
    assert (result.location.value - records().mean(0)).norm() < 0.2


# --- It says its price and spends it. ---


def test_the_plan_reads_no_record() -> None:
    plan = descent(must_not_be_read, steps=9, mu=0.5).plan(num_records=100)
    assert plan.noise_std == pytest.approx(2 * 3 / (100 * 0.5))
    assert plan.noise_to_clip == pytest.approx(plan.noise_std * math.sqrt(DIM))
    assert plan.evaluations == 9 * (DIM + 1)
    assert plan.table_bytes == 9 * (DIM + 1) * 100 * 8
    assert plan.guarantee.mu == 0.5
    with pytest.raises(ValueError, match="num_records"):
        descent(must_not_be_read).plan()
    with pytest.raises(ValueError, match="`num_records` must be"):
        descent(must_not_be_read).plan(num_records=0)
    counted = descent(Counted(must_not_be_read, 100), steps=9, mu=0.5)
    assert str(counted.plan()) == str(plan)
    with pytest.raises(ValueError, match="`num_records` = 99, but `record_losses` has 100 records"):
        counted.plan(num_records=99)


def test_the_ledger_pays_before_the_records_are_read() -> None:
    with PrivacyLedger(budget=PrivacyBudget(3.0, 1e-5)) as ledger:
        charged_when_read = []

        def losses(X: Tensor) -> Tensor:
            charged_when_read.append(len(ledger.entries()))
            return squared_distance(records())(X)

        descent(losses, ledger=ledger, steps=4, mu=0.5).run()
        assert charged_when_read == [1, 2, 3, 4]
        mus = [entry.mu for entry in ledger.entries()]
        assert compose_gdp(mus) == pytest.approx(0.5)
        assert compose_gdp(mus) <= 0.5 * (1 + 1e-15)


@pytest.mark.parametrize("noise", [{}, {"unsafe_seed": 1}])
def test_an_early_stop_quotes_the_whole_run(noise: dict[str, int]) -> None:
    """When to stop may depend on what was released, so what was spent by then is no guarantee."""
    run = descent(steps=3, mu=0.6, **noise)
    for taken in (1, 2):
        for guarantee in (run.step().guarantee, run.result.guarantee):
            assert guarantee.nominal.mu == run.guarantee.nominal.mu == 0.6
            assert f"{taken} of the 3 steps that this covers" in str(guarantee)
    assert run.step().guarantee == run.result.guarantee == run.guarantee
    assert "covers" not in str(run.guarantee)


def test_what_rests_on_the_caller_is_printed() -> None:
    unit = PrivacyUnit("one patient", conditions=("a patient has one record",))
    guarantee = descent(steps=1, unit=unit).run().guarantee
    assert guarantee.status == "proven"
    for condition in (
        "a patient has one record",
        "a record's losses depend on that record only",
        "the number of records is public",
        "the kernel, the box and the other settings were chosen without the records",
    ):
        assert condition in str(guarantee)


def test_an_interrupted_step_is_repeated_and_charged_once() -> None:
    calls = []

    def losses(X: Tensor) -> Tensor:
        calls.append(X)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return squared_distance(records())(X)

    with PrivacyLedger(budget=PrivacyBudget(3.0, 1e-5)) as ledger:
        run = descent(losses, ledger=ledger, steps=4, mu=0.6)
        with pytest.raises(KeyboardInterrupt):
            run.run()
        assert run.steps_taken == 1
        run.run()
        assert len(ledger.entries()) == 4
    assert torch.equal(calls[1], calls[2])


# --- No record can break it. ---


# --- It is as private as it claims. ---


def adversary(sign: float) -> Tensor:
    return torch.tensor([sign * 1e300], dtype=torch.double)


def worst_case(
    sign: float, *, steps: int, mu: float, seed: Callable[[], int | None] = lambda: None
) -> float:
    """A data set of one record whose loss is as steep as a float allows, up or down."""
    run = DPGIBO(
        lambda X: X * adversary(sign),
        torch.zeros(1, dtype=torch.double),
        kernel=kernel(1.0),
        mu=mu,
        steps=steps,
        clip_norm=1.0,
        step_size=1.0,
        design=Design(radius=0.1),
        unsafe_seed=seed(),
    )
    # Of all iterates, the last one is the best witness: it has the sum of the noisy gradients.
    # Rounded, so that nothing but the amount of seeded noise can betray it.
    return round(run.run().location.value.item() * 2**20) / 2**20


def audit(steps: int, samples: int, **options: Any) -> tuple[float, float]:
    """The lower bound on epsilon at delta = .6, and the claimed epsilon there, for mu = 2."""
    claim = DPGIBO(
        lambda X: X,
        torch.zeros(1, dtype=torch.double),
        kernel=kernel(),
        mu=2.0,
        steps=steps,
        clip_norm=1.0,
    ).guarantee.epsilon(0.6)
    report = audit_epsilon(
        partial(worst_case, steps=steps, mu=2.0, **options),
        -1.0,
        1.0,
        samples=samples,
        delta=0.6,
        confidence=1 - FALSE_ALARM,
    )
    return report.lower_bound, claim


@pytest.mark.slow
@pytest.mark.parametrize("steps", [1, 2])
def test_audit_with_many_samples(steps: int) -> None:
    bound, claim = audit(steps, 20_000)
    assert 0.2 * claim < bound <= claim  # the audit sees what there is


def half_noise(value: Tensor, *, sensitivity: float, **options: Any) -> Any:
    """Broken on purpose: a sensitivity of B/n instead of 2B/n."""
    return gaussian_mechanism(value, sensitivity=sensitivity / 2, **options)


@pytest.mark.slow
def test_audit_catches_half_the_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """With given seeds: of other draws as few, one set in ten thousand would not show it."""
    monkeypatch.setattr("botorch_dp.descent.step.gaussian_mechanism", half_noise)
    bound, claim = audit(1, 500, seed=partial(next, itertools.count()))
    assert bound > claim


@pytest.mark.parametrize("broken", [False, True])
def test_noise_has_the_promised_distribution(broken: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kolmogorov-Smirnov on 1,000 coordinates of one step of a constant loss.

    Half the noise has a p-value of 1e-26, within a factor of 130 (one standard deviation).
    """
    if broken:
        monkeypatch.setattr("botorch_dp.descent.step.gaussian_mechanism", half_noise)
    dim, n, steps, mu, bound = 1000, 10, 9, 0.5, 1.5
    run = DPGIBO(
        lambda X: X.new_zeros(len(X), n),
        torch.zeros(dim, dtype=torch.double),
        kernel=kernel(1.0),
        mu=mu,
        steps=steps,
        clip_norm=bound,
        design=Design(batch_size=2),
        step_size=1.0,
    )
    noise = -run.step().value
    std = 2 * bound * math.sqrt(steps) / (n * mu)
    p = stats.kstest(noise.numpy() / std, "norm").pvalue
    assert (p < FALSE_ALARM) == broken


def test_gradients_match_the_weights_by_hand() -> None:
    """G = (W - a 1^T W / 1^T a)^T L with explicit inverses, clipped and averaged."""
    asked: list[Tensor] = []

    def losses(X: Tensor) -> Tensor:
        asked.append(X)
        return squared_distance(records())(X)

    start = torch.full((DIM,), 0.2, dtype=torch.double)
    bound, noise = 0.7, 1e-3
    run = descent(
        losses, mu=math.inf, clip_norm=bound, steps=1, step_size=1.0, noise_std=noise**0.5, box=None
    )
    moved = run.run().location.value - start
    (X,) = asked
    k = kernel_derivatives(kernel(), like=X)
    K = k.value(X, X) + noise * torch.eye(len(X), dtype=torch.double)
    W = torch.linalg.solve(K, k.gradient(start, X).mT)
    a = torch.linalg.solve(K, torch.ones(len(X), 1, dtype=torch.double))
    W = W - a * W.sum(0) / a.sum()
    G = W.mT @ squared_distance(records())(X)
    clipped = G * (bound / G.norm(dim=0)).clamp_max(1)
    torch.testing.assert_close(moved, -clipped.mean(-1), rtol=1e-8, atol=1e-10)


# --- Wrong input is named before anything is read or spent. ---


def test_no_privacy_takes_no_ledger() -> None:
    ledger = PrivacyLedger(budget=PrivacyBudget(1.0, 1e-6))
    with ledger, pytest.raises(PrivacyError, match="mu=inf"):
        descent(mu=math.inf, ledger=ledger)


def test_losses_of_a_changing_number_of_records_are_refused() -> None:
    sizes = iter([5, 6])
    run = descent(lambda X: X.new_zeros(len(X), next(sizes)))
    run.step()
    with pytest.raises(ValueError, match="6 columns where 5 records"):
        run.step()
    with pytest.raises(ValueError, match="4 columns where 5 records"):
        descent(Counted(lambda X: X.new_zeros(len(X), 4), 5)).run()
