"""The trials of a private selection: what they try, how they are scored, and which one wins.

The number of trainings, and the seed of their configurations and of the numbers that break ties,
are drawn once and stored before the first training: whatever happens later, a run continues with
the same ones. A training that fails has the worst outcome there is, and its error is not shown:
dropping it, or raising, would make the number of trainings that count depend on the records.
"""

from __future__ import annotations

import copy
import math
import secrets
import sqlite3
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Executor, Future, wait
from dataclasses import dataclass
from typing import Any

import numpy as np

from botorch_dp.privacy import gaussian_mechanism
from botorch_dp.privacy.runs import Run
from botorch_dp.privacy.selection import TrialNumber
from botorch_dp.space import Config

#: What rounding in a mean of doubles may add to its sensitivity, relatively.
_ROUNDING = 1e-6

#: ``train(config, noise_multiplier) -> (artifact, score)``; in a simulation with ``seed=``, too.
Train = Callable[..., tuple[Any, float]]

# --- One training and its score. ---


@dataclass(frozen=True)
class ScoreNoise:
    """The noise of a score.

    Args:
        mu: Of the Gaussian noise; None without noise.
        num_scored: How many records' scores a score is the mean of.
    """

    mu: float | None = None
    num_scored: int = 1

    @property
    def sensitivity(self) -> float:
        """How far one record moves a mean of scores in [0, 1]."""
        return (1 + _ROUNDING) / self.num_scored

    @property
    def std(self) -> float | None:
        """The standard deviation of the noise; None without noise."""
        return None if self.mu is None else self.sensitivity / self.mu

    def noisy(self, score: object, seed: int | None) -> float:
        """A score as it may be compared and published.

        With noise, a score outside [0, 1] counts as the bound that it crosses, and one that is no
        number as 0. The noise is from the operating system unless there is a seed.
        """
        value = float(score)  # type: ignore[arg-type]
        if self.mu is None:
            return value
        value = 0.0 if math.isnan(value) else min(max(value, 0.0), 1.0)
        noisy = gaussian_mechanism(
            value, sensitivity=self.sensitivity, mu=self.mu, unsafe_seed=seed
        )
        return float(noisy.value)


@dataclass(frozen=True, repr=False)
class Outcome:
    """What came of a training. SENSITIVE, but for the one that is published.

    Args:
        score: Its score, with noise; minus infinity if it is no number.
        artifact: What the training made.
        failed: Whether it raised an error, and has no artifact.
    """

    score: float
    artifact: Any
    failed: bool = False

    def __repr__(self) -> str:
        return "Outcome(sensitive)"


#: The worst outcome there is.
FAILED = Outcome(-math.inf, None, failed=True)


def train_and_score(
    train: Train, config: Config, noise_multiplier: float, score_noise: ScoreNoise, seed: int | None
) -> Outcome:
    """One training and its score; errors are raised."""
    simulated = {} if seed is None else {"seed": seed}
    # Of a copy: what `train` does to it changes neither later trainings nor what is published.
    returned = train(copy.deepcopy(config), noise_multiplier, **simulated)
    if not isinstance(returned, tuple) or len(returned) != 2:
        raise TypeError(f"`train` must return (artifact, score), got a {type(returned).__name__}.")
    artifact, score = returned
    noisy = score_noise.noisy(score, seed)
    return Outcome(noisy if math.isfinite(noisy) else -math.inf, artifact)


def train_once(number: int, *training: Any) -> Outcome:
    """The same; a failure is the worst outcome and says nothing.

    A model whose score is no number comes next: it is not lost. Where a file of ours cannot be
    written, the run stops, and may be continued.

    Args:
        number: Of the trial. It makes its call unlike all others: some executors compute equal
            calls once, but two trainings of one configuration are two draws.
        training: See :func:`train_and_score`.
    """
    try:
        return train_and_score(*training)
    except Exception as error:
        if isinstance(error.__cause__, sqlite3.Error):
            raise
        return FAILED


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
        train: Train,
        noise_multiplier: Callable[[Config], float],
        score_noise: ScoreNoise,
        kept: Callable[[Any], Any],
        executor: Executor | None,
    ) -> dict[str, Any] | None:
        """Make all trainings that are missing, and return the best one of all; None if none is.

        Args:
            train: Trains.
            noise_multiplier: Of a configuration.
            score_noise: Of each score.
            kept: From an artifact to what is stored of it; a ``TypeError`` for what cannot be.
            executor: Where to train; here, one after the other, if None.
        """
        todo = [number for number in range(self._count) if number not in self._done]
        at_once = 1 if executor is None else int(getattr(executor, "_max_workers", 8))
        running: dict[Future[Outcome], tuple[int, Config]] = {}
        try:
            while todo or running:
                while todo and len(running) < at_once:
                    number = todo.pop(0)
                    config, seed = self.config(number), self._training_seed(number)
                    noise = noise_multiplier(config)
                    arguments = number, train, config, noise, score_noise, seed
                    if executor is None:
                        self._keep(number, config, train_once(*arguments), kept)
                        break
                    future = executor.submit(train_once, *arguments)
                    running[future] = number, config
                for future in wait(running, return_when=FIRST_COMPLETED).done if running else ():
                    self._keep(*running.pop(future), future.result(), kept)
        finally:
            for future in running:
                future.cancel()
        return self._best

    def config(self, number: int) -> Config:
        """What a trial tries."""
        return self._configs(self._seed(number, 0))

    def _keep(
        self, number: int, config: Config, outcome: Outcome, kept: Callable[[Any], Any]
    ) -> None:
        """Store an outcome; of the artifacts those that may yet be published only."""
        # Equal scores are decided by a number that each trial has drawn for itself.
        tie = int(self._seed(number, 2).generate_state(1, np.uint64)[0])
        rank = [outcome.score, float(tie)]
        better = not outcome.failed and (self._best is None or rank > self._best["rank"])
        best = self._best
        if better:
            try:
                artifact = kept(outcome.artifact)
                best = {"rank": rank, "config": config, "score": outcome.score}
                best["artifact"] = artifact
            except TypeError:  # such an artifact is none
                outcome = FAILED
        with self._run.transaction():
            self._run.add("score", number, outcome.score)
            if best is not self._best:
                self._run.put(best=best)
        self._best = best
        self._done.add(number)

    def _seed(self, number: int, purpose: int) -> np.random.SeedSequence:
        return np.random.SeedSequence(self._entropy, spawn_key=(7, number, purpose))

    def _training_seed(self, number: int) -> int | None:
        """None, so that noise comes from the operating system, but in a simulation."""
        seed = int(self._seed(number, 1).generate_state(1)[0]) >> 1
        return seed if self._simulated else None
