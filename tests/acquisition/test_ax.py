"""The acquisition functions inside Ax: proposals, directions, pending trials, saving, loading."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from botorch.exceptions.errors import UnsupportedError

from botorch_dp.acquisition import (
    GradientTrace,
    HypervolumeProbabilityOfImprovement,
    LogHypervolumeProbabilityOfImprovement,
    PrivateUpperConfidenceBound,
    UCBSchedule,
    register_with_ax,
)

#: Ax and pandas warn about their own future; one worker alone loads them, where they are needed.
pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.xdist_group("ax")]

INITIAL = 6


def new_client(objective: str, acquisition: type, **options: Any) -> Any:
    pytest.importorskip("ax", reason="needs the extra `ax`")
    from ax.adapter.registry import Generators
    from ax.api.client import Client
    from ax.api.configs import RangeParameterConfig
    from ax.generation_strategy.generation_node import GenerationNode
    from ax.generation_strategy.generation_strategy import GenerationStrategy
    from ax.generation_strategy.generator_spec import GeneratorSpec
    from ax.generation_strategy.transition_criterion import MinTrials

    client = Client(random_seed=0)
    client.configure_experiment(
        [RangeParameterConfig(name=name, parameter_type="float", bounds=(0, 1)) for name in "xz"]
    )
    thresholds = ["b_error <= 2.2", "a_gain >= -1"] if "," in objective else []
    if objective.startswith("b"):
        thresholds = ["b_error >= -1", "a_gain <= 2.2"]
    client.configure_optimization(objective, outcome_constraints=thresholds)
    modular = {"botorch_acqf_class": acquisition, "botorch_acqf_options": options}
    client.set_generation_strategy(
        GenerationStrategy(
            name="quasi-random, then the acquisition function",
            nodes=[
                GenerationNode(
                    name="initial",
                    generator_specs=[GeneratorSpec(Generators.SOBOL, generator_kwargs={"seed": 0})],
                    transition_criteria=[MinTrials(threshold=INITIAL, transition_to="search")],
                ),
                GenerationNode(
                    name="search",
                    generator_specs=[
                        GeneratorSpec(Generators.BOTORCH_MODULAR, generator_kwargs=modular)
                    ],
                ),
            ],
        )
    )
    return client


def outcomes(x: float, z: float) -> dict[str, float]:
    """Ax sorts outcomes by name, so their order is not that of the objectives."""
    return {"b_error": x + z, "a_gain": x**2 - z}


def single(x: float, z: float) -> dict[str, float]:
    return {"score": -((x - 0.3) ** 2) - (z - 0.8) ** 2}


def run(client: Any, evaluate: Callable[..., dict[str, float]], trials: int) -> list[dict]:
    proposed = []
    for _ in range(trials):
        for index, parameters in client.get_next_trials(max_trials=1).items():
            client.complete_trial(index, raw_data=evaluate(**parameters))
            proposed.append(parameters)
    return proposed


HVPOI = [LogHypervolumeProbabilityOfImprovement, HypervolumeProbabilityOfImprovement]


@pytest.mark.one_in(4)
@pytest.mark.parametrize("acquisition", HVPOI)
@pytest.mark.parametrize(
    ("objective", "best_z"), [("-b_error, a_gain", 0.0), ("b_error, -a_gain", 1.0)]
)
def test_hvpoi_follows_the_directions(acquisition: type, objective: str, best_z: float) -> None:
    """Small z is better in both objectives, large z when both directions are turned round."""
    client = new_client(objective, acquisition, region="unbounded")
    found = run(client, outcomes, INITIAL + 3)[INITIAL:]
    assert all(abs(one["z"] - best_z) < 0.25 for one in found)
    assert min(abs(one["z"] - best_z) for one in found) < 0.02


@pytest.mark.slow
def test_ucb_maximizes_and_minimizes() -> None:
    schedule = UCBSchedule(100, delta=0.1)
    for objective, best in (("score", (0.3, 0.8)), ("-score", (1.0, 0.0))):
        client = new_client(objective, PrivateUpperConfidenceBound, schedule=schedule)
        found = run(client, single, INITIAL + 6)[-1]
        assert abs(found["x"] - best[0]) < 0.2 and abs(found["z"] - best[1]) < 0.2


def test_ucb_refuses_pending_trials() -> None:
    schedule = UCBSchedule(100, delta=0.1)
    client = new_client("score", PrivateUpperConfidenceBound, schedule=schedule)
    run(client, single, INITIAL)
    client.get_next_trials(max_trials=1)
    with pytest.raises(UnsupportedError, match="pending"):
        client.get_next_trials(max_trials=1)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("objective", ["score", "-score"])
def test_gradient_trace_surrounds_the_location(objective: str) -> None:
    """Where it samples depends on the location and on pending trials, not on the direction."""
    client = new_client(objective, GradientTrace, location=[0.4, 0.6])
    run(client, single, INITIAL)
    proposed = client.get_next_trials(max_trials=1) | client.get_next_trials(max_trials=2)
    offsets = torch.tensor([[one["x"] - 0.4, one["z"] - 0.6] for one in proposed.values()])
    assert len(offsets) == 3 and (offsets.norm(dim=-1) < 0.5).all()
    assert torch.pdist(offsets).min() > 1e-2
    # Together they see both components of the gradient.
    assert torch.linalg.svdvals(offsets)[1] > 0.1


@pytest.mark.one_in(4)
@pytest.mark.parametrize(
    ("acquisition", "options"),
    [
        (HypervolumeProbabilityOfImprovement, {"region": "box"}),
        (LogHypervolumeProbabilityOfImprovement, {"tau_relu": 1e-4}),
        (PrivateUpperConfidenceBound, {"schedule": UCBSchedule(50, delta=0.1)}),
        (GradientTrace, {"location": [0.4, 0.6]}),
    ],
)
def test_save_and_load(acquisition: type, options: dict[str, Any], tmp_path: Path) -> None:
    multi = acquisition in HVPOI
    evaluate = outcomes if multi else single
    client = new_client("-b_error, a_gain" if multi else "score", acquisition, **options)
    register_with_ax()
    register_with_ax()  # again does no harm
    run(client, evaluate, INITIAL + 1)
    client.save_to_json_file(str(tmp_path / "experiment.json"))
    loaded = type(client).load_from_json_file(str(tmp_path / "experiment.json"))
    nodes = {node.name: node for node in loaded._generation_strategy._nodes}
    settings = nodes["search"].generator_specs[0].generator_kwargs
    assert settings == {"botorch_acqf_class": acquisition, "botorch_acqf_options": options}
    assert len(run(loaded, evaluate, 2)) == 2
