"""The studies behind ``dpareto_paper``: settings, methods, and one run of one of them."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.linear_training import FastTraining, Training
from botorch_dp import tasks
from botorch_dp.pareto import (
    Batched,
    DPareto,
    Integer,
    ParetoFront,
    PrivacyUtilityProblem,
    SearchSpace,
)
from botorch_dp.pareto.front import dominated_volume
from botorch_dp.space import Config


@dataclass(frozen=True)
class Setting:
    """One of the paper's five learning problems, at the size it is run in.

    Args:
        label: The paper's name for it.
        task: Builds the problem.
        max_epochs: Upper end of the epochs' range.
        min_batch: Lower end of the batch size's range.
        initial: Trials drawn before models are consulted.
        trials: All trials of a study, the initial ones included.
        replicates: Trainings of a trial.
        again: Fresh trainings of each config on a front.
        seeds: Studies of each method that are repeated.
        methods: Which ones, and how many trials each takes; None: ``trials``.
        full: Whether it has the paper's size. Then grids are equidistant in the parameters
            themselves, their configs are trained as often as others, and linear models are trained
            by a compiled loop.
    """

    label: str
    task: Callable[..., PrivacyUtilityProblem]
    max_epochs: int
    min_batch: int
    initial: int
    trials: int
    replicates: int
    again: int
    seeds: int
    methods: dict[str, int | None] = field(default_factory=dict)
    full: bool = False


#: Label -> options of the study.
METHODS: dict[str, dict[str, Any]] = {
    "DPareto": {"acquisition": "ehvi", "privacy_model": "exact"},
    "DPareto, HVPoI": {"acquisition": "hvpoi", "privacy_model": "gp"},
    "random": {"acquisition": "random"},
    "grid of 3": {"acquisition": "grid", "grid_levels": 3},
    "grid of 4": {"acquisition": "grid", "grid_levels": 4},
}
_REPEATED: dict[str, int | None] = {"DPareto": None, "random": None}
_ALL = {"DPareto": None, "random": None, "DPareto, HVPoI": None}

_ADULT = {"max_epochs": 10, "min_batch": 8, "initial": 16, "trials": 40}
_REDUCED_ADULT: dict[str, Any] = _ADULT | {"replicates": 3, "again": 5, "seeds": 3}
_REDUCED_MNIST: dict[str, Any] = {"min_batch": 200, "initial": 8, "replicates": 1}

#: What is run by default: some twenty minutes of one core.
REDUCED = (
    Setting(
        "LogReg+SGD",
        tasks.adult_logistic_sgd,
        **_REDUCED_ADULT,
        methods={**_ALL, "grid of 3": 243, "grid of 4": 128},
    ),
    Setting(
        "LogReg+ADAM",
        tasks.adult_logistic_adam,
        **_REDUCED_ADULT,
        methods={**_REPEATED, "grid of 3": 81},
    ),
    Setting(
        "SVM+SGD",
        tasks.adult_svm_sgd,
        **_REDUCED_ADULT,
        methods={**_REPEATED, "grid of 3": 81},
    ),
    Setting(
        "MLP2+SGD",
        tasks.mnist_mlp2_sgd,
        max_epochs=4,
        trials=16,
        again=3,
        seeds=2,
        methods=_REPEATED,
        **_REDUCED_MNIST,
    ),
    Setting(
        "MLP1+SGD",
        tasks.mnist_mlp1_sgd,
        max_epochs=2,
        trials=12,
        again=2,
        seeds=1,
        methods=_REPEATED,
        **_REDUCED_MNIST,
    ),
)

_FULL: dict[str, Any] = {
    "initial": 16,
    "trials": 272,
    "replicates": 10,
    "again": 10,
    "seeds": 1,
    "full": True,
}
#: Figure 5 shows 1,500 random points; the test of Table 2 draws 19 times 256 of them here (from
#: 5,000 in the paper).
_FULL_METHODS = {**_ALL, "random": 1500, "grid of 3": 243, "grid of 4": 1024}
DRAWS, DRAWN = 19, 256
#: Where the axis of ln(epsilon) begins: below it nothing is learnt.
SMALLEST = 0.05
#: The paper's sizes: some hours of one core for Adult, weeks for MNIST.
FULL = tuple(
    Setting(
        each.label,
        each.task,
        max_epochs=400 if "MLP" in each.label else 64,
        min_batch=16 if "MLP" in each.label else 8,
        methods=_FULL_METHODS,
        **_FULL,
    )
    for each in REDUCED
)


class TimedOracle:
    """A utility oracle that counts its processor time.

    Args:
        problem: Whose oracle it is.
        compiled: Whether a linear model is trained by :mod:`benchmarks.linear_training`.
        needed_epsilon: Configs beyond it are not trained but given utility 0: they cannot enter a
            hypervolume that ends there. Epsilon is exact, so nothing is guessed. (The study does
            not know, and counts them in what publishing its front costs.)
    """

    def __init__(
        self, problem: PrivacyUtilityProblem, compiled: bool, needed_epsilon: float
    ) -> None:
        self.problem = problem
        oracles: Any = problem.oracle.__self__  # type: ignore[attr-defined]
        model, name, optimizer, _ = oracles.trainer.args
        fast = compiled and model in ("logistic", "svm")
        self.training = (FastTraining if fast else Training).of(model, name, optimizer)
        self.oracle = self.training.utilities
        self.needed_epsilon = needed_epsilon
        self.seconds = 0.0
        self.trainings = 0

    def __call__(self, config: Config, seeds: Sequence[int]) -> Sequence[Any]:
        if self.problem.epsilon(config) >= self.needed_epsilon:
            return [0.0] * len(seeds)
        start = time.process_time()
        utilities: Sequence[Any] = self.oracle(config, seeds)
        self.seconds += time.process_time() - start
        self.trainings += len(seeds)
        return utilities


def prepared(setting: Setting, method: str) -> PrivacyUtilityProblem:
    """The setting's problem in its range, with a timed oracle.

    Random sampling draws epochs uniformly, as the paper does; the models of the others see their
    logarithm. Grids are equidistant in the scale of the models, and their many configs are trained
    a third as often.
    """
    grid = method.startswith("grid")
    rarely = grid and not setting.full
    replicates = max(1, setting.replicates // 3) if rarely else setting.replicates
    problem = setting.task(replicates=replicates)
    parameters = dict(problem.space.parameters)
    parameters["epochs"] = Integer(1, setting.max_epochs, log=method != "random")
    batch_size = parameters["batch_size"]
    assert isinstance(batch_size, Integer)
    parameters["batch_size"] = replace(batch_size, low=setting.min_batch)
    if grid and setting.full:
        parameters = {name: replace(p, log=False) for name, p in parameters.items()}  # type: ignore
    return PrivacyUtilityProblem(
        SearchSpace(
            **parameters,
            # Products are for models, which neither random sampling nor grids have.
            products=problem.space.products if "DPareto" in method else (),
        ),
        privacy=problem.privacy,
        batched=Batched(
            epsilons=problem.batched.epsilons,
            replicates=TimedOracle(
                problem, setting.full, problem.ref_point[0] if grid else math.inf
            ),
        ),
        promise=problem.promise,
        replicates=replicates,
        name=f"{setting.label}, {method}",
    )


def open_study(setting: Setting, method: str, seed: int, folder: Path) -> DPareto:
    """The study with its file, where it is continued if it was interrupted."""
    name = f"{setting.label}-{method}-{seed}".replace(", ", "-").replace(" ", "-")
    return DPareto(
        prepared(setting, method), storage=folder / f"{name}.sqlite", seed=seed, **METHODS[method]
    )


def evaluated_again(study: DPareto, front: ParetoFront, replicates: int) -> ParetoFront:
    """The front from fresh trainings; those that the study has already are not repeated."""
    if any(len(trial.fresh) < replicates for trial in front.front_trials):
        front.reevaluate(replicates)
    numbers = {trial.number for trial in front.front_trials}
    fresh = [
        replace(trial, measurements=trial.fresh, fresh=())
        for trial in study.trials
        if trial.number in numbers
    ]
    return ParetoFront(
        study.problem,
        fresh,
        guarantee=study.publication_guarantee(),
        label=f"{front.label}, evaluated again",
        observed=front,
    )


def volumes(points: Tensor, ref_point: tuple[float, float]) -> dict[str, float]:
    """Hypervolume in epsilon, as in the paper, and in ln(epsilon / 0.05)."""
    logs = torch.stack([(points[:, 0].clamp_min(SMALLEST) / SMALLEST).log(), points[:, 1]], dim=-1)
    return {
        "linear": dominated_volume(points, ref_point),
        "log": dominated_volume(logs, (math.log(ref_point[0] / SMALLEST), ref_point[1])),
    }


def run_study(
    setting: Setting, method: str, seed: int, folder: Path, deadline: float = math.inf
) -> dict[str, Any] | None:
    """Run one study, or what is missing of it, and evaluate its fronts again.

    The front is evaluated again after the initial trials and after all; no proposal sees that.
    None if the study has not come so far by the deadline, in seconds of ``time.monotonic``.
    """
    count = setting.methods[method]
    total = setting.trials if count is None else count
    stops = [total] if method.startswith("grid") else [setting.initial, total]
    result: dict[str, Any] = {"trials": total, "at": {}}
    with open_study(setting, method, seed, folder) as study:
        oracle = study.problem.oracle
        assert isinstance(oracle, TimedOracle)
        ref_point = study.problem.ref_point
        resumed = len(study.trials) > 0
        loop_seconds, training_seconds = 0.0, 0.0
        for stop in stops:
            trained, start = oracle.seconds, time.process_time()
            left = deadline - time.monotonic()
            if left <= 0:
                return None
            timeout = None if left == math.inf else left
            study.run(max(stop, len(study.trials)), initial=setting.initial, timeout=timeout)
            if len(study.trials) < stop:
                return None
            spent, oracle_spent = time.process_time() - start, oracle.seconds - trained
            training_seconds += oracle_spent
            loop_seconds += spent - oracle_spent
            front = _front_of(study, stop)
            again = evaluated_again(study, front, setting.again)
            result["at"][str(stop)] = {
                "observed": volumes(front.points, ref_point),
                "evaluated_again": volumes(again.points, ref_point),
                "configs_on_front": len(front),
            }
        result["observed_by_trial"] = [
            round(v, 5) for v in study.front().hypervolume_by_trial().tolist()
        ]
        result["trainings"] = oracle.trainings
        if setting.full and method == "random":
            result["random_draws"] = random_draws(study.front().all_points, ref_point)
        result["processor_seconds"] = {
            "training": training_seconds,
            "loop": loop_seconds,
            "evaluating_again": oracle.seconds - training_seconds,
            "complete": not resumed,
        }
    return result


def random_draws(points: Tensor, ref_point: tuple[float, float]) -> list[dict[str, float]]:
    """Hypervolumes of random subsets: the test of Table 2, at a level of 1 / (19 + 1)."""
    generator = torch.Generator().manual_seed(0)
    draws = (torch.randperm(len(points), generator=generator)[:DRAWN] for _ in range(DRAWS))
    return [volumes(points[draw], ref_point) for draw in draws]


def expected_hours(settings: Sequence[Setting]) -> dict[str, float]:
    """Core-hours of each setting, from the time that some steps take here.

    A step costs a part of its own and one for each record in its batch. Epochs and batches are averaged
    over what each method draws; what a study finds out for itself counts as a random draw.
    """
    hours = {}
    for setting in settings:
        problem = prepared(setting, "random")
        oracle: Any = problem.oracle
        num_records = oracle.training.num_records
        seconds = []
        for batch in (64, 512):
            config = problem.space.sample(1, seed=0)[0] | {"epochs": 1, "batch_size": batch}
            start = time.process_time()
            oracle(config, list(range(setting.replicates)))
            seconds.append((time.process_time() - start) / (num_records // batch))
        per_record = max(0.0, (seconds[1] - seconds[0]) / (512 - 64))
        own = max(seconds[0] - 64 * per_record, 0.0)
        total = 0.0
        for method, count in setting.methods.items():
            repeats = 1 if method.startswith("grid") else setting.seeds
            space = prepared(setting, method).space
            if method.startswith("grid"):
                configs = space.grid(int(method[-1]))[:count]
            else:
                configs = space.sample(200, seed=1)
            steps = [c["epochs"] * (num_records // c["batch_size"]) for c in configs]
            each = [
                n * (own + per_record * c["batch_size"])
                for n, c in zip(steps, configs, strict=True)
            ]
            total += repeats * (count or setting.trials) * sum(each) / len(each)
        hours[setting.label] = total / 3600
    return hours


def _front_of(study: DPareto, stop: int) -> ParetoFront:
    """The front of the first ``stop`` trials, also if the study has gone on since."""
    whole = study.front()
    if len(whole.trials) <= stop:
        return whole
    return ParetoFront(
        study.problem,
        [trial for trial in whole.trials if trial.number < stop],
        guarantee=whole.guarantee,
    )
