"""Parameters that are active under conditions only, from the space to a finished study."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from botorch_dp.pareto import DPareto, PrivacyUtilityProblem
from botorch_dp.space import Choice, Config, Integer, Real, SearchSpace, When


def space(**more: Any) -> SearchSpace:
    """An optimizer with parameters of its own, and layers with widths of their own."""
    return SearchSpace(
        noise=Real(0.1, 10.0, log=True),
        optimizer=Choice("sgd", "adam"),
        momentum=Real(0.0, 0.9, active=When("optimizer", "sgd")),
        nesterov=Choice(False, True, active=When("optimizer", "sgd")),
        damping=Real(0.0, 1.0, active=When("nesterov", True)),
        layers=Integer(1, 3),
        width=Integer(8, 64, log=True, active=When("layers", 2, 3)),
        **more,
    )


def is_correct(config: Config) -> bool:
    """Written down anew, for this space alone."""
    expected = {"noise", "optimizer", "layers"}
    if config["optimizer"] == "sgd":
        expected |= {"momentum", "nesterov"} | ({"damping"} if config["nesterov"] else set())
    if config["layers"] > 1:
        expected.add("width")
    return set(config) == expected


class TestSpace:
    def test_configs_have_what_is_active(self) -> None:
        rows = np.random.default_rng(0).random((300, 7))
        drawn = [*space().sample(300, seed=0), *space().draw(rows), *space().spread(rows)]
        assert all(map(is_correct, drawn))
        assert {len(config) for config in drawn} == {3, 4, 5, 6, 7}
        assert all(space().check(config) == config for config in drawn)

    def test_codes_come_back(self) -> None:
        configs = space().sample(200, seed=1)
        codes = space().encode(configs)
        assert codes.shape == (200, space().dim) and ((codes >= 0) & (codes <= 1)).all()
        again = space().decode(codes)
        assert all(map(is_correct, again))
        for config, other in zip(configs, again, strict=True):
            assert config.keys() == other.keys()
            assert config["optimizer"] == other["optimizer"]
            assert config.get("width") == other.get("width")

    def test_models_see_no_difference_in_what_is_not_active(self) -> None:
        codes = torch.rand(100, space().dim, dtype=torch.double)
        other = torch.where(space().inactive(codes), torch.rand_like(codes), codes)
        assert not codes.equal(other)
        assert space().round(codes).equal(space().round(other))
        assert space().decode(codes) == space().decode(other)

    def test_a_grid_has_each_config_once(self) -> None:
        grid = space().grid(2)
        assert all(map(is_correct, grid))
        keys = [json.dumps(config) for config in grid]
        assert len(set(keys)) == len(keys)
        # noise x (adam, or momentum x (plain, or two dampings)) x (one layer, or two widths)
        assert len(grid) == 2 * (1 + 2 * (1 + 2)) * (1 + 2)

    @pytest.mark.parametrize(
        ("config", "match"),
        [
            ({"noise": 1.0, "optimizer": "adam"}, r"missing \['layers'\]"),
            (
                {"noise": 1.0, "optimizer": "adam", "layers": 1, "momentum": 0.5},
                r"not active \[.momentum \(active=When\(parameter='optimizer'",
            ),
        ],
    )
    def test_wrong_configs(self, config: Any, match: str) -> None:
        with pytest.raises((ValueError, TypeError), match=match):
            space().check(config)

    @pytest.mark.parametrize(
        ("parameters", "match"),
        [
            ({"a": Real(0, 1, active=When("b", 1)), "b": Choice(1, 2)}, "comes before it"),
            ({"b": Real(0, 1), "a": Real(0, 1, active=When("b", 1))}, "a Choice or an Integer"),
            ({"b": Integer(1, 3), "a": Choice(1, active=When("b", 4))}, "`b` must be from 1 to 3"),
        ],
    )
    def test_wrong_conditions(self, parameters: dict[str, Any], match: str) -> None:
        with pytest.raises(ValueError, match=match):
            SearchSpace(**parameters)


def privacy(config: Config) -> float:
    return 1 / config["noise"]


def utility(config: Config, seed: int) -> float:
    best = {"sgd": 0.3, "adam": 0.5 - abs(config.get("beta", 0.5) - 0.7)}
    return 0.4 + best.get(config.get("optimizer", ""), 0.0) - 0.02 * config["noise"]


def best_momentum(config: Config, seed: int) -> float:
    """Best with momentum .8, which only sgd has; adam is better than sgd without it."""
    if config["optimizer"] == "adam":
        return 0.6 - 0.01 * config["noise"]
    return 0.8 - abs(config["momentum"] - 0.8) - 0.01 * config["noise"]


class TestStudy:
    @pytest.mark.one_in(3)
    @pytest.mark.parametrize("acquisition", ["ehvi", "hvpoi", "random"])
    def test_every_proposal_has_the_right_form(self, acquisition: Any, tmp_path: Path) -> None:
        whole = PrivacyUtilityProblem(space(), privacy=privacy, utility=utility, name="conditions")
        path = tmp_path / "study.sqlite"
        options: dict[str, Any] = {"acquisition": acquisition, "candidates": 64, "storage": path}
        with DPareto(whole, seed=0, **options) as study:
            front = study.run(10, initial=6)
            assert all(is_correct(trial.config) for trial in study.trials)
            assert is_correct(study.recommend(1.0).config)
        with DPareto(whole, **options) as again:
            assert again.front().configs == front.configs
            table = again.table()
        assert table["width"] == [trial.config.get("width") for trial in front.trials]
        assert "None" in str(front) or all("width" in config for config in front.configs)

    @pytest.mark.slow
    def test_finds_the_optimum_within_a_branch(self) -> None:
        within = SearchSpace(
            noise=Real(0.5, 2.0, log=True),
            optimizer=Choice("adam", "sgd", weights=(3, 1)),
            momentum=Real(0.0, 0.99, active=When("optimizer", "sgd")),
        )
        tuned = PrivacyUtilityProblem(within, privacy=privacy, utility=best_momentum)
        front = DPareto(tuned, seed=0, candidates=128).run(24, initial=8)
        best = max(front.trials, key=lambda trial: trial.utilities)
        assert best.config["optimizer"] == "sgd"
        assert best.config["momentum"] == pytest.approx(0.8, abs=0.05)
