r"""How much observations can tell of a Gaussian process on a finite set.

References:
.. [Srinivas2010]
    N. Srinivas, A. Krause, S. M. Kakade and M. Seeger. Gaussian Process Optimization in the
    Bandit Setting: No Regret and Experimental Design. ICML 2010.
.. [Nemhauser1978]
    G. L. Nemhauser, L. A. Wolsey and M. L. Fisher. An analysis of approximations for maximizing
    submodular set functions I. Mathematical Programming 14, 1978.
"""

from __future__ import annotations

import math

from gpytorch.kernels import Kernel
from torch import Tensor

from botorch_dp._checks import check_integer, check_positive
from botorch_dp.models.finite import FiniteSetGP


def max_information_gain(
    kernel: Kernel, choices: Tensor, *, num_observations: int, noise_variance: float
) -> float:
    r"""An upper bound on the maximum information gain ``gamma_T`` of [Srinivas2010]_.

    ``gamma_T = max 1/2 log det(I + K_A / s)`` over all ``A`` of ``T`` choices, repetitions allowed.
    The gain is monotone and submodular in ``A``. Hence, with ``F_j`` the gain of the first ``j``
    greedy choices and ``g_{j+1}`` the next greedy increment,

    ``gamma_T <= F_T / (1 - 1/e)`` [Nemhauser1978]_  and  ``gamma_T <= F_j + T g_{j+1}``, ``j < T``,

    since no choice adds more to the first ``j`` than ``g_{j+1}``. The least of these is returned.
    It depends on public values only.

    Args:
        kernel: The prior covariance.
        choices: An ``n x d`` tensor.
        num_observations: The number ``T`` of observations.
        noise_variance: Variance ``s`` of the observation noise; must be positive.

    Example:
        >>> choices = torch.linspace(0, 1, 100, dtype=torch.double).unsqueeze(-1)
        >>> gamma = max_information_gain(
        ...     RBFKernel(), choices, num_observations=20, noise_variance=0.01
        ... )
    """
    steps = check_integer("num_observations", num_observations)
    check_positive("noise_variance", noise_variance)
    gp = FiniteSetGP(choices, kernel=kernel, noise_variance=noise_variance)
    bound = math.inf
    for _ in range(steps):
        best = int(gp.variance.argmax())
        increment = 0.5 * math.log1p(gp.variance[best].item() / noise_variance)
        bound = min(bound, gp.information_gain + steps * increment)
        gp.observe(best, 0.0)
    return min(bound, gp.information_gain / (1 - 1 / math.e))
