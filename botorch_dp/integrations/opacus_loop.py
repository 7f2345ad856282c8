"""The state of a user's Opacus loop: that it takes the steps that were accounted for, no others.

The loader hands out batches and the optimizer takes steps; both ask one :class:`Loop`, which knows
what was charged. Importing this module imports Opacus.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Never

import torch
from opacus.optimizers import DPOptimizer
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, Sampler

from botorch_dp.errors import PrivacyError
from botorch_dp.privacy import Release
from botorch_dp.privacy.digests import digest_if_any
from botorch_dp.training.engines.base import trainable
from botorch_dp.training.engines.contributions import Gradients, add_clipped
from botorch_dp.training.engines.opacus import rows_of
from botorch_dp.training.inputs import each_part
from botorch_dp.training.plan import TrainingPlan
from botorch_dp.training.randomness import Randomness
from botorch_dp.training.records import DatasetRecords
from botorch_dp.training.setup import Setup


@dataclass(eq=False)
class Loop:
    """One training by a user's loop: its batches, clipped sums, steps and parameters.

    Args:
        plan: What was charged.
        limited: Whether no more steps may be taken than the plan has.
        secret: Whether the model may be published.
        records: The training records.
        coins: Where batches and noise come from.
        parameters: The trained parameters, in the order of the model's.
        setup: What tries the model on synthetic records.
        clean: The model as it was given, without hooks.
    """

    plan: TrainingPlan
    limited: bool
    secret: bool
    records: DatasetRecords
    coins: Randomness
    parameters: list[nn.Parameter]
    setup: Setup
    clean: nn.Module
    taken: int = 0
    #: Places of the batch at hand that were not handed out yet.
    _left: list[int] = field(default_factory=list)
    #: Whether each row that was handed out counts, until the step on it; then None.
    _counts: Tensor | None = None
    _checked: int = -1

    def __post_init__(self) -> None:
        self._process = os.getpid()
        self._sums = [torch.zeros_like(p, dtype=torch.float64) for p in self.parameters]
        self.remember()

    def __reduce__(self) -> Never:
        raise PrivacyError(
            "A private training cannot be copied or sent to another process: each copy would draw "
            "noise of its own for one charge. Make a new PrivacyEngine there."
        )

    def draw(self) -> list[int]:
        """The indices of the next batch."""
        if os.getpid() != self._process:
            self.__reduce__()
        if self._left or self._counts is not None:
            if self.secret:
                raise PrivacyError(
                    "A batch was handed out and no step was taken on it. Whether a step is taken "
                    "must not depend on the records: take one on each batch of the loader, and "
                    "do not end a pass over it early."
                )
            self._counts = None
        if self.limited and self.taken >= self.plan.steps:
            raise PrivacyError(
                f"All {self.plan.steps} planned steps ({self.plan.epochs} epochs) were taken. "
                "Give more `epochs` to `make_private`, before the first step."
            )
        (places,) = self.plan.draw_batches(self.coins, 1)
        self._left = places.tolist()
        for total in self._sums:
            total.zero_()
        return list(self._left)

    def hand_out(self, places: list[int]) -> Any:
        """The next rows of the batch that was drawn; of an empty one, a row that does not count."""
        if places != self._left[: len(places)] or self._counts is not None:
            raise PrivacyError(
                "These records are not the next ones of the batch that was drawn, or no step was "
                "taken on the rows before. Take batches from the loader of `make_private` only."
            )
        self._left = self._left[len(places) :]
        X, Y, usable = self.records.take(torch.tensor(places, dtype=torch.long, device="cpu"))
        if not places:
            X, Y = self.records.form()
            X, Y, usable = (
                each_part(torch.zeros_like, X),
                torch.zeros_like(Y),
                torch.tensor([False], device=Y.device),
            )
        self._counts = usable
        return self.records.joined(X, Y)

    def add(self, optimizer: DPOptimizer) -> bool:
        """Clip and add up the gradients of the rows at hand; whether the batch is complete."""
        counts = self._counts
        if counts is None or os.getpid() != self._process:
            raise PrivacyError(
                "There is no new batch to take a step on: each batch of the loader of "
                "`make_private` gets one step, in the process that made it."
            )
        self._check_same(optimizer)
        rows = [getattr(p, "grad_sample", None) for p in self.parameters]
        sizes = [(len(counts), *p.shape) for p in self.parameters]
        fits = [isinstance(g, Tensor) and g.shape == s for g, s in zip(rows, sizes, strict=True)]
        if not any(fits) or not all(f or g is None for f, g in zip(fits, rows, strict=True)):
            raise PrivacyError(
                f"The gradients are not those of the {len(counts)} rows that the loader handed "
                "out. Call backward() once for each batch, on the loss of the model that "
                "`make_private` returned; other batches and sums over several batches are not "
                "accounted for."
            )
        device = self.parameters[0].device
        found = [Gradients(rows_of(p, len(counts)), torch.float64) for p in self.parameters]
        factors = counts.to(device, torch.float64)
        add_clipped(found, self._sums, factors, self.plan.clip_norm, 0.0)
        for parameter in self.parameters:
            parameter.grad_sample = parameter.grad = None  # type: ignore[attr-defined]
        self._counts = None
        return not self._left

    def add_noise(self) -> None:
        """Set the gradients to the noisy sum over the batch, divided by its expected size."""
        self.taken += 1
        total = torch.cat([each.flatten() for each in self._sums])
        if self.plan.noise_std > 0:
            how = {"std": self.plan.noise_std, "sensitivity": self.plan.sensitivity}
            self.coins.perturb_(total, **how)
        total.div_(self.plan.batch_size)
        parts = total.split([p.numel() for p in self.parameters])
        for parameter, part in zip(self.parameters, parts, strict=True):
            parameter.grad = part.to(parameter.dtype).view_as(parameter)

    def remember(self) -> None:
        """Keep the parameters as a step left them."""
        self._after = [p.detach().clone() for p in self.parameters]

    def release(self, module: nn.Module) -> Release[nn.Module]:
        """The trained model and its guarantee."""
        if self.taken == 0:
            raise PrivacyError("No step was taken: there is no trained model.")
        own, given = self.trained(), dict(module.state_dict())
        same = own.state_dict().keys() == given.keys() and all(
            torch.allclose(given[name].double(), value.double(), rtol=0, atol=0, equal_nan=True)
            for name, value in own.state_dict().items()
        )
        if not same:
            raise PrivacyError(
                "`model` is not what the last step left: another model, or weights or buffers that "
                "something else has changed. Nothing is guaranteed for it."
            )
        plan, digest, guarantee = self.plan, None, self.plan.guarantee.simulated()
        if self.secret:
            if self._checked != self.taken:
                self.setup.check(own, precise=True)
                self._checked = self.taken
            digest, guarantee = digest_if_any(own), plan.guarantee
        facts = {"training": plan.parameters(plan.steps)}
        return Release(own, guarantee, scale=plan.noise_std, digest=digest, facts=facts)

    def trained(self) -> nn.Module:
        """The model as it was given, with the weights of the last step, in evaluation mode."""
        model = copy.deepcopy(self.clean).eval()
        for parameter, value in zip(trainable(model), self._after, strict=True):
            parameter.data.copy_(value)
        return model

    def _check_same(self, optimizer: DPOptimizer) -> None:
        plan, now = self.plan, self.parameters
        if sorted(map(id, optimizer.params)) != sorted(map(id, now)):
            raise PrivacyError(
                "The optimizer's parameters are not those that `make_private` was given: none "
                "may be added, frozen or unfrozen during a run."
            )
        asked = (optimizer.noise_multiplier, optimizer.max_grad_norm)
        if asked != (plan.noise_multiplier, plan.clip_norm):
            raise PrivacyError(
                "The optimizer has another noise or clipping norm than the "
                f"{plan.noise_multiplier} and {plan.clip_norm} that were planned; schedules of "
                "them are not accounted for."
            )
        pairs = zip(now, self._after, strict=True)
        if not all(torch.allclose(p, q, rtol=0, atol=0, equal_nan=True) for p, q in pairs):
            raise PrivacyError(
                "Something else than the step has changed the parameters since the last one, such "
                "as the optimizer of torch.optim itself. Step with the optimizer of `make_private`."
            )


def loader_of(loop: Loop) -> DataLoader[Any]:
    """A loader of the batches that a loop draws, ``n // batch_size`` in a pass."""
    return DataLoader(LoopRecords(loop), batch_sampler=_LoopBatches(loop), collate_fn=_unchanged)


class _LoopBatches(Sampler[list[int]]):
    """The batches of one pass over the records."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop

    def __len__(self) -> int:
        return self._loop.plan.steps_per_epoch

    def __iter__(self) -> Iterator[list[int]]:
        for _ in range(len(self)):
            yield self._loop.draw()


class LoopRecords(Dataset[Any]):
    """The records of a loop, a batch or a part of one at a time."""

    def __init__(self, loop: Loop) -> None:
        self.loop = loop

    def __len__(self) -> int:
        return len(self.loop.records)

    def __getitem__(self, place: int) -> Any:
        return self.__getitems__([place])

    def __getitems__(self, places: Sequence[int]) -> Any:
        return self.loop.hand_out(list(places))


def _unchanged(batch: Any) -> Any:
    return batch


class LoopOptimizer(DPOptimizer):
    """The optimizer of a loop; gradients of the parts of a batch are accumulated before a step."""

    def __init__(self, optimizer: torch.optim.Optimizer, loop: Loop) -> None:
        plan = loop.plan
        super().__init__(
            optimizer,
            noise_multiplier=plan.noise_multiplier,
            max_grad_norm=plan.clip_norm,
            expected_batch_size=plan.batch_size,
        )
        self._loop = loop

    def __getstate__(self) -> Never:
        self._loop.__reduce__()

    def pre_step(self, closure: Any = None) -> bool:
        """Clip and add up; after the last part of a batch, add noise."""
        self._check_skip_next_step()  # what `BatchMemoryManager` has left there
        self._is_last_step_skipped = not self._loop.add(self)
        if self._is_last_step_skipped:
            return False
        self._loop.add_noise()
        return True

    def step(self, closure: Any = None) -> None:
        """One private step, or a part of one."""
        if closure is not None:
            raise PrivacyError(
                "`closure` would compute more gradients than are accounted for. Compute the "
                "loss and call backward() before step()."
            )
        if self.pre_step():
            self.original_optimizer.step()
            self._loop.remember()
