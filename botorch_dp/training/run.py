"""The training loop over an engine and a step rule, with stops, checkpoints and progress.

Each step is Algorithm 3 (SGD) or 4 (Adam) of [Avent2020]: draw a batch, add up the clipped
gradients, add noise to the sum, divide by the batch size ``m``, hand the result to the optimizer:
``g = (1/m) (sum_i clip(grad_i) + N(0, (z C)^2 I))``, with ``C`` the clipping norm.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from botorch_dp._progress import ProgressBar
from botorch_dp.privacy.runs import Run
from botorch_dp.training.fused import Engine, first_rows, write_back
from botorch_dp.training.plan import TrainingPlan
from botorch_dp.training.randomness import Randomness
from botorch_dp.training.step_rules import StepRule, state_of


class _Batches(NamedTuple):
    """The batches of one step."""

    places: Tensor
    """Indices of records, ``R x m``."""
    filled: Tensor | None
    """Which of them count, ``R x m``; None if all do."""
    size: int
    """How many of them count."""


_BATCHES_AHEAD = 32
_PLACES_AHEAD = 2**18
#: The largest block whose release teaches glibc to keep memory, 32 megabytes, without its header.
_BLOCK = 2**25 - 2**16


class TrainingRun:
    """A run of all replicates in step.

    Args:
        plans: The public parameters of each replicate; they agree in all that concerns batches, and
            those of more steps come first.
        engine: Holds the parameters of all replicates.
        coins: The source of randomness of each replicate.
        rule: Moves the parameters.
    """

    def __init__(
        self,
        plans: Sequence[TrainingPlan],
        engine: Engine,
        coins: Sequence[Randomness],
        rule: StepRule,
    ) -> None:
        self.step = 0
        #: Filled places of all batches so far.
        self.drawn = 0
        #: By the step after which they were measured, the utilities of replicates. Sensitive.
        self.measured: dict[int, dict[int, float]] = {}
        #: Batches drawn already; ``_block`` holds those and the ones before them for a checkpoint.
        self._ahead: list[_Batches] = []
        self._block = (torch.zeros(0, len(coins), 0), torch.zeros(0, len(coins)))
        self.plans, self.rule = plans, rule
        self._engine, self._coins = engine, coins
        self._steps = [plan.steps for plan in plans]
        self._noise = [{"std": plan.noise_std, "sensitivity": plan.sensitivity} for plan in plans]
        self._parameters = engine.parameters.requires_grad_(False)
        self._clip_norms = torch.tensor(
            [[plan.clip_norm] for plan in plans],
            dtype=torch.float64,
            device=self._parameters.device,
        )
        self._shown: Tensor | None = None
        # glibc gives freed memory back and gets it anew, page by page, at each step, unless it has
        # seen so large a block released: a published step of a network takes a fifth less time.
        torch.empty(_BLOCK, dtype=torch.uint8, device="cpu")

    @property
    def moving(self) -> int:
        """How many of the replicates have steps to take; they are the first ones."""
        return sum(steps > self.step for steps in self._steps)

    @property
    def epochs(self) -> int:
        """How many passes over the records were completed."""
        return self.step // self.plans[0].steps_per_epoch

    @property
    def result(self) -> Tensor:
        """The parameters to evaluate and to hand out, ``R x p``."""
        return self.rule.result() if self._shown is None else self._shown

    def reduced(
        self,
        rows: Sequence[int],
        make: Callable[
            [list[nn.Module], list[Randomness], list[TrainingPlan]], tuple[Engine, StepRule]
        ],
    ) -> TrainingRun:
        """A run of some of the replicates that still move, which go on as they would have here.

        Args:
            rows: Which ones, rising.
            make: Makes an engine and a rule for them.
        """
        plans, coins = [self.plans[row] for row in rows], [self._coins[row] for row in rows]
        engine, rule = make([self._engine.models[row] for row in rows], coins, plans)
        engine.parameters.copy_(self._parameters[rows])
        rule.load(state_of(rows, self.rule.state()))
        run = TrainingRun(plans, engine, coins, rule)
        run.step = self.step
        run._stock(*(part[:, rows] for part in self._left()))
        return run

    def models(self) -> list[nn.Module]:
        """The replicates where they are now, as ordinary modules in evaluation mode."""
        return write_back(self.result, self._engine.models)

    def known(self, curve: Sequence[int]) -> list[tuple[int, dict[int, float]]]:
        """The points of a curve that were measured."""
        steps = {epochs: epochs * self.plans[0].steps_per_epoch for epochs in curve}
        return [(e, self.measured[step]) for e, step in steps.items() if step in self.measured]

    def pauses(self, epochs: Sequence[int], **how: Any) -> Iterator[int]:
        """Train, and pause after each of these numbers of epochs, rising; stop after Ctrl-C.

        Where the run is further already, there is no pause.

        Args:
            epochs: Where to pause; nothing is done after the last of them.
            how: As for :meth:`run`.
        """
        for passes in epochs:
            until = passes * self.plans[0].steps_per_epoch
            if self.step > until:
                continue
            if not self.run(until=until, **how):
                return
            yield passes

    def run(
        self,
        *,
        progress: bool = False,
        stop_on_interrupt: bool = False,
        file: Run | None = None,
        checkpoint_seconds: float = 0.0,
        until: int | None = None,
    ) -> bool:
        """Take the steps up to ``until``, or all that remain; nothing of them is shown to anybody.

        Returns:
            Whether to go on; False after Ctrl-C, which takes effect between steps.

        Raises:
            KeyboardInterrupt: After Ctrl-C unless ``stop_on_interrupt``, after a second one, and
                before the first step, when there is nothing to return yet.
        """
        steps = self._steps[0]
        until = steps if until is None else until
        saved = time.monotonic()
        bar = ProgressBar(
            total=steps,
            initial=self.step,
            disable=not progress,
            leave=until == steps,
            unit="step",
        )
        with bar, _interrupts_between_steps() as stop, torch.no_grad():
            while self.step < until and not stop.is_set():
                self._advance()
                bar.update()
                if file is not None and time.monotonic() - saved >= checkpoint_seconds:
                    self.save(file)
                    saved = time.monotonic()
        if file is not None:
            self.save(file)
        if stop.is_set() and (self.step == 0 or not stop_on_interrupt):
            raise KeyboardInterrupt
        return self.step == steps or not stop.is_set()

    def _advance(self) -> None:
        if not self._ahead:
            self._draw_ahead()
        batches, filled, size = self._ahead.pop(0)
        self.drawn += size
        clip_norms = first_rows(self._clip_norms, batches.shape[0])
        sums = self._engine.clipped_sums(batches, filled, clip_norms)
        for row, noise, coins in zip(sums.unbind(), self._noise, self._coins, strict=False):
            if noise["std"] > 0:
                coins.perturb_(row, **noise)
        self.rule.step(sums.to(self._parameters.dtype))
        self.step += 1

    def _draw_ahead(self) -> None:
        """The batches of the next steps: drawing several at once is faster than one at a time."""
        replicates, plan = self.moving, self.plans[0]
        most = max(1, _PLACES_AHEAD // (replicates * plan.batch_size))
        count = min(_BATCHES_AHEAD, most, self._steps[replicates - 1] - self.step)
        batches = [
            [batch.numpy() for batch in plan.draw_batches(coins, count)]
            for coins in self._coins[:replicates]
        ]
        sizes = np.array([[len(batch) for batch in own] for own in batches]).T  # b x R
        places = np.zeros((*sizes.shape, sizes.max()), dtype=np.int64)  # empty ones: record 0
        for replicate, own in enumerate(batches):
            for step, batch in enumerate(own):
                places[step, replicate, : len(batch)] = batch
        self._stock(torch.from_numpy(places), torch.from_numpy(sizes.copy()))

    def _stock(self, places: Tensor, sizes: Tensor) -> None:
        """Lay in batches: places, ``b x R x m``, of which the first ``sizes`` (``b x R``) count.

        Each step gets the shape of its longest batch: on average, batches of one replicate are no
        longer than batches of fixed size.
        """
        self._block = places, sizes
        filled = torch.arange(places.shape[2], device=sizes.device) < sizes.unsqueeze(2)
        places, filled = (part.to(self._parameters.device) for part in (places, filled))
        self._ahead = [
            _Batches(
                place[:, : max(size)],
                None if min(size) == max(size) else fill[:, : max(size)],
                sum(size),
            )
            for place, fill, size in zip(places, filled, sizes.tolist(), strict=True)
        ]

    def _left(self) -> tuple[Tensor, Tensor]:
        """Batches that were laid in and not used yet, as :meth:`_stock` takes them."""
        places, sizes = (part[len(part) - len(self._ahead) :] for part in self._block)
        return places, sizes

    def save(self, file: Run) -> None:
        """Store everything the remaining steps depend on."""
        places, sizes = self._left()
        file.put(
            training={
                "step": self.step,
                "drawn": self.drawn,
                "coins": [coins.state() for coins in self._coins],
                "parameters": self._parameters,
                "rule": self.rule.state(),
                "ahead": places,
                "ahead_sizes": sizes,
                "kept": self._engine.kept,
                "measured": self.measured,
            }
        )

    def resume(self, file: Run) -> None:
        """Continue where the file is, if anything was stored in it."""
        stored = file.get("training")
        if stored is None:
            return
        self.step, self.drawn = stored["step"], stored["drawn"]
        self._parameters.copy_(stored["parameters"])
        self.rule.load(stored["rule"])
        self._stock(stored["ahead"], stored["ahead_sizes"])
        self._engine.kept.copy_(stored["kept"])
        self.measured = stored["measured"]
        for coins, state in zip(self._coins, stored["coins"], strict=True):
            coins.restore(state)

    def shown(self) -> dict[str, Any]:
        """What a published run shows: how far it came, and the parameters there."""
        return {"step": self.step, "parameters": self.result}

    def show(self, shown: dict[str, Any]) -> None:
        """Be what :meth:`shown` told, for good."""
        if self.step != shown["step"] or not torch.equal(self.result, shown["parameters"]):
            self.measured.pop(shown["step"], None)  # of another model
        self.step, self._shown = shown["step"], shown["parameters"]


@contextmanager
def _interrupts_between_steps() -> Iterator[threading.Event]:
    """Turn the first Ctrl-C into an event, so that no step is left half done.

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
