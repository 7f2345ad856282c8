from __future__ import annotations

import itertools
import math

import pytest
import torch
from gpytorch.kernels import MaternKernel, RBFKernel, ScaleKernel

from botorch_dp.models import max_information_gain


def best_gain(kernel, choices, steps, noise):
    """The exact maximum over all multisets of choices."""
    gram = kernel.double()(choices).to_dense().detach()
    identity = torch.eye(steps, dtype=torch.double)
    return max(
        0.5 * torch.logdet(identity + gram[list(pick)][:, list(pick)] / noise).item()
        for pick in itertools.combinations_with_replacement(range(len(choices)), steps)
    )


@pytest.mark.parametrize("noise", [1e-3, 0.1, 2.0])
@pytest.mark.parametrize("steps", [1, 3, 4])
@pytest.mark.parametrize("lengthscale", [0.05, 0.4, 5.0])
def test_bounds_the_best_of_all_multisets_closely(noise, steps, lengthscale):
    choices = torch.rand(6, 2, dtype=torch.double)
    kernel = RBFKernel()
    kernel.lengthscale = lengthscale
    exact = best_gain(kernel, choices, steps, noise)
    bound = max_information_gain(kernel, choices, num_observations=steps, noise_variance=noise)
    assert exact <= bound * (1 + 1e-12)
    assert bound <= exact / (1 - 1 / math.e) * (1 + 1e-12)


def test_is_exact_for_one_observation_and_for_one_choice():
    choices = torch.rand(5, 1, dtype=torch.double)
    kernel = ScaleKernel(MaternKernel())
    kernel.outputscale = 4.0
    one = max_information_gain(kernel, choices, num_observations=1, noise_variance=0.5)
    assert one == pytest.approx(0.5 * math.log(1 + 4.0 / 0.5))
    repeated = max_information_gain(kernel, choices[:1], num_observations=9, noise_variance=0.5)
    exact = 0.5 * math.log(1 + 9 * 4.0 / 0.5)
    assert exact <= repeated <= exact / (1 - 1 / math.e) * (1 + 1e-12)


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"num_observations": 0}, "num_observations"),
        ({"noise_variance": 0.0}, "noise_variance"),
        ({"noise_variance": -1.0}, "noise_variance"),
    ],
)
def test_names_the_wrong_argument(arguments, match):
    options = {"num_observations": 3, "noise_variance": 0.1} | arguments
    with pytest.raises(ValueError, match=match):
        max_information_gain(RBFKernel(), torch.rand(4, 1).double(), **options)
