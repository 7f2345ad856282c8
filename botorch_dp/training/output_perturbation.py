r"""Logistic regression made private by noise on the trained weights."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor, nn

from botorch_dp._checks import check_delta, check_integer, check_positive
from botorch_dp.errors import PrivacyError
from botorch_dp.privacy import (
    Guarantee,
    PrivacyLedger,
    PrivacyUnit,
    Release,
    gaussian_guarantee,
    gaussian_mechanism,
)
from botorch_dp.privacy.digests import digest_of
from botorch_dp.privacy.guarantee import warn_large_delta
from botorch_dp.privacy.ledger import make_release
from botorch_dp.training.networks import accuracy
from botorch_dp.training.plan import FIXED_BEFOREHAND
from botorch_dp.training.records import TrainTest, check_data

#: Numbers gathered at once; bounds memory whatever the number of models trained together.
_CHUNK = 2_000_000


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class PerturbedModel(Release[nn.Module]):
    """Logistic regression with noise on its weights, and its guarantee.

    The ``value`` scores records that were scaled as in training; see
    :meth:`OutputPerturbedLogisticRegression.scaled`. Its guarantee has the status ``"none"`` unless
    it was trained to be published.

    Args:
        accuracy: Share of test records classified correctly. Sensitive.
    """

    accuracy: float

    __repr__ = object.__repr__


class OutputPerturbedLogisticRegression:
    r"""Projected SGD on a strongly convex loss, then Gaussian noise on the weights [Wu2017].

    Minimizes ``mean_i log(1 + exp(-y_i w.x_i)) + (regularization / 2) |w|^2`` over records scaled
    to ``|x_i| <= 1``, one record a step, a fresh permutation for the whole run, step size
    ``min(1 / (1 + regularization), 1 / (regularization t))``.

    Guarantee: the loss is ``regularization``-strongly convex, ``1 + regularization``-smooth and,
    on the ball of radius ``1 / regularization``, 2-Lipschitz, so replacing one record moves the
    final weights by at most ``4 / (regularization n)`` for any number of epochs [Wu2017]. Adding
    ``N(0, noise_std^2 I)`` is mu-GDP with ``mu`` the ratio of the two. (Two records' gradients
    differ by at most 2 rather than 4, because the penalty's part is the same: half of the bound is
    left for rounding.) The projection onto that ball never acts: with ``|g x| <= 1``, a step from
    ``|w| <= R = 1 / regularization`` gives
    ``|(1 - step regularization) w + step g x| <= R - step + step = R``.

    Args:
        data: ``TrainTest`` of two classes; targets are positive or not.
        epochs: Passes over the data.
        delta: Where epsilon is quoted.

    Example:
        >>> trainer = OutputPerturbedLogisticRegression(data, delta=1e-6)
        >>> print(trainer.guarantee(regularization=0.01, noise_std=0.1))  # before any training
        >>> trained = trainer.fit(regularization=0.01, noise_std=0.1, seed=0)
        >>> trained.accuracy
    """

    def __init__(self, data: TrainTest, *, epochs: int = 10, delta: float = 1e-6) -> None:
        data = check_data(data)
        if data.train_X.dim() != 2 or data.train_Y.dim() != 1:
            raise ValueError(
                "`data` must hold features n x d and targets n, got "
                f"{tuple(data.train_X.shape)} and {tuple(data.train_Y.shape)}."
            )
        self.epochs = check_integer("epochs", epochs)
        self.delta = check_delta("delta", delta)
        self._data = data

    @property
    def num_records(self) -> int:
        """The number of training records."""
        return len(self._data.train_X)

    @cached_property
    def _signed(self) -> Tensor:
        """``-y x``, ``n x d``: the gradient of a record's loss is ``sigmoid(-y w.x) (-y x)``."""
        X, Y = self._data.train_X, self._data.train_Y
        return self.scaled(X) * torch.where(Y > 0, -1.0, 1.0).to(_real(X)).unsqueeze(-1)

    @staticmethod
    def scaled(X: Tensor) -> Tensor:
        """Each record divided by its norm if that is above 1; one with NaN or inf becomes 0."""
        if X.dim() < 2 or X.shape[-1] == 0:
            raise ValueError(f"`X` must have shape n x d, got {tuple(X.shape)}.")
        real = X.to(_real(X))
        usable = real.isfinite().all(dim=-1, keepdim=True)
        real = torch.where(usable, real, torch.zeros_like(real))
        largest = real.abs().amax(dim=-1, keepdim=True).clamp_min(1.0)
        # Divided by the largest entry first: squares of huge entries overflow.
        real = real / largest
        norm = real.norm(dim=-1, keepdim=True)
        return real / torch.maximum(norm, 1 / largest)

    def sensitivity(self, *, regularization: float) -> float:
        """How far one replaced record can move the weights."""
        check_positive("regularization", regularization)
        distance = 4 / (regularization * self.num_records)
        if not 1e-90 < distance < 1e90:
            raise ValueError(f"`regularization` = {regularization:g} is out of all proportion.")
        return distance

    def guarantee(self, *, regularization: float, noise_std: float) -> Guarantee:
        """The guarantee of publishing the weights, from the parameters alone."""
        sensitivity = self.sensitivity(regularization=regularization)
        if not 1e-30 < check_positive("noise_std", noise_std) / sensitivity < 1e15:
            raise ValueError(f"`noise_std` = {noise_std:g} is out of all proportion.")
        noise = gaussian_guarantee(sensitivity=sensitivity, mu=sensitivity / noise_std)
        unit = PrivacyUnit("one training record", conditions=(FIXED_BEFOREHAND,))
        return replace(noise, unit=unit, quoted_delta=self.delta)

    def fit(
        self,
        *,
        regularization: float,
        noise_std: float,
        seed: int = 0,
        publish: bool = False,
        ledger: PrivacyLedger | None = None,
        key: str | None = None,
        label: str = "",
    ) -> PerturbedModel:
        """Train one model.

        Args:
            regularization: Strength of the quadratic penalty.
            noise_std: Standard deviation of the noise on each weight.
            seed: Seed of the permutation and, unless published, of the noise.
            publish: Draw the noise through OpenDP from the operating system's entropy, in double
                precision. Without it the model is for tuning and guarantees nothing.
            ledger: Charged before a record is read. Only with ``publish=True``.
            key: Names the published weights in the ledger: asked again, they are replayed
                free of charge.
            label: What it is for, in public words; shown in the ledger.

        Raises:
            BudgetExhausted: If the budget is too small; no record was read.
        """
        if not publish:
            if ledger is not None:
                raise PrivacyError(
                    "`ledger` was given to a model that is not to be published: its noise is "
                    "simulated, and nothing is charged for it. Leave one of the two out."
                )
            return self.replicates([seed], regularization=regularization, noise_std=noise_std)[0]
        guarantee = self.guarantee(regularization=regularization, noise_std=noise_std)
        check_integer("seed", seed, at_least=0)

        def descend() -> Tensor:
            return self._descend(regularization, [seed], dtype=torch.double)[0]

        def perturb(weights: Tensor) -> Tensor:
            return gaussian_mechanism(
                weights,
                sensitivity=self.sensitivity(regularization=regularization),
                mu=guarantee.mu,
                unit=guarantee.unit,
            ).value

        warn_large_delta(self.delta, self.num_records)
        released = make_release(
            guarantee,
            perturb,
            read=descend,
            ledger=ledger,
            key=key,
            label=label,
            about={"seed": seed, "epochs": self.epochs, "regularization": regularization},
        )
        return self._perturbed(released.value, guarantee)

    def replicates(
        self, seeds: Sequence[int], *, regularization: float, noise_std: float
    ) -> list[PerturbedModel]:
        """Train one model for each seed, all at once, for tuning.

        Args:
            seeds: Of each model's permutation and noise.
            regularization: As for :meth:`fit`.
            noise_std: As for :meth:`fit`.
        """
        if not seeds:
            raise ValueError("`seeds` must hold one seed for each model, got none.")
        for seed in seeds:
            check_integer("seed", seed, at_least=0)
        guarantee = self.guarantee(regularization=regularization, noise_std=noise_std)
        models = []
        weights = self._descend(regularization, seeds, dtype=self._signed.dtype)
        for w, seed in zip(weights, seeds, strict=True):
            draws = np.random.default_rng([seed, 1]).standard_normal(len(w))
            noisy = w + noise_std * torch.from_numpy(draws).to(w)
            models.append(self._perturbed(noisy, guarantee.simulated()))
        return models

    def _descend(
        self, regularization: float, seeds: Sequence[int], *, dtype: torch.dtype
    ) -> Tensor:
        """Final weights before noise: ``B x d``, one row for each seed."""
        signed = self._signed.to(dtype)
        n, d = signed.shape
        orders = torch.stack(
            [torch.from_numpy(np.random.default_rng([s, 0]).permutation(n)) for s in seeds]
        ).to(signed.device)  # B x n
        W = signed.new_zeros(len(seeds), d)
        chunk = max(1, min(n, _CHUNK // (len(seeds) * d)))
        for epoch, start in itertools.product(range(self.epochs), range(0, n, chunk)):
            stop = min(n, start + chunk)
            t = torch.arange(start + 1, stop + 1, dtype=torch.double, device="cpu") + epoch * n
            step = (1 / (regularization * t)).clamp(max=1 / (1 + regularization))  # c
            decay = (1 - step * regularization).view(-1, 1, 1).to(signed)
            step = step.neg().view(-1, 1, 1).to(signed)
            records = signed[orders[:, start:stop].T]  # c x B x d
            for z, shrink, move in zip(
                records.unbind(), decay.unbind(), step.unbind(), strict=True
            ):
                slope = torch.sigmoid_((z * W).sum(dim=-1, keepdim=True)).mul_(move)
                W.mul_(shrink).addcmul_(z, slope)
        return W

    def _perturbed(self, weights: Tensor, guarantee: Guarantee) -> PerturbedModel:
        model = nn.Linear(len(weights), 1, bias=False, dtype=weights.dtype, device=weights.device)
        model.weight.data.copy_(weights.unsqueeze(0))
        model.requires_grad_(False).eval()
        outputs = model(self.scaled(self._data.test_X).to(weights.dtype))
        score = accuracy(outputs, self._data.test_Y)
        return PerturbedModel(model, guarantee, digest=digest_of(model), accuracy=score)


def _real(X: Tensor) -> torch.dtype:
    return X.dtype if X.is_floating_point() else torch.get_default_dtype()
