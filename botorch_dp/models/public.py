r"""Gaussian processes that hold nothing of the sensitive data but the observations themselves.

The releases of [Kusner2015] hold for a Gaussian process whose prior was fixed before any sensitive
value was seen: zero mean, given kernel, given noise. BoTorch's defaults break this quietly: they
fit hyper-parameters, learn a constant mean and standardize the outcomes with their own moments.
"""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import torch
from botorch.models import SingleTaskGP
from botorch.models.model import Model
from botorch.models.transforms.input import ChainedInputTransform
from gpytorch.constraints import GreaterThan
from gpytorch.kernels import Kernel
from gpytorch.likelihoods import GaussianLikelihood
from gpytorch.means import ConstantMean, ZeroMean
from gpytorch.models import ExactGP
from torch import Tensor
from torch.nn import Module

from botorch_dp._checks import check_nonnegative, check_tensor
from botorch_dp.errors import NotPublicError

_UNIT_VARIANCE_TOLERANCE = 1e-6


def frozen_kernel(kernel: Kernel, like: Tensor) -> Kernel:
    """An independent copy of ``kernel`` that cannot be trained, in ``like``'s dtype and device.

    Raises if the kernel has a batch dimension: the models here are of one function.
    """
    if not isinstance(kernel, Kernel):
        raise TypeError(f"`kernel` must be a gpytorch Kernel, got {type(kernel).__name__}.")
    if kernel.batch_shape:
        raise ValueError(
            f"`kernel` must not be batched, got batch_shape {tuple(kernel.batch_shape)}."
        )
    return deepcopy(kernel).to(like).requires_grad_(False).eval()


def prior_variance(kernel: Kernel, X: Tensor) -> Tensor:
    """``k(x, x)`` at each row of ``X`` (n x d): an ``n``-vector."""
    with torch.no_grad():
        variance = kernel(X, diag=True)
    if variance.shape != X.shape[:-1]:
        raise ValueError(
            f"`kernel` must be of a single output: its diagonal at {tuple(X.shape)} inputs has "
            f"shape {tuple(variance.shape)}."
        )
    return variance


def public_gp(
    train_X: Tensor, train_Y: Tensor, *, kernel: Kernel, noise_std: float
) -> SingleTaskGP:
    """A ``SingleTaskGP`` with zero mean, everything frozen and the outcomes left as they are.

    Args:
        train_X: An ``n x d`` tensor of inputs.
        train_Y: An ``n x 1`` tensor of outcomes, in units in which zero prior mean is sensible.
        kernel: The prior covariance, chosen without looking at sensitive values. It is copied.
        noise_std: The known standard deviation of the observation noise, in the units of
            ``train_Y``; zero for exact observations.

    Example:
        >>> X = torch.rand(5, 2, dtype=torch.double)
        >>> Y = X.sum(dim=-1, keepdim=True)
        >>> model = public_gp(X, Y, kernel=MaternKernel(nu=2.5), noise_std=0.1)
        >>> check_public(model)
    """
    check_tensor("train_X", train_X, shape=("n", "d"))
    check_tensor("train_Y", train_Y, shape=(len(train_X), 1))
    check_nonnegative("noise_std", noise_std)
    with train_X.device:  # what GPyTorch makes would be on the default device
        # A lower limit of zero: GPyTorch's default would round a tiny noise up to 1e-4.
        likelihood = GaussianLikelihood(noise_constraint=GreaterThan(0.0)).to(train_X)
        likelihood.noise = train_X.new_tensor(noise_std**2)
        model = SingleTaskGP(
            train_X,
            train_Y,
            likelihood=likelihood,
            covar_module=frozen_kernel(kernel, train_X),
            mean_module=ZeroMean(),
            outcome_transform=None,
        )
    return model.requires_grad_(False).eval()


def from_gpytorch(model: Model | ExactGP) -> Model:
    """A plain GPyTorch ``ExactGP`` as a ``SingleTaskGP``; a BoTorch model as it is.

    The copy predicts what the original does: its ``forward`` must be its ``mean_module`` and its
    ``covar_module``, which is tried at the training inputs.

    Example:
        >>> model = ModelListGP(from_gpytorch(first), from_gpytorch(second))
    """
    if isinstance(model, Model):
        return model
    name = type(model).__name__
    if not isinstance(model, ExactGP):
        raise TypeError(f"`model` must be a BoTorch model or a GPyTorch ExactGP, got a {name}.")
    parts = [getattr(model, part, None) for part in ("mean_module", "covar_module")]
    inputs, targets = model.train_inputs, model.train_targets
    if None in parts or inputs is None or len(inputs) != 1 or targets.dim() != 1:
        raise ValueError(
            f"`model` is a {name} without a `mean_module`, a `covar_module` or training data of "
            "one output: mix in BoTorch's GPyTorchModel."
        )
    (X,), (mean, kernel, likelihood) = inputs, deepcopy([*parts, model.likelihood])
    with torch.no_grad():
        prior: Any = deepcopy(model).train().forward(X)
        same = torch.allclose(prior.mean, mean(X)) and torch.allclose(
            prior.covariance_matrix, kernel(X).to_dense()
        )
    if not same:
        raise ValueError(
            f"`model` is a {name} whose `forward` is not its `mean_module` and its `covar_module`: "
            "mix in BoTorch's GPyTorchModel."
        )
    with X.device:
        copy = SingleTaskGP(
            X, targets.unsqueeze(-1), likelihood=likelihood, covar_module=kernel,
            mean_module=mean, outcome_transform=None,
        )  # fmt: skip
    return copy.eval()


def check_public(model: Module, *, unit_variance: bool = False) -> None:
    """Raise :class:`NotPublicError` unless the model's prior is visibly fixed in advance.

    Accepted is a plain ``SingleTaskGP``, or an ``ExactGP`` that :func:`from_gpytorch` takes, with
    zero mean, no trainable parameter, no outcome transform and no input transform that learns. A
    check can only refuse what it sees: a frozen length-scale that was once fitted to sensitive
    values looks like any other number.

    Args:
        model: The model to inspect.
        unit_variance: Whether to require ``k(x, x) = 1`` at the training inputs, as the
            sensitivity bounds of [Kusner2015] do.
    """
    if isinstance(model, ExactGP) and not isinstance(model, Model):
        model = from_gpytorch(model)
    if type(model) is not SingleTaskGP:
        raise NotPublicError(
            f"A {type(model).__name__} may learn or wrap parts that cannot be inspected; "
            "only a plain SingleTaskGP can be checked. Build it with `public_gp`."
        )
    names = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    reasons = [f"trainable hyper-parameters {', '.join(names)}"] if names else []
    mean = model.mean_module
    is_zero = isinstance(mean, ConstantMean) and bool((mean.constant == 0).all())
    if not (is_zero or isinstance(mean, ZeroMean)):
        reasons.append(f"the {type(mean).__name__} is not zero")
    reasons += _learned_transforms(getattr(model, "input_transform", None))
    outcome_transform = getattr(model, "outcome_transform", None)
    if outcome_transform is not None:
        reasons.append(
            f"the outcome transform {type(outcome_transform).__name__} depends on the outcomes"
        )
    if unit_variance:
        reasons += _variance_objections(prior_variance(model.covar_module, model.train_inputs[0]))
    if reasons:
        raise NotPublicError(
            "The model may carry sensitive values beside its observations: "
            + "; ".join(reasons)
            + ". Build it with `public_gp`, from parameters fixed in advance."
        )


def check_unit_variance(kernel: Kernel, X: Tensor) -> None:
    """Raise :class:`NotPublicError` unless ``k(x, x) = 1`` at each row of ``X`` (n x d)."""
    for objection in _variance_objections(prior_variance(kernel, X)):
        raise NotPublicError(
            f"`kernel` does not fit the sensitivity bound: {objection}. Drop its output scale and "
            "divide the objective by a public constant instead."
        )


def _learned_transforms(transform: Module | None) -> list[str]:
    if isinstance(transform, ChainedInputTransform):
        return [text for part in transform.children() for text in _learned_transforms(part)]
    if not getattr(transform, "learn_coefficients", False):
        return []
    return [
        f"the input transform {type(transform).__name__} learns its bounds from the visited points "
        "(give it `bounds`)"
    ]


def _variance_objections(variance: Tensor) -> list[str]:
    low, high = variance.min().item(), variance.max().item()
    if max(abs(low - 1), abs(high - 1)) <= _UNIT_VARIANCE_TOLERANCE:
        return []
    return [f"the prior variance k(x, x) must be 1, but ranges from {low:.6g} to {high:.6g}"]
