"""What is known about a config without training: its exact objectives."""

from __future__ import annotations

import math
import time
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from botorch_dp.pareto.problem import PrivacyUtilityProblem
from botorch_dp.space import Config

#: Seconds after which somebody waiting for a proposal should be told what takes so long.
_SLOW = 10.0


@dataclass(frozen=True)
class Candidates:
    """Configs under consideration.

    Args:
        codes: ``n x d``, of configs that can be tried.
        known: ``n x k`` exact objectives; NaN throughout where an oracle fails.
    """

    codes: Tensor
    known: Tensor

    def __len__(self) -> int:
        return len(self.codes)

    def __getitem__(self, index: Tensor) -> Candidates:
        return Candidates(self.codes[index], self.known[index])

    def __add__(self, other: Candidates) -> Candidates:
        return Candidates(
            torch.cat([self.codes, other.codes]), torch.cat([self.known, other.known])
        )

    @property
    def possible(self) -> Tensor:
        """Which of them the oracles have nothing against, ``n``."""
        return self.known.isfinite().all(dim=-1)


class KnownObjectives:
    """Evaluates exact objectives, and remembers them for every config asked about.

    An oracle may fail on a config, which is then not proposed; :attr:`failures` counts it and one
    warning tells of it. Both name the type of the error only: the error's message is the caller's
    and may quote a record.

    Args:
        problem: The problem.
        with_epsilon: Whether epsilon is among them; otherwise it is modelled like the error.
    """

    def __init__(self, problem: PrivacyUtilityProblem, *, with_epsilon: bool) -> None:
        self._problem = problem
        self._with_epsilon = with_epsilon
        exact = {
            index: objective
            for index, objective in enumerate(problem.objectives, start=2)
            if objective.function is not None
        }
        self._functions = {objective.name: objective.known for objective in exact.values()}
        known = [0, *exact] if with_epsilon else list(exact)
        #: Which column of :attr:`Candidates.known` holds which objective.
        self.columns = {objective: column for column, objective in enumerate(known)}
        #: How many calls failed, by oracle and type of the error.
        self.failures: Counter[str] = Counter()
        self._warned_of_failures = False
        self._warned_of_time = False
        self._rows: dict[tuple[object, ...], tuple[float, ...]] = {}

    def candidates(self, codes: Tensor) -> Candidates:
        """The configs nearest to ``n x d`` codes, with their exact objectives."""
        configs = self._problem.space.decode(codes)
        return Candidates(self._problem.space.encode(configs), self(configs))

    def __call__(self, configs: Sequence[Config]) -> Tensor:
        """Exact objectives of configs, ``n x k``."""
        keys = [tuple(config.values()) for config in configs]
        unknown = {k: c for k, c in zip(keys, configs, strict=True) if k not in self._rows}
        if unknown:
            epsilons = self._epsilons(list(unknown.values()))
            for (key, config), epsilon in zip(unknown.items(), epsilons, strict=True):
                self._rows[key] = self._row(config, epsilon)
            self._warn_of_failures()
        rows = [self._rows[key] for key in keys]
        return torch.tensor(rows, dtype=torch.double).reshape(len(rows), len(self.columns))

    def _epsilons(self, configs: list[Config]) -> list[list[float]]:
        if not self._with_epsilon:
            return [[] for _ in configs]
        start = time.monotonic()
        epsilons = self._epsilon_bounds(configs)
        seconds = time.monotonic() - start
        if seconds > _SLOW and not self._warned_of_time:
            self._warned_of_time = True
            warnings.warn(
                f"The privacy oracle took {seconds:.0f} s for {len(configs)} candidates. Give the "
                "problem a `privacy_batch`, or the study fewer `candidates` or "
                "`privacy_model='gp'`.",
                stacklevel=2,
            )
        return [[epsilon] for epsilon in epsilons]

    def _epsilon_bounds(self, configs: list[Config]) -> list[float]:
        if self._problem.privacy_batch is not None:
            try:
                return self._problem.epsilon_bounds(configs)
            except Exception as error:
                # One config can spoil a batch, and only its own epsilon shall be missing.
                self._count("privacy_batch", error)
        return [self._or_nan("privacy", self._problem.epsilon, config) for config in configs]

    def _row(self, config: Config, epsilon: list[float]) -> tuple[float, ...]:
        others = (self._or_nan(name, oracle, config) for name, oracle in self._functions.items())
        row = (*epsilon, *others)
        return row if all(map(math.isfinite, row)) else (math.nan,) * len(row)

    def _or_nan(self, name: str, oracle: Callable[[Config], float], config: Config) -> float:
        try:
            return oracle(config)
        except Exception as error:
            # The caller's code may raise anything, and to consider a config is not to try it: this
            # must not end the study. NaN keeps the config from being tried.
            self._count(name, error)
            return math.nan

    def _count(self, name: str, error: Exception) -> None:
        self.failures[f"{name}: {type(error).__name__}"] += 1

    def failures_in_words(self) -> str:
        """Which oracle failed how, and how often."""
        words = [f"{failure} ({count} times)" for failure, count in sorted(self.failures.items())]
        return ", ".join(words) or "no call failed"

    def _warn_of_failures(self) -> None:
        if self.failures and not self._warned_of_failures:
            self._warned_of_failures = True
            warnings.warn(
                f"Exact oracles fail on configs under consideration: {self.failures_in_words()}. "
                "Where a batch fails, its configs are asked about one by one; those without exact "
                "objectives are not proposed. Call the oracles by hand to see what is wrong.",
                stacklevel=3,
            )
