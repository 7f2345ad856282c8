"""How far is DPareto ahead of random points, by which measure? Table 2 of the DPareto paper, again.

    OMP_NUM_THREADS=1 BOTORCH_DP_DATA=<folder> python -m benchmarks.dpareto_lead [--replicates 1]

The three problems on Adult: three studies of 16 + 256 trials against 19 *disjoint* draws of 256
random points from the distributions of the paper's Table 4, ten trainings of each point. Before all
of them stands the cheapest front, eleven epsilons with default settings. The
studies are DPareto's default, its default in linear epsilon, and the paper's own way: its
acquisition function, a model of ln epsilon, and epsilon by its bound on Rényi divergences. The same
points are then measured in all ways that the paper and the code published with it suggest:

- epsilon by dominating pairs, as everywhere here, and by the paper's bound on Rényi divergences;
- hypervolume to (10, 1), to the code's (10, .999), and in ln(epsilon / .05);
- what the code's ``get_untransformed_hypervolume`` returns: both of its loops run over empty
  ranges, so that it is the rectangle of the front's point with the smallest epsilon.

Models are trained by a compiled loop, which is held against ``DPTrainer`` first. Run again, it goes
on where it was: random points are trained once each, then a second time, and so on, and leads that
were measured with fewer trainings stay in the results.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from tqdm import tqdm

from benchmarks.accounting import papers_epsilon
from benchmarks.common import BenchmarkParser, earlier, mean_interval, results_folder, save_results
from benchmarks.linear_training import FastTraining, Training
from botorch_dp import tasks
from botorch_dp.pareto import Batched, DPareto, PrivacyUtilityProblem
from botorch_dp.pareto.front import dominated_volume
from botorch_dp.privacy import dp_sgd_epsilon
from botorch_dp.space import Config, Integer, Real, SearchSpace, ShiftedExponential
from botorch_dp.tasks.learning import _MODELS, DELTA, _data
from botorch_dp.training import DPTrainer

NAME = "dpareto_lead"
DRAWS, DRAWN = 19, 256
LARGEST = 10.0

#: Learning rates of random points; studies look from 5e-4 to 5e-2.
TABLE_4 = Real(1e-3, 0.1, log=True, distribution=ShiftedExponential(10.0))
#: Where the axis of ln(epsilon) begins: below it nothing is learnt.
SMALLEST = 0.05
#: Table 2 as printed: DPareto's mean lead over 19 disjoint draws of 256 of 5,000 random points, and
#: the ends of its 95% interval.
TABLE_2 = {
    "LogReg+SGD": (0.158, 0.053, 0.264),
    "LogReg+ADAM": (0.439, 0.272, 0.607),
    "SVM+SGD": (0.282, 0.161, 0.402),
}
SETTINGS: dict[str, Callable[..., PrivacyUtilityProblem]] = {
    "LogReg+SGD": tasks.adult_logistic_sgd,
    "LogReg+ADAM": tasks.adult_logistic_adam,
    "SVM+SGD": tasks.adult_svm_sgd,
}
#: Studies: options, and which epsilon they see.
STUDIES: dict[str, tuple[dict[str, Any], int]] = {
    "DPareto": ({"epsilon_scale": "log"}, 0),
    "DPareto, linear epsilon": ({"epsilon_scale": "linear"}, 0),
    "DPareto, the paper's way": ({"acquisition": "hvpoi", "privacy_model": "gp"}, 1),
}

#: Epsilon by dominating pairs, by Rényi divergences (None where there is no such bound), the error.
Points = list[list[Any]]
#: The cheapest front: one config for each of these, by the default rule.
UNTUNED = "default settings"
UNTUNED_EPSILONS = (0.03, 0.05, 0.1, 0.2, 0.3, 0.5, 1.0, 2.0, 3.0, 5.0, 8.0)


class TimedTrainings:
    """Utilities of trainings by the compiled loop, with the processor time that they take.

    Args:
        problem: Whose trainings they are.
    """

    def __init__(self, problem: PrivacyUtilityProblem) -> None:
        oracles: Any = problem.oracle.__self__  # type: ignore[attr-defined]
        model, name, optimizer, *_ = oracles.trainer.args
        self.training = FastTraining.of(model, name, optimizer)
        self.oracle = self.training.utilities
        self.seconds = 0.0

    def __call__(self, config: Config, seeds: Sequence[int]) -> Sequence[Any]:
        start = time.process_time()
        utilities: Sequence[Any] = self.oracle(config, seeds)
        self.seconds += time.process_time() - start
        return utilities


def prepared(label: str, replicates: int = 10, *, random: bool = False) -> PrivacyUtilityProblem:
    """A problem in the paper's ranges, trained by the compiled loop.

    Random points draw epochs uniformly and learning rates as in Table 4.
    """
    problem = SETTINGS[label](replicates=replicates)
    parameters = dict(problem.space.parameters)
    parameters["epochs"] = Integer(1, 64, log=not random)
    batch_size = parameters["batch_size"]
    assert isinstance(batch_size, Integer)
    parameters["batch_size"] = replace(batch_size, low=8)
    if random:
        parameters["learning_rate"] = TABLE_4
    return PrivacyUtilityProblem(
        # Products are for models, which random points do not have.
        SearchSpace(**parameters, products=() if random else problem.space.products),
        privacy=problem.privacy,
        batched=Batched(epsilons=problem.batched.epsilons, replicates=TimedTrainings(problem)),
        training=problem.training,
        replicates=replicates,
        name=label,
    )


def check_compiled_loop(label: str, seeds: Sequence[int] = range(16)) -> None:
    """The compiled loop must train as ``DPTrainer`` does: means within five standard errors."""
    problem = prepared(label, random=True)
    oracle: Any = problem.oracle
    fast = oracle.training
    slow = Training.of(fast.model, fast.data, fast.optimizer)
    config = problem.space.sample(1, seed=0)[0] | {"epochs": 2, "batch_size": 512}
    found = np.array([list(each.utilities(config, seeds)) for each in (fast, slow)])
    gap, error = np.ptp(found.mean(axis=1)), math.sqrt(found.var(axis=1, ddof=1).sum() / len(seeds))
    if gap > 5 * error:
        raise RuntimeError(f"{label}: the compiled loop is {gap:.4f} off, with an error of {error}")


def epsilons(config: Config, num_records: int) -> tuple[float, float]:
    """Both epsilons of a config; the noise of the paper is counted in two clipping norms."""
    run: dict[str, Any] = {
        "noise_multiplier": 2 * config["noise_variance"],
        "batch_size": config["batch_size"],
        "num_records": num_records,
        "steps": config["epochs"] * (num_records // config["batch_size"]),
        "delta": DELTA,
    }
    return dp_sgd_epsilon(sampling="without_replacement", **run), papers_epsilon(**run)


def training_of(label: str) -> FastTraining:
    """How the models of a setting are trained."""
    oracle: Any = prepared(label, random=True).oracle
    training: FastTraining = oracle.training
    return training


def num_records(training: FastTraining) -> int:
    return len(_data(training.data).train_X)


@dataclass
class Pool:
    """Random points of a setting, each trained equally often.

    Args:
        label: The setting.
        stored: Points so far, how often all of them were trained, and the errors of the next
            training as far as it has come. Changed in place.
    """

    label: str
    stored: dict[str, Any]

    @property
    def points(self) -> Points:
        return self.stored["points"]  # type: ignore[no-any-return]

    @property
    def trainings(self) -> int:
        return self.stored["trainings"]  # type: ignore[no-any-return]

    def fill(self, count: int, replicates: int, save: Callable[[], Any]) -> None:
        """Train what is missing; what cannot enter a hypervolume is not trained."""
        training, space = training_of(self.label), prepared(self.label, random=True).space
        seed = 1 + 10 * list(SETTINGS).index(self.label)
        configs, begun = space.sample(count, seed=seed), self.stored["begun"]
        while self.trainings < replicates:
            shown = f"{self.label}, training {self.trainings + 1}"
            for place in tqdm(range(len(begun), count), desc=shown, mininterval=30):
                if place == len(self.points):
                    both = epsilons(configs[place], num_records(training))
                    self.points.append([*(round(epsilon, 6) for epsilon in both), 1.0])
                if self.points[place][0] >= LARGEST:
                    begun.append(1.0)
                else:
                    drawn = place + 2**20 * self.trainings
                    (accuracy,) = training.utilities(configs[place], [drawn])
                    begun.append(round(1 - accuracy, 6))
                if len(begun) % 512 == 0:
                    save()
            for point, new in zip(self.points, begun, strict=True):
                point[2] = round(point[2] + (new - point[2]) / (self.trainings + 1), 7)
            begun.clear()
            self.stored["trainings"] += 1
            save()


def study_points(
    label: str, kind: str, seed: int, trials: int, replicates: int
) -> tuple[Points, float]:
    """What a study measured, and its own seconds of a processor."""
    options, axis = STUDIES[kind]
    problem = prepared(label, replicates)
    oracle: Any = problem.oracle
    records = num_records(oracle.training)
    if axis == 1:
        problem = PrivacyUtilityProblem(
            problem.space,
            privacy=lambda config: epsilons(config, records)[1],
            batched=Batched(replicates=oracle),
            replicates=replicates,
            name=f"{label}, epsilon by Rényi divergences",
        )
    start = time.process_time()
    with DPareto(problem, seed=seed, **options) as study:
        study.run(trials, initial=16)
        done = study.trials
    own = time.process_time() - start - oracle.seconds
    return [[*epsilons(dict(t.config), records), t.error] for t in done], own


def untuned_points(label: str, replicates: int) -> Points:
    """Errors of default settings (replace-one, Poisson batches, as the rule has them)."""
    training = training_of(label)
    factory, loss = _MODELS[training.model]
    data = _data(training.data)
    trainer = DPTrainer(partial(factory, data.train_X.shape[1]), loss, data)
    points: Points = []
    for epsilon in UNTUNED_EPSILONS:
        shared: Any = {"target_epsilon": epsilon, "delta": DELTA, "feature_norm": math.sqrt(14)}
        found = [trainer.fit(**shared, seed=seed) for seed in range(replicates)]
        points.append([epsilon, None, 1 - math.fsum(each.accuracy for each in found) / replicates])
    return points


def front(points: np.ndarray) -> np.ndarray:
    """The non-dominated points, by increasing epsilon."""
    order = points[np.lexsort((points[:, 1], points[:, 0]))]
    best = np.minimum.accumulate(np.append(np.inf, order[:, 1]))[:-1]
    return order[order[:, 1] < best]


def volume(points: np.ndarray, reference: tuple[float, float]) -> float:
    return dominated_volume(torch.from_numpy(points), reference)


def as_published_code(points: np.ndarray) -> float:
    epsilon, error = front(points)[0]
    return (LARGEST - epsilon) * (0.999 - error)


def logarithmic(points: np.ndarray) -> float:
    logs = np.stack([np.log(np.maximum(points[:, 0], SMALLEST) / SMALLEST), points[:, 1]], -1)
    return volume(logs, (math.log(LARGEST / SMALLEST), 1.0))


MEASURES: dict[str, Callable[[np.ndarray], float]] = {
    "hypervolume to (10, 1)": lambda points: volume(points, (LARGEST, 1.0)),
    "hypervolume to (10, .999)": lambda points: volume(points, (LARGEST, 0.999)),
    "what the published code returns": as_published_code,
    "hypervolume in ln(epsilon / .05)": logarithmic,
}
AXES = {"dominating pairs": 0, "Rényi divergences": 1}


def leads(pool: Points, study: Points) -> dict[str, Any]:
    """The study against disjoint draws of as many points as it chose itself."""
    random, own = np.array(pool, float), np.array(study[:DRAWN], float)
    draws = [random[place::DRAWS] for place in range(DRAWS)]
    found: dict[str, Any] = {}
    for axis, column in AXES.items():
        if study[0][column] is None:
            continue
        for name, measure in MEASURES.items():
            theirs = [measure(draw[:, [column, 2]]) for draw in draws]
            ours = measure(own[:, [column, 2]])
            found[f"{name}; epsilon by {axis}"] = {
                "study": ours,
                "draws": mean_interval(theirs),
                "standard deviation of a draw": float(np.std(theirs, ddof=1)),
                "lead": mean_interval([ours - other for other in theirs]),
                "ahead of": sum(ours > other for other in theirs),
            }
    return found


def draw(pools: dict[str, Points], studies: dict[str, Points], trainings: int) -> None:
    """The fronts of studies and of the draws, for both ways to compute epsilon."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.6 * len(pools)), layout="constrained")
    grid = figure.subplots(len(pools), 2, sharey=True, squeeze=False)
    for row, (label, pool) in zip(grid, pools.items(), strict=True):
        for ax, (axis, column) in zip(row, AXES.items(), strict=True):
            columns = [column, 2]
            random = np.array(pool)[:, columns]
            own = np.array(studies[label])[:DRAWN, columns]
            ax.plot(*random.T, ".", ms=2, color="0.8", label=f"{len(pool):,} random points")
            for place in range(DRAWS):
                steps = front(random[place::DRAWS])
                name = f"fronts of {DRAWS} draws of {len(pool) // DRAWS}"
                ax.step(*steps.T, where="post", color="C1", lw=0.8, label="" if place else name)
            name = f"front of {DRAWN} points of DPareto"
            ax.step(*front(own).T, where="post", color="C0", lw=2, label=name)
            ax.set(xscale="log", xlim=(5e-3, LARGEST), ylim=(0.15, 0.35))
            ax.set_title(f"{label}, ε by {axis}", fontsize=13)
        row[0].set_ylabel("error (1 − accuracy)", fontsize=13)
    for ax in grid[-1]:
        ax.set_xlabel(f"ε at δ = {DELTA:g} (one record is replaced by any other)", fontsize=13)
    grid[0][0].legend(fontsize=12)
    shown = "one training" if trainings == 1 else f"{trainings} trainings"
    figure.suptitle(
        f"Adult, {shown} of each point. Do not publish such a figure of records\n"
        "of your own: it is computed from them without noise.",
        fontsize=13,
    )
    figure.savefig(results_folder() / f"{NAME}.png", dpi=150)


def main() -> None:
    parser = BenchmarkParser(NAME, __doc__, minutes=120)
    parser.add_argument("--settings", nargs="+", choices=list(SETTINGS), default=list(SETTINGS))
    parser.add_argument("--points", type=int, default=DRAWS * DRAWN, help="random ones")
    parser.add_argument("--trials", type=int, default=16 + DRAWN)
    parser.add_argument("--replicates", type=int, default=10, help="trainings of a point")
    parser.add_argument("--kinds", nargs="+", choices=list(STUDIES), default=list(STUDIES))
    parser.add_argument("--seeds", type=int, default=3, help="studies of each kind")
    options = parser.parse_args()
    sizes = {name: getattr(options, name) for name in ("points", "trials")}
    before = earlier(NAME)
    results: dict[str, Any] = before if before.get("sizes") == sizes else {"sizes": sizes}
    results["printed in table 2"] = TABLE_2
    trained = "1 training" if options.replicates == 1 else f"{options.replicates} trainings"

    def save() -> None:
        save_results(NAME, results)

    def part(*names: str) -> dict[str, Any]:
        """A dictionary within the results, which is made if it is not there."""
        found: dict[str, Any] = results
        for name in names:
            found = found.setdefault(name, {})
        return found

    def filled(label: str) -> Points:
        pool = Pool(label, part("pools", label))
        for key, empty in (("trainings", 0), ("points", []), ("begun", [])):
            pool.stored.setdefault(key, empty)
        pool.fill(options.points, options.replicates, save)
        if pool.trainings != options.replicates:
            parser.error(f"{label}: each point has {pool.trainings} trainings already")
        return pool.points

    for label in options.settings:
        check_compiled_loop(label)
        pool, studies = filled(label), part("studies", label)
        if (cheapest := f"{UNTUNED}, {trained}") not in studies:
            studies[cheapest] = {"points": untuned_points(label, options.replicates)}
        for seed, kind in itertools.product(range(options.seeds), options.kinds):
            name = f"{kind}, seed {seed}, {trained}"
            if name not in studies:
                points, own = study_points(label, kind, seed, options.trials, options.replicates)
                studies[name] = {"points": points, "own seconds of a processor": own}
                save()
        part("leads", label).update(
            {n: leads(pool, s["points"]) for n, s in studies.items() if n.endswith(f" {trained}")}
        )
        save()
        for name, found in results["leads"][label].items():
            lead = found["hypervolume to (10, 1); epsilon by dominating pairs"]
            print(f"{label}: {name}: {lead['lead']} ahead of {lead['ahead of']} of {DRAWS}")
    if "DPareto" not in options.kinds:
        return
    draw(
        {label: part("pools", label)["points"] for label in options.settings},
        {
            label: part("studies", label)[f"DPareto, seed 0, {trained}"]["points"]
            for label in options.settings
        },
        options.replicates,
    )


if __name__ == "__main__":
    main()
