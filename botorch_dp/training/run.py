"""The training loop: parameters, steps, and checkpoints.

Each step is Algorithm 3 (SGD) or 4 (Adam) of [Avent2020]: draw a batch, add up the clipped
gradients, add noise to the sum, divide by the batch size ``m``, hand the result to the optimizer:
``g = (1/m) (sum_i clip(grad_i) + N(0, (z C)^2 I))``, with ``C`` the clipping norm.
"""

from __future__ import annotations

import copy
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from types import FrameType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from botorch_dp._progress import ProgressBar
from botorch_dp.groups import Groups
from botorch_dp.privacy.runs import Run
from botorch_dp.training.engines.base import (
    Batches,
    Engine,
    parameter_views,
    stack_parameters,
    trainable,
)
from botorch_dp.training.plan import TrainingPlan
from botorch_dp.training.randomness import Randomness
from botorch_dp.training.step_rules import StepRule


class _Drawn(NamedTuple):
    """The batches of one step, and how many records they hold together."""

    batches: Batches
    size: int


_BATCHES_AHEAD = 32
_PLACES_AHEAD = 2**18


class TrainingRun:
    """The loop of one training, or of several replicates in step; it owns their parameters.

    Engine and rule are made for the matrix of parameters: the engine reads it, the rule changes it.
    Models are made from it when they are asked for.

    Args:
        plan: The public parameters of every replicate.
        models: One for each replicate, at its initial weights; copied, and left as they are.
        coins: The source of randomness of each replicate.
        make_engine: Takes the parameters, ``R x p``.
        make_rule: Takes the parameters.
        groups: Whose records count as one; batches are then drawn of groups.
    """

    def __init__(
        self,
        plan: TrainingPlan,
        models: Sequence[nn.Module],
        coins: Sequence[Randomness],
        make_engine: Callable[[Tensor], Engine],
        make_rule: Callable[[Tensor], StepRule],
        groups: Groups | None = None,
    ) -> None:
        self.plan, self.step = plan, 0
        self._noise = {"std": plan.noise_std, "sensitivity": plan.sensitivity}
        #: Filled places of all batches so far.
        self.drawn = 0
        #: The utilities on the way that were asked for so far. Sensitive.
        self.utilities: list[float | None] = []
        #: Whether Ctrl-C has stopped it.
        self.stopped = False
        self._models, self._coins, self._groups = models, coins, groups
        self._parameters = stack_parameters(models)
        self._kept = torch.zeros((), dtype=torch.long, device=self._parameters.device)
        self._engine, self.rule = make_engine(self._parameters), make_rule(self._parameters)
        self._file: Run | None = None
        self._seconds, self._saved = 0.0, 0.0
        #: Batches that are drawn and not used; a checkpoint takes them from ``_drawn_ahead``, which
        #: holds those that were drawn with them, too.
        self._ahead: list[_Drawn] = []
        self._drawn_ahead = (
            torch.zeros(0, len(coins), 0, device="cpu"),
            torch.zeros(0, len(coins), device="cpu"),
        )
        self._final: Tensor | None = None

    @property
    def dropped(self) -> int:
        """How many gradients were not finite, or of unusable records. Sensitive."""
        return self.drawn - int(self._kept)

    @property
    def result(self) -> Tensor:
        """The parameters to evaluate and to hand out, ``R x p``."""
        return self.rule.result() if self._final is None else self._final

    def models(self) -> list[nn.Module]:
        """The replicates where they are now, as new modules in evaluation mode."""
        made = [copy.deepcopy(model).eval() for model in self._models]
        for model, row in zip(made, self.result, strict=True):
            views = parameter_views(row.unsqueeze(0), model)
            for parameter, view in zip(trainable(model), views, strict=True):
                parameter.data.copy_(view[0])
        return made

    def advance(
        self, until: int, *, progress: bool = False, stop_on_interrupt: bool = False
    ) -> None:
        """Take the steps up to ``until``; nothing of them is shown to anybody.

        Ctrl-C takes effect between steps, and sets :attr:`stopped`.

        Raises:
            KeyboardInterrupt: After Ctrl-C unless ``stop_on_interrupt``, after a second one, and
                before the first step, when there is nothing to return yet.
        """
        with (
            _progress_bar(self.plan.steps, self.step, until) if progress else nullcontext() as bar,
            _interrupts_between_steps() as stop,
            torch.no_grad(),
        ):
            while self.step < until and not stop.is_set():
                self._take_step()
                if bar is not None:
                    bar.update()
                if self._file is not None and time.monotonic() - self._saved >= self._seconds:
                    self.save()
        self.save()
        self.stopped = stop.is_set()
        if self.stopped and (self.step == 0 or not stop_on_interrupt):
            raise KeyboardInterrupt(f"{self.step} of {self.plan.steps} steps were taken.")

    def train(
        self, curve: Sequence[int], measure: Callable[[nn.Module], float | None], **how: bool
    ) -> None:
        """Take all steps; after the epochs of a curve, measure the utility.

        Args:
            curve: Numbers of epochs, rising.
            measure: Returns the utility of a model.
            how: See :meth:`advance`.
        """
        for epochs in curve[len(self.utilities) :]:
            self.advance(epochs * self.plan.steps_per_epoch, **how)
            if self.stopped:
                return
            self.utilities.append(measure(self.models()[0]))
        self.advance(self.plan.steps, **how)

    def _take_step(self) -> None:
        if not self._ahead:
            self._draw_ahead()
        batches, size = self._ahead.pop(0)
        self.drawn += size
        sums, kept = self._engine.clipped_sums(batches, self.plan.clip_norm)
        self._kept += kept
        if self._noise["std"] > 0:
            for row, coins in zip(sums, self._coins, strict=True):
                coins.perturb_(row, **self._noise)
        self.rule.step(sums.to(self._parameters.dtype))
        self.step += 1

    def _draw_ahead(self) -> None:
        """The batches of the next steps: drawing several at once is faster than one at a time."""
        most = max(1, _PLACES_AHEAD // (len(self._coins) * self.plan.most_in_batch))
        count = min(_BATCHES_AHEAD, most, self.plan.steps - self.step)
        batches = [
            [batch.numpy() for batch in self.plan.draw_batches(coins, count)]
            for coins in self._coins
        ]
        if self._groups is not None:
            batches = [[self._groups.places(batch) for batch in own] for own in batches]
        sizes = np.array([[len(batch) for batch in own] for own in batches]).T  # b x R
        places = np.zeros((*sizes.shape, sizes.max()), dtype=np.int64)  # empty ones: record 0
        for replicate, own in enumerate(batches):
            for step, batch in enumerate(own):
                places[step, replicate, : len(batch)] = batch
        self._stock(torch.from_numpy(places), torch.from_numpy(sizes.copy()))

    def _stock(self, places: Tensor, sizes: Tensor) -> None:
        """Queue batches: indices ``b x R x m``; the first ``sizes`` (``b x R``) count.

        Each step gets the shape of its longest batch: on average, batches of one replicate are no
        longer than batches of fixed size.
        """
        self._drawn_ahead = places, sizes
        filled = torch.arange(places.shape[2], device=sizes.device) < sizes.unsqueeze(2)
        weights = filled if self._groups is None else filled * self._groups.weights[places]
        places, weights = (part.to(self._parameters.device) for part in (places, weights))
        self._ahead = []
        for place, weight, size in zip(places, weights, sizes.tolist(), strict=True):
            longest = max(size)
            alike = self._groups is None and min(size) == longest
            batches = Batches(place[:, :longest], None if alike else weight[:, :longest])
            self._ahead.append(_Drawn(batches, sum(size)))

    def resume(self, file: Run, seconds: float) -> None:
        """Continue where a file is, if anything was stored in it, and store the run there.

        Args:
            file: Opened for this run.
            seconds: Time between two checkpoints.
        """
        self._file, self._seconds, self._saved = file, seconds, time.monotonic()
        stored = file.get("training")
        if stored is None:
            return
        self.step, self.drawn = stored["step"], stored["drawn"]
        self.utilities = list(stored["utilities"])
        self._parameters.copy_(stored["parameters"])
        self.rule.load(stored["rule"])
        self._stock(stored["ahead"], stored["ahead_sizes"])
        self._kept.copy_(stored["kept"])
        for coins, state in zip(self._coins, stored["coins"], strict=True):
            coins.restore(state)

    def save(self) -> None:
        """Store everything the remaining steps depend on, if there is a file."""
        if self._file is None:
            return
        places, sizes = (part[len(part) - len(self._ahead) :] for part in self._drawn_ahead)
        self._file.put(
            training={
                "step": self.step,
                "drawn": self.drawn,
                "utilities": self.utilities,
                "parameters": self._parameters,
                "rule": self.rule.state(),
                "ahead": places,
                "ahead_sizes": sizes,
                "kept": self._kept,
                "coins": [coins.state() for coins in self._coins],
            }
        )
        self._saved = time.monotonic()

    def final_state(self) -> dict[str, Any]:
        """What a published training consists of: its number of steps and the final parameters."""
        return {"step": self.step, "parameters": self.result}

    def restore_final(self, state: dict[str, Any]) -> None:
        """Take a :meth:`final_state`, for good."""
        self.step, self._final = state["step"], state["parameters"]


def _progress_bar(total: int, step: int, until: int) -> ProgressBar:
    return ProgressBar(total=total, initial=step, leave=until == total, unit="step")


@contextmanager
def _interrupts_between_steps() -> Iterator[threading.Event]:
    """Turns the first Ctrl-C into an event, so that no step is left half done.

    The second one raises ``KeyboardInterrupt`` at once. Python delivers signals to the main
    thread; in other threads nothing changes.
    """
    stop = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return

    def on_interrupt(signum: int, frame: FrameType | None) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()

    previous = signal.signal(signal.SIGINT, on_interrupt)
    try:
        yield stop
    finally:
        signal.signal(signal.SIGINT, previous or signal.SIG_DFL)
