"""One record, one number: whatever a record is exchanged for, all others' numbers stay the same.

Nothing raises, warns or changes its type. Every function that turns records into something that is
later released has a subject here; to cover another one, add a subject to ``SUBJECTS`` and, if its
records come under another name, that name to ``RECORD_ARGUMENTS``.
"""

from __future__ import annotations

import importlib
import inspect
import math
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import pandas as pd
import pytest
import torch
from gpytorch.kernels import RBFKernel
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.compose import make_column_transformer
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder
from sklearn.svm import SVC
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector
from torch.utils.data import DataLoader

from botorch_dp.descent import DPGIBO, private_start
from botorch_dp.estimator_scores import per_record_scores
from botorch_dp.groups import Groups
from botorch_dp.integrations.columns import Table
from botorch_dp.integrations.estimators import DPClassifier, DPRegressor, PrivateScaler
from botorch_dp.integrations.opacus import PrivacyEngine
from botorch_dp.objectives import PrivateObjective
from botorch_dp.privacy import PrivacyBudget, Release
from botorch_dp.privacy.runs import Run
from botorch_dp.scores import AUC, F1, GroupScores, as_numbers, checked_scores
from botorch_dp.space import Choice, Integer, Real, SearchSpace
from botorch_dp.training import (
    DPTrainer,
    OutputPerturbedLogisticRegression,
    TrainTest,
    cross_entropy_loss,
    logistic_loss,
    multilayer_perceptron,
)
from botorch_dp.training.calls import correct_alone
from botorch_dp.training.ranges import bin_counts, private_norm, private_ranges, sorted_columns
from botorch_dp.training.records import DatasetRecords, TrainingRecords
from botorch_dp.tuning import PrivateSearch
from botorch_dp.tuning.private_fit import ScoredTraining
from botorch_dp.tuning.routes.base import ScoreTable
from botorch_dp.tuning.routes.slope import clip_norm, clipped_slopes, slope_weights
from botorch_dp.tuning.trials import ScoreNoise
from tests.training.helpers import clipped_sum_of

N = 30
RNG = np.random.default_rng(0)
X = RNG.uniform(-1, 1, (2 * N, 3))
Y = (X[:, 0] + 0.3 * X[:, 1] > 0).astype(int)
TRAIN, RECORDS = (X[:N], Y[:N]), list(zip(X[N:].tolist(), Y[N:].tolist(), strict=True))


class Raises:
    """A value that nobody can do anything with."""

    def _refuse(self, *_: object) -> Any:
        raise ZeroDivisionError("a record's doing")

    __float__ = __eq__ = __lt__ = __hash__ = __len__ = __str__ = _refuse  # type: ignore[assignment]


#: What a number may be exchanged for.
STRANGE: dict[str, Any] = {
    "missing": None,
    "NaN": math.nan,
    "infinite": math.inf,
    "negative infinite": -math.inf,
    "enormous": 1e300,
    "beyond 64 bits": 2**70,
    "beyond doubles": 10**400,
    "text": "unknown",
    "text of a number": "1.0",
    "complex": 1j,
    "another length": [1.0, 2.0],
    "an array": np.ones(2),
    "missing in pandas": pd.NA,
    "raises": Raises(),
}
FLOATS = {name: STRANGE[name] for name in ("NaN", "infinite", "negative infinite", "enormous")}
#: What has a text, as a label or a cell of a column of texts must.
TEXTS = {name: value for name, value in STRANGE.items() if name != "raises"}


@dataclass(frozen=True)
class Subject:
    """Something that makes numbers of records.

    Args:
        covers: Names of the functions that it goes through.
        numbers: From all records to an array whose last axis counts them, or to one total.
        records: What to begin with.
        strange: What one of them is exchanged for, by name.
        sensitivity: By how much the total moves at most, in its l2 norm; None where each record has
            numbers.
        rounding: By what share of it rounding may add to that.
        movable: Whether records may also be added and removed.
    """

    covers: tuple[str, ...]
    numbers: Callable[[list[Any]], Any]
    records: list[Any]
    strange: dict[str, Any]
    sensitivity: float | None = None
    rounding: float = 1e-9
    movable: bool = False


# --- Estimators. ---


class Moody(ClassifierMixin, BaseEstimator):
    """A user's estimator, which raises, or answers with something else, for some records."""

    def __init__(self, level: float = 0.0) -> None:
        self.level = level

    def fit(self, X: Any, y: Any) -> Moody:
        self.classes_ = np.unique(y)
        return self

    def predict(self, X: Any) -> Any:
        rows = np.asarray(X)
        if (rows[:, 0] == 13).any():
            raise RuntimeError("13")
        found: list[Any] = [int(row[0] > self.level) for row in rows]
        for index, answer in ((14, None), (15, "yes"), (16, math.inf), (17, 2**80)):
            found = [answer if row[0] == index else f for row, f in zip(rows, found, strict=True)]
        if (rows[:, 0] == 19).any():
            warnings.warn("19", stacklevel=1)
        return [f for row, f in zip(rows, found, strict=True) if row[0] != 18]


def odd_loss(y: Any, predicted: Any) -> Any:
    """A user's loss, which raises for one label and forgets another one."""
    if (y == 5).any():
        raise ValueError("5")
    return [None if label == 6 else abs(p - label) for label, p in zip(y, predicted, strict=True)]


def scored(
    estimator: Any,
    space: SearchSpace,
    loss: Any,
    train: Any = TRAIN,
    table: Callable[[list[Any]], Any] = np.array,
    labels: Callable[[list[Any]], Any] = list,
) -> Callable[[list[Any]], Any]:
    config = {name: parameter.levels(3)[1] for name, parameter in space.parameters.items()}

    def numbers(records: list[Any]) -> Any:
        validation = table([x for x, _ in records]), labels([y for _, y in records])
        return per_record_scores(estimator, space, train, validation, loss)([config])

    return numbers


COST = SearchSpace(C=Real(0.1, 10.0, log=True))
LEVEL = SearchSpace(level=Real(-0.5, 0.5))
LABELS = {name: ([0.5, 0.5, 0.5], value) for name, value in STRANGE.items()}
ODD_FLOATS = {name: ([0.1, value, 0.2], 1) for name, value in FLOATS.items()}
MOODS = {f"mood {n}": ([float(n), 0.0, 0.0], 1) for n in range(13, 20)}

FRAME = pd.DataFrame(X, columns=list("abc")).assign(
    text=np.where(Y, "yes", "no"), kind=pd.Categorical(np.where(X[:, 1] > 0, "u", "v"))
)
CELLS = [[*row, "yes" if y else "no", "u" if row[1] > 0 else "v"] for row, y in RECORDS]
TABLE = [(row, y) for row, (_, y) in zip(CELLS, RECORDS, strict=True)]
ODD_CELLS = {
    f"{column}: {name}": ([*CELLS[0][:place], value, *CELLS[0][place + 1 :]], 1)
    for place, column, values in (
        (1, "number", STRANGE),
        (3, "text", TEXTS),
        (4, "category", {"missing": None, "unknown": "w"}),
    )
    for name, value in values.items()
}


def frame(rows: list[Any]) -> pd.DataFrame:
    columns = {name: [row[i] for row in rows] for i, name in enumerate(FRAME.columns)}
    return pd.DataFrame({**columns, "kind": pd.Categorical(columns["kind"])})


DOCUMENTS = [("good film" if y else "bad film", y) for _, y in RECORDS]
SCORES = (
    "botorch_dp.estimator_scores.per_record_scores",
    "botorch_dp.estimator_scores.EstimatorScores",
)

SUBJECTS: dict[str, Subject] = {
    **{
        f"{loss}, labels in a list": Subject(
            SCORES, scored(LogisticRegression(), COST, loss), RECORDS, ODD_FLOATS | LABELS
        )
        for loss in ("zero_one", "log", "roc_auc")
    },
    "squared, labels in a list": Subject(
        SCORES, scored(Ridge(), SearchSpace(alpha=Real(0.1, 1.0)), "squared"), RECORDS, LABELS
    ),
    **{
        f"{type(estimator).__name__}, an array": Subject(
            SCORES, scored(estimator, space, "zero_one", labels=np.array), RECORDS, ODD_FLOATS
        )
        for estimator, space in (
            (SVC(), COST),
            (HistGradientBoostingClassifier(max_iter=2), SearchSpace(max_depth=Choice(1, 2, 3))),
        )
    },
    "text labels": Subject(
        SCORES,
        scored(LogisticRegression(), COST, "zero_one", train=(X[:N], np.array(["n", "y"])[Y[:N]])),
        [(x, "y" if y else "n") for x, y in RECORDS],
        {name: ([0.5, 0.5, 0.5], v) for name, v in TEXTS.items() if np.ndim(v) == 0},
    ),
    "a user's estimator": Subject(SCORES, scored(Moody(), LEVEL, "zero_one"), RECORDS, MOODS),
    "a user's estimator and loss": Subject(
        SCORES, scored(Moody(), LEVEL, odd_loss), RECORDS, MOODS | LABELS | {"5": ([0.1] * 3, 5)}
    ),
    "a data frame": Subject(
        SCORES,
        scored(
            make_pipeline(
                make_column_transformer(
                    (OneHotEncoder(), ["text", "kind"]), remainder="passthrough"
                ),
                LogisticRegression(),
            ),
            SearchSpace(logisticregression__C=Real(0.1, 10.0, log=True)),
            "zero_one",
            train=(FRAME[:N], Y[:N]),
            table=frame,
        ),
        TABLE,
        ODD_CELLS,
    ),
    "documents": Subject(
        SCORES,
        scored(
            make_pipeline(CountVectorizer(), LogisticRegression()),
            SearchSpace(logisticregression__C=Real(0.1, 10.0, log=True)),
            "zero_one",
            train=(["good film", "bad film"] * 5, [1, 0] * 5),
            table=list,
        ),
        DOCUMENTS,
        {name: (value, 1) for name, value in STRANGE.items()},
    ),
}

# --- Scores that a user computes. ---

VALUES: list[Any] = RNG.uniform(0, 1, N).tolist()


def as_objects(records: list[Any]) -> Any:
    """``2 x n`` scores, as a user might return them."""
    table = np.empty((2, len(records)), dtype=object)
    for place, value in enumerate(records):
        table[0, place] = table[1, place] = value
    return table


def moved_objective(records: list[Any]) -> float:
    objective = PrivateObjective(
        lambda X: as_objects(records)[: len(X)], bounds=(0.0, 1.0), mu=1.0, unsafe_seed=1
    )
    Y, _ = objective(np.zeros((1, 1)))
    return float(Y[0, 0]) * N


def of_pairs(records: list[Any]) -> float:
    """Two records are one person's; the one that is exchanged has half of a score."""
    pairs = Groups(np.arange(N) // 2, N)
    scores = GroupScores(lambda _: as_objects(records), pairs, (0.0, 1.0), 0.0)
    return float(scores("ab")[0].sum())


def search_of(records: list[Any]) -> PrivateSearch:
    return PrivateSearch(
        lambda configs: as_objects(records)[[0] * len(configs)],
        SearchSpace(x=Real(0.0, 1.0)),
        bounds=(0.0, 1.0),
        budget=PrivacyBudget(1.0),
        evaluations=2,
        num_records=N,
        unsafe_seed=1,
    )


def table_of(records: list[Any]) -> Any:
    search = search_of(records)
    assert set(search.run().config.value) == {"x"}
    with Run(None, what="a search", settings={}) as run:
        table = ScoreTable(search.settings, search.record_scores, run, lambda _: None)
        return table.losses(0, [{"x": 0.5}])


def sloped(records: list[Any]) -> float:
    """A slope, of a record's losses at two points of a line."""
    table = as_objects(records)
    table[1] = table[1][::-1]
    settings = search_of(records).settings
    with Run(None, what="a search", settings={}) as run:
        losses = ScoreTable(settings, lambda configs: table[: len(configs)], run, lambda _: None)
        rows = losses.losses(0, [{"x": 0.0}, {"x": 1.0}])
    weights = slope_weights(torch.tensor([[0.0], [1.0]]).double())
    return float(clipped_slopes(weights, [rows]).value()[0]) * N


def descended(records: list[Any]) -> float:
    """The gradient of a step, which is a record's losses at two points of a line."""
    table = as_objects(records)
    table[1] = table[1][::-1]  # two different rows, also of the exchanged record
    run = DPGIBO(
        lambda X: table[: len(X)],
        torch.zeros(1).double(),
        kernel=RBFKernel().double(),
        mu=1.0,
        steps=1,
        clip_norm=0.5,
        step_size=1.0,
        unsafe_seed=1,
    )
    return float(run.step().value[0]) * N


def started(records: list[Any]) -> float:
    start = private_start(
        lambda X: as_objects(records)[[0] * len(X)],
        box=torch.tensor([[0.0], [1.0]]).double(),
        bounds=(0.0, 1.0),
        mu=1.0,
        num_points=3,
        seed=1,
        unsafe_seed=1,
    )
    return float(start.value[0])


F1_LABELS = [int(i % 3 == 0) for i in range(N)]
F1_STATISTIC = F1(F1_LABELS, labels_are_public=True)

SUBJECTS |= {
    "as_numbers": Subject(("botorch_dp.scores.as_numbers",), as_numbers, VALUES, STRANGE),
    "checked_scores": Subject(
        ("botorch_dp.scores.checked_scores",),
        lambda records: checked_scores(as_objects(records), num_points=2, num_records=N),
        VALUES,
        STRANGE,
    ),
    "PrivateObjective": Subject(
        ("botorch_dp.objectives.PrivateObjective",), moved_objective, VALUES, STRANGE, 1.0
    ),
    "scores of people": Subject(("botorch_dp.scores.GroupScores",), of_pairs, VALUES, STRANGE, 0.5),
    "PrivateSearch": Subject(
        ("botorch_dp.tuning.private_search.PrivateSearch",), table_of, VALUES, STRANGE
    ),
    # The exchanged record and the one whose second loss it takes: two of them.
    "a slope of a search": Subject(
        ("botorch_dp.tuning.routes.slope.clipped_slopes",),
        sloped,
        VALUES,
        STRANGE,
        4 * clip_norm(1),
    ),
    "DPGIBO": Subject(
        ("botorch_dp.descent.dp_gibo.DPGIBO",), descended, VALUES, STRANGE, 2 * 2 * 0.5
    ),
    "private_start": Subject(
        ("botorch_dp.descent.start.private_start",), started, VALUES, STRANGE, 1.0
    ),
    "AUC": Subject(
        ("botorch_dp.scores.AUC",),
        lambda records: AUC(records).units(torch.linspace(0, 1, N)),
        [int(v > 0.5) for v in VALUES],
        STRANGE,
        AUC([0, 1] * (N // 2)).sensitivity,
    ),
    "F1": Subject(
        ("botorch_dp.scores.F1",),
        lambda predictions: F1_STATISTIC.units(torch.from_numpy(as_numbers(predictions))),
        [0.9 if label else 0.1 for label in F1_LABELS],
        STRANGE,
        F1_STATISTIC.sensitivity,
    ),
}

# --- Training. ---


class Tokens(nn.Module):
    """Raises an error for a token that does not exist."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.bag = nn.Linear(3, 1), nn.EmbeddingBag(10, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x) + self.bag((100 * (x[:, 1:2] > 5)).long())


class Branching(nn.Module):
    """Cannot be vectorized, and raises an error for some records."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        if bool(x[0, 1] > 5):
            raise RuntimeError("a record's doing")
        return self.linear(x)


def made(factory: Callable[[], nn.Module]) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return factory()


def tensors(records: list[Any]) -> tuple[Tensor, Tensor]:
    rows = torch.tensor([[float(cell) for cell in row] for row, _ in records])
    return rows, torch.tensor([label for _, label in records])


#: Records whose form is that of all others, as tensors have it.
ODD_TENSORS = {
    **ODD_FLOATS,
    "a token that does not exist": ([0.1, 50.0, 0.2], 1),
    "no class": ([0.1, 0.3, 0.2], 77),
    "a negative class": ([0.1, 0.3, 0.2], -(2**40)),
}


def right(model: nn.Module) -> Callable[[list[Any]], Any]:
    def numbers(records: list[Any]) -> Any:
        X, Y = tensors(records)
        return correct_alone(model, TrainingRecords(X, Y, None)).int()

    return numbers


def scored_right(records: list[Any]) -> float:
    """The count that gets noise, in a private fit."""
    X, Y = tensors(records)
    data = TrainTest(X[:2] * 0, Y[:2] * 0, X, Y)
    trainer = DPTrainer(partial(nn.Linear, 3, 1), logistic_loss, data)
    score = ScoredTraining(trainer, "sensitive", {}, 1e-5).score(made(Tokens))
    with mock.patch("botorch_dp.tuning.trials.gaussian_mechanism") as noise:
        noise.side_effect = lambda mean, **_: Release(mean, None)
        return round(ScoreNoise(1.0, len(records)).noisy(score, None) * len(records), 9)


def clipped(factory: Callable[[], nn.Module], **options: Any) -> Callable[[list[Any]], Any]:
    """The sum of clipped gradients of all records, in one batch."""
    like = options.pop("like", None)

    def numbers(records: list[Any]) -> Any:
        public = torch.zeros(2, 3), torch.zeros(2).long()
        pairs = list(zip(*public, strict=True))
        data: Any = TrainTest(*tensors(records), *public) if like is None else (records, pairs)
        trainer = DPTrainer(lambda: made(factory), cross_entropy_loss, data, like=like, **options)
        sums = clipped_sum_of(trainer, made(factory), torch.arange(len(records)), 0.5)
        return torch.cat([part.flatten() for part in sums]).numpy()

    return numbers


def looped(records: list[Any]) -> Any:
    """The sum of clipped gradients that a step of an Opacus loop takes, without its noise."""
    model = made(NETWORK)
    before = parameters_to_vector(model.parameters()).detach().double()
    private, optimizer, loader = PrivacyEngine(
        unsafe_seed=0, like=(torch.zeros(3), 0)
    ).make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=1.0),
        data_loader=DataLoader(records, batch_size=len(records)),  # type: ignore[arg-type]
        noise_multiplier=0.0,
        max_grad_norm=0.5,
    )
    for inputs, labels in loader:
        cross_entropy_loss(private(inputs), labels).mean().backward()
        optimizer.step()
    after = parameters_to_vector(model.parameters()).detach().double()
    return ((before - after) * len(records)).numpy()


def published(records: list[Any]) -> float:
    """Nothing raises or warns; that the model's law moves little follows from the sums."""
    public = torch.zeros(2, 3), torch.zeros(2).long()
    data = TrainTest(*tensors(records), *public)
    trainer = DPTrainer(partial(nn.Linear, 3, 2), cross_entropy_loss, data)
    settings: Any = {"learning_rate": 0.1, "clip_norm": 1.0, "noise_multiplier": 4.0}
    trained = trainer.fit(publish=True, batch_size=10, epochs=1, **settings)
    assert all(bool(p.isfinite().all()) for p in trained.model.parameters())
    return 0.0


def descended_weights(records: list[Any]) -> Any:
    X, Y = tensors(records)
    trainer = OutputPerturbedLogisticRegression(TrainTest(X, Y, X[:2] * 0, Y[:2] * 0), epochs=3)
    return trainer._descend(0.1, [0], dtype=torch.double)[0].numpy()


def taken(records: list[Any]) -> Any:
    """What a data set's records come to: inputs, target and whether they count."""
    data = DatasetRecords(records, (torch.zeros(3), 0), num_classes=2)
    X, Y, usable = data.take(torch.arange(len(records)))
    assert isinstance(X, Tensor)
    return torch.cat([X.double(), Y.double()[:, None], usable.double()[:, None]], dim=1).T.numpy()


class Augmenting:
    """Draws random numbers when it is read, more of them for some records."""

    def __init__(self, records: list[Any]) -> None:
        self.records = records

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, place: int) -> Any:
        x, y = self.records[place]
        return x + np.random.normal(size=3 + y)[:3].astype("float32"), y


def named(records: list[Any]) -> list[Any]:
    """Records that are mappings, whatever a pair is."""
    return [
        {"x": r[0], "labels": r[1], "text": "?"} if isinstance(r, tuple) else r for r in records
    ]


class First(nn.Linear):
    """Takes its input by a name, and returns more than its outputs."""

    def forward(self, x: Tensor) -> Any:
        return SimpleNamespace(logits=super().forward(x))


FIRST = made(partial(First, 3, 2))


def scored_in_data_set(records: list[Any]) -> Any:
    data = DatasetRecords(named(records), {"x": torch.zeros(3), "labels": 0}, num_classes=2)
    return correct_alone(FIRST, data).int()


def reaching(estimator: Any) -> Callable[[list[Any]], Any]:
    """The records that an estimator trains on, one column each; and the fit is made to its end."""

    def numbers(records: list[Any]) -> Any:
        kind, seen = type(estimator), []
        real = kind._trainer

        def trainer(self: Any, X: Tensor, Y: Tensor, *how: Any) -> DPTrainer:
            seen.append((X, Y))
            return real(self, X, Y, *how)

        rows, labels = zip(*records, strict=True)
        with mock.patch.object(kind, "_trainer", trainer):
            clone(estimator).fit(np.array(rows), np.array(labels))
        X, Y = seen[-1]
        Y = Y.double().view(len(records), 1)
        return torch.cat([X.double(), Y], dim=1).T.nan_to_num(77.0).numpy()

    return numbers


def binned(records: list[Any]) -> Any:
    """The counts of a round of private ranges; and the release is made to its end."""
    table = np.array([row for row, _ in records])
    private_ranges(table, mu=1.0, unsafe_seed=0)
    private_norm(torch.from_numpy(table), mu=1.0, unsafe_seed=0)
    return bin_counts(sorted_columns(table), np.tile([-1e300, -0.5, 0.0, 0.5], (3, 1))).ravel()


def tabulated(records: list[Any]) -> Any:
    """The numbers that a table becomes; and a scaler is fitted to it to its end."""
    table = np.array([row for row, _ in records])
    PrivateScaler(9.0, unsafe_seed=0).fit(table).transform(table)
    return Table(PrivateScaler(), table).numbers().T


TRAINED: dict[str, Any] = {"delta": 1e-3, "bounds": (-1.0, 1.0), "epochs": 1, "unsafe_seed": 1}
ESTIMATORS = {
    "DPClassifier": DPClassifier(5.0, classes=(0, 1), **TRAINED),
    "DPRegressor": DPRegressor(5.0, target_bounds=(0.0, 1.0), **TRAINED),
}
TRAINING = "botorch_dp.training"
SUMS = (f"{TRAINING}.trainer.DPTrainer", f"{TRAINING}.records.TrainingRecords")
#: Records that a data set may give, one of them for another one.
ODD_READINGS: dict[str, Any] = {
    **{name: (torch.tensor(row), 1) for name, (row, _) in ODD_FLOATS.items()},
    **{f"label: {name}": (torch.zeros(3), value) for name, value in STRANGE.items()},
    **{f"inputs: {name}": (value, 1) for name, value in STRANGE.items()},
    "another type": (torch.zeros(3).double(), 1),
    "another shape": (torch.zeros(1, 3), 1),
    "a label that is no integer": (torch.zeros(3), 1.0),
    "no class": (torch.zeros(3), 77),
    "inputs by name": ({"a": torch.zeros(3)}, 1),
    "three parts": (torch.zeros(3), 1, 2),
    "no record": None,
    "a record that raises": Raises(),
    "read-only": (np.zeros(3, dtype=np.float32), 1),
}
ODD_READINGS["read-only"][0].flags.writeable = False
READINGS = [(torch.tensor(row), label) for row, label in RECORDS]
NETWORK = partial(multilayer_perceptron, 3, 2, (4,))

SUBJECTS |= {
    **{
        f"test scores, {type(model).__name__}": Subject(
            (f"{TRAINING}.calls.correct_alone",), right(model), RECORDS, ODD_TENSORS, movable=True
        )
        for model in (made(Tokens), made(Branching), made(NETWORK))
    },
    "private ranges": Subject(
        (f"{TRAINING}.ranges.private_ranges", f"{TRAINING}.ranges.private_norm"),
        binned,
        RECORDS,
        ODD_FLOATS,
        math.sqrt(6),
    ),
    "a private scaler": Subject(
        (
            "botorch_dp.integrations.estimators.PrivateScaler",
            "botorch_dp.integrations.columns.Table",
        ),
        tabulated,
        RECORDS,
        ODD_FLOATS,
        movable=True,
    ),
    "a private fit's score": Subject(
        (
            "botorch_dp.tuning.trials.ScoreNoise",
            "botorch_dp.tuning.trials.train_and_score",
            "botorch_dp.tuning.trials.train_once",
            "botorch_dp.tuning.private_fit.PrivateFit",
            "botorch_dp.tuning.private_fit.ScoredTraining",
        ),
        scored_right,
        RECORDS,
        ODD_TENSORS,
        1.0,
    ),
    **{
        f"clipped sums, {how}": Subject(
            SUMS, clipped(NETWORK, **{name: how}), RECORDS, ODD_TENSORS, 2 * 0.5, rounding=1e-5
        )
        for name, how in (
            *(("engine", "fused"), ("engine", "ghost"), ("engine", "per_record")),
            ("clipping", "normalized"),
        )
    },
    "clipped sums, a data set": Subject(
        (*SUMS[:1], f"{TRAINING}.records.DatasetRecords"),
        clipped(NETWORK, like=(torch.zeros(3), 0)),
        READINGS,
        ODD_READINGS,
        2 * 0.5,
        rounding=1e-5,
    ),
    "a step of an Opacus loop": Subject(
        ("botorch_dp.integrations.opacus.PrivacyEngine", f"{TRAINING}.records.DatasetRecords"),
        looped,
        READINGS,
        dict(list(ODD_READINGS.items())[::4]),  # all of them go through `taken`
        2 * 0.5,
        rounding=1e-5,
    ),
    "a data set's records": Subject(
        (f"{TRAINING}.records.DatasetRecords",), taken, READINGS, ODD_READINGS, movable=True
    ),
    "an augmenting data set's records": Subject(
        (f"{TRAINING}.records.DatasetRecords",),
        lambda records: taken(Augmenting(records)),  # type: ignore[arg-type]
        READINGS,
        ODD_READINGS,
        movable=True,
    ),
    "scores of a data set's records by name": Subject(
        (f"{TRAINING}.calls.correct_alone", f"{TRAINING}.records.DatasetRecords"),
        scored_in_data_set,
        READINGS,
        ODD_READINGS,
        movable=True,
    ),
    "a published training": Subject(SUMS, published, RECORDS, ODD_TENSORS, 0.0),
    "output perturbation": Subject(
        (f"{TRAINING}.output_perturbation.OutputPerturbedLogisticRegression",),
        descended_weights,
        RECORDS,
        ODD_TENSORS,
        4 / (0.1 * N),
    ),
    **{
        name: Subject(
            (
                f"botorch_dp.integrations.estimators.{name}",
                "botorch_dp.integrations.columns.places_of",
            ),
            reaching(each),
            RECORDS,
            ODD_TENSORS,
        )
        for name, each in ESTIMATORS.items()
    },
    "a private estimator in a score": Subject(
        (*SCORES, "botorch_dp.estimator_scores.equal_labels"),
        scored(
            DPClassifier(5.0, classes=(0, 1), **TRAINED),
            SearchSpace(epochs=Integer(1, 3)),
            "zero_one",
        ),
        RECORDS,
        ODD_FLOATS | LABELS,
    ),
}


def quietly(numbers: Callable[[list[Any]], Any], records: list[Any]) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return numbers(list(records))


def check_exchange(subject: Subject, other: Any, reference: Any) -> None:
    """Exchange the first record, which is as any other one, or one in the middle."""
    for place in (0, N // 2):
        records = list(subject.records)
        records[place] = other
        found = quietly(subject.numbers, records)
        if subject.sensitivity is not None:
            moved = np.linalg.norm(np.atleast_1d(np.subtract(found, reference)))
            assert moved <= subject.sensitivity * (1 + subject.rounding)
            continue
        assert found.dtype == reference.dtype and found.shape == reference.shape
        kept = [i for i in range(N) if i != place]
        ours, theirs = (np.ascontiguousarray(np.asarray(t)[..., kept]) for t in (found, reference))
        assert ours.tobytes() == theirs.tobytes()


def check_addition(subject: Subject) -> None:
    """Remove a record, or add many: sizes of blocks, and sizes around them."""
    whole = np.asarray(quietly(subject.numbers, subject.records))
    for place in (0, 1, N // 2, N - 1):
        kept = [i for i in range(N) if i != place]
        fewer = np.asarray(quietly(subject.numbers, [subject.records[i] for i in kept]))
        ours, theirs = (np.ascontiguousarray(t) for t in (fewer, whole[..., kept]))
        assert ours.dtype == theirs.dtype and ours.tobytes() == theirs.tobytes()
    for many in (16, 17, 255, 256, 257, 600):
        more = [subject.records[i % N] for i in range(many)]
        found = np.asarray(quietly(subject.numbers, more))
        ours = np.ascontiguousarray(found[..., : min(N, many)])
        assert ours.tobytes() == np.ascontiguousarray(whole[..., : min(N, many)]).tobytes()


def cases() -> Iterator[Any]:
    """All of them; those that are not slow are other ones for each subject, one in twelve."""
    for number, (name, subject) in enumerate(SUBJECTS.items()):
        first = (number + 7) % min(12, len(subject.strange))
        for place, other in enumerate(subject.strange):
            marks = () if place % 12 == first else pytest.mark.slow
            yield pytest.param(name, other, marks=marks)


@pytest.fixture(scope="module")
def before() -> dict[str, Any]:
    return {}


@pytest.mark.parametrize(("name", "other"), list(cases()))
def test_exchanging_a_record_changes_no_other_number(
    name: str, other: str, before: dict[str, Any]
) -> None:
    subject = SUBJECTS[name]
    if name not in before:
        before[name] = quietly(subject.numbers, subject.records)
    check_exchange(subject, subject.strange[other], before[name])


@pytest.mark.parametrize("name", [name for name, each in SUBJECTS.items() if each.movable])
def test_adding_or_removing_a_record_changes_no_other_number(name: str) -> None:
    check_addition(SUBJECTS[name])


@pytest.mark.parametrize(
    ("broken", "other"),
    [
        (lambda records: np.asarray(records), "text"),  # the type of all
        (lambda records: np.asarray(records, dtype=float), "missing in pandas"),  # raises
        (lambda records: as_numbers(records) - np.nanmean(as_numbers(records)), "enormous"),
        (lambda records: np.log(as_numbers(records)), "negative infinite"),  # warns
        (lambda records: as_numbers([r for r in records if r is not None]), "missing"),
    ],
)
def test_what_is_broken_is_caught(broken: Callable[[list[Any]], Any], other: str) -> None:
    subject = Subject((), broken, VALUES, STRANGE)
    with pytest.raises((AssertionError, TypeError, RuntimeWarning)):
        check_exchange(subject, STRANGE[other], broken(VALUES))


def test_what_counts_records_is_caught() -> None:
    with pytest.raises(AssertionError):
        check_addition(Subject((), lambda records: as_numbers(records) / len(records), VALUES, {}))


def test_records_on_a_boundary_do_not_change_sides_together() -> None:
    """Prediction rounds by the shape of its table; one missing value must not change the shape."""
    rng, d, n = np.random.default_rng(0), 37, 400
    train_X = rng.standard_normal((300, d))
    train_Y = (train_X[:, 0] + 0.3 * rng.standard_normal(300) > 0).astype(int)
    model = LogisticRegression(C=1.0).fit(train_X, train_Y)
    w, b = model.coef_[0], model.intercept_[0]
    for _ in range(20_000):
        x = rng.standard_normal(d)
        x -= (x @ w + b) * w / (w @ w)
        table = np.repeat(x[None], n, axis=0)
        together = set(model.predict(table))
        if len(together) == 1 and together != set(model.predict(table[:1])):
            break
    else:
        pytest.skip("on this machine, rounding does not depend on the shape")
    frames = [pd.DataFrame(t.copy()) for t in (train_X, table, table)]
    frames[2].iloc[0, 0] = np.nan
    labels = np.full(n, model.predict(table)[0])
    D, neighbour = (
        per_record_scores(LogisticRegression(), COST, (frames[0], train_Y), (f, labels))(
            [{"C": 1.0}]
        )
        for f in frames[1:]
    )
    assert torch.equal(D[:, 1:], neighbour[:, 1:]) and neighbour[0, 0].isnan()


# --- The list is complete. ---

#: Modules whose functions and classes take records, and the names under which they take them.
MODULES = (
    *("scores", "estimator_scores", "objectives", "release.choice", "descent.dp_gibo"),
    *("descent.start", "tuning.private_search", "tuning.private_fit", "tuning.trials"),
    *("training.ranges", "training.records", "training.calls", "training.inputs"),
    *("training.isolation", "training.trainer", "training.output_perturbation"),
    *("integrations.columns", "integrations.estimators", "integrations.sklearn"),
)
RECORD_ARGUMENTS = {"record_losses", "record_scores", "validation", "labels", "make_scores"}
#: The same in training.
RECORD_ARGUMENTS |= {"data", "dataset", "X", "trainer", "trainer_or_problem"}
#: What is for public records, or compares records to find out whether it may be trusted.
NOT_RELEASED = {
    "botorch_dp.descent.start.public_clip_norm",
    "botorch_dp.scores.check_per_record",
    # Its records go to PrivateSearch.
    "botorch_dp.integrations.sklearn.PrivateSearchCV",
}


def takes_records() -> set[str]:
    found = set()
    for name in MODULES:
        module = importlib.import_module(f"botorch_dp.{name}")
        for member in vars(module).values():
            is_ours = getattr(member, "__module__", "") == module.__name__ and callable(member)
            if is_ours and inspect.isroutine(member) and not member.__name__.startswith("_"):
                parameters = set(inspect.signature(member).parameters)
            elif is_ours and inspect.isclass(member) and not getattr(member, "_is_protocol", False):
                methods = ("release", "fit", "transform", "score")
                calls = (member, *(getattr(member, name, member) for name in methods))
                parameters = {name for call in calls for name in inspect.signature(call).parameters}
            else:
                continue
            if RECORD_ARGUMENTS & parameters:
                found.add(f"{module.__name__}.{member.__name__}")
    return found


#: Helpers of these that only look at public facts of a function of records.
PUBLIC_FACTS = {
    *(f"botorch_dp.scores.{name}" for name in ("known_num_records", "scores_and_unit")),
    *("botorch_dp.scores.warn_of_narrow_bounds", "botorch_dp.objectives.Evaluations"),
    *("botorch_dp.integrations.columns.described", f"{TRAINING}.calls.call"),
    *(f"{TRAINING}.inputs.{name}" for name in ("arguments", "count", "each_part", "parts", "rows")),
    *(f"{TRAINING}.isolation.check_{name}" for name in ("contributions", "evaluation", "model")),
    *(f"{TRAINING}.isolation.{name}" for name in ("agree", "examine", "random_records")),
    *(f"{TRAINING}.records.{name}" for name in ("check_data", "datasets_of", "own_generators")),
    *(f"{TRAINING}.records.{name}" for name in ("synthetic_records", "why_unpublishable")),
}


def test_every_function_that_takes_records_is_covered() -> None:
    covered = {name for subject in SUBJECTS.values() for name in subject.covers}
    assert takes_records() - NOT_RELEASED - PUBLIC_FACTS <= covered
    assert NOT_RELEASED | PUBLIC_FACTS <= takes_records()
