"""Studies that begin with what another one found, on a public copy of the data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from botorch_dp.pareto import DPareto, Real, SearchSpace
from botorch_dp.space import Config
from tests.pareto import toy


def study(**options: Any) -> DPareto:
    return DPareto(toy.problem(), **({"seed": 0, "candidates": 128} | options))


@pytest.fixture(scope="module")
def public() -> DPareto:
    """The same trade-off, a little off."""

    def utility(config: Config, seed: int) -> float:
        return 0.9 * toy.utility(config, seed)

    tried = DPareto(toy.problem(utility, name="public"), seed=1, candidates=128)
    tried.run(24, initial=8)
    return tried


class TestBestConfigs:
    def test_of_the_whole_front(self, public: DPareto) -> None:
        configs = public.best_configs(6)
        epsilons = [toy.epsilon(config) for config in configs]
        assert 3 <= len(configs) <= 6 and epsilons == sorted(epsilons, reverse=True)
        assert epsilons[0] <= 10.0 * (1 + 1e-9) and epsilons[0] > 3 * epsilons[-1]
        assert all(toy.SPACE.check(config) for config in configs)

    def test_within_an_epsilon(self, public: DPareto) -> None:
        configs = public.best_configs(5, epsilon=2.0)
        assert configs[0] == public.recommend(2.0).config
        assert all(toy.epsilon(config) <= 2.0 for config in configs)
        within = [t for t in public.trials if t.epsilon <= 2.0]
        assert len(configs) == min(5, len(within) + 1)
        errors = [toy.expected_error(config) for config in configs]
        worst = max(toy.expected_error(trial.config) for trial in within)
        assert max(errors) < worst

    def test_without_the_exact_epsilon(self) -> None:
        tried = study(privacy_model="gp")
        tried.run(10)
        assert all(toy.epsilon(c) <= 1.0 for c in tried.best_configs(3, epsilon=1.0))

    def test_wrong(self, public: DPareto) -> None:
        with pytest.raises(ValueError, match="`count`"):
            public.best_configs(0)
        with pytest.raises(ValueError, match="`epsilon`"):
            public.best_configs(2, epsilon=-1.0)


class TestWarmStart:
    def test_begins_with_them_once(self, public: DPareto, tmp_path: Path) -> None:
        path, first = tmp_path / "study.sqlite", public.best_configs()
        with study(storage=path, warm_start=public) as warm:
            assert [trial.config for trial in warm.trials] == first
            assert {trial.state for trial in warm.trials} == {"pending"}
            warm.run(3)
            assert [t.state for t in warm.trials[:3]] == ["complete"] * 3
        for again in (None, public):
            with study(storage=path, warm_start=again) as warm:
                assert len(warm.trials) == len(first)
        with study(storage=path) as warm:
            assert len(warm.run(len(first) + 2).trials) == len(first) + 2

    def test_is_ahead_of_a_cold_start(self, public: DPareto) -> None:
        trials = len(public.best_configs())
        for seed in range(3):
            warm = study(seed=seed, warm_start=public).run(trials)
            cold = study(seed=seed).run(trials)
            assert warm.reevaluate(10).hypervolume() > cold.reevaluate(10).hypervolume()

    def test_configs_by_hand(self) -> None:
        config = {"noise": 1.0, "epochs": 4}
        assert study(warm_start=[config]).run(2).trials[0].config == config

    @pytest.mark.parametrize(
        ("given", "error", "match"),
        [
            ([{"noise": 1.0}], ValueError, "missing"),
            ([{"noise": 99.0, "epochs": 4}], ValueError, "`noise` must lie"),
            (3, TypeError, "`warm_start` must be a DPareto or a sequence"),
            ("configs", TypeError, "`warm_start`"),
        ],
    )
    def test_wrong(self, given: Any, error: type[Exception], match: str, tmp_path: Path) -> None:
        with pytest.raises(error, match=match):
            study(warm_start=given, storage=tmp_path / "study.sqlite")
        assert not (tmp_path / "study.sqlite").exists()

    def test_of_another_space(self, public: DPareto) -> None:
        other = SearchSpace(noise=Real(0.1, 10.0, log=True))
        problem = toy.PrivacyUtilityProblem(
            other, privacy=lambda c: 1 / c["noise"], utility=lambda c, seed: 0.5
        )
        with pytest.raises(ValueError, match=r"unknown \['epochs'\]"):
            DPareto(problem, warm_start=public)
