"""Optuna's own tests of samplers, on studies of two objectives and the space of each test."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

optuna = pytest.importorskip("optuna", reason="needs the extra `optuna`")
cases = pytest.importorskip("optuna.testing.pytest_samplers", reason="ships with Optuna 5")

from botorch_dp.integrations.optuna import DParetoSampler  # noqa: E402
from botorch_dp.space import Choice, Integer, Parameter, Real, SearchSpace, When  # noqa: E402

optuna.logging.set_verbosity(optuna.logging.ERROR)
pytestmark = [
    pytest.mark.one_in(36),
    pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning"),
    pytest.mark.filterwarnings("ignore:.*finished trials of this study lie outside"),
]
EPSILON = 1.0


class TwoObjectives(optuna.Study):  # type: ignore[misc]
    """A study of (epsilon, error) for a test that has one objective, which may be any number."""

    def optimize(self, func: Callable[[Any], float], *args: Any, **options: Any) -> None:
        super().optimize(lambda trial: (EPSILON, error_of(func(trial))), *args, **options)

    def tell(self, trial: Any, values: float | None = None, **options: Any) -> Any:
        return super().tell(trial, (EPSILON, error_of(values)), **options)

    def add_trial(self, trial: Any) -> None:
        trial.values = [EPSILON, error_of(*trial.values)]
        super().add_trial(trial)

    @property
    def best_value(self) -> float:
        errors = [t.values[1] for t in self.trials if t.state.name == "COMPLETE"]
        return math.tan(math.pi * (min(errors) - 0.5))


def error_of(value: float) -> float:
    """An error in [0, 1] that grows with a value."""
    return 0.5 + math.atan(value) / math.pi


def parameter(distribution: Any) -> Parameter:
    """A space has no steps: what is proposed between them is drawn anew by Optuna."""
    if isinstance(distribution, optuna.distributions.CategoricalDistribution):
        return Choice(*distribution.choices)
    if distribution.single():
        return Choice(distribution.low)
    made = Integer if isinstance(distribution, optuna.distributions.IntDistribution) else Real
    return made(distribution.low, distribution.high, log=distribution.log)


def asked_for(*suggests: Callable[[Any], Any]) -> dict[str, Any]:
    probe = optuna.trial.FixedTrial({"x": 1, "y": 1, "z": 1})
    for suggest in suggests:
        suggest(probe)
    return dict(probe.distributions)


def space_of(name: str, given: dict[str, Any]) -> SearchSpace:
    """What a test of this name, with these parameters, asks a sampler for."""
    F, I, C = (  # noqa: E741
        optuna.distributions.FloatDistribution,
        optuna.distributions.IntDistribution,
        optuna.distributions.CategoricalDistribution,
    )
    if name == "test_conditional_parameter_objective":
        return SearchSpace(
            x=Choice(True, False),
            y=Real(0, 1, active=When("x", True)),
            z=Real(0, 1, active=When("x", False)),
        )
    found: dict[str, Any] = {
        "test_nan_objective_value": {"x": F(0.1, 0.2)},
        "test_partial_fixed_sampling": {"x": F(-1, 1), "y": I(-1, 1), "z": F(-1, 1)},
        "test_sample_single_distribution": {
            **{"a": C([1]), "b": I(1, 1), "c": I(1, 1, log=True), "d": F(1, 1)},
            **{"e": F(1, 1, log=True), "f": F(1, 1, step=1.0)},
        },
        "test_dynamic_range_objective": {"x": F(0, 10), "y": I(0, 10)},
        "test_trial_relative_params": {"x": F(-10, 10), "y": F(-10, 10)},
        "test_sample_relative_categorical": {"x": C([1, 10, 100]), "y": C([-1, -10, -100])},
        "test_sample_relative_mixed": {"y": C([-1, -10, -100])},
    }.get(name, {})
    found |= asked_for(*(f for key, f in given.items() if key.startswith("suggest_method")))
    found |= {key[:1]: each for key, each in given.items() if key.endswith("_distribution")}
    return SearchSpace(**{key: parameter(each) for key, each in (found or {"x": F(0, 1)}).items()})


@pytest.fixture
def sampler(request: Any, monkeypatch: pytest.MonkeyPatch) -> Callable[[], DParetoSampler]:
    create_study = optuna.create_study

    def created(**options: Any) -> Any:
        if "directions" in options:
            return create_study(**options)
        study = create_study(directions=["minimize", "minimize"], **options)
        study.__class__ = TwoObjectives
        return study

    monkeypatch.setattr(optuna, "create_study", created)
    monkeypatch.setattr(optuna.study, "create_study", created)
    given = getattr(request.node, "callspec", None)
    space = space_of(request.node.originalname, given.params if given else {})
    return lambda: DParetoSampler(space, lambda config: EPSILON, initial=2)


class _Sampler:
    @pytest.fixture
    def sampler(self, sampler: Any) -> Any:
        return sampler


@pytest.mark.slow
class TestBasic(_Sampler, cases.BasicSamplerTestCase):  # type: ignore[misc]
    pass


class TestRelative(_Sampler, cases.RelativeSamplerTestCase):  # type: ignore[misc]
    pass


class TestMultiObjective(_Sampler, cases.MultiObjectiveSamplerTestCase):  # type: ignore[misc]
    pass
