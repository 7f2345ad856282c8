"""A contributor's additions, one of each kind that ``docs/architecture.md`` has a place for."""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import dp_accounting
import pytest
import torch
from botorch.acquisition import AcquisitionFunction
from botorch.utils.transforms import average_over_ensemble_models, t_batch_mode_transform
from torch import Tensor, nn

from botorch_dp import PrivateObjective, PrivateSearch, PrivateSelection
from botorch_dp import privacy as p
from botorch_dp.errors import BudgetExhausted
from botorch_dp.pareto import DPareto, PrivacyUtilityProblem, TrainingPrivacy
from botorch_dp.space import Choice, Config, Integer, Real, SearchSpace
from botorch_dp.training import DPTrainer, TrainTest, logistic_loss, logistic_regression
from botorch_dp.training.engines import ENGINES
from botorch_dp.training.engines.base import Batches, ClippedSums, Engine, clip_factors, trainable
from botorch_dp.tuning.routes import ROUTES
from botorch_dp.tuning.routes.base import Releases, Route, SearchPlan
from tests.training.helpers import clipped_sum_of

BUDGET = p.PrivacyBudget(1.0, 1e-6)
SPACE = SearchSpace(noise=Real(0.5, 5.0, log=True))
X = torch.randn(40, 3, generator=torch.Generator().manual_seed(0))
DATA = TrainTest(X, (X.sum(-1) > 0).long(), X, (X.sum(-1) > 0).long())


def median_guarantee(epsilon: float) -> p.Guarantee:
    """One replaced value moves the number of values below a candidate by at most 1."""
    return p.exponential_guarantee(sensitivity=1.0, epsilon=epsilon)


def median(values: Tensor, candidates: Tensor, epsilon: float, **how: Any) -> p.Release[float]:
    below = (values < candidates.unsqueeze(-1)).sum(-1).double()
    ranks = -(below - len(values) / 2).abs()
    drawn = p.exponential_mechanism(ranks, epsilon=epsilon, **{"sensitivity": 1.0, **how})
    return p.Release(float(candidates[drawn.value]), drawn.guarantee, scale=drawn.scale)


def test_a_mechanism_is_charged_stored_and_audited() -> None:
    ledger, ends = p.PrivacyLedger(budget=BUDGET), torch.tensor([0.0, 0.5])
    near, far = torch.tensor([0.1] * 10), torch.tensor([0.1] * 9 + [0.9])
    found, again = (median(near, ends, 0.5, ledger=ledger, key="median") for _ in range(2))
    assert found.value == again.value and len(ledger.entries()) == 1
    assert found.guarantee == median_guarantee(0.5) and found.receipt().verify()

    def bound(sensitivity: float) -> float:
        drawn = partial(median, candidates=ends, epsilon=2.0, sensitivity=sensitivity)
        how: dict[str, Any] = {"samples": 2500, "confidence": 1 - 1e-6}
        return p.audit_epsilon(lambda data: drawn(data).value, near, far, **how).lower_bound

    assert bound(1.0) <= 2.0 < bound(0.2)  # the second one is broken


def test_an_accountant_prices_what_is_selected() -> None:
    """Whatever dp-accounting prices can be tuned: here, a tree of noisy sums."""

    def tree(config: Config) -> Any:
        one, many = dp_accounting.GaussianDpEvent, dp_accounting.SelfComposedDpEvent
        return lambda noise: many(one(noise), config["levels"])

    space, relation = SearchSpace(levels=Choice(4, 8)), p.NeighboringRelation.ADD_OR_REMOVE_ONE
    how: dict[str, Any] = {"budget": BUDGET, "relation": relation, "num_scored": 100}
    selection = PrivateSelection(lambda config, noise: (noise, 0.5), space, mechanism=tree, **how)
    fewer, more = (selection.noise_multiplier({"levels": levels}) for levels in (4, 8))
    assert more / fewer == pytest.approx(2**0.5, rel=0.05)


@pytest.mark.parametrize("relation", p.NeighboringRelation)
def test_a_relation_reaches_the_ledger_and_the_receipt(relation: Any, tmp_path: Path) -> None:
    """A new one is a line in ``NeighboringRelation``; this is where it must be known."""
    unit = p.PrivacyUnit("one patient", relation)
    ledger = p.PrivacyLedger(budget=BUDGET, relation=relation)
    found = p.gaussian_mechanism(1.0, sensitivity=0.1, mu=0.05, unit=unit, ledger=ledger)
    other = next(each for each in p.NeighboringRelation if each is not relation)
    with pytest.raises(ValueError, match=other.name):
        ledger.charge(p.Guarantee("x", p.PrivacyUnit("x", other), (p.PureLoss(0.1),)))
    found.receipt().save(tmp_path / "receipt.json")
    assert p.Receipt.load(tmp_path / "receipt.json").verify()
    assert relation.value in found.guarantee.paragraph()


class LoopEngine(Engine):
    """One backward pass for each record, in a loop."""

    def _prepare(self, models: Any) -> None:
        self._model = copy.deepcopy(models[0])

    def clipped_sums(self, batches: Batches, clip_norm: float) -> ClippedSums:
        self._sums.zero_()
        kept, tensors = torch.zeros((), dtype=torch.long), trainable(self._model)
        for replicate, places in enumerate(batches.places):
            counts = (
                torch.ones(len(places)) if batches.weights is None else batches.weights[replicate]
            )
            nn.utils.vector_to_parameters(self._parameters[replicate], tensors)
            for place, count in zip(places, counts, strict=True):
                inputs, targets, usable = self._records.take(place.unsqueeze(0))
                with torch.enable_grad():
                    loss = self._loss(self._model(inputs), targets).sum()
                gradients = torch.autograd.grad(loss, tensors)
                row = nn.utils.parameters_to_vector(gradients).to(self._type)
                row *= clip_factors(row.norm(), clip_norm, self._stability) * count * usable
                self._sums[replicate] += row.nan_to_num(0.0, 0.0, 0.0)
                kept += int(row.isfinite().all())
        return ClippedSums(self._sums, kept)


def test_an_engine_trains_with_clipped_single_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    module: Any = ModuleType("botorch_dp.training.engines.loop")
    module.LoopEngine = LoopEngine
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setitem(ENGINES, "loop", "LoopEngine")

    given: Any = (lambda: logistic_regression(3), logistic_loss, DATA)
    trainers = [DPTrainer(*given, engine=engine) for engine in ("loop", "fused")]
    model, places, total = logistic_regression(3), torch.arange(0, 40, 3), torch.zeros(4)
    for i in places:
        loss = logistic_loss(model(DATA.train_X[i : i + 1]), DATA.train_Y[i : i + 1]).sum()
        gradients = torch.autograd.grad(loss, list(model.parameters()))
        row = nn.utils.parameters_to_vector(gradients)
        total += row * min(1.0, 0.5 / float(row.norm()))
    found = clipped_sum_of(trainers[0], model, places, 0.5)
    torch.testing.assert_close(nn.utils.parameters_to_vector(found), total)
    how: dict[str, Any] = {"noise_multiplier": 2.0, "clip_norm": 1.0, "epochs": 2, "seed": 3}
    fitted = (t.fit(batch_size=10, learning_rate=0.5, delta=1e-3, **how) for t in trainers)
    ours, fused = (each.model.state_dict() for each in fitted)
    torch.testing.assert_close(ours, fused, rtol=1e-4, atol=1e-5)


class GridRoute(Route):
    """Permute-and-flip on a grid of two values for each parameter."""

    name: ClassVar[str] = "grid"

    def objections(self) -> Iterator[tuple[str, bool]]:
        yield "a grid is taken only if it is asked for.", False

    def plan(self, why: str = "") -> SearchPlan:
        return self.planned(
            reason=f"permute-and-flip on a grid, because {why}",
            shares={"selection": self.settings.budget.epsilon},
            evaluations={"selection": len(self.settings.space.grid(2))},
            noise="",
            seen="grid, the corners of the space",
        )

    def run(self, plan: SearchPlan, releases: Releases) -> Config:
        return releases.choose(self.settings.space.grid(2))


def test_a_route_is_planned_taken_and_charged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ROUTES, "grid", GridRoute)
    budget = p.PrivacyBudget(20.0, 1e-6)

    def scores(configs: list[Config]) -> Tensor:
        return torch.tensor([[config["noise"]] * 200 for config in configs])

    how: dict[str, Any] = {"bounds": (0.0, 5.0), "num_records": 200, "evaluations": 5}
    auto = PrivateSearch(scores, SPACE, budget=budget, **how)
    search = PrivateSearch(scores, SPACE, budget=budget, method="grid", **how)
    assert auto.plan().method != "grid" and "corners" in str(search.plan())
    ledger = p.PrivacyLedger(budget=budget)
    assert search.run(ledger=ledger).config.value == {"noise": 0.5} and len(ledger.entries()) == 1


class SummedUncertainty(AcquisitionFunction):
    """The sum of all objectives' posterior standard deviations."""

    def __init__(self, model: Any, ref_point: Tensor, partitioning: object) -> None:
        super().__init__(model)

    @t_batch_mode_transform(expected_q=1)
    @average_over_ensemble_models  # type: ignore[arg-type]
    def forward(self, X: Tensor) -> Tensor:
        return self.model.posterior(X).variance.clamp_min(1e-12).sqrt().sum(dim=(-1, -2))


def centroids_guarantee(config: Config) -> p.Guarantee:
    """Two class sums of points of norm at most 1: one replaced record moves them by at most 2."""
    return p.gaussian_guarantee(sensitivity=2.0, mu=1 / config["noise"])


def noisy_centroids(config: Config, seed: int) -> float:
    """A trainer: the accuracy of the nearest of two noisy centroids."""
    rows = nn.functional.normalize(DATA.train_X)
    sums = torch.stack([rows[DATA.train_Y == label].sum(0) for label in (0, 1)])
    noisy = p.gaussian_mechanism(sums, sensitivity=2.0, mu=1 / config["noise"]).value
    return float(((DATA.test_X @ noisy.T).argmax(-1) == DATA.test_Y).float().mean())


def task() -> PrivacyUtilityProblem:
    def privacy(config: Config) -> float:
        return centroids_guarantee(config).epsilon(1e-6)

    training = TrainingPrivacy(1e-6, guarantee=centroids_guarantee, secret_noise=True)
    return PrivacyUtilityProblem(SPACE, privacy=privacy, utility=noisy_centroids, training=training)


def test_a_trainer_in_a_task_is_tuned_by_an_acquisition_function_and_published() -> None:
    budget = p.PrivacyBudget(20.0, 1e-6)
    study = DPareto(task(), acquisition=SummedUncertainty, seed=0, candidates=32, budget=budget)
    study.run(6, initial=4)
    assert study.publish(test_records_are_public=True).guarantee.epsilon(1e-6) <= 20.0


def test_an_integration_is_told_released_values_and_their_noise() -> None:
    """The sampler of another library asks; each answer is charged, and the ninth refused."""
    from sklearn.model_selection import ParameterSampler

    space = SearchSpace(a=Integer(1, 9), b=Choice("x", "y"))

    def losses(codes: Tensor) -> Tensor:
        return (codes[:, :1] - DATA.train_X[:, 0].double()).abs()

    ledger = p.PrivacyLedger(budget=BUDGET)
    how: dict[str, Any] = {"bounds": (0.0, 1.0), "num_records": 40, "evaluations": 8}
    private, variances = PrivateObjective.for_budget(losses, ledger=ledger, **how), []
    with pytest.raises(BudgetExhausted):
        for config in ParameterSampler({"a": range(1, 10), "b": ["x", "y"]}, 18, random_state=0):
            variances.append(float(private(space.encode([config]))[1]))
    assert len(variances) == len(ledger.entries()) == 8 and min(variances) > 0
