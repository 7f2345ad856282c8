"""Gaussian-process parts that BoTorch lacks; nothing here knows about privacy mechanisms."""

from botorch_dp.models.finite import FiniteSetGP, max_information_gain
from botorch_dp.models.gradient import GradientPosterior
from botorch_dp.models.public import check_public, from_gpytorch, public_gp

__all__ = [
    "FiniteSetGP",
    "GradientPosterior",
    "check_public",
    "from_gpytorch",
    "max_information_gain",
    "public_gp",
]
