r"""The basic mechanisms, with exact noise: a sensitive value goes in, a :class:`Release` comes out.

Beside every mechanism stands a function ``..._guarantee`` that takes the same public parameters,
checks them as strictly and returns what would be guaranteed, without touching a value.
Nothing here adapts to the values, raises because of a single record, or shows one in an error.

The caller vouches for the sensitivity, under the neighbouring relation that the guarantee names.

*Noise.* Floating-point noise leaks: which low bits a sum of doubles can have depends on the private
term [Mironov2012], [Haney2022]. OpenDP instead rounds each value to a lattice, adds discrete noise
on that lattice with exact integer arithmetic [Canonne2020], and rounds to the nearest double only
afterwards, which is post-processing: neighbours have the same support, and exact probabilities. Its
entropy is the operating system's. The lattice is 2^-80 of the noise scale: finer than a double
can tell near the noise, and four times as fast as the lattice of all doubles. Rounding n values to
it moves neighbours apart by at most n steps (in l1; sqrt(n) in l2), which the privacy map counts.

A scale is *calibrated* by asking OpenDP's own privacy map, which rounds upwards, and enlarging the
scale by some units in the last place until the map confirms the stated parameter.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from fractions import Fraction
from functools import lru_cache
from typing import Any, Literal, Protocol, TypeVar, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from typing_extensions import override

from botorch_dp._checks import (
    check_choice,
    check_delta,
    check_integer,
    check_positive,
    check_tensor,
)
from botorch_dp.privacy.guarantee import ONE_RECORD, Guarantee, PrivacyUnit, Release
from botorch_dp.privacy.ledger import PrivacyLedger, make_release
from botorch_dp.privacy.losses import GaussianLoss, LaplaceLoss, PrivacyLoss, PureLoss
from botorch_dp.privacy.pld.gaussian import gaussian_mu

#: How an index is drawn; see :func:`exponential_mechanism`.
SelectionMethod = Literal["exponential", "permute_and_flip"]

ValueT = TypeVar("ValueT", float, Tensor)

#: Outside these limits a scale loses digits to the ends of the double range.
SMALLEST_SCALE, LARGEST_SCALE = 1e-100, 1e300
#: The lattice of additive noise is this many binary digits finer than the noise scale.
LATTICE_BITS = 80

_LARGEST = np.finfo(np.float64).max
#: Draws that one call into OpenDP makes; bounds the memory of a large batch.
_DRAWS_PER_CALL = 10_000


def laplace_guarantee(
    *,
    sensitivity: float,
    epsilon: float,
    num_values: int = 1,
    unit: PrivacyUnit = ONE_RECORD,
) -> Guarantee:
    """The guarantee of :func:`laplace_mechanism` for ``num_values`` values; see there."""
    sensitivity = check_positive("sensitivity", sensitivity)
    epsilon = check_positive("epsilon", epsilon)
    num_values = check_integer("num_values", num_values, at_most=2**31 - 1)
    laplace_scale(sensitivity, epsilon, num_values)
    # Only one coordinate's privacy-loss distribution is the Laplace mechanism's own.
    loss = LaplaceLoss(epsilon) if num_values == 1 else PureLoss(epsilon)
    return mechanism_guarantee(
        "Laplace mechanism", loss, unit, "the value", f"{sensitivity!r} in l1 norm"
    )


def laplace_mechanism(
    value: ValueT,
    *,
    sensitivity: float,
    epsilon: float,
    unit: PrivacyUnit = ONE_RECORD,
    ledger: PrivacyLedger | None = None,
    key: str | None = None,
    label: str = "",
    unsafe_seed: int | None = None,
) -> Release[ValueT]:
    r"""Release ``value + Lap(sensitivity / epsilon)`` with independent noise in each coordinate.

    Guarantee: pure epsilon-DP [Dwork2006]. Neighbouring values differ by at most ``sensitivity``
    in l1 norm, so densities differ by a factor of at most ``exp(sensitivity / scale)``; with
    discrete noise on a lattice the same holds for probabilities, exactly; what rounding the values
    to the lattice moves is counted. Rounding to a double, and then to the value's dtype, is
    post-processing.

    Args:
        value: A float, or a floating-point tensor of any shape. An infinity counts as the largest
            double and NaN as 0, without an error: that could tell about a single record.
        sensitivity: How far the value can move in l1 norm between neighbouring data sets.
        epsilon: The privacy parameter.
        unit: Whom it protects, the relation that ``sensitivity`` refers to, and what that bound
            rests on.
        ledger: What the release is charged to, before noise is drawn.
        key: Names the released value in the ledger: asking again replays it, free of charge.
        label: What it is for, in public words; shown in the ledger.
        unsafe_seed: Simulate with reproducible noise. The release then guarantees nothing.

    Returns:
        A float for a float; a tensor of the same shape, dtype and device for a tensor.

    Example:
        >>> release = laplace_mechanism(0.25, sensitivity=0.01, epsilon=1.0)
        >>> release.guarantee.epsilon()
        1.0
    """
    values, rebuild = _as_doubles(value)
    guarantee = laplace_guarantee(
        sensitivity=sensitivity, epsilon=epsilon, num_values=len(values), unit=unit
    )
    scale = laplace_scale(float(sensitivity), float(epsilon), len(values))
    source = noise_source(unsafe_seed)
    noisy = make_release(
        guarantee, lambda: source.add_laplace(values, scale), scale, ledger, key, label, unsafe_seed
    )
    return Release(rebuild(noisy.value), noisy.guarantee, scale=scale)


@lru_cache(maxsize=64, typed=True)
def gaussian_guarantee(
    *,
    sensitivity: float,
    mu: float | None = None,
    epsilon: float | None = None,
    delta: float | None = None,
    unit: PrivacyUnit = ONE_RECORD,
) -> Guarantee:
    """The guarantee of :func:`gaussian_mechanism`; see there."""
    sensitivity = check_positive("sensitivity", sensitivity)
    mu = _check_gaussian_level(mu, epsilon, delta)
    gaussian_scale(sensitivity, mu)
    guarantee = mechanism_guarantee(
        "Gaussian mechanism", GaussianLoss(mu), unit, "the value", f"{sensitivity!r} in l2 norm"
    )
    return guarantee if delta is None else guarantee.quoted_at(delta)


def gaussian_mechanism(
    value: ValueT,
    *,
    sensitivity: float,
    mu: float | None = None,
    epsilon: float | None = None,
    delta: float | None = None,
    unit: PrivacyUnit = ONE_RECORD,
    ledger: PrivacyLedger | None = None,
    key: str | None = None,
    label: str = "",
    unsafe_seed: int | None = None,
) -> Release[ValueT]:
    r"""Release ``value + N(0, (sensitivity / mu)^2 I)``.

    Guarantee: mu-Gaussian differential privacy [Dong2022]. Neighbouring values differ by at most
    ``sensitivity`` in l2 norm, that is by ``mu`` standard deviations. Given ``epsilon`` and
    ``delta`` instead, mu is the largest for which this implies (epsilon, delta)-DP [Balle2018].
    The noise is the discrete Gaussian on a lattice of 2^-80 noise deviations, to which the values
    are rounded; how far that moves neighbours apart is counted. Cell by cell its probabilities
    equal those of a *rounded* Gaussian, which is post-processing, up to a relative
    ``(tail * 2^-80)^2`` within ``tail`` standard deviations: less than 1e-40 for each value within
    a thousand of them, beyond which lies a probability of 1e-200000. So for n values (epsilon,
    delta) is off by less than n 1e-40, relatively; all conversions here add 1e-12 to the logarithm
    of delta.

    The arguments that are not described here are those of :func:`laplace_mechanism`.

    Args:
        sensitivity: How far the value can move in l2 norm between neighbouring data sets.
        mu: The privacy parameter; give this, or ``epsilon`` and ``delta``.
        epsilon: Target epsilon, with ``delta``.
        delta: Target delta, with ``epsilon``.

    Example:
        >>> release = gaussian_mechanism(torch.zeros(3), sensitivity=0.1, mu=0.5)
        >>> release.guarantee.mu
        0.5
    """
    values, rebuild = _as_doubles(value)
    guarantee = gaussian_guarantee(
        sensitivity=sensitivity, mu=mu, epsilon=epsilon, delta=delta, unit=unit
    )
    (loss,) = guarantee.losses
    assert isinstance(loss, GaussianLoss)
    scale = gaussian_scale(float(sensitivity), loss.mu, len(values))
    source = noise_source(unsafe_seed)
    noisy = make_release(
        guarantee,
        lambda: source.add_gaussian(values, scale),
        scale,
        ledger,
        key,
        label,
        unsafe_seed,
    )
    return Release(rebuild(noisy.value), noisy.guarantee, scale=scale)


def exponential_guarantee(
    *,
    sensitivity: float,
    epsilon: float,
    method: SelectionMethod = "exponential",
    unit: PrivacyUnit = ONE_RECORD,
) -> Guarantee:
    """The guarantee of :func:`exponential_mechanism`; see there."""
    sensitivity = check_positive("sensitivity", sensitivity)
    epsilon = check_positive("epsilon", epsilon)
    check_choice("method", method, get_args(SelectionMethod))
    selection_scale(sensitivity, epsilon, method)
    name = {"exponential": "Exponential mechanism", "permute_and_flip": "Permute-and-flip"}[method]
    return mechanism_guarantee(name, PureLoss(epsilon), unit, "each utility", repr(sensitivity))


def exponential_mechanism(
    utilities: Tensor,
    *,
    sensitivity: float,
    epsilon: float,
    method: SelectionMethod = "exponential",
    unit: PrivacyUnit = ONE_RECORD,
    ledger: PrivacyLedger | None = None,
    key: str | None = None,
    label: str = "",
    unsafe_seed: int | None = None,
) -> Release[int]:
    r"""Release the index of a large utility.

    ``"exponential"`` draws index i with probability exactly proportional to
    ``exp(epsilon * utilities[i] / (2 * sensitivity))`` [McSherry2007]. ``"permute_and_flip"``
    visits the indices in random order and stops at i with probability
    ``exp(epsilon * (utilities[i] - max) / (2 * sensitivity))`` [McKenna2020]: the same guarantee,
    and an expected utility that is never worse.

    Guarantee: pure epsilon-DP. Between neighbours each utility moves by at most ``sensitivity``, so
    the weight of an index changes by a factor within ``exp(+-epsilon / 2)`` and so does the sum of
    all weights. OpenDP's arithmetic is exact: no utility and no probability is rounded.

    The time taken varies with how many candidates are tried before one is accepted: up to all n
    if one utility is far above the others. One record changes the chance of acceptance by at most
    a factor of ``exp(epsilon)``.

    The arguments that are not described here are those of :func:`laplace_mechanism`.

    Args:
        utilities: ``n`` utilities, one for each choice. NaN counts as the lowest, infinities as the
            largest doubles.
        sensitivity: How far any single utility can move between neighbouring data sets.
        epsilon: The privacy parameter.
        method: ``"exponential"`` or ``"permute_and_flip"``.

    Returns:
        An index into ``utilities``. ``scale`` is the s in probabilities proportional to
        ``exp(utilities / s)``.

    Example:
        >>> release = exponential_mechanism(torch.tensor([0.1, 0.9]), sensitivity=0.01, epsilon=1.0)
        >>> release.value in (0, 1)
        True
    """
    utilities = check_tensor("utilities", utilities, shape=("m",), finite=False)
    guarantee = exponential_guarantee(
        sensitivity=sensitivity, epsilon=epsilon, method=method, unit=unit
    )
    scale = selection_scale(float(sensitivity), float(epsilon), method)
    scores = _without_holes(utilities, nan=-math.inf).numpy()
    source = noise_source(unsafe_seed)

    def draw() -> int:
        return int(source.select(scores, scale, method)[0])

    return make_release(guarantee, draw, scale, ledger, key, label, unsafe_seed)


# --- What all of them share. ---


def mechanism_guarantee(
    mechanism: str, loss: PrivacyLoss, unit: PrivacyUnit, subject: str, moves: str
) -> Guarantee:
    """The guarantee, given that the sensitivity is what the caller says."""
    given = f"neighbouring data sets move {subject} by at most {moves}"
    return Guarantee(mechanism, unit.given(given), (loss,))


def _check_gaussian_level(mu: float | None, epsilon: float | None, delta: float | None) -> float:
    """The mu asked for, directly or by way of (epsilon, delta)."""
    if mu is not None and epsilon is None and delta is None:
        return check_positive("mu", mu)
    if mu is None and epsilon is not None and delta is not None:
        return gaussian_mu(check_positive("epsilon", epsilon), check_delta("delta", delta))
    raise ValueError(
        "Give either `mu`, or both `epsilon` and `delta`; got "
        f"mu={mu}, epsilon={epsilon}, delta={delta}."
    )


def _as_doubles(
    value: ValueT,
) -> tuple[NDArray[np.float64], Callable[[NDArray[np.float64]], ValueT]]:
    """The value as a flat array of doubles, and how to give an array the value's form again."""
    if isinstance(value, Tensor):
        tensor = check_tensor("value", value, finite=False)
        if tensor.numel() == 0:
            raise ValueError(f"`value` must not be empty, got shape {tuple(tensor.shape)}.")

        def rebuild(noisy: NDArray[np.float64]) -> Tensor:
            finite = torch.from_numpy(noisy)
            if tensor.dtype != torch.double:
                limit = torch.finfo(tensor.dtype).max
                finite = finite.clamp(-limit, limit)
            return finite.reshape(tensor.shape).to(tensor)

        return _without_holes(tensor).flatten().numpy(), rebuild
    if not isinstance(value, float):
        # Also because whether an integer fits a double may depend on one record.
        raise TypeError("`value` must be a float or a floating-point tensor: convert it.")
    values = _without_holes(torch.tensor([value], dtype=torch.double, device="cpu")).numpy()
    return values, lambda noisy: float(noisy[0])


def _without_holes(value: Tensor, nan: float = 0.0) -> Tensor:
    """Finite doubles: an infinity counts as the largest one, and NaN as ``nan``.

    Whether a value is finite may depend on one record, and an error would tell.
    """
    doubles = value.detach().cpu().double()
    return doubles.nan_to_num(nan=max(nan, -torch.finfo(torch.double).max))


# --- Noise: exact samplers from OpenDP, and a reproducible stand-in for tests. ---


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
def selection_scale(sensitivity: float, epsilon: float, method: SelectionMethod) -> float:
    """The noisy-max scale at which OpenDP confirms ``epsilon``.

    Its map for the exponential mechanism is stated as ``epsilon^2/8`` zero-concentrated privacy,
    which is what a mechanism whose log-probability ratios span at most ``epsilon`` enjoys.
    """
    limit = Fraction(epsilon) ** 2 / 8 if method == "exponential" else Fraction(epsilon)
    return _confirmed(
        2 * Fraction(sensitivity) / Fraction(epsilon),
        lambda scale: Fraction(_noisy_max(scale, method).map(sensitivity)) <= limit,
    )


def integer_laplace_epsilon(distance: int, scale: float) -> float:
    """OpenDP's epsilon for :meth:`NoiseSource.integer_laplace` on integers that far apart."""
    return float(_integer_laplace(scale).map(distance))


def _confirmed(ideal: Fraction, confirms: Callable[[float], bool]) -> float:
    """The ideal scale, enlarged by as many units in the last place as the map asks for."""
    if not SMALLEST_SCALE <= ideal <= LARGEST_SCALE:
        magnitude = math.log10(ideal.numerator) - math.log10(ideal.denominator)
        raise ValueError(
            f"The parameters ask for a noise scale of about 1e{magnitude:+.0f}, outside of "
            f"[{SMALLEST_SCALE:g}, {LARGEST_SCALE:g}]: choose another `epsilon`, or rescale the "
            "values and their `sensitivity` by the same public factor."
        )
    scale, step = float(ideal), 2.0**-52
    while not confirms(scale):
        if step > 1:
            raise ValueError(
                "The parameters ask for noise so far above the `sensitivity` that it cannot be "
                "drawn exactly: take a larger `epsilon`."
            )
        scale, step = scale * (1 + step), 2 * step
    return scale


def _finite(values: Any) -> NDArray[np.float64]:
    """Doubles, where a sum beyond the largest one counts as the largest one."""
    # Of a few numbers, `np.clip` takes longer than adding noise to one.
    return np.minimum(np.maximum(np.asarray(values, dtype=np.float64), -_LARGEST), _LARGEST)


def _kept_by_thread(build: Callable[..., Any]) -> Callable[..., Any]:
    """Building a measurement takes longer than using it; threads share none."""
    kept = lru_cache(maxsize=64)(lambda thread, *parameters: build(*parameters))
    return lambda *parameters: kept(threading.get_ident(), *parameters)


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


@_kept_by_thread
def _integer_laplace(scale: float) -> Any:
    opendp = _opendp()
    integers = opendp.vector_domain(opendp.atom_domain(T="i64"))
    return opendp.m.make_laplace(integers, opendp.l1_distance(T="i64"), scale=scale)


@_kept_by_thread
def _noisy_max(scale: float, method: SelectionMethod) -> Any:
    opendp = _opendp()
    # OpenDP names the noise by the measure it is accounted in: Gumbel for the one, exponential
    # noise (which is permute-and-flip) for the other.
    measure = {
        "exponential": opendp.zero_concentrated_divergence,
        "permute_and_flip": opendp.max_divergence,
    }[method]()
    distance = opendp.linf_distance(T="f64", monotonic=False)
    return opendp.m.make_noisy_max(_doubles(), distance, measure, scale=scale)
