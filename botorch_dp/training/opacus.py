"""The Opacus engine: per-example gradients by hooks, for any architecture Opacus accepts.

Opacus computes the per-example gradients; clipping, noise and the optimizer's step are ours, so
that both engines share the one place where units and relations matter. In particular noise is
never passed through Opacus, which counts it in clipping norms.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from contextlib import nullcontext

import torch
from opacus import GradSampleModule
from opacus.validators import ModuleValidator
from torch import Tensor, nn

from botorch_dp.errors import PrivacyError
from botorch_dp.training.fused import (
    clip_factors,
    parameter_views,
    stack_parameters,
    trainable,
)
from botorch_dp.training.networks import Loss
from botorch_dp.training.randomness import Randomness, seeded_torch
from botorch_dp.training.records import TrainingRecords

#: Lots are processed in parts whose per-example gradients hold at most so many numbers.
MAX_GRADIENT_NUMBERS = 2**27


def check_opacus_accepts(model: nn.Module) -> None:
    """Raise if the model has layers without per-example gradients, such as BatchNorm."""
    problems = [*ModuleValidator.validate(model.train(), strict=False)]
    problems += GradSampleModule.validate(model, strict=False)
    if problems:
        raise PrivacyError(
            f"The model cannot be trained privately: {'; '.join(map(str, problems))} "
            "Opacus's ModuleValidator.fix(model) replaces what it can."
        )


class OpacusEngine:
    """Sums of clipped gradients through :class:`opacus.GradSampleModule`.

    Args:
        models: The replicates; they are trained in place, one after the other.
        records: The training data.
        loss: Returns one loss per record.
        precise: Whether to clip and add up in double precision.
        forward_seeds: One source of seeds for each replicate if the model draws random numbers
            in training; None if it does not.
    """

    def __init__(
        self,
        models: Sequence[nn.Module],
        records: TrainingRecords,
        loss: Loss,
        *,
        precise: bool,
        forward_seeds: Sequence[Randomness] | None = None,
    ) -> None:
        self._models, self._records, self._loss = models, records, loss
        self._forward_seeds = forward_seeds
        self.parameters = stack_parameters(models)
        self.kept = torch.zeros((), dtype=torch.long, device=self.parameters.device)
        self._sums = torch.empty_like(
            self.parameters, dtype=torch.float64 if precise else self.parameters.dtype
        )
        self._part = max(1, MAX_GRADIENT_NUMBERS // self.parameters.shape[1])
        for model, row in zip(models, self.parameters, strict=True):
            model.train()
            views = parameter_views(row.unsqueeze(0), model)
            for parameter, view in zip(trainable(model), views, strict=True):
                parameter.data = view[0]
        self._wrapped = [GradSampleModule(model, loss_reduction="sum") for model in models]

    def clipped_sums(self, lots: Tensor, filled: Tensor | None, clip_norm: float) -> Tensor:
        """See :class:`~botorch_dp.training.engine.Engine`."""
        self._sums.zero_()
        for replicate, lot in enumerate(lots):
            for start in range(0, len(lot), self._part):
                places = slice(start, start + self._part)
                self._add_clipped(
                    replicate,
                    lot[places],
                    None if filled is None else filled[replicate, places],
                    clip_norm,
                )
        return self._sums

    def finished_models(self) -> list[nn.Module]:
        """See :class:`~botorch_dp.training.engine.Engine`."""
        for wrapped, model in zip(self._wrapped, self._models, strict=True):
            wrapped.to_standard_module()
            for parameter in trainable(model):
                parameter.data = parameter.data.clone()
                parameter.grad = None
            model.eval()
        return list(self._models)

    def _add_clipped(
        self, replicate: int, part: Tensor, filled: Tensor | None, clip_norm: float
    ) -> None:
        wrapped = self._wrapped[replicate]
        X, Y = self._records.X.index_select(0, part), self._records.Y.index_select(0, part)
        seeded = (
            nullcontext()
            if self._forward_seeds is None
            else seeded_torch(self._forward_seeds[replicate].torch_seed())
        )
        with warnings.catch_warnings(), seeded, torch.enable_grad():
            # The data needs no gradient, which torch mentions for each module with hooks.
            warnings.filterwarnings("ignore", message="Full backward hook is firing")
            self._loss(wrapped(X), Y).sum().backward()
        row = self._sums[replicate].unsqueeze(0)
        sums, samples = [], []
        for parameter, view in zip(
            trainable(self._models[replicate]), parameter_views(row, wrapped), strict=True
        ):
            # Opacus leaves None where a parameter took no part in the outputs.
            per_example: Tensor | None = getattr(parameter, "grad_sample", None)
            if per_example is not None:
                sums.append(view[0])
                samples.append(per_example.to(row.dtype))
        wrapped.zero_grad(set_to_none=True)
        if not samples:
            return
        norms = torch.stack([torch.linalg.vector_norm(g.flatten(1), dim=1) for g in samples])
        factors = clip_factors(torch.linalg.vector_norm(norms, dim=0), clip_norm)
        factors.mul_(self._records.usable[part])
        self.kept.add_(factors.count_nonzero())
        if filled is not None:
            factors.mul_(filled)
        for total, sample in zip(sums, samples, strict=True):
            # A factor of 0 stands for a gradient that is not finite: 0 times infinity is NaN.
            finite = sample.nan_to_num_(0.0, 0.0, 0.0)
            total += torch.einsum("i,i...->...", factors, finite)
