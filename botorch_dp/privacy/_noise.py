"""Noise for released values: exact samplers from OpenDP, and a reproducible stand-in for tests.

Floating-point noise leaks: which low bits a sum of doubles can have depends on the private term
[Mironov2012], [Haney2022]. OpenDP instead rounds each value to a lattice, adds discrete noise on
that lattice with exact integer arithmetic [Canonne2020], and rounds to the nearest double only
afterwards, which is post-processing: neighbours have the same support, and exact probabilities. Its
entropy is the operating system's. The lattice is 2^-80 of the noise scale: finer than a double
can tell near the noise, and four times as fast as the lattice of all doubles. Rounding n values to
it moves neighbours apart by at most n steps (in l1; sqrt(n) in l2), which the privacy map counts.

A scale is *calibrated* by asking OpenDP's own privacy map, which rounds upwards, and enlarging the
scale by some units in the last place until the map confirms the promised parameter.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from fractions import Fraction
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from botorch_dp._checks import check_integer

if TYPE_CHECKING:
    from botorch_dp.privacy.mechanisms import SelectionMethod

#: Outside these limits a scale loses digits to the ends of the double range.
SMALLEST_SCALE, LARGEST_SCALE = 1e-100, 1e300
#: The lattice of additive noise is this many binary digits finer than the noise scale.
LATTICE_BITS = 80

_LARGEST = np.finfo(np.float64).max
#: Draws that one call into OpenDP makes; bounds the memory of a large batch.
_DRAWS_PER_CALL = 10_000


class NoiseSource(Protocol):
    """What a mechanism needs from a sampler."""

    def add_laplace(self, values: NDArray[np.float64], scale: float) -> NDArray[np.float64]:
        """``values`` plus independent Laplace noise of the given scale."""

    def add_gaussian(self, values: NDArray[np.float64], scale: float) -> NDArray[np.float64]:
        """``values`` plus independent Gaussian noise of the given standard deviation."""

    def integer_laplace(self, shape: tuple[int, ...], scale: float) -> NDArray[np.int64]:
        """Integers with probability proportional to exp(-abs(k) / scale)."""

    def select(
        self, utilities: NDArray[np.float64], scale: float, method: SelectionMethod, draws: int = 1
    ) -> NDArray[np.int64]:
        """Independent noisy arg-maxima of ``utilities``, one for each draw."""


class ExactNoise(NoiseSource):
    """OpenDP's samplers with the operating system's entropy."""

    @override
    def add_laplace(self, values: NDArray[np.float64], scale: float) -> NDArray[np.float64]:
        return _finite(_laplace(scale, len(values))(values.tolist()))

    @override
    def add_gaussian(self, values: NDArray[np.float64], scale: float) -> NDArray[np.float64]:
        return _finite(_gaussian(scale, len(values))(values.tolist()))

    @override
    def integer_laplace(self, shape: tuple[int, ...], scale: float) -> NDArray[np.int64]:
        zeros = np.zeros(shape, dtype=np.int64)
        return np.array(_integer_laplace(scale)(zeros.ravel().tolist()), np.int64).reshape(shape)

    @override
    def select(
        self, utilities: NDArray[np.float64], scale: float, method: SelectionMethod, draws: int = 1
    ) -> NDArray[np.int64]:
        noisy_max = _noisy_max(scale, method)
        if draws == 1:
            return np.array([noisy_max(utilities.tolist())])
        opendp = _opendp()
        indices: list[int] = []
        while len(indices) < draws:
            size = min(draws - len(indices), _DRAWS_PER_CALL)
            indices += opendp.c.make_composition([noisy_max] * size)(utilities.tolist())
        return np.array(indices)


class SimulatedNoise(NoiseSource):
    """The same distributions from a seeded generator: they **protect nothing**."""

    def __init__(self, seed: int) -> None:
        self._generator = np.random.Generator(np.random.Philox(seed))

    @override
    def add_laplace(self, values: NDArray[np.float64], scale: float) -> NDArray[np.float64]:
        return _finite(values + self._generator.laplace(scale=scale, size=values.shape))

    @override
    def add_gaussian(self, values: NDArray[np.float64], scale: float) -> NDArray[np.float64]:
        return _finite(values + self._generator.normal(scale=scale, size=values.shape))

    @override
    def integer_laplace(self, shape: tuple[int, ...], scale: float) -> NDArray[np.int64]:
        # A difference of two geometric counts is exactly the discrete Laplace distribution.
        success = -np.expm1(-1.0 / scale)
        first, second = self._generator.geometric(success, size=(2, *shape))
        return first - second

    @override
    def select(
        self, utilities: NDArray[np.float64], scale: float, method: SelectionMethod, draws: int = 1
    ) -> NDArray[np.int64]:
        with np.errstate(over="ignore"):  # a score of minus infinity is never drawn
            scores = (utilities / 2 - utilities.max() / 2) / (scale / 2)
        noise = getattr(self._generator, "gumbel" if method == "exponential" else "exponential")
        rows = max(1, min(draws, 10_000_000 // len(scores)))
        chunks = [
            np.argmax(scores + noise(size=(min(rows, draws - start), len(scores))), axis=1)
            for start in range(0, draws, rows)
        ]
        return np.concatenate(chunks)


def noise_source(unsafe_seed: int | None) -> NoiseSource:
    """Exact noise; or, with a seed, reproducible noise that protects nothing.

    The seed is a non-negative integer of any size; all its bits count.
    """
    if unsafe_seed is None:
        return ExactNoise()
    return SimulatedNoise(check_integer("unsafe_seed", unsafe_seed, at_least=0))


@lru_cache(maxsize=1024)
def laplace_scale(sensitivity: float, epsilon: float, count: int = 1) -> float:
    """The scale at which OpenDP confirms ``epsilon`` for the l1 sensitivity of ``count`` values."""
    return _confirmed(
        Fraction(sensitivity) / Fraction(epsilon),
        lambda scale: _laplace(scale, count).map(sensitivity) <= epsilon,
    )


@lru_cache(maxsize=1024)
def gaussian_scale(sensitivity: float, mu: float, count: int = 1) -> float:
    """The standard deviation at which OpenDP confirms mu^2/2 zero-concentrated privacy.

    ``sensitivity`` is the l2 sensitivity of ``count`` values.

    For Gaussian noise that statement and mu-Gaussian differential privacy are the same condition,
    ``sensitivity <= mu * scale``.
    """
    rho = Fraction(mu) ** 2 / 2
    return _confirmed(
        Fraction(sensitivity) / Fraction(mu),
        lambda scale: Fraction(_gaussian(scale, count).map(sensitivity)) <= rho,
    )


@lru_cache(maxsize=1024)
def selection_scale(
    sensitivity: float, epsilon: float, method: SelectionMethod, monotonic: bool = False
) -> float:
    """The noisy-max scale at which OpenDP confirms ``epsilon``.

    Its map for the exponential mechanism is stated as ``epsilon^2/8`` zero-concentrated privacy,
    which is what a mechanism whose log-probability ratios span at most ``epsilon`` enjoys.
    """
    limit = Fraction(epsilon) ** 2 / 8 if method == "exponential" else Fraction(epsilon)
    return _confirmed(
        (1 if monotonic else 2) * Fraction(sensitivity) / Fraction(epsilon),
        lambda scale: Fraction(_noisy_max(scale, method, monotonic).map(sensitivity)) <= limit,
    )


def integer_laplace_epsilon(distance: int, scale: float) -> float:
    """OpenDP's epsilon for :meth:`NoiseSource.integer_laplace` on integers that far apart."""
    return float(_integer_laplace(scale).map(distance))


def _confirmed(ideal: Fraction, confirms: Callable[[float], bool]) -> float:
    """The ideal scale, enlarged by as many units in the last place as the map asks for."""
    if not SMALLEST_SCALE <= ideal <= LARGEST_SCALE:
        magnitude = math.log10(ideal.numerator) - math.log10(ideal.denominator)
        raise ValueError(
            f"The parameters ask for a noise scale of about 1e{magnitude:+.0f}; outside "
            f"[{SMALLEST_SCALE:g}, {LARGEST_SCALE:g}] doubles lose their precision. Choose another "
            "`epsilon`, or rescale the values and their `sensitivity` by the same public factor."
        )
    scale, step = float(ideal), 2.0**-52
    while not confirms(scale):
        if step > 1:
            raise ValueError(
                "The parameters ask for noise so far above the `sensitivity` that rounding the "
                "values would move them by more than a record does. Ask for less noise: a larger "
                "`epsilon`."
            )
        scale, step = scale * (1 + step), 2 * step
    return scale


def _finite(values: Any) -> NDArray[np.float64]:
    """Doubles, where a sum beyond the largest one counts as the largest one."""
    # Of a few numbers, `np.clip` takes longer than adding noise to one.
    return np.minimum(np.maximum(np.asarray(values, dtype=np.float64), -_LARGEST), _LARGEST)


def _kept_by_thread(build: Callable[[float, int], Any]) -> Callable[[float, int], Any]:
    """Building a measurement takes longer than using it; threads share none."""
    kept = lru_cache(maxsize=64)(lambda thread, scale, count: build(scale, count))
    return lambda scale, count: kept(threading.get_ident(), scale, count)


@lru_cache(maxsize=1)
def _opendp() -> Any:
    import opendp.prelude as opendp

    opendp.enable_features("contrib")
    return opendp


def _doubles(count: int | None = None) -> Any:
    opendp = _opendp()
    return opendp.vector_domain(opendp.atom_domain(T="f64", nan=False), size=count)


def _lattice(scale: float) -> int:
    """The exponent of the power of two whose multiples carry the noise."""
    return math.frexp(scale)[1] - 1 - LATTICE_BITS


@_kept_by_thread
def _laplace(scale: float, count: int) -> Any:
    opendp = _opendp()
    distance = opendp.l1_distance(T="f64")
    return opendp.m.make_laplace(_doubles(count), distance, scale=scale, k=_lattice(scale))


@_kept_by_thread
def _gaussian(scale: float, count: int) -> Any:
    opendp = _opendp()
    distance = opendp.l2_distance(T="f64")
    return opendp.m.make_gaussian(_doubles(count), distance, scale=scale, k=_lattice(scale))


def _integer_laplace(scale: float) -> Any:
    opendp = _opendp()
    integers = opendp.vector_domain(opendp.atom_domain(T="i64"))
    return opendp.m.make_laplace(integers, opendp.l1_distance(T="i64"), scale=scale)


def _noisy_max(scale: float, method: SelectionMethod, monotonic: bool = False) -> Any:
    opendp = _opendp()
    # OpenDP names the noise by the measure it is accounted in: Gumbel for the one, exponential
    # noise (which is permute-and-flip) for the other.
    measure = {
        "exponential": opendp.zero_concentrated_divergence,
        "permute_and_flip": opendp.max_divergence,
    }[method]()
    distance = opendp.linf_distance(T="f64", monotonic=monotonic)
    return opendp.m.make_noisy_max(_doubles(), distance, measure, scale=scale)
