"""How good are private models of tables with nothing stated but epsilon, beside what others do?

Fifteen tables, and rows for the default of ``DPClassifier`` and ``DPRegressor``, for stated bounds,
for what leaks, for interpret's DP-EBM, for diffprivlib and for no privacy. ``--rows`` picks rows:
those of interpret and of diffprivlib need these libraries, which are no dependencies, and may be
run by another Python; results are merged. ``--part ranks`` measures how far released quartiles are
off, ``--part plot`` draws the figures from what is stored.

The settings of the package were chosen on the first seven tables; the others were held out.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import statistics
import time
import warnings
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pandas as pd

from benchmarks.common import BenchmarkParser, results_folder, save_results
from benchmarks.tables import fixed, markdown, stored
from botorch_dp.privacy import NeighboringRelation

DELTA, SEEDS = 1e-5, 5
ALL, MAIN = (0.1, 0.3, 1.0, 3.0, 10.0), (0.3, 1.0, 3.0)
ONE, SIDES = NeighboringRelation.REPLACE_ONE, ("left", "right")
ORDER = (1.0, 0.3, 3.0, math.inf, 0.1, 10.0)
#: More records than these are left out, and of tables with more than 100 columns half of them.
MOST = 16_000

# --- Tables: X, y, whether a regression, and what they are for. ---


def _housing() -> pd.DataFrame:
    from benchmarks.data import california_housing

    X, y = california_housing()
    return pd.DataFrame(X.numpy()).assign(value=y.numpy())


def housing() -> Any:
    frame = _housing()
    y = (frame["value"] > frame["value"].median()).astype(int)
    return frame.drop(columns="value"), y.to_numpy(), False


def house_values() -> Any:
    frame = _housing()
    return frame.drop(columns="value"), frame["value"].to_numpy(), True


def _local(name: str) -> Any:
    return np.load(Path(os.environ["BOTORCH_DP_DATA"]) / f"{name}.npz")


def loans() -> Any:
    found = _local("loans")
    return pd.DataFrame(found["X"]), (found["roi"] > np.median(found["roi"])).astype(int), False


def blog() -> Any:
    from benchmarks.data import blogfeedback

    found = blogfeedback()
    return pd.DataFrame(found.train_X.numpy()), (found.train_Y.numpy() > 0).astype(int), False


def cancer() -> Any:
    from sklearn.datasets import load_breast_cancer

    X, y = load_breast_cancer(return_X_y=True, as_frame=True)
    return X, y.to_numpy(), False


def far() -> Any:
    """Columns up to 10,000 widths from zero, on scales from .001 to 100,000."""
    rng = np.random.default_rng(3)
    Z = rng.normal(size=(6000, 6))
    scale = 10.0 ** rng.uniform(-3, 5, 6)
    X = scale * 10.0 ** rng.uniform(1, 4, 6) + scale * Z
    score = np.sin(1.5 * Z[:, 0]) + np.abs(Z[:, 1]) - 0.8 + 0.7 * Z[:, 2]
    return pd.DataFrame(X), (score + 0.5 * rng.normal(size=6000) > 0).astype(int), False


def adult() -> Any:
    found = _local("a9a")
    X = np.concatenate([found["X_train"], found["X_test"]]).astype(np.float64)
    y = np.concatenate([found["y_train"], found["y_test"]])
    return pd.DataFrame(X), (y > 0).astype(int), False


def flats() -> Any:
    """Prices of flats in Singapore by longitude and latitude."""
    found = _local("property")
    return pd.DataFrame(found["X"].astype(np.float64)), found["price_per_sqm"].astype(float), True


def digits() -> Any:
    from sklearn.datasets import load_digits

    X, y = load_digits(return_X_y=True)
    return pd.DataFrame(X), y % 2, False


def mnist() -> Any:
    """Images at a quarter of their size: 196 columns, many of which are nearly constant."""
    found = _local("mnist")
    X = found["x_train"].reshape(-1, 14, 2, 14, 2).mean(axis=(2, 4)).reshape(-1, 196)
    return pd.DataFrame(X), (found["y_train"] > 4).astype(int), False


def mixed() -> Any:
    """Heavy tails, dates, gaps, categories and truth values."""
    rng = np.random.default_rng(11)
    n = 12_000
    z = rng.normal(size=(n, 4))
    days = pd.Timestamp("2015-01-01") + pd.to_timedelta((900 + 300 * z[:, 1]).round(), unit="D")
    frame = pd.DataFrame(
        {
            "income": np.exp(10 + 1.2 * z[:, 0]),
            "since": days,
            "debt": np.where(rng.random(n) < 0.6, 0.0, np.exp(6 + 2 * z[:, 2])),
            "ratio": rng.standard_cauchy(n) * 0.01,
            "children": rng.poisson(1.1, n),
            "constant": np.full(n, 7.0),
            "owner": rng.random(n) < 0.4,
            "region": pd.Categorical(rng.choice(list("abcde"), n), categories=list("abcde")),
        }
    )
    score = np.minimum(z[:, 0], 1) - 0.5 * z[:, 1] ** 2 + (frame["debt"] > 300) * 0.8
    score += 0.4 * frame["children"].clip(0, 3) * frame["owner"] + (frame["region"] == "b")
    y = (score + 0.5 * rng.logistic(size=n) > 0.4).astype(int).to_numpy()
    frame.loc[rng.random(n) < 0.1, "since"] = pd.NaT
    frame.loc[rng.random(n) < 0.1, "income"] = np.nan
    return frame, y, False


def rare() -> Any:
    """One record in thirty belongs to the class that matters."""
    rng = np.random.default_rng(12)
    n = 16_000
    y = (rng.random(n) < 1 / 30).astype(int)
    shift = rng.normal(size=10) * 0.9
    X = rng.normal(size=(n, 10)) + y[:, None] * shift
    return pd.DataFrame(np.exp(X) * 10.0 ** rng.uniform(-2, 4, 10)), y, False


def wide() -> Any:
    """300 columns, of which 20 count."""
    rng = np.random.default_rng(13)
    n = 16_000
    Z = rng.normal(size=(n, 300))
    score = np.tanh(2 * Z[:, :10]).sum(axis=1) + (np.abs(Z[:, 10:20]) - 0.8).sum(axis=1)
    X = Z * 10.0 ** rng.uniform(-2, 3, 300) + rng.normal(size=300) * 100
    return pd.DataFrame(X), (score > 0).astype(int), False


def diabetes() -> Any:
    from sklearn.datasets import load_diabetes

    X, y = load_diabetes(return_X_y=True, as_frame=True, scaled=False)
    return X, y.to_numpy(), True


def spending() -> Any:
    """A regression with heavy tails on either side."""
    rng = np.random.default_rng(14)
    n = 12_000
    z = rng.normal(size=(n, 6))
    X = np.exp(z * [0.5, 1, 2, 0.1, 1, 1.5]) * [1, 100, 1e4, 2000, 1, 10]
    score = np.sin(1.5 * z[:, 0]) + z[:, 1] ** 2 / 2 + 0.7 * z[:, 2]
    return pd.DataFrame(X), np.exp(1 + 0.5 * score + 0.3 * rng.normal(size=n)), True


DESIGN = (housing, house_values, loans, blog, cancer, far, spending)
HELD_OUT = (adult, flats, digits, mnist, mixed, rare, wide, diabetes)
TABLES: dict[str, Callable[[], Any]] = {each.__name__: each for each in (*DESIGN, *HELD_OUT)}


def split(frame: pd.DataFrame, y: Any, seed: int) -> Any:
    """Four fifths to train on, one to test on, after cutting large tables."""
    most = MOST if frame.shape[1] <= 100 else MOST // 2
    order = np.random.default_rng(seed).permutation(len(frame))[: most * 5 // 4]
    k = len(order) * 4 // 5
    train, test = order[:k], order[k:]
    return frame.iloc[train], y[train], frame.iloc[test], y[test]


def numbers(frame: pd.DataFrame) -> np.ndarray:
    """For those who take numbers only: dates as days, categories one-hot, gaps as medians."""
    parts = {}
    for name, column in frame.items():
        if column.dtype.kind == "M":
            parts[name] = (column - pd.Timestamp("2000-01-01")) / pd.Timedelta(days=1)
        elif hasattr(column.dtype, "categories"):
            for each in column.dtype.categories:
                parts[f"{name} {each}"] = column == each
        else:
            parts[name] = column
    table = pd.DataFrame(parts).astype(float)
    return table.fillna(table.median()).to_numpy()


# --- Rows: fit(train_X, train_y, epsilon, seed, is_regression) -> predict(test_X) -> scores. ---


def _ours(**how: Any) -> Any:
    def fit(X: Any, y: Any, epsilon: float, seed: int, regression: bool) -> Any:
        from botorch_dp.integrations.estimators import DPClassifier, DPRegressor

        known: dict[str, Any] = {"delta": DELTA, "unsafe_seed": seed, **how}
        kind = DPRegressor if regression else DPClassifier
        classes = {} if regression else {"classes": (0, 1)}
        return kind(epsilon, **classes, **known).fit(X, y)

    return fit


def _exact(**how: Any) -> Any:
    """Exact quantiles at no cost in epsilon: leaks."""
    from botorch_dp.privacy import Release
    from botorch_dp.training.ranges import Ranges, RangesPlan, quantile_levels, ranges_guarantee

    def quantiles(table: Any, *, pieces: int | None, **_: Any) -> Any:
        levels = quantile_levels(pieces, 0.0)
        table = np.where(np.isnan(table).all(axis=0), 0.0, table)
        found = np.nanquantile(table, levels, axis=0).T
        return Release(Ranges(found[:, :3], found[:, 3:] if pieces else None), None)

    def within(n: int, d: int, *_: Any) -> Any:
        return RangesPlan(n, d, ranges_guarantee(mu=1e-6))

    def fit(*given: Any) -> Any:
        estimators = "botorch_dp.integrations.estimators"
        with ExitStack() as stack:
            stack.enter_context(mock.patch(f"{estimators}.private_ranges", quantiles))
            stack.enter_context(mock.patch.object(RangesPlan, "within", within))
            return _ours(**how)(*given)

    return fit


def _guessed(times: float) -> Any:
    """Bounds around the exact range, so many times as wide; a linear model."""

    def fit(X: Any, y: Any, epsilon: float, seed: int, regression: bool) -> Any:
        table = numbers(X)
        low, high = table.min(axis=0), table.max(axis=0)
        more = (times - 1) / 2 * (high - low) + 1e-9
        how: dict[str, Any] = {"bounds": (low - more, high + more), "shape": "linear"}
        if regression:
            much = (times - 1) / 2 * np.ptp(y)
            how["target_bounds"] = (y.min() - much, y.max() + much)
        return _OnNumbers(_ours(**how)(table, y, epsilon, seed, regression))

    return fit


class _OnNumbers:
    def __init__(self, model: Any, change: Any = None) -> None:
        self.model, self.change = model, change

    def _table(self, X: Any) -> Any:
        table = numbers(X)
        return table if self.change is None else self.change(table)

    def predict(self, X: Any) -> Any:
        return self.model.predict(self._table(X))

    def predict_proba(self, X: Any) -> Any:
        return self.model.predict_proba(self._table(X))


def _standardized(X: Any, y: Any, epsilon: float, seed: int, regression: bool) -> Any:
    """Exact means and deviations of columns and targets, which leak; a linear model."""
    from sklearn.preprocessing import StandardScaler

    scaler = StandardScaler().fit(numbers(X))
    how: dict[str, Any] = {"bounds": (-3.0, 3.0), "shape": "linear"}
    if regression:
        how["target_bounds"] = (y.mean() - 3 * y.std(), y.mean() + 3 * y.std())
    model = _ours(**how)(scaler.transform(numbers(X)), y, epsilon, seed, regression)
    return _OnNumbers(model, scaler.transform)


def _ebm(stated: bool) -> Any:
    def fit(X: Any, y: Any, epsilon: float, seed: int, regression: bool) -> Any:
        from interpret import privacy

        table = numbers(X)
        kind = "Regressor" if regression else "Classifier"
        how: dict[str, Any] = {"epsilon": epsilon, "delta": DELTA, "random_state": seed}
        if stated:  # guessed three times too wide
            low, high = table.min(axis=0), table.max(axis=0)
            more = high - low + 1e-9
            how["privacy_bounds"] = np.stack([low - more, high + more], axis=1)
            if regression:
                how |= {"privacy_target_min": y.min() - np.ptp(y)}
                how |= {"privacy_target_max": y.max() + np.ptp(y)}
        model = getattr(privacy, f"DPExplainableBoosting{kind}")(n_jobs=1, **how)
        return _OnNumbers(model.fit(table, y))

    return fit


def _diffprivlib(X: Any, y: Any, epsilon: float, seed: int, regression: bool) -> Any:
    """On columns scaled by their exact ranges, with the exact largest norm; both leak."""
    from diffprivlib import models

    table = numbers(X)
    low, high = table.min(axis=0), table.max(axis=0)

    def scaled(each: Any) -> Any:
        return (each - low) / np.maximum(high - low, 1e-9)

    if regression:
        ends = {"bounds_X": (0.0, 1.0), "bounds_y": (y.min(), y.max())}
        model = models.LinearRegression(epsilon=epsilon, random_state=seed, **ends)
    else:
        norm = float(np.linalg.norm(scaled(table), axis=1).max())
        model = models.LogisticRegression(epsilon=epsilon, data_norm=norm, random_state=seed)
    return _OnNumbers(model.fit(scaled(table), y), scaled)


def _plain(boosting: bool) -> Any:
    def fit(X: Any, y: Any, epsilon: float, seed: int, regression: bool) -> Any:
        from sklearn import ensemble, linear_model
        from sklearn.pipeline import make_pipeline
        from sklearn.preprocessing import StandardScaler

        kind = "Regressor" if regression else "Classifier"
        if boosting:
            model = getattr(ensemble, f"HistGradientBoosting{kind}")(random_state=seed)
        else:
            linear = linear_model.LinearRegression() if regression else None
            linear = linear or linear_model.LogisticRegression(max_iter=1000)
            model = make_pipeline(StandardScaler(), linear)
        return _OnNumbers(model.fit(numbers(X), y))

    return fit


ROWS: dict[str, tuple[Any, tuple[float, ...]]] = {
    "additive": (_ours(), ALL),
    "linear": (_ours(shape="linear"), ALL),
    "network": (_ours(hidden=(32,)), MAIN),
    "guessed 3 times too wide": (_guessed(3), MAIN),
    "guessed 10 times too wide": (_guessed(10), MAIN),
    "additive, exact quantiles": (_exact(), MAIN),
    "standardized": (_standardized, MAIN),
    "DP-EBM, ranges read": (_ebm(False), ALL),
    "DP-EBM, ranges stated": (_ebm(True), MAIN),
    "diffprivlib": (_diffprivlib, MAIN),
    "logistic or linear": (_plain(False), (math.inf,)),
    "boosting": (_plain(True), (math.inf,)),
}


def scores(model: Any, X: Any, y: Any, regression: bool) -> dict[str, float]:
    """Accuracy and area under the curve, or the share of variance explained."""
    from sklearn.metrics import r2_score, roc_auc_score

    with np.errstate(all="ignore"):
        if regression:
            return {"r2": float(r2_score(y, model.predict(X)))}
        right = float((np.asarray(model.predict(X)) == y).mean())
        return {"accuracy": right, "auc": float(roc_auc_score(y, model.predict_proba(X)[:, 1]))}


def measure(rows: list[str], tables: list[str], seeds: int, minutes: float) -> None:
    """Train whatever is not stored yet, seed by seed, and store it after every table."""
    path = results_folder() / "private_tables.json"
    before = json.loads(path.read_text()) if path.exists() else {"scores": {}, "sizes": {}}
    found: dict[str, Any] = before["scores"]
    sizes: dict[str, list[int]] = before["sizes"]
    loaded: dict[str, Any] = {}
    started, spent = time.time(), time.process_time()
    for seed, epsilon, name in itertools.product(range(seeds), ORDER, tables):
        wanted = [row for row in rows if epsilon in ROWS[row][1]]
        by_row = found.setdefault(name, {})
        done = [by_row.setdefault(row, {}).setdefault(f"{epsilon:g}", []) for row in wanted]
        if time.process_time() - spent > 60 * minutes:
            return
        if all(len(each) > seed for each in done):
            continue
        frame, y, regression = loaded[name] = loaded.get(name) or TABLES[name]()
        train_X, train_y, test_X, test_y = split(frame, y, seed)
        sizes[name] = list(train_X.shape)
        for row, mine in zip(wanted, done, strict=True):
            if len(mine) > seed:
                continue
            begun = time.process_time()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                model = ROWS[row][0](train_X, train_y, epsilon, seed, regression)
                mine.append(scores(model, test_X, test_y, regression))
            mine[-1]["seconds"] = round(time.process_time() - begun, 3)
        save_results("private_tables", {"sizes": sizes, "scores": found})
        print(f"{time.time() - started:6.0f}s  {name}, epsilon {epsilon:g}, {seed}", flush=True)


# --- How far released quartiles are off, in rank. ---


def columns(n: int = 6000) -> pd.DataFrame:
    """Columns of many kinds and scales."""
    rng = np.random.default_rng(5)
    z = rng.normal(size=n)
    return pd.DataFrame(
        {
            "normal": z,
            "small": 1e-4 * rng.normal(size=n),
            "heavy tails": np.exp(2 * rng.normal(size=n) + 8),
            "Cauchy": rng.standard_cauchy(n),
            "years": rng.integers(1950, 2020, n).astype(float),
            "longitude": np.where(z > 0, -118, -122) + 0.5 * rng.normal(size=n),
            "10,000 widths from 0": 1e4 + rng.normal(size=n),
            "seconds since 1970": 1.6e9 + 3e7 * rng.random(n),
            "ages": rng.integers(17, 90, n).astype(float),
            "negative": -np.exp(rng.normal(size=n) + 4),
            "two groups": np.where(z > 0, 0.01 * rng.normal(size=n), 100 + rng.normal(size=n)),
            "exponential": 5 * rng.exponential(size=n),
        }
    )


def _opendp_quartiles(table: np.ndarray, mu: float) -> np.ndarray:
    """OpenDP's exponential mechanism on 1,600 candidates for each quartile and column."""
    import opendp.prelude as dp

    dp.enable_features("contrib")
    half = np.geomspace(1e-3, 1e12, 800)
    candidates = np.concatenate([-half[::-1], [0.0], half]).tolist()
    rho = mu**2 / 2 / (3 * table.shape[1])
    domain = dp.vector_domain(dp.atom_domain(T=float, nan=False), size=len(table))

    def mechanism(level: float, scale: float) -> Any:
        measure = dp.zero_concentrated_divergence()
        how = (domain, dp.symmetric_distance(), measure, candidates, level)
        return dp.m.make_private_quantile(*how, scale=scale)

    found = []
    for level in (0.25, 0.5, 0.75):
        scale = mechanism(level, 1.0).map(2) ** 0.5 / rho**0.5
        found.append([mechanism(level, scale)(column.tolist()) for column in table.T])
    return np.array(found).T


def measure_ranks(seeds: int) -> None:
    """Rank errors of quartiles."""
    from botorch_dp.training import private_ranges
    from botorch_dp.training.ranges import rank_error

    frame = columns()
    table = frame.to_numpy()
    n, d = table.shape
    levels = np.array([0.25, 0.5, 0.75])
    rows = []
    for wanted in (0.002, 0.01, 0.03):
        mu = math.sqrt(d) / (n * wanted)
        found: dict[str, list[float]] = {}
        for seed in range(seeds):
            ours = private_ranges(table, mu=mu, unsafe_seed=seed).value.quartiles
            for name, quartiles in (("ours", ours), ("OpenDP", _opendp_quartiles(table, mu))):
                for column, values in zip(table.T, quartiles, strict=True):
                    ordered = np.sort(column)
                    low, high = (np.searchsorted(ordered, values, side) for side in SIDES)
                    off = np.maximum(np.maximum(low / n - levels, levels - high / n), 0.0)
                    found.setdefault(name, []).append(float(off.mean()))
        stated = rank_error(n, d, mu, ONE)
        rows.append({"stated": stated, **{name: float(np.mean(v)) for name, v in found.items()}})
        print(rows[-1], flush=True)
    save_results("private_ranges", {"records": n, "columns": list(frame), "rows": rows})


# --- Figures. ---

STYLES: dict[str, Any] = {
    "additive": {"color": "C0", "linewidth": 2.2, "label": "additive (default), nothing stated"},
    "linear": {"color": "C0", "linestyle": "--", "label": "linear, nothing stated"},
    "additive, exact quantiles": {
        "color": "C2",
        "linestyle": ":",
        "label": "exact quantiles (leak)",
    },
    "DP-EBM, ranges read": {"color": "C1", "label": "DP-EBM, ranges read (leak)"},
    "guessed 3 times too wide": {"color": "C3", "label": "linear, bounds 3 times too wide"},
    "guessed 10 times too wide": {
        "color": "C3",
        "linestyle": "--",
        "label": "linear, bounds 10 times too wide",
    },
}
WITHOUT = {"logistic or linear": ":", "boosting": "-."}


def score_name(name: str, rows: dict[str, Any]) -> str:
    """Accuracy; the area under the curve where a class is rare; or the variance explained."""
    first = next(found[0] for each in rows.values() for found in each.values() if found)
    return "r2" if "r2" in first else "auc" if name == "rare" else "accuracy"


def means(scores_: dict[str, Any], name: str, row: str) -> dict[float, float]:
    """The mean of a row on a table, by epsilon; a negative share of variance counts as 0."""
    what = score_name(name, scores_[name])
    return {
        float(epsilon): max(0.0, float(np.mean([each[what] for each in found])))
        for epsilon, found in scores_[name].get(row, {}).items()
        if found
    }


def plot() -> None:
    from matplotlib.figure import Figure

    found = json.loads((results_folder() / "private_tables.json").read_text())
    scores_, sizes = found["scores"], found["sizes"]
    kinds: dict[str, list[str]] = {"classification": [], "regression": []}
    for name in scores_:
        is_r2 = score_name(name, scores_[name]) == "r2"
        kinds["regression" if is_r2 else "classification"].append(name)
    figure = Figure(figsize=(9.5, 4.8), layout="constrained")
    for ax, (kind, names) in zip(figure.subplots(1, 2), kinds.items(), strict=True):
        for row, style in STYLES.items():
            by = [means(scores_, name, row) for name in names]
            epsilons = sorted(set.intersection(*map(set, by)))
            ax.plot(epsilons, [np.mean([b[e] for b in by]) for e in epsilons], marker=".", **style)
        for row, dashes in WITHOUT.items():
            level = np.mean([means(scores_, name, row)[math.inf] for name in names])
            ax.axhline(level, color="0.4", linestyle=dashes, label=f"no privacy: {row}")
        what = "accuracy (AUROC of the rare class)"
        what = what if kind == "classification" else "share of variance explained"
        ax.set(xscale="log", xlabel="ε (δ = 1e-5)", ylabel=f"mean {what}")
        ax.set_title(f"{len(names)} tables, {kind}", fontsize=10)
        ax.grid(alpha=0.3)
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, fontsize=8, loc="outside lower center", ncols=4)
    figure.savefig(results_folder() / "private_tables.png", dpi=130)

    wide = 5
    figure = Figure(figsize=(12, 2.3 * math.ceil(len(scores_) / wide)), layout="constrained")
    for place, name in enumerate(scores_):
        ax = figure.add_subplot(math.ceil(len(scores_) / wide), wide, place + 1)
        for row, style in STYLES.items():
            by_epsilon = sorted(means(scores_, name, row).items())
            ax.plot(*zip(*by_epsilon, strict=True), marker=".", **style)
        for row, dashes in WITHOUT.items():
            level = means(scores_, name, row)[math.inf]
            ax.axhline(level, color="0.4", linestyle=dashes, label=f"no privacy: {row}")
        n, d = sizes[name]
        held = "held out" if name in {each.__name__ for each in HELD_OUT} else "design"
        what = score_name(name, scores_[name])
        ax.set_title(f"{name}: {n:,} x {d}, {what} ({held})", fontsize=7)
        ax.set_xscale("log")
        ax.tick_params(labelsize=6)
        ax.grid(alpha=0.3)
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, fontsize=8, loc="outside lower center", ncols=4)
    figure.savefig(results_folder() / "private_tables_each.png", dpi=110)


#: Rows of the page, and what is said of each.
ROW_LABELS = {
    "additive": "**additive (default)**, nothing stated",
    "linear": '`shape="linear"`, nothing stated',
    "network": "`hidden=(32,)`, nothing stated",
    "guessed 3 times too wide": "linear, bounds 3 times too wide",
    "guessed 10 times too wide": "linear, bounds 10 times too wide",
    "DP-EBM, ranges stated": "DP-EBM, ranges 3 times too wide",
    "DP-EBM, ranges read": "DP-EBM, exact ranges (leak)",
    "diffprivlib": "diffprivlib, exact ranges (leak)",
    "standardized": "linear, exact means and deviations (leak)",
    "additive, exact quantiles": "additive, exact quantiles (leak)",
    "logistic or linear": "no privacy: linear",
    "boosting": "no privacy: boosting",
}


def table_private_tables() -> str:
    """Means over tables at epsilon 1, and on how many the default is better."""
    found = stored("private_tables")["scores"]
    kinds = [[n for n in found if (score_name(n, found[n]) == "r2") == r2] for r2 in (False, True)]
    rows = []
    for row, label in ROW_LABELS.items():
        cells, worse = [], 0
        for names in kinds:
            values = {}
            for name in names:
                by = means(found, name, row)
                values[name] = by.get(1.0, by.get(math.inf, math.nan))
                worse += means(found, name, "additive")[1.0] > values[name]
            cells.append(fixed(statistics.mean(values.values())))
        rows.append([label, *cells, "" if row == "additive" else f"{worse} of {len(found)}"])
    head = [f"{len(kinds[0])} classifications: accuracy", f"{len(kinds[1])} regressions: R²"]
    return markdown(["ε = 1", *head, "the default is better on"], rows)


def table_private_ranges() -> str:
    rows = [
        [f"{100 * row[name]:.1f}%" for name in ("stated", "ours", "OpenDP")]
        for row in stored("private_ranges")["rows"]
    ]
    return markdown(["stated by `plan`", "ours", "OpenDP's quantiles"], rows)


def main() -> None:
    parts = {"scores": 60.0, "ranks": 0.5, "plot": 0.1}
    parser = BenchmarkParser("private_tables", __doc__, minutes=parts)
    parser.add_argument("--rows", default=";".join(ROWS), help="separated by semicolons")
    parser.add_argument("--tables", default=",".join(TABLES), help="separated by commas")
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--minutes", type=float, default=60.0, help="of this process's own time")
    options = parser.parse_args()
    if "scores" in options.part:
        rows, tables = options.rows.split(";"), options.tables.split(",")
        measure(rows, tables, options.seeds, options.minutes)
    if "ranks" in options.part:
        measure_ranks(options.seeds)
    if "plot" in options.part:
        plot()


if __name__ == "__main__":
    main()
