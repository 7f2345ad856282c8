"""Pending points in closed form: believe what the model predicts for them."""

from __future__ import annotations

from typing import Any, cast

from botorch.exceptions.errors import UnsupportedError
from botorch.models.deterministic import DeterministicModel
from botorch.models.model import Model, ModelList
from gpytorch.likelihoods import FixedNoiseGaussianLikelihood
from torch import Tensor


def believe(model: Model, X: Tensor) -> Model:
    """A model like the given one, but conditioned on its own posterior mean at ``X``.

    Its mean is the same everywhere; its variance is what will remain once ``X`` is observed. With
    known noise variances, the new observations get their average, as in BoTorch's ``fantasize``.

    Args:
        model: Left as it is. Deterministic members of a list have nothing to be conditioned on.
        X: An ``n x d``-dim tensor of points.
    """
    if isinstance(model, ModelList):
        return type(model)(*(believe(cast(Model, member), X) for member in model.models))
    if isinstance(model, DeterministicModel):
        return model
    posterior: Any = model.posterior(X)
    mean: Tensor = posterior.mean  # (batch_shape) x n x m
    likelihood: Any = getattr(model, "likelihood", None)
    known_noise = {}
    if isinstance(likelihood, FixedNoiseGaussianLikelihood):
        noise = likelihood.noise.mean(dim=-1, keepdim=True)  # (batch_shape) x (m) x 1
        noise = noise if model.num_outputs > 1 else noise.unsqueeze(-1)
        known_noise["noise"] = noise.transpose(-1, -2).expand_as(mean)
    try:
        return model.condition_on_observations(
            X.expand(*mean.shape[:-1], X.shape[-1]), mean, **known_noise
        )
    except (AttributeError, RuntimeError) as error:
        # A model without the method, with one that is not implemented, or (Kronecker multi-task
        # models) with one that raises a plain RuntimeError. The cause is chained, not hidden.
        raise UnsupportedError(
            f"`X_pending`: a {type(model).__name__} cannot be conditioned on pending points; wait "
            "for them to finish and pass None."
        ) from error
