"""AUC and F1: what they are, and by how much one record moves them, tried in all small cases."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import f1_score, roc_auc_score

from botorch_dp.descent import private_start
from botorch_dp.objectives import AUC, F1, PrivateObjective, per_record_scores
from botorch_dp.privacy import PrivacyBudget, audit_epsilon, gaussian_guarantee
from botorch_dp.space import Real, SearchSpace
from botorch_dp.tuning import PrivateSearch

GENERATOR = np.random.default_rng(0)
LABELS = (GENERATOR.random(200) < 0.3).astype(int)
SCORES = np.round(LABELS + GENERATOR.normal(size=200), 1)  # with ties


def loss(statistic, scores):
    return statistic.offset + statistic.unit * statistic.units(torch.as_tensor(scores))


# What they are.


def test_auc_is_scikit_learns():
    expected = 1 - roc_auc_score(LABELS, SCORES)
    public = AUC(LABELS, labels_are_public=True)
    protected = AUC(LABELS, share=LABELS.mean())
    assert loss(public, SCORES) == pytest.approx(expected, abs=1e-12)
    assert loss(protected, SCORES) == pytest.approx(expected, abs=1e-12)
    assert public.sensitivity * public.unit == pytest.approx(1 / LABELS.sum())


def test_f1_is_scikit_learns():
    predicted = (SCORES > 0.4).astype(float)
    statistic = F1(LABELS, labels_are_public=True)
    assert loss(statistic, predicted) == pytest.approx(1 - f1_score(LABELS, predicted), abs=1e-11)
    assert loss(statistic, np.zeros(200)) == 1.0


def test_a_prediction_that_is_no_number_is_a_wrong_one():
    statistic = AUC([1, 1, 0, 0], labels_are_public=True)
    assert statistic.units(torch.tensor([2.0, math.nan, 0.0, 1.0])) == 4  # of 8
    assert statistic.units(torch.tensor([2.0, 2.0, 0.0, math.nan])) == 4
    assert statistic.units(torch.tensor([math.inf, 2.0, -math.inf, 0.0])) == 0
    wrong = F1([1, 0], labels_are_public=True)
    assert loss(wrong, [math.nan, math.nan]) == 1.0


# How far one record moves them.


def largest_move(make, n, labels, scores, *, keeps_label):
    """Over all data sets and all replacements of the first record (order does not matter)."""
    found = 0
    for rest in itertools.product(itertools.product(labels, scores), repeat=n - 1):
        units = {}
        for own in itertools.product(labels, scores):
            y, s = zip(own, *rest, strict=True)
            try:
                statistic = make(y)
            except ValueError:  # public labels without both classes are refused
                continue
            units[own] = statistic.units(torch.tensor(s, dtype=torch.double)), statistic.sensitivity
        for a, b in itertools.combinations(units, 2):
            if keeps_label and a[0] != b[0]:
                continue
            move = abs(units[a][0] - units[b][0])
            assert move <= units[a][1], (a, b, rest)
            found = max(found, move / units[a][1])
    return found


@pytest.mark.parametrize("n", [2, 3, 4])
def test_public_labels_bound_auc_and_the_bound_is_attained(n):
    def make(y):
        return AUC(y, labels_are_public=True)

    assert largest_move(make, n, (0, 1), (0.0, 1.0, math.nan), keeps_label=True) == 1


@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_label_flips_move_auc_no_further_and_the_bound_is_attained(n):
    most = largest_move(AUC, n, (0, 1, 7), (0.0, 1.0, math.nan), keeps_label=False)
    assert most == (0 if n == 1 else 1)


@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_public_labels_bound_f1_and_the_bound_is_attained(n):
    def make(y):
        return F1(y, labels_are_public=True)

    most = largest_move(make, n, (0, 1), (0.0, 1.0, math.nan), keeps_label=True)
    assert most == pytest.approx(1, abs=1e-11)


def test_label_flips_would_move_what_public_labels_promise_further():
    before, after = ([1, 0, 0, 0], [0.0, 1.0, 1.0, 1.0]), ([1, 1, 0, 0], [0.0, 2.0, 1.0, 1.0])
    values = [loss(AUC(y, labels_are_public=True), s) for y, s in (before, after)]
    kept = AUC(after[0], labels_are_public=True)
    assert abs(values[0] - values[1]) >= kept.sensitivity * kept.unit
    one = [loss(AUC(y), s) for y, s in (before, after)]
    assert abs(one[0] - one[1]) <= AUC(before[0]).sensitivity * AUC(before[0]).unit


# What is released.


def auc_objective(scores, statistic, **options):
    def predictions(X):
        return scores.expand(len(X), -1)

    predictions.statistic = statistic
    return PrivateObjective(predictions, bounds=(0.0, 1.0), mu=1.0, **options)


WORST = torch.tensor([1.0, 0.5, 0.5, 0.5, 0.5]).double()


def release_of(statistic):
    """Of that statistic, for the first record's prediction."""

    def mechanism(own, size):
        objective = auc_objective(torch.cat((torch.tensor([own]), WORST[1:])).double(), statistic)
        return objective(torch.zeros(size, 1, dtype=torch.double))[0].squeeze(-1)

    return mechanism


@pytest.mark.slow
def test_an_audit_passes_and_catches_the_sensitivity_of_a_mean():
    """One positive record above or below all four negative ones: AUC moves from 1 to 0."""

    class AsIfAMean(AUC):
        def __init__(self, labels, **options):
            super().__init__(labels, **options)
            self.sensitivity = 1 / (self.unit * self.num_records)

    claim = gaussian_guarantee(sensitivity=1.0, mu=1.0)
    reports = {
        kind: audit_epsilon(
            release_of(kind([1, 0, 0, 0, 0], labels_are_public=True)),
            1.0,
            0.0,
            samples=4000,
            delta=0.05,
            confidence=1 - 1e-6,
            claim=claim,
            batched=True,
        )
        for kind in (AUC, AsIfAMean)
    }
    assert reports[AUC].passes and not reports[AsIfAMean].passes


def test_an_objective_has_the_noise_of_the_statistic_and_says_the_condition():
    statistic = AUC(LABELS, labels_are_public=True)
    objective = auc_objective(torch.as_tensor(SCORES), statistic, unsafe_seed=0)
    assert objective.noise_std == pytest.approx(1 / LABELS.sum())
    Y, Yvar = objective(torch.zeros(4000, 1, dtype=torch.double))
    assert Y.mean() == pytest.approx(loss(statistic, SCORES), abs=5 * 0.02 / 63)
    assert Y.std() == pytest.approx(objective.noise_std, rel=0.06)
    assert Yvar[0].sqrt() == pytest.approx(objective.noise_std)
    for kind in (statistic, AUC(LABELS)):
        price = auc_objective(torch.as_tensor(SCORES), kind).price()
        assert ("label is public" in str(price)) == (kind is statistic)
        assert price.mu == 1.0 and price.status == "proven"


@pytest.mark.parametrize("public", [False, True])
@pytest.mark.parametrize("name", ["roc_auc", "f1"])
def test_a_search_finds_what_ranks_well(name, public):
    if name == "f1" and not public:
        return
    features = GENERATOR.normal(size=(600, 3))
    y = (features[:, 0] + 0.3 * GENERATOR.normal(size=600) > 0.5).astype(int)
    train, validation = (features[:100], y[:100]), (features[100:], y[100:])
    space = SearchSpace(C=Real(1e-6, 10.0, log=True))
    scores = per_record_scores(
        LogisticRegression(class_weight="balanced"),
        space,
        train,
        validation,
        name,
        labels_are_public=public,
    )
    search = PrivateSearch(
        scores,
        space,
        bounds=(0.0, 1.0),
        budget=PrivacyBudget(30.0, 1e-6),
        evaluations=12,
        unsafe_seed=0,
    )
    assert f"{scores.statistic.name} is no mean" in search.plan().reason
    result = search.run(release_score=True)
    found = {"C": result.config.value["C"]}
    exact = loss(scores.statistic, scores([found])[0])
    assert exact < min(loss(scores.statistic, row) for row in scores(search_grid())) + 0.03
    assert result.score.value == pytest.approx(exact, abs=10 * result.score.scale)
    assert result.score.scale < 0.05
    assert ("label is public" in str(result.guarantee.nominal)) == public


def search_grid():
    return [{"C": 10.0**k} for k in range(-6, 2)]


# What is refused.


def test_who_needs_a_mean_refuses():
    def predictions(X):
        return torch.zeros(len(X), 2)

    predictions.statistic = AUC([0, 1])
    with pytest.raises(TypeError, match="AUC, which is no mean"):
        private_start(
            predictions, box=torch.eye(2).cumsum(0), bounds=(0.0, 1.0), mu=1.0, num_points=4
        )
    with pytest.raises(ValueError, match=r"must be \(0.0, 1.0\)"):
        PrivateObjective(predictions, bounds=(0.0, 2.0), mu=1.0)
    with pytest.raises(ValueError, match="of 2 records"):
        PrivateObjective(predictions, bounds=(0.0, 1.0), mu=1.0, num_records=3)
    with pytest.raises(ValueError, match="maximize"):
        PrivateSearch(
            predictions,
            SearchSpace(x=Real(0.0, 1.0)),
            bounds=(0.0, 1.0),
            budget=PrivacyBudget(1.0),
            evaluations=3,
            maximize=True,
        )


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: AUC([1, 1], labels_are_public=True), "both classes"),
        (lambda: AUC([1, 2], labels_are_public=True), "0 or 1"),
        (lambda: AUC([]), "labels"),
        (lambda: AUC(torch.ones(1, 2)), "shape"),
        (lambda: AUC([1, 0], share=0.0), "share"),
        (lambda: F1([1, 0]), "no bounded sensitivity"),
        (lambda: F1([0, 0], labels_are_public=True), "positive class"),
    ],
)
def test_bad_labels_are_refused(make, words):
    with pytest.raises(ValueError, match=words):
        make()


def test_a_protected_label_that_is_nonsense_raises_nothing():
    assert AUC([1, 0, math.nan, 9]).units(torch.tensor([0.0, 1.0, 5.0, 5.0])) == 1
