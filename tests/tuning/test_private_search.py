"""PrivateSearch: its price adds up, records are read after it is paid, and it finds minima."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
import torch

from botorch_dp.errors import BudgetExhausted, PrivacyError
from botorch_dp.privacy import (
    NeighboringRelation,
    PrivacyBudget,
    PrivacyLedger,
    PrivacyUnit,
    Release,
    gaussian_mu,
)
from botorch_dp.space import Choice, Integer, Real, SearchSpace
from botorch_dp.tuning import PrivateSearch
from botorch_dp.tuning.routes import base, slope
from botorch_dp.tuning.routes.base import split
from botorch_dp.tuning.routes.descent import GradientModel, gradient_gram
from botorch_dp.tuning.routes.selection import SelectionRoute

N = 400
PURE, GAUSSIAN = PrivacyBudget(1.0), PrivacyBudget(1.0, 1e-6)
RICH = PrivacyBudget(1000.0, 1e-6)


def cube(d: int) -> SearchSpace:
    return SearchSpace(**{f"x{i}": Real(0.0, 1.0) for i in range(d)})


def bowl(optimum: float = 0.3, n: int = N, spread: float = 0.1):
    """Records with optima around one point; all losses lie in [0, 1]."""
    noise = torch.Generator().manual_seed(0)
    optima = optimum + spread * torch.randn(n, dtype=torch.double, generator=noise)

    def scores(configs):
        X = torch.tensor(
            [[v for v in c.values() if isinstance(v, float)] for c in configs], dtype=torch.double
        )
        return (X.unsqueeze(-1) - optima).square().mean(1).clamp(0, 1)

    return scores


def search(scores=None, space=None, **overrides):
    options = {
        "bounds": (0.0, 1.0),
        "budget": GAUSSIAN,
        "evaluations": 60,
        "num_records": N,
        "unsafe_seed": 0,
    } | overrides
    return PrivateSearch(scores or bowl(), space or cube(4), **options)


# The price.


@pytest.mark.parametrize("release_score", [False, True])
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 7.3])
def test_parts_of_a_selection_add_up_to_the_budget_and_no_more(epsilon, release_score):
    plan = search(budget=PrivacyBudget(epsilon)).plan(release_score=release_score)
    total = sum(map(Fraction, plan.shares.values()))
    assert Fraction(epsilon) * (1 - Fraction(1, 10**12)) < total <= Fraction(epsilon)
    assert plan.guarantee.epsilon() == math.inf  # simulated
    assert plan.guarantee.nominal.epsilon() == epsilon


@pytest.mark.parametrize("release_score", [False, True])
@pytest.mark.parametrize("space", [cube(5), SearchSpace(**cube(4).parameters, k=Choice("a", "b"))])
@pytest.mark.parametrize("epsilon", [1.0, 7.3])
def test_parts_of_a_descent_add_up_to_the_budget_and_no_more(epsilon, space, release_score):
    plan = search(space=space, budget=PrivacyBudget(epsilon, 1e-6), num_records=5000).plan(
        release_score=release_score
    )
    assert plan.method == "descent"
    mu = Fraction(gaussian_mu(epsilon, 1e-6))
    total = sum(Fraction(share) ** 2 for share in plan.shares.values())
    assert mu**2 * (1 - Fraction(1, 10**12)) < total <= mu**2
    assert plan.guarantee.nominal.delta(epsilon) <= 1e-6
    assert sum(plan.evaluations.values()) <= 60


@pytest.mark.parametrize("total", [0.1, 1 / 3, 1.0, 7.3])
def test_splits_never_exceed_the_total(total):
    weights = {"selection": 0.1, "clip norm": 0.02, "score": 0.3, "gradients": 0.58}
    assert sum(map(Fraction, split(total, weights).values())) <= Fraction(total)
    squares = sum(Fraction(share) ** 2 for share in split(total, weights, power=2).values())
    assert squares <= Fraction(total) ** 2


@pytest.mark.parametrize(
    ("method", "budget"),
    [("selection", PURE), ("slope", PURE)]
    + [(method, PrivacyBudget(30.0, 1e-6)) for method in ("slope", "descent")],
)
def test_a_ledger_of_the_same_budget_is_used_up_and_not_overspent(method, budget):
    ledger = PrivacyLedger(budget=budget)
    found = search(budget=budget, unsafe_seed=None, method=method)
    result = found.run(ledger=ledger, release_score=True)
    spent, delta = ledger.spent()
    assert 0.999 * budget.epsilon < spent <= budget.epsilon * (1 + 1e-11)
    assert delta == (0.0 if found.plan().is_pure else budget.delta)
    assert result.guarantee.status == "proven"
    with pytest.raises(BudgetExhausted):
        search(budget=budget, unsafe_seed=None).run(ledger=ledger)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("method", ["selection", "slope", "descent"])
def test_every_part_is_charged_before_its_records_are_read(method):
    budget = PrivacyBudget(30.0, 1e-6)
    ledger = PrivacyLedger(budget=budget)
    charged = []

    def scores(configs):
        charged.append(len(ledger.entries()))
        return bowl()(configs)

    found = search(scores, budget=budget, unsafe_seed=None, method=method)
    found.run(ledger=ledger, release_score=True)
    assert charged[0] == 1
    assert charged == sorted(charged)
    assert charged[-1] == len(ledger.entries())


@pytest.mark.parametrize("budget", [PURE, PrivacyBudget(30.0, 1e-6)])
def test_a_ledger_that_cannot_bear_the_whole_run_refuses_before_anything_is_read(budget):
    def scores(configs):
        raise AssertionError("read")

    smaller = PrivacyBudget(0.9 * budget.epsilon, budget.delta)
    ledger = PrivacyLedger(budget=smaller)
    with pytest.raises(BudgetExhausted, match="costs"):
        search(scores, budget=budget, unsafe_seed=None).run(ledger=ledger)
    assert ledger.entries() == []


# Routes.


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"space": SearchSpace(k=Choice("a", "b", "c"))}, "no numeric parameter"),
        ({"space": cube(2)}, "2-dimensional"),
        ({"evaluations": 4}, "too few"),
        (
            {"space": SearchSpace(**cube(4).parameters, constraints=[lambda c: c["x0"] > 0])},
            "constraints",
        ),
    ],
)
def test_why_it_is_a_selection(changes, words):
    plan = search(**changes).plan()
    assert plan.method == "selection"
    assert words in plan.reason
    assert plan.shares == {"selection": 1.0}
    assert "95%" in plan.noise


@pytest.mark.parametrize(
    ("changes", "words"),
    [({"budget": PURE}, "no delta"), ({"num_records": 80}, "with 80 records the gradients")],
)
def test_why_it_is_a_slope(changes, words):
    plan = search(**changes).plan()
    assert plan.method == "slope" and plan.is_pure
    assert words in plan.reason
    assert plan.guarantee.nominal.epsilon() == 1.0
    assert "as if all records agreed" in plan.noise or "if all records agreed" in plan.noise


@pytest.mark.parametrize(
    ("method", "changes", "words"),
    [
        ("gradient", {}, "method"),
        ("descent", {"budget": PURE}, "no delta"),
        ("slope", {"space": SearchSpace(k=Choice("a", "b"))}, "no numeric parameter"),
        ("descent", {"space": SearchSpace(k=Choice("a", "b"))}, "no numeric parameter"),
        ("slope", {"evaluations": 5}, "5 evaluations are too few"),
        ("descent", {"evaluations": 5}, "5 evaluations are too few"),
    ],
)
def test_a_route_that_cannot_be_taken_is_refused_at_once(method, changes, words):
    with pytest.raises(ValueError, match=words):
        search(method=method, **changes)


@pytest.mark.parametrize("method", ["selection", "slope", "descent"])
def test_every_route_finds_the_minimum_of_many_records(method):
    space = SearchSpace(**cube(3).parameters, k=Choice("a", "b"))
    options = {"space": space, "budget": RICH, "evaluations": 48, "method": method}
    result = search(**options).run()
    middle = bowl()([{f"x{i}": 0.5 for i in range(3)} | {"k": "a"}]).mean()
    assert bowl()([result.config.value]).mean() < 0.7 * middle
    assert search(**options).plan().method == method


def test_trees_are_known_by_their_kind_and_never_by_the_records():
    class Jumps:
        has_steps = True

        def __call__(self, configs):
            raise AssertionError("read")

    assert search(Jumps(), budget=PURE).plan().method == "selection"
    plan = search(Jumps()).plan()
    assert plan.method == "selection" and "piecewise constant" in plan.reason


def test_up_to_four_numbers_are_compared_with_what_is_in_use():
    def with_incumbent(d):
        scores = bowl()
        scores.incumbent = {f"x{i}": 0.9 for i in range(d)}
        return search(scores, space=cube(d))

    assert with_incumbent(4).plan().method == "selection"
    assert with_incumbent(5).plan().method == "descent"
    candidates = SelectionRoute(with_incumbent(4).settings, False).candidates
    assert candidates[1] == {f"x{i}": 0.9 for i in range(4)}
    assert search(space=cube(2)).plan().method == "selection"
    assert search(space=cube(3)).plan().method == "descent"


def test_plan_reads_nothing_and_says_the_price_and_the_noise():
    def scores(configs):
        raise AssertionError("read")

    plan = search(scores, num_records=5000, unsafe_seed=None).plan(release_score=True)
    text = str(plan)
    assert f"Method: {plan.steps} noisy gradient steps" in text
    assert "Budget: 8% for the clip norm (0 evaluations), 10% for the score" in text
    assert "standard deviation" in text and "times the clipping norm in each step" in text


# What it finds.


def test_it_says_once_that_nothing_was_charged():
    words = "Charged to no ledger: other releases from these records add up."
    assert str(search(space=cube(2), unsafe_seed=None).run()).count(words) == 1
    with PrivacyLedger(budget=GAUSSIAN) as ledger:
        result = search(space=cube(2), unsafe_seed=None).run(ledger=ledger)
    assert words not in str(result)
    receipt = result.receipt()
    assert receipt.document["ledger"]["epsilon"] == GAUSSIAN.epsilon and receipt.verify().passes
    assert result.receipt(ledger=None).document["ledger"] is None
    assert words not in str(search(space=cube(2)).run()), "a simulation charges nothing"


def test_a_released_score_stays_within_the_bounds():
    poor = {"space": cube(2), "budget": PrivacyBudget(1e-4), "evaluations": 4}
    scores = [search(**poor, unsafe_seed=k).run(release_score=True).score.value for k in range(9)]
    assert {0.0, 1.0} & set(scores) and all(0.0 <= score <= 1.0 for score in scores)


@pytest.mark.parametrize("d", [2, 5])
def test_maximizing_is_minimizing_the_negative(d):
    scores = bowl()
    low = search(scores, cube(d), budget=RICH).run(release_score=True)
    high = search(
        lambda c: -scores(c), cube(d), bounds=(-1.0, 0.0), budget=RICH, maximize=True
    ).run(release_score=True)
    assert high.config.value == pytest.approx(low.config.value, abs=1e-6)
    assert high.score.value == pytest.approx(-low.score.value, abs=1e-6)


def test_all_kinds_of_parameters():
    space = SearchSpace(
        rate=Real(1e-4, 1.0, log=True),
        width=Integer(1, 1000, log=True),
        depth=Integer(1, 3),
        share=Real(-1.0, 1.0),
        kind=Choice("good", "bad", "worse"),
        decay=Real(0.0, 5.0),
    )
    optimum = {"rate": 1e-3, "width": 30, "depth": 2, "share": 0.4, "kind": "good", "decay": 1.0}
    target = space.encode([optimum])
    shifts = torch.linspace(-0.05, 0.05, N, dtype=torch.double)

    def scores(configs):
        for config in configs:
            assert space.check(config) == config
        far = (space.encode(configs) - target).square().sum(-1)
        return (far.unsqueeze(-1) / 6 + shifts).clamp(0, 1).numpy()

    result = search(scores, space, budget=RICH, evaluations=120).run()
    found = result.config.value
    assert "categories" in result.reason
    assert found["kind"] == "good" and found["depth"] == 2
    assert isinstance(found["width"], int)
    got = (space.encode([found]) - target).abs().max()
    assert got < 0.15


def test_a_selection_respects_constraints_and_tries_each_configuration_once():
    space = SearchSpace(k=Integer(1, 6), m=Choice("a", "b"), constraints=[lambda c: c["k"] > 2])
    seen = []

    def scores(configs):
        seen.extend(tuple(c.values()) for c in configs)
        return np.array([[c["k"] / 6] * N for c in configs])

    result = search(scores, space, budget=PrivacyBudget(1e3)).run()
    assert len(seen) == len(set(seen)) == 8 == result_evaluations(space)
    assert result.config.value["k"] == 3


def result_evaluations(space):
    return search(space=space).plan().evaluations["selection"]


# One record.


@pytest.mark.one_in(4)
@pytest.mark.parametrize(("method", "draws"), [("selection", 2), ("slope", 5), ("descent", 16)])
def test_one_record_moves_what_noise_is_added_to_by_no_more_than_its_sensitivity(
    method, draws, monkeypatch
):
    """Replaced by any other, with all releases held fixed; the sensitivity is what noise is told"""

    def materials(table_of):
        got = []

        def selected(utilities, *, sensitivity, **_):
            got.append((utilities, sensitivity, math.inf))
            return Release(0, None)

        def noisy(value, *, sensitivity, **_):
            vector = torch.as_tensor(value, dtype=torch.double).reshape(-1)
            got.append((vector, sensitivity, 2))
            return Release(0 * value, None, scale=1.0)

        def noisy_in_l1(value, *, sensitivity, **_):
            got.append((value, sensitivity, 1))
            return Release(0 * value, None, scale=1.0)

        monkeypatch.setattr(base, "exponential_mechanism", selected)
        monkeypatch.setattr(base, "gaussian_mechanism", noisy)
        monkeypatch.setattr("botorch_dp.descent.step.gaussian_mechanism", noisy)
        monkeypatch.setattr(base, "laplace_mechanism", noisy)
        monkeypatch.setattr(slope, "laplace_mechanism", noisy_in_l1)
        space = SearchSpace(**cube(4).parameters, k=Choice("a", "b"))
        search(table_of, space, budget=RICH, method=method).run(release_score=True)
        return got

    every = (0.0, 1.0, math.nan, -math.inf, 1e300, "alternating")
    few = {"descent": every[-3:]}  # their models take their time
    for nonsense in few.get(method, every):

        def changed(configs, nonsense=nonsense):
            table = bowl()(configs)
            replaced = torch.arange(len(configs)) % 2 if nonsense == "alternating" else nonsense
            table[:, 3] = torch.as_tensor(replaced, dtype=torch.double)
            return table

        pairs = list(zip(materials(bowl()), materials(changed), strict=True))
        assert len(pairs) == draws
        moved = [
            torch.linalg.vector_norm(a - b, ord=order) / sensitivity
            for (a, sensitivity, order), (b, _, _) in pairs
        ]
        assert max(moved) <= 1
        assert nonsense != "alternating" or max(moved) > 0.1


# Resuming.


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("method", "at"),
    [(method, at) for method in ("selection", "slope", "descent") for at in (1, 2, 4)],
)
def test_an_interrupted_run_goes_on_to_the_same_configuration(method, at, tmp_path):
    options = {"budget": PrivacyBudget(50.0, 1e-6), "method": method, "evaluations": 50}
    calls = []

    def failing(configs):
        calls.append(len(configs))
        if len(calls) == at:
            raise KeyboardInterrupt
        return bowl()(configs)

    straight = search(**options).run(release_score=True)
    path = tmp_path / "a.search"
    with pytest.raises(KeyboardInterrupt):
        search(failing, **options).run(checkpoint=path, release_score=True)
    resumed = search(failing, **options).run(checkpoint=path, release_score=True)
    assert resumed.config.value == straight.config.value
    assert resumed.score.value == straight.score.value

    def never(configs):
        raise AssertionError("a finished run was asked again")

    again = search(never, **options).run(checkpoint=path, release_score=True)
    assert again.config.value == straight.config.value
    assert again.score.value == straight.score.value


def test_a_checkpoint_of_another_run_is_refused(tmp_path):
    path = tmp_path / "a.search"
    search(None, cube(2)).run(checkpoint=path)
    with pytest.raises(PrivacyError, match="other settings"):
        search(None, cube(2)).run(checkpoint=path, release_score=True)
    with pytest.raises(PrivacyError, match="other settings"):
        search(None, cube(2), evaluations=50).run(checkpoint=path)


def test_a_charged_run_cannot_be_continued_without_a_ledger(tmp_path):
    path, ledger = tmp_path / "a.search", PrivacyLedger(budget=PURE)
    search(budget=PURE, unsafe_seed=None).run(checkpoint=path, ledger=ledger)
    with pytest.raises(PrivacyError, match="other settings"):
        search(budget=PURE, unsafe_seed=None).run(checkpoint=path)


@pytest.mark.slow
def test_many_parameters_forget_the_oldest_gradients():
    result = search(bowl(), cube(70), budget=RICH, evaluations=710).run()
    start = bowl()([{f"x{i}": 0.5 for i in range(70)}]).mean()
    assert bowl()([result.config.value]).mean() < 0.7 * start


# Bad arguments.


def test_bad_arguments_are_refused_at_once():
    with pytest.raises(ValueError, match="num_records"):
        search(num_records=None)
    with pytest.raises(PrivacyError, match="REPLACE_ONE"):
        search(unit=PrivacyUnit(relation=NeighboringRelation.ADD_OR_REMOVE_ONE))


def test_simulated_noise_is_never_charged():
    ledger = PrivacyLedger(budget=GAUSSIAN)
    with pytest.raises(PrivacyError, match="unsafe_seed"):
        search().run(ledger=ledger)
    assert ledger.entries() == []
    assert search(space=cube(2)).run().guarantee.status == "none"


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (lambda configs: torch.zeros(len(configs), N - 1), PrivacyError),
        (lambda configs: torch.zeros(len(configs) + 1, N), ValueError),
        (lambda configs: [[0.0] * N] * len(configs), TypeError),
    ],
)
def test_answers_of_another_shape_are_refused(answer, error):
    with pytest.raises(error, match="record_scores"):
        search(answer).run()


# The model of released gradients.


def test_gram_is_the_second_derivative_of_the_kernel():
    X, Z = torch.rand(3, 2, dtype=torch.double), torch.rand(2, 2, dtype=torch.double) + 1

    def kernel(pair):
        s = math.sqrt(5) * torch.linalg.vector_norm((pair[:2] - pair[2:]) / 0.7)
        return (1 + s + s**2 / 3) * torch.exp(-s)

    gram = gradient_gram(X, Z, 0.7).reshape(3, 2, 2, 2)
    for i, x in enumerate(X):
        for j, z in enumerate(Z):
            hessian = torch.autograd.functional.hessian(kernel, torch.cat((x, z)))
            torch.testing.assert_close(gram[i, :, j], hessian[:2, 2:])
    gram = gradient_gram(X, X, 0.7)
    torch.testing.assert_close(gram[:2, :2], 5 / 3 / 0.49 * torch.eye(2).double())
    assert torch.allclose(gram, gram.mT) and torch.linalg.eigvalsh(gram).min() > 0


def test_gram_is_the_derivative_of_the_covariance_with_values():
    generator = torch.Generator().manual_seed(0)
    X = torch.rand(3, 4, dtype=torch.double, generator=generator)
    gradients = torch.rand(3, 4, dtype=torch.double, generator=generator)
    model = GradientModel(X, gradients, torch.full((3,), 0.1))
    Z = torch.rand(5, 4, dtype=torch.double, generator=generator).requires_grad_()
    (slope,) = torch.autograd.grad(model.mean(Z).sum(), Z)
    assert torch.allclose(model.slope(Z.detach()), slope, atol=1e-10)


def test_model_follows_gradients_of_a_bowl():
    X = torch.rand(12, 3, dtype=torch.double, generator=torch.Generator().manual_seed(1))
    model = GradientModel(X, X - 0.4, torch.full((12,), 1e-3))
    found = model.minimizer(torch.full((3,), 0.5).double(), radius=0.2)
    assert torch.allclose(found, torch.full((3,), 0.4).double(), atol=0.03)
    assert model.minimizer(torch.ones(3).double(), radius=0.1).min() >= 0.9 - 1e-12


@pytest.mark.filterwarnings("error")
def test_a_large_delta_and_narrow_bounds_of_the_log_loss_warn():
    with pytest.warns(UserWarning, match="not below 1 / 400"):
        search(budget=PrivacyBudget(1.0, 0.01))

    class LogLoss:
        num_records, loss = N, "log"

        def __call__(self, configs):
            raise AssertionError("read")

    with pytest.warns(UserWarning, match="brier"):
        search(LogLoss(), bounds=(0.0, 2.0))
    search(LogLoss(), bounds=(0.0, 7.0))
