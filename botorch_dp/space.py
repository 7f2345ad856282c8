"""Hyper-parameter spaces: what may be tried, how it is drawn, and how the models see it.

A *config* is a dict of plain values, as the user's functions get it. Its *code* is a point of the
unit cube: one coordinate for each number, linear or logarithmic, and one for each value of a
choice (one-hot). Integers are rounded when a code is turned into a config, and models are shown
the code of the rounded config only, so that they never learn about a point that cannot be tried.

A parameter may be active only where another one takes certain values (:class:`When`). Where it is
not, configs lack it, and codes have the middle of its range: models see no difference there.
"""

from __future__ import annotations

import itertools
import math
import operator
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import truncnorm
from torch import Tensor

from botorch_dp._checks import check_finite, check_integer, check_positive

#: Values of all parameters by name, as the user's functions get them.
Config: TypeAlias = dict[str, Any]
#: What a choice may be between: what JSON can keep, and tuples of it.
Scalar: TypeAlias = str | int | float | bool | None
Value: TypeAlias = Scalar | tuple["Value", ...]
#: Says whether a config may be tried.
Constraint: TypeAlias = Callable[[Config], bool]

#: A grid with more points than this is a mistake: it would not fit into memory or a lifetime.
_LARGEST_GRID = 1_000_000
#: Significant digits of drawn and proposed values: beyond them a hyper-parameter means nothing.
_DIGITS = 9
#: So many draws in a row that satisfy no constraint are taken to mean that none would.
_VAIN_DRAWS = 10_000


@dataclass(frozen=True)
class ShiftedExponential:
    """Density proportional to ``exp(-rate (x - shift))`` within the parameter's range [Avent2020].

    Args:
        rate: Inverse of the scale, in units of the parameter.
        shift: Where the density begins; the low end of the range if None.
    """

    rate: float
    shift: float | None = None

    def __post_init__(self) -> None:
        check_positive("rate", self.rate)
        if self.shift is not None:
            check_finite("shift", self.shift)

    def quantile(self, u: NDArray[np.float64], low: float, high: float) -> NDArray[np.float64]:
        """The value below which a share ``u`` of the mass in ``[low, high]`` lies."""
        start = low if self.shift is None else max(low, self.shift)
        # Mass is measured from `start`, so that a large rate cannot underflow all of it.
        mass = -math.expm1(-self.rate * (high - start))
        return start - np.log1p(-u * mass) / self.rate


@dataclass(frozen=True)
class TruncatedNormal:
    """The normal distribution restricted to the parameter's range [Avent2020]."""

    mean: float
    std: float

    def __post_init__(self) -> None:
        check_finite("mean", self.mean)
        check_positive("std", self.std)

    def quantile(self, u: NDArray[np.float64], low: float, high: float) -> NDArray[np.float64]:
        """The value below which a share ``u`` of the mass in ``[low, high]`` lies."""
        ends = (low - self.mean) / self.std, (high - self.mean) / self.std
        values: NDArray[np.float64] = self.mean + self.std * truncnorm.ppf(u, *ends)
        return values


@dataclass(frozen=True)
class Uniform:
    """Uniform in the parameter itself, also where the models see its logarithm."""

    def quantile(self, u: NDArray[np.float64], low: float, high: float) -> NDArray[np.float64]:
        """The value below which a share ``u`` of the mass in ``[low, high]`` lies."""
        return low + u * (high - low)


Distribution: TypeAlias = ShiftedExponential | TruncatedNormal | Uniform


@dataclass(frozen=True, init=False)
class When:
    """Where a parameter is active: another one is, and takes one of some values.

    Args:
        parameter: Name of a Choice or an Integer that comes earlier in the space.
        values: Those of its values at which the parameter is active.

    Example:
        >>> beta = Real(0.5, 0.999, active=When("optimizer", "adam"))
    """

    parameter: str
    values: tuple[Value, ...]

    def __init__(self, parameter: str, *values: Value) -> None:
        if not values:
            raise ValueError('`values` is empty: name some, as in When("optimizer", "adam").')
        object.__setattr__(self, "parameter", parameter)
        object.__setattr__(self, "values", tuple(map(_as_value, values)))

    def __call__(self, config: Mapping[str, Any]) -> bool:
        """Whether the parameter is active beside these earlier ones."""
        return self.parameter in config and _as_value(config[self.parameter]) in self.values


class _Scale(ABC):
    """Linear or logarithmic position within ``[low, high]``, from 0 to 1."""

    low: float
    high: float
    log: bool
    distribution: Distribution | None

    def _check_range(self) -> None:
        if self.log and self.low <= 0:
            raise ValueError(f"`log=True` needs low > 0, got low={self.low}.")
        shift = getattr(self.distribution, "shift", None)
        if shift is not None and shift >= self.high:
            raise ValueError(f"`shift` = {shift} must lie below the high end {self.high}.")

    def encode(self, values: Sequence[float]) -> NDArray[np.float64]:
        """Positions of values."""
        given = np.asarray(values, dtype=np.float64)
        if self.low == self.high:
            return np.zeros_like(given)
        if self.log:
            positions = np.log(given / self.low) / math.log(self.high / self.low)
        else:
            positions = (given - self.low) / (self.high - self.low)
        return np.clip(positions, 0.0, 1.0)

    def _values(self, positions: NDArray[np.float64]) -> NDArray[np.float64]:
        if self.log:
            values = self.low * np.exp(positions * math.log(self.high / self.low))
        else:
            values = self.low + positions * (self.high - self.low)
        # Rounding must not take the ends away.
        return np.where(positions >= 1, self.high, np.clip(values, self.low, self.high))

    def decode(self, positions: NDArray[np.float64]) -> list[Any]:
        """Values at positions in [0, 1]: integers are the nearest ones."""
        return self._plain(self._values(positions))

    spread = decode

    def draw(self, u: NDArray[np.float64]) -> list[Any]:
        """Values at the quantiles ``u`` of the sampling distribution."""
        return self._plain(np.atleast_1d(self.quantile(u)))

    def levels(self, count: int) -> list[Any]:
        """At most ``count`` different values, equidistant in the parameter's scale."""
        return list(dict.fromkeys(self.decode(_equidistant(count))))

    @abstractmethod
    def quantile(self, u: NDArray[np.float64]) -> NDArray[np.float64]:
        """:meth:`draw` as an array of floats, with all digits."""

    @abstractmethod
    def _plain(self, values: NDArray[np.float64]) -> list[Any]:
        """Plain numbers that can be tried."""


@dataclass(frozen=True)
class Real(_Scale):
    """A real parameter.

    Args:
        low: Smallest value.
        high: Largest value.
        log: Whether the models and the uniform draws see its logarithm. Right for what spans
            orders of magnitude: learning rates, noise, clipping norms.
        distribution: How random and initial trials draw it; uniform in its scale if None.
        active: Where the parameter plays a part; everywhere if None.
    """

    low: float
    high: float
    log: bool = False
    distribution: Distribution | None = None
    active: When | None = None

    def __post_init__(self) -> None:
        low, high = check_finite("low", self.low), check_finite("high", self.high)
        if not low < high:
            raise ValueError(f"`Real` needs low < high, got low={low}, high={high}.")
        self._check_range()
        object.__setattr__(self, "low", low)
        object.__setattr__(self, "high", high)

    def quantile(self, u: NDArray[np.float64]) -> NDArray[np.float64]:
        """Values at quantiles of the distribution, or of the uniform one in the scale."""
        if self.distribution is None:
            return self._values(u)
        return self.distribution.quantile(u, self.low, self.high)

    def check(self, name: str, value: object) -> float:
        """Return ``value`` as a float, or raise if it is not within the range."""
        number = check_finite(name, value)
        if not self.low <= number <= self.high:
            raise ValueError(f"`{name}` must lie in [{self.low}, {self.high}], got {number}.")
        return number

    def _plain(self, values: NDArray[np.float64]) -> list[float]:
        # Few digits: easier on the eye, and the same again after `encode` and `decode`.
        short = (float(f"{value:.{_DIGITS}g}") for value in values)
        return [min(max(value, self.low), self.high) for value in short]


@dataclass(frozen=True)
class Integer(_Scale):
    """An integer parameter; see :class:`Real`. ``low == high`` makes it a constant."""

    low: int
    high: int
    log: bool = False
    distribution: Distribution | None = None
    active: When | None = None

    def __post_init__(self) -> None:
        low, high = operator.index(self.low), operator.index(self.high)
        if not low <= high:
            raise ValueError(f"`Integer` needs low <= high, got low={low}, high={high}.")
        self._check_range()
        object.__setattr__(self, "low", low)
        object.__setattr__(self, "high", high)

    def quantile(self, u: NDArray[np.float64]) -> NDArray[np.float64]:
        """Each integer owns the unit interval around it: the ends get their full share."""
        low, high = self.low - 0.5, self.high + 0.5
        if self.distribution is not None:
            values = self.distribution.quantile(u, low, high)
        elif self.log:
            values = low * np.exp(u * math.log(high / low))
        else:
            values = low + u * (high - low)
        clipped: NDArray[np.float64] = np.clip(np.rint(values), self.low, self.high)
        return clipped

    def check(self, name: str, value: object) -> int:
        """Return ``value`` as an int, or raise if it is not an integer within the range."""
        return check_integer(name, value, at_least=self.low, at_most=self.high)

    def _plain(self, values: NDArray[np.float64]) -> list[int]:
        return [int(value) for value in np.rint(values)]


@dataclass(frozen=True, init=False)
class Choice:
    """One of several values without an order, such as optimizers or activations.

    Args:
        values: What to choose from: strings, numbers, booleans, None or tuples of these, all
            different; one after the other, or all in one list or tuple.
        weights: How often random and initial trials draw each of them; equally often if None.
        active: Where the parameter plays a part; everywhere if None.

    Example:
        >>> Choice("sgd", "adam") == Choice(["sgd", "adam"])
        True
        >>> hidden_layer_sizes = Choice((32,), (32, 32))
    """

    values: tuple[Value, ...]
    weights: tuple[float, ...] | None
    active: When | None

    def __init__(
        self,
        *values: Value | Sequence[Value],
        weights: Sequence[float] | None = None,
        active: When | None = None,
    ) -> None:
        if len(values) == 1 and isinstance(values[0], list | tuple):
            values = tuple(values[0])
        if not values:
            raise ValueError('A Choice needs values, as in Choice("sgd", "adam").')
        values = tuple(map(_as_value, values))
        # 1, 1.0 and True are one key of a dict: configs could not be told apart.
        if len(set(values)) < len(values):
            raise ValueError(f"`values` of a Choice must be different, got {values}.")
        if weights is not None:
            weights = tuple(check_positive("weights", weight) for weight in weights)
            if len(weights) != len(values):
                raise ValueError(f"`weights` must be {len(values)}, got {len(weights)}.")
        object.__setattr__(self, "values", values)
        object.__setattr__(self, "weights", weights)
        object.__setattr__(self, "active", active)

    def decode(self, codes: NDArray[np.float64]) -> list[Value]:
        """The value whose coordinate is largest, for each of ``n x k`` codes."""
        return [self.values[index] for index in codes.argmax(axis=-1)]

    def encode(self, values: Sequence[Value]) -> NDArray[np.float64]:
        """One-hot codes of values, ``n x k``."""
        order = {value: index for index, value in enumerate(self.values)}
        return np.eye(len(self.values))[[order[self.check("values", value)] for value in values]]

    def draw(self, u: NDArray[np.float64]) -> list[Value]:
        """Values at the quantiles ``u`` of the sampling distribution."""
        return [self.values[place] for place in np.atleast_1d(self.places(u, self.weights))]

    def spread(self, u: NDArray[np.float64]) -> list[Value]:
        """Values at quantiles of the uniform distribution, whatever the weights."""
        return [self.values[place] for place in np.atleast_1d(self.places(u, None))]

    def levels(self, count: int) -> list[Value]:
        """All values: they have no order in which to leave some out."""
        return list(self.values)

    def check(self, name: str, value: object) -> Value:
        """Return ``value``, or raise if it is none of the values."""
        value = _as_value(value)
        for known in self.values:
            if known == value and isinstance(known, bool) == isinstance(value, bool):
                return known
        raise ValueError(f"`{name}` must be one of {self.values}, got {value!r}.")

    def places(self, u: NDArray[np.float64], weights: Sequence[float] | None) -> NDArray[np.int64]:
        """Which of the values stand at quantiles of a distribution."""
        shares = np.cumsum(np.ones(len(self.values)) if weights is None else np.asarray(weights))
        places = np.searchsorted(shares / shares[-1], u, side="right")
        return np.minimum(places, len(self.values) - 1)


def _as_value(value: Any) -> Any:
    """Tuples for the lists that JSON makes of them."""
    return tuple(map(_as_value, value)) if isinstance(value, list | tuple) else value


Parameter: TypeAlias = Real | Integer | Choice


class SearchSpace:
    """Named parameters, in a fixed order, and constraints between them.

    Args:
        constraints: Functions ``config -> bool``; a config is tried only if all of them say True.
            They must be cheap, and must not look at any record. A config lacks the parameters that
            are not active in it.
        products: What outcomes depend on, as powers of parameters: ``{"learning_rate": 1, "epochs":
            1, "batch_size": -1}`` is how far a training can go. Models see the products' logarithms
            beside the parameters, all of which are ``log=True`` and always active.
        parameters: A :class:`Real`, :class:`Integer` or :class:`Choice` for each name.

    Example:
        >>> space = SearchSpace(
        ...     epochs=Integer(1, 64),
        ...     learning_rate=Real(1e-3, 1.0, log=True),
        ...     clip_norm=Real(0.1, 4.0, distribution=ShiftedExponential(rate=1.0)),
        ...     optimizer=Choice("sgd", "adam"),
        ...     momentum=Real(0.0, 0.99, active=When("optimizer", "sgd")),
        ...     constraints=[lambda config: config["epochs"] * config["learning_rate"] < 10],
        ... )
        >>> sorted({len(config) for config in space.sample(20, seed=0)})
        [4, 5]
    """

    def __init__(
        self,
        *,
        constraints: Sequence[Constraint] = (),
        products: Sequence[Mapping[str, float]] = (),
        **parameters: Parameter,
    ) -> None:
        if not parameters:
            raise ValueError(
                "The search space is empty: name at least one parameter, as in "
                "SearchSpace(learning_rate=Real(1e-3, 1.0, log=True))."
            )
        #: The parameters by name.
        self.parameters: Mapping[str, Parameter] = dict(parameters)
        self._conditions = _checked_conditions(parameters)
        self.constraints = tuple(constraints)
        self.products = tuple(_checked_product(product, parameters) for product in products)
        widths = [len(p.values) if isinstance(p, Choice) else 1 for p in parameters.values()]
        ends = list(itertools.accumulate(widths))
        #: How many coordinates a code has: one for each number and each value of a choice.
        self.dim = ends[-1]
        #: The coordinates of each parameter in a code.
        self.columns: Mapping[str, slice] = {
            name: slice(end - width, end)
            for name, width, end in zip(parameters, widths, ends, strict=True)
        }

    @property
    def has_conditions(self) -> bool:
        """Whether some parameters are not active everywhere."""
        return bool(self._conditions)

    def encode(self, configs: Sequence[Config]) -> Tensor:
        """The ``n x d`` codes of configs."""
        codes = np.empty((len(configs), self.dim))
        for name, columns in self.columns.items():
            parameter, width = self.parameters[name], columns.stop - columns.start
            rows: slice | list[int] = slice(None)
            if name in self._conditions:
                codes[:, columns] = 1 / width if isinstance(parameter, Choice) else 0.5
                rows = [i for i, config in enumerate(configs) if name in config]
            values = [config[name] for config in configs if name in config]
            codes[rows, columns] = parameter.encode(values).reshape(len(values), width)
        return torch.from_numpy(codes)

    def inactive(self, codes: Tensor) -> Tensor:
        """Which coordinates of ``n x d`` codes stand for parameters that are not active there."""
        idle = torch.zeros(codes.shape, dtype=torch.bool, device=codes.device)
        if self._conditions:
            configs = self.decode(codes)
            for name in self._conditions:
                rows = [[name not in config] for config in configs]
                idle[:, self.columns[name]] = torch.tensor(rows, device=codes.device)
        return idle

    def decode(self, codes: Tensor) -> list[Config]:
        """The configs nearest to ``n x d`` points of the unit cube."""
        positions = codes.detach().cpu().double().clamp(0, 1).numpy()
        if np.isnan(positions).any():
            raise ValueError("`codes` must be numbers, but hold NaN.")
        parts = ((p, positions[:, self.columns[name]]) for name, p in self.parameters.items())
        return self._assemble(
            [p.decode(part if isinstance(p, Choice) else part[:, 0]) for p, part in parts]
        )

    def round(self, codes: Tensor) -> Tensor:
        """The codes, ``n x d``, of the configs that ``codes`` stand for."""
        return self.encode(self.decode(codes))

    def satisfies(self, config: Mapping[str, Any]) -> bool:
        """Whether all constraints allow the config."""
        return all(bool(constraint(dict(config))) for constraint in self.constraints)

    def allowed(self, configs: Iterable[Config]) -> list[Config]:
        """The configs that all constraints allow."""
        return [c for c in configs if self.satisfies(c)] if self.constraints else list(configs)

    def draw(self, uniforms: NDArray[np.float64]) -> list[Config]:
        """Configs at quantiles, ``n x k`` in [0, 1), of the ``k`` parameters' distributions.

        A point stands for one config, so constraints play no part here.
        """
        return self._assemble(
            [p.draw(uniforms[:, i]) for i, p in enumerate(self.parameters.values())]
        )

    def spread(self, uniforms: NDArray[np.float64]) -> list[Config]:
        """Configs that fill the space as evenly as ``n x k`` points of the cube do.

        Uniform in the scale of the models, whatever the distributions; without constraints.
        """
        return self._assemble(
            [p.spread(uniforms[:, i]) for i, p in enumerate(self.parameters.values())]
        )

    def sample(
        self, count: int, *, seed: int | np.random.SeedSequence | None = None
    ) -> list[Config]:
        """Independent draws from each parameter's distribution, subject to the constraints."""
        check_integer("count", count)
        generator = np.random.default_rng(seed)
        found: list[Config] = []
        in_vain = 0
        while len(found) < count:
            drawn = self.draw(generator.random((count, len(self.parameters))))
            allowed = self.allowed(drawn)
            in_vain = 0 if allowed else in_vain + count
            if in_vain >= _VAIN_DRAWS:
                raise self.nothing_allowed(in_vain)
            found += allowed
        return found[:count]

    def nothing_allowed(self, tried: int) -> ValueError:
        """The error that no config satisfies the constraints."""
        return ValueError(
            f"None of {tried:,} configs satisfies the `constraints` of the space. Widen them, or "
            "the ranges; call `space.satisfies(config)` on a config that you expect to pass."
        )

    def grid(self, levels: int) -> list[Config]:
        """All combinations of equidistant values, the ends included (one level: the middle).

        Args:
            levels: How many values each parameter takes. Integers with fewer values than that take
                each of them once, choices all of theirs.
        """
        check_integer("levels", levels)
        values = [parameter.levels(levels) for parameter in self.parameters.values()]
        size = math.prod(len(column) for column in values)
        if size > _LARGEST_GRID:
            raise ValueError(f"A grid of {size} points is too large; lower `levels`.")
        rows = itertools.product(*values)
        # Combinations that differ in what is not active are one config.
        configs = {tuple(config.values()): config for config in map(self._of_values, rows)}
        allowed = self.allowed(configs.values())
        if not allowed:
            raise self.nothing_allowed(size)
        return allowed

    def is_active(self, name: str, earlier: Mapping[str, Any]) -> bool:
        """Whether a parameter plays a part beside those before it in a config."""
        return name not in self._conditions or self._conditions[name](earlier)

    def middle(self) -> Config:
        """The config in the middle of all ranges; where that breaks a constraint, a fixed other."""
        (middle,) = self.spread(np.full((1, len(self.parameters)), 0.5))
        return middle if self.satisfies(middle) else self.sample(1, seed=0)[0]

    def check(self, config: Mapping[str, Any]) -> Config:
        """Return ``config`` as a plain dict in the space's order, or raise if it is outside."""
        unknown = [name for name in config if name not in self.parameters]
        checked: Config = {}
        missing, idle = [], []
        for name, parameter in self.parameters.items():
            active = self.is_active(name, checked)
            if active and name in config:
                checked[name] = parameter.check(name, config[name])
            elif active:
                missing.append(name)
            elif name in config:
                idle.append(f"{name} (active={self._conditions[name]})")
        if missing or unknown or idle:
            raise ValueError(
                f"`config` must have exactly the active ones of {list(self.parameters)}: "
                f"missing {missing}, unknown {unknown}, not active {idle}."
            )
        if not self.satisfies(checked):
            raise ValueError(f"`config` violates a constraint of the space: {checked}.")
        return checked

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready description; of constraints it holds the names only."""
        described: dict[str, Any] = {
            name: {"kind": type(parameter).__name__, **_described(parameter)}
            for name, parameter in self.parameters.items()
        }
        if self.constraints:
            described["constraints"] = [
                getattr(c, "__qualname__", type(c).__qualname__) for c in self.constraints
            ]
        return described

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, SearchSpace):
            return NotImplemented
        same = list(self.to_dict().items()) == list(other.to_dict().items())
        return same and self.constraints == other.constraints

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        inside = [f"{name}={parameter!r}" for name, parameter in self.parameters.items()]
        if self.constraints:
            inside.append(f"{len(self.constraints)} constraints")
        return f"SearchSpace({', '.join(inside)})"

    def _assemble(self, columns: list[list[Any]]) -> list[Config]:
        return [self._of_values(row) for row in zip(*columns, strict=True)]

    def _of_values(self, values: Sequence[Any]) -> Config:
        """The config of values for all parameters, without those that are not active."""
        config = dict(zip(self.parameters, values, strict=True))
        for name in self._conditions:
            if not self.is_active(name, config):
                del config[name]
        return config


def _equidistant(count: int) -> NDArray[np.float64]:
    return np.linspace(0.0, 1.0, count) if count > 1 else np.array([0.5])


def _checked_product(
    product: Mapping[str, float], parameters: Mapping[str, Parameter]
) -> dict[str, float]:
    if not any(product.values()):
        raise ValueError(f"`products` are powers by parameter, not all 0; got {product!r}.")
    for name, power in product.items():
        check_finite(f"products[{name!r}]", power)
        parameter = parameters.get(name)
        if isinstance(parameter, (Real, Integer)) and parameter.log and parameter.active is None:
            continue
        raise ValueError(
            "`products` are of parameters of the space that have log=True and are always "
            f"active, got {name!r}."
        )
    return dict(product)


def _checked_conditions(parameters: Mapping[str, Parameter]) -> dict[str, When]:
    """Where the parameters that are not always active are, in order."""
    conditions: dict[str, When] = {}
    earlier: dict[str, Parameter] = {}
    for name, parameter in parameters.items():
        condition = parameter.active
        if condition is not None:
            other = earlier.get(condition.parameter)
            if not isinstance(other, (Choice, Integer)):
                raise ValueError(
                    f"`{name}` has active={condition}, which must name a Choice or an Integer that "
                    f"comes before it in the space: one of "
                    f"{[n for n, p in earlier.items() if not isinstance(p, Real)]}."
                )
            values = (other.check(condition.parameter, value) for value in condition.values)
            conditions[name] = When(condition.parameter, *values)
        earlier[name] = parameter
    return conditions


def _described(parameter: Parameter) -> dict[str, Any]:
    state = asdict(parameter)
    if parameter.active is None:
        del state["active"]
    if not isinstance(parameter, Choice) and parameter.distribution is not None:
        state["distribution"]["kind"] = type(parameter.distribution).__name__
    return state
