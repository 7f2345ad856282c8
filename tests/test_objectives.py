"""Private objectives: clipping, noise, charging, and the loops they are made for."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from botorch.acquisition import qLogNoisyExpectedImprovement
from botorch.fit import fit_gpytorch_mll
from botorch.models import SingleTaskGP
from botorch.optim import optimize_acqf
from gpytorch.mlls import ExactMarginalLogLikelihood
from numpy.typing import NDArray
from scipy.stats import kstest
from torch import Tensor

from botorch_dp.objectives import PerRecordLosses, PrivateObjective, clipped_sum, grid_levels
from botorch_dp.privacy import (
    BudgetExhausted,
    NeighboringRelation,
    PrivacyBudget,
    PrivacyError,
    PrivacyLedger,
    PrivacyUnit,
    audit_epsilon,
    compose,
    gaussian_mechanism,
    gaussian_mu,
)
from tests.privacy.charging import balance_of

RECORDS = torch.linspace(-1, 1, 50, dtype=torch.double)


def distances(X: Tensor) -> Tensor:
    """Absolute distances of 50 records to the first coordinate, b x 50."""
    return (X[:, :1] - RECORDS.to(X)).abs()


class RecordsOf:
    """An objective that knows its number of records."""

    num_records = 50

    def __init__(self, scores: PerRecordLosses) -> None:
        self.scores = scores

    def __call__(self, X: Tensor) -> Tensor:
        return self.scores(X)


def constant(scores: Tensor) -> PerRecordLosses:
    """An objective that scores every point like this (n)."""
    return lambda X: scores.expand(len(X), -1)


def point(count: int = 1, d: int = 2) -> Tensor:
    return torch.full((count, d), 0.5, dtype=torch.double)


# What is computed


@pytest.mark.parametrize("dtype", [torch.float, torch.double])
@pytest.mark.parametrize("negate", [False, True])
def test_value_and_known_variance(dtype: torch.dtype, negate: bool) -> None:
    objective = PrivateObjective(distances, bounds=(0.0, 2.0), mu=1e5, negate=negate)
    X = torch.rand(7, 2, dtype=dtype)
    Y, Yvar = objective(X)
    assert Y.shape == Yvar.shape == (7, 1) and Y.dtype == Yvar.dtype == dtype
    sign = -1 if negate else 1
    torch.testing.assert_close(sign * Y, distances(X).mean(-1, keepdim=True), rtol=0, atol=1e-5)
    torch.testing.assert_close(Yvar, torch.full_like(Yvar, (2.0 / (50 * 1e5)) ** 2))
    assert objective.noise_std == 2.0 / (50 * 1e5)


def test_noise_is_gaussian_with_the_stated_deviation() -> None:
    """A test on real noise that fails by chance once in a million runs."""
    objective = PrivateObjective(constant(RECORDS), bounds=(-3.0, 5.0), mu=0.25)
    Y, Yvar = objective(point(2000))
    scale = 8.0 / (50 * 0.25)
    assert Yvar.unique().item() == pytest.approx(scale**2)
    residual = (Y.squeeze(-1) - RECORDS.mean()) / scale
    assert kstest(residual.numpy(), "norm").pvalue > 1e-6
    assert kstest(2 * residual.numpy(), "norm").pvalue < 1e-6


def test_clipping_counts_nan_as_the_worse_bound() -> None:
    def released(bad: float, negate: bool = False) -> float:
        scores = torch.tensor([0.25, bad, 0.5], dtype=torch.double)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            objective = PrivateObjective(
                constant(scores), bounds=(0.0, 1.0), mu=1.0, negate=negate, unsafe_seed=3
            )
            return objective(point())[0].item()

    for above in (1.0, 1.5, 1e300, math.inf):
        assert released(above) == released(1.0)
    for below in (0.0, -1e-9, -1e300, -math.inf):
        assert released(below) == released(0.0)
    assert released(math.nan) == released(0.0)
    assert released(math.nan, negate=True) == released(1.0, negate=True)
    assert released(1.0, negate=True) != released(0.0, negate=True)


@pytest.mark.filterwarnings("error")
def test_diagnostics_count_and_hide() -> None:
    scores = torch.tensor([math.nan, -1.0, -math.inf, 2.0, 0.5], dtype=torch.double)
    objective = PrivateObjective(constant(scores), bounds=(0.0, 1.0), mu=1.0)
    objective(point(3))
    found = objective.diagnostics
    assert (found.num_nan, found.num_below, found.num_above) == (3, 6, 3)
    assert repr(found) == "ScoreDiagnostics()"


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.float16])
def test_scores_of_other_types(dtype: torch.dtype) -> None:
    scores = torch.tensor([0, 1, 1, 1]).to(dtype)
    objective = PrivateObjective(constant(scores), bounds=(0.0, 1.0), mu=1e6)
    assert objective(point())[0].item() == pytest.approx(0.75, abs=1e-4)


# What one record can do


@pytest.mark.parametrize("count", [1, 2, 3, 1000, 4097])
@pytest.mark.parametrize("bounds", [(0.0, 1.0), (-1e9, -1e9 + 1e-3), (0.1, 0.7), (-1e200, 1e200)])
def test_replacing_a_record_moves_the_sum_by_at_most_the_sensitivity(
    count: int, bounds: tuple[float, float]
) -> None:
    """Exactly, in floating point, before any noise."""
    levels = grid_levels(count)
    middle = (bounds[0] + bounds[1]) / 2
    extremes = [0.0, *bounds, middle, -0.0, 1e-300, 1e300, -1e300, math.inf, -math.inf, math.nan]
    generator = torch.Generator().manual_seed(0)
    for _ in range(5):
        scores = torch.rand(count, generator=generator, dtype=torch.double)
        scores = bounds[0] + (bounds[1] - bounds[0]) * scores
        sums = []
        for extreme in extremes:
            scores[count // 2] = extreme
            sums.append(clipped_sum(scores, bounds, nan_as=bounds[0]))
        assert all(total.is_integer() and 0 <= total <= levels * count for total in sums)
        assert max(sums) - min(sums) == levels  # attained, and never exceeded


def test_sums_on_the_grid_are_exact() -> None:
    for count in (1, 2, 3, 7, 1023, 2**20 - 1, 2**30 + 1, 2**53):
        levels = int(grid_levels(count))
        assert levels * count <= 2**53 < 4 * levels * count
        assert levels & (levels - 1) == 0
    scores = torch.rand(100_000, dtype=torch.double)
    forwards = clipped_sum(scores, (0.0, 1.0), nan_as=0.0)
    assert forwards == clipped_sum(scores.flip(0), (0.0, 1.0), nan_as=0.0)
    assert forwards / grid_levels(len(scores)) / len(scores) == pytest.approx(
        scores.mean().item(), abs=1e-10
    )
    assert forwards == clipped_sum(scores.requires_grad_(), (0.0, 1.0), nan_as=0.0)
    rounded = scores.detach().to(torch.bfloat16)
    exact = clipped_sum(rounded.double(), (0.0, 1.0), nan_as=0.0)
    assert exact == clipped_sum(rounded, (0.0, 1.0), nan_as=0.0)


def audited(mu: float, samples: int, claimed_mu: float, delta: float = 0.1) -> bool:
    """Whether the claim of a mu survives an audit on a worst-case pair of one-record data sets."""
    claim = PrivateObjective(distances, bounds=(0.0, 1.0), mu=claimed_mu).price()

    def mechanism(score: float, size: int) -> Tensor:
        scores = torch.tensor([score], dtype=torch.double)
        return PrivateObjective(constant(scores), bounds=(0.0, 1.0), mu=mu)(point(size))[0]

    return audit_epsilon(
        mechanism,
        -math.inf,
        1e300,
        samples=samples,
        delta=delta,
        confidence=1 - 1e-6,
        claim=claim,
        batched=True,
        projection=lambda Y: Y.squeeze(-1),
    ).passes


def test_audit_and_its_broken_version() -> None:
    assert audited(1.0, 2000, claimed_mu=1.0)
    # A third of the noise: its bound is far above the 1.16 that is claimed.
    assert not audited(3.0, 2000, claimed_mu=1.0)


@pytest.mark.slow
def test_large_audit_and_its_broken_version() -> None:
    assert audited(1.0, 100_000, claimed_mu=1.0)
    assert not audited(1.5, 30_000, claimed_mu=1.0)


# What it costs


def test_price_before_it_runs() -> None:
    objective = PrivateObjective(
        distances, bounds=(0.0, 1.0), mu=0.1, unit=PrivacyUnit("one patient")
    )
    guarantee = objective.price()
    assert guarantee.mu == 0.1 and guarantee.status == "proven"
    assert guarantee.relation is NeighboringRelation.REPLACE_ONE
    assert "one patient" in str(guarantee)
    assert "1. each record's score depends only on that record" in str(guarantee)
    assert objective.price(25) == compose(*[guarantee] * 25)
    assert objective.price(25).mu == pytest.approx(0.5)
    simulated = PrivateObjective(distances, bounds=(0.0, 1.0), mu=0.1, unsafe_seed=0)
    assert simulated.price().status == "none"
    assert "simulated noise: nothing is guaranteed" in str(simulated.price())


def test_rows_are_charged_before_the_records_are_read() -> None:
    limit = gaussian_mu(1.0, 1e-6)
    with PrivacyLedger(budget=PrivacyBudget(1.0, 1e-6)) as ledger:
        seen = []

        def watched(X: Tensor) -> Tensor:
            balance = balance_of(ledger)
            assert balance is not None
            seen.append(balance.mu_spent)
            return distances(X)

        objective = PrivateObjective(
            watched, bounds=(0.0, 2.0), mu=limit / 3, ledger=ledger, label="loss"
        )
        for rows in (1, 4, 3):
            objective(point(rows))
        assert seen == pytest.approx([limit / 3 * math.sqrt(k) for k in (1, 5, 8)])
        released = objective.history
        with pytest.raises(BudgetExhausted) as refusal:
            objective(point(2))
        assert refusal.value.remaining[0] > 0
        assert len(seen) == 3 and len(ledger.entries()) == 3  # not read, not charged
        assert all(map(torch.equal, objective.history, released))
        objective(point(1))
        Y, Yvar = objective.history.Y, objective.history.Yvar
        Y.zero_(), Yvar.zero_()  # the caller's copies
        assert objective.history.Y.abs().min() > 0 and objective.history.Yvar.min() > 0
        assert objective.history.Y.shape == (9, 1) and objective.history.X.shape == (9, 2)
        with pytest.raises(BudgetExhausted):
            objective(point(1))
        assert {entry.label for entry in ledger.entries()} == {"loss"}


def test_simulated_noise_repeats_and_differs_between_rows() -> None:
    def run(seed: int) -> list[float]:
        objective = PrivateObjective(distances, bounds=(0.0, 1.0), mu=0.1, unsafe_seed=seed)
        return [*objective(point(2))[0].flatten().tolist(), objective(point())[0].item()]

    assert run(1) == run(1) != run(2)
    assert len(set(run(1))) == 3
    torch.manual_seed(0)
    first = PrivateObjective(distances, bounds=(0.0, 1.0), mu=0.1)(point())[0]
    torch.manual_seed(0)
    assert first != PrivateObjective(distances, bounds=(0.0, 1.0), mu=0.1)(point())[0]


# Wrong arguments


def test_points_of_another_dimension() -> None:
    objective = PrivateObjective(distances, bounds=(0.0, 1.0), mu=0.01)
    objective(point(d=3))
    with pytest.raises(ValueError, match="must have 3 columns"):
        objective(point(d=2))


@pytest.mark.parametrize(
    "wrong",
    [
        lambda X: distances(X).T,
        lambda X: distances(X).mean(-1),
        lambda X: distances(X)[:, :0],
        lambda X: distances(X)[:1],
        lambda X: distances(X).tolist(),
    ],
)
def test_wrong_scores(wrong: Callable[[Tensor], Tensor]) -> None:
    objective = PrivateObjective(wrong, bounds=(0.0, 1.0), mu=0.01)
    with pytest.raises((TypeError, ValueError), match="`record_losses` must return"):
        objective(point(3))
    assert len(objective.history.Y) == 0


def test_number_of_records_is_fixed() -> None:
    sizes = iter([50, 50, 49])
    objective = PrivateObjective(
        lambda X: distances(X)[:, : next(sizes)], bounds=(0.0, 1.0), mu=0.01
    )
    with pytest.raises(ValueError, match="pass `num_records`"):
        _ = objective.noise_std
    objective(point())
    objective(point())
    with pytest.raises(PrivacyError, match="49 columns where 50"):
        objective(point())
    distances_of_50 = RecordsOf(distances)
    assert PrivateObjective(distances_of_50, bounds=(0.0, 1.0), mu=0.01).num_records == 50
    declared = PrivateObjective(distances, bounds=(0.0, 1.0), mu=0.01, num_records=51)
    assert declared.noise_std == 1.0 / (51 * 0.01)
    with pytest.raises(PrivacyError, match="50 columns where 51"):
        declared(point())


# Loops


def test_log_expected_improvement_loop_until_the_budget_ends() -> None:
    """A plain BoTorch loop; the only change is the objective."""
    bounds = torch.tensor([[-1.0], [1.0]], dtype=torch.double)
    data = 0.3 + 0.1 * torch.randn(20_000, dtype=torch.double)
    limit = gaussian_mu(1.0, 1e-6)
    with PrivacyLedger(budget=PrivacyBudget(1.0, 1e-6)) as ledger:
        objective = PrivateObjective(
            lambda X: (X - data).square(),
            bounds=(0.0, 1.0),
            mu=limit / math.sqrt(9),
            ledger=ledger,
            negate=True,
        )
        objective(torch.linspace(-1, 1, 5, dtype=torch.double).unsqueeze(-1))
        with pytest.raises(BudgetExhausted):
            while True:
                X, Y, Yvar = objective.history
                model = SingleTaskGP(X, Y, train_Yvar=Yvar)
                fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
                candidate, _ = optimize_acqf(
                    qLogNoisyExpectedImprovement(model, X, prune_baseline=True),
                    bounds=bounds,
                    q=1,
                    num_restarts=2,
                    raw_samples=16,
                )
                objective(candidate)
        assert len(objective.history.Y) == 9


@pytest.mark.xdist_group("ax")
def test_ax_loop() -> None:
    api = pytest.importorskip("ax.api.client")
    configs = pytest.importorskip("ax.api.configs")
    objective = PrivateObjective(distances, bounds=(0.0, 2.0), mu=5.0, negate=True)
    client = api.Client()
    client.configure_experiment(
        parameters=[
            configs.RangeParameterConfig(name="x", parameter_type="float", bounds=(-1.0, 1.0))
        ]
    )
    client.configure_optimization(objective="score")
    for _ in range(7):
        for trial, parameters in client.get_next_trials(max_trials=1).items():
            Y, Yvar = objective(torch.tensor([[parameters["x"]]], dtype=torch.double))
            client.complete_trial(
                trial_index=trial, raw_data={"score": (Y.item(), Yvar.sqrt().item())}
            )
    best, prediction, _, _ = client.get_best_parameterization()
    assert -1 <= best["x"] <= 1
    assert len(objective.history.Y) == 7
    assert prediction["score"][1] > 0


def test_what_cannot_be_is_refused_before_it_is_charged() -> None:
    ledger = PrivacyLedger(budget=PrivacyBudget(1.0, 1e-6))
    with pytest.raises(PrivacyError, match="`unsafe_seed`"):
        PrivateObjective(distances, bounds=(0.0, 1.0), mu=0.1, ledger=ledger, unsafe_seed=0)
    for bounds in ((0.0, 1e200), (0.0, 1e-200), (-1e308, 1e308)):
        with pytest.raises(ValueError, match="`bounds`"):
            PrivateObjective(distances, bounds=bounds, mu=0.1, ledger=ledger)
    assert ledger.entries() == []


# What the budget bears, and what noise hides.


@pytest.mark.parametrize("evaluations", [1, 3, 7, 50])
@pytest.mark.parametrize("spent", [0.0, 0.1])
def test_for_budget_bears_exactly_that_many_evaluations(evaluations, spent):
    ledger = PrivacyLedger(budget=PrivacyBudget(1.0, 1e-6))
    if spent:
        gaussian_mechanism(0.0, sensitivity=1.0, mu=spent, ledger=ledger)
    objective = PrivateObjective.for_budget(
        lambda X: X.expand(-1, 20), bounds=(0.0, 1.0), ledger=ledger, evaluations=evaluations
    )
    X = torch.full((evaluations, 1), 0.5, dtype=torch.double)
    objective(X[: evaluations // 2 + 1])
    if evaluations > 1:
        objective(X[evaluations // 2 + 1 :])
    assert ledger.spent()[0] > 1 - 1e-9
    with pytest.raises(BudgetExhausted):
        objective(X[:1])


def test_for_budget_refuses_what_cannot_bear_gaussian_noise():
    for budget in (PrivacyBudget(1.0), PrivacyBudget(1.0, 1e-6, summed=1.0)):
        with pytest.raises(BudgetExhausted, match="delta"):
            PrivateObjective.for_budget(
                lambda X: X, bounds=(0.0, 1.0), ledger=PrivacyLedger(budget=budget), evaluations=3
            )


def test_plan_says_what_the_noise_hides_and_what_it_would_take():
    ledger = PrivacyLedger(budget=PrivacyBudget(1.0, 1e-6))
    objective = PrivateObjective.for_budget(
        lambda X: X, bounds=(0.0, 1.0), ledger=ledger, evaluations=50, num_records=1000
    )
    plan = objective.plan()
    assert plan.noise_std == objective.noise_std
    assert "records or epsilon" in plan.advice and "50 evaluations" in str(plan)
    for epsilon, records in ((1.0, plan.needed_records), (1.0001 * plan.needed_epsilon, 1000)):
        more = PrivateObjective.for_budget(
            lambda X: X,
            bounds=(0.0, 1.0),
            ledger=PrivacyLedger(budget=PrivacyBudget(epsilon, 1e-6)),
            evaluations=50,
            num_records=records,
        )
        assert "can be seen" in more.plan().advice
    assert "can be seen" in objective.plan(difference=1.0).advice
    with pytest.raises(ValueError, match="evaluations"):
        PrivateObjective(lambda X: X, bounds=(0.0, 1.0), mu=1.0, num_records=10).plan()


def test_a_single_column_is_warned_about():
    objective = PrivateObjective(lambda X: X[:, :1], bounds=(0.0, 1.0), mu=1.0)
    with pytest.warns(UserWarning, match="single column"):
        objective(torch.rand(2, 1, dtype=torch.double))
    told = PrivateObjective(lambda X: X[:, :1], bounds=(0.0, 1.0), mu=1.0, num_records=1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        told(torch.rand(2, 1, dtype=torch.double))


# Arrays, and the names of other libraries


def test_arrays_come_back_as_arrays() -> None:
    records = np.linspace(0, 1, 50)

    def losses(X: NDArray[np.float64]) -> NDArray[np.float64]:
        assert isinstance(X, np.ndarray)
        return np.abs(X - records)

    arguments: dict[str, Any] = {"bounds": (0.0, 1.0), "mu": 1.0, "unsafe_seed": 1}
    objective = PrivateObjective(losses, **arguments)
    Y, Yvar = objective(np.array([[0.5], [0.2]]))
    assert isinstance(Y, np.ndarray) and isinstance(Yvar, np.ndarray) and Y.shape == (2, 1)
    tensors = PrivateObjective(lambda X: (X - torch.from_numpy(records)).abs(), **arguments)
    same, _ = tensors(torch.tensor([[0.5], [0.2]], dtype=torch.double))
    assert Y.tolist() == same.tolist() and len(objective.history.Y) == 2


def test_a_spent_budget_is_named_in_the_callers_numbers() -> None:
    ledger = PrivacyLedger(budget=PrivacyBudget(1.0, 1e-6))
    objective = PrivateObjective.for_budget(
        distances, bounds=(0.0, 1.0), ledger=ledger, evaluations=3, num_records=50
    )
    objective(point(2))
    with pytest.raises(BudgetExhausted, match=r"is for 3 evaluations, and 2 were made; 2 more"):
        objective(point(2))
    objective(point(1))
    with pytest.raises(BudgetExhausted, match="No record was read this time"):
        objective(point(1))
    assert len(objective.history.Y) == 3


@pytest.mark.filterwarnings("error")
def test_for_budget_warns_of_a_large_delta() -> None:
    for delta, records in ((0.05, 100), (1e-6, 10**6)):
        ledger = PrivacyLedger(budget=PrivacyBudget(1.0, delta))
        with pytest.warns(UserWarning, match=f"not below 1 / {records:,}"):
            PrivateObjective.for_budget(
                distances, bounds=(0.0, 1.0), ledger=ledger, evaluations=3, num_records=records
            )
