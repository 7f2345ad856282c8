"""Trees and boosting: PrivateSearch and Optuna on released scores.

    OMP_NUM_THREADS=1 BOTORCH_DP_DATA=<folder> python -m benchmarks.which_trees [--seeds 10]

Whether a classifier misreads a record of Adult. It is fitted on 1,500 public records; the private
ones are a random sample of 300, 3,000 or 30,000 of 32,561 others, a new one for each seed. Decision
trees have 2, 4 or 6 parameters. LightGBM has 4 and needs the package ``lightgbm``; its parameters
are rounded to 7 x 5 x 5 x 6 levels, so that all losses can be computed beforehand.

Everything has 30 evaluations (42 with six parameters), (epsilon, 1e-6) under replace-one, or
(epsilon, 0) for a selection. "Optuna on released scores" is its TPE
sampler on ``PrivateObjective``, which publishes the trial of the best released value; "Optuna, not
private" sees exact means. Reported is the true error of what is published on the private records.
Noise is simulated, so nothing here is private. Seeds that are stored are kept.

``--defaults`` asks whether a search does better than not to tune, for LightGBM, a random forest, a
support vector machine and a small network, each with the space that one would write: the default
method, with and without a delta, and ``slope`` and ``descent``, against the middle of the
space and against the library's defaults. It takes 15 minutes.
Whether a target is above the median is predicted from 1,500 public records; 3,500 of 10,000 others
are private, drawn anew for each seed. 20 evaluations, epsilon = 1; Brier scores, and errors for the
machine. After California housing had been seen, networks were compared by selection, and an
estimator's own settings became a candidate; blog feedback was looked at once, with these rules.
"""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from benchmarks.common import BenchmarkParser, earlier, mean_interval, save_results
from benchmarks.tables import markdown, plus_minus, stored
from botorch_dp.objectives import PrivateObjective, per_record_scores
from botorch_dp.privacy import PrivacyBudget, gaussian_mu
from botorch_dp.space import Config, Integer, Real, SearchSpace
from botorch_dp.tuning import PrivateSearch

DELTA = 1e-6
SIZES = (300, 3000, 30_000)
EPSILONS = (0.3, 1.0, 3.0)
_TRAIN = 1500


@cache
def records() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Public training records and the pool of private ones."""
    from botorch_dp.datasets import adult

    data = adult()
    parts = (data.test_X[:_TRAIN], data.test_Y[:_TRAIN], data.train_X, data.train_Y)
    X, y, pool_X, pool_y = (np.ascontiguousarray(part.numpy()) for part in parts)
    return X.astype(np.float32), y, pool_X.astype(np.float32), pool_y


@dataclass
class Task:
    """A model with its space; ``errors`` are those of all records of the pool."""

    name: str
    space: SearchSpace
    evaluations: int
    fitted: Callable[[Config], np.ndarray]
    defaults: Config | None = None
    known: dict[tuple[Any, ...], np.ndarray] = field(default_factory=dict)

    def errors(self, configs: list[Config], rows: np.ndarray) -> Tensor:
        """``b x n``: 1 where a record is misread."""
        found = []
        for config in configs:
            key = tuple(config.values())
            if key not in self.known:
                self.known[key] = self.fitted(config)
            found.append(torch.from_numpy(self.known[key][rows]))
        return torch.stack(found).double()


def tree_errors(config: Config) -> np.ndarray:
    from sklearn.tree import DecisionTreeClassifier

    X, y, pool_X, pool_y = records()
    model = DecisionTreeClassifier(random_state=0, **config).fit(X, y)
    return np.asarray(model.predict(pool_X) != pool_y)


def trees(dim: int) -> Task:
    parameters = {
        "max_depth": Integer(1, 24, log=True),
        "min_samples_leaf": Integer(1, 200, log=True),
        "min_impurity_decrease": Real(1e-5, 0.1, log=True),
        "max_features": Real(0.05, 1.0),
        "min_samples_split": Integer(2, 200, log=True),
        "ccp_alpha": Real(1e-5, 0.1, log=True),
    }
    space = SearchSpace(**dict(itertools.islice(parameters.items(), dim)))
    return Task(f"decision tree, d = {dim}", space, 42 if dim == 6 else 30, tree_errors)


_RATES = [0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0]
_LEAVES, _CHILDREN = [2, 4, 8, 16, 32], [2, 6, 18, 54, 162]
_ROUNDS = [4, 10, 25, 60, 150, 300]


@cache
def boosted(rate: float, leaves: int, children: int) -> dict[int, np.ndarray]:
    """Errors of one boosting after each number of rounds."""
    import lightgbm

    X, y, pool_X, pool_y = records()
    model = lightgbm.LGBMClassifier(
        n_estimators=_ROUNDS[-1],
        learning_rate=rate,
        num_leaves=leaves,
        min_child_samples=children,
        random_state=0,
        n_jobs=1,
        verbose=-1,
        deterministic=True,
    ).fit(X, y)
    return {
        rounds: np.asarray((model.booster_.predict(pool_X, num_iteration=rounds) > 0.5) != pool_y)
        for rounds in _ROUNDS
    }


def _nearest(value: float, levels: list[Any]) -> Any:
    return min(levels, key=lambda level: abs(math.log(value / level)))


def boosted_errors(config: Config) -> np.ndarray:
    rate, leaves, children, rounds = config.values()
    found = boosted(
        _nearest(rate, _RATES), _nearest(leaves, _LEAVES), _nearest(children, _CHILDREN)
    )
    return found[_nearest(rounds, _ROUNDS)]


def boosting() -> Task:
    space = SearchSpace(
        learning_rate=Real(0.01, 1.0, log=True),
        num_leaves=Integer(2, 32, log=True),
        min_child_samples=Integer(2, 162, log=True),
        n_estimators=Integer(4, 300, log=True),
    )
    return Task("LightGBM, d = 4", space, 30, boosted_errors)


TASKS: dict[str, Callable[[], Task]] = {
    "tree2": lambda: trees(2),
    "tree4": lambda: trees(4),
    "tree6": lambda: trees(6),
    "lightgbm": boosting,
}


@dataclass
class Scores:
    """Errors of a seed's records, of a model that is known to jump."""

    task: Task
    rows: np.ndarray
    has_steps: bool = True
    incumbent: Config | None = None

    def __call__(self, configs: list[Config]) -> Tensor:
        return self.task.errors(configs, self.rows)


def searched(task: Task, scores: Scores, n: int, epsilon: float, seed: int, method: str) -> Config:
    """What PrivateSearch publishes."""
    search = PrivateSearch(
        scores,
        task.space,
        bounds=(0.0, 1.0),
        budget=PrivacyBudget(epsilon, DELTA),
        evaluations=task.evaluations,
        num_records=n,
        method=method,  # type: ignore[arg-type]
        unsafe_seed=seed,
    )
    return search.run().config.value


def by_optuna(task: Task, observe: Callable[[Config], float], seed: int) -> Config:
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)

    def objective(trial: optuna.Trial) -> float:
        config: Config = {}
        for name, p in task.space.parameters.items():
            assert isinstance(p, Real | Integer)
            suggest = trial.suggest_int if isinstance(p, Integer) else trial.suggest_float
            config[name] = suggest(name, p.low, p.high, log=p.log)  # type: ignore[arg-type]
        return observe(config)

    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=seed))
    study.optimize(objective, n_trials=task.evaluations)
    return dict(study.best_params)


def outcome(task: Task, n: int, epsilon: float, seed: int) -> dict[str, float]:
    """True errors of what each method publishes."""
    pool = len(records()[3])
    scores = Scores(task, np.random.default_rng(seed).permutation(pool)[:n])

    def error(configs: list[Config]) -> float:
        return float(scores(configs).mean())

    objective = PrivateObjective(
        lambda points: scores(task.space.decode(points)),
        bounds=(0.0, 1.0),
        mu=gaussian_mu(epsilon, DELTA) / math.sqrt(task.evaluations),
        num_records=n,
        unsafe_seed=seed,
    )
    released = by_optuna(task, lambda c: float(objective(task.space.encode([c]))[0]), seed)
    return {
        "middle of the space": error(
            task.space.spread(np.full((1, len(task.space.parameters)), 0.5))
        ),
        "one random configuration": error(task.space.sample(64, seed=0)),
        "PrivateSearch": error([searched(task, scores, n, epsilon, seed, "auto")]),
        "selection": error([searched(task, scores, n, epsilon, seed, "selection")]),
        "Optuna on released scores": error([released]),
        "Optuna, not private": error([by_optuna(task, lambda c: error([c]), seed)]),
    }


def judged(rows: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Mean errors, and the paired differences of PrivateSearch to what is compared with it."""
    names = ("selection", "Optuna on released scores")
    errors = {
        name: mean_interval([row[name] for row in rows.values()])
        for name in next(iter(rows.values()))
        if name not in ("route", "slope", "descent")
    }
    gaps = {
        name: mean_interval([row["PrivateSearch"] - row[name] for row in rows.values()])
        for name in names
    }
    return {"error": errors, "differences": gaps}


# --- Against not tuning. ---

_PRIVATE = 3500
TABLES = ("California housing", "blog feedback")
#: Methods and deltas that are compared.
WAYS = {
    "no delta": ("auto", 0.0),
    "delta = 1e-6": ("auto", DELTA),
    "slope": ("slope", 0.0),
    "descent": ("descent", DELTA),
}


def models() -> dict[str, tuple[Any, dict[str, Any], str]]:
    """Estimators with their libraries' defaults, what one would tune, and the loss."""
    import lightgbm
    from sklearn.ensemble import RandomForestClassifier
    from sklearn.neural_network import MLPClassifier
    from sklearn.pipeline import Pipeline
    from sklearn.preprocessing import StandardScaler
    from sklearn.svm import SVC

    def scaled(model: Any) -> Any:
        return Pipeline([("scale", StandardScaler()), ("model", model)])

    return {
        "LightGBM": (
            lightgbm.LGBMClassifier(random_state=0, n_jobs=1, verbose=-1, deterministic=True),
            {
                "num_leaves": Integer(4, 64),
                "learning_rate": Real(0.01, 0.3, log=True),
                "n_estimators": Integer(20, 300),
                "min_child_samples": Integer(5, 100),
            },
            "brier",
        ),
        "random forest": (
            RandomForestClassifier(random_state=0),
            {
                "max_depth": Integer(2, 24),
                "min_samples_leaf": Integer(1, 50, log=True),
                "max_features": Real(0.1, 1.0),
                "max_samples": Real(0.2, 1.0),
            },
            "brier",
        ),
        "support vector machine": (
            scaled(SVC()),
            {"model__C": Real(0.01, 1000.0, log=True), "model__gamma": Real(1e-4, 10.0, log=True)},
            "zero_one",
        ),
        "network": (
            scaled(MLPClassifier(random_state=0)),
            {
                "model__hidden_layer_sizes": Integer(4, 128, log=True),
                "model__alpha": Real(1e-5, 1.0, log=True),
                "model__learning_rate_init": Real(1e-4, 0.1, log=True),
                "model__batch_size": Integer(16, 256, log=True),
            },
            "brier",
        ),
    }


@cache
def table(name: str) -> tuple[np.ndarray, np.ndarray]:
    """Features of records in a random order, and whether each one's target is above the median."""
    from benchmarks.data import blogfeedback, california_housing

    blog = name == "blog feedback"
    X, y = blogfeedback()[:2] if blog else california_housing()
    order = np.random.default_rng(0).permutation(len(X))[: _TRAIN + 10_000]
    return X.numpy()[order], (y > y.median()).int().numpy()[order]


def against_not_tuning(seeds: int, data: str) -> dict[str, Any]:
    """Losses of what is published and of what is not tuned, by model, and paired differences."""
    warnings.filterwarnings("ignore", message="Stochastic Optimizer")  # of the network
    X, y = table(data)
    ways = WAYS if data == TABLES[0] else {k: way for k, way in WAYS.items() if way[0] == "auto"}
    public, pool = (X[:_TRAIN], y[:_TRAIN]), (X[_TRAIN:], y[_TRAIN:])
    results: dict[str, Any] = {}
    for name, (model, parameters, loss) in models().items():
        space = SearchSpace(constraints=(), products=(), **parameters)
        of_pool = per_record_scores(model, space, public, pool, loss)  # type: ignore[arg-type]
        task = Task(name, space, 20, lambda c, scores=of_pool: scores([c])[0].numpy())  # type: ignore[misc]
        found: dict[str, list[float]] = {}
        for seed in tqdm(range(seeds), desc=name):
            rows = np.random.default_rng(seed).permutation(len(pool[0]))[:_PRIVATE]
            scores = Scores(task, rows, of_pool.has_steps, of_pool.incumbent)
            configs = {"middle of the space": space.middle(), "the library's defaults": {}}
            for label, (method, delta) in ways.items():
                search = PrivateSearch(
                    scores,
                    space,
                    bounds=(0.0, 1.0),
                    budget=PrivacyBudget(1.0, delta),
                    evaluations=task.evaluations,
                    num_records=_PRIVATE,
                    method=method,  # type: ignore[arg-type]
                    unsafe_seed=seed,
                )
                configs[label] = search.run().config.value
            for label, config in configs.items():
                found.setdefault(label, []).append(float(scores([config]).mean()))
        results[name] = {
            "loss": loss,
            "losses": {label: mean_interval(values) for label, values in found.items()},
            "differences": {
                f"{label} - {other}": mean_interval(np.subtract(found[label], found[other]))
                for label in ways
                for other in ("middle of the space", "the library's defaults")
            },
        }
        print(name, loss)
        for label, interval in (results[name]["losses"] | results[name]["differences"]).items():
            print(f"  {label}: {interval.mean:.4f} [{interval.low:.4f}, {interval.high:.4f}]")
    return results


def table_obvious_alternatives() -> str:
    """What README compares with, at epsilon = 1."""
    found = stored("which_trees")
    tasks, sizes = ("decision tree, d = 4", "LightGBM, d = 4"), (300, 3_000, 30_000)
    cells = [found["judged"].get(f"{task}, n = {n}, epsilon = 1") for task in tasks for n in sizes]
    rows = []
    for method, name in {
        "middle of the space": "default: middle of the space",
        "Optuna on released scores": "Optuna on noisy scores (composition), ε = 1",
        "PrivateSearch": "`PrivateSearch`, ε = 1",
        "Optuna, not private": "Optuna, no privacy",
    }.items():
        errors = [cell and cell["error"].get(method) for cell in cells]
        rows.append([name, *(plus_minus(error, 3) if error else "–" for error in errors)])
    return markdown(
        ["error", *(f"{task.split(',')[0]}, n = {n:,}" for task in tasks for n in sizes)], rows
    )


def table_not_tuning() -> str:
    """Losses of searches and of what is not tuned, in hundredths, with paired differences."""
    middle, usual = "middle of the space", "the library's defaults"
    ways = {"no delta": "δ = 0", "delta = 1e-6": "δ = 1e-6"}
    methods = {"slope": '`method="slope"`', "descent": '`method="descent"`'}
    rows = []
    for data, models in stored("which_trees")["defaults"].items():
        for model, found in models.items():
            losses, differences = found["losses"], found["differences"]
            row = [f"{model}, {data}", *(f"{100 * losses[k]['mean']:.2f}" for k in (middle, usual))]
            for way in (*ways, *methods):
                gaps = [differences.get(f"{way} - {other}") for other in (middle, usual)]
                row.append("; ".join(_hundredths(gap) for gap in gaps if gap) or "–")
            rows.append(row)
    head = ["loss, in hundredths", middle, usual, *ways.values(), *methods.values()]
    return markdown(head, rows)


def _hundredths(gap: dict[str, Any]) -> str:
    return f"{100 * gap['mean']:+.2f} ± {50 * (gap['high'] - gap['low']):.2f}"


def main() -> None:
    parser = BenchmarkParser("which_trees", __doc__, minutes=15)
    parser.add_argument("--defaults", action="store_true", help="compare with not tuning only")
    parser.add_argument("--tasks", nargs="+", default=list(TASKS), choices=list(TASKS))
    parser.add_argument("--sizes", nargs="+", type=int, default=list(SIZES))
    parser.add_argument("--epsilons", nargs="+", type=float, default=list(EPSILONS))
    parser.add_argument("--seeds", type=int, default=10)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.defaults:
        for data in TABLES:
            found = against_not_tuning(options.seeds, data)
            stored = earlier("which_trees")
            stored["defaults"] = {**stored.get("defaults", {}), data: found}
            save_results("which_trees", stored)
        return
    defaults = earlier("which_trees").get("defaults", {})
    cases: dict[str, dict[str, Any]] = earlier("which_trees").get("cases", {})
    for key in options.tasks:
        task = TASKS[key]()
        for seed in tqdm(range(options.seeds), desc=key):
            for n, epsilon in itertools.product(options.sizes, options.epsilons):
                case = cases.setdefault(f"{task.name}, n = {n}, epsilon = {epsilon:g}", {})
                if str(seed) not in case:
                    case[str(seed)] = outcome(task, n, epsilon, seed)
            results = {label: judged(rows) for label, rows in cases.items() if rows}
            contents = {"delta": DELTA, "judged": results, "cases": cases, "defaults": defaults}
            save_results("which_trees", contents)
    for label, result in results.items():
        print(label, {name: str(interval) for name, interval in result["error"].items()})
        print("  PrivateSearch minus", {k: str(gap) for k, gap in result["differences"].items()})


if __name__ == "__main__":
    main()
