from __future__ import annotations

import math

import pytest

from botorch_dp.pareto import Objective, Trial
from botorch_dp.pareto.problem import Measurement
from botorch_dp.pareto.trials import derived_seeds, outcome
from tests.pareto import toy


def test_properties() -> None:
    trial = Trial(
        number=3,
        config={"noise": 1.0, "epochs": 4},
        seeds=(11, 12, 13),
        epsilon=2.0,
        measurements=(Measurement(0.5, (), 1.0), None, Measurement(0.7, (), 2.0)),
        fresh=(Measurement(0.1),),
        failures=("OSError",),
        failed_trainings=2,
    )
    assert trial.missing == (1,) and trial.missing_seeds == (12,)
    assert trial.utilities == (0.5, 0.7)
    assert trial.error == pytest.approx(0.4)
    assert trial.seconds == 3.0
    assert trial.num_trainings == 5
    assert "0.5" not in repr(trial), "a sensitive value in a repr"


def test_nothing_measured() -> None:
    trial = Trial(0, {}, (1, 2), 1.0)
    assert math.isnan(trial.error) and trial.missing == (0, 1) and trial.num_trainings == 0


def test_outcome_keeps_the_order_of_objectives() -> None:
    problem = toy.problem(
        objectives=[
            Objective("time", 60.0),
            Objective("size", 100.0, function=lambda config: float(config["epochs"])),
            Objective("memory", 10.0),
        ]
    )
    trial = Trial(
        number=0,
        config={"noise": 1.0, "epochs": 4},
        seeds=(1, 2),
        epsilon=2.0,
        measurements=(Measurement(0.5, (1.0, 5.0)), Measurement(0.5, (3.0, 6.0))),
    )
    assert outcome(problem, trial) == (2.0, 0.5, 2.0, 4.0, 5.5)


def test_seeds_are_distinct_fixed_and_small() -> None:
    seeds = [seed for n in range(50) for seed in derived_seeds(7, n, 0, 4)]
    assert len(set(seeds)) == 200
    assert all(0 <= seed < 2**31 for seed in seeds)
    assert derived_seeds(7, 3, 2, 2) == derived_seeds(7, 3, 0, 4)[2:]
    assert derived_seeds(8, 3, 0, 4) != derived_seeds(7, 3, 0, 4)
