r"""The private maximum: the best value of a search, with Laplace noise.

Three searches, three sensitivity bounds: GP-UCB on noisy values, branch and bound on exact ones,
and any search over the regularization of a Lipschitz learner. The functions ``release_...`` spend
the budget; the ``...Maximum`` classes of :mod:`.bounds` and
:mod:`.lipschitz` state price and worth beforehand.

References:
.. [Kusner2015]
    M. J. Kusner, J. R. Gardner, R. Garnett and K. Q. Weinberger. Differentially Private Bayesian
    Optimization. ICML 2015. (Algorithms 1 to 3, Theorems 3 to 8.)
.. [Kusner2014]
    The earlier edition of the same work, at the NIPS 2014 workshop on Bayesian optimization.
"""

from __future__ import annotations

from torch import Tensor

from botorch_dp._checks import check_tensor
from botorch_dp.privacy import PrivacyLedger, PrivacyUnit, Release
from botorch_dp.release.assumptions import VALIDATION_RECORD
from botorch_dp.release.bounds import (
    Edition,
    LaplaceMaximum,
    NoiseFreeEdition,
    NoiseFreeMaximum,
    NoisyMaximum,
)
from botorch_dp.release.lipschitz import LipschitzMaximum
from botorch_dp.release.utility import warn_if_delta_is_large, warn_if_drowned


def release_maximum(
    values: Tensor,
    *,
    epsilon: float,
    delta: float,
    steps: int,
    num_choices: int,
    dataset_correlation: float,
    noise_std: float,
    information_gain: float,
    edition: Edition = "icml2015",
    num_records: int | None = None,
    confidence: float = 0.95,
    unit: PrivacyUnit = VALIDATION_RECORD,
    ledger: PrivacyLedger | None = None,
    unsafe_seed: int | None = None,
) -> Release[float]:
    r"""Release the best value that GP-UCB observed; see :class:`.NoisyMaximum` for the maths.

    Guarantee: (epsilon, delta), **conditional** on the Gaussian-process assumption of
    [Kusner2015]_, in whose units (unit prior variance, zero mean) all values are.

    Args:
        values: The ``T`` observed values, in the order of the search. Private.
        epsilon: The privacy parameter.
        delta: Probability, over the prior, that the sensitivity bound fails.
        steps: The number ``T`` of observations.
        num_choices: The number of choices the search could visit.
        dataset_correlation: The prior correlation ``k(V, V')`` of neighbouring data sets.
        noise_std: Standard deviation of the observation noise.
        information_gain: An upper bound on ``gamma_T``; see :func:`.max_information_gain`.
        edition: ``"icml2015"``, ``"workshop2014"``, or ``"union_bound"``, whose proof covers the
            noise of all steps.
        num_records: Size of the validation set, to warn when ``delta`` is too large for it.
        confidence: Of the utility bound that decides about a warning.
        unit: Whom or what one record is, and the relation the sensitivity refers to.
        ledger: Charged before ``values`` are looked at.
        unsafe_seed: Simulate with reproducible noise. The release then promises nothing.

    Example:
        >>> gain = max_information_gain(kernel, choices, num_observations=50, noise_variance=0.01)
        >>> release = release_maximum(
        ...     values, epsilon=10.0, delta=1e-4, steps=50, num_choices=len(choices),
        ...     dataset_correlation=0.99, noise_std=0.1, information_gain=gain,
        ... )
    """
    mechanism = NoisyMaximum(
        epsilon=epsilon,
        delta=delta,
        steps=steps,
        num_choices=num_choices,
        dataset_correlation=dataset_correlation,
        noise_std=noise_std,
        information_gain=information_gain,
        edition=edition,
        unit=unit,
    )
    check_tensor("values", values, shape=(steps,), finite=False)
    warn_if_delta_is_large(delta, num_records)
    return _release(mechanism, values, confidence, ledger, unsafe_seed)


def release_noise_free_maximum(
    values: Tensor,
    *,
    epsilon: float,
    delta: float,
    num_choices: int,
    dim: int,
    dataset_correlation: float,
    amplitude: float,
    rate: float,
    edition: NoiseFreeEdition = "icml2015",
    num_records: int | None = None,
    confidence: float = 0.95,
    unit: PrivacyUnit = VALIDATION_RECORD,
    ledger: PrivacyLedger | None = None,
    unsafe_seed: int | None = None,
) -> Release[float]:
    r"""Release the outcome of an exact search; see :class:`.NoiseFreeMaximum` for the maths.

    Guarantee: (epsilon, delta), **conditional** on the Gaussian-process assumption of
    [Kusner2015]_ and on the regret constants being true.

    Args:
        values: The exact values, in the order of the branch-and-bound search. Private; their
            number, at least 2, is public and must not depend on the records.
        epsilon: The privacy parameter.
        delta: Probability, over the prior, that the sensitivity bound fails.
        num_choices: The number of choices the search could visit.
        dim: The dimension of the choices.
        dataset_correlation: The prior correlation ``k(V, V')`` of neighbouring data sets.
        amplitude: ``A`` in the regret ``A exp(-tau t / (log t)^{d/4})``.
        rate: ``tau`` in the regret.
        edition: ``"icml2015"`` releases the last value, ``"workshop2014"`` the best one from the
            second on.
        num_records: Size of the validation set, to warn when ``delta`` is too large for it.
        confidence: Of the utility bound that decides about a warning.
        unit: Whom or what one record is, and the relation the sensitivity refers to.
        ledger: Charged before ``values`` are looked at.
        unsafe_seed: Simulate with reproducible noise. The release then promises nothing.

    Example:
        >>> release = release_noise_free_maximum(
        ...     values, epsilon=5.0, delta=1e-4, num_choices=1000, dim=2,
        ...     dataset_correlation=0.999, amplitude=2.0, rate=0.5,
        ... )
    """
    check_tensor("values", values, shape=(None,), finite=False)
    mechanism = NoiseFreeMaximum(
        epsilon=epsilon,
        delta=delta,
        steps=len(values),
        num_choices=num_choices,
        dim=dim,
        dataset_correlation=dataset_correlation,
        amplitude=amplitude,
        rate=rate,
        edition=edition,
        unit=unit,
    )
    warn_if_delta_is_large(delta, num_records)
    return _release(mechanism, values, confidence, ledger, unsafe_seed)


def release_lipschitz_maximum(
    values: Tensor,
    *,
    epsilon: float,
    num_validation: int,
    lipschitz: float,
    lambda_min: float,
    lambda_max: float,
    max_loss: float | None = None,
    confidence: float = 0.95,
    unit: PrivacyUnit = VALIDATION_RECORD,
    ledger: PrivacyLedger | None = None,
    unsafe_seed: int | None = None,
) -> Release[float]:
    r"""Release the best score of a Lipschitz learner; see :class:`.LipschitzMaximum` for the maths.

    Guarantee: pure epsilon-DP, **conditional** only on the constants given here being true. Any
    search will do, adaptive or not.

    Args:
        values: The scores that the search saw, each a mean over the validation records. Private.
        epsilon: The privacy parameter.
        num_validation: The number of validation records.
        lipschitz: Lipschitz constant of the score in the trained parameters.
        lambda_min: The smallest regularization searched.
        lambda_max: The largest one.
        max_loss: By how much one record's score can change at most; None if unknown.
        confidence: Of the utility bound that decides about a warning.
        unit: Whom or what one record is, and the relation the sensitivity refers to.
        ledger: Charged before ``values`` are looked at.
        unsafe_seed: Simulate with reproducible noise. The release then promises nothing.

    Example:
        >>> release = release_lipschitz_maximum(
        ...     values, epsilon=1.0, num_validation=5000, lipschitz=1.0, lambda_min=0.5,
        ...     lambda_max=0.6, max_loss=1.0,
        ... )
    """
    mechanism = LipschitzMaximum(
        epsilon=epsilon,
        num_validation=num_validation,
        lipschitz=lipschitz,
        lambda_min=lambda_min,
        lambda_max=lambda_max,
        max_loss=max_loss,
        unit=unit,
    )
    check_tensor("values", values, shape=(None,), finite=False)
    return _release(mechanism, values, confidence, ledger, unsafe_seed)


def _release(
    mechanism: LaplaceMaximum,
    values: Tensor,
    confidence: float,
    ledger: PrivacyLedger | None,
    unsafe_seed: int | None,
) -> Release[float]:
    """Warn, charge, then look at the values; the warnings point at the caller's caller."""
    warn_if_drowned(mechanism.utility(confidence), stacklevel=4)
    if ledger is not None:
        ledger.charge(mechanism.guarantee, label="private maximum")
    return mechanism.draw(values, unsafe_seed=unsafe_seed)
