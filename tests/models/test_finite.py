"""The posterior on a finite set against dense formulas, and the bound on what can be learned."""

from __future__ import annotations

import copy
import itertools
import math
import pickle

import pytest
import torch
from gpytorch.kernels import (
    AdditiveKernel,
    LinearKernel,
    MaternKernel,
    PeriodicKernel,
    ProductKernel,
    RBFKernel,
    RQKernel,
    ScaleKernel,
)

from botorch_dp.models import FiniteSetGP, max_information_gain, public_gp


def scaled() -> ScaleKernel:
    kernel = ScaleKernel(MaternKernel(nu=1.5, ard_num_dims=2))
    kernel.outputscale = 3.7
    kernel.base_kernel.lengthscale = torch.tensor([[0.3, 0.8]])
    return kernel


KERNELS = {
    "rbf": RBFKernel,
    "matern52": lambda: MaternKernel(nu=2.5),
    "scaled ARD": scaled,
    "one dimension": lambda: RBFKernel(active_dims=[1]),
    "periodic": PeriodicKernel,
    "rational quadratic": RQKernel,
    "linear": LinearKernel,
    "product": lambda: ProductKernel(RBFKernel(active_dims=[0]), MaternKernel(active_dims=[1])),
    "matern32 of one dimension": lambda: ScaleKernel(MaternKernel(nu=1.5), active_dims=(1,)),
    "scaled product": lambda: ScaleKernel(
        ProductKernel(RBFKernel(active_dims=[1]), ScaleKernel(MaternKernel(nu=1.5)))
    ),
    "sum of stationary ones": lambda: AdditiveKernel(RBFKernel(), MaternKernel(nu=1.5)),
    "sum": lambda: AdditiveKernel(RBFKernel(), LinearKernel()),
}


def observed(gp: FiniteSetGP, indices, values) -> FiniteSetGP:
    for index, value in zip(indices, values, strict=True):
        gp.observe(index, float(value))
    return gp


def dense_posterior(gram, indices, values, noise):
    """Mean and variance from the full Gram matrix (n x n) by a dense solve."""
    gram_oo = gram[indices][:, indices] + noise * torch.eye(len(indices), dtype=gram.dtype)
    weights = torch.linalg.solve(gram_oo, gram[indices])
    return weights.T @ values, gram.diagonal() - (gram[indices] * weights).sum(0)


# GPyTorch adds jitter or rounds negative variances for some of the kernels, and says so.
quiet_gpytorch = pytest.mark.filterwarnings(
    "ignore::linear_operator.utils.warnings.NumericalWarning"
)


@quiet_gpytorch
@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("noise", [0.3, 1e-4])
def test_agrees_with_the_gpytorch_posterior_also_for_repeated_points(name, noise):
    choices = torch.rand(60, 2, dtype=torch.double)
    kernel = KERNELS[name]()
    indices = [*torch.randint(60, (17,)).tolist(), 5, 5, 5, 8, 5]
    values = torch.randn(len(indices), dtype=torch.double)
    gp = observed(FiniteSetGP(choices, kernel=kernel, noise_std=noise**0.5), indices, values)
    model = public_gp(choices[indices], values.unsqueeze(-1), kernel=kernel, noise_std=noise**0.5)
    exact = model.posterior(choices)
    torch.testing.assert_close(gp.mean, exact.mean.squeeze(-1), rtol=0, atol=1e-8)
    torch.testing.assert_close(gp.variance, exact.variance.squeeze(-1), rtol=0, atol=1e-8)
    assert gp.num_observations == len(indices)


@pytest.mark.parametrize("noise", [0.0, 1e-14, 1e-13, 1e-10])
def test_repeats_with_tiny_noise_match_their_average(noise):
    """n repeats are one observation of their mean with noise/n: well conditioned, hence exact."""
    choices = torch.linspace(0, 1, 30, dtype=torch.double).unsqueeze(-1)
    kernel = MaternKernel(nu=2.5)
    gram = kernel.double()(choices).to_dense().detach()
    spread = math.sqrt(noise)
    places, repeats = [2, 11, 27], 4
    centre = torch.tensor([0.5, -1.0, 2.0], dtype=torch.double)
    draws = centre + spread * torch.randn(repeats, 3, dtype=torch.double)
    gp = FiniteSetGP(choices, kernel=kernel, noise_std=noise**0.5)
    for draw in draws:
        observed(gp, places, draw)
    mean, variance = dense_posterior(gram, places, draws.mean(0), noise / repeats)
    torch.testing.assert_close(gp.mean, mean, rtol=0, atol=1e-8)
    torch.testing.assert_close(gp.variance, variance, rtol=0, atol=1e-8)


def test_noise_free_observations_are_interpolated_and_repeats_change_nothing():
    choices = torch.rand(50, 3, dtype=torch.double)
    gp = FiniteSetGP(choices, kernel=RBFKernel(), noise_std=0.0)
    observed(gp, [3, 10, 20], [1.0, -2.0, 0.5])
    torch.testing.assert_close(
        gp.mean[[3, 10, 20]], torch.tensor([1.0, -2.0, 0.5], dtype=torch.double)
    )
    assert gp.variance[[3, 10, 20]].max() < 1e-12
    before = gp.mean, gp.variance
    gp.observe(10, -2.0)
    torch.testing.assert_close(gp.mean, before[0], rtol=0, atol=1e-9)
    torch.testing.assert_close(gp.variance, before[1], rtol=0, atol=1e-9)
    assert gp.num_observations == 4
    assert gp.information_gain == math.inf


@pytest.mark.parametrize("lengthscale", [0.2, 0.5, 2.0])
def test_noise_free_dense_observation_of_a_smooth_kernel_stays_exact(lengthscale):
    """An RBF Gram matrix of close points is numerically singular: nothing may blow up."""
    choices = torch.linspace(0, 1, 300, dtype=torch.double).unsqueeze(-1)
    kernel = RBFKernel()
    kernel.lengthscale = lengthscale
    truth = torch.sin(3 * choices.squeeze(-1))
    gp = FiniteSetGP(choices, kernel=kernel, noise_std=0.0)
    observed(gp, range(300), truth)
    assert (gp.mean - truth).abs().max() < 1e-4
    assert gp.variance.min() >= 0
    assert gp.variance.max() < 1e-11


class Flattened(RBFKernel):
    """A subclass, which the closed forms must not take for its parent."""

    def forward(self, x1, x2, diag=False, **params):
        return 0.5 * super().forward(x1, x2, diag=diag, **params)


@pytest.mark.parametrize(
    ("kernel", "known"),
    [
        (ScaleKernel(MaternKernel(nu=2.5)), True),
        (Flattened(), False),
        (ScaleKernel(RBFKernel() + Flattened()), False),
    ],
)
def test_known_kernels_have_a_closed_form_and_others_are_asked(kernel, known):
    choices = torch.rand(9, 2, dtype=torch.double)
    gp = FiniteSetGP(choices, kernel=kernel, noise_std=0.3)
    assert (gp._closed_form is not None) == known
    gram = kernel.double()(choices).to_dense().detach()
    observed(gp, [2, 2, 7], [1.0, 0.5, -1.0])
    mean, variance = dense_posterior(
        gram, [2, 2, 7], torch.tensor([1.0, 0.5, -1.0]).double(), 0.3**2
    )
    torch.testing.assert_close(gp.mean, mean, rtol=0, atol=1e-7)
    torch.testing.assert_close(gp.variance, variance, rtol=0, atol=1e-7)


@pytest.mark.parametrize("kernel", [MaternKernel(nu=2.5), PeriodicKernel()])
def test_chunks_do_not_change_the_posterior(kernel):
    choices = torch.rand(300, 2, dtype=torch.double)
    indices = [*range(0, 300, 11), 5, 5]
    whole = observed(FiniteSetGP(choices, kernel=kernel, noise_std=0.3), indices, indices)
    chunked = FiniteSetGP(choices, kernel=kernel, noise_std=0.3)
    chunked._chunk = 37
    observed(chunked, indices, indices)
    torch.testing.assert_close(chunked.mean, whole.mean, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(chunked.variance, whole.variance, rtol=1e-9, atol=1e-9)


def test_copies_and_pickles_go_on_alone():
    gp = FiniteSetGP(torch.rand(9, 2).double(), kernel=RBFKernel() + RBFKernel(), noise_std=1.0)
    gp.observe(3, 1.0)
    for copied in (copy.deepcopy(gp), pickle.loads(pickle.dumps(gp))):
        assert torch.equal(copied.mean, gp.mean)
        before = gp.mean
        copied.observe(4, 2.0)
        assert torch.equal(gp.mean, before)
        assert not torch.equal(copied.mean, before)


def test_information_gain_is_half_the_log_determinant():
    choices = torch.rand(30, 2, dtype=torch.double)
    indices = [1, 4, 4, 9, 20, 1]
    noise = 0.05
    gp = observed(FiniteSetGP(choices, kernel=RBFKernel(), noise_std=noise**0.5), indices, range(6))
    gram = RBFKernel().double()(choices[indices]).to_dense()
    identity = torch.eye(6, dtype=torch.double)
    assert gp.information_gain == pytest.approx(
        0.5 * torch.logdet(identity + gram / noise).item(), rel=1e-10
    )


def test_a_choice_without_prior_variance_stays_known():
    gp = FiniteSetGP(torch.zeros(1, 1).double(), kernel=LinearKernel(), noise_std=0.0)
    gp.observe(0, 0.5)
    assert gp.mean.item() == 0
    assert gp.variance.item() == 0


def test_keeps_dtype_and_the_kernel_it_was_given():
    kernel = RBFKernel()
    gp = FiniteSetGP(torch.rand(5, 2), kernel=kernel, noise_std=0.3)
    gp.observe(2, 1.0)
    assert gp.mean.dtype == gp.variance.dtype == torch.float32
    before = gp.mean
    kernel.lengthscale = 99.0
    gp.observe(2, float(before[2]))
    assert not gp.mean.requires_grad
    assert (gp.mean < before[2] + 1e-6).all()


@pytest.mark.parametrize(
    ("choices", "noise", "match"),
    [
        (torch.rand(5).double(), 0.1, "`choices` must have shape"),
        (torch.rand(0, 2).double(), 0.1, "`choices` must have shape"),
        (torch.full((3, 1), torch.nan), 0.1, "`choices` must be finite"),
        (torch.rand(5, 2).double(), -0.1, "noise_std"),
        (torch.rand(5, 2).double(), math.inf, "noise_std"),
    ],
)
def test_names_the_wrong_argument(choices, noise, match):
    with pytest.raises(ValueError, match=match):
        FiniteSetGP(choices, kernel=RBFKernel(), noise_std=noise)


def test_repr_holds_no_observation():
    gp = FiniteSetGP(torch.rand(5, 2).double(), kernel=RBFKernel(), noise_std=0.3)
    gp.observe(0, 1234.5678)
    assert "1234" not in repr(gp)


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
def test_information_gain_bounds_the_best_of_all_multisets_closely(noise, steps, lengthscale):
    choices = torch.rand(6, 2, dtype=torch.double)
    kernel = RBFKernel()
    kernel.lengthscale = lengthscale
    exact = best_gain(kernel, choices, steps, noise)
    bound = max_information_gain(kernel, choices, num_observations=steps, noise_std=noise**0.5)
    assert exact <= bound * (1 + 1e-12)
    assert bound <= exact / (1 - 1 / math.e) * (1 + 1e-12)


def test_information_gain_is_exact_for_one_observation_and_for_one_choice():
    choices = torch.rand(5, 1, dtype=torch.double)
    kernel = ScaleKernel(MaternKernel())
    kernel.outputscale = 4.0
    one = max_information_gain(kernel, choices, num_observations=1, noise_std=0.5**0.5)
    assert one == pytest.approx(0.5 * math.log(1 + 4.0 / 0.5))
    repeated = max_information_gain(kernel, choices[:1], num_observations=9, noise_std=0.5**0.5)
    exact = 0.5 * math.log(1 + 9 * 4.0 / 0.5)
    assert exact <= repeated <= exact / (1 - 1 / math.e) * (1 + 1e-12)


@pytest.mark.parametrize("name", ["num_observations", "noise_std"])
def test_information_gain_names_the_wrong_argument(name):
    options = {"num_observations": 3, "noise_std": 0.3} | {name: 0}
    with pytest.raises(ValueError, match=name):
        max_information_gain(RBFKernel(), torch.rand(4, 1).double(), **options)
