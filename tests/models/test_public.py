from __future__ import annotations

import pytest
import torch
from botorch.models import ModelListGP, SingleTaskGP
from botorch.models.transforms import Standardize
from botorch.models.transforms.input import (
    ChainedInputTransform,
    InputStandardize,
    Log10,
    Normalize,
    Warp,
)
from gpytorch.kernels import LinearKernel, MaternKernel, RBFKernel, ScaleKernel
from gpytorch.means import ConstantMean, LinearMean, ZeroMean
from gpytorch.priors import LogNormalPrior

from botorch_dp.errors import NotPublicError
from botorch_dp.models import check_public, public_gp
from botorch_dp.models.public import check_unit_variance, frozen_kernel

X = torch.linspace(0.1, 0.9, 12, dtype=torch.double).reshape(6, 2)
Y = X.sin().sum(dim=-1, keepdim=True)


def frozen(**overrides) -> SingleTaskGP:
    """A public model, but for the overrides."""
    options = {
        "train_Yvar": torch.full_like(Y, 0.01),
        "covar_module": RBFKernel(),
        "mean_module": ZeroMean(),
        "outcome_transform": None,
    }
    return SingleTaskGP(X, Y, **(options | overrides)).requires_grad_(False)


def test_public_gp_passes_and_predicts_the_hand_computed_posterior():
    kernel = RBFKernel()
    kernel.lengthscale = 0.5
    model = public_gp(X, Y, kernel=kernel, noise_std=0.1)
    check_public(model, unit_variance=True)
    new = torch.rand(4, 2, dtype=torch.double)

    def k(a, b):
        return torch.exp(-((a.unsqueeze(-2) - b.unsqueeze(-3)) ** 2).sum(-1) / (2 * 0.25))

    gram = k(X, X) + 0.01 * torch.eye(6, dtype=torch.double)
    mean = k(new, X) @ torch.linalg.solve(gram, Y)
    variance = 1 - (k(new, X) * torch.linalg.solve(gram, k(X, new)).T).sum(-1, keepdim=True)
    posterior = model.posterior(new)
    torch.testing.assert_close(posterior.mean, mean, rtol=0, atol=1e-8)
    torch.testing.assert_close(posterior.variance, variance, rtol=0, atol=1e-8)


def test_public_gp_does_not_round_up_a_tiny_noise():
    for noise in (0.0, 1e-9, 0.3):
        model = public_gp(X, Y, kernel=RBFKernel(), noise_std=noise**0.5)
        assert model.likelihood.noise.item() == pytest.approx(noise, rel=1e-9, abs=1e-300)


def test_public_gp_leaves_the_given_kernel_alone():
    kernel = MaternKernel(nu=2.5)
    public_gp(X, Y, kernel=kernel, noise_std=0.3)
    assert kernel.raw_lengthscale.requires_grad
    assert kernel.raw_lengthscale.dtype == torch.float32


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"train_Y": Y.squeeze(-1)}, "train_Y"),
        ({"train_X": X.squeeze(-1)[:0]}, "train_X"),
        ({"noise_std": -1e-3}, "noise_std"),
        ({"noise_std": float("nan")}, "noise_std"),
        ({"kernel": RBFKernel(batch_shape=torch.Size([2]))}, "batch"),
    ],
)
def test_public_gp_names_the_wrong_argument(arguments, match):
    options = {"train_X": X, "train_Y": Y, "kernel": RBFKernel(), "noise_std": 0.3}
    options |= arguments
    with pytest.raises(ValueError, match=match):
        public_gp(options.pop("train_X"), options.pop("train_Y"), **options)


def test_plain_frozen_models_pass():
    check_public(frozen(), unit_variance=True)
    zero_constant = ConstantMean()
    check_public(frozen(mean_module=zero_constant))
    bounds = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.double)
    check_public(frozen(input_transform=Normalize(d=2, bounds=bounds)))
    chained = ChainedInputTransform(log=Log10(indices=[0]), box=Normalize(d=2, bounds=bounds))
    check_public(frozen(input_transform=chained))


@pytest.mark.parametrize("part", ["covar_module.raw_lengthscale", "likelihood.noise_covar.raw"])
def test_trainable_parameters_are_refused_by_name(part):
    model = frozen(train_Yvar=None) if "likelihood" in part else frozen()
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name.startswith(part))
    with pytest.raises(NotPublicError, match=part):
        check_public(model)


def test_default_single_task_gp_is_refused_for_each_of_its_reasons():
    with pytest.raises(NotPublicError) as caught:
        check_public(SingleTaskGP(X, Y))
    for reason in ("raw_lengthscale", "Standardize", "mean_module.raw_constant", "raw_noise"):
        assert reason in str(caught.value)


@pytest.mark.parametrize(
    ("overrides", "reason"),
    [
        ({"outcome_transform": Standardize(m=1)}, "Standardize"),
        ({"mean_module": ConstantMean().initialize(constant=0.1)}, "ConstantMean is not zero"),
        ({"mean_module": LinearMean(2)}, "LinearMean"),
        ({"input_transform": Normalize(d=2)}, "Normalize learns"),
        ({"input_transform": InputStandardize(d=2)}, "InputStandardize learns"),
        (
            {"input_transform": ChainedInputTransform(a=Log10(indices=[0]), b=Normalize(d=2))},
            "Normalize learns",
        ),
    ],
)
def test_parts_that_carry_private_values_are_refused_by_name(overrides, reason):
    with pytest.raises(NotPublicError, match=reason):
        check_public(frozen(**overrides))


def test_trainable_input_warping_is_refused():
    warp = Warp(d=2, indices=[0], concentration1_prior=LogNormalPrior(0.0, 0.7))
    model = frozen(input_transform=warp)
    check_public(model)
    warp.requires_grad_(True)
    with pytest.raises(NotPublicError, match="concentration"):
        check_public(model)


def test_wrappers_and_subclasses_are_refused():
    class Tinkered(SingleTaskGP):
        pass

    with pytest.raises(NotPublicError, match="ModelListGP"):
        check_public(ModelListGP(frozen()))
    with pytest.raises(NotPublicError, match="Tinkered"):
        check_public(Tinkered(X, Y))


@pytest.mark.parametrize("kernel", [ScaleKernel(RBFKernel()), LinearKernel()])
def test_prior_variance_other_than_one_is_refused_only_where_needed(kernel):
    model = frozen(covar_module=kernel)
    check_public(model)
    with pytest.raises(NotPublicError, match=r"k\(x, x\) must be 1"):
        check_public(model, unit_variance=True)
    with pytest.raises(NotPublicError, match=r"k\(x, x\) must be 1"):
        check_unit_variance(frozen_kernel(kernel, X), X)


@pytest.mark.filterwarnings("ignore::botorch.exceptions.warnings.InputDataWarning")
def test_messages_hold_no_observations():
    secret = torch.full_like(Y, 1234.5678)
    model = SingleTaskGP(X, secret, outcome_transform=None)
    with pytest.raises(NotPublicError) as caught:
        check_public(model)
    assert "1234" not in str(caught.value)
