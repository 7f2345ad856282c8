"""Losses of single validation records for an estimator's configurations."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import sparse
from sklearn.calibration import CalibratedClassifierCV
from sklearn.decomposition import PCA
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.experimental import enable_iterative_imputer  # noqa: F401
from sklearn.gaussian_process import GaussianProcessClassifier
from sklearn.impute import IterativeImputer, KNNImputer, SimpleImputer
from sklearn.linear_model import BayesianRidge, LogisticRegression, Ridge
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, OneHotEncoder, StandardScaler
from sklearn.svm import SVC

from botorch_dp import PrivacyBudget, PrivateSearch
from botorch_dp.errors import PrivacyError
from botorch_dp.objectives import per_record_scores
from botorch_dp.space import Choice, Integer, Real, SearchSpace
from botorch_dp.tuning.routes.selection import SelectionRoute

RNG = np.random.default_rng(0)
X = RNG.normal(size=(60, 3))
Y = (X[:, 0] + 0.3 * RNG.normal(size=60) > 0).astype(int)
TRAIN, VALIDATION = (X[:30], Y[:30]), (X[30:], Y[30:])
SPACE = SearchSpace(C=Real(0.01, 100.0, log=True))
CONFIGS = [{"C": 0.1}, {"C": 10.0}]


def fitted(config, estimator=LogisticRegression):
    return estimator(**config).fit(*TRAIN)


def any_space(estimator):
    """A parameter of the estimator, which keeps its value."""
    name, value = next((n, v) for n, v in estimator.get_params().items() if isinstance(v, str))
    return SearchSpace(**{name: Choice(value)})


@pytest.mark.parametrize("loss", ["zero_one", "brier", "log", "squared", "absolute"])
def test_losses_are_those_of_the_fitted_estimator(loss):
    scores = per_record_scores(LogisticRegression(), SPACE, TRAIN, VALIDATION, loss)
    table = scores(CONFIGS)
    assert table.shape == (2, 30) and scores.num_records == 30
    for config, row in zip(CONFIGS, table, strict=True):
        model = fitted(config)
        error = model.predict(VALIDATION[0]) - VALIDATION[1]
        wanted = {
            "zero_one": error != 0,
            "brier": (model.predict_proba(VALIDATION[0])[:, 1] - VALIDATION[1]) ** 2,
            "log": -model.predict_log_proba(VALIDATION[0])[np.arange(30), VALIDATION[1]],
            "squared": error**2,
            "absolute": abs(error),
        }[loss]
        assert np.allclose(row, wanted)


@pytest.mark.parametrize(
    ("estimator", "loss", "jumps"),
    [
        (make_pipeline(StandardScaler(), KNeighborsClassifier()), "zero_one", True),
        (HistGradientBoostingClassifier(), "brier", True),
        (make_pipeline(StandardScaler(), RandomForestClassifier()), "log", True),
        (CalibratedClassifierCV(HistGradientBoostingClassifier(max_iter=3)), "brier", True),
        (MLPClassifier(), "brier", True),
        (SVC(), "zero_one", False),
        (make_pipeline(StandardScaler(), LogisticRegression()), "log", False),
    ],
)
def test_an_estimator_whose_losses_jump_is_known_by_its_kind(estimator, loss, jumps):
    scores = per_record_scores(estimator, any_space(estimator), TRAIN, VALIDATION, loss)
    assert scores.has_steps is jumps


def test_a_loss_of_the_users():
    def asymmetric(y, predicted):
        return np.where(y == 1, 2.0, 1.0) * (y != predicted)

    scores = per_record_scores(LogisticRegression(), SPACE, TRAIN, VALIDATION, asymmetric)
    assert set(scores(CONFIGS).unique().tolist()) <= {0.0, 1.0, 2.0}


def test_an_average_is_no_loss_of_a_record():
    scores = per_record_scores(
        LogisticRegression(), SPACE, TRAIN, VALIDATION, lambda y, p: np.mean(y != p)
    )
    with pytest.raises(ValueError, match="one number for each record"):
        scores(CONFIGS)


def test_the_users_estimator_is_left_alone():
    estimator = LogisticRegression(C=3.0)
    per_record_scores(estimator, SPACE, TRAIN, VALIDATION)(CONFIGS)
    assert estimator.C == 3.0 and not hasattr(estimator, "coef_")


def test_a_label_that_training_never_saw_is_a_loss_and_no_error():
    y = VALIDATION[1].copy()
    y[4] = 7
    validation = VALIDATION[0], y
    for loss, worst in (("log", math.inf), ("brier", math.nan), ("zero_one", 1.0)):
        scores = per_record_scores(LogisticRegression(), SPACE, TRAIN, validation, loss)
        assert str(scores(CONFIGS)[0, 4].item()) == str(worst)


def test_brier_lies_between_its_bounds_for_several_classes():
    def three(X):
        return np.digitize(X[:, 0], [-0.3, 0.3])

    train, validation = ((part, three(part)) for part in (X[:30], X[30:]))
    (row,) = per_record_scores(LogisticRegression(), SPACE, train, validation, "brier")(CONFIGS[:1])
    model = LogisticRegression(C=0.1).fit(*train)
    distance = np.square(model.predict_proba(X[30:]) - np.eye(3)[validation[1]]).sum(-1)
    assert np.allclose(row, distance / 2) and 0 <= row.min() <= row.max() <= 1


def test_sparse_tables_and_tensors_score_as_arrays_do():
    expected = per_record_scores(SVC(), SPACE, TRAIN, VALIDATION)(CONFIGS)
    for form in (sparse.csr_matrix, torch.from_numpy):
        train, validation = ((form(part[0]), part[1]) for part in (TRAIN, VALIDATION))
        assert torch.equal(per_record_scores(SVC(), SPACE, train, validation)(CONFIGS), expected)
    broken = sparse.csr_matrix(VALIDATION[0])
    broken[3, 1] = math.nan
    train = sparse.csr_matrix(X[:30]), TRAIN[1]
    (row,) = per_record_scores(SVC(), SPACE, train, (broken, VALIDATION[1]))(CONFIGS[:1])
    assert row.isnan().nonzero().flatten().tolist() == [3]


def month(frame):
    """What a date, and a text, are to a pipeline that goes by the types of columns."""
    when, text = frame["when"], frame.select_dtypes(exclude=["number", "datetime", "category"])
    is_date = pd.api.types.is_datetime64_any_dtype(when)
    numbers = frame.select_dtypes("number").to_numpy(dtype=float)
    months = when.dt.month if is_date else 0 * frame["x"]
    return np.c_[months, (text == "no").to_numpy().sum(1), frame["flag"].astype(float), numbers]


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("column", "odd"),
    [
        ("when", "unknown"),
        ("when", 3.5),
        ("when", pd.Timestamp("2024-03-01", tz="Asia/Tokyo")),
        ("text", 3),
        ("text", None),
        ("x", "unknown"),
        ("x", "12 kg"),
        ("flag", "perhaps"),
        ("id", None),
        ("id", 10**30),
    ],
)
def test_an_odd_cell_changes_no_column_for_the_others(column, odd):
    when = pd.Timestamp("2024-01-01") + pd.to_timedelta(RNG.integers(0, 365, 80), "D")
    labels = (when.month > 6).astype(int)
    text = np.where(labels, "no", "yes")
    data = pd.DataFrame({"when": when, "text": text, "x": RNG.normal(size=80)})
    data = data.assign(flag=labels == 1, id=np.arange(80) + 2**40)
    train, validation = (data[:40], labels[:40]), data[40:].reset_index(drop=True)
    other = validation.astype({column: object})
    other.loc[7, column] = odd
    pipeline = make_pipeline(
        FunctionTransformer(month), SimpleImputer(), StandardScaler(), LogisticRegression()
    )
    space = SearchSpace(logisticregression__C=Real(0.1, 10.0))
    rows = [
        per_record_scores(pipeline, space, train, (each, labels[40:]), "brier")(
            [{"logisticregression__C": 1.0}]
        )[0]
        for each in (validation, other)
    ]
    kept = torch.arange(40) != 7
    assert torch.equal(rows[0][kept], rows[1][kept]) and rows[0].max() < 0.2


def test_one_unseen_category_takes_no_noticeable_time():
    class Counting(LogisticRegression):
        rows = 0

        def predict(self, X):
            Counting.rows += X.shape[0]
            return super().predict(X)

    train = pd.DataFrame({"a": ["u", "v"] * 20}), [0, 1] * 20
    many = pd.DataFrame({"a": ["u", "v"] * 2500})
    many.loc[77, "a"] = "w"
    pipeline = make_pipeline(OneHotEncoder(), Counting())
    space = SearchSpace(counting__C=Real(0.1, 10.0))
    scores = per_record_scores(pipeline, space, train, (many, [0, 1] * 2500))
    Counting.rows = 0
    (row,) = scores([{"counting__C": 1.0}])
    assert row.isnan().nonzero().tolist() == [[77]] and row.nansum() == 0
    assert Counting.rows < 3 * 5000


def test_columns_have_the_types_of_public_ones_or_are_refused():
    frame = pd.DataFrame({"a": pd.Categorical(["u", "v"] * 10), "b": range(20)})
    labels = [0, 1] * 10
    space = SearchSpace(max_depth=Integer(1, 2))
    estimator = HistGradientBoostingClassifier(categorical_features="from_dtype", max_iter=2)
    dates = pd.Series(pd.Timestamp("2024-01-01"), index=range(20))
    for wrong, words in (
        (frame.astype({"a": str}), r"'a' \((str|object), and category in `train`\)"),
        (frame[["a"]], "lacks the columns"),
        (frame.assign(b=dates), r"'b' \(datetime64.*, and int64 in `train`\)"),
        (frame.assign(b=dates, a=1), "'a' .*, 'b' .*"),
    ):
        with pytest.raises((TypeError, ValueError), match=words):
            per_record_scores(estimator, space, (frame, labels), (wrong, labels[:]))
    for public in (frame.assign(b=dates), frame.assign(b="text"), frame.assign(b=dates - dates)):
        with pytest.raises(TypeError, match=r"'b' \(int64, and "):
            per_record_scores(estimator, space, (public, labels), (frame, labels[:]))
    ids = frame.assign(a=pd.Categorical([10**16, 10**16 + 1] * 10))
    with pytest.raises(ValueError, match="write larger ones as texts"):
        per_record_scores(estimator, space, (ids, labels), (ids.copy(deep=True), labels[:]))


def test_what_is_wrong_with_the_estimator_is_shown():
    space = SearchSpace(n_neighbors=Integer(1, 100))
    scores = per_record_scores(KNeighborsClassifier(), space, TRAIN, VALIDATION)
    with pytest.raises(ValueError, match="n_neighbors"):
        scores([{"n_neighbors": 50}])


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"space": SearchSpace(D=Real(0, 1))}, ValueError, "'D'"),
        ({"validation": (X, Y[:-1])}, ValueError, "as many rows"),
        ({"loss": "roc_auc_ovr"}, ValueError, "compares no records"),
        ({"loss": None}, ValueError, "one of"),
        ({"train": (X, np.where(Y, "y", "n"))}, TypeError, "are numbers"),
        ({"train": (X, np.where(Y, "y", "n")), "loss": "squared"}, TypeError, "needs numbers"),
        ({"validation": (X, np.where(Y, "alive", "dead"))}, TypeError, "are texts"),
        (
            {"validation": (X.copy(), pd.Series(np.where(Y, "alive", "dead"), dtype="string"))},
            TypeError,
            "are texts",
        ),
        (
            {
                "validation": (
                    X.copy(),
                    pd.Series(np.where(Y, "a", "d"), dtype="string").astype("category"),
                )
            },
            TypeError,
            "are texts",
        ),
        ({"validation": (X[:, :2], Y)}, ValueError, "have 2 features, .* have 3"),
        ({"validation": (X, np.eye(60))}, ValueError, "one label"),
        ({"validation": (X.astype(object), Y)}, TypeError, "of the kind"),
        ({"validation": (pd.DataFrame(X), Y)}, TypeError, "of the kind"),
        ({"train": (X, [10**16, 10**16 + 1] * 30)}, ValueError, r"below 2\^53"),
        (
            {"estimator": Ridge(), "space": SearchSpace(alpha=Real(0, 1)), "loss": "log"},
            ValueError,
            "probabilities",
        ),
    ],
)
def test_bad_arguments_are_refused_at_once(changes, error, words):
    options = {
        "estimator": LogisticRegression(),
        "space": SPACE,
        "train": TRAIN,
        "validation": VALIDATION,
        "loss": "zero_one",
    } | changes
    with pytest.raises(error, match=words):
        per_record_scores(**options)


def standardized(X):
    return (X - X.mean(0)) / (X.std(0) + 1e-9)


class TopTenth(LogisticRegression):
    """Says yes to the tenth of a batch that is the likeliest."""

    def predict(self, X):
        chances = self.predict_proba(X)[:, 1]
        return (chances >= np.quantile(chances, 0.9)).astype(int)


def imputing(**options):
    return IterativeImputer(estimator=BayesianRidge(), max_iter=3, random_state=0, **options)


@pytest.mark.parametrize(
    "step",
    [
        FunctionTransformer(standardized),
        FunctionTransformer(lambda X: X - np.median(X, axis=0)),
        FunctionTransformer(lambda X: np.diff(X, axis=0, prepend=X[:1])),
        imputing(sample_posterior=True),
        TopTenth(),
    ],
    ids=["standardized", "median", "differences", "drawn", "quantile"],
)
def test_a_pipeline_that_mixes_records_is_refused_and_no_protected_one_is_asked(step):
    features = X.copy()
    features[RNG.random(60) < 0.3, 0] = math.nan
    if not isinstance(step, IterativeImputer):
        features = X.copy()
    steps = (step,) if isinstance(step, TopTenth) else (step, LogisticRegression())
    pipeline = make_pipeline(*steps)
    space = SearchSpace(**{f"{pipeline.steps[-1][0]}__C": Real(0.1, 10.0)})
    protected = np.full((30, 3), 1e6), np.zeros(30, dtype=int)
    with pytest.raises(PrivacyError, match=r"mixes the records .* public") as caught:
        per_record_scores(pipeline, space, (features, Y), protected)
    assert "fixed seed does not help" in str(caught.value)


class Dropping(LogisticRegression):
    """Predicts complete rows only."""

    def predict_proba(self, X):
        return super().predict_proba(X[~np.isnan(X).any(axis=1)])


def test_an_estimator_that_leaves_rows_out_is_asked_for_them_one_by_one():
    features = VALIDATION[0].copy()
    features[3, 0] = math.nan
    validation = features, VALIDATION[1]
    (row,) = per_record_scores(Dropping(), SPACE, TRAIN, validation, "brier")(CONFIGS[:1])
    assert row.isnan().nonzero().flatten().tolist() == [3]


@pytest.mark.parametrize(
    "estimator",
    [
        make_pipeline(imputing(), LogisticRegression()),
        make_pipeline(KNNImputer(), StandardScaler(), SVC(probability=False)),
        make_pipeline(StandardScaler(), PCA(2), KNeighborsClassifier()),
        RandomForestClassifier(n_estimators=10),
        MLPClassifier((8,), max_iter=20),
        HistGradientBoostingClassifier(max_iter=3),
        make_pipeline(KNNImputer(), GaussianNB()),
        GaussianProcessClassifier(),
    ],
    ids=lambda estimator: type(estimator).__name__,
)
@pytest.mark.one_in(2)
@pytest.mark.parametrize("form", [np.asarray, np.float32, pd.DataFrame])
def test_rounding_is_no_mixing(estimator, form):
    space = any_space(estimator)
    per_record_scores(estimator, space, (form(X[:30]), Y[:30]), (form(X[30:]), Y[30:]))


@pytest.mark.parametrize("form", [np.asarray, torch.from_numpy, pd.DataFrame, sparse.csr_matrix])
def test_one_table_cannot_be_public_and_protected(form):
    table = form(X)
    overlapping = [(slice(60), slice(60))]
    if form is not sparse.csr_matrix:  # whose rows are copies
        overlapping.append((slice(40), slice(30, 60)))
    for public, protected in overlapping:
        train = table[public], Y[public].copy()
        validation = table[protected], Y[protected].copy()
        if form is sparse.csr_matrix:
            train, validation = (table, train[1]), (table, validation[1])
        with pytest.raises(PrivacyError, match="share memory"):
            per_record_scores(LogisticRegression(), SPACE, train, validation)
    for public, protected in ((slice(30), slice(30, 60)), (slice(0, 60, 2), slice(1, 60, 2))):
        train, validation = (table[public], Y[public]), (table[protected], Y[protected])
        per_record_scores(LogisticRegression(), SPACE, train, validation)


def test_not_to_tune_is_always_a_candidate(tmp_path):
    useless = SearchSpace(C=Real(1e-9, 1e-8, log=True))
    scores = per_record_scores(LogisticRegression(), useless, TRAIN, VALIDATION, "brier")
    assert scores.incumbent == {"C": 1.0}
    options = {"bounds": (0.0, 1.0), "budget": PrivacyBudget(1e4), "evaluations": 6}
    search = PrivateSearch(scores, useless, **options)
    compared = SelectionRoute(search.settings, False).candidates
    assert compared[:2] == [useless.middle(), {"C": 1.0}]
    assert len(compared) == 6 and search.plan().evaluations == {"selection": 6}
    assert search.run().config.value == {"C": 1.0}
    search.run(checkpoint=tmp_path / "run")
    scores.incumbent = {"C": 2.0}
    with pytest.raises(PrivacyError, match="incumbent"):
        PrivateSearch(scores, useless, **options).run(checkpoint=tmp_path / "run")
    wrong = per_record_scores(LogisticRegression(C=-1.0), SPACE, TRAIN, VALIDATION)
    assert wrong.incumbent is None
    settings = PrivateSearch(wrong, SPACE, **options).settings
    assert SelectionRoute(settings, False).candidates[0] == SPACE.middle()
