"""Numbers that carry a proof, at the point where the proof would break.

Each test holds what the code uses against what the proof asks for, by hand: the last budget that
may be granted, the width of published noise, the clip bound that leaves room for rounding.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch

from botorch_dp.descent.settings import DescentSettings
from botorch_dp.descent.step import ClippedMean
from botorch_dp.errors import BudgetExhausted
from botorch_dp.objectives import PrivateObjective, clipped_sum, grid_levels
from botorch_dp.outsourced.curator import PrivateAnswers
from botorch_dp.outsourced.transforms import LARGEST_COORDINATE, projected, projected_sensitivity
from botorch_dp.privacy import (
    Guarantee,
    NeighboringRelation,
    PrivacyBudget,
    PrivacyLedger,
    PrivacyUnit,
    gaussian_delta,
    gaussian_epsilon,
    gaussian_mu,
)
from botorch_dp.privacy.budget import ALLOWANCE
from botorch_dp.privacy.losses import (
    ApproximateLoss,
    FixedBatchSGDLoss,
    GaussianLoss,
    PoissonSGDLoss,
    PrivacyLoss,
    PureLoss,
)
from botorch_dp.privacy.mechanisms import gaussian_scale, laplace_scale, selection_scale
from botorch_dp.privacy.pld.composition import composed_epsilon
from botorch_dp.privacy.pld.gaussian import _log_delta, pure_dp_mu
from botorch_dp.privacy.sparse_vector_technique import SparseVectorPlan
from botorch_dp.release import LipschitzMaximum, NoiseFreeMaximum, PrivateChoice, PrivateMaximum
from botorch_dp.release.assumptions import neighbor_gap
from botorch_dp.training import (
    OutputPerturbedLogisticRegression,
    TrainingPlan,
    TrainTest,
    randomness,
)
from botorch_dp.training.engines.base import clip_factors

UNIT = 2.0**-53  # the relative error of one operation in double precision

# The budget


def priced(loss: PrivacyLoss) -> Guarantee:
    return Guarantee("a test", PrivacyUnit(), (loss,))


def ledger(summed: float) -> PrivacyLedger:
    return PrivacyLedger(budget=PrivacyBudget(0.7, 1e-6, summed=summed))


@pytest.mark.parametrize("used", [0.0, 0.5], ids=["empty", "half full"])
class TestWhatIsLeft:
    """Exactly what is left is accepted, and (1 + 1e-9) times it refused."""

    def check(self, ledger: PrivacyLedger, exact: PrivacyLoss, more: PrivacyLoss) -> None:
        before = ledger.spent()
        with pytest.raises(BudgetExhausted):
            ledger.charge(priced(more))
        assert ledger.spent() == before
        ledger.charge(priced(exact))
        with pytest.raises(BudgetExhausted):
            ledger.charge(priced(more))

    def test_of_epsilon(self, used: float) -> None:
        filling = ledger(1.0)
        if used:
            filling.charge(priced(PureLoss(0.7 * used)))
        left = 0.7 * (1 - used)
        self.check(filling, PureLoss(left), PureLoss(left * (1 + 1e-9)))

    def test_of_delta(self, used: float) -> None:
        filling = ledger(1.0)
        if used:
            filling.charge(priced(ApproximateLoss(0.1, 1e-6 * used)))
        left = 1e-6 * (1 - used)
        self.check(filling, ApproximateLoss(0.1, left), ApproximateLoss(0.1, left * (1 + 1e-9)))

    def test_of_mu(self, used: float) -> None:
        filling, whole = ledger(0.0), gaussian_mu(0.7, 1e-6)
        if used:
            filling.charge(priced(GaussianLoss(0.6 * whole)))
        left = (0.8 if used else 1.0) * whole
        self.check(filling, GaussianLoss(left), GaussianLoss(left * (1 + 1e-9)))

    def test_of_pure_releases_in_a_gaussian_budget(self, used: float) -> None:
        """Each counts as the mu of randomized response, and their squares add up."""
        filling, whole = ledger(0.0), gaussian_mu(0.7, 1e-6)
        if used:
            filling.charge(priced(PureLoss(0.05)))
        left = math.sqrt(whole**2 - (pure_dp_mu(0.05) ** 2 if used else 0.0))
        self.check(filling, GaussianLoss(left), GaussianLoss(left * (1 + 1e-9)))

    def test_of_both_compartments(self, used: float) -> None:
        """Neither may use what belongs to the other."""
        filling = PrivacyLedger(budget=PrivacyBudget(1.0, 1e-6, summed=(0.25, 5e-7)))
        whole = gaussian_mu(0.75, 5e-7)
        if used:
            filling.charge(priced(PureLoss(0.125)))
            filling.charge(priced(GaussianLoss(0.6 * whole)))
        epsilon, mu = (0.125, 0.8 * whole) if used else (0.25, whole)
        self.check(filling, PureLoss(epsilon), PureLoss(epsilon * (1 + 1e-9)))
        self.check(filling, GaussianLoss(mu), GaussianLoss(mu * (1 + 1e-9)))


def test_what_decimals_are_allowed() -> None:
    assert Fraction(1, 10**12) >= ALLOWANCE
    decimals = PrivacyLedger(budget=PrivacyBudget(1.0))
    for _ in range(10):
        decimals.charge(priced(PureLoss(0.1)))
    with pytest.raises(BudgetExhausted):
        decimals.charge(priced(PureLoss(1e-11)))


def test_gaussian_conversions_round_to_the_safe_side() -> None:
    """Against 600 digits."""
    mpmath = pytest.importorskip("mpmath")
    with mpmath.workdps(600):

        def exact_delta(mu: float, epsilon: float) -> Any:
            a, b = (mpmath.mpf(epsilon) / mu + sign * mpmath.mpf(mu) / 2 for sign in (-1, 1))
            return mpmath.ncdf(-a) - mpmath.exp(epsilon) * mpmath.ncdf(-b)

        for mu in (0.01, 0.3, 0.99, 1.0, 2.5, 8.0):
            for epsilon in (0.0, 0.01, 0.5, 3.0):
                delta = gaussian_delta(mu, epsilon)
                exact = exact_delta(mu, epsilon)
                assert exact <= delta <= max(exact * (1 + 1e-11), 5e-324)
            for delta in (1e-9, 1e-4):
                assert exact_delta(mu, gaussian_epsilon(mu, delta)) <= delta
                assert exact_delta(gaussian_mu(mu, delta), mu) <= delta


def test_conversions_are_safe_by_the_bound_they_are_made_with() -> None:
    """A root as the solver leaves it would be on the wrong side about every second time."""
    generator = np.random.default_rng(0)
    for mu, log_delta in zip(
        generator.uniform(0.05, 6.0, 200), generator.uniform(-25.0, -2.0, 200), strict=True
    ):
        delta = math.exp(log_delta)
        assert _log_delta(mu, gaussian_epsilon(mu, delta)) <= math.log(delta)
        assert _log_delta(gaussian_mu(mu, delta), mu) <= math.log(delta)


# Basic mechanisms


@pytest.mark.parametrize("sensitivity", [1.0, 0.3, 1e-7, 17.1])
@pytest.mark.parametrize("level", [0.1, 0.7, 3.0])
def test_scales_are_not_below_their_quotients(sensitivity: float, level: float) -> None:
    quotient = Fraction(sensitivity) / Fraction(level)
    for scale, ideal in (
        (laplace_scale(sensitivity, level), quotient),
        (gaussian_scale(sensitivity, level), quotient),
        (selection_scale(sensitivity, level, "exponential"), 2 * quotient),
        (selection_scale(sensitivity, level, "permute_and_flip"), 2 * quotient),
    ):
        assert ideal <= Fraction(scale) <= ideal * (1 + Fraction(1e-13))


@pytest.mark.parametrize("positives", [1, 3])
def test_sparse_vector_pays_for_the_threshold_and_twice_for_each_positive(positives: int) -> None:
    noise, root = 5.0, (2 * positives) ** (1 / 3)
    plan = SparseVectorPlan.make(noise, positives, 1.0)
    assert plan.threshold_scale * plan.step == pytest.approx(noise / (1 + root))
    assert plan.query_scale * plan.step == pytest.approx(noise - noise / (1 + root))
    stated = (1 + root) * (1 + root**2) / noise
    assert stated <= plan.epsilon() <= stated * (1 + 1e-9)
    finer = SparseVectorPlan.make(noise, positives, 0.3)
    assert finer.sensitivity * finer.step >= 0.3, "in steps, a sensitivity is rounded up"


def test_a_replaced_record_moves_a_sum_twice_as_far() -> None:
    assert NeighboringRelation.REPLACE_ONE.sum_sensitivity == 2.0
    assert NeighboringRelation.ADD_OR_REMOVE_ONE.sum_sensitivity == 1.0


def test_batches_of_all_records_are_gaussian_mechanisms() -> None:
    for loss in (
        PoissonSGDLoss(6.0, 1.0, 16, NeighboringRelation.REPLACE_ONE),
        FixedBatchSGDLoss(6.0, 50, 50, 16),
    ):
        assert composed_epsilon((loss,), 1e-5) == pytest.approx(gaussian_epsilon(4 / 3, 1e-5))


def test_each_way_of_drawing_batches_has_a_price_of_its_own() -> None:
    """As much noise as one record moves the sum: 2 clipping norms if replaced, 1 if added."""
    replaced, added = (
        composed_epsilon((PoissonSGDLoss(z, 256 / 32561, 1000, relation),), 1e-5)
        for z, relation in (
            (2.0, NeighboringRelation.REPLACE_ONE),
            (1.0, NeighboringRelation.ADD_OR_REMOVE_ONE),
        )
    )
    assert replaced == pytest.approx(0.926, abs=2e-3)
    assert added == pytest.approx(1.409, abs=2e-3)
    fixed = composed_epsilon((FixedBatchSGDLoss(2.0, 256, 32561, 1000),), 1e-5)
    assert fixed == pytest.approx(1.692, abs=2e-3)


# Sums of scores


@pytest.mark.parametrize("num_records", [1, 2, 3, 1000, 1025])
def test_levels_of_a_score_add_up_exactly(num_records: int) -> None:
    levels = grid_levels(num_records)
    assert num_records * levels <= 2**53 < 2 * num_records * levels
    assert math.log2(levels) % 1 == 0
    high = torch.full((num_records,), 5.0, dtype=torch.double)
    assert clipped_sum(high, (1.0, 2.0), nan_as=1.0) == num_records * levels
    high[0] = -5.0
    assert clipped_sum(high, (1.0, 2.0), nan_as=1.0) == (num_records - 1) * levels


def test_noise_of_an_objective_by_hand() -> None:
    objective = PrivateObjective(
        lambda X: torch.zeros(len(X), 10).double(), bounds=(-1.0, 3.0), mu=0.5, num_records=10
    )
    assert objective.noise_std == pytest.approx(4.0 / (10 * 0.5))
    assert objective.price(9).mu == pytest.approx(1.5)


# Descent


@pytest.mark.parametrize(("dim", "num_records"), [(1, 1), (5, 3), (30, 1000), (3, 2000)])
def test_a_clip_bound_is_lowered_by_what_rounding_may_add(dim: int, num_records: int) -> None:
    clip_norm = 1.7
    mean = ClippedMean(dim, num_records, clip_norm)
    lowered = clip_norm * (1 - (4 * num_records + 2 * dim + 16) * 2 * UNIT)
    assert mean.bound == pytest.approx(lowered, rel=2 * UNIT)
    entries = num_records * clip_norm / Fraction(mean.unit)
    assert entries <= 2**62, "the sum of all records fits 64 bits"
    torch.manual_seed(0)
    for size in (1e300, 3.0):
        part = ClippedMean(dim, num_records, clip_norm)
        part.add(size * torch.randn(dim, 1, dtype=torch.double))
        exact = sum(Fraction(entry) ** 2 for entry in part.value().tolist())
        assert exact <= (Fraction(clip_norm) / num_records) ** 2, "to the last bit"


def test_clipped_entries_are_rounded_towards_zero() -> None:
    mean = ClippedMean(2, 1, 1.0)
    mean.add(torch.tensor([[0.75], [-0.75]], dtype=torch.double) * mean.unit)
    assert mean.value().tolist() == [0.0, 0.0]


def test_noise_of_a_descent_by_hand() -> None:
    settings = DescentSettings(torch.zeros(3, dtype=torch.double), 1.5, 7, 2.0)
    assert settings.noise_std(100) == pytest.approx(2 * 2.0 * math.sqrt(7) / (100 * 1.5))
    assert 7 * Fraction(settings.step_mu) ** 2 <= Fraction(1.5) ** 2
    for steps in range(1, 60):
        step = DescentSettings(torch.zeros(3, dtype=torch.double), 1.0, steps, 2.0).step_mu
        assert steps * Fraction(step) ** 2 <= 1, "rounded down, or one step too many is promised"


# Training


@pytest.mark.parametrize("size", [1, 64, 4096])
def test_published_noise_is_widened_by_rounding(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A draw of one deviation shows the width: sensitivity, slack for sums, and the grid's part."""
    monkeypatch.setattr(randomness, "_system_normal", lambda n: torch.ones(n).double())
    sensitivity, multiplier = 2.0, 1.5
    grid = 2.0 ** (1 - 24)  # 2^-24 of the largest power of two within the noise's deviation
    total = torch.zeros(size, dtype=torch.double)
    std = sensitivity * multiplier
    randomness.SystemRandomness().perturb_(total, sensitivity=sensitivity, std=std)
    assert randomness.ROUNDING_SLACK >= 2 * 90_000**2 * UNIT / 2
    slack = 2e-6
    widened = multiplier * (sensitivity * (1 + slack) + grid * math.sqrt(size))
    assert (total - widened).abs().max().item() <= grid / 2
    assert (total / grid % 1 == 0).all()


@pytest.mark.parametrize(
    ("relation", "factor"),
    [(NeighboringRelation.REPLACE_ONE, 2), (NeighboringRelation.ADD_OR_REMOVE_ONE, 1)],
)
def test_noise_of_training_by_hand(relation: NeighboringRelation, factor: int) -> None:
    plan = TrainingPlan(
        num_records=100,
        learning_rate=0.1,
        clip_norm=3.0,
        noise_multiplier=1.5,
        batch_size=10,
        epochs=2,
        relation=relation,
    )
    assert plan.sensitivity == 3.0 * factor
    assert plan.noise_std == 4.5
    assert plan.steps == 20


@pytest.mark.parametrize("dtype", [torch.float, torch.double])
def test_a_factor_never_leaves_more_than_the_clip_norm(dtype: torch.dtype) -> None:
    norms = torch.tensor([0.0, 1e-30, 0.5, 1.0, 2.0, 1e30, math.inf, math.nan], dtype=dtype)
    factors = clip_factors(norms.clone(), 1.0)
    assert factors[:4].tolist() == [1.0, 1.0, 1.0, 1.0]
    assert factors[4].item() == 0.5
    assert factors[6:].tolist() == [0.0, 0.0]
    kept = (factors * norms)[1:6]
    assert (kept <= 1 + 4 * torch.finfo(dtype).eps).all()


def test_sensitivity_of_perturbed_weights() -> None:
    X, y = torch.randn(50, 2), torch.randint(2, (50,))
    trainer = OutputPerturbedLogisticRegression(TrainTest(X, y, X, y))
    assert trainer.sensitivity(regularization=0.1) == pytest.approx(4 / (0.1 * 50))


# Outsourcing


@pytest.mark.parametrize(("d", "r"), [(1, 1), (4096, 1), (30, 4)])
def test_a_projection_is_widened_by_its_rounding(d: int, r: int) -> None:
    torch.manual_seed(0)
    projection = torch.rand(d, r, dtype=torch.double)
    g = d * UNIT / (1 - d * UNIT)
    gram = projection.mT @ projection
    stretch = float((gram + 2 * g * gram).sum(dim=1).max()) ** 0.5
    rounding = 2 * g * LARGEST_COORDINATE * float(projection.sum(dim=0).norm())
    expected = 0.3 * (stretch + rounding) * (1 + 8 * (d + r) * UNIT)
    assert LARGEST_COORDINATE == 2.0**24
    assert projected_sensitivity(projection, 0.3) == pytest.approx(expected, rel=d * UNIT / 2)


def test_projected_coordinates_have_a_limit() -> None:
    """The product's rounding grows with them, and must have a bound that is public."""
    rows = torch.tensor([[1e30], [-1e300], [2.0]], dtype=torch.double)
    limit = LARGEST_COORDINATE * 0.5
    found = projected(rows, torch.ones(1, 1, dtype=torch.double), 0.5)
    assert found.flatten().tolist() == [limit, -limit, 2.0]


def test_a_distance_of_bounds_is_never_rounded_down() -> None:
    for low, high in ((-0.1, 0.7), (0.1, 0.8), (-1e-20, 1.0), (-1.0, 1e-17)):
        width = PrivateAnswers(epsilon=1.0, bounds=(low, high)).width
        assert Fraction(width) >= Fraction(high) - Fraction(low)
        assert Fraction(math.nextafter(width, 0)) < Fraction(high) - Fraction(low)


# Releases


def test_constants_of_the_papers_by_hand() -> None:
    n, delta, steps, correlation = 7, 1e-3, 20, 0.9
    assert neighbor_gap(correlation, 21, delta) == pytest.approx(
        2 * math.sqrt(0.1 * math.log(21 / delta))
    )

    def gap(count: int) -> float:
        return 2 * math.sqrt((1 - correlation) * math.log(count * n / delta))

    def beta(t: int) -> float:
        return 2 * math.log(n * t**2 * math.pi**2 / (3 * delta))

    common: dict[str, Any] = {
        "num_choices": n,
        "epsilon": 1.0,
        "delta": delta,
        "steps": steps,
        "dataset_correlation": correlation,
    }
    choice = PrivateChoice(**common)
    assert choice.sensitivity == pytest.approx(2 * math.sqrt(beta(steps + 1)) + gap(3))
    assert choice.scale == pytest.approx(2 * choice.sensitivity)
    std, gain = 0.5, 4.0
    regret = math.sqrt(8 / math.log(1 + std**-2) * beta(steps) * gain / steps)
    for edition, quantile, count in (
        ("icml2015", 8 * math.log(3 / delta), 3),
        ("union_bound", 8 * math.log(24 * steps / delta), 6),
    ):
        maximum = PrivateMaximum(**common, noise_std=std, information_gain=gain, edition=edition)  # type: ignore[arg-type]
        assert maximum.sensitivity == pytest.approx(regret + gap(count) + std * math.sqrt(quantile))
        assert maximum.scale == pytest.approx(maximum.sensitivity)


def lipschitz(**changes: Any) -> LipschitzMaximum:
    settings: dict[str, Any] = {
        "epsilon": 1.0,
        "lipschitz": 2.0,
        "lambda_min": 0.1,
        "lambda_max": 0.5,
        "num_records": 50,
        **changes,
    }
    return LipschitzMaximum(**settings)


def test_the_lipschitz_constant_by_hand() -> None:
    model_gap = 2.0 * (1 / 0.1 - 1 / 0.5)
    bounded = lipschitz(max_loss=3.0)
    assert bounded.sensitivity == pytest.approx(3.0 / 50 + model_gap)
    centred = lipschitz(equal_at_zero=True)
    assert centred.sensitivity == pytest.approx(2 * 2.0 / 0.1 / 50 + model_gap)
    both = lipschitz(max_loss=3.0, equal_at_zero=True)
    assert both.sensitivity == bounded.sensitivity


def test_noise_free_regret_by_hand() -> None:
    settings = {
        "num_choices": 7,
        "epsilon": 1.0,
        "delta": 1e-3,
        "steps": 20,
        "dataset_correlation": 0.9,
        "amplitude": 2.0,
        "rate": 0.3,
        "dim": 2,
    }
    maximum = NoiseFreeMaximum(**settings)  # type: ignore[arg-type]
    regret = 2.0 * math.exp(-0.3 * 20 / math.log(20) ** 0.5)
    gap = 2 * math.sqrt(0.1 * math.log(14 / 1e-3))
    assert maximum.sensitivity == pytest.approx(regret + gap)
