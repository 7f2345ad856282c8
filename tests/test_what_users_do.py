"""What people do, wherever they can do it: it works and has its effect, or it is refused at once.

Each row of a table is tried at each place. It works, and exchanging one record moves what one may
move; or it is refused before a record is read or a ledger is charged, and the message says why.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import optuna
import pandas as pd
import pytest
import torch
from lightgbm import LGBMClassifier
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import make_column_transformer
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, OneHotEncoder, StandardScaler
from sklearn.svm import SVC
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector
from torch.utils.data import DataLoader, Dataset

import botorch_dp as bdp
from botorch_dp import Integer, PrivacyBudget, PrivacyLedger, Real, SearchSpace
from botorch_dp.integrations.estimators import DPClassifier, DPRegressor
from botorch_dp.integrations.opacus import PrivacyEngine
from botorch_dp.integrations.optuna import report, suggest
from botorch_dp.integrations.sklearn import PrivateSearchCV
from botorch_dp.objectives import per_record_scores

#: A dozen records at an epsilon of thousands are warned of, and so they should be.
pytestmark = pytest.mark.filterwarnings("ignore")


def outcome(call: Callable[[], Any], refused: str | None, ledger: PrivacyLedger) -> Any:
    """What a call returns; or None if it is to be refused, and nothing is charged for it."""
    if refused is None:
        return call()
    with pytest.raises((ValueError, TypeError), match=refused):
        call()
    assert not ledger.entries()


# --- Losses. ---

CLASSES, NUMBERS, BITS = 4, "numbers", "bits"
RARE = torch.tensor([0.02, 0.02, 0.02, 1.0])  # weights for imbalanced classes, at most 1
PER_RECORD = "reduction=.none"


@dataclass(frozen=True)
class Loss:
    """A loss as people write it, what it is for, and how it is refused where it has to be."""

    loss: Callable[[Tensor, Tensor], Tensor]
    targets: str = "classes"
    refused: str | None = None

    def model(self) -> nn.Module:
        torch.manual_seed(1)
        last = nn.Linear(3, CLASSES if self.targets == "classes" else 1)
        return nn.Sequential(last, nn.LogSoftmax(-1)) if isinstance(self.loss, nn.NLLLoss) else last


def contrastive(outputs: Tensor, targets: Tensor) -> Tensor:
    """Records of one class attract each other."""
    same = (targets[:, None] == targets[None]).to(outputs.dtype)
    return ((outputs @ outputs.T).sigmoid() - same).square().mean()


LOSSES = {
    "cross entropy": Loss(nn.functional.cross_entropy),
    "class weights": Loss(nn.CrossEntropyLoss(weight=RARE), refused=PER_RECORD),
    "class weights one by one": Loss(nn.CrossEntropyLoss(weight=RARE, reduction="none")),
    "label smoothing": Loss(nn.CrossEntropyLoss(label_smoothing=0.1)),
    "an ignored class": Loss(nn.CrossEntropyLoss(ignore_index=3), refused=PER_RECORD),
    "NLL": Loss(nn.NLLLoss()),
    "BCE with logits": Loss(nn.BCEWithLogitsLoss(), BITS),
    "a weight of positives": Loss(nn.BCEWithLogitsLoss(pos_weight=torch.tensor([7.0])), BITS),
    "MSE": Loss(nn.MSELoss(), NUMBERS),
    "L1": Loss(nn.L1Loss(), NUMBERS),
    "Huber": Loss(nn.HuberLoss(), NUMBERS),
    "a hinge of one's own": Loss(lambda out, y: torch.relu(1 - (2 * y - 1) * out).mean(), BITS),
    "contrastive": Loss(contrastive, refused=PER_RECORD),
}
N = 12


class Records(Dataset[Any]):
    """A dozen records, of which it counts how many were read."""

    def __init__(self, targets: str) -> None:
        generator = torch.Generator().manual_seed(0)
        self.X, self.read = torch.randn(N, 3, generator=generator), 0
        self.Y = torch.arange(N) % CLASSES
        if targets != "classes":
            self.Y = (self.Y % 2 + (targets == NUMBERS) * self.X[:, 0]).float()[:, None]
        self.like = torch.zeros(3), torch.zeros_like(self.Y[0])

    def exchange(self) -> Records:
        self.X[0], self.Y[0] = -30.0, self.Y[3]
        return self

    def __len__(self) -> int:
        return N

    def __getitem__(self, place: int) -> tuple[Tensor, Tensor]:
        self.read += 1
        return self.X[place], self.Y[place]


#: One step on all records from known weights: what it moves them by is the clipped sum, and noise.
ONE_STEP: dict[str, Any] = {"batch_size": N, "epochs": 1, "clip_norm": 1.0}
RATES = SearchSpace(learning_rate=Real(0.1, 1.0))
SECRET, SEEDED = {"noise_multiplier": 9.0}, {"noise_multiplier": 1e-4}


def trainer(row: Loss, records: Records) -> bdp.DPTrainer:
    metric = {} if row.targets == "classes" else {"metric": lambda outputs, targets: 0.5}
    return bdp.DPTrainer(row.model, row.loss, (records, records), like=records.like, **metric)


def fit(row: Loss, records: Records, **how: Any) -> nn.Module:
    return trainer(row, records).fit(learning_rate=1.0, **ONE_STEP, **how).model


def private_fit(row: Loss, records: Records, ledger: PrivacyLedger) -> None:
    tests: Any = "sensitive" if row.targets == "classes" else "public"
    how: Any = {"budget": PrivacyBudget(9.0, 0.01), "fixed": ONE_STEP, "test_records": tests}
    bdp.PrivateFit(trainer(row, records), RATES, trials=2, **how).run(ledger=ledger)


def opacus_loop(row: Loss, records: Records, noise_multiplier: float, **how: Any) -> nn.Module:
    model = row.model()
    model, optimizer, loader = PrivacyEngine(like=records.like, **how).make_private(
        module=model, optimizer=torch.optim.SGD(model.parameters(), lr=1.0), epochs=1,
        data_loader=DataLoader(records, batch_size=N), noise_multiplier=noise_multiplier,
        max_grad_norm=1.0, criterion=row.loss,
    )  # fmt: skip
    for X, Y in loader:
        optimizer.zero_grad()
        row.loss(model(X), Y).mean().backward()
        optimizer.step()
    return model


def front(row: Loss, records: Records, ledger: PrivacyLedger) -> None:
    how: Any = {"publish": True, "delta": 0.01, **ONE_STEP, **SECRET}
    study = bdp.DPareto(trainer(row, records).problem(RATES, **how), budget=ledger, seed=0)
    study.run(2)
    assert {trial.state for trial in study.trials} == {"complete"}


TRAINING: dict[str, Callable[[Loss, Records, PrivacyLedger], nn.Module | None]] = {
    "DPTrainer.fit": lambda row, records, _: fit(row, records, seed=0, **SEEDED),
    "DPTrainer.fit(publish=True)": lambda *a: fit(*a[:2], publish=True, ledger=a[2], **SECRET),
    "PrivateFit": private_fit,
    "PrivacyEngine": lambda row, records, _: opacus_loop(row, records, unsafe_seed=0, **SEEDED),
    "PrivacyEngine(ledger=)": lambda *a: opacus_loop(*a[:2], ledger=a[2], **SECRET),
    "DPareto": front,
}


def weights(model: nn.Module) -> Tensor:
    return parameters_to_vector(model.parameters()).detach().double()


def clipped_sum(row: Loss, records: Records) -> Tensor:
    """By plain autograd, a record at a time."""
    model = row.model()
    total = torch.zeros_like(weights(model))
    for X, Y in zip(records.X.split(1), records.Y.split(1), strict=True):
        model.zero_grad()
        row.loss(model(X), Y).mean().backward()
        gradient = parameters_to_vector([p.grad.double() for p in model.parameters()])
        total += gradient / gradient.norm().clamp(min=1.0)
    return total


@pytest.mark.one_in(5)  # all places and all losses
@pytest.mark.parametrize("place", TRAINING)
@pytest.mark.parametrize("row", LOSSES)
def test_a_loss_works_or_is_refused(row: str, place: str) -> None:
    case, ledger = LOSSES[row], PrivacyLedger(budget=PrivacyBudget(1e4, 0.5))
    records, train = Records(case.targets), partial(TRAINING[place], case)
    model = outcome(lambda: train(records, ledger), case.refused, ledger)
    assert (records.read > 0) == (case.refused is None)
    if place not in ("DPTrainer.fit", "PrivacyEngine") or model is None:
        assert bool(ledger.entries()) == (case.refused is None)
        return
    moved = N * (weights(case.model()) - weights(model))
    assert torch.allclose(moved, clipped_sum(case, records), atol=1e-3)
    other = train(records.exchange(), ledger)
    assert 0.01 < N * float((weights(model) - weights(other)).norm()) < 2.001  # 2 clipping norms


# --- Estimators, and the records that they are given. ---

HALF, ODD, RNG = 48, 7, np.random.default_rng(0)
FRAME = pd.DataFrame({
    "age": RNG.integers(18, 80, 2 * HALF).astype(float),
    "income": RNG.normal(3.0, 1.0, 2 * HALF),
    "job": RNG.choice(["nurse", "clerk", "cook"], 2 * HALF),
    "member": RNG.random(2 * HALF) < 0.5,
})  # fmt: skip
Y = (FRAME.age + 20 * FRAME.member > 55).astype(int).to_numpy()
X = FRAME[["age", "income"]].to_numpy()
C, RATE = Real(0.1, 10.0, log=True), Real(0.1, 1.0)
IN_PIPELINE = {"logisticregression__C": C}
PUBLIC, PROTECTED = (X[:HALF], Y[:HALF]), (X[HALF:], Y[HALF:])


@dataclass
class Case:
    """An estimator, its public records, the protected ones, and how these are refused."""

    estimator: Any
    space: dict[str, Any]
    public: tuple[Any, Any] = PUBLIC
    protected: tuple[Any, Any] = PROTECTED
    refused: str | None = None

    def scores(self) -> Any:
        space = SearchSpace(**self.space)
        return per_record_scores(self.estimator, space, self.public, self.protected)


def pipeline(**of_encoder: Any) -> Any:
    columns = (StandardScaler(), ["age", "income"]), (OneHotEncoder(**of_encoder), ["job"])
    encoded = make_column_transformer(*columns, remainder="passthrough")
    return make_pipeline(encoded, LogisticRegression())


def framed(
    protected: Any = pd.DataFrame.copy, *, labels: Any = Y[HALF:],
    all_of_it: Any = pd.DataFrame.copy, estimator: Any = None, **how: Any,
) -> Case:  # fmt: skip
    """A pipeline for the data frame, of which something is odd: where protected, or everywhere."""
    frame = all_of_it(FRAME)
    given = (frame[:HALF], Y[:HALF]), (protected(frame[HALF:]), labels)
    return Case(estimator or pipeline(), IN_PIPELINE, *given, **how)


def cell(column: str, value: Any) -> Callable[[pd.DataFrame], pd.DataFrame]:
    """One cell of a protected record; what is no number makes its column one of objects."""

    def change(frame: pd.DataFrame) -> pd.DataFrame:
        kind = frame[column].dtype if isinstance(value, float) else object
        odd = frame[column].astype(kind).where(np.arange(HALF) != ODD, value)
        return frame.assign(**{column: odd})

    return change


dated = partial(pd.DataFrame.assign, since=pd.Timestamp("2020-01-01"))
HOLES = np.where(np.arange(HALF)[:, None] == ODD, np.nan, X[HALF:])
PLAIN: Any = LogisticRegression(), {"C": C}
MIXES = make_pipeline(FunctionTransformer(lambda Z: (Z - Z.mean(0)) / Z.std(0)), PLAIN[0])
TEXT = make_pipeline(StandardScaler(), PLAIN[0])  # without an encoder
ROWS = {
    "logistic regression": Case(*PLAIN),
    "SVC": Case(SVC(), {"C": C}),
    "forest": Case(RandomForestClassifier(5, random_state=0), {"max_depth": Integer(1, 5)}),
    "boosting": Case(HistGradientBoostingClassifier(max_iter=5), {"learning_rate": RATE}),
    "neighbours": Case(KNeighborsClassifier(), {"n_neighbors": Integer(1, 9)}),
    "naive Bayes": Case(GaussianNB(), {"var_smoothing": Real(1e-9, 0.1, log=True)}),
    "network": Case(MLPClassifier((4,), max_iter=9, random_state=0), {"alpha": C}),
    "pipeline": framed(),
    "LightGBM": Case(LGBMClassifier(n_estimators=3, n_jobs=1, verbose=-1), {"learning_rate": RATE}),
    "calibrated": Case(CalibratedClassifierCV(SVC(), cv=2), {"estimator__C": C}),
    "a pipeline that mixes": Case(MIXES, IN_PIPELINE, refused="mixes the records"),
    "a gap": framed(cell("income", np.nan)),
    "NaN in an array": Case(*PLAIN, protected=(HOLES, Y[HALF:])),
    "an unseen category": framed(cell("job", "pilot")),
    "the same, ignored": framed(cell("job", "pilot"), estimator=pipeline(handle_unknown="ignore")),
    "a word among numbers": framed(cell("age", "unknown")),
    "a boolean among objects": framed(cell("member", True)),
    "a text column": framed(estimator=TEXT, refused="could not convert string"),
    "a date column": framed(all_of_it=dated, refused="Timestamp"),
    "repeated rows": framed(lambda frame: frame.iloc[[0] * 20 + list(range(20, HALF))]),
    "lists": Case(*PLAIN, protected=(X[HALF:].tolist(), Y[HALF:].tolist())),
    "a class that is missing": framed(labels=np.zeros(HALF, dtype=int)),
    "labels of another type": framed(labels=np.where(Y[HALF:], "yes", "no"), refused="labels"),
    "the public records again": Case(*PLAIN, protected=PUBLIC, refused="public"),
}


def search(case: Case, ledger: PrivacyLedger) -> None:
    how: Any = {"bounds": (0, 1), "budget": PrivacyBudget(1.0, 1e-6), "evaluations": 3}
    found = bdp.PrivateSearch(case.scores(), SearchSpace(**case.space), **how).run(ledger=ledger)
    assert found.config.value.keys() == case.space.keys()


def search_cv(case: Case, ledger: PrivacyLedger) -> None:
    how: Any = {"public": case.public, "budget": PrivacyBudget(1.0, 1e-6), "n_iter": 3}
    found = PrivateSearchCV(case.estimator, case.space, **how).fit(*case.protected, ledger=ledger)
    assert len(found.predict(case.public[0])) == HALF


def optuna_loop(case: Case, ledger: PrivacyLedger) -> None:
    space, scores = SearchSpace(**case.space), case.scores()
    private = bdp.PrivateObjective.for_budget(
        lambda points: scores(space.decode(points)), bounds=(0.0, 1.0), ledger=ledger,
        evaluations=2, num_records=scores.num_records,
    )  # fmt: skip
    optuna.create_study().optimize(
        lambda trial: report(trial, private, suggest(trial, space), space), n_trials=2
    )


SEARCHES = {"PrivateSearch": search, "PrivateSearchCV": search_cv, "Optuna": optuna_loop}


@pytest.mark.one_in(4)  # all places, and three of four rows
@pytest.mark.parametrize("place", SEARCHES)
@pytest.mark.parametrize("row", ROWS)
def test_an_estimator_and_its_records_work_or_are_refused(row: str, place: str) -> None:
    case, ledger = ROWS[row], PrivacyLedger(budget=PrivacyBudget(9.0, 1e-4))
    outcome(lambda: SEARCHES[place](case, ledger), case.refused, ledger)
    assert bool(ledger.entries()) == (case.refused is None)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("row", [row for row, case in ROWS.items() if case.refused is None])
def test_a_record_has_its_own_score_only(row: str) -> None:
    """That of an estimator which sees it alone; and others keep theirs if it is exchanged."""
    case, places = ROWS[row], np.where(np.arange(HALF) == ODD, 3, np.arange(HALF))
    config = {name: parameter.low for name, parameter in case.space.items()}
    (scores,) = case.scores()([config]).numpy()
    records, labels = (np.asarray(x) if isinstance(x, list) else x for x in case.protected)
    take = getattr(records, "iloc", records)
    fitted = clone(case.estimator).set_params(**config).fit(*case.public)
    for i in range(3):
        assert scores[i] == (fitted.predict(take[i : i + 1])[0] != labels[i])
    given = take[places], labels[places]
    (others,) = Case(case.estimator, case.space, case.public, given).scores()([config]).numpy()
    assert np.array_equal(others[places != 3], scores[places != 3]) and others[ODD] == scores[3]


# --- Private estimators. ---

LIMITS: Any = {"bounds": ([18, -5, 0], [80, 10, 1]), "delta": 1e-4}
Z = np.column_stack([X, FRAME.member])
SAID: dict[str, tuple[Any, Any, str | None]] = {
    "numbers": (Z, Y, None),
    "a frame of numbers": (FRAME.drop(columns="job"), Y, None),
    "NaN in a number": (np.where(Z == Z[ODD], np.nan, Z), Y, None),
    "an infinity": (np.where(Z == Z[ODD], np.inf, Z), Y, None),
    "a missing class": (Z, np.zeros_like(Y), None),
    "text in a column": (FRAME[["age", "income", "job"]], Y, "numbers"),
    "dates in a column": (dated(FRAME[["age", "income"]]), Y, None),
    "rows in lists": (Z.tolist(), Y.tolist(), None),
    "labels of text": (Z, np.where(Y, "yes", "no"), "`y`"),
}
PRIVATE = {
    "DPClassifier": partial(DPClassifier, 3.0, classes=(0, 1), epochs=2, **LIMITS),
    "DPRegressor": partial(DPRegressor, 3.0, target_bounds=(0, 1), epochs=2, **LIMITS),
}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("place", PRIVATE)
@pytest.mark.parametrize("row", SAID)
def test_a_private_estimator_fits_or_refuses(row: str, place: str) -> None:
    (features, targets, refused), ledger = SAID[row], PrivacyLedger(budget=PrivacyBudget(9.0, 1e-3))
    made = PRIVATE[place]()
    outcome(lambda: made.fit(features, targets, ledger=ledger), refused, ledger)
    assert len(ledger.entries()) == (refused is None)
    assert refused is not None or np.isfinite(made.predict(features)).all()
