"""What does paid selection cost anybody's trainer, in noise, in lines and in time?

    python -m benchmarks.paid_selection [--part prices lines time optuna]

* ``prices``: the noise multiplier of DP-SGD (batches of 512 of 32,561 records, 1,280 steps,
  delta = 1e-5, add-or-remove-one) for one training; for the best of 20 expected trainings, by us
  and by dp-accounting's ``RepeatAndSelectDpEvent`` (Rényi divergences) with the same law of their
  number; and for 20 trainings that are all published.
* ``lines``: how many lines of the scripts in ``examples/paid_tuning`` change.
* ``time``: what a run adds to a training that takes no time and returns 1 MB of weights, without
  and with a checkpoint, and how long the noise of a configuration takes to solve for.
* ``optuna``: hypervolume after 24 trials of a cheap problem with noisy utilities: ``DPareto.run``,
  ``DParetoSampler`` in one process and in two on one journal, random search, and Optuna's own
  sampler for two objectives; paired by seeds.
"""

from __future__ import annotations

import math
import multiprocessing
import tempfile
import time
from functools import partial
from typing import Any

import numpy as np
import optuna
import torch
from dp_accounting import NeighboringRelation as TheirRelation
from dp_accounting import dp_event, rdp

from benchmarks.common import BenchmarkParser, mean_interval, paired_interval, save_results
from benchmarks.tables import bracketed, markdown, stored
from botorch_dp import DPareto, PrivacyUtilityProblem, PrivateSelection, Real, SearchSpace
from botorch_dp.integrations.optuna import DParetoSampler, suggest
from botorch_dp.pareto.front import dominated_volume
from botorch_dp.privacy import DPSGD, NeighboringRelation, PrivacyBudget
from botorch_dp.privacy.selection import TrialNumber
from botorch_dp.space import Config
from examples.paid_tuning import NAMES, changed_lines

DELTA, TRIALS = 1e-5, 20
TRAINING = DPSGD(
    batch_size=512, num_records=32_561, steps=1280, relation=NeighboringRelation.ADD_OR_REMOVE_ONE
)


def _event(noise: float) -> Any:
    step = dp_event.PoissonSampledDpEvent(512 / 32_561, dp_event.GaussianDpEvent(noise))
    return dp_event.SelfComposedDpEvent(step, TRAINING.steps)


def _theirs(epsilon: float, shape: float) -> float:
    """The least noise for the best of 20, by dp-accounting."""

    def spent(noise: float) -> float:
        accountant = rdp.RdpAccountant(neighboring_relation=TheirRelation.ADD_OR_REMOVE_ONE)
        event = dp_event.RepeatAndSelectDpEvent(_event(noise), TRIALS, shape)
        return accountant.compose(event).get_epsilon(DELTA)

    low, high = 0.3, 1000.0
    while high > low * 1.002:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if spent(middle) <= epsilon else (middle, high)
    return high


def prices(_: int) -> None:
    rows = []
    for epsilon in (1.0, 0.1):
        row: dict[str, Any] = {"epsilon": epsilon}
        for shape in (1.0, 3.0):
            selection = PrivateSelection(
                print,
                SearchSpace(x=Real(0.0, 1.0)),
                mechanism=lambda config: TRAINING,
                budget=PrivacyBudget(epsilon, DELTA),
                trials=TrialNumber(TRIALS, shape),
                scored_on="public",
            )
            noise = selection.plan().noise_multipliers
            row["one training"], row["composition"] = (
                noise["tuning ignored"],
                noise["all published"],
            )
            row[f"selection, shape {shape:g}"] = noise["this"]
            row[f"RepeatAndSelectDpEvent, shape {shape:g}"] = _theirs(epsilon, shape)
        rows.append(row)
        print(row)
    save_results("paid_selection_prices", {"delta": DELTA, "trials": TRIALS, "rows": rows})


def lines(_: int) -> None:
    found = {name: changed_lines(name) for name in NAMES}
    print(found)
    save_results("paid_selection_lines", {"changed": found})


def _weights(config: Config, noise_multiplier: float) -> tuple[Any, float]:
    return {"weight": torch.zeros(2**18)}, config["x"]


def added_time(repetitions: int) -> None:
    count, found = 40, {}
    draw = TrialNumber.draw
    TrialNumber.draw = lambda self: count  # type: ignore[method-assign]
    try:
        for name in ("in memory", "with a checkpoint"):
            seconds = []
            for _ in range(repetitions):
                selection = PrivateSelection(
                    _weights,
                    SearchSpace(x=Real(0.0, 1.0)),
                    mechanism=lambda config: TRAINING,
                    budget=PrivacyBudget(1.0, DELTA),
                    scored_on="public",
                )
                selection.plan()  # solves for the noise, once
                with tempfile.TemporaryDirectory() as folder:
                    begin = time.perf_counter()
                    selection.run(checkpoint=f"{folder}/run" if "with" in name else None)
                    seconds.append((time.perf_counter() - begin) / count)
            found[name] = mean_interval([1000 * each for each in seconds])
            print(f"{name}: {found[name]} ms for each training")
    finally:
        TrialNumber.draw = draw  # type: ignore[method-assign]
    begin = time.process_time()
    for steps in range(1000, 1010):
        other = DPSGD(batch_size=512, num_records=32_561, steps=steps)
        PrivateSelection(
            _weights,
            {"x": 1.0},
            mechanism=lambda config, other=other: other,
            budget=PrivacyBudget(1.0, DELTA),
            scored_on="public",
        ).noise_multiplier({"x": 1.0})
    solving = 100 * (time.process_time() - begin)
    print(f"noise of a configuration: {solving:.0f} ms")
    save_results("paid_selection_time", {"milliseconds for each training": found, "noise": solving})


# --- Optuna. ---

SPACE = SearchSpace(noise=Real(0.3, 20.0, log=True), rate=Real(0.001, 10.0, log=True))
LENGTH, INITIAL = 24, 8


def privacy(config: Config) -> float:
    return 3.0 / config["noise"]


def exact(config: Config) -> float:
    """A made-up accuracy: noise costs, and the best rate falls with it."""
    best = math.log10(0.3 / (1 + 0.3 * config["noise"]))
    far = (math.log10(config["rate"]) - best) ** 2
    return 0.5 + 0.4 / (1 + 0.1 * config["noise"]) * math.exp(-0.4 * far)


def utility(config: Config, seed: int) -> float:
    return exact(config) + 0.01 * float(np.random.default_rng(seed).normal())


def _objective(trial: optuna.Trial, seed: int) -> tuple[float, float]:
    config = suggest(trial, SPACE)
    return privacy(config), utility(config, 1000 * seed + trial.number)


def _study(path: str, sampler: Any) -> optuna.Study:
    backend = optuna.storages.journal.JournalFileBackend(path)
    return optuna.create_study(
        storage=optuna.storages.JournalStorage(backend),
        study_name="front",
        load_if_exists=True,
        directions=["minimize", "maximize"],
        sampler=sampler,
    )


def _take_part(path: str, seed: int, trials: int) -> None:
    sampler = DParetoSampler(SPACE, privacy, seed=seed, initial=INITIAL)
    _study(path, sampler).optimize(partial(_objective, seed=seed), n_trials=trials)


def _configs_of(way: str, seed: int) -> list[Config]:
    if way == "DPareto.run":
        problem = PrivacyUtilityProblem(SPACE, privacy=privacy, utility=utility)
        with DPareto(problem, seed=seed) as study:
            study.run(LENGTH, initial=INITIAL)
            return [trial.config for trial in study.trials]
    with tempfile.TemporaryDirectory() as folder:
        path, own = f"{folder}/journal", DParetoSampler(SPACE, privacy, seed=seed, initial=INITIAL)
        samplers = {
            "random": optuna.samplers.RandomSampler(seed=seed),
            "Optuna's TPE": optuna.samplers.TPESampler(seed=seed, n_startup_trials=INITIAL),
        }
        study = _study(path, samplers.get(way, own))
        if way == "DParetoSampler, two processes":
            context = multiprocessing.get_context("spawn")
            workers = [
                context.Process(target=_take_part, args=(path, seed, LENGTH // 2)) for _ in range(2)
            ]
            for worker in workers:
                worker.start()
            for worker in workers:
                worker.join()
        else:
            study.optimize(partial(_objective, seed=seed), n_trials=LENGTH)
        return [dict(trial.params) for trial in study.trials]


def in_optuna(repetitions: int) -> None:
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    ref = torch.tensor([10.0, 1.0], dtype=torch.double)
    ways = (
        "random",
        "Optuna's TPE",
        "DPareto.run",
        "DParetoSampler, one process",
        "DParetoSampler, two processes",
    )
    volumes: dict[str, list[float]] = {way: [] for way in ways}
    for seed in range(repetitions):
        for way in ways:
            configs = _configs_of(way, seed)
            assert len(configs) == LENGTH
            # What was tried is judged without noise.
            points = torch.tensor([[privacy(c), 1 - exact(c)] for c in configs]).double()
            volumes[way].append(dominated_volume(points, ref))
        print(seed, {way: round(values[-1], 4) for way, values in volumes.items()}, flush=True)
    base = volumes["DPareto.run"]
    rows = {
        way: {
            "hypervolume": mean_interval(values),
            "against DPareto.run": paired_interval(values, base),
        }
        for way, values in volumes.items()
    }
    for way, row in rows.items():
        print(way, row)
    save_results("paid_selection_optuna", {"trials": LENGTH, "seeds": repetitions, "rows": rows})


def table_paid_prices() -> str:
    names = {
        "one training": "one training, tuning ignored",
        "selection, shape 1": "20 expected, geometric: `PrivateSelection`",
        "RepeatAndSelectDpEvent, shape 1": "20 expected, geometric: `RepeatAndSelectDpEvent`",
        "selection, shape 3": "20 expected, shape 3 (the default): `PrivateSelection`",
        "RepeatAndSelectDpEvent, shape 3": "20 expected, shape 3: `RepeatAndSelectDpEvent`",
        "composition": "20 trainings, all published",
    }
    found = stored("paid_selection_prices")["rows"]
    rows = [[label, *(f"{row[way]:#.3g}" for row in found)] for way, label in names.items()]
    return markdown(["", *(f"ε = {row['epsilon']:g}" for row in found)], rows)


def table_paid_optuna() -> str:
    names = {
        "random": "random",
        "Optuna's TPE": "Optuna's `TPESampler`",
        "DPareto.run": "`DPareto.run`",
        "DParetoSampler, one process": "`DParetoSampler`, one process",
        "DParetoSampler, two processes": "`DParetoSampler`, two processes on a journal",
    }
    rows = []
    for way, row in stored("paid_selection_optuna")["rows"].items():
        against = "" if way == "DPareto.run" else bracketed(row["against DPareto.run"])
        rows.append([names[way], bracketed(row["hypervolume"]), against])
    return markdown(["", "hypervolume", "against `DPareto.run`"], rows)


def main() -> None:
    minutes = {"prices": 1, "lines": 0.01, "time": 0.5, "optuna": 6}
    parser = BenchmarkParser("paid_selection", __doc__, minutes=minutes)
    parser.add_argument("--repetitions", type=int, default=10)
    options = parser.parse_args()
    for part in options.part:
        found = {"prices": prices, "lines": lines, "time": added_time, "optuna": in_optuna}
        found[part](options.repetitions)


if __name__ == "__main__":
    main()
