"""The trainings of a private selection: what they try, how they are scored, and which one wins.

The number of trainings, and the seed of their configurations and of the numbers that break ties,
are drawn once and stored before the first training: whatever happens later, a run continues with
the same ones. A training that fails has the worst outcome there is, and its error is not shown:
dropping it, or raising, would make the number of trainings that count depend on the records.
"""

from __future__ import annotations

import math
import secrets
import sqlite3
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Executor, Future, wait
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from botorch_dp.privacy import TrialNumber, gaussian_mechanism
from botorch_dp.privacy.runs import Run
from botorch_dp.space import Config
from botorch_dp.training import DPTrainer
from botorch_dp.training.evaluation import right_of_each
from botorch_dp.training.plan import REPLACE_ONE

_OF_THE_MACHINE = (OSError, MemoryError, sqlite3.Error)

# --- One training and its score. ---


@dataclass(frozen=True)
class Scoring:
    """How a model is scored: the share of records that it classifies right.

    Args:
        on_training_records: Rather than on the test records.
        mu: With Gaussian noise of this mu on the number of records; None without noise.
    """

    on_training_records: bool = False
    mu: float | None = None

    def score(self, trainer: DPTrainer, model: nn.Module, seed: int | None) -> float:
        """The score, drawn from the operating system's entropy unless there is a seed."""
        if self.mu is None:
            return trainer.setup.utility(model)
        data = trainer.setup.tensors
        X, Y = (
            (data.train_X, data.train_Y) if self.on_training_records else (data.test_X, data.test_Y)
        )
        movable = self.on_training_records and trainer.relation is not REPLACE_ONE
        right = right_of_each(model, X, Y, movable=movable)
        # Of one record, so many numbers are right or wrong: one, but where targets are sequences.
        each = right[0].numel()
        noisy = gaussian_mechanism(
            float(right.sum()), sensitivity=float(each), mu=self.mu, unsafe_seed=seed
        )
        return float(noisy.value) / right.numel()


def _call(number: int, function: Callable[..., Outcome], arguments: tuple[Any, ...]) -> Outcome:
    """A training; its number makes its call unlike all others.

    Some executors compute equal calls once, but two trainings of one configuration are two draws.
    """
    return function(*arguments)


@dataclass(frozen=True, repr=False)
class Outcome:
    """What came of a training. SENSITIVE, but for the one that is published.

    Args:
        score: Its score; minus infinity if the training failed, or if there is none.
        weights: Of its model by name; None if it failed.
    """

    score: float
    weights: dict[str, Tensor] | None

    def __repr__(self) -> str:
        return "Outcome(sensitive)"


#: The worst outcome there is.
FAILED = Outcome(-math.inf, None)


def train_and_score(
    trainer: DPTrainer, settings: dict[str, Any], scoring: Scoring, seed: int | None
) -> Outcome:
    """One training and its score, with noise from the operating system unless there is a seed."""
    model = _trained(trainer, settings, seed)
    return Outcome(scoring.score(trainer, model, seed), dict(model.state_dict()))


def _trained(trainer: DPTrainer, settings: dict[str, Any], seed: int | None) -> nn.Module:
    data = trainer.setup.tensors
    # The trainer would measure what nobody asks for here, and a test record might make that fail.
    nothing = torch.zeros_like(data.test_X[:1]), torch.zeros_like(data.test_Y[:1])
    blind = trainer.on(data._replace(test_X=nothing[0], test_Y=nothing[1]))
    blind.setup.metric = _not_measured
    return blind.fit(**settings, seed=seed, publish=seed is None, on_interrupt="raise").model


def _not_measured(outputs: Tensor, targets: Tensor) -> float:
    return 0.0


def train_once(
    trainer: DPTrainer, settings: dict[str, Any], scoring: Scoring, seed: int | None
) -> Outcome:
    """The same; a failure is the worst outcome and says nothing.

    A model whose score is no number, or cannot be computed, comes next: it is not lost. A disk or a
    memory that is full is no outcome: the run stops, and may be continued.
    """
    try:
        model = _trained(trainer, settings, seed)
    except Exception as error:
        _raise_if_of_the_machine(error)
        return FAILED
    score = -math.inf
    try:
        score = scoring.score(trainer, model, seed)
    except Exception as error:
        _raise_if_of_the_machine(error)
    return Outcome(score if math.isfinite(score) else -math.inf, dict(model.state_dict()))


def _raise_if_of_the_machine(error: Exception) -> None:
    if isinstance(error, _OF_THE_MACHINE) or isinstance(error.__cause__, _OF_THE_MACHINE):
        raise error


# --- All of them. ---


class Trials:
    """The secret trials of one run: how many there are, and what each of them tries.

    All of it follows from a number of 256 random bits, which is drawn once and kept in the run's
    file with the number of trials.

    Args:
        run: The run.
        number: The law of their number; None for a single one.
        configs: From a seed to the configuration of a trial.
        unsafe_seed: Makes all of it repeatable, for simulations.
    """

    def __init__(
        self,
        run: Run,
        number: TrialNumber | None,
        configs: Callable[[np.random.SeedSequence], Config],
        *,
        unsafe_seed: int | None,
    ) -> None:
        self._run, self._configs, self._simulated = run, configs, unsafe_seed is not None
        begun = run.get("trials")
        if begun is None:
            entropy = secrets.randbits(256) if unsafe_seed is None else unsafe_seed
            count = 1
            if number is not None and unsafe_seed is None:
                count = number.draw()
            elif number is not None:
                count = number.quantile(np.random.default_rng([entropy, 1]).random())
            begun = {"count": count, "entropy": str(entropy)}
            run.put(trials=begun)
        self._count, self._entropy = int(begun["count"]), int(begun["entropy"])
        self._done = set(run.items("score"))
        self._best: dict[str, Any] | None = run.get("best")

    def train(
        self,
        task: Callable[[Config, int | None], tuple[Callable[..., Outcome], tuple[Any, ...]]],
        *,
        executor: Executor | None,
        tick: Callable[[], object],
    ) -> dict[str, Any] | None:
        """Make all trainings that are missing, and return the best one of all; None if none is.

        Args:
            task: From a configuration and a seed to a function and its arguments.
            executor: Where to train; here, one after the other, if None.
            tick: Called after each.
        """
        todo = [number for number in range(self._count) if number not in self._done]
        at_once = 1 if executor is None else int(getattr(executor, "_max_workers", 8))
        running: dict[Future[Outcome], int] = {}
        try:
            while todo or running:
                while todo and len(running) < at_once:
                    number = todo.pop(0)
                    function, arguments = task(self.config(number), self._training_seed(number))
                    if executor is None:
                        self._keep(number, function(*arguments))
                        tick()
                        break
                    running[executor.submit(_call, number, function, arguments)] = number
                for future in wait(running, return_when=FIRST_COMPLETED).done if running else ():
                    self._keep(running.pop(future), future.result())
                    tick()
        finally:
            for future in running:
                future.cancel()
        return self._best

    def config(self, number: int) -> Config:
        """What a trial tries."""
        return self._configs(self._seed(number, 0))

    def _keep(self, number: int, outcome: Outcome) -> None:
        """Store an outcome; of the weights those that may yet be published only."""
        # Equal scores are decided by a number that each trial has drawn for itself.
        tie = int(self._seed(number, 2).generate_state(1, np.uint64)[0])
        rank = [outcome.score, float(tie)]
        better = self._best is None or rank > self._best["rank"]
        with self._run.transaction():
            self._run.add("score", number, outcome.score)
            if outcome.weights is not None and better:
                self._best = {
                    "rank": rank,
                    "config": self.config(number),
                    "score": outcome.score,
                    "weights": {name: value.cpu() for name, value in outcome.weights.items()},
                }
                self._run.put(best=self._best)
        self._done.add(number)

    def _seed(self, number: int, purpose: int) -> np.random.SeedSequence:
        return np.random.SeedSequence(self._entropy, spawn_key=(7, number, purpose))

    def _training_seed(self, number: int) -> int | None:
        """None, so that noise comes from the operating system, but in a simulation."""
        seed = int(self._seed(number, 1).generate_state(1)[0]) >> 1
        return seed if self._simulated else None
