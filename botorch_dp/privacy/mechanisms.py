r"""The basic mechanisms: a sensitive value goes in, a :class:`Release` comes out.

Every mechanism has a twin ``..._guarantee`` that takes the same public parameters, checks them as
strictly and returns what would be promised, without touching a value: ask it for the price first.
Nothing here adapts to the values, raises because of a single record, or shows a value in an error.

The caller vouches for the sensitivity, under the neighbouring relation that the guarantee names.

References:
    [Dwork2006] C. Dwork, F. McSherry, K. Nissim, A. Smith. Calibrating noise to sensitivity in
        private data analysis. TCC 2006.
    [McSherry2007] F. McSherry, K. Talwar. Mechanism design via differential privacy. FOCS 2007.
    [McKenna2020] R. McKenna, D. Sheldon. Permute-and-flip: a new mechanism for differentially
        private selection. NeurIPS 2020.
    [Dong2022] J. Dong, A. Roth, W. Su. Gaussian differential privacy. JRSS B 84(1), 2022.
    [Balle2018] B. Balle, Y.-X. Wang. Improving the Gaussian mechanism for differential privacy:
        analytical calibration and optimal denoising. ICML 2018.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from botorch_dp._checks import (
    check_delta,
    check_integer,
    check_positive,
    check_tensor,
)
from botorch_dp.errors import PrivacyError
from botorch_dp.privacy._gaussian import gaussian_mu
from botorch_dp.privacy._noise import (
    SelectionMethod,
    gaussian_scale,
    laplace_scale,
    noise_source,
    selection_scale,
)
from botorch_dp.privacy.guarantee import (
    ONE_RECORD,
    Guarantee,
    NeighboringRelation,
    PrivacyUnit,
    Release,
)
from botorch_dp.privacy.losses import GaussianLoss, LaplaceLoss, PrivacyLoss, PureLoss

ValueT = TypeVar("ValueT", float, Tensor)


def laplace_guarantee(
    *,
    sensitivity: float,
    epsilon: float,
    num_values: int = 1,
    unit: PrivacyUnit = ONE_RECORD,
) -> Guarantee:
    """What :func:`laplace_mechanism` promises for ``num_values`` values; see there."""
    sensitivity = check_positive("sensitivity", sensitivity)
    epsilon = check_positive("epsilon", epsilon)
    num_values = check_integer("num_values", num_values)
    laplace_scale(sensitivity, epsilon)
    # Only one coordinate's privacy-loss distribution is the Laplace mechanism's own.
    loss = LaplaceLoss(epsilon) if num_values == 1 else PureLoss(epsilon)
    return _guarantee("Laplace mechanism", loss, unit)


def laplace_mechanism(
    value: ValueT,
    *,
    sensitivity: float,
    epsilon: float,
    unit: PrivacyUnit = ONE_RECORD,
    unsafe_seed: int | None = None,
) -> Release[ValueT]:
    r"""Release ``value + Lap(sensitivity / epsilon)`` with independent noise in each coordinate.

    Guarantee: pure epsilon-DP [Dwork2006]. Neighbouring values differ by at most ``sensitivity``
    in l1 norm, so densities differ by a factor of at most ``exp(sensitivity / scale)``; with
    discrete noise on the lattice of all doubles the same holds for probabilities, exactly. Rounding
    to a double, and then to the value's dtype, is post-processing.

    Args:
        value: A finite float, or a floating-point tensor of any shape.
        sensitivity: How far the value can move in l1 norm between neighbouring data sets.
        epsilon: The privacy parameter.
        unit: Whom it protects, the relation that ``sensitivity`` refers to, and what that bound
            rests on.
        unsafe_seed: Simulate with reproducible noise. The release then promises nothing.

    Returns:
        A float for a float; a tensor of the same shape, dtype and device for a tensor.

    Example:
        >>> release = laplace_mechanism(0.25, sensitivity=0.01, epsilon=1.0)
        >>> release.guarantee.epsilon()
        1.0
    """
    values, rebuild = _as_doubles(value)
    guarantee = laplace_guarantee(
        sensitivity=sensitivity,
        epsilon=epsilon,
        num_values=len(values),
        unit=unit,
    )
    scale = laplace_scale(float(sensitivity), float(epsilon))
    noisy = noise_source(unsafe_seed).add_laplace(values, scale)
    return _release(rebuild(noisy), guarantee, scale, unsafe_seed)


def gaussian_guarantee(
    *,
    sensitivity: float,
    mu: float | None = None,
    epsilon: float | None = None,
    delta: float | None = None,
    unit: PrivacyUnit = ONE_RECORD,
) -> Guarantee:
    """What :func:`gaussian_mechanism` promises; see there."""
    sensitivity = check_positive("sensitivity", sensitivity)
    mu = _check_gaussian_level(mu, epsilon, delta)
    gaussian_scale(sensitivity, mu)
    guarantee = _guarantee("Gaussian mechanism", GaussianLoss(mu), unit)
    return guarantee if delta is None else guarantee.quoted_at(delta)


def gaussian_mechanism(
    value: ValueT,
    *,
    sensitivity: float,
    mu: float | None = None,
    epsilon: float | None = None,
    delta: float | None = None,
    unit: PrivacyUnit = ONE_RECORD,
    unsafe_seed: int | None = None,
) -> Release[ValueT]:
    r"""Release ``value + N(0, (sensitivity / mu)^2 I)``.

    Guarantee: mu-Gaussian differential privacy [Dong2022]. Neighbouring values differ by at most
    ``sensitivity`` in l2 norm, that is by ``mu`` standard deviations. Given ``epsilon`` and
    ``delta`` instead, mu is the largest for which this implies (epsilon, delta)-DP [Balle2018].
    The noise is the discrete Gaussian on the lattice of all doubles, 1e-223 or fewer standard
    deviations wide. Cell by cell its probabilities equal those of a *rounded* Gaussian, which is
    post-processing, up to a relative ``(tail * lattice / scale)^2`` within ``tail`` standard
    deviations; at a tail of 1e50 the two differ by less than 1e-300 for each value in total
    variation, which is all that any delta can be off by.

    Args:
        value: A finite float, or a floating-point tensor of any shape.
        sensitivity: How far the value can move in l2 norm between neighbouring data sets.
        mu: The privacy parameter; give this, or ``epsilon`` and ``delta``.
        epsilon: Target epsilon, with ``delta``.
        delta: Target delta, with ``epsilon``.
        unit: Whom it protects, the relation that ``sensitivity`` refers to, and what that bound
            rests on.
        unsafe_seed: Simulate with reproducible noise. The release then promises nothing.

    Returns:
        A float for a float; a tensor of the same shape, dtype and device for a tensor.

    Example:
        >>> release = gaussian_mechanism(torch.zeros(3), sensitivity=0.1, mu=0.5)
        >>> release.guarantee.mu
        0.5
    """
    values, rebuild = _as_doubles(value)
    guarantee = gaussian_guarantee(
        sensitivity=sensitivity,
        mu=mu,
        epsilon=epsilon,
        delta=delta,
        unit=unit,
    )
    assert guarantee.mu is not None  # of a single Gaussian loss
    scale = gaussian_scale(float(sensitivity), guarantee.mu)
    noisy = noise_source(unsafe_seed).add_gaussian(values, scale)
    return _release(rebuild(noisy), guarantee, scale, unsafe_seed)


def exponential_guarantee(
    *,
    sensitivity: float,
    epsilon: float,
    method: SelectionMethod = "exponential",
    monotonic: bool = False,
    unit: PrivacyUnit = ONE_RECORD,
) -> Guarantee:
    """What :func:`exponential_mechanism` promises; see there."""
    sensitivity = check_positive("sensitivity", sensitivity)
    epsilon = check_positive("epsilon", epsilon)
    if method not in get_args(SelectionMethod):
        raise ValueError(f"`method` must be one of {get_args(SelectionMethod)}, got {method!r}.")
    if monotonic and unit.relation is not NeighboringRelation.ADD_OR_REMOVE_ONE:
        raise PrivacyError(
            f"`monotonic=True` halves the noise, which under {unit.relation.name} breaks the "
            "promise: replacing a record can raise one utility and lower another. Use "
            "ADD_OR_REMOVE_ONE, where one record moves all utilities in the same direction, or "
            "`monotonic=False`."
        )
    selection_scale(sensitivity, epsilon, method, monotonic)
    name = {"exponential": "Exponential mechanism", "permute_and_flip": "Permute-and-flip"}[method]
    return _guarantee(name, PureLoss(epsilon), unit)


def exponential_mechanism(
    utilities: Tensor,
    *,
    sensitivity: float,
    epsilon: float,
    method: SelectionMethod = "exponential",
    monotonic: bool = False,
    unit: PrivacyUnit = ONE_RECORD,
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
    all weights. If all utilities move in the same direction (``monotonic``), only one of the two
    factors can go against us, and the exponent's 2 is dropped. OpenDP's arithmetic is exact: no
    utility and no probability is rounded.

    The time taken varies with how many candidates are tried before one is accepted: up to all n
    if one utility is far above the others. One record changes the chance of acceptance by at most
    a factor of ``exp(epsilon)``.

    Args:
        utilities: ``n`` finite utilities, one for each choice.
        sensitivity: How far any single utility can move between neighbouring data sets.
        epsilon: The privacy parameter.
        method: ``"exponential"`` or ``"permute_and_flip"``.
        monotonic: Whether adding a record moves all utilities in the same direction. Needs
            ``NeighboringRelation.ADD_OR_REMOVE_ONE``.
        unit: Whom it protects, the relation that ``sensitivity`` refers to, and what that bound
            rests on.
        unsafe_seed: Simulate with reproducible noise. The release then promises nothing.

    Returns:
        An index into ``utilities``. ``scale`` is the s in probabilities proportional to
        ``exp(utilities / s)``.

    Example:
        >>> release = exponential_mechanism(torch.tensor([0.1, 0.9]), sensitivity=0.01, epsilon=1.0)
        >>> release.value in (0, 1)
        True
    """
    utilities = check_tensor("utilities", utilities, shape=(None,))
    guarantee = exponential_guarantee(
        sensitivity=sensitivity,
        epsilon=epsilon,
        method=method,
        monotonic=monotonic,
        unit=unit,
    )
    scale = selection_scale(float(sensitivity), float(epsilon), method, monotonic)
    scores = utilities.detach().cpu().double().numpy()
    index = int(noise_source(unsafe_seed).select(scores, scale, method)[0])
    return _release(index, guarantee, scale, unsafe_seed)


ReleasedT = TypeVar("ReleasedT")


def _release(
    value: ReleasedT, guarantee: Guarantee, scale: float, unsafe_seed: int | None
) -> Release[ReleasedT]:
    return Release(
        value=value,
        guarantee=guarantee if unsafe_seed is None else guarantee.simulated(),
        scale=scale,
    )


def _guarantee(
    mechanism: str,
    loss: PrivacyLoss,
    unit: PrivacyUnit,
) -> Guarantee:
    return Guarantee(
        mechanism=mechanism,
        unit=unit,
        losses=(loss,),
    )


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
        tensor = check_tensor("value", value)
        if tensor.numel() == 0:
            raise ValueError(f"`value` must not be empty, got shape {tuple(tensor.shape)}.")

        def rebuild(noisy: NDArray[np.float64]) -> Tensor:
            limit = torch.finfo(tensor.dtype).max
            finite = torch.from_numpy(noisy).clamp(-limit, limit)
            return finite.to(tensor.dtype).reshape(tensor.shape).to(tensor.device)

        return tensor.detach().cpu().double().flatten().numpy(), rebuild
    if not isinstance(value, float):
        raise TypeError(
            f"`value` must be a float or a floating-point tensor, got {type(value).__name__}; "
            "convert it with `float(value)` or `torch.as_tensor(value, dtype=torch.double)`."
        )
    if not np.isfinite(value):
        raise ValueError("`value` must be finite, but is NaN or infinite.")
    return np.array([value]), lambda noisy: float(noisy[0])
