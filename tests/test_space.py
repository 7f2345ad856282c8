from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

from botorch_dp.space import (
    Choice,
    Integer,
    Real,
    SearchSpace,
    ShiftedExponential,
    TruncatedNormal,
    Uniform,
    When,
)

#: Statistical tests fail by chance once in a million runs of new seeds.
FALSE_ALARM = 1e-6


class TestRange:
    @pytest.mark.parametrize(
        ("make", "match"),
        [
            (lambda: Real(1.0, 1.0), "low < high"),
            (lambda: Real(0.0, 1.0, log=True), "low > 0"),
            (lambda: Real(math.nan, 1.0), "`low` must be finite"),
            (lambda: Real(0.0, math.inf), "`high` must be finite"),
            (lambda: Integer(3, 2), "low <= high"),
            (lambda: Integer(0, 2, log=True), "low > 0"),
            (lambda: Real(0.0, 1.0, distribution=ShiftedExponential(1.0, shift=1.0)), "`shift`"),
            (lambda: ShiftedExponential(0.0), "`rate`"),
            (lambda: TruncatedNormal(0.0, -1.0), "`std`"),
        ],
    )
    def test_wrong_ranges(self, make: object, match: str) -> None:
        with pytest.raises(ValueError, match=match):
            make()  # type: ignore[operator]

    def test_linear_and_log_positions(self) -> None:
        assert Real(2.0, 6.0).decode(np.array([0.0, 0.25, 1.0])) == [2.0, 3.0, 6.0]
        values = Real(0.01, 100.0, log=True).decode(np.array([0.0, 0.25, 0.5, 1.0]))
        assert values == pytest.approx([0.01, 0.1, 1.0, 100.0])
        assert values[0] >= 0.01 and values[-1] <= 100.0
        assert Integer(1, 100, log=True).decode(np.array([0.0, 0.5, 1.0])) == [1, 10, 100]

    def test_one_choice(self) -> None:
        constant = Integer(3, 3)
        assert constant.decode(np.array([0.0, 0.7])) == [3, 3]
        assert constant.encode([3]).tolist() == [0.0]
        assert constant.draw(np.array([0.1, 0.9])) == [3, 3]
        assert constant.levels(5) == [3]


class TestDraws:
    """Quantile draws against scipy's distributions."""

    u = np.random.default_rng(0).random(20_000)

    def test_uniform_in_scale(self) -> None:
        values = np.log10(Real(1e-3, 1.0, log=True).draw(self.u))
        assert stats.kstest(values, stats.uniform(-3, 3).cdf).pvalue > FALSE_ALARM

    def test_shifted_exponential_is_truncated(self) -> None:
        parameter = Real(0.1, 0.5, distribution=ShiftedExponential(rate=10.0))
        values = np.array(parameter.draw(self.u))
        expected = stats.truncexpon(b=4.0, loc=0.1, scale=0.1)
        assert stats.kstest(values, expected.cdf).pvalue > FALSE_ALARM
        # A space with another rate is told apart.
        wrong = stats.truncexpon(b=4.4, loc=0.1, scale=0.4 / 4.4)
        assert stats.kstest(values, wrong.cdf).pvalue < FALSE_ALARM

    def test_truncated_normal(self) -> None:
        parameter = Real(0.0, 3.0, distribution=TruncatedNormal(mean=1.0, std=2.0))
        expected = stats.truncnorm(-0.5, 1.0, loc=1.0, scale=2.0)
        assert stats.kstest(parameter.draw(self.u), expected.cdf).pvalue > FALSE_ALARM

    @pytest.mark.parametrize("log", [False, True])
    def test_integers_own_the_interval_around_them(self, log: bool) -> None:
        parameter = Integer(1, 6, log=log)
        counts = np.bincount(parameter.draw(self.u), minlength=7)[1:]
        edges = np.arange(1, 8) - 0.5
        edges = np.log(edges) if log else edges
        shares = np.diff(edges) / (edges[-1] - edges[0])
        assert stats.chisquare(counts, shares * len(self.u)).pvalue > FALSE_ALARM

    def test_integers_with_a_distribution(self) -> None:
        values = Integer(8, 512, distribution=TruncatedNormal(128, 64)).draw(self.u)
        expected = stats.truncnorm((7.5 - 128) / 64, (512.5 - 128) / 64, loc=128, scale=64)
        assert all(isinstance(value, int) and 8 <= value <= 512 for value in values)
        assert np.mean(values) == pytest.approx(expected.mean(), abs=5 * 64 / math.sqrt(20_000))

    def test_extreme_quantiles_stay_inside(self) -> None:
        u = np.array([0.0, 1 - 2.0**-53])
        for distribution in (None, ShiftedExponential(3.0), TruncatedNormal(50.0, 0.1), Uniform()):
            assert all(0 <= value <= 1 for value in Real(0, 1, distribution=distribution).draw(u))
            drawn = Integer(0, 5, distribution=distribution).draw(u)
            assert all(0 <= value <= 5 for value in drawn)


class TestSearchSpace:
    space = SearchSpace(
        epochs=Integer(1, 64, log=True), rate=Real(1e-3, 1.0, log=True), x=Real(-1, 1)
    )

    def test_codes_of_configs_come_back(self) -> None:
        configs = self.space.sample(200, seed=1)
        again = self.space.decode(self.space.encode(configs))
        for one, other in zip(configs, again, strict=True):
            assert other["epochs"] == one["epochs"] and isinstance(other["epochs"], int)
            assert other["rate"] == pytest.approx(one["rate"], rel=1e-12)
            assert other["x"] == pytest.approx(one["x"], abs=1e-12)

    def test_rounding_is_idempotent_and_shows_what_can_be_tried(self) -> None:
        codes = self.space.round(torch.rand(100, 3, dtype=torch.double))
        assert torch.allclose(self.space.round(codes), codes, atol=1e-12)
        integers = torch.exp(codes[:, 0] * math.log(64))
        assert torch.allclose(integers, integers.round(), atol=1e-9)

    def test_codes_outside_the_cube_are_clamped(self) -> None:
        low, high = self.space.decode(torch.tensor([[-1.0, -1, -1], [2, 2, 2]]))
        assert low == {"epochs": 1, "rate": 1e-3, "x": -1.0}
        assert high == {"epochs": 64, "rate": 1.0, "x": 1.0}

    def test_sample_repeats_with_its_seed(self) -> None:
        assert self.space.sample(5, seed=3) == self.space.sample(5, seed=3)
        assert self.space.sample(5, seed=3) != self.space.sample(5, seed=4)
        with pytest.raises(ValueError, match="`count`"):
            self.space.sample(0)

    def test_grid(self) -> None:
        space = SearchSpace(a=Real(0, 1), b=Integer(1, 2))
        grid = space.grid(3)
        assert len(grid) == 6  # the integer has two values only
        assert {c["a"] for c in grid} == {0.0, 0.5, 1.0} and {c["b"] for c in grid} == {1, 2}
        assert space.grid(1)[0]["a"] == 0.5
        with pytest.raises(ValueError, match="too large"):
            SearchSpace(**{f"x{i}": Real(0, 1) for i in range(10)}).grid(10)

    def test_check(self) -> None:
        assert list(self.space.check({"x": 0, "rate": 0.5, "epochs": 3})) == ["epochs", "rate", "x"]
        with pytest.raises(ValueError, match=r"missing \['x'\], unknown \['y'\]"):
            self.space.check({"epochs": 3, "rate": 0.5, "y": 0})
        with pytest.raises(ValueError, match="`rate` must lie in"):
            self.space.check({"epochs": 3, "rate": 2.0, "x": 0})
        with pytest.raises(TypeError, match="`epochs` must be an integer"):
            self.space.check({"epochs": 3.5, "rate": 0.5, "x": 0})


def test_uniform_draws_do_not_follow_the_scale_of_the_models() -> None:
    u = np.linspace(0.0, 1.0, 1001)
    assert Real(1.0, 100.0, log=True, distribution=Uniform()).draw(u)[500] == pytest.approx(50.5)
    assert Real(1.0, 100.0, log=True).draw(u)[500] == pytest.approx(10.0)
    epochs = np.array(Integer(1, 64, log=True, distribution=Uniform()).draw(u))
    assert np.bincount(epochs, minlength=65)[1:].min() >= 15


class TestChoice:
    optimizer = Choice("sgd", "adam", None, True, 0, 2.5)

    @pytest.mark.parametrize(
        ("make", "error", "match"),
        [
            (lambda: Choice(), ValueError, "needs values"),
            (lambda: Choice("a", "a"), ValueError, "different"),
            (lambda: Choice(1, True), ValueError, "different"),
            (lambda: Choice("a", "b", weights=[1.0]), ValueError, "`weights` must be 2"),
            (lambda: Choice("a", "b", weights=[1.0, 0.0]), ValueError, "`weights`"),
        ],
    )
    def test_wrong(self, make: Any, error: type[Exception], match: str) -> None:
        with pytest.raises(error, match=match):
            make()

    def test_tuples_are_values_and_survive_json(self) -> None:
        space = SearchSpace(
            layers=Choice([(32,), (32, 32)]), rate=Real(0.1, 1.0, active=When("layers", (32, 32)))
        )
        configs = space.grid(2)
        assert configs == [
            {"layers": (32,)},
            {"layers": (32, 32), "rate": 0.1},
            {"layers": (32, 32), "rate": 1.0},
        ]
        stored = json.loads(json.dumps([configs, space.to_dict()]))
        again = [space.check(config) for config in stored[0]]
        assert again == configs and all(isinstance(c["layers"], tuple) for c in again)
        assert torch.equal(space.encode(stored[0]), space.encode(configs))
        assert space.decode(space.encode(configs)) == configs

    def test_one_hot_and_back(self) -> None:
        values = list(self.optimizer.values)
        codes = self.optimizer.encode(values)
        assert codes.tolist() == np.eye(6).tolist()
        assert self.optimizer.decode(codes) == values
        assert self.optimizer.decode(codes * 0.4 + 0.3) == values
        assert self.optimizer.levels(2) == values

    def test_weights_are_for_draws_only(self) -> None:
        u = (np.arange(100) + 0.5) / 100
        choice = Choice("a", "b", weights=[3, 1])
        assert choice.draw(u).count("a") == 75
        assert choice.spread(u).count("a") == 50
        assert choice.draw(np.array([0.0, 1.0])) == ["a", "b"]

    def test_check_keeps_types_apart(self) -> None:
        assert self.optimizer.check("x", True) is True
        assert self.optimizer.check("x", 0) == 0
        for value in (1, False, "rmsprop", 2, [1]):
            with pytest.raises(ValueError, match="`x` must be one of"):
                self.optimizer.check("x", value)


class TestSpaceWithChoices:
    space = SearchSpace(rate=Real(0, 1), layer=Choice("relu", "tanh", None), steps=Integer(1, 9))

    def test_codes(self) -> None:
        assert self.space.dim == 5
        assert self.space.columns == {
            "rate": slice(0, 1),
            "layer": slice(1, 4),
            "steps": slice(4, 5),
        }
        config = {"rate": 0.25, "layer": "tanh", "steps": 5}
        codes = self.space.encode([config])
        assert codes.tolist() == [[0.25, 0, 1, 0, 0.5]]
        assert self.space.decode(codes) == [config]
        assert self.space.encode([]).shape == (0, 5)
        nearby = codes + 0.01 * torch.rand(1, 5)
        assert self.space.round(nearby)[0, 1:].tolist() == codes[0, 1:].tolist()

    def test_draws_and_grids(self) -> None:
        assert {c["layer"] for c in self.space.sample(50, seed=0)} == {"relu", "tanh", None}
        assert {
            c["layer"] for c in self.space.spread(np.random.default_rng(0).random((50, 3)))
        } == {"relu", "tanh", None}
        assert len(self.space.grid(2)) == 2 * 3 * 2


def even(config: dict[str, Any]) -> bool:
    return bool(config["a"] % 2 == 0)


class TestConstraints:
    space = SearchSpace(a=Integer(0, 99), b=Real(0, 1), constraints=[even, lambda c: c["b"] < 0.5])

    def test_samples_and_grids_obey(self) -> None:
        configs = self.space.sample(200, seed=0)
        assert len(configs) == 200 and all(map(self.space.satisfies, configs))
        assert configs == self.space.sample(200, seed=0)
        assert len({config["a"] for config in configs}) > 40
        grid = self.space.grid(3)  # a in 0, 50, 99 and b in 0, 0.5, 1
        assert len(grid) == 2 and all(map(self.space.satisfies, grid))

    def test_a_constraint_cannot_change_a_config(self) -> None:
        space = SearchSpace(a=Integer(1, 2), constraints=[lambda c: c.pop("a") > 0])
        assert list(space.sample(1, seed=0)[0]) == ["a"]

    def test_check(self) -> None:
        assert self.space.check({"a": 2, "b": 0.1}) == {"a": 2, "b": 0.1}
        with pytest.raises(ValueError, match="violates a constraint"):
            self.space.check({"a": 3, "b": 0.1})

    def test_nothing_satisfies_them(self) -> None:
        nothing = SearchSpace(a=Integer(0, 9), constraints=[lambda config: config["a"] > 9])
        for ask in (lambda: nothing.sample(3, seed=0), lambda: nothing.grid(5)):
            with pytest.raises(ValueError, match=r"None of .* configs satisfies"):
                ask()


@pytest.mark.parametrize(
    ("product", "match"),
    [
        ({"noise": 0}, "not all 0"),
        ({"epochs": 1}, "log=True"),
        ({"beta": 1}, "always active, got 'beta'"),
        ({"lr": 1}, "got 'lr'"),
    ],
)
def test_wrong_products(product: dict[str, float], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        SearchSpace(
            noise=Real(0.1, 1.0, log=True),
            epochs=Integer(1, 9),
            kind=Choice("a", "b"),
            beta=Real(0.1, 1.0, log=True, active=When("kind", "a")),
            products=[product],
        )
